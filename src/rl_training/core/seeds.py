"""Seeds, and the state of random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl_training.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


MOST_DIGITS = 20
"""Digits of a number in an option; more than any seed has."""

MOST_SEEDS = 10_000
"""Seeds of one sweep."""


def parse_seeds(text: str, *, name: str = "--seeds") -> list[int]:
    """Seeds from '0-4', '0,3,7' or a mixture of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise ConfigError(f"{name} expects numbers and ranges such as 0-4 or 0,3,7, got {text!r}")
        if int(last or first) - int(first) >= MOST_SEEDS:
            raise ConfigError(f"{name} {text!r} names more than {MOST_SEEDS} seeds")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise ConfigError(f"{name} {text!r} names no seed: a range goes from the smaller to the larger")
    return seeds


def is_number(text: str) -> bool:
    """Whether a text is a whole number in plain digits; Unicode has others, such as superscripts."""
    return text.isascii() and text.isdigit() and len(text) < MOST_DIGITS


@contextmanager
def forked(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed the generators of a device; after the block they are as they were before.

    `torch.manual_seed` seeds every device, and `torch.random.fork_rng` restores only those it is told of. Here the
    processor's generator and the device's own are seeded and restored, and no other is touched.
    """
    import torch

    generators = default_generators(torch.device(device))
    states = [each.get_state() for each in generators]
    try:
        for each in generators:
            each.manual_seed(seed)
        yield
    finally:
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


def default_generators(device: torch.device) -> list[torch.Generator]:
    """The generators that operations draw from when none is named: the processor's, and the device's own."""
    import torch

    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    return generators
