"""`tf.function`, a function of a script for TensorFlow, compiled, and `tf.Module`, an object that holds variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ...engine.common.nest import flatten, pack_as
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Variable, name_scope
from ...engine.graph.tensor import NoValueError
from ...engine.session.function import Function as CompiledFunction
from ...layers.core.layer import Layer
from . import config
from .concrete_functions import ConcreteFunction, own_signature
from .control_flow import executing_eagerly

_Method = TypeVar("_Method", bound=Callable[..., object])


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
    input_signature: tuple[object, ...] | None = None

    def get_concrete_function(self, *args: object, **kwargs: object) -> ConcreteFunction:
        """Trace the function, and return the trace, which takes tensors of these specs.

        Args:
            *args, **kwargs: those of a call, with `tf.TensorSpec` or tensors where tensors are to be given; other
                things, Python's numbers included, are fixed. Without any, the `input_signature` of the function.

        Raises:
            TypeError: the function can't take these arguments.
        """
        return self._concrete(None, args, kwargs)

    def _concrete(self, bound: object, args: tuple[object, ...], kwargs: dict[str, object]) -> ConcreteFunction:
        if not args and not kwargs and self.input_signature is not None:
            args = self.input_signature
        plain = CompiledFunction(self.python_function, self.relax_shapes)
        return ConcreteFunction(plain, self.python_function, (args, kwargs), bound)

    def __get__(self, instance: object, owner: type | None = None) -> object:
        return self if instance is None else Method(self, instance)

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


class Method:
    """A compiled function as the method of an object."""

    def __init__(self, function: Function, instance: object) -> None:
        self.__func__, self.__self__ = function, instance

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function on the object and the arguments."""
        return self.__func__(self.__self__, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return own_signature(self.__func__.python_function, self.__self__)

    def get_concrete_function(self, *args: object, **kwargs: object) -> ConcreteFunction:
        """Trace the method; see `Function.get_concrete_function`."""
        return self.__func__._concrete(self.__self__, args, kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__func__, name)


def _as_part(leaf: object) -> object:
    """Return a Python number as a part of the trace, and anything else as it is."""
    is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)
    return _Number(type(leaf), leaf) if is_number else leaf


def _replaced(
    args: tuple[object, ...], kwargs: dict[str, object], change: Callable[[object], object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return pack_as((args, kwargs), [change(leaf) for leaf in flatten((args, kwargs))])


def function(
    func: Callable[..., object] | None = None, input_signature: Sequence[object] | None = None, **options: object
) -> Any:
    """Compile a function as `anabranch.function` does, with or without TensorFlow's options.

    Args:
        func: the function; without it, the result is a decorator.
        input_signature: what `get_concrete_function` takes without arguments. Calls are traced for what they get.
        **options: TensorFlow's other options, which do nothing here.

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

    def compiled(python_function: Callable[..., object]) -> Function:
        made = Function(python_function)
        made.input_signature = None if input_signature is None else tuple(input_signature)
        return made

    return compiled if func is None else compiled(func)


class Module:
    """Base of classes whose variables are found by their attributes, in the order of the attributes' names.

    Lists, tuples and dicts of variables and modules count, and layers, with their variables.

    >>> from anabranch import tf
    >>> class Line(tf.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w, self.b = tf.Variable(2.0), tf.Variable(1.0)
    ...     def __call__(self, x):
    ...         return self.w * x + self.b
    >>> float(Line()(3.0)), [float(v) for v in Line().trainable_variables]
    (7.0, [1.0, 2.0])
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = type(self).__name__.lower() if name is None else name

    @property
    def name(self) -> str:
        """Return the name."""
        return self._name

    @property
    def name_scope(self) -> AbstractContextManager[object]:
        """Return a scope for the names of what is made in it."""
        return name_scope(self._name)

    @classmethod
    def with_name_scope(cls, method: _Method) -> _Method:
        """Return a method as it is: names of variables have no scopes here."""
        return method

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return all variables: first the module's own, by the names of the attributes, then those of submodules."""
        found: dict[int, Variable] = {}
        for leaf in _leaves(self, {id(self)}):
            for variable in leaf.variables if isinstance(leaf, Layer) else [leaf]:
                if isinstance(variable, Variable):
                    found.setdefault(id(variable), variable)
        return tuple(found.values())

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return those variables that are trained."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Return those variables that are not trained."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """Return the modules that the attributes hold, and the modules of these."""
        return tuple(leaf for leaf in _leaves(self, {id(self)}) if isinstance(leaf, Module))


def _leaves(module: Module, seen: set[int]) -> Iterator[object]:
    """Yield what the attributes hold, each once: first those of the module, then those of the modules in it."""
    inner = []
    for _, held in sorted(vars(module).items()):
        for leaf in flatten(held):
            if id(leaf) not in seen:
                seen.add(id(leaf))
                yield leaf
                if isinstance(leaf, Module):
                    inner.append(leaf)
    for each in inner:
        yield from _leaves(each, seen)


__all__ = ["Module", "function"]
