"""Limit the time that a request may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from . import RequestError

# When the answer of the request is due, by `time.perf_counter`; None: at no time. Fronts set it in its context.
due: ContextVar[float | None] = ContextVar("due", default=None)


def note_time_limit(seconds: float | None) -> None:
    """Note in the context of a request that its answer is due in so many seconds, if it was not due before."""
    if seconds is not None:
        known, at = due.get(), time.perf_counter() + seconds
        due.set(at if known is None else min(known, at))


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncGenerator[None]:
    """Cancel what is done in the block once it has taken so many seconds; None for any time.

    Raises:
        RequestError: the time is over.
    """
    note_time_limit(seconds)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestError(
            504, f"There was no answer within {seconds:g} s, which is all the time that the request had."
        ) from None
