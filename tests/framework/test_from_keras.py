"""Scripts as Keras's users write them run here once their import lines are changed, and learn what they should."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

# As docs/from-keras.md says it.
IMPORTS = [
    (r"^import keras$", "import anabranch as keras"),
    (r"^from keras(\S*) import", r"from anabranch\1 import"),
    (r"^from tensorflow import keras$", "import anabranch as keras"),
    (r"^import tensorflow as tf$", "from anabranch import tf"),
]


def run(script: str, **given: Any) -> dict[str, Any]:
    """The names that a script leaves behind."""
    for pattern, replacement in IMPORTS:
        script = re.sub(pattern, replacement, script, flags=re.MULTILINE)
    assert not re.search(r"^\s*(import|from) (keras|tensorflow)", script, flags=re.MULTILINE)
    names: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(script, "script.py", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ab.utils.clear_session()
    ab.utils.set_random_seed(3)


REVIEWS = """
import numpy as np
import keras
from keras import layers
from keras.preprocessing import sequence

rng = np.random.RandomState(0)
texts = [list(rng.randint(5, 50, rng.randint(3, 12))) for _ in range(200)]
labels = np.array([i % 2 for i in range(200)])
for text, label in zip(texts, labels):
    text[rng.randint(len(text))] = 3 + label  # one word tells
x = sequence.pad_sequences(texts, maxlen=12)

model = keras.Sequential([
    layers.Input((None,), dtype="int32"),
    layers.Embedding(50, 8, mask_zero=True),
    layers.Bidirectional(layers.LSTM(8, return_sequences=True)),
    layers.GRU(8),
    layers.Dense(1, activation="sigmoid"),
])
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, labels, batch_size=20, epochs=12, validation_split=0.2, verbose=0)
"""


def test_reviews():
    history = run(REVIEWS)["history"].history

    assert set(history) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert history["accuracy"][-1] > 0.95


COPIED_SENTENCES = """
import numpy as np
from tensorflow import keras

rng = np.random.RandomState(1)
digits = rng.randint(1, 5, (256, 3))
source = np.eye(5, dtype="float32")[digits]
target = source[:, ::-1]
shifted = np.concatenate([np.tile(np.eye(5, dtype="float32")[:1], (256, 1, 1)), target[:, :-1]], axis=1)

