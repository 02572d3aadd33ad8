"""Exported policies are the package's policies, wherever they run; what is not does not appear."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import (
    BOX,
    DISCRETE,
    KINDS,
    make_log,
    make_saved,
    observations,
    translations_are_read_once,  # noqa: F401 - used by all tests of this file
)
from torch import nn

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.policies.export import bundle as export
from rl_training.policies.export import description as export_sidecar
from rl_training.policies.export import graph
from rl_training.policies.export import graph as export_graph
from rl_training.policies.export import log as export_log
from rl_training.policies.export.bundle import ExportError, write_bundle
from rl_training.policies.export.graph import PolicyGraph, write_onnx
from rl_training.runtime import load_policy, train

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported policy of TD3+BC."""
    folder = tmp_path_factory.mktemp("export") / "td3_bc"
    write_bundle(make_saved("td3_bc"), folder, make_log())
    return folder


KINDS_OF_POLICIES = {
    "continuous": {"bc", "bcq", "bear", "crossq", "iql", "sac"},
    "discrete": {"bc", "discrete_bcq", "discrete_iql", "dqn"},
}
"""Algorithms that together have every network that acts, and every way of acting by it."""
ALGORITHMS = [
    pytest.param(algo, kind, marks=[] if algo in KINDS_OF_POLICIES[kind] else pytest.mark.slow) for algo, kind in KINDS
]


