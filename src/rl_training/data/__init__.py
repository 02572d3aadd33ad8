"""Where batches come from: logged transitions as tensors."""

from rl_training.data.dataset_loaders import DataOptions, load_transition_dataset
from rl_training.data.offline_dataset import Episode, TransitionDataset
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.returns import LambdaReturnSource, with_lambda_returns
from rl_training.data.sampling import Source, sample_trajectory_windows

__all__ = [
    "DataOptions",
    "Episode",
    "LambdaReturnSource",
    "Source",
    "TransitionDataset",
    "concatenate_datasets",
    "load_transition_dataset",
    "mix_transition_datasets",
    "sample_trajectory_windows",
    "with_lambda_returns",
]
