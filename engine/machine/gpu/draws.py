"""Random numbers drawn on a GPU, where the kernel for them can be printed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...codegen.cuda.draws import DrawLaunch, draw_launch
from ...codegen.cuda.rows import BLOCK
from ...codegen.expression.expression import UnsupportedError
from ...graph.op import Op
from ...ops.arrays.shape_arguments import fill_shape
from ...ops.random.keys import key_words
from .fused import compiled_module


class DrawRunner:
    """Runs an operation that draws by its CUDA kernel.

    Args:
        cupy: the module.
        op: what to run.
        launch: its kernel.
    """

    def __init__(self, cupy: Any, op: Op, launch: DrawLaunch) -> None:
        self._cupy = cupy
        self._op: Any = op
        self._launch = launch
        self._function: Any = None

    def __call__(self, key: Any, *sizes: Any) -> Any:
        shape = fill_shape(self._op.shape, [self._on_host(size) for size in sizes])
        words = key_words(self._on_host(key))
        result = self._cupy.empty(shape, self._op.dtype)
        count = math.prod(shape)
        if count:
            if self._function is None:
                self._function = compiled_module(self._cupy, self._launch.source).get_function("draw")
            first, second = (np.uint64(word) for word in words)
            given = (result, np.int64(count), first, second, *self._launch.numbers)
            self._function(self._launch.grid(count), (BLOCK,), given)
        return result

    def _on_host(self, value: Any) -> Any:
        return value.get()[()] if isinstance(value, self._cupy.ndarray) else value


def draw_runner(cupy: Any, op: Op) -> DrawRunner | None:
    """Return what runs an operation that draws, or None where there is no kernel for it."""
    if not op.type_name.startswith("random_"):
        return None
    try:
        return DrawRunner(cupy, op, draw_launch(op))
    except UnsupportedError:
        return None
