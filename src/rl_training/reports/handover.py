"""Export of a policy together with its report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError
from rl_training.core.files import write_text
from rl_training.policies import SavedPolicy
from rl_training.policies.export import Export, export_policy
from rl_training.reports.page.render import render
from rl_training.reports.page.write import report_content

REPORT = "report.html"
FOLDERS = re.compile(r"(?<![\w.~:])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'\"<>]+[/\\])+")
"""The folders of an absolute path."""


def export_with_report(
    saved: SavedPolicy,
    out: str | Path,
    *,
    dataset: Any = None,
    novelty: bool = True,
    remarks: Mapping[str, Any] | None = None,
    runs: Iterable[str | Path] | None = None,
    report: Mapping[str, Any] | None = None,
) -> Export:
    """Write a policy as `export_policy` does, with the report on it in the same folder, as report.html.

    The report is about the run of the policy, or about `runs` that include it. `report` are options of
    `report_content`. If no report can be made, policy.json says why, and the policy is exported without it.
    """
    options = {"dataset": dataset, "chosen": saved.path, **(report or {})}
    add = partial(_add_report, saved, Path(out).name, runs, options)
    return export_policy(saved, out, dataset=dataset, novelty=novelty, remarks=remarks, add=add)


def _add_report(
    saved: SavedPolicy, name: str, runs: Iterable[str | Path] | None, options: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Write the page into the folder of a policy, and return its entry in policy.json."""
    run = saved.run_dir
    if run is None:
        return _without("the policy does not come from a run directory")
    try:
        content = report_content([run] if runs is None else runs, bundle=folder, **options)
    except (UserError, OSError) as error:
        return _without(FOLDERS.sub("", str(error)))
    # The folder gets its name when everything is in it.
    content["handover"]["folder"] = name
    content["verdict"]["chosen"]["why"] = "it is the one in this folder"
    write_text(folder / REPORT, render(without_folders(content)))
    return {"report": {"available": True, "why_not": None}}


def _without(reason: str) -> dict[str, Any]:
    return {"report": {"available": False, "why_not": reason}}


def without_folders(value: Any) -> Any:
    """The content of a report with the names of files only, since folders of this machine mean nothing elsewhere."""
    if isinstance(value, str):
        return FOLDERS.sub("", value)
    if isinstance(value, Mapping):
        return {name: without_folders(each) for name, each in value.items()}
    return [without_folders(each) for each in value] if isinstance(value, list) else value
