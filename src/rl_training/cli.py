"""The command `rl-training`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.types import ConfigError, UserError

# Everything that imports torch is imported inside the command that needs it, so that --help answers at once.
if TYPE_CHECKING:
    from rl_training.config import TrainConfig
    from rl_training.experiment import SeedProgress
    from rl_training.runtime import TrainResult

INTERRUPTED = 130

app = typer.Typer(
    name="rl-training",
    help="Train policies on logged data, and know how good they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config")

ConfigOption = Annotated[str, typer.Option("--config", "-c", help="Path of a YAML file, or a packaged name.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override, as dotted.key=YAML value; repeatable.")
]
MoreSets = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="More overrides, after --set.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run directory or checkpoint.")]


@app.command()
def train(
    config: ConfigOption,
    more: MoreSets = None,
    set_: SetOption = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0-4, or 0,3,7.")] = None,
    workers: Annotated[str, typer.Option(help="Seeds trained side by side: a number, or auto.")] = "1",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train from a configuration."""
    from rl_training.runtime import read_options

    record, _ = read_options(config, overrides=[*(set_ or []), *(more or [])])
    if seeds is None:
        if workers != "1":
            raise ConfigError("--workers goes with --seeds")
        _train_one(record, quiet=quiet, as_json=as_json)
    else:
        _train_seeds(record, parse_seeds(seeds), workers, quiet=quiet, as_json=as_json)


