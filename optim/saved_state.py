"""`SavedState`: the variables of an optimizer as files have them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..engine.graph import Variable
from ..engine.graph.spec import shape_text
from ..engine.graph.state.sharded import expanded, grouped
from ..engine.queues.writing import writing_together


class SavedState:
    """The part of `Optimizer` that saves and loads its variables; see there."""

    name: str
    built: bool
    variables: list[Variable]

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
