"""Lay out matrices of integers once, as kernels read them: products take the layout in place of a variable's matrix.

A `QuantizedMatMul` of a variable that nothing in the step writes becomes a `LaidOutMatMul` of what `ReadLaidOut` gives,
in loops and branches too, and an `Int4MatMul` becomes a `LaidOutInt4MatMul`. The variable keeps the layout in place of
its value, so that memory holds the matrix once. Where the step needs the matrix besides, as gradients do, the product
takes it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...control_flow.region_op import RegionOp
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol
from ...ops.internal.int4_matmul import Int4MatMul
from ...ops.internal.laid_out_int4 import Int4Panels, LaidOutInt4MatMul
from ...ops.internal.laid_out_matmul import LaidOutMatMul, Panels, ReadLaidOut
from ...ops.neural.quantized import QuantizedMatMul
from ..framework import changes
from ..framework.log import note_change
from ..framework.rewriter import Rewriter
from .fusible import FusionRule
from .pack import Inside, captured_inside, crossed, forms_of, is_on_host


def lay_out_weights(step: Rewriter, rule: FusionRule) -> None:
    """Let products of a step, and in regions inside, take matrices that are laid out."""
    laying = _LayingOut(step, rule)
    laying.visit(step.operations, ())
    laying.change()


class _Found:
    """A product by the matrix of a variable.

    Attributes:
        forms: the tensors that stand for the matrix, from that which the product takes to the read of the variable.
        around: the regions in which the product is, from that of the read on.
    """

    def __init__(
        self, product: Operation, panels: Panels | Int4Panels, forms: Sequence[Symbol], around: tuple[Inside, ...]
    ) -> None:
        self.product, self.panels, self.forms, self.around = product, panels, forms, around
        self.read = forms[-1].operation


class _LayingOut:
    """One step under rewriting."""

    def __init__(self, step: Rewriter, rule: FusionRule) -> None:
        self._step, self._rule = step, rule
        self._found: dict[Variable, list[_Found]] = {}
        self._reads: dict[Operation, Symbol] = {}

    def visit(self, operations: Sequence[Operation], around: tuple[Inside, ...]) -> None:
        """Look for products in a block; `around` are the regions in which that is, the outermost first."""
        for operation in operations:
            if isinstance(operation.op, RegionOp):
                for region in operation.op.regions:
                    self.visit(self._step.kept_tensors.needed_in(region), (*around, Inside(operation, region)))
            elif type(operation.op) in (QuantizedMatMul, Int4MatMul):
                self._look_at(operation, around)

    def _look_at(self, product: Operation, around: tuple[Inside, ...]) -> None:
        forms = forms_of(product.inputs[1], around)
        source, level = forms[-1].operation, len(around) - len(forms) + 1
        if not isinstance(source.op, ReadVariable) or crossed(forms, around) != range(level, len(around)):
            return
        is_here = source.op.variable.home is None and source.device == product.device and is_on_host(product)
        panels = self._rule.panels(product) if is_here else None
        if panels is not None:
            self._found.setdefault(source.op.variable, []).append(_Found(product, panels, forms, around[level:]))

    def change(self) -> None:
        """Change the products by variables of which the step needs nothing else."""
        known = list(self._step.walk())
        written = {effect.resource for operation in known for effect in operation.effects if effect.writes}
        for variable, found in self._found.items():
            reads = [each for each in known if isinstance(each.op, ReadVariable) and each.op.variable is variable]
            values = [read.outputs[0] for read in reads]
            if variable not in written and not self._is_needed_besides(found, values):
                for each in found:
                    self._change(each)

    def _is_needed_besides(self, found: Sequence[_Found], values: Sequence[Symbol]) -> bool:
        """Test whether a matrix, the `values` that are read, is taken by more than products of one layout."""
        forms = {form for each in found for form in each.forms}
        if len({each.panels for each in found}) > 1 or not forms.issuperset(values):
            return True
        products = {each.product for each in found}
        return any(self._is_taken_besides(form, forms, products) for form in forms)

    def _is_taken_besides(self, form: Symbol, forms: set[Symbol], products: set[Operation]) -> bool:
        """Test whether anything but `products`, and regions that hand it on as another form, takes a form."""
        for user in self._step.users(form):
            captured = [user.captured_at(k) for k, tensor in enumerate(user.inputs) if tensor is form]
            is_handed_on = all(pair is not None and pair[1] in forms for pair in captured)
            if not (is_handed_on and isinstance(user.op, RegionOp)) and (user not in products or len(captured) > 1):
                return True
        return self._step.has_hidden_use(form)

    def _change(self, found: _Found) -> None:
        product = found.product
        assert isinstance(found.read.op, ReadVariable)
        flat = captured_inside(found.around, self._read(found, found.read.op.variable))
        note_change("lay_out", product, f"takes {found.forms[-1].name!r} as kernels read it, laid out once")
        inputs = (product.inputs[0], flat, *product.inputs[2:])
        changes.set_op(product, _laid_out(product.op, found.panels), inputs)

    def _read(self, found: _Found, variable: Variable) -> Symbol:
        """Return the read of the layout, in the place of that of the matrix."""
        if found.read not in self._reads:
            op = ReadLaidOut(variable, found.panels)
            operation = found.read.graph.adopt(op, [], (TensorSpec((found.panels.size,), variable.dtype),), found.read)
            changes.move_before(found.read, operation)
            self._reads[found.read] = operation.outputs[0]
        return self._reads[found.read]


def _laid_out(op: Op, panels: Panels | Int4Panels) -> Op:
    """Return the product that takes its matrix in a layout."""
    if isinstance(panels, Int4Panels):
        assert isinstance(op, Int4MatMul)
        return LaidOutInt4MatMul(op.matrix, panels)
    assert isinstance(op, QuantizedMatMul)
    return LaidOutMatMul(op.low, op.high, op.epsilon, op.transpose, op.is_fixed, panels)


__all__ = ["lay_out_weights"]
