"""Decoders for the tests of serving."""

from typing import Any

import anabranch as ab

ALPHABET = list("abcdef")


def _texts() -> dict[str, Any]:
    return {
        "tokenizer": ab.layers.TextVectorization(standardize=None, split="character", vocabulary=ALPHABET),
        "detokenizer": ab.layers.StringLookup(vocabulary=ALPHABET, mask_token="", oov_token="?", invert=True),
    }


def circle(**settings: Any) -> ab.serving.Decoder:
    """Give a decoder of "abcdef" that goes on in a circle, by as many letters as its input says."""
    return ab.serving.Decoder(
        lambda tokens, states: (ab.ops.one_hot((tokens - 2 + states) % 6 + 2, 8), states),
        lambda rows, stride: stride,
        end_token=0,
        inputs={"stride": ab.InputSpec(shape=(None,), dtype="int32")},
        **{"max_length": 1000, "slots": 2, **_texts(), **settings},
    )


def letters(texts: bool = True, **settings: Any) -> ab.serving.Decoder:
    """As `circle`, always by one letter: without inputs."""
    return ab.serving.Decoder(
        lambda tokens, states: (ab.ops.one_hot((tokens - 1) % 6 + 2, 8) * 5.0, states),
        lambda rows: (),
        end_token=0,
        **{"max_length": 1000, "slots": 2, **(_texts() if texts else {}), **settings},
    )
