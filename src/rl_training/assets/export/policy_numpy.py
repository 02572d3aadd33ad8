"""The policy of this folder with numpy alone.

policy = Policy("policy_numpy.npz")
action = policy(obs)  # obs: (width,) or (batch, width), in the units of the environment; so is the action

The file has the layers W0, b0, W1, b1, ... with the activation between them, and what is done before and after.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def _exp_of_negative(x: Any) -> Any:
    return np.expm1(np.minimum(x, 0))


ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, _exp_of_negative(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * _exp_of_negative(x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
    "silu": lambda x: x * np.exp(-_softplus(-x)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "tanh": np.tanh,
}


class Policy:
    """The deterministic action for observations, computed in float32 as in training."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
        count = sum(name.startswith("W") for name in arrays)
        self.layers = [(arrays[f"W{k}"], arrays[f"b{k}"]) for k in range(count)]
        self.activation = ACTIVATIONS[str(arrays["activation"])]
        self.head = str(arrays["head"])
        self.obs_mean, self.obs_std = arrays["obs_mean"], arrays["obs_std"]
        self.low: Any = arrays.get("low")
        self.high: Any = arrays.get("high")
        self.start: Any = arrays.get("start")
        self.masked = int(arrays.get("masked", 0))
        self.codebook: Any = arrays.get("codebook")
        self.novelty_mean: Any = arrays.get("novelty_mean")
        self.novelty_std: Any = arrays.get("novelty_std")
        self.distance: Any = arrays.get("distance")

    def __call__(self, obs: Any) -> Any:
        """The action for one observation or a batch: numbers within their bounds, or the index of a discrete action."""
        rows = (np.asarray(obs, dtype=np.float32) - self.obs_mean) / self.obs_std
        # Observations may begin with the action mask: 1 for each valid action.
        mask, rows = rows[..., : self.masked], rows[..., self.masked :]
        for number, (weight, bias) in enumerate(self.layers):
            rows = rows @ weight.T + bias
            if number < len(self.layers) - 1:
                rows = self.activation(rows).astype(np.float32)
        if self.head == "argmax":
            return (np.where(mask == 0, -np.inf, rows) if self.masked else rows).argmax(-1) + self.start
        unit = np.tanh(rows) if self.head == "tanh" else np.clip(rows, -1, 1)
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.clip(centre + half * unit, self.low, self.high).astype(np.float32)

    def novelty(self, obs: Any) -> Any:
        """The novelty of observations and the actions for them: above 1 is unfamiliar."""
        action = self(obs)
        states = (np.asarray(obs, dtype=np.float32) - self.novelty_mean) / self.novelty_std
        if self.head == "argmax":
            count = self.codebook.shape[1] - states.shape[-1]
            action = ((action - self.start)[..., None] == np.arange(count)).astype(np.float32)
        else:
            action = 2 * (action - self.low) / (self.high - self.low) - 1
        rows = np.concatenate([states, action], axis=-1)
        nearest = (np.square(self.codebook).sum(-1) - 2 * rows @ self.codebook.T).argmin(-1)
        return np.sqrt(np.square(rows - self.codebook[nearest]).mean(-1)) / self.distance
