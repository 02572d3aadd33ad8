"""Audit checks and their findings, and the data as checks see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, wraps
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_training.core.spaces import BoxActions, DiscreteActions
from rl_training.data.episode_keys import hash_rows
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.tables.to_fields import feature_names

Verdict = Literal["not checked", "pass", "warn", "fail"]
PARTICIPLES: dict[Verdict, str] = {"pass": "passed", "warn": "warned", "fail": "failed", "not checked": "not checked"}
"""Verdicts as they are counted in a sentence."""
SEVERITY: dict[Verdict, int] = {"not checked": 0, "pass": 0, "warn": 1, "fail": 2}
FIRST = 5
"""Row numbers that a finding names."""
SAMPLE = 20_000
"""Rows that are looked at where all of them would take too long."""
SEED = 0

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
Rows = NDArray[Any] | Sequence[int]
Check = Callable[["View"], "AuditFinding"]


@dataclass(frozen=True)
class AuditFinding:
    """The answer of one check."""

    check: str
    verdict: Verdict
    message: str
    why: str = ""
    """Why it matters."""
    advice: str = ""
    """The way out."""
    count: int = 0
    """Rows that are concerned."""
    rows: tuple[int, ...] = ()
    """The numbers of the first ones, as in the log."""

    @property
    def is_alarm(self) -> bool:
        """Whether something looks wrong."""
        return SEVERITY[self.verdict] > 0

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "rows": list(self.rows)}


def passed(message: str) -> AuditFinding:
    """The answer of a check that found nothing wrong."""
    return AuditFinding("", "pass", message)


def unchecked(reason: str) -> AuditFinding:
    """The answer of a check that does not apply to the data, or cannot tell."""
    return AuditFinding("", "not checked", reason)


def found(
    message: str, rows: Rows = (), *, verdict: Verdict = "warn", why: str = "", advice: str = "", count: int = 0
) -> AuditFinding:
    """The answer of a check that found something in these rows, or in `count` rows of which these are the first."""
    return AuditFinding("", verdict, message, why, advice, count or len(rows), tuple(int(row) for row in rows[:FIRST]))


def check(name: str, *, why: str = "", advice: str = "", needs: str | None = None) -> Callable[[Check], Check]:
    """Make a check of a function whose answer has no name yet, and says why it matters only where that varies.

    What data `needs` for the check is a key of `NEEDS`.
    """

    def named(look: Check) -> Check:
        @wraps(look)
        def run(view: View) -> AuditFinding:
            is_met, reason = (bool, "") if needs is None else NEEDS[needs]
            answer = look(view) if needs is None or is_met(view.dataset) else unchecked(reason)
            if not answer.is_alarm:
                return replace(answer, check=name)
            return replace(answer, check=name, why=answer.why or why, advice=answer.advice or advice)

        return run

    return named


def worst(findings: Sequence[AuditFinding]) -> Verdict:
    """The verdict on the data as a whole."""
    return max((each.verdict for each in findings if each.is_alarm), key=SEVERITY.__getitem__, default="pass")


def count_verdicts(verdicts: Sequence[str]) -> str:
    """The number of checks with each verdict, as a sentence has it."""
    return ", ".join(f"{verdicts.count(each)} {word}" for each, word in PARTICIPLES.items())


def listed(things: Sequence[object] | NDArray[Any], most: int = 8) -> str:
    """Some names or numbers, as a sentence has them."""
    text = ", ".join(map(str, things[:most]))
    return text if len(things) <= most else f"{text}, ... ({len(things)} in all)"


@dataclass(frozen=True)
class View:
    """A dataset as arrays, with what several checks need of it."""

    dataset: TransitionDataset
    bounds: BoxActions | DiscreteActions | None = None
    """The action space, where it is known."""

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Things that several checks need, by a name that they agree on."""
        return {}

    def column(self, name: str) -> NDArray[Any]:
        """A field as an array."""
        return self.dataset.fields[name].numpy(force=True)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.dataset)

    @cached_property
    def obs(self) -> Floats:
        """Observations."""
        return self.column("obs")

    @cached_property
    def next_obs(self) -> Floats:
        """Next observations."""
        return self.column("next_obs")

    @cached_property
    def obs_names(self) -> list[str]:
        """The names of observation columns: as in the table, else their numbers."""
        known = self.dataset.columns
        return list(map(str, range(self.dataset.obs_dim))) if known is None else feature_names(known.obs, known)

    @cached_property
    def action_names(self) -> list[str]:
        """The names of action columns."""
        known = self.dataset.columns
        return list(map(str, range(self.dataset.action_dim))) if known is None else list(known.actions)

    def obs_named(self, numbers: Indices) -> str:
        """Some observation columns by their names."""
        return listed([self.obs_names[number] for number in numbers])

    def actions_named(self, numbers: Indices) -> str:
        """Some action columns by their names."""
        return listed([self.action_names[number] for number in numbers])

    @cached_property
    def rewards(self) -> Floats:
        """Rewards."""
        return self.column("rewards")

    @cached_property
    def dones(self) -> NDArray[np.bool_]:
        """True on rows at which the task terminated."""
        return np.asarray(self.column("dones") != 0)

    @cached_property
    def actions(self) -> Floats:
        """Actions as a matrix of numbers."""
        actions = self.column("actions")
        return actions if actions.ndim == 2 else actions[:, None].astype(np.float32)

    @cached_property
    def ends(self) -> NDArray[np.bool_]:
        """The last rows of episodes."""
        return self.dataset.episode_ends.numpy(force=True)

    @cached_property
    def episodes(self) -> Indices:
        """First row and row after the last of each episode."""
        return self.dataset.episode_bounds().numpy(force=True)

    @cached_property
    def lengths(self) -> Indices:
        """Rows of each episode."""
        return self.episodes[:, 1] - self.episodes[:, 0]

    @cached_property
    def inside(self) -> Indices:
        """Rows that another of the same episode follows."""
        return np.flatnonzero(~self.ends[:-1])

    @cached_property
    def sample(self) -> Indices:
        """Some rows, in order; always the same ones."""
        if self.rows <= SAMPLE:
            return np.arange(self.rows)
        return np.sort(np.random.default_rng(SEED).choice(self.rows, SAMPLE, replace=False))

    def drawn(self, rows: Indices) -> Indices:
        """Some of these rows at random, in order; always the same ones."""
        return np.sort(np.random.default_rng(SEED).permutation(rows)[:SAMPLE])

    def thinned(self, rows: Indices) -> Indices:
        """These rows, or evenly spaced ones where they are many."""
        return rows[:: max(1, len(rows) // SAMPLE)]

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation of each observation column; 1 for constant ones."""
        deviation = self.obs[self.sample].std(axis=0, dtype=np.float64)
        return np.where(deviation > 0, deviation, 1.0)

    @cached_property
    def low(self) -> Floats:
        """The smallest value of each observation column."""
        return np.asarray(self.obs.min(axis=0))

    @cached_property
    def high(self) -> Floats:
        """The largest value of each observation column."""
        return np.asarray(self.obs.max(axis=0))

    @cached_property
    def dropped_before(self) -> Indices | None:
        """The number of rows dropped before each row of the file; None where it is not known, or none was."""
        tails = self.dataset.tail_rewards
        is_cut = np.zeros(0, bool) if tails is None else ~np.isnan(tails.numpy(force=True))
        known = tails is not None and is_cut.sum() == self.dataset.num_dropped
        return np.concatenate([[0], np.cumsum(is_cut)[:-1]]) if known else None

    def in_log(self, rows: Iterable[int], *, as_logged: bool = False) -> tuple[int, ...]:
        """Row numbers as in the log, where rows were dropped or put in another order; of a table, counted from 1.

        Numbers that are `as_logged` count dropped rows too.
        """
        if self.dropped_before is not None and not as_logged:
            rows = [row + int(self.dropped_before[row]) for row in rows]
        numbers = self.dataset.origin.row_numbers
        return tuple(rows) if numbers is None else tuple(int(numbers[row]) for row in rows)

    @cached_property
    def is_tabular(self) -> bool:
        """Whether the same observations come again and again, so that equal rows say nothing."""
        some = self.obs[self.sample]
        return len(np.unique(hash_rows([some]))) < 0.5 * len(some)


NEEDS: Mapping[str, tuple[Callable[[TransitionDataset], bool], str]] = {
    "episodes": (lambda data: data.has_episodes, "episodes are not known"),
    "timestamps": (lambda data: "timestamps" in data.fields and data.has_episodes, "the data has no timestamps"),
    "rewards": (lambda data: data.has_rewards, "there are no rewards"),
    "continuous actions": (lambda data: not data.is_discrete, "actions are discrete"),
    "valid_actions": (lambda data: "valid_actions" in data.fields, "the data has no action masks (valid_actions)"),
    "next_valid_actions": (
        lambda data: "next_valid_actions" in data.fields and data.is_ordered,
        "the data has no masks of next actions (next_valid_actions)",
    ),
    "behavior_log_probs": (lambda data: "behavior_log_probs" in data.fields, "the data has no action probabilities"),
}
"""Data that some checks need, and the reason that is given without it."""
