"""Several datasets as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.sources import MixedSource, Ratio, make_source
from rl_training.types import DatasetError

__all__ = ["MixedSource", "Ratio", "concatenate_datasets", "largest_remainder", "make_source",
           "mix_transition_datasets"]  # fmt: skip


def mix_transition_datasets(
    datasets: Sequence[TransitionDataset], ratios: Sequence[float], *, size: int | None = None, seed: int = 0
) -> TransitionDataset:
    """One dataset with rows of several in exact proportions, by largest remainder, deterministic by seed.

    Without a size, it is the largest in which no row stands twice. With one, a part that is too short gives each of
    its rows equally often before any stands once more.
    """
    shares = _shares(datasets, ratios)
    if size is None:
        size = int(min(len(part) / share for part, share in zip(datasets, shares, strict=True) if share > 0) + 1e-9)
    if size < 1:
        raise DatasetError(f"size must be >= 1, got {size}")
    counts = largest_remainder(shares, size)
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        part.take(_draw(len(part), count, generator)) for part, count in zip(datasets, counts, strict=True) if count
    ]
    mixed = concatenate_datasets(drawn)
    return replace(mixed.take(torch.randperm(len(mixed), generator=generator)), seed=seed)


def concatenate_datasets(datasets: Sequence[TransitionDataset]) -> TransitionDataset:
    """All rows of several datasets, one after the other; a field that one of them lacks is left out, with a note."""
    _check_dimensions(datasets)
    first = datasets[0]
    shared = [name for name in first.fields if all(name in part.fields for part in datasets)]
    lost = sorted({name for part in datasets for name in part.fields} - set(shared))
    notes = dict.fromkeys(note for part in datasets for note in part.notes)
    for name in lost:
        notes[f"left out {name}: not every part of the mixture has it"] = None
    known = all(part.raw_returns is not None for part in datasets)
    masks = [part.next_action_mask for part in datasets]
    tails = [part.tail_rewards for part in datasets]
    return TransitionDataset(
        fields={name: torch.cat([part.fields[name] for part in datasets]) for name in shared},
        truncations=torch.cat([part.truncations for part in datasets]),
        next_action_mask=torch.cat([mask for mask in masks if mask is not None]) if None not in masks else None,
        tail_rewards=_join_tails(datasets) if any(tail is not None for tail in tails) else None,
        is_ordered=all(part.is_ordered for part in datasets),
        raw_returns=torch.cat([part.raw_returns for part in datasets if part.raw_returns is not None])
        if known
        else None,
        num_dropped=sum(part.num_dropped for part in datasets),
        reward_transforms=first.reward_transforms,
        notes=tuple(notes),
        seed=first.seed,
    )


def largest_remainder(shares: Sequence[float], size: int) -> list[int]:
    """Whole numbers that add up to size, each share times size rounded down or up."""
    exact = [share * size for share in shares]
    counts = [int(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda k: (counts[k] - exact[k], k))
    for k in by_remainder[: size - sum(counts)]:
        counts[k] += 1
    return counts


def _shares(datasets: Sequence[TransitionDataset], ratios: Sequence[float]) -> list[float]:
    if not datasets or len(datasets) != len(ratios):
        raise DatasetError(
            f"a mixture needs one ratio per dataset, got {len(datasets)} datasets and {len(ratios)} ratios"
        )
    if not all(0 <= ratio < math.inf for ratio in ratios) or sum(ratios) == 0:
        raise DatasetError(f"ratios must be finite, >= 0 and not all 0, got {list(ratios)}")
    _check_dimensions(datasets)
    return [ratio / sum(ratios) for ratio in ratios]


def _check_dimensions(datasets: Sequence[TransitionDataset]) -> None:
    first = datasets[0]
    for number, part in enumerate(datasets):
        if part.is_discrete != first.is_discrete:
            raise DatasetError(f"datasets 0 and {number} cannot be mixed: only one of them has discrete actions")
        for name in ("obs_dim", "action_dim"):
            if getattr(part, name) != getattr(first, name):
                sizes = f"{getattr(first, name)} and {getattr(part, name)}"
                raise DatasetError(f"datasets 0 and {number} cannot be mixed: {name} is {sizes}")


def _draw(rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Row numbers without repetition as far as the rows go, all rows equally often beyond that."""
    rounds = [torch.randperm(rows, generator=generator) for _ in range(-(-count // rows))]
    return torch.cat(rounds)[:count]


def _join_tails(datasets: Sequence[TransitionDataset]) -> Tensor:
    tails = [part.tail_rewards for part in datasets]
    blank = [torch.full_like(part.fields["rewards"], torch.nan) for part in datasets]
    return torch.cat([none if tail is None else tail for tail, none in zip(tails, blank, strict=True)])
