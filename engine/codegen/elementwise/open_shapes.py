"""Runs kernels of operations over arrays whose sizes are known at run time only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.op import Op
from .bound import BoundKernel
from .open_sizes import BoundedCache, Shape


class OpenRunner:
    """Calls an operation of one array by the kernel for its shape, which is bound when that is first seen.

    Args:
        op: the operation, which runs itself where there is no kernel.
        bind: the kernel for a shape, and the shape of its results; None where NumPy does better, or there is none.
        dtypes: of the results; several come as a tuple.
    """

    def __init__(self, op: Op, bind: Callable[[Shape], tuple[BoundKernel, Shape] | None], *dtypes: str) -> None:
        self._op = op
        self._make = bind
        self._dtypes = tuple([np.dtype(dtype) for dtype in dtypes])
        self._known = BoundedCache[Shape, tuple[BoundKernel, Shape] | None](self._bind)

    def __call__(self, x: Any) -> Any:
        found = self._known[x.shape]
        if found is None:
            return self._op.run(np, x)
        kernel, result_shape = found
        results = tuple([np.empty(result_shape, dtype) for dtype in self._dtypes])
        if kernel.call(x, *results):  # of another layout
            return self._op.run(np, x)
        return results[0] if len(results) == 1 else results

    def _bind(self, shape: Shape) -> tuple[BoundKernel, Shape] | None:
        found = self._make(shape)
        if found is not None:
            found[0].compiled()
        return found
