"""`Tensor`, the base of symbols and values, and `Symbol`: one output of an `Operation`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from ..common.names_elsewhere import TENSORS, ExplainsNames
from ..common.operator_table import operator_functions
from .array_methods import ArrayMethods
from .provenance import layer_being_called
from .spec import Shape, Spec
from .tensor_shape import TensorShape
from .tracebacks import shorten

if TYPE_CHECKING:
    from ..common.dtypes import DType
    from .graph import Graph, Operation

C = TypeVar("C")


class NoValueError(TypeError):
    """A symbol is used as a number, an array or a truth value, which it is not while a graph is built."""


_OF_TWO = ("lt", "le", "gt", "ge")
_OF_TWO_FROM_EITHER = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_OF_ONE = ("neg", "pos", "abs", "invert")


def _of_one(name: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        try:
            return operator_functions[name](self)
        except Exception as error:
            shorten(error)
            raise

    return method


def _of_two(name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        try:
            return operator_functions[name](self, other)
        except Exception as error:
            shorten(error)
            raise

    return method


def _from_the_right(name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        try:
            return operator_functions[name](other, self)
        except Exception as error:
            shorten(error)
            raise

    return method


def _with_operators(cls: type[C]) -> type[C]:
    """Give a class Python's operators, with short tracebacks of errors, in which each has its name.

    A decorator would cost each operator the time of one more call.
    """
    methods: dict[str, Any] = {f"__{name}__": _of_one(name) for name in _OF_ONE}
    methods |= {f"__{name}__": _of_two(name) for name in (*_OF_TWO, *_OF_TWO_FROM_EITHER)}
    methods |= {f"__r{name}__": _from_the_right(name) for name in _OF_TWO_FROM_EITHER}
    for name, method in methods.items():
        method.__name__, method.__qualname__ = name, f"{cls.__name__}.{name}"
        method.__code__ = method.__code__.replace(co_name=name, co_qualname=method.__qualname__)
        setattr(cls, name, method)
    return cls


@_with_operators
class Operators(ExplainsNames, elsewhere=TENSORS):
    """Python's operators over tensors, elementwise as NumPy's.

    ``==`` and ``!=`` are elementwise, too, while the hash is that of the identity: tensors can be keys of dictionaries,
    but ``in`` and ``list.index`` over lists of them need `is`.
    """

    __slots__ = ()
    __array_priority__ = 100  # NumPy arrays on the left leave the operation to us
    __array_ufunc__: Any = None

    if TYPE_CHECKING:  # made by `_with_operators`

        def __add__(self, other: Any) -> Tensor: ...

        def __radd__(self, other: Any) -> Tensor: ...

        def __sub__(self, other: Any) -> Tensor: ...

        def __rsub__(self, other: Any) -> Tensor: ...

        def __mul__(self, other: Any) -> Tensor: ...

        def __rmul__(self, other: Any) -> Tensor: ...

        def __truediv__(self, other: Any) -> Tensor: ...

        def __rtruediv__(self, other: Any) -> Tensor: ...

        def __floordiv__(self, other: Any) -> Tensor: ...

        def __rfloordiv__(self, other: Any) -> Tensor: ...

        def __mod__(self, other: Any) -> Tensor: ...

        def __rmod__(self, other: Any) -> Tensor: ...

        def __pow__(self, other: Any) -> Tensor: ...

        def __rpow__(self, other: Any) -> Tensor: ...

        def __matmul__(self, other: Any) -> Tensor: ...

        def __rmatmul__(self, other: Any) -> Tensor: ...

        def __neg__(self) -> Tensor: ...

        def __pos__(self) -> Tensor: ...

        def __abs__(self) -> Tensor: ...

        def __invert__(self) -> Tensor: ...

        def __and__(self, other: Any) -> Tensor: ...

        def __rand__(self, other: Any) -> Tensor: ...

        def __or__(self, other: Any) -> Tensor: ...

        def __ror__(self, other: Any) -> Tensor: ...

        def __xor__(self, other: Any) -> Tensor: ...

        def __rxor__(self, other: Any) -> Tensor: ...

        def __lshift__(self, other: Any) -> Tensor: ...

        def __rlshift__(self, other: Any) -> Tensor: ...

        def __rshift__(self, other: Any) -> Tensor: ...

        def __rrshift__(self, other: Any) -> Tensor: ...

        def __lt__(self, other: Any) -> Tensor: ...

        def __le__(self, other: Any) -> Tensor: ...

        def __gt__(self, other: Any) -> Tensor: ...

        def __ge__(self, other: Any) -> Tensor: ...

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __eq__(self, other: Any) -> Any:
        try:
            return operator_functions["eq"](self, other) if _is_comparable(other) else NotImplemented
        except Exception as error:
            shorten(error)
            raise

    def __ne__(self, other: Any) -> Any:
        try:
            return operator_functions["ne"](self, other) if _is_comparable(other) else NotImplemented
        except Exception as error:
            shorten(error)
            raise

    __hash__ = object.__hash__  # by identity; passes look symbols up millions of times, and this one is in C

    def __getitem__(self, key: Any) -> Tensor:
        return operator_functions["getitem"](self, key)

    def get_shape(self) -> TensorShape:
        """Return the static shape with the methods of TensorFlow's shapes; None where the rank is unknown."""
        return TensorShape(cast("Tensor", self).shape)

    def __contains__(self, item: object) -> bool:
        raise NoValueError(
            f"`in` has no answer while a graph is built: {self!r} is symbolic. "
            "Use ops.any(ops.equal(x, item)) for its elements, any(x is t for t in tensors) for lists of tensors."
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show: the name and the type. A variable's value may be on another machine."""
        from ..common.html import array_view  # notebooks alone need it

        return array_view(repr(self))


def _is_comparable(other: Any) -> bool:
    """Test whether ``==`` is about elements: not with None, classes and other objects that are not numbers."""
    if isinstance(other, (Operators, numbers.Number, str, bytes, list, tuple)):
        return True
    return hasattr(other, "__array__") and not isinstance(other, type)


class Tensor(Operators, ArrayMethods):
    """An input or result of ops: a `Value`, which holds its numbers, or a `Symbol`, which stands for those of a graph.

    Outside of graphs ops run at once and give values; where a graph is being built (inside ``graph.as_default()``, a
    `Session`'s block, a function, a loop or a branch of a graph), or where one of the arguments is symbolic, they
    give symbols.

    >>> import anabranch as ab
    >>> x = ab.ops.array([1.0, 2.0])
    >>> x * 2 + 1
    Tensor([3., 5.], dtype=float32)
    >>> isinstance(x, ab.Tensor), isinstance(ab.Input((2,)), ab.Tensor)
    (True, True)
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # editors are to show neither of them

        def __init__(self, *args, **kwargs):
            raise TypeError(
                "Tensor is the base of values and symbols. Use ab.convert_to_tensor, or ab.Input for a symbol."
            )

        def __setitem__(self, index, value):
            raise TypeError(
                "A tensor never changes, so that x[...] = value is not possible. Use ab.ops.slice_update or "
                "ab.ops.scatter_update, which give another tensor, or ab.ops.where."
            )

    @property
    def spec(self) -> Spec:
        """Return what is known of the tensor: its dtype and shape."""
        raise NotImplementedError

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def shape(self) -> Shape:
        """The static shape: a tuple whose unknown dimensions are None, or None where the rank is unknown."""
        return self.spec.shape

    @property
    def ndim(self) -> int | None:
        shape = self.shape
        return None if shape is None else len(shape)

    @property
    def annotations(self) -> dict[str, Any]:
        """Return what layers above the engine note about the tensor (masks, the layer that made it)."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        raise NotImplementedError

    if TYPE_CHECKING:  # what values answer with their numbers; of symbols most of it raises an error

        def __bool__(self) -> bool: ...

        def __len__(self) -> int: ...

        def __iter__(self) -> Iterator[Tensor]: ...

        def __float__(self) -> float: ...

        def __int__(self) -> int: ...

        def __index__(self) -> int: ...

        def __complex__(self) -> complex: ...

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

        def eval(self, feed_dict: dict[Any, Any] | None = None) -> Any: ...

        def numpy(self) -> Any: ...

        def item(self, *index: Any) -> Any: ...

        def tolist(self) -> Any: ...

        # What symbols have, and values don't.

        @property
        def name(self) -> str: ...

        @property
        def name_in_graph(self) -> str: ...

    @property
    def _keras_mask(self) -> Any:
        """The mask that a layer gave to the tensor, by the name under which scripts for Keras read and set it."""
        if "mask" not in self.annotations:
            raise AttributeError(f"{self!r} has no mask.")
        return self.annotations["mask"]

    @_keras_mask.setter
    def _keras_mask(self, mask: Any) -> None:
        self.annotations["mask"] = mask


class Symbol(Tensor):
    """A symbolic tensor: output number `index` of `operation`.

    Attributes:
        spec: what is known of it (dtype and shape).
        annotations: what layers above the engine note about it (masks, the layer that made it).
    """

    __slots__ = ("__weakref__", "_annotations", "index", "operation", "spec")

    spec: Spec

    def __init__(self, operation: Operation, index: int, spec: Spec) -> None:
        self.operation = operation
        self.index = index
        self.spec = spec  # a slot in place of the property
        self._annotations: dict[str, Any] | None = None

    @property
    def graph(self) -> Graph:
        return self.operation.graph

    @property
    def name(self) -> str:
        """Its name in the graph, ``operation:output``; of an `Input` the name that was given to it, as in Keras."""
        given = self._annotations.get("name") if self._annotations else None
        return given or self.name_in_graph

    @property
    def name_in_graph(self) -> str:
        """The name ``operation:output``, which no other tensor of the graph has."""
        return f"{self.operation.name}:{self.index}"

    @property
    def device(self) -> str:
        return self.operation.device

    @property
    def annotations(self) -> dict[str, Any]:
        if self._annotations is None:
            self._annotations = {}
        return self._annotations

    def eval(self, feed_dict: dict[Any, Any] | None = None) -> Any:
        """Return the value of this tensor, computed by a session of its own: ``Session().run(self, feed_dict)``."""
        return operator_functions["eval"](self, feed_dict)

    def __bool__(self) -> NoReturn:
        raise NoValueError(
            f"Symbolic tensor {self.name} has no truth value while the graph is built{_call_text()}. "
            "Use ab.cond(...) or ops.where(...) to choose by it, ops.logical_and/or/not to combine conditions, "
            "`is None` to test for absence."
        )

    def __len__(self) -> int:
        shape = self.spec.shape
        if shape is None or not shape or shape[0] is None:
            raise NoValueError(
                f"len() of the symbolic tensor {self!r} is not known while the graph is built{_call_text()}; use "
                "ops.shape(x)[0]."
            )
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        shape = self.spec.shape
        if shape is None or not shape or shape[0] is None:
            raise NoValueError(
                f"Cannot iterate over the symbolic tensor {self!r}: the size of its first axis is not known while the "
                f"graph is built{_call_text()}. Use ab.scan, ab.map_fn or ab.while_loop to visit its elements."
            )
        return (self[position] for position in range(shape[0]))

    def __float__(self) -> float:
        raise self._has_no_value("a float", "ops.cast(x, 'float32')")

    def __int__(self) -> int:
        raise self._has_no_value("an int", "ops.cast(x, 'int32')")

    def __index__(self) -> int:
        remedy = "x.shape for sizes that are known, ab.fori_loop or ab.while_loop to repeat, ops.take to choose"
        raise self._has_no_value("an int (as range() and list indices need)", remedy)

    def __complex__(self) -> complex:
        raise self._has_no_value("a complex number")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self._has_no_value("a NumPy array")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        found = operator_functions["ufunc"](ufunc, method, inputs, options)
        if found is NotImplemented:
            raise NoValueError(
                f"np.{ufunc.__name__} can't be applied to the symbolic tensor {self.name}, which has no value while "
                f"the graph is built{_call_text()}. Use ab.ops.{ufunc.__name__}, or another op of ab.ops, in its place."
            )
        return found

    def __format__(self, format_spec: str) -> str:
        if format_spec:
            raise self._has_no_value(f"text of the format {format_spec!r}")
        return str(self)

    def numpy(self) -> Any:
        raise self._has_no_value("a NumPy array")

    def item(self, *index: Any) -> Any:
        raise self._has_no_value("a Python number")

    def tolist(self) -> Any:
        raise self._has_no_value("a list")

    def _has_no_value(
        self, wanted: str, remedy: str = "ab.ops in place of Python's and NumPy's functions"
    ) -> NoValueError:
        traced = self.operation.graph.root.traced
        if traced:
            return NoValueError(
                f"Symbolic tensor {self.name} was made while {traced} was traced, and can't become {wanted}: it has no "
                "value outside of it. Return it from there, or keep its value in a variable: variable.assign(...) "
                "inside."
            )
        called = _call_text()
        run = "" if called else ", or run it with Session.run(tensor, feed_dict)"
        return NoValueError(
            f"Symbolic tensor {self.name} has no value while the graph is built{called}, so it can't become {wanted}. "
            f"Use {remedy}{run}."
        )

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.spec}>"


def _call_text() -> str:
    """Return the part of a message that names the layer whose `call` is running; empty outside of all calls."""
    layer = layer_being_called()
    return f", in call() of layer {layer!r}" if layer else ""


def symbol_of(tensor: Any) -> Symbol:
    """Return `tensor`, which is known to be of a graph: the result of an op where a graph is being built."""
    assert isinstance(tensor, Symbol), tensor
    return tensor


__all__ = ["NoValueError", "Operators", "Symbol", "Tensor", "symbol_of"]
