"""Files on the disk: names, atomic writes, and files that are something else."""

import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from shared.saved_models import (
    assert_same,
    dense,
    refuses,
    write_zip,
)

import anabranch as ab
from anabranch.framework.saving.archive import atomic_write

SavedFileError = ab.saving.SavedFileError
layers = ab.layers


# --- files on the disk ----------------------------------------------------------------------------------------------


def test_names_of_files(tmp_path):
    model = dense(2)
    with pytest.raises(ValueError, match=r"ends in \.keras, or in \.h5 .*; got .*m\.weights\.h5"):
        model.save(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match=r"ends in \.weights\.h5, or in \.safetensors; got .*m\.keras"):
        model.save_weights(tmp_path / "m.keras")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nothing\.keras"):
        ab.load_model(tmp_path / "nothing.keras")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        model.save(tmp_path / "absent" / "m.keras")
    model.save(tmp_path / "made" / "inner" / "m.h5")  # as Keras does for these
    assert ab.load_model(tmp_path / "made" / "inner" / "m.h5", compile=False).count_params() == model.count_params()
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(IsADirectoryError, match=r"is a folder.*ab\.serving\.load"):
        ab.load_model(tmp_path / "folder.keras")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        model.save(tmp_path / "folder.keras")


def test_paths_may_be_strings(tmp_path):
    model = dense(2)
    model.save(str(tmp_path / "m.keras"))
    assert_same(ab.load_model(str(tmp_path / "m.keras")).get_weights(), model.get_weights())


def test_overwrite(tmp_path):
    first, second = dense(2), dense(2)
    for save in ("save", "save_weights"):
        path = tmp_path / ("m.keras" if save == "save" else "m.weights.h5")
        getattr(first, save)(path)
        with pytest.raises(FileExistsError, match="overwrite=True"):
            getattr(second, save)(path, overwrite=False)
        getattr(second, save)(path)
        first.load_weights(path)
        assert_same(first.get_weights(), second.get_weights())


def test_an_unbuilt_model_has_no_weights_to_save(tmp_path):
    model = ab.Sequential([layers.Dense(2)])
    with pytest.raises(ValueError, match="not built and has none yet"):
        model.save_weights(tmp_path / "m.weights.h5")
    with pytest.warns(UserWarning, match="before it is built, so without weights"):
        model.save(tmp_path / "m.keras")
    assert not ab.load_model(tmp_path / "m.keras").built


def _empty_hdf5() -> bytes:
    stream = io.BytesIO()
    h5py.File(stream, "w").close()
    return stream.getvalue()


EMPTY_HDF5 = _empty_hdf5()


