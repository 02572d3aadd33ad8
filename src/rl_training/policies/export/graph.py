"""The policy as an ONNX graph, and as arrays for NumPy."""

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

from rl_training.acting import Policy
from rl_training.core.errors import ConfigError, import_extra
from rl_training.core.spaces import BoxActions
from rl_training.models import (
    ACTIVATIONS,
    MLP,
    CategoricalActor,
    DeterministicActor,
    DiscreteCritic,
    GaussianActor,
    MLPDQNModel,
    Model,
    Network,
    Novelty,
    SkipMask,
    TanhGaussianActor,
    VectorEncoder,
)

OPSET = 18
"""The version of ONNX operators, old enough for runtimes of a few years ago."""

PURPOSE = "exporting a policy"

TIMED_CALLS = 200


class PolicyGraph(nn.Module):
    """The exported graph: normalisation, networks, scaling, clipping, and the novelty score if there is one."""

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
    """Refuse to begin if a package is missing that an export needs."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(package, "export", PURPOSE)


def write_onnx(graph: PolicyGraph, path: Path) -> None:
    """Write the graph to one file that takes batches of any size."""
    onnx = import_extra("onnx", "export", PURPOSE)
    example = torch.zeros(2, *graph.policy.spaces.obs_column.shape)
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
    """Refuse a graph for batches of one size, which the exporter makes silently if the code asks for a length."""
    for value in (*model.graph.input, *model.graph.output):
        batch = value.type.tensor_type.shape.dim[0]
        if not batch.dim_param:
            raise ConfigError(
                f"the exported graph has batches of {batch.dim_value} only ({value.name}): the model or its encoder "
                "reads the size of the batch as a number; use obs.shape[0] in place of len(obs), and no fixed sizes"
            )


def _remove_traces(model: Any) -> None:
    """Remove the lines of code that nodes come from: they name folders of this machine."""
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's log and warnings."""
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
    in_onnxruntime = _median_time(lambda: session.run(None, {"obs": row}))
    with torch.no_grad():
        in_torch = _median_time(lambda: graph(tensor))
    return {"onnxruntime": in_onnxruntime, "torch": in_torch}


def _median_time(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(float(np.median(times)) * 1e6, 1)


def plain_arrays(policy: Policy, novelty: Novelty | None) -> tuple[dict[str, Any], str | None]:
    """The layers W0, b0, W1, b1, ... and the steps around them; nothing and the reason if the policy is not plain."""
    found = _network(policy.model)
    if isinstance(found, str):
        return {}, found
    network, head, outputs = found
    mlp = network.mlp
    encoder = network.encoder.encoder if isinstance(network.encoder, SkipMask) else network.encoder
    if type(mlp) is not MLP or not isinstance(encoder, VectorEncoder):
        return {}, "its network is more than a perceptron: it has an encoder, or normalises by the batch"
    if mlp.norm != "none":
        return {}, "its layers are normalised"
    names = [name for name, function in ACTIVATIONS.items() if function is mlp.activation]
    if not names:
        return {}, "its activation has no name"
    arrays: dict[str, Any] = {}
    for number, layer in enumerate(mlp.layers):
        # Some networks have outputs that the action does not depend on, such as a standard deviation.
        kept = outputs if number == len(mlp.layers) - 1 else slice(None)
        arrays |= {f"W{number}": _numpy(layer.weight[kept]), f"b{number}": _numpy(layer.bias[kept])}
    arrays |= {"activation": np.array(names[0]), "head": np.array(head)}
    arrays |= {"obs_mean": _numpy(policy.obs_mean), "obs_std": _numpy(policy.obs_std)}
    space = policy.spaces.action
    if isinstance(space, BoxActions):
        arrays |= {"low": np.array(space.low, dtype=np.float32), "high": np.array(space.high, dtype=np.float32)}
    else:
        arrays["start"] = np.array(space.start)
        arrays["masked"] = np.array(space.count if policy.spaces.is_masked else 0)
    if novelty is not None:
        arrays |= {"codebook": _numpy(novelty.codebook), "distance": _numpy(novelty.distance)}
        arrays |= {"novelty_mean": _numpy(novelty.mean), "novelty_std": _numpy(novelty.std)}
    return arrays, None


def _network(model: Model) -> tuple[Network, str, slice] | str:
    """The acting network, the operation on its outputs, and the outputs that the action depends on; or why not."""
    if type(model).act is MLPDQNModel.act and isinstance(model.critic, DiscreteCritic):
        if model.critic.num_quantiles is not None:
            return "its value is a mean of quantiles"
        # With `dueling`, the first output is the value of the state, which all actions share.
        return model.critic, "argmax", slice(1 if model.critic.dueling else 0, None)
    if model.acting != ("actor",):
        return "it selects among candidate actions"
    actor = model.actor
    if type(actor) is CategoricalActor:
        return actor, "argmax", slice(None)
    if type(actor) not in (DeterministicActor, TanhGaussianActor, GaussianActor):
        return f"there is no NumPy form of the actor {type(actor).__name__}"
    is_clipped = type(actor) is GaussianActor and not actor.squash_mean
    return actor, "clip" if is_clipped else "tanh", slice(model.action_dim)


def _numpy(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().numpy()
    return found
