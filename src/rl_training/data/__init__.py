"""Logged data as a dataset, from any source, checked."""

from __future__ import annotations

from rl_training.data.collect import LONGEST_EPISODE, collect_dataset, endless_episode
from rl_training.data.convert import convert, load_any, mix, split
from rl_training.data.dataset_audit import Audit, TrainingAudit, audit_data
from rl_training.data.dataset_loaders import (
    LOGGED_REWARDS,
    DataOptions,
    as_dataset,
    load_transition_dataset,
    read_dataset,
    shared_key,
    use_shared,
)
from rl_training.data.episode_keys import MOST_KEYS, Keys, episode_keys, remembered, unseen_episodes
from rl_training.data.episodes import Episode
from rl_training.data.fields import REWARDS_HINT
from rl_training.data.files.formats import check_destination, write_dataset, write_npz
from rl_training.data.infer_spaces import (
    check_logged,
    fit_masks,
    fit_spaces,
    with_masks_of_env,
    with_spaces_of_data,
    without_masks_first,
)
from rl_training.data.inspect import StepTimes, first_rows, inspect_dataset, step_times
from rl_training.data.offline_dataset import TransitionDataset, sample_trajectory_windows
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.replay.buffer import ReplayBuffer
from rl_training.data.replay.samplers import Hindsight, Source, UniformSource, WindowSource, with_n_step
from rl_training.data.replay.sources import (
    AnnotatedLog,
    AnnotatedSource,
    MixedSource,
    Ratio,
    RolloutSource,
    hindsight_source,
    make_source,
    source_for,
    with_annotations,
    with_lambda_returns,
)
from rl_training.data.rows import Rows
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.files import TableFiles
from rl_training.data.tables.in_memory import check_table_path, make_table, table_kind, table_text, write_table
from rl_training.data.tables.to_fields import read_observations

__all__ = [
    "LOGGED_REWARDS", "LONGEST_EPISODE", "MOST_KEYS", "REWARDS_HINT", "AnnotatedLog", "AnnotatedSource", "Audit",
    "ColumnsConfig", "DataOptions", "Episode", "Hindsight", "Keys", "MixedSource", "Ratio", "ReplayBuffer",
    "RolloutSource", "Rows", "Source", "StepTimes", "TableFiles", "TrainingAudit", "TransitionDataset",
    "UniformSource", "WindowSource", "as_dataset", "audit_data", "check_destination", "check_logged",
    "check_table_path", "collect_dataset", "concatenate_datasets", "convert", "endless_episode", "episode_keys",
    "first_rows", "fit_masks", "fit_spaces", "hindsight_source", "inspect_dataset", "load_any",
    "load_transition_dataset", "make_source", "make_table", "mix", "mix_transition_datasets", "read_dataset",
    "read_observations", "remembered", "sample_trajectory_windows", "shared_key", "source_for", "split", "step_times",
    "table_kind", "table_text", "unseen_episodes", "use_shared", "with_annotations", "with_lambda_returns",
    "with_masks_of_env", "with_n_step", "with_spaces_of_data", "without_masks_first", "write_dataset", "write_npz",
    "write_table",
]  # fmt: skip
