"""Safetensors files: round trips, and no damage that is taken for arrays."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.framework.saving.shards import open_arrays, shard_bytes, write_arrays

DTYPES = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
]
ARRAYS = {
    "weight": np.arange(6, dtype="float32").reshape(2, 3),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
    "count": np.array(7, "int64"),
    "none": np.zeros((0, 4), "float16"),
    "bits": np.array([True, False, True]),
}


def test_arrays_come_back(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    more = {dtype: np.array([[0, 1], [1, 0]], dtype) for dtype in DTYPES}
    ab.saving.write_safetensors(path, {**ARRAYS, **more}, {"format": "pt"})
    found = ab.saving.read_safetensors(path)
    assert found.metadata == {"format": "pt"}
    assert set(found) == {*ARRAYS, *more}
    for name, array in {**ARRAYS, **more}.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.aligned
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    with pytest.raises(ValueError, match="read-only"):
        found["weight"][0] = 1


def test_what_can_not_be_written(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="is of dtype complex64"):
        ab.saving.write_safetensors(path, {"x": np.zeros(2, "complex64")})
    with pytest.raises(ValueError, match="the format's own name"):
        ab.saving.write_safetensors(path, {"__metadata__": np.zeros(2)})
    numbered, counted = dict[Any, Any]({"a": np.zeros(2), 1: np.zeros(2)}), dict[str, Any](step=3)
    with pytest.raises(TypeError, match="names of arrays are texts, got 1 of type int"):
        ab.saving.write_safetensors(path, numbered)
    with pytest.raises(TypeError, match=r"metadata is texts by name, got .'step': 3."):
        ab.saving.write_safetensors(path, {"a": np.zeros(2)}, counted)
    assert not path.exists()
    ab.saving.write_safetensors(path, {})
    assert len(ab.saving.read_safetensors(path)) == 0
    with pytest.raises(FileExistsError, match="exists already"):
        ab.saving.write_safetensors(path, {}, overwrite=False)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        ab.saving.read_safetensors(tmp_path / "none.safetensors")


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "first 8 bytes"),
        (b"\0" * 7, "first 8 bytes"),
        (file_of({}, length=2**63), "first 8 bytes"),
        (file_of(b"{"), "no JSON"),
        (file_of(b"\xff{}"), "no JSON"),
        (file_of(b"[" * 100_000), "no JSON"),
        (file_of([]), "no JSON object"),
        (file_of(b'{"a": 1, "a": 2}'), "stands in it twice"),
        (file_of({"__metadata__": {"a": 1}}), "object of texts"),
        (file_of({"a": 3}), "has no dtype"),
        (file_of({"a": entry(more=1)}, b"1234"), "has more than these"),
        (file_of({"a": entry(dtype="F8_E3M4")}, b"1234"), "dtype 'F8_E3M4'"),
        (file_of({"a": entry(dtype=[])}, b"1234"), "dtype"),
        (file_of({"a": entry(shape=[-4])}, b"1234"), "shape"),
        (file_of({"a": entry(shape=[4.0])}, b"1234"), "shape"),
        (file_of({"a": entry(shape=[True, 4])}, b"1234"), "shape"),
        (file_of({"a": entry(shape=[2**62, 2**62])}, b"1234"), "takes"),
        (file_of({"a": entry(shape=[1] * 65, data_offsets=[0, 1])}, b"1"), "has 65 dimensions, .* at most 64"),
        (file_of({"a": entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0])}), "too large"),
        (file_of({"a": entry(data_offsets=[0, 3])}, b"1234"), "takes 4 bytes, not 3"),
        (file_of({"a": entry(data_offsets=[4, 0])}, b"1234"), "takes"),
        (file_of({"a": entry(data_offsets=[1, 5])}, b"12345"), "begins at byte 1"),
        (file_of({"a": entry(), "b": entry(data_offsets=[2, 6])}, b"123456"), "begins at byte 2"),
        (file_of({"a": entry()}, b"12345"), "take 4 bytes, the file has 5"),
        (file_of({"a": entry()}, b"123"), "take 4 bytes, the file has 3"),
    ],
)
def test_damaged_headers_are_refused(content: bytes, match: str, tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match):
        ab.saving.read_safetensors(path)


def test_values_that_are_not_of_their_dtype_are_refused(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"a": entry(dtype="BOOL")}, b"\0\1\2\1"))
    with pytest.raises(ValueError, match="is of bools, but holds 2"):
        ab.saving.read_safetensors(path)["a"]
    path.write_bytes(file_of({"a": entry(dtype="F8_E4M3")}, b"1234"))
    with pytest.raises(ValueError, match="float8"):
        ab.saving.read_safetensors(path)["a"]


def _fuzz(content: bytes, path: Path) -> None:
    """A damaged file is refused by a ValueError, or gives arrays that are in it."""
    path.write_bytes(content)
    try:
        found = ab.saving.read_safetensors(path)
        total = sum(found[name].nbytes for name in found)
    except ValueError:
        return
    assert total <= len(content)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(75, 300))
@given(st.data())
def test_bytes_that_were_changed_never_crash(tmp_path: Path, data: st.DataObject):
    path = tmp_path / "x.safetensors"
    ab.saving.write_safetensors(path, ARRAYS, {"a": "b"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    _fuzz(bytes(content), path)


@pytest.mark.slow
def test_bytes_that_were_changed_never_crash_a_hundred_thousand_times(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    ab.saving.write_safetensors(path, ARRAYS, {"a": "b"})
    original, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100_000):
        content = bytearray(original)
        for place in rng.integers(0, len(content), rng.integers(1, 5)):
            content[place] = rng.integers(256)
        _fuzz(bytes(content[: rng.integers(len(content) // 2, len(content) + 1)]), path)


def model() -> Any:
    return ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="a"), ab.layers.Dense(2, name="b")])


@pytest.mark.parametrize("size", [None, "5GB", "40", 4e-8])
def test_weights_of_a_model_come_back(size: Any, tmp_path: Path):
    one, other = model(), model()
    path = tmp_path / "w.safetensors"
    one.save_weights(path, max_shard_size=size)
    assert sorted(open_arrays(path)) == ["a/bias", "a/kernel", "b/bias", "b/kernel"]
    files = sorted(file.name for file in tmp_path.iterdir())
    if size in (None, "5GB"):
        assert files == ["w.safetensors"]
    else:
        assert files[0] == "w-00001-of-00003.safetensors"
        assert files[-1] == "w.safetensors.index.json"
    other.load_weights(tmp_path / files[-1])
    other.load_weights(path)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_that_do_not_fit_are_refused_or_skipped(tmp_path: Path):
    path = tmp_path / "w.safetensors"
    first = model()
    first.save_weights(path)
    other = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="a"), ab.layers.Dense(5, name="b")])
    before = other.get_weights()
    with pytest.raises(ValueError, match=r"b/kernel: shape \(3, 5\) in the model, \(3, 2\) in the file"):
        other.load_weights(path)
    for a, b in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.warns(UserWarning, match="b/bias"):
        other.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(other.get_weights()[0], first.get_weights()[0])
    with pytest.raises(ValueError, match="not built"):
        ab.Sequential([ab.layers.Dense(2)]).save_weights(path)


def test_what_is_written_replaces_all_files_of_what_was_there(tmp_path: Path):
    path, arrays = tmp_path / "m.safetensors", {name: np.zeros(8) for name in "abcd"}
    for other in ("m-00001-of-00009.safetensors", "other-00001-of-00002.safetensors"):
        (tmp_path / other).write_text("of another program")

    def files() -> list[str]:
        return sorted(file.name for file in tmp_path.iterdir() if file.name != "other-00001-of-00002.safetensors")

    write_arrays(path, arrays, None, "64")
    assert len(files()) == 6
    for size, count in (("128", 2), ("64", 4)):
        write_arrays(path, arrays, None, size)
        shards = [f"m-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
        assert files() == sorted([*shards, "m-00001-of-00009.safetensors", "m.safetensors.index.json"])
        assert sorted(open_arrays(path)) == list("abcd")
    index = tmp_path / "m.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] |= {"e": "other-00001-of-00002.safetensors", "f": "../m-00001-of-00004.safetensors"}
    index.write_text(json.dumps(document))
    write_arrays(path, arrays)
    assert files() == ["m-00001-of-00009.safetensors", "m.safetensors"]
    assert (tmp_path / "other-00001-of-00002.safetensors").exists()


@pytest.mark.parametrize("size", ["five", "5XB", -1, 0, [], "0MB"])
def test_sizes_that_are_none(size: Any):
    with pytest.raises(ValueError, match="max_shard_size"):
        shard_bytes(size)


def test_an_index_names_files_of_its_folder_only(tmp_path: Path):
    write_arrays(tmp_path / "m.safetensors", {"a": np.zeros(8), "b": np.zeros(8)}, None, "64")
    index = tmp_path / "m.safetensors.index.json"
    document = json.loads(index.read_text())
    for file, match in (("../m.safetensors", "of the same folder"), ("/etc/passwd", "of the same folder")):
        index.write_text(json.dumps({"weight_map": {**document["weight_map"], "a": file}}))
        with pytest.raises(ValueError, match=match):
            open_arrays(index)
    index.write_text(json.dumps({"weight_map": {"c": document["weight_map"]["a"]}}))
    with pytest.raises(ValueError, match="where it is not"):
        open_arrays(index)
    index.write_text("[]")
    with pytest.raises(ValueError, match="no index"):
        open_arrays(index)


@ab.saving.register_keras_serializable("safetensors")
class Recurrent(ab.layers.Layer):
    """A cell of one's own, which is built by whoever holds it."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight(shape=(input_shape[-1], self.units), name="w")

    def call(self, x: Any, states: Any) -> Any:
        return x @ self.w + states[0], [x @ self.w]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def test_weights_of_layers_in_layers_have_the_same_names_in_a_loaded_model(tmp_path: Path):
    inner = ab.Sequential([ab.Input((4,)), ab.layers.Dense(2, name="head")], name="inner")
    model = ab.Sequential(
        [
            ab.Input((None, 3)),
            ab.layers.RNN([Recurrent(4, name="a"), Recurrent(4, name="b")], return_sequences=True, name="rnn"),
            ab.layers.TimeDistributed(inner, name="each"),
            ab.layers.Bidirectional(ab.layers.RNN(Recurrent(2, name="c")), name="both"),
        ]
    )
    model.save(tmp_path / "model.keras")
    loaded = ab.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]
    model.layers[-1].set_weights([weight + 1 for weight in model.layers[-1].get_weights()])
    model.save_weights(tmp_path / "w.safetensors")
    loaded.load_weights(tmp_path / "w.safetensors")
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- the package safetensors ----------------------------------------------------------------------------------------


