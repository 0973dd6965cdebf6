"""`TextPieces`: which text each new token of a sequence adds."""

from __future__ import annotations

from .decoder import Decoder
from .generation import Generation


class TextPieces:
    """The text of a sequence that comes token by token.

    Args:
        decoder: of which the detokenizer counts.
        generation: the sequence.

    Attributes:
        count: how many tokens have been added.
    """

    def __init__(self, decoder: Decoder, generation: Generation) -> None:
        self._decoder, self._generation = decoder, generation
        self._tokens: list[int] = []
        self._text = ""

    @property
    def count(self) -> int:
        """How many tokens have been added."""
        return len(self._tokens)

    @property
    def is_last(self) -> bool:
        """Whether no further token will come."""
        return self._generation.finish_reason is not None and self.count == len(self._generation.generated)

    def add(self, token: int) -> str | None:
        """Give the text that a token adds; None if there is no detokenizer."""
        self._tokens.append(token)
        text = self._decoder.added_text(self._tokens, self._text)
        if text is not None:
            self._text += text
        return text
