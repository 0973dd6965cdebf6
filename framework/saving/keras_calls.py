"""Calls of public ops in functional models, as operations of Keras: ``ops.gelu(x)`` is one ``Gelu`` in a file.

A call is written whole where Keras has an operation for the function, and as the engine's ops that it made where not.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...engine.common.dtypes import name_of
from ...engine.graph import Symbol, Tensor, Variable, flatten
from ...engine.ops.data_format import check_data_format
from ...engine.ops.entrance import PublicCall
from .keras_ops import PACKAGE, function_of

if TYPE_CHECKING:
    from collections.abc import Callable

# Keras's operations without settings, by the module below ``keras.src.ops``.
_PLAIN = {
    "core": """
        Map SliceUpdate StopGradient Switch
    """,
    "linalg": """
        Det Eig Eigh Inv LuFactor Solve
    """,
    "math": """
        CDist Erf Erfc Erfinv FFT FFT2 Gammainc IFFT2 Logdet Rsqrt ViewAsComplex ViewAsReal
    """,
    "nn": """
        HardSigmoid HardSilu HardTanh LogSigmoid Polar Relu Relu6 Selu Sigmoid Silu Softplus Softsign SparsePlus
        SparseSigmoid TanhShrink
    """,
    "numpy": """
        Abs Absolute Add Angle Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh BitwiseAnd BitwiseInvert
        BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Cbrt Ceil Conj Conjugate Copy
        Corrcoef Cos Cosh Deg2rad Digitize Divide DivideNoNan Dot Dstack Equal Exp Exp2 Expm1 Fabs Fliplr Flipud
        Floor FloorDivide Fmax Fmin Fmod Gcd GetItem Greater GreaterEqual Heaviside Hstack Hypot I0 Imag Inner
        Isfinite Isinf Isnan Isneginf Isposinf Isreal Kron Lcm Ldexp LeftShift Less LessEqual Log Log10 Log1p
        Log2 Logaddexp Logaddexp2 LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Maximum Minimum Mod Multiply
        Ndim Negative Nextafter Nonzero NotEqual Outer Power Rad2deg Ravel Real Reciprocal RightShift Select
        Sign Signbit Sin Sinc Sinh Size Slogdet Sqrt Square Subtract Tan Tanh TrueDivide Trunc Vdot Vstack Where
    """,
}
# Operations whose constructors take settings; the call takes what else the function takes.
_WITH_SETTINGS = {
    "core": """
        AssociativeScan: reverse axis
        Cast: dtype
        ConvertToTensor: dtype sparse ragged
        SaturateCast: dtype
        Scan: length reverse unroll
        Scatter: shape
        ScatterUpdate: reduction
        Slice: shape
        Unstack: num axis
    """,
    "image": """
        AffineTransform: interpolation fill_mode fill_value data_format
        CropImages: top_cropping left_cropping bottom_cropping right_cropping target_height target_width data_format
        ElasticTransform: alpha sigma interpolation fill_mode fill_value seed data_format
        ExtractPatches: size strides dilation_rate padding data_format
        GaussianBlur: kernel_size sigma data_format
        HSVToRGB: data_format
        MapCoordinates: order fill_mode fill_value
        PadImages: top_padding left_padding bottom_padding right_padding target_height target_width data_format
        PerspectiveTransform: interpolation fill_value data_format
        RGBToGrayscale: data_format
        RGBToHSV: data_format
        Resize: size interpolation antialias crop_to_aspect_ratio pad_to_aspect_ratio fill_mode fill_value data_format
        SSIM: max_val filter_size filter_sigma k1 k2 data_format
        ScaleAndTranslate: spatial_dims method antialias
        SobelEdges: data_format
    """,
    "linalg": """
        Cholesky: upper
        CholeskyInverse: upper
        Lstsq: rcond
        MatrixRank: tol
        Norm: ord axis keepdims
        Pinv: rcond
        Qr: mode
        SVD: full_matrices compute_uv
        SolveTriangular: lower
    """,
    "math": """
        ExtractSequences: sequence_length sequence_stride
        IRFFT: fft_length
        ISTFT: sequence_length sequence_stride fft_length length window center
        InTopK: k
        Logsumexp: axis keepdims
        RFFT: fft_length
        STFT: sequence_length sequence_stride fft_length window center
        SegmentMax: num_segments sorted
        SegmentMin: num_segments sorted
        SegmentProd: num_segments sorted
        SegmentSum: num_segments sorted
        TopK: k sorted
    """,
    "nn": """
        AdaptiveAveragePool: output_size data_format
        AdaptiveMaxPool: output_size data_format
        AveragePool: pool_size strides padding data_format
        BatchNorm: axis epsilon
        BinaryCrossentropy: from_logits
        CTCDecode: strategy beam_width top_paths merge_repeated mask_index
        CTCLoss: mask_index
        CategoricalCrossentropy: from_logits axis
        Celu: alpha
        Conv: strides padding data_format dilation_rate
        ConvTranspose: strides padding output_padding data_format dilation_rate
        DepthToSpace: block_size data_format
        DepthwiseConv: strides padding data_format dilation_rate
        DotProductAttention: is_causal flash_attention attn_logits_soft_cap
        Elu: alpha
        Fold: output_size kernel_size dilation padding stride
        Gelu: approximate
        Glu: axis
        HardShrink: threshold
        LayerNorm: axis epsilon rms_scaling
        LeakyRelu: negative_slope
        LogSoftmax: axis
        MaxPool: pool_size strides padding data_format
        Moments: axes keepdims synchronized
        MultiHot: num_classes axis dtype sparse
        Normalize: axis order epsilon
        OneHot: num_classes axis dtype sparse
        PSNR: max_val
        RMSNorm: axis epsilon
        SeparableConv: strides padding data_format dilation_rate
        SoftShrink: threshold
        Softmax: axis
        SpaceToDepth: block_size data_format
        SparseCategoricalCrossentropy: from_logits axis
        Sparsemax: axis
        Squareplus: b
        Threshold: threshold default_value
        Unfold: kernel_size dilation padding stride
    """,
    "numpy": """
        All: axis keepdims
        AllClose: rtol atol equal_nan
        Amax: axis keepdims
        Amin: axis keepdims
        Any: axis keepdims
        Append: axis
        Arange: dtype
        Argmax: axis keepdims
        Argmin: axis keepdims
        Argpartition: kth axis
        Argsort: axis
        Array: dtype
        ArraySplit: indices_or_sections axis
        Average: axis
        Bincount: weights minlength sparse
        BroadcastTo: shape
        Clip: x_min x_max
        Concatenate: axis
        Correlate: mode
        CountNonzero: axis
        Cross: axisa axisb axisc axis
        Cumprod: axis dtype
        Cumsum: axis dtype
        Diag: k
        Diagflat: k
        Diagonal: offset axis1 axis2
        Diff: n axis
        Dsplit: indices_or_sections
        Einsum: subscripts
        EmptyLike: dtype
        ExpandDims: axis
        Flip: axis
        Full: shape dtype
        FullLike: dtype
        Geomspace: num endpoint dtype axis
        Histogram: bins range
        Hsplit: indices_or_sections
        IsIn: assume_unique invert
        Isclose: equal_nan
        Linspace: num endpoint retstep dtype axis
        Logspace: num endpoint base dtype axis
        Max: axis keepdims initial
        Mean: axis keepdims
        Median: axis keepdims
        Meshgrid: indexing
        Min: axis keepdims initial
        Moveaxis: source destination
        NanToNum: nan posinf neginf
        Nanargmax: axis keepdims
        Nanargmin: axis keepdims
        Nancumprod: axis dtype
        Nancumsum: axis dtype
        Nanmax: axis keepdims
        Nanmean: axis keepdims
        Nanmedian: axis keepdims
        Nanmin: axis keepdims
        Nanpercentile: axis method keepdims
        Nanprod: axis keepdims
        Nanquantile: axis method keepdims
        Nanstd: axis keepdims
        Nansum: axis keepdims
        Nanvar: axis keepdims
        OnesLike: dtype
        Pad: pad_width mode
        Percentile: axis method keepdims
        Prod: axis keepdims dtype
        Ptp: axis keepdims
        Quantile: axis method keepdims
        Repeat: repeats axis
        Reshape: newshape
        Roll: shift axis
        Rot90: k axes
        Round: decimals
        SearchSorted: side
        Sort: axis
        Split: indices_or_sections axis
        Squeeze: axis
        Stack: axis
        Std: axis keepdims
        Sum: axis keepdims
        Swapaxes: axis1 axis2
        Take: axis
        TakeAlongAxis: axis
        Tensordot: axes
        Tile: repeats
        Trace: offset axis1 axis2
        Transpose: axes
        Trapezoid: x dx axis
        Tril: k
        Triu: k
        Unique: sorted return_index return_inverse return_counts axis size fill_value
        UnravelIndex: shape
        Vander: N increasing
        Var: axis keepdims
        View: dtype
        Vsplit: indices_or_sections
        ZerosLike: dtype
    """,
}

# Operations of which Keras's own code gives an error, or another result, for what is right here: the ops that the
# function is made of are written instead.
_NOT_AS_WHOLE = frozenset(
    {
        "nn.AdaptiveAveragePool",  # adds the list that a file holds to a tuple
        "nn.AdaptiveMaxPool",
        "nn.ConvTranspose",  # hands on its padding in the place of another argument
        "nn.Sparsemax",  # results do not sum to 1 where several classes remain
        "image.SobelEdges",  # other axes with PyTorch
        "numpy.Arange",  # of numbers only
        "numpy.Argpartition",  # the element itself is not in its place with PyTorch, two axes only with TensorFlow
        "numpy.Cross",  # takes any axis of three for that of vectors with PyTorch
        "numpy.GetItem",  # its key is written with the tensor
        "numpy.Histogram",  # looked for in a module that has none, with TensorFlow and PyTorch
        "numpy.Linspace",  # takes nothing but numbers with PyTorch
        "numpy.Logspace",
        "linalg.Norm",  # takes no more than two axes with TensorFlow
    }
)


# Settings that Keras before 3.16 does not take, and whose default does what is done here in any case.
_LEFT_OUT = {"math.TopK": ("is_stable",)}


class KerasCall(NamedTuple):
    """A call as a file holds it.

    Attributes:
        name: the operation's module and class, such as ``nn.Gelu``.
        config: the arguments of its constructor.
        arguments: of its call, with the tensors in them.
    """

    name: str
    config: dict[str, object]
    arguments: list[object]


class _Operation(NamedTuple):
    """An operation of Keras: its module and class, and the parameters of the function that are its settings."""

    name: str
    settings: tuple[str, ...]


@functools.cache
def operations() -> dict[str, tuple[str, ...]]:
    """Return the settings of Keras's operations, by ``module.class``."""
    found: dict[str, tuple[str, ...]] = {}
    for module, names in _PLAIN.items():
        found |= {f"{module}.{name}": () for name in names.split()}
    for module, lines in _WITH_SETTINGS.items():
        for line in lines.strip().splitlines():
            name, _, settings = line.strip().partition(": ")
            found[f"{module}.{name}"] = tuple(settings.split())
    return found


