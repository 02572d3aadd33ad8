"""A policy as one ONNX graph: from native observations to native actions and their novelty."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.acting.policy import Policy
from rl_training.core.errors import ConfigError, import_extra
from rl_training.core.spaces import BoxActions
from rl_training.models.novelty import Novelty

OPSET = 18
"""The version of ONNX's operators: old enough for runtimes of a few years ago."""
PURPOSE = "exporting a policy"
TIMED_CALLS = 200


class PolicyGraph(nn.Module):
    """What is exported: normalisation, networks, scaling, clipping, and the support score if there is one."""

    def __init__(self, policy: Policy, novelty: Novelty | None) -> None:
        super().__init__()
        self.policy, self.novelty = policy, novelty

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The deterministic action in the environment's units, and its novelty (B,)."""
        space = self.policy.spaces.action
        actions: Tensor = self.policy(obs)
        if isinstance(space, BoxActions):
            # Scaling may round to a number just outside the bounds.
            actions = space.confine(actions)
        return actions if self.novelty is None else (actions, self.novelty(obs, space.encode(actions)))

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return ["action"] if self.novelty is None else ["action", "novelty"]

    @torch.no_grad()
    def answer(self, obs: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The outputs by name, as torch computes them."""
        found = self(torch.from_numpy(obs))
        tensors = [found] if self.novelty is None else list(found)
        return {name: value.numpy() for name, value in zip(self.outputs, tensors, strict=True)}


def require_onnx() -> None:
    """Refuse to begin where a package is missing that an export needs."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(package, "export", PURPOSE)


def write_onnx(graph: PolicyGraph, path: Path) -> None:
    """Write the graph to one file that takes batches of any size."""
    onnx = import_extra("onnx", "export", PURPOSE)
    example = torch.zeros(2, graph.policy.spaces.obs_dim)
    try:
        with _quiet():
            torch.onnx.export(
                graph,
                (example,),
                str(path),
                input_names=["obs"],
                output_names=graph.outputs,
                dynamic_shapes={"obs": {0: torch.export.Dim("batch")}},
                opset_version=OPSET,
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise ConfigError(f"the policy cannot be written as an ONNX graph: {_reason(error)}") from None
    model = onnx.load(str(path))
    _refuse_fixed_batch(model)
    _remove_traces(model)
    onnx.save(model, str(path))


def _refuse_fixed_batch(model: Any) -> None:
    """Refuse a graph for batches of one size. The exporter makes them without a word if the code asks for a length."""
    for value in (*model.graph.input, *model.graph.output):
        batch = value.type.tensor_type.shape.dim[0]
        if not batch.dim_param:
            raise ConfigError(
                f"the exported graph has batches of {batch.dim_value} only ({value.name}): the model or its encoder "
                "reads the size of the batch as a number; use obs.shape[0] in place of len(obs), and no fixed sizes"
            )


def _remove_traces(model: Any) -> None:
    """Take out the lines of code that nodes come from: they name folders of this machine."""
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks on its own insides from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _reason(error: Exception) -> str:
    """The innermost cause of an exporter's error, in one line."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def latencies(graph: PolicyGraph, path: Path, obs: NDArray[np.float32]) -> dict[str, float]:
    """Microseconds for one observation, in onnxruntime with one thread and in torch: medians of many calls."""
    runtime = import_extra("onnxruntime", "export", PURPOSE)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    row = obs[:1]
    tensor = torch.from_numpy(row)

    def in_torch() -> None:
        with torch.no_grad():
            graph(tensor)

    return {
        "onnxruntime": _median_time(lambda: session.run(None, {"obs": row})),
        "torch": _median_time(in_torch),
    }


def _median_time(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(float(np.median(times)) * 1e6, 1)
