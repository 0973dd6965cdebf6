"""Conditional accumulators: the mean (or sum) of the first gradients that come in for a step; late ones are dropped.

Source: Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016); the interface is
TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.dtypes import as_dtype, is_differentiable, name_of
from ..common.quick_dataclass import dataclass
from ..graph.context import in_explicit_graph
from ..graph.graph import get_default_graph, graph_for
from ..graph.op import Effect, Op, as_scalar_or_array
from ..graph.slices import IndexedSlices
from ..graph.spec import Shape, TensorSpec, as_shape, shape_accepts, shape_text, shapes_compatible
from ..graph.state.resource import NamedResource
from ..graph.state.variable import Variable
from ..graph.value import Value
from ..ops.base import as_array, convert_to_tensor, is_numpy
from ..ops.entrance import entering_graphs
from .accumulator_state import AccumulatorState, AccumulatorStatistics, DenseTotal, SparseTotal, Total
from .attempts import Attempt, Course, Gate, Request, WaitingOp
from .components import holds_tensors
from .errors import check_held

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor


@dataclass(frozen=True, eq=False)
class _AccumulatorOp(Op):
    """Base: ops on an accumulator."""

    no_samples: ClassVar[str] = "holds an accumulator: test_queues_accumulators"
    accumulator: _Accumulator

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.accumulator, writes=True),)


@dataclass(frozen=True, eq=False)
class AccumulatorApply(_AccumulatorOp):
    """Add a gradient. Inputs: its parts, then the step at which it was computed."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        self.accumulator.check_specs(inputs[:-1])
        _check_integer("local_step", inputs[-1])
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.accumulator.apply_now(inputs[:-1], int(inputs[-1]))
        return ()


@dataclass(frozen=True, eq=False)
class AccumulatorTake(_AccumulatorOp, WaitingOp):
    """Take the result of at least so many gradients as the input says. Waits for them."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        _check_integer("num_required", inputs[0])
        return self.accumulator.result_specs()

    def course(self, *inputs: Any) -> Course:
        return (yield self.accumulator.taking(int(inputs[0])))


@dataclass(frozen=True, eq=False)
class AccumulatorSetGlobalStep(_AccumulatorOp):
    """Say at which step training is: gradients of earlier ones are dropped."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        _check_integer("new_global_step", inputs[0])
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.accumulator.set_step_now(int(inputs[0]))
        return ()


@dataclass(frozen=True, eq=False)
class AccumulatorCount(_AccumulatorOp):
    """The number of gradients that were added since the last take, as int32."""

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.int32(self.accumulator.statistics().accumulated)


def _check_integer(what: str, spec: Any) -> None:
    if spec.dtype.kind not in "iu" or spec.shape not in ((), None):
        raise TypeError(f"{what} must be an integer scalar; got {spec}.")


