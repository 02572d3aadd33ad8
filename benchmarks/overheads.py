"""What logs, checkpoints and evaluations cost beside what they are there for.

    python benchmarks/overheads.py [--what run evaluation] [--rounds 7] [--steps 300] [--episodes 10] [--write]

`run`: the share of a run's time that goes into logs and checkpoints at default intervals. TD3+BC on 100,000 rows of
HalfCheetah's sizes, and SAC on Pendulum-v1, whose checkpoints hold the rows of the replay buffer; eager and compiled.
Bar: at most 3 %. A round times some timesteps of the loop, then one log line, with what guards look at, and then one
checkpoint. Before the checkpoint, the buffer gets as many new rows as come in a whole interval. The share follows from
the numbers of log lines and timesteps in the interval between two checkpoints.

`evaluation`: the time of an environment step in `evaluate_policy` on HalfCheetah-v4 with default options, making the
environments included, over that in a bare loop, in which the same policy module is called on a tensor and then one
environment is stepped. Bar: at most 1.2. The table has a bare loop over ten environments too, in which one call gives
the actions of all.

Everything has one thread. Each variant lives in a process of its own and waits while another is timed. Shares and
ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from halfcheetah import ACTION_DIM, SPACES, make_arrays
from interleaving import Ratio, Report, Variant, Work, make_parser, measure, rates, table
from quiet_runs import proceed, quiet_run

from rl_training.acting import EVAL_SEED, Policy, evaluate_policy
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.config import TrainConfig
from rl_training.core.machine import configure_machine
from rl_training.data import TransitionDataset
from rl_training.runtime.loop import log
from rl_training.runtime.saving import save_latest
from rl_training.runtime.trainer import Session

ENV_ID, ENVS = "HalfCheetah-v4", 10
MOST_SHARE, MOST_RATIO = 0.03, 1.2
DEFAULTS = TrainConfig(algo="td3_bc")
WARM_UP = 50
"""Timesteps before the first that count, in runs that learn from the first one."""


def open_run(algo: str, *, compiled: bool) -> Session:
    """One of the two runs."""
    if algo == "sac":
        # Learning starts within the first round, which does not count.
        return quiet_run(algo, compiled=compiled, env_id="Pendulum-v1", learning_starts=WARM_UP // 2)
    bounds: dict[str, Any] = {"action_low": [-1.0] * ACTION_DIM, "action_high": [1.0] * ACTION_DIM}
    dataset = TransitionDataset.from_dict(make_arrays())
    return quiet_run(algo, compiled=compiled, dataset=dataset, accept_audit=True, **bounds)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def make_run(algo: str, *, compiled: bool) -> Work[dict[str, float]]:
    """Seconds of a timestep, of a log line and of a checkpoint."""
    configure_machine(1)
    session = open_run(algo, compiled=compiled)

    def work(steps: float) -> dict[str, float]:
        found = {"timestep": seconds(lambda: proceed(session, int(steps))) / steps}
        found["log line"] = seconds(lambda: log(session))
        add_rows(session, DEFAULTS.checkpoint_interval - int(steps))
        return found | {"checkpoint": seconds(lambda: save_latest(session, good=True))}

    return work


def add_rows(session: Session, count: int) -> None:
    """Fill the buffer of a run that acts with so many rows more, without the updates that they would earn."""
    if session.collector is not None:
        for _ in range(count):
            session.collector.collect(random=True)
        session.state.stored = session.collector.buffer.added
        session.state.online_updates += session.next_updates()


def share(found: dict[str, float]) -> float:
    """The part of the time between two checkpoints that is neither acting nor learning."""
    logs = DEFAULTS.checkpoint_interval / DEFAULTS.log_interval * found["log line"]
    events = logs + found["checkpoint"]
    return events / (events + DEFAULTS.checkpoint_interval * found["timestep"])


def run(args: argparse.Namespace, report: Report) -> None:
    """Logs and checkpoints."""
    tasks = {"td3_bc": "100,000 rows", "sac": "Pendulum-v1"}
    variants = {
        f"{algo}, {task}, {'compiled' if compiled else 'eager'}": Variant(
            partial(make_run, algo, compiled=compiled), warm_up=WARM_UP
        )
        for algo, task in tasks.items()
        for compiled in (False, True)
    }
    rows = []
    for name, rounds in measure(variants, args.steps, args.rounds).items():
        parts = [found for (found,) in rounds]
        shares = [share(found) for found in parts]
        times = [f"{1e3 * statistics.median(found[part] for found in parts):.2f}" for part in parts[0]]
        spread = f"{min(shares):.2%} to {max(shares):.2%}"
        verdict = "met" if statistics.median(shares) <= MOST_SHARE else "missed"
        rows.append((name, *times, f"{statistics.median(shares):.2%}", spread, f"at most {MOST_SHARE:.0%}", verdict))
    intervals = f"a log line every {DEFAULTS.log_interval:,} timesteps, a checkpoint every"
    header = ("Run", "Timestep, ms", "Log line, ms", "Checkpoint, ms", "Share", "Range", "Bar", "")
    report.add(
        "## Logs and checkpoints",
        f"With default intervals: {intervals} {DEFAULTS.checkpoint_interval:,}. {args.steps} timesteps per round.",
        table(header, rows),
    )


def make_policy() -> Policy:
    """A fresh policy of networks of 2x256."""
    configure_machine(1)
    torch.manual_seed(0)
    return Policy.of(TD3BC.build(SPACES, TD3BC.hyper_class()), SPACES)


def make_evaluation() -> Work[float]:
    """Environment steps of evaluations per second."""
    policy = make_policy()

    def work(episodes: float) -> float:
        start = time.perf_counter()
        found = evaluate_policy(policy, ENV_ID, {}, episodes=int(episodes))
        return sum(found.lengths) / (time.perf_counter() - start)

    return work


def make_bare(num_envs: int) -> Work[float]:
    """Environment steps per second of a loop that does nothing but act and step."""
    policy, envs = make_policy(), [gym.make(ENV_ID) for _ in range(num_envs)]

    @torch.no_grad()
    def work(episodes: float) -> float:
        steps, start = 0, time.perf_counter()
        for first in range(0, int(episodes), num_envs):
            obs = np.stack([env.reset(seed=EVAL_SEED + first + k)[0] for k, env in enumerate(envs)])
            is_over = False
            # Episodes of HalfCheetah are all of the same length.
            while not is_over:
                actions = policy(torch.as_tensor(obs, dtype=torch.float32)).numpy()
                found = [env.step(action) for env, action in zip(envs, actions, strict=True)]
                obs, is_over = np.stack([each[0] for each in found]), found[0][2] or found[0][3]
                steps += num_envs
        return steps / (time.perf_counter() - start)

    return work


def evaluation(args: argparse.Namespace, report: Report) -> None:
    """Evaluations."""
    bare, together, ours = "bare loop, one environment", f"bare loop, {ENVS} environments", "evaluate_policy"
    makes: dict[str, Callable[[], Work[float]]] = {
        bare: partial(make_bare, 1),
        together: partial(make_bare, ENVS),
        ours: make_evaluation,
    }
    found = rates({name: Variant(make) for name, make in makes.items()}, args.episodes, args.rounds)
    rows = []
    for name, values in found.items():
        # Of times, and these are ratios of rates the other way round.
        ratio = Ratio.of(found[bare], values)
        verdict = ratio.verdict(MOST_RATIO if name == ours else None, at_most=True)
        rows.append((name, f"{1e6 / statistics.median(values):.1f}", *ratio.cells(), *verdict))
    header = ("Loop", "Step, us", "By bare loop", "Range", "Bar", "")
    report.add("## Evaluations", f"{ENV_ID}, {args.episodes} episodes per round.", table(header, rows))


PARTS = {"run": run, "evaluation": evaluation}


def main() -> None:
    """Measure what is asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--what", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--steps", type=int, default=300, help="timesteps of a run in a round")
    parser.add_argument(
        "--episodes",
        type=int,
        default=10,
        help="episodes of an evaluation in a round; fewer than the default ten leave environments out",
    )
    args = parser.parse_args()
    report = Report("What logs, checkpoints and evaluations cost", f"One thread, {args.rounds} rounds.", args)
    for part in args.what:
        PARTS[part](args, report)
    report.finish()


if __name__ == "__main__":
    main()
