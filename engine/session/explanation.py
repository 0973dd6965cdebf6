"""The result of `explain`: a step in short, its program, its kernels, and all of it as a page."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..codegen.regions.region import NativeRegion
from ..common.html import escape, page, shortened, view
from ..control_flow.cond import Branch
from ..control_flow.while_loop import While
from ..graph.graph import Graph, Operation
from ..graph.provenance import Location
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.collectives import Collective, current_group
from ..passes.framework.log import PassLog
from ..passes.loops.independent_rows import why_rows_depend
from ..place.devices import list_devices
from ..runtime.program import Program
from .pass_report import grouped, line_of

_MOST_LINES = 15  # of a summary
_MOST_LOOPS, _MOST_MOVED, _MOST_STAYED = 3, 4, 3
_WIDTH = 150  # of a line of a summary
_MOVING = ("invariants", "fission", "ragged_batches", "unroll")  # the passes that take work out of loops
_STAYING = (*_MOVING, "native", "epilogues")
_WITH_MORE = ("product_then", "winograd_then")
_PRODUCTS = (
    *("matmul", "packed_mat_mul", "batch_matmul", "contraction", "quantized_matmul", "laid_out_mat_mul"),
    *("int4_matmul", "laid_out_int4_mat_mul"),
    *("conv", "conv_input_grad", "conv_filter_grad", "winograd"),
    *_WITH_MORE,
)
_AROUND = 3  # lines of the user's that a page shows around those that built operations


class Explanation(str):
    """The text of `explain`, with what it was made of.

    Attributes:
        summary: loops, what was moved out of them, kernels, products, and what stayed where it was and why.
        source: the program, as Python.
        passes: what each pass of the compiler did.
    """

    summary: str
    source: str
    passes: str
    _program: Any
    _llvm: Callable[[], str]

    def __new__(cls, text: str, program: Any, summary: str, passes: str, llvm: Callable[[], str]) -> Explanation:
        """Return the text as an explanation.

        Args:
            text: of the whole.
            program: the compiled program.
            summary: of the step.
            passes: what passes did.
            llvm: prints the kernels.
        """
        made = super().__new__(cls, text)
        made.summary, made.source, made.passes = summary, program.source, passes
        made._program, made._llvm = program, llvm
        return made

    def __repr__(self) -> str:
        return str(self)

    @property
    def llvm(self) -> str:
        """The kernels and native regions of the program, as LLVM IR; "" where it has none."""
        return self._llvm()

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with your lines, the program and its kernels side by side, and write it where a path is given.

        A click on a line marks what was built from it, and leads there.
        """
        text = side_by_side("What became of a step", self.summary, self._program, self.llvm)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        return view(
            f"<pre>{escape(self.summary)}</pre>",
            f"<details><summary>the program</summary><pre>{escape(self.source)}</pre></details>",
        )


# --- in short -------------------------------------------------------------------------------------------------------


def summary_of(program: Any, log: PassLog, rows: Sequence[str] | None = None) -> str:
    """Return at most 15 lines on a program.

    Args:
        program: compiled, while `log` was recorded.
        log: what passes did.
        rows: the line on its rows, if there is one; by default that of `describe_rows`.
    """
    around: dict[Operation, tuple[Operation, ...]] = {}
    for origin in program.origins.values():
        around.setdefault(origin.operation, tuple([loop for loop, _ in origin.loops]))
    loops = [operation for operation in around if isinstance(operation.op, While)]
    kernels = [operation for operation in around if operation.type.startswith("fused")]
    report = [
        _counts(program, around, loops, kernels),
        *(describe_rows(*program.step_asked_for[:3]) if rows is None else rows),
    ]
    report += _shortened([_describe_loop(loop, around) for loop in loops], _MOST_LOOPS, "further loops")
    moved = [note for note in log.changes if note.pass_name in _MOVING]
    report += _shortened(
        [f"moved: {line}" for line in grouped(moved)], _MOST_MOVED, "further places where work was moved"
    )
    report += _describe_kernels(kernels)
    report += _describe_products(around, log)
    report += _describe_collectives(around)
    stayed = [note for note in log.kept if note.pass_name in _STAYING]
    stayed.sort(key=lambda note: _STAYING.index(note.pass_name))
    report += _shortened([f"stayed: {line}" for line in grouped(stayed)], _MOST_STAYED, "further things that stayed")
    return "\n".join(shortened(line, _WIDTH) for line in report[:_MOST_LINES]) + "\n"


