"""Packed weights: a matrix by which a loop multiplies in every iteration is laid out for that once, before the loop.

A product of few rows spends much of its time on bringing the weight into the order in which kernels read it. So a
`MatMul` in the body of a loop, whose second operand comes from outside, becomes a `PackedMatMul` of what a `Pack` in
front of the loop makes; in nested loops in front of the outermost one that leaves the weight alone. A loop's gradient,
which is a loop, multiplies by the transpose of the weight, and gets a packed form of that.

The number of rows need not be known: for loops over ever fewer rows it is found only in the run.

An addition of a product is done by the product's kernel: of the rest of a sum (``x[t] @ w`` for all t is computed
before the loop, and its rows are added to ``h @ u``), or of a bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...common.identity import is_among
from ...common.quick_dataclass import dataclass
from ...control_flow.cond import Branch
from ...control_flow.region_op import RegionOp
from ...control_flow.scheduling import Scheduled
from ...control_flow.while_loop import While
from ...graph.device import DeviceName
from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.internal.packed import Layout, Pack, PackedMatMul
from ...ops.linear_algebra.products import MatMul
from ...ops.math.elementwise import Add
from ..framework import changes
from ..framework.estimates import is_static
from ..framework.log import note_change
from ..framework.prune import Kept
from .fusible import FusionRule

_MOST_INPUTS = 4  # of a product: kernels add two matrices or rows


@dataclass(frozen=True)
class Inside:
    """A region, and the loop or branch that holds it."""

    holder: Operation
    region: Region


def captured_inside(around: Iterable[Inside], outer: Symbol) -> Symbol:
    """Return the tensor that stands for `outer` within regions, the outermost of which is given first."""
    for inside in around:
        own = inside.holder.own_inputs
        outer = changes.capture(inside.region, outer)
        changes.set_own_inputs(inside.holder, own)
    return outer


def pack_weights(operations: Sequence[Operation], rule: FusionRule, kept: Kept) -> bool:
    """Pack the weights of products in loops among `operations` of a step, and in regions inside.

    Args:
        kept: tensors whose values are wanted from outside of their block.

    Returns whether any was packed.
    """
    packing = _Packing(rule, kept)
    packing.visit(operations, ())
    return bool(packing.packed)


class _Packing:
    """One step under rewriting."""

    def __init__(self, rule: FusionRule, kept: Kept) -> None:
        self.rule = rule
        self.kept = kept
        self.packed: dict[tuple[Symbol, Pack], Symbol] = {}

    def visit(self, operations: Sequence[Operation], around: tuple[Inside, ...]) -> None:
        """Rewrite what is in a block; `around` are the regions in which that is, the outermost first."""
        for operation in operations:
            if isinstance(operation.op, RegionOp):
                for region in operation.op.regions:
                    self.visit(self.kept.needed_in(region), (*around, Inside(operation, region)))
        if around:
            products = [o for o in operations if isinstance(o.op, MatMul) and self._pack(o, around)]
            for product in products:
                self._add_to(product, operations, around[-1].region)

    # --- weights ---------------------------------------------------------------------------------------------

    def _pack(self, product: Operation, around: tuple[Inside, ...]) -> bool:
        """Make a product one of a packed weight; False where it can't be, or need not be."""
        assert isinstance(product.op, MatMul)
        forms = forms_of(product.inputs[1], around)
        layout = self._layout(product)
        outermost = next(
            (level for level in crossed(forms, around) if isinstance(around[level].holder.op, While)), None
        )
        if layout is None or outermost is None:
            return False
        weight = forms[len(around) - outermost]
        if weight.operation.device != product.device or not is_on_host(product):
            return False
        if any(_may_be_sent(weight, inside.holder) for inside in around[outermost:]):
            return False
        packed = self._packed_form(weight, Pack(layout, product.op.transpose_b), around[outermost].holder, product)
        packed = captured_inside(around[outermost:], packed)
        note_change("pack", product, f"takes {weight.name!r} packed, once before the loop")
        changes.set_op(product, PackedMatMul(layout), (product.inputs[0], packed))
        return True

    def _layout(self, product: Operation) -> Layout | None:
        op, (a, weight) = product.op, product.inputs
        assert isinstance(op, MatMul)
        if op.transpose_a or product.control_inputs or not is_static(weight):
            return None
        assert isinstance(a.spec, TensorSpec)
        assert isinstance(weight.spec, TensorSpec)
        if a.spec.shape is None or a.spec.shape[1] is None:
            return None
        return self.rule.layout(a.spec.shape[0], weight.spec, op.transpose_b)

    def _packed_form(self, weight: Symbol, op: Pack, holder: Operation, product: Operation) -> Symbol:
        known = self.packed.get((weight, op))
        if known is None or known.operation.index > holder.index:
            spec = op.infer(weight.spec)
            operation = holder.graph.adopt(op, [weight], (spec,), product)
            changes.move_before(holder, operation)
            known = self.packed[weight, op] = operation.outputs[0]
        return known

    # --- sums ------------------------------------------------------------------------------------------------

    def _add_to(self, product: Operation, operations: Sequence[Operation], region: Region) -> None:
        """Let a product's kernel do the addition that alone takes the product."""
        result = product.outputs[0]
        users = [operation for operation in operations if is_among(result, operation.inputs)]
        if (
            len(users) != 1
            or result in self.kept.recorded_in(region)
            or is_among(result, region.results)
            or len(product.inputs) == _MOST_INPUTS
        ):
            return
        (addition,) = users
        if not isinstance(addition.op, Add) or addition.control_inputs or addition.device != product.device:
            return
        first, second = addition.inputs
        other = second if first is result else first
        if other is result or addition.outputs[0].spec != result.spec or not _can_be_added(other, result):
            return
        changes.set_op(addition, product.op, (*product.inputs, other))
        changes.remove(product)
        self._add_to(addition, operations, region)


def forms_of(weight: Symbol, around: tuple[Inside, ...]) -> list[Symbol]:
    """Return the tensors that stand for `weight`: in the innermost region, then in those around it.

    They go as far as it is captured.
    """
    forms = [weight]
    for inside in reversed(around):
        outer = inside.region.outer_of(forms[-1])
        if outer is None:
            break
        forms.append(outer)
    return forms


def crossed(forms: Sequence[Symbol], around: tuple[Inside, ...]) -> range:
    """Return the levels into which a weight of these forms is captured, outermost first; loops and branches only."""
    first = len(around) - (len(forms) - 1)
    for level in range(len(around) - 1, first - 1, -1):
        if not isinstance(around[level].holder.op, (While, Branch)):
            return range(level + 1, len(around))
    return range(first, len(around))


def is_on_host(operation: Operation) -> bool:
    """Test whether an operation is on a CPU, or not placed."""
    return not operation.device or DeviceName.parse(operation.device).kind == "CPU"


def _may_be_sent(weight: Symbol, holder: Operation) -> bool:
    """Test whether a weight may be taken to other tasks, which keep values of variables, but no packed ones."""
    if not isinstance(holder.op, Scheduled):
        return False
    return any(DeviceName.parse(name).job for name in (weight.operation.device, *holder.op.devices) if name)


def _can_be_added(other: Symbol, result: Symbol) -> bool:
    """Test whether kernels can add a tensor: a matrix like the result, or one row for all."""
    if not is_static(other) or other.dtype != result.dtype:
        return False
    columns = (result.shape or (None,))[-1]
    return other.shape in (result.shape, (columns,), (1, columns))


__all__ = [
    "Inside",
    "captured_inside",
    "crossed",
    "forms_of",
    "is_on_host",
    "pack_weights",
]
