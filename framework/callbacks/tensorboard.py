"""`TensorBoard`: logs, weights and the graph, in event files that TensorBoard shows."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ...engine.graph import Placeholder, TensorSpec, flatten, pack_as
from ...layers.core.node import graph_for_shapes
from ..event_file import EventWriter
from ..models.fit_callbacks import Callback
from ..training.base_callback import Logs

if TYPE_CHECKING:
    from ...engine.graph import Graph, Symbol
    from ..models.model import Model
    from ..structures import Array


class TensorBoard(Callback):
    """Writes what TensorBoard shows: run ``tensorboard --logdir logs`` beside it. Neither TensorFlow nor TensorBoard is
    needed to write it.

    Args:
        log_dir: the folder; files of training go to ``train`` in it, those of validation to ``validation``.
        histogram_freq: after every this many epochs, write histograms of all weights; 0 writes none.
        write_graph: write the graph of operations, and the layers of a functional model.
        write_images: with the histograms, write the weights as images.
        write_steps_per_second: write how many steps a second were made.
        update_freq: "epoch", "batch", or after how many batches to write the logs so far.
        profile_batch: accepted as in Keras; for where time goes see `ab.profile` and `ab.trace`.
        embeddings_freq, embeddings_metadata: not supported.

    Raises:
        ValueError: `embeddings_freq` is not 0, or `update_freq` is something else.

    >>> import anabranch as ab, tempfile
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.fit([[1.0]], [[2.0]], verbose=0, callbacks=TensorBoard(folder))
    ...     os.listdir(folder)
    ['train']
    """

    uses_optimizer = False
    kept_attributes = ("_train_batch", "_test_batch")

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: object = None,
    ) -> None:
        super().__init__()
        if embeddings_freq or embeddings_metadata is not None:
            raise ValueError(
                f"TensorBoard: embeddings_freq={embeddings_freq!r}, embeddings_metadata={embeddings_metadata!r}: "
                "embeddings are not written for TensorBoard's projector. Leave both away, and save the layer's "
                "get_weights() with numpy.savetxt for https://projector.tensorflow.org."
            )
        if update_freq not in ("epoch", "batch") and not (isinstance(update_freq, int) and update_freq > 0):
            raise ValueError(
                f"TensorBoard: update_freq must be 'epoch', 'batch' or a number of batches, got {update_freq!r}."
            )
        if profile_batch:
            warnings.warn(
                f"TensorBoard(profile_batch={profile_batch!r}) writes no profile: see ab.profile and ab.trace.",
                stacklevel=2,
            )
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_images = write_images
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self.profile_batch = profile_batch
        self._writers: dict[str, EventWriter] = {}
        self._train_batch = 0
        self._test_batch = 0
        self._batch_started = 0.0
        self._epoch_started = 0.0
        self._steps_before = 0

    def writer(self, which: str = "train") -> EventWriter:
        """Return the writer of "train" or "validation", for summaries of your own."""
        if which not in self._writers:
            self._writers[which] = EventWriter(os.path.join(self.log_dir, which))
        return self._writers[which]

    def wants_batches(self, mode: str) -> bool:
        return mode != "predict" and (self.update_freq != "epoch" or (mode == "train" and self.write_steps_per_second))

    # --- training -------------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._train_batch = 0
        if self.write_graph:
            self._write_model()

    def on_train_end(self, logs: Logs | None = None) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch_started, self._steps_before = time.perf_counter(), int(self.model.optimizer.iterations)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._batch_started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._train_batch += 1
        if not self._is_due(self._train_batch):
            return
        found = {f"batch_{name}": value for name, value in (logs or {}).items()}
        if self.write_steps_per_second:
            found["batch_steps_per_second"] = 1.0 / max(time.perf_counter() - self._batch_started, 1e-9)
        self._write_scalars("train", found, self._train_batch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = logs or {}
        train = {name: value for name, value in logs.items() if not name.startswith("val_")}
        if hasattr(self.model.optimizer, "learning_rate"):  # which several optimizers together have not
            train["learning_rate"] = float(self.model.optimizer.learning_rate)
        if self.write_steps_per_second:
            steps = int(self.model.optimizer.iterations) - self._steps_before
            train["steps_per_second"] = steps / max(time.perf_counter() - self._epoch_started, 1e-9)
        self._write_scalars("train", {f"epoch_{name}": value for name, value in train.items()}, epoch)
        validation = {f"epoch_{name[4:]}": value for name, value in logs.items() if name.startswith("val_")}
        if validation:
            self._write_scalars("validation", validation, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._write_weights(epoch)
        for writer in self._writers.values():
            writer.flush()

    # --- validation -----------------------------------------------------------------------------------------

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._test_batch += 1
        if self._is_due(self._test_batch):
            found = {f"batch_{name}": value for name, value in (logs or {}).items()}
            self._write_scalars("validation", found, self._test_batch)

    def on_test_end(self, logs: Logs | None = None) -> None:
        if self.model.optimizer is None:
            return
        found = {f"evaluation_{name}_vs_iterations": value for name, value in (logs or {}).items()}
        self._write_scalars("validation", found, int(self.model.optimizer.iterations))
        self.writer("validation").flush()

    # --- writing --------------------------------------------------------------------------------------------

    def _is_due(self, batch: int) -> bool:
        return isinstance(self.update_freq, int) and batch % self.update_freq == 0

    def _write_scalars(self, which: str, values: Logs, step: int) -> None:
        writer = self.writer(which)
        for name, value in values.items():
            if np.size(value) == 1:
                writer.scalar(name, value, step)

    def _write_weights(self, epoch: int) -> None:
        writer = self.writer()
        for weight in self.model.weights:
            name = weight.path.replace(":", "_")
            value = np.asarray(weight.stored_value())
            writer.histogram(f"{name}/histogram", value, epoch)
            picture = _as_images(value) if self.write_images else None
            if picture is not None:
                writer.image(f"{name}/image", picture, epoch)

    def _write_model(self) -> None:
        graph = _forward_graph(self.model)
        if graph is None:
            return  # a model that was not called yet, so that nothing is known of its inputs
        self.writer().graph(graph)
        if self.model._layer_graph is not None:
            self.writer().keras_model("keras", _json_of(self.model))


def _json_of(model: Model) -> str:
    try:
        return model.to_json()
    except (TypeError, ValueError, NotImplementedError) as error:
        warnings.warn(f"TensorBoard shows no layers of model {model.name!r}: {error}", stacklevel=2)
        return "{}"


def _forward_graph(model: Model) -> Graph | None:
    """Return the operations from a model's inputs to its outputs; None if its inputs are not known."""
    if model._layer_graph is None:
        return None
    given = model._layer_graph.inputs_structure
    with graph_for_shapes() as graph:
        feeds: list[Symbol] = []
        for tensor in flatten(given):
            spec = TensorSpec(tensor.shape, tensor.dtype)
            feeds.append(graph.add(Placeholder(spec), (), tensor.operation.name).outputs[0])
        model(pack_as(given, feeds))
    return graph


def _as_images(weight: Array) -> Array | None:
    """Return a weight as ``[images, height, width, 1]`` from 0 to 1; None if it has no such form.

    A vector is a line, a matrix is turned by 90 degrees, of a kernel with three axes each last index is an image.
    """
    found = np.squeeze(weight).astype("float32")
    if found.ndim not in (1, 2, 3) or not found.size:
        return None
    if found.ndim == 1:
        found = found[:, None]
    elif found.ndim == 2 and found.shape[0] > found.shape[1]:
        found = found.T
    images = np.moveaxis(found, -1, 0) if found.ndim == 3 else found[None]
    low, high = float(np.min(images)), float(np.max(images))
    return ((images - low) / (high - low) if high > low else images * 0.0)[..., None]
