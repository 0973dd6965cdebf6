"""Running ops on images in a graph of its own, in either layout."""

from typing import Any

import numpy as np

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session import Session

LAYOUTS = ("channels_last", "channels_first")


def run(fetches: Any, feeds: Any = None) -> Any:
    with Graph().as_default():
        return Session().run(fetches() if callable(fetches) else fetches, feeds)


def evaluate(function: Any, *arrays: Any, known: bool = True) -> Any:
    """`function` of tensors with the values of `arrays`, whose shapes are known or only their ranks."""
    with Graph().as_default() as graph:
        inputs = [
            graph.add(Placeholder(TensorSpec(a.shape if known else (None,) * a.ndim, a.dtype)), (), "x").outputs[0]
            for a in arrays
        ]
        return Session().run(function(*inputs), dict(zip(inputs, arrays, strict=True)))


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def in_layout(x: Any, layout: str) -> Any:
    """Images with channels last in another layout."""
    return x if layout == "channels_last" else np.moveaxis(x, -1, -3)


def from_layout(x: Any, layout: str) -> Any:
    return x if layout == "channels_last" else np.moveaxis(x, -3, -1)
