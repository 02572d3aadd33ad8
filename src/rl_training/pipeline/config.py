"""The options of a pipeline, and its folder, which belongs to one set of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_training.config import PathText, dump_yaml, read_group, read_mapping
from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.files import write_json, write_text
from rl_training.core.options import option, options, options_with
from rl_training.data import ColumnsConfig
from rl_training.experiment import was_limited
from rl_training.pipeline.candidates import check_name
from rl_training.storage import read_json

FILE, SELECTION = "pipeline.yaml", "selection.json"
FORMAT = 3
"""The format of stage results; results of another format are not used."""
DEFAULT_MINUTES = 10.0
EXPORT, RESULT, REPORT = "export", "result.json", "report.html"
SHOWN = 5
"""Differing options that an error names."""


@options
class PipelineConfig:
    """From a log to a policy: the data, the algorithms, and the time."""

    data: PathText = Field(description="a table, a file of transitions, or the id of a Minari dataset")
    columns: ColumnsConfig | None = option(None, "columns of a table, as dataset_columns")
    env_id: str | None = option(None, "environment that has the bounds of actions and evaluates the policies")
    real_episodes: int = option(0, "episodes in that environment that may be spent on selection", ge=0)
    algorithms: tuple[str, ...] = option((), "algorithms to try beside bc; empty: those that suit the data")
    seeds: tuple[int, ...] = option((0, 1), "seeds of each algorithm", min_length=1)
    minutes: float | None = option(
        None, "time for everything; default 10 without updates; may be raised in the same folder", gt=0, incidental=True
    )
    updates: int | None = option(None, "updates of each run, instead of minutes", ge=1)
    selection_fraction: float = option(0.2, "share of episodes for selection", gt=0, lt=1)
    claim_fraction: float = option(0.2, "share of episodes for the claim about the selected policy", gt=0, lt=1)
    gamma: float | None = option(
        None,
        "discount of training and of estimates; default: the algorithms' own, and by the length of episodes. "
        "1: none in estimates, and the algorithms' own in training",
        ge=0,
        le=1,
    )
    members: int | None = option(
        None, "ensemble members for resampled episodes, for intervals; default 10, or 5 if time is short", ge=2
    )
    fit_updates: int | None = option(None, "updates of each FQE estimate; default: as many as convergence needs", ge=1)
    action_low: tuple[float, ...] | None = option(None, "lower action bounds, without an env_id")
    action_high: tuple[float, ...] | None = option(None, "upper action bounds, without an env_id")
    num_actions: int | None = option(
        None, "number of discrete actions, without an env_id; default: largest logged + 1", ge=1
    )
    seed: int = option(0, "seed of the split and of the estimates", ge=0, le=LARGEST_SEED)
    accept_audit: bool = option(False, "continue even with data that the audit refuses", incidental=True)
    algo_kwargs: dict[str, Any] = option({}, "options for all runs, such as hidden_sizes")

    def __post_init__(self) -> None:
        if self.minutes is not None and self.updates is not None:
            raise ConfigError("minutes and updates both set the length of training; give one")
        if self.selection_fraction + self.claim_fraction >= 1:
            both = f"{self.selection_fraction:g} and {self.claim_fraction:g}"
            raise ConfigError(f"selection_fraction and claim_fraction leave no episodes to train on, got {both}")
        if (self.action_low is None) != (self.action_high is None):
            raise ConfigError("action_low and action_high go together")
        if self.real_episodes and self.env_id is None:
            raise ConfigError("real_episodes need an environment: name it, with env_id (--env)")
        scheduled = [name for name in self.algo_kwargs if name.endswith("_schedule")]
        if scheduled and self.updates is None:
            raise ConfigError(f"{scheduled[0]} needs the length of a run: give updates instead of minutes")
        for name in self.algorithms:
            check_name(name)

    @property
    def time(self) -> float | None:
        """The minutes that everything may take; None if the updates are given."""
        return None if self.updates is not None else self.minutes or DEFAULT_MINUTES

    def to_plain(self) -> dict[str, Any]:
        """Lists, mappings, numbers and text only."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_pipeline(source: PipelineConfig | Mapping[str, Any] | str | Path) -> PipelineConfig:
    """Checked options, from a YAML file or a mapping."""
    if isinstance(source, (str, Path)):
        _require_file(source)
    return read_group(source, PipelineConfig)


