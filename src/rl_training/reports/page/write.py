"""The report of runs as one page that needs no other file: `write_report`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError
from rl_training.core.files import write_text
from rl_training.reports.page import evidence, gather, render, verdict

__all__ = ["check_page", "report_content", "write_report"]

FORMAT = 1
MOST_NAMED = 3
"""Tasks that a title names."""


def report_content(
    runs: str | Path | Iterable[str | Path],
    *,
    estimates: Mapping[str, Any] | str | Path | None = None,
    selection: Mapping[str, Any] | str | Path | None = None,
    claim: Mapping[str, Any] | str | Path | None = None,
    bundle: str | Path | None = None,
    dataset: Any = None,
    chosen: str | Path | None = None,
    title: str | None = None,
    sentence: str | None = None,
) -> gather.Plain:
    """Everything that the page shows, as plain values under one key per section.

    `estimates` and `selection` are what the commands of these names found, as files or plain values; by default those
    that lie beside the runs. `claim` are estimates by episodes that had no part in the choice. `bundle` is a folder
    with an exported policy. `dataset` takes the place of the data that the runs name. `chosen` is the run that the
    report is about; by default the selected one, else the one with the highest estimate. `sentence` replaces the
    verdict's own.
    """
    material = gather.gather(
        runs, estimates=estimates, selection=selection, claim=claim, bundle=bundle, dataset=dataset, chosen=chosen
    )
    subjects = list(dict.fromkeys(record.group[1] for record in material.records))
    more = f" and {len(subjects) - MOST_NAMED} more" if len(subjects) > MOST_NAMED else ""
    content = {
        "format": FORMAT,
        "title": title or f"Policies for {', '.join(subjects[:MOST_NAMED])}{more}",
        "verdict": verdict.verdict(material, sentence),
        "candidates": verdict.candidates(material),
        "log": evidence.log(material),
        "controls": verdict.controls(material),
        "agreement": verdict.agreement(material),
        "weights": verdict.weights(material),
        "risk": evidence.risk(material),
        "behavior": evidence.behavior(material),
        "training": evidence.training(material),
        "real_episodes": evidence.real_episodes(material),
        "handover": evidence.handover(material),
        "limits": evidence.limits(material),
    }
    found: gather.Plain = _plain(content)
    return found


def write_report(
    runs: str | Path | Iterable[str | Path], out: str | Path, *, title: str | None = None, **options: Any
) -> gather.Plain:
    """Write the report of runs to a `.html` file and its content to the `.json` file beside it; the content.

    `options` are those of `report_content`.
    """
    out = Path(out)
    check_page(out)
    content = report_content(runs, title=title, **options)
    write_text(out, render.render(content))
    write_text(out.with_suffix(".json"), json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content


def _plain(value: Any) -> Any:
    """Values as a JSON file gives them back; it has no word for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_page(path: Path) -> None:
    """Refuse a page of another kind, or in a folder that is not there."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--html {str(path)!r}: expected a file that ends with .html")
    if not path.parent.is_dir():
        raise ConfigError(f"--html {str(path)!r}: the folder {str(path.parent)!r} does not exist")
