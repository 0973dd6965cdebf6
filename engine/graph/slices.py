"""`IndexedSlices`: some rows of a tensor that is zero elsewhere, the form of gradients of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..common.dtypes import DType, accumulator_of
from ..common.operator_table import operator_functions
from .spec import Shape
from .tensor import Operators, Tensor, symbol_of
from .value import Value


class _Fields(NamedTuple):
    values: Any
    indices: Any
    dense_shape: Any = None


class IndexedSlices(Operators, _Fields):
    """The tensor that is zero but for ``dense[indices[k]] += values[k]``; rows named several times add up.

    What `gradients` gives for a variable of which only rows are used, by `ops.take`, `ops.gather`, ``table[ids]`` or an
    `Embedding`, in loops and branches too. It is a named tuple: it can be a loop variable and be fetched (then its
    fields are arrays, and ``numpy.asarray`` of it is dense). Any op that takes tensors takes it as a dense one.

    Attributes:
        values: ``(n, ...)``, the rows.
        indices: ``(n,)`` integers, their positions; as they were given, so negative ones count from the end.
        dense_shape: int32 vector, the shape of the whole. None where that follows from the variable whose rows are
            written, or for which this is the gradient.

    >>> import anabranch as ab
    >>> table = ab.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> with ab.Graph().as_default():
    ...     gradient, = ab.gradients(ab.ops.sum(ab.ops.take(table, [2, 0, 2], axis=0)), [table])
    ...     rows = ab.Session().run(gradient)
    >>> rows.indices, rows.values.shape
    (array([2, 0, 2], dtype=int32), (3, 2))
    >>> import numpy as np
    >>> np.asarray(rows)
    array([[1., 1.],
           [0., 0.],
           [2., 2.]], dtype=float32)
    """

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        """Return what is known of the shape of the whole."""
        if self.dense_shape is None:
            return None if self.values.shape is None else (None, *self.values.shape[1:])
        if not isinstance(self.dense_shape, Tensor):
            return tuple(int(dim) for dim in self.dense_shape)
        if isinstance(self.dense_shape, Value):
            return tuple(self.dense_shape.tolist())
        known = symbol_of(self.dense_shape).operation.op.attributes().get("value")
        if known is not None:
            return tuple(int(dim) for dim in known)
        rows: Shape = self.values.shape
        return None if rows is None else (None, *rows[1:])

    @property
    def ndim(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def map_values(self, function: Callable[[Any], Any]) -> IndexedSlices:
        """Return the same rows with `function` applied to their values.

        The function must keep zero zero and be additive: a scaling, or a cast.
        """
        return IndexedSlices(function(self.values), self.indices, self.dense_shape)

    def whole_shape(self) -> Any:
        """Return `dense_shape`.

        Raises:
            ValueError: there is none.
        """
        if self.dense_shape is None:
            raise ValueError(
                f"{self!r} has no dense_shape, which says how large the whole is. Give it: "
                "IndexedSlices(values, indices, dense_shape)."
            )
        return self.dense_shape

    def to_dense(self) -> Tensor:
        """Return the whole as a tensor."""
        return operator_functions["to_dense"](self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values, indices, shape = map(np.asarray, (self.values, self.indices, self.whole_shape()))
        wide = accumulator_of(values.dtype) or values.dtype
        dense = np.zeros(tuple(shape.tolist()), wide)
        np.add.at(dense, indices, values.astype(wide, copy=False))
        dense = dense.astype(values.dtype, copy=False)
        return dense if dtype is None else dense.astype(dtype)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape!r})"
