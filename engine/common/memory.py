"""The memory of this machine."""

from __future__ import annotations

import os

# Where Linux has the limit of a container: control groups, version 2 and 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


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
