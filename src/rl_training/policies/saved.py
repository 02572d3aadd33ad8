"""A trained policy from a checkpoint: load, evaluate, record, play, collect, predict, also for rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack

from rl_training.acting import (
    Acting,
    EpisodeOptions,
    EvaluationResult,
    Policy,
    evaluate_policy,
    play_policy,
    record_policy,
)
from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError, DamagedError, DatasetError
from rl_training.core.seeds import forked
from rl_training.core.spaces import SpaceSpec
from rl_training.core.user_code import trust
from rl_training.data import (
    LONGEST_EPISODE,
    ColumnsConfig,
    TableFiles,
    TransitionDataset,
    check_destination,
    collect_dataset,
    read_observations,
    table_kind,
    write_dataset,
)
from rl_training.data.tables import feature_names
from rl_training.envs import make_native_env, named_env, space_spec
from rl_training.runtime import bind_hyper, find_algorithm, merge, read_saved_config, traces_logged
from rl_training.storage import (
    POLICY_ONLY,
    check_algo,
    find_checkpoint,
    is_run,
    load_checkpoint,
    numbered_checkpoints,
    open_checkpoint,
    refusing_broken_state,
    refusing_other_networks,
    run_of,
    save_checkpoint,
    saved_spaces,
)

if TYPE_CHECKING:
    from rl_training.policies.export.bundle import Export


CHUNK = 1024
"""Observations per call of a policy; some policies evaluate a hundred actions for each."""


@dataclass(frozen=True)
class SavedPolicy:
    """A trained policy with the config of its run and its checkpoint."""

    policy: Policy
    config: TrainConfig
    tree: dict[str, Any]
    path: Path | None = None
    """The file of the checkpoint, if it was read from one."""

    @property
    def spaces(self) -> SpaceSpec:
        """The spaces that the policy was trained for."""
        return self.policy.spaces

    def save(self, path: str | Path) -> None:
        """Write the checkpoint that this was loaded from."""
        save_checkpoint(Path(path), self.tree)

    def evaluate(
        self, *, episodes: int | None = None, num_envs: int | None = None, **options: Unpack[EpisodeOptions]
    ) -> EvaluationResult:
        """Evaluate on raw rewards, with fixed seeds, in the run's own environment or in another that fits.

        `env` is the name of an environment, an environment, or a function that makes one. `env_kwargs` are written into
        those of the run, or given to the other environment. The first episode starts from `seed`. A policy that is not
        `deterministic` samples its actions.
        """
        count = self.config.eval_episodes if episodes is None else episodes
        run = partial(evaluate_policy, num_envs=num_envs or self.config.num_envs)
        return self._run(run, count, **options)

    @property
    def run_dir(self) -> Path | None:
        """The directory of the run that the checkpoint is in; None if it is in none."""
        folder = None if self.path is None else run_of(self.path.resolve())
        return folder if folder is not None and is_run(folder) else None

    def record(self, path: str | Path, *, episodes: int = 1, **options: Unpack[EpisodeOptions]) -> EvaluationResult:
        """Write a video (.mp4 or .gif) of the episodes of `evaluate`, one after the other; the options are the same."""
        return self._run(partial(record_policy, Path(path)), episodes, **options)

    def play(self, *, episodes: int = 1, **options: Unpack[EpisodeOptions]) -> EvaluationResult:
        """Show the episodes of `evaluate` in a window, one after the other; the options are the same."""
        return self._run(play_policy, episodes, **options)

    def _run(
        self,
        run: Callable[..., EvaluationResult],
        episodes: int,
        *,
        env: Any = None,
        env_kwargs: Mapping[str, Any] | None = None,
        **acting: Unpack[Acting],
    ) -> EvaluationResult:
        """Run episodes in the named environment with the step limit of the run."""
        config = self.config
        if episodes < 1:
            raise ConfigError(f"at least 1 episode is needed, got {episodes}")
        if isinstance(env, str):
            trust([env.partition(":")[0]])
        env = config.env_id if env is None else env
        if env is None:
            raise ConfigError("the run has no env_id: name an environment, with --env or as env=")
        is_own = isinstance(env, str) and env == config.env_id
        kwargs = merge(dict(config.env_kwargs) if is_own else {}, env_kwargs or {})
        most = config.algo_kwargs.get("eval_max_steps", LONGEST_EPISODE)
        with named_env(env) as env_id, traces_logged(self.run_dir):
            return run(self.policy, env_id, kwargs, episodes=episodes, max_steps=most, **acting)

    def predict(
        self,
        obs: ArrayLike | Mapping[str, ArrayLike],
        *,
        valid_actions: ArrayLike | None = None,
        deterministic: bool = True,
        allow_nan: bool = False,
    ) -> NDArray[Any]:
        """Actions in native units for one observation or a batch; the same call gives the same actions.

        If the environment gives dictionaries, an observation may be such a dictionary. A policy that was trained with
        action masks needs `valid_actions`, 1 for each valid action, as an argument or in that dictionary. Rows with NaN
        or infinity are refused, unless `allow_nan`: the action for them means nothing.
        """
        rows = self.spaces.encode(obs if valid_actions is None else self.spaces.with_valid(obs, valid_actions))
        if not allow_nan:
            _refuse_not_finite(np.atleast_2d(rows))
        with forked(self.config.seed), torch.no_grad():
            chunks = torch.split(torch.from_numpy(np.atleast_2d(rows)), CHUNK)
            actions = torch.cat([self.policy.act(chunk, deterministic=deterministic) for chunk in chunks]).numpy()
        found: NDArray[Any] = actions
        return found if rows.ndim == 2 else found[0]

    def predict_value(self, obs: ArrayLike | Mapping[str, ArrayLike], actions: ArrayLike) -> NDArray[Any]:
        """Values of native actions by the critics: predicted discounted returns of the transformed rewards."""
        if not hasattr(self.policy.model, "critic"):
            why = f"{self.config.algo} has no critic, so it cannot value actions"
            if POLICY_ONLY in self.tree:
                why = f"{self.path} holds a policy only, without critics: use a file in checkpoints/ of its run"
            raise ConfigError(why)
        rows, native = self._pairs(obs, actions)
        with torch.no_grad():
            values: NDArray[Any] = self.policy.values(rows, native).numpy()
        return values

    def log_probs(self, obs: ArrayLike | Mapping[str, ArrayLike], actions: ArrayLike) -> NDArray[Any] | None:
        """Log-probabilities with which the stochastic policy draws native actions, one per observation.

        Those of continuous actions are of densities in [-1, 1]. A greedy discrete action has the probability 1, all
        others 0. None if the policy has no density, as a deterministic one with continuous actions.
        """
        rows, native = self._pairs(obs, actions)
        parts = zip(torch.split(rows, CHUNK), torch.split(native, CHUNK), strict=True)
        with torch.no_grad():
            found = [self.policy.log_probs(*part) for part in parts]
        known = [each for each in found if each is not None]
        return torch.cat(known).numpy() if len(known) == len(found) else None

    def _pairs(self, obs: ArrayLike | Mapping[str, ArrayLike], actions: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """Observations (B, obs_dim) and as many native actions."""
        rows, column = np.atleast_2d(self.spaces.encode(obs)), self.spaces.action.column
        native = torch.as_tensor(np.asarray(actions), dtype=column.torch_dtype).reshape(-1, *column.shape)
        if len(native) != len(rows):
            raise ConfigError(f"got {len(rows)} observations and {len(native)} actions")
        return torch.from_numpy(rows), native

    def export(self, out: str | Path, *, dataset: Any = None, novelty: bool = True) -> Export:
        """Write the policy to a folder for use without this package: an ONNX file, its description, and a check.

        A run that was given its `dataset` as an object needs it again for `novelty`, the novelty score.
        """
        # Here, since that module imports this one, and packages that only an export needs.
        from rl_training.policies.export.bundle import export_policy

        return export_policy(self, out, dataset=dataset, novelty=novelty)


def load_policy(path: str | Path, *, algo: str | None = None) -> SavedPolicy:
    """Load the policy of a checkpoint or run directory; `algo`, if given, is its required algorithm."""
    checkpoint = find_checkpoint(path)
    try:
        tree = open_checkpoint(checkpoint, policy_only=True)
    except DamagedError as error:
        raise DamagedError(f"{error}{_whole_beside(checkpoint)}") from None
    check_algo(checkpoint, tree["config"]["algo"], algo)
    with refusing_broken_state(f"the config in {checkpoint}"):
        config, spaces = read_saved_config(tree["config"]), saved_spaces(tree)
    # Networks are initialised at random, and then loaded from the checkpoint.
    with forked(config.seed), refusing_broken_state(str(checkpoint)), refusing_other_networks(str(checkpoint)):
        acts_only = POLICY_ONLY in tree
        policy = Policy.load(
            find_algorithm(config.algo), spaces, bind_hyper(config), tree["algorithm"], acts_only=acts_only
        )
    return SavedPolicy(policy, config, tree, checkpoint)


def _whole_beside(damaged: Path) -> str:
    """A hint at a whole checkpoint beside a damaged one. It is not used by itself, since its policy is another one."""
    for path in numbered_checkpoints(damaged.parent).values():
        with suppress(CheckpointError):
            load_checkpoint(path, policy_only=True)
            return f"; the newest that is whole is {path}: use that one"
    return ""


def _refuse_not_finite(rows: NDArray[np.float32]) -> None:
    wrong = ~np.isfinite(rows)
    if wrong.any():
        (row, column), count = np.argwhere(wrong)[0], int(wrong.any(axis=1).sum())
        place = f"row {row}, column {column} is {rows[row, column]}"
        which = "1 row is" if count == 1 else f"{count} rows are"
        raise ConfigError(f"obs: {which} not finite: {place}; to act on such rows, use --allow-nan, or allow_nan=True")


def evaluate(
    path: str | Path, *, episodes: int | None = None, num_envs: int | None = None, **options: Unpack[EpisodeOptions]
) -> EvaluationResult:
    """Evaluate the policy of a checkpoint on raw rewards, over episodes with fixed seeds, as `SavedPolicy.evaluate`."""
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
    """Write a dataset of a checkpoint's policy, or of random actions.

    Rewards are raw. The environment is the checkpoint's own unless another is named.
    """
    if (steps is None) == (episodes is None):
        raise ConfigError("give either episodes or steps")
    check_destination(out)
    saved = None if checkpoint is None else load_policy(checkpoint)
    if env_id is not None:
        trust([env_id.partition(":")[0]])
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
    """The action for one observation, for an environment with these spaces."""
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

    Rows with NaN or infinity are refused, unless `allow_nan`. A policy that was trained with action masks needs
    `valid_actions`.
    """
    return load_policy(path).predict(obs, valid_actions=valid_actions, deterministic=deterministic, allow_nan=allow_nan)


