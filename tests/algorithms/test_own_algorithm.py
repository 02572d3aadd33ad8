"""An algorithm in a file of the user's own, which is no part of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import Answer, Command, call_main

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.core import user_code as importing

OWN = '''
"""Nearby: TD3+BC with another distance to the data."""

import torch
from pydantic import Field

from rl_training.algorithms import Algorithm, Step, register
from rl_training.algorithms.td3 import TD3Hyper
from rl_training.core.options import options
from rl_training.models import MLPTD3Model


@options
class NearbyHyper(TD3Hyper):
    """Hyper-parameters of Nearby."""

    distance_power: float = Field(default=1.5, ge=1, description="power of the distance to logged actions")


@register("nearby", mode="offline")
class Nearby(Algorithm):
    """TD3+BC with another distance."""

    hyper: NearbyHyper
    model: MLPTD3Model
    target: MLPTD3Model
    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))

    def critic_loss(self, batch):
        with torch.no_grad():
            next_q = self.target.critic(batch["next_obs"], self.target.actor(batch["next_obs"])).amin(0)
            target = batch["rewards"] + self.hyper.gamma * (1 - batch["dones"]) * next_q
        q = self.model.critic(batch["obs"], batch["actions"])
        return {"critic_loss": (q - target).square().mean(1).sum()}

    def actor_loss(self, batch):
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions, first=1)
        distance = (actions - batch["actions"]).abs().pow(self.hyper.distance_power).mean()
        return {"actor_loss": distance - q.mean() / q.detach().abs().mean(), "distance": distance}
'''

CONFIG = """
algo: nearby
env_id: Pendulum-v1
total_timesteps: 10
eval_episodes: 1
log_interval: 5
checkpoint_interval: 5
output_dir: {folder}/runs
algo_kwargs:
  dataset_kind: random
  dataset_size: 300
  batch_size: 16
  eval_interval: 5
  hidden_sizes: [8, 8]
  distance_power: 2.0
"""

PACKAGE = {
    "nearby_package.py": OWN,
    "nearby-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nearby\nVersion: 1.0\n",
    "nearby-1.0.dist-info/entry_points.txt": "[rl_training.algorithms]\nnearby = nearby_package:Nearby\n",
}
"""An installed package with an algorithm, as far as importlib.metadata looks at one."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an algorithm, a config for it and observations."""
    (tmp_path / "nearby.py").write_text(OWN)
    (tmp_path / "nearby.yaml").write_text(CONFIG.format(folder=tmp_path))
    np.save(tmp_path / "obs.npy", np.zeros((2, 3), np.float32))
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """A command in the folder that knows nothing of the algorithm, whatever commands before it have imported."""
    monkeypatch.chdir(folder)
    known = dict(ALGORITHMS)

    def forget() -> None:
        ALGORITHMS.clear()
        ALGORITHMS.update(known)

    def run(*arguments: str) -> Answer:
        forget()
        monkeypatch.setattr(importing, "IMPORTED", [])
        monkeypatch.setattr(importing, "FILES", {})
        return call_main(monkeypatch, capsys, *arguments)

    yield run
    forget()


def _python(folder: Path, *arguments: str) -> Answer:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def _run(folder: Path, *arguments: str) -> Answer:
    """A command in a process of its own."""
    return _python(folder, "-P" if sys.version_info >= (3, 11) else "-B", "-m", "rl_training", *arguments)


