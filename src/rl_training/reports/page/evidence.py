"""Sections of a report besides estimates: the log, risk, actions, training, real episodes, hand-over, limits."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError
from rl_training.core.statistics import histogram
from rl_training.data import load_transition_dataset
from rl_training.ope import ASSUMPTION
from rl_training.reports.compare import (
    EVALUATIONS,
    ScoreTable,
    decide_together,
    improvement,
    make_profile,
    score_rows,
    score_tables,
)
from rl_training.reports.page.actions import compare_actions
from rl_training.reports.page.gather import RETURN, Material, Plain, pick, source_file
from rl_training.reports.plots import ENOUGH_FOR_INTERVAL, Panel, make_panels
from rl_training.reports.runs import RunRecord
from rl_training.reports.table import is_one_sweep, options_that_differ, summarize
from rl_training.storage import describe_machine, policy_step, read_json

BINS = 24
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST = 0.1
"""The share of episodes in the tail risk."""
ENOUGH_FOR_TAIL = 10
"""The fewest real episodes for quantiles."""
LIMITS = (
    "Nothing here says that a policy is safe. Estimates are of means; a good mean can go with rare disasters.",
    "Estimates hold for starts like the logged ones. If the task begins elsewhere in use, they say nothing.",
    "What happens far beyond the horizon of a value counts little. Values of different horizons are not comparable.",
    f"All verdicts assume that {ASSUMPTION}. An unobserved cause (a hidden variable) of both actions and rewards is "
    "confounding: no check of a log can rule it out, and a verdict can then have the wrong sign.",
    "Intervals cover chance in the log, and errors of FQE as large as that of the control. They do not cover a lack of "
    "similar logged actions, or a task that has changed since the log was made.",
    "The novelty score detects unfamiliar observations. On dense data with few dimensions it hardly detects a wrong "
    "action, and it says nothing about values.",
    "If the same episodes served for training or selection and for evaluation, the numbers are too high.",
)
MOST_POINTS = 200
"""The most points of a curve."""
FEWEST_SEEDS = 2
"""The fewest runs of an algorithm for a distribution of scores."""


def log(material: Material) -> Plain:
    """The log: size, returns, ends of episodes, findings of the audit."""
    metadata = next((dict(each.metadata["data"]) for each in material.records if each.metadata.get("data")), {})
    audit = material.pipeline.get("audit") or metadata.get("audit")
    plain: Plain = {"audit": audit, "notes": list(metadata.get("notes", ())), "step_times": metadata.get("step_times")}
    plain |= {"part": material.pipeline.get("part", ""), "parts": _parts(material)}
    if material.data is None:
        plain["why_no_data"] = material.why_no_data
        return {**plain, **{name: metadata.get(name) for name in ("rows", "episodes", "return_mean", "return_std")}}
    data, bounds = material.data.log.dataset, material.data.log.bounds
    lengths, returns = bounds[:, 1] - bounds[:, 0], _logged_returns(material)
    terminated = int((data.dones[bounds[:, 1] - 1] > 0).sum())
    return {
        **plain,
        "source": material.data.source,
        "rows": len(data),
        "episodes": len(bounds),
        "observation_width": data.obs_dim,
        "lengths": {"shortest": int(lengths.min()), "median": float(np.median(lengths)), "longest": int(lengths.max())},
        "return_mean": None if returns is None else float(returns.mean()),
        "return_std": None if returns is None else float(returns.std()),
        "returns": None if returns is None else _histogram(returns),
        "ends": {"terminated": terminated, "cut": len(bounds) - terminated},
    }


def _parts(material: Material) -> list[Plain]:
    """Episodes and returns of all of a pipeline's log, and of the parts that have different purposes."""
    parts = [(name, load_transition_dataset(path)) for name, path in material.pipeline.get("parts", {}).items()]
    found = [(name, part.episode_returns().double().numpy()) for name, part in parts if part.has_rewards]
    if found:
        found.insert(0, ("all", np.concatenate([returns for _, returns in found])))
    return [{"part": name, "episodes": len(each), "mean": each.mean(), "std": each.std()} for name, each in found]


def _logged_returns(material: Material) -> NDArray[np.float64] | None:
    """Undiscounted returns of the logged episodes; None without a log or rewards."""
    if material.data is None or not material.data.log.dataset.has_rewards:
        return None
    returns: NDArray[np.float64] = material.data.log.dataset.episode_returns().double().numpy()
    return returns


