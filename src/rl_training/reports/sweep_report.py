"""What is said below the table of a sweep: runs that are not done, all tasks put together, who is better than whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.reports.compare import (
    Improvement,
    compare_named,
    compare_two,
    put_together,
    score_rows,
    summary_over_tasks,
)
from rl_training.reports.runs import RunRecord, named_sweeps
from rl_training.reports.sweep_folder import SweepFolder, undone_text
from rl_training.reports.table import is_one_sweep


@dataclass(frozen=True)
class Findings:
    """What belongs to a table of runs."""

    sweeps: Sequence[SweepFolder]
    """The sweeps that the table is about."""
    over_tasks: Sequence[dict[str, Any]]
    """A row per combination over all tasks, where there are several and they can be put together."""
    note: str
    """Why they cannot be put together, or which combinations are left out."""
    improvements: Sequence[Improvement]

    @property
    def undone_lines(self) -> list[str]:
        """Which runs are not done, in words."""
        return [line for sweep in self.sweeps for line in undone_text(sweep)]

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "not_done": [{"sweep": str(sweep.path), **asdict(each)} for sweep in self.sweeps for each in sweep.undone],
            "over_tasks": list(self.over_tasks),
            "note": self.note,
            "improvements": [each.to_plain() for each in self.improvements],
        }


def find_out(
    names: Sequence[str | Path],
    records: Sequence[RunRecord],
    *,
    metrics: Sequence[str] = (),
    compare: tuple[str, str] | None = None,
) -> Findings | None:
    """What belongs to a table of these runs, found by these names; None where they are no sweep and none was asked for.

    Of one sweep, two combinations are compared without being asked for, where there are no more.
    """
    sweeps, is_sweep = named_sweeps(names, records), is_one_sweep(records)
    if not sweeps and not is_sweep and compare is None:
        return None
    rows = score_rows(records, metrics)
    together, note = put_together(rows) if is_sweep else (None, "")
    improvements = compare_named(rows, *compare) if compare is not None else compare_two(rows) if is_sweep else []
    return Findings(sweeps, [] if together is None else summary_over_tasks(together), note, improvements)
