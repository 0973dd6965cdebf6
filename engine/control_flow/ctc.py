"""The CTC loss: a loop over the frames."""

from __future__ import annotations

from typing import Any

from ..common import dtypes
from ..common.dtypes import DTypeLike
from ..graph.spec import shape_text
from ..graph.tensor import Tensor
from ..ops.arrays.axes import roll, transpose
from ..ops.arrays.creation import arange, full_like, zeros_like
from ..ops.arrays.gathering import take_along_axis
from ..ops.arrays.joining import stack
from ..ops.arrays.padding import pad
from ..ops.arrays.shaping import dim, expand_dims, reshape, squeeze
from ..ops.base import TensorLike, cast, convert_to_tensor, promote
from ..ops.entrance import guard_entrances
from ..ops.math.comparison import greater, less, logical_and, maximum, not_equal, where
from ..ops.math.mathematics import logaddexp
from ..ops.neural.nn import log_softmax
from .scan import foldl

_IMPOSSIBLE = -1e5  # the logarithm of a probability of nothing; finite, so that no gradient becomes NaN


def ctc_loss(
    target: TensorLike, output: TensorLike, target_length: TensorLike, output_length: TensorLike, mask_index: int = 0
) -> Tensor:
    """Return the negative log probability of the labels, over all ways to spread them over the frames.

    A way gives each frame a label or a blank; equal labels in a row are one, unless a blank stands between them.

    Args:
        target: the labels as integers, [batch, labels]. Labels from `target_length` on do not matter.
        output: the logits of the classes, [batch, time, classes].
        target_length: how many labels of each sample count, [batch].
        output_length: how many frames of each sample count, [batch].
        mask_index: the class of the blank.

    Returns:
        [batch], in float32 at least. Where no way exists, because the frames are too few, the loss is 1e5 or more.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the labels or lengths are not integers.

    Source: A. Graves et al., "Connectionist temporal classification: labelling unsegmented sequence data with recurrent
    neural networks" (2006).

    >>> import anabranch as ab
    >>> loss = ab.ops.ctc_loss([[1]], ab.ops.zeros((1, 2, 2)), [1], [2])  # 3 of 4 ways: 01, 10, 11
    >>> ab.ops.exp(-loss)
    Tensor([0.75], dtype=float32)
    """
    labels, lengths, frames = (
        _integers(name, value, axes)
        for name, value, axes in (
            ("target", target, 2),
            ("target_length", target_length, 1),
            ("output_length", output_length, 1),
        )
    )
    (logits,) = promote(output, floating=True)
    if logits.dtype.name in ("float16", "bfloat16"):
        logits = cast(logits, dtypes.float32)
    if logits.shape is None or len(logits.shape) != 3:
        raise ValueError(f"ctc_loss: output must be [batch, time, classes]; got shape {shape_text(logits.shape)}.")
    _check_batch(target=labels, output=logits, target_length=lengths, output_length=frames)
    counts = less(arange(dim(logits, 1)), expand_dims(frames, 1))  # [batch, time]
    labels = where(less(arange(dim(labels, 1)), expand_dims(lengths, 1)), labels, mask_index)
    logs = log_softmax(where(expand_dims(counts, -1), logits, 0.0), axis=-1)
    states = _between(labels, full_like(labels, mask_index), mask_index)
    emissions = take_along_axis(logs, expand_dims(states, 1), axis=-1)
    return _negative_log(_forward(emissions, counts, _skips(labels, logs.dtype)), lengths)


def _integers(name: str, value: TensorLike, axes: int) -> Tensor:
    tensor = convert_to_tensor(value)
    if not dtypes.is_integer(tensor.dtype):
        raise TypeError(f"ctc_loss: {name} must hold integers; got {tensor.spec}. Cast it with ops.cast(x, 'int32').")
    if tensor.shape is None or len(tensor.shape) != axes:
        expected = "[batch, labels]" if axes == 2 else "[batch]"
        raise ValueError(f"ctc_loss: {name} must be {expected}; got shape {shape_text(tensor.shape)}.")
    return cast(tensor, dtypes.int32)


def _check_batch(**tensors: Tensor) -> None:
    sizes = {name: tensor.shape[0] for name, tensor in tensors.items() if tensor.shape is not None}
    if len({size for size in sizes.values() if size is not None}) > 1:
        shown = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"ctc_loss: the first axes must be one batch; got sizes {shown}.")


def _between(odd: Tensor, even: Tensor, last: Any) -> Tensor:
    """Interleave blanks and labels: ``even odd even odd ... last``."""
    pairs = stack([even, odd], axis=-1)
    return pad(reshape(pairs, (dim(odd, 0), 2 * dim(odd, 1))), ((0, 0), (0, 1)), constant_values=last)


def _skips(labels: Tensor, dtype: DTypeLike) -> Tensor:
    """Return log weights of the steps over a blank: they lead to a label unlike the one before, [batch, states]."""
    others = logical_and(not_equal(labels, roll(labels, 1, axis=1)), greater(arange(dim(labels, 1)), 0))
    weights = cast(where(others, 0.0, _IMPOSSIBLE), dtype)
    return _between(weights, full_like(weights, _IMPOSSIBLE), _IMPOSSIBLE)


def _forward(emissions: Tensor, counts: Tensor, skips: Tensor) -> Tensor:
    """Return log probabilities of all ways that end in each state after the last frame that counts, [batch, states]."""
    states = arange(dim(skips, 1))
    start = zeros_like(skips) + cast(where(greater(states, 0), _IMPOSSIBLE, 0.0), skips.dtype)

    def step(reached: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
        emission, valid = frame
        from_last = pad(reached[:, :-1], ((0, 0), (1, 0)), constant_values=_IMPOSSIBLE)
        over_blank = roll(reached, 2, axis=1) + skips
        return where(valid, logaddexp(logaddexp(reached, from_last), over_blank) + emission, reached)

    frames = transpose(emissions, (1, 0, 2)), expand_dims(transpose(counts), -1)
    return foldl(step, frames, start)


def _negative_log(reached: Tensor, lengths: Tensor) -> Tensor:
    """Return minus the log probability to end with the last label or with the blank behind it."""
    blank, label = expand_dims(2 * lengths, 1), expand_dims(maximum(2 * lengths - 1, 0), 1)
    behind = squeeze(take_along_axis(reached, blank, axis=1), 1)
    on_label = squeeze(take_along_axis(reached, label, axis=1), 1)
    return -where(greater(lengths, 0), logaddexp(behind, on_label), behind)


guard_entrances(globals(), __name__)
__all__ = ["ctc_loss"]
