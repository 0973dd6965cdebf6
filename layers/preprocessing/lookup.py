"""Layers that look values up in a vocabulary: `StringLookup` and `IntegerLookup`.

The vocabulary is stored in the graph as sorted keys, and a lookup is a binary search (`ops.searchsorted`) and a
comparison. Both tables are variables of unknown length, so that a vocabulary that is set or adapted later needs no new
program.
"""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Mapping, MutableMapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.common.dtypes import DTypeLike, is_integer, string
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers, check_optional_numbers, listed, refused
from ...engine.objects.floats import floatx
from ...engine.objects.trust import distrusts_files
from ...engine.ops.base import TensorLike, apply, as_array
from ...engine.ops.text.hashing import AllKnown
from ..core.layer_config import config_from_signature
from .base import (
    ENCODED_MODES,
    PreprocessingLayer,
    Unlearnt,
    batches_of,
    check_mode,
    encode,
    encoded_shape,
    strings_of,
)
from .hash import as_text, hash_buckets, salt_pair

if TYPE_CHECKING:
    from os import PathLike

    from ...engine.common.dtypes import DType
    from ..core.options import LookupOptions, UnnamedOptions


_FILE = "vocabulary.txt"
Array = np.ndarray
Token = str | int
VocabularyLike: TypeAlias = "str | PathLike[str] | Sequence[Token] | Array | None"
"""Tokens, or a text file with one in each line; None for none."""
_BYTES_A_TOKEN = 128  # that an out-of-vocabulary token takes in lists and arrays


class _Table:
    """A map from keys to places, as two variables: sorted keys, and the place of each.

    Args:
        keys: the first value of the keys.
    """

    def __init__(self, keys: Unlearnt) -> None:
        self.keys = Variable(keys, shape=(None,), trainable=False, name="vocabulary")
        self.places = Variable(np.full(1, -1, "int64"), shape=(None,), trainable=False, name="places")

    def assign(self, keys: Array, first: int) -> None:
        """Let the place of each key be its index, counted from `first`; of no keys there is no place."""
        order = np.argsort(keys, kind="stable")
        places = np.arange(first, first + len(keys), dtype="int64")[order]
        if not len(keys):
            keys, order, places = np.zeros(1, keys.dtype), np.zeros(1, "int64"), np.full(1, -1, "int64")
        self.keys.write_value(np.ascontiguousarray(keys[order]))
        self.places.write_value(places)

    def lookup(self, values: Tensor) -> Tensor:
        """Return the place of each value, -1 for unknown ones."""
        keys = self.keys.value
        found = ops.minimum(ops.searchsorted(keys, values), ops.shape(keys)[0] - 1)
        is_key = ops.equal(ops.take(keys, found), values)
        return ops.where(is_key, ops.take(self.places.value, found), ops.cast(-1, "int64"))


