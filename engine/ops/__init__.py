"""Ops, with the names and signatures of ``keras.ops``; TensorFlow's names for what Keras lacks.

Each op is one class in one place (see `anabranch.engine.graph.op.Op`), from which its tests are generated.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ..graph.op import ErrorSample, Op, Sample, registered_ops
from . import (
    adaptive_pooling,
    attention,
    axes,
    bitwise,
    checks,
    comparison,
    complex_numbers,
    conversion,
    convolution,
    counting,
    creation,
    ctc,
    elementwise,
    embedding,
    encoding,
    escape,
    factorisations,
    floats,
    fourier,
    gathering,
    indexing,
    integers,
    joining,
    matching,
    mathematics,
    nan_aware,
    padding,
    partitioning,
    patches,
    pooling,
    positions,
    quantiles,
    rearranging,
    reduction,
    scattering,
    segments,
    sequences,
    shaping,
    short_time,
    signal_windows,
    sorting,
    spacing,
    special,
    spectral,
    statistics,
    trigonometry,
    windows,
)
from . import image as image
from . import linalg as _linalg
from . import nn as _nn
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
from .entrance import guard_entrances as _guard_entrances
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

if TYPE_CHECKING:
    from ..autodiff.custom_gradient import custom_gradient
    from ..autodiff.derivatives import jvp
    from ..control_flow.associative_scan import associative_scan
    from ..control_flow.cond import cond, switch
    from ..control_flow.ctc import ctc_loss
    from ..control_flow.scan import fori_loop, scan
    from ..control_flow.scan import map_fn as map
    from ..control_flow.vectorized_map import vectorize, vectorized_map
    from ..control_flow.while_loop import while_loop

__all__ = [
    "ErrorSample",
    "Op",
    "Sample",
    "SparseTensor",
    "apply",
    "apply_multi",
    "associative_scan",
    "cast",
    "cond",
    "constant",
    "ctc_loss",
    "custom_gradient",
    "embedding_lookup_sparse",
    "fori_loop",
    "image",
    "jvp",
    "linalg",
    "map",
    "nn",
    "numpy",
    "psnr",
    "registered_ops",
    "scan",
    "sparse",
    "strings",
    "switch",
    "vectorize",
    "vectorized_map",
    "while_loop",
]
# By their own lists, in this form: type checkers read it without running anything.
__all__ += adaptive_pooling.__all__
__all__ += attention.__all__
__all__ += axes.__all__
__all__ += bitwise.__all__
__all__ += checks.__all__
__all__ += comparison.__all__
__all__ += complex_numbers.__all__
__all__ += conversion.__all__
__all__ += convolution.__all__
__all__ += counting.__all__
__all__ += creation.__all__
__all__ += ctc.__all__
__all__ += elementwise.__all__
__all__ += embedding.__all__
__all__ += encoding.__all__
__all__ += escape.__all__
__all__ += factorisations.__all__
__all__ += floats.__all__
__all__ += fourier.__all__
__all__ += gathering.__all__
__all__ += indexing.__all__
__all__ += integers.__all__
__all__ += joining.__all__
__all__ += _linalg.__all__
__all__ += matching.__all__
__all__ += mathematics.__all__
__all__ += nan_aware.__all__
__all__ += _nn.__all__
__all__ += padding.__all__
__all__ += partitioning.__all__
__all__ += patches.__all__
__all__ += pooling.__all__
__all__ += positions.__all__
__all__ += quantiles.__all__
__all__ += rearranging.__all__
__all__ += reduction.__all__
__all__ += scattering.__all__
__all__ += segments.__all__
__all__ += sequences.__all__
__all__ += shaping.__all__
__all__ += short_time.__all__
__all__ += signal_windows.__all__
__all__ += sorting.__all__
__all__ += spacing.__all__
__all__ += special.__all__
__all__ += spectral.__all__
__all__ += statistics.__all__
__all__ += trigonometry.__all__
__all__ += windows.__all__

# The namespaces of keras.ops; `nn` and `linalg` stand before the modules of these names.
if TYPE_CHECKING:
    from .. import ops as linalg
    from .. import ops as nn
    from .. import ops as numpy
else:
    numpy, nn, linalg = Namespace("numpy"), Namespace("nn"), Namespace("linalg")

_guard_entrances(globals(), __name__, but=("apply", "apply_multi", "registered_ops"))

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


def _look_up(name: str) -> Any:
    if name in _AUTODIFF:
        return getattr(importlib.import_module(f"..autodiff.{_AUTODIFF[name]}", __name__), name)
    if name not in _CONTROL_FLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module = importlib.import_module(f"..control_flow.{_CONTROL_FLOW[name]}", __name__)
    return getattr(module, "map_fn" if name == "map" else name)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up
