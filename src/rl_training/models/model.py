"""The base class of every algorithm's networks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict, TypeVar, get_args, get_type_hints

from torch import Tensor, nn
from typing_extensions import NotRequired, Required

from rl_training.core.batches import Batch
from rl_training.models.encoders import SkipMask, encoder_for
from rl_training.models.mlp import ACTIVATIONS, Activation, ActivationFunction, Norm


class Shape(TypedDict, total=False):
    """The options of every model; `Model` explains them."""

    obs_dim: Required[int]
    action_dim: Required[int]
    encoder: nn.Module | None
    hidden_sizes: Sequence[int] | None
    actor_hidden_sizes: Sequence[int] | None
    critic_hidden_sizes: Sequence[int] | None
    activation: Activation | None
    layer_norm: Norm
    masked: bool


class StateShape(TypedDict):
    """The arguments of a network that takes observations."""

    obs_dim: int
    hidden_sizes: Sequence[int]
    encoder: nn.Module | None
    activation: NotRequired[ActivationFunction]
    norm: NotRequired[Norm]


class ActionShape(StateShape):
    """The arguments of a network that takes or gives actions too."""

    action_dim: int


S = TypeVar("S", StateShape, ActionShape)


def with_norm(shape: S, norm: Norm) -> S:
    """The arguments of a network that has this normalisation of its own, unless all networks have one."""
    if norm == "none" or "norm" in shape:
        return shape
    own = shape.copy()
    own["norm"] = norm
    return own


class Model(nn.Module):
    """The networks of one algorithm. Children are named by their role: actor, critic, value, vae, ...

    The hidden layers of all networks have `hidden_sizes`, unless the actor, or critics and value network, have sizes of
    their own. Each network has its own copy of the encoder. `activation` is the function between the layers of all
    networks, and `layer_norm` says whether and where all hidden layers are normalised. Observations that are `masked`
    begin with an action mask, which networks use only to exclude invalid actions.
    """

    actor: Any
    critic: Any
    default_sizes: ClassVar[Sequence[int]] = (256, 256)
    default_activation: ClassVar[Activation] = "relu"

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        encoder: nn.Module | None = None,
        hidden_sizes: Sequence[int] | None = None,
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        layer_norm: Norm = "none",
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.mask_dim = action_dim if masked else 0
        sizes = self.default_sizes if hidden_sizes is None else hidden_sizes
        chosen = activation or self.default_activation

        def shape(own: Sequence[int] | None) -> StateShape:
            front = copy.deepcopy(encoder)
            if masked:
                front = SkipMask(encoder_for(obs_dim - action_dim, front), action_dim)
            plain: StateShape = {"obs_dim": obs_dim, "hidden_sizes": sizes if own is None else own, "encoder": front}
            # Options that are not given are left out, so that a network need not take options that are not used.
            if chosen != "relu":
                plain["activation"] = ACTIVATIONS[chosen]
            return with_norm(plain, layer_norm)

        self.actor_shape: ActionShape = {"action_dim": action_dim, **shape(actor_hidden_sizes)}
        self.critic_shape: ActionShape = {"action_dim": action_dim, **shape(critic_hidden_sizes)}
        self.value_shape = shape(critic_hidden_sizes)

    @classmethod
    def accepts(cls) -> frozenset[str]:
        """The names of the keyword arguments of the constructor."""
        parameters = inspect.signature(cls).parameters
        rest = next((name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
        names = frozenset(parameters.keys() - {rest})
        if rest is None:
            return names
        # **shape: Unpack[Shape] stands for the keys of Shape. Without a type, it stands for what the parent takes.
        passed_on = get_args(get_type_hints(cls.__init__).get(rest))
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        parent: type[Model] = owner.__mro__[1]
        return names.union(*(shape.__annotations__ for shape in passed_on)) if passed_on else names | parent.accepts()

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Actions for observations, both as networks see them."""
        actions: Tensor = self.actor.act(obs, deterministic=deterministic)
        return actions

    @property
    def acting(self) -> tuple[str, ...]:
        """The children that `act` needs: the actor, or all of them where a model acts in a way of its own."""
        children = tuple(name for name, _ in self.named_children())
        return ("actor",) if type(self).act is Model.act else children

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor | None:
        """Log-probabilities (B,) with which `act` draws these actions, or log-densities; None where it has none.

        A deterministic policy has no density. Neither has one that chooses among actions which it draws.
        """
        log_prob = getattr(getattr(self, "actor", None), "log_prob", None)
        if log_prob is None or self.acting != ("actor",):
            return None
        found: Tensor = log_prob(obs, actions)
        return found

    def explore(self, obs: Tensor) -> tuple[Tensor, Batch]:
        """A sample of the policy to learn from, and columns that are stored beside the transition."""
        return self.act(obs, deterministic=False), {}

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of actions, by the smallest of the critics; for models with critics."""
        values: Tensor = self.critic(obs, actions).amin(-2)
        return values
