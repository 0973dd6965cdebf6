"""Row states: how a value depends on the rows of a batch (see `Op.row_state`, `passes/loops/independent_rows.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common.quick_dataclass import dataclass
from .axis_maps import axis_map_of

if TYPE_CHECKING:
    from .operation import Operation


@dataclass(frozen=True)
class Rows:
    """Each element along `axis` depends on one row, in the order of rows.

    Attributes:
        axis: counted from the front.
        exact: the axis has as many elements as there are rows; otherwise equally many for each row, one row's after
            the other's.
    """

    axis: int
    exact: bool = True


@dataclass(frozen=True)
class Count:
    """A scalar that is the number of rows, or (not exact) a multiple of it that does not depend on them otherwise."""

    exact: bool = True


@dataclass(frozen=True)
class Sizes:
    """A vector of sizes, for each entry None or a `Count`."""

    entries: tuple[Count | None, ...]


@dataclass(frozen=True)
class Elements:
    """A TensorArray whose elements are all of one state."""

    state: Rows | None


@dataclass(frozen=True)
class Mixed:
    """A value that depends on several rows, or is not known not to; with the `name` and `type` of its operation."""

    name: str
    type: str


State = Rows | Count | Sizes | Elements | Mixed | None


def mixed(operation: Operation) -> Mixed:
    """Say that an operation is not known to compute each row for itself."""
    return Mixed(operation.name, operation.type)


def state_by_axes(node: Operation, given: Sequence[State]) -> State:
    """Return the state of ops with an axis map, along whose rows' axis all goes index by index."""
    axes = axis_map_of(node.op, [tensor.spec for tensor in node.inputs])
    if axes is None or not all(isinstance(state, Rows | None) for state in given):
        return mixed(node)
    rows = {(position, state.axis) for position, state in enumerate(given) if isinstance(state, Rows)}
    exact = {state.exact for state in given if isinstance(state, Rows)}
    found = [axis for axis, own in enumerate(axes) if any((each.input, each.axis) in rows for each in own)]
    if len(found) != 1 or len(exact) != 1:
        return mixed(node)
    followed = axes[found[0]]
    if not rows <= {(each.input, each.axis) for each in followed if each.by_index}:
        return mixed(node)
    for each in followed:
        if given[each.input] is None and (node.inputs[each.input].shape or ())[each.axis] != 1:
            return mixed(node)  # elements of a constant, one for each of so many rows
    return Rows(found[0], exact.pop())


__all__ = ["Count", "Elements", "Mixed", "Rows", "Sizes", "State", "mixed", "state_by_axes"]
