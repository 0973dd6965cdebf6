"""`tf.debugging`: assertions with TensorFlow's arguments; in functions, loops and branches they run by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype
from ...engine.graph import Operation, Tensor
from ...engine.graph.tracebacks import disable_traceback_filtering as disable_traceback_filtering
from ...engine.graph.tracebacks import enable_traceback_filtering as enable_traceback_filtering
from ...engine.graph.tracebacks import is_traceback_filtering_enabled as is_traceback_filtering_enabled
from ...engine.ops.base import TensorLike
from ...engine.runtime.numerics import disable_check_numerics as disable_check_numerics
from ...engine.runtime.numerics import enable_check_numerics as enable_check_numerics

_SHOWN = 3  # elements that an error shows of each end of an axis


def assert_equal(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of two tensors are equal; the shapes broadcast, and NaN equals nothing.

    Args:
        x: a tensor.
        y: what it is compared with.
        message: what the error ends with.
        summarize: how many elements the error shows at the start and end of each axis; by default 3.
        name: does nothing.
    """
    return ops.assert_equal(x, y, message, _SHOWN if summarize is None else summarize)


def assert_less(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of `x` are less than those of `y`; the shapes broadcast."""
    return ops.assert_less(x, y, message, _SHOWN if summarize is None else summarize)


def assert_less_equal(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of `x` are at most those of `y`; the shapes broadcast."""
    return ops.assert_less_equal(x, y, message, _SHOWN if summarize is None else summarize)


def assert_greater(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of `x` are greater than those of `y`; the shapes broadcast."""
    return ops.assert_greater(x, y, message, _SHOWN if summarize is None else summarize)


def assert_greater_equal(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of `x` are at least those of `y`; the shapes broadcast."""
    return ops.assert_greater_equal(x, y, message, _SHOWN if summarize is None else summarize)


def assert_positive(
    x: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of a tensor are positive."""
    return ops.assert_positive(x, message, _SHOWN if summarize is None else summarize)


def assert_non_negative(
    x: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of a tensor are at least 0."""
    return ops.assert_non_negative(x, message, _SHOWN if summarize is None else summarize)


def _assert(
    condition: TensorLike, data: Sequence[TensorLike] = (), summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of a bool tensor are true; the error shows `data`."""
    return ops.assert_true(condition, data, summarize=_SHOWN if summarize is None else summarize)


Assert = _assert


def assert_all_finite(x: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return a tensor that fails if it holds a NaN or an infinity: another name of `check_numerics`."""
    return ops.check_numerics(x, message)


def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return a tensor that fails when the program runs if it holds a NaN or an infinity."""
    return ops.check_numerics(tensor, message)


def assert_rank(x: TensorLike, rank: int, message: str | None = None, name: str | None = None) -> Operation | None:
    """Fail unless a tensor has `rank` axes."""
    return ops.assert_rank(x, rank, message)


def assert_scalar(tensor: TensorLike, message: str | None = None, name: str | None = None) -> Operation | None:
    """Fail unless a tensor has no axes."""
    return ops.assert_rank(tensor, 0, message)


def assert_type(tensor: TensorLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None) -> None:
    """Raise a TypeError unless a tensor has a dtype."""
    found = ops.convert_to_tensor(tensor).dtype
    if found != as_dtype(tf_type):
        raise TypeError(f"{message + ' ' if message else ''}Expected a tensor of {as_dtype(tf_type)}, got {found}.")


def is_numeric_tensor(tensor: object) -> bool:
    """Test whether a value is a tensor of numbers."""
    return isinstance(tensor, Tensor) and tensor.dtype.kind in "iufcV"


__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_less",
    "assert_less_equal",
    "assert_non_negative",
    "assert_positive",
    "assert_rank",
    "assert_scalar",
    "assert_type",
    "check_numerics",
    "disable_check_numerics",
    "disable_traceback_filtering",
    "enable_check_numerics",
    "enable_traceback_filtering",
    "is_numeric_tensor",
    "is_traceback_filtering_enabled",
]
