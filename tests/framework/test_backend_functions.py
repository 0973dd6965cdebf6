"""Functions of `tf.keras.backend`: `K.sum`, `K.flatten` and their like, as in older scripts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf

K: Any = tf.keras.backend
A = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], "float32")
B = np.arange(24, dtype="float32").reshape(2, 3, 4)
P = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], "float32")
LOG = np.log

# The function, its arguments, and what it is by NumPy; numbers that Keras on TensorFlow gave where that is not plain.
CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    ("sum", (A, 1), A.sum(1)),
    ("mean", (A > 0,), 0.5),
    ("max", (A, 0, True), A.max(0, keepdims=True)),
    ("argmax", (A,), [2, 1]),
    ("argmin", (A,), [1, 2]),
    ("arange", (3,), [0, 1, 2]),
    ("concatenate", ([A, A],), np.concatenate([A, A], -1)),
    ("cumsum", (A,), A.cumsum(0)),
    ("cumprod", (A,), A.cumprod(0)),
    ("expand_dims", (A,), A[..., None]),
    ("squeeze", (A[:, None], 1), A),
    ("flatten", (B,), B.reshape(-1)),
    ("batch_flatten", (B,), B.reshape(2, 12)),
    ("permute_dimensions", (B, (0, 2, 1)), B.transpose(0, 2, 1)),
    ("repeat", (A, 2), np.stack([A, A], 1)),
    ("repeat_elements", (A, 2, 1), A.repeat(2, 1)),
    ("reverse", (A, 1), A[:, ::-1]),
    ("gather", (A, [1, 0]), A[::-1]),
    ("temporal_padding", (B,), np.pad(B, ((0, 0), (1, 1), (0, 0)))),
    ("clip", (A, -1, 2), A.clip(-1, 2)),
    ("clip", (A, None, 2), A.clip(None, 2)),
    ("pow", (A, 2), A**2),
    ("sqrt", (A,), np.sqrt(np.maximum(A, 0))),
    ("hard_sigmoid", (A,), np.clip(0.2 * A + 0.5, 0, 1)),
    ("relu", (A, 0.1, 4.0, 2.0), [[-0.1, -0.4, 3.0], [-0.6, 4.0, -0.8]]),
    ("l2_normalize", (A, 1), A / np.linalg.norm(A, axis=1, keepdims=True)),
    ("std", (A, 1), A.std(1)),
    ("batch_dot", (A, A, 1), (A * A).sum(1, keepdims=True)),
    ("batch_dot", (B, B.transpose(0, 2, 1)), B @ B.transpose(0, 2, 1)),
    ("batch_dot", (B, A[:, :3], (1, 1)), np.einsum("bij,bi->bj", B, A)),
    ("dot", (A, A.T), A @ A.T),
    ("in_top_k", (P, [1, 0], 2), [True, True]),
    ("bias_add", (B, np.arange(4.0, dtype="float32")), B + np.arange(4)),
    ("bias_add", (B, np.arange(3.0, dtype="float32"), "channels_first"), B + np.arange(3)[:, None]),
    ("batch_normalization", (A, 1.0, 4.0, 0.5, 2.0, -1, 0.0), (A - 1) + 0.5),
    ("binary_crossentropy", ([[1.0, 0.0, 1.0]], P[:1]), -LOG([[0.2, 0.7, 0.5]])),
    ("categorical_crossentropy", ([[0.0, 1.0, 0.0]], P[:1]), -LOG([0.3])),
    ("sparse_categorical_crossentropy", ([2, 0], P), -LOG([0.5, 0.6])),
    ("sparse_categorical_crossentropy", ([2, 0], P, False, -1, 0), [-LOG(0.5), 0.0]),
    ("switch", ([True, False], A, -A), [A[0], -A[1]]),
    ("one_hot", ([1, 0], 2), [[0, 1], [1, 0]]),
    ("constant", (2, "float32", (2, 2)), [[2, 2], [2, 2]]),
    ("cast_to_floatx", ([1, 2],), [1.0, 2.0]),
    ("pool2d", (B[..., None], (2, 2)), np.array([[[5, 6, 7], [9, 10, 11]], [[17, 18, 19], [21, 22, 23]]])[..., None]),
    ("spatial_2d_padding", (B[..., None],), np.pad(B[..., None], ((0, 0), (1, 1), (1, 1), (0, 0)))),
    ("resize_images", (B[..., None], 2, 1, "channels_last"), B.repeat(2, 1)[..., None]),
    ("map_fn", (lambda row: row * 2, A), A * 2),
    ("foldl", (lambda total, row: total + row, A), A.sum(0)),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), CASES, ids=[case[0] for case in CASES])
def test_it_computes(name: str, arguments: tuple[Any, ...], expected: Any) -> None:
    function = getattr(K, name)
    found = np.asarray(function(*arguments))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.shape == np.shape(expected)
    if not any(callable(argument) for argument in arguments):  # in a compiled step
        tensors = [k for k, each in enumerate(arguments) if isinstance(each, np.ndarray)]

        def step(*given: Any) -> Any:
            taken = dict(zip(tensors, given, strict=True))
            return function(*[taken.get(k, each) for k, each in enumerate(arguments)])

        compiled = ab.function(step)(*[arguments[k] for k in tensors])
        np.testing.assert_allclose(np.asarray(compiled), expected, rtol=1e-5, atol=1e-6)


def test_conditions_decide_between_functions() -> None:
    assert float(K.switch(K.mean(A) > 5, lambda: 1.0, lambda: 2.0)) == 2.0
    with pytest.raises(ValueError, match=r"condition of shape \(2, 3\) has a higher rank"):
        K.switch(A > 0, A[0], A[0])


def test_variables_are_written_and_read() -> None:
    v = K.variable([1.0, 2.0], name="v")
    assert K.dtype(v) == "float32"
    assert (K.int_shape(v), K.ndim(v), K.count_params(v)) == ((2,), 1, 2)
    K.update_add(v, [1.0, 1.0])
    K.update_sub(v, [0.0, 1.0])
    np.testing.assert_array_equal(K.get_value(v), [2, 2])
    K.moving_average_update(v, [4.0, 0.0], 0.5)
    np.testing.assert_array_equal(K.eval(v), [3, 1])
    K.set_value(v, [7, 8])
    np.testing.assert_array_equal(np.asarray(K.update(v, [1.0, 0.0])), [1, 0])
    K.batch_set_value([(v, [5, 6])])
    np.testing.assert_array_equal(K.batch_get_value([v]), [[5, 6]])
    assert K.int_shape(ab.Input((None, 3))) == (None, None, 3)


def test_draws_have_the_moments_that_are_asked_for() -> None:
    normal = K.get_value(K.random_normal((4000,), 3.0, 2.0, seed=1))
    uniform = K.get_value(K.random_uniform_variable((4000,), 2.0, 4.0, seed=1))
    chosen = K.get_value(K.random_bernoulli((4000,), 0.25, seed=1))
    cut = K.get_value(K.truncated_normal((4000,), 1.0, 0.5, seed=1))
    kept = K.get_value(K.dropout(np.ones(4000, "float32"), 0.25, seed=1))
    np.testing.assert_allclose([normal.mean(), normal.std(), uniform.mean()], [3, 2, 3], rtol=0.05)
    np.testing.assert_allclose([chosen.mean(), cut.mean(), kept.mean()], [0.25, 1.0, 1.0], rtol=0.1)
    assert 2 <= uniform.min() < uniform.max() < 4
    assert np.abs(cut - 1).max() <= 1


def test_connectionist_temporal_classification_sums_over_paths() -> None:
    steps = np.full((1, 4, 3), 0.25, "float32")
    steps[..., 2] = 0.5
    found = K.ctc_batch_cost(np.array([[0, 1]]), steps, np.array([[4]]), np.array([[2]]))
    # The paths of four steps that spell "01" have weights 1/4 for each letter and 1/2 for each blank.
    paths = [
        path
        for path in np.ndindex(3, 3, 3, 3)
        if [s for k, s in enumerate(path) if s != 2 and (k == 0 or path[k - 1] != s)] == [0, 1]
    ]
    chance = sum(0.25 ** sum(s != 2 for s in path) * 0.5 ** sum(s == 2 for s in path) for path in paths)
    np.testing.assert_allclose(np.asarray(found), [[-LOG(chance)]], rtol=1e-5)


def test_a_model_trains_by_a_loss_of_these() -> None:
    """The Dice loss and the coefficient of determination, as scripts of Keras 2 have them."""

    def dice(y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = K.flatten(K.cast(y_true, "float32")), K.flatten(y_pred)
        return 1 - (2 * K.sum(y_true * y_pred) + 1) / (K.sum(y_true) + K.sum(y_pred) + 1)

    def determination(y_true: Any, y_pred: Any) -> Any:
        rest = K.sum(K.square(y_true - y_pred))
        return 1 - rest / (K.sum(K.square(y_true - K.mean(y_true))) + K.epsilon())

    inputs = ab.Input((4,))
    noise = ab.layers.Lambda(lambda x: x + 0.0 * K.random_normal(shape=(K.shape(x)[0], 4)))(inputs)
    model = ab.Model(inputs, ab.layers.Dense(1, "sigmoid")(noise))
    model.compile(ab.optimizers.Adam(0.1), loss=dice, metrics=[determination])
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    history = model.fit(x, (x[:, :1] > 0).astype("float32"), epochs=10, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert np.isfinite(history["determination"]).all()


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="x must be a matrix, got the shape"):
        K.repeat(B, 2)
    with pytest.raises(ValueError, match="batch's axis 0"):
        K.batch_dot(A, A, axes=0)
    with pytest.raises(ValueError, match="need a batch and another axis"):
        K.batch_dot(A[0], A)
    with pytest.raises(ValueError, match="pool_mode must be"):
        K.pool2d(B[..., None], (2, 2), pool_mode="mean")
    with pytest.raises(AttributeError, match=r"does not have rnn, as other frameworks do\. Use ab\.layers\.RNN"):
        _ = K.rnn


def test_all_are_functions_that_say_what_they_do() -> None:
    from anabranch.framework import backend_functions

    for name in backend_functions.__all__:
        assert inspect.getdoc(getattr(K, name)), name
