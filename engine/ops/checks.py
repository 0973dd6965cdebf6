"""Ops that are there for their effect: `print`, the assertions, and `check_numerics`.

They run in program order, with each other and with `numpy_function`. In functions, loops and branches they always run;
in a graph that a session runs, where they are fetched, or where `control_dependencies` ask for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.nest import is_mapping, is_sequence
from ..common.quick_dataclass import dataclass
from ..graph.graph import graph_for
from ..graph.op import OUTSIDE_WORLD, Effect
from ..graph.spec import Shape, as_shape, broadcast_shapes, shape_accepts, shape_text, shapes_compatible
from ..graph.state.variable import Variable
from .base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_effect,
    as_array,
    convert_to_tensor,
    is_numpy,
    known_array,
    promote,
    runs_now,
)
from .text import numbers as text


class InvalidArgumentError(ValueError):
    """An assertion on values or shapes failed: what `assert_equal` and its like raise.

    The message says what was asserted, how often it does not hold, where first and with which values, and ends with
    the caller's own message.

    >>> import anabranch as ab
    >>> try:
    ...     ab.ops.assert_positive([1.0, -2.0], message="Rates.")
    ... except ab.ops.InvalidArgumentError as error:
    ...     str(error).partition(" x:")[0]
    'assert_positive: x > y does not hold for 1 of 2 elements, first at [1], where x is -2.0 and y is 0.0.'
    """


class _Effectful(Op):
    """Base: ops that are run in program order, and whether or not their results are used."""

    no_samples: ClassVar[str] = "gives no result: test_ops_checks"

    def infer(self, *inputs: Any) -> Any:
        return ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def effects(self) -> Iterable[Effect]:
        return (Effect(OUTSIDE_WORLD, writes=True),)


_FILE = "file://"

# --- print ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Print(_Effectful):
    """Write `parts`, with the values of the inputs between them, in one piece.

    Attributes:
        parts: the literal text.
        stream: "stdout", "stderr" (as they are when it runs), "file://path", or an object with ``write``.
        summarize: how many elements of each axis are shown at its start and at its end; -1 shows all.
    """

    parts: tuple[str, ...]
    stream: Any
    summarize: int

    def run(self, xp: Any, *inputs: Any) -> Any:
        line = text.filled(self.parts, inputs, self.summarize)
        if not isinstance(self.stream, str):
            self.stream.write(line)
        elif self.stream.startswith(_FILE):
            self._append(line)
        else:
            {"stdout": sys.stdout, "stderr": sys.stderr}[self.stream].write(line)
        return ()

    def _append(self, line: str) -> None:
        path = self.stream.removeprefix(_FILE)
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            error.add_note(f"Text can't be printed to {path!r}: make room there, or name another file.")
            raise


def print(
    *args: Any, summarize: int = 3, end: str = "\n", sep: str = " ", output_stream: Any = None
) -> Operation | None:
    """Print values when the program gets there (``tf.print``), in loops at each iteration.

    Args:
        *args: tensors, variables, arrays, lists, tuples and dicts of them, and anything else, printed as it is now.
        summarize: how many elements of each axis are shown at its start and at its end; -1 shows all.
        end: what is written at the end.
        sep: what stands between two arguments.
        output_stream: ``sys.stderr`` (the default, as in TensorFlow), ``sys.stdout``, ``"file://path"`` to append to
            a file, or an object with a method ``write``.

    Returns:
        The operation, to be fetched or named in `control_dependencies`; in functions, loops and branches it runs by
        itself. None outside of graphs, where it has run.

    >>> import sys
    >>> import anabranch as ab
    >>> @ab.function
    ... def double(x):
    ...     ab.ops.print("x is", x, output_stream=sys.stdout)
    ...     return x * 2
    >>> y = double(2.5)
    x is 2.5
    """
    parts, tensors = [""], list[Tensor]()
    for position, value in enumerate(args):
        literals, found = _printed(value, summarize, nested=False)
        parts[-1] += (sep if position else "") + literals[0]
        parts += literals[1:]
        tensors += found
    parts[-1] += end
    op = Print(tuple(parts), _named_stream(output_stream), summarize)
    return apply_effect(op, *tensors)


def _named_stream(stream: Any) -> Any:
    """Return the names of standard streams, so that those of the run count; other streams as they are."""
    if stream is None or stream is sys.stderr:
        return "stderr"
    if stream is sys.stdout:
        return "stdout"
    if isinstance(stream, str):
        if not stream.removeprefix(_FILE) or not stream.startswith(_FILE):
            raise ValueError(f"print: output_stream={stream!r} is no stream; a file is named as 'file://path'.")
        return stream
    if not callable(getattr(stream, "write", None)):
        raise TypeError(
            f"print: output_stream of type {type(stream).__name__} has no method 'write'. Pass sys.stdout, sys.stderr, "
            "'file://path' or an open file."
        )
    return stream


def _printed(value: Any, summarize: int, nested: bool) -> tuple[list[str], list[Tensor]]:
    """Return literal text, and the tensors that stand in its gaps."""
    if isinstance(value, (Tensor, Variable)):
        return ["", ""], [_printable(convert_to_tensor(value))]
    if is_numpy(value):
        return [text.shown(as_array(value), summarize)], []
    if is_mapping(value):
        return _enclosed("{", [(f"{key!r}: ", item) for key, item in value.items()], "}", summarize)
    if is_sequence(value):
        ends = "[]" if isinstance(value, list) else "()"
        closing = "," + ends[1] if ends == "()" and len(value) == 1 else ends[1]
        return _enclosed(ends[0], [("", item) for item in value], closing, summarize)
    return [repr(value) if nested else str(value)], []


def _enclosed(
    opening: str, items: Sequence[tuple[str, Any]], closing: str, summarize: int
) -> tuple[list[str], list[Tensor]]:
    parts, tensors = [opening], list[Tensor]()
    for position, (label, item) in enumerate(items):
        literals, found = _printed(item, summarize, nested=True)
        parts[-1] += (", " if position else "") + label + literals[0]
        parts += literals[1:]
        tensors += found
    parts[-1] += closing
    return parts, tensors


def _printable(tensor: Tensor) -> Tensor:
    if not isinstance(tensor.spec, TensorSpec):
        raise TypeError(f"print: {tensor!r} can't be printed; stack a TensorArray first.")
    return tensor


# --- assertions -----------------------------------------------------------------------------------------------------

_RELATIONS = {
    "==": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _with_message(what: str, message: str | None) -> str:
    return f"{what} {message}" if message else what


@dataclass(frozen=True)
class AssertRelation(_Effectful):
    """Fail unless a relation holds between all elements of two inputs, which broadcast.

    Attributes:
        name: of the public function, for the error's text.
        relation: one of ``==``, ``<``, ``<=``, ``>``, ``>=``.
        message: the caller's own words.
        summarize: how much of the inputs the error shows.
    """

    name: str
    relation: str
    message: str | None
    summarize: int

    def infer(self, *inputs: Any) -> Any:
        x, y = inputs
        if x.dtype.kind == "c" and self.relation != "==":
            raise TypeError(f"{self.name} takes real numbers; got {x}. Complex numbers have no order.")
        try:
            broadcast_shapes(x.shape, y.shape)
        except ValueError as error:
            raise InvalidArgumentError(_with_message(f"{self.name}: {error}", self.message)) from None
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, y = inputs
        holds = np.asarray(_RELATIONS[self.relation](x, y))
        if holds.all():
            return ()
        raise InvalidArgumentError(_with_message(self._failure(x, y, holds), self.message))

    def _failure(self, x: Any, y: Any, holds: Any) -> str:
        first = int(np.argmin(holds.ravel()))
        left, right = [text.items_of(np.broadcast_to(value, holds.shape))[first] for value in (x, y)]
        if not holds.ndim:
            return f"{self.name}: x {self.relation} y does not hold; x is {left!r} and y is {right!r}."
        return (
            f"{self.name}: x {self.relation} y does not hold for {holds.size - int(holds.sum())} of {holds.size} "
            f"elements, first at {text.position_of(first, holds.shape)}, where x is {left!r} and y is {right!r}. "
            f"x: {text.shown(x, self.summarize)}, y: {text.shown(y, self.summarize)}."
        )


@dataclass(frozen=True)
class AssertTrue(_Effectful):
    """Fail unless all elements of the first input are true. The error shows the other inputs."""

    message: str | None
    summarize: int

    def infer(self, *inputs: Any) -> Any:
        if inputs[0].dtype != dtypes.bool_:
            raise TypeError(f"assert_true takes a condition of dtype bool; got {inputs[0]}. Compare it with something.")
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        condition, data = np.asarray(inputs[0]), inputs[1:]
        if condition.all():
            return ()
        first = int(np.argmin(condition.ravel()))
        place = f" at {text.position_of(first, condition.shape)}" if condition.ndim else ""
        values = "; ".join(text.shown(value, self.summarize) for value in data)
        what = f"assert_true: the condition is false{place}." + (f" Data: {values}." if data else "")
        raise InvalidArgumentError(_with_message(what, self.message))


@dataclass(frozen=True)
class AssertShape(_Effectful):
    """Fail unless the shape of the input is `shape`, or its rank is one of `ranks`. A shape that is known is checked
    when the operation is built."""

    shape: Shape
    ranks: tuple[int, ...] | None
    message: str | None

    def infer(self, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape is None:
            return ()
        if self.ranks is not None and len(x.shape) not in self.ranks:
            self._fail(x.shape)
        if self.ranks is None and not shapes_compatible(self.shape, x.shape):
            self._fail(x.shape)
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        shape = tuple(inputs[0].shape)
        fits = shape_accepts(self.shape, shape) if self.ranks is None else len(shape) in self.ranks
        return () if fits else self._fail(shape)

    def _fail(self, shape: Shape) -> None:
        if self.ranks is None:
            what = f"assert_shape: expected shape {shape_text(self.shape)}, got {shape_text(shape)}."
        else:
            wanted = " or ".join(str(rank) for rank in self.ranks)
            what = f"assert_rank: expected rank {wanted}, got rank {len(shape or ())} (shape {shape_text(shape)})."
        raise InvalidArgumentError(_with_message(what, self.message))


def _asserted(op: Op, name: str, *tensors: Tensor) -> Operation | None:
    """Return the assertion. On constants it is tried at once, except in loops and branches, which may never run."""
    if runs_now(tensors):
        return apply_effect(op, *tensors)
    graph = graph_for(tensors)
    values = [known for known in map(known_array, tensors) if known is not None]
    operation = graph.add(op, tensors, name)
    if graph.parent is None and len(values) == len(tensors):
        op.run(np, *values)
    return operation


def _related(
    name: str, relation: str, x: TensorLike, y: TensorLike, message: str | None, summarize: int
) -> Operation | None:
    return _asserted(AssertRelation(name, relation, message, summarize), name, *promote(x, y))


def assert_equal(x: TensorLike, y: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x == y`` for all elements; the two broadcast, and NaN equals nothing.

    Args:
        x: numbers or strings.
        y: what they are compared with.
        message: the end of the error's text.
        summarize: how much of the values the error shows: elements at the start and end of each axis, -1 for all.

    Returns:
        The operation, to be fetched or named in `control_dependencies`; in functions, loops and branches it runs by
        itself. None outside of graphs, where it has run.

    Raises:
        InvalidArgumentError: it does not hold. Of values and constants at once, otherwise when the program runs.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     check = ab.ops.assert_equal([1, 2, 3], [1, 5, 3], message="Labels differ.")
    Traceback (most recent call last):
    ...
    anabranch.engine.ops.checks.InvalidArgumentError: assert_equal: x == y does not hold for 1 of 3 elements, first at \
[1], where x is 2 and y is 5. x: [1 2 3], y: [1 5 3]. Labels differ.
    """
    return _related("assert_equal", "==", x, y, message, summarize)


