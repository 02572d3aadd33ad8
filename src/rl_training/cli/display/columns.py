"""Command options that name the columns of a table."""

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
LISTS = ("obs", "next_obs", "actions", "valid_actions", "choices", "one_hot")


def takes_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of columns; its parameter `columns` gets their values, or None without any."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(command).parameters.values()
        if each.name != "columns"
    ]
    added = []
    for key, (flag, meaning) in FLAGS.items():
        kind: Any = list[str] | None if key in LISTS else str | None
        option = typer.Option(flag, help=meaning, rich_help_panel="Columns of a table")
        annotation = Annotated[kind, option]
        added.append(
            inspect.Parameter(f"{key}_columns", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )

    @wraps(command)
    def wrapper(**values: Any) -> None:
        given = {key: values.pop(f"{key}_columns") for key in FLAGS}
        columns = {
            key: _names(value) if key in LISTS else value for key, value in given.items() if value not in (None, [])
        }
        command(**values, columns=columns or None)

    signature = inspect.Signature([*own, *added], return_annotation=None)
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return wrapper


def _names(texts: list[str]) -> list[str]:
    """The names in options, of which each may hold several, separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
