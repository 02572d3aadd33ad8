"""The commands that use a trained policy: `eval` and `predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.console import print_json, score_text
from rl_training.cli.options import ImportOption, JsonOption, RunArgument
from rl_training.types import ConfigError


def evaluate(
    run: RunArgument,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes; default as in the run's config.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first episode.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint of a run instead of its latest.")] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a trained policy in its environment, on raw reward."""
    from rl_training.runtime import evaluate as evaluate_run
    from rl_training.runtime.evaluation import EVAL_SEED
    from rl_training.runtime.finding import find_checkpoint

    path = find_checkpoint(run, name="best.pt" if best else "latest.pt")
    result = evaluate_run(path, episodes=episodes, seed=EVAL_SEED if seed is None else seed)
    if as_json:
        print_json(result.to_dict())
        return
    metrics = result.metrics()
    count = "1 episode" if len(result.returns) == 1 else f"{len(result.returns)} episodes"
    print(path)
    print(f"{result.env_id}: {score_text(metrics)} over {count}")
    print(
        f"  from {metrics['return_min']:.1f} to {metrics['return_max']:.1f}, mean length {metrics['length_mean']:.0f}"
    )


def predict(
    run: RunArgument,
    obs: Annotated[Path, typer.Option(help="Observations: a .npy or .json file, one row each.")],
    out: Annotated[Path | None, typer.Option(help="Write the actions to a .npy or .json file.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample, where the policy is stochastic.")] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Actions of a trained policy for observations in a file."""
    import numpy as np

    from rl_training.runtime import predict as predict_run

    if out is not None and out.suffix not in (".npy", ".json"):
        raise ConfigError(f"--out must end in .npy or .json, got {str(out)!r}")
    actions = predict_run(run, _read_observations(obs), deterministic=not stochastic)
    if out is not None and out.suffix == ".npy":
        np.save(out, actions)
    elif out is not None:
        out.write_text(json.dumps(actions.tolist()) + "\n", encoding="utf-8")
    if as_json:
        print_json(actions.tolist())
    elif out is None:
        print(np.array2string(actions, threshold=sys.maxsize))


def _read_observations(path: Path) -> Any:
    import numpy as np

    if not path.is_file():
        raise ConfigError(f"--obs {str(path)!r} does not exist")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float32)
        if path.suffix == ".json":
            return np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.float32)
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise ConfigError(f"--obs {str(path)!r} cannot be read: {error}") from None
    raise ConfigError(f"--obs must be a .npy or .json file, got {str(path)!r}")
