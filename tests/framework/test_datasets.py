"""Datasets from arrays and folders, files from addresses, images, and what `fit` takes beside arrays."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.framework.data.adapters import as_data, train_validation_split
from anabranch.framework.data.lazy_arrays import LazyArray
from anabranch.framework.utils import (
    Dataset,
    get_file,
    image_dataset_from_directory,
    img_to_array,
    load_img,
    save_img,
    text_dataset_from_directory,
    timeseries_dataset_from_array,
)

SERIES = np.arange(20, dtype="float32")


def linear_model() -> Any:
    ab.utils.set_random_seed(1)
    model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


# --- time series ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "stride", "rate", "batch_size", "part"),
    [(3, 1, 1, 4, (None, None)), (4, 2, 3, 2, (None, None)), (1, 5, 1, 128, (2, 17)), (2, 1, 2, 3, (5, None))],
)
def test_windows_are_those_of_a_plain_loop(
    length: int, stride: int, rate: int, batch_size: int, part: tuple[int | None, int | None]
) -> None:
    targets = SERIES * 10
    data = np.stack([SERIES, -SERIES], axis=1)
    dataset = timeseries_dataset_from_array(
        data, targets, length, stride, rate, batch_size, start_index=part[0], end_index=part[1]
    )
    start, end = part[0] or 0, part[1] or 20
    starts = [i for i in range(start, end, 1) if i + (length - 1) * rate < end][::stride]
    windows = np.concatenate([x for x, _ in dataset])
    np.testing.assert_array_equal(windows, [data[i : i + length * rate : rate] for i in starts])
    np.testing.assert_array_equal(np.concatenate([y for _, y in dataset]), targets[starts])
    assert len(dataset) == -(-len(starts) // batch_size)


def test_fit_keeps_the_order_of_the_batches() -> None:
    """As in Keras, whose datasets `fit` does not shuffle, unlike those of `PyDataset`."""
    seen: list[float] = []

    def noted(x: Any, y: Any) -> tuple[Any, Any]:
        seen.append(float(y[0]))
        return x, y

    dataset = timeseries_dataset_from_array(SERIES, SERIES, 3, batch_size=2).map(noted)
    model = ab.Sequential([ab.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset, epochs=2, verbose=0)
    assert seen[-18:] == [float(value) for value in SERIES[:18:2]] * 2
    model.fit(ab.utils.Prefetch(dataset), verbose=0)
    assert seen[-9:] == [float(value) for value in SERIES[:18:2]]


def test_shuffled_windows_keep_their_targets_and_repeat_with_a_seed() -> None:
    def batches(seed: int | None) -> list[Any]:
        dataset = timeseries_dataset_from_array(SERIES, SERIES, 3, batch_size=5, shuffle=True, seed=seed)
        return [np.concatenate(part) for _ in range(2) for part in zip(*dataset, strict=True)]

    x, y, again, _ = batches(3)
    np.testing.assert_array_equal(x[:, 0], y)
    np.testing.assert_array_equal(np.sort(y), SERIES[:18])
    assert (x != again).any()
    np.testing.assert_array_equal(batches(3)[2], again)
    ab.utils.set_random_seed(0)
    first = batches(None)[0]
    ab.utils.set_random_seed(0)
    np.testing.assert_array_equal(batches(None)[0], first)


def test_windows_train_a_model() -> None:
    dataset = timeseries_dataset_from_array(SERIES / 20, SERIES[4:] / 20, 4, batch_size=6)
    model = linear_model()
    history = model.fit(dataset, epochs=3, validation_data=dataset, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(dataset, verbose=0).shape == (16, 1)
    assert np.isfinite(model.evaluate(dataset, verbose=0))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be above 0"),
        ({"sequence_length": 3, "sequence_stride": 20}, "sequence_stride must be .* 20; got 20"),
        ({"sequence_length": 3, "sampling_rate": -1}, "sampling_rate"),
        ({"sequence_length": 9, "sampling_rate": 4}, "too few for a window of 9"),
        ({"sequence_length": 3, "start_index": 5, "end_index": 4}, "name no part"),
        ({"sequence_length": 3, "batch_size": 0}, "batch_size must be at least 1"),
        ({"sequence_length": 3, "format": "torch"}, "format must be 'tf' or 'grain', got 'torch'"),
    ],
)
def test_windows_that_can_not_be_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timeseries_dataset_from_array(SERIES, None, **kwargs)


# --- datasets -------------------------------------------------------------------------------------------------------


def test_datasets_are_mapped_cut_and_cached() -> None:
    made: list[int] = []

    def make(rows: Any) -> Any:
        made.append(len(rows))
        return rows, rows * 2

    dataset = Dataset(7, make, batch_size=3, class_names=["a"])
    mapped = dataset.map(lambda x, y: y - x).prefetch(2)
    assert [batch.tolist() for batch in mapped] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.tolist() for batch in mapped.take(1)] == [[0, 1, 2]]
    assert [batch.tolist() for batch in mapped.skip(2)] == [[6]]
    assert mapped.class_names == ["a"]
    made.clear()
    cached = dataset.cache()
    assert len(list(cached)) == len(list(cached)) == 3
    assert made == [3, 3, 1]
    with pytest.raises(IndexError, match="no batch 3"):
        dataset[3]
    assert [sample[1] for sample in Dataset(2, make, batch_size=None)] == [0, 2]


# --- folders of texts -----------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for folder, content in (("bad", ["dull", "poor"]), ("good", ["fine", "grand", "schön"]), (".hidden", ["x"])):
        (tmp_path / folder).mkdir()
        for position, text in enumerate(content):
            (tmp_path / folder / f"{position}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "good" / "notes.md").write_text("no text")
    return tmp_path


def test_texts_come_with_the_labels_of_their_folders(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = text_dataset_from_directory(texts, batch_size=2, shuffle=False)
    assert capsys.readouterr().out == "Found 5 files belonging to 2 classes.\n"
    assert dataset.class_names == ["bad", "good"]
    assert [x.tolist() for x, _ in dataset] == [["dull", "poor"], ["fine", "grand"], ["schön"]]
    labels = [y for _, y in dataset]
    assert np.concatenate(labels).tolist() == [0, 0, 1, 1, 1]
    assert labels[0].dtype == np.int32


def test_labels_take_every_form(texts: Path) -> None:
    def first(**kwargs: Any) -> Any:
        return text_dataset_from_directory(texts, shuffle=False, verbose=False, **kwargs)[0]

    assert first(label_mode="binary")[1].tolist() == [[0.0], [0.0], [1.0], [1.0], [1.0]]
    assert first(label_mode="categorical")[1][2].tolist() == [0.0, 1.0]
    assert first(label_mode=None, max_length=2).tolist() == ["x", "du", "po", "fi", "gr", "sc"]
    assert first(class_names=["good", "bad"])[1].tolist() == [0, 0, 0, 1, 1]
    hidden = text_dataset_from_directory(texts, labels=None, shuffle=False, verbose=False)
    assert len(hidden.file_paths) == 6
    assert first(labels=[5, 4, 3, 2, 1, 0])[1].tolist() == [5, 4, 3, 2, 1, 0]


def test_a_split_has_every_file_once(texts: Path) -> None:
    kwargs: dict[str, Any] = {"validation_split": 0.4, "seed": 3, "verbose": False}
    train = text_dataset_from_directory(texts, subset="training", **kwargs)
    validation = text_dataset_from_directory(texts, subset="validation", **kwargs)
    both = text_dataset_from_directory(texts, subset="both", **kwargs)
    assert (len(train.file_paths), len(validation.file_paths)) == (3, 2)
    assert len(set(train.file_paths) | set(validation.file_paths)) == 5
    assert [dataset.file_paths for dataset in both] == [train.file_paths, validation.file_paths]


def test_shuffled_texts_keep_their_labels(texts: Path) -> None:
    dataset = text_dataset_from_directory(texts, seed=1, verbose=False)
    for _ in range(2):
        ((x, y),) = list(dataset.as_numpy_iterator())
        assert {(word, int(label)) for word, label in zip(x, y, strict=True)} == {
            ("dull", 0), ("poor", 0), ("fine", 1), ("grand", 1), ("schön", 1)
        }  # fmt: skip


def test_texts_train_a_model(texts: Path) -> None:
    dataset = text_dataset_from_directory(texts, batch_size=2, label_mode="binary", seed=0, verbose=False)
    vectorize = ab.layers.TextVectorization(output_mode="multi_hot")
    vectorize.adapt(dataset.map(lambda x, y: x))
    model = ab.Sequential([ab.Input((), dtype="string"), vectorize, ab.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    model.fit(dataset, epochs=1, verbose=0)
    assert model.predict(dataset, verbose=0).shape == (5, 1)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"labels": "given"}, "labels must be 'inferred', None, or a list"),
        ({"labels": [1, 2]}, "2 labels for 6 files"),
        ({"labels": None, "class_names": ["a"]}, "class_names are for labels='inferred'"),
        ({"class_names": ["ugly"]}, r"class_names name \['ugly'\]"),
        ({"class_names": ["bad"], "label_mode": "binary"}, "needs two classes, got 1"),
        ({"label_mode": "one"}, "label_mode must be"),
        ({"format": "torch"}, "format must be 'tf' or 'grain', got 'torch'"),
        ({"validation_split": 0.2}, "given together"),
        ({"validation_split": 2.0, "subset": "both"}, "between 0 and 1"),
        ({"validation_split": 0.2, "subset": "test"}, "subset must be"),
        ({"validation_split": 0.2, "subset": "training"}, "give a seed"),
        ({"validation_split": 0.1, "subset": "both"}, "leaves none for validation"),
    ],
)
def test_folders_refuse_arguments_that_contradict_each_other(texts: Path, kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_dataset_from_directory(texts, verbose=False, **kwargs)


def test_folders_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no files in .* that end in .txt"):
        text_dataset_from_directory(tmp_path)
    with pytest.raises(ValueError, match="There is no folder"):
        text_dataset_from_directory(tmp_path / "nowhere")


# --- images ---------------------------------------------------------------------------------------------------------


def test_without_pillow_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    for call in (
        lambda: load_img(tmp_path / "a.png"),
        lambda: save_img(tmp_path / "a.png", np.zeros((1, 1, 3))),
        lambda: image_dataset_from_directory(tmp_path),
    ):
        with pytest.raises(ImportError, match=r"pip install anabranch\[images\]"):
            call()


def test_arrays_get_an_axis_of_channels() -> None:
    assert img_to_array(np.zeros((2, 5)), "channels_first").shape == (1, 2, 5)
    assert img_to_array(np.zeros((2, 5, 3), "uint8"), "channels_first").shape == (3, 2, 5)
    assert img_to_array(np.zeros((2, 5)), dtype="uint8").dtype == np.uint8
    with pytest.raises(ValueError, match=r"2 or 3 axes, got shape \(3,\)"):
        img_to_array(np.zeros(3))
    with pytest.raises(ValueError, match="data_format must be"):
        img_to_array(np.zeros((2, 2)), "channels")


def test_images_come_back_as_they_were_saved(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels = np.arange(4 * 6 * 3).reshape(4, 6, 3)
    save_img(tmp_path / "a.png", pixels, scale=False)
    np.testing.assert_array_equal(img_to_array(load_img(tmp_path / "a.png")), pixels)
    assert load_img(io.BytesIO((tmp_path / "a.png").read_bytes()), "grayscale").mode == "L"
    assert load_img(str(tmp_path / "a.png"), target_size=(2, 2), keep_aspect_ratio=True).size == (2, 2)
    stretched = img_to_array(ab.utils.array_to_img(pixels))
    assert (stretched.min(), stretched.max()) == (0, 255)
    with pytest.warns(UserWarning, match="JPEG has no transparency"):
        save_img(tmp_path / "a.jpg", np.ones((2, 2, 4)))
    assert load_img(tmp_path / "a.jpg", "rgba").mode == "RGBA"
    with pytest.raises(ValueError, match="1, 3 or 4 channels"):
        save_img(tmp_path / "b.png", np.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="color_mode"):
        load_img(tmp_path / "a.png", "cmyk")
    with pytest.raises(ValueError, match="interpolation='cubic'"):
        load_img(tmp_path / "a.png", interpolation="cubic")
    with pytest.raises(TypeError, match="takes a path"):
        load_img(3)  # pyright: ignore[reportArgumentType]


def test_images_of_a_folder_are_resized_and_labelled(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for name, size, value in (("a", (4, 6), 50), ("b", (8, 5), 200)):
        (tmp_path / name).mkdir()
        save_img(tmp_path / name / "x.png", np.full((*size, 3), value), scale=False)
    dataset = image_dataset_from_directory(tmp_path, image_size=(4, 3), shuffle=False, verbose=False)
    ((x, y),) = list(dataset)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, np.array([50, 200]).reshape(2, 1, 1, 1) * np.ones((2, 4, 3, 3)), rtol=1e-5)
    assert y.tolist() == [0, 1]
    (most,) = ab.function(lambda: [ab.ops.max(x) for x, _ in dataset])()
    assert float(most) == pytest.approx(200)  # files are read while it is traced
    grey = image_dataset_from_directory(
        tmp_path, labels=None, color_mode="grayscale", image_size=4, data_format="channels_first", verbose=False
    )
    assert next(iter(grey)).shape == (2, 1, 4, 4)
    padded = image_dataset_from_directory(
        tmp_path, image_size=(4, 8), pad_to_aspect_ratio=True, shuffle=False, verbose=False
    )
    assert next(iter(padded))[0][0, 0, 0, 0] == 0
    model = ab.Sequential([ab.Input((4, 3, 3)), ab.layers.Flatten(), ab.layers.Dense(2)])
    model.compile("sgd", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(dataset, verbose=0)


# --- files from addresses -------------------------------------------------------------------------------------------


def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    source = tmp_path / "words.txt"
    source.write_text("to be")
    path = get_file(origin=source.as_uri(), cache_dir=tmp_path / "cache")
    assert path == str(tmp_path / "cache" / "datasets" / "words.txt")
    source.write_text("or not")
    assert Path(get_file(origin=source.as_uri(), cache_dir=tmp_path / "cache")).read_text() == "to be"
    forced = get_file("w.txt", source.as_uri(), cache_dir=tmp_path / "cache", force_download=True, cache_subdir="x")
    assert Path(forced).read_text() == "or not"
    assert Path(forced).parent.name == "x"


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_hashes_are_checked(tmp_path: Path, algorithm: str) -> None:
    source = tmp_path / "words.txt"
    source.write_text("to be")
    digest = hashlib.new(algorithm, b"to be").hexdigest()
    kwargs: dict[str, Any] = {"origin": source.as_uri(), "cache_dir": tmp_path / "cache", "file_hash": digest}
    path = get_file(**kwargs)
    Path(path).write_text("damaged")
    with pytest.warns(UserWarning, match="another hash"):
        assert Path(get_file(**kwargs)).read_text() == "to be"
    source.write_text("other")
    with pytest.raises(ValueError, match=f"expected {digest}"):
        get_file(**kwargs, force_download=True)
    assert not Path(path).exists()


def archive_in(folder: Path, kind: str, name: str = "in/words.txt") -> Path:
    path = folder / f"data.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "to be")
        return path
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 5
        archive.addfile(member, io.BytesIO(b"to be"))
    return path


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked_where_keras_has_them(tmp_path: Path, kind: str) -> None:
    origin = archive_in(tmp_path, kind).as_uri()
    folder = get_file(origin=origin, extract=True, cache_dir=tmp_path / "cache")
    assert Path(folder) == tmp_path / "cache" / "datasets" / f"data.{kind}"
    assert Path(folder, "in", "words.txt").read_text() == "to be"
    named = get_file(f"d.{kind}", origin, extract=True, cache_dir=tmp_path / "cache")
    assert Path(named).name == "d_extracted"
    assert Path(named, "in", "words.txt").exists()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_that_lead_out_of_their_folder_are_refused(tmp_path: Path, kind: str) -> None:
    origin = archive_in(tmp_path, kind, "../../evil.txt").as_uri()
    with pytest.raises(ValueError, match="not safe to unpack"):
        get_file(origin=origin, extract=True, cache_dir=tmp_path / "cache")
    assert not list(tmp_path.rglob("evil.txt"))


def test_addresses_and_names_that_can_not_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs origin"):
        get_file("x")
    with pytest.raises(ValueError, match="without a file's name"):
        get_file(origin="file:///", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="without folders"):
        get_file("a/b", "file:///c", cache_dir=tmp_path)
    with pytest.raises(OSError, match="can't be fetched"):
        get_file(origin=(tmp_path / "nothing").as_uri(), cache_dir=tmp_path)
    source = tmp_path / "a"
    source.write_text("a")
    with pytest.raises(ValueError, match="hash_algorithm"):
        get_file(origin=source.as_uri(), cache_dir=tmp_path, file_hash="0", hash_algorithm="crc")
    with pytest.warns(UserWarning, match="no archive"):
        get_file(origin=(tmp_path / "a").as_uri(), cache_dir=tmp_path / "b", extract=True)


# --- what fit takes -------------------------------------------------------------------------------------------------


X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def fitted(*args: Any, **kwargs: Any) -> Any:
    model = linear_model()
    model.fit(*args, epochs=2, verbose=0, **kwargs)
    return model.get_weights()[0]


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_hdf5_data_train_as_arrays_do(tmp_path: Path, shuffle: Any) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = X.astype("float64"), Y
        lazy = fitted(file["x"], file["y"], batch_size=4, shuffle=shuffle, validation_split=0.2)
        np.testing.assert_array_equal(lazy, fitted(X, Y, batch_size=4, shuffle=shuffle, validation_split=0.2))
        model = linear_model()
        np.testing.assert_array_equal(model.predict(file["x"], verbose=0), model.predict(X, verbose=0))


def test_hdf5_rows_are_read_batch_by_batch(tmp_path: Path) -> None:
    class Watched:
        chunks = None

        def __init__(self, source: Any) -> None:
            self.source, self.shape, self.dtype = source, source.shape, source.dtype
            self.read: list[int] = []

        def __len__(self) -> int:
            return len(self.source)

        def __getitem__(self, rows: Any) -> Any:
            found = self.source[rows]
            self.read.append(len(found))
            return found

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise AssertionError("read as a whole")

    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = X
        watched = Watched(file["x"])
        data = as_data(watched, None, batch_size=4)
        assert watched.read == []
        batches = [batch.leaves[0] for batch in data.epoch()]
        assert watched.read == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate(batches), X)
        (train, _, _), (rest, _, _) = train_validation_split((LazyArray(watched, np.asarray), None, None), 0.3)
        assert watched.read == [4, 4, 2]
        np.testing.assert_array_equal(rest.take(np.array([2, 0, 2])), X[[9, 7, 9]])
        np.testing.assert_array_equal(np.asarray(train.part(1, 3)), X[1:3])


class FakeTensor:
    """A tensor of another library, as far as data need it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, "float32 of another library"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class FakeLoader:
    """As PyTorch's DataLoader: lists of tensors, and a length that may not exist."""

    def __init__(self, has_length: bool) -> None:
        self.has_length = has_length

    def __len__(self) -> int:
        if not self.has_length:
            raise TypeError("object of type 'Stream' has no len()")
        return 3

    def __iter__(self) -> Iterator[Any]:
        return ([FakeTensor(X[i : i + 4]), FakeTensor(Y[i : i + 4])] for i in range(0, 10, 4))


