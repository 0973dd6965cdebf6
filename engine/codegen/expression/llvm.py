"""Prints expressions as LLVM IR: a loop nest over the operands of one fused kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ...common.cached import cached_property
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ..llvm.builder import IN_LOOP, LOOP, Builder, FunctionBuilder, Size
from ..llvm.entry import Operand
from .expression import Node, UnsupportedError

_COMPARISONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INTEGER_COMPARISONS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
COSTS = {"div": 4, "intrinsic": 3, "constant": 0, "input": 0, "load": 0, "reduce": 1, "count": 0}
_DOT_PRODUCTS = """\
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32>, <8 x i32>, <8 x i32>)
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
declare <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbsud(i8 immarg, i8 immarg, i8 immarg)
"""
_WIDTHS = {"half": 2, "float": 4, "double": 8}
_MOST_PARTS = 16


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: what it computes for one element, over which operands, in how many loops.

    Attributes:
        nodes: the expression.
        inputs: the operands that are read; node ``input`` number i reads operand i.
        outputs: the operands that are written, with the node that each gets.
        loops: the number of nested loops; the innermost steps through memory one by one.
        flushes: whether it computes with zeros in the place of subnormal numbers.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[tuple[Operand, int], ...]
    loops: int
    flushes: bool = False

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *[operand for operand, _ in self.outputs])

    @property
    def strided(self) -> list[tuple[int, int]]:
        """The operands that advance in loops other than the innermost one: (operand, loop)."""
        outer = range(self.loops - 1)
        return [(k, loop) for k, operand in enumerate(self.operands) for loop in outer if operand.steps[loop]]

    def strides_of(self, extents: Sequence[int]) -> list[int]:
        """Return the strides of what is `strided`, in elements, for contiguous operands and loops of these extents."""
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

    def print_body(self, name: str, metadata: str = LOOP, linkage: str = "internal") -> str:
        """Print a function ``@{name}_body`` of the operands, the numbers, and the start and end of the outermost loop.

        Args:
            name: of the kernel.
            metadata: of the innermost loop's branch back.
            linkage: of the function.
        """
        return _print_loops(self, name, metadata, linkage)


def work_of(nodes: Sequence[Node], operands: Sequence[Operand]) -> float:
    """Estimate how many nanoseconds an element of a kernel takes on one thread."""
    computing = sum(COSTS.get(node.kind, 1) * (2 if node.type in ("double", "i64") else 1) for node in nodes)
    memory = sum(operand.itemsize for operand in operands if any(operand.steps))
    return 0.012 * computing + 0.02 * memory


def divide(work: float, outer: int, granule: int = 1) -> tuple[int, int]:
    """Return the number of parts for so much work (nanoseconds), and how much of the outermost loop each takes."""
    parts = max(1, min(_MOST_PARTS, int(work / machine_profile().part_nanoseconds), -(-outer // granule)))
    rows = -(-outer // parts)
    rows = max(1, -(-rows // granule) * granule)
    return max(1, -(-outer // rows)), rows


def print_parts(spec: KernelSpec, name: str) -> str:
    """Print the run function, which lets threads take parts of the outermost loop: the last two numbers say which."""
    names = [*[f"%d{k}" for k in range(len(spec.operands))], "%numbers"]
    run = FunctionBuilder(f"{name}_run", [f"ptr {own}" for own in names])
    context = run.slot(f"[{len(names)} x ptr]", alignment=8)
    for k, own in enumerate(names):
        run.store("ptr", own, context, k)
    parts = run.load("i64", "%numbers", spec.number_count - 2)
    run.call("anabranch_parallel", [("ptr", f"@{name}_part"), ("ptr", context), ("i64", parts)])
    part = FunctionBuilder(f"{name}_part", ["ptr %context", "i64 %part"], attributes="")
    pointers = [part.load("ptr", "%context", k) for k in range(len(names))]
    rows = part.load("i64", pointers[-1], spec.number_count - 1)
    begin = part.mul("%part", rows)
    after, extent = part.add(begin, rows), part.load("i64", pointers[-1])
    end = part.choose(part.compare("sgt", after, extent), extent, after)
    part.call_on(f"{name}_body", pointers, (begin, end))
    return run.text() + part.text()


def _print_loops(spec: KernelSpec, name: str, metadata: str, linkage: str) -> str:
    operands = spec.operands
    parameters = [f"ptr {'' if may_be_shared(o) else 'noalias '}%d{k}" for k, o in enumerate(operands)]
    parameters += ["ptr %numbers", "i64 %begin", "i64 %end"]
    code = FunctionBuilder(f"{name}_body", parameters, linkage=linkage, flushes=spec.flushes)
    extents = [code.load("i64", "%numbers", loop) for loop in range(spec.loops)]
    strides = {place: code.load("i64", "%numbers", spec.loops + k) for k, place in enumerate(spec.strided)}
    with ExitStack() as loops:
        counters: list[str] = []
        steps: dict[tuple[int, int], Size] = {}  # by operand and loop: how far it has advanced
        for loop in range(spec.loops):
            is_inner = loop == spec.loops - 1
            first, last = ("%begin", "%end") if loop == 0 else ("0", extents[loop])
            counters.append(loops.enter_context(code.loop(first, last, metadata=metadata if is_inner else "")))
            for k, operand in enumerate(operands):
                if operand.steps[loop]:
                    steps[k, loop] = counters[-1] if is_inner else code.mul(counters[-1], strides[k, loop])

        def address(k: int) -> str:
            """Return the address of the present element of operand `k`."""
            terms = [steps[k, loop] for loop in range(spec.loops) if operands[k].steps[loop]]
            offset: Size = terms[0] if terms else 0
            for term in terms[1:]:
                offset = code.let(f"add nsw i64 {offset}, {term}")
            return code.element(operands[k].memory, f"%d{k}", offset) if terms else f"%d{k}"

        values = _print_nodes(code, spec, address)
        for position, (operand, node) in enumerate(spec.outputs):
            target = address(len(spec.inputs) + position)
            code.store_number(operand.type, values[node], target, IN_LOOP, is_rounded=True)
    return code.text()


def may_be_shared(operand: Operand) -> bool:
    """Test whether an output may use the very memory of this operand (a value that dies, a variable that is updated).

    That is said to LLVM instead of `noalias`; then it must not move loads behind stores. Iterations of the innermost
    loop are independent all the same, as its metadata says, for element i of an output only ever replaces element i.
    """
    return operand.is_written or (operand.rank is not None and all(operand.steps))


def _print_nodes(code: Builder, spec: KernelSpec, address: Callable[[int], str]) -> list[str]:
    """Print the instructions of one element; return each node's value."""
    values: list[str] = []
    for node in spec.nodes:
        if node.kind == "constant":
            values.append(literal(node))
        elif node.kind == "input":
            operand = int(node.value)
            values.append(code.load_number(spec.inputs[operand].type, address(operand), IN_LOOP))
        else:
            arguments = [values[argument] for argument in node.arguments]
            types = [spec.nodes[k].type for k in node.arguments]
            values.append(code.let(instruction(node, arguments, types)))
    return values


