"""Groups of hyper-parameters: other defaults, and what mixins check together."""

from __future__ import annotations

import pytest
from pydantic import Field

from rl_training.algorithms.base.hyper import EntropyHyper, Hyper, ValueHyper
from rl_training.algorithms.cal_ql import CalQLHyper
from rl_training.algorithms.cql import CQLHyper
from rl_training.core.errors import ConfigError
from rl_training.core.options import describe, option, options, options_with


@options
class _Child(ValueHyper, EntropyHyper, learning_rate=1e-3, critic_hidden_sizes=(8, 8)):
    """Two options of the parents with other defaults, and one of its own."""

    own: int = Field(default=1, description="its own")
    agreed: float = option(0.5, "must agree with a checkpoint", agree=True, ge=0)


@options
class _Grandchild(_Child, own=3, agreed=0.25, learning_rate=1e-4):
    """Another default for both."""


def test_a_group_changes_defaults_of_its_parents_and_of_nothing_else() -> None:
    assert (_Child().learning_rate, _Child().critic_hidden_sizes, _Child().own) == (1e-3, (8, 8), 1)
    assert (_Grandchild().learning_rate, _Grandchild().critic_hidden_sizes, _Grandchild().own) == (1e-4, (8, 8), 3)
    assert (Hyper().learning_rate, ValueHyper().critic_hidden_sizes) == (3e-4, None)


@pytest.mark.parametrize("name", ["learning_rate", "critic_hidden_sizes"])
def test_type_bound_and_meaning_stay_those_of_the_parent(name: str) -> None:
    parent, child = ({row["name"]: row for row in describe(group)}[name] for group in (ValueHyper, _Grandchild))

    assert {**child, "default": None} == {**parent, "default": None}
    assert child["default"] != parent["default"]


def test_facts_about_an_option_hold_where_the_default_differs() -> None:
    assert _Grandchild().agreed == 0.25
    assert options_with("agree", _Child) == options_with("agree", _Grandchild)
    assert options_with("agree", _Grandchild)["agreed"] is True


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0.0), ("critic_hidden_sizes", (0,))])
def test_bounds_hold_where_the_default_differs(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        _Child(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"alpha": 0.1, "target_entropy": -1.0},
        {"failure_reward": -1.0},
        {"lagrange_form": "weight_inside"},
        {"penalty_clip_min": 2.0, "penalty_clip_max": 1.0},
        {"max_backup": "min_of_max", "backup_entropy": True},
    ],
)
def test_a_group_checks_what_each_of_its_parents_checks(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        CQLHyper(**values)  # type: ignore[arg-type]


def test_an_option_is_unused_by_the_default_of_its_own_group() -> None:
    assert CalQLHyper(failure_reward=-5.0).calibrated
    with pytest.raises(ConfigError, match="failure_reward has no effect without calibrated: true"):
        CalQLHyper(failure_reward=-5.0, calibrated=False)


def test_named_options_become_keyword_arguments() -> None:
    assert ValueHyper(gamma=0.5).only("tau", "gamma") == {"tau": 0.005, "gamma": 0.5}
