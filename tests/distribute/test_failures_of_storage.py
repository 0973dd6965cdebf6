"""Failures of storage: checkpoints, caches, summaries and texts of tasks whose disks are full, away, slow or stopped.

The tasks are processes, and so is the store of checkpoints. Each test here is a row of docs/failures.md.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared.event_files import CLASSES
from shared.faults import no_space, slowed
from shared.lab import NAMES, Lab, lab, shows
from shared.store_process import StoreProcess
from shared.tasks import PATIENCE, PS, TOKEN

import anabranch as ab
from anabranch import ops, summary
from anabranch.distribute import CheckpointManager

pytestmark = pytest.mark.xdist_group("tasks")
ROWS = 10_000  # numbers of each variable, which have no room where files may have a kilobyte
BY_NUMBER = itertools.count(1)


class Stored(NamedTuple):
    """Tasks that hold a variable each, and a step that changes all."""

    lab: Lab
    variables: dict[str, ab.Variable]
    changed: Any

    def change(self) -> None:
        self.lab.session.run(self.changed)

    def values(self) -> list[float]:
        """The first number of each variable, where all its numbers are alike."""
        found = self.lab.session.run(list(self.variables.values()))
        assert all((value == value[0]).all() for value in found)
        return [float(value[0]) for value in found]

    def manager(self, folder: Any, save_async: bool = False, **options: Any) -> CheckpointManager:
        return CheckpointManager(folder, self.variables, session=self.lab.session, save_async=save_async, **options)


def lab_with_store(patch: pytest.MonkeyPatch, *options: str) -> contextlib.AbstractContextManager[Lab]:
    """Tasks that can reach the store."""
    patch.setenv("ANABRANCH_TOKEN", TOKEN)
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return lab("--import", "shared.store_process", *options)


@pytest.fixture(scope="module")
def stored() -> Generator[Stored]:
    pytest.importorskip("fsspec")
    with pytest.MonkeyPatch.context() as patch, lab_with_store(patch, "--heartbeat-timeout", "2") as made:
        with made.graph.as_default():
            variables = {}
            for part, task in NAMES.items():
                with ab.device(task):
                    variables[part] = ab.Variable(np.zeros(ROWS), name=f"stored by {part}")
            changed = ab.group(*[each.assign_add(np.ones(ROWS)) for each in variables.values()])
        yield Stored(made, variables, changed)


@pytest.fixture
def store() -> Generator[StoreProcess]:
    made = StoreProcess()
    yield made
    made.go_on()
    made.kill()


def failed_save(manager: CheckpointManager, step: int) -> Any:
    """Save, which is to fail; gives the error, which the next call raises if the save is asynchronous."""

    def save() -> None:
        manager.save(step)
        manager.wait_until_finished()

    with pytest.raises(OSError) as caught:  # noqa: PT011  what it says depends on the fault
        save()
    return caught.value


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def waits(save: Callable[[], object]) -> Callable[[], None]:
    """Call it in a thread; gives what waits for its end and raises its error."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            save()
            found.append(None)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def finished() -> None:
        thread.join(PATIENCE)
        (error,) = found
        if error is not None:
            raise error

    return finished


# --- a store that is a process --------------------------------------------------------------------------------------


