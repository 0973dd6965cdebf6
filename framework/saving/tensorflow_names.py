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
from typing import TYPE_CHECKING, Any

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype
from ...engine.control_flow import TensorArray as TensorArray
from ...engine.control_flow import cond as cond
from ...engine.control_flow import group as group
from ...engine.control_flow import no_op as no_op
from ...engine.control_flow import while_loop as while_loop
from ...engine.control_flow.scan import map_fn as map_fn
from ...engine.control_flow.scan import scan as scan
from ...engine.control_flow.vectorized_map import vectorized_map as vectorized_map
from ...engine.graph import Tensor
from ...engine.graph import Variable as Variable
from ...engine.graph import control_dependencies as control_dependencies
from ...engine.graph import device as device
from ...engine.graph import name_scope as name_scope
from ...engine.graph import spec as specs
from ...engine.objects import initializers as initializers
from ...engine.ops import constant as constant
from ...engine.ops import convert_to_tensor as convert_to_tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.math.elementwise import identity as pass_on
from ...engine.ops.random import samplers as draws
from ...engine.ops.random.keys import set_global_seed
from ...engine.ops.text import strings as strings
from ...engine.session.function import function as trace_function
from ...layers import nn as many_classes
from ..data.element_dataset import ElementDataset, text_lines
from ..training.gradient_tape import GradientTape as GradientTape

if TYPE_CHECKING:
    from ..structures import ShapeLike

newaxis = None
float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int8, int16, int32, int64 = "int8", "int16", "int32", "int64"
uint8, uint16, uint32, uint64 = "uint8", "uint16", "uint32", "uint64"
string = "string"


def _of_one(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: TensorLike, name: str | None = None) -> Tensor:
        return op(x)

    return call


