"""The command `rl-training`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import rl_training
from rl_training.cli_config import ImportOption, JsonOption, MoreSets, SetOption, config_app
from rl_training.cli_data import data_app
from rl_training.console import SweepDisplay, cell, number_text, print_json, print_table, score_text, summary
from rl_training.importing import resume_command
from rl_training.types import ConfigError, UserError

# Everything that imports torch is imported inside the command that needs it, so that --help answers at once.
if TYPE_CHECKING:
    from rl_training.runtime import TrainResult
    from rl_training.runtime.options import BoundConfig

INTERRUPTED = 130
SPINS = "2000"
"""How many turns of OpenMP's loop a waiting thread spins before it gives up its core. With OpenMP's own default, two
threads beside a busy core made a fiftieth of the updates of one thread. With this value they make half of them, and
as many as before where all cores are free."""

app = typer.Typer(
    name="rl-training",
    help="Train policies on logged data, and know how good they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")


def print_version(asked: bool) -> None:
    """Print the version and end, if that is asked for."""
    if asked:
        print(rl_training.__version__)
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version.")
]


@app.callback()
def options(version: VersionOption = False) -> None:
    """Train policies on logged data, and know how good they are."""


ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", help="Path of a YAML file, a packaged name, or an algorithm.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run directory or checkpoint.")]


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY=VALUE",
            help="A YAML file, a packaged name, or an algorithm; then overrides, as with --set.",
        ),
    ] = None,
    config: ConfigOption = None,
    data: Annotated[str | None, typer.Option(help="A file of transitions, or the id of a Minari dataset.")] = None,
    env: Annotated[str | None, typer.Option(help="Gymnasium environment, or module:Name-v0.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="Length of the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder in which the run directory is made.")] = None,
    set_: SetOption = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Begin with the policy of this checkpoint or run, and go online.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0-4, or 0,3,7.")] = None,
    workers: Annotated[str, typer.Option(help="Seeds trained side by side: a number, or auto.")] = "1",
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train from a configuration, or an algorithm with its defaults: rl-training train td3_bc --data log.npz."""
    from rl_training.runtime import read_options
    from rl_training.runtime.fine_tuning import fine_tuning_config

    more = list(words or [])
    if more and "=" not in more[0]:
        if config is not None:
            raise ConfigError(f"{more[0]!r} and --config {config!r} both name a configuration: give one")
        config = more.pop(0)
    named = {"env_id": env, "total_timesteps": total_timesteps, "seed": seed, "output_dir": out}
    overrides = [
        *name_data(data),
        *(f"{name}={json.dumps(value)}" for name, value in named.items() if value is not None),
    ]
    overrides += [*(set_ or []), *more]
    if from_ is not None:
        bound = fine_tuning_config(from_, config, overrides=overrides)
    elif config is not None:
        bound = read_options(config, overrides=overrides)
    else:
        raise ConfigError("--config is required: a path, a packaged name, or an algorithm; see `rl-training list`")
    if seeds is None:
        if workers != "1":
            raise ConfigError("--workers goes with --seeds")
        _train_one(bound, quiet=quiet, as_json=as_json)
    else:
        _train_seeds(bound, parse_seeds(seeds), workers, quiet=quiet, as_json=as_json)


