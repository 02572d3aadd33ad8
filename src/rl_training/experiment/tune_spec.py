"""The definition of a search for good options, and its Optuna study."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from rl_training.config import read_group, read_mapping
from rl_training.core.errors import LARGEST_SEED, ConfigError, import_extra, nearest
from rl_training.core.options import option, options
from rl_training.core.seeds import parse_seeds
from rl_training.experiment.sweep_spec import PlannedRun, Range, plan_run, read_ranges
from rl_training.selection import LOWER_BOUND

Metric = Literal["return_mean", "normalized_score", "success_rate", "fqe_lower"]
Sampler = Literal["tpe", "random", "gp", "cmaes", "qmc"]
Pruner = Literal["median", "hyperband", "halving", "none"]

FEWEST_SEEDS = 4
"""The fewest runs of each kind for a verdict; fewer cannot differ significantly."""


@options
class TuneSpec:
    """A search for good options."""

    config: str = option(..., "the configuration to improve: a YAML file, a packaged name, or an algorithm")
    options: dict[str, Any] = option({}, "options of all runs")
    space: str | dict[str, Any] | None = option(
        None, "by option, its range; or the name of a packaged space; default that of the algorithm"
    )
    trials: int = option(20, "runs with different options", ge=1)
    metric: Metric | None = option(
        None, "what is to be large at the end of a run; default return_mean, or fqe_lower without an environment"
    )
    sampler: Sampler = option("tpe", "method that proposes the next options")
    pruner: Pruner = option("median", "rule that stops hopeless runs early")
    startup_trials: int = option(5, "trials before the sampler and the pruner use results", ge=1)
    seed: int = option(0, "seed of the search and of its runs", ge=0, le=LARGEST_SEED)
    check_seeds: tuple[int, ...] | str = option("100-104", "fresh seeds for the best options and the default ones")
    storage: str | None = option(None, "journal file or database URL of the study; default study.journal in the folder")
    study: str | None = option(None, "name of the study; default the name of the folder")
    threads: int = option(1, "processors that a run uses", ge=1)

    def __post_init__(self) -> None:
        if len(self.fresh_seeds()) < FEWEST_SEEDS:
            raise ConfigError(f"check_seeds must be at least {FEWEST_SEEDS}, got {len(self.fresh_seeds())}")
        used = range(self.seed, self.seed + self.trials)
        if stale := [seed for seed in self.fresh_seeds() if seed in used]:
            raise ConfigError(f"check_seeds must be fresh, and the search may use {stale[0]}: its seeds begin at seed")

    def fresh_seeds(self) -> Sequence[int]:
        """The seeds of the runs that test the result of the search."""
        seeds = self.check_seeds
        return parse_seeds(seeds, name="check_seeds") if isinstance(seeds, str) else list(dict.fromkeys(seeds))


def read_tune(source: TuneSpec | Mapping[str, Any] | str | Path) -> TuneSpec:
    """A search from a record, a mapping, or the path of a YAML file."""
    return read_group(source, TuneSpec)


def packaged_spaces() -> dict[str, Path]:
    """The search spaces shipped with the package, by the name of their algorithm."""
    root = Path(str(resources.files("rl_training"))) / "assets" / "spaces"
    return {path.stem: path for path in sorted(root.glob("*.yaml"))}


def read_space(spec: TuneSpec, algo: str) -> dict[str, Range]:
    """The ranges of a search, by option."""
    if isinstance(spec.space, dict):
        if not spec.space:
            raise ConfigError("space must not be empty: name the options that vary, and their ranges")
        return read_ranges(spec.space, "space")
    name, packaged = spec.space or algo, packaged_spaces()
    if name not in packaged:
        hint = nearest(name, packaged) or f"; there are {', '.join(packaged)}, or write one as a mapping"
        raise ConfigError(f"there is no packaged search space {name!r}{hint}")
    return read_ranges(read_mapping(packaged[name]), f"space {name}")


def plan_trial(spec: TuneSpec, params: Mapping[str, Any], out: Path, *, seed: int, label: str = "") -> PlannedRun:
    """The run with these options on top of those of the search."""
    return plan_run(spec.config, [spec.options, params, {"seed": seed}], params, out, label)


def check_space(spec: TuneSpec, space: Mapping[str, Range], out: Path) -> None:
    """Refuse options that the algorithm does not have, or that cannot have a value of their range."""
    for key, each in space.items():
        for value in each.choice or (each.whole(each.low), each.whole(each.high)):
            plan_trial(spec, {key: value}, out, seed=spec.seed)


def pick_metric(spec: TuneSpec, run: PlannedRun) -> Metric:
    """The metric of the search: the given one, else the return, or without an environment the estimated value."""
    has_env = run.config.env_id is not None
    metric: Metric = spec.metric or ("return_mean" if has_env else "fqe_lower")
    if metric != LOWER_BOUND and not has_env:
        raise ConfigError(f"metric {metric} needs an environment: set env_id, or metric: {LOWER_BOUND}")
    return metric


def encode(value: Any) -> Any:
    """A listed value as a study stores it; lists and mappings become text."""
    return json.dumps(value) if isinstance(value, (list, tuple, dict)) else value


def decode(value: Any, each: Range) -> Any:
    """The listed value that a study has stored."""
    return next((given for given in each.choice or () if encode(given) == value), value)


FEWEST_TRIALS = 4
"""The fewest complete trials for importances."""


def suggest(trial: Any, key: str, each: Range) -> Any:
    """A value of a range, proposed by the study."""
    if each.choice is not None:
        return decode(trial.suggest_categorical(key, [encode(value) for value in each.choice]), each)
    if each.int:
        return trial.suggest_int(key, each.whole(each.low), each.whole(each.high), log=each.log)
    return trial.suggest_float(key, each.low, each.high, log=each.log)


def open_study(spec: TuneSpec, journal: Path) -> Any:
    """The study in its storage, by default a journal file, made if it is missing."""
    optuna, name, where = require_optuna(), spec.study or journal.resolve().parent.name, spec.storage or str(journal)
    try:
        storage: Any = where
        if "://" not in where:
            files = optuna.storages.journal
            storage = files.JournalStorage(files.JournalFileBackend(where))
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
    except Exception as error:
        # The libraries behind a URL have errors of their own. The URL may hold a password.
        kind = where.partition("://")[0] if "://" in where else where
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"storage {kind!r} cannot be used for the study {name!r} ({reason})") from None
    if len(study.directions) != 1 or study.direction.name != "MAXIMIZE":
        raise ConfigError(f"the study {name!r} has other aims than one value to maximise: choose another name")
    # A search that is continued must not draw the same values as at its start.
    seed = spec.seed + len(study.get_trials(deepcopy=False))
    study.sampler, study.pruner = _sampler(optuna, spec, seed), _pruner(optuna, spec)
    return study


def _sampler(optuna: Any, spec: TuneSpec, seed: int) -> Any:
    samplers, first = optuna.samplers, spec.startup_trials
    makers = {
        # Trials that are still running count as bad ones, so that workers do not all try the same.
        "tpe": lambda: samplers.TPESampler(seed=seed, n_startup_trials=first, constant_liar=True),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed, n_startup_trials=first),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed, n_startup_trials=first),
        "qmc": lambda: samplers.QMCSampler(seed=spec.seed),
    }
    try:
        return makers[spec.sampler]()
    except ImportError as error:
        raise ConfigError(f"sampler {spec.sampler} needs another package ({error})") from None


def _pruner(optuna: Any, spec: TuneSpec) -> Any:
    pruners = optuna.pruners
    makers = {
        "median": lambda: pruners.MedianPruner(n_startup_trials=spec.startup_trials),
        "hyperband": pruners.HyperbandPruner,
        "halving": pruners.SuccessiveHalvingPruner,
        "none": pruners.NopPruner,
    }
    return makers[spec.pruner]()


def resume_trial(study: Any, stored: Any) -> Any:
    """A trial of an earlier call, which can be reported to again."""
    return require_optuna().trial.Trial(study, stored._trial_id)


def report(study: Any, trial: Any, value: float, step: int) -> None:
    """Report the score of a trial, unless it is known; a resumed run reaches some steps again."""
    if step not in study.get_trials(deepcopy=False)[trial.number].intermediate_values:
        trial.report(value, step)


def tell_end(study: Any, trial: Any, state: str) -> None:
    """Report the end of a trial without a score."""
    study.tell(trial, state=require_optuna().trial.TrialState[state])


def importances(study: Any) -> dict[str, float]:
    """The importance of each option for good trials, the most important first; empty with few trials."""
    complete = [each for each in study.get_trials() if each.state.name == "COMPLETE"]
    if len(complete) < FEWEST_TRIALS or len({each.value for each in complete}) < 2:
        return {}
    importance = require_optuna().importance
    with warnings.catch_warnings():
        # It is an experimental part of Optuna, and the only one without a further dependency.
        warnings.simplefilter("ignore")
        return dict(importance.get_param_importances(study, evaluator=importance.PedAnovaImportanceEvaluator()))


def require_optuna() -> Any:
    """Import Optuna, with its own messages turned off."""
    optuna = import_extra("optuna", "tune", "tuning")
    import_extra("optuna.storages.journal", "tune", "tuning")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
