"""Material of a report: runs with display names, their estimates, and the evaluation data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError, UserError, nearest
from rl_training.core.text import step_of_name
from rl_training.ope import among_the_best
from rl_training.policies import SavedPolicy, load_policy
from rl_training.reports.runs import ALGORITHM, RunRecord, named_sweeps, read_runs, undone_text
from rl_training.reports.table import options_that_differ
from rl_training.selection import (
    ESTIMATES_FILE,
    EvaluationData,
    check_estimates,
    check_selection,
    data_given,
    data_of_runs,
)
from rl_training.storage import read_json, run_of

Plain = dict[str, Any]

SAME_FIT = ("source", "gamma", "kappa", "episodes", "rows", "logged_value", "behavior_value")
"""Fields that are equal in comparable estimates."""
RETURN = "return_mean"
SELECTION = "selection.json"
"""The result of the command `select`, in the folder of the runs."""
NAMED = re.compile(r"(?P<algo>.+?)__(?P<subject>.+)__seed(?P<seed>\d+)__\d{8}-\d{6}(-\d+)?")
"""The default name of a run."""


@dataclass(frozen=True)
class Subject:
    """The policy that a report is about."""

    run: Path | None = None
    policy: str | None = None
    """Its name among the estimates."""
    why: str = ""
    file: Path | None = None
    """Its file, if the user named it."""


@dataclass(frozen=True, eq=False)
class Material:
    """Input of all sections."""

    records: list[RunRecord]
    names: dict[Path, str]
    """Display names of the runs."""
    estimates: Plain | None
    """Estimates made together, as in `estimate.json`, of all policies in the report."""
    policies: dict[str, Path]
    """The run of each policy with a full or rough estimate, by the policy's own name."""
    selection: Plain | None
    claim: Plain | None
    """The claim about the chosen policy: on episodes not used for selection."""
    bundle: Path | None
    choice: Subject
    saved: SavedPolicy | None
    data: EvaluationData | None
    why_no_data: str
    notes: list[str] = field(default_factory=list)
    pipeline: Plain = field(default_factory=dict)
    """The audit of a pipeline and the parts of its data, as in `report_content`; empty for other runs."""

    def name_of(self, policy: Mapping[str, Any]) -> str:
        """The display name of an estimated policy, with its timestep if the run has several of them."""
        record = next((each for each in self.records if each.path == self.policies.get(policy["name"])), None)
        if record is None:
            # A policy of another run, estimated by its file; others have names of their own.
            file = Path(str(policy["name"]))
            return f"{run_of(file).name} {which_checkpoint(str(file), None)}" if file.suffix == ".pt" else str(file)
        name, is_one_of_several = self.names[record.path], list(self.policies.values()).count(record.path) > 1
        return f"{name} {which_checkpoint(policy['path'], record)}" if is_one_of_several else name

    @property
    def chosen_name(self) -> str | None:
        """The display name of the policy that the report is about."""
        if self.choice.run is None:
            return None
        policies = () if self.estimates is None else self.estimates["policies"]
        own = next((self.name_of(each) for each in policies if each["name"] == self.choice.policy), None)
        return own or self.names[self.choice.run]


def gather(
    runs: str | Path | Iterable[str | Path],
    *,
    estimates: Mapping[str, Any] | str | Path | None = None,
    selection: Mapping[str, Any] | str | Path | None = None,
    claim: Mapping[str, Any] | str | Path | None = None,
    bundle: str | Path | None = None,
    dataset: Any = None,
    chosen: str | Path | None = None,
) -> Material:
    """Read the material of a report on these runs."""
    given = [runs] if isinstance(runs, (str, Path)) else list(runs)
    records = read_runs(given)
    notes = [line for sweep in named_sweeps(given, records) for line in undone_text(sweep)]
    picked = _stored_selection(records) if selection is None else _read(selection, check_selection)
    if estimates is not None:
        found: Plain | None = _read(estimates, check_estimates)
    else:
        found = picked["estimates"] if picked else _stored_estimates(records, notes)
    # Candidates that a rough estimate left out are policies too.
    estimated = [*(found["policies"] if found else []), *(picked["candidates"] if picked else [])]
    policies = runs_of(estimated, records)
    choice = _choose(records, found, policies, picked, chosen)
    saved = _policy(_checkpoint(found, choice) or records[0].path, notes)
    data, why_no_data = _log(saved, source_file(found) if dataset is None else dataset, is_given=dataset is not None)
    if bundle is not None and not read_json(Path(bundle) / "policy.json"):
        raise ConfigError(f"{str(bundle)!r} is not an exported policy: it has no policy.json")
    return Material(
        records=records,
        names=display_names(records),
        estimates=found,
        policies=policies,
        selection=picked,
        claim=_claim(None if claim is None else _read(claim, check_estimates), picked, choice),
        bundle=None if bundle is None else Path(bundle),
        choice=choice,
        saved=saved,
        data=data,
        why_no_data=why_no_data,
        notes=notes,
    )


