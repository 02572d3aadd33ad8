"""The commands `env ...`."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.display.console import print_json
from rl_training.cli.display.options import ImportOption, JsonOption
from rl_training.core.errors import UserError
from rl_training.core.text import plural

if TYPE_CHECKING:
    from rl_training.envs import EnvReport

env_app = typer.Typer(help="Look at environments.", no_args_is_help=True)


@env_app.command("check")
def check(
    env_id: Annotated[str, typer.Argument(metavar="ENV", help="Gymnasium environment, or module:Name-v0.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments of the environment.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="The most steps of random actions to take.")] = 1000,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check an environment for mistakes, and show how algorithms see it."""
    from rl_training.config import parse_overrides
    from rl_training.envs import check_env

    words = [word if word.startswith("env_kwargs.") else f"env_kwargs.{word}" for word in more or []]
    kwargs = parse_overrides(words).get("env_kwargs", {})
    report = check_env(env_id, kwargs, steps=steps)
    if as_json:
        print_json({**asdict(report), "spaces": None if report.spaces is None else report.spaces.to_plain()})
        raise typer.Exit(2 if report.mistakes else 0)
    for name, texts in (("ok", report.passed), ("mistake", report.mistakes), ("note", report.notes)):
        for text in texts:
            print(f"{name:<9}{text}")
    for name, text in _view(report).items():
        print(f"{name:<14}{text}")
    if report.mistakes:
        raise UserError(f"{env_id} has {plural(len(report.mistakes), 'mistake')}")


def _view(report: EnvReport) -> dict[str, str]:
    """The spaces, time limit and episodes of an environment, and the algorithms that fit it, by heading."""
    from rl_training.experiment import list_algorithms
    from rl_training.runtime import mode_defaults

    def fits(algorithm: Any) -> bool:
        needs_goals = mode_defaults(algorithm, algorithm.mode).get("replay") == "hindsight"
        has_goals = report.spaces is not None and "desired_goal" in report.spaces.obs
        return kind in algorithm.action_kinds and (has_goals or not needs_goals)

    if report.spaces is None:
        return {}
    kind, lengths = report.spaces.action.kind, report.lengths
    random = f"none ended in {report.steps} steps of random actions"
    if lengths:
        mean = f"on average {fmean(lengths):.0f} steps long, with return {fmean(report.returns):.1f}"
        random = f"{len(lengths)} of random actions, {mean}"
    return {
        "observations": report.spaces.describe_obs().removeprefix("observations of "),
        "actions": report.spaces.action.describe(),
        "time limit": "none registered" if report.time_limit is None else f"{report.time_limit} steps",
        "episodes": random,
        "algorithms": ", ".join(spec.name for spec in list_algorithms() if fits(spec.algorithm)),
    }
