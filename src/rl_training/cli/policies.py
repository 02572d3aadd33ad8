"""The commands that use a trained policy: `eval`, `record`, `play` and `predict`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.display.console import print_json, print_table, score_text, working
from rl_training.cli.display.options import (
    BestOption,
    EnvOption,
    EpisodesOption,
    ImportOption,
    JsonOption,
    MoreSets,
    RunArgument,
    SeedOption,
    SetOption,
    StochasticOption,
)
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.files import atomic_write
from rl_training.core.text import first_of, plural

if TYPE_CHECKING:
    from rl_training.acting import EpisodeOptions, EvaluationResult
    from rl_training.policies import SavedPolicy


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


def load(path: Path) -> SavedPolicy:
    """The policy of a checkpoint; the process computes with no more threads than it has cores."""
    from rl_training.core.machine import set_threads
    from rl_training.policies import load_policy

    set_threads()
    return load_policy(path)


def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|KEY=VALUE",
            help="Runs, checkpoints, folders of runs, or patterns; then overrides of env_kwargs, as with --set.",
        ),
    ],
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes; default as in the run's config.")] = None,
    seed: SeedOption = None,
    env: EnvOption = None,
    best: BestOption = False,
    stochastic: StochasticOption = False,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Environments side by side.")] = None,
    video: Annotated[Path | None, typer.Option(help="Write a video of the episodes: a .mp4 or .gif file.")] = None,
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run trained policies in their environment, on raw reward; several are compared on the same seeds."""
    from rl_training.storage import find_checkpoints

    runs = [word for word in words if "=" not in word or Path(word).exists()]
    overrides = _env_kwargs([*(set_ or []), *(word for word in words if word not in runs)])
    if not runs:
        raise ConfigError("no run is named: give a run directory, a checkpoint, a folder of runs, or a pattern")
    paths = find_checkpoints(runs, name=_checkpoint_name(best), with_missing=True)
    if video is not None and len(paths) > 1:
        raise ConfigError(f"--video is for one policy, got {len(paths)}: name one, or use `rl-training record`")
    if video is not None and num_envs is not None:
        raise ConfigError("--video shows one episode after the other: leave out --num-envs")
    how = _options(env, overrides, seed, stochastic=stochastic)
    if len(paths) > 1:
        compare(paths, runs, episodes, how, num_envs=num_envs, as_json=as_json)
        return
    saved = load(paths[0])
    if video is None:
        result = saved.evaluate(episodes=episodes, num_envs=num_envs, **how)
    else:
        result = saved.record(video, episodes=episodes or saved.config.eval_episodes, **how)
    _print_result(paths[0], saved, result, how["seed"], video=video, as_json=as_json)