@functools.cache
def _by_function() -> dict[Callable[..., object], _Operation]:
    """Return the operation for each public function; of several names for one function, the first."""
    found: dict[Callable[..., object], _Operation] = {}
    for name, settings in operations().items():
        module, _, class_name = name.partition(".")
        function = function_of(class_name, f"{PACKAGE}.{module}")
        if function is not None and name not in _NOT_AS_WHOLE:
            found.setdefault(inspect.unwrap(function), _Operation(name, settings))
    return found


def keras_call(call: PublicCall) -> KerasCall | None:
    """Return the operation of Keras that a call is; None if there is none, or none for its arguments."""
    operation = _by_function().get(call.function)
    if operation is None:
        return None
    signature = inspect.signature(call.function)
    bound = signature.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    config: dict[str, object] = {}
    arguments: list[object] = []
    for name, parameter in signature.parameters.items():
        value = bound.arguments[name]
        if name in _LEFT_OUT.get(operation.name, ()):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            if value:
                return None
        elif name in operation.settings:
            if name == "data_format":
                value = check_data_format(operation.name, call.data_format if value is None else value)
            try:
                config[name] = _setting(value)
            except TypeError:
                return None
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += map(_argument, value)
        else:
            arguments.append(_argument(value))
    if config.get("data_format") == "channels_first" or not _fits(operation.name, config, arguments):
        return None
    has_tensors = any(isinstance(leaf, Symbol) for leaf in flatten(arguments))
    return KerasCall(operation.name, config, arguments) if has_tensors else None


