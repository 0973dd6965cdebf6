"""Describe arguments, results and errors of ops whose docstrings are a line or two, for the reference.

Ops of one kind share them. tests/repository/test_site_arguments.py calls the ops and compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import anabranch

# What an argument is, by its name, unless its kind says otherwise.
_ARGUMENTS = {
    "alpha": "the scale of negative values.",
    "atol": "the absolute tolerance.",
    "axis": "the axes: an int, several, or None for all.",
    "axis1": "an axis.",
    "axis2": "another axis.",
    "b": "how round the curve is; 0 gives `relu`.",
    "default_value": "the value elsewhere.",
    "dtype": "the dtype of the result; None for that of `x`.",
    "epsilon": "a small number against divisions by zero.",
    "equal_nan": "whether NaN is close to NaN.",
    "indices": "integers ``[..., depth]``, positions in the first `depth` axes.",
    "indices_or_sections": "how many equal parts, or the positions at which to cut.",
    "k": "the diagonal: 0 for the main one, positive above it, negative below.",
    "keepdims": "keep these axes, with size 1.",
    "message": "the end of the error's text.",
    "method": '"linear", "lower", "higher", "midpoint" or "nearest".',
    "negative_slope": "the slope for negative values.",
    "rtol": "the tolerance relative to `x2`.",
    "summarize": "how many elements the error shows at the start and end of each axis, -1 for all.",
    "threshold": "the bound.",
    "x": "numbers of any shape.",
    "x1": "numbers.",
    "x2": "numbers; the shapes broadcast, and the dtypes are promoted.",
}
_FLOATS = {"x": "numbers of any shape; integers and bools count as float32."}
_SAME = "The shape of `x`, and its dtype if that is floating."
_BROADCAST = "The shape to which both broadcast."
_UNLIKE = {"ValueError": "the shapes do not broadcast."}
_AXIS = {"ValueError": "there is no such axis."}
_STRINGS = {"TypeError": "strings are given."}
_NO_ELEMENTS = {"ValueError": "there are no elements, or no such axis."}
_PLACES = {"ValueError": "the shapes do not fit.", "IndexError": "a position is outside."}
_NO_COMPLEX = {"TypeError": "complex numbers or strings are given."}
_COMPLEX = {"TypeError": "complex numbers are given."}
_ONE_AXIS = {"axis": "the axis; None for the elements of `x` as a vector."}


class Kind(NamedTuple):
    """Describe ops of one kind: their arguments, the result, and which errors are raised when."""

    arguments: Mapping[str, str]
    returns: str
    raises: Mapping[str, str]


# Each kind, and its ops.
KINDS: list[tuple[str, Kind]] = [
    # --- of each element --------------------------------------------------------------------------------------------
    (
        "arccos arccosh arcsin arcsinh arctan arctanh cos cosh exp exp2 expm1 hard_shrink log log10 log1p log2 "
        "reciprocal rsqrt sigmoid silu sin sinh soft_shrink softsign sqrt squareplus swish tan tanh tanh_shrink",
        Kind(_FLOATS, _SAME, _STRINGS),
    ),
    (
        "ceil celu elu erf erfc erfinv floor hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid selu "
        "sinc softplus sparse_plus sparse_sigmoid threshold",
        Kind(_FLOATS, _SAME, _NO_COMPLEX),
    ),
    (
        "deg2rad rad2deg",
        Kind({"x": "numbers of any shape; integers but int64 count as float32."}, _SAME, _STRINGS),
    ),
    (
        "cbrt i0",
        Kind({"x": "numbers of any shape; integers but int64 count as float32."}, _SAME, _NO_COMPLEX),
    ),
    ("abs absolute", Kind({}, "The shape of `x`, and its dtype; of complex numbers real ones.", _STRINGS)),
    ("sign trunc relu6", Kind({}, "The shape of `x`, and its dtype; int32 for bools.", _NO_COMPLEX)),
    ("square relu", Kind({}, "The shape of `x`, and its dtype; int32 for bools.", _STRINGS)),
    ("isfinite isinf isnan", Kind({}, "Bools, in the shape of `x`.", _STRINGS)),
    ("isneginf isposinf signbit", Kind({}, "Bools, in the shape of `x`.", _COMPLEX)),
    ("isreal", Kind({}, "Bools, in the shape of `x`; true for real numbers.", {})),
    ("logical_not", Kind({"x": "bools, or numbers, of any shape."}, "Bools, in the shape of `x`.", _STRINGS)),
    ("conj conjugate copy", Kind({}, "The shape and dtype of `x`.", {})),
    ("real imag", Kind({}, "The shape of `x`; float32 for complex64, float64 for complex128, or its dtype.", {})),
    ("view_as_real", Kind({}, "The shape of `x`, and 2 behind it; real.", {})),
    ("stop_gradient", Kind({"variable": "a tensor or variable."}, "A tensor of its shape and dtype.", {})),
    (
        "bitwise_invert",
        Kind({"x": "integers or bools."}, "The shape and dtype of `x`.", {"TypeError": "others."}),
    ),
    # --- of two -----------------------------------------------------------------------------------------------------
    ("add", Kind({"x1": "numbers, or strings, which are joined."}, _BROADCAST, _UNLIKE)),
    ("multiply", Kind({}, _BROADCAST, {**_UNLIKE, **_STRINGS})),
    ("divide divide_no_nan true_divide", Kind({}, f"{_BROADCAST} Floating.", {**_UNLIKE, **_STRINGS})),
    ("squared_difference", Kind({}, _BROADCAST, {**_UNLIKE, "TypeError": "bools or strings are given."})),
    ("fmax fmin fmod mod floor_divide", Kind({}, _BROADCAST, {**_UNLIKE, **_NO_COMPLEX})),
    (
        "arctan2 heaviside hypot logaddexp logaddexp2 nextafter",
        Kind({}, f"{_BROADCAST} Floating: integers count as float32.", {**_UNLIKE, **_NO_COMPLEX}),
    ),
    ("equal not_equal", Kind({"x1": "numbers or strings."}, f"Bools. {_BROADCAST}", _UNLIKE)),
    (
        "greater greater_equal less less_equal",
        Kind(
            {"x1": "numbers or strings."},
            f"Bools. {_BROADCAST}",
            {**_UNLIKE, **_COMPLEX},
        ),
    ),
    (
        "logical_and logical_or logical_xor",
        Kind({"x1": "bools, or numbers."}, f"Bools. {_BROADCAST}", {**_UNLIKE, **_STRINGS}),
    ),
    ("allclose", Kind({}, "A scalar bool.", {**_UNLIKE, **_STRINGS})),
    (
        "bitwise_left_shift bitwise_right_shift",
        Kind(
            {"x": "integers.", "y": "integers; the shapes broadcast."},
            f"Integers. {_BROADCAST}",
            {**_UNLIKE, "TypeError": "one is no integer."},
        ),
    ),
    (
        "clip",
        Kind(
            {"x_min": "the lower bound, which broadcasts to `x`.", "x_max": "the upper bound, likewise."},
            "The shape of `x`; the dtypes are promoted.",
            _STRINGS,
        ),
    ),
    # --- over axes --------------------------------------------------------------------------------------------------
    ("all any", Kind({"x": "bools, or numbers."}, "Bools, without the axes.", {**_AXIS, **_STRINGS})),
    (
        "amax amin",
        Kind(
            {},
            "The dtype of `x`, without the axes.",
            {**_NO_ELEMENTS, **_STRINGS},
        ),
    ),
    (
        "ptp",
        Kind(
            {},
            "The dtype of `x`, without the axes.",
            {**_NO_ELEMENTS, "TypeError": "bools or strings are given."},
        ),
    ),
    (
        "sum prod nansum nanprod",
        Kind({}, "The dtype of `x`, int32 for bools and small integers; without the axes.", {**_AXIS, **_STRINGS}),
    ),
    ("mean nanmean nanstd nanvar", Kind({}, "Floating, without the axes.", {**_AXIS, **_STRINGS})),
    ("std var", Kind({}, "Floating and real, without the axes.", {**_AXIS, **_STRINGS})),
    ("logsumexp", Kind({}, "Floating, without the axes.", {**_AXIS, **_NO_COMPLEX})),
    (
        "median nanmedian",
        Kind({}, "Floating, without the axes.", {**_NO_ELEMENTS, **_STRINGS}),
    ),
    (
        "percentile nanpercentile",
        Kind(
            {"q": "from 0 to 100, of any shape."},
            "The shape of `q`, and behind it that of `x` without the axes.",
            {"ValueError": "a number of `q` is out of its range, a method is unknown, or `x` has no such axis."},
        ),
    ),
    (
        "nanquantile",
        Kind(
            {"q": "from 0 to 1, of any shape."},
            "The shape of `q`, and behind it that of `x` without the axes.",
            {"ValueError": "a number of `q` is out of its range, a method is unknown, or `x` has no such axis."},
        ),
    ),
    (
        "argmax argmin nanargmax nanargmin",
        Kind(_ONE_AXIS, "int32, without the axis.", {**_NO_ELEMENTS, **_STRINGS}),
    ),
    (
        "cumsum cumprod nancumsum nancumprod",
        Kind(_ONE_AXIS, "The shape of `x`, a vector where `axis` is None; int32 for bools.", {**_AXIS, **_STRINGS}),
    ),
    ("sort", Kind({"x": "numbers or strings.", **_ONE_AXIS}, "The shape and dtype of `x`.", _AXIS)),
    ("argsort", Kind({"x": "numbers or strings.", **_ONE_AXIS}, "int32, in the shape of `x`.", _AXIS)),
    ("softmax log_softmax l2_normalize", Kind(_FLOATS, _SAME, {**_AXIS, **_NO_COMPLEX})),
    (
        "rms_normalization",
        Kind(
            {**_FLOATS, "scale": "factors of the size of `axis`; None for none."},
            _SAME,
            {"ValueError": "`x` has no such axis, or `scale` does not fit.", **_STRINGS},
        ),
    ),
    # --- arrays -----------------------------------------------------------------------------------------------------
    ("atleast_1d atleast_2d atleast_3d", Kind({"x": "a tensor of any shape."}, "The dtype of `x`.", {})),
    ("ravel", Kind({"x": "a tensor of any shape."}, "A vector of the dtype of `x`.", {})),
    ("ndim", Kind({"x": "a tensor of any shape."}, "The number.", {})),
    ("flip", Kind({"x": "a tensor of any shape."}, "The shape and dtype of `x`.", _AXIS)),
    (
        "reverse",
        Kind({"tensor": "a tensor of any shape."}, "Its shape and dtype.", _AXIS),
    ),
    ("fliplr flipud", Kind({"x": "a tensor."}, "The shape and dtype of `x`.", {"ValueError": "`x` has too few axes."})),
    ("swapaxes", Kind({"x": "a tensor."}, "A tensor with these axes exchanged.", _AXIS)),
    (
        "moveaxis",
        Kind(
            {"x": "a tensor.", "source": "an axis, or several.", "destination": "as many places."},
            "A tensor with the axes in their new order.",
            {"ValueError": "an axis is not there or named twice, or there are not as many places."},
        ),
    ),
    (
        "append",
        Kind(
            {"axis": "along which they are joined; None for their elements as vectors."},
            "A tensor of the promoted dtype.",
            {"ValueError": "the shapes differ beside `axis`, or there is no such axis."},
        ),
    ),
    (
        "hstack vstack dstack",
        Kind(
            {"xs": "tensors."},
            "A tensor of the promoted dtype.",
            {"ValueError": "there are none, or their shapes differ."},
        ),
    ),
    (
        "hsplit vsplit dsplit",
        Kind({"x": "a tensor."}, "The parts.", {"ValueError": "`x` has too few axes, or does not divide."}),
    ),
    ("diagflat", Kind({"x": "a tensor, whose elements are taken as a vector."}, "A matrix of the dtype of `x`.", {})),
    (
        "trace",
        Kind(
            {"x": "at least two axes.", "offset": "the diagonal: 0 for the main one, positive above it."},
            "The shape of `x` without the two axes.",
            {"ValueError": "`x` has no such axes, or they are the same."},
        ),
    ),
    (
        "tril triu",
        Kind({"x": "``[..., rows, columns]``."}, "The shape and dtype of `x`.", {"ValueError": "it is a vector."}),
    ),
    (
        "digitize",
        Kind(
            {"bins": "a vector of edges, in ascending order."},
            "int32, in the shape of `x`.",
            {"ValueError": "`bins` is no vector.", "TypeError": "`x` is strings."},
        ),
    ),
    (
        "eye tri",
        Kind(
            {"N": "the number of rows.", "M": "that of columns.", "dtype": "float32 if None."},
            "``[N, M]``.",
            {"ValueError": "a size is negative.", "TypeError": "a size is no integer."},
        ),
    ),
    (
        "identity",
        Kind(
            {"n": "the number of rows.", "dtype": "float32 if None."},
            "``[n, n]``.",
            {"ValueError": "it is negative.", "TypeError": "it is no integer."},
        ),
    ),
    (
        "ones zeros empty",
        Kind(
            {"shape": "integers, some of which may be scalar tensors, or a vector.", "dtype": "float32 if None."},
            "A tensor of `shape`.",
            {
                "ValueError": "a size is negative.",
                "TypeError": "a size is no integer.",
            },
        ),
    ),
    ("ones_like zeros_like empty_like", Kind({"x": "a tensor of any shape."}, "The shape of `x`.", {})),
    (
        "full_like",
        Kind(
            {"x": "a tensor of any shape.", "fill_value": "a number, or what broadcasts to `x`."},
            "The shape of `x`.",
            {"ValueError": "`fill_value` does not broadcast to it."},
        ),
    ),
    (
        "array",
        Kind({"x": "numbers, strings, an array or a tensor."}, "A tensor.", {"TypeError": "`dtype` is none."}),
    ),
    (
        "cast",
        Kind(
            {"x": "numbers or bools.", "dtype": "its name, or NumPy's."},
            "The shape of `x`.",
            {"TypeError": "there is no such dtype, or it or `x` are strings."},
        ),
    ),
    ("argwhere", Kind({"x": "a tensor of any shape."}, "int32 ``[count, axes of x]``.", {})),
    (
        "get_item",
        Kind(
            {"x": "a tensor.", "key": "what is between the brackets."},
            "A part of `x`.",
            {"IndexError": "a position is outside.", "TypeError": "a part of `key` is none of these."},
        ),
    ),
    (
        "scatter_add",
        Kind(
            {"inputs": "a tensor.", "updates": "a part of `inputs` for each position."},
            "The shape and dtype of `inputs`.",
            {
                "ValueError": "the shapes do not fit.",
                "IndexError": "a position is outside.",
                "TypeError": "`indices` are no integers.",
            },
        ),
    ),
    (
        "tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub "
        "tensor_scatter_nd_update",
        Kind(
            {"tensor": "a tensor.", "updates": "a part of `tensor` for each position."},
            "The shape and dtype of `tensor`.",
            _PLACES,
        ),
    ),
    (
        "scatter_nd",
        Kind(
            {"updates": "a part of the result for each position.", "shape": "the shape of the result."},
            "The dtype of `updates`, and `shape`.",
            _PLACES,
        ),
    ),
    (
        "segment_prod",
        Kind(
            {
                "data": "numbers ``[rows, ...]``.",
                "segment_ids": "integers ``[rows]``: the segment of each row.",
                "num_segments": "how many there are; by default one more than the largest id.",
                "sorted": "whether ids are in ascending order.",
            },
            "``[num_segments, ...]``, of the dtype of `data`.",
            {"ValueError": "there are not as many ids as rows.", "TypeError": "ids are no integers."},
        ),
    ),
    # --- linear algebra, signals ------------------------------------------------------------------------------------
    ("outer", Kind({"x2": "numbers; the dtypes are promoted."}, "A matrix.", _STRINGS)),
    (
        "vdot",
        Kind(
            {"x2": "as many numbers; the dtypes are promoted."}, "A scalar.", {"ValueError": "there are more or fewer."}
        ),
    ),
    ("logdet", Kind({"x": "``[..., n, n]``."}, "``[...]``, floating.", {"ValueError": "the matrices are not square."})),
    (
        "solve_triangular",
        Kind(
            {"a": "``[..., n, n]``.", "b": "``[..., n, k]``.", "lower": "which triangle counts."},
            "X, ``[..., n, k]``.",
            {"ValueError": "the matrices are not square, or have not as many rows as `b`."},
        ),
    ),
    (
        "ifft ifft2",
        Kind(
            {"x": "the pair of real and imaginary parts."},
            "The pair of real and imaginary parts, in their shape.",
            {"ValueError": "`x` is no pair."},
        ),
    ),
    (
        "blackman hamming hanning",
        Kind(
            {"x": "the number of points."},
            "float32 ``[x]``; empty if `x` is not positive.",
            {"TypeError": "`x` is no integer."},
        ),
    ),
    # --- checks, control flow ---------------------------------------------------------------------------------------
    (
        "assert_greater assert_greater_equal assert_less assert_less_equal",
        Kind(
            {"x": "numbers or strings.", "y": "what they are compared with; the shapes broadcast."},
            "The operation; None outside of graphs.",
            {
                "InvalidArgumentError": "it does not hold, or the shapes do not broadcast.",
                "TypeError": "some are complex.",
            },
        ),
    ),
    (
        "assert_non_negative assert_positive",
        Kind({}, "The operation; None outside of graphs.", {"InvalidArgumentError": "it does not hold.", **_STRINGS}),
    ),
    (
        "fori_loop",
        Kind(
            {
                "lower": "the first number, an integer.",
                "upper": "the number before which the loop ends.",
                "body_fun": "a function of the number and the value, which gives the next value.",
                "init_val": "the first value: a tensor, or a structure of tensors.",
            },
            "The last value.",
            {"TypeError": "the value changes its structure or dtype, or the numbers are no integers."},
        ),
    ),
    ("is_tensor", Kind({"x": "anything."}, "A Python bool.", {})),
    ("dtype", Kind({"x": "a tensor, or what makes one."}, "A text.", {})),
]


def kinds() -> dict[str, Kind]:
    """Return the kind of each op, by its name in `anabranch.ops`."""
    return {name: kind for names, kind in KINDS for name in names.split()}


def sections(name: str) -> str:
    """Return the sections of a docstring for an op: Args, Returns and Raises."""
    kind = kinds()[name]
    function: Callable[..., Any] = attrgetter(name)(anabranch.ops)
    arguments = {each: kind.arguments.get(each) or _ARGUMENTS[each] for each in inspect.signature(function).parameters}
    lines = [
        "Args:",
        *(f"    {each}: {what}" for each, what in arguments.items()),
        "",
        "Returns:",
        f"    {kind.returns}",
    ]
    if kind.raises:
        lines += ["", "Raises:", *(f"    {error}: {when}" for error, when in kind.raises.items())]
    return "\n".join(lines)
