"""Memory for large arrays, kept for the next step: fresh memory costs a fault a page, each time it is asked for.

NumPy asks an allocator for the memory of every array (NEP 49), and lets each thread choose one. While a program runs,
that is this one: large blocks that become free, wherever that happens, are kept by size, and the next array of about
that size gets one of them: numbers of rows may differ a little from step to step. So nothing needs to be known of how
long values live, and a step finds the memory of the last.
Blocks are aligned to cache lines, which vectors like, and very large ones are made of huge pages where the system has
them. No more is kept than was used at one time (or half a gigabyte), and little beside much that is used: above 1.4
gigabytes together, what a step writes late would otherwise come on top of what it has let go. When it gets tight, sizes
that were not asked for longest are dropped.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from ..llvm.compiler import Effort
from ..llvm.library import library
from .numpy_interface import numpy_function

_SMALLEST = 1 << 15  # bytes: what is smaller comes from memory that C's allocator keeps itself
_MOST_KEPT = 1 << 29  # if no step has used more
_MOST_IN_ALL = 11 << 27  # used and kept together: a step that needs more keeps only what its next operations ask for
_ALWAYS_KEPT = 1 << 25
_SIZES_BITS = 3  # a block is larger than what it holds by an eighth at most; what is not touched takes no memory
_TRIMMED = 1 << 26  # bytes handed to C's free after which that is asked to hand them to the system
_SET_HANDLER = 304  # in the table of NumPy's C interface
_NEEDED = ("malloc", "calloc", "realloc", "free", "posix_memalign", "madvise", "sched_yield", "memset")
_CAPSULE_NAME = b"mem_handler"


_TRIM = "malloc_trim"  # only glibc's holds back what is between blocks in use, and only that has it


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C interface."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    ]


class _Allocator:
    """The allocator as NumPy takes it; without one, where the system or the compiler lacks what it needs."""

    def __init__(self) -> None:
        self._capsule: Any = None
        self._set: Any = None
        self._kept: Any = None
        self._flush: Any = None
        self._unlock: Any = None
        self._handler = _Handler()
        self._is_ready = False
        self._lock = threading.Lock()

    def switch(self, handler: Any) -> Any:
        """Let NumPy's arrays of this thread be allocated by `handler`; return the one before."""
        return self._set(handler)

    def capsule(self) -> Any:
        """Return the handler; None where there is none."""
        if not self._is_ready and library.usable:
            with self._lock:
                if not self._is_ready:
                    self._start()
                    self._is_ready = True
        return self._capsule

    def kept_bytes(self) -> int:
        return self._kept() if self.capsule() is not None else 0

    def clear(self) -> None:
        if self.capsule() is not None:
            self._flush()

    def _start(self) -> None:
        if not library.offer_system(_NEEDED):
            return
        module = _text()
        engine = library.load(module, lambda: module, effort=Effort.PRINTED)
        for name in ("malloc", "calloc", "realloc", "free"):
            setattr(self._handler, name, engine.get_function_address(f"anabranch_{name}"))
        self._handler.name, self._handler.version = b"anabranch", 1
        self._kept = ctypes.CFUNCTYPE(ctypes.c_size_t)(engine.get_function_address("anabranch_kept"))
        self._flush = ctypes.CFUNCTYPE(None)(engine.get_function_address("anabranch_flush"))
        self._unlock = ctypes.CFUNCTYPE(None)(engine.get_function_address("anabranch_unlock"))
        self._set = numpy_function(_SET_HANDLER, ctypes.py_object, ctypes.py_object)
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._capsule = new_capsule(ctypes.addressof(self._handler), _CAPSULE_NAME, None)

    def restart(self) -> None:
        """Restart in a child process, which lacks the thread that held a lock when it was forked."""
        self._lock = threading.Lock()
        if self._unlock is not None:
            self._unlock()


_allocator = _Allocator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_allocator.restart)


def prepare() -> None:
    """Have the allocator compiled by another thread, for the first step that runs."""
    if library.usable:
        library.prepare(_text(), _text, Effort.PRINTED)


