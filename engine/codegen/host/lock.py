"""The interpreter's lock: kernels that take long let go of it, so that Python's other threads run meanwhile.

A kernel is called with the lock, as any function of Python's C interface. Where the kernels of a thread have run for as
long as Python lets a thread run that others wait for (5 ms, `sys.getswitchinterval`), the present one lets go of the
lock, and takes it again at its end. So a short kernel never waits for the lock, and a thread that computes in Python
beside kernels gets half of the time, as beside another thread in Python.

A kernel has no estimate of its time: the thread that has called it reads a clock before each of its parts
(`anabranch_let_go`), and while it waits for those of others. Only that thread's outermost job gives back the lock, so
nobody who waits for the lock keeps others waiting for parts.

The caller of a kernel holds its operands, so that they stay where they are. A thread that forks waits until no kernel
is without the lock (`anabranch_settle`): so no part of a kernel is half done in the child process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PATIENCE = 5e-3  # seconds for which a kernel holds the lock
GAP = 2e-4  # seconds between jobs of one thread, such as the next part of a kernel, that count as kernels
LET_GO = "anabranch_let_go"
DECLARATIONS = f"declare void @{LET_GO}()\n"
NEEDED = "pthread_key_create", "pthread_getspecific", "pthread_setspecific", "sched_yield"
_X86 = "x86_64", "i686", "amd64"
_LEAST = 2e-4  # seconds: over so long ticks are counted


def _held() -> str:
    """Return the name of the function of Python that says whether this thread has the lock."""
    if sys.version_info >= (3, 13):
        return "PyThreadState_GetUnchecked"
    return "_PyThreadState_UncheckedGet" if sys.version_info >= (3, 12) else "PyGILState_Check"


PYTHON = "PyEval_SaveThread", "PyEval_RestoreThread", _held()


def module(host: str) -> str:
    """Return the functions as LLVM IR, for a processor."""
    kind = "i32" if PYTHON[-1].endswith("_Check") else "ptr"
    ticks = _TICKS_X86 if host.startswith(_X86) else _TICKS.replace("CLOCK", str(time.CLOCK_MONOTONIC))
    held = _MODULE.replace("HELD", PYTHON[-1]).replace("KIND", kind).replace("NONE", "0" if kind == "i32" else "null")
    return ticks + held


def system_names(host: str) -> tuple[str, ...]:
    """Return the functions of the system's library that the module calls."""
    return NEEDED if host.startswith(_X86) else (*NEEDED, "clock_gettime")


def ticks_each_second(ticks: Callable[[], int]) -> float:
    """Return how often the clock ticks that kernels read."""
    began, first = time.perf_counter(), ticks()
    while (now := time.perf_counter()) - began < _LEAST:
        pass
    return (ticks() - first) / (now - began)


_TICKS_X86 = """
declare i64 @llvm.readcyclecounter()
define i64 @anabranch_ticks() {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
"""
_TICKS = """
declare i32 @clock_gettime(i32, ptr)
define i64 @anabranch_ticks() {
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}
"""

