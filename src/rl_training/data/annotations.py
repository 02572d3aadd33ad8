"""Fields that an algorithm computes for all rows with its own networks, anew as these learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.data.sampling import Source
from rl_training.types import Batch

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset
    from rl_training.data.replay_buffer import ReplayBuffer

Annotate = Callable[[Batch, Tensor], Batch]
"""From rows in episode order, and the places of their last rows, to fields that no log contains."""


@torch.no_grad()
def annotate_dataset(dataset: TransitionDataset, compute: Annotate) -> Batch:
    """The annotations of a dataset's rows."""
    return compute(dict(dataset.fields), dataset.episode_bounds()[:, 1] - 1)


def with_annotations(
    dataset: TransitionDataset, compute: Annotate, *, standardizes: Sequence[str] = ()
) -> TransitionDataset:
    """The dataset with annotations, some of them brought to mean 0 and standard deviation 1 over it."""
    found = annotate_dataset(dataset, compute)
    for name in standardizes:
        mean, std = _scale([found[name]])
        found[name] = (found[name] - mean) / std
    return dataset.with_fields(**found)


def _scale(values: Sequence[Tensor]) -> Tensor:
    """Mean and standard deviation of annotations."""
    joined = torch.cat(list(values))
    return torch.stack([joined.mean(), joined.std(correction=0) + 1e-5])


class AnnotatedLog:
    """A dataset whose annotations are replaced from time to time; `drawn` draws the fields that are asked for."""

    def __init__(self, dataset: TransitionDataset, names: Sequence[str], annotates: Sequence[str]) -> None:
        self.dataset = dataset
        blank = {name: torch.zeros_like(dataset.rewards) for name in annotates}
        self.drawn = dataset.with_fields(**blank).requiring(*names)

    def __len__(self) -> int:
        return len(self.dataset)

    def annotate(self, compute: Annotate) -> Batch:
        """Compute the annotations of all rows, and draw them from here on."""
        found = annotate_dataset(self.dataset, compute)
        self.drawn.sampler.replace_fields({name: found.get(name, value) for name, value in self.drawn.fields.items()})
        return found


class AnnotatedSource:
    """Batches whose annotations are computed anew for all rows after every `interval` of them.

    `logged` and `buffer` are what `source` draws from. Fields in `standardizes` are brought to mean 0 and standard
    deviation 1 over all rows. What `compute` says about logged rows must stay the same in between: then a source that
    is loaded at any time has what it had when it was saved. `drawn` is how many batches were learned from already.
    """

    def __init__(
        self,
        source: Source,
        compute: Annotate,
        *,
        interval: int,
        logged: AnnotatedLog | None = None,
        buffer: ReplayBuffer | None = None,
        standardizes: Sequence[str] = (),
        drawn: int = 0,
    ) -> None:
        self.source, self.compute, self.interval = source, compute, interval
        self.logged, self.buffer, self.standardizes, self.drawn = logged, buffer, tuple(standardizes), drawn
        self.computed: int | None = None
        """How many batches had been drawn when annotations were last computed."""
        self.scales: dict[str, Tensor] = {}
        """Mean and standard deviation of the fields that are standardised."""
        self._compute()

    def _compute(self) -> None:
        """Annotate all rows by the networks as they are now."""
        parts = [part for part in (self.logged, self.buffer) if part is not None and len(part)]
        if parts:
            found = [part.annotate(self.compute) for part in parts]
            self.scales = {name: _scale([each[name] for each in found]) for name in self.standardizes}
            self.computed = self.drawn

    def _is_due(self) -> bool:
        if self.drawn % self.interval == 0 and self.drawn != self.computed:
            return True
        # A ring may have been overwritten whole since.
        return self.logged is None and self.buffer is not None and not self.buffer.num_drawable

    def sample(self, batch_size: int) -> Batch:
        """The next batch of the source, with annotations."""
        if self._is_due():
            self._compute()
        self.drawn += 1
        batch = self.source.sample(batch_size)
        for name in self.standardizes:
            mean, std = self.scales[name].to(batch[name].device)
            batch = {**batch, name: (batch[name] - mean) / std}
        return batch

    def metrics(self) -> dict[str, float]:
        """What there is to say about the batches drawn since the last call."""
        return self.source.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is; the annotations of logged rows follow from the networks."""
        return {
            "drawn": self.drawn,
            "computed": self.computed,
            "scales": dict(self.scales),
            "source": self.source.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the stream, with networks that are what they were then."""
        self.drawn, self.computed, self.scales = state["drawn"], state["computed"], dict(state["scales"])
        self.source.load_state_dict(state["source"])
        if self.logged is not None:
            self.logged.annotate(self.compute)
