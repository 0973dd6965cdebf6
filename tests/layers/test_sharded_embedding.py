"""`ops.embedding_lookup` and `ShardedEmbedding`: rows of NumPy's table, and updates of these rows alone."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import layers, ops

STRATEGIES = ["mod", "div"]


def cut(table: Any, count: int, strategy: str) -> list[Any]:
    """The shards of a table."""
    return [table[k::count] for k in range(count)] if strategy == "mod" else np.array_split(table, count)


def table_of(layer: Any) -> Any:
    """The whole table of a layer, from its shards."""
    shards = layer.get_weights()
    if layer.partition == "div":
        return np.concatenate(shards)
    table = np.empty((layer.input_dim, layer.output_dim), shards[0].dtype)
    for number, shard in enumerate(shards):
        table[number :: len(shards)] = shard
    return table


def lookup(shards: Any, ids: Any, **options: Any) -> Any:
    return ab.Session().run(ops.embedding_lookup(shards, ids, **options))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    rows=st.integers(1, 9),
    count=st.integers(1, 9),
    row=st.lists(st.integers(0, 3), max_size=2),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(["int32", "int64", "uint8"]),
)
@settings(max_examples=examples(6, 25), deadline=None)
def test_rows_are_those_of_the_whole_table(
    strategy: str, rows: int, count: int, row: list[int], shape: list[int], dtype: str
) -> None:
    rng = np.random.default_rng(0)
    table, ids = rng.normal(size=(rows, *row)), rng.integers(0, rows, shape).astype(dtype)
    found = lookup(cut(table, min(count, rows), strategy), ids, partition_strategy=strategy)
    np.testing.assert_array_equal(found, table[ids])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shapes_that_are_not_known(strategy: str) -> None:
    table = np.random.default_rng(0).normal(size=(10, 3))
    with ab.Graph().as_default():
        ids = ab.placeholder((None, None), "int32")
        found = ops.embedding_lookup(cut(table, 3, strategy), ids, strategy)
        assert found.shape == (None, None, 3)
        session = ab.Session()
        for value in (np.array([[1, 9], [9, 0]]), np.zeros((0, 2), int), np.zeros((2, 0), int)):
            np.testing.assert_array_equal(session.run(found, {ids: value}), table[value])


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_at_most_a_norm(count: int) -> None:
    table = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    found = lookup(cut(table, count, "mod"), [[0, 1], [2, 0]], max_norm=1.0)
    np.testing.assert_allclose(found, [[[0.6, 0.8], [0.3, 0.4]], [[0, 0], [0.6, 0.8]]], rtol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_gradients_against_finite_differences(strategy: str, max_norm: Any) -> None:
    shards = cut(np.random.default_rng(0).normal(size=(5, 2)), 2, strategy)

    def square(*tables: Any) -> Any:
        rows = ops.embedding_lookup(list(tables), [[0, 4, 4], [3, 0, 1]], strategy, max_norm)
        return ops.sum(rows * rows * np.arange(12.0).reshape(2, 3, 2))

    assert ab.testing.check_gradients(square, shards, order=2) > 0


def test_ids_outside_of_the_table() -> None:
    table = np.zeros((7, 1))
    for strategy in STRATEGIES:
        for wrong in (-1, 7, 100):
            with pytest.raises(IndexError, match="out of bounds"):
                lookup(cut(table, 3, strategy), [0, wrong], partition_strategy=strategy)


def test_wrong_arguments_of_lookups() -> None:
    table = np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"a list of at least one shard, got an empty list"):
        ops.embedding_lookup([], [1])
    with pytest.raises(ValueError, match="partition_strategy must be 'mod' or 'div', got 'hash'"):
        ops.embedding_lookup([table, table], [1], "hash")
    with pytest.raises(ValueError, match=r"2 shards of a table of 5 rows must have \[3, 2\] rows, got \[1, 4\]"):
        ops.embedding_lookup([table[:1], table], [1])
    with pytest.raises(TypeError, match="embedding_lookup: indices must be integers"):
        ops.embedding_lookup(table, [1.0])
    with pytest.raises(ValueError, match=r"max_norm must be positive, or None for any norm, got 0"):
        ops.embedding_lookup(table, [1], max_norm=0)


@pytest.mark.parametrize("partition", STRATEGIES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_layer_gives_the_rows(partition: str, count: int) -> None:
    layer = layers.ShardedEmbedding(17, 3, count, partition)
    ids = np.random.default_rng(0).integers(0, 17, (4, 6))
    rows = layer(ids)
    np.testing.assert_array_equal(rows, table_of(layer)[ids])
    assert len(layer.weights) == count
    np.testing.assert_array_equal(layer(ids.astype("float32")), rows)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
@pytest.mark.parametrize("partition", STRATEGIES)
def test_training_is_that_of_an_embedding(partition: str, optimizer: str) -> None:
    sharded, whole = layers.ShardedEmbedding(11, 3, 4, partition), layers.Embedding(11, 3)
    for layer in (sharded, whole):
        layer.build((None,))
    whole.set_weights([table_of(sharded)])
    rng = np.random.default_rng(0)
    batches = rng.integers(0, 11, (5, 6))
    for layer in (sharded, whole):
        with ab.Graph().as_default():
            ids = ab.placeholder((6,), "int32")
            loss = ops.sum(ops.square(layer(ids) - 1.0))
            step = getattr(ab.optim, optimizer)(0.1).minimize(loss, layer.trainable_weights)
            session = ab.Session()
            for batch in batches:
                session.run(step, {ids: batch})
    np.testing.assert_allclose(table_of(sharded), whole.get_weights()[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("partition", STRATEGIES)
def test_no_dense_gradient_is_made_and_other_rows_stay(partition: str) -> None:
    layer = layers.ShardedEmbedding(103, 7, 3, partition)
    optimizer = ab.optim.Adagrad(0.1)
    with ab.Graph().as_default() as graph:
        ids = ab.placeholder((None, 2), "int32")
        loss = ops.sum(ops.square(layer(ids)))
        gradients = ab.gradients(loss, layer.trainable_weights)
        step = optimizer.apply(gradients, layer.trainable_weights)
        session = ab.Session()
        before = table_of(layer)
        session.run(step, {ids: [[5, 40], [77, 40]]})
    assert all(isinstance(gradient, ab.IndexedSlices) for gradient in gradients)
    wide = [op for op in graph.operations for out in op.outputs if out.shape in [(35, 7), (34, 7)]]
    assert {op.type for op in wide} == {"read_variable", "assign_rows"}  # a table is read, and rows of it are written
    touched = np.isin(np.arange(103), [5, 40, 77])
    assert (np.abs(table_of(layer) - before).max(axis=1) > 0).tolist() == touched.tolist()
    slots = [variable.numpy() for variable in optimizer.variables if variable.shape in [(35, 7), (34, 7)]]
    assert len(slots) == 3
    assert sum(int((slot != np.float32(0.1)).any(axis=1).sum()) for slot in slots) == 3


def test_masks() -> None:
    ids = ab.Input((None,), dtype="int32")
    masked = layers.LSTM(3)(layers.ShardedEmbedding(9, 4, 2, mask_zero=True)(ids))
    model = ab.Model(ids, masked)
    np.testing.assert_allclose(model(np.array([[1, 2, 0, 0]])), model(np.array([[1, 2]])), rtol=1e-6)
    assert layers.ShardedEmbedding(9, 4, 2).compute_mask(ids) is None


def test_saved_and_loaded(tmp_path: Any) -> None:
    layer = layers.ShardedEmbedding(
        9, 4, 2, "div", embeddings_initializer="normal", embeddings_regularizer="l2", embeddings_constraint="max_norm"
    )
    model = ab.Sequential([ab.Input((3,), dtype="int32"), layer])
    ids = np.array([[0, 8, 5]])
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    assert loaded.layers[-1].get_config() == layer.get_config()
    assert len(model.losses) == 2  # a penalty for each shard


def test_half_precision() -> None:
    layer = layers.ShardedEmbedding(9, 4, 2, dtype="mixed_float16")
    assert layer([1, 2]).dtype == "float16"
    assert {weight.dtype.name for weight in layer.weights} == {"float32"}


def test_shards_on_devices() -> None:
    """Rows are gathered where their shard is, and the numbers are those of one device."""
    ab.config.set_devices(sim=2)
    try:
        layer = layers.ShardedEmbedding(9, 4, 2, devices=["sim:0", "sim:1"])
        with ab.Graph().as_default() as graph:
            ids = ab.placeholder((None,), "int32")
            rows = layer(ids)
            gradients = ab.gradients(ops.sum(rows * rows), layer.weights)
            found, first = ab.Session().run([rows, gradients[0]], {ids: [3, 8, 0]})
        assert [weight.device for weight in layer.weights] == ["/device:SIM:0", "/device:SIM:1"]
        gathers = [op.device for op in graph.operations if op.type == "take" and op.outputs[0].shape == (None, 4)]
        assert gathers[:2] == ["/device:SIM:0", "/device:SIM:1"]
        np.testing.assert_array_equal(found, table_of(layer)[[3, 8, 0]])
        assert first.indices.tolist() == [4, 0]
    finally:
        ab.config.set_devices()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_dim": 0}, "input_dim must be a positive integer, got input_dim=0"),
        ({"output_dim": 1.5}, "output_dim must be a positive integer, got output_dim=1.5"),
        ({"num_shards": 0}, "num_shards must be a positive integer, got num_shards=0"),
        ({"num_shards": 6}, "num_shards must be at most input_dim=5, or shards are empty; got num_shards=6"),
        ({"partition": "hash"}, "partition must be 'mod' or 'div', got 'hash'"),
        ({"devices": ["cpu:0"]}, "devices must name one for each of num_shards=2, got 1"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers.ShardedEmbedding(**cast(Any, {"input_dim": 5, "output_dim": 2, "num_shards": 2, **arguments}))


def test_hashing_in_front_takes_any_id() -> None:
    words = layers.Hashing(50)(np.array(["never", "seen", "never"]))
    rows = layers.ShardedEmbedding(50, 3, 4)(words)
    np.testing.assert_array_equal(rows[0], rows[2])
    assert (rows[0] != rows[1]).any()
