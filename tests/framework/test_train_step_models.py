"""Models that need a step of their own, each against the step that NumPy or a plain graph makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, tf

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = RNG.normal(size=(12, 2)).astype("float32")


# --- generative adversarial networks --------------------------------------------------------------------------------


class GAN(ab.Model):
    """As Keras's guide to custom steps has it: two models, two optimizers, a compile of its own."""

    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_loss_tracker = ab.metrics.Mean(name="d_loss")
        self.g_loss_tracker = ab.metrics.Mean(name="g_loss")
        self.seed_generator = ab.random.SeedGenerator(1337)

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def noise(self, batch_size):
        return ab.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)

    def train_step(self, real):
        if isinstance(real, tuple):
            real = real[0]
        batch_size = ab.ops.shape(real)[0]
        fake = self.generator(self.noise(batch_size))
        combined = ab.ops.concatenate([fake, real], axis=0)
        labels = ab.ops.concatenate([ab.ops.ones((batch_size, 1)), ab.ops.zeros((batch_size, 1))], axis=0)
        with ab.GradientTape() as tape:
            predictions = self.discriminator(combined)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))
        misleading = ab.ops.zeros((batch_size, 1))
        with ab.GradientTape() as tape:
            predictions = self.discriminator(self.generator(self.noise(batch_size)))
            g_loss = self.loss_fn(misleading, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


def logistic_loss(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def test_a_gan_makes_the_steps_that_numpy_makes() -> None:
    class WithoutNoise(GAN):
        def noise(self, batch_size):
            return ab.ops.ones((batch_size, self.latent_dim))

    discriminator = ab.Sequential([ab.Input((3,)), layers.Dense(1, use_bias=False)])
    generator = ab.Sequential([ab.Input((2,)), layers.Dense(3, use_bias=False)])
    gan = WithoutNoise(discriminator, generator, latent_dim=2)
    gan.compile(ab.optim.SGD(0.5), ab.optim.SGD(0.25), ab.losses.BinaryCrossentropy(from_logits=True))
    (d,), (g,) = discriminator.get_weights(), generator.get_weights()
    noise, labels = np.ones((4, 2)), np.concatenate([np.ones((4, 1)), np.zeros((4, 1))])
    d_losses, g_losses = [], []
    for start in (0, 4, 8):
        combined = np.concatenate([noise @ g, X[start : start + 4]])
        logits = combined @ d
        d_losses.append(logistic_loss(labels, logits))
        d = d - 0.5 * combined.T @ ((1 / (1 + np.exp(-logits)) - labels) / 8)
        logits = noise @ g @ d
        g_losses.append(logistic_loss(np.zeros((4, 1)), logits))
        g = g - 0.25 * noise.T @ (1 / (1 + np.exp(-logits)) / 4) @ d.T
    history = gan.fit(X, batch_size=4, shuffle=False, verbose=0).history
    assert history["d_loss"] == [pytest.approx(np.mean(d_losses), rel=1e-5)]
    assert history["g_loss"] == [pytest.approx(np.mean(g_losses), rel=1e-5)]
    np.testing.assert_allclose(discriminator.get_weights()[0], d, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(generator.get_weights()[0], g, rtol=1e-5, atol=1e-6)


def test_a_gan_with_layers_of_many_kinds_trains() -> None:
    discriminator = ab.Sequential(
        [ab.Input((3,)), layers.Dense(8), layers.LeakyReLU(negative_slope=0.2), layers.Dropout(0.3), layers.Dense(1)]
    )
    generator = ab.Sequential([ab.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(3)])
    gan = GAN(discriminator, generator, latent_dim=4)
    gan.compile(ab.optim.Adam(0.01), ab.optim.Adam(0.01), ab.losses.BinaryCrossentropy(from_logits=True))
    before = [weight.numpy() for weight in gan.trainable_weights]
    history = gan.fit(X, batch_size=5, epochs=3, verbose=0).history
    assert list(history) == ["d_loss", "g_loss"]
    assert np.isfinite([history["d_loss"], history["g_loss"]]).all()
    for old, weight in zip(before, gan.trainable_weights, strict=True):
        assert not np.array_equal(old, weight.numpy()), weight.path


class Sampling(layers.Layer):
    """A draw from the distribution that an encoder gives; here its mean, so that numbers can be foretold."""

    def call(self, inputs):
        mean, log_variance = inputs
        kl = -0.5 * (1 + log_variance - mean**2 - ab.ops.exp(log_variance))
        self.add_loss(ab.ops.mean(ab.ops.sum(kl, axis=1)))
        return mean


def test_a_vae_with_an_added_loss_makes_the_step_that_numpy_makes() -> None:
    class VAE(ab.Model):
        def __init__(self):
            super().__init__()
            self.mean = layers.Dense(2, use_bias=False)
            self.log_variance = layers.Dense(2, use_bias=False)
            self.sampling = Sampling()
            self.decoder = layers.Dense(3, use_bias=False)
            self.total_loss_tracker = ab.metrics.Mean(name="total_loss")
            self.kl_loss_tracker = ab.metrics.Mean(name="kl_loss")

        @property
        def metrics(self):
            return [self.total_loss_tracker, self.kl_loss_tracker]

        def call(self, inputs):
            return self.decoder(self.sampling((self.mean(inputs), self.log_variance(inputs))))

        def train_step(self, data):
            with ab.GradientTape() as tape:
                reconstruction = self(data, training=True)
                kl_loss = sum(self.losses)
                total_loss = ab.ops.mean((data - reconstruction) ** 2) + kl_loss
            grads = tape.gradient(total_loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
            self.total_loss_tracker.update_state(total_loss)
            self.kl_loss_tracker.update_state(kl_loss)
            return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}

    vae = VAE()
    vae(X[:1])
    vae.compile(optimizer=ab.optim.SGD(0.1))
    encode, spread, decode = (weight.astype("float64") for weight in vae.get_weights())
    mean, log_variance = X @ encode, X @ spread
    kl = float(np.mean(np.sum(-0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)), axis=1)))
    error = mean @ decode - X
    slope = 2 * error / X.size
    by_mean = slope @ decode.T + mean / len(X)
    expected = [
        encode - 0.1 * X.T @ by_mean,
        spread - 0.1 * X.T @ (-0.5 * (1 - np.exp(log_variance)) / len(X)),
        decode - 0.1 * mean.T @ slope,
    ]
    history = vae.fit(X, batch_size=12, verbose=0).history
    assert history["kl_loss"] == [pytest.approx(kl, rel=1e-4)]
    assert history["loss"] == [pytest.approx(kl + float(np.mean(error**2)), rel=1e-4)]
    for weight, value in zip(vae.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-4, atol=1e-6)


class Distiller(ab.Model):
    """As Keras's example of knowledge distillation has it, with compute_loss in terms of the teacher's predictions."""

    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, allow_empty: bool = False
    ) -> Any:
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ab.ops.softmax(teacher_pred / self.temperature, axis=1),
            ab.ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def test_distillation_makes_the_step_that_numpy_makes_and_leaves_the_teacher() -> None:
    labels = np.arange(12) % 4
    teacher = ab.Sequential([ab.Input((3,)), layers.Dense(4, use_bias=False)])
    teacher.trainable = False
    student = ab.Sequential([ab.Input((3,)), layers.Dense(4, use_bias=False)])
    model = Distiller(student, teacher)
    model.compile(
        ab.optim.SGD(0.5),
        [ab.metrics.SparseCategoricalAccuracy()],
        ab.losses.SparseCategoricalCrossentropy(from_logits=True),
        ab.losses.KLDivergence(),
    )
    taught, learnt = teacher.get_weights()[0].astype("float64"), student.get_weights()[0].astype("float64")
    wanted, soft, hard = softmax(X @ taught / 3), softmax(X @ learnt / 3), softmax(X @ learnt)
    cross = float(np.mean(-np.log(hard[np.arange(12), labels])))
    divergence = float(np.mean(np.sum(wanted * np.log(wanted / soft), axis=1)))
    by_logits = 0.1 * (hard - np.eye(4)[labels]) / 12 + 0.9 * 9 * (soft - wanted) / 12 / 3
    history = model.fit(X, labels, batch_size=12, verbose=0).history
    assert history["loss"] == [pytest.approx(0.1 * cross + 0.9 * 9 * divergence, rel=1e-4)]
    assert history["sparse_categorical_accuracy"] == [pytest.approx(float(np.mean(hard.argmax(1) == labels)))]
    np.testing.assert_allclose(student.get_weights()[0], learnt - 0.5 * X.T @ by_logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(teacher.get_weights()[0], taught.astype("float32"))
    assert list(model.evaluate(X, labels, verbose=0, return_dict=True)) == ["loss", "sparse_categorical_accuracy"]


def test_contrastive_learning_makes_the_step_that_a_plain_graph_makes() -> None:
    def contrastive_loss(first, second, temperature=0.5):
        first, second = (v / ab.ops.sqrt(ab.ops.sum(v**2, axis=1, keepdims=True)) for v in (first, second))
        similarities = ab.ops.matmul(first, ab.ops.transpose(second)) / temperature
        labels = ab.ops.arange(ab.ops.shape(first)[0])
        crossentropy = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
        return (crossentropy(labels, similarities) + crossentropy(labels, ab.ops.transpose(similarities))) / 2

    class Contrastive(ab.Model):
        def __init__(self, encoder, probe):
            super().__init__()
            self.encoder, self.linear_probe = encoder, probe
            self.contrastive_loss_tracker = ab.metrics.Mean(name="c_loss")
            self.probe_loss_tracker = ab.metrics.Mean(name="p_loss")

        def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
            super().compile(**kwargs)
            self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
            self.probe_loss = ab.losses.MeanSquaredError()

        @property
        def metrics(self):
            return [self.contrastive_loss_tracker, self.probe_loss_tracker]

        def train_step(self, data):
            x, y = data
            with ab.GradientTape() as tape:
                loss = contrastive_loss(self.encoder(x, training=True), self.encoder(x + 0.5, training=True))
            weights = self.encoder.trainable_weights
            self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.contrastive_loss_tracker.update_state(loss)
            features = self.encoder(x, training=False)
            with ab.GradientTape() as tape:
                probe_loss = self.probe_loss(y, self.linear_probe(features, training=True))
            gradients = tape.gradient(probe_loss, [*self.linear_probe.trainable_weights, *weights])
            assert gradients[len(self.linear_probe.trainable_weights) :] == [None] * len(weights)
            probe_weights = self.linear_probe.trainable_weights
            self.probe_optimizer.apply(gradients[: len(probe_weights)], probe_weights)
            self.probe_loss_tracker.update_state(probe_loss)
            return {metric.name: metric.result() for metric in self.metrics}

    encoder = ab.Sequential([ab.Input((3,)), layers.Dense(4, use_bias=False)])
    probe = ab.Sequential([ab.Input((4,)), layers.Dense(2, use_bias=False)])
    model = Contrastive(encoder, probe)
    model.compile(ab.optim.SGD(0.5), ab.optim.SGD(0.1))
    (w,), (p,) = encoder.get_weights(), probe.get_weights()
    with ab.Graph().as_default():
        x, weight = ab.constant(X), ab.constant(w)
        loss = contrastive_loss(ab.ops.matmul(x, weight), ab.ops.matmul(x + 0.5, weight))
        expected_loss, slope = ab.Session().run([loss, ab.gradients(loss, [weight])[0]])
    expected = w - 0.5 * slope
    error = X @ expected @ p - Y
    history = model.fit(X, Y, batch_size=12, verbose=0).history
    assert history["c_loss"] == [pytest.approx(float(expected_loss), rel=1e-5)]
    assert history["p_loss"] == [pytest.approx(float(np.mean(error**2)), rel=1e-4)]
    np.testing.assert_allclose(encoder.get_weights()[0], expected, rtol=1e-4, atol=1e-6)
    step = 0.1 * (X @ expected).T @ (2 * error / Y.size)
    np.testing.assert_allclose(probe.get_weights()[0], p - step, rtol=1e-4, atol=1e-6)


class SemiSupervised(ab.Model):
    """Rows with labels beside more rows without, as in semi-supervised learning."""

    def __init__(self):
        super().__init__()
        self.encoder, self.probe = layers.Dense(2, use_bias=False), layers.Dense(2, use_bias=False)

    def build(self, input_shape):
        self.encoder.build((None, 3))
        self.probe.build((None, 2))

    def train_step(self, data):
        unlabelled, (labelled, targets) = data
        with ab.GradientTape() as tape:
            spread = ab.ops.mean(self.encoder(ab.ops.concatenate([unlabelled, labelled])) ** 2)
            error = ab.ops.mean((self.probe(self.encoder(labelled)) - targets) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(spread + error, weights), weights)
        return {"spread": spread, "error": error}


class UnlikeRows(ab.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], (X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4])


