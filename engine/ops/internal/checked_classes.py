"""Class numbers that were found to be in range. Made by the pass `decompose`."""

from __future__ import annotations

from typing import Any, ClassVar

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, same_axes_map
from ...graph.spec import TensorSpec
from ..base import Op
from ..neural.softmax import check_labels


@dataclass(frozen=True)
class CheckedClasses(Op):
    """The class numbers of its input, as int32.

    Attributes:
        classes: the number of classes.

    Raises:
        ValueError: a class number is not in 0 ... `classes` - 1.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_decompose"
    classes: int

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.int32)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return same_axes_map(len(inputs[0].shape), ())

    def run(self, xp: Any, *inputs: Any) -> Any:
        check_labels(inputs[0], self.classes)
        return inputs[0].astype(xp.int32, copy=False)


__all__ = ["CheckedClasses"]
