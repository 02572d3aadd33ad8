"""The commands `train`, `resume` and `fetch`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rl_training.cli.config import names_beginning
from rl_training.cli.display.console import next_command, print_json, summary
from rl_training.cli.display.options import (
    ImportOption,
    JsonOption,
    MoreSets,
    QuietOption,
    RunArgument,
    SetOption,
    takes_columns,
    worker_count,
)
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.seeds import parse_seeds
from rl_training.core.signals import INTERRUPTED, exit_status
from rl_training.core.user_code import resume_command

if TYPE_CHECKING:
    from rl_training.experiment import SeedProgress
    from rl_training.runtime import BoundConfig, TrainResult

CONFIG_HELP = "Path of a YAML file, a packaged name, or an algorithm."
ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help=CONFIG_HELP, autocompletion=names_beginning)]
DATA_HELP = "A file of transitions, a table, or the id of a Minari dataset."
RESUME_HELP = "auto: resume the run of this name, if there is one."
FROM_HELP = "Begin with the policy of this checkpoint or run, and go online."
SEEDS_HELP = "Several seeds: 0-4, or 0,3,7; run again, only the missing ones."
ACCEPT_HELP = "Train even on data that the audit refuses."
WORDS_HELP = "A YAML file, a packaged name, or an algorithm; then overrides, as with --set."


@takes_columns
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG|KEY=VALUE", help=WORDS_HELP, autocompletion=names_beginning),
    ] = None,
    config: ConfigOption = None,
    data: Annotated[str | None, typer.Option(help=DATA_HELP)] = None,
    env: Annotated[str | None, typer.Option(help="Gymnasium environment, or module:Name-v0.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="Length of the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder in which the run directory is made.")] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run directory.")] = None,
    resume_: Annotated[str | None, typer.Option("--resume", metavar="auto", help=RESUME_HELP)] = None,
    set_: SetOption = None,
    from_: Annotated[str | None, typer.Option("--from", help=FROM_HELP)] = None,
    seeds: Annotated[str | None, typer.Option(help=SEEDS_HELP)] = None,
    workers: Annotated[str, typer.Option(help="Seeds trained side by side: a number, or auto.")] = "1",
    import_: ImportOption = None,
    accept_audit: Annotated[bool, typer.Option("--accept-audit", help=ACCEPT_HELP)] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    columns: dict[str, Any] | None = None,
) -> None:
    """Train from a configuration, or an algorithm with its defaults: rl-training train td3_bc --data log.npz."""
    from rl_training.runtime import fine_tuning_config, read_options

    more = list(words or [])
    if more and "=" not in more[0]:
        if config is not None:
            raise ConfigError(f"{more[0]!r} and --config {config!r} both name a configuration: give one")
        config = more.pop(0)
    named = {"env_id": env, "total_timesteps": total_timesteps, "seed": seed, "output_dir": out, "run_name": run_name}
    overrides = [
        *name_data(data),
        *(f"algo_kwargs.dataset_columns.{key}={json.dumps(value)}" for key, value in (columns or {}).items()),
        *(f"{name}={json.dumps(value)}" for name, value in named.items() if value is not None),
    ]
    overrides += ["algo_kwargs.accept_audit=true"] * accept_audit
    overrides += [*(set_ or []), *more]
    if from_ is not None:
        bound = fine_tuning_config(from_, config, overrides=overrides)
    elif config is not None:
        bound = read_options(config, overrides=overrides)
    else:
        raise ConfigError("--config is required: a path, a packaged name, or an algorithm; see `rl-training list`")
    train_run = _start(resume_, bound)
    if seeds is not None:
        _train_seeds(bound, parse_seeds(seeds), workers, quiet=quiet, as_json=as_json)
        return
    if workers != "1":
        raise ConfigError("--workers goes with --seeds")
    _print_result(train_run(bound, callbacks=_progress(quiet=quiet, as_json=as_json)), as_json=as_json)


def resume(
    run: RunArgument,
    more: MoreSets = None,
    set_: SetOption = None,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a run that was stopped, killed or interrupted; in a folder, the newest unfinished one."""
    from rl_training.config import parse_overrides
    from rl_training.runtime import resume as resume_run
    from rl_training.storage import find_unfinished

    overrides = parse_overrides([*(set_ or []), *(more or [])])
    path = find_unfinished([run])
    if str(path) != run:
        print(f"resuming {path}", file=sys.stderr)
    _print_result(resume_run(path, callbacks=_progress(quiet=quiet, as_json=as_json), **overrides), as_json=as_json)


