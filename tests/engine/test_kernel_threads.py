"""The threads that kernels share: every part once, nested and concurrent jobs, child processes, how many they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

# Each part adds 1 to a number of its own; `nested` starts a job in every part, `deep` jobs with such parts. The last
# part of `meeting` has a job of two parts, each of which waits until the other one has begun.
SCRIPT = '''
import ctypes, os, sys, threading
import numpy as np
from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm.library import library

TEXT = """
define void @task(ptr %context, i64 %part) {
  %q = getelementptr i64, ptr %context, i64 %part
  %v = load i64, ptr %q
  %n = add i64 %v, 1
  store i64 %n, ptr %q
  ret void
}
define void @nesting(ptr %context, i64 %part) {
  %q = getelementptr [8 x i64], ptr %context, i64 %part
  call void @anabranch_parallel(ptr @task, ptr %q, i64 8)
  ret void
}
define void @deeper(ptr %context, i64 %part) {
  %q = getelementptr [40 x i64], ptr %context, i64 %part
  call void @anabranch_parallel(ptr @nesting, ptr %q, i64 5)
  ret void
}
define void @meet(ptr %context, i64 %part) {
entry:
  %begun = atomicrmw add ptr %context, i64 1 seq_cst
  br label %wait
wait:
  %count = load atomic i64, ptr %context seq_cst, align 8
  %both = icmp sge i64 %count, 2
  br i1 %both, label %done, label %wait
done:
  ret void
}
define void @sometimes(ptr %context, i64 %part) {
entry:
  %last = icmp eq i64 %part, 2
  br i1 %last, label %together, label %done
together:
  call void @anabranch_parallel(ptr @meet, ptr %context, i64 2)
  br label %done
done:
  ret void
}
define void @deep(ptr %context, i64 %parts) {
  call void @anabranch_parallel(ptr @deeper, ptr %context, i64 %parts)
  ret void
}
define void @meeting(ptr %context, i64 %parts) {
  call void @anabranch_parallel(ptr @sometimes, ptr %context, i64 %parts)
  ret void
}
define void @once(ptr %context, i64 %parts) {
  call void @anabranch_parallel(ptr @task, ptr %context, i64 %parts)
  ret void
}
define void @nested(ptr %context, i64 %parts) {
  call void @anabranch_parallel(ptr @nesting, ptr %context, i64 %parts)
  ret void
}
"""
assert library.usable
engine = library.load(TEXT, lambda: TEXT)

def function(name):
    # Without the interpreter's lock, so that jobs of several callers meet.
    return ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)(engine.get_function_address(name))

once, nested, deep, meeting = (function(name) for name in ("once", "nested", "deep", "meeting"))

def count(parts, times=500):
    numbers = np.zeros(parts + 1, "int64")
    for _ in range(times):
        once(numbers.ctypes.data, parts)
    assert numbers.tolist() == [times] * parts + [0], (parts, numbers)

for parts in (0, 1, 2, 3, 7, 64):
    count(parts)
for parts in (1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
    count(parts, times=1)
numbers = np.zeros((5, 8), "int64")
nested(numbers.ctypes.data, 5)
assert (numbers == 1).all()

def count_deep(times):
    numbers = np.zeros((7, 5, 8), "int64")
    for _ in range(times):
        deep(numbers.ctypes.data, 7)
    assert (numbers == times).all()

for _ in range(300 if threads.thread_count() > 1 else 0):
    begun = np.zeros(1, "int64")
    meeting(begun.ctypes.data, 3)
    assert begun == 2
callers = [threading.Thread(target=count, args=(9, 2000)) for _ in range(4)]
callers += [threading.Thread(target=count_deep, args=(200,)) for _ in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
child = os.fork()
if not child:
    count(6)
    count_deep(5)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(threads.thread_count(), sum(t.name.startswith("anabranch kernels") for t in threading.enumerate()))
'''


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_part_runs_once(count: int):
    environment = {**os.environ, "ANABRANCH_NUM_THREADS": str(count)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(count), str(count - 1)]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ANABRANCH_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"ANABRANCH_NUM_THREADS": "many", "OMP_NUM_THREADS": "4"}, 4),
        ({"ANABRANCH_NUM_THREADS": "100000"}, 64),
    ],
)
def test_number_of_threads(variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch):
    from anabranch.engine.codegen.host import threads

    for name in ("ANABRANCH_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads.wanted_threads() == expected


def test_number_of_processors_unless_told(monkeypatch: pytest.MonkeyPatch):
    from anabranch.engine.codegen.host import threads

    monkeypatch.delenv("ANABRANCH_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= threads.wanted_threads() <= (os.cpu_count() or 1)


class Pauses:
    """A clock that pauses move on, each trial by another time a pause."""

    def __init__(self, *nanoseconds: float) -> None:
        self.now, self.left = 5.0, list(nanoseconds)

    def repeat(self, count: int) -> None:
        self.now += count * self.left.pop(0) * 1e-9

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [((25, 25, 25), 4000), ((60, 900, 50), 2000), ((0, 0, 0), 100_000_000), ((9000, 9000, 9000), 1000)],
)
def test_looks_for_work_in_a_time(nanoseconds: tuple[float, ...], expected: int):
    """By the quickest trial, and a thousand times at least: a machine may be busy in all of them."""
    from anabranch.engine.codegen.host.threads import repeats_within

    pauses = Pauses(*nanoseconds)
    assert repeats_within(1e-4, pauses.repeat, pauses.clock) == pytest.approx(expected, rel=1e-3)
