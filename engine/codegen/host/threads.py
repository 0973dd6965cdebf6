"""The engine's own threads: native code splits work into parts, and whoever is free takes the next one.

Kernels call ``anabranch_parallel(task, context, parts)``, which runs ``task(context, part)`` for each part and returns
when all are done. The calling thread takes parts too, and waits for no thread that has not begun one: so a machine that
is busy with other things costs nothing but the help. A part may have parts of its own: threads that find nothing else
to do help with those. What a part computes may depend on its number and on how many there are, never on who computes
it; so results are the same for any number of threads.

A thread without work looks for more for 100 microseconds (the gap between two kernels, with some operations of NumPy in
it), then sleeps. How often it looks in that time is measured as the threads start, for a pause takes 25 nanoseconds on
some processors, and 55 on others. The threads are Python's, parked in native code without the interpreter's lock. The
thread that has called a kernel releases the lock when it takes long, and looks whether it is to be ended (see `lock`).
"""

from __future__ import annotations

import ctypes
import inspect
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol

from ...common.deadlines import requests
from ...queues.stops import check_stop
from ..llvm import builtin_functions, subnormals
from ..llvm.compiler import Effort
from . import lock, scratch

SYMBOL = "anabranch_parallel"
_DECLARED = scratch.DECLARATIONS + lock.DECLARATIONS + subnormals.DECLARATIONS
DECLARATIONS = f"declare void @{SYMBOL}(ptr, ptr, i64)\n" + _DECLARED
_OFFERED = scratch.TAKE, scratch.GIVE, *lock.FUNCTIONS, subnormals.FLUSH, subnormals.RESTORE  # to kernels, besides
_MOST_THREADS = 64
_LOOKING = 1e-4  # seconds
_NEEDED = (
    *("pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock", "sched_yield"),
    *("pthread_cond_init", "pthread_cond_wait", "pthread_cond_broadcast"),
)


class Loader(Protocol):
    """The compiler of the module of the threads; see `Library`, which is above this file.

    Attributes:
        host: the processor.
    """

    host: str

    def load(self, key: str, text: Callable[[], str], effort: Effort = ...) -> Any: ...

    def prepare(self, key: str, text: Callable[[], str], effort: Effort = ...) -> None: ...

    def offer(self, name: str, address: int) -> None: ...

    def offer_system(self, names: Iterable[str]) -> bool: ...

    def offer_python(self, names: Iterable[str]) -> None: ...


class _Pool:
    """The threads of this process, and the functions by which they are asked to work."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.count = 1
        self._looks = 0  # how often a thread looks for work before it sleeps
        self._rate = 0.0  # of the clock that kernels read; 0: they hold the lock
        self._patience = lock.PATIENCE
        self._interval = lock.CHECK
        self._called = self.look  # by native code, which does not count as a reference
        self._lock = threading.Lock()

    def start(self, library: Loader) -> None:
        """Offer the function to kernels; the threads are started with the first kernel that is loaded."""
        with self._lock:
            if self.engine is not None:
                return
            text = self._text(library)
            self.engine = library.load(f"{SYMBOL} {text}", lambda: text, effort=Effort.PRINTED)
            for name in (SYMBOL, *_OFFERED):
                library.offer(name, self.engine.get_function_address(name))
            if "anabranch_prepare_lock" in text:
                self._prepare_lock()
            self._spawn()

    def _function(self, name: str, *arguments: Any, result: Any = None) -> Any:
        """Return a function of the engine that is called with the interpreter's lock."""
        return ctypes.PYFUNCTYPE(result, *arguments)(self.engine.get_function_address(f"anabranch_{name}"))

    def _prepare_lock(self) -> None:
        if self._function("prepare_lock", ctypes.py_object, result=ctypes.c_int)(self._called):
            return  # the system has no more keys for threads
        self._rate = lock.ticks_each_second(self._function("ticks", result=ctypes.c_int64))
        self.set_patience(self._patience, self._interval)

    def look(self) -> None:
        """Raise what ends the kernel of this thread: what handles a signal, or what a step raises that has to end."""
        ctypes.pythonapi.PyErr_CheckSignals()
        if requests:
            check_stop(is_loop=False)

    def prepare(self, library: Loader) -> None:
        """Have the functions compiled, if they are not here yet."""
        if self.engine is not None:
            return
        text = self._text(library)
        library.prepare(f"{SYMBOL} {text}", lambda: text, Effort.PRINTED)

    def _text(self, library: Loader) -> str:
        self.count = wanted_threads() if library.offer_system(_NEEDED) else 1
        library.offer_python(scratch.ALLOCATING)
        has_lock = library.offer_system(lock.system_names(library.host))
        library.offer_python((*lock.PYTHON, *builtin_functions.PYTHON))
        sharing = _ALONE if self.count == 1 else _with_pause(_MODULE, library.host)
        own = scratch.MODULE + subnormals.print_functions(library.host)
        own += lock.module(library.host) if has_lock else lock.WITHOUT
        return own + sharing + _PARALLEL + builtin_functions.print_functions()

    def _spawn(self) -> None:
        if self.count == 1:
            return
        prepare = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.engine.get_function_address("anabranch_prepare"))
        pause = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.engine.get_function_address("anabranch_pause"))
        self._looks = self._looks or repeats_within(_LOOKING, pause, time.perf_counter)
        prepare(self._looks)
        work = ctypes.CFUNCTYPE(None)(self.engine.get_function_address("anabranch_work"))
        for number in range(1, self.count):
            threading.Thread(target=work, name=f"anabranch kernels {number}", daemon=True).start()

    def set_patience(self, seconds: float, interval: float) -> None:
        self._patience, self._interval = seconds, interval
        if self._rate:
            put = self._function("patience", *[ctypes.c_int64] * 3)
            ticks = [int(each * self._rate) - 1 for each in (seconds, interval)]  # 0 seconds are over at once
            put(ticks[0], int(lock.GAP * self._rate), ticks[1])

    def settle(self) -> None:
        """Wait until no kernel is without the interpreter's lock, and have them keep it until the fork is over."""
        if self._rate:
            self._function("settle", ctypes.c_int64)(_looks_here())

    def forked(self) -> None:
        """Let kernels release the lock again in a process that was forked."""
        if self._rate:
            self._function("forked")()

    def times_released(self) -> int:
        return self._function("times_released", result=ctypes.c_int64)() if self._rate else 0

    def restart(self) -> None:
        """Restart in a child process, which has none of its parent's threads."""
        self._lock = threading.Lock()
        if self._rate:
            self._function("is_child")()
        if self.engine is not None:
            self._spawn()


