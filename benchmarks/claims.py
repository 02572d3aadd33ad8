"""Whether what the package says is true: statements about logs of worlds whose truth it cannot see.

    python benchmarks/claims.py [--quick] [--only 'null-*' '*/pipeline'] [--rounds 3] [--workers 2]

`estimate`, `select`, `pipeline` and `tune` are asked about logs of `claims_worlds.py`, as `claims_cases.py` does. For
every statement, it is found out whether its verdict is right, and whether its interval covers the truth. The full size
takes about two hours on two cores, --quick about ten minutes.

Each case is kept in --folder as soon as it is done, and is not done again; another call continues. Results of other
code are refused. All statements are written to statements.csv of that folder, and a summary to
benchmarks/results/claims.md. The status is 1 if a case fails. ICU-Sepsis is skipped without the real datasets in
RL_TRAINING_DATA. Locomotion is not here: `fqe_locomotion.py` compares estimates with known values there, which takes
hours.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# The settings of threads are read when torch is imported, in the processes of this program too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims_cases import CANNOT, PLANS, REFUSED, ask
from claims_tables import IntensiveCare

import rl_training

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "claims.md"
BETTER, WORSE, SAME = "better", "worse", "not distinguishable"
MOST_FALSE, LEAST_COVERED = 0.05, 0.93
"""The bars."""
KINDS = {"best": "names the best", "by weights": "value only"}
"""Statements that are no verdicts."""
LIMITS = ("enough data", "coverage")
"""Checks of the audit that tell how much can be learned, not that something is wrong: they excuse no wrong verdict."""
MOST_SHOWN = 60
"""Wrong statements in the summary."""
Job = tuple[str, str, int]


@dataclass(frozen=True)
class Said:
    """A statement, the case it is from, and what became of it."""

    world: str
    kind: str
    seed: int
    is_null: bool
    warnings: tuple[str, ...]
    plain: dict[str, Any]

    @property
    def call(self) -> str:
        """The question."""
        return str(self.plain["call"])

    @property
    def front(self) -> str:
        """The command that was asked."""
        return self.call.partition(",")[0]

    @property
    def verdict(self) -> str:
        """Better, worse, not distinguishable or none."""
        said = str(self.plain["said"])
        return next((each for each in (BETTER, WORSE, SAME) if said.startswith(each)), "none")

    @property
    def is_refused(self) -> bool:
        """Whether nothing was said."""
        return self.plain["said"] in (CANNOT, REFUSED)

    @property
    def sign(self) -> int:
        """The sign of the true difference; 0 where there is none, or where rollouts cannot tell."""
        difference = self.plain["difference"] or 0.0
        return 0 if abs(difference) <= 2 * self.plain["error"] + 1e-9 else 1 if difference > 0 else -1

    @property
    def right(self) -> bool | None:
        """Whether the verdict is right; None where there is none, or where it is that nothing can be told."""
        if self.plain["said"] == "best":
            return self.sign >= 0
        return {BETTER: self.sign > 0, WORSE: self.sign < 0}.get(self.verdict)

    @property
    def is_reversed(self) -> bool:
        """Whether the opposite of the verdict is true."""
        return self.right is False and self.sign != 0 and self.plain["said"] != "best"

    @property
    def covered(self) -> bool | None:
        """Whether the interval has the true value in it; None without an interval that is meant."""
        interval, truth = self.plain["interval"], self.plain["truth"]
        if interval is None or truth is None or self.is_refused:
            return None
        return bool(interval[0] <= truth <= interval[1])

    @property
    def width(self) -> float | None:
        """The width of the interval, in standard deviations of logged returns."""
        if self.covered is None or not self.plain["spread"]:
            return None
        low, high = self.plain["interval"]
        return float((high - low) / self.plain["spread"])

    def row(self) -> dict[str, Any]:
        """Everything, as a row of a table."""
        outcome = {None: "", True: "yes", False: "no"}
        plain = {name: value for name, value in self.plain.items() if name != "reasons"}
        about = {"world": self.world, "kind": self.kind, "log": self.seed, "warnings": "; ".join(self.warnings)}
        found = {"right": outcome[self.right], "covered": outcome[self.covered], "width": self.width}
        return {**about, **plain, **found, "reasons": "; ".join(self.plain["reasons"])}


def code_mark() -> str:
    """The code of the package that is asked, and of the questions, as a short text."""
    source = Path(str(rl_training.__file__)).parent
    digest = hashlib.sha256()
    own = [Path(__file__).with_name(f"claims_{part}.py") for part in ("cases", "tables", "worlds")]
    for path in [*sorted(source.rglob("*.py")), *own]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def kept(folder: Path, job: Job) -> Path:
    """The file of a case."""
    return folder / f"{'__'.join(map(str, job))}.json"


def run_case(job: Job, folder: Path) -> float:
    """Do a case and keep what was said; the seconds of processors that it took."""
    began, work = sum(os.times()[:4]), folder / "work" / "__".join(map(str, job))
    shutil.rmtree(work, ignore_errors=True)
    found = ask(*job, work)
    seconds = sum(os.times()[:4]) - began
    path = kept(folder, job)
    path.with_suffix(".part").write_text(json.dumps({**found, "seconds": seconds}) + "\n", encoding="utf-8")
    path.with_suffix(".part").rename(path)
    shutil.rmtree(work, ignore_errors=True)
    return seconds


def jobs_of(only: Sequence[str], rounds: int | None, *, quick: bool) -> list[Job]:
    """The cases, one log of everything first."""
    found = []
    for world, plan in PLANS.items():
        if world == "icu-sepsis" and not IntensiveCare.data().exists():
            print(f"{world} is skipped: there is no {IntensiveCare.data()}")
            continue
        for kind, counts in plan.rounds.items():
            count = counts[quick] if rounds is None else min(rounds, counts[0])
            if any(fnmatch(f"{world}/{kind}", each) or fnmatch(world, each) for each in only):
                found += [(world, kind, seed) for seed in range(count)]
    return sorted(found, key=lambda job: job[2])


def do_missing(jobs: Sequence[Job], folder: Path, workers: int) -> list[str]:
    """Do the cases that are not kept; what failed."""
    missing = [job for job in jobs if not kept(folder, job).exists()]
    print(f"{len(jobs)} cases, of which {len(jobs) - len(missing)} are done", flush=True)
    failed = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(run_case, job, folder): job for job in missing}
        try:
            for number, future in enumerate(as_completed(pending), start=1):
                name = "/".join(map(str, pending[future]))
                error = future.exception()
                if error is None:
                    print(f"{number} of {len(missing)}: {name}, {future.result():.0f} s", flush=True)
                else:
                    failed.append(f"{name}: {type(error).__name__}: {error}")
                    print(f"{number} of {len(missing)}: FAILED {failed[-1]}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def said_in(case: Mapping[str, Any]) -> list[Said]:
    """The statements of a case."""
    warnings = tuple(each for each in case["warnings"] if not each.startswith(LIMITS))
    about = case["world"], case["kind"], case["seed"], case["is_null"], warnings
    return [Said(*about, each) for each in case["statements"]]


def read_all(folder: Path) -> list[Said]:
    """All statements that are kept, in the order of the worlds."""
    cases = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*__*.json")]
    order = list(PLANS)
    ordered = sorted(cases, key=lambda each: (order.index(each["world"]), each["kind"], each["seed"]))
    return [each for case in ordered for each in said_in(case)]


def calls_of(said: Iterable[Said]) -> dict[tuple[str, str, int], list[Said]]:
    """Statements by call: what one call says about several policies is one family."""
    found = defaultdict(list)
    for each in said:
        if each.plain["said"] not in KINDS:
            found[each.world, each.call, each.seed].append(each)
    return found


def share_text(part: int, whole: int) -> str:
    """A count with its share."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def count_false(calls: Collection[Sequence[Said]]) -> int:
    """The calls that say better of any policy; where actions change nothing, that is false."""
    return sum(any(each.verdict == BETTER for each in call) for call in calls)


