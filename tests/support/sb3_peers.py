"""Models of Stable-Baselines3 and of packages built on it, with our weights, trained by their own code on our batches.

A comparison first calls `in_float64` and, where actions are sampled, `feed_noise` before each update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from peers import ACTION_DIM, OBS_DIM
from torch import Tensor

from rl_training.core.batches import Batch

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="needs the extra 'peers'")


class SpacesOnly(gymnasium.Env[Any, Any]):
    """What a model needs to know of an environment that it never steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_DIM,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_DIM,))


class GivenBatch:
    """In place of a replay buffer: every draw is the batch that was put here."""

    batch: Batch

    def sample(self, batch_size: int, env: object = None) -> Any:
        """The batch with one column per number, as their buffers have it."""
        columns = {name: value[:, None] if value.ndim == 1 else value for name, value in self.batch.items()}
        return stable_baselines3.common.type_aliases.ReplayBufferSamples(
            observations=columns["obs"],
            actions=columns["actions"],
            next_observations=columns["next_obs"],
            dones=columns["dones"],
            rewards=columns["rewards"],
            discounts=columns.get("discounts"),
        )


def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make their networks, losses and learned numbers float64: from here on that is the default type.

    Observations, which they cast to float32, are passed on as they are.
    """
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(stable_baselines3.common.policies, "preprocess_obs", lambda obs, *_, **__: obs)


def make_peer(
    cls: Any, *, hidden_sizes: Sequence[int] = (16, 16), policy: dict[str, Any] | None = None, **settings: Any
) -> Any:
    """One of their models, ready to train; `policy` are the settings of its networks."""
    networks = {"net_arch": list(hidden_sizes), **(policy or {})}
    model = cls("MlpPolicy", SpacesOnly(), buffer_size=1, device="cpu", policy_kwargs=networks, **settings)
    model.set_logger(stable_baselines3.common.logger.Logger(folder=None, output_formats=[]))
    model.replay_buffer = GivenBatch()
    return model


def train_peer(model: Any, batch: Batch) -> dict[str, float]:
    """One update by their own `train`, and the losses it logs."""
    model.replay_buffer.batch = batch
    model.train(gradient_steps=1, batch_size=len(batch["rewards"]))
    return {name.removeprefix("train/"): float(value) for name, value in model.logger.name_to_value.items()}


def feed_noise(monkeypatch: pytest.MonkeyPatch, *, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Standard normal draws of the next update of either side, in the order in which each draws them."""
    our_draws, their_draws = iter(ours), iter(theirs)
    monkeypatch.setattr(torch, "randn_like", lambda like: next(our_draws))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: next(their_draws))


def use_their_log_prob(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give our policies their slope of the tanh, which has a small number added to it: ours is exact."""
    monkeypatch.setattr("rl_training.models.actors.log_tanh_slope", lambda raw: (1 - raw.tanh().square() + 1e-6).log())
