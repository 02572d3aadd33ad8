"""The command `pipeline`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.display.console import print_json, print_table
from rl_training.cli.display.options import (
    ImportOption,
    JsonOption,
    QuietOption,
    RayOption,
    SetOption,
    WorkersOption,
    takes_columns,
    worker_count,
)
from rl_training.cli.estimate import weights_text
from rl_training.core.errors import ConfigError
from rl_training.core.seeds import parse_seeds
from rl_training.core.text import interval_text, number_text

if TYPE_CHECKING:
    from rl_training.pipeline import PipelineResult

DATA_HELP = "A table, a file of transitions, or the id of a Minari dataset."
OUT_HELP = "Folder for all results; the same command continues with what it holds."
MINUTES_HELP = "Time for everything, default 10; may be raised in the same folder."
ALGOS_HELP = "Algorithms to try beside bc, such as td3_bc,iql; auto: those that suit the data."
MEMBERS_HELP = "Ensemble members for resampled episodes; default 10, or 5 if time is short."
EPISODES_HELP = "Episodes in that environment that may be spent on selection; default 0."
CONFIG_HELP = "The same options in a YAML file; options of the command win."


@takes_columns
def pipeline(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=DATA_HELP)] = None,
    out: Annotated[str | None, typer.Option(help=OUT_HELP)] = None,
    minutes: Annotated[float | None, typer.Option(help=MINUTES_HELP)] = None,
    updates: Annotated[int | None, typer.Option(help="Updates of each run, instead of --minutes.")] = None,
    algos: Annotated[str | None, typer.Option(metavar="auto|ALGO,...", help=ALGOS_HELP)] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of each algorithm: 0-4, or 0,3,7; default 0-1.")] = None,
    workers: WorkersOption = "1",
    ray: RayOption = None,
    env: Annotated[str | None, typer.Option(help="Environment: bounds of actions, and evaluation of policies.")] = None,
    real_episodes: Annotated[int | None, typer.Option(help=EPISODES_HELP)] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount per step, of training and of estimates.")] = None,
    members: Annotated[int | None, typer.Option(help=MEMBERS_HELP)] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help=CONFIG_HELP)] = None,
    set_: SetOption = None,
    accept_audit: Annotated[
        bool, typer.Option("--accept-audit", help="Continue even with data that the audit refuses.")
    ] = False,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Train, select and export a policy from a log. Stop at any time; run again to continue."""
    # The following imports take seconds, which count as the user's time.
    began = time.monotonic()
    from rl_training.cli.display.progress import shown
    from rl_training.pipeline import run_pipeline

    named: dict[str, Any] = {
        "data": data,
        "env_id": env,
        "real_episodes": real_episodes,
        "minutes": minutes,
        "updates": updates,
        "gamma": gamma,
        "members": members,
    }
    named |= {"seeds": None if seeds is None else parse_seeds(seeds), "columns": columns}
    named |= {"algorithms": _names(algos), "accept_audit": accept_audit or None}
    options = _options(config, named, set_ or [])
    if out is None:
        raise ConfigError("--out is required: the folder for all results of the pipeline")
    count = worker_count(workers)
    with shown(quiet=quiet, as_json=as_json) as display:
        result = run_pipeline(options, out, workers=count, ray=ray, watcher=display, began=began)
    if as_json:
        print_json({"out": str(out), **result.to_plain(), "seconds": result.seconds})
    else:
        print_result(result, out)


def _names(algos: str | None) -> list[str] | None:
    if algos is None:
        return None
    return [] if algos == "auto" else [name.strip() for name in algos.split(",") if name.strip()]


