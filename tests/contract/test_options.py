"""Options of every algorithm: bounds that hold, mistakes that are named, defaults that are the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}

UNBOUNDED = {"failure_reward", "initial_log_lagrange", "log_std", "penalty_clip_max", "penalty_clip_min"}
UNBOUNDED |= {"conservative_gap", "target_entropy"}
"""Numbers that may be anything finite."""


def _leaves(hint: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The types that an option may have, each with the bounds that are written at the type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for part in inner:
            yield from _leaves(part)
    elif origin is Annotated:
        bounds = _bounds([item for extra in inner[1:] for item in getattr(extra, "metadata", ())])
        yield from ((leaf, found | bounds) for leaf, found in _leaves(inner[0]))
    elif hint is not type(None):
        yield hint, {}


def _is_bound(item: Any) -> bool:
    return is_dataclass(item) and not isinstance(item, type)


def _bounds(metadata: Any) -> dict[str, Any]:
    return {name: limit for item in metadata if _is_bound(item) for name, limit in asdict(item).items()}


def _options(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each option of an algorithm with its type and its bounds; one for each type that it may have."""
    group = ALGORITHMS[name].hyper_class
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        info: Any = field.default
        for leaf, bounds in _leaves(hints[field.name]):
            yield field.name, leaf, bounds | _bounds(info.metadata)


