"""Ops on placeholders of unknown rank give what they give where the rank is known, with gradients, as in TensorFlow."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Tensor


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def computed(function: Callable[..., Tensor], values: list[Any], shapes: list[Any]) -> list[Any]:
    """The result and the gradients of a weighted sum of it, of inputs whose shapes are known that far."""
    inputs = [ab.placeholder(shape, value.dtype) for value, shape in zip(values, shapes, strict=True)]
    y = function(*inputs)
    sources = [x for x in inputs if x.dtype.kind == "f"]
    slopes = ab.gradients(ops.sum(y * y), sources)
    found = ab.Session().run([y, *slopes], dict(zip(inputs, values, strict=True)))
    return [np.asarray(value) for value in found]


def check(function: Callable[..., Tensor], *values: Any, rounding: float = 0.0) -> None:
    """All combinations of known and unknown ranks give the same, within `rounding` where sums are taken."""
    want = computed(function, list(values), [value.shape for value in values])
    for known in range(2 ** len(values) - 1):
        shapes = [value.shape if known >> position & 1 else None for position, value in enumerate(values)]
        found = computed(function, list(values), shapes)
        for got, expected in zip(found, want, strict=True):
            if rounding:
                np.testing.assert_allclose(got, expected, rounding, rounding, strict=True)
            else:
                np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("repeats", [[2], [2, 3], [1, 1], [0, 2], [2, 1, 3]])
def test_tile(shape: tuple[int, ...], repeats: list[int]):
    x = numbers(*shape)
    counts = np.array(repeats, "int32")
    check(ops.tile, x, counts)
    check(lambda value: ops.tile(value, repeats), x)
    check(lambda value, many: ops.tile(value, [many, *repeats]), x, np.int32(2))
    y, _ = computed(ops.tile, [x, counts], [shape, (None,)])
    np.testing.assert_array_equal(y, np.tile(x, repeats), strict=True)


def test_tile_of_a_scalar():
    x = ab.placeholder(None, "float32")
    assert ab.Session().run(ops.tile(x, 3), {x: 2.0}).tolist() == [2, 2, 2]
    assert ab.Session().run(ops.tile(x, ab.placeholder(None, "int64", "many")), {x: 2.0, "many:0": 2}).tolist() == [
        2,
        2,
    ]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("row", [(), (2,)])
def test_dynamic_stitch(rank: int, row: tuple[int, ...]):
    places = [np.array([[2, 0], [5, 1]], "int32"), np.array([[4, 3], [0, 6]], "int32")]
    places = [place if rank == 2 else place[0] if rank else place[0, 0] for place in places]
    data = [numbers(*place.shape, *row) for place in places]
    check(lambda i, j, a, b: ops.dynamic_stitch([i, j], [a, b]), *places, *data)


def test_dynamic_stitch_of_what_does_not_fit():
    places, data = ab.placeholder(None, "int32"), ab.placeholder(None, "float32")
    y = ops.dynamic_stitch([places], [data])
    for shape in ((3, 2), (6,), (2, 2)):
        with pytest.raises(ValueError, match="the shape of the data must begin with that of the indices"):
            ab.Session().run(y, {places: np.arange(6).reshape(2, 3), data: np.zeros(shape)})


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("ids", [3, [3, 0, 4, 3], [[3, 0], [4, 1]]])
@pytest.mark.parametrize("row", [(2,), (2, 2)])
def test_embedding_lookup(ids: Any, strategy: str, max_norm: float | None, row: tuple[int, ...]):
    def whole(table: Tensor, ids: Tensor) -> Tensor:
        return ops.embedding_lookup(table, ids, strategy, max_norm)

    def in_shards(first: Tensor, second: Tensor, ids: Tensor) -> Tensor:
        return ops.embedding_lookup([first, second], ids, strategy, max_norm)

    places, rounding = (
        np.array(ids, "int32"),
        0.0 if max_norm is None else 1e-6,
    )  # vectors of another width add otherwise
    check(whole, numbers(5, *row), places, rounding=rounding)
    check(in_shards, numbers(3, *row), numbers(2, *row), places, rounding=rounding)


def test_embedding_lookup_in_scalars_is_refused():
    with pytest.raises(ValueError, match="each shard must be a table with an axis of rows, got a scalar"):
        ops.embedding_lookup([ab.constant(1.0), ab.constant(2.0)], [0])


# --- dynamic_rnn ----------------------------------------------------------------------------------------------------


def lengths_and_outputs(shape: Any) -> tuple[Tensor, Tensor, Any]:
    ones: Any = {"kernel_initializer": "ones", "recurrent_initializer": "ones"}
    cell = ab.layers.SimpleRNNCell(1, activation=None, **ones)
    lengths, x = ab.placeholder(shape, "int64", "lengths"), ab.placeholder((None, 3, 1), "float32", "x")
    return lengths, x, ab.dynamic_rnn(cell, x, sequence_length=lengths)


def test_dynamic_rnn_with_lengths_of_unknown_rank():
    lengths, x, (outputs, (state,)) = lengths_and_outputs(None)
    feeds = {lengths: [3, 2], x: np.arange(1, 7).reshape(2, 3, 1)}
    found = ab.Session().run([outputs, state], feeds)
    assert [value.tolist() for value in found] == [[[[1], [3], [6]], [[4], [9], [0]]], [[6], [9]]]
    assert outputs.shape == (None, 3, 1)


@pytest.mark.parametrize("given", [3, [3], [[3, 2]], [3, 2, 1]])
def test_dynamic_rnn_with_lengths_that_do_not_fit(given: Any):
    """TensorFlow asserts the same when the graph runs."""
    lengths, x, (outputs, _) = lengths_and_outputs(None)
    with pytest.raises(
        ValueError, match=r"sequence_length must have (the shape \(batch,\)|an entry for each row)|Shapes \[3,3,1\] and"
    ):
        ab.Session().run(outputs, {lengths: given, x: np.zeros((2, 3, 1))})
