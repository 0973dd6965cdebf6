"""Training loops written by hand. Each holds for Keras, too, where it has the names."""

import gc

import numpy as np
from shared.values import plain, resident, same

import anabranch as k


def test_loop_of_linear_regression() -> None:
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(16, 1)
    y = 3 * x - 1
    model = k.Sequential([k.layers.Dense(1, kernel_initializer="zeros")])
    sgd, mse, mean = k.optimizers.SGD(0.3), k.losses.MeanSquaredError(), k.metrics.Mean()
    for _ in range(100):
        with k.GradientTape() as tape:
            loss = mse(k.ops.array(y), model(k.ops.array(x), training=True))
        sgd.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        mean.update_state(loss)
    kernel, bias = model.trainable_variables
    same(kernel, [[3.0]], 1e-2)
    same(bias, [-1.0], 1e-2)
    assert float(loss) < 1e-4 < float(mean.result())
    assert int(sgd.iterations) == 100


def test_loop_of_actor_and_critic() -> None:
    k.utils.set_random_seed(0)
    shared, critic = k.layers.Dense(8, activation="tanh"), k.layers.Dense(1)
    actor = k.layers.Dense(2, activation="softmax")
    inputs = k.Input((3,))
    common = shared(inputs)
    model = k.Model(inputs, [actor(common), critic(common)])
    adam, huber = k.optimizers.Adam(0.05), k.losses.Huber()
    rewards_of = np.array([0.0, 1.0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        state = k.ops.array([[1.0, -1.0, 0.5]])
        with k.GradientTape() as tape:
            log_probabilities, values, rewards = [], [], []
            for _ in range(5):
                probabilities, value = model(state)
                action = rng.choice(2, p=np.squeeze(probabilities) / np.sum(np.squeeze(probabilities)))
                log_probabilities.append(k.ops.log(probabilities[0, action]))
                values.append(value[0, 0])
                rewards.append(rewards_of[action])
            actor_losses, critic_losses = [], []
            for log_probability, value, reward in zip(log_probabilities, values, rewards, strict=True):
                actor_losses.append(-log_probability * (reward - k.ops.stop_gradient(value)))
                target = k.ops.array([reward], "float32")
                critic_losses.append(huber(target, k.ops.expand_dims(value, 0)))
            loss = sum(actor_losses) + sum(critic_losses)
        adam.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    final, _ = model(state)
    assert float(final[0, 1]) > 0.9, float(final[0, 1])


def test_loop_of_generator_and_discriminator() -> None:
    k.utils.set_random_seed(0)
    generator = k.Sequential([k.layers.Dense(4, activation="relu"), k.layers.Dense(1)])
    discriminator = k.Sequential([k.layers.Dense(8, activation="relu"), k.layers.Dense(1)])
    first, second = k.optimizers.Adam(1e-2), k.optimizers.Adam(1e-2)
    entropy, seed = k.losses.BinaryCrossentropy(from_logits=True), k.random.SeedGenerator(1)
    generator(k.ops.zeros((1, 2)))
    discriminator(k.ops.zeros((1, 1)))
    start = [[plain(w).copy() for w in model.trainable_variables] for model in (generator, discriminator)]
    for _ in range(5):
        real = k.random.normal((16, 1), mean=4.0, seed=seed)
        noise = k.random.normal((16, 2), seed=seed)
        with k.GradientTape() as tape:
            guesses = discriminator(k.ops.concatenate([generator(noise), real], axis=0))
            labels = k.ops.concatenate([k.ops.ones((16, 1)), k.ops.zeros((16, 1))], axis=0)
            loss = entropy(labels, guesses)
        second.apply(tape.gradient(loss, discriminator.trainable_variables), discriminator.trainable_variables)
        with k.GradientTape() as tape:
            loss = entropy(k.ops.zeros((16, 1)), discriminator(generator(noise)))
        first.apply(tape.gradient(loss, generator.trainable_variables), generator.trainable_variables)
    for model, before in zip((generator, discriminator), start, strict=True):
        moved = [np.abs(plain(w) - b).max() for w, b in zip(model.trainable_variables, before, strict=True)]
        assert max(moved) > 0.01, moved
    assert int(first.iterations) == int(second.iterations) == 5
    assert np.isfinite(float(loss))


def test_loops_leave_no_memory() -> None:
    model = k.Sequential([k.layers.Dense(64, activation="relu"), k.layers.Dense(64), k.layers.Dense(1)])
    adam, mean, x = k.optimizers.Adam(1e-3), k.metrics.Mean(), k.ops.ones((256, 16))

    def step():
        with k.GradientTape() as tape:
            loss = k.ops.mean(model(x) ** 2)
        adam.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        mean.update_state(loss)

    for _ in range(5):
        step()
    gc.collect()
    before = resident()
    for _ in range(40):
        step()
    gc.collect()
    grown = resident() - before
    assert grown < 6 * 2**20, f"40 steps have left {grown / 2**20:.0f} MB"


def test_train_step_of_ones_own() -> None:
    class Own(k.Model):
        def __init__(self):
            super().__init__()
            self.dense = k.layers.Dense(1, kernel_initializer="zeros")
            self.tracker = k.metrics.Mean(name="loss")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with k.GradientTape() as tape:
                loss = k.ops.mean((self(x, training=True) - y) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    x = np.linspace(-1, 1, 8, dtype="float32").reshape(8, 1)
    model = Own()
    model.compile(optimizer=k.optimizers.SGD(0.3))
    history = model.fit(x, 2 * x, epochs=30, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < 1e-3
    same(model.dense.kernel, [[2.0]], 5e-2)
