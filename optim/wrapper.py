"""`Wrapper`: the base of optimizers around another one, which makes the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..engine.graph import Operation, Tensor, Variable, flatten, graph_for
from ..engine.objects.registry import deserialize_keras_object, serialize_keras_object
from .optimizer import Optimizer
from .options import check_option_names
from .replicas import has_scaled, note_scaled


class Wrapper(Optimizer):
    """An optimizer around another one. Subclasses define `around_step` or `build`.

    Args:
        inner_optimizer: what makes the steps; options such as clipping and weight decay belong to it.
        name: for the variables; by default from the class.
        options: those of other optimizers, which are refused with a word on where they belong.

    Its variables are a count of the calls, those of the subclass, and then the inner optimizer's.

    Raises:
        ValueError: `inner_optimizer` is not an optimizer, or one whose steps are not made of gradients; an option
            belongs to it.
        TypeError: no optimizer has such an option.
    """

    inner_name = "optimizer"  # under which the config has the inner optimizer

    def __init__(self, inner_optimizer: Optimizer, name: str | None = None, **options: Any) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise ValueError(
                f"{type(self).__name__} takes an optimizer that makes the steps; got "
                f"{self.inner_name}={inner_optimizer!r}. Make one "
                f"first: {type(self).__name__}(ab.optim.Adam())."
            )
        if not inner_optimizer.steps_by_gradients:
            raise ValueError(
                f"{type(self).__name__} takes an optimizer whose steps are made of gradients; "
                f"{type(inner_optimizer).__name__} computes losses on its way. Use it alone."
            )
        self._refuse(options, inner_optimizer)
        super().__init__(learning_rate=0.0, name=name)
        self._variables = [self._iterations]
        self.inner_optimizer = inner_optimizer

    def _refuse(self, options: Mapping[str, Any], inner_optimizer: Optimizer) -> None:
        check_option_names(type(self), options)
        if options:
            option, value = next(iter(options.items()))
            raise ValueError(
                f"{type(self).__name__} does not take {option}; give it to the inner optimizer, "
                f"{type(inner_optimizer).__name__}({option}={value!r})."
            )

    def around_step(self, step: Callable[[], Any]) -> None:
        """Add a step to the graph that is being built; `step` adds the inner optimizer's."""
        step()

    def build(self, variables: Sequence[Variable]) -> None:
        self.inner_optimizer.build(variables)
        super().build(variables)

    @property
    def innermost(self) -> Optimizer:
        """The optimizer in the middle of all wrappers."""
        inner = self.inner_optimizer
        return inner.innermost if isinstance(inner, Wrapper) else inner

    @property
    def makers(self) -> list[Optimizer]:
        """The makers of the inner optimizer."""
        return self.inner_optimizer.makers

    @property
    def variables(self) -> list[Variable]:
        """Its state: its own, then the inner optimizer's."""
        return [*self._own_variables(), *self.inner_optimizer.variables]

    @property
    def iterations(self) -> Any:
        """The number of steps that the inner optimizer has made."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value
        if callable(value):
            self._compiled.clear()  # steps at once were built with the old one

    def scale_loss(self, loss: Any) -> Any:
        """Return what the inner optimizer makes of `loss`."""
        scaled = self.inner_optimizer.scale_loss(loss)
        if has_scaled(self.inner_optimizer):
            note_scaled(self)
        return scaled

    def _add_step(self, given: list[Any], variables: list[Variable]) -> Operation:
        graph = graph_for([part for part in flatten(given) if isinstance(part, Tensor)])
        first = len(graph.operations)
        with graph.entered(), graph.name_scope(self.name):
            self.around_step(lambda: self.inner_optimizer._add_step(given, variables))
            writes = [operation for operation in graph.operations[first:] if operation.writes]
            with graph.control_dependencies(writes):
                return self._iterations.assign_add(1).operation

    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """See `Optimizer`; it is the inner optimizer that decays."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Iterable[Variable] | None = None) -> None:
        """See `Optimizer`."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.hyperparameters}
        return {"name": self.name, self.inner_name: serialize_keras_object(self.inner_optimizer), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        inner = config[cls.inner_name]
        if isinstance(inner, dict):
            inner = deserialize_keras_object(inner, custom_objects)
        return cls(**{**config, cls.inner_name: inner})
