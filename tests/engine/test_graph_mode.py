"""Edge cases of graphs and sessions that TensorFlow 1.4 documents: each case has one expected result."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Tensor


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return ab.Session().run(fetches, feeds)


@pytest.fixture
def flag() -> Tensor:
    return ab.placeholder((), "bool", "flag")


@pytest.fixture
def x() -> Tensor:
    return ab.placeholder((), "float32", "x")


# --- control dependencies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "operation"])
def test_a_graph_takes_tensors_and_operations_as_control_inputs(graph: Graph, kind: str):
    counter = ab.Variable(1.0, name="counter")
    write = counter.assign_add(1.0)
    with graph.control_dependencies([write if kind == "tensor" else write.operation, ab.constant(2.0)]):
        y = ab.constant(3.0) * 2
    assert run(y) == 6
    assert counter.numpy() == 2


def test_a_branch_takes_tensors_from_outside_as_control_inputs(flag: Tensor):
    counter = ab.Variable(1.0, name="counter")
    write = counter.assign_add(1.0)

    def branch() -> Tensor:
        with ab.get_default_graph().control_dependencies([write]):
            return ab.constant(1.0) * 2

    assert run(ab.cond(flag, branch, lambda: 0.0), {flag: True}) == 2
    assert counter.numpy() == 2


def test_a_graph_refuses_other_control_inputs(graph: Graph):
    with Graph().as_default():
        other = ab.constant(1.0)
    with pytest.raises(ValueError, match="belongs to an unrelated graph"):
        graph.control_dependencies([other])
    with pytest.raises(TypeError, match="takes operations and tensors, not str"):
        graph.control_dependencies(["x"])


def waiting_and_not(write: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One value that waits for `write`, and one that does not."""
    with ab.control_dependencies([write]):
        waits = ops.exp(x)
    return waits, x * 2


def in_a_branch(flag: Tensor, inside: Callable[[], Tensor]) -> Tensor:
    return ab.cond(flag, inside, lambda: 0.0)


def in_a_loop(flag: Tensor, inside: Callable[[], Tensor]) -> Tensor:
    return ab.while_loop(lambda i, _: i < 2, lambda i, _: (i + 1, inside()), (0, 0.0))[1]


def in_a_branch_in_a_loop(flag: Tensor, inside: Callable[[], Tensor]) -> Tensor:
    return in_a_loop(flag, lambda: in_a_branch(flag, inside))


HOLDERS = [in_a_branch, in_a_loop, in_a_branch_in_a_loop]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_what_only_an_unused_operation_waits_for_does_not_run(
    flag: Tensor, x: Tensor, holder: Callable[..., Tensor], used: bool, taken: bool
):
    """If it is used, what it waits for is outside, and runs whichever branch is taken."""
    counter = ab.Variable(0.0, name="counter")
    write = counter.assign_add(1.0)
    y = holder(flag, lambda: waiting_and_not(write, x)[0 if used else 1])
    found = run(y, {flag: taken, x: 0})
    assert found == (1 if used and (taken or holder is in_a_loop) else 0)
    assert counter.numpy() == used


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_an_unused_operation_waits_for_does_not_hold_the_branch(
    flag: Tensor, x: Tensor, holder: Callable[..., Tensor]
):
    """A dequeue from an empty queue would wait for ever."""
    held = ab.queues.FIFOQueue(1, ["float32"], [()]).dequeue()
    y = holder(flag, lambda: waiting_and_not(held, x)[1])
    assert ab.Session().run(y, {flag: True, x: 1}, timeout=5) == 2


def test_what_is_fetched_inside_has_waited(flag: Tensor, x: Tensor):
    counter = ab.Variable(0.0, name="counter")
    write = counter.assign_add(1.0)
    inside: list[Tensor] = []

    def branch() -> Tensor:
        waits, free = waiting_and_not(write, x)
        inside.append(waits)
        return free

    y = ab.cond(flag, branch, lambda: x)
    assert run([y, inside[0]], {flag: True, x: 0}) == [0, 1]
    assert counter.numpy() == 1


