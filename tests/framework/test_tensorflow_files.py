"""`tf.io.gfile`: files and folders by TensorFlow's names."""

from pathlib import Path
from typing import Any

import pytest

from anabranch import tf

gfile = tf.io.gfile


def test_files_are_written_read_and_listed(tmp_path: Path) -> None:
    folder = gfile.join(str(tmp_path), "runs", "first")
    gfile.makedirs(folder)
    gfile.makedirs(folder)  # it is there
    with gfile.GFile(gfile.join(folder, "notes.txt"), "w") as file:
        file.write("größe\n")
    with gfile.GFile(Path(folder) / "notes.txt") as file:
        assert file.read() == "größe\n"
    with gfile.GFile(f"file://{folder}/notes.txt", "rb") as file:
        assert file.read() == "größe\n".encode()
    gfile.mkdir(f"{folder}/empty")
    assert gfile.listdir(folder) == ["empty", "notes.txt"]
    assert gfile.glob([f"{folder}/*.txt", f"{folder}/n*"]) == [f"{folder}/notes.txt"]
    assert gfile.glob(f"{folder}/*") == [f"{folder}/empty", f"{folder}/notes.txt"]
    assert gfile.isdir(folder)
    assert not gfile.isdir(f"{folder}/notes.txt")
    assert gfile.stat(f"{folder}/notes.txt").st_size == 8
    assert list(gfile.walk(folder)) == [(folder, ["empty"], ["notes.txt"]), (f"{folder}/empty", [], [])]


def test_files_are_copied_renamed_and_deleted(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    Path(first).write_text("1")
    gfile.copy(first, second)
    for act in (gfile.copy, gfile.rename):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            act(first, second)
    Path(second).write_text("2")
    gfile.rename(first, second, overwrite=True)
    assert gfile.listdir(str(tmp_path).encode()) == ["second"]
    assert Path(second).read_text() == "1"
    gfile.remove(second)
    assert not gfile.exists(second)
    gfile.rmtree(tmp_path)
    assert not gfile.exists(tmp_path)


@pytest.mark.parametrize("act", [gfile.GFile, gfile.exists, gfile.listdir, gfile.makedirs])
def test_files_of_other_machines_are_refused(act: Any) -> None:
    with pytest.raises(ValueError, match="files of this machine, got 'gs://bucket/x'"):
        act("gs://bucket/x")
    assert "gs" not in gfile.get_registered_schemes()
