"""Prints row kernels (see `row_kernel`) as CUDA C++: their functions, each of which is one launch.

A function `rows` computes a row with a team of threads: one, a warp or a block. It runs along the row once for each
stage, and computes again what stages have in common, instead of keeping it in memory. Where nothing is reduced along
rows, `elements` computes an element a thread. Sums over other axes are functions `gather`: a thread takes every so many
terms, threads of a block add up what they have in a tree, and `finish` adds up the pieces of several blocks, in order.
Which thread adds what follows from sizes alone, so that results are the same in each run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...common.quick_dataclass import dataclass
from ...graph.search import reached
from ..elementwise.row_kernel import RowSpec
from ..expression.expression import Node
from .elementwise import (
    TYPES,
    UNSIGNED,
    arithmetic_text,
    expression_text,
    headers_of,
    literal_text,
    loaded_text,
    parameter_text,
    stored_text,
)

WARP = 32
BLOCK = 256  # threads of a block in which sums are gathered
PIECE = 8  # bytes that a piece of a sum takes at most
ITEMSIZES = {"float": 4, "double": 8, "i32": 4, "i64": 8, "i1": 1}
_LEAST = {
    "float": "-__int_as_float(0x7f800000)",
    "double": "-__longlong_as_double(0x7ff0000000000000LL)",
    "i32": "(-2147483647 - 1)",
    "i64": "(-9223372036854775807LL - 1)",
}
_MOST = {
    "float": "__int_as_float(0x7f800000)",
    "double": "__longlong_as_double(0x7ff0000000000000LL)",
    "i32": "2147483647",
    "i64": "9223372036854775807LL",
}


@dataclass(frozen=True)
class Gathering:
    """Sums over the same loops, for outputs along the same loops: one pass over the operands gathers all.

    Attributes:
        sums: of each the output, its component, the reduction, and the count by which it is divided (a node) or -1.
        reduced: the loops over which they go.
        kept: the loops of the outputs.
    """

    sums: tuple[tuple[int, int, int, int], ...]
    reduced: tuple[int, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class RowForm:
    """The division of the work of a row kernel among threads.

    Attributes:
        by_value: positions of operands that are passed as numbers.
        index: the type of indices.
        team: threads of a row: 1, 32, or those of a block.
        widths: for each gathering, the threads of a block beside each other; the others take terms of the same sums.
    """

    by_value: tuple[int, ...]
    index: str
    team: int
    widths: tuple[int, ...]


def gatherings(spec: RowSpec) -> list[Gathering]:
    """Return the gathered sums of a row kernel, in groups that are gathered together."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int, int, int]]] = {}
    divisors = {(o, c): n for o, c, n in spec.stores if n in spec.analysis.finishes}
    for output, component, reduction in spec.analysis.gathering():
        mask, steps = spec.nodes[reduction].value[1], spec.outputs[output].steps
        key = tuple(k for k, is_in in enumerate(mask) if is_in), tuple(k for k, is_in in enumerate(steps) if is_in)
        divided = divisors.get((output, component))
        count = -1 if divided is None else spec.nodes[divided].arguments[1]
        found.setdefault(key, []).append((output, component, reduction, count))
    return [Gathering(tuple(sums), *key) for key, sums in found.items()]


def row_values(spec: RowSpec) -> list[int]:
    """Return the nodes, one value a row, that gathered sums take from memory, where `rows` puts them."""

    def is_kept(node: int) -> bool:
        return not spec.analysis.along[node] and spec.analysis.stage[node] > 0

    starts = [spec.nodes[reduction].arguments[0] for _, _, reduction in spec.analysis.gathering()]
    found = reached(starts, lambda node: () if is_kept(node) else spec.nodes[node].arguments)
    return sorted(filter(is_kept, found))


def has_row_reductions(spec: RowSpec) -> bool:
    """Test whether anything is reduced along rows for other use than its output."""
    return any(node.kind == "reduce" and k not in spec.analysis.gathered for k, node in enumerate(spec.nodes))


def has_rows(spec: RowSpec) -> bool:
    """Test whether anything but gathered sums is computed."""
    return bool(spec.analysis.row_stores() or spec.analysis.end_stores() or row_values(spec))


