"""Kernels that compute one expression over several sets of operands, each of sizes of its own: `HorizontallyFused`.

The operands of all members follow what they share. The entry looks at each of them and notes where their data begin;
then threads share the elements of all members, as if these lay one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.fused import HorizontallyFused
from ..expression.expression import UnsupportedError
from ..expression.llvm import KernelSpec, divide
from ..llvm.builder import Builder, FunctionBuilder
from ..llvm.entry import (
    C_CONTIGUOUS_ALIGNED,
    DATA_OFFSET,
    DESCRIPTOR_OFFSET,
    DIMENSIONS_OFFSET,
    FLAGS_OFFSET,
    RANK_OFFSET,
    TYPE_OFFSET,
    WRITEABLE,
    KernelWithEntry,
    Operand,
    begin_entry,
)
from .bound import BoundKernel, fitted, misfit
from .kernel_specs import fits, kernel_spec, native_dtype, specs_of

_GRANULE = 1024  # elements
_HEAD = ("array", "count", "parts", "rows", "slots")  # the numbers at the start of a table, see `_table`
_SLOT = ("type", "rank", "flags", "sizes")  # what is known of an item, which is an operand of a member


@dataclass(frozen=True)
class TogetherKernel(KernelWithEntry):
    """The code for an expression: it serves any number of members.

    Attributes:
        body: the kernel of one member, whose arrays are vectors.
        shared: the numbers of the operands that are given once.
    """

    body: KernelSpec
    shared: tuple[int, ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands that are given once; those of the members follow them."""
        return tuple([self.body.operands[k] for k in self.shared])

    number_count = 0

    @property
    def own(self) -> tuple[int, ...]:
        """The numbers of the operands that members have of their own."""
        return tuple(k for k in range(len(self.body.operands)) if k not in self.shared)

    def print_run(self, name: str) -> str:
        return self.body.print_body(name) + _print_find(self, name) + _print_part(self, name)

    def print_entry(self, name: str) -> str:
        return _print_entry(self, name)


class BoundTogether(BoundKernel):
    """A `TogetherKernel` with the sizes of its members.

    Args:
        spec: the kernel.
        shared: the dtypes of the operands that are given once.
        members: the specs of what members have of their own, inputs and outputs, one after the other.
    """

    def __init__(self, spec: TogetherKernel, shared: Sequence[TensorSpec], members: Sequence[TensorSpec]) -> None:
        self.spec = spec
        self._together = spec
        self._shared = [native_dtype(each.dtype) for each in shared]
        self._dtypes = [native_dtype(each.dtype) for each in members]
        self._write(_table(spec, self._shared, members), ())

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Call again with contiguous operands of the very dtypes; they were refused as they are.

        Args:
            operands: those of the members.
            outputs: what they share.

        Raises:
            RuntimeError: they do not have the shapes for which the program was compiled.
        """
        own, body = self._together.own, self._together.body
        items: list[Any] = []
        copies: list[tuple[Any, Any]] = []
        for position, (value, dtype) in enumerate(zip(operands, self._dtypes, strict=True)):
            operand = body.operands[own[position % len(own)]]
            if operand.rank is None:
                items.append(dtype.type(value))
            elif not operand.is_written or (fits(value, dtype) and value.flags.writeable):
                items.append(fitted(value, dtype))
            else:
                items.append(np.empty(np.shape(value), dtype))
                copies.append((value, items[-1]))
        shared = [dtype.type(value) for value, dtype in zip(outputs, self._shared, strict=True)]
        if self.call(*shared, *items):
            raise misfit((*operands, *outputs))
        for value, made in copies:
            value[...] = made


def bind_horizontally_fused(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `HorizontallyFused`."""
    op = op_of(operation, HorizontallyFused)
    inputs, outputs = specs_of(operation.inputs), specs_of(operation.outputs)
    made = len(op.op.results)
    first = op.members(inputs)[0]
    try:
        body = kernel_spec(op.op, [_as_vector(spec) for spec in first], [_as_vector(spec) for spec in outputs[:made]])
    except UnsupportedError:
        return None
    members: list[TensorSpec] = []
    for number, given in enumerate(op.members(inputs)):
        members += [given[k] for k in op.own]
        members += outputs[number * made : (number + 1) * made]
    return BoundTogether(TogetherKernel(body, op.shared), [first[k] for k in op.shared], members)


def _as_vector(spec: TensorSpec) -> TensorSpec:
    """Return a spec that all members' operands have in common: of an array, a vector's."""
    return replace(spec, shape=(2,)) if spec.shape else spec


