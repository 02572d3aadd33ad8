"""Rollouts: rounds, passes, annotations, and what is saved in the middle of a round."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from experience import SIZES, add, assert_equal_batches, numbers, revive, saved
from torch import Tensor

from rl_training.core.batches import Batch, Reading, Rollout
from rl_training.core.errors import DatasetError
from rl_training.core.rewards import lambda_returns
from rl_training.core.spaces import Column
from rl_training.data import ReplayBuffer, RolloutSource, TransitionDataset, source_for

GAMMA, LAMBDA = 0.5, 0.5


class Toy:
    """An algorithm that reads rollouts; its value is the same everywhere, and changes with every update."""

    name: ClassVar[str] = "toy"
    annotates: tuple[str, ...] = ("lambda_returns", "advantages")
    standardizes: tuple[str, ...] = ()
    annotate_every: int | str = "rollout"
    passes = 2

    def __init__(self) -> None:
        fields = ("obs", "actions", "log_probs", "lambda_returns", "advantages")
        self.reads: Reading = Rollout(epochs="passes", fields=fields)
        self.level, self.updates, self.annotated = 8.0, 0, 0

    def resolve_number(self, value: Any) -> Any:
        return getattr(self, value) if isinstance(value, str) else value

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        self.annotated += 1

        def values(obs: Tensor) -> Tensor:
            # Of a next observation at an end, which no row has as its own: the number of the row and a half.
            return torch.where(obs[:, 0] % 1 == 0, self.level, 2 * self.level)

        return lambda_returns(rows, ends, values, gamma=GAMMA, td_lambda=LAMBDA)

    def update(self) -> None:
        self.updates += 1
        self.level += 1


def parts(num_envs: int = 2, **options: Any) -> tuple[Toy, ReplayBuffer, RolloutSource]:
    toy = Toy()
    buffer = ReplayBuffer(
        capacity=12,
        num_envs=num_envs,
        gamma=GAMMA,
        annotates=toy.annotates,
        columns={"log_probs": Column()},
        **SIZES | options,
    )
    source, _ = source_for(toy, None, buffer, seed=5)
    assert isinstance(source, RolloutSource)
    return toy, buffer, source


def collect(buffer: ReplayBuffer, first: int, steps: int, ends: str = "") -> None:
    """Rows of two environments: n and 100 + n, and how the last step ended."""
    for step in range(first, first + steps):
        letters = ends if step == first + steps - 1 else ""
        add(buffer, [step, 100 + step], letters, extra={"log_probs": [-step, -100 - step]})


def test_every_pass_has_every_row_once_in_an_order_of_its_own() -> None:
    _, buffer, source = parts()
    collect(buffer, 0, 5)
    orders = [[row for size in (4, 4, 4) for row in numbers(source.sample(size)["obs"])] for _ in range(2)]
    everything = [*range(5), *range(100, 105)]
    assert [sorted(order) for order in orders] == [everything, everything]
    assert orders[0] != orders[1]


def test_a_rollout_is_forgotten_after_its_last_pass() -> None:
    _, buffer, source = parts()
    collect(buffer, 0, 2)
    for _ in range(4):
        source.sample(2)
    assert (len(buffer), buffer.added) == (0, 4)
    with pytest.raises(DatasetError, match="learned from already"):
        source.sample(2)
    collect(buffer, 50, 2)
    assert sorted(numbers(source.sample(4)["obs"])) == [50, 51, 150, 151]


def test_rows_that_come_before_the_last_pass_begin_a_round_without_the_old_ones() -> None:
    _, buffer, source = parts()
    collect(buffer, 0, 2)
    source.sample(2)
    collect(buffer, 50, 1)
    assert sorted(numbers(source.sample(2)["obs"])) == [50, 150]


def test_advantages_by_hand_for_two_environments_with_each_kind_of_end() -> None:
    toy, buffer, source = parts()
    # Environment 0 continues after row 1, environment 1 terminates with row 101.
    collect(buffer, 0, 2, "-T")
    collect(buffer, 2, 1, "C-")
    found = source.sample(6)
    returns = dict(zip(numbers(found["obs"]), numbers(found["lambda_returns"]), strict=True))
    # The value is 8, and 16 after an end. Row 2 is cut: 2 + 0.5 * 16 = 10; row 1: 1 + 0.5 * (0.5 * 8 + 0.5 * 10) = 5.5;
    # row 0: 0.5 * (0.5 * 8 + 0.5 * 5.5) = 3.375. Row 101 terminates: 101; row 100: 100 + 0.5 * (4 + 50.5) = 127.25.
    # Row 102 is the last of its stream: 102 + 0.5 * 16 = 110.
    assert returns == {0: 3.375, 1: 5.5, 2: 10, 100: 127.25, 101: 101, 102: 110}
    assert torch.equal(found["advantages"], found["lambda_returns"] - 8)
    assert torch.equal(found["log_probs"], -found["obs"][:, 0])
    assert toy.annotated == 1


def test_annotations_stay_those_of_the_networks_that_acted() -> None:
    toy, buffer, source = parts()
    collect(buffer, 0, 3)
    seen: dict[float, set[float]] = {}
    for _ in range(4):
        batch = source.sample(3)
        toy.update()
        for row, value in zip(numbers(batch["obs"]), numbers(batch["advantages"]), strict=True):
            seen.setdefault(row, set()).add(value)
    assert all(len(values) == 1 for values in seen.values())
    assert (len(seen), toy.annotated) == (6, 1)


@pytest.mark.parametrize("stop", range(9))
def test_a_round_that_was_saved_in_its_middle_continues_exactly(stop: int) -> None:
    toy, buffer, source = parts()

    def play(update: int, *each: tuple[Toy, ReplayBuffer, RolloutSource]) -> list[Batch]:
        batches = []
        for learner, rows, drawn in each:
            if update % 4 == 0:
                collect(rows, 10 * update, 3)
            batches.append(drawn.sample(3))
            learner.update()
        return batches

    for update in range(stop):
        play(update, (toy, buffer, source))
    other = parts(seed=9)
    other[0].level = toy.level
    other[2].load_state_dict(saved(source.state_dict()))
    other[1].restore(saved(buffer.rows_from(buffer.added - len(buffer))))
    for update in range(stop, 12):
        assert_equal_batches(*play(update, (toy, buffer, source), other))


def test_a_buffer_of_extra_columns_comes_back_with_them() -> None:
    _, buffer, _ = parts()
    collect(buffer, 0, 3)
    revived = revive(buffer, parts()[1])
    assert_equal_batches(revived.rows_from(0), buffer.rows_from(0))


def test_rollouts_take_no_prior_data() -> None:
    rows: dict[str, Any] = {"obs": [[0.0]], "actions": [[0.0]], "rewards": [0.0], "next_obs": [[0.0]], "dones": [True]}
    with pytest.raises(DatasetError, match="takes no prior data"):
        source_for(Toy(), TransitionDataset.from_dict(rows), parts()[1])
