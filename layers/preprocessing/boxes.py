"""`MaxNumBoundingBoxes`: as many boxes for each image, so that images of a batch can be put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, cast

from ...engine import ops
from ...engine.objects.arguments import check_numbers
from ..core.layer_config import config_from_signature
from .image_layer import ImageLayer

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.ops.base import TensorLike
    from ..core.options import LayerOptions


@config_from_signature()
class MaxNumBoundingBoxes(ImageLayer):
    """Gives each image the same number of boxes: those behind it are left out, missing ones are filled in.

    Args:
        max_number: the number.
        fill_value: what missing boxes and labels consist of.
        bounding_box_format: accepted as in Keras, and kept for the config: numbers of boxes stay as they are.
        data_format: as for other layers of images, which stay as they are.

    The input is a dict with "bounding_boxes", a dict of "boxes" ``[n, 4]`` or ``[batch, n, 4]`` and "labels" ``[n]`` or
    ``[batch, n]``; other entries of it that have a number for each box are treated alike. Everything beside it, such as
    "images", is passed on, and so are images without a dict. Unlike Keras's, the layer needs no `bounding_box_format`,
    and its config has `fill_value`.

    Raises:
        ValueError: `max_number` is not a positive integer, or there are no boxes.

    >>> import numpy as np
    >>> boxes = {"boxes": np.array([[[0.0, 1.0, 2.0, 3.0]]]), "labels": np.array([[5]])}
    >>> MaxNumBoundingBoxes(2)({"bounding_boxes": boxes})["bounding_boxes"]["labels"].numpy().tolist()
    [[5, -1]]
    """

    def __init__(
        self,
        max_number: int,
        fill_value: float = -1,
        bounding_box_format: str | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(data_format, bounding_box_format, **kwargs)
        if not isinstance(max_number, int) or isinstance(max_number, bool) or max_number < 1:
            raise ValueError(f"Layer {self.name!r}: max_number must be a positive integer, got {max_number!r}.")
        self.max_number = max_number
        check_numbers(f"Layer {self.name!r}", fill_value=fill_value)
        self.fill_value = fill_value

    def call(self, data: object, training: bool | None = True) -> Any:
        if not isinstance(data, dict):
            return self.transform_images(cast("TensorLike", data), None)
        boxes = data.get("bounding_boxes")
        if not isinstance(boxes, dict) or not {"boxes", "labels"} <= boxes.keys():
            raise ValueError(
                f"Layer {self.name!r} takes a dict with 'bounding_boxes', which is a dict of 'boxes' and 'labels', or "
                f"images alone; got {sorted(map(str, data))}."
            )
        axis = (ops.convert_to_tensor(boxes["labels"]).ndim or 1) - 1
        return {**data, "bounding_boxes": {name: self._of_max_number(each, axis) for name, each in boxes.items()}}

    def _of_max_number(self, values: Any, axis: int) -> Tensor:
        tensor = ops.convert_to_tensor(values)
        widths = [(0, self.max_number if k == axis else 0) for k in range(cast(int, tensor.ndim))]
        filled = ops.pad(tensor, widths, constant_values=self.fill_value)
        return filled[(*[slice(None)] * axis, slice(0, self.max_number))]
