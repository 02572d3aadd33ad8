"""Checks of actions by their effects: whether they stand in the row and the column of what they caused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from rl_training.core.text import plural
from rl_training.data.audit.borders import fit, largest_degree, polynomial, residuals, scaled, usual_errors
from rl_training.data.audit.rewards import BLOCKS, CERTAIN, certainty, middle_rows
from rl_training.data.audit.view import AuditFinding, Flags, Floats, Indices, View, check, found, passed, unchecked

LEAST_ROWS = 200
MOST_COLUMNS = 200
"""Observation columns whose steps are looked at."""
BETTER = 0.9
"""Part of the squared error that the action of a neighbouring row may leave, at most, to be the better explanation."""
NOTHING, ROUNDING = 0.05, 0.01
"""Part of that error, and of the error with the own action, up to which the own action adds nothing to the neighbour's.

An action of a good log adds much: it has an effect. The action after it may explain a step too, since it was chosen in
view of the result, but only beside it.
"""
EXPLAINED = 0.95
"""Part of the error without any action that the better explanation leaves, at most."""
NEARLY_EXACT = 0.1
"""Share of the variance of actions up to which an observation leaves them unexplained if they follow from it.

Such an action tells what its observation is. It therefore explains the step before it, in a good log too.
"""
LEAST_OF_AN_EPISODE = 10
"""Rows of an episode that tell whether its actions are shifted."""
SHIFTED, SURE = 0.3, 4.0
"""Mean logarithm by which errors of an episode fall with a neighbour's actions, and by how many standard errors."""
TOGETHER = 0.1
"""Correlation between what is left of rewards and of actions from which they have a cause in common."""
LEAST_REPEATS = 20
"""Rows with the action of a neighbour that tell whether their steps follow from it."""
UNEXPLAINED = 0.15
"""Mean logarithm by which their errors are larger than those of other rows, at least, if they do not."""
ROUNDS = 3
MOST_ACTIONS = 6
"""Action columns whose sign and order are looked at."""
TOO_FEW = "there are too few different rows inside episodes, or too many columns, to tell"
MEND = "look for commands that were logged late, or not at all; mend these actions, or drop these rows"

WHERE: Mapping[int, tuple[str, str]] = {1: ("after", "late"), -1: ("before", "early")}
"""By the row whose action explains a step: in words, and what that says of the log."""


@check("action timing", why="a policy would learn what the action before it leads to, or the one after it")
def action_timing(view: View) -> AuditFinding:
    """Steps that the action of the row before or after explains, and their own does not."""
    steps = _steps(view)
    if not steps.is_enough:
        return unchecked(TOO_FEW)
    without = steps.errors([])
    own = steps.errors([0])
    for shift, (which, kind) in WHERE.items():
        other = steps.errors([shift])
        explains = other.mean() < min(BETTER * own.mean(), EXPLAINED * without.mean())
        if not explains or certainty(own, other) < CERTAIN or (shift == 1 and steps.follow_obs):
            continue
        added = other.mean() - steps.errors([0, shift]).mean()
        if added < NOTHING * other.mean() + ROUNDING * own.mean():
            says = f"observations change with the action of the row {which}, and not with their own"
            return found(says, steps.rows, count=view.rows, advice=_advice(kind))
    shifts = [shift for shift in WHERE if shift != 1 or not steps.follow_obs]
    shifted = {shift: steps.episodes_explained_by(steps.actions(shift)) for shift in shifts}
    shift, episodes = max(shifted.items(), key=lambda item: len(item[1]))
    if len(episodes):
        which, kind = WHERE[shift]
        return _in_episodes(view, episodes, f"the action of the row {which}, and not with their own", _advice(kind))
    for shift in (-1, 1):
        rows = steps.repeats_without_effect(shift)
        if len(rows):
            says = f"in {plural(len(rows), 'row')} that were looked at, the action is that of the row"
            return found(
                f"{says} {'before' if shift < 0 else 'after'}, and observations do not follow from it as in other rows",
                rows,
                advice=MEND,
            )
    if own.mean() > EXPLAINED * without.mean() or steps.follow_obs:
        return unchecked("actions hardly change the next observation, or follow from it nearly without noise")
    return passed("found no sign that actions stand in another row than their effect")


@check(
    "action columns",
    why="in these episodes an action means something else than in the others",
    needs="continuous actions",
)
def action_columns(view: View) -> AuditFinding:
    """Episodes whose steps follow from actions with another sign, or with two columns exchanged."""
    steps = _steps(view)
    if not steps.is_enough:
        return unchecked(TOO_FEW)
    actions, count = steps.actions(0), min(view.actions.shape[1], MOST_ACTIONS)
    changed: dict[str, Floats] = {}
    for number in range(count):
        signs = np.where(np.arange(actions.shape[1]) == number, -1.0, 1.0)
        changed[f"the negative of action column {view.action_names[number]}"] = actions * signs
    for first, second in combinations(range(count), 2):
        order = np.arange(actions.shape[1])
        order[[first, second]] = second, first
        names = f"{view.action_names[first]} and {view.action_names[second]}"
        changed[f"action columns {names} exchanged"] = actions[:, order]
    explained = {how: steps.episodes_explained_by(each) for how, each in changed.items()}
    how, episodes = max(explained.items(), key=lambda item: len(item[1]))
    if len(episodes):
        return _in_episodes(view, episodes, how, "find out who or what logged these episodes, and mend their actions")
    return passed("found no sign that action columns have another sign or order in some episodes")


