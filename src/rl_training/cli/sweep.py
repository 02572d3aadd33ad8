"""The commands `sweep` and `tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.display.console import print_json, print_table
from rl_training.cli.display.options import (
    ImportOption,
    JsonOption,
    QuietOption,
    RayOption,
    WorkersOption,
    worker_count,
)
from rl_training.core.errors import UserError
from rl_training.core.text import duration_text, number_text, plural
from rl_training.core.user_code import command_text

if TYPE_CHECKING:
    from rl_training.experiment import PlannedRun, SweepRun, SweepSpec, TuneResult

OUT_HELP = "Folder of the sweep; the same command continues it. Default sweeps/<name of the file>."
SEARCH_OUT_HELP = "Folder of the search; the same command continues it. Default tuning/<name of the file>."
DRY_HELP = "Show the runs and what they would cost, by measured speed; train nothing."
SHOWN_ERRORS = 10


def sweep(
    file: Annotated[str, typer.Argument(metavar="SWEEP.YAML", help="What varies: see docs/sweeps.md.")],
    out: Annotated[str | None, typer.Option(help=OUT_HELP)] = None,
    workers: WorkersOption = "1",
    ray: RayOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_HELP)] = False,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train every combination of options in a file; run again, only the missing runs."""
    from rl_training.cli.display.progress import shown
    from rl_training.experiment import keep_names, plan_runs, read_sweep, run_sweep

    if not Path(file).is_file():
        raise UserError(f"{file!r} does not exist: expected a YAML file that says what varies")
    spec, folder = read_sweep(file), Path(out or Path("sweeps", Path(file).stem))
    count = worker_count(workers, threads=spec.threads)
    if dry_run:
        _show_cost(spec, keep_names(plan_runs(spec, folder), folder), count, ray, quiet=quiet, as_json=as_json)
        return
    with shown(quiet=quiet, as_json=as_json) as display:
        results = run_sweep(spec, folder, workers=count, ray=ray, watcher=display)
    _report(results, folder, quiet=quiet, as_json=as_json)


def _report(results: Sequence[SweepRun], out: Path, *, quiet: bool, as_json: bool) -> None:
    """Print the outcome of the runs: where the report is, or which runs failed."""
    from rl_training.cli.display.progress import tell_interrupt

    failed = [each for each in results if each.progress.status == "failed"]
    if as_json:
        print_json([each.to_plain() for each in results])
    elif not quiet and len(failed) < len(results):
        print(f"report: {command_text('report', out)}")
    if failed and as_json:
        # The errors are part of what was printed.
        raise typer.Exit(2)
    if failed:
        shown = [f"{each.planned.name}: {each.progress.error}" for each in failed[:SHOWN_ERRORS]]
        more = [f"and {len(failed) - SHOWN_ERRORS} more: see {out / 'sweep.json'}"] * (len(failed) > SHOWN_ERRORS)
        raise UserError("\n".join([f"{len(failed)} of {len(results)} runs failed", *shown, *more]))
    if any(each.progress.status == "interrupted" for each in results):
        tell_interrupt()


def _show_cost(
    spec: SweepSpec, runs: Sequence[PlannedRun], workers: int, ray: str | None, *, quiet: bool, as_json: bool
) -> None:
    """Print the remaining steps and the estimated time of every run."""
    from rl_training.cli.display.console import working
    from rl_training.experiment import count_workers, estimate_costs, total_seconds

    count = count_workers(workers, ray, threads=spec.threads)
    with working(quiet=quiet or as_json) as show:
        costs = estimate_costs(runs, threads=spec.threads, tell=show)
    seconds = total_seconds(costs, count)
    if as_json:
        print_json({"cells": [cost.to_plain() for cost in costs], "workers": count, "seconds": seconds})
        return
    rows = []
    for cost in costs:
        speed = "" if cost.steps_per_second is None else number_text(cost.steps_per_second)
        rows.append((cost.planned.name, cost.status, str(cost.steps), speed, duration_text(cost.seconds)))
    print_table(("run", "status", "steps", "per second", "time"), rows)
    time = f"about {duration_text(seconds)} with {plural(count, 'worker')}"
    print(f"{len(runs)} runs; {time}, by speeds measured on this machine")


def tune(
    file: Annotated[str, typer.Argument(metavar="TUNE.YAML", help="What to search: see docs/tuning.md.")],
    out: Annotated[str | None, typer.Option(help=SEARCH_OUT_HELP)] = None,
    workers: WorkersOption = "1",
    ray: RayOption = None,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for good options, and test on fresh seeds whether they beat the defaults."""
    from rl_training.cli.display.progress import shown
    from rl_training.experiment import read_tune, run_tuning

    if not Path(file).is_file():
        raise UserError(f"{file!r} does not exist: expected a YAML file that says what to search")
    spec, folder = read_tune(file), Path(out or Path("tuning", Path(file).stem))
    count = worker_count(workers, threads=spec.threads)
    with shown(quiet=quiet, as_json=as_json) as display:
        result = run_tuning(spec, folder, workers=count, ray=ray, watcher=display)
    if as_json:
        print_json({"out": str(folder), **result.to_plain()})
    else:
        print_search(result)


def print_search(result: TuneResult) -> None:
    """Print the best options, the comparison with the defaults, and where the files are."""
    from rl_training.experiment import options_text

    counts = ", ".join(f"{count} {name}" for name, count in result.trials.items() if count)
    pictures = [name for name in ("history.png", "importance.png") if (result.out / name).is_file()]
    facts = {
        "trials": counts,
        "best": f"trial {result.number}, {result.metric} {number_text(result.value)}",
        "options": options_text(result.params),
        "result": result.check.sentence,
        "config": str(result.config),
        "pictures": ", ".join(str(result.out / name) for name in pictures),
    }
    for name, text in facts.items():
        if text:
            print(f"{name:<10}{text}")
    for text in result.check.failed:
        print(f"failed    {text}")
    print(f"Next: {command_text('train', result.config)}")
