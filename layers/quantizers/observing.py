"""Observe what a model computes, layer by layer: fixed scales of activations, and errors of quantised models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...engine.common.nest import flatten
from ...engine.graph import Tensor, Value
from ..core.calling import path_in
from ..core.layer import Layer
from .kernels import QuantizableKernel
from .quantizable import Array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


METHODS = ("minmax", "percentile", "mse")
_BATCH = 32
_MOST_KEPT = 1 << 18  # values of a layer, evenly taken from all that were seen
_CANDIDATES = 100  # limits that are tried by "mse"


Data: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | Iterable[object]"
"""Arrays of inputs, or an iterable of batches."""


@contextmanager
def observed(layer: Layer, note: Callable[[Any, object], None]) -> Generator[None]:
    """Call `note` with the inputs and outputs of each call of a layer on values, inside of the block."""
    original = layer.call

    def call(*args: object, **kwargs: object) -> object:
        outputs = original(*args, **kwargs)
        first = args[0] if args else next(iter(kwargs.values()))
        if any(isinstance(leaf, Value) for leaf in flatten(first)):
            note(first, outputs)
        return outputs

    vars(layer)["call"] = call
    try:
        yield
    finally:
        del vars(layer)["call"]


def batches_of(data: Any, most: int | None) -> Iterator[object]:
    """Yield inputs of a model, batch by batch: an array (or a dict or list of arrays) is cut; others are iterated.

    Args:
        data: arrays, or an iterable of batches: inputs, or tuples of which these are the first.
        most: how many batches; None for all.
    """
    is_arrays = isinstance(data, (np.ndarray, Tensor, dict)) or hasattr(data, "__array__")
    found = _cut(data) if is_arrays else (one[0] if isinstance(one, tuple) else one for one in data)
    return itertools.islice(found, most)


def _cut(data: Any) -> Iterator[object]:
    leaves = list(data.values()) if isinstance(data, dict) else [data]
    for start in range(0, len(leaves[0]), _BATCH):
        part = slice(start, start + _BATCH)
        yield {name: rows[part] for name, rows in data.items()} if isinstance(data, dict) else data[part]


def calibrate(
    model: Layer, data: Data, *, method: str = "minmax", percentile: float = 99.99, batches: int | None = None
) -> dict[str, tuple[float, int]]:
    """Find a fixed scale for the inputs of each layer that int8 can round, from data.

    With scales of their own, rows need not be looked at before they are rounded; but a row that is larger than all of
    the data is cut off.

    Args:
        model: a model of floats, built.
        data: arrays, or an iterable of batches, such as a `tf.data.Dataset` of inputs or of (inputs, targets).
        method: "minmax": the largest absolute value reaches 127; "percentile": so does this part of the values, and
            what is larger is cut off; "mse": the limit with the least error.
        percentile: for that method.
        batches: how many batches are looked at; all by default.

    Returns:
        By the path of the layer ``(scale, zero_point)``, by which ``x`` is about ``(q - zero_point) * scale``, for
        ``model.quantize("int8", calibration=...)``. Zero points are 0.

    Raises:
        ValueError: `method`, `percentile` or `batches` makes no sense, the data is empty, or no layer was called on it.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> found = calibrate(model, np.array([[0.5, -2.54, 1.0, 0.0]]))
    >>> {path: (round(scale, 4), zero) for path, (scale, zero) in found.items()}
    {'head': (0.02, 0)}
    """
    if method not in METHODS:
        raise ValueError(f"calibrate: method={method!r} must be one of {', '.join(map(repr, METHODS))}.")
    if not 0 < percentile <= 100:
        raise ValueError(f"calibrate: percentile={percentile!r} must be above 0 and at most 100.")
    if batches is not None and batches < 1:
        raise ValueError(f"calibrate: batches={batches!r} must be at least 1, or None for all.")
    layers = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, QuantizableKernel) and layer.takes_inputs_scale and layer.quantization_mode is None
    ]
    kept: dict[str, _Kept] = {path_in(model, layer): _Kept() for layer in layers}
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(observed(layer, kept[path_in(model, layer)].note))
        seen = 0
        for batch in batches_of(data, batches):
            model(batch)
            seen += 1
    if not seen:
        raise ValueError("calibrate: the data is empty: expected at least one row, or one batch.")
    found = {path: (one.limit(method, percentile) / 127, 0) for path, one in kept.items() if one.count}
    if not found:
        raise ValueError("calibrate: no Dense or EinsumDense layer was called on the data, op by op.")
    return {path: (scale or 1.0, zero) for path, (scale, zero) in found.items()}


class _Kept:
    """The absolute values that a layer was given: the largest, and some of all."""

    def __init__(self) -> None:
        self.count, self.largest = 0, 0.0
        self._parts: list[Array] = []
        self._step = 1

    def note(self, inputs: Value, outputs: object) -> None:
        values = np.abs(np.asarray(inputs, "float32")).reshape(-1)
        values = values[np.isfinite(values)]
        self.count += values.size
        self.largest = max(self.largest, float(values.max(initial=0)))
        self._parts.append(values[:: self._step])
        if sum(part.size for part in self._parts) > _MOST_KEPT:
            self._step *= 2
            self._parts = [np.concatenate(self._parts)[::2]]

    def limit(self, method: str, percentile: float) -> float:
        """Return the value that becomes 127."""
        if method == "minmax" or not self.largest:
            return self.largest
        values = np.concatenate(self._parts)
        if method == "percentile":
            return float(np.percentile(values, percentile)) or self.largest
        limits = self.largest * np.arange(1, _CANDIDATES + 1) / _CANDIDATES
        errors = [float(np.mean((_rounded(values, limit) - values) ** 2)) for limit in limits]
        return float(limits[int(np.argmin(errors))])


def _rounded(values: Array, limit: float) -> Array:
    return np.clip(np.round(values * (127 / limit)), 0, 127) * (limit / 127)


def report(model: Layer, quantised: Layer, data: Data, batches: int | None = None) -> dict[str, float]:
    """Compare what two models compute, layer by layer.

    Args:
        model: of floats.
        quantised: a copy of it, quantised: its layers have the same paths, or are in the same places.
        data: as for `calibrate`.
        batches: how many batches are looked at; all by default.

    Returns:
        By the path of each layer with weights the error of its outputs: the root of the mean square of the differences,
        over that of the float outputs. Errors of layers before are part of it. The outputs of the whole model are under
        its own name.

    Raises:
        ValueError: the models have different layers.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 8).reshape(2, 4)
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> quantised = ab.models.clone_model(model)
    >>> quantised.set_weights(model.get_weights())
    >>> quantised.quantize("int8")
    {'head': 'int8'}
    >>> errors = ab.quantizers.report(model, quantised, x)
    >>> 0 < errors["head"] < 0.05
    True
    """
    pairs = list(zip(model._flatten_layers(), quantised._flatten_layers(), strict=False))
    if [type(one) for one in model._flatten_layers()] != [type(one) for one in quantised._flatten_layers()]:
        raise ValueError("report: the models have other layers. Expected a model and a quantised copy of it.")
    chosen = [pair for pair in pairs if pair[0] is model or pair[0]._own_variables()]
    sums = {path_in(model, one): [0.0, 0.0] for one, _ in chosen}
    for batch in batches_of(data, batches):
        outputs = [
            _outputs(root, [pair[side] for pair in chosen], batch) for side, root in enumerate((model, quantised))
        ]
        for (one, _), exact, rounded in zip(chosen, *outputs, strict=True):
            for a, b in zip(exact, rounded, strict=False):
                sums[path_in(model, one)][0] += float(np.sum((a - b) ** 2))
                sums[path_in(model, one)][1] += float(np.sum(a**2))
    return {path: float(np.sqrt(error / size)) if size else 0.0 for path, (error, size) in sums.items()}


def _outputs(root: Layer, layers: Sequence[Layer], batch: object) -> list[list[Array]]:
    """Return the outputs of each layer in a call of the model, in its order of calls."""
    found: dict[int, list[Array]] = {id(layer): [] for layer in layers}
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(observed(layer, lambda _, outputs, layer=layer: _keep(found[id(layer)], outputs)))
        root(batch)
    return [found[id(layer)] for layer in layers]


def _keep(kept: list[Array], outputs: object) -> None:
    leaves: Iterable[object] = flatten(outputs)
    kept.extend(np.asarray(leaf, "float64") for leaf in leaves if isinstance(leaf, Value) and leaf.dtype.kind in "fV")
