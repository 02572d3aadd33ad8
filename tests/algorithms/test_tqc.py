"""TQC's formulas on numbers that can be checked by hand, and beside loops that follow the text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peers import batches, build
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base.losses import quantile_huber_loss
from rl_training.algorithms.tqc import (
    pooled_atoms,
    quantile_objective,
    quantile_spread,
    truncated_atoms,
)

AUTHORS: dict[str, Any] = {"num_critics": 5, "num_quantiles": 25, "critic_hidden_sizes": (512, 512, 512)}
"""The critics of the authors' code."""


def test_the_largest_atoms_of_all_critics_together_are_dropped() -> None:
    quantiles = torch.tensor([[[1.0, 5.0, 9.0]], [[2.0, 6.0, 10.0]]])
    assert pooled_atoms(quantiles).tolist() == [[1, 2, 5, 6, 9, 10]]
    assert truncated_atoms(quantiles, 1).tolist() == [[1, 2, 5, 6]]
    assert truncated_atoms(quantiles, 0).tolist() == [[1, 2, 5, 6, 9, 10]]


def test_a_critic_that_is_higher_loses_the_atoms_of_the_others() -> None:
    # One per critic is two atoms in all; both are the second critic's. Cutting each by itself would leave 1, 2, 10, 20.
    quantiles = torch.tensor([[[3.0, 1.0, 2.0]], [[30.0, 10.0, 20.0]]])
    assert truncated_atoms(quantiles, 1).tolist() == [[1, 2, 3, 10]]


def test_rows_keep_their_own_atoms() -> None:
    # (E, B, M) = (2, 2, 2): the first row has 0, 1 and 4, 5, the second 2, 3 and 6, 7.
    quantiles = torch.arange(8.0).reshape(2, 2, 2)
    assert pooled_atoms(quantiles).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(("hyper", "kept"), [({}, 46), (AUTHORS, 115), ({"dropped_quantiles": 5}, 40)])
def test_so_many_atoms_are_left(hyper: dict[str, Any], kept: int) -> None:
    # 2 * (25 - 2), 5 * (25 - 2) and 2 * (25 - 5).
    algorithm: Any = build("tqc", **hyper)
    assert algorithm.targets(batches(1, size=4)[0]).shape == (4, kept)


def test_each_pair_of_quantile_and_atom_is_weighed_by_its_level_and_side() -> None:
    # Quantiles 0 and 1 at levels 1/4 and 3/4; atoms 0.5 and 3. Errors 0.5 and 3 of the first, -0.5 and 2 of the second:
    # 1/4 * 0.125, 1/4 * 2.5, (1 - 3/4) * 0.125 and 3/4 * 1.5.
    quantiles = torch.tensor([[0.0, 1.0]])
    pairs = {0.5: (0.03125, 0.03125), 3.0: (0.625, 1.125)}
    for atom, losses in pairs.items():
        loss = quantile_huber_loss(quantiles=quantiles, target_atoms=torch.tensor([[atom]]))
        assert float(loss) == pytest.approx(sum(losses) / 2)
    # The mean of all four; a sum over quantiles would be twice as large.
    loss = quantile_huber_loss(quantiles=quantiles, target_atoms=torch.tensor([[0.5, 3.0]]))
    assert float(loss) == pytest.approx(0.453125)


def test_one_quantile_and_one_atom_make_half_a_huber_loss() -> None:
    values, targets = torch.tensor([0.0, 2.0, -1.0, 5.0]), torch.tensor([0.5, -2.0, -1.0, 5.9])
    loss = quantile_huber_loss(quantiles=values[None, :, None], target_atoms=targets[:, None])
    torch.testing.assert_close(loss, 0.5 * functional.huber_loss(values, targets))


def test_quantiles_rest_where_the_atoms_are_shared_out_by_their_levels() -> None:
    # Level 1/4: three atoms above, each pulling with 1/4, and one below, with 3/4. Level 3/4: the reverse. All atoms
    # are more than 1 away, where the pull does not depend on the distance.
    atoms = torch.tensor([[-30.0, -10.0, 10.0, 30.0]])
    for values, rests in (([-20.0, 20.0], True), ([20.0, -20.0], False), ([0.0, 0.0], False)):
        quantiles = torch.tensor([[values]], requires_grad=True)
        loss = quantile_huber_loss(quantiles=quantiles, target_atoms=atoms)
        (gradient,) = torch.autograd.grad(loss, quantiles)
        assert torch.allclose(gradient, torch.zeros_like(gradient), atol=1e-7) == rests


def _naive_loss(quantiles: Tensor, atoms: Tensor) -> Tensor:
    critics, rows, count = quantiles.shape
    losses = []
    for critic in range(critics):
        for row in range(rows):
            for number in range(count):
                for atom in atoms[row]:
                    error = atom - quantiles[critic, row, number]
                    level = (number + 1 - 0.5) / count
                    weight = 1 - level if error < 0 else level
                    losses.append(weight * (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5))
    return torch.stack(losses).mean()


def test_loss_and_gradient_equal_a_loop_over_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles = 2 * torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    atoms = 2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    quantiles.requires_grad_()
    losses = [quantile_huber_loss(quantiles=quantiles, target_atoms=atoms), _naive_loss(quantiles, atoms)]
    found = [(loss.detach(), *torch.autograd.grad(loss, quantiles)) for loss in losses]
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("quantiles", "atoms"), [((2, 4, 3), (5, 6)), ((2, 4, 3), (4,)), ((2, 4, 3), (1, 4, 6))])
def test_atoms_of_another_shape_are_refused_instead_of_broadcast(
    quantiles: tuple[int, ...], atoms: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"quantiles must be \(\.\.\., B, M\) and target_atoms \(B, K\)"):
        quantile_huber_loss(quantiles=torch.zeros(quantiles), target_atoms=torch.zeros(atoms))


def test_the_spread_is_the_distance_of_the_5th_and_95th_percentile_of_all_atoms() -> None:
    # 0 to 20 over three critics, out of order: of 21 atoms, those of rank 1 and 19 are the percentiles.
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    one, wide = order.float(), 10 * order.float()
    # Two rows, one with ten times the distances: 18 and 180.
    quantiles = torch.stack([one.reshape(3, 7), wide.reshape(3, 7)], dim=1)
    assert float(quantile_spread(quantiles)) == pytest.approx(99.0)
    assert float(quantile_spread(torch.zeros(1, 2, 1))) == 0.0


def test_the_critics_report_values_as_means_of_quantiles() -> None:
    quantiles = torch.tensor([[[0.0, 2.0], [4.0, 6.0]]])
    metrics = quantile_objective(quantiles=quantiles, target_atoms=torch.zeros(2, 3))
    # Values 1 and 5.
    assert (float(metrics["q_mean"]), float(metrics["q_std"])) == (3.0, 2.0)
    apart = torch.cat([quantiles, quantiles + torch.tensor([2.0, 6.0])[:, None]])
    # Values 1 and 3, 5 and 11.
    assert float(quantile_objective(quantiles=apart, target_atoms=torch.zeros(2, 3))["q_std_ensemble"]) == 2.0
    algorithm, batch = build("tqc"), batches(1)[0]
    critic = algorithm.model.critic
    q = critic.quantiles(batch["obs"], batch["actions"])
    assert q.shape == (2, 32, 25)
    torch.testing.assert_close(critic(batch["obs"], batch["actions"]), q.mean(-1))
