"""Algorithms that suit a log: facts about the data, and a few candidates, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError, nearest
from rl_training.data import TransitionDataset
from rl_training.data.audit import NEARLY_DETERMINISTIC, View, action_spread

CLONE = "bc"
"""The clone of the logged behaviour, which is always a candidate."""
BEST_CLONE = "bc_best"
"""The clone of the best episodes alone."""
CLONES = (CLONE, BEST_CLONE)
ONLY = "data without informative rewards allows no more"
FEWEST_BEST = 10
"""The fewest episodes for a clone of the best ones."""
MANY_ROWS = 50_000
"""Rows from which an algorithm with more networks is worth its time."""
LOOKS_RANDOM = 0.9
"""Spread of actions in similar states from which a behaviour looks random, given the observations."""
NEAR_BEST = 0.1
"""Distance from the best return, as a share of the range of returns, up to which a return is near it."""
LEAST_BEST, MOSTLY_BEST = 0.1, 0.9
"""The least share of episodes that `bc_best` clones, and the share near the best from which it is left out."""

RANDOM_OR_HIDDEN = "they are random, or depend on something that is not logged"

FOR_UNIT_RETURNS: dict[str, dict[str, Any]] = {
    "discrete_iql": {"beta": 20.0},
    "discrete_cql": {"conservative_weight": 0.02},
    "discrete_crr": {"beta": 0.05},
    "discrete_sac": {"conservative_weight": 0.1, "alpha": 0.02},
}
"""Options that depend on the size of returns, for returns with a range of 1."""


@dataclass(frozen=True)
class DatasetFacts:
    """Facts that decide which algorithms suit a log. Rows and episodes are those of the training data."""

    rows: int
    episodes: int
    is_discrete: bool
    has_rewards: bool
    rewards_differ: bool
    """False if all rewards are the same and no episode terminates, so that no action is better than another."""
    is_single_step: bool
    """Whether every episode is a single decision, as in a bandit."""
    action_spread: float | None
    """The spread of actions in similar states, relative to all actions; None if there are too few rows."""
    returns: tuple[float, float, float] | None
    """The smallest, the mean and the largest return; None without rewards."""
    near_best: float | None
    """The share of episodes whose return is near the best one."""

    @classmethod
    def of(cls, dataset: TransitionDataset) -> DatasetFacts:
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
        """Whether nearly the same action was taken in similar states."""
        return self.action_spread is not None and self.action_spread <= NEARLY_DETERMINISTIC

    @property
    def looks_random(self) -> bool:
        """Whether actions hardly depend on the observation; they may depend on something that is not logged."""
        return self.action_spread is not None and self.action_spread >= LOOKS_RANDOM

    @property
    def can_improve(self) -> bool:
        """Whether rewards are informative."""
        return self.has_rewards and self.rewards_differ

    @property
    def returns_differ(self) -> bool:
        """Whether some episodes have higher returns than others."""
        return self.returns is not None and self.returns[0] < self.returns[2]

    @property
    def some_are_better(self) -> bool:
        """Whether some episodes are clearly worse than the best ones."""
        return self.returns_differ and self.near_best is not None and self.near_best < MOSTLY_BEST

    def describe(self) -> list[str]:
        """The facts in sentences."""
        kind = "discrete actions" if self.is_discrete else "continuous actions"
        episodes = "single decisions" if self.is_single_step else f"{self.episodes:,} episodes"
        lines = [f"{self.rows:,} rows to train on, {episodes}, {kind}"]
        if not self.can_improve:
            what = "all rewards are the same" if self.has_rewards else "no rewards"
            lines.append(f"{what}: the logged behaviour can be cloned, and nothing can be called better")
        if self.can_improve and self.returns is not None and self.near_best is not None:
            low, mean, high = (f"{each:.4g}" for each in self.returns)
            lines.append(
                f"returns from {low} to {high}, mean {mean}; {self.near_best:.0%} of the episodes near the best"
            )
        return [*lines, self._describe_actions()]

    def _describe_actions(self) -> str:
        if self.action_spread is None:
            return "too few rows to tell whether similar states have different actions"
        if self.is_nearly_deterministic:
            return "similar states have nearly the same action: the log hardly shows what else works"
        if self.looks_random:
            return f"actions hardly depend on the observation: {RANDOM_OR_HIDDEN}"
        return "similar states have different actions: the log shows what else works"


@dataclass(frozen=True)
class AlgorithmCandidate:
    """An algorithm with its options, and the reason to try it."""

    name: str
    algo: str
    reason: str
    options: dict[str, Any] = field(default_factory=dict)

    def run_name(self, seed: int) -> str:
        """The name of its run."""
        return f"{self.name}_seed{seed}"


def is_clone(run_name: str) -> bool:
    """Whether a run clones the behaviour as a whole."""
    return run_name.startswith(f"{CLONE}_seed")


def in_order_of_worth(candidates: Sequence[AlgorithmCandidate], seeds: Sequence[int]) -> tuple[str, ...]:
    """All runs, those first that time is spent on first: seed by seed those that may win, and the clones last."""
    ordered = sorted(candidates, key=lambda each: each.name in CLONES)
    return tuple(sorted((each.run_name(seed) for seed in seeds for each in ordered), key=is_clone))


def choose_candidates(facts: DatasetFacts, *, gamma: float | None = None) -> list[AlgorithmCandidate]:
    """The candidates that suit a log, the clone of the behaviour first."""
    return [_candidate(name, reason, facts, gamma) for name, reason in _suitable(facts).items()]


def _suitable(facts: DatasetFacts) -> dict[str, str]:
    """The names of the candidates that suit a log, with the reason for each; `_candidate` has those of clones."""
    found = {CLONE: ""}
    if not facts.can_improve:
        return found
    if facts.is_single_step and facts.is_discrete:
        found["dqn"] = "learns the reward of every action, with discount 0 since each row is a separate decision"
        return found
    if not facts.is_nearly_deterministic and facts.some_are_better and facts.episodes >= 2 * FEWEST_BEST:
        found[BEST_CLONE] = ""
    if facts.is_discrete:
        found["discrete_bcq"] = "takes the best action among those that the log makes likely"
        found["discrete_iql"] = "imitates the better part of the logged actions, and never tries others"
        if facts.looks_random:
            found["dqn"] = f"learns the value of every action; similar states have all: {RANDOM_OR_HIDDEN}"
        elif facts.rows >= MANY_ROWS:
            found["discrete_cql"] = "lowers the values of actions that the log lacks, for which there are enough rows"
        return found
    found["td3_bc"] = "prefers actions of higher value, and stays near the logged ones"
    found["iql"] = "imitates the better part of the logged actions, and never tries others"
    if facts.rows >= MANY_ROWS and not facts.is_nearly_deterministic:
        found["rebrac"] = f"scores higher than td3_bc if there are many rows, and {facts.rows:,} are enough for it"
    return found


def named_candidates(
    names: Sequence[str], facts: DatasetFacts, *, gamma: float | None = None
) -> list[AlgorithmCandidate]:
    """The candidates that a user names, and the clone of the behaviour."""
    kind = "discrete" if facts.is_discrete else "continuous"
    for name in names:
        check_name(name)
        if name != BEST_CLONE and kind not in ALGORITHMS[name].action_kinds:
            suitable = ", ".join(_suitable(facts))
            raise ConfigError(f"algorithms: {name} is not for {kind} actions, which the log has: {suitable} are")
    return [_candidate(name, "asked for", facts, gamma) for name in dict.fromkeys([CLONE, *names])]


def check_name(name: str) -> None:
    """Refuse a name that is neither an algorithm that learns from a log nor `bc_best`."""
    both = [algo for algo, cls in ALGORITHMS.items() if cls.action_kinds == ("discrete",) and cls.mode == "online"]
    known = [*(algo for algo, cls in ALGORITHMS.items() if cls.mode == "offline"), *both, BEST_CLONE]
    if name not in known:
        hint = nearest(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"algorithms: no algorithm for a log is called {name!r}{hint}")


def _candidate(name: str, reason: str, facts: DatasetFacts, gamma: float | None) -> AlgorithmCandidate:
    """A candidate with its options. Rewards are scaled to a usual size if returns tell it."""
    if name == CLONE:
        rest = "the baseline, and what is exported if nothing beats the data"
        return AlgorithmCandidate(CLONE, "bc", f"clones the logged behaviour: {rest if facts.can_improve else ONLY}")
    if name == BEST_CLONE:
        # Fewer than those near the best would be those that began well: a clone of them knows no other beginnings.
        share = round(min(max(facts.near_best or 0.0, LEAST_BEST, FEWEST_BEST / facts.episodes), 1.0), 3)
        why = f"clones the best {share:.0%} of the episodes, since others went worse"
        return AlgorithmCandidate(BEST_CLONE, "bc", why, {"best_fraction": share})
    options: dict[str, Any] = {}
    if facts.returns is not None and facts.returns_differ and not facts.is_single_step:
        if facts.is_discrete:
            options["reward_scale"] = float(f"{1 / (facts.returns[2] - facts.returns[0]):.4g}")
            options |= FOR_UNIT_RETURNS.get(name, {})
        else:
            options["reward_normalize"] = "return_range"
    if facts.is_single_step or gamma not in (None, 1):
        options["gamma"] = 0.0 if facts.is_single_step else gamma
    if ALGORITHMS[name].mode != "offline":
        options["mode"] = "offline"
    return AlgorithmCandidate(name, name, reason, options)