def name_data(data: str | None) -> list[str]:
    """Overrides that replace the data of a configuration by a file or a Minari dataset."""
    if data is None:
        return []
    is_file = bool(Path(data).suffix) or "*" in data or Path(data).exists()
    named = {"dataset_path": data if is_file else None, "dataset_id": None if is_file else data}
    named |= dict.fromkeys(("dataset_kind", "dataset_size"))
    return [f"algo_kwargs.{name}={json.dumps(value)}" for name, value in named.items()]


def _start(resume: str | None, config: BoundConfig) -> Callable[..., TrainResult]:
    """The function that starts a run, or with `--resume auto` resumes the run of the same name if there is one."""
    from rl_training.runtime import train, train_or_resume

    if resume is None:
        return train
    if resume != "auto":
        raise ConfigError(f"--resume expects auto, got {resume!r}; rl-training resume continues a run by its path")
    if config[0].run_name is None:
        raise ConfigError("--resume auto needs --run-name: the run to resume is found by its name")
    return train_or_resume


def _train_seeds(config: BoundConfig, seeds: list[int], workers: str, *, quiet: bool, as_json: bool) -> None:
    from rl_training.cli.display.progress import ProgressDisplay
    from rl_training.experiment import ExperimentManager, SeedProgress

    count, told = worker_count(workers), dict[int, SeedProgress | None].fromkeys(seeds)

    def show(progress: SeedProgress) -> None:
        told[progress.seed] = progress
        display.on_run(replace(progress, name=f"seed {progress.seed}"))

    try:
        with ProgressDisplay(quiet=quiet, to_stderr=as_json) as display:
            display.on_runs(len(told), [f"seed {seed}" for seed in told])
            # Given again, the command does what is missing.
            results = ExperimentManager().sweep(config, seeds, workers=count, resume=True, on_progress=show)
    except KeyboardInterrupt:
        _report_interrupt(told)
    if as_json:
        print_json([vars(result) for result in results])
    elif not quiet and (runs := [result.run_dir for result in results if result.run_dir]):
        print(f"report: rl-training report {' '.join(runs)}")
    failed = [result for result in results if result.status == "failed"]
    if failed and as_json:
        # The errors are part of what was printed.
        raise typer.Exit(2)
    if failed:
        raise UserError("\n".join(f"seed {result.seed}: {result.error}" for result in failed))
    if any(result.status == "interrupted" for result in results):
        _report_interrupt(told)


def _report_interrupt(told: Mapping[int, SeedProgress | None]) -> NoReturn:
    """Print how to resume each seed, and end as an interrupted command does."""
    for seed, progress in told.items():
        if progress is None:
            print(f"seed {seed} was not started", file=sys.stderr)
        elif progress.status == "failed":
            print(f"seed {seed}: {progress.error}", file=sys.stderr)
        elif progress.status in ("running", "interrupted") and progress.run_dir:
            print(f"resume seed {seed} with: {resume_command(progress.run_dir)}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


def _print_result(result: TrainResult, *, as_json: bool) -> None:
    """Print the result of a run: scores of policy and data, and where the files are."""
    if as_json:
        paths = {"run_dir": str(result.run_dir), "checkpoint": str(result.checkpoint_path)}
        print_json({**paths, **result.to_plain()})
    else:
        for name, text in summary(result).items():
            print(f"{name:<12}{text}")
        if not result.interrupted:
            print(f"Next: {next_command(result)}")
    if result.interrupted:
        print(f"resume with: {resume_command(result.run_dir)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED if result.signal is None else exit_status(result.signal))


def _progress(*, quiet: bool, as_json: bool) -> list[Any]:
    from rl_training.runtime import ProgressCallback

    return [] if quiet else [ProgressCallback(to_stderr=as_json)]


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="An uploaded run: upload_url/name of the run directory.")],
    out: Annotated[Path, typer.Option(help="Folder in which the run directory is made.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Download an uploaded run into a run directory on this machine, which `resume` continues."""
    from rl_training.storage import fetch_run

    run = fetch_run(url, out)
    if as_json:
        print_json({"run_dir": str(run)})
    else:
        print(run)
        print(f"resume with: {resume_command(run)}")
