"""Factorisations: against NumPy, by what they must fulfil, their gradients on losses for which these exist, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float64") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def draw(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    real = rng.normal(size=shape)
    return (real + 1j * rng.normal(size=shape) if dtype[0] == "c" else real).astype(dtype)


def adjoint(x: Any) -> Any:
    return np.swapaxes(x, -1, -2).conj()


def hermitian(size: int, dtype: str = "float64", seed: int = 0) -> Any:
    x = draw(size, size, dtype=dtype, seed=seed)
    return x + adjoint(x)


leading = st.sampled_from([(), (2,), (0,), (2, 3)])
sides = st.integers(1, 5)
dtypes = st.sampled_from(["float32", "float64", "complex64", "complex128"])
PRECISION = {"float32": 2e-4, "complex64": 2e-4, "float64": 1e-11, "complex128": 1e-11}
REAL_AND_COMPLEX = pytest.mark.parametrize("dtype", ["float64", "complex128"])


# --- eigenvalues ----------------------------------------------------------------------------------------------------


@given(shape=leading, size=sides, dtype=dtypes)
def test_eigh(shape: Any, size: int, dtype: str):
    x = draw(*shape, size, size, dtype=dtype)
    x = (x + adjoint(x)) / 2
    with Graph().as_default():
        pair = ops.eigh(x)
        values, vectors = run(pair)
    assert [part.shape for part in pair] == [values.shape, vectors.shape]
    assert vectors.dtype == dtype
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), atol=PRECISION[dtype])
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=PRECISION[dtype])


@given(shape=leading, size=sides, dtype=dtypes)
def test_eig(shape: Any, size: int, dtype: str):
    x = draw(*shape, size, size, dtype=dtype)
    with Graph().as_default():
        values, vectors = run(ops.eig(x))
    assert values.dtype == vectors.dtype == np.result_type(dtype, "complex64")
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=PRECISION[dtype])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, atol=PRECISION[dtype])


def test_what_is_not_symmetric_does_not_count():
    x, skew = hermitian(3), draw(3, 3, seed=1)

    first, second = run([ops.eigh(x)[0], ops.eigh(x + skew - skew.T)[0]])

    np.testing.assert_allclose(first, second)


@REAL_AND_COMPLEX
def test_gradients_of_eigenvalues(dtype: str):
    assert check_gradients(lambda x: ops.eigh(x)[0], [hermitian(4, dtype)], order=2) == 6
    assert check_gradients(lambda x: ops.eig(x)[0], [draw(4, 4, dtype=dtype)], order=2) == 6


@REAL_AND_COMPLEX
def test_gradients_of_eigenvectors_whatever_their_phase(dtype: str):
    x, y = draw(2, 3, 3, dtype=dtype), draw(3, dtype=dtype, seed=1)

    def projections(function: Any) -> Any:
        return lambda x, y: [function(x)[0], ops.abs(ops.matmul(y, function(x)[1]))]

    assert check_gradients(projections(ops.eigh), [x + adjoint(x), y], order=2) == 6
    assert check_gradients(projections(ops.eig), [x, y], order=2) == 6


def test_gradient_of_eigenvalues_that_coincide():
    """The sum of all eigenvalues is the trace, however they are placed; that of their squares is the norm squared."""
    x = symbol((3, 3))
    values = ops.eigh(x)[0]
    slopes = gradients(ops.sum(values), [x]) + gradients(ops.sum(values * values), [x])

    found = run(slopes, {x: np.diag([2.0, 2.0, 1.0])})

    np.testing.assert_allclose(found[0], np.eye(3), atol=1e-12)
    np.testing.assert_allclose(found[1], np.diag([4, 4, 2]), atol=1e-12)


def test_gradient_of_a_function_of_a_matrix_with_equal_eigenvalues():
    x = symbol((3, 3))
    values, vectors = ops.eigh(x)
    again = ops.matmul(vectors * values, ops.transpose(vectors))

    (slope,) = gradients(ops.sum(ops.square(again)), [x])

    value = np.diag([2.0, 2.0, 1.0])
    np.testing.assert_allclose(run(slope, {x: value}), 2 * value, atol=1e-12)


# --- singular values ------------------------------------------------------------------------------------------------


@given(shape=leading, rows=sides, columns=sides, dtype=dtypes, full=st.booleans())
def test_svd(shape: Any, rows: int, columns: int, dtype: str, full: bool):
    x = draw(*shape, rows, columns, dtype=dtype)
    with Graph().as_default():
        parts, alone = ops.svd(x, full_matrices=full), ops.svd(x, compute_uv=False)
        (u, s, vh), values = run([parts, alone])
    expected = np.linalg.svd(x, full_matrices=full)
    assert [part.shape for part in parts] == [part.shape for part in expected]
    assert [u.dtype, s.dtype, vh.dtype] == [part.dtype for part in expected]
    count, precision = min(rows, columns), PRECISION[dtype]
    np.testing.assert_allclose((u[..., :count] * s[..., None, :]) @ vh[..., :count, :], x, atol=precision)
    np.testing.assert_allclose(values, expected[1], atol=precision)
    np.testing.assert_allclose(
        adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), adjoint(u).shape[:-1] + u.shape[-1:]), atol=precision
    )


@REAL_AND_COMPLEX
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 2, 3)])
def test_gradients_of_svd_whatever_the_phase(dtype: str, shape: Any):
    """The vectors are taken where their phases cancel: in absolute values, and in products of left and right ones."""
    left, right = draw(shape[-2], dtype=dtype, seed=1), draw(shape[-1], dtype=dtype, seed=2)

    def parts(x: Any) -> Any:
        u, s, vh = ops.svd(x, full_matrices=False)
        a, b = ops.matmul(left, u), ops.matmul(vh, right)
        return [ops.abs(a), s, ops.abs(b), a * b]

    assert check_gradients(parts, [draw(*shape, dtype=dtype)], order=2) == 6


@REAL_AND_COMPLEX
def test_gradients_of_singular_values(dtype: str):
    assert check_gradients(lambda x: ops.svd(x, compute_uv=False), [draw(2, 4, 3, dtype=dtype)], order=2) == 6
    assert check_gradients(lambda x: ops.svd(x)[1], [draw(4, 3, dtype=dtype)], order=2) == 6


@REAL_AND_COMPLEX
def test_gradient_of_a_product_put_together_again(dtype: str):
    """The gradient of U diag(s) V^H is that of the matrix, with equal singular values, too."""
    x = symbol((3, 3), dtype)
    u, s, vh = ops.svd(x)
    again = ops.matmul(u * ops.cast(s, dtype), vh)
    weights = draw(3, 3, dtype=dtype, seed=1)

    (slope,) = gradients(again, [x], grad_ys=[weights])

    np.testing.assert_allclose(run(slope, {x: draw(3, 3, dtype=dtype)}), weights, atol=1e-12)


def test_full_vectors_have_a_gradient_only_for_square_matrices():
    square, tall = symbol((3, 3)), symbol((3, 2))

    assert check_gradients(lambda x: list(ops.svd(x)), [draw(3, 3)], order=2) == 6
    assert gradients(ops.svd(square)[0], [square])[0].shape == (3, 3)
    with pytest.raises(LookupError, match=r"all of U and V .*float64\[3,2\].*svd\(x, full_matrices=False\)"):
        gradients(ops.svd(tall)[0], [tall])


def test_svd_of_what_is_no_number():
    with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
        run(ops.svd([[np.nan, 1.0]]))


@given(shape=leading, rows=sides, columns=sides, rank=st.integers(0, 5))
def test_matrix_rank(shape: Any, rows: int, columns: int, rank: int):
    x = draw(*shape, rows, rank) @ draw(*shape, rank, columns, seed=1)
    with Graph().as_default():
        found = run(ops.matrix_rank(x))
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, np.full(shape, min(rows, columns, rank)))


def test_matrix_rank_above_a_tolerance():
    x = symbol(None)

    found = run([ops.matrix_rank(x, 0.5), ops.matrix_rank(x)], {x: np.diag([3, 0.4, 1.0])})

    assert found == [2, 3]
    assert run(ops.matrix_rank(np.zeros((2, 0)))) == 0


@pytest.mark.parametrize("ord", ["nuc", 2, -2])
@pytest.mark.parametrize("axis", [(0, 1), (2, 0), (-1, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_by_singular_values(ord: Any, axis: Any, keepdims: bool):
    x = draw(2, 3, 4)

    tensor = ops.norm(x, ord, axis, keepdims)
    expected = np.linalg.norm(x, ord, axis, keepdims)

    assert tensor.shape == expected.shape
    np.testing.assert_allclose(run(tensor), expected)


# --- QR, LU ---------------------------------------------------------------------------------------------------------


@given(shape=leading, rows=sides, columns=sides, dtype=dtypes, mode=st.sampled_from(["reduced", "complete"]))
def test_qr(shape: Any, rows: int, columns: int, dtype: str, mode: Any):
    x = draw(*shape, rows, columns, dtype=dtype)
    with Graph().as_default():
        pair = ops.qr(x, mode)
        q, r = run(pair)
    assert [part.shape for part in pair] == [part.shape for part in np.linalg.qr(x, mode)]
    assert q.dtype == r.dtype == dtype
    np.testing.assert_allclose(q @ r, x, atol=PRECISION[dtype])
    np.testing.assert_allclose(r, np.triu(r), atol=PRECISION[dtype])


@REAL_AND_COMPLEX
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2)])
def test_gradients_of_qr(dtype: str, shape: Any):
    x = draw(*shape, dtype=dtype)
    assert check_gradients(lambda x: list(ops.qr(x)), [x], order=2) == 6
    assert check_gradients(lambda x: ops.qr(x)[0], [x], order=2) == 6
    assert check_gradients(lambda x: ops.qr(x)[1], [x], order=2) == 6


def test_complete_q_has_a_gradient_only_where_it_is_determined():
    wide, tall = symbol((2, 3)), symbol((3, 2))

    assert gradients(ops.qr(wide, "complete")[0], [wide])[0].shape == (2, 3)
    with pytest.raises(LookupError, match=r"complete Q of qr .*float64\[3,2\].*mode='reduced'"):
        gradients(ops.qr(tall, "complete")[1], [tall])


@given(shape=leading, rows=sides, columns=sides, dtype=dtypes, rank=st.integers(1, 5))
def test_lu_factor(shape: Any, rows: int, columns: int, dtype: str, rank: int):
    x = draw(*shape, rows, rank, dtype=dtype) @ draw(*shape, rank, columns, dtype=dtype, seed=1)
    with Graph().as_default():
        pair = ops.lu_factor(x)
        lu, pivots = run(pair)
    count = min(rows, columns)
    assert [part.shape for part in pair] == [x.shape, (*shape, count)] == [lu.shape, pivots.shape]
    assert pivots.dtype == "int32"
    assert np.all(pivots >= np.arange(count))
    lower = np.tril(lu, -1)[..., :, :count] + np.eye(rows, count)
    # A pivot is the largest by the sum of its parts, so that no factor is larger than the root of 2.
    assert np.all(np.abs(lower) <= (1.5 if dtype[0] == "c" else 1))
    np.testing.assert_allclose(
        lower @ np.triu(lu)[..., :count, :],
        exchanged(x, pivots),
        atol=PRECISION[dtype] * max(1, np.abs(x).max(initial=0)),
    )


@pytest.mark.parametrize("shape", [(70, 70), (2, 70, 40), (40, 70)])
def test_lu_factor_of_more_than_one_panel(shape: Any):
    x = draw(*shape, dtype="complex128")

    lu, pivots = run(ops.lu_factor(x))

    rows, columns = shape[-2:]
    count = min(rows, columns)
    lower = np.tril(lu, -1)[..., :, :count] + np.eye(rows, count)
    assert np.all(np.abs(lower) <= 1.5)
    np.testing.assert_allclose(lower @ np.triu(lu)[..., :count, :], exchanged(x, pivots), atol=1e-11)


def exchanged(x: Any, pivots: Any) -> Any:
    """`x` with its rows exchanged as the pivots say."""
    out = np.array(x)
    for index in np.ndindex(pivots.shape[:-1]):
        for row, other in enumerate(pivots[index]):
            out[index][[row, other]] = out[index][[other, row]]
    return out


@REAL_AND_COMPLEX
def test_gradients_of_lu_factor(dtype: str):
    assert check_gradients(lambda x: ops.lu_factor(x)[0], [draw(2, 4, 4, dtype=dtype)], order=2) == 6


def test_lu_factor_has_no_gradient_for_other_shapes():
    x = symbol((3, 2))

    with pytest.raises(LookupError, match=r"lu_factor .* not square \(float64\[3,2\]\)"):
        gradients(ops.lu_factor(x)[0], [x])


# --- Cholesky -------------------------------------------------------------------------------------------------------


@given(shape=leading, size=sides, dtype=dtypes, upper=st.booleans())
def test_cholesky_and_its_inverse(shape: Any, size: int, dtype: str, upper: bool):
    half = draw(*shape, size, size, dtype=dtype)
    x = half @ adjoint(half) + np.eye(size, dtype=dtype)
    with Graph().as_default():
        factor = ops.cholesky(x, upper=upper)
        factors, inverse = run([factor, ops.cholesky_inverse(factor, upper=upper)])
    expected = np.linalg.cholesky(x)
    np.testing.assert_allclose(factors, adjoint(expected) if upper else expected, atol=PRECISION[dtype])
    np.testing.assert_allclose(inverse @ x, np.broadcast_to(np.eye(size), x.shape), atol=20 * PRECISION[dtype])


def test_of_a_cholesky_factor_only_the_triangle_counts():
    factor = np.array([[2.0, 7.0], [1.0, 1.0]])

    lower, upper = run([ops.cholesky_inverse(factor), ops.cholesky_inverse(factor.T, upper=True)])

    np.testing.assert_allclose(lower, np.linalg.inv([[4, 2], [2, 2]]))
    np.testing.assert_allclose(upper, lower)


@REAL_AND_COMPLEX
@pytest.mark.parametrize("upper", [False, True])
def test_gradients_of_cholesky(dtype: str, upper: bool):
    half = draw(2, 3, 3, dtype=dtype)
    x = half @ adjoint(half) + np.eye(3)
    assert check_gradients(lambda x: ops.cholesky(x, upper=upper), [x], order=2) == 6
    assert check_gradients(lambda x: ops.cholesky_inverse(x, upper=upper), [half + 3 * np.eye(3)], order=2) == 6


# --- pseudo-inverse, least squares ----------------------------------------------------------------------------------


@given(shape=leading, rows=sides, columns=sides, dtype=dtypes)
def test_pinv(shape: Any, rows: int, columns: int, dtype: str):
    x = draw(*shape, rows, columns, dtype=dtype)
    with Graph().as_default():
        tensor = ops.pinv(x)
        found = run(tensor)
    assert tensor.shape == found.shape == (*shape, columns, rows)
    assert found.dtype == dtype
    scale = max(1, np.abs(found).max(initial=0)) ** 2
    np.testing.assert_allclose(found @ x @ found, found, atol=PRECISION[dtype] * scale)
    np.testing.assert_allclose(x @ found @ x, x, atol=PRECISION[dtype] * scale)


def test_pinv_counts_small_singular_values_as_zero():
    x = np.diag([4.0, 1.0, 1e-9])

    exact, cut, each = run([ops.pinv(x), ops.pinv(x, 0.5), ops.pinv(np.stack([x, x]), [1e-3, 0.5])])

    np.testing.assert_allclose(exact, np.diag([0.25, 1, 1e9]))
    np.testing.assert_allclose(cut, np.diag([0.25, 0, 0]))
    np.testing.assert_allclose(each, [np.diag([0.25, 1, 0]), np.diag([0.25, 0, 0])])
    single = run(
        ops.pinv(np.array([[1, 2], [2, 4]], "float32"))
    )  # of rank 1, but for the rounding of its singular values
    np.testing.assert_allclose(single, np.array([[1, 2], [2, 4]]) / 25, rtol=1e-5)


@REAL_AND_COMPLEX
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 2, 3)])
def test_gradients_of_pinv(dtype: str, shape: Any):
    assert check_gradients(ops.pinv, [draw(*shape, dtype=dtype)], order=2) == 6


def test_gradient_of_pinv_at_constant_rank():
    """Along a path of matrices of rank 1 the gradient is that of the path."""

    def path(a: Any, b: Any) -> Any:
        return ops.pinv(ops.outer(a, b), rcond=1e-6)

    def expected(a: Any, b: Any) -> Any:
        return ops.outer(b, a) / (ops.sum(a * a) * ops.sum(b * b))

    a, b = ops.convert_to_tensor(draw(3)), ops.convert_to_tensor(draw(2, seed=1))
    weights = draw(2, 3, seed=2)
    found = run([gradients(function(a, b), [a, b], grad_ys=[weights]) for function in (path, expected)])
    for slope, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-10)


@given(rows=sides, columns=sides, rights=st.integers(0, 3), dtype=dtypes)
def test_lstsq(rows: int, columns: int, rights: int, dtype: str):
    a, b = draw(rows, columns, dtype=dtype), draw(*((rows, rights) if rights else (rows,)), dtype=dtype, seed=1)
    with Graph().as_default():
        tensor = ops.lstsq(a, b)
        found = run(tensor)
    expected = np.linalg.lstsq(a, b, rcond=None)[0]
    assert tensor.shape == expected.shape
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=20 * PRECISION[dtype] * max(1, np.abs(expected).max()))


@REAL_AND_COMPLEX
@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_gradients_of_lstsq(dtype: str, shape: Any):
    a = draw(*shape, dtype=dtype)
    assert check_gradients(ops.lstsq, [a, draw(shape[0], dtype=dtype, seed=1)], order=2) == 6
    assert check_gradients(ops.lstsq, [a, draw(shape[0], 2, dtype=dtype, seed=1)], order=2) == 6


# --- determinants ---------------------------------------------------------------------------------------------------


@given(shape=leading, size=st.integers(0, 4), dtype=dtypes)
def test_slogdet(shape: Any, size: int, dtype: str):
    x = draw(*shape, size, size, dtype=dtype)
    with Graph().as_default():
        sign, logarithm = run(ops.slogdet(x))
        alone = run(ops.logdet(x))
    expected = np.linalg.slogdet(x)
    assert [sign.dtype, logarithm.dtype] == [part.dtype for part in expected]
    np.testing.assert_allclose(sign, expected[0], atol=PRECISION[dtype])
    np.testing.assert_allclose(logarithm, expected[1], atol=PRECISION[dtype])
    np.testing.assert_array_equal(alone, logarithm)


@REAL_AND_COMPLEX
def test_gradients_of_slogdet(dtype: str):
    x = draw(2, 3, 3, dtype=dtype)
    assert check_gradients(lambda x: list(ops.slogdet(x)), [x], order=2) == 6
    assert check_gradients(ops.logdet, [x], order=2) == 6


def test_the_sign_of_a_real_determinant_has_no_gradient():
    x = symbol((2, 2))

    assert gradients(ops.slogdet(x)[0], [x]) == [None]


def test_slogdet_of_a_singular_matrix():
    sign, logarithm = run(ops.slogdet(np.zeros((2, 2))))

    assert sign == 0
    assert logarithm == -np.inf


# --- products and distances -----------------------------------------------------------------------------------------


@given(
    first=st.lists(st.integers(0, 3), max_size=3), second=st.lists(st.integers(0, 3), max_size=3), known=st.booleans()
)
def test_kron(first: Any, second: Any, known: bool):
    a, b = np.asarray(draw(*first)), np.asarray(draw(*second, seed=1))
    with Graph().as_default():
        x, y = (symbol(v.shape if known else (None,) * v.ndim) for v in (a, b))
        tensor = ops.kron(x, y)
        found = run(tensor, {x: a, y: b})
    expected = np.kron(a, b)
    assert tensor.ndim == expected.ndim
    np.testing.assert_allclose(found, expected)


@given(shape=leading, rows=st.integers(0, 3), others=st.integers(0, 3), size=st.integers(0, 3))
def test_cdist(shape: Any, rows: int, others: int, size: int):
    x, y = draw(*shape, rows, size), draw(others, size, seed=1)
    with Graph().as_default():
        tensor = ops.cdist(x, y)
        found = run(tensor)
    expected = np.linalg.norm(x[..., :, None, :] - y[None, :, :], axis=-1)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(found, expected)


def test_gradients_of_kron_and_cdist():
    assert check_gradients(ops.kron, [draw(2, 3), draw(2)], order=2) == 6
    assert check_gradients(ops.cdist, [draw(2, 3, 2), draw(4, 2, seed=1)], order=2) == 6


def test_gradient_of_distance_zero():
    x = ops.convert_to_tensor([[1.0, 2.0], [0.0, 2.0]])

    (slope,) = gradients(ops.cdist(x, x), [x])

    np.testing.assert_array_equal(run(slope), [[2, 0], [-2, 0]])


# --- everywhere -----------------------------------------------------------------------------------------------------

UNKNOWN: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "cholesky_inverse": (ops.cholesky_inverse, (3, 3)),
    "eig": (lambda x: ops.eig(x)[0], (3, 3)),
    "eigh": (lambda x: ops.eigh(x)[1], (3, 3)),
    "logdet": (ops.logdet, (3, 3)),
    "lu_factor": (lambda x: ops.lu_factor(x)[0], (3, 3)),
    "pinv": (ops.pinv, (2, 3)),
    "qr": (lambda x: ops.qr(x)[1], (2, 3)),
    "svd": (lambda x: ops.svd(x, full_matrices=False)[0], (2, 3)),
    "singular values": (lambda x: ops.svd(x, compute_uv=False), (2, 3)),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("known", [False, True])
def test_unknown_shapes_give_the_same_values_and_gradients(name: str, known: bool):
    function, shape = UNKNOWN[name]
    value = draw(2, *shape)
    found: list[Any] = []
    for symbolic in ((None,) * 3 if known else None, value.shape):
        x = symbol(symbolic)
        y = function(x)
        found.append(run([y, *gradients(ops.sum(ops.square(ops.abs(y))), [x])], {x: value}))
    for weak, strong in zip(*found, strict=True):
        np.testing.assert_allclose(weak, strong, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
@pytest.mark.parametrize("name", ["cholesky_inverse", "eigh", "logdet", "lu_factor", "pinv", "qr", "slogdet", "svd"])
def test_other_dtypes_are_computed_in_single_precision(name: str, dtype: str):
    x = np.array([[4, 1], [1, 2]])
    kept = as_dtype("float32" if dtype == "int32" else dtype)

    results, expected = (getattr(ops, name)(ops.cast(x, d)) for d in (dtype, "float32"))

    pairs = zip(*(part if isinstance(part, tuple) else (part,) for part in (results, expected)), strict=True)
    for result, wanted in pairs:
        assert result.dtype == (kept if wanted.dtype == "float32" else wanted.dtype)
        found, value = run([result, wanted])
        np.testing.assert_allclose(found.astype("float32"), value, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.eigh(np.ones((2, 3))), r"eigh: expected square matrices; got shape \[2,3\]"),
        (lambda: ops.eig(np.ones(3)), r"eig: expected matrices in the last two axes; got shape \[3\]"),
        (lambda: ops.svd(1.0), r"svd: expected matrices in the last two axes; got shape \[\]"),
        (lambda: ops.matrix_rank([1.0]), "svd: expected matrices"),
        (lambda: ops.qr([1.0]), "qr: expected matrices"),
        (lambda: ops.qr(np.eye(2), "raw"), "qr: mode='raw' is not known; expected 'reduced' or 'complete'"),
        (lambda: ops.lu_factor([1.0]), "lu_factor: expected matrices"),
        (lambda: ops.pinv(2.0), "pinv: expected matrices"),
        (lambda: ops.logdet(np.ones((2, 3))), "slogdet: expected square matrices"),
        (lambda: ops.cholesky_inverse(np.ones((2, 3))), "inv: expected square matrices"),
        (lambda: ops.lstsq(np.ones((2, 2, 2)), np.ones(2)), r"got shapes \[2,2,2\] and \[2\]"),
        (lambda: ops.lstsq(np.ones((2, 2)), 1.0), r"got shapes \[2,2\] and \[\]"),
        (lambda: ops.lstsq(np.ones((3, 2)), np.ones(2)), "the matrix has 3 rows and the right side 2"),
        (lambda: ops.cdist([1.0], [[1.0]]), r"rows in the last two axes; got shapes \[1\] and \[1,1\]"),
        (lambda: ops.cdist([[1.0]], [[1.0, 2.0]]), "no distance between rows of 1 and of 2 elements"),
        (lambda: ops.cdist(np.ones((2, 1, 1)), np.ones((3, 1, 1))), "do not broadcast"),
        (lambda: ops.kron(symbol(None), 1.0), "kron needs operands of known rank"),
        (lambda: ops.norm(np.eye(2), 3), r"norm: ord=3 is no norm of matrices; expected 'fro', 'nuc'"),
    ],
)
def test_errors(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call()
