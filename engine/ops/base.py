"""Helpers of every op family: conversion of values to tensors, promotion, and building one operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np

from ..common import dtypes
from ..common.axes import normalize_axes, normalize_axis
from ..common.dtypes import DType, DTypeLike, as_dtype, is_differentiable, result_type
from ..common.nest import is_sequence
from ..common.operator_table import operator_functions
from ..common.quick_dataclass import dataclass
from ..graph.captured_values import warn_of_lost_gradient
from ..graph.context import graph_context
from ..graph.graph import Graph, Operation, get_default_graph, graph_for
from ..graph.op import Cost, ErrorSample, Op, Sample, as_scalar_or_array
from ..graph.row_states import State
from ..graph.slices import IndexedSlices
from ..graph.spec import TensorSpec, broadcast_shapes
from ..graph.state.readable import Readable
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol, Tensor
from ..graph.value import FlowValue, Value
from .immediate import run_now
from .sparse_tensor import refuse_sparse
from .text.numbers import as_strings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TensorLike: TypeAlias = "Tensor | Variable | Readable | IndexedSlices | ArrayLike | Sequence[TensorLike]"
"""A tensor, a variable, what NumPy makes an array of, or nested sequences of these."""

_PYTHON_SCALARS = (bool, int, float, complex)
_MOST_SCALARS = 4096


def apply(op: Op, *inputs: Tensor, name: str | None = None) -> Tensor:
    """Return the first output of `op` over `inputs`, computed now if all are values, else built into their graph.

    >>> import anabranch as ab
    >>> exp = ab.ops.registered_ops()["exp"]()
    >>> ab.ops.apply(exp, ab.ops.zeros(2))
    Tensor([1., 1.], dtype=float32)
    """
    if not graph_context.stack:
        values: Any = inputs
        try:
            if len(values) == 1:  # both are quicker than a comprehension
                arrays: list[Any] = [values[0].array]
            elif len(values) == 2:
                arrays = [values[0].array, values[1].array]
            else:
                arrays = [tensor.array for tensor in values]
        except AttributeError:  # a symbol is among them
            pass
        else:
            return run_now(op, values, arrays)[0]
    return graph_for(inputs).add(op, inputs, name).outputs[0]


def apply_multi(op: Op, *inputs: Tensor, name: str | None = None) -> tuple[Tensor, ...]:
    """Return all outputs of `op` over `inputs`, as `apply` computes them.

    >>> import anabranch as ab
    >>> top_k = ab.ops.registered_ops()["top_k"]
    >>> values, positions = ab.ops.apply_multi(top_k(2), ab.ops.convert_to_tensor([1.0, 3.0, 2.0]))
    >>> positions
    Tensor([1, 2], dtype=int32)
    """
    arrays = arrays_now(inputs)
    if arrays is None:
        return graph_for(inputs).add(op, inputs, name).outputs
    values: Any = inputs
    return run_now(op, values, arrays)


def build(op: Op, *inputs: Tensor, name: str | None = None) -> Symbol:
    """Return the first output of `op`, built into the graph of `inputs`, or into the one that is being built."""
    return graph_for(inputs).add(op, inputs, name).outputs[0]


def build_multi(op: Op, *inputs: Tensor, name: str | None = None) -> tuple[Symbol, ...]:
    """Return all outputs of `op`, as `build` builds them."""
    return graph_for(inputs).add(op, inputs, name).outputs


def apply_effect(op: Op, *inputs: Tensor, name: str | None = None) -> Operation | None:
    """Run an op that gives nothing, or build it; the operation, if it was built."""
    arrays = arrays_now(inputs)
    if arrays is None:
        return graph_for(inputs).add(op, inputs, name)
    values: Any = inputs
    run_now(op, values, arrays)
    return None


def arrays_now(inputs: Sequence[Any]) -> list[Any] | None:
    """Return the arrays of tensors over which an op runs at once; None if it is to be built."""
    return [tensor.array for tensor in inputs] if runs_now(inputs) else None


def runs_now(inputs: Iterable[Any]) -> bool:
    """Test whether an op over these tensors runs at once: no graph is being built, and none of them is symbolic."""
    return not graph_context.stack and all(isinstance(tensor, Value) for tensor in inputs)


# --- constants and conversion ---------------------------------------------------------------------------------------


class Constant(Op):
    """A value that is known when the graph is built."""

    cost: ClassVar[Cost] = Cost.NOTHING

    view = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(tuple(self.value.shape), self.value.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.value

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(np.float32(2.5)), [], np.float32(2.5), label="scalar")
        yield Sample(cls(np.arange(6, dtype="int32").reshape(2, 3)), [], np.arange(6).reshape(2, 3), label="matrix")
        yield Sample(cls(np.zeros((0, 2), "float64")), [], np.zeros((0, 2)), label="empty")


class ConstantArray(Op):
    """A TensorArray or TensorStore of values that was made outside of the graph."""

    no_samples: ClassVar[str] = "holds a TensorArray of values: tests/values"

    def __init__(self, value: Any, spec: Any) -> None:
        self.value = value
        self.spec = spec

    def infer(self, *inputs: Any) -> Any:
        return self.spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.value

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()


def as_array(value: Any, dtype: DTypeLike = None) -> Any:
    """Return `value` as a NumPy array, or as a NumPy scalar where it has no axes.

    Python ints become int32 and Python floats float32 unless `dtype` says otherwise; NumPy values keep their dtype.
    Text of every kind (``str``, ``bytes`` in UTF-8, NumPy's ``<U`` and ``S``, objects that are all text) becomes
    "string", of which values without axes stay arrays of rank 0.

    Raises:
        TypeError: it is symbolic, ragged, or of a kind that tensors can't hold; or text where numbers are asked for.
        ValueError: bytes are not UTF-8.
    """
    if isinstance(value, Variable):
        value = value.numpy()
    if isinstance(value, Value):
        value = value.array
    if isinstance(value, Tensor):
        raise TypeError(f"{value!r} is symbolic: a concrete array was expected here. Run it with Session.run first.")
    wanted = None if dtype is None else as_dtype(dtype)
    array: np.ndarray[Any, Any]
    if is_numpy(value):
        array = dtypes.with_own_dtype(np.asarray(value))
    else:
        array = _array_from_python(value)
        if wanted == np.uint64 and array.dtype.kind == "f" and array.max(initial=0) >= 2**63:
            array = np.asarray(value, wanted)  # NumPy takes large and small Python ints together for floats
        if wanted is None and array.dtype.kind in "iufc":
            wanted = _python_dtype(value, array)
    if array.dtype.kind in "OSTU":
        array = as_strings(array if is_numpy(value) or array.dtype.kind == "T" else np.asarray(value, dtype=object))
    if array.dtype == object:
        refuse_sparse(value, f"A {type(value).__name__} can't become a dense tensor by itself.")
        raise TypeError(f"A value of type {type(value).__name__} can't become a tensor: its elements are no numbers.")
    if wanted is not None and array.dtype != wanted:
        if array.size:
            check_castable(array.dtype, wanted)
            array = array.astype(wanted)
        else:
            array = np.empty(array.shape, wanted)
    return as_scalar_or_array(array)


def check_castable(source: DType, wanted: DType) -> None:
    """Refuse a cast between strings and numbers.

    Raises:
        TypeError: one of the dtypes is "string" and the other is not.
    """
    if dtypes.is_string(source) and not dtypes.is_string(wanted):
        names = "Names of classes become numbers by np.unique(names, return_inverse=True), or by layers.StringLookup."
        raise TypeError(f"Strings can't be cast to {wanted.name}; parse them with ops.strings.to_number. {names}")
    if dtypes.is_string(wanted) and not dtypes.is_string(source):
        raise TypeError(f"{source.name} can't be cast to strings; print the numbers with ops.strings.as_string.")


def is_numpy(value: Any) -> TypeGuard[np.ndarray[Any, Any]]:
    """Test whether `value` is a NumPy array or scalar."""
    return isinstance(value, (np.ndarray, np.generic))


def _array_from_python(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except UnicodeDecodeError:  # bytes beside str, which NumPy takes for ASCII
        return np.asarray(value, dtype=object)
    except ValueError as error:
        refuse_sparse(value, f"A {type(value).__name__} can't become a dense tensor by itself.")
        raise TypeError(
            f"A nested {type(value).__name__} can't become a tensor: its rows differ in length or shape. ({error})"
        ) from error


def _python_dtype(value: Any, array: np.ndarray[Any, Any]) -> DType | None:
    """Return the default dtype of Python data: weak, unless NumPy values stand among it."""
    leaf: Any = value
    while is_sequence(leaf) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, (np.ndarray, np.generic)) or hasattr(leaf, "__array__"):
        return None
    python_type = {"i": int, "u": int, "f": float, "c": complex}[array.dtype.kind]
    if python_type is int and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
        return None  # too large for int32: keep what NumPy chose
    return result_type(python_type)


def make_constant(array: Any, name: str | None = None, graph: Graph | None = None) -> Tensor:
    """Make a tensor of an array, which is copied and frozen: a constant of the graph that is built, or a value."""
    array = as_scalar_or_array(dtypes.with_own_dtype(np.array(array)))
    if isinstance(array, np.ndarray):
        array.setflags(write=False)
    if graph is None and not graph_context.stack:
        return Value(array)
    return (graph or get_default_graph()).add(Constant(array), (), name or "constant").outputs[0]


def constant_of(value: Value, graph: Graph) -> Symbol:
    """Return the constant of `graph` that stands for a value, or for a TensorArray of values."""
    if isinstance(value, FlowValue) and value.origin is not None:
        op, inputs = value.origin
        return graph.add(op, inputs).outputs[0]
    if isinstance(value, FlowValue):
        return graph.add(ConstantArray(value.array, value.spec), (), "constant").outputs[0]
    if value.of_weights and value.dtype.kind in "fcV":
        warn_of_lost_gradient(value, graph)
    if not value.shape and value.dtype.kind != "T" and not value.spec.differentiable:
        return _scalar_constant(value.array, value.dtype, graph)
    # Not shared with equal numbers, which are no part of the gradient by this value.
    with graph.control_dependencies(None), graph.device(None):
        return graph.add(Constant(value.array), (), "constant").outputs[0]


def known_array(tensor: Any) -> Any:
    """Return the array of a value or of a constant, or None if `tensor` is anything else."""
    if isinstance(tensor, Value):
        return None if isinstance(tensor, FlowValue) else tensor.array
    if isinstance(tensor, Symbol) and isinstance(tensor.operation.op, Constant):
        return tensor.operation.op.value
    return None


def is_source(tensor: Tensor, given: Any = None) -> bool:
    """Test whether a gradient may be asked for by a tensor, which then must not become a part of a constant.

    Args:
        tensor: a value, for which it may if a tape records what is computed from it; or a symbol.
        given: what the caller gave for it. A number is no source, even where a constant of a graph stands for it.
    """
    if not tensor.spec.differentiable:
        return False
    if isinstance(tensor, Value):
        return any(tape.has(tensor) for tape in graph_context.tapes)
    return isinstance(given, Symbol)


def check_numbers(op: Op, *specs: Any) -> None:
    """Refuse strings, for ops that compute with numbers.

    Raises:
        TypeError: one of the specs is of strings.
    """
    if "T" in [spec.dtype.kind for spec in specs]:
        raise TypeError(f"{op.type_name} takes numbers; got {' and '.join(str(spec) for spec in specs)}.")


_scalars: dict[Any, Value] = {}  # of Python's numbers, by type, number and dtype
shared_scalars: set[int] = set()  # the identities of these, which are kept


def scalar(value: Any, dtype: DType | None, graph: Graph | None = None) -> Tensor:
    """Return a Python number as a tensor of `dtype`, by default of its own."""
    if graph is None and not graph_context.stack:
        key: Any = (type(value), value, dtype)
        known = _scalars.get(key)
        if known is None or value != value or (not value and type(value) is not int):  # -0.0 equals 0.0
            known = Value(_scalar_array(value, dtype or _scalar_dtype(value)))
            if len(_scalars) < _MOST_SCALARS and _scalars.setdefault(key, known) is known:  # kept, as its identity is
                shared_scalars.add(id(known))
        return known
    return _scalar_constant(value, dtype or _scalar_dtype(value), graph or get_default_graph())


def _scalar_dtype(value: Any) -> DType:
    """Return the dtype of a Python number: int32 for integers that it can hold, else what NumPy takes for them."""
    if type(value) is int and not -(2**31) <= value < 2**31:
        return np.asarray(value).dtype
    return result_type(type(value))


def _scalar_array(value: Any, dtype: DType) -> Any:
    if dtypes.is_string(dtype):
        check_castable(result_type(type(value)), dtype)
    elif type(value) is int and dtype.kind in "iu":
        bits = 8 * dtype.itemsize  # negative numbers in an unsigned type count from its end, as masks of bits do
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - (dtype.kind == "i")):
            raise OverflowError(
                f"The Python integer {value} does not fit {dtypes.name_of(dtype)}, the dtype of what it is used with. "
                "Cast that to a larger type first, such as ops.cast(x, 'int64')."
            )
    return np.asarray(value).astype(dtype)[()]


def _scalar_constant(value: Any, dtype: DType, graph: Graph) -> Symbol:
    key: Any = (type(value), value, dtype)
    is_plain = type(value) in (int, float) and value != 0 and not graph.in_control_block  # -0.0 equals 0.0
    if is_plain and (known := graph.constants.get(key)) is not None:
        return known
    built = _build_scalar(value, dtype, graph)
    if is_plain:
        graph.constants[key] = built
    return built


def _build_scalar(value: Any, dtype: DType, graph: Graph) -> Symbol:
    scalar = _scalar_array(value, dtype)
    definition = Constant(scalar)
    if graph.in_control_block:  # whoever fetches it means the block's dependencies to run
        return graph.add(definition, (), "constant").outputs[0]
    return graph.add_shared((dtype, scalar.tobytes()), definition, (), "constant")


def convert_to_tensor(value: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Convert `value` to a tensor, a value or symbol, and cast it to `dtype` if that is given and differs.

    >>> import anabranch as ab
    >>> ab.ops.convert_to_tensor([1, 2], dtype="float32").dtype
    dtype('float32')
    """
    if type(value) is Value and (dtype is None or dtype is value.array.dtype):  # the quickest cases
        return value
    if type(value) is Symbol and (dtype is None or dtype is value.spec.dtype):
        return value
    wanted = None if dtype is None else as_dtype(dtype)
    if type(value) is np.ndarray and value.dtype.kind not in "OSTU" and (wanted is None or wanted == value.dtype):
        return make_constant(value, name)
    if isinstance(value, (Variable, Readable)):
        value = value.value
    if isinstance(value, Tensor):
        return value if wanted is None or value.dtype == wanted else cast(value, wanted)
    if isinstance(value, IndexedSlices):
        return convert_to_tensor(value.to_dense() if isinstance(value.values, Tensor) else np.asarray(value), wanted)
    if isinstance(value, _PYTHON_SCALARS) and not isinstance(value, np.generic) and name is None:
        return scalar(value, wanted)
    if is_sequence(value) and holds_symbols(value):
        return convert_to_tensor(operator_functions["stack"](value), wanted)
    return make_constant(as_array(value, wanted), name)


def unchanged(tensor: Tensor) -> Tensor:
    """Return what an op gives that has nothing to do: the tensor, or in a control block one that waits for that."""
    if isinstance(tensor, Symbol) and get_default_graph().in_control_block:
        return operator_functions["pass_on"](tensor)
    return tensor


def holds_symbols(value: Any) -> bool:
    """Test whether tensors or variables are among the leaves of nested lists."""
    if is_sequence(value):
        return any(holds_symbols(item) for item in value)
    return isinstance(value, (Tensor, Variable, Readable))


def dtype_of(value: TensorLike) -> Any:
    """Return what `value` brings to promotion: its dtype, or its Python type if it is a weak scalar."""
    if isinstance(value, (Tensor, Variable, Readable, IndexedSlices)):
        return value.dtype
    if isinstance(value, _PYTHON_SCALARS) and not isinstance(value, np.generic):
        return type(value)
    if is_numpy(value):
        return value.dtype
    if is_sequence(value) and holds_symbols(value):
        return convert_to_tensor(value).dtype
    return as_array(value).dtype


def promote(*values: TensorLike, floating: bool = False) -> list[Tensor]:
    """Return the values as tensors of their common dtype.

    Args:
        floating: integers and bools become float32 (for true division, mean, exp and their like).

    Raises:
        TypeError: there is no common dtype.
    """
    first, last = values[0], values[-1]
    if len(values) == 2:  # the quickest cases
        if type(first) is Value and (quick := _promoted_value(first, last, floating)) is not None:
            return [first, quick]
        if type(last) is Value and (quick := _promoted_value(last, first, floating)) is not None:
            return [quick, last]
    elif len(values) == 1 and type(first) is Value and (not floating or first.dtype.kind == "f"):
        return [first]
    if type(first) is Symbol and len(values) <= 2 and (quick := _promoted_symbol(first, last, floating)) is not None:
        return [first, quick] if len(values) == 2 else [first]
    tensors = [value for value in values if isinstance(value, Tensor)]
    same = len(tensors) == len(values) and len({tensor.dtype for tensor in tensors}) == 1
    if same and (not floating or dtypes.is_differentiable(tensors[0].dtype)):
        return tensors
    joined = result_type(*[dtype_of(value) for value in values])
    if floating:
        joined = dtypes.float_type(joined)
    elsewhere = _graph_elsewhere(tensors)
    if elsewhere is None:
        return [convert_to_tensor(value, joined) for value in values]
    with elsewhere.entered():
        return [convert_to_tensor(value, joined) for value in values]


def apply_promoted(op: Op, x1: TensorLike, x2: TensorLike, floating: bool = False) -> Tensor:
    """Return the first output of `op` over two operands of their common dtype: `apply` and `promote` in one."""
    if type(x1) is Value and (quick := _promoted_value(x1, x2, floating)) is not None:
        return apply(op, x1, quick)
    return apply(op, *promote(x1, x2, floating=floating))


def _promoted_value(x: Value, y: Any, floating: bool) -> Tensor | None:
    """Return `y` as a tensor of the dtype of `x`, if that is what promotion clearly makes of both; else None."""
    dtype: DType = x.array.dtype
    kind = y.__class__
    if floating and dtype.kind != "f":
        return None
    if kind is Value:
        return y if y.array.dtype is dtype else None
    if kind is Variable and y.dtype is dtype:
        read = y.value
        return read if read.dtype is dtype else None  # another one where a stateless call stands in for it
    if kind is float and dtype.kind == "f":
        return scalar(y, dtype)
    return scalar(y, dtype) if kind is int and dtype.kind in "if" else None


def _promoted_symbol(x: Symbol, y: Any, floating: bool) -> Tensor | None:
    """Return `y` as a tensor of the dtype of `x`, if that is what promotion clearly makes of both; else None."""
    dtype = x.spec.dtype
    if floating and dtype.kind != "f":
        return None
    if type(y) is Symbol:
        return y if y.spec.dtype is dtype else None
    if type(y) is float and dtype.kind == "f":
        stack = graph_context.stack
        return scalar(y, dtype) if stack and stack[-1] is x.operation.graph else None
    return None


def _graph_elsewhere(tensors: Sequence[Tensor]) -> Graph | None:
    """Return the graph of `tensors`, if it is not the current one, or does not see them: there they are joined."""
    symbols = [tensor for tensor in tensors if isinstance(tensor, Symbol)]
    if not symbols:
        return None
    current = get_default_graph()
    if graph_context.stack and all(symbol.operation.graph is current or current.sees(symbol) for symbol in symbols):
        return None
    return graph_for(symbols)


def as_floating(value: TensorLike) -> Tensor:
    """Return `value` as a tensor of a floating (or complex) dtype; integers become float32."""
    if type(value) is Value and value.array.dtype.kind == "f":  # the common cases, and the quickest
        return value
    if type(value) is Symbol and value.spec.dtype.kind == "f":
        return value
    return promote(value, floating=True)[0]


# --- casting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cast(Op):
    """Values of another dtype. Float to integer truncates toward zero; to bool asks for non-zero.

    A complex number loses its imaginary part; to bool it asks for either part.
    """

    dtype: DType
    elementwise: ClassVar[bool] = True
    takes_slices: ClassVar[bool] = True
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True

    def row_state(self, node: Operation, given: Sequence[State]) -> State:
        return given[0]

    def infer(self, *inputs: Any) -> TensorSpec:
        check_castable(inputs[0].dtype, self.dtype)
        return TensorSpec(inputs[0].shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.dtype.kind == "c" and self.dtype.kind not in "cb":
            x = x.real  # astype would warn that it drops the imaginary part
        return x.astype(self.dtype)

    def expression(self, e: Any, x: Any) -> Any:
        return e.cast(x, self.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        source = node.inputs[0].dtype
        if dy is None or not dtypes.is_differentiable(source):
            return (None,)
        return (dy.map_values(lambda v: cast(v, source)) if isinstance(dy, IndexedSlices) else cast(dy, source),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1.5, -2.5, 0.0]], "float32")
        yield Sample(cls(np.dtype("int32")), [x], np.array([[1, -2, 0]], "int32"), label="float to int")
        yield Sample(cls(np.dtype("bool")), [x], np.array([[True, True, False]]), label="float to bool")
        yield Sample(cls(np.dtype("float64")), [x], x.astype("float64"), label="widen")
        yield Sample(cls(np.dtype("float32")), [np.int32(3)], np.float32(3), label="scalar")
        yield Sample(cls(np.dtype("float32")), [np.zeros((0, 3), "int32")], np.zeros((0, 3), "float32"), label="empty")


def cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """Cast `x` to another dtype (``keras.ops.cast``).

    >>> import anabranch as ab
    >>> ab.ops.cast([1.7, -1.7], "int32")
    Tensor([ 1, -1], dtype=int32)
    """
    wanted = as_dtype(dtype)
    tensor = convert_to_tensor(x)
    if isinstance(x, (float, complex, list, tuple)) and is_differentiable(wanted) and not holds_symbols(x):
        number = tensor.dtype.kind != "T" and result_type(tensor.dtype, wanted) == wanted
        if number:  # of Python: not rounded to the default dtype first
            return convert_to_tensor(x, wanted)
    return tensor if tensor.dtype == wanted else apply(Cast(wanted), tensor)


__all__ = [
    "Cast",
    "Constant",
    "ErrorSample",
    "Op",
    "Operation",
    "Sample",
    "Tensor",
    "TensorLike",
    "TensorSpec",
    "apply",
    "apply_effect",
    "apply_multi",
    "as_array",
    "as_floating",
    "as_scalar_or_array",
    "broadcast_shapes",
    "cast",
    "check_castable",
    "check_numbers",
    "constant_of",
    "convert_to_tensor",
    "dtype_of",
    "known_array",
    "make_constant",
    "normalize_axes",
    "normalize_axis",
    "promote",
    "runs_now",
    "scalar",
    "shared_scalars",
]
