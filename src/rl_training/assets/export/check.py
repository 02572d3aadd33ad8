"""Check the policy in this folder: python check.py

It needs numpy and onnxruntime only. The files must be those that were exported, and the policy must give the stored
actions for the stored observations, in batches of 1, 7 and 64. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

BATCHES = (1, 7, 64)


def check(folder: Path) -> tuple[list[str], dict[str, float], np.ndarray]:
    """The problems, the largest differences by output, and the numbers of the rows whose actions differ."""
    about = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    problems = changed_files(folder, about["sha256"])
    if problems:
        return problems, {}, np.array([], dtype=int)
    with np.load(folder / "vectors.npz") as file:
        vectors = {name: file[name] for name in file.files}
    runs = [(f"policy.onnx, batches of {size}", run_onnx(folder / "policy.onnx", size)) for size in BATCHES]
    if "policy_numpy.npz" in about["sha256"]:
        runs.append(("policy_numpy.py", run_numpy(folder)))
    largest: dict[str, float] = {}
    wrong = np.zeros(len(vectors["obs"]), dtype=bool)
    for name, run in runs:
        try:
            outputs = run(vectors["obs"])
        except Exception as error:  # any error means that the policy cannot be used like this
            problems.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        rows = compare(outputs, vectors, about["check"], largest)
        wrong |= rows["action"]
        for output, differs in rows.items():
            if differs.sum() > about["check"]["rows_that_may_differ"]:
                first = int(np.flatnonzero(differs)[0])
                found, expected = outputs[output][first], vectors[output][first]
                problems.append(
                    f"{name}: {output} differs in {differs.sum()} of {len(differs)} rows, the first is row {first}: "
                    f"got {found}, expected {expected}"
                )
    return problems, largest, np.flatnonzero(wrong)


def changed_files(folder: Path, digests: dict[str, str]) -> list[str]:
    """The files that have changed since the export."""
    problems = []
    for name, digest in digests.items():
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            problems.append(f"{name} is not the file that was exported: its sha256 differs from that in policy.json")
    return problems


def run_onnx(path: Path, size: int) -> Any:
    """A function from observations to the outputs of the policy by name, in batches of this size."""

    def run(obs: np.ndarray) -> dict[str, np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        parts = [session.run(names, {"obs": obs[start : start + size]}) for start in range(0, len(obs), size)]
        return {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*parts))}  # noqa: B905

    return run


def run_numpy(folder: Path) -> Any:
    """A function from observations to the outputs of the policy that needs numpy only."""

    def run(obs: np.ndarray) -> dict[str, np.ndarray]:
        namespace: dict[str, Any] = {"__name__": "policy_numpy"}
        source = (folder / "policy_numpy.py").read_text(encoding="utf-8")
        exec(compile(source, "policy_numpy.py", "exec"), namespace)  # noqa: S102
        policy = namespace["Policy"](folder / "policy_numpy.npz")
        action = policy(obs)
        return {"action": action} if policy.codebook is None else {"action": action, "novelty": policy.novelty(obs)}

    return run


def compare(
    outputs: dict[str, np.ndarray], vectors: dict[str, np.ndarray], rules: dict[str, Any], largest: dict[str, float]
) -> dict[str, np.ndarray]:
    """For each output, the rows that differ by more than the rules allow; updates the largest differences."""
    gaps = np.abs(outputs["action"].astype(float) - vectors["action"]).reshape(len(vectors["obs"]), -1)
    rows = {"action": ~(gaps <= np.array(rules["action"])).all(axis=1)}
    alike = ~rows["action"]
    note(largest, "action", gaps[alike])
    if "novelty" in vectors:
        gap = np.abs(outputs["novelty"].astype(float) - vectors["novelty"])
        # Another action has another novelty.
        rows["novelty"] = alike & ~(gap <= rules["novelty"] * (1 + vectors["novelty"]))
        note(largest, "novelty", gap[alike])
    return rows


def note(largest: dict[str, float], name: str, gaps: np.ndarray) -> None:
    """Keep the largest difference."""
    largest[name] = max(largest.get(name, 0.0), float(gaps.max(initial=0.0)))


def main() -> int:
    """Check the folder that this file is in."""
    problems, largest, differing = check(Path(__file__).resolve().parent)
    for problem in problems:
        print(f"error: {problem}")
    if problems:
        return 1
    numbers = ", ".join(f"{name} {value:.1e}" for name, value in largest.items())
    print(f"ok: the files are unchanged, and the policy gives the stored actions (largest differences: {numbers})")
    if len(differing):
        print(f"note: on {len(differing)} test rows the exported policy broke a tie differently")
    return 0


if __name__ == "__main__":
    sys.exit(main())
