"""`CheckpointManager`: which checkpoints are kept and restored, of values, of models, and of variables on tasks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, TOKEN, WORKER, Running

import anabranch as ab
from anabranch import layers, optim
from anabranch.distribute import CheckpointManager
from anabranch.distribute import checkpoints as module
from anabranch.engine.checkpoint import ops
from anabranch.engine.checkpoint.files import write_shard

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture
def v() -> ab.Variable:
    return ab.Variable([1.0, 2.0], name="v")


def saved(manager: CheckpointManager, v: ab.Variable, steps: Any, metrics: Any = None) -> None:
    for step in steps:
        v.assign(np.full(2, float(step)))
        manager.save(step, metrics(step) if metrics else None)
    manager.wait_until_finished()


# --- which are kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_async", [True, False])
def test_the_latest_are_kept_and_restored(v: ab.Variable, tmp_path: Path, save_async: bool) -> None:
    with CheckpointManager(tmp_path / "new" / "folder", [v], max_to_keep=3, save_async=save_async) as manager:
        assert (manager.restore(), manager.latest_step(), manager.all_steps()) == (None, None, [])
        saved(manager, v, range(6))
        assert (manager.all_steps(), manager.latest_step()) == ([3, 4, 5], 5)
        assert manager.restore(4) == 4
        assert v.numpy().tolist() == [4.0, 4.0]
        assert manager.restore() == 5
        assert v.numpy().tolist() == [5.0, 5.0]
        with pytest.raises(FileNotFoundError, match="step-0' is no folder"):
            manager.restore(0)
        assert not manager.save(5), "there is one of this step"
        assert not manager.save(4)


def test_saving_is_due_at_intervals(v: ab.Variable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    with CheckpointManager(tmp_path, [v], save_interval_steps=2, save_interval_seconds=10.0) as manager:
        assert [manager.save(step) for step in range(1, 7)] == [False, True, False, False, False, False]
        now[0] += 11
        assert [manager.save(step) for step in range(7, 11)] == [False, True, False, False]
        assert manager.all_steps() == [2, 8]


def test_the_best_are_kept_and_the_latest(v: ab.Variable, tmp_path: Path) -> None:
    losses = [3.0, 1.0, 4.0, 0.5, 9.0, 2.0, 7.0]
    options: Any = {"max_to_keep": 2, "best_by": lambda metrics: -metrics["loss"]}
    with CheckpointManager(tmp_path, {"weights": v}, **options) as manager:
        saved(manager, v, range(7), lambda step: {"loss": losses[step]})
        assert manager.all_steps() == [1, 3, 6]
        assert manager.best_step() == 3
        with pytest.raises(ValueError, match=r"save\(8\): best_by judges by metrics"):
            manager.save(8)
    assert ab.io.checkpoint_reader(tmp_path / "step-3").manifest["metrics"] == {"loss": 0.5}
    with CheckpointManager(tmp_path, {"weights": v}, **options) as again:
        assert again.best_step() == 3


def test_one_is_kept_for_some_hours(v: ab.Variable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = [0.0]
    monkeypatch.setattr(module.time, "time", lambda: hours[0] * 3600 + 1e6)
    with CheckpointManager(tmp_path, [v], max_to_keep=1, keep_checkpoint_every_n_hours=2.0) as manager:
        for step in range(9):
            hours[0] = step / 2
            saved(manager, v, [step])
        assert manager.all_steps() == [0, 4, 8]


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_left_out_with_a_warning(v: ab.Variable, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, [v], save_async=False)
    saved(manager, v, [1, 2, 3])
    (short,), (shard,) = (list((tmp_path / name).glob("shard-0-of-1-*.h5")) for name in ("step-3", "step-2"))
    short.write_bytes(b"short")
    data = shard.read_bytes()
    place = data.index(np.full(2, 2.0, "float32").tobytes())
    shard.write_bytes(data[:place] + b"\x01" + data[place + 1 :])
    with pytest.warns(UserWarning, match="takes a checkpoint before step") as warned:
        assert manager.restore() == 1
    assert len(warned) == 2
    assert v.numpy().tolist() == [1.0, 1.0]
    with pytest.raises(ab.errors.DataLossError, match=r"shard-0-of-1-\w+\.h5' has 5 bytes"):
        manager.restore(3)


def test_where_all_checkpoints_are_damaged_restore_does_not_begin_anew(v: ab.Variable, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, [v], save_async=False)
    saved(manager, v, [1, 2])
    for shard in tmp_path.glob("*/*.h5"):
        shard.write_bytes(b"short")
    with (
        pytest.warns(UserWarning, match="takes a checkpoint before step"),
        pytest.raises(ab.errors.DataLossError, match=r"none of the 2 checkpoints in .* can be read"),
    ):
        manager.restore()
    assert v.numpy().tolist() == [2.0, 2.0]


def test_a_folder_of_checkpoints_is_no_checkpoint(v: ab.Variable, tmp_path: Path) -> None:
    saved(CheckpointManager(tmp_path, [v], save_async=False), v, [1, 2])
    with pytest.raises(
        FileNotFoundError, match=r"is a folder of checkpoints, not a checkpoint\. Give one of them, such as .*step-2'"
    ):
        ab.io.checkpoint_reader(tmp_path)


def test_checkpoints_without_a_worth_go_first(v: ab.Variable, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, [v], max_to_keep=2, best_by=lambda metrics: metrics["good"]) as manager:
        for step, good in enumerate([0.1, np.nan, 0.2, 0.05]):
            manager.save(step, {"good": good})
        assert manager.all_steps() == [0, 2, 3]
        assert manager.best_step() == 2


@pytest.mark.parametrize("best_by", [lambda metrics: metrics["good"], lambda metrics: "much"])
def test_a_judge_that_fails_is_an_error_before_anything_is_written(
    v: ab.Variable, tmp_path: Path, best_by: Any
) -> None:
    manager = CheckpointManager(tmp_path, [v], best_by=best_by, save_async=False)
    with pytest.raises((KeyError, ValueError)) as caught:
        manager.save(1, {"loss": 1.0})
    assert caught.value.__notes__ == ["In best_by, as CheckpointManager.save(1) gave it the metrics {'loss': 1.0}."]
    assert manager.all_steps() == []


def test_an_item_without_a_name_is_named_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="item number 1 is no variable but a ndarray"):
        CheckpointManager(tmp_path, [ab.Variable(1.0), np.zeros(2)])


def test_nothing_is_restored_where_an_item_differs(v: ab.Variable, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, {"a": v, "b": ab.Variable([1.0])}, save_async=False)
    manager.save(1)
    w, u = ab.Variable([0.0, 0.0]), ab.Variable([[0.0]])
    with pytest.raises(ValueError, match=r"'b' of the checkpoint .* is float32\[1\]; expected float32\[1,1\]"):
        CheckpointManager(tmp_path, {"a": w, "b": u}).restore()
    with pytest.raises(KeyError, match="has no tensor 'c'"):
        CheckpointManager(tmp_path, {"a": w, "c": u}).restore()
    assert w.numpy().tolist() == [0.0, 0.0]
    assert CheckpointManager(tmp_path, {"a": w}).restore() == 1, "some items alone"
    assert w.numpy().tolist() == [1.0, 2.0]


def test_a_write_that_fails_is_raised_by_the_next_call(v: ab.Variable, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, [v])
    (tmp_path / "step-1").write_text("a file in the place of the folder")
    assert manager.save(1)
    with pytest.raises(OSError, match="step-1"):
        manager.save(2)
    assert manager.save(2)
    manager.close()
    assert manager.all_steps() == [2]


def test_a_write_that_fails_is_raised_by_the_next_step(graph: ab.Graph, tmp_path: Path) -> None:
    w = ab.Variable([1.0, 2.0], name="w")
    y = w.value + 1.0
    (tmp_path / "step-1").write_text("a file in the place of the folder")
    with ab.Session(graph) as session, CheckpointManager(tmp_path, [w], session=session) as manager:
        assert manager.save(1)
        assert manager._pool is not None
        manager._pool.submit(int).result(PATIENCE)  # behind the write, on the one thread
        with pytest.raises(OSError, match="step-1"):
            session.run(y)
        assert session.run(y).tolist() == [2.0, 3.0], "it is raised once"
        assert manager.save(2)
        assert manager.all_steps() == [2]


def test_a_failed_write_that_a_call_has_raised_is_not_raised_by_a_step(graph: ab.Graph, tmp_path: Path) -> None:
    w = ab.Variable([1.0, 2.0], name="w")
    y = w.value + 1.0
    (tmp_path / "step-1").write_text("a file in the place of the folder")
    with ab.Session(graph) as session, CheckpointManager(tmp_path, [w], session=session) as manager:
        assert manager.save(1)
        with pytest.raises(OSError, match="step-1"):
            manager.wait_until_finished()
        assert session.run(y).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("has_session", [False, True])
def test_copies_are_written_over_and_given_up(graph: ab.Graph, tmp_path: Path, has_session: bool) -> None:
    w = ab.Variable([1.0, 2.0], name="w")
    change = w.assign_add([1.0, 1.0])
    with ab.Session(graph) as session:
        manager = CheckpointManager(tmp_path, [w], session=session if has_session else None)
        found: list[Any] = []
        for step in range(3):
            manager.save(step)
            manager.wait_until_finished()
            found += ops._copies[str(tmp_path.resolve()), 0] if has_session else [manager._kept["w"]]
            session.run(change)
        assert len({id(each) for each in found}) == 1
        manager.restore(1)
        assert session.run(w).tolist() == [2.0, 3.0]
        manager.close()
        assert not any(name == str(tmp_path.resolve()) for name, _ in ops._copies)
        assert not manager._kept
        manager.close()


@pytest.mark.parametrize(("save_async", "consistent"), [(False, True), (True, False)])
def test_no_copy_is_kept_where_no_step_waits_for_one(
    v: ab.Variable, tmp_path: Path, save_async: bool, consistent: bool
) -> None:
    with CheckpointManager(tmp_path, [v], save_async=save_async, consistent=consistent) as manager:
        manager.save(1)
        manager.wait_until_finished()
        assert not manager._kept


def test_a_manager_may_be_closed_after_its_session(running: Running, tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph, ab.device(PS):
        a = ab.Variable(np.arange(4.0), name="closed after")
    session = ab.Session(graph, target=running[WORKER].target)
    manager = CheckpointManager(tmp_path, [a], session=session)
    manager.save(1)
    manager.wait_until_finished()
    session.close()
    manager.close()


@pytest.mark.parametrize(
    ("items", "options", "match"),
    [
        ([ab.Variable(1.0, name="a"), ab.Variable(1.0, name="a")], {}, "two items are named 'a'"),
        ({"a": 1.0}, {}, "item 'a' is no variable but a float"),
        (3, {}, "a model or variables; got int"),
        ({}, {"max_to_keep": 0}, "max_to_keep=0 must be at least 1"),
        ({}, {"max_to_keep": 2.5}, "max_to_keep=2.5 must be at least 1, a whole number"),
        ({}, {"save_interval_steps": 0}, "save_interval_steps=0 must be at least 1"),
        ({}, {"save_interval_steps": 1.5}, "save_interval_steps=1.5 must be at least 1, a whole number"),
        ({}, {"save_interval_seconds": -1}, "save_interval_seconds=-1 must be at least 0, or None"),
        ({}, {"keep_checkpoint_every_n_hours": -1}, "keep_checkpoint_every_n_hours=-1 must be above 0, or None"),
        ({}, {"best_by": "loss"}, r"best_by must be a function .* such as lambda metrics: .*; got 'loss'"),
        ({}, {}, "items is empty"),
        ([], {}, "items is empty"),
    ],
)
def test_managers_that_can_not_be(tmp_path: Path, items: Any, options: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        CheckpointManager(tmp_path, items, **options)


@pytest.mark.parametrize("save_async", [True, False])
def test_steps_that_can_not_be(v: ab.Variable, tmp_path: Path, save_async: bool) -> None:
    manager = CheckpointManager(tmp_path, [v], save_async=save_async)
    for step in (1.5, "x", None):
        with pytest.raises(TypeError, match=rf"save\({step!r}\): step must be a whole number; got a "):
            manager.save(step)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"save\(-1\): step must be 0 or more"):
        manager.save(-1)
    assert list(tmp_path.iterdir()) == []
    for step in (np.int64(1), ab.Variable(2)):
        assert manager.save(step)  # type: ignore[arg-type]
    assert manager.all_steps() == [1, 2]
    manager.close()
    with pytest.raises(RuntimeError, match=r"save\(3\): the manager is closed"):
        manager.save(3)
    assert (manager.all_steps(), manager.restore()) == ([1, 2], 2)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_process_killed_while_it_saves_leaves_the_checkpoint_before(v: ab.Variable, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reached")
    program = (
        "import sys, os, signal, pathlib, anabranch as ab\n"
        "from anabranch.distribute import checkpoints\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "v = ab.Variable([1.0, 2.0], name='v')\n"
        "manager = ab.distribute.CheckpointManager(folder / 'c', [v], save_async=False)\n"
        "manager.save(1)\n"
        "def killed(*arguments):\n"
        "    (folder / 'reached').write_text('shards are written')\n"
        "    signal.pause()\n"
        "checkpoints.write_manifest = killed\n"
        "manager.save(2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    assert (tmp_path / "reached").read_text() == "shards are written"
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    v.assign([0.0, 0.0])
    with CheckpointManager(tmp_path / "c", [v]) as manager:
        assert manager.all_steps() == [1]
        assert manager.restore() == 1
        assert v.numpy().tolist() == [1.0, 2.0]
        assert manager.save(2), "what is left of the other is replaced"
        manager.wait_until_finished()
        assert manager.all_steps() == [1, 2]


# --- models ---------------------------------------------------------------------------------------------------------


def built(seed: int) -> tuple[Any, Callable[..., Any]]:
    ab.utils.set_random_seed(seed)
    model = ab.Sequential([ab.Input((3,)), layers.Dense(4, "tanh"), layers.Dropout(0.5), layers.BatchNormalization()])
    model.add(layers.Dense(1))
    model.compile(optim.Adam(0.01), "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(24, 3))
    return model, lambda: model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history


def test_a_model_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    model, train = built(1)
    train()
    with CheckpointManager(tmp_path, model) as manager:
        manager.save(1)
    expected = train()
    weights = model.get_weights()
    other, train_other = built(2)
    assert CheckpointManager(tmp_path, other).restore() == 1
    assert train_other() == expected
    for found, wanted in zip(other.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, wanted)


# --- variables on tasks ---------------------------------------------------------------------------------------------


def test_each_task_writes_what_lies_on_it(running: Running, tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph:
        with ab.device(PS):
            a = ab.Variable(np.arange(4.0), name="a")
        with ab.device(WORKER):
            b = ab.Variable(np.ones((2, 2), "float32"), name="b")
        change = [a.assign_add(np.ones(4)), b.assign_add(np.ones((2, 2)))]
    with ab.Session(graph, target=running[WORKER].target) as session:
        manager = CheckpointManager(tmp_path, [a, b], session=session)
        assert manager.save(1, {"loss": 2.0})
        session.run(change)
        manager.save(2)
        session.run(change)
        assert manager.restore(1) == 1
        assert [value.tolist() for value in session.run([a, b])] == [[0.0, 1.0, 2.0, 3.0], [[1.0, 1.0], [1.0, 1.0]]]
        assert manager.restore() == 2
        assert session.run(a).tolist() == [1.0, 2.0, 3.0, 4.0]
    names = sorted(path.name for path in (tmp_path / "step-1").iterdir())
    assert [name.rpartition("-")[0] for name in names] == ["", "shard-0-of-2", "shard-1-of-2"]
    # One process reads what two tasks have written.
    mine = {"a": ab.Variable(np.zeros(4)), "b": ab.Variable(np.zeros((2, 2), "float32"))}
    assert CheckpointManager(tmp_path, mine).restore() == 2
    assert mine["b"].numpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_folder_that_tasks_do_not_share_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task writes its shard to a folder of the same name on a disk of its own, where the other does not find it."""
    shared, own = tmp_path / "shared", tmp_path / "disk of one task"
    is_own = False

    def write(folder: str, number: int, *more: Any) -> Any:
        return write_shard(own if is_own and number == 0 else folder, number, *more)

    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    monkeypatch.setattr(ops, "write_shard", write)
    unknown = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
    with (
        ab.distribute.Server(unknown, "ps", 0) as ps,
        ab.distribute.Server({**unknown, "ps": [ps.target[7:]]}, "worker", 0) as worker,
        ab.Graph().as_default() as graph,
    ):
        with ab.device(PS):
            a = ab.Variable(np.arange(4.0), name="a")
        with ab.device(WORKER):
            b = ab.Variable(np.ones(2, "float32"), name="b")
        with ab.Session(graph, target=worker.target) as session:
            manager = CheckpointManager(shared, [a, b], session=session)
            assert manager.save(1)
            manager.wait_until_finished()
            is_own = True
            assert manager.save(2)
            with pytest.raises(FileNotFoundError, match=r"has written 'shard-0-of-2-\w+\.h5' .* that all tasks share"):
                manager.save(3)
            assert manager.all_steps() == [1]
            is_own = False
            assert manager.save(3)
            assert manager.restore() == 3
    assert list(own.glob("shard-0-of-2-*.h5"))


