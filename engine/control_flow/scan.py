"""Loops over sequences: `scan`, `map_fn`, `foldl`, `foldr`, `fori_loop`, each a `while_loop` over TensorArrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.nest import flatten, is_integer, is_sequence, map_structure, pack_as
from ..common.quick_dataclass import dataclass
from ..graph.captured_values import losing_no_gradients
from ..graph.context import in_explicit_graph
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.op import ErrorSample, Op, Sample
from ..graph.region import Region
from ..graph.spec import TensorSpec, shape_text
from ..graph.state.lifting import Creations
from ..graph.tensor import Symbol, Tensor
from ..ops.arrays.creation import zeros
from ..ops.arrays.joining import concatenate, stack, unstack
from ..ops.arrays.shaping import reshape
from ..ops.arrays.shaping import shape as shape_of
from ..ops.base import apply, convert_to_tensor
from ..ops.checks import assert_true
from ..ops.containers.indexed_slices import dense
from ..ops.entrance import guard_entrances, symbol_in
from ..ops.run_time_shapes import runtime_shape
from .cond import cond
from .loop_variables import LoopVariables, as_arguments
from .region_op import check_takes, rebuild
from .tensor_array import TensorArray
from .while_loop import check_value, run_at_once, while_loop


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Any = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Carry a state along the first axis of `xs` (``keras.ops.scan``).

    Args:
        f: maps (carry, x) to (next carry, y).
        init: the first carry, a tensor or a structure.
        xs: a tensor or a structure of tensors with one common first axis, or None.
        length: the number of steps, needed without `xs`.
        reverse: run from the last element to the first; the ys keep the order of the xs.
        unroll: accepted for Keras's sake; the compiler decides.

    Returns:
        (last carry, ys stacked along a new first axis). For no steps the carry is `init`, and the ys have the sizes
        that `f` gives for `init` and an x of zeros.

    Raises:
        TypeError: `f` is not a function.
        ValueError: the lengths differ, or none is given. Lengths that are not known before are compared by the run.

    >>> import anabranch as ab
    >>> last, sums = ab.scan(lambda s, x: (s + x, s + x), 0.0, ab.constant([1.0, 2.0, 3.0]))
    >>> sums
    Tensor([1., 3., 6.], dtype=float32)
    """
    if not callable(f):
        raise TypeError(f"scan: f must be a function of (carry, x), got {f!r}.")
    if unroll is not False and unroll < 1:
        raise ValueError(f"scan: unroll must be at least 1, got {unroll}.")
    return _scan(f, init, xs, length, reverse, finds_sizes=True)


def _scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    finds_sizes: bool,
    name: str = "scan",
) -> tuple[Any, Any]:
    """Scan as `scan` does, by the name that errors of lengths give.

    Without `finds_sizes`, results of no steps have 0 for sizes found only in the run.
    """
    f = _with_dense_results(f)
    sequences = [convert_to_tensor(leaf) for leaf in flatten(xs)]
    steps = _length(name, sequences, length)
    if not isinstance(steps, Symbol) and symbol_in([init, sequences]) is None and not in_explicit_graph():
        found = run_at_once(lambda: _scan_values(f, init, xs, sequences, int(steps), reverse), "scan")
        if not isinstance(found, Symbol):
            return found
        with found.graph.entered():
            return _scan(f, init, xs, length, reverse, finds_sizes, name)
    inputs = [TensorArray(x.dtype, steps).unstack(of_length(x, steps)) for x in sequences]
    creations = Creations()
    with creations.replay():
        example, has_effects = _trace_outputs(f, init, xs, inputs)
    outputs = [TensorArray(leaf.dtype, steps, element_shape=leaf.shape) for leaf in flatten(example)]

    def body(i: Any, carry: Any, outputs: list[TensorArray]) -> Any:
        position = steps - 1 - i if reverse else i
        x = pack_as(xs, [array.read(position) for array in inputs])
        carry, y = f(carry, x)
        leaves = flatten(y)
        written = [array.write(position, leaf) for array, leaf in zip(outputs, leaves, strict=True)]
        return i + 1, carry, written

    def more(i: Any, *_: Any) -> Any:
        return i < steps

    with creations.replay():
        _, carry, outputs = while_loop(more, body, (0, init, outputs))
        rows = [array.stack() for array in outputs]
        if not finds_sizes:
            return carry, pack_as(example, rows)

        def first() -> list[Tensor]:
            return [convert_to_tensor(y) for y in flatten(f(init, pack_as(xs, [_zero_row(x) for x in sequences]))[1])]

        can_run = not has_effects and all(x.dtype.kind != "T" for x in sequences)
        return carry, pack_as(example, _of_sizes(rows, steps, first if can_run else None))


def _zero_row(x: Tensor) -> Tensor:
    sizes = shape_of(x)
    return zeros(sizes[1:], x.dtype)


