"""How a pipeline judges its runs: by the rules of `select`, on episodes that none of them was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from rl_training.experiment.claiming import corrected_claim, held_out_claim
from rl_training.experiment.estimation import judged_data
from rl_training.experiment.named_policies import named_policies
from rl_training.experiment.pipeline_clock import Clock
from rl_training.experiment.pipeline_config import Workspace
from rl_training.experiment.pipeline_data import Parts
from rl_training.experiment.pipeline_plan import LAST_SECONDS, LONG_FITS, MARGIN, Plan, between, fit_speed, one_thread
from rl_training.experiment.selecting import choose
from rl_training.experiment.spending import Pull, check_can_run
from rl_training.runtime.evaluation_data import JudgedData
from rl_training.runtime.fitting import FitOptions, OutOfTimeError

CLAIM_FITS = 2
"""A claim fits the logged behaviour and the chosen policy."""


class Watcher(Protocol):
    """What is told while fits are made and real episodes are played."""

    def on_fits(self, count: int) -> None:
        """How many fits there will be."""

    def on_fit(self, name: str, done: int, total: int) -> None:
        """The fit of a policy's value has come further."""

    def on_pull(self, pull: Pull) -> None:
        """A real episode was played."""


@dataclass(frozen=True)
class Judge:
    """Judges runs of a pipeline."""

    space: Workspace
    parts: Parts
    plan: Plan
    clock: Clock
    watcher: Watcher

    def choose(self, names: list[str]) -> dict[str, Any]:
        """The selection among these runs, as plain values; where there are claim episodes, nothing is claimed yet."""
        has_claim, named = self.parts.has_claim, self._named(names)
        runnable = check_can_run({name: policy for name, (policy, _) in named.items()}, None) if self._episodes else {}
        data = judged_data(named, self.parts.path("selection"), "held-out", None)
        with one_thread():
            fits = len(names) + 1
            updates, seconds = self._affordable("selection", fits + CLAIM_FITS * has_claim + self._weighs)
            options = self._options(updates)
            self.watcher.on_fits(fits)
            reserved = LAST_SECONDS + seconds * (CLAIM_FITS * has_claim + self._weighs)
            found = choose(
                named,
                data,
                options,
                episodes=self._episodes,
                runnable=runnable,
                compiled=self._compiled,
                progress=self._until(reserved, names),
                tell=self.watcher.on_pull,
            )
            if found.chosen is not None and not has_claim:
                among = sum(each.rank is not None for each in found.candidates)
                claim = corrected_claim(
                    found.chosen, named, data, options, found=found.estimates, among=among, progress=self._tell
                )
                found = replace(found, claim=claim)
        return found.to_plain()

    def claim(self, chosen: str) -> dict[str, Any]:
        """The claim about a run by episodes that had no part in the choice, and the estimates behind it."""
        named = self._named([chosen])
        data: JudgedData = judged_data(named, self.parts.path("claim"), "held-out", None)
        with one_thread():
            updates, _ = self._affordable("claim", CLAIM_FITS + self._weighs)
            self.watcher.on_fits(CLAIM_FITS + self._weighs)
            claim, judged = held_out_claim(
                chosen, named, data, self._options(updates), compiled=self._compiled, progress=self._tell
            )
        return {"claim": asdict(claim), "estimates": judged.to_plain()}

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
        updates = between((left - LAST_SECONDS) * speed / fits, self.space.config, self.plan.gamma)
        return updates, updates / speed

    def _tell(self, name: str, done: int, total: int) -> None:
        self.clock.tick()
        self.watcher.on_fit(name, done, total)

    def _until(self, reserved: float, names: list[str]) -> Callable[[str, int, int], None]:
        """Tells how far a fit is, and ends it where only the reserved seconds are left; the first is never ended."""
        fitted: set[str] = set()

        def tell(name: str, done: int, total: int) -> None:
            self._tell(name, done, total)
            if name in names and done == total:
                fitted.add(name)
            elif name in names and fitted and self.clock.left is not None and self.clock.left < reserved:
                raise OutOfTimeError

        return tell
