"""Placement of what loops carry, record and sum up; and placements that follow others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.control_flow.frames import History, Saved
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Graph, Operation
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.elementwise import Add
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.place import (
    CostModel,
    Device,
    Layout,
    Placement,
    PlacementError,
    make_devices,
    on_one_device,
    place,
    search,
    simulate,
)
from anabranch.engine.place.kernels import all_operations
from anabranch.engine.place.simulate import Durations


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with ab.Graph().as_default() as made:
        yield made


def placed(fetches: Sequence[Any], devices: Sequence[Device], **options: Any) -> Placement:
    return place(needed_operations(fetches[0].graph, fetches), (), devices, **options)


def slow(count: int) -> list[Device]:
    """CPUs on which computing costs much and transfers little."""
    return make_devices(cpu={"count": count, "flops": 1e6, "bandwidth": 1e12, "latency": 0, "kernel_latency": 0})


def test_a_loop_variable_that_the_body_does_not_read():
    x = ab.placeholder((4, 4), "float32")
    i, latest, _ = ab.while_loop(lambda i, y, z: i < 9, lambda i, y, z: (i + 1, x @ x, z), (0, x, x))
    found = placed([i, latest], slow(2))
    assert {found[i.operation].kind for i in (i, latest)} == {"cpu"}
    assert all(found[o].kind == "cpu" for o in found)


def test_a_loop_variable_that_only_the_condition_reads():
    x = ab.placeholder((), "float32")
    found = placed([ab.while_loop(lambda y, k: y < 9.0, lambda y, k: (x * 2.0, k + 1), (x, 0))[1]], slow(2))
    assert found.seconds >= 0


@pytest.mark.parametrize("where", ["cpu:0", "cpu:1"])
def test_records_are_where_their_values_are_made(where: str):
    x = ab.placeholder((3,), "float32")

    def body(i: Any, y: Any) -> Any:
        with ab.device(where):
            z = ops.tanh(y)
        with ab.device("cpu:0"):
            return i + 1, z * y

    y = ab.while_loop(lambda i, _: i < 5, body, (0, x))[1]
    z = ab.cond(ops.sum(y) > 0, lambda: ops.sin(y) * y, lambda: y)
    with ab.device("cpu:1"):  # gradients ask for nothing here that records could not keep
        slope = ab.gradients(ops.sum(z), [x])[0]
    found = placed([slope], slow(2))
    taken = [operation for operation in found if isinstance(operation.op, (History, Saved))]
    assert taken
    inner: Any
    for operation in taken:
        inner = operation.op
        if inner.inner.operation in list(found):
            assert found[operation] == found[inner.inner.operation]


def test_a_running_sum_is_with_its_terms():
    """The gradient of a weight that each iteration uses is added up where its products are made."""
    x = ab.placeholder((32, 32), "float32")
    weights = [ab.placeholder((32, 32), "float32") for _ in range(3)]

    def body(i: Any, y: Any) -> Any:
        for w in weights:
            y = ops.tanh(y @ w)
        return i + 1, y

    y = ab.while_loop(lambda i, _: i < 8, body, (0, x))[1]
    slopes = ab.gradients(ops.sum(y), weights)
    found = placed(slopes, slow(4))
    sums = 0
    for loop in [operation for operation in found if isinstance(operation.op, While)]:
        body_of = loop.op.regions[1]
        for parameter, result in zip(body_of.parameters, body_of.results, strict=True):
            adding = result.operation
            if not isinstance(adding.op, Add) or parameter not in adding.inputs or adding.inputs[0].shape == ():
                continue
            (term,) = [tensor for tensor in adding.inputs if tensor is not parameter]
            assert found[adding] == found[term]
            sums += 1
    assert sums == 3


def test_a_request_for_a_running_sum_is_kept():
    x = ab.placeholder((8, 8), "float32")
    made: list[Operation] = []

    def body(i: Any, total: Any) -> Any:
        with ab.device("cpu:0"):
            term = x @ x
        with ab.device("cpu:1"):
            total = total + term
        made.extend([symbol_of(term).operation, total.operation])
        return i + 1, total

    y = ab.while_loop(lambda i, _: i < 8, body, (0, x))[1]
    found = placed([y], slow(2))
    assert [found[operation].name for operation in made[-2:]] == ["cpu:0", "cpu:1"]


# --- like another one -----------------------------------------------------------------------------------------------


def chain(length: int) -> list[Any]:
    y = ab.constant(np.eye(16, dtype="float32"))
    found = [y]
    for _ in range(length):
        found.append(ops.tanh(found[-1] @ found[-1]))
    return found


@settings(max_examples=examples(5, 15), deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=4))
def test_a_placement_like_another_one_is_the_same(length: int, moves: list[tuple[int, int]]):
    with ab.Graph().as_default():
        values = chain(length)
        devices = slow(3)
        first = placed(values[-1:], devices)
        for position, number in moves:
            first = first.moved(values[min(position, length)], f"cpu:{number}")
        again = placed(values[-1:], devices, like=first)
        assert {first.name_of(o): first[o].name for o in first} == {again.name_of(o): again[o].name for o in again}


def test_what_the_other_one_does_not_name_is_placed_by_cost():
    values = chain(2)
    like = placed(values[1:2], slow(2)).moved(values[1], "cpu:1")
    found = placed(values[-1:], slow(2), like=like)
    assert found[values[1]].name == "cpu:1"
    assert found[values[2]].name in ("cpu:0", "cpu:1")


def test_a_placement_that_contradicts_a_request_is_refused():
    x = ab.placeholder((4,), "float32")
    like = placed([ops.exp(x)], slow(2))
    like = like.moved(next(o for o in like if o.type == "exp"), "cpu:1")
    with ab.Graph().as_default():
        x = ab.placeholder((4,), "float32")
        with ab.device("cpu:0"):
            y = ops.exp(x)
        with pytest.raises(PlacementError, match=r"has 'exp' on cpu:1, but with what it is bound to it runs on cpu:0"):
            placed([y], slow(2), like=like)


def test_every_operation_inside_has_a_place():
    x = ab.placeholder((3,), "float32")
    y = ab.while_loop(lambda i, *_: i < 3, lambda i, a, b: (i + 1, ops.sin(b), a), (0, x, x))[2]
    operations = needed_operations(y.graph, [y])
    found = place(operations, (), slow(2))
    assert set(found) == set(all_operations(operations))


# --- whether it pays ------------------------------------------------------------------------------------------------


def two_products(size: int) -> list[Any]:
    x, y = (ab.placeholder((size, size), "float32") for _ in range(2))
    return [ops.sum(x @ x @ x) + ops.sum(y @ y @ y)]


def test_a_gain_that_is_eaten_up_by_the_host_is_given_up():
    found = placed(two_products(64), make_devices(cpu=2))
    assert len(set(found.values())) == 2
    assert found.if_it_pays(0.0) is found
    alone = found.if_it_pays(1e-3)
    assert {device.name for device in alone.values()} == {"cpu:0"}
    assert found.seconds < alone.seconds < found.seconds + 1e-3 * len(found)


def test_what_is_asked_for_is_not_given_up():
    x = ab.placeholder((4,), "float32")
    with ab.device("cpu:1"):
        y = ops.exp(x)
    found = placed([ops.sin(y)], slow(2))
    assert found.if_it_pays(1e9)[y].name == "cpu:1"


def test_memory_is_a_reason_for_several_devices():
    variables = [ab.Variable(np.zeros((100, 100), "float32")) for _ in range(2)]
    found = placed([sum([ops.sum(v) for v in variables])], make_devices(cpu={"count": 2, "memory_limit": 60_000}))
    assert len({found[v].name for v in variables}) == 2
    assert found.if_it_pays(1e9) is found


def written_in_a_loop(v: ab.Variable, inside: str | None) -> Any:
    def body(i: Any) -> Any:
        with ab.device(inside):
            v.assign_add([1.0, 2.0])
        return i + 1

    return ab.while_loop(lambda i: i < 3, body, [0])[0]


def written_in_a_branch(v: ab.Variable, inside: str | None) -> Any:
    def changed() -> Any:
        with ab.device(inside):
            return v.assign(v * 3.0 + [3.0, 6.0])

    return ab.cond(ab.constant(True), changed, lambda: v.assign_sub([1.0, 1.0]))


@pytest.mark.parametrize(("around", "inside"), [("cpu:1", None), (None, "cpu:1"), ("cpu:1", "cpu:1")])
@pytest.mark.parametrize("lies_on", ["cpu:0", "sim:0"])
@pytest.mark.parametrize("write", [written_in_a_loop, written_in_a_branch])
def test_a_variable_that_is_written_under_another_scope_stays_where_it_lies(
    write: Any, lies_on: str, around: str | None, inside: str | None, graph: Graph
):
    ab.config.set_devices(cpu=2, sim=1)
    try:
        with ab.device(lies_on):
            v = ab.Variable([0.0, 0.0])
        with ab.device(around):
            fetch = write(v, inside)
        ab.Session(graph).run(fetch)
        np.testing.assert_array_equal(v.numpy(), [3.0, 6.0])
        reads = [o for o in all_operations(needed_operations(graph, [fetch])) if o.type == "read_variable"]
        assert reads
        assert {ab.placement(fetch)[o].name for o in reads} == {lies_on}
    finally:
        ab.config.set_devices()


# --- where a device is named for nearly all that computes -------------------------------------------------------------


def bound_loop(seed: int, count: int) -> Any:
    """A loop of which all but the counter asks for one of `count` devices, by chance."""
    chosen = random.Random(seed)
    x = ab.placeholder((128, 128), "float32", "x")

    def body(i: Any, *carried: Any) -> Any:
        values = list(carried)
        for _ in range(6):
            with ab.device(f"cpu:{chosen.randrange(count)}"):
                values.append(ops.tanh(chosen.choice(values)) + chosen.choice([*values, x]))
        return i + 1, *values[-len(carried) :]

    found = ab.while_loop(lambda i, *_: i < 9, body, (0, x, x, x))
    with ab.device(f"cpu:{chosen.randrange(count)}"):
        return found[1] + found[2] + found[3]


@pytest.mark.parametrize("seed", range(8))
def test_values_go_to_the_best_places_after_few_simulations(monkeypatch: pytest.MonkeyPatch, seed: int):
    total = bound_loop(seed, 3)
    devices = make_devices(cpu={"count": 3, "bandwidth": 1e9, "latency": 1e-5})
    layout = Layout(needed_operations(total.graph, [total]), (), devices, CostModel())
    free = sorted({task.group for task in layout.tasks if len(layout.choices[task.group]) > 1})
    simulated: list[Sequence[int]] = []  # to their ends
    plain = Durations.of

    def counted(durations: Durations, places: Sequence[int], limit: float) -> float | None:
        seconds = plain(durations, places, limit)
        if seconds is not None:
            simulated.append(places)
        return seconds

    monkeypatch.setattr(Durations, "of", counted)
    found = search(layout)[1]
    assert 0 < len(simulated) <= 8 * len(free)
    assert len({tuple(places) for places in simulated}) == len(simulated)
    every = on_one_device(layout, 0)
    best = float("inf")
    for choice in itertools.product(*[layout.choices[group] for group in free]):
        for group, device in zip(free, choice, strict=True):
            every[group] = device
        best = min(best, simulate(layout, every).seconds)
    assert found.seconds <= 1.05 * best
