"""`TimeDistributed`: a layer applied to each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ..core.basic import Wrapper
from ..core.calling import TensorOrTensors, map_leaves, signature_of
from .step_rows import live_rows, rows_live

if TYPE_CHECKING:
    from ...engine.graph import Shape
    from ..core.layer import Layer
    from ..core.options import LayerOptions


class TimeDistributed(Wrapper):
    """Applies a layer to each step of ``(batch, steps, ...)``, with the same weights.

    Args:
        layer: the layer. It sees all steps of all samples at once, as one larger batch.

    Raises:
        ValueError: `layer` is not a layer, or at the call the input has fewer than three axes.
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def build(self, input_shape: Sequence[int | None]) -> None:
        if input_shape is None or len(input_shape) < 3:
            raise ValueError(
                f"Layer {self.name!r} (TimeDistributed) takes inputs of shape (batch, steps, ...) with at least three "
                f"axes, got input shape {input_shape}."
            )
        super().build((input_shape[0], *input_shape[2:]))

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> TensorOrTensors:
        if mask is not None:
            self._check_mask(inputs.shape, mask.shape)
        batch, steps = ops.shape(inputs)[:2]
        signature = signature_of(type(self.layer).call)
        given: dict[str, object] = {}
        if signature.takes("training"):
            given["training"] = training
        if signature.takes("mask") and mask is not None:
            given["mask"] = _merged(mask)
        live = live_rows()
        if live is not None:
            live = _merged(ops.broadcast_to(ops.expand_dims(live, 1), (batch, steps)))
        with rows_live(live, other_rows=True):
            outputs = self.layer(_merged(inputs), **given)

        def split(output: Tensor) -> Tensor:
            return ops.reshape(output, (batch, steps, *ops.shape(output)[1:]))

        return map_leaves(split, outputs)

    def _check_mask(self, shape: Shape, mask_shape: Shape) -> None:
        if shape is None or mask_shape is None:
            return
        pairs = zip(mask_shape[:2], shape[:2], strict=False)
        if len(mask_shape) < 2 or any(None not in (mask, size) and mask != size for mask, size in pairs):
            raise ValueError(
                f"Layer {self.name!r} (TimeDistributed): mask must have the shape (batch, steps) of the inputs, whose "
                f"shape is {shape}, got a mask of shape {mask_shape}."
            )


def _merged(x: Tensor) -> Tensor:
    """Compute ``(batch, steps, ...)`` as ``(batch * steps, ...)``."""
    batch, steps, *rest = ops.shape(x)
    return ops.reshape(x, (batch * steps, *rest))
