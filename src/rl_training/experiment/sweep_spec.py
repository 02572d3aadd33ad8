"""The definition of a sweep: varying options, and the runs that follow from them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config import TrainConfig, read_group
from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.options import bind, option, options
from rl_training.core.seeds import parse_seeds
from rl_training.runtime import (
    BoundConfig,
    RunOptions,
    defining_options,
    merge,
    plain_config,
    read_options,
)

LONGEST_NAME = 120
"""The most characters of a run's name before its digest; file systems allow 255."""
MOST_RUNS = 1_000_000
CONFIG = "config"
"""The key under which whole configurations vary."""


@options
class Range:
    """The range of an option: numbers between two bounds, or a list of values."""

    low: float | None = option(None, "smallest value")
    high: float | None = option(None, "largest value")
    log: bool = option(False, "draw the logarithm uniformly, not the value")
    int: bool = option(False, "whole numbers only")
    choice: tuple[Any, ...] | None = option(None, "the values to choose from, in place of bounds", min_length=1)

    def __post_init__(self) -> None:
        if self.choice is not None:
            if self.low is not None or self.high is not None or self.log or self.int:
                raise ConfigError("a range has either a choice, or low and high with log and int, not both")
            return
        if self.low is None or self.high is None:
            raise ConfigError("a range needs low and high, or a choice of values")
        if not self.low < self.high:
            raise ConfigError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ConfigError(f"low must be above 0 where log is true, got {self.low:g}")

    def whole(self, value: float | None) -> float | None:
        """A bound, rounded if the range has whole numbers."""
        return round(value) if self.int and value is not None else value

    def draw(self, rng: np.random.Generator) -> Any:
        """One value."""
        if self.choice is not None:
            return self.choice[int(rng.integers(len(self.choice)))]
        low, high = float(self.low or 0), float(self.high or 0)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else float(rng.uniform(low, high))
        # Six digits are readable, and enough to distinguish values.
        return min(max(round(value), math.ceil(low)), math.floor(high)) if self.int else float(f"{value:.6g}")


@options
class RandomDraws:
    """Values drawn at random, together."""

    draws: int = option(..., "how many", ge=1)
    seed: int = option(0, "seed of the draws", ge=0, le=LARGEST_SEED)
    ranges: dict[str, Any] = option(..., "by option, the range it is drawn from", min_length=1)


@options
class SweepSpec:
    """The runs of a sweep: every case with every point of the grid, every random draw and every seed."""

    config: str | None = option(None, "a configuration for all runs: a YAML file, a packaged name, or an algorithm")
    options: dict[str, Any] = option({}, "options of all runs")
    grid: dict[str, tuple[Any, ...]] = option({}, "by option, its values")
    cases: tuple[dict[str, Any], ...] = option((), "options that go together, one mapping per case")
    random: RandomDraws | None = option(None, "values drawn at random")
    seeds: tuple[int, ...] | str | None = option(None, "seeds of every combination: a list, or text such as 0-4")
    threads: int = option(1, "processors that a run uses", ge=1)

    def __post_init__(self) -> None:
        for key, values in self.grid.items():
            if not values:
                raise ConfigError(f"grid.{key} must not be empty")
        named = [*self.grid, *{key: None for case in self.cases for key in case}]
        named += [] if self.random is None else [*self.random.ranges]
        twice = sorted({key for key in named if named.count(key) > 1})
        if twice:
            raise ConfigError(f"{twice[0]} varies in two places: leave one of them out")
        if self.seeds is not None and "seed" in named:
            raise ConfigError("seeds and seed both say which seeds there are: give one")

    def points(self) -> Iterator[dict[str, Any]]:
        """The varying options of every run, with their values."""
        draws: Sequence[dict[str, Any]] = [{}] if self.random is None else list(_draw(self.random))
        grid = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        given = parse_seeds(self.seeds, name="seeds") if isinstance(self.seeds, str) else self.seeds
        seeds = [{}] if given is None else [{"seed": seed} for seed in given]
        for case, point, draw, seed in itertools.product(self.cases or ({},), grid, draws, seeds):
            yield {**case, **point, **draw, **seed}


