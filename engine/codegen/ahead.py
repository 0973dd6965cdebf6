"""Compilation ahead: code that all first steps have in common, beside the imports, if it is not on the disk."""

from __future__ import annotations

from functools import cache

from .host.threads import wanted_threads
from .llvm.library import library
from .llvm.linker import can_link
from .llvm.machine_key import machine_key


@cache
def begin() -> None:
    """Have other threads compile what steps of models have in common: threads, memory, products in float32.

    Modules are imported meanwhile, by one processor. Nothing happens where there is no other one, where the object code
    is on the disk already, or would not be kept there: it is compiled once on a machine.
    """
    if wanted_threads() < 2 or not can_link() or not machine_key() or not library.keeps or not library.usable:
        return
    from .host import memory
    from .matmul import gemm

    if gemm.is_available():
        gemm.prepare("float32")
    memory.prepare()