def table_observations(saved: SavedPolicy, path: Path) -> NDArray[Any]:
    """The observations in a table like the one that a policy was trained on."""
    columns, kind = _table_columns(saved), table_kind(path)
    if kind is None:
        raise ConfigError(f"{str(path)!r} is no table: its name must end with .csv or .parquet")
    try:
        return read_observations(TableFiles(path, kind), columns)
    except DatasetError as error:
        raise error if str(path) in str(error) else DatasetError(f"{path}: {error}") from None


def name_actions(saved: SavedPolicy, actions: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Actions as columns of the table that a policy was trained on, discrete actions by their names."""
    columns = _table_columns(saved)
    named = np.array(columns.choices)[actions] if columns.choices else actions
    return dict(zip(columns.actions, named.reshape(len(named), -1).T, strict=True))


def observation_names(spaces: SpaceSpec, columns: ColumnsConfig) -> list[str]:
    """A name for every number of an observation, by the columns of a table; those of the action mask come first."""
    return [*(columns.valid_actions if spaces.is_masked else ()), *feature_names(columns.obs, columns)]


def _table_columns(saved: SavedPolicy) -> ColumnsConfig:
    """The columns of the table that a policy was trained on."""
    found = find_columns(saved)
    if found is None:
        raise ConfigError("the policy was not trained on a table: give its observations as a .npy or .json file")
    return found


def find_columns(saved: SavedPolicy) -> ColumnsConfig | None:
    """The columns of the table that a policy was trained on; None if it was not."""
    kwargs = saved.config.algo_kwargs
    with refusing_broken_state("the table columns of the policy"):
        parts = [kwargs, *(kwargs.get("dataset_mix") or ())]
        found: list[Mapping[str, Any]] = [part["dataset_columns"] for part in parts if part.get("dataset_columns")]
        return ColumnsConfig(**found[0]) if found else None
