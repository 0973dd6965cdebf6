"""Limit the time that a request may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from . import RequestError


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncGenerator[None]:
    """Cancel what is done in the block once it has taken so many seconds; None for any time.

    Raises:
        RequestError: the time is over.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestError(
            504, f"There was no answer within {seconds:g} s, which is all the time that the request had."
        ) from None
