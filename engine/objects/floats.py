"""The default float dtype, and the dtypes that a layer computes and keeps its weights in."""

from __future__ import annotations

from typing import Any, cast

from ..common.dtypes import DTypeLike, as_dtype, default_float, is_floating, name_of, set_default_float

_MIXED = ("mixed_float16", "mixed_bfloat16")


def floatx() -> str:
    """Return the dtype of layers and new tensors that are given none, ``"float32"`` unless `set_floatx` changed it."""
    return name_of(default_float())


def set_floatx(dtype: DTypeLike) -> None:
    """Choose the default dtype of layers made from now on, and of what ops make that are given no dtype.

    These are `ops.zeros`, `eye`, `linspace`, `one_hot`, `hanning`, `random.normal` and their like. What is computed of
    numbers has the dtype that they lead to: Python's floats, and the mean of integers, are float32.

    Raises:
        ValueError: it is not a floating dtype.
    """
    if is_mixed(dtype):
        raise ValueError(
            f"set_floatx takes one floating dtype such as 'float32', got the dtype policy {dtype!r}. For mixed "
            f"precision call ab.config.set_dtype_policy({dtype!r})."
        )
    set_default_float(as_dtype(layer_dtype(dtype)))


def is_mixed(name: Any) -> bool:
    """Test whether `name` is that of a policy that computes in another dtype than that of the weights."""
    return isinstance(name, str) and name in _MIXED


def layer_dtype(dtype: DTypeLike) -> str:
    """Return the name of the dtype to compute in, from a name, a NumPy dtype, a `DTypePolicy`, or Keras's config.

    Raises:
        ValueError: it is not a numeric dtype.

    >>> layer_dtype({"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float64"}})
    'float64'
    >>> layer_dtype("mixed_bfloat16")
    'bfloat16'
    """
    if dtype is None:
        return floatx()
    if isinstance(dtype, dict):
        dtype = cast("dict[str, Any]", dtype).get("config", {}).get("name", floatx())
    dtype = getattr(dtype, "compute_dtype", dtype)  # a policy
    if is_mixed(dtype):
        return str(dtype).removeprefix("mixed_")
    try:
        found = as_dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error} Policies of layers are also {' and '.join(map(repr, _MIXED))}.") from error
    if not (is_floating(found) or found.kind in "iubcT"):
        raise ValueError(f"A layer's dtype must be a numeric dtype such as 'float32', or 'string', got {dtype!r}.")
    return name_of(found)
