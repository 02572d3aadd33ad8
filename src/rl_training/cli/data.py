"""The commands `data ...`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.audit import audit
from rl_training.cli.display.console import print_json, print_table, working
from rl_training.cli.display.options import BestOption, ImportOption, JsonOption, takes_columns
from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.text import number_text, size_text

SOURCE = "A .npz, .pt, .hdf5, .csv or .parquet file, a folder that ends in .rlt, or the id of a Minari dataset."
SourceArgument = Annotated[str, typer.Argument(metavar="DATA", help=SOURCE)]
RATIO_HELP = "Shares such as 1,3: rows in these proportions, without their episodes."
BEST_ACTION_HELP = "The policy's best action instead of a sample."
BAR = 40
"""The width of the longest bar of a histogram."""
MOST_NUMBERS = 4
"""Numbers of a vector that a table shows."""

data_app = typer.Typer(help="Make datasets, look at them, check and convert them.", no_args_is_help=True)


data_app.command("audit")(audit)


@data_app.command("inspect")
@takes_columns
def inspect(
    source: SourceArgument,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture too: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Describe a dataset: fields, episodes and how they end, returns, bounds, memory."""
    from rl_training.data import inspect_dataset, load_any
    from rl_training.reports import check_picture, plot_dataset

    if plot is not None:
        check_picture(plot)
    dataset = load_any(source, columns)
    about = {"data": source, **inspect_dataset(dataset)}
    if plot is not None:
        plot_dataset(dataset, plot, title=source)
    if as_json:
        print_json(about)
    else:
        _print_facts(about)
        if plot is not None:
            print(f"picture      {plot}")


@data_app.command("head")
@takes_columns
def head(
    source: SourceArgument,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, help="Rows to show.")] = 5,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Show the first rows of a dataset."""
    from rl_training.data import first_rows, load_any

    rows = first_rows(load_any(source, columns), count)
    if as_json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])


@data_app.command("convert")
@takes_columns
def convert(
    source: SourceArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The same, to be written: its name says in which form.")],
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Write a dataset in another form, such as a folder that is trained on without being read into memory."""
    from rl_training.data import convert as convert_dataset

    with working(quiet=as_json) as show:
        show(f"converting {source}")
        rows, left_out = convert_dataset(source, out, columns=columns)
    if as_json:
        print_json({"out": out, "rows": rows, "left_out": left_out})
        return
    print(f"{out}: {rows} transitions")
    if left_out:
        print(f"left out, since no algorithm reads them: {', '.join(left_out)}")