@app.command()
def resume(
    run: RunArgument,
    set_: SetOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a run that was stopped, killed or interrupted."""
    from rl_training.config import parse_overrides
    from rl_training.runtime import resume as resume_run

    overrides = parse_overrides(set_ or [])
    _report_result(resume_run(run, callbacks=_progress(quiet or as_json), **overrides), as_json=as_json)


@app.command("eval")
def evaluate(
    run: RunArgument,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes; default as in the run's config.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first episode.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint of a run instead of its latest.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a trained policy in its environment, on raw reward."""
    from rl_training.runtime import evaluate as evaluate_run
    from rl_training.runtime.rollout import EVAL_SEED

    path = Path(run) / "checkpoints" / "best.pt" if best else Path(run)
    result = evaluate_run(path, episodes=episodes, seed=EVAL_SEED if seed is None else seed)
    if as_json:
        _print_json(result.to_dict())
        return
    metrics = result.metrics()
    print(f"{result.env_id}: {_score_text(metrics)} over {len(result.returns)} episodes")
    print(
        f"  from {metrics['return_min']:.1f} to {metrics['return_max']:.1f}, mean length {metrics['length_mean']:.0f}"
    )


@app.command()
def predict(
    run: RunArgument,
    obs: Annotated[Path, typer.Option(help="Observations: a .npy or .json file, one row each.")],
    out: Annotated[Path | None, typer.Option(help="Write the actions to a .npy or .json file.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample, where the policy is stochastic.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Actions of a trained policy for observations in a file."""
    from rl_training.runtime import predict as predict_run

    if out is not None and out.suffix not in (".npy", ".json"):
        raise ConfigError(f"--out must end in .npy or .json, got {str(out)!r}")
    actions = predict_run(run, _read_observations(obs), deterministic=not stochastic)
    if out is not None and out.suffix == ".npy":
        import numpy as np

        np.save(out, actions)
    elif out is not None:
        out.write_text(json.dumps(actions.tolist()) + "\n", encoding="utf-8")
    if as_json:
        _print_json(actions.tolist())
    elif out is None:
        print(actions)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Algorithms, what they do, and the configurations shipped for them."""
    from rl_training.experiment import list_algorithms

    rows = [
        {"name": spec.name, "mode": spec.mode, "idea": spec.idea, "configs": spec.configs} for spec in list_algorithms()
    ]
    if as_json:
        _print_json(rows)
    else:
        _print_table(["algorithm", "mode", "idea", "configs"], [[*map(_cell, row.values())] for row in rows])


@config_app.command("show")
def config_show(config: Annotated[str, typer.Argument()], set_: SetOption = None, as_json: JsonOption = False) -> None:
    """The configuration with every option written out."""
    from rl_training.runtime import read_options

    record, options = read_options(config, overrides=set_ or [])
    resolved = options.resolve(record)
    if as_json:
        _print_json(resolved.to_plain())
    else:
        print(resolved.to_yaml(), end="")


@config_app.command("explain")
def config_explain(
    algorithm: Annotated[str | None, typer.Argument(help="An algorithm; without one, the outer record.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Every option: type, bound, default, meaning."""
    from rl_training.config import TrainConfig, describe

    groups = {"TrainConfig": describe(TrainConfig)}
    if algorithm is not None:
        from rl_training.experiment import get_algorithm_spec

        groups |= get_algorithm_spec(algorithm).options()
    if as_json:
        _print_json(groups)
        return
    for name, rows in groups.items():
        print(f"\n{name}{'' if name == 'TrainConfig' else ' (in algo_kwargs)'}")
        _print_table(["option", "type", "bound", "default", "meaning"], [[*map(_cell, row.values())] for row in rows])


@config_app.command("validate")
def config_validate(configs: Annotated[list[str], typer.Argument(metavar="CONFIG")], set_: SetOption = None) -> None:
    """Check configurations without running them."""
    from rl_training.runtime import read_options

    problems = []
    for config in configs:
        try:
            read_options(config, overrides=set_ or [])
            print(f"{config}: ok")
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))


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
        _print_json(rows)
        return
    head = ["algorithm", "task", "metric", "runs", "last", "best", "IQM", "95 % interval"]
    cells = []
    for row in rows:
        numbers = [f"{row[name]:.1f}" for name in ("last", "best", "iqm")]
        low, high = row["interval"]
        cells.append([row["algo"], row["task"], row["metric"], str(row["runs"]), *numbers, f"[{low:.1f}, {high:.1f}]"])
    _print_table(head, cells)
    if plot is not None:
        print(f"curves in {plot}")


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


def _train_one(config: TrainConfig, *, quiet: bool, as_json: bool) -> None:
    from rl_training.runtime import train as train_run

    _report_result(train_run(config, callbacks=_progress(quiet or as_json)), as_json=as_json)


def _train_seeds(config: TrainConfig, seeds: list[int], workers: str, *, quiet: bool, as_json: bool) -> None:
    from rl_training.experiment import ExperimentManager
    from rl_training.experiment.manager import default_workers

    if workers != "auto" and not (workers.isdigit() and int(workers) > 0):
        raise ConfigError(f"--workers must be a number >= 1 or auto, got {workers!r}")
    count = default_workers() if workers == "auto" else int(workers)
    with _SweepDisplay(seeds, quiet=quiet or as_json) as show:
        results = ExperimentManager().sweep(config, seeds, workers=count, on_progress=show)
    if as_json:
        _print_json([vars(result) for result in results])
    elif not quiet and (runs := [result.run_dir for result in results if result.run_dir]):
        print(f"report: rl-training report {' '.join(runs)}")
    failed = [result for result in results if result.status == "failed"]
    if failed:
        raise UserError("\n".join(f"seed {result.seed}: {result.error}" for result in failed))


class _SweepDisplay:
    """One line per seed, live on a terminal, else a line per event."""

    def __init__(self, seeds: Sequence[int], *, quiet: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False, soft_wrap=True, quiet=quiet)
        self.rows: dict[int, SeedProgress | None] = dict.fromkeys(seeds)
        self.live = Live(get_renderable=self.table, console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> Callable[[SeedProgress], None]:
        if self.live is not None:
            self.live.start()
        return self.update

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, progress: SeedProgress) -> None:
        self.rows[progress.seed] = progress
        if self.live is None:
            self.console.print("  ".join(self.cells(progress.seed, progress)), markup=False)

    def table(self) -> Any:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for seed, progress in self.rows.items():
            table.add_row(*self.cells(seed, progress))
        return table

    @staticmethod
    def cells(seed: int, progress: SeedProgress | None) -> list[str]:
        if progress is None:
            return [f"seed {seed}", "waiting"]
        if progress.status == "failed":
            return [f"seed {seed}", "failed", (progress.error or "").splitlines()[-1]]
        cells = [f"seed {seed}", progress.status, f"{progress.update_count}/{progress.total or '?'}"]
        return [*cells, _score_text(progress.metrics or {})]


def _report_result(result: TrainResult, *, as_json: bool) -> None:
    """What a run came to: the policy's score beside the data's, and where everything is."""
    if as_json:
        _print_json(
            {
                "run_dir": str(result.run_dir),
                "checkpoint": str(result.checkpoint_path),
                "metrics": result.metrics,
                "best_metrics": result.best_metrics,
                "data_return": result.data_return,
                "stop_reason": result.stop_reason,
            }
        )
    else:
        for name, text in _summary(result).items():
            print(f"{name:<12}{text}")
    if result.interrupted:
        print(f"resume with: rl-training resume {result.run_dir}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _summary(result: TrainResult) -> dict[str, str]:
    lines = {}
    if result.metrics:
        lines["policy"] = _score_text(result.metrics)
    if result.best_metrics and result.best_metrics != result.metrics:
        lines["best"] = _score_text(result.best_metrics)
    if result.data_return is not None:
        lines["data"] = f"return {result.data_return:.1f}"
    lines["run"] = str(result.run_dir)
    lines["checkpoint"] = str(result.checkpoint_path)
    return lines


def _score_text(metrics: Mapping[str, float]) -> str:
    if "return_mean" in metrics:
        text = f"return {metrics['return_mean']:.1f} ± {metrics['return_std']:.1f}"
        return f"{text}, D4RL score {metrics['normalized_score']:.1f}" if "normalized_score" in metrics else text
    names = ("td_error", "initial_value", "action_mse")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)


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


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=list))


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 200))
    console.print(table)


def main() -> None:
    """Run the command; what the user can mend ends with its message and status 2, without a traceback."""
    try:
        app()
    except (UserError, OSError) as error:
        # OSError: a missing folder or a full disk is nothing that a traceback would explain.
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
