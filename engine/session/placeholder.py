"""`placeholder`: a value that is fed."""

from __future__ import annotations

from typing import Any

from ..common.dtypes import as_dtype
from ..graph.graph import Placeholder, get_default_graph
from ..graph.spec import TensorSpec, as_shape
from ..graph.tensor import Symbol
from ..ops import convert_to_tensor as _ensure_ops  # operators over tensors come with the ops

del _ensure_ops


def placeholder(shape: Any = None, dtype: Any = "float32", name: str | None = None) -> Symbol:
    """Return a tensor whose value is fed at each run.

    Args:
        shape: its shape, with None for dimensions that are not known; None if not even the rank is.
        dtype: its dtype.
        name: its name.

    >>> import anabranch as ab
    >>> x = ab.placeholder((None, 2), "float32", name="x")
    >>> ab.Session().run(x * 2, {x: [[1, 2]]})
    array([[2., 4.]], dtype=float32)
    """
    spec = TensorSpec(as_shape(shape), as_dtype(dtype))
    return get_default_graph().add(Placeholder(spec), (), name or "placeholder").outputs[0]