def _of_sizes(rows: list[Tensor], steps: Any, first: Callable[[], list[Tensor]] | None) -> list[Tensor]:
    """Give stacked results their sizes, also those of no steps.

    Args:
        rows: the results, of which an array without elements has no more than their specs.
        steps: how many there are.
        first: gives results of one step, whose sizes serve where there are no steps; None if it must not be run.
    """
    open_rows = [x.shape is None or None in x.shape[1:] for x in rows]
    if (isinstance(steps, int) and steps > 0) or not any(open_rows):
        return rows

    def sizes_of(tensors: list[Tensor], start: int) -> list[Tensor]:
        return [runtime_shape(x)[start:] for x, is_open in zip(tensors, open_rows, strict=True) if is_open]

    def of_no_steps() -> list[Tensor]:
        if first is not None:
            return sizes_of(first(), 0)
        message = (
            "scan (or map_fn) made no step, so that the sizes of its results are not known: to find them, f would have "
            "to be run, but it has effects, or takes strings. Give the placeholders known sizes but for the first axis."
        )
        check = assert_true(False, message=message)
        assert check is not None  # in a graph
        with get_default_graph().control_dependencies([check]):
            return sizes_of(rows, 1)

    known = iter(cond(convert_to_tensor(steps) > 0, lambda: sizes_of(rows, 1), of_no_steps))
    return [_shaped(x, steps, next(known)) if is_open else x for x, is_open in zip(rows, open_rows, strict=True)]


def _shaped(rows: Tensor, steps: Any, sizes: Tensor) -> Tensor:
    if rows.shape is None:
        return reshape(rows, concatenate([reshape(convert_to_tensor(steps, "int32"), (1,)), sizes]))
    return reshape(rows, (steps, *[sizes[k] if dim is None else dim for k, dim in enumerate(rows.shape[1:])]))


def _scan_values(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, sequences: list[Tensor], steps: int, reverse: bool
) -> tuple[Any, Any]:
    """Return the scan over values, step by step."""
    structure: Any = (init,)
    carried = LoopVariables(_unchanged, structure, None, single=False)
    carry, ys = rebuild(structure, as_arguments(carried.inits))[0], list[Any]()
    rows = [unstack(x, steps) if steps else [] for x in sequences]
    for position in reversed(range(steps)) if reverse else range(steps):
        result = f(carry, pack_as(xs, [row[position] for row in rows]))
        if not ys:
            check_value(result)
        carry = rebuild(structure, as_arguments(carried.checked((result[0],), carried.specs)))[0]
        ys.append(result[1])
    if not ys:
        return carry, _no_results(f, init, xs, sequences)
    ordered = ys[::-1] if reverse else ys
    columns = zip(*[flatten(y) for y in ordered], strict=True)
    return carry, pack_as(ordered[0], [stack(list(column)) for column in columns])


def _unchanged(carry: Any) -> Any:
    return carry


def _no_results(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, sequences: list[Tensor]) -> Any:
    """Return the results of no step: `f` is traced for their dtypes and shapes."""
    with Graph().as_default(), losing_no_gradients():
        inputs = [TensorArray(x.dtype, 0).unstack(x) for x in sequences]
        example, _ = _trace_outputs(f, init, xs, inputs)
        specs = [(leaf.shape, leaf.dtype) for leaf in flatten(example)]
    return pack_as(example, [zeros((0, *[dim or 0 for dim in shape or ()]), dtype) for shape, dtype in specs])


def _with_dense_results(f: Callable[[Any, Any], object]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return `f` with tensors in the place of `IndexedSlices` in its second result: their fields can't be stacked."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        result = f(carry, x)
        if not is_sequence(result) or len(result) != 2:
            got = "one tensor" if isinstance(result, Tensor) else type(result).__name__
            raise TypeError(f"scan: f must return (carry, y), got {got}.")
        return result[0], dense(result[1])

    return step


ONE_ELEMENT = "It gets one element, which is a tuple where several tensors are given as one: lambda pair: f(*pair)."


def map_fn(f: Callable[..., Any], xs: Any, reverse: bool = False) -> Any:
    """Map `f` over the elements of `xs` along the first axis, and stack the results (``keras.ops.map``).

    Args:
        f: maps one element (a tensor, or the structure of `xs`) to a tensor or a structure of tensors.
        xs: a tensor or a structure of tensors with one common first axis.

    >>> import anabranch as ab
    >>> ab.map_fn(lambda x: x * x, ab.constant([1.0, 2.0]))
    Tensor([1., 4.], dtype=float32)
    """
    check_takes("map_fn: f", f, 1, ONE_ELEMENT)
    return _scan(lambda carry, x: (carry, f(x)), (), xs, None, reverse, finds_sizes=True, name="map_fn")[1]


def map_rows(f: Callable[..., Any], xs: Any) -> Any:
    """Map as `map_fn` does, for an `f` that may fail for zeros: without steps, sizes only known at run time are 0."""
    return _scan(lambda carry, x: (carry, f(x)), (), xs, None, reverse=False, finds_sizes=False)[1]


def foldl(f: Callable[[Any, Any], Any], xs: Any, initializer: Any = None) -> Any:
    """Apply `f` from the first element to the last: ``f(f(f(init, x0), x1), x2)``.

    Args:
        initializer: the first accumulator; by default the first element, and the fold starts at the second.
    """
    return _fold("foldl", f, xs, initializer, reverse=False)


def foldr(f: Callable[[Any, Any], Any], xs: Any, initializer: Any = None) -> Any:
    """Fold as `foldl` does, but from the last element to the first."""
    return _fold("foldr", f, xs, initializer, reverse=True)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any) -> Any:
    """Run ``for i in range(lower, upper): val = body_fun(i, val)`` (``keras.ops.fori_loop``)."""
    start, end = _bound("lower", lower), _bound("upper", upper)

    def more(i: Any, _: Any) -> Any:
        return i < end

    def step(i: Any, value: Any) -> Any:
        return i + 1, body_fun(i, value)

    return while_loop(more, step, (start, init_val))[1]


