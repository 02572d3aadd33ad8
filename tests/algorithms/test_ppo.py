"""PPO against hand-computed numbers and Stable-Baselines3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from peers import OBS_DIM, actor_layers, assert_layers_equal, copy_layers, peer_layers
from torch import Tensor

from rl_training.acting.collecting import RewardScaler
from rl_training.algorithms import ALGORITHMS, ppo_loss
from rl_training.algorithms.ppo import policy_objective, standardize, value_objective
from rl_training.config import TrainConfig
from rl_training.core.batches import Batch
from rl_training.core.errors import ConfigError
from rl_training.core.rewards import generalized_advantages
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.runtime import open_session, read_options

SPACES = {
    "continuous": SpaceSpec.vector(OBS_DIM, BoxActions((-1.0,) * 3, (1.0,) * 3)),
    "discrete": SpaceSpec.vector(OBS_DIM, DiscreteActions(3)),
}


def _build(kind: str = "continuous", **hyper: Any) -> Any:
    cls = ALGORITHMS["ppo"]
    torch.manual_seed(0)
    return cls.build(SPACES[kind], cls.hyper_class(**{"hidden_sizes": (16, 16), **hyper}))


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "has_gradient"),
    [(1.5, 1.0, 1.2, False), (1.5, -1.0, -1.5, True), (0.5, 1.0, 0.5, True), (0.5, -1.0, -0.8, False)],
)
def test_the_surrogate_is_clipped_where_it_would_gain(
    ratio: float, advantage: float, objective: float, has_gradient: bool
) -> None:
    log_probs = torch.tensor([math.log(ratio)], requires_grad=True)
    metrics = policy_objective(
        log_probs=log_probs, old_log_probs=torch.zeros(1), advantages=torch.tensor([advantage]), clip_range=0.2
    )
    assert float(metrics["policy_gradient_loss"]) == pytest.approx(-objective)
    (gradient,) = torch.autograd.grad(metrics["policy_gradient_loss"], log_probs)
    assert bool(gradient != 0) is has_gradient
    assert float(metrics["clip_fraction"]) == 1


@pytest.mark.parametrize(("ratio", "divergence"), [(1.5, 0.0945349), (0.5, 0.1931472), (1.0, 0.0)])
def test_the_divergence_is_never_negative(ratio: float, divergence: float) -> None:
    log_probs = torch.tensor([math.log(ratio)])
    metrics = policy_objective(
        log_probs=log_probs, old_log_probs=torch.zeros(1), advantages=torch.ones(1), clip_range=0.2
    )
    assert float(metrics["approx_kl"]) == pytest.approx(divergence, abs=1e-6)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("none", [2.8109150, 1.9307975, 0.995]),
        ("terminated", [1.46525, 0.5, 0.995]),
        ("truncated", [2.210126, 1.292, 0.995]),
    ],
)
def test_advantages_end_with_the_episode_and_continue_where_it_was_cut(ends: str, expected: list[float]) -> None:
    rows: Batch = {"rewards": torch.ones(3), "dones": torch.zeros(3)}
    values, last, final = torch.full((3,), 0.5), torch.tensor([2]), torch.tensor([0.5])
    if ends != "none":
        last, final = torch.tensor([1, 2]), torch.tensor([0.8, 0.5])
        rows["dones"][1] = ends == "terminated"
    found = generalized_advantages(rows, last, values, final, gamma=0.99, td_lambda=0.95)
    assert found["advantages"].tolist() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(found["lambda_returns"], found["advantages"] + values)


def test_the_clipped_error_is_the_larger_of_two() -> None:
    numbers = {"values": torch.tensor([2.0]), "old_values": torch.tensor([0.0]), "returns": torch.tensor([2.5])}
    plain, clipped = (value_objective(**numbers, value_clip=clip)["value_loss"] for clip in (None, 0.5))
    # Half of (2 - 2.5)^2, and of (0.5 - 2.5)^2.
    assert [float(plain), float(clipped)] == pytest.approx([0.125, 2.0])


def test_explained_variance_is_1_for_a_perfect_value_and_0_for_a_constant() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    for values, expected in ((returns, 1.0), (torch.zeros(3), 0.0), (-returns, -3.0)):
        found = value_objective(values=values, old_values=values, returns=returns, value_clip=None)
        assert float(found["explained_variance"]) == pytest.approx(expected)


def test_advantages_are_standardised_and_a_single_one_is_not() -> None:
    assert standardize(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert standardize(torch.tensor([5.0])).tolist() == [5.0]


def test_the_parts_of_the_objective_have_their_weights() -> None:
    one = torch.ones(2)
    metrics = ppo_loss(
        log_probs=torch.zeros(2),
        old_log_probs=torch.zeros(2),
        advantages=torch.tensor([1.0, 3.0]),
        values=3 * one,
        old_values=3 * one,
        returns=one,
        entropy=4 * one,
        value_weight=0.5,
        entropy_weight=0.1,
        normalize_advantage=False,
    )
    # -2 for the policy, 0.5 * 2 for the value, -0.4 for the entropy.
    assert float(metrics["ppo_loss"]) == pytest.approx(-2 + 1 - 0.4)


@pytest.mark.parametrize("kind", SPACES)
def test_the_ratio_is_exactly_1_before_the_first_update(kind: str) -> None:
    algorithm = _build(kind)
    with torch.no_grad():
        actions, extras = algorithm.model.explore(torch.randn(32, OBS_DIM))
    batch = {**extras, "actions": actions, "advantages": torch.randn(32), "lambda_returns": torch.randn(32)}
    metrics = algorithm.losses(batch)
    assert float(metrics["approx_kl"]) == 0
    assert float(metrics["clip_fraction"]) == 0
    assert float(metrics["policy_gradient_loss"]) == pytest.approx(0, abs=1e-6)


def test_actions_are_stored_as_drawn_and_clipped_for_the_environment(tmp_path: Any) -> None:
    config = TrainConfig(
        algo="ppo",
        env_id="Pendulum-v1",
        num_envs=4,
        output_dir=str(tmp_path),
        algo_kwargs={"rollout_steps": 64, "batch_size": 16, "normalize_obs": True, "normalize_rewards": True},
    )
    session = open_session(*read_options(config))
    assert session.collector is not None
    seen = []
    step = session.collector.stepper.envs.step  # type: ignore[attr-defined]  # of a local collector
    session.collector.stepper.envs.step = lambda actions: seen.append(actions) or step(actions)  # type: ignore
    for _ in range(16):
        session.collect()
    rows = session.collector.buffer.rows_from(0)
    sent = np.concatenate(seen)
    assert float(rows["actions"].abs().max()) > 1
    assert np.abs(sent).max() <= 2
    np.testing.assert_array_equal(sent, 2 * rows["actions"].clamp(-1, 1).numpy())
    # Observations as the networks saw them, by statistics that have moved since.
    assert not torch.equal(rows["inputs"], session.algorithm.normalize(rows["obs"]))
    metrics = session.algorithm.losses(session.source.sample(16))
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-9)
    assert float(metrics["clip_fraction"]) == 0
    session.resources.close()


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    scaler, returns, history = RewardScaler(2, gamma=0.9), np.zeros(2), []
    rng = np.random.default_rng(0)
    valid = np.ones(2, dtype=bool)
    for number in range(50):
        rewards, ends = rng.normal(3, 2, size=2), np.array([number % 7 == 6, False])
        scaled = scaler.scale(rewards, ends, valid)
        returns = 0.9 * returns + rewards
        history += list(returns)
        np.testing.assert_allclose(scaled, np.clip(rewards / np.sqrt(np.var(history) + 1e-8), -10, 10), rtol=1e-5)
        returns[ends] = 0


def test_scaled_rewards_are_those_that_a_transform_has_changed(tmp_path: Any) -> None:
    scaled = []
    for transform in ({}, {"reward_preset": "sign_clip"}):
        config = TrainConfig(
            algo="ppo",
            env_id="Pendulum-v1",
            output_dir=str(tmp_path),
            algo_kwargs={"rollout_steps": 8, "normalize_rewards": True, **transform},
        )
        session = open_session(*read_options(config))
        assert session.collector is not None
        for _ in range(8):
            session.collect()
        scaled.append(session.collector.buffer.rows_from(0)["scaled_rewards"])
        session.resources.close()
    assert not torch.equal(*scaled)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"update_to_data": 2}, "update_to_data has no effect on ppo, which learns from rollouts"),
        ({"mode": "offline", "dataset_kind": "random"}, "mode: offline does not go with ppo"),
        ({"clip_range": 0}, "clip_range must be > 0, got 0"),
        ({"exploration_schedule": "linear"}, "exploration_schedule has no effect on ppo"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_options({"algo": "ppo", "env_id": "CartPole-v1", "algo_kwargs": options})


class _Rollout:
    """In place of their buffer: minibatches that were put here, in order."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.values = self.returns = np.zeros(1)

    def get(self, batch_size: int) -> Iterator[Any]:
        from stable_baselines3.common.type_aliases import RolloutBufferSamples

        for batch in self.batches:
            actions = batch["actions"]
            yield RolloutBufferSamples(
                observations=batch["inputs"],
                actions=actions[:, None] if actions.ndim == 1 else actions,
                old_values=batch["values"],
                old_log_prob=batch["log_probs"],
                advantages=batch["advantages"],
                returns=batch["lambda_returns"],
            )


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from sb3_peers import in_float64

    in_float64(monkeypatch)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", SPACES)
