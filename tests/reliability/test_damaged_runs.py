"""Run directories in which files are missing, damaged or of another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import Answer, Command, call_main
from small_runs import differences, online_config, rows_of, small, state_of

from rl_training.core.errors import CheckpointError
from rl_training.reports import read_runs
from rl_training.runtime import predict, resume, train
from rl_training.storage import load_checkpoint, load_tree, read_metrics, save_checkpoint, save_tree

MakeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Makes runs, each only once."""
    done: dict[tuple[str, ...], Path] = {}

    def get(*overrides: str) -> Path:
        if overrides not in done:
            done[overrides] = train(small(tmp_path_factory.mktemp("runs"), *overrides)).run_dir
        return done[overrides]

    return get


@pytest.fixture
def run(trained: MakeRun, tmp_path: Path) -> Path:
    """A run that has ended, to be damaged."""
    return Path(shutil.copytree(trained(), tmp_path / "run"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    state = load_checkpoint(path)["algorithm"]
    needle = next(value for name, value in state.items() if name.startswith("model.")).numpy().tobytes()
    contents[contents.index(needle)] ^= 1
    path.write_bytes(bytes(contents))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip, empty])
def test_a_damaged_newest_checkpoint_is_skipped_and_named(
    damage: Callable[[Path], None], run: Path, trained: MakeRun
) -> None:
    latest, newest = run / "checkpoints" / "latest.pt", run / "checkpoints" / "update_000000040.pt"
    damage(latest)
    if newest.exists():
        shutil.copy(latest, newest) if latest.exists() else newest.unlink()

    with pytest.warns(UserWarning, match="resuming from") as caught:
        resume(run)

    (message,) = [str(each.message) for each in caught]
    assert message.startswith(str(latest) if damage is not Path.unlink else f"{latest} is missing")
    assert message.endswith(f"resuming from {run / 'checkpoints' / 'update_000000030.pt'}, timestep 30")
    assert differences(state_of(run), state_of(trained())) == []
    assert rows_of(run) == rows_of(trained())


def test_a_missing_latest_checkpoint_costs_nothing_where_its_number_is_there(run: Path, trained: MakeRun) -> None:
    (run / "checkpoints" / "latest.pt").unlink()
    rows = (run / "metrics.jsonl").read_bytes()

    with pytest.warns(UserWarning, match=r"latest.pt is missing: resuming from .*update_000000040.pt, timestep 40"):
        resume(run)

    assert (run / "metrics.jsonl").read_bytes() == rows
    assert differences(state_of(run), state_of(trained())) == []


def test_a_run_without_a_whole_checkpoint_is_refused_and_left_as_it_is(run: Path, command: Command) -> None:
    for path in (run / "checkpoints").iterdir():
        empty(path)
    rows = (run / "metrics.jsonl").read_bytes()

    answer = command("resume", run)

    assert (answer.code, answer.out) == (2, "")
    assert f"no checkpoint in {run / 'checkpoints'} is whole: {run / 'checkpoints' / 'latest.pt'} is not" in answer.err
    assert (run / "metrics.jsonl").read_bytes() == rows


def test_metrics_are_kept_where_all_checkpoints_are_gone(run: Path) -> None:
    rows = (run / "metrics.jsonl").read_bytes()
    for path in (run / "checkpoints").iterdir():
        path.unlink()

    with pytest.warns(UserWarning, match=r"the run starts over; its metrics are in .*metrics.old.jsonl"):
        resume(run)

    assert (run / "metrics.old.jsonl").read_bytes() == rows


@pytest.mark.parametrize("other", ["seed=1", "algo=bc", "tags=[twin]"])
def test_a_checkpoint_of_another_run_is_refused_by_name(
    other: str, run: Path, trained: MakeRun, command: Command
) -> None:
    latest, theirs = run / "checkpoints" / "latest.pt", trained(other)
    shutil.copy(theirs / "checkpoints" / "latest.pt", latest)

    answer = command("resume", run)

    assert (answer.code, answer.out) == (2, "")
    assert f"{latest} belongs to another run ({theirs.name}, " in answer.err


@pytest.mark.parametrize(("other", "words"), [("seed=1", "seed 1; this one has seed 0"), ("algo=bc", "algo bc; this")])
def test_a_checkpoint_of_another_seed_or_algorithm_is_told_without_an_identity(
    other: str, words: str, run: Path, trained: MakeRun, command: Command
) -> None:
    latest = run / "checkpoints" / "latest.pt"
    tree = load_checkpoint(trained(other) / "checkpoints" / "latest.pt")
    del tree["run"]
    save_checkpoint(latest, tree)

    answer = command("resume", run)

    assert answer.code == 2
    assert f"{latest} belongs to another run ({words}" in answer.err


