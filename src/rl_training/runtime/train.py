"""The uses of a policy: train, resume, evaluate, predict, collect data."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack

from rl_training.acting.evaluation import EpisodeOptions, EvaluationResult
from rl_training.acting.policy import Policy, check_networks, model_part
from rl_training.compilation.performance import keep_buffers, set_threads
from rl_training.config import TrainConfig, load_config
from rl_training.core.cores import available_cores
from rl_training.core.errors import CheckpointError, ConfigError, StorageError
from rl_training.core.options import bind, options_with
from rl_training.core.randomness import forked
from rl_training.core.signals import ENDING, answered
from rl_training.core.spaces import SpaceSpec
from rl_training.core.user_code import permit, resume_command
from rl_training.data import TransitionDataset, as_dataset, check_destination, collect_dataset, write_dataset
from rl_training.envs import GIVEN, env_id_for, is_known, make_native_env, space_spec
from rl_training.policies.saved import check_algo, load_policy
from rl_training.runtime.assembly import open_session
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoints import Saved, newest_state, read_state, settle
from rl_training.runtime.faults import traces_logged
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
from rl_training.runtime.saving import save_latest
from rl_training.runtime.trainer import Session, TrainResult
from rl_training.storage.checkpoint import LATEST, refusing_other_networks, saved_spaces
from rl_training.storage.find import find_unfinished
from rl_training.storage.run_directory import RunDirectory, read_json, refuse_taken, run_of
from rl_training.storage.sinks import check_sinks
from rl_training.storage.trust import judge_names, remember_run
from rl_training.storage.upload import check_upload

EARLIER = {"keep_checkpoints": "all"}
"""What options that runs of earlier versions do not have stood for: a run that is resumed loses no files by it."""


def train(
    config: ConfigSource | BoundConfig,
    *,
    dataset: Any = None,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
) -> TrainResult:
    """Train from a config, or what `read_options` returned; nothing is written before everything has been checked.

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
        judge_names(config.to_plain(), saved.path if saved else run.checkpoints / LATEST)
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
            _check_networks(saved, options)
        _set_up_machine_as(saved.tree["machine"] if saved else {}, threads, overrides)
        run.read_lines()
        run.identify(saved.tree.get("run", {}).get("id") if saved else None)
        tree, given = saved.tree if saved else None, _given(dataset, options)
        session = open_session(config, options, callbacks, dataset=given, run=run, tree=tree)
        if reschedule:
            session.horizon = session.plan.updates
        settle(session, saved, is_named=path.is_file(), is_changed=bool(overrides.keys() - {"upload_url"}))
        return _run(session)


def _check_networks(saved: Saved, options: RunOptions) -> None:
    """Refuse a checkpoint whose networks are not those of the options, before anything is made of them."""
    with refusing_other_networks(str(saved.path)):
        spaces, state = saved_spaces(saved.tree), model_part(saved.tree["algorithm"])
        check_networks(options.algorithm, spaces, options.hyper, state)


def _set_up_machine_as(before: dict[str, Any], threads: int | None, overrides: Mapping[str, Any]) -> None:
    """Set up the machine as it was, and say if it is not the same."""
    wanted, cores = before.get("threads"), available_cores()
    if threads is None and wanted is not None and wanted > cores:
        fewer = f"the run was made with {wanted} threads, and this process may use {cores} of the machine's cores"
        warnings.warn(f"{fewer}: it goes on with {cores}, and results may differ in the last digits", stacklevel=3)
        wanted = cores
    set_threads(threads or wanted)
    if "compile" in overrides.get("algo_kwargs", {}):
        before["compiled"] = None
    started = before.get("torch", torch.__version__)
    if started != torch.__version__:
        warnings.warn(
            f"the run was made with torch {started}, this is {torch.__version__}: results may differ", stacklevel=3
        )


def _given(dataset: Any, options: RunOptions) -> TransitionDataset | None:
    """Data that was passed as an object."""
    if dataset is None:
        return None
    if options.mode == "online":
        raise ConfigError("a dataset does not go with mode: online; set mode: offline_to_online or offline")
    return as_dataset(dataset)


