"""Prints expressions as LLVM IR: a loop nest over the operands of one fused kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.cached import cached_property
from ...common.quick_dataclass import dataclass
from ..llvm.entry import Operand
from .expression import Node

_COMPARISONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INTEGER_COMPARISONS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
COSTS = {"div": 4, "intrinsic": 3, "constant": 0, "input": 0, "load": 0, "reduce": 1, "count": 0}
_WIDTHS = {"half": 2, "float": 4, "double": 8}
_MOST_PARTS = 16
_PART_WORK = 10_000.0  # nanoseconds: less is not worth another thread
IN_LOOP = ", !llvm.access.group !0"  # behind loads and stores of an innermost loop
LOOP = ", !llvm.loop !2"  # behind the jump back: iterations are independent, but for sums
SHORT_LOOP = ", !llvm.loop !3"  # the same, of loops that run for a few vectors: one at a time


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

    @property
    def strided(self) -> list[tuple[int, int]]:
        """The operands that advance in loops other than the innermost one: (operand, loop)."""
        outer = range(self.loops - 1)
        return [(k, loop) for k, operand in enumerate(self.operands) for loop in outer if operand.steps[loop]]

    def strides_of(self, extents: Sequence[int]) -> list[int]:
        """The strides, in elements, of what is `strided`, where operands are contiguous and loops run so often."""
        return [
            math.prod(extents[inner] for inner in range(loop + 1, self.loops) if self.operands[k].steps[inner])
            for k, loop in self.strided
        ]

    @property
    def number_count(self) -> int:
        """The extents of the loops, the strides (elements) of what is `strided`, and how the work is divided."""
        return self.loops + len(self.strided) + 2

    @cached_property
    def work(self) -> float:
        """About how many nanoseconds an element takes."""
        return work_of(self.nodes, self.operands)

    def print_run(self, name: str) -> str:
        return self.print_body(name) + print_parts(self, name)

    def print_body(self, name: str, jump: str = LOOP) -> str:
        """A function ``@{name}_body`` of the operands, the numbers, and where the outermost loop begins and ends.

        Args:
            name: of the kernel.
            jump: what stands behind the innermost loop's jump back.
        """
        return _print_loops(self, name, jump)


def work_of(nodes: Sequence[Node], operands: Sequence[Operand]) -> float:
    """About how many nanoseconds an element of a kernel takes on one thread."""
    computing = sum(COSTS.get(node.kind, 1) * (2 if node.type in ("double", "i64") else 1) for node in nodes)
    memory = sum(operand.itemsize for operand in operands if any(operand.steps))
    return 0.012 * computing + 0.02 * memory


def divide(work: float, outer: int, granule: int = 1) -> tuple[int, int]:
    """The number of parts for so much work (nanoseconds), and how much of the outermost loop each takes."""
    parts = max(1, min(_MOST_PARTS, int(work / _PART_WORK), -(-outer // granule)))
    rows = -(-outer // parts)
    rows = max(1, -(-rows // granule) * granule)
    return max(1, -(-outer // rows)), rows


def print_parts(spec: KernelSpec, name: str) -> str:
    """The run function, which lets threads take parts of the outermost loop: the last two numbers say which."""
    names = [*[f"%d{k}" for k in range(len(spec.operands))], "%numbers"]
    parameters = ", ".join(f"ptr {own}" for own in names)
    record = f"[{len(names)} x ptr]"
    lines = [f"define internal void @{name}_run({parameters}) noinline {{", f"  %record = alloca {record}"]
    for k, own in enumerate(names):
        lines.append(f"  %f{k} = getelementptr ptr, ptr %record, i64 {k}")
        lines.append(f"  store ptr {own}, ptr %f{k}")
    lines.append(f"  %q = getelementptr i64, ptr %numbers, i64 {spec.number_count - 2}")
    lines.append("  %parts = load i64, ptr %q")
    lines.append(f"  call void @anabranch_parallel(ptr @{name}_part, ptr %record, i64 %parts)")
    lines += ["  ret void", "}", f"define internal void @{name}_part(ptr %context, i64 %part) {{"]
    for k, own in enumerate(names):
        lines.append(f"  %f{k} = getelementptr ptr, ptr %context, i64 {k}")
        lines.append(f"  {own} = load ptr, ptr %f{k}")
    lines.append(f"  %q = getelementptr i64, ptr %numbers, i64 {spec.number_count - 1}")
    lines.append("  %rows = load i64, ptr %q")
    lines.append("  %begin = mul i64 %part, %rows")
    lines.append("  %after = add i64 %begin, %rows")
    lines.append("  %extent = load i64, ptr %numbers")
    lines.append("  %is_last = icmp sgt i64 %after, %extent")
    lines.append("  %end = select i1 %is_last, i64 %extent, i64 %after")
    lines.append(f"  call void @{name}_body({parameters}, i64 %begin, i64 %end)")
    return "\n".join([*lines, "  ret void", "}\n"])


def _print_loops(spec: KernelSpec, name: str, jump: str) -> str:
    operands = spec.operands
    parameters = [f"ptr {'' if may_be_shared(o) else 'noalias '}%d{k}" for k, o in enumerate(operands)]
    parameters += ["ptr %numbers", "i64 %begin", "i64 %end"]
    lines = [f"define internal void @{name}_body({', '.join(parameters)}) noinline {{", "entry:"]
    depth = spec.loops
    labels = [*[f"extent_{loop}" for loop in range(depth)], *[f"stride_{k}_{loop}" for k, loop in spec.strided]]
    for position, label in enumerate(labels):
        lines.append(f"  %p_{label} = getelementptr i64, ptr %numbers, i64 {position}")
        lines.append(f"  %{label} = load i64, ptr %p_{label}")
    for loop in range(depth):
        previous = "entry" if loop == 0 else f"enter{loop - 1}"
        lines.append(f"  br label %head{loop}")
        lines.append(f"head{loop}:")
        first, last = ("%begin", "%end") if loop == 0 else ("0", f"%extent_{loop}")
        lines.append(f"  %i{loop} = phi i64 [{first}, %{previous}], [%n{loop}, %latch{loop}]")
        lines.append(f"  %more{loop} = icmp slt i64 %i{loop}, {last}")
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
        lines.append(f"  br label %head{loop}{jump if loop == depth - 1 else ''}")
        lines.append(f"done{loop}:")
    lines.append("  ret void\n}\n")
    return "\n".join(lines)


def may_be_shared(operand: Operand) -> bool:
    """Test whether an output may use the very memory of this operand (a value that dies, a variable that is updated).

    That is said to LLVM instead of `noalias`; then it must not move loads behind stores. Iterations of the innermost
    loop are independent all the same, as its metadata says, for element i of an output only ever replaces element i.
    """
    return operand.is_written or (operand.rank is not None and all(operand.steps))


def _print_address(lines: list[str], k: int, operand: Operand, depth: int) -> str:
    """The address of the current element of operand `k`."""
    memory = operand.memory
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
    lines.append(f"  %e{k} = getelementptr inbounds {memory}, ptr %d{k}, i64 {offset}")
    return f"%e{k}"


def _print_store(lines: list[str], k: int, operand: Operand, value: str, depth: int) -> None:
    address = _print_address(lines, k, operand, depth)
    if operand.type == "i1":
        lines.append(f"  %w{k} = zext i1 {value} to i8")
        lines.append(f"  store i8 %w{k}, ptr {address}{IN_LOOP}")
    elif operand.type == "half":
        lines.append(f"  %w{k} = fptrunc float {value} to half")
        lines.append(f"  store half %w{k}, ptr {address}{IN_LOOP}")
    elif operand.type == "bfloat":  # rounded already
        lines.append(f"  %b{k} = bitcast float {value} to i32")
        lines.append(f"  %h{k} = lshr i32 %b{k}, 16")
        lines.append(f"  %w{k} = trunc i32 %h{k} to i16")
        lines.append(f"  store i16 %w{k}, ptr {address}{IN_LOOP}")
    else:
        lines.append(f"  store {operand.type} {value}, ptr {address}{IN_LOOP}")


def _print_body(lines: list[str], spec: KernelSpec) -> list[str]:
    """The instructions of one element; returns the name of each node's value."""
    values: list[str] = []
    for position, node in enumerate(spec.nodes):
        if node.kind == "constant":
            values.append(literal(node))
            continue
        name = f"%e_{position}"
        if node.kind == "input":
            operand = int(node.value)
            _print_load(lines, operand, spec.inputs[operand], name, spec.loops)
        else:
            arguments = [values[argument] for argument in node.arguments]
            types = [spec.nodes[k].type for k in node.arguments]
            lines.append(f"  {name} = {instruction(node, arguments, types)}")
        values.append(name)
    return values


