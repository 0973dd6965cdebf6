"""The definitions of the ops on strings; `strings` has the functions that build them.

NumPy's strings live in host memory, so these run on NumPy whatever the device. None of them is differentiable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.row_states import State, mixed
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorSpec,
    as_scalar_or_array,
    broadcast_shapes,
    normalize_axis,
)
from . import numbers as text

_LOWER = "abcdefghijklmnopqrstuvwxyz"  # of ASCII: the module `string` compiles expressions as it is imported
_TO_LOWER = str.maketrans(_LOWER.upper(), _LOWER)
_TO_UPPER = str.maketrans(_LOWER, _LOWER.upper())
_WORDS = np.array([["Cat ", " dög"], ["", "Zoë"]], dtypes.string)


class _StringOp(Op):
    """Base: no gradient; the first input gives the shape."""

    def infer(self, *inputs: Any) -> TensorSpec | tuple[TensorSpec, ...]:
        return TensorSpec(inputs[0].shape, dtypes.string)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True)
class StringCase(_StringOp):
    """Each string in upper or lower case; `only_ascii` leaves other letters alone."""

    upper: bool
    only_ascii: bool = False
    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self.only_ascii:
            table = _TO_UPPER if self.upper else _TO_LOWER
            return text.each(lambda item: item.translate(table), inputs[0])
        return text.each(str.upper if self.upper else str.lower, inputs[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(True), [_WORDS], np.array([["CAT ", " DÖG"], ["", "ZOË"]], dtypes.string), label="upper")
        yield Sample(cls(False), [_WORDS], np.array([["cat ", " dög"], ["", "zoë"]], dtypes.string), label="lower")
        yield Sample(cls(True, True), [_WORDS[0]], np.array(["CAT ", " DöG"], dtypes.string), label="ascii")
        yield Sample(cls(True), [_WORDS[:0]], _WORDS[:0], label="empty")
        yield Sample(cls(False), [np.array("A", dtypes.string)], np.array("a", dtypes.string), label="0-d")


@dataclass(frozen=True)
class StringStrip(_StringOp):
    """Each string without the white space at its ends."""

    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        return text.each(str.strip, inputs[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), [_WORDS], np.array([["Cat", "dög"], ["", "Zoë"]], dtypes.string), label="words")
        yield Sample(cls(), [_WORDS[:0]], _WORDS[:0], label="empty")
        yield Sample(cls(), [np.array("\t a b \n", dtypes.string)], np.array("a b", dtypes.string), label="0-d")


@dataclass(frozen=True)
class StringLength(_StringOp):
    """The length of each string, as int32."""

    unit: str
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self.unit == "BYTE":
            return text.each(lambda item: len(item.encode()), inputs[0], dtypes.int32)
        return as_scalar_or_array(np.strings.str_len(inputs[0]).astype(dtypes.int32))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls("UTF8_CHAR"), [_WORDS], np.array([[4, 4], [0, 3]], "int32"), label="characters")
        yield Sample(cls("BYTE"), [_WORDS], np.array([[4, 5], [0, 4]], "int32"), label="bytes")
        yield Sample(cls("BYTE"), [_WORDS[:0]], np.zeros((0, 2), "int32"), label="empty")
        yield Sample(cls("UTF8_CHAR"), [np.array("ab", dtypes.string)], np.int32(2), label="0-d")


@dataclass(frozen=True)
class Substring(_StringOp):
    """Parts of the strings. Inputs: the strings, where the parts start, and their lengths."""

    unit: str
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(broadcast_shapes(*[spec.shape for spec in inputs]), dtypes.string)

    def run(self, xp: Any, *inputs: Any) -> Any:
        arrays = np.broadcast_arrays(*inputs)
        items, starts, sizes = [text.items_of(array) for array in arrays]
        parts = [text.substring(*part, self.unit) for part in zip(items, starts, sizes, strict=True)]
        return text.array_of(parts, arrays[0].shape)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        starts, two = np.array([1, -1], "int32"), np.int32(2)
        yield Sample(cls("UTF8_CHAR"), [_WORDS[0], starts, two], np.array(["at", "g"], dtypes.string), label="each")
        zoe = np.array("Zoë", dtypes.string)
        yield Sample(cls("BYTE"), [zoe, np.int32(2), two], np.array("ë", dtypes.string), label="bytes")
        yield Sample(cls("BYTE"), [zoe, np.int32(4), two], np.array("", dtypes.string), label="at the end")
        yield Sample(cls("UTF8_CHAR"), [_WORDS[:0], np.int32(9), two], _WORDS[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        zoe, op = np.array("Zoë", dtypes.string), cls("BYTE")
        yield ErrorSample(lambda: op.run(np, zoe, np.int32(5), np.int32(1)), ValueError, "position 5 is outside 'Zoë'")
        yield ErrorSample(lambda: op.run(np, zoe, np.int32(0), np.int32(3)), ValueError, "cut a character in two")
        yield ErrorSample(lambda: op.run(np, zoe, np.int32(0), np.int32(-1)), ValueError, "must not be negative")


@dataclass(frozen=True)
class StringJoin(_StringOp):
    """The strings of several inputs, which broadcast, one behind the other with a separator between them."""

    separator: str = ""
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(broadcast_shapes(*[spec.shape for spec in inputs]), dtypes.string)

    def run(self, xp: Any, *inputs: Any) -> Any:
        arrays = np.broadcast_arrays(*inputs)
        rows = zip(*[text.items_of(array) for array in arrays], strict=True)
        return text.array_of([self.separator.join(row) for row in rows], arrays[0].shape)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        a, b = np.array(["a", "b"], dtypes.string), np.array("c", dtypes.string)
        yield Sample(cls("-"), [a, b, a], np.array(["a-c-a", "b-c-b"], dtypes.string), label="three")
        yield Sample(cls(), [b, b], np.array("cc", dtypes.string), label="0-d")
        yield Sample(cls("-"), [a], a, label="one")
        yield Sample(cls("-"), [_WORDS[:0], a], _WORDS[:0], label="empty")


@dataclass(frozen=True)
class ReduceJoin(_StringOp):
    """Strings joined along axes, the first of `axes` first; None means all, in the order of their elements."""

    axes: tuple[int, ...] | None
    keepdims: bool = False
    separator: str = ""

    def infer(self, *inputs: Any) -> TensorSpec:
        shape = inputs[0].shape
        if shape is None:
            return TensorSpec(() if self.axes is None and not self.keepdims else None, dtypes.string)
        return TensorSpec(self._reduced(shape, self._axes(len(shape))), dtypes.string)

    def _axes(self, rank: int) -> list[int]:
        if self.axes is None:
            return list(range(rank))[::-1]
        axes = [normalize_axis(axis, rank) for axis in self.axes]
        if len(set(axes)) < len(axes):
            raise ValueError(f"reduce_join: axis={list(self.axes)} names an axis twice.")
        return axes

    def _reduced(self, shape: tuple[Any, ...], axes: list[int]) -> tuple[Any, ...]:
        dims = [1 if axis in axes else dim for axis, dim in enumerate(shape)]
        return tuple([dim for axis, dim in enumerate(dims) if self.keepdims or axis not in axes])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        axes = self._axes(x.ndim)
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        count = int(np.prod([x.shape[axis] for axis in axes], dtype=int))
        rows = int(np.prod([x.shape[axis] for axis in kept], dtype=int))
        table = x.transpose([*kept, *axes[::-1]]).reshape(rows, count).tolist()
        return text.array_of([self.separator.join(row) for row in table], self._reduced(x.shape, axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([["a", "b", "c"], ["d", "e", "f"]], dtypes.string)
        yield Sample(cls((0,), separator="+"), [x], np.array(["a+d", "b+e", "c+f"], dtypes.string), label="axis 0")
        yield Sample(cls((-1,), True), [x], np.array([["abc"], ["def"]], dtypes.string), label="keepdims")
        yield Sample(cls((0, 1)), [x], np.array("adbecf", dtypes.string), label="0 first")
        yield Sample(cls((1, 0)), [x], np.array("abcdef", dtypes.string), label="1 first")
        yield Sample(cls(None), [x], np.array("abcdef", dtypes.string), label="all")
        yield Sample(cls((1,)), [x[:, :0]], np.array(["", ""], dtypes.string), label="empty")
        yield Sample(cls(None), [x[0, 0:1].reshape(())], np.array("a", dtypes.string), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls((1, -1)).infer(TensorSpec((2, 3), dtypes.string)), ValueError, "an axis twice")


@dataclass(frozen=True)
class StringSplit(_StringOp):
    """The parts of each string, as a padded array, and how many there are.

    Attributes:
        width: how many parts each string has, where the rest is cut off; None for as many as the longest has.
    """

    separator: str | None
    maxsplit: int = -1
    width: int | None = None
    shape_from_values: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        shape = inputs[0].shape
        values = None if shape is None else (*shape, self.width)
        return TensorSpec(values, dtypes.string), TensorSpec(shape, dtypes.int32)

    def row_state(self, node: Operation, given: Sequence[State]) -> State:
        return mixed(node) if self.width is None else given[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        rows = [item.split(self.separator, self.maxsplit)[: self.width] for item in text.items_of(x)]
        longest = max([len(row) for row in rows], default=0) if self.width is None else self.width
        values = [part for row in rows for part in row + [""] * (longest - len(row))]
        lengths = text.array_of([len(row) for row in rows], x.shape, dtypes.int32)
        return text.array_of(values, (*x.shape, longest)), lengths

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array(["a b  c", "", " d"], dtypes.string)
        words = np.array([["a", "b", "c"], ["", "", ""], ["d", "", ""]], dtypes.string)
        yield Sample(cls(None), [x], (words, np.array([3, 0, 1], "int32")), label="words")
        at_spaces = np.array([["a", "b  c"], ["", ""], ["", "d"]], dtypes.string)
        yield Sample(cls(" ", 1), [x], (at_spaces, np.array([2, 1, 2], "int32")), label="once")
        two = np.array([["a", "b"], ["", ""], ["d", ""]], dtypes.string)
        yield Sample(cls(None, -1, 2), [x], (two, np.array([2, 0, 1], "int32")), label="of a width")
        yield Sample(cls("b"), [x[:1].reshape(())], (np.array(["a ", "  c"], dtypes.string), np.int32(2)), label="0-d")
        yield Sample(cls(None), [x[:0]], (np.zeros((0, 0), dtypes.string), np.zeros(0, "int32")), label="empty")
        none = np.zeros((3, 0), dtypes.string)
        yield Sample(cls(None, -1, 0), [x], (none, np.zeros(3, "int32")), label="of no width")


@dataclass(frozen=True)
class StringAffix(_StringOp):
    """A test whether strings start (or end) with others; the inputs broadcast."""

    at_end: bool
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(broadcast_shapes(*[spec.shape for spec in inputs]), dtypes.bool_)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array((np.strings.endswith if self.at_end else np.strings.startswith)(*inputs))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        part = np.array("Z", dtypes.string)
        yield Sample(cls(False), [_WORDS, part], np.array([[0, 0], [0, 1]], "bool"), label="start")
        ends = np.array(["ë", "g"], dtypes.string)
        yield Sample(cls(True), [_WORDS, ends], np.array([[0, 1], [0, 0]], "bool"), label="end")
        yield Sample(cls(True), [part, part], np.bool_(True), label="0-d")
        yield Sample(cls(False), [_WORDS[:0], part], np.zeros((0, 2), "bool"), label="empty")


@dataclass(frozen=True)
class RegexFullMatch(_StringOp):
    """A test whether a regular expression matches the whole of each string."""

    pattern: str
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.bool_)

    def run(self, xp: Any, *inputs: Any) -> Any:
        pattern = text.compiled(self.pattern, "regex_full_match")
        return text.each(lambda item: pattern.fullmatch(item) is not None, inputs[0], dtypes.bool_)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(r"\w+ ?"), [_WORDS], np.array([[1, 0], [0, 1]], "bool"), label="words")
        yield Sample(cls("a|ab"), [np.array("ab", dtypes.string)], np.bool_(True), label="0-d")
        yield Sample(cls(""), [_WORDS[:0]], np.zeros((0, 2), "bool"), label="empty")


@dataclass(frozen=True)
class RegexReplace(_StringOp):
    """Each string with what a regular expression matches replaced."""

    pattern: str
    rewrite: str
    replace_global: bool = True
    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        pattern = text.compiled(self.pattern, "regex_replace")
        expand = text.rewriter(self.rewrite, pattern.groups)
        return text.each(lambda item: pattern.sub(expand, item, 0 if self.replace_global else 1), inputs[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array(["a1b2", "", "c"], dtypes.string)
        yield Sample(cls(r"\d", "#"), [x], np.array(["a#b#", "", "c"], dtypes.string), label="all")
        swapped = np.array(["1ab2", "", "c"], dtypes.string)
        yield Sample(cls(r"(\w)(\d)", r"\2\1", False), [x], swapped, label="first, groups")
        whole = np.array("<a1>\\<b2>\\", dtypes.string)
        yield Sample(cls(r"\w\d", r"<\0>\\"), [x[:1].reshape(())], whole, label="0-d, match")
        yield Sample(cls("(x)?b", r"[\1]"), [x[:1]], np.array(["a1[]2"], dtypes.string), label="group not matched")
        yield Sample(cls("a", "b"), [x[:0]], x[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        a = np.array("a", dtypes.string)
        yield ErrorSample(lambda: cls("(", "").run(np, a), ValueError, r"'\(' is no regular expression", "pattern")
        yield ErrorSample(lambda: cls("a", r"\1").run(np, a), ValueError, "which has 0", "group")
        yield ErrorSample(lambda: cls("a", "\\").run(np, a), ValueError, "nor a backslash", "lone backslash")


@dataclass(frozen=True)
class StringToNumber(_StringOp):
    """The numbers that strings hold."""

    dtype: DType
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return text.parse_numbers(inputs[0], self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array(["1.5", " -2e3 ", "inf"], dtypes.string)
        yield Sample(cls(np.dtype("float32")), [x], np.array([1.5, -2000, np.inf], "float32"), label="floats")
        yield Sample(cls(np.dtype("int8")), [np.array("-128", dtypes.string)], np.int8(-128), label="0-d")
        yield Sample(
            cls(np.dtype("uint64")), [np.array([str(2**64 - 1)], dtypes.string)], np.array([2**64 - 1], "uint64")
        )
        yield Sample(cls(np.dtype("float64")), [x[:0]], np.zeros(0), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        words, op = np.array([["1", "2.5"]], dtypes.string), cls(dtypes.int32)
        yield ErrorSample(lambda: op.run(np, words), ValueError, r"'2.5' at position \[0, 1\] is no .* int32", "float")
        large = np.array("3000000000", dtypes.string)
        yield ErrorSample(lambda: op.run(np, large), ValueError, r"'3000000000' at position \[\]", "too large")
        yield ErrorSample(lambda: cls(dtypes.float32).run(np, np.array("1_0", dtypes.string)), ValueError, "1_0", "_")


@dataclass(frozen=True)
class AsString(_StringOp):
    """Numbers as text, in a printf format."""

    precision: int = -1
    scientific: bool = False
    shortest: bool = False
    width: int = -1
    fill: str = ""
    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        arguments = (self.precision, self.scientific, self.shortest, self.width, self.fill)
        return text.print_numbers(x, text.number_format(x.dtype.kind, *arguments), self.width)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([1.5, -2.0], "float32")
        yield Sample(cls(), [x], np.array(["1.500000", "-2.000000"], dtypes.string), (), label="floats")
        yield Sample(cls(2, width=6), [x], np.array(["  1.50", " -2.00"], dtypes.string), (), label="width")
        yield Sample(cls(1, scientific=True), [np.float32(1234)], np.array("1.2e+03", dtypes.string), (), label="0-d")
        yield Sample(cls(width=3, fill="0"), [np.int32(7)], np.array("007", dtypes.string), label="integer")
        yield Sample(cls(), [np.array([True, False])], np.array(["true", "false"], dtypes.string), label="bools")
        yield Sample(cls(shortest=True), [x[:0]], np.zeros(0, dtypes.string), (), label="empty")


@dataclass(frozen=True)
class StringFormat(_StringOp):
    """One string: `parts` with the values of the inputs between them."""

    parts: tuple[str, ...]
    summarize: int = 3

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.string)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return text.array_of(text.filled(self.parts, inputs, self.summarize), ())

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(8, dtype="int32")
        long = np.array("x = [0 1 2 ... 5 6 7].", dtypes.string)
        yield Sample(cls(("x = ", ".")), [x], long, label="shortened")
        short = np.array("[0.0 0.5 1.0 1.5] and 2", dtypes.string)
        yield Sample(cls(("", " and ", ""), -1), [np.arange(4) / np.float64(2), np.int32(2)], short, (), label="two")
        yield Sample(cls(("",)), [], np.array("", dtypes.string), label="nothing")


@dataclass(frozen=True)
class StringToHashBucket(_StringOp):
    """The hash of each string modulo a number of buckets, as int64."""

    buckets: int
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.int64)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array((text.fnv1a(inputs[0]) % np.uint64(self.buckets)).astype(dtypes.int64))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array(["", "a", "foobar"], dtypes.string)  # the hashes are those of the authors' own tests
        hashes = [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]
        yield Sample(cls(1000), [x], np.array([h % 1000 for h in hashes], "int64"), label="vector")
        yield Sample(cls(2**63 - 1), [x[1:2].reshape(())], np.int64(hashes[1] % (2**63 - 1)), label="0-d")
        yield Sample(cls(3), [x[:0]], np.zeros(0, "int64"), label="empty")
