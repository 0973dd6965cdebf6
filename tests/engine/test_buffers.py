"""Memory of fused results: memory that is shared, and memory that must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.fusion_checks import Check, X, variable

import anabranch as ab
from anabranch.engine.graph import Graph, Tensor
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x(graph: Graph) -> Tensor:
    return ab.placeholder((3, 4), "float32", "x")


# --- results in memory that exists ----------------------------------------------------------------------------------


def in_place(program: Program, name: str = "v") -> bool:
    """Test whether a kernel writes straight into the value of the variable."""
    lines = program.source.splitlines()
    written = {line.split(" = ")[0].strip() for line in lines if line.endswith(f"= {name}._value")}
    return any("kernel" in line and any(f", ({target}," in line for target in written) for line in lines)


def test_updates_in_place(x: Tensor):
    v = variable(1)
    check = Check([v.assign_sub(x * 0.5 - 1).operation], {x: X}, [v])
    assert in_place(check.program)
    held = v.stored_value()
    check.program(X)
    assert v.stored_value() is held


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
    old = v.value
    check = Check([old, v.assign(old * 2 + x)], {x: X}, [v])
    assert not in_place(check.program)


def test_the_old_value_is_used_later(x: Tensor):
    v = variable(1)
    old = v.value
    write = v.assign(old * 2 + x)
    later = ab.ops.matmul(old, ab.ops.transpose(write))
    check = Check([later], {x: X}, [v])
    assert not in_place(check.program)


def test_the_old_value_is_read_after_the_new_one_is_known(x: Tensor):
    v = variable(1)
    value = x * 2 + 1
    old = v.value
    write = v.assign(value)
    Check([ab.ops.i0(old), write], {x: X}, [v])
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
    later = ab.ops.sum(ab.ops.i0(old), axis=0)
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
    a = ab.ops.i0(x)
    view = ab.ops.transpose(a)
    y = ab.ops.relu(a * 2 - 1)
    z = ab.ops.matmul(y, view)
    Check([z], {x: X})
    Check([z, view], {x: X})


def test_an_operand_lives_on_in_a_loop(x: Tensor):
    a = ab.ops.i0(x)
    y = ab.ops.relu(a * 2 - 1)
    _, z = ab.while_loop(lambda i, b: i < 3, lambda i, b: (i + 1, b * 0.5 + 1), (0, a))
    w = ab.ops.relu(y * 3 - 2)
    Check([z, w], {x: X})


def test_an_operand_lives_on_in_a_tensor_array(x: Tensor):
    a = ab.ops.i0(x)
    array = ab.TensorArray("float32", 2, element_shape=(3, 4)).write(0, a)
    y = ab.ops.relu(a * 2 - 1)
    array = array.write(1, y)
    z = y * 3 - 2
    Check([array.stack(), z], {x: X})


def test_dying_operands_are_reused(x: Tensor):
    a = ab.ops.i0(x)
    y = ab.ops.relu(a * 2 - 1)
    check = Check([y], {x: X})
    assert "np.empty" not in check.program.source


def test_a_dying_operand_in_fortran_order(x: Tensor):
    """Its buffer is given to the result, though kernels write in C order only."""
    a = ab.ops.i0(ab.ops.transpose(x))
    y = ab.ops.relu(a * 2 - 1)
    check = Check([y], {x: X})
    assert "np.empty" not in check.program.source


def test_a_variable_in_fortran_order(x: Tensor):
    v = ab.Variable(np.ones((4, 3), "float32"), name="v")
    fill = v.assign(ab.ops.i0(ab.ops.transpose(x)))
    update = v.assign(v * 2 - 1)
    check = Check([update.operation], {}, [v])
    assert in_place(check.program)
    ab.Session().run(fill, {x: X})
    assert not v.stored_value().flags.c_contiguous
    check.program()
    np.testing.assert_allclose(v.numpy(), np.i0(X).T * 2 - 1, rtol=1e-6)


def test_two_variables_are_assigned_one_value(x: Tensor):
    v, w = variable(1, "v"), variable(2, "w")
    value = v * w + x
    Check([v.assign(value).operation, w.assign(value).operation], {x: X / 9}, [v, w])
    Check([v.assign(x), w.assign(x)], {x: X / 9}, [v, w])
    unfused = ab.ops.i0(x)
    Check([v.assign(unfused), w.assign(unfused)], {x: X / 9}, [v, w])
    Check([v.assign(unfused).operation, w.assign(unfused).operation], {x: X / 9}, [v, w])


def test_the_second_of_two_variables_is_updated_in_place(x: Tensor):
    """The first keeps its old value for the caller, so it needs a copy of what is in the second."""
    v, w = variable(1, "v"), variable(2, "w")
    old = v.value
    value = x * 2 + 1
    check = Check([old, v.assign(value).operation, w.assign(value).operation], {x: X}, [v, w])
    assert in_place(check.program, "w")
    Check([old, v.assign(value), w.assign(value), value], {x: X}, [v, w])


def test_variables_are_swapped(x: Tensor):
    v, w = variable(1, "v"), variable(2, "w")
    old_v, old_w = v.value, w.value
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
    _, z = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 - 1), (0, v.value))
    Check([z, v.assign(v * 0.5 + z)], {x: X / 9}, [v])


def test_an_untouched_loop_variable_is_the_old_value(x: Tensor):
    """A loop may pass the value of a variable through: its result is that value itself."""
    v = variable(1)
    _, same = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a), (0, v.value))
    write = v.assign(v * 2 + x)
    Check([same, write], {x: X}, [v])
    Check([ab.ops.i0(same), write], {x: X}, [v])


def test_constants_are_not_overwritten(x: Tensor):
    table = ab.constant(np.arange(12, dtype="float32").reshape(3, 4))
    v = variable(1)
    y = ab.ops.relu(table * 2 - x)
    Check([y, v.assign(table).operation, v.assign_add(table * 2 - 1)], {x: X}, [v])
    Check([table, y], {x: X})


def test_an_assignment_that_fails_later_in_the_step(graph: Graph, x: Tensor):
    """Effects before the failing operation have happened, as everywhere."""
    v = variable(1)
    write = v.assign(v * 2 + 1).operation
    with ab.control_dependencies([write]):
        index = ab.placeholder((), "int32", "index")
        row = x[index]
    with pytest.raises(IndexError):
        ab.Session(graph).run(row, {x: X, index: 7})
    np.testing.assert_array_equal(v.numpy(), np.full((3, 4), 3))
