"""The primitives of dynamic dataflow, by hand.

`anabranch.raw` builds what loops and branches across devices are lowered to. A branch is a Switch for each value that
it takes, and a Merge for each result. A loop variable is Enter, Merge, Switch, NextIteration and Exit: graphs are
append-only, so the edge back is given last, as the Merge `into` which NextIteration hands its value.

There are no gradients, nothing is optimised, and only the dataflow machine runs these steps (`Session.run`). Use
`anabranch.cond` and `anabranch.while_loop` unless the primitives themselves are what is wanted.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 4.1. Names and orders
of arguments are those of TensorFlow's `raw_ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from ...common import dtypes
from ...common.nest import is_integer, is_sequence, is_text
from ...common.quick_dataclass import dataclass
from ...graph.graph import graph_for
from ...graph.spec import Spec, TensorSpec, shapes_compatible
from ...graph.tensor import Symbol
from ..base import Op, Operation, Tensor, TensorLike, convert_to_tensor


class SwitchOutputs(NamedTuple):
    """The results of `switch`: one of the two is alive, the other one dead.

    >>> import anabranch as ab
    >>> x, chosen = ab.placeholder((3,), "float32"), ab.placeholder((), "bool")
    >>> sides = ab.raw.switch(x, chosen)
    >>> sides.output_true.shape
    (3,)
    """

    output_false: Tensor
    output_true: Tensor


class MergeOutputs(NamedTuple):
    """The results of `merge`: a value, and which of the inputs it was.

    >>> import anabranch as ab
    >>> x = ab.placeholder((3,), "float32")
    >>> merged = ab.raw.merge([x, x + 1.0])
    >>> merged.output.shape, merged.value_index.dtype
    ((3,), dtype('int32'))
    """

    output: Tensor
    value_index: Tensor


# --- the ops --------------------------------------------------------------------------------------------------------


class RawOp(Op):
    """Base: ops that are not computations, but say where values go."""

    no_samples: ClassVar[str] = "is run by the dataflow machine alone: test_raw"
    view = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        raise RuntimeError(
            f"raw.{self.type_name} can't be run here: the primitives of dataflow are run by the dataflow machine (by "
            "Session.run and functions) alone, and not inside loops or branches. Build those with ab.cond and "
            "ab.while_loop."
        )

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        raise LookupError(
            f"raw.{self.type_name} {node.name!r} has no gradient (defined at {node.location}): one belongs to a whole "
            "loop or branch, and not to its parts. Build it with ab.cond or ab.while_loop, which have gradients."
        )


@dataclass(frozen=True)
class Switch(RawOp):
    """Inputs: data, pred. Outputs: data if pred is false, data if it is true; the other one is dead."""

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        data, pred = inputs
        _check_pred("switch", pred)
        return data, data


@dataclass(frozen=True)
class Merge(RawOp):
    """Inputs: one or more of one kind. Outputs: the first that is alive, and its number."""

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        first: Any = inputs[0]
        joined = first
        for position, spec in enumerate(inputs):
            if not _same_kind(first, spec):
                raise TypeError(
                    f"raw.merge: all inputs must have one dtype, got {first} for input 0 and {spec} for input "
                    f"{position}. Cast one of them with ops.cast."
                )
            joined = joined.join(spec)
        return joined, TensorSpec((), dtypes.int32)


@dataclass(frozen=True)
class Enter(RawOp):
    """Input: data of the frame around. Output: the same in the first iteration of a frame, or in all of them.

    Attributes:
        frame_name: which frame; there is one of the name in each frame around.
        is_constant: whether all iterations have the value.
        parallel_iterations: how many iterations may be alive at once.
    """

    frame_name: str
    is_constant: bool = False
    parallel_iterations: int = 10

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0]


@dataclass(frozen=True)
class Exit(RawOp):
    """Input: data of a frame. Output: the same in the frame around, from the iteration in which it is alive."""

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0]


@dataclass(frozen=True)
class NextIteration(RawOp):
    """Input: data. Output: the same in the next iteration.

    Attributes:
        into: the output of the Merge which takes it there, built before what is handed on.
    """

    into: Symbol | None = None

    def infer(self, *inputs: Any) -> Spec:
        (data,) = inputs
        if self.into is not None and not self.into.spec.accepts(data):
            raise _not_taken(self.into, data)
        return data


@dataclass(frozen=True)
class LoopCond(RawOp):
    """Input: a bool. Output: the same, as what says on all devices whether a loop goes on."""

    def infer(self, *inputs: Any) -> Spec:
        _check_pred("loop_cond", inputs[0])
        return inputs[0]


def _check_pred(name: str, spec: Spec) -> None:
    if not isinstance(spec, TensorSpec) or spec.dtype != dtypes.bool_ or not shapes_compatible(spec.shape, ()):
        raise TypeError(f"raw.{name}: pred must be a scalar bool, got {spec}. Use ops.any or ops.all, or a comparison.")


def _same_kind(one: Spec, other: Spec) -> bool:
    return type(one) is type(other) and one.dtype == other.dtype


def _not_taken(into: Symbol, data: Spec) -> TypeError:
    if not _same_kind(into.spec, data):
        remedy = "Cast it with ops.cast."
    else:
        remedy = "Enter the loop with a value whose shape is left open, such as a placeholder's."
    return TypeError(
        f"raw.next_iteration: {into.operation.name!r} (defined at {into.operation.location}) takes {into.spec}, and is "
        f"handed {data}. {remedy}"
    )


# --- building -------------------------------------------------------------------------------------------------------


def switch(data: TensorLike, pred: TensorLike, name: str | None = None) -> SwitchOutputs:
    """Return `data` on the side that `pred` chooses; the other side is dead, and so is what is computed from it.

    Args:
        data: any tensor.
        pred: scalar bool.
        name: the name of the operation.

    Returns:
        The named tuple (output_false, output_true), both like `data`.

    Raises:
        TypeError: `pred` is not a scalar bool.
        ValueError: it is built inside a loop or branch.

    >>> import anabranch as ab
    >>> x = ab.placeholder((3,), "float32")
    >>> no, yes = ab.raw.switch(x, ab.placeholder((), "bool"))
    >>> ab.raw.merge([no * 2.0, yes + 1.0]).output.shape
    (3,)
    """
    return SwitchOutputs(*_add(Switch(), name, convert_to_tensor(data), convert_to_tensor(pred)))


def merge(inputs: Sequence[TensorLike], name: str | None = None) -> MergeOutputs:
    """Return the first of `inputs` that is alive. It is dead if all of them are.

    Args:
        inputs: tensors of one dtype. At the head of a loop, what `enter` gives, alone: `next_iteration` adds the other.
        name: the name of the operation.

    Returns:
        The named tuple (output, value_index): the value, with the shape that all inputs have in common, and the
        position among `inputs` of the one that it was (scalar int32).

    Raises:
        TypeError: `inputs` is not a sequence, or the dtypes differ.
        ValueError: there are no inputs, or it is built inside a loop or branch.

    >>> import anabranch as ab
    >>> x, chosen = ab.placeholder((), "float32"), ab.placeholder((), "bool")
    >>> no, yes = ab.raw.switch(x, chosen)
    >>> merged = ab.raw.merge([no * 2.0, yes + 1.0])
    >>> ab.Session().run(merged.output, {x: 5.0, chosen: False})
    np.float32(10.0)
    """
    if not is_sequence(inputs):
        raise TypeError(f"raw.merge: inputs must be a list of tensors, got {inputs!r}.")
    if not inputs:
        raise ValueError("raw.merge: inputs is empty. Give it at least one tensor.")
    return MergeOutputs(*_add(Merge(), name, *[convert_to_tensor(value) for value in inputs]))


def enter(
    data: TensorLike,
    frame_name: str,
    is_constant: bool = False,
    parallel_iterations: int = 10,
    name: str | None = None,
) -> Tensor:
    """Return `data` inside a loop's frame, which is made when the first of its values is there.

    Args:
        data: any tensor of the frame around.
        frame_name: which frame; the same for all values that enter one loop.
        is_constant: whether it is the same in all iterations, rather than there in the first one only.
        parallel_iterations: how many iterations may be alive at once, the same for all values of a loop.
        name: the name of the operation.

    Raises:
        TypeError: `frame_name` is not text.
        ValueError: it is empty, `parallel_iterations` is less than 1, or it is built inside a loop or branch.

    >>> import anabranch as ab
    >>> i = ab.raw.merge([ab.raw.enter(0, "loop")]).output
    >>> done, more = ab.raw.switch(i, ab.raw.loop_cond(i < 10))
    >>> _ = ab.raw.next_iteration(more + 1, into=i)
    >>> ab.Session().run(ab.raw.exit(done))
    np.int32(10)
    """
    if not is_text(frame_name):
        raise TypeError(f"raw.enter: frame_name must be a string, got {frame_name!r}.")
    if not frame_name:
        raise ValueError("raw.enter: frame_name is empty. All values that enter one loop share a name.")
    if not is_integer(parallel_iterations) or parallel_iterations < 1:
        raise ValueError(f"raw.enter: parallel_iterations must be an integer from 1 on, got {parallel_iterations!r}.")
    op = Enter(frame_name, bool(is_constant), int(parallel_iterations))
    return _add(op, name, convert_to_tensor(data))[0]


def exit(data: TensorLike, name: str | None = None) -> Tensor:
    """Return `data` of a loop's frame, in the frame around it: the value that it has when it is not dead.

    Args:
        data: any tensor of the frame, alive in one iteration: the false side of a `switch`.
        name: the name of the operation.

    Raises:
        ValueError: it is built inside a loop or branch.

    >>> import anabranch as ab
    >>> i = ab.raw.merge([ab.raw.enter(0, "loop")]).output
    >>> done, more = ab.raw.switch(i, ab.raw.loop_cond(i < 5))
    >>> _ = ab.raw.next_iteration(more + 1, into=i)
    >>> ab.Session().run(ab.raw.exit(done))
    np.int32(5)
    """
    return _add(Exit(), name, convert_to_tensor(data))[0]


def next_iteration(data: TensorLike, into: Tensor | None = None, name: str | None = None) -> Tensor:
    """Return `data` in the next iteration, which is started by it.

    Args:
        data: any tensor of a loop's frame that is dead once the loop is over: computed from the true side of a
            `switch`.
        into: the output of the `merge` which takes it. (Without one, the result is for a `merge` that is built later.)
        name: the name of the operation.

    Raises:
        TypeError: `into` is not an output of `merge`, or of another dtype or shape.
        ValueError: `into` is handed something already, or it is built inside a loop or branch.

    A loop that counts to 10:

    >>> import anabranch as ab
    >>> i = ab.raw.merge([ab.raw.enter(0, "loop")]).output
    >>> done, more = ab.raw.switch(i, ab.raw.loop_cond(i < 10))
    >>> _ = ab.raw.next_iteration(more + 1, into=i)
    >>> ab.raw.exit(done).dtype
    dtype('int32')
    """
    merged = None if into is None else _checked_into(into)
    return _add(NextIteration(merged), name, convert_to_tensor(data))[0]


def loop_cond(pred: TensorLike, name: str | None = None) -> Tensor:
    """Return `pred` as the condition of a loop. A loop that spans devices needs one.

    Args:
        pred: scalar bool, of a loop's frame.
        name: the name of the operation.

    Raises:
        TypeError: `pred` is not a scalar bool.
        ValueError: it is built inside a loop or branch.

    >>> import anabranch as ab
    >>> i = ab.raw.merge([ab.raw.enter(0, "loop")]).output
    >>> done, more = ab.raw.switch(i, ab.raw.loop_cond(i * i < 30))
    >>> _ = ab.raw.next_iteration(more + 1, into=i)
    >>> ab.Session().run(ab.raw.exit(done))
    np.int32(6)
    """
    return _add(LoopCond(), name, convert_to_tensor(pred))[0]


def _checked_into(into: Any) -> Symbol:
    if not isinstance(into, Symbol) or not isinstance(into.operation.op, Merge) or into.index != 0:
        raise TypeError(
            f"raw.next_iteration: into must be what a merge gives, got {into!r}. Write into=raw.merge([...]).output."
        )
    known = back_edges(into.operation)
    if known:
        raise ValueError(
            f"raw.next_iteration: {into.operation.name!r} is handed the value of {known[0].name!r} already (defined at "
            f"{known[0].location}). Join the two with raw.merge, and hand on what that gives."
        )
    return into


def _add(op: RawOp, name: str | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    graph = graph_for(inputs)
    if graph.parent is not None:
        raise ValueError(
            f"raw.{op.type_name} is built inside a loop, a branch or a function's body, which the primitives of "
            "dataflow can't be part of. Build it outside, or use ab.cond and ab.while_loop."
        )
    return graph.add(op, inputs, name).outputs


def back_edges(merge: Operation) -> list[Operation]:
    """Return the `NextIteration` operations that were built `into` a Merge: they hand values to it."""
    later = merge.graph.operations[merge.index + 1 :]
    return [node for node in later if isinstance(node.op, NextIteration) and node.op.into is merge.outputs[0]]


__all__ = [
    "MergeOutputs",
    "SwitchOutputs",
    "enter",
    "exit",
    "loop_cond",
    "merge",
    "next_iteration",
    "switch",
]
