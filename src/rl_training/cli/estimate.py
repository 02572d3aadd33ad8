"""The command `estimate`, and texts of estimates that other commands print too."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rl_training.cli.display.console import print_json, print_table, working
from rl_training.cli.display.options import BestOption, ImportOption, JsonOption, QuietOption, takes_columns
from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.files import write_json
from rl_training.core.text import clock_text, interval_text, number_text

if TYPE_CHECKING:
    from rl_training.ope import Progress, WeightedEstimate
    from rl_training.runtime import Split
    from rl_training.selection import Estimate, Estimates

RUNS_HELP = "Run directories, checkpoints, folders of runs, or patterns."
DATA_HELP = "Evaluate on this log instead of the runs' own data."
GAMMA_HELP = "Discount per step; 1: none, the default if episodes terminate. Else by their length, at most 0.995."
MEMBERS_HELP = "Ensemble members for resampled episodes, from which the interval comes."
UPDATES_HELP = "Updates of each FQE estimate; default as many as convergence needs."
SPLIT_HELP = "Evaluate on held-out episodes or on all; auto: on held-out ones if there are at least ten."
SIZES_HELP = "Widths of the hidden layers of FQE, such as 256,256."
IMPORTANCE_HELP = "Also estimate by importance sampling, if the log has action probabilities."
ACCEPT_HELP = "Give verdicts although the audit warns of the timing of actions."
IMPORTANCE_NAMES = ("--importance/--no-importance", "--weights/--no-weights")
SPLITS = ("auto", "held-out", "all")


@takes_columns
def estimate(
    columns: dict[str, Any] | None,
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    data: Annotated[str | None, typer.Option(metavar="DATA", help=DATA_HELP)] = None,
    gamma: Annotated[float | None, typer.Option(help=GAMMA_HELP)] = None,
    members: Annotated[int, typer.Option(min=2, help=MEMBERS_HELP)] = 10,
    updates: Annotated[int | None, typer.Option(min=1, help=UPDATES_HELP)] = None,
    split: Annotated[str, typer.Option(metavar="auto|held-out|all", help=SPLIT_HELP)] = "auto",
    hidden_sizes: Annotated[str | None, typer.Option(metavar="WIDTH,...", help=SIZES_HELP)] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of FQE and of resampled episodes.")] = 0,
    importance: Annotated[bool, typer.Option(*IMPORTANCE_NAMES, help=IMPORTANCE_HELP)] = True,
    best: BestOption = False,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this .json file too.")] = None,
    quiet: QuietOption = False,
    accept_audit: Annotated[bool, typer.Option("--accept-audit", help=ACCEPT_HELP)] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the values of policies from logged data alone, without running them, and compare them."""
    from rl_training.selection import estimate as estimate_policies

    check_options(split, data, out)
    if columns and data is None:
        raise ConfigError("options for columns go with --data; runs know the columns of their own data")
    more: dict[str, Any] = {} if hidden_sizes is None else {"hidden_sizes": parse_sizes(hidden_sizes)}
    with show_progress(quiet=quiet or as_json) as progress:
        result = estimate_policies(
            runs,
            data,
            gamma=gamma,
            members=members,
            updates=updates,
            split=cast("Split", split),
            checkpoint="best.pt" if best else "latest.pt",
            seed=seed,
            columns=columns,
            weights=importance,
            accept_audit=accept_audit,
            progress=progress,
            **more,
        )
    files = result.save()
    if out is not None:
        write_json(out, result.to_plain(), indent=1)
    if as_json:
        print_json(result.to_plain())
        return
    print_estimates(result)
    for file in [*files, *([] if out is None else [out])]:
        print(f"stored in {file}")


def check_options(split: str, data: str | None, out: Path | None) -> None:
    """Refuse invalid options of `estimate` and `select` before anything is read."""
    if split not in SPLITS:
        raise ConfigError(f"--split must be auto, held-out or all, got {split!r}")
    if out is not None and out.suffix != ".json":
        raise ConfigError(f"--out expects a file that ends with .json, got {str(out)!r}")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Widths of layers from text such as 256,256."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--hidden-sizes {text!r}: expected whole numbers with commas between them, such as 256,256")
    return tuple(map(int, parts))


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Progress]:
    """Show the policy that is evaluated, the progress and the time left; the line is removed at the end."""
    started: dict[str, float] = {}
    with working(quiet=quiet) as show:
        if not quiet:
            show("reading the data")

        def report(name: str, done: int, total: int) -> None:
            now = time.monotonic()
            spent = now - started.setdefault(name, now)
            left = f", {clock_text(spent * (total - done) / done)} left" if spent and done < total else ""
            show(f"{name}: {done} of {total} updates{left}")

        yield report


def print_basis(result: Estimates) -> None:
    """Print the data, the horizon, the options of FQE and its control."""
    from rl_training.ope import horizon_text

    print(f"{'data':<12}{result.source}: {result.episodes} episodes, {result.rows:,} rows; {result.relation}")
    logged = f"mean return {number_text(result.logged_return)}, discounted {number_text(result.logged_value)}"
    print(f"{'':<12}{logged} (standard deviation {number_text(result.logged_std)})")
    print(f"{'horizon':<12}values are {horizon_text(result.gamma)}, from where logged episodes begin")
    sizes, others = " x ".join(map(str, result.fit["hidden_sizes"])), result.fit["members"]
    fit = f"{result.updates} updates, kappa {result.kappa:.1f}, networks of {sizes}, 1 + {others} ensemble members"
    print(f"{'FQE':<12}{fit}")
    verdict = "reproduces the log" if result.control_passes else "does not reproduce the log"
    said = f"estimated {number_text(result.behavior_value)}, logged {number_text(result.logged_value)}"
    print(f"{'control':<12}{verdict}: the behaviour's value is {said}\n")