def pick(found: Mapping[str, Any], *names: str) -> Plain:
    """Some of the values of a mapping."""
    return {name: found[name] for name in names}


def _read(given: Mapping[str, Any] | str | Path, check: Callable[[Mapping[str, Any], str], Plain]) -> Plain:
    """Plain values, or those in a file."""
    if isinstance(given, Mapping):
        return check(given, "the given value")
    if not Path(given).is_file():
        raise ConfigError(f"{str(given)!r} does not exist")
    return check(read_json(Path(given)), repr(str(given)))


def _stored_estimates(records: Sequence[RunRecord], notes: list[str]) -> Plain | None:
    """The estimates in the runs' own files; of several groups that were estimated together, the largest."""
    groups: dict[tuple[Any, ...], list[Plain]] = {}
    for record in records:
        stored = read_json(record.path / ESTIMATES_FILE)
        if stored.get("policies"):
            stored = check_estimates(stored, repr(str(record.path / ESTIMATES_FILE)))
            groups.setdefault(tuple(stored.get(name) for name in SAME_FIT), []).append(stored)
    if not groups:
        return None
    largest = max(groups.values(), key=len)
    policies = [each for stored in largest for each in stored["policies"]]
    if left_out := sum(map(len, groups.values())) - len(largest):
        why = "were estimated separately, and cannot be compared with the others"
        notes.append(f"{left_out} of the runs {why}: estimate all of them in one command")
    # The report may have only some of the estimated runs, so that the best of these are determined again.
    known = [each for each in policies if not each["reasons"]]
    values = {each["name"]: np.array([each["raw_value"], *each["members"]]) for each in known}
    best = among_the_best(values, {each["name"]: each["fit_error"] for each in known})
    weighted = [each for stored in largest for each in stored.get("weighted") or ()]
    return {**largest[0], "policies": policies, "best": best, "weighted": weighted}


def _stored_selection(records: Sequence[RunRecord]) -> Plain | None:
    """The selection in the folder of the runs, if it chose one of these."""
    folders = dict.fromkeys(folder for record in records for folder in (record.path, record.path.parent))
    for folder in folders:
        stored = read_json(folder / SELECTION)
        if stored.get("estimates"):
            stored = check_selection(stored, repr(str(folder / SELECTION)))
            if stored["chosen"] in runs_of(stored["candidates"], records):
                return stored
    return None


def _claim(given: Plain | None, selection: Plain | None, choice: Subject) -> Plain | None:
    """The claim about the chosen policy; None without a claim about it."""
    if given is not None:
        basis = "held-out episodes" if given["is_held_out"] else given["relation"]
        about = {"basis": basis, **pick(given, "episodes", "logged_value")}
        return next(({**each, **about} for each in given["policies"] if each["name"] == choice.policy), None)
    found = None if selection is None else selection.get("claim")
    if not found or found["name"] != choice.policy:
        return None
    logged = None if found["value"] is None else found["value"] - found["difference"]
    return {**found, "logged_value": logged}


def runs_of(policies: Sequence[Mapping[str, Any]], records: Sequence[RunRecord]) -> dict[str, Path]:
    """The run of each policy, where it is one of these."""
    by_place = {record.path.resolve(): record.path for record in records}
    by_name = {record.path.name: record.path for record in records}
    found = {}
    for each in policies:
        place = each.get("path")
        run = None if place is None else run_of(place)
        if run is not None and (run.resolve() in by_place or run.name in by_name):
            found[each["name"]] = by_place.get(run.resolve(), by_name.get(run.name, run))
    return found


def _choose(
    records: Sequence[RunRecord],
    estimates: Plain | None,
    policies: Mapping[str, Path],
    selection: Plain | None,
    named: str | Path | None,
) -> Subject:
    """The policy that the report is about, and why it is this one."""
    if named is not None:
        record = _named_run(records, named)
        file = Path(named) if Path(named).is_file() else None
        return Subject(record.path, _policy_of(estimates, policies, record, file or named), "it was named", file)
    picked = selection or {}
    if (name := picked.get("chosen")) in policies:
        how = "with real episodes" if picked.get("pulls") else "by the log"
        return Subject(policies[str(name)], name, f"it was chosen {how}")
    for name in () if estimates is None else estimates["best"]:
        if name in policies:
            return Subject(policies[name], name, "it has the highest estimate")
    if len(records) == 1:
        run = records[0].path
        return Subject(run, _policy_of(estimates, policies, records[0], run), "it is the only one")
    scores = {record.path: curve[-1][1] for record in records if (curve := record.curve(RETURN))}
    if scores and estimates is None:
        return Subject(max(scores, key=lambda run: scores[run]), None, "it has the highest return in its environment")
    return Subject()