def _print_load(lines: list[str], k: int, operand: Operand, name: str, depth: int) -> None:
    address = _print_address(lines, k, operand, depth)
    if operand.type == "i1":
        lines.append(f"  {name}_byte = load i8, ptr {address}{IN_LOOP}")
        lines.append(f"  {name} = icmp ne i8 {name}_byte, 0")
    elif operand.type == "half":
        lines.append(f"  {name}_half = load half, ptr {address}{IN_LOOP}")
        lines.append(f"  {name} = fpext half {name}_half to float")
    elif operand.type == "bfloat":
        lines.append(f"  {name}_half = load i16, ptr {address}{IN_LOOP}")
        lines.append(f"  {name}_wide = zext i16 {name}_half to i32")
        lines.append(f"  {name}_bits = shl i32 {name}_wide, 16")
        lines.append(f"  {name} = bitcast i32 {name}_bits to float")
    else:
        lines.append(f"  {name} = load {operand.type}, ptr {address}{IN_LOOP}")


def instruction(node: Node, arguments: Sequence[str], types: Sequence[str]) -> str:
    """The instruction of a node over values of these names and types."""
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
        return conversion(types[0], result, arguments[0])
    suffix = "f32" if result == "float" else "f64"
    if kind == "intrinsic":
        return f"call {result} @llvm.{node.value}.{suffix}({result} {arguments[0]})"
    assert kind == "fma", kind
    listed = ", ".join(f"{result} {argument}" for argument in arguments)
    return f"call {result} @llvm.fmuladd.{suffix}({listed})"


