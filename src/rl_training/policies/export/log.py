"""The training data of an exported policy: ranges of observations, the novelty score, test vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.acting import Policy
from rl_training.core.errors import DatasetError, UserError
from rl_training.core.spaces import DiscreteActions
from rl_training.data import TransitionDataset, as_dataset
from rl_training.models import Novelty, fit_novelty, novelty_split
from rl_training.policies.saved import SavedPolicy
from rl_training.runtime import bind_options, find_task, load_data
from rl_training.storage import read_rows, rows_path, run_of

LOGGED_VECTORS = 48
SHIFTED_VECTORS = 8
FAR_VECTORS = 4
MOST_CALIBRATED = 500
"""Held-out episodes beyond which a novelty score does not improve."""
MOST_ROWS = 200_000
"""The most rows of other episodes: data may be larger than memory."""
SEED = 0


@dataclass(frozen=True)
class Log:
    """Rows that a policy was trained on: observations as logged, actions as networks see them."""

    obs: Tensor
    actions: Tensor
    episodes: NDArray[np.int64]
    """The number of each row's episode."""
    held_out: NDArray[np.int64]
    """The numbers of the episodes on which the novelty score is calibrated; all their rows are included."""
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    """The smallest and largest observations, of all rows."""
    origin: str

    @property
    def held_out_rows(self) -> NDArray[np.int64]:
        """The rows of held-out episodes."""
        return np.flatnonzero(np.isin(self.episodes, self.held_out))


def find_log(saved: SavedPolicy, dataset: Any = None) -> tuple[Log | None, str]:
    """The rows that a policy was trained on, or the reason why there are none.

    They are the data of a run that learned from data, else the replay buffer beside the checkpoint.
    """
    options = bind_options(saved.config)
    if options.mode == "online":
        return _replayed(saved)
    try:
        given = None if dataset is None else as_dataset(dataset)
        trainer = saved.tree.get("trainer", {})
        data = load_data(saved.config, options, find_task(saved.config), given, trainer=trainer)
    except UserError as error:
        hint = "to export without it, pass --no-novelty, or novelty=False"
        raise DatasetError(f"novelty needs the data of the run, which cannot be read: {error}; {hint}") from None
    known = saved.tree.get("trainer", {}).get("fingerprint")
    if known is not None and data.fingerprint != known:
        raise DatasetError("the data is not what the policy was trained on: its fingerprint differs")
    return _logged(data.dataset)


def _logged(dataset: TransitionDataset) -> tuple[Log | None, str]:
    """The rows of a dataset, with some of its episodes held out from the codebook."""
    spare, origin = dataset.validation, "the data that the run was trained on"
    parts = [dataset] if spare is None else [dataset, spare]
    if dataset.has_episodes:
        lengths = np.concatenate([_lengths(part) for part in parts])
        return _split(parts, np.repeat(np.arange(len(lengths)), lengths), origin)
    if spare is None or not spare.has_episodes:
        return None, "the rows of the data are not in the order of their episodes, so that no episode can be held out"
    lengths = np.array([len(dataset), *_lengths(spare)])
    return _reduced(parts, np.repeat(np.arange(len(lengths)), lengths), np.arange(1, len(lengths)), origin), ""


def _lengths(dataset: TransitionDataset) -> NDArray[np.int64]:
    return np.diff(dataset.episode_bounds().numpy(), axis=1).ravel()


def _replayed(saved: SavedPolicy) -> tuple[Log | None, str]:
    """The rows of the checkpoint's replay buffer, stream by stream."""
    folder = None if saved.path is None else run_of(saved.path.resolve()) / "replay"
    spans = saved.tree.get("replay", [])
    is_there = folder is not None and all(rows_path(folder, *span).is_file() for span in spans)
    rows = read_rows(folder, spans) if folder is not None and is_there else None
    if rows is None:
        return None, "the run learned from its own experience, and no replay buffer lies beside the checkpoint"
    order = torch.argsort(rows["streams"], stable=True)
    rows = {name: value[order] for name, value in rows.items()}
    ends = (rows["dones"] != 0) | (rows["truncations"] != 0)
    ends[:-1] |= rows["streams"][1:] != rows["streams"][:-1]
    episodes = np.concatenate([[0], ends[:-1].long().cumsum(0).numpy()])
    seen = {"obs": rows["obs"], "actions": saved.spaces.action.clip(rows["actions"])}
    return _split([TransitionDataset(seen, ends)], episodes, "the replay buffer of the run")


