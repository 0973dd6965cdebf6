"""`Tensor`: a symbolic value, one output of an `Operation`."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from .spec import Shape, Spec

if TYPE_CHECKING:
    from .dtypes import DType
    from .graph import Graph, Operation


# What Python's operators mean for tensors. Ops lie above the graph, so they hand their functions down, once, through
# `define_operators`; the names are those of the special methods without underscores.
class _OperatorTable(dict[str, Callable[..., Any]]):
    """Loads what fills it at the first look-up: who uses a variable need not have used an op before."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        importlib.import_module("..objects.initializers" if name == "initializer" else "..ops", __package__)
        return dict(self)[name]


_operators: dict[str, Callable[..., Any]] = _OperatorTable()


def define_operators(table: dict[str, Callable[..., Any]]) -> None:
    """Give tensors (and variables) their arithmetic, comparison, logical and indexing operators."""
    _operators.update(table)


class Operators:
    """Python's operators over symbolic values. ``==`` is identity, so that tensors can be dictionary keys."""

    __slots__ = ()
    __array_priority__ = 100  # NumPy arrays on the left leave the operation to us
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Tensor:
        return _operators["add"](self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _operators["add"](other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _operators["sub"](self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _operators["sub"](other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _operators["mul"](self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _operators["mul"](other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _operators["truediv"](self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _operators["truediv"](other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _operators["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _operators["floordiv"](other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _operators["mod"](self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _operators["mod"](other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Tensor:
        return _operators["pow"](self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _operators["pow"](other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _operators["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _operators["matmul"](other, self)

    def __neg__(self) -> Tensor:
        return _operators["neg"](self)

    def __pos__(self) -> Tensor:
        return _operators["pos"](self)

    def __abs__(self) -> Tensor:
        return _operators["abs"](self)

    def __invert__(self) -> Tensor:
        return _operators["invert"](self)

    def __and__(self, other: Any) -> Tensor:
        return _operators["and"](self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _operators["and"](other, self)

    def __or__(self, other: Any) -> Tensor:
        return _operators["or"](self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _operators["or"](other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _operators["xor"](self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return _operators["xor"](other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return _operators["lshift"](self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return _operators["lshift"](other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return _operators["rshift"](self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return _operators["rshift"](other, self)

    def __lt__(self, other: Any) -> Tensor:
        return _operators["lt"](self, other)

    def __le__(self, other: Any) -> Tensor:
        return _operators["le"](self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _operators["gt"](self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _operators["ge"](self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return _operators["getitem"](self, key)

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(
            f"`in` compares by identity, which is never what is meant for {self!r}. "
            "Use ops.any(ops.equal(x, item)) for its elements, any(x is t for t in tensors) for lists of tensors."
        )


class Tensor(Operators):
    """A symbolic value: output number `index` of `operation`.

    Attributes:
        spec: what is known of it (dtype and shape).
        annotations: what layers above the engine note about it (masks, the layer that made it).
    """

    __slots__ = ("__weakref__", "_annotations", "index", "operation", "spec")

    def __init__(self, operation: Operation, index: int, spec: Spec) -> None:
        self.operation = operation
        self.index = index
        self.spec = spec
        self._annotations: dict[str, Any] | None = None

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def shape(self) -> Shape:
        """The static shape: a tuple whose unknown dimensions are None, or None where the rank is unknown."""
        return self.spec.shape

    @property
    def ndim(self) -> int | None:
        shape = self.spec.shape
        return None if shape is None else len(shape)

    @property
    def graph(self) -> Graph:
        return self.operation.graph

    @property
    def name(self) -> str:
        return f"{self.operation.name}:{self.index}"

    @property
    def device(self) -> str:
        return self.operation.device

    @property
    def annotations(self) -> dict[str, Any]:
        if self._annotations is None:
            self._annotations = {}
        return self._annotations

    @property
    def _keras_mask(self) -> Any:
        """The mask that a layer gave to the tensor, by the name under which scripts for Keras read and set it."""
        if "mask" not in self.annotations:
            raise AttributeError(f"{self!r} has no mask.")
        return self.annotations["mask"]

    @_keras_mask.setter
    def _keras_mask(self, mask: Any) -> None:
        self.annotations["mask"] = mask

    @property
    def T(self) -> Tensor:
        """The transpose (all axes reversed)."""
        return _operators["transpose"](self)

    def eval(self, feed_dict: dict[Any, Any] | None = None) -> Any:
        """The value of this tensor, computed by a session of its own: ``Session().run(self, feed_dict)``."""
        return _operators["eval"](self, feed_dict)

    def __bool__(self) -> bool:
        refusal = (
            f"Tensor {self.name} has no truth value while the graph is built. "
            "Use ab.cond(...) or ops.where(...) to choose by it, ops.logical_and/or/not to combine conditions, "
            "`is None` to test for absence."
        )
        return bool(_operators["value"](self, refusal))

    def __len__(self) -> int:
        shape = self.spec.shape
        if shape is None or not shape or shape[0] is None:
            refusal = f"len() of {self!r} is not known while the graph is built; use ops.shape(x)[0]."
            return len(_operators["value"](self, refusal))
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        shape = self.spec.shape
        if shape is None or not shape or shape[0] is None:
            refusal = (
                f"Cannot iterate over {self!r}: the size of its first axis is not known while the graph is built. "
                "Use ab.scan, ab.map_fn or ab.while_loop to visit its elements."
            )
            return (self[position] for position in range(len(_operators["value"](self, refusal))))
        return (self[position] for position in range(shape[0]))

    def __float__(self) -> float:
        return float(self._value_as("a float"))

    def __int__(self) -> int:
        return int(self._value_as("an int"))

    def __index__(self) -> int:
        return operator.index(self._value_as("an int"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        value = self._value_as("a NumPy array")
        if copy is False:
            raise ValueError(f"The value of tensor {self.name} is handed out as a copy only; leave out copy=False.")
        return _operators["as_copy"](value, dtype)

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if format_spec else str(self)

    def numpy(self) -> Any:
        """The value as a NumPy array, or as a NumPy scalar; where no graph is being built, as are the others below.

        >>> import anabranch as ab
        >>> ab.ops.add([1, 2], 3).numpy()
        array([4, 5], dtype=int32)
        """
        return self._value_as("a NumPy array").copy()

    def item(self) -> Any:
        """The value, of which there is one element, as a Python number."""
        return self._value_as("a Python number").item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers, or as a number."""
        return self._value_as("a list").tolist()

    def _value_as(self, wanted: str) -> Any:
        """The value, where no graph is being built; raises TypeError elsewhere. See `session.outside`."""
        refusal = (
            f"Tensor {self.name} has no value while the graph is built, so it can't become {wanted}. "
            "Run it with Session.run(tensor, feed_dict), or use anabranch ops instead of NumPy's."
        )
        return _operators["value"](self, refusal)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.spec}>"
