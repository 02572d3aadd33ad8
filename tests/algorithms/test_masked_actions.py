"""Invalid actions: no algorithm takes them, asks for their values, or learns anything about them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from discrete_cases import (
    MASKED,
    NUM_ACTIONS,
    bandit_batch,
    build,
    discrete_batches,
    fix_outputs,
    masked_batches,
    slopes,
)
from torch import Tensor

from rl_training.acting import Policy
from rl_training.algorithms.base.losses import conservative_gap, entropies, normalized_entropy
from rl_training.core.batches import Batch
from rl_training.models import expectation
from rl_training.models.discrete import draw, duel

CASES: list[tuple[str, dict[str, Any]]] = [
    ("bc", {}),
    ("dqn", {}),
    ("dqn", {"double": False}),
    ("dqn", {"dueling": True}),
    ("dqn", {"num_quantiles": 4}),
    ("dqn", {"num_quantiles": 4, "dueling": True}),
    ("discrete_bcq", {}),
    ("discrete_bcq", {"threshold": 0.0, "num_quantiles": 4}),
    ("discrete_cql", {}),
    ("discrete_cql", {"num_quantiles": 4, "dueling": True}),
    ("discrete_iql", {}),
    ("discrete_iql", {"extraction": "constrained"}),
    ("discrete_iql", {"extraction": "shifted"}),
    ("discrete_iql", {"extraction": "shifted", "beta": 0.0}),
    ("discrete_crr", {"conservative_weight": 0.5}),
    ("discrete_crr", {"target_policy": "online", "weights": "binary"}),
    ("discrete_sac", {"conservative_weight": 0.5, "bc_weight": 0.5}),
    ("discrete_sac", {"alpha": 0.2, "huber_delta": 1.0}),
]
EVERY = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{options}" for name, options in CASES])


def test_the_probabilities_of_possible_actions() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    log_probs = logits.masked_fill(torch.tensor([[False, False, True]]), -math.inf).log_softmax(-1)
    assert log_probs.exp().detach().tolist() == [pytest.approx([0.268941, 0.731059, 0.0], abs=1e-6)]
    assert log_probs.argmax(-1).tolist() == [1]
    entropy = entropies(log_probs)
    assert float(entropy.detach()) == pytest.approx(0.582203, abs=1e-6)
    assert float(normalized_entropy(log_probs.detach())) == pytest.approx(0.582203 / math.log(2), abs=1e-6)
    (slope,) = torch.autograd.grad(entropy.sum(), logits)
    # -p (log p + H): 0.26894 * (1.31326 - 0.58220) and the opposite.
    assert slope.tolist() == [pytest.approx([0.196612, -0.196612, 0.0], abs=1e-6)]
    assert not draw(log_probs.detach().expand(1000, -1)).eq(2).any()


def test_values_of_impossible_actions_have_no_part_in_soft_maximum_and_expectation() -> None:
    q = torch.tensor([[1.0, 2.0, 50.0]], dtype=torch.float64, requires_grad=True)
    masked = q.masked_fill(torch.tensor([[False, False, True]]), -math.inf)
    assert float(masked.detach().logsumexp(-1)) == pytest.approx(2.313262, abs=1e-6)
    gap = conservative_gap(masked, torch.tensor([0]))
    assert float(gap.detach()) == pytest.approx(1.313262, abs=1e-6)
    assert torch.autograd.grad(gap, q)[0].tolist() == [pytest.approx([-0.731059, 0.731059, 0.0], abs=1e-6)]
    probs = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64, requires_grad=True)
    masked = q.masked_fill(torch.tensor([[False, False, True]]), -math.inf)
    worth = expectation(probs, masked)
    assert worth.tolist() == [1.75]
    by_value, by_probability = torch.autograd.grad(worth.sum(), [q, probs])
    assert by_value.tolist() == [[0.25, 0.75, 0.0]]
    assert by_probability.tolist() == [[1.0, 2.0, 0.0]]


def test_advantages_are_centred_over_possible_actions() -> None:
    advantages = torch.tensor([[1.0, 3.0, -math.inf], [1.0, 2.0, 3.0]])
    assert duel(torch.tensor([[5.0], [1.0]]), advantages).tolist() == [[4.0, 6.0, -math.inf], [0.0, 1.0, 2.0]]


def _of_action(network: Any, outputs: Tensor, action: int) -> Tensor:
    """Of numbers for all outputs of a network, along the last axis, those for one action."""
    quantiles = getattr(network, "num_quantiles", None) or 1
    first = (action + getattr(network, "dueling", False)) * quantiles
    return outputs[..., first : first + quantiles]


def _discrete(networks: Any) -> list[Any]:
    """The networks with an output for every action."""
    return [getattr(networks, name) for name in ("actor", "clone", "critic") if hasattr(networks, name)]


def _outputs(algorithm: Any, action: int) -> list[Tensor]:
    """Of every network with an output per action, the weights and biases of the last layer for one action."""
    found = []
    for network in _discrete(algorithm.model):
        last = network.mlp.layers[-1]
        # A layer alone has its outputs first, those of an ensemble have them last.
        weight = last.weight.T if last.weight.ndim == 2 else last.weight
        found += [_of_action(network, numbers, action) for numbers in (weight, last.bias)]
    return found


def _without_the_last(batch: Batch) -> Batch:
    """The last action is never possible, neither now nor later, nor was it logged."""
    changed = {name: batch[name].clone() for name in ("obs", "next_obs")}
    for obs in changed.values():
        obs[:, 0], obs[:, 2] = 1.0, 0.0
    actions = torch.where(batch["actions"] == 2, 0, batch["actions"])
    changed["obs"].scatter_(1, actions[:, None], 1.0)
    return batch | changed | {"actions": actions}


@EVERY
def test_outputs_for_an_action_that_is_never_possible_get_no_gradient(name: str, options: dict[str, Any]) -> None:
    algorithm = build(name, MASKED, **options)
    batch = algorithm.prepare(_without_the_last(masked_batches(1)[0]))
    for step in algorithm.steps:
        metrics = getattr(algorithm, f"{step.name}_loss")(batch)
        for child in step.children:
            network = getattr(algorithm.model, child)
            found = slopes(metrics[f"{child}_loss"], network)
            assert all(bool(slope.isfinite().all()) for slope in found)
            if child in ("actor", "clone", "critic"):
                # The bias of the last layer is the last parameter.
                assert [bool(_of_action(network, found[-1], action).any()) for action in (1, 2)] == [True, False]


@EVERY
def test_updates_leave_them_as_they_are_and_everything_else_is_a_number(name: str, options: dict[str, Any]) -> None:
    algorithm = build(name, MASKED, learning_rate=0.01, **options)
    before = [piece.detach().clone() for piece in _outputs(algorithm, 2)]
    others = [piece.detach().clone() for piece in _outputs(algorithm, 1)]
    for batch in masked_batches(5):
        metrics = algorithm.update(_without_the_last(batch)).metrics
        assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(torch.equal(old, new) for old, new in zip(before, _outputs(algorithm, 2), strict=True))
    assert not any(torch.equal(old, new) for old, new in zip(others, _outputs(algorithm, 1), strict=True))


@EVERY
def test_the_action_that_looks_best_is_not_taken_where_it_is_impossible(name: str, options: dict[str, Any]) -> None:
    algorithm = build(name, MASKED, **options)
    with torch.no_grad():
        for piece in _outputs(algorithm, 2)[1::2]:
            piece.add_(50.0)
    obs = masked_batches(1, size=400)[0]["obs"]
    for deterministic in (True, False):
        chosen = algorithm.act(obs, deterministic=deterministic)
        assert bool(obs[:, :NUM_ACTIONS].gather(1, chosen[:, None]).all())
        # Where it is possible, it is taken: it is the best and the likeliest by far.
        assert bool((chosen[obs[:, 2] == 1] == 2).all())
    log_probs = algorithm.model.log_probs(obs, torch.full((400,), 2))
    assert bool((log_probs[obs[:, 2] == 0] == -math.inf).all())
    drawn, _ = algorithm.model.explore(obs)
    assert bool(obs[:, :NUM_ACTIONS].gather(1, drawn[:, None]).all())


@EVERY
def test_targets_do_not_ask_for_impossible_actions(name: str, options: dict[str, Any]) -> None:
    algorithm, batch = build(name, MASKED, **options), _without_the_last(masked_batches(1)[0])
    expected = algorithm.losses(batch)
    with torch.no_grad():
        for networks in (algorithm.model, algorithm.target):
            for network in _discrete(networks):
                _of_action(network, network.mlp.layers[-1].bias, 2).add_(50.0)
    assert algorithm.losses(batch) == expected


@EVERY
def test_where_all_actions_are_possible_a_mask_changes_nothing(name: str, options: dict[str, Any]) -> None:
    masked, plain = build(name, MASKED, **options), build(name, **options)
    for batch in discrete_batches(3):
        ones = torch.ones(32, NUM_ACTIONS).double()
        behind = {key: torch.cat([ones, batch[key]], -1) for key in ("obs", "next_obs")}
        masked.update(batch | behind)
        plain.update(batch)
    for one, other in zip(masked.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@EVERY
def test_where_a_task_has_ended_no_action_need_be_possible(name: str, options: dict[str, Any]) -> None:
    algorithm, batch = build(name, MASKED, **options), masked_batches(1)[0]
    ended = batch["dones"] == 1
    assert 0 < int(ended.sum()) < 32
    batch["next_obs"][ended, :NUM_ACTIONS] = 1.0
    expected = algorithm.losses(batch)
    batch["next_obs"][ended, :NUM_ACTIONS] = 0.0
    found = algorithm.losses(batch)
    assert all(bool(value.isfinite()) for value in found.values())
    torch.testing.assert_close(found, expected)


def test_observations_are_normalised_and_masks_are_not() -> None:
    algorithm, obs = build("dqn", MASKED), masked_batches(1, size=400)[0]["obs"]
    algorithm.set_obs_statistics(obs.mean(0), obs.std(0))
    seen = algorithm.normalize(obs)
    assert torch.equal(seen[:, :NUM_ACTIONS], obs[:, :NUM_ACTIONS])
    torch.testing.assert_close(seen[:, NUM_ACTIONS:].mean(0), torch.zeros(5).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(seen[:, NUM_ACTIONS:].std(0), torch.ones(5).double())
    assert bool(obs[:, :NUM_ACTIONS].gather(1, algorithm.act(obs)[:, None]).all())


def test_ppo_learns_nothing_about_impossible_actions() -> None:
    algorithm, batch = build("ppo", MASKED, entropy_weight=0.1), _without_the_last(masked_batches(1)[0])
    _, columns = algorithm.model.explore(batch["obs"])
    returns = {"advantages": batch["rewards"], "lambda_returns": batch["rewards"]}
    kept = {name: value.detach() for name, value in columns.items()}
    logged = {"log_probs": algorithm.model.actor.log_prob(batch["obs"], batch["actions"]).detach()}
    before = [piece.detach().clone() for piece in _outputs(algorithm, 2)]
    metrics = algorithm.update(batch | kept | logged | returns).metrics
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(torch.equal(old, new) for old, new in zip(before, _outputs(algorithm, 2), strict=True))
    assert all(bool(piece.isfinite().all()) for piece in algorithm.model.parameters())


def test_exploration_is_uniform_among_possible_actions() -> None:
    algorithm, obs = build("dqn", MASKED), masked_batches(1, size=6000)[0]["obs"]
    policy = Policy.sharing(algorithm, MASKED)
    for drawn in (policy.explore(obs, noise=1.0).actions, policy.sample(obs).actions):
        assert bool(obs[:, :NUM_ACTIONS].gather(1, drawn[:, None]).all())
        for mask, expected in (([1, 1, 1], [1 / 3] * 3), ([1, 0, 1], [0.5, 0.0, 0.5]), ([0, 1, 0], [0.0, 1.0, 0.0])):
            rows = drawn[(obs[:, :NUM_ACTIONS] == torch.tensor(mask)).all(-1)]
            assert (rows.bincount(minlength=NUM_ACTIONS) / len(rows)).tolist() == pytest.approx(expected, abs=0.05)


def test_the_mask_is_no_input_of_the_networks() -> None:
    algorithm, obs = build("discrete_sac", MASKED), masked_batches(1)[0]["obs"]
    free = torch.cat([torch.ones(32, NUM_ACTIONS).double(), obs[:, NUM_ACTIONS:]], -1)
    values, all_values = algorithm.model.critic.all_values(obs), algorithm.model.critic.all_values(free)
    possible = obs[:, :NUM_ACTIONS] == 1
    assert torch.equal(values[:, possible], all_values[:, possible])
    assert bool((values[:, ~possible] == -math.inf).all())


def test_the_clone_of_discrete_bcq_has_the_size_of_possible_logits_only() -> None:
    algorithm = build("discrete_bcq", MASKED, logit_penalty=1.0)
    fix_outputs(algorithm.model.clone, [0.0, math.log(3), 7.0])
    batch = masked_batches(1, size=1)[0] | {"actions": torch.tensor([1])}
    batch["obs"][:, :NUM_ACTIONS] = torch.tensor([1.0, 1.0, 0.0])
    metrics = algorithm.losses(batch)
    assert float(metrics["clone_nll"]) == pytest.approx(0.287682, abs=1e-6)
    assert float(metrics["clone_loss"]) == pytest.approx(0.287682 + 0.603474, abs=1e-6)
    assert float(metrics["allowed_actions"]) == 2


def test_a_masked_bandit_learns_the_best_of_what_is_possible() -> None:
    algorithm = build("discrete_cql", MASKED, conservative_weight=0.0, learning_rate=0.02)
    plain = bandit_batch()
    obs = torch.cat([torch.tensor([[1.0, 1.0, 0.0]]).double(), torch.zeros(1, 5).double()], -1).expand(10, -1)
    for _ in range(300):
        algorithm.update(plain | {"obs": obs, "next_obs": obs})
    values = algorithm.model.critic(obs[:1]).detach()[0]
    assert values[:2].tolist() == pytest.approx([0.0, 1.0], abs=0.02)
    assert algorithm.act(obs[:1]).tolist() == [1]