def _looks_here() -> int:
    """Return how many kernels of this thread look at present: one that handles a signal there is inside of them."""
    frame, count = inspect.currentframe(), 0
    look = _pool.look.__func__.__code__
    while frame is not None:
        count += frame.f_code is look
        frame = frame.f_back
    return count


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pool.settle, after_in_parent=_pool.forked, after_in_child=_pool.restart)


def prepare(library: Loader) -> None:
    """Have what `start` needs compiled by another thread."""
    _pool.prepare(library)


def start(library: Loader) -> None:
    """Make sure that kernels of `library` find the threads."""
    _pool.start(library)


def kernel_functions(memory: Any) -> list[Callable[..., bool]]:
    """Return the functions that call a kernel; the second one is for calls that may be ended early.

    Args:
        memory: int64: the address of the kernel's entry, then its table.
    """
    return [builtin_function(name, memory) for name in builtin_functions.CALLS]


def builtin_function(name: str, memory: Any) -> Callable[..., Any]:
    """Return the function of `builtin_functions` that has a name, bound to memory."""
    return builtin_functions.bound(name, _pool.engine.get_function_address(name), memory)


def thread_count() -> int:
    """Return how many threads compute kernels, the calling one included."""
    return _pool.count


def times_released() -> int:
    """Return how often kernels of this process have released the interpreter's lock."""
    return _pool.times_released()


@contextmanager
def patience(seconds: float, interval: float = lock.CHECK) -> Generator[None]:
    """Set, inside of the block, for how long kernels hold the interpreter's lock.

    Args:
        seconds: for so long.
        interval: seconds between two looks of a kernel without the lock whether it is to be ended.
    """
    _pool.set_patience(seconds, interval)
    try:
        yield
    finally:
        _pool.set_patience(lock.PATIENCE, lock.CHECK)


def wanted_threads() -> int:
    """Return the number of threads: ANABRANCH_NUM_THREADS, else BLAS's: OMP_NUM_THREADS, or the processors allowed."""
    for name in ("ANABRANCH_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text):
            return min(int(text), _MOST_THREADS)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST_THREADS)


def repeats_within(seconds: float, repeat: Callable[[int], object], clock: Callable[[], float]) -> int:
    """Return how often a function does its work in some seconds: by the quickest of three trials of 1,000 times.

    1,000 times at least, for other processes may have disturbed all three.
    """
    quickest = float("inf")
    for _ in range(3):
        began = clock()
        repeat(1000)
        quickest = min(quickest, clock() - began)
    return max(1000, int(1000 * seconds / max(quickest, 1e-9)))