def _require_env(env_id: str, run_dir: Path) -> None:
    """Say which environment a run was given as an object, where it is not known any more."""
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
        raise CheckpointError(
            f"{str(path)!r} does not belong to a run directory: there is no {run_dir / 'config.yaml'}"
        )
    return run_dir


def _run(session: Session) -> TrainResult:
    keep_buffers()
    try:
        with _stop_on_signals(session):
            session.run.open_sinks(session.config)
            return train_session(session)
    except StorageError as error:
        if not (session.run.checkpoints / LATEST).is_file():
            raise
        raise StorageError(f"{error}; then go on with: {resume_command(str(session.run.path))}") from None


def _stop_on_signals(session: Session) -> AbstractContextManager[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the run after the current update, with a checkpoint.

    A Ctrl-C after that ends it at once. Another SIGTERM does not: supervisors send it to the workers of a sweep, whose
    leader passes it on to them.
    """

    def stop(number: int, _frame: object) -> None:
        session.state.interrupt(f"interrupted by {signal.Signals(number).name}", signal=number)
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return answered(ENDING, stop)


def evaluate(
    path: str | Path, *, episodes: int | None = None, num_envs: int | None = None, **options: Unpack[EpisodeOptions]
) -> EvaluationResult:
    """Raw returns of a checkpoint's policy over episodes with fixed seeds; the options are those of `SavedPolicy`."""
    return load_policy(path).evaluate(episodes=episodes, num_envs=num_envs, **options)


def collect(
    out: str,
    *,
    checkpoint: str | Path | None = None,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    stochastic: bool = True,
    seed: int = 0,
) -> TransitionDataset:
    """Let a checkpoint's policy, or one that acts at random, make a dataset, and write it.

    Rewards are raw. The environment is the checkpoint's own unless another is named.
    """
    if (steps is None) == (episodes is None):
        raise ConfigError("give either episodes or steps")
    check_destination(out)
    saved = None if checkpoint is None else load_policy(checkpoint)
    if env_id is not None:
        permit([env_id.partition(":")[0]])
    elif saved is not None:
        env_id, env_kwargs = saved.config.env_id, saved.config.env_kwargs
    if env_id is None:
        raise ConfigError("no environment is named, and the checkpoint has none")
    make = partial(make_native_env, env_id, env_kwargs, raw_rewards=True)
    env = make()
    spaces = space_spec(env)
    if saved is not None:
        saved.spaces.check_env(spaces, env_id)
    act = None if saved is None else partial(_act, saved.policy, spaces, deterministic=not stochastic)
    with forked(seed), torch.no_grad(), traces_logged(None if saved is None else saved.run_dir):
        dataset = collect_dataset(make, act=act, size=steps, episodes=episodes, seed=seed)
    policy = "random" if saved is None else saved.config.algo
    write_dataset(dataset, out, env=env, policy=policy)
    env.close()
    return dataset


def _act(policy: Policy, spaces: SpaceSpec, obs: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
    """The action for one observation, as an environment with these spaces takes it."""
    native = policy.act(torch.from_numpy(obs)[None], deterministic=deterministic)[0]
    is_same = policy.spaces.action == spaces.action
    actions: NDArray[Any] = (native if is_same else spaces.action.confine(native)).numpy()
    return actions


def predict(
    path: str | Path,
    obs: ArrayLike | Mapping[str, ArrayLike],
    *,
    valid_actions: ArrayLike | None = None,
    deterministic: bool = True,
    allow_nan: bool = False,
) -> NDArray[Any]:
    """Actions of a checkpoint's policy in native units, for one observation or a batch.

    Rows with NaN or infinity are refused, unless `allow_nan`. A policy that was trained with masks of choices needs
    `valid_actions`.
    """
    return load_policy(path).predict(obs, valid_actions=valid_actions, deterministic=deterministic, allow_nan=allow_nan)
