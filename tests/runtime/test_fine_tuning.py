"""Policies that were trained offline continue online: from data in the same run, or from another run's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Answer, Command, call_main
from small_runs import PRIOR, SMALL, differences, online_config

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.data import MOST_KEYS
from rl_training.runtime import Callback, TrainerState, TrainResult, read_options, resume, train
from rl_training.runtime.assembly import open_session
from rl_training.runtime.fine_tuning import FineTuning, fine_tuning_config
from rl_training.runtime.run_data import stored_keys
from rl_training.storage import load_checkpoint, read_metrics

SHORT = ("env_kwargs.max_episode_steps=10", "algo_kwargs.eval_interval=10")
"""Episodes of ten steps, and an evaluation with each."""

OPTIONS = {
    "cal_ql": ("algo_kwargs.num_action_samples=2",),
    "cql": ("algo_kwargs.num_action_samples=2",),
    # Rows are drawn once their returns have been computed.
    "awr": ("algo_kwargs.recompute_interval=1",),
    "marwil": ("algo_kwargs.recompute_interval=1",),
}


def _rows(result: TrainResult, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(result.run_dir) if row["kind"] == kind]


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What evaluations from the switch on come to, by hand."""
    offline, *online = (row["return_mean"] for row in rows)
    return {
        "offline_score": offline,
        "online_score": online[-1],
        "largest_drop": max(0.0, *(offline - score for score in online)),
        "regret": max(offline, *online) - float(np.mean(online)),
    }


@pytest.mark.parametrize("algo", sorted(name for name, cls in ALGORITHMS.items() if cls.mode == "offline"))
def test_an_offline_algorithm_goes_online(algo: str, tmp_path: Path) -> None:
    half = ("algo_kwargs.offline_batch_ratio=0.5", "total_timesteps=31")
    config = online_config(tmp_path, algo, *PRIOR, *SHORT, *OPTIONS.get(algo, ()), *half)
    result = train(config)
    state = load_checkpoint(result.checkpoint_path)["trainer"]["state"]

    # Some store whole episodes, three of ten steps, of which ReBRAC leaves out the last row: nothing follows it.
    # Updates wait for 12 rows.
    stored = {"cal_ql": 30, "awr": 30, "marwil": 30, "rebrac": 27}.get(algo, 31)
    assert (state["stored"], state["update_count"]) == (stored, 15 + stored - 12)
    assert (state["global_step"], state["env_steps"]) == (46, 31)
    # Before the switch, at it, after it, and at the end.
    evaluations = _rows(result, "eval")
    assert [row["global_step"] for row in evaluations] == [10, 15, 20, 30, 40, 46]
    assert [row["update_count"] for row in evaluations][:3] == [10, 15, 15]
    assert result.fine_tuning == pytest.approx(_summary(evaluations[1:]))
    saved = json.loads((result.run_dir / "result.json").read_text())["fine_tuning"]
    assert saved == result.fine_tuning
    # Batches of eight: prior data alone at first, half of each once the run has something of its own.
    shares = {row["global_step"]: (row["offline_rows"], row["online_rows"]) for row in _rows(result, "train")}
    assert shares[10] == (8, 0)
    assert shares[46] == (4, 4)


def test_the_algorithm_is_told_how_much_of_the_online_phase_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    update = Algorithm.update

    def recording(self: Algorithm, batch: Any) -> Any:
        seen.append(float(self.online_share))
        return update(self, batch)

    monkeypatch.setattr(Algorithm, "update", recording)
    train(online_config(tmp_path, "td3_bc", *PRIOR, "algo_kwargs.eval_interval=null"))

    # 15 updates on prior data alone, and 28 on both.
    assert seen == pytest.approx([0.0] * 15 + [(count + 1) / 28 for count in range(28)])


