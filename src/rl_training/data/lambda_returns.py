"""Returns of rewards and a value function together, which have to be computed anew as the value learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.data.offline_mixers import Ratio, make_source
from rl_training.data.replay_buffer import EpisodeReplayBuffer
from rl_training.data.returns import backward_recursion
from rl_training.types import Batch

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

CHUNK = 8192
ESTIMATED = ("lambda_returns", "advantages")

Values = Callable[[Tensor], Tensor]
"""From observations to their values."""


@torch.no_grad()
def lambda_returns(rows: Batch, ends: Tensor, values: Values, *, gamma: float, td_lambda: float) -> Batch:
    """`lambda_returns` and `advantages` of rows in the order of their episodes, whose last rows are at `ends`.

    R_t = r_t + gamma * ((1 - td_lambda) * V(s_{t+1}) + td_lambda * R_{t+1}) within an episode; its last row has
    r + gamma * V(s') where the episode was cut and r alone where the task terminated. Advantages are R - V(s).
    """
    state_values = _evaluate(values, rows["obs"])
    next_values = state_values.roll(-1)
    next_values[ends] = _evaluate(values, rows["next_obs"][ends])
    next_values *= 1 - rows["dones"]
    goes_on = torch.ones_like(state_values)
    goes_on[ends] = 0
    terms = rows["rewards"] + gamma * (1 - td_lambda * goes_on) * next_values
    returns = backward_recursion(terms, gamma * td_lambda, goes_on == 0)
    return {"lambda_returns": returns, "advantages": returns - state_values}


def _evaluate(values: Values, obs: Tensor) -> Tensor:
    return torch.cat([values(chunk) for chunk in torch.split(obs, CHUNK)])


def with_lambda_returns(
    dataset: TransitionDataset, values: Values, *, gamma: float, td_lambda: float
) -> TransitionDataset:
    """The dataset with `lambda_returns`, and with `advantages` brought to mean 0 and deviation 1 over it."""
    estimates = _estimates(dataset, values, gamma=gamma, td_lambda=td_lambda)
    mean, spread = _scale([estimates["advantages"]])
    return dataset.with_fields(**estimates | {"advantages": (estimates["advantages"] - mean) / spread})


def _estimates(dataset: TransitionDataset, values: Values, *, gamma: float, td_lambda: float) -> Batch:
    ends = dataset.episode_bounds()[:, 1] - 1
    return lambda_returns(dict(dataset.fields), ends, values, gamma=gamma, td_lambda=td_lambda)


def _scale(advantages: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What advantages are brought to mean 0 and deviation 1 with."""
    joined = torch.cat(advantages)
    return joined.mean(), joined.std(correction=0) + 1e-5


class LambdaReplayBuffer(EpisodeReplayBuffer):
    """Whole episodes with `lambda_returns` and `advantages`; only rows for which these were computed are drawn."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.estimates = {name: torch.empty(self.capacity, device=self.device) for name in ESTIMATED}
        self.estimated = 0
        """The number of the first row that came after the returns were last computed."""

    def estimate(self, values: Values, *, td_lambda: float) -> Tensor:
        """Compute the returns of all rows; their advantages."""
        first, self.estimated = self.added - len(self), self.added
        rows = self.rows_from(first)
        rows["rewards"] = self._transformed(rows["rewards"])
        # Only whole episodes are added, one after the other; the oldest may have lost its beginning.
        ends = (rows["dones"] + rows["truncations"]).nonzero().flatten()
        found = lambda_returns(rows, ends, values, gamma=self.gamma, td_lambda=td_lambda)
        self._put(first, found)
        return found["advantages"]

    def _put(self, first: int, estimates: Batch) -> None:
        places = torch.arange(first, self.estimated, device=self.device) % self.capacity
        for name, value in estimates.items():
            self.estimates[name].index_copy_(0, places, value)

    def _drawable(self) -> tuple[int, int]:
        """Rows whose returns are known."""
        return self.added - len(self), self.estimated

    def _batch(self, index: Tensor) -> Batch:
        return super()._batch(index) | {name: value[index] for name, value in self.estimates.items()}

    def state_dict(self) -> dict[str, Any]:
        """Where the buffer is, without its rows, but with their returns, which a value that has moved cannot tell."""
        places = torch.arange(self.estimated - self.num_drawable, self.estimated, device=self.device) % self.capacity
        estimates = {name: value[places] for name, value in self.estimates.items()}
        return {**super().state_dict(), "estimated": self.estimated, "estimates": estimates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the buffer, once `restore` has brought its rows back."""
        super().load_state_dict(state)
        self.estimated = state["estimated"]
        count = len(state["estimates"]["advantages"])
        self._put(self.estimated - count, {name: value.to(self.device) for name, value in state["estimates"].items()})


class _LoggedEpisodes:
    """The rows of a dataset, whose values of `lambda_returns` and `advantages` are replaced at times."""

    def __init__(self, dataset: TransitionDataset, names: tuple[str, ...], gamma: float) -> None:
        self.dataset, self.gamma = dataset, gamma
        blank = {name: torch.zeros_like(dataset.rewards) for name in ESTIMATED}
        self.drawn = dataset.with_fields(**blank).requiring(*names)

    def __len__(self) -> int:
        return len(self.dataset)

    def estimate(self, values: Values, *, td_lambda: float) -> Tensor:
        """Compute the returns of all rows; their advantages."""
        found = _estimates(self.dataset, values, gamma=self.gamma, td_lambda=td_lambda)
        self.drawn.sampler.replace_fields({name: found.get(name, value) for name, value in self.drawn.fields.items()})
        return found["advantages"]


class LambdaReturnSource:
    """Batches whose lambda returns and advantages are computed anew after every `interval` of them.

    Rows come from a dataset, from a run's own experience, or from both, with `ratio` as the dataset's share. Advantages
    are standardised over all rows. The values of the dataset's rows must stay the same in between: then a source that
    is loaded at any time has what it had when it was saved. `drawn` is how many batches the values have seen already.
    """

    def __init__(
        self,
        dataset: TransitionDataset | None,
        values: Values,
        *,
        names: tuple[str, ...],
        gamma: float,
        td_lambda: float,
        interval: int,
        buffer: LambdaReplayBuffer | None = None,
        ratio: Ratio = "proportional",
        drawn: int = 0,
    ) -> None:
        self.values, self.td_lambda, self.interval = values, td_lambda, interval
        self.logged = None if dataset is None else _LoggedEpisodes(dataset, names, gamma)
        self.buffer, self.drawn = buffer, drawn
        self.source = make_source(None if self.logged is None else self.logged.drawn, buffer, ratio)
        self.computed: int | None = None
        """How many batches had been drawn when the returns were last computed."""
        self.mean, self.spread = torch.zeros(()), torch.ones(())
        """What advantages are standardised with."""
        self._compute()

    def _compute(self) -> None:
        """Returns of all rows by the values as they are now."""
        parts = [part for part in (self.logged, self.buffer) if part is not None and len(part)]
        if parts:
            self.mean, self.spread = _scale([part.estimate(self.values, td_lambda=self.td_lambda) for part in parts])
            self.computed = self.drawn

    def _is_due(self) -> bool:
        if self.logged is None and self.buffer is not None and not self.buffer.num_drawable:
            return True
        return self.drawn % self.interval == 0 and self.drawn != self.computed

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement."""
        if self._is_due():
            self._compute()
        self.drawn += 1
        batch = self.source.sample(batch_size)
        if "advantages" not in batch:
            return batch
        return batch | {"advantages": (batch["advantages"] - self.mean) / self.spread}

    def metrics(self) -> dict[str, float]:
        """What there is to say about the batches drawn since the last call."""
        return self.source.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is; the returns of the dataset follow from the values."""
        return {
            "drawn": self.drawn,
            "computed": self.computed,
            "scale": torch.stack([self.mean, self.spread]),
            "source": self.source.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a stream where `state_dict` found it; the values of the dataset's rows must be what they were."""
        self.drawn, self.computed = state["drawn"], state["computed"]
        self.mean, self.spread = state["scale"].to(self.mean.device)
        self.source.load_state_dict(state["source"])
        if self.logged is not None:
            self.logged.estimate(self.values, td_lambda=self.td_lambda)
