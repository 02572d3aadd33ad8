"""Where batches come from: logged transitions, and a run's own."""

from rl_training.data.annotations import AnnotatedLog, AnnotatedSource, with_annotations
from rl_training.data.collection import collect_dataset
from rl_training.data.dataset_loaders import DataOptions, load_transition_dataset
from rl_training.data.hindsight import Hindsight
from rl_training.data.lambda_returns import with_lambda_returns
from rl_training.data.n_step import with_n_step
from rl_training.data.offline_dataset import Episode, TransitionDataset
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollouts import RolloutSource
from rl_training.data.rows import Rows
from rl_training.data.sampling import Source, UniformSource, WindowSource, sample_trajectory_windows
from rl_training.data.sources import MixedSource, Ratio, hindsight_source, make_source, source_for
from rl_training.data.writers import check_destination, write_dataset, write_npz

__all__ = [
    "AnnotatedLog",
    "AnnotatedSource",
    "DataOptions",
    "Episode",
    "Hindsight",
    "MixedSource",
    "Ratio",
    "ReplayBuffer",
    "RolloutSource",
    "Rows",
    "Source",
    "TransitionDataset",
    "UniformSource",
    "WindowSource",
    "check_destination",
    "collect_dataset",
    "concatenate_datasets",
    "hindsight_source",
    "load_transition_dataset",
    "make_source",
    "mix_transition_datasets",
    "sample_trajectory_windows",
    "source_for",
    "with_annotations",
    "with_lambda_returns",
    "with_n_step",
    "write_dataset",
    "write_npz",
]
