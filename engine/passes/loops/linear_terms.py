"""Linear functions of what a loop adds up are applied once, to the sum.

Each iteration's ``w += m.T @ g``, with one matrix `m` for all of them, is ``m.T @ (sum of g)`` after the loop; so it
is with other products, and with reshapes, sums and factors between. Such terms are the gradients of what is the same
in each iteration: keys of a memory, weights that are normalised, transposed or put together inside the cell. Several
sums of functions of one tensor share its sum. What the loop adds up is where that costs least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...common.identity import is_among
from ...common.machine_profile import machine_profile
from ...control_flow.frames import TripCount
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.arrays.shaping import BroadcastTo
from ...ops.base import build, make_constant
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.products import BatchMatMul, FlattenRows, MatMul
from ...ops.math.comparison import where
from ...ops.math.elementwise import Add
from ...ops.math.reduced import BroadcastReduced, Sum
from ...ops.run_time_shapes import BroadcastToShape, SumToShape, ZerosOfShape
from ..framework import changes
from ..framework.assign import on_one_device
from ..framework.log import note_change
from .sums import is_summed_as_whole, is_zero
from .view import LoopView, is_static, size_of

_FLOATS = ("float32", "float64")
_PASSES = 3  # through memory, of adding to a sum: read both, write one
_MOST_TERMS = 32


class _Step(NamedTuple):
    """One linear operation, and which of its inputs differs from iteration to iteration."""

    operation: Operation
    position: int

    @property
    def source(self) -> Symbol:
        return self.operation.inputs[self.position]


class _Term(NamedTuple):
    """A term of the sum: a chain of linear operations, the last one first, over the source that differs."""

    tensor: Symbol
    steps: list[_Step]

    @property
    def source(self) -> Symbol:
        return self.steps[-1].source


def sum_what_linear_terms_take(loop: LoopView) -> bool:
    """Add up what linear terms of sums take, and apply them after the loop."""
    sums: dict[Symbol, Symbol] = {}
    changed = False
    for _ in range(2):  # what is added up for one sum costs others nothing
        known = len(sums)
        for position in reversed(range(loop.op.carried)):
            changed |= _Accumulation(loop, position, sums).rewrite()
        if len(sums) == known:
            break
    return changed


class _Accumulation:
    """The sum that loop variable `position` gathers.

    Args:
        loop: the loop.
        position: the variable.
        sums: for tensors of the body their sums over all iterations, for all accumulations.
    """

    def __init__(self, loop: LoopView, position: int, sums: dict[Symbol, Symbol]) -> None:
        self.loop = loop
        self.position = position
        self.sums = sums
        self.parameter = loop.body.parameters[position]
        self.result = loop.body.results[position]

    def rewrite(self) -> bool:
        """Take linear terms out; return whether there were any."""
        terms = self._terms()
        if terms is None:
            return False
        left: list[Symbol] = []
        totals: list[Symbol] = []
        for tensor in terms:
            term = self._linear(tensor)
            if term is None:
                left.append(tensor)
            else:
                totals.append(self._total(term))
        if not totals:
            return False
        self._put(left, totals)
        self.loop.refresh()
        return True

    # --- what is added up -----------------------------------------------------------------------------------

    def _terms(self) -> list[Symbol] | None:
        """Return the terms that each iteration adds to the variable; None if it has other uses."""
        loop, spec = self.loop, self.parameter.spec
        if not isinstance(spec, TensorSpec) or spec.dtype.name not in _FLOATS or not spec.is_static:
            return None
        if loop.uses.get(self.parameter) != 1 or loop.is_tested(self.position) or self.result is self.parameter:
            return None
        found: list[Symbol] = []
        additions: list[Operation] = []
        pending = [self.result]
        while pending:
            tensor = pending.pop()
            operation = tensor.operation
            is_own = operation.graph is loop.body and loop.uses.get(tensor) == 1 and tensor.spec == spec
            if is_own and isinstance(operation.op, Add) and not operation.control_inputs:
                additions.append(operation)
                pending.extend(reversed(operation.inputs))
            else:
                found.append(tensor)
        is_sum = additions and is_among(self.parameter, found) and len(found) <= _MOST_TERMS
        if not is_sum or any(tensor.spec != spec for tensor in found) or not on_one_device(additions):
            return None
        return [tensor for tensor in found if tensor is not self.parameter]

    def _linear(self, tensor: Symbol) -> _Term | None:
        """Return a term as linear operations over what costs least to add up; None if that is the term itself."""
        steps: list[_Step] = []
        current = tensor
        while (step := self._step(current)) is not None:
            steps.append(step)
            current = step.source
        best, least = 0, self._cost(tensor, steps)
        for count in range(1, len(steps) + 1):
            cost = self._cost(steps[count - 1].source, steps[count:])
            if cost <= least:
                best, least = count, cost
        taken = steps[:best]
        is_work = any(not _is_view(step) for step in taken)
        return _Term(tensor, taken) if is_work else None

    def _step(self, tensor: Symbol) -> _Step | None:
        """Return the operation that makes a tensor, if it is linear in what differs."""
        loop, operation = self.loop, tensor.operation
        if operation.graph is not loop.body or operation.control_inputs:
            return None
        if not operation.op.linear_in or not is_static(*operation.inputs, tensor):
            return None
        differing = [k for k, each in enumerate(operation.inputs) if not self.loop.is_steady(each)]
        if len(differing) != 1 or differing[0] not in operation.op.linear_in:
            return None
        step = _Step(operation, differing[0])
        are_together = on_one_device([operation, self.parameter.operation, step.source.operation])
        return step if are_together and _is_plain(operation.op, step.source, tensor) else None

    def _cost(self, tensor: Symbol, steps: Sequence[_Step]) -> float:
        """Estimate how long an iteration takes that applies `steps` and adds up `tensor`, in elements that go by.

        What others need is computed in any case. Sums of products leave the loop, where they are one product.
        """
        if tensor in self.sums or (is_summed_as_whole(tensor.operation) and self._step(tensor) is None):
            return sum(map(_work, steps))
        alone = [step for step in steps if self.loop.uses.get(step.operation.outputs[0]) == 1]
        return _PASSES * size_of(tensor) + sum(map(_work, alone))

    # --- after the loop -------------------------------------------------------------------------------------

    def _total(self, term: _Term) -> Symbol:
        """Return the sum of a term over all iterations."""
        loop = self.loop
        total = self._sum_of(term.source)
        with loop.outside(term.tensor.operation):
            for step in reversed(term.steps):
                total = build(step.operation.op, *self._operands(step, total))
                total.operation.name = step.operation.name  # what moves keeps its name
            if not loop.known_trips:  # without iterations it is zero, also where infinite weights make NaN of it
                trips = build(TripCount(), loop.node.outputs[-1])
                total = symbol_of(where(trips > 0, total, self._zeros(total)))
        note_change("fission", term.tensor.operation, "is linear: it is applied to a sum, after the loop")
        return total

    def _operands(self, step: _Step, total: Symbol) -> list[Symbol]:
        found: list[Symbol] = []
        for position, tensor in enumerate(step.operation.inputs):
            outer = total if position == step.position else self.loop.constant_outside(tensor)
            assert outer is not None
            found.append(outer)
        return found

    def _sum_of(self, tensor: Symbol) -> Symbol:
        """Return the sum over all iterations of a tensor of the body."""
        if tensor not in self.sums:
            with self.loop.outside(tensor.operation):
                zeros = self._zeros(tensor)
            self.sums[tensor] = self.loop.add_variable(
                zeros, lambda total: build(Add(), total, tensor), tensor.operation
            )
        return self.sums[tensor]

    def _zeros(self, like: Symbol) -> Symbol:
        shape = tuple(dim or 0 for dim in like.shape or ())
        return build(ZerosOfShape(shape, like.dtype), make_constant(np.array(shape, "int32")))

    def _put(self, left: Sequence[Symbol], totals: Sequence[Symbol]) -> None:
        """Let the variable gather what is left, and add the totals to what it gathers."""
        loop, position = self.loop, self.position
        initial, final = loop.node.inputs[position], loop.node.outputs[position]
        with loop.outside(self.result.operation):
            total = _added(totals)
        source = total.operation
        if not left:
            loop.remove_variable(position)
            if is_zero(initial):
                loop.become(final, source.op, source.inputs, source)
            else:
                loop.become(final, Add(), [initial, total]).device = source.device
            return
        with loop.inside(self.result.operation):
            kept = build(Add(), self.parameter, _added(left))
        changes.set_results(loop.body, [*loop.body.results[:position], kept, *loop.body.results[position + 1 :]])
        gathered = Symbol(loop.node, position, final.spec)
        loop.become(final, Add(), [gathered, total]).device = source.device
        changes.set_output(loop.node, position, gathered)


def _added(tensors: Sequence[Symbol]) -> Symbol:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = build(Add(), total, tensor)
    return total


def _is_plain(op: Op, source: Symbol, result: Symbol) -> bool:
    """Test whether an op keeps to one dtype, and sums to the dtype of its input."""
    return source.dtype == result.dtype and not (isinstance(op, Sum) and op.accumulator is not None)


def _is_view(step: _Step) -> bool:
    """Test whether a step costs nothing; a sum of one element costs nothing, too."""
    op, source = step.operation.op, step.source
    is_sum = isinstance(op, (Sum, SumToShape))
    is_view = op.kernel_role is KernelRole.RESHAPE or isinstance(op, FlattenRows)
    return is_view or (is_sum and size_of(source) == size_of(step.operation.outputs[0]))


def _work(step: _Step) -> float:
    operation = step.operation
    if _is_view(step) or isinstance(operation.op, (BroadcastReduced, BroadcastTo, BroadcastToShape)):
        return 0
    sizes = [size_of(tensor) for tensor in (*operation.inputs, *operation.outputs)]
    if isinstance(operation.op, (BatchMatMul, Contraction, MatMul)):
        profile = machine_profile()
        return profile.elements_per_call + math.sqrt(math.prod(sizes)) / profile.multiplications_per_element
    return size_of(step.source) if isinstance(operation.op, (Sum, SumToShape)) else sizes[-1]


__all__ = ["sum_what_linear_terms_take"]
