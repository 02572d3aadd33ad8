"""The table of algorithms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import packaged

from rl_training import runtime
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.experiment import AlgorithmSpec, get_algorithm_spec, list_algorithms

NAMES = sorted(ALGORITHMS)


def test_algorithms_are_listed_by_name() -> None:
    assert [spec.name for spec in list_algorithms()] == NAMES
    assert {"bc", "td3_bc"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_follows_from_the_class(name: str) -> None:
    spec = get_algorithm_spec(name)

    assert spec == AlgorithmSpec(name, ALGORITHMS[name])
    assert spec.mode in ("offline", "online", "offline_to_online")
    assert len(spec.idea) > 10
    assert packaged(name) in spec.configs
    assert all(config.split("/")[0] == name for config in spec.configs)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_an_algorithm_says_what_it_means(name: str) -> None:
    groups = get_algorithm_spec(name).options()

    assert list(groups)[1:] == ["DataOptions", "LoopOptions", "OnlineOptions", "ControlOptions", "GuardOptions"]
    assert not [row["name"] for rows in groups.values() for row in rows if not row["meaning"]]


def test_options_show_the_defaults_that_hold_for_the_algorithm() -> None:
    rows = {row["name"]: row for row in get_algorithm_spec("td3_bc").options()["DataOptions"]}

    assert ALGORITHMS["td3_bc"].defaults["normalize_obs"] is True
    assert rows["normalize_obs"]["default"] is True
    assert rows["clip_actions"]["default"] is False


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("td3_cb", "unknown algorithm 'td3_cb'; did you mean 'td3_bc'?"),
        ("zzzzzz", f"unknown algorithm 'zzzzzz'; there are {', '.join(NAMES)}, and your own with --import"),
    ],
)
def test_an_unknown_algorithm_is_answered_with_the_nearest_or_all(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_algorithm_spec(name)

    assert str(caught.value) == words


def test_a_config_of_another_algorithm_is_refused(tiny_config: Callable[..., TrainConfig]) -> None:
    with pytest.raises(ConfigError, match="the config is for 'bc', not for 'td3_bc'"):
        get_algorithm_spec("td3_bc").train(tiny_config("bc"))


def test_an_algorithm_is_in_the_table_and_has_its_function_once_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ALGORITHMS, "a_twin", ALGORITHMS["bc"])

    assert [spec.name for spec in list_algorithms()] == ["a_twin", *NAMES]
    assert runtime.train_a_twin.__name__ == "train_a_twin"
