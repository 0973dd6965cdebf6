"""Steps of optimizers as pure functions: the state goes in as values and comes out as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine.common.names_elsewhere import OPTIMIZERS, ExplainsNames
from ..engine.control_flow import cond
from ..engine.graph import (
    IndexedSlices,
    StatelessScope,
    Symbol,
    Variable,
    flatten,
    graph_for,
    in_explicit_graph,
    in_stateless_scope,
)
from ..engine.graph.graph import get_default_graph
from ..engine.ops.base import convert_to_tensor
from ..engine.ops.math.comparison import where
from ..engine.session import Function


class StatelessSteps(ExplainsNames, elsewhere=OPTIMIZERS):
    """The half of `Optimizer` that makes steps without changing anything; see there."""

    name: str
    built: bool
    variables: list[Variable]
    _trainable_variables: list[Variable]
    _at_once: Callable[[Any, Callable[..., Any]], Function]
    apply: Callable[..., Any]

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Make a step on given values, and change nothing.

        Args:
            optimizer_variables: a value for each of the optimizer's `variables`.
            grads: a gradient for each variable that the optimizer was built for.
            trainable_variables: the values of these variables.

        Returns:
            ``(trainable_variables, optimizer_variables)`` after the step: symbols where symbols are given or a graph
            is being built, else values.

        Raises:
            ValueError: the optimizer is not built; the numbers or shapes of the values do not fit.

        >>> import anabranch as ab
        >>> w = ab.Variable([1.0, 2.0])
        >>> sgd = ab.optim.SGD(learning_rate=0.5)
        >>> sgd.build([w])
        >>> (after,), state = sgd.stateless_apply(sgd.variables, [[1.0, 1.0]], [w])
        >>> after, int(state[0]), w.numpy()
        (Tensor([0.5, 1.5], dtype=float32), 1, array([1., 2.], dtype=float32))
        """
        self._check_state(optimizer_variables, trainable_variables)
        given = [list(trainable_variables), list(optimizer_variables), list(grads)]
        if in_explicit_graph() or any(isinstance(leaf, Symbol) for leaf in flatten(given)):
            return self._step_on(*given)
        values = [[_as_given(value) for value in values] for values in given]
        return self._at_once("stateless_apply", self._step_on)(*values)

    def _step_on(self, trainable: list[Any], state: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
        tensors = [leaf for leaf in flatten([trainable, state, grads]) if isinstance(leaf, Symbol)]
        variables = [*self._trainable_variables, *self.variables]
        with (
            (graph_for(tensors) if tensors else get_default_graph()).entered(),
            StatelessScope(zip(variables, [*trainable, *state], strict=True)) as scope,
        ):
            self.apply(grads, self._trainable_variables)
            after = [scope.get_current_value(variable) for variable in variables]
        return after[: len(trainable)], after[len(trainable) :]

    def _check_state(self, optimizer_variables: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        if not self.built:
            raise ValueError(
                f"{self.name} is not built, so that it has no variables yet: call build(trainable_variables) before "
                "stateless_apply()."
            )
        for what, values, expected in (
            ("its own variables", optimizer_variables, self.variables),
            ("the variables that it was built for", trainable_variables, self._trainable_variables),
        ):
            if len(values) != len(expected):
                raise ValueError(
                    f"{self.name}: stateless_apply() was given {len(values)} values for {what}, expected "
                    f"{len(expected)}."
                )

    def assign(self, variable: Any, value: Any) -> Any:
        """Set a variable: as ``variable.assign(value)``."""
        return variable.assign(value)

    def assign_add(self, variable: Any, value: Any) -> Any:
        """Add to a variable: as ``variable.assign_add(value)``."""
        return variable.assign_add(value)

    def assign_sub(self, variable: Any, value: Any) -> Any:
        """Subtract from a variable: as ``variable.assign_sub(value)``."""
        return variable.assign_sub(value)


def _as_given(value: Any) -> Any:
    """Return a value or gradient as a function takes it: variables as their values."""
    if value is None:
        return None
    if isinstance(value, IndexedSlices):
        return IndexedSlices(*[None if field is None else convert_to_tensor(field) for field in value])
    return convert_to_tensor(value)


def step_where(condition: Any, act: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Any:
    """Run one of two parts of a step: as `cond`, also where what they assign is kept in a `StatelessScope`.

    There both are computed, and the values that variables have after one of them are chosen: a value that is assigned
    in a branch can't leave it.
    """
    if not in_stateless_scope():
        return cond(condition, act, otherwise)
    with StatelessScope() as acted:
        result = act()
    with StatelessScope() as left:
        other = otherwise()
    for variable in dict.fromkeys([*acted.variables, *left.variables]):
        values = [scope.get_current_value(variable) for scope in (acted, left)]
        variable.assign(where(condition, *[variable.value if value is None else value for value in values]))
    return None if result is None else where(condition, result, other)
