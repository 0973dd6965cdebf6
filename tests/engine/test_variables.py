"""Variables: values and assignments from Python and in graphs, program order, reads in loops, errors, aliasing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.graph import Graph, ReadVariable
from anabranch.engine.graph.graph import reset_default_graph
from anabranch.engine.runtime.interpreter import Interpreter


@pytest.fixture
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return ab.Session().run(fetches, feeds)


def interpret(fetches: Any, feeds: Any = None) -> Any:
    flat = fetches if isinstance(fetches, list) else [fetches]
    found = Interpreter().run(ab.get_default_graph(), flat, feeds)
    return found if isinstance(fetches, list) else found[0]


ROADS = pytest.mark.parametrize("road", [run, interpret])


# --- making them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_large_values_begin_at_a_cache_line(dtype: str):
    array = np.arange(300 * 400).reshape(300, 400).astype(as_dtype(dtype))
    for value in (array, array[:, ::2], array.T, np.asfortranarray(array)):
        variable = ab.Variable(value)
        for _ in range(2):
            found = variable.stored_value()
            assert found.ctypes.data % 64 == 0
            assert found.flags.c_contiguous
            assert found.flags.writeable
            assert not np.shares_memory(found, array)
            np.testing.assert_array_equal(found, value)
            variable.assign(value)


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (1.5, None, "float32"),
        (3, None, "int32"),
        (True, None, "bool"),
        ([1.0, 2.0], None, "float32"),
        (np.zeros(2), None, "float64"),
        (np.int8(1), None, "int8"),
        (1, "float16", "float16"),
        ([1, 2], "float32", "float32"),
    ],
)
def test_dtype(value: Any, dtype: Any, found: str):
    v = ab.Variable(value, dtype=dtype)

    assert v.dtype == found
    assert v.numpy().dtype == found


def test_what_a_variable_knows():
    v = ab.Variable([[1.0, 2.0, 3.0]], name="weights", trainable=False)

    assert (v.shape, v.ndim, v.size, v.nbytes, v.trainable) == ((1, 3), 2, 3, 12, False)
    assert repr(v) == "<Variable weights float32[1,3]>"
    assert len(v) == 1
    np.testing.assert_array_equal(np.asarray(v), [[1, 2, 3]])
    assert np.asarray(v, dtype="int64").dtype == "int64"
    assert float(ab.Variable(2.5)) == 2.5
    assert int(ab.Variable(2.5)) == 2


def test_initializers():
    v = ab.Variable(lambda shape, dtype: np.full(shape, 7, dtype), shape=(2, 3), dtype="float64")
    w = ab.Variable(lambda: [1.0, 2.0])

    assert (v.shape, v.dtype, v.numpy()[1, 2]) == ((2, 3), "float64", 7)
    assert w.numpy().tolist() == [1, 2]


def test_a_variable_may_begin_as_another_or_as_a_tensor(graph: Graph):
    v = ab.Variable([1.0, 2.0])
    w = ab.Variable(v)
    u = ab.Variable(ab.constant(2.0) * 3)
    v.write_value(np.zeros(2, "float32"))

    assert w.numpy().tolist() == [1, 2]
    assert u.numpy() == 6


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"Variable 'w': the initial value has shape \[2\], but shape=\[3\]"):
        ab.Variable([1.0, 2.0], shape=(3,), name="w")


def test_truth_comparison_and_hash():
    v, w = ab.Variable(1.0), ab.Variable(1.0)
    assert bool(v)
    assert not bool(ab.Variable(0))
    with pytest.raises(ValueError, match="no one truth value"):
        bool(ab.Variable([1.0, 2.0]))
    assert np.asarray(v == w).tolist() is True
    assert {v: 1, w: 2}[v] == 1
    with ab.Graph().as_default(), pytest.raises(TypeError, match="no truth value"):
        bool(v == w)


# --- from Python ----------------------------------------------------------------------------------------------------


def test_assignments_from_python_act_at_once():
    v = ab.Variable([1.0, 2.0])

    assert v.assign([3, 4]).tolist() == [3, 4]
    assert v.numpy().tolist() == [3, 4]
    assert v.assign_add([1, 1]).tolist() == [4, 5]
    assert v.assign_sub(np.array([0.5, 0.5])).tolist() == [3.5, 4.5]
    assert v.numpy().tolist() == [3.5, 4.5]
    assert v.numpy().dtype == "float32"
    v.assign_add(1)
    assert v.numpy().tolist() == [4.5, 5.5]


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda v: v.assign([1.0, 2.0, 3.0]), r"'v' has shape \[2\]; a value of shape \[3\]"),
        (lambda v: v.assign(1.0), r"a value of shape \[\]"),
        (lambda v: v.assign_add([[1.0, 2.0], [3.0, 4.0]]), r"a value of shape \[2,2\]"),
    ],
)
def test_shapes_from_python(act: Callable[[Any], Any], match: str):
    v = ab.Variable([1.0, 2.0], name="v")
    with pytest.raises(ValueError, match=match):
        act(v)
    assert v.numpy().tolist() == [1, 2]


def test_values_that_are_no_numbers():
    with pytest.raises(TypeError, match="can't become a tensor"):
        ab.Variable(1.0).assign(None)
    with pytest.raises(TypeError, match="rows differ"):
        ab.Variable([1.0]).assign([[1.0], [1.0, 2.0]])


def test_open_dimensions_may_change():
    v = ab.Variable(np.zeros((1, 2), "float32"), shape=(None, 2))
    v.assign(np.ones((5, 2)))

    assert v.shape == (None, 2)
    assert v.numpy().shape == (5, 2)
    with pytest.raises(ValueError, match=r"has shape \[\?,2\]; a value of shape \[5,3\]"):
        v.assign(np.ones((5, 3)))


def test_what_is_assigned_is_copied():
    array = np.zeros(2, "float32")
    v = ab.Variable(array)
    array[0] = 1
    assert v.numpy().tolist() == [0, 0]
    v.assign(array)
    array[1] = 1
    assert v.numpy().tolist() == [1, 0]
    v.numpy()[0] = 9
    np.asarray(v)[0] = 9
    assert v.numpy().tolist() == [1, 0]


def test_a_tensor_assigned_from_python_builds_an_operation_of_its_graph():
    with Graph().as_default() as graph:
        x = ab.placeholder((), name="x")
    v = ab.Variable(1.0)
    write = v.assign(x * x)

    assert write.graph is graph
    assert v.numpy() == 1
    assert ab.Session(graph).run(write, {x: 3.0}) == 9
    assert v.numpy() == 9


def test_the_default_graph_can_be_let_go():
    reset_default_graph()
    v = ab.Variable(1.0)
    before: Any = v + ab.placeholder(())
    reset_default_graph()
    x: Any = ab.placeholder(())

    total: Any = v + x
    assert total.graph is x.graph
    assert x.graph is not before.graph
    assert ab.Session().run(v + x, {x: 1.0}) == 2


# --- in graphs ------------------------------------------------------------------------------------------------------


@ROADS
def test_assignments_in_a_graph_wait_for_the_run(graph: Graph, road: Any):
    v = ab.Variable(1.0, name="v")
    write = v.assign(5.0)
    more = v.assign_add(2)

    assert v.numpy() == 1
    assert write.name == "v/assign:0"
    assert road(write) == 5
    assert v.numpy() == 5
    assert road([write, more]) == [5, 7]
    assert road(more) == 9


@ROADS
def test_program_order(graph: Graph, road: Any):
    v = ab.Variable(1.0)
    first = v * 1
    v_two = v.assign(2.0)
    second = v * 1
    v_three = v.assign_add(v * 10)
    third = v * 1

    assert road([third, v_three, second, v_two, first]) == [22, 22, 2, 2, 1]
    assert v.numpy() == 22


@ROADS
def test_writes_that_are_not_asked_for_do_not_run(graph: Graph, road: Any):
    v = ab.Variable(1.0)
    v.assign(2.0)
    after = v + 0

    assert road(after) == 1
    assert v.numpy() == 1


def test_reads_between_writes_are_one_operation(graph: Graph):
    v = ab.Variable(1.0)
    before, again = v.value, v.value
    v.assign_add(1.0)

    assert before is again
    assert v.value is not before


@ROADS
def test_a_swap(graph: Graph, road: Any):
    a, b = ab.Variable([1.0]), ab.Variable([2.0])
    old_a, old_b = a.value, b.value
    road([a.assign(old_b), b.assign(old_a)])

    assert (a.numpy().tolist(), b.numpy().tolist()) == ([2], [1])


def test_shapes_and_dtypes_in_graphs(graph: Graph):
    v = ab.Variable([1.0, 2.0], name="v")
    with pytest.raises(ValueError, match=r"Variable 'v' is float32\[2\]; a value float32\[3\] can't be assigned"):
        v.assign([1.0, 2.0, 3.0])
    assert run(v.assign(np.array([3, 4], "int64"))).tolist() == [3, 4]
    assert v.assign(ab.constant([1, 2])).dtype == "float32"


@ROADS
def test_a_shape_found_out_by_the_run_is_checked(graph: Graph, road: Any):
    v = ab.Variable([1.0, 2.0], name="v")
    x = ab.placeholder((None,), name="x")
    write = v.assign(x * 2)

    np.testing.assert_array_equal(road(write, {x: np.ones(2, "float32")}), [2, 2])
    with pytest.raises(ValueError, match=r"'v' .*\[2\]; a value .*\[3\] can't be assigned"):
        road(write, {x: np.ones(3, "float32")})
    assert v.numpy().tolist() == [2, 2]


@ROADS
def test_a_variable_that_grows(graph: Graph, road: Any):
    v = ab.Variable(np.zeros(0, "float32"), shape=(None,))
    grown = v.assign(ab.ops.concatenate([v, [1.0]]))

    assert grown.shape == (None,)
    assert [road(grown).tolist() for _ in range(3)] == [[1], [1, 1], [1, 1, 1]]


def test_variables_are_fetched_and_fed_through_their_reads(graph: Graph):
    v = ab.Variable([1.0, 2.0])
    y = v * 10

    assert run(v).tolist() == [1, 2]
    assert run([y, v], {v: [5.0, 6.0]})[0].tolist() == [50, 60]
    assert v.numpy().tolist() == [1, 2]


# --- reads in loops and branches ------------------------------------------------------------------------------------


def reads_inside(region_op: Any) -> int:
    return sum(isinstance(o.op, ReadVariable) for region in region_op.regions for o in region.operations)


def test_a_loop_reads_what_it_does_not_write_once(graph: Graph):
    v, n = ab.Variable(2.0), ab.placeholder((), "int32")
    _, y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y * v), (0, 1.0))
    (dv,) = ab.gradients(y, [v])

    assert reads_inside(y.operation.op) == 0
    assert run([y, dv], {n: 3}) == [8, 12]


@ROADS
def test_a_loop_reads_what_it_writes_anew(graph: Graph, road: Any):
    v, n = ab.Variable(1.0), ab.placeholder((), "int32")

    def body(i: Any, seen: Any) -> Any:
        before = v * 1
        v.assign_add(v)
        return i + 1, seen + before

    _, seen = ab.while_loop(lambda i, _: i < n, body, (0, 0.0))
    after = v + 0

    assert reads_inside(seen.operation.op) > 0
    assert road([seen, after], {n: np.int32(4)}) == [1 + 2 + 4 + 8, 16]
    assert v.numpy() == 16


@ROADS
def test_a_condition_sees_the_writes_of_the_body(graph: Graph, road: Any):
    v = ab.Variable(0.0)
    count = ab.while_loop(lambda i: v < 5, lambda i: i + ab.ops.cast(v.assign_add(2.0) > 0, "int32"), 0)

    assert road(count) == 3
    assert v.numpy() == 6


@ROADS
@pytest.mark.parametrize("taken", [True, False])
def test_only_the_branch_that_is_taken_writes(graph: Graph, road: Any, taken: bool):
    v, flag = ab.Variable(1.0), ab.placeholder((), "bool")

    def writes() -> Any:
        before = v + 0
        v.assign(7.0)
        return before + v

    y = ab.cond(flag, writes, lambda: v * 100)
    after = v + 0

    assert road([y, after], {flag: np.bool_(taken)}) == ([8, 7] if taken else [100, 1])


@ROADS
def test_writes_in_nested_loops(graph: Graph, road: Any):
    v = ab.Variable(0)

    def inner(j: Any, i: Any) -> Any:
        v.assign(v * 10 + i)
        return j + 1, i

    def outer(i: Any) -> Any:
        ab.while_loop(lambda j, _: j < 2, inner, (0, i))
        return i + 1

    last = ab.while_loop(lambda i: i < 4, outer, 1)

    assert road(last) == 4
    assert v.numpy() == 112233


def test_a_write_before_a_loop_and_a_read_inside(graph: Graph):
    v = ab.Variable(1.0)
    write = v.assign(3.0)
    _, y = ab.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + v), (0, 0.0))

    assert run([y, write]) == [6, 3]


# --- what is fetched never aliases state ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fetch",
    [
        lambda v: v,
        lambda v: v.value,
        lambda v: v.assign_add(np.zeros(3)),
        lambda v: ab.ops.stop_gradient(v),
        lambda v: ab.ops.reshape(v, (3, 1)),
        lambda v: ab.ops.transpose(ab.ops.reshape(v, (1, 3))),
        lambda v: v[1:],
        lambda v: ab.ops.split(v, 3)[1],
        lambda v: ab.ops.broadcast_to(v, (2, 3)),
        lambda v: ab.cond(ab.ops.sum(v) > 0, lambda: v.value, lambda: v * 2),
        lambda v: ab.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x), (0, v))[1],
        lambda v: ab.TensorArray("float32", 1).write(0, v).read(0),
        lambda v: ab.TensorArray("float32", 3).unstack(v).stack(),
    ],
)
def test_fetched_values_do_not_alias_the_variable(graph: Graph, fetch: Callable[[Any], Any]):
    v = ab.Variable([1.0, 2.0, 3.0])
    fetched = fetch(v)
    add, reset = v.assign_add([1.0, 1.0, 1.0]), v.assign([1.0, 2.0, 3.0])
    session = ab.Session()

    for _ in range(2):
        value = session.run(fetched)
        kept = value.copy()
        session.run(add)
        np.testing.assert_array_equal(value, kept)
        session.run(reset)
        value[...] = -1
        assert v.numpy().tolist() == [1, 2, 3]


@ROADS
def test_a_value_fetched_before_an_update_keeps_it(graph: Graph, road: Any):
    v = ab.Variable(np.arange(1000, dtype="float32"))
    before = v.value
    write = v.assign_add(np.ones(1000))

    for step in range(3):
        old, new = road([before, write])
        assert (old[5], new[5]) == (5 + 2 * step, 6 + 2 * step)
        kept = old.copy()
        road(write)
        np.testing.assert_array_equal(old, kept)


def test_feeds_are_not_changed_and_not_kept(graph: Graph):
    v = ab.Variable(np.zeros(3, "float32"))
    x = ab.placeholder((3,))
    write = v.assign(x)
    fed = np.ones(3, "float32")
    run(write, {x: fed})
    fed[0] = 9

    assert v.numpy().tolist() == [1, 1, 1]
    run(v.assign_add(np.ones(3)))
    assert fed.tolist() == [9, 1, 1]


def test_two_variables_do_not_share_a_value(graph: Graph):
    v, w = ab.Variable([1.0, 2.0]), ab.Variable([0.0, 0.0])
    run(w.assign(v.value))
    run(v.assign_add([1.0, 1.0]))

    assert w.numpy().tolist() == [1, 2]
    run([w.assign(v.value), v.assign(w.value)])
    run(w.assign_add([1.0, 1.0]))
    assert v.numpy().tolist() == [2, 3]


def test_sessions_share_variables(graph: Graph):
    v = ab.Variable(1.0)
    first, second = ab.Session(), ab.Session()
    first.run(v.assign(5.0))

    assert second.run(v) == 5


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (lambda v, p: ab.constant([1.0, v]), [1, 2], [1, 7]),
        (lambda v, p: ab.constant([[1.0, v], [p, v]]), [[1, 2], [5, 2]], [[1, 7], [5, 7]]),
        (lambda v, p: ab.constant(v), 2, 7),
        (lambda v, p: ab.constant(v, dtype="int32", shape=(2,)), [2, 2], [7, 7]),
        (lambda v, p: ab.constant([v, 1.0, p, v], shape=(2, 2)), [[2, 1], [5, 2]], [[7, 1], [5, 7]]),
        (lambda v, p: ab.constant(p), 5, 5),
    ],
)
def test_a_constant_with_a_variable_in_it_reads_it_in_each_run(
    graph: Graph, make: Callable[..., Any], before: Any, after: Any
):
    v, p = ab.Variable(2.0), ab.placeholder((), "float32")
    tensor = make(v, p)
    assert np.asarray(run(tensor, {p: 5.0})).tolist() == before
    v.write_value(np.float32(7))
    assert np.asarray(run(tensor, {p: 5.0})).tolist() == after
    assert np.asarray(interpret(tensor, {p: np.float32(5)})).tolist() == after


def test_a_constant_with_a_variable_in_it_has_a_gradient(graph: Graph):
    v = ab.Variable(2.0)
    loss = ab.ops.sum(ab.constant([1.0, v]) * [3.0, 4.0])
    assert run(ab.gradients(loss, [v])[0]) == 4
