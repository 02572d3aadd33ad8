"""Rows of metrics in a text file, each with the identity of its run and a checksum."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.core.batches import Metrics
from rl_training.core.errors import CheckpointError

METRICS = "metrics.jsonl"

SEAL = re.compile(r'(?:, "run_id": "(?P<run>[0-9a-f]*)")?, "checksum": "(?P<sum>[0-9a-f]{8})"\}$')
"""The end of a line: the run, where it has an identity, and the checksum of all that stands before it."""


class MetricLine(NamedTuple):
    """A line of a file of metrics."""

    number: int
    text: bytes
    """The line as it is, with its end."""
    row: dict[str, Any] | None
    """The row without its seal; None if it is damaged."""
    problem: str = ""
    run_id: str | None = None


def encode_row(kind: str, metrics: Mapping[str, Any], run_id: str | None) -> bytes:
    """A row as a line of JSON; null stands for NaN, so that readers in any language can parse it."""
    row = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    text = json.dumps({"kind": kind, **row})[:-1]
    if run_id is not None:
        text += f', "run_id": "{run_id}"'
    return f'{text}, "checksum": "{_checksum(text)}"}}\n'.encode()


def read_lines(path: Path, run_id: str | None) -> list[MetricLine]:
    """All lines of a file of metrics, with the problems of damaged ones; none if there is no file.

    A file with rows of another run is refused; rows of earlier versions have no identity.
    """
    contents = path.read_bytes() if path.is_file() else b""
    lines = [_read_line(number, text) for number, text in enumerate(contents.splitlines(keepends=True), start=1)]
    for line in lines:
        if run_id is not None and line.run_id not in (None, run_id):
            other = f"belongs to another run ({line.run_id}, this one is {run_id})"
            advice = "put back the file of this run, or move this one away"
            raise CheckpointError(f"{path}, line {line.number}, {other}: {advice}")
    return lines


def describe_damage(path: Path, lines: list[MetricLine]) -> str:
    """The damaged lines of a file in a sentence; empty where there are none."""
    found = [f"line {line.number} {line.problem}" for line in lines if line.row is None]
    if not found:
        return ""
    more = f", and {len(found) - 5} more" if len(found) > 5 else ""
    return f"{path}: {', '.join(found[:5])}{more}"


def _read_line(number: int, text: bytes) -> MetricLine:
    try:
        row = _parse(text)
    except ValueError as error:
        return MetricLine(number, text, None, str(error))
    row.pop("checksum", None)
    return MetricLine(number, text, row, run_id=row.pop("run_id", None))


def _parse(text: bytes) -> dict[str, Any]:
    """The row in a line; ValueError with the problem if it is damaged."""
    if not text.endswith(b"\n"):
        raise ValueError("is torn")
    try:
        plain = text.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("is no text in UTF-8") from None
    if "\0" in plain:
        raise ValueError("has bytes that are zero")
    seal = SEAL.search(plain)
    if seal is not None and _checksum(plain[: seal.start("sum") - len(', "checksum": "')]) != seal["sum"]:
        raise ValueError("does not match its checksum")
    try:
        row = json.loads(plain)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    return row


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


class MetricWindow:
    """Averages of metrics between two log lines, each over the updates that produced it, summed on the device."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], tuple[Tensor, int]] = {}
        """Sums and counts of the metrics that updates report together."""

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one update without reading a number."""
        names, values, count = tuple(metrics), torch.stack(list(metrics.values())), 0
        if names in self.totals:
            sums, count = self.totals[names]
            # After a restart they are on the processor.
            values = sums.to(values.device).add_(values)
        self.totals[names] = values, count + 1

    def drain(self) -> dict[str, float]:
        """The averages since the last call."""
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, (values, count) in self.totals.items():
            for name, value in zip(names, values.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + count
        self.totals = {}
        return {name: total / counts[name] for name, total in totals.items()}

    def find_broken(self) -> str | None:
        """A metric that is not a finite number, if there is one."""
        for names, (values, _) in self.totals.items():
            for name, is_finite in zip(names, values.isfinite().tolist(), strict=True):
                if not is_finite:
                    return name
        return None

    def state_dict(self) -> list[Any]:
        """Sums and counts as plain values and tensors."""
        return [[list(names), values.clone(), count] for names, (values, count) in self.totals.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Restore what `state_dict` returned."""
        self.totals = {tuple(names): (values.clone(), count) for names, values, count in state}
