"""Shared by the ways of decoding: arguments, a step function's results, finished rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.common.nest import map_structure
from ...engine.graph import Region, Tensor, flatten, pack_as
from ...engine.graph.context import in_explicit_graph
from ...engine.graph.graph import Graph, get_default_graph
from ...engine.ops.base import TensorLike
from ..recurrent.step_rows import rows_live
from ..recurrent.step_sums import collect_step_sums

if TYPE_CHECKING:
    from ...engine.common.nest import Nest


Step = Callable[[Tensor, Any], tuple[Any, Any]]


def check_at_least(caller: str, smallest: int, **numbers: object) -> None:
    """Check that what has to be an int of a certain size is one.

    Raises:
        ValueError: it is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < smallest:
            raise ValueError(f"{caller}: {name} must be an int of at least {smallest}, got {value!r}.")


def first_values(
    caller: str, start_token: TensorLike, states: Nest[TensorLike | None]
) -> tuple[Tensor, Nest[Tensor | None]]:
    """Return the start token of each row, int32 ``(batch,)``, and the states as tensors.

    Raises:
        ValueError: nothing gives the size of the batch, or the start tokens have more than one axis.
    """
    tensors: Nest[Tensor | None] = map_structure(ops.convert_to_tensor, states)
    tokens = ops.cast(ops.convert_to_tensor(start_token), "int32")
    rank = len(tokens.shape or ())
    if rank == 1:
        return tokens, tensors
    if rank > 1:
        raise ValueError(f"{caller}: start_token must be a number or of shape (batch,), got shape {tokens.shape}.")
    leaves = flatten(tensors)
    if not leaves:
        raise ValueError(
            f"{caller}: without states the size of the batch is not known. Give start_token as a tensor of shape "
            "(batch,)."
        )
    return ops.broadcast_to(tokens, (ops.shape(leaves[0])[0],)), tensors


def pointed_at(logits: Tensor, unit: Tensor) -> Tensor:
    """Return the column of each row at which its number points, where columns are as wide as they are probable.

    Args:
        logits: ``(rows, columns)``.
        unit: a number from 0 to 1 for each row, ``(rows,)``.
    """
    logits = ops.cast(logits, "float64")
    edges = ops.cumsum(ops.exp(logits - ops.max(logits, axis=1, keepdims=True)), axis=1)
    total = edges[:, -1:]
    place = ops.minimum(ops.expand_dims(unit, 1) * total, ops.nextafter(total, 0))  # which rounding might reach
    return ops.sum(ops.cast(edges <= place, "int32"), axis=1)


class CheckedStep:
    """A step function whose results are what its callers count on: log-probabilities, and states as they were given.

    Args:
        caller: the function that decodes, for messages.
        step: ``step(tokens, states)``, which returns logits ``(rows, vocabulary)`` and new states.
        tokens, states: what it is called with first; it is built once on such values to see what its logits are like.

    Attributes:
        sums: what layers inside the step sum over the steps: losses and counts.

    Raises:
        TypeError, ValueError: the step returns something else.
    """

    def __init__(self, caller: str, step: Step, tokens: Tensor, states: Nest[Tensor | None]) -> None:
        self.caller = caller
        self._step = step
        region = Region(get_default_graph() if in_explicit_graph() else Graph(), "probe")  # thrown away
        with region.as_default():
            first = region.add_parameter(tokens.spec, "tokens")
            leaves = [region.add_parameter(leaf.spec, "state") for leaf in flatten(states)]
            with collect_step_sums() as self.sums:
                logits, _ = self._called(first, pack_as(states, leaves))
        shape = logits.shape
        if shape is None or len(shape) != 2 or not shape[1]:
            raise ValueError(
                f"{caller}: step must return logits of shape (rows, vocabulary) with a known, positive vocabulary, got "
                f"shape {shape}."
            )
        self.vocabulary: int = shape[1]
        wide = is_floating(logits.dtype) and logits.dtype.itemsize > 2
        self.dtype: str = logits.dtype.name if wide else "float32"

    def __call__(
        self, tokens: Tensor, states: Nest[Tensor | None], totals: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[Tensor, Nest[Tensor | None], list[Tensor]]:
        """Return logits, in a dtype fit to add up probabilities, the new states, and the new totals of `sums`.

        Args:
            tokens, states: what the step is called with.
            totals: of `sums` so far.
            rows: which rows of those with which the search began these are; None for all.
        """
        with collect_step_sums() as sums:
            logits, states = self._called(tokens, states)
        return ops.cast(logits, self.dtype), states, sums.added(totals, rows)

    def of_some_rows(
        self, tokens: Tensor, states: Nest[Tensor | None], totals: Sequence[Tensor], rows: Tensor
    ) -> tuple[Tensor, Nest[Tensor | None], list[Tensor]]:
        """Return the same in a search that leaves out the rows that are done.

        Raises:
            ValueError: the step returns as many rows as the whole batch has.
        """
        logits, new_states, totals = self(tokens, states, totals, rows)
        for name, value in (("logits", logits), *[("states", leaf) for leaf in flatten(new_states)]):
            if tokens.shape == (None,) and value.shape and value.shape[0] is not None:
                raise ValueError(
                    f"{self.caller}: step returned {name} of {value.shape[0]} rows, however many tokens it is given: "
                    "it takes something for all rows of the batch from outside, but those that are done are left out. "
                    "Put it into the states, which are kept in step with the rows."
                )
        return logits, new_states, totals

    def _called(self, tokens: Tensor, states: Nest[Tensor | None]) -> tuple[Tensor, Nest[Tensor]]:
        with rows_live(None, other_rows=True):  # of a step around the search, if there is one
            result = self._step(tokens, states)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"{self.caller}: step must return a pair (logits, states), got {type(result).__name__}.")
        new, old = flatten(result[1]), flatten(states)
        if len(new) != len(old):
            raise ValueError(f"{self.caller}: step was given {len(old)} states, but returned {len(new)}.")
        return ops.convert_to_tensor(result[0]), pack_as(states, [ops.convert_to_tensor(leaf) for leaf in new])
