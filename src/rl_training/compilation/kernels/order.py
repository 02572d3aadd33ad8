"""The order in which a compiled graph computes, so that what it reads is still in the processor's cache."""

from __future__ import annotations

from typing import Any

import torch

Nodes = list[Any]
"""Nodes of torch's scheduler: each is one call in the compiled code."""


def by_use(nodes: Nodes) -> Nodes:
    """Each node right before the first that needs it, but results as soon as they can be computed.

    A result is what no product waits for, such as the gradient of a weight. So each member of an ensemble is
    computed forward and backward before the next, if nothing else binds them together. A weight is transposed right
    before the product, and the gradients of a layer follow each other. Random numbers are drawn in the order in which
    an eager update draws them.
    """
    graph = _Graph(nodes)
    gradients = [node for node in nodes if graph.is_result[node] and _is_product(node)]
    for node in (*gradients, *nodes):
        graph.compute(node)
    return list(graph.done)


class _Graph:
    """Nodes with those that they need and those that need them, and the order in which they are computed."""

    def __init__(self, nodes: Nodes) -> None:
        makers = {name: node for node in nodes for name in node.get_buffer_names()}
        self.needs: dict[Any, Nodes] = {}
        self.users: dict[Any, Nodes] = {node: [] for node in nodes}
        places = {node: place for place, node in enumerate(nodes)}
        drawn: set[Any] = set()
        for node in nodes:
            found = {makers[each.name] for each in node.unmet_dependencies if each.name in makers} - {node}
            if _draws(node):
                found |= drawn
                drawn = {node}
            # Last what depends on nothing else, such as a transposed weight.
            self.needs[node] = sorted(found, key=lambda need: (not self.needs[need], places[need]))
            for need in self.needs[node]:
                self.users[need].append(node)
        self.is_result: dict[Any, bool] = {}
        for node in reversed(nodes):
            self.is_result[node] = all(self.is_result[user] and not _is_product(user) for user in self.users[node])
        self.done: dict[Any, None] = {}

    def compute(self, node: Any) -> None:
        """Add a node to the order, after what it needs."""
        waiting = [node]
        while waiting:
            missing = [need for need in self.needs[waiting[-1]] if need not in self.done]
            if missing:
                waiting.append(missing[0])
            else:
                self.add(waiting.pop())

    def add(self, node: Any) -> None:
        """Add a node whose needs are met, and the results that can be computed then."""
        if node in self.done:
            return
        self.done[node] = None
        for user in self.users[node]:
            if self.is_result[user] and all(need in self.done for need in self.needs[user]):
                self.add(user)


def _is_product(node: Any) -> bool:
    """Whether a node calls loops of our own, or a library, as products in bfloat16 do."""
    return bool(node.is_template() or node.is_extern())


def _draws(node: Any) -> bool:
    """Whether a node draws from torch's generator of random numbers."""
    operator = getattr(node.node, "op_overload", None)
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