def test_a_control_block_around_a_branch_holds_the_branch(flag: Tensor, x: Tensor):
    counter = ab.Variable(0.0, name="counter")
    write = counter.assign_add(1.0)
    with ab.control_dependencies([write]):
        y = ab.cond(flag, lambda: waiting_and_not(write, x)[1], lambda: x)
    assert run(y, {flag: True, x: 1}) == 2
    assert counter.numpy() == 1


# --- fetches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
def test_the_results_of_a_branch_can_be_fetched_and_its_record_can_not(flag: Tensor, x: Tensor, taken: bool):
    a, _ = ab.cond(flag, lambda: (x + 1, x * 2), lambda: (x, x))
    *results, record = a.operation.outputs
    assert run(results, {flag: taken, x: 3}) == ([4, 6] if taken else [3, 3])
    for fetch in (record, list(a.operation.outputs), record.name):
        with pytest.raises(
            ValueError, match=r"can't be fetched: it is the record of what ran inside 'cond/cond'.*Fetch"
        ):
            run(fetch, {flag: taken, x: 3})


def test_the_record_of_a_loop_can_not_be_fetched():
    y = ab.while_loop(lambda i: i < 3, lambda i: i + 1, 0)
    with pytest.raises(ValueError, match="can't be fetched: it is the record of what ran inside 'while/while'"):
        run(y.operation.outputs[-1])


def test_fetches_keep_the_kind_and_the_order_of_mappings(x: Tensor):
    fetched = OrderedDict([("z", x + 1), ("a", (x * 2, defaultdict(list, b=x)))])
    found = run(fetched, {x: 1})
    assert type(found) is OrderedDict
    assert list(found) == ["z", "a"]
    assert found["z"] == 2
    assert found["a"] == (2, {"b": 1})
    inner = found["a"][1]
    assert type(inner) is defaultdict
    assert inner["new"] == []
    assert type(fetched["a"][1]["b"]) is type(x)  # what was given stays


def test_loops_keep_the_kind_of_mappings():
    first = OrderedDict([("z", 0), ("a", 1)])
    last = ab.while_loop(lambda d: d["z"] < 3, lambda d: OrderedDict(z=d["z"] + 1, a=d["a"] * 2), first)
    assert type(last) is OrderedDict
    assert list(run(last).items()) == [("z", 3), ("a", 8)]


# --- feeds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "string"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_arrays_of_objects_are_fed_as_anything(dtype: str, shape: tuple[int, ...]):
    data = ab.placeholder((None,) * len(shape), dtype)
    found, count = run([data, ops.size(data)], {data: np.empty(shape, object)})
    assert found.shape == shape
    assert found.dtype == data.dtype
    assert count == 0


def test_an_empty_array_of_objects_has_to_fit():
    data = ab.placeholder((None, 3), "float32")
    with pytest.raises(ValueError, match=r"shape \[0,2\] was fed"):
        run(data, {data: np.empty((0, 2), object)})


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [("float32", [1.5, 2], [1.5, 2]), ("int32", [1, 2], [1, 2]), ("string", ["a", "b"], ["a", "b"])],
)
def test_arrays_of_objects_are_fed_as_what_they_hold(dtype: str, value: list[Any], want: list[Any]):
    data = ab.placeholder((None,), dtype)
    assert run(data, {data: np.array(value, object)}).tolist() == want


def test_arrays_of_other_objects_are_refused():
    data = ab.placeholder((None,), "float32")
    with pytest.raises(TypeError, match="elements are no numbers"):
        run(data, {data: np.array([{}], object)})


# --- shape invariants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invariants", [[None], (None,), None])
def test_an_invariant_of_none_is_any_shape(invariants: Any):
    """Here the rank grows."""
    (y,) = ab.while_loop(
        lambda v: ops.size(v) < 4,
        lambda v: (ops.stack([v, v]),),
        (ab.constant([1.0]),),
        shape_invariants=invariants,
    )
    assert run(y).shape == (2, 2, 1)
    assert y.shape is None


def test_an_invariant_of_one_value_is_its_shape():
    for invariant in ([None], [(None,)]):
        y = ab.while_loop(
            lambda v: ops.size(v) < 4,
            lambda v: ops.concatenate([v, v]),
            ab.constant([1.0]),
            shape_invariants=invariant,
        )
        assert y.shape == (None,)
        assert run(y).tolist() == [1, 1, 1, 1]