def test_an_algorithm_of_ones_own_goes_through_all_commands(folder: Path, run: Command) -> None:
    own = ("--import", "nearby.py")
    trained = run("train", "-c", "nearby.yaml", "--json", *own)
    assert trained.code == 0, trained.err
    path = json.loads(trained.out)["run_dir"]
    assert json.loads(trained.out)["metrics"]["update_count"] == 10

    again = run("resume", path, "--set", "total_timesteps=12", "--quiet", *own)
    assert again.out.endswith(f"Next: rl-training eval {path} --episodes 100 --import {folder / 'nearby.py'}\n")
    resumed = run("resume", path, "--set", "total_timesteps=15", "--json", *own)
    assert json.loads(resumed.out)["metrics"]["update_count"] == 15
    predicted = run("predict", path, "--obs", "obs.npy", "--json", *own)
    assert np.shape(json.loads(predicted.out)) == (2, 1)
    evaluated = run("eval", path, "--json", *own)
    assert len(json.loads(evaluated.out)["returns"]) == 1
    collected = run("data", "collect", "--checkpoint", path, "--steps", "5", "--out", "rows.npz", *own)
    assert collected.code == 0, collected.err

    unknown = run("predict", path, "--obs", "obs.npy")
    assert unknown.code == 2
    assert unknown.err.endswith("is of unregistered 'nearby': import its module, or use --import\n")


def test_its_options_are_explained_and_checked(folder: Path, run: Command) -> None:
    own = ("--import", str(folder / "nearby.py"))
    explained = run("config", "explain", "nearby", "--json", *own)
    rows = {row["name"]: row for row in json.loads(explained.out)["NearbyHyper"]}
    assert rows["distance_power"]["meaning"] == "power of the distance to logged actions"

    wrong = run("config", "validate", "nearby.yaml", "--set", "algo_kwargs.distance_power=0", *own)
    assert wrong.code == 2
    assert "distance_power must be >= 1" in wrong.err
    shown = run("config", "show", "nearby.yaml", *own)
    assert "distance_power: 2.0" in shown.out
    listed = run("list", "--json", *own)
    idea = {row["name"]: row["idea"] for row in json.loads(listed.out)}["nearby"]
    assert idea == "TD3+BC with another distance to the data."


def test_workers_know_it_too(folder: Path) -> None:
    seeds = ("--seeds", "0,1", "--workers", "2", "--import", "nearby.py", "--json")
    trained = _run(folder, "train", "-c", "nearby.yaml", *seeds)

    assert trained.code == 0, trained.err
    assert [result["status"] for result in json.loads(trained.out)] == ["done", "done"]


def test_in_python_importing_the_module_is_enough(folder: Path) -> None:
    program = """
        import rl_training
        from rl_training import api, runtime
        from rl_training.experiment import ExperimentManager

        if __name__ == "__main__":
            before = len(api.MANAGED)
            import nearby

            assert len(api.MANAGED) == before + 1 and api.Nearby is rl_training.Nearby is api.MANAGED["Nearby"]
            assert "Nearby" in rl_training.__all__ and "Nearby" in api.__all__ and "Nearby" in dir(api)
            assert "train_nearby" in rl_training.__all__ and "train_nearby" in runtime.__all__
            result = runtime.train_nearby("nearby.yaml")
            model = rl_training.Nearby.load(result.run_dir)
            assert model.predict([[0.0, 0.0, 0.0]]).shape == (1, 1)
            # A worker imports this program again, but not what stands below the condition.
            (done,) = ExperimentManager().sweep("nearby.yaml", [1])
            assert done.status == "done", done.error
    """
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    (folder / "program.py").write_text("\n".join(lines))

    answer = _python(folder, "program.py")

    assert answer.code == 0, answer.err


ORDERS = {
    "the file first": "import nearby; from rl_training.algorithms import TD3BC",
    "the base class first": "from rl_training.algorithms.base import Algorithm, register; import nearby",
    "a packaged algorithm first": "from rl_training.algorithms.td3_bc import TD3BC; import nearby",
    "the table first": "from rl_training.algorithms import *; import nearby",
    "networks first": "from rl_training.models import MLPTD3Model; import nearby",
    "hyper-parameters first": "from rl_training.algorithms.base.hyper import Hyper; import nearby",
    "the registration first": "from rl_training.algorithms.base.registration import register; import nearby",
    "runs first": "from rl_training.runtime import train; import nearby",
    "managed classes first": "from rl_training import TD3BC; import nearby",
    "the command first": "import rl_training.cli, nearby",
    "everything first": "from rl_training import *; from rl_training.api import *; import nearby",
}


