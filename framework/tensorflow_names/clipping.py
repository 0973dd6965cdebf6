"""TensorFlow's clipping of gradients by norms."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine import ops
from ...engine.graph import IndexedSlices, Tensor
from ...engine.ops.base import TensorLike


def clip_by_norm(
    t: TensorLike | IndexedSlices,
    clip_norm: TensorLike,
    axes: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor | IndexedSlices:
    """Scale a tensor down to a Euclidean norm, along axes or as a whole, where its norm is larger."""
    if isinstance(t, IndexedSlices):
        return IndexedSlices(_clipped(t.values, clip_norm, axes), t.indices, t.dense_shape)
    return _clipped(t, clip_norm, axes)


def _clipped(t: TensorLike, clip_norm: TensorLike, axes: int | Sequence[int] | None) -> Tensor:
    squares = ops.sum(ops.square(t), axis=axes, keepdims=axes is not None)
    is_some = ops.greater(squares, 0)
    found = ops.sqrt(ops.where(is_some, squares, ops.ones_like(squares)))  # of 0 the root has no finite gradient
    found = ops.where(is_some, found, squares)
    return ops.divide(ops.multiply(t, clip_norm), ops.maximum(found, clip_norm))


def global_norm(t_list: Sequence[TensorLike | IndexedSlices | None], name: str | None = None) -> Tensor:
    """Compute the Euclidean norm of several tensors as one vector; None counts as 0."""
    values = [each.values if isinstance(each, IndexedSlices) else each for each in t_list if each is not None]
    squares = [ops.sum(ops.square(each)) for each in values]
    return ops.sqrt(ops.sum(ops.stack(squares))) if squares else ops.convert_to_tensor(0.0)


def clip_by_global_norm(
    t_list: Sequence[TensorLike | IndexedSlices | None],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = None,
    name: str | None = None,
) -> tuple[list[Tensor | IndexedSlices | None], Tensor]:
    """Scale tensors down by one factor, so that their global norm is at most `clip_norm`; give them and that norm.

    Where that norm is infinite or NaN, all of them become NaN, so that nobody takes zeros for gradients.

    Args:
        t_list: tensors, `IndexedSlices` and None.
        clip_norm: the largest norm.
        use_norm: their norm, if it is there already.
    """
    found = global_norm(t_list) if use_norm is None else ops.convert_to_tensor(use_norm)
    factor = ops.divide(clip_norm, ops.maximum(found, clip_norm)) + (found - found)

    def scaled(each: TensorLike | IndexedSlices | None) -> Tensor | IndexedSlices | None:
        if each is None:
            return None
        if isinstance(each, IndexedSlices):
            return IndexedSlices(ops.multiply(each.values, factor), each.indices, each.dense_shape)
        return ops.multiply(each, factor)

    return [scaled(each) for each in t_list], found
