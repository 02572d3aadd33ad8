"""Actions of a policy beside the logged ones: distributions, bounds, jumps, distance from the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.spaces import BoxActions, DiscreteActions
from rl_training.core.statistics import histogram
from rl_training.ope import novelty_of_log
from rl_training.policies import SavedPolicy, find_columns, observation_names
from rl_training.selection import EvaluationData

MOST_ROWS = 20_000
"""The most rows in a comparison: whole episodes, drawn at random if there are more."""
BINS = 30
AT_BOUND = 0.01
"""Distance from a bound that counts as at the bound, as a share of the range."""
MOST_SHOWN = 10
"""The most situations in a table, and the most actions with a figure."""
FEWEST_EPISODES = 3
"""The fewest episodes for a measure of the distance from the log."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ActionPairs:
    """Rows of whole episodes, with logged and chosen actions in native units."""

    rows: NDArray[np.int64]
    episodes: NDArray[np.int64]
    obs: NDArray[np.float32]
    logged: Numbers
    chosen: Numbers

    @property
    def continues(self) -> NDArray[np.bool_]:
        """Whether the row after each is of the same episode."""
        same: NDArray[np.bool_] = self.episodes[1:] == self.episodes[:-1]
        return same


def compare_actions(saved: SavedPolicy, data: EvaluationData, *, seed: int = 0) -> dict[str, Any]:
    """Compare logged actions with those of a policy for the same observations, as plain values."""
    found, space = _pair_actions(saved, data, seed), saved.spaces.action
    columns = find_columns(saved)
    features = [f"observation {place}" for place in range(saved.spaces.obs_dim)]
    names = [f"action {place}" for place in range(space.size)] if isinstance(space, BoxActions) else ["action"]
    if columns is not None:
        features, names = observation_names(saved.spaces, columns), list(columns.actions)
    plain: dict[str, Any] = {"kind": space.kind, "rows": len(found.rows), "rows_of_log": len(data.log.dataset)}
    if isinstance(space, BoxActions):
        plain["dimensions"] = [_dimension(found, space, place, name) for place, name in enumerate(names[:MOST_SHOWN])]
        plain["dimensions_in_all"] = len(names)
        ranges = np.subtract(space.high, space.low)
        distances = np.abs(found.logged - found.chosen) / ranges
        plain["mean_difference"] = float(distances.mean())
        distance = distances.max(axis=1)
    else:
        plain["choices"] = _discrete_actions(found, space, columns.choices if columns is not None else None)
        distance = (found.logged != found.chosen).any(axis=1).astype(np.float64)
        plain["mean_difference"] = float(distance.mean())
    plain["most_different"] = _most_different(found, distance, features, names)
    plain["novelty"] = _novelty(saved, data, seed)
    return plain


def _pair_actions(saved: SavedPolicy, data: EvaluationData, seed: int) -> ActionPairs:
    log, space = data.log, saved.spaces.action
    order = np.random.default_rng(seed).permutation(len(log.bounds))
    lengths = (log.bounds[:, 1] - log.bounds[:, 0])[order]
    # At least one episode, however long.
    count = max(int((np.cumsum(lengths) <= MOST_ROWS).sum()), 1)
    chosen = np.sort(order[:count])
    rows = np.concatenate([np.arange(*log.bounds[episode]) for episode in chosen])[: 5 * MOST_ROWS]
    index = torch.from_numpy(rows)
    obs = log.dataset.obs[index].numpy(force=True)
    logged = space.decode(log.dataset.actions[index].cpu()).double().numpy().reshape(len(rows), -1)
    acted = torch.from_numpy(np.asarray(saved.predict(obs)))
    native = space.confine(acted).double().numpy().reshape(len(rows), -1)
    return ActionPairs(rows, log.episodes.numpy()[rows], obs, logged, native)


def _shares(values: Any, edges: Numbers) -> list[float]:
    """The share of values in each bin; values beyond the edges count in the outer bins."""
    counts, _ = histogram(np.clip(values, edges[0], edges[-1]), edges)
    return [count / max(len(values), 1) for count in counts]


