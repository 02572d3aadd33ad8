"""The command `data audit`, and its report as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.display.console import print_json, print_table
from rl_training.cli.display.options import ImportOption, JsonOption, takes_columns
from rl_training.core.errors import ConfigError
from rl_training.core.files import write_text
from rl_training.core.text import fill_template

if TYPE_CHECKING:
    from rl_training.data import Audit
    from rl_training.data.audit import AuditFinding

MEANING = (
    "fail: the data is wrong, whatever it is about. warn: it looks wrong, or limits what can be learned; for some data "
    "it is right."
)
UNSEEN = (
    "The audit cannot see: hidden causes that change from row to row, rewards or sensors with a constant error, wrong "
    "actions that hardly move the next observation (more in docs/audit.md)."
)


@takes_columns
def audit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file of transitions, or the id of a Minari dataset.")],
    env: Annotated[str | None, typer.Option(help="Environment that tells the bounds of actions.")] = None,
    html: Annotated[str | None, typer.Option(help="Write the report as one page, a .html file.")] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
    *,
    columns: dict[str, Any] | None,
) -> None:
    """Check logged data for mistakes before training on it; the status is 1 if a check fails."""
    from rl_training.data import audit_data

    if html is not None and Path(html).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--html expects a file that ends with .html, got {html!r}")
    report = audit_data(data, env_id=env, columns=columns)
    if html is not None:
        write_text(Path(html), page(report))
    if as_json:
        print_json(report.to_plain())
    else:
        _print(report)
        if html is not None:
            print(f"report      {html}")
    raise typer.Exit(1 if report.verdict == "fail" else 0)


def _print(report: Audit) -> None:
    """Print all checks as a table, then every alarm: why it matters and what to do."""
    print_table(["check", "verdict", "finding"], [[each.check, each.verdict, each.message] for each in report.findings])
    for each in report.findings:
        if each.is_alarm:
            print(f"\n{each.verdict}: {each.check}")
            for name, text in _details(each).items():
                print(f"  {name:<12}{text}")
    print(f"\n{summary(report)}")
    if report.verdict != "pass":
        print(meaning(report))
    print(UNSEEN)


def _details(finding: AuditFinding) -> dict[str, str]:
    """The parts of a finding, by heading."""
    lines = {"what": finding.message, "why": finding.why, "what to do": finding.advice}
    if finding.rows:
        more = f", ... ({finding.count:,} in all)" if finding.count > len(finding.rows) else ""
        lines["rows"] = ", ".join(map(str, finding.rows)) + more
    return lines


def summary(report: Audit) -> str:
    """The verdict of a report in a sentence."""
    from rl_training.data.audit import count_verdicts

    counts = count_verdicts([each.verdict for each in report.findings])
    size = "" if report.rows is None else f" ({report.rows:,} rows)"
    return f"{report.source}{size}: {report.verdict}; {counts}"


def meaning(report: Audit) -> str:
    """The meaning of the verdicts and the row numbers of a report."""
    rows = "Rows are counted from 1, without the header." if report.first_row else "Rows are counted from 0."
    return f"{MEANING} {rows}"


def page(report: Audit) -> str:
    """The report as one self-contained page."""
    order = ("fail", "warn", "pass", "not checked")
    findings = [
        (each, {name: text for name, text in _details(each).items() if name != "what"} if each.is_alarm else {})
        for each in sorted(report.findings, key=lambda each: order.index(each.verdict))
    ]
    words = f"{meaning(report)} {UNSEEN}"
    about = {"report": report, "findings": findings, "summary": summary(report), "meaning": words}
    return fill_template("audit.html", about)
