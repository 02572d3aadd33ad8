"""REDQ once more, straight from the formulas: separate networks, loops, and one optimiser for each."""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, actor_layers, copy_layers, critic_layers, peer_layers
from torch import Tensor, nn

from rl_training.core.batches import Batch

WIDTH = 16


@dataclass
class Draws:
    """The random numbers of one implementation, in order, for the other to use."""

    noise: deque[Tensor] = field(default_factory=deque)
    subsets: deque[list[int]] = field(default_factory=deque)
    masks: deque[Tensor] = field(default_factory=deque)

    def record(self, patch: pytest.MonkeyPatch) -> None:
        """Keep whatever is drawn from here on."""
        normal, permutation = torch.randn_like, torch.randperm

        def randn_like(like: Tensor) -> Tensor:
            self.noise.append(normal(like))
            return self.noise[-1]

        def randperm(count: int, **options: Any) -> Tensor:
            drawn = permutation(count, **options)
            self.subsets.append(drawn.tolist())
            return drawn

        def dropout(rows: Tensor, share: float) -> Tensor:
            self.masks.append((torch.rand_like(rows) >= share) / (1 - share))
            return rows * self.masks[-1]

        patch.setattr(torch, "randn_like", randn_like)
        patch.setattr(torch, "randperm", randperm)
        patch.setattr(torch.nn.functional, "dropout", dropout)

    def assert_used_up(self) -> None:
        """Nothing was drawn that the other implementation did not want."""
        assert (len(self.noise), len(self.subsets), len(self.masks)) == (0, 0, 0)


class NaiveCritic(nn.Module):
    """Linear, Dropout, LayerNorm, ReLU, twice, and a linear head."""

    def __init__(self, layer_norm: bool, dropout: bool) -> None:
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(OBS_DIM + ACTION_DIM, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.head = nn.Linear(WIDTH, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if layer_norm else nn.Identity() for _ in range(2))
        self.dropout = dropout

    def forward(self, obs: Tensor, actions: Tensor, masks: deque[Tensor]) -> Tensor:
        rows = torch.cat([obs, actions], dim=1)
        for linear, norm in zip(self.linear, self.norms, strict=True):
            rows = linear(rows)
            if self.dropout:
                rows = rows * masks.popleft()
            rows = torch.relu(norm(rows))
        values: Tensor = self.head(rows)[:, 0]
        return values


class NaiveREDQ:
    """REDQ, DroQ or RLPD with the weights and options of one of ours."""

    def __init__(self, ours: Any) -> None:
        hyper = self.hyper = ours.hyper
        self.actor = nn.Sequential(
            nn.Linear(OBS_DIM, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2 * ACTION_DIM)
        ).double()
        copy_layers(peer_layers(self.actor), actor_layers(ours.model.actor))
        self.critics = [self._critic(ours, member) for member in range(hyper.num_critics)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = ours.model.temperature.log_value.detach().clone().requires_grad_()
        self.backup_entropy = getattr(hyper, "backup_entropy", True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=hyper.learning_rate)
        self.critic_adams = [torch.optim.Adam(critic.parameters(), lr=hyper.learning_rate) for critic in self.critics]
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=hyper.learning_rate)
        self.updates = 0

    def _critic(self, ours: Any, member: int) -> NaiveCritic:
        critic = NaiveCritic(self.hyper.critic_layer_norm, self.hyper.critic_dropout > 0).double()
        copy_layers(peer_layers(critic), critic_layers(ours.model.critic, member))
        return critic

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-density: that of the Gaussian less the logarithm of the slope of tanh."""
        output = self.actor(obs)
        mean, std = output[:, :ACTION_DIM], output[:, ACTION_DIM:].clamp(-20, 2).exp()
        raw = mean + std * noise
        gaussian = torch.exp(-(((raw - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
        return torch.tanh(raw), torch.log(gaussian / (1 - torch.tanh(raw) ** 2)).sum(1)

    def update(self, batch: Batch, draws: Draws) -> dict[str, float]:
        """One update; returns its losses."""
        self.updates += 1
        losses = {"critic_loss": self._update_critics(batch, draws)}
        if self.updates % self.hyper.policy_delay == 0:
            losses["actor_loss"] = self._update_actor(batch, draws)
        return losses

    def _update_critics(self, batch: Batch, draws: Draws) -> float:
        hyper, obs, next_obs = self.hyper, batch["obs"], batch["next_obs"]
        predictions = [critic(obs, batch["actions"], draws.masks) for critic in self.critics]
        with torch.no_grad():
            next_actions, log_probs = self.sample(next_obs, draws.noise.popleft())
            chosen = list(range(hyper.num_critics))
            if hyper.num_target_critics < hyper.num_critics:
                chosen = draws.subsets.popleft()[: int(hyper.num_target_critics)]
            values = [self.targets[member](next_obs, next_actions, draws.masks) for member in chosen]
            smallest = torch.stack([torch.stack(row).min() for row in zip(*values, strict=True)])
            entropy = self.log_alpha.exp() * log_probs if self.backup_entropy else 0.0
            goal = batch["rewards"] + hyper.gamma * (1 - batch["dones"]) * (smallest - entropy)
        total = 0.0
        for critic, target, adam, prediction in zip(
            self.critics, self.targets, self.critic_adams, predictions, strict=True
        ):
            loss = ((prediction - goal) ** 2).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach())
            for lagged, parameter in zip(target.parameters(), critic.parameters(), strict=True):
                lagged.data = (1 - hyper.tau) * lagged.data + hyper.tau * parameter.data
        return total

    def _update_actor(self, batch: Batch, draws: Draws) -> float:
        actions, log_probs = self.sample(batch["obs"], draws.noise.popleft())
        values = [critic(batch["obs"], actions, draws.masks) for critic in self.critics]
        loss = (self.log_alpha.exp().detach() * log_probs - sum(values) / len(values)).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        if self.hyper.alpha == "auto":
            target = self.hyper.target_entropy if self.hyper.target_entropy is not None else -ACTION_DIM / 2
            self.alpha_adam.zero_grad()
            (-self.log_alpha * (log_probs.detach() + target).mean()).backward()
            self.alpha_adam.step()
        return float(loss.detach())


def assert_equal_over_updates(ours: Any, batches: list[Batch], patch: pytest.MonkeyPatch) -> None:
    """The same weights, lagged weights, temperature and losses after every update, to eight digits."""
    naive, draws = NaiveREDQ(ours), Draws()
    draws.record(patch)
    for batch in batches:
        metrics = ours.update(batch).metrics
        for name, loss in naive.update(batch, draws).items():
            assert float(metrics[name]) == pytest.approx(loss, rel=1e-8)
        draws.assert_used_up()
    _assert_layers_close(actor_layers(ours.model.actor), peer_layers(naive.actor))
    for critic, naive_critics in ((ours.model.critic, naive.critics), (ours.target.critic, naive.targets)):
        for member, naive_critic in enumerate(naive_critics):
            _assert_layers_close(critic_layers(critic, member), peer_layers(naive_critic))
            norms = [(norm.weight[member], norm.bias[member]) for norm in critic.mlp.norms]
            _assert_layers_close(norms, _norms(naive_critic))
    torch.testing.assert_close(ours.model.temperature.log_value, naive.log_alpha, rtol=1e-8, atol=1e-12)


def _norms(critic: NaiveCritic) -> list[tuple[Tensor, Tensor]]:
    return [(norm.weight, norm.bias) for norm in critic.norms if isinstance(norm, nn.LayerNorm)]


def _assert_layers_close(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for value, expected in zip(mine, other, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-12)
