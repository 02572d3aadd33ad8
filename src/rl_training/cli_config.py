"""The commands `rl-training config ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.console import cell, print_json, print_table
from rl_training.importing import import_modules
from rl_training.types import ConfigError, UserError

config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override, as dotted.key=YAML value; repeatable.")
]
MoreSets = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="More overrides, after --set.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE|MODULE",
        callback=import_modules,
        help="Import a .py file or a module first, for an algorithm of your own; repeatable.",
    ),
]
"""Imported while the arguments are read: a command that has the option need not do anything with it."""


@config_app.command("show")
def config_show(
    config: Annotated[str, typer.Argument()],
    more: MoreSets = None,
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """The configuration with every option written out."""
    from rl_training.runtime import read_options

    record, options = read_options(config, overrides=[*(set_ or []), *(more or [])])
    resolved = options.resolve(record)
    if as_json:
        print_json(resolved.to_plain())
    else:
        print(resolved.to_yaml(), end="")


@config_app.command("explain")
def config_explain(
    algorithm: Annotated[str | None, typer.Argument(help="An algorithm; without one, the outer record.")] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every option: type, bound, default, meaning."""
    from rl_training.binding import describe
    from rl_training.config import TrainConfig

    groups = {"TrainConfig": describe(TrainConfig)}
    if algorithm is not None:
        from rl_training.experiment import get_algorithm_spec

        groups |= get_algorithm_spec(algorithm).options()
    if as_json:
        print_json(groups)
        return
    for name, rows in groups.items():
        print(f"\n{name}{'' if name == 'TrainConfig' else ' (in algo_kwargs)'}")
        print_table(["option", "type", "bound", "default", "meaning"], [[*map(cell, row.values())] for row in rows])


@config_app.command("validate")
def config_validate(
    configs: Annotated[list[str], typer.Argument(metavar="CONFIG")],
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check configurations without running them."""
    from rl_training.runtime import read_options

    problems: dict[str, list[str]] = {}
    for config in configs:
        try:
            read_options(config, overrides=set_ or [])
            problems[config] = []
        except ConfigError as error:
            problems[config] = list(error.problems)
    if as_json:
        print_json(problems)
        raise typer.Exit(2 if any(problems.values()) else 0)
    for config in configs:
        if not problems[config]:
            print(f"{config}: ok")
    wrong = [ConfigError(*found, where=config) for config, found in problems.items() if found]
    if wrong:
        raise UserError("\n".join(map(str, wrong)))
