"""Kernels with reductions: a loop nest over rows, and for each row a few passes along it while it is in the caches.

Each pass computes what the sums of the passes before allow. Sums over other axes than the row gather in memory of their
own, one piece for each part of the work, and the pieces are added in order at the end: so results do not depend on the
number of threads. LLVM makes vectors of the inner loops; only the additions of sums may be taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.cached import cached_property
from ...common.quick_dataclass import dataclass
from ..expression.expression import Node
from ..expression.llvm import COSTS, divide, work_of
from ..llvm.entry import Operand

BLOCK = 1024  # elements of a row whose sum is taken in one piece
_CHEAP = 6  # nodes; computing as many again costs no more than keeping their result
_MOST_GATHERED = 4 << 20  # bytes of the pieces of sums that parts gather

Mask = tuple[bool, ...]  # for each loop


@dataclass(frozen=True)
class RowSpec:
    """The description of a kernel over rows; `row_code.RowKernel` prints it.

    Nodes have kinds of their own beside those of expressions: "load", whose value is (operand, component);
    "reduce", whose value is ("add", "max" or "min", the mask of the loops over which it goes); and "count", the number
    of elements of a reduction, whose value is (mask, factor).

    Attributes:
        nodes: what is computed.
        inputs: the operands that are read.
        outputs: the operands that are written.
        stores: what is written: (output, component, node).
        loops: the number of nested loops; the last runs along a row.
        strides: for each operand, the loops (and -1 for its components) whose strides are among the numbers.
        unrolled: the size of the innermost axis, where that is written out: components are beside each other in memory,
            and elements along the row so far apart. Else 1, and components are the stride -1 apart.
        parted: the operands that have components, if the innermost axis is written out.
        transposed: inputs among them that are read more than once: they are copied before the loops, so that elements
            along the row are beside each other.
        flushes: whether it computes with zeros in the place of subnormal numbers.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stores: tuple[tuple[int, int, int], ...]
    loops: int
    strides: tuple[tuple[int, int], ...]
    unrolled: int = 1
    parted: tuple[int, ...] = ()
    transposed: tuple[int, ...] = ()
    flushes: bool = False

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def number_count(self) -> int:
        """Extents, strides, and (parts, rows of a part, scratch memory, its bytes a part, elements of each output).

        The last number is the bytes of scratch memory in all.
        """
        return self.loops + len(self.strides) + 5 + len(self.outputs)

    @property
    def scratch(self) -> tuple[int, ...]:
        """The number that is a place in scratch memory."""
        return (self.loops + len(self.strides) + 2,)

    @cached_property
    def analysis(self) -> Analysis:
        """When each node is computed."""
        return Analysis(self)

    @cached_property
    def work(self) -> float:
        """About how many nanoseconds an element takes."""
        return work_of(self.nodes, self.operands)


