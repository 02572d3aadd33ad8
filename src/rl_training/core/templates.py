"""HTML pages from the templates in `assets/page`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

FOLDER = Path(str(resources.files("rl_training"))) / "assets" / "page"


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
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(filters or {})
    templates.globals.update(helpers or {})
    return templates.get_template(name).render(values)
