"""Options of variables that scripts for Keras set."""

from __future__ import annotations

_AGGREGATIONS = ("none", "sum", "mean", "only_first_replica")


def checked_aggregation(aggregation: str, name: str) -> str | None:
    """Check how replicas are to agree on a value; gives None for "none".

    Raises:
        ValueError: there is no such way.
    """
    if aggregation not in _AGGREGATIONS:
        raise ValueError(f"Variable {name!r}: aggregation must be one of {_AGGREGATIONS}, got {aggregation!r}.")
    return None if aggregation == "none" else aggregation


class KerasOptions:
    """The options that are attributes, and have one value here."""

    @property
    def overwrite_with_gradient(self) -> bool:
        """False: no optimizer assigns a gradient to its variable.

        Raises:
            NotImplementedError: it is set to True.
        """
        return False

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if value:
            raise NotImplementedError(
                "overwrite_with_gradient=True is not supported: an optimizer would make a step of what is to be the "
                "new value. Compute gradients with ab.GradientTape, assign this one by variable.assign(gradient), and "
                "give optimizer.apply the others."
            )
