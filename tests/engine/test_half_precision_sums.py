"""Sums and products of many numbers in half precision: gradients and scattered updates are added up in float32.

In its own precision a sum of ones ends at 2048 (float16) or 256 (bfloat16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph.tensor import Symbol, symbol_of
from anabranch.engine.runtime.program import Program

COUNT = 6000
IDS = np.arange(COUNT) % 2
HALVES = ["float16", "bfloat16"]
TO_GRADIENT: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "broadcast": (lambda x: x + ab.ops.ones((COUNT, 2), x.dtype), (2,)),
    "broadcast to a shape": (lambda x: ab.ops.broadcast_to(x, (COUNT, 2)), (1, 2)),
    "scalar": (lambda x: x * ab.ops.ones((COUNT,), x.dtype), ()),
    "take": (lambda x: ab.ops.take(x, IDS, axis=0) * 2, (2, 3)),
    "take of columns": (lambda x: ab.ops.take(x, IDS, axis=1), (3, 2)),
    "index": (lambda x: x[IDS], (2, 3)),
    "elements": (lambda x: x[IDS, IDS], (2, 3)),
    "added to others": (lambda x: ab.ops.concatenate([x * 2, x[IDS], ab.ops.take(x, IDS, axis=0)]), (2, 3)),
    "gather_nd": (lambda x: ab.ops.gather_nd(x, IDS[:, None]), (2, 3)),
    "take_along_axis": (lambda x: ab.ops.take_along_axis(x, IDS[:, None], axis=0), (2, 1)),
}
SCATTERED: dict[str, Callable[[Any], Any]] = {
    "scatter": lambda x: ab.ops.scatter(IDS[:, None], x, (2, 3)),
    "scatter_add": lambda x: ab.ops.scatter_add(ab.ops.full((2, 3), 7, x.dtype), IDS[:, None], x),
    "many rows": lambda x: ab.ops.scatter(IDS[:, None] * 9999, x, (10000, 3)),
    "IndexedSlices": lambda x: ab.convert_to_tensor(ab.IndexedSlices(x, ab.convert_to_tensor(IDS), (2, 3))),
}


def _loss(y: Any, factor: Any = 1.0) -> Any:
    return ab.ops.sum(ab.ops.cast(y * factor, "float32"))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", TO_GRADIENT)
def test_gradients(name: str, dtype: str) -> None:
    function, shape = TO_GRADIENT[name]

    def gradient(dtype: str) -> Any:
        x = ab.Variable(np.ones(shape), dtype=dtype)
        with ab.GradientTape() as tape:
            loss = _loss(function(x))
        return np.asarray(ab.convert_to_tensor(tape.gradient(loss, x)))

    _assert_rounded(gradient(dtype), gradient("float32"))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", TO_GRADIENT)
def test_gradients_in_steps(name: str, dtype: str) -> None:
    function, shape = TO_GRADIENT[name]
    with ab.Graph().as_default():
        x = ab.placeholder(shape, dtype)
        wide = ab.placeholder(shape, "float32")
        # No constant is among the factors: what is summed is computed by the step.
        losses = [_loss(function(each), ab.ops.stop_gradient(ab.ops.max(each))) for each in (x, wide)]
        tensors = [ab.convert_to_tensor(ab.gradients(*pair)[0]) for pair in zip(losses, (x, wide), strict=True)]
        _check_steps(tensors[0], tensors[1], x, wide, np.ones(shape))


@pytest.mark.parametrize("dtype", HALVES)
def test_bias_of_rows_of_unknown_number(dtype: str) -> None:
    with ab.Graph().as_default():
        rows, bias = ab.placeholder((None, 2), dtype), ab.Variable(np.zeros(2), dtype=dtype)
        step = symbol_of(ab.gradients(_loss((rows + bias) * rows), bias)[0])
        ones = np.ones((COUNT, 2), rows.dtype)
        for found in (
            Program(rows.graph, [step], [symbol_of(rows)], exact=True)(ones)[0],
            ab.Session().run(step, {rows: ones}),
        ):
            _assert_rounded(found, np.full(2, COUNT, "float32"))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SCATTERED)
def test_scattered(name: str, dtype: str) -> None:
    function, ones = SCATTERED[name], np.ones((COUNT, 3))
    _assert_rounded(
        np.asarray(function(ab.convert_to_tensor(ones, dtype))), np.asarray(function(ab.convert_to_tensor(ones)))
    )
    with ab.Graph().as_default():
        x, wide = ab.placeholder(ones.shape, dtype), ab.placeholder(ones.shape, "float32")
        _check_steps(function(x), function(wide), x, wide, ones)


@pytest.mark.parametrize("dtype", HALVES)
def test_products(dtype: str) -> None:
    """A factor of 1 + 1/64 keeps what is rounded off once, but not 300 times."""
    with ab.Graph().as_default():
        x, wide = ab.placeholder((300, 2), dtype), ab.placeholder((300, 2), "float32")
        outputs = [symbol_of(ab.ops.prod(each, axis=0)) for each in (x, wide)]
        _check_steps(outputs[0], outputs[1], x, wide, np.full((300, 2), 1 + 1 / 64))


def _check_steps(found: Any, expected: Any, x: Any, wide: Any, value: np.ndarray[Any, Any]) -> None:
    """Compare the step of a session and the exact step, of half precision, with the session's in float32."""
    narrow, session = value.astype(ml_dtypes.bfloat16 if x.dtype.name == "bfloat16" else x.dtype), ab.Session()
    (expected,) = session.run([expected], {wide: value.astype("float32")})
    _assert_rounded(session.run(found, {x: narrow}), expected)
    symbol = symbol_of(found)
    assert isinstance(symbol, Symbol)
    _assert_rounded(Program(symbol.operation.graph, [symbol], [symbol_of(x)], exact=True)(narrow)[0], expected)


def _assert_rounded(found: Any, expected: Any) -> None:
    """Assert that a result in half precision is that of float32, rounded."""
    assert found.dtype.itemsize == 2
    np.testing.assert_array_equal(found.astype("float32"), expected.astype(found.dtype).astype("float32"))
