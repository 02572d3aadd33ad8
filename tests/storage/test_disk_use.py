"""What a run keeps on disk, what it says about that, and what the next start cleans up."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from command_line import Command, call_main
from small_runs import online_config, small

from rl_training.runtime import Callback, TrainerState, resume, train
from rl_training.storage.checkpoint import load_checkpoint, save_checkpoint
from rl_training.storage.lock import RunLock
from rl_training.storage.run_directory import OLD_DRAFT, drop_drafts


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Words(Callback):
    """What the user of a run is told at its start."""

    def on_train_start(self, state: TrainerState) -> None:
        self.introduction, self.notes = state.introduction, state.notes


@pytest.mark.parametrize(
    ("keep", "steps"), [("3", (20, 30, 40)), ("1", (40,)), ("all", (0, 10, 20, 30, 40))], ids=["3", "1", "all"]
)
def test_the_newest_checkpoints_are_kept_and_every_policy(keep: str, steps: tuple[int, ...], tmp_path: Path) -> None:
    run = train(small(tmp_path, f"keep_checkpoints={keep}")).run_dir

    assert names(run / "checkpoints") == ["best.pt", "latest.pt", *(f"update_{step:09d}.pt" for step in steps)]
    assert names(run / "policies") == [f"step_{step:09d}.pt" for step in (0, 10, 20, 30, 40)]


def test_a_resumed_run_of_an_earlier_version_keeps_its_checkpoints(tmp_path: Path) -> None:
    run = train(small(tmp_path, "keep_checkpoints=all")).run_dir
    for path in (run / "checkpoints").iterdir():
        tree = load_checkpoint(path)
        del tree["config"]["keep_checkpoints"]
        save_checkpoint(path, tree)

    resume(run, total_timesteps=50)

    assert len(names(run / "checkpoints")) == 8


def test_a_checkpoint_that_becomes_the_best_again_is_not_deleted_before(tmp_path: Path) -> None:
    run = train(small(tmp_path, "keep_checkpoints=all")).run_dir
    checkpoints = run / "checkpoints"
    # At update 30 the best was that of update 10, and update 40 is better.
    tree = load_checkpoint(checkpoints / "update_000000030.pt")
    tree["trainer"]["state"] |= {"best_step": 10, "best_score": 1e9}
    save_checkpoint(checkpoints / "update_000000030.pt", tree)
    shutil.copyfile(checkpoints / "update_000000040.pt", checkpoints / "best.pt")

    resume(checkpoints / "update_000000030.pt", keep_checkpoints=1)

    assert load_checkpoint(checkpoints / "best.pt")["trainer"]["state"]["global_step"] == 10
    assert names(checkpoints) == ["best.pt", "latest.pt", "update_000000040.pt"]


def test_a_checkpoint_whose_number_a_kill_prevented_gets_it_from_the_next_start(tmp_path: Path) -> None:
    run = train(small(tmp_path)).run_dir
    before = names(run / "checkpoints")
    (run / "checkpoints" / "update_000000040.pt").unlink()

    resume(run)

    assert names(run / "checkpoints") == before


def test_the_rows_of_every_checkpoint_that_is_kept_are_kept(tmp_path: Path) -> None:
    config = online_config(tmp_path, "sac", "total_timesteps=100", "algo_kwargs.buffer_capacity=25")
    run = train(config).run_dir
    needed = {
        f"rows_{start:010d}_{stop:010d}.pt"
        for path in (run / "checkpoints").iterdir()
        for start, stop in load_checkpoint(path)["replay"]
    }

    assert set(names(run / "replay")) == needed
    assert names(run / "checkpoints")[2:] == [f"step_{step:09d}.pt" for step in (60, 80, 100)]
    (run / "replay" / "rows_0000000000_0000000001.pt").touch()
    resume(run / "checkpoints" / "step_000000060.pt")
    assert "rows_0000000000_0000000001.pt" not in names(run / "replay")


def test_a_run_says_at_its_start_how_much_room_it_takes(tmp_path: Path) -> None:
    words, again = Words(), Words()
    run = train(small(tmp_path), callbacks=[words]).run_dir
    resume(run, callbacks=[again])
    size = (run / "checkpoints" / "latest.pt").stat().st_size

    for each in (words, again):
        (line,) = [line for line in each.introduction if line.startswith("disk")]
        assert float(line.split("a checkpoint takes ")[1].split(" kB")[0]) == pytest.approx(size / 1e3, rel=0.02)
    foreseen = float(line.split("the run about ")[1].split(" kB")[0])
    found = sum(path.stat().st_size for path in {*run.rglob("*.pt")} - {run / "checkpoints" / "latest.pt"}) / 1e3
    assert foreseen == pytest.approx(found, rel=0.3)


def test_a_run_that_will_not_fit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    words = Words()

    with pytest.warns(UserWarning, match=r"10 kB are free, and the next checkpoint needs .* kB: make room") as caught:
        train(small(tmp_path), callbacks=[words])

    assert len(caught) == 1
    assert any("the run takes about" in note and "10 kB are free" in note for note in words.notes)


def make_draft(parent: Path, *, age: float) -> Path:
    """What a kill leaves of a run directory before it has its name."""
    draft = parent / ".bc__Task-v0__seed0__20260101-000000.123.456"
    (draft / "checkpoints").mkdir(parents=True)
    (draft / "config.yaml").write_text("algo: [")
    then = draft.stat().st_mtime - age
    os.utime(draft, (then, then))
    return draft


def test_a_draft_of_a_killed_run_is_deleted_by_the_next_start_and_breaks_no_report(
    tmp_path: Path, command: Command
) -> None:
    draft = make_draft(tmp_path, age=2 * OLD_DRAFT)
    train(small(tmp_path))
    assert not draft.exists()

    # A process has signed its lock, and is dead: it does not matter how long.
    draft = make_draft(tmp_path, age=0)
    (draft / ".lock").write_text("{}")
    train(small(tmp_path))
    assert not draft.exists()

    make_draft(tmp_path, age=0)
    assert command("report", tmp_path).code == 0


def test_a_draft_of_which_a_kill_left_a_part_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = make_draft(tmp_path, age=2 * OLD_DRAFT)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    drop_drafts(tmp_path)
    assert names(draft) == ["checkpoints"]
    monkeypatch.undo()

    os.utime(draft, (0, 0))
    drop_drafts(tmp_path)

    assert not draft.exists()


@pytest.mark.parametrize("is_locked", [True, False], ids=["locked", "young"])
def test_a_draft_of_a_live_process_is_left_alone(is_locked: bool, tmp_path: Path) -> None:
    draft = make_draft(tmp_path, age=0)
    lock = RunLock(draft) if is_locked else None
    if is_locked:
        os.utime(draft, (0, 0))
    train(small(tmp_path))

    assert draft.exists()
    assert lock is None or lock.descriptor is not None


def test_temporary_files_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    run = train(small(tmp_path)).run_dir
    left = [
        run / "checkpoints" / ".latest.pt.tmp",
        run / "policies" / ".step_000000020.pt.tmp",
        run / ".config.yaml.tmp",
    ]
    # Another command writes this one, and may be alive.
    other = run / ".estimate.json.tmp"
    for path in (*left, other):
        path.touch()

    resume(run)

    assert not any(path.exists() for path in left)
    assert other.exists()


def test_a_draft_that_gets_its_name_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = tmp_path / ".run.1.1"
    (draft / "checkpoints").mkdir(parents=True)

    def is_signed(path: Path) -> bool:
        path.rename(tmp_path / "run")
        return True

    monkeypatch.setattr("rl_training.storage.run_directory.is_signed", is_signed)
    drop_drafts(tmp_path)
    assert (tmp_path / "run" / "checkpoints").is_dir()
