"""Sources of batches: prior data, a run's own experience, or both, as an algorithm reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from rl_training.core.batches import Batch, Reading, Rollout, Windows
from rl_training.core.errors import DatasetError
from rl_training.core.rewards import Values, lambda_returns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay.buffer import Annotate, ReplayBuffer
from rl_training.data.replay.samplers import Hindsight, Source, UniformSource, WindowSource

Ratio: TypeAlias = "float | Literal['proportional']"
"""The share of prior data in a batch, or `proportional` to draw every row with the same probability."""


class Reader(Protocol):
    """The part of an algorithm that a source uses."""

    name: ClassVar[str]
    reads: Reading
    annotates: tuple[str, ...]
    standardizes: tuple[str, ...]
    annotate_every: int | str
    updates: int

    def resolve_number(self, value: Any) -> Any:
        """A number given as itself or as the name of a hyper-parameter."""

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        """The fields in `annotates`."""


def source_for(
    reader: Reader,
    prior: TransitionDataset | None,
    online: ReplayBuffer | None = None,
    ratio: Ratio = "proportional",
    *,
    relabelled: Source | None = None,
    seed: int = 0,
) -> tuple[Source, TransitionDataset | None]:
    """The source that gives an algorithm what it reads, and the rows of prior data that it draws from.

    `relabelled` takes the place of uniform draws from prior data; `seed` decides the order of a rollout's rows.
    """
    reads = reader.reads
    if isinstance(reads, Rollout):
        if online is None or prior is not None:
            raise DatasetError("an algorithm that learns from rollouts acts, and takes no prior data")
        epochs = reader.resolve_number(reads.epochs)
        return RolloutSource(online, reads.fields, reader.annotate, epochs=epochs, seed=seed), None
    if isinstance(reads, Windows):
        if reader.annotates:
            raise DatasetError(f"{reader.name} annotates fields, which windows do not have")
        logged = None if prior is None else UniformSource(prior.rows, (), seed=prior.seed, is_raw=False)
        length = reader.resolve_number(reads.length)
        windows = [None if each is None else WindowSource(each, reads.fields, length) for each in (logged, online)]
        return make_source(windows[0], windows[1], ratio), prior
    if reader.annotates:
        return _annotated(reader, prior, online, ratio), prior
    if relabelled is not None or prior is None:
        return make_source(relabelled, online, ratio), prior
    drawn = prior.requiring(*reads.fields, *{"discounts"} & prior.fields.keys())
    return make_source(drawn, online, ratio), drawn


def _annotated(
    reader: Reader, prior: TransitionDataset | None, online: ReplayBuffer | None, ratio: Ratio
) -> AnnotatedSource:
    if prior is not None and not prior.has_episodes:
        raise DatasetError(f"{reader.name} needs whole episodes in order; the rows are mixed or seem shuffled")
    logged = None if prior is None else AnnotatedLog(prior, reader.reads.fields, reader.annotates)
    return AnnotatedSource(
        make_source(None if logged is None else logged.drawn, online, ratio),
        reader.annotate,
        interval=reader.resolve_number(reader.annotate_every),
        logged=logged,
        buffer=online,
        standardizes=reader.standardizes,
        drawn=reader.updates,
    )


def make_source(prior: TransitionDataset | Source | None, online: Source | None, ratio: Ratio) -> Source:
    """The source of batches of prior data, of a run's own experience, or of both."""
    if prior is not None and online is not None:
        return MixedSource(prior, online, ratio)
    source = online if prior is None else prior
    if source is None:
        raise ValueError("batches need something to be drawn from: prior data, a buffer, or both")
    return source.sampler if isinstance(source, TransitionDataset) else source


def hindsight_source(prior: TransitionDataset, reads: Reading, hindsight: Hindsight, **options: Any) -> UniformSource:
    """Batches of logged data whose goals are relabelled; `options` are those of `UniformSource`.

    Its rewards are transformed already, by the option `transform`.
    """
    if "achieved_goals" not in prior.fields:
        raise DatasetError("hindsight needs achieved_goals in the data: what was achieved after each row")
    found = prior.fields["achieved_goals"].shape[1]
    if found != hindsight.goal_dim:
        raise DatasetError(f"achieved_goals has {found} columns, a goal of the environment {hindsight.goal_dim}")
    if reads.needs_episodes:
        raise DatasetError(f"hindsight on logged data cannot give all of {', '.join(reads.fields)}")
    return UniformSource(prior.rows, reads.fields, seed=prior.seed, is_raw=False, hindsight=hindsight, **options)


