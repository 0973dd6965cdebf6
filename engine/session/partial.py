"""Partial runs: one step in several calls, fed and fetched bit by bit; each operation runs at most once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..common.identity import is_among
from ..graph.graph import Graph, Operation
from ..graph.spec import FrameSpec
from ..graph.tensor import Symbol
from ..passes.framework.prune import needed_operations
from .programs import AS_IT_COMES, Schedule, make_variants

Target = Symbol | Operation


class PartialRun:
    """One step under way. Made by `Session.partial_run_setup`.

    Args:
        graph: the session's graph.
        targets: what will be fetched in the course of the step.
        feeds: what will be fed.
        programs: compiled pieces, shared by all steps of one session with the same targets and feeds.
        schedule: how pieces that span devices are run.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Target],
        feeds: Sequence[Symbol],
        programs: dict[Any, _Piece],
        schedule: Schedule = AS_IT_COMES,
    ) -> None:
        self.graph = graph
        self._schedule = schedule
        self.targets = set(targets)
        self.feeds = set(feeds)
        self._step = needed_operations(graph, targets, feeds)
        self._programs = programs
        self._values: dict[Symbol, Any] = {}
        self._done: set[Operation] = set()
        self._fetched: set[Target] = set()
        self._path: tuple[Any, ...] = ()

    def run(self, targets: Sequence[Target], feeds: Mapping[Symbol, Any]) -> list[Any]:
        """Return the values of `targets` (None for operations), given `feeds` and what was fed before.

        Raises:
            ValueError: something was not announced, was fed or fetched before, or is not fed yet.
        """
        self._check_announced(targets, feeds)
        values = {**self._values, **feeds}
        path = (*self._path, (tuple(targets), tuple(feeds)))
        piece = self._programs.get(path)
        if piece is None:
            piece = self._programs[path] = self._plan(targets, values)
        results = piece.run(values)
        self._path = path
        self._values = values | results
        self._done |= piece.operations
        self._fetched.update(targets)
        return [self._values[target] if isinstance(target, Symbol) else None for target in targets]

    def _check_announced(self, targets: Sequence[Target], feeds: Iterable[Symbol]) -> None:
        for target in targets:
            if target not in self.targets:
                raise ValueError(f"partial_run: {target!r} was not among the fetches of partial_run_setup.")
            if target in self._fetched:
                raise ValueError(f"partial_run: {target!r} was fetched before; each fetch is computed once.")
        for feed in feeds:
            if feed not in self.feeds:
                raise ValueError(f"partial_run: {feed!r} was not among the feeds of partial_run_setup.")
            if feed in self._values:
                raise ValueError(f"partial_run: {feed!r} was fed before.")

    def _plan(self, targets: Sequence[Target], given: Mapping[Symbol, Any]) -> _Piece:
        """Return what has to run now for `targets`, and what of it later pieces will need."""
        wanted: list[Target] = [target for target in targets if target not in self._done and target not in given]
        while True:
            operations = [o for o in needed_operations(self.graph, wanted, given) if o not in self._done]
            missing = [*self._earlier_effects(operations), *self._frame_users(operations)]
            if not missing:
                break
            wanted += missing
        for operation in operations:
            if any(tensor in self.feeds and tensor not in given for tensor in operation.inputs + operation.outputs):
                waiting = next(t for t in operation.inputs + operation.outputs if t in self.feeds and t not in given)
                raise ValueError(
                    f"partial_run: {operation.name!r} is needed now, for what was asked or because it changes the same "
                    f"state earlier, but waits for {waiting.name!r}. Feed that in this call."
                )
        kept = self._needed_later(operations, given)
        return _Piece(self.graph, operations, wanted, kept, list(given), self._schedule)

    def _earlier_effects(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return operations of the step that must come before some of `operations`, as they touch the same state."""
        now = set(operations)
        latest: dict[Any, int] = {}
        writes: set[Any] = set()
        for operation in operations:
            for effect in operation.effects:
                latest[effect.resource] = operation.index
                writes |= {effect.resource} if effect.writes else set()
        return [
            operation
            for operation in self._step
            if operation not in now and operation not in self._done
            for effect in operation.effects
            if operation.index < latest.get(effect.resource, -1) and (effect.writes or effect.resource in writes)
        ]

    def _frame_users(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the users of records of loops and branches among `operations`: these do not outlive a piece."""
        now = set(operations)
        frames = {t for operation in operations for t in operation.outputs if isinstance(t.spec, FrameSpec)}
        return [o for o in self._step if o not in now and not frames.isdisjoint(o.inputs)]

    def _needed_later(self, operations: Sequence[Operation], given: Mapping[Symbol, Any]) -> list[Symbol]:
        done = self._done.union(operations)
        made = {tensor for operation in operations for tensor in operation.outputs}
        later = {tensor for o in self._step if o not in done for tensor in o.inputs} | self.targets
        return [tensor for o in operations for tensor in o.outputs if tensor in made & later and tensor not in given]


class _Piece:
    """The part of a step that one call runs."""

    def __init__(
        self,
        graph: Graph,
        operations: Sequence[Operation],
        wanted: Sequence[Target],
        kept: Sequence[Symbol],
        given: Sequence[Symbol],
        schedule: Schedule,
    ) -> None:
        self.operations = set(operations)
        self.results = list(dict.fromkeys([*[t for t in wanted if isinstance(t, Symbol)], *kept]))
        taken = {tensor for operation in operations for tensor in operation.inputs}
        self.feeds = [tensor for tensor in given if tensor in taken]
        effects = [o for o in operations if o.writes or is_among(o, wanted)]
        self.programs = make_variants(graph, [*self.results, *effects], self.feeds, schedule)

    def run(self, values: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
        results = self.programs.general()(*[values[tensor] for tensor in self.feeds])
        return dict(zip(self.results, results, strict=True))
