"""The command `estimate` on logs with action probabilities."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main

from rl_training import BC

FLAGS = (
    *("--obs-columns", "age", "--action-columns", "item", "--reward-column", "click"),
    *("--propensity-column", "chance", "--episodes", "each_row"),
)
FAST = ("--updates", "80", "--members", "2", "--hidden-sizes", "8")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder with a table of single decisions and a clone of what was decided."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ages, items = rng.normal(size=600), rng.integers(3, size=600)
    clicks = rng.uniform(size=600) < 0.2 + 0.2 * items
    rows = [
        f"{age:.4f},{'abc'[item]},{int(click)},0.3333" for age, item, click in zip(ages, items, clicks, strict=True)
    ]
    Path("shop.csv").write_text("\n".join(["age,item,click,chance", *rows]) + "\n")
    columns = {"obs": ["age"], "actions": ["item"], "reward": "click", "propensity": "chance", "episodes": "each_row"}
    more: Any = {"env_id": None}
    BC(
        **more,
        dataset_path="shop.csv",
        dataset_columns=columns,
        run_name="clone",
        output_dir="runs",
        hidden_sizes=(8,),
        total_timesteps=150,
        log_interval=150,
    ).learn()
    return partial(call_main, monkeypatch, capsys)


def test_a_table_of_single_decisions_is_evaluated_by_importance_sampling_beside_fqe(command: Command) -> None:
    answer = command("estimate", "runs/clone", "--data", "shop.csv", *FLAGS, *FAST)
    assert answer.code == 0, answer.err
    assert "a value is the mean reward of one decision" in answer.out
    assert "Importance sampling, a second estimate beside FQE:" in answer.out
    assert "SNIPS: rewards weighted by their actions" in answer.out
    assert "80 more updates per policy" in answer.out
    assert (
        "runs/clone: importance weights evaluate the stochastic policy; FQE evaluates its most likely action"
        in answer.out
    )
    stored = json.loads(Path("runs/clone/estimate.json").read_text())
    weighted = stored["weighted"][0]
    assert (weighted["name"], weighted["recommended"], weighted["is_drawn"]) == ("runs/clone", "SNIPS", True)
    # A clone of uniform actions is about as good as the log.
    assert weighted["estimates"][0]["value"] == pytest.approx(stored["logged_value"], abs=0.06)


@pytest.mark.parametrize("option", ["--no-importance", "--no-weights"])
def test_importance_sampling_can_be_left_out_by_either_name_of_the_option(command: Command, option: str) -> None:
    answer = command("estimate", "runs/clone", "--split", "all", option, *FAST)
    assert answer.code == 0, answer.err
    assert "No importance sampling: it was not asked for." in answer.out


def test_columns_go_with_a_table_that_is_named(command: Command) -> None:
    answer = command("estimate", "runs/clone", *FLAGS, *FAST)
    assert answer.code == 2
    assert "options for columns go with --data; runs know the columns of their own data" in answer.err
    answer = command("estimate", "runs/clone", "--data", "shop.csv", *FLAGS, "--reward-column", "clicks")
    assert answer.code == 2
    assert "'clicks'" in answer.err


def test_a_log_is_refused_where_a_run_is_expected(command: Command) -> None:
    answer = command("estimate", "shop.csv", "--data", "shop.csv", *FLAGS)
    assert answer.code == 2
    assert "shop.csv is a log, not a policy" in answer.err