def _text() -> str:
    return _MODULE if library.offer_system([_TRIM]) else _MODULE.replace(*_NO_TRIM)


class KeptMemory:
    """A context in which arrays that this thread makes take and leave kept memory."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        capsule = _allocator.capsule()
        self._before = None if capsule is None else _allocator.switch(capsule)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _allocator.switch(self._before)


def kept_bytes() -> int:
    """Return how many bytes of memory are kept for arrays to come."""
    return _allocator.kept_bytes()


def release_memory() -> None:
    """Give the memory that is kept back to the system."""
    _allocator.clear()


# Free blocks of a size are a list: each holds the address of the next. The lists stand in a table by size, found by
# hashing and looking on; each records when it was last asked for a block. Blocks come from posix_memalign, calloc or
# realloc, so that C's free takes them all, and are as large as their size rounded up (see `rounded`), for NumPy gives
# the size of what it frees as it asked for it.
_MODULE = f"""
%list = type {{ i64, ptr, i64 }}
@lists = internal global [1024 x %list] zeroinitializer, align 128
@kept = internal global i64 0, align 128
@used = internal global i64 0, align 128
@sizes = internal global i64 0, align 128
@asked = internal global i64 0, align 128
@peak = internal global i64 0, align 128
@freed = internal global i64 0, align 128
@lock = internal global i64 0, align 128

declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare i32 @madvise(ptr, i64, i32)
declare ptr @memset(ptr, i32, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i32 @sched_yield()
declare i32 @{_TRIM}(i64)

define internal void @enter() {{
entry:
  br label %try
try:
  %exchange = cmpxchg ptr @lock, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue {{i64, i1}} %exchange, 1
  br i1 %free, label %done, label %wait
wait:
  %y = call i32 @sched_yield()
  br label %try
done:
  ret void
}}

define internal void @leave() {{
  store atomic i64 0, ptr @lock seq_cst, align 8
  ret void
}}

; In a child process: lists are whole at any moment, but for a block that the thread had in its hands.
define void @anabranch_unlock() {{
  call void @leave()
  ret void
}}

; A size rounded up to one of {1 << _SIZES_BITS} between two powers of two, and to pages at least.
define internal i64 @rounded(i64 %size) {{
  %less = sub i64 %size, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %less, i1 false)
  %bits = sub i64 {63 - _SIZES_BITS}, %zeros
  %few = icmp slt i64 %bits, 12
  %shift = select i1 %few, i64 12, i64 %bits
  %step = shl i64 1, %shift
  %last = sub i64 %step, 1
  %more = add i64 %size, %last
  %mask = sub i64 0, %step
  %whole = and i64 %more, %mask
  ret i64 %whole
}}

; The list of blocks of that many bytes, or one that is not used yet; null where the table is full.
define internal ptr @list_of(i64 %bytes) {{
entry:
  %pages = lshr i64 %bytes, 12
  %hash = mul i64 %pages, -7046029254386353131
  %start = lshr i64 %hash, 54
  br label %look
look:
  %k = phi i64 [0, %entry], [%next, %on]
  %place = add i64 %start, %k
  %index = and i64 %place, 1023
  %list = getelementptr [1024 x %list], ptr @lists, i64 0, i64 %index
  %size_at = getelementptr %list, ptr %list, i64 0, i32 0
  %size = load i64, ptr %size_at
  %same = icmp eq i64 %size, %bytes
  %unused = icmp eq i64 %size, 0
  %found = or i1 %same, %unused
  br i1 %found, label %give, label %on
on:
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, 1024
  br i1 %more, label %look, label %full
give:
  ret ptr %list
full:
  ret ptr null
}}

; The first block of a list that has one, while the lock is held.
define internal ptr @pop(ptr %list) {{
  %size_at = getelementptr %list, ptr %list, i64 0, i32 0
  %size = load i64, ptr %size_at
  %head_at = getelementptr %list, ptr %list, i64 0, i32 1
  %block = load ptr, ptr %head_at
  %next = load ptr, ptr %block
  store ptr %next, ptr %head_at
  %kept = load i64, ptr @kept
  %less = sub i64 %kept, %size
  store i64 %less, ptr @kept
  ret ptr %block
}}

