"""Models with steps of their own: what fit, evaluate and predict make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = RNG.normal(size=(12, 2)).astype("float32")


def built(cls: type, **compile_arguments: object) -> ab.Model:
    """A linear model of class `cls`, with weights that are always the same."""
    inputs = ab.Input((3,))
    model = cls(inputs, layers.Dense(2, kernel_initializer=ab.initializers.Constant(0.1))(inputs))
    model.compile(**({"optimizer": ab.optim.SGD(0.1), "loss": "mse", "metrics": ["mae"]} | compile_arguments))
    return model


def linear(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return x @ weights[0] + weights[1]


def descended(x: np.ndarray, y: np.ndarray, weights: list[np.ndarray], rate: float = 0.1) -> list[np.ndarray]:
    """The weights after a step of descent on the mean squared error."""
    slope = 2 * (linear(x, weights) - y) / y.size
    return [weights[0] - rate * x.T @ slope, weights[1] - rate * slope.sum(0)]


def test_a_loss_attribute_of_the_class_stays():
    class Own(ab.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.loss = ab.losses.MeanAbsoluteError()

        def train_step(self, data: Any) -> Any:
            x, y = data
            with ab.GradientTape() as tape:
                loss = self.loss(y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"loss": loss}

    model = built(Own, loss=None, metrics=None)
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()
    assert isinstance(model.loss, ab.losses.MeanAbsoluteError)

    model = built(ab.Model)
    assert model.loss == "mse"
    model.compile("sgd")
    assert model.loss is None  # an earlier argument does not stay


# --- steps as Keras's users write them ------------------------------------------------------------------------------


class WithTape(ab.Model):
    def train_step(self, data):
        x, y = data
        with ab.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class WithGradients(ab.Model):
    def train_step(self, data):
        x, y = data
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred)
        self.optimizer.apply(ab.gradients(loss, self.trainable_weights), self.trainable_weights)
        self.metrics[0].update_state(loss)
        return self.compute_metrics(x, y, y_pred)


class Calling(ab.Model):
    def train_step(self, data):
        return super().train_step(data)


class OfKeras2(ab.Model):
    def train_step(self, data):
        x, y = data
        with ab.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.optimizer.minimize(loss, self.trainable_variables)
        metrics: Any = self.compiled_metrics
        metrics.update_state(y, y_pred)
        assert set(tape.watched_variables()) == set(self.trainable_variables)
        return {metric.name: metric.result() for metric in self.metrics}


loss_of_all = ab.metrics.Mean(name="loss")
error_of_all = ab.metrics.MeanAbsoluteError(name="mae")


class WithMetricsOfItsOwn(ab.Model):
    @ab.function
    def train_step(self, data):
        x, y = data
        with ab.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ab.losses.mean_squared_error(y, y_pred)
        self.optimizer.apply(tape.gradient(ab.ops.mean(loss), self.trainable_variables), self.trainable_variables)
        loss_of_all.update_state(loss)
        error_of_all.update_state(y, y_pred)
        return {"loss": loss_of_all.result(), "mae": error_of_all.result()}

    @property
    def metrics(self):
        return [loss_of_all, error_of_all]

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss_of_all.update_state(self.compute_loss(y=y, y_pred=y_pred))
        error_of_all.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.parametrize("cls", [WithTape, WithGradients, Calling, OfKeras2, WithMetricsOfItsOwn])
def test_a_step_of_ones_own_trains_as_the_built_in_one(cls: type) -> None:
    model, plain = built(cls), built(ab.Model)
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (X[:3], Y[:3])}
    found, expected = model.fit(X, Y, **options).history, plain.fit(X, Y, **options).history
    assert list(found) == list(expected) == ["loss", "mae", "val_loss", "val_mae"]
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    for weight, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5)
    assert model.metrics_names == ["loss", "mae"]


def test_the_first_step_is_the_one_that_numpy_makes() -> None:
    model = built(WithTape)
    expected = descended(X, Y, model.get_weights())
    loss, error = model.train_on_batch(X, Y)
    prediction = linear(X, [np.full((3, 2), 0.1), np.zeros(2)])
    assert loss == pytest.approx(float(np.mean((prediction - Y) ** 2)), rel=1e-5)
    assert error == pytest.approx(float(np.mean(np.abs(prediction - Y))), rel=1e-5)
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-5, atol=1e-6)


def test_steps_are_built_once_for_each_kind_of_batch() -> None:
    sizes = []

    class Counting(ab.Model):
        def train_step(self, data):
            sizes.append(data[0].shape[0])
            return super().train_step(data)

    model = built(Counting)
    model.fit(X, Y, batch_size=5, epochs=3, verbose=0)
    assert sizes == [5, 2]
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=6, verbose=0)
    assert sizes == [5, 2, 6]


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ((X,), "tensor"),
        ((X, Y), "(tensor, tensor)"),
        ((X, Y, X[:, 0]), "(tensor, tensor, tensor)"),
        (([X, X],), "([tensor, tensor])"),
        (({"a": X}, [Y, Y]), "({a: tensor}, [tensor, tensor])"),
    ],
)
def test_the_data_have_the_form_in_which_they_were_given(arguments: tuple, form: str) -> None:
    def text(item: object) -> str:
        if isinstance(item, tuple):
            return f"({', '.join(map(text, item))})"
        if isinstance(item, list):
            return f"[{', '.join(map(text, item))}]"
        if isinstance(item, dict):
            return f"{{{', '.join(f'{key}: {text(value)}' for key, value in item.items())}}}"
        return "tensor" if isinstance(item, ab.Tensor) else repr(item)

    class Spy(ab.Model):
        def train_step(self, data):
            seen.append(text(data))
            return {"constant": 1.0}

    seen: list[str] = []
    model = Spy()
    model.compile()
    x, y, sample_weight = (*arguments, None, None)[:3]
    assert model.fit(x, y, sample_weight=sample_weight, verbose=0).history == {"constant": [1.0]}
    assert seen == [form]


def test_logs_are_of_the_last_step_and_may_be_nested() -> None:
    class Telling(ab.Model):
        def train_step(self, data):
            x, _ = data
            return {"b": {"first": x[0, 0], "second": 2}, "a": ab.ops.max(x)}

    model = built(Telling)
    history = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    assert list(history) == ["a", "first", "second"]
    assert history["a"] == [pytest.approx(float(X[8:].max()))]
    assert history["first"] == [pytest.approx(float(X[8, 0]))]
    assert model.train_on_batch(X[:4], Y[:4], return_dict=True)["first"] == pytest.approx(float(X[0, 0]))


def test_callbacks_see_what_the_step_returns() -> None:
    class Telling(ab.Model):
        def train_step(self, data):
            return {"largest": ab.ops.max(data[0])}

    class Noting(ab.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(logs["largest"])

    seen: list[float] = []
    built(Telling).fit(X, Y, batch_size=4, shuffle=False, verbose=0, callbacks=[Noting()])
    np.testing.assert_allclose(seen, [X[start : start + 4].max() for start in (0, 4, 8)])


def test_a_test_step_and_a_predict_step_of_ones_own() -> None:
    class Own(ab.Model):
        def test_step(self, data):
            x, y = data
            y_pred = self(x, training=False)
            return {"worst": ab.ops.max(ab.ops.abs(y - y_pred))}

        def predict_step(self, data):
            return {"sum": ab.ops.sum(self(data), axis=-1), "twice": 2 * self(data)}

    model = built(Own)
    plain = linear(X, model.get_weights())
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(float(np.abs(Y - plain).max()), rel=1e-5)
    assert list(model.evaluate(X, Y, verbose=0, return_dict=True)) == ["worst"]
    for found in (model.predict(X, batch_size=5, verbose=0), model.predict_on_batch(X), model.predict(X, verbose=0)):
        np.testing.assert_allclose(found["sum"], plain.sum(-1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["twice"], 2 * plain, rtol=1e-5, atol=1e-6)
    assert list(model.fit(X, Y, validation_data=(X, Y), verbose=0).history) == ["loss", "mae", "val_worst"]


def test_metrics_of_compute_metrics_are_logged() -> None:
    class Own(ab.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.largest = ab.metrics.Mean(name="largest")

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            self.largest.update_state(ab.ops.max(y))
            results["largest"] = self.largest.result()
            return results

    model = built(Own)
    history = model.fit(X, Y, batch_size=6, shuffle=False, epochs=2, verbose=0).history
    assert list(history) == ["largest", "loss", "mae"]
    assert history["largest"] == [pytest.approx((Y[:6].max() + Y[6:].max()) / 2)] * 2
    assert model.metrics_names == ["loss", "mae", "largest"]


def test_metrics_of_layers_are_the_models_but_not_those_of_models_inside() -> None:
    class Noting(layers.Layer):
        def __init__(self):
            super().__init__()
            self.mean_input = ab.metrics.Mean(name="mean_input")

        def call(self, inputs):
            self.mean_input.update_state(inputs)
            return inputs

    inner = built(ab.Model)
    model = ab.Sequential([ab.Input((3,)), Noting(), inner])
    model.compile("sgd", "mse")
    logs = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    assert list(logs) == ["loss", "mean_input"]
    assert logs["mean_input"] == pytest.approx(float(X.mean()), rel=1e-5)
    assert model.evaluate(X[:4], Y[:4], verbose=0, return_dict=True)["mean_input"] == pytest.approx(
        float(X[:4].mean()), rel=1e-5
    )


def test_compute_loss_may_lack_the_training_argument_and_keep_its_own_average() -> None:
    class Own(ab.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_tracker = ab.metrics.Mean(name="loss")

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            loss = ab.ops.mean((y_pred - y) ** 2) + ab.ops.sum(self.losses)
            self.loss_tracker.update_state(loss)
            return loss

        def reset_metrics(self):
            self.loss_tracker.reset_state()

        @property
        def metrics(self):
            return [self.loss_tracker]

    model, plain = built(Own, metrics=None), built(ab.Model, metrics=None)
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    found, expected = model.fit(X, Y, **options).history, plain.fit(X, Y, **options).history
    assert list(found) == ["loss"]
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_step_for_jax_is_refused() -> None:
    class Stateless(ab.Model):
        def train_step(self, state, data):
            return {}, state

    with pytest.raises(TypeError, match=r"train_step\(self, state, data\): expected .*train_step\(self, data\)"):
        built(Stateless)


@pytest.mark.parametrize("name", ["zero_grad", "backward"])
def test_a_step_for_pytorch_is_told_what_to_write(name: str) -> None:
    class WithState(ab.Model):
        def train_step(self, data):
            x, y = data
            if name == "zero_grad":
                self.zero_grad()  # pyright: ignore[reportAttributeAccessIssue]
            self.compute_loss(x, y, self(x)).backward()

    with pytest.raises(AttributeError, match=name) as caught:
        built(WithState).fit(X, Y, verbose=0)
    assert any("gradients = ab.gradients(loss, self.trainable_weights)" in note for note in caught.value.__notes__)


def test_a_step_must_return_a_dict() -> None:
    class Silent(ab.Model):
        def train_step(self, data):
            return None

    with pytest.raises(TypeError, match=r"Silent.train_step\(\) must return a dict of the values to log.*got NoneType"):
        built(Silent).fit(X, Y, verbose=0)


def test_an_error_in_a_step_leaves_the_model_usable() -> None:
    class Failing(ab.Model):
        fails = True

        def train_step(self, data):
            if self.fails:
                raise ZeroDivisionError("as asked")
            return super().train_step(data)

    model: Any = built(Failing)
    with pytest.raises(ZeroDivisionError, match="as asked"):
        model.fit(X, Y, verbose=0)
    model.fails = False
    assert list(model.fit(X, Y, verbose=0).history) == ["loss", "mae"]
    assert [type(metric).__name__ for metric in model.metrics] == ["Mean", "MeanAbsoluteError"]


def test_a_model_with_its_own_compile_is_loaded_uncompiled(tmp_path) -> None:
    @ab.saving.register_keras_serializable("test_train_step")
    class TwoRates(ab.Model):
        def compile(self, first, second):
            super().compile(optimizer=first)
            self.second = second

    inputs = ab.Input((3,))
    model = TwoRates(inputs, layers.Dense(2)(inputs))
    model.compile("sgd", "adam")
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="TwoRates has a compile\\(\\) of its own"):
        again = ab.load_model(tmp_path / "model.keras")
    assert not again.compiled
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0))
