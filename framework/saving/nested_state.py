"""A model's variables as a tree of dicts, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..metrics.base import Metric

_FORMATS: dict[str, Callable[[Variable], object]] = {
    "backend_tensor": lambda variable: variable.value,
    "numpy_array": lambda variable: variable.numpy(),
}


class NestedState:
    """Adds `get_state_tree` and `set_state_tree` to models."""

    trainable_variables: list[Variable]
    non_trainable_variables: list[Variable]
    optimizer: Any
    metrics: list[Metric]

    @property
    def metrics_variables(self) -> list[Variable]:
        """The variables of all metrics, those of the loss included."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def _state_groups(self) -> dict[str, list[Variable]]:
        return {
            "trainable_variables": self.trainable_variables,
            "non_trainable_variables": self.non_trainable_variables,
            "optimizer_variables": [] if self.optimizer is None else self.optimizer.variables,
            "metrics_variables": self.metrics_variables,
        }

    def get_state_tree(self, value_format: str = "backend_tensor") -> dict[str, dict[str, Any]]:
        """Return the values of all variables as dicts in dicts, by the parts of their paths.

        Args:
            value_format: "backend_tensor" for tensors, "numpy_array" for arrays.

        Returns:
            ``{"trainable_variables": {"dense": {"kernel": ...}}, "non_trainable_variables": ...,
            "optimizer_variables": ..., "metrics_variables": ...}``.

        Raises:
            ValueError: two variables have the same path, or the format is unknown.

        >>> import anabranch as ab
        >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1, use_bias=False, name="scale")])
        >>> model.set_state_tree({"trainable_variables": {"scale": {"kernel": [[2.0]]}}})
        >>> model.get_state_tree("numpy_array")["trainable_variables"]
        {'scale': {'kernel': array([[2.]], dtype=float32)}}
        """
        if value_format not in _FORMATS:
            raise ValueError(f"value_format must be 'backend_tensor' or 'numpy_array', got {value_format!r}.")
        return {name: _nested(variables, _FORMATS[value_format]) for name, variables in self._state_groups().items()}

    def set_state_tree(self, state_tree: Mapping[str, Mapping[str, object]]) -> None:
        """Assign values that `get_state_tree` gave; variables that the tree leaves out stay.

        Raises:
            ValueError: the tree has a group or a path that the model has not. Then nothing is assigned.
        """
        groups = self._state_groups()
        pairs: list[tuple[Variable, object]] = []
        for group, tree in state_tree.items():
            if group not in groups:
                raise ValueError(f"set_state_tree: there is no group {group!r}; expected {', '.join(groups)}.")
            by_path = {variable.path: variable for variable in groups[group]}
            values = _flat(tree, "")
            unknown = sorted(values.keys() - by_path.keys())
            if unknown:
                raise ValueError(
                    f"set_state_tree: {group} of the model have no {', '.join(unknown)}; they are "
                    f"{', '.join(sorted(by_path)) or 'none'}."
                )
            pairs += [(by_path[path], value) for path, value in values.items()]
        for variable, value in pairs:
            variable.assign(value)


def _nested(variables: Sequence[Variable], read: Callable[[Variable], object]) -> dict[str, object]:
    tree: dict[str, Any] = {}
    for variable in variables:
        *parts, last = variable.path.split("/")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        if last in place:
            raise ValueError(
                f"The variable path {variable.path!r} is found twice in the model. get_state_tree() needs unique "
                "paths: give layers, metrics and other parts names of their own."
            )
        place[last] = read(variable)
    return tree


def _flat(tree: Mapping[str, object], before: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, item in tree.items():
        if isinstance(item, Mapping):
            values.update(_flat(item, f"{before}{name}/"))
        else:
            values[f"{before}{name}"] = item
    return values
