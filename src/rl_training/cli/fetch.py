"""The command `fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.console import print_json
from rl_training.cli.options import JsonOption
from rl_training.importing import resume_command


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="An uploaded run: upload_url/name of the run directory.")],
    out: Annotated[Path, typer.Option(help="Folder in which the run directory is made.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Make the directory of an uploaded run again, on this machine; resume goes on with it."""
    from rl_training.runtime.upload import fetch_run

    run = fetch_run(url, out)
    if as_json:
        print_json({"run_dir": str(run)})
    else:
        print(run)
        print(f"go on with: {resume_command(run)}")
