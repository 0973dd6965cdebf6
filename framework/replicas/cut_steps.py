"""`CutSteps`: steps of a model in this process for which a batch is cut into parts, whose gradients are summed.

The model's own `train_step` is traced for a part, as replicas trace it (`traced`): optimizers hand their gradients
over, and what is assigned to other variables is kept aside. Behind all parts the optimizers make their updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DType
from ...engine.graph import Graph, IndexedSlices, Operation, Symbol, Tensor, eagerly
from ...engine.graph.graph import get_default_graph
from ...engine.graph.state.variable_ops import ReadVariable
from ...engine.ops.replicas import noting_totals
from ...engine.passes.framework.prune import needed_operations
from ..data.adapters import Batch, Layout
from ..training.running_logs import build_again
from .checks import losses_of_rows
from .shares import check_cut
from .traced import Entry, StepTracer, placeholders

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.session.targets import Remote
    from ...optim.clipping import Gradient
    from ..training.base_model import BaseModel


class CutSteps:
    """Builds the steps of one model.

    Args:
        model: a model that is being compiled.
        strategy: what it is compiled under.

    Raises:
        ValueError: the steps can't be cut; the message says why.
    """

    part = "part of a batch"  # as messages call it
    may_synchronize = False  # whether layers may exchange values between the parts

    def __init__(self, model: BaseModel, strategy: Any) -> None:
        self.model = model
        self.strategy = strategy
        self._tracers: dict[tuple[str, tuple[object, ...]], StepTracer] = {}
        self._traced: set[str] = set()  # kinds of steps that were built once
        self.check()

    # --- what a kind of steps defines -------------------------------------------------------------------------------

    def placed(self) -> AbstractContextManager[None]:
        """Return the scope in which steps are built, of a model that has its weights."""
        raise NotImplementedError

    @property
    def remote(self) -> Remote | None:
        """The object that runs the steps, where the strategy has devices of other tasks; else None."""
        tasks = getattr(self.strategy, "tasks", None)
        return None if tasks is None else tasks.client

    def build_sums(
        self, tracer: StepTracer, layout: Layout, tensors: list[Tensor], share: float | Tensor = 1.0
    ) -> list[Gradient]:
        """Build all parts of a batch; return what each of the tracer's entries comes to: a tensor, or some rows.

        Args:
            tracer: of the training step.
            layout, tensors: the batch.
            share: which part of the rows of all workers' batches it has.
        """
        raise NotImplementedError

    def entries(
        self, tracer: StepTracer, layout: Layout, tensors: list[Tensor], share: float | Tensor
    ) -> list[tuple[Entry, list[Tensor]]]:
        """Build all parts of a worker's batch in the scope of `placed`; return what `StepTracer` gives.

        Args:
            tracer, layout, tensors, share: see `build_sums`.
        """
        sums = self.build_sums(tracer, layout, tensors, share)
        flat = [[each.indices, each.values] if isinstance(each, IndexedSlices) else [each] for each in sums]
        return list(zip(tracer.entries, flat, strict=True))

    # --- steps ------------------------------------------------------------------------------------------------------

    def build(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        """Build a step in the current graph: of training in parts, others on all rows at once.

        Args:
            mode: "train", "test" or "predict".
            layout, tensors: of a batch.

        Returns:
            What it gives: outputs, or what it logs.

        Raises:
            ValueError: the step can't be cut; the message says why.
        """
        if mode == "train":
            return self._build_train(layout, tensors)
        return self.build_whole(mode, layout, tensors)

    def build_whole(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        """Build a step of all rows at once; see `build`."""
        # Makes what the model makes at first, on no device in particular; a first test step makes metrics.
        if mode not in self._traced and (mode != "predict" or not self._traced):
            with eagerly(), Graph().as_default():
                self.model._build_plain_step(mode, layout, placeholders(like_batch(layout, tensors)))
            self._traced.add(mode)
        with self.placed():
            return self.model._build_plain_step(mode, layout, tensors)

    def _build_train(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        check_cut(layout, tensors, self.part)
        tracer = self._tracer(layout, tensors)
        with self.placed():
            sums = self.build_sums(tracer, layout, tensors)
            tracer.build_updates(sums)
            self.model._note_trained()
            if not tracer.log_names:
                return []
            self.model._log_names["train", layout.key] = tracer.log_names
            logged = set(tracer.log_variables.values())
            pairs = ((entry.variable, value) for entry, value in zip(tracer.entries, sums, strict=True))
            return tracer.build_logs({variable: value for variable, value in pairs if variable in logged})

    def _tracer(self, layout: Layout, tensors: list[Tensor]) -> StepTracer:
        key = layout.key, self.model._trained_state()
        if key not in self._tracers:
            self.check()
            with eagerly():
                metrics = self.model.metrics
                before = [(variable, np.array(variable.numpy())) for m in metrics for variable in m.variables]
                tracer = StepTracer(self.model, self.strategy, like_batch(layout, tensors))
                for variable, value in before:
                    variable.assign(value)
            key = layout.key, self.model._trained_state()  # it may have got its weights just now
            self._tracers[key] = tracer
            self._traced.add("train")
        return self._tracers[key]

    # --- checks -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that batches may be cut; layers that the model does not have yet are not looked at.

        Raises:
            ValueError: results would not be those of the whole batch; the message says why.
        """
        model, kind, part = self.model, type(self.strategy).__name__, self.part
        layers = model._flatten_layers()
        stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
        if stateful:
            raise ValueError(
                f"{kind}: the layers {stateful} of model {model.name!r} are stateful, and each row of their state "
                f"belongs to a row of the batch; a {part} has fewer rows. Make them with stateful=False, or train "
                f"without {kind}."
            )
        synchronized = [layer.name for layer in layers if getattr(layer, "synchronized", False)]
        if synchronized and not self.may_synchronize:
            raise ValueError(
                f"{kind}: the layers {synchronized} of model {model.name!r} are synchronized, but each {part} is "
                "computed by itself here, with statistics of its own. Use synchronized=False."
            )
        for loss, reduction in losses_of_rows(model):
            raise ValueError(
                f"{kind}: loss {loss!r} of model {model.name!r} has reduction={reduction!r}, so that it has a value "
                f"for each row. The loss of a batch is the sum of those of each {part}, which have to be scalars: use "
                "reduction='sum', which has the same gradients, or 'sum_over_batch_size'."
            )


