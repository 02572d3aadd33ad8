"""Assembly of a run: spaces, data, algorithm, source, collector, and last its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from rl_training.acting import Collector, EvaluationResult, LocalCollector, Policy, Stepper, evaluate_policy
from rl_training.algorithms import Algorithm
from rl_training.compilation import can_compile, check_precision, compiled_from
from rl_training.config import TrainConfig
from rl_training.core.batches import Rollout
from rl_training.core.errors import CheckpointError, ConfigError, DatasetError, nearest
from rl_training.core.machine import default_device
from rl_training.core.rewards import RewardTransformConfig
from rl_training.core.spaces import SpaceSpec
from rl_training.data import (
    Hindsight,
    ReplayBuffer,
    Source,
    TransitionDataset,
    hindsight_source,
    source_for,
    with_n_step,
)
from rl_training.diagnostics import Guards, check_model, diagnose
from rl_training.envs import Task, goal_task, make_env, make_vector_env, reward_transform
from rl_training.ope import VALUE, PolicyValue
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.fine_tuning import FineTuning, begin_with_checkpoint
from rl_training.runtime.progress import introduce
from rl_training.runtime.run_data import RunData, find_task, load_data, log_of_run, same_keys, stored_keys, with_columns
from rl_training.runtime.run_options import RunOptions, check_action_kind
from rl_training.runtime.saving import load_session, session_tree
from rl_training.runtime.schedules import Plan, make_plan, rollout_rows
from rl_training.runtime.trainer import Session, TrainerState
from rl_training.storage import ReplayStore, RunDirectory, begin_uploads, refusing_broken_state, save_checkpoint

PRIOR_STREAM = 0x9E3779B9
"""Added to the seed for draws of prior data, since draws from the buffer use the seed itself. It is far from any seed
in use, within the 32 bits that the generator reads."""


def open_session(
    config: TrainConfig,
    options: RunOptions,
    callbacks: Sequence[Callback] = (),
    *,
    dataset: TransitionDataset | None = None,
    run: RunDirectory | None = None,
    tree: Mapping[str, Any] | None = None,
) -> Session:
    """Every part of a run, new or continued from a checkpoint's tree in an existing directory.

    A `dataset` that is given takes the place of one that options name.
    """
    device, resources, controls = default_device(config.device), ExitStack(), options.controls
    check_precision(options.hyper.precision, device)
    task = find_task(config)
    trainer = None if tree is None else tree["trainer"]
    known: dict[str, Any] = {"keep_rewards": controls.eval_fqe, "trainer": trainer}
    data = None if options.mode == "online" else load_data(config, options, task, dataset, **known)
    fingerprint = "" if data is None else data.fingerprint
    saved = fingerprint if trainer is None else trainer["fingerprint"]
    if saved != fingerprint and (data is None or not data.has_fingerprint(saved)):
        raise CheckpointError("the data is not what the run was trained on: its fingerprint differs; start a new run")
    spaces = _spaces(data or task)
    check_action_kind(options.algorithm, spaces, config.env_id or "the data")
    torch.manual_seed(config.seed)
    algorithm = options.algorithm.build(spaces, options.hyper).to(device)
    if data is not None and data.dataset.obs_mean is not None and data.dataset.obs_std is not None:
        algorithm.set_obs_statistics(data.dataset.obs_mean, data.dataset.obs_std)
    policy = Policy.sharing(algorithm, spaces)
    check_model(policy, algorithm, acts=options.mode != "offline")
    chain = _reward_chain(config, options, data)
    rewards = [each.resolve() for each in chain]
    begins = options.online.initial_checkpoint is not None and tree is None
    before = begin_with_checkpoint(algorithm, spaces, config, options, rewards) if begins else None
    source, buffer, drawn = _make_source(config, options, algorithm, data, chain, resources=resources)
    plan = make_plan(config, options, algorithm, 0 if drawn is None else len(drawn))
    notes = () if drawn is None else drawn.notes
    compiling_from = _compiling_from(options, plan, tree)
    held_out = None if data is None else data.dataset.validation
    value = None if data is None or data.logged is None else PolicyValue(log_of_run(data.logged, spaces)[0])
    if controls.early_stopping is not None:
        _check_metric(controls.early_stopping.metric, algorithm, config, held_out, has_value=value is not None)
        callbacks = [EarlyStoppingCallback(controls.early_stopping), *callbacks]
    collector = None if buffer is None else _make_collector(config, options, policy, buffer, resources)
    config = with_columns(options.resolve(config), data)
    if run is None:
        about: dict[str, Any] = {"compiled": compiling_from is not None, "threads": torch.get_num_threads()}
        about |= {} if data is None or drawn is None else {"data": data.describe(drawn)}
        about |= {} if task is None else {"env": task.about}
        run = RunDirectory.create(config, subject=config.env_id or options.data.name(), metadata=about)
    resources.callback(run.close)
    if not plan.updates:
        notes = (*notes, "no update will be made: the run ends before learning starts")
    lines = introduce(config, options, plan, data=data, task=task, compiled_from=compiling_from)
    state = TrainerState(algorithm, policy, config, run.path, plan.total, introduction=lines, notes=notes)
    state.compiled, state.compiled_from = compiling_from is not None, compiling_from or 0
    session = Session(
        config=config,
        options=options,
        spaces=spaces,
        algorithm=algorithm,
        source=source,
        plan=plan,
        state=state,
        run=run,
        guards=Guards(options.guards, algorithm, source, log=None if data is None else data.dataset, buffer=buffer),
        evaluate=partial(_evaluate, algorithm, policy, config, held_out, value, max_steps=controls.eval_max_steps),
        rewards=rewards,
        fingerprint=fingerprint,
        trained_on=stored_keys(data, before) if trainer is None else same_keys(trainer),
        data_return=None if data is None else data.mean_return,
        collector=collector,
        # The rows of a rollout are part of the source's state.
        store=None if buffer is None or isinstance(algorithm.reads, Rollout) else ReplayStore(run, buffer),
        uploader=begin_uploads(config, run, resources),
        fine_tuning=_fine_tuning(options),
        callbacks=callbacks,
        resources=resources,
    )
    state.write = lambda path: save_checkpoint(path, session_tree(session))
    if tree is not None:
        with refusing_broken_state("the state of the run"):
            load_session(session, tree)
    return session


def _compiling_from(options: RunOptions, plan: Plan, tree: Mapping[str, Any] | None) -> int | None:
    """The update from which the run is compiled: as decided at its start, or now."""
    machine = {} if tree is None else tree["machine"]
    if machine.get("compiled") is None:
        return compiled_from(options.loop.compile, plan.updates)
    # Runs of earlier versions are compiled from the start.
    begins: int = machine.get("compiled_from", 0)
    return begins if machine["compiled"] and (begins > 0 or can_compile(True)) else None


def _spaces(found: RunData | Task | None) -> SpaceSpec:
    if found is None:
        raise ConfigError("env_id is required where there is no data")
    return found.spaces


def _make_source(
    config: TrainConfig,
    options: RunOptions,
    algorithm: Algorithm,
    data: RunData | None,
    chain: Sequence[RewardTransformConfig],
    *,
    resources: ExitStack,
) -> tuple[Source, ReplayBuffer | None, TransitionDataset | None]:
    """The source of batches, the replay buffer of a run that acts, and the logged rows that batches are drawn from."""
    is_offline, online, n_step = options.mode == "offline", options.online, options.loop.n_step
    hindsight = _hindsight(config, options, resources) if online.replay == "hindsight" else None
    drawing: dict[str, Any] = {
        "gamma": getattr(algorithm.hyper, "gamma", 1.0),
        "n_step": n_step,
        "transform": _applied(chain),
        "hindsight": hindsight,
    }
    dataset, relabelled = None, None
    if data is not None:
        seed = config.seed if is_offline else config.seed + PRIOR_STREAM
        dataset = data.dataset.to(algorithm.obs_mean.device).with_seed(seed)
        if hindsight is not None and (is_offline or "achieved_goals" in dataset.fields):
            relabelled = hindsight_source(dataset, algorithm.reads, **drawing)
        elif n_step > 1:
            dataset = with_n_step(dataset, n_step, drawing["gamma"])
    buffer = None if is_offline else _make_buffer(config, options, algorithm, drawing)
    ratio = online.offline_batch_ratio
    source, drawn = source_for(algorithm, dataset, buffer, ratio, relabelled=relabelled, seed=config.seed)
    if is_offline and drawn is not None and len(drawn) < options.loop.min_buffer_size:
        least = f"min_buffer_size is {options.loop.min_buffer_size}"
        raise DatasetError(f"the data has {len(drawn)} transitions, {least}")
    return source, buffer, drawn


def _make_buffer(
    config: TrainConfig, options: RunOptions, algorithm: Algorithm, drawing: Mapping[str, Any]
) -> ReplayBuffer:
    num_envs, capacity, reads = config.num_envs or 1, options.online.buffer_capacity, algorithm.reads
    if isinstance(reads, Rollout):
        capacity = rollout_rows(algorithm.resolve_number(reads.steps), num_envs)
    return ReplayBuffer(
        capacity=capacity,
        obs_dim=algorithm.spaces.obs_dim,
        action_dim=algorithm.spaces.action_dim,
        columns={
            "obs": algorithm.spaces.obs_column,
            "actions": algorithm.action_space.column,
            **algorithm.extra_columns(),
        },
        num_envs=num_envs,
        seed=config.seed,
        device=algorithm.obs_mean.device,
        # A replay buffer is annotated over whole episodes, a rollout over the parts of episodes that it has.
        whole_episodes=reads.needs_episodes or algorithm.annotate_every != "rollout",
        needs=algorithm.needs,
        failure_reward=getattr(algorithm.hyper, "failure_reward", None),
        annotates=algorithm.annotates,
        **drawing,
    )


def _hindsight(config: TrainConfig, options: RunOptions, resources: ExitStack) -> Hindsight:
    # The run uses the environment's functions of goals until it ends.
    env = make_env(str(config.env_id), config.env_kwargs, raw_rewards=True, with_achieved=True)
    resources.callback(env.close)
    task = goal_task(env)
    functions = (task.goal_dim, task.compute_reward, task.compute_terminated)
    return Hindsight(*functions, options.online.her_ratio, options.online.goal_selection_strategy)


def _reward_chain(config: TrainConfig, options: RunOptions, data: RunData | None) -> tuple[RewardTransformConfig, ...]:
    """The transforms of rewards, one after the other; experience gets the same ones as prior data."""
    if data is not None:
        chain = data.dataset.reward_transforms
    else:
        own = options.data.reward_transform()
        chain = tuple(each for each in (reward_transform(config.env_kwargs), own) if each is not None)
    return tuple(each for each in chain if each.resolve() != RewardTransformConfig().resolve())


def _applied(chain: Sequence[RewardTransformConfig]) -> Callable[[Tensor], Tensor] | None:
    if not chain:
        return None
    return lambda rewards: reduce(lambda values, each: each.apply(values), chain, rewards)


def _make_collector(
    config: TrainConfig, options: RunOptions, policy: Policy, buffer: ReplayBuffer, resources: ExitStack
) -> Collector:
    online = options.online
    envs = make_vector_env(
        str(config.env_id),
        config.env_kwargs,
        num_envs=config.num_envs or 1,
        kind=online.vector_env,
        raw_rewards=True,
        with_achieved=online.replay == "hindsight",
        native=True,
    )
    # A pretrained policy keeps the statistics that it was trained with.
    normalize = options.mode == "online" and options.data.normalize_obs and online.initial_checkpoint is None
    collector = LocalCollector(policy, Stepper(envs, seed=config.seed), buffer, normalize=normalize)
    resources.callback(collector.close)
    return collector


def _fine_tuning(options: RunOptions) -> FineTuning | None:
    online = options.online
    if options.mode == "offline" or not (online.offline_pretrain_updates or online.initial_checkpoint):
        return None
    return FineTuning(starts_with_policy=online.initial_checkpoint is not None and not online.offline_pretrain_updates)


def _evaluate(
    algorithm: Algorithm,
    policy: Policy,
    config: TrainConfig,
    held_out: TransitionDataset | None,
    value: PolicyValue | None,
    *,
    max_steps: int | None,
) -> dict[str, dict[str, float]]:
    """One evaluation: in the environment, on held-out episodes, and by the estimated value, if available."""
    rows: dict[str, dict[str, float]] = {}
    if config.env_id is not None:
        task, episodes = (config.env_id, config.env_kwargs), config.eval_episodes
        found = evaluate_policy(policy, *task, episodes=episodes, num_envs=config.num_envs, max_steps=max_steps)
        rows["eval"] = found.metrics()
    if held_out is not None:
        rows["validation"] = diagnose(algorithm, held_out)
    if value is not None:
        rows["validation"] = rows.get("validation", {}) | value.measure(policy)
    return rows


def _check_metric(
    metric: str, algorithm: Algorithm, config: TrainConfig, held_out: TransitionDataset | None, *, has_value: bool
) -> None:
    """Refuse a metric that no evaluation of this run will report, before the run begins."""
    names: set[str] = {VALUE} if has_value else set()
    if metric == VALUE and not has_value:
        raise ConfigError(f"early_stopping.metric {VALUE!r} is reported with eval_fqe: true only")
    if config.env_id is not None:
        names |= EvaluationResult(config.env_id, (0.0,), (1,), (True,)).metrics().keys()
    if held_out is not None:
        names |= diagnose(algorithm, held_out.take_episodes([0])).keys()
    if metric not in names:
        known = f"; there are {', '.join(sorted(names))}" if names else "; there is neither an env_id nor held-out data"
        raise ConfigError(f"early_stopping.metric {metric!r} is not reported{nearest(metric, names) or known}")
