"""What Cal-QL adds to CQL, and the returns it needs, on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build
from torch import Tensor

from rl_training.algorithms.cal_ql import cal_ql_loss
from rl_training.core.batches import Batch

# Cal-QL without a multiplier and a maximum in the target is CQL but for the calibration.
PLAIN: dict[str, Any] = {"conservative_gap": None, "max_backup": "none", "critic_hidden_sizes": None}


def _batch(returns: float | Tensor, size: int = 32) -> Batch:
    batch = batches(1, size)[0]
    return batch | {"returns_to_go": torch.as_tensor(returns, dtype=torch.float64).expand(size)}


def _penalty(returns: float | None, *, random: float, policy: float, following: float, logged: float = 0.0) -> float:
    """The penalty of one critic on equal rows, with one sample of each kind, all of log-density 0 in dimension 0."""
    metrics = cal_ql_loss(
        q_values=torch.full((1, 2), logged),
        target_q_values=torch.zeros(2),
        random_q_values=torch.full((1, 1, 2), random),
        policy_q_values=torch.full((1, 1, 2), policy),
        next_policy_q_values=torch.full((1, 1, 2), following),
        policy_log_probs=torch.zeros(1, 2),
        next_policy_log_probs=torch.zeros(1, 2),
        action_dim=0,
        conservative_weight=1.0,
        returns_to_go=None if returns is None else torch.full((2,), returns),
    )
    return float(metrics["cql_penalty_1"])


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        # Values 0 (uniform), 1 (s) and 5 (s') of log-density 0, logged value 0. max([1, 5], 3) = [3, 5].
        (3.0, math.log(1 + math.exp(3) + math.exp(5))),
        (7.0, math.log(1 + math.exp(7) + math.exp(7))),
        (0.5, math.log(1 + math.exp(1) + math.exp(5))),
        (None, math.log(1 + math.exp(1) + math.exp(5))),
    ],
)
def test_values_of_the_policy_count_as_at_least_the_return(returns: float | None, expected: float) -> None:
    assert _penalty(returns, random=0.0, policy=1.0, following=5.0) == pytest.approx(expected, rel=1e-6)


def test_uniform_and_logged_actions_are_not_bounded() -> None:
    # Both are far below the return of 3, and count as they are: ln(e^-2 + 2 e^3) + 4.
    expected = math.log(math.exp(-2) + 2 * math.exp(3)) + 4
    assert _penalty(3.0, random=-2.0, policy=1.0, following=0.0, logged=-4.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("returns", [-1e9, -math.inf])
def test_returns_below_every_value_make_it_cql(returns: float) -> None:
    calibrated, plain = build("cal_ql", **PLAIN), build("cql", actor_learning_rate=1e-4, conservative_weight=5.0)
    plain.load_state_dict(calibrated.state_dict())
    for algorithm in (calibrated, plain):
        torch.manual_seed(2)
        for batch in batches(3):
            algorithm.update(batch | {"returns_to_go": torch.full((32,), returns, dtype=torch.float64)})
    for ours, theirs in zip(calibrated.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_returns_above_every_value_leave_the_policys_values_without_gradient() -> None:
    # The return is a constant, so nothing is learned from samples that it replaces.
    random, policy, following = (torch.randn(4, 2, 8).requires_grad_() for _ in range(3))
    q = torch.randn(2, 8, requires_grad=True)

    def gradients(returns: Tensor) -> tuple[Tensor, ...]:
        metrics = cal_ql_loss(
            q_values=q,
            target_q_values=torch.zeros(8),
            random_q_values=random,
            policy_q_values=policy,
            next_policy_q_values=following,
            policy_log_probs=torch.zeros(4, 8),
            next_policy_log_probs=torch.zeros(4, 8),
            action_dim=1,
            conservative_weight=1.0,
            returns_to_go=returns,
        )
        penalty = metrics["cql_penalty_1"] + metrics["cql_penalty_2"]
        return torch.autograd.grad(penalty, [q, random, policy, following])

    for size in (10.0, 1e6):
        on_q, on_random, *on_policy = gradients(torch.full((8,), size))
        assert all(float(gradient.abs().max()) == 0 for gradient in on_policy)
        # A row's part in the mean over 8 rows.
        torch.testing.assert_close(on_q, torch.full_like(q, -1 / 8))
        assert bool((on_random > 0).all()) == (size == 10.0)
    # In between, exactly the samples below the return have none.
    *_, on_policy_here, on_policy_next = gradients(torch.zeros(8))
    assert torch.equal(on_policy_here == 0, policy < 0)
    assert torch.equal(on_policy_next == 0, following < 0)


@pytest.mark.parametrize(("returns", "rate"), [(-1e6, 0.0), (1e6, 1.0)])
def test_the_share_of_bounded_values_is_reported(returns: float, rate: float) -> None:
    metrics = build("cal_ql", **PLAIN).losses(_batch(returns))
    assert float(metrics["calibration_bound_rate_pi"]) == rate
    assert float(metrics["calibration_bound_rate_next"]) == rate
    assert float(metrics["mc_return_mean"]) == returns


def _losses_online(share: float, **options: Any) -> dict[str, float]:
    algorithm = build("cal_ql", **{**PLAIN, "conservative_weight": 2.0, **options})
    algorithm.set_online_share(share)
    torch.manual_seed(6)
    return {name: float(value) for name, value in algorithm.losses(_batch(1e3)).items()}


@pytest.mark.parametrize("gap", [None, 0.5])
def test_the_penalty_can_have_another_weight_online(gap: float | None) -> None:
    before, after = (_losses_online(share, online_conservative_weight=3.0, conservative_gap=gap) for share in (0, 0.1))
    plain = _losses_online(0.0, conservative_weight=3.0, conservative_gap=gap)
    assert before == _losses_online(0.1, conservative_gap=gap)
    assert after == plain
    assert before["critic_loss"] < after["critic_loss"]


def test_bounds_can_be_left_out_online() -> None:
    before, after = (_losses_online(share, online_calibrated=False) for share in (0, 0.1))
    assert before == _losses_online(0.1)
    assert (before["calibration_bound_rate_pi"], after["calibration_bound_rate_pi"]) == (1, 0)
    assert after["mc_return_mean"] == 1e3
    # What is left is CQL.
    assert after["cql_penalty_1"] == _losses_online(0.0, calibrated=False)["cql_penalty_1"]


def test_returns_are_needed() -> None:
    algorithm = build("cal_ql")
    assert algorithm.needs == ("obs", "actions", "rewards", "next_obs", "dones", "returns_to_go")
    with pytest.raises(ValueError, match=r"needs 'returns_to_go'.*with_returns_to_go"):
        algorithm.update(batches(1)[0])


def test_a_multiplier_is_learned_by_default() -> None:
    (step,) = build("cal_ql").steps
    assert step.children == ("temperature", "actor", "critic", "lagrange")
    (step,) = build("cal_ql", conservative_gap=None, alpha=0.1).steps
    assert step.children == ("actor", "critic")
