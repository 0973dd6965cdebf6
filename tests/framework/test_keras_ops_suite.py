"""Behaviour of ops that Keras's own tests ask for: one test for each kind of failure that running them here found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

X = np.arange(6, dtype="float32").reshape(2, 3)


def ones(dtype: str) -> Any:
    return ops.ones((2, 2), dtype)


def test_no_dtype_means_float32() -> None:
    for given in (X.astype("float16"), X.astype("int32"), X.astype("float64")):
        assert ops.cast(given, None).dtype == ops.saturate_cast(given, None).dtype == "float32"
    assert ab.KerasTensor((2,), dtype=None).dtype == "float32"


def test_full_is_float32_unless_a_dtype_is_given() -> None:
    for value in (7, True, np.int32(7), np.float64(7), X[0].astype("int8")):
        found = ops.full((3,), value)
        assert found.dtype == "float32"
        np.testing.assert_array_equal(found, np.full((3,), value, "float32"))
    assert ops.full((2,), 7, "int32").dtype == ab.tf.fill((2,), 7).dtype == "int32"
    assert ops.full((2,), 1j).dtype == "complex64"
    assert ops.full((2,), "a").tolist() == ["a", "a"]
    assert ops.full_like(X.astype("int8"), 7).dtype == "int8"


def test_products_of_int8() -> None:
    a, b = ones("int8"), ones("bool")
    for product in (ops.matmul(a, a), a @ a, ops.einsum("ij,jk->ik", a, a), ops.einsum("ij->i", a)):
        assert product.dtype == "int32"
    large = ops.full((2, 2), 100, "int8")
    assert ops.einsum("ij,jk->ik", large, large).tolist() == [[20000, 20000], [20000, 20000]]
    for product in (ops.matmul(a, b), ops.einsum("ij,jk->ik", b, a), ops.dot(a, a), ops.inner(a, a), ops.vdot(a, a)):
        assert product.dtype == "int8"
    assert ops.tensordot(a, a).dtype == "int8"


def test_bins_of_bools_are_counts() -> None:
    found = ops.bincount([0, 1, 1, 1], weights=np.array([True, True, True, False]))
    assert (found.dtype, found.tolist()) == ("int32", [1, 2])


def test_concatenate_without_an_axis_joins_elements() -> None:
    np.testing.assert_array_equal(ops.concatenate([X, X[0]], axis=None), np.concatenate([X, X[0]], axis=None))
    assert ops.concatenate([ab.Input((3,)), ab.Input((2, 2))], axis=None).shape == (None,)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid_flattens(indexing: Any) -> None:
    given = (X, np.float32(3), X[0])
    for found, expected in zip(
        ops.meshgrid(*given, indexing=indexing), np.meshgrid(*given, indexing=indexing), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert ops.meshgrid(ab.KerasTensor((2, 3)), ab.KerasTensor((4,)))[0].shape == (4, 6)


def test_axes_may_be_a_vector_or_a_range() -> None:
    vectors: list[Any] = [[0, 1], (0, 1), range(2), np.array([0, 1]), ops.convert_to_tensor([0, 1])]
    for axes in vectors:
        assert float(ops.sum(X, axis=axes)) == float(ab.tf.reduce_sum(X, axis=axes)) == 15
        assert ops.expand_dims(X, axes).shape == (1, 1, 2, 3)
        np.testing.assert_array_equal(ops.flip(X, axes), X[::-1, ::-1])
    numbers: list[Any] = [1, np.int64(1), np.array(1), ops.convert_to_tensor(1)]
    for one in numbers:
        assert ops.sum(X, axis=one).shape == (2,)
        assert ops.concatenate([X, X], axis=one).shape == (2, 6)
        assert ops.expand_dims(X, one).shape == (2, 1, 3)


NO_AXES: list[tuple[Any, Any]] = [  # None and tuples mean something to the other ops
    *[(op, axis) for op in (ops.cumsum, ops.sort, ops.take) for axis in ((1,), 0.5, 1.0, "a")],
    *[(op, axis) for op in (ops.flip, ops.softmax, ops.sum) for axis in (0.5, 1.0, "a")],
    *[(ops.expand_dims, axis) for axis in (None, 0.5, 1.0, "a")],
]


@pytest.mark.parametrize(("op", "axis"), NO_AXES)
def test_axes_that_are_no_integers_are_refused(op: Any, axis: Any) -> None:
    arguments = ([0],) if op is ops.take else ()
    with pytest.raises(TypeError, match=r"axis must be an integer; got"):
        op(X, *arguments, axis=axis)


def test_what_scan_can_not_call_is_refused() -> None:
    with pytest.raises(TypeError, match=r"scan: f must be a function of \(carry, x\), got 123"):
        ops.scan(123, 0.0, X)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [1, 2, 2.5, 3, np.inf])
def test_zeros_are_normalized_with_a_finite_gradient(order: Any) -> None:
    x = ab.Variable(np.zeros((2, 3), "float32"))
    with ab.GradientTape() as tape:
        found = ops.normalize(x, order=order, epsilon=1e-3)
    np.testing.assert_array_equal(found, np.zeros((2, 3)))
    np.testing.assert_allclose(tape.gradient(found, x), np.full((2, 3), 1e3), rtol=1e-5)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        np.testing.assert_array_equal(ops.normalize(ops.zeros((2, 3), dtype), order=order), np.zeros((2, 3)))


@pytest.mark.parametrize("order", [1, 2, 2.5, 3, np.inf])
def test_normalize_of_float16_whose_squares_overflow(order: Any) -> None:
    x = np.array([[300, 400, -1200]], "float16")
    wide = x.astype("float64")
    np.testing.assert_allclose(ops.normalize(x, order=order), wide / np.linalg.norm(wide, order, -1, True), rtol=2e-3)


def test_cosine_similarity_in_float16_of_zeros_and_of_large_numbers() -> None:
    x = np.array([[0, 0, 0], [300, 400, -1200]], "float16")
    dot = ab.layers.Dot(axes=1, normalize=True, dtype="float16")
    np.testing.assert_allclose(dot([x, x]), [[0], [1]], rtol=2e-3)
    np.testing.assert_allclose(ab.tf.nn.l2_normalize(x, 1)[1], x[1] / np.float16(1300), rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (lambda x: ops.gelu(x), [0, 300, 1000]),
        (lambda x: ops.squareplus(x), [0, 300, 1000]),
        (lambda x: ops.norm(x, axis=-1), 1086.28),
        (lambda x: ops.norm(x, ord=3, axis=-1), 1016.1),
        (lambda x: ops.sparsemax(x * 40), [0, 0, 1]),
    ],
)
def test_half_precision_that_overflows_inside(op: Any, expected: Any, dtype: str) -> None:
    x = ab.Variable(np.array([-300, 300, 1000]), dtype=dtype)
    with ab.GradientTape() as tape:
        found = op(x)
    np.testing.assert_allclose(ops.cast(found, "float32"), expected, rtol=1e-2, atol=0.01)
    assert found.dtype == dtype
    assert np.isfinite(ops.cast(tape.gradient(found, x), "float32")).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_binary_crossentropy_of_certain_predictions_is_finite(dtype: str) -> None:
    p = ab.Variable(np.array([0.0, 1, 0, 1]), dtype=dtype)
    with ab.GradientTape() as tape:
        found = ops.binary_crossentropy(np.array([0, 1, 1, 0]), p)
    np.testing.assert_allclose(ops.cast(found, "float32"), [0, 0, 16.118, 15.942], rtol=0.02, atol=1e-6)
    assert found.dtype == dtype
    assert np.isfinite(ops.cast(tape.gradient(found, p), "float32")).all()


def test_squeeze_leaves_the_batch() -> None:
    x = ab.Input((1, 4))
    model = ab.Model(x, ab.layers.Dense(2)(ops.squeeze(x)))
    assert model.output_shape == (None, 2)
    for rows in (0, 1, 3):
        assert model(np.ones((rows, 1, 4), "float32")).shape == (rows, 2)
    assert ops.squeeze(np.ones((1, 1, 4))).shape == (4,)


@pytest.mark.parametrize("exponents", ["uint8", "uint16", "uint32", "uint64", "int8", "int64"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_ldexp_has_the_dtype_of_the_numbers(dtype: str, exponents: str) -> None:
    found = ops.ldexp(ops.cast([0.75, 1.5], dtype), ops.cast([1, 2], exponents))
    assert (found.dtype, ops.cast(found, "float32").tolist()) == (dtype, [1.5, 6.0])


@pytest.mark.parametrize("k", [-2, 0, 1])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_the_diagonal_of_a_triangle_may_be_a_tensor(name: str, k: int) -> None:
    matrices = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
    matrices[:, :, 3] = np.inf  # which zeros replace
    op, expected = getattr(ab.ops, name), getattr(np, name)(matrices, k)
    np.testing.assert_array_equal(op(matrices, ab.ops.array(k)), expected)
    compiled = ab.function(op)
    np.testing.assert_array_equal(compiled(matrices, ab.ops.array(k)), expected)
    assert compiled(np.ones((3, 3), "int8"), np.int64(k)).dtype == "int8"
    flags = compiled(matrices > 3, np.int64(k))
    np.testing.assert_array_equal(flags, getattr(np, name)(matrices > 3, k))


@pytest.mark.parametrize("op", [ab.ops.diag, ab.ops.diagflat])
def test_a_diagonal_that_is_known_when_the_graph_runs_is_refused(op: Any) -> None:
    with pytest.raises(TypeError, match="k must be an integer; got"):
        ab.function(op)(np.ones(3), np.int32(1))
