"""Returns: sums of rewards to the end, mixtures with a value function, and batches that follow its changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.config import TrainConfig
from rl_training.core.errors import DatasetError
from rl_training.core.rewards import CHUNK, backward_recursion
from rl_training.data import (
    ReplayBuffer,
    TransitionDataset,
    load_transition_dataset,
    with_lambda_returns,
)
from rl_training.data.replay import BlockSampler
from rl_training.data.replay.samplers import BLOCK
from rl_training.experiment import get_algorithm_spec
from rl_training.storage import load_checkpoint

Values = Callable[[Tensor], Tensor]


def chain(rewards: ArrayLike, ends: dict[int, str]) -> TransitionDataset:
    """Rows whose observation is their number; `ends` says after which of them an episode is over, and how."""
    rows = np.arange(len(np.asarray(rewards)), dtype=np.float32)
    over = np.isin(rows, list(ends))
    return TransitionDataset.from_dict(
        {
            "obs": rows[:, None],
            # Within an episode the observation of the next row; at its end a number that no row has.
            "next_obs": np.where(over, rows + 0.5, rows + 1)[:, None],
            "actions": np.zeros((len(rows), 1)),
            "rewards": rewards,
            "dones": [ends.get(int(row)) == "terminated" for row in rows],
            "truncations": [ends.get(int(row)) == "cut" for row in rows],
        }
    )


def table(values: dict[float, float]) -> Values:
    """A value function that knows some observations, and has NaN for those that must not be asked for."""

    def look_up(obs: Tensor) -> Tensor:
        return torch.tensor([values.get(number, torch.nan) for number in obs[:, 0].tolist()])

    return look_up


def estimate(dataset: TransitionDataset, values: Values, gamma: float, td_lambda: float) -> list[float]:
    returns: list[float] = with_lambda_returns(
        dataset, values, gamma=gamma, td_lambda=td_lambda
    ).lambda_returns.tolist()
    return returns


@pytest.mark.parametrize(
    ("rewards", "end", "values", "rates", "expected"),
    [
        # R_1 = 1 + 0.9 * 0.5 = 1.45 with the value behind the end, R_0 = 1 + 0.9 * (0.5 * 0 + 0.5 * 1.45) = 1.6525.
        ([1.0, 1.0], "cut", {0: 0.0, 1: 0.0, 1.5: 0.5}, (0.9, 0.5), [1.6525, 1.45]),
        # R_1 = 1; R_0 = 1 + 0.9 * (0.5 * 2 + 0.5 * 1) = 2.35. The value behind a termination does not count.
        ([1.0, 1.0], "terminated", {0: 7.0, 1: 2.0, 1.5: 100.0}, (0.9, 0.5), [2.35, 1.0]),
        # The discounted sum, whatever the values: 3; 2 + 0.5 * 3; 1 + 0.5 * 3.5.
        ([1.0, 2.0, 3.0], "terminated", {0: 9.0, 1: 9.0, 2: 9.0, 2.5: 8.0}, (0.5, 1.0), [2.75, 3.5, 3.0]),
    ],
)
def test_returns_of_one_episode_by_hand(
    rewards: list[float], end: str, values: dict[float, float], rates: tuple[float, float], expected: list[float]
) -> None:
    dataset, (gamma, td_lambda) = chain(rewards, {len(rewards) - 1: end}), rates
    returns = estimate(dataset, table(values), gamma, td_lambda)
    assert returns == pytest.approx(expected)
    if td_lambda == 1 and end == "terminated":
        assert returns == pytest.approx(dataset.with_returns_to_go(gamma=gamma).returns_to_go.tolist())


ENDS = {2: "cut", 3: "terminated", 7: "terminated", 8: "cut", 11: "cut"}


@pytest.mark.parametrize(("gamma", "td_lambda"), [(0.9, 0.5), (1.0, 0.7), (0.5, 0.0), (0.5, 1.0)])
def test_returns_satisfy_their_recursion_in_every_row(gamma: float, td_lambda: float) -> None:
    rewards = np.random.default_rng(1).normal(size=12)
    dataset = chain(rewards, ENDS)
    returns = estimate(dataset, lambda obs: obs[:, 0].cos(), gamma=gamma, td_lambda=td_lambda)
    for row, value in enumerate(returns):
        if ENDS.get(row) == "terminated":
            expected = rewards[row]
        elif ENDS.get(row) == "cut":
            expected = rewards[row] + gamma * np.cos(row + 0.5)
        else:
            mixture = (1 - td_lambda) * np.cos(row + 1) + td_lambda * returns[row + 1]
            expected = rewards[row] + gamma * mixture
        assert value == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_advantages_have_mean_zero_and_deviation_one_over_the_dataset() -> None:
    rewards = 5 + 20 * np.random.default_rng(2).normal(size=12)
    dataset = with_lambda_returns(chain(rewards, ENDS), lambda obs: obs[:, 0] ** 2, gamma=0.9, td_lambda=0.5)
    raw = dataset.lambda_returns - dataset.obs[:, 0] ** 2
    expected = (raw - raw.mean()) / (raw.std(correction=0) + 1e-5)
    torch.testing.assert_close(dataset.advantages, expected)
    assert float(dataset.advantages.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(dataset.advantages.std(correction=0)) == pytest.approx(1.0, rel=1e-5)


def test_advantages_that_are_all_equal_are_zero() -> None:
    dataset = with_lambda_returns(
        chain([1.0, 1.0], {0: "terminated", 1: "terminated"}), lambda obs: 0 * obs[:, 0], gamma=0.9, td_lambda=0.5
    )
    assert dataset.advantages.tolist() == [0.0, 0.0]


def test_values_are_asked_for_in_chunks_and_for_the_ends_of_episodes_only_once() -> None:
    rows = CHUNK + 10
    asked: list[int] = []

    def values(obs: Tensor) -> Tensor:
        asked.append(len(obs))
        return obs[:, 0]

    dataset = chain(np.zeros(rows), {4: "cut", rows - 1: "cut"})
    returns = estimate(dataset, values, gamma=1.0, td_lambda=0.0)
    # All observations in two chunks, then the two that no row starts from.
    assert asked == [CHUNK, 10, 2]
    assert returns[3:6] == [4.0, 4.5, 6.0]
    assert returns[CHUNK - 1 :][:2] == [CHUNK, CHUNK + 1]


def test_no_graph_is_kept_of_the_values() -> None:
    weight = torch.ones((), requires_grad=True)
    dataset = with_lambda_returns(chain([1.0], {0: "cut"}), lambda obs: weight * obs[:, 0], gamma=0.9, td_lambda=0.5)
    assert not dataset.lambda_returns.requires_grad
    assert not dataset.advantages.requires_grad


def test_a_recursion_runs_backwards_and_starts_anew_at_each_end() -> None:
    # From the last row: 4; 3, which is an end; 2 + 0.5 * 3; 1 + 0.5 * 3.5.
    ends = torch.tensor([False, False, True, True])
    sums = backward_recursion(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, ends)
    assert sums.tolist() == [2.75, 3.5, 3.0, 4.0]
    assert sums.dtype == torch.float32
    assert backward_recursion(torch.ones(2).double(), 0.5, torch.zeros(2, dtype=torch.bool)).dtype == torch.float64


class _NoDoubles(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Fails on any operation that makes a float64 tensor, which Apple's devices do not have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        assert getattr(result, "dtype", None) != torch.float64, func
        return result


def test_returns_need_no_double_precision_of_the_device() -> None:
    dataset = chain([1.0, 2.0, 3.0], {2: "cut"})
    mode: Any = _NoDoubles
    with mode():
        dataset.with_returns_to_go(gamma=0.9, failure_reward=-1.0)
        with_lambda_returns(dataset, lambda obs: obs[:, 0], gamma=0.9, td_lambda=0.5)
        buffer = ReplayBuffer(whole_episodes=True, capacity=8, obs_dim=1, action_dim=1, needs=("returns_to_go",))
        row, flag = np.ones((1, 1), dtype=np.float32), np.ones(1, dtype=bool)
        rows: dict[str, Any] = {"obs": row, "actions": row, "rewards": row[0], "next_obs": row}
        buffer.add(**rows, terminations=flag, truncations=~flag)
    assert len(buffer) == 1


def test_long_sums_are_added_up_in_double_precision() -> None:
    # One large reward at the end of many small ones: in float32 each addition to 1e8 would be lost.
    rewards = np.full(1001, 0.25)
    rewards[-1] = 1e8
    returns = chain(rewards, {1000: "terminated"}).with_returns_to_go(gamma=1.0).returns_to_go
    assert float(returns[0]) == np.float32(1e8 + 250)


def test_an_episode_of_failures_counts_as_endless_and_others_do_not() -> None:
    # Rows 0-1 fail throughout: -5 / (1 - 0.5) = -10 each. Rows 2-4 end well: 5, -5 + 2.5, -5 - 1.25. Row 5 fails.
    dataset = chain([-5.0, -5.0, -5.0, -5.0, 5.0, -5.0], {1: "cut", 4: "terminated", 5: "terminated"})
    returns = dataset.with_returns_to_go(gamma=0.5, failure_reward=-5.0).returns_to_go.tolist()
    assert returns == pytest.approx([-10.0, -10.0, -6.25, -2.5, 5.0, -10.0])
    plain = dataset.with_returns_to_go(gamma=0.5).returns_to_go.tolist()
    assert plain == pytest.approx([-7.5, -5.0, -6.25, -2.5, 5.0, -5.0])


def test_a_success_on_a_dropped_row_is_no_failure() -> None:
    # Without next observations the cut row is dropped, but its reward is known: -5 + 0.5 * 5 and -5 + 0.5 * -2.5.
    dataset = TransitionDataset.from_dict(
        {
            "obs": np.zeros((6, 1)),
            "actions": np.zeros((6, 1)),
            "rewards": [-5.0, -5.0, 5.0, -5.0, -5.0, -5.0],
            "dones": np.zeros(6),
            "truncations": [0, 0, 1, 0, 0, 1],
        }
    )
    returns = dataset.with_returns_to_go(gamma=0.5, failure_reward=-5.0).returns_to_go.tolist()
    assert returns == pytest.approx([-6.25, -2.5, -10.0, -10.0])


def test_an_endless_failure_needs_a_discount() -> None:
    with pytest.raises(DatasetError, match="failure_reward needs gamma < 1"):
        chain([1.0], {0: "cut"}).with_returns_to_go(gamma=1.0, failure_reward=-1.0)


def _write(path: Path, dataset: TransitionDataset, *, start: int) -> str:
    """A file whose observations are numbered from `start`, so that its rows are known after mixing."""
    arrays = {name: dataset.fields[name].numpy() for name in ("obs", "actions", "rewards", "next_obs", "dones")}
    arrays["obs"], arrays["next_obs"] = arrays["obs"] + start, arrays["next_obs"] + start
    np.savez(path, **arrays, truncations=dataset.truncations.numpy())  # type: ignore[arg-type]  # numpy's stub
    return str(path)


def _mixture(tmp_path: Path, **options: Any) -> tuple[TransitionDataset, dict[int, float]]:
    """A mixture of two files with returns-to-go, and what these are for each numbered row before mixing."""
    rng = np.random.default_rng(3)
    parts = [chain(rng.normal(size=40), {9: "cut", 24: "terminated", 39: "cut"}) for _ in range(2)]
    paths = [_write(tmp_path / f"{k}.npz", part, start=100 * k) for k, part in enumerate(parts)]
    mix = [{"dataset_path": path, "ratio": ratio} for path, ratio in zip(paths, (1, 3), strict=True)]
    mixed = load_transition_dataset(dataset_mix=mix, returns={"gamma": 0.5}, **options)
    raw = [part.with_returns_to_go(gamma=0.5).returns_to_go.tolist() for part in parts]
    return mixed, {100 * k + row: value for k, values in enumerate(raw) for row, value in enumerate(values)}


def test_returns_to_go_are_those_of_whole_episodes_after_mixing(tmp_path: Path) -> None:
    mixed, expected = _mixture(tmp_path)
    # A quarter from the first file and all 40 rows of the second: 53 rows, most without the row after them.
    rows = mixed.obs[:, 0].round().long().tolist()
    assert len(rows) == 53
    assert rows != sorted(rows)
    assert mixed.returns_to_go.tolist() == pytest.approx([expected[row] for row in rows], rel=1e-5, abs=1e-6)


def test_returns_to_go_are_those_of_normalised_and_clipped_rewards(tmp_path: Path) -> None:
    dataset = chain([0.0, 4.0, 2.0, 2.0], {1: "terminated", 3: "terminated"})
    path = _write(tmp_path / "data.npz", dataset, start=0)
    loaded = load_transition_dataset(
        path, reward_normalize="standard", reward_shift=1.0, reward_clip_max=2.0, returns={"gamma": 0.5}
    )
    # Mean 2 and deviation sqrt(2) make -+sqrt(2) and 0; one more is -0.414214, 2.414214 (clipped to 2), 1, 1.
    low = 1 - 2**0.5
    assert loaded.rewards.tolist() == pytest.approx([low, 2.0, 1.0, 1.0], rel=1e-5)
    assert loaded.returns_to_go.tolist() == pytest.approx([low + 1, 2.0, 1.5, 1.0], rel=1e-5)


def test_held_out_episodes_have_returns_to_go_too(tmp_path: Path) -> None:
    mixed, expected = _mixture(tmp_path, validation_fraction=0.3)
    held_out = mixed.validation
    assert held_out is not None
    rows = held_out.obs[:, 0].round().long().tolist()
    assert held_out.returns_to_go.tolist() == pytest.approx([expected[row] for row in rows], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("drawn", [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1])
def test_replaced_fields_are_drawn_from_the_same_rows(drawn: int) -> None:
    rows = torch.arange(1000.0)
    plain, replaced = (BlockSampler({"rows": rows}, seed=3) for _ in range(2))
    for _ in range(drawn):
        assert torch.equal(plain.sample(4)["rows"], replaced.sample(4)["rows"])
    replaced.replace_fields({"rows": rows, "negative": -rows})
    for _ in range(BLOCK + 2):
        expected, batch = plain.sample(4)["rows"], replaced.sample(4)
        assert torch.equal(batch["rows"], expected)
        assert torch.equal(batch["negative"], -expected)


def test_batches_drawn_before_fields_are_replaced_keep_their_values() -> None:
    sampler = BlockSampler({"rows": torch.arange(1000.0)}, seed=3)
    batch = sampler.sample(4)["rows"]
    before = batch.clone()
    sampler.replace_fields({"rows": -torch.arange(1000.0)})
    assert torch.equal(batch, before)


@pytest.mark.parametrize("algo", ["awr", "marwil"])
def test_a_run_on_a_mixture_is_refused_before_it_has_a_directory(
    algo: str, tmp_path: Path, tiny_config: Callable[..., TrainConfig]
) -> None:
    paths = [_write(tmp_path / f"{k}.npz", chain(np.zeros(40), {39: "cut"}), start=0) for k in range(2)]
    mix = "[" + ", ".join(f"{{dataset_path: {path}, ratio: 1}}" for path in paths) + "]"
    config = tiny_config(
        algo,
        "env_id=null",
        "algo_kwargs.dataset_kind=null",
        "algo_kwargs.dataset_size=null",
        f"algo_kwargs.dataset_mix={mix}",
    )
    with pytest.raises(DatasetError, match="needs whole episodes in order; the rows are mixed"):
        get_algorithm_spec(algo).train(config)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("stop", [6, 7])
@pytest.mark.parametrize("algo", ["awr", "marwil"])
def test_a_run_resumed_between_and_at_refreshes_ends_as_an_uninterrupted_one(
    algo: str, stop: int, tiny_config: Callable[..., TrainConfig]
) -> None:
    spec = get_algorithm_spec(algo)
    dense = ("checkpoint_interval=1", "keep_checkpoints=all")
    small = ("algo_kwargs.recompute_interval=3", "algo_kwargs.eval_interval=null", *dense)
    straight = spec.train(tiny_config(algo, *small))
    ours = load_checkpoint(straight.checkpoint_path)
    # In the same directory, over what the first run had come to.
    resumed = spec.resume(straight.run_dir / "checkpoints" / f"update_{stop:09d}.pt")
    theirs = load_checkpoint(resumed.checkpoint_path)
    assert theirs["source"]["drawn"] == theirs["trainer"]["state"]["update_count"] == 20
    for part in ("algorithm", "source", "random"):
        _assert_equal(theirs[part], ours[part])


def _assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _assert_equal(ours[key], theirs[key])
    elif isinstance(ours, Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs
