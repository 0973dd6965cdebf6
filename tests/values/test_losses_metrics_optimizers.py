"""Losses, metrics and optimizers on values. Each holds for Keras, too, where it has the names."""

import numpy as np
from shared.values import same

import anabranch as k


def test_losses_of_values() -> None:
    y, p = k.ops.array([[0.0], [1.0]]), k.ops.array([[0.5], [0.5]])
    assert float(k.losses.MeanSquaredError()(y, p)) == 0.25
    assert float(k.losses.MeanSquaredError()(y, p, sample_weight=k.ops.array([2.0, 0.0])) * 2) == 0.5
    same(k.losses.binary_crossentropy(y, p), np.full(2, np.log(2.0), "float32"))
    same(k.losses.mean_squared_error(y, np.asarray([[0.0], [0.0]], "float32")) + 1, [1.0, 2.0])


def test_losses_with_equality_masks() -> None:
    def focal(y_true, y_pred):
        kept = k.ops.where(y_true == 1, y_pred, 1 - y_pred)
        return -k.ops.mean(k.ops.square(1 - kept) * k.ops.log(kept), axis=-1)

    y, p = np.array([[1.0], [0.0]], "float32"), np.array([[0.25], [0.25]], "float32")
    want = np.mean([-(0.75**2) * np.log(0.25), -(0.25**2) * np.log(0.75)])
    same(k.ops.mean(focal(k.ops.array(y), k.ops.array(p))), np.float32(want))
    model = k.Sequential([k.Input((1,)), k.layers.Rescaling(1.0)])
    model.compile(loss=focal)
    same(np.float32(model.evaluate(p, y, verbose=0)), np.float32(want))


def test_metrics_of_values() -> None:
    mean = k.metrics.Mean()
    mean.update_state(k.ops.array([1.0, 2.0, 3.0]))
    mean.update_state(k.ops.array(6.0) * 2)
    assert float(mean.result()) == 4.5
    mean.reset_state()
    mean.update_state(k.ops.array([1.0, 3.0]), sample_weight=k.ops.array([1.0, 3.0]))
    assert float(mean.result()) == 2.5
    accuracy = k.metrics.SparseCategoricalAccuracy()
    got = accuracy(k.ops.array([0, 1]), k.ops.array([[0.9, 0.1], [0.9, 0.1]]))
    assert float(got) == 0.5
    assert f"{accuracy.result():.1f}" == "0.5"
    auc = k.metrics.AUC()
    auc.update_state(k.ops.array([0, 0, 1, 1]), k.ops.array([0.1, 0.4, 0.35, 0.8]))
    same(auc.result(), np.float32(0.75), 1e-2)


def test_metrics_of_ones_own() -> None:
    class Most(k.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.most = self.add_variable(shape=(), initializer="zeros", name="most")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.most.assign(k.ops.maximum(self.most, k.ops.max(y_pred)))

        def result(self):
            return self.most * 1

    metric = Most()
    for number in (1.0, 4.0, 2.0):
        metric.update_state(k.ops.array([0.0]), k.ops.array([number]))
    assert float(metric.result()) == 4.0


def test_optimizers_on_values() -> None:
    v = k.Variable([1.0, 2.0])
    sgd = k.optimizers.SGD(0.5)
    sgd.apply([k.ops.array([1.0, 2.0])], [v])
    same(v, [0.5, 1.0])
    sgd.apply_gradients([(k.ops.ones((2,)), v)])
    same(v, [0.0, 0.5])
    sgd.learning_rate = 1.0
    sgd.apply([v * 1], [v])
    same(v, [0.0, 0.0])
    assert int(sgd.iterations) == 3


def test_adam_on_values() -> None:
    v, gradient = k.Variable([1.0, -1.0]), np.array([0.5, 0.1])
    adam = k.optimizers.Adam(k.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), clipnorm=1.0)
    value, first, second = np.array([1.0, -1.0]), 0.0, 0.0
    for step in range(1, 4):
        adam.apply([k.ops.array(gradient.astype("float32"))], [v])
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        rate = 0.1 * 0.5 ** (step - 1) * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        value = value - rate * first / (np.sqrt(second) + 1e-7)
    same(v, value.astype("float32"), 1e-4)
    same(adam.learning_rate, np.float32(0.0125))
