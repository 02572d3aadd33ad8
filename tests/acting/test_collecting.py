"""Evaluation: the same episodes for every policy; collection: every step of the task once, however resets happen."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from probe import LENGTHS, Probe, episode, policy
from small_runs import online_config
from torch import Tensor

from rl_training.acting.collecting import Collector, LocalCollector, RunningStatistics, Stepper
from rl_training.acting.evaluation import EVAL_SEED
from rl_training.acting.policy import Policy
from rl_training.core.errors import TrainingError
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.data import ReplayBuffer
from rl_training.envs import make_vector_env
from rl_training.envs.snapshots import Snapshot
from rl_training.models import Model
from rl_training.runtime import EvaluationResult, evaluate_policy, open_session, read_options
from rl_training.runtime.loop import train_session
from rl_training.runtime.saving import save, session_tree

ID = "Walk-v0"


class _Walk(gym.Env[Any, Any]):
    """Ends after a number of steps that its seed decides; refuses to be stepped when it is over."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)
    open = 0

    def __init__(self) -> None:
        type(self).open += 1
        self.left, self.place = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.place = int(self.np_random.integers(1, 9)), float(self.np_random.normal())
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.left == 0:
            raise RuntimeError("stepped after the end of the episode")
        self.left -= 1
        self.place += float(action[0])
        # Some episodes terminate and some are cut: both are over.
        over = self.left == 0
        return self._obs(), self.place, over and self.place > 0, over and self.place <= 0, {}

    def close(self) -> None:
        type(self).open -= 1

    def _obs(self) -> Any:
        return np.array([self.place, self.left], dtype=np.float32)


def _make(**_: Any) -> gym.Env[Any, Any]:
    return _Walk()


@pytest.fixture(autouse=True)
def walk() -> Iterator[None]:
    gym.register(ID, entry_point=_make)
    _Walk.open = 0
    yield
    gym.registry.pop(ID)


def _act(obs: Tensor) -> Tensor:
    """Depends on the observation alone, so an episode is the same in any company."""
    return torch.tanh(obs[:, :1] - 0.3)


def _by_hand(seed: int) -> tuple[float, int]:
    """One episode without any of the package's code."""
    env = _Walk()
    obs, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        action = 2 * _act(torch.from_numpy(obs)[None])[0].numpy()
        obs, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps


@pytest.mark.parametrize("num_envs", [None, 1, 2, 3, 7, 20])
def test_returns_and_lengths_do_not_depend_on_how_many_environments_there_are(num_envs: int | None) -> None:
    result = evaluate_policy(_act, ID, {}, episodes=13, num_envs=num_envs)

    returns, lengths = zip(*(_by_hand(EVAL_SEED + episode) for episode in range(13)), strict=True)
    assert len(set(lengths)) > 3
    assert result.lengths == lengths
    assert result.returns == pytest.approx(returns, rel=1e-5)


def test_episodes_have_fixed_seeds_that_count_up() -> None:
    first = evaluate_policy(_act, ID, {}, episodes=5)
    again = evaluate_policy(_act, ID, {}, episodes=5)
    shifted = evaluate_policy(_act, ID, {}, episodes=4, seed=EVAL_SEED + 1)

    assert first == again
    assert shifted.returns == first.returns[1:]


def test_evaluation_draws_nothing_from_the_global_generator() -> None:
    def noisy(obs: Tensor) -> Tensor:
        return torch.rand(len(obs), 1)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = evaluate_policy(noisy, ID, {}, episodes=3)
    drawn = torch.rand(3)
    second = evaluate_policy(noisy, ID, {}, episodes=3)

    assert torch.equal(drawn, expected)
    # A stochastic policy is judged with the same noise each time.
    assert first == second


