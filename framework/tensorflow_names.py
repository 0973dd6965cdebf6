"""Names of TensorFlow that scripts use beside Keras, over this package's ops: ``from anabranch import tf``.

Arguments and defaults are TensorFlow's where they differ from those of `anabranch.ops`: `tf.argmax` goes along the
first axis, `tf.nn.moments` takes `axes`. This is for scripts that are brought over and has what such scripts use; new
code is better off with `anabranch.ops`.

>>> from anabranch import tf
>>> @tf.function
... def means(x):
...     return tf.reduce_mean(x, axis=1)
>>> means([[1.0, 2.0], [3.0, 6.0]])
Tensor([1.5, 4.5], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from ..engine import ops
from ..engine.control_flow import TensorArray as TensorArray
from ..engine.control_flow import cond as cond
from ..engine.control_flow import group as group
from ..engine.control_flow import no_op as no_op
from ..engine.control_flow import while_loop as while_loop
from ..engine.control_flow.scan import map_fn as map_fn
from ..engine.control_flow.scan import scan as scan
from ..engine.control_flow.vectorized_map import vectorized_map as vectorized_map
from ..engine.graph import Tensor
from ..engine.graph import Variable as Variable
from ..engine.graph import control_dependencies as control_dependencies
from ..engine.graph import device as device
from ..engine.graph import name_scope as name_scope
from ..engine.ops import constant as constant
from ..engine.ops import convert_to_tensor as convert_to_tensor
from ..engine.ops import random as draws
from ..engine.ops.elementwise import identity as pass_on
from ..engine.ops.keys import set_global_seed
from ..engine.session.function import function as trace_function
from ..layers import nn as many_classes
from .element_dataset import ElementDataset
from .gradient_tape import GradientTape as GradientTape

newaxis = None
float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int8, int16, int32, int64 = "int8", "int16", "int32", "int64"
uint8, uint16, uint32, uint64 = "uint8", "uint16", "uint32", "uint64"
string = "string"

abs, add, cast, ceil, clip_by_value = ops.abs, ops.add, ops.cast, ops.ceil, ops.clip
cos, divide, einsum, equal, exp = ops.cos, ops.divide, ops.einsum, ops.equal, ops.exp
expand_dims, eye, floor, greater, greater_equal = ops.expand_dims, ops.eye, ops.floor, ops.greater, ops.greater_equal
less, less_equal, linspace = ops.less, ops.less_equal, ops.linspace
logical_and, logical_not, logical_or, matmul = ops.logical_and, ops.logical_not, ops.logical_or, ops.matmul
maximum, minimum, multiply, not_equal = ops.maximum, ops.minimum, ops.multiply, ops.not_equal
ones, ones_like, pow, repeat, reshape = ops.ones, ops.ones_like, ops.power, ops.repeat, ops.reshape
roll, round, shape, sigmoid, sign, sin = ops.roll, ops.round, ops.shape, ops.sigmoid, ops.sign, ops.sin
size, sqrt, square, squeeze = ops.size, ops.sqrt, ops.square, ops.squeeze
stack, stop_gradient, subtract, tanh = ops.stack, ops.stop_gradient, ops.subtract, ops.tanh
tensordot, tile, unstack, where = ops.tensordot, ops.tile, ops.unstack, ops.where
zeros, zeros_like = ops.zeros, ops.zeros_like
range = ops.arange


def function(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`anabranch.function`, with or without options, which are TensorFlow's and do nothing here."""
    return trace_function if func is None else trace_function(func)


def identity(input: Any, name: str | None = None) -> Tensor:
    """The same values, as the result of an operation of its own, which waits for control dependencies."""
    return pass_on(convert_to_tensor(input))


def split(value: Any, num_or_size_splits: Any, axis: int = 0, num: int | None = None, name: str | None = None) -> Any:
    """Parts of a tensor along an axis: so many equal ones, or ones of given sizes."""
    if isinstance(num_or_size_splits, int):
        return ops.split(value, num_or_size_splits, axis)
    return ops.split(value, list(accumulate(num_or_size_splits))[:-1], axis)


def concat(values: Sequence[Any], axis: int, name: str | None = None) -> Tensor:
    """Tensors one after the other along an axis."""
    return ops.concatenate(values, axis)


