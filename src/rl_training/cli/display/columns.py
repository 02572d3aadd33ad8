"""The options that say what the columns of a table mean, for every command that reads one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

FLAGS: dict[str, tuple[str, str]] = {
    "obs": ("--obs-columns", "Columns of the observation, such as 'x_*,speed'; repeatable."),
    "next_obs": ("--next-obs-columns", "Columns of the observation after the action, if the table has them."),
    "actions": ("--action-columns", "Columns of the action; repeatable."),
    "reward": ("--reward-column", "Column of the reward, or arithmetic over columns."),
    "episode": ("--episode-column", "Column that says which rows are an episode."),
    "episodes": ("--episodes", "Without such a column: each_row, one, or flags."),
    "step": ("--step-column", "Column that numbers the rows of an episode."),
    "timestamp": ("--timestamp-column", "Column with the time of a row, where steps are not numbered."),
    "terminated": ("--terminated-column", "Column that is 1 where the task ended."),
    "truncated": ("--truncated-column", "Column that is 1 where the episode was cut."),
    "done": ("--done-column", "Column that is 1 at ends of the kind that --done-means says."),
    "done_means": ("--done-means", "terminated, or episode_end."),
    "propensity": ("--propensity-column", "Column with the probability of the logged action."),
    "behavior_log_prob": ("--behavior-log-prob-column", "Column with its natural logarithm, instead."),
    "valid_actions": ("--valid-action-columns", "Columns that are 1 where a choice was allowed; repeatable."),
    "action_kind": ("--action-kind", "continuous or discrete; default as the actions look."),
    "choices": ("--choices", "Names of all choices, in the order of their numbers."),
    "one_hot": ("--one-hot", "Columns of the observation seen as categories; repeatable."),
    "missing": ("--missing", "What to do about empty cells: error, drop_episode, or forward_fill."),
}
"""By key of `dataset_columns`, the option of a command and its help."""
LISTS = ("obs", "next_obs", "actions", "valid_actions", "choices", "one_hot")


def takes_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of columns. Its parameter `columns` gets what they say, or None if that is nothing."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(command).parameters.values()
        if each.name != "columns"
    ]
    added = [_parameter(key, flag, meaning) for key, (flag, meaning) in FLAGS.items()]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        given = {key: values.pop(f"{key}_columns") for key in FLAGS}
        stated = {key: value for key, value in given.items() if value is not None and value != []}
        columns = {key: _names(value) if key in LISTS else value for key, value in stated.items()}
        command(**values, columns=columns or None)

    signature = inspect.Signature([*own, *added], return_annotation=None)
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return wrapper


def _names(texts: list[str]) -> list[str]:
    """Names from options of which each may hold several, with commas between them."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _parameter(key: str, flag: str, meaning: str) -> inspect.Parameter:
    kind: Any = list[str] | None if key in LISTS else str | None
    option = typer.Option(flag, help=meaning, rich_help_panel="Columns of a table")
    return inspect.Parameter(
        f"{key}_columns", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
