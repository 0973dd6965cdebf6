"""Random functional models: layers of every rank, views and sums of what they give, one output or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, ops

ROWS = 5
WORDS = 7
_ACTIVATIONS = (None, "relu", "tanh", "gelu", "swish", "softplus", "elu", "sigmoid")
_REGULARIZERS = ("l1", "l2", ab.regularizers.L1L2(0.02, 0.03))
_CONSTRAINTS = ("non_neg", "unit_norm", ab.constraints.MaxNorm(0.7), ab.constraints.MinMaxNorm(0.2, 0.8, rate=0.5))
_MERGES = (layers.Add, layers.Multiply, layers.Maximum, layers.Average)


class RandomModel:
    """A model that a seed draws, without layers that draw numbers in training.

    Args:
        seed: of the draws.
        rows: of each array.
        is_by_row: whether an output depends on no other row, so that replicas compute what one device does.

    Attributes:
        model: the functional model.
        inputs, targets: arrays of `rows` rows; a list where there are several.
    """

    def __init__(self, seed: int, rows: int = ROWS, is_by_row: bool = False) -> None:
        self._rows, self._is_by_row = rows, is_by_row
        self._rng = np.random.default_rng(seed)
        self._widths = np.random.default_rng(seed + 50_000)
        ab.utils.set_random_seed(seed)
        given, values = self._inputs()
        for _ in range(self._number(2, 6)):
            place = self._number(0, len(values) - 1)
            value = self._next(values[place])
            if self._happens(0.25) and value.shape == values[place].shape and None not in value.shape[1:]:
                value = self._one_of(_MERGES)()([values[place], value])
            if self._happens(0.2):
                values.append(value)
            else:
                values[place] = value
        outputs = self._outputs(values)
        self.model = ab.Model(given, outputs if len(outputs) > 1 else outputs[0])
        drawn = [self._data(each) for each in given]
        self.inputs: Any = drawn if len(drawn) > 1 else drawn[0]
        self.arrays = drawn
        made = self.model.predict(self.inputs, verbose=0)
        self.shapes = [each.shape for each in (made if isinstance(made, list) else [made])]
        targets = [self._rng.normal(size=shape).astype("float32") for shape in self.shapes]
        self.targets: Any = targets if len(targets) > 1 else targets[0]

    # --- draws ----------------------------------------------------------------------------------------------

    def _number(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def _happens(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def _one_of(self, choices: Any) -> Any:
        return choices[self._number(0, len(choices) - 1)]

    def _activation(self) -> Any:
        return self._one_of(_ACTIVATIONS)

    def _rules(self, *weights: str) -> dict[str, Any]:
        """Return regularizers and constraints of some of the weights, and at times one of the outputs."""
        rules: dict[str, Any] = {}
        for weight in weights:
            if self._happens(0.2):
                rules[f"{weight}_regularizer"] = self._one_of(_REGULARIZERS)
            if self._happens(0.2):
                rules[f"{weight}_constraint"] = self._one_of(_CONSTRAINTS)
        if self._happens(0.1):
            rules["activity_regularizer"] = self._one_of(_REGULARIZERS)
        return rules

    # --- structure ------------------------------------------------------------------------------------------

    def _inputs(self) -> tuple[list[Any], list[Any]]:
        given: list[Any] = []
        values: list[Any] = []
        for number in range(self._number(1, 2)):
            name, kind = f"input_{number}", self._one_of(("words", "steps", "features", "image"))
            if kind == "words":
                given.append(ab.Input((self._one_of((5, None)),), dtype="int32", name=name))
                values.append(
                    layers.Embedding(WORDS, 4, mask_zero=self._happens(0.6), **self._rules("embeddings"))(given[-1])
                )
                continue
            shape = {"steps": (self._one_of((5, None)), 3), "features": (4,), "image": (6, 6, 2)}[kind]
            given.append(ab.Input(shape, name=name))
            values.append(given[-1])
        return given, values

    def _outputs(self, values: list[Any]) -> list[Any]:
        if self._happens(0.5):
            return [self._last(n)(value) for n, value in enumerate(values[-2:])]
        flat = [self._flat(value) for value in values]
        return [self._last(0)(layers.Concatenate()(flat) if len(flat) > 1 else flat[0])]

    def _last(self, number: int) -> Any:
        """Return the layer of an output, of one unit or two: an axis of size 1 is a case of its own in kernels."""
        return layers.Dense(int(self._widths.integers(1, 3)), name=f"output_{number}")

    def _flat(self, value: Any) -> Any:
        while len(value.shape) > 2:
            value = layers.GlobalAveragePooling1D()(value) if len(value.shape) == 3 else layers.Flatten()(value)
        return value

    def _next(self, value: Any) -> Any:
        of_rank = {2: self._on_features, 3: self._on_steps, 4: self._on_images}[len(value.shape)]
        return self._one_of(of_rank(value))()

    def _on_features(self, x: Any) -> list[Callable[[], Any]]:
        size = x.shape[1]
        return [
            lambda: layers.Dense(self._number(2, 5), self._activation(), **self._rules("kernel", "bias"))(x),
            lambda: layers.LayerNormalization()(x),
            lambda: self._of_batches(renorm=self._happens(0.3), **self._rules("gamma", "beta"))(x),
            lambda: layers.GroupNormalization(1)(x),
            lambda: layers.RMSNormalization()(x),
            lambda: layers.UnitNormalization()(x),
            lambda: layers.SpectralNormalization(layers.Dense(3, **self._rules("kernel")))(x),
            lambda: self._shared(layers.Dense(size, "tanh", **self._rules("kernel")), x),
            lambda: self._frozen(layers.Dense(3))(x),
            lambda: layers.ActivityRegularization(l2=0.1)(x),
            lambda: layers.Reshape((size, 1))(x),
            lambda: layers.PReLU()(x),
            lambda: ops.tanh(x) * 0.5 + x[:, :1],
            lambda: layers.RepeatVector(3)(x),
            lambda: layers.Softmax()(x),
            lambda: layers.Concatenate()([x, x * 2.0]),
            lambda: ab.Sequential([layers.Dense(3, self._activation()), layers.Dense(size, **self._rules("kernel"))])(
                x
            ),
        ]

    def _on_steps(self, x: Any) -> list[Callable[[], Any]]:
        units, whole = self._number(2, 4), self._happens(0.6)
        rules = self._rules("kernel", "recurrent", "bias")
        of_cells = {name: value for name, value in rules.items() if not name.startswith("activity")}
        cells = [layers.LSTMCell(units, **of_cells), layers.GRUCell(units), layers.SimpleRNNCell(units)]
        return [
            lambda: layers.LSTM(units, return_sequences=whole, go_backwards=self._happens(0.5), **rules)(x),
            lambda: layers.GRU(units, return_sequences=whole, reset_after=self._happens(0.5), **rules)(x),
            lambda: layers.Bidirectional(
                layers.SimpleRNN(units, return_sequences=whole, **rules), self._one_of(("sum", "concat", "mul", "ave"))
            )(x),
            lambda: layers.RNN(cells, return_sequences=whole)(x),
            lambda: layers.Conv1D(units, 2, padding="causal", activation=self._activation(), **self._rules("kernel"))(
                x
            ),
            lambda: layers.SeparableConv1D(units, 2, padding="same")(x),
            lambda: layers.GlobalAveragePooling1D()(x),
            lambda: layers.GlobalMaxPooling1D()(x),
            lambda: layers.MaxPooling1D(2, padding="same")(x),
            lambda: layers.TimeDistributed(layers.Dense(units, self._activation()))(x),
            lambda: layers.MultiHeadAttention(2, 3, use_gate=self._happens(0.3), **self._rules("kernel"))(
                x, x, use_causal_mask=self._happens(0.5)
            ),
            lambda: layers.GroupQueryAttention(2, 2, 1)(x, x),
            lambda: layers.LayerNormalization(**self._rules("gamma", "beta"))(x),
            lambda: self._of_batches()(x),
            lambda: layers.AdditiveAttention()([x, x]),
            lambda: layers.Attention(use_scale=True, score_mode="concat")([x, x]),
            lambda: layers.AveragePooling1D(2, strides=1, padding="same")(x),
            lambda: layers.UpSampling1D(2)(x) if (x.shape[1] or 9) < 8 else x,
            lambda: layers.ZeroPadding1D((1, 0))(x) if (x.shape[1] or 9) < 8 else x,
            lambda: self._shared(layers.LSTM(x.shape[2], return_sequences=True, **rules), x),
            lambda: layers.Masking(0.0)(x),
            lambda: layers.Flatten()(x) if x.shape[1] else layers.GlobalAveragePooling1D()(x),
            lambda: layers.Permute((2, 1))(x) if x.shape[1] else x,
            lambda: layers.EinsumDense("btf,fg->btg", (None, units), activation=self._activation())(x),
        ]

    def _on_images(self, x: Any) -> list[Callable[[], Any]]:
        units, (rows, columns, channels) = self._number(1, 4), x.shape[1:]
        stride = self._number(1, 2)
        return [
            lambda: self._convolution(units, stride)(x),
            lambda: layers.DepthwiseConv2D(2, padding="same", depth_multiplier=stride, **self._rules("depthwise"))(x),
            lambda: layers.SeparableConv2D(units, 2, padding="same")(x),
            lambda: layers.MaxPooling2D(2, padding="same")(x),
            lambda: layers.AveragePooling2D(2, padding="same")(x),
            lambda: layers.GlobalAveragePooling2D()(x),
            lambda: layers.Flatten()(x),
            lambda: self._of_batches()(x),
            lambda: layers.GroupNormalization(1, **self._rules("gamma"))(x),
            lambda: layers.PReLU(shared_axes=[1, 2], **self._rules("alpha"))(x),
            lambda: layers.GlobalMaxPooling2D(keepdims=True)(x),
            lambda: layers.ConvLSTM1D(units, 2, padding="same", **self._rules("kernel", "recurrent"))(x),
            lambda: layers.Conv2DTranspose(units, 2, strides=stride, padding="same")(x) if rows < 8 else x,
            lambda: layers.UpSampling2D(2, interpolation=self._one_of(("nearest", "bilinear")))(x) if rows < 6 else x,
            lambda: layers.Reshape((rows * columns, channels))(x),
        ]

    def _of_batches(self, renorm: bool = False, **rules: Any) -> Any:
        """Normalise over the rows of a batch, or over each row."""
        return (
            layers.LayerNormalization(**rules) if self._is_by_row else layers.BatchNormalization(renorm=renorm, **rules)
        )

    def _convolution(self, filters: int, stride: int) -> Any:
        return layers.Conv2D(
            filters, 3, stride, padding="same", activation=self._activation(), **self._rules("kernel", "bias")
        )

    def _shared(self, layer: Any, x: Any) -> Any:
        """Call a layer twice, one call after the other or beside it."""
        first = layer(x)
        return layer(first) if self._happens(0.5) else first + layer(x * 0.5)

    def _frozen(self, layer: Any) -> Any:
        layer.trainable = False
        return layer

    def _data(self, given: Any) -> Any:
        shape = (self._rows, *[size or 5 for size in given.shape[1:]])
        if given.dtype.kind == "i":
            return self._rng.integers(0, WORDS, shape).astype("int32")
        return np.where(self._rng.random(shape) < 0.2, 0, self._rng.normal(size=shape)).astype("float32")
