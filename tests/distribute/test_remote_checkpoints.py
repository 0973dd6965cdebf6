"""Checkpoints in folders that fsspec reads and writes: in memory, and by tasks in a folder that is named by a URL."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER, Running

import anabranch as ab
from anabranch.distribute import CheckpointManager
from anabranch.engine.checkpoint.folders import Folder, RemoteFolder, folder_of

ops = ab.ops
fsspec = pytest.importorskip("fsspec", reason="fsspec is an optional dependency")

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture
def url() -> Generator[str]:
    store = fsspec.filesystem("memory")
    name = f"/{uuid.uuid4().hex}"
    yield f"memory://{name}/run"
    if store.exists(name):
        store.rm(name, recursive=True)


@pytest.fixture
def v() -> ab.Variable:
    return ab.Variable([1.0, 2.0], name="v")


def test_checkpoints_are_kept_restored_and_removed(v: ab.Variable, url: str) -> None:
    with CheckpointManager(url, [v], max_to_keep=2) as manager:
        assert (manager.directory, manager.latest_step(), manager.restore()) == (url, None, None)
        for step in range(4):
            v.assign([float(step), 0.0])
            assert manager.save(step)
        assert manager.all_steps() == [2, 3]
        assert manager.restore(2) == 2
        assert v.numpy().tolist() == [2.0, 0.0]
        with pytest.raises(FileNotFoundError, match=r"run/step-0' is no folder"):
            manager.restore(0)
    again = ab.Variable([0.0, 0.0], name="v")
    with CheckpointManager(url, [again], save_async=False) as manager:
        assert manager.restore() == 3
        assert again.numpy().tolist() == [3.0, 0.0]
    assert ab.io.checkpoint_reader(f"{url}/step-3")["v"].tolist() == [3.0, 0.0]


def test_a_model_goes_through_a_url(url: str) -> None:
    model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    with CheckpointManager(url, model) as manager:
        manager.save(1)
        kept = model.get_weights()
        model.set_weights([weight * 0 for weight in kept])
        assert manager.restore() == 1
    for ours, theirs in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_part_of_a_tensor_is_read_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(400_000, dtype="float64").reshape(-1, 4)
    ab.io.save(url, ["table", "other"], [table, np.zeros(500_000)])
    store, read = fsspec.filesystem("memory"), []

    class Counting:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def read(self, size: int = -1) -> bytes:
            read.append(size)
            return self._stream.read(size)

        def readinto(self, buffer: Any) -> int:
            found = self._stream.read(len(buffer))
            buffer[: len(found)] = found
            read.append(len(found))
            return len(found)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None:
            self._stream.close()

    opened = type(store).open
    monkeypatch.setattr(type(store), "open", lambda self, *args, **kwargs: Counting(opened(self, *args, **kwargs)))
    np.testing.assert_array_equal(
        ab.io.restore(url, ["table"], [ab.InputSpec(shape=table.shape, dtype="float64")])[0], table
    )
    assert table.nbytes <= sum(read) < table.nbytes + 100_000


def test_what_can_not_be_sent_is_raised_and_the_checkpoint_before_stays(
    v: ab.Variable, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, local: str, path: str, **kwargs: Any) -> None:
        raise OSError("the connection was reset")

    with CheckpointManager(url, [v]) as manager:
        manager.save(1)
        manager.wait_until_finished()
        store = type(fsspec.filesystem("memory"))
        with monkeypatch.context() as patch:
            patch.setattr(store, "put_file", fail)
            manager.save(2)
            with pytest.raises(OSError, match="the connection was reset"):
                manager.save(3)
        assert manager.all_steps() == [1]
        assert manager.save(4)
        assert manager.all_steps() == [1, 4]


def test_a_torn_manifest_is_left_out_with_a_warning(v: ab.Variable, url: str) -> None:
    store = fsspec.filesystem("memory")
    with CheckpointManager(url, [v], save_async=False) as manager:
        manager.save(1)
        manager.save(2)
        path = f"{url.removeprefix('memory://')}/step-2/manifest.json"
        store.pipe_file(path, store.cat_file(path)[:-20])
        with pytest.warns(UserWarning, match="before step 2"):
            assert manager.restore() == 1


def test_tasks_save_and_restore_by_a_url(running: Running, tmp_path: Path) -> None:
    graph = ab.Graph()
    with graph.as_default():
        with ab.device(PS):
            a = ab.Variable([1.0, 2.0], name="remote_a")
        with ab.device(WORKER):
            b = ab.Variable([3.0], name="remote_b")
        values = [ops.convert_to_tensor(each) for each in (a, b)]
        change = ab.group(a.assign([0.0, 0.0]), b.assign([0.0]))
    with ab.Session(graph, target=running[WORKER].target) as session:
        session.run(values)
        with CheckpointManager(f"local://{tmp_path}/run", [a, b], session=session) as manager:
            assert manager.save(5)
            session.run(change)
            assert manager.restore() == 5
        assert [each.tolist() for each in session.run(values)] == [[1.0, 2.0], [3.0]]
    names = sorted(path.name for path in (tmp_path / "run" / "step-5").iterdir())
    assert [name.rpartition("-")[0] for name in names] == ["", "shard-0-of-2", "shard-1-of-2"]


def test_which_folders_are_elsewhere() -> None:
    assert type(folder_of("saved/run")) is type(folder_of("file:///saved/run")) is Folder
    assert str(folder_of("file:///saved/run")) == "/saved/run"
    assert type(folder_of("memory://saved/run/")) is RemoteFolder
    with pytest.raises(ValueError, match="nosuch"):
        folder_of("nosuch://bucket/run")


def test_the_extra_is_named_where_fsspec_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anabranch\[remote\]'"):
        folder_of("s3://bucket/run")
