"""Softmax, its logarithm, and the cross-entropy of class numbers; gradients use what the forward pass computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, axes_from_front, same_axes_map
from ...graph.kernel_roles import KernelRole
from ...graph.op import Cost
from ...graph.spec import Shape, shape_text, shapes_compatible
from ..arrays.gathering import take_along_axis
from ..arrays.shaping import expand_dims, squeeze
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorSpec, apply, as_scalar_or_array
from ..math.dtype_checks import check_floating
from ..math.mathematics import exp
from ..math.reduced import Axes, largest
from ..math.reduction import sum
from ..run_time_shapes import runtime_shape


def _widened(x: Any) -> Any:
    return x.astype(np.float32) if dtypes.accumulator_of(x.dtype) else x


def _centred(xp: Any, x: Any, axes: Axes) -> Any:
    """Return `x`, widened, minus its maximum over `axes`: a new array."""
    wide = _widened(x)
    return wide - largest(xp, wide, axes)


@dataclass(frozen=True)
class Normalised(Op, abstract=True):
    """Base: an input normalised over `axes`, computed in float32 where it is half precision."""

    axes: Axes
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axes",)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if not dtypes.is_floating(x.dtype):
            raise TypeError(f"{self.type_name} takes floating-point numbers; got {x}. Cast it with ops.cast.")
        return x

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axes, rank))

    @classmethod
    def _samples(cls, reference: Any) -> Iterable[Sample]:
        x = np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype("float32")
        yield Sample(cls((2,)), [x], reference(x, 2), (0,), label="last axis")
        yield Sample(cls((0,)), [x], reference(x, 0), (0,), label="first axis")
        yield Sample(cls((0, 2)), [x], reference(x, (0, 2)), (0,), label="two axes")
        yield Sample(cls((-1,)), [x[0]], reference(x[0], -1), (0,), label="unknown rank")
        yield Sample(cls(()), [np.float32(3)], reference(np.float32(3), ()), (0,), label="0-d")
        yield Sample(cls((1,)), [x[:0, :, 0]], x[:0, :, 0], (0,), label="empty")
        yield Sample(cls((1,)), [x[:, :0, 0]], x[:, :0, 0], (0,), label="empty axis")
        nan = np.array([0, np.nan], "float32")
        yield Sample(cls((0,)), [nan], np.full(2, np.nan, "float32"), (), label="NaN")


@dataclass(frozen=True)
class Softmax(Normalised):
    """``exp(x) / sum(exp(x))`` over axes, without overflow."""

    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.NORMALISATION
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        weights = xp.exp(_centred(xp, x, self.axes))
        weights /= xp.sum(weights, axis=self.axes, keepdims=True)
        return as_scalar_or_array(weights.astype(x.dtype, copy=False))

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        weights = e.exp(x - reduce("max", x))
        return weights * (1 / reduce("add", weights))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (softmax_pullback(dy, y, self.axes),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any, axis: Any) -> Any:
            return np.exp(x) / np.sum(np.exp(x), axis=axis, keepdims=True)

        yield from cls._samples(reference)
        extreme = np.array([[1000, 0], [-1000, -1000], [-np.inf, 0]], "float32")
        expected = np.array([[1, 0], [0.5, 0.5], [0, 1]], "float32")
        yield Sample(cls((1,)), [extreme], expected, (), label="extremes")


def softmax_pullback(dy: Tensor, y: Tensor, axes: Axes) -> Tensor:
    """Compute the cotangent of what `y` is the softmax of."""
    return y * (dy - sum(dy * y, axes, keepdims=True))


@dataclass(frozen=True)
class LogSoftmax(Normalised):
    """``x - log(sum(exp(x)))`` over axes, without overflow."""

    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.NORMALISATION
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        centred = _centred(xp, x, self.axes)
        with np.errstate(divide="ignore"):  # the logarithm of an empty sum belongs to no element
            centred -= xp.log(xp.sum(xp.exp(centred), axis=self.axes, keepdims=True))
        return as_scalar_or_array(centred.astype(x.dtype, copy=False))

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        centred = x - reduce("max", x)
        return centred - e.log(reduce("add", e.exp(centred)))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (dy - exp(y) * sum(dy, self.axes, keepdims=True),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any, axis: Any) -> Any:
            return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))

        yield from cls._samples(reference)
        extreme = np.array([[1000, 0], [-1000, -1000], [-np.inf, 0]], "float32")
        expected = np.array([[0, -1000], [-np.log(2), -np.log(2)], [-np.inf, 0]], "float32")
        yield Sample(cls((1,)), [extreme], expected, (), label="extremes")


# --- class numbers --------------------------------------------------------------------------------------------------


def _check_classes(what: str, x: TensorSpec, labels: TensorSpec) -> None:
    if x.shape is not None and not x.shape:
        raise ValueError(f"{what}: expected a last axis of classes; got a scalar.")
    if not dtypes.is_integer(labels.dtype):
        raise TypeError(f"{what}: class numbers must be integers; got dtype {labels.dtype.name}.")
    if x.shape is not None and not shapes_compatible(x.shape[:-1], labels.shape):
        raise ValueError(
            f"{what}: class numbers of shape {shape_text(labels.shape)} do not go with scores of shape "
            f"{shape_text(x.shape)}; expected shape {shape_text(x.shape[:-1])}."
        )


def _label_shape(x: TensorSpec, *by_row: TensorSpec) -> Shape:
    """Return the shape of the rows of `x` (..., classes): unknown sizes are those of what goes by row."""
    known = [each.shape for each in by_row if each.shape is not None]
    if x.shape is None:
        return known[0] if known else None
    sizes = zip(x.shape[:-1], *known, strict=True)
    return tuple(next((size for size in each if size is not None), None) for each in sizes)


_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def check_labels(labels: Any, classes: int) -> None:
    """Refuse class numbers outside of 0 ... `classes` - 1.

    Raises:
        ValueError: there is one.
    """
    if labels.size == 0:
        return
    if labels.view(_UNSIGNED[labels.dtype.itemsize]).max() >= classes:  # below zero they are largest, read so
        low, high = int(labels.min()), int(labels.max())
        raise ValueError(
            f"Class number {low if low < 0 else high} is out of range: the scores have {classes} classes, so class "
            f"numbers go from 0 to {classes - 1}."
        )


def _rows(xp: Any, x: Any, labels: Any) -> tuple[Any, tuple[Any, Any]]:
    """Return `x` as rows of classes, and the index of each row's label in them. Contiguous `x` is not copied."""
    rows = x.reshape((labels.size, x.shape[-1]))
    return rows, (xp.arange(labels.size), labels.reshape(-1))


