"""Layers that merge a list of inputs into one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Shape, Tensor, flatten
from ...engine.objects.arguments import check_numbers, listed
from ...engine.ops.base import TensorLike
from .input_spec import known_shape
from .layer import Layer
from .layer_config import config_from_signature

if TYPE_CHECKING:
    from .options import LayerOptions


class Merge(Layer):
    """The base of layers that take a list of tensors. Subclasses define `merge`.

    Inputs of a smaller rank get axes of size 1 behind the batch. The mask of the output is True where any input's is;
    there is none if an input has none.
    """

    least = 2
    most: int | None = None

    def __init__(self, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def merge(self, inputs: list[Tensor]) -> Tensor:
        """Return one tensor from several."""
        raise NotImplementedError(f"Layer {self.name!r}: class {type(self).__name__} does not define merge().")

    def build(self, input_shape: Sequence[Shape]) -> None:
        shapes = self._shapes(input_shape)
        batches = {shape[0] for shape in shapes if shape} - {None}
        if len(batches) > 1:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) can't merge inputs of different batch sizes, "
                f"got shapes {shapes}."
            )

    def _shapes(self, input_shape: Sequence[Shape]) -> list[Shape]:
        is_list = isinstance(input_shape, (list, tuple)) and all(
            shape is None or isinstance(shape, (list, tuple)) for shape in input_shape
        )
        if not is_list or len(input_shape) < self.least or (self.most is not None and len(input_shape) > self.most):
            wanted = f"exactly {self.least}" if self.most == self.least else f"at least {self.least}"
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) takes a list of {wanted} inputs, got "
                + (f"{len(input_shape)}: shapes {input_shape}." if is_list else f"one of shape {input_shape}.")
            )
        return list(input_shape)

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[dict[str, object], bool | None]:
        if len(args) > 1:
            raise TypeError(
                f"Layer {self.name!r} ({type(self).__name__}) takes its inputs as one list, and was called with "
                f"{len(args)} arguments. Pass a list: {self.name}([a, b])."
            )
        return super()._bind(args, kwargs)

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        ranks = [len(x.shape) for x in inputs if x.shape is not None]
        if len(ranks) < len(inputs):
            return self.merge(list(inputs))
        return self.merge([_expanded(x, max(ranks)) for x in inputs])

    def compute_mask(self, inputs: Sequence[Any], mask: Sequence[Any] | None = None) -> Tensor | None:
        masks = self._masks(inputs, mask)
        if any(each is None for each in masks):
            return None
        return functools.reduce(ops.logical_or, [each for each in _aligned(inputs, masks) if each is not None])

    def _masks(self, inputs: Sequence[Tensor], mask: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """Return the masks of the inputs, None for one without."""
        if mask is None:
            return [None] * len(inputs)
        if not isinstance(inputs, (list, tuple)):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): inputs must be a list of tensors, got one "
                f"{type(inputs).__name__}."
            )
        if not isinstance(mask, (list, tuple)) or len(mask) != len(inputs):
            got = f"a list of {len(mask)}" if isinstance(mask, (list, tuple)) else f"one {type(mask).__name__}"
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): mask must be a list with a mask, or None, for each of "
                f"the {len(inputs)} inputs, got {got}."
            )
        return list(mask)


class MaskedMerge(Merge):
    """The base of layers in whose result a masked position of one input leaves the values of the others alone."""

    def merge_masked(self, inputs: list[Tensor], masks: list[Tensor | None]) -> Tensor:
        """Return one tensor from several, given the mask of each, of its rank, or None."""
        raise NotImplementedError(f"Layer {self.name!r}: class {type(self).__name__} does not define merge_masked().")

    def call(self, inputs: Sequence[Tensor], mask: Sequence[Tensor | None] | None = None) -> Tensor:
        if mask is None:
            return super().call(inputs)
        ranks = [len(x.shape) for x in inputs if x.shape is not None]
        masks = _aligned(inputs, mask)
        if len(ranks) < len(inputs):
            return self.merge_masked(
                list(inputs), [each if each is None else ops.expand_dims(each, -1) for each in masks]
            )
        whole = [None if each is None else _of_rank(each, max(ranks)) for each in masks]
        return self.merge_masked([_expanded(x, max(ranks)) for x in inputs], whole)


class Extremum(MaskedMerge):
    """The base of `Maximum` and `Minimum`. There is no neutral element, so each value stands in for masked others."""

    @staticmethod
    def pick(x: Tensor, y: Tensor) -> Tensor:
        """Return the larger (or smaller) one, element by element."""
        raise NotImplementedError

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return functools.reduce(self.pick, inputs)

    def merge_masked(self, inputs: list[Tensor], masks: list[Tensor | None]) -> Tensor:
        output, seen = inputs[0], masks[0]
        for x, mask in zip(inputs[1:], masks[1:], strict=True):
            x = x if mask is None else ops.where(mask, x, output)
            output = self.pick(output if seen is None else ops.where(seen, output, x), x)
            seen = None if mask is None or seen is None else ops.logical_or(seen, mask)
        return output


def _aligned(inputs: Sequence[Tensor], masks: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the masks with axes of size 1 where `_expanded` gives them to their inputs."""
    ranks = [len(x.shape) for x in inputs if x.shape is not None]
    if len(ranks) < len(inputs):
        return list(masks)
    missing = [max(ranks) - rank for rank in ranks]
    return [
        mask if mask is None else _expanded(mask, len(mask.shape or ()) + more)
        for mask, more in zip(masks, missing, strict=True)
    ]


