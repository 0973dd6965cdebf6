"""`associative_scan` against a loop over the elements, with functions that do not commute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import assert_same, derivatives, repeat, run
from shared.examples import examples

import anabranch as ab
from anabranch.engine.passes.framework.prune import needed_operations

ops = ab.ops


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


def _linear(a: Any, b: Any) -> Any:
    """The composition of x -> m x + c, in a structure; it does not commute."""
    return {"m": b["m"] * a["m"], "c": b["m"] * a["c"] + b["c"]}


def _prefixes(f: Callable[[Any, Any], Any], elements: list[Any], reverse: bool) -> list[Any]:
    """One after the other."""
    ordered = elements[::-1] if reverse else elements
    found = ordered[:1]
    for element in ordered[1:]:
        found.append(f(found[-1], element))
    return found[::-1] if reverse else found


@given(st.integers(0, 17), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=examples(7, 30), deadline=None)
def test_products_of_matrices(length: int, first: bool, known: bool, reverse: bool, negative: bool, seed: int):
    axis = 0 if first else 1
    shape = (length, 3, 2, 2) if first else (3, length, 2, 2)
    at = np.random.default_rng(seed).normal(size=shape)
    with ab.Graph().as_default():
        x = ab.placeholder([d if known or k != axis else None for k, d in enumerate(shape)], "float64")
        found = ab.associative_scan(ops.matmul, x, reverse, axis - 4 if negative else axis)
        (value,) = run([found], {x: at})
    expected = _prefixes(np.matmul, list(np.moveaxis(at, axis, 0)), reverse)
    assert value.shape == shape
    np.testing.assert_allclose(value, np.stack(expected, axis) if expected else at, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 6, 7])
def test_derivatives(length: int, known: bool, reverse: bool):
    size = length if known else None
    m, c = ab.placeholder((size,), "float64", "m"), ab.placeholder((size,), "float64", "c")
    scanned = ab.associative_scan(_linear, {"m": m, "c": c}, reverse=reverse)
    elements = [{"m": m[k], "c": c[k]} for k in range(length)]
    plain = ops.stack([value["c"] for value in _prefixes(_linear, elements, reverse)])

    rng = np.random.default_rng(length)
    feeds = {m: rng.normal(size=length), c: rng.normal(size=length)}
    assert_same(derivatives(scanned["c"], [m, c], 2), derivatives(plain, [m, c], 2), feeds)


@pytest.mark.parametrize("known", [True, False])
def test_derivatives_of_no_elements(known: bool):
    x = ab.placeholder((0 if known else None, 2), "float64")
    found = run(derivatives(ab.associative_scan(lambda a, b: a * b, x), [x], 2), {x: np.zeros((0, 2))})
    assert [value.shape for value in found] == [(0, 2)] * 3


@pytest.mark.parametrize("length", [2, 3, 16, 17, 100])
def test_work_is_linear_in_the_length(length: int, graph: ab.Graph):
    handled: list[int] = []

    def f(a: Any, b: Any) -> Any:
        handled.append(a.shape[0])
        return a + b

    found = ab.associative_scan(f, ab.constant(np.arange(length)))
    np.testing.assert_array_equal(run([found])[0], np.cumsum(np.arange(length)))
    assert sum(handled) < 2 * length
    assert len(handled) <= 2 * np.log2(length)
    assert not any(operation.type == "while" for operation in needed_operations(graph, [found]))


def test_several_dtypes_and_axes_counted_from_the_end():
    numbers = ab.placeholder((None, 2, 5), "float64")
    flags = ab.constant([False, True, False, False, True])

    def last_flagged(a: Any, b: Any) -> Any:
        """A sum that begins again at each flag."""
        (total_a, start_a), (total_b, start_b) = a, b
        return ops.where(start_b, total_b, total_a + total_b), ops.logical_or(start_a, start_b)

    totals, starts = ab.associative_scan(last_flagged, (numbers, flags), axis=-1)
    at = np.arange(10.0).reshape(1, 2, 5)
    found = run([totals, starts], {numbers: at})
    np.testing.assert_array_equal(found[0], [[[0, 1, 3, 6, 4], [5, 6, 13, 21, 9]]])
    np.testing.assert_array_equal(found[1], [False, True, True, True, True])


@pytest.mark.parametrize("known", [True, False])
def test_inside_a_loop(known: bool):
    x = ab.placeholder((3 if known else None,), "float64", "x")
    y = repeat(2, lambda i, h: ab.associative_scan(lambda a, b: a * b, h) * x, x)
    plain = x
    for _ in range(2):
        plain = ops.cumprod(plain) * x
    assert_same(derivatives(y, [x], 2), derivatives(plain, [x], 2), {x: [0.5, -1.5, 2.0]})


def test_inside_a_vectorized_map():
    x = ab.placeholder((None, 3), "float64", "x")
    found = ab.vectorized_map(lambda row: ab.associative_scan(lambda a, b: a * b, row), x)
    at = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(run([found], {x: at})[0], np.cumprod(at, axis=1))


def test_keras_name_and_example():
    xs = [ops.array([1, 2]) for _ in range(3)]
    found = ops.associative_scan(lambda x, y: [x[0] + y[0], x[1] + y[1], x[2] + y[2]], xs, axis=0)
    np.testing.assert_array_equal(run(found), [[1, 3]] * 3)


@pytest.mark.parametrize(
    ("f", "elems", "axis", "error", "message"),
    [
        (None, [], 0, ValueError, "elems holds no tensors"),
        (None, 1.0, 0, ValueError, "elems must have at least one axis"),
        (None, {"a": np.ones(2), "b": 1.0}, 0, ValueError, r"elems\['b'\] must have at least one axis"),
        (None, np.ones(2), 1, ValueError, "axis=1 is out of range"),
        (None, [np.ones((1, 2)), np.ones(3)], -1, ValueError, r"differ in length .*\[0\]: \[1,2\], elems\[1\]: \[3\]"),
        (lambda a, b: (a, b), np.ones(2), 0, ValueError, r"leaves itself; it returned \[0\], \[1\]"),
        (lambda a, b: {"x": a["x"]}, {"x": np.ones(2), "y": np.ones(2)}, 0, ValueError, r"\['x'\], \['y'\]; it"),
        (
            lambda a, b: ops.sum(a + b),
            np.ones(2),
            0,
            ValueError,
            r"elems went in with shape \[1\] and came out with \[\]",
        ),
        (lambda a, b: [a[0] < b[0]], [np.ones(2)], 0, TypeError, r"elems\[0\] went in as float64 and came out as bool"),
    ],
)
def test_errors(f: Any, elems: Any, axis: int, error: Any, message: str):
    with pytest.raises(error, match=message):
        ab.associative_scan(f, elems, axis=axis)


@pytest.mark.parametrize(
    ("known", "message"), [(True, "must have the same shape"), (False, r"one is 3, but a sequence has shape \[1,2\]")]
)
def test_lengths_that_only_the_run_knows(known: bool, message: str):
    a, b = ab.placeholder((2, 3 if known else None), "float64"), ab.placeholder((2, None), "float64")
    found = ab.associative_scan(lambda x, y: (x[0] + y[0], x[1] * y[1]), (a, b), axis=1)
    with pytest.raises(ValueError, match=message):
        ab.Session().run(found, {a: np.ones((2, 3)), b: np.ones((2, 1))})
