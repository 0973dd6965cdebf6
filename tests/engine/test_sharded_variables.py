"""Variables in shards: values, rows, gradients and updates are those of one variable; shards begin as it would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.distribute import FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, ShardedVariable
from anabranch.engine.common.partitioners import partitioning
from anabranch.engine.graph.state.sharded import (
    Rows,
    block_of,
    grouped,
    layout_of_grid,
    regions_of_grid,
    rows_of_shards,
)
from anabranch.engine.objects.initializers import first_value
from anabranch.engine.ops.random.draws import described_draw
from anabranch.engine.saving import describe_for_tasks

LAYOUTS = ["div", "mod"]


def sharded(table: Any, count: int, layout: str = "div", **options: Any) -> ShardedVariable:
    """A variable in shards of either layout."""
    if layout == "div":
        return ShardedVariable(table, FixedShardsPartitioner(count), **options)
    rows = rows_of_shards(len(table), count, "mod")
    return ShardedVariable.of([ab.Variable(table[each.slice]) for each in rows], "mod", "table", "table")


tables = st.builds(
    lambda rows, row, dtype: np.random.default_rng(rows).normal(size=(rows, *row)).astype(dtype),
    st.integers(1, 9),
    st.lists(st.integers(0, 3), max_size=2),
    st.sampled_from(["float32", "float64"]),
)


@given(table=tables, count=st.integers(1, 4), layout=st.sampled_from(LAYOUTS), data=st.data())
@settings(max_examples=examples(5, 20), deadline=None)
def test_it_is_the_variable_that_is_not_cut(table: Any, count: int, layout: str, data: Any) -> None:
    v = sharded(table, min(count, len(table)), layout)
    assert (v.shape, v.dtype, v.ndim, v.size, len(v)) == (table.shape, table.dtype, table.ndim, table.size, len(table))
    for found in (v.numpy(), v.value, np.asarray(v), ops.convert_to_tensor(v), v[:], ab.Session().run(v + 0)):
        np.testing.assert_array_equal(found, table)
    ids = np.array(data.draw(st.lists(st.integers(-len(table), len(table) - 1), max_size=6)), "int32")
    np.testing.assert_array_equal(ops.take(v, ids, axis=0), table[ids])
    np.testing.assert_array_equal(ops.gather(v, ids % len(table)), table[ids])
    np.testing.assert_array_equal(ops.embedding_lookup(v, ids % len(table)), table[ids])
    v.assign(table + 1)
    v.assign_sub(table)
    np.testing.assert_array_equal(v.numpy(), table + 1 - table)
    values = data.draw(st.integers(0, 9)) + np.arange(ids.size * table[0].size).reshape(ids.size, *table.shape[1:])
    expected = table + 1 - table
    np.add.at(expected, ids, values.astype(table.dtype))
    v.scatter_add(ab.IndexedSlices(values.astype(table.dtype), ids, np.array(table.shape)))
    np.testing.assert_allclose(v.numpy(), expected, 1e-6)


def in_grid(table: Any, counts: tuple[int, ...]) -> ShardedVariable:
    parts = [ab.Variable(block_of(table, region)) for region in regions_of_grid(table.shape, counts)]
    return ShardedVariable.of(parts, layout_of_grid(counts), "table", "table")


@pytest.mark.parametrize("counts", [(1, 2), (3, 2), (1, 4), (2, 1)])
def test_parts_along_any_axes_are_the_variable_that_is_not_cut(counts: Any, tmp_path: Path) -> None:
    """Values, rows, updates, gradients by rows or dense, and checkpoints, which other parts read."""
    table, ids = np.random.default_rng(0).normal(size=(6, 4)), np.array([[5, 0], [0, -6]])
    v, whole = in_grid(table, counts), ab.Variable(table)
    slices = ab.IndexedSlices(np.arange(8.0).reshape(2, 4), np.array([4, 4]), np.array([6, 4]))
    optimizers = [ab.optim.Adam(0.1), ab.optim.Adam(0.1)]
    for each in (v, whole):
        each.assign_add(np.ones((6, 4)))
        each.scatter_add(slices)
    for each, optimizer in zip((v, whole), optimizers, strict=True):
        for weight in (0.0, 1.0):  # by rows alone, then dense
            with ab.GradientTape() as tape:
                loss = ops.sum(ops.sin(ops.take(each, ids, axis=0)))
                loss = loss + weight * ops.sum(ops.square(ops.convert_to_tensor(each))) if weight else loss
            optimizer.apply([tape.gradient(loss, each)], [each])
    np.testing.assert_allclose(v.numpy(), whole.numpy(), 1e-12)
    for found in (v.value, ops.embedding_lookup(v, np.arange(6)), ops.gather(v, np.arange(6)), v[:]):
        np.testing.assert_array_equal(found, v.numpy())
    with pytest.raises(IndexError, match="out of bounds"):
        ops.take(v, [6], axis=0)
    with ab.distribute.CheckpointManager(tmp_path, [v]) as manager:
        manager.save(1)
    zeros = np.zeros((6, 4))
    for other in (in_grid(zeros, (3, 1)), in_grid(zeros, (2, 2)), ab.Variable(zeros, name="table")):
        with ab.distribute.CheckpointManager(tmp_path, [other]) as manager:
            assert manager.restore() == 1
        np.testing.assert_array_equal(other.numpy(), v.numpy())


def test_parts_along_any_axes_begin_as_the_whole_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Initializers of the library draw some rows at a time, of which a part keeps its columns."""
    monkeypatch.setattr("anabranch.engine.graph.state.sharded._BLOCK_NUMBERS", 10)
    whole = first_value(ab.initializers.GlorotUniform(seed=1), (6, 4), "float32")
    expected = np.asarray(whole.at(Rows(0, 6)).compute())
    for region in regions_of_grid((6, 4), (2, 2)):
        np.testing.assert_array_equal(block_of(whole, region), expected[region])
    with pytest.raises(ValueError, match=r"'table' is cut into 1 x 2 parts, not by rows alone"):
        in_grid(expected, (1, 2)).rows  # noqa: B018