@pytest.mark.parametrize("has_length", [True, False])
def test_loaders_of_batches_train_as_arrays_do(has_length: bool) -> None:
    loader = FakeLoader(has_length)
    assert as_data(loader).batches == (3 if has_length else None)
    np.testing.assert_array_equal(fitted(loader), fitted(X, Y, batch_size=4, shuffle=False))


class FakeFrame:
    """As a frame of pandas: columns by name, and an array of them all."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape
        self.columns = range(array.shape[-1])

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, column: Any) -> Any:
        return self.array[:, column]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


def test_frames_train_as_arrays_do() -> None:
    expected = fitted(X, Y, shuffle=False)
    np.testing.assert_array_equal(fitted(FakeFrame(X.astype("float64")), FakeFrame(Y), shuffle=False), expected)


def test_pandas_frames_train_as_arrays_do() -> None:
    pandas = pytest.importorskip("pandas")
    expected = fitted(X, Y, shuffle=False)
    np.testing.assert_array_equal(fitted(pandas.DataFrame(X), pandas.DataFrame(Y), shuffle=False), expected)


class FakeSeries(FakeFrame):
    """As a series of pandas: one value a row."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape


def test_series_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Keras: layers take them, which need an axis beside that of the rows."""
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(Series=FakeSeries))
    x, y = FakeSeries(X[:, 0].astype("float64")), FakeSeries(Y[:, 0])
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    assert model.predict(x, verbose=0).shape == model.predict_on_batch(x).shape == (len(X), 1)


def test_torch_loaders_train_as_arrays_do() -> None:
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    loader = torch.utils.data.DataLoader(pairs, batch_size=4)
    np.testing.assert_array_equal(fitted(loader), fitted(X, Y, batch_size=4, shuffle=False))


@pytest.mark.parametrize("kind", ["<U2", "S2", "O", "T"])
def test_text_of_every_kind_becomes_strings(kind: str) -> None:
    data = as_data(np.array(["ab", "c"], dtype=kind if kind != "T" else np.dtypes.StringDType()))
    (batch,) = list(data.epoch())
    assert batch.leaves[0].dtype == np.dtypes.StringDType()
    assert batch.leaves[0].tolist() == ["ab", "c"]
