"""Kernels for other sizes, given by their numbers alone, are those that would be bound for these sizes afresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.elementwise.dynamic import fused_runner
from anabranch.engine.codegen.elementwise.open_rows import bind_open_rows
from anabranch.engine.codegen.elementwise.open_sizes import BoundedCache, named_like, read_sizes, shape_of
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import gemm
from anabranch.engine.codegen.matmul.epilogues import OpenProductThen
from anabranch.engine.codegen.matmul.gemm_bind import OpenPackedProduct, OpenProduct, layout_of
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.internal.packed import PackedMatMul
from anabranch.engine.ops.internal.product_then import ProductThen
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.math.elementwise import Add
from anabranch.engine.ops.math.reduction import LogSumExp
from anabranch.engine.ops.neural.softmax import LogSoftmax, Softmax
from anabranch.engine.passes.framework.prepare import prepare

FLOAT = np.dtype("float32")
needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
needs_products = pytest.mark.skipif(not gemm.is_available(), reason="products of ours can't be compiled here")
many = st.integers(200, 3000)


def _filled(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(FLOAT)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_sizes_are_read_from_what_they_make(sizes: list[int], data: st.DataObject) -> None:
    names = st.integers(-3, len(sizes) - 1)
    own = [tuple(range(len(sizes))), *data.draw(st.lists(st.lists(names, max_size=3).map(tuple), max_size=3))]
    own = [tuple([name or -4 if name < 0 else name for name in each]) for each in own]
    shapes = [shape_of(each, sizes) for each in own]
    assert read_sizes(own, shapes, len(sizes)) == sizes


@pytest.mark.parametrize(
    "shapes",
    [[(3, 4), (5,)], [(0, 4), (4,)], [(3, 4), (0,)], [(3,), (4,)], [(3, 4), (4, 1)], [(3, 4), (1,)]],
)
def test_sizes_that_do_not_fit(shapes: list[tuple[int, ...]]) -> None:
    assert read_sizes([(0, 1), (1,)], shapes, 2) is None


def test_a_size_that_never_changes() -> None:
    assert read_sizes([(0, -4)], [(7, 4)], 1) == [7]
    assert read_sizes([(0, -4)], [(7, 5)], 1) is None


def test_broadcast_axes_have_size_1() -> None:
    assert named_like((0, -6), (5, 6)) == (0, -6)
    assert named_like((0, 1), (6,)) == (1,)
    assert named_like((0, 1), (1, 6)) == (-1, 1)
    assert named_like((0, 1), ()) == ()
    assert named_like((0, 1), (2, 5, 6)) is None


def test_what_was_met_is_forgotten_when_there_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 3)
    made: list[int] = []
    met = BoundedCache[int, int](lambda key: made.append(key) or key + 1)
    assert [met[key] for key in (1, 2, 3, 1, 4, 1)] == [2, 3, 4, 2, 5, 2]
    assert made == [1, 2, 3, 4, 1]


def test_what_was_met_may_be_forgotten_by_another_thread_at_once() -> None:
    class Forgetful(BoundedCache[int, int]):
        def __setitem__(self, key: int, found: int) -> None:
            pass

    assert Forgetful(lambda key: key + 1)[5] == 6


def _group() -> Callable[..., Any]:
    """(x * gate, the sums of its rows, the sums of its columns)."""
    with ab.Graph().as_default() as graph:
        x, gate = ab.placeholder((None, None), "float32"), ab.placeholder((None, 1), "float32")
        product = x * gate
        fetches = [product, ab.ops.sum(product, axis=1, keepdims=True), ab.ops.sum(product, axis=0)]
    (operation,) = prepare(graph, symbols_of(fetches), [x, gate], rule=fusion_rule()).operations
    return fused_runner(operation)


@needs_kernels
@given(many, st.integers(1, 300), many, st.integers(1, 300))
def test_groups(first: int, width: int, second: int, other: int) -> None:
    resized, fresh = _group(), _group()
    for rows, columns in ((first, width), (second, other)):
        x, gate = _filled((rows, columns), 0), _filled((rows, 1), 1)
        product, along, down = resized(x, gate)
        np.testing.assert_array_equal(product, x * gate)
        np.testing.assert_allclose(along, product.sum(axis=1, keepdims=True, dtype="float64"), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(down, product.sum(axis=0, dtype="float64"), rtol=1e-4, atol=1e-3)
    for found, expected in zip(resized(x, gate), fresh(x, gate), strict=True):  # pyright: ignore[reportPossiblyUnbound]
        np.testing.assert_array_equal(found, expected)


@needs_kernels
def test_groups_whose_operands_do_not_fit() -> None:
    group = _group()
    group(_filled((900, 30), 0), _filled((900, 1), 1))
    with pytest.raises(ValueError, match="broadcast"):
        group(_filled((900, 30), 0), _filled((901, 1), 1))
    product, along, down = group(_filled((0, 30), 0), _filled((0, 1), 1))
    assert (product.shape, along.shape, down.shape) == ((0, 30), (0, 1), (30,))


@needs_kernels
@pytest.mark.parametrize("op", [Softmax((-1,)), LogSoftmax((-1,)), LogSumExp((-1,), False), LogSumExp((-1,), True)])
@given(shapes=st.lists(st.tuples(st.sampled_from([0, 1, 2, 40, 700]), st.sampled_from([1, 2, 33, 500])), max_size=5))
def test_rows_of_softmax_and_its_like(op: Any, shapes: list[tuple[int, int]]) -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, None), "float32")
        runner = bind_open_rows(symbol_of(apply(op, x)).operation)
    assert runner is not None
    for shape in shapes:
        value = _filled(shape, sum(shape))
        found = runner(value)
        assert found.shape == op.infer(TensorSpec(shape, FLOAT)).shape
        np.testing.assert_allclose(found, op.run(np, value.astype("float64")), rtol=1e-5, atol=1e-6)


@needs_products
@given(many, many, st.booleans(), st.booleans())
def test_products(first: int, second: int, transpose_a: bool, transpose_b: bool) -> None:
    product = OpenProduct(MatMul(transpose_a, transpose_b), "float32")
    for rows in (first, second):
        a, b = _filled((48, rows) if transpose_a else (rows, 48), 0), _filled((64, 48) if transpose_b else (48, 64), 1)
        expected = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
        begun = product.begin(a, b)
        assert begun is not None
        assert begun.results[0].shape == (rows, 64)
        np.testing.assert_allclose(product(a, b), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        product(_filled((5, 7), 0), _filled((8, 9), 1))


@needs_products
@given(many, many, st.sampled_from([(64,), (1, 64), (None, 64), (None, 1), (), (1, 1)]))
def test_products_and_what_follows(first: int, second: int, addend: tuple[int | None, ...]) -> None:
    op = ProductThen(MatMul(), 2, Fused(2, ((Add(), (0, 1)),), (2,)))
    inputs = [TensorSpec((None, 256), FLOAT), TensorSpec((256, 64), FLOAT), TensorSpec(addend, FLOAT)]
    runner = OpenProductThen(op, inputs, TensorSpec((None, 64), FLOAT))
    for rows in (first, second, 1, 3):
        shape = tuple([rows if dim is None else dim for dim in addend])
        a, b, c = _filled((rows, 256), 0), _filled((256, 64), 1), _filled(shape, 2)
        np.testing.assert_allclose(runner(a, b, c), a @ b + c, rtol=1e-4, atol=1e-5)
        assert (runner.begin(a, b, c) is not None) == (rows > 128)


@needs_products
@given(many, many)
def test_products_by_a_packed_matrix(first: int, second: int) -> None:
    op = PackedMatMul(layout_of(48, 64, "float32", 100))
    inputs = [TensorSpec((None, 48), FLOAT), TensorSpec((op.layout.size,), FLOAT), TensorSpec((64,), FLOAT)]
    product, w, bias = OpenPackedProduct(op, inputs), _filled((48, 64), 1), _filled((64,), 2)
    packed = op.layout.packed(np, w)
    for rows in (first, second, 1):
        a = _filled((rows, 48), 0)
        np.testing.assert_allclose(product(a, packed, bias), a @ w + bias, rtol=1e-4, atol=1e-5)


def test_rows_of_experts_change_from_step_to_step() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x, w = ab.placeholder((None, 64), "float32"), ab.Variable(_filled((64, 96), 1))
        hidden = ab.ops.relu(x @ w)
        step = session.make_callable([hidden, *ab.gradients(ab.ops.sum(hidden**2), [w])], [x])
        for rows in (700, 701, 350, 0, 1, 702):
            value = _filled((rows, 64), rows)
            found, gradient = step(value)
            wanted = np.maximum(value @ _filled((64, 96), 1), 0)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(gradient, value.T @ (2 * wanted), rtol=1e-3, atol=1e-3)
