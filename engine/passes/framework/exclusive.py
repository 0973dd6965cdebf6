"""Values that branches save for their gradients and that can have one place, as only one branch of a choice is taken.

Nested choices save what is inside with each choice around it. With a place for each value of each branch, a nest of `n`
levels would have `n` times 2 to the `n` of them; with one place for the values of all branches it has 2 to the `n`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...control_flow.frames import Saved
from ...graph.graph import Graph, Operation
from ...graph.spec import Spec, TensorSpec
from ...graph.tensor import Symbol

_Takers = dict[Symbol, list[Operation]]  # by tensors of a branch, what takes their values


def share_places(
    regions: Sequence[Graph], takers: Iterable[Operation], copies: Mapping[Symbol, Symbol]
) -> list[tuple[tuple[Symbol, list[Operation]], ...]]:
    """Find what the branches of a choice save alike for their gradients, one value of each branch at a time.

    Args:
        regions: the branches.
        takers: the operations that take something from the frame of the choice.
        copies: from tensors of the branches to those whose specs count.

    Returns:
        For each place the value of each branch, of equal specs: its copy, and the operations that take it.
    """
    numbers = {region: number for number, region in enumerate(regions)}
    saved: list[dict[Spec, _Takers]] = [{} for _ in regions]
    for taker in takers:
        op = taker.op
        if not isinstance(op, Saved) or not op.is_for_gradient:
            continue
        value = copies[op.inner]
        if type(value.spec) is TensorSpec:
            alike = saved[numbers[op.inner.graph]].setdefault(value.spec, {})
            alike.setdefault(value, []).append(taker)
    shared: list[tuple[tuple[Symbol, list[Operation]], ...]] = []
    for spec in saved[0]:
        shared += zip(*[branch.get(spec, {}).items() for branch in saved], strict=False)
    return shared


__all__ = ["share_places"]
