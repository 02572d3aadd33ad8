"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.seeds import is_number
from rl_training.core.user_code import import_modules

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run directory or checkpoint.")]
EnvOption = Annotated[str | None, typer.Option(help="Another environment than the run's own, or module:Name-v0.")]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the first episode; default 10000, as in training.")
]
EpisodesOption = Annotated[int, typer.Option(min=1, help="Episodes, one after the other.")]
BestOption = Annotated[bool, typer.Option("--best", help="The best checkpoint of a run instead of its latest.")]
StochasticOption = Annotated[bool, typer.Option("--stochastic", help="Sample, where the policy is stochastic.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override, as dotted.key=YAML value; repeatable.")
]
MoreSets = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="More overrides, after --set.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
IMPORT_HELP = "Import a .py file or a module first, for an algorithm or an environment of your own; repeatable."
ImportOption = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE|MODULE", callback=import_modules, help=IMPORT_HELP),
]
"""The callback imports while arguments are read, so that a command needs no code for the option."""
WorkersOption = Annotated[str, typer.Option(help="Runs trained side by side: a number, or auto.")]
RAY_HELP = "Train on this Ray cluster instead of this machine; needs the extra ray."
RayOption = Annotated[str | None, typer.Option("--ray", metavar="auto|ADDRESS", help=RAY_HELP)]


def worker_count(text: str, *, threads: int = 1) -> int:
    """The number of workers that `--workers` names; auto is as many as there are cores for their threads."""
    if text == "auto":
        from rl_training.experiment import default_workers

        return default_workers(threads)
    if not (is_number(text) and int(text) > 0):
        raise ConfigError(f"--workers must be a number >= 1 or auto, got {text!r}")
    return int(text)
