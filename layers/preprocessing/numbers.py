"""Layers that make numbers ready for models: `Normalization`, `Discretization`, `CategoryEncoding`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers, check_optional_numbers, floats, listed
from ...engine.objects.floats import floatx
from ...engine.ops.base import TensorLike, as_array
from ..core.layer_config import config_from_signature
from .base import ENCODED_MODES, PreprocessingLayer, Unlearnt, batches_of, check_mode, encode, encoded_shape

if TYPE_CHECKING:
    from ...engine.objects.identifiers import PolicyLike
    from ..core.options import LayerOptions, OtherOptions


_EPSILON = 1e-7  # the least standard deviation
Array = np.ndarray


class Normalization(PreprocessingLayer):
    """``(inputs - mean) / sqrt(variance)``, with a mean and a variance for each feature.

    Args:
        axis: the axes whose positions each have a mean and a variance of their own; None for one of everything.
        mean, variance: given here, or learnt by `adapt`; numbers, or arrays that broadcast to the kept axes.
        invert: the reverse, ``inputs * sqrt(variance) + mean``.

    Input and output: floats of any shape ``(batch, ...)``.

    Raises:
        ValueError: one of mean and variance is missing, or their shapes do not fit; or a kept axis is unknown.

    >>> layer = Normalization()
    >>> layer.adapt(np.array([[1.0, 0.0], [3.0, 8.0]]))
    >>> layer([[3.0, 4.0]])
    Tensor([[1., 0.]], dtype=float32)
    >>> layer.mean, layer.variance
    (array([[2., 4.]], dtype=float32), array([[ 1., 16.]], dtype=float32))
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: TensorLike | None = None,
        variance: TensorLike | None = None,
        invert: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        axes = () if axis is None else (axis,) if isinstance(axis, int) else axis
        self.axis = tuple(listed(f"Layer {self.name!r}", "axis", axes, "an int or several, or None"))
        self.input_mean = None if mean is None else floats(f"Layer {self.name!r}", "mean", mean)
        self.input_variance = None if variance is None else floats(f"Layer {self.name!r}", "variance", variance)
        self.invert = invert
        self.supports_masking = True
        self._check_given()

    def _check_given(self) -> None:
        mean, variance = self.input_mean, self.input_variance
        if (mean is None) != (variance is None):
            raise ValueError(f"Layer {self.name!r}: mean and variance must both be given, or neither.")
        if mean is None or variance is None:
            return
        if mean.shape != variance.shape:
            raise ValueError(
                f"Layer {self.name!r}: mean and variance must have one shape, got {mean.shape} and {variance.shape}."
            )
        if mean.ndim > len(self.axis):
            raise ValueError(
                f"Layer {self.name!r}: mean has {mean.ndim} axes, but axis={self.axis} keeps {len(self.axis)}."
            )

    def build(self, input_shape: Sequence[int | None]) -> None:
        rank = len(input_shape)
        if any(not -rank <= axis < rank for axis in self.axis):
            raise ValueError(f"Layer {self.name!r}: axis={self.axis} is outside of inputs of shape {input_shape}.")
        self._kept = tuple(sorted(axis % rank for axis in self.axis))
        if any(input_shape[axis] is None for axis in self._kept):
            raise ValueError(
                f"Layer {self.name!r}: the sizes of axis={self.axis} must be known; inputs have shape {input_shape}."
            )
        self._reduced = tuple(axis for axis in range(rank) if axis not in self._kept)
        self._broadcast = tuple([input_shape[axis] or 0 if axis in self._kept else 1 for axis in range(rank)])
        if self.input_mean is not None:
            return
        shape = tuple(input_shape[axis] for axis in self._kept)
        self.adapt_mean = self.add_weight(shape, "zeros", trainable=False, name="mean")
        self.adapt_variance = self.add_weight(shape, "ones", trainable=False, name="variance")
        self.count = self.add_weight((), "zeros", dtype="int32", trainable=False, name="count")

    def adapt(self, data: object) -> None:
        """Learn the mean and the variance.

        Args:
            data: an array, or batches of arrays (of (x, y) the x).

        Raises:
            ValueError: the layer was given its mean, or the data do not have the shape that it was built for.
        """
        if self.input_mean is not None:
            raise ValueError(f"Layer {self.name!r} was given mean and variance; it can't be adapted.")
        count, mean, variance = 0, np.zeros(()), np.zeros(())
        for batch in batches_of(data, None, self):
            array = np.asarray(batch, "float64")
            if not array.size:
                continue
            self._check_batch(array)
            size = math.prod(array.shape[axis] for axis in self._reduced)
            count += size
            part = size / count
            batch_mean, batch_variance = array.mean(axis=self._reduced), array.var(axis=self._reduced)
            total = mean * (1 - part) + batch_mean * part
            # The variance of a union: within the parts, and between their means (Chan, Golub and LeVeque, 1979).
            within = (variance + (mean - total) ** 2) * (1 - part)
            mean, variance = total, within + (batch_variance + (batch_mean - total) ** 2) * part
        if not count:
            raise ValueError(f"Layer {self.name!r}: adapt() was given arrays without rows.")
        self.adapt_mean.write_value(np.asarray(mean, self.adapt_mean.dtype))
        self.adapt_variance.write_value(np.asarray(variance, self.adapt_variance.dtype))

    def _check_batch(self, array: Array) -> None:
        if not self.built:
            self.build(
                (None, *array.shape[1:]) if 0 not in {axis % max(array.ndim, 1) for axis in self.axis} else array.shape
            )
        expected = self._broadcast
        fits = array.ndim == len(expected) and all(array.shape[axis] == expected[axis] for axis in self._kept)
        if not fits:
            raise ValueError(
                f"Layer {self.name!r}: adapt() was given data of shape {array.shape}, which do not fit: along "
                f"axis={self.axis} the layer has {[expected[axis] for axis in self._kept]}, of {len(expected)} axes."
            )

    def finalize_state(self) -> None:
        """Do nothing: calls read the weights as they are. In Keras it follows a change of them."""

    @property
    def mean(self) -> Any:
        """The mean that is subtracted, given or learnt, with an axis for each of the inputs; None before the build."""
        return self._along_inputs(self.input_mean, "adapt_mean")

    @property
    def variance(self) -> Any:
        """The variance that goes with `mean`."""
        return self._along_inputs(self.input_variance, "adapt_variance")

    def _along_inputs(self, given: Array | None, name: str) -> Array | None:
        if not self.built:
            return None
        if given is None:
            return as_array(getattr(self, name).numpy().reshape(self._broadcast), self.compute_dtype)
        shape = [1] * len(self._broadcast)
        for size, axis in zip(given.shape[::-1], self._kept[::-1], strict=False):
            shape[axis] = size
        return as_array(np.broadcast_to(given.reshape(shape), self._broadcast), self.compute_dtype)

    def _statistics(self) -> tuple[TensorLike, TensorLike]:
        if self.input_mean is not None:
            return self.mean, self.variance
        weights = (self.adapt_mean, self.adapt_variance)
        mean, variance = (ops.reshape(ops.cast(each.value, self.compute_dtype), self._broadcast) for each in weights)
        return mean, variance

    def call(self, inputs: TensorLike) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)
        mean, variance = self._statistics()
        deviation = ops.maximum(ops.sqrt(variance), _EPSILON)
        return inputs * deviation + mean if self.invert else (inputs - mean) / deviation

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "axis": list(self.axis),
            "invert": self.invert,
            "mean": None if self.input_mean is None else self.input_mean.tolist(),
            "variance": None if self.input_variance is None else self.input_variance.tolist(),
        }


