"""`MixUp` and `CutMix`: training images mixed with others of their batch, and their labels with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.random import samplers as random
from ..core.layer_config import config_from_signature
from .image_layer import Entries, RandomImageLayer, Seed, Transformation, factor_pair

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ..core.options import ImageOptions


class _Mixing(RandomImageLayer):
    """The base of layers that mix images: each with another one of the batch, `weight` of it its own."""

    def _partners(self, images: Tensor, seed: Seed) -> Tensor:
        return random.shuffle(ops.arange(ops.shape(images)[0]), seed=seed)

    def transform_labels(
        self, labels: Tensor, transformation: Transformation | None, training: bool | None = True
    ) -> Tensor:
        if transformation is None or not self.is_active(training):
            return labels
        return _mixed(ops.cast(labels, self.compute_dtype), transformation)


def _mixed(values: Tensor, transformation: Transformation) -> Tensor:
    """Return `weight` of each row, and the rest of its partner."""
    weight = ops.cast(transformation["mix_weight"], values.dtype)
    weight = ops.reshape(weight, (-1, *[1] * (len(values.shape or ()) - 1)))
    return weight * values + (1.0 - weight) * ops.take(values, transformation["permutation_order"], axis=0)


@config_from_signature()
class MixUp(_Mixing):
    """In training, averages each image with another one of its batch, and the labels alike (Zhang et al., ICLR 2018).

    Args:
        alpha: the weights are drawn from a beta distribution with this for both parameters: the larger, the nearer to
            the middle.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same.
        bounding_box_format: see `ImageLayer`. Boxes of the other image are put behind those of each.

    Labels are one-hot, or probabilities: ``{"images": ..., "labels": ...}``, ``(batch, classes)``.

    Raises:
        ValueError: alpha is not positive.

    >>> import numpy as np
    >>> rows = {"images": np.arange(2.0).reshape(2, 1, 1, 1), "labels": np.eye(2)}
    >>> mixed = MixUp(seed=0)(rows)
    >>> np.allclose(mixed["images"].ravel(), mixed["labels"][:, 1])
    True
    """

    moves_boxes: ClassVar[bool] = True
    blends_masks: ClassVar[bool] = True

    def __init__(
        self,
        alpha: float = 0.2,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        if not isinstance(alpha, (int, float)) or not alpha > 0:
            raise ValueError(f"Layer {self.name!r}: alpha must be a positive number, got alpha={alpha!r}.")
        self.alpha = alpha

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        partners = self._partners(images, seed)
        weight = random.beta((ops.shape(images)[0],), self.alpha, self.alpha, seed=seed)
        return {"mix_weight": weight, "permutation_order": partners}

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        return _mixed(images, transformation)

    def transform_bounding_boxes(
        self, bounding_boxes: Entries, transformation: Transformation | None, training: bool | None = True
    ) -> Entries:
        if transformation is None or not self.is_active(training):
            return bounding_boxes
        own = {name: ops.convert_to_tensor(part) for name, part in bounding_boxes.items()}
        partners = transformation["permutation_order"]
        return {name: ops.concatenate([part, ops.take(part, partners, axis=0)], axis=1) for name, part in own.items()}


@config_from_signature()
class CutMix(_Mixing):
    """In training, puts a rectangle of another image of its batch into each, and mixes labels by its area.

    Args:
        factor: from 0 to 1, or a range: the parameter of the beta distribution that areas are drawn from.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Labels are one-hot, or probabilities: ``{"images": ..., "labels": ...}``, ``(batch, classes)``.

    Raises:
        ValueError: the factor is outside of [0, 1].

    Source: S. Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers" (ICCV 2019).

    >>> import anabranch as ab
    >>> import numpy as np
    >>> rows = {"images": np.arange(2.0).reshape(2, 1, 1, 1) * np.ones((2, 8, 8, 1)), "labels": np.eye(2)}
    >>> mixed = ab.layers.CutMix(seed=0)(rows)
    >>> np.allclose(np.mean(mixed["images"], axis=(1, 2, 3)), mixed["labels"][:, 1])
    True
    """

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = factor_pair(self, factor, "factor", (0, 1))

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        batch, (height, width) = ops.shape(images)[0], self._size(images)
        alpha = random.uniform((), *self.factor, seed=seed) + 1e-6
        share = ops.sqrt(1.0 - random.beta((batch,), alpha, alpha, seed=seed))
        left, right = self._span(images, seed, width, share)
        top, bottom = self._span(images, seed, height, share)
        inside = ops.logical_and(_between(height, top, bottom)[:, :, None], _between(width, left, right)[:, None, :])
        area = (right - left) * (bottom - top) / (ops.cast(width, "float32") * ops.cast(height, "float32"))
        return {
            "batch_masks": ops.expand_dims(inside, -1 if self.data_format == "channels_last" else 1),
            "mix_weight": 1.0 - area,
            "permutation_order": self._partners(images, seed),
        }

    def _span(self, images: Tensor, seed: Seed, size: DimLike, share: Tensor) -> tuple[Tensor, Tensor]:
        whole = ops.cast(size, "float32")
        start = self._uniform(images, seed, 0.0, 1.0, ones=0) * (whole - share * whole)
        return start, start + share * whole

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        others = ops.take(images, transformation["permutation_order"], axis=0)
        return ops.where(transformation["batch_masks"], others, images)


def _between(size: DimLike, first: Tensor, last: Tensor) -> Tensor:
    """Return a mask of the places in the spans, ``(batch, size)``."""
    places = ops.cast(ops.arange(size), "float32")
    return ops.logical_and(places >= first[:, None], places < last[:, None])