def totals_of_batch(
    tracer: StepTracer, layout: Layout, tensors: list[Tensor], reads: bool = True
) -> list[Tensor | None]:
    """Build the totals of a step's losses over a batch in the current graph, in the order of the step.

    A step on the whole batch is traced aside. Of its operations those are built that the totals need: mostly masks,
    weights and their sums.

    Args:
        tracer: of the training step.
        layout, tensors: the batch.
        reads: whether variables have here the values that they have in the step.

    Returns:
        The totals, for `replicated`; None for one that depends on random numbers, of which replicas draw their own, or
        on variables that have other values.
    """
    if not tracer.totals:
        return []
    with eagerly(), Graph().as_default() as aside, noting_totals(of_whole=True) as noted:
        feeds = placeholders(like_batch(layout, tensors))
        tracer.trace(layout, feeds)
    totals = [total for total in noted if total.graph is aside]
    known = {total for total in totals if _is_known(needed_operations(aside, [total], feeds), reads)}
    needed = needed_operations(aside, known, feeds)
    graph = get_default_graph()
    found: dict[Symbol, Symbol] = dict(zip(feeds, [graph.capture(tensor) for tensor in tensors], strict=True))
    for operation in needed:
        if isinstance(operation.op, ReadVariable):
            found[operation.outputs[0]] = graph.capture(ops.convert_to_tensor(operation.op.variable))
    build_again([operation for operation in needed if not isinstance(operation.op, ReadVariable)], found)
    return [found[total] if total in known else None for total in totals]


def _is_known(operations: Sequence[Operation], reads: bool) -> bool:
    """Test whether operations have the same results aside: they draw no numbers, and read variables only if `reads`."""
    return not any(each.writes or (isinstance(each.op, ReadVariable) and not reads) for each in operations)


def like_batch(layout: Layout, tensors: list[Tensor]) -> Batch:
    """Return a batch of which nothing but shapes and dtypes is known."""
    leaves: list[Any] = [tensor.spec for tensor in tensors]
    return Batch(layout, leaves, 0)


def wide(dtype: DType) -> DTypeLike:
    """Return a dtype in which sums lose nothing: float32 for half precision, whole numbers for truth values."""
    if dtype.kind == "b":
        return "int32"
    return "float32" if dtype.itemsize < 4 and dtype.kind not in "iu" else dtype


__all__ = ["CutSteps", "like_batch", "totals_of_batch", "wide"]