def transpose(a: Any, perm: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """A tensor with its axes in another order."""
    return ops.transpose(a, perm)


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor of one value."""
    return ops.full(dims, value)


def gather(params: Any, indices: Any, axis: int = 0, batch_dims: int = 0, name: str | None = None) -> Tensor:
    """Parts of a tensor along an axis; along the first one by default.

    Raises:
        ValueError: `batch_dims` is not 0.
    """
    if batch_dims:
        raise ValueError(f"tf.gather: batch_dims must be 0, got {batch_dims}. Use ops.take_along_axis.")
    return ops.take(params, indices, axis)


def one_hot(indices: Any, depth: int, axis: int = -1, dtype: Any = "float32", name: str | None = None) -> Tensor:
    """Whole numbers as rows with a one in the place of the number."""
    return ops.one_hot(indices, depth, axis=axis, dtype=dtype)


def argmax(input: Any, axis: int = 0, output_type: Any = "int64", name: str | None = None) -> Tensor:
    """The position of the largest value, along the first axis by default."""
    return ops.cast(ops.argmax(input, axis), output_type)


def argmin(input: Any, axis: int = 0, output_type: Any = "int64", name: str | None = None) -> Tensor:
    """The position of the smallest value, along the first axis by default."""
    return ops.cast(ops.argmin(input, axis), output_type)


def _reduction(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
        return op(input_tensor, axis=axis, keepdims=keepdims)

    return reduce


reduce_sum, reduce_mean, reduce_prod = _reduction(ops.sum), _reduction(ops.mean), _reduction(ops.prod)
reduce_max, reduce_min = _reduction(ops.max), _reduction(ops.min)
reduce_any, reduce_all = _reduction(ops.any), _reduction(ops.all)
reduce_logsumexp, reduce_std = _reduction(ops.logsumexp), _reduction(ops.std)
reduce_variance = _reduction(ops.var)


def _uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32", seed: Any = None, name: Any = None
) -> Tensor:
    if str(dtype).startswith(("int", "uint")):
        return draws.randint(shape, minval, maxval, dtype=dtype, seed=seed)
    return draws.uniform(shape, minval, 1.0 if maxval is None else maxval, dtype=dtype, seed=seed)


def _normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", seed: Any = None, name: Any = None
) -> Tensor:
    return draws.normal(shape, mean, stddev, dtype=dtype, seed=seed)


def _shuffle(value: Any, seed: Any = None, name: Any = None) -> Tensor:
    return draws.shuffle(value, seed=seed)


def _moments(x: Any, axes: Any, shift: Any = None, keepdims: bool = False, name: Any = None) -> tuple[Any, Any]:
    return ops.moments(x, axes, keepdims=keepdims)


def _conv2d(
    input: Any,
    filters: Any,
    strides: Any,
    padding: str,
    data_format: str = "NHWC",
    dilations: Any = 1,
    name: Any = None,
) -> Tensor:
    order = "channels_first" if data_format == "NCHW" else "channels_last"
    return ops.conv(input, filters, _inner(strides, order), padding.lower(), order, _inner(dilations, order))


def _inner(given: Any, order: str) -> Any:
    """The part of strides that is about height and width, where there is one for each axis."""
    if isinstance(given, int) or len(given) < 4:
        return given
    return tuple(given[2:4] if order == "channels_first" else given[1:3])


def _patches(images: Any, sizes: Any, strides: Any, rates: Any, padding: str, name: Any = None) -> Tensor:
    return ops.image.extract_patches(
        images,
        size=tuple(sizes[1:3]),
        strides=tuple(strides[1:3]),
        dilation_rate=tuple(rates[1:3]),
        padding=padding.lower(),
    )


def _resize(images: Any, size: Any, method: str = "bilinear", **options: Any) -> Tensor:
    return ops.image.resize(images, size, interpolation=method, **options)


def _l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: Any = None) -> Tensor:
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=axis, keepdims=True), epsilon))


def _softmax(logits: Any, axis: int = -1, name: Any = None) -> Tensor:
    return ops.softmax(logits, axis)


nn = SimpleNamespace(
    conv2d=_conv2d,
    elu=ops.elu,
    embedding_lookup=partial(ops.embedding_lookup, partition_strategy="div"),
    gelu=ops.gelu,
    l2_normalize=_l2_normalize,
    leaky_relu=ops.leaky_relu,
    log_softmax=ops.log_softmax,
    moments=_moments,
    nce_loss=partial(many_classes.nce_loss, partition_strategy="div"),
    relu=ops.relu,
    relu6=ops.relu6,
    sampled_softmax_loss=partial(many_classes.sampled_softmax_loss, partition_strategy="div"),
    selu=ops.selu,
    sigmoid=ops.sigmoid,
    silu=ops.silu,
    softmax=_softmax,
    softplus=ops.softplus,
    swish=ops.silu,
    tanh=ops.tanh,
)
math = SimpleNamespace(
    abs=ops.abs,
    add=ops.add,
    argmax=argmax,
    argmin=argmin,
    cos=ops.cos,
    divide=ops.divide,
    equal=ops.equal,
    exp=ops.exp,
    greater=ops.greater,
    l2_normalize=_l2_normalize,
    less=ops.less,
    log=ops.log,
    log1p=ops.log1p,
    logical_and=ops.logical_and,
    logical_not=ops.logical_not,
    logical_or=ops.logical_or,
    maximum=ops.maximum,
    minimum=ops.minimum,
    multiply=ops.multiply,
    not_equal=ops.not_equal,
    pow=ops.power,
    reduce_all=reduce_all,
    reduce_any=reduce_any,
    reduce_logsumexp=reduce_logsumexp,
    reduce_max=reduce_max,
    reduce_mean=reduce_mean,
    reduce_min=reduce_min,
    reduce_prod=reduce_prod,
    reduce_std=reduce_std,
    reduce_sum=reduce_sum,
    reduce_variance=reduce_variance,
    rsqrt=ops.rsqrt,
    sigmoid=ops.sigmoid,
    sign=ops.sign,
    sin=ops.sin,
    sqrt=ops.sqrt,
    square=ops.square,
    subtract=ops.subtract,
    tanh=ops.tanh,
)
random = SimpleNamespace(
    fixed_unigram_candidate_sampler=many_classes.fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler=many_classes.log_uniform_candidate_sampler,
    normal=_normal,
    set_seed=set_global_seed,
    shuffle=_shuffle,
    uniform=_uniform,
    uniform_candidate_sampler=many_classes.uniform_candidate_sampler,
)
image = SimpleNamespace(extract_patches=_patches, resize=_resize)
linalg = SimpleNamespace(matmul=ops.matmul, norm=ops.norm, einsum=ops.einsum)
data = SimpleNamespace(Dataset=ElementDataset, AUTOTUNE=-1, experimental=SimpleNamespace(AUTOTUNE=-1))
