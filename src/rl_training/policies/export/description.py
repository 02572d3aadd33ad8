"""policy.json: a description of an exported policy, its inputs and outputs, its training data, and its check."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rl_training.core.spaces import MASK, BoxActions, SpaceSpec
from rl_training.data import ColumnsConfig
from rl_training.models import EPISODE_QUANTILE, ROW_QUANTILE, Novelty
from rl_training.policies.export.graph import OPSET, PolicyGraph
from rl_training.policies.export.log import Log, describe_obs, flagged_share
from rl_training.policies.saved import SavedPolicy, find_columns, observation_names
from rl_training.storage import package_version, read_json

FORMAT = 1
NOVELTY_TOLERANCE = 1e-3
SPARE_ROWS = 2
"""Test vectors on which a runtime may break a tie differently: two candidates may have nearly the same value."""
PACKAGES = ("rl-training", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
INTENDED_USE = "Actions for observations like those of the data, at the time step of the data."
LIMITS = (
    "The policy answers every observation, also those for which it has learned nothing: novelty above 1 marks an "
    "observation with its action as unfamiliar. Novelty does not depend on values, and in dense data of few dimensions "
    "it does not detect a wrong action. No statement about safety is made."
)


def describe(saved: SavedPolicy, graph: PolicyGraph, log: Log | None, why_not: str) -> dict[str, Any]:
    """Everything in policy.json that is known before the files are written; `why_not` is why there is no novelty."""
    columns, column = find_columns(saved), saved.spaces.action.column
    outputs = {
        "action": {"type": column.dtype, "shape": ["batch", *column.shape]},
        "novelty": {"type": "float32", "shape": ["batch"]},
    }
    return {
        "format": FORMAT,
        "made_with": {**{name: package_version(name) for name in PACKAGES}, "opset": OPSET},
        "policy": _policy(saved),
        "input": {"obs": {"type": "float32", "shape": ["batch", *saved.spaces.obs_column.shape]}},
        "outputs": {name: outputs[name] for name in graph.outputs},
        "observation": _observation(saved.spaces, columns, log),
        "action": _action(saved.spaces, columns),
        "novelty": _novelty(graph.novelty, log, why_not),
        "reward_transforms": saved.tree.get("trainer", {}).get("rewards", []),
        "control_interval": _control_interval(saved),
        "estimates": _estimates(saved),
        "check": _rules(saved),
        "intended_use": INTENDED_USE,
        "limits": LIMITS,
    }


def _policy(saved: SavedPolicy) -> dict[str, Any]:
    trainer = saved.tree.get("trainer", {})
    candidates: Any = getattr(saved.policy.model, "candidates", None)
    run = saved.run_dir
    config = json.dumps(saved.config.to_plain(), sort_keys=True, default=str)
    return {
        "algorithm": saved.config.algo,
        "run": None if run is None else run.name,
        "checkpoint": None if saved.path is None else saved.path.name,
        "step": trainer.get("state", {}).get("global_step"),
        "environment": saved.config.env_id,
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "data_fingerprint": trainer.get("fingerprint") or None,
        "deterministic": True,
        "candidates": None if candidates is None else len(candidates),
    }


def _observation(spaces: SpaceSpec, columns: ColumnsConfig | None, log: Log | None) -> dict[str, Any]:
    parts, start = [], 0
    for name, part in spaces.obs.items():
        parts.append({"name": name, "shape": list(part.shape), "from": start, "to": start + part.size})
        start += part.size
    how = "One vector per observation, in native units; it is normalised inside the graph."
    if spaces.is_masked:
        how += " It begins with the action mask: 1 for every valid action, 0 for the others, at least one of them 1."
    if list(spaces.obs) not in (["obs"], [MASK, "obs"]):
        how += " The parts of an observation are flattened in row-major order and joined in the order of `parts`."
    return {
        "width": spaces.obs_dim,
        "names": None if columns is None else observation_names(spaces, columns),
        "parts": parts,
        "how": how,
        "training": None if log is None else describe_obs(log),
    }


def _action(spaces: SpaceSpec, columns: ColumnsConfig | None) -> dict[str, Any]:
    space, names = spaces.action, None if columns is None else list(columns.actions)
    if isinstance(space, BoxActions):
        found = {"kind": space.kind, "low": list(space.low), "high": list(space.high), "units": "native"}
        return {**found, "names": names}
    choices = None if columns is None or not columns.choices else list(columns.choices)
    # An action may combine several: numpy.unravel_index(action, parts) separates them.
    parts = {"parts": list(space.parts)} if space.parts else {}
    numbers = {"count": space.count, "first": space.start}
    return {"kind": space.kind, **numbers, **parts, "names": names, "choices": choices}


def _novelty(novelty: Novelty | None, log: Log | None, why_not: str) -> dict[str, Any]:
    if novelty is None or log is None:
        return {"available": False, "why_not": why_not}
    count = novelty.num_actions
    return {
        "available": True,
        "threshold": 1.0,
        "meaning": (
            f"Distance of the observation and its action from the nearest of {len(novelty.codebook)} typical logged "
            f"ones, over the distance that {ROW_QUANTILE:.0%} of the rows of {EPISODE_QUANTILE:.0%} of held-out "
            "episodes stay within."
        ),
        "definition": "min over codes c of |z - c| / sqrt(dim z) / distance, z = [(obs - mean) / std, action]",
        "action_in_z": f"one-hot of {count} actions" if count else "scaled from its bounds to [-1, 1]",
        "codes": len(novelty.codebook),
        "distance": float(novelty.distance),
        "calibrated_on": log.origin,
        "held_out_episodes": novelty.episodes,
        "flagged_share_held_out": flagged_share(novelty, log),
        "false_alarm_bound": round(novelty.false_alarms, 4),
        "false_alarm_means": "probability that an episode like the logged ones has more than 5 % of its rows above 1",
    }


def _control_interval(saved: SavedPolicy) -> dict[str, Any] | None:
    """The duration of a step by the timestamps of the log, else by the environment; None if neither has it."""
    run = saved.run_dir
    about = {} if run is None else read_json(run / "metadata.json")
    times, dt = (about.get("data") or {}).get("step_times"), (about.get("env") or {}).get("dt")
    if times is not None:
        spread = {"quantile_0.05": times["low"], "quantile_0.95": times["high"]}
        return {"median": times["median"], **spread, "unit": None, "from": "timestamps of the log, in their unit"}
    if dt is not None:
        return {"median": dt, "quantile_0.05": dt, "quantile_0.95": dt, "unit": None, "from": "dt of the environment"}
    return None


def _estimates(saved: SavedPolicy) -> dict[str, Any] | None:
    """The value estimates of the run, without the folders of this machine."""
    run = saved.run_dir
    found = {} if run is None else read_json(run / "estimate.json")
    if "policies" in found:
        found["policies"] = [{**each, "path": _inside(run, each["path"])} for each in found["policies"]]
    if "source" in found:
        found["source"] = Path(found["source"]).name
    return found or None


def _inside(run: Path | None, path: str | None) -> str | None:
    """The path of a file relative to its run."""
    return None if path is None or run is None else Path(*Path(path).parts[-2:]).as_posix()


def _rules(saved: SavedPolicy) -> dict[str, Any]:
    """Tolerances for the test vectors."""
    space, gaps = saved.spaces.action, [0.0]
    if isinstance(space, BoxActions):
        gaps = [1e-5 * (high - low) + 1e-6 for low, high in zip(space.low, space.high, strict=True)]
    spare = SPARE_ROWS if hasattr(saved.policy.model, "candidates") else 0
    return {"action": gaps, "novelty": NOVELTY_TOLERANCE, "rows_that_may_differ": spare}
