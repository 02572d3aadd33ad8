"""Runs by name: the same command starts a run, and in a restarted job goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.binding import options_with
from rl_training.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.finding import is_run
from rl_training.runtime.options import BoundConfig, ConfigSource, read_options
from rl_training.runtime.recovery import saved_config
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import resume, train
from rl_training.types import ConfigError


def train_or_resume(
    config: ConfigSource | BoundConfig, *, callbacks: Sequence[Callback] = (), threads: int | None = None
) -> TrainResult:
    """Go on with the run of the config's `run_name` if there is one in its `output_dir`, else start it.

    The run must have been started with the same options. Its length may be another.
    """
    config, options = read_options(config)
    if config.run_name is None:
        raise ConfigError("run_name is required: the run to go on with is found by its name")
    run_dir = Path(config.output_dir, config.run_name)
    if not is_run(run_dir):
        return train((config, options), callbacks=callbacks, threads=threads)
    stored = saved_config(run_dir)
    _refuse_other_options(run_dir, stored, options.resolve(config))
    changed = config.total_timesteps != stored.total_timesteps
    overrides: dict[str, Any] = {"total_timesteps": config.total_timesteps} if changed else {}
    return resume(run_dir, callbacks=callbacks, threads=threads, **overrides)


def _refuse_other_options(run_dir: Path, stored: TrainConfig, given: TrainConfig) -> None:
    """Refuse to go on with a run that has other options than the command; say which."""
    before, now = _flat(stored), _flat(given)
    if now.get("dataset_columns") is None:
        # Data in the mapped form says itself what its columns are, and the run has written that down.
        now.pop("dataset_columns", None)
    others = [
        f"{name}: {before[name]}, not {now[name]}" for name in now if name in before and before[name] != now[name]
    ]
    if others:
        shown = "; ".join(others[:5])
        raise ConfigError(f"the run {str(run_dir)!r} has other options ({shown}): choose another run_name")


def _flat(config: TrainConfig) -> dict[str, Any]:
    """The options that define a run, by name."""
    values = config.to_plain()
    kwargs = values.pop("algo_kwargs")
    loose = {*options_with("incidental", TrainConfig), "total_timesteps"} - {"seed"}
    return {name: value for name, value in {**values, **kwargs}.items() if name not in loose}
