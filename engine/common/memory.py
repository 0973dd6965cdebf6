"""The memory of this machine."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from functools import cache
from typing import Any

# Where Linux has the limit of a container: control groups, version 2 and 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_DONTNEED = 4  # of madvise(): nobody reads these pages soon


def machine_bytes() -> int:
    """Return the bytes of memory that this machine has, or its container may use."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say so
        whole = 1 << 40
    return min([whole, *filter(None, map(_limit, _LIMITS))])


def _limit(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def release_pages(library: str) -> None:
    """Take the pages of a shared library out of the resident memory, where they hold what its file holds (Linux).

    Loading a library of 170 MB touches most of it once, by initialisers and relocations. Pages that are read again come
    back by page faults. Mappings of which the process has changed a page, such as those of relocated addresses, stay,
    also when the page is on a swap device: madvise() would take the change with it.

    Args:
        library: what the name of its file begins with.
    """
    advise = _madvise()
    if advise is None:
        return
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            mappings = file.read()
    except OSError:  # no such file system
        return
    for start, end in _unchanged(mappings, library):
        advise(start, end - start, _DONTNEED)


def _unchanged(mappings: str, library: str) -> list[tuple[int, int]]:
    """Return where mappings of a library begin and end that hold what its file holds, of the text of smaps."""
    path = rf"[^/\n]*/(?:[^/\n]*/)*{re.escape(library)}[^/\n]*"
    lines = r"(?:[A-Z]\w+:.*\n)*?"
    form = rf"^(\w+)-(\w+) r-[x-]p {path}\n{lines}Anonymous: +0 kB\n{lines}Swap: +0 kB$"
    return [(int(start, 16), int(end, 16)) for start, end in re.findall(form, mappings, re.M)]


@cache
def _madvise() -> Any:
    found = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return found