def print_rows(spec: RowSpec, form: RowForm) -> str:
    """Print the source of all functions: ``rows`` or ``elements``, ``gather0``, ``finish0``, ...

    All take the operands, ``scratch`` and where row values are in it, extents, strides, and numbers of their own.
    """
    parts: list[str] = []
    if has_rows(spec):
        print_main = _Rows if has_row_reductions(spec) else _Elements
        parts.append(print_main(spec, form).print())
    for number, gathering in enumerate(gatherings(spec)):
        parts.append(_Gather(spec, form, number, gathering).print())
        parts.append(_Finish(spec, form, number, gathering).print())
    text = "\n".join(parts)
    return headers_of(spec.operands, spec.nodes) + "".join(_helpers(spec, text, form.team)) + text


def _helpers(spec: RowSpec, text: str, team: int) -> Iterable[str]:
    """Yield the functions that put two terms of reductions together, and those of a team's threads."""
    reductions = {(node.value[0], node.type) for node in spec.nodes if node.kind == "reduce"}
    for operation, kind in sorted(reductions | {("add", "double")}):
        name = f"{operation}_{kind}"
        if f"{name}(" not in text:
            continue
        own = TYPES[kind]
        if operation == "add":
            result = arithmetic_text(kind, "+", "x", "y")
        else:
            result = f"x {'>' if operation == 'max' else '<'} y || x != x ? x : y"  # NaN stays
        yield f"static __device__ __forceinline__ {own} {name}({own} x, {own} y) {{ return {result}; }}\n"
        if f"team_{name}(" in text:
            yield _team(name, own, team)


def _team(name: str, kind: str, team: int) -> str:
    """Return the function by which all threads of a team get what they have together."""
    lines = [
        f"static __device__ __forceinline__ {kind} team_{name}({kind} x) {{",
        f"  for (int apart = {WARP // 2}; apart; apart /= 2) x = {name}(x, __shfl_xor_sync(0xffffffffu, x, apart));",
    ]
    if team > WARP:
        lines += [
            f"  __shared__ {kind} of_warps[{team // WARP}];",
            "  __syncthreads();",
            f"  if (threadIdx.x % {WARP} == 0) of_warps[threadIdx.x / {WARP}] = x;",
            "  __syncthreads();",
            "  x = of_warps[0];",
            f"  for (int warp = 1; warp < {team // WARP}; ++warp) x = {name}(x, of_warps[warp]);",
        ]
    return "\n".join([*lines, "  return x;", "}", ""])


