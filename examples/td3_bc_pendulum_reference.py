"""Train TD3+BC on random Pendulum transitions, and see whether the policy beats the data.

python examples/td3_bc_pendulum_reference.py
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from rl_training import TD3BC, TrainConfig
from rl_training.config import load_config


def main() -> None:
    """Train, evaluate, and print both scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--output-dir", default="runs")
    args = parser.parse_args()

    config: TrainConfig = load_config("td3_bc/pendulum")
    model = TD3BC(replace(config, total_timesteps=args.updates, output_dir=args.output_dir))
    result = model.learn(progress=True)
    evaluation = model.evaluate(num_episodes=20)
    print(f"data    {result.data_return:.1f}")
    print(f"policy  {evaluation['return_mean']:.1f} over {len(evaluation['returns'])} episodes")
    print(f"action at rest, hanging down: {model.predict([-1.0, 0.0, 0.0])}")


if __name__ == "__main__":
    main()
