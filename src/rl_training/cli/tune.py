"""The command `tune`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.console import print_json
from rl_training.cli.options import ImportOption, JsonOption, QuietOption, RayOption, WorkersOption, worker_count
from rl_training.importing import command_text
from rl_training.signals import INTERRUPTED
from rl_training.text import number_text
from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.experiment.tuning import TuneResult

OUT_HELP = "Folder of the search; the same command goes on with it. Default tuning/<name of the file>."


def tune(
    file: Annotated[str, typer.Argument(metavar="TUNE.YAML", help="What to search: see docs/tuning.md.")],
    out: Annotated[str | None, typer.Option(help=OUT_HELP)] = None,
    workers: WorkersOption = "1",
    ray: RayOption = None,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for good options, and say how sure it is that they are better than the default ones."""
    from rl_training.experiment.tune_spec import read_tune

    if not Path(file).is_file():
        raise UserError(f"{file!r} does not exist: expected a YAML file that says what to search")
    spec, folder = read_tune(file), Path(out or Path("tuning", Path(file).stem))
    result = _run(spec, folder, worker_count(workers, threads=spec.threads), ray, quiet=quiet, as_json=as_json)
    if as_json:
        print_json({"out": str(folder), **result.to_plain()})
    else:
        print_result(result)


def _run(spec: Any, out: Path, workers: int, ray: str | None, *, quiet: bool, as_json: bool) -> TuneResult:
    from rl_training.cli.progress import ProgressDisplay
    from rl_training.experiment.tuning import run_tuning

    try:
        with ProgressDisplay(quiet=quiet, to_stderr=as_json) as display:
            return run_tuning(spec, out, workers=workers, ray=ray, watcher=display)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was stopped", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def print_result(result: TuneResult) -> None:
    """The best options, whether they are better than the default ones, and where the files are."""
    from rl_training.experiment.tuning import options_text

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
