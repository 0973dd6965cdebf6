"""Parallel schedule of a step: independent operations that take long, each on one core or in one call.

A long operation waits until the last of those that are independent of it can begin; what needs it moves behind them,
and everything else stays where it was. So a group stands in one place, only pure operations change places, and none
passes an effect: what a step that fails has printed or assigned is what it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ..framework.log import is_recording, note_change, note_kept

_MOST = 16  # in a group: what all of them give is held at once
_REACH = 500  # operations behind the first one, among which others are looked for
_NAME = "parallel"


@dataclass(frozen=True, slots=True)
class Piece:
    """An operation that takes a while.

    Attributes:
        seconds: about how long, infinity where that depends on the data.
        kind: a group is of one kind: all that one core is busy with, or all products.
        fewest: of that kind, less than which gain nothing.
    """

    seconds: float
    kind: str = "one core"
    fewest: int = 2


PieceOf = Callable[[Operation], Piece | None]


def parallel_schedule(
    operations: Sequence[Operation], piece_of: PieceOf, is_fixed: Callable[[Operation], bool]
) -> tuple[list[Operation], list[list[Operation]]]:
    """Return an order of `operations` in which each group stands in one piece, and the groups.

    Args:
        operations: of a step, in order.
        piece_of: what is known of an operation that may run beside others; None of others.
        is_fixed: whether an operation is to stay between those that it stands between.

    Returns:
        the operations in the order to print them, and the groups, each of two operations or more.
    """
    ordered: list[Operation] = []
    groups: list[list[Operation]] = []
    for stretch in _stretches(operations, lambda operation: operation.writes or is_fixed(operation)):
        pieces = [(operation, piece_of(operation)) for operation in stretch]
        long = {operation: piece for operation, piece in pieces if piece is not None and _is_long(operation, piece)}
        ordered += _arranged(stretch, long, groups)
    return ordered, groups


def _is_long(operation: Operation, piece: Piece) -> bool:
    if piece.seconds >= machine_profile().thread_seconds:
        return True
    microseconds = piece.seconds * 1e6
    note_kept(_NAME, operation, lambda: f"it takes about {microseconds:.1g} us, too little to share with a thread")
    return False


def _stretches(operations: Sequence[Operation], is_barrier: Callable[[Operation], bool]) -> Iterator[list[Operation]]:
    """Yield the operations between barriers, and each barrier by itself."""
    stretch: list[Operation] = []
    for operation in operations:
        if not is_barrier(operation):
            stretch.append(operation)
            continue
        yield stretch
        yield [operation]
        stretch = []
    yield stretch


def _arranged(
    stretch: list[Operation], long: Mapping[Operation, Piece], groups: list[list[Operation]]
) -> list[Operation]:
    """Return a stretch in the order to print it; add its groups to `groups`."""
    ordered: list[Operation] = []
    left = len(long)
    while left:
        start = next(position for position, operation in enumerate(stretch) if operation in long)
        group, behind = _group(stretch[start:], long)
        end = stretch.index(group[-1], start) + 1
        moved = [operation for operation in stretch[start:end] if operation in behind]
        before = [operation for operation in stretch[start:end] if operation not in behind and operation not in group]
        between = {operation: long[operation] for operation in before if operation in long}  # of other kinds
        left -= len(group) + len(between)
        ordered += [*stretch[:start], *_arranged(before, between, groups), *group]
        stretch = [*moved, *stretch[end:]]
        _note(group, long[group[0]])
        if len(group) > 1:
            groups.append(group)
    return [*ordered, *stretch]


def _group(operations: list[Operation], long: Mapping[Operation, Piece]) -> tuple[list[Operation], set[Operation]]:
    """Return the first operation with the long ones that neither need it nor each other, and what needs any of them."""
    group, kind = [operations[0]], long[operations[0]].kind
    known, behind = {operations[0]}, set[Operation]()
    for operation in operations[1:_REACH]:
        if len(group) == _MOST:
            break
        if any(tensor.operation in known for tensor in operation.inputs) or known.intersection(
            operation.control_inputs
        ):
            known.add(operation)
            behind.add(operation)
        elif operation in long and long[operation].kind == kind:
            known.add(operation)
            group.append(operation)
    return (group, behind) if len(group) >= long[operations[0]].fewest else (operations[:1], set())


def _note(group: Sequence[Operation], piece: Piece) -> None:
    if not is_recording():
        return
    if len(group) == 1:
        few = "nothing that takes" if piece.fewest == 2 else f"fewer than {piece.fewest - 1} others that take"
        note_kept(_NAME, group[0], f"{few} as long {'is' if piece.fewest == 2 else 'are'} independent of it")
        return
    first, *others = group
    note_change(_NAME, first, f"runs side by side with {', '.join(repr(other.name) for other in others)}")
