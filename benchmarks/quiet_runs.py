"""Runs that neither log nor evaluate nor save by themselves, and steps of their loop."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from rl_training.data import TransitionDataset
from rl_training.runtime import open_session, read_options
from rl_training.runtime.loop import after_block
from rl_training.runtime.trainer import Session

NEVER = 10**9


def quiet_run(
    algo: str,
    *,
    compiled: bool,
    env_id: str | None = None,
    num_envs: int | None = None,
    dataset: TransitionDataset | None = None,
    **options: Any,
) -> Session:
    """A run without an end, whose events are left to the benchmark."""
    folder = TemporaryDirectory()
    config = {
        "algo": algo,
        "env_id": env_id,
        "total_timesteps": NEVER,
        "output_dir": folder.name,
        "log_interval": NEVER,
        "checkpoint_interval": NEVER,
        "num_envs": num_envs,
        "algo_kwargs": {"eval_interval": None, "compile": "always" if compiled else "never", **options},
    }
    session = open_session(*read_options(config), dataset=dataset)
    # The folder is deleted with the session, and at the end of the process at the latest.
    session.resources.callback(folder.cleanup)
    return session


def proceed(session: Session, steps: int) -> None:
    """A number of timesteps of the loop: updates of a run on a log, or else steps of the environments."""
    if session.collector is None:
        session.learn(steps)
        after_block(session)
        return
    stop = session.state.env_steps + steps
    while session.state.env_steps < stop:
        session.collect()
        session.learn(session.next_updates())
        after_block(session)