class _Function:
    """A function under construction.

    Args:
        spec: the kernel.
        form: how work is divided.
    """

    numbers: tuple[str, ...] = ()  # parameters of its own

    def __init__(self, spec: RowSpec, form: RowForm) -> None:
        self.spec = spec
        self.analysis = spec.analysis
        self.form = form
        self.lines: list[str] = []
        self.values: dict[int, str] = {}
        self._indent = "  "

    def line(self, text: str) -> None:
        if text.startswith("}"):
            self._indent = self._indent[:-2]
        self.lines.append(self._indent + text)
        if text.endswith("{"):
            self._indent += "  "

    def text(self, name: str) -> str:
        """Return the whole function, of the lines so far."""
        spec, index = self.spec, self.form.index
        parameters = [parameter_text(k, o, k in self.form.by_value) for k, o in enumerate(spec.operands)]
        parameters.append("unsigned char* __restrict__ scratch")
        parameters += [f"long long at{node}" for node in row_values(spec)]
        parameters += [f"{index} extent{loop}" for loop in range(spec.loops)]
        parameters += [f"{index} stride{k}_{'c' if loop < 0 else loop}" for k, loop in spec.strides]
        parameters += self.numbers
        head = f'extern "C" __global__ void {name}({", ".join(parameters)}) {{'
        return "\n".join([head, *self.lines, "}", ""])

    def counters(self, loops: Sequence[int], number: str) -> None:
        """Print ``i0``, ...: how far loops are at a number of their iterations, the last of which advances first."""
        index, rest = self.form.index, number
        for loop in reversed(loops[1:]):
            self.line(f"{index} i{loop} = {rest} % extent{loop}, r{loop} = {rest} / extent{loop};")
            rest = f"r{loop}"
        if loops:
            self.line(f"{index} i{loops[0]} = {rest};")

    def product(self, loops: Iterable[int]) -> str:
        return " * ".join(f"extent{loop}" for loop in loops) or "1"

    def offset(self, k: int, component: int, fixed: Collection[int] = ()) -> str:
        """Return the place of an element of an operand, by the counters.

        Args:
            fixed: loops that stay at their first iteration.
        """
        operand, last = self.spec.operands[k], self.spec.loops - 1
        terms = [f"{component} * stride{k}_c"] if component else []
        for loop, steps in enumerate(operand.steps):
            if steps and loop not in fixed:
                terms.append(f"i{loop}" if loop == last else f"i{loop} * stride{k}_{loop}")
        return " + ".join(terms) or "0"

    def define(self, position: int, fixed: Collection[int] = ()) -> None:
        """Print the value of a node whose arguments have theirs."""
        node = self.spec.nodes[position]
        if node.kind == "constant":
            self.values[position] = literal_text(node)
            return
        self.values[position] = f"e{position}"
        self.line(f"{TYPES.get(node.type, '__half')} e{position} = {self._text(node, fixed)};")

    def _text(self, node: Node, fixed: Collection[int]) -> str:
        if node.kind == "count":
            return self.count(node)
        if node.kind == "load":
            k, component = int(node.value[0]), int(node.value[1])
            return loaded_text(k, self.spec.inputs[k], self.offset(k, component, fixed), k in self.form.by_value)
        types = [self.spec.nodes[k].type for k in node.arguments]
        return expression_text(node, [self.values[k] for k in node.arguments], types)

    def count(self, node: Node) -> str:
        mask, factor = node.value
        terms = [f"extent{loop}" for loop, is_reduced in enumerate(mask) if is_reduced]
        return f"({TYPES[node.type]})({' * '.join([f'{factor}LL', *terms])})"

    def identity(self, reduction: int) -> str:
        node = self.spec.nodes[reduction]
        if node.value[0] == "add":
            return "0" if node.type in UNSIGNED else "-0.0f" if node.type == "float" else "-0.0"
        return (_LEAST if node.value[0] == "max" else _MOST)[node.type]

    def combined(self, reduction: int, x: str, y: str) -> str:
        node = self.spec.nodes[reduction]
        return f"{node.value[0]}_{node.type}({x}, {y})"

    def store(self, output: int, component: int, value: str, fixed: Collection[int] = ()) -> None:
        k = len(self.spec.inputs) + output
        place = self.offset(k, component, fixed)
        self.line(f"p{k}[{place}] = {stored_text(self.spec.outputs[output], value)};")

    def needed(self, sinks: Iterable[int], known: Collection[int]) -> list[int]:
        """Return the nodes that have to be computed for others, in order."""
        found = reached(sinks, lambda node: () if node in known else self.spec.nodes[node].arguments)
        return sorted(node for node in found if node not in known)


class _Rows(_Function):
    """A row by a team of threads."""

    def print(self) -> str:
        team, index, last = self.form.team, self.form.index, self.spec.loops - 1
        self.line(f"{index} rows = {self.product(range(last))};")
        lane = "threadIdx.x" if team > WARP else f"threadIdx.x % {team}"
        first, step = "blockIdx.x", "gridDim.x"
        if team <= WARP:
            each = f"(blockDim.x / {team})"
            first, step = f"{first} * ({index}){each} + threadIdx.x / {team}", f"({index}){step} * {each}"
        self.line(f"for ({index} row = {first}; row < rows; row += {step}) {{")
        self.counters(range(last), "row")
        for stage in range(self.analysis.last + 1):
            self._once(stage)
            self._along(stage, lane)
        self._once(self.analysis.last + 1)
        ends = self.analysis.end_stores()
        kept = row_values(self.spec)
        if ends or kept:
            if team > 1:
                self.line(f"if ({lane} == 0) {{")
            for output, component, node in ends:
                self.store(output, component, self.values[node])
            for node in kept:
                kind = TYPES[self.spec.nodes[node].type]
                self.line(f"(({kind}*)(scratch + at{node}))[row] = {self.values[node]};")
            if team > 1:
                self.line("}")
        self.line("}")
        return self.text("rows")

    def _once(self, stage: int) -> None:
        """Print the nodes that are the same along the row, and known before pass `stage`."""
        analysis = self.analysis
        for position, node in enumerate(self.spec.nodes):
            if analysis.along[position] or analysis.stage[position] != stage or position in self.values:
                continue
            if position not in analysis.gathered and position not in analysis.finishes and node.kind != "reduce":
                self.define(position)

    def _along(self, stage: int, lane: str) -> None:
        """Print a pass: the reductions that it makes, and in the last one what it stores."""
        analysis, nodes = self.analysis, self.spec.nodes
        reductions = [r for r in analysis.row_reductions(stage) if r not in analysis.gathered]
        stores = analysis.row_stores() if stage == analysis.last else []
        if not reductions and not stores:
            return
        for r in reductions:
            self.values[r] = f"e{r}"
            self.line(f"{TYPES[nodes[r].type]} e{r} = {self.identity(r)};")
        last, team, before = self.spec.loops - 1, self.form.team, dict(self.values)
        i = f"i{last}"
        self.line(f"for ({self.form.index} {i} = {lane if team > 1 else '0'}; {i} < extent{last}; {i} += {team}) {{")
        sinks = [nodes[r].arguments[0] for r in reductions] + [node for _, _, node in stores]
        for position in self.needed(sinks, self.values):
            self.define(position)
        for r in reductions:
            self.line(f"e{r} = {self.combined(r, f'e{r}', self.values[nodes[r].arguments[0]])};")
        for output, component, node in stores:
            self.store(output, component, self.values[node])
        self.line("}")
        self.values = before
        for r in reductions if team > 1 else ():
            self.line(f"e{r} = team_{nodes[r].value[0]}_{nodes[r].type}(e{r});")