@pytest.mark.parametrize(
    ("ratio", "prior"),
    [
        (0, [0] * 28),
        (0.25, [2] * 28),
        (1, [8] * 28),
        # 400 rows beside 13 to 40: 8 * 400 / 426 is more than 7.5, and 8 * 400 / 427 is less.
        ("proportional", [8] * 14 + [7] * 14),
    ],
)
def test_the_share_of_prior_data_is_as_asked_for(ratio: Any, prior: list[int], tmp_path: Path) -> None:
    options = (f"algo_kwargs.offline_batch_ratio={ratio}", "algo_kwargs.eval_interval=null", "log_interval=55")
    result = train(online_config(tmp_path, "td3_bc", *PRIOR, *options))

    (row,) = _rows(result, "train")
    # 15 updates on prior data alone, and 28 on both.
    assert row["offline_rows"] == pytest.approx((15 * 8 + sum(prior)) / 43)
    assert row["offline_rows"] + row["online_rows"] == pytest.approx(8)


def test_the_summary_is_what_the_scores_say() -> None:
    tuning = FineTuning()
    for score in (10.0, 4.0, 12.0, 8.0):
        tuning.add({"return_mean": score})
    # The best is 12, and the mean online 8.
    assert tuning.summary() == {"offline_score": 10.0, "online_score": 8.0, "largest_drop": 6.0, "regret": 4.0}

    fallen = FineTuning()
    for score in (10.0, 4.0, 4.0):
        fallen.add({"return_mean": score})
    # What it fell from counts, or a policy that stays down would have nothing to regret.
    assert fallen.summary()["regret"] == 6.0

    better = FineTuning()
    for score, rate in ((1.0, 0.5), (2.0, 0.5), (3.0, 1.0)):
        better.add({"return_mean": score, "success_rate": rate})
    # Where successes are known, the regret is by how much their share fell short of 1: a half and nothing.
    assert better.summary() == {"offline_score": 1.0, "online_score": 3.0, "largest_drop": 0.0, "regret": 0.25}

    alone = FineTuning()
    alone.add({"return_mean": 1.0})
    assert alone.summary() == {}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture
def offline(tiny_config: Callable[..., TrainConfig]) -> Callable[..., TrainResult]:
    """An offline run with the networks of the online ones."""

    def make(algo: str = "td3_bc", *overrides: str) -> TrainResult:
        return train(tiny_config(algo, "env_kwargs.max_episode_steps=10", *overrides))

    return make


def _go_online(command: Command, *arguments: str | Path) -> tuple[Answer, Path]:
    """Call `train --from`, and find the run in what it prints."""
    answer = command("train", "--quiet", "--from", *arguments)
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("run "))
    return answer, Path(line.split(maxsplit=1)[1])


@pytest.mark.parametrize("named", [False, True], ids=["its own config", "another config"])
def test_a_run_begins_with_the_policy_of_another(
    named: bool, command: Command, offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    before = offline()
    small = ["env_kwargs.max_episode_steps=10", *(each for each in SMALL if not each.startswith("output_dir"))]
    config = ["--config", "td3_bc/pendulum", "algo_kwargs.dataset_size=400"] if named else []
    sets = [part for each in small for part in ("--set", each)]
    answer, run = _go_online(command, before.run_dir, *config, *sets, "--set", f"output_dir={tmp_path / 'online'}")

    start = load_checkpoint(run / "checkpoints" / "step_000000000.pt")["algorithm"]
    assert differences(start, load_checkpoint(before.checkpoint_path)["algorithm"]) == []
    rows = [row for row in read_metrics(run) if row["kind"] == "eval"]
    assert [row["global_step"] for row in rows] == [0, 20, 40]
    # The offline score is that with which the other run ended: the same policy, judged on the same episodes.
    assert rows[0]["return_mean"] == before.metrics["return_mean"]
    found = json.loads((run / "result.json").read_text())["fine_tuning"]
    assert found == pytest.approx(_summary(rows))
    (line,) = (line for line in answer.out.splitlines() if line.startswith("online "))
    assert line.split(maxsplit=1)[1] == (
        f"offline score {found['offline_score']:.1f}, largest drop below it {found['largest_drop']:.1f}, "
        f"regret {found['regret']:.3g}"
    )
    state = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]
    assert (state["env_steps"], state["update_count"]) == (40, 28)
    # A trained policy takes no random steps, and continues with prior data beside its own.
    kwargs = load_config(run / "config.yaml").algo_kwargs
    assert (kwargs["mode"], kwargs["warmup_steps"]) == ("offline_to_online", None)


