"""Prints expressions as LLVM IR: a loop nest over the operands of one fused kernel.

A kernel's entry takes the addresses of NumPy objects themselves. It checks, in a few nanoseconds, that they are what
the program was compiled for (type, contiguity, shape), reads their data pointers and runs the loops; otherwise it
returns 1 and the caller converts and tries again. Sizes are read from a table, so one kernel serves all batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .expression import Node

# Offsets in CPython's and NumPy's objects; part of NumPy's stable ABI, and checked when kernels are first used.
TYPE_OFFSET = 8
DATA_OFFSET = 16
RANK_OFFSET = 24
DIMENSIONS_OFFSET = 32
DESCRIPTOR_OFFSET = 56
FLAGS_OFFSET = 64
_C_CONTIGUOUS_ALIGNED = 0x0001 | 0x0100
_WRITEABLE = 0x0400

_COMPARISONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INTEGER_COMPARISONS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_MEMORY = {"i1": "i8"}
_IN_LOOP = ", !llvm.access.group !0"


@dataclass(frozen=True)
class Operand:
    """How a kernel meets one operand.

    Attributes:
        type: the LLVM type of an element.
        rank: the rank of the array, or None for a NumPy scalar.
        steps: for each loop, whether the operand advances (True) or is broadcast (False).
        is_written: whether it is an output.
    """

    type: str
    rank: int | None
    steps: tuple[bool, ...]
    is_written: bool = False


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: what it computes for one element, over which operands, in how many loops.

    Attributes:
        nodes: the expression.
        inputs: the operands that are read; node ``input`` number i reads operand i.
        outputs: the operands that are written, with the node that each gets.
        loops: the number of nested loops; the innermost steps through memory one by one.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[tuple[Operand, int], ...]
    loops: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *[operand for operand, _ in self.outputs])


def print_kernel(spec: KernelSpec, name: str) -> str:
    """The LLVM IR of a kernel's entry and its loops."""
    return _print_loops(spec, name) + _print_entry(spec, name)


def table_layout(spec: KernelSpec) -> list[tuple[str, int, int]]:
    """What stands in a kernel's table, in order: (kind, operand, axis).

    Kinds: "array" (address of NumPy's array type), "extent" of a loop, "type" (address of the dtype or scalar type) of
    an operand, "dim" of an operand, "stride" (elements) of an operand in an outer loop.
    """
    layout = [("array", 0, 0), *[("extent", 0, loop) for loop in range(spec.loops)]]
    for position, operand in enumerate(spec.operands):
        layout.append(("type", position, 0))
        layout.extend(("dim", position, axis) for axis in range(operand.rank or 0))
        layout.extend(("stride", position, loop) for loop in range(spec.loops - 1) if operand.steps[loop])
    return layout


def _pointer(operand: Operand) -> str:
    return _MEMORY.get(operand.type, operand.type) + "*"


def _print_entry(spec: KernelSpec, name: str) -> str:
    lines: list[str] = []
    parameters = ", ".join(f"i64 %o{k}" for k in range(len(spec.operands)))
    lines.append(f"define i32 @{name}(i64 %table, {parameters}) {{")
    layout = {entry: position for position, entry in enumerate(table_layout(spec))}
    lines.append("  %t = inttoptr i64 %table to i64*")
    for entry, position in layout.items():
        label = "_".join(map(str, entry))
        lines.append(f"  %p_{label} = getelementptr i64, i64* %t, i64 {position}")
        lines.append(f"  %{label} = load i64, i64* %p_{label}")
    # One after the other, because nothing may be read of an object before it is known to be an array, and no dimension
    # before the rank is known.
    for number, stage in enumerate((_print_type, _print_header, _print_dimensions)):
        checks = [check for k, operand in enumerate(spec.operands) for check in stage(lines, k, operand)]
        _print_checks(lines, checks, number)
    lines.append("  br label %run")
    lines.append("refuse:\n  ret i32 1")
    lines.append("run:")
    arguments = [f"{_pointer(operand)} %d{k}" for k, operand in enumerate(spec.operands)]
    arguments += [f"i64 %{'_'.join(map(str, entry))}" for entry in layout if entry[0] in ("extent", "stride")]
    lines.append(f"  call void @{name}_loops({', '.join(arguments)})")
    lines.append("  ret i32 0\n}\n")
    return "\n".join(lines)


def _print_checks(lines: list[str], checks: list[str], stage: int) -> None:
    """Refuse unless all `checks` hold."""
    result = "true"
    for position, check in enumerate(checks):
        lines.append(f"  %ok{stage}_{position} = and i1 {result}, {check}")
        result = f"%ok{stage}_{position}"
    lines.append(f"  br i1 {result}, label %checked{stage}, label %refuse")
    lines.append(f"checked{stage}:")


def _print_field(lines: list[str], k: int, label: str, offset: int, kind: str) -> str:
    """A field of the object that operand `k` is."""
    lines.append(f"  %a_{label}_{k} = add i64 %o{k}, {offset}")
    lines.append(f"  %q_{label}_{k} = inttoptr i64 %a_{label}_{k} to {kind}*")
    lines.append(f"  %{label}_{k} = load {kind}, {kind}* %q_{label}_{k}")
    return f"%{label}_{k}"


