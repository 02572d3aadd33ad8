"""Kill short runs at everything they do to their files, go on with them, and compare with runs that were not killed.

A run is killed (SIGKILL) before, in the middle of, or after a write, fsync, rename, link, unlink, mkdir or rmdir, or at
a random moment. Then the same command goes on with it. It must end with the same state, to the last bit, and the same
rows of metrics.

    python tests/torture.py --kills 200 --random 20 --cases bc,td3_bc,sac

Results are added to a file. A harness that is started again leaves out the kills that are in it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from conftest import packaged
from small_runs import PRIOR, SMALL, differences

from rl_training.config import TrainConfig, load_config
from rl_training.runtime.artifacts import read_metrics
from rl_training.runtime.checkpointing import load_checkpoint
from rl_training.runtime.finding import is_finished
from rl_training.runtime.named_runs import train_or_resume

OFFLINE = (
    "total_timesteps=12",
    "eval_episodes=1",
    "log_interval=4",
    "checkpoint_interval=4",
    "algo_kwargs.dataset_size=100",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.eval_interval=6",
    "algo_kwargs.hidden_sizes=[8, 8]",
)
SAVED = ("env_id=SavedProbe-v0", "algo_kwargs.reward_scale=0.001", "algo_kwargs.save_replay=true")
GOING_BACK = (
    "algo_kwargs.on_divergence=rollback",
    "algo_kwargs.guard_saturation=null",
    "algo_kwargs.guard_action_spread=null",
    "algo_kwargs.guard_value_slack=null",
)
SLOWER = ("algo_kwargs.learning_rate=1", "algo_kwargs.guard_weight_growth=12", "algo_kwargs.buffer_capacity=4")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bc": ("bc", OFFLINE),
    "td3_bc": ("td3_bc", OFFLINE),
    "iql": ("iql", OFFLINE),
    "cql": ("cql", OFFLINE),
    "sac": ("sac", (*SMALL, *SAVED)),
    "td3": ("td3", (*SMALL, *SAVED)),
    "ppo": ("ppo", ("total_timesteps=64", "eval_episodes=1", "log_interval=16", "checkpoint_interval=16")),
    "fine_tuning": ("td3_bc", (*SMALL, *PRIOR)),
    "going_back": (
        "td3_bc",
        (*OFFLINE, *GOING_BACK, "algo_kwargs.learning_rate=16", "algo_kwargs.guard_weight_growth=100"),
    ),
    "going_back_online": ("td3", (*SMALL, *GOING_BACK, *SLOWER, "checkpoint_interval=6", "keep_checkpoints=1")),
}
"""What is tortured, by name: an algorithm and what makes its run small."""
NAME = "victim"
SPEEDS = ("updates_per_second", "steps_per_second")


class Kill(NamedTuple):
    """When a run is killed: at an operation on its files, by number, or after some seconds."""

    case: str
    operation: int | None
    moment: str
    seconds: float = 0.0


class Operations:
    """Counts what a process does to files below a folder, and kills it at one of these operations."""

    NAMES = ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")

    def __init__(self, folder: Path, kill: Kill | None) -> None:
        self.folder, self.kill = str(folder), kill
        self.seen: list[str] = []

    def install(self) -> None:
        """From here on, count."""
        for name in self.NAMES:
            setattr(os, name, self._watched(name, getattr(os, name)))
        original = io.open
        io.open = lambda file, mode="r", *values, **named: self._opened(
            file, mode, original(file, mode, *values, **named)
        )

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if not self._is_inside(values[0], named.get("dir_fd") or named.get("src_dir_fd")):
                return original(*values, **named)
            number = self._begin(name)
            try:
                return original(*values, **named)
            finally:
                # Also where there was nothing to unlink.
                self._die_if(number, "after")

        return call

    def _opened(self, file: Any, mode: str, opened: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        return Written(opened, self) if writes and self._is_inside(file, None) else opened

    def write(self, file: Any, data: Any) -> Any:
        """Write, and perhaps only half of it."""
        number = self._begin("write")
        if self.kill is not None and self.kill.moment == "middle" and self.kill.operation == number:
            file.write(data[: len(data) // 2])
            file.flush()
            self._die_if(number, "middle")
        result = file.write(data)
        if self.kill is not None and self.kill.operation == number:
            file.flush()
        self._die_if(number, "after")
        return result

    def _begin(self, name: str) -> int:
        self.seen.append(name)
        number = len(self.seen) - 1
        self._die_if(number, "before")
        return number

    def _die_if(self, number: int, moment: str) -> None:
        if self.kill is not None and (self.kill.operation, self.kill.moment) == (number, moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_inside(self, place: Any, folder: int | None) -> bool:
        """Whether an operation is on the files of the run."""
        if isinstance(place, int) or folder is not None:
            place = Path(f"/proc/self/fd/{place if folder is None else folder}").readlink()
        # Path.resolve would look at the files.
        return os.path.abspath(os.fsdecode(place)).startswith(self.folder)  # noqa: PTH100


class Written:
    """An open file whose writes are counted."""

    def __init__(self, file: Any, operations: Operations) -> None:
        self.file, self.operations = file, operations

    def write(self, data: Any) -> Any:
        return self.operations.write(self.file, data)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def case_config(case: str) -> TrainConfig:
    """The configuration of a case; the run has a name, so that the same call starts it and goes on with it."""
    algo, overrides = CASES[case]
    return load_config(
        packaged(algo), overrides=[*overrides, "algo_kwargs.compile=never", "output_dir=runs", f"run_name={NAME}"]
    )


def run(case: str, folder: Path, kill: Kill | None = None) -> tuple[int, list[str]]:
    """Train in a process of its own until it ends or is killed; its status, and what it did to its files."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reader)
            folder.mkdir(exist_ok=True)
            os.chdir(folder)
            torch.set_num_threads(1)
            operations = Operations(folder.resolve() / "runs", kill)
            operations.install()
            train_or_resume(case_config(case), threads=1)
            os.write(writer, "\n".join(operations.seen).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    if kill is not None and kill.operation is None:
        time.sleep(kill.seconds)
        os.kill(process, signal.SIGKILL)
    with os.fdopen(reader, encoding="utf-8") as file:
        seen = file.read().split("\n")
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), seen


