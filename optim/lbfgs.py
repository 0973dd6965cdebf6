"""`LBFGS`: a quasi-Newton method, all of it in the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..engine import ops
from ..engine.autodiff import gradients
from ..engine.control_flow import TensorArray, cond, while_loop
from ..engine.graph import Operation, Tensor, Variable, graph_for
from ..engine.objects.arguments import check_numbers
from .line_search import LineSearch, Point
from .optimizer import LearningRate, Optimizer, path_of
from .options import check_option_names
from .updates import constrain

LINE_SEARCHES = ("strong_wolfe", "backtracking")


class LBFGS(Optimizer):
    """Limited-memory BFGS with a line search, for losses that are computed over all data at once.

    Args:
        learning_rate: the step that a line search tries first; 1 is a full quasi-Newton step.
        history_size: how many of the latest steps approximate the curvature.
        max_iterations: in one run of what `minimize` returns.
        tolerance_gradient: end where no element of the gradient is larger.
        tolerance_change: end where no element of the variables changes by more in an iteration.
        line_search: "strong_wolfe", or "backtracking", which halves steps until the loss falls enough.
        max_line_search_steps: losses that one line search may compute.
        name: for its variables; by default from the class.

    A run is a `while_loop` over iterations, with a loop inside that searches along the line; the variables are assigned
    for each loss. The history is kept from run to run, so that several runs are one long one, as long as the loss is
    the same function. A step whose pair of changes has no positive curvature does not enter the history; where a search
    finds nothing, the history is forgotten, and the next one follows the gradient.

    It takes no options such as weight decay and clipping: what shall be minimised is said by the loss. Constraints of
    variables are applied at the end of a run. `iterations` counts iterations.

    Attributes:
        loss: a variable, the loss at the end of the latest run.

    Raises:
        ValueError: an argument is out of range, or one that other optimizers have.
        TypeError: no optimizer has such an argument.

    Sources: Liu and Nocedal, "On the Limited Memory BFGS Method for Large Scale Optimization", 1989; line search by
    Nocedal and Wright, "Numerical Optimization", 2006, section 3.5.

    >>> import anabranch as ab
    >>> x = ab.Variable([-1.2, 1.0], dtype="float64")
    >>> def rosenbrock():
    ...     return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    >>> with ab.Graph().as_default():
    ...     ab.Session().run(ab.optim.LBFGS(max_iterations=50).minimize(rosenbrock, [x]))
    >>> x.numpy().round(6)
    array([1., 1.])
    """

    hyperparameters = (
        *("history_size", "max_iterations", "tolerance_gradient", "tolerance_change"),
        *("line_search", "max_line_search_steps"),
    )
    steps_by_gradients = False
    loss: Variable

    def __init__(
        self,
        learning_rate: LearningRate = 1.0,
        history_size: int = 10,
        max_iterations: int = 20,
        tolerance_gradient: float = 1e-7,
        tolerance_change: float = 1e-9,
        line_search: str = "strong_wolfe",
        max_line_search_steps: int = 25,
        name: str | None = None,
        **options: Any,
    ) -> None:
        _refuse(options)
        super().__init__(learning_rate, name=name)
        check_numbers("LBFGS", tolerance_gradient=tolerance_gradient, tolerance_change=tolerance_change)
        counts = {
            "history_size": history_size,
            "max_iterations": max_iterations,
            "max_line_search_steps": max_line_search_steps,
        }
        check_numbers("LBFGS", **counts)
        for what, value in counts.items():
            if value < 1:
                raise ValueError(f"LBFGS: {what} must be at least 1; got {value}.")
        if line_search not in LINE_SEARCHES:
            raise ValueError(f"LBFGS: line_search must be one of {LINE_SEARCHES}; got {line_search!r}.")
        self.history_size = history_size
        self.max_iterations = max_iterations
        self.tolerance_gradient = tolerance_gradient
        self.tolerance_change = tolerance_change
        self.line_search = line_search
        self.max_line_search_steps = max_line_search_steps

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if not first:
            return
        kinds = sorted({variable.dtype.name for variable in variables})
        if len(kinds) != 1 or not kinds[0].startswith(("float", "bfloat")):
            raise ValueError(f"{self.name}: all variables must be of one float dtype; got {kinds}.")
        size = sum(math.prod(variable.numpy().shape) for variable in variables)
        self._steps = self.add_variable((self.history_size, size), dtype=kinds[0], name="steps")
        self._changes = self.add_variable((self.history_size, size), dtype=kinds[0], name="changes")
        self._count = self.add_variable((), dtype="int32", name="count")
        self.loss = self.add_variable((), dtype=kinds[0], name="loss")

    # pyrefly: ignore[bad-override] - it evaluates the loss itself, without a tape
    def minimize(self, loss: Any, var_list: Iterable[Variable]) -> Operation:
        """Add a run of at most `max_iterations` iterations to the graph.

        Args:
            loss: a function without arguments that computes the loss, a scalar, from the variables as they are.
            var_list: the variables to change.

        Returns:
            The operation to run.

        Raises:
            TypeError: `loss` is not a function: it has to be computed at several points.
            ValueError: the loss depends on none of the variables, or is not a scalar.
        """
        if not callable(loss):
            raise TypeError(
                f"{self.name}: minimize() takes a function that computes the loss, for it is computed at several "
                f"points; got {type(loss).__name__}. Write minimize(lambda: ..., variables), with the loss computed "
                "inside."
            )
        variables = list(var_list)
        self.build(variables)
        graph = graph_for([])
        graph.root.optimizers[self] = None
        first = len(graph.operations)
        with graph.entered(), graph.name_scope(self.name):
            count = _Run(self, loss, variables).add()
            for variable in variables:
                constrain(variable)
            writes = [operation for operation in graph.operations[first:] if operation.writes]
            with graph.control_dependencies(writes):
                return self._iterations.assign_add(count).operation

    def _add_step(self, given: list[Any], variables: list[Variable]) -> Operation:
        raise TypeError(
            f"{self.name}: LBFGS computes the loss at several points, so that gradients at one are not enough. Call "
            "minimize(loss_function, variables); in a model, from train_step."
        )

    def get_config(self) -> dict[str, Any]:
        found = super().get_config()
        return {name: found[name] for name in ("name", "learning_rate", *self.hyperparameters)}


def _refuse(options: Mapping[str, Any]) -> None:
    """See `LBFGS`; `options` are the arguments that it has none of."""
    check_option_names(LBFGS, options, ())
    if options.get("gradient_accumulation_steps") is not None:
        raise ValueError(
            "LBFGS does not accumulate gradients: it needs losses at several points, each over the same data. In the "
            "function that is given to minimize, sum up the loss over all batches."
        )
    if options:
        raise ValueError(
            f"LBFGS does not take {next(iter(options))}: its line search follows the loss as it is, so that nothing "
            "else may change the steps. Leave it out, or put it into the loss: a penalty in place of weight_decay."
        )


class _Run:
    """The graph of one run."""

    def __init__(self, optimizer: LBFGS, loss: Callable[[], Any], variables: Sequence[Variable]) -> None:
        self.optimizer = optimizer
        self.compute_loss = loss
        self.variables = variables
        self.dtype = optimizer.loss.dtype
        self.size = optimizer.history_size
        curvature = 0.9 if optimizer.line_search == "strong_wolfe" else None
        self.search = LineSearch(curvature=curvature, most_steps=optimizer.max_line_search_steps)
        self.first_step = ops.cast(ops.convert_to_tensor(optimizer._current_learning_rate()), self.dtype)

    def add(self) -> Tensor:
        """Add the loops and the assignments after them; the number of iterations."""
        optimizer = self.optimizer
        x = _joined([variable.value for variable in self.variables])
        value, gradient = self._loss_and_gradient()
        history = [optimizer._steps.value, optimizer._changes.value, optimizer._count.value]
        state = (0, x, value, gradient, history, self._is_flat(gradient))
        count, x, value, _, history, _ = while_loop(self._unfinished, self._iterate, state)
        self._assign(x)
        optimizer.loss.assign(value)
        for slot, new in zip((optimizer._steps, optimizer._changes, optimizer._count), history, strict=True):
            slot.assign(new)
        return count

    def _unfinished(self, iteration: Any, x: Any, value: Any, gradient: Any, history: Any, is_done: Any) -> Any:
        return ops.logical_and(iteration < self.optimizer.max_iterations, ops.logical_not(is_done))

    def _iterate(
        self, iteration: Any, x: Any, value: Any, gradient: Any, history: Any, is_done: Any
    ) -> tuple[Any, ...]:
        steps, changes, count = history
        direction = -self._newton(gradient, steps, changes, count)
        is_downhill = ops.sum(gradient * direction) < 0
        direction = ops.where(is_downhill, direction, -gradient)
        count = ops.where(is_downhill, count, 0)
        length = ops.where(ops.equal(count, 0), ops.minimum(1.0 / ops.sum(ops.abs(gradient)), 1.0), 1.0)
        zero = ops.zeros((), self.dtype)
        start = Point(zero, value, ops.sum(gradient * direction), gradient)

        def evaluate(step: Tensor) -> tuple[Tensor, Tensor]:
            self._assign(x + step * direction)
            return self._loss_and_gradient()

        found = self.search.run(evaluate, start, direction, ops.cast(length, self.dtype) * self.first_step)
        step, change = found.step * direction, found.gradient - gradient
        is_stuck = ops.equal(found.step, 0.0)
        is_small = ops.max(ops.abs(step)) <= self.optimizer.tolerance_change
        is_done = ops.where(is_stuck, ops.equal(count, 0), ops.logical_or(is_small, self._is_flat(found.gradient)))
        history = self._remembered(steps, changes, count, step, change, is_stuck)
        return iteration + 1, x + step, found.value, found.gradient, history, is_done

    def _remembered(
        self, steps: Tensor, changes: Tensor, count: Tensor, step: Tensor, change: Tensor, is_stuck: Tensor
    ) -> list[Tensor]:
        """Return the history with one more pair, if that has positive curvature; an empty one where a search failed."""
        is_curved = ops.sum(step * change) > 1e-10 * ops.sum(ops.square(change))
        place = (count % self.size, 0)

        def with_pair() -> list[Tensor]:
            new = [ops.slice_update(steps, place, step[None]), ops.slice_update(changes, place, change[None])]
            return [*new, count + 1]

        def without() -> list[Tensor]:
            return [steps, changes, ops.where(is_stuck, 0, count)]

        return cond(is_curved, with_pair, without)

    def _newton(self, gradient: Tensor, steps: Tensor, changes: Tensor, count: Tensor) -> Tensor:
        """Return the inverse Hessian, as the history has it, times the gradient: the two-loop recursion."""
        oldest = ops.maximum(count - self.size, 0)

        def back(i: Any, q: Any, shares: Any) -> tuple[Any, ...]:
            step, change = steps[i % self.size], changes[i % self.size]
            share = ops.sum(step * q) / ops.sum(step * change)
            return i - 1, q - share * change, shares.write(i % self.size, share)

        def forward(i: Any, r: Any) -> tuple[Any, ...]:
            step, change = steps[i % self.size], changes[i % self.size]
            share = ops.sum(change * r) / ops.sum(step * change)
            return i + 1, r + step * (shares.read(i % self.size) - share)

        none = TensorArray(self.dtype, size=self.size, element_shape=())
        _, q, shares = while_loop(lambda i, *_: i >= oldest, back, (count - 1, gradient, none))
        latest = (count - 1) % self.size
        step, change = steps[latest], changes[latest]
        scale = ops.where(count > 0, ops.sum(step * change) / ops.sum(ops.square(change)), 1.0)
        return while_loop(lambda i, _: i < count, forward, (oldest, q * scale))[1]

    def _is_flat(self, gradient: Tensor) -> Tensor:
        return ops.max(ops.abs(gradient)) <= self.optimizer.tolerance_gradient

    def _assign(self, x: Tensor) -> None:
        start = 0
        for variable in self.variables:
            shape = variable.numpy().shape
            end = start + math.prod(shape)
            variable.assign(ops.reshape(x[start:end], shape))
            start = end

    def _loss_and_gradient(self) -> tuple[Tensor, Tensor]:
        value = ops.convert_to_tensor(self.compute_loss())
        if value.shape != ():
            raise ValueError(f"{self.optimizer.name}: the loss must be a scalar; got {value.spec}.")
        found = gradients(value, list(self.variables))
        if all(gradient is None for gradient in found):
            paths = [path_of(variable) for variable in self.variables]
            raise ValueError(f"{self.optimizer.name}: the loss depends on none of the variables {paths}.")
        parts = [
            ops.zeros(variable.numpy().shape, self.dtype) if gradient is None else ops.convert_to_tensor(gradient)
            for gradient, variable in zip(found, self.variables, strict=True)
        ]
        return ops.cast(value, self.dtype), _joined(parts)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return ops.concatenate([ops.reshape(part, (-1,)) for part in parts])
