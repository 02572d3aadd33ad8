"""When the update is compiled, and what happens where it cannot be."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rl_training.compilation import graphs
from rl_training.compilation.graphs import EAGER_UPDATES, EARNED_AFTER, compiled_from
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.machine import configure_machine, default_device
from rl_training.runtime import fine_tuning_config, resume, train
from rl_training.storage import load_checkpoint


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "missing_for_compiling", lambda: None)
    monkeypatch.setattr(graphs, "_obstacle", lambda: None)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("option", "updates", "expected"),
    [
        ("auto", EARNED_AFTER - 1, None),
        ("auto", EARNED_AFTER, EAGER_UPDATES),
        ("always", 1, 0),
        ("never", 10 * EARNED_AFTER, None),
    ],
)
def test_auto_compiles_the_runs_that_earn_it(option: graphs.CompileOption, updates: int, expected: int | None) -> None:
    assert compiled_from(option, updates) == expected


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_auto_falls_back_with_one_warning_that_names_the_cause() -> None:
    with pytest.warns(UserWarning, match=r"training without compilation, .*no C\+\+ compiler found") as caught:
        begins = compiled_from("auto", EARNED_AFTER)

    assert begins is None
    assert len(caught) == 1


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_always_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        compiled_from("always", 1)

    assert str(caught.value) == (
        "compile: always is not possible: no C++ compiler found (looked for g++, clang++); set compile: never or auto"
    )


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("option", "updates"), [("auto", 10), ("never", EARNED_AFTER)])
def test_runs_that_are_not_compiled_need_no_compiler(option: graphs.CompileOption, updates: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert compiled_from(option, updates) is None


def test_a_compiler_named_in_the_environment_is_the_one_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/true" if name == "g++" else None)

    with pytest.raises(ConfigError, match="looked for my-compiler"):
        compiled_from("always", 1)


@pytest.mark.usefixtures("no_compiler")
def test_a_run_without_a_compiler_warns_once_and_trains(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "EARNED_AFTER", 1)

    with pytest.warns(UserWarning, match="training without compilation") as caught:
        result = train(tiny_config("td3_bc"))

    assert len([warning for warning in caught if "compilation" in str(warning.message)]) == 1
    assert "return_mean" in result.metrics


@pytest.mark.usefixtures("no_compiler")
def test_a_run_that_must_be_compiled_and_cannot_be_leaves_nothing_behind(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="compile: always is not possible"):
        train(tiny_config("td3_bc", "algo_kwargs.compile=always"))

    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_only_when_it_is_given() -> None:
    configure_machine(1)
    assert torch.get_num_threads() == 1

    configure_machine()
    assert torch.get_num_threads() == 1


def test_the_device_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device("auto") == torch.device("cpu")
    assert default_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError, match=f"device {name!r} is not available on this machine"):
            default_device(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device("auto") == torch.device("cuda")


def test_precision_is_fixed_on_resume_and_free_for_a_run_that_begins_with_the_policy(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "has_bfloat16", lambda device: True)
    run = train(tiny_config("td3_bc", "algo_kwargs.precision=bfloat16")).run_dir
    with pytest.raises(ConfigError, match="a run keeps its precision"):
        resume(run, algo_kwargs={"precision": "float32"}, total_timesteps=30)
    assert resume(run, total_timesteps=30).stop_reason is None
    weights = load_checkpoint(run / "checkpoints" / "latest.pt")["algorithm"]
    assert {value.dtype for value in weights.values() if isinstance(value, torch.Tensor)} == {torch.float32}
    steps = ["total_timesteps=20", "algo_kwargs.learning_starts=5", "algo_kwargs.precision=float32"]
    assert train(fine_tuning_config(run, overrides=steps)[0]).stop_reason is None
