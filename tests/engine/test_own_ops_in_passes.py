"""A toy op of each kind, from outside the package: passes need nothing but the facts that it states about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.parts import Parts, devices_of
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.control_flow.vectorized_map import batched_map
from anabranch.engine.graph.axis_maps import AxisMap, same_axes_map
from anabranch.engine.graph.kernel_roles import KernelRole
from anabranch.engine.graph.row_states import Count, Rows, State, mixed
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.math.elementwise import Multiply
from anabranch.engine.ops.math.reduced import Sum
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.sizes import KnownSizes
from anabranch.engine.passes.loops.independent_rows import why_rows_depend
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.testing.kernel_checks import check_kernels

ops = ab.ops
ROWS, STEPS, UNITS = 20, 17, 4
X = np.random.default_rng(0).uniform(-0.9, 0.9, (2, 3, 4)).astype("float32")


class _Toy(ab.ops.Op):
    reference: ClassVar[Callable[..., Any]]

    def infer(self, *inputs: Any) -> Any:
        if any(spec.dtype.kind != "f" for spec in inputs):
            raise TypeError("toys take floating-point numbers.")
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return type(self).reference(*inputs)

    @classmethod
    def samples(cls) -> Any:
        count = 2 if cls is RowProducts else 1
        for x in (X, X[0], X[:, :0]):
            yield ab.ops.Sample(cls(), [x] * count, cls.reference(*[x] * count))


@dataclass(frozen=True)
class Cube(_Toy):
    """Elementwise."""

    elementwise: ClassVar[bool] = True
    reference = staticmethod(lambda x: x * x * x)

    def expression(self, e: Any, x: Any) -> Any:
        return x * x * x

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 3 * node.inputs[0] ** 2,)


@dataclass(frozen=True)
class Ordered(_Toy):
    """Over the last axis: each row in order."""

    last_axes: ClassVar[int] = 1
    reference = staticmethod(lambda x: np.sort(x, axis=-1))

    def grad(self, node: Any, *cotangents: Any) -> Any:
        back = ops.argsort(ops.argsort(node.inputs[0], axis=-1), axis=-1)
        return (ops.take_along_axis(cotangents[0], back, axis=-1),)


@dataclass(frozen=True)
class Energy(_Toy):
    """A reduction of the last axis, which stays."""

    last_axes: ClassVar[int] = 1
    reference = staticmethod(lambda x: np.sum(x * x, axis=-1, keepdims=True))

    def infer(self, *inputs: Any) -> Any:
        return _with_one_column(super().infer(*inputs))

    def kernel_steps(self, inputs: Any, output: Any) -> Any:
        return (Multiply(), (0, 0)), (Sum((len(output.shape) - 1,), True), (1,))

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2 * node.inputs[0],)


@dataclass(frozen=True)
class Backwards(_Toy):
    """A view, which is its own gradient."""

    view: ClassVar[bool] = True
    reference = staticmethod(lambda x: x[..., ::-1])

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, {rank - 1})

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (apply(Backwards(), cotangents[0]),)


@dataclass(frozen=True)
class RowProducts(_Toy):
    """A contraction of two inputs: the inner product of each row of one with that of the other."""

    last_axes: ClassVar[int] = 1
    reference = staticmethod(lambda a, b: np.sum(a * b, axis=-1, keepdims=True))

    def infer(self, *inputs: Any) -> Any:
        spec = super().infer(*inputs)
        return _with_one_column(inputs[1] if spec.shape is None else spec)

    def kernel_steps(self, inputs: Any, output: Any) -> Any:
        return (Multiply(), (0, 1)), (Sum((len(output.shape) - 1,), True), (2,))

    def grad(self, node: Any, *cotangents: Any) -> Any:
        a, b = node.inputs
        return cotangents[0] * b, cotangents[0] * a


@dataclass(frozen=True)
class Reshaped(_Toy):
    """A view of the elements in the same order, which begins no kernel by itself."""

    view: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.RESHAPE
    last_axes: ClassVar[int] = 0
    reference = staticmethod(lambda x: x.reshape(x.shape))

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (apply(Reshaped(), cotangents[0]),)


@dataclass(frozen=True)
class Centred(_Toy):
    """A normalisation: each row less its mean, by a function of rows that machine code is printed from."""

    axes: tuple[int, ...] = (-1,)
    last_axes: ClassVar[int] = 1
    kernel_role: ClassVar[KernelRole | None] = KernelRole.NORMALISATION
    reference = staticmethod(lambda x: x - np.sum(x, axis=-1, keepdims=True) / x.dtype.type(max(1, x.shape[-1])))

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        return x - reduce.mean(x)

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (apply(Centred(), cotangents[0]),)


@dataclass(frozen=True)
class Height(_Toy):
    """The size of the first axis, which depends on how many rows there are, and on nothing that they hold."""

    no_samples: ClassVar[str] = "test_the_rows_of_a_batch_are_followed_through_sizes"
    reference = staticmethod(lambda x: np.int32(x.shape[0]))

    def infer(self, *inputs: Any) -> Any:
        return TensorSpec((), as_dtype("int32"))

    def row_state(self, node: Any, given: Any) -> State:
        return Count() if given[0] == Rows(0) else mixed(node)


@dataclass(frozen=True)
class Head(_Toy):
    """A part: the first row."""

    no_samples: ClassVar[str] = "test_of_a_variable_on_another_task_only_the_part_is_sent"
    reference = staticmethod(lambda x: x[:1])

    def infer(self, *inputs: Any) -> Any:
        return TensorSpec((1, *inputs[0].shape[1:]), inputs[0].dtype)


@dataclass(frozen=True)
class Turned(_Toy):
    """A part in the opposite order, along an axis that a field names."""

    axis: int = 0
    view: ClassVar[bool] = True
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    reference = staticmethod(lambda x: x[::-1])

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, {self.axis % rank})

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.flip(inputs[0], self.axis)

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (apply(self, cotangents[0]),)


@dataclass(frozen=True)
class Copied(_Toy):
    """Copies along a further axis, to a shape that the second input holds."""

    axis: int
    shape: tuple[int | None, ...] | None
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    shape_input: ClassVar[int | None] = 1
    no_samples: ClassVar[str] = "test_a_batch_of_an_op_to_a_shape_is_not_looped_over"

    def infer(self, *inputs: Any) -> Any:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.broadcast_to(xp.expand_dims(inputs[0], self.axis), tuple(inputs[1].tolist()))


def _with_one_column(spec: Any) -> TensorSpec:
    return TensorSpec(None if spec.shape is None else (*spec.shape[:-1], 1), spec.dtype)


OTHERS = [Ordered, Energy, Backwards, Reshaped, Centred]
CHECKED_SLOWLY = [*OTHERS, Turned]
FUSED = {
    Cube: "3 operations are one kernel: cube, add, tanh",
    Energy: "4 operations are one kernel: multiply, sum, add, tanh",
    RowProducts: "5 operations are one kernel: multiply, multiply, sum, add, tanh",
    Centred: "3 operations are one kernel: centred, add, tanh",
}
IN_REGIONS = [Cube, Energy, RowProducts, Reshaped]
KINDS = [Cube, RowProducts, *OTHERS]


def make(kind: Any, x: Any) -> Any:
    return apply(kind(), x, x * 0.5) if kind is RowProducts else apply(kind(), x)


@pytest.fixture(autouse=True)
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    assume(monkeypatch, ragged_work=0)
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize(
    "kind", [Cube, RowProducts, *[pytest.param(each, marks=pytest.mark.slow) for each in CHECKED_SLOWLY]]
)
def test_values_derivatives_specs_axes_control_flow_and_saving(kind: Any):
    counts = ab.testing.check_op(kind, verbose=False)
    assert all(counts[name] for name in ("value", "specs", "axes", "derivatives", "control flow", "session", "saving"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_not_looped_over(graph: Any, kind: Any):
    x = ab.placeholder(X.shape, "float32")
    found, looped = batched_map(lambda row: make(kind, row), x)
    assert looped == []
    values = Program(graph, [found], [x], exact=True)(X)[0]
    half = [X * np.float32(0.5)] if kind is RowProducts else []
    np.testing.assert_array_equal(values, kind.reference(X, *half))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_for_each_example_is_not_looped_over(graph: Any, kind: Any):
    x = ab.placeholder(X.shape, "float32")

    def slope(row: Any) -> Any:
        return ab.gradients(ops.sum(ops.sin(make(kind, row))), [row])[0]

    _, looped = batched_map(slope, x)
    assert [name for name in looped if kind.type_name in name] == []


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [True, False])
def test_a_batch_of_an_op_whose_field_names_an_axis_is_not_looped_over(graph: Any, axis: int, known: bool):
    x = ab.placeholder(X.shape if known else (None, None, None), "float32")
    found, looped = batched_map(lambda row: apply(Turned(axis), row), x)
    assert looped == []
    values = Program(graph, [found], [x], exact=True)(X)[0]
    np.testing.assert_array_equal(values, np.flip(X, axis if axis < 0 else axis + 1))
    slopes, looped = batched_map(
        lambda row: ab.gradients(ops.sum(apply(Turned(axis), row) * np.arange(4.0, dtype="f")), [row])[0], x
    )
    assert [name for name in looped if "turned" in name] == []
    expected = np.broadcast_to(np.arange(4.0, dtype="f")[:: -1 if axis else 1], X.shape)
    np.testing.assert_array_equal(Program(graph, [slopes], [x], exact=True)(X)[0], expected)


def test_a_batch_is_looped_over_where_the_axis_map_denies_the_fields(graph: Any, monkeypatch: pytest.MonkeyPatch):
    """The map says that all axes are mixed, the one of the batch too: the values stay right."""
    monkeypatch.setattr(Turned, "axis_map", lambda self, x: same_axes_map(len(x.shape), range(len(x.shape))))
    x = ab.placeholder(X.shape, "float32")
    found, looped = batched_map(lambda row: apply(Turned(), row), x)
    assert [name.split(" ")[0] for name in looped] == ["'turned'"]
    np.testing.assert_array_equal(Program(graph, [found], [x], exact=True)(X)[0], np.flip(X, 1))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [True, False])
def test_a_batch_of_an_op_to_a_shape_is_not_looped_over(graph: Any, axis: int, known: bool):
    x, sizes = ab.placeholder(X[0].shape, "float32"), ab.placeholder((2,), "int32")
    wanted = np.insert([4], axis if axis >= 0 else 1, 2).astype("int32")
    shape = tuple(wanted.tolist()) if known else (None, None)
    found, looped = batched_map(lambda row: apply(Copied(axis, shape), row, sizes), x)
    assert looped == []
    values = Program(graph, [found], [x, sizes], exact=True)(X[0], wanted)[0]
    np.testing.assert_array_equal(values, np.stack([X[0]] * 2, axis if axis < 0 else axis + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_sizes_are_those_of_the_input(graph: Any, kind: Any):
    x = ab.placeholder((None, UNITS), "float32")
    y = make(kind, x)
    assert (KnownSizes().of(y) or ())[:1] == ((x, 0),)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_requests_may_be_computed_together(graph: Any, kind: Any):
    x = ab.placeholder((None, 3, UNITS), "float32")
    y: Any = make(kind, x)
    assert why_rows_depend(graph, [x], [y]) is None
    turned: Any = ops.transpose(make(kind, ops.transpose(x, (1, 2, 0))), (2, 0, 1))
    reason = why_rows_depend(graph, [x], [turned])
    assert (reason is None) == (kind in (Cube, Reshaped)), reason


def test_the_rows_of_a_batch_are_followed_through_sizes(graph: Any, monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((None, UNITS), "float32")
    y: Any = x + ops.ones((apply(Height(), x), UNITS))
    assert why_rows_depend(graph, [x], [y]) is None
    np.testing.assert_array_equal(Program(graph, [y], [x])(X[0])[0], X[0] + 1)
    monkeypatch.delattr(Height, "row_state")
    assert "'height' (height) is not known to compute each row for itself" in str(why_rows_depend(graph, [x], [y]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_over_sequences_computes_the_rows_that_are_not_finished(graph: Any, kind: Any, no_compiler: None):
    x, mask = ab.placeholder((ROWS, STEPS, UNITS), "float64"), ab.placeholder((ROWS, STEPS), "bool")
    w = ab.placeholder((UNITS, UNITS), "float64")

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.where(mask[:, t, None], ops.tanh(x[:, t] @ w + h * make(kind, h @ w)), h)

    _, last = ab.while_loop(lambda t, _: t < STEPS, body, (0, ops.ones((ROWS, UNITS), "float64")))
    fetches = [last, *ab.gradients(ops.sum(last), [w])]
    with recording() as log:
        prepare(graph, fetches, [x, mask, w])
    assert log.of("ragged_batches")[0], log.of("ragged_batches")[1]
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, (ROWS, STEPS, UNITS)), rng.random((ROWS, STEPS)) < 0.5, rng.uniform(-1, 1, (4, 4))]
    expected = Interpreter().run(graph, fetches, dict(zip((x, mask, w), values, strict=True)))
    for result, wanted in zip(Program(graph, fetches, [x, mask, w])(*values), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gives_part", [False, True])
def test_of_a_variable_on_another_task_only_the_part_is_sent(
    graph: Any, gives_part: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Head, "gives_part", gives_part)
    with ab.device("/job:ps/task:0"):
        w = ab.Variable(np.ones((100, UNITS), "float32"), name="w")
    with ab.device("/job:worker/task:0"):
        y = apply(Head(), ab.convert_to_tensor(w)) * 2.0
    parts = Parts(graph, [y], [], devices_of(2))
    received: list[Any] = [node for node in parts.programs[0].machine.nodes if node.kind == "recv"]
    shapes = [node.specs[0].shape for node in received]
    assert ((100, UNITS) in shapes, (1, UNITS) in shapes) == (not gives_part, gives_part)
    np.testing.assert_array_equal(parts.run([], seed=0)[0], np.full((1, UNITS), 2.0))


@pytest.mark.parametrize("batchable", [False, True])
def test_a_batchable_op_before_a_product_leaves_the_loop(graph: Any, batchable: bool, monkeypatch: pytest.MonkeyPatch):
    """Rows in order are taken to a product: both are computed for all iterations at once, or neither."""
    monkeypatch.setattr(Ordered, "batchable", batchable)
    shapes = [(STEPS, ROWS, UNITS), (UNITS, UNITS), (UNITS, UNITS)]
    x, w, u = (ab.placeholder(shape, "float64") for shape in shapes)
    steps = ops.tanh(x)  # no input of the program: its rows are taken inside

    def body(i: Any, h: Any) -> Any:
        return i + 1, ops.tanh(make(Ordered, steps[i]) @ w + h @ u)

    _, last = ab.while_loop(lambda i, _: i < STEPS, body, (0, ops.zeros((ROWS, UNITS), "float64")))
    step = prepare(graph, [last], [x, w, u])
    assert (Ordered.type_name in [operation.type for operation in step.operations]) == batchable

    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, shape) for shape in shapes]
    (expected,) = Interpreter().run(graph, [last], dict(zip((x, w, u), values, strict=True)))
    np.testing.assert_allclose(Program(graph, [last], [x, w, u])(*values)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.kernels
@pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
@pytest.mark.parametrize("kind", KINDS)
def test_fused_compiled_and_explained(graph: Any, kind: Any, native_whatever_the_size: None, loops_stay: None):
    """An expression, a role or its steps are all that kernels need; of another op the call is printed."""
    x = ab.placeholder((8, 8), "float32")
    _, y = ab.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, ops.tanh(make(kind, y) + y)), (0, x))
    with recording() as log:
        program = Program(graph, [y], [x])
    assert [note.text for note in log.of("fuse")[0]] == [FUSED.get(kind, "2 operations are one kernel: add, tanh")]
    assert ("# native: " in program.source) == (kind in IN_REGIONS)
    if kind in (Ordered, Backwards):
        assert f"run_{kind.type_name}(" in program.source
        assert f"'{kind.type_name}' " in ab.explain(y, [x], passes=True).split("\nnative: ")[1].split("\nparallel: ")[0]
    value = np.random.default_rng(0).uniform(-0.5, 0.5, (8, 8)).astype("float32")
    (found,) = program(value)
    for _ in range(9):
        half = [value * np.float32(0.5)] if kind is RowProducts else []
        value = np.tanh(kind.reference(value, *half) + value)
    np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "facts", "message"),
    [
        (
            Energy,
            {"kernel_steps": lambda self, inputs, output: ((Sum((-1,), True), (0,)),)},
            "its kernel_steps and run",
        ),
        (Reshaped, {"reference": staticmethod(lambda x: x[..., ::-1])}, "kernel_role RESHAPE and run differ"),
        (Centred, {"row_expression": lambda self, e, x, reduce: x - reduce("max", x)}, "kernel_role NORMALISATION"),
    ],
)
def test_a_wrong_fact_about_kernels_is_found(kind: Any, facts: dict[str, Any], message: str):
    wrong = type(f"_{kind.__name__}", (kind,), facts)
    with pytest.raises(AssertionError, match=message):
        check_kernels(next(iter(wrong.samples())))


@dataclass
class Polynomial(_Toy):
    """Elementwise, with a list: it has no hash, by which other ops are found to be equal."""

    coefficients: list[float] = field(default_factory=lambda: [0.25, -0.5, 0.1])
    elementwise: ClassVar[bool] = True
    reference = staticmethod(lambda x: 0.25 * x * x - 0.5 * x + 0.1)

    def expression(self, e: Any, x: Any) -> Any:
        found = 0.0 * x
        for coefficient in self.coefficients:
            found = found * x + coefficient
        return found

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.expression(xp, inputs[0])

    def grad(self, node: Any, *cotangents: Any) -> Any:
        last = len(self.coefficients) - 1
        slopes = [(last - power) * each for power, each in enumerate(self.coefficients[:-1])]
        return (cotangents[0] * apply(Polynomial(slopes), node.inputs[0]),)


@pytest.mark.parametrize("is_scalar", [False, True])
@pytest.mark.parametrize("in_loop", [False, True])
def test_an_op_without_a_hash(
    graph: Any, in_loop: bool, is_scalar: bool, native_whatever_the_size: None, loops_stay: None
):
    x = ab.placeholder(() if is_scalar else (3, 4), "float32")

    def body(y: Any) -> Any:
        return apply(Polynomial(), ops.sin(y)) + apply(Polynomial(), y)

    y = ab.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, body(y)), (0, x))[1] if in_loop else body(x)
    targets = symbols_of(ops.convert_to_tensor(each) for each in (y, *ab.gradients(ops.sum(y * y), [x])))
    value = X[0, 0, 0] if is_scalar else X[0]
    found = Program(graph, targets, [x])(value)
    for each, wanted in zip(found, Interpreter().run(graph, targets, {x: value}), strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-6)
