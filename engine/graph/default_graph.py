"""Operations of the default graph, which live as long as something refers to them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, MutableSequence
from typing import TYPE_CHECKING, Any, overload

from ..common.nest import is_tuple

if TYPE_CHECKING:
    from .device import VariableState
    from .graph import Operation
    from .tensor import Symbol


class LivingOperations(MutableSequence["Operation"]):
    """The operations of a graph that does not keep them: a list in which places become empty.

    Its length counts the empty places too, so that a place is an operation's index, as in a list. Iteration and slices
    leave them out.
    """

    def __init__(self) -> None:
        self._living: weakref.WeakValueDictionary[int, Operation] = weakref.WeakValueDictionary()
        self._length = 0

    @property
    def living(self) -> int:
        """Return how many there are now."""
        return len(self._living)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._living.values()))

    def __reversed__(self) -> Iterator[Operation]:
        return reversed(list(self._living.values()))

    @overload
    def __getitem__(self, place: int) -> Operation: ...

    @overload
    def __getitem__(self, place: slice) -> MutableSequence[Operation]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            places = range(self._length)[place]
            return [operation for index, operation in list(self._living.items()) if index in places]
        found = self._living.get(place if place >= 0 else self._length + place)
        if found is None:
            raise IndexError(f"The default graph holds no operation number {place} any more.")
        return found

    def append(self, value: Operation) -> None:
        self._living[self._length] = value
        self._length += 1

    def insert(self, index: int, value: Operation) -> None:
        raise TypeError("Operations are appended.")

    def __setitem__(self, place: Any, value: Any) -> None:
        raise TypeError("Operations are appended.")

    def __delitem__(self, place: Any) -> None:
        raise TypeError("Operations go with the last reference to them.")


class LivingReads:
    """The reads of variables that something refers to. A read holds its variable, whose identity is the key."""

    def __init__(self) -> None:
        self._reads: weakref.WeakValueDictionary[int, Symbol] = weakref.WeakValueDictionary()

    def get(self, variable: VariableState) -> Symbol | None:
        return self._reads.get(id(variable))

    def __setitem__(self, variable: VariableState, read: Symbol) -> None:
        self._reads[id(variable)] = read

    def pop(self, resource: Any, default: Any = None) -> Any:
        return self._reads.pop(id(resource), default)


def without_references(key: Any) -> Any:
    """Return a key of `Graph.constants` with identities in the place of what would be kept alive by it.

    The tensor under the key holds these objects, so that the identities are theirs for as long as it lives.
    """
    if is_tuple(key):
        return tuple([without_references(item) for item in key])
    return ("identity", id(key)) if hasattr(key, "operation") or hasattr(key, "outputs") else key


def prefixes_of(names: Iterable[str]) -> dict[str, int]:
    """Return operations' names and the scopes in which they are, each with the number 0."""
    found: dict[str, int] = {}
    for name in names:
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            found.setdefault("/".join(parts[:end]), 0)
    return found
