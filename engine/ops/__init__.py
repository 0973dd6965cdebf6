"""Ops, with the names and signatures of ``keras.ops``; TensorFlow's names for what Keras lacks.

Each op is one class in one place (see `anabranch.engine.graph.op.Op`), from which its tests are generated.
"""

import importlib
from typing import Any

from ..graph.op import ErrorSample, Op, Sample, registered_ops
from . import operators as operators  # gives tensors their operators
from .axes import *  # noqa: F403
from .base import cast, constant, convert_to_tensor
from .bitwise import *  # noqa: F403
from .comparison import *  # noqa: F403
from .creation import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .gathering import *  # noqa: F403
from .indexing import *  # noqa: F403
from .joining import *  # noqa: F403
from .linalg import *  # noqa: F403
from .mathematics import *  # noqa: F403
from .nn import *  # noqa: F403
from .padding import *  # noqa: F403
from .positions import *  # noqa: F403
from .reduction import *  # noqa: F403
from .scattering import *  # noqa: F403
from .shaping import *  # noqa: F403
from .sorting import *  # noqa: F403
from .special import *  # noqa: F403
from .trigonometry import *  # noqa: F403
from .windows import *  # noqa: F403

__all__ = [
    "ErrorSample",
    "Op",
    "Sample",
    "cast",
    "constant",
    "convert_to_tensor",
    "registered_ops",
]

# keras.ops has control flow among its ops. Here it lies above the ops, so these names are looked up when asked for.
_CONTROL_FLOW = {
    "cond": "cond",
    "fori_loop": "scan",
    "map": "scan",
    "scan": "scan",
    "switch": "cond",
    "while_loop": "while_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _CONTROL_FLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"..control_flow.{_CONTROL_FLOW[name]}", __name__)
    return getattr(module, "map_fn" if name == "map" else name)