@data_app.command("mix")
@takes_columns
def mix(
    sources: Annotated[list[str], typer.Argument(metavar="DATA...", help=SOURCE)],
    out: Annotated[str, typer.Option(help="What to write; its name says in which form.")],
    ratio: Annotated[str | None, typer.Option(help=RATIO_HELP)] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the rows drawn for a ratio.")] = 0,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Write several datasets as one: all their episodes, or rows in given proportions."""
    from rl_training.data import mix as mix_datasets

    try:
        shares = None if ratio is None else [float(part) for part in ratio.split(",")]
    except ValueError:
        raise ConfigError(f"--ratio {ratio!r}: expected numbers with commas between them, such as 1,3") from None
    dataset = mix_datasets(sources, out, ratios=shares, seed=seed, columns=columns)
    _report([(out, dataset)], as_json=as_json)


@data_app.command("split")
@takes_columns
def split(
    source: SourceArgument,
    fraction: Annotated[float, typer.Option(help="Share of the episodes in the second dataset, between 0 and 1.")],
    out: Annotated[tuple[str, str], typer.Option(help="The two datasets to write; their names say in which form.")],
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the random split.")] = 0,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Split the episodes of a dataset at random into two datasets, such as one for training and one held out."""
    from rl_training.data import split as split_dataset

    parts = split_dataset(source, out, fraction=fraction, seed=seed, columns=columns)
    _report(list(zip(out, parts, strict=True)), as_json=as_json)


@data_app.command("collect")
def collect(
    out: Annotated[str, typer.Option(help="A .npz, .pt or .hdf5 file, a folder .rlt, or the id of a Minari dataset.")],
    checkpoint: Annotated[str | None, typer.Option(help="Run directory or checkpoint whose policy acts.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random.")] = False,
    best: BestOption = False,
    env: Annotated[str | None, typer.Option(help="Environment; default the one of the checkpoint.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Whole episodes to collect.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Transitions to collect.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of environment and policy.")] = 0,
    deterministic: Annotated[bool, typer.Option("--deterministic", help=BEST_ACTION_HELP)] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a policy, and write the transitions as a dataset with raw rewards."""
    from rl_training.core.machine import set_threads
    from rl_training.policies import collect as collect_run
    from rl_training.storage import find_checkpoint

    mistakes = {
        "give either --checkpoint or --random": random == (checkpoint is not None),
        "give either --episodes or --steps": (episodes is None) == (steps is None),
        "--random needs --env": random and env is None,
        "--deterministic needs --checkpoint": random and deterministic,
        "--best needs --checkpoint": random and best,
    }
    for mistake, is_made in mistakes.items():
        if is_made:
            raise ConfigError(mistake)
    if checkpoint is not None and best:
        checkpoint = str(find_checkpoint(checkpoint, name="best.pt"))
    set_threads()
    dataset = collect_run(
        out, checkpoint=checkpoint, env_id=env, steps=steps, episodes=episodes, stochastic=not deterministic, seed=seed
    )
    returns = dataset.episode_returns()
    report = {"out": out, "rows": len(dataset), "episodes": len(returns), "return_mean": float(returns.mean())}
    if as_json:
        print_json(report)
    else:
        print(f"{out}: {len(dataset)} transitions, {len(returns)} episodes, mean return {report['return_mean']:.1f}")


def _print_facts(about: dict[str, Any]) -> None:
    size = f"{size_text(about['bytes'])} {'in memory' if about['is_in_memory'] else 'on disk'}"
    dropped = f" ({about['rows_dropped']} more were left out)" if about["rows_dropped"] else ""
    ends = f"{about['terminations']} terminations, {about['truncations']} truncations"
    episodes = "not known: the rows seem shuffled" if about["episodes"] is None else f"{about['episodes']}: {ends}"
    facts = {"data": about["data"], "rows": f"{about['rows']}{dropped}", "episodes": episodes}
    facts |= {"size": size, "fingerprint": about["fingerprint"]}
    facts |= {} if about["has_rewards"] else {"rewards": "none"}
    for name, text in facts.items():
        print(f"{name:<12} {text}")
    for note in about["notes"]:
        print(f"{'note':<12} {note}")
    print()
    fields = about["fields"].items()
    rows = [
        [name, " x ".join(map(str, each["shape"])), each["dtype"], _cell(each["low"]), _cell(each["high"])]
        for name, each in fields
    ]
    print_table(["field", "shape", "type", "smallest", "largest"], rows)
    for name in ("lengths", "returns"):
        if name in about:
            print()
            _print_histogram(f"{name} of episodes", about[name])


def _print_histogram(title: str, spread: dict[str, Any]) -> None:
    """Print a distribution as bars, below its mean and range."""
    mean, std, low, high = (number_text(spread[name]) for name in ("mean", "std", "min", "max"))
    print(f"{title}: mean {mean}, standard deviation {std}, from {low} to {high}")
    if spread["min"] == spread["max"]:
        return
    starts, counts = [number_text(edge) for edge in spread["histogram"]["edges"]], spread["histogram"]["counts"]
    width = max(map(len, starts))
    for low, high, count in zip(starts, starts[1:], counts, strict=False):
        bar = "█" * max(round(BAR * count / max(counts)), 1 if count else 0)
        print(f"  {low:>{width}} to {high:>{width}}  {bar} {count}")


def _cell(value: Any) -> str:
    """A number, or the first numbers of a vector, as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [number_text(each) for each in value[:MOST_NUMBERS]]
        return "[" + ", ".join([*numbers, *(["..."] if len(value) > MOST_NUMBERS else [])]) + "]"
    return number_text(value) if isinstance(value, float) else str(value)


def _report(written: list[tuple[str, Any]], *, as_json: bool) -> None:
    """Print the size of the datasets that were written."""
    found: list[dict[str, Any]] = []
    for out, dataset in written:
        episodes = len(dataset.episode_bounds()) if dataset.is_ordered else None
        found.append({"out": out, "rows": len(dataset), "episodes": episodes, "notes": list(dataset.notes)})
    if as_json:
        print_json(found if len(found) > 1 else found[0])
        return
    for each in found:
        ends = "no episodes" if each["episodes"] is None else f"{each['episodes']} episodes"
        print(f"{each['out']}: {each['rows']} transitions, {ends}")
        for note in each["notes"]:
            print(f"note: {note}")