def _histogram(values: NDArray[np.float64]) -> Plain:
    low, high = float(values.min()), float(values.max())
    room = 0.5 * abs(low) or 0.5
    edges = np.linspace(low, high, min(BINS, max(8, len(values) // 4)) + 1) if high > low else [low - room, low + room]
    counts, found = histogram(values, edges)
    return {"edges": found, "counts": counts}


def risk(material: Material) -> Plain:
    """The returns of bad episodes: of the log, and of evaluations during training."""
    rows = []
    if (returns := _logged_returns(material)) is not None:
        of = ", ".join(filter(None, ("the log", material.pipeline.get("part"))))
        rows.append({"of": of, "episodes": len(returns), **tail(returns)})
    rows += [
        {"of": f"{each['name']}, real episodes", "episodes": len(each["returns"]), **tail(np.array(each["returns"]))}
        for each in (real_episodes(material) or {"policies": ()})["policies"]
        if len(each["returns"]) >= ENOUGH_FOR_TAIL
    ]
    evaluations = []
    for record in material.records:
        last = next((row for row in reversed(record.rows) if row.get("return_min") is not None), None)
        if last is not None:
            names = (RETURN, "return_std", "return_min", "return_max")
            found = {name.removeprefix("return_"): last.get(name) for name in names}
            evaluations.append({"name": material.names[record.path], "episodes": record.config.eval_episodes, **found})
    if not rows and not evaluations:
        why = f"it could not be read ({material.why_no_data})" if material.data is None else "it has no rewards"
        return {"missing": f"The returns of the log are not known: {why}."}
    return {"returns": rows, "evaluations": evaluations, "worst_share": WORST}


def tail(returns: NDArray[np.float64]) -> Plain:
    """Quantiles of returns, and the mean of the worst tenth (CVaR)."""
    ordered = np.sort(returns)
    worst = ordered[: max(int(np.ceil(WORST * len(ordered))), 1)]
    quantiles = {f"{share:g}": float(np.quantile(ordered, share)) for share in QUANTILES}
    return {"quantiles": quantiles, "worst_mean": float(worst.mean()), "worst": float(ordered[0])}


def behavior(material: Material) -> Plain:
    """Actions of the chosen policy beside the logged ones."""
    if material.saved is None or material.data is None:
        return {"missing": f"The policy's actions are not compared with the log's: {material.why_no_data}."}
    name = material.chosen_name or material.names[material.records[0].path]
    found = compare_actions(material.saved, material.data)
    for row in found["most_different"]["rows"] if material.pipeline else ():
        row["episode"] = material.pipeline["episodes"][row["episode"]]
    return {"policy": name, **found}


def real_episodes(material: Material) -> Plain | None:
    """The policies and returns of real episodes, if there were any."""
    pulls = [] if material.selection is None else material.selection.get("pulls") or []
    if material.selection is None or not pulls:
        return None
    names = {each["name"]: material.name_of(each) for each in material.selection["candidates"]}
    policies = [
        {"name": names[each["name"]], "returns": returns, **pick(each, "believed", "believed_std")}
        for each in material.selection["candidates"]
        if (returns := [pull["episode_return"] for pull in pulls if pull["policy"] == each["name"]])
    ]
    shown = ("number", "episode_return", "believed", "best_believed", "doubt")
    return {
        "budget": material.selection["budget"],
        "pulls": [{**pick(pull, *shown), "name": names[pull["policy"]], "best": names[pull["best"]]} for pull in pulls],
        "policies": policies,
    }


def handover(material: Material) -> Plain | None:
    """The exported folder, if one is named."""
    if material.bundle is None:
        return None
    about = read_json(material.bundle / "policy.json")
    files = [
        {"name": name, "bytes": (material.bundle / name).stat().st_size, "sha256": digest}
        for name, digest in about.get("sha256", {}).items()
        if (material.bundle / name).is_file()
    ]
    kept = ("policy", "input", "outputs", "action", "novelty", "control_interval", "latency_us", "made_with")
    training = about.get("observation", {}).get("training")
    ranges = None if not training else {name: training.get(name) for name in ("min", "max")}
    return {
        "folder": material.bundle.name,
        "files": files,
        **{name: about.get(name) for name in kept},
        "observation": {"names": about.get("observation", {}).get("names"), "ranges": ranges},
        "check": "python check.py",
    }


def limits(material: Material) -> Plain:
    """Limits of the report, and how to reproduce it."""
    machine = describe_machine()
    found = [_command(each.metadata.get("command")) for each in material.records]
    commands = [*dict.fromkeys(command for command in found if command)]
    if material.estimates is not None and material.policies:
        commands.append(_judging_command(material, material.estimates))
    return {
        "limits": list(LIMITS),
        "commands": commands,
        "trained_with": _versions(material),
        "reported_with": machine["versions"],
        "python": platform.python_version(),
        "platform": machine["platform"],
    }


def _judging_command(material: Material, found: Plain) -> str:
    """The command that repeats these estimates: `select`, if they are part of a selection, else `estimate`."""
    selection = material.selection if material.selection and material.selection["estimates"] is found else None
    policies = found["policies"] if selection is None else selection["candidates"]
    names = [each["name"] for each in policies if each["name"] in material.policies]
    runs, source = dict.fromkeys(str(material.policies[name]) for name in names), source_file(found)
    options: Plain = {}
    if selection is not None:
        has_all = any(policy_step(Path(each["path"])) is not None for each in policies if each["path"])
        options = {"--checkpoints": "all" if has_all else "latest", "--episodes": selection["budget"] or None}
    options |= {
        "--data": source,
        "--split": None if source else "held-out" if found["is_held_out"] else "all",
        "--gamma": found["gamma"],
        "--members": len(found["behavior_members"]),
        "--updates": found["updates"],
        "--hidden-sizes": ",".join(map(str, found["fit"]["hidden_sizes"])),
        "--seed": found["fit"]["seed"],
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return shlex.join(["rl-training", "estimate" if selection is None else "select", *runs, *given])


def _command(arguments: Sequence[str] | None) -> str | None:
    """A command as the user typed it, without the folder of the program."""
    if not arguments:
        return None
    program = Path(arguments[0]).name
    is_own = program in ("__main__.py", "rl-training")
    start = ["rl-training"] if is_own else ["python", program] if program.endswith(".py") else [program]
    return shlex.join([*start, *arguments[1:]])


def _versions(material: Material) -> Plain:
    """Versions of packages that the runs used; all of them, if runs differ."""
    found: dict[str, list[str]] = {}
    for record in material.records:
        for name, version in (record.metadata.get("versions") or {}).items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    return {name: ", ".join(versions) for name, versions in found.items()}


def training(material: Material) -> Plain:
    """Learning curves over seeds, last scores, and options that differ between runs."""
    records = material.records
    alarms = [{"run": material.names[each.path], **alarm._asdict()} for each in records for alarm in each.alarms]
    plain: Plain = {"runs": len(records), "options": _options(material), "alarms": alarms}
    try:
        panels, rows = make_panels(records), summarize(records)
    except ConfigError as error:
        return {**plain, "missing": f"There are no learning curves: {error}."}
    return {**plain, "scores": rows, "panels": [_panel(each) for each in panels], "seeds": _seeds(records)}


def _seeds(records: Sequence[RunRecord]) -> list[Plain]:
    """Per task, the distribution of last scores over seeds, and probabilities of improvement.

    Definitions are those of rliable: a performance profile is the share of runs whose score is above a threshold, and
    the probability of improvement counts equal scores half. The table of all tasks, if they can be pooled, comes first.
    """
    rows = [row for row in score_rows(records) if row.metric in EVALUATIONS and len(row.scores) >= FEWEST_SEEDS]
    return [_compared(table) for table in score_tables(rows) if len(table.groups) > 1]


def _compared(table: ScoreTable) -> Plain:
    best = table.best()
    thresholds = np.unique(np.concatenate([scores for name in best for scores in table.groups[name]]))
    profiles: list[Plain] = []
    for name in best:
        # The share of runs above each threshold, with its bootstrap band if there are enough runs.
        curves = zip(("shares", "low", "high"), make_profile(table.groups[name], thresholds), strict=True)
        plain = {kind: None if curve is None else curve.tolist() for kind, curve in curves}
        profiles.append({"name": name, "scores": [each for scores in table.groups[name] for each in scores], **plain})
    compared = [
        improvement(pair, table.metric, table.tasks, *(table.groups[name] for name in pair))
        for pair in combinations(best, 2)
    ]
    return {
        "task": table.task,
        "metric": table.metric,
        "groups_in_all": len(table.groups),
        "thresholds": thresholds.tolist(),
        "profiles": profiles,
        "improvements": [each.to_plain() for each in decide_together(compared)],
    }


def _options(material: Material) -> Plain:
    """Options that differ between the runs that have them; runs with equal options share a row.

    Varying options of a sweep are left out, because the table of scores has their columns.
    """
    found = options_that_differ([record.config for record in material.records])
    points = [record.point for record in material.records if record.point]
    varied = {name for point in points for name in point.columns} if is_one_sweep(material.records) else set()
    names = [name for name in found[0] if name not in varied and len({each[name] for each in found} - {"None"}) > 1]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record, values in zip(material.records, found, strict=True):
        groups.setdefault((record.config.algo, *(values[name] for name in names)), []).append(record)
    plain = [
        {
            "name": material.names[same[0].path] if len(same) == 1 else f"{algo} ({len(same)} runs)",
            "runs": [material.names[record.path] for record in same],
            "values": [None if value == "None" else value for value in values],
        }
        for (algo, *values), same in groups.items()
    ]
    return {"names": names, "groups": plain}


def _panel(panel: Panel) -> Plain:
    lines: list[Plain] = []
    for place, line in enumerate(panel.lines):
        common = {"name": line.name, "colour": place, "runs": len(line.curves)}
        if line.has_mean:
            mean, low, high = line.mean_and_band(is_interval=len(line.curves) >= ENOUGH_FOR_INTERVAL)
            lines.append({**common, **_points(line.steps, y=mean, low=low, high=high)})
        else:
            lines += [{**common, "thin": True, **_points(each.steps, y=each.values)} for each in line.curves]
    has_interval = any(each["runs"] >= ENOUGH_FOR_INTERVAL for each in lines)
    return {
        "task": panel.task,
        "metric": panel.metric,
        "axis": panel.axis,
        "data_return": panel.data_return,
        "band": "95 % interval of the mean" if has_interval else "lowest to highest run",
        "lines": lines,
    }


def _points(steps: NDArray[Any], **values: NDArray[Any]) -> dict[str, list[float]]:
    """Values by step, thinned out evenly if there are many."""
    count = len(steps)
    kept = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
    return {name: each[kept].tolist() for name, each in {"x": steps, **values}.items()}
