"""The memory of this machine."""

from __future__ import annotations

import os


def machine_bytes() -> int:
    """Return the bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say so
        return 1 << 40
