"""`ArrayMethods`: NumPy's methods of arrays, for values and symbols alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from ..common.operator_table import operator_functions
from .element_count import ElementCount
from .tracebacks import short_tracebacks

if TYPE_CHECKING:
    from .tensor import Tensor


class ArrayMethods:
    """The methods that arrays have in NumPy, with its names and argument orders; each is the op of that name.

    `dtype` and `out` are there because NumPy's functions (``np.sum(x)``) pass them on; `out` must be None.
    """

    __slots__ = ()

    # --- shapes ---------------------------------------------------------------------------------------------

    @property
    def T(self) -> Tensor:
        """The transpose (all axes reversed)."""
        return operator_functions["transpose"](self)

    @property
    def size(self) -> int | None:
        """The number of elements; None if it is not known while a graph is built."""
        shape = cast("Tensor", self).shape
        dims = [dim for dim in shape or () if dim is not None]
        return None if shape is None or len(dims) < len(shape) else ElementCount(math.prod(dims))

    @short_tracebacks
    def reshape(self, *shape: Any, order: str = "C") -> Tensor:
        """Return the same elements in another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
        if order != "C":
            raise ValueError(f"reshape(order={order!r}): expected 'C', the order of rows; tensors have no other.")
        return operator_functions["reshape"](self, shape[0] if len(shape) == 1 else shape)

    @short_tracebacks
    def transpose(self, *axes: Any) -> Tensor:
        """Return the axes in another order, by default reversed: ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return operator_functions["transpose"](self, order or None)

    @short_tracebacks
    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Return the tensor with two axes exchanged."""
        return operator_functions["swapaxes"](self, axis1, axis2)

    @short_tracebacks
    def squeeze(self, axis: Any = None) -> Tensor:
        """Return the tensor without axes of size 1."""
        return operator_functions["squeeze"](self, axis)

    @short_tracebacks
    def ravel(self, order: str = "C") -> Tensor:
        """Return the elements as a vector."""
        return self.reshape((-1,), order=order)

    @short_tracebacks
    def flatten(self, order: str = "C") -> Tensor:
        """Return the elements as a vector."""
        return self.reshape((-1,), order=order)

    @short_tracebacks
    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """Return the tensor in another dtype (`ops.cast`)."""
        return operator_functions["cast"](self, dtype)

    def copy(self) -> Tensor:
        """Return a tensor of the same value: tensors do not change, so that no memory has to be copied."""
        return operator_functions["pass_on"](self)

    # --- reductions -----------------------------------------------------------------------------------------

    @short_tracebacks
    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Return the sum over axes, by default over all of them."""
        return _reduced("sum", self, axis, dtype, out, keepdims)

    @short_tracebacks
    def prod(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Return the product over axes, by default over all of them."""
        return _reduced("prod", self, axis, dtype, out, keepdims)

    @short_tracebacks
    def mean(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Return the mean over axes, by default over all of them."""
        return _reduced("mean", self, axis, dtype, out, keepdims)

    @short_tracebacks
    def max(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Return the maximum over axes, by default over all of them."""
        return _reduced("max", self, axis, None, out, keepdims)

    @short_tracebacks
    def min(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Return the minimum over axes, by default over all of them."""
        return _reduced("min", self, axis, None, out, keepdims)

    @short_tracebacks
    def any(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Test whether any element is true, over axes, by default over all of them."""
        return _reduced("any", self, axis, None, out, keepdims)

    @short_tracebacks
    def all(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
        """Test whether all elements are true, over axes, by default over all of them."""
        return _reduced("all", self, axis, None, out, keepdims)

    @short_tracebacks
    def var(
        self, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False
    ) -> Tensor:
        """Return the variance over axes; `ddof` must be 0."""
        _check_ddof("var", ddof)
        return _reduced("var", self, axis, dtype, out, keepdims)

    @short_tracebacks
    def std(
        self, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False
    ) -> Tensor:
        """Return the standard deviation over axes; `ddof` must be 0."""
        _check_ddof("std", ddof)
        return _reduced("std", self, axis, dtype, out, keepdims)

    @short_tracebacks
    def argmax(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Tensor:
        """Return the position of the maximum, in the flattened tensor or along an axis."""
        return _reduced("argmax", self, axis, None, out, keepdims)

    @short_tracebacks
    def argmin(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Tensor:
        """Return the position of the minimum, in the flattened tensor or along an axis."""
        return _reduced("argmin", self, axis, None, out, keepdims)

    @short_tracebacks
    def cumsum(self, axis: Any = None, dtype: Any = None, out: None = None) -> Tensor:
        """Return the running sums along an axis, by default of the flattened tensor."""
        _check_out("cumsum", out)
        return operator_functions["cumsum"](self, axis, dtype)

    # --- elements -------------------------------------------------------------------------------------------

    @short_tracebacks
    def clip(self, min: Any = None, max: Any = None, out: None = None) -> Tensor:
        """Return the elements limited to the range from `min` to `max`; None leaves a side open."""
        _check_out("clip", out)
        if min is None and max is None:
            raise ValueError("clip: expected min, max or both; got neither.")
        clipped = cast("Tensor", self) if min is None else operator_functions["maximum"](self, min)
        return clipped if max is None else operator_functions["minimum"](clipped, max)

    @short_tracebacks
    def round(self, decimals: int = 0, out: None = None) -> Tensor:
        """Return the elements rounded to so many decimals, halves to even."""
        _check_out("round", out)
        return operator_functions["round"](self, decimals)

    def __round__(self, ndigits: int | None = None) -> Tensor:
        return self.round(ndigits or 0)

    @short_tracebacks
    def dot(self, other: Any) -> Tensor:
        """Return the product of vectors or matrices (`ops.dot`)."""
        return operator_functions["dot"](self, other)


def _reduced(name: str, x: Any, axis: Any, dtype: Any, out: Any, keepdims: bool) -> Any:
    _check_out(name, out)
    if dtype is None:
        return operator_functions[name](x, axis=axis, keepdims=keepdims)
    result = operator_functions[name](operator_functions["cast"](x, dtype), axis=axis, keepdims=keepdims)
    return operator_functions["cast"](result, dtype)  # sums of small integers are wider


def _check_out(name: str, out: Any) -> None:
    if out is not None:
        raise TypeError(f"{name}(out=...) can't write into a tensor or for one: tensors never change. Leave out `out`.")


def _check_ddof(name: str, ddof: int) -> None:
    if ddof:
        raise ValueError(f"{name}(ddof={ddof}): expected 0; compute n / (n - ddof) times the variance for another one.")