def _wrong_values(leaf: Any, bounds: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Values that an option of this type must not have, each with a part of the message."""
    step = 1 if leaf is int else 1e-6
    beyond = {"gt": 0, "ge": -step, "lt": 0, "le": step}
    for bound, limit in bounds.items():
        if bound in SIGNS:
            yield limit + beyond[bound], f"{SIGNS[bound]} {limit:g}"
        elif bound == "min_length":
            yield (), "must not be empty"
    if leaf in (int, float):
        yield from ((math.nan, "number"), (True, "True"), (0.5, "integer") if leaf is int else (math.inf, "number"))
    elif leaf is bool:
        yield from ((2, "true or false"), ("maybe", "true or false"))
    elif get_origin(leaf) is Literal:
        yield "anything else", repr(get_args(leaf)[0])
    elif get_origin(leaf) is tuple:
        yield from (((16, 0), ">= 1"), ((16.5,), "integer"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_value_out_of_bounds_is_refused_by_the_name_of_its_option(name: str) -> None:
    group: Any = ALGORITHMS[name].hyper_class
    tried = 0
    for option, leaf, bounds in _options(name):
        for value, words in _wrong_values(leaf, bounds):
            with pytest.raises(ConfigError) as caught:
                group(**{option: value})
            # Another option may then be wrong too: the bound of one is often another.
            first = caught.value.problems[0]
            assert first.startswith(option)
            assert " must " in first
            assert words in first
            tried += 1
    assert tried >= 14


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_has_a_bound(name: str) -> None:
    without = {option for option, leaf, bounds in _options(name) if leaf in (int, float) and not bounds.keys() & SIGNS}
    assert without <= UNBOUNDED


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("cql", {"num_critics": 4}, "unknown option 'num_critics'"),
        ("crossq", {"tau": 0.005}, "unknown option 'tau'"),
        ("ddpg", {"num_critics": 2}, "unknown option 'num_critics'"),
        ("ddpg", {"policy_delay": 2}, "unknown option 'policy_delay'"),
        ("rlpd", {"offline_ratio": 0.5}, "unknown option 'offline_ratio'"),
        ("sac", {"policy_delay": 2}, "unknown option 'policy_delay'"),
        ("sac_n", {"diversity_weight": 1.0}, "unknown option 'diversity_weight'"),
        ("td3", {"bc_alpha": 2.5}, "unknown option 'bc_alpha'"),
        ("xql", {"expectile": 0.7}, "unknown option 'expectile'"),
        ("edac", {"num_critics": 1}, "num_critics must be >= 2, got 1"),
        ("redq", {"num_critics": 1}, "num_target_critics must be <= num_critics, got 2 and 1"),
        ("redq", {"num_target_critics": 11}, "num_target_critics must be <= num_critics, got 11 and 10"),
        ("redq", {"alpha": 0.2, "target_entropy": -3.0}, "target_entropy has no effect without alpha: auto"),
        ("rlpd", {"num_target_critics": 11}, "num_target_critics must be <= num_critics, got 11 and 10"),
        ("sac", {"alpha": 0.2, "target_entropy": -1.0}, "target_entropy has no effect without alpha: auto"),
        ("sac", {"alpha": 0.2, "temperature_learning_rate": 1e-3}, "temperature_learning_rate has no effect"),
        ("tqc", {"dropped_quantiles": 25}, "dropped_quantiles must be < num_quantiles, got 25 and 25"),
        ("tqc", {"num_quantiles": 2}, "dropped_quantiles must be < num_quantiles, got 2 and 2"),
    ],
)
def test_options_of_another_algorithm_and_such_as_do_not_go_together_are_refused(
    name: str, options: dict[str, Any], problem: str
) -> None:
    cls = ALGORITHMS[name]
    with pytest.raises(ConfigError, match=problem):
        cls(cls.model_class(obs_dim=3, action_dim=1), **options)


TYPICAL: dict[str, Any] = {"gamma": 0.99, "tau": 0.005, "learning_rate": 3e-4, "hidden_sizes": (256, 256)}

PUBLISHED: dict[str, dict[str, Any]] = {
    "awac": TYPICAL
    | {"hidden_sizes": (256, 256, 256), "awac_lambda": 1 / 3, "weights": "exp", "max_weight": 100.0}
    | {"squash_mean": True, "spread": "clipped", "baseline": "sample", "num_action_samples": 1}
    | {"actor_weight_decay": 0.0},
    # The value is divided by 1 / (1 - gamma); learning rates are for Adam.
    "awr": {"hidden_sizes": (128, 64), "gamma": 0.99, "td_lambda": 0.95, "temperature": 1.0, "max_weight": 20.0}
    | {"action_std": 0.4, "bound_weight": 10.0, "value_scale": 100.0}
    | {"learning_rate_of": {"actor": 1e-4, "value": 1e-3}},
    "bcq": {"phi": 0.05, "min_q_weight": 0.75, "vae_kl_weight": 0.5, "gamma": 0.99, "tau": 0.005}
    | {"num_target_samples": 10, "num_action_samples": 100, "hidden_sizes": (400, 300), "vae_hidden_sizes": (750, 750)}
    | {"learning_rate_of": dict.fromkeys(("actor", "critic", "vae"), 1e-3)},
    # As in the authors' version for D4RL.
    "bear": {"mmd_kernel": "laplacian", "mmd_sigma": 20, "num_mmd_samples": 4, "mmd_threshold": 0.05}
    | {"mmd_warmup_updates": 40_000, "num_target_samples": 10, "num_action_samples": 100, "min_q_weight": 0.75}
    | {"vae_kl_weight": 0.5, "gamma": 0.99, "tau": 0.005, "hidden_sizes": (256, 256), "vae_hidden_sizes": (750, 750)}
    | {"target_policy": "current", "policy_value": "first"}
    | {"learning_rate_of": {"actor": 1e-4, "critic": 3e-4, "vae": 3e-4, "lagrange": 1e-3}},
    # As for AntMaze.
    "cal_ql": {"conservative_weight": 5.0, "conservative_gap": 0.8, "lagrange_form": "weight_outside"}
    | {"max_backup": "max_of_min", "initial_log_lagrange": 1.0, "calibrated": True, "penalty_clip_min": None}
    | {"num_action_samples": 10, "gamma": 0.99, "tau": 0.005, "hidden_sizes": (256, 256)}
    | {"critic_hidden_sizes": (256, 256, 256, 256), "learning_rate_of": {"actor": 1e-4, "critic": 3e-4}},
    # As for the tasks of locomotion.
    "cql": {"hidden_sizes": (256, 256, 256), "gamma": 0.99, "tau": 0.005, "conservative_weight": 10.0}
    | {"num_action_samples": 10, "penalty_temperature": 1.0, "conservative_gap": None, "initial_log_lagrange": 1.0}
    | {"lagrange_form": "weight_outside", "target_action": "sample", "max_backup": "none", "backup_entropy": False}
    | {"bc_updates": 0, "penalty_clip_min": None, "penalty_clip_max": None, "importance_sampled": True}
    | {"calibrated": False, "alpha": "auto", "learning_rate_of": {"actor": 3e-5, "critic": 3e-4}},
    "crossq": {"gamma": 0.99, "policy_delay": 3, "num_critics": 2, "hidden_sizes": (256, 256)}
    | {"critic_hidden_sizes": (1024, 1024), "norm_momentum": 0.01, "norm_warmup": 100_000, "target_entropy": None}
    | {"learning_rate_of": dict.fromkeys(("actor", "critic", "temperature"), 1e-3)}
    | {"optimizer_options": {"actor": {"beta1": 0.5}, "temperature": {}}},
    "crr": TYPICAL
    | {"weights": "exp", "beta": 1.0, "max_weight": 20.0, "advantage": "mean", "num_action_samples": 4}
    | {"num_critics": 2, "target_update_interval": 1, "critic_layer_norm": False},
    # As in the comparison with TD3.
    "ddpg": TYPICAL | {"actor_learning_rate": None, "critic_learning_rate": None, "critic_weight_decay": 0.0},
    "edac": TYPICAL | {"hidden_sizes": (256, 256, 256), "num_critics": 10, "diversity_weight": 1.0},
    # As for the tasks of locomotion.
    "iql": TYPICAL
    | {"expectile": 0.7, "beta": 3.0, "max_weight": 100.0, "policy": "stochastic", "spread": "clipped"}
    | {"actor_dropout": 0.0, "huber_delta": None},
    # As in the reference but for the scale.
    "marwil": {"learning_rate": 1e-4, "hidden_sizes": (256, 256), "max_grad_norm": None, "beta": 1.0}
    | {"value_weight": 1.0, "td_lambda": 1.0, "log_std_weight": 0.0, "scale_start": None, "scale_rate": 1e-3}
    | {"max_weight": 20.0},
    # The weights of cloning are in the authors' grid, which has no values for every task.
    "rebrac": {"gamma": 0.99, "tau": 0.005, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2}
    | {"normalize_q": True, "critic_layer_norm": True, "actor_q_weight": 1.0, "hidden_sizes": (256, 256, 256)}
    | {"actor_bc_weight": 0.01, "critic_bc_weight": 0.01, "learning_rate_of": {"actor": 1e-3, "critic": 1e-3}},
    "redq": TYPICAL
    | {"num_critics": 10, "num_target_critics": 2, "policy_delay": 20, "alpha": "auto", "target_entropy": None}
    | {"critic_dropout": 0.0, "critic_layer_norm": False, "entropy_per_dimension": -0.5},
    # As for dense rewards.
    "rlpd": TYPICAL
    | {"num_critics": 10, "num_target_critics": 2, "policy_delay": 20, "critic_layer_norm": True}
    | {"backup_entropy": True, "critic_dropout": 0.0, "entropy_per_dimension": -0.5},
    # As in the second paper.
    "sac": TYPICAL | {"num_critics": 2, "alpha": "auto", "target_entropy": None, "entropy_per_dimension": -1.0},
    "sac_n": TYPICAL | {"hidden_sizes": (256, 256, 256), "num_critics": 10, "alpha": "auto", "target_entropy": None},
    # As in the authors' later code.
    "td3": TYPICAL | {"num_critics": 2, "policy_delay": 2, "policy_noise": 0.2, "noise_clip": 0.5},
    "tqc": TYPICAL
    | {"num_critics": 2, "num_quantiles": 25, "dropped_quantiles": 2, "critic_hidden_sizes": None, "alpha": "auto"}
    | {"entropy_per_dimension": -1.0},
    # The setting that is the same for all tasks of locomotion.
    "xql": TYPICAL
    | {"loss_temperature": 2.0, "gumbel_clip": 7.0, "two_sided_clip": False, "beta": 3.0, "max_weight": 100.0}
    | {"huber_delta": 20.0, "value_updates": 1, "value_layer_norm": True, "random_actions": 0, "action_noise": 0.0},
}
"""Options as their authors have them, by algorithm."""

EXPECTILES: dict[str, Any] = {"reward_normalize": "return_range", "offline_batch_ratio": "proportional"}
EXPECTILES |= {"offline": {"actor_learning_rate_schedule": "cosine"}}

RUN_DEFAULTS: dict[str, dict[str, Any]] = {
    "awr": {"normalize_obs": True},
    "bcq": {"batch_size": 100},
    "cql": {"normalize_obs": True},
    "crossq": {"learning_starts": 5_000},
    "ddpg": {"exploration_noise": 0.1, "learning_starts": 10_000},
    "iql": EXPECTILES,
    "marwil": {"batch_size": 2000},
    "rebrac": {"batch_size": 1024},
    "redq": {"learning_starts": 5_000, "update_to_data": 20},
    "rlpd": {"learning_starts": 5_000, "update_to_data": 20, "offline_batch_ratio": 0.5},
    "sac": {"learning_starts": 5_000},
    "td3": {"exploration_noise": 0.1, "learning_starts": 25_000},
    "tqc": {"learning_starts": 5_000},
    "xql": EXPECTILES,
}
"""What an algorithm changes in a run's own options."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_ones(name: str) -> None:
    hyper: Any = ALGORITHMS[name].hyper_class()
    expected = dict(PUBLISHED[name])
    for method in ("learning_rate_of", "optimizer_options"):
        by_child = expected.pop(method, {})
        assert {child: getattr(hyper, method)(child) for child in by_child} == by_child
    assert {option: getattr(hyper, option) for option in expected} == expected


@pytest.mark.parametrize("name", sorted(RUN_DEFAULTS.keys() | {"bear", "cal_ql", "sac_n"}))
def test_defaults_of_a_run_are_changed_where_the_algorithm_needs_it(name: str) -> None:
    found = dict(ALGORITHMS[name].defaults)
    expected = RUN_DEFAULTS.get(name, {})
    assert {option: found.get(option) for option in expected} == expected
    # The default of every run is 256 rows, and observations as they are.
    assert ("batch_size" in found) == ("batch_size" in expected)
    assert found.get("normalize_obs", False) is expected.get("normalize_obs", False)
