"""How logged arrays become fields: names, shapes, and what an end flag means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from rl_training.core.errors import DatasetError
from rl_training.data.fields import ROW_LIMIT, read_fields, rename


def log(rows: int = 4, **others: Any) -> dict[str, Any]:
    """The fields that every dataset has; each observation is the number of its row."""
    return {
        "obs": np.arange(rows, dtype=np.float32)[:, None],
        "actions": np.zeros((rows, 2), dtype=np.float32),
        "rewards": np.zeros(rows, dtype=np.float32),
        "dones": np.zeros(rows, dtype=bool),
        **others,
    }


def ends(*, next_obs: ArrayLike | None = None, **flags: ArrayLike) -> tuple[list[int], list[int]]:
    """Rows on which episodes terminated, and rows on which they were cut, according to some flags."""
    arrays: dict[str, Any] = {key: value for key, value in log().items() if key != "dones"} | flags
    if next_obs is not None:
        arrays["next_obs"] = np.asarray(next_obs, dtype=np.float32)[:, None]
    fields = read_fields(arrays)
    return np.flatnonzero(fields["dones"]).tolist(), np.flatnonzero(fields["truncations"]).tolist()


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        pytest.param(
            ["obs", "actions", "rewards", "next_obs", "dones", "truncations", "next_actions", "returns_to_go"],
            ["obs", "actions", "rewards", "next_obs", "dones", "truncations", "next_actions", "returns_to_go"],
            id="plain",
        ),
        pytest.param(
            ["observations", "actions", "rewards", "next_observations", "terminals", "timeouts"],
            ["obs", "actions", "rewards", "next_obs", "dones", "truncations"],
            id="d4rl",
        ),
        pytest.param(
            ["observations", "actions", "rewards", "terminations", "truncations"],
            ["obs", "actions", "rewards", "dones", "truncations"],
            id="minari",
        ),
        pytest.param(
            ["observations", "actions", "rewards", "terminals", "episode_terminals"],
            ["obs", "actions", "rewards", "dones", "episode_ends"],
            id="d3rlpy",
        ),
        pytest.param(
            ["observations", "actions", "rewards", "next_observations", "terminals", "masks"],
            ["obs", "actions", "rewards", "next_obs", "dones", "masks"],
            id="ogbench",
        ),
        pytest.param(
            ["states", "action", "reward", "next_states", "terminated", "truncated"],
            ["obs", "actions", "rewards", "next_obs", "dones", "truncations"],
            id="singular",
        ),
    ],
)
def test_the_usual_names_reach_their_fields(names: list[str], fields: list[str]) -> None:
    assert rename(dict.fromkeys(names)) == dict(zip(fields, names, strict=True))


def test_names_that_are_no_fields_are_passed_over() -> None:
    # The ragged list shows that they are not even converted.
    assert set(read_fields(log(infos=[[1], [2, 3]]))) == {"obs", "actions", "rewards", "dones", "truncations"}


def test_two_spellings_of_one_field_are_refused() -> None:
    with pytest.raises(DatasetError, match="'obs' and 'observations' are two spellings of the field 'obs'"):
        rename(dict.fromkeys(["obs", "observations", "actions", "rewards", "dones"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["observtions", "actions", "rewards", "dones"],
            r"'obs' is missing \(found 'observtions'\); did you mean 'observations'\?$",
        ),
        (["obs", "acts", "rewards", "dones"], r"'actions' is missing \(found 'acts'\)"),
        # Rewards may be missing, but not misspelt.
        (["obs", "actions", "rewrds", "dones"], r"unknown field 'rewrds'; did you mean 'rewards'\?$"),
        (["obs", "actions", "rewards"], "'dones' is missing: say where episodes terminated"),
        # A name that is right for another field is no misspelling of this one.
        (["next_observations", "actions", "rewards", "dones"], r"'obs' is missing \(found [^)]*\)$"),
        ([], r"'obs' is missing \(found nothing\)"),
    ],
)
def test_a_missing_field_is_named_with_the_nearest_name_found(names: list[str], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        rename(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rewards": np.zeros(3)}, "rewards has 3 rows, obs has 4"),
        ({"next_obs": np.zeros((5, 1))}, "next_obs has 5 rows, obs has 4"),
        ({"next_obs": np.zeros((4, 3))}, "next_obs has 3 columns, obs has 1"),
        ({"next_actions": np.zeros((4, 1))}, "next_actions has 1 columns, actions has 2"),
        ({"rewards": np.zeros((4, 2))}, r"rewards must be one number per row, got shape \(4, 2\)"),
        ({"obs": np.zeros((4, 2, 2))}, r"obs must be rows of vectors, got shape \(4, 2, 2\)"),
        ({"obs": [[0, 1], [2], [3], [4]]}, "obs must be an array, got rows of unequal lengths"),
        ({"obs": np.array([["a"]] * 4)}, "obs must hold numbers, got an array of type <U1"),
        ({"rewards": np.array([None] * 4)}, "rewards must hold numbers, got an array of type object"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_fields(log() | wrong)


def test_no_rows_are_no_dataset() -> None:
    with pytest.raises(DatasetError, match="empty"):
        read_fields(log(rows=0))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, bool])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_integer_actions_are_discrete_actions(dtype: type, shape: tuple[int, ...]) -> None:
    actions = read_fields(log() | {"actions": np.array([0, 1, 1, 0]).astype(dtype).reshape(shape)})["actions"]
    assert actions.dtype == np.int64
    assert actions.tolist() == [0, 1, 1, 0]


def test_one_hot_rows_are_discrete_actions() -> None:
    actions = read_fields(log() | {"actions": np.eye(3, dtype=int)[[2, 0, 1, 2]]})["actions"]
    assert actions.tolist() == [2, 0, 1, 2]


def test_several_discrete_actions_per_row_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"shape \(4, 2\); expected one discrete action per row"):
        read_fields(log() | {"actions": np.ones((4, 2), dtype=int)})


def test_next_actions_of_another_kind_are_refused() -> None:
    choices = {"actions": np.zeros(4, dtype=int), "next_actions": np.zeros((4, 1))}
    with pytest.raises(DatasetError, match="next_actions has 1 columns, actions has discrete actions"):
        read_fields(log() | choices)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8])
def test_numbers_of_any_width_become_float32(dtype: type) -> None:
    assert read_fields(log() | {"obs": np.ones((4, 1), dtype=dtype)})["obs"].dtype == np.float32


@pytest.mark.parametrize(
    ("field", "array", "shape"),
    [
        ("obs", np.zeros(4), (4, 1)),
        ("actions", np.zeros(4), (4, 1)),
        ("rewards", np.zeros((4, 1)), (4,)),
        ("dones", np.zeros((4, 1)), (4,)),
    ],
)
def test_a_single_column_is_taken_with_and_without_its_axis(
    field: str, array: NDArray[Any], shape: tuple[int, ...]
) -> None:
    assert read_fields(log() | {field: array})[field].shape == shape


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("field", "place", "text"),
    [
        ("rewards", (2,), "row 2$"),
        ("actions", (1, 1), "row 1, column 1$"),
        # Rows are checked in parts; the number must be that of the row in the file, not in its part.
        ("obs", (ROW_LIMIT + 5, 0), f"row {ROW_LIMIT + 5}, column 0$"),
    ],
)
def test_a_value_that_is_not_finite_is_refused_with_its_place(
    field: str, place: tuple[int, ...], text: str, value: float
) -> None:
    arrays = log(ROW_LIMIT + 10)
    arrays[field][place] = value
    with pytest.raises(DatasetError, match=f"{field} has 1 values that are not finite; the first is {value} in {text}"):
        read_fields(arrays)


def test_all_values_that_are_not_finite_are_counted() -> None:
    arrays = log(ROW_LIMIT + 10)
    arrays["rewards"][[0, 7, ROW_LIMIT + 1]] = np.nan
    with pytest.raises(DatasetError, match="rewards has 3 values"):
        read_fields(arrays)


def test_a_number_too_large_for_float32_is_refused_too() -> None:
    # 1e300 is finite as it was logged, but not as it would be trained on.
    with pytest.raises(DatasetError, match="rewards has 1 values that are not finite; the first is inf in row 3"):
        read_fields(log() | {"rewards": np.array([0, 0, 0, 1e300])})


@pytest.mark.parametrize("value", [0.5, 2, -1, np.nan])
@pytest.mark.parametrize("name", ["terminals", "timeouts", "masks", "episode_terminals"])
def test_a_flag_that_is_neither_0_nor_1_is_refused_with_its_row(name: str, value: float) -> None:
    arrays = log()
    del arrays["dones"]
    flags = {"terminals": np.zeros(4)} | {name: np.array([0, 1, value, 0])}
    with pytest.raises(DatasetError, match=rf"{name} must be 0 or 1, got {value} in row 2"):
        read_fields(arrays | flags)


@pytest.mark.parametrize(
    ("flags", "terminated", "cut"),
    [
        pytest.param({"dones": [0, 1, 0, 1]}, [1, 3], [], id="terminations alone"),
        pytest.param({"terminals": [0, 1, 0, 0], "timeouts": [0, 0, 0, 1]}, [1], [3], id="one of each"),
        # A task that ends on the very step of the time limit has ended.
        pytest.param({"terminals": [0, 1, 0, 1], "timeouts": [0, 1, 0, 1]}, [1, 3], [], id="both on one row"),
        # The recording stops with its last row, whatever that row says.
        pytest.param({"dones": [0, 1, 0, 0]}, [1], [3], id="an unfinished last episode"),
        pytest.param({"masks": [1, 0, 1, 0]}, [1, 3], [], id="masks alone"),
        # OGBench: `terminals` is where the recording of a trajectory stops, `masks` is 0 where the task was solved.
        pytest.param({"masks": [1, 1, 1, 0], "terminals": [0, 1, 0, 1]}, [3], [1], id="masks beside terminals"),
        # d3rlpy: `terminals` may stand on the row before the last as well; only an episode's last row counts.
        pytest.param(
            {"terminals": [0, 0, 1, 1], "episode_terminals": [0, 1, 0, 1]}, [3], [1], id="terminals on two rows"
        ),
    ],
)
def test_every_convention_of_ends_has_one_meaning(
    flags: dict[str, ArrayLike], terminated: list[int], cut: list[int]
) -> None:
    assert ends(**flags) == (terminated, cut)


def test_cuts_are_found_by_discontinuity_where_only_dones_are_given() -> None:
    # Row 0 leads to 1, where row 1 is; row 1 leads to 5, but row 2 is at 2: another episode begins there.
    assert ends(dones=[0, 0, 0, 1], next_obs=[1, 5, 3, 4]) == ([3], [1])


def test_a_termination_followed_by_another_episode_is_no_cut() -> None:
    assert ends(dones=[0, 1, 0, 1], next_obs=[1, 5, 3, 4]) == ([1, 3], [])


def test_rounding_is_no_discontinuity() -> None:
    # 1e-6 of 3: what a file stored in another precision shows, five times below the tolerance at that size.
    assert ends(dones=[0, 0, 0, 1], next_obs=[1, 2, 3 * (1 + 1e-6), 4]) == ([3], [])


def test_where_cuts_are_given_discontinuities_add_none() -> None:
    assert ends(terminals=[0, 0, 0, 1], timeouts=[0, 0, 0, 0], next_obs=[1, 5, 3, 4]) == ([3], [])


@pytest.mark.parametrize("row", [ROW_LIMIT - 1, ROW_LIMIT, ROW_LIMIT + 1])
def test_discontinuities_are_found_where_the_checked_parts_meet(row: int) -> None:
    rows = 2 * ROW_LIMIT + 3
    next_obs = np.arange(1, rows + 1, dtype=np.float32)[:, None]
    next_obs[row] = -1
    fields = read_fields(log(rows, next_obs=next_obs))
    assert np.flatnonzero(fields["truncations"]).tolist() == [row, rows - 1]


@pytest.mark.parametrize(("name", "meant"), [("timeout", "timeouts"), ("next_action", "next_actions")])
def test_a_misspelt_optional_field_is_refused_instead_of_ignored(name: str, meant: str) -> None:
    rows = {"obs": np.zeros((2, 1)), "actions": np.zeros((2, 1)), "rewards": np.zeros(2), "dones": np.zeros(2)}
    with pytest.raises(DatasetError, match=f"unknown field '{name}'; did you mean '{meant}'"):
        read_fields({**rows, name: np.zeros(2)})
    read_fields({**rows, "infos": np.zeros(2)})
