"""The audit of data that is named by a file or an id, and the part of it that every training makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.core.errors import DatasetError
from rl_training.core.options import bind
from rl_training.core.spaces import ActionSpace
from rl_training.data.audit import CHEAP, CHECKS, check_data
from rl_training.data.audit.values import not_finite
from rl_training.data.audit.view import AuditFinding, Verdict, View, listed, worst
from rl_training.data.dataset_loaders import DataOptions, load_transition_dataset
from rl_training.data.fields import NotFiniteError
from rl_training.data.files.mapped import compare_mapped
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs import try_out


@dataclass(frozen=True)
class Audit:
    """The findings of the audit of one dataset."""

    source: str
    rows: int | None
    """None where the data could not be read."""
    episodes: int | None
    findings: tuple[AuditFinding, ...]
    first_row: int = 0
    """The number of the first row: 1 in a table."""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the worst finding."""
        return worst(self.findings)

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        findings = [finding.to_plain() for finding in self.findings]
        about = {"source": self.source, "rows": self.rows, "episodes": self.episodes, "first_row": self.first_row}
        return {**about, "verdict": self.verdict, "findings": findings}


def audit_data(
    source: str | Path | TransitionDataset, *, env_id: str | None = None, columns: Mapping[str, Any] | None = None
) -> Audit:
    """Every check on a file, a Minari dataset on this machine, or a dataset; an environment tells the bounds.

    `columns` say what the columns of a table mean, as the option `dataset_columns` does.
    """
    space = None if env_id is None else try_out(env_id, {}).spaces.action
    if isinstance(source, TransitionDataset):
        return _audit("the dataset", source, space, env_id)
    is_path = Path(source).exists() or Path(source).suffix != "" or isinstance(source, Path)
    named = {"dataset_path" if is_path or columns is not None else "dataset_id": str(source)}
    options: DataOptions = bind({**named, "dataset_columns": columns}, DataOptions)[0]
    if options.kind() == "mapped" and Path(source).is_dir():
        compare_mapped(Path(source))
    try:
        dataset = load_transition_dataset(options)
    except DatasetError as error:
        # Values that are not finite are found while the rest is read, and the reader adds the name of the file.
        inner = error if isinstance(error, NotFiniteError) else error.__context__
        if not isinstance(inner, NotFiniteError):
            raise
        return Audit(str(source), None, None, (not_finite(str(inner), inner.rows, inner.count),))
    return _audit(str(source), dataset, space, env_id)


def _audit(source: str, dataset: TransitionDataset, space: ActionSpace | None, env_id: str | None) -> Audit:
    view = View(dataset if space is None else dataset.with_actions_of(space, str(env_id)), space)
    episodes = len(view.lengths) if view.dataset.has_episodes else None
    first_row = 0 if view.dataset.origin.row_numbers is None else 1
    return Audit(source, view.rows, episodes, tuple(check_data(view, CHECKS)), first_row)


class TrainingAudit:
    """The cheap checks on each part of a run's data, as it was read."""

    def __init__(self, space: ActionSpace | None) -> None:
        self.space = space
        self.findings: list[AuditFinding] = []

    def inspect(self, part: TransitionDataset) -> None:
        """Check one part."""
        space = self.space if self.space is not None and part.has_actions_of(self.space) else None
        self.findings += check_data(View(part, space), CHEAP)

    def summary(self, *, accepted: bool) -> dict[str, Any]:
        """The findings that the run remembers; data that fails is refused unless the user accepts it."""
        failed = [finding for finding in self.findings if finding.verdict == "fail"]
        if failed and not accepted:
            texts = [f"{each.check}: {each.message} (rows {listed(each.rows)}); {each.advice}" for each in failed]
            ways = "see `rl-training data audit`; accept_audit: true (--accept-audit) trains on it all the same"
            raise DatasetError("\n  ".join(["the audit refuses the data", *texts, ways]))
        unusual = [finding.to_plain() for finding in self.findings if finding.is_alarm]
        return {"verdict": worst(self.findings), "accepted": bool(failed), "findings": unusual}