def test_invariants_of_a_dict_go_by_its_keys():
    first = {"rows": ab.constant([1.0]), "fixed": ab.constant([[1.0]])}
    (last,) = ab.while_loop(
        lambda d: ops.size(d["rows"]) < 4,
        lambda d: ({"rows": ops.concatenate([d["rows"], d["rows"]]), "fixed": d["fixed"]},),
        (first,),
        shape_invariants=[{"rows": [None], "fixed": (1, 1)}],
    )
    assert last["rows"].shape == (None,)
    assert last["fixed"].shape == (1, 1)
    assert run(last)["rows"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("invariants", [[None], [None, None, None], [{"a": None}, None], [None, [None]]])
def test_invariants_in_another_structure_are_refused(invariants: Any):
    with pytest.raises(ValueError, match=r"shape_invariants must have the structure of loop_vars \(i, d\['b'\]\)"):
        ab.while_loop(lambda i, d: i < 2, lambda i, d: (i + 1, d), (0, {"b": 1.0}), shape_invariants=invariants)


# --- branches that are run for their effects ------------------------------------------------------------------------


def add_to(variable: ab.Variable, returned: str) -> Callable[[], Any]:
    """A branch that adds 1, and returns something that is no value."""

    def branch() -> Any:
        write = variable.assign_add(1.0)
        return {"None": None, "operation": write.operation, "group": ab.group(write), "no_op": ab.no_op()}[returned]

    return branch


BRANCHES = ["None", "operation", "group", "no_op"]


@pytest.mark.parametrize("first", BRANCHES)
@pytest.mark.parametrize("second", BRANCHES)
def test_a_branch_for_its_effects_is_an_operation(flag: Tensor, first: str, second: str):
    ones, twos = ab.Variable(0.0, name="ones"), ab.Variable(0.0, name="twos")
    noted = ab.cond(flag, add_to(ones, first), add_to(twos, second))
    session = ab.Session()
    for taken in (True, False, True):
        assert session.run(noted, {flag: taken}) is None
    assert (ones.numpy(), twos.numpy()) == (2, 1)


@pytest.mark.parametrize("nothing", [ab.no_op, lambda: None])
def test_a_branch_may_do_nothing(flag: Tensor, nothing: Callable[[], Any]):
    counter = ab.Variable(0.0, name="counter")
    noted = ab.cond(flag, add_to(counter, "None"), nothing)
    with ab.control_dependencies([noted]):
        after = counter + 0
    session = ab.Session()
    assert [session.run(after, {flag: taken}) for taken in (True, False, True)] == [1, 1, 2]


def test_switch_and_case_are_operations_too(flag: Tensor):
    counters = [ab.Variable(0.0, name=f"counter{number}") for number in range(3)]
    branches = [add_to(counter, "None") for counter in counters]
    run([ab.switch(ab.constant(1), branches), ab.case([(flag, branches[0])], branches[2])], {flag: False})
    assert [counter.numpy() for counter in counters] == [0, 1, 1]


def test_effects_and_values_together(flag: Tensor, x: Tensor):
    """Operations in a structure come as the operation that runs the branch, everything else as it is."""
    counter = ab.Variable(0.0, name="counter")
    found = ab.cond(
        flag, lambda: (x * 2, [counter.assign_add(1.0).operation]), lambda: (x, [counter.assign_sub(1.0).operation])
    )
    assert type(found) is tuple
    value, (operation,) = found
    assert run([value, operation], {flag: True, x: 3}) == [6, None]
    assert run(value, {flag: False, x: 3}) == 3
    assert counter.numpy() == 0


def test_branches_for_effects_nest(flag: Tensor):
    counter = ab.Variable(0.0, name="counter")
    inner = ab.placeholder((), "bool", "inner")
    noted = ab.cond(flag, lambda: ab.cond(inner, add_to(counter, "None"), ab.no_op), ab.no_op)
    for outside, inside in ((True, True), (True, False), (False, True)):
        run(noted, {flag: outside, inner: inside})
    assert counter.numpy() == 1


def test_branches_for_effects_run_in_loops_and_functions():
    counter = ab.Variable(0.0, name="counter")

    def body(i: Tensor) -> Tensor:
        ab.cond(ops.equal(i % 2, 0), add_to(counter, "group"), ab.no_op)
        return i + 1

    assert run(ab.while_loop(lambda i: i < 5, body, 0)) == 5
    assert counter.numpy() == 3


@pytest.mark.parametrize("grouped", [False, True])
def test_what_a_branch_returns_from_outside_runs_in_any_case(flag: Tensor, grouped: bool):
    """It runs like anything outside for which an operation of a branch waits."""
    counter = ab.Variable(0.0, name="counter")
    write = counter.assign_add(1.0).operation
    noted = ab.cond(flag, lambda: ab.group(write) if grouped else write, ab.no_op)
    session = ab.Session()
    for taken in (True, False):
        session.run(noted, {flag: taken})
    assert counter.numpy() == 2


def test_branches_that_return_different_things_are_refused(flag: Tensor):
    with pytest.raises(TypeError, match="false_fn returns a value, true_fn does not"):
        ab.cond(flag, ab.no_op, lambda: 1.0)


# --- group and no_op ------------------------------------------------------------------------------------------------


def test_a_group_runs_all_that_it_is_given(x: Tensor):
    counters = [ab.Variable(0.0, name=f"counter{number}") for number in range(3)]
    writes = [counter.assign_add(x) for counter in counters]
    together = ab.group(writes[0], {"more": [writes[1].operation], "none": None}, counters[2], name="together")
    assert together is not None
    assert (together.name, together.outputs) == ("together", ())
    assert run(together, {x: 2}) is None
    assert [counter.numpy() for counter in counters] == [2, 2, 0]


def test_a_group_of_a_graph_that_is_no_longer_the_current_one(graph: Graph):
    with Graph().as_default() as other:
        counter = ab.Variable(0.0, name="counter")
        write = counter.assign_add(1.0)
    together = ab.group(write)
    assert together is not None
    assert together.graph is other
    ab.Session(other).run(together)
    assert counter.numpy() == 1


def test_what_waits_for_a_group_waits_for_all():
    counter = ab.Variable(0.0, name="counter")
    both = ab.group(counter.assign_add(1.0), counter.assign_add(2.0))
    with ab.control_dependencies([both]):
        y = counter + 0
    assert run(y) == 3


def test_no_op_holds_control_dependencies():
    counter = ab.Variable(0.0, name="counter")
    with ab.control_dependencies([counter.assign_add(1.0)]):
        done = ab.no_op(name="done")
    assert done is not None
    assert run("done") is None
    assert run(ab.no_op()) is None
    assert run(ab.group()) is None
    assert counter.numpy() == 1


def test_groups_of_other_things_are_refused():
    with pytest.raises(TypeError, match="object"):
        ab.group(object())
    with Graph().as_default():
        other = ab.constant(1.0)
    with pytest.raises(ValueError, match="unrelated graph"):
        ab.group(ab.constant(1.0), other)


def test_groups_can_be_saved(tmp_path: Any, x: Tensor, flag: Tensor):
    counter = ab.Variable(0.0, name="counter")
    noted = ab.cond(flag, lambda: ab.group(counter.assign_add(x)), ab.no_op, name="noted")
    with ab.control_dependencies([noted]):
        after = counter + 0
    noted.graph.save(tmp_path / "graph")
    with ab.load_graph(tmp_path / "graph").as_default():
        assert run(after.name, {"flag:0": True, "x:0": 2}) == 2
        assert run(after.name, {"flag:0": False, "x:0": 2}) == 2
    assert counter.numpy() == 0


@pytest.fixture
def two_devices():
    ab.config.set_devices(sim=2)
    yield
    ab.config.set_devices()


@pytest.mark.usefixtures("two_devices")
def test_groups_run_on_several_devices(flag: Tensor):
    with ab.device("sim:0"):
        one = ab.Variable(0.0, name="one")
    with ab.device("sim:1"):
        other = ab.Variable(0.0, name="other")
    noted = ab.cond(flag, lambda: ab.group(one.assign_add(1.0), other.assign_add(2.0)), ab.no_op)
    session = ab.Session()
    for taken in (True, False):
        session.run(noted, {flag: taken})
    assert (one.numpy(), other.numpy()) == (1, 2)
