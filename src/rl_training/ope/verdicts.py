"""Turns value estimates into verdicts, or into reasons for having none.

Values are arrays with a number per ensemble member: the first member has every episode once, the others have resampled
ones. Members of all policies have the same episodes, so differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.core.statistics import Scores, holm, student_cdf, student_quantile

Values: TypeAlias = NDArray[np.float64]
Verdict = Literal["cannot be judged", "better than the data", "worse than the data", "not distinguishable"]
CANNOT, BETTER, WORSE, SAME = Verdict.__args__  # type: ignore[attr-defined]
Outcome = Literal["better", "worse", "not distinguishable"]

ASSUMPTION = "everything that made the logged decisions what they were is in the observations"
"""The assumption of every verdict by a log; there is confounding where it does not hold."""
CAVEAT = f"If {ASSUMPTION}, intervals cover chance and known errors of FQE. No verdict means that a policy is safe."
"""Words below every table of estimates."""
LEVEL = 0.05
"""The largest probability that any of several verdicts of one kind, such as "better", is wrong."""
LEAST_KAPPA = 3.0
MOST_CLIPPED = 0.05
FEWEST_EPISODES = 10
MOST_NOVEL = 0.25
MOST_NEVER_LOGGED = 0.1
"""The share beyond that of the behaviour policy's own actions; in all, at most `MOST_NOVEL`."""
SETTLING = 0.4
"""The last share of a fit, in which its estimate should be stable."""
CONTROL_SHARE = 0.1
"""The accepted error of the estimate of the behaviour, as a share of the standard deviation of logged returns."""


