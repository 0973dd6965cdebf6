"""Kernels that take long are ended by interrupts, deadlines and closed sessions; writes are done or not begun."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from shared.long_kernels import LONG_KERNELS, step_of
from shared.symbols import symbol_of
from shared.waiting import PATIENCE

import anabranch as ab
from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.common.deadlines import deadline
from anabranch.engine.queues.errors import CancelledError, DeadlineExceededError
from anabranch.engine.queues.stops import Stop

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


@contextmanager
def _looking_often() -> Generator[None]:
    """Have kernels release the lock at once, and look before each part whether they are to be ended."""
    with threads.patience(0, interval=0):
        yield


def _raised_by(step: Callable[[], Any], *kinds: type[BaseException]) -> BaseException | None:
    """Return what a step raises in one of many runs: other threads may take all parts before the kernel looks."""
    for _ in range(1000):
        try:
            step()
        except kinds as error:
            return error
    return None


@pytest.mark.parametrize("name", LONG_KERNELS)
def test_kernels_end_when_their_step_has_to(name: str) -> None:
    step, stop = step_of(name), Stop()
    expected = step()
    with _looking_often():
        np.testing.assert_array_equal(step(), expected)
        with stop:
            np.testing.assert_array_equal(step(), expected)
            stop.ask()
            assert isinstance(_raised_by(step, CancelledError), CancelledError)
            stop.withdraw()
            np.testing.assert_array_equal(step(), expected)


# A call that counts its parts, and may be ended; parts take no time.
_PARTS = 100_000
_COUNTING = f"""
define void @count(ptr %counter, i64 %part) {{
  %before = atomicrmw add ptr %counter, i64 1 seq_cst
  ret void
}}
define void @ask(ptr %counter) {{
  call void @anabranch_begin_endable()
  call void @anabranch_parallel(ptr @count, ptr %counter, i64 {_PARTS})
  call void @anabranch_parallel(ptr @count, ptr %counter, i64 {_PARTS})
  call void @anabranch_end_endable()
  ret void
}}
declare i32 @getpid()
declare i32 @kill(i32, i32)
define void @count_after_signal(ptr %counter, i64 %part) {{
entry:
  %is_first = icmp eq i64 %part, 0
  br i1 %is_first, label %send, label %done
send:
  %process = call i32 @getpid()
  %failed = call i32 @kill(i32 %process, i32 {int(signal.SIGINT)})
  br label %done
done:
  %before = atomicrmw add ptr %counter, i64 1 seq_cst
  ret void
}}
define void @interrupted(ptr %counter) {{
  call void @anabranch_begin_endable()
  call void @anabranch_parallel(ptr @count_after_signal, ptr %counter, i64 {_PARTS})
  call void @anabranch_parallel(ptr @count, ptr %counter, i64 {_PARTS})
  call void @anabranch_end_endable()
  ret void
}}
define void @ask_whole(ptr %counter) {{
  call void @anabranch_parallel(ptr @count, ptr %counter, i64 {_PARTS})
  ret void
}}
"""


def _counting(name: str) -> tuple[Callable[[], None], Any]:
    """Return a call that counts parts, and the counter."""
    assert library.offer_system(["raise"])
    engine = library.load(_COUNTING, lambda: _COUNTING)
    function = ctypes.PYFUNCTYPE(None, ctypes.c_size_t)(engine.get_function_address(name))
    counter = np.zeros(1, "int64")
    return lambda: function(counter.ctypes.data), counter


def test_parts_that_nobody_has_begun_are_left_out() -> None:
    call, counter = _counting("ask")
    with _looking_often():
        call()
        assert counter[0] == 2 * _PARTS
        with deadline(0):
            assert isinstance(_raised_by(call, DeadlineExceededError), DeadlineExceededError)
        assert counter[0] % (2 * _PARTS) != 0
        before = int(counter[0])
        call()
        assert counter[0] == before + 2 * _PARTS


def test_calls_that_may_not_be_ended_are_complete() -> None:
    call, counter = _counting("ask_whole")
    with _looking_often(), deadline(0):
        call()
    assert counter[0] == _PARTS


def test_an_interrupt_ends_a_kernel_and_is_raised() -> None:
    """The first part sends the signal to its own process."""
    call, counter = _counting("interrupted")

    def call_and_wait() -> None:
        call()
        threading.Event().wait(PATIENCE)  # the signal may arrive behind the last part

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _looking_often():
            for _ in range(1000):
                counter[0] = 0
                with pytest.raises(KeyboardInterrupt):
                    call_and_wait()
                if counter[0] < 2 * _PARTS:  # else other threads took all parts before the kernel looked
                    return
    finally:
        signal.signal(signal.SIGINT, before)
    pytest.fail("no interrupt has ended the kernel")


def test_a_handler_of_signals_may_run_kernels_while_one_looks() -> None:
    """It takes the lock and releases it for kernels of its own, and the one below goes on."""
    call, counter = _counting("ask")
    step = step_of("product")
    expected, found = step(), list[Any]()
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda *_: found.append(step()))
    try:
        with _looking_often():
            signal.setitimer(signal.ITIMER_REAL, 1e-6)
            while not found:
                call()
                assert counter[0] % (2 * _PARTS) == 0
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(found[0], expected)


_FORKING = """
import os, signal, threading
import numpy as np
import anabranch as ab
from anabranch.engine.codegen.host import threads

