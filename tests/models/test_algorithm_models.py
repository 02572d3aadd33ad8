"""What bundles take, how wide their networks are, and encoders in front of every network."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training import models
from rl_training.models import (
    CategoricalActor,
    DiscreteCritic,
    EnsembleMLP,
    MLPAWRModel,
    MLPCrossQModel,
    MLPDDPGModel,
    MLPREDQModel,
    MLPTD3Model,
    Model,
    QEnsemble,
)
from rl_training.models.critics import Critic, QuantileEnsemble
from rl_training.models.mlp import EnsembleLinear

BUNDLES: dict[str, Any] = {
    name: value
    for name, value in vars(models).items()
    if inspect.isclass(value) and issubclass(value, Model) and value is not Model
}
SHAPE = {"obs_dim", "action_dim", "encoder", "hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes"}
SHAPE |= {"activation", "layer_norm", "masked"}
SPACES: dict[str, Any] = {"obs_dim": 3, "action_dim": 2}


class Mean(nn.Module):
    """Images (B, 4, 4) to one learned multiple of their mean, four times."""

    output_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, obs: Tensor) -> Tensor:
        return self.factor * obs.mean((-2, -1))[..., None]


def _widths(network: Any) -> list[int]:
    return [layer.bias.shape[-1] for layer in network.mlp.layers][:-1]


def _small(cls: type[Model], **options: Any) -> Any:
    torch.manual_seed(0)
    vae = {"vae_hidden_sizes": (8,)} if "vae_hidden_sizes" in cls.accepts() else {}
    return cls(**{**SPACES, "hidden_sizes": (8,), "critic_hidden_sizes": (8,), **vae, **options})


def test_a_bundle_says_which_keyword_arguments_it_takes() -> None:
    assert Model.accepts() == SHAPE
    assert MLPTD3Model.accepts() == SHAPE | {"num_critics"}
    assert MLPDDPGModel.accepts() == SHAPE
    assert MLPREDQModel.accepts() == SHAPE | {"num_critics", "critic_dropout", "critic_layer_norm", "alpha"}


def test_a_model_with_a_plain_signature_takes_what_it_names() -> None:
    class Own(Model):
        def __init__(self, *, obs_dim: int, action_dim: int, width: int = 8) -> None:
            super().__init__(obs_dim=obs_dim, action_dim=action_dim)

    assert Own.accepts() == {"obs_dim", "action_dim", "width"}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_refuses_what_it_does_not_know(name: str) -> None:
    with pytest.raises(TypeError, match="hiden_sizes"):
        BUNDLES[name](**SPACES, hiden_sizes=(8,))
    with pytest.raises(TypeError, match="action_dim"):
        BUNDLES[name](obs_dim=3)


@pytest.mark.parametrize(
    ("cls", "options", "actor", "critic"),
    [
        (MLPTD3Model, {}, [256, 256], [256, 256]),
        (MLPTD3Model, {"hidden_sizes": (5, 6)}, [5, 6], [5, 6]),
        (MLPTD3Model, {"hidden_sizes": ()}, [], []),
        (MLPTD3Model, {"hidden_sizes": (5,), "actor_hidden_sizes": (6,)}, [6], [5]),
        (MLPTD3Model, {"hidden_sizes": (5,), "critic_hidden_sizes": (6,)}, [5], [6]),
        (MLPCrossQModel, {"hidden_sizes": (5,)}, [5], [1024, 1024]),
        (MLPCrossQModel, {"hidden_sizes": (5,), "critic_hidden_sizes": None}, [5], [5]),
    ],
)
def test_networks_are_as_wide_as_told(
    cls: type[Model], options: dict[str, Any], actor: list[int], critic: list[int]
) -> None:
    model: Any = cls(**SPACES, **options)
    assert (_widths(model.actor), _widths(model.critic)) == (actor, critic)


def test_a_bundle_has_its_own_default_widths() -> None:
    model = MLPAWRModel(obs_dim=3, action_dim=2)
    assert (_widths(model.actor), _widths(model.value)) == ([128, 64], [128, 64])


@pytest.mark.parametrize("name", BUNDLES)
def test_without_an_encoder_there_is_nothing_more_in_the_state(name: str) -> None:
    model = _small(BUNDLES[name])
    # The one half of a behaviour model is called encoder too.
    assert not [key for key in model.state_dict() if "encoder" in key and not key.startswith("vae.encoder.layers")]


@pytest.mark.parametrize("name", BUNDLES)
def test_every_network_sees_observations_through_an_encoder_of_its_own(name: str) -> None:
    model = _small(BUNDLES[name], encoder=Mean())
    obs, actions = torch.randn(5, 4, 4), torch.rand(5, 2)
    roles = ("actor", "critic", "value", "vae", "clone")
    networks = {role: child for role, child in model.named_children() if role in roles}
    for role, network in networks.items():
        found = network(obs, actions) if "actions" in inspect.signature(network.forward).parameters else network(obs)
        total = torch.cat([part.flatten() for part in (found if isinstance(found, tuple) else (found,))]).square().sum()
        factors = {place: value for place, value in model.named_parameters() if place.endswith("encoder.factor")}
        used = torch.autograd.grad(total, list(factors.values()), allow_unused=True)
        reached = [place for place, gradient in zip(factors, used, strict=True) if gradient is not None]
        assert [place.split(".")[0] for place in reached] == [role], network
    is_discrete = any(isinstance(network, (CategoricalActor, DiscreteCritic)) for network in networks.values())
    # The networks of FQE value a policy, and have none.
    for deterministic in (True, False) if name != "MLPFQEModel" else ():
        assert model.act(obs, deterministic=deterministic).shape == ((5,) if is_discrete else (5, 2))


def test_an_encoder_may_see_several_actions_per_state() -> None:
    model = _small(MLPTD3Model, encoder=Mean())
    obs, actions = torch.randn(5, 4, 4), torch.rand(7, 5, 2)
    together = model.critic(obs, actions)
    torch.testing.assert_close(together, torch.stack([model.critic(obs, each) for each in actions]))


def _layers(ensemble: EnsembleMLP) -> list[EnsembleLinear]:
    return [layer for layer in ensemble.layers if isinstance(layer, EnsembleLinear)]


def _alone(ensemble: EnsembleMLP, member: int, inputs: Tensor) -> Tensor:
    for number, layer in enumerate(_layers(ensemble)):
        inputs = inputs @ layer.weight[member] + layer.bias[member]
        inputs = inputs.relu() if number < len(ensemble.layers) - 1 else inputs
    return inputs


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_ensemble_equals_a_loop_over_its_members(size: int) -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(size, 6, (7, 5), 2).double()
    inputs = torch.randn(9, 6, dtype=torch.float64)
    expected = torch.stack([_alone(ensemble, member, inputs) for member in range(size)])
    torch.testing.assert_close(ensemble(inputs), expected)


@pytest.mark.parametrize(
    "critic",
    [QEnsemble(4, 2, hidden_sizes=(8,), size=3), QuantileEnsemble(4, 2, hidden_sizes=(8,), size=3, num_quantiles=5)],
)
def test_several_actions_per_state_are_one_more_leading_axis(critic: Critic) -> None:
    torch.manual_seed(0)
    critic = critic.double()
    obs, actions = torch.randn(5, 4, dtype=torch.float64), torch.randn(6, 5, 2, dtype=torch.float64)
    values = critic(obs, actions)
    assert values.shape == (6, 3, 5)
    for sample in range(6):
        torch.testing.assert_close(values[sample], critic(obs, actions[sample]))


def test_every_member_starts_within_one_over_the_root_of_its_fan_in() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(4, 100, (50,), 1)
    for layer, fan_in in zip(_layers(ensemble), (100, 50), strict=True):
        bound = 1 / math.sqrt(fan_in)
        for values in (*layer.weight, *layer.bias):
            assert float(values.detach().abs().max()) <= bound
        # Uniform within the bound has a standard deviation of bound / sqrt(3).
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    first, second = _layers(ensemble)[0].weight[:2].detach()
    assert not torch.equal(first, second)
