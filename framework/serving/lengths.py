"""`Lengths`: sequences of several lengths as one batch, where the model masks what is filled up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .signature import Signature

if TYPE_CHECKING:
    from ..structures import Array

_SHORTEST = 8  # what is shorter is filled up to this: programs for so little differ in nothing


def padded_length(length: int) -> int:
    """Return the length up to which a sequence is filled: the next power of two, from 8 on.

    It depends on nothing but the length, so that an answer's rounding does not depend on other requests. A sequence
    of no steps stays one.

    >>> [padded_length(length) for length in (0, 1, 8, 9, 64, 65)]
    [0, 8, 8, 16, 64, 128]
    """
    return max(_SHORTEST, 1 << (length - 1).bit_length()) if length else 0


class Lengths:
    """Fills axis 1 of a signature's inputs up, and cuts its outputs back.

    Args:
        signature: one with `paddings`.
    """

    def __init__(self, signature: Signature) -> None:
        inputs = {info.name: place for place, info in enumerate(signature.inputs)}
        outputs = {info.name: place for place, info in enumerate(signature.outputs)}
        self._inputs = [[(inputs[name], value) for name, value in each.inputs] for each in signature.paddings]
        self._outputs = [[(outputs[name], axis) for name, axis in each.outputs] for each in signature.paddings]
        self.places = frozenset(place for group in self._inputs for place, _ in group)

    def of(self, arrays: Sequence[Array]) -> tuple[int, ...] | None:
        """Return the length of each group of inputs; None where the inputs of a group differ: none can be padded."""
        found: list[int] = []
        for group in self._inputs:
            lengths = {arrays[place].shape[1] for place, _ in group}
            if len(lengths) > 1:
                return None
            found.extend(lengths)
        return tuple(found)

    def pad(self, arrays: Sequence[Array], lengths: Sequence[int]) -> list[Array]:
        """Return the inputs, filled up to a length for each group."""
        padded = list(arrays)
        for group, length in zip(self._inputs, lengths, strict=True):
            for place, value in group:
                padded[place] = _filled(padded[place], length, value)
        return padded

    def cut(self, outputs: Sequence[Array], lengths: Sequence[int]) -> list[Array]:
        """Return the outputs, cut back to a length for each group along the axes that follow it."""
        found = list(outputs)
        for group, length in zip(self._outputs, lengths, strict=True):
            for place, axis in group:
                found[place] = found[place][(slice(None),) * axis + (slice(length),)]
        return found


def _filled(array: Array, length: int, value: float | str) -> Array:
    missing = length - array.shape[1]
    if missing <= 0:
        return array
    more = np.full((array.shape[0], missing, *array.shape[2:]), value, array.dtype)
    return np.concatenate([array, more], axis=1)
