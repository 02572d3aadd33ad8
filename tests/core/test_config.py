"""Options: what is accepted, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from conftest import packaged
from pydantic import Field

from rl_training.algorithms import ALGORITHMS
from rl_training.config import (
    TrainConfig,
    find_config,
    load_config,
    packaged_configs,
    parse_overrides,
    parse_yaml,
    read_config,
)
from rl_training.core.errors import ConfigError
from rl_training.core.options import MODES, bind, describe, options, options_with
from rl_training.core.rewards import RewardTransformConfig
from rl_training.runtime import bind_options, option_groups, read_options
from rl_training.runtime.run_options import option_modes


@options
class _Engine:
    policy_delay: int = Field(default=2, ge=1, description="updates per actor update")
    gamma: float = Field(default=0.99, ge=0, le=1)
    widths: tuple[int, ...] = Field(default=(4,), min_length=1)


@options
class _Part:
    ratio: float = Field(default=1.0, gt=0)


@options
class _Wheels:
    size: float | None = Field(default=None, gt=0)
    mode: Literal["auto", "never"] = "auto"
    spare: bool = False
    part: _Part | None = None
    parts: tuple[_Part, ...] = ()
    pressure: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"


def _problems(call: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems


def _write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_values_are_shared_out_over_groups_by_field_name() -> None:
    engine, wheels = bind({"gamma": 0.5, "mode": "never", "policy_delay": 3}, _Engine, _Wheels)

    assert engine == _Engine(gamma=0.5, policy_delay=3)
    assert wheels == _Wheels(mode="never")


def test_binding_collects_the_problems_of_all_groups_before_raising() -> None:
    values = {"polcy_delay": 1, "policy_delay": 0, "gamma": "much", "size": -1.0, "mode": "autp"}

    problems = _problems(lambda: bind(values, _Engine, _Wheels, where="algo_kwargs"))

    assert problems == (
        "algo_kwargs: unknown option 'polcy_delay'; did you mean 'policy_delay'?",
        "algo_kwargs: policy_delay must be >= 1, got 0",
        "algo_kwargs: gamma must be a number, got 'much'",
        "algo_kwargs: size must be > 0, got -1.0",
        "algo_kwargs: mode must be one of 'auto' or 'never', got 'autp'; did you mean 'auto'?",
    )


@pytest.mark.parametrize(
    ("group", "values", "problem"),
    [
        (_Engine, {"policy_delay": 0}, "policy_delay must be >= 1, got 0"),
        (_Engine, {"gamma": 1.5}, "gamma must be <= 1, got 1.5"),
        (_Engine, {"gamma": float("nan")}, "gamma must be a finite number, got nan"),
        (_Engine, {"gamma": float("inf")}, "gamma must be a finite number, got inf"),
        (_Engine, {"policy_delay": 2.5}, "policy_delay must be an integer, got 2.5"),
        (_Engine, {"policy_delay": None}, "policy_delay must be an integer, got None"),
        (_Engine, {"widths": 8}, "widths must be a list, got 8"),
        (_Engine, {"widths": []}, "widths must not be empty"),
        (_Engine, {"widths": ["wide"]}, "widths.0 must be an integer, got 'wide'"),
        (_Wheels, {"spare": "perhaps"}, "spare must be true or false, got 'perhaps'"),
        (_Wheels, {"part": 3}, "part must be a mapping, got 3"),
        (_Wheels, {"part": {"ratio": 0}}, "part.ratio must be > 0, got 0"),
        (_Wheels, {"parts": [{}, {"ratio": 0}]}, "parts.1.ratio must be > 0, got 0"),
        (_Wheels, {"part": {"rato": 1}}, "unknown option 'part.rato'; did you mean 'ratio'?"),
        (_Engine, {"policy_delay": True}, "policy_delay must not be a boolean, got True"),
        (_Engine, {"gamma": False}, "gamma must not be a boolean, got False"),
        (_Engine, {"widths": [8, True]}, "widths.1 must not be a boolean, got True"),
        (_Wheels, {"size": True}, "size must not be a boolean, got True"),
        (_Wheels, {"part": {"ratio": True}}, "part.ratio must not be a boolean, got True"),
        (_Wheels, {"parts": [{"ratio": True}]}, "parts.0.ratio must not be a boolean, got True"),
        (_Wheels, {"mode": True}, "mode must be one of 'auto' or 'never', got True"),
        (_Wheels, {"pressure": -1}, "pressure must be >= 0 or 'auto', got -1"),
        (_Wheels, {"pressure": "aut"}, "pressure must be a number or 'auto', got 'aut'; did you mean 'auto'?"),
        (TrainConfig, {}, "algo is required"),
        (TrainConfig, {"algo": "bc", "eval_episodes": "on"}, "eval_episodes must be an integer, got 'on'"),
        (TrainConfig, {"algo": "bc", "total_timesteps": "1e-1"}, "total_timesteps must be an integer, got '1e-1'"),
        (RewardTransformConfig, {"preset": "clip_1", "clip_min": 2.0}, "clip_min must be <= clip_max, got 2.0 and 1.0"),
        (TrainConfig, {"algo": 3}, "algo must be text, got 3"),
        (TrainConfig, {"algo": "bc", "algo_kwargs": 3}, "algo_kwargs must be a mapping, got 3"),
        (TrainConfig, {"algo": "bc", "tags": "a"}, "tags must be a list, got 'a'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected_and_what_was_got(
    group: type, values: dict[str, Any], problem: str
) -> None:
    assert _problems(lambda: bind(values, group)) == (problem,)


def test_options_are_frozen_and_keyword_only() -> None:
    engine = _Engine()
    with pytest.raises(AttributeError):
        engine.gamma = 0.5  # type: ignore[misc]  # that this is refused is the point
    with pytest.raises(TypeError):
        _Engine(3)  # type: ignore[call-arg]  # likewise


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("1E+3", 1e3),
        ("-.5", -0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("12", 12),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("e4", "e4"),
        ("[1, 2e0]", [1, 2.0]),
        ("{a: on}", {"a": "on"}),
    ],
)
def test_yaml_is_read_by_the_rules_of_version_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, where="here")

    assert parsed == value
    assert type(parsed) is type(value)


def test_integer_options_take_whole_numbers_in_exponential_notation(tmp_path: Path) -> None:
    path = _write(tmp_path, "algo: bc\ntotal_timesteps: 1e6\nlog_interval: '2e3'\n")

    config = load_config(path)

    assert (config.total_timesteps, config.log_interval) == (1_000_000, 2000)
    assert type(config.total_timesteps) is int


def test_an_override_replaces_adds_and_clears_nested_values() -> None:
    overrides = ["seed=7", "env_id=null", "algo_kwargs.batch_size=32", "env_kwargs.wrappers.reward.scale=2.0"]

    config = load_config("td3_bc/pendulum", overrides=overrides)

    assert config.seed == 7
    assert config.env_id is None
    assert config.algo_kwargs["batch_size"] == 32
    assert config.algo_kwargs["bc_alpha"] == 40.0
    assert config.env_kwargs == {"wrappers": {"reward": {"scale": 2.0}}}


def test_the_last_override_of_a_key_wins_and_its_value_may_contain_an_equals_sign() -> None:
    assert parse_overrides(["output_dir=a=b", "seed=1", "seed=2"]) == {"output_dir": "a=b", "seed": 2}


def test_an_override_creates_a_mapping_in_place_of_null(tmp_path: Path) -> None:
    path = _write(tmp_path, "algo: bc\nenv_kwargs: null\n")

    assert read_config(path, overrides=["env_kwargs.g=9.8"])["env_kwargs"] == {"g": 9.8}


PLAIN = ("algo_kwargs.learning_rate_schedule=cosine", "algo_kwargs.learning_rate_schedule.warmup=5")
BESIDE = {"algo": "sac", "env_id": "Pendulum-v1", "batch_size": 8}


@pytest.mark.parametrize(
    ("call", "problems"),
    [
        (lambda: parse_overrides(["seed"]), ["--set expects key=value, got 'seed'"]),
        (lambda: parse_overrides(["=3"]), ["--set expects key=value, got '=3'"]),
        (lambda: parse_overrides([""]), ["--set expects key=value, got ''"]),
        # By themselves, overrides must name fields of the config.
        (
            lambda: parse_overrides(["sed=1", "threads=2"]),
            ["unknown option 'sed'; did you mean 'seed'?", "unknown option 'threads'"],
        ),
        # The plain value would be forgotten.
        (lambda: read_config("bc/pendulum", overrides=PLAIN), ["learning_rate_schedule is 'cosine', not a mapping"]),
        (
            lambda: load_config("td3_bc/pendulm"),
            ["no config file or packaged config 'td3_bc/pendulm'; did you mean 'td3_bc/pendulum'?"],
        ),
        (lambda: load_config("zzz"), [", bc/pendulum, "]),
        # One wrong name is one problem: the rest of the record still counts.
        (lambda: read_options(BESIDE), ["unknown option 'batch_size'; did you mean 'algo_kwargs.batch_size'?"]),
        (
            lambda: read_options({"algo": ["sac"], "gamma": 1}),
            ["unknown option 'gamma'", "algo must be text, got ['sac']"],
        ),
    ],
)
def test_a_mistake_is_answered_in_these_words(call: Callable[[], object], problems: list[str]) -> None:
    found = _problems(call)
    assert len(found) == len(problems)
    assert all(words in problem for words, problem in zip(problems, found, strict=True))


def test_every_packaged_config_is_found_by_name_and_is_for_the_algorithm_of_its_folder() -> None:
    names = packaged_configs()

    assert {packaged(algo) for algo in ALGORITHMS} <= set(names)
    for name, path in names.items():
        assert find_config(name) == path
        config, _ = read_options(name)
        assert config.algo == name.split("/")[0]


def test_a_config_written_as_yaml_reads_back_equal(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="td3_bc",
        env_id=None,
        seed=3,
        tags=("on", "1e6", "ü"),
        algo_kwargs={"learning_rate": 3e-4, "hidden_sizes": (8, 8), "compile": "never", "max_grad_norm": None},
        env_kwargs={"wrappers": {"reward": {"preset": "clip_1"}}},
    )

    again = load_config(_write(tmp_path, config.to_yaml()))

    # Sequences inside free mappings come back as lists; their option group makes them tuples again.
    assert again.to_plain() == config.to_plain()
    assert again.tags == config.tags


def test_a_resolved_config_reads_back_to_the_same_options(tmp_path: Path) -> None:
    config, bound = read_options("td3_bc/pendulum", overrides=["algo_kwargs.learning_rate_schedule=cosine"])

    again = load_config(_write(tmp_path, bound.resolve(config).to_yaml()))

    assert bind_options(again) == bound


def test_numpy_values_in_a_config_become_plain_ones() -> None:
    config = TrainConfig(algo="bc", env_kwargs={"g": np.float64(9.5), "goal": np.zeros(2)})

    assert config.to_plain()["env_kwargs"] == {"g": 9.5, "goal": [0.0, 0.0]}
    assert "g: 9.5" in config.to_yaml()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("early_stopping.metrc=return_mean", "unknown option 'early_stopping.metrc'; did you mean 'metric'?"),
        ("early_stopping.patience=0", "early_stopping.patience must be >= 1, got 0"),
        ("early_stopping.min_delta=0.1", "early_stopping needs patience, threshold, or both"),
        ("learning_rate_schedule.kid=cosine", "unknown option 'learning_rate_schedule.kid'; did you mean 'kind'?"),
        (
            "learning_rate_schedule=cosin",
            "learning_rate_schedule.kind must be one of 'constant', 'linear' or 'cosine', got 'cosin'; "
            "did you mean 'cosine'?",
        ),
    ],
)
def test_problems_inside_nested_options_carry_the_whole_path(override: str, problem: str) -> None:
    problems = _problems(lambda: read_options("bc/pendulum", overrides=[f"algo_kwargs.{override}"]))

    assert problems == (f"algo_kwargs: {problem}",)


def test_describe_gives_a_row_per_option_with_type_bound_default_and_meaning() -> None:
    rows = {row["name"]: row for row in describe(_Engine, {"policy_delay": 5})}

    assert rows["policy_delay"] == {
        "name": "policy_delay",
        "type": "integer",
        "bound": ">= 1",
        "default": 5,
        "meaning": "updates per actor update",
    }
    assert (rows["gamma"]["type"], rows["gamma"]["bound"], rows["gamma"]["default"]) == ("number", ">= 0, <= 1", 0.99)
    assert rows["widths"]["type"] == "list of integer"


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("algo", "text", "required"),
        ("env_id", "text | null", None),
        ("num_envs", "integer | null", None),
        ("tags", "list of text", ()),
        ("algo_kwargs", "mapping", {}),
    ],
)
def test_describe_names_types_as_a_user_writes_them(name: str, kind: str, default: Any) -> None:
    rows = {row["name"]: row for row in describe(TrainConfig)}

    assert (rows[name]["type"], rows[name]["default"]) == (kind, default)


def test_every_option_of_the_outer_record_says_what_it_means() -> None:
    assert not [row["name"] for row in describe(TrainConfig) if not row["meaning"]]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_option_of_an_algorithm_has_exactly_one_home(name: str) -> None:
    groups = {group: {row["name"] for row in describe(group)} for group in option_groups(ALGORITHMS[name])}

    for (first, mine), (second, theirs) in combinations(groups.items(), 2):
        assert not mine & theirs, (first.__name__, second.__name__)


@pytest.mark.parametrize(
    ("fields", "resolved"),
    [
        ({}, {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": None, "clip_max": None}),
        ({"preset": "sign_clip"}, {"scale": 1.0, "shift": 0.0, "sign": True, "clip_min": None, "clip_max": None}),
        ({"preset": "clip_1"}, {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": -1.0, "clip_max": 1.0}),
        (
            {"preset": "sparse_goal_zero_one"},
            {"scale": 1.0, "shift": 1.0, "sign": False, "clip_min": 0.0, "clip_max": 1.0},
        ),
        (
            {"preset": "clip_1", "clip_max": 0.5, "scale": 2},
            {"scale": 2.0, "shift": 0.0, "sign": False, "clip_min": -1.0, "clip_max": 0.5},
        ),
        (
            {"preset": "sparse_goal_zero_one", "shift": 0.0},
            {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": 0.0, "clip_max": 1.0},
        ),
    ],
)
def test_a_reward_preset_fills_fields_that_explicit_ones_override(
    fields: dict[str, Any], resolved: dict[str, Any]
) -> None:
    assert RewardTransformConfig(**fields).resolve() == resolved


def test_what_an_option_means_beyond_its_value_is_said_at_its_field() -> None:
    groups: tuple[type[Any], ...] = (TrainConfig, *option_groups(ALGORITHMS["iql"]))
    resume, modes = options_with("resume", *groups), option_modes(*groups)

    fixed = {name for name, when in resume.items() if when == "fixed"}
    networks = {"activation", "layer_norm", "encoder", "encoder_kwargs"}
    outer = {"algo", "env_id", "env_kwargs", "seed", "output_dir", "run_name"}
    assert fixed == {*outer, "normalize_obs", "mode", "precision", *networks}
    assert {name for name in resume if name not in fixed} == {
        *("num_envs", "n_step", "replay", "buffer_capacity", "initial_checkpoint", "offline_pretrain_updates"),
        *("learning_starts", "warmup_steps", "min_buffer_size"),
        *("update_to_data", "train_frequency", "gradient_updates_per_step"),
    }
    assert modes["reward_scale"] == modes["normalize_obs"] == modes["batch_size"] == MODES
    assert modes["reward_normalize"] == modes["dataset_path"] == ("offline", "offline_to_online")
    assert modes["buffer_capacity"] == ("online", "offline_to_online")
    assert modes["offline_batch_ratio"] == ("offline_to_online",)
    assert modes["max_epochs"] == ("offline",)


def test_hyper_parameters_of_online_updates_are_for_runs_that_act() -> None:
    modes = option_modes(ALGORITHMS["cal_ql"].hyper_class)

    assert {name for name in modes if modes[name] != MODES} == {name for name in modes if name.startswith("online_")}


@pytest.mark.parametrize(("mode", "expected"), [("offline", 0.3), ("offline_to_online", 0.2), (None, 0.3)])
def test_defaults_may_be_declared_by_mode(mode: str | None, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ALGORITHMS["td3_bc"], "defaults", {"validation_fraction": 0.2, "offline": {"validation_fraction": 0.3}}
    )
    values = {"algo": "td3_bc", "env_id": "Pendulum-v1", "algo_kwargs": {"dataset_kind": "random", "mode": mode}}

    assert read_options(values)[1].data.validation_fraction == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{[1, 2]: 3}", "a key must be text or a number, not a list or a mapping"),
        ("{{a: b}: 3}", "a key must be text or a number, not a list or a mapping"),
        ("!!timestamp 2024-02-30", "not valid YAML: day is out of range"),
        ("!!binary aGk=", "got a bytes"),
        ("!!set {a, b}", "got a set"),
        ("&a [*a]", "more than 100000 values"),
        ("[" * 5000, "not valid YAML"),
        ("9" * 5000, "not valid YAML"),
        ("a" * (1 << 21), "characters of YAML, expected at most"),
        (
            "\n".join(["a0: &a0 [x, x]", *(f"a{k}: &a{k} [{f'*a{k - 1}, ' * 9}]" for k in range(1, 12))]),
            "its aliases stand for more than 100000 values",
        ),
    ],
    ids=["list", "mapping", "date", "bytes", "set", "endless", "deep", "digits", "long", "laughs"],
)
def test_yaml_that_no_config_can_be_is_one_message(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: .*{message}"):
        parse_yaml(text, where="here")


def test_dates_are_text() -> None:
    assert parse_yaml("[2024-02-30, 2024-02-28]", where="here") == ["2024-02-30", "2024-02-28"]
