"""What a reader calls runs and their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rl_training.experiment.report import RunRecord, options_that_differ
from rl_training.experiment.sweep_folder import ALGORITHM

NAMED = re.compile(r"(?P<algo>.+?)__(?P<subject>.+)__seed(?P<seed>\d+)__\d{8}-\d{6}(-\d+)?")
"""The name of a run that was not given one."""
NAMED_BY_STEP = re.compile(r"\w+_(\d{9,})")
"""The name of a checkpoint or policy file that says its timestep."""


def display_names(records: Sequence[RunRecord]) -> dict[Path, str]:
    """A name for every run that no other has: algorithm and seed, then options that tell runs apart, or its own."""
    names = {record.path: _short_name(record) for record in records}
    for longer in (_with_options, _folder_names, _places):
        for name in set(names.values()):
            same = [record for record in records if names[record.path] == name]
            if len(same) > 1:
                names.update(zip((record.path for record in same), longer(same), strict=True))
    return names


def _short_name(record: RunRecord) -> str:
    if record.swept is not None:
        shown = [value if name in ALGORITHM else f"{name}={value}" for name, value in record.swept.texts]
        return ", ".join([*(shown or [record.config.algo]), f"seed {record.config.seed}"])
    match = NAMED.fullmatch(record.path.name)
    return f"{match['algo']}, seed {match['seed']}" if match else record.path.name


def _with_options(records: Sequence[RunRecord]) -> list[str]:
    options = options_that_differ([record.config for record in records])
    texts = ([f"{name} {value}" for name, value in each.items()] for each in options)
    return [", ".join([_short_name(record), *text]) for record, text in zip(records, texts, strict=True)]


def _folder_names(records: Sequence[RunRecord]) -> list[str]:
    return [record.path.name for record in records]


def _places(records: Sequence[RunRecord]) -> list[str]:
    return [str(record.path) for record in records]


def which_checkpoint(path: str, record: RunRecord | None) -> str:
    """Which checkpoint of a run a file is, in words."""
    step = step_of(path, record)
    return f"({Path(path).stem})" if step is None else f"at step {step:,}"


def step_of(path: str | Path | None, record: RunRecord | None) -> int | None:
    """The timestep of a checkpoint or policy file of a run; None where neither its name nor another file says it."""
    if path is None:
        return None
    file = Path(path)
    if match := NAMED_BY_STEP.fullmatch(file.stem):
        return int(match[1])
    # The latest checkpoint is a link to one that is named by its step, unless the run was copied.
    for other in sorted(file.parent.glob("*.pt")) if file.is_file() else ():
        if (match := NAMED_BY_STEP.fullmatch(other.stem)) and other.samefile(file):
            return int(match[1])
    if record is None or file.stem != "latest":
        return None
    return max((row["global_step"] for row in record.rows), default=None)


def is_same_policy(first: str | Path, second: str | Path, record: RunRecord) -> bool:
    """Whether two files of a run hold one policy: they are one file, or of one timestep."""
    if Path(first).resolve() == Path(second).resolve():
        return True
    step = step_of(first, record)
    return step is not None and step == step_of(second, record)