@config_from_signature(
    idf_weights="input_idf_weights",
    vocabulary="input_vocabulary",
    vocabulary_size="_vocabulary_size",
    has_input_vocabulary="",
)
class IndexLookup(PreprocessingLayer):
    """The base of `StringLookup` and `IntegerLookup`; see there."""

    untracked: ClassVar[frozenset[str]] = PreprocessingLayer.untracked | {"idf_weights", "_tokens"}

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Token | None,
        oov_token: Token | None,
        vocabulary_dtype: str,
        vocabulary: VocabularyLike = None,
        idf_weights: TensorLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        name: str | None = None,
        salt: int | Sequence[int] | None = None,
        vocabulary_size: int | None = None,
        has_input_vocabulary: bool | None = None,
        **kwargs: Unpack[UnnamedOptions],
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.output_mode = check_mode(self, output_mode, ("int", *ENCODED_MODES, "tf_idf"), sparse)
        self.max_tokens = max_tokens
        self.num_oov_indices = num_oov_indices
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.vocabulary_dtype = vocabulary_dtype
        self.invert = invert
        self.sparse = sparse
        self.pad_to_max_tokens = pad_to_max_tokens
        self.oov_method = oov_method
        self.salt = salt_pair(salt, self.name)
        self.autocast = False
        self._build_at_init()
        self.input_vocabulary = (
            None
            if isinstance(vocabulary, (str, os.PathLike))
            else _listed(f"Layer {self.name!r}", "vocabulary", vocabulary)
        )
        self.input_idf_weights = _listed(f"Layer {self.name!r}", "idf_weights", idf_weights)
        self._has_input_vocabulary = vocabulary is not None if has_input_vocabulary is None else has_input_vocabulary
        self._check_arguments(vocabulary, vocabulary_size)
        claim((num_oov_indices,), _BYTES_A_TOKEN, f"Layer {self.name!r}: num_oov_indices={num_oov_indices}")
        # Graphs that read these before there is a vocabulary fail when they run: it may follow in between.
        self._table = _Table(self._unlearnt(self._key_type))
        self._tokens = Variable(self._unlearnt(self._key_type), shape=(None,), trainable=False, name="tokens")
        self.idf_weights = Variable(self._unlearnt(floatx()), shape=(None,), trainable=False, name="idf_weights")
        self._learnt = self._as_tokens([])
        self._vocabulary_size: int | None = vocabulary_size
        self._called_with_size: int | None = None
        self.reset_state()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    def _check_arguments(self, vocabulary: object, vocabulary_size: int | None) -> None:
        limit, idf = self.max_tokens, self.input_idf_weights
        owner = f"Layer {self.name!r}"
        check_optional_numbers(owner, max_tokens=limit, vocabulary_size=vocabulary_size)
        check_numbers(owner, num_oov_indices=self.num_oov_indices)
        if limit is not None and limit <= 1:
            raise self._wrong(f"max_tokens must be greater than 1, got max_tokens={limit}")
        if self.pad_to_max_tokens and limit is None:
            raise self._wrong("pad_to_max_tokens=True needs max_tokens")
        kinds, words = ((str, bytes), "a string") if self.vocabulary_dtype == "string" else (Integral, "an integer")
        for name, token in (("mask_token", self.mask_token), ("oov_token", self.oov_token)):
            if token is not None and not isinstance(token, kinds):
                raise refused(owner, name, token, words)
        if self.num_oov_indices < 0:
            raise self._wrong(f"num_oov_indices must not be negative, got num_oov_indices={self.num_oov_indices}")
        if self.oov_method not in ("floormod", "farmhash"):
            raise self._wrong(f"oov_method must be 'floormod' or 'farmhash', got {self.oov_method!r}")
        if self.salt is not None and self.vocabulary_dtype != "string" and self.oov_method != "farmhash":
            raise self._wrong("salt needs oov_method='farmhash'")
        if self.invert and self.output_mode != "int":
            raise self._wrong(f"invert=True needs output_mode='int', got {self.output_mode!r}")
        if idf is not None and self.output_mode != "tf_idf":
            raise self._wrong(f"idf_weights are for output_mode='tf_idf', got {self.output_mode!r}")
        if self.output_mode == "tf_idf" and vocabulary is not None and idf is None:
            raise self._wrong("a vocabulary with output_mode='tf_idf' needs idf_weights, one for each term")

    def _unlearnt(self, dtype: DTypeLike) -> Unlearnt:
        return Unlearnt(dtype, self._no_vocabulary(), RuntimeError)

    def _no_vocabulary(self, consequence: str = "") -> str:
        remedy = "Call adapt() or set_vocabulary() first, or give it vocabulary=."
        return f"Layer {self.name!r} has no vocabulary yet{consequence}. {remedy}"

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"Layer {self.name!r} ({type(self).__name__}): {what}.")

    # --- the vocabulary -------------------------------------------------------------------------------------

    @property
    def _key_type(self) -> DType:
        return string if self.vocabulary_dtype == "string" else np.dtype("int64")

    @property
    def compute_dtype(self) -> str:
        """The dtype of the inputs: that of the vocabulary, or of indices where `invert` is set."""
        return "int64" if self.invert else self.vocabulary_dtype

    def _as_tokens(self, values: Sequence[Token]) -> Array:
        if self._key_type != string:
            return np.asarray(values, "int64")
        return strings_of(values) if len(values) else np.zeros(0, string)

    def _oov_start(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    def _token_start(self) -> int:
        return self._oov_start() + self.num_oov_indices

    def _special_tokens(self) -> list[str | int | None]:
        return [self.mask_token] * self._oov_start() + [self.oov_token] * self.num_oov_indices

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the vocabulary by index.

        Args:
            include_special_tokens: whether the mask token and the out-of-vocabulary tokens come first.
        """
        if self._vocabulary_size is None and not len(self._learnt):
            return []
        learnt = self._learnt.tolist()
        return [*self._special_tokens(), *learnt] if include_special_tokens else learnt

    def vocabulary_size(self) -> int:
        """Return the number of terms, with the mask token and the out-of-vocabulary tokens."""
        return len(self._learnt) + self._token_start()

    def _write_tokens(self, tokens: Array) -> None:
        size = self._token_start() + len(tokens)
        fixed = self.output_mode != "int" and not self.pad_to_max_tokens
        if fixed and self._called_with_size not in (None, size):
            raise RuntimeError(
                f"Layer {self.name!r}: its vocabulary had {self._called_with_size} terms when it was called, which is "
                f"the width of its output in mode {self.output_mode!r}; now there are {size}. Use "
                "pad_to_max_tokens=True, or set the vocabulary before the model is built."
            )
        self._learnt = tokens
        self._vocabulary_size = size
        # What an inverse lookup of special places gives; None stands for nothing, which has no place in an array.
        special = [token if token is not None else self._nothing for token in self._special_tokens()]
        self._tokens.write_value(np.concatenate([self._as_tokens(special), tokens]))
        self._table.assign(tokens, self._token_start())

    @property
    def _nothing(self) -> str | int:
        return "" if self._key_type == string else -1

    def set_vocabulary(self, vocabulary: object, idf_weights: TensorLike | None = None) -> None:
        """Replace the vocabulary.

        Args:
            vocabulary: the terms, with or without the special tokens in front; or the name of a text file with one
                term a line.
            idf_weights: for "tf_idf", the inverse document frequency of each term.

        Raises:
            ValueError: terms repeat, there are none, or they are more than `max_tokens`; or weights are missing or
                not as many.
        """
        if (idf_weights is not None) != (self.output_mode == "tf_idf"):
            need = "needs" if self.output_mode == "tf_idf" else "takes no"
            raise self._wrong(f"set_vocabulary with output_mode={self.output_mode!r} {need} idf_weights")
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = self._read_file(Path(vocabulary))
        given = _listed(f"Layer {self.name!r}", "vocabulary", vocabulary)
        if not given:
            raise self._wrong("the vocabulary is empty; it must hold at least one term")
        start = self._token_start()
        has_special = given[:start] == self._special_tokens()
        terms = given[start:] if has_special else given
        self._check_terms(terms)
        weights = None if idf_weights is None else self._padded_idf(np.asarray(idf_weights), len(given), has_special)
        self._write_tokens(self._as_tokens(terms))
        if weights is not None:
            self.idf_weights.write_value(weights)

    def _read_file(self, path: Path) -> list[str] | list[int]:
        if distrusts_files():
            raise self._wrong(
                f"its config names the file {str(path)!r} as its vocabulary, and files outside of a model are not "
                "read. If you trust where the model comes from, pass safe_mode=False"
            )
        if not path.is_file():
            raise self._wrong(f"there is no vocabulary file {str(path)!r}")
        lines = path.read_text(encoding="utf-8").split("\n")
        while lines and not lines[-1]:
            lines.pop()
        return self._parsed(lines)

    def _parsed(self, lines: list[str]) -> list[str] | list[int]:
        return lines if self._key_type == string else [int(line) for line in lines]

    def _check_terms(self, terms: Sequence[object]) -> None:
        repeated = [term for term, count in collections.Counter(terms).items() if count > 1]
        if repeated:
            raise self._wrong(f"the vocabulary has repeated terms: {repeated[:10]}; each may occur once")
        for kind, token in (("mask", self.mask_token), ("out-of-vocabulary", self.oov_token if self.invert else None)):
            if token is not None and token in terms:
                raise self._wrong(
                    f"the {kind} token {token!r} stands inside of the vocabulary, at {terms.index(token)}. Leave all "
                    f"special tokens out, or begin with exactly {self._special_tokens()}"
                )
        size = len(terms) + self._token_start()
        if self.max_tokens is not None and size > self.max_tokens:
            raise self._wrong(f"the vocabulary has {size} terms with the special ones, max_tokens={self.max_tokens}")

    def _padded_idf(self, weights: Array, terms: int, has_special: bool) -> Array:
        if weights.shape != (terms,):
            raise self._wrong(f"idf_weights have shape {weights.shape}; expected one for each of {terms} terms")
        front = 0 if has_special else self._token_start()
        padded = np.concatenate([np.full(front, weights.mean()), weights]).astype(floatx())
        return self._with_zeros(padded)

    def _with_zeros(self, weights: Array) -> Array:
        behind = self.max_tokens - len(weights) if self.pad_to_max_tokens and self.max_tokens is not None else 0
        claim((behind,), 8, f"Layer {self.name!r}: padding")
        return np.pad(weights, (0, behind)).astype(floatx())

    # --- adapting -------------------------------------------------------------------------------------------

    def adapt(self, data: object, steps: int | None = None) -> None:
        """Learn the vocabulary: the most frequent values, ties in falling order of the values themselves.

        Args:
            data: an array or a list of values, or batches of them.
            steps: how many batches to take.

        Raises:
            ValueError: the layer was made with a vocabulary.
        """
        self.reset_state()
        for batch in batches_of(data, steps, self):
            whole = hasattr(data, "__array__") or isinstance(data, (list, tuple))
            self.update_state(batch[:, None] if whole and batch.ndim == 1 else batch)
        self.finalize_state()

    def reset_state(self) -> None:
        """Forget what `update_state` counted."""
        self._counts: collections.Counter[Any] = collections.Counter()
        self._documents: collections.Counter[str | int] = collections.Counter()
        self._document_count = 0

    def update_state(self, data: object) -> None:
        """Count the values of a batch, ``[documents, ...]``; a vector is one document."""
        if self._has_input_vocabulary:
            raise self._wrong("it was made with a vocabulary, so that it can't be adapted. Make it without one")
        array = np.asarray(as_array(data))
        documents = array.reshape(1, -1) if array.ndim < 2 else array.reshape(len(array), math.prod(array.shape[1:]))
        self._counts.update(documents.ravel().tolist())
        if self.output_mode == "tf_idf":
            for document in documents:
                self._documents.update(set(document.tolist()))
            self._document_count += len(documents)

    def finalize_state(self) -> None:
        """Make the vocabulary of what was counted."""
        for token in (self.mask_token, self.oov_token):
            self._counts.pop(token, None)
        if not self._counts:
            return
        order = sorted(self._counts, reverse=True)
        order.sort(key=lambda token: -self._counts[token])
        terms = order if self.max_tokens is None else order[: max(self.max_tokens - self._token_start(), 0)]
        self._write_tokens(self._as_tokens(terms))
        if self.output_mode == "tf_idf":
            frequencies = np.array([self._documents[term] for term in terms], "float64")
            weights = np.log(1 + self._document_count / (1 + frequencies))
            front = np.full(self._token_start(), weights.mean() if len(weights) else 0.0)
            self.idf_weights.write_value(self._with_zeros(np.concatenate([front, weights])))
        self.reset_state()

    # --- looking up -----------------------------------------------------------------------------------------

    def call(self, inputs: TensorLike) -> Tensor:
        values = self._checked(ops.convert_to_tensor(inputs))
        if self.invert:
            return self._inverse(values)
        found = self._indices(values)
        if self.output_mode == "int":
            return found
        depth = self._depth()
        if depth is None:
            width = f", which gives the width of its output in mode {self.output_mode!r} without pad_to_max_tokens=True"
            raise RuntimeError(self._no_vocabulary(width))
        self._called_with_size = depth if not self.pad_to_max_tokens else None
        if self.output_mode == "tf_idf":
            return encode(found, "count", depth, floatx()) * self.idf_weights.value
        return encode(found, self.output_mode, depth, floatx())

    def _checked(self, values: Tensor) -> Tensor:
        wants_text = self._key_type == string and not self.invert
        if (values.dtype == string) != wants_text:
            raise TypeError(
                f"Layer {self.name!r} ({type(self).__name__}) looks up {'strings' if wants_text else 'integers'}, got "
                f"{values.spec}." + (" Numbers become strings with ops.strings.as_string." if wants_text else "")
            )
        return values if wants_text else ops.cast(values, "int64")

    def _depth(self) -> int | None:
        return self.max_tokens if self.pad_to_max_tokens else self._vocabulary_size

    def _inverse(self, indices: Tensor) -> Tensor:
        tokens = self._tokens.value
        count = ops.cast(ops.shape(tokens)[0], "int64")
        oov = ops.convert_to_tensor(self._as_tokens([self.oov_token if self.oov_token is not None else self._nothing]))
        table = ops.concatenate([oov, tokens], axis=0)
        known = ops.logical_and(indices >= 0, indices < count)
        return ops.take(table, ops.where(known, indices + 1, ops.zeros_like(indices)))

    def _indices(self, values: Tensor) -> Tensor:
        found = self._table.lookup(values)
        unknown = found < 0
        if self.mask_token is not None:
            masked = ops.equal(values, self.mask_token)
            unknown = ops.logical_and(unknown, ops.logical_not(masked))
            # In other modes than "int" the mask token is left out: encodings have no row for a negative index.
            found = ops.where(masked, ops.cast(0 if self.output_mode == "int" else -1, "int64"), found)
        if self.num_oov_indices == 0:
            return apply(AllKnown(f"Layer {self.name!r}"), found, unknown, values)
        return ops.where(unknown, self._oov_places(values) + self._oov_start(), found)

    def _oov_places(self, values: Tensor) -> Tensor:
        if self.num_oov_indices == 1:
            return ops.zeros_like(values, dtype="int64")
        if is_integer(values.dtype) and self.oov_method != "farmhash":
            return ops.mod(values, self.num_oov_indices)
        return hash_buckets(as_text(values), self.num_oov_indices, self.salt)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        return encoded_shape(input_shape, mode, self._depth())

    # --- saving ---------------------------------------------------------------------------------------------

    def get_build_config(self) -> None:
        return None

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        if self.output_mode == "tf_idf" and len(self._learnt):
            store["idf_weights"] = self.idf_weights.numpy()

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        if self.output_mode == "tf_idf" and "idf_weights" in store:
            self.idf_weights.write_value(np.asarray(store["idf_weights"], floatx()))

    def save_assets(self, dir_path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to ``vocabulary.txt``, one term a line, unless it is in the config."""
        if self.input_vocabulary is None:
            text = "\n".join("" if term is None else str(term) for term in self.get_vocabulary())
            Path(dir_path, _FILE).write_text(text, encoding="utf-8", newline="\n")

    def load_assets(self, dir_path: str | os.PathLike[str]) -> None:
        """Read what `save_assets` wrote."""
        path = Path(dir_path, _FILE)
        if self.input_vocabulary is not None or not path.is_file():
            return
        text = path.read_text(encoding="utf-8")
        terms = self._parsed(text.split("\n")) if text else []  # no line end behind the last, which may be empty
        if len(terms) > len(self._special_tokens()):
            idf = self.idf_weights.numpy()[: len(terms)] if self.output_mode == "tf_idf" else None
            self.set_vocabulary(terms, idf)


def _listed(layer: str, name: str, values: object) -> list[Token] | None:
    """Return a vocabulary or weights as a list of Python values."""
    if values is None:
        return None
    items = values.tolist() if isinstance(values, np.ndarray) else listed(layer, name, values, "a list")
    return [
        item.decode() if isinstance(item, bytes) else item.item() if isinstance(item, np.generic) else item
        for item in items
    ]


class StringLookup(IndexLookup):
    """Strings as the indices of a vocabulary, or encoded by them; or indices as strings.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None for no limit.
        num_oov_indices: the number of indices for unknown strings. With several, hashes choose among them; with 0
            unknown strings are errors.
        mask_token: a string that gets index 0, or is left out of encodings; None for none.
        oov_token: what an inverse lookup gives for unknown indices.
        vocabulary: the terms, or the name of a file with one a line; otherwise `adapt` learns them.
        idf_weights: for "tf_idf", the inverse document frequencies of the terms.
        invert: look up strings by index.
        output_mode: "int"; "one_hot", each element encoded; or of the last axis "multi_hot", "count" or "tf_idf".
        pad_to_max_tokens: encodings are `max_tokens` wide, however large the vocabulary.
        sparse: not supported; accepted as False.
        encoding: the encoding of bytes; always UTF-8.
        salt: a key, one or two integers, for the hashes of unknown strings.

    Input: strings of any shape (indices with `invert`). Output: int64 of that shape for "int", else floats.

    Raises:
        ValueError: arguments contradict each other, or the vocabulary has repeated terms.

    >>> layer = StringLookup(vocabulary=["a", "b", "c"])
    >>> layer([["a", "c", "d"]])
    Tensor([[1, 3, 0]], dtype=int64)
    >>> StringLookup(vocabulary=["a", "b", "c"], invert=True)([[1, 3, 0]])
    Tensor([['a', 'c', '[UNK]']], dtype=string)
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str | None = "[UNK]",
        vocabulary: VocabularyLike = None,
        idf_weights: TensorLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        salt: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("vocabulary_dtype", None)
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            "string",
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            name=name,
            salt=salt,
            **kwargs,
        )
        self.encoding = encoding

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["vocabulary_dtype"]
        return {**config, "encoding": self.encoding}


class IntegerLookup(IndexLookup):
    """Integers as the indices of a vocabulary, or encoded by them; or the reverse.

    Args:
        max_tokens, num_oov_indices, mask_token, vocabulary, idf_weights, invert, output_mode, sparse,
            pad_to_max_tokens: see `StringLookup`.
        oov_token: what an inverse lookup gives for unknown indices.
        vocabulary_dtype: "int64", the only one.
        oov_method: how several indices for unknown integers are chosen among: "floormod" or "farmhash".
        salt: a key for "farmhash".

    Raises:
        ValueError: arguments contradict each other, or the vocabulary has repeated terms.

    >>> IntegerLookup(vocabulary=[12, 36, 1138])([[12, 1138, 42]])
    Tensor([[1, 3, 0]], dtype=int64)
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int | None = -1,
        vocabulary: VocabularyLike = None,
        vocabulary_dtype: str = "int64",
        idf_weights: TensorLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: int | Sequence[int] | None = None,
        name: str | None = None,
        **kwargs: Unpack[LookupOptions],
    ) -> None:
        if vocabulary_dtype != "int64":
            raise ValueError(f"IntegerLookup: vocabulary_dtype must be 'int64', got {vocabulary_dtype!r}.")
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary_dtype,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            oov_method,
            name,
            salt,
            **kwargs,
        )
