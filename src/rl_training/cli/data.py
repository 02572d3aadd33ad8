"""The commands `data ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.cli import data_convert, data_files
from rl_training.cli.console import print_json
from rl_training.cli.data_audit import audit
from rl_training.cli.options import BestOption, ImportOption, JsonOption
from rl_training.types import LARGEST_SEED, ConfigError

data_app = typer.Typer(help="Make datasets, look at them, check and convert them.", no_args_is_help=True)


@data_app.callback()
def data() -> None:
    """Make datasets, look at them, check and convert them."""


data_app.command("audit")(audit)
data_app.command("inspect")(data_files.inspect)
data_app.command("head")(data_files.head)
data_app.command("convert")(data_convert.convert)
data_app.command("mix")(data_convert.mix)
data_app.command("split")(data_convert.split)


@data_app.command("collect")
def collect(
    out: Annotated[str, typer.Option(help="A .npz, .pt or .hdf5 file, a folder .rlt, or the id of a Minari dataset.")],
    checkpoint: Annotated[str | None, typer.Option(help="Run directory or checkpoint whose policy acts.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random.")] = False,
    best: BestOption = False,
    env: Annotated[str | None, typer.Option(help="Environment; default the one of the checkpoint.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Whole episodes to collect.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Transitions to collect.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of environment and policy.")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The policy's best action instead of a sample.")
    ] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a policy act, and write what happens as a dataset with raw rewards."""
    from rl_training.runtime import collect as collect_run
    from rl_training.runtime.finding import find_checkpoint
    from rl_training.runtime.performance import set_threads

    if random == (checkpoint is not None):
        raise ConfigError("give either --checkpoint or --random")
    if (episodes is None) == (steps is None):
        raise ConfigError("give either --episodes or --steps")
    if random and env is None:
        raise ConfigError("--random needs --env")
    if random and deterministic:
        raise ConfigError("--deterministic needs --checkpoint")
    if random and best:
        raise ConfigError("--best needs --checkpoint")
    if checkpoint is not None and best:
        checkpoint = str(find_checkpoint(checkpoint, name="best.pt"))
    set_threads()
    dataset = collect_run(
        out,
        checkpoint=checkpoint,
        env_id=env,
        steps=steps,
        episodes=episodes,
        stochastic=not deterministic,
        seed=seed,
    )
    returns = dataset.episode_returns()
    report = {"out": out, "rows": len(dataset), "episodes": len(returns), "return_mean": float(returns.mean())}
    if as_json:
        print_json(report)
    else:
        print(f"{out}: {len(dataset)} transitions, {len(returns)} episodes, mean return {report['return_mean']:.1f}")
