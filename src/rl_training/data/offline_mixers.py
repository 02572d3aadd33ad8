"""Several datasets as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay.sources import MixedSource, Ratio, make_source
from rl_training.data.tables.columns import ColumnsConfig

__all__ = ["MixedSource", "Ratio", "concatenate_datasets", "make_source", "mix_transition_datasets"]


def mix_transition_datasets(
    datasets: Sequence[TransitionDataset], ratios: Sequence[float], *, size: int | None = None, seed: int = 0
) -> TransitionDataset:
    """One dataset with rows of several in exact proportions, by largest remainder, deterministic by seed.

    Without a size, it is the largest in which no row stands twice. With one, a part that is too short gives each of
    its rows equally often before any stands once more.
    """
    if not datasets or len(datasets) != len(ratios):
        counts = f"{len(datasets)} datasets and {len(ratios)} ratios"
        raise DatasetError(f"a mixture needs one ratio per dataset, got {counts}")
    if not all(0 <= ratio < math.inf for ratio in ratios) or sum(ratios) == 0:
        raise DatasetError(f"ratios must be finite, >= 0 and not all 0, got {list(ratios)}")
    _check_dimensions(datasets)
    shares = [ratio / sum(ratios) for ratio in ratios]
    if size is None:
        size = int(min(len(part) / share for part, share in zip(datasets, shares, strict=True) if share > 0) + 1e-9)
    if size < 1:
        raise DatasetError(f"size must be >= 1, got {size}")
    counted = zip(datasets, largest_remainder(shares, size), strict=True)
    generator = torch.Generator().manual_seed(seed)
    mixed = concatenate_datasets([part.take(_draw(len(part), count, generator)) for part, count in counted if count])
    return replace(mixed.take(torch.randperm(len(mixed), generator=generator)), seed=seed)


def concatenate_datasets(datasets: Sequence[TransitionDataset]) -> TransitionDataset:
    """All rows of several datasets, one after the other; a field that one of them lacks is left out, with a note."""
    _check_dimensions(datasets)
    first = datasets[0]
    shared = [name for name in first.fields if all(name in part.fields for part in datasets)]
    lost = sorted({name for part in datasets for name in part.fields} - set(shared))
    notes = [note for part in datasets for note in part.notes]
    notes += [f"left out {name}: not every part of the mixture has it" for name in lost]
    tails = [part.tail_rewards for part in datasets]
    if any(tail is not None for tail in tails):
        blank = [torch.full_like(part.rewards, torch.nan) for part in datasets]
        tails = [none if tail is None else tail for tail, none in zip(tails, blank, strict=True)]
    return TransitionDataset(
        fields={name: torch.cat([part.fields[name] for part in datasets]) for name in shared},
        truncations=torch.cat([part.truncations for part in datasets]),
        next_action_mask=_joined([part.next_action_mask for part in datasets]),
        tail_rewards=_joined(tails),
        is_ordered=all(part.is_ordered for part in datasets),
        raw_returns=_joined([part.raw_returns for part in datasets]),
        num_choices=max(part.num_choices or 0 for part in datasets) or None,
        num_dropped=sum(part.num_dropped for part in datasets),
        has_rewards=first.has_rewards,
        reward_transforms=first.reward_transforms,
        columns=_shared_columns(datasets),
        notes=tuple(dict.fromkeys(notes)),
        seed=first.seed,
    )


def _shared_columns(datasets: Sequence[TransitionDataset]) -> ColumnsConfig | None:
    """The shared roles of the tables' columns; tables in which they mean different things cannot be mixed."""
    found = [(number, part.columns) for number, part in enumerate(datasets) if part.columns is not None]
    for number, columns in found[1:]:
        for name in ("obs", "actions", "choices", "one_hot"):
            if getattr(columns, name) != getattr(found[0][1], name):
                wrong = f"datasets {found[0][0]} and {number} cannot be mixed: their tables have other {name}"
                raise DatasetError(f"{wrong}; write them out in dataset_columns, equal in both")
    return found[0][1] if found else None


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors one after the other; None if one is missing."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if len(found) == len(parts) else None


def largest_remainder(shares: Sequence[float], size: int) -> list[int]:
    """Whole numbers that add up to size, each share times size rounded down or up."""
    exact = [share * size for share in shares]
    counts = [int(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda k: (counts[k] - exact[k], k))
    for k in by_remainder[: size - sum(counts)]:
        counts[k] += 1
    return counts


def _check_dimensions(datasets: Sequence[TransitionDataset]) -> None:
    first = datasets[0]
    for number, part in enumerate(datasets):
        if part.is_discrete != first.is_discrete:
            raise DatasetError(f"datasets 0 and {number} cannot be mixed: only one of them has discrete actions")
        if part.has_rewards != first.has_rewards:
            raise DatasetError(f"datasets 0 and {number} cannot be mixed: only one of them has rewards")
        if ("valid_actions" in part.fields) != ("valid_actions" in first.fields):
            hint = "add masks of ones where every action was valid, or leave valid_actions out of both"
            raise DatasetError(f"datasets 0 and {number} cannot be mixed: only one of them has valid_actions; {hint}")
        if "valid_actions" in first.fields and part.valid_actions.shape[1] != first.valid_actions.shape[1]:
            widths = f"{first.valid_actions.shape[1]} and {part.valid_actions.shape[1]}"
            raise DatasetError(f"datasets 0 and {number} cannot be mixed: valid_actions have {widths} columns")
        for name in ("obs_dim", "action_dim"):
            if getattr(part, name) != getattr(first, name):
                sizes = f"{getattr(first, name)} and {getattr(part, name)}"
                raise DatasetError(f"datasets 0 and {number} cannot be mixed: {name} is {sizes}")


def _draw(rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Row numbers without repetition as far as the rows go, all rows equally often beyond that."""
    rounds = [torch.randperm(rows, generator=generator) for _ in range(-(-count // rows))]
    return torch.cat(rounds)[:count]
