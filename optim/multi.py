"""`MultiOptimizer`: several optimizers, each for some of the variables, and `OptimizerMap`, which says which."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self

from ..engine.graph import Operation, Tensor, Variable, flatten, graph_for
from ..engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ..engine.queues.writing import writing_together
from .loss_scale import LossScaleOptimizer
from .optimizer import NO_GRADIENTS, Optimizer, path_of


class OptimizerMap(MutableMapping[str, Optimizer]):
    """Optimizers by the paths of variables.

    Args:
        default_optimizer: for variables that no key fits.
        optimizer_map: a dict of optimizers. A key is a path, or a pattern that a whole path matches.

    A path that is a key itself gets that key's optimizer, whatever patterns match it.

    Raises:
        TypeError: the default is not an optimizer, or the map is not a dict.
        ValueError: a key is there already or is not a string, a value is not an optimizer, or several patterns match a
            path.

    >>> import anabranch as ab
    >>> optimizers = ab.optim.OptimizerMap(ab.optim.SGD(), {"encoder/.*": ab.optim.Adam()})
    >>> [type(optimizers[path]).__name__ for path in ("encoder/dense/kernel", "decoder/dense/kernel")]
    ['Adam', 'SGD']
    """

    def __init__(self, default_optimizer: Optimizer, optimizer_map: dict[str, Optimizer] | None = None) -> None:
        if not isinstance(default_optimizer, Optimizer):
            raise TypeError(f"OptimizerMap: default_optimizer must be an optimizer, got {default_optimizer!r}.")
        if optimizer_map is not None and not isinstance(optimizer_map, dict):
            raise TypeError(f"OptimizerMap: optimizer_map must be a dict of optimizers, got {optimizer_map!r}.")
        self.default_optimizer = default_optimizer
        self._optimizers: dict[str, Optimizer] = {}
        self.update(optimizer_map or {})

    def __getitem__(self, key: str) -> Optimizer:
        if key in self._optimizers:
            return self._optimizers[key]
        found = [pattern for pattern in self._optimizers if re.fullmatch(pattern, key)]
        if len(found) > 1:
            raise ValueError(
                f"OptimizerMap: several patterns match the path {key!r}: {', '.join(map(repr, found))}. Make them "
                "exclude each other, or give the path a key of its own."
            )
        return self._optimizers[found[0]] if found else self.default_optimizer

    def __setitem__(self, key: str, optimizer: Optimizer) -> None:
        if not isinstance(key, str):
            raise ValueError(f"OptimizerMap: a key must be a string, a path or a pattern of paths; got {key!r}.")
        if key in self._optimizers:
            raise ValueError(
                f"OptimizerMap: there is an optimizer for {key!r} already, {self._optimizers[key]!r}. Delete it first."
            )
        self._optimizers[key] = _checked(optimizer, f"for {key!r}")

    def __delitem__(self, key: str) -> None:
        del self._optimizers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._optimizers)

    def __len__(self) -> int:
        return len(self._optimizers)

    def __contains__(self, key: object) -> bool:
        return key in self._optimizers

    def __call__(self, variable: Variable) -> Optimizer:
        """Return the optimizer for a variable."""
        return self[path_of(variable)]

    def get_config(self) -> dict[str, Any]:
        return {
            "default_optimizer": serialize_keras_object(self.default_optimizer),
            "optimizer_map": serialize_keras_object(self._optimizers),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        return cls(
            _read(config["default_optimizer"], custom_objects),
            {key: _read(item, custom_objects) for key, item in config["optimizer_map"].items()},
        )


class MultiOptimizer(Optimizer):
    """Several optimizers, each of which steps with some of the variables.

    Args:
        optimizer_map: an `OptimizerMap`, or a function of a variable that gives its optimizer: the same one for the
            variables that are to share it.
        loss_scale_factor: holds for all of them, in place of their own.
        name: for its variables.

    Its variables are a count of steps and a learning rate without meaning, as Keras has them, and then those of each
    optimizer. It has no learning rate to read or set: see `optimizers`.

    Raises:
        ValueError: the map gives something that is not an optimizer, or one that steps by computing losses.

    >>> import anabranch as ab
    >>> kernel, bias = ab.Variable([1.0], name="kernel"), ab.Variable([1.0], name="bias")
    >>> chosen = ab.optim.OptimizerMap(ab.optim.SGD(0.5), {"bias": ab.optim.SGD(0.25)})
    >>> ab.optim.MultiOptimizer(chosen).apply([[1.0], [1.0]], [kernel, bias])
    >>> kernel.numpy(), bias.numpy()
    (array([0.5], dtype=float32), array([0.75], dtype=float32))
    """

    def __init__(
        self,
        optimizer_map: OptimizerMap | Callable[[Variable], Optimizer],
        loss_scale_factor: float | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(optimizer_map):
            raise TypeError(
                "MultiOptimizer: optimizer_map must be an OptimizerMap, or a function of a variable to its optimizer, "
                f"got {type(optimizer_map).__name__}: OptimizerMap(default_optimizer, {{path or pattern: optimizer}})."
            )
        super().__init__(learning_rate=0.0, loss_scale_factor=loss_scale_factor, name=name)
        self.optimizer_map = optimizer_map
        self._inner: list[Optimizer] = []
        self._groups: list[list[Variable]] = []
        if isinstance(optimizer_map, OptimizerMap):
            for optimizer in (*optimizer_map.values(), optimizer_map.default_optimizer):
                self._position_of(optimizer)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers; those that a function gives are known once this one is built."""
        return list(self._inner)

    def _position_of(self, optimizer: Optimizer) -> int:
        for position, known in enumerate(self._inner):
            if known is optimizer:
                return position
        optimizer.loss_scale_factor = self.loss_scale_factor
        self._inner.append(optimizer)
        self._groups.append([])
        return len(self._inner) - 1

    def build(self, variables: Sequence[Variable]) -> None:
        if self.built:
            super().build(variables)
            return
        for variable in variables:
            optimizer = _checked(self.optimizer_map(variable), f"of variable {path_of(variable)!r}")
            self._groups[self._position_of(optimizer)].append(variable)
        for optimizer, group in zip(self._inner, self._groups, strict=True):
            if group:
                optimizer.build(group)
        super().build(variables)

    @property
    def makers(self) -> list[Optimizer]:
        """The makers of all its optimizers."""
        return [maker for optimizer in self._inner for maker in optimizer.makers]

    @property
    def variables(self) -> list[Variable]:
        """Its state: its own, then that of each optimizer."""
        return [*self._own_variables(), *[variable for optimizer in self._inner for variable in optimizer.variables]]

    @property
    def learning_rate(self) -> Any:
        raise AttributeError(f"{self.name} has no learning rate: its optimizers have, see {self.name}.optimizers.")

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        raise AttributeError(f"{self.name} has no learning rate to set: set it on one of {self.name}.optimizers.")

    def _add_step(self, given: list[Any], variables: list[Variable]) -> Operation:
        graph = graph_for([part for part in flatten(given) if isinstance(part, Tensor)])
        gradients = {variable: gradient for gradient, variable in zip(given, variables, strict=True)}
        if all(gradient is None for gradient in given):
            raise ValueError(NO_GRADIENTS)
        first = len(graph.operations)
        with graph.entered(), graph.name_scope(self.name):
            for optimizer, group in zip(self._inner, self._groups, strict=True):
                named = [variable for variable in group if variable in gradients]
                found = [gradients[variable] for variable in named]
                if any(gradient is not None for gradient in found):
                    optimizer._add_step(found, named)
            writes = [operation for operation in graph.operations[first:] if operation.writes]
            with graph.control_dependencies(writes):
                return self._iterations.assign_add(1).operation

    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """See `Optimizer`; it holds for all optimizers that are known."""
        variables, names = list(var_list or ()), list(var_names or ())
        for optimizer in self._inner:
            optimizer.exclude_from_weight_decay(variables, names)

    def finalize_variable_values(self, var_list: Iterable[Variable] | None = None) -> None:
        """See `Optimizer`."""
        wanted = None if var_list is None else set(var_list)
        with writing_together([variable for group in self._groups for variable in group]):
            for optimizer, group in zip(self._inner, self._groups, strict=True):
                if group:
                    optimizer.finalize_variable_values([v for v in group if wanted is None or v in wanted])

    def get_config(self) -> dict[str, Any]:
        return {
            "optimizer_map": serialize_keras_object(self.optimizer_map),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        return cls(**{**config, "optimizer_map": _read(config["optimizer_map"], custom_objects)})


def _checked(optimizer: Any, what: str) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"The optimizer {what} must be an Optimizer such as ab.optim.Adam(); got {optimizer!r}.")
    if isinstance(optimizer, (LossScaleOptimizer, MultiOptimizer)) or not optimizer.steps_by_gradients:
        raise ValueError(
            f"The optimizer {what} is a {type(optimizer).__name__}, which can't be one of several: put it around all "
            "of them, or use it alone."
        )
    return optimizer


def _read(value: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    return deserialize_keras_object(value, custom_objects) if isinstance(value, dict) else value