# A thread in a job has, by @lock_key, the address of a cell in the frame of its outermost one: what Python gave for the
# lock, or null while the thread has that. Kernels of the thread that has the lock run since @lock_began, with gaps of
# @lock_gap at most; @lock_ended is when the last one ended. Threads without the lock change these, too, which at worst
# makes a kernel let go a little earlier or later. @lock_running counts the kernels without the lock, and @lock_times
# how often one let go of it.
_MODULE = f"""
@lock_key = internal global i64 0
@lock_has_key = internal global i64 0
@lock_patience = internal global i64 {(1 << 63) - 1}
@lock_gap = internal global i64 0
@lock_began = internal global i64 0, align 128
@lock_ended = internal global i64 0
@lock_running = internal global i64 0, align 128
@lock_times = internal global i64 0

declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i64)
declare i32 @pthread_setspecific(i64, ptr)
declare i32 @sched_yield()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare KIND @HELD()

; Set for how many ticks kernels hold the lock, and how long gaps between their jobs may be.
define void @anabranch_patience(i64 %patience, i64 %gap) {{
entry:
  %known = load i64, ptr @lock_has_key
  %has_key = icmp ne i64 %known, 0
  br i1 %has_key, label %set, label %create
create:
  %failed = call i32 @pthread_key_create(ptr @lock_key, ptr null)
  %is_made = icmp eq i32 %failed, 0
  br i1 %is_made, label %made, label %none
made:
  store i64 1, ptr @lock_has_key
  br label %set
set:
  store i64 %patience, ptr @lock_patience
  store i64 %gap, ptr @lock_gap
  ret void
none:
  ret void
}}

; Begin a job; whether it is the outermost one of this thread.
define internal i1 @lock_begin(ptr %cell) {{
entry:
  %key = load i64, ptr @lock_key
  %outer = call ptr @pthread_getspecific(i64 %key)
  %is_inner = icmp ne ptr %outer, null
  br i1 %is_inner, label %inner, label %first
first:
  store ptr null, ptr %cell
  %failed = call i32 @pthread_setspecific(i64 %key, ptr %cell)
  %now = call i64 @anabranch_ticks()
  %ended = load atomic i64, ptr @lock_ended monotonic, align 8
  %most = load i64, ptr @lock_gap
  %gap = sub i64 %now, %ended
  %is_new = icmp sgt i64 %gap, %most
  br i1 %is_new, label %new, label %done
new:
  store atomic i64 %now, ptr @lock_began monotonic, align 8
  br label %done
done:
  ret i1 true
inner:
  ret i1 false
}}

; End the outermost job of this thread, which has the lock again.
define internal void @lock_end(ptr %cell) {{
entry:
  %key = load i64, ptr @lock_key
  %failed = call i32 @pthread_setspecific(i64 %key, ptr null)
  %state = load ptr, ptr %cell
  %is_held = icmp eq ptr %state, null
  br i1 %is_held, label %done, label %take
take:
  %before = atomicrmw sub ptr @lock_running, i64 1 seq_cst
  call void @PyEval_RestoreThread(ptr %state)
  %began = call i64 @anabranch_ticks()
  store atomic i64 %began, ptr @lock_began monotonic, align 8
  br label %done
done:
  %ended = call i64 @anabranch_ticks()
  store atomic i64 %ended, ptr @lock_ended monotonic, align 8
  ret void
}}

; Let go of the lock, if this thread is in a job and has it.
define internal void @lock_release() noinline cold {{
entry:
  %key = load i64, ptr @lock_key
  %cell = call ptr @pthread_getspecific(i64 %key)
  %is_out = icmp eq ptr %cell, null
  br i1 %is_out, label %done, label %look
look:
  %state = load ptr, ptr %cell
  %has_let_go = icmp ne ptr %state, null
  br i1 %has_let_go, label %done, label %ask
ask:
  %held = call KIND @HELD()
  %is_other = icmp eq KIND %held, NONE
  br i1 %is_other, label %done, label %release
release:
  %before = atomicrmw add ptr @lock_running, i64 1 seq_cst
  %times = atomicrmw add ptr @lock_times, i64 1 seq_cst
  %saved = call ptr @PyEval_SaveThread()
  store ptr %saved, ptr %cell
  br label %done
done:
  ret void
}}

; Let go of the lock, if kernels have run for long.
define void @{LET_GO}() {{
entry:
  %now = call i64 @anabranch_ticks()
  %began = load atomic i64, ptr @lock_began monotonic, align 8
  %patience = load i64, ptr @lock_patience
  %time = sub i64 %now, %began
  %is_long = icmp sgt i64 %time, %patience
  br i1 %is_long, label %release, label %done
release:
  call void @lock_release()
  ret void
done:
  ret void
}}

; How often a kernel has let go of the lock.
define i64 @anabranch_times_let_go() {{
  %times = load atomic i64, ptr @lock_times seq_cst, align 8
  ret i64 %times
}}

; Wait until no kernel is without the lock, which this thread has: so none can let go of it meanwhile.
define void @anabranch_settle() {{
entry:
  br label %look
look:
  %running = load atomic i64, ptr @lock_running seq_cst, align 8
  %none = icmp eq i64 %running, 0
  br i1 %none, label %done, label %wait
wait:
  %y = call i32 @sched_yield()
  br label %look
done:
  ret void
}}
"""

# Where the system lacks what that needs, kernels hold the lock.
WITHOUT = f"""
declare i32 @sched_yield()
define internal i1 @lock_begin(ptr %cell) {{
  ret i1 false
}}
define internal void @lock_end(ptr %cell) {{
  ret void
}}
define void @{LET_GO}() {{
  ret void
}}
"""
