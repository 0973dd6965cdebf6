"""Neural network functions: values by their formulas, extremes, gradients, half precision, unknown shapes, errors."""

import math
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.neural.softmax import SparseCrossEntropy, SparseCrossEntropyGrad
from anabranch.engine.session import Session

X = np.array([-8, -3, -2.5, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2.5, 3, 6, 8], "float32")


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def normal_cdf(x: Any) -> Any:
    return np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)


# --- activations ----------------------------------------------------------------------------------------------------

FORMULAS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.2 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "tanh_shrink": lambda x: x - np.tanh(x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x < 1, (x + 1) ** 2 / 4, x)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activation(name: str):
    result = run(getattr(ops, name)(X))
    assert result.dtype == "float32"
    np.testing.assert_allclose(result, FORMULAS[name](X.astype("float64")), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_activations_keep_the_dtype(name: str, dtype: str):
    assert run(getattr(ops, name)(X.astype(as_dtype(dtype)))).dtype == as_dtype(dtype)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradient_of_activation(name: str):
    away_from_kinks = np.array([-7.1, -2.2, -0.7, -0.2, 0.3, 0.8, 2.2, 7.1])
    x = ops.convert_to_tensor(away_from_kinks)
    (dx,) = run(gradients(getattr(ops, name)(x), [x]))
    step = 1e-6
    expected = (FORMULAS[name](away_from_kinks + step) - FORMULAS[name](away_from_kinks - step)) / (2 * step)
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [*FORMULAS, "softmax", "log_softmax"])
def test_activations_of_extremes_are_finite_or_plainly_infinite(name: str):
    x = ops.convert_to_tensor(np.array([-1e4, -100, 100, 1e4], "float32"))
    y = getattr(ops, name)(x)
    value, dx = run([y, *gradients(y, [x])])
    assert np.isfinite(value).all()
    assert np.isfinite(dx).all()


