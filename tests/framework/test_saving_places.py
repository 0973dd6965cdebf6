"""Places of saved models: names of every kind, addresses elsewhere, folders that can't be written."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.saved_models import assert_same, dense

import anabranch as ab

# By name the functions that take a file or folder.
TAKERS: dict[str, Any] = {
    "save": lambda model, path: model.save(path),
    "save_weights": lambda model, path: model.save_weights(path),
    "load_model": lambda model, path: ab.load_model(path),
    "load_weights": lambda model, path: model.load_weights(path),
    "export": lambda model, path: model.export(path, verbose=False),
    "onnx": lambda model, path: model.export(path, "onnx", verbose=False),
    "serving.load": lambda model, path: ab.serving.load(path),
}


@pytest.mark.parametrize("name", TAKERS)
def test_open_files_and_bytes_are_refused(name: str) -> None:
    for given, got in ((io.BytesIO(), "object of type BytesIO"), (b"m.keras", "b'm.keras'"), (3, "type int")):
        with pytest.raises(TypeError, match=rf"takes the name of a file, .*got .*{got}\. .*TemporaryDirectory"):
            TAKERS[name](dense(2), given)


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("address", ["s3://bucket/m.keras", "memory://m.keras", "gs://a/m.weights.h5"])
def test_addresses_elsewhere_are_refused(name: str, address: str) -> None:
    scheme = address.partition(":")[0]
    match = rf"takes files on this machine; got the address '{address}'.*fsspec.filesystem\('{scheme}'\)"
    with pytest.raises(ValueError, match=match):
        TAKERS[name](dense(2), address)


def test_files_are_copied_to_addresses_and_from_there(tmp_path: Path) -> None:
    """The remedy of the message works."""
    fsspec = pytest.importorskip("fsspec")
    model, store = dense(2), fsspec.filesystem("memory")
    model.save(tmp_path / "m.keras")
    store.put(str(tmp_path / "m.keras"), "memory://copied/m.keras")
    store.get("memory://copied/m.keras", str(tmp_path / "again.keras"))
    assert_same(ab.load_model(tmp_path / "again.keras").get_weights(), model.get_weights())


def test_names_with_spaces_and_of_any_script(tmp_path: Path) -> None:
    folder = tmp_path / "mein Ordner \u00fc \u6f22\u5b57 #1: a"
    folder.mkdir()
    model = dense(2)
    x = np.ones((1, *model.input_shape[1:]), "float32")
    for given in (folder / "m \u00e9.keras", str(folder / "n \u00e9.keras")):
        model.save(given)
        assert_same(ab.load_model(given).get_weights(), model.get_weights())
    for name in ("w \u00e9.weights.h5", "w \u00e9.safetensors"):
        model.save_weights(folder / name)
        model.load_weights(folder / name)
    model.export(folder / "servable \u00e9", verbose=False)
    np.testing.assert_array_equal(ab.serving.load(folder / "servable \u00e9")(x), model.predict(x, verbose=0))


# --- folders that can't be written ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _read_only() -> Iterator[Path]:
    """Give a folder that this process may read and not write; root gives up its rights for this."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(before)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix", reason="modes of folders are POSIX's")
@pytest.mark.parametrize(
    ("name", "file"),
    [("save", "m.keras"), ("save", "m.h5"), ("save_weights", "m.weights.h5"), ("onnx", "m.onnx")],
)
def test_a_folder_that_is_read_only(name: str, file: str) -> None:
    model = dense(2)
    match = rf"Can't write '.*/{file}': Permission denied in the folder '.*'\. Save to another folder"
    with _read_only() as folder, pytest.raises(PermissionError, match=match) as info:
        TAKERS[name](model, folder / file)
    assert "anabranch.tmp" not in str(info.value)


@pytest.mark.skipif(os.name != "posix", reason="modes of folders are POSIX's")
@pytest.mark.parametrize("inner", ["", "models/m"])
def test_a_servable_in_a_folder_that_is_read_only(inner: str) -> None:
    match = r"No version could be written to '.*': Permission denied.*\. Export to another folder"
    with _read_only() as folder, pytest.raises(PermissionError, match=match) as info:
        dense(2).export(folder / inner, verbose=False)
    assert "anabranch.tmp" not in str(info.value)
    assert "disk full" not in str(info.value)


# --- other things than servables ------------------------------------------------------------------------------------


def test_what_is_no_servable_says_what_it_is(tmp_path: Path) -> None:
    model = dense(2)
    model.save(tmp_path / "m.keras")
    with pytest.raises(ab.serving.ServableError, match=r"m\.keras' is a file.*ab\.load_model.*export"):
        ab.serving.load(tmp_path / "m.keras")
    model.export(tmp_path / "servable", verbose=False)
    match = r"is version 1 of a servable.*ab\.serving\.load\('.*servable', version=1\)"
    with pytest.raises(ab.serving.ServableError, match=match):
        ab.serving.load(tmp_path / "servable" / "1")


# --- files of other versions, and of classes that are not here ------------------------------------------------------


def _with_metadata(path: Path, **changes: object) -> Path:
    """Write a copy of a saved model with other metadata, and with a class that no version has."""
    target = path.with_name("changed.keras")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as made:
        for name in source.namelist():
            content = source.read(name)
            if name == "metadata.json":
                content = json.dumps({**json.loads(content), **changes}).encode()
            if name == "config.json":
                content = content.replace(b'"Dense"', b'"LaterDense"')
            made.writestr(name, content)
    return target


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"anabranch_version": "99.1.0"}, r"written by anabranch 99\.1\.0, and this is .*`pip install --upgrade"),
        ({"keras_version": "9.0.1", "anabranch_version": None}, r"written by Keras 9\.0\.1; formats up to 3\.15"),
    ],
)
def test_a_file_of_a_later_version_that_can_not_be_read_says_so(
    changes: dict[str, object], remark: str, tmp_path: Path
) -> None:
    dense(2).save(tmp_path / "m.keras")
    with pytest.raises(ab.saving.SavedFileError, match=rf"names class 'LaterDense'.* {remark}"):
        ab.load_model(_with_metadata(tmp_path / "m.keras", **changes))


def test_a_file_of_this_version_has_no_such_remark(tmp_path: Path) -> None:
    dense(2).save(tmp_path / "m.keras")
    with pytest.raises(ab.saving.SavedFileError, match=r"names class 'LaterDense'") as info:
        ab.load_model(_with_metadata(tmp_path / "m.keras"))
    assert "written by" not in str(info.value)


@pytest.mark.parametrize("safe_mode", [True, False])
def test_an_unknown_class_has_a_remedy_that_helps(safe_mode: bool, tmp_path: Path) -> None:
    dense(2).save(tmp_path / "m.keras")
    with pytest.raises(ab.saving.SavedFileError, match=r"with its new class where it was renamed") as info:
        ab.load_model(_with_metadata(tmp_path / "m.keras"), safe_mode=safe_mode)
    assert ("safe_mode=False" in str(info.value)) == safe_mode
    ab.load_model(_with_metadata(tmp_path / "m.keras"), custom_objects={"LaterDense": ab.layers.Dense})
