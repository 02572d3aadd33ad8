"""The state of a run as one tree: what a checkpoint contains, and how a run continues from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import load_networks
from rl_training.runtime.session import Session


def _named_callbacks(session: Session) -> list[tuple[str, Callback]]:
    """Callbacks under the names of their classes; several of one class are numbered."""
    kinds = [type(callback).__name__ for callback in session.callbacks]
    return [(f"{kind}{kinds[:k].count(kind) or ''}", session.callbacks[k]) for k, kind in enumerate(kinds)]


def session_tree(session: Session) -> dict[str, Any]:
    """The complete state of the run: tensors and plain values only.

    Rows of the replay buffer are not part of it. It names the files they are in, as of the last `store.save()`.
    """
    return {
        "config": session.config.to_plain(),
        "spaces": session.spaces.to_plain(),
        "algorithm": session.algorithm.state_dict(),
        "source": session.source.state_dict(),
        "replay": [] if session.store is None else [list(span) for span in session.store.spans],
        "collector": None if session.collector is None else session.collector.state_dict(),
        "trainer": {
            "state": session.state.state_dict(),
            "window": session.window.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in _named_callbacks(session)},
            "last_metrics": session.last_metrics,
            "best_metrics": session.best_metrics,
            "fine_tuning": None if session.fine_tuning is None else session.fine_tuning.state_dict(),
            "horizon": session.horizon,
            "fingerprint": session.fingerprint,
            "rewards": session.rewards,
        },
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        },
        "machine": {
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "compiled": session.state.compiled,
        },
    }


def load_session(session: Session, tree: Mapping[str, Any]) -> None:
    """Continue from what `session_tree` returned."""
    trainer = tree["trainer"]
    load_networks(session.algorithm, tree, what="the checkpoint")
    # A source may compute fields with the networks, so these come first. The buffer's counters are part of the
    # source's state and say how many rows the store has to bring back, so the rows come last.
    session.source.load_state_dict(tree["source"])
    if session.store is not None:
        session.store.load(tree["replay"])
    session.state.load_state_dict(trainer["state"])
    session.saved = session.state.update_count, session.state.env_steps
    if session.fine_tuning is not None:
        session.fine_tuning.load_state_dict(trainer["fine_tuning"])
    session.window.load_state_dict(trainer["window"])
    for name, callback in _named_callbacks(session):
        # A callback may be new to the run; then there is nothing to restore.
        if name in trainer["callbacks"]:
            callback.load_state_dict(trainer["callbacks"][name])
    session.last_metrics, session.best_metrics = dict(trainer["last_metrics"]), dict(trainer["best_metrics"])
    session.horizon = trainer["horizon"]
    session.algorithm.set_online_share(session.online_share(session.state.online_updates))
    if session.collector is not None and not session.collector.load_state_dict(tree["collector"]):
        note = f"the state of {session.config.env_id} cannot be saved: the run goes on with new episodes"
        session.state.notes = (*session.state.notes, note)
    session.mark_time()
    torch.set_rng_state(tree["random"]["torch"])
    if torch.cuda.is_available() and tree["random"]["cuda"]:
        torch.cuda.set_rng_state_all(tree["random"]["cuda"])
