"""Contents of ``anabranch.backend``: process-wide settings and types, with the names of ``keras.backend``.

Beside these there are the functions that ``tf.keras.backend`` has (``K.sum``, ``K.flatten``, ...): see
`backend_functions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..engine.common.dtypes import DTypeLike, as_dtype, is_floating, is_integer, name_of
from ..engine.common.dtypes import result_type as _result_type
from ..engine.common.names_elsewhere import BACKEND_MODULE
from ..engine.graph import Tensor
from ..engine.objects.names import unique_name
from ..engine.objects.on_demand import on_demand
from ..engine.session.placeholder import placeholder
from .config import backend, epsilon, floatx, image_data_format, set_epsilon, set_floatx, set_image_data_format
from .utils import clear_session, is_keras_tensor, standardize_dtype


def is_float_dtype(dtype: DTypeLike) -> bool:
    """Test whether a dtype is a float type.

    >>> is_float_dtype("bfloat16"), is_float_dtype("int32")
    (True, False)
    """
    return is_floating(as_dtype(standardize_dtype(dtype)))


def is_int_dtype(dtype: DTypeLike) -> bool:
    """Test whether a dtype is a whole number type.

    >>> is_int_dtype("uint8"), is_int_dtype("float32")
    (True, False)
    """
    return is_integer(as_dtype(standardize_dtype(dtype)))


def result_type(*dtypes: DTypeLike | TensorLike) -> str:
    """Return the name of the dtype that an op on values of these dtypes has; None is the default float type.

    >>> result_type("int32", "float16"), result_type("int32", None), result_type()
    ('float16', 'float32', 'float32')
    """
    given = [floatx() if dtype is None else dtype for dtype in dtypes or (None,)]
    return name_of(_result_type(*(as_dtype(dtype) if isinstance(dtype, str) else dtype for dtype in given)))


def get_uid(prefix: str = "") -> int:
    """Return 1 at the first use of `prefix`, then 2 and so on, until `clear_session`.

    >>> get_uid("block of mine"), get_uid("block of mine")
    (1, 2)
    """
    number = unique_name(f"uid {prefix}").removeprefix(f"uid {prefix}")
    return int(number.removeprefix("_") or 0) + 1


class _KnowsSymbols(type):
    def __instancecheck__(cls, instance: TensorLike) -> bool:
        return is_keras_tensor(instance)


if TYPE_CHECKING:
    from ..engine.ops.base import TensorLike
    from .structures import ShapeLike

    class KerasTensor(Tensor):
        """See below."""

        def __init__(
            self,
            shape: ShapeLike,
            dtype: DTypeLike = "float32",
            sparse: bool = False,
            ragged: bool = False,
            record_history: bool = True,
            name: str | None = None,
        ) -> None: ...
else:

    class KerasTensor(metaclass=_KnowsSymbols):
        """The class of all symbolic tensors; called, it makes one.

        Args:
            shape: the shape with the batch; None for sizes that are not known.
            dtype: the dtype.
            sparse, ragged: accepted as in Keras; only False is supported.
            record_history: accepted as in Keras.
            name: the name.

        Layers can be called on it, to see shapes and dtypes. A model begins with an `Input`.

        >>> import anabranch as ab
        >>> x = ab.KerasTensor((None, 3), dtype="float32", name="x")
        >>> ab.layers.Dense(4)(x).shape
        (None, 4)
        >>> isinstance(ab.Input((3,)), ab.KerasTensor)
        True
        """

        def __new__(cls, shape, dtype="float32", sparse=False, ragged=False, record_history=True, name=None):
            if sparse or ragged:
                raise ValueError("KerasTensor: sparse=True and ragged=True are not supported; tensors are dense.")
            tensor = placeholder(tuple(shape), dtype, name)
            if name is not None:
                tensor.annotations["name"] = name
            return tensor


if TYPE_CHECKING:
    from .backend_functions import *  # noqa: F403 - those of `tf.keras.backend`
else:  # type checkers would take any name for a public one
    _missing, _ = on_demand(globals(), {}, elsewhere=BACKEND_MODULE)

    def __getattr__(name: str) -> object:
        functions = import_module(f"{__name__}_functions")  # few programs use them
        return getattr(functions, name) if name in functions.__all__ else _missing(name)


__all__ = [
    "KerasTensor",
    "backend",
    "clear_session",
    "epsilon",
    "floatx",
    "get_uid",
    "image_data_format",
    "is_float_dtype",
    "is_int_dtype",
    "is_keras_tensor",
    "result_type",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "standardize_dtype",
]