def _with_pause(text: str, host: str) -> str:
    """Return the module, with the instruction that signals to a processor that it waits."""
    if host.startswith(("x86_64", "i686", "amd64")):
        return text.replace("PAUSE", "call void @llvm.x86.sse2.pause()") + "declare void @llvm.x86.sse2.pause()\n"
    if host.startswith(("aarch64", "arm64")):
        return text.replace("PAUSE", "call void @llvm.aarch64.hint(i32 1)") + "declare void @llvm.aarch64.hint(i32)\n"
    return text.replace("PAUSE", "fence seq_cst")


# One part takes no more than a call.
_PARALLEL = f"""
define void @{SYMBOL}(ptr %task, ptr %context, i64 %parts) {{
entry:
  %cell = alloca {lock.JOB}
  %several = icmp sgt i64 %parts, 1
  br i1 %several, label %begin, label %few
few:
  %one = icmp eq i64 %parts, 1
  br i1 %one, label %single, label %done
single:
  call void %task(ptr %context, i64 0)
  br label %done
begin:
  %is_over = call i1 @lock_is_over()
  br i1 %is_over, label %done, label %share
share:
  %is_outermost = call i1 @lock_begin(ptr %cell, ptr %context)
  %word = call ptr @lock_word(ptr %cell, i1 %is_outermost)
  call void @share_parts(ptr %task, ptr %context, i64 %parts, ptr %word)
  br i1 %is_outermost, label %end, label %done
end:
  call void @lock_end(ptr %cell)
  br label %done
done:
  ret void
}}
"""


def _one_by_one(block: str) -> str:
    """Return the end of `@share_parts` where the caller computes all parts, after a block."""
    return f"""  br label %head
head:
  %part = phi i64 [0, %{block}], [%next, %run]
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %body, label %done
body:
  call void @{lock.RELEASE}()
  %ended = load i64, ptr %word
  %goes_on = icmp eq i64 %ended, 0
  br i1 %goes_on, label %run, label %done
run:
  call void %task(ptr %context, i64 %part)
  %next = add i64 %part, 1
  br label %head
done:
  ret void
"""


_ALONE = f"""
define internal void @share_parts(ptr %task, ptr %context, i64 %parts, ptr %word) {{
entry:
{_one_by_one("entry")}}}
"""

