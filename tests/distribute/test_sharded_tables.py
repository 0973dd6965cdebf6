"""Tables in shards on several tasks: rows are read and written where they are, and clients need not hold the table."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of
from shared.tasks import WORKER, Running, tasks

import anabranch as ab
from anabranch import layers, nn, ops
from anabranch.distribute import FixedShardsPartitioner, ShardedVariable
from anabranch.distribute.tasks.preparing import assigning
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.devices import Device, DeviceName

pytestmark = pytest.mark.xdist_group("tasks")
PS = ["/job:ps/task:0", "/job:ps/task:1"]


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest) -> Generator[Running]:
    """A worker and two ps tasks."""
    with tasks(ps=2) as made:
        yield made


def lowered(graph: ab.Graph, targets: Any) -> str:
    """Return what all tasks run, as text."""
    named = [DeviceName.parse(f"{task}/device:CPU:0") for task in (*PS, WORKER)]
    devices = [Device(name, bandwidth=2e9, latency=2e-5) for name in named]

    program = PartProgram(
        graph,
        targets,
        [],
        [],
        task=WORKER,
        devices=devices,
        exact=False,
        assign=assigning(WORKER, None, lambda placed: None),
    )
    return program.text()


def crossing(text: str) -> list[int]:
    """Return the sizes of tensors that go from one device to another; those of open shapes count as 0."""
    found: list[int] = []
    for line in text.splitlines():
        if "= recv() @" in line:
            shapes = re.findall(r"\[([\d, ]*)\]", line)
            found += [int(np.prod([int(size) for size in shape.split(",") if size.strip()])) for shape in shapes]
    return found


def test_rows_are_read_and_written_where_they_are(two: Running, graph: ab.Graph, tmp_path: Path) -> None:
    expected = ab.initializers.RandomNormal(seed=4)((1001, 8)).numpy()
    with ab.device(WORKER):
        table = ShardedVariable(
            ab.initializers.RandomNormal(seed=4), FixedShardsPartitioner(2), PS, "table", shape=(1001, 8)
        )
        ids = ops.constant([3, 1000, 500, 3])
        rows = ops.take(table, ids, axis=0)
        step = ab.optim.Adagrad(0.1).minimize(ops.sum(ops.square(rows)), [table])
    assert [shard.device for shard in table.shards] == PS
    with ab.Session(graph, target=two[WORKER].target) as session:
        np.testing.assert_array_equal(session.run(rows), expected[[3, 1000, 500, 3]])
        session.run(step)
        assert not any("_value" in vars(shard) for shard in table.shards), "the client has drawn nothing"
        changed = session.run(rows)
        whole = session.run(table.value)
        different = np.flatnonzero((whole != expected).any(axis=1))
        assert different.tolist() == [3, 500, 1000]
        np.testing.assert_array_equal(whole[[3, 1000, 500, 3]], changed)
        with ab.distribute.CheckpointManager(tmp_path, [table], session=session) as manager:
            assert manager.save(1)
            session.run([shard.assign(shard * 0.0).operation for shard in table.shards])
            assert not session.run(table.value).any()
            assert manager.restore() == 1
        np.testing.assert_array_equal(session.run(table.value), whole)
        session.close()
    reader = ab.io.checkpoint_reader(tmp_path / "step-1")
    np.testing.assert_array_equal(reader["table"], whole)
    assert {piece.shard for piece in reader.entry("table").pieces} == {0, 1}, "each task has written its own"
    here = ab.Variable(np.zeros((1001, 8), "float32"), name="table")
    with ab.distribute.CheckpointManager(tmp_path, [here]) as manager:
        assert manager.restore() == 1
    np.testing.assert_array_equal(here.numpy(), whole)


def test_a_step_moves_rows_and_not_the_table(graph: ab.Graph) -> None:
    with ab.device(WORKER):
        table = ShardedVariable(ab.initializers.Zeros(), FixedShardsPartitioner(2), PS, "table", shape=(100_001, 8))
        rows = ops.take(table, ops.constant([3, 100_000, 50, 3]), axis=0)
        step = ab.optim.Adam(0.1).minimize(ops.sum(ops.square(rows)), [table])
    text = lowered(graph, [step, rows])
    found = crossing(text)
    assert found, text
    assert max(found) < 1000


@pytest.mark.parametrize("layout", first_of(["div", "mod"]))
def test_softmaxes_over_shards(two: Running, graph: ab.Graph, layout: str) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(6, 4)).astype("float32"), np.array([0, 5, 10, 3, 3, 7])
    with ab.device(WORKER):
        layer = layers.SampledSoftmax(11, 5, num_shards=2, partition=layout, devices=PS, seed=1)
        exact = layer(ops.constant(x), labels=ops.constant(labels))
        losses = [layer.losses[0]]
        seed = ab.random.SeedGenerator(3, name=f"sampler of {layout}")
        sampled = nn.sampled_softmax_loss(
            layer.embedding.embeddings, layer.bias, labels[:, None], ops.constant(x), 5, 11, seed=seed
        )
    assert [each.device for each in layer.biases] == PS
    with ab.Session(graph, target=two[WORKER].target) as session:
        found = session.run([exact, losses[0], sampled])
        session.close()
    weights, bias = layer.embedding.embeddings.numpy(), layer.bias.numpy()
    logits = x @ weights.T + bias
    np.testing.assert_allclose(found[0], logits, 1e-5, 1e-6)
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels]
    np.testing.assert_allclose(found[1], expected.mean(), 1e-5)
    with ab.Graph().as_default():
        alone = nn.sampled_softmax_loss(weights, bias, labels[:, None], x, 5, 11, seed=ab.random.SeedGenerator(3))
        np.testing.assert_allclose(found[2], ab.Session().run(alone), 1e-5)


def test_variables_are_spread_by_bytes() -> None:
    cluster = {"ps": ["localhost:1", "localhost:2", "localhost:3"], "worker": ["localhost:4"]}
    with ab.Graph().as_default(), ab.device(ab.distribute.replica_device_setter(cluster)):
        made = [ab.Variable(np.zeros(size)) for size in (100, 10, 50, 60, 10)]
        table = ShardedVariable(np.zeros((90, 1)), FixedShardsPartitioner(3))
        y = made[0] + 1.0
        with ab.device("/job:worker/task:0"):
            own = ab.Variable(0.0)
    assert [int(each.device[-1]) for each in made] == [0, 1, 2, 1, 2]
    assert [int(each.device[-1]) for each in table.shards] == [2, 1, 2]
    assert y.device == "/job:worker"
    assert own.device == "/job:worker/task:0"
    with pytest.raises(ValueError, match=r"the cluster has no task of job 'chief'; give ps_tasks="):
        ab.distribute.replica_device_setter(cluster, ps_device="/job:chief")


def test_shards_lie_on_the_ps_tasks_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["localhost:1"], "ps": ["localhost:2", "localhost:3"]},'
        ' "task": {"type": "worker", "index": 0}}',
    )
    assert [shard.device for shard in ShardedVariable(np.zeros(3), FixedShardsPartitioner(3)).shards] == [*PS, PS[0]]
    with ab.device("/job:worker"):
        assert {shard.device for shard in ShardedVariable(np.zeros(3)).shards} == {"/job:worker"}


def resources_of(two: Running) -> list[int]:
    return [ab.distribute.status(two[task].target).held["resources"] for task in PS]


def rows_and_step(name: str) -> tuple[ShardedVariable, Any, Any]:
    """A table for whose shards no device is given, rows of it, and a step that updates them with an optimizer."""
    table = ShardedVariable(ab.initializers.RandomNormal(seed=4), FixedShardsPartitioner(3), name=name, shape=(9, 2))
    rows = ops.take(table, ops.constant([1, 8]), axis=0)
    return table, rows, ab.optim.Adagrad(0.1).minimize(ops.sum(ops.square(rows)), [table])


def test_shards_without_a_device_are_on_the_ps_tasks_of_the_session(two: Running, graph: ab.Graph) -> None:
    before = resources_of(two)
    table, rows, step = rows_and_step("table without devices")
    assert {shard.device for shard in table.shards} == {""}, "no cluster is known by now"
    with ab.Session(graph, target=two[WORKER].target) as session:
        expected = session.run(rows)
        session.run(step)
        changed = session.run(rows)
    assert [shard.device for shard in table.shards] == [*PS, PS[0]]
    assert (changed != expected).all()
    more = [now - there for now, there in zip(resources_of(two), before, strict=True)]
    assert more == [4, 2], "shards, and beside each what the optimizer keeps"
    np.testing.assert_array_equal(table.numpy()[[1, 8]], changed)


def test_a_checkpoint_is_the_first_step_of_shards(two: Running, graph: ab.Graph, tmp_path: Path) -> None:
    table, *_ = rows_and_step("table saved first")
    with (
        ab.Session(graph, target=two[WORKER].target) as session,
        ab.distribute.CheckpointManager(tmp_path, [table], session=session) as manager,
    ):
        assert manager.save(1)
    pieces = ab.io.checkpoint_reader(tmp_path / "step-1").entry("table saved first").pieces
    assert {piece.shard for piece in pieces} == {0, 1}, "each task has written its own"


@pytest.mark.parametrize("around", ["/job:worker/task:0", "/job:ps/task:1"])
def test_a_scope_places_shards_also_at_the_first_run(two: Running, graph: ab.Graph, around: str) -> None:
    with ab.device(around):
        table, rows, _ = rows_and_step(f"table of {around[5:7]}")
    with ab.Session(graph, target=two[WORKER].target) as session:
        session.run(rows)
    assert {shard.device for shard in table.shards} == {around}


def test_shards_stay_in_this_process_without_a_target(graph: ab.Graph) -> None:
    table, rows, _ = rows_and_step("table")
    np.testing.assert_array_equal(ab.Session(graph).run(rows), table.numpy()[[1, 8]])
    assert {shard.device for shard in table.shards} == {""}
