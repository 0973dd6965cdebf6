"""Keras's operations: what an op of this engine is called in a ``.keras`` file, and which function reads one.

In Keras an operation is a class of a module below ``keras.src.ops``; its constructor takes the settings, its call the
tensors. An op of the engine is one such operation on the same tensors, perhaps in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.common.dtypes import name_of
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Op, Operation, Symbol, get_default_graph
from ...engine.objects.names import to_snake_case
from ...engine.ops.base import Constant
from ...engine.ops.entrance import recorded_call
from ...engine.ops.run_time_shapes import ShapeOf

if TYPE_CHECKING:
    from ...engine.ops.arrays.axes import Roll
    from ...engine.ops.arrays.joining import Split
    from ...engine.ops.arrays.padding import Pad
    from ...engine.ops.linear_algebra.einsum import Contraction
    from ...engine.ops.linear_algebra.products import BatchMatMul, MatMul
    from ...engine.ops.linear_algebra.triangular import SolveTriangular
    from ...engine.ops.math.running import CumProd, CumSum
    from ...engine.ops.math.special import BesselI
    from ...engine.ops.neural.convolution import Conv
    from ...engine.ops.neural.pooling import AveragePool, MaxPool
    from ...engine.ops.neural.softmax import LogSoftmax, Softmax
    from ...engine.ops.signal.windows import Slice

PACKAGE = "keras.src.ops"
_CONSTANT = "constant of a model"


@dataclass(frozen=True)
class KerasOp:
    """An operation of Keras that computes what an op does.

    Attributes:
        name: its module and class, such as ``numpy.Sum``.
        config: the arguments of its constructor.
        count: how many of the op's inputs it takes; None for all.
        is_list: whether it takes them as one list.
        given: what it takes instead, where that is not the op's inputs in their order.
    """

    name: str
    config: dict[str, object]
    count: int | None = None
    is_list: bool = False
    given: tuple[object, ...] | None = None

    def arguments(self, inputs: Sequence[object]) -> list[object]:
        """Return the arguments of its call."""
        if self.given is not None:
            return list(self.given)
        taken = list(inputs[: self.count])
        return [taken] if self.is_list else taken


# Ops without settings that Keras has by the same name.
_PLAIN = {
    "numpy": """
        Abs Absolute Add Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
        Cbrt Ceil Conj Conjugate Cos Cosh Divide Equal Exp Exp2 Expm1 Floor FloorDivide Fmod Gcd Greater GreaterEqual
        Hypot Isfinite Isinf Isnan Lcm Ldexp LeftShift Less LessEqual Log Log10 Log1p Log2 Logaddexp Logaddexp2
        LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Multiply Negative NotEqual Power Reciprocal
        RightShift Sign Signbit Sin Sinh Sqrt Square Subtract Tan Tanh TrueDivide Trunc Where
    """,
    "math": "Erf Erfc Erfinv Rsqrt",
    "nn": "Relu Sigmoid Softplus",
    "linalg": "Cholesky Eig Eigh LuFactor Solve",
    "core": "SliceUpdate StopGradient",
}
_RENAMED = {
    "Determinant": "linalg.Det",
    "Identity": "numpy.Copy",
    "ImaginaryPart": "numpy.Imag",
    "Inverse": "linalg.Inv",
    "NextAfter": "numpy.Nextafter",
    "RealPart": "numpy.Real",
    "Round": "numpy.Round",
    "SlogDet": "numpy.Slogdet",
}
_NAMES = {name: f"{module}.{name}" for module, names in _PLAIN.items() for name in names.split()} | _RENAMED
_FOLDED = frozenset({"Range", "Tri"})  # they make tensors of numbers
_SEGMENTS = ("SegmentMax", "SegmentMin", "SegmentProd", "SegmentSum")
_REDUCTIONS = {
    "AllTrue": "numpy.All",
    "AnyTrue": "numpy.Any",
    "ArgMax": "numpy.Argmax",
    "ArgMin": "numpy.Argmin",
    "LogSumExp": "math.Logsumexp",
    "Max": "numpy.Max",
    "Mean": "numpy.Mean",
    "Min": "numpy.Min",
    "Prod": "numpy.Prod",
    "Sum": "numpy.Sum",
}
# Constructor settings that are attributes of the op by other names.
_SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "ArgSort": ("numpy.Argsort", {"axis": "axis"}),
    "BinCount": ("numpy.Bincount", {"minlength": "minlength"}),
    "Diag": ("numpy.Diag", {"k": "offset"}),
    "Diagonal": ("numpy.Diagonal", {"offset": "offset", "axis1": "axis1", "axis2": "axis2"}),
    "ExtractSequences": ("math.ExtractSequences", {"sequence_length": "length", "sequence_stride": "stride"}),
    "InTopK": ("math.InTopK", {"k": "k"}),
    "MoveAxis": ("numpy.Moveaxis", {"source": "source", "destination": "destination"}),
    "SearchSorted": ("numpy.SearchSorted", {"side": "side"}),
    "Sort": ("numpy.Sort", {"axis": "axis"}),
    "Svd": ("linalg.SVD", {"full_matrices": "full_matrices"}),
    "Take": ("numpy.Take", {"axis": "axis"}),
    "TakeAlongAxis": ("numpy.TakeAlongAxis", {"axis": "axis"}),
    "TopK": ("math.TopK", {"k": "k"}),
    "Transpose": ("numpy.Transpose", {"axes": "axes"}),
    "TransposedCopy": ("numpy.Transpose", {"axes": "axes"}),
    "View": ("numpy.View", {"dtype": "dtype"}),
    "Unstack": ("core.Unstack", {"num": "count", "axis": "axis"}),
}


def keras_op(op: Any, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    """Return the Keras op that computes the same; None if there is none."""
    kind = type(op).__name__
    if kind.startswith("Bitwise") and inputs[0].dtype.kind == "b":
        return KerasOp(f"numpy.{kind.replace('Bitwise', 'Logical')}", {})  # TensorFlow has no bitwise ops of bool
    if kind in _NAMES:
        return KerasOp(_NAMES[kind], {})
    if kind in _REDUCTIONS:
        config = {"axis": _axis(op.axes), "keepdims": op.keepdims}
        if getattr(op, "initial", None) is not None:
            config["initial"] = op.initial
        return KerasOp(_REDUCTIONS[kind], config)
    if kind in _SETTINGS:
        name, settings = _SETTINGS[kind]
        return KerasOp(name, {given: _plain(getattr(op, own)) for given, own in settings.items()})
    if kind in _SEGMENTS:
        count = op.count if isinstance(op.count, int) else None
        return KerasOp(f"math.{kind}", {"num_segments": count}, 2) if count is not None else None
    make = _MAKERS.get(kind)
    return None if make is None else make(op, inputs, outputs)


def constant_value(tensor: Symbol) -> Any:
    """Return the value of a tensor that is a constant, or that `fold` made one; None for others."""
    op = tensor.operation.op
    return op.value if isinstance(op, Constant) else tensor.annotations.get(_CONSTANT)


def fold(operation: Operation) -> bool:
    """Compute an operation on constants now, for Keras has no calls without tensors; whether it was one."""
    values = [constant_value(source) for source in operation.inputs]
    if any(value is None for value in values):
        return False
    if type(operation.op).__name__ not in _FOLDED and not keras_op(operation.op, operation.inputs, operation.outputs):
        return False  # it may draw random numbers, or have an effect
    for tensor in operation.outputs:
        claim([size or 0 for size in tensor.shape or ()], tensor.dtype.itemsize, f"Op {operation.name!r}: a constant")
    result = operation.op.run(np, *values)
    for tensor, value in zip(operation.outputs, result if len(operation.outputs) > 1 else [result], strict=True):
        tensor.annotations[_CONSTANT] = value
    return True


def _plain(value: object) -> object:
    if isinstance(value, np.dtype):
        return name_of(value)
    return list(value) if isinstance(value, tuple) else value


def _axis(axes: Sequence[int] | None) -> object:
    """Return axes as Keras writes them: one as a number."""
    return axes[0] if axes is not None and len(axes) == 1 else _plain(axes)


def _reshape(op: Op, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    shape = outputs[0].shape
    if shape is None or shape.count(None) > 1:
        return None
    return KerasOp("numpy.Reshape", {"newshape": [-1 if size is None else size for size in shape]}, 1)


def _broadcast(op: Op, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    """Write a broadcast; the result's shape is fixed, or that of a tensor, or unknown where the input's is."""
    source, shape = inputs[0], outputs[0].shape
    if len(inputs) > 1 and isinstance(inputs[1].operation.op, ShapeOf):
        like = inputs[1].operation.inputs[0]
        return KerasOp("numpy.FullLike", {"dtype": name_of(source.dtype)}, given=(like, source))
    if shape is None or source.shape is None:
        return None
    if None not in shape:
        return KerasOp("numpy.BroadcastTo", {"shape": list(shape)}, 1)
    own = (*(1,) * (len(shape) - len(source.shape)), *source.shape)
    if any(size is None and mine is not None for size, mine in zip(shape, own, strict=True)):
        return None
    claim([size or 1 for size in shape], source.dtype.itemsize, f"{source.name!r}: a constant")
    ones = np.ones([size or 1 for size in shape], source.dtype)
    return KerasOp("numpy.Multiply", {}, given=(source, ones))


def _zeros(op: Op, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    if not isinstance(inputs[0].operation.op, ShapeOf):
        return None
    like = inputs[0].operation.inputs[0]
    return KerasOp("numpy.ZerosLike", {"dtype": name_of(outputs[0].dtype)}, given=(like,))


def _solve_triangular(op: SolveTriangular, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    return None if op.transposed or op.unit_diagonal else KerasOp("linalg.SolveTriangular", {"lower": op.lower})


def _bessel(op: BesselI, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    return KerasOp("numpy.I0", {}) if op.order == 0 else None


def _sparse_cross_entropy(op: Op, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    logits, labels = inputs
    config: dict[str, object] = {"from_logits": True, "axis": -1}
    return KerasOp("nn.SparseCategoricalCrossentropy", config, given=(labels, logits))


def _fill(op: Op, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    shape = outputs[0].shape
    if shape is None or None in shape:
        return None
    return KerasOp("numpy.Full", {"shape": list(shape), "dtype": name_of(outputs[0].dtype)}, 1)


def _matmul(op: MatMul | BatchMatMul, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    if not (op.transpose_a or op.transpose_b):
        return KerasOp("numpy.Matmul", {})
    a, b = "ji" if op.transpose_a else "ij", "kj" if op.transpose_b else "jk"
    lead = "..." if type(op).__name__ == "BatchMatMul" else ""
    return KerasOp("numpy.Einsum", {"subscripts": f"{lead}{a},{lead}{b}->{lead}ik"})


def _contraction(op: Contraction, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    return KerasOp("numpy.Einsum", {"subscripts": f"{op.a},{op.b}->{op.out}"})


def _split(op: Split, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    sizes = op.sizes
    if op.equal or len({*sizes}) == 1:
        return KerasOp("numpy.Split", {"indices_or_sections": len(sizes), "axis": op.axis}, 1)
    if None in sizes:
        return None
    places = [sum(size or 0 for size in sizes[:count]) for count in range(1, len(sizes))]
    return KerasOp("numpy.Split", {"indices_or_sections": places, "axis": op.axis}, 1)


def _pad(op: Pad, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    if any(width is None for pair in op.widths for width in pair):
        return None
    return KerasOp("numpy.Pad", {"pad_width": [list(pair) for pair in op.widths], "mode": "constant"}, 2)


def _pool(op: MaxPool | AveragePool, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    config = {"pool_size": list(op.pool_size), "strides": list(op.strides), "padding": op.padding}
    return KerasOp(f"nn.{type(op).__name__}", {**config, "data_format": "channels_last"})


def _padding(op: Conv) -> str | None:
    """Return the padding of a convolution by Keras's names for its ops."""
    if isinstance(op.padding, str):
        return op.padding if op.padding in ("valid", "same") else None
    return None if any(width for pair in op.padding for width in pair) else "valid"


