"""Matrix products, contractions, norms and factorisations: known values, unknown shapes, dtypes, structure, errors."""

from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.linear_algebra.products import BatchMatMul, MatMul
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def draw(*shape: int) -> Any:
    return rng.uniform(-1, 1, shape).astype("float32")


def operations(tensor: Any) -> list[Any]:
    """The ops on which `tensor` depends."""
    found: dict[Any, None] = {}
    waiting = [tensor.operation]
    while waiting:
        operation = waiting.pop()
        found[operation] = None
        waiting += [x.operation for x in operation.inputs if x.operation not in found]
    return [operation.op for operation in found]


# --- matmul ---------------------------------------------------------------------------------------------------------

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 2)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((0, 2, 3), (3, 4)),
    ((2, 2, 0), (0, 4)),
    ((2, 2, 3), (3, 0)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("known", [True, False])
def test_matmul_and_its_gradients(left: Any, right: Any, known: bool):
    a, b = draw(*left), draw(*right)
    x, y = (symbol(shape if known else (None,) * len(shape)) for shape in (left, right))
    product = ops.matmul(x, y)
    expected = a @ b
    assert product.ndim == expected.ndim
    weights = draw(*expected.shape)
    results = run([product, *gradients(product, [x, y], grad_ys=[weights])], {x: a, y: b})
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)
    subscripts = "...ij,...jk->...ik"
    a2 = a if a.ndim > 1 else a[None]
    b2 = b if b.ndim > 1 else b[:, None]
    w2 = weights.reshape(np.einsum(subscripts, a2, b2).shape)
    da = _sum_to(w2 @ b2.swapaxes(-1, -2), a2.shape).reshape(a.shape)
    db = _sum_to(a2.swapaxes(-1, -2) @ w2, b2.shape).reshape(b.shape)
    np.testing.assert_allclose(results[1], da, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[2], db, rtol=1e-4, atol=1e-5)


def _sum_to(x: Any, shape: Any) -> Any:
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(i for i, dim in enumerate(shape) if dim == 1 and x.shape[i] != 1), keepdims=True)


@pytest.mark.parametrize("shape", [(2, 5, 3), (None, 5, 3), (None, None, 3)])
def test_weights_gradient_is_one_product_of_matrices(shape: Any):
    x, w = symbol(shape), symbol((3, 4))
    y = ops.matmul(x, w)
    assert y.shape == (*shape[:2], 4)
    (dw,) = gradients(ops.sum(y), [w])
    products = [op for op in operations(dw) if isinstance(op, (MatMul, BatchMatMul)) and op != y_product(y)]
    assert products == [MatMul(transpose_a=True)]


def y_product(y: Any) -> Any:
    """The product behind `y`, of which a gradient may ask the shape."""
    return next(op for op in operations(y) if isinstance(op, MatMul))


def test_gradients_of_products_need_no_transposes():
    x, w = symbol((2, 3)), symbol((3, 4))
    dx, dw = gradients(ops.sum(ops.matmul(x, w)), [x, w])
    assert MatMul(False, True) in operations(dx)
    assert MatMul(True, False) in operations(dw)
    assert not any(op.type_name == "transpose" for op in operations(dx) + operations(dw))


