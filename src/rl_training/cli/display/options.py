"""Options shared by several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

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


COLUMN_FLAGS: dict[str, tuple[str, str]] = {
    "obs": ("--obs-columns", "Columns of the observation, such as 'x_*,speed'; repeatable."),
    "next_obs": ("--next-obs-columns", "Columns of the observation after the action, if the table has them."),
    "actions": ("--action-columns", "Columns of the action; repeatable."),
    "reward": ("--reward-column", "Column of the reward, or arithmetic over columns."),
    "episode": ("--episode-column", "Column that names the episode of a row."),
    "episodes": ("--episodes", "Without such a column: each_row, one, or flags."),
    "step": ("--step-column", "Column that numbers the rows of an episode."),
    "timestamp": ("--timestamp-column", "Column with the time of a row, where steps are not numbered."),
    "terminated": ("--terminated-column", "Column that is 1 where the task ended."),
    "truncated": ("--truncated-column", "Column that is 1 where the episode was cut."),
    "done": ("--done-column", "Column that is 1 at the ends that --done-means names."),
    "done_means": ("--done-means", "terminated, or episode_end."),
    "propensity": ("--propensity-column", "Column with the probability of the logged action."),
    "behavior_log_prob": ("--behavior-log-prob-column", "Column with its natural logarithm, instead."),
    "valid_actions": ("--valid-action-columns", "Columns of the action mask: 1 where an action was valid; repeatable."),
    "action_kind": ("--action-kind", "continuous or discrete; by default inferred from the actions."),
    "choices": ("--choices", "Names of all discrete actions, in the order of their numbers."),
    "one_hot": ("--one-hot", "Columns of the observation that are categories; repeatable."),
    "missing": ("--missing", "Treatment of empty cells: error, drop_episode, or forward_fill."),
}
"""By key of `dataset_columns`, the command option and its help."""
COLUMN_LISTS = ("obs", "next_obs", "actions", "valid_actions", "choices", "one_hot")


def takes_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of columns; its parameter `columns` gets their values, or None without any."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(command).parameters.values()
        if each.name != "columns"
    ]
    added = []
    for key, (flag, meaning) in COLUMN_FLAGS.items():
        kind: Any = list[str] | None if key in COLUMN_LISTS else str | None
        option = typer.Option(flag, help=meaning, rich_help_panel="Columns of a table")
        annotation = Annotated[kind, option]
        added.append(
            inspect.Parameter(f"{key}_columns", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )

    @wraps(command)
    def wrapper(**values: Any) -> None:
        given = {key: values.pop(f"{key}_columns") for key in COLUMN_FLAGS}
        columns = {
            key: _names(value) if key in COLUMN_LISTS else value
            for key, value in given.items()
            if value not in (None, [])
        }
        command(**values, columns=columns or None)

    signature = inspect.Signature([*own, *added], return_annotation=None)
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return wrapper


def _names(texts: list[str]) -> list[str]:
    """The names in options, of which each may hold several, separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
