"""Returns: of the rewards alone, and of rewards and a value function together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.types import Batch, DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

CHUNK = 8192


def returns_to_go(dataset: TransitionDataset, *, gamma: float, failure_reward: float | None = None) -> Tensor:
    """The discounted sum of rewards from each row to its episode's end, rewards of dropped last rows included.

    An episode all of whose rewards equal `failure_reward` counts as if it went on like that for ever.
    """
    rewards = dataset.rewards.double()
    if dataset.tail_rewards is not None:
        rewards = rewards + gamma * dataset.tail_rewards.nan_to_num()
    returns = backward_recursion(rewards, gamma * (~dataset.episode_ends).double())
    if failure_reward is not None:
        if gamma >= 1:
            raise DatasetError("failure_reward needs gamma < 1: the return of an endless failure is infinite")
        returns = torch.where(_rows_of_failures(dataset, failure_reward), failure_reward / (1 - gamma), returns)
    return returns.float()


def _rows_of_failures(dataset: TransitionDataset, reward: float) -> Tensor:
    """True on the rows of episodes that have no other reward than this one."""
    other = dataset.rewards != reward
    if dataset.tail_rewards is not None:
        other |= ~dataset.tail_rewards.isnan() & (dataset.tail_rewards != reward)
    first, stop = dataset.episode_bounds().unbind(1)
    counts = torch.cat([other.new_zeros(1, dtype=torch.int64), other.long().cumsum(0)])
    return (counts[stop] == counts[first]).repeat_interleave(stop - first)


def backward_recursion(terms: Tensor, factors: Tensor) -> Tensor:
    """sums[t] = terms[t] + factors[t] * sums[t + 1], from the last row to the first; a factor of 0 starts anew."""
    sums, running = [], 0.0
    for term, factor in zip(reversed(terms.tolist()), reversed(factors.tolist()), strict=True):
        running = term + factor * running
        sums.append(running)
    return torch.tensor(sums[::-1], dtype=terms.dtype, device=terms.device)


@torch.no_grad()
def with_lambda_returns(
    dataset: TransitionDataset, values: Callable[[Tensor], Tensor], *, gamma: float, td_lambda: float
) -> TransitionDataset:
    """The dataset with `lambda_returns` and standardised `advantages`, by a function from observations to values.

    R_t = r_t + gamma * ((1 - td_lambda) * V(s_{t+1}) + td_lambda * R_{t+1}) within an episode; its last row has
    r + gamma * V(s') where the episode was cut and r alone where the task terminated. Advantages are R - V(s), brought
    to mean 0 and deviation 1 over the dataset.
    """
    ends, data = dataset.episode_bounds()[:, 1] - 1, dataset.fields
    state_values = _evaluate(values, data["obs"])
    next_values = state_values.roll(-1)
    next_values[ends] = _evaluate(values, data["next_obs"][ends])
    next_values *= 1 - data["dones"]
    is_last = torch.zeros_like(dataset.truncations)
    is_last[ends] = True
    terms = data["rewards"] + gamma * (1 - td_lambda * (~is_last).to(next_values.dtype)) * next_values
    returns = backward_recursion(terms, gamma * td_lambda * (~is_last).double())
    advantages = returns - state_values
    spread = advantages.std(correction=0) + 1e-5
    return dataset.with_fields(lambda_returns=returns, advantages=(advantages - advantages.mean()) / spread)


def _evaluate(values: Callable[[Tensor], Tensor], obs: Tensor) -> Tensor:
    return torch.cat([values(chunk) for chunk in torch.split(obs, CHUNK)])


class LambdaReturnSource:
    """Batches of a dataset whose lambda returns and advantages are computed anew after every `interval` batches.

    `values` must stay the same in between: then a source that is loaded at any time has what it had when it was saved.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        values: Callable[[Tensor], Tensor],
        *,
        names: tuple[str, ...],
        gamma: float,
        td_lambda: float,
        interval: int,
    ) -> None:
        self.dataset, self.values, self.names = dataset, values, names
        self.gamma, self.td_lambda, self.interval = gamma, td_lambda, interval
        self.notes = dataset.notes
        self.drawn = 0
        self.sampler = self._compute().sampler

    def __len__(self) -> int:
        return len(self.dataset)

    def _compute(self) -> TransitionDataset:
        estimated = with_lambda_returns(self.dataset, self.values, gamma=self.gamma, td_lambda=self.td_lambda)
        return estimated.requiring(*self.names)

    def _refresh(self) -> None:
        self.sampler.replace_fields(self._compute().fields)

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement."""
        if self.drawn and self.drawn % self.interval == 0:
            self._refresh()
        self.drawn += 1
        return self.sampler.sample(batch_size)

    def metrics(self) -> dict[str, float]:
        """Nothing: every batch is drawn alike."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is; the returns follow from the values."""
        return {"drawn": self.drawn, **self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a stream where `state_dict` found it; `values` must be what it was then."""
        self.drawn = state["drawn"]
        self.sampler.load_state_dict(state)
        self._refresh()