class _Elements(_Function):
    """An element a thread."""

    def print(self) -> str:
        spec, analysis, index = self.spec, self.analysis, self.form.index
        loops, last = range(spec.loops), spec.loops - 1
        self.line(f"{index} n = {self.product(loops)};")
        step = f"({index})gridDim.x * blockDim.x"
        self.line(f"for ({index} i = blockIdx.x * ({index})blockDim.x + threadIdx.x; i < n; i += {step}) {{")
        self.counters(loops, "i")
        for position in self.needed([node for _, _, node in analysis.row_stores()], ()):
            self.define(position)
        for output, component, node in analysis.row_stores():
            self.store(output, component, self.values[node])
        ends = analysis.end_stores()
        if ends:
            self.line(f"if (i{last} == 0) {{")
            for position in self.needed([node for _, _, node in ends], self.values):
                self.define(position)
            for output, component, node in ends:
                self.store(output, component, self.values[node])
            self.line("}")
        self.line("}")
        return self.text("elements")


class _Gather(_Function):
    """Sums over other axes than the row: those of one block, of some of the terms."""

    def __init__(self, spec: RowSpec, form: RowForm, number: int, gathering: Gathering) -> None:
        super().__init__(spec, form)
        self.number = number
        self.gathering = gathering
        self.numbers = (f"{form.index} share", "long long pieces")
        self.fixed = tuple(k for k in range(spec.loops) if k not in (*gathering.reduced, *gathering.kept))

    def print(self) -> str:
        index, nodes = self.form.index, self.spec.nodes
        width, sums = self.form.widths[self.number], self.gathering.sums
        reductions = list(dict.fromkeys(reduction for _, _, reduction, _ in sums))
        self.begin(width)
        for r in reductions:
            self.line(f"{TYPES[nodes[r].type]} s{r} = {self.identity(r)};")
        self.line("if (kept < count) {")
        self.counters(self.gathering.kept, "kept")
        self.line(f"{index} terms = {self.product(self.gathering.reduced)}, begin = blockIdx.y * share;")
        self.line(f"{index} end = terms - begin < share ? terms : begin + share;")
        self.line(f"for ({index} term = begin + threadIdx.x / {width}; term < end; term += {BLOCK // width}) {{")
        self.counters(self.gathering.reduced, "term")
        self._load_row_values()
        for position in self.needed([nodes[r].arguments[0] for r in reductions], self.values):
            self.define(position, self.fixed)
        for r in reductions:
            self.line(f"s{r} = {self.combined(r, f's{r}', self.values[nodes[r].arguments[0]])};")
        self.line("}")
        self.line("}")
        for r in reductions:
            self._add_up(r, width)
        self.line(f"if (threadIdx.x < {width} && kept < count) {{")
        self.line("if (gridDim.y == 1) {")
        self.counters(self.gathering.kept, "kept")
        self.finish({r: f"s{r}" for r in reductions})
        self.line("} else {")
        for position, r in enumerate(reductions):
            target = self.pieces(position, "gridDim.y")
            self.line(f"(({TYPES[nodes[r].type]}*){target})[(long long)blockIdx.y * count + kept] = s{r};")
        self.line("}")
        self.line("}")
        return self.text(f"gather{self.number}")

    def pieces(self, position: int, splits: str) -> str:
        """Return the place of the pieces of a sum, the `position`-th of a gathering."""
        return f"(scratch + pieces + {position * PIECE}LL * {splits} * count)" if position else "(scratch + pieces)"

    def begin(self, width: int) -> None:
        """Print which output the thread takes part in, and how many there are."""
        index = self.form.index
        self.line(f"{index} count = {self.product(self.gathering.kept)};")
        self.line(f"{index} kept = blockIdx.x * ({index}){width} + threadIdx.x % {width};")

    def _load_row_values(self) -> None:
        """Print the values of rows that were computed before."""
        self.values = {}
        nodes, last = self.spec.nodes, self.spec.loops - 1
        taken = row_values(self.spec)
        if not taken:
            return
        row = "0"
        for loop in range(last):
            own = "0" if loop in self.fixed else f"i{loop}"
            row = own if row == "0" else f"({row}) * extent{loop} + {own}"
        sinks = [nodes[reduction].arguments[0] for _, _, reduction, _ in self.gathering.sums]
        used = set(self.needed(sinks, taken)) | set(sinks)
        read = {k for node in used for k in nodes[node].arguments} | set(sinks)
        for node in taken:
            if node in read:
                kind = TYPES[nodes[node].type]
                self.line(f"{kind} e{node} = ((const {kind}*)(scratch + at{node}))[{row}];")
                self.values[node] = f"e{node}"

    def _add_up(self, reduction: int, width: int) -> None:
        """Print the sum of what threads of a block have, as a tree."""
        kind = TYPES[self.spec.nodes[reduction].type]
        if width == BLOCK:
            return
        self.line("{")
        self.line(f"__shared__ {kind} terms[{BLOCK}];")
        self.line(f"terms[threadIdx.x] = s{reduction};")
        self.line(f"for (int half = {BLOCK // 2}; half >= {width}; half /= 2) {{")
        self.line("__syncthreads();")
        both = self.combined(reduction, "terms[threadIdx.x]", "terms[threadIdx.x + half]")
        self.line(f"if (threadIdx.x < half) terms[threadIdx.x] = {both};")
        self.line("}")
        self.line(f"s{reduction} = terms[threadIdx.x];")
        self.line("}")

    def finish(self, values: dict[int, str]) -> None:
        """Print the division by the count, and the stores."""
        for output, component, reduction, count in self.gathering.sums:
            value = values[reduction]
            if count >= 0:
                value = f"{value} / {self.count(self.spec.nodes[count])}"
            self.store(output, component, value, self.fixed)