def false_row(name: str, said: Iterable[Said]) -> str:
    """How often something was called better where actions change nothing."""
    calls = calls_of(said).values()
    false = count_false(calls)
    spoken = sum(any(not each.is_refused for each in call) for call in calls)
    return f"| {name} | {share_text(false, len(calls))} | {spoken} |" if calls else ""


def covered_row(name: str, said: Sequence[Said]) -> str:
    """How often intervals have the truth in them."""
    found = [each.covered for each in said if each.covered is not None]
    plain = [each.covered for each in said if each.covered is not None and not each.warnings]
    return f"| {name} | {share_text(sum(found), len(found))} | {share_text(sum(plain), len(plain))} |"


OWN, OTHERS = "policies that the log itself made", "all others"


def is_own(each: Said) -> bool:
    """Whether it is about policies that the log itself trained or chose, asked for by hand."""
    return "its own" in each.call


def summary(said: Sequence[Said]) -> list[str]:
    """The bars, and whether they are met."""
    null = [each for each in said if each.is_null]
    calls = calls_of(null).values()
    false = count_false(calls)
    reversed_ = [each for each in said if each.is_reversed and not each.warnings]
    without = [each for each in said if each.right is False and each.sign == 0 and not each.is_null]
    stated = [each.covered for each in said if each.covered is not None]
    refused = sum(each.is_refused for each in said)
    best = [each.right is True for each in said if each.plain["said"] == "best"]

    def line(text: str, is_met: bool, bar: str) -> str:
        return f"- {text} (bar: {bar}): **{'met' if is_met else 'NOT MET'}**"

    return [
        line(
            f'False "better" where actions change nothing: {share_text(false, len(calls))} calls',
            bool(calls) and false <= MOST_FALSE * len(calls),
            "5 %",
        ),
        line(f"Verdicts of the wrong sign on logs without a warning: {len(reversed_)}", not reversed_, "0"),
        line(
            f"Intervals that cover the truth: {share_text(sum(stated), len(stated))}",
            bool(stated) and sum(stated) >= LEAST_COVERED * len(stated),
            "93 %",
        ),
        f"- Refusals: {share_text(refused, len(said))} statements.",
        f"- Better or worse where there is no difference, outside null worlds: {len(without)}.",
        f"- The truly best of the judged policies is among those called best: {share_text(sum(best), len(best))}.",
    ]


