"""The notebook of `examples/` runs from the first cell to the last, and shows what its text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "looking_inside.ipynb"


def shown(cell: Any) -> str:
    """Return what a cell has printed and shown: HTML and drawings where there are any."""
    parts: list[str] = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        kinds = [kind for kind in ("text/html", "image/svg+xml", "text/plain") if kind in data]
        parts.append(output.get("text", "") if not kinds else "".join(data[kinds[0]]))
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own modules
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = pytest.importorskip("nbclient", reason="nbclient runs the notebook")
    pytest.importorskip("ipykernel", reason="the notebook runs in a kernel of its own")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are read by nbformat")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = {cell.source.splitlines()[-1]: shown(cell) for cell in code}

    assert "Tensor float32[5, 1]" in outputs[next(line for line in outputs if "convert_to_tensor" in line)]
    assert "memory (LSTM)" in outputs["model"]
    assert "<svg" in outputs["history"]
    assert "val_loss" in outputs["history"]
    assert "forward ms" in outputs["profile"]
    assert "products:" in outputs["explanation"]
    assert "<svg" in next(text for line, text in outputs.items() if "plot_model" in line)
    assert "Dataset: 4 batches of 8, 31 samples" in outputs["windows"]
    assert "anabranch.trace: a step of a model is traced again" in list(outputs.values())[-1]
    for name in ("profile.html", "profile.speedscope.json", "step.html"):
        assert (tmp_path / name).stat().st_size > 1000


def test_the_notebook_is_kept_without_results():
    nbformat = pytest.importorskip("nbformat", reason="notebooks are read by nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)

    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
