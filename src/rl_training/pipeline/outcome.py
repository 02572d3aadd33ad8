"""How a pipeline judges its runs: by the rules of `select`, on episodes that none of them was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rl_training.core.machine import one_thread
from rl_training.experiment import ProgressListener
from rl_training.ope import BETTER, CANNOT, FitOptions, OutOfTimeError, verdict_text
from rl_training.pipeline.candidates import is_clone
from rl_training.pipeline.config import Workspace
from rl_training.pipeline.splits import Parts
from rl_training.pipeline.time_budget import LAST_SECONDS, LONG_FITS, MARGIN, Clock, Plan, between, fit_speed
from rl_training.selection import (
    NO_TIME,
    Basis,
    Candidate,
    Claim,
    EvaluationData,
    Selection,
    check_can_run,
    choose,
    corrected_claim,
    held_out_claim,
    judged_data,
    named_policies,
)

CLAIM_FITS = 2
"""A claim fits the logged behaviour and the chosen policy."""

PLENTY = 1.3

OVERTIME = 0.05
"""The share of the time by which it may be exceeded, so that at least one policy is judged."""


@dataclass(frozen=True)
class Judge:
    """Judges runs of a pipeline."""

    space: Workspace
    parts: Parts
    plan: Plan
    clock: Clock
    watcher: ProgressListener

    def choose(self, names: list[str]) -> dict[str, Any]:
        """The selection among these runs, as plain values; where there are claim episodes, nothing is claimed yet."""
        has_claim, named = self.parts.has_claim, self._named(names)
        runnable = check_can_run({name: policy for name, (policy, _) in named.items()}, None) if self._episodes else {}
        data = judged_data(named, self.parts.path("selection"), "held-out", None)
        later = CLAIM_FITS * has_claim + self._weighs
        try:
            with one_thread():
                updates, seconds = self._affordable("selection", len(names) + 1 + later)
                options = self._options(updates)
                self.watcher.on_fits(len(names) + 1)
                found = choose(
                    named,
                    data,
                    options,
                    episodes=self._episodes,
                    runnable=runnable,
                    compiled=self._compiled,
                    progress=self._until(LAST_SECONDS + seconds * later, names),
                    tell=lambda pull: self.watcher.on_news([pull.sentence]),
                )
                if found.chosen is not None and not has_claim:
                    found = replace(found, claim=self._corrected(found, found.chosen, named, data, options))
        except OutOfTimeError:
            return _no_selection(named)
        return found.to_plain()

    def claim(self, chosen: str) -> dict[str, Any]:
        """The claim about a run by episodes that had no part in the choice, and the estimates behind it."""
        named = self._named([chosen])
        data: EvaluationData = judged_data(named, self.parts.path("claim"), "held-out", None)
        try:
            with one_thread():
                updates, _ = self._affordable("claim", CLAIM_FITS + self._weighs)
                self.watcher.on_fits(CLAIM_FITS + self._weighs)
                options = self._options(updates)
                claim, judged = held_out_claim(
                    chosen, named, data, options, compiled=self._compiled, progress=self._tell
                )
        except OutOfTimeError:
            return {"claim": asdict(_no_claim(chosen, "held-out episodes", data)), "estimates": None}
        return {"claim": asdict(claim), "estimates": judged.to_plain()}

    def _corrected(
        self, found: Selection, chosen: str, named: dict[str, Any], data: EvaluationData, options: FitOptions
    ) -> Claim:
        among = sum(each.rank is not None for each in found.candidates)
        known: dict[str, Any] = {"found": found.estimates, "among": among}
        try:
            return corrected_claim(chosen, named, data, options, **known, progress=self._tell)
        except OutOfTimeError:
            return _no_claim(chosen, "corrected", data)

    @property
    def _episodes(self) -> int:
        return self.space.config.real_episodes

    @property
    def _weighs(self) -> int:
        """Further fits that weights need, at most."""
        return int(self.parts.has_probabilities)

    @property
    def _compiled(self) -> bool | None:
        """Whether fits are compiled; where time is given, only if there is so much of it that compiling pays."""
        return None if self.clock.left is None else self.plan.fits_seconds > LONG_FITS

    def _named(self, names: list[str]) -> dict[str, Any]:
        return named_policies({name: str(self.space.out / "runs" / name) for name in names})

    def _options(self, updates: int) -> FitOptions:
        return FitOptions(
            gamma=self.plan.gamma, members=self.plan.members, updates=updates, seed=self.space.config.seed
        )

    def _affordable(self, part: str, fits: int) -> tuple[int, float]:
        """The updates of each fit, and the seconds that one is expected to take."""
        left = self.clock.left
        if left is None:
            return self.plan.fit_updates, 0.0
        speed = fit_speed(self.parts.path(part), self.plan.gamma, self.plan.members) / MARGIN
        # Longer fits than are needed only where there is plenty of time: others may slow this machine down.
        updates = between((left - LAST_SECONDS) * speed / fits / PLENTY, self.space.config, self.plan.gamma)
        return updates, updates / speed

    def _tell(self, name: str, done: int, total: int) -> None:
        """Tells how far a fit is, and ends it where much more time is used than was given."""
        self.clock.tick()
        self.watcher.on_fit(name, done, total)
        latest = LAST_SECONDS - OVERTIME * (self.plan.seconds or 0.0)
        if self.clock.left is not None and self.clock.left < latest and done < total:
            raise OutOfTimeError

    def _until(self, reserved: float, names: list[str]) -> Callable[[str, int, int], None]:
        """As `_tell`, and once a policy is judged, the others end where only the reserved seconds are left."""
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
    candidates = [
        asdict(Candidate(name, None, None, None, None, CANNOT, is_among_the_best=False, reasons=(NO_TIME,)))
        for name in names
    ]
    empty: dict[str, Any] = {"best": [], "chosen": None, "claim": None, "pulls": [], "budget": 0, "estimates": None}
    return {"candidates": candidates, **empty}


CLONED = "The clone of the logged behaviour is exported, marked as such."


@dataclass(frozen=True)
class Ending:
    """The policy that is handed over, and the statement about it."""

    sentence: str
    chosen: str
    is_clone: bool
    beats_the_data: bool
    claim_on: str


def conclude(
    parts: Parts, selection: Mapping[str, Any] | None, claim: Mapping[str, Any] | None, *, clone: str
) -> Ending:
    """The ending. A policy is handed over as better only if the claim about it says so."""
    on = claim_text(parts)
    if selection is None:
        return Ending(f"Nothing can be called better: {_why_not(parts)}. {CLONED}", clone, True, False, on)
    if claim is None:
        return Ending(f"{_not_judged(selection)} {CLONED}", clone, True, False, on)
    name = claim["name"]
    if claim["verdict"] == BETTER:
        return Ending(f"{name} is better than the data, {_basis(parts, claim)}.", name, is_clone(name), True, on)
    is_refused = claim["verdict"] == CANNOT
    said = f"it cannot be judged: {claim['reasons'][0]}" if is_refused else f"it is {verdict_text(claim['verdict'])}"
    doubt = f"{name} was chosen, and {_basis(parts, claim)}, {said}"
    return Ending(f"Nothing is shown to beat the data: {doubt}. {CLONED}", clone, True, False, on)


def _basis(parts: Parts, claim: Mapping[str, Any]) -> str:
    """By which episodes something is said about the choice."""
    if parts.has_claim:
        return f"on {parts.episodes['claim']:,} episodes that neither training nor the choice has seen"
    lowered = ", with its value lowered for that" if claim["correction"] else ""
    return f"on selection data (the same {parts.episodes['selection']} episodes chose it{lowered})"


def claim_text(parts: Parts) -> str:
    """Which episodes a claim is about."""
    return "claim episodes" if parts.has_claim else "selection data"


def _why_not(parts: Parts) -> str:
    return "all rewards are the same" if parts.facts.has_rewards else "the data has no rewards"


def _not_judged(selection: Mapping[str, Any]) -> str:
    """That no policy can be judged, with the first reason."""
    reason = next(reason for each in selection["candidates"] for reason in each["reasons"])
    if reason == NO_TIME:
        return "The time was over before the first policy could be judged."
    return f"No policy can be judged by this log: {reason}."
