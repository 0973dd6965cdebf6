"""Protocols of a model server: TensorFlow Serving's, the Open Inference Protocol, and Triton's extensions."""