@pytest.mark.parametrize("wrong", [5, -6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_are_not_there(wrong: int, layout: str) -> None:
    v = sharded(np.zeros((5, 2)), 2, layout)
    with pytest.raises(IndexError, match="out of bounds"):
        ops.take(v, [0, wrong], axis=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("eager", [True, False])
def test_gradients_are_those_of_the_whole(layout: str, eager: bool) -> None:
    table = np.random.default_rng(0).normal(size=(7, 3))
    ids = np.array([6, 0, 0, 3])

    def loss(v: Any) -> Any:
        return ops.sum(ops.square(ops.take(v, ids, axis=0))) + ops.sum(ops.tanh(v) * np.arange(3.0))

    def gradient(v: Any) -> Any:
        if eager:
            with ab.GradientTape() as tape:
                y = loss(v)
            return tape.gradient(y, v)
        with ab.Graph().as_default():
            (found,) = ab.gradients(loss(v), [v])
            return ab.Session().run(found)

    v = sharded(table, 3, layout)
    parts = gradient(v)
    assert [part.shape for part in parts] == [shard.shape for shard in v.shards]
    whole = gradient(ab.Variable(table))
    for part, rows in zip(parts, v.rows, strict=True):
        np.testing.assert_allclose(part, np.asarray(whole)[rows.slice], 1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_rows_are_slices_of_the_shards(layout: str) -> None:
    v = sharded(np.zeros((1000, 2)), 3, layout)
    with ab.Graph().as_default():
        (found,) = ab.gradients(ops.sum(ops.take(v, [1, 5, 999], axis=0)), [v])
        assert all(isinstance(part, ab.IndexedSlices) for part in found)
        rows = ab.Session().run([part.indices for part in found])
    assert sum(map(len, rows)) == 3


OPTIMIZERS: list[Any] = [
    lambda: ab.optim.SGD(0.1, momentum=0.9),
    lambda: ab.optim.Adam(0.1, clipnorm=0.2),
    lambda: ab.optim.Adagrad(0.1),
    lambda: ab.optim.AdamW(0.1, weight_decay=0.1),
    lambda: ab.optim.Lamb(0.1, weight_decay=0.1),
    lambda: ab.optim.Adafactor(0.1, use_ema=True),
    lambda: ab.optim.Muon(0.1, clipnorm=0.2),
    lambda: ab.optim.Selective(ab.optim.Muon(0.1), least_norm=0.01),
    lambda: ab.optim.Selective(ab.optim.Lamb(0.1), least_norm=0.01, per_variable=True),
    lambda: ab.optim.Frozen(ab.optim.Adafactor(0.1), {"variable": (1, 2)}),
    lambda: ab.optim.Adam(0.1, global_clipnorm=0.2, use_ema=True, gradient_accumulation_steps=2),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("eager", [True, False])
def test_optimizers_update_it_as_one_variable(make: Any, layout: str, eager: bool) -> None:
    table = np.random.default_rng(0).normal(size=(7, 3))
    results: list[Any] = []
    for v in (ab.Variable(table), sharded(table, 3, layout)):
        bias, optimizer = ab.Variable([0.5, 0.5, 0.5], dtype="float64"), make()

        def loss(v: Any = v, bias: Any = bias) -> Any:
            return ops.sum(ops.square(ops.take(v, [6, 0, 0, 3], axis=0) + bias))

        if eager:
            for _ in range(3):
                with ab.GradientTape() as tape:
                    y = loss()
                optimizer.apply(tape.gradient(y, [v, bias]), [v, bias])
        else:
            with ab.Graph().as_default():
                step = optimizer.minimize(loss(), [v, bias])
                run = ab.Session().make_callable(step)
            for _ in range(3):
                run()
        results.append([v.numpy(), bias.numpy(), *[each.numpy() for each in optimizer.saved_variables]])
    assert len(results[0]) == len(results[1])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-12)


def test_optimizers_take_gradients_of_the_whole() -> None:
    for gradient in (np.ones((5, 2), "float32"), [np.ones((3, 2), "float32"), np.ones((2, 2), "float32")]):
        v = sharded(np.zeros((5, 2), "float32"), 2)
        ab.optim.SGD(1.0).apply([gradient], [v])
        np.testing.assert_array_equal(v.numpy(), -np.ones((5, 2)))
    v = sharded(np.zeros((5, 2), "float32"), 2)
    slices = ab.IndexedSlices(np.ones((2, 2), "float32"), np.array([4, -5]), np.array([5, 2]))
    ab.optim.SGD(1.0).apply([slices], [v])
    np.testing.assert_array_equal(v.numpy()[:, 0], [-1, 0, 0, 0, -1])
    with pytest.raises(ValueError, match="3 gradients were given for the 2 shards of"):
        ab.optim.SGD(1.0).apply([[ops.ones((3, 2))] * 3], [v])


# --- first values ---------------------------------------------------------------------------------------------------

INITIALIZERS: list[Any] = ["zeros", "ones", "uniform", "normal", "truncated_normal", "he_uniform", "glorot_normal"]


@given(
    name=st.sampled_from(INITIALIZERS),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    count=st.integers(1, 4),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
)
@settings(max_examples=examples(10, 40), deadline=None)
def test_shards_begin_as_the_whole_would(name: str, shape: Any, count: int, layout: str, dtype: str) -> None:
    ab.utils.set_random_seed(5)
    whole = ab.initializers.get(name)(shape, dtype=dtype).numpy()
    ab.utils.set_random_seed(5)
    draw = first_value(name, shape, dtype)
    for rows in rows_of_shards(shape[0], min(count, shape[0]), layout):
        part = described_draw(draw.at(rows).describe())
        assert part == draw.at(rows)
        np.testing.assert_array_equal(part.compute(), whole[rows.slice])


def test_rows_in_turn_of_a_draw_that_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.engine.ops.random.draws._BLOCK", 64)
    draw = first_value(ab.initializers.RandomNormal(seed=1), (101, 3), "float32")
    np.testing.assert_array_equal(draw.at(Rows(2, 101, 7)).compute(), draw.compute()[2::7])


@pytest.mark.parametrize("name", ["RandomUniform", "RandomNormal", "TruncatedNormal"])
def test_a_draw_that_is_large_has_the_bits_of_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = first_value(getattr(ab.initializers, name)(seed=1), (101, 3), "float32")
    whole, part = draw.compute(), draw.at(Rows(7, 90, 1)).compute()
    monkeypatch.setattr("anabranch.engine.ops.random.draws._NEAR", 64)
    np.testing.assert_array_equal(draw.compute(), whole)
    np.testing.assert_array_equal(draw.at(Rows(7, 90, 1)).compute(), part)
    np.testing.assert_array_equal(part, whole[7:90])


def test_values_are_drawn_when_they_are_needed() -> None:
    v = ShardedVariable(ab.initializers.RandomUniform(seed=1), FixedShardsPartitioner(2), shape=(10, 3))
    assert [shard.nbytes for shard in v.shards] == [60, 60]
    assert all(shard.first_value is not None for shard in v.shards)
    with ab.Graph().as_default() as graph:
        ops.take(v, [1], axis=0)
        document, arrays, _ = describe_for_tasks(graph)
    assert all("first" in each and "value" not in each for each in document["resources"])
    assert all(np.size(array) < 30 for array in arrays)
    expected = ab.initializers.RandomUniform(seed=1)((10, 3)).numpy()
    np.testing.assert_array_equal(v.shards[1].numpy(), expected[5:])
    assert v.shards[1].first_value is None
    assert v.shards[0].first_value is not None
    np.testing.assert_array_equal(v.numpy(), expected)


def test_initializers_of_users_give_the_whole() -> None:
    class Own(ab.initializers.RandomUniform):
        def __call__(self, shape: Any, dtype: Any = None) -> Any:
            return super().__call__(shape, dtype) * 0 + np.arange(shape[0], dtype=dtype)[:, None]

    for given_value in (Own(), lambda shape, dtype: np.arange(float(np.prod(shape))).reshape(shape).astype(dtype)):
        v = ShardedVariable(given_value, FixedShardsPartitioner(2), shape=(3, 1))
        assert v.numpy().tolist() == [[0], [1], [2]]


# --- partitioners ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitioner", "shape", "count"),
    [
        (FixedShardsPartitioner(3), (2, 5), 2),
        (MinSizePartitioner(1 << 10, max_shards=10), (100, 10), 3),
        (MinSizePartitioner(1 << 10, max_shards=2), (100, 10), 2),
        (MinSizePartitioner(1 << 20), (100, 10), 1),
        (MaxSizePartitioner(1 << 10), (100, 10), 4),
        (MaxSizePartitioner(1 << 10, max_shards=2), (100, 10), 2),
        (MaxSizePartitioner(8), (4, 10), 4),
        (MaxSizePartitioner(1 << 20), (100, 10), 1),
    ],
)
def test_partitioners(partitioner: Any, shape: Any, count: int) -> None:
    assert partitioner(shape, "float32") == [count, 1]
    v = ShardedVariable(np.zeros(shape, "float32"), partitioner)
    assert len(v.shards) == count
    if isinstance(partitioner, MaxSizePartitioner) and partitioner.max_shards is None:
        assert max(shard.nbytes for shard in v.shards) <= max(partitioner.max_shard_bytes, shape[1] * 4)


def test_what_can_not_be_cut() -> None:
    with pytest.raises(ValueError, match=r"a scalar has no rows to cut; use Variable"):
        ShardedVariable(1.0)
    with pytest.raises(TypeError, match=r"gave 3 for the shape .* Expected a count for each axis, such as \[2, 1\]"):
        ShardedVariable(np.zeros((4, 2)), lambda shape, dtype: 3)
    with pytest.raises(ValueError, match=r"gave \[1, 2\] .* variables are cut by rows"):
        ShardedVariable([[1.0, 2.0]], lambda shape, dtype: [1, 2])
    with pytest.raises(ValueError, match="num_shards must be a positive integer, got 0"):
        FixedShardsPartitioner(0)
    with pytest.raises(ValueError, match="an initializer needs a shape"):
        ShardedVariable(ab.initializers.Zeros())
    with pytest.raises(TypeError, match="'table': devices='/job:ps/task:0' is a string; give a list of names"):
        ShardedVariable([[1.0], [2.0]], None, "/job:ps/task:0", "table")
    with pytest.raises(ValueError, match=r"has shape \[2,2\]; a value of shape \[3,2\] can.t be assigned"):
        ShardedVariable([[1.0, 2.0]] * 2).assign(np.zeros((3, 2)))


def test_lists_with_shards_are_put_together() -> None:
    a, v, b = ab.Variable(1.0), sharded(np.zeros(5), 3), ab.Variable(2.0)
    found = grouped([a, *v.shards, b])
    assert [each is expected for each, expected in zip(found, [a, v, b], strict=True)] == [True] * 3
    assert len(grouped([a, *v.shards[:2], b])) == 4, "not all of them are there"


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_are_restored_onto_other_counts(layout: str, tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(11, 3))
    v = sharded(table, 3, layout)
    ab.io.save(tmp_path / "c", ["v"], [v])
    reader = ab.io.checkpoint_reader(tmp_path / "c")
    np.testing.assert_array_equal(reader["v"], table)
    assert len(reader.entry("v").pieces) == 3
    assert reader.manifest["version"] == {"div": 1, "mod": 2}[layout]
    for rows in (Rows(0, 11), Rows(2, 9), Rows(1, 11, 4), Rows(4, 4), Rows(10, 11)):
        np.testing.assert_array_equal(reader.rows("v", rows), table[rows.slice])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_pieces_with_rows_that_are_wanted_are_read(layout: str, tmp_path: Path) -> None:
    v = sharded(np.arange(12.0).reshape(6, 2), 3, layout)
    ab.io.save(tmp_path / "c", ["v"], [v])
    reader = ab.io.checkpoint_reader(tmp_path / "c")
    damaged = reader.entry("v").pieces[2]
    reader.entry("v").pieces[2] = damaged._replace(crc32=damaged.crc32 + 1)
    wanted = v.rows[1]
    np.testing.assert_array_equal(reader.rows("v", wanted), v.shards[1].numpy())
    with pytest.raises(ab.errors.DataLossError, match=r"Tensor .v. can.t be read from"):
        reader["v"]


def test_a_manager_restores_onto_other_counts(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(5, 2))
    saved = ShardedVariable(table, FixedShardsPartitioner(3), name="v")
    with ab.distribute.CheckpointManager(tmp_path, [saved]) as manager:
        manager.save(1)
    whole = ab.Variable(np.zeros((5, 2)), name="v")
    again = ShardedVariable(np.zeros((5, 2)), FixedShardsPartitioner(2), name="v")
    for each in (whole, again):
        with ab.distribute.CheckpointManager(tmp_path, [each]) as manager:
            assert manager.restore() == 1
        np.testing.assert_array_equal(each.numpy(), table)
    with ab.distribute.CheckpointManager(tmp_path / "shards", saved.shards) as manager:
        manager.save(1)
    assert list(ab.io.checkpoint_reader(tmp_path / "shards" / "step-1")) == ["v"]


def test_a_checkpoint_lacks_no_rows(tmp_path: Path) -> None:
    from anabranch.engine.checkpoint.files import Part, write_manifest, write_shard

    shard = write_shard(tmp_path, 0, 1, [Part("v", np.zeros((2, 3)), Rows(1, 3), 5)])
    with pytest.raises(ValueError, match=r"Tensor 'v' of .* lacks 3 of its 5 rows"):
        write_manifest(tmp_path, [shard], {})
    parts = [Part("v", np.zeros((2, 3)), Rows(0, 2), 3), Part("v", np.zeros((2, 3)), Rows(1, 3), 3)]
    with pytest.raises(ValueError, match=r"Two shards of .* have a tensor 'v'"):
        write_manifest(tmp_path, [write_shard(tmp_path, 0, 1, parts)], {})


def test_weights_that_a_layer_holds_of_another_one_have_the_same_order_in_shards() -> None:
    """`SpectralNormalization` holds the kernel of the layer inside it, which comes first."""

    def shapes() -> list[tuple[int, ...]]:
        layer = ab.layers.SpectralNormalization(ab.layers.Dense(3))
        layer.build((None, 4))
        return [weight.shape for weight in layer.get_weights()]

    whole = shapes()
    with partitioning(FixedShardsPartitioner(2)):
        assert shapes() == whole == [(4, 3), (1, 3), (3,)]


@pytest.mark.parametrize("wrong", [10, -11])
def test_a_row_out_of_bounds_is_named_by_its_place_in_the_whole(wrong: int) -> None:
    table = ShardedVariable(np.arange(30, dtype="float32").reshape(10, 3), FixedShardsPartitioner(3))
    with pytest.raises(IndexError, match=rf"index {wrong} is out of bounds for axis 0 with size 10"):
        ab.ops.take(table, [0, wrong], axis=0)
    with ab.Graph().as_default(), ab.Session() as session:
        rows = ab.placeholder((None,), "int32")
        taken = ab.ops.take(table, rows, axis=0)
        np.testing.assert_array_equal(session.run(taken, {rows: [-10, 9]})[:, 0], [0, 27])
        with pytest.raises(IndexError, match=rf"index {wrong} is out of bounds for axis 0 with size 10"):
            session.run(taken, {rows: [0, wrong]})
