"""What a dataset has beyond the plain transition, and a file must keep because reading would not find it again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.choices import MASKS
from rl_training.data.mapped_columns import chunks
from rl_training.data.offline_dataset import TransitionDataset


def further_fields(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    """These fields, by their names."""
    names = ["achieved_goals", "behavior_log_probs", "returns_to_go", "tail_rewards", "timestamps"]
    names += list(MASKS)
    names += [] if finds_next_actions(dataset) else ["next_actions", "next_action_mask"]
    found = {name: getattr(dataset, name, None) for name in names}
    return {name: value.numpy(force=True) for name, value in found.items() if value is not None}


def finds_next_actions(dataset: TransitionDataset) -> bool:
    """Whether the next actions are those of the next rows, as reading a log takes them."""
    if "next_actions" not in dataset.fields or dataset.next_action_mask is None:
        return True
    actions, following = (dataset.fields[name].numpy(force=True) for name in ("actions", "next_actions"))
    follows = ~dataset.episode_ends.numpy(force=True)
    is_known = follows | dataset.dones.bool().numpy(force=True)
    if not follows.any() or not np.array_equal(is_known, dataset.next_action_mask.numpy(force=True)):
        return False
    rows = len(dataset)
    return all(
        np.array_equal(actions[part.start + 1 : part.stop + 1], following[part.start : min(part.stop, rows - 1)])
        for part in chunks(rows)
    ) and np.array_equal(actions[-1:], following[-1:])