@shows("absent at start", "storage", "No manager is made.", "`OSError` that names the folder, at once", "All state")
@shows(
    "restarted",
    "storage",
    "Saves fail while the storage is absent. Once it is there, they are written, and earlier checkpoints are found.",
    "`OSError` that names the folder at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
@pytest.mark.parametrize("save_async", [False, True])
def test_the_store_is_absent_and_comes_back(stored: Stored, store: StoreProcess, tmp_path: Path, save_async: bool):
    url = f"store://{store.port}{tmp_path}/run"
    store.kill()
    with pytest.raises(ConnectionRefusedError) as caught:
        stored.manager(url, save_async)
    assert f"The store of {url!r} failed" in said(caught.value)
    store.restart()
    with stored.manager(url, save_async) as manager:
        first = stored.values()
        assert manager.save(1)
        assert manager.all_steps() == [1]
        stored.change()
        store.kill()
        assert url in said(failed_save(manager, 2))
        stored.change()
        store.restart()
        assert manager.all_steps() == [1]
        assert manager.save(3)
        assert manager.all_steps() == [1, 3]
        last = stored.values()
        assert last == [value + 2 for value in first]
        assert manager.restore(1) == 1
        assert stored.values() == first
        assert manager.restore() == 3
        assert stored.values() == last


@shows(
    "killed (SIGKILL)",
    "storage",
    "A store that ends in the middle of a write leaves no manifest, so the folder is no checkpoint.",
    "`OSError` that names the folder at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
@shows(
    "stopped for 30 s (SIGSTOP, SIGCONT)",
    "storage",
    "A save waits until the storage goes on. With `save_async=True` steps run meanwhile, and the next save waits. "
    "Tasks that wait are not dead.",
    "none; with `kernel_timeout`, a `TaskFailedError` that names the operation `save/shard_N`",
    "Everything",
)
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "killed"])
def test_the_store_stops_in_the_middle_of_a_save(stored: Stored, store: StoreProcess, tmp_path: Path, goes_on: bool):
    with stored.manager(f"store://{store.port}{tmp_path}/run", True) as manager:
        assert manager.save(1)
        manager.wait_until_finished()
        begun = stored.values()
        store.stop()
        finished = waits(lambda: manager.save(2) and manager.wait_until_finished())
        for _ in range(50):
            stored.change()
        assert stored.lab.run("ps")
        assert stored.values() == [value + 50 for value in begun]
        if goes_on:
            store.go_on()
            finished()
        else:
            store.kill()
            with pytest.raises(ConnectionError, match="store"):
                finished()
            store.restart()
        stored.change()
        assert manager.all_steps() == ([1, 2] if goes_on else [1])
        assert manager.restore(1) == 1
        assert stored.values() == begun


@pytest.mark.slow
def test_tasks_that_wait_for_a_store_are_alive(stored: Stored, store: StoreProcess, tmp_path: Path):
    manager = stored.manager(f"store://{store.port}{tmp_path}/run")
    manager._make_way = lambda folder: store.stop()  # type: ignore[method-assign]  # right before the tasks write
    finished = waits(lambda: manager.save(1))
    for task in NAMES.values():
        target = stored.lab.running[task].target
        stored.lab.wait(lambda target=target: "save/shard" in ab.distribute.status(target).doing)
        stored.lab.wait(lambda target=target: ab.distribute.status(target).since > 3)  # more than heartbeat_timeout
    stored.change()
    store.go_on()
    finished()
    assert manager.all_steps() == [1]


@pytest.mark.slow
def test_a_save_that_waits_longer_than_kernel_timeout_fails(store: StoreProcess, tmp_path: Path, monkeypatch: Any):
    with lab_with_store(monkeypatch, "--kernel-timeout", "1") as made:
        manager = CheckpointManager(
            f"store://{store.port}{tmp_path}/run", [made.kept], session=made.session, save_async=False
        )
        assert manager.save(1)
        make_way = manager._make_way

        def make_way_and_stop(folder: Any) -> None:
            make_way(folder)
            store.stop()

        manager._make_way = make_way_and_stop  # type: ignore[method-assign]
        with pytest.raises(ab.errors.TaskFailedError, match=r"in operation 'save/shard_0' for .*kernel_timeout=1"):
            manager.save(2)
        manager._make_way = make_way  # type: ignore[method-assign]
        store.go_on()
        assert made.run("ps") == 2
        assert manager.save(3)
        assert manager.all_steps() == [1, 3]