def conversion(source: str, target: str, value: str) -> str:
    """The instruction that makes a value of one type one of another."""
    if target in _WIDTHS and source in _WIDTHS:
        return f"{'fpext' if _WIDTHS[target] > _WIDTHS[source] else 'fptrunc'} {source} {value} to {target}"
    if target in _WIDTHS:
        return f"{'uitofp' if source == 'i1' else 'sitofp'} {source} {value} to {target}"
    if source in _WIDTHS:
        return f"fptosi {source} {value} to {target}"
    if source == "i1":
        return f"zext i1 {value} to {target}"
    return f"{'sext' if target == 'i64' else 'trunc'} {source} {value} to {target}"


def literal(node: Node) -> str:
    """A constant as LLVM reads it."""
    if node.type in ("float", "double"):
        return f"0x{node.value.upper()}"
    if node.type == "i1":
        return "true" if node.value else "false"
    return str(node.value)


def declarations() -> str:
    """Declarations of the intrinsics that kernels call, and what is known of their loops."""
    lines = ["!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}', "!2 = distinct !{!2, !1}"]
    lines += ["!3 = distinct !{!3, !1, !4}", '!4 = !{!"llvm.loop.interleave.count", i32 1}']
    lines.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    lines += ["declare i64 @llvm.ctpop.i64(i64)", "declare i64 @llvm.cttz.i64(i64, i1)"]
    for kind, suffix in (("float", "f32"), ("double", "f64")):
        for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "rint"):
            lines.append(f"declare {kind} @llvm.{name}.{suffix}({kind})")
        for name in ("maximum", "minimum"):
            lines.append(f"declare {kind} @llvm.{name}.{suffix}({kind}, {kind})")
        lines.append(f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})")
    lines += [f"declare <{lanes} x float> @llvm.rint.v{lanes}f32(<{lanes} x float>)" for lanes in (1, 8)]
    lines.append("declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)")
    return "\n".join(lines) + "\n"