def test_activation_arguments():
    np.testing.assert_allclose(run(ops.leaky_relu([-2.0, 2.0], 0.1)), [-0.2, 2])
    np.testing.assert_allclose(run(ops.elu([-1.0, 1.0], alpha=2.0)), [2 * math.expm1(-1), 1], rtol=1e-6)
    np.testing.assert_allclose(run(ops.celu([-1.0], alpha=2.0)), [2 * math.expm1(-0.5)], rtol=1e-6)
    np.testing.assert_allclose(run(ops.gelu(X, approximate=False)), X * normal_cdf(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(ops.threshold(X, 0.3, -2.0)), np.where(X > 0.3, X, -2))
    np.testing.assert_allclose(run(ops.soft_shrink([1.0, -1.0], 0.25)), [0.75, -0.75])


def test_gradient_of_relu_at_zero_is_zero():
    x = ops.convert_to_tensor([-1.0, 0.0, 2.0])
    assert run(gradients(ops.relu(x), [x]))[0].tolist() == [0, 0, 1]


def test_relu_of_integers_and_bools():
    assert run(ops.relu(np.array([-3, 4], "int8"))).dtype == "int8"
    assert run(ops.relu([True, False])).tolist() == [1, 0]


def test_glu():
    x = np.arange(8, dtype="float32").reshape(2, 4)
    np.testing.assert_allclose(run(ops.glu(x)), x[:, :2] * sigmoid(x[:, 2:]), rtol=1e-6)
    np.testing.assert_allclose(run(ops.glu(x, axis=0)), x[:1] * sigmoid(x[1:]), rtol=1e-6)
    with pytest.raises(ValueError, match="odd"):
        ops.glu(np.ones((2, 3)))
    with pytest.raises(ValueError, match="not known"):
        ops.glu(symbol((2, None)))


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    x = np.array([[1.0, 0.8, 0.1], [3.0, 0.0, 0.0], [0.2, 0.2, 0.2]], "float32")
    np.testing.assert_allclose(run(ops.sparsemax(x)), [[0.6, 0.4, 0], [1, 0, 0], [1 / 3] * 3], atol=1e-6)
    np.testing.assert_allclose(run(ops.sparsemax(x.T, axis=0)).sum(0), [1, 1, 1], rtol=1e-6)


# --- softmax --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None])
def test_softmax(axis: Any):
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    expected = np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(run(ops.softmax(x, axis)), expected, rtol=1e-5)
    np.testing.assert_allclose(run(ops.log_softmax(x, axis)), np.log(expected), rtol=1e-5, atol=1e-6)


def test_softmax_of_large_and_infinite_values():
    x = np.array([[1e30, 0], [-1e30, -1e30], [0, -np.inf]], "float32")
    assert run(ops.softmax(x)).tolist() == [[1, 0], [0.5, 0.5], [1, 0]]
    assert run(ops.log_softmax(x))[0].tolist() == [0, -np.float32(1e30)]


def test_softmax_of_half_precision_is_computed_wide():
    x = np.zeros(4096, "float16")
    assert run(ops.softmax(x)).dtype == "float16"
    np.testing.assert_allclose(run(ops.log_softmax(x)).astype("float32"), -math.log(4096), rtol=1e-3)


def test_softmax_does_not_change_its_input():
    x = np.array([1.0, 2.0], "float32")
    run(ops.softmax(x))
    run(ops.log_softmax(x))
    assert x.tolist() == [1, 2]


def test_softmax_errors():
    with pytest.raises(ValueError, match="out of range"):
        ops.softmax(np.ones((2, 2)), axis=2)
    with pytest.raises(ValueError, match="out of range"):
        ops.softmax(1.0)


# --- cross-entropies ------------------------------------------------------------------------------------------------


def test_binary_crossentropy():
    target, p = np.array([0, 1, 0.25], "float32"), np.array([0.25, 0.25, 0.5], "float32")
    expected = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    np.testing.assert_allclose(run(ops.binary_crossentropy(target, p)), expected, rtol=1e-6)
    logits = np.log(p / (1 - p))
    np.testing.assert_allclose(run(ops.binary_crossentropy(target, logits, from_logits=True)), expected, rtol=1e-6)


def test_probabilities_are_clipped():
    wrong = run(ops.binary_crossentropy([0.0, 1.0], [1.0, 0.0]))
    clipped = np.float32(1) - np.float32(1e-7)
    np.testing.assert_allclose(wrong, [-math.log(1 - clipped), -math.log(1e-7)], rtol=1e-5)
    right = run(ops.categorical_crossentropy([[0.0, 1.0]], [[0.0, 1.0]]))
    np.testing.assert_allclose(right, [1.1920929e-7], rtol=1e-3)
    np.testing.assert_allclose(
        run(ops.sparse_categorical_crossentropy([0], [[0.0, 1.0]])), [-math.log(1e-7)], rtol=1e-5
    )


def test_probabilities_are_normalised():
    np.testing.assert_allclose(run(ops.categorical_crossentropy([[0.0, 1.0]], [[3.0, 1.0]])), [math.log(4)], rtol=1e-6)
    np.testing.assert_allclose(run(ops.sparse_categorical_crossentropy([1], [[3.0, 1.0]])), [math.log(4)], rtol=1e-6)


def test_crossentropy_of_extreme_logits():
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]], "float32")
    labels = np.array([1, 1])
    expected = np.array([2e4, 0], "float32")
    assert run(ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)).tolist() == expected.tolist()
    one_hot = np.eye(2, dtype="float32")[labels]
    assert run(ops.categorical_crossentropy(one_hot, logits, from_logits=True)).tolist() == expected.tolist()
    binary = run(ops.binary_crossentropy([1.0, 0.0], [-1e4, -1e4], from_logits=True))
    assert binary.tolist() == [1e4, 0]


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("from_logits", [False, True])
def test_sparse_and_dense_crossentropy_agree(axis: int, from_logits: bool):
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.1, 1, (3, 4, 5)).astype("float32")
    rest = [dim for place, dim in enumerate(scores.shape) if place != axis % 3]
    labels = rng.integers(0, scores.shape[axis], rest)
    dense = np.moveaxis(np.eye(scores.shape[axis], dtype="float32")[labels], -1, axis)
    x = ops.convert_to_tensor(scores)
    sparse_loss = ops.sparse_categorical_crossentropy(labels, x, from_logits, axis)
    dense_loss = ops.categorical_crossentropy(dense, x, from_logits, axis)
    one, other = run([[loss, *gradients(loss, [x])] for loss in (sparse_loss, dense_loss)])
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_crossentropy_of_logits_is_one_operation_forward_and_backward():
    x, labels = symbol((None, 5)), symbol((None,), "int32")
    loss = ops.sparse_categorical_crossentropy(labels, x, from_logits=True)
    assert isinstance(symbol_of(loss).operation.op, SparseCrossEntropy)
    assert loss.shape == (None,)
    (dx,) = gradients(loss, [x])
    assert isinstance(dx.operation.op, SparseCrossEntropyGrad)


def test_labels_may_have_a_last_axis_of_one_and_be_floats():
    scores = np.array([[0.2, 0.8], [0.5, 0.5]], "float32")
    expected = -np.log(scores[[0, 1], [1, 0]])
    for labels in ([[1], [0]], [1.0, 0.0], np.array([1, 0], "uint8")):
        np.testing.assert_allclose(run(ops.sparse_categorical_crossentropy(labels, scores)), expected, rtol=1e-6)


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("label", [7, -1])
def test_label_out_of_range_is_refused(from_logits: bool, label: int):
    loss = ops.sparse_categorical_crossentropy([0, label], np.ones((2, 3), "float32"), from_logits)
    with pytest.raises(ValueError, match=f"{label} is out of range: the scores have 3 classes"):
        run(loss)


