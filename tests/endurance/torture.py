"""Kill short runs at everything they do to their files, continue them, and compare with runs that were not killed.

A run is killed (SIGKILL) before, in the middle of, or after a write, fsync, rename, link, unlink, mkdir or rmdir, or at
a random moment. Some are killed a second time while they continue. Then the same command continues it. It must end with
the same state, to the last bit, the same rows of metrics and the same files.

    python tests/endurance/torture.py --kills 60 --cases bc,td3_bc,sac

Results are added to a file. A harness that is started again leaves out the kills that are in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES
from kills import Kill, Operations, moments_of
from small_runs import differences

from rl_training.experiment import ExperimentManager
from rl_training.runtime import train_or_resume
from rl_training.storage import is_finished, load_checkpoint, read_metrics
from rl_training.storage.run_directory import OLD_DRAFT

SPEEDS = ("updates_per_second", "steps_per_second")
OUTPUT = "output.txt"
"""What runs say on stderr."""
COSTLY = 10
"""A compiled run takes so many times as long as another, and is killed that much less often."""


def train(case: str) -> None:
    """Start the run, or the runs, of a case, or continue."""
    torture_case = CASES[case]
    if not torture_case.seeds:
        train_or_resume(torture_case.config(), threads=1)
        return
    # Workers are copies of this process, so that what they do to their files is counted too.
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: context  # type: ignore[assignment]
    results = ExperimentManager().sweep(torture_case.config(), torture_case.seeds, workers=2, resume=True)
    if any(result.status != "done" for result in results):
        raise RuntimeError(str(results))


def run(case: str, folder: Path, kill: Kill | None = None) -> tuple[int, list[str]]:
    """Train in a process of its own until it ends or is killed; its status, and what it did to its files."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reader)
            os.setsid()
            folder.mkdir(exist_ok=True)
            os.chdir(folder)
            with Path(OUTPUT).open("a") as file:
                os.dup2(file.fileno(), sys.stderr.fileno())
            torch.set_num_threads(1)
            operations = Operations(folder.resolve() / "runs", kill)
            operations.install()
            train(case)
            os.write(writer, "\n".join(operations.seen).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    if kill is not None and kill.operation is None:
        time.sleep(kill.seconds)
        # It may not lead a group yet.
        (os.killpg if os.getpgid(process) == process else os.kill)(process, signal.SIGKILL)
    with os.fdopen(reader, encoding="utf-8") as file:
        seen = file.read().split("\n")
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), seen


def contents(victim: Path) -> tuple[dict[str, Any], list[dict[str, Any]], set[str]]:
    """What counts of a run: its state, its rows of metrics, and the names of its files."""
    tree = load_checkpoint(victim / "checkpoints" / "latest.pt")
    rows = [{name: value for name, value in row.items() if name not in SPEEDS} for row in read_metrics(victim)]
    # Row numbers are part of the names of replay files, and a run that was killed may have split them elsewhere.
    files = {str(path.relative_to(victim)) for path in victim.rglob("*") if not path.match("replay/rows_*.pt")}
    # A run has an identity of its own.
    return {name: value for name, value in tree.items() if name != "run"}, rows, files


def compare(ours: Path, theirs: Path) -> dict[str, list[str]]:
    """What a run lacks, has in another state, and has too much, compared with one that was not disturbed."""
    (tree, rows, files), (other_tree, other_rows, other_files) = map(contents, (ours, theirs))
    different = differences(tree, other_tree) + ["metrics"] * (rows != other_rows)
    return {"lost": sorted(other_files - files), "different": different, "left": sorted(files - other_files)}


def judge(kill: Kill, folder: Path, straight: Path) -> dict[str, Any]:
    """Kill a run, continue it, and say what has become of it."""
    killed, _ = run(kill.case, folder, kill)
    grow_old(folder / "runs")
    twice = 0
    if kill.again is not None:
        twice, _ = run(kill.case, folder, Kill(kill.case, kill.again, "before"))
        grow_old(folder / "runs")
    status, _ = run(kill.case, folder)
    died = [killed, twice].count(-signal.SIGKILL)
    row: dict[str, Any] = {**kill._asdict(), "killed": died, "lost": [], "different": [], "left": []}
    for victim in sorted(path.name for path in (straight / "runs").iterdir()):
        ours = folder / "runs" / victim
        if status != 0 or not is_finished(ours):
            row["lost"].append(victim)
            continue
        for name, found in compare(ours, straight / "runs" / victim).items():
            row[name] += found
    if row["lost"]:
        row["errors"] = (folder / OUTPUT).read_text().splitlines()[-3:]
    expected = {path.name for path in (straight / "runs").iterdir()}
    row["left"] += sorted({path.name for path in (folder / "runs").iterdir()} - expected)
    return row


