"""`ConcreteFunction`: one trace of a `tf.function`, for given specs of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.nest import flatten, flatten_with_path, pack_as
from ...engine.graph import Assign, ReadVariable, Symbol, Tensor, TensorSpec, Variable, in_explicit_graph
from ...engine.ops.base import as_array

if TYPE_CHECKING:
    from ...engine.session.function import Function as CompiledFunction

Arguments = tuple[tuple[object, ...], dict[str, object]]


class ConcreteFunction:
    """A trace of a function, called on tensors of the specs for which it was made.

    Args:
        function: compiles the trace.
        python_function: the user's, for the names of its arguments.
        arguments: those of the call, in which specs and tensors are places for tensors, and other things are fixed.
        bound: an object whose method the function is; None for functions.

    Attributes:
        structured_input_signature: the arguments by position, and those that only go by name, with defaults; specs
            are at the places of tensors.
        structured_outputs: the symbolic outputs, in the structure of the result.
        inputs, outputs: the symbolic inputs and outputs, flat.

    >>> from anabranch import tf
    >>> area = tf.function(lambda a, b: a * b).get_concrete_function(tf.TensorSpec((None,)), tf.TensorSpec(()))
    >>> area(tf.constant([1.0, 2.0]), tf.constant(3.0))
    Tensor([3., 6.], dtype=float32)
    """

    def __init__(
        self,
        function: CompiledFunction[object],
        python_function: Callable[..., object],
        arguments: Arguments,
        bound: object = None,
    ) -> None:
        self._function, self._bound = function, bound
        self._parameters = own_signature(python_function, bound)
        args, kwargs = self._by_position(arguments)
        self.structured_input_signature = pack_as((args, kwargs), [_spec_of(leaf) for leaf in flatten((args, kwargs))])
        self._expected = list(flatten_with_path(self.structured_input_signature))
        args = args if bound is None else (bound, *args)
        leaves = flatten((args, kwargs))
        specs = {place: spec for place, leaf in enumerate(leaves) if isinstance(spec := _spec_of(leaf), TensorSpec)}
        self._trace = function._trace((args, kwargs), leaves, specs, "")
        self.structured_outputs = self._trace.result
        fetches, self.inputs = self._trace.fetches_and_feeds()
        self.outputs = [fetch for fetch in fetches if isinstance(fetch, Symbol)]
        self.name = str(getattr(python_function, "__name__", "function"))

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Compute the result.

        Raises:
            TypeError: an argument is missing, or is not what the trace was made for.
        """
        given = self._checked(self._by_position((args, kwargs)))
        if in_explicit_graph() or any(isinstance(value, Symbol) for _, value in given):
            values = iter([value for _, value in given])
            filled = [next(values) if isinstance(leaf, TensorSpec) else leaf for _, leaf in self._expected]
            args, kwargs = pack_as(self.structured_input_signature, filled)
            return self._function(*(args if self._bound is None else (self._bound, *args)), **kwargs)
        return self._trace.run([value for _, value in given])

    @property
    def output_shapes(self) -> object:
        """The shapes of the outputs, in the structure of the result."""
        return pack_as(self.structured_outputs, [_of(leaf, "shape") for leaf in flatten(self.structured_outputs)])

    @property
    def output_dtypes(self) -> object:
        """The dtypes of the outputs, in the structure of the result."""
        return pack_as(self.structured_outputs, [_of(leaf, "dtype") for leaf in flatten(self.structured_outputs)])

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that the function reads or assigns."""
        found: dict[Variable, None] = {}
        for operation in self._trace._graph.operations:
            if isinstance(operation.op, (ReadVariable, Assign)):
                found[operation.op.variable] = None
        return tuple(found)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those of `variables` that are trainable."""
        return tuple(variable for variable in self.variables if variable.trainable)

    def _by_position(self, arguments: Arguments) -> Arguments:
        """Return the arguments by position, with defaults, and those that only go by name."""
        bound = self._parameters.bind_partial(*arguments[0], **arguments[1])
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _checked(self, given: Arguments) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments by their paths."""
        found: list[tuple[str, Tensor]] = []
        values = dict(flatten_with_path(given))
        for path, expected in self._expected:
            if path not in values:
                raise TypeError(f"{self.name}: a call needs argument {self._named(path)}, which is {expected}.")
            value = values.pop(path)
            if isinstance(expected, TensorSpec):
                found.append((path, self._tensor(path, expected, value)))
            elif value is not expected and not bool(value == expected):
                raise TypeError(f"{self.name}: argument {self._named(path)} is {expected!r} here; got {value!r}.")
        if values:
            raise TypeError(f"{self.name}: unexpected arguments {', '.join(map(self._named, values))}.")
        return found

    def _tensor(self, path: str, expected: TensorSpec, value: Any) -> Tensor:
        is_plain = not isinstance(value, (Tensor, Variable, np.ndarray, np.generic))
        tensor = ops.convert_to_tensor(value, expected.dtype if is_plain else None)
        if not expected.accepts(tensor.spec):
            raise TypeError(f"{self.name}: argument {self._named(path)} must be {expected}; got {tensor.spec}.")
        return tensor

    def _named(self, path: str) -> str:
        """Return the name of an argument, and the place in it, for a place in ``(args, kwargs)``."""
        by_position = re.match(r"\[0\]\[(\d+)\]", path)
        if by_position is None:
            return re.sub(r"^\[1\]\['(\w+)'\]", r"\1", path)
        names = list(self._parameters.parameters)
        number = min(int(by_position[1]), len(names) - 1)
        return names[number] + path[by_position.end() :]

    def __repr__(self) -> str:
        return f"<ConcreteFunction {self.name} of {self.structured_input_signature}>"


def own_signature(python_function: Callable[..., object], bound: object) -> inspect.Signature:
    """Return a function's parameters; those of a method without the object."""
    signature = inspect.signature(python_function)
    parameters = list(signature.parameters.values())
    return signature if bound is None else signature.replace(parameters=parameters[1:])


def _spec_of(leaf: object) -> object:
    """Return the spec of a tensor or array, and anything else as it is."""
    if isinstance(leaf, Tensor):
        return leaf.spec
    return TensorSpec(leaf.shape, as_array(leaf).dtype) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def _of(leaf: object, name: str) -> object:
    return getattr(leaf, name) if isinstance(leaf, Tensor) else None


__all__ = ["ConcreteFunction", "own_signature"]
