"""From what a user names as policies to policies with names: runs, checkpoints, functions, objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset
from rl_training.policies.saved import load_policy
from rl_training.storage.find import find_checkpoints, policy_name

LOGS = (".npz", ".h5", ".hdf5", ".csv", ".csv.gz", ".csv.zst", ".tsv", ".parquet", ".rlt")
"""Endings of files that hold a log."""
NO_POLICY = (
    "is a log, not a policy: it has the probabilities of the actions that were taken, not of those that were not. "
    "Nothing says what its policy would do elsewhere: give a run, or a function that gives every choice a probability"
)


def named_policies(policies: Any, checkpoint: str = "latest.pt") -> dict[str, tuple[Any, str | None]]:
    """Policies by name, with the checkpoint that each comes from, if it does."""
    _refuse_logs(policies)
    if isinstance(policies, Mapping):
        found = {str(name): _loaded(each, checkpoint) for name, each in policies.items()}
    else:
        given = policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
        texts = [each for each in given if isinstance(each, (str, Path))]
        found = {policy_name(path): (load_policy(path), str(path)) for path in _checkpoints(texts, checkpoint)}
        for each in given:
            if not isinstance(each, (str, Path)):
                found[_free(getattr(each, "__name__", type(each).__name__), found)] = (each, None)
    if not found:
        raise ConfigError("no policy is named")
    return found


def _checkpoints(names: Sequence[str | Path], checkpoint: str) -> list[Path]:
    return find_checkpoints(names, name=checkpoint) if names else []


def _loaded(policy: Any, checkpoint: str) -> tuple[Any, str | None]:
    if not isinstance(policy, (str, Path)):
        return policy, None
    paths = find_checkpoints([policy], name=checkpoint)
    if len(paths) > 1:
        raise ConfigError(f"{str(policy)!r} stands for {len(paths)} policies, and one name cannot be theirs")
    return load_policy(paths[0]), str(paths[0])


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number if something else has it."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free


def _refuse_logs(policies: Any) -> None:
    """Refuse a log that is named where a policy is expected."""
    given = policies.values() if isinstance(policies, Mapping) else policies
    for each in [given] if isinstance(given, (str, Path, TransitionDataset)) or callable(given) else list(given):
        is_file = isinstance(each, (str, Path)) and str(each).lower().endswith(LOGS) and Path(each).exists()
        if is_file or isinstance(each, TransitionDataset):
            raise ConfigError(f"{str(each) if is_file else 'a TransitionDataset'} {NO_POLICY}")
