"""`KerasFileEditor`: weights are looked at, renamed, removed and added, and the file that is written is loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers


def make(*units: int) -> ab.Model:
    model = ab.Sequential([ab.Input((3,)), *(layers.Dense(each) for each in units)])
    for number, weight in enumerate(model.weights):
        weight.assign(np.full(weight.shape, number + 1.0, "float32"))
    return model


@pytest.fixture
def editor(tmp_path: Path) -> ab.saving.KerasFileEditor:
    make(4, 2).save_weights(tmp_path / "old.weights.h5")
    return ab.saving.KerasFileEditor(tmp_path / "old.weights.h5")


def test_a_file_fits_the_model_that_wrote_it(editor: Any, capsys: pytest.CaptureFixture[str]):
    assert editor.compare(make(4, 2)) == {"status": "success", "error_count": 0, "match_count": 4}
    assert capsys.readouterr().out == "All 4 weights fit.\n"


def test_weights_move_to_a_model_with_one_more_layer(editor: Any, tmp_path: Path):
    new = make(5, 4, 2)
    editor.rename_object("layers/dense_1", "dense_2")
    editor.rename_object("dense", "dense_1")
    editor.add_object("layers/dense", {"0": np.zeros((3, 5), "float32")})
    editor.add_weights("layers/dense", {"1": np.ones(5, "float32")})
    editor.add_weights("dense_1", {"0": np.full((5, 4), 9, "float32")})  # in the place of what does not fit
    assert editor.compare(new) == {"status": "success", "error_count": 0, "match_count": 6}

    editor.save(tmp_path / "new.weights.h5")
    new.load_weights(tmp_path / "new.weights.h5")

    assert [float(np.mean(weight)) for weight in new.get_weights()] == [0, 1, 9, 2, 3, 4]
    assert [len(weights) for weights in editor.weights_dict.values()] == [2, 2, 2]


def test_differences_are_counted_and_named(editor: Any, capsys: pytest.CaptureFixture[str]):
    editor.delete_weight("dense", "1")
    editor.add_weights("dense", {"7": np.zeros(2)})
    editor.rename_object("dense_1", "output")

    found = editor.compare(make(5, 2))

    assert found == {"status": "error", "error_count": 5, "match_count": 0}
    assert capsys.readouterr().out.splitlines() == [
        "layers/dense/0: shape (3, 4) in the file, (3, 5) in the model",
        "layers/dense/1: missing in the file",
        "layers/dense/7: missing in the model",
        "layers/dense_1: missing in the file, 2 weights in the model",
        "layers/output: 2 weights in the file, missing in the model",
    ]


def test_objects_inside_of_others_go_with_them(tmp_path: Path):
    inner = ab.Sequential([ab.Input((3,)), layers.Dense(2), layers.Dense(3)], name="block")
    model = ab.Sequential([ab.Input((3,)), inner, layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0)
    model.save(tmp_path / "model.keras")
    editor = ab.saving.KerasFileEditor(str(tmp_path / "model.keras"))
    assert editor.config is not None
    assert editor.compare(model)["status"] == "success"  # what the optimizer saved is not compared
    block = next(place for place in editor.weights_dict if place.endswith("/layers/dense_1")).split("/layers/dense_1")[
        0
    ]

    with pytest.raises(ValueError, match=r"'dense' is the name of 2 objects; give one's path: layers/"):
        editor.delete_object("dense")
    before = len(editor.weights_dict)
    editor.rename_object(block, "renamed")
    assert [place for place in editor.weights_dict if place.startswith(block + "/")] == []
    assert len(editor.weights_dict) == before
    editor.delete_object("renamed")
    assert len(editor.weights_dict) == before - 2
    assert any(place.startswith("optimizer") for place in editor.weights_dict)


def test_summary(editor: Any, capsys: pytest.CaptureFixture[str]):
    editor.add_object("", {"0": np.zeros((), "int8")})
    editor.summary()
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "  0: (4, 2) float32",
        "  1: (2,) float32",
        "(the model itself)",
        "  0: () int8",
    ]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e: e.delete_object("dence"), "has no object 'dence'. Did you mean 'dense'?"),
        (lambda e: e.delete_object("layers/x"), "has no object 'layers/x'."),
        (lambda e: e.rename_object("dense", "a/b"), "new_name must be a name, not a path, got 'a/b'"),
        (lambda e: e.rename_object("dense", "dense_1"), "'layers/dense_1' is in the file already"),
        (lambda e: e.add_object("layers/dense", {}), "'layers/dense' is in the file already"),
        (lambda e: e.delete_weight("dense", "2"), "'layers/dense' has no weight '2'. It has '0', '1'."),
        (lambda e: e.save("x.keras"), "saves to a file that ends in .weights.h5, got 'x.keras'"),
        (lambda e: type(e)("x.h5"), "opens files that end in .keras or .weights.h5, got 'x.h5'"),
    ],
)
def test_errors(editor: Any, act: Any, message: str):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the messages are compared
        act(editor)
    assert message in str(error.value)


def test_weights_that_are_no_dict(editor: Any):
    with pytest.raises(TypeError, match=r"add_weights: weights must be a dict of arrays by name.*got list"):
        editor.add_weights("dense", [np.zeros(3)])


def test_a_folder_is_not_written(tmp_path: Path):
    make(2).save(tmp_path / "model.keras", zipped=True)
    with pytest.raises(ValueError, match=r"as one file, not as a folder. Leave zipped=False out"):
        make(2).save(tmp_path / "model.keras", zipped=False)