def test_budgets_and_the_warm_up_of_the_offline_run_are_its_own(offline: Callable[..., TrainResult]) -> None:
    # Offline, warmup_steps are a ramp of the learning rate; online they would be random steps.
    limits = ("algo_kwargs.warmup_steps=5", "algo_kwargs.max_updates=4", "algo_kwargs.max_epochs=1")
    before = offline("td3_bc", *limits)
    _, options = fine_tuning_config(before.run_dir)
    assert (options.mode, options.controls.warmup_steps) == ("offline_to_online", None)
    assert (options.controls.max_updates, options.controls.max_epochs) == (None, None)
    _, options = fine_tuning_config(before.run_dir, overrides=["algo_kwargs.warmup_steps=7"])
    assert options.controls.warmup_steps == 7


def test_a_checkpoint_is_not_pretrained_again_unless_asked_for(
    offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    before = train(online_config(tmp_path, "td3_bc", *PRIOR))
    for checkpoint, source in ((before.run_dir, None), (offline().run_dir, "td3_bc/pendulum_fine_tuning")):
        _, options = fine_tuning_config(checkpoint, source)
        assert options.online.offline_pretrain_updates == 0
        _, options = fine_tuning_config(checkpoint, source, overrides=["algo_kwargs.offline_pretrain_updates=3"])
        assert options.online.offline_pretrain_updates == 3


def test_schedules_of_the_offline_run_are_its_own(offline: Callable[..., TrainResult]) -> None:
    # IQL's actor learns at a rate that ends at nothing, for data that does not change.
    before = offline("iql", "algo_kwargs.learning_rate_schedule=linear")
    config = load_config(before.run_dir / "config.yaml")
    assert config.algo_kwargs["actor_learning_rate_schedule"]["kind"] == "cosine"
    _, options = fine_tuning_config(before.run_dir)
    assert (options.controls.learning_rate_schedule, options.controls.actor_learning_rate_schedule) == (None, None)
    _, options = fine_tuning_config(before.run_dir, overrides=["algo_kwargs.actor_learning_rate_schedule=cosine"])
    assert options.controls.actor_learning_rate_schedule is not None


@pytest.mark.parametrize("named", [False, True], ids=["its own config", "another config"])
def test_an_online_algorithm_continues_online(named: bool, tmp_path: Path) -> None:
    normalized = "algo_kwargs.normalize_obs=true"
    before = train(online_config(tmp_path, "sac", normalized))
    source = online_config(tmp_path, "sac", normalized) if named else None
    config, options = fine_tuning_config(before.run_dir, source, overrides=["algo_kwargs.save_replay=true"])
    assert (options.mode, options.online.save_replay) == ("online", True)

    result = train(config)
    trees = [load_checkpoint(each.checkpoint_path)["algorithm"] for each in (before, result)]
    assert _rows(result, "eval")[0]["return_mean"] == before.metrics["return_mean"]
    # Observations look to the networks as they did.
    for name in ("obs_mean", "obs_std"):
        assert torch.equal(trees[0][name], trees[1][name])
    assert (trees[0]["obs_std"] != 1).all()


@pytest.mark.parametrize("moment", [0, 1, 25])
def test_the_offline_policy_is_evaluated_once_however_often_a_run_is_stopped(
    moment: int, offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    class KilledError(Exception):
        pass

    class Kill(Callback):
        def on_eval_end(self, state: TrainerState, metrics: Any) -> None:
            if moment == 0:
                raise KilledError

        def on_collect_end(self, state: TrainerState) -> None:
            if state.global_step == moment:
                raise KilledError

    before = offline()
    overrides = [*SMALL, f"output_dir={tmp_path / 'online'}"]
    config, _ = fine_tuning_config(before.run_dir, overrides=overrides)
    with pytest.raises(KilledError):
        train(config, callbacks=[Kill()])
    (run,) = (tmp_path / "online").iterdir()
    resumed, whole = resume(run), train(config)

    assert [row["global_step"] for row in _rows(resumed, "eval")] == [0, 20, 40]
    assert _rows(resumed, "eval") == _rows(whole, "eval")
    assert resumed.fine_tuning == whole.fine_tuning


def test_the_first_evaluation_is_kept_where_the_first_round_was_interrupted(
    offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    class Interrupt(Callback):
        def on_collect_end(self, state: TrainerState) -> None:
            state.interrupt("asked to")

    overrides = [*SMALL, "algo_kwargs.learning_starts=0", f"output_dir={tmp_path / 'online'}"]
    config, _ = fine_tuning_config(offline().run_dir, overrides=overrides)
    stopped = train(config, callbacks=[Interrupt()])
    assert stopped.interrupted
    resumed, whole = resume(stopped.run_dir), train(config)

    assert _rows(resumed, "eval") == _rows(whole, "eval")
    assert resumed.fine_tuning == whole.fine_tuning


def _log(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """A file of six episodes of ten steps in Pendulum's spaces."""
    rng = np.random.default_rng(0)
    rows = 60
    obs = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    arrays = {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.uniform(-2, 2, size=(rows, 1)).astype(np.float32),
        "rewards": rng.normal(loc=3.0, scale=2.0, size=rows).astype(np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.arange(1, rows + 1) % 10 == 0,
    }
    np.savez(path, **arrays)
    return arrays


@pytest.mark.parametrize("how", ["standard", "return_range", "none"])
@pytest.mark.parametrize("algo", ["td3_bc", "cal_ql"])
def test_rewards_of_the_run_are_transformed_by_the_numbers_of_the_data(algo: str, how: str, tmp_path: Path) -> None:
    rewards = _log(tmp_path / "log.npz")["rewards"].astype(float)
    given = {
        "dataset_path": tmp_path / "log.npz",
        "dataset_kind": "null",
        "dataset_size": "null",
        "reward_normalize": how,
        "reward_scale": 0.5,
        "reward_shift": 0.25,
        "reward_clip_min": -3,
    }
    sets = [f"algo_kwargs.{name}={value}" for name, value in given.items()]
    config, options = read_options(online_config(tmp_path / "runs", algo, *PRIOR, *OPTIONS.get(algo, ()), *sets))
    session = open_session(config, options)
    buffer = session.collector.buffer if session.collector is not None else None
    assert buffer is not None
    raw = np.linspace(-16, 16, 20)
    for number, value in enumerate(raw):
        buffer.add(
            obs=[[number, 0, 0]],
            actions=[[0.0]],
            rewards=[value],
            next_obs=[[0, 0, 0]],
            terminations=[False],
            truncations=[number == 19],
        )
    batch = buffer.sample(200)
    session.resources.close()

    returns = rewards.reshape(6, 10).sum(1)
    scale, shift = {
        "standard": (1 / rewards.std(), -rewards.mean() / rewards.std()),
        "return_range": (1000 / (returns.max() - returns.min()), 0.0),
        "none": (1.0, 0.0),
    }[how]
    expected = np.maximum(0.5 * (scale * raw + shift) + 0.25, -3)
    rows = batch["obs"][:, 0].long().numpy()
    assert batch["rewards"].tolist() == pytest.approx(expected[rows].tolist(), rel=1e-4, abs=1e-4)
    # What is kept is what the environment gave.
    assert buffer.rows_from(0)["rewards"].tolist() == pytest.approx(raw.tolist(), rel=1e-6)
    # The prior data went through the same numbers.
    prior = np.maximum(0.5 * (scale * rewards + shift) + 0.25, -3)
    drawn = session.source.prior.fields["rewards"]  # type: ignore[attr-defined]  # a MixedSource
    assert drawn.tolist() == pytest.approx(prior.tolist(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo_kwargs.reward_scale=2.0", "was trained with reward_scale None, the run has 2.0"),
        ("algo_kwargs.reward_normalize=standard", "was trained with reward_normalize 'none', the run has 'standard'"),
        ("algo_kwargs.gamma=0.9", "was trained with gamma 0.99, the run has 0.9"),
        ("algo_kwargs.normalize_obs=false", "was trained with normalize_obs True, the run has False"),
        ("env_kwargs.wrappers.reward.scale=0.1", "was trained with env_kwargs.wrappers.reward None"),
        ("algo_kwargs.hidden_sizes=[4]", "does not fit the options of the networks"),
        ("env_id=MountainCarContinuous-v0", "was trained for other observations or actions"),
        ("algo_kwargs.mode=offline", "initial_checkpoint does not go with mode: offline"),
    ],
)
def test_a_checkpoint_that_was_trained_otherwise_is_refused_by_name(
    override: str, words: str, offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    before = offline()
    overrides = [*SMALL, f"output_dir={tmp_path / 'online'}", override]
    with pytest.raises(ConfigError) as caught:
        train(fine_tuning_config(before.run_dir, overrides=overrides)[0])

    assert words in str(caught.value)
    assert not (tmp_path / "online").exists()


def test_rewards_that_are_normalised_by_other_data_are_refused_with_their_numbers(
    offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    before = offline("iql")
    overrides = [*SMALL, f"output_dir={tmp_path / 'online'}", "algo_kwargs.dataset_size=1000"]
    with pytest.raises(ConfigError, match=r"was trained with rewards of scale [\d.]+, the run has scale [\d.]+:"):
        train(fine_tuning_config(before.run_dir, overrides=overrides)[0])
    assert not (tmp_path / "online").exists()

    # On the same data it continues.
    overrides[-1] = "total_timesteps=20"
    assert train(fine_tuning_config(before.run_dir, overrides=overrides)[0]).fine_tuning


def test_a_checkpoint_of_another_algorithm_is_refused(
    command: Command, offline: Callable[..., TrainResult], tmp_path: Path
) -> None:
    before, output = offline("bc"), tmp_path / "online"
    answer = command("train", "--from", before.run_dir, "-c", "td3_bc/pendulum", "--set", f"output_dir={output}")

    assert (answer.code, answer.out) == (2, "")
    assert f"initial_checkpoint {before.checkpoint_path} is of 'bc', the run is of 'td3_bc'" in answer.err
    assert not output.exists()


def test_a_folder_without_a_checkpoint_cannot_be_begun_with(command: Command, tmp_path: Path) -> None:
    answer = command("train", "--from", tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"error: '{tmp_path}' holds no run: no folder in it has a config.yaml and checkpoints\n"


@pytest.mark.parametrize("algo", ["sac", "td3_bc"])
def test_a_replay_that_is_kept_is_a_dataset_to_train_on(
    algo: str, tmp_path: Path, tiny_config: Callable[..., TrainConfig]
) -> None:
    prior = PRIOR if algo == "td3_bc" else ()
    options = ("num_envs=2", "env_kwargs.max_episode_steps=15", "algo_kwargs.reward_scale=0.1", "algo_kwargs.gamma=0.9")
    result = train(online_config(tmp_path, algo, *prior, *options, "algo_kwargs.save_replay=true"))
    path = result.run_dir / "replay.npz"
    arrays = np.load(path)

    assert len(arrays["rewards"]) == 40
    # Two environments of 20 steps each: an episode that was cut after 15, and five steps of another.
    assert np.flatnonzero(arrays["timeouts"]).tolist() == [14, 19, 34, 39]
    assert not arrays["terminals"].any()
    # Pendulum's own equations: the cost of angle, speed and torque, and what gravity and torque do to the speed.
    (cosine, sine, speed), torque = arrays["observations"].T, arrays["actions"][:, 0]
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
    assert arrays["rewards"] == pytest.approx(-cost, rel=1e-3, abs=1e-3)
    faster = speed + 0.05 * (15 * sine + 3 * torque)
    assert arrays["next_observations"][:, 2] == pytest.approx(np.clip(faster, -8, 8), rel=1e-3, abs=1e-3)
    file = ("algo_kwargs.dataset_kind=npz", f"algo_kwargs.dataset_path={path}", "algo_kwargs.dataset_size=null")
    offline = train(tiny_config("td3_bc", *file))
    assert offline.metrics["update_count"] == 20
    # Of the episodes' raw rewards, as evaluations are.
    assert offline.data_return == pytest.approx(arrays["rewards"].sum() / 4, rel=1e-5)


def test_a_run_too_short_to_store_anything_has_no_replay_to_keep(tmp_path: Path) -> None:
    # Hindsight stores whole episodes, of fifty steps.
    result = train(online_config(tmp_path, "her", "algo_kwargs.save_replay=true"))
    assert result.metrics["env_steps"] == 40
    assert not (result.run_dir / "replay.npz").exists()


def test_an_interrupted_run_keeps_its_replay_when_it_ends(tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_collect_end(self, state: TrainerState) -> None:
            if state.env_steps == 25:
                state.interrupt("asked to")

    result = train(online_config(tmp_path, "sac", "algo_kwargs.save_replay=true"), callbacks=[Interrupt()])
    assert not (result.run_dir / "replay.npz").exists()
    resume(result.run_dir)
    assert len(np.load(result.run_dir / "replay.npz")["rewards"]) == 40


def test_an_update_draws_prior_rows_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _log(tmp_path / "log.npz")
    logged = {tuple(row) for row in np.load(tmp_path / "log.npz")["observations"].tolist()}
    seen: list[list[bool]] = []
    original = Algorithm.update

    def updating(self: Algorithm, batch: Any) -> Any:
        seen.append([tuple(row) in logged for row in batch["obs"].tolist()])
        return original(self, batch)

    monkeypatch.setattr(Algorithm, "update", updating)
    file = (f"algo_kwargs.dataset_path={tmp_path / 'log.npz'}", "algo_kwargs.dataset_kind=null")
    train(online_config(tmp_path / "runs", "td3_bc", *PRIOR, *file, "algo_kwargs.dataset_size=null"))
    assert seen == [[True] * 8] * 15 + [[True] * 4 + [False] * 4] * 28


def test_prior_data_and_experience_are_drawn_by_numbers_of_their_own(tmp_path: Path) -> None:
    source: Any = open_session(*read_options(online_config(tmp_path, "rlpd", *PRIOR, *SHORT))).source
    streams = (source.prior.generator, source.online.generator)
    first, second = (torch.randint(10**9, (8,), generator=stream) for stream in streams)
    assert not (first == second).any()


def test_an_offline_run_of_an_online_algorithm_goes_online_by_itself(tmp_path: Path) -> None:
    tiny = ("total_timesteps=4", "eval_episodes=1", "algo_kwargs.dataset_size=400", "algo_kwargs.hidden_sizes=[8]")
    before = train(load_config("dqn/cartpole_offline", overrides=[*tiny, f"output_dir={tmp_path}"]))
    _, options = fine_tuning_config(before.run_dir)
    assert options.mode == "offline_to_online"
    # A policy that has learned already does not begin at random.
    assert options.online.exploration_noise == 0.05
    assert options.online.exploration_schedule is None


@pytest.mark.parametrize("algo", ["discrete_bcq", "discrete_cql", "discrete_iql", "discrete_crr", "discrete_sac"])
def test_offline_policies_for_discrete_actions_go_online(algo: str, tmp_path: Path) -> None:
    config = "discrete_sac/cartpole_offline" if algo == "discrete_sac" else f"{algo}/cartpole"
    tiny = ("total_timesteps=4", "eval_episodes=1", "algo_kwargs.dataset_size=400", "algo_kwargs.hidden_sizes=[8]")
    before = train(load_config(config, overrides=[*tiny, f"output_dir={tmp_path}"]))
    online = ["total_timesteps=20", "algo_kwargs.learning_starts=5", "algo_kwargs.update_to_data=1"]
    after = train(fine_tuning_config(before.run_dir, overrides=online)[0])
    assert after.fine_tuning
    assert load_checkpoint(after.checkpoint_path)["trainer"]["state"]["env_steps"] == 20


def test_a_run_remembers_the_episodes_that_trained_the_checkpoint_it_begins_with() -> None:
    before = {"trained_on": torch.tensor([3, 7])}
    assert stored_keys(None, None)["trained_on"].tolist() == []
    assert stored_keys(None, before)["trained_on"].tolist() == [3, 7]
    # Checkpoints of earlier versions do not say.
    assert stored_keys(None, {}) == {"trained_on": None}
    assert stored_keys(None, {"trained_on": None}) == {"trained_on": None}
    assert stored_keys(None, {"trained_on": torch.arange(MOST_KEYS)}) == {"trained_on": None}
