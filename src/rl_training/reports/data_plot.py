"""A dataset as a picture: returns, lengths, rewards, actions, coverage, and one episode over time."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.reports.plots import COLOURS, check_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rl_training.data import TransitionDataset

MOST_ROWS = 20_000
"""The most rows in the panels of rewards, actions and coverage."""
SHUFFLED = "the rows seem shuffled: episodes are not known"
MOST_LINES = 6
"""The most dimensions with a colour each."""
SIZE = (12.0, 7.2)
"""Width and height in inches."""


def plot_dataset(dataset: TransitionDataset, path: str | Path, *, title: str | None = None) -> None:
    """Draw a dataset; of a large one, rows at equal distances."""
    path = Path(path)
    check_picture(path)
    save_picture(path, lambda: _draw(dataset, title))


def _draw(dataset: TransitionDataset, title: str | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=SIZE, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    axes = figure.subplots(2, 3).ravel()
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), MOST_ROWS)).astype(np.int64))
    columns = {name: dataset.fields[name].numpy(force=True) for name in ("obs", "actions", "rewards")}
    sample = {name: np.asarray(column[chosen]) for name, column in columns.items()}
    _draw_episodes(axes[0], axes[1], dataset)
    _histogram(axes[2], sample["rewards"], "reward", "rows")
    _draw_actions(axes[3], sample["actions"])
    _draw_coverage(axes[4], sample["obs"], sample["rewards"])
    _draw_episode(axes[5], dataset, columns)
    if title is not None:
        figure.suptitle(textwrap.fill(title, 120))
    return figure


def _histogram(axes: Axes, values: NDArray[Any], name: str, unit: str) -> None:
    """A distribution, or a sentence if all values are equal."""
    axes.set(title=f"{name}s", xlabel=name, ylabel=unit)
    if values.min() == values.max():
        _say(axes, f"every {name} is {values[0]:g}")
        return
    axes.hist(values, bins=min(50, max(10, len(values) // 4)), color=COLOURS[0])
    axes.axvline(float(values.mean()), color=COLOURS[1], linestyle="--")
    axes.set_title(f"{name}s (dashed: mean {values.mean():.4g})")


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, textwrap.fill(text, 36), ha="center", va="center", transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])


def _draw_episodes(left: Axes, right: Axes, dataset: TransitionDataset) -> None:
    """Returns in the order in which episodes were logged, and lengths by how they ended."""
    left.set(title="returns", xlabel="episode, in the order of the log", ylabel="return")
    right.set(title="lengths", xlabel="steps of an episode", ylabel="episodes")
    if not dataset.has_episodes:
        _say(left, SHUFFLED)
        _say(right, SHUFFLED)
        return
    returns = dataset.episode_returns().numpy(force=True)
    left.plot(returns, linestyle="", marker="o", markersize=3, color=COLOURS[0], alpha=0.6)
    left.axhline(float(returns.mean()), color=COLOURS[1], linestyle="--")
    left.set_title(f"returns (dashed: mean {returns.mean():.4g})")
    left.locator_params(axis="x", integer=True)
    bounds = dataset.episode_bounds().numpy(force=True)
    lengths, terminated = np.diff(bounds)[:, 0], dataset.dones.numpy(force=True)[bounds[:, 1] - 1] != 0
    parts = {"terminated": lengths[terminated], "truncated": lengths[~terminated]}
    found = {f"{name}: {len(part)}": part for name, part in parts.items() if len(part)}
    if lengths.min() == lengths.max():
        _say(right, f"every episode has {lengths[0]} steps ({', '.join(found)})")
        return
    edges = np.histogram_bin_edges(lengths, bins=min(30, int(np.ptp(lengths)))).tolist()
    colours = [COLOURS[1] if name.startswith("terminated") else COLOURS[0] for name in found]
    right.hist(list(found.values()), bins=edges, stacked=True, color=colours, label=list(found))
    right.locator_params(axis="y", integer=True)
    _add_legend(right)


def _add_legend(axes: Axes, **options: Any) -> None:
    """A legend above the bars."""
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper center", ncols=3, **options)


def _draw_actions(axes: Axes, actions: NDArray[Any]) -> None:
    """The counts of discrete actions, or the distribution of each dimension."""
    axes.set(title="actions", xlabel="action", ylabel="rows")
    if actions.ndim == 1:
        values, counts = np.unique(actions, return_counts=True)
        axes.bar(values, counts, color=COLOURS[0], width=0.8)
        axes.locator_params(axis="x", integer=True)
        return
    edges = np.histogram_bin_edges(actions, bins=50).tolist()
    looks: Any = {"bins": edges, "histtype": "step", "linewidth": 1.4}
    for number, column in enumerate(actions.T[:MOST_LINES]):
        axes.hist(column, color=COLOURS[number], label=f"{number}", **looks)
    count = actions.shape[1]
    if count > 1:
        _add_legend(axes, title=f"dimension (first {MOST_LINES} of {count})" if count > MOST_LINES else "dimension")


def _draw_coverage(axes: Axes, obs: NDArray[Any], rewards: NDArray[Any]) -> None:
    """Observations along the first two principal components, after standardisation."""
    axes.set(title="coverage of observations")
    scaled = (obs - obs.mean(axis=0)) / np.where(obs.std(axis=0) > 0, obs.std(axis=0), 1)
    _, strengths, directions = np.linalg.svd(scaled, full_matrices=False)
    if len(strengths) < 2 or strengths[1] == 0:
        _histogram(axes, obs[:, 0], "observation", "rows")
        return
    places = scaled @ directions[:2].T
    shares = strengths**2 / (strengths**2).sum()
    axes.set(xlabel=f"first component ({shares[0]:.0%} of variance)", ylabel=f"second component ({shares[1]:.0%})")
    colours: Any = COLOURS[0] if rewards.min() == rewards.max() else rewards
    points = axes.scatter(places[:, 0], places[:, 1], c=colours, s=4, linewidths=0, rasterized=True)
    if colours is rewards and (figure := axes.get_figure()) is not None:
        figure.colorbar(points, ax=axes, label="reward")


def _draw_episode(axes: Axes, dataset: TransitionDataset, columns: dict[str, NDArray[Any]]) -> None:
    """The observations and rewards of the episode with the median return, of those with more than one step."""
    axes.set(title="one episode")
    if not dataset.has_episodes:
        _say(axes, SHUFFLED)
        return
    returns = dataset.episode_returns().numpy(force=True)
    bounds = dataset.episode_bounds().numpy(force=True)
    several = np.flatnonzero(np.diff(bounds)[:, 0] > 1)
    if not len(several):
        _say(axes, "every episode has one step")
        return
    number = int(several[np.argsort(returns[several], kind="stable")[len(several) // 2]])
    rows = slice(*bounds[number].tolist())
    obs, reward = columns["obs"][rows], columns["rewards"][rows]
    # The dimensions that move most are shown; constant ones are left out.
    width, spread = obs.shape[1], obs.std(axis=0)
    moving = [column for column in np.argsort(-spread, kind="stable")[:MOST_LINES] if spread[column] > 0]
    for place, column in enumerate(sorted(moving)):
        line = (obs[:, column] - obs[:, column].mean()) / spread[column] + 4 * place
        axes.plot(line, color=COLOURS[place], linewidth=1.2, label=f"obs {column}")
    axes.plot((reward - reward.mean()) / (reward.std() or 1.0) - 4, color="#555555", linewidth=1.2, label="reward")
    axes.set(title=f"episode {number}, return {returns[number]:.4g}", xlabel="step", yticks=[])
    axes.set_ylabel(f"standardised, {len(moving)} of {width} dimensions" if width > len(moving) else "standardised")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