TRY_ORDERS = """
import json, os, sys, traceback
import gymnasium, numpy, pydantic, torch, yaml

failed = []
for name, order in json.loads(sys.argv[1]).items():
    # A copy of this process, which has not imported the package.
    child = os.fork()
    if child == 0:
        try:
            exec(order, {})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
assert "rl_training" not in sys.modules
sys.exit(f"failed: {failed}" if failed else 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_nothing_depends_on_what_is_imported_first(folder: Path) -> None:
    check = """
import rl_training
from rl_training.algorithms import ALGORITHMS, TD3BC, TD3BCAlgorithm, Nearby, td3_bc_loss
assert TD3BC is TD3BCAlgorithm is ALGORITHMS["td3_bc"], TD3BC
assert rl_training.TD3BC.algo == "td3_bc" and rl_training.Nearby.algo == "nearby"
assert Nearby is nearby.Nearby
from rl_training.runtime import train_nearby, train_td3_bc
"""
    programs = {name: f"{order}\nimport nearby\n{check}" for name, order in ORDERS.items()}

    answer = _python(folder, "-c", TRY_ORDERS, json.dumps(programs))

    assert answer.code == 0, answer.err


def test_an_installed_package_names_its_algorithms_as_entry_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in PACKAGE.items():
        (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "site" / name).write_text(text)
    points = folder / "site" / "nearby-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "broken = nowhere_at_all\n")
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"), prepend=":")

    listed = _run(folder, "list", "--json")
    # Its module reads the table while it is being imported, and is then asked for again.
    imported = _python(folder, "-c", "import nearby_package; from rl_training import Nearby; print(Nearby.algo)")

    assert "nearby" in [row["name"] for row in json.loads(listed.out)]
    assert listed.err.startswith("warning: entry point 'broken' in rl_training.algorithms is left out: ModuleNotFound")
    assert imported.out == "nearby\n"


TD3_BC = Path(rl_training.__file__).parent / "algorithms" / "td3_bc.py"
MISTAKES = {
    "absent.py": (None, "--import absent.py: there is no such file"),
    "absent": (
        None,
        "--import absent: there is no module of this name; a file is given by its path, such as absent.py",
    ),
    "typo.py": ("x = 1\ny = z\n", "--import typo.py failed in line 2: NameError: name 'z' is not defined"),
    "syntax.py": ("x = 1\n\ny = = 2\n", "--import syntax.py failed in line 3: SyntaxError: invalid syntax"),
    "exits.py": ("raise SystemExit(3)\n", "--import exits.py failed in line 1: SystemExit: 3"),
    "needs.py": (
        "import nowhere_at_all\n",
        "--import needs.py failed in line 1: ModuleNotFoundError: No module named 'nowhere_at_all'",
    ),
    "twice.py": (
        OWN.replace('"nearby"', '"td3_bc"'),
        f"--import twice.py failed in line 20: algorithm 'td3_bc' exists already, in {TD3_BC}: choose another name, "
        "in {folder}/twice.py",
    ),
    "namesake.py": (
        OWN.replace("class Nearby(", "class TD3BC("),
        f"--import namesake.py failed in line 20: the class of 'td3_bc', in {TD3_BC}, is called TD3BC too: "
        "rename yours, in {folder}/namesake.py",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_module_that_cannot_be_imported_is_answered_in_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    command: Command = partial(call_main, monkeypatch, capsys)

    assert command("list", "--import", name) == (2, "", f"error: {words}\n".replace("{folder}", str(tmp_path)))


def test_a_file_hides_no_module_of_its_name(folder: Path) -> None:
    (folder / "colorsys.py").write_text(OWN)
    code = "import sys; from rl_training.core.user_code import import_modules; import_modules(['colorsys.py'])"
    answer = _python(folder, "-c", f"import sys; sys.path.remove(''); {code}; import colorsys; colorsys.rgb_to_hsv")

    assert answer.code == 0, answer.err
