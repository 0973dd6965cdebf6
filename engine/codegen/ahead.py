"""Compilation ahead: code that all first steps have in common, beside the imports, if it is not on the disk."""

from __future__ import annotations

from functools import cache

from ..common.logs import INFO, log
from .host.threads import wanted_threads
from .llvm.library import library


@cache
def begin() -> None:
    """Have other threads compile what steps of models have in common: threads, memory, products in float32.

    Modules are imported meanwhile, by one processor. Nothing happens where there is no other one, where the object code
    is on the disk already, or would not be kept there: the first processes of a machine compile it. What fails here is
    left to the first step, which says so.
    """
    try:
        if wanted_threads() < 2 or not library.keeps or not library.usable:
            return
        from .host import memory
        from .matmul import gemm

        if gemm.is_available():
            gemm.prepare("float32")
        memory.prepare()
    except Warning:  # where these are errors
        raise
    except Exception as error:
        log("fallback", INFO, "nothing is compiled ahead of the first step: %s", error)