def test_matmul_of_unknown_rank():
    x, y = symbol(None), symbol(None)
    product = ops.matmul(x, y)
    assert product.shape is None
    a, b = draw(5, 2, 3), draw(3, 4)
    dx, dy = gradients(ops.sum(product), [x, y])
    value, da, db = run([product, dx, dy], {x: a, y: b})
    np.testing.assert_allclose(value, a @ b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(da, np.broadcast_to(b.sum(1), a.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(db, np.broadcast_to(a.sum((0, 1))[:, None], b.shape), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="at least 2 axes"):
        run(product, {x: a, y: b[:, 0]})


def test_unknown_rank_times_matrix_keeps_leading_axes():
    x = symbol(None)
    w = draw(3, 4)
    y = ops.matmul(x, w)
    for shape in ((3,), (2, 3), (2, 5, 3)):
        a = draw(*shape)
        np.testing.assert_allclose(run(y, {x: a}), a @ w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_products_are_added_up_in_float32(dtype: str):
    a = np.ones((1, 4096), "float32").astype(as_dtype(dtype))
    product = run(ops.matmul(a, a.T))
    assert product.dtype == as_dtype(dtype)
    assert float(product[0, 0]) == 4096


def test_integer_products():
    a = np.full((1, 100), 100, "int8")
    assert run(ops.matmul(a, a.T)).tolist() == [[1_000_000]]
    assert run(ops.matmul(np.array([[1, 2]]), np.array([[3], [4]]))).dtype == "int64"


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((2, 3), (4, 5), r"\[2,3\] and \[4,5\].*3 elements.* 4"),
        ((2, 2, 3), (5, 3, 4), "broadcast"),
        ((), (2, 2), "no scalar"),
    ],
)
def test_matmul_errors(left: Any, right: Any, message: str):
    with pytest.raises(ValueError, match=message):
        ops.matmul(symbol(left), symbol(right))


# --- dot and its kin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [((), (2, 3)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((3,), (2, 3, 4))],
)
def test_dot(left: Any, right: Any):
    a, b = draw(*left), draw(*right)
    np.testing.assert_allclose(run(ops.dot(a, b)), np.dot(a, b), rtol=1e-5, atol=1e-6)


def test_vdot_inner_outer():
    a, b, v = draw(2, 3), draw(4, 3), draw(3)
    np.testing.assert_allclose(run(ops.vdot(a, draw(2, 3) * 0 + 1)), a.sum(), rtol=1e-5)
    np.testing.assert_allclose(run(ops.inner(a, b)), a @ b.T, rtol=1e-5)
    np.testing.assert_allclose(run(ops.inner(a, 2.0)), a * 2)
    np.testing.assert_allclose(run(ops.outer(a, v)), np.outer(a, v))


@pytest.mark.parametrize("axes", [0, 1, ((0,), (1,)), ((1, 0), (0, 1)), (1, 0), ((-1,), (-2,))])
def test_tensordot(axes: Any):
    a, b = draw(3, 3), draw(3, 3)
    np.testing.assert_allclose(run(ops.tensordot(a, b, axes)), np.tensordot(a, b, axes), rtol=1e-5, atol=1e-6)


def test_tensordot_errors():
    with pytest.raises(ValueError, match="axes=3"):
        ops.tensordot(draw(2, 2), draw(2, 2), 3)
    with pytest.raises(ValueError, match="names 2 axes of x1 and 1 of x2"):
        ops.tensordot(draw(2, 2), draw(2, 2), ((0, 1), (0,)))
    with pytest.raises(ValueError, match="known rank"):
        ops.tensordot(symbol(None), draw(2, 2))


def test_trace_and_cross():
    x = draw(3, 3, 2)
    np.testing.assert_allclose(run(ops.trace(x)), np.trace(x), rtol=1e-5)
    np.testing.assert_allclose(run(ops.trace(x, offset=1, axis1=1, axis2=0)), np.trace(x, 1, 1, 0), rtol=1e-5)
    a, b = draw(4, 3), draw(4, 3)
    np.testing.assert_allclose(run(ops.cross(a, b)), np.cross(a, b), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(ops.cross(a.T, b.T, axis=0)), np.cross(a.T, b.T, axis=0), rtol=1e-5, atol=1e-6)
    flat = np.concatenate([a[:, :2], np.zeros((4, 1), "float32")], axis=1)
    np.testing.assert_allclose(run(ops.cross(a[:, :2], b)), np.cross(flat, b), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="2 or 3 components"):
        ops.cross(draw(4), draw(4))


# --- einsum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ji,jk", [(3, 2), (3, 4)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 2, 5)]),
        ("btnh,bsnh->bnts", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("bnts,bsnh->btnh", [(2, 2, 3, 5), (2, 5, 2, 4)]),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (6, 3, 4)]),
        ("...i,...i", [(4, 3), (3,)]),
        ("i...,i->...", [(3, 2, 2), (3,)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,kl->ik", [(2, 3), (4, 5)]),
        ("ijk->kj", [(2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij,jk->ik", [(3, 3, 2), (2, 4)]),
        ("iii->i", [(3, 3, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,kj,lj->ikl", [(2, 3), (4, 3), (5, 3)]),
        ("a,b,ab->", [(2,), (3,), (2, 3)]),
        (",ij->ji", [(), (2, 3)]),
        ("i j , j k -> i k", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(subscripts: str, shapes: Any):
    arrays = [draw(*shape) for shape in shapes]
    expected = np.einsum(subscripts, *arrays)
    result = run(ops.einsum(subscripts, *arrays))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert result.shape == expected.shape
    xs = [symbol((None,) * len(shape)) for shape in shapes]
    y = ops.einsum(subscripts, *xs)
    static = [ops.convert_to_tensor(array) for array in arrays]
    wanted = run(gradients(ops.sum(ops.einsum(subscripts, *static)), static))
    found = run([y, *gradients(ops.sum(y), xs)], dict(zip(xs, arrays, strict=True)))
    for actual, value in zip(found, [expected, *wanted], strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-4, atol=1e-5)


def test_einsum_gradient_is_a_derivative():
    arrays = [draw(*shape).astype("float64") for shape in ((3, 3, 2), (2, 4))]
    xs = [ops.convert_to_tensor(array) for array in arrays]
    y = ops.sum(ops.einsum("iij,jk->ik", *xs) ** 2)
    da, db = run(gradients(y, xs))
    for array, derivative in zip(arrays, (da, db), strict=True):
        step = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            step[place] = 1e-6
            moved = [
                (np.einsum("iij,jk->ik", *[a + sign * step if a is array else a for a in arrays]) ** 2).sum()
                for sign in (1, -1)
            ]
            step[place] = 0
            np.testing.assert_allclose(derivative[place], (moved[0] - moved[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_einsum_contracts_the_smallest_products_first():
    y = ops.einsum("ij,jk,k->i", symbol((50, 60)), symbol((60, 70)), symbol((70,)))
    assert not any(op.type_name == "contraction" and len(op.out) > 1 for op in operations(y))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "2 operands; 1 were given"),
        ("ij->i", [(2, 3, 4)], "2 subscripts, its operand 3 axes"),
        ("i?->i", [(2, 3)], "expected letters"),
        ("ij->ii", [(2, 3)], "must stand once"),
        ("ij->k", [(2, 3)], "in an operand"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j' has size 3 in one operand and 4 in another"),
        ("ii->i", [(2, 3)], "sizes differ"),
        ("...ijk->i", [(2, 3)], "only 2 axes"),
    ],
)
def test_einsum_errors(subscripts: str, shapes: Any, message: str):
    with pytest.raises(ValueError, match=message):
        ops.einsum(subscripts, *[draw(*shape) for shape in shapes])


def test_einsum_error_at_run_time():
    x, y = symbol((None, None)), symbol((None, None))
    with pytest.raises(ValueError, match="'j' has size 3 in one operand and 4"):
        run(ops.einsum("ij,jk->ik", x, y), {x: draw(2, 3), y: draw(4, 5)})


def test_einsum_of_half_precision():
    a = np.ones((1, 4096), "float16")
    result = run(ops.einsum("ij,kj->ik", a, a))
    assert result.dtype == "float16"
    assert float(result[0, 0]) == 4096


# --- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("ord", "axis"),
    [
        (None, None),
        (None, 1),
        (2, 0),
        (1, -1),
        (0, 1),
        (3, 1),
        (0.5, 1),
        (np.inf, 1),
        (-np.inf, 2),
        ("fro", (0, 2)),
        (1, (1, 2)),
        (-1, (2, 0)),
        (np.inf, (0, 1)),
        (-np.inf, (2, 1)),
    ],
)
def test_norm(ord: Any, axis: Any, keepdims: bool):
    x = draw(2, 3, 4)
    result = run(ops.norm(x, ord=ord, axis=axis, keepdims=keepdims))
    expected = np.linalg.norm(x, ord=ord, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(result, expected, rtol=1e-4)
    assert result.shape == expected.shape


def test_norm_errors():
    x = draw(2, 3, 4)
    with pytest.raises(ValueError, match="needs an axis"):
        ops.norm(x, ord=1)
    with pytest.raises(ValueError, match="no norm of vectors"):
        ops.norm(x, ord="fro", axis=1)
    with pytest.raises(ValueError, match="'other' is no norm of matrices"):
        ops.norm(x, ord="other", axis=(0, 1))
    with pytest.raises(ValueError, match=r"one axis .* or two"):
        ops.norm(x, axis=(0, 1, 2))


# --- factorisations -------------------------------------------------------------------------------------------------


def test_inverse_determinant_cholesky_and_solutions():
    lower = np.tril(draw(2, 3, 3)) + 2 * np.eye(3, dtype="float32")
    a = lower @ lower.swapaxes(1, 2)
    b = draw(2, 3, 4)
    np.testing.assert_allclose(run(ops.inv(a)) @ a, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-4)
    np.testing.assert_allclose(run(ops.det(lower)), np.prod(np.diagonal(lower, axis1=1, axis2=2), axis=1), rtol=1e-4)
    np.testing.assert_allclose(run(ops.cholesky(a)), lower, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(run(ops.cholesky(a, upper=True)), lower.swapaxes(1, 2), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(a @ run(ops.solve(a, b)), b, atol=1e-4)
    np.testing.assert_allclose(a[0] @ run(ops.solve(a[0], b[0, :, 0])), b[0, :, 0], atol=1e-4)
    np.testing.assert_allclose(lower @ run(ops.solve_triangular(a * 0 + lower, b, lower=True)), b, atol=1e-4)


def test_triangular_solution_ignores_the_other_triangle():
    a = np.array([[2, 9], [1, 4]], "float32")
    np.testing.assert_allclose(run(ops.solve_triangular(a, [2.0, 4.0])), [-3.5, 1])
    np.testing.assert_allclose(run(ops.solve_triangular(a, [2.0, 5.0], lower=True)), [1, 1])


def test_singular_matrix():
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        run(ops.inv(np.ones((2, 2), "float32")))


def test_factorisations_of_half_precision():
    assert run(ops.inv(np.eye(2, dtype="float16") * 2)).dtype == "float16"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16", "complex64"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, -1, -3])
def test_powers_of_matrices(n: int, dtype: str):
    x = np.array([[[1, 1], [0, 1]], [[1, 1], [1, 0]]], dtype)
    found = ops.matrix_power(x, n)
    expected = np.linalg.matrix_power(x.astype("float64" if found.dtype.kind != "c" else "complex128"), n)
    assert found.dtype == ("float32" if n < 0 and "int" in dtype else dtype)  # as in Keras 3.16
    np.testing.assert_allclose(run(found), expected, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-4)


def test_powers_of_matrices_of_open_shape():
    x = symbol((None, None, None))
    value = np.array([[[1, 2], [3, 4]]], "float32")
    for n in (0, 3, -2):
        found = ops.linalg.matrix_power(x, n)
        np.testing.assert_allclose(run(found, {x: value}), np.linalg.matrix_power(value, n), rtol=1e-5)


@pytest.mark.parametrize("n", [2, 5, -2])
def test_gradients_of_powers_of_matrices(n: int):
    assert check_gradients(lambda x: ops.matrix_power(x, n), [np.array([[0.9, 0.3], [-0.2, 1.1]])])


def test_powers_of_matrices_refuse():
    n: Any = 2.0
    with pytest.raises(TypeError, match=r"matrix_power: n must be an integer; got 2\.0, of type float"):
        ops.matrix_power(np.eye(2), n)
    with pytest.raises(ValueError, match=r"matrix_power: expected square matrices; got shape \[2,3\]"):
        ops.matrix_power(np.ones((2, 3)), 2)
    with pytest.raises(ValueError, match=r"matrix_power: expected matrices in the last two axes; got shape \[3\]"):
        ops.matrix_power(np.ones(3), 2)