def _run(folder: Path, obs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(folder / "policy.onnx"), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(["action", "novelty"], {"obs": obs})
    return found


def _python(folder: Path, code: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a folder, where some packages cannot be imported."""
    blocks = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
    command = [sys.executable, "-c", f"import sys; {blocks}{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("algo", "kind"), ALGORITHMS)
def test_every_algorithm_gives_the_same_actions_in_one_file_for_batches_of_any_size(
    algo: str, kind: str, tmp_path: Path
) -> None:
    action = BOX if kind == "continuous" else DISCRETE
    saved, log = make_saved(algo, action), make_log(action)
    result = write_bundle(saved, tmp_path / "out", log)
    files = {"check.py", "policy.json", "policy.onnx", "vectors.npz"}
    plain = algo not in ("bcq", "bear", "crossq", "discrete_bcq")
    assert set(result.sizes) == (files | {"policy_numpy.npz", "policy_numpy.py"} if plain else files)
    assert result.about["policy_numpy"]["available"] is plain
    shape = onnx.load(tmp_path / "out" / "policy.onnx").graph.input[0].type.tensor_type.shape
    assert shape.dim[0].dim_param
    novelty = export_log.fit_log(log, saved.policy)
    for size in (1, 7, 64):
        obs = observations(size)
        expected = saved.predict(obs)
        actions, scores = _run(tmp_path / "out", obs)
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, atol=1e-5)
        encoded = saved.spaces.action.encode(torch.from_numpy(expected))
        np.testing.assert_allclose(scores, novelty(torch.from_numpy(obs), encoded), rtol=1e-3, atol=1e-3)
    if kind == "continuous":
        assert len(np.unique(expected)) > 10
        assert (expected >= BOX.low).all()
        assert (expected <= BOX.high).all()


def test_the_check_needs_neither_torch_nor_this_package(bundle: Path) -> None:
    code = "import runpy; runpy.run_path('check.py', run_name='__main__')"
    done = _python(bundle, code, "torch", "rl_training", "onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: the files are unchanged")


def test_the_plain_policy_needs_numpy_only(bundle: Path) -> None:
    obs = observations(9)
    np.save(bundle.parent / "obs.npy", obs)
    code = (
        "import numpy as np; from policy_numpy import Policy; p = Policy('policy_numpy.npz'); "
        "o = np.load('../obs.npy'); np.savez('../answer.npz', action=p(o), novelty=p.novelty(o), one=p(o[0]))"
    )
    done = _python(bundle, f"sys.path.insert(0, '.'); sys.dont_write_bytecode = True; {code}", "torch", "onnxruntime")
    assert done.returncode == 0, done.stderr
    answer = np.load(bundle.parent / "answer.npz")
    expected = make_saved("td3_bc").predict(obs)
    scale = np.subtract(BOX.high, BOX.low)
    assert (np.abs(answer["action"] - expected) / scale).max() <= 1e-6
    np.testing.assert_allclose(answer["novelty"], _run(bundle, obs)[1], rtol=1e-4)
    np.testing.assert_allclose(answer["one"], expected[0], atol=1e-5)


@pytest.mark.parametrize("activation", ["leaky_relu", "elu", "selu", "gelu", "silu", "mish", "tanh"])
def test_the_plain_policy_knows_every_activation(activation: str, tmp_path: Path) -> None:
    saved = make_saved("td3_bc", activation=activation)
    arrays, _ = graph.plain_arrays(saved.policy, None)
    np.savez(tmp_path / "policy.npz", **arrays)
    policy = runpy.run_path(str(export.SCRIPTS / "policy_numpy.py"))["Policy"](tmp_path / "policy.npz")
    obs = observations(50) * 3
    np.testing.assert_allclose(policy(obs), saved.predict(obs), atol=2e-6)


def test_a_dueling_network_is_plain(tmp_path: Path) -> None:
    saved = make_saved("dqn", DISCRETE, dueling=True)
    result = write_bundle(saved, tmp_path / "out", make_log(DISCRETE))
    assert result.about["policy_numpy"]["available"]
    assert len(np.unique(np.load(tmp_path / "out" / "vectors.npz")["action"])) > 1


def test_layers_that_are_normalised_are_not_plain_and_exported_all_the_same(tmp_path: Path) -> None:
    result = write_bundle(make_saved("td3_bc", layer_norm="before"), tmp_path / "out", make_log())
    assert result.about["policy_numpy"] == {"available": False, "why_not": "its layers are normalised"}


@pytest.mark.parametrize("name", ["policy.onnx", "policy_numpy.npz", "vectors.npz", "policy_numpy.py"])
def test_a_byte_that_changed_is_found(bundle: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(bundle, tmp_path / "copy")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    done = subprocess.run([sys.executable, folder / "check.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: {name} is not the file that was exported" in done.stdout


def _check_with(bundle: Path, folder: Path, change: Any) -> tuple[list[str], dict[str, float], Any]:
    """The answer of the check about a bundle whose test vectors and rules were changed."""
    shutil.copytree(bundle, folder)
    about = json.loads((folder / "policy.json").read_text())
    vectors = dict(np.load(folder / "vectors.npz"))
    change(vectors, about["check"])
    np.savez(folder / "vectors.npz", **vectors)
    del about["sha256"]["vectors.npz"]
    (folder / "policy.json").write_text(json.dumps(about))
    found: tuple[list[str], dict[str, float], Any] = runpy.run_path(str(folder / "check.py"))["check"](folder)
    return found


@pytest.mark.parametrize(("output", "gap"), [("action", 1e-3), ("novelty", 0.1)])
def test_another_answer_is_found(bundle: Path, tmp_path: Path, output: str, gap: float) -> None:
    def change(vectors: dict[str, Any], rules: dict[str, Any]) -> None:
        vectors[output][5] += gap

    problems = _check_with(bundle, tmp_path / "copy", change)[0]
    assert problems[0].startswith(f"policy.onnx, batches of 1: {output} differs in 1 of 64 rows, the first is row 5")
    assert problems[-1].startswith(f"policy_numpy.py: {output} differs")


@pytest.mark.parametrize(("rows", "fails"), [(2, False), (3, True)])
def test_a_policy_that_chooses_among_candidates_may_differ_in_two_rows(
    bundle: Path, tmp_path: Path, rows: int, fails: bool
) -> None:
    saved = make_saved("bcq")
    allowed = export_sidecar.describe(saved, PolicyGraph(saved.policy, None), None, "")["check"]["rows_that_may_differ"]

    def change(vectors: dict[str, Any], rules: dict[str, Any]) -> None:
        vectors["action"][:rows] += 1
        rules["rows_that_may_differ"] = allowed

    problems, _, differing = _check_with(bundle, tmp_path / "copy", change)
    assert bool(problems) is fails
    assert differing.tolist() == list(range(rows))


def test_a_candidate_of_another_value_is_refused(tmp_path: Path) -> None:
    saved = make_saved("bear")
    write_bundle(saved, tmp_path / "out", make_log())
    vectors = dict(np.load(tmp_path / "out" / "vectors.npz"))
    export._compare_values(tmp_path / "out", saved, np.array([3]))
    vectors["action"][3] = BOX.low
    np.savez(tmp_path / "out" / "vectors.npz", **vectors)
    with pytest.raises(ExportError, match=r"actions of other values in rows \[3\]"):
        export._compare_values(tmp_path / "out", saved, np.array([3]))


def test_a_policy_that_differs_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_other(graph: PolicyGraph, path: Path) -> None:
        write_onnx(PolicyGraph(make_saved("sac").policy, graph.novelty), path)

    monkeypatch.setattr(export, "write_onnx", write_other)
    with pytest.raises(
        ExportError, match=r"differs from the package's; nothing was written: policy.onnx, batches of 1"
    ):
        write_bundle(make_saved("td3_bc"), tmp_path / "out", make_log())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_added_is_checked_as_the_others_and_described(tmp_path: Path) -> None:
    def add(folder: Path) -> dict[str, Any]:
        sums = json.loads((folder / "policy.json").read_text())["sha256"]
        (folder / "note.txt").write_text(", ".join(sums))
        return {"note": "a list of files"}

    result = write_bundle(make_saved("td3_bc"), tmp_path / "out", make_log(), add=add)
    assert result.about["note"] == "a list of files"
    assert (tmp_path / "out" / "note.txt").read_text().startswith("check.py, policy.onnx")
    stored = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert stored == result.about
    assert stored["sha256"]["note.txt"] == hashlib.sha256((tmp_path / "out" / "note.txt").read_bytes()).hexdigest()


def test_a_file_that_cannot_be_added_leaves_nothing_behind(tmp_path: Path) -> None:
    def add(folder: Path) -> dict[str, Any]:
        raise MemoryError

    with pytest.raises(MemoryError):
        write_bundle(make_saved("td3_bc"), tmp_path / "out", make_log(), add=add)
    assert list(tmp_path.iterdir()) == []


class FixedBatch(nn.Module):
    """An actor that reads the size of the batch as a number, as len(obs) does."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor: Any = actor

    def act(self, obs: torch.Tensor, *, deterministic: bool) -> torch.Tensor:
        actions: torch.Tensor = self.actor.act(obs, deterministic=deterministic)
        return actions + torch.zeros(len(obs), 1)


def test_a_graph_for_batches_of_one_size_is_refused(tmp_path: Path) -> None:
    saved = make_saved("td3_bc")
    saved.policy.model.actor = FixedBatch(saved.policy.model.actor)
    with pytest.raises(ConfigError, match=r"batches of 2 only .*use obs.shape\[0\] in place of len\(obs\)"):
        write_bundle(saved, tmp_path / "out", make_log())
    assert list(tmp_path.iterdir()) == []


def test_exporting_twice_gives_the_same_answers(bundle: Path, tmp_path: Path) -> None:
    write_bundle(make_saved("td3_bc"), tmp_path / "again", make_log())
    for first, second in zip(_run(bundle, observations(64)), _run(tmp_path / "again", observations(64)), strict=True):
        assert np.array_equal(first, second)


def test_the_bundle_names_no_folder_of_this_machine(bundle: Path) -> None:
    for file in bundle.iterdir():
        content = file.read_bytes()
        assert str(Path.home()).encode() not in content
        assert str(Path(export.__file__).parent).encode() not in content
        assert sys.prefix.encode() not in content


def test_the_vectors_are_logged_rows_and_rows_at_and_beyond_the_edge(bundle: Path) -> None:
    log, vectors = make_log(), np.load(bundle / "vectors.npz")
    obs, mean, std = vectors["obs"], log.obs.mean(0).numpy(), log.obs.std(0, correction=0).numpy()
    assert obs.shape == (64, 5)
    assert obs.dtype == np.float32
    held_out = {tuple(row) for row in log.obs.numpy()[log.held_out_rows]}
    assert all(tuple(row) in held_out for row in obs[:48])
    moved = np.abs(obs[48:56] - mean) / std
    assert np.allclose(np.sort(moved, axis=1)[:, :-1], 0, atol=1e-5)
    assert np.allclose(moved.max(1), 3, atol=1e-4)
    np.testing.assert_allclose(obs[56:60], [np.zeros(5), mean, log.low, log.high], rtol=1e-6)
    np.testing.assert_allclose(np.abs(obs[60:] - mean) / std, 10, rtol=1e-4)
    assert vectors["novelty"][60:].min() > 5


def test_an_encoder_of_ones_own_is_part_of_the_graph(tmp_path: Path) -> None:
    result = write_bundle(make_saved("td3_bc", encoder="own_encoders:Waves"), tmp_path / "out", make_log())
    assert result.differences["action"] < 1e-5
    assert "has an encoder" in result.about["policy_numpy"]["why_not"]


def test_an_encoder_that_no_graph_can_have_is_refused_in_words(tmp_path: Path) -> None:
    saved = make_saved("td3_bc", encoder="own_encoders:Branching")
    with pytest.raises(ConfigError, match="the policy cannot be written as an ONNX graph") as caught:
        write_bundle(saved, tmp_path / "out", make_log())
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'onnxscript'; .*'rl-training\[export\]'"):
        make_saved("td3_bc").export(tmp_path / "out")


def test_a_destination_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="exists already; choose another name or delete it"):
        make_saved("td3_bc").export(tmp_path / "taken")
    with pytest.raises(ConfigError, match=r"the folder of .* does not exist"):
        make_saved("td3_bc").export(tmp_path / "missing" / "out")


def test_time_is_measured_in_both_runtimes(bundle: Path) -> None:
    graph = PolicyGraph(make_saved("td3_bc").policy, None)
    found = export_graph.latencies(graph, bundle / "policy.onnx", observations(1))
    assert all(1 < found[name] < 1e5 for name in ("onnxruntime", "torch"))


PAGE = Path(__file__).parents[2] / "docs" / "export.md"


@pytest.mark.extras
def test_the_example_in_javascript_gives_the_action_of_the_package(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    assert shutil.which("npm"), "npm is needed: install Node from https://nodejs.org"
    saved = load_policy(train(tiny_config("td3_bc", "algo_kwargs.dataset_size=2000")).checkpoint_path)
    saved.export(tmp_path / "bundle")
    block = re.search(r"```js\n// (act\.mjs)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    (tmp_path / block[1]).write_text(block[2], encoding="utf-8")
    install = ["npm", "install", "--no-audit", "--no-fund", "--onnxruntime-node-install-cuda=skip", "onnxruntime-node"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["node", block[1]], cwd=tmp_path, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["action"], saved.predict([0.5, 0.8, -1.0]), atol=4e-5)
    assert answer["novelty"] > 0
