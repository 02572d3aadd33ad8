"""The data of a pipeline: audited, and split by whole episodes before anything is trained."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.core.spaces import BoxActions, DiscreteActions
from rl_training.data import (
    Audit,
    DataOptions,
    TableFiles,
    TransitionDataset,
    audit_data,
    check_logged,
    load_any,
    table_kind,
    with_spaces_of_data,
)
from rl_training.ope import discount_options
from rl_training.pipeline.candidates import DatasetFacts
from rl_training.pipeline.config import PipelineConfig, Workspace
from rl_training.storage import read_json, refusing_broken_state

FEWEST_FOR_CLAIM = 30
"""Episodes below which none are set aside for the claim."""
FEWEST_TO_JUDGE = 10
"""The fewest episodes of a part that judges policies, if there are enough for it."""
FEWEST_EPISODES = 2
SPLIT = "split.json"
AUDIT = "audit.json"


@dataclass(frozen=True)
class DataSplits:
    """The parts of the data on disk, and facts about all of it."""

    folder: Path
    episodes: dict[str, int]
    """The number of episodes of each part."""
    facts: DatasetFacts
    gamma: float
    episode_steps: float | None
    """The discount of the estimates."""
    space: dict[str, Any]
    """The options that state the action space: the data of one part alone may not show all of it."""
    says: str
    """The action space in words, and where it comes from."""
    has_probabilities: bool
    """Whether the log has action probabilities."""
    names: list[str]
    """The names of the selection episodes."""

    def path(self, part: str) -> Path:
        """Where a part is."""
        return self.folder / f"{part}.rlt"

    @property
    def has_claim(self) -> bool:
        """Whether episodes were set aside for the claim."""
        return "claim" in self.episodes

    @classmethod
    def from_plain(cls, folder: Path, plain: Mapping[str, Any]) -> DataSplits:
        """The contents of `split.json`."""
        returns = plain["facts"]["returns"]
        facts = DatasetFacts(**{**plain["facts"], "returns": None if returns is None else tuple(returns)})
        names = ("gamma", "episode_steps", "space", "says", "has_probabilities", "names")
        return cls(folder, plain["episodes"], facts, *(plain[name] for name in names))


def prepare_data(space: Workspace) -> tuple[dict[str, Any], DataSplits]:
    """The audit and the parts of the data, made unless they exist and the source has not changed."""
    config, folder, stamp = space.config, space.out / "data", _stamp(space.config.data)
    stored = read_json(folder / SPLIT)
    if stored and stamp is not None and stored.get("stamp") == stamp:
        space.fingerprint = stored["fingerprint"]
        audit, split = space.known(AUDIT), space.known(f"data/{SPLIT}")
        if audit is not None and split is not None:
            space.begin()
            _refuse(audit, config)
            with refusing_broken_state(f"{folder / SPLIT}"):
                return audit, DataSplits.from_plain(folder, split)
    report, dataset = _read(config)
    space.fingerprint = "" if dataset is None else dataset.fingerprint()
    if stored and stored["fingerprint"] != space.fingerprint:
        raise DatasetError(
            f"{config.data} has changed since the pipeline in {str(space.out)!r} began: choose another folder"
        )
    counts = {} if dataset is None else _counts(dataset, config)
    space.begin()
    audit = space.keep(AUDIT, report.to_plain())
    _refuse(audit, config)
    if dataset is None:
        raise DatasetError(f"{config.data} cannot be read: {report.findings[0].message}")
    plain = _split(dataset, config, folder, counts)
    return audit, DataSplits.from_plain(folder, space.keep(f"data/{SPLIT}", {**plain, "stamp": stamp}))


def _stamp(source: str) -> list[int] | None:
    """Size and time of a file, which show without reading it that it has not changed."""
    path = Path(source)
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else None


def _read(config: PipelineConfig) -> tuple[Audit, TransitionDataset | None]:
    """The audit and the dataset; None if it cannot be read."""
    columns = None if config.columns is None else stated_columns(config)
    if columns is None and table_kind(config.data) == "csv" and Path(config.data).is_file():
        ways = (
            "--obs-columns, --action-columns, --reward-column and --episode-column, or columns: in the file of --config"
        )
        raise ConfigError(f"{config.data} is a table: state its columns, with {ways}")
    if config.algo_kwargs.get("invalid_actions") == "drop":
        dataset = check_logged(load_any(config.data, columns), drop=True)
        return replace(audit_data(dataset, env_id=config.env_id), source=config.data), dataset
    report = audit_data(config.data, env_id=config.env_id, columns=columns)
    return report, None if report.rows is None else load_any(config.data, columns)


def stated_columns(config: PipelineConfig) -> dict[str, Any]:
    """The columns as a mapping, without those left empty."""
    columns: dict[str, Any] = config.to_plain()["columns"]
    return {name: value for name, value in columns.items() if value not in (None, [], {})}


def _counts(dataset: TransitionDataset, config: PipelineConfig) -> dict[str, int]:
    """The number of episodes of each part; with few of them, there are two parts."""
    if not dataset.has_episodes:
        raise DatasetError(f"{config.data} has no episodes to split by: its rows seem shuffled")
    count = len(dataset.episode_bounds())
    if count < FEWEST_EPISODES:
        raise DatasetError(f"{config.data} has {count} episode: selecting a policy needs at least {FEWEST_EPISODES}")
    shares = {"selection": config.selection_fraction, "claim": config.claim_fraction}
    if count < FEWEST_FOR_CLAIM:
        shares = {"selection": config.selection_fraction + config.claim_fraction}
    fewest = 1 if count < FEWEST_FOR_CLAIM else FEWEST_TO_JUDGE
    sizes = {part: max(fewest, round(share * count)) for part, share in shares.items()}
    return {"train": count - sum(sizes.values()), **sizes}


def _refuse(audit: Mapping[str, Any], config: PipelineConfig) -> None:
    """Stop at data that fails the audit, unless the user accepts it."""
    failed = [each for each in audit["findings"] if each["verdict"] == "fail"]
    if failed and (not config.accept_audit or audit["rows"] is None):
        texts = [f"{each['check']}: {each['message']}; {each['advice']}" for each in failed]
        ways = "see `rl-training data audit`; --accept-audit (accept_audit: true) continues anyway"
        raise DatasetError("\n  ".join(["the audit refuses the data", *texts, ways]))


def _split(
    dataset: TransitionDataset, config: PipelineConfig, folder: Path, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Write the parts; the contents of `split.json`."""
    order = np.random.default_rng(config.seed).permutation(sum(counts.values()))
    space, says = _space(dataset, config)
    cuts = np.split(order, np.cumsum(list(counts.values()))[:-1])
    numbers, names = dict(zip(counts, map(sorted, cuts), strict=True)), _episode_names(dataset, config.data)
    for part in counts:
        chosen = dataset.take_episodes(numbers[part])
        # A killed process may have left an incomplete part.
        shutil.rmtree(folder / f"{part}.rlt", ignore_errors=True)
        chosen.save(folder / f"{part}.rlt")
        if part == "train":
            facts = DatasetFacts.of(chosen)
    return {
        "fingerprint": dataset.fingerprint(),
        "episodes": dict(counts),
        "facts": asdict(facts),
        **discount_options(dataset, config.gamma),
        "space": space,
        "says": says,
        "has_probabilities": "behavior_log_probs" in dataset.fields,
        "names": [names[number] for number in numbers["selection"]],
    }


