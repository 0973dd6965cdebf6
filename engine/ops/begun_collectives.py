"""All-reduce in two ops: one begins it, the other waits for it, and the step goes on in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.op import Effect
from ..graph.scopes import colocate_with
from .base import Operation, Tensor, TensorSpec, apply
from .collectives import AllReduce, Collective, all_reduce, current_group


@dataclass(frozen=True)
class BeginAllReduce(Collective):
    """Begins to reduce the members' tensors; its result is the number of what was begun."""

    reduce_op: str

    no_samples: ClassVar[str] = "its result counts: test_collectives"

    def infer(self, *inputs: Any) -> TensorSpec:
        AllReduce(self.reduce_op).infer(*inputs)
        return TensorSpec((), dtypes.int64)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.int64(current_group().of_arrays(xp).begin_all_reduce(xp.asarray(inputs[0]), self.reduce_op))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class EndAllReduce(Collective):
    """Waits for what was begun. It takes the tensor, too, so that its memory stays as it is until then."""

    reduce_op: str

    no_samples: ClassVar[str] = "it takes what was begun: test_collectives"

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[1]

    def effects(self) -> Iterable[Effect]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        number, x = inputs
        found = current_group().of_arrays(xp).end_all_reduce(int(number), x)
        return xp.array(found)[()] if found is x else found[()]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        return (None, None if dy is None else all_reduce(dy, self.reduce_op))


def begin_all_reduce(tensor: Tensor) -> Tensor:
    """Begin to sum the tensors of all members; return the number by which it is ended.

    Args:
        tensor: numbers, of the same shape and dtype on all members.
    """
    return apply(BeginAllReduce("sum"), tensor, name="begin_all_reduce")


def end_all_reduce(number: Tensor, tensor: Tensor) -> Tensor:
    """Wait for a sum that was begun; return it. It is on the device where that was begun.

    Args:
        number: what `begin_all_reduce` gave.
        tensor: what it was given.
    """
    with colocate_with(number):
        return apply(EndAllReduce("sum"), number, tensor, name="end_all_reduce")


__all__ = ["begin_all_reduce", "end_all_reduce"]
