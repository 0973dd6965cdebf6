"""Ops, with the names and signatures of ``keras.ops``; TensorFlow's names for what Keras lacks.

Each op is one class in one place (see `anabranch.engine.graph.op.Op`), from which its tests are generated.
"""

import importlib
from typing import Any

from ..graph.op import ErrorSample, Op, Sample, registered_ops
from . import image as image
from . import operators as operators  # gives tensors their operators
from . import raw as raw  # so that saved graphs know its ops
from . import sparse as sparse
from . import strings as strings
from .adaptive_pooling import *  # noqa: F403
from .attention import *  # noqa: F403
from .axes import *  # noqa: F403
from .base import apply, apply_multi, cast, constant
from .bitwise import *  # noqa: F403
from .checks import *  # noqa: F403
from .comparison import *  # noqa: F403
from .complex_numbers import *  # noqa: F403
from .conversion import *  # noqa: F403
from .convolution import *  # noqa: F403
from .counting import *  # noqa: F403
from .creation import *  # noqa: F403
from .ctc import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .embedding import *  # noqa: F403
from .encoding import *  # noqa: F403
from .entrance import guard_entrances
from .escape import *  # noqa: F403
from .factorisations import *  # noqa: F403
from .filtering import psnr as psnr
from .floats import *  # noqa: F403
from .fourier import *  # noqa: F403
from .gathering import *  # noqa: F403
from .indexing import *  # noqa: F403
from .integers import *  # noqa: F403
from .joining import *  # noqa: F403
from .linalg import *  # noqa: F403
from .matching import *  # noqa: F403
from .mathematics import *  # noqa: F403
from .namespaces import Namespace
from .nan_aware import *  # noqa: F403
from .nn import *  # noqa: F403
from .padding import *  # noqa: F403
from .partitioning import *  # noqa: F403
from .patches import *  # noqa: F403
from .pooling import *  # noqa: F403
from .positions import *  # noqa: F403
from .quantiles import *  # noqa: F403
from .rearranging import *  # noqa: F403
from .reduction import *  # noqa: F403
from .scattering import *  # noqa: F403
from .segments import *  # noqa: F403
from .sequences import *  # noqa: F403
from .shaping import *  # noqa: F403
from .short_time import *  # noqa: F403
from .signal_windows import *  # noqa: F403
from .sorting import *  # noqa: F403
from .spacing import *  # noqa: F403
from .sparse import SparseTensor, embedding_lookup_sparse
from .special import *  # noqa: F403
from .spectral import *  # noqa: F403
from .statistics import *  # noqa: F403
from .trigonometry import *  # noqa: F403
from .windows import *  # noqa: F403

__all__ = [
    "ErrorSample",
    "Op",
    "Sample",
    "SparseTensor",
    "apply",
    "apply_multi",
    "cast",
    "constant",
    "embedding_lookup_sparse",
    "linalg",
    "nn",
    "numpy",
    "registered_ops",
    "sparse",
]

# The namespaces of keras.ops; `nn` and `linalg` stand before the modules of these names.
numpy, nn, linalg = Namespace("numpy"), Namespace("nn"), Namespace("linalg")

guard_entrances(globals(), __name__, but=("apply", "apply_multi", "registered_ops", "guard_entrances"))

# keras.ops has control flow among its ops. Here it lies above the ops, so these names are looked up when asked for.
_AUTODIFF = {"custom_gradient": "custom_gradient", "jvp": "derivatives"}
_CONTROL_FLOW = {
    "associative_scan": "associative_scan",
    "cond": "cond",
    "ctc_loss": "ctc",
    "fori_loop": "scan",
    "map": "scan",
    "scan": "scan",
    "switch": "cond",
    "vectorize": "vectorized_map",
    "vectorized_map": "vectorized_map",
    "while_loop": "while_loop",
}


def __getattr__(name: str) -> Any:
    if name in _AUTODIFF:
        return getattr(importlib.import_module(f"..autodiff.{_AUTODIFF[name]}", __name__), name)
    if name not in _CONTROL_FLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"..control_flow.{_CONTROL_FLOW[name]}", __name__)
    return getattr(module, "map_fn" if name == "map" else name)