def grouped(said: Iterable[Said], key: Callable[[Said], str]) -> dict[str, list[Said]]:
    """Statements by a key, in the order in which it comes up."""
    found: dict[str, list[Said]] = {}
    for each in said:
        found.setdefault(key(each), []).append(each)
    return found


def world_row(world: str, call: str, said: Sequence[Said]) -> str:
    """One question about the logs of one world."""
    logs, warned = {each.seed for each in said}, {each.seed for each in said if each.warnings}
    counts = Counter("refused" if each.is_refused else each.verdict for each in said)
    wrong, reversed_ = sum(each.right is False for each in said), sum(each.is_reversed for each in said)
    covered = [each.covered for each in said if each.covered is not None]
    widths = [each.width for each in said if each.width is not None]
    width = f"{sum(widths) / len(widths):.2f}" if widths else "-"
    verdicts = " / ".join(str(counts[name]) for name in (BETTER, WORSE, SAME, "refused"))
    if said[0].plain["said"] in KINDS:
        verdicts = KINDS[said[0].plain["said"]]
    wrongs = f"{wrong}{f', {reversed_} reversed' if reversed_ else ''}" if wrong else "-"
    inside = f"{sum(covered)} of {len(covered)}" if covered else "-"
    return f"| {world} | {call} | {len(logs)} ({len(warned)}) | {verdicts} | {wrongs} | {inside} | {width} |"


def wrong_row(each: Said) -> str:
    """A wrong statement."""
    plain = each.plain
    value = (
        ""
        if plain["value"] is None or plain["interval"] is None
        else f", {plain['value']:.4g} " + ("({:.4g} to {:.4g})".format(*plain["interval"]))
    )
    truth = "" if plain["truth"] is None else f"{plain['truth']:.4g}, "
    warned = "; ".join(each.warnings) or "-"
    said = f"{plain['subject']}: {plain['said']}{value}"
    return (
        f"| {each.world} {each.seed} | {each.call} | {said} | {truth}difference {plain['difference']:+.4g} | {warned} |"
    )


