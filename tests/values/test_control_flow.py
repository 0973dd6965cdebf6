"""Loops and branches over values. Each holds for Keras, too, where it has the names."""

from typing import Any

import pytest
from shared.values import same

import anabranch as k


def test_python_while_over_values() -> None:
    number, steps = k.ops.array(27), 0
    while number != 1 and steps < 200:
        number = number // 2 if number % 2 == 0 else number * 3 + 1
        steps += 1
    assert steps == 111


def test_while_loop_on_values() -> None:
    count, total = k.ops.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (k.ops.array(0), k.ops.array(1.0)))
    assert int(count) == 5
    assert float(total) == 32.0
    limit = k.ops.array(3)
    (count,) = k.ops.while_loop(lambda i: i < limit, lambda i: (i + 1,), (k.ops.array(0),))
    assert int(count) == 3
    (count,) = k.ops.while_loop(lambda i: i < 100, lambda i: (i + 1,), (0,), maximum_iterations=7)
    assert int(count) == 7


def test_arrays_of_values_as_text() -> None:
    values = k.TensorArray("float32", 2)
    assert repr(values).startswith("<TensorArray ")
    assert "float32" in repr(values)
    named = k.TensorStore("float32")
    assert repr(named).startswith("<TensorStore ")
    assert "float32" in repr(named)


def test_cond_on_values() -> None:
    x = k.ops.array(3.0)
    same(k.ops.cond(x > 2, lambda: x * 2, lambda: x * 3), 6.0)
    same(k.ops.cond(x > 4, lambda: x * 2, lambda: x * 3), 9.0)


def test_cond_acts_in_one_branch() -> None:
    v = k.Variable(1.0)
    k.ops.cond(k.ops.array(True), lambda: v.assign(v + 1), lambda: v.assign(v + 100))
    assert float(v) == 2.0


def test_scan_and_loops_on_values() -> None:
    x = k.ops.array([1.0, 2.0, 3.0])
    last, sums = k.ops.scan(lambda carry, item: (carry + item, carry + item), k.ops.array(0.0), x)
    assert float(last) == 6.0
    same(sums, [1.0, 3.0, 6.0])
    same(k.ops.fori_loop(0, 4, lambda i, total: total + x, k.ops.zeros((3,))), [4.0, 8.0, 12.0])
    same(k.ops.vectorized_map(lambda item: item * 2, x), [2.0, 4.0, 6.0])
    same(k.ops.switch(k.ops.array(1), [lambda: x, lambda: -x]), [-1.0, -2.0, -3.0])


def test_loops_write_variables() -> None:
    v, w = k.Variable(0.0), k.ops.array(2.0)

    def body(i):
        v.assign(v + w)
        return (i + 1,)

    k.while_loop(lambda i: i < 4, body, (k.ops.array(0),))
    assert float(v) == 8.0


def test_an_error_of_a_store_is_the_only_one() -> None:
    store = k.TensorStore("float32").write(1, 2.0)
    with pytest.raises(LookupError, match="key 7 is read, but no operation before wrote it") as caught:
        store.read(7)
    assert caught.value.__context__ is None  # nothing of how plans are looked up


CAPTURING = {
    "itself": (lambda v: v * v, 2.0),
    "beside an equal number": (lambda v: v * 1.0 + 1.0, 1.0),
    "a loop": (lambda v: k.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * v), (0, 1.0))[1], 3.0),
    "a loop and around it": (
        lambda v: v + k.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * v), (0, 1.0))[1],
        4.0,
    ),
    "a branch": (lambda v: k.cond(k.placeholder((), "bool", "p"), lambda: v * v, lambda: v), 2.0),
    "a branch in a loop": (
        lambda v: k.while_loop(
            lambda i, _: i < 2, lambda i, x: (i + 1, k.cond(i > 0, lambda: x * v, lambda: x + v)), (0, 1.0)
        )[1],
        3.0,
    ),
    "a scan": (lambda v: k.scan(lambda a, x: (a * v + x, a), 1.0, k.ops.ones(2))[0], 3.0),
}


@pytest.mark.parametrize("name", CAPTURING)
def test_gradients_by_values_that_a_graph_captures(name: str) -> None:
    """A value is one constant of the graph, whose uses in loops and branches count; equal numbers are not it."""
    build, expected = CAPTURING[name]
    v = k.constant(1.0)
    with k.Graph().as_default() as graph:
        (dv,) = k.gradients(build(v), [v])
        feeds = {node.outputs[0]: True for node in graph.operations if node.name == "p"}
        assert float(k.Session(graph).run(dv, feeds)) == expected
    if name != "a branch":
        assert float(k.function(lambda: k.gradients(build(v), [v])[0])()) == expected


@pytest.mark.parametrize("traced", [False, True])
def test_control_dependencies_on_effects(traced: bool) -> None:
    """One program does for both: effects that have run outside of graphs are waited for in a function."""
    v = k.Variable(1.0)

    def compute(x: Any) -> Any:
        with k.control_dependencies([k.ops.assert_greater(x, 0.0), v.assign_add(x), k.no_op()]):
            return x * 1.0

    assert float((k.function(compute) if traced else compute)(k.ops.array(2.0))) == 2.0
    assert float(v.numpy()) == 3.0
    with k.Graph().as_default(), pytest.raises(TypeError, match="operations and tensors, not NoneType"):
        k.control_dependencies([None])


def test_loops_without_iterations_lose_no_gradients() -> None:
    """Their functions are traced for the shapes of results alone, with values of weights that they take from around."""
    v, rows = k.Variable([1.0, 2.0]), k.ops.zeros((0, 2))
    with k.GradientTape() as tape:
        doubled = v * 2
        last, sums = k.scan(lambda carry, row: (carry * doubled, row + doubled), doubled, rows)
        mapped = k.map_fn(lambda row: row * doubled, rows)
        y = k.ops.sum(last) + k.ops.sum(sums) + k.ops.sum(mapped)
    assert (sums.shape, mapped.shape) == ((0, 2), (0, 2))
    same(tape.gradient(y, v), [2.0, 2.0])
