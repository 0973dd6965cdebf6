"""Sizes that are known at run time only: which are known to be equal, and what is left out because of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy
from shared.examples import examples

import anabranch as ab
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.sizes import KnownSizes
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program


def _sizes(*tensors: Any) -> list[Any]:
    known = KnownSizes()
    return [known.of(tensor) for tensor in tensors]


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_of_rows() -> None:
    with ab.Graph().as_default():
        x, y = (ab.placeholder((None, 8), "float32") for _ in range(2))
        ids = ab.placeholder((None,), "int32")
        taken, other = ab.ops.take(x, ids, axis=0), ab.ops.take(y, ids // 2, axis=0)
        product = ab.ops.relu(ab.ops.matmul(taken, ab.ops.ones((8, 5))))
        column = ab.ops.expand_dims(ab.ops.sum(other, axis=1), -1)
        found = _sizes(taken, other, product, column, product * column, ab.ops.softmax(product), x, y)
    rows = (ids, 0)
    assert found == [(rows, 8), (rows, 8), (rows, 5), (rows, 1), (rows, 5), (rows, 5), ((x, 0), 8), ((y, 0), 8)]


def test_names_of_parts() -> None:
    with ab.Graph().as_default():
        x, y = (ab.placeholder((None, 8), "float32") for _ in range(2))
        to, other = (ab.placeholder((None,), "int32") for _ in range(2))
        parts = ab.ops.dynamic_partition(x, to, 2)
        alike, unlike = ab.ops.dynamic_partition(y, to, 2), ab.ops.dynamic_partition(x, other, 2)
        found = _sizes(*parts, *alike, *unlike)
    assert found[:2] == found[2:4]
    assert len({sizes[0] for sizes in found}) == 4


def test_programs_may_be_deeper_than_the_stack() -> None:
    with ab.Graph().as_default():
        x = y = ab.placeholder((None, 8), "float32")
        for _ in range(1500):
            y = ab.ops.tanh(y)
    assert _sizes(y) == [((x, 0), 8)]


def test_what_may_be_broadcast_has_the_names_of_all_it_may_be() -> None:
    with ab.Graph().as_default():
        x, y = (ab.placeholder((None, 8), "float32") for _ in range(2))
        open_rank = ab.placeholder(None, "float32")
        found = _sizes(x + y, y * (x + y), x + 1, x + ab.ops.ones((3, 1)), open_rank, open_rank * 2)
    both = ("broadcast", frozenset([(x, 0), (y, 0)]))
    assert found == [(both, 8), (both, 8), ((x, 0), 8), (3, 8), None, None]


_OPERATIONS = (
    lambda a, b, n: ab.ops.add(a, b),
    lambda a, b, n: ab.ops.multiply(a, ab.ops.sum(b, axis=n % 2, keepdims=True)),
    lambda a, b, n: ab.ops.matmul(a, ab.ops.transpose(b)),
    lambda a, b, n: ab.ops.matmul(ab.ops.transpose(a), b),
    lambda a, b, n: ab.ops.transpose(a),
    lambda a, b, n: ab.ops.concatenate([a, b], axis=n % 2),
    lambda a, b, n: ab.ops.take(a, ab.ops.cast(ab.ops.zeros_like(b)[:, 0], "int32"), axis=n % 2),
    lambda a, b, n: ab.ops.squeeze(ab.ops.expand_dims(a, n % 3), n % 3),
    lambda a, b, n: ab.ops.softmax(a),
    lambda a, b, n: ab.ops.split(a, [ab.ops.shape(a)[0]], axis=0)[0],
    lambda a, b, n: ab.ops.dynamic_partition(a, ab.ops.cast(ab.ops.zeros_like(b)[:, 0], "int32"), 2)[n % 2],
    lambda a, b, n: ab.ops.broadcast_to(a, ab.ops.shape(b)),
    lambda a, b, n: ab.ops.reshape(a, (ab.ops.shape(b)[0], -1)),
    lambda a, b, n: ab.ops.ones((ab.ops.shape(b)[0], 3)),
)


@settings(max_examples=examples(15, 60), deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.sampled_from(range(14)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)),
                   min_size=1, max_size=8),
    rows=st.tuples(*[st.sampled_from([1, 2, 3])] * 4),
)  # fmt: skip
def test_equal_names_are_equal_sizes(steps: list[tuple[int, int, int, int]], rows: tuple[int, ...]) -> None:
    """Whatever is computed: with any sizes for which it works, what has the same name is as long."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, None), "float32") for _ in range(2)]
        tensors: list[Any] = list(feeds)
        for kind, first, second, number in steps:
            tensors.append(_OPERATIONS[kind](tensors[first % len(tensors)], tensors[second % len(tensors)], number))
    known = _sizes(*tensors)
    values = [np.ones(rows[:2], "float32"), np.ones(rows[2:], "float32")]
    lengths: dict[Any, int] = {}
    for tensor, sizes in zip(tensors, known, strict=True):
        try:
            (found,) = Program(graph, [tensor], feeds, exact=True)(*values)
        except (ValueError, IndexError):
            continue  # these sizes do not fit
        assert len(sizes) == found.ndim
        for name, length in zip(sizes, found.shape, strict=True):
            assert lengths.setdefault(name, length) == length
            assert not isinstance(name, int) or name == length


# --- the pass -------------------------------------------------------------------------------------------------------


