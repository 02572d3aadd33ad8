"""The novelty of observations: how far they are from the training data of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.spaces import DiscreteActions
from rl_training.models import Novelty
from rl_training.policies.export.log import find_log, fit_log
from rl_training.policies.saved import SavedPolicy
from rl_training.storage import load_tree, run_of, save_tree

FAR = 2.0
"""The novelty from which an observation is named; one in twenty of the logged ones is above 1."""
CHUNK = 4096
PARTS = ("mean", "std", "codebook", "distance")


def find_novelty(saved: SavedPolicy, *, fit: bool, dataset: Any = None) -> Novelty | None:
    """The novelty score that the run keeps in novelty.pt; with `fit`, it is made from the run's data and kept there.

    A run that was given its `dataset` as an object needs it again.
    """
    path = None if saved.path is None else run_of(saved.path.resolve()) / "novelty.pt"
    if path is not None and path.is_file():
        return _read(path, saved)
    if not fit:
        return None
    log, why_not = find_log(saved, dataset)
    if log is None:
        raise ConfigError(f"there is no novelty score: {why_not}")
    novelty = fit_log(log, saved.policy)
    if path is not None and (path.parent / "checkpoints").is_dir():
        state = {name: getattr(novelty, name) for name in PARTS}
        save_tree(path, {"novelty": {**state, "choices": novelty.num_actions, "episodes": novelty.episodes}})
    return novelty


def _read(path: Path, saved: SavedPolicy) -> Novelty:
    """The score in a file, which must fit the sizes of the policy's observations and actions."""
    space, width = saved.spaces.action, saved.spaces.obs_dim
    state: Any = load_tree(path).get("novelty")
    shapes = {"mean": (width,), "std": (width,), "distance": ()}
    is_whole = isinstance(state, dict) and all(isinstance(state.get(name), torch.Tensor) for name in PARTS)
    if not is_whole or any(state[name].shape != shape for name, shape in shapes.items()):
        raise CheckpointError(f"{path} holds no novelty score of this policy: delete it, and use --novelty again")
    count = space.count if isinstance(space, DiscreteActions) else 0
    if state["codebook"].shape[1:] != (width + saved.spaces.action_dim,) or state.get("choices") != count:
        raise CheckpointError(f"{path} is for other observations or actions: delete it, and use --novelty again")
    parts = {name: state[name].float() for name in PARTS}
    return Novelty(**parts, num_actions=count, episodes=int(state.get("episodes") or 0))


@torch.no_grad()
def novelty_text(novelty: Novelty, saved: SavedPolicy, obs: Any, actions: NDArray[Any]) -> str | None:
    """The number of unfamiliar observations, and the most unfamiliar one, in words; None if there are none."""
    rows = torch.from_numpy(np.atleast_2d(saved.spaces.encode(obs)))
    column = saved.spaces.action.column
    native = torch.as_tensor(actions, dtype=column.torch_dtype).reshape(-1, *column.shape)
    encoded = saved.spaces.action.encode(native)
    parts = zip(torch.split(rows, CHUNK), torch.split(encoded, CHUNK), strict=True)
    found = torch.cat([novelty(*part) for part in parts]).nan_to_num(torch.inf)
    count = int((found > FAR).sum())
    if not count:
        return None
    worst = int(found.argmax())
    what = "1 observation is" if count == 1 else f"{count} of {len(found)} observations are"
    return (
        f"{what} far from the training data, the farthest in row {worst}: {float(found[worst]):.1f} times as far as "
        "logged ones usually are; the policy was not trained on such inputs: do not rely on its actions"
    )
