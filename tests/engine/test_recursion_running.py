"""Recursive functions at run time: effects, what is saved, depth, and the rest of the engine."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.recursive_functions import FUNCTIONS, counted, doubled, endless, recursions, recursive, run_both_ways

import anabranch as ab
from anabranch.engine.graph import Graph
from anabranch.engine.ops.containers.record_value import Record
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops


# --- effects --------------------------------------------------------------------------------------------------------


def test_effects_run_in_program_order():
    v = ab.Variable(0.0)

    @ab.function
    def walk(n: Any) -> Any:
        def further() -> Any:
            before = v + 0.0
            v.assign_add(ops.cast(n, "float32"))
            walk(n - 1)
            deepest = walk(n - 2)
            return before + 2 * v + deepest

        return ab.cond(n <= 0, lambda: v * 1.0, further)

    def reference(n: int, state: list[float]) -> float:
        if n <= 0:
            return state[0]
        before = state[0]
        state[0] += n
        reference(n - 1, state)
        deepest = reference(n - 2, state)
        return before + 2 * state[0] + deepest

    state = [0.0]
    assert walk(5) == reference(5, state)
    assert v.numpy() == state[0]
    v.assign(0.0)
    with Graph().as_default() as graph:
        y = walk(ab.constant(5))
        after = v + 0.0
        state = [0.0]
        assert Interpreter().run(graph, [y, after]) == [reference(5, state), state[0]]


def test_a_function_for_its_effect_alone():
    v = ab.Variable(0)

    @ab.function
    def count(n: Any) -> None:
        def further() -> None:
            count(n - 1)
            v.assign_add(1)
            count(n - 1)

        ab.cond(n <= 0, lambda: None, further)

    assert count(4) is None
    assert v.numpy() == 15


def test_variables_made_inside_exist_once():
    made: list[Any] = []

    @ab.function
    def f(x: Any, n: Any) -> Any:
        made.append(ab.Variable(2.0))
        return ab.cond(n <= 0, lambda: x, lambda: f(x * made[-1], n - 1))

    assert f(1.0, 3) == 8
    made[-1].assign(3.0)
    assert f(1.0, 3) == 27


def test_random_numbers_differ_from_call_to_call():
    generator = ab.random.SeedGenerator(3)

    @ab.function
    def draws(n: Any) -> Any:
        return ab.cond(
            n <= 0,
            lambda: ops.zeros((0,)),
            lambda: ops.concatenate([ab.random.uniform((1,), seed=generator), draws(n - 1)]),
        )

    assert len(set(draws(6).tolist())) == 6
    assert generator.state.tolist() == [3, 6]


# --- what is saved --------------------------------------------------------------------------------------------------


def test_nothing_is_saved_without_a_gradient():
    with Graph().as_default() as graph:
        x, n = ab.placeholder((100,), "float64"), ab.placeholder((), "int32")
        y = recursive(FUNCTIONS["work after the call"], ab.constant(np.float64(1.1)))(x, n)
        (dx,) = ab.gradients(y, [x])
        fed = np.full(100, 0.5), np.int32(5)
        forward, backward = Program(graph, [y], [x, n]), Program(graph, [y, dx], [x, n])
        forward(*fed)
        assert forward.statistics.saved_bytes == 0
        backward(*fed)
        arrays = backward.statistics.saved_bytes // 800
        assert 2 * 6 <= arrays <= 4 * 6  # of six calls
        assert "_grad" not in forward.source


def test_only_what_is_needed_is_saved():
    """The gradient of a sum needs nothing but the way through the branches."""

    @ab.function
    def total(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: ops.sin(x), lambda: total(x + 1.0, n - 1) + x)

    with Graph().as_default() as graph:
        x, n = ab.placeholder((1000,), "float64"), ab.placeholder((), "int32")
        (dx,) = ab.gradients(total(x, n), [x])
        program = Program(graph, [dx], [x, n])
        (found,) = program(np.zeros(1000), np.int32(20))
    np.testing.assert_allclose(found, np.cos(20) + 20)
    # The argument of the deepest call is found in its frame, and all have one.
    assert program.statistics.saved_bytes <= 21 * 8000 + 1000


# --- depth ----------------------------------------------------------------------------------------------------------


def test_ten_thousand_calls():
    assert counted(0, 20_000) == 20_000
    with Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        y = counted(x * x, n)
        (dx,) = ab.gradients(y, [x])
        (ddx,) = ab.gradients(dx, [x])
        assert ab.Session().run([y, dx, ddx], {x: 3.0, n: 10_000}) == [10_009, 6, 2]
        assert Interpreter().run(graph, [y, dx], {x: np.float64(3.0), n: 10_000}) == [10_009, 6]


def test_too_deep_to_run():
    before = sys.getrecursionlimit()
    with pytest.raises(RecursionError, match=r"'endless' called itself \d{5,} calls deep.*with ab.while_loop"):
        endless(1.0, 1.0)
    assert sys.getrecursionlimit() == before
    assert counted(0, 5) == 5


def test_too_deep_to_interpret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anabranch.engine.runtime.interpreter.FRAMES_OF_INTERPRETER", 4000)
    with Graph().as_default() as graph:
        y = endless(ab.constant(1.0), ab.constant(1.0))
        with pytest.raises(RecursionError, match=r"'endless' called itself \d{3} calls deep"):
            Interpreter().run(graph, [y])


def test_programs_with_recursion_run_side_by_side():
    before = sys.getrecursionlimit()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: int(counted(0, n)), [3000, 10, 5000, 1, 4000, 2000]))
    assert found == [3000, 10, 5000, 1, 4000, 2000]
    assert sys.getrecursionlimit() == before


# --- with the rest of the engine ------------------------------------------------------------------------------------


def test_saving_and_loading(tmp_path: Path):
    with Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64", name="x"), ab.placeholder((), "int32", name="n")
        y = recursive(FUNCTIONS["two calls"], ab.Variable(0.7, dtype="float64"))(x, n)
        (dx,) = ab.gradients(y, [x])
        (ddx,) = ab.gradients(dx, [x])
        graph.save(tmp_path / "graph.zip")
        (expected,) = ab.gradients(ddx, [x])
        want = ab.Session().run([y, dx, ddx, expected], {x: 0.9, n: 3})
    loaded = ab.load_graph(tmp_path / "graph.zip")
    with loaded.as_default():
        tensors = [loaded.get_tensor_by_name(tensor.name) for tensor in (x, n, y, dx, ddx)]
        (third,) = ab.gradients(tensors[-1], [tensors[0]])
        found = run_both_ways(loaded, [*tensors[2:], third], {tensors[0]: 0.9, tensors[1]: 3})
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_fetching_from_inside_gives_the_first_call():
    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        y = doubled(x, ab.constant(3))
        (recursion,) = recursions(graph)
        (test,) = [o.outputs[0] for o in recursion.body.operations if o.type == "less_equal"]
        (_, value) = ab.Session().run([y, test], {x: 1.0})
    assert value == np.False_


def test_numerics_guard():
    @ab.function
    def shrink(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: ops.log(x), lambda: shrink(x - 1.0, n - 1))

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        (dx,) = ab.gradients(shrink(x, ab.constant(3)), [x])
        guarded = Program(graph, [dx], [x], exact=True, guard=True)
        assert guarded(np.float32(5.0)) == (np.float32(0.5),)
        with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match=r"divide|reciprocal|log"):
            guarded(np.float32(3.0))


def test_partial_runs():
    with Graph().as_default():
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        y = doubled(x, n)
        (dx,) = ab.gradients(y * y, [x])
        session = ab.Session()
        handle = session.partial_run_setup([y, dx], [x, n])
        assert session.partial_run(handle, y, {x: 1.5, n: 2}) == 6
        assert session.partial_run(handle, dx) == 48


def test_work_in_loops_inside_leaves_them():
    """Fission of loops in a body: the products of a recurrent cell, differentiated."""
    rng = np.random.default_rng(2)
    rows, kernel = rng.normal(size=(4, 1, 3)), rng.normal(size=(3, 3)) * 0.5
    with Graph().as_default() as graph:
        w, n = ab.placeholder((3, 3), "float64"), ab.placeholder((), "int32")
        data = ab.constant(rows)

        def swept(h: Any) -> Any:
            return ab.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, ops.tanh(data[i] @ w + h @ w)), (0, h))[1]

        @ab.function
        def f(h: Any, n: Any) -> Any:
            return ab.cond(n <= 0, lambda: h, lambda: f(swept(h), n - 1))

        start = ops.zeros((1, 3), "float64")
        y, z = f(start, n), swept(swept(start))
        targets = [ops.sum(y), ops.sum(z)]
        for _ in range(2):
            targets += [ops.sum(ab.gradients(t, [w])[0] ** 2) for t in targets[-2:]]
        found = run_both_ways(graph, targets, {w: kernel, n: 2})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_a_record_adds_what_both_have():
    a = Record({"x": 1.0, "inner": Record({"y": np.ones(2)})})
    b = Record({"z": 2.0, "inner": Record({"y": np.ones(2), "w": 3.0})})
    total = a + b
    assert (total.entries["x"], total.entries["z"]) == (1, 2)
    inner = total.entries["inner"].entries
    assert (inner["y"].tolist(), inner["w"]) == ([2, 2], 3)
    assert a.entries["inner"].entries["y"].tolist() == [1, 1]
