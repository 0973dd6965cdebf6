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
                is_known = not isinstance(error, NoValueError) and super().trace_count() > 0
                if is_known or not any(map(_is_number, flatten((args, kwargs)))):
                    raise
        function = self._with_numbers or CompiledFunction(self._call_on_numbers, self.relax_shapes)
        args, kwargs = _replaced((args, kwargs), lambda x: _Number(type(x), x) if _is_number(x) else x)
        result = function(*args, **kwargs)
        self._with_numbers = function
        return result

    def _call_on_numbers(self, *args: object, **kwargs: object) -> object:
        args, kwargs = _replaced((args, kwargs), lambda x: x.value if isinstance(x, _Number) else x)
        return self.python_function(*args, **kwargs)

    def trace_count(self) -> int:
        """Return the number of graphs that were traced so far."""
        return super().trace_count() + (self._with_numbers.trace_count() if self._with_numbers else 0)

    def latest_trace(self) -> Any:
        """Return the fetches and the feeds of the graph that was traced last; None before the first call."""
        return self._with_numbers.latest_trace() if self._with_numbers else super().latest_trace()


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)


def _replaced(arguments: Any, change: Callable[[Any], object]) -> Any:
    return pack_as(arguments, [change(leaf) for leaf in flatten(arguments)])


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
