"""`anabranch.tf` and its datasets: TensorFlow's arguments and defaults, on values that are known."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework import tensorflow_names as tf
from anabranch.framework.data.element_dataset import ElementDataset

X = np.arange(12, dtype="float32").reshape(3, 4)


def value(tensor: Any) -> Any:
    return ab.Session().run(tensor)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: tf.argmax(X), [2, 2, 2, 2]),
        (lambda: tf.argmin(X, axis=1), [0, 0, 0]),
        (lambda: tf.concat([X[:1], X[2:]], axis=0), X[[0, 2]]),
        (lambda: tf.fill((2, 2), 7), [[7, 7], [7, 7]]),
        (lambda: tf.gather(X, [2, 0]), X[[2, 0]]),
        (lambda: tf.gather(X, [1], axis=1), X[:, 1:2]),
        (lambda: tf.identity(X), X),
        (lambda: tf.one_hot([1, 0], 3), [[0, 1, 0], [1, 0, 0]]),
        (lambda: tf.transpose(X), X.T),
        (lambda: tf.split(X, [1, 3], axis=1)[1], X[:, 1:]),
        (lambda: tf.split(X, 2, axis=1)[0], X[:, :2]),
        (lambda: tf.range(1, 7, 2), [1, 3, 5]),
        (lambda: tf.reduce_sum(X), 66),
        (lambda: tf.reduce_sum(X, axis=0), X.sum(0)),
        (lambda: tf.reduce_mean(X, axis=1, keepdims=True), X.mean(1, keepdims=True)),
        (lambda: tf.reduce_max(X, 1), X.max(1)),
        (lambda: tf.reduce_min(X, [0, 1]), 0),
        (lambda: tf.reduce_prod(X[1:], 0), X[1] * X[2]),
        (lambda: tf.reduce_any(X > 10, 1), [False, False, True]),
        (lambda: tf.reduce_all(X > 3, 1), [False, True, True]),
        (lambda: tf.reduce_variance(X), X.var()),
        (lambda: tf.reduce_std(X, 0), X.std(0)),
        (lambda: tf.reduce_logsumexp(X), np.log(np.exp(X).sum())),
        (lambda: tf.nn.moments(X, axes=[0])[1], X.var(0)),
        (lambda: tf.nn.moments(X, [0], keepdims=True)[0], X.mean(0, keepdims=True)),
        (lambda: tf.nn.softmax(X, axis=0), np.exp(X) / np.exp(X).sum(0)),
        (lambda: tf.math.l2_normalize(X, axis=1), X / np.linalg.norm(X, axis=1, keepdims=True)),
        (lambda: tf.clip_by_value(X, 2, 5), X.clip(2, 5)),
        (lambda: tf.pow(X, 2.0), X**2),
        # arguments by TensorFlow's names
        (lambda: tf.range(limit=3, start=1, delta=1), [1, 2]),
        (lambda: tf.range(3), [0, 1, 2]),
        (lambda: tf.range(limit=3), [0, 1, 2]),
        (lambda: tf.range(start=0.0, limit=1.0, delta=0.5, name="r"), [0.0, 0.5]),
        (lambda: tf.reshape(X, shape=(4, 3), name="r"), X.reshape(4, 3)),
        (lambda: tf.reshape(tensor=X, shape=[-1]), X.ravel()),
        (lambda: tf.cast(x=X, dtype="int32"), X),
        (lambda: tf.clip_by_value(X, clip_value_min=2, clip_value_max=5), X.clip(2, 5)),
        (lambda: tf.expand_dims(input=X, axis=0), X[None]),
        (lambda: tf.squeeze(input=X[None], axis=[0]), X),
        (lambda: tf.matmul(a=X, b=X, transpose_b=True), X @ X.T),
        (lambda: tf.linalg.matmul(X, X, transpose_a=True), X.T @ X),
        (lambda: tf.linalg.norm(X, axis=1), np.linalg.norm(X, axis=1)),
        (lambda: tf.maximum(x=X, y=4.0, name="m"), np.maximum(X, 4)),
        (lambda: tf.math.log(x=X + 1), np.log(X + 1)),
        (lambda: tf.stack(values=[X, X], axis=1), np.stack([X, X], 1)),
        (lambda: tf.unstack(value=X, axis=1)[1], X[:, 1]),
        (lambda: tf.tile(input=X, multiples=[2, 1]), np.tile(X, (2, 1))),
        (lambda: tf.repeat(input=X, repeats=2, axis=0), X.repeat(2, 0)),
        (lambda: tf.roll(input=X, shift=1, axis=0), np.roll(X, 1, 0)),
        (lambda: tf.where(condition=X > 3, x=X, y=0.0), np.where(X > 3, X, 0)),
        (lambda: tf.where(X > 9), np.argwhere(X > 9)),
        (lambda: tf.eye(num_rows=2, num_columns=3), np.eye(2, 3)),
        (lambda: tf.linspace(start=0.0, stop=1.0, num=3), [0, 0.5, 1]),
        (lambda: tf.zeros(shape=(2,), dtype="int32"), [0, 0]),
        (lambda: tf.ones_like(input=X), np.ones_like(X)),
        (lambda: tf.tensordot(a=X, b=X, axes=[[1], [1]]), X @ X.T),
        (lambda: tf.einsum("ij,kj->ik", X, X, optimize="greedy"), X @ X.T),
        (lambda: tf.stop_gradient(input=X), X),
    ],
)
def test_values(made: Any, expected: Any):
    np.testing.assert_allclose(value(made()), expected, rtol=1e-6)


def test_types():
    assert value(tf.argmax(X)).dtype == "int64"
    assert value(tf.one_hot([1], 2)).dtype == "float32"
    assert value(tf.cast(X, tf.int32)).dtype == "int32"
    assert tf.newaxis is None


def test_gather_refuses_batch_dims_that_do_not_fit():
    for batch_dims, axis in ((2, None), (1, 0), (-3, None)):
        with pytest.raises(ValueError, match="batch_dims must be from 0 to axis, and to the number of axes of indices"):
            tf.gather(X, [0], batch_dims=batch_dims, axis=axis)
    with pytest.raises(ValueError, match="differ in their first axis"):
        tf.gather(X, [[0]], batch_dims=1)


def test_random_numbers():
    tf.random.set_seed(4)

    assert value(tf.random.uniform((100,), 2, 3)).mean() == pytest.approx(2.5, abs=0.2)
    assert set(value(tf.random.uniform((100,), 0, 3, dtype=tf.int32)).tolist()) == {0, 1, 2}
    assert value(tf.random.normal((200,), 5.0, 0.1)).mean() == pytest.approx(5, abs=0.05)
    assert sorted(value(tf.random.shuffle(np.arange(9))).tolist()) == list(range(9))


@pytest.mark.parametrize("strides", [2, (2, 2), [1, 2, 2, 1]])
def test_conv2d_takes_strides_of_each_form(strides: Any):
    image, kernel = np.ones((1, 4, 4, 1), "float32"), np.ones((2, 2, 1, 1), "float32")

    np.testing.assert_array_equal(value(tf.nn.conv2d(image, kernel, strides, "VALID")), np.full((1, 2, 2, 1), 4))


def test_patches_and_sizes_of_images():
    image = np.arange(16, dtype="float32").reshape(1, 4, 4, 1)

    patches = tf.image.extract_patches(image, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    assert value(patches)[0, 0, 0].tolist() == [0, 1, 4, 5]
    assert value(tf.image.resize(image, (2, 2), method="nearest")).shape == (1, 2, 2, 1)


def test_boxes_and_flips_of_images():
    image = np.arange(24, dtype="float32").reshape(1, 4, 3, 2)

    box = tf.image.crop_to_bounding_box(image, 1, 0, 2, 3)
    np.testing.assert_array_equal(box, image[:, 1:3, 0:3])
    padded = value(tf.image.pad_to_bounding_box(box, 1, 0, 4, 5))
    assert padded.shape == (1, 4, 5, 2)
    np.testing.assert_array_equal(padded[:, 1:3, :3], box)
    assert padded.sum() == value(box).sum()
    with pytest.raises(ValueError, match="an image of 4 x 3 at offsets 0 and 1 does not fit into 4 x 3"):
        tf.image.pad_to_bounding_box(image, 0, 1, 4, 3)
    np.testing.assert_array_equal(tf.image.flip_left_right(image[0]), image[0, :, ::-1])
    np.testing.assert_array_equal(tf.image.flip_up_down(image), image[:, ::-1])
    np.testing.assert_array_equal(tf.initializers.Zeros()((2,)), [0, 0])


def test_function_with_and_without_options():
    @tf.function
    def plain(x: Any) -> Any:
        return x + 1.0

    @tf.function(jit_compile=True)
    def with_options(x: Any) -> Any:
        return x * 2.0

    assert (plain(1.0), with_options(4.0)) == (2.0, 8.0)


def batches(dataset: ElementDataset) -> list[Any]:
    return [batch.tolist() for batch in dataset]


def test_slices_of_each_structure():
    rows = list(ElementDataset.from_tensor_slices({"a": [1, 2], "b": np.eye(2)}))

    assert [(row["a"], row["b"].tolist()) for row in rows] == [(1, [1, 0]), (2, [0, 1])]
    assert batches(ElementDataset.from_tensor_slices([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"the arrays must have one number of rows, got \[2, 3\]"):
        ElementDataset.from_tensor_slices(([1, 2], [1, 2, 3]))


NUMBERS = ElementDataset.range(7)


@pytest.mark.parametrize(
    ("dataset", "expected", "length"),
    [
        (NUMBERS.batch(3), [[0, 1, 2], [3, 4, 5], [6]], 3),
        (NUMBERS.batch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]], 2),
        (NUMBERS.map(lambda x: x * 2, num_parallel_calls=tf.data.AUTOTUNE), [0, 2, 4, 6, 8, 10, 12], 7),
        (NUMBERS.filter(lambda x: x > 4), [5, 6], None),
        (NUMBERS.take(2), [0, 1], 2),
        (NUMBERS.take(-1).skip(5), [5, 6], 2),
        (NUMBERS.take(2).repeat(2), [0, 1, 0, 1], 4),
        (NUMBERS.take(1).concatenate(NUMBERS.skip(6)), [0, 6], 2),
        (NUMBERS.batch(4).unbatch(), [0, 1, 2, 3, 4, 5, 6], None),
        (NUMBERS.take(2).cache().prefetch(tf.data.AUTOTUNE), [0, 1], 2),
        (NUMBERS.shuffle(1), [0, 1, 2, 3, 4, 5, 6], 7),
        (ElementDataset.from_tensors([1, 2]).map(lambda pair: pair[1] - pair[0]), [1], 1),
        (ElementDataset.from_generator(lambda: iter([3, 4])), [3, 4], None),
        (ElementDataset.from_tensor_slices(np.zeros((0, 2))).batch(2), [], 0),
    ],
)
def test_datasets(dataset: ElementDataset, expected: list[Any], length: int | None):
    assert batches(dataset) == expected
    assert batches(dataset) == expected  # once more from the beginning
    assert dataset.cardinality() == (-2 if length is None else length)
    if length is None:
        with pytest.raises(TypeError, match="number of elements of this dataset is not known"):
            len(dataset)
    else:
        assert len(dataset) == length


def test_zipped_datasets_and_their_functions():
    pairs = ElementDataset.zip((NUMBERS, NUMBERS.skip(1)))

    assert len(pairs) == 6
    assert batches(pairs.map(lambda x, y: x + y)) == [1, 3, 5, 7, 9, 11]
    assert [pair[0] for pair in ElementDataset.zip(NUMBERS, NUMBERS).filter(lambda x, y: x + y > 10)] == [6]
    assert len(list(pairs.repeat().take(20))) == 20


def test_shuffled_datasets_have_each_element_once_and_a_new_order_each_time():
    dataset = NUMBERS.shuffle(4, seed=1)
    first, second = batches(dataset), batches(dataset)

    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
    assert batches(NUMBERS.shuffle(4, seed=1)) == first
    assert first[0] < 4  # nothing comes before it was in the buffer


def test_fit_takes_a_dataset():
    x = np.linspace(-1, 1, 40, dtype="float32")[:, None]
    dataset = ElementDataset.from_tensor_slices((x, 3 * x)).shuffle(40, seed=0).batch(8)
    model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    model.compile(ab.optimizers.SGD(0.5), "mse")

    history = model.fit(dataset, epochs=8, validation_data=dataset, verbose=0).history

    assert history["val_loss"][-1] < 1e-3
    assert model.predict(dataset.map(lambda x, y: x), verbose=0).shape == (40, 1)


def test_the_names_of_keras_for_settings():
    backend = ab.backend

    assert (backend.backend(), backend.floatx(), backend.image_data_format()) == (
        "anabranch",
        "float32",
        "channels_last",
    )
    assert backend.is_keras_tensor(ab.Input((2,)))
    for value in (np.ones(2), ab.ops.ones(2), ab.Variable(1.0)):
        assert not backend.is_keras_tensor(value)
        assert not isinstance(value, ab.KerasTensor)
    backend.set_image_data_format("channels_first")
    assert ab.config.image_data_format() == "channels_first"
    ab.config.disable_traceback_filtering()
    assert not ab.config.is_traceback_filtering_enabled()
    assert not tf.debugging.is_traceback_filtering_enabled()
    tf.debugging.enable_traceback_filtering()
    assert ab.config.is_traceback_filtering_enabled()
    assert tf.debugging.disable_traceback_filtering is ab.config.disable_traceback_filtering


def test_small_utils():
    x = np.array([[3.0, -4.0], [0.0, 0.0]])

    assert ab.utils.normalize(x, order=1).tolist() == [[3 / 7, -4 / 7], [0, 0]]
    np.testing.assert_allclose(ab.utils.normalize(x, axis=0)[0], [1, -1])
    np.testing.assert_allclose(value(ab.utils.normalize(ab.constant(x)))[0], [0.6, -0.8])
    assert isinstance(ab.Input((2,)), ab.KerasTensor)
    with ab.utils.CustomObjectScope({"Mine": dict}):
        assert ab.utils.get_registered_object("Mine") is dict
    dense = ab.utils.serialize_keras_object(ab.layers.Dense(3))
    assert ab.utils.deserialize_keras_object(dense).units == 3


def test_the_names_of_keras_for_preprocessing():
    assert ab.preprocessing.sequence.pad_sequences([[1]], maxlen=2).tolist() == [[0, 1]]
    assert ab.preprocessing.image.img_to_array(np.zeros((2, 2))).shape == (2, 2, 1)


def test_a_model_without_variables_can_be_fitted_with_a_warning():
    model = ab.Sequential([ab.Input((2,)), ab.layers.Rescaling(2.0)])
    model.compile("sgd", "mse")

    with pytest.warns(UserWarning, match="has no trainable variables: fit\\(\\) changes nothing"):
        history = model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)

    assert history.history["loss"] == [1.0]


@pytest.mark.parametrize("kind", ["constant", "placeholder", "variable", "computed"])
def test_identity_waits_for_control_dependencies(kind: str) -> None:
    with ab.Graph().as_default():
        counter, p = tf.Variable(0.0), ab.placeholder((), "float32")
        x = {"constant": tf.constant(5.0), "placeholder": p, "variable": tf.Variable(5.0), "computed": p * 1.0}[kind]
        with tf.control_dependencies([counter.assign_add(1.0)]):
            y = tf.identity(x)
        session = ab.Session()
        assert [float(session.run(y, {p: 5.0})) for _ in range(3)] == [5.0] * 3
        assert float(session.run(y + 1.0, {p: 5.0})) == 6.0
        assert float(counter.numpy()) == 4.0


NAMESPACES = """
from anabranch.tf.random import normal, uniform
from anabranch.tf.nn import relu
import anabranch.tf.math as math
import anabranch.tf.data
from anabranch import tf
print(normal is tf.random.normal, relu is tf.nn.relu, math is tf.math, anabranch.tf.data.Dataset is tf.data.Dataset)
"""


def test_namespaces_are_imported_by_name():
    result = subprocess.run([sys.executable, "-W", "error", "-c", NAMESPACES], capture_output=True, text=True)
    assert result.stderr == ""
    assert result.stdout.split() == ["True"] * 4


IMAGES = np.random.default_rng(5).uniform(size=(6, 4, 5, 3)).astype("float32")


def test_random_flips_are_drawn_for_each_image() -> None:
    images = np.concatenate([IMAGES] * 8)
    found = tf.image.random_flip_left_right(images, seed=3).numpy()
    flipped = [(new == old[:, ::-1]).all() for new, old in zip(found, images, strict=True)]
    assert [flip or (new == old).all() for flip, new, old in zip(flipped, found, images, strict=True)] == [True] * 48
    assert 0 < sum(flipped) < 48
    one = tf.image.random_flip_up_down(IMAGES[0], seed=1).numpy()
    assert (one == IMAGES[0]).all() or (one == IMAGES[0][::-1]).all()


def test_a_random_crop_is_a_part() -> None:
    found = tf.image.random_crop(IMAGES, (6, 2, 3, 3), seed=4).numpy()
    parts = [IMAGES[:, top : top + 2, left : left + 3] for top in range(3) for left in range(3)]
    assert any((found == part).all() for part in parts)
    with pytest.raises(
        ValueError, match=r"random_crop: size must fit into the shape \(6, 4, 5, 3\), got \(6, 5, 3, 3\)"
    ):
        tf.image.random_crop(IMAGES, (6, 5, 3, 3))


def test_random_adjustments_stay_within_their_limits() -> None:
    difference = tf.image.random_brightness(IMAGES, 0.1, seed=2).numpy() - IMAGES
    assert np.ptp(difference) < 1e-6
    assert abs(difference).max() < 0.1
    mean = IMAGES.mean((1, 2), keepdims=True)
    ratio = (tf.image.random_contrast(IMAGES, 0.5, 0.9, seed=2).numpy() - mean) / (IMAGES - mean)
    assert 0.5 < np.median(ratio) < 0.9
    assert tf.image.random_hue(IMAGES, 0.2).shape == IMAGES.shape
    assert tf.image.random_saturation(IMAGES, 0.5, 1.5).shape == IMAGES.shape


def test_draws() -> None:
    assert set(tf.random.categorical(np.log([[0.5, 0.5, 1e-30]]), 50, seed=1).numpy().ravel()) == {0, 1}
    gamma = tf.random.gamma((4000,), [1.0, 4.0], beta=2.0, seed=1).numpy()
    assert gamma.shape == (4000, 2)
    np.testing.assert_allclose(gamma.mean(0), [0.5, 2.0], rtol=0.1)
    assert abs(tf.random.truncated_normal((1000,), seed=1).numpy()).max() <= 2.0
    dropped = tf.nn.dropout(np.ones((1000,), "float32"), 0.25, seed=1).numpy()
    assert set(dropped.round(4)) == {0.0, np.float32(4 / 3).round(4)}
    with pytest.raises(ValueError, match="maxval must be given for whole numbers"):
        tf.random.uniform((2,), dtype="int32")
    for dtype in (tf.int32, np.int32, np.dtype("int32")):
        assert set(tf.random.uniform((50,), 2, 5, dtype, seed=1).numpy()) == {2, 3, 4}


def test_clipping_by_a_global_norm_keeps_slices_and_none() -> None:
    rows = ab.IndexedSlices(ab.ops.array([[3.0, 0.0]]), ab.ops.array([1]), ab.ops.array([4, 2]))
    (clipped, nothing, plain), norm = tf.clip_by_global_norm([rows, None, np.array([4.0], "float32")], 1.0)
    assert nothing is None
    assert isinstance(clipped, ab.IndexedSlices)
    np.testing.assert_allclose(norm, 5.0)
    np.testing.assert_allclose(clipped.values, [[0.6, 0.0]])
    assert isinstance(plain, ab.Tensor)
    np.testing.assert_allclose(plain, [0.8], rtol=1e-6)


def test_clipping_by_a_norm_keeps_slices_and_has_a_gradient_at_zero() -> None:
    rows = ab.IndexedSlices(ab.ops.array([[3.0, 4.0]]), ab.ops.array([1]), ab.ops.array([4, 2]))
    clipped = tf.clip_by_norm(rows, 1.0)
    assert isinstance(clipped, ab.IndexedSlices)
    np.testing.assert_allclose(clipped.values, [[0.6, 0.8]], rtol=1e-6)
    x = tf.Variable([[0.0, 0.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        result = tf.reduce_sum(tf.clip_by_norm(x, 1.0, axes=1))
    np.testing.assert_allclose(tape.gradient(result, x), [[1.0, 1.0], [0.032, -0.024]], rtol=1e-5)


def test_a_transposed_convolution_takes_any_number_of_rows() -> None:
    inputs = ab.Input((4, 5, 3))
    kernel = np.ones((3, 3, 2, 3), "float32")
    outputs = ab.layers.Lambda(lambda x: tf.nn.conv2d_transpose(x, kernel, [tf.shape(x)[0], 8, 10, 2], 2))(inputs)
    expected = tf.nn.conv2d_transpose(IMAGES, kernel, [6, 8, 10, 2], 2)
    np.testing.assert_allclose(ab.Model(inputs, outputs).predict(IMAGES, verbose=0), expected, rtol=1e-6)


def test_parts_of_an_open_axis() -> None:
    inputs = ab.Input((None, 3))
    first, rest = tf.split(inputs, [1, -1], axis=1)
    assert [part.shape for part in ab.Model(inputs, [first, rest])(IMAGES[0])] == [(4, 1, 3), (4, 4, 3)]
    with pytest.raises(ValueError, match=r"the size of axis 1 is open, so only the last of the sizes \[-1, 1\] may be"):
        tf.split(inputs, [-1, 1], axis=1)


def test_signals_and_images_of_open_sizes_have_gradients() -> None:
    @tf.function
    def loss(signals: Any, images: Any) -> Any:
        spectrum = tf.signal.stft(signals, 4, 2, pad_end=True)
        back = tf.signal.inverse_stft(spectrum, 4, 2, window_fn=tf.signal.inverse_stft_window_fn(2))
        crops = tf.image.crop_and_resize(images, [[0.1, 0.1, 0.8, 0.9]], [0], (3, 3))
        return tf.reduce_sum(back[:, :8] ** 2) + tf.reduce_sum(crops) + tf.reduce_sum(tf.image.rgb_to_yuv(crops))

    draw = np.random.default_rng(2)
    for rows in range(1, 12):  # from the ninth shape on it is traced for any size
        signals, images = (draw.normal(size=shape).astype("float32") for shape in ((rows, 8), (rows, 5, 4, 3)))
        with tf.GradientTape() as tape:
            given = tf.constant(signals), tf.constant(images)
            tape.watch(given)
            value = loss(*given)
        by_signals, by_images = tape.gradient(value, given)
        np.testing.assert_allclose(by_signals[:, 2:], 2 * signals[:, 2:], rtol=1e-3, atol=1e-4)  # the ends are cut off
        assert np.abs(by_images[0]).sum() > 1
        assert np.abs(by_images[1:]).sum() == 0


def test_tables_give_the_values_of_keys() -> None:
    make = tf.lookup.KeyValueTensorInitializer
    words = tf.lookup.StaticHashTable(make(["b", "a", "c"], [1, 2, 3]), default_value=-1)
    np.testing.assert_array_equal(words.lookup([["a", "x"], ["c", "b"]]), [[2, -1], [3, 1]])
    np.testing.assert_array_equal(words[tf.constant(["", "b"])], [-1, 1])
    assert (int(words.size()), words.size().dtype, words.value_dtype) == (3, "int64", "int32")
    assert words.key_dtype == tf.constant("a").dtype
    assert [each.tolist() for each in words.export()] == [["a", "b", "c"], [2, 1, 3]]

    texts = tf.lookup.StaticHashTable(make(tf.range(3), ["zero", "one", "two"], key_dtype=tf.int64), "?")
    assert texts.key_dtype == "int64"
    names = tf.data.Dataset.from_tensor_slices([2, 5, 0]).map(lambda n: texts.lookup(tf.cast(n, tf.int64)))
    assert list(names.as_numpy_iterator()) == ["two", "?", "zero"]

    @tf.function
    def shares(ids: Any) -> Any:
        return tf.lookup.StaticHashTable(make([4, 7], [0.25, 0.5]), 0.0).lookup(ids)

    np.testing.assert_array_equal(shares([7, 1, 4]), [0.5, 0.0, 0.25])
    empty = tf.lookup.StaticHashTable(make([], [], tf.string, tf.float32), 2.0)
    np.testing.assert_array_equal(empty.lookup(["a", "b"]), [2.0, 2.0])
    with pytest.raises(ValueError, match=r"one length; got shapes \(2,\) and \(1,\)"):
        make(["a", "b"], [1])
    with pytest.raises(ValueError, match="key 'a' has several values"):
        make(["a", "b", "a"], [1, 2, 3])
    assert int(tf.lookup.StaticHashTable(make(["a", "a"], [1, 1]), 0)["a"]) == 1


def test_keras_and_modules_are_those_of_the_package() -> None:
    assert tf.keras is ab
    assert tf.keras.layers is ab.layers
    assert tf.optimizers is ab.optimizers
    assert (tf.initializers, tf.losses, tf.metrics) == (ab.initializers, ab.losses, ab.metrics)
    assert {"keras", "optimizers", "nn"} <= set(dir(tf))


@pytest.mark.parametrize(
    "name",
    [
        *("Session", "compat", "distribute", "estimator", "placeholder", "saved_model", "train"),
        *("RaggedTensor", "SparseTensor", "ragged", "sparse"),
    ],
)
def test_names_that_are_not_there_say_what_to_use(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"module 'anabranch\.tf' does not have TensorFlow's {name}\. .*(anabranch|model)"
    ):
        getattr(tf, name)


def test_wrong_arguments_name_the_function() -> None:
    with pytest.raises(ValueError, match=r"dct takes type 2 or 3 along axis -1; got type=1, axis=-1, norm=None"):
        tf.signal.dct(X, type=1)
    with pytest.raises(ValueError, match=r"idct: n must be None; got 3"):
        tf.signal.idct(X, n=3)
    with pytest.raises(ValueError, match=r"crop_and_resize: method must be 'bilinear' or 'nearest', got 'area'"):
        tf.image.crop_and_resize(IMAGES, [[0, 0, 1, 1]], [0], (2, 2), "area")
    with pytest.raises(TypeError, match=r"set_diag: k must be an int, the number of one diagonal, got \(0, 1\)"):
        tf.linalg.set_diag(X, X, k=(0, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"conv2d_transpose: output_shape \(9, 9\) .* does not give \(4, 5\)"):
        tf.nn.conv2d_transpose(IMAGES, np.ones((3, 3, 2, 3)), (6, 9, 9, 2), 2)
    with pytest.raises(ValueError, match="add_n: inputs must hold at least one tensor"):
        tf.add_n([])
    with pytest.raises(ValueError, match='must be "ASCENDING" or "DESCENDING", got \'up\''):
        tf.sort([1, 2], direction="up")
    with pytest.raises(ValueError, match=r"central_fraction must be within \(0, 1\], got 0"):
        tf.image.central_crop(IMAGES, 0)
    with pytest.raises(ValueError, match=r"crop_to_bounding_box: 3 x 5 at offsets 2 and 0 is not within .* 4 x 5"):
        tf.image.crop_to_bounding_box(IMAGES, 2, 0, 3, 5)
    with pytest.raises(ValueError, match="grayscale_to_rgb: images must have one channel, got 3"):
        tf.image.grayscale_to_rgb(IMAGES)
    with pytest.raises(ValueError, match=r"split: the sizes \[1, 2\] do not add up to 4, the size of axis 1"):
        tf.split(IMAGES, [1, 2], axis=1)
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1 with size 3"):
        tf.math.confusion_matrix([0, 1], [5, 1], num_classes=3)
    matmul: Any = tf.matmul
    with pytest.raises(TypeError, match="transpose_A"):
        matmul(IMAGES, IMAGES, transpose_A=True)


def test_the_parts_of_one_text_are_a_vector() -> None:
    one: Any = tf.strings.split("a b  c")
    assert one.numpy().tolist() == ["a", "b", "c"]
    one = tf.strings.split("a,b,c", sep=",", maxsplit=1)
    assert one.numpy().tolist() == ["a", "b,c"]
    one = tf.strings.split("1 2.5")
    assert tf.strings.to_number(one).numpy().tolist() == [1.0, 2.5]
    several: Any = tf.strings.split(["a b", "c"])
    assert several.values.numpy().tolist() == [["a", "b"], ["c", ""]]
    assert several.lengths.numpy().tolist() == [2, 1]


def test_characters_of_texts() -> None:
    one: Any = tf.strings.unicode_split("héllo", "UTF-8")
    assert one.tolist() == list("héllo")
    several: Any = tf.strings.unicode_split(["ab", "", "xyz"], input_encoding="UTF-8")
    assert several.lengths.tolist() == [2, 0, 3]
    assert several.values.tolist() == [["a", "b", ""], ["", "", ""], ["x", "y", "z"]]
    lookup = ab.layers.StringLookup(vocabulary=list("abc"), mask_token=None)
    dataset = tf.data.Dataset.from_tensor_slices(["cab", "b"])
    found = dataset.map(lambda text: lookup(tf.strings.unicode_split(text, "UTF-8")))
    assert [row.tolist() for row in found] == [[3, 1, 2], [2]]
    with pytest.raises(ValueError, match="input_encoding='UTF-16-BE'"):
        tf.strings.unicode_split("a", "UTF-16-BE")


TABLE = """age,job,wage,weight
39,clerk,0,1.5
?,"sales, cars",1,
28,NA,0,2
"""


def columns_of(batch: Any) -> dict[str, Any]:
    return {name: column.tolist() for name, column in batch.items()}


def test_columns_of_csv_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    make = tf.data.experimental.make_csv_dataset
    options: dict[str, Any] = {"batch_size": 2, "num_epochs": 1, "shuffle": False, "na_value": "?"}
    defaults = [[0], ["none"], [0], [1.0]]
    first, second = make(str(tmp_path / "*.csv"), column_defaults=defaults, label_name="wage", **options)
    assert columns_of(first[0]) == {"age": [39, 0], "job": ["clerk", "sales, cars"], "weight": [1.5, 1.0]}
    assert (first[1].tolist(), second[1].tolist()) == ([0, 1], [0])
    inferred = next(iter(make(str(tmp_path / "a.csv"), **options)))
    assert [column.dtype.name for column in inferred.values()] == ["int32", "StringDType128", "int32", "float32"]
    assert columns_of(inferred)["weight"] == [1.5, 0.0]
    few = make(str(tmp_path / "a.csv"), select_columns=["job", "age"], column_defaults=[tf.string, [7]], **options)
    assert columns_of(next(iter(few))) == {"job": ["clerk", "sales, cars"], "age": [39, 7]}


def test_csv_files_that_do_not_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    dataset = tf.data.experimental.make_csv_dataset(str(tmp_path / "a.csv"), 2, na_value="?", shuffle_seed=1)
    ages = np.concatenate([row["age"] for row in dataset.take(9).as_numpy_iterator()])
    assert sorted(ages) == [0] * 6 + [28] * 6 + [39] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_name": "no"}, "label_name='no' is none of the columns"),
        ({"select_columns": ["no"]}, r"select_columns has \['no'\]"),
        ({"column_defaults": [[0]]}, "column_defaults has 1 entries for 4 columns"),
        ({"header": False}, "column_names must give them"),
        ({"header": False, "column_names": ["a", "b"]}, "a row has 4 fields, expected 2"),
        ({"column_defaults": ["int32", "string", "int32", "float32"]}, "column 'age' is empty in a row"),
        ({"column_defaults": ["int32", "int32", "int32", "float32"]}, "column 'job' has 'clerk', expected int32"),
    ],
)
def test_csv_files_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    make = tf.data.experimental.make_csv_dataset
    with pytest.raises(ValueError, match=message):
        list(make(str(tmp_path / "a.csv"), 2, num_epochs=1, shuffle=False, na_value="?", **options))
    with pytest.raises(FileNotFoundError, match="no file is named"):
        make(str(tmp_path / "b.csv"), 2)


def test_lines_of_a_file_become_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    lines = tf.data.TextLineDataset(str(tmp_path / "rows.csv"))

    def row(line: Any) -> Any:
        parts: Any = tf.strings.split(line, ",")
        return tf.strings.to_number(parts)

    rows = lines.map(row)
    assert [row.tolist() for row in rows.as_numpy_iterator()] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4), ("P", 3), ("LA", 4), ("I;16", 1), ("1", 1)]
)
def test_image_files_are_read_in_functions_of_datasets(mode: str, channels: int, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.arange(0, 240, 20, dtype="uint8").reshape(3, 4)
    image = pillow.fromarray(pixels.astype("uint16") * 256 if mode == "I;16" else pixels)
    path = tmp_path / "image.png"
    (image if mode == "I;16" else image.convert(mode)).save(path)

    def read(name: Any) -> Any:
        return tf.image.decode_png(tf.io.read_file(name)), tf.io.decode_image(tf.io.read_file(name), 3, tf.float32)

    ((own, colours),) = tf.data.Dataset.from_tensor_slices([str(path)]).map(read).as_numpy_iterator()
    assert (own.dtype, own.shape, colours.shape) == (np.uint8, (3, 4, channels), (3, 4, 3))
    assert tf.io.decode_jpeg(tf.io.read_file(str(path)), channels=4)[..., 3].numpy().min() == 255
    if mode != "1":  # Pillow dithers
        np.testing.assert_array_equal(own[..., 0], pixels)
        np.testing.assert_allclose(colours[..., 1] * 255, pixels, rtol=1e-6)


def test_image_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="channels must be 0, 1, 3 or 4, got 2"):
        tf.io.decode_jpeg([1], channels=2)
    with pytest.raises(FileNotFoundError):
        tf.io.read_file(str(tmp_path / "none.png"))


def test_devices_by_kind() -> None:
    assert tf.config.list_physical_devices("GPU") == []
    (cpu,) = tf.config.list_physical_devices()
    assert (cpu.name, cpu.device_type) == ("/physical_device:CPU:0", "CPU")


@pytest.mark.parametrize(
    ("dtype", "size", "lowest", "largest", "kinds"),
    [
        (tf.float16, 2, -65504.0, 65504.0, ["floating"]),
        (tf.bfloat16, 2, -3.3895313892515355e38, 3.3895313892515355e38, ["floating"]),
        (tf.float32, 4, float(np.finfo("float32").min), float(np.finfo("float32").max), ["floating"]),
        (tf.int8, 1, -128, 127, ["integer"]),
        (tf.int32, 4, -(2**31), 2**31 - 1, ["integer"]),
        (tf.uint64, 8, 0, 2**64 - 1, ["integer", "unsigned"]),
    ],
)
def test_dtypes_have_the_attributes_of_tensorflows(
    dtype: tf.DType, size: int, lowest: float, largest: float, kinds: list[str]
) -> None:
    assert (dtype.size, dtype.min, dtype.max) == (size, lowest, largest)
    assert [
        kind for kind in ("floating", "integer", "unsigned", "complex", "bool") if getattr(dtype, f"is_{kind}")
    ] == kinds
    assert dtype == dtype.name == np.dtype(dtype.as_numpy_dtype).name
    assert np.isfinite(tf.fill([2], dtype.max).numpy().astype("float64")).all()


def test_dtypes_without_order_have_no_limits() -> None:
    assert (tf.bool.is_bool, tf.complex64.is_complex, tf.string.as_numpy_dtype, tf.string.size) == (
        True,
        True,
        object,
        0,
    )
    for dtype in (tf.bool, tf.complex64, tf.string):
        with pytest.raises(TypeError, match=f"tf.{dtype}: there is no lowest and no largest number"):
            _ = dtype.max


def test_blocks_of_channels_first_have_tensorflows_order() -> None:
    """Its kernels for NCHW read channels as (row in the block, column in it, output channel)."""
    x = np.arange(1 * 12 * 2 * 3, dtype="float32").reshape(1, 12, 2, 3)
    found = np.asarray(tf.nn.depth_to_space(x, 2, "NCHW"))
    expected = x.reshape(1, 2, 2, 3, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 3, 4, 6)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.asarray(tf.nn.space_to_depth(found, 2, "NCHW")), x)
    with pytest.raises(ValueError, match="data_format"):
        tf.nn.depth_to_space(x, 2, "CHWN")
