"""`LossScaleOptimizer`: keeps gradients in half precision from vanishing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine import ops
from ..engine.graph import IndexedSlices, Operation, Tensor, Variable, control_dependencies, flatten, graph_for
from ..engine.graph.provenance import building_part
from ..engine.objects.arguments import check_numbers
from ..engine.objects.initializers import Constant
from .clipping import Gradient, on_values
from .optimizer import NO_GRADIENTS, Optimizer
from .replicas import share_of_loss
from .stateless import step_where
from .wrapper import Wrapper

_LARGEST = 2.0**127  # of float32; no gradient is finite where the scale is not, so that it would not fall again

# What other optimizers take, at the values at which it is off; older files have these beside the inner optimizer.
_OFF: dict[str, Any] = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "dynamic": True,
}


class LossScaleOptimizer(Wrapper):
    """An optimizer around another one, for gradients that are computed in float16.

    Args:
        inner_optimizer: what makes the steps.
        initial_scale: what the loss is multiplied by at first. Better too high than too low: it falls quickly.
        dynamic_growth_steps: after this many steps with finite gradients the scale is doubled.
        name: for its variables; by default from the class.

    The loss is multiplied by a scale before gradients are taken, and gradients are divided by it, so that small ones
    don't become 0 in between. Where one is not finite, the step is left out and the scale halved.

    Raises:
        ValueError: `inner_optimizer` is not an optimizer or is one of these; an option belongs to the inner optimizer.

    Source: Micikevicius et al., "Mixed Precision Training", 2018.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.LossScaleOptimizer(ab.optim.SGD(0.5), initial_scale=4.0)
    >>> w = ab.Variable([1.0])
    >>> optimizer.apply([[4.0]], [w])
    >>> optimizer.apply([[float("inf")]], [w])
    >>> w.numpy(), float(optimizer.dynamic_scale)
    (array([0.5], dtype=float32), 2.0)
    """

    hyperparameters = ("initial_scale", "dynamic_growth_steps")
    inner_name = "inner_optimizer"
    dynamic_scale: Variable
    step_counter: Variable

    def __init__(
        self,
        inner_optimizer: Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(inner_optimizer, LossScaleOptimizer):
            raise ValueError(f"LossScaleOptimizer takes an optimizer that makes the steps; got {inner_optimizer!r}.")
        if kwargs.get("dynamic") is False:
            raise ValueError(
                "LossScaleOptimizer has a scale that changes; dynamic=False is not supported. For one that stays, use "
                f"the inner optimizer alone: {type(inner_optimizer).__name__}(loss_scale_factor={initial_scale:g})."
            )
        is_off = {option: option in _OFF and value == _OFF[option] for option, value in kwargs.items()}
        super().__init__(inner_optimizer, name, **{option: kwargs[option] for option in kwargs if not is_off[option]})
        self._variables.append(self._learning_rate)  # unused, as the count of calls is: Keras has both in its files
        check_numbers("LossScaleOptimizer", initial_scale=initial_scale, dynamic_growth_steps=dynamic_growth_steps)
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        for optimizer in (self.innermost, *self.innermost.makers):
            optimizer.loss_scale_factor = None  # scaled once is enough
        self._has_scale = False

    def build(self, variables: Sequence[Variable]) -> None:
        self._make_scale()
        super().build(variables)

    def _make_scale(self) -> None:
        if self._has_scale:
            return
        self._has_scale = True
        self.step_counter = self.add_variable((), dtype="int32", name="step_counter")
        self.dynamic_scale = self.add_variable((), Constant(float(self.initial_scale)), name="dynamic_scale")

    def scale_loss(self, loss: Any) -> Any:
        """Return `loss` times the scale."""
        self._make_scale()  # the first step is built before the variables are known, and is run many times
        loss = share_of_loss(self, loss)
        return loss * (self.dynamic_scale if isinstance(loss, Tensor) else float(self.dynamic_scale.value))

    def _add_step(self, given: list[Any], variables: list[Variable]) -> Operation:
        present = [gradient for gradient in given if gradient is not None]
        if not present:
            raise ValueError(NO_GRADIENTS)
        graph = graph_for([part for part in flatten(given) if isinstance(part, Tensor)])
        first = len(graph.operations)
        with graph.entered(), graph.name_scope(self.name), building_part("optimizer"):
            scale = self.dynamic_scale.value
            finite = _all_finite(present)
            unscaled = [
                None if gradient is None else on_values(_as_gradient(gradient, variable), lambda g: g / scale)
                for gradient, variable in zip(given, variables, strict=True)
            ]

            def step() -> None:
                self.inner_optimizer._add_step(unscaled, variables)

            step_where(finite, step)
            return self.update_scale(finite, graph.operations[first:])

    def update_scale(self, finite: Tensor, behind: Sequence[Operation] = ()) -> Operation:
        """Add the change of the scale to the graph that is being built.

        Args:
            finite: whether all gradients of the step are, a scalar.
            behind: what reads the scale of the step, or belongs to it: the scale changes when these have written.
        """
        scale, count = self.dynamic_scale.value, self.step_counter.value
        due = ops.equal(count, self.dynamic_growth_steps - 1)
        counted = ops.logical_and(finite, ops.logical_not(due))
        counting = self.step_counter.assign(ops.where(counted, count + 1, 0)).operation
        grown = ops.where(due, ops.minimum(scale * 2.0, _LARGEST), scale)
        writes = [operation for operation in behind if operation.writes]
        with control_dependencies([*writes, counting]):
            return self.dynamic_scale.assign(ops.where(finite, grown, scale * 0.5)).operation


def _as_gradient(gradient: Any, variable: Variable) -> Gradient:
    if not isinstance(gradient, IndexedSlices):
        return ops.convert_to_tensor(gradient, variable.dtype)
    values = ops.convert_to_tensor(gradient.values, variable.dtype)
    return IndexedSlices(values, gradient.indices, gradient.dense_shape)


def _all_finite(gradients: Sequence[Any]) -> Tensor:
    finite: Any = None
    for gradient in gradients:
        values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
        own = ops.all(ops.isfinite(values))
        finite = own if finite is None else ops.logical_and(finite, own)
    return finite


__all__ = ["LossScaleOptimizer"]
