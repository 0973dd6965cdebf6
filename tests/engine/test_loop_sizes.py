"""Sizes that are the same in all iterations: what the analysis claims is compared with what a run records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.control_flow.frames import History, from_frame
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.containers.array_rows import ArrayLengths
from anabranch.engine.passes.loops.loop_sizes import LoopSizes

ops = ab.ops


def loops_of(graph: Any) -> list[Operation]:
    return [operation for operation in graph.operations if operation.type == "while"]


def _twice(x: Any, n: Any) -> Any:
    return ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ops.concatenate([y, y])), (0, x))[1]


def _tanh(x: Any, n: Any) -> Any:
    return ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ops.tanh(y) * x), (0, x))[1]


def _exchanged(x: Any, n: Any) -> Any:
    """The two change places: neither has one size."""
    return ab.while_loop(lambda i, *_: i < n, lambda i, a, b: (i + 1, b, a), (0, x, ops.concatenate([x, x])))[1]


def _alike(x: Any, n: Any) -> Any:
    return ab.while_loop(lambda i, *_: i < n, lambda i, a, b: (i + 1, b * 2.0, a), (0, x, ops.sin(x)))[1]


def _slices(x: Any, n: Any) -> Any:
    return ab.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + ops.sum(x[: i + 1] * 2.0)), (0, ops.sum(x)))[1]


def _branches(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.cond(i > 0, lambda: ops.concatenate([ops.sin(y), x]), lambda: ops.cos(y))

    return ab.while_loop(lambda i, _: i < n, body, (0, x))[1]


def _same_branches(x: Any, n: Any) -> Any:
    return ab.while_loop(
        lambda i, _: i < n, lambda i, y: (i + 1, ab.cond(i > 0, lambda: ops.sin(y), lambda: ops.cos(y) + x)), (0, x)
    )[1]


def _array_of(x: Any, n: Any) -> Any:
    return ab.TensorArray("float32", n).unstack(ops.broadcast_to(x, (n, ops.shape(x)[0], 2)))


def _rows(x: Any, n: Any) -> Any:
    rows = _array_of(x, n)
    return ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + rows.read(i)), (0, x))[1]


def _ragged(x: Any, n: Any) -> Any:
    array = ab.TensorArray("float32", n, element_shape=(None, 2), infer_shape=False)

    def body(i: Any, y: Any, a: Any) -> Any:
        a = a.write(i, ops.concatenate([x] * 2)[: 2 * i])
        return i + 1, y + ops.sum(a.read(i)), a

    return ab.while_loop(lambda i, *_: i < n, body, (0, x, array))[1]


def _inner(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, ops.sin(z)), (0, y))[1]

    return ab.while_loop(lambda i, _: i < n, body, (0, x))[1]


def _inner_grows(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        z = ab.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, ops.concatenate([z, x])), (0, x))[1]
        return i + 1, y + ops.sum(z)

    return ab.while_loop(lambda i, _: i < n, body, (0, x))[1]


def _stacked(x: Any, n: Any) -> Any:
    rows = _array_of(x, n)
    return ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + ops.sum(rows.stack() * y, 0)), (0, x))[1]


def _gathered(x: Any, n: Any) -> Any:
    rows = _array_of(x, n)
    return ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + ops.sum(rows.gather([i, 0]) * y, 0)), (0, x))[1]


def _scattered(x: Any, n: Any) -> Any:
    array = ab.TensorArray("float32", n, element_shape=(None, 2))

    def body(i: Any, y: Any, a: Any) -> Any:
        a = a.scatter([i], ops.expand_dims(y * x, 0))
        return i + 1, y + a.read(i), a

    return ab.while_loop(lambda i, *_: i < n, body, (0, x, array))[1]


def _scattered_of_other_sizes(x: Any, n: Any) -> Any:
    array = ab.TensorArray("float32", n, element_shape=(None, 2), infer_shape=False)

    def body(i: Any, y: Any, a: Any) -> Any:
        a = a.scatter([i], ops.expand_dims(ops.concatenate([x] * 2)[: 2 * i], 0))
        return i + 1, y + ops.sum(a.read(i)), a

    return ab.while_loop(lambda i, *_: i < n, body, (0, x, array))[1]


def _grows(x: Any, n: Any) -> Any:
    array = ab.TensorArray("float32", 0, dynamic_size=True, element_shape=(None, 2))

    def body(i: Any, y: Any, a: Any) -> Any:
        a = a.write(i, ops.sin(y))
        return i + 1, y + ops.sum(a.stack(), 0), a

    return ab.while_loop(lambda i, *_: i < n, body, (0, x, array))[1]


def _saved_of_branches(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        longer = ab.cond(i > 1, lambda: ops.sum(ops.exp(ops.concatenate([y, x])), 0), lambda: ops.sum(ops.sin(y), 0))
        return i + 1, ops.tanh(y * longer)

    return ab.while_loop(lambda i, _: i < n, body, (0, x))[1]


PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "twice": (_twice, False),
    "tanh": (_tanh, True),
    "exchanged": (_exchanged, False),
    "alike": (_alike, True),
    "slices": (_slices, True),
    "branches": (_branches, False),
    "same branches": (_same_branches, True),
    "rows": (_rows, True),
    "ragged": (_ragged, True),
    "inner": (_inner, True),
    "inner grows": (_inner_grows, True),
    "stacked": (_stacked, True),
    "gathered": (_gathered, False),  # there is no rule for it
    "scattered": (_scattered, True),
    "scattered of other sizes": (_scattered_of_other_sizes, True),
    "grows": (_grows, True),
    "saved of branches": (_saved_of_branches, True),
}


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_even_tensors_have_one_size_in_all_iterations(name: str, with_gradient: bool) -> None:
    """Fetch the lengths of all iterations of each tensor that is said to be even."""
    make, is_even = PROGRAMS[name]
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((None, 2), "float32"), ab.placeholder((), "int32")
        y = make(x, n)
        fetched = [y, *(ab.gradients(ops.sum(y * y), [x]) if with_gradient else [])]
        sizes, recorded = LoopSizes(), []
        first, *_ = loops = loops_of(graph)
        for loop in loops:
            sizes.look_at(loop)
            for operation in loop.op.regions[1].operations:
                for tensor in operation.outputs:
                    open_rows = isinstance(tensor.spec, TensorSpec) and bool(tensor.shape) and tensor.shape[0] is None
                    if open_rows and sizes.is_even(tensor, loop.op.regions[1]):
                        history = from_frame(loop.outputs[-1], History(tensor), tensor)
                        recorded.append(graph.add(ArrayLengths(), [history]).outputs[0])
        variable = first.op.regions[1].parameters[1]
        assert sizes.is_even(variable, first.op.regions[1]) == is_even
        feed = {x: np.random.default_rng(0).normal(size=(3, 2)).astype("float32"), n: np.int32(4)}
        _, lengths = ab.Session(graph).run((fetched, recorded), feed)
    assert recorded or not is_even or name == "slices"
    for each in lengths:
        assert len(set(each.tolist())) == 1


def test_state_has_the_batch_of_the_inputs_and_so_has_its_gradient() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, None, 3), "float32")
        y = ab.layers.GRU(4)(x)
        (gradient,) = ab.gradients(ops.sum(y * y), [x])
        sizes = LoopSizes()
        assert sizes.of(symbol_of(y)) == ((x, 0), 4)
        assert sizes.of(symbol_of(gradient)) == ((x, 0), (x, 1), 3)
        for loop in loops_of(graph):
            sizes.look_at(loop)
            body = loop.op.regions[1]
            tensors = [each for operation in body.operations for each in operation.outputs]
            assert all(sizes.is_even(each, body) for each in tensors if isinstance(each.spec, TensorSpec))


def test_number_of_elements_of_a_history_is_the_limit_of_a_loop_that_counts() -> None:
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((None, 2), "float32"), ab.placeholder((), "int32")
        _tanh(x, n)
        ab.while_loop(lambda y: ops.sum(y) < 9.0, lambda y: (y * 2.0,), (x,))
        sizes = LoopSizes()
        counted, other = loops_of(graph)
        found = [sizes.array(from_frame(each.outputs[-1], History(p), p)) for each, p in (
            (counted, counted.op.regions[1].parameters[1]), (other, other.op.regions[1].parameters[0]))]  # fmt: skip
        assert found[0] == ((n,), (x, 0), 2)
        assert found[1] == ((other.outputs[-1],), (x, 0), 2)
