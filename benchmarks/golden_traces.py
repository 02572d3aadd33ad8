"""Does every packaged config still train to the same numbers? Compares this checkout with an earlier commit.

Both versions run on this machine, one thread each, eager: a short run of every packaged config and of some variants.
Parameters, target networks and all metrics must be equal bit for bit, actions on fixed observations to 1e-6.

    python benchmarks/golden_traces.py                    # against the commit before the redesign
    python benchmarks/golden_traces.py --only 'sac/*'     # some configs
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
BASE = "df1d124"
DATA_FOLDER = Path(os.environ.get("RL_TRAINING_DATA", ROOT.parent / "shared" / "data"))

OFFLINE = ("total_timesteps=24", "algo_kwargs.eval_interval=12", "log_interval=6", "checkpoint_interval=24")
ONLINE = (
    "total_timesteps=64",
    "algo_kwargs.eval_interval=32",
    "log_interval=16",
    "checkpoint_interval=64",
    "algo_kwargs.learning_starts=24",
    "env_kwargs.max_episode_steps=10",
)
PRIOR = ("algo_kwargs.mode=offline_to_online", "algo_kwargs.offline_pretrain_updates=12")

VARIANTS: dict[str, tuple[str, ...]] = {
    "td3_bc/pendulum": ("algo_kwargs.n_step=3", "algo_kwargs.reward_normalize=standard"),
    "iql/pendulum": ("algo_kwargs.validation_fraction=0.2", "algo_kwargs.policy=deterministic"),
    "bc/pendulum": ("algo_kwargs.policy=stochastic", "algo_kwargs.normalize_obs=false"),
    "cql/pendulum": ("algo_kwargs.conservative_gap=1.0", "algo_kwargs.alpha=0.2", "algo_kwargs.max_backup=min_of_max"),
    "rebrac/pendulum": (*PRIOR, *ONLINE, "algo_kwargs.n_step=2"),
    "awr/pendulum": (*PRIOR, *ONLINE, "algo_kwargs.recompute_interval=8"),
    "marwil/pendulum": (*PRIOR, *ONLINE, "algo_kwargs.recompute_interval=8", "algo_kwargs.offline_batch_ratio=0.5"),
    "sac/pendulum": (*ONLINE, "algo_kwargs.n_step=3", "num_envs=3", "algo_kwargs.normalize_obs=true"),
    "sac_n/pendulum": (*PRIOR, *ONLINE, "algo_kwargs.alpha=0.1"),
    "redq/pendulum": (*ONLINE, "algo_kwargs.num_target_critics=1.5", "algo_kwargs.critic_dropout=0.1"),
    "td3/pendulum": (*ONLINE, "algo_kwargs.buffer_capacity=40", "algo_kwargs.train_frequency=4"),
    "her/point_goal": (*ONLINE, "algo_kwargs.n_step=2", "algo_kwargs.normalize_obs=true", "num_envs=2"),
    "rlpd/pendulum": (*ONLINE, "algo_kwargs.backup_entropy=false"),
    "cal_ql/pendulum": (*PRIOR, *ONLINE, "algo_kwargs.failure_reward=-1.0"),
}
"""Options that the packaged configs leave alone, one set for each config named."""


def cases(pattern: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """A name, a config and its overrides, for every short run."""
    from rl_training.config import packaged_configs

    known = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", BASE, "src/rl_training/assets/configs"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = [name for name in packaged_configs() if f"configs/{name}.yaml" in known]
    plain = [(name, name, ()) for name in names]
    varied = [(f"{name} (varied)", name, overrides) for name, overrides in VARIANTS.items()]
    return [case for case in [*plain, *varied] if fnmatch.fnmatch(case[1], pattern)]


def overrides_for(name: str) -> list[str]:
    """What makes a packaged config a run of a moment."""
    from rl_training.algorithms import ALGORITHMS
    from rl_training.config import load_config

    config = load_config(name)
    kwargs, mode = config.algo_kwargs, ALGORITHMS[config.algo].mode
    acts = kwargs.get("mode", mode) != "offline"
    short = ["eval_episodes=2", "algo_kwargs.compile=never", *(ONLINE if acts else OFFLINE)]
    if kwargs.get("dataset_kind") == "random":
        short.append("algo_kwargs.dataset_size=1000")
    if "dataset_path" in kwargs:
        short.append(f"algo_kwargs.dataset_path={DATA_FOLDER / 'd4rl/mujoco/hopper_medium-v2.hdf5'}")
    if "offline_pretrain_updates" in kwargs:
        short.append("algo_kwargs.offline_pretrain_updates=12")
    if config.algo in ("redq", "rlpd"):
        short.append("algo_kwargs.update_to_data=2")
    if config.algo in ("awr", "marwil"):
        short.append("algo_kwargs.recompute_interval=8")
    return short


def record(pattern: str, out: Path) -> None:
    """Run every case with the package that PYTHONPATH names, and keep what it came to."""
    import rl_training
    from rl_training.config import load_config
    from rl_training.runtime.artifacts import read_metrics

    traces: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config, extra in cases(pattern):
            overrides = [*overrides_for(config), *extra, f"output_dir={folder}"]
            result = rl_training.train(load_config(config, overrides=overrides), threads=1)
            tree = torch.load(result.checkpoint_path, weights_only=True)
            state = {key: value for key, value in tree["algorithm"].items() if isinstance(value, torch.Tensor)}
            width = state["obs_mean"].shape[0]
            obs = torch.randn(8, width, generator=torch.Generator().manual_seed(7)).numpy()
            actions = [rl_training.predict(result.run_dir, obs, deterministic=each) for each in (True, False)]
            rows = [
                {key: value for key, value in row.items() if not key.endswith("_per_second")}
                for row in read_metrics(result.run_dir)
            ]
            traces[name] = {
                "state": {key: _digest(value) for key, value in state.items()},
                "actions": [torch.from_numpy(each) for each in actions],
                "metrics": json.dumps(rows, sort_keys=True),
            }
            print(f"  {name}", file=sys.stderr, flush=True)
    torch.save(traces, out)


def _digest(values: torch.Tensor) -> str:
    text = f"{values.dtype}{tuple(values.shape)}".encode()
    return hashlib.blake2b(text + values.numpy().tobytes(), digest_size=16).hexdigest()


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What differs, one line each."""
    found = []
    for name, before in theirs.items():
        after = ours[name]
        for key, value in before["state"].items():
            # Moments that mirror buffers of a network were never read.
            if key.startswith("optimizers.") and key not in after["state"]:
                continue
            if after["state"].get(key) != value:
                found.append(f"{name}: {key}")
        for one, other in zip(after["actions"], before["actions"], strict=True):
            # Bounds are mapped by another formula, the one that environments were stepped with: rounding differs.
            if not torch.allclose(one, other, rtol=0, atol=1e-6):
                found.append(f"{name}: actions, by up to {(one - other).abs().max():g}")
        if before["metrics"] != after["metrics"]:
            found.append(f"{name}: metrics {_first_difference(before['metrics'], after['metrics'])}")
    return found


