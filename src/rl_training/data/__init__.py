"""Where batches come from: logged transitions, and a run's own."""

from rl_training.data.collection import collect_dataset
from rl_training.data.dataset_loaders import DataOptions, load_transition_dataset
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.lambda_returns import LambdaReplayBuffer, LambdaReturnSource, with_lambda_returns
from rl_training.data.n_step import with_n_step
from rl_training.data.offline_dataset import Episode, TransitionDataset
from rl_training.data.offline_mixers import (
    MixedSource,
    Ratio,
    concatenate_datasets,
    make_source,
    mix_transition_datasets,
)
from rl_training.data.replay_buffer import EpisodeReplayBuffer, ReplayBuffer
from rl_training.data.sampling import Source, sample_trajectory_windows
from rl_training.data.writers import check_destination, write_dataset, write_npz

__all__ = [
    "DataOptions",
    "Episode",
    "EpisodeReplayBuffer",
    "HindsightReplayBuffer",
    "LambdaReplayBuffer",
    "LambdaReturnSource",
    "MixedSource",
    "Ratio",
    "ReplayBuffer",
    "Source",
    "TransitionDataset",
    "check_destination",
    "collect_dataset",
    "concatenate_datasets",
    "load_transition_dataset",
    "make_source",
    "mix_transition_datasets",
    "sample_trajectory_windows",
    "with_lambda_returns",
    "with_n_step",
    "write_dataset",
    "write_npz",
]
