"""Normalisation and noise: statistics, masks, halves, unknown sizes, the state that training keeps, errors."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph.graph import get_default_graph
from anabranch.framework.saving.state_tree import collect


def data(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


# --- each sample by itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "axis"), [(1, -1), (2, -1), (6, -1), (-1, -1), (2, 1), (2, -2)])
def test_groups_of_features(groups: int, axis: int) -> None:
    layer = layers.GroupNormalization(groups, axis=axis)
    x = data(2, 4, 3, 6) if axis != -2 else data(2, 3, 4, 6)
    layer(x)
    gamma, beta = data(x.shape[axis]), data(x.shape[axis]) + 1
    layer.set_weights([gamma, beta])
    rows = np.moveaxis(x, axis, 1)
    count = rows.shape[1] if groups == -1 else groups
    parts = rows.reshape(2, count, -1)
    normal = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-3)
    normal = normal.reshape(rows.shape) * gamma[:, None, None] + beta[:, None, None]
    expected = np.moveaxis(normal, 1, axis)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)
    with ab.Graph().as_default():
        shape = [None] * 4
        shape[axis] = x.shape[axis]
        symbol = ab.placeholder(tuple(shape), "float32")
        found = ab.Session(get_default_graph()).run(layer(symbol), {symbol: x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [layers.GroupNormalization, layers.RMSNormalization, layers.BatchNormalization])
def test_halves_do_not_overflow(kind: Any) -> None:
    layer = kind(dtype="float16", **({"groups": 1} if kind is layers.GroupNormalization else {}))
    x = np.tile(np.array([[300.0, -300.0]], "float16"), (64, 64))
    outputs = layer(x, training=True) if kind is layers.BatchNormalization else layer(x)
    assert outputs.dtype == np.float16
    assert np.all(np.isfinite(outputs))
    assert np.abs(outputs).max() < 1.01


def test_root_mean_squares_along_any_axes() -> None:
    x = data(2, 3, 4)
    for axis, axes in ((1, (1,)), ([2, 1], (1, 2)), (-1, (2,)), ([-1, 1], (1, 2))):
        layer = layers.RMSNormalization(axis=axis)
        layer(x)
        scale = data(*layer.scale.shape)
        layer.set_weights([scale])
        along = scale.reshape([size if place in axes else 1 for place, size in enumerate(x.shape)])
        expected = x / np.sqrt((x**2).mean(axes, keepdims=True) + 1e-6) * along
        np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_units_and_zeros() -> None:
    x = data(2, 3, 4)
    x[0, 0] = 0.0
    for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-3)):
        lengths = np.linalg.norm(layers.UnitNormalization(dtype=dtype)(x).astype("float32"), axis=-1)
        np.testing.assert_allclose(lengths, [[0, 1, 1], [1, 1, 1]], rtol=tolerance)
    with ab.Graph().as_default():
        symbol = ab.constant(x)
        (gradient,) = ab.gradients(ab.ops.sum(layers.UnitNormalization()(symbol)), [symbol])
        assert np.all(np.isfinite(ab.Session().run(gradient)))


def test_masks_pass() -> None:
    with ab.Graph().as_default():
        x = layers.Masking()(ab.placeholder((None, None, 4), "float32"))
        made = [
            layers.GroupNormalization(2),
            layers.RMSNormalization(),
            layers.UnitNormalization(),
            layers.GaussianDropout(0.1),
            layers.AlphaDropout(0.1),
            layers.ActivityRegularization(0.1),
        ]
        for layer in made:
            assert layer(x).annotations["mask"] is x.annotations["mask"]


# --- batches --------------------------------------------------------------------------------------------------------


def test_masked_positions_may_hold_anything() -> None:
    layer, clean = layers.BatchNormalization(momentum=0.0), layers.BatchNormalization(momentum=0.0)
    x = data(3, 4, 2)
    mask = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    broken = np.where(mask[..., None], x, np.nan).astype("float32")
    outputs = layer(broken, training=True, mask=mask)
    np.testing.assert_allclose(outputs[mask], clean(x, training=True, mask=mask)[mask], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_mean.numpy(), x[mask].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), x[mask].var(0), rtol=1e-4, atol=1e-6)


def moved_once(renorm: bool) -> Any:
    """A layer whose averages are no longer the first ones."""
    layer = layers.BatchNormalization(renorm=renorm, momentum=0.7, renorm_momentum=0.7)
    layer(data(5, 3) + 1, training=True)
    return layer


@pytest.mark.parametrize("renorm", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_batch_of_no_rows_moves_nothing(known: bool, renorm: bool) -> None:
    """Averages stay, to the bit; outputs are empty, gradients zeros; the next batch is none the wiser."""
    layer, same = moved_once(renorm), moved_once(renorm)
    before = layer.get_weights()

    @ab.function
    def train(x: Any, count: Any) -> Any:
        outputs = layer(x if known else x[:count], training=True)
        return outputs, *ab.gradients(ops.sum(ops.square(outputs)), [x, *layer.trainable_weights])

    outputs, *gradients = train(data(0 if known else 4, 3), np.int32(0))
    assert outputs.shape == (0, 3)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
    for weight, first in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, first)
    np.testing.assert_allclose(train(data(4, 3), np.int32(4))[0], same(data(4, 3), training=True), rtol=1e-5, atol=1e-6)
    for weight, other in zip(layer.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-6)


@pytest.mark.parametrize("renorm", [False, True])
def test_a_batch_of_no_rows_with_a_mask_moves_nothing(renorm: bool) -> None:
    layer = moved_once(renorm)
    before = layer.get_weights()
    assert layer(data(0, 3), training=True, mask=np.zeros(0, bool)).shape == (0, 3)
    for weight, first in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, first)


def test_rows_that_are_masked_altogether_count_as_zeros() -> None:
    """As in Keras, whose statistics of nothing are zeros."""
    layer = moved_once(renorm=False)
    mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    assert np.isfinite(layer(data(2, 3), training=True, mask=np.zeros(2, bool))).all()
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.7 * mean, rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), 0.7 * variance, rtol=1e-6)


def test_renormalisation_brings_training_to_inference() -> None:
    layer = layers.BatchNormalization(renorm=True, momentum=0.5, renorm_momentum=0.5)
    x = np.random.default_rng(0).normal(3.0, 2.0, (256, 2)).astype("float32")
    for _ in range(30):
        layer(x, training=True)
    np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(0), rtol=1e-3)
    np.testing.assert_allclose(layer.moving_variance.numpy(), x.var(0), rtol=1e-3)
    part = x[:4] + 5.0
    tested = layer(part)  # before training on it moves the averages
    np.testing.assert_allclose(layer(part, training=True), tested, rtol=1e-2, atol=1e-2)
    names = [weight.name for weight in layer.weights]
    assert names[4:] == ["moving_stddev", "renorm_mean", "renorm_stddev"]


def test_renormalisation_from_a_config() -> None:
    layer = layers.BatchNormalization(renorm=True, renorm_clipping={"rmax": 3.0})
    again = layers.BatchNormalization.from_config(layer.get_config())
    assert again.renorm
    assert again.renorm_clipping == {"rmax": 3.0}


# --- the spectral norm ----------------------------------------------------------------------------------------------


def power_iteration(kernel: Any, u: Any, count: int) -> tuple[Any, Any]:
    weights = kernel.reshape(-1, kernel.shape[-1])
    v = u
    for _ in range(count):
        v = u @ weights.T
        v = v / np.linalg.norm(v)
        u = v @ weights
        u = u / np.linalg.norm(u)
    return kernel / (v @ weights @ u.T).item(), u


@pytest.mark.parametrize("count", [1, 3])
def test_kernels_are_divided_by_their_norm_in_training(count: int) -> None:
    layer = layers.SpectralNormalization(layers.Dense(3, bias_initializer="ones"), power_iterations=count)
    x = data(4, 5)
    before = layer(x)
    kernel, u, bias = layer.get_weights()
    np.testing.assert_allclose(before, x @ kernel + bias, rtol=1e-5, atol=1e-5)
    for _ in range(2):
        outputs = layer(x, training=True)
        kernel, u = power_iteration(kernel, u, count)
        np.testing.assert_allclose(outputs, x @ kernel + bias, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(layer.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(layer.get_weights()[1], u, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer(x), outputs, rtol=1e-5, atol=1e-5)


def test_a_kernel_of_zeros_stays_and_embeddings_have_norms() -> None:
    layer = layers.SpectralNormalization(layers.Dense(3, kernel_initializer="zeros"))
    np.testing.assert_array_equal(layer(data(2, 4), training=True), np.zeros((2, 3)))
    embedding = layers.SpectralNormalization(layers.Embedding(7, 3), power_iterations=100)
    embedding(np.array([[1, 2]]), training=True)
    assert np.linalg.norm(embedding.layer.embeddings.numpy(), 2) == pytest.approx(1.0, rel=1e-3)


def test_weights_and_files_of_a_wrapped_layer() -> None:
    layer = layers.SpectralNormalization(layers.Dense(3, name="inner"), name="outer")
    layer(data(2, 4))
    assert [weight.path for weight in layer.weights] == ["outer/inner/kernel", "outer/vector_u", "outer/inner/bias"]
    assert [weight.name for weight in layer.trainable_weights] == ["kernel", "bias"]
    saved = {group.path: [value.shape for value in group.arrays.values()] for group in collect(layer)}
    assert saved == {"": [(4, 3), (1, 3)], "layer": [(4, 3), (3,)]}


def test_spectral_normalization_learns() -> None:
    model = ab.Sequential([ab.Input((3,)), layers.SpectralNormalization(layers.Dense(1, use_bias=False))])
    model.compile(optimizer=ab.optimizers.SGD(0.1), loss="mse")
    x = data(64, 3)
    y = x @ np.array([[0.6], [0.0], [-0.8]], "float32")
    losses = model.fit(x, y, epochs=20, batch_size=64, verbose=0).history["loss"]
    assert losses[-1] < 0.05 * losses[0]


# --- noise ----------------------------------------------------------------------------------------------------------


def test_gaussian_dropout_multiplies() -> None:
    layer = layers.GaussianDropout(0.2, seed=1)
    factors = layer(np.full((500, 40), 2.0, "float32"), training=True) / 2
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.std() == pytest.approx(0.5, abs=0.02)
    twin = layers.GaussianDropout(0.2, seed=1)(np.full((500, 40), 2.0, "float32"), training=True) / 2
    np.testing.assert_array_equal(twin, factors)


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = np.random.default_rng(0).standard_normal((500, 40)).astype("float32")
    dropped = layers.AlphaDropout(0.3, seed=1)(x, training=True)
    assert dropped.mean() == pytest.approx(0.0, abs=0.03)
    assert dropped.std() == pytest.approx(1.0, abs=0.03)
    values, counts = np.unique(dropped, return_counts=True)
    assert counts.max() / x.size == pytest.approx(0.3, abs=0.02)
    assert values[counts.argmax()] == dropped.min() or values[counts.argmax()] < -1
    rows = layers.AlphaDropout(0.5, noise_shape=(None, 1), seed=1)(np.ones((20, 5), "float32"), training=True)
    np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], 5, axis=1))


def test_activity_is_penalised() -> None:
    layer = layers.ActivityRegularization(l1=0.5, l2=0.25)
    x = data(2, 3)
    np.testing.assert_array_equal(layer(x), x)
    penalty = 0.5 * np.abs(x).sum() + 0.25 * (x**2).sum()
    assert float(layer.losses[0]) == pytest.approx(penalty / len(x), rel=1e-5)


def test_softmax_without_a_place() -> None:
    mask = np.array([[1, 1], [0, 0]], bool)
    np.testing.assert_allclose(layers.Softmax()(np.zeros((2, 2), "float32"), mask=mask), [[0.5, 0.5], [0, 0]])
    numbers = layers.Softmax()(np.zeros((2, 2), "float32"), mask=np.array([[0.6, 0.4], [1.0, 1.0]], "float32"))
    np.testing.assert_allclose(numbers, [[1, 0], [0.5, 0.5]])


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.GroupNormalization(0), "groups must be a positive integer, or -1, got groups=0"),
        (lambda: layers.SpectralNormalization(cast("Any", 3)), "takes a layer, got 3"),
        (
            lambda: layers.SpectralNormalization(layers.Dense(2), power_iterations=0),
            "power_iterations must be positive",
        ),
        (
            lambda: layers.BatchNormalization(renorm=True, renorm_clipping={"max": 1.0}),
            "renorm_clipping must be a dict of",
        ),
        (
            lambda: layers.BatchNormalization(renorm=True, renorm_clipping={"rmin": 2.0, "rmax": 1.0}),
            "rmin <= rmax and dmax >= 0",
        ),
        (lambda: layers.GaussianDropout(1.0), r"rate must be within \[0, 1\), got rate=1.0"),
        (lambda: layers.AlphaDropout(-0.1), r"rate must be within \[0, 1\)"),
    ],
)
def test_refused_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_refused_inputs() -> None:
    with pytest.raises(
        ValueError, match=r"'norm' \(GroupNormalization\): the size of axis -1 must be known, and a multi"
    ):
        layers.GroupNormalization(3, name="norm")(data(2, 4))
    with pytest.raises(ValueError, match="Flatten has neither a kernel nor embeddings"):
        layers.SpectralNormalization(layers.Flatten())(data(2, 4))
    with pytest.raises(ValueError, match="mask must broadcast to the inputs"):
        layers.Softmax()(data(2, 4), mask=np.ones((2, 3), bool))
    with pytest.raises(TypeError, match="axis must be an int or a list of ints, got '1'"):
        layers.UnitNormalization(axis="1")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization"])
def test_axes_that_inputs_do_not_have(kind: str) -> None:
    """Each layer is named, with the axis and the rank."""
    for axis in (3, -4):
        layer = getattr(layers, kind)(axis=axis, name="mine")
        with pytest.raises(ValueError, match=rf"Layer 'mine' \({kind}\): axis={axis} is out of range .* of rank 3"):
            layer(data(2, 3, 4))


def test_shared_axes_that_inputs_do_not_have() -> None:
    with pytest.raises(ValueError, match=r"\(PReLU\): shared_axes=\[5\] are outside of inputs of shape \(2, 3\)"):
        layers.PReLU(shared_axes=[5])(data(2, 3))
    for axes in ([-2], [-1, 3]):
        with pytest.raises(ValueError, match=r"\(PReLU\): shared_axes=.*last axis is 2\. Axes count from 1; axis 0 is"):
            layers.PReLU(shared_axes=axes)(data(2, 3, 4))


@pytest.mark.parametrize(
    ("axes", "shape"), [([-1], (3, 1, 5)), ([-2], (1, 4, 5)), ([0], (3, 4, 1)), ([1, -1], (1, 1, 5))]
)
def test_shared_axes_that_count_from_the_end(axes: list[int], shape: tuple[int, ...], tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((3, 4, 5)), layers.PReLU(shared_axes=axes, alpha_initializer="he_normal")])
    assert model.layers[0].alpha.shape == shape  # as in Keras 3.16
    model.save(tmp_path / "m.keras")
    again = ab.load_model(tmp_path / "m.keras")
    assert again.layers[0].shared_axes == axes
    x = data(2, 3, 4, 5)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


RMS_SCALING = "divides by the standard deviation, not by the root mean square"


@pytest.mark.parametrize(("axis", "dtype"), [(-1, "float32"), ([1, 2], "float32"), (1, "float16")])
def test_scaling_by_the_standard_deviation_alone_as_keras_has_it(axis: Any, dtype: str) -> None:
    x = np.random.default_rng(0).normal(2.0, 3.0, (2, 3, 4)).astype(dtype)
    with pytest.warns(UserWarning, match=RMS_SCALING):
        layer = layers.LayerNormalization(axis, gamma_initializer="he_normal", rms_scaling=True, dtype=dtype)
    found = layer(x)
    assert layer.beta is None
    assert layer.gamma is not None
    axes = tuple(axis) if isinstance(axis, list) else axis
    wide = x.astype("float64")
    gamma = layer.gamma.numpy().astype("float64").reshape([-1, 1] if axis == 1 else layer.gamma.shape)
    expected = wide / np.sqrt(wide.var(axes, keepdims=True) + 1e-3) * gamma
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, "float64"), expected, rtol=2e-3 if dtype == "float16" else 1e-5)
    with pytest.warns(UserWarning, match=RMS_SCALING):
        again = ab.ops.layer_normalization(x, layer.gamma, np.ones_like(layer.gamma), axis, 1e-3, rms_scaling=True)
    np.testing.assert_allclose(np.asarray(again, "float64"), np.asarray(found, "float64"), rtol=1e-6)


def test_a_model_that_scales_by_the_standard_deviation_is_saved(tmp_path: Any) -> None:
    inputs = ab.Input((4,))
    with pytest.warns(UserWarning, match=RMS_SCALING):
        scaled = ab.ops.layer_normalization(inputs * 2.0, rms_scaling=True)
    with pytest.warns(UserWarning, match=RMS_SCALING):
        layer = layers.LayerNormalization(scale=False, rms_scaling=True)
    model = ab.Model(inputs, layer(scaled))
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=RMS_SCALING):
        again = ab.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    np.testing.assert_array_equal(np.asarray(again(x)), np.asarray(model(x)))
    assert again.layers[-1].rms_scaling
    assert len(again.weights) == 1


def test_layer_normalization_is_not_warned_of_when_nothing_is_asked_for() -> None:
    assert not layers.LayerNormalization(rms_scaling=False).rms_scaling
    assert layers.LayerNormalization().get_config()["rms_scaling"] is False
    with pytest.raises(ValueError, match="rms_scaling must be True or False; got 'x'"):
        layers.LayerNormalization(rms_scaling="x")  # pyright: ignore[reportArgumentType]
