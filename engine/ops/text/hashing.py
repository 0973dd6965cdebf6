"""Hashes of strings by TensorFlow's functions, and a lookup's check, for the layers that put values into bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import is_integer, name_of
from ...common.quick_dataclass import dataclass
from ...graph.spec import broadcast_shapes
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorSpec, apply, as_scalar_or_array, convert_to_tensor
from ..fingerprints import fingerprint_cat, fingerprints, siphash

_CROSS_KEY = np.uint64(0xDECAFCAFFE)  # TensorFlow's, to which the features' fingerprints are added
_WORDS = np.array(["A", "B", "C", "D", "E"], dtypes.string)


class _Bins(Op):
    """Base: the first input gives the shape; there is no gradient."""

    def infer(self, *inputs: Any) -> TensorSpec:
        for each in inputs:
            if each.dtype != dtypes.string and not is_integer(each.dtype):
                raise TypeError(f"Hashes are taken of strings or integers; got {name_of(each.dtype)}.")
        return TensorSpec(inputs[0].shape, dtypes.int64)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True)
class HashBins(_Bins):
    """FarmHash's fingerprint of each string, or with a `key` its SipHash, modulo a number of bins.

    Attributes:
        bins: how many there are.
        key: two 64-bit integers, or none.
    """

    bins: int
    key: tuple[int, ...] = ()
    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        (texts,) = inputs
        hashes = siphash(texts, (self.key[0], self.key[1])) if self.key else fingerprints(texts)
        return as_scalar_or_array((hashes % np.uint64(self.bins)).astype("int64"))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        # As Keras's Hashing(3) and Hashing(3, salt=133) give them.
        yield Sample(cls(3), [_WORDS], np.array([1, 0, 1, 1, 2]), label="fingerprint")
        yield Sample(cls(3, (133, 137)), [_WORDS], np.array([1, 2, 1, 0, 2]), label="key")
        yield Sample(cls(3), [np.array("A", dtypes.string)], np.int64(1), label="0-d")
        yield Sample(cls(3), [_WORDS[:0]], np.zeros(0, "int64"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(
            lambda: apply(cls(3), convert_to_tensor([0.5])), TypeError, "strings or integers; got float32", "real"
        )


@dataclass(frozen=True)
class CrossedBins(_Bins):
    """The joint fingerprint of several features, modulo a number of bins.

    Attributes:
        bins: how many there are.
    """

    bins: int
    by_element: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        arrays = [np.asarray(each) for each in inputs]
        total = np.full(arrays[0].shape, _CROSS_KEY)
        for array in arrays:
            numbers = fingerprints(array) if array.dtype.kind in "TUO" else array.astype("int64").view("uint64")
            total = fingerprint_cat(total, numbers)
        return as_scalar_or_array((total % np.uint64(self.bins)).astype("int64"))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        words = np.array(["A", "B", "A"], dtypes.string)
        # As Keras's HashedCrossing(5) gives them.
        yield Sample(cls(5), [words, np.array([101, 101, 102])], np.array([1, 4, 3]), label="text and integers")
        yield Sample(cls(5), [np.array("A", dtypes.string), np.int64(101)], np.int64(1), label="0-d")
        yield Sample(cls(5), [words[:0], np.zeros(0, "int64")], np.zeros(0, "int64"), label="empty")


@dataclass(frozen=True)
class AllKnown(Op):
    """The first input, the places of values in a vocabulary, if the second holds nowhere; it marks unknown values.

    Attributes:
        who: for the error: who looks up.
    """

    who: str
    view: ClassVar[bool] = True
    by_element: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(broadcast_shapes(*[each.shape for each in inputs]), inputs[0].dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        found, is_unknown, given = inputs
        shape = np.broadcast_shapes(*map(np.shape, inputs))
        if np.shape(found) != shape:  # a batch of which all examples share some inputs
            found, is_unknown, given = [np.broadcast_to(each, shape) for each in inputs]
        if np.any(is_unknown):
            wrong = np.asarray(given)[np.asarray(is_unknown)].ravel()[:10].tolist()
            raise ValueError(
                f"{self.who}: with num_oov_indices=0 all inputs must be in the vocabulary, but {wrong} are not. "
                "Consider num_oov_indices=1."
            )
        return found

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        places, none = np.array([1, 0]), np.array([False, False])
        yield Sample(cls("x"), [places, none, np.array(["b", "a"], dtypes.string)], places, label="text")
        yield Sample(cls("x"), [np.int64(1), np.False_, np.int64(7)], np.int64(1), label="0-d")
        yield Sample(cls("x"), [places[:0], none[:0], places[:0]], places[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        def looked_up() -> Any:
            return cls("Layer 'x'").run(np, np.array([0, -1]), np.array([False, True]), np.array([7, 8]))

        yield ErrorSample(looked_up, ValueError, r"Layer 'x': .* but \[8\] are not", "unknown")


__all__ = ["AllKnown", "CrossedBins", "HashBins"]