@config_from_signature()
class Discretization(PreprocessingLayer):
    """Gives each number the index of its bin.

    Args:
        bin_boundaries: the rising boundaries; a number on one is in the bin above. n boundaries make n + 1 bins.
        num_bins: instead, the number of bins of equal weight that `adapt` finds.
        epsilon: how exactly `adapt` finds them: quantiles are right within this part of the data.
        output_mode: "int", "one_hot", "multi_hot" or "count".
        sparse: not supported; accepted as False.

    Input: numbers of any shape. Output: for "int" int32 of that shape, else floats.

    Raises:
        ValueError: neither or both of bin_boundaries and num_bins are given.

    >>> Discretization([0.0, 1.0])([-1.5, 0.0, 0.5, 7.0])
    Tensor([0, 1, 1, 2], dtype=int32)
    """

    untracked: ClassVar[frozenset[str]] = PreprocessingLayer.untracked | {"_boundaries"}

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        dtype: PolicyLike = None,
        name: str | None = None,
        **kwargs: Unpack[OtherOptions],
    ) -> None:
        super().__init__(dtype=dtype, name=name, **kwargs)
        self.output_mode = check_mode(self, output_mode, ("int", *ENCODED_MODES), sparse)
        if (bin_boundaries is None) == (num_bins is None):
            raise ValueError(f"Layer {self.name!r} needs either bin_boundaries or num_bins.")
        check_optional_numbers(f"Layer {self.name!r}", num_bins=num_bins)
        check_numbers(f"Layer {self.name!r}", epsilon=epsilon)
        if num_bins is not None and num_bins < 1:
            raise ValueError(f"Layer {self.name!r}: num_bins must be at least 1, got num_bins={num_bins}.")
        self.num_bins = num_bins
        self.epsilon = epsilon
        self.sparse = sparse
        self._build_at_init()
        self.reset_state()
        # A variable of unknown length, so that boundaries which are found later need no new program.
        missing = f"Layer {self.name!r} has no boundaries yet. Call adapt() on data first, or give it bin_boundaries=."
        first = Unlearnt(floatx(), missing, ValueError)
        self._boundaries = Variable(first, shape=(None,), trainable=False, name="bin_boundaries")
        self._has_boundaries = False
        if bin_boundaries is not None:
            self._set_boundaries(bin_boundaries)

    @property
    def bin_boundaries(self) -> list[float] | None:
        """The boundaries; None before they are found."""
        return self._boundaries.numpy().tolist() if self._has_boundaries else None

    @property
    def output_dtype(self) -> str:
        """The dtype of what the layer gives."""
        return "int32" if self.output_mode == "int" else self.compute_dtype

    def _set_boundaries(self, boundaries: Sequence[float] | Array) -> None:
        array = np.asarray(boundaries, floatx()).reshape(-1)
        if np.any(np.diff(array) < 0):
            raise ValueError(f"Layer {self.name!r}: bin_boundaries must rise, got {list(boundaries)}.")
        self._boundaries.write_value(array)
        self._has_boundaries = True
        self._functions.clear()

    def adapt(self, data: object, steps: int | None = None) -> None:
        """Find boundaries between bins of equal weight.

        Args:
            data: an array, or batches of arrays.
            steps: how many batches to take.

        Raises:
            ValueError: the layer was given its boundaries.
        """
        if self.num_bins is None:
            raise ValueError(f"Layer {self.name!r} was given bin_boundaries; to adapt it, make it with num_bins.")
        self.reset_state()
        for batch in batches_of(data, steps, self):
            self.update_state(batch)
        self.finalize_state()

    def reset_state(self) -> None:
        """Forget what `update_state` saw."""
        self.summary: Array = np.zeros((2, 0), "float32")

    def update_state(self, data: object) -> None:
        """Add the quantiles of a batch to those seen so far."""
        values = np.sort(np.asarray(data, "float32").reshape(-1))
        step = max(values.size * self.epsilon, 1)
        chosen = values[int(step - 1) :: int(step)]
        merged = np.concatenate([np.stack([chosen, np.full_like(chosen, step)]), self.summary], axis=1)
        self.summary = _compressed(merged[:, np.argsort(merged[0])], self.epsilon)

    def finalize_state(self) -> None:
        """Take the boundaries from what was seen."""
        if self.num_bins is not None and self.summary.size:
            self._set_boundaries(_compressed(self.summary, 1.0 / self.num_bins)[0, :-1])

    def call(self, inputs: TensorLike) -> Tensor:
        values = ops.cast(inputs, floatx())
        if self.output_mode == "int":
            return ops.digitize(values, self._boundaries.value)
        depth = self._boundaries.numpy().size + 1
        bins = ops.digitize(values, self._boundaries.value)
        return encode(bins, self.output_mode, depth, self.compute_dtype)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        boundaries = self.bin_boundaries
        return encoded_shape(
            input_shape, self.output_mode, self.num_bins if boundaries is None else len(boundaries) + 1
        )

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        """Take over what Keras 2 wrote; today the boundaries are in the config."""
        if len(store) == 1:
            self.summary = np.asarray(store["0"])

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Discretization:
        made = dict(config)
        # After `adapt` there are both, which the constructor refuses.
        found = made.pop("bin_boundaries", None) if made.get("num_bins") is not None else None
        layer = super().from_config(made)
        if found is not None:
            layer._set_boundaries(found)
        return layer