@dataclass(frozen=True)
class SparseCrossEntropy(Op):
    """Outputs: ``-log(softmax(x)[label])`` for each row of the last axis, and the softmax itself.

    Inputs: scores x [..., classes] and class numbers [...]. The gradient is ``softmax(x) - one_hot(label)``.
    """

    last_axes: ClassVar[int | tuple[int, ...] | None] = (1, 0)

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        x, labels = inputs
        check_floating(self, x)
        _check_classes("sparse_categorical_crossentropy", x, labels)
        return TensorSpec(_label_shape(x, labels), x.dtype), x

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, labels = inputs
        check_labels(labels, x.shape[-1])
        centred = xp.ascontiguousarray(_centred(xp, x, (-1,)))
        rows, at_labels = _rows(xp, centred, labels)
        chosen = rows[at_labels].reshape(labels.shape)
        xp.exp(centred, out=centred)
        total = xp.sum(centred, axis=-1, keepdims=True)
        loss = xp.log(total[..., 0]) - chosen
        centred /= total
        return as_scalar_or_array(loss.astype(x.dtype, copy=False)), centred.astype(x.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dloss, dsoftmax = cotangents
        softmax = node.outputs[1]
        dx = None if dsoftmax is None else softmax_pullback(dsoftmax, softmax, (-1,))
        if dloss is not None:
            from_loss = apply(SparseCrossEntropyGrad(), softmax, node.inputs[1], dloss)
            dx = from_loss if dx is None else dx + from_loss
        return dx, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype("float32")
        labels = np.array([[0, 1, 3], [2, 2, 0]], "int32")
        softmax = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        loss = -np.log(np.take_along_axis(softmax, labels[..., None], -1)[..., 0])
        yield Sample(cls(), [x, labels], (loss, softmax), (0,), label="sequence")
        yield Sample(cls(), [x[0, 0], np.int32(2)], (-np.log(softmax[0, 0, 2]), softmax[0, 0]), (0,), label="one row")
        yield Sample(cls(), [x[:0], labels[:0]], (loss[:0], x[:0]), (0,), label="empty")
        extreme = np.array([[1000, 0], [0, -1000]], "float32")
        expected = (np.array([1000, 0], "float32"), np.array([[1, 0], [1, 0]], "float32"))
        yield Sample(cls(), [extreme, np.array([1, 0], "int32")], expected, (), label="extremes")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x = np.zeros((2, 3), "float32")
        yield ErrorSample(lambda: cls().run(np, x, np.array([0, 7], "int32")), ValueError, "7 is out of range", "label")
        yield ErrorSample(lambda: cls().run(np, x, np.array([0, -1], "int32")), ValueError, "-1 is out", "negative")
        spec, ints = TensorSpec((2, 3), dtypes.float32), dtypes.int32
        yield ErrorSample(lambda: cls().infer(spec, TensorSpec((3,), ints)), ValueError, "do not go with", "shape")
        yield ErrorSample(lambda: cls().infer(spec, spec), TypeError, "must be integers", "dtype")


@dataclass(frozen=True)
class SparseCrossEntropyGrad(Op):
    """``(softmax - one_hot(label)) * dloss``, from softmax [..., classes], class numbers [...] and dloss [...]."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = (1, 0, 0)

    def infer(self, *inputs: Any) -> TensorSpec:
        softmax, labels, dloss = inputs
        check_floating(self, softmax)
        if softmax.shape is None:
            return softmax
        return TensorSpec((*(_label_shape(softmax, labels, dloss) or ()), softmax.shape[-1]), softmax.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        softmax, labels, dloss = inputs
        dx = xp.ascontiguousarray(softmax * dloss[..., None])
        rows, at_labels = _rows(xp, dx, labels)
        rows[at_labels] -= dloss.reshape(-1)
        return dx

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (ddx,) = cotangents
        softmax, labels, dloss = node.inputs
        assert ddx is not None
        at_label = squeeze(take_along_axis(ddx, expand_dims(labels, -1), axis=-1), -1)
        return ddx * expand_dims(dloss, -1), None, sum(ddx * softmax, -1) - at_label

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        softmax = np.array([[0.25, 0.75], [0.5, 0.5]], "float32")
        labels, dloss = np.array([0, 1], "int32"), np.array([1, 2], "float32")
        expected = np.array([[-0.75, 0.75], [1, -1]], "float32")
        yield Sample(cls(), [softmax, labels, dloss], expected, (0, 2), label="rows")
        yield Sample(cls(), [softmax[0], labels[0], dloss[0]], expected[0], (0, 2), label="one row")
        yield Sample(cls(), [softmax[:0], labels[:0], dloss[:0]], expected[:0], (0, 2), label="empty")


@dataclass(frozen=True)
class SelectClass(Op):
    """The score of one class of each row: from scores [..., classes] and class numbers [...], shape [...]."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = (1, 0)

    def infer(self, *inputs: Any) -> TensorSpec:
        x, labels = inputs
        _check_classes("sparse_categorical_crossentropy", x, labels)
        return TensorSpec(_label_shape(x, labels), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, labels = inputs
        check_labels(labels, x.shape[-1])
        rows, at_labels = _rows(xp, x, labels)
        return as_scalar_or_array(rows[at_labels].reshape(labels.shape))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, labels = node.inputs
        assert dy is not None
        return apply(PlaceClass(x.shape), dy, labels, runtime_shape(x)), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(2, 2, 3)
        labels = np.array([[0, 2], [1, 1]], "int32")
        yield Sample(cls(), [x, labels], np.array([[0, 5], [7, 10]], "float32"), (0,), label="sequence")
        yield Sample(cls(), [x[0, 0], np.int32(1)], np.float32(1), (0,), label="one row")
        yield Sample(cls(), [x[:0], labels[:0]], np.zeros((0, 2), "float32"), (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x = np.zeros((2, 3), "float32")
        yield ErrorSample(lambda: cls().run(np, x, np.array([3, 0], "int32")), ValueError, "3 is out of range", "label")


@dataclass(frozen=True)
class PlaceClass(Op):
    """The reverse of `SelectClass`: zeros of a shape (third input), with the first input at the class of each row."""

    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ()
    shape_input: ClassVar[int | None] = 2

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        y, labels, shape = inputs
        full = xp.zeros(tuple(int(dim) for dim in shape), y.dtype)
        rows, at_labels = _rows(xp, full, labels)
        rows[at_labels] = y.reshape(-1)
        return full

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dfull,) = cotangents
        assert dfull is not None
        return apply(SelectClass(), dfull, node.inputs[1]), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        y, labels, shape = np.array([1, 2], "float32"), np.array([2, 0], "int32"), np.array([2, 3], "int32")
        expected = np.array([[0, 0, 1], [2, 0, 0]], "float32")
        yield Sample(cls((2, 3)), [y, labels, shape], expected, (0,), label="rows")
        yield Sample(cls((3,)), [y[0], labels[0], shape[1:]], expected[0], (0,), label="one row")
        none = np.array([0, 3], "int32")
        yield Sample(cls((None, 3)), [y[:0], labels[:0], none], expected[:0], (0,), label="empty")
