"""Arrays out of files and pickles, whose dtypes are equal to NumPy's own objects but not the same ones."""

from __future__ import annotations

import pickle  # noqa: TID251 - users pickle models and data
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.codegen.host.refits import refits
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.common.dtypes import with_own_dtype

pytestmark = pytest.mark.skipif(not library.usable, reason="counts calls of kernels")


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _dense() -> Any:
    return ab.Sequential([ab.Input((6,)), layers.Dense(40, "relu"), layers.BatchNormalization(), layers.Dense(3)])


def _embedded() -> Any:
    return ab.Sequential(
        [ab.Input((6,), dtype="int32"), layers.Embedding(50, 8), layers.LSTM(8), layers.Dense(3, "tanh")]
    )


def _data(model: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    is_text = model.input_shape == (None, 6) and isinstance(model.layers[0], layers.Embedding)
    x = rng.integers(0, 50, (8, 6)).astype("int32") if is_text else rng.normal(size=(8, 6)).astype("float32")
    return x, rng.normal(size=(8, 3)).astype("float32")


def _loaded(model: Any, folder: Path) -> Any:
    model.save(folder / "model.keras")
    return ab.load_model(folder / "model.keras")


def _with_weights(model: Any, folder: Path) -> Any:
    model.save_weights(folder / "model.weights.h5")
    model.load_weights(folder / "model.weights.h5")
    return model


def _set(model: Any, folder: Path) -> Any:
    model.set_weights(_pickled(model.get_weights()))
    return model


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "model": _loaded,
    "weights": _with_weights,
    "set_weights": _set,
    "pickled": lambda model, folder: _pickled(model),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [_dense, _embedded])
def test_kernels_take_the_weights_of_a_model_from_a_file_as_they_are(
    build: Callable[[], Any], way: str, tmp_path: Path
) -> None:
    """They copied them in each step, and a product that they refused was NumPy's, with other bits."""
    model = build()
    model.compile("adam", "mse")
    x, y = _data(model)
    model.train_on_batch(x, y)
    before = [model.predict_on_batch(x), refits.count]
    model.predict_on_batch(x)
    own = refits.count - before[1]
    found = WAYS[way](model, tmp_path)
    np.testing.assert_array_equal(found.predict_on_batch(x), before[0])
    first = refits.count
    np.testing.assert_array_equal(found.predict_on_batch(_pickled(x)), before[0])
    assert refits.count - first <= own
    found.train_on_batch(_pickled(x), _pickled(y))
    first = refits.count
    found.train_on_batch(_pickled(x), _pickled(y))
    after = refits.count
    fresh = build()
    fresh.compile("adam", "mse")
    fresh.train_on_batch(x, y)
    usual = refits.count
    fresh.train_on_batch(x, y)
    assert after - first <= refits.count - usual
    variables = [*found.variables, *found.optimizer.variables]
    assert all(value.dtype is np.dtype(value.dtype.name) for value in (each._value for each in variables))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64"])
def test_arrays_get_the_dtype_that_is_numpys_own(dtype: str) -> None:
    array = _pickled(np.ones((2, 3), dtype))
    assert array.dtype is not np.dtype(dtype)
    for found in (with_own_dtype(array), ab.constant(array).numpy(), ab.Variable(array).numpy()):
        assert found.dtype is np.dtype(dtype)
        np.testing.assert_array_equal(found, array)
    assert np.shares_memory(with_own_dtype(array), array)


@pytest.mark.parametrize("value", [np.ones(3, ">f4"), np.array(["a", "b"]), np.zeros(2, [("a", "f4")]), "a", 1.0])
def test_other_values_stay(value: Any) -> None:
    assert with_own_dtype(value) is value
