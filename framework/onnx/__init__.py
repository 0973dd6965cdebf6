"""ONNX both ways: models and graphs are written as files that onnxruntime runs, and such files become layers.

It needs the package onnx: ``pip install 'anabranch[onnx]'``.
"""

from __future__ import annotations

from . import backend
from .checking import check
from .errors import OnnxError
from .export.model import export_graph
from .importing.layer import OnnxLayer, load
from .supported import supported_ops

__all__ = ["OnnxError", "OnnxLayer", "backend", "check", "export_graph", "load", "supported_ops"]
