"""Runs that begin eager are compiled from a fixed update on, whatever happens before it and after."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._dynamo.utils import counters

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.compilation import CompiledGradient, graphs
from rl_training.compilation.graphs import FOLDER
from rl_training.config import TrainConfig
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.runtime import Callback, compiling, resume, train
from rl_training.runtime.compiling import Compiling
from rl_training.storage import load_checkpoint, load_tree, save_tree

FIRST = 7
"""The first compiled update; they are counted from 0."""
SPACES = SpaceSpec.vector(4, BoxActions((-1.0,), (1.0,)))
MakeConfig = Callable[..., TrainConfig]


class _StopAt(Callback):
    def __init__(self, update: int) -> None:
        self.update = update

    def on_each_update(self, state: Any, metrics: Any) -> None:
        if state.update_count == self.update:
            state.interrupt("a test")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the updates that were compiled; there is no helper."""
    numbers: list[int] = []
    call = CompiledGradient.__call__

    def noticed(gradient: CompiledGradient, batch: Batch) -> Any:
        if gradient.arguments[1].name == "critic":
            numbers.append(gradient.arguments[0].updates - 1)
        return call(gradient, batch)

    monkeypatch.setattr(graphs, "EARNED_AFTER", 1)
    monkeypatch.setattr(graphs, "EAGER_UPDATES", FIRST)
    monkeypatch.setattr(graphs, "missing_for_compiling", lambda: None)
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    monkeypatch.setattr(compiling, "can_compile", lambda wanted: wanted)
    monkeypatch.setattr(Compiling, "_start_helper", lambda self, batch: None)
    monkeypatch.setattr(CompiledGradient, "__call__", noticed)
    return numbers


def _networks(run_dir: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_checkpoint(run_dir / "checkpoints" / "latest.pt")["algorithm"]
    return state


def test_a_run_stopped_before_at_and_after_the_switch_ends_as_one_that_was_not(
    tiny_config: MakeConfig, compiled: list[int]
) -> None:
    straight = train(tiny_config("td3_bc"))
    assert compiled == list(range(FIRST, 20))
    for stop in (FIRST - 2, FIRST, FIRST + 2):
        compiled.clear()
        halted = train(tiny_config("td3_bc"), callbacks=[_StopAt(stop)])
        assert halted.interrupted
        resume(halted.run_dir)

        assert compiled == list(range(FIRST, 20))
        torch.testing.assert_close(_networks(halted.run_dir), _networks(straight.run_dir), rtol=0, atol=0)


def test_a_run_of_an_earlier_version_stays_compiled_from_the_start(
    tiny_config: MakeConfig, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.runtime.assembly.can_compile", lambda wanted: wanted)
    halted = train(tiny_config("td3_bc"), callbacks=[_StopAt(2)])
    path = halted.run_dir / "checkpoints" / "latest.pt"
    tree = load_tree(path)
    assert tree["machine"]["compiled_from"] == FIRST
    del tree["machine"]["compiled_from"]
    save_tree(path, tree)

    resume(halted.run_dir)

    assert compiled == list(range(2, 20))


def test_a_graph_that_cannot_be_compiled_costs_one_warning_and_the_run_stays_eager(
    tiny_config: MakeConfig, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Algorithm, batch: Batch) -> None:
        raise RuntimeError("no such operation\nand how to report it")

    monkeypatch.setattr(Algorithm, "compile_for", fail)
    with pytest.warns(
        UserWarning, match="^training without compilation, which is slower: no such operation$"
    ) as caught:
        halted = train(tiny_config("td3_bc"), callbacks=[_StopAt(FIRST + 3)])
    assert len(caught) == 1
    monkeypatch.undo()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume(halted.run_dir)
    assert compiled == []


def test_the_introduction_says_from_which_update_on_a_run_is_compiled(
    tiny_config: MakeConfig, compiled: list[int]
) -> None:
    said: list[str] = []

    class _Listener(Callback):
        def on_train_start(self, state: Any) -> None:
            said.extend(state.introduction)

    train(tiny_config("td3_bc"), callbacks=[_Listener()])

    assert f"compilation from update {FIRST} on; until then, graphs are compiled beside the run" in said


def test_a_run_that_went_back_before_the_switch_is_eager_again(compiled: list[int]) -> None:
    algorithm, batch, state = _small(), _batch(), _state(compiled_from=1)
    switch = Compiling(algorithm, SPACES, state)
    for number in (0, 1, 0, 1):
        state.update_count = algorithm.updates = number
        switch.follow(batch)
        algorithm.update(batch)

    assert compiled == [1, 1]


@pytest.mark.usefixtures("compiled")
def test_a_helper_that_is_not_done_ends_at_the_switch_and_with_the_run() -> None:
    state, batch = _state(compiled_from=1), _batch()
    for close in (False, True):
        switch = Compiling(_small(), SPACES, state)
        helper = switch.helper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, start_new_session=True)
        state.update_count = 0 if close else 1

        switch.follow(batch)
        assert (helper.poll() is None) is close
        switch.close()
        assert helper.poll() is not None


@pytest.mark.slow
def test_the_helper_compiles_what_the_run_then_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "graphs"))
    algorithm, batch = _small(), _batch()
    switch = Compiling(algorithm, SPACES, _state(compiled_from=1))
    switch.follow(batch)
    assert switch.helper is not None
    assert switch.helper.wait() == 0
    counters.clear()

    switch.state.update_count = 1
    switch.follow(batch)

    assert counters["aot_autograd"]["autograd_cache_hit"] == 2
    assert counters["aot_autograd"]["autograd_cache_miss"] == 0


def _small() -> Algorithm:
    cls: Any = ALGORITHMS["td3_bc"]
    return cast("Algorithm", cls.build(SPACES, cls.hyper_class(hidden_sizes=(8, 8), policy_delay=1)))


def _batch() -> Batch:
    shapes = {"obs": (8, 4), "actions": (8, 1), "rewards": (8,), "next_obs": (8, 4), "dones": (8,)}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def _state(*, compiled_from: int) -> Any:
    return cast("Any", SimpleNamespace(compiled=True, compiled_from=compiled_from, update_count=0, should_stop=False))