def record(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The video: a .mp4 or .gif file.")],
    more: MoreSets = None,
    episodes: EpisodesOption = 1,
    seed: SeedOption = None,
    env: EnvOption = None,
    best: BestOption = False,
    stochastic: StochasticOption = False,
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a video of a trained policy; the episodes are those of an evaluation."""
    from rl_training.storage import find_checkpoint

    overrides = _env_kwargs([*(set_ or []), *(more or [])])
    path, how = find_checkpoint(run, name=_checkpoint_name(best)), _options(env, overrides, seed, stochastic=stochastic)
    saved = load(path)
    result = saved.record(out, episodes=episodes, **how)
    _print_result(path, saved, result, how["seed"], video=out, as_json=as_json)


def play(
    run: RunArgument,
    more: MoreSets = None,
    episodes: EpisodesOption = 1,
    seed: SeedOption = None,
    env: EnvOption = None,
    best: BestOption = False,
    stochastic: StochasticOption = False,
    set_: SetOption = None,
    import_: ImportOption = None,
) -> None:
    """Show a trained policy in a window; the episodes are those of an evaluation."""
    from rl_training.storage import find_checkpoint

    overrides = _env_kwargs([*(set_ or []), *(more or [])])
    path, how = find_checkpoint(run, name=_checkpoint_name(best)), _options(env, overrides, seed, stochastic=stochastic)
    saved = load(path)
    _print_result(path, saved, saved.play(episodes=episodes, **how), how["seed"])


def predict(
    run: RunArgument,
    obs: Annotated[
        Path,
        typer.Option(help="Observations: a .npy or .json file, or a table (.csv, .parquet) like the one trained on."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the actions to a .npy, .json, .csv or .parquet file.")] = None,
    best: BestOption = False,
    stochastic: StochasticOption = False,
    allow_nan: Annotated[bool, typer.Option("--allow-nan", help="Act on rows with NaN or infinity too.")] = False,
    novelty: Annotated[
        bool | None,
        typer.Option(
            "--novelty/--no-novelty",
            help="Name observations far from the training data, by a score that is made from it and kept with the "
            "run; default: if the run has it.",
        ),
    ] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Actions of a trained policy for observations in a file."""
    from rl_training.policies import name_actions, table_observations
    from rl_training.storage import find_checkpoint

    path, is_table = find_checkpoint(run, name=_checkpoint_name(best)), _is_table(obs)
    if out is not None:
        _check_out(out, is_table=is_table)
    saved = load(path)
    rows = table_observations(saved, obs) if is_table else _read_observations(obs)
    actions = saved.predict(rows, deterministic=not stochastic, allow_nan=allow_nan)
    if novelty is not False:
        _name_far(saved, rows, actions, fit=bool(novelty))
    if is_table:
        _write_columns(name_actions(saved, actions), out, as_json=as_json)
    else:
        _write_actions(actions, out, as_json=as_json)


def _name_far(saved: SavedPolicy, rows: Any, actions: Any, *, fit: bool) -> None:
    """Say once, beside the actions, that observations are far from the training data."""
    from rl_training.policies import find_novelty, novelty_text

    score = find_novelty(saved, fit=fit)
    remark = None if score is None else novelty_text(score, saved, rows, actions)
    if remark is not None:
        print(f"warning: {remark}", file=sys.stderr)


def _is_table(path: Path) -> bool:
    from rl_training.data import table_kind

    return table_kind(path) is not None


def _check_out(out: Path, *, is_table: bool) -> None:
    from rl_training.data import check_table_path

    if out.suffix in (".npy", ".json"):
        return
    if not is_table:
        hint = "; a table of actions needs a table of observations" if _is_table(out) else ""
        raise ConfigError(f"--out must end in .npy or .json, got {str(out)!r}{hint}")
    check_table_path(out, name="--out")


def _write_columns(columns: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    """Actions under the names of their columns, choices by their names."""
    import numpy as np

    from rl_training.data import make_table, table_text, write_table

    records = [
        dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]
    if out is not None and out.suffix in (".npy", ".json"):
        _save(out, np.stack(list(columns.values()), axis=1), records)
    elif out is not None:
        write_table(make_table(columns), out)
    if as_json:
        print_json(records)
    elif out is None:
        print(table_text(make_table(columns)), end="")


def _write_actions(actions: Any, out: Path | None, *, as_json: bool) -> None:
    import numpy as np

    if out is not None:
        _save(out, actions, actions.tolist())
    if as_json:
        print_json(actions.tolist())
    elif out is None:
        print(np.array2string(actions, threshold=sys.maxsize))


def _save(out: Path, array: Any, plain: Any) -> None:
    """Write actions to a .npy or .json file, which appears when it is whole."""
    import numpy as np

    with atomic_write(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".npy":
            np.save(file, array)
        else:
            file.write(f"{json.dumps(plain)}\n".encode())


def _print_result(
    path: Path,
    saved: SavedPolicy,
    result: EvaluationResult,
    seed: int,
    *,
    video: Path | None = None,
    as_json: bool = False,
) -> None:
    """The evaluation of one policy."""
    if as_json:
        print_json({**result_row(path, saved, result, seed), **({} if video is None else {"video": str(video)})})
        return
    metrics = result.metrics()
    print(path)
    print(f"{result.env_id}: {score_text(metrics)} over {plural(len(result.returns), 'episode')}")
    print(
        f"  from {metrics['return_min']:.1f} to {metrics['return_max']:.1f}, mean length {metrics['length_mean']:.0f}"
    )
    for note in result.notes:
        print(f"note: {note}")
    if video is not None:
        print(f"video in {video}")


def compare(
    paths: Sequence[Path],
    names: Sequence[str],
    episodes: int | None,
    how: EpisodeOptions,
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
    named = f"{len(rows)} policies ({first_of(names)})"
    print(f"{named}, {plural(count, 'episode')} each, {_seeds(how['seed'], count)}" if results else named)
    _print_rows(rows)
    if errors:
        raise UserError(f"{len(errors)} of {len(rows)} policies could not be evaluated")


def result_row(path: Path, saved: SavedPolicy, result: EvaluationResult, seed: int) -> dict[str, Any]:
    """One policy with its evaluation, as plain values."""
    about = {"path": str(path), "algo": saved.config.algo, "env_id": result.env_id, "seed": seed}
    return {**about, **result.to_dict()}


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
    from rl_training.storage import policy_name

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


def _options(env: str | None, overrides: dict[str, Any], seed: int | None, *, stochastic: bool) -> EpisodeOptions:
    """What the options of a command say about the episodes of a policy."""
    from rl_training.acting import EVAL_SEED

    first = EVAL_SEED if seed is None else seed
    return {"env": env, "env_kwargs": overrides, "seed": first, "deterministic": not stochastic}


def _checkpoint_name(best: bool) -> str:
    return "best.pt" if best else "latest.pt"


def _env_kwargs(overrides: Sequence[str]) -> dict[str, Any]:
    """The arguments of the environment that overrides name; a trained policy has nothing else to override."""
    from rl_training.config import parse_overrides

    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith("env_kwargs."):
            raise ConfigError(
                f"a trained policy takes overrides of env_kwargs, such as env_kwargs.g=5; got {override!r}"
            )
    found: dict[str, Any] = parse_overrides(overrides).get("env_kwargs", {})
    return found


def _read_observations(path: Path) -> Any:
    import numpy as np

    if not path.is_file():
        raise ConfigError(f"--obs {str(path)!r} does not exist")
    try:
        if path.suffix == ".npy":
            # Mapped, so that a header that claims more than the file holds takes no memory.
            return np.lib.format.open_memmap(path, mode="r").astype(np.float32)
        if path.suffix == ".json":
            return np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.float32)
    except (ValueError, TypeError, OSError, EOFError, SyntaxError, RecursionError, OverflowError, TokenError) as error:
        raise ConfigError(f"--obs {str(path)!r} cannot be read: {error}") from None
    raise ConfigError(f"--obs must be a .npy, .json, .csv or .parquet file, got {str(path)!r}")