def report(said: Sequence[Said], mark: str) -> str:
    """The summary as a page."""
    null = [each for each in said if each.is_null]
    wrong = [each for each in said if each.right is False]
    wrong.sort(key=lambda each: (not each.is_reversed, bool(each.warnings), each.is_null))
    reasons = Counter(
        re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", (each.plain["reasons"] or ["no reason"])[0])
        for each in said
        if each.is_refused
    )
    warnings = Counter((each.world, each.seed, name) for each in said for name in set(each.warnings))
    alarms = Counter(f"{world}: {name}" for world, _, name in warnings)
    parts = [
        "# Claims against truths that the package cannot see",
        "Written by `make claims` (`benchmarks/claims.py`), which says what is asked. A call is false if it calls any "
        f"policy better where actions change nothing. Code {mark}; {len(said):,} statements. Locomotion has a "
        "benchmark of its own, `benchmarks/fqe_locomotion.py`.",
        "\n".join(summary(said)),
        '## False "better" in null worlds',
        "| Asked | False | Calls with a verdict |\n| --- | --- | --- |",
        [false_row("**all**", null)],
        [false_row(OWN, [each for each in null if is_own(each)])],
        [false_row(OTHERS, [each for each in null if not is_own(each)])],
        [false_row(name, each) for name, each in grouped(null, lambda each: each.front).items()],
        [false_row(f"{world}: {call}", each) for (world, call), each in by_question(null).items()],
        "## Coverage of 95 % intervals",
        "| Asked | All logs | Logs without a warning |\n| --- | --- | --- |",
        [covered_row("**all**", said)],
        [covered_row(OWN, [each for each in said if is_own(each)])],
        [covered_row(OTHERS, [each for each in said if not is_own(each)])],
        [covered_row(name, each) for name, each in grouped(said, lambda each: each.front).items()],
        "## By world",
        "Logs: how many, and in brackets those with a warning of the audit. Verdicts: better / worse / not "
        "distinguishable / refused. Wrong: of the wrong sign (reversed), or where there is no difference. Width: mean, "
        "in standard deviations of logged returns.",
        "| World | Asked | Logs | Verdicts | Wrong | Covered | Width |\n| --- | --- | --- | --- | --- | --- | --- |",
        [world_row(world, call, each) for (world, call), each in by_question(said).items()],
        f"## Wrong statements\n\n{len(wrong)} in all; reversed ones first, then those on logs without a warning"
        + (f". The first {MOST_SHOWN}:" if len(wrong) > MOST_SHOWN else "."),
        "| Log | Asked | Said | True | Warnings |\n| --- | --- | --- | --- | --- |",
        [wrong_row(each) for each in wrong[:MOST_SHOWN]],
        "## Refusals",
        "| Count | First reason |\n| --- | --- |",
        [f"| {count} | {reason} |" for reason, count in reasons.most_common()],
        "## Warnings of the audit",
        "| World and check | Logs |\n| --- | --- |",
        [f"| {name} | {count} |" for name, count in sorted(alarms.items())],
    ]
    # Rows follow the head of their table.
    texts = ["\n".join(filter(None, part)) if isinstance(part, list) else f"\n{part}" for part in parts]
    return "\n".join(filter(None, texts)).strip() + "\n"


def by_question(said: Iterable[Said]) -> dict[tuple[str, str], list[Said]]:
    """Statements by world and question."""
    found: dict[tuple[str, str], list[Said]] = {}
    for each in said:
        found.setdefault((each.world, each.call), []).append(each)
    return found


def main() -> int:
    """Do what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few logs of everything: about ten minutes")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="worlds, or world/question")
    parser.add_argument("--rounds", type=int, help="the most logs of a case")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "claims", help="where cases are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the summary")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    mark, marked = code_mark(), args.folder / "code.txt"
    if marked.exists() and marked.read_text(encoding="utf-8") != mark:
        print(f"error: {args.folder} has results of other code; remove it, or name another --folder", file=sys.stderr)
        return 2
    marked.write_text(mark, encoding="utf-8")
    failed = do_missing(jobs_of(args.only, args.rounds, quick=args.quick), args.folder.resolve(), args.workers)
    said = read_all(args.folder)
    if said:
        with (args.folder / "statements.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(said[0].row()))
            table.writeheader()
            table.writerows(each.row() for each in said)
        args.out.write_text(report(said, mark), encoding="utf-8")
        print("\n".join(summary(said)))
        print(f"all statements: {args.folder / 'statements.csv'}; summary: {args.out}")
    for each in failed:
        print(each, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
