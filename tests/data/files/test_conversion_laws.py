"""Laws of conversion: whatever the forms on the way, the dataset is the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import TransitionDataset
from rl_training.data.convert import convert, load_any

ENDINGS = (".npz", ".pt", ".hdf5", ".parquet", ".rlt")


@st.composite
def logs(draw: Any) -> dict[str, Any]:
    rows = draw(st.integers(2, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    ends = rng.integers(0, 4, size=rows)
    log: dict[str, Any] = {
        "observations": rng.normal(size=(rows, 3)).astype(dtype),
        "terminals": ends == 1,
        "timeouts": (ends == 2) & (np.arange(rows) > 0),
        "other": rng.integers(0, 9, size=(rows, 2), dtype=np.int16),
    }
    log["timeouts"][0] = log["terminals"][0] = False
    is_discrete = draw(st.booleans())
    log["actions"] = rng.integers(0, 3, rows) if is_discrete else rng.normal(size=(rows, 2)).astype(dtype)
    if draw(st.booleans()):
        log["next_observations"] = rng.normal(size=(rows, 3)).astype(dtype)
    if draw(st.booleans()):
        log["next_actions"] = log["actions"][::-1].copy()
    if draw(st.booleans()):
        log["rewards"] = rng.normal(size=rows).astype(dtype)
    if draw(st.booleans()):
        log["timestamps"] = 1.7e9 + np.cumsum(rng.uniform(1e-3, 1, rows))
    if draw(st.booleans()):
        log["propensities"] = rng.uniform(0.1, 1, rows).astype(dtype)
    if is_discrete and draw(st.booleans()):
        names = ("valid_actions", "next_valid_actions")[: draw(st.integers(1, 2))]
        # The last choice is always possible.
        log |= {name: np.append(rng.integers(0, 2, (rows, 2)), np.ones((rows, 1)), axis=1) for name in names}
    if draw(st.booleans()):
        log["achieved_goals"] = rng.normal(size=(rows, 1)).astype(dtype)
    return log


def _check_same(one: TransitionDataset, other: TransitionDataset) -> None:
    assert {name: value.dtype for name, value in one.fields.items()} == {
        name: value.dtype for name, value in other.fields.items()
    }
    assert one.fingerprint() == other.fingerprint()
    assert one.has_rewards == other.has_rewards
    for name in ("truncations", "next_action_mask", "tail_rewards"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)


@given(log=logs(), way=st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_dataset_stays_the_same_on_any_way(log: dict[str, Any], way: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source.npz"
        np.savez(source, **log)
        before = original = load_any(source)
        for number, ending in enumerate(way):
            out = f"{folder}/{number}{ending}"
            convert(source, out)
            source, before = out, load_any(out)
            _check_same(original, before)


@given(log=logs(), way=st.lists(st.sampled_from(ENDINGS[:3]), max_size=3))
@settings(max_examples=20, deadline=None)
def test_files_of_arrays_keep_every_array_and_its_type(log: dict[str, Any], way: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source.npz"
        np.savez(source, **log)
        for number, ending in enumerate([*way, ".npz"]):
            out = f"{folder}/{number}{ending}"
            assert convert(source, out).left_out == []
            source = out
        with np.load(Path(source)) as found:
            assert set(found) == set(log)
            for name, array in log.items():
                np.testing.assert_array_equal(found[name], array, strict=True)
