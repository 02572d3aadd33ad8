"""Faster gradients with the same numbers."""

from __future__ import annotations

from rl_training.compilation.graphs import (
    CompiledGradient,
    CompileOption,
    can_compile,
    check_precision,
    compiled_from,
    find_compiler,
    has_bfloat16,
    missing_for_compiling,
)

__all__ = [
    "CompileOption", "CompiledGradient", "can_compile", "check_precision", "compiled_from", "find_compiler",
    "has_bfloat16", "missing_for_compiling",
]  # fmt: skip
