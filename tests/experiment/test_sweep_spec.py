"""What a sweep consists of: points, names, and mistakes in the file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.core.errors import ConfigError
from rl_training.experiment.sweep import Cost, keep_names, total_seconds
from rl_training.experiment.sweep_spec import PlannedRun, SweepSpec, plan_runs, read_ranges, read_sweep

OPTIONS = {"env_id": "Pendulum-v1", "total_timesteps": 20, "algo_kwargs": {"dataset_kind": "random"}}


def runs(out: Path = Path("sweeps/x"), **spec: Any) -> list[PlannedRun]:
    return plan_runs(read_sweep({"options": OPTIONS, **spec}), out)


def test_a_sweep_is_the_product_of_cases_grid_draws_and_seeds() -> None:
    found = runs(
        cases=[{"algo": "td3_bc", "algo_kwargs.bc_alpha": 1.0}, {"algo": "iql"}],
        grid={"algo_kwargs.batch_size": [16, 32]},
        random={"draws": 3, "ranges": {"algo_kwargs.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
        seeds="0-1",
    )
    assert len(found) == 2 * 2 * 3 * 2
    assert {run.config.algo for run in found} == {"td3_bc", "iql"}
    assert {run.config.algo_kwargs["batch_size"] for run in found} == {16, 32}
    rates = {run.config.algo_kwargs["learning_rate"] for run in found}
    assert len(rates) == 3
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert {run.config.seed for run in found} == {0, 1}
    assert len({run.name for run in found}) == len(found)
    # Options of all runs are beneath what varies.
    assert all(run.config.algo_kwargs["dataset_kind"] == "random" for run in found)


def test_configurations_may_vary_too() -> None:
    spec = {"options": {"total_timesteps": 20}, "grid": {"config": ["td3_bc/pendulum", "iql/pendulum"]}}
    found = plan_runs(read_sweep(spec), Path("x"))
    assert [run.config.algo for run in found] == ["td3_bc", "iql"]
    assert found[0].name.startswith("td3_bc-pendulum__seed0__")


def test_names_stay_when_a_sweep_grows_and_change_with_what_is_learned(tmp_path: Path) -> None:
    small = runs(config="td3_bc", grid={"algo_kwargs.batch_size": [16]}, seeds=[0])
    large = runs(config="td3_bc", grid={"algo_kwargs.batch_size": [16, 32]}, seeds=[0, 1])
    assert small[0].name == large[0].name
    assert re.fullmatch(r"td3_bc__batch_size-16__seed0__[0-9a-f]{10}", small[0].name)
    # What makes no difference to learning makes none to the digest; the length does.
    other = runs(config="td3_bc", grid={"algo_kwargs.batch_size": [16]}, seeds=[0], options={**OPTIONS, "tags": ["a"]})
    longer = runs(
        config="td3_bc", grid={"algo_kwargs.batch_size": [16]}, seeds=[0], options={**OPTIONS, "total_timesteps": 30}
    )
    assert other[0].digest == small[0].digest != longer[0].digest
    # A run that a smaller sweep named otherwise keeps its name.
    named = f"td3_bc__seed0__{small[0].digest}"
    (tmp_path / named).mkdir()
    assert [run.name for run in keep_names(large, tmp_path)][:2] == [named, large[1].name]


def test_runs_with_the_same_options_are_one() -> None:
    assert len(runs(config="td3_bc", cases=[{"algo_kwargs.batch_size": 256}, {}])) == 1


def test_draws_of_an_option_do_not_depend_on_other_options() -> None:
    rate = {"low": 1e-4, "high": 1e-2, "log": True}
    one = SweepSpec(random={"draws": 4, "ranges": {"a": rate}})  # type: ignore[arg-type]  # pydantic converts it
    two = SweepSpec(random={"draws": 4, "ranges": {"b": [1, 2], "a": rate}})  # type: ignore[arg-type]
    assert [point["a"] for point in one.points()] == [point["a"] for point in two.points()]


def test_ranges_keep_their_bounds() -> None:
    rng = np.random.default_rng(0)
    ranges = read_ranges(
        {"whole": {"low": 1, "high": 3, "int": True}, "few": ["a", "b"], "real": {"low": -1, "high": 1}}, "r"
    )
    drawn = {name: [each.draw(rng) for _ in range(200)] for name, each in ranges.items()}
    assert set(drawn["whole"]) == {1, 2, 3}
    assert set(drawn["few"]) == {"a", "b"}
    assert all(-1 <= value <= 1 for value in drawn["real"])
    assert abs(math.fsum(drawn["real"]) / 200) < 0.2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"grids": {"algo": ["iql"]}}, "unknown option 'grids'; did you mean 'grid'?"),
        ({"config": "td3_bc", "grid": {"algo_kwargs.bc_alfa": [1]}}, "'bc_alfa'; did you mean 'bc_alpha'?"),
        ({"config": "td3_bc", "grid": {"bc_alpha": [1]}}, "'algo_kwargs.bc_alpha'"),
        ({"grid": {"algo": ["td3bc"]}}, "unknown algorithm 'td3bc'; did you mean 'td3_bc'?"),
        ({"config": "td3_bc", "grid": {"algo_kwargs.batch_size": []}}, "must not be empty"),
        ({"config": "td3_bc", "grid": {"seed": [1]}, "seeds": [1]}, "seeds and seed both say"),
        ({"config": "td3_bc", "grid": {"seed": [1]}, "cases": [{"seed": 2}]}, "seed varies in two places"),
        ({"config": "td3_bc", "seeds": "0-"}, "seeds expects numbers and ranges such as 0-4"),
        ({"config": "td3_bc", "options": {**OPTIONS, "run_name": "a"}}, "a sweep names its runs itself"),
        (
            {"config": "td3_bc", "random": {"draws": 1, "ranges": {"a": {"low": 2, "high": 1}}}},
            "low must be below high",
        ),
        ({"config": "td3_bc", "random": {"draws": 1, "ranges": {"a": 3}}}, "must be a list of values or a mapping"),
        ({"config": "td3_bc", "random": {"draws": 1, "ranges": {"a": {"low": 0, "high": 1, "log": True}}}}, "above 0"),
    ],
)
def test_mistakes_are_named(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        runs(**spec)


def test_the_time_of_a_sweep_is_that_of_its_busiest_worker() -> None:
    run = runs(config="td3_bc")[0]
    costs = [Cost(run, "to do", 1, 1.0, seconds) for seconds in (5.0, 3.0, 3.0, 1.0)]
    assert total_seconds(costs, 1) == 12.0
    assert total_seconds(costs, 2) == 6.0