def test_five_updates_on_equal_rollouts_equal_those_of_stable_baselines3(kind: str) -> None:
    from sb3_peers import stable_baselines3

    class Spaces(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-9.0, 9.0, (OBS_DIM,))
        action_space: Any = (
            gymnasium.spaces.Box(-1.0, 1.0, (3,)) if kind == "continuous" else gymnasium.spaces.Discrete(3)
        )

    # Their value's error is not halved, and has the weight 0.5.
    ours = _build(kind, learning_rate=1e-2, value_weight=1.0, entropy_weight=0.01, clip_range=0.1).double()
    theirs = stable_baselines3.PPO(
        "MlpPolicy", Spaces(), device="cpu", policy_kwargs={"net_arch": [16, 16]},
        learning_rate=1e-2, vf_coef=0.5, ent_coef=0.01, clip_range=0.1, n_epochs=1, batch_size=16, n_steps=32,
    )  # fmt: skip
    theirs.set_logger(stable_baselines3.common.logger.Logger(folder=None, output_formats=[]))
    policy = theirs.policy
    actor = [*peer_layers(policy.mlp_extractor.policy_net), *peer_layers(policy.action_net)]
    value = [*peer_layers(policy.mlp_extractor.value_net), *peer_layers(policy.value_net)]
    copy_layers(actor, actor_layers(ours.model.actor))
    copy_layers(value, actor_layers(ours.model.value))
    for number in range(5):
        rows, ends, final = _rows(ours, seed=number)
        annotated = rows | ours.annotate(rows, ends)
        _assert_equal_advantages(annotated, ends, final, policy)
        batches = [{name: field[start::2] for name, field in annotated.items()} for start in (0, 1)]
        theirs.rollout_buffer = _Rollout(batches)
        theirs.train()
        for batch in batches:
            ours.update(batch)
        assert_layers_equal(actor_layers(ours.model.actor), actor, 1e-10)
        assert_layers_equal(actor_layers(ours.model.value), value, 1e-10)
        if kind == "continuous":
            torch.testing.assert_close(ours.model.actor.log_std, policy.log_std, rtol=1e-10, atol=1e-14)


