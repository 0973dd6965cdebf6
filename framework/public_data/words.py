"""Texts as lists of word numbers: how IMDB and Reuters mark, shorten and cut them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...engine.common.quick_dataclass import dataclass
from .fetching import Array

Texts = list[list[int]]


@dataclass(frozen=True)
class WordRules:
    """Rules on which words are kept, and which numbers stand for them."""

    num_words: int | None
    skip_top: int
    maxlen: int | None
    start_char: int | None
    oov_char: int | None
    index_from: int

    def marked(self, texts: Iterable[Iterable[int]]) -> Texts:
        """Return words counted from `index_from`, after the mark of a beginning."""
        start = [] if self.start_char is None else [self.start_char]
        return [[*start, *(int(word) + self.index_from for word in text)] for text in texts]

    def short(self, texts: Texts, labels: Array) -> tuple[Texts, Array]:
        """Return the texts of fewer than `maxlen` words.

        Raises:
            ValueError: there is none.
        """
        if not self.maxlen:
            return texts, labels
        kept = [number for number, text in enumerate(texts) if len(text) < self.maxlen]
        if not kept:
            raise ValueError(f"No text is shorter than maxlen={self.maxlen}. Increase maxlen.")
        return [texts[number] for number in kept], labels[kept]

    def limited(self, texts: Texts) -> Texts:
        """Return words that are too frequent or too rare as `oov_char`, or left out."""
        limit = self.num_words or max(max(text) for text in texts)
        oov = self.oov_char
        if oov is None:
            return [[word for word in text if self.skip_top <= word < limit] for text in texts]
        return [[word if self.skip_top <= word < limit else oov for word in text] for text in texts]


def as_rows(texts: Texts) -> Array:
    """Return an array of lists, one a text."""
    rows = np.empty(len(texts), object)
    rows[:] = texts
    return rows
