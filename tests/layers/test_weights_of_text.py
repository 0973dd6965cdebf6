"""Weights of text: of rank 0 they are arrays, for Python's ``str`` has neither a dtype nor a shape."""

from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers

STRING: Any = np.dtypes.StringDType()


class Titled(layers.Layer):
    """Return the input. The layer has a title."""

    def build(self, input_shape: Any) -> None:
        self.title = self.add_weight(shape=(), dtype="string", initializer=first_title, trainable=False, name="title")

    def call(self, x: Any) -> Any:
        return x * 1.0


def first_title(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    return np.array("first", STRING)


def titled_model() -> ab.Model:
    model = ab.Sequential([ab.Input((3,)), Titled(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def title_of(model: ab.Model) -> np.ndarray[Any, Any]:
    return model.layers[0].title.numpy()


def test_a_single_text_is_set_as_a_weight():
    model = titled_model()
    weights = model.get_weights()
    weights[0] = np.array("second", STRING)
    model.set_weights(weights)
    assert (title_of(model).shape, str(title_of(model))) == ((), "second")
    assert str(model.get_weights()[0]) == "second"


def test_a_single_text_comes_back_from_a_backup(tmp_path: Path):
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    model, again = titled_model(), titled_model()
    model.layers[0].title.assign("second")
    model.fit(x, y, verbose=0, callbacks=[ab.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)])
    again.fit(x, y, epochs=2, verbose=0, callbacks=[ab.callbacks.BackupAndRestore(tmp_path / "backup")])
    assert (title_of(again).shape, str(title_of(again))) == ((), "second")
