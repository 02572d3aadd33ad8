"""What spaces do: encode, decode, sample, perturb, compare and check."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, Column, DiscreteActions, SpaceSpec

BOX = BoxActions((-2.0, 0.0), (2.0, 1.0))
DISCRETE = DiscreteActions(3, start=5)


def test_bounds_are_minus_one_and_one_for_networks() -> None:
    native = torch.tensor([[-2.0, 0.0], [0.0, 0.5], [2.0, 1.0]])
    assert BOX.encode(native).tolist() == [[-1, -1], [0, 0], [1, 1]]
    assert BOX.decode(BOX.encode(native)).tolist() == native.tolist()


def test_actions_of_a_symmetric_box_are_decoded_exactly() -> None:
    actions = torch.rand(1000, 1) * 2 - 1
    assert torch.equal(BoxActions((-2.0,), (2.0,)).decode(actions), 2 * actions)
    unit = BoxActions((-1.0,), (1.0,))
    assert unit.decode(actions) is actions
    assert unit.encode(actions) is actions


def test_uniform_actions_fill_the_box() -> None:
    actions = BOX.sample(4000)
    assert actions.shape == (4000, 2)
    assert actions.dtype == torch.float32
    assert float(actions.min()) == pytest.approx(-1, abs=0.01)
    assert float(actions.max()) == pytest.approx(1, abs=0.01)


def test_gaussian_noise_has_its_standard_deviation_and_stays_in_the_box() -> None:
    torch.manual_seed(0)
    noisy = BOX.perturb(torch.zeros(4000, 2), 0.1)
    assert float(noisy.std()) == pytest.approx(0.1, rel=0.05)
    assert float(BOX.perturb(torch.ones(4000, 2), 5.0).abs().max()) == 1
    calm = torch.ones(3, 2)
    assert BOX.perturb(calm, 0.0) is calm


def test_discrete_actions_are_numbered_from_0_for_networks() -> None:
    assert DISCRETE.encode(torch.tensor([5, 7])).tolist() == [0, 2]
    assert DISCRETE.decode(torch.tensor([0, 2])).tolist() == [5, 7]
    assert DISCRETE.column == Column((), "int64")
    assert set(DISCRETE.sample(100).tolist()) == {0, 1, 2}


def test_epsilon_greedy_takes_each_action_as_often_as_it_should() -> None:
    torch.manual_seed(0)
    found = DISCRETE.perturb(torch.full((30_000,), 2), 0.3)
    # A random action may be the greedy one: 0.7 + 0.3 / 3.
    shares = torch.bincount(found, minlength=3) / len(found)
    assert shares.tolist() == pytest.approx([0.1, 0.1, 0.8], abs=0.01)
    assert found.dtype == torch.int64
    assert DISCRETE.perturb(torch.full((5,), 2), 0.0).tolist() == [2] * 5
    assert set(DISCRETE.perturb(torch.full((500,), 2), 1.0).tolist()) == {0, 1, 2}


def test_what_a_policy_does_is_compared_with_what_was_logged() -> None:
    mse = BOX.compare(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]))["action_mse"]
    agreement = DISCRETE.compare(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0]))["action_agreement"]
    assert (float(mse), float(agreement)) == (0.5, 0.75)


def test_actions_outside_are_refused_with_their_row() -> None:
    BOX.check(torch.tensor([[2.0 + 1e-6, 0.5]]), name="actions", origin="here")
    with pytest.raises(DatasetError, match=r"1 rows have actions outside the bounds of here: row 1, column 1 is 3, "):
        BOX.check(torch.tensor([[0.0, 0.0], [0.0, 3.0]]), name="actions", origin="here")
    with pytest.raises(DatasetError, match="2 rows have actions that here does not know: row 0 is 4, expected 5 to 7"):
        DISCRETE.check(torch.tensor([4, 5, 8]), name="actions", origin="here")
    ignored = torch.tensor([True, False])
    BOX.check(torch.tensor([[9.0, 9.0], [0.0, 0.0]]), name="actions", origin="here", ignored=ignored)
    DISCRETE.check(torch.tensor([9, 5]), name="actions", origin="here", ignored=ignored)


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_spaces_survive_being_stored_as_plain_values(action: BoxActions | DiscreteActions) -> None:
    spec = SpaceSpec({"image": Column((2, 2), "uint8"), "speed": Column(())}, action)
    assert SpaceSpec.from_plain(spec.to_plain()) == spec
    assert spec.obs_dim == 5


def test_an_observation_that_is_not_what_the_policy_sees_is_refused() -> None:
    spec = SpaceSpec({"place": Column((2,)), "speed": Column(())}, DISCRETE)
    assert spec.encode({"place": [1, 2], "speed": 3}).tolist() == [1, 2, 3]
    assert spec.encode({"place": [[1, 2]], "speed": [3]}).tolist() == [[1, 2, 3]]
    with pytest.raises(ConfigError, match=r"obs has no 'speed': the policy sees 'place', 'speed'; did you mean 'sped'"):
        spec.encode({"place": [1, 2], "sped": 3})
    with pytest.raises(ConfigError, match=r"obs must have shape \(3,\) or \(batch, 3\), got \(2,\)"):
        spec.encode(np.zeros(2))


PARTS = {"place": Column((2,)), "goal": Column((1,))}
UNIT, WIDE = BoxActions((-1.0,), (1.0,)), BoxActions((-2.0,), (2.0,))


@pytest.mark.parametrize(
    ("policy", "env", "difference"),
    [
        (SpaceSpec.vector(3, UNIT), SpaceSpec.vector(3, UNIT), None),
        (SpaceSpec.vector(3, WIDE), SpaceSpec.vector(3, UNIT), "from -2 to 2, Task-v0 has continuous actions in 1"),
        # A policy that was trained on a file knows no names, and perhaps not all actions.
        (SpaceSpec.vector(3, UNIT), SpaceSpec(PARTS, UNIT), None),
        (SpaceSpec(PARTS, DiscreteActions(2)), SpaceSpec(PARTS, DiscreteActions(3)), "actions from 0 to 1, Task-v0"),
        (SpaceSpec.vector(3, DiscreteActions(2, 1)), SpaceSpec.vector(3, DiscreteActions(3)), "actions from 1 to 2"),
    ],
)
def test_a_policy_fits_where_sizes_and_kinds_agree(policy: SpaceSpec, env: SpaceSpec, difference: str | None) -> None:
    found = policy.check_env(env, "Task-v0")

    assert (found is None) == (difference is None)
    assert (difference or "") in (found or "")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (SpaceSpec.vector(4, DiscreteActions(3)), ["observations of 3 numbers (place 2, goal 1), Task-v0 has"]),
        (SpaceSpec({"goal": Column((1,)), "place": Column((2,))}, DiscreteActions(3)), ["(goal 1, place 2)"]),
        (SpaceSpec(PARTS, DiscreteActions(2)), ["for 3 discrete actions from 0 to 2, Task-v0 has 2 discrete"]),
        (SpaceSpec(PARTS, DiscreteActions(3, 1)), ["Task-v0 has 3 discrete actions from 1 to 3"]),
        (SpaceSpec.vector(2, UNIT), ["Task-v0 has observations of 2 numbers", "Task-v0 has continuous actions in 1"]),
    ],
)
def test_a_policy_does_not_fit_other_sizes_kinds_or_numbers(env: SpaceSpec, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        SpaceSpec(PARTS, DiscreteActions(3)).check_env(env, "Task-v0")

    assert len(caught.value.problems) == len(words)
    for problem, word in zip(caught.value.problems, words, strict=True):
        assert word in problem


def test_actions_are_confined_to_bounds_in_native_units() -> None:
    native = torch.tensor([[-3.0, 0.5], [1.0, 9.0]])

    confined = BoxActions((-2.0, 0.0), (2.0, 1.0)).confine(native)

    assert confined.tolist() == [[-2.0, 0.5], [1.0, 1.0]]
    assert BoxActions((-2.0, 0.0), (2.0, 1.0)).describe() == "continuous actions in 2 dimensions from [-2, 0] to [2, 1]"
