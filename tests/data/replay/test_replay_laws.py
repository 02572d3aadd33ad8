"""Laws of the replay buffers, over any interleaving of steps, ends, pauses and new starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl_training.core.batches import Batch
from rl_training.data import (
    Hindsight,
    MixedSource,
    ReplayBuffer,
    TransitionDataset,
)

# The same cases on every run: a failure is the fault of the change that it comes with.
LAW = settings(deadline=None, max_examples=60, derandomize=True)
# With rewards that are whole numbers and halves as discounts every sum is exact, so that equal means equal.
GAMMA = 0.5
DRAWS = 500
"""Of the at most 30 rows in a ring, each is missed by so many draws once in twenty million times."""


@dataclass(frozen=True)
class Row:
    """A step of one environment; its number is in every field that is drawn."""

    number: int
    stream: tuple[int, int]
    """How often all environments had been started anew, and which one it is."""
    reward: int
    end: str
    """T terminated, C cut, B both at once, - neither."""

    @property
    def done(self) -> bool:
        return self.end in "TB"


@dataclass(frozen=True)
class Play:
    """What happens to environments: a letter for each in every step, a space where it pauses; None starts them anew."""

    num_envs: int
    steps: list[list[str] | None]
    rewards: list[int]
    """One for every row that there can be."""

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        starts = 0
        for step in self.steps:
            if step is None:
                starts += 1
                continue
            for env, end in enumerate(step):
                if end != " ":
                    number = len(rows)
                    rows.append(Row(number, (starts, env), self.rewards[number], end))
        return rows

    def feed(self, *buffers: ReplayBuffer, first: int = 0, stop: int | None = None) -> None:
        """Steps `first` to `stop` into buffers."""
        rows = iter(self.rows())
        for position, step in enumerate(self.steps[:stop]):
            letters = step or []
            found = [None if end == " " else next(rows) for end in letters]
            for buffer in buffers if position >= first else ():
                if step is None:
                    buffer.break_streams()
                else:
                    _add(buffer, found)


def _add(buffer: ReplayBuffer, found: list[Row | None]) -> None:
    blank = Row(-1000, (0, 0), -1000, "B")
    rows = [blank if row is None else row for row in found]
    numbers = np.array([row.number for row in rows], dtype=np.float64)
    # The goal that is asked for is -1, and row n achieves goal n + 1; buffers without goals see the number alone.
    goals = [np.full_like(numbers, -1), numbers + 1] if buffer.hindsight is not None else []
    buffer.add(
        obs=np.stack([numbers, *goals], 1),
        actions=numbers[:, None] / 8,
        rewards=np.array([row.reward for row in rows]),
        next_obs=np.stack([numbers + 0.5, *goals], 1),
        terminations=np.array([row.done for row in rows]),
        truncations=np.array([row.end in "CB" for row in rows]),
        mask=None if None not in found else np.array([row is not None for row in found]),
    )


RATES = st.sampled_from([0.0, 0.1, 0.3])


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """By a seed and by how often things happen: from single letters, long episodes would hardly ever come about."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1)))
    num_envs, length = draw(st.integers(1, 4)), draw(st.sampled_from([2, 6, 14, 30]))
    ends, pauses, starts = draw(RATES), draw(RATES), draw(RATES) / 2
    shares = [ends / 3] * 3 + [pauses, 1 - ends - pauses]
    letters = rng.choice(list("TCB -"), (length, num_envs), p=shares).tolist()
    steps = [None if new else step for step, new in zip(letters, rng.random(length) < starts, strict=True)]
    return Play(num_envs, steps, rng.integers(-8, 9, 120).tolist())


def capacities(play: Play, *, least: int = 1) -> st.SearchStrategy[int]:
    """From as little as a step, or an episode, to more than all rows."""
    least = max(least, play.num_envs)
    return st.integers(least, 30)


def drawn(buffer: ReplayBuffer) -> dict[int, dict[str, float]]:
    """Batches by the number of the row; a row has the same values whenever it is drawn."""
    batch = buffer.sample(DRAWS)
    found: dict[int, dict[str, float]] = {}
    for position, number in enumerate(batch["obs"][:, 0].int().tolist()):
        values = {name: float(value[position].flatten()[0]) for name, value in batch.items()}
        assert found.setdefault(number, values) == values
    return found


def follow(row: Row, rows: list[Row], n_step: int) -> list[Row]:
    """The row and those after it in its stream, to the end of its episode or to n of them."""
    window = [row]
    later = (other for other in rows if other.stream == row.stream and other.number > row.number)
    while len(window) < n_step and window[-1].end == "-" and (after := next(later, None)) is not None:
        window.append(after)
    return window


def expected(window: list[Row]) -> dict[str, float]:
    first, last = window[0], window[-1]
    return {
        "obs": first.number,
        "actions": first.number / 8,
        "rewards": sum(GAMMA**k * row.reward for k, row in enumerate(window)),
        "next_obs": last.number + 0.5,
        "dones": float(last.done),
        "discounts": GAMMA ** len(window),
    }


