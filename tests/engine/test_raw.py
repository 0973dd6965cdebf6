"""`ab.raw`: primitives of dataflow by hand, their machine form, and what it computes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.raw_steps import DEAD, check_frames, loop, lowered, run

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Graph, Operation
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower.nodes import Machine
from anabranch.engine.lower.raw import contains_raw, dead_fetch, with_back_edges
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.runtime.interpreter import Interpreter

wrong: Any = raw  # to give its functions what they do not take


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as made:
        yield made


# --- building -------------------------------------------------------------------------------------------------------


def test_specs():
    x = ab.placeholder((2, None), "float32")
    no, yes = raw.switch(x, ab.placeholder((), "bool"))
    merged = raw.merge([no, ops.zeros((2, 3))])
    assert [t.spec for t in (no, yes)] == [x.spec, x.spec]
    assert (str(merged.output.spec), str(merged.value_index.spec)) == ("float32[2,?]", "int32[]")
    assert raw.enter(x, "f").spec == raw.exit(x).spec == raw.next_iteration(x).spec == x.spec
    assert str(raw.loop_cond(True).spec) == "bool[]"


def test_arguments_are_those_of_raw_ops():
    expected = {
        raw.switch: ["data", "pred"],
        raw.merge: ["inputs"],
        raw.enter: ["data", "frame_name", "is_constant", "parallel_iterations"],
        raw.exit: ["data"],
        raw.next_iteration: ["data", "into"],
        raw.loop_cond: ["pred"],
    }
    for function, names in expected.items():
        assert list(inspect.signature(function).parameters) == [*names, "name"]
    signature = inspect.signature(raw.enter).parameters
    assert (signature["is_constant"].default, signature["parallel_iterations"].default) == (False, 10)


def test_it_is_reached_from_the_root_alone():
    assert ab.raw.switch is raw.switch
    assert "enter" not in dir(ops)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda x: raw.switch(x, x), TypeError, r"raw.switch: pred must be a scalar bool, got float32\[3\]"),
        (lambda x: raw.switch(x, [True]), TypeError, r"got bool\[1\]. Use ops.any"),
        (lambda x: raw.loop_cond(1), TypeError, r"raw.loop_cond: pred must be a scalar bool, got int32\[\]"),
        (lambda x: raw.merge([]), ValueError, "inputs is empty"),
        (lambda x: raw.merge(x), TypeError, "inputs must be a list of tensors, got <Tensor"),
        (lambda x: raw.merge([x, 1]), TypeError, r"float32\[3\] for input 0 and int32\[\] for input 1. Cast"),
        (lambda x: raw.enter(x, ""), ValueError, "frame_name is empty"),
        (lambda x: wrong.enter(x, 3), TypeError, "frame_name must be a string, got 3"),
        (lambda x: raw.enter(x, "f", parallel_iterations=0), ValueError, "integer from 1 on, got 0"),
        (lambda x: wrong.enter(x, "f", parallel_iterations=2.5), ValueError, "integer from 1 on, got 2.5"),
        (lambda x: raw.next_iteration(x, into=x), TypeError, "into must be what a merge gives, got <Tensor"),
        (
            lambda x: wrong.next_iteration(x, into=raw.merge([x])),
            TypeError,
            "into must be what a merge gives, got Merge",
        ),
        (lambda x: raw.next_iteration(1, raw.merge([x]).output), TypeError, r"is handed int32\[\]. Cast it"),
        (lambda x: raw.next_iteration(x[:2], raw.merge([x]).output), TypeError, "whose shape is left open"),
    ],
)
def test_what_is_refused_when_built(build: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        build(ab.placeholder((3,), "float32"))


def test_a_merge_is_handed_one_value():
    i = raw.merge([raw.enter(0, "f")]).output
    raw.next_iteration(i, into=i)
    with pytest.raises(ValueError, match=r"handed the value of 'next_iteration' already \(defined at .*test_raw.py"):
        raw.next_iteration(i, into=i)


def test_inside_a_loop():
    with pytest.raises(ValueError, match=r"raw\.enter is built inside a loop, a branch"):
        ab.while_loop(lambda i: i < 3, lambda i: (raw.enter(i, "f"),), (0,))


def test_there_are_no_gradients():
    x = ab.placeholder((), "float32")
    y, _ = raw.switch(x, True)
    with pytest.raises(LookupError, match=r"raw.switch 'switch' has no gradient \(defined at .*Build it with ab.cond"):
        ab.gradients(y, [x])


def test_other_roads_refuse():
    y = raw.merge([ops.ones(2)]).output
    with pytest.raises(RuntimeError, match=r"raw\.merge can't be run here: .* Build those with ab.cond"):
        Interpreter().run(symbol_of(y).graph, [symbol_of(y)])


def test_saved_and_loaded(tmp_path: Any, graph: Graph):
    total = loop("f", ab.placeholder((), "int32", "n"), lambda i: i < 5, lambda i: i + 1)
    graph.save(tmp_path / "graph.npz")
    again = ab.load_graph(tmp_path / "graph.npz")
    n, result = again.get_tensor_by_name("n:0"), again.get_tensor_by_name(symbol_of(total).name)
    assert again.dump() == graph.dump()
    assert run([result], {n: np.int32(2)}) == [5]


# --- pruning --------------------------------------------------------------------------------------------------------


def test_what_is_handed_back_is_needed(graph: Graph):
    total = loop("f", 0, lambda i: i < 5, lambda i: i + 1)
    unused = ops.ones(3)
    pruned = needed_operations(graph, [symbol_of(total)])
    assert "next_iteration" not in {operation.type for operation in pruned}
    completed = with_back_edges(pruned)
    assert {"next_iteration", "add"} <= {operation.type for operation in completed}
    assert symbol_of(unused).operation not in completed
    assert completed == sorted(completed, key=lambda operation: operation.index) == with_back_edges(completed)
    assert contains_raw(pruned)
    assert not contains_raw([symbol_of(unused).operation])


# --- meaning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fed", [0, 1])
def test_one_of_several_outputs_is_fed(fed: int):
    x = ab.placeholder((4,), "float32")
    parts = ops.split(x, 2)
    assert len(symbol_of(parts[0]).operation.outputs) == 2
    data, new = np.arange(4, dtype="float32"), np.array([8, 9], "float32")
    got = run([ops.stack([raw.merge([part]).output for part in parts])], {x: data, parts[fed]: new})
    np.testing.assert_array_equal(got[0][fed], new)
    np.testing.assert_array_equal(got[0][1 - fed], np.split(data, 2)[1 - fed])


@given(st.booleans(), st.lists(st.floats(-4, 4, width=32), max_size=3))
def test_a_branch(choice: bool, values: list[float]):
    with Graph().as_default():
        x, pred = ab.placeholder((None,), "float32"), ab.placeholder((), "bool")
        no, yes = raw.switch(x, pred)
        result, index = raw.merge([no * 2, yes + 1])
        data = np.array(values, "float32")
        got, number = run([result, index], {x: data, pred: np.bool_(choice)})
    np.testing.assert_array_equal(got, data + 1 if choice else data * 2)
    assert number == int(choice)


@given(st.integers(0, 6), st.integers(-3, 3))
def test_a_loop(count: int, start: int):
    with Graph().as_default():
        n, limit = ab.placeholder((), "int32"), raw.enter(count, "f", is_constant=True)
        i = raw.merge([raw.enter(0, "f")]).output
        total = raw.merge([raw.enter(n, "f")]).output
        going = raw.loop_cond(i < limit)
        i_out, i_on = raw.switch(i, going)
        total_out, total_on = raw.switch(total, going)
        raw.next_iteration(i_on + 1, into=i)
        raw.next_iteration(total_on + i_on, into=total)
        results = run([raw.exit(i_out), raw.exit(total_out)], {n: np.int32(start)})
    assert results == [count, start + sum(range(count))]


def test_a_loop_around_a_loop_and_a_branch():
    """`for i in range(4): x = sum(range(i)) + x if x is even else x + 1`, with constants that enter by name."""
    i, x = raw.merge([raw.enter(0, "outer")]).output, raw.merge([raw.enter(0, "outer")]).output
    going = raw.loop_cond(i < 4)
    i_on = raw.switch(i, going).output_true
    x_out, x_on = raw.switch(x, going)
    odd, even = raw.switch(x_on, ops.equal(x_on % 2, 0))
    i_even = raw.switch(i_on, ops.equal(x_on % 2, 0)).output_true
    limit = raw.enter(i_even, "inner", is_constant=True)
    j, total = raw.merge([raw.enter(0, "inner")]).output, raw.merge([raw.enter(even, "inner")]).output
    inside = raw.loop_cond(j < limit)
    j_on = raw.switch(j, inside).output_true
    total_out, total_on = raw.switch(total, inside)
    raw.next_iteration(j_on + 1, into=j)
    raw.next_iteration(total_on + j_on, into=total)
    raw.next_iteration(raw.merge([odd + 1, raw.exit(total_out)]).output, into=x)
    raw.next_iteration(i_on + 1, into=i)
    expected = 0
    for number in range(4):
        expected = expected + sum(range(number)) if expected % 2 == 0 else expected + 1
    result = raw.exit(x_out)
    assert run([result]) == [expected]
    frames = [frame.name for frame in lowered([result]).frames]
    assert frames == ["", "outer", "outer/inner"]


def test_an_untaken_loop_is_dead():
    pred = ab.placeholder((), "bool")
    no, yes = raw.switch(ops.convert_to_tensor(7), pred)
    result = raw.merge([no, loop("f", yes, lambda i: i < 9, lambda i: i + 1)])
    assert run(list(result), {pred: np.bool_(False)}) == [7, 0]
    assert run(list(result), {pred: np.bool_(True)}) == [9, 1]


def test_a_dead_fetch():
    no, yes = raw.switch(1.5, ab.placeholder((), "bool", "pred"))
    assert run([no, yes], {symbol_of(no).operation.inputs[1]: np.bool_(True)}) == [DEAD, 1.5]
    assert "raw.switch 'switch' (defined at " in dead_fetch(symbol_of(no).operation)
    assert "is fetched, but has no value in this run" in dead_fetch(symbol_of(no).operation)
    assert "Fetch what raw.merge makes of both sides." in dead_fetch(symbol_of(no).operation)


def test_constants_are_fetched():
    no, yes = raw.switch(1.5, True)
    assert run([ops.constant(3), raw.merge([no, yes]).output]) == [3, 1.5]


def test_what_goes_back_may_be_built_before_its_merge():
    on = raw.next_iteration(raw.switch(raw.enter(5, "f", is_constant=True), raw.enter(False, "f", is_constant=True))[1])
    i = raw.merge([raw.enter(0, "f"), on]).output
    done = raw.switch(i, raw.loop_cond(i > 9)).output_false
    machine = lowered([raw.exit(done)])
    (merge,) = [node for node in machine.nodes if node.kind == "merge"]
    assert [value.node.kind for value in merge.inputs] == ["enter", "next_iteration"]


def test_structured_loops_stay_one_node():
    x = ab.placeholder((), "float32", "x")
    _, y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * y), (0, x))
    slope = ab.gradients(y, [x])[0]
    no, yes = raw.switch(slope, x > 0)
    result = raw.merge([-no, yes]).output
    machine = lowered([result], [x])
    loops = [node for node in machine.nodes if any(o.type == "while" for o in node.operations)]
    assert len(loops) == 2
    assert {o.type for o in loops[0].operations} == {"while", "history", "trip_count"}
    assert set(loops[1].taken) >= {t for t in loops[0].given if t.operation.type == "history"}
    assert all(set(node.given) <= {t for o in node.operations for t in o.outputs} for node in loops)


# --- effects, controls and devices ----------------------------------------------------------------------------------


def controls_of(machine: Machine, name: str) -> set[str]:
    (node,) = [node for node in machine.nodes if name in {o.name for o in node.operations} and node.kind == "op"]
    return {value.node.name for value in node.controls}


def test_effects_keep_their_order_where_waiting_can_not_stop_them():
    pred, v = ab.placeholder((), "bool"), ab.Variable(0.0, name="v")
    before = v.value
    no, yes = raw.switch(before, pred)
    first, second = v.assign(no + 1), v.assign(yes + 2)
    third = v.assign(no + 3)
    after = v.assign_add(1.0)
    values = [raw.merge([first.operation.inputs[0], second.operation.inputs[0]]).output, after]
    with ab.control_dependencies([first.operation, second.operation, third.operation]):
        last = ops.negative(values[0])
    machine = lowered([last, after], [pred])
    names = [tensor.operation.name for tensor in (before, first, second, third, after)]
    assert controls_of(machine, names[1]) == {names[0]}
    assert controls_of(machine, names[2]) == {names[0]}  # and not the other branch's, which may be dead
    assert controls_of(machine, names[3]) == {names[0], names[1]}
    assert names[1] not in controls_of(machine, names[4])


def test_what_hands_values_on_waits_before_or_behind():
    pred = ab.placeholder((), "bool")
    noted = ops.tanh(ops.ones(2))
    with ab.control_dependencies([symbol_of(noted).operation]):
        entered = raw.enter(3, "f")
        merged = raw.merge(raw.switch(2.0, pred)).output
    i = raw.merge([entered]).output
    out, on = raw.switch(i, i < 5)
    step = on + 1
    with ab.control_dependencies([symbol_of(step).operation]):
        raw.next_iteration(on * 2, into=i)
    machine = lowered([raw.exit(out), merged], [pred])
    held = {
        node.name: [value.node.name for value in node.controls] for node in machine.nodes if node.kind == "identity"
    }
    assert held == {"enter/gated": ["tanh"], "merge/held": ["tanh"], "next_iteration/held": ["add"]}
    assert not any(node.controls for node in machine.nodes if node.kind in ("enter", "merge", "next_iteration", "exit"))
    check_frames(machine)


def test_every_device_learns_whether_the_loop_goes_on():
    with ab.device("cpu:0"):
        i = raw.merge([raw.enter(0, "f")]).output
        out, on = raw.switch(i, raw.loop_cond(i < 5))
    with ab.device("cpu:1"):
        squared = on * on
    with ab.device("cpu:0"):
        raw.next_iteration(squared + 1, into=i)
        result = raw.exit(out)
    short = {"/device:CPU:0": "cpu:0", "/device:CPU:1": "cpu:1"}
    machine = lowered([result], device=lambda o: short.get(o.device, "cpu:0"))
    there = [node for node in machine.nodes if node.device == "cpu:1"]
    assert sorted(node.kind for node in there) == ["enter", "merge", "next_iteration", "op", "switch"]
    (switch,) = [node for node in there if node.kind == "switch"]
    assert switch.inputs[1].node.kind == "loop_cond"
    check_frames(machine)


def test_a_loop_over_devices_without_a_condition():
    i = raw.merge([raw.enter(0, "f")]).output
    out, on = raw.switch(i, i < 5)
    raw.next_iteration(on * on + 1, into=i)
    result = raw.exit(out)
    with pytest.raises(
        ValueError, match=r"Frame 'f', entered by raw.enter 'enter' \(defined at .*raw.loop_cond\(pred\)"
    ):
        lowered([result], device=lambda o: "cpu:1" if o.type == "multiply" else "cpu:0")


def test_operations_are_found_wherever_they_are_fed(graph: Graph):
    """A fed value cuts off what makes it, in a loop's frame too."""
    x = ab.placeholder((), "int32")
    doubled = x * 2
    result = loop("f", doubled, lambda i: i < 9, lambda i: i + 4)
    assert run([result], {doubled: np.int32(3)}) == [11]
    assert isinstance(graph.operations[0], Operation)