class Analysis:
    """When each node of a row kernel is computed.

    Attributes:
        along: for each node, whether it differs along a row.
        stage: for each node, the pass in which it is computed; outside of passes, the one before which it is known.
        gathered: the reductions over other axes than the row, or over all where nothing uses them here.
        finishes: the nodes that only divide a gathered sum by its count, with that sum.
        last: the last pass.
        kept: nodes along rows that a later pass takes from memory.
    """

    def __init__(self, spec: RowSpec) -> None:
        self.spec = spec
        nodes = spec.nodes
        self._users: dict[int, list[int]] = {}
        for position, node in enumerate(nodes):
            for argument in node.arguments:
                self._users.setdefault(argument, []).append(position)
        self._stored = {node for _, _, node in spec.stores}
        self.gathered = {position for position in range(len(nodes)) if self._is_gathered(position)}
        self.along: list[bool] = []
        self.stage: list[int] = []
        for position, node in enumerate(nodes):
            self.along.append(self._is_along(node))
            before = max([self.stage[k] for k in node.arguments], default=0)
            self.stage.append(before + (node.kind == "reduce" and position not in self.gathered))
        self.finishes = {
            position: node.arguments[0]
            for position, node in enumerate(nodes)
            if any(k in self.gathered and self._is_finish(position, k) for k in node.arguments)
        }
        self.last = self._last_stage()
        self.kept = self._kept()

    def _is_gathered(self, position: int) -> bool:
        node, loops = self.spec.nodes[position], self.spec.loops
        if node.kind != "reduce":
            return False
        is_row = node.value[1] == (*[False] * (loops - 1), True)
        is_used = any(not self._is_finish(user, position) for user in self._users.get(position, []))
        return not is_row or (loops == 1 and not is_used)

    def _is_finish(self, user: int, reduction: int) -> bool:
        """Test whether a node only divides a reduction by its count, for a store."""
        node = self.spec.nodes[user]
        divides = node.kind == "div" and node.arguments[0] == reduction
        is_end = user in self._stored and not self._users.get(user)
        return divides and self.spec.nodes[node.arguments[1]].kind == "count" and is_end

    def _is_along(self, node: Node) -> bool:
        if node.kind == "load":
            operand: int = node.value[0]
            return self.spec.inputs[operand].steps[-1]
        return node.kind != "reduce" and any(self.along[k] for k in node.arguments)

    def _last_stage(self) -> int:
        last = 0
        for output, _, node in self.spec.stores:
            source = self.finishes.get(node, node)
            if source not in self.gathered and self.is_along_output(output):
                last = max(last, self.stage[node])
        for node in self.spec.nodes:
            if node.kind == "reduce":
                last = max(last, self.stage[node.arguments[0]])
        return last

    # --- what passes compute --------------------------------------------------------------------------------

    def is_along_output(self, output: int) -> bool:
        """Test whether an output has elements along the row."""
        return self.spec.outputs[output].steps[-1]

    def row_reductions(self, stage: int) -> list[int]:
        """Return the reductions along the row that a pass computes: of those over more axes, their share of one row."""
        return [
            position
            for position, node in enumerate(self.spec.nodes)
            if node.kind == "reduce" and node.value[1][-1] and self.stage[node.arguments[0]] == stage
        ]

    def row_stores(self) -> list[tuple[int, int, int]]:
        """Return the stores of the last pass: (output, component, node)."""
        return [s for s in self.spec.stores if self._is_plain(s[2]) and self.is_along_output(s[0])]

    def end_stores(self) -> list[tuple[int, int, int]]:
        """Return the stores that are made once a row."""
        return [s for s in self.spec.stores if self._is_plain(s[2]) and not self.is_along_output(s[0])]

    def gathering(self) -> list[tuple[int, int, int]]:
        """Return the sums that are gathered: (output, component, reduction)."""
        return [(o, c, self.finishes.get(n, n)) for o, c, n in self.spec.stores if not self._is_plain(n)]

    def _is_plain(self, node: int) -> bool:
        return self.finishes.get(node, node) not in self.gathered

    def gathers_along(self, output: int, reduction: int) -> bool:
        """Test whether a gathered sum has elements along the row."""
        return not self.spec.nodes[reduction].value[1][-1] and self.is_along_output(output)

    def sinks(self, stage: int) -> list[int]:
        """Return the nodes that a pass has to compute, but for those that are kept."""
        found = [self.spec.nodes[r].arguments[0] for r in self.row_reductions(stage)]
        if stage == self.last:
            found += [node for _, _, node in self.row_stores()]
            found += [self.spec.nodes[r].arguments[0] for o, _, r in self.gathering() if self.gathers_along(o, r)]
        return found

    def _kept(self) -> set[int]:
        kept: set[int] = set()
        for stage in range(self.last, 0, -1):
            self.needed(stage, kept)
        return kept

    def needed(self, stage: int, kept: set[int]) -> set[int]:
        """Return nodes along rows that a pass computes or loads; add to `kept` those that earlier passes must keep."""
        pending = [*self.sinks(stage), *[node for node in kept if self.stage[node] == stage]]
        found: set[int] = set()
        while pending:
            node = pending.pop()
            if node in found or not self.along[node]:
                continue
            found.add(node)
            if self.stage[node] < stage and (node in kept or self._cost(node, set()) > _CHEAP):
                kept.add(node)
                continue
            pending.extend(self.spec.nodes[node].arguments)
        return found

    def _cost(self, node: int, seen: set[int]) -> int:
        """Estimate how many instructions computing a node again takes; it counts no further than necessary."""
        if node in seen or not self.along[node]:
            return 0
        seen.add(node)
        entry = self.spec.nodes[node]
        cost = COSTS.get(entry.kind, 1)
        for argument in entry.arguments:
            if cost > _CHEAP:
                break
            cost += self._cost(argument, seen)
        return cost

    @property
    def can_split(self) -> bool:
        """Test whether parts of the outermost loop may be computed apart."""
        sums = [k for k, node in enumerate(self.spec.nodes) if node.kind == "reduce"]
        return self.spec.loops > 1 or self.gathered.issuperset(sums)


@dataclass(frozen=True)
class Division:
    """The division of a kernel's work; it depends on sizes alone.

    Attributes:
        parts: how many parts there are.
        rows: of the outermost loop that a part takes.
        kept_bytes: scratch memory of one part for what passes keep.
        gathered_bytes: scratch memory for gathered sums.
        copied_bytes: scratch memory for transposed operands.
    """

    parts: int
    rows: int
    kept_bytes: int
    gathered_bytes: int
    copied_bytes: int


def division_of(spec: RowSpec, extents: Sequence[int], sizes: Sequence[int]) -> Division:
    """Return the division for loops of these extents, and outputs of these sizes."""
    analysis = spec.analysis
    gathered = sum(sizes[output] * 8 + 64 for output in {output for output, _, _ in analysis.gathering()})
    kept = len(analysis.kept) * (extents[-1] * 8 + 64)
    parts, rows = 1, extents[0]
    if analysis.can_split:
        parts, rows = divide(spec.work * math.prod(extents), extents[0], BLOCK if spec.loops == 1 else 1)
    if parts * gathered > _MOST_GATHERED:
        parts, rows = 1, extents[0]
    copied = sum(_size(spec.inputs[k], extents) * spec.unrolled * 8 + 64 for k in spec.transposed)
    return Division(parts, rows, -(-kept // 64) * 64, gathered * parts, copied)


def _size(operand: Operand, extents: Sequence[int]) -> int:
    """Return the number of elements of an operand, but for its components."""
    return math.prod(extent for extent, is_step in zip(extents, operand.steps, strict=True) if is_step)
