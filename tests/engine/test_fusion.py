"""Fusion of elementwise chains: structure, values, effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared.fusion_checks import Check, X, groups, prepared, variable

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Operation, Symbol, Tensor
from anabranch.engine.graph.region import Region
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.fusion import fuse as fuse_module
from anabranch.engine.runtime.interpreter import Interpreter

pytestmark = pytest.mark.usefixtures("loops_stay")


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x(graph: Graph) -> Symbol:
    return ab.placeholder((3, 4), "float32", "x")


# --- which operations are fused -------------------------------------------------------------------------------------


def test_chain(x: Symbol):
    y = ab.ops.relu(x * 2 + 1) - 3
    assert groups([y], [x]) == ["multiply add relu subtract"]
    Check([y], {x: X})


def test_broadcast_operands(x: Symbol):
    row, column, scalar = (ab.placeholder(shape, "float32") for shape in ((4,), (3, 1), ()))
    y = (x * row + column) * scalar
    assert groups([y], [x, row, column, scalar]) == ["multiply add multiply"]
    Check([y], {x: X, row: X[0], column: X[:, :1], scalar: np.float32(3)})


def test_casts_and_comparisons(x: Symbol):
    y = ab.ops.where(ab.ops.greater(x, 5), ab.ops.cast(x, "float64"), -1)
    assert groups([y], [x]) == ["greater cast where"]
    Check([y], {x: X})


def test_single_ops_that_numpy_has_stay(x: Symbol):
    assert groups([x + 1], [x]) == []
    assert groups([ab.ops.cast(x, "float64")], [x]) == []


@pytest.mark.parametrize("rows", [256, 16])
def test_single_ops_over_many_elements_are_for_several_threads(rows: int):
    a, b = (ab.placeholder((rows, 256), "float32") for _ in range(2))
    y = ops.transpose(ops.add(a, b))
    assert groups([y], [a, b]) == (["add"] if rows == 256 else [])
    values = np.random.default_rng(0).uniform(-1, 1, (2, rows, 256)).astype("float32")
    Check([y], {a: values[0], b: values[1]})


def test_single_ops_of_unknown_sizes_stay():
    a, b = (ab.placeholder((None, 256), "float32") for _ in range(2))
    assert groups([ops.transpose(ops.add(a, b))], [a, b]) == []


def test_single_ops_that_numpy_computes_in_passes(x: Symbol):
    assert groups([ab.ops.sigmoid(x)], [x]) == ["sigmoid"]
    Check([ab.ops.sigmoid(x)], {x: X}, tolerance=1e-6)


def test_unknown_shapes_and_scalars_are_not_fused():
    unknown = ab.placeholder(None, "float32")
    scalar = ab.placeholder((), "float32")
    one = ab.placeholder((1, 1), "float32")
    for tensor in (unknown, scalar, one):
        assert groups([ab.ops.tanh(tensor * 2 + 1)], [tensor]) == []


def test_unsupported_ops_split_groups(x: Symbol):
    y = ab.ops.fmod(x * 2 + 1, 5.0) * 3 - 1
    assert groups([y], [x]) == ["multiply add", "multiply subtract"]
    Check([y], {x: X})


def test_shapes_split_groups():
    """Values computed for one row would be computed again for each."""
    x, row = ab.placeholder((6, 4), "float32", "x"), ab.placeholder((4,), "float32", "row")
    y = (row * 2 + 1) * x + x
    assert groups([y], [x, row]) == ["multiply add", "multiply add"]
    Check([y], {x: np.concatenate([X, -X]), row: X[0]})


def test_a_column_joins_rows():
    """Values computed once a row are so in the kernel of the rows, too."""
    x, column = ab.placeholder((6, 4), "float32", "x"), ab.placeholder((6, 1), "float32", "column")
    y = (column * 2 + 1) * x + x
    assert groups([y], [x, column]) == ["multiply add multiply add"]
    Check([y], {x: np.concatenate([X, -X]), column: X.reshape(12, 1)[:6]})


def test_fed_values_inside_a_chain(x: Symbol):
    middle = x * 2 + 1
    y = middle * 3 - 1
    assert groups([y], [middle]) == ["multiply subtract"]
    Check([y, middle], {middle: X})


def test_groups_merge_where_they_meet(x: Symbol):
    y = ab.placeholder((3, 4), "float32", "y")
    left, right = x * 2 + 1, y * 3 - 1
    joined = left * right
    assert groups([joined], [x, y]) == ["multiply add multiply subtract multiply"]
    Check([joined], {x: X, y: -X})


def test_values_that_are_needed_outside_are_outputs(x: Symbol):
    middle = x * 2 + 1
    y = ab.ops.relu(middle - 3)
    total = ab.ops.sum(middle)
    step = prepared([y, total, middle], [x])
    assert groups([y, total, middle], [x]) == ["multiply add subtract relu sum"]
    (fused,) = [operation for operation in step.operations if isinstance(operation.op, Fused)]
    assert len(fused.outputs) == 3
    Check([y, total, middle], {x: X})


def test_an_outside_operation_between_members(x: Symbol):
    """The chain leads out of the group (a matrix product) and in again: it would be a cycle."""
    inside = x * 2 + 1
    outside = ab.ops.matmul(inside, np.ones((4, 4), "float32"))
    y = inside - outside * 3
    found = groups([y], [x])
    assert found == ["multiply add", "multiply subtract"]
    Check([y], {x: X})


def test_a_way_around_through_another_group(x: Symbol):
    first = x + 1
    row = ab.ops.sum(first * 2, axis=0) * 3 - 1  # another shape: a group between
    y = first * row - first
    for group in groups([y], [x]):
        assert "add multiply multiply subtract" not in group
    Check([y, row], {x: X})


def test_groups_do_not_merge_around_an_outside_operation():
    """`where` joins the last group; then the first one joins, on which the second depends through the remainder."""
    x, y = (ab.placeholder((3, 4), "float32", name) for name in "xy")
    first = x + 1
    second = ab.ops.fmod(first, 5.0) * 2 + 1
    third = y * 3 - 1
    z = ab.ops.where(ab.ops.greater(first, 5), second, third)
    found = groups([z], [x, y])
    assert len(found) == 2
    assert sum(len(group.split()) for group in found) == 7
    Check([z], {x: X, y: -X})


def test_many_operands_split_groups():
    inputs = [ab.placeholder((3, 4), "float32", f"x{k}") for k in range(60)]
    total = inputs[0]
    for tensor in inputs[1:]:
        total = total + tensor
    found = groups([total], inputs)
    assert len(found) > 1
    assert sum(len(group.split()) for group in found) == 59
    Check([total], {tensor: X + k for k, tensor in enumerate(inputs)})


def test_a_long_chain_of_one_value(x: Symbol):
    y = x
    for k in range(150):
        y = ab.ops.relu(y - (k + 1) * 0.01)
    assert sum(len(group.split()) for group in groups([y], [x])) == 300
    Check([y], {x: X * 20})


def test_equal_operations_are_computed_once(x: Symbol):
    y = (x * 2 + 1) * (x * 2 + 1)
    assert groups([y], [x]) == ["multiply add multiply"]
    Check([y], {x: X})


def test_control_dependency_on_a_member(x: Symbol):
    """An operation ordered behind the middle of a chain comes behind the whole kernel, which is not computed twice."""
    middle = x * 2 + 1
    y = ab.ops.relu(middle)
    with ab.control_dependencies([middle]):
        z = ab.ops.sin(x)
    assert [o.type for o in prepared([y, z], [x]).operations if o.type == "multiply"] == []
    Check([y, z], {x: X})


def test_operations_as_targets(x: Symbol):
    y = x * 2 + 1
    Check([symbol_of(y).operation, y], {x: X})
    Check([symbol_of(y).operation, symbol_of(x).operation, ab.ops.relu(y)], {x: X})
    Check([symbol_of(y).operation], {y: X})


# --- loops and branches ---------------------------------------------------------------------------------------------


def test_inside_a_loop(x: Symbol):
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ab.ops.relu(a * x - 1)), (0, x))
    assert groups([y], [x]) == ["multiply subtract relu"]
    Check([y], {x: X / 9})


def test_in_a_condition(x: Symbol):
    _, y = ab.while_loop(lambda i, a: ab.ops.all(a * 2 - 1 < 50), lambda i, a: (i + 1, a + 3), (0, x))
    assert groups([y], [x]) == ["multiply subtract less"]
    Check([y], {x: X})


def test_inside_branches(x: Symbol):
    positive = ab.placeholder((), "bool", "positive")
    y = ab.cond(positive, lambda: x * 2 + 1, lambda: -x * 3)
    assert groups([y], [x, positive]) == ["multiply add", "negative multiply"]
    for choice in (True, False):
        Check([y], {x: X, positive: np.bool_(choice)})


def test_nested_loops(x: Symbol):
    def outer(i: Tensor, a: Tensor) -> Any:
        _, inner = ab.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * 0.5 + a), (0, a - 1))
        return i + 1, inner * 0.5 - x

    _, y = ab.while_loop(lambda i, a: i < 4, outer, (0, x))
    assert len(groups([y], [x])) == 2
    Check([y], {x: X})


def test_a_value_captured_by_a_loop_is_an_output(x: Symbol):
    a = x * 2 + 1
    b = a - 3
    _, y = ab.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c + a), (0, b))
    Check([y, b], {x: X})


def test_histories_that_gradients_ask_for(x: Symbol):
    """The values inside a fused loop body that the backward loop needs become outputs of the kernel."""
    _, y = ab.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, ab.ops.tanh(a * x) * 2 - a), (0, x))
    (gradient,) = ab.gradients(ab.ops.sum(y * y), [x])
    assert any("tanh" in group for group in groups([gradient], [x]))
    Check([y, gradient], {x: X / 20}, tolerance=2e-4)


def test_second_order_through_a_loop(x: Symbol):
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ab.ops.tanh(a * x + 0.5)), (0, x))
    (first,) = ab.gradients(ab.ops.sum(y * y), [x])
    (second,) = ab.gradients(ab.ops.sum(first * first), [x])
    Check([first, second], {x: X / 20}, tolerance=5e-4)


def test_saved_values_of_branches(x: Symbol):
    positive = ab.placeholder((), "bool", "positive")
    y = ab.cond(positive, lambda: ab.ops.tanh(x * 2) * x, lambda: ab.ops.sigmoid(x) - 1)
    (gradient,) = ab.gradients(ab.ops.sum(y), [x])
    for choice in (True, False):
        Check([y, gradient], {x: X / 9, positive: np.bool_(choice)}, tolerance=1e-5)


# --- effects keep program order -------------------------------------------------------------------------------------


def test_a_read_behind_a_write_of_the_same_chain(x: Symbol):
    """read, compute, assign, read, compute: the second half must not join the first."""
    v = variable(1)
    y = ab.ops.relu(x * 2 - v)
    write = v.assign(y)
    z = (y + 1) * v
    Check([z, write], {x: X}, [v])
    Check([z, write.operation, y], {x: X}, [v])


def test_old_and_new_values(x: Symbol):
    v = variable(1)
    old = v.value
    before = old * 2 + x
    write = v.assign(before * 0.5 - 1)
    after = v * 2 + x
    both = before - after
    Check([write, both], {x: X}, [v])
    Check([old, before, write, v.value, after, both], {x: X}, [v])


def test_many_interleavings(x: Symbol):
    v, w = variable(1, "v"), variable(2, "w")
    seen = [v.value, v * 2 + x]
    for k in range(4):
        seen.append(v.assign(v * 0.5 + w - k))
        seen.append(w.assign_add(v * 0.25 - seen[-2]))
        seen.append(v - w * 2 + seen[1])
    Check(seen, {x: X}, [v, w])
    effects = [symbol_of(tensor).operation for tensor in seen if symbol_of(tensor).operation.writes]
    for tensor in seen:
        Check([tensor, *effects], {x: X}, [v, w])


def test_a_branch_that_writes_between_members(x: Symbol):
    v = variable(1)
    positive = ab.placeholder((), "bool", "positive")
    before = v * 2 + x

    def write() -> Tensor:
        return v.assign(before * 0.5 - v)

    y = ab.cond(positive, write, lambda: before - 1)
    z = before * v - y
    for choice in (True, False):
        Check([z], {x: X, positive: np.bool_(choice)}, [v])
        Check([z, before], {x: X, positive: np.bool_(choice)}, [v])


def test_a_loop_that_writes_between_members(x: Symbol):
    v = variable(1)
    before = v * 2 + x
    count, _ = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, v.assign(a * 0.5 + v)), (0, before))
    z = before * v - v * 3
    Check([z, count.operation], {x: X}, [v])
    Check([z, count, before], {x: X}, [v])


def test_effects_stay_where_only_a_shape_is_used(graph: Graph):
    """With static shapes nothing is left of the value that is written, but the write was asked for."""
    v = ab.Variable(np.zeros((2, 4), "float32"), shape=(None, 4), name="v")
    fed = ab.placeholder((None, 4), "float32", "fed")
    zeros = ab.ops.zeros_like(v.assign(fed * 2))
    session = ab.Session(graph)
    np.testing.assert_array_equal(session.run(zeros, {fed: np.ones((5, 4))}), np.zeros((5, 4)))
    np.testing.assert_array_equal(v.numpy(), np.full((5, 4), 2))
    assert session.run(symbol_of(zeros).operation, {fed: np.ones((3, 4))}) is None
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 2))


def test_what_is_only_waited_for(x: Symbol):
    unused = ops.tanh(x) * 2 + 1
    with ab.control_dependencies([unused]):
        found = ops.sort(x)
    Check([found], {x: X})


def test_what_a_loop_only_waits_for(x: Symbol):
    def body(i: Any, value: Any) -> Any:
        unused = ops.tanh(value) * 2 + 1
        with ab.control_dependencies([unused]):
            return i + 1, ops.sort(value)

    trips = ab.placeholder((), "int32", "trips")
    Check(ab.while_loop(lambda i, value: i < trips, body, (0, x)), {x: X, trips: np.int32(2)})


def test_control_dependencies_of_what_is_simplified(graph: Graph):
    """Summing to a shape is no work if the shapes agree, but what it waits for still happens first."""
    v = variable(1)
    fed = ab.placeholder((None, 4), "float32", "fed")
    factor = ab.placeholder((None, 4), "float32", "factor")
    product = ab.ops.sum(fed * factor)
    with ab.control_dependencies([v.assign(v * 2 + 1).operation]):
        (gradient,) = ab.gradients(product, [factor])
        y = fed * 2 + 1
    assert ab.Session(graph).run(y, {fed: np.ones((5, 4))}).shape == (5, 4)
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 3))
    values = {fed: np.full((5, 4), 2), factor: np.ones((5, 4))}
    np.testing.assert_array_equal(ab.Session(graph).run(gradient, values), np.full((5, 4), 2))
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 7))


# --- random programs ------------------------------------------------------------------------------------------------

SHAPES = [(3, 4), (4,), (3, 1), (1, 4), (2, 3, 4)]


class _Builder:
    """A random program: a list of tensors that grows, variables, and the operations that write."""

    def __init__(self, draw: st.DrawFn, dtype: str) -> None:
        self.draw = draw
        self.dtype = dtype
        self.feeds = {ab.placeholder(shape, dtype): self._values(shape) for shape in [(3, 4), (3, 4), *SHAPES[1:], ()]}
        self.tensors: list[Tensor] = list(self.feeds)
        self.variables = [ab.Variable(self._values((3, 4)), name=f"v{k}") for k in range(3)]
        self.effects: list[Operation] = []

    def _values(self, shape: tuple[int, ...]) -> Any:
        rng = np.random.default_rng(len(shape) + 7)
        return np.asarray(rng.integers(-5, 6, shape)).astype(self.dtype)

    def pick(self, shape: Any = None, recent: bool = True) -> Tensor:
        found = [tensor for tensor in self.tensors if shape is None or tensor.shape == shape]
        if recent and len(found) > 4 and self.draw(st.booleans()):
            found = found[-3:]
        return self.draw(st.sampled_from(found))

    def partner(self, x: Tensor) -> Any:
        """Something that broadcasts to at most rank 3 of the common sizes."""
        kind = self.draw(st.sampled_from(["tensor", "same", "number", "variable"]))
        if kind == "number":
            return self.draw(st.sampled_from([1, 2, 3]))
        if kind == "variable":
            return self.draw(st.sampled_from(self.variables))
        return self.pick(x.shape if kind == "same" else None)

    def elementwise(self, x: Tensor) -> Tensor:
        kind = self.draw(st.sampled_from(["+", "-", "*", "max", "where", "neg", "relu"]))
        if kind == "neg":
            return -x
        if kind == "relu":
            return ab.ops.relu(x)
        y = self.partner(x)
        if kind == "where":
            return ab.ops.where(ab.ops.greater(x, y), x, y)
        return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "max": lambda: ab.ops.maximum(x, y)}[kind]()

    def outside(self) -> Tensor:
        kind = self.draw(st.sampled_from(["transpose", "rows", "reverse", "reshape", "sum", "matmul", "identity"]))
        x = self.pick((3, 4))
        if kind == "transpose":
            return ab.ops.reshape(ab.ops.transpose(x), (3, 4))
        if kind == "rows":
            return x[0]
        if kind == "reverse":
            return ab.ops.flip(x, axis=0)
        if kind == "reshape":
            return ab.ops.reshape(ab.ops.reshape(x, (12,)), (3, 4))
        if kind == "sum":
            return ab.ops.max(x, axis=self.draw(st.sampled_from([0, 1])), keepdims=True)
        if kind == "matmul":
            return ab.ops.take(x, [2, 0, 1], axis=0)
        return ab.ops.stop_gradient(x)

    def write(self) -> Tensor:
        v = self.draw(st.sampled_from(self.variables))
        kind = self.draw(st.sampled_from(["assign", "add", "computed"]))
        value = self.pick((3, 4))
        if kind == "computed":
            value = v * self.draw(st.sampled_from([1, 2])) - value
        written = v.assign_add(value) if kind == "add" else v.assign(value)
        self.effects.append(written.operation)
        return written

    def loop(self) -> Tensor:
        start, used = self.pick((3, 4)), self.pick((3, 4))
        v = self.draw(st.sampled_from(self.variables))
        writes, count = self.draw(st.booleans()), self.draw(st.integers(0, 3))

        def body(i: Tensor, a: Tensor) -> Any:
            b = ab.ops.maximum(a - used, v) + 1
            return i + 1, v.assign(b - v) if writes else b

        _, result = ab.while_loop(lambda i, a: i < count, body, (0, start))
        self.effects += [result.operation] if result.operation.writes else []
        return result

    def branch(self) -> Tensor:
        x, y = self.pick((3, 4)), self.pick((3, 4))
        v = self.draw(st.sampled_from(self.variables))
        writes = self.draw(st.booleans())
        choice = ab.ops.greater(ab.ops.max(x), self.draw(st.sampled_from([-100, 3, 100])))
        taken = ab.cond(choice, lambda: v.assign(x - v * 2) if writes else x - v * 2, lambda: ab.ops.relu(y) + x)
        self.effects += [taken.operation] if taken.operation.writes else []
        return taken

    def add(self) -> None:
        kinds = ["elementwise"] * 8 + ["outside"] * 2 + ["write"] * 2 + ["read", "loop", "branch"]
        kind = self.draw(st.sampled_from(kinds))
        if kind == "elementwise":
            tensor = self.elementwise(self.pick())
        elif kind == "read":
            tensor = self.draw(st.sampled_from(self.variables)).value
        else:
            tensor = {"outside": self.outside, "write": self.write, "loop": self.loop, "branch": self.branch}[kind]()
        self.tensors.append(tensor)


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_random_programs(dtype: str):
    """Exact operations only (float64 may overflow to infinity and NaN), so values are compared exactly."""

    @settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        with Graph().as_default():
            builder = _Builder(data.draw, dtype)  # pyright: ignore[reportArgumentType]
            for _ in range(data.draw(st.integers(3, 30))):
                builder.add()
            chosen = data.draw(st.lists(st.sampled_from(builder.tensors), max_size=4, unique=True))
            targets = [*chosen, builder.tensors[-1], *builder.effects]
            Check(targets, builder.feeds, builder.variables)

    check()


# Each example compiles kernels of its own.
@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_random_transcendental_chains(data: st.DataObject):
    functions = [ab.ops.tanh, ab.ops.sigmoid, ab.ops.exp, ab.ops.expm1, ab.ops.softplus]
    functions += [lambda x: ab.ops.log1p(x * x), lambda x: ab.ops.log(x * x + 1), lambda x: ab.ops.sqrt(x * x + 1)]
    with Graph().as_default():
        x = ab.placeholder((3, 4), "float32")
        v = variable(0.5)
        tensors: list[Tensor] = [x, v.value]
        for _ in range(data.draw(st.integers(2, 8))):
            function = data.draw(st.sampled_from(functions))
            inner = function(data.draw(st.sampled_from(tensors[-3:])) * 0.5)
            tensors.append(ab.ops.tanh(inner) - data.draw(st.sampled_from(tensors)) * 0.5)
        write = v.assign(tensors[-1] * 0.5 - v)
        (gradient,) = ab.gradients(ab.ops.sum(tensors[-1]), [x], unconnected_gradients="zero")
        Check([tensors[-1], write, gradient], {x: X / 6 - 1}, [v], tolerance=1e-4)


def test_one_program_is_fused_in_one_way():
    """Addresses must not decide the order of sets: else a resumed run would not repeat its bits."""

    def source() -> str:
        rng = np.random.default_rng(3)
        with ab.Graph().as_default():
            values: list[Tensor] = [ab.placeholder((4,), "float32", f"x{k}") for k in range(3)]
            for _ in range(200):
                a, b = (values[int(k)] for k in rng.integers(max(0, len(values) - 30), len(values), 2))
                kind = rng.integers(4)
                values.append([a + b, a * b, ab.ops.tanh(a - b), ab.ops.cumsum(a) + b][kind])
            return ab.explain(values[-5:], lines=False)

    garbage = [object() for _ in range(1000)]
    first = source()
    del garbage[::2]
    assert [source() for _ in range(2)] == [first] * 2


def test_equal_bodies_are_fused_once_and_keep_their_own_lines(monkeypatch: pytest.MonkeyPatch):
    """Bodies that differ in a number, or in what is wanted of them, are fused by themselves."""
    seen: list[int] = []
    group = fuse_module.Block.group

    def counted(block: Any) -> Any:
        seen.append(len(block.operations))
        return group(block)

    monkeypatch.setattr(fuse_module.Block, "group", counted)
    x = ab.placeholder((64,), "float32", "x")

    def loop(factor: float, start: Any) -> Any:
        return ab.while_loop(lambda i, _: i < 50, lambda i, s: (i + 1, ops.tanh(s * factor) + x * s), (0, start))[1]

    ends = [loop(0.5, x), loop(0.5, x + 1.0), loop(0.25, x - 1.0), loop(0.5, x * 2.0)]
    lines = [
        ab.while_loop(lambda i, _: i < 50, lambda i, s: (i + 1, ops.exp(s * 0.5) * x), (0, x))[1],
        ab.while_loop(lambda i, _: i < 50, lambda i, s: (i + 1, ops.exp(s * 0.5) * x), (0, x))[1],
    ]
    step = prepared([*ends, *lines], [x])
    fused = [o for o in all_operations(step.operations) if isinstance(o.op, Fused) and isinstance(o.graph, Region)]
    assert len(fused) == 6
    assert len({o.location.line for o in fused if o.location is not None}) == 3
    assert len([size for size in seen if size > 3]) <= 4  # three kinds of bodies, and the step around them
    value = np.linspace(-1.0, 1.0, 64, dtype="float32")
    found = ab.Session().run([*ends, *lines], {x: value})
    expected = Interpreter().run(x.graph, [*ends, *lines], {x: value})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
