"""A dataset in numbers: fields, episodes, returns, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.statistics import histogram
from rl_training.data.mapped_columns import chunks
from rl_training.data.offline_dataset import BESIDE, TransitionDataset

BINS = 10
"""Bars of a histogram."""


def inspect_dataset(dataset: TransitionDataset) -> dict[str, Any]:
    """Plain values that describe a dataset, without reading it into memory."""
    about: dict[str, Any] = {
        "rows": len(dataset),
        "rows_dropped": dataset.num_dropped,
        **{name: getattr(dataset, name) for name in ("obs_dim", "action_dim", "is_discrete", "has_rewards")},
        "fields": {name: _field(value.numpy(force=True)) for name, value in _columns(dataset).items()},
        "bytes": sum(value.nbytes for value in _columns(dataset).values()),
        "is_in_memory": dataset.stored is None,
        "terminations": int(np.count_nonzero(dataset.dones.numpy(force=True))),
        "truncations": int(np.count_nonzero(dataset.truncations.numpy(force=True))),
        "episodes": None,
        "fingerprint": dataset.fingerprint(),
        "notes": list(dataset.notes),
    }
    if dataset.has_episodes:
        lengths = np.diff(dataset.episode_bounds().numpy(force=True))[:, 0]
        about |= {"episodes": len(lengths), "lengths": _spread(lengths)}
        if dataset.has_rewards:
            about["returns"] = _spread(dataset.episode_returns().numpy(force=True))
    return about


def _columns(dataset: TransitionDataset) -> dict[str, Any]:
    beside = {name: value for name in BESIDE if (value := getattr(dataset, name)) is not None}
    absent = () if dataset.has_rewards else ("rewards", "tail_rewards")
    return {name: value for name, value in {**dataset.fields, **beside}.items() if name not in absent}


def _field(values: NDArray[Any]) -> dict[str, Any]:
    """Shape, type and range of a field; the bounds of each column where there are several."""
    # fmin and fmax pass over NaN, which means that there is no value.
    low = np.fmin.reduce([np.fmin.reduce(values[part]) for part in chunks(len(values))])
    high = np.fmax.reduce([np.fmax.reduce(values[part]) for part in chunks(len(values))])
    return {"shape": list(values.shape), "dtype": str(values.dtype), "low": low.tolist(), "high": high.tolist()}


def _spread(values: NDArray[Any]) -> dict[str, Any]:
    """Mean, standard deviation, quartiles, and a histogram."""
    counts, edges = histogram(values.astype(np.float64), BINS)
    names = ("min", "quarter", "median", "three_quarters", "max")
    return {
        "mean": float(values.mean(dtype=np.float64)),
        "std": float(values.std(dtype=np.float64)),
        **dict(zip(names, map(float, np.quantile(values, (0, 0.25, 0.5, 0.75, 1))), strict=True)),
        "histogram": {"edges": edges, "counts": counts},
    }


def first_rows(dataset: TransitionDataset, count: int) -> list[dict[str, Any]]:
    """The first rows, each with its fields and how it ended, as plain values."""
    names = [name for name in ("obs", "actions", "rewards", "next_obs") if name in dataset.fields]
    rest = [name for name in dataset.fields if name not in (*names, "dones", "next_actions")]
    rows = []
    for number in range(min(count, len(dataset))):
        ends = {"terminated": bool(dataset.dones[number]), "truncated": bool(dataset.truncations[number])}
        fields = {name: dataset.fields[name][number].tolist() for name in (*names, *rest)}
        rows.append({"row": number, **fields, **ends})
    return rows


MOST_EPISODES = 1000

MOST_STEPS = 1000
"""Episodes, and steps of each, that are looked at: data may be larger than memory."""


@dataclass(frozen=True)
class StepTimes:
    """Times between neighbouring rows of an episode, in the unit of the timestamps, which nothing says."""

    median: float
    low: float
    """5 % of the steps are shorter."""
    high: float
    """5 % of the steps are longer."""


def step_times(dataset: TransitionDataset) -> StepTimes | None:
    """The durations of steps by the timestamps of a log; None where it has none, or no two rows of one episode."""
    if "timestamps" not in dataset.fields or not dataset.has_episodes:
        return None
    times, bounds = dataset.fields["timestamps"], dataset.episode_bounds().tolist()
    some = np.unique(np.linspace(0, len(bounds) - 1, MOST_EPISODES).round().astype(int))
    parts = [times[start : min(stop, start + MOST_STEPS + 1)] for start, stop in (bounds[place] for place in some)]
    steps = np.concatenate([np.diff(part.double().numpy(force=True)) for part in parts])
    if not len(steps) or not np.isfinite(steps).all():
        return None
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95])
    return StepTimes(float(median), float(low), float(high))
