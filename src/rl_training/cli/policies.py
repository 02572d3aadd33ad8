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
    "error": ("error", "{}"),
}
"""The columns of a table of policies: heading, name of the value, and its format."""
RUNS_HELP = "Runs, checkpoints, folders of runs, or patterns; then overrides of env_kwargs, as with --set."
OBS_HELP = "Observations: a .npy or .json file, or a table (.csv, .parquet) like the one trained on."
NOVELTY_HELP = (
    "Warn of observations unlike the training data, by a novelty score that is computed from it and kept with the run; "
    "default: if the run has one."
)
CHECKPOINTS = ("latest.pt", "best.pt")
"""The checkpoint that is used without and with --best."""
ARRAYS = (".npy", ".json")
"""Files of actions that are not tables."""


def load(path: Path) -> SavedPolicy:
    """Load the policy of a checkpoint; the process computes with no more threads than it has cores."""
    from rl_training.core.machine import set_threads
    from rl_training.policies import load_policy

    set_threads()
    return load_policy(path)


def find_policy(run: str, *, best: bool) -> SavedPolicy:
    """Load the policy of a run or checkpoint that the user has named."""
    from rl_training.storage import find_checkpoint

    return load(find_checkpoint(run, name=CHECKPOINTS[best]))


def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN|KEY=VALUE", help=RUNS_HELP),
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
    """Evaluate trained policies in their environment, on raw reward; several are compared on the same seeds."""
    from rl_training.storage import find_checkpoints

    runs = [word for word in words if "=" not in word or Path(word).exists()]
    overrides = [*(set_ or []), *(word for word in words if word not in runs)]
    how = _episode_options(overrides, env, seed, stochastic=stochastic)
    if not runs:
        raise ConfigError("no run is named: give a run directory, a checkpoint, a folder of runs, or a pattern")
    paths = find_checkpoints(runs, name=CHECKPOINTS[best], with_missing=True)
    if video is not None and len(paths) > 1:
        raise ConfigError(f"--video is for one policy, got {len(paths)}: name one, or use `rl-training record`")
    if video is not None and num_envs is not None:
        raise ConfigError("--video shows one episode after the other: leave out --num-envs")
    if len(paths) > 1:
        compare_policies(paths, runs, episodes, how, num_envs=num_envs, as_json=as_json)
        return
    saved = load(paths[0])
    if video is None:
        result = saved.evaluate(episodes=episodes, num_envs=num_envs, **how)
    else:
        result = saved.record(video, episodes=episodes or saved.config.eval_episodes, **how)
    _print_result(saved, result, how["seed"], video=video, as_json=as_json)


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
    """Record a video of a trained policy, in the episodes of an evaluation."""
    how = _episode_options([*(set_ or []), *(more or [])], env, seed, stochastic=stochastic)
    saved = find_policy(run, best=best)
    _print_result(saved, saved.record(out, episodes=episodes, **how), how["seed"], video=out, as_json=as_json)


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
    """Show a trained policy in a window, in the episodes of an evaluation."""
    how = _episode_options([*(set_ or []), *(more or [])], env, seed, stochastic=stochastic)
    saved = find_policy(run, best=best)
    _print_result(saved, saved.play(episodes=episodes, **how), how["seed"])