def contents(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], set[str]]:
    """What counts of a run: its state, its rows of metrics, and the names of its files."""
    victim = folder / "runs" / NAME
    tree = load_checkpoint(victim / "checkpoints" / "latest.pt")
    rows = [{name: value for name, value in row.items() if name not in SPEEDS} for row in read_metrics(victim)]
    files = {str(path.relative_to(victim)) for path in victim.rglob("*")}
    # A run has an identity of its own.
    return {name: value for name, value in tree.items() if name != "run"}, rows, files


def judge(kill: Kill, folder: Path, straight: Path) -> dict[str, Any]:
    """Kill a run, go on with it, and say what has become of it."""
    killed, _ = run(kill.case, folder, kill)
    status, _ = run(kill.case, folder)
    row: dict[str, Any] = {**kill._asdict(), "killed": killed == -signal.SIGKILL, "lost": False, "different": []}
    if status != 0 or not is_finished(folder / "runs" / NAME):
        return {**row, "lost": True, "left": []}
    (tree, rows, files), (other_tree, other_rows, other_files) = contents(folder), contents(straight)
    row["different"] = differences(tree, other_tree) + ["metrics"] * (rows != other_rows)
    drafts = {path.name for path in (folder / "runs").iterdir()} - {NAME}
    # Row numbers are part of the names of replay files, and a run that was killed may have split them elsewhere.
    left = {name for name in files - other_files if not name.startswith("replay/")}
    return {**row, "left": sorted(left | drafts), "missing": sorted(other_files - files)}


def moments_of(case: str, operations: list[str], *, every_write: bool) -> Iterator[Kill]:
    """All moments around operations; of the writes in a row, as a file is written, only the ends and one in between."""
    start = 0
    for name, group in groupby(operations):
        count = len(list(group))
        numbers = range(start, start + count)
        start += count
        if name == "write" and not every_write:
            yield Kill(case, numbers[0], "before")
            yield Kill(case, numbers[count // 2], "middle")
            yield Kill(case, numbers[-1], "after")
        else:
            moments = ("before", "middle", "after") if name == "write" else ("before", "after")
            yield from (Kill(case, number, moment) for number in numbers for moment in moments)


def planned(case: str, moments: list[Kill], kills: int, at_random: int, seconds: float) -> Iterator[Kill]:
    """Some of these moments, spread evenly, and random ones."""
    count = min(kills, len(moments))
    yield from (moments[number * len(moments) // count] for number in range(count))
    generator = random.Random(case)
    for number in range(at_random):
        yield Kill(case, None, f"random {number}", generator.uniform(0, seconds))


def torture(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All kills that are not in the file of results yet; the results of all."""
    cases, out = options.cases.split(","), options.out
    lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["case"], row["operation"], row["moment"]) for row in rows}
    for number, case in enumerate(cases):
        share = options.kills // len(cases) + (number < options.kills % len(cases))
        with tempfile.TemporaryDirectory() as place:
            straight, began = Path(place, "straight"), time.monotonic()
            status, operations = run(case, straight)
            if status != 0:
                sys.exit(f"{case}: the run that is not killed ended with status {status}")
            seconds = time.monotonic() - began
            moments = list(moments_of(case, operations, every_write=options.every_write))
            for kill in planned(case, moments, share, options.random, seconds):
                if kill[:3] in done:
                    continue
                folder = Path(place, "killed")
                rows.append(judge(kill, folder, straight))
                shutil.rmtree(folder)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    return rows


def main() -> None:
    """Torture, print what came of it, and end with status 1 if anything was lost or different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--kills", type=int, default=400, help="kills at operations on files, over all cases")
    parser.add_argument("--random", type=int, default=10, help="kills at random moments, in each case")
    parser.add_argument("--every-write", action="store_true", help="kill at each of the writes that make one file")
    parser.add_argument("--out", type=Path, default=Path("torture.jsonl"), help="file of results")
    options = parser.parse_args()
    # TensorBoard writes from a thread, at any time. Without it, a run does the same to its files every time.
    sys.modules["torch.utils.tensorboard"] = None  # type: ignore[assignment]
    cases = options.cases.split(",")
    rows = [row for row in torture(options) if row["case"] in cases]
    for case in cases:
        own = [row for row in rows if row["case"] == case]
        count = Counter(name for row in own for name in ("killed", "lost", "different", "left") if row[name])
        words = ", ".join(f"{name} {count[name]}" for name in ("lost", "different", "left"))
        print(f"{case:<18}{len(own)} kills ({len(own) - count['killed']} came too late): {words}")
    for row in (row for row in rows if row["lost"] or row["different"]):
        print(json.dumps(row))
    sys.exit(any(row["lost"] or row["different"] for row in rows))


if __name__ == "__main__":
    main()
