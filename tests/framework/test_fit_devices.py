"""Models whose layers are on different devices train as on one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of

import anabranch as ab
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.place import PlacementError


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    yield
    ab.config.set_devices()


class On(ab.layers.Layer):
    """A dense layer on a device."""

    def __init__(self, device: str | None, units: int, seed: int) -> None:
        super().__init__()
        self.device = device
        self.dense = ab.layers.Dense(
            units, "tanh", kernel_initializer=ab.initializers.GlorotUniform(seed=seed), bias_initializer="ones"
        )

    def _scope(self) -> Any:
        return contextlib.nullcontext() if self.device is None else ab.device(self.device)

    def build(self, input_shape: Any) -> None:
        with self._scope():
            self.dense.build(input_shape)

    def call(self, inputs: Any) -> Any:
        with self._scope():
            return self.dense(inputs)


def model(devices: tuple[str | None, str | None], optimizer: str) -> Any:
    made = ab.Sequential([On(devices[0], 8, 1), On(devices[1], 3, 2)])
    made.compile(optimizer, loss="mse", metrics=["mae"])
    return made


def data(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, 4)).astype("float32"), generator.uniform(size=(rows, 3)).astype("float32")


def programs(made: Any, kind: str) -> list[Any]:
    return list(made._steps[kind]._programs.values())


@pytest.mark.parametrize("optimizer", first_of(["adam", "sgd"]))
def test_fit_over_two_devices_is_fit_on_one(optimizer: str):
    x, y = data(20)
    found: list[tuple[Any, ...]] = []
    places: list[tuple[str | None, str | None]] = [(None, None), ("cpu:0", "cpu:1")]
    for count, where in enumerate(places, 1):
        ab.config.set_devices(cpu=count)
        made = model(where, optimizer)
        history = made.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, validation_data=(x, y)).history
        assert all(isinstance(p, MachineProgram) == (count == 2) for p in programs(made, "train"))
        result = made.evaluate(x, y, verbose=0)
        found.append((history, result, made.predict(x, verbose=0), [v.numpy() for v in made.trainable_variables]))
    one, two = found
    assert one[0].keys() == two[0].keys()
    for name in one[0]:
        np.testing.assert_allclose(two[0][name], one[0][name], rtol=1e-5)
    np.testing.assert_allclose(two[1], one[1], rtol=1e-5)
    np.testing.assert_allclose(two[2], one[2], rtol=1e-4, atol=1e-6)
    for variable, other in zip(two[3], one[3], strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-4, atol=1e-6)


def test_fit_goes_on_when_more_devices_are_declared():
    ab.config.set_devices(cpu=2)
    x, y = data(16)
    made = model(("cpu:0", "cpu:1"), "sgd")
    made.fit(x, y, batch_size=8, verbose=0)
    (before,) = programs(made, "train")
    ab.config.set_devices(cpu=3)
    made.fit(x, y, batch_size=8, verbose=0)
    (after,) = programs(made, "train")
    assert after is not before
    assert made.get_metrics_result()["loss"] > 0


def test_models_are_refused_in_the_scope_of_a_device_that_is_not_declared() -> None:
    made = model((None, None), "sgd")
    x, y = data(4)
    lstm = ab.layers.LSTM(2)
    expected = [made.predict(x, verbose=0), lstm(x[:, None]).numpy()]
    calls = {
        "A step of a model": [
            lambda: made.fit(x, y, verbose=0), lambda: made.evaluate(x, y, verbose=0),
            lambda: made.predict(x, verbose=0), lambda: made.train_on_batch(x, y),
        ],
        "The call of a layer": [lambda: lstm(x[:, None])],
    }  # fmt: skip
    for asking, refused in calls.items():
        for call in refused:
            with ab.device("gpu:0"), pytest.raises(PlacementError, match=rf"{asking} asks for device '/device:GPU:0'"):
                call()
    with ab.device("cpu:0"):
        np.testing.assert_array_equal(made.predict(x, verbose=0), expected[0])
        np.testing.assert_array_equal(lstm(x[:, None]).numpy(), expected[1])
