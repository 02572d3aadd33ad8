"""Read broken files of every format, for some seconds, and count what is not answered with an error of the package.

    python tests/fuzz/fuzzing.py --seconds 900 --seed 0

Cases run in a copy of the process that may take little memory and time. A case is a seed: the same seed gives the same
file. `--case "npz:17"` runs one of them and shows its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import mutations
from formats import FORMATS, Format, make_files

from rl_training.core.errors import UserError
from rl_training.storage import checkpoint as checkpointing

MORE_MEMORY = 1 << 30
"""Bytes of address space that reading may take beside what the process has."""
PATIENCE = 20
"""Seconds after which reading hangs."""
BATCH = 50
"""Cases that one process runs."""


class HangError(Exception):
    """A case that takes too long."""


def sign(tree: dict[str, Any]) -> None:
    """Give a checkpoint the checksum of what it has become."""
    if "checksum" in tree:
        del tree["checksum"]
        # A tree that cannot be hashed has no right checksum.
        with contextlib.suppress(Exception):
            tree["checksum"] = checkpointing._digest(tree)


def mutate(content: bytes, name: str, rng: random.Random, folder: Path) -> bytes:
    """A broken copy, broken in a way that suits the file, or in any."""
    kinds: list[mutations.Mutation] = [*mutations.BYTES]
    if name.endswith((".npz", ".pt")):
        kinds += [mutations.in_member] * 5
    if name.endswith(".pt"):
        kinds += [lambda data, dice: mutations.in_pt(data, dice, folder=folder, sign=sign)] * 10
    if name.endswith((".json", ".jsonl")):
        kinds += [mutations.in_json] * 5
    changed = rng.choice(kinds)(content, rng)
    return rng.choice(mutations.BYTES)(changed, rng) if changed and rng.random() < 0.1 else changed


def run_case(kind: str, number: int, originals: Path) -> str | None:
    """Break a file and read it; what went wrong, or None."""
    chosen: Format = FORMATS[kind]
    rng = random.Random(f"{kind}:{number}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        path = folder / chosen.name
        original = originals / chosen.name
        shutil.copytree(original, path) if original.is_dir() else shutil.copy(original, path)
        if chosen.name == "table":
            shutil.copy(originals / "log.csv", folder)
        files = sorted(item for item in path.glob(chosen.pattern) if item.is_file()) if path.is_dir() else [path]
        file = rng.choice(files)
        if path.is_dir() and rng.random() < 0.05:
            file.unlink()
        else:
            file.write_bytes(mutate(file.read_bytes(), file.name, rng, folder))
        return attempt(chosen, path)


def attempt(chosen: Format, path: Path) -> str | None:
    """Read a file, within the time that it may take."""

    def hang(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen.read(path)
    except UserError:
        return None
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "rl_training" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} at {where}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    finally:
        signal.alarm(0)
    return None


def work(cases: list[tuple[str, int]], originals: Path, connection: Connection) -> None:
    """The body of a process that runs some cases and says how each one went."""
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, number in cases:
        connection.send((kind, number, None, False))
        connection.send((kind, number, run_case(kind, number, originals), True))
    connection.close()


def run_batch(cases: list[tuple[str, int]], originals: Path) -> dict[tuple[str, int], str]:
    """What went wrong in some cases; a process that dies is what went wrong in its last one."""
    wrong: dict[tuple[str, int], str] = {}
    context = multiprocessing.get_context("fork")
    while cases:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(cases, originals, theirs))
        worker.start()
        theirs.close()
        begun: tuple[str, int] | None = None
        done = 0
        while True:
            if not ours.poll(2 * PATIENCE):
                worker.kill()
            try:
                kind, number, found, ended = ours.recv()
            except EOFError:
                break
            begun = None if ended else (kind, number)
            done += ended
            if found is not None:
                wrong[kind, number] = found
        worker.join()
        if begun is not None:
            wrong[begun] = f"the process died ({worker.exitcode})"
            done += 1
        elif not done:
            raise RuntimeError(f"a process ended before its first case ({worker.exitcode})")
        cases = cases[done:]
    return wrong


def fuzz(originals: Path, *, seconds: float, first: int, kinds: list[str]) -> tuple[int, dict[tuple[str, int], str]]:
    """How many cases were run in some seconds, and what went wrong in which."""
    end, count, wrong = time.monotonic() + seconds, 0, dict[tuple[str, int], str]()
    while time.monotonic() < end:
        cases = [(kind, first + count // len(kinds) + k) for k in range(max(BATCH // len(kinds), 1)) for kind in kinds]
        wrong |= run_batch(cases, originals)
        count += len(cases)
    return count, wrong


def main() -> None:
    """Fuzz all formats, or some, and end with status 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS), metavar="FORMAT")
    parser.add_argument("--case", help="one case, such as npz:17")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as place:
        originals = Path(place)
        with contextlib.redirect_stdout(io.StringIO()):
            make_files(originals)
        if options.case:
            kind, _, number = options.case.rpartition(":")
            print(run_case(kind, int(number), originals))
            return
        count, wrong = fuzz(originals, seconds=options.seconds, first=options.seed, kinds=options.formats)
    kinds = Counter(f"{kind}: {text}" for (kind, _), text in wrong.items())
    for text, times in kinds.most_common():
        case = next(f"{kind}:{number}" for (kind, number), found in wrong.items() if text == f"{kind}: {found}")
        print(f"{times:5} {text}  (--case {case!r})")
    print(f"{count} cases, {len(wrong)} went wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