class _Finish(_Gather):
    """The pieces of several blocks put together; those of float32 sums in double precision."""

    def print(self) -> str:
        nodes, index = self.spec.nodes, self.form.index
        reductions = list(dict.fromkeys(reduction for _, _, reduction, _ in self.gathering.sums))
        self.numbers = (f"{index} splits", "long long pieces")
        self.line(f"{index} count = {self.product(self.gathering.kept)};")
        self.line(f"{index} kept = blockIdx.x * ({index})blockDim.x + threadIdx.x;")
        self.line("if (kept >= count) return;")
        self.counters(self.gathering.kept, "kept")
        values: dict[int, str] = {}
        for position, r in enumerate(reductions):
            operation, kind = nodes[r].value[0], nodes[r].type
            wide = "double" if (operation, kind) == ("add", "float") else kind
            own = TYPES[kind]
            source = f"((const {own}*){self.pieces(position, 'splits')})[(long long)split * count + kept]"
            self.line(f"{TYPES[wide]} s{r} = {'-0.0' if wide != kind else self.identity(r)};")
            self.line(f"for ({index} split = 0; split < splits; ++split) {{")
            self.line(f"s{r} = {operation}_{wide}(s{r}, {source});")
            self.line("}")
            values[r] = f"s{r}" if wide == kind else f"(float)s{r}"
        self.finish(values)
        return self.text(f"finish{self.number}")
