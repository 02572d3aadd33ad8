"""Storage of runs: directories, checkpoints, metrics, sinks, locks, uploads."""

from __future__ import annotations

from rl_training.storage.checkpoint import (
    LATEST,
    MOST_ROLLBACKS,
    POLICY_ONLY,
    check_algo,
    drop_policies,
    first_mistake,
    link_checkpoint,
    load_checkpoint,
    load_networks,
    load_tree,
    numbered_checkpoints,
    open_checkpoint,
    policy_files,
    policy_path,
    policy_step,
    refuse_foreign,
    refusing_broken_state,
    refusing_other_networks,
    save_checkpoint,
    save_tree,
    saved_spaces,
    saved_spans,
)
from rl_training.storage.find import (
    find_checkpoint,
    find_checkpoints,
    find_runs,
    find_unfinished,
    is_finished,
    is_run,
    policy_name,
)
from rl_training.storage.lock import RunLock, is_locked, is_signed
from rl_training.storage.metrics import MetricWindow
from rl_training.storage.replay_files import ReplayStore, read_rows, rows_path
from rl_training.storage.run_directory import (
    UPLOADS,
    RunDirectory,
    describe_machine,
    package_version,
    read_json,
    read_metrics,
    refuse_taken,
    run_of,
)
from rl_training.storage.sinks import check_sinks
from rl_training.storage.trust import check_trust, remember_run
from rl_training.storage.upload import Uploader, begin_uploads, check_upload, fetch_if_missing, fetch_run

__all__ = [
    "LATEST", "MOST_ROLLBACKS", "POLICY_ONLY", "UPLOADS", "MetricWindow", "ReplayStore", "RunDirectory", "RunLock",
    "Uploader", "begin_uploads", "check_algo", "check_sinks", "check_trust", "check_upload", "describe_machine",
    "drop_policies", "fetch_if_missing", "fetch_run", "find_checkpoint", "find_checkpoints", "find_runs",
    "find_unfinished", "first_mistake", "is_finished", "is_locked", "is_run", "is_signed", "link_checkpoint",
    "load_checkpoint", "load_networks", "load_tree", "numbered_checkpoints", "open_checkpoint", "package_version",
    "policy_files", "policy_name", "policy_path", "policy_step", "read_json", "read_metrics", "read_rows",
    "refuse_foreign", "refuse_taken", "refusing_broken_state", "refusing_other_networks", "remember_run", "rows_path",
    "run_of", "save_checkpoint", "save_tree", "saved_spaces", "saved_spans",
]  # fmt: skip