class _Accumulator(NamedResource):
    """The base of both accumulators."""

    def __init__(self, total: Total, dtype: Any, shape: Any, name: str, reduction_type: str) -> None:
        self.dtype = as_dtype(dtype)
        self.shape = as_shape(shape)
        self.name = name
        self.place_here()
        self._reduction_type = reduction_type
        self.label = f"{type(self).__name__} {name!r}"
        if reduction_type not in ("MEAN", "SUM"):
            raise ValueError(f"{self.label}: reduction_type must be 'MEAN' or 'SUM'; got {reduction_type!r}.")
        if not is_differentiable(self.dtype):
            raise TypeError(f"{self.label}: gradients are floating-point numbers; got dtype {name_of(self.dtype)}.")
        self._state = AccumulatorState(total, reduction_type == "MEAN")
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        shape = None if self.shape is None else list(self.shape)
        return {"dtype": name_of(self.dtype), "shape": shape, "reduction_type": self._reduction_type}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Any:
        make: Any = cls
        return make(**definition, name=name)

    def check_specs(self, specs: Sequence[Any]) -> None:
        """Refuse gradients that can't fit.

        Raises:
            ValueError, TypeError: one does not.
        """
        raise NotImplementedError

    def result_specs(self) -> tuple[TensorSpec, ...]:
        """Return the specs of what a take gives."""
        raise NotImplementedError

    def check_values(self, parts: Sequence[Any]) -> Any:
        """Return the parts of a gradient in the form that is added up; they must fit."""
        raise NotImplementedError

    def apply_now(self, parts: Sequence[Any], local_step: int) -> None:
        """Add a gradient; what `apply_grad` builds does this."""
        check_held(self)
        gradient = self.check_values(parts)
        with self._gate.lock:
            try:
                self._state.apply(gradient, local_step)
            except ValueError as error:
                raise ValueError(f"{self.label}: {error}.") from None

    def taking(self, required: int) -> Request:
        """Return the request for the result of so many gradients."""
        check_held(self)
        if required < 1:
            raise ValueError(f"{self.label}: num_required must be at least 1; got {required}.")
        state = self._state
        return Request(self._gate, lambda: state.take(required), state.withdraw, self._describe)

    def set_step_now(self, step: int) -> None:
        """Set the step; what `set_global_step` builds does this."""
        check_held(self)
        with self._gate.lock:
            self._state.set_global_step(step)

    def statistics(self) -> AccumulatorStatistics:
        """Return what the accumulator holds and what it has done."""
        check_held(self)
        with self._gate.lock:
            return self._state.statistics()

    def _describe(self, attempt: Attempt) -> str:
        found = self._state.statistics()
        return (
            f"take_grad of {attempt.count} gradients from {self.label}, which holds {found.accumulated}; "
            f"{found.dropped} came too late and were dropped."
        )

    @entering_graphs
    def _apply(self, parts: Sequence[Any], local_step: Any, name: str | None) -> Any:
        if not in_explicit_graph():
            arrays = [*[as_array(part) for part in parts[:-1]], self._value(parts[-1])]
            step = as_array(local_step)
            AccumulatorApply(self).infer(*[TensorSpec(array.shape, array.dtype) for array in (*arrays, step)])
            if self.home is not None:
                build = self.adding(AccumulatorApply(self))
                self.home.run("apply_grad", build, [*arrays, step], is_repeatable=False)
                return None
            return self.apply_now(arrays, int(step))
        value = parts[-1] if holds_tensors(parts[-1]) else self._value(parts[-1])
        tensors = [convert_to_tensor(part) for part in (*parts[:-1], value, local_step)]
        return graph_for(tensors).add(AccumulatorApply(self), tensors, name or f"{self.name}/apply_grad")

    def _value(self, value: Any) -> Any:
        """Return values of a gradient as an array; Python's numbers take the accumulator's dtype."""
        return as_array(value) if is_numpy(value) else as_array(value, self.dtype)

    @entering_graphs
    def _take(self, num_required: Any, name: str | None) -> Sequence[Any]:
        if not in_explicit_graph():
            if self.home is not None:
                count = np.asarray(int(num_required))
                found = self.home.run("take_grad", self.adding(AccumulatorTake(self)), [count], is_repeatable=False)
                return [Value(as_scalar_or_array(part)) for part in found]
            result = self.taking(int(num_required)).wait()
            parts = result if len(self.result_specs()) > 1 else [result]
            return [Value(as_scalar_or_array(part)) for part in parts]
        count = convert_to_tensor(num_required)
        return graph_for([count]).add(AccumulatorTake(self), [count], name or f"{self.name}/take_grad").outputs

    @entering_graphs
    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Any:
        """Say at which step training is. Gradients of earlier steps are dropped; each take adds 1 by itself."""
        if not in_explicit_graph():
            if self.home is not None:
                step = np.asarray(int(new_global_step))
                self.home.run("set_global_step", self.adding(AccumulatorSetGlobalStep(self)), [step])
                return None
            return self.set_step_now(int(new_global_step))
        step = convert_to_tensor(new_global_step)
        label = name or f"{self.name}/set_global_step"
        return graph_for([step]).add(AccumulatorSetGlobalStep(self), [step], label)

    def num_accumulated(self, name: str | None = None) -> Any:
        """Return how many gradients were added since the last take."""
        if not in_explicit_graph():
            if self.home is not None:
                return int(self.home.run("num_accumulated", self.adding(AccumulatorCount(self)))[0])
            return self.statistics().accumulated
        return get_default_graph().add(AccumulatorCount(self), [], name or f"{self.name}/num_accumulated").outputs[0]

    def __repr__(self) -> str:
        return f"<{self.label}>"