def _first_difference(before: str, after: str) -> str:
    for old, new in zip(json.loads(before), json.loads(after), strict=False):
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                return f"{key} {old.get(key)} -> {new.get(key)} at {old['global_step']}"
    return "number of rows"


def main() -> int:
    """Compare, or record one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="configs to compare, as a pattern")
    parser.add_argument("--base", type=Path, help="traces of the earlier commit, kept from another run")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record is not None:
        record(given.only, given.record)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tree, sides = Path(folder) / "tree", {}
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), BASE], cwd=ROOT, check=True)
        try:
            for side, source in (("before", tree / "src"), ("after", ROOT / "src")):
                out = given.base if side == "before" and given.base is not None else Path(folder) / f"{side}.pt"
                if out.is_file():
                    continue
                command = [sys.executable, __file__, "--only", given.only, "--record", str(out)]
                environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                sides[side] = subprocess.Popen(command, env=environment, cwd=folder)
            codes = [each.wait() for each in sides.values()]
            if any(codes):
                return 1
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
        theirs = torch.load(given.base or Path(folder) / "before.pt", weights_only=True)
        ours = torch.load(Path(folder) / "after.pt", weights_only=True)
    theirs = {name: value for name, value in theirs.items() if name in ours}
    differences = compare(ours, theirs)
    print("\n".join(differences) or f"all {len(ours)} runs are equal bit for bit")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
