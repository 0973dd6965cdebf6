"""`Weight`: a variable that belongs to a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.graph import Variable


class Weight(Variable):
    """A variable with what layers and optimizers need to know of it.

    Args:
        value: the initial value, an array.
        name: its name in its layer, such as ``kernel``.
        path: its name among all, such as ``sequential/dense/kernel``.
        dtype: its dtype; by default that of `value`.
        trainable: whether optimizers update it.
        regularizer: a function of the weight that gives a penalty for the loss.
        constraint: a function that projects a new value after an update.
        aggregation: how replicas agree on its value; None for the default.
    """

    def __init__(
        self,
        value: Any,
        name: str,
        path: str,
        dtype: Any = None,
        trainable: bool = True,
        regularizer: Callable[[Any], Any] | None = None,
        constraint: Callable[[Any], Any] | None = None,
        aggregation: str | None = None,
    ) -> None:
        super().__init__(value, dtype=dtype, trainable=trainable, name=name)
        self.path = path
        self.regularizer = regularizer
        self.constraint = constraint
        self.aggregation = aggregation

    def __repr__(self) -> str:
        return f"<Weight {self.path} {self.spec}>"
