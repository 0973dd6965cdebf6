"""`SavedState`: the variables of an optimizer as files have them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..engine.graph import Variable
from ..engine.graph.spec import shape_text
from ..engine.graph.state.sharded import expanded, grouped
from ..engine.objects.tracking import held, held_by_attributes, in_order_of_creation, note_held
from ..engine.queues.writing import writing_together

# Attributes that hold variables of the model, or such as `variables` lists in another way.
_NOT_OWN = frozenset(
    {"_variables", "_noted", "_trainable_variables", "_indices", "_not_decayed", "_shards", "_groups", "_compiled"}
    | {"_iterations", "_learning_rate"}
)


class SavedState:
    """The part of `Optimizer` that lists, saves and loads its variables; see there."""

    name: str
    built: bool
    variables: list[Variable]
    _variables: list[Variable]  # those that it made
    _noted: Sequence[tuple[int, Variable]] = ()  # of attributes, each behind how many of these it came
    _indices: Mapping[Variable, int]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. Variables that it is or holds belong to the optimizer, if they are not the model's."""
        if isinstance(value, (Variable, list, tuple, dict, set)) and name not in _NOT_OWN:
            self._note(list(held(value, Variable)))
        super().__setattr__(name, value)

    def _note(self, in_attributes: Sequence[Variable]) -> None:
        """Note that variables of attributes are older than those that are made after this."""
        noted = list(self._noted)
        note_held(noted, getattr(self, "_variables", ()), in_attributes)
        self._noted = noted

    def _own_variables(self) -> list[Variable]:
        """Return the variables that it made, and those that attributes hold, in the order in which they came."""
        return list(in_order_of_creation(self._noted, self._variables, self._in_attributes()).values())

    def _in_attributes(self) -> list[Variable]:
        return [each for each in held_by_attributes(self, Variable, _NOT_OWN) if each not in self._indices]

    def _forget(self, variable: object) -> None:
        """Take one of the variables that it made, if this is one, from its state."""
        for place, made in enumerate(self._variables):
            if made is variable:
                del self._variables[place]
                self._noted = [(behind - (behind > place), each) for behind, each in self._noted]
                return

    @property
    def saved_variables(self) -> list[Any]:
        """Its variables, with those for the shards of a variable joined: files do not depend on their number."""
        return grouped(self.variables)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set all its variables.

        Raises:
            ValueError: the number of values or a shape does not fit; nothing is changed then.
        """
        variables = self.saved_variables
        if len(weights) == len(self.variables) != len(variables):
            variables = list(self.variables)  # each shard by itself
        if len(weights) != len(variables):
            raise ValueError(
                f"{self.name} has {len(variables)} variables, but {len(weights)} values were given."
                + ("" if self.built else " It was not built yet: call optimizer.build(variables) first.")
            )
        arrays = [np.asarray(weight) for weight in weights]
        for variable, array in zip(variables, arrays, strict=True):
            if array.shape != variable.shape:
                raise ValueError(
                    f"{variable.name!r} has shape {shape_text(variable.shape)}; a value of shape "
                    f"{shape_text(array.shape)} was given."
                )
        with writing_together(expanded(variables)):
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(array)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Write its variables under "0", "1" and so on."""
        for position, variable in enumerate(self.saved_variables):
            store[str(position)] = variable.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Read what `save_own_variables` wrote.

        Raises:
            ValueError: the number of variables or a shape does not fit; nothing is changed then.
        """
        self.set_weights([store[str(position)] for position in range(len(store.keys()))])
