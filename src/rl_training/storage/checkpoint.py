"""Checkpoints and policy files: the state of a run as one tree in one file, checked before it is used."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, InstanceOf, TypeAdapter, ValidationError, model_validator
from torch import Tensor
from typing_extensions import Self

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.errors import CheckpointError, DamagedError, UserError
from rl_training.core.files import atomic_write, link_or_copy
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.core.text import STEP_NAME, step_of_name
from rl_training.core.torch_files import read_tree
from rl_training.storage.trust import check_trust

LATEST = "latest.pt"

FORMAT = 2
"""The format that is written. Policies are read from every format since 1; runs are resumed from this one only."""


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """The numbered checkpoints in a folder by their timesteps, the newest first."""
    found = {step: path for path in folder.glob("*.pt") if (step := step_of_name(path.name)) is not None}
    return dict(sorted(found.items(), reverse=True))


def save_checkpoint(path: Path, tree: dict[str, Any]) -> None:
    """Write the state of a run; the old file stays until the new one is complete on disk."""
    save_tree(path, {"format": FORMAT, **tree})


def save_tree(path: Path, tree: dict[str, Any]) -> None:
    """Write tensors and plain values so that the file is either whole or not there."""
    with atomic_write(path, needs=_bytes(tree)) as temporary, temporary.open("wb") as file:
        torch.save({**tree, "checksum": _digest(tree)}, file)


def link_checkpoint(existing: Path, name: str) -> None:
    """Give a checkpoint a second name beside it, replacing any file of that name."""
    with atomic_write(existing.with_name(name)) as temporary:
        link_or_copy(existing, temporary)


def load_checkpoint(path: Path, *, policy_only: bool = False) -> dict[str, Any]:
    """Read a checkpoint and verify its checksum; for its policy alone, it may be of an older format."""
    tree = _read(path)
    found = tree.get("format")
    if isinstance(found, int) and found > FORMAT:
        versions = f"checkpoint format {found}; this one reads up to {FORMAT}"
        raise CheckpointError(f"{path} was written by a newer version ({versions}): update rl-training")
    if "algorithm" not in tree or "config" not in tree or found not in range(1, FORMAT + 1):
        raise DamagedError(f"{path} is not a checkpoint of rl_training")
    if found != FORMAT and not policy_only:
        advice = "predict and eval can use its policy, but no run can be resumed from it"
        raise CheckpointError(f"{path} was written by an older version (checkpoint format {found}): {advice}")
    if tree.get(POLICY_ONLY) and not policy_only:
        use = "predict, eval, estimate and export can use it, but no run can be resumed from it"
        advice = f"{use}; take a file in checkpoints/ of its run"
        raise CheckpointError(f"{path} holds a policy only, without the other networks and optimisers: {advice}")
    return _verified(path, tree)


def refuse_foreign(path: Path, tree: Mapping[str, Any], run_id: str | None) -> None:
    """Refuse a file of another run than the one with this identity; files of earlier versions have no identity."""
    saved = tree.get("run") or {}
    if run_id is None or saved.get("id") in (None, run_id):
        return
    config = tree.get("config")
    about = f", {config['algo']} with seed {config['seed']}" if config else ""
    advice = "put back the file of this run, or move this one away"
    raise CheckpointError(f"{path} belongs to another run ({saved['name']}{about}): {advice}")


def saved_spaces(tree: Mapping[str, Any]) -> SpaceSpec:
    """The spaces in a checkpoint of any format. In format 1 they are vectors and bounds."""
    values = tree["spaces"]
    if tree["format"] == 1:
        actions = BoxActions(tuple(values["action_low"]), tuple(values["action_high"]))
        return SpaceSpec.vector(values["obs_dim"], actions)
    return SpaceSpec.from_plain(values)


def saved_spans(path: Path) -> list[list[int]]:
    """The files of rows that a checkpoint refers to."""
    return list(_read(path).get("replay") or ())


def load_tree(path: Path) -> dict[str, Any]:
    """Read what `save_tree` wrote, and verify its checksum."""
    return _verified(path, _read(path))


def load_networks(
    algorithm: Algorithm, tree: Mapping[str, Any], *, what: str, error_class: type[UserError] = CheckpointError
) -> None:
    """Put a checkpoint's networks, target networks and optimisers into an algorithm; `what` names it in an error."""
    with refusing_other_networks(what, error_class):
        algorithm.load_state_dict(tree["algorithm"])


