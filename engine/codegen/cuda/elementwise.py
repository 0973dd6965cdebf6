"""Prints expressions as CUDA C++: a kernel over the operands of one fused operation, an element a thread.

The same expressions are printed as LLVM IR for CPUs, so that both compute the same polynomials. Products and sums are
contracted on neither side but where the expression says so: compile with `OPTIONS`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ..expression.expression import Node
from ..expression.llvm import KernelSpec
from ..llvm.entry import Operand

OPTIONS = ("--fmad=false",)
THREADS = 256  # of a block
TYPES = {"float": "float", "double": "double", "i32": "int", "i64": "long long", "i1": "bool"}
HALVES = {"half": "__half", "bfloat": "__nv_bfloat16"}
C_TYPES = {  # types by dtypes
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
}
WIDENED = {"half": "__half2float", "bfloat": "__bfloat162float"}
ROUNDED = {"half": "__float2half_rn", "bfloat": "__float2bfloat16_rn"}
_FROM_BITS = {"half": "__ushort_as_half", "bfloat": "__ushort_as_bfloat16"}
HEADERS = {"half": "#include <cuda_fp16.h>\n", "bfloat": "#include <cuda_bf16.h>\n"}
_BITCASTS = {"float": "__float_as_int", "double": "__double_as_longlong"}
_BIT_FLOATS = {"i32": "__int_as_float", "i64": "__longlong_as_double"}
UNSIGNED = {"i32": "unsigned", "i64": "unsigned long long"}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def print_cuda(spec: KernelSpec, name: str, by_value: Collection[int] = (), index: str = "int") -> str:
    """Print the source of a kernel.

    Its parameters are the operands, how many elements there are, the extents of all loops but the outermost, and the
    strides of operands in outer loops (`KernelSpec.strides_of`).

    Args:
        spec: what it computes.
        name: its name.
        by_value: positions of operands of rank 0 that are passed as numbers, those of half types as their bits; the
            others are pointers to contiguous arrays.
        index: the type of indices.
    """
    headers = headers_of(spec.operands, spec.nodes)
    inner = range(1, spec.loops)
    parameters = [parameter_text(k, operand, k in by_value) for k, operand in enumerate(spec.operands)]
    parameters += [f"{index} n", *[f"{index} extent{loop}" for loop in inner]]
    parameters += [f"{index} stride{k}_{loop}" for k, loop in spec.strided]
    lines = [
        f'{headers}extern "C" __global__ void {name}({", ".join(parameters)}) {{',
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
        lines.append(f"    p{k}[{_offset(k, operand, spec.loops)}] = {stored_text(operand, values[node])};")
    return "\n".join([*lines, "  }", "}", ""])


def headers_of(operands: Iterable[Operand], nodes: Iterable[Node]) -> str:
    """Return the lines that include what half types need."""
    used = {operand.type for operand in operands} | {node.type for node in nodes}
    return "".join(text for kind, text in HEADERS.items() if kind in used)


def loaded_text(k: int, operand: Operand, offset: str, by_value: bool) -> str:
    """Return an element of operand `k` in the type in which it is computed."""
    value = f"v{k}" if by_value else f"p{k}[{offset}]"
    if operand.type not in HALVES:
        return value
    return f"{WIDENED[operand.type]}({f'{_FROM_BITS[operand.type]}({value})' if by_value else value})"


def stored_text(operand: Operand, value: str) -> str:
    """Return a value in the type of an output."""
    return f"{ROUNDED[operand.type]}({value})" if operand.type in HALVES else value


def parameter_text(k: int, operand: Operand, by_value: bool) -> str:
    """Return the parameter of operand `k`: a pointer ``p0``, or a number ``v0``."""
    kind = (TYPES | HALVES)[operand.type]
    if by_value:
        return f"{'unsigned short' if operand.type in HALVES else kind} v{k}"
    return f"{'' if operand.is_written else 'const '}{kind}* __restrict__ p{k}"


def _offset(k: int, operand: Operand, loops: int) -> str:
    terms = [f"i{loop} * stride{k}_{loop}" for loop in range(loops - 1) if operand.steps[loop]]
    if loops and operand.steps[loops - 1]:
        terms.append(f"i{loops - 1}")
    return " + ".join(terms) or "0"


def _print_body(lines: list[str], spec: KernelSpec, by_value: Collection[int]) -> list[str]:
    """Print the statements of one element, and note the name or literal of each node's value."""
    values: list[str] = []
    for position, node in enumerate(spec.nodes):
        if node.kind == "constant":
            values.append(literal_text(node))
            continue
        if node.kind == "input":
            k = int(node.value)
            value = loaded_text(k, spec.inputs[k], _offset(k, spec.inputs[k], spec.loops), k in by_value)
        else:
            value = expression_text(
                node, [values[k] for k in node.arguments], [spec.nodes[k].type for k in node.arguments]
            )
        name = f"e{position}"
        lines.append(f"    {(TYPES | HALVES)[node.type]} {name} = {value};")
        values.append(name)
    return values


