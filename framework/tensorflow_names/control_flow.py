"""Control flow with TensorFlow's arguments: loops, branches, `map_fn`, `scan`, folds, and Python functions as ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine import autodiff, ops
from ...engine import control_flow as loops
from ...engine.common.dtypes import DTypeLike, as_dtype, is_differentiable
from ...engine.common.nest import flatten, is_sequence, map_structure, pack_as
from ...engine.common.quick_dataclass import dataclass
from ...engine.control_flow import scan as scans
from ...engine.control_flow.vectorized_map import vectorized_map as vectorize
from ...engine.graph import Tensor, TensorSpec, Variable, as_shape, control_dependencies, eagerly
from ...engine.graph.context import in_explicit_graph
from ...engine.ops.base import TensorLike
from ..structures import ShapeLike
from ..training.gradient_tape import GradientTape, Sources, unconnected_choice
from .arrays import identity

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..structures import Array

Result = TypeVar("Result")
Branch = Callable[[], object]


def cond(pred: TensorLike, true_fn: Branch, false_fn: Branch, name: str | None = None) -> Any:
    """Return the result of one of two functions, chosen by a scalar bool."""
    return loops.cond(pred, true_fn, false_fn, name=name)


def case(
    pred_fn_pairs: Sequence[tuple[TensorLike, Branch]],
    default: Branch | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> Any:
    """Return the result of the first function whose predicate holds, else of `default`.

    Args:
        pred_fn_pairs: pairs of a scalar bool and a function.
        default: called if no predicate holds. Without it that is an error.
        exclusive: also fail if more than one predicate holds.
        strict: accepted for TensorFlow's sake; results keep the structure that the functions return.

    Raises:
        InvalidArgumentError: at run time, if no predicate holds and there is no default, or by `exclusive`.
    """
    if isinstance(pred_fn_pairs, Mapping):
        raise TypeError(
            "tf.case: pred_fn_pairs is a list of pairs (predicate, function), got a dict, which has no order."
        )
    return loops.case(pred_fn_pairs, default, exclusive)


def switch_case(
    branch_index: TensorLike,
    branch_fns: Mapping[int, Branch] | Sequence[Branch] | Sequence[tuple[int, Branch]],
    default: Branch | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of the function that an integer chooses, else of `default`.

    Args:
        branch_index: a scalar int32.
        branch_fns: functions by index: a list, a dict, or pairs of an index and a function.
        default: called for every other index; by default the last function.

    Raises:
        TypeError: `branch_fns` has something else.
        ValueError: it has none, or its indices are not 0, 1, 2, ...
    """
    if isinstance(branch_fns, Mapping):
        pairs: list[Any] = list(branch_fns.items())
    else:
        pairs = [each if is_sequence(each) else (index, each) for index, each in enumerate(branch_fns)]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], int) or not callable(pair[1]):
            raise TypeError(
                f"tf.switch_case: branch_fns has functions, or pairs of an index and a function; got {pair!r}."
            )
    branches: dict[int, Branch] = dict(pairs)
    if sorted(branches) != list(range(max(len(pairs), 1))):
        found = [index for index, _ in pairs]
        raise ValueError(f"tf.switch_case: branch_fns needs one function for each index from 0 on, got {found}.")
    index, last = ops.convert_to_tensor(branch_index), len(branches) - 1
    place = ops.where(ops.logical_or(index < 0, index > last), last + 1, index)
    return loops.switch(place, [*[branches[each] for each in range(last + 1)], default or branches[last]])


def while_loop(
    cond: Callable[..., object],
    body: Callable[..., object],
    loop_vars: object,
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: TensorLike | None = None,
    name: str | None = None,
) -> Any:
    """Run `body` while `cond` holds (`anabranch.while_loop`); `back_prop=False` stops the gradient."""
    limits = {"shape_invariants": shape_invariants, "parallel_iterations": parallel_iterations}
    found = loops.while_loop(
        cond, body, loop_vars, maximum_iterations, swap_memory=swap_memory, name=name or "while", **limits
    )
    return _propagated(found, back_prop)


