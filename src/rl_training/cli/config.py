"""The commands `list` and `config ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.cli.console import cell, print_json, print_table
from rl_training.cli.index import list_rows, names_beginning, option_rows
from rl_training.cli.options import ImportOption, JsonOption, MoreSets, SetOption
from rl_training.types import ConfigError, UserError

config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)


def list_(import_: ImportOption = None, as_json: JsonOption = False) -> None:
    """Algorithms, what they do, and the configurations shipped for them."""
    rows = list_rows()
    if as_json:
        print_json(rows)
    else:
        print_table(["algorithm", "mode", "idea", "configs"], [[*map(cell, row.values())] for row in rows])


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
    algorithm: Annotated[
        str | None, typer.Argument(help="An algorithm; without one, the outer record.", autocompletion=names_beginning)
    ] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every option: type, bound, default, meaning."""
    groups = option_rows(algorithm)
    if as_json:
        print_json(groups)
        return
    for name, rows in groups.items():
        print(f"\n{name}{'' if name == 'TrainConfig' else ' (in algo_kwargs)'}")
        print_table(["option", "type", "bound", "default", "meaning"], [[*map(cell, row.values())] for row in rows])


@config_app.command("validate")
def config_validate(
    words: Annotated[
        list[str], typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configurations; then overrides, as with --set.")
    ],
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check configurations, and that the files they name exist, without running them."""
    from rl_training.runtime.options import missing_files, read_options

    configs = [word for word in words if "=" not in word]
    overrides = [*(set_ or []), *(word for word in words if "=" in word)]
    if not configs:
        raise ConfigError("name a configuration: a path, a packaged name, or an algorithm")
    problems: dict[str, list[str]] = {}
    for config in configs:
        try:
            problems[config] = missing_files(read_options(config, overrides=overrides)[1])
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
