"""Scratch memory: where kernels keep what they need while they run.

Kernels release the interpreter's lock when they take long (see `lock`), so several may run at a time, each with
memory of its own. What a kernel has used is kept for the next one: a few pieces, of which the first that is free is
taken. So a thread that runs one kernel after the other finds the same piece, which is in its caches still.

A kernel has an attribute `scratch`: the places, among its numbers, of those that are addresses in scratch memory. In
its table they count from the start of that memory, and the last of all numbers is its size in bytes, or 0 where it
needs none. Its entry (`llvm.entry`) takes the memory, and runs the kernel with addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

ALIGNMENT = 64  # bytes: what vectors and caches like
TAKE, GIVE = "anabranch_take_scratch", "anabranch_give_scratch"
DECLARATIONS = f"declare ptr @{TAKE}(i64)\ndeclare void @{GIVE}(ptr)\n"
ALLOCATING = "PyMem_RawMalloc", "PyMem_RawFree"  # of Python's, that need no lock
_KEPT = 4  # pieces; more kernels than that at a time ask the system for theirs
_HEAD = 2 * ALIGNMENT  # bytes before what a kernel gets, at most


def addresses_among(names: Sequence[str]) -> tuple[int, ...]:
    """Return the places of the names of addresses in scratch memory among those of numbers."""
    return tuple(place for place, name in enumerate(names) if name.endswith("_address"))


class NamedNumbers:
    """The base of kernels whose numbers have names.

    Attributes:
        number_names: these, in order; those of addresses in scratch memory end in "_address".
    """

    number_names: ClassVar[tuple[str, ...]]

    @property
    def number_count(self) -> int:
        return len(self.number_names)

    @property
    def scratch(self) -> tuple[int, ...]:
        """The numbers that are places in scratch memory."""
        return addresses_among(self.number_names)


def pieces_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where pieces of so many bytes begin, one behind the other and each aligned, and the bytes of all."""
    *starts, size = accumulate([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes], initial=0)
    return starts, size


def own_memory(size: int) -> Any:
    """Return an array of `size` bytes that begins at a cache line: memory of the caller's own, while it holds that."""
    memory = np.empty(size + ALIGNMENT, "uint8")
    return memory[-memory.ctypes.data % ALIGNMENT :][:size]


# Before the memory that a kernel gets stand the number of its piece, from 1 on, and the address that the system gave.
# A piece that is kept has a word that says whether it is used, its bytes, and its address.
MODULE = f"""
%piece = type {{ i64, i64, ptr, [{ALIGNMENT - 24} x i8] }}
@pieces = internal global [{_KEPT} x %piece] zeroinitializer, align {ALIGNMENT}

declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)

; Memory of some bytes for a piece, or for no piece (0); null where there is none.
define internal ptr @new_scratch(i64 %bytes, i64 %number) noinline {{
entry:
  %all = add i64 %bytes, {_HEAD}
  %given = call ptr @PyMem_RawMalloc(i64 %all)
  %none = icmp eq ptr %given, null
  br i1 %none, label %done, label %place
place:
  %address = ptrtoint ptr %given to i64
  %behind = add i64 %address, {_HEAD}
  %aligned = and i64 %behind, -{ALIGNMENT}
  %memory = inttoptr i64 %aligned to ptr
  %number_at = getelementptr i64, ptr %memory, i64 -1
  %given_at = getelementptr i64, ptr %memory, i64 -2
  store i64 %number, ptr %number_at
  store ptr %given, ptr %given_at
  ret ptr %memory
done:
  ret ptr null
}}

define internal void @free_scratch(ptr %memory) noinline {{
entry:
  %none = icmp eq ptr %memory, null
  br i1 %none, label %done, label %some
some:
  %given_at = getelementptr i64, ptr %memory, i64 -2
  %given = load ptr, ptr %given_at
  call void @PyMem_RawFree(ptr %given)
  br label %done
done:
  ret void
}}

; Memory of some bytes that nobody else uses until it is given back; null where there is none.
define ptr @{TAKE}(i64 %bytes) {{
entry:
  br label %look
look:
  %number = phi i64 [0, %entry], [%next, %taken]
  %more = icmp slt i64 %number, {_KEPT}
  br i1 %more, label %try, label %other
try:
  %piece = getelementptr [{_KEPT} x %piece], ptr @pieces, i64 0, i64 %number
  %pair = cmpxchg ptr %piece, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %pair, 1
  %next = add i64 %number, 1
  br i1 %mine, label %found, label %taken
taken:
  br label %look
found:
  %size_at = getelementptr %piece, ptr %piece, i64 0, i32 1
  %memory_at = getelementptr %piece, ptr %piece, i64 0, i32 2
  %size = load i64, ptr %size_at
  %old = load ptr, ptr %memory_at
  %small = icmp slt i64 %size, %bytes
  br i1 %small, label %grow, label %done
grow:
  call void @free_scratch(ptr %old)
  %new = call ptr @new_scratch(i64 %bytes, i64 %next)
  %none = icmp eq ptr %new, null
  %has = select i1 %none, i64 0, i64 %bytes
  store i64 %has, ptr %size_at
  store ptr %new, ptr %memory_at
  br i1 %none, label %fail, label %done
fail:
  store atomic i64 0, ptr %piece seq_cst, align 8
  ret ptr null
done:
  %memory = phi ptr [%old, %found], [%new, %grow]
  ret ptr %memory
other:
  %own = call ptr @new_scratch(i64 %bytes, i64 0)
  ret ptr %own
}}

define void @{GIVE}(ptr %memory) {{
entry:
  %number_at = getelementptr i64, ptr %memory, i64 -1
  %number = load i64, ptr %number_at
  %is_kept = icmp sgt i64 %number, 0
  br i1 %is_kept, label %keep, label %drop
keep:
  %place = sub i64 %number, 1
  %piece = getelementptr [{_KEPT} x %piece], ptr @pieces, i64 0, i64 %place
  store atomic i64 0, ptr %piece seq_cst, align 8
  ret void
drop:
  call void @free_scratch(ptr %memory)
  ret void
}}
"""
