"""Tables: what their columns become, and what is said of a table that is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import ColumnsConfig, TransitionDataset, load_transition_dataset
from rl_training.data.tables.columns import Expression, expand, natural

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PLANT = """run,t,x_1,x_2,x_10,mode,valve,power,safe
a,1,1.5,2,10,auto,open,0.5,0
a,0,0.5,1,11,manual,closed,0.25,0
a,2,2.5,3,12,auto,open,0.125,1
b,0,3.5,4,13,auto,closed,1,0
b,1,4.5,5,14,manual,open,2,0
"""
"""Two runs; the rows of the first are out of order, and it terminates."""
COLUMNS: dict[str, Any] = {
    "obs": ["x_*"],
    "actions": ["valve"],
    "reward": "power",
    "episode": "run",
    "step": "t",
    "terminated": "safe",
}


def load(folder: Path, text: str = PLANT, name: str = "plant.csv", **changes: Any) -> TransitionDataset:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    columns = {name: value for name, value in {**COLUMNS, **changes}.items() if value is not None}
    return load_transition_dataset(path, dataset_columns=columns)


def test_rows_are_put_in_order_and_episodes_end_where_they_do(tmp_path: Path) -> None:
    data = load(tmp_path)
    # The last row of the second run has no next observation.
    assert data.obs.tolist() == [[0.5, 1, 11], [1.5, 2, 10], [2.5, 3, 12], [3.5, 4, 13]]
    assert data.next_obs[:2].tolist() == [[1.5, 2, 10], [2.5, 3, 12]]
    assert data.rewards.tolist() == [0.25, 0.5, 0.125, 1]
    assert data.dones.tolist() == [0, 0, 1, 0]
    assert data.truncations.tolist() == [False, False, False, True]


def test_text_is_a_discrete_action_and_keeps_its_name(tmp_path: Path) -> None:
    data = load(tmp_path)
    assert data.is_discrete
    assert data.actions.tolist() == [0, 1, 1, 0]
    assert data.columns is not None
    assert data.columns.choices == ("closed", "open")
    assert load(tmp_path, choices=["open", "closed", "half"]).actions.tolist() == [1, 0, 0, 1]


def test_categories_are_observations_where_that_is_asked_for(tmp_path: Path) -> None:
    data = load(tmp_path, obs=["x_1", "mode"], one_hot=["mode"])
    assert data.obs[:2].tolist() == [[0.5, 0, 1], [1.5, 1, 0]]
    assert data.columns is not None
    assert data.columns.one_hot == {"mode": ("auto", "manual")}
    with pytest.raises(
        DatasetError, match="column 'mode' must hold numbers, got 'auto' in row 1; name the column in one"
    ):
        load(tmp_path, obs=["x_1", "mode"])


@pytest.mark.parametrize("name", ["log.csv.gz", "log.csv.zst", "log.parquet"])
def test_other_forms_hold_the_same(tmp_path: Path, name: str) -> None:
    expected, csv = load(tmp_path), pytest.importorskip("pyarrow.csv")
    if name.endswith("parquet"):
        parquet.write_table(csv.read_csv(tmp_path / "plant.csv"), tmp_path / name)
    else:
        with pa.output_stream(str(tmp_path / name), compression="detect") as file:
            file.write(PLANT.encode())
    data = load_transition_dataset(tmp_path / name, dataset_columns=COLUMNS)
    assert data.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("path", ["shards", "shards/part_*.csv"])
def test_shards_are_one_dataset_in_natural_order(tmp_path: Path, path: str) -> None:
    (tmp_path / "shards").mkdir()
    header, *rows = PLANT.splitlines()
    for number, part in ((10, rows[3:]), (2, rows[:3])):
        (tmp_path / "shards" / f"part_{number}.csv").write_text("\n".join([header, *part]) + "\n")
    columns = {**COLUMNS}
    data = load_transition_dataset(tmp_path / path, dataset_columns=columns)
    assert data.fingerprint() == load(tmp_path).fingerprint()
    (tmp_path / "shards" / "part_10.csv").write_text(f"{header}\nb,0,oops,4,13,auto,closed,1,0\n")
    with pytest.raises(DatasetError, match=r"'x_1' must hold numbers, got 'oops' in row 1 of part_10\.csv"):
        load_transition_dataset(tmp_path / path, dataset_columns=columns)


def test_a_table_in_memory_goes_there_and_back(tmp_path: Path) -> None:
    data = load(tmp_path, obs=["x_*", "mode"], one_hot=["mode"])
    table = data.to_arrow()
    assert table.column_names[:5] == ["x_1", "x_2", "x_10", "mode=auto", "mode=manual"]
    assert table.column("valve").to_pylist() == ["closed", "open", "open", "closed"]
    again = TransitionDataset.from_table(table)
    for name in ("obs", "actions", "rewards", "next_obs", "dones"):
        assert torch.equal(again.fields[name], data.fields[name]), name
    assert torch.equal(again.truncations, data.truncations)
    with pytest.raises(DatasetError, match="cannot be made from list"):
        TransitionDataset.from_table([1, 2], COLUMNS)
    with pytest.raises(ConfigError, match="does not say what its columns mean"):
        TransitionDataset.from_table(pa.table({"x": [1]}))


def test_single_decisions_terminate_and_keep_their_propensities(tmp_path: Path) -> None:
    mapping: dict[str, Any] = {
        "episode": None,
        "step": None,
        "terminated": None,
        "episodes": "each_row",
        "propensity": "chance",
    }
    chances = ["chance", "0.5", "0.25", "0.125", "1", "0"]
    chances = [f"{each},{mask}" for each, mask in zip(chances, ["can_open,can_closed", *["1,1"] * 5], strict=True)]
    text = "".join(f"{line},{chance}\n" for line, chance in zip(PLANT.splitlines(), chances, strict=True))
    data = load(tmp_path, text, obs=["x_2"], valid_actions=["can_*"], **mapping)
    assert data.dones.tolist() == [1] * 5
    assert data.behavior_log_probs.exp().tolist() == [0.5, 0.25, 0.125, 1, 0]
    assert data.valid_actions.shape == (5, 2)
    assert data.columns is not None
    assert data.columns.valid_actions == ("can_closed", "can_open")
    assert any("'run'" in note for note in data.notes)


def test_empty_cells_are_an_error_or_dealt_with_by_choice(tmp_path: Path) -> None:
    holes = PLANT.replace("a,1,1.5,", "a,1,,")
    with pytest.raises(DatasetError, match="1 cell is empty: the first is column 'x_1' in row 1; set missing"):
        load(tmp_path, holes)
    assert load(tmp_path, holes, missing="forward_fill").obs[:, 0].tolist() == [0.5, 0.5, 2.5, 3.5]
    dropped = load(tmp_path, holes, missing="drop_episode")
    assert dropped.obs[:, 0].tolist() == [3.5]
    assert "dropped 1 episodes with empty cells" in dropped.notes
    with pytest.raises(DatasetError, match="'x_1' in row 2; forward_fill needs a value before it"):
        load(tmp_path, PLANT.replace("a,0,0.5,", "a,0,,"), missing="forward_fill")


def test_a_table_may_hold_categories_but_no_lists() -> None:
    kinds = {"x": [[1.0], [2.0]], "u": pa.array(["b", "a"]).dictionary_encode(), "y": [1, 2]}
    columns = {"obs": ["y"], "actions": ["u"], "episodes": "each_row"}
    data = TransitionDataset.from_table(pa.table(kinds), columns)
    assert (data.actions.tolist(), data.has_rewards) == ([1, 0], False)
    with pytest.raises(DatasetError, match="column 'x' holds list<item: double>, expected one number per row"):
        TransitionDataset.from_table(pa.table(kinds), {**columns, "obs": ["x"]})


def test_integers_are_discrete_actions_unless_they_are_said_to_be_quantities(tmp_path: Path) -> None:
    data = load(tmp_path, obs=["x_1"], actions=["x_2"])
    assert data.is_discrete
    assert any("action_kind: continuous" in note for note in data.notes)
    assert not load(tmp_path, obs=["x_1"], actions=["x_2"], action_kind="continuous").is_discrete
    with pytest.raises(DatasetError, match="actions up to 4e\\+06, too many"):
        load(tmp_path, PLANT.replace("3.5,4,", "3.5,4000000,"), obs=["x_1"], actions=["x_2"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("a,1,", "a,0,"), "row 1 and row 2 have the same value in one episode"),
        (("a,2,", "a,4,"), r"1 gaps inside episodes; the first is between row 1 \(step 1\) and row 3 \(step 4\)"),
        (("0.5,0\n", "0.5,1\n"), "column 'safe' is 1 in row 1, but its episode continues in row 3"),
        (("0.5,0\n", "0.5,7\n"), "column 'safe' must be 0 or 1 .*, got 7 in row 1"),
        (("1.5,", "abc,"), "column 'x_1' must hold numbers, got 'abc' in row 1"),
        (("1.5,", "inf,"), "column 'x_1' is inf in row 1"),
        (("1.5,", "1e300,"), "column 'x_1' is inf in row 1, expected finite numbers that fit into float32"),
        (("x_10", "x_2"), "two columns named 'x_2'"),
        (("a,1,", ",1,"), "column 'run' has 1 empty cells; the first is in row 1"),
    ],
)
def test_a_wrong_cell_is_named_with_its_row(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load(tmp_path, PLANT.replace(*change, 1))


def test_episodes_that_are_scattered_need_an_order(tmp_path: Path) -> None:
    text = PLANT + "a,3,1,1,1,auto,open,1,0\n"
    with pytest.raises(DatasetError, match=r"episode 'a' .* continues in row 6 after rows of other episodes"):
        load(tmp_path, text, step=None, terminated=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": ["x_1", "humidity"]}, "obs: there is no column 'humidity'"),
        ({"reward": "powr"}, "reward: there is no column 'powr'; did you mean 'power'"),
        ({"step": "tt"}, "step: there is no column 'tt'"),
        ({"one_hot": ["mode"]}, "one_hot names 'mode', which is not among obs"),
        ({"obs": ["y_*"]}, r"obs: there is no column 'y_\*'"),
        (
            {"actions": ["x_1", "valve"]},
            "column 'valve' must hold numbers, got 'open' in row 1; text is a discrete action",
        ),
        ({"choices": ["open"]}, "has the action 'closed' in row 2, which is not known; there are 'open'"),
    ],
)
def test_a_wrong_mapping_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episode": None}, "which rows belong to the same episode"),
        ({"episodes": "one"}, "episode and episodes both"),
        ({"terminated": None, "done": "safe"}, "what does a 1 in the column 'safe' mean"),
        ({"done_means": "terminated"}, "done_means has no effect without done"),
        ({"done": "safe", "done_means": "terminated"}, "done and 'safe' say the same"),
        ({"timestamp": "t"}, "step and timestamp both"),
        ({"episode": None, "episodes": "each_row"}, "terminated has no effect with episodes: each_row"),
        ({"episode": None, "episodes": "flags", "terminated": None}, "flags needs terminated"),
        ({"rewards": "power"}, "unknown option .*rewards'; did you mean 'reward'"),
    ],
)
def test_questions_are_asked_before_a_file_is_read(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **changes)


def test_done_means_what_it_is_said_to_mean(tmp_path: Path) -> None:
    by_flag: dict[str, Any] = {"terminated": None, "done": "safe", "episode": None, "step": None, "episodes": "flags"}
    text = PLANT.replace("a,1,", "a,x,").replace("a,0,", "a,1,").replace("a,x,", "a,0,")
    ended = load(tmp_path, text, **by_flag, done_means="terminated")
    assert (ended.dones.tolist(), ended.truncations.tolist()) == ([0, 0, 1, 0], [False, False, False, True])
    cut = load(tmp_path, text, **by_flag, done_means="episode_end")
    assert (cut.dones.tolist(), cut.truncations.tolist()) == ([0, 0, 0], [False, True, True])


def test_times_order_rows(tmp_path: Path) -> None:
    text = PLANT
    for number in "012":
        text = text.replace(f"a,{number},", f"a,2024-05-31 14:0{number}:30,").replace(
            f"b,{number},", f"b,2024-06-01 00:00:0{number},"
        )
    timed, counted = load(tmp_path, text, step=None, timestamp="t"), load(tmp_path)
    assert all(torch.equal(value, timed.fields[name]) for name, value in counted.fields.items())
    assert (timed.timestamps - timed.timestamps[0]).tolist() == [0, 60, 120, 35970]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "empty.csv is not a readable table"),
        ("header.csv", b"x,u\n", "has no rows"),
        ("empty.parquet", b"", "empty.parquet is not a readable table"),
        # Without mtime the bytes, and so the name of the test, change every second.
        ("cut.csv.gz", gzip.compress(b"x,u\n" + b"1,2\n" * 5000, mtime=0)[:-20], "cut.csv.gz is not a readable table"),
        ("ragged.csv", b"x,u\n1,2\n1,2,3\n", "ragged.csv is not a readable table"),
        ("binary.csv", bytes(range(256)) * 10, "binary.csv"),
    ],
)
def test_hostile_files_are_one_message(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        load_transition_dataset(tmp_path / name, dataset_columns={"obs": ["x"], "actions": ["u"], "episodes": "one"})
    assert "\n" not in str(caught.value)


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    parquet.write_table(pa.table({"x": np.arange(1000.0), "u": np.arange(1000.0)}), whole)
    for size in (3, 100, whole.stat().st_size - 5):
        (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:size])
        with pytest.raises(DatasetError, match=r"cut.parquet is not a readable table, it may be truncated"):
            load_transition_dataset(
                tmp_path / "cut.parquet", dataset_columns={"obs": ["x"], "actions": ["u"], "episodes": "one"}
            )


def test_ten_thousand_columns_are_read_or_refused_in_one_short_line(tmp_path: Path) -> None:
    names = [f"x_{k}" for k in range(10_000)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join([*names, "u"]), *[",".join(["0.5"] * 10_001)] * 3]))
    columns = {"obs": ["x_*"], "actions": ["u"], "episodes": "one"}
    assert load_transition_dataset(tmp_path / "wide.csv", dataset_columns=columns).obs_dim == 10_000
    with pytest.raises(DatasetError) as caught:
        load_transition_dataset(tmp_path / "wide.csv", dataset_columns={**columns, "obs": ["temperature"]})
    assert "and 9991 more" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    columns = {"obs": ["x"], "actions": ["u"], "episodes": "one"}
    with pytest.raises(ConfigError, match="is a folder that holds no tables, or several kinds"):
        load_transition_dataset(tmp_path, dataset_columns=columns)
    with pytest.raises(DatasetError, match=r"has no files that end in \.parquet"):
        load_transition_dataset(tmp_path, dataset_kind="parquet", dataset_columns=columns)
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    with pytest.raises(DatasetError, match="is a link that leads nowhere"):
        load_transition_dataset(tmp_path / "loop.csv", dataset_columns=columns)
    (tmp_path / "loop.csv").unlink()
    with pytest.raises(DatasetError, match="no file matches"):
        load_transition_dataset(tmp_path / "*.csv", dataset_columns=columns)


def test_patterns_take_what_has_no_other_role() -> None:
    names = ["u_10", "u_2", "r", "run", "x", "next_x", "temp [C]"]
    columns = ColumnsConfig(obs=("*",), actions=("u_*",), reward="r + 1", episode="run", next_obs=())
    assert expand(columns, names).obs == ("next_x", "temp [C]", "x")
    assert expand(columns, names).actions == ("u_2", "u_10")
    exact = ColumnsConfig(obs=("temp [C]", "x"), actions=("u_*",), episode="run")
    assert expand(exact, names).obs == ("temp [C]", "x")
    assert sorted(["a10", "a9", "a", "10", "9"], key=natural) == ["9", "10", "a", "a9", "a10"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-(temp - 21)^2 - 0.1*power", [-4.1, -0.2]),
        ("2 ** 3 ^ 1 + temp", [31, 29]),
        ("max(temp, 22) - min(power, 1)", [22, 21]),
        ("abs(temp - 22) + sqrt(4) + exp(0) + log(1)", [4, 4]),
        ("10 * (temp > 22)", [10, 0]),
        ("`supply air` / 2", [1, 2]),
        ("1", [1, 1]),
    ],
)
def test_a_reward_is_computed_from_columns(text: str, expected: list[float]) -> None:
    values = {"temp": np.array([23.0, 21.0]), "power": np.array([1.0, 2.0]), "supply air": np.array([2.0, 4.0])}
    computed = Expression(text, list(values))(values, 2)
    assert computed == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "x[0]",
        "(lambda: 1)()",
        "x if x else 1",
        "'text'",
        "True",
        "x @ x",
        "x << 2",
        "open(x)",
        "min(x)",
        "max(x, y=1)",
        "[x for x in x]",
        "1e999",
        "x +",
        "(" * 400 + "x" + ")" * 400,
        "x" + "+x" * 1000,
        "9" * 900,
        "x < x < x",
    ],
)
def test_nothing_but_arithmetic_is_read(text: str) -> None:
    with pytest.raises(DatasetError, match="reward: "):
        Expression(text, ["x"])


def test_a_reward_that_is_no_number_is_named_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"reward: 'log\(x_1 - 1.5\)' is -inf in row 1"):
        load(tmp_path, reward="log(x_1 - 1.5)")
    assert load(tmp_path, reward="-(x_1 - 2)^2").rewards.tolist() == [-2.25, -0.25, -0.25, -2.25]