; A block from the list of its size, or null.
define internal ptr @take(i64 %bytes) {{
entry:
  call void @enter()
  %list = call ptr @list_of(i64 %bytes)
  %none = icmp eq ptr %list, null
  br i1 %none, label %empty, label %look
look:
  %stamp_at = getelementptr %list, ptr %list, i64 0, i32 2
  %stamp = load i64, ptr @asked
  %later = add i64 %stamp, 1
  store i64 %later, ptr @asked
  store i64 %later, ptr %stamp_at
  %head_at = getelementptr %list, ptr %list, i64 0, i32 1
  %head = load ptr, ptr %head_at
  %is_empty = icmp eq ptr %head, null
  br i1 %is_empty, label %empty, label %pop
pop:
  %block = call ptr @pop(ptr %list)
  call void @leave()
  ret ptr %block
empty:
  call void @leave()
  ret ptr null
}}

; Give all free blocks back, and forget their sizes.
define void @anabranch_flush() {{
entry:
  call void @enter()
  br label %head
head:
  %k = phi i64 [0, %entry], [%n, %next]
  %more = icmp slt i64 %k, 1024
  br i1 %more, label %each, label %done
each:
  %list = getelementptr [1024 x %list], ptr @lists, i64 0, i64 %k
  %size_at = getelementptr %list, ptr %list, i64 0, i32 0
  %head_at = getelementptr %list, ptr %list, i64 0, i32 1
  store i64 0, ptr %size_at
  %first = load ptr, ptr %head_at
  store ptr null, ptr %head_at
  br label %blocks
blocks:
  %block = phi ptr [%first, %each], [%following, %drop]
  %over = icmp eq ptr %block, null
  br i1 %over, label %next, label %drop
drop:
  %following = load ptr, ptr %block
  call void @free(ptr %block)
  br label %blocks
next:
  %n = add i64 %k, 1
  br label %head
done:
  store i64 0, ptr @kept
  store i64 0, ptr @sizes
  call void @leave()
  ret void
}}

define i64 @anabranch_kept() {{
  %kept = load atomic i64, ptr @kept seq_cst, align 8
  ret i64 %kept
}}

; A limit, or what was used at one time, if that is more. (What arrays grow by in place is not counted.)
define internal i64 @at_least(i64 %limit) {{
  %peak = load atomic i64, ptr @peak seq_cst, align 8
  %slack = add i64 %peak, {_ALWAYS_KEPT}
  %more = icmp sgt i64 %slack, %limit
  %most = select i1 %more, i64 %slack, i64 %limit
  ret i64 %most
}}

; Whether so much is more than what may be kept beside what is used.
define internal i1 @is_much(i64 %kept) {{
  %used = load atomic i64, ptr @used seq_cst, align 8
  %all = add i64 %used, %kept
  %most = call i64 @at_least(i64 {_MOST_KEPT})
  %many = icmp sgt i64 %kept, %most
  %tight = icmp sgt i64 %all, {_MOST_IN_ALL}
  %more = icmp sgt i64 %kept, {_ALWAYS_KEPT}
  %both = and i1 %tight, %more
  %much = or i1 %many, %both
  ret i1 %much
}}

; The list with blocks that has not been asked for longest, or null.
define internal ptr @oldest() {{
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%n, %next]
  %found = phi %list* [null, %entry], [%chosen, %next]
  %least = phi i64 [9223372036854775807, %entry], [%lower, %next]
  %more = icmp slt i64 %k, 1024
  br i1 %more, label %next, label %done
next:
  %list = getelementptr [1024 x %list], ptr @lists, i64 0, i64 %k
  %head_at = getelementptr %list, ptr %list, i64 0, i32 1
  %block = load ptr, ptr %head_at
  %has = icmp ne ptr %block, null
  %stamp_at = getelementptr %list, ptr %list, i64 0, i32 2
  %stamp = load i64, ptr %stamp_at
  %earlier = icmp slt i64 %stamp, %least
  %better = and i1 %has, %earlier
  %chosen = select i1 %better, ptr %list, ptr %found
  %lower = select i1 %better, i64 %stamp, i64 %least
  %n = add i64 %k, 1
  br label %head
done:
  ret ptr %found
}}

