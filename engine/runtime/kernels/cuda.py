"""Prints expressions as CUDA C++: a kernel over the operands of one fused operation, an element a thread.

The same expressions are printed as LLVM IR for CPUs, so that both compute the same polynomials. Products and sums are
contracted on neither side but where the expression says so: compile with `OPTIONS`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Sequence

import numpy as np

from .expression import Node
from .llvm import KernelSpec, Operand

OPTIONS = ("--fmad=false",)
THREADS = 256  # of a block
_TYPES = {"float": "float", "double": "double", "i32": "int", "i1": "bool"}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def print_cuda(spec: KernelSpec, name: str, by_value: Collection[int] = (), index: str = "int") -> str:
    """The source of a kernel.

    Its parameters are the operands, how many elements there are, the extents of all loops but the outermost, and the
    strides of operands in outer loops (`strides_of`).

    Args:
        spec: what it computes.
        name: its name.
        by_value: positions of operands of rank 0 that are passed as numbers; the others are pointers to contiguous
            arrays.
        index: the type of indices.
    """
    inner = range(1, spec.loops)
    parameters = [_parameter(k, operand, k in by_value) for k, operand in enumerate(spec.operands)]
    parameters += [f"{index} n", *[f"{index} extent{loop}" for loop in inner]]
    parameters += [f"{index} stride{k}_{loop}" for k, loop in strided(spec)]
    lines = [
        f'extern "C" __global__ void {name}({", ".join(parameters)}) {{',
        f"  for ({index} i = blockIdx.x * ({index})blockDim.x + threadIdx.x; i < n; "
        f"i += ({index})gridDim.x * blockDim.x) {{",
    ]
    rest = "i"
    for loop in reversed(inner):
        lines.append(f"    {index} i{loop} = {rest} % extent{loop}, r{loop} = {rest} / extent{loop};")
        rest = f"r{loop}"
    lines.append(f"    {index} i0 = {rest};")
    values = _print_body(lines, spec, by_value)
    for position, (operand, node) in enumerate(spec.outputs):
        k = len(spec.inputs) + position
        lines.append(f"    p{k}[{_offset(k, operand, spec.loops)}] = {values[node]};")
    return "\n".join([*lines, "  }", "}", ""])


def strided(spec: KernelSpec) -> list[tuple[int, int]]:
    """The operands and loops whose strides a kernel takes, in order."""
    return [
        (k, loop) for k, operand in enumerate(spec.operands) for loop in range(spec.loops - 1) if operand.steps[loop]
    ]


def strides_of(spec: KernelSpec, extents: Sequence[int]) -> list[int]:
    """Those strides, in elements, where operands are contiguous."""
    return [
        math.prod(extents[inner] for inner in range(loop + 1, spec.loops) if spec.operands[k].steps[inner])
        for k, loop in strided(spec)
    ]


def _parameter(k: int, operand: Operand, by_value: bool) -> str:
    kind = _TYPES[operand.type]
    if by_value:
        return f"{kind} v{k}"
    return f"{'' if operand.is_written else 'const '}{kind}* __restrict__ p{k}"


def _offset(k: int, operand: Operand, loops: int) -> str:
    terms = [f"i{loop} * stride{k}_{loop}" for loop in range(loops - 1) if operand.steps[loop]]
    if loops and operand.steps[loops - 1]:
        terms.append(f"i{loops - 1}")
    return " + ".join(terms) or "0"


def _print_body(lines: list[str], spec: KernelSpec, by_value: Collection[int]) -> list[str]:
    """The statements of one element; gives the name or literal of each node's value."""
    values: list[str] = []
    for position, node in enumerate(spec.nodes):
        if node.kind == "constant":
            values.append(_literal(node))
            continue
        if node.kind == "input":
            k = int(node.value)
            value = f"v{k}" if k in by_value else f"p{k}[{_offset(k, spec.inputs[k], spec.loops)}]"
        else:
            value = _expression(node, [values[k] for k in node.arguments], [spec.nodes[k].type for k in node.arguments])
        name = f"e{position}"
        lines.append(f"    {_TYPES[node.type]} {name} = {value};")
        values.append(name)
    return values


def _expression(node: Node, arguments: Sequence[str], types: Sequence[str]) -> str:
    kind = node.kind
    if kind in _COMPARISONS:
        return f"{arguments[0]} {_COMPARISONS[kind]} {arguments[1]}"
    if kind in _OPERATORS:
        return _arithmetic(node.type, _OPERATORS[kind], *arguments)
    if kind == "neg":
        return _arithmetic("i32", "-", "0", arguments[0]) if node.type == "i32" else f"-{arguments[0]}"
    if kind == "select":
        return f"{arguments[0]} ? {arguments[1]} : {arguments[2]}"
    if kind == "shl":
        return _arithmetic("i32", "<<", *arguments)
    if kind == "ashr":
        return f"{arguments[0]} >> {arguments[1]}"
    if kind == "bitcast":
        return f"{'__float_as_int' if types[0] == 'float' else '__int_as_float'}({arguments[0]})"
    if kind == "cast":
        return f"({_TYPES[node.type]}){arguments[0]}"
    function = "fma" if kind == "fma" else str(node.value)
    return f"{function}{'f' if node.type == 'float' else ''}({', '.join(arguments)})"


def _arithmetic(kind: str, operator: str, x: str, y: str) -> str:
    """Integers wrap around, which in C++ only those without a sign may."""
    return f"(int)((unsigned){x} {operator} (unsigned){y})" if kind == "i32" else f"{x} {operator} {y}"


def _literal(node: Node) -> str:
    if node.type not in ("float", "double"):
        return f"({node.value})" if node.type == "i32" else str(bool(node.value)).lower()
    (number,) = struct.unpack(">d", bytes.fromhex(node.value))
    single = node.type == "float"
    if math.isfinite(number):
        return f"({np.float32(number)!s}f)" if single else f"({number!r})"
    if single:
        return f"__int_as_float(0x{np.float32(number).view(np.uint32):08x})"
    return f"__longlong_as_double(0x{np.float64(number).view(np.uint64):016x}LL)"
