"""CrossQ's formulas and its batch renormalisation on numbers that can be checked by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from peers import OBS_DIM, batches, build
from torch import Tensor, nn

from rl_training.algorithms.crossq import crossq_loss
from rl_training.core.batches import Batch
from rl_training.models.batch_renorm import BatchRenorm

Patch = pytest.MonkeyPatch
SMALL: dict[str, Any] = {"critic_hidden_sizes": (16, 16)}


def _column(*values: float) -> Tensor:
    """One feature of one network, a row for each value."""
    return torch.tensor(values, dtype=torch.float64)[None, :, None]


def _norm(*, mean: float = 0.0, var: float = 1.0, **options: Any) -> BatchRenorm:
    """A normalisation of one feature with these running statistics."""
    norm = BatchRenorm(1, 1, **options).double()
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    return norm


def _statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def _unchanged(network: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


# The normalisation.


def test_rows_of_both_halves_are_normalised_by_their_joint_statistics() -> None:
    # Mean of 0, 2 and 4, 6: 3; squares of their distances: 9, 1, 1, 9, mean 5. Each half by itself has mean 1 or 5 and
    # variance 1, and would come out as -1, 1, -1, 1.
    norm = _norm()
    rows = norm(_column(0, 2, 4, 6), training=True)
    torch.testing.assert_close(rows, _column(-3, -1, 1, 3) / math.sqrt(5 + 1e-3))
    # The running statistics start at 0 and 1 and go 1 % of the way to 3 and 5.
    assert float(norm.running_mean) == pytest.approx(0.03)
    assert float(norm.running_var) == pytest.approx(1.04)
    assert int(norm.steps) == 1


def test_evaluation_uses_running_statistics_and_leaves_them() -> None:
    norm = _norm(mean=2.0, var=4.0)
    before = _statistics(norm)
    torch.testing.assert_close(norm(_column(4, 100)), _column(2, 98) / math.sqrt(4.001))
    assert _unchanged(norm, before)


def test_weight_and_bias_act_on_what_was_normalised() -> None:
    norm = _norm(mean=1.0, var=0.25 - 1e-3)
    nn.init.constant_(norm.weight, 3.0)
    nn.init.constant_(norm.bias, -1.0)
    # (2 - 1) / 0.5 = 2; 3 * 2 - 1 = 5.
    assert float(norm(_column(2)).detach()) == pytest.approx(5.0)


@pytest.mark.parametrize("warmup", [0, 100_000])
def test_running_statistics_equal_to_the_batchs_make_it_batch_normalisation(warmup: int) -> None:
    norm = _norm(mean=3.0, var=5.0, warmup=warmup)
    rows = norm(_column(0, 2, 4, 6), training=True)
    torch.testing.assert_close(rows, _column(-3, -1, 1, 3) / math.sqrt(5.001))


def test_during_the_warm_up_it_is_torchs_batch_normalisation() -> None:
    torch.manual_seed(0)
    ours = BatchRenorm(1, 3).double()
    theirs: Any = nn.BatchNorm1d(3, eps=1e-3, momentum=0.01).double()
    for _ in range(3):
        inputs = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
        mine, other = ours(inputs[None], training=True)[0], theirs(inputs)
        torch.testing.assert_close(mine, other)
        weights = torch.randn(8, 3, dtype=torch.float64)
        gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (mine, other)]
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(ours.running_mean.flatten(), theirs.running_mean)
    # Theirs follows the unbiased variance, 8 / 7 of ours; what is left of the 1 it started from is 0.99^3.
    start = 0.99**3
    torch.testing.assert_close(ours.running_var.flatten() - start, 7 / 8 * (theirs.running_var - start))


def test_after_the_warm_up_rows_come_out_as_evaluation_would_have_them() -> None:
    # r = sqrt(5.001 / 4.001) and d = (3 - 2) / sqrt(4.001) are within their bounds, so the batch cancels out.
    norm = _norm(mean=2.0, var=4.0, warmup=0)
    rows = _column(0, 2, 4, 6)
    evaluated = norm(rows)
    torch.testing.assert_close(norm(rows, training=True), evaluated)
    assert float(norm.clip_share) == 0
    # As they were before the pass, which moves them.
    assert float(norm.running_mean) == pytest.approx(2.01)


@pytest.mark.parametrize(
    ("mean", "var", "expected_r", "expected_d", "clipped"),
    [
        # Batch mean 3, variance 5. The running deviation is a tenth: r would be about 22; d = 3 / 0.1 = 30 or so.
        (0.0, 0.01, 3.0, 5.0, 1.0),
        # A running deviation of 100: r would be 0.022; d = (3 - 1003) / 100 = -10 or so.
        (1003.0, 1e4, 1 / 3, -5.0, 1.0),
        # Within both bounds: sqrt(5.001 / 1.001) and (3 - 1) / sqrt(1.001).
        (1.0, 1.0, math.sqrt(5.001 / 1.001), 2 / math.sqrt(1.001), 0.0),
    ],
)
def test_the_correction_is_clipped(
    mean: float, var: float, expected_r: float, expected_d: float, clipped: float
) -> None:
    norm = _norm(mean=mean, var=var, warmup=0)
    rows = norm(_column(0, 2, 4, 6), training=True)
    expected = _column(-3, -1, 1, 3) / math.sqrt(5.001) * expected_r + expected_d
    torch.testing.assert_close(rows, expected)
    assert float(norm.clip_share) == clipped


def test_the_warm_up_counts_training_passes() -> None:
    norm, rows = _norm(warmup=2), _column(0, 2, 4, 6)
    plain = _column(-3, -1, 1, 3) / math.sqrt(5.001)
    outputs = []
    for _ in range(3):
        outputs.append(norm(rows, training=True).detach())
        norm(rows)
    torch.testing.assert_close(outputs[0], plain)
    torch.testing.assert_close(outputs[1], plain)
    # The third is corrected by statistics that went 1 % of the way twice: 3 * (1 - 0.99^2) and 1 + 4 * (1 - 0.99^2).
    mean, var = 3 * 0.0199, 1 + 4 * 0.0199
    torch.testing.assert_close(outputs[2], (rows - mean) / math.sqrt(var + 1e-3))
    assert int(norm.steps) == 3


def test_gradients_pass_through_the_statistics_and_not_through_the_correction() -> None:
    norm = _norm(mean=2.0, var=4.0, warmup=0)
    rows = _column(0, 2, 4, 7).requires_grad_()
    weights = _column(1, -2, 3, 5)
    (gradient,) = torch.autograd.grad((norm(rows, training=True) * weights).sum(), rows)
    # With z the normalised rows, each output's gradient is r / std * (g - mean(g) - z * mean(g z)) but for epsilon.
    values = rows.detach()
    std = (values.var(correction=0) + 1e-3).sqrt()
    z = (values - values.mean()) / std
    r = std / math.sqrt(4.001)
    expected = r / std * (weights - weights.mean() - z * (weights * z).mean())
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_each_network_is_normalised_by_itself() -> None:
    torch.manual_seed(0)
    together = BatchRenorm(2, 3, warmup=1).double()
    alone = [BatchRenorm(1, 3, warmup=1).double() for _ in range(2)]
    for number in range(3):
        rows = torch.randn(2, 8, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0])[:, None, None] + number
        expected = torch.cat([norm(part[None], training=True) for norm, part in zip(alone, rows, strict=True)])
        torch.testing.assert_close(together(rows, training=True), expected)
    for name in ("running_mean", "running_var", "clip_share"):
        torch.testing.assert_close(getattr(together, name), torch.cat([getattr(norm, name) for norm in alone]))
    assert not torch.allclose(together.running_var[0], together.running_var[1])


# The networks.


def _naive(mlp: Any, member: int, rows: Tensor) -> Tensor:
    """Layer by layer as the paper has it, by batch statistics."""
    depth = len(mlp.layers)
    for number in range(depth):
        norm, layer = mlp.norms[number], mlp.layers[number]
        rows = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-3).sqrt()
        rows = norm.weight[member, 0] * rows + norm.bias[member, 0]
        rows = rows @ layer.weight[member] + layer.bias[member]
        rows = rows.clamp_min(0) if number < depth - 1 else rows
    return rows


def test_inputs_and_hidden_layers_are_normalised_after_the_activation() -> None:
    algorithm, batch = build("crossq", **SMALL), batches(1)[0]
    for norm in algorithm.modules():
        if isinstance(norm, BatchRenorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    model = algorithm.model
    values = model.critic(batch["obs"], batch["actions"], training=True)
    pairs = torch.cat([batch["obs"], batch["actions"]], dim=-1)
    for member in range(2):
        torch.testing.assert_close(values[member], _naive(model.critic.mlp, member, pairs).squeeze(-1))
    mean, log_std = model.actor(batch["obs"], training=True)
    torch.testing.assert_close(torch.cat([mean, log_std], dim=-1), _naive(model.actor.mlp, 0, batch["obs"]))
    assert model.actor.log_std_range == (-20.0, 2.0)
    assert not torch.allclose(values[0], values[1])


def test_acting_does_not_depend_on_the_other_rows_and_changes_nothing() -> None:
    algorithm = build("crossq", **SMALL, policy_delay=1)
    for batch in batches(3):
        algorithm.update(batch)
    before, obs = _statistics(algorithm), batches(1)[0]["obs"]
    together = algorithm.act(obs)
    for row in range(4):
        torch.testing.assert_close(algorithm.act(obs[row : row + 1]), together[row : row + 1])
    algorithm.act(obs, deterministic=False)
    assert _unchanged(algorithm, before)


# The updates.


def test_targets_are_held_constant() -> None:
    joint = torch.tensor([[1.0, 4.0, 5.0, 7.0], [3.0, 0.0, 6.0, 2.0]], requires_grad=True)
    log_temperature, next_log_probs = torch.tensor(0.0, requires_grad=True), torch.zeros(2, requires_grad=True)
    loss = crossq_loss(
        joint_q_values=joint,
        next_log_probs=next_log_probs,
        rewards=torch.zeros(2),
        dones=torch.zeros(2),
        policy_q_values=torch.zeros(2, 2),
        policy_log_probs=torch.zeros(2),
        log_temperature=log_temperature,
        target_entropy=-1.0,
        gamma=1.0,
    )["critic_loss"]
    found = torch.autograd.grad(loss, [joint, log_temperature, next_log_probs], allow_unused=True)
    # Errors against the smallest of the others, 5 and 2, over two rows.
    assert found[0].tolist() == [[-2.0, 1.0, 0.0, 0.0], [-1.0, -1.0, 0.0, 0.0]]
    assert all(gradient is None for gradient in found[1:])


def _two_passes(critic: Any, obs: Tensor, actions: Tensor) -> Tensor:
    """What CrossQ must not do: each half by its own statistics."""
    halves = zip(obs.chunk(2), actions.chunk(2), strict=True)
    return torch.cat([critic(*half, training=True) for half in halves], dim=-1)


def test_critics_see_both_halves_in_one_pass(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    algorithm, batch = build("crossq", **SMALL, alpha=0.3, gamma=0.5), batches(1)[0]
    model = algorithm.model
    with torch.no_grad():
        # By running statistics, as the actor is not trained in this step; at noise 0 the density is that of the mean.
        mean, log_std = model.actor(batch["next_obs"])
        log_probs = (-0.5 * math.log(2 * math.pi) - log_std - (1 - mean.tanh().square()).log()).sum(-1)
        obs = torch.cat([batch["obs"], batch["next_obs"]])
        actions = torch.cat([batch["actions"], mean.tanh()])
    losses = []
    for values in (
        torch.stack([_naive(model.critic.mlp, member, torch.cat([obs, actions], -1)).squeeze(-1) for member in (0, 1)]),
        _two_passes(copy.deepcopy(model.critic), obs, actions),
    ):
        metrics = crossq_loss(
            joint_q_values=values,
            next_log_probs=log_probs,
            rewards=batch["rewards"],
            dones=batch["dones"],
            policy_q_values=torch.zeros(2, 1),
            policy_log_probs=torch.zeros(1),
            log_temperature=model.temperature.log_value.detach(),
            target_entropy=0.0,
            gamma=0.5,
        )
        losses.append(float(metrics["critic_loss"].detach()))
    found = float(algorithm.update(batch).metrics["critic_loss"])
    assert found == pytest.approx(losses[0], rel=1e-12)
    assert abs(losses[1] / losses[0] - 1) > 1e-3
    # One pass over 64 rows, whose mean the running one follows by 1 %.
    first = model.critic.mlp.norms[0]
    assert int(first.steps) == 1
    torch.testing.assert_close(first.running_mean[0, 0, :OBS_DIM], 0.01 * obs.mean(0))


def test_each_step_moves_the_statistics_of_what_it_trains_and_no_others() -> None:
    algorithm = build("crossq", **SMALL)
    actor, critic = algorithm.model.actor, algorithm.model.critic
    actor_before, critic_before = _statistics(actor), _statistics(critic)
    first, second, third = batches(3)
    algorithm.update(first)
    assert _unchanged(actor, actor_before)
    assert not _unchanged(critic, critic_before)
    algorithm.update(second)
    algorithm.update(third)
    # The third update has an actor step: one pass of it, and none of the critics beyond those of their own steps.
    assert [int(norm.steps) for norm in actor.mlp.norms] == [1, 1, 1]
    assert [int(norm.steps) for norm in critic.mlp.norms] == [3, 3, 3]
    torch.testing.assert_close(actor.mlp.norms[0].running_mean[0, 0], 0.01 * third["obs"].mean(0))
    actor_before, critic_before = _statistics(actor), _statistics(critic)
    algorithm.losses(first)
    assert _unchanged(actor, actor_before)
    assert _unchanged(critic, critic_before)


def test_the_actor_step_values_actions_by_running_statistics(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    algorithm: Any = build("crossq", **SMALL, alpha=0.3)
    batch = batches(1)[0]
    model = copy.deepcopy(algorithm.model)
    before = _statistics(algorithm.model.critic)
    loss = algorithm.actor_loss(batch)["actor_loss"]
    assert _unchanged(algorithm.model.critic, before)
    mean, log_std = model.actor(batch["obs"], training=True)
    log_probs = (-0.5 * math.log(2 * math.pi) - log_std - (1 - mean.tanh().square()).log()).sum(-1)
    q = model.critic(batch["obs"], mean.tanh()).amin(0)
    torch.testing.assert_close(loss, (0.3 * log_probs - q).mean())


def test_the_report_says_how_the_normalisation_fares() -> None:
    algorithm = build("crossq", **SMALL, norm_warmup=1)
    first, second = (algorithm.update(batch).metrics for batch in batches(2))
    norms = algorithm.model.critic.mlp.norms
    length = math.sqrt(sum(float(norm.running_mean.square().sum()) for norm in norms))
    assert float(second["bn_running_mean_norm"]) == pytest.approx(length)
    assert (float(first["bn_steps"]), float(second["bn_steps"])) == (1.0, 2.0)
    shares = sum(float(norm.clip_share.mean()) for norm in norms) / 3
    assert float(first["bn_r_clip_share"]) == 0.0
    assert 0 < float(second["bn_r_clip_share"]) == pytest.approx(shares)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_update_moves_the_statistics_as_an_eager_one(backend: str) -> None:
    # In float32, as training is, and past the warm-up; one update, for Adam makes steps of the rounding of gradients.
    eager, compiled = (build("crossq", **SMALL, policy_delay=1, norm_warmup=0).float() for _ in range(2))
    torch._dynamo.reset()
    compiled.compile_steps(backend=backend)
    batch: Batch = {name: values.float() for name, values in batches(1)[0].items()}
    reports = []
    for algorithm in (eager, compiled):
        torch.manual_seed(5)
        reports.append(algorithm.update(batch).metrics)
    torch.testing.assert_close(reports[0], reports[1], rtol=1e-4, atol=1e-5)
    statistics = _statistics(compiled.model)
    assert any("running_var" in name for name in statistics)
    torch.testing.assert_close(statistics, _statistics(eager.model), rtol=1e-4, atol=1e-6)
