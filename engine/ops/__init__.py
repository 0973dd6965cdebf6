"""Ops, with the names and signatures of ``keras.ops``; TensorFlow's names for what Keras lacks.

Each op is one class in one place (see `anabranch.engine.graph.op.Op`), from which its tests are generated.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.names_elsewhere import OPS_MODULE, module_error
from ..common.operator_table import define_operators, operator_functions
from ..graph.op import ErrorSample, Op, Sample, registered_ops
from . import checks, conversion
from . import operators as operators  # gives tensors their operators
from . import random as random  # its errors name ab.random, where the draws are
from .arrays import (
    axes,
    creation,
    gathering,
    indexing,
    joining,
    padding,
    partitioning,
    positions,
    rearranging,
    scattering,
    segments,
    shaping,
    sorting,
)
from .arrays.axes import *  # noqa: F403
from .arrays.constants import constant
from .arrays.creation import *  # noqa: F403
from .arrays.gathering import *  # noqa: F403
from .arrays.indexing import *  # noqa: F403
from .arrays.joining import *  # noqa: F403
from .arrays.padding import *  # noqa: F403
from .arrays.partitioning import *  # noqa: F403
from .arrays.positions import *  # noqa: F403
from .arrays.rearranging import *  # noqa: F403
from .arrays.scattering import *  # noqa: F403
from .arrays.segments import *  # noqa: F403
from .arrays.shaping import *  # noqa: F403
from .arrays.sorting import *  # noqa: F403
from .base import apply, apply_multi, cast
from .checks import *  # noqa: F403
from .conversion import *  # noqa: F403
from .entrance import guard_entrances as _guard_entrances
from .internal import raw as raw  # so that saved graphs find its ops
from .linear_algebra import linalg as _linalg
from .linear_algebra import spectral
from .linear_algebra.linalg import *  # noqa: F403
from .linear_algebra.spectral import *  # noqa: F403
from .math import (
    bitwise,
    comparison,
    complex_numbers,
    elementwise,
    floats,
    mathematics,
    reduction,
    sigmoids,
    special,
    trigonometry,
)
from .math.bitwise import *  # noqa: F403
from .math.comparison import *  # noqa: F403
from .math.complex_numbers import *  # noqa: F403
from .math.elementwise import *  # noqa: F403
from .math.floats import *  # noqa: F403
from .math.mathematics import *  # noqa: F403
from .math.reduction import *  # noqa: F403
from .math.sigmoids import *  # noqa: F403
from .math.special import *  # noqa: F403
from .math.trigonometry import *  # noqa: F403
from .namespaces import Namespace
from .neural import convolution, embedding, pooling
from .neural import nn as _nn
from .neural.convolution import *  # noqa: F403
from .neural.embedding import *  # noqa: F403
from .neural.nn import *  # noqa: F403
from .neural.pooling import *  # noqa: F403
from .signal import fourier, windows
from .signal.fourier import *  # noqa: F403
from .signal.windows import *  # noqa: F403
from .text import escape
from .text.escape import *  # noqa: F403

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
    from .arrays import patches, sequences, spacing
    from .arrays.patches import *  # noqa: F403
    from .arrays.sequences import *  # noqa: F403
    from .arrays.spacing import *  # noqa: F403
    from .containers import sparse as sparse
    from .containers.sparse import SparseTensor, embedding_lookup_sparse
    from .linear_algebra import factorisations
    from .linear_algebra.factorisations import *  # noqa: F403
    from .math import counting, gamma_functions, integers, nan_aware, quantiles, statistics
    from .math.counting import *  # noqa: F403
    from .math.gamma_functions import *  # noqa: F403
    from .math.integers import *  # noqa: F403
    from .math.nan_aware import *  # noqa: F403
    from .math.quantiles import *  # noqa: F403
    from .math.statistics import *  # noqa: F403
    from .neural import adaptive_pooling, attention, ctc
    from .neural.adaptive_pooling import *  # noqa: F403
    from .neural.attention import *  # noqa: F403
    from .neural.ctc import *  # noqa: F403
    from .signal import image as image
    from .signal import short_time, signal_windows
    from .signal.filtering import psnr as psnr
    from .signal.short_time import *  # noqa: F403
    from .signal.signal_windows import *  # noqa: F403
    from .text import encoding, matching
    from .text import strings as strings
    from .text.encoding import *  # noqa: F403
    from .text.matching import *  # noqa: F403

# Modules of ops that few programs use, with their public names: imported at the first look-up of one.
_LATER = {
    "arrays.patches": "depth_to_space fold rearrange space_to_depth unfold",
    "arrays.sequences": "invert_permutation reverse_sequence sequence_mask setdiff1d unique_with_counts",
    "arrays.spacing": "geomspace linspace logspace vander",
    "containers.sparse": "SparseTensor embedding_lookup_sparse",
    "linear_algebra.factorisations": "cholesky_inverse logdet lstsq lu_factor pinv qr slogdet",
    "math.counting": "count_nonzero",
    "math.gamma_functions": "gammainc",
    "math.integers": "gcd lcm unravel_index",
    "math.nan_aware": (
        "nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmin nanprod nanstd nansum nanvar"
    ),
    "math.quantiles": "median nanmedian nanpercentile nanquantile percentile quantile",
    "math.statistics": "average corrcoef correlate diff histogram ptp trapezoid",
    "neural.adaptive_pooling": "adaptive_average_pool adaptive_max_pool",
    "neural.attention": "dot_product_attention",
    "neural.ctc": "ctc_decode",
    "signal.filtering": "psnr",
    "signal.short_time": "extract_sequences istft stft",
    "signal.signal_windows": "bartlett blackman hamming hanning kaiser",
    "text.encoding": "multi_hot saturate_cast",
    "text.matching": "allclose isin",
}
_MODULES = {"image": "signal.image", "sparse": "containers.sparse", "strings": "text.strings"}
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names.split()}

__all__ = [
    "ErrorSample",
    "Op",
    "Sample",
    "apply",
    "apply_multi",
    "associative_scan",
    "cast",
    "cond",
    "constant",
    "ctc_loss",
    "custom_gradient",
    "fori_loop",
    "image",
    "jvp",
    "linalg",
    "map",
    "nn",
    "numpy",
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
__all__ += axes.__all__
__all__ += bitwise.__all__
__all__ += checks.__all__
__all__ += comparison.__all__
__all__ += complex_numbers.__all__
__all__ += conversion.__all__
__all__ += convolution.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
__all__ += embedding.__all__
__all__ += escape.__all__
__all__ += floats.__all__
__all__ += fourier.__all__
__all__ += gathering.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += _linalg.__all__
__all__ += mathematics.__all__
__all__ += _nn.__all__
__all__ += padding.__all__
__all__ += partitioning.__all__
__all__ += pooling.__all__
__all__ += positions.__all__
__all__ += rearranging.__all__
__all__ += reduction.__all__
__all__ += scattering.__all__
__all__ += segments.__all__
__all__ += shaping.__all__
__all__ += sorting.__all__
__all__ += sigmoids.__all__
__all__ += special.__all__
__all__ += spectral.__all__
__all__ += trigonometry.__all__
__all__ += windows.__all__

if TYPE_CHECKING:
    __all__ += ["SparseTensor", "embedding_lookup_sparse", "psnr"]
    __all__ += patches.__all__
    __all__ += sequences.__all__
    __all__ += spacing.__all__
    __all__ += factorisations.__all__
    __all__ += counting.__all__
    __all__ += gamma_functions.__all__
    __all__ += integers.__all__
    __all__ += nan_aware.__all__
    __all__ += quantiles.__all__
    __all__ += statistics.__all__
    __all__ += adaptive_pooling.__all__
    __all__ += attention.__all__
    __all__ += ctc.__all__
    __all__ += short_time.__all__
    __all__ += signal_windows.__all__
    __all__ += encoding.__all__
    __all__ += matching.__all__
else:
    __all__ += _MODULE_OF

# The namespaces of keras.ops; `nn` and `linalg` stand before the modules of these names.
if TYPE_CHECKING:
    from .. import ops as linalg
    from .. import ops as nn
    from .. import ops as numpy
else:
    numpy, nn, linalg = Namespace("numpy"), Namespace("nn"), Namespace("linalg")

_guard_entrances(globals(), __name__, but=("apply", "apply_multi", "registered_ops"))

# What keras.ops has, and is above the ops here, such as control flow: `engine/methods.py` hands it down.
_ABOVE = frozenset(__all__) - globals().keys() - _MODULE_OF.keys() - _MODULES.keys()


def _look_up(name: str) -> Any:
    if name in _ABOVE:
        return operator_functions[name]
    if name not in _MODULE_OF and name not in _MODULES:
        raise module_error(__name__, name, OPS_MODULE)
    module = import_module(f"{__name__}.{_MODULE_OF.get(name) or _MODULES[name]}")
    found = {name: module if name in _MODULES else getattr(module, name)}
    _guard_entrances(found, __name__)
    return globals().setdefault(name, found[name])  # another thread may have been first


def _import_ops() -> None:
    for module in (*_LATER, *_MODULES.values()):
        import_module(f"{__name__}.{module}")


define_operators({"import_ops": _import_ops})  # for `registered_ops`

if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up
