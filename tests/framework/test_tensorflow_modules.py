"""`tf.Module`, steps that are compiled methods, and results that are asked for by name: what TensorFlow 2.21 gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, tf


class Affine(tf.Module):
    def __init__(self, size: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.w = tf.Variable(tf.ones([size, size]))
        self.b = tf.Variable(tf.zeros([size]), trainable=False)

    @tf.Module.with_name_scope
    def __call__(self, x: Any) -> Any:
        return tf.nn.relu(x @ self.w + self.b)


class Chain(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.z = Affine(3)
        self.a = [Affine(3, "first"), Affine(2)]
        self.m = {"k": Affine(1)}
        self.same = self.z
        self.v = tf.Variable(5.0)

    @tf.function
    def __call__(self, x: Any) -> Any:
        return self.z(self.a[0](x))


def test_a_module_finds_variables_by_the_names_of_attributes():
    chain = Chain()
    assert [v.shape for v in chain.variables] == [(), (3,), (3, 3), (2,), (2, 2), (1,), (1, 1), (3,), (3, 3)]
    assert [v.shape for v in chain.trainable_variables] == [(), (3, 3), (2, 2), (1, 1), (3, 3)]
    assert [v.shape for v in chain.non_trainable_variables] == [(3,), (2,), (1,), (3,)]
    assert [each.name for each in chain.submodules] == ["first", "affine", "affine", "affine"]
    assert chain.submodules[3] is chain.z
    with chain.name_scope:
        assert float(tf.constant(1.0) + 1.0) == 2.0
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(chain(tf.ones([2, 3])))
    found = tape.gradient(loss, chain.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert isinstance(found, tuple)
    assert [float(tf.reduce_sum(gradient)) for gradient in found] == [0.0, 54.0, 0.0, 0.0, 54.0]
    assert tape.gradient(loss, chain.v, unconnected_gradients=tf.UnconnectedGradients.NONE) is None


def test_a_module_has_the_variables_of_its_layers_and_of_itself_once():
    module = Chain()
    module.layer = layers.Dense(2)  # type: ignore[attr-defined]
    module.ring = module  # type: ignore[attr-defined]
    module.layer.build((None, 3))  # type: ignore[attr-defined]
    assert [v.shape for v in module.variables][:3] == [(3, 2), (2,), ()]
    assert len(module.variables) == len({id(v) for v in module.variables}) == 11


class Compiled(ab.Model):
    """A model whose methods are all compiled by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1, kernel_initializer="ones")

    @tf.function
    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x) + (1.0 if training else 0.0)

    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"error": loss}

    @tf.function
    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return {"error": tf.reduce_mean((self(x) - y) ** 2)}

    @tf.function
    def total(self, row: Any) -> Any:
        return tf.reduce_sum(row)


def test_compiled_methods_are_steps_and_bodies_of_maps():
    model = Compiled()
    model.compile("sgd")
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    assert model.fit(x, y, verbose=0).history == {"error": [9.0]}
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0, return_dict=True)["error"], (2 - 4 * 0.06) ** 2, 1e-6)
    np.testing.assert_array_equal(tf.map_fn(model.total, x), np.full(8, 3.0))


def test_a_compiled_step_of_too_many_arguments_is_refused_by_its_own():
    class Stateless(Compiled):
        @tf.function
        def train_step(self, state: Any, data: Any) -> Any:  # type: ignore[override]
            return state, data

    with pytest.raises(TypeError, match=r"Stateless\.train_step\(self, state, data\): expected train_step\(self, data"):
        Stateless().compile("sgd")


MATRIX = [[1.0, 2.0], [3.0, 1.0]]
RESULTS: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: tf.math.top_k([1.0, 4.0, 2.0], 2), ("values", "indices")),
    (lambda: tf.unique([3, 5, 3]), ("y", "idx")),
    (lambda: tf.linalg.slogdet(MATRIX), ("sign", "log_abs_determinant")),
    (lambda: tf.linalg.qr(MATRIX), ("q", "r")),
]


@pytest.mark.parametrize(("made", "names"), RESULTS, ids=["top_k", "unique", "slogdet", "qr"])
def test_results_have_names(made: Callable[[], Any], names: tuple[str, ...]):
    for result in (made(), tf.function(made)()):
        for part, name in zip(result, names, strict=True):
            np.testing.assert_array_equal(getattr(result, name), part)


