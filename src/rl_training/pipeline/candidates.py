"""Which algorithms suit a log: facts about the data, and a small set of candidates, each with the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError, nearest
from rl_training.data import TransitionDataset
from rl_training.data.audit import NEARLY_DETERMINISTIC, View, action_spread

CLONE = "bc"
"""The candidate that is always there: the clone of the logged behaviour."""
BEST_CLONE = "bc_best"
"""The clone of the best episodes alone."""
CLONES = (CLONE, BEST_CLONE)
FEWEST_BEST = 10
"""Episodes that a clone of the best ones needs at least."""
MANY_ROWS = 50_000
"""Rows from which an algorithm with more networks to fit is worth its time."""
NEARLY_RANDOM = 0.9
"""Spread of actions in alike situations from which a behaviour counts as random."""
LOOSE_ALPHA = 10.0
"""The weight of values against cloning in TD3+BC, on data that is nearly random."""
NEAR_BEST = 0.1
"""Part of the range of returns below the best that counts as near it."""
LEAST_BEST, MOSTLY_BEST = 0.1, 0.9
"""The least share of episodes that is cloned as the best ones, and the share near the best from which all are alike."""

FOR_UNIT_RETURNS: dict[str, dict[str, Any]] = {
    "discrete_iql": {"beta": 20.0},
    "discrete_cql": {"conservative_weight": 0.02},
    "discrete_crr": {"beta": 0.05},
    "discrete_sac": {"conservative_weight": 0.1, "alpha": 0.02},
}
"""Options that are relative to the returns, where these are between 0 and 1 but for a shift."""


@dataclass(frozen=True)
class Facts:
    """What the choice of algorithms goes by. Rows and episodes are those that are trained on."""

    rows: int
    episodes: int
    is_discrete: bool
    has_rewards: bool
    rewards_differ: bool
    """False where all rewards are the same and no episode terminates: nothing tells good actions from bad ones."""
    is_single_step: bool
    """Every episode is one decision, as in a bandit."""
    action_spread: float | None
    """How far actions differ in alike situations, relative to all actions; None where it cannot be told."""
    returns: tuple[float, float, float] | None
    """The smallest, the mean and the largest return; None without rewards."""
    near_best: float | None
    """The share of episodes whose return is near the best one."""

    @classmethod
    def of(cls, dataset: TransitionDataset) -> Facts:
        """The facts of a dataset."""
        returns = dataset.episode_returns().double() if dataset.has_rewards else None
        spread = None if returns is None else (float(returns.min()), float(returns.mean()), float(returns.max()))
        near = None
        if returns is not None and spread is not None:
            near = float((returns >= spread[2] - NEAR_BEST * (spread[2] - spread[0])).double().mean())
        rewards, bounds = dataset.rewards, dataset.episode_bounds()
        return cls(
            rows=len(dataset),
            episodes=len(bounds),
            is_discrete=dataset.is_discrete,
            has_rewards=dataset.has_rewards,
            rewards_differ=bool((rewards != rewards[0]).any())
            or bool(dataset.dones.any() and len(bounds) < len(dataset)),
            is_single_step=len(bounds) == len(dataset),
            action_spread=action_spread(View(dataset)),
            returns=spread,
            near_best=near,
        )

    @property
    def is_nearly_deterministic(self) -> bool:
        """Whether nearly the same action was taken in alike situations."""
        return self.action_spread is not None and self.action_spread <= NEARLY_DETERMINISTIC

    @property
    def is_nearly_random(self) -> bool:
        """Whether actions hardly depend on the situation."""
        return self.action_spread is not None and self.action_spread >= NEARLY_RANDOM

    @property
    def can_improve(self) -> bool:
        """Whether rewards say anything."""
        return self.has_rewards and self.rewards_differ

    @property
    def returns_differ(self) -> bool:
        """Whether some episodes went better than others."""
        return self.returns is not None and self.returns[0] < self.returns[2]

    @property
    def some_are_better(self) -> bool:
        """Whether there are episodes that went clearly worse than the best ones."""
        return self.returns_differ and self.near_best is not None and self.near_best < MOSTLY_BEST

    def describe(self) -> list[str]:
        """The facts in sentences."""
        kind = "choices" if self.is_discrete else "continuous actions"
        episodes = "single decisions" if self.is_single_step else f"{self.episodes:,} episodes"
        lines = [f"{self.rows:,} rows to train on, {episodes}, {kind}"]
        if not self.has_rewards:
            lines.append("no rewards: the logged behaviour can be cloned, and nothing can be called better")
        elif not self.rewards_differ:
            lines.append(
                "all rewards are the same: the logged behaviour can be cloned, and nothing can be called better"
            )
        if self.can_improve and self.returns is not None and self.near_best is not None:
            low, mean, high = (f"{each:.4g}" for each in self.returns)
            lines.append(
                f"returns from {low} to {high}, mean {mean}; {self.near_best:.0%} of the episodes near the best"
            )
        return [*lines, self._describe_actions()]

    def _describe_actions(self) -> str:
        if self.action_spread is None:
            return "too few rows to tell whether alike situations got different actions"
        if self.is_nearly_deterministic:
            return "in alike situations nearly the same action was taken: the log hardly shows what else works"
        if self.is_nearly_random:
            return "actions hardly depend on the situation, as if they were drawn at random"
        return "in alike situations different actions were taken: the log shows what else works"

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "returns": None if self.returns is None else list(self.returns)}


@dataclass(frozen=True)
class Candidate:
    """One algorithm with its options, and why it is tried."""

    name: str
    algo: str
    reason: str
    options: dict[str, Any] = field(default_factory=dict)

    def run_name(self, seed: int) -> str:
        """The name of its run."""
        return f"{self.name}_seed{seed}"

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def is_clone(run_name: str) -> bool:
    """Whether a run cloned the behaviour, all of it."""
    return run_name.startswith(f"{CLONE}_seed")


def choose_candidates(facts: Facts, *, gamma: float | None = None) -> list[Candidate]:
    """The candidates that suit a log, the clone of the behaviour first."""
    found = [_clone(facts)]
    if not facts.can_improve:
        return found
    if facts.is_single_step and facts.is_discrete:
        reason = "learns the reward of every choice, with discount 0 since each row is a decision of its own"
        return [*found, _learner("dqn", reason, facts, gamma)]
    if not facts.is_nearly_deterministic and facts.some_are_better and facts.episodes >= 2 * FEWEST_BEST:
        found.append(_best_clone(facts))
    if facts.is_discrete:
        return [*found, *_choosers(facts, gamma)]
    found.append(_td3_bc(facts, gamma))
    found.append(
        _learner("iql", "imitates the better part of the logged actions, and never tries others", facts, gamma)
    )
    if facts.rows >= MANY_ROWS and not facts.is_nearly_deterministic:
        reason = f"scores higher than td3_bc where there are many rows, and {facts.rows:,} are enough for it"
        found.append(_learner("rebrac", reason, facts, gamma))
    return found


def _choosers(facts: Facts, gamma: float | None) -> list[Candidate]:
    """Algorithms that learn from rewards to choose."""
    found = [
        _learner("discrete_bcq", "takes the best choice among those that the log makes likely", facts, gamma),
        _learner(
            "discrete_iql", "imitates the better part of the logged choices, and never tries others", facts, gamma
        ),
    ]
    if facts.is_nearly_random:
        reason = "learns the value of every choice; the log holds all of them, since it was made nearly at random"
        found.append(_learner("dqn", reason, facts, gamma))
    elif facts.rows >= MANY_ROWS:
        reason = "values choices that the log lacks lower than they seem, which many rows allow to learn"
        found.append(_learner("discrete_cql", reason, facts, gamma))
    return found


def named_candidates(names: Sequence[str], facts: Facts, *, gamma: float | None = None) -> list[Candidate]:
    """The candidates that a user names, and the clone of the behaviour."""
    reason = "asked for"
    found = [_clone(facts)]
    for name in dict.fromkeys(names):
        check_name(name)
        _check_kind(name, facts)
        if name == BEST_CLONE:
            found.append(_best_clone(facts))
        elif name == "td3_bc":
            found.append(replace(_td3_bc(facts, gamma), reason=reason))
        elif name != CLONE:
            found.append(_learner(name, reason, facts, gamma))
    return found


def check_name(name: str) -> None:
    """Refuse what is neither an algorithm that learns from a log nor a candidate of its own."""
    choosers = [algo for algo, cls in ALGORITHMS.items() if cls.action_kinds == ("discrete",) and cls.mode == "online"]
    known = [*(algo for algo, cls in ALGORITHMS.items() if cls.mode == "offline"), *choosers, BEST_CLONE]
    if name not in known:
        hint = nearest(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"algorithms: no algorithm for a log is called {name!r}{hint}")


def _check_kind(name: str, facts: Facts) -> None:
    """Refuse an algorithm that is not made for the actions of the log."""
    kind = "discrete" if facts.is_discrete else "continuous"
    if name != BEST_CLONE and kind not in ALGORITHMS[name].action_kinds:
        fitting = ", ".join(each.name for each in choose_candidates(facts))
        raise ConfigError(f"algorithms: {name} is not for {kind} actions, which the log has: {fitting} are")


def _clone(facts: Facts) -> Candidate:
    reason = "clones the logged behaviour: the baseline, and what is exported if nothing beats the data"
    if not facts.can_improve:
        reason = "clones the logged behaviour, which is all that data without telling rewards allows"
    return Candidate(CLONE, "bc", reason)


def _best_clone(facts: Facts) -> Candidate:
    # Fewer than those near the best would be those that began well: a clone of them knows no other beginnings.
    near = 0.0 if facts.near_best is None else facts.near_best
    share = round(min(max(near, LEAST_BEST, FEWEST_BEST / facts.episodes), 1.0), 3)
    reason = f"clones the best {share:.0%} of the episodes, since others went worse"
    return Candidate(BEST_CLONE, "bc", reason, {"best_fraction": share})


def _td3_bc(facts: Facts, gamma: float | None) -> Candidate:
    """TD3+BC, which is held less near the log where that shows nothing but chance."""
    if not facts.is_nearly_random:
        return _learner("td3_bc", "prefers actions of higher value, and is held near the logged ones", facts, gamma)
    reason = (
        f"prefers actions of higher value; bc_alpha {LOOSE_ALPHA:g}, since there is hardly a behaviour to stay near"
    )
    loose = _learner("td3_bc", reason, facts, gamma)
    return replace(loose, options={**loose.options, "bc_alpha": LOOSE_ALPHA})


def _learner(algo: str, reason: str, facts: Facts, gamma: float | None) -> Candidate:
    """An algorithm that learns from rewards, which are brought to a usual size where returns tell their own."""
    options: dict[str, Any] = {}
    if facts.is_discrete and facts.returns is not None and facts.returns_differ and not facts.is_single_step:
        options["reward_scale"] = float(f"{1 / (facts.returns[2] - facts.returns[0]):.4g}")
        options |= FOR_UNIT_RETURNS.get(algo, {})
    elif facts.returns_differ and not facts.is_single_step:
        options["reward_normalize"] = "return_range"
    if facts.is_single_step or gamma is not None:
        options["gamma"] = 0.0 if facts.is_single_step else gamma
    if ALGORITHMS[algo].mode != "offline":
        options["mode"] = "offline"
    return Candidate(algo, algo, reason, options)