def _episode_names(dataset: TransitionDataset, source: str) -> list[str]:
    """The names of episodes in a table that names them, else their numbers in the log, from 0 on."""
    column, kind = dataset.columns and dataset.columns.episode, table_kind(source)
    names = TableFiles(source, kind).read([column]).groups(column)[1] if column and kind else []
    # Episodes with empty cells may have been dropped.
    count = len(dataset.episode_bounds())
    return [str(name) for name in (names if len(names) == count else range(count))]


def _space(dataset: TransitionDataset, config: PipelineConfig) -> tuple[dict[str, Any], str]:
    """The action space, as options of a run and in words; runs with an environment need no options."""
    stated = {name: getattr(config, name) for name in ("action_low", "action_high", "num_actions")}
    if config.env_id is not None:
        if any(value is not None for value in stated.values()):
            raise ConfigError("the action space comes from the environment; leave out its options, or env_id")
        return {}, f"as in {config.env_id}"
    options: DataOptions = bind(stated, DataOptions)[0]
    _, spaces, says = with_spaces_of_data(dataset, options)
    action, text = spaces.action, f"{spaces.action.describe()}, {says}"
    if isinstance(action, BoxActions):
        return {"action_low": list(action.low), "action_high": list(action.high)}, text
    named = dataset.columns is not None and bool(dataset.columns.choices)
    assert isinstance(action, DiscreteActions)  # noqa: S101 - for the type checker
    return {} if named else {"num_actions": action.count}, text
