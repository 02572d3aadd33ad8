"""When a run acts and when it learns, counted on small runs, and which options it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from probe import LENGTHS, Probe
from small_runs import PRIOR, PROBE, blank_state, differences, online_config

from rl_training.acting import LocalCollector
from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.envs.snapshots import Snapshot
from rl_training.runtime import TrainResult, assembly, read_options, train
from rl_training.runtime.schedules import Plan
from rl_training.storage import load_checkpoint, read_metrics


class Diary:
    """What a run did, one entry after the other."""

    def __init__(self) -> None:
        self.events: list[str] = []
        """`random` or `policy` for a step of all environments, `update` for an update."""
        self.steps: list[int] = []
        """Steps of the task that each step of all environments was."""
        self.stored: list[int] = []
        """Transitions that had been added to the buffer after it."""
        self.collector: Any = None
        self.batches: list[dict[str, torch.Tensor]] = []
        self.places: list[torch.Tensor] = []
        """Where the environments were at each update."""
        self.result: Any = None

    def updates_after(self) -> list[int]:
        """How many updates there had been before the first step of all environments, after it, after the second ..."""
        counts = [0]
        for event in self.events:
            if event == "update":
                counts[-1] += 1
            else:
                counts.append(counts[-1])
        return counts

    @property
    def random(self) -> int:
        """Steps of all environments with random actions, which come first."""
        acts = [event for event in self.events if event != "update"]
        count = acts.count("random")
        assert acts == ["random"] * count + ["policy"] * (len(acts) - count)
        return count


Run = Callable[..., Diary]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Train, and write down what happens."""
    diary = Diary()
    collect, update = LocalCollector.collect, Algorithm.update

    def collecting(self: LocalCollector, *, random: bool, noise: float) -> int:
        steps = collect(self, random=random, noise=noise)
        diary.events.append("random" if random else "policy")
        diary.steps.append(steps)
        diary.stored.append(self.buffer.added)
        diary.collector = self
        return steps

    def updating(self: Algorithm, batch: dict[str, torch.Tensor]) -> Any:
        diary.events.append("update")
        diary.batches.append(batch)
        if diary.collector is not None:
            diary.places.append(torch.from_numpy(diary.collector.stepper.obs.copy()))
        return update(self, batch)

    def start(algo: str, *overrides: str) -> Diary:
        diary.__init__()  # type: ignore[misc]  # several runs of a test, one after the other
        diary.result = train(online_config(tmp_path / "runs", algo, *overrides))
        return diary

    monkeypatch.setattr(LocalCollector, "collect", collecting)
    monkeypatch.setattr(Algorithm, "update", updating)
    return start


def _state(result: TrainResult) -> dict[str, Any]:
    state: dict[str, Any] = load_checkpoint(result.checkpoint_path)["trainer"]["state"]
    return state


def _horizon(result: TrainResult) -> int:
    return int(load_checkpoint(result.checkpoint_path)["trainer"]["horizon"])


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("ratio", [None, 0.5, 2.5, 3])
def test_updates_are_the_ratio_times_the_transitions_after_the_wait(
    ratio: float | None, num_envs: int, run: Run
) -> None:
    given = [] if ratio is None else [f"algo_kwargs.update_to_data={ratio}"]
    diary = run("sac", *PROBE, f"num_envs={num_envs}", "total_timesteps=52", *given)

    # The wait is 12 transitions, so 40 of 52 count.
    expected = [int((ratio or 1) * max(stored - 12, 0)) for stored in [0, *diary.stored]]
    assert diary.updates_after() == expected
    assert expected[-1] == 40 * (ratio or 1)
    assert diary.stored[-1] == 52
    assert _horizon(diary.result) == 40 * (ratio or 1)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("frequency", "updates"), [(4, 3), (1, 2), (None, 2), (5, None)])
