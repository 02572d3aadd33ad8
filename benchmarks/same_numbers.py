"""Whether an earlier revision and the present code compute the same, bit for bit, on this machine.

    python benchmarks/same_numbers.py --against 64d0dc4 [--workers 2] [--only 'train td3*' 'kept*'] [--sentences]

The earlier revision is checked out into a temporary worktree. Both trees do the same jobs, in processes of their own
with one thread each, without compilation. They train every packaged config for some updates; judge, choose, check and
convert logs; sweep, tune and run the pipeline; and use files that the earlier revision wrote. What is found by
both is compared: checkpoints as a whole, rows of metrics, predictions, exported arrays, and the JSON of commands.
Numbers must be equal to the last bit. Sentences may be worded anew, but must hold the same numbers; with `--sentences`
they must be equal too. Paths of runs, clock times and versions are left out. A job is skipped, with the reason, where
its data or environment is missing; real datasets are looked for in RL_TRAINING_DATA.

The table has a row per job as soon as it is done. The status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from same_numbers_jobs import JOBS, configs

ROOT = Path(__file__).parents[1]
MOST_SECONDS = 1200
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
Values = dict[str, Any]


@dataclass
class Row:
    """What became of a job."""

    name: str
    values: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    skipped: str | None = None

    def __str__(self) -> str:
        times = " + ".join(f"{seconds:.0f}" for seconds in self.seconds.values())
        return f"| {self.name:<28} | {times:>12} | {self.values:>6} | {self.result()} |"

    def result(self) -> str:
        """Equal, or what differs first."""
        if self.skipped is not None:
            return f"skipped: {self.skipped}"
        if self.differences:
            return f"DIFFERS in {len(self.differences)}: {self.differences[0]}"
        worded = f", but {len(self.sentences)} sentences: {self.sentences[0]}" if self.sentences else ""
        return f"equal{worded}"


class Failed(Exception):  # noqa: N818 - of a job, not of this program
    """A tree could not do its part."""


class Skipped(Exception):  # noqa: N818 - not an error
    """A tree says what it lacks."""


def run_part(job: str, part: str, tree: Path, folder: Path) -> None:
    """Let a tree do its part of a job in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder.parent / f"{folder.name}.json"
    alone = {
        "PYTHONPATH": str(tree / "src"),
        "XDG_STATE_HOME": str(folder.parent / f"{folder.name}_state"),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("same_numbers_jobs.py")
    done = subprocess.run(
        [sys.executable, script, job, part, tree, out],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    skipped = out.with_suffix(".skipped")
    if skipped.exists():
        raise Skipped(skipped.read_text(encoding="utf-8"))
    if done.returncode:
        lines = (done.stderr.strip() or f"status {done.returncode}").splitlines()
        raise Failed(" / ".join([*(line for line in lines if line.startswith("error:")), lines[-1]]))


def read_found(path: Path) -> Values:
    """What a tree has stored, by name."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    with np.load(path.with_suffix(".npz")) as arrays:
        return {name: arrays[f"arr_{value[0]}"] if isinstance(value, list) else value for name, value in listed}


def compare(name: str, before: Any, after: Any) -> str | None:
    """How two values differ, if they do."""
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            return f"{name} was {before.dtype} {before.shape}, is {after.dtype} {after.shape}"
        if before.tobytes() == after.tobytes():
            return None
        if before.dtype.kind not in "biuf":
            return f"{name} has other values"
        both = np.nan_to_num(before.astype(float)), np.nan_to_num(after.astype(float))
        return f"{name}, {(before != after).sum()} of {before.size} by at most {np.abs(both[0] - both[1]).max():.3g}"
    # The text of a number has all of its digits; True is not 1, and NaN is itself.
    return None if repr(before) == repr(after) else f"{name} was {before!r:.80}, is {after!r:.80}"


def judge(row: Row, before: Values, after: Values, *, strict: bool) -> None:
    """Compare all values of a job."""
    row.values = len(before)
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before:
            row.differences.append(f"{name} is {'missing' if name in before else 'new'}")
        elif (found := compare(name, before[name], after[name])) is not None:
            worded = not strict and is_same_sentence(before[name], after[name])
            (row.sentences if worded else row.differences).append(found)


def is_same_sentence(before: Any, after: Any) -> bool:
    """Whether both are sentences, and hold the same numbers."""
    if not (isinstance(before, str) and isinstance(after, str) and " " in before and " " in after):
        return False
    return sorted(NUMBER.findall(before)) == sorted(NUMBER.findall(after))


def run_job(job: str, trees: Mapping[str, Path], place: Path, *, strict: bool) -> Row:
    """Let both trees do a job, and compare."""
    row, folder, found = Row(job), place / re.sub(r"\W", "_", job), {}
    tree_name = "before"
    try:
        if job in JOBS and JOBS[job].prepare is not None:
            run_part(job, "prepare", trees["before"], folder / "prepared")
        for tree_name, tree in trees.items():
            if (folder / "prepared").exists():
                shutil.copytree(folder / "prepared", folder / tree_name)
            start = time.monotonic()
            run_part(job, "run", tree, folder / tree_name)
            row.seconds[tree_name] = time.monotonic() - start
            found[tree_name] = read_found(folder / f"{tree_name}.json")
        judge(row, found["before"], found["now"], strict=strict)
    except Skipped as reason:
        row.skipped = str(reason)
    except (Failed, subprocess.TimeoutExpired) as error:
        row.differences.append(f"the code {tree_name} fails: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    return row


@contextmanager
def worktree(revision: str, place: Path) -> Iterator[Path]:
    """A checked-out revision, for a while."""
    path = place / "before"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", path, revision], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", path], check=False)


def main() -> int:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="REVISION", help="the earlier revision")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="the jobs to do, such as 'kept*'")
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time")
    parser.add_argument("--sentences", action="store_true", help="sentences must be equal too")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name, worktree(args.against, Path(name)) as earlier:
        place, trees = Path(name), {"before": earlier, "now": ROOT}
        # The long ones first.
        names = [*JOBS, *(f"train {config}" for config in configs(earlier))]
        chosen = [each for each in names if any(fnmatch(each, pattern) for pattern in args.only)]
        print(f"| {'Job':<28} | Seconds      | Values | Result |\n| {'-' * 28} | {'-' * 12} | ------ | ------ |")
        rows: list[Row] = []
        pool = ThreadPoolExecutor(args.workers)
        try:
            pending = [pool.submit(run_job, each, trees, place / "jobs", strict=args.sentences) for each in chosen]
            for future in as_completed(pending):
                rows.append(future.result())
                print(rows[-1], flush=True)
        finally:
            # The jobs under way end before their folders and the worktree go.
            pool.shutdown(cancel_futures=True)
    differing = [row for row in rows if row.differences]
    skipped = sum(row.skipped is not None for row in rows)
    equal = len(rows) - len(differing) - skipped
    print(f"\n{equal} jobs equal, {skipped} skipped, {len(differing)} differ; {time.monotonic() - start:.0f} seconds")
    for row in differing:
        print(f"\n{row.name}:", *row.differences[:10], sep="\n  ")
    return 1 if differing or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
