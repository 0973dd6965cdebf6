"""Servables: folders that hold a model's inference, written as a whole and checked when they are read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.served_models import LETTERS, letters, some_text, two_in_two_out

import anabranch as ab
from anabranch.engine.saving import SavedGraphError

LOAD_ALONE = """
import sys, numpy as np, anabranch as ab
servable = ab.serving.load(sys.argv[1])
np.save(sys.argv[3], servable(np.load(sys.argv[2])))
print([name for name in sys.modules if "served_models" in name])
"""


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_process_without_the_class_computes_what_predict_does(tmp_path: Path) -> None:
    model, x = letters(), some_text(5, 9)
    model.export(tmp_path / "letters", verbose=False, input_signature=LETTERS)
    np.save(tmp_path / "x.npy", x)
    paths = [str(tmp_path / name) for name in ("letters", "x.npy", "y.npy")]

    found = subprocess.run([sys.executable, "-c", LOAD_ALONE, *paths], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model.predict(x, verbose=0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("m.keras", r"model\.save\(\)"), ("m.ONNX", r'model\.export\(path, "onnx"\)'), ("m.weights.h5", "save_weights")],
)
def test_names_of_files_of_other_kinds_are_refused(tmp_path: Path, name: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"a servable is a folder of versions.* Name the folder 'm.*{remedy}"):
        two_in_two_out().export(tmp_path / name, verbose=False)
    assert list(tmp_path.iterdir()) == []
    two_in_two_out().export(tmp_path / "v1.2", verbose=False)


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 12), (7, 3), (40, 5)])
def test_any_batch_and_length(tmp_path: Path, rows: int, length: int) -> None:
    model, x = letters(), some_text(rows, length)
    model.export(tmp_path, verbose=False, input_signature=LETTERS)

    found = ab.serving.load(tmp_path)(x)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.predict_on_batch(x), rtol=1e-5, atol=1e-7)


@pytest.mark.kernels
@pytest.mark.parametrize("steps", [7, None])
def test_the_same_rows_give_the_bits_of_predict(tmp_path: Path, steps: int | None) -> None:
    x = np.random.default_rng(3).standard_normal((5, 7, 20)).astype("float32")
    model = ab.Sequential([ab.Input((steps, 20)), ab.layers.Dense(50, activation="tanh")])
    model.export(tmp_path, verbose=False)
    np.testing.assert_array_equal(ab.serving.load(tmp_path)(x), model.predict(x, verbose=0))


def test_names_are_keys_else_given_ones_else_numbers(tmp_path: Path) -> None:
    def names(model: ab.Model, signature: Any = None) -> tuple[list[str], list[str]]:
        model.export(tmp_path, verbose=False, input_signature=signature)
        found = ab.serving.load(tmp_path).signature()
        return [info.name for info in found.inputs], [info.name for info in found.outputs]

    plain = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1, name="automatic_or_not")])
    assert names(plain) == (["input_0"], ["output_0"])
    assert names(plain, [ab.InputSpec(shape=(None, 2), name="pixels")]) == (["pixels"], ["output_0"])
    for _ in range(2):  # a name that another model's input has, too
        assert names(ab.Sequential([ab.Input((2,), name="given"), ab.layers.Dense(1)])) == (["given"], ["output_0"])
    assert names(two_in_two_out()) == (["a", "b"], ["scaled", "sum"])


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    model = two_in_two_out()
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    given = {"a": [[1, 2], [3, 4]], "b": np.ones((2, 3), "float64")}

    for found in (servable(given), servable(given["a"], given["b"]), servable(given["a"], b=given["b"])):
        np.testing.assert_array_equal(found["sum"], [6, 10])
        np.testing.assert_array_equal(found["scaled"], [[2, 4], [6, 8]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": [[1, 2]]}, r"Expected the inputs 'a', 'b', got 'a' \(missing: 'b'\)"),
        ({"a": [[1, 2]], "b": [[1, 2, 3]], "c": 1}, r"unknown: 'c'"),
        ({"a": [[1, 2]], "b": [[1, 2]]}, r"Input 'b': expected the shape \(any, 3\), got \(1, 2\)"),
        ({"a": [["x", "y"]], "b": [[1, 2, 3]]}, r"Input 'a': expected values of float32, got text"),
        ({"a": [[1, 2], [3]], "b": [[1, 2, 3]]}, r"Input 'a': .*unequal lists"),
        ({"a": [[1, 2]], "b": [[1, 2, 3]] * 2}, r"same number of rows.*'a': 1, 'b': 2"),
    ],
)
def test_wrong_inputs_are_named(tmp_path: Path, given: Any, message: str) -> None:
    two_in_two_out().export(tmp_path, verbose=False)

    with pytest.raises(ValueError, match=message):
        ab.serving.load(tmp_path)(given)


def test_wrong_signatures_and_inputs_given_twice_are_named(tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    a, b = [[1, 2]], [[1, 2, 3]]
    with pytest.raises(ValueError, match=r"no signature 'other'. There are 'serving_default'"):
        servable(a, b, signature="other")
    for calls in (lambda: servable(a, b, a=a), lambda: servable({"a": a, "b": b}, a=a)):
        with pytest.raises(ValueError, match="Input 'a' is given twice"):
            calls()


def test_integers_keep_their_range_and_are_no_fractions(tmp_path: Path) -> None:
    x = ab.Input((), dtype="int8", name="x")
    ab.Model(x, x + 1).export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)

    assert servable([1, 2]).tolist() == [2, 3]
    with pytest.raises(ValueError, match="expected values of int8, got 128"):
        servable([128])
    with pytest.raises(ValueError, match="expected values of int8, got float64"):
        servable([1.5])


def test_text_goes_in_and_out(tmp_path: Path) -> None:
    lookup = ab.layers.StringLookup(vocabulary=["left", "right"])
    words = ab.Input((None,), dtype="string", name="words")
    ab.Model(words, lookup(words)).export(tmp_path, verbose=False)

    assert ab.serving.load(tmp_path)([["right", "left", "Wasser"]]).tolist() == [[2, 1, 0]]


def test_versions_count_up_and_never_change(tmp_path: Path) -> None:
    model = two_in_two_out()
    assert [model.export(tmp_path / "m", verbose=False) for _ in range(2)] == [1, 2]
    assert model.export(tmp_path / "m", verbose=False, version=7) == 7
    assert model.export(tmp_path / "m", verbose=False) == 8
    before = files_below(tmp_path)
    with pytest.raises(FileExistsError, match="holds a version 2 already"):
        model.export(tmp_path / "m", verbose=False, version=2)
    assert files_below(tmp_path) == before
    assert [ab.serving.load(tmp_path / "m", version).version for version in (None, 2)] == [8, 2]
    with pytest.raises(ab.serving.ServableError, match=r"has no version 3\. It holds 1, 2, 7, 8"):
        ab.serving.load(tmp_path / "m", 3)


def test_large_weights_are_plain_arrays(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((64,)), ab.layers.Dense(64, use_bias=False)])
    model.export(tmp_path, verbose=False)

    (path,) = (tmp_path / "1" / "weights").iterdir()
    np.testing.assert_array_equal(np.load(path), model.get_weights()[0])


def test_what_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    x = ab.Input((2,), name="x")
    layer = ab.layers.Lambda(lambda t: ab.ops.reshape(ab.ops.numpy_function(np.sort, [t], "float32"), (-1, 2)))
    with pytest.raises(SavedGraphError, match=r"defined at .*test_export\.py"):
        ab.Model(x, layer(x)).export(tmp_path / "m", verbose=False)
    assert files_below(tmp_path) == {}
    layer = ab.layers.Lambda(lambda t: ab.ops.numpy_function(np.sort, [t], "float32"))  # of unknown rank
    with pytest.raises(SavedGraphError, match=r"defined at .*test_export\.py"):
        ab.Model(x, layer(x)).export(tmp_path / "m", verbose=False)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=r"file' is a file\. Give the folder"):
        two_in_two_out().export(tmp_path / "file", verbose=False)


@pytest.mark.parametrize("reason", [(28, "No space left on device"), ("131072 requested and 4968 written",)])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: tuple[Any, ...]) -> None:
    """Also where NumPy, which writes files by the C library, does not say why so little was written."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(*reason)

    model = ab.Sequential([ab.Input((64,)), ab.layers.Dense(64)])
    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(
        OSError, match=rf"No version could be written to .*m': .*{reason[-1]}.* Is the disk full\?"
    ) as caught:
        model.export(tmp_path / "m", verbose=False)
    assert caught.value.errno == (28 if len(reason) > 1 else None)
    assert list((tmp_path / "m").iterdir()) == []


