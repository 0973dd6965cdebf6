"""Checkpoints: what is saved comes back, whatever its dtype; damage, absence and other shapes are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.checkpoint import files
from anabranch.engine.checkpoint.files import write_manifest, write_shard
from anabranch.engine.checkpoint.folders import Folder
from anabranch.engine.common.atomic import Disk
from anabranch.engine.queues.errors import DataLossError

DTYPES = ["float32", "float64", "bfloat16", "float16", "int8", "uint64", "bool", "complex64", "string"]


def spec_of(shape: Any, dtype: str) -> ab.InputSpec:
    return ab.InputSpec(shape=shape, dtype=dtype)


def array_of(dtype: str, shape: list[int], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype == "string":
        words = np.array(["", "a", "größer", "two words", "0"], np.dtypes.StringDType())
        return np.asarray(words[rng.integers(0, 5, shape)], words.dtype)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return (rng.normal(size=shape) * 50).astype(kind)


@settings(max_examples=examples(15, 60), deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.sampled_from([0, 1, 3]), max_size=3),
    seed=st.integers(0, 99),
    in_graph=st.booleans(),
)
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int], seed: int, in_graph: bool
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint") / "step-1"
    array, other = array_of(dtype, shape, seed), np.arange(3.0)
    spec = spec_of(tuple(shape), dtype)
    if in_graph:
        with ab.Graph().as_default() as graph:
            saved = ab.io.save(folder, ["one/two", "other"], [array, other])
            restored = ab.io.restore(folder, ["one/two"], [spec])
        session = ab.Session(graph)
        session.run(saved)
        (found,) = session.run(restored)
    else:
        ab.io.save(folder, ["one/two", "other"], [array, other])
        found = ab.io.restore(folder, ["one/two"], [spec])[0].numpy()
    if isinstance(found, str):  # as sessions give single strings
        found = np.asarray(found, array.dtype)
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert found.tolist() == array.tolist()
    reader = ab.io.checkpoint_reader(folder)
    assert list(reader) == ["one/two", "other"]
    assert reader["other"].tolist() == [0.0, 1.0, 2.0]


def test_variables_are_saved_as_they_are_when_the_step_runs(tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph:
        v = ab.Variable([1.0, 2.0], name="v")
        prefix = ab.placeholder((), "string", "prefix")
        saved = ab.io.save(prefix, ["v"], [v], '{"step": 7}')
        restored = v.assign(ab.io.restore(prefix, ["v"], [v])[0])
        more = v.assign_add([1.0, 1.0])
    with ab.Session(graph) as session:
        session.run(more)
        session.run(saved, {prefix: str(tmp_path / "a")})
        session.run(more)
        assert session.run(v).tolist() == [3.0, 4.0]
        session.run(restored, {prefix: str(tmp_path / "a")})
        assert session.run(v).tolist() == [2.0, 3.0]
    assert ab.io.checkpoint_reader(tmp_path / "a").manifest["step"] == 7


def test_shards_are_put_together(tmp_path: Path) -> None:
    first = write_shard(tmp_path, 0, 2, {"a": np.arange(3)})
    second = write_shard(tmp_path, 1, 2, {"b": np.eye(2)})
    with pytest.raises(FileNotFoundError, match=r"was not written to its end: there is no manifest\.json"):
        ab.io.checkpoint_reader(tmp_path)
    write_manifest(tmp_path, [first, second], {})
    reader = ab.io.checkpoint_reader(tmp_path)
    assert reader["a"].tolist() == [0, 1, 2]
    assert reader["b"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(ValueError, match=r"Two shards of .* have a tensor 'a'"):
        write_manifest(tmp_path, [first, {**second, "pieces": first["pieces"]}], {})
    with pytest.raises(FileNotFoundError, match=r"A task has written 'shard-9-of-10\.h5' .* all tasks share"):
        write_manifest(tmp_path, [{**first, "file": "shard-9-of-10.h5"}], {})


def test_the_file_is_plain_hdf5(tmp_path: Path) -> None:
    ab.io.save(tmp_path / "c", ["w"], [np.arange(6.0, dtype="float32").reshape(2, 3)])
    (shard,) = (tmp_path / "c").glob("shard-0-of-1-*.h5")
    opened: Any = h5py.File(shard)
    with opened as file:
        assert file["0"][()].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert dict(file["0"].attrs)["name"] == "w"
        assert file["0"].attrs["global_shape"].tolist() == [2, 3]
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["shards"] == [{"file": shard.name, "size": shard.stat().st_size}]


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    ab.io.save(tmp_path / "step-3", ["layer/kernel", "layer/bias"], [np.ones((4, 2)), np.zeros(2)])
    return tmp_path / "step-3"


def test_what_is_not_there_is_named(checkpoint: Path) -> None:
    with pytest.raises(KeyError, match=r"has no tensor 'layer/kernal'. It has \['layer/kernel'"):
        ab.io.restore(checkpoint, ["layer/kernal"], [spec_of((4, 2), "float64")])
    with pytest.raises(ValueError, match=r"is float64\[4,2\]; expected float64\[2,4\]. Nothing was restored"):
        ab.io.restore(checkpoint, ["layer/kernel"], [spec_of((2, 4), "float64")])
    with pytest.raises(ValueError, match=r"expected float32\[4,\?\]"):
        ab.io.restore(checkpoint, ["layer/kernel"], [spec_of((4, None), "float32")])
    with pytest.raises(FileNotFoundError, match=r"is no folder: there is no manifest\.json"):
        ab.io.checkpoint_reader(checkpoint.parent / "step-4")
    with pytest.raises(ValueError, match="2 names and 1 tensors"):
        ab.io.save(checkpoint, ["a", "b"], [1.0])
    with pytest.raises(ValueError, match=r"the names \['a'\] are given more than once"):
        ab.io.save(checkpoint, ["a", "a"], [1.0, 2.0])


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_named(checkpoint: Path, seed: int) -> None:
    """Whatever bits are flipped, and files cut: the values that were saved, or an error that names the file."""
    rng = np.random.default_rng(seed)
    (path,) = checkpoint.glob("manifest.json" if seed % 3 == 0 else "shard-0-of-1-*.h5")
    data = bytearray(path.read_bytes())
    if seed % 2:
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    else:
        del data[rng.integers(len(data)) :]
    path.write_bytes(data)
    known = {"layer/kernel": np.ones((4, 2)).tolist(), "layer/bias": [0.0, 0.0]}
    found: Any = None
    message = ""
    try:
        reader = ab.io.checkpoint_reader(checkpoint)
        found = {name: reader[name].tolist() for name in known}
    except (DataLossError, FileNotFoundError) as error:
        message = str(error)
    assert "step-3" in message or found == known


def test_a_later_version_is_refused(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text()) | {"version": 3}
    del manifest["crc32"]
    manifest["crc32"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataLossError, match=r"is of version 3 of the format; .* Read it with a newer anabranch"):
        ab.io.checkpoint_reader(checkpoint)


def test_graphs_with_these_ops_are_read_in_new_processes(tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph:
        saved: Any = ab.io.save(str(tmp_path / "c"), ["w"], [ab.distribute.all_reduce([1.0, 2.0])])
    graph.save(tmp_path / "graph.npz")
    program = (
        "import sys, anabranch as ab\n"
        "graph = ab.load_graph(sys.argv[1])\n"
        f"ab.Session(graph).run(graph.get_operation_by_name({saved.name!r}))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "graph.npz")], check=True)
    assert ab.io.checkpoint_reader(tmp_path / "c")["w"].tolist() == [1.0, 2.0]


def test_a_large_array_goes_to_the_disk_while_the_rest_of_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[int, int]] = []

    class Watched(Disk):
        def begin_sync(self, stream: Any, first: int, size: int) -> None:
            asked.append((first, size))
            super().begin_sync(stream, first, size)

    monkeypatch.setattr(files, "_AT_ONCE", 1 << 12)
    array, small = np.random.default_rng(2).normal(size=(10, 700)), np.arange(3)
    folder = Folder(tmp_path / "c", Watched())
    write_manifest(folder, [write_shard(folder, 0, 1, {"w": array, "v": small})], {})
    assert [size for _, size in asked] == [4096] * 13 + [array.nbytes - 13 * 4096]
    assert [first - asked[0][0] for first, _ in asked] == list(range(0, array.nbytes, 4096))
    reader = ab.io.checkpoint_reader(tmp_path / "c")
    np.testing.assert_array_equal(reader["w"], array)
    np.testing.assert_array_equal(reader["v"], small)
    (piece,) = json.loads((tmp_path / "c" / "manifest.json").read_text())["tensors"]["w"]["pieces"]
    assert piece["crc32"] == zlib.crc32(array.tobytes())


def test_a_folder_is_removed_while_others_remove_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A task that still wrote for a save that had failed on another one removed its temporary file just then."""
    folder, unlink = tmp_path / "step-2", os.unlink
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    gone: list[Any] = []

    def slower(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not gone:
            gone.append(path)
            unlink(path, **options)

    monkeypatch.setattr(os, "unlink", slower)
    Disk().remove_folder(folder)
    assert gone
    assert not folder.exists()


@pytest.mark.parametrize("times", [1, 100])
def test_a_folder_is_removed_while_others_write_there(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, rmdir, made = tmp_path / "step-2", os.rmdir, list[int]()
    folder.mkdir()

    def slower(path: Any, **options: Any) -> None:
        if len(made) < times:
            made.append(len(made))
            (folder / f"{len(made)}.tmp").touch()
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", slower)
    if times == 1:
        Disk().remove_folder(folder)
        assert not folder.exists()
    else:
        with pytest.raises(OSError, match="not empty"):
            Disk().remove_folder(folder)
