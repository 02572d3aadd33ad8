"""Pages of the site that have their home outside docs/: the changelog, how to contribute, and security."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Files beside docs/, and the pages that they become."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, with links that lead to the other pages of the site."""
    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to the files lead to their pages."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name})", f"]({page})")
    return markdown
