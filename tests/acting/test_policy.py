"""A trained policy by itself."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.runtime import Policy, load_policy, train
from rl_training.storage import load_checkpoint, save_checkpoint

SPACES = SpaceSpec.vector(2, BoxActions((0.0, -3.0), (4.0, 1.0)))


def _algorithm(name: str = "td3_bc", **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    algorithm = cls.build(SPACES, cls.hyper_class(hidden_sizes=(8,), **hyper))
    algorithm.set_obs_statistics(torch.tensor([5.0, -5.0]), torch.tensor([2.0, 0.5]))
    return algorithm


@pytest.fixture
def obs() -> torch.Tensor:
    return torch.randn(6, 2, generator=torch.Generator().manual_seed(1)) * 3


def test_a_policy_goes_from_native_observations_to_native_actions(obs: torch.Tensor) -> None:
    algorithm = _algorithm()

    actions = Policy.of(algorithm, SPACES)(obs)

    normalised = (obs - torch.tensor([5.0, -5.0])) / torch.tensor([2.0, 0.5])
    inside = algorithm.model.actor(normalised).detach()
    # From [-1, 1] to [0, 4] and to [-3, 1]: times half the width, plus the middle.
    torch.testing.assert_close(actions, inside * 2 + torch.tensor([2.0, -1.0]))


@pytest.mark.parametrize(("bias", "expected"), [(-50.0, [0.0, -3.0]), (0.0, [2.0, -1.0]), (50.0, [4.0, 1.0])])
def test_the_ends_of_the_range_are_the_bounds(bias: float, expected: list[float]) -> None:
    algorithm = _algorithm()
    for parameter in algorithm.model.actor.parameters():
        parameter.data.zero_()
    algorithm.model.actor.mlp.layers[-1].bias.data.fill_(bias)

    assert Policy.of(algorithm, SPACES)(torch.zeros(1, 2))[0].tolist() == pytest.approx(expected)


def test_a_policy_is_a_copy_that_training_does_not_reach(obs: torch.Tensor) -> None:
    algorithm = _algorithm()
    policy = Policy.of(algorithm, SPACES)
    before = policy(obs)

    for parameter in algorithm.parameters():
        parameter.data += 1
    algorithm.set_obs_statistics(torch.zeros(2), torch.ones(2))

    torch.testing.assert_close(policy(obs), before, rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in policy.parameters())


def test_a_policy_can_be_saved_as_a_program_for_any_batch_size(obs: torch.Tensor) -> None:
    policy, file = Policy.of(_algorithm(), SPACES), io.BytesIO()

    torch.export.save(torch.export.export(policy, (obs,), dynamic_shapes=({0: torch.export.Dim("batch")},)), file)
    file.seek(0)
    program = torch.export.load(file).module()

    torch.testing.assert_close(program(obs[:3]), policy(obs[:3]))


def test_a_state_dict_is_all_that_a_policy_is(obs: torch.Tensor) -> None:
    policy = Policy.of(_algorithm(), SPACES)
    other = _algorithm("td3_bc")
    for parameter in other.parameters():
        parameter.data.zero_()
    other.set_obs_statistics(torch.zeros(2), torch.ones(2))
    again = Policy.of(other, SpaceSpec.vector(2, BoxActions((-1.0, -1.0), (1.0, 1.0))))
    assert not torch.equal(again(obs), policy(obs))

    again.load_state_dict(policy.state_dict())

    torch.testing.assert_close(again(obs), policy(obs), rtol=0, atol=0)


def test_a_stochastic_policy_samples_only_when_asked(obs: torch.Tensor) -> None:
    policy = Policy.of(_algorithm("bc", policy="stochastic"), SPACES)

    assert torch.equal(policy(obs), policy(obs))
    assert not torch.equal(policy.act(obs, deterministic=False), policy.act(obs, deterministic=False))
    low, high = torch.tensor((0.0, -3.0)), torch.tensor((4.0, 1.0))
    samples = torch.cat([policy.act(obs, deterministic=False) for _ in range(20)])
    assert bool(((samples >= low) & (samples <= high)).all())


@pytest.fixture
def checkpoint(tiny_config: Callable[..., TrainConfig]) -> Path:
    overrides = ("total_timesteps=2", "algo_kwargs.policy=stochastic", "algo_kwargs.best_fraction=null")
    return train(tiny_config("bc", *overrides)).checkpoint_path


def test_predicting_equals_the_policy(checkpoint: Path) -> None:
    saved = load_policy(checkpoint)
    batch = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)

    actions = saved.predict(batch)

    assert actions.dtype == np.float32
    np.testing.assert_array_equal(actions, saved.policy(torch.from_numpy(batch)).numpy())
    np.testing.assert_allclose(saved.predict(batch[0]), actions[0], rtol=1e-6)
    assert saved.predict(batch[0].tolist()).shape == (1,)
    assert saved.predict(np.zeros((0, 3))).shape == (0, 1)


def test_predicting_with_samples_repeats_itself_and_leaves_the_global_generator_alone(checkpoint: Path) -> None:
    saved, batch, before = load_policy(checkpoint), np.zeros((5, 3)), torch.get_rng_state()

    first, second = (saved.predict(batch, deterministic=False) for _ in range(2))

    np.testing.assert_array_equal(first, second)
    # Equal observations get different samples.
    assert len(np.unique(first)) > 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(2,), (4, 2), (1, 1, 3), ()])
def test_observations_of_the_wrong_shape_are_refused(checkpoint: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(checkpoint).predict(np.zeros(shape))

    assert str(caught.value) == f"obs must have shape (3,) or (batch, 3), got {shape}"


def test_a_policy_needs_its_hyper_parameters_alone(checkpoint: Path, tmp_path: Path) -> None:
    tree = load_checkpoint(checkpoint)
    tree["config"]["of_another_version"] = 1
    tree["config"]["algo_kwargs"] |= {"of_another_version": 1, "batch_size": "no number"}
    save_checkpoint(tmp_path / "other.pt", tree)

    actions = load_policy(tmp_path / "other.pt").predict(np.zeros((5, 3)))

    np.testing.assert_array_equal(actions, load_policy(checkpoint).predict(np.zeros((5, 3))))


def test_networks_that_do_not_fit_are_refused_with_the_file(checkpoint: Path, tmp_path: Path) -> None:
    tree = load_checkpoint(checkpoint)
    tree["config"]["algo_kwargs"]["hidden_sizes"] = [3]
    save_checkpoint(tmp_path / "other.pt", tree)

    with pytest.raises(CheckpointError, match=r"other\.pt does not fit the options of the networks: size mismatch"):
        load_policy(tmp_path / "other.pt")


def test_a_policy_is_loaded_without_optimisers_and_holds_its_weights_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an optimiser or a target network was made")

    monkeypatch.setattr(Algorithm, "_add_parts", refuse)
    saved = load_policy(checkpoint)
    parameters = dict(saved.policy.model.named_parameters())
    assert parameters
    for name, parameter in parameters.items():
        assert parameter.data_ptr() == saved.tree["algorithm"][f"model.{name}"].data_ptr()
        assert not parameter.requires_grad


def test_a_shared_policy_follows_its_algorithm(obs: torch.Tensor) -> None:
    algorithm = _algorithm()
    policy = Policy.sharing(algorithm, SPACES)
    before = policy(obs)
    for parameter in algorithm.parameters():
        parameter.data.mul_(2)
    algorithm.set_obs_statistics(torch.zeros(2), torch.ones(2))
    assert not torch.equal(policy(obs), before)
    torch.testing.assert_close(policy(obs), SPACES.action.decode(algorithm.act(obs)))


BOX = SpaceSpec.vector(2, BoxActions((0.0,), (4.0,)))
DISCRETE = SpaceSpec.vector(2, DiscreteActions(3, start=1))
OBS = torch.tensor([[0.3, -0.7]])


def policy(name: str, spaces: SpaceSpec, **hyper: Any) -> Policy:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    return Policy.of(cls.build(spaces, cls.hyper_class(hidden_sizes=(8,), **hyper)), spaces)


@pytest.mark.parametrize("name", ["sac", "bc"])
def test_densities_in_minus_one_to_one_are_those_of_drawn_actions(name: str) -> None:
    acting = policy(name, BOX, **({"policy": "stochastic"} if name == "bc" else {}))
    torch.manual_seed(0)
    drawn = acting.act(OBS.expand(40_000, 2), deterministic=False)[:, 0]

    edges = np.linspace(0.4, 3.6, 9)
    shares = np.histogram(drawn.numpy(), bins=edges)[0] / len(drawn)
    fine = np.linspace(0.4, 3.6, 801)
    log_probs = acting.log_probs(OBS.expand(len(fine), 2), torch.from_numpy(fine[:, None]).float())

    assert log_probs is not None
    # The action of 0 to 4 is twice as wide as that of -1 to 1, in which densities are.
    densities = log_probs.exp().numpy() / 2
    masses = ((densities[:-1] + densities[1:]) / 2 * np.diff(fine)).reshape(8, 100).sum(1)
    np.testing.assert_allclose(shares, masses, atol=4 * 0.5 / math.sqrt(len(drawn)))


def test_discrete_actions_of_a_softmax_policy_have_the_probabilities_with_which_they_are_drawn() -> None:
    acting = policy("bc", DISCRETE)
    torch.manual_seed(0)
    drawn = acting.act(OBS.expand(20_000, 2), deterministic=False)

    log_probs = acting.log_probs(OBS.expand(3, 2), torch.tensor([1, 2, 3]))

    assert log_probs is not None
    assert float(log_probs.exp().sum()) == pytest.approx(1)
    shares = torch.bincount(drawn, minlength=4)[1:] / len(drawn)
    torch.testing.assert_close(shares, log_probs.exp(), rtol=0, atol=0.015)


def test_a_greedy_policy_has_the_probabilities_0_and_1() -> None:
    acting = policy("dqn", DISCRETE)

    log_probs = acting.log_probs(OBS.expand(3, 2), torch.tensor([1, 2, 3]))

    assert log_probs is not None
    best = int(acting(OBS)[0])
    assert log_probs.tolist() == [0.0 if choice == best else -math.inf for choice in (1, 2, 3)]


@pytest.mark.parametrize("name", ["td3_bc", "bcq", "bear"])
def test_deterministic_policies_and_those_that_choose_among_candidates_have_no_density(name: str) -> None:
    assert policy(name, BOX).log_probs(OBS, torch.ones(1, 1)) is None


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_whether_its_policy_has_probabilities(name: str) -> None:
    spaces = BOX if "continuous" in ALGORITHMS[name].action_kinds else DISCRETE

    found = policy(name, spaces).log_probs(
        OBS, torch.ones(1, *spaces.action.column.shape).to(spaces.action.column.torch_dtype)
    )

    assert found is None or found.shape == (1,)
