"""Putting a run together: spaces, data, algorithm, what it draws from and acts in, and last of all its directory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.data import (
    Hindsight,
    Ratio,
    ReplayBuffer,
    Source,
    TransitionDataset,
    UniformSource,
    hindsight_source,
    source_for,
    with_annotations,
    with_n_step,
)
from rl_training.envs import goal_task, make_env, make_vector_env, reward_transform
from rl_training.reading import Rollout
from rl_training.rewards import RewardTransformConfig
from rl_training.runtime.artifacts import RunDirectory
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.collecting import Collector, LocalCollector, Stepper
from rl_training.runtime.datasets import Data, find_spaces, load_data
from rl_training.runtime.diagnostics import diagnose
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.fine_tuning import FineTuning, begin_with_checkpoint
from rl_training.runtime.option_groups import ControlOptions
from rl_training.runtime.options import RunOptions, check_action_kind
from rl_training.runtime.performance import can_compile, default_device, should_compile
from rl_training.runtime.plan import Plan, rollout_rows
from rl_training.runtime.policy import Policy
from rl_training.runtime.replay_store import ReplayStore
from rl_training.runtime.session import Session
from rl_training.runtime.session_state import load_session
from rl_training.runtime.state import TrainerState
from rl_training.spaces import SpaceSpec
from rl_training.types import CheckpointError, ConfigError, DatasetError, nearest

PRIOR_STREAM = 0x9E3779B9
"""Added to a run's seed for the draws of prior data: those from the buffer have the seed itself, and both parts of a
batch would be chosen by the same numbers. Far from any seed in use, within the 32 bits that the generator looks at."""


@dataclass(frozen=True)
class Feed:
    """What a run draws its batches from, and what it knows about it."""

    source: Source
    rows: int
    """Logged transitions that are trained on."""
    notes: tuple[str, ...] = ()
    buffer: ReplayBuffer | None = None


def open_session(
    config: TrainConfig,
    options: RunOptions,
    callbacks: Sequence[Callback] = (),
    *,
    run: RunDirectory | None = None,
    tree: Mapping[str, Any] | None = None,
) -> Session:
    """Every part of a run, new or continued from a checkpoint's tree in an existing directory."""
    device = default_device(config.device)
    data = None if options.mode == "online" else load_data(config, options)
    if tree is not None and tree["trainer"]["fingerprint"] != _fingerprint(data):
        raise CheckpointError("the data is not what the run was trained on: its fingerprint differs; start a new run")
    spaces = find_spaces(config) if data is None else data.spaces
    if spaces is None:
        raise ConfigError("env_id is required: a run that acts needs an environment")
    check_action_kind(options.algorithm, spaces, config.env_id or "the data")
    torch.manual_seed(config.seed)
    algorithm = _build(options, spaces, data, device)
    rewards = [each.resolve() for each in _reward_transforms(config, options, data)]
    if options.online.initial_checkpoint is not None and tree is None:
        begin_with_checkpoint(algorithm, spaces, config, options, rewards)
    resources = ExitStack()
    feed = _make_feed(config, options, algorithm, data, device, resources=resources)
    plan, updates_per_epoch = _make_plan(config, options, algorithm, feed.rows)
    notes = feed.notes if plan.updates else (*feed.notes, "no update will be made: the run ends before learning starts")
    saved = None if tree is None else tree["machine"]["compiled"]
    compiled = should_compile(options.loop.compile, plan.updates) if saved is None else can_compile(saved)
    if compiled:
        algorithm.compile_steps()
    held_out = None if data is None else data.dataset.validation
    if options.controls.early_stopping is not None:
        _check_metric(options.controls.early_stopping.metric, algorithm, config, held_out)
        callbacks = [EarlyStoppingCallback(options.controls.early_stopping), *callbacks]
    policy = Policy.sharing(algorithm, spaces)
    collector = None if feed.buffer is None else _make_collector(config, options, policy, feed.buffer)
    config = options.resolve(config)
    if run is None:
        about: dict[str, Any] = {"compiled": compiled, "threads": torch.get_num_threads()}
        if data is not None:
            about["data"] = data.describe(feed.rows, feed.notes)
        run = RunDirectory.create(config, subject=config.env_id or options.data.name(), metadata=about)
    session = Session(
        config=config,
        spaces=spaces,
        algorithm=algorithm,
        source=feed.source,
        loop=options.loop,
        controls=options.controls,
        state=TrainerState(config.algo, run.path, plan.total, notes=notes, compiled=compiled),
        run=run,
        evaluate=partial(_evaluate, algorithm, policy, config, held_out),
        best_metric=_best_metric(config, options.controls),
        fingerprint=_fingerprint(data),
        rewards=rewards,
        plan=plan,
        horizon=plan.updates,
        updates_per_epoch=updates_per_epoch,
        data_return=None if data is None else data.mean_return,
        collector=collector,
        # The rows of a rollout are part of the source's state.
        store=ReplayStore(run.path / "replay", feed.buffer)
        if feed.buffer is not None and not isinstance(algorithm.reads, Rollout)
        else None,
        saves_replay=options.online.save_replay,
        fine_tuning=_fine_tuning(options),
        callbacks=callbacks,
        resources=resources,
    )
    if tree is not None:
        load_session(session, tree)
    return session