class BoomError(Exception):
    pass


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.keras"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as stream:
            stream.write(b"half of the new")
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_layer_that_can_not_be_saved_leaves_the_old_file(tmp_path):
    class Broken(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

        def save_own_variables(self, store: Any) -> None:
            raise BoomError

    model = ab.Sequential([ab.Input((3,)), layers.Dense(2), Broken()])
    for name in ("m.keras", "m.weights.h5"):
        path = tmp_path / name
        path.write_bytes(b"old")
        with pytest.raises(BoomError):
            (model.save if name == "m.keras" else model.save_weights)(path)
        assert path.read_bytes() == b"old"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.keras", "m.weights.h5"]


KILLED = """
import os, pathlib, signal, sys
from anabranch.engine.common.atomic import atomic_write
with atomic_write(pathlib.Path(sys.argv[1])) as stream:
    stream.write(b"half of the new")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="files are locked as POSIX does it")
def test_what_a_killed_save_left_is_removed_by_the_next_one(tmp_path):
    for name in ("m.keras", "epoch-1.keras"):
        process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], timeout=120)
        assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1  # the second removed what the first had left
    (tmp_path / ".other.tmp").write_bytes(b"of another program")
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
    model.save(tmp_path / "m.keras")
    assert sorted(item.name for item in tmp_path.iterdir()) == [".other.tmp", "m.keras"]


@pytest.mark.skipif(os.name != "posix", reason="files are locked as POSIX does it")
def test_what_is_being_written_is_not_removed_by_another_save(tmp_path):
    path = tmp_path / "m.keras"
    with atomic_write(path) as first:
        first.write(b"first")
        with atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="links and modes are those of POSIX")
def test_links_and_modes_stay(tmp_path):
    real, link = tmp_path / "real.keras", tmp_path / "link.keras"
    dense(2).save(real)
    real.chmod(0o640)
    link.symlink_to(real)
    model = dense(2)
    model.save(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert_same(ab.load_model(real).get_weights(), model.get_weights())


# --- wrong and hostile files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello, this is no model at all", "it is not a zip archive"),
        (b"\x89HDF\r\n\x1a\n" + b"\x00" * 100, "damaged or cut short"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"PK\x03\x04 and then nothing", "damaged or cut short"),
    ],
    ids=["empty", "text", "hdf5", "lfs", "zip start"],
)
def test_other_kinds_of_files(content, message, tmp_path):
    (tmp_path / "m.keras").write_bytes(content)
    with pytest.raises(SavedFileError, match=message):
        ab.load_model(tmp_path / "m.keras")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"readme.txt": b"x"}, r"no member 'config\.json', but readme\.txt"),
        ({"config.json": b'{"class_name": 1}'}, r"no member 'model\.weights\.h5'"),
        ({"config.json": b"{}", "model.weights.npz": b""}, "needs pickle"),
        ({"config.json": b"[1, 2]", "model.weights.h5": b""}, "describes no model"),
        ({"config.json": b"{{{", "model.weights.h5": b""}, "damaged"),
        ({"config.json": b'{"class_name": "Adam", "config": {}}', "model.weights.h5": b""}, "damaged"),
        ({"config.json": b'{"class_name": "Adam", "config": {}}', "model.weights.h5": EMPTY_HDF5}, "not a model"),
    ],
    ids=["no config", "no weights", "npz", "list", "no json", "empty weights", "optimizer"],
)
def test_zips_that_are_no_models(members, message, tmp_path):
    write_zip(tmp_path / "m.keras", members)
    with pytest.raises(SavedFileError, match=message):
        ab.load_model(tmp_path / "m.keras")


def test_a_weights_file_that_is_no_hdf5(tmp_path):
    (tmp_path / "m.weights.h5").write_bytes(b"nothing of the kind")
    refuses(dense(2), tmp_path / "m.weights.h5", "damaged")


def write_hdf5(path: Path, fill: Any) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/d0/vars")
        fill(group, path)
    return path


def external_link(group: Any, path: Path) -> None:
    group["0"] = h5py.ExternalLink("/etc/secret.h5", "/data")


def soft_link(group: Any, path: Path) -> None:
    group["0"] = h5py.SoftLink("/elsewhere")


def external_storage(group: Any, path: Path) -> None:
    group.create_dataset("0", (3, 2), "f4", external=[(str(path) + ".raw", 0, 24)])


def virtual(group: Any, path: Path) -> None:
    layout = h5py.VirtualLayout((3, 2), "f4")
    layout[:] = h5py.VirtualSource(str(path) + ".other", "x", (3, 2), "f4")
    group.create_virtual_dataset("0", layout)


def text(group: Any, path: Path) -> None:
    group["0"] = "text"


def bomb(group: Any, path: Path) -> None:
    group.create_dataset("0", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")


def deep(group: Any, path: Path) -> None:
    for _ in range(200):
        group = group.create_group("g")


HOSTILE = {
    external_link: "link elsewhere",
    soft_link: "link elsewhere",
    external_storage: "another file",
    virtual: "another file",
    text: "not numbers",
    bomb: "next to none",
    deep: "nested more than",
}


@pytest.mark.parametrize("fill", HOSTILE, ids=lambda fill: fill.__name__)
def test_hostile_hdf5(fill, tmp_path):
    refuses(dense(2), write_hdf5(tmp_path / "m.weights.h5", fill), HOSTILE[fill])


def test_a_zip_bomb(tmp_path):
    path = tmp_path / "m.keras"
    dense(2).save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        members = {name: archive.read(name) for name in ("metadata.json", "config.json")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        with archive.open("model.weights.h5", "w") as member:
            for _ in range(300):
                member.write(b"\0" * (1 << 20))
    with pytest.raises(SavedFileError, match="would unpack"):
        ab.load_model(path)


def test_a_compressed_archive_is_read(tmp_path):
    path = tmp_path / "m.keras"
    model = dense(2)
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert_same(ab.load_model(path).get_weights(), model.get_weights())


# --- the seal of weights files --------------------------------------------------------------------------------------


def test_a_file_changed_on_purpose_is_read(tmp_path):
    path = tmp_path / "m.weights.h5"
    model = dense(2)
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        bias: Any = file["layers/dense/vars/1"]
        bias[:] = [5.0, 6.0]
    model.load_weights(path)
    np.testing.assert_array_equal(model.get_weights()[1], [5.0, 6.0])


def test_the_inner_file_of_an_archive_is_read(tmp_path):
    saved, model = dense(2), dense(2)
    saved.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        (tmp_path / "inner.weights.h5").write_bytes(archive.read("model.weights.h5"))
    model.load_weights(tmp_path / "inner.weights.h5")
    assert_same(model.get_weights(), saved.get_weights())


def test_old_names_of_layers(tmp_path):
    saved, model = dense(4, 2), dense(4, 2)
    saved.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5", "r+") as file:
        file.move("layers", "_layer_checkpoint_dependencies")
    model.load_weights(tmp_path / "m.weights.h5")
    assert_same(model.get_weights(), saved.get_weights())


def test_zeros_at_the_end_are_noticed(tmp_path):
    path = tmp_path / "m.weights.h5"
    dense(2).save_weights(path)
    content = path.read_bytes()
    for length in (1, 30, 60, 500):
        path.write_bytes(content[:-length] + b"\0" * length)
        refuses(dense(2), path, "damaged")


def test_an_inner_file_cut_short(tmp_path):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["x"] = np.arange(1000)
    for length in (0, 7, 8, 50, 500, len(stream.getvalue()) - 1):
        (tmp_path / "m.weights.h5").write_bytes(stream.getvalue()[:length])
        refuses(dense(2), tmp_path / "m.weights.h5", "damaged")


def two_layers() -> Any:
    return ab.Sequential([ab.Input((3,)), ab.layers.Dense(2, name="body"), ab.layers.Dense(1, name="head")])


def test_objects_to_skip_keep_their_weights(tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    saved, loaded = two_layers(), two_layers()
    saved.save_weights(tmp_path / "all.weights.h5")
    head = loaded.get_layer("head").get_weights()
    loaded.load_weights(tmp_path / "all.weights.h5", objects_to_skip=[loaded.get_layer("head")])
    np.testing.assert_array_equal(loaded.get_layer("body").kernel, saved.get_layer("body").kernel)
    np.testing.assert_array_equal(loaded.get_layer("head").kernel, head[0])
    other_head = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2), ab.layers.Dense(5)])  # weights of another shape
    other_head.load_weights(tmp_path / "all.weights.h5", objects_to_skip=other_head.layers[1:])


def test_files_leave_out_objects_to_skip(tmp_path: Path) -> None:
    model = two_layers()
    ab.saving.save_weights(model, tmp_path / "body.weights.h5", objects_to_skip=[model.get_layer("head")])
    model.load_weights(tmp_path / "body.weights.h5", objects_to_skip=[model.get_layer("head")])
    with pytest.raises(ValueError, match=r"layer 'head' .* the model has 2 weights, the file 0"):
        model.load_weights(tmp_path / "body.weights.h5")
    with pytest.raises(ValueError, match=r"objects_to_skip is for files that end in \.weights\.h5"):
        ab.saving.save_weights(model, tmp_path / "body.safetensors", objects_to_skip=[model])
    model.save_weights(tmp_path / "body.safetensors")
    with pytest.raises(ValueError, match=r"objects_to_skip is for files that end in \.weights\.h5"):
        model.load_weights(tmp_path / "body.safetensors", objects_to_skip=[model])


def test_names_of_ops_in_a_config_do_not_depend_on_what_was_made_before() -> None:
    def build() -> Any:
        x, y = ab.Input((4,), name="x"), ab.Input((4,), name="y")
        slices = [ab.ops.softmax(x)[:, 0:1], y[:, 1:3]]
        return ab.Model([x, y], ab.ops.relu(slices[0] * y) + ab.ops.gelu(slices[1])[:, :1], name="model")

    config = build().get_config()
    names = [layer["name"] for layer in config["layers"]]
    assert len(set(names)) == len(names)
    assert {"softmax", "get_item", "get_item_1", "get_item_2"} <= set(names)
    assert build().get_config() == config
    assert ab.Model.from_config(config).get_config() == config