def _rows(algorithm: Any, seed: int) -> tuple[Batch, Tensor, Tensor]:
    """32 rows of one environment, an episode that terminates, one that is cut, and one that continues at the end."""
    torch.manual_seed(seed)
    obs = torch.randn(33, OBS_DIM)
    with torch.no_grad():
        actions, extras = algorithm.model.explore(obs[:-1])
    rows = {"obs": obs[:-1], "next_obs": obs[1:].clone(), "actions": actions, "rewards": torch.randn(32)}
    rows |= extras | {"dones": torch.zeros(32)}
    rows["dones"][9] = 1
    rows["next_obs"][20] = torch.randn(OBS_DIM)
    return rows, torch.tensor([9, 20, 31]), rows["next_obs"][[20, 31]]


def _assert_equal_advantages(rows: Batch, ends: Tensor, final: Tensor, policy: Any) -> None:
    """The same rows in their buffer, to whose rewards they add the value after a time limit."""
    from stable_baselines3.common.buffers import RolloutBuffer

    spaces = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(32, *spaces, device="cpu", gae_lambda=0.95, gamma=0.99)
    for name in ("rewards", "values", "episode_starts", "advantages"):
        setattr(buffer, name, np.zeros((32, 1)))
    with torch.no_grad():
        after_limit, after_last = policy.predict_values(final).flatten().tolist()
    buffer.rewards[:, 0] = rows["rewards"].numpy()
    buffer.rewards[20, 0] += 0.99 * after_limit
    buffer.values[:, 0] = rows["values"].numpy()
    buffer.episode_starts[[10, 21], 0] = 1
    buffer.compute_returns_and_advantage(torch.tensor([after_last]), np.zeros(1))
    np.testing.assert_allclose(rows["advantages"].numpy(), buffer.advantages[:, 0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(rows["lambda_returns"].numpy(), buffer.returns[:, 0], rtol=1e-10, atol=1e-12)