def _of_rank(mask: Tensor, rank: int) -> Tensor:
    """Return `mask` with axes of size 1 at its end: it masks whole positions."""
    for _ in range(rank - len(mask.shape or ())):
        mask = ops.expand_dims(mask, -1)
    return mask


def _expanded(x: Tensor, rank: int) -> Tensor:
    for _ in range(rank - len(x.shape or ())):
        x = ops.expand_dims(x, 1)
    return x


class Add(Merge):
    """The sum of the inputs."""

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return functools.reduce(ops.add, inputs)


class Subtract(Merge):
    """The first input minus the second."""

    most = 2

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return ops.subtract(*inputs)


class Multiply(MaskedMerge):
    """The product of the inputs, element by element.

    At masked positions an input counts as 1. Where all inputs are masked, the product is 0.
    """

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return functools.reduce(ops.multiply, inputs)

    def merge_masked(self, inputs: list[Tensor], masks: list[Tensor | None]) -> Tensor:
        factors = [
            x if mask is None else ops.where(mask, x, ops.ones_like(x)) for x, mask in zip(inputs, masks, strict=True)
        ]
        product, given = self.merge(factors), [mask for mask in masks if mask is not None]
        if len(given) < len(masks):
            return product
        return ops.where(functools.reduce(ops.logical_or, given), product, ops.zeros_like(product))


class Average(Merge):
    """The mean of the inputs."""

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return functools.reduce(ops.add, inputs) / len(inputs)


class Maximum(Extremum):
    """The largest of the inputs, element by element. Values at masked positions do not count where others do."""

    @staticmethod
    def pick(x: Tensor, y: Tensor) -> Tensor:
        return ops.maximum(x, y)


class Minimum(Extremum):
    """The smallest of the inputs, element by element. Values at masked positions do not count where others do."""

    @staticmethod
    def pick(x: Tensor, y: Tensor) -> Tensor:
        return ops.minimum(x, y)