def test_actions_arrive_in_native_units() -> None:
    # Every step adds the action to the place: 2 in native units where the policy says 1.
    result = evaluate_policy(lambda obs: torch.ones(len(obs), 1), ID, {}, episodes=1)

    env = _Walk()
    start = float(env.reset(seed=EVAL_SEED)[0][0])
    steps = result.lengths[0]
    assert result.returns[0] == pytest.approx(steps * start + 2 * steps * (steps + 1) / 2, rel=1e-5)


def test_environments_are_closed_also_after_an_error() -> None:
    def broken(obs: Tensor) -> Tensor:
        raise ZeroDivisionError

    evaluate_policy(_act, ID, {}, episodes=2)
    with pytest.raises(ZeroDivisionError):
        evaluate_policy(broken, ID, {}, episodes=2)

    assert _Walk.open == 0


def test_no_more_environments_are_made_than_there_are_episodes() -> None:
    seen: list[int] = []

    def count(obs: Tensor) -> Tensor:
        seen.append(len(obs))
        return _act(obs)

    evaluate_policy(count, ID, {}, episodes=2, num_envs=8)

    assert set(seen) == {2}


def test_metrics_are_the_mean_and_spread_of_the_episodes() -> None:
    metrics = EvaluationResult("Pendulum-v1", (1.0, 2.0, 6.0), (10, 20, 60)).metrics()

    assert metrics == pytest.approx(
        # The spread is that of these episodes: sqrt((4 + 1 + 9) / 3).
        {
            "return_mean": 3.0,
            "return_std": (14 / 3) ** 0.5,
            "return_min": 1.0,
            "return_max": 6.0,
            "length_mean": 30.0,
        }
    )


def test_a_task_with_reference_returns_has_a_normalised_score() -> None:
    result = EvaluationResult("Hopper-v4", (3234.3, 3234.3), (1000, 1000))

    assert result.metrics()["normalized_score"] == pytest.approx(100.0)
    assert result.to_dict()["returns"] == [3234.3, 3234.3]
    assert result.to_dict()["lengths"] == [1000, 1000]


MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


class _Known(Model):
    """Networks whose actions are known."""

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        return torch.from_numpy(policy(obs.numpy()))


def _known_policy() -> Policy:
    spaces = SpaceSpec.vector(3, BoxActions((-1.0,), (1.0,)))
    return Policy(_Known(obs_dim=3, action_dim=1), obs_mean=torch.zeros(3), obs_std=torch.ones(3), spaces=spaces)


def _snapshot_probe() -> gym.Env[Any, Any]:
    return Snapshot(Probe())


MakeCollector = Callable[..., LocalCollector]


@pytest.fixture
def probed() -> Iterator[MakeCollector]:
    """A policy at work in some probes, which are closed in the end."""
    opened: list[LocalCollector] = []

    def make(num_envs: int, mode: AutoresetMode, kind: str = "sync", *, normalize: bool = False) -> LocalCollector:
        vector: Any = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[kind]
        # Without copies, so that the caller must copy what it keeps.
        envs = vector([_snapshot_probe] * num_envs, autoreset_mode=mode, copy=False)
        buffer = ReplayBuffer(capacity=1000, obs_dim=3, action_dim=1, num_envs=num_envs)
        opened.append(LocalCollector(_known_policy(), Stepper(envs, seed=0), buffer, normalize=normalize))
        return opened[-1]

    yield make
    for collector in opened:
        collector.close()


def _rows(collector: LocalCollector) -> list[tuple[Any, ...]]:
    """What is in the buffer, in the form in which `probe.episode` tells it."""
    rows = collector.buffer.rows_from(0)
    columns = [rows[name] for name in ("obs", "actions", "rewards", "next_obs", "dones", "truncations")]
    return [tuple(row) for row in torch.cat([column.reshape(len(column), -1) for column in columns], 1).tolist()]


