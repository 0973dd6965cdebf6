"""Multi30k: what 31,014 photographs show, each in a sentence of English, German, French and Czech."""

from __future__ import annotations

import gzip
import os

from .fetching import fetch_from

_ORIGIN = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
_FOLDER = os.path.join("datasets", "multi30k")
_LANGUAGES = ("cs", "de", "en", "fr")
_PARTS = ("train", "val", "test_2016_flickr")
_HASHES = {
    "train.cs": "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077",
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.cs": "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.cs": "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}
Texts = tuple[list[str], list[str]]


def load_data(source: str = "de", target: str = "en") -> tuple[Texts, Texts, Texts]:
    """Load 29,000 pairs of sentences to train with, 1,014 to choose by, and 1,000 to test with (those of 2016).

    Args:
        source: the language to translate from: "cs", "de", "en" or "fr".
        target: the language to translate into.

    Returns:
        ``(x_train, y_train), (x_valid, y_valid), (x_test, y_test)``: lists of sentences, each a string.

    Raises:
        ValueError: there is no such language.
        OSError: a file is not in the cache and can't be fetched.

    Elliott, Frank, Sima'an and Specia, "Multi30K: Multilingual English-German Image Descriptions", 2016.
    """
    for name, language in (("source", source), ("target", target)):
        if language not in _LANGUAGES:
            raise ValueError(f"multi30k: {name} must be one of {', '.join(map(repr, _LANGUAGES))}, got {language!r}.")
    train, valid, test = ((_lines(part, source), _lines(part, target)) for part in _PARTS)
    return train, valid, test


def _lines(part: str, language: str) -> list[str]:
    name = f"{part}.{language}"
    path = fetch_from(f"{_ORIGIN}{name}.gz", f"{name}.gz", _HASHES[name], cache_subdir=_FOLDER)
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()