def instruction(node: Node, arguments: Sequence[str], types: Sequence[str]) -> str:
    """Return the instruction of a node over values of these names and types.

    Raises:
        UnsupportedError: the node is no single instruction.
    """
    kind, result = node.kind, node.type
    floating = bool(types) and types[0] in ("float", "double")
    listed = ", ".join(arguments)
    if kind in ("add", "sub", "mul", "div", "rem"):
        return f"{'f' if floating else ''}{kind} {result} {listed}"
    if kind == "neg":
        return f"fneg {result} {listed}" if floating else f"sub {result} 0, {listed}"
    if kind in _COMPARISONS:
        compare = f"fcmp {_COMPARISONS[kind]}" if floating else f"icmp {_INTEGER_COMPARISONS[kind]}"
        return f"{compare} {types[0]} {listed}"
    if kind == "select":
        return f"select i1 {arguments[0]}, {result} {arguments[1]}, {result} {arguments[2]}"
    if kind in ("and", "or", "xor", "shl", "ashr"):
        return f"{kind} {result} {listed}"
    if kind == "bitcast":
        return f"bitcast {types[0]} {listed} to {result}"
    if kind == "cast":
        return conversion(types[0], result, listed)
    passed = ", ".join(f"{result} {argument}" for argument in arguments)
    if kind in ("floordiv", "floormod"):  # functions of regions
        return f"call {result} @{kind}_{result}({passed})"
    name = node.value if kind == "intrinsic" else {"fma": "fmuladd"}.get(kind)
    if name is None:
        raise UnsupportedError(kind)
    return f"call {result} @llvm.{name}.{'f32' if result == 'float' else 'f64'}({passed})"


def conversion(source: str, target: str, value: str) -> str:
    """Return the instruction that converts a value from one type to another."""
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
    """Return a constant as LLVM reads it."""
    if node.type in ("float", "double"):
        return f"0x{node.value.upper()}"
    if node.type == "i1":
        return "true" if node.value else "false"
    return str(node.value)


def declarations() -> str:
    """Return declarations of the intrinsics that kernels call, and what is known of their loops."""
    lines = ["!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}', "!2 = distinct !{!2, !1}"]
    lines += ["!3 = distinct !{!3, !1, !4}", '!4 = !{!"llvm.loop.interleave.count", i32 1}']
    lines.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    lines.append("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    lines.append("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    lines += ["declare i64 @llvm.ctpop.i64(i64)", "declare i64 @llvm.cttz.i64(i64, i1)"]
    for kind, suffix in (("float", "f32"), ("double", "f64")):
        for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "rint"):
            lines.append(f"declare {kind} @llvm.{name}.{suffix}({kind})")
        for name in ("maximum", "minimum"):
            lines.append(f"declare {kind} @llvm.{name}.{suffix}({kind}, {kind})")
        lines.append(f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})")
    lines += [f"declare <{lanes} x float> @llvm.rint.v{lanes}f32(<{lanes} x float>)" for lanes in (1, 8)]
    lines += [f"declare i32 @llvm.vector.reduce.add.v{lanes}i32(<{lanes} x i32>)" for lanes in (1, 8)]
    return "\n".join(lines) + "\n" + _DOT_PRODUCTS
