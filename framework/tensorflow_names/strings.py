"""`tf.strings`: functions of texts with TensorFlow's arguments and results."""

from __future__ import annotations

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.text import strings as texts
from ...engine.ops.text.strings import SplitStrings
from ...engine.ops.text.strings import as_string as as_string
from ...engine.ops.text.strings import format as format
from ...engine.ops.text.strings import join as join
from ...engine.ops.text.strings import length as length
from ...engine.ops.text.strings import lower as lower
from ...engine.ops.text.strings import reduce_join as reduce_join
from ...engine.ops.text.strings import regex_full_match as regex_full_match
from ...engine.ops.text.strings import regex_replace as regex_replace
from ...engine.ops.text.strings import strip as strip
from ...engine.ops.text.strings import substr as substr
from ...engine.ops.text.strings import to_hash_bucket_fast as to_hash_bucket_fast
from ...engine.ops.text.strings import to_number as to_number
from ...engine.ops.text.strings import upper as upper


def split(
    input: TensorLike, sep: str | None = None, maxsplit: int = -1, name: str | None = None
) -> Tensor | SplitStrings:
    """Split texts into parts.

    Args:
        input: texts.
        sep: what stands between parts; None for any white space.
        maxsplit: the largest number of splits of a text; -1 for any.

    Returns:
        For one text, the vector of its parts. For several texts, for which TensorFlow has a ragged tensor, their parts
        with "" behind those of shorter rows, and how many parts each text has.
    """
    texts_in = ops.convert_to_tensor(input, "string")
    parts = texts.split(texts_in, sep, maxsplit)
    return parts.values if texts_in.ndim == 0 else parts


def unicode_split(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor | SplitStrings:
    """Split texts into their characters.

    Args:
        input: texts.
        input_encoding: "UTF-8", which texts are of here; the other arguments are accepted for TensorFlow's sake.

    Returns:
        For one text, the vector of its characters. For several texts the same as `split`.

    Raises:
        ValueError: the encoding is not UTF-8.
    """
    if input_encoding.upper() not in ("UTF-8", "UTF8"):
        raise ValueError(f"unicode_split: texts are UTF-8 here, got input_encoding={input_encoding!r}.")
    texts_in = ops.convert_to_tensor(input, "string")
    lengths = ops.expand_dims(texts.length(texts_in), -1)
    places = ops.minimum(ops.arange(ops.max(lengths, initial=0)), lengths)
    characters = texts.substr(ops.expand_dims(texts_in, -1), places, 1)
    return characters if texts_in.ndim == 0 else SplitStrings(characters, lengths[..., 0])


__all__ = [
    "as_string",
    "format",
    "join",
    "length",
    "lower",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_hash_bucket_fast",
    "to_number",
    "unicode_split",
    "upper",
]