def _counts(
    program: Any, around: Mapping[Operation, Any], loops: Sequence[Operation], kernels: Sequence[Operation]
) -> str:
    products = sum(operation.type in _PRODUCTS for operation in around)
    branches = sum(isinstance(operation.op, Branch) for operation in around)
    natives = len(_natives(program))
    parts = [
        _number(len(around), "operation"),
        _number(len(loops), "loop"),
        *([_number(branches, "branch", "branches")] if branches else []),
        _number(len(kernels), "fused kernel"),
        _number(products, "product"),
        *([_number(natives, "native region")] if natives else []),
    ]
    return f"a step of {', '.join(parts)}, in {len(program.source.splitlines())} lines of the program"


def describe_rows(graph: Graph, targets: Sequence[Any], feeds: Sequence[Symbol]) -> list[str]:
    """Say whether rows of batches can be computed together, of a step that takes batches of any size; else nothing.

    The model server joins requests only where they can.
    """
    is_open = [isinstance(each.spec, TensorSpec) and each.spec.shape and each.spec.shape[0] is None for each in feeds]
    if not feeds or not all(is_open) or not all(isinstance(target, Symbol) for target in targets):
        return []
    why = why_rows_depend(graph, feeds, targets)
    return ["rows: each is computed for itself" if why is None else f"rows: {why}"]


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _describe_loop(loop: Operation, around: Mapping[Operation, tuple[Operation, ...]]) -> str:
    inside = [operation for operation, loops in around.items() if loop in loops]
    products = sum(operation.type in _PRODUCTS for operation in inside)
    each = f"{_number(len(inside), 'operation')} an iteration, {_number(products, 'product')} among them"
    depth = "" if not around[loop] else f", inside {around[loop][0].name!r}"
    return f"loop {loop.name}{_where(loop.location)}: {each if inside else 'runs as a whole'}{depth}"


def _describe_collectives(around: Iterable[Operation]) -> list[str]:
    """Say where collectives run, of a process with a GPU that is one of several, and why not there."""
    found = [(each.device, each.op) for each in around if isinstance(each.op, Collective) and not each.op.host_only]
    if not found or current_group().size == 1 or all(device.kind != "gpu" for device in list_devices()):
        return []
    reasons = [(device, op.why_by_host()) for device, op in found]
    whys = [why for device, why in reasons if why is not None or not device.startswith("gpu")]
    there = len(found) - len(whys)  # without those that were put there before a reason was found in another member
    parts = [f"{there} on the GPU, by NCCL"] if there else []
    if whys:
        why = next((why for why in whys if why is not None), "their values are there")
        parts.append(f"{len(whys)} by the memory of the host ({why})")
    return [f"collectives: {', '.join(parts)}"]


def _describe_kernels(kernels: Sequence[Operation]) -> list[str]:
    if not kernels:
        return []
    sizes = [(_steps_of(operation), operation) for operation in kernels]
    size, largest = max(sizes, key=lambda pair: pair[0])
    whole = sum(count for count, _ in sizes)
    return [
        f"kernels: {len(kernels)} that compute {_number(whole, 'operation')}; the largest computes {size}: "
        f"{largest.name}{_where(largest.location)}"
    ]


def _steps_of(operation: Operation) -> int:
    return max(1, len(getattr(operation.op, "steps", ())))


def _describe_products(around: Mapping[Operation, tuple[Operation, ...]], log: PassLog) -> list[str]:
    products = [operation for operation in around if operation.type in _PRODUCTS]
    if not products:
        return []
    inside = sum(bool(around[operation]) for operation in products)
    merged = sum(note.pass_name == "merge_products" for note in log.changes)
    with_more = sum(operation.type in _WITH_MORE for operation in products)
    report = f"products: {inside} in loops, {len(products) - inside} outside"
    report += f", {with_more} with what follows in the same kernel" if with_more else ""
    return [report + (f"; {merged} merged with others" if merged else "")]


def _shortened(lines: Sequence[str], most: int, rest: str) -> list[str]:
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"  and {len(lines) - most + 1} {rest}: see .passes"]


def _where(location: Location | None) -> str:
    if location is None:
        return ""
    forward = "" if location.forward is None else f", gradient of {line_of(location.forward)}"
    return f" ({line_of(location)}{forward})"


# --- kernels --------------------------------------------------------------------------------------------------------


def llvm_of(program: Any) -> str:
    """Return the kernels and native regions of a program as LLVM IR, by their names in the program."""
    return "\n".join(f"; --- {name} ---\n{text.strip()}\n" for name, text in kernels_of(program).items())


def kernels_of(program: Any) -> dict[str, str]:
    """Return the LLVM IR of each kernel and native region of a program, by its name there."""
    from ..codegen.llvm.library import library

    bindings = _bindings(program)
    printed = library.printed({name: value for name, value in bindings.items() if callable(value)})
    natives = {name: region.plan.text.replace("@NAME", f"@{name}") for name, region in _natives(program).items()}
    return printed | natives


def _natives(program: Any) -> dict[str, NativeRegion]:
    return {name: value for name, value in _bindings(program).items() if isinstance(value, NativeRegion)}


