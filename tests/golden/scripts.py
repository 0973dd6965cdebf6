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


def accumulated_gradients(keras: Any, tf: Any) -> list[float]:
    """A loop that adds up the gradients of two batches, clips them together, and keeps the best weights."""
    ops, layers = keras.ops, keras.layers
    inputs = keras.Input((6,))
    x = layers.BatchNormalization()(layers.Dense(8, activation="relu")(inputs))
    model = keras.Model(inputs, {"classes": layers.Dense(3, name="classes")(x), "value": layers.Dense(1)(x)})
    draw = np.random.default_rng(7)
    for weight in model.trainable_weights:
        weight.assign(draw.normal(scale=0.4, size=tuple(weight.shape)).astype("float32"))
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 8, warmup_steps=2, warmup_target=0.1)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy, overlap = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.MeanIoU(num_classes=3)
    x, found, best, kept = data(4 * ROWS, 6), [], float("inf"), model.get_weights()
    y = (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0.5)
    for _ in range(2):
        accumulated = None
        for number, start in enumerate(range(0, len(x), ROWS)):
            rows, targets = x[start : start + ROWS], y[start : start + ROWS]
            weights = ops.where(ops.equal(targets, 2), 2.0, 1.0)
            with tf.GradientTape() as tape:
                given = model(rows, training=True)
                loss = ops.mean(crossentropy(targets, given["classes"]) * weights)
                loss = loss + 0.1 * keras.losses.Huber()(rows[:, :1], given["value"])
            gradients = tape.gradient(loss, model.trainable_variables)
            accumulated = (
                gradients if accumulated is None else [a + b for a, b in zip(accumulated, gradients, strict=True)]
            )
            if number % 2:
                norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in accumulated))
                clipped = [gradient * ops.minimum(1.0, 1.0 / norm) for gradient in accumulated]
                optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
                accumulated = None
            accuracy.update_state(targets, given["classes"], sample_weight=weights)
            overlap.update_state(targets, ops.argmax(given["classes"], -1))
            found.append(float(loss))
        validation = float(ops.mean(crossentropy(y, model(x, training=False)["classes"])))
        if validation < best:
            best, kept = validation, model.get_weights()
        found += [validation, float(accuracy.result()), float(overlap.result()), float(optimizer.learning_rate)]
    return [*found, *(float(np.sum(array)) for array in kept)]


def translation(keras: Any, tf: Any) -> list[float]:
    """An encoder with a mask, and a decoder's cell called step by step, on given tokens and on its own."""
    ops, layers = keras.ops, keras.layers
    embedding = layers.Embedding(12, 6, mask_zero=True)
    encoder = layers.GRU(7, return_sequences=True, return_state=True)
    cell, attention, head = layers.LSTMCell(7), layers.AdditiveAttention(), layers.Dense(12)
    draw = np.random.default_rng(5)
    source, target = draw.integers(1, 12, (4, 6)), draw.integers(1, 12, (4, 5))
    source[0, 4:] = source[2, 3:] = 0
    sequence, state = encoder(embedding(source))
    cell(ops.zeros((4, 13)), [state, state])
    attention([ops.expand_dims(state, 1), sequence])
    head(state)
    parts = (embedding, encoder, cell, attention, head)
    variables = [variable for part in parts for variable in part.trainable_weights]
    for variable in variables:
        variable.assign(draw.normal(scale=0.3, size=tuple(variable.shape)).astype("float32"))
    optimizer, found = keras.optimizers.SGD(0.2, momentum=0.9), []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            mask = embedding.compute_mask(source)
            sequence, hidden = encoder(embedding(source), mask=mask)
            carry, token, loss = ops.zeros_like(hidden), ops.convert_to_tensor(target[:, 0]), 0.0
            for place in range(1, 5):
                context = attention([ops.expand_dims(hidden, 1), sequence], mask=[None, mask])
                inputs = ops.concatenate([embedding(token), ops.squeeze(context, 1)], -1)
                output, (hidden, carry) = cell(inputs, [hidden, carry])
                logits = head(output)
                losses = keras.losses.sparse_categorical_crossentropy(target[:, place], logits, from_logits=True)
                loss = loss + ops.mean(losses)
                token = ops.convert_to_tensor(target[:, place]) if place % 2 else ops.argmax(logits, -1)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        found.append(float(loss))
    return [*found, *(float(ops.sum(variable)) for variable in variables)]


def own_parts(keras: Any, tf: Any) -> list[float]:
    """A layer with a state, a metric, a loss and a `test_step` of one's own, by `fit` with class weights."""
    ops = keras.ops

    class Scaled(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(shape=(input_shape[-1], 3), initializer="ones", name="kernel")
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="calls")
            self.largest = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="largest")

        def call(self, x: Any, training: Any = False) -> Any:
            y = ops.matmul(x, self.kernel)
            if training:
                self.calls.assign_add(1)
                self.largest.assign(ops.maximum(self.largest, ops.max(y, 0)))
            return y / (1.0 + ops.abs(self.largest))

    class F1(keras.metrics.Metric):
        def __init__(self, name: str = "f1", **kwargs: Any) -> None:
            super().__init__(name=name, **kwargs)
            self.hits = self.add_variable(shape=(), initializer="zeros", name="hits")
            self.counted = self.add_variable(shape=(), initializer="zeros", name="counted")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            y_true, chosen = ops.cast(y_true, "float32"), ops.cast(y_pred > 0.5, "float32")
            self.hits.assign(self.hits + ops.sum(chosen * y_true))
            self.counted.assign_add(ops.sum(y_true) + ops.sum(chosen))

        def result(self) -> Any:
            return 2 * self.hits / (self.counted + 1e-7)

    class Focal(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            y_true, p = ops.cast(y_true, y_pred.dtype), ops.clip(y_pred, 1e-6, 1 - 1e-6)
            found = y_true * (1 - p) ** 2 * ops.log(p) + (1 - y_true) * p**2 * ops.log(1 - p)
            return -ops.mean(found, -1)

    class Own(keras.Model):
        def test_step(self, data: Any) -> Any:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
            given = self(x, training=False)
            loss = self.compute_loss(x, y, given, weights)
            for metric in self.metrics:
                metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, given)
            return {metric.name: metric.result() for metric in self.metrics}

    inputs, layer = keras.Input((4,)), Scaled()
    model = Own(inputs, keras.layers.Dense(1, activation="sigmoid")(layer(inputs)))
    draw = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(draw.normal(scale=0.3, size=tuple(weight.shape)).astype("float32"))
    model.compile("adam", Focal(), metrics=[F1()])
    x = data(5 * ROWS, 4)
    y, weights = (x.sum(1, keepdims=True) > 0).astype("int32"), {0: 1.0, 1: 2.0}
    history = model.fit(
        x, y, batch_size=ROWS, epochs=3, verbose=0, shuffle=False, class_weight=weights, validation_split=0.2
    ).history
    logs = [float(value) for name in sorted(history) for value in history[name]]
    return [*logs, float(layer.calls), *(float(value) for value in np.asarray(layer.largest))]


SCRIPTS: dict[str, Callable[[Any, Any], list[float]]] = {
    function.__name__: function
    for function in (
        *(custom_loop, two_optimizers, endpoint_layer, several_outputs, own_cell, attention_block, convolutions),
        *(contrastive, policy_gradient, accumulated_gradients, translation, own_parts),
    )
}
