"""What `estimate` prints about estimates by weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.cli.console import print_table
from rl_training.text import number_text

if TYPE_CHECKING:
    from rl_training.experiment.estimation import Estimates
    from rl_training.experiment.weighting import WeightedEstimate, WeightedValue

BESIDE = {"PDWIS": "WDR", "SNIPS": "DR", "WDR": "PDWIS"}
"""Which further estimator is shown beside the recommended one."""
MEANINGS = {
    "PDWIS": "rewards weighted by the actions before them",
    "WDR": "a model of other episodes, corrected by weights",
    "SNIPS": "rewards weighted by their actions",
    "DR": "a model of other rows, corrected by weights",
}
WORDS = {"proceed": "can be trusted", "warn": "with care", "refuse": "refused"}


def print_weighted(result: Estimates) -> None:
    """A table of estimates by weights, what they mean, and why others were refused."""
    if not result.weighted:
        print(f"No estimates by weights: {result.not_weighted}.\n")
        return
    print("By weights: episodes count more if the policy would have acted as the log did. Beside the fit, not instead.")
    rows = [row for each in result.weighted for row in _rows(each)]
    print_table(["policy", "estimator", "value", "95 % interval", "episodes that count", "weights"], rows)
    shown = [name for name in MEANINGS if any(row[1] == name for row in rows)]
    for name in shown:
        print(f"{name}: {MEANINGS[name]}")
    if shown:
        print(f"The model took {result.updates} more updates per policy; no episode is valued by what learned from it.")
    for each in result.weighted:
        for sentence in _sentences(each, result):
            print(f"{each.name}: {sentence}")
    print()


def weights_text(weighted: Mapping[str, Any]) -> str:
    """What weights say of one policy beside the fit, in a sentence; of plain values, as JSON has them."""
    if weighted["recommended"] is None:
        return f"By weights: refused, {'; '.join(weighted['reasons'])}."
    own = next(each for each in weighted["estimates"] if each["estimator"] == weighted["recommended"])
    interval = "" if own["interval"] is None else f", {' to '.join(map(number_text, own['interval']))}"
    counted = f"{weighted['weights']['effective_sample_size']:.0f} of {weighted['weights']['episodes']} episodes count"
    agrees = {True: "; it agrees with the fit", False: "; it disagrees with the fit"}.get(weighted["agrees"], "")
    if weighted["is_drawn"]:
        agrees = "; weights judge the policy as it draws its actions, the fit judges its most likely action"
    trust = WORDS[weighted["level"]]
    return f"By weights ({own['estimator']}, {counted}, {trust}): {number_text(own['value'])}{interval}{agrees}."


def _rows(each: WeightedEstimate) -> list[list[str]]:
    effective, episodes = (each.weights.get(name) for name in ("effective_sample_size", "episodes"))
    counted = "-" if effective is None else f"{effective:.0f} of {episodes}"
    if each.recommended is None:
        return [[each.name, "-", "-", "-", counted, WORDS[each.level]]]
    first, second = each[each.recommended], each[BESIDE[each.recommended]]
    return [[each.name, *_numbers(first), counted, WORDS[each.level]], ["", *_numbers(second), "", ""]]


def _numbers(found: WeightedValue) -> list[str]:
    interval = "-" if found.interval is None else " to ".join(map(number_text, found.interval))
    return [found.estimator, number_text(found.value), interval]


def _sentences(each: WeightedEstimate, result: Estimates) -> list[str]:
    """What to know about one policy's weights."""
    said = [f"{'refused' if each.level == 'refuse' else 'careful'}: {reason}" for reason in each.reasons]
    if each.headline is None:
        return said
    if each.bandwidth is not None:
        said.append(f"it is deterministic; judged with noise of up to {each.bandwidth:g} in actions from -1 to 1")
    if each.is_drawn:
        said.append("importance weights evaluate the stochastic policy; FQE evaluates its most likely action")
    if each.recommended == "WDR":
        said.append(
            "episodes were cut: PDWIS counts rewards up to the cut; WDR goes on with the model, as the fit does"
        )
    fit = result[each.name].value
    if each.agrees is False and fit is not None:
        numbers = f"{number_text(each.headline.value)} by weights, {number_text(fit)} by the fit"
        said.append(f"the two disagree beyond their intervals ({numbers}): rely on neither before you know why")
    return said
