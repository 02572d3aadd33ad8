"""Encoders by import path: which are taken, and what is said about those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import own_encoders
import pytest
import torch
from own_encoders import Waves

from rl_training.core import user_code as importing
from rl_training.core.errors import ConfigError
from rl_training.models.encoders import encoder_path, make_encoder


def test_a_class_stands_for_its_import_path() -> None:
    assert encoder_path(Waves) == encoder_path("own_encoders:Waves") == "own_encoders:Waves"


def test_an_encoder_gets_the_size_of_observations_first_and_then_its_arguments() -> None:
    encoder = make_encoder("own_encoders:Waves", 3, {"count": 5})
    assert isinstance(encoder, Waves)
    assert encoder.mixture.weight.shape == (5, 3)


def test_trying_an_encoder_out_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    Waves(3)
    expected = torch.rand(())
    torch.manual_seed(0)
    make_encoder("own_encoders:Waves", 3, {})
    assert torch.rand(()) == expected


GOT = "for observations (8, 3), expected (8, 7): output_size is 7"
WRONG = {
    "Sizeless": "needs an attribute output_size, the number of its features",
    "Folded": f"gives (8, 1, 7) {GOT}",
    "Paired": f"gives tuple {GOT}",
    "Doubled": "gives torch.float64 for observations of torch.float32",
    "Dropping": "computes other features in training than in evaluation, as Dropout and BatchNorm do: use LayerNorm",
    "Overwriting": "changes the observations that it is called with: other networks see them too",
    "Wasteful": "does not use its parameter 'head.weight': remove it, or freeze it by requires_grad_(False)",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_encoder_that_cannot_stand_in_front_of_a_network_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_encoder(f"own_encoders:{name}", 3, {})
    assert str(error.value) == f"encoder own_encoders:{name} {WRONG[name]}"


def test_an_encoder_that_fails_is_named_with_the_line() -> None:
    source = Path(own_encoders.__file__).read_text().splitlines()
    line = source.index("        return obs @ obs") + 1
    with pytest.raises(ConfigError, match=rf"its call with observations \(8, 3\) failed in line {line}: RuntimeError"):
        make_encoder("own_encoders:Failing", 3, {})


def test_arguments_that_the_encoder_does_not_take_are_named() -> None:
    words = r"encoder own_encoders:Waves: Waves\(3, cuont=5\) failed: TypeError: .* argument 'cuont'"
    with pytest.raises(ConfigError, match=words):
        make_encoder("own_encoders:Waves", 3, {"cuont": 5})


def _local() -> type[Waves]:
    class Local(Waves):
        pass

    return Local


PATHS: dict[str, tuple[Any, str]] = {
    "no colon": ("own_encoders", "encoder must be an import path such as my_module:MyClass, got 'own_encoders'"),
    "no class": ("own_encoders:Wave", "encoder own_encoders:Wave: the module has no 'Wave'; did you mean 'Waves'?"),
    "a function": ("math:sin", "encoder math:sin is not a class"),
    "another class": ("own_encoders:NoModule", "encoder own_encoders:NoModule is not a subclass of torch.nn.Module"),
    "no module": (
        "own_encodrs:Waves",
        "encoder own_encodrs:Waves: there is no module 'own_encodrs'; it must be in the working folder or on "
        "PYTHONPATH, or be named by --import",
    ),
    "the program": (
        "__main__:Waves",
        "encoder Waves is part of the program itself, where a saved policy would not find it again: move it to a file "
        "of its own, such as my_module.py, and import it from there",
    ),
    "an object": (Waves(3), "encoder must be a class, got an object of Waves: pass Waves, and encoder_kwargs"),
    "a local class": (
        _local(),
        "encoder test_own_encoders:_local.<locals>.Local cannot be found by its import path: define it at the top "
        "level of a module",
    ),
}


@pytest.mark.parametrize("case", PATHS)
def test_what_is_no_encoder_is_refused_in_a_sentence(case: str) -> None:
    given, words = PATHS[case]
    with pytest.raises(ConfigError) as error:
        encoder_path(given)
    assert str(error.value) == words


def test_a_module_that_fails_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing it failed: ModuleNotFoundError: No module named 'nowhere_at_all'"):
        encoder_path("needs_more:Waves")


def test_a_file_that_was_imported_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "IMPORTED", [])
    monkeypatch.setattr(importing, "FILES", {})
    (tmp_path / "elsewhere.py").write_text("from own_encoders import Waves\n\n\nclass Ripples(Waves):\n    pass\n")
    importing.import_modules([str(tmp_path / "elsewhere.py")])
    assert encoder_path("elsewhere:Ripples") == "elsewhere:Ripples"
    encoder = make_encoder("elsewhere:Ripples", 3, {})
    assert encoder_path(type(encoder)) == "elsewhere:Ripples"
