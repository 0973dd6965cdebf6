"""`ShortCalls`: the calls of a model that are short enough to be made on the event loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

SECONDS = 200e-6  # for which other requests may be held up
AT_ONCE_SECONDS = 50e-6  # which it takes to wait for others, to be joined with them and cut from them
_ENOUGH, _MOST = 4, 8  # credit
_LONG_COSTS = 4
_MOST_KINDS = 64  # that are remembered


class ShortCalls:
    """Learns by measuring which calls of a model are short.

    Args:
        seconds: what a short call takes at most.

    To hand a call of some microseconds to another thread, and its results back, takes longer than the call. It is made
    on the event loop's thread where the shapes of its inputs bound its time, whatever their values, and most of the
    latest calls of its kind took at most `seconds`: four more that did than did not, and two long ones in short order
    send the kind back to the model's thread, where it has to show itself short again.

    Kinds stand for shapes, so that calls of a kind do the same work. Belongs to one thread at a time.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._credit: dict[Hashable, int] = {}

    def includes(self, kind: Hashable) -> bool:
        """Test whether calls of a kind are short."""
        return self._credit.get(kind, 0) >= _ENOUGH

    def note(self, kind: Hashable, seconds: float) -> None:
        """Note how long a call of a kind took, whose time the shapes of its inputs bound."""
        before = self._credit.get(kind, 0)
        after = min(before + 1, _MOST) if seconds <= self._seconds else max(before - _LONG_COSTS, 0)
        if after == before:
            return
        if not before and len(self._credit) >= _MOST_KINDS:
            del self._credit[next(iter(self._credit))]
        self._credit[kind] = after