def _bindings(program: Any) -> Mapping[str, Any]:
    return program.bindings if isinstance(program, Program) else program._bindings


# --- as a page ------------------------------------------------------------------------------------------------------

_STYLE = """
body {margin: 0} .ab-view {padding: 12px} .columns {display: grid; grid-template-columns: 2fr 3fr 3fr; gap: 10px}
.columns > div {overflow: auto; height: 78vh; border: 1px solid #8886; border-radius: 4px; padding: 4px}
.columns pre {margin: 0} .columns .l {display: block; min-height: 1.45em; padding: 0 4px; scroll-margin: 30vh}
.columns .b {cursor: pointer} .columns .m {background: #facc1566} .no {color: #8889; user-select: none}
.ab-view > pre {white-space: pre-wrap}
@media (max-width: 800px) {.columns {grid-template-columns: 100%} .columns > div {height: auto; max-height: 60vh}}
"""
_SCRIPT = """
document.querySelectorAll('[data-u]').forEach(function (line) {
  line.addEventListener('click', function () {
    document.querySelectorAll('.m').forEach(function (one) { one.classList.remove('m') })
    var own = line.dataset.u.split(' ')
    document.querySelectorAll('[data-u]').forEach(function (one) {
      if (one.dataset.u.split(' ').some(function (u) { return own.includes(u) })) one.classList.add('m') })
    document.querySelectorAll('.columns > div').forEach(function (column) {
      var first = column.querySelector('.m')
      if (first && !column.contains(line)) first.scrollIntoView({block: 'center'}) })
  })
})
"""


def side_by_side(title: str, summary: str, program: Any, llvm: str) -> str:
    """Return a page of the user's lines, the program, and its kernels, side by side.

    Args:
        title: of the page.
        summary: in front of it.
        program: the compiled program.
        llvm: its kernels.
    """
    lines = program.source.splitlines()
    locations = {number: origin.operation.location for number, origin in program.origins.items()}
    users = sorted({(o.filename, o.line) for o in locations.values() if o is not None})
    known = {place: f"u{number}" for number, place in enumerate(users)}
    keys = {n: known[o.filename, o.line] for n, o in locations.items() if o is not None}
    by_kernel: dict[str, list[str]] = {}
    for number, key in keys.items():
        for name in re.findall(r"\b(?:kernel|native)(?:_\d+)?(?=\()", lines[number - 1]):
            by_kernel.setdefault(name, []).append(key)
    columns = [
        f"<div><h2>Your lines</h2><pre>{''.join(_user_lines(users, known))}</pre></div>",
        f"<div><h2>The program</h2><pre>{_numbered(lines, keys)}</pre></div>",
        f"<div><h2>Its kernels (LLVM IR)</h2><pre>{''.join(_kernel_lines(llvm, by_kernel))}</pre></div>",
    ]
    body = f'<div class="columns">{"".join(columns)}</div><script>{_SCRIPT}</script>'
    return page(title, f"<pre>{escape(summary)}</pre>", body, style=_STYLE)


def _numbered(lines: Sequence[str], keys: Mapping[int, str]) -> str:
    return "".join(_line(number, text, keys.get(number, "")) for number, text in enumerate(lines, 1))


def _line(number: int | str, text: str, key: str) -> str:
    marks = f' class="l b" data-u="{key}"' if key else ' class="l"'
    return f'<span{marks}><span class="no">{number:>4} </span>{escape(text)}</span>'


def _user_lines(users: Sequence[tuple[str, int]], known: Mapping[tuple[str, int], str]) -> Iterable[str]:
    """Return the lines of the user's files from which operations were built, with some around them."""
    for filename in dict.fromkeys(name for name, _ in users):
        own = [line for name, line in users if name == filename]
        yield f'<span class="l"><b>{escape(os.path.basename(filename))}</b></span>'
        texts = linecache.getlines(filename)
        shown = sorted({n for line in own for n in range(line - _AROUND, line + _AROUND + 1) if 0 < n <= len(texts)})
        last: int = 0
        for number in shown or own:
            if last and number != last + 1:
                yield '<span class="l no">   ...</span>'
            text = texts[number - 1].rstrip() if texts else ""
            yield _line(number, text, known.get((filename, number), ""))
            last = number


def _kernel_lines(llvm: str, by_kernel: Mapping[str, Sequence[str]]) -> Iterable[str]:
    keys = ""
    for text in llvm.splitlines():
        if text.startswith("; --- "):
            keys = " ".join(dict.fromkeys(by_kernel.get(text[6:].partition(" ")[0], ())))
        marks = f' class="l b" data-u="{keys}"' if keys else ' class="l"'
        yield f"<span{marks}>{escape(text)}</span>"