def test_other_formats_and_missing_signatures_are_refused(tmp_path: Path) -> None:
    model = two_in_two_out()
    for name in ("tf_saved_model", "openvino", "litert", "torch"):
        with pytest.raises(ValueError, match=f"format='{name}'"):
            model.export(tmp_path, name)
    with pytest.raises(ValueError, match=r"has no symbolic inputs.*input_signature"):
        letters().export(tmp_path)


def test_export_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_in_two_out().export(tmp_path / "m")
    assert "input a: float32 (None, 2)" in capsys.readouterr().out


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["graph.json", "signature.json", "weights/0.npy"])
@pytest.mark.parametrize(("damage", "message"), [(_cut, "bytes"), (_change, "SHA-256"), (Path.unlink, "missing")])
def test_damage_is_found(tmp_path: Path, name: str, damage: Any, message: str) -> None:
    ab.Sequential([ab.Input((64,)), ab.layers.Dense(64, use_bias=False)]).export(tmp_path, verbose=False)
    damage(next((tmp_path / "1").glob(name.replace("0", "*"))))

    with pytest.raises(ab.serving.ServableError, match=message):
        ab.serving.load(tmp_path)


@pytest.mark.parametrize("change", [{"files": {"../x": {}}}, {"version": 99}, {"format": "x"}, {"files": 3}])
def test_strange_manifests_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    path = tmp_path / "1" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(ab.serving.ServableError):
        ab.serving.load(tmp_path)
