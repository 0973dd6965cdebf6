"""Dependencies that are found step by step, in a topological order that is kept up to date.

So that asking whether one thing depends on another looks no further back than to that other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from ...graph.search import reached

_FARTHEST = 500  # places in the order


class Dependent:
    """Something that may depend on others of its kind; a cycle must not be made.

    `order` numbers are such that whatever a thing needs has a smaller one. Pearce and Kelly, "A Dynamic Topological
    Sort Algorithm for Directed Acyclic Graphs" (2006).
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self._needs: set[Dependent] = set()
        self._users: set[Dependent] = set()

    @property
    def needs(self) -> Set[Dependent]:
        """The direct dependencies of this."""
        return self._needs

    def may_depend_on(self, other: Dependent) -> bool:
        """Test whether this is `other` or depends on it.

        It is also true where the two are too far apart to look.
        """
        if self.order - other.order > _FARTHEST:
            return True
        return other in self._behind(other.order)

    def add_need(self, other: Dependent) -> None:
        """Depend on `other` too, which does not depend on this."""
        if other is self or other in self._needs:
            return
        self._needs.add(other)
        other._users.add(self)
        if other.order > self.order:
            _rearrange(other._behind(self.order), self._ahead(other.order))

    def take_over(self, other: Dependent) -> None:
        """Depend on what `other` does, and let it, and so all that depends on it, depend on this."""
        needs, other._needs = other._needs, set()
        for need in needs:
            need._users.discard(other)
        self._needs.discard(other)
        other._users.discard(self)
        users, other._users = other._users, set()
        for need in in_order(needs):
            self.add_need(need)
        other.add_need(self)
        for user in in_order(users):
            user._needs.discard(other)
            user.add_need(self)

    def _behind(self, lowest: int) -> set[Dependent]:
        """Return this and all that it depends on, down to the order number `lowest`."""
        return reached([self], lambda item: [need for need in item._needs if need.order >= lowest])

    def _ahead(self, highest: int) -> set[Dependent]:
        """Return this and all that depends on it, up to the order number `highest`."""
        return reached([self], lambda item: [user for user in item._users if user.order <= highest])


def in_order(items: Iterable[Dependent]) -> list[Dependent]:
    """Sort a set of dependents into a list, the same in each run: order numbers must not depend on hashes."""
    return sorted(items, key=_order)


def _rearrange(first: set[Dependent], then: set[Dependent]) -> None:
    """Share out the order numbers again, so that all of `first` come before all of `then`."""
    items = [*in_order(first), *in_order(then)]
    for item, order in zip(items, sorted(map(_order, items)), strict=True):
        item.order = order


def _order(item: Dependent) -> int:
    return item.order
