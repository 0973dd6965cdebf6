"""Products of a column by a row as elementwise products: which are, what becomes of them, and their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.linear_algebra.linalg import MatMul
from anabranch.engine.ops.math.elementwise import Multiply
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ops = ab.ops


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


def _draw(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(dtype)


def _products(targets: list[Any], feeds: list[Any], exact: bool = False) -> int:
    """Count the matrix products that are left in a step, those in loops included."""
    step = prepare(targets[0].graph, targets, feeds, rule=fusion_rule(), reassociate=not exact)
    return sum(isinstance(operation.op, MatMul) for operation in all_operations(step.operations))


def _agree(targets: list[Any], feeds: dict[Any, Any]) -> None:
    found = Program(targets[0].graph, targets, list(feeds))(*feeds.values())
    for value, expected in zip(found, Interpreter().run(targets[0].graph, targets, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_column_by_a_row(transpose_a: bool, transpose_b: bool, dtype: str) -> None:
    values = (
        _draw(*((1, 7) if transpose_a else (7, 1)), dtype=dtype),
        _draw(*((5, 1) if transpose_b else (1, 5)), dtype=dtype),
    )
    values[0].flat[:3], values[1].flat[0] = (np.inf, np.nan, 0), np.inf
    a, b = (ab.placeholder(value.shape, dtype) for value in values)
    product = symbol_of((ops.transpose(a) if transpose_a else a) @ (ops.transpose(b) if transpose_b else b))
    assert _products([product], [a, b]) == 0
    assert _products([product], [a, b], exact=True) == 1
    with np.errstate(invalid="ignore"):
        (found,) = Program(a.graph, [product], [a, b])(*values)
        np.testing.assert_array_equal(found, values[0].reshape(7, 1) * values[1].reshape(1, 5))


def test_what_follows_is_one_kernel_with_it() -> None:
    a, b, c = ab.placeholder((40, 1), "float32"), ab.placeholder((1, 30), "float32"), ab.placeholder((30,), "float32")
    target = symbol_of(ops.tanh(a @ b + c))
    step = prepare(target.graph, [target], [a, b, c], rule=fusion_rule())
    (fused,) = [operation.op for operation in step.operations if isinstance(operation.op, Fused)]
    assert any(isinstance(part, Multiply) for part, _ in fused.steps)
    _agree([target], {a: _draw(40, 1), b: _draw(1, 30), c: _draw(30)})


def test_the_gradient_of_a_layer_with_one_unit() -> None:
    x, w, v = (
        ab.placeholder((64, 20), "float32"),
        ab.placeholder((20, 48), "float32"),
        ab.placeholder((48, 1), "float32"),
    )
    loss = ops.mean(ops.square(ops.relu(x @ w) @ v))
    gradients = [symbol_of(ab.convert_to_tensor(each)) for each in ab.gradients(loss, [w, v])]
    assert _products(gradients, [x, w, v]) == 4  # two of the layers, and one for each of the weights
    _agree(gradients, {x: _draw(64, 20), w: _draw(20, 48), v: _draw(48, 1)})


def test_one_row_updates_weights_by_no_product() -> None:
    """The gradient of the weights is part of the kernel that subtracts it."""
    x, y = ab.placeholder((1, 200), "float32"), ab.placeholder((1, 100), "float32")
    start = _draw(200, 100)
    w = ab.Variable(start)
    update = ab.optimizers.SGD(0.5).minimize(ops.sum(ops.square(x @ w - y)) * 0.5, [w])
    assert _products([update], [x, y]) == 1  # the one of the layer
    row, target = _draw(1, 200), _draw(1, 100)
    ab.Session().run(update, {x: row, y: target})
    np.testing.assert_allclose(w.numpy(), start - 0.5 * row.T @ (row @ start - target), rtol=1e-5, atol=1e-5)


def test_of_batches_of_any_size() -> None:
    """The rows need not be known where nothing is transposed. A size that may be 1 at run time is no reason."""
    a, b = ab.placeholder((None, 1), "float32"), ab.placeholder((1, 30), "float32")
    product = symbol_of(a @ b)
    assert _products([product], [a, b]) == 0
    for rows in (0, 1, 9):
        _agree([product], {a: _draw(rows, 1), b: _draw(1, 30)})
    c, d = ab.placeholder((4, None), "float32"), ab.placeholder((None, 30), "float32")
    assert _products([symbol_of(c @ d)], [c, d]) == 1
    e = ab.placeholder((1, None), "float32")
    assert _products([symbol_of(ops.transpose(e) @ b)], [e, b]) == 1
    with pytest.raises(ValueError, match="matmul"):
        Program(a.graph, [symbol_of(a @ d)], [a, d])(_draw(4, 1), _draw(2, 30))


def test_products_of_integers_and_in_loops_stay() -> None:
    a, b = ab.placeholder((4, 1), "int32"), ab.placeholder((1, 3), "int32")
    assert _products([symbol_of(a @ b)], [a, b]) == 1
    x, w, u = (
        ab.placeholder((90, 4, 1), "float32"),
        ab.placeholder((1, 8), "float32"),
        ab.placeholder((8, 1), "float32"),
    )
    _, h = ab.while_loop(lambda i, h: i < 90, lambda i, h: (i + 1, ops.tanh(h @ w) @ u + x[i]), (0, x[0]))
    assert _products([symbol_of(h)], [x, w, u]) == 2
    _agree([symbol_of(h)], {x: _draw(90, 4, 1), w: _draw(1, 8), u: _draw(8, 1)})


def test_explain_says_why() -> None:
    a, b = ab.placeholder((40, 1), "float32"), ab.placeholder((1, 30), "float32")
    product = symbol_of(a @ b)
    with recording() as log:
        prepare(product.graph, [product], [a, b], rule=fusion_rule())
    assert "adds up one term, so that it is an elementwise product" in [note.text for note in log.of("fuse")[0]]
