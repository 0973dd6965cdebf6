"""`Op`: the definition of an operation. One op is one class in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from .graph import Operation
    from .spec import Spec
    from .tensor import Tensor


class Effect(NamedTuple):
    """An access to a resource (a variable, a random state, the outside world), kept in program order."""

    resource: Any
    writes: bool


@dataclass
class Sample:
    """One case from which an op's tests are generated.

    Attributes:
        op: the definition under test.
        inputs: concrete input arrays.
        expected: the right result(s), computed some other way; None where NumPy itself is the reference.
        differentiable: positions of the inputs whose gradients are checked against finite differences.
        tolerance: relative tolerance of results (float32).
        label: a short name of the case.
    """

    op: Op
    inputs: Sequence[Any]
    expected: Any = None
    differentiable: Sequence[int] | None = None
    tolerance: float = 1e-5
    label: str = ""


@dataclass
class ErrorSample:
    """A case that must be refused: `call()` raises `error`, whose message matches `match`."""

    call: Any
    error: type[Exception]
    match: str
    label: str = field(default="")


_registry: dict[str, type[Op]] = {}


class Op:
    """The definition of an operation: attributes as dataclass fields, shape inference, execution and gradient.

    Subclasses are frozen dataclasses. A definition holds no tensors; the same one may be used by many operations.

    Class attributes:
        type_name: the op's name in graphs and dumps; from the class name unless it is given.
        view: the result may share memory with an input.
        expression: for elementwise ops, the scalar function over ``e`` (see ``passes``), printed into fused kernels.
    """

    type_name: ClassVar[str] = ""
    view: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type_name" not in cls.__dict__:
            cls.type_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not cls.__name__.startswith("_"):
            _registry[cls.type_name] = cls

    def infer(self, *inputs: Any) -> Spec | tuple[Spec, ...]:
        """The specs of the outputs, from those of the inputs.

        Raises:
            ValueError, TypeError: the inputs do not fit; the message names shapes or dtypes and the remedy.
        """
        raise NotImplementedError(f"{type(self).__name__} must define infer().")

    def run(self, xp: Any, *inputs: Any) -> Any:
        """Compute the output(s) on arrays of module `xp` (numpy or cupy). Rank-0 results are NumPy scalars."""
        raise NotImplementedError(f"{type(self).__name__} must define run().")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        """Cotangents of the inputs, from those of the outputs; None where nothing flows."""
        raise LookupError(
            f"No gradient is defined for op {node.name!r} ({self.type_name}). "
            "Wrap what should be constant in ops.stop_gradient, or define `grad` in its class."
        )

    def emit(self, arguments: Sequence[str]) -> str | None:
        """The call as a Python expression over ``np`` and the names of the inputs, or None to call `run`."""
        return None

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        """The call as an expression that writes into buffer `out` (of the result's shape and dtype), if it can."""
        return None

    def effects(self) -> Iterable[Effect]:
        """The resources that a run touches; none for pure ops."""
        return ()

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """Cases from which the op's tests are generated."""
        return ()

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        """Cases that must be refused, with the error expected."""
        return ()


def registered_ops() -> dict[str, type[Op]]:
    """Every op class by its `type_name`."""
    return dict(_registry)


def as_scalar_or_array(value: Any) -> Any:
    """`value` with a rank-0 array replaced by its NumPy scalar, the form that programs compute with."""
    return value[()] if is_array(value) and value.ndim == 0 else value


def is_array(value: Any) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether `value` is a NumPy array (a NumPy scalar is none)."""
    return isinstance(value, np.ndarray)