def ring(play: Play, capacity: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity=capacity, num_envs=play.num_envs, obs_dim=1, action_dim=1, gamma=GAMMA, **options)


@LAW
@given(plays(), st.data())
def test_a_ring_returns_the_last_rows_that_were_added_and_nothing_else(play: Play, data: st.DataObject) -> None:
    buffer = ring(play, data.draw(capacities(play)))
    play.feed(buffer)
    rows = play.rows()[-buffer.capacity :]
    assert (len(buffer), buffer.num_drawable) == (len(rows), len(rows))
    if rows:
        one_step = {row.number: expected([row]) for row in rows}
        assert drawn(buffer) == {
            number: {name: value for name, value in values.items() if name != "discounts"}
            for number, values in one_step.items()
        }


@LAW
@given(plays(), st.integers(2, 5), st.data())
def test_windows_equal_those_of_plain_lists(play: Play, n_step: int, data: st.DataObject) -> None:
    buffer = ring(play, data.draw(capacities(play)), n_step=n_step)
    play.feed(buffer)
    rows = play.rows()[-buffer.capacity :]
    if rows:
        assert drawn(buffer) == {row.number: expected(follow(row, rows, n_step)) for row in rows}


def saved_and_restored(buffer: ReplayBuffer, other: ReplayBuffer) -> None:
    other.load_state_dict(buffer.state_dict())
    other.restore(buffer.rows_from(buffer.added - len(buffer)))


Maker = Callable[[Play, int, int, int], ReplayBuffer]


def _ring(play: Play, capacity: int, n_step: int, seed: int) -> ReplayBuffer:
    return ring(play, capacity, n_step=n_step, seed=seed)


def _episodes(play: Play, capacity: int, n_step: int, seed: int) -> ReplayBuffer:
    return episodic(play, capacity, n_step=n_step, seed=seed, needs=("next_actions", "returns_to_go"))


def _hindsight(play: Play, capacity: int, n_step: int, seed: int) -> ReplayBuffer:
    return hindsight(play, capacity, n_step=n_step, seed=seed, her_ratio=0.5)


@LAW
@given(plays(), st.integers(1, 4), st.sampled_from([_ring, _episodes, _hindsight]), st.data())
def test_a_restored_buffer_draws_what_the_other_would_have_drawn(
    play: Play, n_step: int, make: Maker, data: st.DataObject
) -> None:
    capacity = data.draw(capacities(play, least=1 if make is _ring else len(play.steps)))
    buffer, other = make(play, capacity, n_step, 1), make(play, capacity, n_step, 2)
    pause = data.draw(st.integers(0, len(play.steps)))
    play.feed(buffer, stop=pause)
    if buffer.num_drawable:
        buffer.sample(3)
    saved_and_restored(buffer, other)
    for stop in (pause, len(play.steps)):
        play.feed(buffer, other, first=pause, stop=stop)
        assert buffer.num_drawable == other.num_drawable
        if buffer.num_drawable:
            first, second = buffer.sample(50), other.sample(50)
            assert all(torch.equal(value, second[name]) for name, value in first.items())