# Several jobs may be under way, each in a slot: a caller takes the first one that is free, so that a job inside a part
# of another has a slot behind that one's. A job's state is one word: its number, the end of the parts that nobody has
# taken, and the first of these. The caller takes parts from the front and helpers from the end: so in each iteration of
# a loop a processor computes the same parts, of which it has the weights in its own cache. A part is taken by
# exchanging that word, so that it is always one of the job whose fields were read. Where no slot is free, or there are
# too many parts for the word, the caller computes its parts alone. @rounds counts jobs: who found no work looks again
# when it moves.
_JOBS = 8
_PART_BITS = 20
_MASK = (1 << _PART_BITS) - 1
_SLOT = 32  # words
_STATE, _TASK, _CONTEXT, _FINISHED, _BUSY = 0, 1, 2, 16, 24  # where in a slot; the first three are read together
_MODULE = f"""
@jobs = internal global [{_JOBS * _SLOT} x i64] zeroinitializer, align 256
@rounds = internal global i64 0, align 128
@sleepers = internal global i64 0, align 128
@looks = internal global i64 0, align 128
@mutex = internal global [16 x i64] zeroinitializer, align 128
@awake = internal global [16 x i64] zeroinitializer, align 128

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal ptr @field(i64 %slot, i64 %field) alwaysinline {{
  %start = mul i64 %slot, {_SLOT}
  %place = add i64 %start, %field
  %pointer = getelementptr [{_JOBS * _SLOT} x i64], ptr @jobs, i64 0, i64 %place
  ret ptr %pointer
}}

; Pause so often as a thread does that looks for work.
define void @anabranch_pause(i64 %count) {{
entry:
  br label %again
again:
  %done = phi i64 [0, %entry], [%next, %again]
  %now = load atomic i64, ptr @rounds seq_cst, align 8
  PAUSE
  %next = add i64 %done, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %again, label %out
out:
  ret void
}}

; In a process without threads yet: no job is under way, for those who would finish it are not here.
define void @anabranch_prepare(i64 %looks) {{
entry:
  store i64 %looks, ptr @looks
  br label %clear
clear:
  %word = phi i64 [0, %entry], [%next, %clear]
  %pointer = call ptr @field(i64 0, i64 %word)
  store atomic i64 0, ptr %pointer seq_cst, align 8
  %next = add i64 %word, 1
  %more = icmp slt i64 %next, {_JOBS * _SLOT}
  br i1 %more, label %clear, label %init
init:
  store atomic i64 0, ptr @sleepers seq_cst, align 8
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @awake, ptr null)
  ret void
}}

; Take parts of the job in a slot until none is left, or so many; returns how many it took. Once a word of the caller's
; says that the job is ended, it drops those that nobody has begun.
define internal i64 @take_parts(i64 %slot, i1 %helps, i64 %most, ptr %word) {{
entry:
  %state = call ptr @field(i64 %slot, i64 {_STATE})
  %task_cell = call ptr @field(i64 %slot, i64 {_TASK})
  %context_cell = call ptr @field(i64 %slot, i64 {_CONTEXT})
  %finished = call ptr @field(i64 %slot, i64 {_FINISHED})
  br label %look
look:
  %taken = phi i64 [0, %entry], [%taken, %try], [%one_more, %run], [%taken, %drop]
  %seen = load atomic i64, ptr %state seq_cst, align 8
  %first = and i64 %seen, {_MASK}
  %shifted = lshr i64 %seen, {_PART_BITS}
  %end = and i64 %shifted, {_MASK}
  %is_open = icmp slt i64 %first, %end
  %wants = icmp slt i64 %taken, %most
  %more = and i1 %is_open, %wants
  br i1 %more, label %ask, label %none
ask: ; who helps has not called the kernel
  br i1 %helps, label %try, label %own
own:
  call void @{lock.RELEASE}()
  %ended = load i64, ptr %word
  %goes_on = icmp eq i64 %ended, 0
  br i1 %goes_on, label %try, label %drop
drop:
  %lacking = sub i64 %end, %first
  %lacking_bits = shl i64 %lacking, {_PART_BITS}
  %without = sub i64 %seen, %lacking_bits
  %dropping = cmpxchg ptr %state, i64 %seen, i64 %without seq_cst seq_cst
  %has_dropped = extractvalue {{i64, i1}} %dropping, 1
  %dropped = select i1 %has_dropped, i64 %lacking, i64 0
  %finished_before = atomicrmw add ptr %finished, i64 %dropped seq_cst
  br label %look
try:
  %task_word = load atomic i64, ptr %task_cell unordered, align 8
  %context_word = load atomic i64, ptr %context_cell unordered, align 8
  %last = sub i64 %end, 1
  %without_last = sub i64 %seen, {1 << _PART_BITS}
  %without_first = add i64 %seen, 1
  %part = select i1 %helps, i64 %last, i64 %first
  %after = select i1 %helps, i64 %without_last, i64 %without_first
  %exchange = cmpxchg ptr %state, i64 %seen, i64 %after seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %exchange, 1
  br i1 %mine, label %run, label %look
run:
  %task = inttoptr i64 %task_word to ptr
  %context = inttoptr i64 %context_word to ptr
  call void %task(ptr %context, i64 %part)
  %before = atomicrmw add ptr %finished, i64 1 seq_cst
  %one_more = add i64 %taken, 1
  br label %look
none:
  ret i64 %taken
}}

; Take parts of all jobs from a slot on, so many of each at most; returns how many.
define internal i64 @help(i64 %first, i64 %most) {{
entry:
  br label %head
head:
  %slot = phi i64 [%first, %entry], [%next, %body]
  %sum = phi i64 [0, %entry], [%total, %body]
  %more = icmp slt i64 %slot, {_JOBS}
  br i1 %more, label %body, label %done
body:
  %taken = call i64 @take_parts(i64 %slot, i1 true, i64 %most, ptr @lock_never)
  %total = add i64 %sum, %taken
  %next = add i64 %slot, 1
  br label %head
done:
  ret i64 %sum
}}

; The number of a slot that is the caller's from now on; {_JOBS} if none is free.
define internal i64 @claim() {{
entry:
  br label %look
look:
  %slot = phi i64 [0, %entry], [%next, %taken]
  %more = icmp slt i64 %slot, {_JOBS}
  br i1 %more, label %try, label %done
try:
  %busy = call ptr @field(i64 %slot, i64 {_BUSY})
  %exchange = cmpxchg ptr %busy, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue {{i64, i1}} %exchange, 1
  br i1 %free, label %done, label %taken
taken:
  %next = add i64 %slot, 1
  br label %look
done:
  ret i64 %slot
}}

define internal void @share_parts(ptr %task, ptr %context, i64 %parts, ptr %word) {{
entry:
  %few = sub i64 %parts, 2
  %several = icmp ult i64 %few, {_MASK - 1}
  br i1 %several, label %try, label %alone
try:
  %slot = call i64 @claim()
  %found = icmp slt i64 %slot, {_JOBS}
  br i1 %found, label %publish, label %alone
alone:
{_one_by_one("alone")}publish:
  %behind = add i64 %slot, 1
  %state_cell = call ptr @field(i64 %slot, i64 {_STATE})
  %task_cell = call ptr @field(i64 %slot, i64 {_TASK})
  %context_cell = call ptr @field(i64 %slot, i64 {_CONTEXT})
  %finished = call ptr @field(i64 %slot, i64 {_FINISHED})
  %busy = call ptr @field(i64 %slot, i64 {_BUSY})
  %task_word = ptrtoint ptr %task to i64
  %context_word = ptrtoint ptr %context to i64
  store atomic i64 0, ptr %finished seq_cst, align 8
  store atomic i64 %task_word, ptr %task_cell unordered, align 8
  store atomic i64 %context_word, ptr %context_cell unordered, align 8
  %old = load atomic i64, ptr %state_cell seq_cst, align 8
  %old_job = lshr i64 %old, {2 * _PART_BITS}
  %job = add i64 %old_job, 1
  %high = shl i64 %job, {2 * _PART_BITS}
  %end = shl i64 %parts, {_PART_BITS}
  %state = or i64 %high, %end
  store atomic i64 %state, ptr %state_cell seq_cst, align 8
  %rounds_before = atomicrmw add ptr @rounds, i64 1 seq_cst
  %round = add i64 %rounds_before, 1
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %any = icmp sgt i64 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  %w0 = call i32 @pthread_mutex_lock(ptr @mutex)
  %w1 = call i32 @pthread_cond_broadcast(ptr @awake)
  %w2 = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %work
work:
  %own = call i64 @take_parts(i64 %slot, i1 false, i64 {1 << 62}, ptr %word)
  br label %wait
wait: ; until others have finished theirs, and meanwhile help with the jobs inside them, part by part
  %spins = phi i64 [0, %work], [%spun, %again], [0, %yield], [0, %assist]
  %known = phi i64 [%round, %work], [%known, %again], [%known, %yield], [%seen, %assist]
  %count = load atomic i64, ptr %finished seq_cst, align 8
  %all = icmp eq i64 %count, %parts
  br i1 %all, label %release, label %listen
listen:
  %now = load atomic i64, ptr @rounds seq_cst, align 8
  %is_new = icmp ne i64 %now, %known
  br i1 %is_new, label %assist, label %pause
assist:
  %helped = call i64 @help(i64 %behind, i64 1)
  %some = icmp sgt i64 %helped, 0
  %seen = select i1 %some, i64 %known, i64 %now
  call void @{lock.RELEASE}()
  br label %wait
pause:
  PAUSE
  %spun = add i64 %spins, 1
  %long = icmp sgt i64 %spun, 2000
  br i1 %long, label %yield, label %again
again:
  br label %wait
yield:
  call void @{lock.RELEASE}()
  %y = call i32 @sched_yield()
  br label %wait
release:
  store atomic i64 0, ptr %busy seq_cst, align 8
  ret void
}}

define void @anabranch_work() {{
entry:
  %looks = load i64, ptr @looks
  br label %work
work:
  %round = load atomic i64, ptr @rounds seq_cst, align 8
  %taken = call i64 @help(i64 0, i64 {1 << 62})
  %some = icmp sgt i64 %taken, 0
  br i1 %some, label %work, label %spin
spin:
  %spins = phi i64 [0, %work], [%spun, %pause]
  %now = load atomic i64, ptr @rounds seq_cst, align 8
  %other = icmp ne i64 %now, %round
  br i1 %other, label %work, label %pause
pause:
  PAUSE
  %spun = add i64 %spins, 1
  %long = icmp sgt i64 %spun, %looks
  br i1 %long, label %sleep, label %spin
sleep:
  %s0 = call i32 @pthread_mutex_lock(ptr @mutex)
  %s1 = atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %check
check:
  %latest = load atomic i64, ptr @rounds seq_cst, align 8
  %same = icmp eq i64 %latest, %round
  br i1 %same, label %doze, label %rise
doze:
  %s2 = call i32 @pthread_cond_wait(ptr @awake, ptr @mutex)
  br label %check
rise:
  %s3 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %s4 = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %work
}}
"""
