"""Arrays that arrive in pieces, kept in memory or in files until the last piece is there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MemoryStage:
    """Named arrays that grow by pieces, in memory."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[NDArray[Any]]] = {}

    def add(self, name: str, piece: NDArray[Any]) -> None:
        """Put rows behind those of an array, which begins with its first piece."""
        self._pieces.setdefault(name, []).append(piece)

    def get(self, name: str) -> NDArray[Any]:
        """All rows so far; changes to the result are changes to the array."""
        pieces = self._pieces[name]
        if len(pieces) > 1:
            self._pieces[name] = pieces = [np.concatenate(pieces)]
        return pieces[0]

    def rewrite(self, name: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Put other rows, which may be computed from the old ones, in place of an array."""
        self._pieces[name] = list(pieces)


class DiskStage:
    """Named arrays that grow by pieces, in files of a folder; what is read of them is not kept in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def add(self, name: str, piece: NDArray[Any]) -> None:
        """Put rows behind those of an array, which begins with its first piece."""
        self._forms.setdefault(name, (piece.dtype, piece.shape[1:]))
        with self._path(name).open("ab") as file:
            file.write(np.ascontiguousarray(piece).data)

    def get(self, name: str) -> NDArray[Any]:
        """All rows so far; changes to the result are changes to the array."""
        dtype, shape = self._forms[name]
        array = np.memmap(self._path(name), dtype=dtype, mode="r+")
        return array.reshape(-1, *shape)

    def rewrite(self, name: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Put other rows, which may be computed from the old ones, in place of an array."""
        draft = f"{name}.draft"
        for piece in pieces:
            self.add(draft, piece)
        self._path(draft).replace(self._path(name))
        self._forms[name] = self._forms.pop(draft)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '.')}.bin"


Stage = MemoryStage | DiskStage
