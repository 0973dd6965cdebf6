"""`anabranch.datasets`: files of the right form in the cache are read without a network, and never run."""

import gzip
import importlib
import io
import json
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.public_data import (
    boston_housing,
    california_housing,
    cifar10,
    cifar100,
    fashion_mnist,
    fetching,
    imdb,
    mnist,
    multi30k,
    ptb,
    reuters,
)
from anabranch.framework.public_data.plain_objects import read_objects

RANDOM = np.random.RandomState(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose files are taken whatever their hash: the real ones are too large to be here."""

    def find(name: str, origin: str, file_hash: str | None, cache_subdir: str = "datasets", extract: bool = False):
        path = tmp_path / cache_subdir / name
        if not path.exists():
            raise OSError(f"no route to {origin}")
        return str(path)

    monkeypatch.setattr(fetching, "get_file", find)
    (tmp_path / "datasets").mkdir()
    return tmp_path / "datasets"


def python_data(value: Any) -> bytes:
    """Return what Python's pickle writes for plain data in its protocol 2, as the data sets' files have it."""
    return b"\x80\x02" + _written(value) + b"."


def _written(value: Any) -> bytes:
    if isinstance(value, int):
        return b"J" + value.to_bytes(4, "little", signed=True)
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, list):
        return b"](" + b"".join(map(_written, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_written(part) for item in value.items() for part in item) + b"u"
    return _written_array(np.asarray(value))


def _written_array(array: np.ndarray) -> bytes:
    shape = b"(" + b"".join(map(_written, array.shape)) + b"t"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    order, kind = ("|", "O8") if array.dtype == object else ("<", array.dtype.str[1:])
    dtype = b"cnumpy\ndtype\n(" + _written(kind) + b"K\x00K\x01tR(K\x03" + _written(order) + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    if array.dtype == object:
        content = _written(array.ravel().tolist())
    else:
        content = b"T" + array.nbytes.to_bytes(4, "little") + array.tobytes()
    return made + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"


def object_rows(texts: list[list[int]]) -> np.ndarray:
    rows = np.empty(len(texts), object)
    rows[:] = texts
    return rows


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array))


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    if array.dtype != object:
        np.save(stream, array)
        return stream.getvalue()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": array.shape})
    return stream.getvalue() + python_data(array)


def test_the_written_form_is_what_python_takes_for_its_own():
    pickletools.dis(python_data({"data": np.eye(2, dtype="uint8"), "labels": [3, 70000]}), out=io.StringIO())


def test_read_objects_reads_what_the_files_hold():
    images = RANDOM.randint(0, 256, (2, 5)).astype("uint8")

    found = read_objects(
        io.BytesIO(python_data({"data": images, "labels": [3, -1], "rows": object_rows([[1], [2, 3]])}))
    )

    assert found["data"].tolist() == images.tolist()
    assert found["labels"] == [3, -1]
    assert found["rows"].tolist() == [[1], [2, 3]]


@pytest.mark.parametrize("dtype", ["int64", "float32", ">i2", "uint8", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_read_objects_reads_what_numpy_writes(dtype: str, order: Any):
    array = np.asarray(RANDOM.randint(0, 9, (3, 2)).astype(dtype), order=order)

    found = read_objects(io.BytesIO(array.dumps()))

    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("rows", [[], [[1, 2], [], [70000]], [[2**40, -1]]])
def test_read_objects_reads_arrays_of_lists(rows: list[list[int]]):
    assert read_objects(io.BytesIO(object_rows(rows).dumps())).tolist() == rows


def test_read_objects_never_runs_what_is_named(tmp_path: Path):
    harmful = b"\x80\x02cos\nmkdir\n(" + _written(str(tmp_path / "made")[-200:]) + b"tR."

    with pytest.raises(ValueError, match=r"The file asks for os\.mkdir, which no data set needs"):
        read_objects(io.BytesIO(harmful))

    assert not (tmp_path / "made").exists()


def test_read_objects_refuses_other_instructions():
    with pytest.raises(ValueError, match="The file holds EMPTY_SET, which no data set needs"):
        read_objects(io.BytesIO(b"\x80\x04\x8f."))


def test_the_public_names():
    assert importlib.import_module("anabranch.datasets.imdb").load_data is imdb.load_data
    assert ab.datasets.mnist is mnist


def test_mnist(cache: Path):
    images = RANDOM.randint(0, 256, (3, 28, 28)).astype("uint8")
    labels = np.arange(3, dtype="uint8")
    write_npz(cache / "mnist.npz", x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])

    (x_train, y_train), (x_test, y_test) = mnist.load_data()

    np.testing.assert_array_equal(x_train, images)
    assert (y_train.tolist(), x_test.shape, y_test.tolist()) == ([0, 1, 2], (1, 28, 28), [0])


def test_fashion_mnist(cache: Path):
    folder = cache / "fashion-mnist"
    folder.mkdir()
    pixels = bytes(range(256)) * 49  # 16 images
    for part in ("train", "t10k"):
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + bytes(range(16))))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels))

    (x_train, y_train), (x_test, _) = fashion_mnist.load_data()

    assert x_train.shape == x_test.shape == (16, 28, 28)
    assert (x_train[0, 0, :3].tolist(), y_train.tolist()) == ([0, 1, 2], list(range(16)))


def test_cifar10(cache: Path):
    folder = cache / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = RANDOM.randint(0, 256, (2, 3 * 32 * 32)).astype("uint8")
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(python_data({"data": images, "labels": [4, 9]}))

    (x_train, y_train), (x_test, y_test) = cifar10.load_data()

    assert (x_train.shape, y_train.shape, x_test.shape) == ((10, 32, 32, 3), (10, 1), (2, 32, 32, 3))
    np.testing.assert_array_equal(x_test[1, :, :, 2], images[1, 2048:].reshape(32, 32))
    assert (y_test.tolist(), y_test.dtype) == ([[4], [9]], "uint8")
    ab.config.set_image_data_format("channels_first")
    np.testing.assert_array_equal(cifar10.load_data()[1][0], images.reshape(2, 3, 32, 32))


def test_cifar100(cache: Path):
    folder = cache / "cifar-100-python-target" / "cifar-100-python"
    folder.mkdir(parents=True)
    data = {"data": np.zeros((1, 3072), "uint8"), "fine_labels": [99], "coarse_labels": [7]}
    for name in ("train", "test"):
        (folder / name).write_bytes(python_data(data))

    assert cifar100.load_data()[0][1].tolist() == [[99]]
    assert cifar100.load_data("coarse")[1][1].tolist() == [[7]]
    with pytest.raises(ValueError, match="label_mode must be 'fine' or 'coarse', got 'both'"):
        cifar100.load_data("both")
    ab.config.set_image_data_format("channels_first")
    assert cifar100.load_data()[0][0].shape == (1, 3, 32, 32)


@pytest.fixture
def reviews(cache: Path) -> Path:
    texts = object_rows([[1, 2, 3], [4, 50], [7]])
    write_npz(cache / "imdb.npz", x_train=texts, y_train=np.array([0, 1, 1]), x_test=texts, y_test=np.array([0, 1, 1]))
    return cache


def test_imdb(reviews: Path):
    (x_train, y_train), (x_test, _) = imdb.load_data()
    by_length = sorted(map(list, x_train), key=len)

    assert by_length == [[1, 10], [1, 7, 2], [1, 4, 5, 6]]  # 53, the largest number of all, is not below itself
    assert x_train.dtype == object
    assert sorted(map(list, x_test), key=len) == by_length
    assert sorted(y_train.tolist()) == [0, 1, 1]


def test_imdb_keeps_the_words_that_are_asked_for(reviews: Path):
    (x_train, _), _ = imdb.load_data(num_words=7, skip_top=5, start_char=None, oov_char=None)
    assert sorted(map(list, x_train), key=len) == [[], [], [5, 6]]

    (x_train, y_train), _ = imdb.load_data(maxlen=3)
    assert (len(x_train), y_train.tolist()) == (1, [1])

    with pytest.raises(ValueError, match=r"No text is shorter than maxlen=1\. Increase maxlen"):
        imdb.load_data(maxlen=1)


def test_reuters(cache: Path):
    write_npz(cache / "reuters.npz", x=object_rows([[number] for number in range(1, 11)]), y=np.arange(10))

    (x_train, y_train), (x_test, y_test) = reuters.load_data(test_split=0.3, num_words=1000)

    assert (len(x_train), len(x_test)) == (7, 3)
    for rows, labels in ((x_train, y_train), (x_test, y_test)):
        assert [row[1] - 4 for row in rows] == labels.tolist()
    assert (len(reuters.get_label_names()), reuters.get_label_names()[45]) == (46, "lead")


@pytest.mark.parametrize(("module", "width"), [(california_housing, 8), (boston_housing, 13)])
def test_housing(module: Any, width: int, cache: Path):
    x = RANDOM.normal(size=(700, width))
    write_npz(cache / f"{module.__name__.rpartition('.')[2]}.npz", x=x, y=x[:, 0])

    (x_train, y_train), (x_test, y_test) = module.load_data()

    assert (x_train.shape, x_test.shape) == ((560, width), (140, width))
    np.testing.assert_array_equal(x_train[:, 0], y_train)
    np.testing.assert_array_equal(x_test[:, 0], y_test)
    assert x_train[0, 0] != x[0, 0]  # shuffled
    with pytest.raises(ValueError, match="test_split must be at least 0 and less than 1, got 1"):
        module.load_data(test_split=1)


def test_california_housing_has_a_small_version(cache: Path):
    write_npz(cache / "california_housing.npz", x=np.zeros((700, 8)), y=np.zeros(700))

    assert len(california_housing.load_data("small")[0][0]) == 480
    with pytest.raises(ValueError, match="version must be 'large' or 'small', got 'tiny'"):
        california_housing.load_data("tiny")


def test_ptb(cache: Path):
    (cache / "ptb.train.txt").write_text(" b a b <unk>\n a b N\n", "utf-8")
    (cache / "ptb.valid.txt").write_text(" a\n", "utf-8")
    (cache / "ptb.test.txt").write_text("", "utf-8")

    train, valid, test = ptb.load_data()

    # By counts, 3, 2, 2, 1 and 1, and by the alphabet among equals, in which signs and capitals come first.
    assert ptb.get_word_index() == {"b": 0, "<eos>": 1, "a": 2, "<unk>": 3, "N": 4}
    assert train.tolist() == [0, 2, 0, 3, 1, 2, 0, 4, 1]
    assert (valid.tolist(), test.tolist(), test.dtype) == ([2, 1], [], "int32")


def test_multi30k(cache: Path):
    folder = cache / "multi30k"
    folder.mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            text = f"{part}, {language}: ä\nb\n".encode()
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(text))

    (x_train, y_train), _, (x_test, _) = multi30k.load_data()

    assert (x_train, y_train) == (["train, de: ä", "b"], ["train, en: ä", "b"])
    assert x_test == ["test_2016_flickr, de: ä", "b"]
    assert multi30k.load_data("en", "de")[0] == (y_train, x_train)
    with pytest.raises(ValueError, match="multi30k: target must be one of 'cs', 'de', 'en', 'fr', got 'eo'"):
        multi30k.load_data("de", "eo")
    with pytest.raises(OSError, match=r"'train\.cs\.gz' is not in the cache"):
        multi30k.load_data("cs")


@pytest.mark.parametrize("module", [imdb, reuters])
def test_word_index(module: Any, cache: Path):
    (cache / f"{module.__name__.rpartition('.')[2]}_word_index.json").write_text(json.dumps({"the": 1}))

    assert module.get_word_index() == {"the": 1}


def test_without_a_network_the_error_says_where_the_file_goes(cache: Path):
    with pytest.raises(OSError, match=r"'mnist\.npz' is not in the cache.*put it into ~/\.keras/datasets"):
        ab.datasets.mnist.load_data()