def assert_less(x: TensorLike, y: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x < y`` for all elements; as `assert_equal`."""
    return _related("assert_less", "<", x, y, message, summarize)


def assert_less_equal(x: TensorLike, y: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x <= y`` for all elements; as `assert_equal`."""
    return _related("assert_less_equal", "<=", x, y, message, summarize)


def assert_greater(x: TensorLike, y: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x > y`` for all elements; as `assert_equal`."""
    return _related("assert_greater", ">", x, y, message, summarize)


def assert_greater_equal(
    x: TensorLike, y: TensorLike, message: str | None = None, summarize: int = 3
) -> Operation | None:
    """Fail unless ``x >= y`` for all elements; as `assert_equal`."""
    return _related("assert_greater_equal", ">=", x, y, message, summarize)


def assert_positive(x: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x > 0`` for all elements; as `assert_equal`."""
    return _related("assert_positive", ">", x, 0, message, summarize)


def assert_non_negative(x: TensorLike, message: str | None = None, summarize: int = 3) -> Operation | None:
    """Fail unless ``x >= 0`` for all elements; as `assert_equal`."""
    return _related("assert_non_negative", ">=", x, 0, message, summarize)


def assert_true(
    condition: TensorLike, data: Sequence[TensorLike] = (), message: str | None = None, summarize: int = 3
) -> Operation | None:
    """Fail unless all elements of a bool tensor are true (``tf.debugging.Assert``); as `assert_equal`.

    Args:
        condition: bools of any shape.
        data: tensors whose values the error shows.
        message: the end of the error's text.
        summarize: how much of the values the error shows.
    """
    tensors = [convert_to_tensor(value) for value in (condition, *data)]
    return _asserted(AssertTrue(message, summarize), "assert_true", *tensors)


def assert_rank(x: TensorLike, rank: int | Sequence[int], message: str | None = None) -> Operation | None:
    """Fail unless `x` has `rank` axes, or as many as one of several ranks.

    Raises:
        InvalidArgumentError: it has not; at once where the rank is known, otherwise when the program runs.
    """
    ranks: tuple[Any, ...] = tuple(rank) if is_sequence(rank) else (rank,)
    if not ranks or not all(isinstance(item, (int, np.integer)) and item >= 0 for item in ranks):
        raise ValueError(f"assert_rank: a rank is a non-negative integer, or several; got {rank!r}.")
    tensor = convert_to_tensor(x)
    return apply_effect(AssertShape(None, ranks, message), tensor, name="assert_rank")


def assert_shape(x: TensorLike, shape: Any, message: str | None = None) -> Operation | None:
    """Fail unless `x` has `shape`, in which None stands for any size.

    Raises:
        InvalidArgumentError: it has not; at once where the shape is known, otherwise when the program runs.
    """
    tensor = convert_to_tensor(x)
    return apply_effect(AssertShape(as_shape(shape), None, message), tensor)


# --- NaN and infinity -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckNumerics(_Effectful):
    """The input itself; fails if it has a NaN or an infinity. So does its gradient."""

    message: str
    view: ClassVar[bool] = True
    no_samples: ClassVar[str] = ""

    def infer(self, *inputs: Any) -> Any:
        (x,) = inputs
        if not x.differentiable:
            raise TypeError(f"check_numerics takes floating-point or complex numbers; got {x}, which is always finite.")
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        finite = xp.isfinite(x)
        if finite.all():
            return x
        if not x.ndim:
            raise ArithmeticError(f"{self.message}: the value is {x}.")
        nan, first = int(np.isnan(x).sum()), int(np.argmin(np.asarray(finite).ravel()))
        infinite = int(finite.size - finite.sum()) - nan
        counts = [f"{count} {name}" for count, name in ((nan, "NaN"), (infinite, "infinite")) if count]
        raise ArithmeticError(
            f"{self.message}: {' and '.join(counts)} of {finite.size} elements, first at "
            f"{text.position_of(first, x.shape)}."
        )

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        mark = " (in the gradient)"
        return (apply(CheckNumerics(self.message.removesuffix(mark) + mark), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[0.5, -2.0, 1e4]], "float32")
        yield Sample(cls("x"), [x], x, label="matrix")
        yield Sample(cls("x"), [np.float32(1.5)], np.float32(1.5), label="0-d")
        yield Sample(cls("x"), [x[:0]], x[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x = np.array([[1, 2, np.inf], [np.nan, np.nan, -np.inf]], "float32")
        found = r"loss: 2 NaN and 2 infinite of 6 elements, first at \[0, 2\]"
        yield ErrorSample(lambda: cls("loss").run(np, x), ArithmeticError, found, "both")
        yield ErrorSample(lambda: cls("x").run(np, x[0, 2]), ArithmeticError, "x: the value is inf", "0-d")
        yield ErrorSample(lambda: check_numerics([1], "x"), TypeError, r"floating-point .* int32\[1\]", "integers")


def check_numerics(x: TensorLike, message: str = "check_numerics") -> Tensor:
    """Return `x`, but fail at run time if it holds a NaN or an infinity; its gradient is checked too.

    Args:
        x: floating-point or complex numbers.
        message: the start of the error's text: what `x` is.

    Raises:
        TypeError: `x` is of another dtype.
        ArithmeticError: at run time, with the number of NaNs and infinities and the position of the first.

    >>> import anabranch as ab
    >>> ab.ops.check_numerics([1.0, 2.0], "weights")
    Tensor([1., 2.], dtype=float32)
    """
    return apply(CheckNumerics(message), convert_to_tensor(x))


__all__ = [
    "InvalidArgumentError",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_less",
    "assert_less_equal",
    "assert_non_negative",
    "assert_positive",
    "assert_rank",
    "assert_shape",
    "assert_true",
    "check_numerics",
    "print",
]
