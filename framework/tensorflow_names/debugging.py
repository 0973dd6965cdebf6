"""`tf.debugging`: assertions with TensorFlow's arguments; in functions, loops and branches they run by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype
from ...engine.graph import Operation, Tensor
from ...engine.ops.base import TensorLike
from ...engine.runtime.numerics import disable_check_numerics as disable_check_numerics
from ...engine.runtime.numerics import enable_check_numerics as enable_check_numerics
from .wrapping import name_functions


def _of_two(check: Callable[..., Operation | None]) -> Callable[..., Operation | None]:
    """Return a check of two tensors as ``check(x, y, message=None, summarize=None, name=None)``."""

    def assertion(
        x: TensorLike,
        y: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> Operation | None:
        return check(x, y, message, 3 if summarize is None else summarize)

    return assertion


def _of_one(check: Callable[..., Operation | None]) -> Callable[..., Operation | None]:
    """Return a check of one tensor as ``check(x, message=None, summarize=None, name=None)``."""

    def assertion(
        x: TensorLike, message: str | None = None, summarize: int | None = None, name: str | None = None
    ) -> Operation | None:
        return check(x, message, 3 if summarize is None else summarize)

    return assertion


assert_equal = _of_two(ops.assert_equal)
assert_less = _of_two(ops.assert_less)
assert_less_equal = _of_two(ops.assert_less_equal)
assert_greater = _of_two(ops.assert_greater)
assert_greater_equal = _of_two(ops.assert_greater_equal)
assert_positive = _of_one(ops.assert_positive)
assert_non_negative = _of_one(ops.assert_non_negative)


def _assert(
    condition: TensorLike, data: Sequence[TensorLike] = (), summarize: int | None = None, name: str | None = None
) -> Operation | None:
    """Fail unless all elements of a bool tensor are true; the error shows `data`."""
    return ops.assert_true(condition, data, summarize=3 if summarize is None else summarize)


Assert = _assert


def assert_all_finite(x: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return a tensor that fails when the program runs if it holds a NaN or an infinity."""
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


name_functions(globals())

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
    "enable_check_numerics",
    "is_numeric_tensor",
]
