"""Processes that are forked while another thread compiles: the child compiles, too, and nothing hangs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.sample import first_of

from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.common import forks

pytestmark = [
    pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

_BEGIN = """
import os, signal, sys, threading
import numpy as np
import anabranch as ab

def step(size, factor):
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((size, 3), "float32")
        y = ab.ops.sum(ab.ops.tanh(x) * factor + ab.ops.exp(x * 0.0), axis=1)
    return ab.Session(graph).run(y, {x: np.zeros((size, 3), "float32")})

def forked(work):
    child = os.fork()
    if not child:
        signal.alarm(40)
        work()
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, f"the child hangs or fails: {code}"
"""

# Hooks that were registered later are called earlier: the thread still has the lock when the first hook is called.
_LOCKED = """
step(5, 2.0)
import llvmlite.binding.ffi
locked, go = threading.Event(), threading.Event()

def hold():
    with llvmlite.binding.ffi.lib._lock:
        locked.set()
        go.wait()

thread = threading.Thread(target=hold, daemon=True)
thread.start()
locked.wait()
os.register_at_fork(before=go.set)
forked(lambda: step(6, 3.0))
thread.join()
step(8, 5.0)
"""

_COMPILING = """
step(5, 2.0)
ends = False

def compile_on():
    number = 0
    while not ends:
        number += 1
        step(7 + number % 100, float(number))

threads = [threading.Thread(target=compile_on, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(8):
    forked(lambda: step(200 + number, 0.5))
ends = True
for thread in threads:
    thread.join()
"""

# A thread imports what it uses while the process is forked; the child uses the same.
_IMPORTING = """
def look_up():
    ab.tree
    going.set()
    for name in ["Sequential", "Session", "GradientTape", "load_graph", "load_model", "explain"]:
        getattr(ab, name)

going = threading.Event()
thread = threading.Thread(target=look_up, daemon=True)
thread.start()
going.wait()
for number in range(3):
    forked(lambda: (ab.Session, ab.load_model, ab.Sequential, step(6, 3.0)))
thread.join()
"""

_WORKERS = """
step(5, 2.0)
ab.config.set_devices(cpu=2)
with ab.Graph().as_default() as graph:
    x = ab.placeholder((400, 400), "float32")
    with ab.device("cpu:1"):
        y = x @ x
    with ab.device("cpu:0"):
        z = y @ x
session, ones = ab.Session(graph), np.ones((400, 400), "float32")

def run():
    np.testing.assert_allclose(session.run(z, {x: ones}), 160000.0)

run()
forked(run)
"""

# Another thread holds the locks that the engine's modules share, wherever it is in their short sections.
_SHORT_LOCKS = """
step(5, 2.0)
from anabranch.engine.common.forks import _locks
held, go = threading.Event(), threading.Event()

def hold():
    locks = list(_locks)
    for lock in locks:
        lock.acquire()
    held.set()
    go.wait()
    for lock in locks:
        lock.release()

generator = ab.random.SeedGenerator(3)
thread = threading.Thread(target=hold, daemon=True)
thread.start()
held.wait()
forked(lambda: (step(6, 3.0), ab.ops.exp(np.ones(3)), ab.random.uniform((2,)), generator.next()))
go.set()
thread.join()
step(8, 5.0)
"""

# As the process is forked, other threads compute a variable's first value, write rows of one, and copy one to do so.
_VARIABLES = """
from anabranch.engine.graph.state import writing_rows
from anabranch.engine.graph.state.initial_values import Given
from anabranch.engine.graph.state.writing_rows import memory_of, write_in_memory

parent, go = os.getpid(), threading.Event()

def pause(begun):
    if os.getpid() == parent:
        begun.set()
        go.wait()

class Late(Given):
    def compute(self):
        array = super().compute()
        pause(computing)
        return array

def write():
    memory_of(table)[0] = 5.0
    pause(writing)

class SlowCopies:
    ndarray = np.ndarray

    @staticmethod
    def array(array, order):
        pause(copying)
        return np.array(array, order=order)

def check(first, table):
    assert first.numpy().tolist() == [2.0, 2.0]
    first.assign_add([1.0, 2.0])
    assert first.numpy().tolist() == [3.0, 4.0]
    assert table.numpy().tolist() == [5.0, 1.0]
    write_in_memory([table], lambda: memory_of(table).fill(7.0))
    assert table.numpy().tolist() == [7.0, 7.0]

def check_in_child():
    check(first, table)
    assert shared.numpy().tolist() == [1.0, 1.0]
    mine.lock.release()
    mine.assign_add(1.0)

computing, writing, copying = threading.Event(), threading.Event(), threading.Event()
first, table = ab.Variable(Late(np.full(2, 2.0, "float32"))), ab.Variable([1.0, 1.0])
shared = ab.Variable([1.0, 1.0])
shown = shared._value
writing_rows.np = SlowCopies
threads = [threading.Thread(target=first.numpy), threading.Thread(target=write_in_memory, args=([table], write))]
threads.append(threading.Thread(target=write_in_memory, args=([shared], lambda: memory_of(shared).fill(5.0))))
for thread in threads:
    thread.daemon = True
    thread.start()
computing.wait(), writing.wait(), copying.wait()
mine = ab.Variable(3.0)
with mine.lock:  # this thread goes on in the child
    forked(check_in_child)
go.set()
for thread in threads:
    thread.join()
check(first, table)
assert shared.numpy().tolist() == [5.0, 5.0]
"""


SCRIPTS = {
    "variables": _VARIABLES,
    "short": _SHORT_LOCKS,
    "locked": _LOCKED,
    "compiling": _COMPILING,
    "importing": _IMPORTING,
    "workers": _WORKERS,
}


@pytest.mark.parametrize("name", first_of(SCRIPTS, 4))
def test_a_child_compiles_and_runs(name: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _BEGIN + SCRIPTS[name]],
        env={**os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path), "ANABRANCH_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_locks_of_modules_are_free_in_a_child() -> None:
    """A thread may hold a lock at any moment, so each that a module keeps for the whole process has to be known."""
    engine = Path(forks.__file__).parents[1]
    names = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
    found = [
        f"{path.relative_to(engine)}:{statement.lineno}"
        for path in sorted(engine.rglob("*.py"))
        if path != Path(forks.__file__)
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call)
        if ast.unparse(statement.value.func).removeprefix("threading.") in names
    ]
    assert not found, f"use `fork_safe_lock` in place of {found}"