def _print_equal(lines: list[str], k: int, label: str, left: str, right: str, kind: str) -> str:
    lines.append(f"  %c_{label}_{k} = icmp eq {kind} {left}, {right}")
    return f"%c_{label}_{k}"


def _print_type(lines: list[str], k: int, operand: Operand) -> list[str]:
    """The check that operand `k` is a scalar of its type, or an array."""
    wanted = f"%type_{k}_0" if operand.rank is None else "%array_0_0"
    return [_print_equal(lines, k, "kind", _print_field(lines, k, "kind", TYPE_OFFSET, "i64"), wanted, "i64")]


def _print_header(lines: list[str], k: int, operand: Operand) -> list[str]:
    """Where the data lies, and the checks of dtype, rank and layout."""
    if operand.rank is None:
        lines.append(f"  %a_data_{k} = add i64 %o{k}, {DATA_OFFSET}")
        lines.append(f"  %d{k} = inttoptr i64 %a_data_{k} to {_pointer(operand)}")
        return []
    data = _print_field(lines, k, "data", DATA_OFFSET, "i64")
    lines.append(f"  %d{k} = inttoptr i64 {data} to {_pointer(operand)}")
    dtype = _print_field(lines, k, "descr", DESCRIPTOR_OFFSET, "i64")
    rank = _print_field(lines, k, "rank", RANK_OFFSET, "i32")
    flags = _print_field(lines, k, "flags", FLAGS_OFFSET, "i32")
    needed = _C_CONTIGUOUS_ALIGNED | (_WRITEABLE if operand.is_written else 0)
    lines.append(f"  %m_flags_{k} = and i32 {flags}, {needed}")
    return [
        _print_equal(lines, k, "descr", dtype, f"%type_{k}_0", "i64"),
        _print_equal(lines, k, "rank", rank, str(operand.rank), "i32"),
        _print_equal(lines, k, "flags", f"%m_flags_{k}", str(needed), "i32"),
    ]


def _print_dimensions(lines: list[str], k: int, operand: Operand) -> list[str]:
    """The checks of the shape."""
    if not operand.rank:
        return []
    dimensions = _print_field(lines, k, "dims", DIMENSIONS_OFFSET, "i64")
    lines.append(f"  %base_{k} = inttoptr i64 {dimensions} to i64*")
    checks: list[str] = []
    for axis in range(operand.rank):
        lines.append(f"  %y_{k}_{axis} = getelementptr i64, i64* %base_{k}, i64 {axis}")
        lines.append(f"  %v_{k}_{axis} = load i64, i64* %y_{k}_{axis}")
        checks.append(_print_equal(lines, k, f"dim{axis}", f"%v_{k}_{axis}", f"%dim_{k}_{axis}", "i64"))
    return checks


def _print_loops(spec: KernelSpec, name: str) -> str:
    operands = spec.operands
    layout = [entry for entry in table_layout(spec) if entry[0] in ("extent", "stride")]
    parameters = [f"{_pointer(o)} {'' if _may_be_shared(o) else 'noalias '}%d{k}" for k, o in enumerate(operands)]
    parameters += [f"i64 %{'_'.join(map(str, entry))}" for entry in layout]
    lines = [f"define internal void @{name}_loops({', '.join(parameters)}) noinline {{", "entry:"]
    depth = spec.loops
    for loop in range(depth):
        previous = "entry" if loop == 0 else f"enter{loop - 1}"
        lines.append(f"  br label %head{loop}")
        lines.append(f"head{loop}:")
        lines.append(f"  %i{loop} = phi i64 [0, %{previous}], [%n{loop}, %latch{loop}]")
        lines.append(f"  %more{loop} = icmp slt i64 %i{loop}, %extent_0_{loop}")
        lines.append(f"  br i1 %more{loop}, label %enter{loop}, label %done{loop}")
        lines.append(f"enter{loop}:")
        if loop < depth - 1:
            for k, operand in enumerate(operands):
                if operand.steps[loop]:
                    lines.append(f"  %s{k}_{loop} = mul i64 %i{loop}, %stride_{k}_{loop}")
    values = _print_body(lines, spec)
    for position, (operand, node) in enumerate(spec.outputs):
        _print_store(lines, len(spec.inputs) + position, operand, values[node], depth)
    for loop in reversed(range(depth)):
        lines.append(f"  br label %latch{loop}")
        lines.append(f"latch{loop}:")
        lines.append(f"  %n{loop} = add nsw i64 %i{loop}, 1")
        lines.append(f"  br label %head{loop}{', !llvm.loop !2' if loop == depth - 1 else ''}")
        lines.append(f"done{loop}:")
    lines.append("  ret void\n}\n")
    return "\n".join(lines)


def _may_be_shared(operand: Operand) -> bool:
    """Whether an output may lie in the very memory of this operand (a value that dies, a variable that is updated).

    That is said to LLVM instead of `noalias`; then it must not move loads behind stores. Iterations of the innermost
    loop are independent all the same, as its metadata says, for element i of an output only ever replaces element i.
    """
    return operand.is_written or (operand.rank is not None and all(operand.steps))


