"""Kernels that take long release the interpreter's lock, and short ones keep it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from shared.long_kernels import LONG_KERNELS, step_of

from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

_NEVER = 1e6  # seconds


@pytest.mark.parametrize("name", LONG_KERNELS)
def test_kernels_release_the_lock_when_they_take_long(name: str) -> None:
    step = step_of(name)
    with threads.patience(_NEVER):
        before, expected = threads.times_released(), step()
        assert threads.times_released() == before
    with threads.patience(0):
        for _ in range(1000):  # other threads may take all parts
            np.testing.assert_array_equal(step(), expected)
            if threads.times_released() > before:
                return
    pytest.fail("no kernel has released the lock")


# The first part of a job waits until a number in memory is not 0, for some ten seconds at most; the second does
# nothing.
_WAITING = """
define void @wait(ptr %context, i64 %part) {
entry:
  %is_first = icmp eq i64 %part, 0
  br i1 %is_first, label %look, label %done
look:
  %times = phi i64 [0, %entry], [%more, %again]
  %answer = load atomic i64, ptr %context seq_cst, align 8
  %is_here = icmp ne i64 %answer, 0
  br i1 %is_here, label %done, label %again
again:
  %more = add i64 %times, 1
  %is_over = icmp sgt i64 %more, 20000000000
  br i1 %is_over, label %done, label %look
done:
  ret void
}
define void @ask(ptr %context) {
  call void @anabranch_parallel(ptr @wait, ptr %context, i64 2)
  ret void
}
define void @nested(ptr %context, i64 %part) {
  call void @anabranch_parallel(ptr @wait, ptr %context, i64 2)
  ret void
}
define void @ask_inside(ptr %context) {
  call void @anabranch_parallel(ptr @nested, ptr %context, i64 2)
  ret void
}
"""


@pytest.mark.parametrize("name", ["ask", "ask_inside"])
def test_another_thread_runs_while_a_kernel_computes(name: str) -> None:
    """The kernel ends when the other thread has written what it waits for: it has to run until then."""
    engine = library.load(_WAITING, lambda: _WAITING)
    function = ctypes.PYFUNCTYPE(None, ctypes.c_size_t)(engine.get_function_address(name))
    answer, gate = np.zeros(1, "int64"), threading.Lock()

    def run() -> None:
        with gate:
            answer[0] = 1

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    gate.acquire()
    try:
        sys.setswitchinterval(1000)  # seconds: nothing else lets the other thread run
        thread.start()
        gate.release()
        with threads.patience(0):
            function(answer.ctypes.data)
        assert answer[0] == 1
    finally:
        sys.setswitchinterval(interval)
        thread.join()


_EXIT = """
import threading
import numpy as np
import anabranch as ab
from anabranch.engine.codegen.host import threads

with ab.Graph().as_default() as graph:
    x = ab.placeholder((300, 400), "float32")
    y = ab.ops.sum(ab.ops.tanh(x @ x.T))
call = ab.Session(graph).make_callable(y, [x])
value, begun = np.ones((300, 400), "float32"), threading.Event()
call(value)

def work():
    with threads.patience(0):
        while True:
            call(value)
            begun.set()

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_process_ends_while_a_kernel_is_without_the_lock() -> None:
    done = subprocess.run([sys.executable, "-c", _EXIT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_FORK = """
import os, signal, threading
import numpy as np
import anabranch as ab
from anabranch.engine.codegen.host import threads

with ab.Graph().as_default() as graph:
    x = ab.placeholder((300, 400), "float32")
    y = ab.ops.sum(ab.ops.softmax(x @ x.T))
call = ab.Session(graph).make_callable(y, [x])
value, ends = np.ones((300, 400), "float32"), threading.Event()
expected = call(value)

def work():
    while not ends.is_set():
        assert call(value) == expected

threads.patience(0).__enter__()
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(7 if [call(value) for _ in range(5)] == [expected] * 5 else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ends.set()
for worker in workers:
    worker.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_is_forked_while_kernels_are_without_the_lock() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