def predict(
    run: RunArgument,
    obs: Annotated[Path, typer.Option(help=OBS_HELP)],
    out: Annotated[Path | None, typer.Option(help="Write the actions to a .npy, .json, .csv or .parquet file.")] = None,
    best: BestOption = False,
    stochastic: StochasticOption = False,
    allow_nan: Annotated[bool, typer.Option("--allow-nan", help="Act on rows with NaN or infinity too.")] = False,
    novelty: Annotated[
        bool | None,
        typer.Option("--novelty/--no-novelty", help=NOVELTY_HELP),
    ] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the actions of a trained policy for the observations in a file."""
    from rl_training.data import table_kind
    from rl_training.policies import find_novelty, name_actions, novelty_text, table_observations

    is_table = table_kind(obs) is not None
    if out is not None:
        _check_out(out, is_table=is_table)
    saved = find_policy(run, best=best)
    rows = table_observations(saved, obs) if is_table else _read_observations(obs)
    actions = saved.predict(rows, deterministic=not stochastic, allow_nan=allow_nan)
    score = None if novelty is False else find_novelty(saved, fit=bool(novelty))
    if score is not None and (remark := novelty_text(score, saved, rows, actions)) is not None:
        print(f"warning: {remark}", file=sys.stderr)
    _write_actions(name_actions(saved, actions) if is_table else actions, out, as_json=as_json)


def _check_out(out: Path, *, is_table: bool) -> None:
    from rl_training.data import check_table_path, table_kind

    if out.suffix in ARRAYS:
        return
    if not is_table:
        hint = "" if table_kind(out) is None else "; a table of actions needs a table of observations"
        raise ConfigError(f"--out must end in .npy or .json, got {str(out)!r}{hint}")
    check_table_path(out, name="--out")


def _write_actions(actions: Any, out: Path | None, *, as_json: bool) -> None:
    """Print actions, or write them to a file. The actions of a table are a mapping from column names to columns."""
    import numpy as np

    from rl_training.data import make_table, table_text, write_table

    array, is_table = actions, isinstance(actions, Mapping)
    if is_table:
        array = np.stack(list(actions.values()), axis=1)
        columns = [column.tolist() for column in actions.values()]
        plain = [dict(zip(actions, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        plain = actions.tolist()
    if out is not None and out.suffix in ARRAYS:
        # The file appears when it is complete.
        with atomic_write(out) as temporary, temporary.open("wb") as file:
            if out.suffix == ".npy":
                np.save(file, array)
            else:
                file.write(f"{json.dumps(plain)}\n".encode())
    elif out is not None:
        write_table(make_table(actions), out)
    if as_json:
        print_json(plain)
    elif out is None:
        shown = table_text(make_table(actions)) if is_table else np.array2string(actions, threshold=sys.maxsize)
        print(shown.rstrip("\n"))


def _print_result(
    saved: SavedPolicy, result: EvaluationResult, seed: int, *, video: Path | None = None, as_json: bool = False
) -> None:
    """Print the evaluation of one policy."""
    if as_json:
        print_json({**result_row(saved, result, seed), **({} if video is None else {"video": str(video)})})
        return
    metrics = result.metrics()
    print(saved.path)
    print(f"{result.env_id}: {score_text(metrics)} over {plural(len(result.returns), 'episode')}")
    print(
        f"  from {metrics['return_min']:.1f} to {metrics['return_max']:.1f}, mean length {metrics['length_mean']:.0f}"
    )
    for note in result.notes:
        print(f"note: {note}")
    if video is not None:
        print(f"video in {video}")


def compare_policies(
    paths: Sequence[Path],
    names: Sequence[str],
    episodes: int | None,
    how: EpisodeOptions,
    *,
    num_envs: int | None,
    as_json: bool,
) -> None:
    """Evaluate policies and print one table; a policy that cannot be evaluated does not stop the others.

    `names` are the runs as the user typed them, and `how` are arguments of `SavedPolicy.evaluate`.
    """
    policies: dict[Path, SavedPolicy] = {}
    rows: dict[Path, dict[str, Any]] = {path: {"path": str(path)} for path in paths}
    for path in paths:
        try:
            policies[path] = load(path)
        except UserError as error:
            rows[path]["error"] = _one_line(error)
    # As many for all of them as any would have by itself, so that they are compared on the same episodes.
    count = episodes or max((each.config.eval_episodes for each in policies.values()), default=0)
    with working(quiet=as_json) as show:
        for number, (path, saved) in enumerate(policies.items(), 1):
            show(f"{number} of {len(policies)}: {path}")
            try:
                result = saved.evaluate(episodes=count, num_envs=num_envs, **how)
                rows[path] = result_row(saved, result, how["seed"])
            except UserError as error:
                rows[path] |= {"algo": saved.config.algo, "env_id": saved.config.env_id, "error": _one_line(error)}
    failed = sum("error" in row for row in rows.values())
    if as_json:
        print_json(list(rows.values()))
        raise typer.Exit(2 if failed else 0)
    first, last = how["seed"], how["seed"] + count - 1
    seeds = f"seed {first}" if count == 1 else f"seeds {first} to {last}"
    evaluated = f", {plural(count, 'episode')} each, {seeds}" if failed < len(rows) else ""
    print(f"{len(rows)} policies ({first_of(names)}){evaluated}")
    _print_rows(list(rows.values()))
    if failed:
        raise UserError(f"{failed} of {len(rows)} policies could not be evaluated")


def result_row(saved: SavedPolicy, result: EvaluationResult, seed: int) -> dict[str, Any]:
    """The evaluation of one policy as plain values."""
    about = {"path": str(saved.path), "algo": saved.config.algo, "env_id": result.env_id, "seed": seed}
    return {**about, **result.to_dict()}


def _one_line(error: UserError) -> str:
    """An error in one line, for a cell of a table."""
    return "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a row per policy, without the columns that are empty in every row."""
    from rl_training.storage import policy_name

    shown = {head: column for head, column in COLUMNS.items() if any(row.get(column[0]) is not None for row in rows)}
    cells = []
    for row in rows:
        values = ["-" if row.get(name) is None else form.format(row[name], **row) for name, form in shown.values()]
        cells.append([policy_name(row["path"]), *values])
    print_table(["policy", *shown], cells)
    for row in rows:
        for note in row.get("notes", ()):
            print(f"note: {policy_name(row['path'])}: {note}")


def _episode_options(
    overrides: Sequence[str], env: str | None, seed: int | None, *, stochastic: bool
) -> EpisodeOptions:
    """The episodes that a command's options describe; only the arguments of the environment can be overridden."""
    from rl_training.acting import EVAL_SEED
    from rl_training.config import parse_overrides

    for override in overrides:
        if not override.startswith("env_kwargs."):
            expected = "a trained policy takes overrides of env_kwargs, such as env_kwargs.g=5"
            raise ConfigError(f"{expected}; got {override!r}")
    kwargs = parse_overrides(overrides).get("env_kwargs", {})
    first = EVAL_SEED if seed is None else seed
    return {"env": env, "env_kwargs": kwargs, "seed": first, "deterministic": not stochastic}


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
