"""Several policies side by side, on the same episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.cli.console import print_json, print_table, working
from rl_training.cli.loading import load
from rl_training.types import ConfigError, UserError

if TYPE_CHECKING:
    from rl_training.runtime import EvaluationResult, SavedPolicy

COLUMNS = {
    "algorithm": ("algo", "{}"),
    "environment": ("env_id", "{}"),
    "return": ("return_mean", "{:.1f} ± {return_std:.1f}"),
    "min": ("return_min", "{:.1f}"),
    "max": ("return_max", "{:.1f}"),
    "length": ("length_mean", "{:.0f}"),
    "success": ("success_rate", "{:.2f}"),
    "D4RL score": ("normalized_score", "{:.1f}"),
}
"""What a table of policies shows: the heading, the name of the value, and its form."""
MOST_NAMES = 3
"""How many names the first line repeats; the table has all policies."""


def compare(
    paths: Sequence[Path],
    names: Sequence[str],
    episodes: int | None,
    how: Mapping[str, Any],
    *,
    num_envs: int | None,
    as_json: bool,
) -> None:
    """Evaluate policies and print them as one table; one that cannot be evaluated does not stop the others.

    `names` are what the user typed, and `how` are arguments of `SavedPolicy.evaluate`.
    """
    policies: dict[Path, SavedPolicy] = {}
    results: dict[Path, EvaluationResult] = {}
    errors: dict[Path, str] = {}
    for path in paths:
        try:
            policies[path] = load(path)
        except UserError as error:
            errors[path] = _sentence(error)
    # As many for all of them as any would have by itself, so that they are compared on the same episodes.
    count = episodes or max((each.config.eval_episodes for each in policies.values()), default=0)
    with working(quiet=as_json) as show:
        for number, (path, saved) in enumerate(policies.items(), 1):
            show(f"{number} of {len(policies)}: {path}")
            try:
                results[path] = saved.evaluate(episodes=count, num_envs=num_envs, **how)
            except UserError as error:
                errors[path] = _sentence(error)
    rows = [_row(path, policies.get(path), results.get(path), errors.get(path), how["seed"]) for path in paths]
    if as_json:
        print_json(rows)
        raise typer.Exit(2 if errors else 0)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    named = f"{len(rows)} policies ({', '.join(names[:MOST_NAMES])}{more})"
    print(f"{named}, {count_text(count)} each, {_seeds(how['seed'], count)}" if results else named)
    _print_rows(rows)
    if errors:
        raise UserError(f"{len(errors)} of {len(rows)} policies could not be evaluated")


def result_row(path: Path, saved: SavedPolicy, result: EvaluationResult, seed: int) -> dict[str, Any]:
    """One policy with its evaluation, as plain values."""
    about = {"path": str(path), "algo": saved.config.algo, "env_id": result.env_id, "seed": seed}
    return {**about, **result.to_dict()}


def count_text(episodes: int) -> str:
    """How many episodes."""
    return "1 episode" if episodes == 1 else f"{episodes} episodes"


def _seeds(first: int, count: int) -> str:
    return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"


def _sentence(error: UserError) -> str:
    """An error in one line, as a row of a table has it."""
    return "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)


def _row(
    path: Path, saved: SavedPolicy | None, result: EvaluationResult | None, error: str | None, seed: int
) -> dict[str, Any]:
    """One policy with its evaluation, or with the reason why there is none."""
    if saved is not None and result is not None:
        return result_row(path, saved, result, seed)
    about = {} if saved is None else {"algo": saved.config.algo, "env_id": saved.config.env_id}
    return {"path": str(path), **about, "error": error}


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table with a row per policy; a column that no policy has a value for is left out."""
    from rl_training.runtime.finding import policy_name

    shown = {head: column for head, column in COLUMNS.items() if any(row.get(column[0]) is not None for row in rows)}
    errors = [row.get("error", "") for row in rows]
    cells = []
    for row, error in zip(rows, errors, strict=True):
        values = ["-" if row.get(name) is None else form.format(row[name], **row) for name, form in shown.values()]
        cells.append([policy_name(row["path"]), *values, *([error] if any(errors) else [])])
    print_table(["policy", *shown, *(["error"] if any(errors) else [])], cells)
    for row in rows:
        for note in row.get("notes", ()):
            print(f"note: {policy_name(row['path'])}: {note}")
