"""The table of algorithms: what replaces what, which names are taken, and what a class must say of itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import rl_training
from rl_training import algorithms, api, runtime
from rl_training.algorithms import ALGORITHMS, Algorithm, Step, register
from rl_training.algorithms.bc import BCHyper
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.core.errors import ConfigError
from rl_training.experiment import get_algorithm_spec
from rl_training.models import MLPBCModel

Run = Callable[..., ModuleType]

NEAR = '''
from rl_training.algorithms import register
from rl_training.algorithms.td3_bc import TD3BC

@register("near", mode="offline")
class Near(TD3BC):
    """{idea}"""

def near_loss():
    return "{idea}"
'''


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A function that runs a program as a module, as a notebook runs its cells; the table is restored afterwards."""
    known = dict(ALGORITHMS)

    def run(program: str, module: str = "notebook", file: str | None = None) -> ModuleType:
        found = sys.modules.get(module) or ModuleType(module)
        if file is not None:
            found.__file__ = file
        monkeypatch.setitem(sys.modules, module, found)
        exec(program, vars(found))  # noqa: S102 - the programs of this file
        return found

    yield run
    ALGORITHMS.clear()
    ALGORITHMS.update(known)


def test_a_cell_that_is_run_again_replaces_its_algorithm(run: Run) -> None:
    run(NEAR.format(idea="first"))
    before: Any = rl_training.Near
    cell: Any = run(NEAR.format(idea="second"))

    assert ALGORITHMS["near"] is algorithms.Near is cell.Near
    assert algorithms.near_loss() == "second"
    assert rl_training.Near is api.MANAGED["Near"] is api.Near
    assert rl_training.Near is not before
    assert rl_training.Near.__doc__ == "Near: second"
    assert runtime.train_near.__name__ == "train_near"
    assert list(ALGORITHMS).count("near") == 1


def test_a_class_may_be_renamed_when_it_replaces_another(run: Run) -> None:
    run(NEAR.format(idea="first"))
    run(NEAR.format(idea="second").replace("class Near(", "class Nearer("))

    assert ALGORITHMS["near"].__name__ == "Nearer"
    assert "Near" not in api.MANAGED
    assert "Nearer" in api.MANAGED


def test_the_same_file_under_two_module_names_is_one_place(run: Run) -> None:
    run(NEAR.format(idea="first"), "near_1234", "/home/near.py")
    run(NEAR.format(idea="second"), "near", "/home/near.py")

    assert ALGORITHMS["near"].__module__ == "near"


def test_another_place_is_refused_and_both_are_named(run: Run) -> None:
    run(NEAR.format(idea="first"), "first", "/home/first.py")
    with pytest.raises(ConfigError) as error:
        run(NEAR.format(idea="second"), "second", "/home/second.py")

    words = "algorithm 'near' exists already, in /home/first.py: choose another name, in /home/second.py"
    assert str(error.value) == words
    assert algorithms.near_loss() == "first"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TD3BC", "the class of 'td3_bc', in .*td3_bc.py, is called TD3BC too: rename yours, in notebook"),
        ("TD3BCAlgorithm", "the class of 'td3_bc', in .*td3_bc.py, is called TD3BCAlgorithm too: rename yours"),
        ("TrainConfig", "TrainConfig is the name of another class of this package: rename yours, in notebook"),
    ],
)
def test_packaged_names_stay_what_they_are(name: str, words: str, run: Run) -> None:
    program = NEAR.format(idea="mine").replace("import TD3BC", "import TD3BC as Parent").replace("(TD3BC)", "(Parent)")
    with pytest.raises(ConfigError, match=words):
        run(program.replace("class Near(", f"class {name}("))

    assert "near" not in ALGORITHMS
    assert algorithms.TD3BC is algorithms.TD3BCAlgorithm is ALGORITHMS["td3_bc"] is TD3BC


def test_an_algorithm_in_a_program_is_described_by_its_class(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(NEAR.format(idea="Near: what it does."))
    monkeypatch.setattr(ALGORITHMS["near"], "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", "Automatically created module")

    assert get_algorithm_spec("near").idea == "what it does."


def _loss(self: Any, batch: Any) -> Any:
    raise NotImplementedError


STEPS = {"steps": (Step("actor"),), "actor_loss": _loss}
LACKING: dict[str, tuple[dict[str, Any], str]] = {
    "hyper-parameters": (STEPS, "Mine names no class of hyper-parameters: write class Mine"),
    "model": (STEPS | {"hyper_class": BCHyper}, "Mine names no subclass of rl_training.models.Model: write class Mine"),
    "a model that is none": (
        STEPS | {"hyper_class": BCHyper, "model_class": dict},
        "Mine names no subclass of rl_training.models.Model, but dict: write",
    ),
    "steps": ({"hyper_class": BCHyper, "model_class": MLPBCModel}, "Mine declares no steps: write steps = "),
    "loss": (
        {"hyper_class": BCHyper, "model_class": MLPBCModel, "steps": (Step("actor"),)},
        "Mine declares step 'actor' but has no method actor_loss",
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_class_that_lacks_something_is_refused_when_it_is_registered(case: str) -> None:
    body, words = LACKING[case]
    with pytest.raises(ConfigError, match=words):
        register("mine", mode="offline")(type("Mine", (Algorithm,), body))
    assert "mine" not in ALGORITHMS
