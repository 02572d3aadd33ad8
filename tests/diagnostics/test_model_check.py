"""Models of the user's own that lack something: one sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS, Step
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.models import MLPTD3Model, Model
from rl_training.runtime import train

MakeConfig = Callable[..., TrainConfig]


class Sizeless(MLPTD3Model):
    """Does not call the constructor of its parent."""

    def __init__(self, *, obs_dim: int, action_dim: int, **shape: Any) -> None:
        nn.Module.__init__(self)


class CriticOnly(Model):
    """Has no actor."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.critic = MLPTD3Model(**shape).critic


class LinearActor(MLPTD3Model):
    """Has an actor that cannot act."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.actor = nn.Linear(self.obs_dim, self.action_dim)


class Flat(MLPTD3Model):
    """Forgets an axis of its actions."""

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        return super().act(obs, deterministic=deterministic)[:, 0]


class Misspelt(MLPTD3Model):
    """Raises an error when it acts."""

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        actions: Tensor = self.get_submodule("policy")(obs)
        return actions


class StateCritic(MLPTD3Model):
    """Has a critic that values states."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.critic = nn.Linear(self.obs_dim, 1)


class BareExplorer(MLPTD3Model):
    """Explores without columns."""

    def explore(self, obs: Tensor) -> Any:
        return self.act(obs, deterministic=False)


class Talkative(MLPTD3Model):
    """Gives a column that is not declared."""

    def explore(self, obs: Tensor) -> Any:
        return self.act(obs, deterministic=False), {"log_probs": torch.zeros(len(obs))}


ACT = "a network called actor or a method act(obs, *, deterministic)"
MODELS: dict[type[Model], str] = {
    Sizeless: "Sizeless, the model of TD3BC, has no obs_dim: its constructor must call "
    "super().__init__(obs_dim=obs_dim, action_dim=action_dim)",
    CriticOnly: "step 'actor' of TD3BC names 'actor', which CriticOnly lacks; it has critic",
    LinearActor: "LinearActor, the model of TD3BC, cannot act: its actor, Linear, needs a method "
    "act(obs, *, deterministic)",
    Flat: "Flat.act gives (2,) for 2 observations, expected (2, 1)",
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_model_that_lacks_something_is_refused_before_anything_is_written(
    model: type[Model], tiny_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS["td3_bc"], "model_class", model)
    with pytest.raises(ConfigError) as error:
        train(tiny_config("td3_bc"))
    assert str(error.value) == MODELS[model]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Misspelt, r"Misspelt.act\(\(2, 3\), deterministic=False\) failed in line \d+: AttributeError: .*policy"),
        (StateCritic, r"StateCritic.values\(\(2, 3\), \(2, 1\)\) failed: TypeError"),
    ],
)
def test_what_fails_is_named_with_its_call(
    model: type[Model], words: str, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS["td3_bc"], "model_class", model)
    with pytest.raises(ConfigError, match=words):
        train(tiny_config("td3_bc"))


def test_without_an_actor_a_model_must_act_itself(tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = ALGORITHMS["td3_bc"]
    monkeypatch.setattr(cls, "model_class", CriticOnly)
    monkeypatch.setattr(cls, "steps", (Step("critic"),), raising=False)
    with pytest.raises(ConfigError) as error:
        train(tiny_config("td3_bc"))
    assert str(error.value) == f"CriticOnly, the model of TD3BC, cannot act: it needs {ACT}"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (BareExplorer, "BareExplorer.explore must give actions and a mapping of columns, got Tensor"),
        (
            Talkative,
            "Talkative.explore gives the columns log_probs, extra_columns of the algorithm names none",
        ),
    ],
)
def test_a_run_that_acts_asks_how_the_model_explores(
    model: type[Model], words: str, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS["td3"], "model_class", model)
    with pytest.raises(ConfigError) as error:
        train(tiny_config("td3"))
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            Step("critic", tracks=("critc",)),
            "step 'critic' of TD3BC names 'critc', which .* lacks; did you mean 'critic'",
        ),
        (
            Step("critic", every="policy_dely"),
            "every of step 'critic' of TD3BC is 'policy_dely', which TD3BCHyper does ",
        ),
        (Step("reward"), "step 'reward' of TD3BC names 'reward', which MLPTD3Model lacks; it has actor, critic"),
        (Step("extra", trains=("actor",)), "TD3BC declares step 'extra' but has no method extra_loss"),
    ],
)
def test_a_step_that_names_what_is_not_there_is_refused(
    step: Step, words: str, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS["td3_bc"], "steps", (step,), raising=False)
    with pytest.raises(ConfigError, match=words):
        train(tiny_config("td3_bc"))