def _fits(name: str, config: dict[str, object], arguments: list[Any]) -> bool:
    """Test whether Keras's operation takes these arguments with each of its backends."""
    x = arguments[0]
    kind = x.dtype.kind if isinstance(x, (Tensor, np.ndarray)) else "f"
    if any(map(_closes_over_state, flatten(arguments))):
        return False
    if name == "core.Map":
        return not arguments.pop()  # in reverse, which Keras's has not
    if name == "core.AssociativeScan":
        return getattr(arguments[0], "__name__", "") != "<lambda>"  # the ops that it made say the same without code
    if name == "numpy.Imag":
        return kind == "c"  # PyTorch has none of real numbers
    if name.startswith("numpy.Bitwise"):
        return kind != "b"  # TensorFlow
    if name == "nn.Conv":  # no groups, and no padding before the first cell only
        channels, kernel = [value.shape and value.shape[-at] for at, value in enumerate(arguments[:2], 1)]
        return config["padding"] in ("valid", "same") and channels == kernel
    return True


def _closes_over_state(leaf: object) -> bool:
    """Test whether `leaf` is a function that takes tensors or variables from around it, which no file has."""
    cells = getattr(leaf, "__closure__", None) or ()
    return any(isinstance(cell.cell_contents, (Tensor, Variable)) for cell in cells)


def _setting(value: object) -> object:
    """Return a setting as JSON holds it.

    Raises:
        TypeError: it can't, as it is a tensor or a function.
    """
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_setting(item) for item in value]
    if isinstance(value, (np.dtype, type)):
        return name_of(np.dtype(value))
    raise TypeError(f"{value!r} of type {type(value).__name__} is no setting")


def _argument(value: object) -> object:
    """Return an argument of a call: what takes a tensor gets arrays for lists of numbers."""
    if isinstance(value, (list, tuple)) and not any(isinstance(leaf, Tensor) for leaf in flatten(value)):
        try:
            array = np.asarray(value)
        except ValueError:
            return value
        return value if array.dtype.kind == "O" else array
    return value