@contextmanager
def refusing_other_networks(what: str, error_class: type[UserError] = CheckpointError) -> Iterator[None]:
    """Turn the error of a state that does not fit its networks into one sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise error_class(f"{what} does not fit the options of the networks: {reason}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DamagedError(f"checkpoint {str(path)!r} does not exist")
    tree = read_tree(path, CheckpointError, what="checkpoint", damage_class=DamagedError)
    if not isinstance(tree, dict):
        raise DamagedError(f"{path} is not a checkpoint of rl_training")
    return tree


def _bytes(tree: Any) -> int:
    """The approximate size of a tree on disk."""
    if isinstance(tree, Tensor):
        return tree.nbytes + 500
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return 10 + sum(map(_bytes, parts))


def _verified(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    if tree.pop("checksum", None) != _digest(tree):
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum")
    return tree


def _digest(tree: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, tree)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Hash a tree by content, so that neither file layout nor key order matters."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(struct.pack("q", len(value)))
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())


def check_algo(checkpoint: Path, algo: str, expected: str | None) -> None:
    """Refuse a checkpoint of another algorithm than the expected one, or of an unregistered one."""
    if expected is not None and algo != expected:
        raise CheckpointError(f"{checkpoint} is a checkpoint of {algo!r}, not of {expected!r}")
    if algo not in ALGORITHMS:
        raise CheckpointError(f"{checkpoint} is of unregistered {algo!r}: import its module, or use --import")


MOST_NUMBERS = 10**7
"""Numbers in an observation or an action. A policy with more of them would not fit its own file."""

Count = Annotated[int, Field(ge=0)]

Values = dict[str, Any]


class _Part(BaseModel, strict=True, extra="allow", allow_inf_nan=False):
    """A mapping in a checkpoint: missing names and wrong types are refused, additional names are allowed."""


class _Config(_Part):
    algo: str
    algo_kwargs: Values
    env_kwargs: Values = {}
    env_id: str | None = None
    seed: Count = 0


class _Column(_Part):
    shape: list[Annotated[int, Field(ge=0, le=MOST_NUMBERS)]]
    dtype: Literal["float32", "int64", "int32", "uint8"]


class _Discrete(_Part):
    count: Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
    start: int
    parts: list[Annotated[int, Field(ge=1)]] = []

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.parts and math.prod(self.parts) != self.count:
            raise ValueError(f"parts {self.parts} do not make {self.count} actions")
        return self


class _Box(_Part):
    low: Annotated[list[float], Field(min_length=1, max_length=MOST_NUMBERS)]
    high: Annotated[list[float], Field(min_length=1, max_length=MOST_NUMBERS)]

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if len(self.low) != len(self.high) or not all(map(float.__lt__, self.low, self.high)):
            raise ValueError("bounds must be pairs of a lower and a higher number")
        return self


class _Spaces(_Part):
    obs: Annotated[dict[str, _Column], Field(min_length=1)]
    action: _Discrete | _Box


class _OldSpaces(_Part):
    obs_dim: Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
    action_low: list[float]
    action_high: list[float]


Networks = Annotated[dict[str, InstanceOf[Tensor] | Values], Field(min_length=1)]


Spans = list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
"""First row, and row after the last, of each file of a replay buffer."""


class _OldPolicy(_Part):
    """A checkpoint of format 1, read for its policy only."""

    config: _Config
    spaces: _OldSpaces
    algorithm: Networks


class _PolicyState(_Part):
    state: Values
    rewards: list[Any] = []
    fingerprint: str | None = None
    trained_on: InstanceOf[Tensor] | None = None


class _Policy(_Part):
    """A policy file."""

    config: _Config
    spaces: _Spaces
    algorithm: Networks
    replay: Spans
    trainer: _PolicyState


class _Counters(_Part, extra="forbid", allow_inf_nan=True):
    """Counters of a run. They become attributes of a `TrainerState`, so no other name is allowed."""

    global_step: Count
    epoch: Count
    update_count: Count
    env_steps: Count
    vector_steps: Count
    idle_vector_steps: Count
    stored: Count
    online_updates: Count
    event_step: Count
    events_due: bool = False
    should_stop: bool
    stop_reason: str | None
    best_score: float | None
    best_step: int | None
    logged: dict[str, Any] = {}
    own_metrics: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_stored(self) -> Self:
        """More rows than steps would earn updates without end."""
        if self.stored > self.env_steps:
            raise ValueError(f"{self.stored} rows of {self.env_steps} steps")
        return self


class _Rollback(_Part):
    """The row of metrics about one rollback."""

    kind: Literal["guard"]
    global_step: Count


class _Rewards(_Part, extra="forbid", allow_inf_nan=True):
    low: float
    high: float
    goes_on: bool
    seen: Count


class _Guards(_Part, extra="forbid", allow_inf_nan=True):
    """State of the guards. It becomes attributes of `Guards`, so no other name is allowed."""

    initial: dict[str, Annotated[float, Field(gt=0)]]
    raised: list[str]
    looked: Count
    rollbacks: Annotated[list[_Rollback], Field(max_length=MOST_ROLLBACKS)]
    good: Annotated[str, Field(pattern=f"^{STEP_NAME.pattern}$")] | None
    rewards: _Rewards


class _Trainer(_Part):
    state: _Counters
    rewards: list[Any]
    fingerprint: str
    trained_on: InstanceOf[Tensor] | None = None
    window: list[list[Any]]
    callbacks: Values
    last_metrics: Values
    best_metrics: Values
    fine_tuning: Values | None
    horizon: int | None
    branches: list[Count] = []
    guards: _Guards | None = None


class _Random(_Part):
    torch: InstanceOf[Tensor]
    cuda: list[InstanceOf[Tensor]]


class _Machine(_Part):
    torch: str
    threads: Annotated[int, Field(ge=1, le=4096)]
    compiled: bool | None
    compiled_from: Count = 0


class _Checkpoint(_Part):
    """The whole state of a run."""

    config: _Config
    spaces: _Spaces
    algorithm: Networks
    source: Values
    replay: Spans
    collector: Values | None
    trainer: _Trainer
    random: _Random
    machine: _Machine


def open_checkpoint(path: Path, *, policy_only: bool = False) -> dict[str, Any]:
    """The tree of a complete checkpoint; code that it names is checked for trust.

    For its policy alone, it may be of an older format, or a policy file.
    """
    tree = load_checkpoint(path, policy_only=policy_only)
    schema: type[_Part] = _OldPolicy if tree["format"] == 1 else _Policy if tree.get(POLICY_ONLY) else _Checkpoint
    try:
        schema.model_validate(tree)
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a checkpoint of rl_training: {first_mistake(error)}") from None
    check_trust(tree["config"], path)
    return tree


def first_mistake(error: ValidationError) -> str:
    """The first place that does not fit a schema, as a phrase."""
    first = error.errors()[0]
    place, reason = ".".join(str(part) for part in first["loc"]) or "it", first["msg"].removeprefix("Value error, ")
    return f"{place} is missing" if first["type"] == "missing" else f"{place} is wrong ({reason})"


_ROWS: TypeAdapter[dict[str, Tensor]] = TypeAdapter(dict[str, InstanceOf[Tensor]])


def check_rows(path: Path, tree: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """The columns in a file of a replay buffer, each with as many rows as the name of the file says."""
    try:
        rows = _ROWS.validate_python(tree.get("rows"), strict=True)
    except ValidationError:
        raise CheckpointError(f"{path} holds no rows of a replay buffer") from None
    for name in (name for name, column in rows.items() if column.shape[:1] != (count,)):
        raise CheckpointError(f"{path}: {name} has shape {list(rows[name].shape)}, expected {count} rows")
    if "streams" not in rows:
        raise CheckpointError(f"{path} holds no rows of a replay buffer")
    return rows


@contextmanager
def refusing_broken_state(what: str) -> Iterator[None]:
    """Turn errors from a stored state that this version cannot use into one sentence."""
    try:
        yield
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise CheckpointError(f"{what} cannot be used: {type(error).__name__}: {reason}") from None


MOST_ROLLBACKS = 3


POLICY_ONLY = "policy_only"
"""The key that tells the tree of a policy file from that of a checkpoint."""


def policy_path(run: Path, step: int) -> Path:
    """The policy file of a run at a timestep."""
    return run / "policies" / f"step_{step:09d}.pt"


def policy_step(path: Path) -> int | None:
    """The timestep of a policy file, by its name; None for any other file."""
    return step_of_name(path.name) if path.parent.name == "policies" else None


def policy_files(run: Path) -> list[Path]:
    """The policy files of a run, in the order of their timesteps."""
    found = {path: policy_step(path) for path in (run / "policies").glob("*.pt")}
    steps = {path: step for path, step in found.items() if step is not None}
    return sorted(steps, key=steps.__getitem__)


def drop_policies(run: Path, *, after: int) -> None:
    """Delete the policy files of later timesteps, which a run that goes back to this one writes again."""
    for path in policy_files(run):
        if (policy_step(path) or 0) > after:
            path.unlink(missing_ok=True)
