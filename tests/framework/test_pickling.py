"""Models through pickle, deepcopy and joblib: they compute and go on training as before."""

import copy
import pickle  # noqa: TID251 - users do
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X.sum(1, keepdims=True) ** 2


def through_pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def through_joblib(model: Any) -> Any:
    joblib = pytest.importorskip("joblib")
    import io

    stream = io.BytesIO()
    joblib.dump(model, stream)
    stream.seek(0)
    return joblib.load(stream)


WAYS = {"pickle": through_pickle, "deepcopy": copy.deepcopy, "joblib": through_joblib}


class Doubling(layers.Layer):
    """Not registered."""

    def call(self, x: Any) -> Any:
        return 2 * x


class Net(ab.Model):
    """Not registered."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.hidden = layers.Dense(units, activation="tanh")
        self.head = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))


def huber_like(y_true: Any, y_pred: Any) -> Any:
    return ab.ops.mean(ab.ops.sqrt(1.0 + (y_true - y_pred) ** 2), axis=-1)


def sequential() -> Any:
    return ab.Sequential([ab.Input((4,)), layers.Dense(3, activation="relu"), Doubling(), layers.Dense(1)])


def functional() -> Any:
    x = ab.Input((4,))
    return ab.Model(x, layers.Dense(1)(layers.BatchNormalization()(x) * 2.0))


MAKERS: dict[str, Callable[[], Any]] = {"sequential": sequential, "functional": functional, "subclass": lambda: Net(5)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_compiled_model_goes_on_as_it_would(maker: str, way: str) -> None:
    model = MAKERS[maker]()
    model.compile("adam", loss=huber_like, metrics=["mae"])
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    again = WAYS[way](model)
    assert type(again) is type(model)
    np.testing.assert_array_equal(model.predict(X, verbose=0), again.predict(X, verbose=0))
    for one in (model, again):
        one.fit(X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    for mine, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    again.layers[-1].set_weights([0 * w for w in again.layers[-1].get_weights()])
    assert np.any(model.layers[-1].get_weights()[0])  # nothing is shared


def test_models_in_containers_stay_one(tmp_path: Path) -> None:
    model = sequential()
    model.compile("sgd", "mse")
    first, second = copy.deepcopy([model, model])
    assert first is second
    assert first is not model


def test_a_deep_copy_shares_functions_that_nobody_can_pickle() -> None:
    def local(y_true: Any, y_pred: Any) -> Any:
        return ab.ops.mean(ab.ops.abs(y_true - y_pred), axis=-1)

    model = ab.Sequential([ab.Input((4,)), layers.Lambda(lambda x: x * 3.0), layers.Dense(1)])
    model.compile("sgd", loss=local)
    again = copy.deepcopy(model)
    assert again.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)


def test_functions_of_one_name_stay_apart() -> None:
    def make(factor: float) -> Any:
        def scaled(x: Any) -> Any:
            return x * factor

        return scaled

    model = ab.Sequential([ab.Input((4,)), layers.Activation(make(2.0)), layers.Activation(make(5.0))])
    np.testing.assert_array_equal(copy.deepcopy(model).predict(X, verbose=0), model.predict(X, verbose=0))


def test_other_models_are_not_part_of_a_pickle() -> None:
    model = functional()
    model.compile("adam", "mse")
    before = len(pickle.dumps(model))
    other = ab.Input((4,))
    ab.Model(other, layers.Dense(100_000)(other)).compile("adam", "mse")
    assert len(pickle.dumps(model)) < before + 1000


def test_a_shallow_copy_shares_the_weights() -> None:
    model = sequential()
    model.compile("sgd", "mse")
    assert copy.copy(model).layers[0].kernel is model.layers[0].kernel


LOADING = (
    "import sys; from anabranch.framework.saving.api import load_model; print(load_model(sys.argv[1]).optimizer.name)"
)


def test_a_process_that_imported_nothing_else_loads_a_model(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((4,)), layers.Dense(1)])
    model.compile("adam", loss=ab.losses.Huber(), metrics=[ab.metrics.AUC()])
    model.save(tmp_path / "model.keras")
    program = [sys.executable, "-c", LOADING, str(tmp_path / "model.keras")]
    assert subprocess.run(program, capture_output=True, text=True, timeout=120).stdout.split() == [model.optimizer.name]


PROGRAM = """
import pickle, sys
import numpy as np
model = pickle.load(open(sys.argv[1], "rb"))
print(float(model.predict(np.ones((1, 4), "float32"), verbose=0)[0, 0]), model.optimizer.name)
"""

MODULE = """
import anabranch as ab
class Tripling(ab.layers.Layer):
    def call(self, x):
        return 3 * x
"""


def test_another_process_imports_what_the_pickle_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import module_of_mine  # pyright: ignore[reportMissingImports]

    model = ab.Sequential([ab.Input((4,)), module_of_mine.Tripling(), layers.Dense(1)])
    model.compile("adam", "mse")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.pickle")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    value, name = result.stdout.split()
    np.testing.assert_allclose(float(value), model.predict(np.ones((1, 4), "float32"), verbose=0)[0, 0], rtol=1e-6)
    assert name == model.optimizer.name


def test_public_modules_travel_by_name():
    """As functions that refer to them travel by cloudpickle: those that nobody has looked into yet, too."""
    script = (
        "import pickle, sys, anabranch as ab\n"
        "found = sys.modules['anabranch.optimizers']\n"
        "assert type(found).__name__ == '_LazyModule'\n"
        "again = pickle.loads(pickle.dumps(found))\n"
        "assert again.Adam is ab.optimizers.Adam\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
