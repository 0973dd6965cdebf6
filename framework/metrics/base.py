"""`Metric`, the base of all metrics: state in variables, updated batch by batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...engine.common.claims import claim
from ...engine.common.keywords import ChecksKeywords
from ...engine.common.nest import flatten
from ...engine.common.outputs import HasResult, Result
from ...engine.graph import StatelessScope, Variable, as_shape, in_stateless_scope
from ...engine.graph.context import without_tapes
from ...engine.graph.provenance import building_part
from ...engine.graph.tracebacks import shorten
from ...engine.objects import initializers
from ...engine.objects.floats import layer_dtype
from ...engine.objects.names import name_for
from ...engine.objects.tracking import TrackedMetric, held_by_attributes, in_order_of_creation, note_held
from ...engine.session import Function
from ..calling import as_argument, is_symbolic, mask_of
from ..structures import Array
from .replicas import is_taken, updating

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...engine.ops.base import TensorLike
    from ..structures import ShapeLike

_OWN_MODULES = __name__.rpartition(".")[0]
_UNTRACKED = frozenset({"_functions", "_variables", "_noted"})
_METHODS = ("update_state", "result", "reset_state")


class Metric(ChecksKeywords, TrackedMetric):
    """A metric. Subclasses make variables in ``__init__`` and define `update_state` and `result`, written over ops.

    Args:
        dtype: of its variables and its result; float32 by default.
        name: by default from the class.

    In a graph that is being built, `update_state` adds assignments to it and `result` is a symbol. Elsewhere both act
    at once, on values and arrays, and results are values.

    >>> import anabranch as ab
    >>> class Longest(ab.metrics.Metric):
    ...     def __init__(self, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.longest = self.add_variable(shape=(), name="longest")
    ...
    ...     def update_state(self, values):
    ...         self.longest.assign(ab.ops.maximum(self.longest, ab.ops.max(values)))
    ...
    ...     def result(self):
    ...         return self.longest
    >>> metric = Longest()
    >>> metric.update_state([1.0, 4.0])
    >>> metric.update_state([2.0])
    >>> float(metric.result())
    4.0
    """

    # Whether larger values are better ("up") or smaller ones ("down"), for callbacks; None where that is not known.
    _direction: str | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in _METHODS:
            if name in cls.__dict__:
                setattr(cls, name, _acting_at_once(cls.__dict__[name]))

    def __init__(self, dtype: DTypeLike = None, name: str | None = None) -> None:
        self.name = name or name_for(self)
        self._dtype = layer_dtype(dtype)
        self._variables: list[Variable] = []
        self._noted: list[tuple[int, Variable]] = []  # those of attributes that are older than others of _variables
        self._functions: dict[object, Function] = {}

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def variables(self) -> list[Variable]:
        """Its state: the variables, and those of the metrics, that its attributes are or hold in lists and dicts."""
        held = held_by_attributes(self, (Variable, Metric), _UNTRACKED)
        own = [part for part in held if isinstance(part, Variable)]
        found = in_order_of_creation(self._noted, self._variables, own)
        for metric in held:
            for variable in metric.variables if isinstance(metric, Metric) else []:
                found.setdefault(id(variable), variable)
        return list(found.values())

    def add_variable(
        self,
        shape: ShapeLike = (),
        initializer: InitializerLike = None,
        dtype: DTypeLike = None,
        aggregation: str | None = "sum",
        name: str | None = None,
    ) -> Variable:
        """Return a variable of this metric, which is not a weight of the model.

        Args:
            shape: its shape.
            initializer: its first value; zeros by default. `reset_state` sets zeros unless it is overridden.
            dtype: by default the metric's.
            aggregation: one of "sum", "mean", "only_first_replica" and "none", as in Keras. Results do not depend on
                it: under a strategy they are those of one process, whatever the state is.
            name: for messages.
        """
        fixed = tuple(int(dim or 0) for dim in as_shape(shape) or ())
        chosen = initializers.get(initializer) or _zeros
        claim(fixed, 4, f"Metric {self.name!r}: variable {name!r}")
        value = chosen(fixed, dtype=dtype or self._dtype)
        variable = Variable(value, dtype=dtype or self._dtype, trainable=False, name=name, aggregation=aggregation)
        variable.path = f"{self.name}/{variable.name}"
        note_held(self._noted, self._variables, held_by_attributes(self, Variable, _UNTRACKED))
        self._variables.append(variable)
        return variable

    add_weight = add_variable

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Take a batch into account."""
        raise NotImplementedError(f"{type(self).__name__} must define update_state().")

    def result(self) -> Any:
        """Return the value so far: a scalar, or a dict of scalars."""
        raise NotImplementedError(f"{type(self).__name__} must define result().")

    def reset_state(self) -> None:
        """Forget all batches: set the variables to zero."""
        for variable in self.variables:
            variable.assign(np.zeros(variable.numpy().shape, variable.dtype))

    def stateless_update_state(
        self, metric_variables: Sequence[TensorLike], *args: object, **kwargs: object
    ) -> list[Any]:
        """Take a batch into account, starting from given values of `variables`, and change nothing.

        Args:
            metric_variables: a value for each of `variables`.
            *args, **kwargs: as for `update_state`.

        Returns:
            The values of the variables afterwards: tensors where tensors are given or a graph is built, else arrays.

        >>> import anabranch as ab
        >>> metric = ab.metrics.Mean()
        >>> state = metric.stateless_update_state(metric.stateless_reset_state(), [1.0, 4.0])
        >>> float(metric.stateless_result(state)), float(metric.result())
        (2.5, 0.0)
        """
        return self._stateless("update_state", metric_variables, args, kwargs)[1]

    def stateless_result(self, metric_variables: Sequence[TensorLike]) -> Any:
        """Return the value for given values of `variables`."""
        return self._stateless("result", metric_variables, (), {})[0]

    def stateless_reset_state(self) -> list[Tensor]:
        """Return the values that `variables` start from."""
        return self._stateless("reset_state", self.variables, (), {})[1]

    def _stateless(
        self, method: str, values: Sequence[TensorLike], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[object, list[Tensor]]:
        if len(values) != len(self.variables):
            raise ValueError(
                f"Metric {self.name!r} was given {len(values)} values for its variables, expected "
                f"{len(self.variables)}: {', '.join(variable.name for variable in self.variables)}."
            )
        if not is_symbolic(values, args, kwargs):
            args, kwargs = _as_arguments(args, kwargs)
        return self._call_with(method, list(values), args, kwargs)

    def _call_with(
        self, method: str, values: list[TensorLike], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[Any, list[Any]]:
        with StatelessScope(zip(self.variables, values, strict=True)) as scope:
            result = getattr(self, method)(*args, **kwargs)
            return result, [scope.get_current_value(variable) for variable in self.variables]

    def __call__(self: HasResult[Result], *args: Any, **kwargs: object) -> Result:
        """Update with a batch, and return the result."""
        try:
            self.update_state(*args, **kwargs)
            return self.result()
        except Exception as error:
            shorten(error)
            raise

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


def _zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return np.zeros(shape, dtype)


def _as_arguments(
    args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return tuple(map(as_argument, args)), {key: as_argument(value) for key, value in kwargs.items()}


def _acting_at_once(method: Callable[..., object]) -> Callable[..., object]:
    """Wrap `method`, so that it is given tensors.

    The methods of this package's own metrics run compiled on values, as they are many small ops.
    """
    is_own = (method.__module__ or "").startswith(_OWN_MODULES)  # None where `exec` ran code without a module
    is_update = method.__name__ == "update_state"

    @functools.wraps(method)
    def call(self: Metric, *args: object, **kwargs: object) -> object:
        if is_update and is_taken(self, args, kwargs):
            return None
        if is_symbolic(args, kwargs):
            with building_part("metrics"), updating(self):
                return method(self, *args, **kwargs)
        args, kwargs = _as_arguments(args, kwargs)
        if in_stateless_scope() or not is_own:
            with updating(self):
                return method(self, *args, **kwargs)
        if any(mask_of(leaf) is not None for leaf in flatten((args, kwargs))):  # which functions do not take
            with without_tapes(), updating(self):
                return method(self, *args, **kwargs)
        compiled = self._functions.get(method)
        if compiled is None:
            compiled = self._functions[method] = Function(functools.partial(method, self))
        with without_tapes():  # what a metric assigns has no gradient
            return compiled(*args, **kwargs)

    return call
