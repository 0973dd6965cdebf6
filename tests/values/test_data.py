"""Values as data of models. Each holds for Keras, too, where it has the names."""

import numpy as np
from shared.values import plain, same

import anabranch as k


def _regression():
    model = k.Sequential([k.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer=k.optimizers.SGD(0.3), loss="mse", metrics=["mae"])
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(16, 1)
    return model, k.ops.array(x), k.ops.array(2 * x)


def test_fit_and_others_take_values() -> None:
    model, x, y = _regression()
    history = model.fit(x, y, epochs=40, batch_size=16, verbose=0, validation_data=(x, y))
    assert history.history["loss"][-1] < 1e-2
    assert isinstance(history.history["loss"][-1], float)
    assert model.evaluate(x, y, verbose=0)[0] < 1e-2
    got = model.predict(x, verbose=0)
    assert type(got) is np.ndarray
    same(got, plain(y), 0.2)


def test_batches_of_values() -> None:
    model, x, y = _regression()
    first = model.train_on_batch(x, y)
    second = model.test_on_batch(x, y)
    assert second[0] < first[0]
    same(model.predict_on_batch(x), plain(model(x)))


def test_generators_of_values() -> None:
    model, x, y = _regression()

    def batches():
        while True:
            yield x, y

    model.fit(batches(), steps_per_epoch=40, epochs=1, verbose=0)
    assert model.evaluate(x, y, verbose=0)[0] < 1e-2


def test_datasets_of_values() -> None:
    model, x, y = _regression()

    class Halves(k.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            rows = slice(8 * index, 8 * index + 8)
            return x[rows], y[rows]

    model.fit(Halves(), epochs=40, verbose=0, shuffle=False)
    assert model.evaluate(x, y, verbose=0)[0] < 1e-2


def test_adapt_takes_values() -> None:
    layer = k.layers.Normalization()
    layer.adapt(k.ops.array([[1.0], [3.0]]))
    same(layer(k.ops.array([[5.0]])), [[3.0]])


def test_callbacks_see_values() -> None:
    model, x, y = _regression()
    seen = []

    class Watch(k.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(float(k.ops.mean(k.ops.square(self.model(x) - y))))
            self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.9)

    model.fit(x, y, epochs=3, batch_size=16, verbose=0, callbacks=[Watch()])
    assert seen[0] > seen[1] > seen[2]
    same(model.optimizer.learning_rate, np.float32(0.3 * 0.9**3))


def test_initializers_called_by_hand_give_tensors() -> None:
    initializer = k.initializers.RandomNormal(stddev=2.0, seed=3)
    found = initializer((2, 3))
    assert isinstance(found, k.Tensor)
    assert (found.shape, found.dtype) == ((2, 3), np.float32)
    assert np.array_equal(found.numpy(), initializer((2, 3)))
    assert np.array_equal(k.Variable(found * 2.0).numpy(), 2.0 * found.numpy())
    assert np.array_equal(k.Variable(initializer, shape=(2, 3)), found)
    assert k.initializers.Zeros()((2,), dtype="int32").dtype == np.int32
    layer = k.layers.Dense(3, kernel_initializer=lambda shape, dtype=None: initializer(shape, dtype) + 1.0)
    layer.build((None, 2))
    np.testing.assert_allclose(layer.kernel.numpy(), found.numpy() + 1.0)


def test_a_single_string_is_a_str():
    word = k.ops.strings.reduce_join(k.constant(["w", "or", "d"]))
    for found in (word.numpy(), word.eval(), word.item(), k.Session().run(word)):
        assert type(found) is str
        assert found == "word"
    assert word.numpy() in {"word": 1}
    assert np.asarray(word).shape == ()
    assert k.constant(["w"]).numpy().tolist() == ["w"]
