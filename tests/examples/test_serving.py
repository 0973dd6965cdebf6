"""The example, as it is: a server of its own process answers by each protocol with the numbers of `predict`."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)


def test_each_protocol_gives_what_predict_gives(
    example: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    differences = example.main(["--epochs", "1", "--output", str(tmp_path)])
    assert len(differences) == 3
    assert max(differences.values()) < 1e-6
    assert "the server ended with status 0" in capfd.readouterr().out
    assert (tmp_path / "letters" / "1" / "manifest.json").is_file()


def test_other_numbers_are_a_failure(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "ask_by_open_inference_grpc", lambda address, x: np.zeros((5, 12, 8)))
    with pytest.raises(SystemExit, match="The goal, predict's numbers by each protocol, was missed"):
        example.main(["--epochs", "1"])