def in_episodes(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows stream by stream, cut where episodes end."""
    episodes: list[list[Row]] = []
    before: Row | None = None
    for row in sorted(rows, key=lambda row: (row.stream, row.number)):
        if before is None or before.end != "-" or before.stream != row.stream:
            episodes.append([])
        episodes[-1].append(row)
        before = row
    return episodes


@LAW
@given(plays(), st.integers(1, 2), st.data())
def test_a_dataset_of_a_buffer_has_its_episodes_and_no_false_termination(
    play: Play, n_step: int, data: st.DataObject
) -> None:
    buffer = ring(play, data.draw(capacities(play)), n_step=n_step)
    play.feed(buffer)
    rows = play.rows()[-buffer.capacity :]
    if not rows:
        return
    episodes = list(buffer.to_dataset().episodes())
    assert [episode.rewards.tolist() for episode in episodes] == [
        [row.reward for row in episode] for episode in in_episodes(rows)
    ]
    for episode, expected_rows in zip(episodes, in_episodes(rows), strict=True):
        assert episode.observations[:-1, 0].tolist() == [row.number for row in expected_rows]
        assert episode.observations[-1].item() == expected_rows[-1].number + 0.5
        last = expected_rows[-1].done
        assert episode.terminations.tolist() == [False] * (len(episode) - 1) + [last]
        assert episode.truncations.tolist() == [False] * (len(episode) - 1) + [not last]


def episodic(play: Play, capacity: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        whole_episodes=True, capacity=capacity, num_envs=play.num_envs, obs_dim=1, action_dim=1, gamma=GAMMA, **options
    )


def ended(play: Play) -> list[list[Row]]:
    """Whole episodes in the order in which they ended."""
    whole = [episode for episode in in_episodes(play.rows()) if episode[-1].end != "-"]
    return sorted(whole, key=lambda episode: episode[-1].number)


@LAW
@given(plays(), st.integers(1, 4), st.booleans(), st.data())
def test_episodes_know_what_came_after(play: Play, n_step: int, with_actions: bool, data: st.DataObject) -> None:
    needs = ("returns_to_go", "next_actions") if with_actions else ("returns_to_go",)
    buffer = episodic(play, data.draw(capacities(play, least=len(play.steps))), n_step=n_step, needs=needs)
    play.feed(buffer)
    kept: list[tuple[Row, dict[str, float]]] = []
    for episode in ended(play):
        # A cut episode has no action after its last row, which is left out; its reward counts all the same.
        length = len(episode) - (with_actions and not episode[-1].done)
        for start in range(length):
            window = episode[start : min(start + n_step, length)]
            values = expected(window)
            values["returns_to_go"] = sum(GAMMA**k * row.reward for k, row in enumerate(episode[start:]))
            if with_actions:
                last = episode.index(window[-1])
                values["next_actions"] = episode[min(last + 1, len(episode) - 1)].number / 8
            kept.append((episode[start], values))
    kept = kept[-buffer.capacity :]
    assert len(buffer) == len(kept)
    if not kept:
        return
    found = drawn(buffer)
    assert found.keys() == {row.number for row, _ in kept}
    for row, values in kept:
        assert found[row.number] == {name: values[name] for name in found[row.number]}
        assert (n_step > 1) == ("discounts" in found[row.number])


def hindsight(play: Play, capacity: int, *, her_ratio: float, strategy: Any = "future", **options: Any) -> ReplayBuffer:
    def reward(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
        return np.where(np.abs(achieved - desired)[:, 0] < 0.5, 0.0, -1.0)

    return ReplayBuffer(
        capacity=capacity,
        num_envs=play.num_envs,
        obs_dim=2,
        action_dim=1,
        gamma=GAMMA,
        hindsight=Hindsight(1, reward, her_ratio=her_ratio, strategy=strategy),
        **options,
    )


def relabelled(window: list[Row], goal: int) -> dict[str, float]:
    """What a window is with another goal in a task that continues when it is reached."""
    return expected(window) | {
        "rewards": sum(GAMMA**k * (0 if row.number + 1 == goal else -1) for k, row in enumerate(window))
    }


@LAW
@given(plays(), st.integers(1, 4), st.sampled_from(["future", "final", "episode"]), st.data())
def test_hindsight_equals_a_plain_computation(play: Play, n_step: int, strategy: str, data: st.DataObject) -> None:
    her_ratio = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    buffer = hindsight(
        play,
        data.draw(capacities(play, least=len(play.steps))),
        n_step=n_step,
        her_ratio=her_ratio,
        strategy=strategy,
    )
    play.feed(buffer)
    # Episodes that have lost rows to newer ones are left out whole.
    sizes = [len(episode) for episode in ended(play)]
    whole = [episode for k, episode in enumerate(ended(play)) if sum(sizes[k:]) <= buffer.capacity]
    assert buffer.num_drawable == sum(map(len, whole))
    if not whole:
        return
    place = {row.number: (episode, step) for episode in whole for step, row in enumerate(episode)}
    batch = buffer.sample(DRAWS)
    assert set(batch["obs"][:, 0].tolist()) <= place.keys()
    for k, (number, goal) in enumerate(batch["obs"].int().tolist()):
        episode, step = place[number]
        window = episode[step : step + n_step]
        low = {"future": step, "final": len(episode) - 1, "episode": 0}[strategy]
        values = expected(window) if goal == -1 else relabelled(window, goal)
        assert goal in ({-1} if her_ratio < 1 else set()) | (
            {row.number + 1 for row in episode[low:]} if her_ratio > 0 else set()
        )
        assert batch["next_obs"][k, 1] == goal
        assert {name: float(value[k].flatten()[0]) for name, value in batch.items()} == {
            name: values[name] for name in batch
        }


def _counts(batch: Batch) -> tuple[int, int]:
    offline = int((batch["obs"] < 0).sum())
    return offline, len(batch["obs"]) - offline


@LAW
@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 300), st.floats(0, 1) | st.just("proportional"))
def test_a_mixture_has_the_rows_of_either_kind_that_it_says(
    prior_rows: int, online_rows: int, batch_size: int, ratio: Any
) -> None:
    numbers = -1 - np.arange(prior_rows, dtype=np.float32)[:, None]
    arrays = {"obs": numbers, "actions": numbers, "rewards": numbers[:, 0], "next_obs": numbers, "dones": numbers < -9}
    prior = TransitionDataset.from_dict(arrays).requiring("obs", "actions", "rewards", "next_obs", "dones")
    play = Play(1, [["-"]] * online_rows, [0] * online_rows)
    buffer = ring(play, 40)
    play.feed(buffer)
    source = MixedSource(prior, buffer, ratio)
    offline, online = _counts(source.sample(batch_size))
    share = prior_rows / (prior_rows + online_rows) if ratio == "proportional" else ratio
    exact = batch_size * share if online_rows else batch_size
    assert offline + online == batch_size
    # To the nearest whole number.
    assert abs(offline - exact) <= 0.5 * (1 + 1e-12)
    assert source.metrics() == {"buffer_size": online_rows, "offline_rows": offline, "online_rows": online}