def expression_text(node: Node, arguments: Sequence[str], types: Sequence[str]) -> str:
    """Return the value of a node over arguments of these names and types."""
    kind = node.kind
    if kind in _COMPARISONS:
        return f"{arguments[0]} {_COMPARISONS[kind]} {arguments[1]}"
    if kind in _OPERATORS:
        return arithmetic_text(node.type, _OPERATORS[kind], *arguments)
    if kind == "neg":
        return arithmetic_text(node.type, "-", "0", arguments[0]) if node.type in UNSIGNED else f"-{arguments[0]}"
    if kind == "select":
        return f"{arguments[0]} ? {arguments[1]} : {arguments[2]}"
    if kind == "shl":
        return arithmetic_text(node.type, "<<", *arguments)
    if kind == "ashr":
        return f"{arguments[0]} >> {arguments[1]}"
    if kind == "bitcast":
        return f"{(_BITCASTS | _BIT_FLOATS)[types[0]]}({arguments[0]})"
    if kind == "cast" and node.type in HALVES:
        return f"{ROUNDED[node.type]}({arguments[0]})"
    if kind == "cast" and types[0] in HALVES:
        return f"{WIDENED[types[0]]}({arguments[0]})"
    if kind == "cast":
        return f"({TYPES[node.type]}){arguments[0]}"
    function = "fma" if kind == "fma" else str(node.value)
    return f"{function}{'f' if node.type == 'float' else ''}({', '.join(arguments)})"


def arithmetic_text(kind: str, operator: str, x: str, y: str) -> str:
    """Print arithmetic of two values; integers wrap around, which in C++ only those without a sign may."""
    if kind not in UNSIGNED:
        return f"{x} {operator} {y}"
    return f"({TYPES[kind]})(({UNSIGNED[kind]}){x} {operator} ({UNSIGNED[kind]}){y})"


def literal_text(node: Node) -> str:
    """Return a constant as CUDA reads it."""
    if node.type not in ("float", "double"):
        return _integer(node) if node.type in UNSIGNED else str(bool(node.value)).lower()
    (number,) = struct.unpack(">d", bytes.fromhex(node.value))
    single = node.type == "float"
    if math.isfinite(number):
        return f"({np.float32(number)!s}f)" if single else f"({number!r})"
    if single:
        return f"__int_as_float(0x{np.float32(number).view(np.uint32):08x})"
    return f"__longlong_as_double(0x{np.float64(number).view(np.uint64):016x}LL)"


def _integer(node: Node) -> str:
    """Print an integer; the least numbers have no literals."""
    value, suffix = int(node.value), "LL" if node.type == "i64" else ""
    return f"({value + 1}{suffix} - 1)" if value in (-(2**31), -(2**63)) else f"({value}{suffix})"
