"""What a run says about itself in `metadata.json`, checked when it is read for a report."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_training.storage.checkpoint_schema import first_mistake
from rl_training.storage.run_directory import read_json


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Finding(_Part):
    verdict: str
    message: str
    advice: str


class _Audit(_Part):
    findings: list[_Finding]
    accepted: bool


class _Data(_Part):
    audit: _Audit | None = None
    notes: list[str] = []
    rows: int | None = None
    episodes: int | None = None
    return_mean: float | None = None
    return_std: float | None = None
    step_times: dict[str, float | None] | None = None


class _Metadata(_Part):
    """The parts that a report shows."""

    command: list[str] | None = None
    versions: dict[str, str] | None = None
    subject: str | None = None
    data: _Data | None = None


def read_metadata(run: Path) -> dict[str, Any]:
    """What a run says about itself; nothing, with a warning, where that is not what `train` writes."""
    path = run / "metadata.json"
    values = read_json(path)
    try:
        _Metadata.model_validate(values)
    except ValidationError as error:
        warnings.warn(f"{path} is left out: {first_mistake(error)}", stacklevel=2)
        return {}
    return values
