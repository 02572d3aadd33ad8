"""Options of the networks that every algorithm has: they change all of its networks, or they are refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from own_encoders import Waves
from torch import Tensor

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Hyper
from rl_training.core.batches import Batch
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.models import Model
from rl_training.models.mlp import ACTIVATIONS, Perceptron

BOX = SpaceSpec.vector(4, BoxActions((-1.0, -1.0), (1.0, 1.0)))
DISCRETE = SpaceSpec.vector(4, DiscreteActions(3))
CASES = [
    pytest.param(name, spaces, id=f"{name}-{spaces.action.kind}")
    for name, cls in sorted(ALGORITHMS.items())
    for spaces in (BOX, DISCRETE)
    if spaces.action.kind in cls.action_kinds
]
LAYER_NORM_CASES = [case for case in CASES if case.values[0] != "crossq"]


def _model(name: str, spaces: SpaceSpec, **options: Any) -> Model:
    """The networks of an algorithm, with the same weights for all options that leave the sizes alone."""
    cls = ALGORITHMS[name]
    small = {"hidden_sizes": (8, 8), "critic_hidden_sizes": (8, 8), "vae_hidden_sizes": (8, 8)}
    known = {field: sizes for field, sizes in small.items() if field in cls.hyper_class.__dataclass_fields__}
    torch.manual_seed(0)
    return cls.build_model(spaces, cls.hyper_class(**known | options))


def _hyper(name: str, **options: Any) -> Hyper:
    return ALGORITHMS[name].hyper_class(**options)


def _batch() -> Batch:
    batch = {"obs": torch.randn(64, 4), "actions": torch.rand(64, 2) * 2 - 1, "next_obs": torch.randn(64, 4)}
    return batch | {"rewards": torch.randn(64), "dones": torch.ones(64)}


def _outputs(model: Model) -> dict[str, Tensor]:
    """What each perceptron in a model answers to the same inputs."""
    perceptrons = {name: part for name, part in model.named_modules() if isinstance(part, Perceptron)}
    generator = torch.Generator().manual_seed(1)
    fans = zip(perceptrons.items(), _fans(model), strict=True)
    return {name: part(torch.randn(5, fan_in, generator=generator)).detach() for (name, part), fan_in in fans}


def _fans(model: Model) -> list[int]:
    """The number of inputs of each perceptron in a model."""
    weights = [part.layers[0].weight for part in model.modules() if isinstance(part, Perceptron)]
    return [weight.shape[-1] if weight.ndim == 2 else weight.shape[1] for weight in weights]


def _assert_all_differ(*models: Model) -> None:
    for first, second in combinations(map(_outputs, models), 2):
        assert first.keys() == second.keys()
        assert len(first) >= 1
        for name in first:
            assert not torch.allclose(first[name], second[name]), name


@pytest.mark.parametrize(("name", "spaces"), CASES)
def test_the_activation_is_that_of_every_network(name: str, spaces: SpaceSpec) -> None:
    _assert_all_differ(*(_model(name, spaces, activation=each) for each in ("relu", "tanh", "gelu")))


@pytest.mark.parametrize(("name", "spaces"), LAYER_NORM_CASES)
def test_layer_normalisation_is_that_of_every_network(name: str, spaces: SpaceSpec) -> None:
    own = {field: False for field in ALGORITHMS[name].hyper_class.__dataclass_fields__ if field.endswith("_layer_norm")}
    models = [_model(name, spaces, layer_norm="none", **own)]
    models += [_model(name, spaces, layer_norm=each) for each in ("before", "after")]
    _assert_all_differ(*models)


@pytest.mark.parametrize(("name", "spaces"), CASES)
def test_the_encoder_stands_in_front_of_every_network(name: str, spaces: SpaceSpec) -> None:
    plain = _model(name, spaces)
    model = _model(name, spaces, encoder="own_encoders:Waves", encoder_kwargs={"count": 3})
    networks = {place.split(".")[0] for place, part in model.named_modules() if isinstance(part, Perceptron)}
    encoders = {place.split(".")[0]: part for place, part in model.named_modules() if isinstance(part, Waves)}
    assert encoders.keys() == networks
    assert len({id(encoder.mixture.weight) for encoder in encoders.values()}) == len(networks)
    for first, second in zip(_fans(plain), _fans(model), strict=True):
        assert second == first + 3


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_algorithms_keep_the_activation_of_their_papers(name: str) -> None:
    usual = "tanh" if name in ("ppo", "marwil") else "relu"
    cls = ALGORITHMS[name]
    assert cls.hyper_class().activation == cls.model_class.default_activation == usual


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_learns(activation: str) -> None:
    torch.manual_seed(0)
    hyper = _hyper("td3_bc", hidden_sizes=(16, 16), activation=activation, learning_rate=0.01)
    algorithm = ALGORITHMS["td3_bc"].build(BOX, hyper)
    batch = _batch()
    losses = [float(algorithm.update(batch).metrics["critic_loss"]) for _ in range(200)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("name", "own"), [("rebrac", False), ("rlpd", False), ("redq", True), ("crr", True)])
def test_two_options_that_say_how_critics_are_normalised_are_refused(name: str, own: bool) -> None:
    words = "critic_layer_norm does not go with layer_norm: after, which normalises all networks: leave one of them out"
    with pytest.raises(ConfigError, match=words):
        _hyper(name, layer_norm="after", critic_layer_norm=own)


def test_xqls_value_is_normalised_by_one_option_only() -> None:
    with pytest.raises(ConfigError, match="value_layer_norm does not go with layer_norm: before"):
        _hyper("xql", layer_norm="before", value_layer_norm=False)


def test_crossq_refuses_layer_normalisation_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match="layer_norm does not go with crossq, which normalises its layers by the batch"
    ):
        _hyper("crossq", layer_norm="before")


def test_arguments_without_an_encoder_are_refused() -> None:
    with pytest.raises(ConfigError, match="encoder_kwargs has no effect without encoder"):
        _hyper("td3_bc", encoder_kwargs={"count": 3})


def test_arguments_that_no_file_can_hold_are_refused() -> None:
    words = r"encoder_kwargs.count must be a number, text, a boolean, null, a list or a mapping, got \(1, 2\)"
    with pytest.raises(ConfigError, match=words):
        _hyper("td3_bc", encoder="own_encoders:Waves", encoder_kwargs={"count": (1, 2)})


def test_a_frozen_part_of_an_encoder_stays_as_it_is() -> None:
    torch.manual_seed(0)
    hyper = _hyper("td3_bc", hidden_sizes=(8,), encoder="own_encoders:FrozenWaves", policy_delay=1)
    algorithm: Any = ALGORITHMS["td3_bc"].build(BOX, hyper)
    before = {name: value.clone() for name, value in algorithm.model.named_parameters()}
    algorithm.update(_batch())
    moved = {name for name, value in algorithm.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "mixture" not in name}
