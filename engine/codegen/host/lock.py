"""Release of the interpreter's lock by kernels that take long, and the looks whether such a kernel is to be ended.

A kernel is called with the lock, as any function of Python's C interface. Where the kernels of a thread have run for as
long as Python lets a thread run that others wait for (5 ms, `sys.getswitchinterval`), the present one releases the
lock, and takes it again at its end. So a short kernel never waits for the lock, and a thread that computes in Python
beside kernels gets half of the time, as beside another thread in Python.

A kernel has no estimate of its time: the thread that has called it reads a clock before each of its parts
(`anabranch_release_lock`), and while it waits for those of others. Only that thread's outermost job takes the lock
again, so nobody who waits for the lock keeps others waiting for parts.

A kernel whose call is endable (`llvm.builtin_functions.CALLS`) may be ended early. Without the lock, its caller
looks every 50 ms: it takes the lock for as long as a function in Python takes that handles signals and raises if the
step has to end. Once that has raised, no part is begun any more, in this job and in later ones of the same call. The
error stays set in the interpreter, so the call of the kernel raises it. Its results are then unfinished.

The caller of a kernel holds its operands, so that they stay where they are. A thread that forks waits until no kernel
is without the lock (`anabranch_settle`): so no part of a kernel is half done in the child process. From then until the
fork is over, kernels keep the lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PATIENCE = 5e-3  # seconds for which a kernel holds the lock
GAP = 2e-4  # seconds between jobs of one thread, such as the next part of a kernel, that count as kernels
CHECK = 5e-2  # seconds between two looks whether a kernel is to be ended
RELEASE, IS_ENDED = "anabranch_release_lock", "anabranch_is_ended"
BEGIN_ENDABLE, END_ENDABLE = "anabranch_begin_endable", "anabranch_end_endable"
FUNCTIONS = RELEASE, IS_ENDED, BEGIN_ENDABLE, END_ENDABLE
DECLARATIONS = (
    f"declare void @{RELEASE}()\ndeclare i1 @{IS_ENDED}(ptr)\n"
    f"declare void @{BEGIN_ENDABLE}()\ndeclare void @{END_ENDABLE}()\n"
)
NEEDED = "pthread_key_create", "pthread_getspecific", "pthread_setspecific", "sched_yield"
_X86 = "x86_64", "i686", "amd64"
_LEAST = 2e-4  # seconds: over so long ticks are counted


def _held() -> str:
    """Return the name of the function of Python that says whether this thread has the lock."""
    if sys.version_info >= (3, 13):
        return "PyThreadState_GetUnchecked"
    return "_PyThreadState_UncheckedGet" if sys.version_info >= (3, 12) else "PyGILState_Check"


PYTHON = "PyEval_SaveThread", "PyEval_RestoreThread", "PyObject_CallNoArgs", "Py_DecRef", _held()


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

# A thread in a job has, by @lock_key, the address of the outermost one's state, in its frame: what Python gave for the
# lock, or null while the thread has that; whether the call may be ended; whether it is; when to look next; and the
# job's context. Kernels of the thread that has the lock run since @lock_began, with gaps of @lock_gap at most;
# @lock_ended is when the last one ended. Threads without the lock change these, too, which at worst makes a kernel
# release it a little earlier or later. @lock_running counts the kernels without the lock, @lock_times how often one
# has released it, and @lock_forking the threads that fork.
#
# @lock_endable belongs to the thread that has the lock: 1 in a call that may be ended, 2 in one that is ended, else 0.
# A kernel keeps its own value while it is without the lock.
JOB = "[5 x i64]"
_ENDABLE, _IS_ENDED, _NEXT, _CONTEXT = 1, 2, 3, 4  # behind what Python gave
_MODULE = f"""
@lock_key = internal global i64 0
@lock_patience = internal global i64 {(1 << 63) - 1}
@lock_gap = internal global i64 0
@lock_interval = internal global i64 0
@lock_check = internal global ptr null
@lock_began = internal global i64 0, align 128
@lock_ended = internal global i64 0
@lock_endable = internal global i64 0
@lock_running = internal global i64 0, align 128
@lock_times = internal global i64 0
@lock_forking = internal global i64 0
@lock_never = internal global i64 0

declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i64)
declare i32 @pthread_setspecific(i64, ptr)
declare i32 @sched_yield()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare void @Py_DecRef(ptr)
declare KIND @HELD()

; Make what threads need, once; afterwards kernels may release the lock. The argument is the function in Python that
; raises if a step has to end. Returns 0 if that has worked.
define i32 @anabranch_prepare_lock(ptr %check) {{
entry:
  %key = alloca i64
  store i64 0, ptr %key
  %failed = call i32 @pthread_key_create(ptr %key, ptr null)
  %is_made = icmp eq i32 %failed, 0
  br i1 %is_made, label %made, label %done
made:
  %value = load i64, ptr %key
  store i64 %value, ptr @lock_key
  store ptr %check, ptr @lock_check
  br label %done
done:
  ret i32 %failed
}}

