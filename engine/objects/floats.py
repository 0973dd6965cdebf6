"""The default float dtype, and the dtypes that a layer computes and keeps its weights in."""

from __future__ import annotations

from typing import Any, cast

from ..graph.dtypes import as_dtype, is_floating

_default = "float32"


def floatx() -> str:
    """The dtype of layers that are given none, ``"float32"`` unless `set_floatx` changed it."""
    return _default


def set_floatx(dtype: Any) -> None:
    """Choose the default dtype of layers made from now on.

    Raises:
        ValueError: it is not a floating dtype.
    """
    global _default
    _default = layer_dtype(dtype)


def layer_dtype(dtype: Any) -> str:
    """The name of a layer's dtype, from a name, a NumPy dtype, or Keras's serialised ``DTypePolicy``.

    Raises:
        ValueError: it is a mixed-precision policy, or no floating dtype.

    >>> layer_dtype({"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float64"}})
    'float64'
    """
    if dtype is None:
        return _default
    if isinstance(dtype, dict):
        dtype = cast("dict[str, Any]", dtype).get("config", {}).get("name", _default)
    if isinstance(dtype, str) and dtype.startswith("mixed_"):
        raise ValueError(
            f"The dtype policy {dtype!r} mixes two dtypes, which layers here do not do: a layer computes in the dtype "
            "of its weights. Expected one dtype, such as 'float32' or 'float16'."
        )
    found = as_dtype(dtype)
    if not (is_floating(found) or found.kind in "iubc"):
        raise ValueError(f"A layer's dtype must be a numeric dtype such as 'float32', got {dtype!r}.")
    return found.name
