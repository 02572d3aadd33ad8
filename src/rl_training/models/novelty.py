"""The novelty of an observation and the action for it: their distance from the logged ones.

    z = [(obs - mean) / std, action],    d(z) = min_m |z - c_m| / sqrt(dim z),    novelty = d / D

The codes c_m are the centres of k-means on logged rows of training episodes. D comes from m other episodes, which were
held out: q_i is the 95 % quantile of d over the rows of episode i, and D is the ceil(0.9 (m + 1))-th smallest of them,
or the largest. So a new episode that is like the logged ones has more than 5 % of its rows above 1 with a probability
of at most 10 %, if at least 9 episodes were held out, and of at most 1 / (m + 1) if fewer were.

A discrete action enters z as its one-hot vector.

Novelty sees neither values nor, in dense data of few dimensions, a wrong action at a familiar observation.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rl_training.core.errors import DatasetError

CODES = 1024
ROWS_PER_CODE = 4
FITTED_ROWS = 20_000
LLOYD_STEPS = 8
ROW_QUANTILE = 0.95
EPISODE_QUANTILE = 0.9
EPSILON = 1e-3
"""Added to standard deviations, and the least D: logs of few distinct rows have held-out rows at distance 0."""
CHUNK = 4096
"""Rows at a time, which bounds the memory that their distances from all codes take."""


class Novelty(nn.Module):
    """The distance from the nearest logged row, as a multiple of the usual distance: above 1 is unfamiliar.

    `actions` are as networks see them: (B, dim) in [-1, 1], or numbers (B,) of one of `num_actions` discrete actions.
    """

    mean: Tensor
    std: Tensor
    codebook: Tensor
    distance: Tensor

    def __init__(
        self, *, mean: Tensor, std: Tensor, codebook: Tensor, distance: Tensor, num_actions: int = 0, episodes: int = 0
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("codebook", codebook)
        self.register_buffer("distance", distance)
        self.num_actions = num_actions
        self.episodes = episodes
        """The number of episodes that D comes from."""

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Novelty (B,) of observations in native units and actions as networks see them."""
        return self.distances(obs, actions) / self.distance

    def distances(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Distances (B,) from the nearest code: root mean squares over the coordinates."""
        rows = _join((obs - self.mean) / self.std, actions, self.num_actions)
        nearest = self.codebook[_nearest(rows, self.codebook)]
        # From the differences again: what the search compares is rounded too coarsely where a row is close to a code.
        return (rows - nearest).square().mean(-1).sqrt()

    @property
    def false_alarms(self) -> float:
        """The largest probability that an episode like the logged ones has over 5 % of its rows above 1."""
        enough = _rank(self.episodes) <= self.episodes
        return 1 - EPISODE_QUANTILE if enough else 1 / (self.episodes + 1)


def fit_novelty(
    obs: ArrayLike | Tensor,
    actions: ArrayLike | Tensor,
    episodes: ArrayLike | Tensor,
    *,
    held_out: ArrayLike | Tensor,
    num_actions: int = 0,
    seed: int = 0,
) -> Novelty:
    """The novelty score of a log, whose rows belong to the `episodes` (N,), calibrated on those that are `held_out`.

    Observations are in native units, actions as networks see them. Rows of episodes that are not held out make the
    codebook. `novelty_split` chooses episodes where none are held out yet.
    """
    states, moves = torch.as_tensor(obs), torch.as_tensor(actions)
    numbers, kept_back = np.asarray(episodes), np.unique(np.asarray(held_out))
    _check(states, moves, numbers, num_actions)
    bounds = _rows_of(numbers, kept_back)
    training = np.flatnonzero(~np.isin(numbers, kept_back))
    if not bounds:
        raise DatasetError(
            "no held-out episodes to calibrate novelty on; distances of rows that made the codebook are too small: "
            "hold out whole episodes, for example with novelty_split(episodes)"
        )
    if not len(training):
        raise DatasetError("all episodes are held out: novelty needs rows of other episodes for its codebook")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.from_numpy(training)[torch.randperm(len(training), generator=generator)[:FITTED_ROWS]]
    sample = states[chosen].float()
    mean, std = sample.mean(0), sample.std(0, correction=0) + EPSILON
    rows = _join((sample - mean) / std, moves[chosen], num_actions)
    codebook = _k_means(rows, min(CODES, max(1, len(rows) // ROWS_PER_CODE)), generator)
    parts = {"mean": mean, "std": std, "codebook": codebook}
    novelty = Novelty(**parts, distance=torch.tensor(1.0), num_actions=num_actions, episodes=len(bounds))
    novelty.distance = calibrate(novelty, states, moves, bounds)
    return novelty.requires_grad_(False).eval()


@torch.no_grad()
def calibrate(novelty: Novelty, obs: Tensor, actions: Tensor, rows_of_episodes: list[NDArray[np.int64]]) -> Tensor:
    """The distance D that 95 % of the rows of 90 % of new episodes stay within; rows are given per held-out episode."""
    quantiles = []
    for rows in rows_of_episodes:
        parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        found = torch.cat([novelty.distances(obs[part].float(), actions[part]) for part in parts])
        # The quantile that at most 5 % of the rows exceed; one between two rows could be exceeded by more.
        quantiles.append(float(np.quantile(found.numpy(), ROW_QUANTILE, method="inverted_cdf")))
    count = len(quantiles)
    usual = sorted(quantiles)[min(_rank(count), count) - 1]
    return torch.tensor(max(usual, EPSILON), dtype=torch.float32)


def novelty_split(episodes: ArrayLike | Tensor, fraction: float = 0.2, *, seed: int = 0) -> NDArray[np.int64]:
    """The numbers of episodes to calibrate on, chosen at random: `fraction` of all.

    Where that is fewer than 9, it is 9, or half of the episodes: with fewer than 9, false alarms are more frequent.
    """
    if not 0 < fraction < 1:
        raise DatasetError(f"fraction must be > 0 and < 1, got {fraction}")
    numbers = np.unique(np.asarray(episodes)).astype(np.int64)
    if len(numbers) < 2:
        raise DatasetError(f"novelty is calibrated on held-out episodes and needs at least 2, got {len(numbers)}")
    size = min(max(round(fraction * len(numbers)), min(9, len(numbers) // 2)), len(numbers) - 1)
    return np.sort(np.random.default_rng(seed).permutation(numbers)[:size])


def _check(obs: Tensor, actions: Tensor, episodes: NDArray[np.int64], num_actions: int) -> None:
    lengths = (len(obs), len(actions), len(episodes))
    if len(set(lengths)) > 1:
        raise DatasetError("obs, actions and episodes must have as many rows each, got {}, {} and {}".format(*lengths))
    expected = 1 if num_actions else 2
    if obs.ndim != 2 or actions.ndim != expected:
        shape = "(rows,) for discrete actions" if num_actions else "(rows, dim)"
        raise DatasetError(
            f"obs must be (rows, dim) and actions {shape}, got {tuple(obs.shape)} and {tuple(actions.shape)}"
        )


def _rows_of(episodes: NDArray[np.int64], numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows of each of these episodes that has any."""
    order = np.argsort(episodes, kind="stable")
    starts = np.searchsorted(episodes[order], numbers, side="left")
    stops = np.searchsorted(episodes[order], numbers, side="right")
    return [order[start:stop] for start, stop in zip(starts, stops, strict=True) if stop > start]


def _join(obs: Tensor, actions: Tensor, num_actions: int) -> Tensor:
    """The rows z (B, dim) whose distances are measured, from normalised observations."""
    if num_actions:
        actions = (actions[..., None] == torch.arange(num_actions, device=actions.device)).to(obs.dtype)
    return torch.cat([obs, actions.to(obs.dtype)], -1)


def _nearest(rows: Tensor, codes: Tensor) -> Tensor:
    """The number of the nearest code for each row. The square of the row itself would change no comparison."""
    return (codes.square().sum(-1) - 2 * rows @ codes.T).argmin(-1)


def _k_means(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Centres after a few steps of Lloyd's algorithm from random rows; a centre that no row is nearest to stays."""
    codes = rows[torch.randperm(len(rows), generator=generator)[:count]].clone()
    for _ in range(LLOYD_STEPS):
        nearest = torch.cat([_nearest(part, codes) for part in torch.split(rows, CHUNK)])
        sizes = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(codes).index_add_(0, nearest, rows)
        codes = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], codes)
    return codes


def _rank(episodes: int) -> int:
    # 0.9 * 10 must not be rounded up to 10 because it is a little more than 9.
    return math.ceil(round(EPISODE_QUANTILE * (episodes + 1), 9))
