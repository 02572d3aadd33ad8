"""The example in JavaScript gives the same action; needs Node, and npm to fetch onnxruntime-node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rl_training.config import TrainConfig
from rl_training.runtime import load_policy, train

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
pytestmark = pytest.mark.extras


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
