"""Data types: names, kinds and the promotion rules.

Promotion follows JAX's lattice (the one that ``keras.ops`` uses): Python scalars are *weak* and take the tensor's
type; an array's type never depends on its value. bfloat16 is imported only when it is first named.

Text is ``"string"``: NumPy's variable-width strings. They do not mix with numbers. ``docs/dtypes.md`` has the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeGuard

import numpy as np

DType = np.dtype[Any]
DTypeLike: TypeAlias = str | np.dtype[Any] | type[Any] | None
"""A name, a NumPy dtype, or a scalar type of NumPy or Python; None stands for the default."""

bool_ = np.dtype("bool")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
float32 = np.dtype("float32")
float64 = np.dtype("float64")
string: DType = np.dtype("T")  # NumPy's StringDType

_WEAK_BY_PYTHON_TYPE: dict[type, str] = {bool: "bool", int: "int*", float: "float*", complex: "complex*"}
_default_float = float32
_WEAK_DEFAULT = {"int*": "int32", "float*": "float32", "complex*": "complex64"}

# Each type's immediate successors in the promotion lattice.
_LATTICE: dict[str, tuple[str, ...]] = {
    "bool": ("int*",),
    "int*": ("uint8", "int8"),
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("int64",),
    "int64": ("float*",),
    "uint8": ("int16", "uint16"),
    "uint16": ("int32", "uint32"),
    "uint32": ("int64", "uint64"),
    "uint64": ("float*",),
    "float*": ("bfloat16", "float16", "complex*"),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex*": ("complex64",),
    "complex64": ("complex128",),
    "complex128": (),
}


def default_float() -> DType:
    """Return the dtype of what is made from nothing but a shape: float32, unless `set_default_float` changed it."""
    return _default_float


def set_default_float(dtype: DType) -> None:
    """Choose the dtype of what is made from nothing but a shape, from now on."""
    global _default_float
    _default_float = dtype


@cache
def four_bit_dtypes() -> tuple[DType, DType]:
    """Return the dtypes of signed and unsigned integers of four bits, of arrays in files; no op computes with them."""
    import ml_dtypes

    return np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)


@cache
def _dtype_from_name(name: str) -> DType:
    if name in ("string", "str", string.name):
        return string
    if name == "bfloat16":
        import ml_dtypes  # registers the name with NumPy

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"int": "int32", "float": "float32"}.get(name, name))


def is_dtype(value: Any) -> TypeGuard[DType]:
    """Test whether `value` is a NumPy dtype."""
    return isinstance(value, np.dtype)


def as_dtype(dtype: DTypeLike) -> DType:
    """Return the NumPy dtype that `dtype` names.

    Python's own ``int`` and ``float`` mean int32 and float32, as everywhere in anabranch, None means `default_float()`,
    and every kind of text (``str``, NumPy's ``<U`` and ``S``) means "string".

    Raises:
        ValueError: no dtype has this name.
        TypeError: `dtype` is no name and no type.

    >>> as_dtype("float32"), as_dtype(float)
    (dtype('float32'), dtype('float32'))
    """
    if is_dtype(dtype):
        return string if dtype.kind in "TUS" else dtype
    if dtype is None:  # NumPy would take float64
        return default_float()
    if isinstance(dtype, type) and dtype in _WEAK_BY_PYTHON_TYPE:
        weak = _WEAK_BY_PYTHON_TYPE[dtype]
        return np.dtype(_WEAK_DEFAULT.get(weak, weak))
    try:
        found = _dtype_from_name(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        return string if found.kind in "TUS" else found
    except (TypeError, ValueError, SyntaxError) as error:  # SyntaxError: NumPy reads names such as "(2,)f4"
        hint = " A shape is one argument: zeros((2, 3))." if isinstance(dtype, int) else ""
        kind = ValueError if isinstance(dtype, str) else TypeError
        raise kind(
            f"Unknown dtype {dtype!r}. Expected a name such as 'float32', 'int32' or 'bool', or a NumPy dtype.{hint}"
        ) from error


@cache
def name_of(dtype: DType) -> str:
    """Return the name of `dtype` in messages, configurations and `as_dtype`.

    >>> name_of(as_dtype("string")), name_of(as_dtype("float32"))
    ('string', 'float32')
    """
    return "string" if dtype.kind == "T" else dtype.name


@cache
def native_dtype(dtype: DType) -> DType:
    """Return NumPy's own object for a dtype of numbers: kernels contain its address."""
    return np.dtype(dtype.type)


def with_own_dtype(array: Any) -> Any:
    """Return an array with NumPy's own object of its dtype, for which kernels look: the same memory.

    Arrays that were pickled, or come from HDF5 files, have equal objects of their own, which compare more slowly.
    """
    dtype: Any = getattr(array, "dtype", None) if type(array) is np.ndarray else None
    if dtype is None or dtype.kind not in "biufcV" or dtype.type is np.void:
        return array
    own = native_dtype(dtype)
    return array if own is dtype or own != dtype else array.view(own)


def is_string(dtype: DType) -> bool:
    """Test whether `dtype` holds text."""
    return dtype.kind == "T"


def is_floating(dtype: DType) -> bool:
    """Test whether `dtype` holds real floating-point numbers (bfloat16 included)."""
    return dtype.kind == "f" or name_of(dtype) == "bfloat16"


def largest(dtype: DType) -> float:
    """Return the largest finite number of a floating-point dtype."""
    # NumPy's finfo does not support bfloat16, whose largest number is (2 - 2**-7) * 2**127.
    return (2 - 2.0**-7) * 2.0**127 if name_of(dtype) == "bfloat16" else float(np.finfo(dtype).max)


def epsilon(dtype: DType) -> float:
    """Return the distance from 1 to the next larger number of a floating-point dtype."""
    return 2.0**-7 if name_of(dtype) == "bfloat16" else float(np.finfo(dtype).eps)


def accumulator_of(dtype: DType) -> DType | None:
    """Return the wider dtype in which sums of `dtype` are accumulated, if not in `dtype` itself."""
    return float32 if dtype.itemsize == 2 and is_floating(dtype) else None


def is_integer(dtype: DType) -> bool:
    """Test whether `dtype` holds signed or unsigned integers."""
    return dtype.kind in "iu"


def is_differentiable(dtype: DType) -> bool:
    """Test whether gradients flow through values of `dtype`: real or complex floating point."""
    return is_floating(dtype) or dtype.kind == "c"


@cache
def _ancestors(name: str) -> frozenset[str]:
    above = {name}
    for successor in _LATTICE[name]:
        above |= _ancestors(successor)
    return frozenset(above)


@lru_cache(maxsize=4096)
def _join(names: frozenset[str]) -> str:
    if len(names) == 1:
        return next(iter(names))
    first, *rest = [_ancestors(name) for name in names]
    common: frozenset[str] = first.intersection(*rest)
    # The least common ancestor is the one from which every other common ancestor is reached.
    for candidate in common:
        if common <= _ancestors(candidate):
            return candidate
    raise TypeError(f"No common dtype for {', '.join(sorted(names))}. Cast one of them explicitly with ops.cast.")


def _weak_name(python_type: type) -> str:
    """Return what a Python number brings to promotion; also one of a subclass, such as an enum's."""
    for base in python_type.__mro__:
        if base in _WEAK_BY_PYTHON_TYPE:
            return _WEAK_BY_PYTHON_TYPE[base]
    raise TypeError(f"A value of type {python_type.__name__} is no number.")


def result_type(*types: Any) -> DType:
    """Return the dtype in which an operation over `types` is computed.

    Args:
        *types: dtypes, or the Python types ``bool``, ``int``, ``float``, ``complex`` for weak scalars.

    >>> result_type(np.dtype("float16"), float), result_type(np.dtype("int32"), float), result_type(int)
    (dtype('float16'), dtype('float32'), dtype('int32'))
    """
    return _result_type(types)


@lru_cache(maxsize=1024)
def _result_type(types: tuple[Any, ...]) -> DType:
    names = frozenset([_weak_name(t) if isinstance(t, type) else name_of(t) for t in types])
    unknown = names - _LATTICE.keys()
    if unknown:
        return _alone(types)
    joined = _join(names)
    return _dtype_from_name(_WEAK_DEFAULT.get(joined, joined))


def _alone(types: Sequence[Any]) -> DType:
    """Return the dtype of values that take part in no promotion, if it is one.

    Raises:
        TypeError: there are several.
    """
    names = [_weak_name(t).rstrip("*") if isinstance(t, type) else name_of(t) for t in types]
    if len(set(names)) == 1:
        return types[0]
    if "string" in names:
        raise TypeError(
            f"Strings and numbers do not mix; got {' and '.join(dict.fromkeys(names))}. Convert one kind first, with "
            "ops.strings.to_number or ops.strings.as_string."
        )
    wrong = next(name for name in names if name not in _LATTICE)
    raise TypeError(f"dtypes {sorted(set(names))} do not mix: {wrong} takes part in no promotion.")


def float_type(dtype: DType) -> DType:
    """Return `dtype` itself if it is floating or complex, otherwise float32: the type of a mean or a true division.

    Raises:
        TypeError: it is "string".
    """
    if is_string(dtype):
        raise TypeError("Numbers were expected; got strings. Convert them with ops.strings.to_number.")
    return dtype if is_differentiable(dtype) else float32
