"""Train and resume runs, by config, directory or name."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from rl_training.acting import check_networks, model_part
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import CheckpointError, ConfigError, StorageError
from rl_training.core.machine import available_cores, keep_buffers, set_threads
from rl_training.core.options import bind, options_with
from rl_training.core.signals import ENDING, answered
from rl_training.core.user_code import resume_command
from rl_training.data import TransitionDataset, as_dataset
from rl_training.envs import GIVEN, env_id_for, is_known
from rl_training.runtime.assembly import open_session
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.loop import train_session
from rl_training.runtime.run_options import (
    BoundConfig,
    ConfigSource,
    RunOptions,
    bind_options,
    find_algorithm,
    merge,
    option_groups,
    plain_config,
    read_options,
)
from rl_training.runtime.saving import newest_state, read_state, reconcile_directory, save_latest, saved_config
from rl_training.runtime.trainer import Session, TrainResult
from rl_training.storage import (
    LATEST,
    RunDirectory,
    check_algo,
    check_sinks,
    check_trust,
    check_upload,
    fetch_if_missing,
    find_unfinished,
    is_finished,
    is_run,
    read_json,
    refuse_taken,
    refusing_other_networks,
    remember_run,
    run_of,
    saved_spaces,
)

EARLIER = {"keep_checkpoints": "all"}
"""Values of options that runs of earlier versions lack: resuming them deletes no files."""


def train(
    config: ConfigSource | BoundConfig,
    *,
    dataset: Any = None,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
) -> TrainResult:
    """Train from a config, or the result of `read_options`; nothing is written before everything has been checked.

    `dataset` (a TransitionDataset, a mapping of arrays, or a list of episodes) takes the place of one that the config
    names, and `env` (a Gymnasium environment, or a function that makes one) that of its `env_id`.
    """
    if env is not None:
        source = config[0] if isinstance(config, tuple) else config
        config = {**plain_config(source), "env_id": env_id_for(env)}
    config, options = read_options(config)
    refuse_taken(config)
    check_sinks(config.sinks)
    check_upload(config)
    set_threads(threads)
    session = open_session(config, options, callbacks, dataset=_given(dataset, options))
    with session.resources:
        # From here on there is something to resume from, whatever happens.
        save_latest(session)
        remember_run(session.run.path, session.config.to_plain())
        return _run(session)


def resume(
    path: str | Path,
    *,
    dataset: Any = None,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
    expected_algo: str | None = None,
    reschedule: bool = False,
    **overrides: Any,
) -> TrainResult:
    """Continue a run from its directory or one of its checkpoints; it ends as it would have without the stop.

    A folder of runs, or a pattern, stands for the newest run in it that has not ended. `overrides` replace fields of
    the config, such as `total_timesteps`; a run of another algorithm than the expected one is refused. A run that was
    given its `dataset` or its `env` as an object needs it again. Of a directory, the newest checkpoint that is whole is
    taken; files that belong to another run are refused. Schedules keep the length they were planned for, or,
    with `reschedule`, stretch over the new total.
    """
    path = find_unfinished([path])
    with closing(RunDirectory.take(_run_dir(path))) as run:
        saved = read_state(run, path) if path.is_file() else newest_state(run)
        config = TrainConfig(**{**EARLIER, **saved.tree["config"]}) if saved else load_config(run.path / "config.yaml")
        check_trust(config.to_plain(), saved.path if saved else run.checkpoints / LATEST)
        if env is not None:
            env_id_for(env, known_as=str(config.env_id))
        elif config.env_id is not None and config.env_id.startswith(GIVEN):
            _require_env(config.env_id, run.path)
        check_algo(saved.path if saved else run.path, config.algo, expected_algo)
        _check_overrides(overrides, config)
        config = bind(merge(config.to_plain(), overrides), TrainConfig)[0]
        options = bind_options(config)
        check_sinks(config.sinks)
        check_upload(config, run)
        if saved is not None:
            # Refuse networks that are not those of the options, before they are built.
            with refusing_other_networks(str(saved.path)):
                spaces, networks = saved_spaces(saved.tree), model_part(saved.tree["algorithm"])
                check_networks(options.algorithm, spaces, options.hyper, networks)
        _set_up_machine_as(saved.tree["machine"] if saved else {}, threads, overrides)
        run.read_lines()
        run.identify(saved.tree.get("run", {}).get("id") if saved else None)
        tree, given = saved.tree if saved else None, _given(dataset, options)
        session = open_session(config, options, callbacks, dataset=given, run=run, tree=tree)
        if reschedule:
            session.horizon = session.plan.updates
        reconcile_directory(session, saved, is_named=path.is_file(), is_changed=bool(overrides.keys() - {"upload_url"}))
        return _run(session)


def _set_up_machine_as(before: dict[str, Any], threads: int | None, overrides: Mapping[str, Any]) -> None:
    """Set up the machine as at the start of the run, and warn of differences."""
    wanted, cores = before.get("threads"), available_cores()
    if threads is None and wanted is not None and wanted > cores:
        fewer = f"the run was made with {wanted} threads, and this process may use {cores} of the machine's cores"
        warnings.warn(f"{fewer}: it continues with {cores}, and results may differ in the last digits", stacklevel=3)
        wanted = cores
    set_threads(threads or wanted)
    if "compile" in overrides.get("algo_kwargs", {}):
        before["compiled"] = None
    now = str(torch.__version__)
    if (started := before.get("torch", now)) != now:
        warnings.warn(f"the run was made with torch {started}, this is {now}: results may differ", stacklevel=3)


def _given(dataset: Any, options: RunOptions) -> TransitionDataset | None:
    """The dataset that was passed as an object."""
    if dataset is None:
        return None
    if options.mode == "online":
        raise ConfigError("a dataset does not go with mode: online; set mode: offline_to_online or offline")
    return as_dataset(dataset)


def _require_env(env_id: str, run_dir: Path) -> None:
    """Refuse a run whose environment was passed as an object and is not known in this process."""
    if is_known(env_id):
        return
    about = read_json(run_dir / "metadata.json").get("env", {})
    wrappers = f" in {', '.join(about['wrappers'])}" if about.get("wrappers") else ""
    made = f" ({about['class']}{wrappers})" if "class" in about else ""
    raise ConfigError(f"{env_id} was passed as an object{made}: pass it again, as env=")


def _check_overrides(overrides: Mapping[str, Any], config: TrainConfig) -> None:
    """Refuse overrides of options that a run keeps; a run that acts keeps more of them."""
    kwargs, acts = overrides.get("algo_kwargs"), config.algo_kwargs.get("mode", "offline") != "offline"
    given = {*overrides, *(kwargs if isinstance(kwargs, Mapping) else ())}
    kept = options_with("resume", TrainConfig, *option_groups(find_algorithm(config.algo)))
    fixed = [name for name, when in kept.items() if name in given and (acts or when == "fixed")]
    if fixed:
        raise ConfigError(f"a run keeps its {fixed[0]}: leave it out, or start a new run")


def _run_dir(path: Path) -> Path:
    """The directory of the run that a directory or a checkpoint belongs to."""
    run_dir = path if path.is_dir() else run_of(path.resolve())
    if not (run_dir / "config.yaml").is_file():
        raise CheckpointError(f"{str(path)!r} is not part of a run directory: there is no {run_dir / 'config.yaml'}")
    return run_dir


def _run(session: Session) -> TrainResult:
    """Train. Ctrl-C, SIGTERM and SIGHUP end the run after the current update, with a checkpoint.

    A Ctrl-C after that ends it at once. Another SIGTERM does not: supervisors send it to the workers of a sweep, whose
    leader passes it on to them.
    """

    def stop(number: int, _frame: object) -> None:
        session.state.interrupt(f"interrupted by {signal.Signals(number).name}", signal=number)
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    keep_buffers()
    try:
        with answered(ENDING, stop):
            session.run.open_sinks(session.config)
            return train_session(session)
    except StorageError as error:
        if not (session.run.checkpoints / LATEST).is_file():
            raise
        raise StorageError(f"{error}; then resume with: {resume_command(str(session.run.path))}") from None


def train_or_resume(
    config: ConfigSource | BoundConfig, *, callbacks: Sequence[Callback] = (), threads: int | None = None
) -> TrainResult:
    """Resume the run of the config's `run_name` if there is one in its `output_dir`, else start it.

    A run that is not there, but has been uploaded to the config's `upload_url`, is fetched first. The run must have
    been started with the same options. Its length may be another.
    """
    config, options = read_options(config)
    if config.run_name is None:
        raise ConfigError("run_name is required: the run to resume is found by its name")
    run_dir = Path(config.output_dir, config.run_name)
    fetched = fetch_if_missing(config)
    if not is_run(run_dir):
        return train((config, options), callbacks=callbacks, threads=threads)
    stored = saved_config(run_dir)
    if others := _other_options(stored, options.resolve(config)):
        shown = "; ".join(others[:5])
        raise ConfigError(f"the run {str(run_dir)!r} has other options ({shown}): choose another run_name")
    if fetched is not None:
        # It has the options of this command, and so names no other code.
        remember_run(fetched, config.to_plain())
    now, before = config.to_plain(), stored.to_plain()
    overrides = {name: now[name] for name in ("total_timesteps", "upload_url") if now[name] != before[name]}
    return resume(run_dir, callbacks=callbacks, threads=threads, **overrides)


def train_missing(
    config: ConfigSource | BoundConfig, *, callbacks: Sequence[Callback] = (), threads: int | None = None
) -> TrainResult:
    """As `train_or_resume`; without a name, resume the run in `output_dir` that has the same options."""
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
    found = sorted(parent.glob(f"{config.algo}*")) if config.run_name is None else [parent / config.run_name]
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
    """Whether two values of an option agree; columns of a table that were left open are found in the data."""
    if name != "dataset_columns" or (now and not before):
        return bool(before == now)
    return not now or all(_columns_agree(before.get(key), value) for key, value in now.items() if value)


def _columns_agree(names: Any, patterns: Any) -> bool:
    """Whether column names, or one name, match patterns."""
    if isinstance(patterns, str) or isinstance(names, str):
        return bool(names == patterns)
    matches = [[fnmatchcase(name, pattern) for pattern in patterns] for name in names or ()]
    return bool(matches) and all(map(any, matches)) and all(map(any, zip(*matches, strict=True)))


def defining_options(config: TrainConfig) -> dict[str, Any]:
    """The options that determine the result of training, by name, except the length."""
    values = config.to_plain()
    kwargs = values.pop("algo_kwargs")
    loose = {*options_with("incidental", TrainConfig), "total_timesteps"} - {"seed"}
    return {name: value for name, value in {**values, **kwargs}.items() if name not in loose}
