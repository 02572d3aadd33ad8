"""Curves on a real MLflow server, read back; `make extras` installs the server into an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY
from read_back import curves_in_mlflow, curves_of_run, only_run

from rl_training.config import TrainConfig
from rl_training.runtime import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState

PROGRAM = Path(__file__).parents[2] / ".venv-mlflow" / "bin" / "mlflow"
pytestmark = pytest.mark.extras


class Server:
    """A server of MLflow with a database of its own, and all its processes."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        store = ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "server", *place, *store, "--artifacts-destination", folder / "artifacts"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": ""},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(240):
            assert self.process.poll() is None, self.log.read_text()
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:  # noqa: S310 - our own server
                    assert answer.status == 200
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text())

    def send(self, number: int) -> None:
        """Send a signal to all its processes."""
        os.killpg(self.process.pid, number)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    assert PROGRAM.exists(), "a server of MLflow is needed: `make extras` installs it"
    started = Server(tmp_path)
    try:
        started.wait()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", started.uri)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "pendulum")
        yield started
    finally:
        started.send(signal.SIGKILL)
        started.process.wait()


def _command(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", *arguments, "--quiet", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_server_has_every_value_of_a_run_and_of_its_continuation(server: Server, tmp_path: Path) -> None:
    import mlflow

    answer = _command("train", "td3_bc/pendulum", *TINY, "sinks=[mlflow]", "--out", tmp_path / "runs")

    client, run_dir = mlflow.MlflowClient(), Path(answer["run_dir"])
    first = only_run(client, "pendulum")
    curves = curves_of_run(run_dir)
    assert [step for step, _ in curves["train/critic_loss"]] == [10, 20]
    assert curves_in_mlflow(client, first) == curves
    assert (first.info.status, first.info.run_name) == ("FINISHED", run_dir.name)
    assert first.data.params["algo_kwargs.hidden_sizes"] == "[8, 8]"

    _command("resume", run_dir, "total_timesteps=40")

    run, curves = only_run(client, "pendulum"), curves_of_run(run_dir)
    assert run.info.run_id == first.info.run_id
    assert [step for step, _ in curves["eval/return_mean"]] == [10, 20, 30, 40]
    assert curves_in_mlflow(client, run) == curves
    assert sum(map(len, curves.values())) > 100
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_server_that_goes_away_costs_a_warning_and_a_moment(
    server: Server, tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # What the user says about patience holds.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")

    class Strikes(Callback):
        def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
            if state.global_step == 30:
                server.send(number)

    config = tiny_config("td3_bc", "sinks=[mlflow]", "total_timesteps=100")
    started = time.perf_counter()
    with pytest.warns(UserWarning, match="the sink mlflow is switched off") as found:
        result = train(config, callbacks=[Strikes()])

    assert len(found) == 1
    assert time.perf_counter() - started < 300
    assert [step for step, _ in curves_of_run(result.run_dir)["train/critic_loss"]] == list(range(10, 101, 10))
    assert result.stop_reason is None
    assert (result.run_dir / "result.json").exists()
