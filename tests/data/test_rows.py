"""The store of rows: what is where, what follows what, and columns of any shape and type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from experience import SIZES, add, revive
from torch import Tensor

from rl_training.core.errors import ConfigError
from rl_training.core.spaces import Column
from rl_training.data import ReplayBuffer, Rows, TransitionDataset


def log(ends: str) -> Rows:
    """Rows that hold their number; a letter for each: T terminated, C cut, - neither."""
    count = len(ends)
    flags = {"dones": "T", "truncations": "C"}
    columns = {name: torch.tensor([float(end == letter) for end in ends]) for name, letter in flags.items()}
    return Rows({"obs": torch.arange(count)[:, None], **columns})


def test_rows_of_a_log_are_followed_by_the_next_of_their_episode() -> None:
    rows = log("--T-C")
    assert rows.successors(rows.numbers()).tolist() == [1, 2, -1, 4, -1]
    starts, stops = rows.bounds(rows.numbers())
    assert (starts.tolist(), stops.tolist()) == ([0, 0, 0, 3, 3], [3, 3, 3, 5, 5])
    window, follows = rows.window(torch.tensor([1, 3]), 3)
    assert window.tolist() == [[1, 2, 2], [3, 4, 4]]
    assert follows.tolist() == [[True, True, False], [True, True, False]]


def test_rows_of_a_ring_keep_their_numbers() -> None:
    rows = Rows.ring(3, {"obs": Column(), "dones": Column(), "truncations": Column()})
    for number in range(5):
        rows.append({"obs": torch.tensor([float(number)]), "dones": torch.zeros(1), "truncations": torch.zeros(1)})
    assert (rows.first, rows.stop, len(rows)) == (2, 5, 3)
    assert rows.get("obs", rows.numbers()).tolist() == [2, 3, 4]
    assert rows.get("obs", torch.tensor([[2, 4], [3, 3]])).tolist() == [[2, 4], [3, 3]]


def test_rows_that_are_forgotten_are_not_there_any_more() -> None:
    buffer = ReplayBuffer(capacity=4, **SIZES)
    for row in range(3):
        add(buffer, [row])
    buffer.forget(2)
    assert (len(buffer), buffer.num_drawable, buffer.added) == (1, 1, 3)
    assert set(buffer.sample(20)["obs"].flatten().tolist()) == {2}
    revived = revive(buffer, ReplayBuffer(capacity=4, **SIZES))
    assert (len(revived), revived.added) == (1, 3)
    assert revived.rows_from(2)["obs"].tolist() == [[2.0]]


IMAGE = Column((2, 4, 4), "uint8")


def test_images_discrete_actions_and_columns_beside_a_transition_are_stored_as_they_are() -> None:
    columns = {"obs": IMAGE, "actions": Column((), "int64"), "log_probs": Column()}
    buffer = ReplayBuffer(capacity=8, num_envs=2, columns=columns, n_step=2, **SIZES)
    for step in range(3):
        obs = np.full((2, *IMAGE.shape), step, dtype=np.uint8)
        buffer.add(
            obs=obs,
            actions=np.array([step, 10 + step]),
            rewards=np.ones(2),
            next_obs=obs + 1,
            terminations=np.zeros(2, dtype=bool),
            truncations=np.zeros(2, dtype=bool),
            log_probs=np.array([-0.5, -1.5]) * step,
        )
    batch = buffer.sample(64)
    assert (batch["obs"].dtype, batch["obs"].shape) == (torch.uint8, (64, 2, 4, 4))
    assert (batch["actions"].dtype, set(batch["actions"].tolist())) == (torch.int64, {0, 1, 2, 10, 11, 12})
    expected = torch.where(batch["actions"] < 10, -0.5, -1.5) * (batch["actions"] % 10)
    assert torch.equal(batch["log_probs"], expected)
    first, last = batch["obs"][:, 0, 0, 0], batch["next_obs"][:, 0, 0, 0]
    assert torch.equal(last, torch.minimum(first + 2, torch.tensor(3, dtype=torch.uint8)))


@pytest.fixture
def mapped(tmp_path: Path) -> dict[str, Tensor]:
    """A log of 25 GB that takes no place on disk, since its files are nothing but zeros."""
    rows = 50_000_000
    widths = {"obs": 64, "next_obs": 64, "actions": 1, "rewards": 0, "dones": 0}
    found = {}
    for name, width in widths.items():
        shape = (rows, width) if width else (rows,)
        found[name] = torch.from_numpy(np.memmap(tmp_path / name, dtype=np.float32, mode="w+", shape=shape))
    return found


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_drawing_from_a_mapped_log_reads_only_the_rows_drawn(mapped: dict[str, Tensor]) -> None:
    truncations = torch.zeros(len(mapped["rewards"]), dtype=torch.bool)
    before = _resident()
    dataset = TransitionDataset(fields=mapped, truncations=truncations).to("cpu").with_seed(3).requiring(*mapped)
    assert dataset.fields["obs"].data_ptr() == mapped["obs"].data_ptr()
    batch = dataset.sample(4)
    assert batch["obs"].shape == (4, 64)
    # A block has 256 rows; for every number of them that is not there, the system reads up to 64 KiB around it.
    assert _resident() - before < 256 * len(mapped) * 2 * 65536 + 50e6


def test_a_ring_that_does_not_fit_into_memory_says_so() -> None:
    with pytest.raises(ConfigError, match="no memory for a replay buffer of 1125899906842624 rows"):
        Rows.ring(1 << 50, {"obs": Column((100,), "float32")})