def _options(config: str | None, named: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The options of a file, with those of the command, which win."""
    from rl_training.config import with_overrides
    from rl_training.pipeline import read_values

    given = {name: value for name, value in named.items() if value is not None}
    values = {**({} if config is None else read_values(config)), **given}
    for one, other in (("minutes", "updates"), ("updates", "minutes")):
        # A budget of the command takes the place of the other kind in the file.
        if one in given and other not in given:
            values.pop(other, None)
    if "data" not in values:
        raise ConfigError("no data is named: rl-training pipeline DATA --out FOLDER, or data: in the file of --config")
    return with_overrides(values, overrides)


def print_result(result: PipelineResult, out: str) -> None:
    """Print the policies, the outcome, the time of each stage, and what to do next."""
    from rl_training.pipeline import describe_times

    print()
    if result.selection is not None and result.selection["estimates"] is not None:
        _print_selection(result, result.selection)
    for name, run in result.runs.items():
        if run["error"]:
            print(f"{name} failed: {run['error'].splitlines()[-1]}")
    facts = {"result": result.sentence}
    if result.beats_the_data:
        facts["claim"] = f"made on {result.claim_on}; about the mean over starts like the logged ones, not about safety"
    facts |= {name: str(Path(out, file)) for name, file in (("policy", "export"), ("report", "report.html"))}
    facts["time"] = describe_times(result.seconds, result.minutes)
    for name, text in facts.items():
        print(f"{name:<12}{text}")
    print(f"Next: open {Path(out, 'report.html')} in a browser")
    print(f"Next: python {Path(out, 'export', 'check.py')}")


def _print_selection(result: PipelineResult, selection: dict[str, Any]) -> None:
    """Print the table of all policies, the claim about the selected one, and why others cannot be judged."""
    from rl_training.ope import horizon_text

    estimates, claim = selection["estimates"], result.claim
    with_env = any("return_mean" in run["metrics"] for run in result.runs.values())
    head = ["", "policy", "updates", "value", "95 % interval", "verdict", *(["return in env"] if with_env else [])]
    is_one = sum(each["rank"] is not None for each in selection["candidates"]) <= 1
    rows = [
        _row({**each, "mark": "*" * (each["is_among_the_best"] and not is_one)}, result, with_env=with_env)
        for each in selection["candidates"]
    ]
    if claim is not None:
        basis = "on claim episodes" if result.claim_on == "claim episodes" else "on selection episodes"
        rows.append(_row({**claim, "name": f"{claim['name']}, {basis}"}, result, with_env=with_env))
    logged = f"value {number_text(estimates['logged_value'])} {horizon_text(estimates['gamma'])}"
    print(f"data: mean return {number_text(estimates['logged_return'])}, {logged}\n")
    print_table(head, rows)
    if not is_one:
        print(f"* {_preference(selection)}")
    reasons: dict[str, list[str]] = {}
    for each in selection["candidates"]:
        for reason in each["reasons"]:
            reasons.setdefault(reason, []).append(each["name"])
    for reason, names in reasons.items():
        print(f"{', '.join(names)} cannot be judged: {reason}")
    if claim is not None and claim["weighted"] is not None:
        print(f"{claim['name']}: {weights_text(claim['weighted'])}")
    print()


def _row(each: dict[str, Any], result: PipelineResult, *, with_env: bool) -> list[str]:
    from rl_training.ope import verdict_text

    run = result.runs.get(each["name"], {"metrics": {}})
    numbers = ["-" if each["value"] is None else number_text(each["value"])]
    numbers.append(interval_text(each["interval"]))
    verdict = "outside the shortlist" if each["verdict"] is None else verdict_text(each["verdict"])
    updates = f"{run['updates']:,}" if "updates" in run else ""
    score = run["metrics"].get("return_mean")
    # The claim is about a run that has a row of its own.
    in_env = "" if "updates" not in run else "-" if score is None else number_text(score)
    return [each.get("mark", ""), each["name"], updates, *numbers, verdict, *([in_env] if with_env else [])]


def _preference(selection: dict[str, Any]) -> str:
    """The meaning of the mark, and why the selected policy was preferred."""
    chosen, best, spent = selection["chosen"], selection["best"], len(selection["pulls"])
    if spent:
        return f"the best by the log, or not distinguishable from it; {chosen} was selected by {spent} real episodes"
    if len(best) == 1:
        return "the best by the log, and distinguishable from all others"
    rule = "the highest value among those that are better than the data" if chosen != best[0] else "the highest value"
    return f"not distinguishable from each other; {chosen} was selected: {rule}"
