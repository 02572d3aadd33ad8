"""Members of an ensemble are computed one after the other, and calls of a graph in an order that suits the cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.compilation.kernels.passes import by_use, take_apart

MEMBERS = 3


def gradient_parts(loss: Any, *values: Tensor) -> tuple[Tensor, ...]:
    """For each member of an ensemble, the gradient of a loss of all values; stacked as torch's compiler stacks."""
    stacked = torch.cat([each[:, None] for each in values]).reshape(MEMBERS, -1, 1).squeeze(-1).permute(0, 1)
    (gradient,) = torch.autograd.grad(loss(stacked.requires_grad_()), stacked)
    return tuple(gradient.unsqueeze(2).select(0, member).squeeze(1) for member in range(MEMBERS))


LOSSES = {
    "squares": (lambda values: (values - torch.arange(4.0)).square().mean(-1).sum(), True),
    "weighted squares": (lambda values: (torch.where(values > 0, 0.7, 0.3) * values.square()).mean(-1).sum(), True),
    "distances": (lambda values: (values - torch.arange(4.0)).abs().mean(), True),
    "the smallest": (lambda values: values.amin(0).mean(), False),
    "squares about the mean": (lambda values: (values - values.mean(0)).square().sum(), False),
}
"""By name, a loss of values (members, rows), and whether the members' gradients are independent of each other."""


def module_of(name: str, values: list[Tensor]) -> GraphModule:
    """The gradients of all members, taken apart."""
    from torch._inductor.decomposition import decompositions

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return gradient_parts(LOSSES[name][0], *values)

    module = make_fx(function, decomposition_table=decompositions, tracing_mode="fake")(*values)
    take_apart(module.graph)
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_gradients_stay_the_same(name: str) -> None:
    values = [torch.randn(4) for _ in range(MEMBERS)]

    for found, expected in zip(module_of(name, values)(*values), gradient_parts(LOSSES[name][0], *values), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_member_waits_for_others_only_where_the_loss_binds_them_together(name: str) -> None:
    graph = module_of(name, [torch.randn(4) for _ in range(MEMBERS)]).graph
    outputs: Any = graph.output_node().args[0]
    inputs = set(graph.find_nodes(op="placeholder"))
    is_apart = LOSSES[name][1]

    for output in outputs:
        needed: set[Any] = set()
        waiting = [output]
        while waiting:
            node = waiting.pop()
            needed.add(node)
            waiting += [each for each in node.all_input_nodes if each not in needed]
        assert len(needed & inputs) == (1 if is_apart else MEMBERS)


class Node:
    """A node of torch's scheduler, as far as an order depends on it."""

    def __init__(self, name: str, *needs: str, is_product: bool = False, operator: Any = None) -> None:
        self.name, self.is_product, self.node = name, is_product, SimpleNamespace(op_overload=operator)
        self.unmet_dependencies = [SimpleNamespace(name=need) for need in needs]

    def get_buffer_names(self) -> list[str]:
        """What it computes."""
        return [self.name]

    def is_template(self) -> bool:
        """Whether it calls loops of our own; as in float32."""
        return self.is_product and "backward" not in self.name

    def is_extern(self) -> bool:
        """Whether it calls a library; as in bfloat16."""
        return self.is_product and not self.is_template()


def test_each_call_comes_right_before_its_first_use_and_gradients_as_soon_as_they_can() -> None:
    nodes = [Node("rows")]
    for member in "ab":
        nodes += [Node(f"turned_{member}"), Node(f"forward_{member}", "rows", is_product=True)]
    nodes += [Node("metrics", "forward_a", "forward_b"), Node("target")]
    for member in "ab":
        nodes.append(Node(f"slopes_{member}", f"forward_{member}", "target"))
        nodes.append(Node(f"backward_{member}", f"slopes_{member}", f"turned_{member}", is_product=True))
        nodes.append(Node(f"first_{member}", f"backward_{member}", is_product=True))
    nodes += [Node(f"second_{member}", f"slopes_{member}", is_product=True) for member in "ab"]
    nodes.append(Node("norm", "first_a", "first_b", "second_a", "second_b"))

    found = [node.name for node in by_use(nodes)]

    assert found == [
        *("rows", "forward_a", "target", "slopes_a", "second_a", "turned_a", "backward_a", "first_a"),
        *("forward_b", "metrics", "slopes_b", "second_b", "turned_b", "backward_b", "first_b", "norm"),
    ]


def test_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    draw = torch.ops.aten.randn.default
    nodes = [Node("noise_a", operator=draw), Node("noise_b", operator=draw), Node("noise_c", operator=draw)]
    nodes += [Node(f"gradient_{member}", f"noise_{member}", is_product=True) for member in "cba"]

    found = [node.name for node in by_use(nodes) if node.name.startswith("noise")]

    assert found == ["noise_a", "noise_b", "noise_c"]
