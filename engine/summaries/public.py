"""`ab.summary`: scalars, histograms, images and texts for TensorBoard, written by ops of graphs and by plain Python.

The ops run in graphs, loops, branches, functions, layers and train steps, or at once, on the task of their writer.

Source: TensorFlow's ``tf.summary``; Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous
Distributed Systems" (2015), section 9.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.dtypes import is_floating, is_string, name_of, string
from ..control_flow.cond import cond
from ..graph.context import in_explicit_graph
from ..graph.graph import Operation, graph_for
from ..graph.name_scopes import scoped_path
from ..graph.provenance import layer_being_called
from ..graph.tensor import Symbol, Tensor
from ..graph.value import Value
from ..ops.base import apply, apply_effect, apply_multi, cast, convert_to_tensor
from .event_file import BINS
from .ops import HistogramBuckets, ImagePixels, WriteSummary
from .scopes import default_writer, get_step, record_if, set_step, should_record_summaries
from .writer import FlushSummaries, SummaryWriter, create_file_writer


def scalar(name: str, data: Any, step: Any = None) -> Operation | None:
    """Write a number.

    Args:
        name: its tag. Name scopes, or the path of the layer that is being called, come before it.
        data: a tensor with one element.
        step: where on the axis, an integer or a tensor of one. By default what `as_default` or `set_step` say. Without
            them, in the steps of a model and in graphs behind the step of the only optimizer there: how many updates
            that has made.

    Returns:
        In a graph the operation, which runs where it is fetched, and always in functions, loops, branches and steps of
        models. None outside of graphs, and where nothing is written: without a writer, or under ``record_if(False)``.

    Raises:
        ValueError: no step is given and nothing says one, or the data have several elements.
        TypeError: the data are no number.

    >>> import anabranch as ab, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = ab.summary.create_file_writer(folder)
    ...     with writer.as_default():
    ...         for step in range(3):
    ...             ab.summary.scalar("loss", 1 / (step + 1), step)
    ...     writer.close()
    """
    return _written("scalar", name, step, lambda: [_numbers(f"scalar {name!r} must be a number", data)])


def histogram(name: str, data: Any, step: Any = None, buckets: int = BINS) -> Operation | None:
    """Write how the numbers of a tensor are spread. The writer's task gets the buckets, not the tensor.

    Args:
        name, step: see `scalar`.
        data: a tensor of any shape. NaN and infinities are left out; without other numbers nothing is written.
        buckets: how many.

    Raises:
        ValueError: no step is given and nothing says one, or there is to be no bucket.
        TypeError: the data are no numbers.

    >>> import anabranch as ab
    >>> with ab.summary.create_file_writer("histograms").as_default():
    ...     ab.summary.histogram("weights", [0.1, 0.2, 0.9], step=1)
    """
    if buckets < 1:
        raise ValueError(f"histogram {name!r}: buckets must be at least 1, got {buckets}.")
    text = f"histogram {name!r} must be of numbers"
    return _written("buckets", name, step, lambda: apply_multi(HistogramBuckets(buckets), _numbers(text, data)))


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3) -> Operation | None:
    """Write images.

    Args:
        name, step: see `scalar`. Several images have the tags ``name/0``, ``name/1`` and so on.
        data: ``[images, height, width, channels]``, or one without the first axis, with 1 to 4 channels; uint8, or
            floats from 0 to 1, beyond which they are cut off.
        max_outputs: how many are written at most; the others do not leave their device.

    Raises:
        ValueError: no step is given and nothing says one, or the data have another shape.
        TypeError: the data are neither of uint8 nor floats.

    >>> import anabranch as ab
    >>> with ab.summary.create_file_writer("images").as_default():
    ...     ab.summary.image("noise", ab.random.uniform((1, 8, 8, 3)), step=1)
    """
    if max_outputs < 1:
        raise ValueError(f"image {name!r}: max_outputs must be at least 1, got {max_outputs}.")

    def pixels() -> list[Tensor]:
        tensor = convert_to_tensor(data)
        if tensor.dtype.name not in ("uint8", "bool") and not is_floating(tensor.dtype):
            raise TypeError(
                f"image {name!r} must be of uint8, or of floats from 0 to 1, got {name_of(tensor.dtype)}. Use ops.cast."
            )
        return [apply(ImagePixels(max_outputs), tensor)]

    return _written("image", name, step, pixels)


def text(name: str, data: Any, step: Any = None) -> Operation | None:
    """Write text, as Markdown.

    Args:
        name, step: see `scalar`.
        data: a text, several, or a tensor of strings.

    Raises:
        ValueError: no step is given and nothing says one.
        TypeError: the data are not strings.

    >>> import anabranch as ab
    >>> with ab.summary.create_file_writer("texts").as_default():
    ...     ab.summary.text("note", "the **first** run", step=1)
    """

    def given() -> list[Tensor]:
        texts: Any = data
        if not isinstance(data, (Tensor, np.ndarray)):
            texts = np.asarray(data)
            texts = np.asarray(data, string) if texts.dtype.kind == "U" else texts
        tensor = convert_to_tensor(texts)
        if tensor.dtype.kind != "T":
            raise TypeError(f"text {name!r} must be strings, got {name_of(tensor.dtype)}.")
        return [tensor]

    return _written("text", name, step, given)


def flush(writer: SummaryWriter | None = None) -> Operation | None:
    """Hand what a writer has written to the operating system; by default the writer of the block around.

    >>> import anabranch as ab
    >>> with ab.summary.create_file_writer("flushed").as_default():
    ...     ab.summary.scalar("loss", 0.5, step=1)
    ...     ab.summary.flush()
    """
    chosen = default_writer() if writer is None else writer
    if chosen is None:
        return None
    if not in_explicit_graph():
        chosen.flush()
        return None
    return apply_effect(FlushSummaries(chosen), name="flush_summaries")


def _numbers(text: str, data: Any) -> Tensor:
    """Return data as a tensor of numbers.

    Raises:
        TypeError: it is of strings; the text says of what.
    """
    tensor = convert_to_tensor(data)
    if is_string(tensor.dtype):
        raise TypeError(f"{text}, got {name_of(tensor.dtype)}.")
    return tensor


def _written(method: str, name: object, step: Any, data: Callable[[], Any]) -> Operation | None:
    if not isinstance(name, str):
        raise TypeError(f"Summary {name!r}: the name must be a str, got an {type(name).__name__}.")
    writer = default_writer()
    if writer is None:
        return None
    condition = should_record_summaries()
    if isinstance(condition, Value) or not isinstance(condition, Tensor):
        condition = bool(condition)
    if condition is False:
        return None
    at = get_step() if step is None else step
    if at is None:
        raise ValueError(
            f"Summary {name!r} has no step. Give step=, or writer.as_default(step=...), or ab.summary.set_step(...); "
            "in the steps of a compiled model, and in a graph behind the step of its only optimizer, that of the "
            "optimizer is taken."
        )
    layer = layer_being_called()
    tag = f"{layer}/{name}" if layer else scoped_path(name)
    op = WriteSummary(writer, method, tag)

    def write() -> Operation | None:
        inputs = [cast(convert_to_tensor(at), "int64"), *data()]
        if writer.home is None or in_explicit_graph() or any(isinstance(each, Symbol) for each in inputs):
            return apply_effect(op, *inputs, name=f"{name}/write")
        arrays = [np.asarray(each) for each in inputs]
        writer.home.run(f"{method} {tag}", writer.adding(op), arrays, is_repeatable=False)
        return None

    if not isinstance(condition, Symbol):
        return write()
    with graph_for([condition]).entered():

        def act() -> None:
            write()

        found: Any = cond(condition, act, lambda: None)
    return found


__all__ = [
    "SummaryWriter",
    "create_file_writer",
    "flush",
    "get_step",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "set_step",
    "should_record_summaries",
    "text",
]
