"""Names of TensorFlow that scripts use beside Keras, over this package's ops: ``from anabranch import tf``.

Arguments and defaults are TensorFlow's where they differ from those of `anabranch.ops`: `tf.argmax` goes along the
first axis, `tf.nn.moments` takes `axes`. `name` is accepted wherever TensorFlow has it, and changes no result. This
is for scripts that are brought over and has what such scripts use; new code is better off with `anabranch.ops`.
`tf.keras` is the package itself.

>>> from anabranch import tf
>>> @tf.function
... def means(x):
...     return tf.reduce_mean(x, axis=1)
>>> means([[1.0, 2.0], [3.0, 6.0]])
Tensor([1.5, 4.5], dtype=float32)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING

from ...engine.autodiff import custom_gradient as custom_gradient
from ...engine.common.dtypes import DTypeLike, as_dtype
from ...engine.control_flow import TensorArray as TensorArray
from ...engine.control_flow import group as group
from ...engine.control_flow import no_op as no_op
from ...engine.graph import IndexedSlices as IndexedSlices
from ...engine.graph import Tensor as Tensor
from ...engine.graph import Variable as Variable
from ...engine.graph import control_dependencies as control_dependencies
from ...engine.graph import device as device_scope
from ...engine.graph import name_scope as name_scope
from ...engine.graph import spec as specs
from ...engine.graph.tensor_shape import TensorShape as TensorShape
from ...engine.objects.on_demand import no_attribute
from ...engine.ops import constant as constant
from ...engine.ops import is_tensor as is_tensor
from ...engine.ops import print as print
from ..training.gradient_tape import GradientTape as GradientTape
from . import config as config
from . import data as data
from . import debugging as debugging
from . import dtypes as dtypes
from . import image as image
from . import io as io
from . import linalg as linalg
from . import lookup as lookup
from . import math as math
from . import nn as nn
from . import random as random
from . import signal as signal
from . import strings as strings
from .arrays import argsort as argsort
from .arrays import boolean_mask as boolean_mask
from .arrays import broadcast_to as broadcast_to
from .arrays import cast as cast
from .arrays import clip_by_value as clip_by_value
from .arrays import concat as concat
from .arrays import einsum as einsum
from .arrays import expand_dims as expand_dims
from .arrays import eye as eye
from .arrays import fill as fill
from .arrays import gather as gather
from .arrays import gather_nd as gather_nd
from .arrays import identity as identity
from .arrays import linspace as linspace
from .arrays import matmul as matmul
from .arrays import meshgrid as meshgrid
from .arrays import newaxis as newaxis
from .arrays import norm as norm
from .arrays import one_hot as one_hot
from .arrays import ones as ones
from .arrays import ones_like as ones_like
from .arrays import pad as pad
from .arrays import range as range
from .arrays import rank as rank
from .arrays import repeat as repeat
from .arrays import reshape as reshape
from .arrays import reverse as reverse
from .arrays import reverse_sequence as reverse_sequence
from .arrays import roll as roll
from .arrays import scatter_nd as scatter_nd
from .arrays import searchsorted as searchsorted
from .arrays import sequence_mask as sequence_mask
from .arrays import shape as shape
from .arrays import size as size
from .arrays import slice as slice
from .arrays import sort as sort
from .arrays import split as split
from .arrays import squeeze as squeeze
from .arrays import stack as stack
from .arrays import stop_gradient as stop_gradient
from .arrays import tensor_scatter_nd_add as tensor_scatter_nd_add
from .arrays import tensor_scatter_nd_max as tensor_scatter_nd_max
from .arrays import tensor_scatter_nd_min as tensor_scatter_nd_min
from .arrays import tensor_scatter_nd_sub as tensor_scatter_nd_sub
from .arrays import tensor_scatter_nd_update as tensor_scatter_nd_update
from .arrays import tensordot as tensordot
from .arrays import tile as tile
from .arrays import transpose as transpose
from .arrays import unique as unique
from .arrays import unstack as unstack
from .arrays import where as where
from .arrays import zeros as zeros
from .arrays import zeros_like as zeros_like
from .clipping import clip_by_global_norm as clip_by_global_norm
from .clipping import clip_by_norm as clip_by_norm
from .control_flow import UnconnectedGradients as UnconnectedGradients
from .control_flow import case as case
from .control_flow import cond as cond
from .control_flow import convert_to_tensor as convert_to_tensor
from .control_flow import dynamic_partition as dynamic_partition
from .control_flow import dynamic_stitch as dynamic_stitch
from .control_flow import ensure_shape as ensure_shape
from .control_flow import executing_eagerly as executing_eagerly
from .control_flow import foldl as foldl
from .control_flow import foldr as foldr
from .control_flow import gradients as gradients
from .control_flow import identity_n as identity_n
from .control_flow import init_scope as init_scope
from .control_flow import map_fn as map_fn
from .control_flow import numpy_function as numpy_function
from .control_flow import py_function as py_function
from .control_flow import scan as scan
from .control_flow import switch_case as switch_case
from .control_flow import vectorized_map as vectorized_map
from .control_flow import while_loop as while_loop
from .debugging import Assert as Assert
from .dtypes import DType as DType
from .dtypes import bfloat16 as bfloat16
from .dtypes import bool as bool
from .dtypes import complex as complex
from .dtypes import complex64 as complex64
from .dtypes import complex128 as complex128
from .dtypes import float16 as float16
from .dtypes import float32 as float32
from .dtypes import float64 as float64
from .dtypes import int8 as int8
from .dtypes import int16 as int16
from .dtypes import int32 as int32
from .dtypes import int64 as int64
from .dtypes import string as string
from .dtypes import uint8 as uint8
from .dtypes import uint16 as uint16
from .dtypes import uint32 as uint32
from .dtypes import uint64 as uint64
from .functions import Module as Module
from .functions import function as function
from .math import abs as abs
from .math import acos as acos
from .math import acosh as acosh
from .math import add as add
from .math import add_n as add_n
from .math import argmax as argmax
from .math import argmin as argmin
from .math import asin as asin
from .math import asinh as asinh
from .math import atan as atan
from .math import atan2 as atan2
from .math import atanh as atanh
from .math import ceil as ceil
from .math import cos as cos
from .math import cosh as cosh
from .math import cumsum as cumsum
from .math import divide as divide
from .math import equal as equal
from .math import exp as exp
from .math import floor as floor
from .math import greater as greater
from .math import greater_equal as greater_equal
from .math import less as less
from .math import less_equal as less_equal
from .math import logical_and as logical_and
from .math import logical_not as logical_not
from .math import logical_or as logical_or
from .math import maximum as maximum
from .math import minimum as minimum
from .math import multiply as multiply
from .math import negative as negative
from .math import not_equal as not_equal
from .math import pow as pow
from .math import reduce_all as reduce_all
from .math import reduce_any as reduce_any
from .math import reduce_logsumexp as reduce_logsumexp
from .math import reduce_max as reduce_max
from .math import reduce_mean as reduce_mean
from .math import reduce_min as reduce_min
from .math import reduce_prod as reduce_prod
from .math import reduce_std as reduce_std
from .math import reduce_sum as reduce_sum
from .math import reduce_variance as reduce_variance
from .math import round as round
from .math import sigmoid as sigmoid
from .math import sign as sign
from .math import sin as sin
from .math import sinh as sinh
from .math import sqrt as sqrt
from .math import square as square
from .math import subtract as subtract
from .math import tan as tan
from .math import tanh as tanh
from .math import truediv as truediv

if TYPE_CHECKING:
    import anabranch as keras

    from ... import errors as errors
    from ... import initializers as initializers
    from ... import losses as losses
    from ... import metrics as metrics
    from ... import optimizers as optimizers
    from ... import queues as queue
    from ... import summary as summary
    from ... import tree as nest
    from ...engine.graph.device import DeviceFunction
    from ..structures import ShapeLike

    constant_initializer, ones_initializer, zeros_initializer = (
        initializers.Constant,
        initializers.Ones,
        initializers.Zeros,
    )
    random_normal_initializer, random_uniform_initializer = initializers.RandomNormal, initializers.RandomUniform


__version__ = "2.21.0"  # of TensorFlow, whose names these are: scripts ask for a version that is new enough


def device(device_name: str | DeviceFunction | None) -> AbstractContextManager[None]:
    """Ask for a device for what is made inside, as `anabranch.device` does."""
    return device_scope(device_name)


def _tensor_spec(shape: ShapeLike, dtype: DTypeLike = "float32", name: str | None = None) -> specs.TensorSpec:
    """Make the spec of a tensor: its shape, None for a size that is open, and its dtype."""
    return specs.TensorSpec(specs.as_shape(shape), as_dtype(dtype))


TensorSpec = _tensor_spec

# Names of TensorFlow, and the modules of this package that they stand for; these are imported when first asked for.
_MODULES = {
    "errors": "errors",
    "initializers": "initializers",
    "losses": "losses",
    "metrics": "metrics",
    "nest": "tree",
    "optimizers": "optimizers",
    "queue": "queues",
    "summary": "summary",
}
_INITIALIZERS = {
    "constant_initializer": "Constant",
    "ones_initializer": "Ones",
    "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform",
    "zeros_initializer": "Zeros",
}
_PADDED = (
    "Rows of several lengths are padded, with their lengths or a mask: anabranch.utils.pad_sequences pads lists, "
    "and tf.strings.split gives the padded words with how many there are in each row."
)
_DENSE = "Tensors of anabranch are dense. Its fit, evaluate and predict take matrices of scipy.sparse."
_INSTEAD = {
    "audio": "Use anabranch.utils.audio_dataset_from_directory, or tf.numpy_function with a reader of WAV files.",
    "RaggedTensor": _PADDED,
    "Session": "It runs graphs. Use anabranch.Session with an anabranch.Graph, or tf.function.",
    "SparseTensor": _DENSE,
    "compat": "It holds names of TensorFlow 1. Those of its graphs are in anabranch: placeholder, Session, while_loop.",
    "distribute": "Use the strategies of anabranch.distribute, such as ParameterServer and DataParallel.",
    "estimator": "Use anabranch.Model with fit, or anabranch.wrappers for scikit-learn.",
    "placeholder": "It is a part of graphs. Use anabranch.placeholder in an anabranch.Graph.",
    "ragged": _PADDED,
    "saved_model": "Use model.export and anabranch.serving.load.",
    "sparse": _DENSE,
    "train": "Use model.save_weights and load_weights, or anabranch.distribute.CheckpointManager for any variables.",
}


def _look_up(name: str) -> object:
    if name == "keras":
        return import_module("...", __name__)
    if name in _MODULES:
        return getattr(import_module("...", __name__), _MODULES[name])
    if name in _INITIALIZERS:
        return getattr(_look_up("initializers"), _INITIALIZERS[name])
    raise no_attribute("anabranch.tf", name, _INSTEAD, "TensorFlow")


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up

__all__ = [
    "Assert",
    "DType",
    "GradientTape",
    "IndexedSlices",
    "Module",
    "Tensor",
    "TensorArray",
    "TensorShape",
    "TensorSpec",
    "UnconnectedGradients",
    "Variable",
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bfloat16",
    "bool",
    "boolean_mask",
    "broadcast_to",
    "case",
    "cast",
    "ceil",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "complex",
    "complex64",
    "complex128",
    "concat",
    "cond",
    "config",
    "constant",
    "constant_initializer",
    "control_dependencies",
    "convert_to_tensor",
    "cos",
    "cosh",
    "cumsum",
    "custom_gradient",
    "data",
    "debugging",
    "device",
    "divide",
    "dtypes",
    "dynamic_partition",
    "dynamic_stitch",
    "einsum",
    "ensure_shape",
    "equal",
    "errors",
    "executing_eagerly",
    "exp",
    "expand_dims",
    "eye",
    "fill",
    "float16",
    "float32",
    "float64",
    "floor",
    "foldl",
    "foldr",
    "function",
    "gather",
    "gather_nd",
    "gradients",
    "greater",
    "greater_equal",
    "group",
    "identity",
    "identity_n",
    "image",
    "init_scope",
    "initializers",
    "int8",
    "int16",
    "int32",
    "int64",
    "io",
    "is_tensor",
    "keras",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "logical_and",
    "logical_not",
    "logical_or",
    "lookup",
    "losses",
    "map_fn",
    "math",
    "matmul",
    "maximum",
    "meshgrid",
    "metrics",
    "minimum",
    "multiply",
    "name_scope",
    "negative",
    "nest",
    "newaxis",
    "nn",
    "no_op",
    "norm",
    "not_equal",
    "numpy_function",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "optimizers",
    "pad",
    "pow",
    "print",
    "py_function",
    "queue",
    "random",
    "random_normal_initializer",
    "random_uniform_initializer",
    "range",
    "rank",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "repeat",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "round",
    "scan",
    "scatter_nd",
    "searchsorted",
    "sequence_mask",
    "shape",
    "sigmoid",
    "sign",
    "signal",
    "sin",
    "sinh",
    "size",
    "slice",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "string",
    "strings",
    "subtract",
    "summary",
    "switch_case",
    "tan",
    "tanh",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensordot",
    "tile",
    "transpose",
    "truediv",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique",
    "unstack",
    "vectorized_map",
    "where",
    "while_loop",
    "zeros",
    "zeros_initializer",
    "zeros_like",
]


def __dir__() -> list[str]:
    """List TensorFlow's names, and none that this file only uses."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