@app.command()
def resume(
    run: RunArgument,
    more: MoreSets = None,
    set_: SetOption = None,
    import_: ImportOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a run that was stopped, killed or interrupted."""
    from rl_training.config import parse_overrides
    from rl_training.runtime import resume as resume_run

    overrides = parse_overrides([*(set_ or []), *(more or [])])
    _report_result(resume_run(run, callbacks=_progress(quiet or as_json), **overrides), as_json=as_json)


@app.command("eval")
def evaluate(
    run: RunArgument,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes; default as in the run's config.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first episode.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint of a run instead of its latest.")] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a trained policy in its environment, on raw reward."""
    from rl_training.runtime import evaluate as evaluate_run
    from rl_training.runtime.checkpointing import find_checkpoint
    from rl_training.runtime.evaluation import EVAL_SEED

    path = find_checkpoint(run, name="best.pt" if best else "latest.pt")
    result = evaluate_run(path, episodes=episodes, seed=EVAL_SEED if seed is None else seed)
    if as_json:
        print_json(result.to_dict())
        return
    metrics = result.metrics()
    count = "1 episode" if len(result.returns) == 1 else f"{len(result.returns)} episodes"
    print(path)
    print(f"{result.env_id}: {score_text(metrics)} over {count}")
    print(
        f"  from {metrics['return_min']:.1f} to {metrics['return_max']:.1f}, mean length {metrics['length_mean']:.0f}"
    )


@app.command()
def predict(
    run: RunArgument,
    obs: Annotated[Path, typer.Option(help="Observations: a .npy or .json file, one row each.")],
    out: Annotated[Path | None, typer.Option(help="Write the actions to a .npy or .json file.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample, where the policy is stochastic.")] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Actions of a trained policy for observations in a file."""
    import numpy as np

    from rl_training.runtime import predict as predict_run

    if out is not None and out.suffix not in (".npy", ".json"):
        raise ConfigError(f"--out must end in .npy or .json, got {str(out)!r}")
    actions = predict_run(run, _read_observations(obs), deterministic=not stochastic)
    if out is not None and out.suffix == ".npy":
        np.save(out, actions)
    elif out is not None:
        out.write_text(json.dumps(actions.tolist()) + "\n", encoding="utf-8")
    if as_json:
        print_json(actions.tolist())
    elif out is None:
        print(np.array2string(actions, threshold=sys.maxsize))


@app.command("list")
def list_(import_: ImportOption = None, as_json: JsonOption = False) -> None:
    """Algorithms, what they do, and the configurations shipped for them."""
    from rl_training.experiment import list_algorithms

    rows = [
        {"name": spec.name, "mode": spec.mode, "idea": spec.idea, "configs": spec.configs} for spec in list_algorithms()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["algorithm", "mode", "idea", "configs"], [[*map(cell, row.values())] for row in rows])


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or folders of them.")],
    metric: Annotated[str | None, typer.Option(help="Metric to report; default the most telling one.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A table over runs and seeds: last and best score, IQM and 95 % bootstrap interval."""
    from rl_training.experiment.report import check_metric, find_runs, plot_curves, summarize

    records = find_runs(runs)
    if metric is not None:
        check_metric(records, metric)
    rows = summarize(records, metric=metric)
    if plot is not None:
        plot_curves(records, plot, metric=metric)
    if as_json:
        print_json(rows)
        return
    head = ["algorithm", "task", "variant", "metric", "runs", "last", "best", "IQM", "95 % interval"]
    cells = []
    for row in rows:
        words = [str(row[name]) for name in ("algo", "task", "variant", "metric", "runs")]
        numbers = [number_text(row[name]) for name in ("last", "best", "iqm")]
        cells.append([*words, *numbers, f"[{', '.join(map(number_text, row['interval']))}]"])
    print_table(head, cells)
    if plot is not None:
        print(f"curves in {plot}")


def name_data(data: str | None) -> list[str]:
    """The overrides that put a file, or the id of a Minari dataset, in place of the data that a configuration names."""
    if data is None:
        return []
    is_file = bool(Path(data).suffix) or Path(data).exists()
    named = {"dataset_path": data if is_file else None, "dataset_id": None if is_file else data}
    named |= dict.fromkeys(("dataset_kind", "dataset_size"))
    return [f"algo_kwargs.{name}={json.dumps(value)}" for name, value in named.items()]


def parse_seeds(text: str) -> list[int]:
    """Seeds from '0-4', '0,3,7' or a mixture of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"--seeds expects numbers and ranges such as 0-4 or 0,3,7, got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise ConfigError(f"--seeds {text!r} names no seed: a range goes from the smaller to the larger")
    return seeds


def _train_one(config: BoundConfig, *, quiet: bool, as_json: bool) -> None:
    from rl_training.runtime import train as train_run

    _report_result(train_run(config, callbacks=_progress(quiet or as_json)), as_json=as_json)


def _train_seeds(config: BoundConfig, seeds: list[int], workers: str, *, quiet: bool, as_json: bool) -> None:
    from rl_training.experiment import ExperimentManager
    from rl_training.experiment.manager import default_workers

    if workers != "auto" and not (workers.isdigit() and int(workers) > 0):
        raise ConfigError(f"--workers must be a number >= 1 or auto, got {workers!r}")
    count = default_workers() if workers == "auto" else int(workers)
    display = SweepDisplay(seeds, quiet=quiet or as_json)
    try:
        with display:
            results = ExperimentManager().sweep(config, seeds, workers=count, on_progress=display.update)
    except KeyboardInterrupt:
        _report_interrupt(display)
    if as_json:
        print_json([vars(result) for result in results])
    elif not quiet and (runs := [result.run_dir for result in results if result.run_dir]):
        print(f"report: rl-training report {' '.join(runs)}")
    failed = [result for result in results if result.status == "failed"]
    if failed:
        raise UserError("\n".join(f"seed {result.seed}: {result.error}" for result in failed))
    if any(result.status == "interrupted" for result in results):
        _report_interrupt(display)


def _report_interrupt(display: SweepDisplay) -> NoReturn:
    """Say how to go on with each seed, and end as an interrupted command does."""
    for seed, progress in display.rows.items():
        if progress is None:
            print(f"seed {seed} was not started", file=sys.stderr)
        elif progress.status in ("running", "interrupted") and progress.run_dir:
            print(f"resume seed {seed} with: {resume_command(progress.run_dir)}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


def _report_result(result: TrainResult, *, as_json: bool) -> None:
    """The outcome of a run: the policy's score, the data's, and where the files are."""
    if as_json:
        paths = {"run_dir": str(result.run_dir), "checkpoint": str(result.checkpoint_path)}
        print_json({**paths, **result.to_plain()})
    else:
        for name, text in summary(result).items():
            print(f"{name:<12}{text}")
    if result.interrupted:
        print(f"resume with: {resume_command(result.run_dir)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _progress(quiet: bool) -> list[Any]:
    from rl_training.runtime.progress import ProgressCallback

    return [] if quiet else [ProgressCallback()]


def _read_observations(path: Path) -> Any:
    import numpy as np

    if not path.is_file():
        raise ConfigError(f"--obs {str(path)!r} does not exist")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float32)
        if path.suffix == ".json":
            return np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.float32)
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise ConfigError(f"--obs {str(path)!r} cannot be read: {error}") from None
    raise ConfigError(f"--obs must be a .npy or .json file, got {str(path)!r}")


def main() -> None:
    """Run the command; mistakes that the user can mend end with a message and status 2, without a traceback."""
    # The line of code that raised a warning does not help the user of a command.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    # Modules in the working folder are found, such as that of an environment, but hide no other.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when torch is loaded, which is why it cannot be an option of a run.
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        app()
    except (UserError, OSError) as error:
        # OSError: a traceback would not explain a missing folder or a full disk.
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
