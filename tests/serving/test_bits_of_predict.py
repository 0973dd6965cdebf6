"""A servable in a program gives the bits of `predict`, for the first three shapes that both compute."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab


def dense() -> ab.Model:
    layers = ab.layers
    return ab.Sequential([ab.Input((37,)), layers.Dense(65, "relu"), layers.LayerNormalization(), layers.Dense(10)])


def recurrent() -> ab.Model:
    return ab.Sequential([ab.Input((None, 16)), ab.layers.LSTM(24), ab.layers.Dense(3)])


def convolution() -> ab.Model:
    layers = [ab.layers.Conv2D(8, 3, activation="relu"), ab.layers.Flatten(), ab.layers.Dense(4, "softmax")]
    return ab.Sequential([ab.Input((9, 9, 3)), *layers])


def attention() -> ab.Model:
    x = ab.Input((6, 16))
    mixed = x + ab.layers.MultiHeadAttention(2, 8)(x, x)
    return ab.Model(x, ab.layers.Dense(5)(ab.layers.LayerNormalization()(mixed)))


KINDS = [(dense, (37,)), (recurrent, (6, 16)), (convolution, (9, 9, 3)), (attention, (6, 16))]
ROWS = st.integers(1, 300)


@pytest.mark.kernels
@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_a_batch_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[], ab.Model], shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(7).standard_normal((300, *shape)).astype("float32")
    made = make()
    path = tmp_path_factory.mktemp("any")
    made.export(path, verbose=False)

    @settings(max_examples=examples(8, 100))
    @given(st.lists(ROWS, min_size=1, max_size=3, unique=True))
    def check(sizes: list[int]) -> None:
        model, servable = ab.models.clone_model(made), ab.serving.load(path)
        model.set_weights(made.get_weights())
        for rows in [*sizes, *sizes]:
            expected = model.predict(x[:rows], batch_size=rows, verbose=0)
            np.testing.assert_array_equal(servable(x[:rows]), expected)

    check()


@pytest.mark.kernels
@pytest.mark.parametrize(("make", "shape"), KINDS)
@pytest.mark.parametrize(("rows", "batch_size"), [(100, 32), (230, 100)])
def test_the_batches_into_which_predict_splits(
    tmp_path: Path, make: Callable[[], ab.Model], shape: tuple[int, ...], rows: int, batch_size: int
) -> None:
    x = np.random.default_rng(8).standard_normal((rows, *shape)).astype("float32")
    model = make()
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    found = [servable(x[start : start + batch_size]) for start in range(0, rows, batch_size)]
    np.testing.assert_array_equal(np.concatenate(found), model.predict(x, batch_size=batch_size, verbose=0))
