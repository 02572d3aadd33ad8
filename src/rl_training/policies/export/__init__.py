"""Policies as folders that run without this package."""

from __future__ import annotations

from rl_training.policies.export.bundle import Export, export_policy
from rl_training.policies.export.graph import require_onnx

__all__ = ["Export", "export_policy", "require_onnx"]