@check(
    "hidden causes",
    why="unobserved confounding: what looks like the effect of an action is partly the effect of that cause",
    advice="log that hidden variable; stack earlier rows if decisions look back; first mend what checks of timing find",
    needs="rewards",
)
def hidden_causes(view: View) -> AuditFinding:
    """Actions that go along with what the reward of the row before holds beyond all that the log knows of it."""
    steps = _steps(view)
    before = view.obs[np.ix_(steps.rows - 1, steps.columns)]
    known = np.concatenate([before, steps.actions(-1), steps.obs], axis=1)
    degree = largest_degree(len(steps.rows) // 2, known.shape[1])
    if not steps.is_enough or degree < 2:
        return unchecked(TOO_FEW)
    targets = np.column_stack([view.rewards[steps.rows - 1], steps.actions(0)])
    left = residuals(known, scaled(targets, like=targets), degree)
    # What is left of actions that follow from observations is but the error of the fit.
    is_free = left[:, 1:].var(axis=0) > NEARLY_EXACT
    left = np.clip(scaled(left, like=left), -4, 4)
    together = np.array([part.mean(axis=0) for part in np.array_split(left[:, :1] * left[:, 1:] * is_free, BLOCKS)])
    mean, error = together.mean(axis=0), together.std(axis=0, ddof=1) / np.sqrt(BLOCKS)
    if not is_free.any():
        return unchecked("actions follow from observations and the action before nearly without noise")
    if not (np.abs(mean) > np.maximum(TOGETHER, SURE * np.maximum(error, 1 / np.sqrt(len(left))))).any():
        return passed("not found; a cause that lasts for a single row, or moves observations alone, cannot be seen")
    says = "actions depend on the reward of the row before beyond what observations and actions explain of both"
    return found(
        f"{says} (correlation {mean[np.abs(mean).argmax()]:.2f}): a hidden cause seems to move both", steps.rows
    )


def _in_episodes(view: View, episodes: Indices, how: str, advice: str) -> AuditFinding:
    """The answer that observations change with something else than the logged actions in some episodes."""
    says = f"in {plural(len(episodes), 'episode')} of {len(view.lengths):,}, observations change with {how}"
    return found(says, view.episodes[episodes, 0], count=int(view.lengths[episodes].sum()), advice=advice)


def _advice(kind: str) -> str:
    """The way out for actions that are logged early or late."""
    move = f"actions seem to be logged one row {kind}: move them by one row inside each episode"
    if kind == "late":
        return move
    return f"{move}; if the process itself reacts one step late, add the action before to the observations instead"


@dataclass(frozen=True)
class _Steps:
    """Steps of observations in some rows, to be explained by actions of these rows and of their neighbours."""

    view: View
    rows: Indices

    @cached_property
    def is_enough(self) -> bool:
        """Whether there are enough different rows for the number of columns."""
        is_many = len(self.rows) >= LEAST_ROWS and not self.view.is_tabular
        return is_many and self.moves.size > 0 and self.degree > 0

    @cached_property
    def columns(self) -> Indices:
        """Observation columns that vary, or some of them."""
        columns = np.flatnonzero(self.view.low < self.view.high)
        return columns[:: -(-len(columns) // MOST_COLUMNS) or 1]

    @cached_property
    def obs(self) -> Floats:
        """Observations before the steps."""
        return self.view.obs[np.ix_(self.rows, self.columns)].astype(np.float64)

    @cached_property
    def moves(self) -> Floats:
        """Changes of the observations in standard deviations; large ones, such as those of collisions, are cut."""
        after = self.view.next_obs[self.rows].astype(np.float64)
        moved = after - self.view.obs[self.rows]
        deviation = moved.std(axis=0)
        varying = deviation > 1e-6 * self.view.spread
        return np.asarray(np.clip((moved - moved.mean(axis=0))[:, varying] / deviation[varying], -5, 5))

    @cached_property
    def degree(self) -> float:
        """The degree of polynomials of one observation and two actions for which there are rows enough."""
        return largest_degree(len(self.rows) // 2, self._inputs([0, 1]).shape[1])

    @cached_property
    def halves(self) -> tuple[Flags, Flags]:
        """The first and the second half of the rows, as masks."""
        first = np.arange(len(self.rows)) < len(self.rows) // 2
        return first, ~first

    @cached_property
    def follow_obs(self) -> bool:
        """Whether actions follow from their own observation nearly without noise, and less so from the one before."""
        actions = self.actions(1)
        targets = scaled(actions, like=actions)
        after = self.view.next_obs[np.ix_(self.rows, self.columns)].astype(np.float64)
        now, before = (float(self._left(obs, targets).mean()) for obs in (after, self.obs))
        return now < min(NEARLY_EXACT, before)

    def errors(self, shifts: Sequence[int]) -> Floats:
        """Squared errors of steps that are predicted from observations and from actions of these neighbours."""
        return self._left(self._inputs(shifts), self.moves)

    def actions(self, shift: int) -> Floats:
        """Actions of the rows at this distance."""
        actions = self.view.actions[self.rows + shift]
        if self.view.dataset.is_discrete:
            actions = actions == np.arange(1, min(int(self.view.actions.max()) + 1, 32))
        return actions.astype(np.float64)

    def _inputs(self, shifts: Sequence[int]) -> Floats:
        """Observations, and actions of the rows at these distances."""
        return np.concatenate([self.obs, *map(self.actions, shifts)], axis=1)

    def _left(self, inputs: Floats, targets: Floats) -> Floats:
        """Mean squared errors of a fit on rows."""
        return np.asarray(np.minimum(residuals(inputs, targets, self.degree) ** 2, 25).mean(axis=1))

    def repeats_without_effect(self, shift: int) -> Indices:
        """Rows with the action of a neighbour, if it explains their steps worse than other actions explain theirs."""
        actions, size = self.view.actions[self.rows], np.log(self._own_surprise + 1e-6)
        # At its limits an action repeats for a good reason.
        is_limit = (actions == self.view.actions.min(axis=0)) | (actions == self.view.actions.max(axis=0))
        repeats = ((actions == self.view.actions[self.rows + shift]) & ~is_limit).any(axis=1)
        if self.view.dataset.is_discrete or repeats.sum() < LEAST_REPEATS or repeats.all():
            return np.array([], dtype=np.int64)
        more = size[repeats].mean() - size[~repeats].mean()
        error = np.sqrt(size[repeats].var() / repeats.sum() + size[~repeats].var() / (~repeats).sum())
        return np.asarray(self.rows[repeats & (more > max(UNEXPLAINED, CERTAIN * error))])

    def episodes_explained_by(self, actions: Floats) -> Indices:
        """Episodes whose steps follow from these actions, by what all rows teach of the logged ones."""
        own, other = self._own_surprise, self._surprise(actions)
        fall = np.log(own + 1e-6) - np.log(other + 1e-6)
        episode = np.searchsorted(self.view.episodes[:, 1], self.rows, side="right")
        count = np.maximum(np.bincount(episode, minlength=len(self.view.episodes)), 1)
        mean, square = (np.bincount(episode, each, minlength=len(count)) / count for each in (fall, fall**2))
        error = np.sqrt(np.maximum(square - mean**2, 1e-9) / count)
        is_shifted = (count >= LEAST_OF_AN_EPISODE) & (mean > SHIFTED) & (mean > SURE * error)
        return np.flatnonzero(is_shifted)

    @cached_property
    def _own_surprise(self) -> Floats:
        return self._surprise(self.actions(0))

    @cached_property
    def _taught(self) -> list[tuple[Floats, Floats]]:
        """Weights of a fit of each half to its own actions, and the usual errors."""
        own = self._features(self.actions(0))
        taught = []
        for seen in self.halves:
            kept = seen
            for _ in range(ROUNDS):
                weights = fit(own[kept], self.moves[kept])
                errors = np.abs(self.moves - own @ weights)
                usual = usual_errors(errors[seen])
                sizes = np.log1p(errors / usual).mean(axis=1)
                # Rows that do not fit, such as those of shifted episodes, teach nothing.
                kept = seen & (sizes <= np.quantile(sizes[seen], 0.9))
            taught.append((weights, usual))
        return taught

    def _features(self, actions: Floats) -> Floats:
        """Polynomials of observations and these actions, in the units of the logged ones."""
        inputs = np.concatenate([self.obs, actions], axis=1)
        return polynomial(scaled(inputs, like=self._inputs([0])), self.degree).astype(np.float64)

    def _surprise(self, actions: Floats) -> Floats:
        """How many times the usual error steps are off, if these were the actions that caused them."""
        features, surprise = self._features(actions), np.zeros(len(self.rows))
        for seen, (weights, usual) in zip(self.halves, self._taught, strict=True):
            left = np.abs(self.moves[~seen] - features[~seen] @ weights)
            surprise[~seen] = np.expm1(np.log1p(left / usual).mean(axis=1))
        return surprise


def _steps(view: View) -> _Steps:
    """The steps of a view, made once for all checks."""
    steps: _Steps = view.kept.setdefault("steps", _Steps(view, middle_rows(view)))
    return steps
