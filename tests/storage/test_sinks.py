"""Where metrics go beside the run directory: real stores of MLflow and real files of W&B, read back."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command, call_main
from read_back import Curves, curves_in_mlflow, curves_of_run, only_run
from small_runs import differences

from rl_training.config import TrainConfig, flatten
from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.core.options import bind
from rl_training.runtime import resume, train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.storage.checkpoint import load_checkpoint
from rl_training.storage.sinks import check_sinks, numbers

MakeConfig = Callable[..., TrainConfig]
BLOCK = 32768
"""Bytes of a block in a file of W&B."""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user's own environment says about sinks holds for no test."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow with a store of files, which the client has without a server."""
    module = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return module


@pytest.fixture
def wandb() -> Any:
    return pytest.importorskip("wandb")


def records(path: Path) -> Iterator[bytes]:
    """The records in a file of W&B: a header, then blocks of pieces, each with checksum, length and kind."""
    data, start, parts = path.read_bytes(), 7, b""
    while start + 7 <= len(data):
        if BLOCK - start % BLOCK < 7:
            # Too little is left of the block for another piece.
            start += BLOCK - start % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, start)
        parts += data[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def rows_in_wandb(path: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def curves_in_wandb(*files: Path) -> Curves:
    curves: Curves = {}
    for row in (row for path in files for row in rows_in_wandb(path)):
        for name, value in row.items():
            if "/" in name:
                curves.setdefault(name, []).append((row["global_step"], value))
    return {name: sorted(curve) for name, curve in curves.items()}


def wandb_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def test_mlflow_has_the_curves_the_options_and_how_the_run_ended(mlflow: Any, tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", "sinks=[mlflow]"))

    run = only_run(mlflow.MlflowClient())
    curves = curves_of_run(result.run_dir)
    assert [step for step, _ in curves["train/critic_loss"]] == [10, 20]
    assert {"train/actor_loss", "eval/return_mean"} < curves.keys()
    assert curves_in_mlflow(mlflow.MlflowClient(), run) == curves
    assert run.info.status == "FINISHED"
    assert run.info.run_name == result.run_dir.name
    about = json.loads((result.run_dir / "metadata.json").read_text())
    assert run.data.tags["run_id"] == about["run_id"]
    assert run.data.tags["run_dir"] == str(result.run_dir)
    expected = {"algo": "td3_bc", "algo_kwargs.batch_size": "16", "algo_kwargs.hidden_sizes": "[8, 8]"}
    expected |= {"algo_kwargs.dataset_path": "null", "sinks": '["mlflow"]'}
    assert {name: run.data.params[name] for name in expected} == expected


def test_wandb_has_the_curves_in_the_run_directory_and_sends_nothing(wandb: Any, tiny_config: MakeConfig) -> None:
    own = wandb.init(mode="offline", settings=wandb.Settings(silent=True, console="off"), dir=tiny_config().output_dir)

    result = train(tiny_config("td3_bc", "sinks=[wandb]"))

    (path,) = wandb_files(result.run_dir)
    assert curves_in_wandb(path) == curves_of_run(result.run_dir)
    assert json.loads((result.run_dir / "metadata.json").read_text())["run_id"] in path.name
    # A run that the program has under way is left alone.
    own.log({"mine": 1})
    own.finish()


def test_a_resumed_run_continues_in_the_same_place(mlflow: Any, wandb: Any, tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", "sinks=[mlflow, wandb]"))
    first = only_run(mlflow.MlflowClient())

    resume(result.run_dir, total_timesteps=40)

    run, curves = only_run(mlflow.MlflowClient()), curves_of_run(result.run_dir)
    assert run.info.run_id == first.info.run_id
    assert [step for step, _ in curves["train/critic_loss"]] == [10, 20, 30, 40]
    assert curves_in_mlflow(mlflow.MlflowClient(), run) == curves
    assert run.info.status == "FINISHED"
    files = wandb_files(result.run_dir)
    assert curves_in_wandb(*files) == curves
    assert len({path.name for path in files}) == 1
    assert json.loads((result.run_dir / "sinks.json").read_text())["mlflow"] == run.info.run_id


def test_a_resumed_run_may_have_other_sinks(mlflow: Any, tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc"))
    assert not (result.run_dir / "sinks.json").exists()

    resume(result.run_dir, total_timesteps=40, sinks=["mlflow"])

    assert [
        step
        for step, _ in curves_in_mlflow(mlflow.MlflowClient(), only_run(mlflow.MlflowClient()))["train/critic_loss"]
    ] == [30, 40]


def test_a_run_that_is_gone_from_mlflow_starts_anew_there(mlflow: Any, tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", "sinks=[mlflow]"))
    first = only_run(mlflow.MlflowClient()).info.run_id
    mlflow.MlflowClient().delete_run(first)

    resume(result.run_dir, total_timesteps=40)

    assert only_run(mlflow.MlflowClient()).info.run_id != first


class Ends(Callback):
    """Ends a run at its first log line."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        if self.how == "KILLED":
            state.interrupt("for now")
        else:
            raise ValueError("no more")


@pytest.mark.parametrize("how", ["KILLED", "FAILED"])
def test_mlflow_knows_how_a_run_ended(mlflow: Any, tiny_config: MakeConfig, how: str) -> None:
    try:
        train(tiny_config("td3_bc", "sinks=[mlflow]"), callbacks=[Ends(how)])
    except ValueError:
        assert how == "FAILED"

    assert only_run(mlflow.MlflowClient()).info.status == how


def test_the_environment_names_the_experiment(
    mlflow: Any, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "pendulum")

    train(tiny_config("td3_bc", "sinks=[mlflow]"))

    assert only_run(mlflow.MlflowClient(), "pendulum").info.status == "FINISHED"
    client = mlflow.MlflowClient()
    client.delete_experiment(client.get_experiment_by_name("pendulum").experiment_id)
    with pytest.raises(ConfigError, match="the MLflow experiment 'pendulum' is deleted: restore it"):
        train(tiny_config("td3_bc", "sinks=[mlflow]"))


def test_metrics_that_a_callback_names_as_it_likes_are_written_too(mlflow: Any, tiny_config: MakeConfig) -> None:
    class Speed(Callback):
        def on_each_update(self, state: TrainerState, metrics: Any) -> None:
            state.log("speed (m/s)", 2.0)

    train(tiny_config("td3_bc", "sinks=[mlflow]"), callbacks=[Speed()])

    assert curves_in_mlflow(mlflow.MlflowClient(), only_run(mlflow.MlflowClient()))["train/speed _m/s_"] == [
        (10, 2.0),
        (20, 2.0),
    ]


def test_a_server_that_goes_away_is_named_once_and_the_run_ends_well(
    mlflow: Any, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, send = [], mlflow.MlflowClient.log_batch

    def log_batch(client: Any, run_id: str, **rows: Any) -> None:
        calls.append(rows)
        if "metrics" in rows and rows["metrics"][0].step > 10:
            raise ConnectionResetError(104, "Connection reset by peer")
        send(client, run_id, **rows)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", log_batch)
    with pytest.warns(UserWarning, match="sink") as found:
        result = train(tiny_config("td3_bc", "sinks=[mlflow]", "total_timesteps=60"))

    words = "the sink mlflow is switched off: Connection reset by peer; metrics.jsonl has every row"
    assert [str(each.message) for each in found] == [words]
    assert [step for step, _ in curves_of_run(result.run_dir)["train/critic_loss"]] == [10, 20, 30, 40, 50, 60]
    assert sum("metrics" in rows and rows["metrics"][0].step > 10 for rows in calls) == 1
    assert (result.run_dir / "result.json").exists()


def test_a_server_that_does_not_answer_is_refused_before_anything_is_written(
    mlflow: Any, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{address}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = tiny_config("td3_bc", "sinks=[mlflow]")

    with pytest.raises(ConfigError) as found:
        train(config)

    advice = "start the server, set MLFLOW_TRACKING_URI, or leave mlflow out of sinks"
    assert str(found.value) == f"MLflow at http://{address} cannot be used: Connection refused; {advice}"
    assert not Path(config.output_dir).exists()


def test_the_default_of_mlflow_is_a_database_which_the_client_alone_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)

    with pytest.raises(ConfigError, match=r"mlflow.db is a database, .*: set MLFLOW_TRACKING_URI to a server, such as"):
        check_sinks(["mlflow"])

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_library_is_named_with_its_extra(
    name: str, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    config = tiny_config("td3_bc", f"sinks=[{name}]")

    with pytest.raises(MissingExtraError, match=rf"the sink {name} needs .* pip install 'rl-training\[{name}\]'"):
        train(config)

    assert not Path(config.output_dir).exists()


def test_a_sink_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"sinks.0 must be one of 'mlflow' or 'wandb', got 'mlfow'; did you mean"):
        bind({"algo": "bc", "sinks": ["mlfow"]}, TrainConfig)


def test_wandb_sends_only_with_credentials(wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigError, match=r"W&B cannot be used: .*; set WANDB_MODE=offline, or leave wandb out of"):
        check_sinks(["wandb"])
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigError, match=r"WANDB_MODE must be one of .*, got 'onlin'; did you mean 'online'"):
        check_sinks(["wandb"])


def test_sinks_make_no_difference_to_what_is_learned(mlflow: Any, wandb: Any, tiny_config: MakeConfig) -> None:
    plain = train(tiny_config("sac", "total_timesteps=40"))

    watched = train(tiny_config("sac", "total_timesteps=40", "sinks=[mlflow, wandb]"))

    ours, theirs = (load_checkpoint(each.checkpoint_path)["algorithm"] for each in (plain, watched))
    assert differences(ours, theirs) == []


def test_a_run_that_was_not_asked_to_loads_no_library_of_a_sink(tiny_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(tiny_config("bc").to_yaml())
    script = (
        "import sys; from rl_training import train; train(sys.argv[1]); print({'mlflow', 'wandb'} & {*sys.modules})"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "config.yaml"], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"


def test_only_finite_numbers_of_a_row_are_sent() -> None:
    row = {"global_step": 3, "loss": 0.5, "broken": float("nan"), "endless": float("inf"), "text": "a"}

    assert numbers("train", row) == {"train/global_step": 3, "train/loss": 0.5}


def test_options_are_flattened_to_dotted_names() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    # What other processes print counts too.
    return partial(call_main, monkeypatch, capfd)


def test_what_libraries_of_sinks_say_is_not_among_the_results(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    sinks = "sinks=[mlflow, wandb]"
    answer = command("train", "td3_bc/pendulum", *TINY, sinks, "--out", tmp_path / "runs", "--quiet", "--json")

    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["metrics"]["global_step"] == 20
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_a_sink_that_does_not_exist_ends_the_command_before_anything_is_written(
    command: Command, tmp_path: Path
) -> None:
    answer = command("train", "td3_bc/pendulum", "sinks=[wandbb]", "--out", tmp_path / "runs")

    words = "sinks.0 must be one of 'mlflow' or 'wandb', got 'wandbb'; did you mean 'wandb'?"
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert not (tmp_path / "runs").exists()


def test_seeds_are_refused_too_where_mlflow_does_not_answer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    answer = command("train", "bc/pendulum", *TINY, "sinks=[mlflow]", "--seeds", "0", "--out", tmp_path / "runs")

    assert (answer.code, answer.out) == (2, "")
    assert "error: MLflow at http://127.0.0.1:9 cannot be used: Connection refused" in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_seeds_side_by_side_share_a_database_that_is_new(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    seeds = ("--seeds", "0-1", "--workers", "2")

    answer = command("train", "bc/pendulum", *TINY, "sinks=[mlflow]", *seeds, "--out", tmp_path / "runs", "--quiet")

    assert answer.code == 0
    client = mlflow.MlflowClient()
    for run in client.search_runs(["0"]):
        assert curves_in_mlflow(client, run) == curves_of_run(tmp_path / "runs" / run.info.run_name)
    assert {run.info.status for run in client.search_runs(["0"])} == {"FINISHED"}
    assert len(client.search_runs(["0"])) == 2
