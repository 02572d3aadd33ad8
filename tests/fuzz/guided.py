"""Break files where coverage grows: the readers that are Python of our own, with atheris.

    python tests/fuzz/guided.py pt -max_total_time=300

What follows the name of the reader is for libFuzzer. Without atheris there is one sentence and status 0: it is not a
requirement of the package.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, DatasetError, UserError, import_extra

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-guided-"))


def read_pt(content: bytes) -> None:
    """A file of torch.save with this program; its checksums are right, since guessing them would take for ever."""
    from rl_training.core.torch_files import read_tree

    with zipfile.ZipFile(PLACE / "log.pt", "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", bytes(16))
    read_tree(PLACE / "log.pt", DatasetError, what="file")


def read_npz(content: bytes) -> None:
    """An archive of arrays."""
    from rl_training.data.files.npz import read_npz as read

    (PLACE / "log.npz").write_bytes(content)
    read(PLACE / "log.npz", every=True)


def read_yaml(content: bytes) -> None:
    """A configuration."""
    from rl_training.config import parse_yaml

    parse_yaml(content.decode("utf-8", "replace"), where="text")


MODULES = (
    "zipfile",
    "pickletools",
    "rl_training.core.torch_files",
    "rl_training.data.files.formats",
    "rl_training.config",
)
READERS: dict[str, Callable[[bytes], None]] = {"pt": read_pt, "npz": read_npz, "yaml": read_yaml}


def make_corpus(folder: Path, kind: str) -> None:
    """Small valid files to begin with."""
    import numpy as np
    import torch

    if kind == "pt":
        torch.save({"a": torch.arange(4.0), "b": [1, "x", None, (1.5, True)]}, PLACE / "seed.pt")
        with zipfile.ZipFile(PLACE / "seed.pt") as archive:
            (folder / "seed").write_bytes(archive.read("seed/data.pkl"))
    elif kind == "npz":
        with (folder / "seed").open("wb") as file:
            np.savez_compressed(file, rewards=np.zeros(4, dtype=np.float32), obs=np.ones((4, 2)))
    else:
        (folder / "seed").write_text("a: &x [1, 2.5e3, true, null]\nb: {c: *x, d: 'text'}\n")


def main() -> None:
    """Fuzz one reader until it fails or the time is over."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "pt"
    if kind not in READERS:
        raise SystemExit(f"expected one of {', '.join(READERS)}, got {kind!r}")
    try:
        atheris: Any = import_extra("atheris", "atheris", "coverage-guided fuzzing")
    except UserError:
        print("skipped: atheris is not installed; pip install atheris (Linux, CPython 3.11 to 3.13)")
        return
    # Only modules that were not imported before are instrumented.
    with atheris.instrument_imports(include=["rl_training", "zipfile", "yaml", "pickletools"]):
        for module in MODULES:
            import_module(module)

    def attempt(content: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                READERS[kind](content)
            except (DatasetError, ConfigError):
                return

    corpus = PLACE / "corpus"
    corpus.mkdir()
    make_corpus(corpus, kind)
    atheris.Setup([sys.argv[0], str(corpus), *sys.argv[2:]], attempt)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
