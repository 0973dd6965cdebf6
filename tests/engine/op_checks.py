"""What every op must satisfy, checked on its own samples: values, specs, emitted source, layouts, dtypes, derivatives,
and the same inside branches and loops, on both roads. Each check returns how many cases it went through.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from anabranch.engine import control_flow, ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Placeholder, Tensor, TensorSpec, as_dtype
from anabranch.engine.graph.dtypes import is_floating
from anabranch.engine.graph.op import ErrorSample, Op, Sample, as_scalar_or_array, registered_ops
from anabranch.engine.graph.spec import shape_accepts
from anabranch.engine.ops.base import apply_multi, zeros_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.session import Session

for _package in (ops, control_flow):  # every op is registered when its module is imported
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")

# Ops that are not made of arrays alone, with the tests that they have instead.
EXEMPT = {
    **dict.fromkeys(["cond", "region_op", "while"], "hold regions: test_control_flow_pitfalls, test_random_programs"),
    **dict.fromkeys(["history", "saved", "trip_count"], "take frames: test_control_flow_pitfalls"),
    **dict.fromkeys(["parameter", "placeholder"], "are given their values: test_session"),
    **dict.fromkeys(["assign", "read_variable"], "hold a variable: test_variables"),
    "take_key": "holds a generator: test_ops_random",
    "fused": "is made by a pass out of ops that are tested here",
    **{
        name: "takes TensorArrays, which have their own tests" for name in registered_ops() if name.startswith("array_")
    },
}

KNOWN = ("static", "dims", "nothing")
FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")
# Their public functions make floats of integers (or ints of bools) first, or refuse what such samples would ask.
FLOATING_ONLY = {
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "log_sum_exp", "mean", "round", "rsqrt", "sigmoid"),
    *("cholesky", "determinant", "inverse", "lower_half", "solve", "sparse_cross_entropy", "sqrt"),
    *("max", "min", "power", "range", "relu", "relu_grad", "sparse_cross_entropy_grad"),
}
# NumPy computes these in no half precision; their public functions do it in float32.
_FACTORISATIONS = {"cholesky", "determinant", "inverse", "solve"}
NO_HALF = {"bfloat16": {*_FACTORISATIONS, "batch_matmul", "contraction", "matmul"}, "float16": _FACTORISATIONS}
# The function in the expression of these is not in NumPy.
LACKS_IN_NUMPY = {"cast", "erf", "erfinv"}
# The shape of the result follows from values even where all inputs are floating-point numbers.
DATA_DEPENDENT = {"argwhere", "nonzero", "range", "unique_positions"}
# Inputs whose last axis must be known, because it says how many axes the indices name, or whose rank must be.
NEEDS_LAST_AXIS = {("gather_last", 1), ("gather_nd", 1), ("scatter_add", 1), ("scatter_update", 1)}
NEEDS_RANK = {("slice_update", 2)}


def op_classes() -> dict[str, type[Op]]:
    """The op classes of the package by their names; tests may have registered some of their own."""
    return {name: cls for name, cls in sorted(registered_ops().items()) if cls.__module__.startswith("anabranch.")}


def all_samples() -> Iterable[tuple[str, Sample]]:
    """Every sample of every op, with its name."""
    for name, cls in op_classes().items():
        for number, sample in enumerate(cls.samples()):
            yield f"{name}-{number}-{sample.label}", sample


def all_error_samples() -> Iterable[tuple[str, ErrorSample]]:
    for name, cls in op_classes().items():
        for number, sample in enumerate(cls.error_samples()):
            yield f"{name}-{number}-{sample.label}", sample


# --- comparing ------------------------------------------------------------------------------------------------------


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def assert_identical(actual: Any, expected: Any) -> None:
    """One type, dtype, shape, and the same bits, but that all NaNs are one."""
    assert type(actual) is type(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind in "fcV":
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
        actual, expected = np.where(nan, 0, actual), np.where(nan, 0, expected)
    assert actual.tobytes() == expected.tobytes()


def assert_close(actual: Any, expected: Any, tolerance: float, elementwise: bool = False) -> None:
    """Equal integers; floats within `tolerance` of each other or, unless `elementwise`, of the largest among them."""
    assert np.shape(actual) == np.shape(expected)
    if np.asarray(actual).dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = _as_wide(actual), _as_wide(expected)
    finite = np.abs(expected[np.isfinite(expected)])
    slack = 1e-30 if elementwise else tolerance * max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=slack)
    if elementwise and expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(np.nan_to_num(actual)), np.signbit(np.nan_to_num(expected)))


def _as_wide(value: Any) -> Any:
    array = np.asarray(value)
    return array if array.dtype.kind == "c" else array.astype("float64")


def assert_fits(value: Any, spec: Any) -> None:
    """`value` has the form of run-time values, and is what `spec` says."""
    assert isinstance(value, np.ndarray if value.shape else np.generic), type(value)
    assert value.dtype == spec.dtype, (value.dtype, str(spec))
    assert shape_accepts(spec.shape, value.shape), (value.shape, str(spec))


def spec_of(value: Any, known: str = "static") -> TensorSpec:
    """The spec of a value of which the whole shape, the number of axes ("dims"), or nothing is known."""
    shapes = {"static": value.shape, "dims": (None,) * value.ndim, "nothing": None}
    return TensorSpec(shapes[known], value.dtype)


def weak_spec(sample: Sample, position: int, known: str) -> TensorSpec:
    """`spec_of` an input, but that what the op needs stays known."""
    value, place = sample.inputs[position], (sample.op.type_name, position)
    if known != "static" and place in NEEDS_LAST_AXIS:
        return TensorSpec((None,) * (value.ndim - 1) + value.shape[-1:], value.dtype)
    return spec_of(value, "dims" if known == "nothing" and place in NEEDS_RANK else known)


# --- value, specs ---------------------------------------------------------------------------------------------------


def check_value(sample: Sample) -> int:
    """`run` gives what is expected (or twice the same), in the form that `infer` says, and leaves its inputs alone."""
    inputs = [_frozen(x) for x in sample.inputs]
    results = as_tuple(sample.op.run(np, *inputs))
    specs = as_tuple(sample.op.infer(*[spec_of(x) for x in inputs]))
    may_vary = sample.op.type_name in DATA_DEPENDENT or not all(is_floating(x.dtype) for x in inputs)
    for value, spec in zip(results, specs, strict=True):
        assert_fits(value, spec)
        assert spec.is_static or may_vary, f"{spec} although the inputs are static"
    assert [x.tobytes() for x in inputs] == [x.tobytes() for x in sample.inputs]
    assert sample.op.view or not any(np.shares_memory(x, y) for x in inputs for y in results)
    if sample.expected is None:
        for value, again in zip(results, as_tuple(sample.op.run(np, *inputs)), strict=True):
            assert_identical(value, again)
    else:
        for value, expected in zip(results, as_tuple(sample.expected), strict=True):
            assert_close(value, expected, sample.tolerance, sample.op.elementwise)
    return 1


def _frozen(x: Any) -> Any:
    copy = x.copy()
    if isinstance(copy, np.ndarray):
        copy.setflags(write=False)
    return copy


def check_specs(sample: Sample) -> int:
    """What is inferred from less still describes the result, and is no more than what is inferred from more."""
    op = sample.op
    results = as_tuple(op.run(np, *sample.inputs))
    full = [spec_of(x) for x in sample.inputs]
    strong = as_tuple(op.infer(*full))
    weakened = [[weak_spec(sample, position, known) for position in range(len(full))] for known in KNOWN[1:]]
    for position, value in enumerate(sample.inputs):
        weaker = [weak_spec(sample, position, known) for known in KNOWN[1:]]
        if (op.type_name, position) not in NEEDS_LAST_AXIS:
            shape = value.shape
            weaker += [TensorSpec((*shape[:k], None, *shape[k + 1 :]), value.dtype) for k in range(len(shape))]
        weakened += [[*full[:position], spec, *full[position + 1 :]] for spec in weaker]
    for specs in weakened:
        for value, spec, least in zip(results, as_tuple(op.infer(*specs)), strong, strict=True):
            assert_fits(value, spec)
            assert spec.accepts(least), f"{least} became {spec} when less was known"
    return len(weakened)


# --- emitted source, layouts ----------------------------------------------------------------------------------------


def check_emission(sample: Sample) -> int:
    """`emit`, `emit_out` and `expression` give the bits that `run` gives."""
    op, inputs = sample.op, sample.inputs
    expected = op.run(np, *inputs)
    cases = _check_emitted(op, inputs, expected)
    if op.elementwise and op.type_name not in LACKS_IN_NUMPY:
        definition: Any = op
        assert_identical(as_scalar_or_array(definition.expression(np, *inputs)), expected)
        cases += 1
    return cases + _check_emitted_into(op, inputs, expected)


def _check_emitted(op: Op, inputs: Sequence[Any], expected: Any) -> int:
    source = op.emit(_names(inputs))
    if source is None:
        return 0
    emitted = as_tuple(eval(source, {"np": np}, _scope(inputs)))
    for value, wanted in zip(emitted, as_tuple(expected), strict=True):
        assert_identical(value, wanted)
    return 1


def _check_emitted_into(op: Op, inputs: Sequence[Any], expected: Any) -> int:
    source = op.emit_out(_names(inputs), "out")
    if source is None or not isinstance(expected, np.ndarray):
        return 0
    out = _garbage(expected)
    eval(source, {"np": np}, {**_scope(inputs), "out": out})
    assert_identical(out, expected)
    return 1


def _names(inputs: Sequence[Any]) -> list[str]:
    return [f"x{position}" for position in range(len(inputs))]


def _scope(inputs: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_names(inputs), inputs, strict=True))


def _garbage(like: Any) -> Any:
    return np.frombuffer(b"\x5a" * like.nbytes, like.dtype).reshape(like.shape).copy() if like.size else like.copy()


def _fortran(x: Any) -> Any:
    return np.asfortranarray(x)


def _spread(x: Any) -> Any:
    """Every second element of a larger array along each axis, from its end to its start."""
    larger = _garbage(np.zeros([2 * dim for dim in x.shape], x.dtype))
    part = larger[(slice(None, None, -2),) * x.ndim]
    part[...] = x
    return part


LAYOUTS: dict[str, Callable[[Any], Any]] = {"fortran": _fortran, "strided": _spread}


def check_layouts(sample: Sample) -> int:
    """Arrays in other layouts give the same values; what is emitted for them still equals `run` on them."""
    op = sample.op
    expected = op.run(np, *sample.inputs)
    if not any(isinstance(x, np.ndarray) and x.size > 1 for x in sample.inputs):
        return 0
    for layout in LAYOUTS.values():
        inputs = [layout(x) if isinstance(x, np.ndarray) else x for x in sample.inputs]
        result = op.run(np, *inputs)
        for value, wanted in zip(as_tuple(result), as_tuple(expected), strict=True):
            assert type(value) is type(wanted)
            assert value.dtype == wanted.dtype
            assert_close(value, wanted, 1e-5)
        _check_emitted(op, inputs, result)
        source = op.emit_out(_names(inputs), "out")
        if source is not None and isinstance(expected, np.ndarray):
            out = layout(_garbage(expected))
            eval(source, {"np": np}, {**_scope(inputs), "out": out})
            assert_close(out, expected, 1e-5)
    return len(LAYOUTS)


# --- dtypes ---------------------------------------------------------------------------------------------------------


def with_floats(op: Op, dtype: Any) -> Op:
    """The op with the floating dtypes among its attributes replaced by `dtype`."""
    if not dataclasses.is_dataclass(op):
        return op
    fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    changed = {k: np.dtype(dtype) for k, v in fields.items() if isinstance(v, np.dtype) and is_floating(v)}
    return dataclasses.replace(op, **changed) if changed else op


def in_float64(sample: Sample) -> tuple[Op, list[Any]]:
    """The op and inputs of a sample in double precision."""
    inputs = [x.astype("float64") if is_floating(x.dtype) else x for x in sample.inputs]
    return with_floats(sample.op, "float64"), inputs


def check_dtypes(sample: Sample) -> int:
    """In every dtype that `infer` takes, `run` gives the dtype that it says, and what is emitted equals it.

    In double precision the values have to be those of single precision.
    """
    cases = 0
    base = as_tuple(sample.op.run(np, *sample.inputs))
    for dtype in FLOATS:
        inputs = _cast_where(sample.inputs, is_floating, dtype)
        if inputs is None or sample.op.type_name in NO_HALF.get(dtype, ()):
            continue
        results = _run_if_taken(with_floats(sample.op, as_dtype(dtype)), inputs)
        assert results is not None, f"{dtype} is refused"
        cases += 1
        if dtype == "float64" and _is_determined(sample):
            for value, wanted in zip(results, base, strict=True):
                assert_close(value, wanted, max(sample.tolerance, 1e-5))
    if sample.op.type_name not in FLOATING_ONLY:
        for dtype in ("bool", *INTEGERS):
            inputs = _cast_where(sample.inputs, is_floating, dtype)
            cases += inputs is not None and _run_if_taken(sample.op, inputs) is not None
    for dtype in INTEGERS:
        inputs = _cast_where(sample.inputs, _is_integer, dtype)
        if inputs is not None and _keeps_values(inputs, sample.inputs):
            cases += _run_if_taken(sample.op, inputs) is not None
    return cases


def _is_integer(dtype: Any) -> bool:
    return dtype.kind in "iu"


def _is_determined(sample: Sample) -> bool:
    """Whether the values are the same in any precision: random numbers are not."""
    finite = all(np.isfinite(x).all() for x in sample.inputs)
    return finite and sample.expected is not None and not sample.op.type_name.startswith("random_")


def _cast_where(inputs: Sequence[Any], chosen: Callable[[Any], bool], dtype: str) -> list[Any] | None:
    """The inputs of some kind of dtype in another one; None if there are none."""
    if not any(chosen(x.dtype) for x in inputs):
        return None
    with np.errstate(all="ignore"):
        return [x.astype(as_dtype(dtype)) if chosen(x.dtype) else x for x in inputs]


def _keeps_values(inputs: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(inputs, before, strict=True) if _is_integer(x.dtype)
    )


def _run_if_taken(op: Op, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
    """The results, after their dtype and what is emitted were checked; None if `infer` refuses the dtype."""
    try:
        specs = as_tuple(op.infer(*[spec_of(x) for x in inputs]))
    except TypeError:
        return None
    result = op.run(np, *inputs)
    for value, spec in zip(as_tuple(result), specs, strict=True):
        assert_fits(value, spec)
    _check_emitted(op, inputs, result)
    _check_emitted_into(op, inputs, result)
    return as_tuple(result)


# --- derivatives ----------------------------------------------------------------------------------------------------

TIMES = 3  # iterations of the loops


def differentiable_positions(sample: Sample) -> list[int]:
    """The inputs whose derivatives are checked: those that the sample names, or all floating ones."""
    specs = [spec_of(x) for x in sample.inputs]
    if not any(spec.differentiable for spec in as_tuple(sample.op.infer(*specs))):
        return []
    chosen = range(len(specs)) if sample.differentiable is None else sample.differentiable
    return [position for position in chosen if specs[position].differentiable]


class Probe:
    """A sample in double precision in a graph of its own, with a number that depends on every element of its results.

    Attributes:
        inputs, feeds: placeholders for the op's inputs, and their values.
        wanted: those inputs for which derivatives are asked; empty where nothing is differentiable.
    """

    def __init__(self, sample: Sample, known: str = "static") -> None:
        self.op, values = in_float64(sample)
        wide = dataclasses.replace(sample, op=self.op, inputs=values)
        self.graph = Graph()
        self.inputs = [
            self.graph.add(Placeholder(weak_spec(wide, position, known)), (), f"x{position}").outputs[0]
            for position in range(len(values))
        ]
        self.feeds: dict[Tensor, Any] = dict(zip(self.inputs, values, strict=True))
        self.results = as_tuple(self.op.run(np, *values))
        self.rng = np.random.default_rng(len(values))
        self.wanted = [self.inputs[position] for position in differentiable_positions(sample)]
        self._weights = [self.rng.uniform(0.5, 1.5, y.shape) for y in self.results]
        self._pulls = [self.rng.uniform(0.5, 1.5, self.feeds[x].shape) for x in self.wanted]

    def outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The op over `inputs`."""
        return list(apply_multi(self.op, *inputs))

    def loss(self, outputs: Sequence[Tensor]) -> Tensor:
        """A weighted sum of squares of results: its derivatives of both orders depend on the op's own."""
        terms = [
            ops.sum(y * y * ops.convert_to_tensor(weight))
            for y, weight in zip(outputs, self._weights, strict=True)
            if y.spec.differentiable
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def slope(self, first: Sequence[Tensor]) -> Tensor:
        """A weighted sum of first derivatives."""
        total = ops.convert_to_tensor(0.0, "float64")
        for derivative, pull in zip(first, self._pulls, strict=True):
            total = total + ops.sum(derivative * ops.convert_to_tensor(pull))
        return total

    def derivatives(self, loss: Tensor) -> list[Tensor]:
        """The first and second derivatives of a loss."""
        first = gradients(loss, self.wanted)
        assert None not in first
        return [*first, *gradients(self.slope(first), self.wanted, unconnected_gradients="zero")]

    def run(self, targets: Sequence[Tensor], feeds: dict[Tensor, Any] | None = None) -> list[Any]:
        """The values of `targets` by the interpreter."""
        return Interpreter().run(self.graph, targets, self.feeds if feeds is None else feeds)


def check_derivatives(sample: Sample, known: str, directions: int = 2) -> int:
    """Derivatives of both orders along random directions equal central differences."""
    probe = Probe(sample, known)
    if not probe.wanted:
        return 0
    with probe.graph.as_default():
        loss = probe.loss(probe.outputs(probe.inputs))
        derivatives = probe.derivatives(loss)
        count = len(probe.wanted)
        slope = probe.slope(derivatives[:count])
    found = probe.run([loss, slope, *derivatives])
    for x, derivative, value in zip(probe.wanted * 2, derivatives, found[2:], strict=True):
        assert derivative.dtype == x.dtype
        assert shape_accepts(derivative.shape, probe.feeds[x].shape)
        assert value.shape == probe.feeds[x].shape
    step = 1e-5
    for _ in range(directions):
        ways = [probe.rng.normal(size=probe.feeds[x].shape) for x in probe.wanted]
        ends: list[Any] = []
        for sign in (1, -1):
            moved = {x: (probe.feeds[x] + sign * step * way)[()] for x, way in zip(probe.wanted, ways, strict=True)}
            ends.append(probe.run([loss, slope], {**probe.feeds, **moved}))
        for order in (0, 1):
            numeric = (ends[0][order] - ends[1][order]) / (2 * step)
            parts = [v * w for v, w in zip(found[2 + order * count :], ways * 2, strict=False)][:count]
            scale = sum(np.abs(part).sum() for part in parts) + max(1.0, abs(found[order]))
            exact = sum(part.sum() for part in parts)
            assert abs(exact - numeric) <= 1e-6 * scale, f"order {order + 1}: {exact} is not {numeric}"
    return 2 * directions


# --- control flow ---------------------------------------------------------------------------------------------------


def check_control_flow(sample: Sample, known: str = "static", kernels: bool = False) -> int:
    """Inside a branch, a loop that captures and one that carries, an op's values and derivatives are those outside.

    Both roads are compared: to the bit, or with `kernels` within rounding.
    """
    probe = Probe(sample, known)
    graph = probe.graph
    flag, count, one = [
        graph.add(Placeholder(TensorSpec((), as_dtype(dtype))), (), name).outputs[0]
        for name, dtype in (("flag", "bool"), ("count", "int32"), ("one", "float64"))
    ]
    with graph.as_default():
        plain = probe.outputs(probe.inputs)
        targets = [plain, *_values_inside(probe, plain, flag, count, one)]
        if probe.wanted:
            targets += [probe.derivatives(loss) for loss in _losses(probe, plain, flag, count, one)]
    values = len(plain)
    flat = [tensor for group in targets for tensor in group]
    program = Program(graph, flat, [*probe.inputs, flag, count, one], exact=not kernels)
    for taken, times in ((True, TIMES), (False, 0)):
        feeds = {**probe.feeds, flag: np.bool_(taken), count: np.int32(times), one: np.float64(1)}
        found = probe.run(flat, feeds)
        for value, wanted in zip(program(*feeds.values()), found, strict=True):
            _assert_same_road(value, wanted, kernels)
        groups = [found[k : k + values] for k in range(0, 4 * values, values)]
        for group in groups[1:]:
            for value, wanted in zip(group, groups[0], strict=True):
                assert_identical(value, wanted if taken else np.zeros_like(wanted)[()])
        slopes = 2 * len(probe.wanted)
        rest = found[4 * values :]
        outside, *inside = [rest[k : k + slopes] for k in range(0, len(rest), max(1, slopes))] or [[]]
        for group, factor in zip(inside, (1, TIMES, TIMES), strict=False):
            for value, wanted in zip(group, outside, strict=True):
                assert_close(value, wanted * factor * taken if taken else np.zeros_like(wanted), 1e-9)
    return 2 * len(targets)


def _values_inside(probe: Probe, plain: list[Tensor], flag: Tensor, count: Tensor, one: Tensor) -> list[list[Tensor]]:
    """The results inside a branch, a loop that captures the inputs, and a loop that carries them."""
    zeros = [zeros_of(y) for y in plain]
    branch = cond(flag, lambda: probe.outputs(probe.inputs), lambda: zeros)
    _, captured = while_loop(
        lambda i, _: i < count, lambda i, _: (i + 1, probe.outputs(probe.inputs)), (0, zeros), name="captures"
    )
    _, _, carried = while_loop(
        lambda i, *_: i < count,
        lambda i, xs, _: (i + 1, _handed_on(xs, one), probe.outputs(xs)),
        (0, probe.inputs, zeros),
        name="carries",
    )
    return [branch, captured, carried]


def _losses(probe: Probe, plain: list[Tensor], flag: Tensor, count: Tensor, one: Tensor) -> list[Tensor]:
    """The loss outside, in a branch, and added up by a loop that captures and one that carries the inputs."""
    zero = ops.convert_to_tensor(0.0, "float64")
    branch = cond(flag, lambda: probe.loss(probe.outputs(probe.inputs)), lambda: zero)
    _, captured = while_loop(
        lambda i, _: i < count,
        lambda i, total: (i + 1, total + probe.loss(probe.outputs(probe.inputs))),
        (0, zero),
        name="captures",
    )
    _, _, carried = while_loop(
        lambda i, *_: i < count,
        lambda i, xs, total: (i + 1, _handed_on(xs, one), total + probe.loss(probe.outputs(xs))),
        (0, probe.inputs, zero),
        name="carries",
    )
    return [probe.loss(plain), branch, captured, carried]


def _handed_on(xs: Sequence[Tensor], one: Tensor) -> list[Tensor]:
    """The loop variables of the next iteration: equal in value, but computed."""
    return [x * one if is_floating(x.dtype) else x for x in xs]


def _assert_same_road(value: Any, wanted: Any, kernels: bool) -> None:
    if kernels:
        assert_close(value, wanted, 1e-9)
    else:
        assert_identical(value, wanted)


def check_session(sample: Sample, known: str = "static") -> int:
    """A session, which fuses and specialises, gives the interpreter's values and derivatives, for any layout of feeds.

    What follows the op in the graph is elementwise, so that its results become the operands of kernels.
    """
    probe = Probe(sample, known)
    with probe.graph.as_default():
        outputs = probe.outputs(probe.inputs)
        doubled = [y + y if y.dtype.kind in "iuf" else y for y in outputs]
        targets = [*outputs, *doubled]
        if probe.wanted:
            loss = probe.loss(outputs)
            targets += [loss, *gradients(loss, probe.wanted)]
    expected = probe.run(targets)
    session = Session(probe.graph)
    for layout in (lambda x: x, *LAYOUTS.values()):
        feeds = {x: layout(v) if isinstance(v, np.ndarray) else v for x, v in probe.feeds.items()}
        for value, wanted in zip(session.run(targets, feeds), expected, strict=True):
            assert type(value) is type(wanted)
            assert value.dtype == wanted.dtype
            assert_close(value, wanted, 1e-9)
    return 1 + len(LAYOUTS)
