"""Intersection over union: how well predicted classes of positions cover the true ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype, is_floating
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_axis, check_numbers, check_optional_numbers, listed
from ...engine.ops.base import TensorLike
from .base import Metric

_EPSILON = 1e-7


class IoU(Metric):
    """The mean, over some classes, of ``true positives / (true positives + false positives + false negatives)``.

    Args:
        num_classes: how many classes there are.
        target_class_ids: the numbers of the classes that count. Those that never occur are left out.
        name: by default from the class.
        dtype: of the confusion matrix, int32 by default. For fractional sample weights give "float32".
        ignore_class: the number of a class (such as "void") whose positions do not count.
        sparse_y_true, sparse_y_pred: whether targets and predictions are class numbers, rather than one-hot rows or
            scores, of which the largest counts.
        axis: the axis of one-hot rows and scores.

    Raises:
        ValueError: a target class is out of range.

    Positions whose class number is not in ``[0, num_classes)`` do not count.

    >>> import anabranch as ab
    >>> metric = ab.metrics.IoU(num_classes=2, target_class_ids=[0])
    >>> round(float(metric([0, 0, 1, 1], [0, 1, 0, 1])), 4)
    0.3333
    """

    _direction = "up"

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__(name=name, dtype=dtype or "int32")
        owner = type(self).__name__
        check_numbers(owner, num_classes=num_classes)
        check_axis(owner, axis)
        check_optional_numbers(owner, ignore_class=ignore_class)
        target_class_ids = listed(owner, "target_class_ids", target_class_ids, "a list of integers")
        wrong = [number for number in target_class_ids if not 0 <= number < num_classes]
        if wrong:
            raise ValueError(
                f"{type(self).__name__}: target_class_ids must be in [0, num_classes={num_classes}); got {wrong}."
            )
        self.num_classes = num_classes
        self.target_class_ids = target_class_ids
        self.ignore_class = ignore_class
        self.sparse_y_true = sparse_y_true
        self.sparse_y_pred = sparse_y_pred
        self.axis = axis
        self.total_cm = self.add_variable((num_classes, num_classes), name="total_confusion_matrix")

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch.

        Args:
            y_true, y_pred: class numbers of any shape, or one-hot rows and scores along `axis`.
            sample_weight: a weight for each position, or one for all.

        Raises:
            ValueError: `sample_weight` has another number of weights.
        """
        label, found = self._numbers(y_true, self.sparse_y_true), self._numbers(y_pred, self.sparse_y_pred)
        counts = ops.logical_and(self._is_class(label), self._is_class(found))
        if self.ignore_class is not None:
            counts = ops.logical_and(counts, ops.not_equal(label, self.ignore_class))
        weight = ops.where(counts, self._weights(sample_weight, label), 0)
        cell = ops.where(counts, label * self.num_classes + found, 0)
        cells = self.num_classes * self.num_classes
        amounts = ops.bincount(cell, weights=weight, minlength=cells)[:cells]
        self.total_cm.assign_add(ops.cast(ops.reshape(amounts, self.total_cm.shape), self.dtype))

    def _numbers(self, values: TensorLike, sparse: bool) -> Tensor:
        """Return the class numbers of all positions, [positions]."""
        tensor = ops.convert_to_tensor(values)
        return ops.reshape(ops.cast(tensor if sparse else ops.argmax(tensor, axis=self.axis), "int32"), (-1,))

    def _is_class(self, numbers: Tensor) -> Tensor:
        return ops.logical_and(numbers >= 0, numbers < self.num_classes)

    def _weights(self, sample_weight: TensorLike | None, label: Tensor) -> Tensor:
        weight = ops.convert_to_tensor(1 if sample_weight is None else sample_weight)
        if is_floating(weight.dtype) and not is_floating(as_dtype(self.dtype)):
            warnings.warn(
                f"{type(self).__name__} counts in {self.dtype}, so that fractions of sample weights are cut off. Make "
                'it with dtype="float32".',
                stacklevel=2,
            )
        weight = ops.cast(weight, self.dtype)
        given = weight.shape
        if weight.ndim is None or weight.ndim > 1:
            weight = ops.reshape(weight, (-1,))
        count, positions = (tensor.shape[0] if tensor.shape else None for tensor in (weight, label))
        if None not in (count, positions) and count not in (1, positions):
            raise ValueError(
                f"{type(self).__name__}: sample_weight must have a weight for each of the {positions} positions of "
                f"y_true, or one for all; got shape {given}. For a weight of each sample, repeat it over the sample's "
                "positions."
            )
        return ops.broadcast_to(weight, ops.shape(label))

    def result(self) -> Tensor:
        """Return the mean over the target classes that occur."""
        matrix = ops.cast(self.total_cm, "float32")
        hits = ops.diag(matrix)
        union = ops.sum(matrix, axis=0) + ops.sum(matrix, axis=1) - hits
        hits, union = ops.take(hits, self.target_class_ids), ops.take(union, self.target_class_ids)
        occurs = union > 1e-9
        shares = ops.where(occurs, hits / (union + _EPSILON), 0.0)
        return ops.sum(shares) / (ops.sum(ops.cast(occurs, "float32")) + _EPSILON)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "target_class_ids": self.target_class_ids,
            "ignore_class": self.ignore_class,
            "sparse_y_true": self.sparse_y_true,
            "sparse_y_pred": self.sparse_y_pred,
            "axis": self.axis,
        }


class BinaryIoU(IoU):
    """`IoU` of two classes, for predictions that are probabilities of class 1.

    Args:
        target_class_ids: the classes that count, of 0 and 1.
        threshold: predictions from there up are class 1.
        name: by default from the class.
        dtype: of the confusion matrix, int32 by default. For fractional sample weights give "float32".

    >>> import anabranch as ab
    >>> metric = ab.metrics.BinaryIoU(target_class_ids=[0, 1], threshold=0.3)
    >>> round(float(metric([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.7])), 4)
    0.3333
    """

    def __init__(
        self,
        target_class_ids: Sequence[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype)
        check_numbers("BinaryIoU", threshold=threshold)
        self.threshold = threshold

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets 0 and 1, predictions of any shape, and weights as in `IoU`."""
        above = ops.cast(y_pred, "float32") >= self.threshold
        super().update_state(y_true, ops.cast(above, "int32"), sample_weight)

    def get_config(self) -> dict[str, Any]:
        own = {"target_class_ids": self.target_class_ids, "threshold": self.threshold}
        return {"name": self.name, "dtype": self.dtype, **own}


class MeanIoU(IoU):
    """`IoU` of all classes; the arguments are the same.

    >>> import anabranch as ab
    >>> round(float(ab.metrics.MeanIoU(num_classes=2)([0, 0, 1, 1], [0, 1, 0, 1])), 4)
    0.3333
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        check_numbers(type(self).__name__, num_classes=num_classes)
        every = range(num_classes)
        super().__init__(num_classes, every, name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["target_class_ids"]
        return config


class OneHotIoU(IoU):
    """`IoU` for one-hot targets, and scores of all classes; the arguments are the same."""

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: DTypeLike = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(num_classes, target_class_ids, name, dtype, ignore_class, False, sparse_y_pred, axis)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["sparse_y_true"]
        return config


class OneHotMeanIoU(MeanIoU):
    """`MeanIoU` for one-hot targets, and scores of all classes; the arguments are the same."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: DTypeLike = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["sparse_y_true"]
        return config


__all__ = ["BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"]
