"""A policy as arrays that a few lines of numpy can run, where its network is a plain perceptron."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.acting.policy import Policy
from rl_training.core.spaces import BoxActions
from rl_training.models.activations import ACTIVATIONS
from rl_training.models.actors import DeterministicActor, GaussianActor, TanhGaussianActor
from rl_training.models.discrete import CategoricalActor, ChoiceCritic
from rl_training.models.discrete_models import MLPDQNModel
from rl_training.models.encoders import BehindMask, Network, VectorEncoder
from rl_training.models.mlp import MLP
from rl_training.models.model import Model
from rl_training.models.novelty import Novelty


def plain_arrays(policy: Policy, novelty: Novelty | None) -> dict[str, NDArray[Any]] | str:
    """The layers W0, b0, W1, b1, ... with what goes before and after them; or why the policy is not that plain."""
    found = _network(policy.model)
    if isinstance(found, str):
        return found
    network, head, outputs = found
    mlp = network.mlp
    encoder = network.encoder.encoder if isinstance(network.encoder, BehindMask) else network.encoder
    if type(mlp) is not MLP or not isinstance(encoder, VectorEncoder):
        return "its network is more than a perceptron: it has an encoder, or normalises by the batch"
    if mlp.norm != "none":
        return "its layers are normalised"
    names = [name for name, function in ACTIVATIONS.items() if function is mlp.activation]
    if not names:
        return "its activation has no name"
    arrays: dict[str, NDArray[Any]] = {}
    for number, layer in enumerate(mlp.layers):
        # Some networks have outputs that the action does not depend on, such as a standard deviation.
        kept = outputs if number == len(mlp.layers) - 1 else slice(None)
        arrays |= {f"W{number}": _numpy(layer.weight[kept]), f"b{number}": _numpy(layer.bias[kept])}
    arrays |= {"activation": np.array(names[0]), "head": np.array(head)}
    arrays |= {"obs_mean": _numpy(policy.obs_mean), "obs_std": _numpy(policy.obs_std)}
    space = policy.spaces.action
    if isinstance(space, BoxActions):
        arrays |= {"low": np.array(space.low, dtype=np.float32), "high": np.array(space.high, dtype=np.float32)}
    else:
        arrays["start"] = np.array(space.start)
        arrays["masked"] = np.array(space.count if policy.spaces.is_masked else 0)
    if novelty is not None:
        arrays |= {"codebook": _numpy(novelty.codebook), "distance": _numpy(novelty.distance)}
        arrays |= {"novelty_mean": _numpy(novelty.mean), "novelty_std": _numpy(novelty.std)}
    return arrays


def _network(model: Model) -> tuple[Network, str, slice] | str:
    """The network that acts, what is done with its outputs, and which of them the action depends on."""
    if type(model).act is MLPDQNModel.act and isinstance(model.critic, ChoiceCritic):
        if model.critic.num_quantiles is not None:
            return "its value is a mean of quantiles"
        # With `dueling`, the first output is the value of the state, which all choices share.
        return model.critic, "argmax", slice(1 if model.critic.dueling else 0, None)
    if model.acting != ("actor",):
        return "it chooses among candidate actions"
    actor = model.actor
    if type(actor) is CategoricalActor:
        return actor, "argmax", slice(None)
    if type(actor) not in (DeterministicActor, TanhGaussianActor, GaussianActor):
        return f"numpy knows no actor such as {type(actor).__name__}"
    is_clipped = type(actor) is GaussianActor and not actor.squash_mean
    return actor, "clip" if is_clipped else "tanh", slice(model.action_dim)


def _numpy(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().numpy()
    return found
