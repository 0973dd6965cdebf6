"""The ops that read and write variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..op import Cost, Effect, Op
from ..spec import Shape, TensorSpec, shape_accepts
from ..tensor import Tensor

if TYPE_CHECKING:
    from .variable import Variable


class ReadVariable(Op):
    """The value of a variable at this point of the program."""

    no_samples: ClassVar[str] = "holds a variable: test_variables"
    cost: ClassVar[Cost] = Cost.NOTHING
    view = True

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def infer(self, *inputs: Any) -> TensorSpec:
        return self.variable.spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.variable.stored_value()

    def grad(self, node: Any, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.variable, writes=False),)


class Assign(Op):
    """Write a variable; the output is the value written."""

    no_samples: ClassVar[str] = "holds a variable: test_variables"
    view = True

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def infer(self, *inputs: Any) -> TensorSpec:
        (value,) = inputs
        wanted = self.variable.spec
        if value.dtype != wanted.dtype or (
            value.shape is not None and not shape_accepts(wanted.shape, _fill(value.shape, wanted.shape))
        ):
            raise ValueError(f"Variable {self.variable.name!r} is {wanted}; a value {value} can't be assigned to it.")
        return TensorSpec(wanted.shape if value.shape is None else value.shape, wanted.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (value,) = inputs
        self.variable._check_shape(tuple(value.shape))  # pyrefly: ignore[protected-access]
        self.variable.write_value(value)
        return value

    def grad(self, node: Any, *cotangents: Tensor | None) -> Any:
        return cotangents

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.variable, writes=True),)


def _fill(shape: tuple[int | None, ...], known: Shape) -> Shape:
    """Return `shape` with unknown dimensions taken from `known`, where the ranks agree."""
    if known is None or len(known) != len(shape):
        return shape
    return tuple(k if dim is None else dim for dim, k in zip(shape, known, strict=True))
