"""The command `select`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rl_training.cli.display.console import print_json, print_table
from rl_training.cli.display.options import ImportOption, JsonOption, QuietOption
from rl_training.cli.estimate import (
    ACCEPT_HELP,
    DATA_HELP,
    GAMMA_HELP,
    MEMBERS_HELP,
    RUNS_HELP,
    SIZES_HELP,
    SPLIT_HELP,
    UPDATES_HELP,
    check_options,
    parse_sizes,
    print_basis,
    show_progress,
    weights_text,
)
from rl_training.core.errors import LARGEST_SEED, ConfigError
from rl_training.core.text import interval_text, number_text, plural
from rl_training.core.user_code import command_text

if TYPE_CHECKING:
    from rl_training.runtime import Split
    from rl_training.selection import Checkpoints, Claim, PolicyCandidate, Selection, ShuffleControl

CHECKPOINTS_HELP = "Candidates of each run: the policy of the latest checkpoint, or of every checkpoint."
EPISODES_HELP = "Real episodes to spend at most; they need an environment."
ENV_HELP = "Environment of the real episodes; default the runs' own."
SHUFFLE_HELP = "Also rank by shuffled rewards, a control: nothing of the ranking should be left."
OUT_HELP = "Write the whole result to this .json file, instead of selection.json in the folder of the runs."


def select(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    data: Annotated[str | None, typer.Option(metavar="DATA", help=DATA_HELP)] = None,
    checkpoints: Annotated[str, typer.Option(metavar="latest|all", help=CHECKPOINTS_HELP)] = "latest",
    episodes: Annotated[int, typer.Option(min=0, help=EPISODES_HELP)] = 0,
    env: Annotated[str | None, typer.Option(help=ENV_HELP)] = None,
    gamma: Annotated[float | None, typer.Option(help=GAMMA_HELP)] = None,
    members: Annotated[int, typer.Option(min=2, help=MEMBERS_HELP)] = 10,
    updates: Annotated[int | None, typer.Option(min=1, help=UPDATES_HELP)] = None,
    split: Annotated[str, typer.Option(metavar="auto|held-out|all", help=SPLIT_HELP)] = "auto",
    hidden_sizes: Annotated[str | None, typer.Option(metavar="WIDTH,...", help=SIZES_HELP)] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of FQE and of the real episodes.")] = 0,
    shuffle: Annotated[bool, typer.Option("--shuffle", help=SHUFFLE_HELP)] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    quiet: QuietOption = False,
    accept_audit: Annotated[bool, typer.Option("--accept-audit", help=ACCEPT_HELP)] = False,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank runs, seeds and checkpoints by logged data, select one, and make a claim about it."""
    from rl_training.selection import select as select_policy

    check_options(split, data, out)
    if checkpoints not in ("latest", "all"):
        raise ConfigError(f"--checkpoints must be latest or all, got {checkpoints!r}")
    if env is not None and not episodes:
        raise ConfigError("--env is for real episodes: set how many may be spent, with --episodes")
    more: dict[str, Any] = {} if hidden_sizes is None else {"hidden_sizes": parse_sizes(hidden_sizes)}
    with show_progress(quiet=quiet or as_json) as progress:
        result = select_policy(
            runs,
            data,
            checkpoints=cast("Checkpoints", checkpoints),
            episodes=episodes,
            env=env,
            gamma=gamma,
            members=members,
            updates=updates,
            split=cast("Split", split),
            seed=seed,
            shuffle=shuffle,
            accept_audit=accept_audit,
            progress=progress,
            tell=lambda pull: None if as_json or quiet else print(pull.sentence),
            **more,
        )
    file = result.save(out)
    if as_json:
        print_json(result.to_plain())
        return
    print_selection(result)
    if shuffle:
        print(shuffle_text(result.shuffled))
    if file is not None:
        print(f"stored in {file}")
    if (path := chosen_path(result)) is not None:
        print(f"Next: {command_text('export', path, '--out policy')}")


