"""Novelty: its distances, its calibration, and how often it raises a false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.data import load_transition_dataset
from rl_training.models.novelty import Novelty, fit_novelty, novelty_split


def _log(episodes: int = 30, steps: int = 40, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Random walks with actions that follow from them, and the number of each row's episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(episodes, steps, 3)).cumsum(1).astype(np.float32) * [1, 10, 0.1]
    actions = np.tanh(obs @ np.array([[0.1], [0.02], [1]]))
    numbers = np.repeat(np.arange(episodes), steps)
    return obs.reshape(-1, 3).astype(np.float32), actions.reshape(-1, 1).astype(np.float32), numbers


def test_the_score_is_the_scaled_distance_from_the_nearest_code_in_the_unit_of_the_calibration() -> None:
    parts: dict[str, Any] = {
        "mean": torch.tensor([1.0]),
        "std": torch.tensor([2.0]),
        "codebook": torch.tensor([[0.0, 0.0], [2, 1]]),
    }
    novelty = Novelty(**parts, distance=torch.tensor(0.5))
    # z = (1.5, 1): from (2, 1) it is 0.5 away, over sqrt(2), over 0.5. z = (0, -1): 1 away from (0, 0).
    scores = novelty(torch.tensor([[4.0], [1.0]]), torch.tensor([[1.0], [-1.0]]))
    assert scores.tolist() == pytest.approx([2**-0.5, 2 * 2**-0.5])


def test_a_discrete_action_is_its_one_hot_vector() -> None:
    codebook = torch.tensor([[0.0, 1, 0, 0]])
    unit: dict[str, Any] = {"mean": torch.zeros(1), "std": torch.ones(1), "distance": torch.tensor(1.0)}
    novelty = Novelty(**unit, codebook=codebook, num_actions=3)
    assert novelty(torch.zeros(2, 1), torch.tensor([0, 2])).tolist() == pytest.approx([0, (2 / 4) ** 0.5])


def test_novelty_of_the_held_out_rows_reproduces_the_distance_that_they_calibrated() -> None:
    obs, actions, episodes = _log()
    held_out = novelty_split(episodes, 0.5)
    novelty = fit_novelty(obs, actions, episodes, held_out=held_out)
    z = np.concatenate([(obs - novelty.mean.numpy()) / novelty.std.numpy(), actions], 1).astype(np.float64)
    gaps = z[:, None] - novelty.codebook.numpy()[None]
    distances = np.sqrt((gaps**2).sum(-1).min(1) / 4)
    quantiles = sorted(np.sort(distances[episodes == number])[37] for number in held_out)
    # Two of the 40 rows of an episode exceed its quantile. Of 15 episodes, it is the ceil(0.9 * 16) = 15th.
    assert float(novelty.distance) == pytest.approx(quantiles[14], abs=1e-5)
    scores = novelty(torch.from_numpy(obs), torch.from_numpy(actions)).numpy()
    assert scores == pytest.approx(distances / quantiles[14], abs=1e-4)


@pytest.mark.parametrize(("count", "rank", "bound"), [(3, 3, 1 / 4), (8, 8, 1 / 9), (9, 9, 0.1), (19, 18, 0.1)])
def test_the_distance_is_that_rank_of_the_episodes_which_bounds_false_alarms(
    count: int, rank: int, bound: float
) -> None:
    # Held-out episode k is one row at distance k from the only code, in one of two coordinates.
    obs = np.array([[0.0]] * 4 + [[0.0]] * count, dtype=np.float32)
    actions = np.array([0.0] * 4 + [0.04 * (k + 1) for k in range(count)], dtype=np.float32)[:, None]
    episodes = np.array([0] * 4 + [k + 1 for k in range(count)])
    novelty = fit_novelty(obs, actions, episodes, held_out=np.arange(1, count + 1))
    assert float(novelty.distance) == pytest.approx(0.04 * rank / 2**0.5, rel=1e-5)
    assert novelty.false_alarms == pytest.approx(bound)


def test_what_was_never_logged_scores_above_one() -> None:
    obs, actions, episodes = _log(100)
    novelty = fit_novelty(obs, actions, episodes, held_out=novelty_split(episodes))
    rows, moves = torch.from_numpy(obs), torch.from_numpy(actions)
    usual = float((novelty(rows, moves) > 1).float().mean())
    far = float((novelty(rows + 10 * rows.std(0), moves) > 1).float().mean())
    assert usual < 0.1
    assert far > 0.9


def test_a_log_of_few_distinct_rows_has_scores_all_the_same() -> None:
    obs = np.eye(4, dtype=np.float32)[np.arange(400) % 4]
    novelty = fit_novelty(obs, np.arange(400) % 2, np.arange(400) // 20, held_out=[0, 1, 2], num_actions=2)
    scores = novelty(torch.eye(4), torch.tensor([0, 1, 0, 0]))
    assert scores[:3].tolist() == pytest.approx([0, 0, 0], abs=1e-2)
    assert scores[3] > 1


def test_the_same_rows_give_the_same_score_and_leave_the_global_generator_alone() -> None:
    obs, actions, episodes = _log()
    state = torch.get_rng_state()
    first, second = (fit_novelty(obs, actions, episodes, held_out=novelty_split(episodes)) for _ in range(2))
    assert torch.equal(first.codebook, second.codebook)
    assert torch.equal(first.distance, second.distance)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_episode_to_calibrate_on_is_refused_and_not_replaced_by_training_rows() -> None:
    obs, actions, episodes = _log()
    with pytest.raises(DatasetError, match=r"no held-out episodes .*novelty_split\(episodes\)"):
        fit_novelty(obs, actions, episodes, held_out=[])
    with pytest.raises(DatasetError, match="no held-out episodes"):
        fit_novelty(obs, actions, episodes, held_out=[99])
    with pytest.raises(DatasetError, match="all episodes are held out"):
        fit_novelty(obs, actions, episodes, held_out=episodes)
    with pytest.raises(DatasetError, match="needs at least 2, got 1"):
        novelty_split(np.zeros(10))


@pytest.mark.parametrize(("episodes", "held_out"), [(2, 1), (10, 5), (20, 9), (45, 9), (100, 20)])
def test_a_fifth_is_held_out_or_nine_where_half_of_the_episodes_are_as_many(episodes: int, held_out: int) -> None:
    chosen = novelty_split(np.repeat(np.arange(episodes), 3))
    assert len(chosen) == len(set(chosen.tolist())) == held_out


def test_rows_that_do_not_fit_together_are_refused() -> None:
    obs, actions, episodes = _log()
    with pytest.raises(DatasetError, match="as many rows each, got 1200, 1199 and 1200"):
        fit_novelty(obs, actions[1:], episodes, held_out=[0])
    with pytest.raises(DatasetError, match=r"actions \(rows,\) for discrete actions"):
        fit_novelty(obs, actions, episodes, held_out=[0], num_actions=2)


@pytest.mark.slow
def test_few_episodes_like_the_logged_ones_raise_an_alarm(shared_data: Path) -> None:
    dataset = load_transition_dataset(shared_data / "pendulum/pendulum_replay_v1.1.0.h5")
    obs, actions = dataset.obs, dataset.actions / 2
    episodes = np.repeat(np.arange(500), 198)
    shares = []
    for split in range(20):
        order = np.random.default_rng(split).permutation(500)
        held_out, new = order[:100], order[100:300]
        known = ~np.isin(episodes, new)
        novelty = fit_novelty(obs[known], actions[known], episodes[known], held_out=held_out, seed=split)
        above = (novelty(obs, actions) > 1).numpy().reshape(500, 198).mean(1)
        shares.append((above[new] > 0.05).mean())
    # The bound of the rule is 0.1.
    assert 0.03 < np.mean(shares) <= 0.12