encoder_inputs = keras.Input(shape=(None, 5))
_, state_h, state_c = keras.layers.LSTM(24, return_state=True)(encoder_inputs)
decoder_inputs = keras.Input(shape=(None, 5))
decoder_lstm = keras.layers.LSTM(24, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_dense = keras.layers.Dense(5, activation="softmax")
model = keras.Model([encoder_inputs, decoder_inputs], decoder_dense(decoder_outputs))
model.compile(keras.optimizers.Adam(0.02), loss="categorical_crossentropy", metrics=["accuracy"])
model.fit([source, shifted], target, batch_size=32, epochs=25, verbose=0)

encoder = keras.Model(encoder_inputs, [state_h, state_c])
in_h, in_c = keras.Input(shape=(24,)), keras.Input(shape=(24,))
outputs, out_h, out_c = decoder_lstm(decoder_inputs, initial_state=[in_h, in_c])
decoder = keras.Model([decoder_inputs, in_h, in_c], [decoder_dense(outputs), out_h, out_c])

def decode(row):
    states = encoder.predict(row[None], verbose=0)
    token, found = np.eye(5, dtype="float32")[None, :1], []
    for _ in range(3):
        probabilities, *states = decoder.predict([token, *states], verbose=0)
        found.append(int(np.argmax(probabilities[0, -1])))
        token = np.eye(5, dtype="float32")[None, found[-1:]]
    return found

decoded = [decode(row) for row in source[:8]]
"""


def test_an_encoder_and_a_decoder_with_models_for_both():
    names = run(COPIED_SENTENCES)

    right = [
        found == list(reversed(row)) for found, row in zip(names["decoded"], names["digits"].tolist(), strict=False)
    ]
    assert sum(right) >= 6


STRIPES = """
import numpy as np
import keras
from keras import layers
from keras.utils import to_categorical

rng = np.random.RandomState(2)
labels = rng.randint(0, 2, 120)
images = rng.uniform(0, 60, (120, 12, 12, 1))
for image, label in zip(images, labels):
    line = rng.randint(12)
    image[line if label else slice(None), slice(None) if label else line] = 255
x, y = images.astype("float32"), to_categorical(labels, 2)

inputs = keras.Input((12, 12, 1))
h = layers.Rescaling(1 / 255)(inputs)
for filters in (8, 16):
    h = layers.Conv2D(filters, 3, padding="same", use_bias=False)(h)
    h = layers.BatchNormalization(momentum=0.8)(h)
    h = layers.ReLU()(h)
    h = layers.MaxPooling2D()(h)
h = layers.GlobalMaxPooling2D()(h)
outputs = layers.Dense(2, activation="softmax")(layers.Dropout(0.2)(h))
model = keras.Model(inputs, outputs)
model.compile("adam", keras.losses.CategoricalCrossentropy(label_smoothing=0.05), metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping("val_accuracy", patience=6, restore_best_weights=True)
slower = keras.callbacks.ReduceLROnPlateau("val_loss", patience=4)
held = (x[100:], y[100:])
model.fit(x[:100], y[:100], batch_size=10, epochs=30, validation_data=held, callbacks=[stop, slower], verbose=0)
score = model.evaluate(x, y, verbose=0, return_dict=True)
"""


def test_pictures_with_callbacks():
    assert run(STRIPES)["score"]["accuracy"] > 0.9


AUTOENCODER = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from keras import layers

class Sampling(layers.Layer):
    def call(self, inputs):
        mean, log_var = inputs
        epsilon = tf.random.normal(shape=(tf.shape(mean)[0], tf.shape(mean)[1]))
        return mean + tf.exp(0.5 * log_var) * epsilon

class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.total = keras.metrics.Mean(name="loss")
        self.kl = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.kl]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            errors = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction = 8 * tf.reduce_mean(errors)
            kl = -0.5 * tf.reduce_mean(tf.reduce_sum(1 + log_var - tf.square(mean) - tf.exp(log_var), axis=1))
            loss = reconstruction + kl
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total.update_state(loss)
        self.kl.update_state(kl)
        return {"loss": self.total.result(), "kl_loss": self.kl.result()}

inputs = keras.Input((8,))
h = layers.Dense(16, activation="relu")(inputs)
mean, log_var = layers.Dense(2)(h), layers.Dense(2)(h)
encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])])
decoder = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8, activation="sigmoid")])
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam(0.01))
x = np.repeat(np.random.RandomState(0).randint(0, 2, (200, 2)), 4, axis=1).astype("float32")
history = vae.fit(x, epochs=15, batch_size=20, verbose=0).history
made = decoder.predict(np.zeros((3, 2), "float32"), verbose=0)
"""


def test_a_variational_autoencoder_with_its_own_train_step():
    names = run(AUTOENCODER)

    assert list(names["history"]) == ["kl_loss", "loss"]
    assert names["history"]["loss"][-1] < 0.8 * names["history"]["loss"][0]
    assert names["made"].shape == (3, 8)


TWO_PLAYERS = """
import numpy as np
import tensorflow as tf
import keras

class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.seeds = keras.random.SeedGenerator(7)

    @property
    def metrics(self):
        return [self.d_loss_metric]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        count = keras.ops.shape(real)[0]
        noise = keras.random.normal((count, self.latent_dim), seed=self.seeds)
        mixed = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(mixed))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.d_loss_metric.update_state(d_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": g_loss}

layers = keras.layers
discriminator = keras.Sequential([keras.Input((2,)), layers.Dense(8), layers.LeakyReLU(0.2), layers.Dense(1)])
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
before = [w.copy() for w in generator.get_weights() + discriminator.get_weights()]
gan = GAN(discriminator, generator, latent_dim=3)
gan.compile(keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2), keras.losses.BinaryCrossentropy(from_logits=True))
points = np.random.RandomState(0).normal(3.0, 0.5, (128, 2)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(points).shuffle(128, seed=1).batch(32)
history = gan.fit(dataset, epochs=3, verbose=0).history
after = generator.get_weights() + discriminator.get_weights()
"""


def test_two_models_and_two_optimizers():
    names = run(TWO_PLAYERS)

    assert list(names["history"]) == ["d_loss", "g_loss"]
    assert np.isfinite(names["history"]["d_loss"]).all()
    for old, new in zip(names["before"], names["after"], strict=True):
        assert not np.array_equal(old, new)


OWN_PARTS = """
import numpy as np
import keras
from keras import ops

@keras.saving.register_keras_serializable(package="own")
class Scale(keras.layers.Layer):
    def __init__(self, start=1.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer=keras.initializers.Constant(self.start))

    def call(self, x):
        self.add_loss(1e-4 * ops.sum(ops.square(self.scale)))
        return x * self.scale

    def get_config(self):
        return {**super().get_config(), "start": self.start}

@keras.saving.register_keras_serializable(package="own")
class Share(keras.metrics.Metric):
    def __init__(self, name="share", **kwargs):
        super().__init__(name=name, **kwargs)
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        close = ops.cast(ops.abs(y_true - y_pred) < 0.5, "float32")
        self.hits.assign_add(ops.sum(close))
        self.rows.assign_add(ops.cast(ops.size(close), "float32"))

    def result(self):
        return self.hits / self.rows

@keras.saving.register_keras_serializable(package="own")
def fourth_power(y_true, y_pred):
    return ops.mean((y_true - y_pred) ** 4, axis=-1)

class Log(keras.callbacks.Callback):
    seen = []
    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, round(float(logs["share"]), 3), float(self.model.optimizer.learning_rate)))

rng = np.random.RandomState(0)
x = rng.normal(size=(256, 3)).astype("float32")
y = (x * [1.0, -2.0, 0.5]).sum(1, keepdims=True).astype("float32")
inputs = keras.Input((3,))
outputs = keras.layers.Dense(1)(Scale(0.5)(inputs))
model = keras.Model(inputs, outputs)
rate = keras.optimizers.schedules.ExponentialDecay(0.05, 50, 0.9)
model.compile(keras.optimizers.RMSprop(rate), fourth_power, metrics=[Share(), "mae"])
model.fit(x, y, epochs=15, verbose=0, callbacks=[Log()])
model.save("own.keras")
again = keras.models.load_model("own.keras")
same = np.array_equal(model.predict(x, verbose=0), again.predict(x, verbose=0))
score = again.evaluate(x, y, verbose=0, return_dict=True)
"""


def test_own_layers_losses_metrics_and_callbacks_come_back_from_a_file():
    names = run(OWN_PARTS)

    assert names["same"]
    assert names["score"]["share"] > 0.9
    assert [epoch for epoch, _, _ in names["Log"].seen] == list(range(15))
    rates = [rate for _, _, rate in names["Log"].seen]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


PARTS_OF_A_TABLE = """
import numpy as np
import keras
from keras import layers

rng = np.random.RandomState(0)
ages = rng.uniform(20, 60, (200, 1)).astype("float32")
towns = rng.choice(["oslo", "bern", "rome"], (200, 1))
bought = ((ages > 40) ^ (towns == "rome")).astype("float32")

scale = layers.Normalization(axis=None)
scale.adapt(ages)
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(towns)
age, town = keras.Input((1,), name="age"), keras.Input((1,), name="town", dtype="string")
h = layers.concatenate([scale(age), lookup(town)])
h = layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4))(h)
outputs = {
    "bought": layers.Dense(1, activation="sigmoid", name="bought")(h),
    "years": layers.Dense(1, name="years")(h),
}
model = keras.Model({"age": age, "town": town}, outputs)
model.compile(
    keras.optimizers.Adam(0.03),
    loss={"bought": "binary_crossentropy", "years": "mse"},
    loss_weights={"bought": 1.0, "years": 0.01},
    metrics={"bought": ["accuracy"]},
)
data = {"age": ages, "town": towns}
model.fit(data, {"bought": bought, "years": (ages - 20) / 40}, epochs=30, batch_size=20, verbose=0)
score = model.evaluate(data, {"bought": bought, "years": (ages - 20) / 40}, verbose=0, return_dict=True)
"""


def test_a_table_with_words_and_two_outputs():
    assert run(PARTS_OF_A_TABLE)["score"]["bought_accuracy"] > 0.9


ATTENTION = """
import numpy as np
import keras
from keras import layers, ops

class Block(layers.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.dense = keras.Sequential([layers.Dense(2 * width, activation="gelu"), layers.Dense(width)])
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, x):
        x = self.first(x + self.attention(x, x, use_causal_mask=True))
        return self.second(x + self.dense(x))

class Places(layers.Layer):
    def __init__(self, length, words, width):
        super().__init__()
        self.words, self.places = layers.Embedding(words, width), layers.Embedding(length, width)

    def call(self, x):
        return self.words(x) + self.places(ops.arange(0, ops.shape(x)[-1], 1))

x = (np.arange(9)[None] + np.arange(60)[:, None]) % 6  # what comes next is one more
inputs = keras.Input((8,), dtype="int32")
outputs = layers.Dense(6)(Block(16, 2)(Places(8, 6, 16)(inputs)))
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
history = model.fit(x[:, :-1], x[:, 1:], batch_size=12, epochs=12, verbose=0).history
"""


def test_a_small_transformer():
    assert run(ATTENTION)["history"]["accuracy"][-1] > 0.95