; Set for how many ticks kernels hold the lock, how long gaps between their jobs may be, and the ticks between looks.
define void @anabranch_patience(i64 %patience, i64 %gap, i64 %interval) {{
  store i64 %patience, ptr @lock_patience
  store i64 %gap, ptr @lock_gap
  store i64 %interval, ptr @lock_interval
  ret void
}}

; Begin and end a call of a kernel that may be ended early. This thread has the lock.
define void @{BEGIN_ENDABLE}() {{
  store i64 1, ptr @lock_endable
  ret void
}}
define void @{END_ENDABLE}() {{
  store i64 0, ptr @lock_endable
  ret void
}}

; Test whether this thread is in a call that was ended in an earlier job.
define internal i1 @lock_is_over() {{
entry:
  %endable = load atomic i64, ptr @lock_endable monotonic, align 8
  %is_ended = icmp eq i64 %endable, 2
  br i1 %is_ended, label %ask, label %no
ask: ; a thread without the lock reads what another one has written
  %held = call KIND @HELD()
  %is_own = icmp ne KIND %held, NONE
  ret i1 %is_own
no:
  ret i1 false
}}

; Begin a job; whether it is the outermost one of this thread.
define internal i1 @lock_begin(ptr %cell, ptr %context) {{
entry:
  %key = load i64, ptr @lock_key
  %outer = call ptr @pthread_getspecific(i64 %key)
  %is_inner = icmp ne ptr %outer, null
  br i1 %is_inner, label %inner, label %first
first:
  store ptr null, ptr %cell
  %is_ended_at = getelementptr i64, ptr %cell, i64 {_IS_ENDED}
  store i64 0, ptr %is_ended_at
  %context_at = getelementptr i64, ptr %cell, i64 {_CONTEXT}
  store ptr %context, ptr %context_at
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

; The address of the word that says whether a job, which has begun, is ended.
define internal ptr @lock_word(ptr %cell, i1 %is_outermost) {{
  %own = getelementptr i64, ptr %cell, i64 {_IS_ENDED}
  %word = select i1 %is_outermost, ptr %own, ptr @lock_never
  ret ptr %word
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
  %endable_at = getelementptr i64, ptr %cell, i64 {_ENDABLE}
  %endable = load i64, ptr %endable_at
  %is_ended_at = getelementptr i64, ptr %cell, i64 {_IS_ENDED}
  %is_ended = load i64, ptr %is_ended_at
  %value = add i64 %endable, %is_ended
  store atomic i64 %value, ptr @lock_endable monotonic, align 8
  %began = call i64 @anabranch_ticks()
  store atomic i64 %began, ptr @lock_began monotonic, align 8
  br label %done
done:
  %ended = call i64 @anabranch_ticks()
  store atomic i64 %ended, ptr @lock_ended monotonic, align 8
  ret void
}}

; Release the lock, if this thread is in a job and has it; else look whether the job is to be ended, if it is time to.
define internal void @lock_release(i64 %now, i1 %is_long) noinline cold {{
entry:
  %key = load i64, ptr @lock_key
  %cell = call ptr @pthread_getspecific(i64 %key)
  %is_out = icmp eq ptr %cell, null
  br i1 %is_out, label %done, label %look
look:
  %endable_at = getelementptr i64, ptr %cell, i64 {_ENDABLE}
  %is_ended_at = getelementptr i64, ptr %cell, i64 {_IS_ENDED}
  %next_at = getelementptr i64, ptr %cell, i64 {_NEXT}
  %interval = load i64, ptr @lock_interval
  %next = add i64 %now, %interval
  %state = load ptr, ptr %cell
  %is_released = icmp ne ptr %state, null
  br i1 %is_released, label %wait, label %ask
ask:
  %held = call KIND @HELD()
  %is_other = icmp eq KIND %held, NONE
  %forking = load atomic i64, ptr @lock_forking seq_cst, align 8
  %is_forking = icmp ne i64 %forking, 0
  %is_short = xor i1 %is_long, true
  %keeps = or i1 %is_other, %is_forking
  %stays = or i1 %keeps, %is_short
  br i1 %stays, label %done, label %release
release:
  %endable = load i64, ptr @lock_endable
  store i64 %endable, ptr %endable_at
  store i64 0, ptr @lock_endable
  store i64 %next, ptr %next_at
  %before = atomicrmw add ptr @lock_running, i64 1 seq_cst
  %times = atomicrmw add ptr @lock_times, i64 1 seq_cst
  %saved = call ptr @PyEval_SaveThread()
  store ptr %saved, ptr %cell
  br label %done
wait:
  %can_end = load i64, ptr %endable_at
  %is_endable = icmp eq i64 %can_end, 1
  %is_ended = load i64, ptr %is_ended_at
  %goes_on = icmp eq i64 %is_ended, 0
  %time = load i64, ptr %next_at
  %is_time = icmp sgt i64 %now, %time
  %can = and i1 %is_endable, %goes_on
  %checks = and i1 %can, %is_time
  br i1 %checks, label %check, label %done
check: ; what Python runs meanwhile on this thread may call kernels, of which the outermost job is then a first one
  %put_aside = call i32 @pthread_setspecific(i64 %key, ptr null)
  call void @PyEval_RestoreThread(ptr %state)
  %function = load ptr, ptr @lock_check
  %result = call ptr @PyObject_CallNoArgs(ptr %function)
  %has_raised = icmp eq ptr %result, null
  br i1 %has_raised, label %end, label %go_on
end:
  store i64 1, ptr %is_ended_at
  br label %leave
go_on:
  call void @Py_DecRef(ptr %result)
  br label %leave
leave:
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %cell
  %put_back = call i32 @pthread_setspecific(i64 %key, ptr %cell)
  %after = call i64 @anabranch_ticks()
  %later = add i64 %after, %interval
  store i64 %later, ptr %next_at
  br label %done
done:
  ret void
}}

; Release the lock if kernels have run for long, and look at times whether this thread's kernel is to be ended.
define void @{RELEASE}() {{
entry:
  %now = call i64 @anabranch_ticks()
  %began = load atomic i64, ptr @lock_began monotonic, align 8
  %patience = load i64, ptr @lock_patience
  %time = sub i64 %now, %began
  %is_long = icmp sgt i64 %time, %patience
  %running = load atomic i64, ptr @lock_running monotonic, align 8
  %some = icmp ne i64 %running, 0 ; maybe this one
  %looks = or i1 %is_long, %some
  br i1 %looks, label %release, label %done
release:
  call void @lock_release(i64 %now, i1 %is_long)
  ret void
done:
  ret void
}}

; Test whether the outermost job of this thread is the one of a context, and ended.
define i1 @{IS_ENDED}(ptr %context) {{
entry:
  %key = load i64, ptr @lock_key
  %cell = call ptr @pthread_getspecific(i64 %key)
  %is_out = icmp eq ptr %cell, null
  br i1 %is_out, label %no, label %look
look:
  %is_ended_at = getelementptr i64, ptr %cell, i64 {_IS_ENDED}
  %context_at = getelementptr i64, ptr %cell, i64 {_CONTEXT}
  %value = load i64, ptr %is_ended_at
  %own = load ptr, ptr %context_at
  %is_ended = icmp ne i64 %value, 0
  %is_own = icmp eq ptr %own, %context
  %both = and i1 %is_ended, %is_own
  ret i1 %both
no:
  ret i1 false
}}

; How often a kernel has released the lock.
define i64 @anabranch_times_released() {{
  %times = load atomic i64, ptr @lock_times seq_cst, align 8
  ret i64 %times
}}

; Before a fork: let kernels keep the lock, which this thread has, and wait until none is without it but for so many, in
; whose looks this thread is itself. A kernel that looks needs the lock, so it is free meanwhile.
define void @anabranch_settle(i64 %own) {{
entry:
  %before = atomicrmw add ptr @lock_forking, i64 1 seq_cst
  br label %look
look:
  %running = load atomic i64, ptr @lock_running seq_cst, align 8
  %none = icmp sle i64 %running, %own
  br i1 %none, label %done, label %wait
wait:
  %state = call ptr @PyEval_SaveThread()
  %y = call i32 @sched_yield()
  call void @PyEval_RestoreThread(ptr %state)
  br label %look
done:
  ret void
}}

; After a fork, in the parent.
define void @anabranch_forked() {{
  %before = atomicrmw sub ptr @lock_forking, i64 1 seq_cst
  ret void
}}

; After a fork, in the child: other threads that were about to fork are not here.
define void @anabranch_is_child() {{
  store atomic i64 0, ptr @lock_forking seq_cst, align 8
  ret void
}}
"""

# Where the system lacks what that needs, kernels hold the lock.
WITHOUT = f"""
declare i32 @sched_yield()
@lock_never = internal global i64 0
define internal i1 @lock_is_over() {{
  ret i1 false
}}
define internal i1 @lock_begin(ptr %cell, ptr %context) {{
  ret i1 false
}}
define internal ptr @lock_word(ptr %cell, i1 %is_outermost) {{
  ret ptr @lock_never
}}
define internal void @lock_end(ptr %cell) {{
  ret void
}}
define void @{RELEASE}() {{
  ret void
}}
define i1 @{IS_ENDED}(ptr %context) {{
  ret i1 false
}}
define void @{BEGIN_ENDABLE}() {{
  ret void
}}
define void @{END_ENDABLE}() {{
  ret void
}}
"""