def print_estimates(result: Estimates) -> None:
    """Print the estimates with their verdicts."""
    from rl_training.ope import CAVEAT

    print_basis(result)
    print_table(
        ["policy", "value", "95 % interval", "better than the data", "verdict"], list(map(_row, result.policies))
    )
    for each in result.policies:
        for reason in each.reasons:
            print(f"{each.name} cannot be judged: {reason}")
    print()
    print_weighted(result)
    print(summary(result))
    print(CAVEAT)


def _row(each: Estimate) -> list[str]:
    from rl_training.ope import probability_text, verdict_text

    if each.value is None or each.interval is None or each.probability_better is None:
        return [each.name, "-", "-", "-", each.verdict]
    probability = f"probability {probability_text(each.probability_better)}"
    return [each.name, number_text(each.value), interval_text(each.interval), probability, verdict_text(each.verdict)]


def summary(result: Estimates) -> str:
    """The best policies in a sentence."""
    from rl_training.ope import horizon_text, verdict_text

    if not result.best:
        return "No policy can be judged by this log."
    best, *others = result.best
    verdict = f"{verdict_text(result[best].verdict)} {horizon_text(result.gamma)}"
    if len(result.policies) == 1:
        return f"{best} is {verdict}."
    alike = f"; not distinguishable from it: {', '.join(others)}" if others else ""
    return f"The best is {best}, which is {verdict}{alike}."


BESIDE = {"PDWIS": "WDR", "SNIPS": "DR", "WDR": "PDWIS"}
"""The estimator that is shown beside the recommended one."""
MEANINGS = {
    "PDWIS": "rewards weighted by the actions before them",
    "WDR": "a model of other episodes, corrected by importance weights",
    "SNIPS": "rewards weighted by their actions",
    "DR": "a model of other rows, corrected by importance weights",
}
LEVELS = {"proceed": "can be trusted", "warn": "with care", "refuse": "refused"}


def print_weighted(result: Estimates) -> None:
    """Print the estimates by importance sampling, their meaning, and why others were refused."""
    if not result.weighted:
        print(f"No importance sampling: {result.not_weighted}.\n")
        return
    print("Importance sampling: episodes count more if the policy would have acted as the log did.")
    print("It is a second estimate beside FQE, not instead of it:")
    rows = [row for each in result.weighted for row in _rows(each)]
    print_table(["policy", "estimator", "value", "95 % interval", "episodes that count", "weights"], rows)
    shown = [name for name in MEANINGS if any(row[1] == name for row in rows)]
    for name in shown:
        print(f"{name}: {MEANINGS[name]}")
    if shown:
        who = "no episode is valued by an ensemble member that learned from it"
        print(f"The model took {result.updates} more updates per policy; {who}.")
    for each in result.weighted:
        for sentence in _sentences(each, result):
            print(f"{each.name}: {sentence}")
    print()


def weights_text(weighted: Mapping[str, Any]) -> str:
    """The estimate of one policy by importance sampling in a sentence, from plain values, as JSON has them."""
    if weighted["recommended"] is None:
        return f"Importance sampling: refused, {'; '.join(weighted['reasons'])}."
    own = next(each for each in weighted["estimates"] if each["estimator"] == weighted["recommended"])
    interval = "" if own["interval"] is None else f", {interval_text(own['interval'])}"
    counted = f"{weighted['weights']['effective_sample_size']:.0f} of {weighted['weights']['episodes']} episodes count"
    agrees = {True: "; it agrees with FQE", False: "; it disagrees with FQE"}.get(weighted["agrees"], "")
    if weighted["is_drawn"]:
        agrees = "; it evaluates the stochastic policy, FQE evaluates its most likely action"
    basis = f"{own['estimator']}, {counted}, {LEVELS[weighted['level']]}"
    return f"Importance sampling ({basis}): {number_text(own['value'])}{interval}{agrees}."


def _rows(each: WeightedEstimate) -> list[list[str]]:
    effective, episodes = (each.weights.get(name) for name in ("effective_sample_size", "episodes"))
    counted = "-" if effective is None else f"{effective:.0f} of {episodes}"
    if each.recommended is None:
        return [[each.name, "-", "-", "-", counted, LEVELS[each.level]]]
    shown = (each[each.recommended], each[BESIDE[each.recommended]])
    first, second = ([one.estimator, number_text(one.value), interval_text(one.interval)] for one in shown)
    return [[each.name, *first, counted, LEVELS[each.level]], ["", *second, "", ""]]


def _sentences(each: WeightedEstimate, result: Estimates) -> list[str]:
    """Remarks on the importance sampling of one policy."""
    said = [f"{'refused' if each.level == 'refuse' else 'careful'}: {reason}" for reason in each.reasons]
    if each.headline is None:
        return said
    if each.bandwidth is not None:
        said.append(f"it is deterministic, and evaluated with noise up to {each.bandwidth:g} in actions from -1 to 1")
    if each.is_drawn:
        said.append("importance weights evaluate the stochastic policy; FQE evaluates its most likely action")
    if each.recommended == "WDR":
        said.append(
            "episodes were truncated: PDWIS counts rewards up to there; WDR continues with the model, as FQE does"
        )
    fit = result[each.name].value
    if each.agrees is False and fit is not None:
        numbers = f"{number_text(each.headline.value)} by importance sampling, {number_text(fit)} by FQE"
        said.append(f"the two disagree beyond their intervals ({numbers}): rely on neither before you know why")
    return said
