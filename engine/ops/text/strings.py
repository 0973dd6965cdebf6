"""Strings: joining, taking apart, searching, hashing, and numbers to and from text. TensorFlow's ``tf.strings``.

Strings are text: characters are Unicode code points, and what is counted in bytes is counted in UTF-8. Regular
expressions are Python's. Nothing here is differentiable.

>>> import anabranch as ab
>>> ab.ops.strings.join(["cat", ["s", ""]])
Tensor(['cats', 'cat'], dtype=string)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...common import dtypes
from ...common.dtypes import as_dtype
from ...common.nest import is_integer, is_sequence
from ..base import Tensor, TensorLike, apply, apply_multi, convert_to_tensor
from ..entrance import guard_entrances
from . import numbers as text
from .string_ops import (
    AsString,
    ReduceJoin,
    RegexFullMatch,
    RegexReplace,
    StringAffix,
    StringCase,
    StringFormat,
    StringJoin,
    StringLength,
    StringSplit,
    StringStrip,
    StringToHashBucket,
    StringToNumber,
    Substring,
)

_UNITS = ("BYTE", "UTF8_CHAR")
_FILLS = ("", "0", " ", "-", "+")


def _strings(value: TensorLike, what: str) -> Tensor:
    """Return `value` as a tensor of strings.

    Raises:
        TypeError: it holds something else.
    """
    tensor = convert_to_tensor(value)
    if tensor.dtype != dtypes.string:
        raise TypeError(
            f"strings.{what} takes strings; got {tensor.spec}. Numbers become strings with ops.strings.as_string."
        )
    return tensor


# --- letter case, white space ---------------------------------------------------------------------------------------


def lower(input: TensorLike, encoding: str = "utf-8") -> Tensor:
    """Return each string in lower case; with ``encoding=""`` the letters of ASCII only."""
    return apply(StringCase(False, _only_ascii(encoding)), _strings(input, "lower"))


def upper(input: TensorLike, encoding: str = "utf-8") -> Tensor:
    """Return each string in upper case; with ``encoding=""`` the letters of ASCII only."""
    return apply(StringCase(True, _only_ascii(encoding)), _strings(input, "upper"))


def _only_ascii(encoding: str) -> bool:
    if encoding not in ("", "utf-8"):
        raise ValueError(f"encoding must be 'utf-8', or '' for ASCII letters only; got {encoding!r}.")
    return encoding == ""


def strip(input: TensorLike) -> Tensor:
    """Return each string without the white space at its ends."""
    return apply(StringStrip(), _strings(input, "strip"))


# --- lengths, substrings --------------------------------------------------------------------------------------------


def _checked_unit(unit: str) -> str:
    if unit not in _UNITS:
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR'; got {unit!r}.")
    return unit


def length(input: TensorLike, unit: str = "UTF8_CHAR") -> Tensor:
    """Return the length of each string, as int32.

    Args:
        input: strings of any shape.
        unit: "UTF8_CHAR" counts characters, "BYTE" the bytes of their UTF-8 form (TensorFlow's default).

    >>> import anabranch as ab
    >>> ab.ops.strings.length(["dog", "dög"], unit="BYTE")
    Tensor([3, 4], dtype=int32)
    """
    return apply(StringLength(_checked_unit(unit)), _strings(input, "length"))


def substr(input: TensorLike, pos: TensorLike, len: TensorLike, unit: str = "UTF8_CHAR") -> Tensor:
    """Return the part of each string from `pos` on, of at most `len` characters.

    Args:
        input: strings; the three broadcast against each other.
        pos: where the parts start; negative ones count from the end.
        len: how long they are; at the end of a string they are shorter.
        unit: "UTF8_CHAR" counts characters, "BYTE" the bytes of their UTF-8 form (TensorFlow's default).

    Raises:
        ValueError: at run time, if a position is outside its string or bytes cut a character in two.

    >>> import anabranch as ab
    >>> ab.ops.strings.substr(["house", "mouse"], 1, 3)
    Tensor(['ous', 'ous'], dtype=string)
    """
    start, size = convert_to_tensor(pos), convert_to_tensor(len)
    for name, tensor in (("pos", start), ("len", size)):
        if not dtypes.is_integer(tensor.dtype):
            raise TypeError(f"strings.substr: {name} must be integers; got {tensor.spec}.")
    return apply(Substring(_checked_unit(unit)), _strings(input, "substr"), start, size)


# --- joining and splitting ------------------------------------------------------------------------------------------


class SplitStrings(NamedTuple):
    """The results of `split`: the parts, with "" behind those of shorter rows, and how many parts each string has."""

    values: Tensor
    lengths: Tensor


def join(inputs: Sequence[TensorLike], separator: str = "") -> Tensor:
    """Return the strings of several tensors, one behind the other; the tensors broadcast.

    >>> import anabranch as ab
    >>> ab.ops.strings.join(["data", ["a.png", "b.png"]], separator="/")
    Tensor(['data/a.png', 'data/b.png'], dtype=string)
    """
    tensors = [_strings(value, "join") for value in inputs]
    if not tensors:
        raise ValueError("strings.join needs at least one tensor; got none.")
    return apply(StringJoin(separator), *tensors)


def reduce_join(
    inputs: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False, separator: str = ""
) -> Tensor:
    """Return the strings along axes joined into one.

    Args:
        inputs: strings.
        axis: the axis, or several, of which the first is joined first; None joins all elements in their order.
        keepdims: keep these axes, with size 1.
        separator: what stands between two strings.

    >>> import anabranch as ab
    >>> ab.ops.strings.reduce_join([["a", "b"], ["c", "d"]], axis=-1, separator=" ")
    Tensor(['a b', 'c d'], dtype=string)
    """
    axes = None if axis is None else tuple([int(part) for part in np.atleast_1d(axis)])
    return apply(ReduceJoin(axes, keepdims, separator), _strings(inputs, "reduce_join"))


def split(input: TensorLike, sep: str | None = None, maxsplit: int = -1, width: int | None = None) -> SplitStrings:
    """Return the parts of each string between separators.

    Where TensorFlow returns a ragged tensor, this returns a padded array and the numbers of parts.

    Args:
        input: strings of any shape.
        sep: the separator; None or "" means any run of white space, as for ``str.split``.
        maxsplit: split at most so often; -1 without limit.
        width: take so many parts of each string at most, and leave the others out; None for all.

    Returns:
        ``values`` of shape ``input.shape + [width]``, or by default ``input.shape + [most parts]``, with "" where a
        string has fewer, and int32 ``lengths`` of shape ``input.shape``.

    Raises:
        ValueError: `width` is negative.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.strings.split(["to be", "or"])).values
    array([['to', 'be'],
           ['or', '']], dtype=StringDType())
    """
    if width is not None and (not is_integer(width) or width < 0):
        raise ValueError(f"strings.split: width must be an integer from 0 up, or None for all parts; got {width!r}.")
    return SplitStrings(*apply_multi(StringSplit(sep or None, maxsplit, width), _strings(input, "split")))


# --- searching ------------------------------------------------------------------------------------------------------


def starts_with(input: TensorLike, prefix: TensorLike) -> Tensor:
    """Test whether each string starts with `prefix`; the two broadcast."""
    return apply(StringAffix(False), _strings(input, "starts_with"), _strings(prefix, "starts_with"))


def ends_with(input: TensorLike, suffix: TensorLike) -> Tensor:
    """Test whether each string ends with `suffix`; the two broadcast.

    >>> import anabranch as ab
    >>> ab.ops.strings.ends_with(["a.png", "b.txt"], ".png")
    Tensor([ True, False], dtype=bool)
    """
    return apply(StringAffix(True), _strings(input, "ends_with"), _strings(suffix, "ends_with"))


def regex_full_match(input: TensorLike, pattern: str) -> Tensor:
    """Test whether the regular expression `pattern` (of Python's `re`) matches the whole of each string.

    Raises:
        ValueError: `pattern` is not a regular expression.
    """
    text.compiled(pattern, "regex_full_match")
    return apply(RegexFullMatch(pattern), _strings(input, "regex_full_match"))


def regex_replace(input: TensorLike, pattern: str, rewrite: str, replace_global: bool = True) -> Tensor:
    r"""Return each string with the matches of a regular expression replaced.

    Args:
        input: strings.
        pattern: a regular expression of Python's `re`.
        rewrite: the replacement, in which ``\1`` to ``\9`` are the groups of the match, ``\0`` is all of it, and
            ``\\`` is a backslash.
        replace_global: replace all matches, not only the first of each string.

    Raises:
        ValueError: `pattern` is not a regular expression, or `rewrite` names a group that it lacks.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.strings.regex_replace("data/cat/7.png", r"^.*/(\w+)/[^/]*$", r"\1"))
    'cat'
    """
    text.rewriter(rewrite, text.compiled(pattern, "regex_replace").groups)
    return apply(RegexReplace(pattern, rewrite, replace_global), _strings(input, "regex_replace"))


# --- numbers and text -----------------------------------------------------------------------------------------------


def to_number(input: TensorLike, out_type: Any = "float32") -> Tensor:
    """Return the number that each string holds.

    Args:
        input: strings; white space around the numbers is allowed.
        out_type: an integer or real floating-point dtype.

    Raises:
        TypeError: `out_type` is another dtype.
        ValueError: at run time, if a string is not such a number; the first one is named.

    >>> import anabranch as ab
    >>> ab.ops.strings.to_number(["7", "-1"], "int32")
    Tensor([ 7, -1], dtype=int32)
    """
    wanted = as_dtype(out_type)
    if not (dtypes.is_integer(wanted) or dtypes.is_floating(wanted)):
        raise TypeError(
            f"strings.to_number gives integers or real floating-point numbers, not {dtypes.name_of(wanted)}."
        )
    return apply(StringToNumber(wanted), _strings(input, "to_number"))


def as_string(
    input: TensorLike,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
) -> Tensor:
    """Return numbers as text, as C's printf writes them.

    Args:
        input: numbers or bools ("true" and "false"); strings stay as they are.
        precision: digits behind the point of floats; 6 if it is -1.
        scientific: floats with an exponent, as ``%e``.
        shortest: floats as ``%g``.
        width: pad to so many characters.
        fill: one of printf's flags "0", " ", "-" and "+"; "" pads with spaces on the left.

    Raises:
        ValueError: both `scientific` and `shortest` are asked for, a precision of integers, or an unknown `fill`.

    >>> import anabranch as ab
    >>> ab.ops.strings.as_string([3.14159, 2.0], precision=2)
    Tensor(['3.14', '2.00'], dtype=string)
    """
    tensor = convert_to_tensor(input)
    if tensor.dtype == dtypes.string:
        return tensor
    if scientific and shortest:
        raise ValueError("strings.as_string: scientific and shortest exclude each other.")
    if fill not in _FILLS:
        raise ValueError(f"strings.as_string: fill must be one of {list(_FILLS)}; got {fill!r}.")
    if not dtypes.is_differentiable(tensor.dtype) and (precision >= 0 or scientific or shortest):
        raise ValueError(
            f"strings.as_string: precision, scientific and shortest are for floating-point numbers; got {tensor.spec}."
        )
    return apply(AsString(precision, scientific, shortest, width, fill), tensor)


def format(template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3) -> Tensor:
    """Return one string: `template` with its placeholders replaced, in order, by the values of `inputs`.

    Args:
        template: the text.
        inputs: a tensor, or a list or tuple of tensors, one for each placeholder.
        placeholder: what is replaced.
        summarize: how many elements of each axis are shown at its start and at its end; -1 shows all.

    Raises:
        ValueError: there are more or fewer inputs than placeholders.

    >>> import anabranch as ab
    >>> ab.ops.strings.format("loss {} at {}", (0.5, [1, 2]))
    Tensor('loss 0.5 at [1 2]', dtype=string)
    """
    values = [convert_to_tensor(x) for x in (inputs if is_sequence(inputs) else (inputs,))]
    parts = tuple(template.split(placeholder))
    if len(parts) != len(values) + 1:
        raise ValueError(
            f"strings.format: the template {template!r} has {len(parts) - 1} placeholders {placeholder!r}, but there "
            f"are {len(values)} inputs. (A list or tuple counts as several; wrap one in convert_to_tensor.)"
        )
    return apply(StringFormat(parts, summarize), *values)


# --- hashing --------------------------------------------------------------------------------------------------------


def to_hash_bucket_fast(input: TensorLike, num_buckets: int) -> Tensor:
    """Return a number below `num_buckets` for each string: its 64-bit FNV-1a hash, modulo `num_buckets`, as int64.

    The hash is taken of the UTF-8 bytes, and is the same on every machine and in every version. (TensorFlow's is
    FarmHash's Fingerprint64, which gives other numbers.) It is not a defence against chosen strings.

    Raises:
        ValueError: `num_buckets` is not positive.

    Fowler, Noll, Vo and Eastlake, "The FNV Non-Cryptographic Hash Algorithm" (IETF draft-eastlake-fnv).

    >>> import anabranch as ab
    >>> ab.ops.strings.to_hash_bucket_fast(["cat", "dog"], 10)
    Tensor([1, 3], dtype=int64)
    """
    if not 0 < num_buckets < 2**63:
        raise ValueError(f"strings.to_hash_bucket_fast: num_buckets must be positive and fit int64; got {num_buckets}.")
    return apply(StringToHashBucket(int(num_buckets)), _strings(input, "to_hash_bucket_fast"))


guard_entrances(globals(), __name__)

__all__ = [
    "SplitStrings",
    "as_string",
    "ends_with",
    "format",
    "join",
    "length",
    "lower",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "starts_with",
    "strip",
    "substr",
    "to_hash_bucket_fast",
    "to_number",
    "upper",
]
