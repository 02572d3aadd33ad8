"""Lambda returns of logged episodes: `rl_training.core.returns.lambda_returns` as fields of a dataset."""

from __future__ import annotations

from functools import partial

from rl_training.core.returns import Values, lambda_returns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay.sources import with_annotations


def with_lambda_returns(
    dataset: TransitionDataset, values: Values, *, gamma: float, td_lambda: float
) -> TransitionDataset:
    """The dataset with `lambda_returns`, and with `advantages` brought to mean 0 and standard deviation 1 over it."""
    compute = partial(lambda_returns, values=values, gamma=gamma, td_lambda=td_lambda)
    return with_annotations(dataset, compute, standardizes=("advantages",))