class Gate:
    """Holds writing up, so that a test may do something meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        monkeypatch.setattr(place, "write_shard", self.write)

    def write(self, *given: Any) -> Any:
        self.reached.set()
        assert self.opened.wait(PATIENCE), "nobody has opened it"
        return write_shard(*given)


def test_a_step_between_two_checkpoints_does_not_wait(v: ab.Variable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch, module)
    with CheckpointManager(tmp_path, [v], save_interval_steps=2) as manager:
        assert manager.save(2)
        assert not manager.save(3), "the thread still writes, and nothing is due"
        gate.opened.set()
        assert manager.save(4)


@pytest.mark.parametrize("consistent", [True, False])
def test_tasks_write_while_steps_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consistent: bool):
    gate = Gate(monkeypatch, ops)
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
    unknown = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
    with (
        ab.distribute.Server(unknown, "ps", 0) as ps,
        ab.distribute.Server({**unknown, "ps": [ps.target[7:]]}, "worker", 0) as worker,
        ab.Graph().as_default() as graph,
    ):
        with ab.device(PS):
            a = ab.Variable(np.arange(4.0), name="a")
        with ab.device(WORKER):
            b = ab.Variable(np.ones(2, "float32"), name="b")
        change = [a.assign_add(np.ones(4)), b.assign_add(np.ones(2, "float32"))]
        with ab.Session(graph, target=worker.target) as session:
            manager = CheckpointManager(tmp_path, [a, b], consistent=consistent, session=session)
            for step in (1, 2):  # copies are written over
                gate.opened.clear()
                gate.reached.clear()
                assert manager.save(step)
                assert gate.reached.wait(PATIENCE)
                session.run(change)
                gate.opened.set()
                manager.wait_until_finished()
            assert manager.restore(2) == 2
            values = session.run([a, b])
            manager.close()
    # Where nothing is copied, a task may have read what it holds before or behind the change.
    assert values[0].tolist() in (
        [[1.0, 2.0, 3.0, 4.0]] if consistent else [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]]
    )
    assert values[1].tolist() in ([[2.0, 2.0]] if consistent else [[2.0, 2.0], [3.0, 3.0]])


def test_copies_that_are_gone_are_an_error(running: Running, tmp_path: Path):
    with ab.Graph().as_default() as graph, ab.device(PS):
        a = ab.Variable(np.arange(4.0), name="copied")
        _, written, _ = ops.save_copies("never taken", str(tmp_path / "step-1"), ["a"], [a], "{}")
    gone = pytest.raises(ab.errors.StateLostError, match="copies for shard 0 of a checkpoint are gone")
    with ab.Session(graph, target=running[WORKER].target) as session, gone:
        session.run(written)


def test_what_saves_and_restores_is_where_it_is_asked_for(graph: ab.Graph):
    """Devices asked for were left out for what has effects on files, so that costs alone decided."""
    with ab.device(PS):
        ab.io.save("nowhere", ["a"], [ab.constant([1.0])])
        (a,) = ab.io.restore("nowhere", ["a"], [ab.InputSpec(shape=(1,), dtype="float32")])
    assert {each.device for each in graph.operations if "checkpoint" in str(each.effects)} == {PS}
    assert a.device == PS


@pytest.mark.parametrize("seed", range(3))
def test_a_torn_write_gives_the_values_of_one_checkpoint(seed: int, tmp_path: Path):
    """A machine that stops may lose any end of any file of the newest checkpoint, or find zeros there."""
    dice = random.Random(seed)
    a, b = ab.Variable(np.zeros(40), name="a"), ab.Variable(np.zeros((7, 3)), name="b")
    with ab.distribute.CheckpointManager(tmp_path / "whole", [a, b], save_async=False) as manager:
        for step in (1, 2):
            a.assign(np.full(40, step))
            b.assign(np.full((7, 3), step))
            manager.save(step)
    found: list[int | None] = []
    for number in range(8):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        for path in sorted((folder / "step-2").iterdir()):
            data = path.read_bytes()
            kept = dice.randrange(len(data) + 1) if dice.random() < 0.6 else len(data)
            path.write_bytes(data[:kept] + bytes(len(data) - kept if dice.random() < 0.5 else 0))
        with warnings.catch_warnings(), ab.distribute.CheckpointManager(folder, [a, b]) as manager:
            warnings.simplefilter("ignore")  # they name the damaged one: test_a_damaged_checkpoint
            step = manager.restore()
        assert set(a.numpy()) | set(b.numpy().ravel()) == {step}
        found.append(step)
    assert set(found) <= {1, 2}
    assert 1 in found


def test_a_spec_to_restore_has_a_shape_and_a_dtype() -> None:
    with pytest.raises(TypeError, match=r"the spec 3 has no shape and dtype\. Give a variable"):
        ab.io.restore("anywhere", ["a"], [3])
