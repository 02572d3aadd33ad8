"""Names that users import, where they look for them."""

from __future__ import annotations

from importlib import import_module

import pytest

NAMES = {
    "rl_training": "BC TD3BC TrainConfig evaluate fetch_run predict resume run_pipeline train train_bc train_sac",
    "rl_training.api": "BC TD3BC",
    "rl_training.api.algorithms": "ManagedAlgorithm BC TD3BC",
    "rl_training.algorithms": "BC BCAlgorithm TD3BC TD3BCAlgorithm bc_loss td3_bc_loss register",
    "rl_training.algorithms.td3_bc": "TD3BC TD3BCAlgorithm td3_bc_loss",
    "rl_training.config": "TrainConfig",
    "rl_training.data": "TransitionDataset load_transition_dataset mix_transition_datasets sample_trajectory_windows",
    "rl_training.data.dataset_loaders": "load_transition_dataset",
    "rl_training.data.offline_dataset": "TransitionDataset sample_trajectory_windows",
    "rl_training.data.offline_mixers": "mix_transition_datasets",
    "rl_training.envs": "make_env make_vector_env RewardTransformConfig apply_reward_wrappers",
    "rl_training.envs.rewards": "RewardTransformConfig RewardScaleWrapper RewardShiftWrapper RewardClipWrapper",
    "rl_training.experiment": "AlgorithmSpec ExperimentManager TrainConfig get_algorithm_spec plot_curves read_runs "
    "summarize",
    "rl_training.experiment.manager": "ExperimentManager",
    "rl_training.experiment.registry": "AlgorithmSpec get_algorithm_spec",
    "rl_training.models": "MLP EnsembleMLP Model Multiplier QEnsemble ValueNetwork BehaviorVAE DeterministicActor "
    "GaussianActor PerturbationActor TanhGaussianActor",
    "rl_training.runtime": "train_bc train_td3_bc Callback EarlyStoppingCallback EarlyStoppingConfig ScheduleSpec",
    "rl_training.runtime.callbacks": "Callback EarlyStoppingCallback",
    "rl_training.runtime.schedules": "ScheduleSpec resolve_schedule_value",
    "rl_training.runtime.trainer": "TrainerState TrainResult",
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names.split()]
)
def test_a_public_name_is_where_it_belongs(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None