def _of_two(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
        return op(x, y)

    return call


abs, ceil, cos, exp, floor = _of_one(ops.abs), _of_one(ops.ceil), _of_one(ops.cos), _of_one(ops.exp), _of_one(ops.floor)
_log, _log1p, logical_not, round = _of_one(ops.log), _of_one(ops.log1p), _of_one(ops.logical_not), _of_one(ops.round)
_rsqrt, sigmoid, sign, sin = _of_one(ops.rsqrt), _of_one(ops.sigmoid), _of_one(ops.sign), _of_one(ops.sin)
sqrt, square, tanh = _of_one(ops.sqrt), _of_one(ops.square), _of_one(ops.tanh)
add, divide, multiply, subtract = _of_two(ops.add), _of_two(ops.divide), _of_two(ops.multiply), _of_two(ops.subtract)
equal, not_equal, pow = _of_two(ops.equal), _of_two(ops.not_equal), _of_two(ops.power)
greater, greater_equal = _of_two(ops.greater), _of_two(ops.greater_equal)
less, less_equal = _of_two(ops.less), _of_two(ops.less_equal)
logical_and, logical_or = _of_two(ops.logical_and), _of_two(ops.logical_or)
maximum, minimum = _of_two(ops.maximum), _of_two(ops.minimum)


def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """The same values in another dtype."""
    return ops.cast(x, dtype)


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor:
    """Values within limits."""
    return ops.clip(t, clip_value_min, clip_value_max)


def einsum(equation: str, *inputs: TensorLike, **options: object) -> Tensor:
    """A sum of products, as the equation says; options are TensorFlow's and do nothing here."""
    return ops.einsum(equation, *inputs)


def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Tensor:
    """A tensor with an axis of one element more."""
    return ops.expand_dims(input, axis)


def eye(
    num_rows: int | Tensor,
    num_columns: int | Tensor | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor:
    """The matrix that is one on its diagonal and zero elsewhere."""
    return ops.eye(num_rows, num_columns, dtype=dtype)


def linspace(start: TensorLike, stop: TensorLike, num: int, name: str | None = None, axis: int = 0) -> Tensor:
    """So many numbers from `start` to `stop`, both included, at equal distances."""
    return ops.linspace(start, stop, num, axis=axis)


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
    **options: Any,
) -> Tensor:
    """The product of matrices, with the last two axes of either swapped before; other options do nothing here."""
    return ops.matmul(ops.swapaxes(a, -1, -2) if transpose_a else a, ops.swapaxes(b, -1, -2) if transpose_b else b)


def ones(shape: TensorLike, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """A tensor of ones."""
    return ops.ones(shape, dtype)


def ones_like(input: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Ones in the shape of a tensor."""
    return ops.ones_like(input, dtype)


def zeros(shape: TensorLike, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return ops.zeros(shape, dtype)


def zeros_like(input: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Zeros in the shape of a tensor."""
    return ops.zeros_like(input, dtype)


def range(
    start: TensorLike,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: DTypeLike = None,
    name: str | None = None,
) -> Tensor:
    """Numbers from `start` (0, if only one is given) up to `limit`, which is left out, in steps of `delta`."""
    first, last = (0, start) if limit is None else (start, limit)
    return ops.arange(first, last, delta, dtype)


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Each element several times."""
    return ops.repeat(input, repeats, axis)


def reshape(tensor: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """The same values in another shape."""
    return ops.reshape(tensor, shape)


def roll(input: TensorLike, shift: int | Sequence[int] | Tensor, axis: int, name: str | None = None) -> Tensor:
    """The elements moved on along an axis; those at the end come first."""
    return ops.roll(input, shift, axis)


def shape(input: TensorLike, out_type: DTypeLike = "int32", name: str | None = None) -> Any:
    """The shape: of each axis an int where it is known, and a tensor where it is not."""
    return ops.shape(input)


def size(input: TensorLike, out_type: DTypeLike = "int32", name: str | None = None) -> Any:
    """The number of elements."""
    return ops.size(input)


def squeeze(input: TensorLike, axis: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """A tensor without its axes of one element, or without some of these."""
    return ops.squeeze(input, axis)


def stack(values: Sequence[TensorLike] | Tensor, axis: int = 0, name: str | None = None) -> Tensor:
    """Tensors side by side along a new axis."""
    return ops.stack(values, axis)


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """The same values, through which no gradient passes."""
    return ops.stop_gradient(input)


def tensordot(
    a: TensorLike, b: TensorLike, axes: int | Sequence[int] | Sequence[Sequence[int]], name: str | None = None
) -> Tensor:
    """The sum of products along axes."""
    return ops.tensordot(a, b, axes)


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """A tensor so many times along each axis."""
    return ops.tile(input, multiples)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str | None = None) -> list[Tensor]:
    """The parts of a tensor along an axis, each without that axis."""
    return ops.unstack(value, num, axis)


def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Any:
    """`x` where the condition holds and `y` elsewhere; the positions where it holds, if neither is given."""
    return ops.argwhere(condition) if x is None and y is None else ops.where(condition, x, y)


def function(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`anabranch.function`, with or without options, which are TensorFlow's and do nothing here."""
    return trace_function if func is None else trace_function(func)


def _tensor_spec(shape: ShapeLike, dtype: DTypeLike = "float32", name: str | None = None) -> specs.TensorSpec:
    """Make the spec of a tensor: its shape, None for a size that is open, and its dtype."""
    return specs.TensorSpec(specs.as_shape(shape), as_dtype(dtype))


TensorSpec = _tensor_spec


def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """The same values, as the result of an operation of its own, which waits for control dependencies."""
    return pass_on(convert_to_tensor(input))


def split(
    value: TensorLike,
    num_or_size_splits: int | Sequence[int],
    axis: int = 0,
    num: int | None = None,
    name: str | None = None,
) -> Any:
    """Parts of a tensor along an axis: so many equal ones, or ones of given sizes."""
    if isinstance(num_or_size_splits, int):
        return ops.split(value, num_or_size_splits, axis)
    return ops.split(value, list(accumulate(num_or_size_splits))[:-1], axis)


def concat(values: Sequence[Any], axis: int, name: str | None = None) -> Tensor:
    """Tensors one after the other along an axis."""
    return ops.concatenate(values, axis)


def transpose(a: TensorLike, perm: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """A tensor with its axes in another order."""
    return ops.transpose(a, perm)


def fill(dims: TensorLike, value: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of one value."""
    return ops.full(dims, value)


def gather(
    params: TensorLike, indices: TensorLike, axis: int = 0, batch_dims: int = 0, name: str | None = None
) -> Tensor:
    """Parts of a tensor along an axis; along the first one by default.

    Raises:
        ValueError: `batch_dims` is not 0.
    """
    if batch_dims:
        raise ValueError(f"tf.gather: batch_dims must be 0, got {batch_dims}. Use ops.take_along_axis.")
    return ops.take(params, indices, axis)


def one_hot(
    indices: TensorLike, depth: int, axis: int = -1, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor:
    """Whole numbers as rows with a one in the place of the number."""
    return ops.one_hot(indices, depth, axis=axis, dtype=dtype)


def argmax(input: TensorLike, axis: int = 0, output_type: DTypeLike = "int64", name: str | None = None) -> Tensor:
    """The position of the largest value, along the first axis by default."""
    return ops.cast(ops.argmax(input, axis), output_type)


def argmin(input: TensorLike, axis: int = 0, output_type: DTypeLike = "int64", name: str | None = None) -> Tensor:
    """The position of the smallest value, along the first axis by default."""
    return ops.cast(ops.argmin(input, axis), output_type)


def _reduction(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(
        input_tensor: TensorLike,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor:
        return op(input_tensor, axis=axis, keepdims=keepdims)

    return reduce


reduce_sum, reduce_mean, reduce_prod = _reduction(ops.sum), _reduction(ops.mean), _reduction(ops.prod)
reduce_max, reduce_min = _reduction(ops.max), _reduction(ops.min)
reduce_any, reduce_all = _reduction(ops.any), _reduction(ops.all)
reduce_logsumexp, reduce_std = _reduction(ops.logsumexp), _reduction(ops.std)
reduce_variance = _reduction(ops.var)


def _uniform(
    shape: TensorLike,
    minval: Any = 0,
    maxval: Any = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    if str(dtype).startswith(("int", "uint")):
        return draws.randint(shape, minval, maxval, dtype=dtype, seed=seed)
    return draws.uniform(shape, minval, 1.0 if maxval is None else maxval, dtype=dtype, seed=seed)


def _normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    return draws.normal(shape, mean, stddev, dtype=dtype, seed=seed)


def _shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    return draws.shuffle(value, seed=seed)


def _moments(
    x: TensorLike,
    axes: int | Sequence[int],
    shift: TensorLike | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Any, Any]:
    return ops.moments(x, axes, keepdims=keepdims)


def _conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: int | Sequence[int],
    padding: str,
    data_format: str = "NHWC",
    dilations: int | Sequence[int] = 1,
    name: str | None = None,
) -> Tensor:
    order = "channels_first" if data_format == "NCHW" else "channels_last"
    return ops.conv(input, filters, _inner(strides, order), padding.lower(), order, _inner(dilations, order))


def _inner(given: int | Sequence[int], order: str) -> Any:
    """The part of strides that is about height and width, where there is one for each axis."""
    if isinstance(given, int) or len(given) < 4:
        return given
    return tuple(given[2:4] if order == "channels_first" else given[1:3])


def _patches(
    images: TensorLike,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    return ops.image.extract_patches(
        images,
        size=tuple(sizes[1:3]),
        strides=tuple(strides[1:3]),
        dilation_rate=tuple(rates[1:3]),
        padding=padding.lower(),
    )


def _resize(images: TensorLike, size: Sequence[int], method: str = "bilinear", **options: Any) -> Tensor:
    return ops.image.resize(images, size, interpolation=method, **options)


def _crop_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    rows, columns = (
        slice(offset, offset + size) for offset, size in ((offset_height, target_height), (offset_width, target_width))
    )
    return ops.convert_to_tensor(image)[..., rows, columns, :]


def _pad_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    tensor = ops.convert_to_tensor(image)
    rank, sizes = tensor.ndim or 0, ops.shape(tensor)
    behind = target_height - offset_height - sizes[-3], target_width - offset_width - sizes[-2]
    if any(isinstance(size, int) and size < 0 for size in (offset_height, offset_width, *behind)):
        raise ValueError(
            f"pad_to_bounding_box: an image of {sizes[-3]} x {sizes[-2]} at offsets {offset_height} and {offset_width} "
            f"does not fit into {target_height} x {target_width}."
        )
    return ops.pad(tensor, [*[(0, 0)] * (rank - 3), (offset_height, behind[0]), (offset_width, behind[1]), (0, 0)])


def _flip(axis: int) -> Any:
    return lambda image: ops.flip(image, axis=axis)


def _l2_normalize(
    x: TensorLike, axis: int | Sequence[int] | None = None, epsilon: float = 1e-12, name: str | None = None
) -> Tensor:
    return ops.multiply(x, ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=axis, keepdims=True), epsilon)))


def _norm(
    tensor: TensorLike,
    ord: str | float = "euclidean",
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    return ops.norm(tensor, None if ord == "euclidean" else ord, axis, keepdims)


def _softmax(logits: TensorLike, axis: int = -1, name: str | None = None) -> Tensor:
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
    abs=abs,
    add=add,
    argmax=argmax,
    argmin=argmin,
    cos=cos,
    divide=divide,
    equal=equal,
    exp=exp,
    greater=greater,
    l2_normalize=_l2_normalize,
    less=less,
    log=_log,
    log1p=_log1p,
    logical_and=logical_and,
    logical_not=logical_not,
    logical_or=logical_or,
    maximum=maximum,
    minimum=minimum,
    multiply=multiply,
    not_equal=not_equal,
    pow=pow,
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
    rsqrt=_rsqrt,
    sigmoid=sigmoid,
    sign=sign,
    sin=sin,
    sqrt=sqrt,
    square=square,
    subtract=subtract,
    tanh=tanh,
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
image = SimpleNamespace(
    crop_to_bounding_box=_crop_to_bounding_box,
    extract_patches=_patches,
    flip_left_right=_flip(-2),
    flip_up_down=_flip(-3),
    pad_to_bounding_box=_pad_to_bounding_box,
    resize=_resize,
)
linalg = SimpleNamespace(einsum=einsum, matmul=matmul, norm=_norm)
data = SimpleNamespace(
    AUTOTUNE=-1, Dataset=ElementDataset, TextLineDataset=text_lines, experimental=SimpleNamespace(AUTOTUNE=-1)
)

_NOT_TENSORFLOWS = {"accumulate", "annotations", "draws", "many_classes", "ops", "partial", "pass_on", "trace_function"}
_NOT_TENSORFLOWS |= {
    "Any",
    "Callable",
    "ElementDataset",
    "Sequence",
    "SimpleNamespace",
    "set_global_seed",
    "TYPE_CHECKING",
}
_NOT_TENSORFLOWS |= {"TYPE_CHECKING", "as_dtype", "specs", "text_lines"}


def __dir__() -> list[str]:
    """List TensorFlow's names, and none that this file only uses."""
    own = set(globals()) - _NOT_TENSORFLOWS
    return sorted(name for name in own if not name.startswith("_") or name.startswith("__"))
