"""Layers that put values into bins by their hashes, with TensorFlow's hash functions, so that bins are Keras's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import is_floating, is_integer, string
from ...engine.common.outputs import HasCall, Result
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.objects.floats import floatx
from ...engine.ops.base import apply
from ...engine.ops.text.hashing import CrossedBins, HashBins
from ..core.layer_config import config_from_signature
from .base import ENCODED_MODES, PreprocessingLayer, check_mode, encode, encoded_shape

if TYPE_CHECKING:
    from ...engine.objects.identifiers import PolicyLike
    from ..core.options import LayerOptions, OtherOptions


def salt_pair(salt: int | Sequence[int] | None, layer_name: str) -> list[int] | None:
    """Return a salt as two integers.

    Raises:
        ValueError: it is neither one integer nor two.
    """
    if salt is None:
        return None
    if isinstance(salt, int):
        return [salt, salt]
    if isinstance(salt, (tuple, list)) and len(salt) == 2:
        return [int(part) for part in salt]
    raise ValueError(f"Layer {layer_name!r}: salt must be an integer or a pair of integers, got salt={salt!r}.")


def hash_buckets(values: Tensor, buckets: int, salt: Sequence[int] | None) -> Tensor:
    """Return the bin of each string: its FarmHash fingerprint, or SipHash with a salt, modulo `buckets`, as int64."""
    return apply(HashBins(buckets, () if salt is None else tuple(salt)), values)


def as_text(values: Tensor) -> Tensor:
    """Return strings as they are, integers as decimals, floats as their integer parts."""
    if values.dtype == string:
        return values
    return ops.strings.as_string(ops.cast(values, "int64") if is_floating(values.dtype) else values)


@config_from_signature()
class Hashing(PreprocessingLayer):
    """Puts strings or integers into a fixed number of bins by their hashes.

    Args:
        num_bins: the number of bins; with a `mask_value`, bin 0 is for that.
        mask_value: the value that goes to bin 0, and no other.
        salt: an integer or two; then the hash is SipHash with this key, otherwise FarmHash's 64-bit fingerprint.
        output_mode: "int", "one_hot", "multi_hot" or "count".
        sparse: not supported; accepted as False.

    Input: strings, integers, or floats (whose integer parts count) of any shape. Output: for "int" the same shape, in
    int64; else the last axis becomes `num_bins` long.

    Raises:
        ValueError: an argument is out of its range.

    >>> Hashing(3)(["A", "B", "C", "D", "E"])
    Tensor([1, 0, 1, 1, 2], dtype=int64)

    Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
    """

    def __init__(
        self,
        num_bins: int,
        mask_value: str | int | None = None,
        salt: int | Sequence[int] | None = None,
        output_mode: str = "int",
        sparse: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = "int64" if output_mode == "int" else floatx()
        super().__init__(**kwargs)
        check_optional_numbers(f"Layer {self.name!r}", num_bins=num_bins)
        if num_bins is None or num_bins <= 0:
            raise ValueError(f"Layer {self.name!r}: num_bins must be at least 1, got num_bins={num_bins}.")
        self.output_mode = check_mode(self, output_mode, ("int", *ENCODED_MODES), sparse)
        if output_mode == "int" and self.dtype not in ("int32", "int64"):
            raise ValueError(
                f"Layer {self.name!r}: with output_mode='int', dtype must be 'int32' or 'int64', got {self.dtype!r}."
            )
        self.num_bins = num_bins
        self.mask_value = mask_value
        self.sparse = sparse
        self.salt = salt_pair(salt, self.name)
        self.autocast = False
        self._build_at_init()

    def call(self, inputs: Tensor) -> Tensor:
        values = ops.convert_to_tensor(inputs)
        mask_value = self.mask_value if self.num_bins > 1 else None
        bins = hash_buckets(as_text(values), self.num_bins - int(mask_value is not None), self.salt)
        if mask_value is not None:
            bins = ops.where(ops.equal(values, mask_value), ops.zeros_like(bins), bins + 1)
        return encode(bins, self.output_mode, self.num_bins, self.compute_dtype)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return encoded_shape(input_shape, self.output_mode, self.num_bins)


@config_from_signature()
class HashedCrossing(PreprocessingLayer):
    """Puts the combinations of two or more features into a fixed number of bins by their hash.

    Args:
        num_bins: the number of bins.
        output_mode: "int" or "one_hot".
        sparse: not supported; accepted as False.

    Input: a list of strings or integers, all of one shape: ``()``, ``(batch,)`` or ``(batch, 1)``. Output: for "int"
    that shape, in int64; for "one_hot" ``(batch, num_bins)``.

    Raises:
        ValueError: there are fewer than two inputs, or their shapes or dtypes differ.

    >>> HashedCrossing(5)((["A", "B", "A"], [101, 101, 102]))
    Tensor([1, 4, 3], dtype=int64)
    """

    def __init__(
        self,
        num_bins: int,
        output_mode: str = "int",
        sparse: bool = False,
        name: str | None = None,
        dtype: PolicyLike = None,
        **kwargs: Unpack[OtherOptions],
    ) -> None:
        super().__init__(name=name, dtype="int64" if output_mode == "int" and dtype is None else dtype, **kwargs)
        self.output_mode = check_mode(self, output_mode, ("int", "one_hot"), sparse)
        check_numbers(f"Layer {self.name!r}", num_bins=num_bins)
        self.num_bins = num_bins
        self.sparse = sparse
        self.autocast = False
        self._build_at_init()

    def __call__(self: HasCall[Result], *args: object, **kwargs: object) -> Result:
        if args and isinstance(args[0], (list, tuple)):
            features = [value if isinstance(value, Tensor) else np.asarray(value) for value in args[0]]
            args = (features, *args[1:])
        return cast("Result", super().__call__(*args, **kwargs))

    def call(self, inputs: Tensor) -> Tensor:
        if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
            raise ValueError(
                f"Layer {self.name!r} crosses at least two features, in a list; got "
                f"{len(inputs) if isinstance(inputs, (list, tuple)) else 'one tensor'}."
            )
        features = [ops.convert_to_tensor(value) for value in inputs]
        self._check(features)
        crossed = apply(CrossedBins(self.num_bins), *features)
        return encode(crossed, self.output_mode, self.num_bins, self.compute_dtype)

    def _check(self, features: Sequence[Tensor]) -> None:
        shapes = [feature.shape for feature in features]
        for shape in shapes:
            if shape is None or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
                raise ValueError(
                    f"Layer {self.name!r}: features must have shape (), (batch,) or (batch, 1); got {shapes}."
                )
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"Layer {self.name!r}: all features must have the same shape, got {shapes}.")
        for feature in features:
            if feature.dtype != string and not is_integer(feature.dtype):
                raise ValueError(
                    f"Layer {self.name!r}: features must be strings or integers, got {feature.dtype.name}. "
                    "Put numbers into bins first, as with Discretization."
                )

    def compute_output_shape(self, input_shape: Sequence[Sequence[int | None]]) -> tuple[int | None, ...]:
        return encoded_shape(input_shape[0], self.output_mode, self.num_bins)
