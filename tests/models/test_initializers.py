"""How networks start: what each recipe fills a layer with, and which networks use which."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.models import MLP, EnsembleMLP, MLPBCModel, MLPIQLModel
from rl_training.models.initializers import (
    Init,
    orthogonal,
    orthogonal_head,
    orthogonal_small_last,
    small_last,
    uniform,
    uniform_small_last,
    xavier,
    xavier_small_last,
)
from rl_training.models.mlp import EnsembleRenormMLP

Layers = list[tuple[Tensor, Tensor]]
"""Weight (fan_out, fan_in) and bias of each layer."""

OBS_DIM, ACTION_DIM = 11, 3
WIDTHS = (48, 40)


def _filled(init: Init, fan_out: int, fan_in: int, *, last: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    weight, bias = torch.full((fan_out, fan_in), 9.0), torch.full((fan_out,), 9.0)
    init(weight, bias, last)
    return weight, bias


def _assert_uniform(values: Tensor, bound: float) -> None:
    """Within the bound, and spread as far as a uniform distribution is: deviation bound / sqrt(3)."""
    assert float(values.abs().max()) <= bound * (1 + 1e-6)
    # Of n values the largest is within the outer 10 / n of the bound but for e^-10; the mean is near 0.
    assert float(values.abs().max()) >= bound * (1 - 10 / values.numel())
    if values.numel() >= 100:
        assert float(values.square().mean().sqrt()) == pytest.approx(bound / math.sqrt(3), rel=0.15)


def _assert_orthogonal(weight: Tensor, gain: float) -> None:
    """Rows, or columns where there are fewer of them, of length `gain` and at right angles."""
    short = weight if weight.shape[0] <= weight.shape[1] else weight.T
    torch.testing.assert_close(short @ short.T, gain**2 * torch.eye(len(short)), atol=1e-5 * gain**2, rtol=1e-5)


def _is_torch(layers: Layers) -> None:
    for weight, bias in layers:
        bound = 1 / math.sqrt(weight.shape[1])
        _assert_uniform(weight, bound)
        assert float(bias.abs().max()) <= bound
        assert float(bias.abs().min()) > 0


def _is_rlkit(bound: float) -> Callable[[Layers], None]:
    def check(layers: Layers) -> None:
        *hidden, (last_weight, last_bias) = layers
        for weight, bias in hidden:
            _assert_uniform(weight, 1 / math.sqrt(weight.shape[1]))
            assert bias.tolist() == pytest.approx([0.1] * len(bias))
        _assert_uniform(last_weight, bound)
        assert 0 < float(last_bias.abs().max()) <= bound

    return check


def _is_orthogonal(last_gain: float) -> Callable[[Layers], None]:
    def check(layers: Layers) -> None:
        for number, (weight, bias) in enumerate(layers, start=1):
            _assert_orthogonal(weight, last_gain if number == len(layers) else math.sqrt(2))
            assert not bias.any()

    return check


def _is_torch_with_small_last(layers: Layers) -> None:
    *hidden, (weight, bias) = layers
    _is_torch(hidden)
    _assert_uniform(weight, 0.01 * math.sqrt(6 / sum(weight.shape)))
    assert not bias.any()


def _is_xavier(last_bound: float | None) -> Callable[[Layers], None]:
    def check(layers: Layers) -> None:
        for number, (weight, bias) in enumerate(layers, start=1):
            bound = math.sqrt(6 / sum(weight.shape))
            _assert_uniform(weight, last_bound if last_bound and number == len(layers) else bound)
            assert not bias.any()

    return check


CHECKS: dict[str, tuple[Init, Callable[[Layers], None]]] = {
    "uniform": (uniform, _is_torch),
    "small_last": (small_last(3e-3), _is_rlkit(3e-3)),
    "smaller_last": (small_last(1e-3), _is_rlkit(1e-3)),
    "orthogonal": (orthogonal, _is_orthogonal(math.sqrt(2))),
    "orthogonal_small_last": (orthogonal_small_last, _is_orthogonal(0.01)),
    "uniform_small_last": (uniform_small_last, _is_torch_with_small_last),
    "xavier_small_last": (xavier_small_last, _is_xavier(0.01)),
    "xavier": (xavier, _is_xavier(None)),
    "orthogonal_unit_last": (orthogonal_head(1.0), _is_orthogonal(1.0)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_recipe_fills_hidden_and_last_layers_as_described(name: str) -> None:
    init, check = CHECKS[name]
    check([_filled(init, 50, 30, last=False), _filled(init, 20, 50, last=False), _filled(init, 4, 20, last=True)])


@pytest.mark.parametrize("name", CHECKS)
def test_recipes_can_be_told_apart(name: str) -> None:
    init, _ = CHECKS[name]
    layers = [_filled(init, 50, 30, last=False), _filled(init, 20, 50, last=False), _filled(init, 4, 20, last=True)]
    fitting = []
    for other, (_, check) in CHECKS.items():
        try:
            check(layers)
        except AssertionError:
            continue
        fitting.append(other)
    assert fitting == [name]


def test_the_default_is_what_torch_does() -> None:
    torch.manual_seed(0)
    ours = _filled(uniform, 400, 300, last=False)
    theirs = nn.Linear(300, 400)
    for mine, other in zip(ours, (theirs.weight, theirs.bias), strict=True):
        assert float(mine.abs().max()) == pytest.approx(float(other.detach().abs().max()), rel=0.01)
        assert float(mine.std()) == pytest.approx(float(other.detach().std()), rel=0.1)


def _perceptron_layers(network: MLP) -> Layers:
    return [(layer.weight.detach(), layer.bias.detach()) for layer in network.layers if isinstance(layer, nn.Linear)]


def _member_layers(network: EnsembleMLP | EnsembleRenormMLP, member: int) -> Layers:
    layers: Any = network.layers
    return [(layer.weight[member].detach().T, layer.bias[member].detach()) for layer in layers]


@pytest.mark.parametrize("name", CHECKS)
def test_a_perceptron_and_every_member_of_an_ensemble_follow_the_recipe(name: str) -> None:
    init, check = CHECKS[name]
    torch.manual_seed(0)
    check(_perceptron_layers(MLP(30, (50, 20), 4, init=init)))
    ensemble = EnsembleMLP(3, 30, (50, 20), 4, init=init)
    for member in range(3):
        check(_member_layers(ensemble, member))


@pytest.mark.parametrize("name", CHECKS)
def test_members_of_an_ensemble_start_differently(name: str) -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(3, 30, (50, 20), 4, init=CHECKS[name][0])
    layers: Any = ensemble.layers
    for layer in layers:
        for first, second in ((0, 1), (0, 2), (1, 2)):
            assert not torch.equal(layer.weight[first], layer.weight[second])


def test_normalisation_starts_as_the_identity() -> None:
    for network in (MLP(30, (50, 20), 4, norm="before"), EnsembleMLP(3, 30, (50, 20), 4, norm="after")):
        norms: Any = network.norms
        assert len(norms) == 2
        assert all(bool((norm.weight == 1).all()) and not norm.bias.any() for norm in norms)


USES: dict[str, dict[str, str]] = {
    "bc": {"actor": "uniform"},
    "td3_bc": {"actor": "uniform", "critic": "uniform"},
    "bcq": {"actor": "uniform", "critic": "uniform", "vae": "uniform"},
    "awac": {"actor": "uniform", "critic": "uniform"},
    "crr": {"actor": "uniform", "critic": "uniform"},
    "marwil": {"actor": "uniform", "value": "uniform"},
    "ddpg": {"actor": "uniform", "critic": "uniform"},
    "td3": {"actor": "uniform", "critic": "uniform"},
    "sac": {"actor": "uniform", "critic": "uniform"},
    "her": {"actor": "uniform", "critic": "uniform"},
    "tqc": {"actor": "uniform", "critic": "uniform"},
    "crossq": {"actor": "uniform", "critic": "uniform"},
    "dqn": {"critic": "uniform"},
    "discrete_bcq": {"critic": "uniform", "clone": "uniform"},
    "discrete_cql": {"critic": "uniform"},
    "discrete_iql": {"actor": "uniform", "critic": "uniform", "value": "uniform"},
    "discrete_crr": {"actor": "uniform", "critic": "uniform"},
    "discrete_sac": {"actor": "uniform", "critic": "uniform"},
    "ppo": {"actor": "orthogonal_small_last", "value": "orthogonal_unit_last"},
    # rlkit's: a small last layer, smaller for actors.
    "bear": {"actor": "smaller_last", "critic": "small_last", "vae": "uniform"},
    "rebrac": {"actor": "smaller_last", "critic": "small_last"},
    "sac_n": {"actor": "smaller_last", "critic": "small_last"},
    "edac": {"actor": "smaller_last", "critic": "small_last"},
    # jaxrl's.
    "iql": {"actor": "orthogonal", "critic": "orthogonal", "value": "orthogonal"},
    "xql": {"actor": "orthogonal", "critic": "orthogonal", "value": "orthogonal"},
    # CQL as reproduced: orthogonal critics, and an actor that is not; Cal-QL has both.
    "cql": {"actor": "uniform_small_last", "critic": "orthogonal_small_last"},
    "cal_ql": {"actor": "orthogonal_small_last", "critic": "orthogonal_small_last"},
    "redq": {"actor": "xavier", "critic": "xavier"},
    "rlpd": {"actor": "xavier", "critic": "xavier"},
    "awr": {"actor": "xavier_small_last", "value": "xavier"},
}


def test_every_algorithm_is_listed() -> None:
    assert USES.keys() == ALGORITHMS.keys()


def _networks(child: nn.Module) -> list[Layers]:
    """The layers of every perceptron inside a child of a model."""
    found: list[Layers] = []
    for module in child.modules():
        if isinstance(module, MLP):
            found.append(_perceptron_layers(module))
        elif isinstance(module, (EnsembleMLP, EnsembleRenormMLP)):
            members: Any = module.layers[0].weight
            found += [_member_layers(module, member) for member in range(len(members))]
    return found


def _build(name: str, **hyper: Any) -> Any:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    wide: dict[str, Any] = {f: WIDTHS for f in cls.hyper_class.__dataclass_fields__ if f.endswith("hidden_sizes")}
    spaces = SpaceSpec.vector(OBS_DIM, BoxActions((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM))
    if "continuous" not in cls.action_kinds:
        spaces = SpaceSpec.vector(OBS_DIM, DiscreteActions(ACTION_DIM))
    return cls.build(spaces, cls.hyper_class(**wide, **hyper))


@pytest.mark.parametrize("name", USES)
def test_an_algorithms_networks_start_as_published(name: str) -> None:
    algorithm = _build(name)
    for child, recipe in USES[name].items():
        networks = _networks(getattr(algorithm.model, child))
        assert networks
        for layers in networks:
            CHECKS[recipe][1](layers)


@pytest.mark.parametrize("name", USES)
def test_lagged_copies_start_equal_to_what_they_follow(name: str) -> None:
    algorithm = _build(name)
    for child, target in algorithm.target.named_children():
        source = getattr(algorithm.model, child).state_dict()
        assert all(torch.equal(value, source[key]) for key, value in target.state_dict().items())


def test_learned_numbers_start_as_published() -> None:
    # Temperatures at 1; the multiplier of CQL's penalty at e, that of BEAR's distance at 1.
    assert [_build(name).model.temperature().item() for name in ("cql", "cal_ql", "sac_n", "edac")] == [1.0] * 4
    assert _build("cql").model.lagrange.log_value.item() == 1.0
    assert _build("bear").model.lagrange.log_value.item() == 0.0
    # The factor and the offset of CQL's log-deviation.
    assert _build("cql").model.actor.std_affinity.tolist() == [1.0, -1.0]
    # Deviations: 1 for IQL; through AWAC's sigmoid, the middle of [-6, 0]; fixed at 0.4 for AWR.
    obs = torch.zeros(1, OBS_DIM)
    assert _build("iql").model.actor(obs)[1].tolist() == [0.0] * ACTION_DIM
    assert _build("awac", spread="sigmoid").model.actor(obs)[1].tolist() == [-3.0] * ACTION_DIM
    assert _build("awr").model.actor(obs)[1].tolist() == pytest.approx([math.log(0.4)] * ACTION_DIM)


def test_options_of_the_policy_keep_the_recipe() -> None:
    torch.manual_seed(0)
    sizes: Any = {"obs_dim": OBS_DIM, "action_dim": ACTION_DIM, "hidden_sizes": WIDTHS}
    for model, recipe in (
        (MLPIQLModel(**sizes, policy="deterministic"), "orthogonal"),
        (MLPIQLModel(**sizes, value_layer_norm=True), "orthogonal"),
        (MLPBCModel(**sizes, policy="stochastic"), "uniform"),
    ):
        for layers in _networks(model):
            CHECKS[recipe][1](layers)