@shows(
    "killed (SIGKILL)",
    "storage",
    "A task that is killed while it writes leaves no manifest, so the folder is no checkpoint.",
    "`TaskFailedError` at the save",
    "Earlier checkpoints",
)
@shows(
    "cut in mid-tensor",
    "storage",
    "A shard that is truncated or has flipped bits is noticed by its size and CRC-32. The previous checkpoint is "
    "restored.",
    "a warning that names the shard",
    "Earlier checkpoints",
)
@pytest.mark.slow
def test_a_task_is_killed_while_it_writes(store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with lab_with_store(monkeypatch) as made:
        made.run("ps")
        manager = CheckpointManager(
            f"store://{store.port}{tmp_path}", [made.kept], session=made.session, save_async=False
        )
        assert manager.save(1)
        made.run("ps")
        assert manager.save(2)
        shard = next((tmp_path / "step-2").glob("*.h5"))
        shard.write_bytes(shard.read_bytes()[:-1000])
        with pytest.warns(UserWarning, match="step-2"):
            assert manager.restore() == 1
        assert made.run("ps") == 3
        manager._make_way = lambda folder: store.stop()  # type: ignore[method-assign]  # right before the task writes
        finished = waits(lambda: manager.save(3))
        target = made.running[PS].target
        made.wait(lambda: "save/shard" in ab.distribute.status(target).doing)
        made.running[PS].kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            finished()
        assert caught.value.task == PS
        store.go_on()
        assert manager.all_steps() == [1, 2]
        assert not (tmp_path / "step-3" / "manifest.json").exists()


@shows(
    "ten times slower",
    "storage",
    "Saves take longer. With `save_async=True` steps run meanwhile.",
    "none",
    "Everything",
)
@pytest.mark.slow
def test_the_store_is_slow(stored: Stored, store: StoreProcess, tmp_path: Path):
    with stored.manager(f"store://{store.port}{tmp_path}/run", True) as manager, slowed(store.pid):
        for step in range(3):
            assert manager.save(step)
            stored.change()
        assert manager.all_steps() == [0, 1, 2]


# --- a folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_async", [False, True])
def test_the_folder_is_absent_and_comes_back(stored: Stored, tmp_path: Path, save_async: bool):
    root = tmp_path / "run"
    root.write_text("no folder")
    with pytest.raises(OSError, match="run"):
        stored.manager(root / "checkpoints", save_async)
    root.unlink()
    with stored.manager(root, save_async) as manager:
        first = stored.values()
        assert manager.save(1)
        manager.wait_until_finished()
        root.rename(tmp_path / "elsewhere")
        root.write_text("no folder")
        stored.change()
        assert "run" in said(failed_save(manager, 2))
        root.unlink()
        (tmp_path / "elsewhere").rename(root)
        assert manager.save(2)
        assert manager.all_steps() == [1, 2]
        assert manager.restore(1) == 1
        assert stored.values() == first


@shows(
    "not writable",
    "storage",
    "The checkpoint is abandoned.",
    "`OSError` that names the folder at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
@pytest.mark.parametrize("save_async", [False, True])
def test_the_folder_of_a_checkpoint_can_not_be_made(stored: Stored, tmp_path: Path, save_async: bool):
    with stored.manager(tmp_path, save_async) as manager:  # root may write anywhere: a file is in the way instead
        assert manager.save(1)
        manager.wait_until_finished()
        (tmp_path / "step-2").write_text("no folder")
        assert "step-2" in said(failed_save(manager, 2))
        stored.change()
        assert manager.save(3)
        assert manager.all_steps() == [1, 3]


# --- full disks -----------------------------------------------------------------------------------------------------


@shows(
    "full disk",
    "storage, master, worker, ps",
    "A checkpoint for a part of which the task has no room is abandoned. The task and its state do not change.",
    "`OSError` at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
@pytest.mark.parametrize("save_async", [False, True])
@pytest.mark.parametrize("part", NAMES)
def test_a_task_has_no_room_for_a_checkpoint(stored: Stored, tmp_path: Path, part: str, save_async: bool):
    with stored.manager(tmp_path, save_async) as manager:
        first = stored.values()
        assert manager.save(1)
        manager.wait_until_finished()
        stored.change()
        with no_space(stored.lab.running[NAMES[part]].pid):
            error = failed_save(manager, 2)
            assert f"Can't write '{tmp_path}/step-2/shard-" in said(error)
            assert "File too large" in str(error)
            stored.change()
            assert manager.all_steps() == [1]
        assert stored.values() == [value + 2 for value in first]
        assert manager.save(3)
        assert manager.all_steps() == [1, 3]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"]
        assert manager.restore(1) == 1
        assert stored.values() == first


@pytest.mark.parametrize("part", ["master", "worker"])
def test_a_task_has_no_room_for_what_it_sends_to_a_store(
    stored: Stored, store: StoreProcess, tmp_path: Path, part: str
):
    manager = stored.manager(f"store://{store.port}{tmp_path}")
    assert manager.save(1)
    with no_space(stored.lab.running[NAMES[part]].pid):
        assert "make room there, or name another folder by TMPDIR" in said(failed_save(manager, 2))
    assert manager.all_steps() == [1]


@shows(
    "full disk",
    "client",
    "Checkpoints and traces that the client writes itself are abandoned. Steps, and checkpoints that tasks write, do "
    "not need its disk.",
    "`OSError` that names the file",
    "Earlier checkpoints, all state",
)
def test_a_client_has_no_room(stored: Stored, tmp_path: Path):
    own = ab.Variable(np.zeros(ROWS), name="own")
    manager = stored.manager(tmp_path / "of tasks")
    trace = tmp_path / "trace.json"
    with CheckpointManager(tmp_path / "own", [own]) as of_client:
        assert of_client.save(1)
        of_client.wait_until_finished()
        with no_space(os.getpid()):
            assert "own" in said(failed_save(of_client, 2))
            stored.change()
            assert manager.save(1)
            with pytest.raises(OSError, match=r"trace.json"):
                stored.lab.session.run(stored.changed, trace=str(trace))
        assert of_client.all_steps() == [1]
        assert of_client.save(3)
        assert of_client.all_steps() == [1, 3]
    assert manager.all_steps() == [1]
    assert not trace.exists()


@shows(
    "full disk",
    "master, worker, ps",
    "Kernels that the cache can't keep are used, and compiled again by the next process.",
    "none",
    "Everything",
)
@shows(
    "full disk",
    "master, worker, ps",
    "Summaries and texts of `ops.print` that have no room end their step. Once there is room, later summaries go to a "
    "new file.",
    "`OSError` that names the file and the operation",
    "All state; summaries that were written before",
)
@pytest.mark.parametrize("part", NAMES)
def test_a_task_has_no_room_for_kernels_summaries_and_texts(stored: Stored, tmp_path: Path, part: str):
    session, number = stored.lab.session, next(BY_NUMBER)
    with stored.lab.graph.as_default(), ab.device(NAMES[part]):
        tag = ab.placeholder((None,), "string", f"tag {number}")
        x = ab.placeholder((None,), "float32", f"x {number}")
        with summary.create_file_writer(str(tmp_path / "logs")).as_default():
            text = summary.text("text", tag, 7)
            written = ab.group(text, summary.flush())
        printed = ops.print("long " * 1000, output_stream=f"file://{tmp_path}/printed")
        y = ops.exp(ops.sin(x) * float(number)) + 0.25
    session.run(written, {tag: ["before"]})
    with no_space(stored.lab.running[NAMES[part]].pid):
        found = session.run(y, {x: np.ones(3, "float32")})
        with pytest.raises(OSError, match="File too large") as caught:
            session.run(written, {tag: ["without room " * 200]})
        assert f"Records can't be written to '{tmp_path}/logs/" in said(caught.value)
        with pytest.raises(OSError, match="File too large") as caught:
            session.run(printed)
        assert f"can't be printed to '{tmp_path}/printed'" in said(caught.value)
        assert "In operation 'print" in said(caught.value)
    np.testing.assert_allclose(found, np.exp(np.sin(np.ones(3)) * number) + 0.25, 1e-5)
    session.run(written, {tag: ["after"]})
    assert readable(tmp_path / "logs") == ["before", "after"]


def readable(logs: Path) -> list[str]:
    """The texts in the event files of a folder, of each file as far as its records are whole."""
    found: list[str] = []
    for path in sorted(logs.iterdir()):
        with contextlib.suppress(ab.errors.DataLossError):
            for record in ab.io.tf_record_iterator(path):
                values = CLASSES["Event"].FromString(record).summary.value
                found += [value.tensor.string_val[0].decode() for value in values]
    return found
