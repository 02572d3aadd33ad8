"""Steps per second of online training beside Stable-Baselines3's, as ratios from one interleaved run.

    python benchmarks/online_speed.py [--algos sac td3 ppo redq rlpd] [--rounds 7] [--steps 300] [--threads 1] [--write]

SAC and TD3 on HalfCheetah-v4 with one environment, networks of 2x256, batches of 256 and one update per step on both
sides, environment, replay buffer and acting included. PPO with eight environments, rollouts of 2,048 transitions,
minibatches of 64 and ten passes; a round is one rollout with its updates. REDQ and RLPD have no counterpart there;
their critic step, the bulk of what they do, is timed beside one that loops over ten separate critics, as the authors'
code does. Variants are eager and compiled ones in float32, and compiled ones with products in bfloat16. Each lives in a
process of its own and waits while another is timed; the ratio is the median over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from halfcheetah import ACTION_DIM, OBS_DIM, SPACES
from interleaving import COMPARISON, Report, Variant, Work, compared, for_count, make_parser, rates, table
from quiet_runs import proceed, quiet_run
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS
from rl_training.core.machine import configure_machine

BATCH, WIDTH, CRITICS = 256, 256, 10
WARM_UP = 600
"""Steps before the first that counts; updates begin within them."""

Steps = Callable[[int], None]
"""Makes a number of steps, or of updates."""

ROLLOUT = 2048
ENVS = 8


def ours(algo: str, *, compiled: bool, **options: Any) -> Steps:
    """Steps of our loop, without logs and evaluations."""
    if algo == "ppo":
        options |= {"rollout_steps": ROLLOUT, "batch_size": 64, "epochs": 10}
    else:
        options |= {"learning_starts": 300, "buffer_capacity": 100_000}
    num_envs = ENVS if algo == "ppo" else 1
    run = quiet_run(algo, env_id="HalfCheetah-v4", num_envs=num_envs, compiled=compiled, **options)
    return partial(proceed, run)


def peer(algo: str) -> Steps:
    """Steps of Stable-Baselines3's loop."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.noise import NormalActionNoise

    noise = NormalActionNoise(torch.zeros(ACTION_DIM).numpy(), 0.1 * torch.ones(ACTION_DIM).numpy())
    options: dict[str, Any] = {"action_noise": noise, "policy_delay": 2} if algo == "td3" else {}
    model = getattr(sb3, algo.upper())(
        "MlpPolicy",
        "HalfCheetah-v4",
        learning_rate=3e-4,
        buffer_size=100_000,
        learning_starts=300,
        batch_size=BATCH,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [WIDTH, WIDTH]},
        device="cpu",
        **options,
    )
    return lambda steps: model.learn(steps, reset_num_timesteps=False, log_interval=10**9) and None


def peer_rollouts(algo: str) -> Steps:
    """Rollouts of Stable-Baselines3's PPO."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env("HalfCheetah-v4", n_envs=ENVS)
    model = sb3.PPO("MlpPolicy", envs, n_steps=ROLLOUT // ENVS, batch_size=64, n_epochs=10, device="cpu")
    return lambda steps: model.learn(steps, reset_num_timesteps=False, log_interval=10**9) and None


def batch() -> dict[str, Tensor]:
    """Random transitions of HalfCheetah's sizes."""
    obs = torch.randn(2, BATCH, OBS_DIM)
    actions = torch.rand(BATCH, ACTION_DIM) * 2 - 1
    return {
        "obs": obs[0],
        "actions": actions,
        "rewards": torch.randn(BATCH),
        "next_obs": obs[1],
        "dones": torch.zeros(BATCH),
    }


def our_updates(algo: str, *, compiled: bool, **options: Any) -> Steps:
    """Updates of ours in which only the critics move."""
    cls = ALGORITHMS[algo]
    options |= {"policy_delay": 10**9}
    algorithm = cls.build(SPACES, cls.hyper_class(**options))
    if compiled:
        algorithm.compile_steps()
    rows = batch()

    def work(updates: int) -> None:
        for _ in range(updates):
            algorithm.update(rows)

    return work


