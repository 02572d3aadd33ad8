"""No verdict on episodes that had a part in training or in the choice of a policy, whatever file they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steering import QUICK, STEPS, steering_log, towards

from rl_training import TrainConfig, estimate, select, train
from rl_training.core.errors import ConfigError
from rl_training.data import (
    MOST_KEYS,
    TransitionDataset,
    convert,
    episode_keys,
    load_transition_dataset,
    remembered,
    unseen_episodes,
)
from rl_training.policies import load_policy
from rl_training.runtime import bind_options, find_task, keys_in, load_data
from rl_training.selection.evaluation_data import CHOSEN, HELD_OUT, OWN, REPEATED, UNKNOWN
from rl_training.selection.folds import mean_of_folds

SMALL = {"hidden_sizes": [8], "batch_size": 16}
FIT = {name: value for name, value in QUICK.items() if name != "split"} | {"updates": 40}
COLUMNS = {"obs": ["observation"], "actions": ["action"], "reward": "reward", "episode": "episode"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same 60 episodes as a file, a table and in the mapped form, and 30 others."""
    folder, log = tmp_path_factory.mktemp("logs"), steering_log(60)
    files = {"npz": folder / "log.npz", "rlt": folder / "log.rlt", "csv": folder / "log.csv", "new": folder / "new.npz"}
    np.savez(files["npz"], **log)
    np.savez(files["new"], **steering_log(30, seed=1))
    convert(str(files["npz"]), str(files["rlt"]))
    names = ("observations", "actions", "rewards")
    rows = np.column_stack([np.arange(60 * STEPS) // STEPS, *(log[name].reshape(60 * STEPS) for name in names)])
    text = ["episode,observation,action,reward", *(",".join(f"{value:.9g}" for value in row) for row in rows)]
    files["csv"].write_text("\n".join(text) + "\n")
    return files


@pytest.fixture(scope="module")
def run(logs: dict[str, Path]) -> str:
    return trained(logs["npz"], "plain")


def trained(log: Path, name: str, **options: Any) -> str:
    kwargs = {"dataset_path": str(log), "eval_interval": 20, **SMALL, **options}
    config = {"algo": "bc", "total_timesteps": 40, "output_dir": str(log.parent), "run_name": name}
    return str(train({**config, "algo_kwargs": kwargs}).run_dir)


@pytest.mark.parametrize(
    ("data", "split", "expected"),
    [
        (None, "auto", (10, HELD_OUT)),
        (None, "all", (60, OWN)),
        ("npz", "auto", (10, HELD_OUT)),
        ("npz", "held-out", (10, HELD_OUT)),
        ("npz", "all", (60, OWN)),
        ("rlt", "auto", (10, HELD_OUT)),
        ("new", "auto", (30, HELD_OUT)),
    ],
)
def test_a_run_is_judged_on_the_episodes_that_did_not_train_it(
    run: str, logs: dict[str, Path], data: str | None, split: Any, expected: tuple[int, str]
) -> None:
    found = estimate(run, None if data is None else str(logs[data]), split=split, **FIT)
    assert (found.episodes, found.relation) == expected
    reasons = next(iter(found.policies)).reasons
    assert any(OWN in reason for reason in reasons) == (expected[1] == OWN)


def test_a_table_of_the_same_episodes_is_known_again(logs: dict[str, Path]) -> None:
    run, converted = trained(logs["csv"], "table", dataset_columns=COLUMNS), logs["csv"].with_name("converted.npz")
    convert(str(logs["csv"]), str(converted), columns=COLUMNS)
    # An episode of a table has one row less, since its last next observation is not known.
    for path in (logs["csv"], converted, logs["npz"]):
        found = estimate(run, str(path), **FIT)
        assert (found.episodes, found.is_held_out) == (10, True)


def test_a_policy_of_unknown_origin_needs_a_statement() -> None:
    log = steering_log()
    found = estimate({"towards": towards}, log, **{**QUICK, "split": "auto"})
    assert found["towards"].verdict == "cannot be judged"
    assert found["towards"].reasons == (
        f"no verdict on these episodes: {UNKNOWN}; if they were not, state it: --split held-out, or split='held-out'",
    )
    assert estimate({"towards": towards}, log, **QUICK)["towards"].verdict == "better than the data"


def test_nothing_is_selected_by_the_episodes_that_trained_the_candidates(logs: dict[str, Path], run: str) -> None:
    everything = trained(logs["npz"], "everything", validation_fraction=0.0)
    found = select([everything], str(logs["npz"]), **FIT)
    assert found.chosen is None
    assert OWN in found.candidates[0].reasons[0]
    with pytest.raises(ConfigError, match="were trained on every episode of"):
        estimate(everything, str(logs["npz"]), split="held-out", **FIT)
    with pytest.raises(ConfigError, match="different data \\(validation_fraction\\)"):
        estimate([run, everything], **FIT)
    assert estimate([run, everything], str(logs["new"]), **FIT).is_held_out


def test_episodes_that_decided_when_training_stopped_give_no_verdict(logs: dict[str, Path]) -> None:
    stopping = {"metric": "actor_loss", "mode": "min", "patience": 3}
    run = trained(logs["npz"], "stopped", early_stopping=stopping)
    assert estimate(run, **FIT).relation == CHOSEN
    assert estimate(run, str(logs["npz"]), **FIT).relation == OWN


def test_a_run_that_begins_with_a_checkpoint_has_seen_what_that_has_seen(logs: dict[str, Path]) -> None:
    saved = load_policy(trained(logs["npz"], "later"))
    assert estimate({"it": saved}, **FIT).relation == HELD_OUT
    keys = episode_keys(load_transition_dataset(logs["npz"]))
    saved.tree["trainer"]["trained_on"] = torch.tensor(np.sort(keys).view(np.int64))
    assert estimate({"it": saved}, **FIT).relation == OWN


def test_each_policy_of_several_folds_is_judged_on_its_own_fold(logs: dict[str, Path]) -> None:
    runs = [trained(logs["npz"], f"fold{k}", validation_folds=3, validation_fold=k) for k in range(3)]
    found_keys = [keys_in(load_policy(each).tree["trainer"]) for each in runs]
    keys = [each for each in found_keys if each is not None]
    assert [len(each) for each in keys] == [40, 40, 40]
    assert all(sum(key in each for each in keys) == 2 for key in np.unique(np.concatenate(keys)))
    found = estimate(runs, **FIT)
    (each,) = found.policies
    assert found.episodes == 60
    assert found.relation == "each policy is judged on the fold that it was not trained on"
    assert each.name.endswith("fold0 and the other folds")
    assert OWN not in "".join(each.reasons)
    with pytest.raises(ConfigError, match="a run for each of the 3 folds"):
        estimate(runs[:2], **FIT)


def test_the_mean_over_folds_is_that_worked_out_by_hand() -> None:
    parts = [estimate({"it": towards}, steering_log(count, seed=count), **QUICK) for count in (10, 30)]
    (own,) = mean_of_folds(parts).policies
    first, second = (part["it"] for part in parts)
    assert own.value == pytest.approx(0.25 * (first.value or 0) + 0.75 * (second.value or 0))
    halves = [(each.interval[1] - each.interval[0]) / 2 for each in (first, second) if each.interval]
    assert own.interval is not None
    assert own.interval[1] - (own.value or 0) == pytest.approx(np.hypot(0.25 * halves[0], 0.75 * halves[1]))
    assert own.verdict == "better than the data"


def repeated(count: int) -> dict[str, Any]:
    return {name: np.concatenate([value] * count) for name, value in steering_log(10).items()}


def test_episodes_that_repeat_are_not_told_apart(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **repeated(6))
    run = trained(tmp_path / "log.npz", "run")
    assert estimate(run, str(tmp_path / "log.npz"), **FIT).relation == REPEATED
    assert estimate(run, str(tmp_path / "log.npz"), split="held-out", **FIT).relation == HELD_OUT
    # The run itself knows which rows it held out.
    assert estimate(run, **FIT).relation == HELD_OUT


def test_keys_are_of_observations_and_lengths() -> None:
    log = steering_log(20)
    keys = episode_keys(TransitionDataset.from_dict(log))
    assert len(np.unique(keys)) == 20
    changed = {**log, "rewards": -log["rewards"], "actions": log["actions"] / 2}
    assert (episode_keys(TransitionDataset.from_dict(changed)) == keys).all()
    shifted = {name: value[1:] for name, value in log.items()}
    assert (episode_keys(TransitionDataset.from_dict(shifted)) == keys).sum() == 19


def test_of_very_many_episodes_a_random_part_is_remembered() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 3 * MOST_KEYS, dtype=np.uint64)
    known = remembered(keys, keys[:10])
    assert len(known) == MOST_KEYS
    assert not np.isin(keys[:10], known).any()
    new = np.random.default_rng(1).integers(0, 2**64, 300, dtype=np.uint64)
    unseen = unseen_episodes(np.concatenate([keys[10:310], new]), [known])
    assert unseen is not None
    # Episodes whose keys are too large to be remembered are left out, whether they were seen or not.
    assert not unseen[:300].any()
    assert 60 < unseen[300:].sum() < 140
    assert unseen_episodes(new, [known]).all()  # type: ignore[union-attr]


def test_no_verdict_where_actions_stand_in_another_row_unless_the_user_accepts_it() -> None:
    log = steering_log(120)
    late = {**log, "actions": np.concatenate([log["actions"][:1], log["actions"][:-1]])}
    found = estimate({"towards": towards}, late, **QUICK)["towards"]
    assert found.verdict == "cannot be judged"
    assert (
        "the audit warns of the timing of actions: observations change with the action of the row" in found.reasons[0]
    )
    assert "--accept-audit" in found.reasons[0]
    accepted = estimate({"towards": towards}, late, accept_audit=True, **QUICK)["towards"]
    assert not any("audit" in reason for reason in accepted.reasons)
    selected = select({"towards": towards}, late, **QUICK)
    assert selected.chosen is None
    assert "timing of actions" in selected.candidates[0].reasons[0]


@pytest.mark.parametrize(
    ("episodes", "trainer", "held_out"), [(200, None, 20), (60, None, 10), (40, None, 0), (60, {}, 0)]
)
def test_a_run_with_an_environment_holds_episodes_out_too_unless_its_version_did_not(
    tmp_path: Path, episodes: int, trainer: dict[str, Any] | None, held_out: int
) -> None:
    np.savez(tmp_path / "log.npz", **steering_log(episodes))
    config = TrainConfig(
        algo="bc", env_id="steering:Steering-v0", algo_kwargs={"dataset_path": str(tmp_path / "log.npz")}
    )
    data = load_data(config, bind_options(config), find_task(config), trainer=trainer)
    spare = data.dataset.validation
    assert (0 if spare is None else len(spare.episode_bounds())) == held_out
    assert data.trained_on is not None
    assert len(data.trained_on) == episodes - held_out
