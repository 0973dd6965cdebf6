"""`KeptSteps`: steps that a worker of a cluster has built for a model, which keeps them for its next calls of `fit`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol, TypeVar

from .steps import surroundings

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..data.adapters import Batch

Kept = TypeVar("Kept", bound="Closing")

_MOST = 3  # kinds of first batches, such as batch sizes, whose steps are kept


class Closing(Protocol):
    """Steps that give up what they hold."""

    def close(self) -> None: ...


class Trained(Protocol):
    """A model, as far as its steps depend on it."""

    optimizer: object

    @property
    def variables(self) -> list[Variable]: ...


class KeptSteps:
    """The steps of one model that no call uses at this moment.

    A call takes steps out, and gives them back when it has ended well: after an error they are built again.
    `Trainer` clears them when the model is compiled, and when other variables or layers are trained.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, Closing] = {}
        self._version = 0  # how often all were forgotten

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._held)

    def take(self, kind: type[Kept], key: Hashable) -> tuple[Kept | None, int]:
        """Return the steps of a kind and key, or None; and what `give_back` has to be given then."""
        found = self._held.pop((kind, key), None)
        assert found is None or isinstance(found, kind)
        return found, self._version

    def give_back(self, key: Hashable, steps: Closing, version: int) -> None:
        """Keep steps for the next call, unless all were forgotten since `take`.

        Args:
            key: what they depend on.
            steps: those of the call.
            version: what `take` has returned.
        """
        if version != self._version:
            steps.close()
            return
        self._held[type(steps), key] = steps
        while len(self._held) > _MOST:
            self._held.pop(next(iter(self._held))).close()

    def clear(self) -> None:
        """Forget all steps, because what they were built from has changed."""
        self._version += 1
        held, self._held = self._held, {}
        for each in held.values():
            each.close()


def key_of(model: Trained, strategy: object, first: Batch, *more: Hashable) -> Hashable:
    """Return what steps depend on, but for what has `KeptSteps` cleared.

    Args:
        model: the model, whose variables may have been replaced.
        strategy: under which it is trained.
        first: this worker's part of the first batch.
        more: what else the steps of the strategy depend on.
    """
    leaves = tuple((tuple(leaf.shape), leaf.dtype) for leaf in first.leaves)
    held = tuple(map(id, model.variables))  # all of them are among those of the steps, which keep them
    return id(strategy), id(model.optimizer), first.layout.key, leaves, held, surroundings(), more


__all__ = ["KeptSteps", "key_of"]
