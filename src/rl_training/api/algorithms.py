"""Algorithms as objects: learn, evaluate, predict, save, load."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self, Unpack

from rl_training.acting import EpisodeOptions, Policy
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError, nearest
from rl_training.envs import env_id_for
from rl_training.experiment import AlgorithmSpec, list_algorithms
from rl_training.policies import SavedPolicy, load_policy
from rl_training.policies.export import Export, export_policy
from rl_training.reports import export_with_report
from rl_training.runtime import (
    Callback,
    ConfigSource,
    ProgressCallback,
    TrainResult,
    check_algorithm,
    merge,
    plain_config,
    read_options,
    resume,
    train,
)
from rl_training.storage import find_checkpoint


class ManagedAlgorithm:
    """One algorithm with its configuration and, once trained or loaded, its policy."""

    algo: ClassVar[str]

    def __init__(
        self, config: ConfigSource | None = None, *, dataset: Any = None, env: Any = None, **options: Any
    ) -> None:
        """Take a configuration, objects, options, or several of these.

        `config` is a TrainConfig, the path of a YAML file, or a packaged name such as 'td3_bc/pendulum'. `dataset` is a
        TransitionDataset, a mapping of arrays, or a list of episodes. `env` is the name of an environment, a Gymnasium
        environment, which is copied where one is needed, or a function that makes one. `options` are options of the
        algorithm, its data and the loop, or of the run, such as `seed`.
        """
        if config is None or options or env is not None:
            config = _configured(self.algo, config, options, env)
        self._bound, self._dataset = read_options(config), dataset
        check_algorithm(self.config, self.algo)
        self.result: TrainResult | None = None
        self._saved: SavedPolicy | None = None
        self._resumes_from: Path | None = None
        """The run directory or checkpoint that `learn` resumes; None where there is none."""

    @property
    def config(self) -> TrainConfig:
        """The configuration, checked when this object was made."""
        return self._bound[0]

    def learn(
        self,
        *,
        total_timesteps: int | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        new_run: bool = False,
    ) -> TrainResult:
        """Train for this many timesteps, by default as many as the configuration says.

        The first call makes a run directory. Further calls, and the first after `load`, continue that run, with
        schedules that stretch over the new total; a `new_run` starts afresh. Progress is shown on a terminal by
        default.
        """
        if total_timesteps is not None:
            self._bound = replace(self.config, total_timesteps=total_timesteps), self._bound[1]
        if progress or (progress is None and sys.stdout.isatty()):
            callbacks = [*callbacks, ProgressCallback()]
        if self._saved is None or new_run:
            self.result = train(self._bound, dataset=self._dataset, callbacks=callbacks)
        else:
            self.result = self._continue(self._saved, self.config.total_timesteps, callbacks)
        self._resumes_from = self.result.run_dir
        self._saved = load_policy(self.result.checkpoint_path)
        return self.result

    fit = learn

    def evaluate(
        self, *, num_episodes: int | None = None, num_envs: int | None = None, **options: Unpack[EpisodeOptions]
    ) -> dict[str, Any]:
        """Raw returns and lengths of episodes with fixed seeds, with the mean and the standard deviation of returns.

        `env` is another environment than the run's own: a name, an environment, or a function that makes one. The first
        episode starts from `seed`. A policy that is not `deterministic` samples its actions.
        """
        return self._trained().evaluate(episodes=num_episodes, num_envs=num_envs, **options).to_dict()

    def record(self, path: str | Path, *, num_episodes: int = 1, **options: Unpack[EpisodeOptions]) -> dict[str, Any]:
        """Write a video (.mp4 or .gif) of the episodes that `evaluate` has, and return what it returns."""
        return self._trained().record(path, episodes=num_episodes, **options).to_dict()

    def predict(
        self,
        obs: ArrayLike,
        *,
        valid_actions: ArrayLike | None = None,
        deterministic: bool = True,
        allow_nan: bool = False,
    ) -> NDArray[Any]:
        """Actions in native units for one observation or a batch, from memory.

        A policy that was trained with action masks needs `valid_actions`, 1 for each valid action. Rows with NaN or
        infinity are refused, unless `allow_nan`.
        """
        trained = self._trained()
        return trained.predict(obs, valid_actions=valid_actions, deterministic=deterministic, allow_nan=allow_nan)

    def predict_value(self, obs: ArrayLike, actions: ArrayLike) -> NDArray[Any]:
        """Values of native actions by the critics: the discounted return that they predict, of transformed rewards."""
        return self._trained().predict_value(obs, actions)

    def log_probs(self, obs: ArrayLike, actions: ArrayLike) -> NDArray[Any] | None:
        """Log-probabilities with which the stochastic policy draws native actions; None where it has no density."""
        return self._trained().log_probs(obs, actions)

    def policy(self) -> Policy:
        """The policy as a plain module from native observations to native actions."""
        return copy.deepcopy(self._trained().policy)

    def export(self, path: str | Path, *, novelty: bool = True, report: bool = True) -> Export:
        """Write the policy to a new folder for use without this package, and check it there.

        The folder has an ONNX file with `action` and `novelty`, the distance from the log, its description, test
        vectors, a script that checks them, and a `report` on the run. Without `novelty`, the data of the run is not
        needed.
        """
        write = export_with_report if report else export_policy
        return write(self._trained(), path, dataset=self._dataset, novelty=novelty)

    def save(self, path: str | Path) -> None:
        """Write everything to one file, for `load`, and for `rl-training eval` and `predict`."""
        self._trained().save(path)

    @classmethod
    def load(cls, path: str | Path, *, dataset: Any = None, env: Any = None) -> Self:
        """The trained algorithm from a file or run directory; one of another algorithm is refused.

        A run that was given its `dataset` or its `env` as an object needs it again to continue learning.
        """
        checkpoint = find_checkpoint(path)
        saved = load_policy(checkpoint, algo=cls.algo)
        if env is not None:
            env_id_for(env, known_as=str(saved.config.env_id))
        managed = cls(saved.config, dataset=dataset)
        managed._saved = saved
        managed._resumes_from = checkpoint if saved.run_dir is not None else None
        return managed

    def _continue(self, saved: SavedPolicy, timesteps: int, callbacks: Sequence[Callback]) -> TrainResult:
        """Make the run longer by this many timesteps."""
        if self._resumes_from is None:
            name = type(self).__name__
            raise UserError(
                f"this {name} was loaded from a file that is not in a run directory, so there is no run to continue: "
                f"use {name}.load(run directory), or learn(new_run=True)"
            )
        done = saved.tree["trainer"]["state"]["global_step"]
        # Updates before the first step of the environment do not count in total_timesteps.
        done -= min(done, saved.config.algo_kwargs.get("offline_pretrain_updates") or 0)
        total = {"total_timesteps": done + timesteps}
        return resume(self._resumes_from, dataset=self._dataset, callbacks=callbacks, reschedule=True, **total)

    def _trained(self) -> SavedPolicy:
        if self._saved is None:
            raise UserError(
                f"this {type(self).__name__} is not trained yet: call learn(), or {type(self).__name__}.load(path)"
            )
        return self._saved


def _configured(algo: str, config: ConfigSource | None, options: Mapping[str, Any], env: Any) -> dict[str, Any]:
    """A configuration with options written into it, each where it belongs."""
    values = {"algo": algo} if config is None else plain_config(config)
    outer = {field.name for field in fields(TrainConfig)}
    changes = {name: value for name, value in options.items() if name in outer}
    inner = {name: value for name, value in options.items() if name not in outer}
    changes["algo_kwargs"] = {**options.get("algo_kwargs", {}), **inner}
    if env is not None:
        changes["env_id"] = env_id_for(env)
    return merge(values, changes)


@cache
def _managed_class(spec: AlgorithmSpec) -> type[ManagedAlgorithm]:
    """The managed class of one registered algorithm."""
    name = spec.algorithm.__name__
    body = {"algo": spec.name, "__doc__": f"{name}: {spec.idea}", "__module__": "rl_training.api"}
    return type(name, (ManagedAlgorithm,), body)


class _Managed(Mapping[str, type[ManagedAlgorithm]]):
    """The managed classes by name, of all algorithms that are registered at the moment."""

    def __getitem__(self, name: str) -> type[ManagedAlgorithm]:
        return _managed_class(self._specs()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs())

    def __len__(self) -> int:
        return len(self._specs())

    def _specs(self) -> dict[str, AlgorithmSpec]:
        return {spec.algorithm.__name__: spec for spec in list_algorithms()}


MANAGED = _Managed()


def __getattr__(name: str) -> Any:
    """The managed class of this name; algorithms that are registered later are found too."""
    if name == "__all__":
        return __dir__()
    if name in MANAGED:
        return MANAGED[name]
    raise AttributeError(f"module 'rl_training.api' has no attribute {name!r}{nearest(name, __dir__())}")


def __dir__() -> list[str]:
    return ["MANAGED", "ManagedAlgorithm", *MANAGED]