def _compressed(summary: Array, epsilon: float) -> Array:
    """Return a summary, rows of values and weights, with one value for each part `epsilon` of the weight."""
    if summary.shape[1] * epsilon < 1:
        return summary
    parts = epsilon + np.arange(0.0, 1.0, epsilon)
    weights = summary[1].cumsum()
    shares = weights / weights[-1]
    values, ends = np.interp(parts, shares, summary[0]), np.interp(parts, shares, weights)
    return np.stack([values, np.diff(ends, prepend=0)]).astype("float32")


@config_from_signature(sparse="")
class CategoryEncoding(PreprocessingLayer):
    """Category numbers as one-hot rows, or samples of them as multi-hot rows or counts.

    Args:
        num_tokens: the number of categories, 0 to ``num_tokens - 1``; others have no place in the encoding.
        output_mode: "multi_hot" and "count" encode the last axis, "one_hot" each element.
        sparse: not supported; accepted as False.

    Input: integers of any shape; with "count" also `count_weights` of the same shape. Output: floats.

    Raises:
        ValueError: `num_tokens` is missing, or weights are given with another mode.

    >>> CategoryEncoding(4)([[0, 1], [2, 2]])
    Tensor([[1., 1., 0., 0.],
            [0., 0., 1., 0.]], dtype=float32)
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.output_mode = check_mode(self, output_mode, ENCODED_MODES, sparse)
        check_optional_numbers(f"Layer {self.name!r}", num_tokens=num_tokens)
        if num_tokens is None or num_tokens < 1:
            raise ValueError(
                f"Layer {self.name!r}: num_tokens must be at least 1, got num_tokens={num_tokens}. If the number is "
                "not known beforehand, use IntegerLookup, which learns it."
            )
        self.num_tokens = num_tokens
        self.sparse = sparse
        self.autocast = False
        self._build_at_init()

    def call(self, inputs: TensorLike, count_weights: TensorLike | None = None) -> Tensor:
        if count_weights is not None and self.output_mode != "count":
            raise ValueError(
                f"Layer {self.name!r}: count_weights are for output_mode='count', this one has {self.output_mode!r}."
            )
        weights = None if count_weights is None else ops.cast(count_weights, self.compute_dtype)
        indices = ops.cast(inputs, "int64")
        return encode(indices, self.output_mode, self.num_tokens, self.compute_dtype, weights)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return encoded_shape(input_shape, self.output_mode, self.num_tokens)
