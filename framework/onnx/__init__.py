"""ONNX both ways: models and graphs are written as files that onnxruntime runs, and such files become layers.

It needs the package onnx: ``pip install 'anabranch[onnx]'``.
"""

from __future__ import annotations

from .checking import check
from .errors import OnnxError
from .export.model import export_graph
from .supported import supported_ops

__all__ = ["OnnxError", "check", "export_graph", "supported_ops"]
