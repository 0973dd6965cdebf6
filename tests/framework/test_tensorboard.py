"""Event files, taken apart by hand and read by protobuf with TensorFlow's numbers of fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.event_files import CLASSES, decoded_png, events, scalars

import anabranch as ab
from anabranch import layers
from anabranch.framework.callbacks.api import Callback, EventWriter, TensorBoard

# --- the writer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.5, 1e-30, float("inf"), 3, np.float64(0.1), np.array([[2.0]]), True])
def test_scalars_are_read_as_they_were_written(tmp_path: Path, value: Any) -> None:
    with EventWriter(tmp_path) as writer:
        for step in (0, 1, 300, 2**40, -1):
            writer.scalar("group/name", value, step)
    found = events(tmp_path)
    assert [event.step for event in found] == [0, 1, 300, 2**40, -1]
    assert {event.summary.value[0].tag for event in found} == {"group/name"}
    assert found[0].summary.value[0].simple_value == np.float32(np.reshape(value, ()))


def test_nan_stays_nan(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", float("nan"), 1)
    assert np.isnan(scalars(tmp_path)["loss"][1])


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-2, 3, 100).reshape(10, 10),
        np.array([1, 5, 5, 9]),
        np.array([2.5, 2.5]),
        np.array(7.0),
        np.array([1.0, np.nan, 2.0, np.inf]),
        np.array([True, False, True]),
        np.array([1e300, -1e300]),
    ],
)
def test_histograms_count_every_finite_value(tmp_path: Path, values: np.ndarray) -> None:
    with EventWriter(tmp_path) as writer:
        writer.histogram("h", values, 4)
    (event,) = events(tmp_path)
    histogram = event.summary.value[0].histo
    finite = values[np.isfinite(values)].astype("float64") if values.dtype.kind == "f" else values.astype("float64")
    finite = np.atleast_1d(finite)
    assert (histogram.min, histogram.max, histogram.num) == (finite.min(), finite.max(), finite.size)
    assert histogram.sum == pytest.approx(finite.sum())
    limits, counts = np.array(histogram.bucket_limit), np.array(histogram.bucket)
    assert len(limits) == len(counts)
    assert limits[-1] == finite.max()
    # A value on a limit belongs to the next bucket, but for the last.
    below = [np.sum(finite < limit) for limit in limits[:-1]] + [finite.size]
    np.testing.assert_array_equal(np.cumsum(counts), below)


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.array([np.nan, np.inf])])
def test_nothing_finite_gives_no_histogram(tmp_path: Path, values: np.ndarray) -> None:
    with EventWriter(tmp_path) as writer:
        writer.histogram("h", values)
    assert events(tmp_path) == []


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_are_read_as_they_were_written(tmp_path: Path, channels: int, dtype: str) -> None:
    pixels = np.random.default_rng(channels).integers(0, 256, (5, 7, channels)).astype("uint8")
    with EventWriter(tmp_path) as writer:
        writer.image("i", pixels if dtype == "uint8" else (pixels / 255).astype(dtype), 1)
    image = events(tmp_path)[0].summary.value[0].image
    assert (image.height, image.width, image.colorspace) == (5, 7, channels)
    np.testing.assert_array_equal(decoded_png(image.encoded_image_string), pixels)


def test_floats_are_cut_off_and_several_images_are_numbered(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.image("i", np.full((5, 1, 1, 1), [[[[-1.0]]]]) * np.arange(5).reshape(5, 1, 1, 1) + 2, max_outputs=2)
    found = [event.summary.value[0] for event in events(tmp_path)]
    assert [value.tag for value in found] == ["i/0", "i/1"]
    assert [decoded_png(value.image.encoded_image_string).item() for value in found] == [255, 255]


def test_texts(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.text("t", "grün", 1)
        writer.text("t", ["a", "b"], 2)
    one, two = (event.summary.value[0] for event in events(tmp_path))
    assert one.metadata.plugin_data.plugin_name == "text"
    assert [text.decode() for text in one.tensor.string_val] == ["grün"]
    assert len(one.tensor.tensor_shape.dim) == 0
    assert [dim.size for dim in two.tensor.tensor_shape.dim] == [2]


def test_what_can_not_be_written_is_refused(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match=r"scalar 'a' must be one number, got an array of shape \(2,\)"):
            writer.scalar("a", [1.0, 2.0])
        with pytest.raises(
            ValueError, match=r"image 'b' must have shape .* got \(3, 3\). A matrix becomes an image by"
        ):
            writer.image("b", np.zeros((3, 3)))
    with pytest.raises(ValueError, match="is closed: make another writer"):
        writer.scalar("a", 1.0)
    writer.close()


def test_two_writers_of_a_folder_have_two_files(tmp_path: Path) -> None:
    with EventWriter(tmp_path), EventWriter(tmp_path):
        pass
    assert len(list(tmp_path.iterdir())) == 2


# --- the callback ---------------------------------------------------------------------------------------------------

X = np.linspace(-1, 1, 24, dtype="float32").reshape(12, 2)
Y = X.sum(1, keepdims=True)


def model_for_tests() -> ab.Sequential:
    model = ab.Sequential(
        [ab.Input((2,)), layers.Dense(3, activation="relu", name="hidden"), layers.Dense(1, name="top")]
    )
    model.compile(ab.optimizers.SGD(0.25), "mse", metrics=["mae"])
    return model


def fit(callback: Callback, **options: Any) -> Any:
    return model_for_tests().fit(
        X, Y, batch_size=4, epochs=2, validation_data=(X, Y), verbose=0, callbacks=callback, **options
    )


def test_epochs_of_training_and_validation(tmp_path: Path) -> None:
    history = fit(TensorBoard(tmp_path, write_graph=False)).history
    train, validation = scalars(tmp_path / "train"), scalars(tmp_path / "validation")
    assert set(train) == {"epoch_loss", "epoch_mae", "epoch_learning_rate"}
    assert train["epoch_learning_rate"] == {0: 0.25, 1: 0.25}
    for name in ("loss", "mae"):
        assert list(train[f"epoch_{name}"].values()) == [np.float32(value) for value in history[name]]
        assert list(validation[f"epoch_{name}"].values()) == [np.float32(value) for value in history[f"val_{name}"]]
        assert set(validation[f"evaluation_{name}_vs_iterations"]) == {3, 6}


@pytest.mark.parametrize(("update_freq", "steps"), [("batch", [1, 2, 3, 4, 5, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4])])
def test_batches(tmp_path: Path, update_freq: Any, steps: list[int]) -> None:
    fit(TensorBoard(tmp_path, write_graph=False, update_freq=update_freq, write_steps_per_second=True))
    found = scalars(tmp_path / "train")
    assert sorted(found["batch_loss"]) == sorted(found["batch_steps_per_second"]) == steps
    assert all(
        value > 0 for value in [*found["batch_steps_per_second"].values(), *found["epoch_steps_per_second"].values()]
    )
    assert sorted(scalars(tmp_path / "validation")["batch_mae"]) == steps


def test_histograms_and_images_of_weights(tmp_path: Path) -> None:
    fit(TensorBoard(tmp_path, write_graph=False, histogram_freq=2, write_images=True))
    found = {value.tag: value for event in events(tmp_path / "train") for value in event.summary.value}
    names = ("hidden/kernel", "hidden/bias", "top/kernel", "top/bias")
    assert [found[f"{name}/histogram"].histo.num for name in names] == [6, 3, 3, 1]
    sizes = [(found[f"{name}/image"].image.height, found[f"{name}/image"].image.width) for name in names[:3]]
    assert sizes == [(2, 3), (3, 1), (3, 1)]


def test_kernels_of_convolutions_are_images() -> None:
    from anabranch.framework.callbacks.tensorboard import _as_images

    images = [_as_images(np.ones(shape)) for shape in ((4,), (5, 2), (3, 4, 6), (3, 3, 1, 8))]
    assert [None if image is None else image.shape for image in images] == [
        (1, 4, 1, 1),
        (1, 2, 5, 1),
        (6, 3, 4, 1),
        (8, 3, 3, 1),
    ]
    assert _as_images(np.ones((2, 3, 4, 5))) is None
    found = _as_images(np.array([-1.0, 3.0, 1.0]))
    assert found is not None
    np.testing.assert_array_equal(found.ravel(), [0, 1, 0.5])


def test_the_graph_and_the_layers(tmp_path: Path) -> None:
    fit(TensorBoard(tmp_path))
    graph, layers_event, *_ = events(tmp_path / "train")
    nodes = {node.name: node for node in CLASSES["GraphDef"].FromString(graph.graph_def).node}
    by_op: dict[str, list[str]] = {}
    for node in nodes.values():
        assert all(name.partition(":")[0] in nodes for name in node.input)
        by_op.setdefault(node.op, []).append(node.name)
    assert len(by_op["Placeholder"]) == 1
    assert [name.split("/")[-2] for name in by_op["MatMul"]] == ["hidden", "top"]
    value = layers_event.summary.value[0]
    assert value.metadata.plugin_data.plugin_name == "graph_keras_model"
    assert json.loads(value.tensor.string_val[0])["class_name"] == "Sequential"


def test_names_of_nodes_are_told_apart() -> None:
    from anabranch.framework.event_file import graph_def

    with ab.Graph().as_default() as graph:
        x = ab.placeholder((2,), "float32", "x")
        with ab.name_scope("A b"):
            y = ab.ops.exp(x)
        with ab.name_scope("a_b"):
            ab.ops.split(ab.ops.exp(y), 2)
    names = [node.name for node in CLASSES["GraphDef"].FromString(graph_def(graph)).node]
    assert len({name.lower() for name in names}) == len(names) >= 4


def test_models_without_known_inputs_write_no_graph(tmp_path: Path) -> None:
    class Own(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Own()
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0, callbacks=TensorBoard(tmp_path))
    assert set(scalars(tmp_path / "train")) == {"epoch_loss", "epoch_learning_rate"}


def test_own_summaries_go_beside(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, write_graph=False)

    class Own(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            board.writer("train").scalar("own", epoch, epoch)

    model_for_tests().fit(X, Y, epochs=2, verbose=0, callbacks=[board, Own()])
    assert scalars(tmp_path / "train")["own"] == {0: 0.0, 1: 1.0}


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="embeddings are not written"):
        TensorBoard(embeddings_freq=1)
    with pytest.raises(ValueError, match="update_freq must be 'epoch', 'batch' or a number of batches, got 'step'"):
        TensorBoard(update_freq="step")
    with pytest.warns(UserWarning, match=r"profile_batch=\(2, 4\)\) writes no profile: see ab.profile"):
        TensorBoard(profile_batch=(2, 4))


def test_tensorboard_itself_reads_it(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history = fit(TensorBoard(tmp_path, histogram_freq=1, write_images=True)).history
    reader = accumulator.EventAccumulator(str(tmp_path / "train"))
    reader.Reload()
    assert [event.value for event in reader.Scalars("epoch_loss")] == [np.float32(value) for value in history["loss"]]
    assert reader.Tags()["histograms"]
    assert reader.Tags()["images"]
    assert reader.Graph().node