def _convolution(op: Conv, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    padding = _padding(op)
    if padding is None:
        return None
    config: dict[str, object] = {"strides": list(op.strides), "padding": padding, "dilation_rate": list(op.dilation)}
    config["data_format"] = "channels_last"
    channels = inputs[0].shape[-1] if inputs[0].shape else None
    kernel = inputs[1].shape
    if kernel is None or kernel[-2] == channels:
        return KerasOp("nn.Conv", config)
    value = constant_value(inputs[1])
    if value is None or kernel[-2] != 1 or channels is None:
        return None  # Keras has no op for groups of several channels
    return KerasOp("nn.DepthwiseConv", config, given=(inputs[0], np.reshape(value, (*value.shape[:-2], channels, -1))))


def _softmax(op: Softmax | LogSoftmax, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    if op.axes is None or len(op.axes) != 1:
        return None
    return KerasOp(f"nn.{type(op).__name__}", {"axis": op.axes[0]})


def _running(op: CumSum | CumProd, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    if op.exclusive or op.reverse:
        return None
    return KerasOp(f"numpy.{type(op).__name__.capitalize()}", {"axis": op.axis})


def _roll(op: Roll, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    return None if op.shifts is None else KerasOp("numpy.Roll", {"shift": _axis(op.shifts), "axis": _axis(op.axes)}, 1)


def _slice(op: Slice, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> KerasOp | None:
    return None if None in op.sizes else KerasOp("core.Slice", {"shape": list(op.sizes)}, 2)


_MAKERS: dict[str, Callable[..., KerasOp | None]] = {
    "AveragePool": _pool,
    "BatchMatMul": _matmul,
    "BesselI": _bessel,
    "BroadcastTo": _broadcast,
    "BroadcastToShape": _broadcast,
    "Cast": lambda op, *_: KerasOp("core.Cast", {"dtype": name_of(op.dtype)}),
    "Concatenate": lambda op, *_: KerasOp("numpy.Concatenate", {"axis": op.axis}, None, True),
    "Contraction": _contraction,
    "Conv": _convolution,
    "CountNonzero": lambda op, *_: None if op.keepdims else KerasOp("numpy.CountNonzero", {"axis": _axis(op.axes)}),
    "CumProd": _running,
    "CumSum": _running,
    "ExpandDims": lambda op, *_: KerasOp("numpy.ExpandDims", {"axis": _axis(op.axes)}),
    "Fill": _fill,
    "FlattenRows": _reshape,
    "Flip": lambda op, *_: KerasOp("numpy.Flip", {"axis": _axis(op.axes)}),
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "OneHot": lambda op, *_: KerasOp(
        "nn.OneHot", {"num_classes": op.classes, "axis": op.axis, "dtype": name_of(op.dtype)}
    ),
    "Pad": _pad,
    "PseudoInverse": lambda op, *_: KerasOp("linalg.Pinv", {}, 1),
    "Qr": lambda op, *_: KerasOp("linalg.Qr", {"mode": "complete" if op.complete else "reduced"}),
    "Reshape": _reshape,
    "ReshapeToShape": _reshape,
    "Roll": _roll,
    "ScatterAdd": lambda op, *_: KerasOp("core.ScatterUpdate", {"reduction": "add"}),
    "ScatterUpdate": lambda op, *_: KerasOp("core.ScatterUpdate", {"reduction": None}),
    "SingularValues": lambda op, *_: KerasOp("linalg.SVD", {"compute_uv": False}),
    "Slice": _slice,
    "SolveTriangular": _solve_triangular,
    "Softmax": _softmax,
    "SparseCrossEntropy": _sparse_cross_entropy,
    "Split": _split,
    "Squeeze": lambda op, *_: KerasOp("numpy.Squeeze", {"axis": _axis(op.axes)}),
    "Stack": lambda op, *_: KerasOp("numpy.Stack", {"axis": op.axis}, None, True),
    "Triangle": lambda op, *_: KerasOp("numpy.Triu" if op.upper else "numpy.Tril", {"k": op.offset}),
    "UnflattenRows": _reshape,
    "ZerosOfShape": _zeros,
}

# --- reading --------------------------------------------------------------------------------------------------------

_FUNCTIONS = {
    "AllClose": "allclose",
    "BatchNorm": "batch_normalization",
    "CDist": "cdist",
    "IsIn": "isin",
    "LayerNorm": "layer_normalization",
    "RMSNorm": "rms_normalization",
    "SearchSorted": "searchsorted",
}
# The parameters of a call, where those of our function are in another order.
_PARAMETERS = {
    "Average": ("x", "weights"),
    "BatchNorm": ("x", "mean", "variance", "offset", "scale"),
    "Full": ("fill_value",),
    "LayerNorm": ("x", "gamma", "beta"),
    "Pad": ("x", "constant_values"),
    "RMSNorm": ("x", "scale"),
}


def function_of(class_name: str, module: str) -> Callable[..., Any] | None:
    """Return the function for an operation of Keras; None if there is none."""
    name = _FUNCTIONS.get(class_name) or to_snake_case(class_name)
    if module.endswith(".image"):
        return getattr(ops.image, name, None)
    return getattr(ops, name, None)


def apply_keras_op(
    class_name: str, module: str, settings: dict[str, object], args: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Apply an operation of Keras as its file describes it.

    Raises:
        ValueError: there is none of that name here.
    """
    function = function_of(class_name, module)
    if function is None:
        raise ValueError(f"The saved model contains the op {class_name!r}, which anabranch.ops does not have.")
    if class_name == "Einsum":
        settings = dict(settings)
        args = (settings.pop("subscripts"), *args)
    named = dict(zip(_PARAMETERS.get(class_name, ()), args, strict=False))
    positional = () if named else tuple(args)
    return recorded_call(function, positional, {**settings, **named, **kwargs}, get_default_graph())
