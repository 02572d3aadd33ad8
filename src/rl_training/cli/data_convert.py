"""The commands `data convert`, `data mix` and `data split`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rl_training.cli.columns import column_mapping, takes_columns
from rl_training.cli.console import print_json, working
from rl_training.cli.options import JsonOption
from rl_training.types import LARGEST_SEED, ConfigError

SOURCE = "A .npz, .pt, .hdf5, .csv or .parquet file, a folder that ends in .rlt, or the id of a Minari dataset."
SourceArgument = Annotated[str, typer.Argument(metavar="DATA", help=SOURCE)]


@takes_columns
def convert(
    source: SourceArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The same, to be written: its name says in which form.")],
    as_json: JsonOption = False,
    *,
    columns: list[str],
) -> None:
    """Write a dataset in another form, such as a folder that is trained on without being read into memory."""
    from rl_training.data.conversion import convert as convert_dataset

    with working(quiet=as_json) as show:
        show(f"converting {source}")
        rows, left_out = convert_dataset(source, out, columns=column_mapping(columns))
    if as_json:
        print_json({"out": out, "rows": rows, "left_out": left_out})
        return
    print(f"{out}: {rows} transitions")
    if left_out:
        print(f"left out, since no algorithm reads them: {', '.join(left_out)}")


@takes_columns
def mix(
    sources: Annotated[list[str], typer.Argument(metavar="DATA...", help=SOURCE)],
    out: Annotated[str, typer.Option(help="What to write; its name says in which form.")],
    ratio: Annotated[
        str | None, typer.Option(help="Shares such as 1,3: rows in these proportions, which are no episodes any more.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the rows drawn for a ratio.")] = 0,
    as_json: JsonOption = False,
    *,
    columns: list[str],
) -> None:
    """Write several datasets as one: all their episodes, or rows in given proportions."""
    from rl_training.data.conversion import mix as mix_datasets

    shares = None if ratio is None else _ratios(ratio)
    dataset = mix_datasets(sources, out, ratios=shares, seed=seed, columns=column_mapping(columns))
    _report([(out, dataset)], as_json=as_json)


@takes_columns
def split(
    source: SourceArgument,
    fraction: Annotated[float, typer.Option(help="Share of the episodes in the second dataset, between 0 and 1.")],
    out: Annotated[tuple[str, str], typer.Option(help="The two datasets to write; their names say in which form.")],
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the choice of episodes.")] = 0,
    as_json: JsonOption = False,
    *,
    columns: list[str],
) -> None:
    """Write two datasets of whole episodes, chosen at random, such as one to train on and one to hold out."""
    from rl_training.data.conversion import split as split_dataset

    parts = split_dataset(source, out, fraction=fraction, seed=seed, columns=column_mapping(columns))
    _report(list(zip(out, parts, strict=True)), as_json=as_json)


def _ratios(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--ratio {text!r}: expected numbers with commas between them, such as 1,3") from None


def _report(written: list[tuple[str, Any]], *, as_json: bool) -> None:
    """Say what is in the datasets that were written."""
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