def test_metrics_of_another_run_are_refused_by_name(run: Path, trained: MakeRun, command: Command) -> None:
    theirs = (trained("seed=1") / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(theirs)

    answers = command("resume", run), command("report", run)

    for answer in answers:
        assert answer.code == 2
        assert f"{run / 'metrics.jsonl'}, line 1, belongs to another run" in answer.err
    assert (run / "metrics.jsonl").read_bytes() == theirs


def test_rows_of_another_replay_buffer_are_refused_by_name(tmp_path: Path) -> None:
    ours, theirs = (train(online_config(tmp_path, "sac", f"seed={seed}")).run_dir for seed in (0, 1))
    name = max(path.name for path in (ours / "replay").iterdir())
    shutil.copy(theirs / "replay" / name, ours / "replay" / name)

    with pytest.raises(CheckpointError) as caught:
        resume(ours)

    assert str(caught.value).startswith(f"{ours / 'replay' / name} belongs to another run ({theirs.name})")


def without_identity(run: Path) -> None:
    """Make a run as earlier versions left it."""
    about = json.loads((run / "metadata.json").read_text())
    del about["run_id"]
    (run / "metadata.json").write_text(json.dumps(about))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in read_metrics(run)))
    for path in (run / "checkpoints").iterdir():
        tree = load_checkpoint(path)
        del tree["run"]
        save_checkpoint(path, tree)
    for path in (run / "replay").glob("*"):
        save_tree(path, {"rows": load_tree(path)["rows"]})


def test_a_run_of_an_earlier_version_continues_and_gets_an_identity(tmp_path: Path) -> None:
    run = train(online_config(tmp_path, "sac")).run_dir
    without_identity(run)

    resume(run, total_timesteps=60)
    resume(run, total_timesteps=80)

    run_id = json.loads((run / "metadata.json").read_text())["run_id"]
    assert load_checkpoint(run / "checkpoints" / "latest.pt")["run"]["id"] == run_id
    assert [row["global_step"] for row in read_metrics(run) if row["kind"] == "eval"] == [20, 40, 60, 80]


def test_an_identity_that_was_lost_comes_back_from_the_checkpoint(run: Path) -> None:
    before = json.loads((run / "metadata.json").read_text())["run_id"]
    (run / "metadata.json").unlink()

    resume(run)

    assert json.loads((run / "metadata.json").read_text())["run_id"] == before


def insert(run: Path, line: bytes) -> None:
    """Put a line between the second row of metrics and the third."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind": "train", "glo\n', "is no JSON"),
        (b"\0" * 512 + b"\n", "has bytes that are zero"),
        (b'{"kind": "\xff\xfe"}\n', "is no text in UTF-8"),
        (b"[1, 2]\n", "is no JSON object"),
        (b"[" * 100_000 + b"\n", "is no JSON"),
    ],
    ids=["torn", "zeros", "bytes", "list", "deep"],
)
def test_a_damaged_line_of_metrics_is_named_and_set_aside(line: bytes, words: str, run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    insert(run, line)

    with pytest.warns(UserWarning, match=f"metrics.jsonl: line 3 {words}: left out"):
        assert read_runs(run)[0].curve("return_mean")[-1][0] == 40
    with pytest.warns(UserWarning, match=rf"metrics.jsonl: line 3 {words}: set aside, in metrics.damaged"):
        resume(run)

    assert (run / "metrics.jsonl").read_bytes() == before
    assert (run / "metrics.damaged").read_bytes() == line


def test_a_number_that_was_altered_is_noticed(run: Path) -> None:
    path = run / "metrics.jsonl"
    contents = path.read_bytes()
    path.write_bytes(contents.replace(b'"global_step": 20', b'"global_step": 21', 1))

    with pytest.warns(UserWarning, match=r"line \d does not match its checksum: left out"):
        read_metrics(run)


def test_commands_name_damaged_lines_and_continue(run: Path, command: Command) -> None:
    insert(run, b"half a li\n")

    with pytest.warns(UserWarning, match="line 3 is no JSON"):
        answers: list[Answer] = [command("report", run), command("resume", run, "--quiet")]

    assert [answer.code for answer in answers] == [0, 0]


def test_predict_names_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    run = train(small(tmp_path)).run_dir
    latest, newest, other = (run / "checkpoints" / f"{name}.pt" for name in ("latest", "update_000000040", "best"))
    whole = run / "checkpoints" / "update_000000030.pt"
    for path in (latest, newest, other):
        path.unlink()
        path.write_bytes(b"torn")

    with pytest.raises(
        CheckpointError, match=rf"latest.pt is not .*; the newest that is whole is {whole}: use that one"
    ):
        predict(run, [0.0, 0.0, 0.0])

    latest.unlink()
    with pytest.raises(CheckpointError, match=rf"holds no checkpoint .*; there is {newest}"):
        predict(run, [0.0, 0.0, 0.0])
