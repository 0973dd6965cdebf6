"""`Turns`: what one may use at a time; the others wait, in the order in which they came."""

from __future__ import annotations

import collections

from .attempts import Attempt, Gate, Request


class Turns:
    """Whose turn it is.

    Args:
        taken: says that somebody else has it, for messages.

    >>> turns = Turns("The printer is in use.")
    >>> with turns.turn() as one, turns.turn() as other:
    ...     one.request.wait()
    ...     _, is_pending = other.request.begin(lambda: print("next"))
    ...     one.end()
    next
    """

    def __init__(self, taken: str) -> None:
        self.taken = taken
        self.gate = Gate()
        self.waiting: collections.deque[Attempt] = collections.deque()
        self.current: Attempt | None = None

    def turn(self) -> Turn:
        """Return a turn, which has to be asked for by its request."""
        return Turn(self)


class Turn:
    """One turn: from when its request is served to the end of the block.

    Attributes:
        request: asks for it.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._attempt: Attempt | None = None
        self.request = Request(turns.gate, self._make, turns.waiting.remove, lambda attempt: turns.taken)

    def _make(self) -> Attempt:
        turns, attempt = self._turns, Attempt(1)
        self._attempt = attempt
        if turns.current is None:
            turns.current = attempt
            attempt.finish()
        else:
            turns.waiting.append(attempt)
        return attempt

    def end(self) -> None:
        """End the turn, if it has begun: the next one begins."""
        turns = self._turns
        with turns.gate.lock:
            if self._attempt is None or turns.current is not self._attempt:
                return
            turns.current = turns.waiting.popleft() if turns.waiting else None
            if turns.current is not None:
                turns.current.finish()

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