def _policy_of(
    estimates: Plain | None, policies: Mapping[str, Path], record: RunRecord, named: str | Path
) -> str | None:
    """The name under which a run's policy was estimated; of several, the named one.

    Where a file is named, it is the policy in this file or none: other checkpoints of the run are other policies.
    """
    found = () if estimates is None else estimates["policies"]
    own = [each for each in found if policies.get(each["name"]) == record.path]
    if Path(named).is_file():
        return next((each["name"] for each in own if is_same_policy(each["path"], named, record)), None)
    exact = [each for each in own if str(named) in (each["name"], each.get("path"))]
    return next((each["name"] for each in [*exact, *own]), None)


def _checkpoint(estimates: Plain | None, choice: Subject) -> Path | None:
    """The file of the chosen policy, if it is still where it was estimated, else its run."""
    for each in () if estimates is None else estimates["policies"]:
        if each["name"] == choice.policy and each.get("path") and Path(each["path"]).is_file():
            return Path(each["path"])
    return choice.file or choice.run


def _named_run(records: Sequence[RunRecord], name: str | Path) -> RunRecord:
    """The run with this path, checkpoint or folder name."""
    places = {each.resolve() for each in (Path(name), *Path(name).parents)}
    for record in records:
        if record.path.name == str(name) or record.path.resolve() in places:
            return record
    names = [record.path.name for record in records]
    raise ConfigError(f"{str(name)!r} is none of the runs of the report{nearest(str(name), names)}")


def _policy(run: Path, notes: list[str]) -> SavedPolicy | None:
    try:
        return load_policy(run)
    except (UserError, OSError) as error:
        notes.append(f"the policy of {run.name} cannot be loaded: {error}")
        return None


def source_file(estimates: Plain | None) -> str | None:
    """The file with the evaluation data, if it was not the runs' own data."""
    source = "" if estimates is None else str(estimates["source"])
    return source if Path(source).suffix and Path(source).exists() else None


def _log(saved: SavedPolicy | None, dataset: Any, *, is_given: bool) -> tuple[EvaluationData | None, str]:
    """All episodes of the log of a policy's run, or another log; without one, the reason."""
    if saved is None:
        return None, "no policy could be loaded"
    try:
        return (data_of_runs([saved], "all") if dataset is None else data_given(dataset, [saved])), ""
    except (UserError, OSError) as error:
        if is_given:
            raise
        return None, str(error)


def display_names(records: Sequence[RunRecord]) -> dict[Path, str]:
    """Unique names of runs: algorithm and seed, if needed with options that differ, else the folder or the path."""
    names = {record.path: _short_name(record) for record in records}
    folders, places = [lambda same: [each.path.name for each in same], lambda same: [str(each.path) for each in same]]
    for longer in (_with_options, folders, places):
        for name in set(names.values()):
            same = [record for record in records if names[record.path] == name]
            if len(same) > 1:
                names.update(zip((record.path for record in same), longer(same), strict=True))
    return names


def _short_name(record: RunRecord) -> str:
    if record.point is not None:
        shown = [value if name in ALGORITHM else f"{name}={value}" for name, value in record.point.texts]
        return ", ".join([*(shown or [record.config.algo]), f"seed {record.config.seed}"])
    match = NAMED.fullmatch(record.path.name)
    return f"{match['algo']}, seed {match['seed']}" if match else record.path.name


def _with_options(records: Sequence[RunRecord]) -> list[str]:
    options = options_that_differ([record.config for record in records])
    texts = ([f"{name} {value}" for name, value in each.items()] for each in options)
    return [", ".join([_short_name(record), *text]) for record, text in zip(records, texts, strict=True)]


def which_checkpoint(path: str, record: RunRecord | None) -> str:
    """The checkpoint of a run that a file is, as text."""
    step = step_of(path, record)
    return f"({Path(path).stem})" if step is None else f"at step {step:,}"


def step_of(path: str | Path | None, record: RunRecord | None) -> int | None:
    """The timestep of a checkpoint or policy file of a run; None if neither its name nor another file gives it."""
    if path is None:
        return None
    file = Path(path)
    if (step := step_of_name(file.name)) is not None:
        return step
    # The latest checkpoint is a link to one that is named by its step, unless the run was copied.
    for other in sorted(file.parent.glob("*.pt")) if file.is_file() else ():
        if (step := step_of_name(other.name)) is not None and other.samefile(file):
            return step
    if record is None or file.stem != "latest":
        return None
    return max((row["global_step"] for row in record.rows), default=None)


def is_same_policy(first: str | Path, second: str | Path, record: RunRecord) -> bool:
    """Whether two files of a run hold one policy: one file, or one timestep."""
    step = step_of(first, record)
    return Path(first).resolve() == Path(second).resolve() or (step is not None and step == step_of(second, record))
