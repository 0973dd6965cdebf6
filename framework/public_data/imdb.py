"""IMDB: 50,000 reviews of films as word numbers, for or against."""

from __future__ import annotations

import json

import numpy as np

from .fetching import Split, fetch, read_arrays, shuffled
from .words import WordRules, as_rows


def load_data(
    path: str = "imdb.npz",
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    seed: int = 113,
    start_char: int | None = 1,
    oov_char: int | None = 2,
    index_from: int = 3,
) -> Split:
    """Load 25,000 reviews to train with and 25,000 to test with.

    Args:
        path: the file's name in the cache.
        num_words: keep word numbers below this; 1 is the most frequent word before `index_from` is added.
        skip_top: leave out word numbers below this.
        maxlen: keep reviews of fewer words.
        seed: of the order of the reviews.
        start_char: the number that begins each review; None for none.
        oov_char: the number in the place of words that are not kept; None leaves them out.
        index_from: is added to all word numbers.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: arrays of lists ``[n]``, labels ``[n]`` (1 is positive).

    Raises:
        ValueError: no review is shorter than `maxlen`. OSError: the file is not in the cache and can't be fetched.
    """
    found = read_arrays(fetch(path, "imdb.npz", "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"))
    rules = WordRules(num_words, skip_top, maxlen, start_char, oov_char, index_from)
    random = np.random.RandomState(seed)  # one generator draws both orders
    orders = [shuffled(len(found[f"x_{part}"]), random) for part in ("train", "test")]
    (x_train, y_train), (x_test, y_test) = (
        rules.short(rules.marked(found[f"x_{part}"][order]), found[f"y_{part}"][order])
        for part, order in zip(("train", "test"), orders, strict=True)
    )
    texts = rules.limited(x_train + x_test)  # together: the largest number of both is the limit where none is given
    cut = len(x_train)
    return (as_rows(texts[:cut]), y_train), (as_rows(texts[cut:]), y_test)


def get_word_index(path: str = "imdb_word_index.json") -> dict[str, int]:
    """Return each word's number, to which `load_data` adds `index_from`.

    Raises:
        OSError: the file is not in the cache and can't be fetched.
    """
    return json.loads(fetch(path, "imdb_word_index.json", "bfafd718b763782e994055a2d397834f").read_text("utf-8"))
