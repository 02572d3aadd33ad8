"""Loops of our own in compiled graphs, and where they are used."""

from __future__ import annotations

from rl_training.compilation.kernels.passes import are_faster, compiler_options, decompositions

__all__ = ["are_faster", "compiler_options", "decompositions"]
