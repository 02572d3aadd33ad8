"""ReBRAC's formulas on numbers that can be checked by hand, its networks, and where its next actions come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import transitions
from peers import ACTION_DIM, batches, build, shake
from torch import Tensor

from rl_training.algorithms.base.losses import bellman, smooth
from rl_training.algorithms.rebrac import ReBRACHyper, actor_objective, penalized_values
from rl_training.config import TrainConfig
from rl_training.core.batches import Batch
from rl_training.core.errors import DatasetError
from rl_training.runtime import Callback, TrainerState, train

ROWS = 8
MakeConfig = Callable[..., TrainConfig]


def _build(**hyper: Any) -> Any:
    return build("rebrac", **hyper)


def _batches(count: int, size: int = 32) -> list[Batch]:
    """Transitions with the actions that were logged next."""
    generator = torch.Generator().manual_seed(2)

    def next_actions() -> Tensor:
        return torch.randn(size, ACTION_DIM, generator=generator, dtype=torch.float64).tanh()

    return [{**batch, "next_actions": next_actions()} for batch in batches(count, size)]


@pytest.mark.parametrize(
    ("done", "critic_bc_weight", "expected"),
    [
        # 1 + 0.99 * (10 - 0.1 * (0.25 + 0)); a mean over dimensions would give 10.887625, a penalty outside of the
        # discount 10.875.
        (0.0, 0.1, 10.87525),
        (0.0, 0.0, 10.9),
        # After termination neither value nor penalty counts.
        (1.0, 0.1, 1.0),
        (1.0, 0.0, 1.0),
    ],
)
def test_target_with_a_penalty_on_the_next_action(done: float, critic_bc_weight: float, expected: float) -> None:
    next_q, penalty = penalized_values(
        next_q_values=torch.tensor([10.0], dtype=torch.float64),
        next_policy_actions=torch.tensor([[0.5, 0.3]], dtype=torch.float64),
        next_actions=torch.tensor([[0.0, 0.3]], dtype=torch.float64),
        critic_bc_weight=critic_bc_weight,
    )
    batch = {name: torch.tensor([value], dtype=torch.float64) for name, value in (("rewards", 1.0), ("dones", done))}
    assert float(bellman(batch, next_q, 0.99)) == pytest.approx(expected, rel=1e-12)
    assert float(penalty) == pytest.approx(0.25)


def _actor(q: list[float], distances: list[float], **options: Any) -> dict[str, float]:
    """The actor's objective where the policy is off by a half of each squared distance in both of two dimensions."""
    policy_actions = torch.tensor(distances, dtype=torch.float64).div(2).sqrt()[:, None].repeat(1, 2)
    metrics = actor_objective(
        policy_q_values=torch.tensor(q, dtype=torch.float64),
        policy_actions=policy_actions,
        actions=torch.zeros_like(policy_actions),
        **{"actor_bc_weight": 0.1, "actor_q_weight": 1.0, "normalize_q": True, **options},
    )
    return {name: float(value) for name, value in metrics.items()}


def test_actor_objective_on_two_rows() -> None:
    # lambda = 1 / 3, so the values' share is -1; 0.1 times the mean of 0.25 and 0.75, each summed over dimensions, is
    # 0.05.
    metrics = _actor([2.0, 4.0], [0.25, 0.75])
    assert metrics["actor_loss"] == pytest.approx(-0.95)
    assert metrics["q_lambda"] == pytest.approx(1 / 3)
    assert metrics["bc_mse_policy"] == pytest.approx(0.5)
    assert metrics["policy_q_min"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ([2.0, 4.0], -1.0),
        ([1e-3, 7.0, 0.5], -1.0),
        # Mean -1 over mean magnitude 2.
        ([1.0, -3.0], 0.5),
    ],
)
def test_without_cloning_the_loss_is_the_normalised_value(q: list[float], expected: float) -> None:
    assert _actor(q, [0.5] * len(q), actor_bc_weight=0.0)["actor_loss"] == pytest.approx(expected)


def test_without_normalisation_the_value_counts_as_it_is() -> None:
    # 0.05 - 3
    metrics = _actor([2.0, 4.0], [0.25, 0.75], normalize_q=False)
    assert metrics["actor_loss"] == pytest.approx(-2.95)
    assert metrics["q_lambda"] == 1.0


def test_the_values_weight_multiplies_the_value_only() -> None:
    # 0.05 - 0.5 * 1
    assert _actor([2.0, 4.0], [0.25, 0.75], actor_q_weight=0.5)["actor_loss"] == pytest.approx(-0.45)


@pytest.mark.parametrize("scale", [0.01, 7.0, 1e4])
def test_scaling_every_value_leaves_the_actor_loss_unchanged(scale: float) -> None:
    plain, scaled = (_actor([factor, -3 * factor, 2 * factor], [0.5, 0.0, 0.25]) for factor in (1.0, scale))
    assert scaled["actor_loss"] == pytest.approx(plain["actor_loss"])


def test_a_critic_of_zeros_gives_a_finite_loss() -> None:
    assert _actor([0.0, 0.0], [0.25, 0.75])["actor_loss"] == pytest.approx(0.05)


