"""Real datasets are read as their publishers describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rl_training.core.errors import DatasetError
from rl_training.data import TransitionDataset, load_transition_dataset


@dataclass(frozen=True)
class Expected:
    """What a file must come out as; returns are rounded as their description rounds them."""

    rows: int
    dims: tuple[int, int]
    dropped: int = 0
    terminations: int = 0
    truncations: int = 0
    returns: tuple[int, ...] | None = None

    @property
    def episodes(self) -> int:
        return self.terminations + self.truncations


FILES = {
    # Real next observations: every row is kept. The replay files have rewards in one column, all numbers in float64.
    "d4rl/mujoco/halfcheetah_medium-v2.hdf5": Expected(2000, (17, 6), truncations=2, returns=(4669, 4880)),
    "d4rl/mujoco/hopper_medium-v2.hdf5": Expected(911, (11, 3), terminations=2, returns=(1465, 1413)),
    "d4rl/mujoco/ant_medium-v2.hdf5": Expected(2000, (111, 8), truncations=2, returns=(3972, 3565)),
    "d4rl/mujoco/halfcheetah_medium_replay-v1.hdf5": Expected(2000, (17, 6), truncations=2, returns=(-292, -317)),
    "d4rl/mujoco/hopper_medium_replay-v1.hdf5": Expected(49, (11, 3), terminations=2, returns=(42, 6)),
    "d4rl/mujoco/ant_medium_replay-v1.hdf5": Expected(70, (111, 8), terminations=2, returns=(-64, -21)),
    # Described as -276 and -324, but the first is -275.48.
    "d4rl/mujoco/halfcheetah_random-v1.hdf5": Expected(2000, (17, 6), truncations=2, returns=(-275, -324)),
    "d4rl/mujoco/hopper_random-v1.hdf5": Expected(50, (11, 3), terminations=2, returns=(39, 9)),
    "d4rl/mujoco/ant_random-v1.hdf5": Expected(366, (111, 8), terminations=2, returns=(-34, -199)),
    # No next observations: each episode that a time limit cut loses its last row. A terminated row is kept, so the
    # three segments that reach the goal, two of them of one row, lose none.
    "d4rl/antmaze/antmaze-medium-diverse-v0.hdf5": Expected(67, (29, 8), terminations=3, returns=(1, 1, 1)),
    "d4rl/antmaze/antmaze-medium-play-v0.hdf5": Expected(1998 - 2, (29, 8), 2, truncations=2, returns=(0, 0)),
    "d4rl/antmaze/antmaze-umaze-diverse-v0.hdf5": Expected(1998 - 2, (29, 8), 2, truncations=2, returns=(0, 0)),
    "d4rl/antmaze/antmaze-umaze-v0.hdf5": Expected(1402 - 2, (29, 8), 2, truncations=2, returns=(0, 0)),
    # No next observations, two episodes each, all cut.
    "d4rl/adroit/pen-human-v1.hdf5": Expected(400 - 2, (45, 24), 2, truncations=2),
    "d4rl/adroit/pen-cloned-v1.hdf5": Expected(200 - 2, (45, 24), 2, truncations=2),
    "d4rl/adroit/pen-expert-v1.hdf5": Expected(200 - 2, (45, 24), 2, truncations=2),
    "d4rl/adroit/door-human-v1.hdf5": Expected(600 - 2, (39, 28), 2, truncations=2),
    "d4rl/adroit/door-cloned-v1.hdf5": Expected(400 - 2, (39, 28), 2, truncations=2),
    "d4rl/adroit/door-expert-v1.hdf5": Expected(400 - 2, (39, 28), 2, truncations=2),
    "d4rl/adroit/hammer-human-v1.hdf5": Expected(936 - 2, (46, 26), 2, truncations=2),
    "d4rl/adroit/hammer-cloned-v1.hdf5": Expected(400 - 2, (46, 26), 2, truncations=2),
    "d4rl/adroit/hammer-expert-v1.hdf5": Expected(400 - 2, (46, 26), 2, truncations=2),
    # Ends are in `episode_terminals`: 500 episodes of 199 rows, each of which loses its last.
    "pendulum/pendulum_replay_v1.1.0.h5": Expected(99_500 - 500, (3, 1), 500, truncations=500),
    "pendulum/pendulum_random_v1.1.0.h5": Expected(99_500 - 500, (3, 1), 500, truncations=500),
    # `terminals` is 1 on the last two rows of an ended episode, and counts on the last one only.
    "cartpole/cartpole_replay_v1.1.0.h5": Expected(99_866 - 134, (4, 1), 134, terminations=1448, truncations=134),
    "pendulum/pendulum_medium_sac.npz": Expected(10_000, (3, 1), truncations=50),
    "pendulum/pendulum_expert_sac.npz": Expected(10_000, (3, 1), truncations=50),
    "cs285_expert/Ant-v4_expert.npz": Expected(2000, (27, 8), truncations=2, returns=(4713, 4651)),
    "cs285_expert/HalfCheetah-v4_expert.npz": Expected(2000, (17, 6), truncations=2, returns=(4068, 4002)),
    "cs285_expert/Hopper-v4_expert.npz": Expected(2000, (11, 3), truncations=2, returns=(3717, 3718)),
}

REFUSED = {
    "icu_sepsis/dynamics.npz": "field 'obs' is missing",
}
"""Files that hold no transitions, and what is said about them."""

MINARI = "D4RL/door/human-v2"


def load(folder: Path, name: str) -> TransitionDataset:
    return load_transition_dataset(dataset_path=str(folder / name))


def returns_of(dataset: TransitionDataset) -> torch.Tensor:
    assert dataset.raw_returns is not None
    return dataset.raw_returns


def rounded(value: float, decimals: int = 0) -> object:
    """A number known to some decimals only."""
    return pytest.approx(value, abs=0.5 * 10**-decimals)


def test_every_file_of_transitions_has_its_line(shared_data: Path) -> None:
    # Weights of policies are no logs, and files of Minari are read through their folder.
    found = {
        path.relative_to(shared_data).as_posix()
        for path in shared_data.rglob("*")
        if path.suffix in (".hdf5", ".h5", ".npz")
    }
    others = {name for name in found if name.startswith(("policies/", "minari/"))}
    assert found - others == FILES.keys() | REFUSED.keys()


@pytest.mark.parametrize(("name", "expected"), FILES.items(), ids=FILES)
def test_a_file_is_read_as_it_is_described(shared_data: Path, name: str, expected: Expected) -> None:
    data = load(shared_data, name)
    assert len(data) == expected.rows
    assert data.num_dropped == expected.dropped
    assert (data.obs_dim, data.action_dim) == expected.dims
    assert int(data.dones.sum()) == expected.terminations
    assert int(data.truncations.sum()) == expected.truncations
    assert len(data.episode_bounds()) == expected.episodes
    if expected.returns is not None:
        assert returns_of(data).tolist() == [rounded(value) for value in expected.returns]


@pytest.mark.parametrize("name", FILES)
def test_observations_follow_each_other_inside_episodes(shared_data: Path, name: str) -> None:
    data = load(shared_data, name)
    inside = (~data.episode_ends[:-1]).nonzero().flatten()
    assert len(inside) == len(data) - FILES[name].episodes
    torch.testing.assert_close(data.next_obs[inside], data.obs[inside + 1], rtol=1e-5, atol=1e-5)
    assert torch.equal(data.next_actions[inside], data.actions[inside + 1])


@pytest.mark.parametrize(("name", "message"), REFUSED.items(), ids=REFUSED)
def test_a_file_of_another_kind_is_refused(shared_data: Path, name: str, message: str) -> None:
    with pytest.raises(DatasetError, match=f"{Path(name).name}: {message}"):
        load(shared_data, name)


@pytest.mark.parametrize(
    ("name", "mean", "lowest", "highest"),
    [("replay", -180, -1778, rounded(-0.7, decimals=1)), ("random", -1224, -1846, rounded(-745))],
)
def test_returns_of_pendulum_include_the_rows_that_were_dropped(
    shared_data: Path, name: str, mean: float, lowest: float, highest: object
) -> None:
    returns = returns_of(load(shared_data, f"pendulum/pendulum_{name}_v1.1.0.h5"))
    assert float(returns.mean()) == rounded(mean)
    assert float(returns.min()) == rounded(lowest)
    assert float(returns.max()) == highest


def test_episodes_of_pendulum_replay_are_in_the_order_of_training(shared_data: Path) -> None:
    returns = returns_of(load(shared_data, "pendulum/pendulum_replay_v1.1.0.h5"))
    assert float(returns[:10].max()) == rounded(-966)
    assert float(returns[:10].min()) == rounded(-1778)
    assert float(returns[-100:].mean()) == rounded(-128)


@pytest.mark.parametrize(("name", "mean", "deviation"), [("medium", -524, 497), ("expert", -175, 97)])
def test_returns_of_pendulum_policies_are_those_described(
    shared_data: Path, name: str, mean: float, deviation: float
) -> None:
    data = load(shared_data, f"pendulum/pendulum_{name}_sac.npz")
    assert float(returns_of(data).mean()) == rounded(mean)
    assert float(returns_of(data).std(correction=0)) == rounded(deviation)
    # Torque in its own units, beyond 1.
    assert 1 < float(data.actions.abs().max()) <= 2


def test_contact_forces_of_ant_are_zero_in_the_original_data(shared_data: Path) -> None:
    obs = load(shared_data, "d4rl/mujoco/ant_medium-v2.hdf5").obs
    assert not obs[:, -84:].any()
    assert obs[:, :27].any(dim=0).all()


def test_a_minari_dataset_is_read_from_this_machine(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared_data / "minari"))
    data = load_transition_dataset(dataset_id=MINARI)
    # T + 1 observations: no row is lost. All 25 demonstrations are cut, none terminates.
    assert (len(data), data.num_dropped) == (6729, 0)
    assert (data.obs_dim, data.action_dim) == (39, 28)
    assert int(data.dones.sum()) == 0
    assert int(data.truncations.sum()) == len(data.episode_bounds()) == 25
    lengths = data.episode_bounds().diff().flatten()
    assert (int(lengths.min()), int(lengths.max())) == (223, 300)
    returns = returns_of(data)
    assert float(returns.mean()) == rounded(803)
    assert (float(returns.min()), float(returns.max())) == (rounded(235), rounded(1505))


def test_a_minari_dataset_that_is_not_there_is_answered_with_the_nearest(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared_data / "minari"))
    with pytest.raises(DatasetError, match=f"did you mean '{MINARI}'"):
        load_transition_dataset(dataset_id=MINARI.replace("v2", "v9"))


def test_files_that_differ_in_form_can_be_mixed(shared_data: Path) -> None:
    # One has next observations and the other has not.
    parts = [
        {"dataset_path": str(shared_data / "pendulum" / name), "ratio": ratio}
        for name, ratio in (("pendulum_medium_sac.npz", 3), ("pendulum_random_v1.1.0.h5", 1))
    ]
    mixed = load_transition_dataset(dataset_mix=parts, dataset_size=1000)
    assert len(mixed) == 1000
    assert "dropped 500 rows without a next observation" in mixed.notes
    assert "next_actions" in mixed.fields