def _fingerprint(data: Data | None) -> str:
    return "" if data is None else data.fingerprint


def _build(options: RunOptions, spaces: SpaceSpec, data: Data | None, device: torch.device) -> Algorithm:
    algorithm = options.algorithm.build(spaces, options.hyper).to(device)
    if data is not None and data.dataset.obs_mean is not None and data.dataset.obs_std is not None:
        algorithm.set_obs_statistics(data.dataset.obs_mean, data.dataset.obs_std)
    return algorithm


def _make_feed(
    config: TrainConfig,
    options: RunOptions,
    algorithm: Algorithm,
    data: Data | None,
    device: torch.device,
    *,
    resources: ExitStack,
) -> Feed:
    loop = options.loop
    seed = config.seed if options.mode == "offline" else config.seed + PRIOR_STREAM
    dataset = None if data is None else data.dataset.to(device).with_seed(seed)
    hindsight = _hindsight(config, options, resources) if options.online.replay == "hindsight" else None
    transform = _applied(_reward_transforms(config, options, data))
    gamma, relabelled = getattr(algorithm.hyper, "gamma", 1.0), None
    if (
        dataset is not None
        and hindsight is not None
        and (options.mode == "offline" or "achieved_goals" in dataset.fields)
    ):
        relabelled = hindsight_source(
            dataset, algorithm.reads, hindsight, gamma=gamma, n_step=loop.n_step, transform=transform
        )
    elif dataset is not None and loop.n_step > 1:
        dataset = with_n_step(dataset, loop.n_step, gamma)
    if options.mode == "offline":
        feed = make_feed(algorithm, dataset, relabelled=relabelled)
        if feed.rows < loop.min_buffer_size:
            raise DatasetError(f"the data has {feed.rows} transitions, min_buffer_size is {loop.min_buffer_size}")
        return feed
    reads = algorithm.reads
    rollout = None if not isinstance(reads, Rollout) else rollout_rows(algorithm.number(reads.steps), config.num_envs)
    buffer = ReplayBuffer(
        capacity=rollout or options.online.buffer_capacity,
        obs_dim=algorithm.model.obs_dim,
        action_dim=algorithm.model.action_dim,
        columns={"actions": algorithm.action_space.column, **algorithm.extra_columns()},
        num_envs=config.num_envs or 1,
        gamma=gamma,
        n_step=loop.n_step,
        transform=transform,
        seed=config.seed,
        device=device,
        # Annotations of a ring are computed over whole episodes; those of a rollout over what there is of them.
        whole_episodes=algorithm.reads.needs_episodes or algorithm.annotate_every != "rollout",
        needs=algorithm.needs,
        failure_reward=getattr(algorithm.hyper, "failure_reward", None),
        hindsight=hindsight,
        annotates=algorithm.annotates,
    )
    return make_feed(
        algorithm, dataset, buffer, options.online.offline_batch_ratio, relabelled=relabelled, seed=config.seed
    )


def make_feed(
    algorithm: Algorithm,
    dataset: TransitionDataset | None,
    buffer: ReplayBuffer | None = None,
    ratio: Ratio = "proportional",
    *,
    relabelled: UniformSource | None = None,
    seed: int = 0,
) -> Feed:
    """Batches of logged data, of a run's own experience, or of both, with `ratio` as the share of logged data."""
    source, drawn = source_for(algorithm, dataset, buffer, ratio, relabelled=relabelled, seed=seed)
    if drawn is None:
        return Feed(source, rows=0, buffer=buffer)
    return Feed(source, len(drawn), drawn.notes, buffer)


def _hindsight(config: TrainConfig, options: RunOptions, resources: ExitStack) -> Hindsight:
    # The environment's functions of goals are used as long as the run lasts.
    env = make_env(str(config.env_id), config.env_kwargs, raw_rewards=True, with_achieved=True)
    resources.callback(env.close)
    task = goal_task(env)
    return Hindsight(
        task.goal_dim,
        task.compute_reward,
        task.compute_terminated,
        options.online.her_ratio,
        options.online.goal_selection_strategy,
    )