def _table(spec: TogetherKernel, shared: Sequence[Any], members: Sequence[TensorSpec]) -> list[int]:
    """Return the values of the table, in order.

    `_HEAD`; the types of what is shared; where each member begins in the row of all elements, and where that ends; for
    each item what is in `_SLOT`; the shapes of the items.
    """
    own, operands = spec.own, spec.body.operands
    count = len(members) // len(own)
    shapes = [tuple(int(dim or 0) for dim in each.shape or ()) for each in members]
    begins = [0]
    for number in range(count):
        begins.append(begins[-1] + math.prod(shapes[(number + 1) * len(own) - 1]))
    parts, rows = divide(spec.body.work * begins[-1], begins[-1], _GRANULE)
    first_slot = len(_HEAD) + len(shared) + len(begins)
    sizes = first_slot + len(_SLOT) * len(members)
    slots: list[int] = []
    dims: list[int] = []
    for position, (each, shape) in enumerate(zip(members, shapes, strict=True)):
        operand, dtype = operands[own[position % len(own)]], native_dtype(each.dtype)
        flags = C_CONTIGUOUS_ALIGNED | (WRITEABLE if operand.is_written else 0)
        is_scalar = operand.rank is None
        kind = id(dtype.type) if is_scalar else id(dtype)
        slots += [kind, -1 if is_scalar else len(shape), flags, sizes + len(dims)]
        dims += shape
    head = [id(np.ndarray), count, parts, rows, first_slot]
    return [*head, *[id(dtype.type) for dtype in shared], *begins, *slots, *dims]


# --- code -----------------------------------------------------------------------------------------------------------


def _print_find(kernel: TogetherKernel, name: str) -> str:
    """Write down where the data of each item begin; behind them, how many of the items are not what they should be."""
    code = FunctionBuilder(f"{name}_find", ["ptr %table", "ptr %items", "ptr %data"])
    count = code.mul(code.load("i64", "%table", _HEAD.index("count")), len(kernel.own))
    first = code.load("i64", "%table", _HEAD.index("slots"))
    good = code.slot("i64")
    code.line(f"store i64 0, ptr {good}")
    with code.loop(0, count) as number:
        item = code.load("i64", "%items", number)
        slot = code.add(first, code.mul(number, len(_SLOT)))
        kind, rank, flags, sizes = (code.load("i64", "%table", code.add(slot, field)) for field in range(len(_SLOT)))
        is_scalar = code.compare("slt", rank, 0)
        wanted = code.let(f"select i1 {is_scalar}, i64 {kind}, i64 {code.load('i64', '%table')}")
        with code.when(code.compare("eq", _field(code, item, TYPE_OFFSET), wanted)):
            inside, outside = code.add(item, DATA_OFFSET), _field(code, item, DATA_OFFSET)
            code.store("i64", code.let(f"select i1 {is_scalar}, i64 {inside}, i64 {outside}"), "%data", number)
            with code.when(is_scalar):
                _print_count(code, good)
            with code.when(code.compare("sge", rank, 0)):
                _print_array(code, item, (kind, rank, flags, sizes), good)
    code.store("i64", code.sub(count, code.let(f"load i64, ptr {good}")), "%data", count)
    return code.text()


def _print_array(code: Builder, item: str, known: Sequence[str], good: str) -> None:
    """Count an array if dtype, rank, layout and shape are those that are `known`."""
    kind, rank, flags, sizes = known
    is_kind = code.compare("eq", _field(code, item, DESCRIPTOR_OFFSET), kind)
    is_rank = code.compare("eq", code.let(f"sext i32 {_field(code, item, RANK_OFFSET, 'i32')} to i64"), rank)
    found = code.let(f"zext i32 {_field(code, item, FLAGS_OFFSET, 'i32')} to i64")
    has_flags = code.compare("eq", code.let(f"and i64 {found}, {flags}"), flags)
    both = code.let(f"and i1 {is_kind}, {is_rank}")
    with code.when(code.let(f"and i1 {both}, {has_flags}")):
        dims = code.let(f"inttoptr i64 {_field(code, item, DIMENSIONS_OFFSET)} to ptr")
        wrong = code.slot("i64")
        code.line(f"store i64 0, ptr {wrong}")
        with code.loop(0, rank) as axis:
            wanted = code.load("i64", "%table", code.add(sizes, axis))
            with code.when(code.compare("ne", code.load("i64", dims, axis), wanted)):
                code.line(f"store i64 1, ptr {wrong}")
        with code.when(code.compare("eq", code.let(f"load i64, ptr {wrong}"), 0)):
            _print_count(code, good)


def _print_count(code: Builder, good: str) -> None:
    code.line(f"store i64 {code.add(code.let(f'load i64, ptr {good}'), 1)}, ptr {good}")


