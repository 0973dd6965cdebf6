"""The example, as it is: onnxruntime gives the numbers of `predict`."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

for _name in ("onnx", "onnxruntime"):
    pytest.importorskip(_name)


def test_onnxruntime_gives_what_predict_gives(example: ModuleType, tmp_path: Path) -> None:
    assert example.main(["--epochs", "1", "--output", str(tmp_path)]) < 1e-5
    assert (tmp_path / "letters.onnx").is_file()


def test_other_numbers_are_a_failure(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "run_in_onnxruntime", lambda path, x: np.zeros(x.shape, "float32"))
    with pytest.raises(SystemExit, match="The goal, predict's numbers within 1e-05, was missed"):
        example.main(["--epochs", "1"])
