"""Learning from the rollout that was collected last, in several passes over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rl_training.core.batches import Batch
from rl_training.core.errors import DatasetError
from rl_training.data.replay.buffer import Annotate, ReplayBuffer
from rl_training.data.replay.samplers import Source


class RolloutSource(Source):
    """Minibatches of the rows that were added since the last round: `epochs` passes, each in an order of its own.

    A round begins with the first batch that is drawn after rows were added. Then all its rows are annotated. Every row
    is in one minibatch of a pass; the last one of a pass may be smaller. After the last pass the rows are forgotten.
    """

    saved = ("buffer", "generator", "stop", "epoch", "used", "order")

    def __init__(
        self, buffer: ReplayBuffer, names: Sequence[str], compute: Annotate, *, epochs: int, seed: int = 0
    ) -> None:
        self.inner = self.buffer = buffer
        self.names, self.compute, self.epochs = tuple(names), compute, epochs
        self.generator = torch.Generator().manual_seed(seed)
        self.stop = 0
        """The number of the row after the last of this round."""
        self.epoch, self.used = epochs, 0
        """The pass that is going on, counted from 0, and rows of it that were drawn."""
        self.order = torch.arange(0)
        self.shuffled: Batch | None = None
        """The rows in the order of the pass that is going on, once they have been asked for."""

    def sample(self, batch_size: int) -> Batch:
        """The next minibatch."""
        if batch_size < 1:
            raise DatasetError(f"batch_size must be >= 1, got {batch_size}")
        buffer = self.buffer
        if buffer.added > self.stop:
            self._begin_round()
        if self.epoch >= self.epochs:
            raise DatasetError("the rollout has been learned from already: collect another one before the next update")
        if self.shuffled is None:
            # Once for a whole pass: a minibatch is then a view.
            self.shuffled = buffer.batch(self.names, buffer.rows.first + self.order.to(buffer.device))
        batch = {name: value[self.used : self.used + batch_size] for name, value in self.shuffled.items()}
        self.used = min(self.used + batch_size, len(self.order))
        if self.used == len(self.order):
            self.epoch += 1
            self._shuffle()
        if self.epoch == self.epochs:
            buffer.forget(self.stop)
        return batch

    def _begin_round(self) -> None:
        self.buffer.forget(self.stop)
        self.buffer.annotate(self.compute)
        self.stop, self.epoch = self.buffer.added, 0
        self._shuffle()

    def _shuffle(self) -> None:
        """Begin a pass, unless the last one is over."""
        count = len(self.buffer) if self.epoch < self.epochs else 0
        self.order, self.used, self.shuffled = torch.randperm(count, generator=self.generator), 0, None

    def state_dict(self) -> dict[str, Any]:
        """Where the round is, and its rows: they are few, and no later checkpoint has them."""
        return {**super().state_dict(), "rows": self.buffer.rows_from(self.buffer.rows.first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of the round in which `state_dict` found it."""
        super().load_state_dict(state)
        self.buffer.restore(state["rows"])
        self.shuffled = None
