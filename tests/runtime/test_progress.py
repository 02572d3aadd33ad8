"""A run as it is shown."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import blank_state

from rl_training.config import TrainConfig
from rl_training.runtime import progress, train
from rl_training.runtime.progress import ProgressCallback

MakeConfig = Callable[..., TrainConfig]


def _console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=140, highlight=False, soft_wrap=True), file


def _plain(text: str) -> str:
    """Text as it stands on the screen, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since some moment; the test moves them."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]  # not re-exported
    return now


def test_without_a_terminal_progress_is_plain_lines(tiny_config: MakeConfig) -> None:
    console, file = _console(terminal=False)

    result = train(tiny_config("td3_bc", "algo_kwargs.max_updates=15"), callbacks=[ProgressCallback(console, every=0)])

    lines = file.getvalue().splitlines()
    assert "\x1b" not in file.getvalue()
    assert lines[:6] == [
        f"run         {result.run_dir}",
        f"data        random: 400 transitions in 2 episodes, mean return {result.data_return:.4g}",
        "ends        0 episodes terminated, 2 ended otherwise (time limits)",
        "audit       nothing unusual in a quick look; `rl-training data audit` looks closer",
        "actions     continuous actions in 1 dimension within [-2, 2], as Pendulum-v1 has them",
        "evaluation  1 episode in Pendulum-v1, every 10 updates, and at the end",
    ]
    assert re.fullmatch(r"disk        a checkpoint takes \S+ kB, the run about \S+ kB; .* are free", lines[6])
    assert re.fullmatch(r" 1/15  \d+ updates/s, \S+ left", lines[7])
    assert re.fullmatch(r"10/15  evaluation  return_mean \S+  best \S+ at 10", lines[17])
    assert re.fullmatch(
        r"11/15  \d+ updates/s, \d:\d\d:\d\d left  critic_loss \S+  actor_loss \S+  q_mean \S+", lines[18]
    )
    assert lines[-1] == "stopped after 15 updates: reached max_updates (15)"


def test_lines_of_progress_come_by_time_not_by_the_log_interval(clock: list[float]) -> None:
    console, file = _console(terminal=False)
    shown, state = ProgressCallback(console, every=10), blank_state(100)
    shown.on_train_start(state)

    for step in range(1, 26):
        clock[0] += 1
        state.global_step = state.update_count = step
        shown.on_each_update(state, {})
        if step % 5 == 0:
            shown.on_update_end(state, {"critic_loss": 1.0})

    lines = file.getvalue().splitlines()[1:]
    assert [line.split("/")[0].strip() for line in lines] == ["10", "20"]


def test_remarks_on_the_data_are_shown_first(tiny_config: MakeConfig) -> None:
    console, file = _console(terminal=False)

    train(tiny_config("bc"), callbacks=[ProgressCallback(console)])

    assert "note: kept the best 1 of 2 episodes" in file.getvalue().splitlines()[1:8]


def test_on_a_terminal_one_picture_shows_how_far_the_run_has_come(clock: list[float]) -> None:
    console, file = _console(terminal=True)
    shown = ProgressCallback(console)
    state = blank_state(1000, run_dir=Path("runs/one"))

    shown.on_train_start(state)
    clock[0] += 2.0
    state.global_step = 400
    shown.on_update_end(state, {"critic_loss": 0.123456, "actor_loss": -2.0, "grad_norm_actor": 7.0})
    state.best_score, state.best_step = -150.0, 200
    shown.on_eval_end(state, {"return_mean": -180.25, "length_mean": 200.0})
    shown.on_train_end(state)

    text = _plain(file.getvalue())
    assert "run         runs/one" in text
    assert "400/1000" in text
    # 400 updates in 2 seconds, so the 600 that are left take 3.
    assert "200 updates/s  0:00:03 left" in text
    assert "critic_loss 0.1235  actor_loss -2" in text
    assert "grad_norm" not in text
    assert "return_mean -180.2  best -150 at 200" in text


@pytest.mark.parametrize("done", [0, 1, 500, 999, 1000])
def test_the_bar_always_has_the_same_length(clock: list[float], done: int) -> None:
    console, file = _console(terminal=True)
    shown = ProgressCallback(console)
    state = blank_state(1000, run_dir=Path("runs/one"), global_step=done)

    console.print(shown.table(state))

    bar = re.search("[━╺─]+", _plain(file.getvalue()))
    assert bar is not None
    assert len(bar.group()) == 30


def test_a_run_on_a_terminal_gives_the_cursor_back(tiny_config: MakeConfig) -> None:
    console, file = _console(terminal=True)

    train(tiny_config("td3_bc"), callbacks=[ProgressCallback(console)])

    text = file.getvalue()
    assert "20/20" in _plain(text)
    assert "return_mean" in _plain(text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_a_run_that_fails_gives_the_cursor_back_too(tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    console, file = _console(terminal=True)
    shown = ProgressCallback(console)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shown, "on_eval_end", fail)

    with pytest.raises(ZeroDivisionError):
        train(tiny_config("td3_bc"), callbacks=[shown])

    assert file.getvalue().count("\x1b[?25h") == 1


def test_before_the_first_update_the_time_left_is_not_known(clock: list[float]) -> None:
    shown = ProgressCallback(_console(terminal=False)[0])
    state = blank_state(10, run_dir=Path("runs/one"))
    shown.on_train_start(state)

    assert shown.time_left(state) == "?"


def test_speed_counts_from_where_a_resumed_run_went_on(clock: list[float]) -> None:
    shown = ProgressCallback(_console(terminal=False)[0])
    state = blank_state(1000, run_dir=Path("runs/one"), global_step=500)
    shown.on_train_start(state)
    clock[0] += 10
    state.global_step = 600

    assert shown.speed(state) == pytest.approx(10)
    assert shown.time_left(state) == "0:00:40"


def test_a_compiled_run_says_why_its_start_is_slow(clock: list[float]) -> None:
    console, file = _console(terminal=False)

    ProgressCallback(console).on_train_start(blank_state(10, run_dir=Path("runs/one"), compiled=True))

    assert "compiling the update" in file.getvalue()


def test_square_brackets_in_a_path_are_shown_as_they_are(clock: list[float]) -> None:
    console, file = _console(terminal=False)

    ProgressCallback(console).on_train_start(blank_state(10, run_dir=Path("runs/[red]x")))

    assert file.getvalue() == "run         runs/[red]x\n"