def test_crossentropy_shape_errors():
    with pytest.raises(ValueError, match=r"same shape; got target of shape \[2,1\] and output of shape \[2,3\]"):
        ops.categorical_crossentropy(np.ones((2, 1)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="same shape"):
        ops.binary_crossentropy(np.ones(2), np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"expected shape \[2\]"):
        ops.sparse_categorical_crossentropy([0, 1, 2], np.ones((2, 3)), from_logits=True)
    with pytest.raises(ValueError, match="at least one axis"):
        ops.categorical_crossentropy(1.0, 1.0)


def test_crossentropy_of_half_precision():
    logits = np.zeros((2, 4096), "float16")
    loss = run(ops.sparse_categorical_crossentropy([0, 5], logits, from_logits=True))
    assert loss.dtype == "float16"
    np.testing.assert_allclose(loss.astype("float32"), math.log(4096), rtol=1e-3)


# --- normalisation --------------------------------------------------------------------------------------------------


def test_moments():
    x = np.random.default_rng(0).normal(1000, 1, (50, 3)).astype("float32")
    mean, variance = run(ops.moments(x, axes=[0]))
    np.testing.assert_allclose(mean, x.astype("float64").mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, x.astype("float64").var(0), rtol=1e-3)  # E[x^2] - E[x]^2 would be lost
    assert [m.shape for m in run(ops.moments(x, axes=[0], keepdims=True))] == [(1, 3), (1, 3)]
    with pytest.raises(ValueError, match="synchronized"):
        ops.moments(x, axes=[0], synchronized=True)


def test_moments_of_half_precision_stay_in_range():
    _, variance = run(ops.moments(np.array([6e4, -6e4], "float16"), axes=[0]))
    assert variance == np.float16(65504)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_batch_normalization(axis: int):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    features = x.shape[axis]
    mean, variance, offset, scale = rng.uniform(0.5, 1.5, (4, features)).astype("float32")
    shape = [1, 1, 1]
    shape[axis] = features
    m, v, o, s = (vector.reshape(shape) for vector in (mean, variance, offset, scale))
    result = run(ops.batch_normalization(x, mean, variance, axis, offset, scale, epsilon=0.01))
    np.testing.assert_allclose(result, (x - m) / np.sqrt(v + 0.01) * s + o, rtol=1e-4, atol=1e-5)
    plain = run(ops.batch_normalization(x, mean, variance, axis))
    np.testing.assert_allclose(plain, (x - m) / np.sqrt(v + 1e-3), rtol=1e-4, atol=1e-5)


def test_batch_normalization_of_unknown_rank():
    with pytest.raises(ValueError, match="known rank"):
        ops.batch_normalization(symbol(None), [0.0], [1.0], -1)


@pytest.mark.parametrize(("shape", "axis"), [((), 0), ((3,), 1), ((2, 3), -3)])
def test_batch_normalization_along_no_axis(shape: tuple[int, ...], axis: int):
    with pytest.raises(ValueError, match=rf"axis={axis} is out of range for an input of rank {len(shape)}"):
        ops.batch_normalization(np.ones(shape), [0.0], [1.0], axis)


def test_layer_and_rms_normalization():
    x = np.random.default_rng(0).normal(3, 2, (4, 6)).astype("float32")
    gamma, beta = np.arange(6, dtype="float32"), np.ones(6, "float32")
    standard = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(run(ops.layer_normalization(x, epsilon=1e-3)), standard, rtol=1e-4, atol=1e-5)
    result = run(ops.layer_normalization(x, gamma, beta, epsilon=1e-3))
    np.testing.assert_allclose(result, standard * gamma + beta, rtol=1e-4, atol=1e-5)
    rms = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-7)
    np.testing.assert_allclose(run(ops.rms_normalization(x)), rms, rtol=1e-5)
    np.testing.assert_allclose(run(ops.rms_normalization(x, scale=gamma)), rms * gamma, rtol=1e-5)
    assert run(ops.layer_normalization(x.astype("float16"))).dtype == "float16"


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 4), (3, 4), (2, 1, 1), (2, 3, 4)])
def test_weights_of_layer_normalization_that_broadcast(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(size=(2, 3, 4)).astype("float32"), rng.normal(size=shape).astype("float32")
    plain = run(ops.layer_normalization(x, axis=1))
    np.testing.assert_allclose(run(ops.layer_normalization(x, gamma, gamma, axis=1)), plain * gamma + gamma, rtol=1e-5)


def test_normalize():
    x = np.array([[3, 4], [0, 0]], "float32")
    np.testing.assert_allclose(run(ops.normalize(x)), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(ops.normalize(x, order=1)), [[3 / 7, 4 / 7], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(ops.normalize(x, axis=0, order=3)), [[1, 1], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(ops.l2_normalize(x, axis=1)), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    with pytest.raises(ValueError, match="order"):
        ops.normalize(x, order=0)
