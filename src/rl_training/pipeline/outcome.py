"""The evaluation of a pipeline's runs by the rules of `select`, on episodes that none was trained on; the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rl_training.core.machine import one_thread
from rl_training.core.text import plural
from rl_training.data.audit import AGAINST_CLAIMS
from rl_training.experiment import ProgressListener
from rl_training.ope import (
    ASSUMPTION,
    BETTER,
    CANNOT,
    SAME,
    FitOptions,
    FitSettings,
    OutOfTimeError,
    decide_outcomes,
    horizon_text,
    policy_inputs,
    verdict_text,
)
from rl_training.pipeline.candidates import is_clone
from rl_training.pipeline.config import Workspace
from rl_training.pipeline.splits import AUDIT, DataSplits
from rl_training.pipeline.time_budget import LAST_SECONDS, LONG_FITS, MARGIN, Clock, TimeBudget, between, fit_speed
from rl_training.selection import (
    NO_TIME,
    Basis,
    Claim,
    EvaluationData,
    RealEpisodes,
    Selection,
    choose,
    claim_without_choice,
    find_evaluation_data,
    held_out_claim,
    named_policies,
    not_judged,
)

CLAIM_FITS = 2
"""Fits for a claim: of the logged behaviour and of the selected policy."""

PLENTY = 1.3

OVERTIME = 0.05
"""The share of the time by which it may be exceeded, so that at least one policy is judged."""


@dataclass(frozen=True)
class Judge:
    """Evaluates runs of a pipeline."""

    space: Workspace
    splits: DataSplits
    budget: TimeBudget
    clock: Clock
    listener: ProgressListener

    def judge_runs(self, names: list[str]) -> dict[str, Any]:
        """The selection among these runs, as plain values; without a claim if there are claim episodes."""
        has_claim, named = self.splits.has_claim, named_policies(self._runs(names))
        policies = {name: each.policy for name, each in named.items()}
        episodes = self.space.config.real_episodes
        real = RealEpisodes.up_to(episodes, policies, tell=lambda pull: self.listener.on_news([pull.sentence]))
        data = self._data(named, "selection")
        later = CLAIM_FITS * has_claim + self._further_fits
        try:
            with one_thread():
                settings, seconds = self._settings("selection", len(names) + 1 + later)
                self.listener.on_fits(len(names) + 1)
                until = self._until(LAST_SECONDS + seconds * later, names)
                found = choose(named, data, replace(settings, progress=until), real)
                if found.chosen is not None and not has_claim:
                    found = replace(found, claim=self._claim_all(found, named, data, settings))
        except OutOfTimeError:
            return _no_selection(named)
        return found.to_plain()

    def judge_selected(self, chosen: str, earlier: int) -> dict[str, Any]:
        """The claim about a run by the claim episodes, and the estimates behind it.

        Where these episodes have decided `earlier` claims, as with less time, its evidence must be as much stronger.
        """
        named = named_policies(self._runs([chosen]))
        data = self._data(named, "claim")
        try:
            with one_thread():
                settings, _ = self._settings("claim", CLAIM_FITS + self._further_fits)
                self.listener.on_fits(CLAIM_FITS + self._further_fits)
                claim, found = held_out_claim(chosen, named, data, settings)
        except OutOfTimeError:
            claim = _no_claim(chosen, "held-out episodes", data)
            return {"claim": {**asdict(claim), "looks": earlier}, "estimates": None}
        looks, better = earlier + (claim.value is not None), claim.probability_better or 0.0
        if not claim.reasons and decide_outcomes([1 - better] * looks, [better] * looks)[0] == SAME:
            claim = replace(claim, verdict=SAME)
        return {"claim": {**asdict(claim), "looks": looks}, "estimates": found.to_plain()}

    def _data(self, named: Mapping[str, Any], part: str) -> EvaluationData:
        """The episodes of a part, with the doubt of an audit that has seen all of them."""
        data = find_evaluation_data(named, self.splits.path(part), "held-out", accept_audit=True)
        found = (self.space.known(AUDIT) or {"findings": []})["findings"]
        warns = [each for each in found if each["check"] == AGAINST_CLAIMS and each["verdict"] == "warn"]
        is_doubtful = not self.space.config.accept_audit and bool(warns)
        return replace(data, doubt=warns[0]["message"]) if is_doubtful else data

    def describe_clone(self, name: str) -> str:
        """How near a clone is to the log, and how good it may be, for a reader who gets nothing but the clone."""
        named = named_policies(self._runs([name]))
        log = find_evaluation_data(named, self.splits.path("selection"), "held-out").log
        # Of discrete actions, these are probabilities.
        gaps = (policy_inputs(named[name].policy, log, name)(log.dataset.obs) - log.logged_actions()).abs() / 2
        is_discrete = log.dataset.is_discrete
        far = f"in {gaps.sum(1).mean():.0%} of the rows" if is_discrete else f"by {gaps.mean():.0%} of their range"
        worse = "Where several operators made the log, it may be worse than each of them, and than the log."
        return f"It imitates the logged behaviour on average; on held-out episodes its actions differ {far}. {worse}"

    def _claim_all(self, found: Selection, named: dict[str, Any], data: EvaluationData, settings: FitSettings) -> Claim:
        try:
            return claim_without_choice(found, named, data, settings)
        except OutOfTimeError:
            return _no_claim(str(found.chosen), "selection episodes", data)

    @property
    def _further_fits(self) -> int:
        """The most fits that importance sampling needs."""
        return int(self.splits.has_probabilities)

    def _runs(self, names: list[str]) -> dict[str, str]:
        return {name: str(self.space.out / "runs" / name) for name in names}

    def _settings(self, part: str, fits: int) -> tuple[FitSettings, float]:
        """The settings of each fit, and its expected seconds."""
        updates, seconds = self._affordable(part, fits)
        budget, seed = self.budget, self.space.config.seed
        steps = self.splits.episode_steps
        options = FitOptions(
            gamma=budget.gamma, episode_steps=steps, members=budget.members, updates=updates, seed=seed
        )
        # With a time limit, fits are compiled only if there is so much time that it pays.
        compiled = None if self.clock.left is None else budget.fits_seconds > LONG_FITS
        return FitSettings(options, compiled, self._tell), seconds

    def _affordable(self, part: str, fits: int) -> tuple[int, float]:
        """The updates of each fit, and its expected seconds."""
        left = self.clock.left
        if left is None:
            return self.budget.fit_updates, 0.0
        speed = fit_speed(self.splits.path(part), self.budget.gamma, self.budget.members) / MARGIN
        # Longer fits than needed only if there is plenty of time: other processes may slow this machine down.
        updates = between(
            (left - LAST_SECONDS) * speed / fits / PLENTY, self.splits, self.space.config, self.budget.gamma
        )
        return updates, updates / speed

    def _tell(self, name: str, done: int, total: int) -> None:
        """Report the progress of a fit, and end it if much more time is used than was given."""
        self.clock.tick()
        self.listener.on_fit(name, done, total)
        latest = LAST_SECONDS - OVERTIME * (self.budget.seconds or 0.0)
        if self.clock.left is not None and self.clock.left < latest and done < total:
            raise OutOfTimeError

    def _until(self, reserved: float, names: list[str]) -> Callable[[str, int, int], None]:
        """As `_tell`, but once a policy is judged, end the others when only the reserved seconds are left."""
        fitted: set[str] = set()

        def tell(name: str, done: int, total: int) -> None:
            if name in names and done == total:
                fitted.add(name)
            self._tell(name, done, total)
            is_late = self.clock.left is not None and self.clock.left < reserved
            if is_late and name in names and fitted and done < total:
                raise OutOfTimeError

        return tell


def _no_claim(chosen: str, basis: Basis, data: EvaluationData) -> Claim:
    """A claim that there was no time for."""
    return Claim(chosen, basis, len(data.log.bounds), CANNOT, (NO_TIME,), None, None, None, None)


def _no_selection(names: Iterable[str]) -> dict[str, Any]:
    """A selection that there was no time for, as plain values."""
    empty: dict[str, Any] = {"best": [], "chosen": None, "claim": None, "pulls": [], "budget": 0, "estimates": None}
    return {"candidates": [asdict(not_judged(name, (NO_TIME,))) for name in names], **empty}


Plain = Mapping[str, Any]
CLONED = "The clone of the logged behaviour is exported, marked as such."


@dataclass(frozen=True)
class PipelineOutcome:
    """The exported policy, and the statement about it."""

    sentence: str
    """The outcome in words."""
    chosen: str
    """The run whose policy is exported."""
    is_clone: bool
    """Whether that is the clone of the logged behaviour, since nothing was shown to be better."""
    beats_the_data: bool
    claim_on: str
    """The episodes that the claim is about."""
    gamma: float
    """The discount of the values that it is about."""


def conclude(
    splits: DataSplits, selection: Plain | None, claim: Plain | None, *, clone: str, too_short: str | None = None
) -> PipelineOutcome:
    """The outcome. A policy is exported as better only if the claim about it says so.

    `too_short` says why there was no time to judge any policy.
    """
    on, horizon = "claim episodes" if splits.has_claim else "selection data", horizon_text(splits.gamma)
    if not splits.facts.can_improve:
        why = "all rewards are the same" if splits.facts.has_rewards else "the data has no rewards"
        sentence = f"Nothing can be called better: {why}."
    elif claim is None:
        sentence = _not_judged(selection, too_short, horizon)
    elif claim["verdict"] == BETTER:
        name = claim["name"]
        sentence = f"{name} is better than the data {horizon}, {_basis(splits, claim)}, provided that {ASSUMPTION}."
        return PipelineOutcome(sentence, name, is_clone(name), True, on, splits.gamma)
    else:
        said = f"{verdict_text(claim['verdict'])} {horizon}"
        said = f"{said}: {claim['reasons'][0]}" if claim["verdict"] == CANNOT else f"is {said}"
        doubt = f"{claim['name']} was selected, and {_basis(splits, claim)}, it {said}"
        sentence = f"Nothing is shown to beat the data: {doubt}."
    return PipelineOutcome(f"{sentence} {CLONED}", clone, True, False, on, splits.gamma)


def _basis(splits: DataSplits, claim: Mapping[str, Any]) -> str:
    """The episodes of a claim in words."""
    if splits.has_claim:
        earlier = f" (but {plural(claim['looks'] - 1, 'earlier claim')})" if claim["looks"] > 1 else ""
        return f"on {splits.episodes['claim']:,} episodes that neither training nor selection has seen{earlier}"
    return f"on selection data (the same {splits.episodes['selection']} episodes were used to select it)"


def _not_judged(selection: Plain | None, too_short: str | None, horizon: str) -> str:
    """The first reason why no policy can be judged."""
    if selection is None and too_short is None:
        return "No policy was judged: the training of each that was to be judged has failed."
    reason = next((why for each in (selection or {"candidates": ()})["candidates"] for why in each["reasons"]), NO_TIME)
    if reason == NO_TIME:
        late = f"the time was over before the first value {horizon} was known; more --minutes in this folder continue"
        return f"No policy was judged, for lack of time: {too_short or late}."
    return f"No policy can be judged by this log {horizon}: {reason}."
