"""The NaN guard: on demand every operation is checked, and the first that makes a NaN or infinity is named."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..graph.dtypes import is_differentiable
from ..graph.graph import Operation, ReadVariable
from ..ops.base import is_numpy

__all__ = ["check_numerics", "disable_check_numerics", "enable_check_numerics"]


class _Guard:
    def __init__(self) -> None:
        self.enabled = False


_guard = _Guard()


def enable_check_numerics() -> None:
    """From now on, check the results of every operation for NaN and infinity (``tf.debugging.enable_check_numerics``).

    A step in which an operation makes a NaN out of numbers, or an infinity out of finite numbers, fails with a
    FloatingPointError that names the operation (and with its name the layer), the iteration of each loop around it, the
    step, and the user's line. Steps run without fused kernels meanwhile, so they are slower.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default(), ab.debugging.check_numerics():
    ...     x = ab.placeholder((), "float32", "x")
    ...     ab.Session().run(ab.ops.log(x) * 2, {x: 0.0})
    Traceback (most recent call last):
    FloatingPointError: 'log' (log) gives an infinity from finite numbers, in run 1 of this step.
    ...
    """
    _guard.enabled = True


def disable_check_numerics() -> None:
    """Let NaN and infinities pass again."""
    _guard.enabled = False


@contextmanager
def check_numerics() -> Generator[None]:
    """``with ab.debugging.check_numerics():`` - the guard holds inside the block."""
    before = _guard.enabled
    _guard.enabled = True
    try:
        yield
    finally:
        _guard.enabled = before


def is_enabled() -> bool:
    """Whether steps are checked now."""
    return _guard.enabled


def check_fed(name: str, value: Any) -> None:
    """Raises FloatingPointError: the value fed to tensor `name` holds NaN."""
    if is_differentiable(value.dtype) and np.isnan(value).any():
        raise FloatingPointError(f"The value fed to {name!r} holds {_counted(np.isnan(value), 'NaN')}.")


def check_results(operation: Operation, run: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Check what `operation` gave.

    Raises:
        FloatingPointError: a NaN appears that no input has, or an infinity although all inputs are finite.
    """
    for value in outputs:
        if not _is_checked(value) or np.isfinite(value).all():
            continue
        given = [x for x in inputs if _is_checked(x)]
        nan = np.isnan(value)
        if nan.any() and not any(np.isnan(x).any() for x in given):
            what = _counted(nan, "NaN")
        elif not nan.any() and all(np.isfinite(x).all() for x in given):
            what = _counted(~np.isfinite(value), "an infinity")
        else:
            continue
        raise FloatingPointError(f"{_subject(operation)} {what}{_source(given)}, in run {run} of this step.")


def _is_checked(value: Any) -> bool:
    return is_numpy(value) and is_differentiable(value.dtype)


def _subject(operation: Operation) -> str:
    if isinstance(operation.op, ReadVariable):
        return f"Variable {operation.op.variable.name!r} holds"
    return f"{operation.name!r} ({operation.type}) gives"


def _source(given: Sequence[Any]) -> str:
    return " from finite numbers" if given and all(np.isfinite(x).all() for x in given) else ""


def _counted(mask: Any, what: str) -> str:
    """How many elements are wrong, and where the first is."""
    if not np.ndim(mask):
        return what
    first = tuple(int(k) for k in np.argwhere(mask)[0])
    return f"{what} in {int(np.sum(mask))} of {np.size(mask)} elements, first at {list(first)}"
