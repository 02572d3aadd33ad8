"""Export a policy: a folder that runs without this package, with a description and a check."""

from __future__ import annotations

import hashlib
import runpy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, UserError, import_extra
from rl_training.core.files import atomic_folder, write_json
from rl_training.core.spaces import BoxActions
from rl_training.policies.export.description import describe
from rl_training.policies.export.graph import PolicyGraph, latencies, plain_arrays, require_onnx, write_onnx
from rl_training.policies.export.log import Log, find_log, fit_log, vector_observations
from rl_training.policies.saved import SavedPolicy

SCRIPTS = Path(str(resources.files("rl_training"))) / "assets" / "export"
VALUE_TOLERANCE = 1e-4
"""The relative difference up to which the values of two candidate actions count as a tie."""


ABOUT = "policy.json"

Addition = Callable[[Path], Mapping[str, Any]]
"""Writes a further file into the folder; returns the entries for policy.json."""


class ExportError(UserError, RuntimeError):
    """Raised if an exported policy does not give the actions of the package."""


@dataclass(frozen=True)
class Export:
    """An exported folder, with the results of its check."""

    path: Path
    about: dict[str, Any]
    """The contents of policy.json."""
    differences: dict[str, float]
    """The largest differences from the package on the test vectors, by output."""
    differing_rows: int
    """Test vectors on which the exported policy broke a tie between candidate actions differently."""

    @property
    def sizes(self) -> dict[str, int]:
        """The files and their sizes in bytes."""
        return {file.name: file.stat().st_size for file in sorted(self.path.iterdir())}

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as the command prints them."""
        found = {"out": str(self.path), "files": self.sizes, "largest_differences": self.differences}
        return {**found, "differing_rows": self.differing_rows, **self.about}


def export_policy(
    saved: SavedPolicy,
    out: str | Path,
    *,
    dataset: Any = None,
    novelty: bool = True,
    remarks: Mapping[str, Any] | None = None,
    add: Addition | None = None,
) -> Export:
    """Write a policy to a new folder, which appears only if the policy in it gives the actions of the package.

    `dataset` is the data of a run that was given it as an object. Without `novelty`, no data is needed. `remarks` are
    further facts for policy.json. `add` writes a further file into the folder before it appears.
    """
    path = Path(out)
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of {str(path)!r} does not exist")
    if path.exists():
        raise ConfigError(f"{str(path)!r} exists already; choose another name or delete it")
    require_onnx()
    log, why_not = find_log(saved, dataset) if novelty else (None, "it was left out when the policy was exported")
    return write_bundle(saved, path, log, why_not, remarks=remarks, add=add)


def write_bundle(
    saved: SavedPolicy,
    path: Path,
    log: Log | None,
    why_not: str = "",
    *,
    remarks: Mapping[str, Any] | None = None,
    add: Addition | None = None,
) -> Export:
    """Write the folder of a policy with facts about its log, or with the reason why there is none."""
    graph = PolicyGraph(saved.policy, None if log is None else fit_log(log, saved.policy)).eval()
    with atomic_folder(path) as folder:
        write_onnx(graph, folder / "policy.onnx")
        vectors = _write_vectors(folder, graph, saved, log)
        arrays, why_not_plain = plain_arrays(graph.policy, graph.novelty)
        shutil.copyfile(SCRIPTS / "check.py", folder / "check.py")
        if arrays:
            np.savez(folder / "policy_numpy.npz", **arrays)
            shutil.copyfile(SCRIPTS / "policy_numpy.py", folder / "policy_numpy.py")
        about = {**describe(saved, graph, log, why_not), **(remarks or {})} | {
            "policy_numpy": {"available": why_not_plain is None, "why_not": why_not_plain},
            "latency_us": latencies(graph, folder / "policy.onnx", vectors["obs"]),
        }
        about = _write_about(folder, about)
        if add is not None:
            about = _write_about(folder, {**about, **add(folder)})
        differences, differing = _verify(folder, saved)
    return Export(path, about, differences, differing)


def _write_about(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write policy.json with the checksums of all other files; its contents."""
    files = sorted(file for file in folder.iterdir() if file.name != ABOUT)
    found = {**about, "sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}}
    write_json(folder / ABOUT, found)
    return found


def _write_vectors(folder: Path, graph: PolicyGraph, saved: SavedPolicy, log: Log | None) -> dict[str, NDArray[Any]]:
    """Write test vectors: observations, with their actions and novelty by the package."""
    obs = vector_observations(log, graph.policy)
    native = torch.from_numpy(saved.predict(obs))
    space = saved.spaces.action
    actions = space.confine(native) if isinstance(space, BoxActions) else native
    vectors: dict[str, Any] = {**graph.answer(obs), "obs": obs, "action": actions.numpy()}
    np.savez(folder / "vectors.npz", **vectors)
    return vectors


def _verify(folder: Path, saved: SavedPolicy) -> tuple[dict[str, float], int]:
    """Run the check of the folder, and compare the values of actions that differ."""
    check = runpy.run_path(str(folder / "check.py"))["check"]
    problems, differences, rows = check(folder)
    if problems:
        raise ExportError(f"the exported policy differs from the package's; nothing was written: {'; '.join(problems)}")
    if len(rows):
        _compare_values(folder, saved, rows)
    return differences, len(rows)


def _compare_values(folder: Path, saved: SavedPolicy, rows: NDArray[np.int64]) -> None:
    """Refuse actions that differ from the package's, unless the critic that selects them values both the same."""
    runtime = import_extra("onnxruntime", "export", "exporting a policy")
    with np.load(folder / "vectors.npz") as vectors:
        obs, expected = vectors["obs"][rows], vectors["action"][rows]
    session = runtime.InferenceSession(str(folder / "policy.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(["action"], {"obs": obs})[0]
    policy, space = saved.policy, saved.spaces.action
    with torch.no_grad():
        inputs = policy.inputs(torch.from_numpy(obs))
        encoded = [space.encode(torch.from_numpy(actions)) for actions in (expected, found)]
        ours, theirs = (policy.model.critic(inputs, actions, first=1).numpy() for actions in encoded)
    gaps = np.abs(ours - theirs) / np.maximum(np.abs(ours), 1e-6)
    if gaps.max() > VALUE_TOLERANCE:
        raise ExportError(f"the exported policy takes actions of other values in rows {rows.tolist()} of vectors.npz")
