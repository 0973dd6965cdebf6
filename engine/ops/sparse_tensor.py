"""`SparseTensor`, the type, and what refuses it where dense tensors are expected. Its functions are in `sparse`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..common.dtypes import DTypeLike
from ..common.nest import is_sequence
from ..common.operator_table import operator_functions
from ..graph.state.variable import Variable
from ..graph.tensor import Tensor

if TYPE_CHECKING:
    from .base import TensorLike


class _Fields(NamedTuple):
    indices: TensorLike
    values: TensorLike
    dense_shape: TensorLike


class SparseTensor(_Fields):
    """A tensor of which only some elements are stored; the others are zero.

    Attributes:
        indices: integers [n, rank], the places of the stored elements. Most functions take them in any order, and take
            places that are named more than once as sums.
        values: [n], the elements.
        dense_shape: integers [rank], the shape of the whole.

    >>> import anabranch as ab
    >>> x = ab.ops.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], [3, 2])
    >>> ab.ops.sparse.to_dense(x)
    Tensor([[0., 5.],
            [0., 0.],
            [7., 0.]], dtype=float32)
    """

    __slots__ = ()

    def __new__(cls, indices: TensorLike, values: TensorLike, dense_shape: TensorLike) -> SparseTensor:
        return super().__new__(cls, _leaf(indices, "int32"), _leaf(values, None), _leaf(dense_shape, "int32"))


def _leaf(value: TensorLike, dtype: DTypeLike) -> TensorLike:
    """Return a list as an array (an empty one of `dtype`), so that it is one leaf; anything else as it is."""
    if not is_sequence(value):
        return value
    if any(isinstance(item, (Tensor, Variable)) for item in value):
        return operator_functions["convert"](value)
    return operator_functions["as_array"](value, None if value else dtype)


def refuse_sparse(value: object, message: str) -> None:
    """Raise an error with the remedy if `value` is sparse.

    Args:
        value: anything.
        message: the beginning of the error's text: what was expected and got.

    Raises:
        TypeError: it is a `SparseTensor`, or a matrix of SciPy's.
    """
    if isinstance(value, SparseTensor):
        raise TypeError(f"{message} Give ops.sparse.to_dense(x), or use the functions of ops.sparse, such as matmul.")
    if type(value).__module__.startswith("scipy.sparse"):
        raise TypeError(f"{message} Give x.toarray(). fit, evaluate and predict take it as it is.")


__all__ = ["SparseTensor", "refuse_sparse"]
