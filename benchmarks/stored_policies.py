"""Policies from plain arrays: those of the folder `policies` of the real datasets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Act = Callable[[Array], Array]
DATA = Path(os.environ.get("RL_TRAINING_DATA", Path(__file__).parents[2] / "shared" / "data"))


def read_policy(path: Path, *, bound: float) -> Act:
    """A policy: layers, with observations normalised before and actions squashed or clipped to `bound` after."""
    with np.load(path) as file:
        arrays = dict(file)
    depth = sum(name[0] == "W" and name[1:].isdecimal() for name in arrays)

    def act(obs: Array) -> Array:
        rows = np.asarray(obs, dtype=np.float64)
        if "obs_mean" in arrays:
            scaled = (rows - arrays["obs_mean"]) / np.sqrt(arrays["obs_var"] + arrays["eps"])
            rows = np.clip(scaled, -arrays["clip_obs"], arrays["clip_obs"])
        for layer in range(depth):
            rows = rows @ arrays[f"W{layer}"].T + arrays[f"b{layer}"]
            if layer < depth - 1:
                rows = np.maximum(rows, 0) if str(arrays["activation"]) == "relu" else np.tanh(rows)
        if "clip_mean" in arrays:
            rows = np.clip(rows, -arrays["clip_mean"], arrays["clip_mean"])
        actions: Array = bound * np.tanh(rows) if arrays["squash_tanh"] else np.clip(rows, -bound, bound)
        return actions

    return act
