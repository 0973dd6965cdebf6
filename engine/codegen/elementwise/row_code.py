"""Prints row kernels (see `row_kernel`) as LLVM IR."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ...common.quick_dataclass import dataclass
from ..expression.llvm import conversion, instruction, literal, may_be_shared
from ..llvm.builder import BYTES, IN_LOOP, LOOP, Carried, FunctionBuilder, Size
from .row_kernel import BLOCK, RowSpec

_IDENTITY = {
    ("add", "float"): "-0.0",
    ("add", "double"): "-0.0",
    ("add", "i32"): "0",
    ("add", "i64"): "0",
    ("max", "float"): "0xFFF0000000000000",
    ("max", "double"): "0xFFF0000000000000",
    ("max", "i32"): str(-(2**31)),
    ("max", "i64"): str(-(2**63)),
    ("min", "float"): "0x7FF0000000000000",
    ("min", "double"): "0x7FF0000000000000",
    ("min", "i32"): str(2**31 - 1),
    ("min", "i64"): str(2**63 - 1),
}


_INTEGERS = ("i32", "i64")


def register_of(kind: str) -> str:
    """Return the type in which elements of a type are computed."""
    return "float" if kind in ("half", "bfloat") else kind


@dataclass(frozen=True)
class RowKernel(RowSpec):
    """A kernel over rows (see `RowSpec`)."""

    def print_run(self, name: str) -> str:
        """Print the run function, and the function that computes one part."""
        return _Body(self, name).print() + _Run(self, name).print()


class _Function(FunctionBuilder):
    """A function of a row kernel.

    Args:
        spec: the kernel.
        name: of the function.
        parameters: see `FunctionBuilder`.
    """

    def __init__(self, spec: RowSpec, name: str, parameters: Sequence[str]) -> None:
        super().__init__(name, parameters)
        self.spec = spec
        self.analysis = spec.analysis

    def combined(self, operation: str, kind: str, x: str, y: str, reassociates: bool = False) -> str:
        """Return two partial results of a reduction put together."""
        if operation == "add":
            adding = f"add {kind}" if kind in _INTEGERS else f"fadd {'reassoc ' * reassociates}{kind}"
            return self.let(f"{adding} {x}, {y}")
        if kind in _INTEGERS:
            larger = self.let(f"icmp {'sgt' if operation == 'max' else 'slt'} {kind} {x}, {y}")
            return self.let(f"select i1 {larger}, {kind} {x}, {kind} {y}")
        suffix = "f32" if kind == "float" else "f64"
        return self.let(f"call nsz {kind} @llvm.{operation}imum.{suffix}({kind} {x}, {kind} {y})")

    # --- numbers --------------------------------------------------------------------------------------------

    def print_numbers(self) -> None:
        """Load the numbers: %extent_0, ..., %stride_K_L, %parts, %rows, %scratch, %kept_bytes, %size_O."""
        spec = self.spec
        labels = [f"extent_{loop}" for loop in range(spec.loops)]
        labels += [f"stride_{k}_{loop}".replace("-1", "c") for k, loop in spec.strides]
        labels += ["parts", "rows", "scratch", "kept_bytes", *[f"size_{o}" for o in range(len(spec.outputs))]]
        for position, label in enumerate(labels):
            pointer = self.element("i64", "%numbers", position)
            self.line(f"%{label} = load i64, ptr {pointer}")

    def copies(self, reduction: int) -> str:
        """Return the number of pieces of a gathered sum."""
        return "%parts" if self.spec.nodes[reduction].value[1][0] else "1"

    def gathered_outputs(self) -> dict[int, int]:
        """Return the outputs that are gathered, with one of the reductions of each."""
        return {output: reduction for output, _, reduction in self.analysis.gathering()}

    def gathered_type(self, output: int) -> str:
        """Return the type in which an output is gathered: single numbers in double precision."""
        operand = self.spec.outputs[output]
        kind = register_of(operand.type)
        return "double" if kind == "float" and not any(operand.steps) else kind

    def print_pieces(self, part: str | None) -> None:
        """Print the addresses of gathered sums, %g0, ...: of the piece of one part, or of the first pieces."""
        kept = self.let("mul i64 %parts, %kept_bytes")
        position = self.let(f"add i64 %scratch, {kept}")
        for output, reduction in self.gathered_outputs().items():
            bytes = self.let(f"mul i64 %size_{output}, {BYTES[self.gathered_type(output)]}")
            own = position
            if part is not None and self.copies(reduction) != "1":
                own = self.let(f"add i64 {position}, {self.let(f'mul i64 {part}, {bytes}')}")
            self.line(f"%g{output} = inttoptr i64 {own} to ptr")
            total = self.let(f"mul i64 {bytes}, {self.copies(reduction)}")
            position = self.let(f"add i64 {position}, {self.let(f'add i64 {total}, 64')}")
        self._print_copies(position)

    def _print_copies(self, position: str) -> None:
        """Print the addresses of transposed operands, %t0, ..., from a position on."""
        for k in self.spec.transposed:
            self.line(f"%t{k} = inttoptr i64 {position} to ptr")
            bytes = self.let(f"mul i64 {self.size_of(k)}, {self.spec.operands[k].itemsize}")
            position = self.let(f"add i64 {position}, {self.let(f'add i64 {bytes}, 64')}")

    def size_of(self, k: int) -> Size:
        """Return the number of elements of an operand that has components."""
        steps = self.spec.operands[k].steps
        return self.mul(self.spec.unrolled, *[f"%extent_{loop}" for loop, is_step in enumerate(steps) if is_step])

    def transposing(self, size: Size) -> Generator[tuple[str, str], None, None]:
        """Print loops over elements that are transposed; the body takes where each is before and after that."""
        extent, unrolled = f"%extent_{self.spec.loops - 1}", self.spec.unrolled
        block = self.mul(extent, unrolled)
        with self.loop("0", size, block) as first, self.loop("0", extent, metadata=LOOP) as index:
            for component in range(unrolled):
                own = self.add(first, self.mul(index, unrolled), component)
                yield str(own), str(self.add(first, self.mul(component, extent), index))

    def count_of(self, mask: Sequence[bool], factor: int, kind: str) -> str:
        """Return the number of elements over which a reduction goes."""
        count = str(factor)
        for loop, is_reduced in enumerate(mask):
            if is_reduced:
                count = self.let(f"mul i64 {count}, %extent_{loop}")
        return self.let(f"sitofp i64 {count} to {kind}")


class _Run(_Function):
    """The function that divides the work and adds up what was gathered."""

    def __init__(self, spec: RowSpec, name: str) -> None:
        self._pointers = [*[f"%d{k}" for k in range(len(spec.operands))], "%numbers"]
        self._name = name
        super().__init__(spec, f"{name}_run", [f"ptr {pointer}" for pointer in self._pointers])

    def print(self) -> str:
        spec = self.spec
        context = self.slot(f"[{len(self._pointers)} x ptr]", alignment=8)
        for k, pointer in enumerate(self._pointers):
            self.store("ptr", pointer, context, k)
        self.print_numbers()
        self.print_pieces(None)
        for output, reduction in self.gathered_outputs().items():
            kind = self.gathered_type(output)
            total = self.let(f"mul i64 %size_{output}, {self.copies(reduction)}")
            identity = _IDENTITY[spec.nodes[reduction].value[0], kind]
            with self.loop(0, total, metadata=LOOP) as index:
                self.store(kind, identity, self.element(kind, f"%g{output}", index), metadata=IN_LOOP)
        for k in spec.transposed:
            kind = spec.operands[k].memory
            for place, other in self.transposing(self.size_of(k)):
                value = self.load(kind, self.element(kind, f"%d{k}", place), metadata=IN_LOOP)
                self.store(kind, value, self.element(kind, f"%t{k}", other), metadata=IN_LOOP)
        self.line(f"call void @anabranch_parallel(ptr @{self._name}_part, ptr {context}, i64 %parts)")
        for output, reduction in self.gathered_outputs().items():
            self._finish(output, reduction)
        return self.text() + self._task()

    def _task(self) -> str:
        """Return the function of one part: it takes the pointers out of the context."""
        parameters = ["ptr %context", "i64 %part"]
        code = FunctionBuilder(f"{self._name}_part", parameters, attributes="", flushes=self.spec.flushes)
        pointers = [("ptr", code.load("ptr", "%context", k)) for k in range(len(self._pointers))]
        code.call(f"{self._name}_body", [*pointers, ("i64", "%part")])
        return code.text()

    def _finish(self, output: int, reduction: int) -> None:
        """Put the pieces of one output together, and store it."""
        spec, kind = self.spec, self.gathered_type(output)
        operation = spec.nodes[reduction].value[0]
        size = f"%size_{output}"
        if self.copies(reduction) != "1":
            others = self.let("sub i64 %parts, 1")
            with self.loop(0, others) as copy:
                piece = self.let(f"mul i64 {self.let(f'add i64 {copy}, 1')}, {size}")
                start = self.element(kind, f"%g{output}", piece)
                with self.loop(0, size, metadata=LOOP) as index:
                    own = self.element(kind, f"%g{output}", index)
                    x = self.load(kind, own, metadata=IN_LOOP)
                    y = self.load(kind, self.element(kind, start, index), metadata=IN_LOOP)
                    self.store(kind, self.combined(operation, kind, x, y), own, metadata=IN_LOOP)
        divisor = next((n for o, _, n in spec.stores if o == output and n in self.analysis.finishes), None)
        count = ""
        if divisor is not None:
            counted, factor = spec.nodes[spec.nodes[divisor].arguments[1]].value
            count = self.count_of(counted, factor, kind)
        for index, gathered in self._places(output, size):
            self._finish_element(output, kind, index, gathered, count)

    def _places(self, output: int, size: str) -> Generator[tuple[str, str], None, None]:
        """Print loops over an output; the body takes where each element is, and where it was gathered."""
        k = len(self.spec.inputs) + output
        if k in self.spec.parted and self.spec.operands[k].steps[-1]:
            yield from self.transposing(size)
            return
        with self.loop(0, size, metadata=LOOP) as index:
            yield index, index

    def _finish_element(self, output: int, kind: str, index: str, gathered: str, count: str) -> None:
        operand = self.spec.outputs[output]
        value = self.load(kind, self.element(kind, f"%g{output}", gathered), metadata=IN_LOOP)
        value = self.let(f"fdiv {kind} {value}, {count}") if count else value
        register = register_of(operand.type)
        value = value if kind == register else self.let(conversion(kind, register, value))
        target = self.element(operand.memory, f"%d{len(self.spec.inputs) + output}", index)
        self.store_number(operand.type, value, target, IN_LOOP)


class _Body(_Function):
    """The function that computes one part."""

    def __init__(self, spec: RowSpec, name: str) -> None:
        pointers = [f"ptr {'' if may_be_shared(o) else 'noalias '}%d{k}" for k, o in enumerate(spec.operands)]
        super().__init__(spec, f"{name}_body", [*pointers, "ptr %numbers", "i64 %part"])

    def print(self) -> str:
        self.print_numbers()
        self.print_pieces("%part")
        self.begin_row = self.let("mul i64 %part, %rows")
        self.end_row = self.least(self.let(f"add i64 {self.begin_row}, %rows"), "%extent_0")
        self._print_kept()
        self.values: dict[int, str] = {}  # of nodes that are the same along a row
        self._nest(0, [])
        return self.text()

    def _print_kept(self) -> None:
        own = self.let("mul i64 %part, %kept_bytes")
        address = self.let(f"add i64 %scratch, {own}")
        piece = self.let(f"mul i64 %extent_{self.spec.loops - 1}, 8")
        piece = self.let(f"add i64 {piece}, 64")
        for node in sorted(self.analysis.kept):
            self.line(f"%kept{node} = inttoptr i64 {address} to ptr")
            address = self.let(f"add i64 {address}, {piece}")

    def _nest(self, loop: int, counters: list[str]) -> None:
        if loop == self.spec.loops - 1:
            self._row(counters)
            return
        start, end = (self.begin_row, self.end_row) if loop == 0 else ("0", f"%extent_{loop}")
        with self.loop(start, end) as index:
            self._nest(loop + 1, [*counters, index])

    # --- rows -----------------------------------------------------------------------------------------------

    def _row(self, counters: list[str]) -> None:
        self._bases = [self._base(k, counters) for k in range(len(self.spec.operands))]
        self._pieces = {
            o: self._base(len(self.spec.inputs) + o, counters, f"%g{o}", self.gathered_type(o))
            for o in self.gathered_outputs()
        }
        analysis = self.analysis
        for stage in range(analysis.last + 1):
            self._row_nodes(stage)
            if analysis.sinks(stage) or any(analysis.stage[node] == stage for node in analysis.kept):
                self._pass(stage)
        self._row_nodes(analysis.last + 1)
        inputs = len(self.spec.inputs)
        for output, component, node in analysis.end_stores():
            address = self._element(inputs + output, component, None)
            self.store_number(self.spec.outputs[output].type, self.values[node], address)
        for output, component, reduction in analysis.gathering():
            if not analysis.gathers_along(output, reduction):
                self._gather_once(output, component, reduction)

    def _base(self, k: int, counters: Sequence[str], pointer: str = "", kind: str = "") -> str:
        """Return the address of the first element of an operand in this row."""
        operand = self.spec.operands[k]
        offset = ""
        for loop, counter in enumerate(counters):
            if operand.steps[loop]:
                term = self.let(f"mul i64 {counter}, %stride_{k}_{loop}")
                offset = self.let(f"add i64 {offset}, {term}") if offset else term
        pointer = pointer or (f"%t{k}" if k in self.spec.transposed else f"%d{k}")
        return self.element(kind or operand.memory, pointer, offset or "0")

    def _element(self, k: int, component: int, index: str | None, base: str = "", kind: str = "") -> str:
        """Return the address of an element of a row; of what is gathered there, if its base is given."""
        operand = self.spec.operands[k]
        address, kind = base or self._bases[k], kind or operand.memory
        if k in self.spec.parted:
            return self.element(kind, address, self._unrolled(k, component, index, base != ""))
        if component:
            offset = self.let(f"mul i64 %stride_{k}_c, {component}")
            address = self.element(kind, address, offset)
        return address if index is None or not operand.steps[-1] else self.element(kind, address, index)

    def _unrolled(self, k: int, component: int, index: str | None, is_gathered: bool) -> Size:
        """Return the place of an element of an operand that has the innermost axis, which is written out."""
        if index is None or not self.spec.operands[k].steps[-1]:
            return component
        if is_gathered or k in self.spec.transposed:
            return self.add(self.mul(component, f"%extent_{self.spec.loops - 1}"), index)
        return self.add(self.mul(index, self.spec.unrolled), component)

    def _row_nodes(self, stage: int) -> None:
        """Compute the nodes that are the same along the row, and known before pass `stage`."""
        analysis = self.analysis
        for position, node in enumerate(self.spec.nodes):
            if analysis.along[position] or analysis.stage[position] != stage or position in self.analysis.gathered:
                continue
            if position in analysis.finishes or (node.kind == "reduce"):
                continue
            self.values[position] = self._computed(position, self.values, None)

    def _computed(self, position: int, values: dict[int, str], index: str | None) -> str:
        node = self.spec.nodes[position]
        if node.kind == "constant":
            return literal(node)
        if node.kind == "count":
            mask, factor = node.value
            return self.count_of(mask, factor, node.type)
        if node.kind == "load":
            k, component = int(node.value[0]), int(node.value[1])
            tail = "" if index is None else IN_LOOP
            return self.load_number(self.spec.inputs[k].type, self._element(k, component, index), tail)
        types = [self.spec.nodes[k].type for k in node.arguments]
        return self.let(instruction(node, [self._value(k, values) for k in node.arguments], types))

    def _value(self, position: int, values: dict[int, str]) -> str:
        return values[position] if position in values else self.values[position]

    # --- passes along a row ---------------------------------------------------------------------------------

    def _pass(self, stage: int) -> None:
        reductions = self.analysis.row_reductions(stage)
        only = self.spec.loops == 1
        start, end = (self.begin_row, self.end_row) if only else ("0", f"%extent_{self.spec.loops - 1}")
        if not reductions:
            with self.loop(start, end, metadata=LOOP) as index:
                self._elements(stage, index)
            return
        totals = {r: _Total(self, r) for r in reductions}
        outer = [phi for total in totals.values() for phi in total.phis]
        with self.loop(start, end, BLOCK, carried=outer) as block:
            block_end = self.least(self.let(f"add i64 {block}, {BLOCK}"), end)
            inner = [total.block_phi for total in totals.values()]
            with self.loop(block, block_end, metadata=LOOP, carried=inner) as index:
                values = self._elements(stage, index)
                for reduction, total in totals.items():
                    total.print_element(self._value(self.spec.nodes[reduction].arguments[0], values))
            for total in totals.values():
                total.print_block()
        for reduction, total in totals.items():
            self.values[reduction] = total.result()

    def _elements(self, stage: int, index: str) -> dict[int, str]:
        """Return one element of each node that a pass needs, and what is stored of it."""
        analysis, spec = self.analysis, self.spec
        values: dict[int, str] = {}
        for position in sorted(analysis.needed(stage, analysis.kept)):
            kind = spec.nodes[position].type
            if position in analysis.kept:
                memory = "i8" if kind == "i1" else kind
                address = self.element(memory, f"%kept{position}", index)
                if analysis.stage[position] < stage:
                    values[position] = self.load_number(kind, address, IN_LOOP)
                    continue
                values[position] = self._computed(position, values, index)
                self.store_number(kind, values[position], address, IN_LOOP)
                continue
            values[position] = self._computed(position, values, index)
        if stage == analysis.last:
            self._store_elements(values, index)
        return values

    def _store_elements(self, values: dict[int, str], index: str) -> None:
        analysis, spec = self.analysis, self.spec
        inputs = len(spec.inputs)
        for output, component, node in analysis.row_stores():
            address = self._element(inputs + output, component, index)
            self.store_number(spec.outputs[output].type, self._value(node, values), address, IN_LOOP)
        for output, component, reduction in analysis.gathering():
            if analysis.gathers_along(output, reduction):
                value = self._value(spec.nodes[reduction].arguments[0], values)
                self._gather(output, component, reduction, value, index, IN_LOOP)

    # --- sums over other axes -------------------------------------------------------------------------------

    def _gather(self, output: int, component: int, reduction: int, value: str, index: str | None, tail: str) -> None:
        """Add a value to its place in what is gathered."""
        kind, node = self.gathered_type(output), self.spec.nodes[reduction]
        k = len(self.spec.inputs) + output
        address = self._element(k, component, index, self._pieces[output], kind)
        before = self.load(kind, address, metadata=tail)
        # With what was loaded as the first operand, LLVM stores maxima under masks, for which the next loads wait.
        x, y = (before, value) if node.value[0] == "add" else (value, before)
        self.store(kind, self.combined(node.value[0], kind, x, y), address, metadata=tail)

    def _gather_once(self, output: int, component: int, reduction: int) -> None:
        """Add what a row gives."""
        node = self.spec.nodes[reduction]
        source = reduction if node.value[1][-1] else node.arguments[0]
        value, kind = self.values[source], self.gathered_type(output)
        if kind != node.type:
            value = self.let(conversion(node.type, kind, value))
        self._gather(output, component, reduction, value, None, "")


class _Total:
    """A reduction along a row: an accumulator of one block, and the total of the blocks.

    Sums of float32 blocks are added in double precision, and those of float64 with their rounding errors (Neumaier).
    """

    def __init__(self, body: _Body, reduction: int) -> None:
        self._body = body
        node = body.spec.nodes[reduction]
        self._kind = node.type
        self._operation: str = node.value[0]
        self._wide = "double" if self._operation == "add" and self._kind == "float" else self._kind
        self._names = [f"%{body.fresh()}" for _ in range(6)]
        block, block_next, total, total_next, error, error_next = self._names
        self.block_phi = Carried(block, self._kind, _IDENTITY[self._operation, self._kind], block_next)
        self.phis = [Carried(total, self._wide, _IDENTITY[self._operation, self._wide], total_next)]
        self._is_compensated = self._operation == "add" and self._kind == "double"
        if self._is_compensated:
            self.phis.append(Carried(error, "double", "0.0", error_next))

    def print_element(self, value: str) -> None:
        """Take one element."""
        block, block_next = self._names[:2]
        result = self._body.combined(self._operation, self._kind, block, value, reassociates=True)
        self._rename(result, block_next)

    def _rename(self, name: str, wanted: str) -> None:
        """Give the value of the last line another name."""
        lines = self._body.lines
        assert lines[-1].startswith(f"  {name} = ")
        lines[-1] = f"  {wanted}{lines[-1][2 + len(name) :]}"

    def print_block(self) -> None:
        """Take the block's result, which the loop over it left."""
        body = self._body
        block, _, total, total_next, error, error_next = self._names
        value = block if self._wide == self._kind else body.let(conversion(self._kind, self._wide, block))
        result = body.combined(self._operation, self._wide, total, value)
        self._rename(result, total_next)
        if not self._is_compensated:
            return
        added = body.let(f"fsub double {total_next}, {total}")
        first = body.let(f"fsub double {total}, {body.let(f'fsub double {total_next}, {added}')}")
        second = body.let(f"fsub double {value}, {added}")
        lost = body.let(f"fadd double {first}, {second}")
        body.line(f"{error_next} = fadd double {error}, {lost}")

    def result(self) -> str:
        body = self._body
        total, error = self._names[2], self._names[4]
        if self._is_compensated:
            finite = body.let(f"fcmp oeq double {error}, {error}")  # infinite totals lose "NaN"
            correction = body.let(f"select i1 {finite}, double {error}, double -0.0")
            return body.let(f"fadd double {total}, {correction}")
        return total if self._wide == self._kind else body.let(conversion(self._wide, self._kind, total))
