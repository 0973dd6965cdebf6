"""`tf.strings`: functions of texts with TensorFlow's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, is_string
from ...engine.common.nest import Nest
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
from ...engine.ops.text.strings import upper as upper
from ..structures import Array


class RaggedStrings(SplitStrings):
    """The parts of several texts, or the numbers that they hold, with methods of TensorFlow's ragged tensors.

    Attributes:
        values: the parts, with "" or 0 behind those of shorter rows.
        lengths: how many parts each text has.
    """

    __slots__ = ()

    def to_tensor(
        self,
        default_value: TensorLike | None = None,
        name: str | None = None,
        shape: Sequence[int | None] | None = None,
    ) -> Tensor:
        """Return the parts as a tensor.

        Args:
            default_value: what is behind those of shorter rows; "" or 0 by default.
            shape: the sizes of the result, with None for those that are as large as the parts need; further rows and
                parts are cut off, and missing ones are `default_value`.

        >>> from anabranch import tf
        >>> tf.strings.split(["to be", "or"]).to_tensor("-", shape=(None, 3))
        Tensor([['to', 'be', '-'], ['or', '-', '-']], dtype=string)
        """
        found = self.values
        usual = "" if is_string(found.dtype) else 0
        default = ops.convert_to_tensor(usual if default_value is None else default_value, found.dtype)
        if default_value is not None:
            found = ops.where(_is_part(self), found, default)
        for axis, size in enumerate(shape or ()):
            if size is not None:
                found = _with_size(found, axis, size, default)
        return found

    def to_list(self) -> Nest[str | int | float]:
        """Return the parts as lists of texts or numbers.

        Raises:
            TypeError: they are known only when the graph runs.
        """
        return _rows(self.values.numpy(), self.lengths.numpy())

    def row_lengths(self, axis: int = 1, out_type: DTypeLike = "int64", name: str | None = None) -> Tensor:
        """Return how many parts each text has."""
        if axis != self.lengths.ndim:
            raise ValueError(f"row_lengths: the rows of parts are along axis {self.lengths.ndim}; got axis={axis}.")
        return ops.cast(self.lengths, out_type)


def _with_size(values: Tensor, axis: int, size: int, default: Tensor) -> Tensor:
    """Return a tensor of another size along an axis: cut off, or with `default` behind what it has."""
    sizes = ops.shape(values)
    missing = [*sizes[:axis], size, *sizes[axis + 1 :]]
    filled = ops.concatenate([values, ops.broadcast_to(default, missing)], axis)
    return filled[(*[slice(None)] * axis, slice(size))]


def _is_part(parts: RaggedStrings) -> Tensor:
    """Return of each element whether it is a part, and not behind those of a shorter row."""
    return ops.arange(ops.shape(parts.values)[-1]) < ops.expand_dims(parts.lengths, -1)


def _rows(values: Array, lengths: Array) -> Nest[str | int | float]:
    if lengths.ndim == 0:
        return values[: int(lengths)].tolist()
    return [_rows(row, length) for row, length in zip(values, lengths, strict=True)]


@overload
def to_number(input: RaggedStrings, out_type: DTypeLike = "float32", name: str | None = None) -> RaggedStrings: ...


@overload
def to_number(input: TensorLike, out_type: DTypeLike = "float32", name: str | None = None) -> Tensor: ...


def to_number(
    input: TensorLike | RaggedStrings, out_type: DTypeLike = "float32", name: str | None = None
) -> Tensor | RaggedStrings:
    """Return the number that each text holds, also of the parts that `split` gives.

    Raises:
        ValueError: at run time, if a text is no number.

    >>> from anabranch import tf
    >>> tf.strings.to_number(tf.strings.split(["1.5,2", "3"], ",")).to_tensor()
    Tensor([[1.5, 2. ], [3. , 0. ]], dtype=float32)
    """
    if not isinstance(input, RaggedStrings):
        return texts.to_number(input, out_type)
    return RaggedStrings(texts.to_number(ops.where(_is_part(input), input.values, "0"), out_type), input.lengths)


@overload
def split(input: str, sep: str | None = None, maxsplit: int = -1, name: str | None = None) -> Tensor: ...


@overload
def split(
    input: Sequence[TensorLike], sep: str | None = None, maxsplit: int = -1, name: str | None = None
) -> RaggedStrings: ...


@overload
def split(
    input: TensorLike, sep: str | None = None, maxsplit: int = -1, name: str | None = None
) -> Tensor | RaggedStrings: ...


def split(
    input: TensorLike, sep: str | None = None, maxsplit: int = -1, name: str | None = None
) -> Tensor | RaggedStrings:
    """Split texts into parts.

    Args:
        input: texts.
        sep: what stands between parts; None for any white space.
        maxsplit: the largest number of splits of a text; -1 for any.

    Returns:
        For one text, the vector of its parts. For several texts, for which TensorFlow has a ragged tensor, their parts
        with "" behind those of shorter rows, and how many parts each text has: `RaggedStrings`, with `to_tensor`.
    """
    texts_in = ops.convert_to_tensor(input, "string")
    parts = texts.split(texts_in, sep, maxsplit)
    return parts.values if texts_in.ndim == 0 else RaggedStrings(*parts)


def unicode_split(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor | RaggedStrings:
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
    return characters if texts_in.ndim == 0 else RaggedStrings(characters, lengths[..., 0])


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
