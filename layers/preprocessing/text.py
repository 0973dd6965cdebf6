"""`TextVectorization`: text as the indices of its words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.graph import Tensor
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.base import TensorLike
from ...engine.session.function import HostFunction
from .base import PreprocessingLayer, batches_of, encoded_shape, strings_of
from .lookup import StringLookup

if TYPE_CHECKING:
    from ..core.options import UnnamedOptions
    from .lookup import VocabularyLike


_How = TypeVar("_How")
_STANDARDS = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_SPLITS = ("whitespace", "character")
_PUNCTUATION = r"[!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~']"
SEVERAL_SPACES, SPACES_AROUND = r"[ \t\n\v\f\r]{2,}|[\t\n\v\f\r]", r"\A | \Z"  # of ASCII
# Which character stands between others while a text is split into characters: it is none, and no text has it.
_NO_CHARACTER = "\U0010ffff"
_BYTES_A_WINDOW = 1 << 14  # of the operations that an n-gram takes for each of its tokens
_ROWS_AT_ONCE = 256  # while adapting: rows are padded to the longest text among so many


class _Tokens(NamedTuple):
    """Padded tokens ``[..., longest]``, with "" behind the last, and how many each row has."""

    values: Tensor
    lengths: Tensor


class TextVectorization(PreprocessingLayer):
    """Texts as the indices of their words, or as counts of them.

    Args:
        max_tokens: the largest size of the vocabulary, with the padding and the unknown token; None for no limit.
        standardize: None, "lower_and_strip_punctuation", "lower", "strip_punctuation", or a function of a tensor of
            strings, built of ops (a NumPy function goes into `ops.numpy_function`).
        split: None, "whitespace", "character", or a function that gives tokens ``[batch, n]``, padded with "".
        ngrams: None, an integer n for n-grams of up to n tokens, or a tuple of lengths.
        output_mode: "int", "one_hot", "multi_hot", "count" or "tf_idf".
        output_sequence_length: for "int", the length that rows are padded or cut to.
        pad_to_max_tokens: encodings are `max_tokens` wide, however large the vocabulary.
        vocabulary: the terms, or the name of a file with one a line; otherwise `adapt` learns them.
        idf_weights: for "tf_idf", the inverse document frequencies of the terms.
        sparse, ragged: not supported; accepted as False.
        encoding: the encoding of bytes; always UTF-8.

    Input: strings ``(batch,)`` or ``(batch, 1)``. Output: for "int" int64 ``(batch, tokens)``, padded with 0, where
    unknown words are 1; else floats ``(batch, terms)``.

    Raises:
        ValueError: an argument is unknown, or does not go with the output mode.

    >>> layer = TextVectorization(vocabulary=["hello", "world"], output_sequence_length=4)
    >>> layer(["Hello, world!", "Good bye, world"])
    Tensor([[2, 3, 0, 0],
            [1, 1, 3, 0]], dtype=int64)
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[[Tensor], Tensor] | None = "lower_and_strip_punctuation",
        split: str | Callable[[Tensor], Tensor | tuple[Tensor, ...]] | None = "whitespace",
        ngrams: int | tuple[int, ...] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: VocabularyLike = None,
        idf_weights: TensorLike | None = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        vocabulary_size: int | None = None,
        has_input_vocabulary: bool | None = None,
        **kwargs: Unpack[UnnamedOptions],
    ) -> None:
        super().__init__(name=name, **kwargs)
        self._standardize = self._known("standardize", standardize, _STANDARDS)
        self._split = self._known("split", split, _SPLITS)
        self._ngrams_argument = ngrams
        self._ngrams = self._widths(ngrams)
        self._encoding = encoding
        self._ragged = ragged
        if ragged:
            raise ValueError(f"Layer {self.name!r}: ragged=True is not supported; rows are padded. Leave it out.")
        self._lookup_layer = StringLookup(
            max_tokens=max_tokens,
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            pad_to_max_tokens=pad_to_max_tokens,
            mask_token="",
            output_mode=output_mode,
            sparse=sparse,
            encoding=encoding,
            name=self.name,  # which errors then show
            vocabulary_size=vocabulary_size,
            has_input_vocabulary=has_input_vocabulary,
        )
        self._output_mode = self._lookup_layer.output_mode
        self._output_sequence_length = output_sequence_length
        if output_sequence_length is not None and self._output_mode != "int":
            raise ValueError(f"Layer {self.name!r}: output_sequence_length is for output_mode='int' only.")
        if output_sequence_length is not None and not _is_length(output_sequence_length):
            raise ValueError(
                f"Layer {self.name!r}: output_sequence_length must be a positive integer, got "
                f"{output_sequence_length!r}."
            )
        self._tokenize = HostFunction(lambda texts: self._tokens(texts).values)
        self.autocast = False
        self._build_at_init()

    def _known(self, argument: str, value: _How, allowed: tuple[str, ...]) -> _How:
        if value is None or callable(value) or value in allowed:
            return value
        names = ", ".join(repr(name) for name in allowed)
        raise ValueError(f"Layer {self.name!r}: {argument}={value!r} is none of None, {names}, or a function.")

    def _widths(self, ngrams: int | Sequence[int] | None) -> tuple[int, ...] | None:
        if ngrams is None:
            return None
        lengths = (ngrams,) if isinstance(ngrams, int) else ngrams
        if not isinstance(lengths, (tuple, list)) or not lengths or not all(map(_is_length, lengths)):
            raise ValueError(
                f"Layer {self.name!r}: ngrams must be a positive integer or a tuple of such, got {ngrams!r}."
            )
        windows = ngrams * (ngrams + 1) // 2 if isinstance(ngrams, int) else sum(lengths)
        claim((windows,), _BYTES_A_WINDOW, f"Layer {self.name!r}: ngrams={ngrams!r}")
        return tuple(range(1, ngrams + 1)) if isinstance(ngrams, int) else tuple(lengths)

    @property
    def compute_dtype(self) -> str:
        """The dtype of the inputs."""
        return "string"

    # --- the vocabulary -------------------------------------------------------------------------------------

    def adapt(self, data: object, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent words of texts.

        Args:
            data: an array or a list of texts, or batches of them.
            batch_size: accepted for Keras's sake.
            steps: how many batches to take.
        """
        self.reset_state()
        for batch in batches_of(data, steps, self):
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: object) -> None:
        """Count the words of a batch of texts."""
        texts = strings_of(np.atleast_1d(np.asarray(data)))
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            self._lookup_layer.update_state(self._tokenize(texts[start : start + _ROWS_AT_ONCE]))

    def finalize_state(self) -> None:
        """Make the vocabulary of what was counted."""
        self._lookup_layer.finalize_state()

    def reset_state(self) -> None:
        """Forget what `update_state` counted."""
        self._lookup_layer.reset_state()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Return the words by index, with or without the padding and the unknown token in front."""
        return self._lookup_layer.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Return the number of words, with the padding and the unknown token."""
        return self._lookup_layer.vocabulary_size()

    def set_vocabulary(self, vocabulary: VocabularyLike, idf_weights: TensorLike | None = None) -> None:
        """Replace the vocabulary; see `StringLookup.set_vocabulary`."""
        self._lookup_layer.set_vocabulary(vocabulary, idf_weights)

    # --- computing ------------------------------------------------------------------------------------------

    def call(self, inputs: Tensor) -> Tensor:
        length = self._output_sequence_length
        is_cut = self._split in _SPLITS and self._ngrams is None
        found = self._lookup_layer.call(self._tokens(ops.convert_to_tensor(inputs), length if is_cut else None).values)
        if length is None or is_cut:
            return found
        *leading, _ = ops.shape(found)
        padded = ops.concatenate([found, ops.zeros((*leading, length), dtype="int64")], axis=-1)
        return ops.reshape(padded[..., :length], (*leading, length))

    def _tokens(self, texts: Tensor, width: int | None = None) -> _Tokens:
        """Return the tokens of texts: all, or the first `width` of each, where split and ngrams allow to choose."""
        texts = self._standardized(texts)
        if self._split is None:
            texts = ops.expand_dims(texts, -1) if texts.ndim == 0 else texts
            tokens = _Tokens(texts, ops.zeros_like(texts[..., 0], dtype="int32") + ops.shape(texts)[-1])
        else:
            tokens = self._split_texts(self._one_text_a_row(texts), width)
        return tokens if self._ngrams is None else _ngrams(tokens, self._ngrams)

    def _standardized(self, texts: Tensor) -> Tensor:
        how = self._standardize
        if callable(how):
            return ops.convert_to_tensor(how(texts))
        if how in ("lower", "lower_and_strip_punctuation"):
            texts = ops.strings.lower(texts, encoding="")  # ASCII only, as in Keras
        if how in ("strip_punctuation", "lower_and_strip_punctuation"):
            texts = ops.strings.regex_replace(texts, _PUNCTUATION, "")
        return texts

    def _one_text_a_row(self, texts: Tensor) -> Tensor:
        if texts.ndim is None or texts.ndim < 2:
            return texts
        if texts.shape is None or texts.shape[-1] != 1:
            raise ValueError(
                f"Layer {self.name!r} splits texts, one a row: expected shape (batch,) or (batch, 1), got "
                f"{texts.shape}. With split=None rows of tokens are taken as they are."
            )
        return ops.squeeze(texts, -1)

    def _split_texts(self, texts: Tensor, width: int | None) -> _Tokens:
        how = self._split
        if callable(how):
            made = how(texts)
            values = ops.convert_to_tensor(made[0] if isinstance(made, tuple) else made)
            return _Tokens(values, ops.sum(ops.cast(ops.not_equal(values, ""), "int32"), axis=-1))
        if how == "whitespace":  # that of ASCII, as in Keras
            tidy = ops.strings.regex_replace(texts, SEVERAL_SPACES, " ")
            texts, separator = ops.strings.regex_replace(tidy, SPACES_AROUND, ""), " "
        else:
            texts, separator = ops.strings.regex_replace(texts, r"(?s)(?<=.)(?=.)", _NO_CHARACTER), _NO_CHARACTER
        values, lengths = ops.strings.split(texts, separator, width=width)
        return _Tokens(values, ops.where(ops.equal(texts, ""), ops.zeros_like(lengths), lengths))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        shape = tuple(input_shape)
        if self._split is not None:
            shape = (*(shape[:-1] if len(shape) > 1 else shape), None)
        if self._output_mode == "int":
            return shape if self._output_sequence_length is None else (*shape[:-1], self._output_sequence_length)
        mode = "count" if self._output_mode == "tf_idf" else self._output_mode
        return encoded_shape(shape, mode, self._lookup_layer._depth())

    # --- saving ---------------------------------------------------------------------------------------------

    def get_build_config(self) -> dict[str, Any] | None:
        return None

    def get_config(self) -> dict[str, Any]:
        lookup = self._lookup_layer
        return {
            **super().get_config(),
            "max_tokens": lookup.max_tokens,
            "standardize": serialize_keras_object(self._standardize),
            "split": serialize_keras_object(self._split),
            "ngrams": self._ngrams_argument,
            "output_mode": self._output_mode,
            "output_sequence_length": self._output_sequence_length,
            "pad_to_max_tokens": lookup.pad_to_max_tokens,
            "sparse": lookup.sparse,
            "ragged": self._ragged,
            "vocabulary": lookup.input_vocabulary,
            "idf_weights": lookup.input_idf_weights,
            "encoding": self._encoding,
            "vocabulary_size": lookup._vocabulary_size,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TextVectorization:
        made = dict(config)
        for name in ("standardize", "split"):
            if isinstance(made.get(name), dict):
                made[name] = deserialize_keras_object(made[name])
        if isinstance(made.get("ngrams"), list):
            made["ngrams"] = tuple(made["ngrams"])
        return super().from_config(made)

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        self._lookup_layer.save_own_variables(store)

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        self._lookup_layer.load_own_variables(store)

    def save_assets(self, dir_path: str | os.PathLike[str]) -> None:
        """Write the vocabulary; see `StringLookup.save_assets`."""
        self._lookup_layer.save_assets(dir_path)

    def load_assets(self, dir_path: str | os.PathLike[str]) -> None:
        """Read what `save_assets` wrote."""
        self._lookup_layer.load_assets(dir_path)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _ngrams(tokens: _Tokens, widths: tuple[int, ...]) -> _Tokens:
    """Return the n-grams of each row, those of the first width first, with spaces between their tokens."""
    values, lengths = tokens
    longest = ops.shape(values)[-1]
    parts: list[Tensor] = []
    valid: list[Tensor] = []
    for width in widths:
        count = ops.maximum(longest - (width - 1), 0)
        windows = [values[..., first : first + count] for first in range(width)]
        parts.append(ops.strings.join(windows, separator=" "))
        valid.append(ops.arange(count) + width <= ops.expand_dims(lengths, -1))
    joined, is_valid = ops.concatenate(parts, axis=-1), ops.concatenate(valid, axis=-1)
    order = ops.argsort(ops.cast(ops.logical_not(is_valid), "int32"), axis=-1)  # stable: what is valid comes first
    kept = ops.where(is_valid, joined, "")
    return _Tokens(ops.take_along_axis(kept, order, axis=-1), ops.sum(ops.cast(is_valid, "int32"), axis=-1))
