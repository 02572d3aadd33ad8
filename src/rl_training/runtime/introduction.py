"""What a run says at its start: the data, how its episodes end, the actions, and how the policy will be judged."""

from __future__ import annotations

from rl_training.config import TrainConfig
from rl_training.core.spaces import ActionSpace, BoxActions
from rl_training.data import TransitionDataset
from rl_training.envs import Task
from rl_training.runtime.plan import Plan
from rl_training.runtime.run_data import Data
from rl_training.runtime.run_options import RunOptions

SHOWN_BOUNDS = 3
"""Dimensions of actions whose bounds are shown where they differ."""


def introduce(
    config: TrainConfig,
    options: RunOptions,
    plan: Plan,
    *,
    data: Data | None,
    task: Task | None,
    compiled_from: int | None = None,
) -> tuple[str, ...]:
    """A few lines, each with a word in front of it that says what it is about."""
    lines = [] if data is None else _data_lines(options, data)
    if task is not None and options.mode != "offline":
        lines.append(("environment", f"{config.env_id}: {task.describe()}"))
    spaces = data.spaces if data is not None else task.spaces if task is not None else None
    if spaces is not None:
        lines.append(("actions", f"{bounds_text(spaces.action)}, {_origin(config, data)}"))
    if options.mode != "offline":
        lines.append(("learning", _learning(plan)))
    lines.append(("evaluation", _evaluation(config, options, data)))
    if compiled_from:
        lines.append(("compilation", f"from update {compiled_from} on; until then, graphs are compiled beside the run"))
    if config.upload_url is not None:
        lines.append(("upload", f"complete checkpoints, to {config.upload_url}"))
    return tuple(f"{word:<12}{text}" for word, text in lines)


def _data_lines(options: RunOptions, data: Data) -> list[tuple[str, str]]:
    parts = [part for part in (data.dataset, data.dataset.validation) if part is not None]
    rows, episodes = sum(map(len, parts)), sum(_episodes(part) for part in parts)
    average = "" if data.mean_return is None else f", mean return {data.mean_return:.4g}"
    terminated = sum(int(part.dones.sum()) for part in parts)
    name = options.data.dataset_path or options.data.dataset_id or options.data.name()
    return [
        ("data", f"{name}: {rows} transitions in {_count(episodes, 'episode')}{average}"),
        ("ends", f"{_count(terminated, 'episode')} terminated, {episodes - terminated} ended otherwise (time limits)"),
        *(("audit", text) for text in _audit_lines(data)),
    ]


def _audit_lines(data: Data) -> list[str]:
    """What the cheap checks found, but for what the notes of the dataset say already."""
    findings = data.audit.get("findings", ())
    if not findings:
        return ["nothing unusual in a quick look; `rl-training data audit` looks closer"]
    told = " ".join(data.dataset.notes)
    return [
        f"{each['verdict']}: {each['message']}; {each['advice']}" for each in findings if each["message"] not in told
    ]


def _episodes(part: TransitionDataset) -> int:
    return int(part.episode_ends.sum())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def bounds_text(actions: ActionSpace) -> str:
    """The kind of actions, and their bounds."""
    if not isinstance(actions, BoxActions):
        return str(actions)
    pairs = list(dict.fromkeys(zip(actions.low, actions.high, strict=True)))
    shown = [f"[{low:g}, {high:g}]" for low, high in pairs[:SHOWN_BOUNDS]]
    more = ", ..." if len(pairs) > SHOWN_BOUNDS else ""
    return f"{actions} within {', '.join(shown)}{more}"


def _origin(config: TrainConfig, data: Data | None) -> str:
    if data is None or config.env_id is not None:
        return f"as {config.env_id} has them"
    return data.origin


def _learning(plan: Plan) -> str:
    if plan.pretrain:
        return f"{plan.pretrain} updates on the data, then with {_count(plan.total - plan.pretrain, 'step')}"
    starts = f"from step {plan.learning_starts} on" if plan.learning_starts else "from the first step on"
    acting = f", with random actions for {plan.random_steps} steps" if plan.random_steps else ""
    return f"{starts}{acting}; {plan.updates} updates in all"


def _evaluation(config: TrainConfig, options: RunOptions, data: Data | None) -> str:
    interval, unit = options.controls.eval_interval, "updates" if options.mode == "offline" else "steps"
    when = "at the end" if interval is None else f"every {interval} {unit}, and at the end"
    judged = []
    if config.env_id is not None:
        judged.append(f"{_count(config.eval_episodes, 'episode')} in {config.env_id}")
    held_out = None if data is None else data.dataset.validation
    if held_out is not None:
        judged.append(f"diagnostics on {_count(_episodes(held_out), 'episode')} held out ({len(held_out)} transitions)")
    return f"{' and '.join(judged)}, {when}" if judged else "none: there is no environment, and nothing is held out"
