"""What batches are drawn from: prior data, a run's own experience, or both, as an algorithm reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from rl_training.data.annotations import AnnotatedLog, AnnotatedSource
from rl_training.data.hindsight import Hindsight
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollouts import RolloutSource
from rl_training.data.sampling import SizedSource, Source, UniformSource, WindowSource
from rl_training.reading import Reading, Rollout, Transitions, Windows
from rl_training.types import Batch, DatasetError

Ratio: TypeAlias = "float | Literal['proportional']"
"""The share of prior data in a batch, or `proportional` to let every row of either kind count alike."""


class Reader(Protocol):
    """What a source asks of an algorithm."""

    name: ClassVar[str]
    reads: Reading
    annotates: tuple[str, ...]
    standardizes: tuple[str, ...]
    annotate_every: int | str
    updates: int

    def number(self, value: Any) -> Any:
        """A number given as itself or as the name of a hyper-parameter."""

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        """The fields in `annotates`."""


def make_source(
    prior: TransitionDataset | SizedSource | None, online: SizedSource | None, ratio: Ratio
) -> SizedSource | MixedSource:
    """What draws from prior data, from a run's own experience, or from both."""
    if prior is not None:
        logged = prior.sampler if isinstance(prior, TransitionDataset) else prior
        return logged if online is None else MixedSource(prior, online, ratio)
    if online is None:
        raise ValueError("batches need something to be drawn from: prior data, a buffer, or both")
    return online


def source_for(
    reader: Reader,
    prior: TransitionDataset | None,
    online: ReplayBuffer | None = None,
    ratio: Ratio = "proportional",
    *,
    relabelled: SizedSource | None = None,
    seed: int = 0,
) -> tuple[Source, TransitionDataset | None]:
    """The source that gives an algorithm what it reads, and the rows of prior data that it draws from.

    `relabelled` takes the place of uniform draws from prior data; `seed` decides about the order of a rollout's rows.
    """
    reads = reader.reads
    match reads:
        case Rollout():
            if online is None or prior is not None:
                raise DatasetError("an algorithm that learns from rollouts acts, and takes no prior data")
            names, epochs = reads.fields, reader.number(reads.epochs)
            return RolloutSource(online, names, reader.annotate, epochs=epochs, seed=seed), None
        case Windows():
            if reader.annotates:
                raise DatasetError(f"{reader.name} annotates fields, which windows do not have")
            length = reader.number(reads.length)
            logged = None if prior is None else UniformSource(prior.rows, (), seed=prior.seed, is_raw=False)
            sources = [None if each is None else WindowSource(each, reads.fields, length) for each in (logged, online)]
            return make_source(sources[0], sources[1], ratio), prior
        case Transitions() if reader.annotates:
            return _annotated(reader, prior, online, ratio)
        case Transitions():
            if relabelled is not None:
                return make_source(relabelled, online, ratio), prior
            drawn = None if prior is None else _requiring(prior, reads.fields)
            return make_source(drawn, online, ratio), drawn


def _requiring(prior: TransitionDataset, names: tuple[str, ...]) -> TransitionDataset:
    """The rows and fields of prior data that batches are made of."""
    return prior.requiring(*names, *(["discounts"] if "discounts" in prior.fields else []))


def _annotated(
    reader: Reader, prior: TransitionDataset | None, online: ReplayBuffer | None, ratio: Ratio
) -> tuple[Source, TransitionDataset | None]:
    if prior is not None and not prior.has_episodes:
        raise DatasetError(f"{reader.name} needs whole episodes in order; the rows are mixed or seem shuffled")
    logged = None if prior is None else AnnotatedLog(prior, reader.reads.fields, reader.annotates)
    source = AnnotatedSource(
        make_source(None if logged is None else logged.drawn, online, ratio),
        reader.annotate,
        interval=reader.number(reader.annotate_every),
        logged=logged,
        buffer=online,
        standardizes=reader.standardizes,
        drawn=reader.updates,
    )
    return source, prior


def hindsight_source(prior: TransitionDataset, reads: Reading, hindsight: Hindsight, **options: Any) -> UniformSource:
    """Batches of logged data whose goals are exchanged; `options` are those of `UniformSource`.

    Its rewards are transformed already: the option `transform` is what was done to them.
    """
    if "achieved_goals" not in prior.fields:
        raise DatasetError("hindsight needs achieved_goals in the data: what was achieved after each row")
    if prior.fields["achieved_goals"].shape[1] != hindsight.goal_dim:
        found = prior.fields["achieved_goals"].shape[1]
        raise DatasetError(f"achieved_goals has {found} columns, a goal of the environment {hindsight.goal_dim}")
    if reads.needs_episodes:
        raise DatasetError(f"hindsight on logged data cannot give all of {', '.join(reads.fields)}")
    return UniformSource(prior.rows, reads.fields, seed=prior.seed, is_raw=False, hindsight=hindsight, **options)


class MixedSource:
    """Batches of which a share comes from prior data and the rest from a run's own experience.

    While there is no experience yet, all comes from prior data.
    """

    def __init__(self, prior: TransitionDataset | SizedSource, online: SizedSource, ratio: Ratio) -> None:
        self.prior, self.online, self.ratio = prior, online, ratio
        self.logged: SizedSource = prior.sampler if isinstance(prior, TransitionDataset) else prior
        self._counts = torch.zeros(3, dtype=torch.int64)
        """Batches, and rows of either kind in them, since they were last asked for."""

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows of both kinds, those of prior data first."""
        offline = self._offline_rows(batch_size)
        self._counts += torch.tensor([1, offline, batch_size - offline])
        if offline == batch_size:
            return self.logged.sample(batch_size)
        online = self.online.sample(batch_size - offline)
        if offline == 0:
            return online
        return {name: torch.cat([value, online[name]]) for name, value in self.logged.sample(offline).items()}

    def _offline_rows(self, batch_size: int) -> int:
        prior, online = self.logged.num_drawable, self.online.num_drawable
        if not online:
            return batch_size
        if self.ratio == "proportional":
            return round(batch_size * prior / (prior + online))
        return round(batch_size * self.ratio)

    def metrics(self) -> dict[str, float]:
        """Rows of either kind in a batch, on average since the last call."""
        batches, offline, online = self._counts.tolist()
        self._counts.zero_()
        rows = {"offline_rows": offline / max(batches, 1), "online_rows": online / max(batches, 1)}
        return self.online.metrics() | rows

    def state_dict(self) -> dict[str, Any]:
        """Where the streams are, without rows."""
        return {
            "prior": self.logged.state_dict(),
            "online": self.online.state_dict(),
            "counts": self._counts.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the streams; the buffer's rows are its own business."""
        self.logged.load_state_dict(state["prior"])
        self.online.load_state_dict(state["online"])
        self._counts.copy_(state["counts"])
