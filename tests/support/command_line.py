"""The command in this process: what tests of it share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rl_training import cli
from rl_training.core.user_code import IMPORTED

TINY = (
    "total_timesteps=20",
    "eval_episodes=1",
    "log_interval=10",
    "checkpoint_interval=10",
    "algo_kwargs.dataset_size=400",
    "algo_kwargs.batch_size=16",
    "algo_kwargs.eval_interval=10",
    "algo_kwargs.hidden_sizes=[8, 8]",
)
"""Overrides that make a packaged config a run of a moment."""


class Answer(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


def call_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """Call the entry point with these arguments; only what it prints itself is in the answer."""
    monkeypatch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
    capsys.readouterr()
    # Users' modules that an earlier command of this process has imported are none of this one's.
    earlier, IMPORTED[:] = IMPORTED[:], []
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        IMPORTED[:] = earlier
    code = caught.value.code or 0
    assert isinstance(code, int)
    return Answer(code, *capsys.readouterr())
