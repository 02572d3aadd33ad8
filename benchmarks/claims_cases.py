"""Cases of `claims.py`: what `estimate`, `select`, `pipeline` and `tune` say about a log of a world, and what is true.

A case is asked as a user would ask: by the package's functions, with logs in files. Networks are small, and trainings
short. Every statement is a plain record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from claims_tables import BANDIT_COLUMNS, Bandit, IntensiveCare, NullTabular, OptimalTabular, Tabular, greedy_by_counts
from claims_worlds import (
    TANK_COLUMNS,
    Act,
    Array,
    Drift,
    Hidden,
    Linear,
    Offset,
    OptimalLinear,
    Persistent,
    Steering,
    Tanks,
    TankTable,
    Truth,
    World,
)

from rl_training import estimate, run_pipeline, run_tuning, select, train
from rl_training.core.errors import UserError
from rl_training.data import TransitionDataset, audit_data
from rl_training.runtime import load_policy

CANNOT, REFUSED = "cannot be judged", "refused"
"""A verdict of the package, and what stands here for an error in the place of an answer."""
SMALL: dict[str, Any] = {"hidden_sizes": [32], "batch_size": 64, "learning_rate": 3e-3}
"""Options of networks that learn in a second."""
QUICK: dict[str, Any] = {"members": 8, "hidden_sizes": (32,), "learning_rate": 3e-3, "tau": 0.2, "compiled": False}
"""Options of a fit of a second."""
UPDATES = 1000
TUNED = 300
OTHER = 1000
"""Added to a seed, that of a log of which the first one knows nothing."""
SPACES: dict[str, dict[str, Any]] = {
    "discrete_bcq": {"algo_kwargs.threshold": [0.02, 0.6, 0.95]},
    "td3_bc": {"algo_kwargs.bc_alpha": [0.2, 1.5]},
    "dqn": {"algo_kwargs.learning_rate": [3e-4, 1e-3, 1e-2]},
}
DEFAULTS: dict[str, dict[str, Any]] = {"td3_bc": {"bc_alpha": 0.6}}
"""Default options of searches, whose policies a log can judge."""
WITH_CLAIM, WITHOUT_CLAIM = 110, 70
"""Episodes of null worlds for the pipeline: with a part for the claim, and without."""
FOR_SEARCH = 150
"""Episodes of null worlds for searches, of which enough are held out."""


@dataclass
class Statement:
    """One thing that was said, and what is true."""

    call: str
    """The question; what one call said about several policies belongs together."""
    subject: str
    said: str
    """The verdict, or `refused`."""
    reasons: list[str] = field(default_factory=list)
    value: float | None = None
    interval: list[float] | None = None
    spread: float | None = None
    """The standard deviation of the logged returns, for widths."""
    gamma: float | None = None
    truth: float | None = None
    difference: float | None = None
    """How much better than the data, or than the default options, it truly is."""
    error: float = 0.0
    """The standard error of that."""
    sentence: str = ""


@dataclass
class Case:
    """A log of a world, in a folder of its own."""

    world: World
    seed: int
    folder: Path
    table: TankTable | None = None

    @cached_property
    def path(self) -> Path:
        """The file of the log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.world, Bandit):
            path = self.folder / "log.csv"
            self.world.write(self.seed, path)
        elif isinstance(self.world, Tanks) and self.table is not None:
            path = self.folder / "log.csv"
            self.table.write(self.world, self.seed, path)
        else:
            path = self.folder / "log.npz"
            np.savez(path, **self.arrays)  # type: ignore[arg-type]
        return path

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The log, without the mistakes of a table."""
        return self.world.log(self.seed)

    @property
    def columns(self) -> dict[str, Any] | None:
        """What the columns of a table mean."""
        return {".csv": BANDIT_COLUMNS if isinstance(self.world, Bandit) else TANK_COLUMNS}.get(self.path.suffix)

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds of continuous actions, as options."""
        if self.world.num_actions is not None:
            return {}
        count = self.arrays["actions"].shape[1]
        return {"action_low": [self.world.low] * count, "action_high": [self.world.high] * count}

    @property
    def source(self) -> dict[str, Any]:
        """The log, as options of a run."""
        size = {} if self.world.num_actions is None or self.columns else {"num_actions": self.world.num_actions}
        columns = {} if self.columns is None else {"dataset_columns": self.columns}
        return {"dataset_path": str(self.path.resolve()), **columns, **self.bounds, **size}

    @property
    def algorithms(self) -> tuple[str, ...]:
        """What learns from this log."""
        if self.world.num_actions is None:
            return "td3_bc", "bc"
        return ("dqn", "discrete_bcq") if isinstance(self.world, Bandit) else ("discrete_bcq", "dqn")

    def run_options(self, algo: str, updates: int) -> dict[str, Any]:
        """The options of a run on this log."""
        own: dict[str, Any] = {"mode": "offline"} if algo == "dqn" else {}
        if isinstance(self.world, Bandit):
            own["gamma"] = 0.0
        kwargs = {**SMALL, **self.source, **own, "compile": "never", "eval_interval": updates}
        return {"total_timesteps": updates, "log_interval": updates, "checkpoint_interval": updates} | {
            "algo_kwargs": kwargs
        }

    @cached_property
    def runs(self) -> list[str]:
        """Runs that were trained on this log, as a user would train them."""
        found = []
        for algo in self.algorithms:
            options = self.run_options(algo, UPDATES)
            options["algo_kwargs"]["eval_interval"] = None
            run = train({"algo": algo, "output_dir": str(self.folder / "runs"), "run_name": algo, **options})
            found.append(str(run.run_dir))
        return found

    def warnings(self) -> list[str]:
        """The checks of the audit that warn, or fail."""
        if self.columns is not None:
            report = audit_data(str(self.path), columns=self.columns)
        else:
            report = audit_data(TransitionDataset.from_dict(self.arrays))
        return [f"{each.check} ({each.verdict})" for each in report.findings if each.is_alarm]

    def truth_of(self, name: str, path: str | None, gamma: float) -> Truth:
        """What a policy is worth: one that was made elsewhere, by its name, or that of a run."""
        if path is not None:
            return self.world.truth(load_policy(path).predict, gamma)
        return self.world.truth(self.known[name], gamma)

    @cached_property
    def known(self) -> dict[str, Act]:
        """Functions by name: policies that were made elsewhere; those that the log made are added."""
        return self.world.policies()

    # What is asked.

    def elsewhere(self) -> Iterator[Statement]:
        """Statements about policies that this log did not make."""
        policies = self.known
        for gamma in self.discounts:
            yield from self._estimate(f"made elsewhere{gamma_text(gamma)}", policies, gamma=gamma, split="held-out")
        yield from self._select("made elsewhere", policies, split="held-out")
        other = replace(self, seed=self.seed + OTHER, folder=self.folder / "other")
        yield from self._estimate("runs of another log", other.runs)
        if self.world.num_actions is not None and self.counts() is not None:
            self.known["greedy by another log"] = greedy_by_counts(other.arrays, self.world.num_actions)
            policy = {"greedy by another log": self.known["greedy by another log"]}
            yield from self._estimate("made by another log", policy, split="held-out")

    def trained(self) -> Iterator[Statement]:
        """Statements about policies that this log made."""
        yield from self._estimate("its own runs", self.runs, data=False)
        yield from self._estimate("its own runs, split=all", self.runs, data=False, split="all")
        yield from self._estimate("its own runs, dataset=the log", self.runs)
        yield from self._select("its own runs", self.runs, data=False)
        if (counted := self.counts()) is not None:
            self.known["greedy by counts"] = counted
            yield from self._estimate("greedy by its own counts", {"greedy by counts": counted})

    def pipeline(self) -> Iterator[Statement]:
        """Statements of pipelines, in their sentences and in their tables."""
        for gamma in self.discounts[:2]:
            yield from self._pipeline(gamma)

    def _pipeline(self, gamma: float | None) -> Iterator[Statement]:
        call, out = f"pipeline{gamma_text(gamma)}", self.folder / f"pipeline{gamma or ''}"
        config: dict[str, Any] = {"data": str(self.path), "columns": self.columns, "gamma": gamma, **self.bounds}
        config |= {"updates": UPDATES // 2, "seeds": [0], "members": 5, "algo_kwargs": SMALL}
        if self.world.num_actions is not None and self.columns is None:
            config["num_actions"] = self.world.num_actions
        if gamma is None:
            config["fit_updates"] = self.fit_updates
        try:
            result = run_pipeline(config, out)
        except UserError as error:
            yield refusal(call, error)
            return
        claim, selection = result.claim, result.selection
        if claim is None or selection is None:
            yield Statement(call, "nothing", CANNOT, [result.sentence], sentence=result.sentence)
            return
        about = selection["estimates"]
        each: dict[str, Any]
        for each in selection["candidates"]:
            if each["verdict"] is not None:
                yield self._record(f"{call}, table", each, about["gamma"], about["logged_std"], each["path"])
        found = self._record(call, claim, about["gamma"], about["logged_std"], str(out / "runs" / claim["name"]))
        found.sentence = result.sentence
        if found.said.startswith("better") and not result.beats_the_data:
            # The sentence counts, whatever the numbers behind it.
            found.said, found.reasons = CANNOT, [result.sentence]
        yield found

    def tune(self) -> Iterator[Statement]:
        """The statement of a search: whether its options are better than the default ones."""
        algo, out = self.algorithms[0], self.folder / "tune"
        options = self.run_options(algo, TUNED)
        options["algo_kwargs"] |= DEFAULTS.get(algo, {})
        spec = {"config": algo, "options": options, "space": SPACES[algo], "trials": 2}
        try:
            result = run_tuning({**spec, "sampler": "random", "seed": self.seed, "check_seeds": "20000-20003"}, out)
        except UserError as error:
            yield refusal("tune", error)
            return
        check = result.check
        if check.interval is None:
            yield Statement("tune", "best options", CANNOT, [*check.failed[:1]], sentence=check.sentence)
            return
        known = {
            label: [self.truth_of("", str(run), 0.95).value for run in sorted((out / "checks").glob(f"{label}__*"))]
            for label in ("best", "default")
        }
        difference = 0.0 if self.world.is_null else float(np.mean(known["best"]) - np.mean(known["default"]))
        said = check.verdict if check.verdict == "not distinguishable" else f"{check.verdict} than the default options"
        yield Statement("tune", "best options", said, difference=difference, sentence=check.sentence)

    @property
    def discounts(self) -> tuple[float | None, ...]:
        """Discounts to ask for; None is the default."""
        return (None, 1.0, 0.99) if isinstance(self.world, IntensiveCare) else (None,)

    @property
    def fit_updates(self) -> int:
        """Updates of a fit that a pipeline may judge by."""
        gamma = 1 - 1 / max(self.world.length, 1)
        return max(600, math.ceil(3.2 / (0.05 * (1 - gamma))))

    def fit(self, gamma: float | None) -> dict[str, Any]:
        """Options of a fit that converges at the default discount; where another is asked for, the package decides."""
        known = gamma is None and not isinstance(self.world, IntensiveCare)
        return {**QUICK, "gamma": gamma, "updates": max(500, 25 * self.world.length) if known else None}

    def counts(self) -> Act | None:
        """The greedy policy by the counts of this log, where actions are discrete and states repeat."""
        if self.world.num_actions is None or isinstance(self.world, IntensiveCare):
            return None
        return greedy_by_counts(self.arrays, self.world.num_actions)

    def _given(self, *, data: bool) -> dict[str, Any]:
        """The log, as arguments of `estimate`; runs know their own."""
        return {"dataset": str(self.path), "columns": self.columns} if data else {}

    def _estimate(
        self, call: str, policies: Any, *, data: bool = True, gamma: float | None = None, **options: Any
    ) -> Iterator[Statement]:
        call = f"estimate, {call}"
        bounds = self.bounds if isinstance(policies, dict) else {}
        try:
            found = estimate(policies, **self._given(data=data), **self.fit(gamma), **bounds, **options)
        except UserError as error:
            yield refusal(call, error)
            return
        for each in found.policies:
            yield self._record(call, asdict(each), found.gamma, found.logged_std, each.path)
        for weighted in found.weighted:
            if weighted.headline is not None and weighted.headline.interval is not None and not weighted.is_drawn:
                path = found[weighted.name].path
                plain = {"name": weighted.name, **asdict(weighted.headline), "verdict": "by weights", "reasons": ()}
                yield self._record(f"{call}, weights", plain, found.gamma, found.logged_std, path)
        yield from self._best(call, found)

    def _best(self, call: str, found: Any) -> Iterator[Statement]:
        """Which policies are called best, and whether the truly best one of those judged is among them."""
        values = {
            each.name: self.truth_of(each.name, each.path, found.gamma).value
            for each in found.policies
            if each.verdict != CANNOT
        }
        if len(values) > 1 and not self.world.is_null:
            lost = max(values[name] for name in found.best) - max(values.values())
            names = ", ".join(found.best)
            yield Statement(f"{call}, best", names, "best", difference=lost, spread=found.logged_std)

    def _select(self, call: str, policies: Any, *, data: bool = True, **options: Any) -> Iterator[Statement]:
        call = f"select, {call}"
        bounds = self.bounds if isinstance(policies, dict) else {}
        try:
            found = select(policies, **self._given(data=data), **self.fit(None), **bounds, **options)
        except UserError as error:
            yield refusal(call, error)
            return
        about = found.estimates
        if found.claim is None:
            reasons = [reason for each in found.candidates for reason in each.reasons[:1]]
            yield Statement(call, "nothing", CANNOT, reasons[:1])
            return
        path = found[found.claim.name].path
        yield self._record(call, asdict(found.claim), about.gamma, about.logged_std, path)

    def _record(self, call: str, each: dict[str, Any], gamma: float, spread: float, path: str | None) -> Statement:
        """A statement about a policy, with the truth about it."""
        truth = self.truth_of(each["name"], path, gamma)
        interval = each["interval"]
        return Statement(
            call=call,
            subject=Path(each["name"]).name,
            said=each["verdict"],
            reasons=list(each["reasons"]),
            value=each["value"],
            interval=None if interval is None else [float(end) for end in interval],
            spread=spread,
            gamma=gamma,
            truth=truth.value,
            difference=truth.difference,
            error=truth.error,
        )


def gamma_text(gamma: float | None) -> str:
    """A discount that was asked for, in words."""
    return "" if gamma is None else f", discount {gamma:g}"


def refusal(call: str, error: Exception) -> Statement:
    """An error in the place of an answer."""
    return Statement(call, "all", REFUSED, [str(error).strip().splitlines()[0][:200]])


@dataclass(frozen=True)
class Plan:
    """A world, and how often it is asked what."""

    make: Callable[[int], World]
    rounds: dict[str, tuple[int, int]]
    """By kind of question, the number of logs at full size and with `--quick`."""
    table: TankTable | None = None


USUAL = {"elsewhere": (8, 2), "trained": (5, 1), "pipeline": (3, 1)}
NULL = {"elsewhere": (20, 3), "trained": (60, 8), "pipeline": (60, 3), "tune": (60, 1)}


def plain(kind: Callable[[], World], _: int) -> World:
    """A world that is the same for every log."""
    return kind()


PLANS: dict[str, Plan] = {
    "null-tabular": Plan(NullTabular, NULL),
    "null-continuous": Plan(partial(plain, Drift), NULL),
    "null-bandit": Plan(partial(plain, Bandit), NULL),
    "tanks": Plan(partial(plain, Tanks), {**USUAL, "tune": (3, 0)}, TankTable()),
    "tanks-dirty": Plan(partial(plain, Tanks), USUAL, TankTable(dirty=True)),
    "tanks-late": Plan(partial(plain, Tanks), USUAL, TankTable(late=1.0)),
    "tanks-late-5%": Plan(partial(plain, Tanks), USUAL, TankTable(late=0.05)),
    "optimal-discrete": Plan(OptimalTabular, USUAL),
    "optimal-continuous": Plan(partial(plain, OptimalLinear), USUAL),
    "offset-null": Plan(partial(plain, Offset), USUAL),
    "offset-steering": Plan(partial(plain, Steering), USUAL),
    "hidden-step": Plan(partial(plain, Hidden), USUAL),
    "hidden-episode": Plan(partial(plain, Persistent), USUAL),
    "icu-sepsis": Plan(partial(plain, IntensiveCare), {"elsewhere": (6, 1), "trained": (3, 0), "pipeline": (2, 0)}),
    "random-mdp": Plan(Tabular, {**USUAL, "elsewhere": (20, 3), "tune": (3, 0)}),
    "linear-quadratic": Plan(partial(plain, Linear), {**USUAL, "elsewhere": (20, 3)}),
}


def ask(name: str, kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Everything that is said in one case, as plain values."""
    plan = PLANS[name]
    case = Case(plan.make(seed), seed, folder, plan.table)
    if case.world.is_null and not isinstance(case.world, Bandit):
        own = {"pipeline": WITHOUT_CLAIM if seed % 2 else WITH_CLAIM, "tune": FOR_SEARCH}
        case.world.episodes = own.get(kind, case.world.episodes)
    statements = [asdict(each) for each in getattr(case, kind)()]
    about = {"world": name, "kind": kind, "seed": seed, "is_null": case.world.is_null}
    return {**about, "warnings": case.warnings(), "statements": statements}
