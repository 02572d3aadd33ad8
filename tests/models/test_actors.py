"""Log-densities, samples and spreads of the Gaussian actors on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.models import GaussianActor, TanhGaussianActor
from rl_training.models.actors import LOG_STD_RANGE, gaussian_log_prob, log_tanh_slope

ROWS = torch.zeros(1, 1, dtype=torch.float64)


def _tanh_actor(mean: list[float], log_std: list[float], **options: Any) -> TanhGaussianActor:
    """An actor that says the same about every observation."""
    actor = TanhGaussianActor(1, len(mean), hidden_sizes=(4,), **options)
    _fix(actor, [*mean, *log_std])
    return actor.double()


def _gaussian_actor(outputs: list[float], **options: Any) -> GaussianActor:
    count = len(outputs) // 2 if options.get("spread", "state") == "state" else len(outputs)
    actor = GaussianActor(1, count, hidden_sizes=(4,), **options)
    _fix(actor, outputs)
    return actor.double()


def _fix(actor: Any, outputs: list[float]) -> None:
    last = actor.mlp.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(outputs))


def _density(actor: TanhGaussianActor, *action: float) -> float:
    return float(actor.log_prob(ROWS, torch.tensor([action], dtype=torch.float64)).detach())


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (0.0, -0.918939),  # -ln(2 pi) / 2, and the tanh has slope 1 there
        (0.5, -0.782125),  # u = atanh(0.5) = 0.549306: -0.918939 - 0.150869 - ln(1 - 0.25)
        (-0.5, -0.782125),
    ],
)
def test_a_squashed_standard_normal_has_the_density_of_its_raw_value_over_the_slope(
    action: float, expected: float
) -> None:
    assert _density(_tanh_actor([0.0], [0.0]), action) == pytest.approx(expected, abs=1e-6)


def test_mean_and_deviation_are_those_of_the_raw_value() -> None:
    # u = atanh(0.5) = ln(3) / 2; with mean u the error is 0, so ln(density) = -ln(std) - ln(2 pi) / 2 - ln(0.75).
    actor = _tanh_actor([math.log(3) / 2], [math.log(0.1)])
    expected = -math.log(0.1) - 0.5 * math.log(2 * math.pi) - math.log(0.75)
    assert _density(actor, 0.5) == pytest.approx(expected, abs=1e-6)


def test_log_densities_add_up_over_dimensions() -> None:
    together = _density(_tanh_actor([0.0, 0.3], [0.0, -1.0]), 0.5, -0.2)
    apart = _density(_tanh_actor([0.0], [0.0]), 0.5) + _density(_tanh_actor([0.3], [-1.0]), -0.2)
    assert together == pytest.approx(apart, rel=1e-9)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.0, 0.3), (0.3, math.log(0.7))])
def test_a_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    # Without the slope of the tanh, or with its sign wrong, the mass over [-1, 1] would be another.
    actions = torch.linspace(-0.99999, 0.99999, 200_001, dtype=torch.float64)
    densities = _tanh_actor([mean], [log_std]).log_prob(ROWS, actions[:, None]).detach().exp()
    assert float(torch.trapezoid(densities, actions)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("count", [None, 3])
def test_a_sample_comes_with_its_own_log_density(count: int | None) -> None:
    torch.manual_seed(0)
    actor = TanhGaussianActor(4, 3, hidden_sizes=(8,), affine_std=True).double()
    obs = torch.randn(50, 4, dtype=torch.float64)
    actions, log_probs = actor.sample(obs, count=count)
    assert actions.shape == ((50, 3) if count is None else (3, 50, 3))
    torch.testing.assert_close(log_probs, actor.log_prob(obs, actions))


def test_log_densities_agree_with_torch() -> None:
    from torch.distributions import Normal, TanhTransform, TransformedDistribution

    torch.manual_seed(0)
    actor = TanhGaussianActor(4, 3, hidden_sizes=(8,)).double()
    obs, actions = torch.randn(20, 4, dtype=torch.float64), 1.9 * torch.rand(20, 3, dtype=torch.float64) - 0.95
    mean, log_std = actor(obs)
    peer: Any = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    torch.testing.assert_close(actor.log_prob(obs, actions), peer.log_prob(actions).sum(-1))


def test_samples_of_one_state_differ_and_have_the_mean_and_deviation_asked_for() -> None:
    torch.manual_seed(0)
    raw = _tanh_actor([0.4], [math.log(0.5)]).sample_raw(ROWS, count=40_000).detach()
    # The mean of 40000 draws is known to 0.5 / 200.
    assert float(raw.mean()) == pytest.approx(0.4, abs=0.01)
    assert float(raw.std()) == pytest.approx(0.5, abs=0.01)


def test_a_sample_is_the_tanh_of_a_raw_one() -> None:
    actor = _tanh_actor([0.4], [0.0])
    torch.manual_seed(1)
    raw = actor.sample_raw(ROWS, count=5)
    torch.manual_seed(1)
    actions, _ = actor.sample(ROWS, count=5)
    torch.testing.assert_close(actions, raw.tanh())


def test_samples_are_differentiable_in_the_mean() -> None:
    # a = tanh(mean + noise), so da / dmean = 1 - a^2; with deviation 1 the density of the noise is constant, and
    # d ln(density) / dmean = -d ln(1 - tanh(u)^2) / du = 2 tanh(u).
    actor: Any = _tanh_actor([0.4], [0.0])
    action, log_prob = actor.sample(ROWS)
    for value, slope in ((action.sum(), 1 - action.square()), (log_prob.sum(), 2 * action)):
        (gradient,) = torch.autograd.grad(value, actor.mlp.layers[-1].bias, retain_graph=True)
        assert float(gradient[0]) == pytest.approx(slope.item(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_actions_on_the_bounds_count_as_just_inside(sign: float, dtype: torch.dtype) -> None:
    actor: Any = _tanh_actor([0.0], [0.0]).to(dtype)
    obs = torch.zeros(3, 1, dtype=dtype)
    actions = sign * torch.tensor([[0.99999], [1.0], [1.5]], dtype=dtype)
    log_probs = actor.log_prob(obs, actions)
    # u = atanh(0.99999) = ln(1.99999 / 0.00001) / 2 = 6.103034, 1 - tanh(u)^2 = 1.99999e-5:
    # -0.918939 - 37.247021 / 2 + 10.819783 = -8.722666.
    assert log_probs.tolist() == pytest.approx([-8.722666] * 3, abs=2e-2 if dtype is torch.float32 else 1e-5)
    assert log_probs.unique().numel() == 1
    (gradient,) = torch.autograd.grad(log_probs.sum(), actor.mlp.layers[-1].bias)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("raw", [-3.0, -0.5, 0.0, 0.549306, 4.0])
def test_log_slope_of_tanh_is_that_of_its_definition(raw: float) -> None:
    slope = log_tanh_slope(torch.tensor(raw, dtype=torch.float64))
    assert float(slope) == pytest.approx(math.log(1 - math.tanh(raw) ** 2), rel=1e-9)


@pytest.mark.parametrize("raw", [-80.0, 80.0])
def test_log_slope_of_tanh_stays_a_number_far_out(raw: float) -> None:
    # 1 - tanh(u)^2 = 4 / (e^u + e^-u)^2, which is 4 e^(-2 |u|) far out: 2 ln 2 - 160. Computed as written, in
    # float32, the tanh is 1 and the logarithm that of zero.
    raws = torch.tensor(raw, requires_grad=True)
    slope = log_tanh_slope(raws)
    assert slope.item() == pytest.approx(2 * math.log(2) - 160, rel=1e-6)
    (gradient,) = torch.autograd.grad(slope, raws)
    # d/du ln(1 - tanh(u)^2) = -2 tanh(u).
    assert float(gradient) == pytest.approx(-2 * math.copysign(1, raw))


def test_a_tanh_actor_acts_by_the_tanh_of_its_mean_or_by_a_sample() -> None:
    actor = _tanh_actor([0.4], [0.0])
    assert actor.act(ROWS, deterministic=True).item() == pytest.approx(math.tanh(0.4), rel=1e-6)
    torch.manual_seed(2)
    drawn = actor.act(ROWS, deterministic=False)
    torch.manual_seed(2)
    torch.testing.assert_close(drawn, actor.sample(ROWS)[0])
    assert drawn.item() != pytest.approx(math.tanh(0.4))


@pytest.mark.parametrize(("output", "expected"), [(-1e3, -5.0), (-4.0, -4.0), (1.5, 1.5), (1e3, 2.0)])
def test_the_log_deviation_of_a_tanh_actor_is_clipped_on_both_sides(output: float, expected: float) -> None:
    assert LOG_STD_RANGE == (-5.0, 2.0)
    assert _log_std(_tanh_actor([0.0], [output])) == pytest.approx([expected])


@pytest.mark.parametrize(("output", "expected"), [(0.0, -1.0), (1.5, 0.5), (-18.0, -19.0), (-1e3, -20.0), (1e3, 2.0)])
def test_an_affine_log_deviation_starts_one_below_the_output_and_is_clipped_after(
    output: float, expected: float
) -> None:
    actor = _tanh_actor([0.0], [output], affine_std=True, log_std_range=(-20.0, 2.0))
    assert _log_std(actor) == pytest.approx([expected])


def test_factor_and_offset_of_an_affine_log_deviation_are_learned() -> None:
    # log_std = factor * 0.5 + offset: slopes 0.5 and 1, for each of the two dimensions.
    actor: Any = _tanh_actor([0.0, 0.0], [0.5, 0.5], affine_std=True)
    (gradient,) = torch.autograd.grad(actor(ROWS)[1].sum(), actor.std_affinity)
    assert gradient.tolist() == pytest.approx([1.0, 2.0])


def test_a_gaussian_density_is_the_textbook_one() -> None:
    # Deviation 1, error 0.5: 0.125 + ln(2 pi) / 2 = 1.043939; deviation 0.5, error 0.5: 0.5 + 0.918939 - ln 2.
    mean, actions = torch.zeros(1, 1), torch.tensor([[0.5]])
    assert gaussian_log_prob(actions, mean, torch.zeros(1)).item() == pytest.approx(-1.043939, abs=1e-6)
    half = gaussian_log_prob(actions, mean, torch.full((1,), -math.log(2)))
    assert half.item() == pytest.approx(-(0.5 + 0.918939 - math.log(2)), abs=1e-6)


def test_the_mean_of_a_gaussian_actor_is_squashed_unless_told_otherwise() -> None:
    assert _gaussian_actor([2.0, 0.0])(ROWS)[0].item() == pytest.approx(math.tanh(2.0))
    linear = _gaussian_actor([2.0, 0.0], squash_mean=False)
    assert linear(ROWS)[0].item() == pytest.approx(2.0)
    assert linear.act(ROWS, deterministic=True).item() == 1.0


def test_samples_of_a_gaussian_actor_are_clipped_and_not_squashed() -> None:
    torch.manual_seed(0)
    # Mean tanh(0.5) = 0.462117, deviation 1: P(a > 1) = P(z > 0.537883) = 0.2953 and P(a < -1) = P(z < -1.462117)
    # = 0.0718.
    samples = _gaussian_actor([0.5, 0.0]).sample(ROWS, count=40_000)[0].detach()
    assert samples.shape == (40_000, 1, 1)
    assert float((samples == 1).double().mean()) == pytest.approx(0.2953, abs=0.01)
    assert float((samples == -1).double().mean()) == pytest.approx(0.0718, abs=0.01)
    inside = _gaussian_actor([0.5, math.log(0.1)]).sample(ROWS, count=40_000)[0].detach()
    assert float(inside.mean()) == pytest.approx(math.tanh(0.5), abs=0.005)
    assert float(inside.std()) == pytest.approx(0.1, abs=0.005)


def test_a_spread_of_the_state_comes_from_the_network_clipped() -> None:
    assert _log_std(_gaussian_actor([0.0, 0.0, -9.0, 1.0])) == pytest.approx([-5.0, 1.0])
    torch.manual_seed(0)
    free: Any = GaussianActor(1, 1, hidden_sizes=(8,))
    log_stds = free(torch.tensor([[-1.0], [1.0]]))[1].detach()
    assert float(log_stds[0]) != float(log_stds[1])


@pytest.mark.parametrize(("value", "expected"), [(0.0, 0.0), (-9.0, -5.0), (9.0, 2.0), (1.5, 1.5)])
def test_a_clipped_spread_is_one_learned_vector_for_all_states(value: float, expected: float) -> None:
    actor: Any = _gaussian_actor([0.0, 0.0], spread="clipped", log_std=value)
    assert "log_std" in dict(actor.named_parameters())
    log_std = actor(torch.randn(7, 1, dtype=torch.float64))[1]
    assert log_std.tolist() == pytest.approx([expected, expected])


@pytest.mark.parametrize(("value", "expected"), [(0.0, -3.0), (math.log(3), -1.5), (50.0, 0.0), (-50.0, -6.0)])
def test_a_sigmoid_spread_moves_between_its_bounds(value: float, expected: float) -> None:
    # -6 + 6 sigmoid(p): sigmoid(0) = 1 / 2 and sigmoid(ln 3) = 3 / 4.
    actor: Any = _gaussian_actor([0.0, 0.0], spread="sigmoid", log_std=value, log_std_range=(-6.0, 0.0))
    assert "log_std" in dict(actor.named_parameters())
    assert _log_std(actor) == pytest.approx([expected, expected], abs=1e-6)


def test_a_fixed_spread_is_neither_learned_nor_clipped_but_saved() -> None:
    actor: Any = _gaussian_actor([0.0, 0.0], spread="fixed", log_std=-7.0)
    assert "log_std" not in dict(actor.named_parameters())
    assert "log_std" in actor.state_dict()
    assert _log_std(actor) == pytest.approx([-7.0, -7.0])


def _log_std(actor: Any) -> list[float]:
    log_std: Tensor = actor(ROWS)[1].detach().flatten()
    return log_std.tolist()
