"""Optuna's study: where it is stored, how it chooses options, and how it is told what came of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, import_extra
from rl_training.experiment.sweep_spec import Range
from rl_training.experiment.tune_spec import TuneSpec, decode, encode

FEWEST_TRIALS = 4
"""Complete trials without which importances say nothing."""


def suggest(trial: Any, key: str, each: Range) -> Any:
    """Let the study choose a value of a range."""
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
    # A search that goes on must not draw again what it drew at its start.
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


def go_on(study: Any, stored: Any) -> Any:
    """A trial of an earlier call, which can be reported to again."""
    return require_optuna().trial.Trial(study, stored._trial_id)


def report(study: Any, trial: Any, value: float, step: int) -> None:
    """Tell a study what a trial has reached; a resumed run reaches some steps again."""
    if step not in study.get_trials(deepcopy=False)[trial.number].intermediate_values:
        trial.report(value, step)


def tell_end(study: Any, trial: Any, state: str) -> None:
    """Tell a study that a trial has ended without a score."""
    study.tell(trial, state=require_optuna().trial.TrialState[state])


def importances(study: Any) -> dict[str, float]:
    """How much each option explains of which trials were good, the most important first; none from few trials."""
    complete = [each for each in study.get_trials() if each.state.name == "COMPLETE"]
    if len(complete) < FEWEST_TRIALS or len({each.value for each in complete}) < 2:
        return {}
    importance = require_optuna().importance
    with warnings.catch_warnings():
        # It is an experimental part of Optuna, and the only one without a further dependency.
        warnings.simplefilter("ignore")
        return dict(importance.get_param_importances(study, evaluator=importance.PedAnovaImportanceEvaluator()))


def require_optuna() -> Any:
    """Optuna, which says nothing of its own on the terminal."""
    optuna = import_extra("optuna", "tune", "tuning")
    import_extra("optuna.storages.journal", "tune", "tuning")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