with ab.Graph().as_default() as graph:
    x = ab.placeholder((300, 400), "float32")
    y = ab.ops.softmax(x @ x.T)
call = ab.Session(graph).make_callable(y, [x])
value = np.random.default_rng(5).normal(size=(300, 400)).astype("float32")
expected, codes = call(value), []

def fork(*_):
    child = os.fork()
    if not child:
        os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

signal.signal(signal.SIGALRM, fork)
with threads.patience(0, interval=0):
    for count in range(5):
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        while len(codes) == count:
            np.testing.assert_array_equal(call(value), expected)
assert set(codes) == {7}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_handler_of_signals_may_fork_while_a_kernel_looks() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_timeout_ends_a_product_and_lets_an_update_in_place_be_done() -> None:
    rows = np.random.default_rng(5).normal(size=(700, 500)).astype("float32")
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(rows.shape, "float32")
        v = ab.Variable(np.ones(rows.shape, "float32"))
        product = symbol_of(x) @ ab.ops.transpose(symbol_of(x))
        update = v.assign(ab.ops.tanh(v) * 0.5)
    session = ab.Session(graph)
    session.run(product, {x: rows})
    session.run(update)
    expected = np.array(v.value)
    with _looking_often():
        error = _raised_by(lambda: session.run(product, {x: rows}, timeout=0), DeadlineExceededError)
        assert "The timeout was over while the step computed an operation. Give a longer timeout." in str(error)
        session.run(update, timeout=0)
    np.testing.assert_allclose(v.value, np.tanh(expected) * 0.5, rtol=1e-5)


def test_a_step_that_writes_is_ended_before_its_write_or_not_at_all() -> None:
    rows = np.random.default_rng(5).normal(size=(400, 600)).astype("float32")
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(rows.shape, "float32")
        v, w = (ab.Variable(np.zeros((400, 600), "float32"), name=name) for name in "vw")
        change = ab.ops.tanh(symbol_of(x)) @ ab.ops.transpose(symbol_of(x)) @ symbol_of(x)
        results = [v.assign(v + change), w.assign(w - ab.ops.exp(change * 1e-6))]
    call, stop = ab.Session(graph).make_callable(results, [x]), Stop()
    call(rows)
    first_v, first_w = (np.array(variable.value) for variable in (v, w))
    call(rows)
    then_v, then_w = (np.array(variable.value) for variable in (v, w))
    has_ended = False
    with _looking_often(), stop:
        stop.ask()
        for _ in range(1000):
            v.assign(first_v)
            w.assign(first_w)
            try:
                call(rows)
            except CancelledError:
                has_ended = True
                np.testing.assert_array_equal(v.value, first_v)
                np.testing.assert_array_equal(w.value, first_w)
                break
            np.testing.assert_array_equal(v.value, then_v)
            np.testing.assert_array_equal(w.value, then_w)
    assert has_ended