def _reward_transforms(
    config: TrainConfig, options: RunOptions, data: Data | None
) -> tuple[RewardTransformConfig, ...]:
    """What is done to rewards, one after the other: those of a run's own experience are treated like prior data's."""
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


def _make_collector(config: TrainConfig, options: RunOptions, policy: Policy, buffer: ReplayBuffer) -> Collector:
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
    return LocalCollector(
        policy,
        Stepper(envs, seed=config.seed),
        buffer,
        # A policy that is trained already keeps the statistics that it was trained with.
        normalize=options.mode == "online" and options.data.normalize_obs and online.initial_checkpoint is None,
    )


def _make_plan(config: TrainConfig, options: RunOptions, algorithm: Algorithm, rows: int) -> tuple[Plan, int | None]:
    """The plan of the run, and how many updates a pass over its data takes, where there are passes."""
    loop, online, controls = options.loop, options.online, options.controls
    if options.mode == "offline":
        updates_per_epoch = math.ceil(rows / loop.batch_size)
        limit, reason = controls.update_limit(config.total_timesteps, updates_per_epoch)
        return Plan(total=limit, pretrain=limit, max_updates=limit, limit_reason=reason), updates_per_epoch
    pretrain = online.offline_pretrain_updates if options.mode == "offline_to_online" else 0
    warmup = controls.warmup_steps
    if warmup is None:
        # A policy that has learned already fills the buffer better than chance does.
        warmup = 0 if pretrain or online.initial_checkpoint is not None else online.learning_starts
    plan = Plan.online(
        config.total_timesteps, online, loop, warmup=warmup, pretrain=pretrain, num_envs=config.num_envs or 1
    )
    reads = algorithm.reads
    if isinstance(reads, Rollout):
        rows, epochs = rollout_rows(algorithm.number(reads.steps), config.num_envs), algorithm.number(reads.epochs)
        plan = plan.with_rounds(rows // plan.num_envs, epochs * math.ceil(rows / loop.batch_size))
    return plan.with_update_limit(controls.max_updates), None


def _fine_tuning(options: RunOptions) -> FineTuning | None:
    online = options.online
    if options.mode == "offline" or not (online.offline_pretrain_updates or online.initial_checkpoint):
        return None
    return FineTuning(starts_with_policy=online.initial_checkpoint is not None and not online.offline_pretrain_updates)


def _evaluate(
    algorithm: Algorithm, policy: Policy, config: TrainConfig, held_out: TransitionDataset | None
) -> dict[str, dict[str, float]]:
    """One evaluation: in the environment, if there is one, and on held-out episodes, if there are any."""
    rows: dict[str, dict[str, float]] = {}
    device = policy.obs_mean.device
    if config.env_id is not None:
        result = evaluate_policy(
            policy,
            config.env_id,
            config.env_kwargs,
            episodes=config.eval_episodes,
            num_envs=config.num_envs,
            device=device,
        )
        rows["eval"] = result.metrics()
    if held_out is not None:
        rows["validation"] = diagnose(algorithm, _annotated(held_out.to(device), algorithm))
    return rows


def _annotated(dataset: TransitionDataset, algorithm: Algorithm) -> TransitionDataset:
    """Held-out episodes with the fields that the algorithm computes for its losses."""
    if not algorithm.annotates:
        return dataset
    return with_annotations(dataset, algorithm.annotate, standardizes=algorithm.standardizes)


def _check_metric(metric: str, algorithm: Algorithm, config: TrainConfig, held_out: TransitionDataset | None) -> None:
    """Refuse a metric that no evaluation of this run will report, before the run begins."""
    names: set[str] = set()
    if config.env_id is not None:
        names |= EvaluationResult(config.env_id, (0.0,), (1,), (True,)).metrics().keys()
    if held_out is not None:
        episode = held_out.take_episodes([0]).to(algorithm.obs_mean.device)
        names |= diagnose(algorithm, _annotated(episode, algorithm)).keys()
    if metric not in names:
        known = f"; there are {', '.join(sorted(names))}" if names else "; there is neither an env_id nor held-out data"
        raise ConfigError(f"early_stopping.metric {metric!r} is not reported{nearest(metric, names) or known}")


def _best_metric(config: TrainConfig, controls: ControlOptions) -> tuple[str, str] | None:
    """What decides which checkpoint is the best; without an environment only the user can say."""
    if controls.early_stopping is not None:
        return controls.early_stopping.metric, controls.early_stopping.mode
    return ("return_mean", "max") if config.env_id is not None else None