def _dimension(found: ActionPairs, space: BoxActions, place: int, name: str) -> dict[str, Any]:
    """One dimension of the action: histograms, share at its bounds, mean change from one step to the next."""
    low, high = space.low[place], space.high[place]
    edges, near = np.linspace(low, high, BINS + 1), AT_BOUND * (high - low)
    plain: dict[str, Any] = {"name": name, "low": low, "high": high, "edges": edges.tolist()}
    for kind, actions in (("logged", found.logged[:, place]), ("chosen", found.chosen[:, place])):
        at_bound = (actions <= low + near) | (actions >= high - near)
        steps = np.abs(np.diff(actions))[found.continues]
        plain[kind] = {
            "shares": _shares(actions, edges),
            "mean": float(actions.mean()),
            "std": float(actions.std()),
            "at_bound": float(at_bound.mean()),
            "change": float(steps.mean()) if len(steps) else None,
        }
    return plain


def _discrete_actions(found: ActionPairs, space: DiscreteActions, labels: Any) -> dict[str, Any]:
    """The shares of discrete actions in the log and of the policy, the most frequent first."""
    numbers = np.arange(space.start, space.start + space.count)
    logged, chosen = ((actions == numbers).mean(axis=0) for actions in (found.logged, found.chosen))
    order = np.argsort(-(logged + chosen), kind="stable")[:MOST_SHOWN]
    names = [str(labels[place]) if labels else str(numbers[place]) for place in order]
    shares = {"logged": logged[order].tolist(), "chosen": chosen[order].tolist()}
    return {"names": names, **shares, "in_all": space.count}


def _most_different(found: ActionPairs, distance: Numbers, features: list[str], names: list[str]) -> dict[str, Any]:
    """The rows where the policy differs most from the log, one per episode, with their observations.

    Episodes and steps are counted from 0, in the order in which the log was read.
    """
    order = np.argsort(-distance, kind="stable")
    _, first = np.unique(found.episodes[order], return_index=True)
    chosen = [row for row in order[np.sort(first)][:MOST_SHOWN] if distance[row] > 0]
    parts: dict[str, Any] = {"observation": found.obs, "logged": found.logged, "chosen": found.chosen}
    rows = [
        {
            "episode": int(found.episodes[row]),
            "step": int(row - np.argmax(found.episodes == found.episodes[row])),
            **{name: values[row].tolist() for name, values in parts.items()},
        }
        for row in chosen
    ]
    return {"features": features, "actions": names, "rows": rows}


@torch.no_grad()
def _novelty(saved: SavedPolicy, data: EvaluationData, seed: int) -> dict[str, Any] | None:
    """The novelty of logged and of chosen actions, on episodes that were not used to fit the measure."""
    log, space = data.log, saved.spaces.action
    if len(log.bounds) < FEWEST_EPISODES:
        return None
    novelty, held_out = novelty_of_log(log, seed=seed)
    rows = torch.from_numpy(np.flatnonzero(np.isin(log.episodes.numpy(), held_out))[:MOST_ROWS])
    obs, logged = log.dataset.obs[rows].cpu(), log.dataset.actions[rows].cpu()
    acted = space.clip(space.encode(torch.from_numpy(np.asarray(saved.predict(obs.numpy())))))
    scores = {"logged": novelty(obs.float(), logged), "chosen": novelty(obs.float(), acted)}
    most = max(2.0, float(torch.quantile(torch.cat(list(scores.values())), 0.999)))
    edges = np.linspace(0, min(most, 5.0), BINS + 1)
    plain: dict[str, Any] = {"rows": len(rows), "episodes": len(held_out), "edges": edges.tolist()}
    for kind, found in scores.items():
        plain[kind] = {"shares": _shares(found.numpy(), edges), "beyond": float((found > 1).float().mean())}
    return plain