@pytest.mark.parametrize("source", ["dataset", "list", "PyDataset", "train_on_batch"])
def test_batches_may_have_parts_of_unlike_numbers_of_rows(source: str):
    batches = UnlikeRows()
    labelled = tf.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(4)
    dataset = tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(X[:16]).batch(8), labelled))
    given = {"dataset": dataset, "list": [batches[0], batches[1]], "PyDataset": batches}
    model = SemiSupervised()
    model.build((None, 3))
    model.compile(ab.optim.SGD(0.5), steps_per_execution=2 if source == "list" else 1)
    w, p = (weight.astype("float64") for weight in model.get_weights())
    if source == "train_on_batch":
        found = [model.train_on_batch(*batches[number], return_dict=True) for number in range(2)][-1]
    else:
        found = {k: v[0] for k, v in model.fit(given[source], shuffle=False, verbose=0).history.items()}
    for number in range(2):
        unlabelled, (rows, targets) = batches[number]
        every = np.concatenate([unlabelled, rows])
        spread, error = np.mean((every @ w) ** 2), rows @ w @ p - targets
        by_output = 2 * error / error.size
        by_encoder = every.T @ (2 * (every @ w) / (len(every) * 2)) + rows.T @ by_output @ p.T
        w, p = w - 0.5 * by_encoder, p - 0.5 * (rows @ w).T @ by_output
    assert found == {"error": pytest.approx(np.mean(error**2), rel=1e-4), "spread": pytest.approx(spread, rel=1e-4)}
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], p, rtol=1e-4, atol=1e-6)


@pytest.fixture
def two_devices() -> Iterator[None]:
    ab.config.set_devices(cpu=2)
    yield
    ab.config.set_devices()


def test_batches_that_devices_share_have_as_many_rows_in_all_parts(two_devices: None):
    with ab.distribute.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        model = SemiSupervised()
        model.build((None, 3))
        model.compile("sgd")
    message = r"where a part of a batch has some of the rows\. Got x: 8, y\[0\]: 4, y\[1\]: 4"
    with pytest.raises(ValueError, match=message):
        model.fit(UnlikeRows(), verbose=0)
