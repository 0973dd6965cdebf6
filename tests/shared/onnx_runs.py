"""Exported graphs and models, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

pytest.importorskip("onnx", reason="onnx is an optional dependency")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime runs what was exported")
onnxruntime.set_default_logger_severity(4)


def run_file(path: Path, feeds: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of a file, in order."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = {given.name for given in session.get_inputs()}
    return session.run(None, {name: as_feed(each) for name, each in feeds.items() if name in named})


def as_feed(array: Any) -> Any:
    """An array as onnxruntime takes it: texts as objects."""
    array = np.asarray(array)
    return array.astype(object) if array.dtype.kind in "TU" else array


def assert_same(found: Any, wanted: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """The same dtype, shape and values; texts are equal."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if wanted.dtype.kind in "TUO":
        assert found.astype(object).tolist() == wanted.astype(object).tolist()
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol, atol)


def assert_exported(
    model: Any, folder: Path, signature: Any, batches: list[Any], opset: int | None = None, rtol: float = 1e-4
) -> Path:
    """Export a model, and compare the file's outputs with the model's for each of `batches`."""
    path = folder / "model.onnx"
    model.export(path, "onnx", verbose=False, input_signature=signature, opset_version=opset)
    for batch in batches:
        ab.onnx.check(model, path, batch, rtol=rtol)
    return path