def read_values(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, not checked yet."""
    _require_file(path)
    return read_mapping(Path(path))


def _require_file(path: str | Path) -> None:
    if not Path(path).is_file():
        raise ConfigError(f"the pipeline's file {str(path)!r} does not exist")


class Workspace:
    """The folder of one pipeline: its options, and the results of its stages.

    A result is used again only if it was made from the same options and the same data, so the same command continues
    wherever it was stopped. With more minutes, what depends on the time is made again: the plan and all after it; runs
    that have ended are kept, and those that their time had ended continue.
    """

    def __init__(self, out: str | Path, config: PipelineConfig) -> None:
        self.out, self.config = Path(out).resolve(), config
        self.fingerprint = ""
        self._has_more_time = self._refuse_others()

    def begin(self) -> None:
        """Create the folder and write the options."""
        if self._has_more_time:
            limited = [file for file in self.out.glob("runs/*/result.json") if was_limited(read_json(file))]
            for file in (*limited, self.out / RESULT, *self.out.glob("report.*")):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.out / EXPORT, ignore_errors=True)
        (self.out / "data").mkdir(parents=True, exist_ok=True)
        (self.out / "runs").mkdir(exist_ok=True)
        # The whole path, so that the folder belongs to the same data in every working directory.
        write_text(self.out / FILE, dump_yaml({**self.config.to_plain(), "data": _whole(self.config.data)}))

    def _refuse_others(self) -> bool:
        """Refuse a folder of something else; whether its pipeline had less time."""
        if not self.out.exists():
            return False
        file = self.out / FILE
        if not file.is_file():
            if not self.out.is_dir() or any(self.out.iterdir()):
                raise ConfigError(f"{str(self.out)!r} holds something other than a pipeline: choose another folder")
            return False
        stored = read_pipeline(file)
        before, now = (_defining(config) for config in (stored, self.config))
        others = [f"{name}: {before[name]}, not {now[name]}" for name in now if before[name] != now[name]]
        given, minutes = stored.time or 0.0, self.config.time or 0.0
        if minutes < given and not others:
            others = [f"minutes: {given:g}, which may be raised, not {minutes:g}"]
        if stored.accept_audit != self.config.accept_audit and (self.out / SELECTION).exists():
            others.append("accept_audit, on which its claims depend")
        if others:
            shown = "; ".join(others[:SHOWN])
            raise ConfigError(f"{str(self.out)!r} holds a pipeline with other options ({shown}): choose another folder")
        return minutes > given

    @property
    def key(self) -> str:
        """A hash of the options and the data."""
        text = json.dumps([FORMAT, _defining(self.config), self.fingerprint], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def known(self, name: str) -> dict[str, Any] | None:
        """The result of a stage from these options and this data, if there is one."""
        found = read_json(self.out / name)
        return found if found and found.get("made_from") == self.key else None

    def keep(self, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result of a stage."""
        plain: dict[str, Any] = json.loads(json.dumps({"made_from": self.key, **result}))
        write_json(self.out / name, plain, indent=1)
        return plain

    def stage(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The result of a stage that depends on the time, made unless it is known."""
        found = self.known(name)
        if found is None or found["minutes"] != self.config.time:
            found = self.keep(name, {**make(), "minutes": self.config.time})
        return found


def _defining(config: PipelineConfig) -> dict[str, Any]:
    """The options that results depend on, by name."""
    loose = options_with("incidental", PipelineConfig)
    plain = {**config.to_plain(), "data": _whole(config.data)}
    return {name: value for name, value in plain.items() if name not in loose}


def _whole(source: str) -> str:
    """The whole path of a file; a Minari id stays as it is."""
    return str(Path(source).resolve()) if Path(source).exists() else source