; What nobody has asked for longest is dropped before the system is asked for more than there may be.
define internal void @tidy(i64 %bytes) {{
entry:
  br label %look
look:
  call void @enter()
  %kept = load i64, ptr @kept
  %wanted = add i64 %kept, %bytes
  %enough = call i64 @at_least(i64 {_MOST_KEPT // 2})
  %many = icmp sgt i64 %wanted, %enough
  %tight = call i1 @is_much(i64 %kept)
  %much = or i1 %many, %tight
  br i1 %much, label %find, label %done
find:
  %list = call ptr @oldest()
  %none = icmp eq ptr %list, null
  br i1 %none, label %done, label %drop
drop:
  %size_at = getelementptr %list, ptr %list, i64 0, i32 0
  %size = load i64, ptr %size_at
  %block = call ptr @pop(ptr %list)
  call void @leave()
  call void @free(ptr %block)
  call void @hand_back(i64 %size)
  br label %look
done:
  call void @leave()
  ret void
}}

define internal void @count(i64 %bytes) {{
  %before = atomicrmw add ptr @used, i64 %bytes seq_cst
  %after = add i64 %before, %bytes
  %peak = atomicrmw max ptr @peak, i64 %after seq_cst
  ret void
}}

; A block that C's allocator is asked for may be of the memory that went back to it: so much less is counted there.
define internal void @ask_again(i64 %bytes) {{
entry:
  %before = atomicrmw sub ptr @freed, i64 %bytes seq_cst
  %less = icmp slt i64 %before, %bytes
  br i1 %less, label %none, label %done
none:
  store atomic i64 0, ptr @freed seq_cst, align 8
  br label %done
done:
  ret void
}}

; Much that went to C's free goes on to the system, where there is much with what C's allocator may hold of it. (It has
; none of the blocks that it mapped for themselves, but does not say which these are.)
define internal void @hand_back(i64 %bytes) {{
entry:
  %before = atomicrmw add ptr @freed, i64 %bytes seq_cst
  %after = add i64 %before, %bytes
  %many = icmp sgt i64 %after, {_TRIMMED}
  br i1 %many, label %look, label %done
look:
  %used = load atomic i64, ptr @used seq_cst, align 8
  %kept = load atomic i64, ptr @kept seq_cst, align 8
  %there = add i64 %used, %kept
  %all = add i64 %there, %after
  %tight = icmp sgt i64 %all, {_MOST_IN_ALL - _ALWAYS_KEPT}
  br i1 %tight, label %trim, label %done
trim:
  store atomic i64 0, ptr @freed seq_cst, align 8
  %trimmed = call i32 @{_TRIM}(i64 0)
  br label %done
done:
  ret void
}}

define ptr @anabranch_malloc(ptr %context, i64 %size) {{
entry:
  %out = alloca ptr
  %small = icmp ult i64 %size, {_SMALLEST}
  br i1 %small, label %plain, label %large
plain:
  %p = call ptr @malloc(i64 %size)
  ret ptr %p
large:
  %bytes = call i64 @rounded(i64 %size)
  call void @count(i64 %bytes)
  %kept = call ptr @take(i64 %bytes)
  %none = icmp eq ptr %kept, null
  br i1 %none, label %ask, label %give
give:
  ret ptr %kept
ask:
  call void @tidy(i64 %bytes)
  call void @ask_again(i64 %bytes)
  %failed = call i32 @posix_memalign(ptr %out, i64 64, i64 %bytes)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %fail, label %made
fail:
  ret ptr null
made:
  %new = load ptr, ptr %out
  %huge = icmp uge i64 %bytes, 4194304
  br i1 %huge, label %advise, label %done
advise:
  %at = ptrtoint ptr %new to i64
  %up = add i64 %at, 4095
  %page = and i64 %up, -4096
  %skipped = sub i64 %page, %at
  %rest = sub i64 %bytes, %skipped
  %q = inttoptr i64 %page to ptr
  %a = call i32 @madvise(ptr %q, i64 %rest, i32 14)
  br label %done
done:
  ret ptr %new
}}

define ptr @anabranch_calloc(ptr %context, i64 %count, i64 %each) {{
entry:
  %size = mul i64 %count, %each
  %small = icmp ult i64 %size, {_SMALLEST}
  br i1 %small, label %plain, label %large
plain:
  %p = call ptr @calloc(i64 %count, i64 %each)
  ret ptr %p
large:
  %bytes = call i64 @rounded(i64 %size)
  call void @count(i64 %bytes)
  %kept = call ptr @take(i64 %bytes)
  %none = icmp eq ptr %kept, null
  br i1 %none, label %ask, label %clear
clear:
  %z = call ptr @memset(ptr %kept, i32 0, i64 %size)
  ret ptr %kept
ask:
  call void @tidy(i64 %bytes)
  call void @ask_again(i64 %bytes)
  %new = call ptr @calloc(i64 %bytes, i64 1)
  ret ptr %new
}}

define ptr @anabranch_realloc(ptr %context, ptr %block, i64 %size) {{
entry:
  %small = icmp ult i64 %size, {_SMALLEST}
  %pages = call i64 @rounded(i64 %size)
  %bytes = select i1 %small, i64 %size, i64 %pages
  %new = call ptr @realloc(ptr %block, i64 %bytes)
  ret ptr %new
}}

define void @anabranch_free(ptr %context, ptr %block, i64 %size) {{
entry:
  %null = icmp eq ptr %block, null
  br i1 %null, label %done, label %some
some:
  %small = icmp ult i64 %size, {_SMALLEST}
  br i1 %small, label %plain, label %large
plain:
  call void @free(ptr %block)
  ret void
large:
  %bytes = call i64 @rounded(i64 %size)
  %fewer = sub i64 0, %bytes
  call void @count(i64 %fewer)
  call void @enter()
  %before = load i64, ptr @kept
  %after = add i64 %before, %bytes
  %many = call i1 @is_much(i64 %after)
  br i1 %many, label %refuse, label %find
find:
  %list = call ptr @list_of(i64 %bytes)
  %none = icmp eq ptr %list, null
  br i1 %none, label %refuse, label %keep
keep:
  %size_at = getelementptr %list, ptr %list, i64 0, i32 0
  %head_at = getelementptr %list, ptr %list, i64 0, i32 1
  %stamp_at = getelementptr %list, ptr %list, i64 0, i32 2
  %known = load i64, ptr %size_at
  %is_new = icmp eq i64 %known, 0
  br i1 %is_new, label %note, label %put
note:
  %sizes = load i64, ptr @sizes
  %several = add i64 %sizes, 1
  store i64 %several, ptr @sizes
  %stamp = load i64, ptr @asked
  store i64 %stamp, ptr %stamp_at
  br label %put
put:
  store i64 %bytes, ptr %size_at
  %head = load ptr, ptr %head_at
  store ptr %head, ptr %block
  store ptr %block, ptr %head_at
  store i64 %after, ptr @kept
  %all_sizes = load i64, ptr @sizes
  call void @leave()
  %crowded = icmp sgt i64 %all_sizes, 512
  br i1 %crowded, label %forget, label %done
forget:
  call void @anabranch_flush()
  ret void
refuse:
  call void @leave()
  call void @free(ptr %block)
  call void @hand_back(i64 %bytes)
  ret void
done:
  ret void
}}
"""
_NO_TRIM = f"declare i32 @{_TRIM}(i64)", f"define internal i32 @{_TRIM}(i64 %pad) {{\n  ret i32 0\n}}"
