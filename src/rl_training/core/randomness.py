"""Random numbers for what must not disturb training: evaluation, diagnostics, prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def forked(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed what computing on a device draws from; after the block it is as it was before.

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