class MixedSource(Source):
    """Batches of which a share comes from prior data and the rest from a run's own experience.

    While there is no experience yet, all rows come from prior data.
    """

    saved = ("prior", "online", "counts")

    def __init__(self, prior: TransitionDataset | Source, online: Source, ratio: Ratio) -> None:
        self.prior: Source = prior.sampler if isinstance(prior, TransitionDataset) else prior
        self.online, self.ratio = online, ratio
        self.counts = torch.zeros(3, dtype=torch.int64)
        """Batches, rows of prior data, and rows of experience, since the last call of `metrics`."""

    def sample(self, batch_size: int) -> Batch:
        """A batch of both kinds of rows, prior data first."""
        offline = self._offline_rows(batch_size)
        self.counts += torch.tensor([1, offline, batch_size - offline])
        if offline == batch_size:
            return self.prior.sample(batch_size)
        online = self.online.sample(batch_size - offline)
        if offline == 0:
            return online
        return {name: torch.cat([value, online[name]]) for name, value in self.prior.sample(offline).items()}

    def _offline_rows(self, batch_size: int) -> int:
        prior, online = self.prior.num_drawable, self.online.num_drawable
        if not online:
            return batch_size
        if self.ratio == "proportional":
            return round(batch_size * prior / (prior + online))
        return round(batch_size * self.ratio)

    def metrics(self) -> dict[str, float]:
        """Mean number of rows of prior data and of experience in a batch, since the last call."""
        batches, offline, online = self.counts.tolist()
        self.counts.zero_()
        rows = {"offline_rows": offline / max(batches, 1), "online_rows": online / max(batches, 1)}
        return self.online.metrics() | rows


@torch.no_grad()
def _annotate(dataset: TransitionDataset, compute: Annotate) -> Batch:
    """The annotations of a dataset's rows."""
    return compute(dict(dataset.fields), dataset.episode_bounds()[:, 1] - 1)


def _scale(values: Sequence[Tensor]) -> Tensor:
    """Mean and standard deviation of annotations."""
    joined = torch.cat(list(values))
    return torch.stack([joined.mean(), joined.std(correction=0) + 1e-5])


def with_annotations(
    dataset: TransitionDataset, compute: Annotate, *, standardizes: Sequence[str] = ()
) -> TransitionDataset:
    """The dataset with annotations, some of them brought to mean 0 and standard deviation 1 over it."""
    found = _annotate(dataset, compute)
    for name in standardizes:
        mean, std = _scale([found[name]])
        found[name] = (found[name] - mean) / std
    return dataset.with_fields(**found)


class AnnotatedLog:
    """A dataset whose annotations are replaced from time to time; `drawn` draws the fields that are asked for."""

    def __init__(self, dataset: TransitionDataset, names: Sequence[str], annotates: Sequence[str]) -> None:
        self.dataset = dataset
        blank = dict.fromkeys(annotates, torch.zeros_like(dataset.rewards))
        self.drawn = dataset.with_fields(**blank).requiring(*names)

    def __len__(self) -> int:
        return len(self.dataset)

    def annotate(self, compute: Annotate) -> Batch:
        """Compute the annotations of all rows, and draw them from here on."""
        found = _annotate(self.dataset, compute)
        self.drawn.sampler.replace_fields({name: found.get(name, value) for name, value in self.drawn.fields.items()})
        return found


class AnnotatedSource(Source):
    """Batches whose annotations are computed anew for all rows after every `interval` of them.

    `source` draws from `logged` and `buffer`. Fields in `standardizes` are brought to mean 0 and standard
    deviation 1 over all rows. Between two computations `compute` must give the same values for logged rows: then a
    source that is loaded at any time has the annotations that it had when it was saved. `drawn` counts the batches that
    were learned from before.
    """

    saved = ("drawn", "computed", "scales", "source")

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
        self.inner = self.source = source
        self.compute, self.interval = compute, interval
        self.logged, self.buffer, self.standardizes, self.drawn = logged, buffer, tuple(standardizes), drawn
        self.computed: int | None = None
        """The number of batches drawn before annotations were last computed."""
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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the stream; the networks must be those of that time."""
        super().load_state_dict(state)
        if self.logged is not None:
            # Not saved, since the annotations of logged rows follow from the networks.
            self.logged.annotate(self.compute)


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
        """The current pass, counted from 0, and rows of it that were drawn."""
        self.order = torch.arange(0)
        self.shuffled: Batch | None = None
        """The rows in the order of the current pass, once they have been asked for."""

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
        """The position in the round, and its rows: they are few, and no later checkpoint has them."""
        return {**super().state_dict(), "rows": self.buffer.rows_from(self.buffer.rows.first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of the round in which `state_dict` found it."""
        super().load_state_dict(state)
        self.buffer.restore(state["rows"])
        self.shuffled = None


def with_lambda_returns(
    dataset: TransitionDataset, values: Values, *, gamma: float, td_lambda: float
) -> TransitionDataset:
    """The dataset with `lambda_returns`, and with `advantages` brought to mean 0 and standard deviation 1 over it."""
    compute = partial(lambda_returns, values=values, gamma=gamma, td_lambda=td_lambda)
    return with_annotations(dataset, compute, standardizes=("advantages",))
