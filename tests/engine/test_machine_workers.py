"""Long kernels on worker threads: the loop of a step goes on without them, and takes what they give or raise."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.machines import Log, as_asked, assert_nothing_left, chain, graph_on, idle_step, latest_step, run
from shared.waiting import PATIENCE, Waiting

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.machine.program import MachineProgram

SIDE = 100  # of matrices of which a chain of operations takes long


graph = graph_on(cpu=4)


@pytest.fixture
def all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an operation takes is long."""
    assume(monkeypatch, long_seconds=-1.0)


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, assign=as_asked(), **options)


def called(function: Any, x: Tensor, name: str | None = None) -> Tensor:
    return ops.numpy_function(function, [x], x.dtype, stateful=False, shape=x.shape, name=name)


def test_the_loop_goes_on_while_a_long_kernel_runs():
    x, large = ab.placeholder((), "float32", "x"), ab.placeholder((SIDE, SIDE), "float32", "large")
    is_there = threading.Event()

    def wait(value: Any) -> Any:
        assert is_there.wait(PATIENCE)
        return value

    def tell(value: Any) -> Any:
        is_there.set()
        return value

    waits = called(wait, chain(large, 100))
    with ab.device("cpu:1"):
        tells = called(tell, x + 1.0)
    program = machine([waits, tells], [large, x])
    assert program.source.count("submit(") == 1
    found = run(program, [np.zeros((SIDE, SIDE), np.float32), np.float32(1)])
    assert not found[0].any()
    assert found[1] == 2


def test_products_in_a_loop_over_devices():
    side = 3 * SIDE
    x = ab.placeholder((side, side), "float32", "x")

    def body(i: Tensor, a: Tensor, b: Tensor) -> Any:
        with ab.device("cpu:1"):
            product = ops.tanh(a @ b * 0.01)
        return i + 1, product, ops.tanh(b @ a * 0.01)

    _, a, b = fetches = ab.while_loop(lambda i, *_: i < 5, body, (0, x, x * 0.5))
    value = np.random.default_rng(0).normal(size=(side, side)).astype(np.float32)
    expected = (5, value, value * np.float32(0.5))
    for _ in range(5):
        _, one, other = expected
        scale = np.float32(0.01)
        expected = (5, np.tanh(one @ other * scale), np.tanh(other @ one * scale))
    for seed in (None, 0, 1):
        program = machine(fetches, [x], seed=seed)
        assert program.source.count("submit(") >= 2
        found = run(program, [value])
        for value_found, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value_found, wanted, rtol=1e-4, atol=1e-5)
    assert a.shape == b.shape


@pytest.mark.usefixtures("all_apart")
def test_an_error_on_a_worker_tells_operation_device_and_iteration():
    x, bad = ab.placeholder((), "float32", "x"), ab.placeholder((), "int32", "bad")

    def fragile(i: Any, bad: Any, y: Any) -> Any:
        if i == bad:
            raise LookupError("on a worker")
        return y

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = ops.numpy_function(fragile, [i, bad, y], "float32", stateful=False, shape=(), name="fragile")
        return i + 1, y * 2.0

    program = machine(ab.while_loop(lambda i, _: i < 5, body, (0, x), name="loop"), [x, bad], clusters=False)
    step = idle_step(program)
    with pytest.raises(LookupError, match="on a worker") as caught:
        run(program, [np.float32(1), np.int32(3)])
    (note,) = caught.value.__notes__
    told = r"In operation 'fragile' \(numpy_function\) on cpu:1, iteration 3 of 'loop/while'; inputs: .*; defined at .*"
    assert re.fullmatch(told, note), note
    assert not step.outstanding
    assert run(program, [np.float32(1), np.int32(9)]) == (5, 32)
    assert_nothing_left(latest_step(program))


def test_a_step_that_fails_does_not_wait_for_what_is_under_way():
    """Its later results are dropped."""
    x, large = ab.placeholder((), "float32", "x"), ab.placeholder((SIDE, SIDE), "float32", "large")
    may_end, has_begun, has_ended = threading.Event(), threading.Event(), threading.Event()

    def wait(value: Any) -> Any:
        has_begun.set()
        assert may_end.wait(PATIENCE)
        has_ended.set()
        return value

    def fail(value: Any) -> Any:
        assert has_begun.wait(PATIENCE)
        if value > 0:
            raise ValueError("positive")
        return value

    waits = called(wait, chain(large, 100))
    with ab.device("cpu:1"):
        fails = called(fail, x)
    program = machine([ops.sum(waits), fails], [large, x])  # runs in the order in which it is fed
    step = idle_step(program)
    value = np.zeros((SIDE, SIDE), np.float32)
    failing = Waiting(lambda: program(value, np.float32(1)))
    with pytest.raises(ValueError, match="positive"):
        failing.result()
    assert not has_ended.is_set()
    assert not step.outstanding
    may_end.set()
    assert has_ended.wait(PATIENCE)
    assert run(program, [value, np.float32(-1)]) == (0, -1)


@pytest.mark.usefixtures("all_apart")
def test_effects_on_workers_keep_their_order():
    log, v = Log(), ab.Variable(0.0, dtype="float32", name="v")

    def body(i: Tensor, y: Tensor) -> Any:
        v.assign(log.note("near", i, v.value * 2.0 + 1.0, ordered=True))
        with ab.device("cpu:1"):
            y = log.note("far", i, v.value + y, ordered=True)
        return i + 1, y

    _, y = ab.while_loop(lambda i, _: i < 6, body, (0, 0.0))
    program = machine([y], clusters=False)
    assert run(program, []) == (1 + 3 + 7 + 15 + 31 + 63,)
    assert log.entries == [(name, i) for i in range(6) for name in ("near", "far")]
    assert v.numpy() == 63


def busy(value: Any) -> Any:
    """Takes some milliseconds."""
    until = time.perf_counter() + 5e-3
    while time.perf_counter() < until:
        pass
    return value


def test_python_functions_that_took_long_overlap():
    """Functions on two devices that each wait for the other one: in turns they would wait forever."""
    met = threading.Barrier(2, timeout=PATIENCE)
    x = ab.placeholder((3,), "float32", "x")
    runs: list[int] = []

    def meet(value: Any) -> Any:
        runs.append(1)
        if len(runs) > 2:
            met.wait()
        return busy(value) + 1.0

    with ab.device("cpu:0"):
        y = called(meet, x)
    with ab.device("cpu:1"):
        z = called(meet, x)
    program = machine([y, z], [x])
    for _ in range(3):
        for found in run(program, [np.zeros(3, "float32")]):
            np.testing.assert_array_equal(found, np.ones(3))
    assert len(runs) == 6


def test_a_function_on_a_worker_may_run_a_step_that_writes_what_its_own_step_writes():
    v = ab.Variable(np.zeros(3, "float32"))
    with ab.Graph().as_default() as inner:
        change = v.assign_add(np.ones(3, "float32"))
    nested = ab.Session(inner)

    def changed(value: Any) -> Any:
        return nested.run(change) + busy(value)

    x = ab.placeholder((3,), "float32", "x")
    with ab.device("cpu:1"):
        y = called(changed, x)
    with ab.device("cpu:0"):
        z = v.assign(y * 2.0)
    program = machine([z.operation], [x])
    for expected in (2.0, 6.0, 14.0):
        run(program, [np.zeros(3, "float32")])
        np.testing.assert_array_equal(v.numpy(), np.full(3, expected))