@config_from_signature()
class Concatenate(Merge):
    """The inputs one after the other along `axis`.

    Args:
        axis: the axis.

    Raises:
        ValueError: at the call, the inputs' shapes differ along other axes.
    """

    least = 1

    def __init__(self, axis: int = -1, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        check_numbers("Concatenate", axis=axis)
        self.axis = axis

    def build(self, input_shape: Sequence[Shape]) -> None:
        shapes = [shape for shape in self._shapes(input_shape) if shape is not None]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or any(not -len(shape) <= self.axis < len(shape) for shape in shapes):
            raise self._mismatch(input_shape)
        for axis in range(len(shapes[0]) if shapes else 0):
            sizes = {shape[axis] for shape in shapes} - {None}
            if axis != self.axis % len(shapes[0]) and len(sizes) > 1:
                raise self._mismatch(input_shape)

    def _mismatch(self, input_shape: Sequence[Shape]) -> ValueError:
        return ValueError(
            f"Layer {self.name!r} (Concatenate) takes inputs whose shapes agree except along axis {self.axis}, "
            f"got shapes {list(input_shape)}."
        )

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.merge(list(inputs))

    def merge(self, inputs: list[Tensor]) -> Tensor:
        return ops.concatenate(inputs, axis=self.axis)

    def compute_mask(self, inputs: Sequence[Any], mask: Sequence[Any] | None = None) -> Tensor | None:
        """Return the masks concatenated; an input without one counts as True everywhere."""
        masks = self._masks(inputs, mask)
        if not flatten(masks):
            return None
        rank = len(known_shape(inputs[0].shape))
        if self.axis % rank == rank - 1:  # features: a position counts if any input has it
            present = [each for each in masks if each is not None]
            return functools.reduce(ops.logical_or, present) if len(present) == len(masks) else None
        whole = [
            ops.ones(ops.shape(x)[:-1], "bool") if mask is None else mask for x, mask in zip(inputs, masks, strict=True)
        ]
        return ops.concatenate(whole, axis=self.axis % rank)


def batch_products(x: Tensor, y: Tensor, x_axis: int, y_axis: int) -> Tensor:
    """Return products of the entries of two batches, summed over an axis of each; (batch, 1) where no other is left."""
    letters = iter("cdefghijklmnopqrstuvwxyz")
    left, right = (["a", *(next(letters) for _ in (tensor.shape or ())[1:])] for tensor in (x, y))
    left[x_axis] = right[y_axis] = "b"
    kept = [letter for letter in (*left, *right[1:]) if letter != "b"]
    output = ops.einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", x, y)
    return ops.expand_dims(output, 1) if len(kept) == 1 else output


@config_from_signature()
class Dot(Merge):
    """Dot products of two inputs, sample by sample.

    Args:
        axes: the axis to sum over, or a pair: one for each input.
        normalize: scale the inputs to length 1 along it first (which makes cosines).

    Shapes: ``(batch, a..., n)`` and ``(batch, b..., n)`` to ``(batch, a..., b...)``, or ``(batch, 1)``.
    """

    most = 2

    def __init__(self, axes: int | Sequence[int], normalize: bool = False, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.axes = axes if isinstance(axes, int) else tuple(listed("Dot", "axes", axes, "an int or a pair of ints"))
        self.normalize = normalize
        if not isinstance(self.axes, int) and len(self.axes) != 2:
            raise ValueError(f"Dot: axes must be an int or a pair of ints, got axes={axes!r}.")

    def build(self, input_shape: Sequence[Shape]) -> None:
        super().build(input_shape)
        x_shape, y_shape = map(known_shape, input_shape)
        x_axis, y_axis = self._axes(len(x_shape), len(y_shape))
        x_size, y_size = x_shape[x_axis], y_shape[y_axis]
        if x_size is not None and y_size is not None and x_size != y_size:
            raise ValueError(
                f"Layer {self.name!r} (Dot) sums over axes of one size, got axes {self.axes} of shapes {input_shape}."
            )

    def _axes(self, x_rank: int, y_rank: int) -> tuple[int, int]:
        x_axis, y_axis = (self.axes, self.axes) if isinstance(self.axes, int) else self.axes
        return x_axis % x_rank, y_axis % y_rank

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.merge(list(inputs))

    def merge(self, inputs: list[Tensor]) -> Tensor:
        x, y = inputs
        x_rank, y_rank = len(x.shape or ()), len(y.shape or ())
        x_axis, y_axis = self._axes(x_rank, y_rank)
        if self.normalize:
            x, y = ops.l2_normalize(x, axis=x_axis), ops.l2_normalize(y, axis=y_axis)
        return batch_products(x, y, x_axis, y_axis)

    def compute_mask(
        self, inputs: Sequence[TensorLike], mask: Sequence[TensorLike | None] | None = None
    ) -> Tensor | None:
        """Return None: the masked axis is summed over or mixed."""
        return None


def add(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the sum of the inputs: ``Add(**kwargs)(inputs)``."""
    return Add(**kwargs)(inputs)


def subtract(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the first input minus the second: ``Subtract(**kwargs)(inputs)``."""
    return Subtract(**kwargs)(inputs)


def multiply(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the product of the inputs: ``Multiply(**kwargs)(inputs)``."""
    return Multiply(**kwargs)(inputs)


def average(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the mean of the inputs: ``Average(**kwargs)(inputs)``."""
    return Average(**kwargs)(inputs)


def maximum(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the largest of the inputs: ``Maximum(**kwargs)(inputs)``."""
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Sequence[TensorLike], **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the smallest of the inputs: ``Minimum(**kwargs)(inputs)``."""
    return Minimum(**kwargs)(inputs)


def concatenate(inputs: Sequence[TensorLike], axis: int = -1, **kwargs: Unpack[LayerOptions]) -> Tensor:
    """Return the inputs one after the other: ``Concatenate(axis, **kwargs)(inputs)``."""
    return Concatenate(axis, **kwargs)(inputs)


def dot(
    inputs: Sequence[TensorLike],
    axes: int | Sequence[int] = -1,
    normalize: bool = False,
    **kwargs: Unpack[LayerOptions],
) -> Tensor:
    """Return dot products of two inputs: ``Dot(axes, normalize, **kwargs)(inputs)``."""
    return Dot(axes, normalize, **kwargs)(inputs)
