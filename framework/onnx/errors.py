"""`OnnxError`, for everything that ONNX or a file of it can't do."""

from __future__ import annotations


class OnnxError(ValueError):
    """A graph can't be written as ONNX, or an ONNX model can't be read or computed.

    The message names the operation and the user's line (when exporting), or the node (when importing).

    >>> import anabranch as ab
    >>> with open("no_model.onnx", "wb") as file:
    ...     _ = file.write(b"no model")
    >>> try:
    ...     ab.onnx.load("no_model.onnx")
    ... except ab.onnx.OnnxError:
    ...     print("this is no model")
    this is no model
    """
