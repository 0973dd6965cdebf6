"""Elementwise operations on NumPy as one Python function each: what runs where a kernel is not worth its call.

Small arrays take less time to compute than operations to be called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...ops.internal.fused import Fused


def on_numpy(op: Fused) -> Callable[..., tuple[Any, ...]]:
    """Return a function that computes what `op.run` does, from the text that its steps are printed as."""
    names = [f"v{k}" for k in range(op.input_count)]
    lines = [f"def run({', '.join(names)}):"]
    namespace: dict[str, Any] = {"np": np}
    for step, arguments in op.steps:
        given = [names[k] for k in arguments]
        text = step.emit(given)
        if text is None:
            run = f"run_{len(names)}"
            namespace[run] = partial(step.run, np)
            text = f"{run}({', '.join(given)})"
        names.append(f"v{len(names)}")
        lines.append(f"    {names[-1]} = {text}")
    lines.append(f"    return ({', '.join(names[k] for k in op.results)},)")
    exec(compile("\n".join(lines), "<on_numpy>", "exec"), namespace)
    return namespace["run"]
