"""Checks on demand: every operation is looked at, and the first that makes a NaN or leaves an index out is named."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..common.dtypes import is_differentiable
from ..graph.graph import Operation
from ..graph.op import Op
from ..graph.state.variable_ops import ReadVariable
from ..ops.base import is_numpy
from ..ops.immediate import watch
from ..ops.left_out import LeavesOut, first_left_out

__all__ = [
    "check_indices",
    "check_numerics",
    "disable_check_indices",
    "disable_check_numerics",
    "enable_check_indices",
    "enable_check_numerics",
]


class _Guard:
    def __init__(self) -> None:
        self.enabled = False
        self.indices = False


_guard = _Guard()


def _switch(numbers: bool | None = None, indices: bool | None = None) -> None:
    """Begin or end checks, of steps and of ops that run at once on values."""
    _guard.enabled = _guard.enabled if numbers is None else numbers
    _guard.indices = _guard.indices if indices is None else indices
    watch.check = check_values if looks_at_operations() else None


def enable_check_numerics() -> None:
    """Check the results of every operation for NaN and infinity from now on (``tf.debugging.enable_check_numerics``).

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
    _switch(numbers=True)


def disable_check_numerics() -> None:
    """Let NaN and infinities pass again."""
    _switch(numbers=False)


@contextmanager
def check_numerics() -> Generator[None]:
    """Check results for NaN and infinity inside of the block: ``with ab.debugging.check_numerics():``."""
    before = _guard.enabled
    _switch(numbers=True)
    try:
        yield
    finally:
        _switch(numbers=before)


def enable_check_indices() -> None:
    """Refuse ids that name no segment or class from now on, where segment ops and `one_hot` leave them out.

    A step with such an id fails with an IndexError that names the operation, the id and the user's line. Steps run
    without fused kernels meanwhile, so they are slower.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default(), ab.debugging.check_indices():
    ...     ids = ab.placeholder((2,), "int32", "ids")
    ...     ab.Session().run(ab.ops.one_hot(ids, 3), {ids: [0, 3]})
    Traceback (most recent call last):
    IndexError: 'one_hot' (one_hot) leaves out 1 of 2 ids outside 0 to 2, first 3 at [1], in run 1 of this step.
    ...
    """
    _switch(indices=True)


def disable_check_indices() -> None:
    """Let ids that name no segment and no class be left out again."""
    _switch(indices=False)


@contextmanager
def check_indices() -> Generator[None]:
    """Refuse ids that name no segment or class inside of the block: ``with ab.debugging.check_indices():``."""
    before = _guard.indices
    _switch(indices=True)
    try:
        yield
    finally:
        _switch(indices=before)


def is_enabled() -> bool:
    """Test whether steps are checked for NaN and infinity now."""
    return _guard.enabled


def looks_at_operations() -> bool:
    """Test whether steps are checked now, for NaN and infinity or for indices."""
    return _guard.enabled or _guard.indices


def check_fed(name: str, value: Any) -> None:
    """Check that the value fed to tensor `name` holds no NaN. Raises FloatingPointError."""
    if _guard.enabled and is_differentiable(value.dtype) and np.isnan(value).any():
        raise FloatingPointError(f"The value fed to {name!r} holds {_counted(np.isnan(value), 'NaN')}.")


def check_results(operation: Operation, run: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Check what `operation` gave.

    Raises:
        FloatingPointError: a NaN appears that no input has, or an infinity although all inputs are finite.
        IndexError: with `check_indices`, an id that names no segment or class is left out.
    """
    subject = f"{operation.name!r} ({operation.type})"
    verb = f"{subject} gives"
    if isinstance(operation.op, ReadVariable):
        verb = f"Variable {operation.op.variable.name!r} holds"
    _check(operation.op, subject, verb, f", in run {run} of this step.", inputs, outputs)


def check_values(op: Op, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Check what an op gave on values, outside of graphs; errors as those of `check_results`."""
    _check(op, repr(op.type_name), f"{op.type_name!r} gives", ".", inputs, outputs)


def _check(op: Op, subject: str, verb: str, end: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    if _guard.indices and isinstance(op, LeavesOut):
        found = first_left_out(op, inputs)
        if found is not None:
            raise IndexError(f"{subject} leaves out {found}{end}")
    for value in outputs if _guard.enabled else ():
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
        raise FloatingPointError(f"{verb} {what}{_source(given)}{end}")


def _is_checked(value: Any) -> bool:
    return is_numpy(value) and is_differentiable(value.dtype)


def _source(given: Sequence[Any]) -> str:
    return " from finite numbers" if given and all(np.isfinite(x).all() for x in given) else ""


def _counted(mask: Any, what: str) -> str:
    """Return how many elements are wrong, and where the first is."""
    if not np.ndim(mask):
        return what
    first = tuple(int(k) for k in np.argwhere(mask)[0])
    return f"{what} in {int(np.sum(mask))} of {np.size(mask)} elements, first at {list(first)}"