def _field(code: Builder, item: str, offset: int, kind: str = "i64") -> str:
    """Return a field of an object."""
    return code.load(kind, code.let(f"inttoptr i64 {code.add(item, offset)} to ptr"))


def _print_part(kernel: TogetherKernel, name: str) -> str:
    """Print the function of a part of all members' elements; `context` has the table, items' data and shared data."""
    code = FunctionBuilder(f"{name}_part", ["ptr %context", "i64 %part"])
    table = code.let(f"inttoptr i64 {code.load('i64', '%context')} to ptr")
    data = code.let(f"inttoptr i64 {code.load('i64', '%context', 1)} to ptr")
    addresses = {operand: code.load("i64", "%context", 2 + k) for k, operand in enumerate(kernel.shared)}
    rows = code.load("i64", table, _HEAD.index("rows"))
    begin = code.mul("%part", rows)
    end = code.add(begin, rows)
    own, first = kernel.own, len(_HEAD) + len(kernel.shared)
    with code.loop(0, code.load("i64", table, _HEAD.index("count"))) as member:
        start = code.load("i64", table, code.add(member, first))
        lowest = code.greatest(begin, start)
        highest = code.least(end, code.load("i64", table, code.add(member, first + 1)))
        with code.when(code.compare("slt", lowest, highest)):
            item = code.mul(member, len(own))
            addresses |= {k: code.load("i64", data, code.add(item, place)) for place, k in enumerate(own)}
            listed: list[str] = []
            for k in range(len(kernel.body.operands)):
                pointer = code.let(f"inttoptr i64 {addresses[k]} to ptr")
                listed.append(f"ptr {pointer}")
            bounds = f"i64 {code.sub(lowest, start)}, i64 {code.sub(highest, start)}"
            code.line(f"call void @{name}_body({', '.join(listed)}, ptr {table}, {bounds})")
    return code.text()


def _print_entry(kernel: TogetherKernel, name: str) -> str:
    """Print the function that is called: it finds the data, checks what is shared, and runs all parts."""
    shared = range(len(kernel.shared))
    lines = begin_entry(name, len(shared))
    lines.append(f"  %p_count = getelementptr i64, ptr %t, i64 {_HEAD.index('count')}")
    lines += ["  %members = load i64, ptr %p_count", f"  %count = mul i64 %members, {len(kernel.own)}"]
    lines += ["  %places = add i64 %count, 1", "  %data = alloca i64, i64 %places, align 8"]
    lines.append(f"  %record = alloca [{2 + len(shared)} x i64], align 8")
    lines.append(f"  %items = getelementptr i64, ptr %objects, i64 {len(shared)}")
    lines.append(f"  call void @{name}_find(ptr %t, ptr %items, ptr %data)")
    lines += ["  %p_bad = getelementptr i64, ptr %data, i64 %count", "  %bad = load i64, ptr %p_bad"]
    lines.append("  %ok = icmp eq i64 %bad, 0")
    result = "%ok"
    for k in shared:
        lines += [f"  %a{k} = add i64 %o{k}, {TYPE_OFFSET}", f"  %q{k} = inttoptr i64 %a{k} to ptr"]
        lines += [f"  %kind{k} = load i64, ptr %q{k}"]
        lines += [f"  %w{k} = getelementptr i64, ptr %t, i64 {len(_HEAD) + k}", f"  %wanted{k} = load i64, ptr %w{k}"]
        lines += [f"  %is{k} = icmp eq i64 %kind{k}, %wanted{k}", f"  %ok{k} = and i1 {result}, %is{k}"]
        result = f"%ok{k}"
    lines += [f"  br i1 {result}, label %run, label %refuse", "refuse:", "  ret i32 1", "run:"]
    lines += ["  %address = ptrtoint ptr %data to i64"]
    values = ["%table", "%address"]
    for k in shared:
        lines.append(f"  %v{k} = add i64 %o{k}, {DATA_OFFSET}")
        values.append(f"%v{k}")
    kind = f"[{len(values)} x i64]"
    for k, value in enumerate(values):
        lines.append(f"  %r{k} = getelementptr {kind}, ptr %record, i64 0, i64 {k}")
        lines.append(f"  store i64 {value}, ptr %r{k}")
    lines += [
        f"  %p_parts = getelementptr i64, ptr %t, i64 {_HEAD.index('parts')}",
        "  %parts = load i64, ptr %p_parts",
    ]
    lines.append(f"  call void @anabranch_parallel(ptr @{name}_part, ptr %record, i64 %parts)")
    return "\n".join([*lines, "  ret i32 0", "}\n"])
