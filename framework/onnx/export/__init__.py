"""Graphs of the engine as ONNX models."""