def test_updates_of_elements():
    x = tf.constant([1, 5, 3])
    np.testing.assert_array_equal(tf.tensor_scatter_nd_sub(x, [[0], [1]], [4, 2]), [-3, 3, 3])
    np.testing.assert_array_equal(tf.tensor_scatter_nd_max(x, [[0], [1]], [4, 2]), [4, 5, 3])
    np.testing.assert_array_equal(tf.tensor_scatter_nd_min(x, [[0], [1]], [4, 2]), [1, 2, 3])


def test_scripts_may_ask_for_a_version():
    assert tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 16)


def test_names_of_losses_and_metrics_of_keras_2():
    y, p = np.array([[0.2, 0.8]], "float32"), np.array([[0.5, 0.5]], "float32")
    for module in (tf.keras.losses, tf.keras.metrics):
        np.testing.assert_array_equal(module.kullback_leibler_divergence(y, p), module.kl_divergence(y, p))
        np.testing.assert_array_equal([module.mse(y, p), module.MAE(y, p)], np.float32([[0.09], [0.3]]))
    reduction = tf.keras.losses.Reduction
    for name, expected in ((reduction.SUM, 0.18), (reduction.AUTO, 0.09), (reduction.SUM_OVER_BATCH_SIZE, 0.09)):
        found = tf.keras.losses.MeanSquaredError(reduction=name)(np.repeat(y, 2, 0), np.repeat(p, 2, 0))
        np.testing.assert_allclose(found, expected, 1e-6)
    assert tf.keras.losses.MeanSquaredError(reduction=reduction.NONE)(y, p).shape == (1,)


# --- windows along channels, and functions of arrays ------------------------------------------------------------------

IMAGES = np.random.default_rng(3).normal(size=(2, 4, 5, 6)).astype("float32")


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_windows_along_channels(data_format: str):
    images = IMAGES if data_format == "NHWC" else IMAGES.transpose(0, 3, 1, 2)
    sizes = (1, 1, 1, 3) if data_format == "NHWC" else (1, 3, 1, 1)
    found = tf.nn.max_pool(images, sizes, sizes, "VALID", data_format).numpy()
    found = found if data_format == "NHWC" else found.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(found, IMAGES.reshape(2, 4, 5, 2, 3).max(-1))


@pytest.mark.parametrize("op", [tf.nn.max_pool, tf.nn.avg_pool])
@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ((1, 1, 1, 3), (1, 1, 1, 1)),
        ((1, 2, 2, 3), (1, 2, 2, 3)),
        ((2, 2, 2, 1), (1, 1, 1, 1)),
        ((1, 2, 2, 1), (1, 1, 1, 2)),
    ],
)
def test_windows_that_can_not_be_are_refused(op: Any, sizes: tuple[int, ...], steps: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"windows extend and move in space alone; got \("):
        op(IMAGES, sizes, steps, "VALID")


def test_steps_along_channels_are_refused_and_windows_that_do_not_divide_them():
    with pytest.raises(ValueError, match=r"got \(1, 1, 1, 2\) with another number than 1 for rows or channels"):
        tf.nn.conv2d(IMAGES, np.ones((3, 3, 6, 2), "float32"), (1, 1, 1, 2), "VALID")
    with pytest.raises(ValueError, match="windows of 4 channels do not divide the 6 of the input"):
        tf.nn.max_pool(IMAGES, (1, 1, 1, 4), (1, 1, 1, 4), "VALID")


def test_numpy_function_decorates():
    @tf.numpy_function(Tout=[tf.float32, tf.int32])
    def step(x: Any, n: Any) -> Any:
        return (x / 2).astype("float32"), np.int32(n + 1)

    half, count = step(tf.constant([1.0, 3.0]), tf.constant(3))
    np.testing.assert_array_equal(half, [0.5, 1.5])
    assert int(count) == 4
    found = tf.function(lambda x: step(x, 1)[0] + 1.0)(tf.constant([1.0, 3.0]))
    np.testing.assert_array_equal(found, [1.5, 2.5])
