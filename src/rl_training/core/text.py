"""Numbers, counts, sizes, durations and lists as text for people, and HTML pages from templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

NOTHING = 1e-100
"""Below it, a number is what arithmetic leaves of 0."""
STEP_NAME = re.compile(r"(?:update|step)_(\d+)\.pt")
"""The names of numbered checkpoints, and of policy files."""
TEMPLATES = Path(str(resources.files("rl_training"))) / "assets" / "page"


def number_text(value: float) -> str:
    """A number with as many digits as one compares by."""
    if abs(value) < NOTHING:
        return "0"
    if not 10 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def interval_text(interval: Sequence[float] | None) -> str:
    """An interval, or a dash where there is none."""
    return "-" if interval is None else " to ".join(map(number_text, interval))


def value_text(value: Any) -> str:
    """A value as it stands in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def plural(count: int, noun: str) -> str:
    """A count and its noun, such as 2 runs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def size_text(count: int) -> str:
    """A number of bytes as disks are measured, in powers of 1000."""
    size, unit = count / 1e3, "kB"
    for larger in ("MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1e3, larger
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def memory_text(count: int) -> str:
    """A number of bytes as memory is measured, in powers of 1024."""
    return f"{count / 2**30:.1f} GiB"


def duration_text(seconds: float) -> str:
    """A duration as one says it, such as 1.7 minutes."""
    if seconds < 90:
        return plural(max(round(seconds), 1), "second")
    if seconds < 7200:
        return f"{seconds / 60:.1f} minutes" if seconds < 600 else f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"


def clock_text(seconds: float) -> str:
    """A duration as a clock shows it, such as 0:01:40."""
    return str(timedelta(seconds=round(seconds)))


def metrics_text(metrics: Mapping[str, float], names: Iterable[str], gap: str = "  ") -> str:
    """Those of these metrics that there are, such as `critic_loss 0.1235`."""
    return gap.join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)


def step_of_name(name: str) -> int | None:
    """The timestep in the name of a checkpoint or policy file; None where the name has another form."""
    found = STEP_NAME.fullmatch(name)
    return int(found[1]) if found else None


def fill_template(
    name: str,
    values: Mapping[str, Any],
    *,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    helpers: Mapping[str, Any] | None = None,
) -> str:
    """The text of a template filled with values, which are escaped; a name without a value is an error.

    `filters` and `helpers`, which are functions and constants, are known in all templates that this one includes.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(filters or {})
    templates.globals.update(helpers or {})
    return templates.get_template(name).render(values)
