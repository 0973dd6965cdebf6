"""Short scripts as Keras's users write them, with a loop or a step of their own: each gives its losses, step by step.

`keras` is Keras or this package, `tf` has `GradientTape`. Weights and data are the same for both; nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STEPS, ROWS = 6, 8


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def fill(*models: Any) -> None:
    """Give models weights that do not depend on how a framework draws them."""
    draw = np.random.default_rng(7)
    for model in models:
        model.set_weights([draw.normal(scale=0.3, size=tuple(w.shape)).astype("float32") for w in model.weights])


def custom_loop(keras: Any, tf: Any) -> list[float]:
    """A loop with a tape, a metric and regularisation, as in "Writing a training loop from scratch"."""
    inputs = keras.Input(shape=(6,))
    x = keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    fill(model)
    optimizer = keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalAccuracy()
    x, y = data(ROWS, 6), np.arange(ROWS) % 3
    found: list[float] = []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss_value = loss_fn(y, logits) + sum(model.losses)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        metric.update_state(y, logits)
        found.append(float(loss_value))
    return [*found, float(metric.result())]


def two_optimizers(keras: Any, tf: Any) -> list[float]:
    """A generator and a discriminator, each with an optimizer, in a train_step."""
    layers = keras.layers

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
            self.discriminator = keras.Sequential([keras.Input((3,)), layers.LeakyReLU(0.2), layers.Dense(1)])

        def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

        def train_step(self, real: Any) -> dict[str, Any]:
            real = real[0] if isinstance(real, tuple) else real
            noise = keras.ops.ones((ROWS, 2)) * 0.5
            both = keras.ops.concatenate([self.generator(noise), real], axis=0)
            labels = keras.ops.concatenate([keras.ops.ones((ROWS, 1)), keras.ops.zeros((ROWS, 1))], axis=0)
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(labels, self.discriminator(both))
            grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
            self.d_optimizer.apply(grads, self.discriminator.trainable_weights)
            with tf.GradientTape() as tape:
                predictions = self.discriminator(self.generator(noise))
                g_loss = self.loss_fn(keras.ops.zeros((ROWS, 1)), predictions)
            grads = tape.gradient(g_loss, self.generator.trainable_weights)
            self.g_optimizer.apply(grads, self.generator.trainable_weights)
            return {"d_loss": d_loss, "g_loss": g_loss}

    gan = Gan()
    fill(gan.generator, gan.discriminator)
    gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(True))
    logs = gan.fit(data(ROWS, 3), batch_size=ROWS, epochs=STEPS, verbose=0).history
    return [*logs["d_loss"], *logs["g_loss"]]


def endpoint_layer(keras: Any, tf: Any) -> list[float]:
    """A layer that adds its own loss and metric, in a functional model without a loss."""

    class Endpoint(keras.layers.Layer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

        def call(self, logits: Any, targets: Any) -> Any:
            self.add_loss(self.loss_fn(targets, logits))
            return keras.ops.sigmoid(logits)

    inputs, targets = keras.Input((4,), name="inputs"), keras.Input((1,), name="targets")
    predictions = Endpoint(name="predictions")(keras.layers.Dense(1)(inputs), targets)
    model = keras.Model({"inputs": inputs, "targets": targets}, predictions)
    fill(model)
    model.compile(optimizer=keras.optimizers.RMSprop(0.05))
    feed = {"inputs": data(ROWS, 4), "targets": (data(ROWS, 1, seed=1) > 0).astype("float32")}
    return model.fit(feed, batch_size=ROWS, epochs=STEPS, verbose=0).history["loss"]


def several_outputs(keras: Any, tf: Any) -> list[float]:
    """Two inputs, two outputs, weights of losses and of rows."""
    a, b = keras.Input((4,), name="a"), keras.Input((5, 3), name="b")
    x = keras.layers.concatenate([keras.layers.Dense(5, activation="gelu")(a), keras.layers.LSTM(4)(b)])
    outputs = {"value": keras.layers.Dense(1, name="value")(x), "kind": keras.layers.Dense(3, name="kind")(x)}
    model = keras.Model([a, b], outputs)
    fill(model)
    losses = {"value": "huber", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(keras.optimizers.AdamW(0.01), losses, loss_weights={"value": 2.0, "kind": 0.5})
    targets = {"value": data(ROWS, 1, seed=2), "kind": np.arange(ROWS) % 3}
    weights = {"value": np.linspace(0.5, 1.5, ROWS), "kind": np.ones(ROWS)}
    given = [data(ROWS, 4), data(ROWS, 5, 3, seed=3)]
    return model.fit(
        given, targets, sample_weight=weights, batch_size=4, epochs=STEPS, shuffle=False, verbose=0
    ).history["loss"]


def own_cell(keras: Any, tf: Any) -> list[float]:
    """A recurrent cell of one's own in an RNN, masked by an embedding."""

    class Minimal(keras.layers.Layer):
        def __init__(self, units: int, **options: Any) -> None:
            super().__init__(**options)
            self.units = self.state_size = units

        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
            self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")
            self.built = True

        def call(self, inputs: Any, states: Any) -> Any:
            h = keras.ops.matmul(inputs, self.kernel)
            output = h + keras.ops.matmul(states[0], self.recurrent)
            return output, [output]

    model = keras.Sequential(
        [keras.Input((6,), dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.RNN(Minimal(5))]
    )
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    fill(model)
    # Of rows that occur several times Keras's Adam adds up the squares on TensorFlow, and nowhere else: hence SGD.
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    tokens = np.random.default_rng(4).integers(0, 9, (ROWS, 6))
    tokens[:, 0] = 1
    labels = (tokens.sum(1, keepdims=True) > 24).astype("float32")
    return model.fit(tokens, labels, batch_size=ROWS, epochs=STEPS, verbose=0).history["loss"]


def attention_block(keras: Any, tf: Any) -> list[float]:
    """A block of a transformer, pooled, with a schedule and clipped gradients."""
    layers = keras.layers
    inputs = keras.Input((5, 8))
    x = layers.LayerNormalization(epsilon=1e-6)(inputs)
    x = layers.MultiHeadAttention(num_heads=2, key_dim=4)(x, x)
    x = layers.Add()([x, inputs])
    x = layers.Conv1D(8, 1, activation="relu")(layers.LayerNormalization(epsilon=1e-6)(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))
    fill(model)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model.compile(keras.optimizers.SGD(schedule, clipnorm=0.5), "sparse_categorical_crossentropy")
    return model.fit(
        data(ROWS, 5, 8), np.arange(ROWS) % 2, batch_size=4, epochs=STEPS, shuffle=False, verbose=0
    ).history["loss"]


def convolutions(keras: Any, tf: Any) -> list[float]:
    """A small convnet with batch normalisation, and an image's mirror in the data."""
    layers = keras.layers
    parts = [keras.Input((8, 8, 3)), layers.Rescaling(0.5), layers.Conv2D(4, 3, padding="same", use_bias=False)]
    parts += [layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(), layers.SeparableConv2D(6, 3)]
    model = keras.Sequential([*parts, layers.GlobalMaxPooling2D(), layers.Dense(3, activation="softmax")])
    fill(model)
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    images = data(ROWS, 8, 8, 3)
    labels = np.eye(3, dtype="float32")[np.arange(ROWS) % 3]
    return model.fit(images, labels, batch_size=4, epochs=STEPS, shuffle=False, verbose=0).history["loss"]


def contrastive(keras: Any, tf: Any) -> list[float]:
    """Twins with shared weights and a loss function of one's own."""
    tower = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
    left, right = keras.Input((6,)), keras.Input((6,))
    gap = tower(left) - tower(right)
    distance = keras.ops.sqrt(keras.ops.maximum(keras.ops.sum(keras.ops.square(gap), axis=1, keepdims=True), 1e-7))
    model = keras.Model([left, right], keras.layers.Dense(1, activation="sigmoid")(distance))
    fill(model)

    def loss(y_true: Any, y_pred: Any) -> Any:
        margin = keras.ops.square(keras.ops.maximum(1.0 - y_pred, 0.0))
        near = keras.ops.where(y_true == 1, margin, keras.ops.square(y_pred))
        return keras.ops.mean(near)

    model.compile(keras.optimizers.Nadam(0.01), loss)
    pairs, labels = [data(ROWS, 6), data(ROWS, 6, seed=5)], (np.arange(ROWS) % 2).astype("float32")[:, None]
    return model.fit(pairs, labels, batch_size=ROWS, epochs=STEPS, verbose=0).history["loss"]


def policy_gradient(keras: Any, tf: Any) -> list[float]:
    """A step of a policy: probabilities one by one under a tape, as in the actor-critic script."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")])
    fill(model)
    optimizer, states = keras.optimizers.Adam(0.05), data(5, 4)
    found: list[float] = []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            terms = []
            for number, state in enumerate(states):
                probabilities = model(keras.ops.expand_dims(keras.ops.convert_to_tensor(state), 0))
                terms.append(-keras.ops.log(probabilities[0, number % 2]) * (0.9**number))
            loss = sum(terms)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        found.append(float(loss))
    return found


SCRIPTS: dict[str, Callable[[Any, Any], list[float]]] = {
    function.__name__: function
    for function in (
        *(custom_loop, two_optimizers, endpoint_layer, several_outputs, own_cell, attention_block, convolutions),
        *(contrastive, policy_gradient),
    )
}
