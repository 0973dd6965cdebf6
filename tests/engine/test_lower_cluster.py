"""Clusters: what needs the same late values is one node, and nothing is kept waiting by what it is joined with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from shared.machines import (
    Log,
    as_asked,
    assert_acyclic,
    assert_crosses_once,
    assert_joined,
    assert_local,
    by_name,
    fed,
    graph_on,
    of_kind,
    run,
)

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower.nodes import Machine, Node
from anabranch.engine.machine.program import MachineProgram

graph = graph_on(cpu=4)
x = fed("float32", "x")


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    program = MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, **{"assign": as_asked(), **options})
    assert_acyclic(program.machine)
    assert_crosses_once(program.machine)
    assert_joined(program.machine)
    assert_local(program.machine)
    return program


def clusters(machine: Machine) -> list[list[str]]:
    """The types of the operations of each node."""
    return sorted([operation.type for operation in node.operations] for node in of_kind(machine, "op"))


def node_of(machine: Machine, kind: str) -> Node:
    """The node of the only operation of a type."""
    found = [node for node in of_kind(machine, "op") for operation in node.operations if operation.type == kind]
    assert len(found) == 1
    return found[0]


def test_that_several_that_are_joined_have_run_crosses_once(x: Symbol):
    """Operations that wait for one of them or for another wait for the same: they are joined, too."""
    first, second = ab.Variable(1.0, name="first"), ab.Variable(2.0, name="second")
    with ab.device("cpu:1"):
        updates = [first.assign(x), second.assign(x * 2.0)]
    with ab.control_dependencies([updates[0]]):
        a = ops.sin(x)
    with ab.control_dependencies([updates[1]]):
        b = ops.cos(x)
    with ab.control_dependencies(updates):
        c = ops.tan(x)
    program = machine([a, b, c], [x], assign=by_name({"assign": "cpu:1", "multiply": "cpu:1"}))
    assert ["cos", "sin", "tan"] in [sorted(types) for types in clusters(program.machine)]
    assert len(of_kind(program.machine, "recv")) == 2  # x there, and that they have run back
    value = np.float32(0.5)
    np.testing.assert_allclose(program(value), [np.sin(value), np.cos(value), np.tan(value)], rtol=1e-6)
    assert [first.numpy(), second.numpy()] == [0.5, 1.0]


def test_what_needs_the_same_is_joined(x: Symbol):
    with ab.device("cpu:1"):
        far = ops.exp(x)
    first = ops.sin(x) * ops.cos(x)  # need what is fed alone
    second = ops.tan(far) - first  # need what is received
    program = machine([first, second], [x])
    assert clusters(program.machine) == sorted([["exp"], ["sin", "cos", "multiply"], ["tan", "subtract"]])
    assert len(node_of(program.machine, "multiply").specs) == 1  # the sine and the cosine stay inside
    value = np.float32(0.5)
    product = np.sin(value) * np.cos(value)
    np.testing.assert_allclose(run(program, [value]), [product, np.tan(np.exp(value)) - product], rtol=1e-6)


def test_devices_are_not_joined(x: Symbol):
    results: list[Tensor] = []
    for device in ("cpu:0", "cpu:1", "cpu:0", "cpu:1"):
        with ab.device(device):
            results.append(ops.sin(x) + float(len(results)))
    program = machine(results, [x])
    assert len(of_kind(program.machine, "op")) == 2
    run(program, [np.float32(0.5)])


def test_a_counter_is_not_joined_with_what_it_counts(x: Symbol):
    def body(i: Tensor, y: Tensor, far: Tensor) -> Any:
        with ab.device("cpu:1"):
            far = ops.exp(far)
        return i + 1, ops.tanh(y) * 2.0, far

    names = {"far": "cpu:1"}
    fetches = ab.while_loop(lambda i, *_: i < 5, lambda i, y, far: body(i, y, far), (0, x, x), name="loop")
    program = machine(fetches, [x], assign=by_name(names))
    counting, carrying = node_of(program.machine, "add"), node_of(program.machine, "tanh")
    assert counting is not carrying
    assert node_of(program.machine, "multiply") is carrying
    assert [operation.type for operation in node_of(program.machine, "less").operations] == ["less"]
    run(program, [np.float32(0.5)])


def test_what_is_sent_does_not_wait_for_what_is_received(x: Symbol):
    """Merely convex clusters would: `there` and `after` are on the same device, and nothing between them."""
    log = Log()
    with ab.device("cpu:0"):
        there = ops.sin(x)
        beside = ops.cos(x)
    with ab.device("cpu:1"):
        back = log.note("back", 0, there * 2.0)
    after = log.note("after", 0, beside + back)
    program = machine([after], [x])
    assert node_of(program.machine, "sin") is node_of(program.machine, "cos")
    assert node_of(program.machine, "sin") is not node_of(program.machine, "add")
    run(program, [np.float32(0.5)])
    assert log.entries == [("back", 0), ("after", 0)]


def test_branches_are_not_joined_with_each_other_or_with_what_is_outside(x: Symbol):
    p = ab.placeholder((), "bool", "p")

    def on(device: str, function: Any) -> Any:
        with ab.device(device):
            return function(x)

    yes = ab.cond(p, lambda: ops.sin(x) + on("cpu:1", ops.exp), lambda: ops.cos(x) - on("cpu:1", ops.log))
    program = machine([yes, ops.tan(x)], [p, x])
    nodes = {kind: node_of(program.machine, kind) for kind in ("sin", "cos", "tan")}
    assert len(set(nodes.values())) == 3
    for taken, expected in [(True, np.sin(0.5) + np.exp(0.5)), (False, np.cos(0.5) - np.log(0.5))]:
        found = run(program, [np.bool_(taken), np.float32(0.5)])
        np.testing.assert_allclose(found, [expected, np.tan(0.5)], rtol=1e-6)


def test_loops_of_one_device_stand_alone(x: Symbol):
    def looped(y: Tensor) -> Tensor:
        return ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.tanh(y)), (0, y))[1]

    with ab.device("cpu:1"):
        far = ops.exp(x)
    first, second = looped(ops.sin(x)), looped(ops.cos(x))
    program = machine([first + second, far, ops.tan(x)], [x])
    alone = [node for node in of_kind(program.machine, "op") if any(o.op.regions for o in node.operations)]
    assert [[operation.type for operation in node.operations] for node in alone] == [["while"], ["while"]]
    assert node_of(program.machine, "sin") is node_of(program.machine, "tan")
    assert node_of(program.machine, "add") is not node_of(program.machine, "tan")
    run(program, [np.float32(0.5)])


def test_effects_in_a_cluster_keep_their_order(x: Symbol):
    v = ab.Variable(1.0, dtype="float32", name="v")
    fetches: list[Tensor] = []
    with ab.device("cpu:1"):
        far = ops.exp(x * 0.0)
    for step in range(4):
        fetches.append(v.value * 10.0)
        fetches.append(v.assign_add(x if step % 2 else far))
    for seed in (None, 0, 1, 2):
        program = machine(fetches, [x], seed=seed)
        start = v.numpy()
        found = run(program, [np.float32(2)])
        expected: list[float] = []
        for step in range(4):
            expected += [start * 10, start + (2 if step % 2 else 1)]
            start = expected[-1]
        np.testing.assert_array_equal(found, expected)
    assert max(len(node.operations) for node in of_kind(program.machine, "op")) > 1


def test_without_clusters_every_operation_is_a_node(x: Symbol):
    with ab.device("cpu:1"):
        far = ops.exp(x)
    y = ops.sin(x) * ops.cos(x) + far
    program = MachineProgram(ab.get_default_graph(), [symbol_of(y)], [x], exact=True, assign=as_asked(), clusters=False)
    assert all(len(node.operations) == 1 for node in of_kind(program.machine, "op"))


def test_one_device_is_one_cluster(x: Symbol):
    y = ops.sin(x) * ops.cos(x) + ops.exp(x)
    program = machine([y, y * 2.0], [x])
    (node,) = of_kind(program.machine, "op")
    assert len(node.operations) == 6
    assert len(node.specs) == 2
    np.testing.assert_allclose(run(program, [np.float32(0)]), [1, 2])
