"""Fusion of elementwise chains, and where fused results are written: structure, values, effects, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.engine.graph import Graph, Operation, Tensor
from anabranch.engine.ops.fused import Fused
from anabranch.engine.passes.fuse import all_operations
from anabranch.engine.passes.prepare import Step, prepare
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.kernels.rule import fusion_rule
from anabranch.engine.runtime.program import Program

X = np.arange(1, 13, dtype="float32").reshape(3, 4)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x(graph: Graph) -> Tensor:
    return ab.placeholder((3, 4), "float32", "x")


# --- helpers --------------------------------------------------------------------------------------------------------


def prepared(targets: Sequence[Tensor | Operation], feeds: Sequence[Tensor]) -> Step:
    rule = fusion_rule()
    assert rule is not None
    return prepare(targets[0].graph, targets, feeds, rule=rule)


def groups(targets: Sequence[Tensor | Operation], feeds: Sequence[Tensor] = ()) -> list[str]:
    """The fused operations of a step, each as the names of its ops; those of loops and branches behind their owner."""
    found = all_operations(prepared(targets, feeds).operations)
    return [" ".join(step.type_name for step, _ in o.op.steps) for o in found if isinstance(o.op, Fused)]


def variable(value: Any = 0.0, name: str = "v") -> ab.Variable:
    return ab.Variable(np.broadcast_to(np.float32(value), (3, 4)) + np.zeros((3, 4), "float32"), name=name)


class Check:
    """A compiled step against the interpreter, run several times: fetches, variables, and whose memory is whose."""

    def __init__(
        self,
        targets: Sequence[Tensor | Operation],
        feeds: dict[Tensor, Any] | None = None,
        variables: Sequence[ab.Variable] = (),
        tolerance: float = 0,
    ) -> None:
        self.targets = list(targets)
        self.feeds = feeds or {}
        self.variables = variables
        self.tolerance = tolerance
        self.initial = [v.numpy() for v in variables]
        self.program = Program(targets[0].graph, self.targets, list(self.feeds))
        expected = self._runs(lambda fed: Interpreter().run(targets[0].graph, self.targets, fed))
        actual = self._runs(lambda fed: self.program(*fed.values()), mutate=True)
        for run, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
            for what, (value, other) in enumerate(zip(found, wanted, strict=True)):
                self._compare(value, other, f"value {what} of run {run}\n{self.program.source}")

    def _runs(self, run: Callable[[dict[Tensor, Any]], Sequence[Any]], mutate: bool = False) -> list[list[Any]]:
        """What three runs in a row fetch, and the variables behind each."""
        for v, value in zip(self.variables, self.initial, strict=True):
            v.write_value(value.copy())
        found: list[list[Any]] = []
        kept: list[tuple[Any, Any]] = []
        for _ in range(3):
            fed = {tensor: np.array(value) for tensor, value in self.feeds.items()}
            values = [value for value in run(fed) if value is not None]
            state = [v.numpy() for v in self.variables]
            found.append([*[np.array(value) for value in values], *state])
            for tensor, value in fed.items():
                np.testing.assert_array_equal(value, self.feeds[tensor], err_msg="a feed was overwritten")
            arrays = [value for value in values if isinstance(value, np.ndarray)]
            if mutate:
                self._check_memory(arrays, state, list(fed.values()))
            kept += [(array, array.copy()) for array in arrays]
        for array, before in kept:
            np.testing.assert_array_equal(array, before, err_msg="a later run changed what was fetched before")
        return found

    def _check_memory(self, fetched: list[Any], state: list[Any], fed: list[Any]) -> None:
        held = [v.read_value() for v in self.variables]
        for position, value in enumerate(held):
            assert not any(np.may_share_memory(value, other) for other in held[:position]), "two variables share memory"
        for array in fetched:
            assert not any(np.shares_memory(array, other) for other in (*held, *fed)), "a fetch shares memory"
        for v, before in zip(self.variables, state, strict=True):
            np.testing.assert_array_equal(v.numpy(), before)

    def _compare(self, value: Any, expected: Any, message: str) -> None:
        assert value.dtype == expected.dtype, message
        if self.tolerance:
            np.testing.assert_allclose(value, expected, self.tolerance, self.tolerance, err_msg=message)
        else:
            np.testing.assert_array_equal(value, expected, err_msg=message)


# --- which operations are fused -------------------------------------------------------------------------------------


def test_chain(x: Tensor):
    y = ab.ops.relu(x * 2 + 1) - 3
    assert groups([y], [x]) == ["multiply add relu subtract"]
    Check([y], {x: X})


def test_broadcast_operands(x: Tensor):
    row, column, scalar = (ab.placeholder(shape, "float32") for shape in ((4,), (3, 1), ()))
    y = (x * row + column) * scalar
    assert groups([y], [x, row, column, scalar]) == ["multiply add multiply"]
    Check([y], {x: X, row: X[0], column: X[:, :1], scalar: np.float32(3)})


def test_casts_and_comparisons(x: Tensor):
    y = ab.ops.where(ab.ops.greater(x, 5), ab.ops.cast(x, "float64"), -1)
    assert groups([y], [x]) == ["greater cast where"]
    Check([y], {x: X})


def test_single_ops_that_numpy_has_stay(x: Tensor):
    assert groups([x + 1], [x]) == []
    assert groups([ab.ops.cast(x, "float64")], [x]) == []


def test_single_ops_that_numpy_computes_in_passes(x: Tensor):
    assert groups([ab.ops.sigmoid(x)], [x]) == ["sigmoid"]
    Check([ab.ops.sigmoid(x)], {x: X}, tolerance=1e-6)


def test_unknown_shapes_and_scalars_are_not_fused():
    open_ended = ab.placeholder((None, 4), "float32")
    scalar = ab.placeholder((), "float32")
    one = ab.placeholder((1, 1), "float32")
    for tensor in (open_ended, scalar, one):
        assert groups([ab.ops.tanh(tensor * 2 + 1)], [tensor]) == []


def test_unsupported_ops_split_groups(x: Tensor):
    y = ab.ops.sin(x * 2 + 1) * 3 - 1
    assert groups([y], [x]) == ["multiply add", "multiply subtract"]
    Check([y], {x: X})


def test_shapes_split_groups(x: Tensor):
    row = ab.placeholder((4,), "float32", "row")
    y = (row * 2 + 1) * x + x
    assert groups([y], [x, row]) == ["multiply add", "multiply add"]
    Check([y], {x: X, row: X[0]})


def test_fed_values_inside_a_chain(x: Tensor):
    middle = x * 2 + 1
    y = middle * 3 - 1
    assert groups([y], [middle]) == ["multiply subtract"]
    Check([y, middle], {middle: X})


def test_groups_merge_where_they_meet(x: Tensor):
    y = ab.placeholder((3, 4), "float32", "y")
    left, right = x * 2 + 1, y * 3 - 1
    joined = left * right
    assert groups([joined], [x, y]) == ["multiply add multiply subtract multiply"]
    Check([joined], {x: X, y: -X})


def test_values_that_are_needed_outside_are_outputs(x: Tensor):
    middle = x * 2 + 1
    y = ab.ops.relu(middle - 3)
    total = ab.ops.sum(middle)
    step = prepared([y, total], [x])
    assert groups([y, total], [x]) == ["multiply add subtract relu"]
    (fused,) = [operation for operation in step.operations if isinstance(operation.op, Fused)]
    assert len(fused.outputs) == 2
    Check([y, total, middle], {x: X})


def test_an_outside_operation_between_members(x: Tensor):
    """The chain leads out of the group (a matrix product) and in again: it would be a cycle."""
    inside = x * 2 + 1
    outside = ab.ops.matmul(inside, np.ones((4, 4), "float32"))
    y = inside - outside * 3
    found = groups([y], [x])
    assert found == ["multiply add", "multiply subtract"]
    Check([y], {x: X})


def test_a_way_around_through_another_group(x: Tensor):
    first = x + 1
    row = ab.ops.sum(first * 2, axis=0) * 3 - 1  # another shape: a group between
    y = first * row - first
    for group in groups([y], [x]):
        assert "add multiply multiply subtract" not in group
    Check([y, row], {x: X})


def test_groups_do_not_merge_around_an_outside_operation():
    """`where` joins the last group; then the first one joins, on which the second depends through the sine."""
    x, y = (ab.placeholder((3, 4), "float32", name) for name in "xy")
    first = x + 1
    second = ab.ops.sin(first) * 2 + 1
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


def test_a_long_chain_of_one_value(x: Tensor):
    y = x
    for k in range(150):
        y = ab.ops.relu(y - k * 0.01)
    assert sum(len(group.split()) for group in groups([y], [x])) == 300
    Check([y], {x: X * 20})


def test_equal_operations_are_computed_once(x: Tensor):
    y = (x * 2 + 1) * (x * 2 + 1)
    assert groups([y], [x]) == ["multiply add multiply"]
    Check([y], {x: X})


def test_control_dependency_on_a_member(x: Tensor):
    """An operation ordered behind the middle of a chain comes behind the whole kernel, which is not computed twice."""
    middle = x * 2 + 1
    y = ab.ops.relu(middle)
    with ab.control_dependencies([middle]):
        z = ab.ops.sin(x)
    assert [o.type for o in prepared([y, z], [x]).operations if o.type == "multiply"] == []
    Check([y, z], {x: X})


def test_operations_as_targets(x: Tensor):
    y = x * 2 + 1
    Check([y.operation, y], {x: X})
    Check([y.operation, x.operation, ab.ops.relu(y)], {x: X})
    Check([y.operation], {y: X})


# --- loops and branches ---------------------------------------------------------------------------------------------


def test_inside_a_loop(x: Tensor):
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ab.ops.relu(a * x - 1)), (0, x))
    assert groups([y], [x]) == ["multiply subtract relu"]
    Check([y], {x: X / 9})


def test_in_a_condition(x: Tensor):
    _, y = ab.while_loop(lambda i, a: ab.ops.all(a * 2 - 1 < 50), lambda i, a: (i + 1, a + 3), (0, x))
    assert groups([y], [x]) == ["multiply subtract less"]
    Check([y], {x: X})


def test_inside_branches(x: Tensor):
    positive = ab.placeholder((), "bool", "positive")
    y = ab.cond(positive, lambda: x * 2 + 1, lambda: -x * 3)
    assert groups([y], [x, positive]) == ["multiply add", "negative multiply"]
    for choice in (True, False):
        Check([y], {x: X, positive: np.bool_(choice)})


def test_nested_loops(x: Tensor):
    def outer(i: Tensor, a: Tensor) -> Any:
        _, inner = ab.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * 0.5 + a), (0, a - 1))
        return i + 1, inner * 0.5 - x

    _, y = ab.while_loop(lambda i, a: i < 4, outer, (0, x))
    assert len(groups([y], [x])) == 2
    Check([y], {x: X})


def test_a_value_captured_by_a_loop_is_an_output(x: Tensor):
    a = x * 2 + 1
    b = a - 3
    _, y = ab.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c + a), (0, b))
    Check([y, b], {x: X})


def test_histories_that_gradients_ask_for(x: Tensor):
    """The values inside a fused loop body that the backward loop needs become outputs of the kernel."""
    _, y = ab.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, ab.ops.tanh(a * x) * 2 - a), (0, x))
    (gradient,) = ab.gradients(ab.ops.sum(y * y), [x])
    assert any("tanh" in group for group in groups([gradient], [x]))
    Check([y, gradient], {x: X / 20}, tolerance=2e-4)


def test_second_order_through_a_loop(x: Tensor):
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ab.ops.tanh(a * x + 0.5)), (0, x))
    (first,) = ab.gradients(ab.ops.sum(y * y), [x])
    (second,) = ab.gradients(ab.ops.sum(first * first), [x])
    Check([first, second], {x: X / 20}, tolerance=5e-4)


def test_saved_values_of_branches(x: Tensor):
    positive = ab.placeholder((), "bool", "positive")
    y = ab.cond(positive, lambda: ab.ops.tanh(x * 2) * x, lambda: ab.ops.sigmoid(x) - 1)
    (gradient,) = ab.gradients(ab.ops.sum(y), [x])
    for choice in (True, False):
        Check([y, gradient], {x: X / 9, positive: np.bool_(choice)}, tolerance=1e-5)


# --- effects keep program order -------------------------------------------------------------------------------------


def test_a_read_behind_a_write_of_the_same_chain(x: Tensor):
    """read, compute, assign, read, compute: the second half must not join the first."""
    v = variable(1)
    y = ab.ops.relu(x * 2 - v)
    write = v.assign(y)
    z = (y + 1) * v
    Check([z, write], {x: X}, [v])
    Check([z, write.operation, y], {x: X}, [v])


def test_old_and_new_values(x: Tensor):
    v = variable(1)
    old = v.value()
    before = old * 2 + x
    write = v.assign(before * 0.5 - 1)
    after = v * 2 + x
    both = before - after
    Check([write, both], {x: X}, [v])
    Check([old, before, write, v.value(), after, both], {x: X}, [v])


def test_many_interleavings(x: Tensor):
    v, w = variable(1, "v"), variable(2, "w")
    seen = [v.value(), v * 2 + x]
    for k in range(4):
        seen.append(v.assign(v * 0.5 + w - k))
        seen.append(w.assign_add(v * 0.25 - seen[-2]))
        seen.append(v - w * 2 + seen[1])
    Check(seen, {x: X}, [v, w])
    effects = [tensor.operation for tensor in seen if tensor.operation.writes]
    for tensor in seen:
        Check([tensor, *effects], {x: X}, [v, w])


def test_a_branch_that_writes_between_members(x: Tensor):
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


def test_a_loop_that_writes_between_members(x: Tensor):
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
    assert session.run(zeros.operation, {fed: np.ones((3, 4))}) is None
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 2))


def test_control_dependencies_of_what_is_simplified(graph: Graph):
    """Where the shapes agree, summing to a shape is no work, but what waits for it still happens first."""
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


# --- results in memory that exists ----------------------------------------------------------------------------------


def in_place(program: Program, name: str = "v") -> bool:
    """Whether a kernel writes straight into the value of the variable."""
    lines = program.source.splitlines()
    written = {line.split(" = ")[0].strip() for line in lines if line.endswith(f"= {name}._value")}
    return any("kernel" in line and any(f", ({target}," in line for target in written) for line in lines)


def test_updates_in_place(x: Tensor):
    v = variable(1)
    check = Check([v.assign_sub(x * 0.5 - 1).operation], {x: X}, [v])
    assert in_place(check.program)
    held = v.read_value()
    check.program(X)
    assert v.read_value() is held


def test_the_value_that_was_assigned_is_fetched(x: Tensor):
    v = variable(1)
    value = v * 2 + x
    check = Check([value, v.assign(value)], {x: X}, [v])
    assert in_place(check.program)
    fetched, written = check.program(X)
    before = v.numpy()
    fetched[:] = 99
    written[:] = 98
    np.testing.assert_array_equal(v.numpy(), before)


def test_the_old_value_is_fetched(x: Tensor):
    v = variable(1)
    old = v.value()
    check = Check([old, v.assign(old * 2 + x)], {x: X}, [v])
    assert not in_place(check.program)


def test_the_old_value_is_used_later(x: Tensor):
    v = variable(1)
    old = v.value()
    write = v.assign(old * 2 + x)
    later = ab.ops.matmul(old, ab.ops.transpose(write))
    check = Check([later], {x: X}, [v])
    assert not in_place(check.program)


def test_the_old_value_is_read_after_the_new_one_is_known(x: Tensor):
    v = variable(1)
    value = x * 2 + 1
    old = v.value()
    write = v.assign(value)
    Check([ab.ops.sin(old), write], {x: X}, [v])
    Check([old, write.operation], {x: X}, [v])


@pytest.mark.parametrize("view", ["reshape", "transpose", "rows", "identity"])
def test_a_view_of_the_old_value_is_used_later(view: str, x: Tensor):
    v = variable(1)
    views: dict[str, Callable[[Any], Tensor]] = {
        "reshape": lambda a: ab.ops.reshape(a, (4, 3)),
        "transpose": lambda a: ab.ops.transpose(a),
        "rows": lambda a: ab.ops.convert_to_tensor(a)[1:],
        "identity": lambda a: ab.ops.stop_gradient(a),
    }
    old = views[view](v)
    write = v.assign(v * 2 + x)
    later = ab.ops.sum(ab.ops.sin(old), axis=0)
    Check([later, write.operation], {x: X}, [v])
    Check([old, write.operation], {x: X}, [v])


def test_a_view_of_the_old_value_is_an_operand(x: Tensor):
    """Element i of the result would be written before element j of the view is read."""
    v = ab.Variable(np.arange(9, dtype="float32").reshape(3, 3), name="v")
    y = ab.placeholder((3, 3), "float32", "y")
    write = v.assign(ab.ops.transpose(v) * 2 + y)
    Check([write], {y: np.ones((3, 3), "float32")}, [v])
    write = v.assign(v * v[0] - y)
    Check([write], {y: np.ones((3, 3), "float32")}, [v])
    write = v.assign(v[0] * y + 1)
    Check([write], {y: np.full((3, 3), 2, "float32")}, [v])


def test_an_operand_lives_on_in_a_view(x: Tensor):
    a = ab.ops.sin(x)
    view = ab.ops.transpose(a)
    y = ab.ops.relu(a * 2 - 1)
    z = ab.ops.matmul(y, view)
    Check([z], {x: X})
    Check([z, view], {x: X})


def test_an_operand_lives_on_in_a_loop(x: Tensor):
    a = ab.ops.sin(x)
    y = ab.ops.relu(a * 2 - 1)
    _, z = ab.while_loop(lambda i, b: i < 3, lambda i, b: (i + 1, b * 0.5 + 1), (0, a))
    w = ab.ops.relu(y * 3 - 2)
    Check([z, w], {x: X})


def test_an_operand_lives_on_in_a_tensor_array(x: Tensor):
    a = ab.ops.sin(x)
    array = ab.TensorArray("float32", 2, element_shape=(3, 4)).write(0, a)
    y = ab.ops.relu(a * 2 - 1)
    array = array.write(1, y)
    z = y * 3 - 2
    Check([array.stack(), z], {x: X})


def test_dying_operands_are_reused(x: Tensor):
    a = ab.ops.sin(x)
    y = ab.ops.relu(a * 2 - 1)
    check = Check([y], {x: X})
    assert "np.empty" not in check.program.source


def test_a_dying_operand_in_fortran_order(x: Tensor):
    """Its buffer is given to the result, though kernels write in C order only."""
    a = ab.ops.sin(ab.ops.transpose(x))
    y = ab.ops.relu(a * 2 - 1)
    check = Check([y], {x: X})
    assert "np.empty" not in check.program.source


def test_a_variable_in_fortran_order(x: Tensor):
    v = ab.Variable(np.ones((4, 3), "float32"), name="v")
    fill = v.assign(ab.ops.sin(ab.ops.transpose(x)))
    update = v.assign(v * 2 - 1)
    check = Check([update.operation], {}, [v])
    assert in_place(check.program)
    ab.Session().run(fill, {x: X})
    assert not v.read_value().flags.c_contiguous
    check.program()
    np.testing.assert_array_equal(v.numpy(), np.sin(X).T * 2 - 1)


def test_two_variables_are_assigned_one_value(x: Tensor):
    v, w = variable(1, "v"), variable(2, "w")
    value = v * w + x
    Check([v.assign(value).operation, w.assign(value).operation], {x: X / 9}, [v, w])
    Check([v.assign(x), w.assign(x)], {x: X / 9}, [v, w])
    unfused = ab.ops.sin(x)
    Check([v.assign(unfused), w.assign(unfused)], {x: X / 9}, [v, w])
    Check([v.assign(unfused).operation, w.assign(unfused).operation], {x: X / 9}, [v, w])


def test_the_second_of_two_variables_is_updated_in_place(x: Tensor):
    """The first keeps its old value for the caller, so it needs a copy of what lies in the second."""
    v, w = variable(1, "v"), variable(2, "w")
    old = v.value()
    value = x * 2 + 1
    check = Check([old, v.assign(value).operation, w.assign(value).operation], {x: X}, [v, w])
    assert in_place(check.program, "w")
    Check([old, v.assign(value), w.assign(value), value], {x: X}, [v, w])


def test_variables_are_swapped(x: Tensor):
    v, w = variable(1, "v"), variable(2, "w")
    old_v, old_w = v.value(), w.value()
    Check([v.assign(old_w).operation, w.assign(old_v).operation], {}, [v, w])
    Check([v.assign(old_w * 2 + 1).operation, w.assign(old_v * 2 - 1).operation], {}, [v, w])


def test_one_variable_is_assigned_twice(x: Tensor):
    v = variable(1)
    first = v.assign(v * 2 + x)
    second = v.assign(v * 3 - x)
    Check([first.operation, second.operation], {x: X / 9}, [v])
    Check([first, second], {x: X / 9}, [v])
    value = x * 2 + 1
    Check([v.assign(value).operation, v.assign(value - v).operation, v.assign(value)], {x: X / 9}, [v])


def test_a_read_that_a_loop_captures(x: Tensor):
    v = variable(1)
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * v - 1), (0, x))
    write = v.assign(v * 0.5 + x)
    Check([y, write], {x: X / 9}, [v])
    _, z = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 - 1), (0, v.value()))
    Check([z, v.assign(v * 0.5 + z)], {x: X / 9}, [v])


def test_an_untouched_loop_variable_is_the_old_value(x: Tensor):
    """A loop may pass the value of a variable through: its result is that value itself."""
    v = variable(1)
    _, same = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a), (0, v.value()))
    write = v.assign(v * 2 + x)
    Check([same, write], {x: X}, [v])
    Check([ab.ops.sin(same), write], {x: X}, [v])


def test_constants_are_not_overwritten(x: Tensor):
    table = ab.constant(np.arange(12, dtype="float32").reshape(3, 4))
    v = variable(1)
    y = ab.ops.relu(table * 2 - x)
    Check([y, v.assign(table).operation, v.assign_add(table * 2 - 1)], {x: X}, [v])
    Check([table, y], {x: X})


def test_an_assignment_that_fails_later_in_the_step(graph: Graph, x: Tensor):
    """What comes before the failing operation has happened, as everywhere."""
    v = variable(1)
    write = v.assign(v * 2 + 1).operation
    with ab.control_dependencies([write]):
        index = ab.placeholder((), "int32", "index")
        row = x[index]
    with pytest.raises(IndexError):
        ab.Session(graph).run(row, {x: X, index: 7})
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 3))


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
            tensor = self.draw(st.sampled_from(self.variables)).value()
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


@given(st.data())
def test_random_transcendental_chains(data: st.DataObject):
    functions = [ab.ops.tanh, ab.ops.sigmoid, ab.ops.exp, ab.ops.expm1, ab.ops.softplus]
    functions += [lambda x: ab.ops.log1p(x * x), lambda x: ab.ops.log(x * x + 1), lambda x: ab.ops.sqrt(x * x + 1)]
    with Graph().as_default():
        x = ab.placeholder((3, 4), "float32")
        v = variable(0.5)
        tensors: list[Tensor] = [x, v.value()]
        for _ in range(data.draw(st.integers(2, 8))):
            function = data.draw(st.sampled_from(functions))
            inner = function(data.draw(st.sampled_from(tensors[-3:])) * 0.5)
            tensors.append(ab.ops.tanh(inner) - data.draw(st.sampled_from(tensors)) * 0.5)
        write = v.assign(tensors[-1] * 0.5 - v)
        (gradient,) = ab.gradients(ab.ops.sum(tensors[-1]), [x], unconnected_gradients="zero")
        Check([tensors[-1], write, gradient], {x: X / 6 - 1}, [v], tolerance=1e-4)
