"""`pieces`: what each new token of a sequence adds to it, token, text and reason to end; texts that end it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from .generation import Generation
from .served import ServedDecoder


class Piece(NamedTuple):
    """One token of a sequence.

    Attributes:
        token: the token.
        text: the text that it adds, which may be some that was held back; None without a detokenizer.
        finish_reason: why no further token comes; None before the last.
    """

    token: int
    text: str | None
    finish_reason: str | None


class HeldText:
    """Text that comes in parts, cut where one of several texts begins.

    What may be the beginning of such a text is held back until more has come.

    >>> held = HeldText(["stop"])
    >>> [held.add(part) for part in ("go st", "ay s", "t", "op now")], held.is_over
    (['go ', 'stay ', '', ''], True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_over = False

    def add(self, text: str) -> str:
        """Return the text that is safe to give out after a further part."""
        self._held += text
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.is_over = True
            return self._give(min(places))
        return self._give(len(self._held) - self._unsure())

    def rest(self) -> str:
        """Return what was held back, since nothing more comes."""
        return self._give(len(self._held))

    def _unsure(self) -> int:
        """Return how many characters at the end may begin one of the texts."""
        longest = max(map(len, self._stops), default=1) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0

    def _give(self, count: int) -> str:
        given, self._held = self._held[:count], self._held[count:]
        return given


async def pieces(served: ServedDecoder, generation: Generation) -> AsyncGenerator[Piece]:
    """Generate a sequence: a piece for each token, as soon as it is there. Who closes this gives the slot free.

    Raises:
        RequestError: too many sequences wait, or the decoder fails.
    """
    decoder, found, text = served.decoder, list[int](), ""
    held = HeldText(generation.stop_texts)
    async with aclosing(served.tokens(generation)) as tokens:
        async for token in tokens:
            found.append(token)
            is_last = generation.finish_reason is not None and len(found) == len(generation.generated)
            reason = generation.finish_reason if is_last else None
            added = decoder.added_text(found, text)
            if added is None:
                yield Piece(token, None, reason)
                continue
            text += added
            shown = held.add(added)
            if held.is_over:
                yield Piece(token, shown, "stop")
                return
            yield Piece(token, shown + held.rest() if is_last else shown, reason)
