"""Dropout by rates that tensors and variables give in each step, as TensorFlow's keep_prob may be a placeholder."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Tensor
from anabranch.layers import (
    AdditiveAttention,
    AlphaDropout,
    DropoutCell,
    GaussianDropout,
    GaussianNoise,
    LSTMCell,
    MultiHeadAttention,
    SimpleRNNCell,
    SpatialDropout1D,
    ZoneoutCell,
)
from anabranch.layers import Dropout as PlainDropout

N = 4000


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def rate() -> Tensor:
    return ab.placeholder((), "float32", "rate")


def run(fetches: Any, rate: float) -> Any:
    return ab.Session().run(fetches, {"rate:0": rate})


@pytest.mark.parametrize("part", [0.0, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_dropout(rate: Tensor, part: float, dtype: str):
    x = ops.ones((N,), dtype)
    y = ab.random.dropout(x, rate, seed=3)
    found, (slope,) = run([y, ab.gradients(ops.sum(y), [x])], part)
    assert found.dtype == dtype
    assert abs((found == 0).mean() - part) < 0.03
    np.testing.assert_allclose(found[found != 0], 1 / (1 - part) if part < 1 else [], rtol=1e-3)
    np.testing.assert_array_equal(slope, found)


def test_the_rate_has_a_gradient(rate: Tensor):
    x = ops.ones((N,))
    y = ops.sum(ab.random.dropout(x, rate, seed=3))
    (slope,) = ab.gradients(y, [rate])
    for part in (0.5, 1.0):
        found, change = run([y, slope], part)
        np.testing.assert_allclose(change, found / (1 - part) if part < 1 else 0.0, rtol=1e-4)


def test_a_noise_shape(rate: Tensor):
    found = run(ab.random.dropout(ops.ones((50, 7)), rate, noise_shape=(None, 1), seed=3), 0.5)
    assert set(found.min(1)) == set(found.max(1)) == {0.0, 2.0}
    np.testing.assert_array_equal(found.min(1), found.max(1))


def test_a_variable_tells_the_rate():
    part = ab.Variable(0.0, trainable=False, name="part")
    y = ops.mean(ops.equal(ab.random.dropout(ops.ones((N,)), part, seed=3), 0) * 1.0)
    session = ab.Session()
    assert session.run(y) == 0
    session.run(part.assign(0.5))
    assert abs(session.run(y) - 0.5) < 0.03


@pytest.mark.parametrize(("shape", "dtype"), [((2,), "float32"), ((), "int32")])
def test_other_tensors_are_refused(shape: Any, dtype: str):
    given: Any = ab.placeholder(shape, dtype)
    with pytest.raises(ValueError, match="rate must be a number or a floating-point scalar, got"):
        ab.random.dropout(ops.ones((2,)), given)
    with pytest.raises(ValueError, match="Dropout: rate must be a number or a floating-point scalar"):
        PlainDropout(given)


LAYERS: list[Callable[[Any], Any]] = [PlainDropout, SpatialDropout1D, GaussianDropout, AlphaDropout, GaussianNoise]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("part", [0.0, 0.3])
def test_layers_by_a_tensor_have_the_moments_of_those_by_a_number(rate: Tensor, layer: Any, part: float):
    x = np.random.default_rng(0).normal(size=(40, 10, 50)).astype("float32")
    by_tensor, by_number = layer(rate)(x, training=True), layer(part)(x, training=True)
    found, want = run(by_tensor, part), run(by_number, part)
    if part == 0:
        np.testing.assert_allclose(found, x, rtol=1e-6, atol=1e-6)
        return
    assert abs((found == 0).mean() - (want == 0).mean()) < 0.05
    np.testing.assert_allclose([found.mean(), found.std()], [want.mean(), want.std()], atol=0.08)
    np.testing.assert_array_equal(run(layer(rate)(ops.convert_to_tensor(x)), part), x)


def outputs_of(cell: Any) -> Any:
    return ab.layers.RNN(cell)(np.ones((200, 3, 4), "float32"), training=True)


CELLS: list[Callable[[Any], Any]] = [
    lambda rate: SimpleRNNCell(5, dropout=rate, recurrent_dropout=rate, activation=None),
    lambda rate: LSTMCell(5, dropout=rate),
    lambda rate: DropoutCell(LSTMCell(5), input_rate=rate, output_rate=rate, state_rate=rate),
    lambda rate: ZoneoutCell(LSTMCell(5), rate=(rate, 0.1)),
]


@pytest.mark.parametrize("cell", CELLS)
def test_cells(rate: Tensor, cell: Any):
    y = outputs_of(cell(rate))
    same, other = run(y, 0.0), run(y, 0.5)
    assert same.shape == other.shape == (200, 5)
    assert len(np.unique(other.round(5), axis=0)) > 8
    if cell is not CELLS[3]:
        np.testing.assert_allclose(same, np.broadcast_to(same[0], same.shape), rtol=1e-5)


@pytest.mark.parametrize(
    "layer", [lambda rate: AdditiveAttention(dropout=rate), lambda rate: MultiHeadAttention(2, 4, dropout=rate)]
)
def test_attention(rate: Tensor, layer: Any):
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    made = layer(rate)
    y = made([x, x], training=True) if isinstance(made, AdditiveAttention) else made(x, x, training=True)
    plain = made([x, x]) if isinstance(made, AdditiveAttention) else made(x, x)
    same, other, want = run(y, 0.0), run(y, 0.5), run(plain, 0.0)
    np.testing.assert_allclose(same, want, rtol=1e-5, atol=1e-6)
    assert not np.allclose(other, want)
