"""`Sequences`: the states of `stateful=True` layers, kept for each sequence of requests between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...distribute.inference import RequestError

if TYPE_CHECKING:
    from ..structures import Array

_FLAGS = ("sequence_start", "sequence_end")


class Step(NamedTuple):
    """A request's place in a sequence: the parameters ``sequence_id``, ``sequence_start`` and ``sequence_end``."""

    sequence: int | str
    is_first: bool
    is_last: bool


def step_of(parameters: Mapping[str, Any]) -> Step | None:
    """Return what the parameters of a request say of a sequence; None where there is no id, or it is 0 or "".

    Raises:
        RequestError: a parameter has another type.
    """
    identity = parameters.get("sequence_id", 0)
    if isinstance(identity, bool) or not isinstance(identity, (int, str)):
        raise RequestError(400, f"'sequence_id': expected a whole number or a text, got {identity!r}.")
    for name in _FLAGS:
        if not isinstance(parameters.get(name, False), bool):
            raise RequestError(400, f"{name!r}: expected true or false, got {parameters[name]!r}.")
    return Step(identity, *[parameters.get(name, False) for name in _FLAGS]) if identity else None


class _Sequence:
    """One sequence. `states`: None until its first request is answered."""

    def __init__(self) -> None:
        self.states: Sequence[Array] | None = None
        self.turn = asyncio.Lock()  # its requests are computed one after the other, in their order
        self.waiting = 0
        self.used = time.monotonic()


class Sequences:
    """The sequences of a model. It belongs to the server's event loop.

    Args:
        model: its name, for errors.
        first: the states with which a sequence begins, each an array of one row.
        most: how many sequences there may be.
        idle_seconds: after how many seconds without a request a sequence is forgotten.
    """

    def __init__(self, model: str, first: Sequence[Array], most: int, idle_seconds: float) -> None:
        self._model, self._first = model, first
        self.most, self.idle_seconds = most, idle_seconds
        self._open: dict[int | str, _Sequence] = {}

    def __contains__(self, sequence: int | str) -> bool:
        found = self._open.get(sequence)
        return found is not None and not self._is_idle(found)

    def __len__(self) -> int:
        self._forget_idle()
        return len(self._open)

    async def run(self, step: Step, compute: Callable[[Sequence[Array]], Awaitable[list[Array]]]) -> list[Array]:
        """Answer the next request of a sequence.

        Args:
            step: what the request says of its sequence.
            compute: from the states before to the outputs and, behind them, the states after.

        Raises:
            RequestError: the sequence has not begun or was forgotten, or there are too many.
        """
        found = self._found(step)
        found.waiting += 1
        try:
            async with found.turn:
                before = self._first if step.is_first else found.states
                if before is None:
                    raise self._unknown(step)
                given = await compute(before)
                found.states = given[-len(self._first) :]
                if step.is_last:
                    found.states = None
                return given[: -len(self._first)]
        finally:
            found.waiting -= 1
            found.used = time.monotonic()
            if found.states is None and not found.waiting and self._open.get(step.sequence) is found:
                del self._open[step.sequence]

    def _found(self, step: Step) -> _Sequence:
        if step.is_first and step.sequence not in self._open:
            self._forget_idle()
            if len(self._open) >= self.most:
                raise RequestError(
                    429,
                    f"Model {self._model!r} has {self.most} sequences, which is its limit (max_sequences). End some, "
                    "or ask again later.",
                )
            self._open[step.sequence] = _Sequence()
        if step.sequence not in self and not step.is_first:
            raise self._unknown(step)
        return self._open[step.sequence]

    def _unknown(self, step: Step) -> RequestError:
        return RequestError(
            400,
            f"Model {self._model!r} has no sequence {step.sequence!r}: it has not begun, has ended, or had no request "
            f"for {self.idle_seconds:g} s (sequence_idle_seconds). Begin one with 'sequence_start': true.",
        )

    def _is_idle(self, sequence: _Sequence) -> bool:
        return not sequence.waiting and time.monotonic() - sequence.used > self.idle_seconds

    def _forget_idle(self) -> None:
        for identity in [each for each, found in self._open.items() if self._is_idle(found)]:
            del self._open[identity]

    def forget(self) -> None:
        """Forget all sequences that have no request under way."""
        for identity in [each for each, found in self._open.items() if not found.waiting]:
            del self._open[identity]

    async def ended(self) -> None:
        """Wait until all sequences have ended or are forgotten."""
        while len(self):
            await asyncio.sleep(min(0.1, self.idle_seconds))