def test_the_normalisation_carries_no_gradient() -> None:
    # d loss / d q_i = -lambda / 2 with lambda = 1 / 2 held constant.
    q = torch.tensor([1.0, -3.0], requires_grad=True)
    loss = actor_objective(
        policy_q_values=q,
        policy_actions=torch.zeros(2, 1),
        actions=torch.zeros(2, 1),
        actor_bc_weight=0.1,
        actor_q_weight=1.0,
        normalize_q=True,
    )["actor_loss"]
    (gradient,) = torch.autograd.grad(loss, q)
    assert gradient.tolist() == pytest.approx([-0.25, -0.25])


@pytest.mark.parametrize(
    ("share", "actor", "critic"),
    [
        # Offline both weights are whole. Online the actor's is 0.01 * (1 - share), until a quarter is left.
        (0.0, 0.01, 0.7),
        (0.1, 0.009, 0.14),
        (0.5, 0.005, 0.14),
        (0.75, 0.0025, 0.14),
        (1.0, 0.0025, 0.14),
        (1.5, 0.0025, 0.14),
    ],
)
def test_online_the_weights_fall(share: float, actor: float, critic: float) -> None:
    (batch,) = _batches(1, ROWS)
    options = {"policy_noise": 0.0, "gamma": 0.5}
    online = _build(
        actor_bc_weight=0.01,
        critic_bc_weight=0.7,
        online_actor_bc_factor=0.25,
        online_critic_bc_factor=0.2,
        **options,
    )
    online.set_online_share(share)
    plain = _build(actor_bc_weight=actor, critic_bc_weight=critic, **options)
    plain.load_state_dict(online.state_dict())
    ours, theirs = online.losses(batch), plain.losses(batch)
    assert float(ours["actor_bc_weight"]) == pytest.approx(actor)
    for name in ("actor_loss", "critic_loss", "target_q_mean"):
        torch.testing.assert_close(ours[name], theirs[name])


def test_online_the_published_form_halves_the_actors_weight_and_drops_the_critics() -> None:
    hyper = ReBRACHyper()
    assert (hyper.online_actor_bc_factor, hyper.online_critic_bc_factor) == (0.5, 0.0)


def test_the_distance_of_random_actions_is_that_of_uniform_ones() -> None:
    # At actions of 0.5 the mean square is 1 / 3 + 1 / 4 in each of three dimensions.
    (batch,) = _batches(1, 4000)
    batch["actions"] = torch.full_like(batch["actions"], 0.5)
    assert float(_build().actor_loss(batch)["bc_mse_random"]) == pytest.approx(1.75, abs=0.08)


def test_a_batch_without_next_actions_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"needs 'next_actions' in a batch.*TransitionDataset\.requiring"):
        _build().update(batches(1)[0])


def test_a_run_derives_next_actions_and_says_how_many_rows_it_dropped(tiny_config: MakeConfig, tmp_path: Path) -> None:
    notes: list[str] = []

    class Reader(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            notes.extend(state.notes)

    # Three episodes, each cut by a time limit, of which one is held out: the last row of the other two has no next
    # action.
    result = train(_offline(tiny_config, transitions(60, episode=20), tmp_path), callbacks=[Reader()])
    assert "dropped 2 rows without a next action" in notes
    assert math.isfinite(result.metrics["critic_penalty"])


def test_a_run_on_rows_in_no_order_is_refused_with_what_to_do(tiny_config: MakeConfig, tmp_path: Path) -> None:
    # From the last row to the first, none is followed by the next of its episode.
    log = {name: array[::-1] for name, array in transitions(60).items() if name != "timeouts"}
    expected = "the data has no next_actions: the rows seem shuffled; give next_actions as a field"
    with pytest.raises(DatasetError, match=expected):
        train(_offline(tiny_config, log, tmp_path))


def _offline(make: MakeConfig, log: dict[str, Any], folder: Path) -> TrainConfig:
    """A run without an environment on rows from a file."""
    path = folder / "log.npz"
    np.savez(path, **log)
    data = ("algo_kwargs.dataset_kind=npz", f"algo_kwargs.dataset_path={path}", "algo_kwargs.dataset_size=null")
    return make("rebrac", "env_id=null", *data)


def test_the_critics_learn_the_penalised_value_of_the_lagged_networks() -> None:
    algorithm = _build(gamma=0.5, critic_bc_weight=0.7, policy_noise=0.3, noise_clip=0.4)
    (batch,) = _batches(1, ROWS)
    batch["dones"][::3] = 1.0
    shake(algorithm.model)
    torch.manual_seed(3)
    with torch.no_grad():
        actions = smooth(algorithm.target.actor(batch["next_obs"]), 0.3, 0.4)
        smaller = torch.minimum(*algorithm.target.critic(batch["next_obs"], actions))
        penalty = torch.stack([gap @ gap for gap in actions - batch["next_actions"]])
        targets = batch["rewards"] + 0.5 * (1 - batch["dones"]) * (smaller - 0.7 * penalty)
        expected = (algorithm.model.critic(batch["obs"], batch["actions"]) - targets).square().mean(1).sum()
    torch.manual_seed(3)
    metrics = algorithm.critic_loss(batch)
    torch.testing.assert_close(metrics["target_q_mean"], targets.mean())
    torch.testing.assert_close(metrics["critic_loss"].detach(), expected)
    torch.testing.assert_close(metrics["critic_penalty"], penalty.mean())