def print_selection(result: Selection) -> None:
    """Print the ranking, the policies that cannot be judged, and the selected one."""
    from rl_training.ope import CAVEAT

    print_basis(result.estimates)
    with_episodes = bool(result.pulls)
    head = ["", "policy", "value", "95 % interval", "better than the data", "verdict"]
    head += ["episodes", "believed return"] if with_episodes else []
    ranked = [each for each in result.candidates if each.rank is not None]
    if ranked:
        print_table(head, [_row(each, with_episodes=with_episodes) for each in ranked])
    for each in result.candidates:
        for reason in each.reasons:
            print(f"{each.name} cannot be judged: {reason}")
    print()
    for line in sentences(result):
        print(line)
    print(CAVEAT)


def _row(each: PolicyCandidate, *, with_episodes: bool) -> list[str]:
    from rl_training.ope import probability_text, verdict_text

    value = "-" if each.value is None else number_text(each.value)
    if each.interval is None or each.verdict is None or each.probability_better is None:
        judged = ["-", "-", "outside the shortlist"]
    else:
        probability = f"probability {probability_text(each.probability_better)}"
        judged = [interval_text(each.interval), probability, verdict_text(each.verdict)]
    cells = [f"{each.rank}{'*' * each.is_among_the_best}", each.name, value, *judged]
    if not with_episodes:
        return cells
    believed = "-"
    if each.believed is not None and each.believed_std is not None:
        believed = f"{number_text(each.believed)} ± {number_text(each.believed_std)}"
    return [*cells, str(each.episodes), believed]


def sentences(result: Selection) -> list[str]:
    """The best policies, the selected one, and the claim about it."""
    lines = []
    if len(result.best) > 1:
        lines.append(f"Not distinguishable from the best (*): {', '.join(result.best[1:])}.")
    if result.chosen is None or result.claim is None:
        return [*lines, "No policy can be judged by this log, so none is selected."]
    lines.append(f"The selected policy is {result.chosen}{_how(result)}.")
    lines.append(claim_text(result.claim, result.estimates.gamma))
    if result.claim.weighted is not None:
        lines.append(weights_text(asdict(result.claim.weighted)))
    return lines


def _how(result: Selection) -> str:
    """The effect of the real episodes in words."""
    spent, before = len(result.pulls), result.best[0] if result.best else None
    if not spent:
        return ""
    count = plural(spent, "real episode") + (f" of {result.budget}" if spent < result.budget else "")
    if before is None:
        return f" by {count}; the log could judge none"
    return f" after {count}, " + ("as by the log" if before == result.chosen else f"where the log preferred {before}")


def claim_text(claim: Claim, gamma: float) -> str:
    """The claim about the selected policy in a sentence, with the horizon of its values."""
    from rl_training.ope import horizon_text, probability_text, verdict_text

    if claim.basis == "held-out episodes":
        basis = f"On {claim.episodes} episodes that were not used to select it"
    else:
        basis = f"On selection data ({claim.episodes} episodes, too few to set some aside)"
    if claim.reasons or claim.value is None or claim.interval is None or claim.probability_better is None:
        return f"{basis}, it cannot be judged: {'; '.join(claim.reasons)}."
    numbers = f"value {number_text(claim.value)}, {interval_text(claim.interval)}"
    probability = f"probability {probability_text(claim.probability_better)}"
    return f"{basis}, it is {verdict_text(claim.verdict)} {horizon_text(gamma)}: {probability}; {numbers}."


def shuffle_text(control: ShuffleControl | None) -> str:
    """The result of the shuffle control in a sentence."""
    from rl_training.selection import FEWEST_POLICIES

    if control is None:
        return f"Shuffle control: needs at least {FEWEST_POLICIES} policies that can be judged."
    if control.correlation is None:
        return "Shuffle control: passed, by shuffled rewards all policies have the same value."
    left = f"rank correlation {control.correlation:.2f} with the ranking by shuffled rewards"
    chance = f"chance alone exceeds {control.limit:.2f} in 5 % of cases"
    if control.passes:
        return f"Shuffle control: passed, {left}; {chance}."
    return f"Shuffle control: failed, {left}; {chance}. The ranking hardly comes from the rewards."


def chosen_path(result: Selection) -> str | None:
    """The name of the selected policy if it comes from a file: its run if it is the latest one."""
    if result.chosen is None or result[result.chosen].path is None:
        return None
    return result.chosen
