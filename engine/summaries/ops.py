"""The ops of summaries. Buckets and pixels are computed where a tensor is; the writer's task gets these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec, shape_text
from ..graph.tensor import Tensor
from .event_file import COLOURS, as_bytes, bucketed
from .writer import SummaryWriter

_BYTE = dtypes.as_dtype("uint8")


@dataclass(frozen=True)
class _SummaryOp(Op):
    """Base: nothing flows back through summaries."""

    host_only: ClassVar[bool] = True
    no_samples: ClassVar[str] = "belongs to summaries: test_summaries"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True)
class HistogramBuckets(_SummaryOp):
    """Count the finite numbers of a tensor by buckets; see `bucketed`."""

    buckets: int

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        several = TensorSpec((None,), dtypes.float64)
        return TensorSpec((5,), dtypes.float64), several, several

    def run(self, xp: Any, *inputs: Any) -> Any:
        return bucketed(np.asarray(inputs[0]), self.buckets)


@dataclass(frozen=True)
class ImagePixels(_SummaryOp):
    """The first images of a tensor, as bytes: ``[images, height, width, channels]``."""

    most: int

    def infer(self, *inputs: Any) -> TensorSpec:
        shape = inputs[0].shape
        if shape is not None and (len(shape) not in (3, 4) or shape[-1] not in (None, *COLOURS)):
            raise ValueError(
                "An image must have shape [height, width, channels] or [images, height, width, channels] with 1 to 4 "
                f"channels, got {shape_text(shape)}. A matrix becomes an image by matrix[..., None]."
            )
        if shape is None:
            return TensorSpec((None,) * 4, _BYTE)
        return TensorSpec((None, *shape[-3:]), _BYTE)

    def run(self, xp: Any, *inputs: Any) -> Any:
        images = np.asarray(inputs[0])
        images = images[None] if images.ndim == 3 else images[: self.most]
        return np.ascontiguousarray(as_bytes(images))


@dataclass(frozen=True, eq=False)
class WriteSummary(_SummaryOp):
    """Write a summary. Inputs: the step, then what the kind takes. They are written in program order.

    Attributes:
        writer: where to.
        method: the method of `EventFile` that writes it.
        tag: its name.
    """

    writer: SummaryWriter
    method: str
    tag: str

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        step = inputs[0]
        if step.dtype.kind not in "iu" or step.shape not in ((), None):
            raise TypeError(f"The step of summary {self.tag!r} must be an integer, got {step}.")
        if self.method == "scalar" and inputs[1].shape is not None and any(n not in (1, None) for n in inputs[1].shape):
            raise ValueError(f"scalar {self.tag!r} must be one number, got {inputs[1]}; see histogram.")
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        step, *data = inputs
        given = [np.asarray(each) for each in data]
        if self.method == "text":
            texts = given[0].tolist()
            given = [texts if isinstance(texts, str) else [str(text) for text in np.ravel(given[0]).tolist()]]
        elif self.method == "image" and 0 in given[0].shape:
            return ()  # a batch without images
        self.writer.write(self.method, self.tag, *given, int(step))
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.writer, writes=True),)


__all__ = ["HistogramBuckets", "ImagePixels", "WriteSummary"]