def map_fn(
    fn: Callable[[Any], object],
    elems: object,
    dtype: object = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> Any:
    """Apply a function to the elements along the first axis, and stack the results.

    Args:
        fn: takes an element, or one of each array in the structure of `elems`.
        elems: arrays with one common first axis, in any structure.
        dtype, fn_output_signature: of the results, in their structure; found by tracing `fn` if there is none.
        back_prop: whether gradients flow.
        parallel_iterations, swap_memory, infer_shape: accepted for TensorFlow's sake: the compiler decides.

    Raises:
        TypeError: results have other dtypes than those that are given.
    """
    found = scans.map_fn(fn, elems)
    wanted = fn_output_signature if fn_output_signature is not None else dtype
    if wanted is not None:
        _check_dtypes("tf.map_fn", found, wanted)
    return _propagated(found, back_prop)


def _check_dtypes(function: str, found: object, wanted: object) -> None:
    specs, results = flatten(wanted), flatten(found)
    if len(specs) != len(results):
        raise TypeError(f"{function}: fn returns {len(results)} tensors, where {len(specs)} dtypes are given.")
    for spec, result in zip(specs, results, strict=True):
        dtype = spec.dtype if isinstance(spec, TensorSpec) else spec
        if result.dtype != as_dtype(dtype):
            raise TypeError(
                f"{function}: fn returns {result.dtype}, where {dtype} is given. Cast the result, or give its."
            )


def scan(
    fn: Callable[[Any, Any], object],
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Return all accumulators of a fold, stacked: ``a = fn(a, x)`` for each element `x` along the first axis.

    Args:
        fn: takes the accumulator and an element; returns the next accumulator.
        elems: arrays with one common first axis, in any structure.
        initializer: the first accumulator; by default the first element, which is then also the first result.
        back_prop: whether gradients flow.
        parallel_iterations, swap_memory, infer_shape: accepted for TensorFlow's sake: the compiler decides.
        reverse: begin with the last element; results keep the order of the elements.
    """
    elems = map_structure(ops.convert_to_tensor, elems)

    def step(carry: object, x: object) -> tuple[object, object]:
        following = fn(carry, x)
        return following, following

    if initializer is not None:
        found = scans.scan(step, map_structure(ops.convert_to_tensor, initializer), elems, reverse=reverse)[1]
    else:
        rest = map_structure(lambda x: x[:-1] if reverse else x[1:], elems)
        first = map_structure(lambda x: x[-1] if reverse else x[0], elems)
        rows = scans.scan(step, first, rest, reverse=reverse)[1]
        pairs = zip(flatten(first), flatten(rows), strict=True)
        joined = [ops.concatenate([many, one[None]] if reverse else [one[None], many]) for one, many in pairs]
        found = pack_as(first, joined)
    return _propagated(found, back_prop)


def foldl(
    fn: Callable[[Any, Any], object],
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Return the last accumulator of `scan`, from the first element to the last."""
    return _propagated(scans.foldl(fn, elems, initializer), back_prop)


def foldr(
    fn: Callable[[Any, Any], object],
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Return the last accumulator of `scan`, from the last element to the first."""
    return _propagated(scans.foldr(fn, elems, initializer), back_prop)


def vectorized_map(
    fn: Callable[[Any], object], elems: object, fallback_to_while_loop: bool = True, warn: bool = True
) -> Any:
    """Apply a function to all elements along the first axis at once; arrays of one element serve for all of them."""
    leaves = [ops.convert_to_tensor(leaf) for leaf in flatten(elems)]
    several = {leaf.shape[0] for leaf in leaves if leaf.shape} - {1, None}
    if len(several) == 1:
        (size,) = several
        is_one = [leaf.shape is not None and leaf.shape[:1] == (1,) for leaf in leaves]
        leaves = [ops.repeat(x, size, axis=0) if one else x for x, one in zip(leaves, is_one, strict=True)]
    return vectorize(fn, pack_as(elems, leaves), fallback_to_while_loop)


def _propagated(found: Result, back_prop: bool) -> Result:
    """Return what was found; without `back_prop` no gradient flows through it."""
    return found if back_prop else map_structure(ops.stop_gradient, found)


def numpy_function(
    func: Callable[..., object] | None = None,
    inp: Sequence[TensorLike] | None = None,
    Tout: object = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Call a Python function of NumPy arrays when the program gets there; it has no gradient.

    Without a function the result is a decorator, for functions that are called on their inputs.
    """
    if func is None:
        return lambda f: lambda *inputs: numpy_function(f, inputs, Tout, stateful, name)
    return ops.numpy_function(func, [] if inp is None else list(inp), Tout, stateful, name=name)


def py_function(func: Callable[..., object], inp: Sequence[TensorLike], Tout: object, name: str | None = None) -> Any:
    """Call a Python function of tensors when the program gets there; its gradient is that of what it computes.

    Args:
        func: takes tensors that have values, and returns one tensor, several, or None, as `Tout` says.
        inp: what it takes.
        Tout: the dtype of its result; a list of dtypes for several; an empty one for none.

    For the gradient the function is called a second time, under a tape. Gradients of gradients are refused.
    """
    return ops.numpy_function(_Eagerly(func), list(inp), Tout, grad=_EagerGradient(func), name=name)


@dataclass(frozen=True)
class _Eagerly:
    """A function of tensors, called with arrays."""

    func: Callable[..., object]

    @property
    def __name__(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.func, "__name__", type(self.func).__name__)

    def __call__(self, *arrays: Array) -> object:
        with eagerly():
            return map_structure(_as_array, self.func(*[ops.convert_to_tensor(array) for array in arrays]))


def _as_array(value: object) -> Any:
    """Return the array of a tensor; numbers as they are, which become what dtype is asked for."""
    return value.numpy() if isinstance(value, (Tensor, Variable)) else value


@dataclass(frozen=True)
class _EagerGradient:
    """The cotangents of a function's inputs, by a tape around a second call."""

    func: Callable[..., object]

    def __call__(
        self, inputs: list[Tensor], outputs: list[Tensor], cotangents: list[Tensor | None]
    ) -> list[Tensor | None]:
        floats = [index for index, x in enumerate(inputs) if x.spec.differentiable]
        moving = [index for index, y in enumerate(outputs) if y.spec.differentiable]
        given = [ops.zeros_like(outputs[k]) if cotangents[k] is None else cotangents[k] for k in moving]

        def compute(*arrays: Array) -> list[Array]:
            with eagerly():
                values = [ops.convert_to_tensor(array) for array in arrays[: len(inputs)]]
                sources = [values[index] for index in floats]
                with GradientTape() as tape:
                    tape.watch(sources)
                    results = _results(self.func(*values), len(outputs))
                    targets = [ops.convert_to_tensor(results[k], outputs[k].dtype) for k in moving]
                found = tape.gradient(targets, sources, list(arrays[len(inputs) :]))
                return [
                    _as_array(ops.zeros_like(x) if dx is None else dx) for x, dx in zip(sources, found, strict=True)
                ]

        dtypes, shapes = [inputs[index].dtype for index in floats], [inputs[index].shape for index in floats]
        found = ops.numpy_function(compute, [*inputs, *given], dtypes, stateful=False, shape=shapes)
        by_index = dict(zip(floats, found, strict=True))
        return [by_index.get(index) for index in range(len(inputs))]


def _results(returned: Any, count: int) -> Sequence[TensorLike]:
    """Return what a function returned as so many results; a list may also be the parts of one tensor."""
    is_whole = count == 1 and not (is_sequence(returned) and len(returned) == 1)
    return (returned,) if is_whole else returned


class UnconnectedGradients(Enum):
    """A choice of what stands for the gradient of something on which the target does not depend: None, or zeros.

    >>> from anabranch import tf
    >>> with tf.GradientTape() as tape:
    ...     x, y = tf.Variable(1.0), tf.Variable(2.0)
    ...     z = y * y
    >>> tape.gradient(z, [x, y], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    [Tensor(0., dtype=float32), Tensor(4., dtype=float32)]
    """

    NONE = "none"
    ZERO = "zero"


def gradients(
    ys: Tensor | Variable | Sequence[Tensor | Variable],
    xs: Sources,
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    name: str | None = None,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    stop_gradients: Sources | None = None,
    unconnected_gradients: str | Enum = "none",
) -> list[Any]:
    """Return the gradient of the sum of `ys` with respect to each of `xs` (`anabranch.gradients`), in a list.

    Args:
        ys: a tensor, or several. Those without derivatives, such as the counter of a loop, do not count.
        xs: a tensor or variable, or several.
        grad_ys: a cotangent for each of `ys`; ones by default.
        stop_gradients: tensors that count as constants.
        unconnected_gradients: "none" or "zero": what stands for an `x` that no `y` depends on.
        gate_gradients, aggregation_method: accepted for TensorFlow's sake: the compiler decides.
    """
    sources = list(xs) if is_sequence(xs) else [xs]
    absent = unconnected_choice(unconnected_gradients)
    targets = list(ys) if isinstance(ys, Sequence) else [ys]
    if grad_ys is None:
        targets = [y for y in targets if is_differentiable(as_dtype(y.dtype))] or targets
    return autodiff.gradients(targets, sources, grad_ys, stop_gradients, absent, name or "gradients")


def convert_to_tensor(
    value: TensorLike, dtype: DTypeLike | None = None, dtype_hint: DTypeLike | None = None, name: str | None = None
) -> Tensor:
    """Convert a value to a tensor: of `dtype`, else of `dtype_hint` if the value can be that, else of its own dtype."""
    if dtype is None and dtype_hint is not None and not isinstance(value, Tensor):
        found = ops.convert_to_tensor(value).dtype
        hinted = as_dtype(dtype_hint)
        dtype = hinted if hinted.kind == found.kind or (found.kind in "iu" and hinted.kind in "fc") else None
    return ops.convert_to_tensor(value, dtype)


def executing_eagerly() -> bool:
    """Test whether ops run at once here: no graph is being built."""
    return not in_explicit_graph()


def init_scope() -> AbstractContextManager[object]:
    """Leave the graph that is being built: inside the block ops run at once."""
    return eagerly()


def ensure_shape(x: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Return a tensor whose shape is checked when the program runs, and known from here on as far as it is given."""
    tensor = ops.convert_to_tensor(x)
    check = ops.assert_shape(tensor, shape)
    if check is None:  # of values, at once
        return tensor
    with control_dependencies([check]):
        checked = identity(tensor)
    wanted = as_shape(shape)
    if wanted is None:
        return checked
    sizes = ops.shape(checked) if None in wanted else ()
    return ops.reshape(checked, [sizes[axis] if size is None else size for axis, size in enumerate(wanted)])


def identity_n(input: Sequence[TensorLike], name: str | None = None) -> list[Tensor]:
    """Return a list of the same tensors."""
    return [identity(x) for x in input]


def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Split `data` by the partition that each element has."""
    return ops.dynamic_partition(data, partitions, num_partitions)


def dynamic_stitch(indices: Sequence[TensorLike], data: Sequence[TensorLike], name: str | None = None) -> Tensor:
    """Join rows of several tensors: ``merged[indices[m][i]] = data[m][i]``."""
    return ops.dynamic_stitch(indices, data)


__all__ = [
    "UnconnectedGradients",
    "case",
    "cond",
    "convert_to_tensor",
    "dynamic_partition",
    "dynamic_stitch",
    "ensure_shape",
    "executing_eagerly",
    "foldl",
    "foldr",
    "gradients",
    "identity_n",
    "init_scope",
    "map_fn",
    "numpy_function",
    "py_function",
    "scan",
    "switch_case",
    "vectorized_map",
    "while_loop",
]
