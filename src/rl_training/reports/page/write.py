"""The report of runs as one self-contained page: `write_report`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError
from rl_training.core.files import write_json, write_text
from rl_training.core.text import first_of
from rl_training.reports.page import evidence, gather, render, verdict

FORMAT = 1


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
    pipeline: Mapping[str, Any] | None = None,
) -> gather.Plain:
    """The content of the page as plain values, with one key per section.

    `estimates` and `selection` are results of `estimate` and `select`, as files or plain values; by default the files
    beside the runs. `claim` are estimates on episodes that were not used for selection. `bundle` is a folder with an
    exported policy. `dataset` replaces the data that the runs name. `chosen` is the run that the report is about; by
    default the selected one, else the one with the highest estimate. `sentence` replaces the verdict's own. `pipeline`
    has the `audit` of a pipeline, the paths of the `parts` of its data, the name of the `part` that the dataset is, and
    those of its `episodes`.
    """
    material = gather.gather(
        runs, estimates=estimates, selection=selection, claim=claim, bundle=bundle, dataset=dataset, chosen=chosen
    )
    material = replace(material, pipeline=dict(pipeline or {}))
    subjects = list(dict.fromkeys(record.group[1] for record in material.records))
    content = {
        "format": FORMAT,
        "title": title or f"Policies for {first_of(subjects)}",
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
    write_json(out.with_suffix(".json"), content, indent=1)
    return content


def _plain(value: Any) -> Any:
    """Values as read back from a JSON file, which has no number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_page(path: Path) -> None:
    """Refuse a page of another kind, or in a missing folder."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--html {str(path)!r}: expected a file that ends with .html")
    if not path.parent.is_dir():
        raise ConfigError(f"--html {str(path)!r}: the folder {str(path.parent)!r} does not exist")
