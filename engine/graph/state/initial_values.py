"""First values of variables: given, made by an initializer, or computed when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar

from ...common.dtypes import DType, DTypeLike, as_dtype, is_string
from ...common.operator_table import operator_functions
from ..graph import eagerly
from ..spec import as_shape


class Later:
    """A first value that is computed when it is first needed, and maybe elsewhere.

    Attributes:
        dtype: of the value.
        keeps_array: it refers to the array that it computed, so that nothing is written into that.
    """

    dtype: DType
    keeps_array: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the value."""
        raise NotImplementedError(f"{type(self).__name__} must define shape.")

    def compute(self) -> Any:
        """Compute the value, as an array to which nothing but this refers.

        A process that is forked before the variable has the array computes it again.
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute().")

    def release(self) -> None:
        """Release what only `compute` needs: the variable has the array."""


class Given(Later):
    """A first value that is there: the variable takes its memory as it is, without a copy.

    Args:
        array: in C order and writeable, and nothing else refers to it.
    """

    def __init__(self, array: Any) -> None:
        self._array, self._shape = array, tuple(array.shape)
        self.dtype = as_dtype(array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def compute(self) -> Any:
        return self._array

    def release(self) -> None:
        self._array = None


def as_later(initial_value: Any, dtype: DTypeLike) -> Later | None:
    """Return a first value that is to be computed later, if that is one of the dtype that is asked for."""
    if not isinstance(initial_value, Later):
        return None
    return initial_value if dtype is None or as_dtype(dtype) == initial_value.dtype else None


def one_initial_value(initial_value: Any, initializer: Any, name: str | None) -> Any:
    """Return the one of `initial_value` and `initializer` that was passed.

    Raises:
        ValueError: both were, or neither.
    """
    if (initial_value is None) == (initializer is None):
        raise ValueError(
            f"Variable {name or ''!r} needs one initial value: give initial_value or initializer, "
            + ("not both." if initializer is not None else "a number, an array or a function of shape and dtype.")
        )
    if isinstance(initializer, str):
        return operator_functions["initializer"](initializer)
    return initial_value if initializer is None else initializer


def names_initializer(value: Any, shape: Any, dtype: DTypeLike) -> bool:
    """Test whether the first argument of a `Variable` names an initializer, as in Keras, and is not text to be held."""
    if not isinstance(value, str) or shape is None:
        return False
    return as_shape(shape) != () if dtype is None else not is_string(as_dtype(dtype))


def call_initializer(initializer: Callable[..., Any], shape: Any, dtype: DTypeLike) -> Any:
    """Call an initializer at once, with a shape and a dtype if it is to make a value of this shape.

    Raises:
        ValueError: it needs a shape, and none is given.
    """
    with eagerly():
        if shape is None:
            if _needs_arguments(initializer):
                raise ValueError(
                    f"Variable: the initializer {initializer!r} needs a shape. Pass shape=..., as in shape=(2, 3)."
                )
            return initializer()
        return initializer(as_shape(shape), dtype=as_dtype(dtype or "float32"))


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a function of C, whose arguments are not listed
        return False
    return False
