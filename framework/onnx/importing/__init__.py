"""ONNX models as layers."""
