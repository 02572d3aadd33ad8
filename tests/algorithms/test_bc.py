"""BC's formulas on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build

from rl_training.algorithms.bc import BC, bc_loss, discrete_bc_loss, stochastic_bc_loss
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import DiscreteActions, SpaceSpec
from rl_training.models import gaussian_log_prob
from rl_training.models.actors import LOG_STD_RANGE


def test_deterministic_loss_is_the_mean_over_rows_and_dimensions() -> None:
    # (0.5^2 + 0) / 2 rows; with a second, perfect dimension half of that.
    one = bc_loss(policy_actions=torch.tensor([[0.5], [0.0]]), actions=torch.zeros(2, 1))
    two = bc_loss(policy_actions=torch.tensor([[0.5, 0.0], [0.0, 0.0]]), actions=torch.zeros(2, 2))
    assert float(one["bc_loss"]) == pytest.approx(0.125)
    assert float(two["bc_loss"]) == pytest.approx(0.0625)


def test_stochastic_loss_is_the_negative_log_likelihood() -> None:
    # Deviation 1, error 0.5, one dimension: 0.5 * 0.25 + 0.5 * ln(2 pi) = 1.043939.
    log_probs = gaussian_log_prob(torch.tensor([[0.5]]), torch.zeros(1, 1), torch.zeros(1, 1))
    metrics = stochastic_bc_loss(log_probs=log_probs, log_stds=torch.zeros(1, 1))
    assert float(metrics["nll"]) == pytest.approx(1.043939, abs=1e-6)


def test_log_density_agrees_with_torch_and_sums_over_dimensions() -> None:
    mean, log_std, actions = torch.randn(3, 8, 4, dtype=torch.float64)
    normal: Any = torch.distributions.Normal(mean, log_std.exp())
    expected = normal.log_prob(actions).sum(-1)
    torch.testing.assert_close(gaussian_log_prob(actions, mean, log_std), expected)


def test_log_deviation_is_bounded() -> None:
    algorithm = build("bc", policy="stochastic")
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].bias.fill_(1e3)
        assert float(algorithm.model.actor(torch.zeros(1, 5, dtype=torch.float64))[1].max()) == LOG_STD_RANGE[1]
        algorithm.model.actor.mlp.layers[-1].bias.fill_(-1e3)
        assert float(algorithm.model.actor(torch.zeros(1, 5, dtype=torch.float64))[1].min()) == LOG_STD_RANGE[0]


def test_linear_data_is_fitted_in_a_few_hundred_updates() -> None:
    algorithm = build("bc", learning_rate=3e-3)
    for batch in batches(400, size=64):
        loss = algorithm.update({"obs": batch["obs"], "actions": 0.3 * batch["obs"][:, :3].clamp(-2, 2)}).metrics[
            "bc_loss"
        ]
    assert float(loss) < 1e-3


def test_stochastic_policy_learns_the_spread_of_the_data() -> None:
    # Actions around 0.2 with deviation 0.1: the best likelihood has that mean and that deviation.
    algorithm = build("bc", policy="stochastic", learning_rate=3e-3)
    generator = torch.Generator().manual_seed(0)
    obs = torch.zeros(256, 5, dtype=torch.float64)
    for _ in range(600):
        noise = torch.randn(256, 3, generator=generator, dtype=torch.float64)
        algorithm.update({"obs": obs, "actions": 0.2 + 0.1 * noise})
    mean, log_std = algorithm.model.actor(obs[:1])
    assert mean.detach().flatten().tolist() == pytest.approx([0.2] * 3, abs=0.02)
    assert log_std.detach().flatten().tolist() == pytest.approx([math.log(0.1)] * 3, abs=0.15)


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'stochastic'"):
        build("bc", policy="stochastick")


def test_the_likelihood_of_discrete_actions_has_the_numbers_worked_out_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])
    metrics = discrete_bc_loss(log_probs=logits.log_softmax(-1), actions=torch.tensor([1]))
    assert float(metrics["actor_loss"]) == pytest.approx(0.287682, abs=1e-6)
    assert float(metrics["entropy_normalized"]) == pytest.approx(0.5623351 / math.log(2), abs=1e-6)
    assert float(metrics["accuracy"]) == 1
    uniform = discrete_bc_loss(log_probs=torch.zeros(2, 5).log_softmax(-1), actions=torch.tensor([0, 3]))
    assert float(uniform["nll"]) == pytest.approx(math.log(5))


def test_cloned_discrete_actions_come_in_the_proportions_of_the_data() -> None:
    spaces = SpaceSpec.vector(1, DiscreteActions(2))
    torch.manual_seed(0)
    algorithm = BC.build(spaces, BC.hyper_class(hidden_sizes=(4,), learning_rate=0.02))
    batch = {"obs": torch.zeros(4, 1), "actions": torch.tensor([0, 0, 0, 1])}
    for _ in range(500):
        metrics = algorithm.update(batch).metrics
    assert float(metrics["nll"]) == pytest.approx(0.562335, abs=1e-3)
    obs = torch.zeros(4000, 1)
    assert not algorithm.act(obs).any()
    assert float(algorithm.act(obs, deterministic=False).float().mean()) == pytest.approx(0.25, abs=0.03)
