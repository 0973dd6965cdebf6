"""Users of tensors that rewriting loops notes are those that a walk through the graph finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph import Symbol
from anabranch.engine.graph.graph import Operation
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.passes.loops.users import Users


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every answer is compared with such a walk; gives the numbers of operations that were found."""
    counts: list[int] = []
    takers: Callable[[Users, Symbol], list[Operation]] = Users.takers

    def compare(self: Users, tensor: Symbol) -> list[Operation]:
        found = takers(self, tensor)
        effects = [operation for operation in self.graph.operations if operation.writes]
        needed = needed_operations(self.graph, [*self.kept, *self._awaited, *effects])
        assert found == [operation for operation in needed if any(each is tensor for each in operation.inputs)]
        counts.append(len(found))
        return found

    monkeypatch.setattr(Users, "takers", compare)
    return counts


def states(x: Any, kernel: Any, recurrent: Any) -> Any:
    rows = ab.TensorArray("float32", size=12, element_shape=(3, 4)).unstack(x)

    def body(t: Any, h: Any, sums: Any) -> Any:
        h = ops.tanh(rows.read(t) @ kernel + h @ recurrent)
        return t + 1, h, sums.write(t, h * 2.0)

    empty = ab.TensorArray("float32", size=12, element_shape=(3, 4))
    return ab.while_loop(lambda t, *_: t < 12, body, (0, ops.zeros((3, 4)), empty))[2].stack()


def recurrent_net(x: Any) -> Any:
    kernel, recurrent = ab.constant(np.eye(4, dtype="float32")), ab.constant(np.eye(4, dtype="float32") * 0.5)
    loss = ops.sum(states(states(x, kernel, recurrent), recurrent, kernel) ** 2)
    return [loss, *ab.gradients(loss, [x, kernel, recurrent])]


def bidirectional(x: Any) -> Any:
    loss = ops.sum(layers.Bidirectional(layers.LSTM(6))(ops.transpose(x, (1, 0, 2))) ** 2)
    return [loss, *ab.gradients(loss, [x])]


def nested(x: Any) -> Any:
    """A loop inside a branch inside a loop, with second derivatives."""

    def body(i: Any, s: Any) -> Any:
        inner = lambda: ab.while_loop(lambda j, _: j < 5, lambda j, r: (j + 1, ops.sin(r) * x[0]), (0, s))[1]  # noqa: E731
        return i + 1, ab.cond(ops.sum(s) > 0, inner, lambda: s * 1.5)

    loss = ops.sum(ab.while_loop(lambda i, _: i < 6, body, (0, x[1]))[1])
    (slope,) = ab.gradients(loss, [x])
    return [loss, slope, *ab.gradients(ops.sum(slope * slope), [x])]


@pytest.mark.parametrize("build", [recurrent_net, bidirectional, nested])
def test_users_are_those_that_a_walk_finds(checked: list[int], build: Callable[[Any], Any]):
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((12, 3, 4), "float32", "x")
        targets = build(x)
        ab.Session(graph).program(targets, [x])
    assert max(checked) > 0
