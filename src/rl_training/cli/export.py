"""The command `export`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.display.console import print_json, print_table, working
from rl_training.cli.display.options import BestOption, ImportOption, JsonOption, QuietOption, RunArgument
from rl_training.cli.policies import load
from rl_training.core.text import plural

if TYPE_CHECKING:
    from rl_training.policies.export import Export

NO_REPORT = "Leave out the report on the run, report.html."
NO_NOVELTY = "Leave out the novelty score, which needs the data of the run."


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
    best: BestOption = False,
    no_novelty: Annotated[bool, typer.Option("--no-novelty", help=NO_NOVELTY)] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help=NO_REPORT)] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a trained policy as an ONNX file with description, check and report, for use without this package."""
    from rl_training.policies.export import export_policy
    from rl_training.reports import export_with_report
    from rl_training.storage import find_checkpoint

    path = find_checkpoint(run, name="best.pt" if best else "latest.pt")
    with working(quiet=quiet or as_json) as show:
        show(f"exporting {path}")
        write = export_policy if no_report else export_with_report
        result = write(load(path), out, novelty=not no_novelty)
    if as_json:
        print_json(result.to_plain())
    else:
        _print_result(result)


def _print_result(result: Export) -> None:
    """Print the files, their differences from the package, their speed, and what to do next."""
    policy, novelty, latency = (result.about[name] for name in ("policy", "novelty", "latency_us"))
    print(f"{result.path}: the policy of {policy['algorithm']} after {policy['step']} timesteps")
    print_table(["file", "kB"], [[name, f"{size / 1000:.1f}"] for name, size in result.sizes.items()])
    gaps = ", ".join(f"{name} {gap:.1e}" for name, gap in result.differences.items())
    print(f"largest differences from the package on the test vectors: {gaps}")
    if result.differing_rows:
        print(f"note: on {result.differing_rows} test vectors the exported policy broke a tie differently")
    times = f"{latency['onnxruntime']:.0f} µs in onnxruntime, {latency['torch']:.0f} µs in torch"
    print(f"one observation takes {times}")
    if novelty["available"]:
        episodes = plural(novelty["held_out_episodes"], "held-out episode")
        print(f"novelty was calibrated on {episodes}: above 1, an observation is unfamiliar")
    else:
        print(f"note: without novelty: {novelty['why_not']}")
    why_no_report = result.about.get("report", {}).get("why_not")
    if why_no_report is not None:
        print(f"note: without a report: {why_no_report}")
    print(f"Next: python {shlex.quote(str(result.path / 'check.py'))}")