def _bound(name: str, value: Any) -> Tensor:
    tensor = convert_to_tensor(value)
    if not dtypes.is_integer(tensor.dtype) or tensor.shape not in ((), None):
        raise TypeError(f"fori_loop: {name} must be a scalar integer, got {tensor.spec}.")
    return convert_to_tensor(tensor, "int32")


def _fold(name: str, f: Callable[[Any, Any], Any], xs: Any, initializer: Any, reverse: bool) -> Any:
    sequences = [convert_to_tensor(leaf) for leaf in flatten(xs)]
    _length(name, sequences, None)
    if initializer is None:
        edge = -1 if reverse else 0
        initializer = pack_as(xs, [x[edge] for x in sequences])
        rest = slice(None, -1) if reverse else slice(1, None)
        xs = pack_as(xs, [x[rest] for x in sequences])
    return _scan(lambda carry, x: (f(carry, x), None), initializer, xs, None, reverse, finds_sizes=False)[0]


def _length(name: str, sequences: list[Tensor], length: Any) -> Any:
    """Return the number of steps: an int where it is known, else a scalar tensor."""
    if not sequences:
        if length is None:
            wanted = "xs or length" if name == "scan" else "a tensor in xs"
            raise ValueError(f"{name} needs {wanted}: nothing says how many steps to make.")
        return int(length) if is_integer(length) else length
    for x in sequences:
        if x.shape == ():
            raise ValueError(f"{name} runs over the first axis of xs, but {x!r} is a scalar.")
    static = {x.shape[0] for x in sequences if x.shape is not None and x.shape[0] is not None}
    if is_integer(length):
        static.add(int(length))
    if len(static) > 1:
        raise ValueError(f"{name}: the lengths of xs (and length) differ: {sorted(static)}.")
    if static:
        return static.pop()
    return shape_of(sequences[0])[0] if length is None else convert_to_tensor(length, "int32")


@dataclass(frozen=True)
class OfLength(Op):
    """Gives the first input, whose first axis must have the size in the second one; otherwise `message` is raised."""

    message: str = (
        "The lengths of xs (and length) differ: one is {length}, but a sequence has shape {shape}. Cut the longer ones "
        "with x[:n]."
    )
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, length = inputs
        if x.shape[:1] != (length,):
            raise ValueError(self.message.format(length=int(length), shape=shape_text(x.shape)))
        return x

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents[0], None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(3, 2)
        yield Sample(cls(), [x, np.int32(3)], x, (0,), label="matrix")
        yield Sample(cls(), [x[0], np.int32(2)], x[0], (0,), label="vector")
        yield Sample(cls(), [x[:0], np.int32(0)], x[:0], (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x, two = np.zeros((3, 1), "float32"), np.int32(2)
        yield ErrorSample(lambda: cls().run(np, x, two), ValueError, r"one is 2, but a sequence has shape \[3,1\]")
        yield ErrorSample(lambda: cls().run(np, np.float32(1), two), ValueError, r"has shape \[\]", "scalar")


def of_length(x: Tensor, steps: Any) -> Tensor:
    """Return `x`, whose length is compared by the run if it is not known before."""
    known = isinstance(steps, int) and x.shape is not None and x.shape[0] is not None
    if known or (isinstance(steps, Tensor) and steps is shape_of(x)[0]):
        return x
    return apply(OfLength(), x, convert_to_tensor(steps, "int32"))


def _as_carry(leaf: Any) -> Any:
    return leaf if isinstance(leaf, TensorArray) else convert_to_tensor(leaf)


def _trace_outputs(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, inputs: list[TensorArray]
) -> tuple[Any, bool]:
    """Trace `f` in a scratch region for the structure, dtypes and shapes of its second result, and its effects."""
    region = Region(get_default_graph(), "scan_shapes")
    with region.as_default():
        carry = map_structure(_as_carry, init)
        _, y = f(carry, pack_as(xs, [array.read(0) for array in inputs]))
        example = map_structure(convert_to_tensor, y)
    return example, any(operation.writes for operation in region.operations)


guard_entrances(globals(), __name__)
