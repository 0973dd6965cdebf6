"""The example, as it is: onnxruntime gives the numbers of `predict`, and int8 loses next to nothing."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

if importlib.util.find_spec("sklearn") is None:  # to import it takes seconds: the example does so
    pytest.skip("scikit-learn is not installed", allow_module_level=True)
needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")), reason="onnxruntime is not installed"
)


@needs_onnx
def test_onnxruntime_gives_what_predict_gives(example: ModuleType, tmp_path: Path) -> None:
    assert example.main(["--epochs", "1", "--output", str(tmp_path)]) < 1e-5
    assert (tmp_path / "letters.onnx").is_file()


@needs_onnx
def test_other_numbers_are_a_failure(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "run_in_onnxruntime", lambda path, x: np.zeros(x.shape, "float32"))
    with pytest.raises(SystemExit, match="The goal, predict's numbers within 1e-05, was missed"):
        example.main(["--epochs", "1"])


def test_quantised_models_recognise_as_many_digits(example: ModuleType, tmp_path: Path) -> None:
    accuracy = example.quantised_inference(tmp_path)
    assert accuracy["float"] > 0.88
    assert accuracy["float"] - accuracy["int8"] <= 0.005
    assert accuracy["float"] - accuracy["int4"] <= 0.015
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.keras")}
    assert sizes["digits_int4.keras"] < sizes["digits_int8.keras"] < 0.5 * sizes["float.keras"]


def test_a_folder_is_written_loaded_and_generates(example: ModuleType, tmp_path: Path) -> None:
    found = example.public_architecture(tmp_path)
    assert [len(tokens) <= 6 for tokens in found] == [True, True]
    assert sorted(path.name for path in (tmp_path / "gpt2").iterdir()) == ["config.json", "model.safetensors"]
