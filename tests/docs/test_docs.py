"""Examples in the documentation run as they stand, and generated tables are up to date."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from exported import translations_are_read_once  # noqa: F401 - used by pages that export

from rl_training.algorithms import ALGORITHMS
from rl_training.cli import main
from rl_training.config import TrainConfig, parse_yaml
from rl_training.core import user_code as importing
from rl_training.core.options import bind
from rl_training.experiment import plan_runs, read_sweep, read_tune
from rl_training.ope import FitOptions
from rl_training.pipeline.config import read_pipeline
from rl_training.runtime import bind_options

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/tutorials", "docs/api")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md")))]
SHORT = ["--set", "total_timesteps=20", "--set", "eval_episodes=1"]
"""Added to `resume` commands of the documentation: their length is theirs, whether they run is the test's."""
TINY = [*SHORT, "--set", "algo_kwargs.hidden_sizes=[8]"]
"""Added to `train` commands."""
QUICK_FITS = ["--set", "fit_updates=50", "--set", "algo_kwargs.hidden_sizes=[8]"]
"""Added to `pipeline` commands that have minutes, with so few updates that nothing can be judged."""
QUICK_ESTIMATE = {"updates": 100, "tau": 0.3, "learning_rate": 1e-2, "hidden_sizes": (16,)}
"""Options of fits that converge in a moment: `estimate`, `select` and `pipeline` still have verdicts to show."""


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


EXAMPLES = [page for page in PAGES if _blocks(page, "python") or _blocks(page, "sh")]
ESTIMATING = re.compile(r"^rl-training (estimate|select|pipeline) |= (estimate|select)\(", flags=re.MULTILINE)
WITH_ESTIMATES = [page for page in EXAMPLES if ESTIMATING.search("".join(_blocks(page, "(?:python|sh)")))]


@pytest.mark.parametrize("page", EXAMPLES, ids=_ids)
def test_examples_run_in_the_order_in_which_they_are_read(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("selection.estimate", "pipeline.outcome"):
        monkeypatch.setattr(
            import_module(f"rl_training.{name}"),
            "FitOptions",
            lambda **given: FitOptions(**{**given, **QUICK_ESTIMATE}),
        )
    _read(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_ESTIMATES, ids=_ids)
def test_estimates_of_examples_run_at_their_full_length(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read(page, tmp_path, monkeypatch)


def _read(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a page says, from its first block to its last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # Python finds what lies in its working folder
    monkeypatch.setattr(importing, "IMPORTED", [])
    known = dict(ALGORITHMS)
    namespace: dict[str, Any] = {}
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"```(python|sh|yaml)\n(.*?)```", text, flags=re.DOTALL):
        # A block whose first line names a file is that file.
        file = re.match(r"# (\w+\.(?:py|yaml))\n", block)
        if file is not None:
            Path(file[1]).write_text(block)
        elif language == "python":
            exec(compile(block, str(page), "exec"), namespace)  # noqa: S102 - our own documentation
        elif language == "sh":
            for line in block.splitlines():
                _run(line, monkeypatch)
    # An algorithm that an example registers is forgotten again.
    for name in ALGORITHMS.keys() - known:
        del ALGORITHMS[name]


def _run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a line of shell that calls the command; `make` lines are what continuous integration itself runs."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "timeout":
        _kill(arguments[arguments.index("rl-training") + 1 :])
        return
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        return
    assert program == "rl-training", line
    expanded = [match for word in arguments for match in _matches(word)]
    if "--seeds" in expanded:
        # One process is enough to see that a sweep runs.
        expanded[expanded.index("--seeds") + 1] = "0"
    if arguments[0] in ("train", "resume"):
        # Right after the command's name, so that what the example sets itself comes later and wins.
        expanded[1:1] = TINY if arguments[0] == "train" else SHORT
    if arguments[0] == "pipeline" and "--minutes" in expanded:
        place = expanded.index("--minutes")
        expanded[place : place + 2] = ["--updates", "20", "--members", "2", *QUICK_FITS]
    monkeypatch.setattr(sys, "argv", ["rl-training", *expanded])
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code in (0, None), line


def _matches(word: str) -> list[str]:
    """The files that a pattern means; as in a shell, one that no file matches stays as it is."""
    return [str(path) for path in sorted(Path().glob(word))] or [word] if "*" in word else [word]


def _kill(arguments: list[str]) -> None:
    """Kill a run in the middle, as `timeout` does to it, but as soon as it has begun."""
    command = [sys.executable, "-m", "rl_training", *arguments]
    killed = subprocess.Popen([*command, "--set", "algo_kwargs.hidden_sizes=[8]"], stdout=subprocess.DEVNULL)
    out = Path(arguments[arguments.index("--out") + 1])
    while not list(out.glob("*/checkpoints/latest.pt")):
        assert killed.poll() is None, arguments
        time.sleep(0.1)
    killed.kill()
    killed.wait()


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "yaml")], ids=_ids)
def test_yaml_examples_bind(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        values = parse_yaml(block, where=str(page))
        if "data" in values:
            read_pipeline(values)
            continue
        if "trials" in values:
            read_tune(values)
            continue
        if values.keys() & {"grid", "cases"}:
            assert plan_runs(read_sweep(values), Path("sweep"))
            continue
        values = {"algo": "td3_bc", **values}
        config: TrainConfig = bind(values, TrainConfig)[0]
        bind_options(config)


def test_generated_tables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"run make docs; stale: {result.stdout}{result.stderr}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {path.stem for path in pages} >= {path.stem for path in PAGES[1:]} | {"changelog", "contributing"}
    fetched = r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^>]+"
    assert not [found for path in pages for found in re.findall(fetched, path.read_text(encoding="utf-8"))]


def test_the_reference_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    script = ROOT / "examples" / "td3_bc_pendulum_reference.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--updates", "20", "--output-dir", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    output = capsys.readouterr().out
    assert "data    -" in output
    assert "policy  -" in output


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
