"""Primitives of dataflow by hand, run by `Session`: branches, loops and loops in loops, on one device and on two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Graph, Tensor, eagerly
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.step import DeadValueError
from anabranch.engine.place import PlacementError


@pytest.fixture(autouse=True, params=[1, 2])
def devices(request: pytest.FixtureRequest) -> Iterator[int]:
    ab.config.set_devices(cpu=request.param)
    with Graph().as_default():
        yield request.param
    ab.config.set_devices()


def last(devices: int) -> Any:
    """A scope of the last device."""
    return ab.device(f"cpu:{devices - 1}")


def check(fetches: list[Tensor], runs: list[tuple[dict[Any, Any], list[Any]]], places: int = 1) -> ab.Session:
    """Each run gives what is expected, whatever the order; at least `places` devices take part."""
    for seed in (None, 0, 1):
        session = ab.Session(schedule_seed=seed)
        for fed, expected in runs:
            assert session.run(fetches, fed) == expected
        assert isinstance(session.program(fetches, list(runs[0][0])), MachineProgram)
        assert len(session.statistics().devices) >= places
    return session


def test_a_branch(devices: int):
    n, p = ab.placeholder((), "int32"), ab.placeholder((), "bool")
    no, yes = raw.switch(n, p)
    with last(devices):
        found = raw.merge([no * 2, yes + 1])
    runs = [({n: 5, p: True}, [6, 1]), ({n: 5, p: False}, [10, 0]), ({n: -1, p: True}, [0, 1])]
    check([found.output, found.value_index], runs, devices)
    with pytest.raises(DeadValueError, match=r"was fetched, but it is dead"):
        ab.Session().run(no, {n: 5, p: True})


def test_a_loop(devices: int):
    n = ab.placeholder((), "int32")
    limit = raw.enter(n, "f", is_constant=True)
    i = raw.merge([raw.enter(0, "f")]).output
    with last(devices):
        total = raw.merge([raw.enter(n * 10, "f")]).output
    going = raw.loop_cond(i < limit)
    i_out, i_on = raw.switch(i, going)
    with last(devices):
        total_out, total_on = raw.switch(total, going)
        raw.next_iteration(total_on + i_on, into=total)
        result = raw.exit(total_out)
    raw.next_iteration(i_on + 1, into=i)
    runs = [({n: count}, [count, 10 * count + sum(range(count))]) for count in (0, 1, 9)]
    check([raw.exit(i_out), result], runs, devices)


def test_a_loop_in_a_loop(devices: int):
    """``for i in range(n): for j in range(i): x += 3``"""
    n = ab.placeholder((), "int32")
    limit = raw.enter(n, "outer", is_constant=True)
    i, x = raw.merge([raw.enter(0, "outer")]).output, raw.merge([raw.enter(0, "outer")]).output
    going = raw.loop_cond(i < limit)
    i_on = raw.switch(i, going).output_true
    x_out, x_on = raw.switch(x, going)
    inner_limit = raw.enter(i_on, "inner", is_constant=True)
    with last(devices):
        j = raw.merge([raw.enter(i_on * 0, "inner")]).output
        y = raw.merge([raw.enter(x_on, "inner")]).output
        inner_going = raw.loop_cond(j < inner_limit)
        j_on = raw.switch(j, inner_going).output_true
        y_out, y_on = raw.switch(y, inner_going)
        raw.next_iteration(j_on + 1, into=j)
        raw.next_iteration(y_on + 3, into=y)
        handed = raw.exit(y_out)
    raw.next_iteration(handed, into=x)
    raw.next_iteration(i_on + 1, into=i)
    check([raw.exit(x_out)], [({n: count}, [3 * count * (count - 1) // 2]) for count in (0, 1, 6)], devices)


def test_beside_loops_and_branches_of_the_usual_kind(devices: int):
    n, p = ab.placeholder((), "int32"), ab.placeholder((), "bool")
    no, yes = raw.switch(n, p)
    counted = ab.while_loop(lambda i: i < 7, lambda i: (i + 2,), (raw.merge([no, yes]).output,))
    chosen = ab.cond(p, lambda: n * 3, lambda: n)
    with last(devices):
        result = ops.convert_to_tensor(counted[0] if isinstance(counted, (list, tuple)) else counted) + chosen
    check([result], [({n: 1, p: True}, [10]), ({n: 1, p: False}, [8])], devices)


def test_effects_run_and_variables_are_seen(devices: int):
    with last(devices):
        v = ab.Variable(np.float32(1.0))
    p = ab.placeholder((), "bool")
    no, yes = raw.switch(ops.convert_to_tensor(v) * 2.0, p)
    value = raw.merge([no + 1.0, yes + 10.0]).output
    step = v.assign(value)
    session = ab.Session()
    session.run(step, {p: True})
    assert v.numpy() == 12.0
    session.run(step, {p: False})
    assert v.numpy() == 25.0


def test_functions_hold_primitives_too(devices: int):
    @ab.function
    def absolute(x: Any) -> Any:
        no, yes = raw.switch(x, x < 0.0)
        with last(devices):
            return raw.merge([no, -yes]).output

    with eagerly():
        assert [float(absolute(value)) for value in (-2.0, 3.0)] == [2.0, 3.0]


def test_the_guard_looks_inside():
    x, p = ab.placeholder((), "float32"), ab.placeholder((), "bool")
    no, yes = raw.switch(x, p)
    y = raw.merge([no, ops.log(yes)]).output
    session = ab.Session()
    with ab.debugging.check_numerics():
        assert session.run(y, {x: -1.0, p: False}) == -1.0
        with pytest.raises(FloatingPointError, match=r"'log' \(log\) gives NaN"):
            session.run(y, {x: -1.0, p: True})


def test_a_step_without_primitives_in_the_same_graph_is_as_it_was(devices: int):
    x = ab.placeholder((), "float32")
    raw.switch(x, ab.placeholder((), "bool"))
    session = ab.Session()
    assert session.run(x + 1.0, {x: 1.0}) == 2.0
    assert not isinstance(session.program(x + 1.0, [x]), MachineProgram)


def test_lowered_and_explained(devices: int):
    n, p = ab.placeholder((), "int32", "n"), ab.placeholder((), "bool", "p")
    no, yes = raw.switch(n, p)
    value = raw.merge([no * 2, yes + 1]).output
    assert "switch(n, p) @ cpu:0" in ab.lowered(value).dump()
    assert "# --- cpu:0 ---" in ab.explain(value)


def test_requests_are_kept_or_refused():
    with ab.device("cpu:7"):
        no, yes = raw.switch(ab.placeholder((), "int32"), ab.placeholder((), "bool"))
    with pytest.raises(PlacementError, match=r"asks for device '/device:CPU:7'"):
        ab.Session().run(raw.merge([no, yes]).output, {})