@dataclass(frozen=True)
class Control:
    """The estimator applied to the one policy whose value is known: the logged behaviour."""

    logged: Values
    """The mean discounted return of the logged episodes, by ensemble member."""
    estimated: Values
    """The estimate of the behaviour, by ensemble member."""
    returns: Values
    """The discounted return of each logged episode."""

    @property
    def std(self) -> float:
        """The standard deviation of the logged returns."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def error(self) -> float:
        """The difference from the logged mean: the known error of the estimator."""
        return float(self.estimated[0] - self.logged[0])

    @property
    def usual_error(self) -> float:
        """The root mean square of that error over all ensemble members: that of one member may be small by chance."""
        return float(np.sqrt(np.square(self.estimated - self.logged).mean()))

    @property
    def tolerance(self) -> float:
        """The accepted error: two standard errors, or a tenth of the standard deviation of returns.

        The standard error of the estimate itself counts up to a fifth of the standard deviation of returns, so that an
        estimator does not pass because it is noisy. If several policies made the log, even a perfect estimator misses
        its mean: the next action depends on more than the state.
        """
        logged = self.std / math.sqrt(len(self.returns))
        both = math.hypot(logged, float(self.estimated[1:].std(ddof=1)))
        return max(2 * logged, CONTROL_SHARE * self.std, min(2 * both, 2 * CONTROL_SHARE * self.std))

    @property
    def passes(self) -> bool:
        """Whether the estimator reproduces the log."""
        # If all logged returns are the same, only rounding is left.
        return bool(abs(self.error) <= self.tolerance + 1e-3 * abs(self.logged[0]))


def student_interval(values: Values, *, error: float = 0.0, confidence: float = 1 - LEVEL) -> tuple[float, float]:
    """The first ensemble member's value, plus and minus a Student quantile times the standard error.

    The standard error combines the standard deviation of the other members, which is chance in the log, and the known
    `error` of the estimator.
    """
    half = student_quantile((1 + confidence) / 2, len(values) - 2) * _standard_error(values, error)
    return float(values[0]) - half, float(values[0]) + half


def simultaneous(value: float, interval: tuple[float, float], *, policies: int, members: int) -> tuple[float, float]:
    """The `student_interval` of one of several policies, widened so that all of their intervals hold together.

    By Bonferroni, each has the error probability of a verdict divided by the number of policies. The interval comes
    from this many resampled `members`.
    """
    one, all_of_them = (student_quantile(1 - LEVEL / (2 * count), members - 1) for count in (1, policies))
    low, high = (value + (end - value) * all_of_them / one for end in interval)
    return low, high


def probability_above(values: Values, bound: float = 0.0, *, error: float = 0.0) -> float:
    """The probability that the value that the ensemble estimates is above a bound."""
    difference, std = float(values[0]) - bound, _standard_error(values, error)
    if std == 0:
        return 0.5 if difference == 0 else float(difference > 0)
    return student_cdf(difference / std, len(values) - 2)


def _standard_error(values: Values, error: float) -> float:
    return math.hypot(float(values[1:].std(ddof=1)), error)


def anchored(control: Control, values: Values) -> Values:
    """The logged mean plus the estimated difference from the behaviour: errors that both estimates share cancel."""
    return control.logged + values - control.estimated


def movement(differences: Values) -> float:
    """The largest distance of an estimate from its final value in the last part of its fit.

    `differences` are those of the first ensemble member from its estimate of the behaviour, at equal distances along
    the fit. They count as an error: the spread of members does not show it, since they all converge alike.
    """
    late = differences[-math.ceil(SETTLING * len(differences)) :]
    return float(np.abs(late - differences[-1]).max())


def decide_outcomes(not_better: Scores, not_worse: Scores) -> list[Outcome]:
    """The outcome of each of several comparisons: the one rule by which anything is called better.

    It is better if its p-value of "it is not better", adjusted for the number of comparisons after Holm, is below
    `LEVEL`, and worse likewise. If either side may turn out to be better, the p-values are those of a two-sided test.
    A policy is compared with the logged behaviour, which is given, by one-sided ones.
    """
    better, worse = holm(not_better) < LEVEL, holm(not_worse) < LEVEL
    outcomes: list[Outcome] = np.where(better, "better", np.where(worse, "worse", SAME)).tolist()
    return outcomes


def outcome_text(outcome: Outcome, other: str) -> str:
    """The outcome of a comparison in words."""
    return f"{outcome} from {other}" if outcome == SAME else f"{outcome} than {other}"


def judge_differences(differences: Mapping[str, Values], errors: Mapping[str, float]) -> dict[str, Verdict]:
    """The verdict on each policy by its difference from the behaviour and the known error of its estimate."""
    above = np.array([probability_above(each, error=errors[name]) for name, each in differences.items()])
    verdicts: dict[Outcome, Verdict] = {"better": BETTER, "worse": WORSE, "not distinguishable": SAME}
    outcomes = decide_outcomes(1 - above, above)
    return {name: verdicts[outcome] for name, outcome in zip(differences, outcomes, strict=True)}


def among_the_best(values: Mapping[str, Values], errors: Mapping[str, float]) -> list[str]:
    """The policy with the highest value, and after it all that are not distinguishable from it."""
    if not values:
        return []
    best, *others = sorted(values, key=lambda name: -float(values[name][0]))
    gaps = {name: (values[best] - values[name], math.hypot(errors[best], errors[name])) for name in others}
    above = np.array([probability_above(gap, error=error) for gap, error in gaps.values()])
    # Two-sided: the best policy was chosen by the same numbers.
    outcomes = decide_outcomes(2 * (1 - above), 2 * above)
    return [best, *(name for name, outcome in zip(others, outcomes, strict=True) if outcome != "better")]


def refuse_all(control: Control, *, kappa: float, episodes: int, untrusted: str | None) -> list[str]:
    """Reasons against a verdict on any policy; empty if there are none.

    `untrusted` says why the episodes cannot judge policies at all.
    """
    reasons = [] if untrusted is None else [untrusted]
    if kappa < LEAST_KAPPA - 1e-9:
        missing = f"about {100 * math.exp(-kappa):.0f} % of the value may be missing"
        reasons.append(f"FQE was stopped too early (kappa {kappa:.1f}, at least 3 is needed): {missing}")
    if episodes < FEWEST_EPISODES:
        reasons.append(f"there are only {episodes} episodes, at least {FEWEST_EPISODES} are needed")
    if not control.passes:
        reasons.append(
            f"FQE does not reproduce the log: it estimates {control.estimated[0]:.4g} for the logged behaviour, whose "
            f"mean return is {control.logged[0]:.4g} (an error of {control.tolerance:.2g} is accepted); either FQE "
            "failed, or very different policies made the log"
        )
    return reasons


def refuse_one(
    control: Control,
    values: Values,
    *,
    clipped: float,
    bounds: tuple[float, float],
    novel: float,
    missing: float | None = None,
) -> list[str]:
    """Reasons against a verdict on one policy; empty if there are none.

    `bounds` are the smallest and the largest possible value. `novel` and `missing` are as in `refuse_unsupported`.
    """
    reasons = []
    if clipped > MOST_CLIPPED:
        reasons.append(f"{100 * clipped:.0f} % of the fitted values were clipped to the possible range")
    disagreement = float(values[1:].std(ddof=1))
    if disagreement > control.std:
        reasons.append(
            f"the ensemble members disagree: the estimate changes by {disagreement:.3g} from one resampled log to the "
            f"next, while logged returns differ by {control.std:.3g}"
        )
    reasons += refuse_unsupported(novel, missing)
    value, best = float(anchored(control, values)[0]), float(control.returns.max())
    slack = 0.01 * (bounds[1] - bounds[0])
    if value > best + control.std or not bounds[0] - slack <= values[0] <= bounds[1] + slack:
        reasons.append(f"the estimate, {value:.4g}, lies outside the data, whose best episode returned {best:.4g}")
    return reasons


def refuse_unsupported(novel: float, missing: float | None = None) -> list[str]:
    """Reasons against a verdict on a policy with this share of actions that the log does not back.

    `novel` is the share of its actions that are far from the log. Where states repeat, it is the share that was never
    logged in that state, and `missing` is that share for the behaviour policy itself, since a log is never complete.
    """
    most = MOST_NOVEL if missing is None else min(MOST_NOVEL, MOST_NEVER_LOGGED + missing)
    if novel <= most:
        return []
    kind = "are far from everything that was logged" if missing is None else "were never logged in such a state"
    return [f"{100 * novel:.0f} % of its actions {kind} (at most {100 * most:.0f} % can be judged)"]


def verdict_text(verdict: Verdict) -> str:
    """A verdict in words."""
    return outcome_text(SAME, "the data") if verdict == SAME else verdict


def horizon_text(gamma: float) -> str:
    """How far ahead values with this discount look, in words that follow those of a value or a verdict."""
    if gamma == 1:
        return "over whole episodes (undiscounted)"
    steps = round(1 / (1 - gamma))
    return f"over the next {'step' if steps == 1 else f'{steps:,} steps'} (discount {gamma:g})"


def probability_text(probability: float) -> str:
    """A probability to two digits, never 0 or 1."""
    if probability > 0.99:
        return ">0.99"
    return "<0.01" if probability < 0.01 else f"{probability:.2f}"