def grow_old(folder: Path) -> None:
    """Let some minutes go by for what a process left that was killed before it could lock it."""
    then = time.time() - 2 * OLD_DRAFT
    for path in folder.glob(".*") if folder.is_dir() else ():
        os.utime(path, (then, then))


def planned(case: str, moments: list[Kill], options: argparse.Namespace, seconds: float) -> Iterator[Kill]:
    """Some of these moments, spread evenly, random ones, and some with a second kill."""
    share = COSTLY if CASES[case].compiled else 1
    count = min(max(options.kills // share, 1), len(moments))
    chosen = [moments[number * len(moments) // count] for number in range(count)]
    yield from chosen
    generator = random.Random(case)
    for number in range(options.random // share):
        yield Kill(case, None, f"random {number}", generator.uniform(0, seconds))
    for number in range(options.double // share):
        # What a run that continues does first is in its first operations.
        yield generator.choice(moments)._replace(again=number if number % 2 else generator.randrange(len(moments)))


def torture(case: str, options: argparse.Namespace) -> None:
    """All kills of a case that are not in the file of results yet."""
    done = {_key(row) for row in read_rows(options.out)}
    with tempfile.TemporaryDirectory() as place:
        straight, began = Path(place, "straight"), time.monotonic()
        status, operations = run(case, straight)
        if status != 0:
            raise RuntimeError(f"{case}: the run that is not killed failed: {(straight / OUTPUT).read_text()}")
        seconds = time.monotonic() - began
        if CASES[case].seeds:
            # What the workers do is what a single run does.
            _, operations = run(CASES[case].algo, Path(place, "single"))
        moments = list(moments_of(case, operations, every_write=options.every_write))
        for kill in planned(case, moments, options, seconds):
            if _key(kill._asdict()) in done:
                continue
            folder = Path(place, "killed")
            row = judge(kill, folder, straight)
            shutil.rmtree(folder, ignore_errors=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["case"], row["operation"], row["moment"], row["again"]


def main() -> None:
    """Torture, print what came of it, and end with status 1 if anything was lost, different or left over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--kills", type=int, default=60, help="kills at operations on files, in each case")
    parser.add_argument("--random", type=int, default=10, help="kills at random moments, in each case")
    parser.add_argument("--double", type=int, default=10, help="runs that are killed twice, in each case")
    parser.add_argument("--workers", type=int, default=1, help="cases that are tortured side by side")
    parser.add_argument("--every-write", action="store_true", help="kill at each of the writes that make one file")
    parser.add_argument("--out", type=Path, default=Path("torture.jsonl"), help="file of results")
    options = parser.parse_args()
    # TensorBoard writes from a thread, at any time. Without it, a run does the same to its files every time.
    sys.modules["torch.utils.tensorboard"] = None  # type: ignore[assignment]
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    cases, began = options.cases.split(","), time.monotonic()
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(partial(torture, options=options), cases))
    rows = [row for row in read_rows(options.out) if row["case"] in cases]
    total: Counter[str] = Counter()
    for case in cases:
        own = [row for row in rows if row["case"] == case]
        count = Counter({name: sum(bool(row[name]) for row in own) for name in ("lost", "different", "left")})
        count["kills"] = sum(row["killed"] for row in own)
        total += count
        print(f"{case:<20}{_words(count)}")
    for row in (row for row in rows if row["lost"] or row["different"] or row["left"]):
        print(json.dumps(row))
    print(f"{'all':<20}{_words(total)}; {(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(any(total[name] for name in ("lost", "different", "left")))


def _words(count: Counter[str]) -> str:
    return ", ".join(f"{name} {count[name]}" for name in ("kills", "lost", "different", "left"))


if __name__ == "__main__":
    main()