def _gated() -> tuple[Any, ...]:
    """Rows taken from a table, times a gate each: graph, fetches (gradients, too) and feeds."""
    with ab.Graph().as_default() as graph:
        x, gates = ab.placeholder((20, 8), "float32"), ab.placeholder((20,), "float32")
        ids = ab.placeholder((None,), "int32")
        rows = ab.ops.tanh(ab.ops.take(x, ids, axis=0))
        gated = rows * ab.ops.expand_dims(ab.ops.take(gates, ids, axis=0), -1)
        gradients = ab.gradients(ab.ops.sum(gated**3), [x, gates])
        second = ab.gradients(ab.ops.sum(ab.convert_to_tensor(gradients[0]) ** 2), [x, gates])
        fetches = [gated, *[ab.convert_to_tensor(gradient) for gradient in (*gradients, *second)]]
    return graph, fetches, [x, gates, ids]


def _types(graph: ab.Graph, fetches: list[Any], feeds: list[Any]) -> list[str]:
    return [operation.type for operation in prepare(graph, fetches, feeds).operations]


def test_nothing_is_summed_where_shapes_are_the_same() -> None:
    assert "sum_to_shape" not in _types(*_gated())
    with without("same_shapes"):
        assert "sum_to_shape" in _types(*_gated())


@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_values(count: int) -> None:
    graph, fetches, feeds = _gated()
    rng = np.random.default_rng(count)
    values = [rng.uniform(-1, 1, shape).astype("f") for shape in ((20, 8), (20,))]
    ids = rng.integers(0, 20, count).astype("int32")
    found = check_against_numpy(graph, fetches, feeds, [*values, ids], 1e-5)
    with without("same_shapes"):
        for result, expected in zip(found, Program(graph, fetches, feeds, exact=True)(*values, ids), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_what_may_be_broadcast_is_summed() -> None:
    """Rows of two placeholders may be as many, or those of one a single one."""
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 8), "float32") for _ in range(2))
        gradients = ab.gradients(ab.ops.sum(x * y), [x, y])
        fetches = [ab.convert_to_tensor(gradient) for gradient in gradients]
    assert _types(graph, fetches, [x, y]).count("sum_to_shape") == 2
    one, many = np.full((1, 8), 2, "f"), np.arange(24, dtype="f").reshape(3, 8)
    found = check_against_numpy(graph, fetches, [x, y], [one, many], 0)
    np.testing.assert_array_equal(found[0], many.sum(axis=0, keepdims=True))
    np.testing.assert_array_equal(found[1], np.repeat(one, 3, axis=0))


def test_sums_over_known_axes() -> None:
    """The gradients of a bias, of which there is one for all rows, and of a number for each row."""
    with ab.Graph().as_default() as graph:
        x, bias = ab.placeholder((None, 8), "float32"), ab.placeholder((8,), "float32")
        total = (x + bias) * ab.ops.sum(x, axis=1, keepdims=True)
        (gradient,) = ab.gradients(ab.ops.sum(total * total), [bias])
        fetches = [ab.convert_to_tensor(gradient)]
    types = _types(graph, fetches, [x, bias])
    assert "sum_to_shape" not in types
    values = np.random.default_rng(0).uniform(-1, 1, (5, 8)).astype("f")
    found = check_against_numpy(graph, fetches, [x, bias], [values, np.ones(8, "f")], 1e-6)
    sums = values.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[0], (2 * (values + 1) * sums**2).sum(axis=0), rtol=1e-5)


def test_what_is_fetched_stays() -> None:
    """The tensor that is asked for is there, even where it is only another name."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 8), "float32")
        same = ab.ops.broadcast_to(ab.ops.exp(x), ab.ops.shape(x))
        fetches = [same, same + 1]
    check_against_numpy(graph, fetches, [x], [np.ones((3, 8), "f")], 1e-6)


def test_a_small_value_is_asked_for_its_size() -> None:
    with ab.Graph().as_default() as graph:
        table, ids = ab.placeholder((20, 64), "float32"), ab.placeholder((None,), "int32")
        count = ab.ops.shape(ab.ops.take(table, ids, axis=0) * 2)[0]
    step = prepare(graph, [count], [table, ids])
    assert [operation.type for operation in step.operations if operation.type in ("take", "multiply")] == []
    (found,) = Program(graph, [count], [table, ids])(np.ones((20, 64), "f"), np.zeros(7, "int32"))
    assert found == 7


def test_in_loops_and_branches() -> None:
    with ab.Graph().as_default() as graph:
        x, ids = ab.placeholder((20, 8), "float32"), ab.placeholder((None,), "int32")

        def body(k: Any, total: Any) -> Any:
            rows = ab.ops.take(x, ids, axis=0)
            gated = rows * ab.ops.expand_dims(ab.ops.take(total[:, 0], ids, axis=0), -1)
            chosen = ab.cond(k > 1, lambda: ab.ops.tanh(gated), lambda: gated * rows)
            return k + 1, total + ab.ops.sum(chosen) / 100

        _, last = ab.while_loop(lambda k, total: k < 4, body, (ab.ops.zeros((), "int32"), x))
        (gradient,) = ab.gradients(ab.ops.sum(last), [x])
        fetches = [last, ab.convert_to_tensor(gradient)]
    values = np.random.default_rng(0).uniform(-1, 1, (20, 8)).astype("f")
    check_against_numpy(graph, fetches, [x, ids], [values, np.array([3, 3, 19, 0], "int32")], 1e-5)
