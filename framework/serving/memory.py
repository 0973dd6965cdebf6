"""`Memory`: how many bytes the loaded models of a server take together."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from typing import TYPE_CHECKING

from ...engine.common.memory import release_pages
from .storage import ServableError

if TYPE_CHECKING:
    from collections.abc import Callable


class Memory:
    """Counts bytes by model and version; belongs to the server's event loop.

    Args:
        limit: how many there may be; None for any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._held: dict[tuple[str, int], int] = {}

    @property
    def held(self) -> int:
        """The bytes that all of them take."""
        return sum(self._held.values())

    def reserve(self, model: str, version: int, count: int) -> None:
        """Count a version that is about to be loaded.

        Raises:
            ServableError: there would be more bytes than may be.
        """
        if self._limit is not None and self.held + count > self._limit:
            raise ServableError(
                f"Version {version} takes {count:,} bytes; {self.held:,} of {self._limit:,} (max_loaded_bytes) are "
                "taken by what is loaded. Let a model go, raise the limit, or load by turns (replace)."
            )
        self._held[model, version] = count

    def release(self, model: str, version: int) -> None:
        """Count a version no more."""
        self._held.pop((model, version), None)


def give_back() -> None:
    """Give memory that nobody uses back to the system: what the C library keeps (glibc), and the compiler's code."""
    trim = _trim()
    if trim is not None:
        trim(0)
    release_pages("libllvmlite")


def give_back_cycles() -> None:
    """Free what a version that has gone held in cycles, which Python would keep for ten reloads, and `give_back`."""
    gc.collect()
    give_back()


@cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