def _split(parts: Sequence[TransitionDataset], episodes: NDArray[np.int64], origin: str) -> tuple[Log | None, str]:
    try:
        held_out = novelty_split(episodes, seed=SEED)
    except DatasetError as error:
        return None, str(error)
    held_out = np.random.default_rng(SEED).permutation(held_out)[:MOST_CALIBRATED]
    return _reduced(parts, episodes, np.sort(held_out), origin), ""


def _reduced(
    parts: Sequence[TransitionDataset], episodes: NDArray[np.int64], held_out: NDArray[np.int64], origin: str
) -> Log:
    """All rows of held-out episodes, and the others up to a limit."""
    is_held_out = np.isin(episodes, held_out)
    others = np.random.default_rng(SEED).permutation(np.flatnonzero(~is_held_out))[:MOST_ROWS]
    rows = np.sort(np.concatenate([others, np.flatnonzero(is_held_out)]))
    obs, actions = (_gather([part.fields[name] for part in parts], rows) for name in ("obs", "actions"))
    low = np.min([part.fields["obs"].amin(0).numpy() for part in parts], axis=0)
    high = np.max([part.fields["obs"].amax(0).numpy() for part in parts], axis=0)
    return Log(obs, actions, episodes[rows], held_out, low, high, origin)


def _gather(columns: Sequence[Tensor], rows: NDArray[np.int64]) -> Tensor:
    """Rows of consecutive columns, none of which is read as a whole."""
    found, start = [], 0
    for column in columns:
        inside = rows[(rows >= start) & (rows < start + len(column))] - start
        found.append(column[torch.from_numpy(inside)])
        start += len(column)
    return torch.cat(found)


def fit_log(log: Log, policy: Policy) -> Novelty:
    """The novelty score of a log."""
    space = policy.spaces.action
    count = space.count if isinstance(space, DiscreteActions) else 0
    return fit_novelty(log.obs, log.actions, log.episodes, held_out=log.held_out, num_actions=count, seed=SEED)


@torch.no_grad()
def flagged_share(novelty: Novelty, log: Log) -> float:
    """The share of held-out rows whose novelty is above 1."""
    rows = torch.from_numpy(log.held_out_rows)
    found = [novelty(log.obs[part].float(), log.actions[part]) > 1 for part in torch.split(rows, 4096)]
    return round(float(torch.cat(found).float().mean()), 4)


def describe_obs(log: Log) -> dict[str, list[float]]:
    """Mean, standard deviation, extremes and outer quantiles of the logged observations, per number."""
    low, high = np.quantile(log.obs.numpy(), [0.001, 0.999], axis=0)
    mean, std = log.obs.mean(0).numpy(), log.obs.std(0, correction=0).numpy()
    found = {"mean": mean, "std": std, "min": log.low, "max": log.high, "quantile_0.001": low, "quantile_0.999": high}
    return {name: value.tolist() for name, value in found.items()}


def vector_observations(log: Log | None, policy: Policy) -> NDArray[np.float32]:
    """Test vectors: logged rows, zeros, the mean, the extremes, and rows at and beyond the edge of the data."""
    rng, width = np.random.default_rng(SEED), policy.spaces.obs_dim
    if log is None:
        mean, std = policy.obs_mean.numpy(), policy.obs_std.numpy()
        low, high = mean - 2 * std, mean + 2 * std
        logged = mean + std * rng.normal(size=(LOGGED_VECTORS, width))
    else:
        mean, std = log.obs.mean(0).numpy(), log.obs.std(0, correction=0).numpy()
        low, high = log.low, log.high
        rows = log.held_out_rows
        spread = np.linspace(0, len(rows) - 1, LOGGED_VECTORS).round().astype(int)
        logged = log.obs[torch.from_numpy(rows[spread])].numpy()
    shifted = np.tile(mean, (SHIFTED_VECTORS, 1))
    places = rng.integers(width, size=SHIFTED_VECTORS)
    signs = np.resize([1, -1], SHIFTED_VECTORS)
    shifted[np.arange(SHIFTED_VECTORS), places] += 3 * signs * std[places]
    far = mean + 10 * std * rng.choice([-1, 1], size=(FAR_VECTORS, width))
    found = np.concatenate([logged, shifted, [np.zeros(width), mean, low, high], far]).astype(np.float32)
    # A mask is as logged, or allows all actions.
    found[0 if log is None else LOGGED_VECTORS :, : policy.spaces.mask_dim] = 1
    return found