def _every_dtype() -> dict[str, Any]:
    made = {name: np.arange(12).reshape(3, 4).astype(name) for name in DTYPES}
    return {**made, **{key: value for key, value in ARRAYS.items() if value.dtype != ml_dtypes.bfloat16}}


def test_the_package_safetensors_reads_our_files(tmp_path: Path):
    numpy = pytest.importorskip("safetensors.numpy", reason="the format's own package is compared with")
    ab.saving.write_safetensors(tmp_path / "a.safetensors", _every_dtype(), {"format": "np"})
    found = numpy.load_file(tmp_path / "a.safetensors")
    assert set(found) == set(_every_dtype())
    for name, array in _every_dtype().items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
    with pytest.importorskip("safetensors").safe_open(tmp_path / "a.safetensors", framework="np") as opened:
        assert opened.metadata() == {"format": "np"}


def test_files_of_the_package_safetensors_are_read(tmp_path: Path):
    numpy = pytest.importorskip("safetensors.numpy", reason="the format's own package is compared with")
    numpy.save_file(_every_dtype(), tmp_path / "a.safetensors", metadata={"by": "safetensors"})
    found = ab.saving.read_safetensors(tmp_path / "a.safetensors")
    assert set(found) == set(_every_dtype())
    for name, array in _every_dtype().items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
