"""Names of arguments in `anabranch.tf` are those of TensorFlow 2.21, and errors about them name the function."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf

LINE = np.array([-1.5, 0.0, 0.5, 2.0])
MATRIX = np.array([[4.0, 1.0], [2.0, 3.0]])
SYMMETRIC = np.array([[4.0, 1.0], [1.0, 3.0]])
COMPLEX = np.array([[1 + 2j, 3 - 1j], [2j, -1 + 0j]])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


SELU = 1.0507009873554805 * np.where(LINE > 0, LINE, 1.6732632423543772 * np.expm1(LINE))
CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "relu": (lambda: tf.nn.relu(features=LINE), np.maximum(LINE, 0)),
    "relu6": (lambda: tf.nn.relu6(features=4 * LINE), np.clip(4 * LINE, 0, 6)),
    "elu": (lambda: tf.nn.elu(features=LINE), np.where(LINE > 0, LINE, np.expm1(LINE))),
    "selu": (lambda: tf.nn.selu(features=LINE), SELU),
    "silu": (lambda: tf.nn.silu(features=LINE), LINE * sigmoid(LINE)),
    "swish with beta": (lambda: tf.nn.swish(features=LINE, beta=2.0), LINE * sigmoid(2 * LINE)),
    "softplus": (lambda: tf.math.softplus(features=LINE), np.log1p(np.exp(LINE))),
    "softsign": (lambda: tf.nn.softsign(features=LINE), LINE / (1 + np.abs(LINE))),
    "real": (lambda: tf.math.real(input=COMPLEX), np.real(COMPLEX)),
    "imag": (lambda: tf.math.imag(input=COMPLEX), np.imag(COMPLEX)),
    "angle": (lambda: tf.math.angle(input=COMPLEX), np.angle(COMPLEX)),
    "cholesky": (lambda: tf.linalg.cholesky(input=SYMMETRIC), np.linalg.cholesky(SYMMETRIC)),
    "det": (lambda: tf.linalg.det(input=MATRIX), np.linalg.det(MATRIX)),
    "logdet": (lambda: tf.linalg.logdet(matrix=SYMMETRIC), np.log(np.linalg.det(SYMMETRIC))),
    "inv": (lambda: tf.linalg.inv(input=MATRIX), np.linalg.inv(MATRIX)),
    "inv of the adjoint": (lambda: tf.linalg.inv(input=MATRIX, adjoint=True), np.linalg.inv(MATRIX.T)),
    "eye": (lambda: tf.eye(2, 3, batch_shape=[2, 1], dtype="int32"), np.tile(np.eye(2, 3), (2, 1, 1, 1))),
    "eye by position": (lambda: tf.linalg.eye(2, None, [3]), np.tile(np.eye(2), (3, 1, 1))),
    "diag above": (lambda: tf.linalg.diag([[1, 2], [3, 4]], k=1), [np.diag([1, 2], 1), np.diag([3, 4], 1)]),
    "diag below": (lambda: tf.linalg.diag([1.0, 2.0], k=-2), np.diag([1.0, 2.0], -2)),
    "diag of rows": (lambda: tf.linalg.diag([1, 2], k=1, num_rows=2), [[0, 1, 0], [0, 0, 2]]),
    "diag of sizes": (
        lambda: tf.linalg.diag([1, 2], num_rows=2, num_cols=4, padding_value=9),
        [[1, 9, 9, 9], [9, 2, 9, 9]],
    ),
    "diag_part": (lambda: tf.linalg.diag_part(np.arange(12).reshape(3, 4), k=1), [1, 6, 11]),
    "transpose": (lambda: tf.transpose(COMPLEX, conjugate=True), COMPLEX.conj().T),
    "bincount": (lambda: tf.math.bincount([[1, 1], [0, 2]], axis=0), [1, 2, 1]),
    "bincount of rows": (lambda: tf.math.bincount([[1, 1], [0, 2]], axis=-1), [[0, 2, 0], [1, 0, 1]]),
    "which occur": (
        lambda: tf.math.bincount([[1, 1], [0, 3]], axis=-1, binary_output=True),
        [[0, 1, 0, 0], [1, 0, 0, 1]],
    ),
    "first of rows": (lambda: tf.math.bincount([[1, 1], [0, 2]], axis=-1, maxlength=2), [[0, 2], [1, 0]]),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_by_the_names_of_tensorflow(name: str) -> None:
    call, expected = CASES[name]
    np.testing.assert_allclose(call(), expected, rtol=1e-6, atol=1e-7)


def test_arguments_that_are_not_supported() -> None:
    diag: Any = tf.linalg.diag
    with pytest.raises(TypeError, match=r"tf\.linalg\.diag: k must be an int.*got \(0, 1\)"):
        diag([1.0, 2.0], k=(0, 1))
    with pytest.raises(ValueError, match=r"tf\.math\.bincount: axis must be None, 0 or -1, got 1"):
        tf.math.bincount([1], axis=1)
    with pytest.raises(ValueError, match="binary_output takes no weights"):
        tf.math.bincount([1], weights=[1.0], binary_output=True)


def test_the_constraint_of_a_variable() -> None:
    variable = tf.Variable([1.0, 0.2], constraint=lambda value: tf.maximum(value, 0.0))
    for optimizer in (ab.optim.SGD(0.5), ab.optim.Adam(0.5)):
        variable.assign([1.0, 0.2])
        optimizer.apply([tf.constant([1.0, 1.0])], [variable])
        np.testing.assert_allclose(variable.numpy(), [0.5, 0.0], rtol=1e-5)
    wrong: Any = "non_neg"
    with pytest.raises(ValueError, match=r"constraint must be a function of its value.*ab\.constraints\.get"):
        tf.Variable(1.0, constraint=wrong)


def test_the_argument_of_device() -> None:
    with tf.device(device_name="cpu:0"):
        assert (tf.constant(1.0) + 1.0).numpy() == 2.0


MODULES: list[Any] = [tf, tf.debugging, tf.linalg, tf.math, tf.nn]


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_called_as_users_know_them(module: ModuleType) -> None:
    names = [name for name in module.__all__ if inspect.isfunction(getattr(module, name, None))]
    assert names
    assert [name for name in names if "<locals>" in getattr(module, name).__qualname__] == []


def test_errors_of_arguments_name_the_function() -> None:
    functions: list[Any] = [tf.nn.relu, tf.linalg.det, tf.reduce_sum]
    for function, name in zip(functions, ("relu", "det", "reduce_sum"), strict=True):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'axes'"):
            function(LINE, axes=1)
    max_pool2d: Any = tf.nn.max_pool2d
    with pytest.raises(TypeError, match=r"^max_pool2d\(\) got an unexpected keyword argument 'window'"):
        max_pool2d(LINE, window=2)
    assert_less: Any = tf.debugging.assert_less
    with pytest.raises(TypeError, match=r"^assert_less\(\) missing 1 required positional argument: 'y'"):
        assert_less(LINE)


DOCUMENTED: list[Any] = [*MODULES, tf.config, tf.data, tf.image, tf.io, tf.random, tf.strings]


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_functions_have_docstrings_of_their_own(module: ModuleType) -> None:
    """Several names of one function share its docstring; two functions have none in common."""
    made = {id(value): value for value in (getattr(module, name, None) for name in module.__all__) if callable(value)}
    texts = {id(value): inspect.getdoc(value) for value in made.values() if isinstance(value, FunctionType | type)}
    assert [value for value in made.values() if not texts.get(id(value))] == []
    assert [text for text, count in Counter(texts.values()).items() if count > 1] == []


def test_arctangent_takes_the_ordinate_first() -> None:
    np.testing.assert_allclose(tf.atan2(y=1.0, x=2.0), np.arctan2(1.0, 2.0), rtol=1e-6)


def test_the_largest_norm_of_embeddings_is_the_third_argument() -> None:
    table = np.array([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(tf.nn.embedding_lookup(table, [0, 1], 1.0), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
