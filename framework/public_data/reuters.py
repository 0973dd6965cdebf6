"""Reuters: 11,228 newswires as word numbers, of 46 topics."""

from __future__ import annotations

import json

import numpy as np

from .fetching import Split, fetch, read_arrays, shuffled
from .words import WordRules, as_rows

_TOPICS = (
    "cocoa grain veg-oil earn acq wheat copper housing money-supply coffee sugar trade reserves ship cotton carcass "
    "crude nat-gas cpi money-fx interest gnp meal-feed alum oilseed gold tin strategic-metal livestock retail ipi "
    "iron-steel rubber heat jobs lei bop zinc orange pet-chem dlr gas silver wpi hog lead"
)


def load_data(
    path: str = "reuters.npz",
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    test_split: float = 0.2,
    seed: int = 113,
    start_char: int | None = 1,
    oov_char: int | None = 2,
    index_from: int = 3,
) -> Split:
    """Load the newswires, shuffled; the last part is for tests.

    Args:
        path: the file's name in the cache.
        num_words, skip_top, maxlen, seed, start_char, oov_char, index_from: as in `imdb.load_data`.
        test_split: the share for tests.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: arrays of lists ``[n]``, topics below 46 ``[n]``.

    Raises:
        ValueError: no text is shorter than `maxlen`. OSError: the file is not in the cache and can't be fetched.
    """
    found = read_arrays(fetch(path, "reuters.npz", "d6586e694ee56d7a4e65172e12b3e987c03096cb01eab99753921ef915959916"))
    order = shuffled(len(found["x"]), np.random.RandomState(seed))
    rules = WordRules(num_words, skip_top, maxlen, start_char, oov_char, index_from)
    texts, labels = rules.short(rules.marked(found["x"][order]), found["y"][order])
    rows, cut = as_rows(rules.limited(texts)), int(len(texts) * (1 - test_split))
    return (rows[:cut], labels[:cut]), (rows[cut:], labels[cut:])


def get_word_index(path: str = "reuters_word_index.json") -> dict[str, int]:
    """Return each word's number, to which `load_data` adds `index_from`.

    Raises:
        OSError: the file is not in the cache and can't be fetched.
    """
    return json.loads(fetch(path, "reuters_word_index.json", "4d44cc38712099c9e383dc6e5f11a921").read_text("utf-8"))


def get_label_names() -> tuple[str, ...]:
    """Return the 46 topics, in the order of their numbers.

    >>> get_label_names()[:3]
    ('cocoa', 'grain', 'veg-oil')
    """
    return tuple(_TOPICS.split())
