"""Let each operation on the files of a short run fail, as a full, broken or read-only disk does, and see how it ends.

    python tests/endurance/faults.py --cases bc,sac --every 1

An operation fails once, or it and all that follow. The command must then end as if nothing had been, or end
with status 2 and one sentence. In that case the same command, without the fault, must end with the same state, rows of
metrics and files. Needs a C compiler: the operations are those of the C library, which LD_PRELOAD replaces.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, NAME
from kills import moments_of
from torture import OUTPUT, compare, grow_old

from rl_training.cli import main as rl_training

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
SOURCE = Path(__file__).with_name("faults.c")
NO_ROOM_NEEDED = "u"
"""To delete a file never fails because a disk is full."""


class Fault(NamedTuple):
    """What fails: an operation, by number, with an error, and perhaps all after it."""

    case: str
    operation: int
    kind: str
    error: int
    lasting: bool


def command(case: str, folder: Path, fault: Fault | None = None) -> tuple[int, str, str]:
    """The run of a case as its user starts it or continues it; status, output, and kinds of operations."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        status: Any = 1
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        with Path(OUTPUT).open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
            os.dup2(file.fileno(), sys.stdout.fileno())
        torch.set_num_threads(1)
        sys.argv = ["rl-training", "train", *CASES[case].arguments(), "--resume", "auto", "--quiet"]
        library = ctypes.CDLL(None)
        library.faults_seen.restype = ctypes.c_char_p
        where = str(folder.resolve() / "runs").encode()
        at, error, lasting = (-1, 0, False) if fault is None else (fault.operation, fault.error, fault.lasting)
        library.faults_arm(where, ctypes.c_long(at), error, int(lasting))
        try:
            rl_training()
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(writer, library.faults_seen())
            os._exit(status if isinstance(status, int) else 1)
    os.close(writer)
    with os.fdopen(reader, encoding="ascii") as pipe:
        seen = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status, (folder / OUTPUT).read_text(encoding="utf-8"), seen


def judge(fault: Fault, folder: Path, straight: Path) -> dict[str, Any]:
    """Let an operation fail, and say how the run ended and what became of it."""
    status, text, _ = command(fault.case, folder, fault)
    row: dict[str, Any] = {**fault._asdict(), "status": status, "text": text, "wrong": []}
    if status not in (0, 2) or "Traceback" in text:
        row["wrong"].append(f"status {status}")
    if status == 2 and not text.strip():
        row["wrong"].append("no sentence")
    if status != 0:
        grow_old(folder / "runs")
        again, later, _ = command(fault.case, folder)
        if again != 0:
            row["wrong"].append(f"afterwards status {again}: {later}")
            return row
    found = compare(folder / "runs" / NAME, straight / "runs" / NAME)
    row["wrong"] += [f"{name} {value}" for name, value in found.items() if value]
    left = {path.name for path in (folder / "runs").iterdir()} - {NAME}
    row["wrong"] += [f"left {name}" for name in sorted(left)]
    return row


def planned(case: str, kinds: str, every: int) -> Iterator[Fault]:
    """All faults of a case, or every so many of them; of the writes in a row only the ends and one in between."""
    names = ["write" if kind == "w" else kind for kind in kinds]
    moments = sorted(
        {kill.operation for kill in moments_of(case, names, every_write=False) if kill.operation is not None}
    )
    faults = [
        Fault(case, number, kinds[number], error, lasting)
        for number in moments
        for error in ERRORS
        for lasting in (False, True)
        if not (error == errno.ENOSPC and kinds[number] == NO_ROOM_NEEDED)
    ]
    yield from faults[::every]


def preload() -> None:
    """Start this program again with the library that makes operations fail, unless that has been done."""
    if "faults" in os.environ.get("LD_PRELOAD", ""):
        return
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("skipped: there is no C compiler (cc)")
    library = Path(tempfile.mkdtemp(), "faults.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    settings = {**os.environ, "LD_PRELOAD": str(library)}
    os.execve(sys.executable, [sys.executable, *sys.argv], settings)  # noqa: S606


def main() -> None:
    """Let everything fail, print what came of it, and end with status 1 if anything ended wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bc,sac,td3_bc_fine_tuning,ppo", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--every", type=int, default=1, help="only every so many of the faults")
    options = parser.parse_args()
    preload()
    sys.modules["torch.utils.tensorboard"] = None  # type: ignore[assignment]
    total: Counter[str] = Counter()
    for case in options.cases.split(","):
        with tempfile.TemporaryDirectory() as place:
            straight, folder = Path(place, "straight"), Path(place, "failed")
            status, text, kinds = command(case, straight)
            if status != 0:
                sys.exit(f"{case}: the run in which nothing fails ended with status {status}: {text}")
            count: Counter[str] = Counter()
            for fault in planned(case, kinds, options.every):
                row = judge(fault, folder, straight)
                shutil.rmtree(folder, ignore_errors=True)
                count[("wrong" if row["wrong"] else "went on" if row["status"] == 0 else "one sentence")] += 1
                if row["wrong"]:
                    print(json.dumps({**row, "error": errno.errorcode[fault.error]}), flush=True)
            total += count
            print(f"{case:<20}{len(kinds)} operations, {count.total()} faults: {dict(count)}", flush=True)
    print(f"{'all':<20}{total.total()} faults: {dict(total)}")
    sys.exit(total["wrong"] > 0)


if __name__ == "__main__":
    main()
