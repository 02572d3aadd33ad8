"""A replay buffer on disk: each checkpoint adds the rows since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rl_training.core.batches import Batch
from rl_training.core.errors import CheckpointError
from rl_training.core.files import writing
from rl_training.core.spaces import SpaceSpec
from rl_training.data import ReplayBuffer, without_masks_first, write_npz
from rl_training.storage.checkpoint import check_rows, load_tree, refuse_foreign, refusing_broken_state, save_tree
from rl_training.storage.run_directory import RunDirectory


class ReplayStore:
    """Files of rows that are written once and never changed, so that a checkpoint writes new rows only.

    A checkpoint names the files that its rows are in. Files are deleted when no checkpoint that is kept names them.
    """

    def __init__(self, run: RunDirectory, buffer: ReplayBuffer) -> None:
        self.run, self.folder, self.buffer = run, run.path / "replay", buffer
        self.spans: list[tuple[int, int]] = []
        """First row and row after the last of each file."""
        self.kept: dict[str, list[tuple[int, int]]] = {}
        """The files that each checkpoint refers to, by its name."""

    def save(self) -> None:
        """Write the rows since the last call, and drop files whose rows are all overwritten."""
        buffer, oldest = self.buffer, self.buffer.added - len(self.buffer)
        start = max(self.spans[-1][1] if self.spans else 0, oldest)
        if buffer.added > start:
            with writing(self.folder):
                self.folder.mkdir(exist_ok=True)
            tree = {"run": self.run.identity, "rows": buffer.rows_from(start)}
            save_tree(rows_path(self.folder, start, buffer.added), tree)
            self.spans.append((start, buffer.added))
        self.spans = [span for span in self.spans if span[1] > oldest]

    def load(self, spans: Sequence[Sequence[int]]) -> None:
        """Read the rows that a checkpoint names into the buffer, whose counters must have been loaded before."""
        self.spans = [(start, stop) for start, stop in spans]
        rows = read_rows(self.folder, self.spans, run_id=self.run.run_id)
        if rows is None:
            return
        count = len(self.buffer)
        if len(rows["streams"]) < count or self.spans[-1][1] != self.buffer.added:
            raise CheckpointError(f"{self.folder} does not hold the rows of the checkpoint")
        self.buffer.restore({name: value[-count:] for name, value in rows.items()})

    def export(self, path: Path, spaces: SpaceSpec) -> None:
        """Write the buffer, unless it is empty, as a dataset: raw rewards, actions in native units."""
        if len(self.buffer):
            dataset = self.buffer.to_dataset()
            if spaces.is_masked:
                dataset = without_masks_first(dataset, spaces.action_dim)
            write_npz(dataset.with_fields(actions=spaces.action.decode(dataset.actions)), path)

    def keep(self, name: str, spans: Sequence[Sequence[int]] | None = None) -> None:
        """Keep the files that a checkpoint refers to, those of the present state if none are given, while it exists."""
        self.kept[name] = self.spans.copy() if spans is None else [(start, stop) for start, stop in spans]

    def prune(self) -> None:
        """Delete files that no checkpoint needs, and those that a crash left unfinished."""
        self.kept = {name: spans for name, spans in self.kept.items() if (self.run.checkpoints / name).exists()}
        needed = {rows_path(self.folder, *span) for spans in (self.spans, *self.kept.values()) for span in spans}
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path not in needed:
                path.unlink()


def rows_path(folder: Path, start: int, stop: int) -> Path:
    """The file of the rows from one number to another."""
    return folder / f"rows_{start:010d}_{stop:010d}.pt"


def read_rows(folder: Path, spans: Sequence[Sequence[int]], *, run_id: str | None = None) -> Batch | None:
    """The rows that a checkpoint names, in the order in which they were added; None if it names none.

    They must be of the run with this identity, if it is given.
    """
    if not spans:
        return None
    parts = []
    for start, stop in spans:
        path = rows_path(folder, start, stop)
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist; rows are kept while latest.pt needs them: resume that one")
        tree = load_tree(path)
        refuse_foreign(path, tree, run_id)
        parts.append(check_rows(path, tree, stop - start))
    with refusing_broken_state(f"the replay buffer in {folder}"):
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
