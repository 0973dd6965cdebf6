"""Members of a group as threads of this process, each with its own sockets and memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shared.tasks import PATIENCE

from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.distribute.collectives.links import Links
from anabranch.distribute.ports import ReservedPorts

TOKEN = b"a token for tests, no secret"
Members = list[ProcessGroup]
_RESERVED: deque[ReservedPorts] = deque()


def addresses(count: int) -> list[str]:
    """Reserve addresses of this machine for the test that calls this, and those that follow."""
    while len(_RESERVED) > 3:
        _RESERVED.popleft().close()
    _RESERVED.append(ReservedPorts("127.0.0.1", count))
    return [f"127.0.0.1:{port}" for port in _RESERVED[-1].numbers]


def all_at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions in threads of their own; gives their results, or what they raised."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(outcome, call) for call in calls]
        return [future.result(PATIENCE) for future in futures]


def linked(count: int, timeout: float = PATIENCE, tokens: dict[int, bytes] | None = None) -> list[Any]:
    """Make the connections of each member; in place of those of a member that fails, its error."""
    names, at = [f"/job:worker/task:{rank}" for rank in range(count)], addresses(count)

    def link(rank: int) -> Links:
        return Links(names, at, rank, rank + 1, (tokens or {}).get(rank, TOKEN), timeout)

    return all_at_once(*[lambda rank=rank: link(rank) for rank in range(count)])


def made(count: int, shares_memory: bool, hosts: Sequence[str] | None = None, way: str | None = None) -> Members:
    """Make the members of a group; `hosts` names each one's host."""
    names = [None] * count if hosts is None else hosts
    return all_at_once(
        *[
            lambda link=link, name=name: ProcessGroup(link, shares_memory, name, way)
            for link, name in zip(linked(count), names, strict=True)
        ]
    )


def each(members: Members, call: Callable[[ProcessGroup], Any]) -> list[Any]:
    """Call a function as each member; gives the results by rank.

    Raises:
        Exception: that of the first member that fails.
    """
    found = all_at_once(*[lambda member=member: call(member) for member in members])
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


__all__ = ["TOKEN", "Members", "addresses", "all_at_once", "each", "linked", "made"]