class ConditionalAccumulator(_Accumulator):
    """Adds up dense gradients until enough of them have come in.

    Args:
        dtype: of the gradients, a floating-point type.
        shape: of the gradients, as far as it is known.
        name: for messages, and the names of the operations.
        reduction_type: "MEAN" or "SUM" of all gradients that were added, which may be more than were required.

    Like a queue's, its methods build operations where a graph is being built, and act at once from plain Python.

    >>> import anabranch as ab
    >>> accumulator = ab.queues.ConditionalAccumulator("float32", (2,))
    >>> for step, gradient in [(0, [1.0, 2.0]), (0, [3.0, 4.0])]:
    ...     accumulator.apply_grad(gradient, local_step=step)
    >>> accumulator.take_grad(2)
    Tensor([2., 3.], dtype=float32)
    >>> accumulator.apply_grad([9.0, 9.0], local_step=0)
    >>> accumulator.statistics().dropped
    1
    """

    kind = "conditional_accumulator"

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(DenseTotal(), dtype, shape, name, reduction_type)

    def check_specs(self, specs: Sequence[Any]) -> None:
        (spec,) = specs
        if spec.dtype != self.dtype:
            raise TypeError(f"{self.label} takes {name_of(self.dtype)}; got a gradient {spec}.")
        if not shapes_compatible(self.shape, spec.shape):
            raise ValueError(f"{self.label} has shape {shape_text(self.shape)}; got a gradient {spec}.")

    def check_values(self, parts: Sequence[Any]) -> Any:
        (gradient,) = parts
        if not shape_accepts(self.shape, gradient.shape):
            got = shape_text(gradient.shape)
            raise ValueError(f"{self.label} has shape {shape_text(self.shape)}; got a gradient of shape {got}.")
        return gradient

    def result_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.shape, self.dtype),)

    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Any:
        """Add a gradient, unless it is stale: computed at a step before the accumulator's.

        Args:
            grad: a tensor or array.
            local_step: the step at which it was computed.
            name: of the operation.

        Returns:
            The operation; None from plain Python.
        """
        return self._apply([grad], local_step, name)

    def take_grad(self, num_required: Any, name: str | None = None) -> Any:
        """Take the mean (or sum) of the gradients, once at least `num_required` were added; wait for them.

        It starts again empty, at the next step.
        """
        return self._take(num_required, name)[0]