def _steps(calls: int, length: int, mode: AutoresetMode) -> int:
    """Steps of the task in so many calls: where a reset takes a call of its own, one in length + 1 is none."""
    if mode != AutoresetMode.NEXT_STEP:
        return calls
    return calls // (length + 1) * length + calls % (length + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_what_is_stored_is_what_single_environments_do(
    num_envs: int, kind: str, mode: AutoresetMode, probed: MakeCollector
) -> None:
    collector, calls = probed(num_envs, mode, kind), 20

    counted = [collector.collect(random=False) for _ in range(calls)]

    steps = [_steps(calls, length, mode) for length in LENGTHS[:num_envs]]
    expected: list[tuple[Any, ...]] = []
    episodes: list[tuple[float, int, bool]] = []
    for number, (length, count) in enumerate(zip(LENGTHS, steps, strict=False)):
        whole = [episode(number, which) for which in range(calls)]
        expected += [row for rows in whole for row in rows][:count]
        # A reward stands in column 4.
        ended = enumerate(whole[: count // length])
        episodes += [(sum(row[4] for row in rows), length, which % 2 == 0) for which, rows in ended]
    assert sum(counted) == collector.buffer.added == sum(steps)
    assert sorted(_rows(collector)) == sorted(expected)
    assert sorted(collector.episodes) == sorted(episodes)
    # Every action that was stored was taken by the environment, and no other.
    for number, done in enumerate(collector.stepper.envs.get_attr("calls")):
        taken = [row[3] for row in _rows(collector) if row[0] == number]
        assert [call for call in done if call != "reset"] == taken


def test_resets_that_take_a_call_of_their_own_leave_no_row(probed: MakeCollector) -> None:
    collector = probed(2, AutoresetMode.NEXT_STEP)

    counted = [collector.collect(random=False) for _ in range(20)]

    # Episodes of 3 steps: 4 calls each, five times, so 15 of 20. Of 5 steps: 6 calls each, three times, and 2 more.
    streams = collector.buffer.rows_from(0)["streams"]
    assert torch.bincount(streams).tolist() == [15, 17]
    # The calls in which either, or both, were reset: the fourth, the sixth, the eighth, the twelfth.
    assert counted[:12] == [2, 2, 2, 1, 2, 1, 2, 1, 2, 2, 2, 0]
    assert collector.lengths.tolist() == [0, 2]


@pytest.mark.parametrize("mode", MODES)
def test_no_row_begins_where_an_episode_ended_or_leads_into_another(mode: AutoresetMode, probed: MakeCollector) -> None:
    collector = probed(5, mode)
    for _ in range(40):
        collector.collect(random=False)

    lengths = torch.tensor(LENGTHS)
    rows = collector.buffer.rows_from(0)
    obs, following = rows["obs"], rows["next_obs"]
    number, time = obs[:, 0].long(), obs[:, 2]
    assert torch.equal(following[:, :2], obs[:, :2])
    assert torch.equal(following[:, 2], time + 1)
    assert (time < lengths[number]).all()
    ends = (rows["dones"] + rows["truncations"]) > 0
    assert torch.equal(ends, following[:, 2] == lengths[number])
    # Terminated on the very step of the time limit is terminated.
    assert not (rows["dones"].bool() & rows["truncations"].bool()).any()
    assert torch.equal(rows["dones"][ends] == 1, ((number + obs[:, 1]) % 3 != 1)[ends])


def test_the_same_transitions_are_stored_however_environments_reset_themselves(probed: MakeCollector) -> None:
    found = []
    for mode in MODES:
        collector = probed(5, mode)
        # The third episode of the longest has ended after 3 * (7 + 1) calls in any mode.
        for _ in range(24):
            collector.collect(random=False)
        found.append(Counter(row for row in _rows(collector) if row[1] < 3))

    assert found[0].total() == 3 * sum(LENGTHS)
    assert found[0] == found[1] == found[2]


def test_an_episode_is_told_once_and_then_forgotten(probed: MakeCollector) -> None:
    collector = probed(2, AutoresetMode.NEXT_STEP)
    for _ in range(2):
        collector.collect(random=False)
    assert collector.metrics() == {}
    for _ in range(4):
        collector.collect(random=False)

    # One episode of each: three steps from 0 on, five from 1000 on, plus the actions. Both are their first: successes.
    returns = [sum(row[4] for row in episode(number, 0)) for number in (0, 1)]
    assert collector.metrics() == {
        "episodes": 2,
        "return_mean": sum(returns) / 2,
        "length_mean": 4.0,
        "success_rate": 1.0,
    }
    assert collector.metrics() == {}


def test_random_actions_are_uniform_and_the_policys_otherwise(probed: MakeCollector) -> None:
    torch.manual_seed(0)
    collector = probed(5, AutoresetMode.DISABLED)
    for _ in range(150):
        collector.collect(random=True)

    actions = collector.buffer.rows_from(0)["actions"]
    assert actions.abs().max() <= 1
    # 750 uniform numbers: their mean has a deviation of 0.021, their deviation is 0.577.
    assert abs(actions.mean()) < 0.08
    assert actions.std() == pytest.approx(3**-0.5, abs=0.03)


@pytest.mark.parametrize(
    ("place", "wrong", "words"),
    [
        (0, np.nan, r"an observation that is nan \(environment 1, after 0 steps of an episode, column 0\)"),
        (1, np.nan, r"a reward that is nan \(environment 1, after 0 steps of an episode\)"),
        (1, 1e300, r"a reward that is 1e\+300"),
    ],
)
def test_a_step_that_is_not_finite_is_not_learned_from(
    probed: MakeCollector, place: int, wrong: float, words: str
) -> None:
    collector = probed(2, AutoresetMode.DISABLED)
    step = collector.stepper.envs.step

    def broken(actions: Any) -> Any:
        results = list(step(actions))
        results[place] = results[place].astype(np.float64)
        results[place][1] = wrong
        return tuple(results)

    collector.stepper.envs.step = broken

    with pytest.raises(TrainingError, match=words):
        collector.collect(random=True)
    assert collector.buffer.added == 0


def test_a_first_observation_that_is_not_finite_is_not_acted_on(probed: MakeCollector) -> None:
    collector = probed(2, AutoresetMode.DISABLED)
    collector.stepper.obs[1] = np.inf

    with pytest.raises(
        TrainingError, match=r"an observation that is inf \(environment 1, .*look at its step\(\) and reset"
    ):
        collector.collect(random=False)
    assert collector.buffer.added == 0


def test_statistics_are_those_of_what_steps_led_to(probed: MakeCollector) -> None:
    collector = probed(2, AutoresetMode.NEXT_STEP, normalize=True)
    for _ in range(20):
        collector.collect(random=False)

    seen = collector.buffer.rows_from(0)["next_obs"].numpy().astype(float)
    assert len(seen) == 32
    assert collector.policy.obs_mean.tolist() == pytest.approx(seen.mean(0).tolist())
    assert collector.policy.obs_std.tolist() == pytest.approx((seen.std(0) + 1e-3).tolist())


def test_goals_that_were_achieved_count_among_the_statistics(tmp_path: Path) -> None:
    overrides = ("env_kwargs.max_episode_steps=5", "algo_kwargs.learning_starts=20", "algo_kwargs.normalize_obs=true")
    session = open_session(*read_options(online_config(tmp_path, "her", *overrides)))
    for _ in range(20):
        session.collect()
    session.resources.close()

    # Observations are the place and the goal; relabelled, the goal is the place that a step led to.
    assert session.collector is not None
    rows = session.collector.buffer.rows_from(0)
    asked = rows["next_obs"].numpy().astype(float)
    reached = np.hstack([asked[:, :-2], rows["achieved_goals"].numpy().astype(float)])
    seen = np.concatenate([asked, reached])
    assert session.algorithm.obs_mean.tolist() == pytest.approx(seen.mean(0).tolist(), abs=1e-6)
    assert session.algorithm.obs_std.tolist() == pytest.approx((seen.std(0) + 1e-3).tolist(), rel=1e-5)


def test_running_statistics_equal_those_of_all_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(loc=[100.0, -3.0], scale=[0.1, 20.0], size=(60, 2))
    statistics = RunningStatistics((2,))
    for part in np.split(rows, [1, 3, 3, 40]):
        statistics.add(part)
        again = RunningStatistics((2,))
        again.load_state_dict(statistics.state_dict())
        statistics = again
    mean, std = statistics.moments(epsilon=0.0)

    assert statistics.count == 60
    assert mean.tolist() == pytest.approx(rows.mean(0).tolist(), rel=1e-6)
    assert std.tolist() == pytest.approx(rows.std(0).tolist(), rel=1e-6)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_environments_continue_where_their_state_was_saved(kind: Any) -> None:
    def steps(stepper: Stepper, count: int) -> list[Any]:
        return [stepper.step(policy(stepper.obs)).next_obs.tolist() for _ in range(count)]

    first, second = (Stepper(make_vector_env("SavedProbe-v0", {}, num_envs=2, kind=kind), seed=seed) for seed in (0, 7))
    steps(first, 4)
    state = first.state_dict()
    expected = steps(first, 6)

    assert second.load_state_dict(state)
    assert steps(second, 6) == expected
    for stepper in (first, second):
        stepper.envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_saved_begins_anew_from_seeds_that_were_not_used(
    mode: AutoresetMode, probed: MakeCollector
) -> None:
    before, after = probed(2, mode), probed(2, mode)
    for _ in range(4):
        before.collect(random=False)

    assert not after.load_state_dict(before.state_dict())
    # Number, episode and time: environments 2 and 3, where those before were 0 and 1.
    assert after.stepper.obs.tolist() == [[2, 0, 0], [3, 0, 0]]
    assert after.returns.tolist() == [0, 0]
    assert after.lengths.tolist() == [0, 0]
    # Those that had ended are still to be told about.
    assert after.episodes == before.episodes
    assert len(after.episodes) == 1


def test_a_saved_collector_does_not_change_with_the_running_one(probed: MakeCollector) -> None:
    collector = probed(2, AutoresetMode.DISABLED, normalize=True)
    collector.collect(random=False)
    state = collector.state_dict()
    kept = copy.deepcopy(state)
    for _ in range(4):
        collector.collect(random=False)

    assert str(state) == str(kept)


def test_asking_for_the_state_of_a_run_writes_nothing(tmp_path: Path) -> None:
    session = open_session(*read_options(online_config(tmp_path, "sac")))
    session.collect()

    assert session_tree(session)["replay"] == []
    assert not (session.run.path / "replay").exists()

    save(session, "here.pt")
    assert session_tree(session)["replay"] == [[0, 1]]
    assert [path.name for path in (session.run.path / "replay").iterdir()] == ["rows_0000000000_0000000001.pt"]
    session.resources.close()


class InBursts:
    """A collector by protocol alone: several vector steps of another one at a time."""

    def __init__(self, inner: Collector) -> None:
        self.inner, self.buffer, self.bursts = inner, inner.buffer, 0
        self.last_step = inner.last_step

    def collect(self, *, random: bool, noise: float = 0.0) -> int:
        self.bursts += 1
        return sum(self.inner.collect(random=random, noise=noise) for _ in range(5))

    def metrics(self) -> dict[str, float]:
        return self.inner.metrics()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        return self.inner.load_state_dict(state)

    def close(self) -> None:
        self.inner.close()


def test_whatever_keeps_the_protocol_can_collect_for_a_run(tmp_path: Path) -> None:
    overrides = ("total_timesteps=60", "algo_kwargs.learning_starts=20", "algo_kwargs.update_to_data=0.5")
    session = open_session(*read_options(online_config(tmp_path, "sac", *overrides)))
    assert session.collector is not None
    session.collector = bursts = InBursts(session.collector)

    train_session(session)

    assert (bursts.bursts, session.state.env_steps, session.state.stored) == (12, 60, 60)
    assert session.state.update_count == 20
