"""`tf.function`: a function of a script for TensorFlow, compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...engine.common.nest import flatten, pack_as
from ...engine.graph.tensor import NoValueError
from ...engine.session.function import Function as CompiledFunction
from . import config
from .control_flow import executing_eagerly


@dataclass(frozen=True)
class _Number:
    """A Python number that is a part of the trace; 1 and 1.0 are two of them."""

    kind: type
    value: int | float | complex


class Function(CompiledFunction[object]):
    """A compiled function of a script for TensorFlow, which may be run in Python for debugging.

    Python numbers are fed, so that there is one trace for all of them. If the function looks at the value of one, such
    as in ``range(n)``, it is traced for each number, as TensorFlow does always.
    """

    _with_numbers: CompiledFunction[object] | None = None

    def _called(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if config.functions_run_eagerly() and executing_eagerly():
            return self.python_function(*args, **kwargs)
        if self._with_numbers is None:
            try:
                return super()._called(args, kwargs)
            except (TypeError, ValueError) as error:
                # Other errors than NoValueError may be those of a run, which is not to be repeated.
                is_known = not isinstance(error, NoValueError) and self.trace_count() > 0
                if is_known or not any(isinstance(_as_part(leaf), _Number) for leaf in flatten((args, kwargs))):
                    raise
        function = self._with_numbers or CompiledFunction(self._call_on_numbers, self.relax_shapes)
        function._traces, function._name = self._traces, self._name  # which are looked at, and counted, here
        args, kwargs = _replaced(args, kwargs, _as_part)
        result = function(*args, **kwargs)
        self._with_numbers = function
        return result

    def _call_on_numbers(self, *args: object, **kwargs: object) -> object:
        args, kwargs = _replaced(args, kwargs, lambda leaf: leaf.value if isinstance(leaf, _Number) else leaf)
        return self.python_function(*args, **kwargs)


def _as_part(leaf: object) -> object:
    """Return a Python number as a part of the trace, and anything else as it is."""
    is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)
    return _Number(type(leaf), leaf) if is_number else leaf


def _replaced(
    args: tuple[object, ...], kwargs: dict[str, object], change: Callable[[object], object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return pack_as((args, kwargs), [change(leaf) for leaf in flatten((args, kwargs))])


def function(func: Callable[..., object] | None = None, **options: object) -> Any:
    """Compile a function as `anabranch.function` does, with or without TensorFlow's options, which do nothing here.

    A Python number at whose value the function looks is a part of the trace, as in TensorFlow.
    See `tf.config.run_functions_eagerly` for how to look at values of tensors in it.

    >>> from anabranch import tf
    >>> @tf.function
    ... def repeated(x, n):
    ...     for _ in range(n):
    ...         x = x * 2
    ...     return x
    >>> float(repeated(tf.constant(1.0), 3))
    8.0
    """
    return Function if func is None else Function(func)


__all__ = ["function"]