def read_sweep(source: SweepSpec | Mapping[str, Any] | str | Path) -> SweepSpec:
    """A sweep from a record, a mapping, or the path of a YAML file."""
    return read_group(source, SweepSpec)


def _draw(random: RandomDraws) -> Iterator[dict[str, Any]]:
    ranges = read_ranges(random.ranges, "random.ranges")
    # Each option has numbers of its own, so that one more option does not change what the others get.
    streams = {key: np.random.default_rng([random.seed, *key.encode()]) for key in ranges}
    for _ in range(random.draws):
        yield {key: each.draw(streams[key]) for key, each in ranges.items()}


def read_ranges(ranges: Mapping[str, Any], where: str) -> dict[str, Range]:
    """Ranges by option; a list of values is short for a choice."""
    found, problems = {}, []
    for key, given in ranges.items():
        values = {"choice": given} if isinstance(given, (list, tuple)) else given
        if not isinstance(values, Mapping):
            problems.append(f"{where}.{key} must be a list of values or a mapping with low and high, got {given!r}")
            continue
        try:
            found[key] = bind(values, Range, where=f"{where}.{key}")[0]
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return found


@dataclass(frozen=True)
class PlannedRun:
    """A run before it has begun: one point of a sweep, or of a search."""

    config: TrainConfig
    """With its name, in the folder of the sweep."""
    options: RunOptions
    values: Mapping[str, Any]
    """The varying options."""
    digest: str
    """The digest of its options, seed and length."""

    @property
    def name(self) -> str:
        """The name of its run directory."""
        return str(self.config.run_name)

    @property
    def bound(self) -> BoundConfig:
        """Its configuration, as a run takes it."""
        return self.config, self.options


def plan_runs(spec: SweepSpec, out: Path) -> list[PlannedRun]:
    """All points of a sweep, checked and without duplicates."""
    runs: dict[str, PlannedRun] = {}
    for values in spec.points():
        if len(runs) >= MOST_RUNS:
            raise ConfigError(f"a sweep has at most {MOST_RUNS} runs")
        run = plan_run(spec.config, [spec.options, values], values, out)
        runs.setdefault(run.digest, run)
    return list(runs.values())


def plan_run(
    base: str | None, layers: Sequence[Mapping[str, Any]], values: Mapping[str, Any], out: Path, label: str = ""
) -> PlannedRun:
    """The run of a configuration with these options written over it; its name begins with the label."""
    try:
        config, options = read_options(write_over(base, layers))
    except ConfigError as error:
        shown = ", ".join(f"{key}: {value}" for key, value in values.items())
        raise ConfigError(*error.problems, where=f"the run with {shown}" if shown else "options") from None
    if config.run_name is not None:
        raise ConfigError("a sweep names its runs itself: leave run_name out")
    digest = _digest(options.resolve(config))
    # The name begins with the configuration where several are compared, else with the algorithm.
    parts = [label, Path(str(values[CONFIG])).with_suffix("").as_posix() if CONFIG in values else config.algo]
    for key, value in values.items():
        if key not in (CONFIG, "algo", "seed"):
            parts.append(f"{key.rpartition('.')[2]}-{f'{value:g}' if isinstance(value, float) else value}")
    readable = re.sub(r"[^a-zA-Z0-9_.+-]", "-", "__".join([part for part in parts if part]))[:LONGEST_NAME]
    name = f"{readable}__seed{config.seed}__{digest}"
    return PlannedRun(replace(config, run_name=name, output_dir=str(out)), options, values, digest)


def write_over(base: str | None, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A configuration with options written over it, under dotted names or in nested mappings."""
    nested: dict[str, Any] = {}
    for key, value in itertools.chain.from_iterable(layer.items() for layer in layers):
        nested = merge(nested, reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value))
    base = nested.pop(CONFIG, base)
    if base is not None and not isinstance(base, str):
        raise ConfigError(f"{CONFIG} must be the name of a configuration, got {base!r}")
    return merge({} if base is None else plain_config(base), nested)


def _digest(config: TrainConfig) -> str:
    """A digest of everything that decides what a run learns."""
    defining = {**defining_options(config), "total_timesteps": config.total_timesteps}
    return hashlib.blake2b(json.dumps(defining, sort_keys=True, default=list).encode(), digest_size=5).hexdigest()
