"""Runs by name or by their options: the same command starts a run, and in a restarted job goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.core.options import options_with
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoints import saved_config
from rl_training.runtime.run_options import BoundConfig, ConfigSource, RunOptions, read_options
from rl_training.runtime.train import resume, train
from rl_training.runtime.trainer import TrainResult
from rl_training.storage.find import is_finished, is_run
from rl_training.storage.trust import remember_run
from rl_training.storage.upload import fetch_if_missing


def train_or_resume(
    config: ConfigSource | BoundConfig, *, callbacks: Sequence[Callback] = (), threads: int | None = None
) -> TrainResult:
    """Go on with the run of the config's `run_name` if there is one in its `output_dir`, else start it.

    A run that is not there, but has been uploaded to the config's `upload_url`, is fetched first. The run must have
    been started with the same options. Its length may be another.
    """
    config, options = read_options(config)
    if config.run_name is None:
        raise ConfigError("run_name is required: the run to go on with is found by its name")
    run_dir = Path(config.output_dir, config.run_name)
    fetched = fetch_if_missing(config)
    if not is_run(run_dir):
        return train((config, options), callbacks=callbacks, threads=threads)
    stored = saved_config(run_dir)
    _refuse_other_options(run_dir, stored, options.resolve(config))
    if fetched is not None:
        # It has the options of this command, and so names no other code.
        remember_run(fetched, config.to_plain())
    now, before = config.to_plain(), stored.to_plain()
    overrides = {name: now[name] for name in ("total_timesteps", "upload_url") if now[name] != before[name]}
    return resume(run_dir, callbacks=callbacks, threads=threads, **overrides)


def train_missing(
    config: ConfigSource | BoundConfig, *, callbacks: Sequence[Callback] = (), threads: int | None = None
) -> TrainResult:
    """As `train_or_resume`; without a name, go on with the run in `output_dir` that has the same options."""
    config, options = read_options(config)
    if config.run_name is not None:
        return train_or_resume((config, options), callbacks=callbacks, threads=threads)
    run_dir = find_same(config, options)
    if run_dir is None:
        return train((config, options), callbacks=callbacks, threads=threads)
    return resume(run_dir, callbacks=callbacks, threads=threads)


def find_same(config: TrainConfig, options: RunOptions) -> Path | None:
    """The run in `output_dir` with the same options, seed and length, and the same name or none.

    Of several, one that has ended is taken, or else the newest.
    """
    given, parent = options.resolve(config), Path(config.output_dir)
    if config.run_name is not None:
        found = [parent / config.run_name]
    else:
        found = sorted(parent.glob(f"{config.algo}*")) if parent.is_dir() else []
    same = [path for path in found if is_run(path) and _is_same(path, given)]
    return next((path for path in reversed(same) if is_finished(path)), same[-1] if same else None)


def _is_same(run_dir: Path, given: TrainConfig) -> bool:
    try:
        stored = load_config(run_dir / "config.yaml")
    except ConfigError:
        return False
    has_name = run_dir.name == given.run_name if given.run_name else stored.run_name is None
    return has_name and stored.total_timesteps == given.total_timesteps and not _other_options(stored, given)


def _other_options(stored: TrainConfig, given: TrainConfig) -> list[str]:
    """The options in which a run differs from a command, with both values."""
    before, now = defining_options(stored), defining_options(given)
    return [
        f"{name}: {before[name]}, not {now[name]}"
        for name in now
        if name in before and not _agree(name, before[name], now[name])
    ]


def _agree(name: str, before: Any, now: Any) -> bool:
    """Whether two values of an option are the same; what columns of a table left open was found in the data."""
    if name != "dataset_columns" or (now and not before):
        return bool(before == now)
    return not now or all(_columns_agree(before.get(key), value) for key, value in now.items() if value)


def _columns_agree(names: Any, patterns: Any) -> bool:
    """Whether the names of columns, or a name, are those that patterns stand for."""
    if isinstance(patterns, str) or isinstance(names, str):
        return bool(names == patterns)
    matches = [[fnmatchcase(name, pattern) for pattern in patterns] for name in names or ()]
    return bool(matches) and all(map(any, matches)) and all(map(any, zip(*matches, strict=True)))


def _refuse_other_options(run_dir: Path, stored: TrainConfig, given: TrainConfig) -> None:
    """Refuse to go on with a run that has other options than the command; say which."""
    if others := _other_options(stored, given):
        shown = "; ".join(others[:5])
        raise ConfigError(f"the run {str(run_dir)!r} has other options ({shown}): choose another run_name")


def defining_options(config: TrainConfig) -> dict[str, Any]:
    """The options that decide what a run learns, by name, but for its length."""
    values = config.to_plain()
    kwargs = values.pop("algo_kwargs")
    loose = {*options_with("incidental", TrainConfig), "total_timesteps"} - {"seed"}
    return {name: value for name, value in {**values, **kwargs}.items() if name not in loose}