def test_rounds_of_updates_follow_every_so_many_steps_of_all_environments(
    frequency: int | None, updates: int | None, num_envs: int, run: Run
) -> None:
    rounds = {"train_frequency": frequency, "gradient_updates_per_step": updates}
    given = [f"algo_kwargs.{name}={value}" for name, value in rounds.items() if value is not None]
    diary = run("sac", *PROBE, f"num_envs={num_envs}", "total_timesteps=60", *given)

    # While there are 12 transitions or fewer, steps of the environments do not count.
    counted = [max(step - 12 // num_envs, 0) for step in range(60 // num_envs + 1)]
    expected = [steps // (frequency or 1) * (updates or 1) for steps in counted]
    assert diary.updates_after() == expected
    assert _horizon(diary.result) == expected[-1] > 0


@pytest.mark.parametrize(
    ("starts", "warmup", "smallest", "first"),
    [
        # The first update follows the step after the longer of the two waits, or the row that was waited for.
        (7, 0, 1, 8),
        (3, 9, 1, 10),
        (9, 3, 1, 10),
        (0, 0, 1, 1),
        (0, 0, 20, 20),
        (5, 5, 20, 20),
        (20, 5, 20, 21),
    ],
)
def test_no_update_comes_before_every_wait_is_over(
    starts: int, warmup: int, smallest: int, first: int, run: Run
) -> None:
    options = {"learning_starts": starts, "warmup_steps": warmup, "min_buffer_size": smallest}
    diary = run("sac", *PROBE, *(f"algo_kwargs.{name}={value}" for name, value in options.items()))

    # Nothing of the wait is made up for: one update with the first transition that counts, and one with each after it.
    assert diary.updates_after() == [max(step - first + 1, 0) for step in range(41)]
    assert diary.random == warmup


def test_random_steps_last_as_long_as_the_wait_if_nothing_is_said(run: Run) -> None:
    assert run("sac", *PROBE).random == 12
    # Of four environments together: three steps are twelve.
    assert run("sac", *PROBE, "num_envs=4").random == 3
    # A policy that is trained already acts at once.
    assert run("td3_bc", *PRIOR).random == 0


def test_what_is_stored_is_what_was_done(run: Run) -> None:
    # Without noise and without updates TD3's policy is one function of the observation.
    quiet = ("algo_kwargs.exploration_noise=0", "algo_kwargs.learning_starts=1000", "algo_kwargs.warmup_steps=12")
    diary = run("td3", *PROBE, *quiet)
    rows, policy = diary.collector.buffer.rows_from(0), diary.collector.policy

    by_policy = policy.explore(rows["obs"]).raw_actions
    assert torch.allclose(rows["actions"][12:], by_policy[12:])
    assert not torch.isclose(rows["actions"][:12], by_policy[:12]).any()
    (done,) = diary.collector.stepper.envs.get_attr("calls")
    assert [call for call in done if call != "reset"] == pytest.approx(rows["actions"].flatten().tolist())


def test_exploration_noise_is_the_deviation_of_what_is_added(run: Run) -> None:
    settings = ("total_timesteps=400", "algo_kwargs.learning_starts=1000", "algo_kwargs.warmup_steps=0")
    rarely = ("log_interval=400", "checkpoint_interval=400", "algo_kwargs.eval_interval=null")
    diary = run("td3", *PROBE, *settings, *rarely, "algo_kwargs.exploration_noise=0.05")
    rows, policy = diary.collector.buffer.rows_from(0), diary.collector.policy

    noise = (rows["actions"] - policy.explore(rows["obs"]).raw_actions).flatten()[rows["actions"].flatten().abs() < 1]
    # Hardly any action is at a bound, where noise is cut off; the deviation of 400 samples is known to 4 %.
    assert len(noise) > 300
    assert noise.std() == pytest.approx(0.05, rel=0.15)
    assert abs(noise.mean()) < 0.01


def _last_obs(diary: Diary) -> tuple[torch.Tensor, torch.Tensor]:
    """What was drawn last, and what could be."""
    return diary.batches[-1]["obs"], diary.collector.buffer.fields["obs"]


def test_a_ring_holds_no_more_than_its_capacity(run: Run) -> None:
    diary = run("sac", *PROBE, "algo_kwargs.buffer_capacity=17", "num_envs=2")

    assert len(diary.collector.buffer) == 17
    assert diary.collector.buffer.added == 40
    sizes = [row["buffer_size"] for row in read_metrics(diary.result.run_dir) if row["kind"] == "train"]
    assert sizes == [10, 17, 17, 17]
    # The last batch comes from the last rows only.
    drawn, held = ({tuple(row) for row in obs.tolist()} for obs in _last_obs(diary))
    assert drawn <= held
    assert len(held) == 17


def test_a_run_ends_with_its_last_step_or_its_last_update(run: Run) -> None:
    whole = run("sac", *PROBE, "num_envs=3")
    # The first multiple of three that is not below 40.
    assert (_state(whole.result)["env_steps"], _state(whole.result)["global_step"]) == (42, 42)
    assert whole.result.stop_reason is None

    bounded = run("sac", *PROBE, "algo_kwargs.max_updates=5", "algo_kwargs.update_to_data=2")
    state = _state(bounded.result)
    # Two updates with each transition after the twelfth, so the fifth comes with the fifteenth.
    assert (state["update_count"], state["env_steps"]) == (5, 15)
    assert bounded.result.stop_reason == "reached max_updates (5)"
    assert _horizon(bounded.result) == 5
    assert bounded.result.metrics["global_step"] == 15


def test_pretraining_comes_before_the_first_step_and_is_not_part_of_the_length(run: Run) -> None:
    diary = run("td3_bc", *PRIOR, "total_timesteps=30")
    state = _state(diary.result)

    # 15 updates at first, and one with each transition after the twelfth.
    assert diary.updates_after() == [15 + max(step - 12, 0) for step in range(31)]
    assert (state["global_step"], state["env_steps"], state["update_count"]) == (45, 30, 33)
    assert _horizon(diary.result) == 33

    bounded = run("td3_bc", *PRIOR, "algo_kwargs.max_updates=9")
    assert bounded.updates_after() == [9]


@pytest.mark.parametrize("num_envs", [1, 2])
def test_n_step_windows_stay_within_their_episode(num_envs: int, run: Run) -> None:
    # 60 rows each, and a ring that has been overwritten.
    sizes = (f"num_envs={num_envs}", f"total_timesteps={60 * num_envs}", f"algo_kwargs.buffer_capacity={35 * num_envs}")
    diary = run("sac", *PROBE, *sizes, "algo_kwargs.n_step=3", "algo_kwargs.gamma=0.5")

    lengths, seen = torch.tensor(LENGTHS), set()
    for batch, place in zip(diary.batches, diary.places, strict=True):
        obs, following = batch["obs"], batch["next_obs"]
        reach = following[:, 2] - obs[:, 2]
        left = lengths[obs[:, 0].long()] - obs[:, 2]
        assert torch.equal(following[:, :2], obs[:, :2])
        assert (reach <= torch.minimum(left, torch.tensor(3.0))).all()
        assert torch.equal(batch["discounts"], 0.5**reach)
        # A window is shorter than its episode allows only where the environment has not gone further yet.
        short = reach < torch.minimum(left, torch.tensor(3.0))
        assert torch.equal(following[short], place[obs[short, 0].long()])
        seen |= set(reach.tolist())
    assert seen == {1.0, 2.0, 3.0}


def test_environments_in_processes_do_what_those_side_by_side_do(run: Run) -> None:
    trees = []
    for kind, vector in (("sync", SyncVectorEnv), ("async", AsyncVectorEnv)):
        diary = run("sac", "num_envs=2", f"algo_kwargs.vector_env={kind}", "algo_kwargs.normalize_obs=true")
        assert isinstance(diary.collector.stepper.envs, vector)
        assert diary.collector.num_envs == 2
        tree = load_checkpoint(diary.result.checkpoint_path)
        trees.append({name: tree[name] for name in ("algorithm", "source", "collector", "random")})
    assert differences(trees[0], trees[1]) == []


@pytest.fixture
def next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that take a call of their own to reset themselves."""

    def make(_id: str, _kwargs: Any, *, num_envs: int, **_: Any) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Snapshot(Probe())] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)

    monkeypatch.setattr(assembly, "make_vector_env", make)


@pytest.mark.usefixtures("next_step")
@pytest.mark.parametrize("how", ["update_to_data=1", "train_frequency=1"])
def test_resets_are_neither_steps_nor_a_reason_to_update(how: str, run: Run) -> None:
    diary = run("sac", *PROBE, f"algo_kwargs.{how}", "total_timesteps=30")

    # Episodes of three steps: every fourth call is a reset. The tenth episode ends after 39 calls.
    steps = [0 if call % 4 == 3 else 1 for call in range(39)]
    assert diary.steps == steps
    valid = np.cumsum([0, *steps]).tolist()
    assert diary.updates_after() == [max(count - 12, 0) for count in valid]
    assert _state(diary.result)["global_step"] == 30


def test_whole_episodes_bring_their_updates_when_they_end(run: Run) -> None:
    diary = run("her", "num_envs=2", "total_timesteps=220", "algo_kwargs.update_to_data=0.5", "eval_episodes=2")

    # Episodes of 50 steps, two at a time: nothing is stored before they end, then 100 rows. 12 rows are waited for.
    expected = [(min(step, 200) // 100 * 100 - 12) // 2 if step >= 100 else 0 for step in range(0, 221, 2)]
    assert diary.updates_after() == expected
    assert expected[-1] == 94


def test_the_learning_rate_has_come_down_when_the_run_ends(run: Run) -> None:
    rounds = ("num_envs=4", "algo_kwargs.gradient_updates_per_step=1", "algo_kwargs.learning_rate_schedule=linear")
    diary = run("sac", *PROBE, "total_timesteps=80", "log_interval=80", *rounds)

    # 17 updates, one with each step of all four environments after the third; the last is at 1/17 of the learning rate.
    assert diary.updates_after()[-1] == 17
    assert read_metrics(diary.result.run_dir)[-1]["learning_rate_multiplier"] == pytest.approx(1 / 17)


@pytest.mark.parametrize(
    ("algo", "overrides", "words"),
    [
        (
            "sac",
            ["algo_kwargs.update_to_data=2", "algo_kwargs.train_frequency=2"],
            "update_to_data and train_frequency both say how often to update; give one",
        ),
        (
            "sac",
            ["algo_kwargs.update_to_data=2", "algo_kwargs.gradient_updates_per_step=2"],
            "update_to_data and gradient_updates_per_step both say how often to update; give one",
        ),
        ("sac", ["algo_kwargs.mode=offline"], "learning_starts does not go with mode: offline"),
        ("td3_bc", ["algo_kwargs.buffer_capacity=500"], "buffer_capacity does not go with mode: offline"),
        ("rebrac", ["algo_kwargs.online_actor_bc_factor=1"], "online_actor_bc_factor does not go with mode: offline"),
        ("td3_bc", [], "learning_starts does not go with mode: offline"),
        ("sac", ["algo_kwargs.dataset_path=log.npz"], "dataset_path does not go with mode: online"),
        ("sac", ["algo_kwargs.offline_batch_ratio=0.7"], "offline_batch_ratio does not go with mode: online"),
        ("sac", ["algo_kwargs.max_epochs=3"], "max_epochs does not go with mode: online"),
        ("td3_bc", [*PRIOR, "algo_kwargs.max_epochs=3"], "max_epochs does not go with mode: offline_to_online"),
        ("sac", ["algo_kwargs.her_ratio=0.5"], "her_ratio has no effect without replay: hindsight"),
        (
            "sac",
            ["algo_kwargs.goal_selection_strategy=final"],
            "goal_selection_strategy has no effect without replay: hindsight",
        ),
        ("sac", ["env_id=null"], "env_id is required with mode: online"),
        ("sac", ["algo_kwargs.replay=hindsight"], "Pendulum-v1 has no goals"),
        ("sac", ["algo_kwargs.buffer_capacity=3", "num_envs=4"], "buffer_capacity must be >= num_envs (4), got 3"),
        ("sac", ["algo_kwargs.mode=offline_to_online"], "no dataset is named"),
        ("sac", ["algo_kwargs.update_to_data=0"], "update_to_data must be > 0, got 0"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    algo: str, overrides: list[str], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError,)) as caught:
        train(online_config(tmp_path / "runs", algo, *overrides))

    assert words in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("mode", "normalize", "decays"),
    [("offline", "return_range", True), ("offline_to_online", "return_range", False), ("online", "none", False)],
)
def test_defaults_that_mean_nothing_in_a_mode_are_left_out(mode: str, normalize: str, decays: bool) -> None:
    _, options = read_options({"algo": "iql", "env_id": "Pendulum-v1", "algo_kwargs": {"mode": mode}})
    assert options.data.reward_normalize == normalize
    assert (options.controls.actor_learning_rate_schedule is not None) == decays
    assert options.online.offline_batch_ratio == "proportional"


def test_a_reward_normalisation_without_data_is_refused() -> None:
    given = {"mode": "online", "reward_normalize": "return_range"}
    with pytest.raises(ConfigError, match="reward_normalize does not go with mode: online"):
        read_options({"algo": "iql", "env_id": "Pendulum-v1", "algo_kwargs": given})


@pytest.mark.parametrize("given", [{}, {"train_frequency": None}, {"gradient_updates_per_step": None}])
def test_leaving_rounds_open_leaves_the_usual_ratio(given: dict[str, Any]) -> None:
    _, options = read_options({"algo": "redq", "env_id": "Pendulum-v1", "algo_kwargs": given})
    assert options.online.update_to_data == 20


def test_an_option_that_has_the_value_it_would_have_anyway_is_no_request(tmp_path: Path) -> None:
    config = online_config(tmp_path / "runs", "sac", "algo_kwargs.max_epochs=null", "algo_kwargs.dataset_mix=[]")
    assert train(config).metrics["env_steps"] == 40


def test_a_resolved_config_is_a_config(run: Run) -> None:
    first = run("sac", *PROBE)
    config = TrainConfig(**load_checkpoint(first.result.checkpoint_path)["config"])
    assert train(config).metrics["update_count"] == first.result.metrics["update_count"] == 28


def test_a_ratio_that_no_float_holds_exactly_loses_no_update() -> None:
    plan = Plan(total=100, pretrain=0, update_to_data=0.29)
    # 0.29 * 100 is 28.999999999999996.
    assert plan.updates_due(blank_state(stored=100)) == plan.updates == 29


def test_a_plan_is_over_only_when_the_last_step_has_its_updates() -> None:
    plan = Plan(total=10, pretrain=0, update_to_data=1.0)
    assert not plan.is_over(blank_state(global_step=10, stored=10, online_updates=9))
    assert plan.is_over(blank_state(global_step=10, stored=10, online_updates=10))
    # Updates that a lower ratio would not have earned are not taken back, nor owed.
    assert plan.updates_due(blank_state(global_step=10, stored=10, online_updates=15)) == 0