def looped_updates(algo: str) -> Steps:
    """The same critic step over separate networks, one after the other, with torch's own optimiser."""

    def critic() -> nn.Module:
        layers: list[nn.Module] = []
        for fan_in in (OBS_DIM + ACTION_DIM, WIDTH):
            layers += [nn.Linear(fan_in, WIDTH), *([nn.LayerNorm(WIDTH)] if algo == "rlpd" else []), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    critics, targets = ([critic() for _ in range(CRITICS)] for _ in range(2))
    optimizers = [torch.optim.Adam(each.parameters(), lr=3e-4) for each in critics]
    actor = nn.Sequential(
        nn.Linear(OBS_DIM, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2 * ACTION_DIM)
    )
    rows = batch()

    def update() -> None:
        with torch.no_grad():
            mean, log_std = actor(rows["next_obs"]).chunk(2, -1)
            normal: Any = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
            raw = normal.rsample()
            actions = raw.tanh()
            log_probs = (normal.log_prob(raw) - torch.log(1 - actions.square() + 1e-6)).sum(-1, keepdim=True)
            chosen = torch.randperm(CRITICS)[:2].tolist()
            inputs = torch.cat([rows["next_obs"], actions], -1)
            next_q = torch.cat([targets[k](inputs) for k in chosen], -1).amin(-1, keepdim=True)
            target = rows["rewards"][:, None] + 0.99 * (1 - rows["dones"][:, None]) * (next_q - log_probs)
        inputs = torch.cat([rows["obs"], rows["actions"]], -1)
        loss: Any = sum((nn.functional.mse_loss(each(inputs), target) for each in critics), torch.zeros(()))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for each, lagged in zip(critics, targets, strict=True):
                for source, target_parameter in zip(each.parameters(), lagged.parameters(), strict=True):
                    target_parameter.lerp_(source, 0.005)

    def work(updates: int) -> None:
        for _ in range(updates):
            update()

    return work


OURS: dict[str, dict[str, Any]] = {
    "eager": {"compiled": False},
    "compiled": {"compiled": True},
    "bfloat16": {"compiled": True, "precision": "bfloat16"},
}
"""By variant, how we are called."""
REFERENCES: dict[str, tuple[str, Callable[[str], Steps]]] = {
    "loop": ("stable-baselines3", peer),
    "rollouts": ("stable-baselines3", peer_rollouts),
    "critics": ("separate critics", looped_updates),
}
"""By kind of work, what it is compared with."""
WHAT = {
    "loop": "{algo}: steps on HalfCheetah-v4",
    "rollouts": "{algo}: steps on HalfCheetah-v4, eight environments",
    "critics": "{algo}: updates of ten critics",
}
KINDS = {"sac": "loop", "td3": "loop", "ppo": "rollouts", "redq": "critics", "rlpd": "critics"}
BARS = {
    "sac": {"compiled": 1.7, "bfloat16": 2.0},
    "td3": {"compiled": 1.55, "bfloat16": 1.8},
    "redq": {"compiled": 1.6},
    "rlpd": {"compiled": 1.6},
}
"""The least ratios that are asked for."""


def make(algo: str, variant: str, threads: int) -> Work[float]:
    """A variant in its process."""
    torch.set_num_threads(threads)
    kind = KINDS[algo]
    if variant not in OURS:
        return for_count(REFERENCES[kind][1](algo))
    configure_machine(threads)
    return for_count((our_updates if kind == "critics" else ours)(algo, **OURS[variant]))


def main() -> None:
    """Print a table of rates and ratios."""
    parser = make_parser(__doc__)
    parser.add_argument("--algos", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    about = f"{args.threads} thread(s), {args.rounds} rounds of {args.steps} steps. *bfloat16* is compiled too."
    report = Report("What acting and learning cost", about, args)
    for algo in args.algos:
        kind = KINDS[algo]
        warm_up = {"loop": WARM_UP, "rollouts": ROLLOUT, "critics": 20}[kind]
        count = {"loop": args.steps, "rollouts": ROLLOUT, "critics": max(args.steps // 6, 1)}[kind]
        names = (REFERENCES[kind][0], *OURS)
        found = rates(
            {name: Variant(partial(make, algo, name, args.threads), warm_up) for name in names}, count, args.rounds
        )
        reference, bars = found[names[0]], BARS.get(algo, {})
        rows = [compared(name, values, reference, bars.get(name)) for name, values in found.items()]
        report.add(f"## {WHAT[kind].format(algo=algo.upper())}", table(COMPARISON, rows))
    report.finish()


if __name__ == "__main__":
    main()