class SparseConditionalAccumulator(_Accumulator):
    """Adds up gradients that are rows of a table.

    Args:
        dtype, name: as for `ConditionalAccumulator`.
        shape: of the whole table, as far as it is known. If the number of rows is not, the gradients may give it; the
            result's is -1 if none did. Positions that count from the end need it.
        reduction_type: "MEAN" or "SUM", as a dense accumulator would give it: a row that only some gradients have
            counts as zero in the others. (TensorFlow's divides each row by the number of gradients that had it.)

    >>> import anabranch as ab
    >>> accumulator = ab.queues.SparseConditionalAccumulator("float32", (4, 1), reduction_type="SUM")
    >>> accumulator.apply_grad([3, 1], [[1.0], [2.0]])
    >>> accumulator.apply_grad([3], [[5.0]])
    >>> accumulator.take_grad(2)
    (Tensor([1, 3], dtype=int64), Tensor([[2.],
            [6.]], dtype=float32), Tensor([4, 1], dtype=int32))
    """

    kind = "sparse_conditional_accumulator"

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(SparseTotal(), dtype, shape, name, reduction_type)
        if self.shape == ():
            raise ValueError(
                f"{self.label}: shape is that of the whole table, with at least one axis; got {shape_text(self.shape)}."
            )
        self._row_shape = None if self.shape is None else self.shape[1:]
        self._is_open = self.shape is None or None in self.shape

    def check_specs(self, specs: Sequence[Any]) -> None:
        indices, values = specs[0], specs[-1]
        if indices.dtype.kind not in "iu" or values.dtype != self.dtype:
            raise TypeError(f"{self.label} takes integer indices and {name_of(self.dtype)}; got {indices}, {values}.")
        if any(whole.dtype.kind not in "iu" or not shapes_compatible((None,), whole.shape) for whole in specs[1:-1]):
            raise TypeError(f"{self.label}: the shape of a gradient is a vector of integers; got {specs[1]}.")
        fits = shapes_compatible((None,), indices.shape) and shapes_compatible(self._values_shape, values.shape)
        if not fits:
            raise self._misfit(indices.shape, values.shape)

    def check_values(self, parts: Sequence[Any]) -> Any:
        indices, values = parts[0], parts[-1]
        fits = indices.ndim == 1 and values.ndim > 0 and len(indices) == len(values)
        if not fits or not shape_accepts(self._values_shape, values.shape):
            raise self._misfit(indices.shape, values.shape)
        whole = self._whole(parts[1] if self._is_open else (), values.shape)
        if whole[0] is None and (indices < 0).any():
            raise IndexError(
                f"{self.label}: index {int(indices.min())} counts from the end of a table whose number of rows is not "
                "known. Declare it with shape=, or give grad_shape."
            )
        rows = whole[0]
        wrong = indices[:0] if rows is None else indices[(indices < -rows) | (indices >= rows)]
        if wrong.size:
            raise IndexError(f"{self.label}: index {int(wrong[0])} is out of range for a table of {rows} rows.")
        from_start: Any = np.where(indices < 0, indices + (rows or 0), indices)
        positions = np.array(from_start, "int64")
        return positions, values, np.array([-1 if dim is None else dim for dim in whole], "int32")

    def _whole(self, fed: Any, values_shape: Sequence[int]) -> tuple[int | None, ...]:
        """Return the shape of the table; None for a number of rows that is not known.

        Args:
            fed: the shape that came with the gradient, -1 for what is not known; empty if none came.
            values_shape: of the gradient's rows.
        """
        declared = self.shape[0] if self.shape else None
        given = tuple([None if dim < 0 else int(dim) for dim in fed]) or (declared, *values_shape[1:])
        if not shapes_compatible(self.shape, given) or not shapes_compatible(given[1:], tuple(values_shape[1:])):
            raise ValueError(
                f"{self.label} has shape {shape_text(self.shape)}; got a gradient of {given}, with values of shape "
                f"{shape_text(tuple(values_shape))}."
            )
        return (given[0] if declared is None else declared, *values_shape[1:])

    @property
    def _values_shape(self) -> Shape:
        return None if self._row_shape is None else (None, *self._row_shape)

    def _misfit(self, indices: Any, values: Any) -> ValueError:
        return ValueError(
            f"{self.label} takes indices of shape [n] and values of shape {shape_text(self._values_shape)}; got "
            f"{shape_text(indices)} and {shape_text(values)}."
        )

    def result_specs(self) -> tuple[TensorSpec, ...]:
        rank = None if self.shape is None else len(self.shape)
        values = TensorSpec(self._values_shape, self.dtype)
        return TensorSpec((None,), dtypes.int64), values, TensorSpec((rank,), dtypes.int32)

    def apply_grad(
        self, grad_indices: Any, grad_values: Any, grad_shape: Any = None, local_step: Any = 0, name: str | None = None
    ) -> Any:
        """Add rows, unless the gradient is stale.

        Args:
            grad_indices: ``(n,)`` integers, the positions of the rows; a row may be named several times.
            grad_values: ``(n, ...)``, the rows.
            grad_shape: of the whole table; must fit the accumulator's.
            local_step: the step at which the gradient was computed.
            name: of the operation.
        """
        if isinstance(grad_shape, (Value, Variable)) and not in_explicit_graph():
            grad_shape = as_array(grad_shape).tolist()
        if not holds_tensors(grad_shape) and grad_shape is not None:
            whole = as_shape(grad_shape)
            if not shapes_compatible(self.shape, whole):
                got = tuple(grad_shape)
                raise ValueError(f"{self.label} has shape {shape_text(self.shape)}; got a gradient of {got}.")
            grad_shape = np.array([-1 if dim is None else dim for dim in whole or ()], "int32")
        if grad_shape is None:
            grad_shape = np.zeros(0, "int32")
        parts = [grad_indices, grad_shape, grad_values] if self._is_open else [grad_indices, grad_values]
        return self._apply(parts, local_step, name)

    def apply_indexed_slices_grad(self, grad: IndexedSlices, local_step: Any = 0, name: str | None = None) -> Any:
        """Apply as `apply_grad`, but what `gradients` gives of a table."""
        whole = grad.dense_shape if self._is_open else None
        return self.apply_grad(grad.indices, grad.values, whole, local_step, name)

    def take_grad(self, num_required: Any, name: str | None = None) -> tuple[Any, Any, Any]:
        """Take indices (ascending, each once), values and shape of the result; wait: see `ConditionalAccumulator`."""
        indices, values, shape = self._take(num_required, name)
        return indices, values, shape

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        """Take as `take_grad`, but as `IndexedSlices`."""
        indices, values, shape = self.take_grad(num_required, name)
        return IndexedSlices(values, indices, shape)