def _print_address(lines: list[str], k: int, operand: Operand, depth: int) -> str:
    """The address of the current element of operand `k`."""
    memory = _MEMORY.get(operand.type, operand.type)
    offset = ""
    for loop in range(depth):
        if not operand.steps[loop]:
            continue
        term = f"%s{k}_{loop}" if loop < depth - 1 else f"%i{loop}"
        if offset:
            lines.append(f"  %f{k}_{loop} = add nsw i64 {offset}, {term}")
            offset = f"%f{k}_{loop}"
        else:
            offset = term
    if not offset:
        return f"%d{k}"
    lines.append(f"  %e{k} = getelementptr inbounds {memory}, {memory}* %d{k}, i64 {offset}")
    return f"%e{k}"


def _print_store(lines: list[str], k: int, operand: Operand, value: str, depth: int) -> None:
    address = _print_address(lines, k, operand, depth)
    if operand.type == "i1":
        lines.append(f"  %w{k} = zext i1 {value} to i8")
        lines.append(f"  store i8 %w{k}, i8* {address}{_IN_LOOP}")
    else:
        lines.append(f"  store {operand.type} {value}, {operand.type}* {address}{_IN_LOOP}")


def _print_body(lines: list[str], spec: KernelSpec) -> list[str]:
    """The instructions of one element; returns the name of each node's value."""
    values: list[str] = []
    for position, node in enumerate(spec.nodes):
        if node.kind == "constant":
            values.append(_literal(node))
            continue
        name = f"%e_{position}"
        if node.kind == "input":
            operand = int(node.value)
            _print_load(lines, operand, spec.inputs[operand], name, spec.loops)
        else:
            arguments = [values[argument] for argument in node.arguments]
            types = [spec.nodes[k].type for k in node.arguments]
            lines.append(f"  {name} = {_instruction(node, arguments, types)}")
        values.append(name)
    return values


def _print_load(lines: list[str], k: int, operand: Operand, name: str, depth: int) -> None:
    address = _print_address(lines, k, operand, depth)
    if operand.type == "i1":
        lines.append(f"  {name}_byte = load i8, i8* {address}{_IN_LOOP}")
        lines.append(f"  {name} = icmp ne i8 {name}_byte, 0")
    else:
        lines.append(f"  {name} = load {operand.type}, {operand.type}* {address}{_IN_LOOP}")


def _instruction(node: Node, arguments: Sequence[str], types: Sequence[str]) -> str:
    kind, result = node.kind, node.type
    floating = bool(types) and types[-1] in ("float", "double")
    if kind in ("add", "sub", "mul", "div"):
        operator = f"f{kind}" if floating else kind
        return f"{operator} {result} {arguments[0]}, {arguments[1]}"
    if kind == "neg":
        return f"fneg {result} {arguments[0]}" if floating else f"sub {result} 0, {arguments[0]}"
    if kind in _COMPARISONS:
        if floating:
            return f"fcmp {_COMPARISONS[kind]} {types[0]} {arguments[0]}, {arguments[1]}"
        return f"icmp {_INTEGER_COMPARISONS[kind]} {types[0]} {arguments[0]}, {arguments[1]}"
    if kind == "select":
        return f"select i1 {arguments[0]}, {result} {arguments[1]}, {result} {arguments[2]}"
    if kind in ("and", "or", "xor", "shl", "ashr"):
        return f"{kind} {result} {arguments[0]}, {arguments[1]}"
    if kind == "bitcast":
        return f"bitcast {types[0]} {arguments[0]} to {result}"
    if kind == "cast":
        return _conversion(types[0], result, arguments[0])
    suffix = "f32" if result == "float" else "f64"
    if kind == "intrinsic":
        return f"call {result} @llvm.{node.value}.{suffix}({result} {arguments[0]})"
    assert kind == "fma", kind
    listed = ", ".join(f"{result} {argument}" for argument in arguments)
    return f"call {result} @llvm.fmuladd.{suffix}({listed})"


def _conversion(source: str, target: str, value: str) -> str:
    if target in ("float", "double") and source in ("float", "double"):
        return f"{'fpext' if target == 'double' else 'fptrunc'} {source} {value} to {target}"
    if target in ("float", "double"):
        return f"{'uitofp' if source == 'i1' else 'sitofp'} {source} {value} to {target}"
    return f"zext {source} {value} to {target}"


def _literal(node: Node) -> str:
    if node.type in ("float", "double"):
        return f"0x{node.value.upper()}"
    if node.type == "i1":
        return "true" if node.value else "false"
    return str(node.value)


def declarations() -> str:
    """Declarations of the intrinsics that kernels call, and what is known of their loops."""
    lines = ["!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}', "!2 = distinct !{!2, !1}"]
    for kind, suffix in (("float", "f32"), ("double", "f64")):
        for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "rint"):
            lines.append(f"declare {kind} @llvm.{name}.{suffix}({kind})")
        lines.append(f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})")
    return "\n".join(lines) + "\n"
