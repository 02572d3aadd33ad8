"""Where a run is, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COUNTERS = (
    "global_step",
    "epoch",
    "update_count",
    "env_steps",
    "vector_steps",
    "idle_vector_steps",
    "stored",
    "online_updates",
    "event_step",
    "best_score",
    "best_step",
)


@dataclass
class TrainerState:
    """Where a run is. Callbacks read it, and end the run with `request_stop`."""

    algorithm: str = ""
    run_dir: Path = Path()
    total: int = 0
    global_step: int = 0
    """Timesteps: updates as long as the run only learns, and then steps of the environments."""
    epoch: int = 0
    update_count: int = 0
    env_steps: int = 0
    """Steps of the task, in all environments."""
    vector_steps: int = 0
    """Steps of all environments together."""
    idle_vector_steps: int = 0
    """Vector steps taken before learning started; they earn no updates."""
    stored: int = 0
    """Transitions ever added to the buffer."""
    online_updates: int = 0
    event_step: int = 0
    """The timestep at which events were last looked for."""
    should_stop: bool = False
    stop_reason: str | None = None
    interrupted: bool = False
    """Stopped from outside: a resumed run goes on, where one that stopped itself has ended."""
    notes: tuple[str, ...] = ()
    best_score: float | None = None
    best_step: int | None = None
    compiled: bool = False

    def request_stop(self, reason: str) -> None:
        """Ask the loop to end after the current update; the first reason wins."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    def interrupt(self, reason: str) -> None:
        """Ask the loop to end after the current update, for now."""
        self.interrupted = not self.should_stop
        self.request_stop(reason)

    def state_dict(self) -> dict[str, Any]:
        """The counters as plain values."""
        stop = {"should_stop": self.should_stop, "stop_reason": self.stop_reason}
        if self.interrupted:
            stop = {"should_stop": False, "stop_reason": None}
        return {name: getattr(self, name) for name in COUNTERS} | stop

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, value)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    interrupted: bool = False
    best_metrics: dict[str, float] = field(default_factory=dict)
    data_return: float | None = None
    """Mean return of the logged episodes, to compare the policy's with."""
    fine_tuning: dict[str, float] = field(default_factory=dict)
    """Of a run that went online: the offline score, the largest drop below it, and the regret."""
