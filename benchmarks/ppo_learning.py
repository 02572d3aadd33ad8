"""Does PPO learn as much as Stable-Baselines3's with equal settings? Five seeds each on three tasks, in one run.

    python benchmarks/ppo_learning.py                                  # everything
    python benchmarks/ppo_learning.py --tasks pendulum --seeds 0 1     # a part

The settings are those of the packaged configs `ppo/<task>`. Both learn from actions scaled to [-1, 1], and normalise
observations and rewards alike. After training, both act without noise in the same 20 episodes. Results go to
benchmarks/results/ppo_learning.md; those that are there already are not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.acting import EVAL_SEED
from rl_training.runtime import evaluate_policy, load_policy, read_options, train

TASKS = {"pendulum": 100_000, "cartpole": 50_000, "halfcheetah": 100_000}
EPISODES = 20
RESULTS = Path(__file__).parent / "results" / "ppo_learning.md"
MEANING = """Return of the policy without noise, over 20 episodes after training with equal settings: mean ± standard
deviation over seeds, and every seed in brackets. Made by `benchmarks/ppo_learning.py`."""
SCORES = Path(__file__).parent / "results" / "ppo_learning.json"


def overrides(task: str, seed: int, folder: str) -> list[str]:
    """What both runs change in the packaged config: its length and its seed."""
    once = [f"{name}={TASKS[task]}" for name in ("total_timesteps", "log_interval", "checkpoint_interval")]
    return [*once, f"algo_kwargs.eval_interval={TASKS[task]}", f"seed={seed}", f"output_dir={folder}"]


def our_score(task: str, seed: int) -> float:
    """The mean return of a policy of ours."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(read_options(f"ppo/{task}", overrides=overrides(task, seed, folder)), threads=1)
        return float(np.mean(load_policy(result.run_dir).evaluate(episodes=EPISODES).returns))


def peer_score(task: str, seed: int) -> float:
    """The mean return of a policy of Stable-Baselines3's with the same settings."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    config, options = read_options(f"ppo/{task}", overrides=overrides(task, seed, "."))
    hyper: Any = options.hyper
    count = config.num_envs or 1
    envs: Any = make_vec_env(lambda: _scaled(str(config.env_id)), n_envs=count, seed=seed)
    normalizes = {"norm_obs": options.data.normalize_obs, "norm_reward": hyper.normalize_rewards}
    if any(normalizes.values()):
        envs = VecNormalize(envs, **normalizes, gamma=hyper.gamma)
    torch.set_num_threads(1)
    model = sb3.PPO(
        "MlpPolicy",
        envs,
        n_steps=hyper.rollout_steps // count,
        batch_size=options.loop.batch_size,
        n_epochs=hyper.epochs,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
        clip_range=hyper.clip_range,
        ent_coef=hyper.entropy_weight,
        # Their squared error is not halved.
        vf_coef=hyper.value_weight / 2,
        learning_rate=lambda remaining: hyper.learning_rate * remaining,
        seed=seed,
        device="cpu",
    )
    model.learn(config.total_timesteps)

    def act(obs: torch.Tensor) -> torch.Tensor:
        rows = obs.numpy()
        seen = envs.normalize_obs(rows) if isinstance(envs, VecNormalize) else rows
        actions = torch.as_tensor(model.predict(seen, deterministic=True)[0])
        return actions if actions.ndim == 1 else actions.clamp(-1, 1)

    return float(np.mean(evaluate_policy(act, str(config.env_id), {}, episodes=EPISODES, seed=EVAL_SEED).returns))


def _scaled(env_id: str) -> gym.Env[Any, Any]:
    env = gym.make(env_id)
    if not isinstance(env.action_space, gym.spaces.Box):
        return env
    return gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))


def table(scores: dict[str, dict[str, dict[str, float]]]) -> str:
    """The scores of both, and the difference of their means in pooled standard deviations."""
    head = ["Task", "Ours", "Stable-Baselines3", "Difference / pooled standard deviation"]
    rows = [head, ["---"] * len(head)]
    for task, sides in scores.items():
        ours, theirs = ([value for _, value in sorted(sides[side].items())] for side in ("ours", "peer"))
        if min(len(ours), len(theirs)) >= 2:
            pooled = max(((stdev(ours) ** 2 + stdev(theirs) ** 2) / 2) ** 0.5, 1e-9)
            difference = (mean(ours) - mean(theirs)) / pooled
            rows.append([f"{task}, {TASKS[task]:,} steps", _cell(ours), _cell(theirs), f"{difference:+.2f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(scores: list[float]) -> str:
    return f"{mean(scores):.1f} ± {stdev(scores):.1f} ({', '.join(f'{score:.0f}' for score in scores)})"


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments = parser.parse_args()
    scores: dict[str, dict[str, dict[str, float]]] = json.loads(SCORES.read_text()) if SCORES.is_file() else {}
    for task in arguments.tasks:
        for seed in arguments.seeds:
            for side, score in (("ours", our_score), ("peer", peer_score)):
                known = scores.setdefault(task, {}).setdefault(side, {})
                if str(seed) not in known:
                    known[str(seed)] = score(task, seed)
                    print(task, seed, side, f"{known[str(seed)]:.1f}", flush=True)
                    SCORES.write_text(json.dumps(scores, indent=1))
    text = f"# PPO beside Stable-Baselines3\n\n{MEANING}\n\n{table(scores)}\n"
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
