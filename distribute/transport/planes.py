"""The choice of the way that values take between two tasks, and how that is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph.device import DeviceName
from .slabs import IS_AVAILABLE

VARIABLE = "ANABRANCH_PLANE"
AUTO = "auto"
MEGABYTE = 1 << 20


class Plane(StrEnum):
    """A way in which values travel."""

    SHARED_MEMORY = "shared_memory"
    UNIX = "unix"
    TCP = "tcp"
    GRPC = "grpc"


CHOICES = (AUTO, "sockets", *[str(plane) for plane in Plane])
_WAYS: dict[str, tuple[Plane, ...]] = {
    "sockets": (Plane.UNIX, Plane.TCP),
    **{plane.value: (plane,) for plane in Plane},
}
NEEDS_ONE_HOST = frozenset({Plane.SHARED_MEMORY, Plane.UNIX})


@dataclass(frozen=True)
class Limits:
    """Limits of how much one connection holds.

    Attributes:
        in_flight: bytes that wait to be sent before steps are held.
        slabs: bytes of shared memory.
        together: bytes of shared memory of all connections of a task: one may have more than `slabs` as long as they
            have no more. None if none may.
        inline: bytes of a value that still goes by the socket where there is shared memory.
    """

    in_flight: int = 256 * MEGABYTE
    slabs: int = 256 * MEGABYTE
    inline: int = 1 << 16
    together: int | None = None


def asked(given: str | Mapping[str, str] | None = None) -> str | Mapping[str, str]:
    """Check what a user asks for; by default what is in ``ANABRANCH_PLANE``, or "auto".

    Args:
        given: a plane, or planes by task: ``{"/job:ps": "sockets", "/job:worker/task:1": "grpc"}``.

    Raises:
        ValueError: there is no such plane, or a task's name can't be read.
    """
    found = os.environ.get(VARIABLE, AUTO) if given is None else given
    for plane in found.values() if isinstance(found, Mapping) else [found]:
        if plane not in CHOICES:
            where = f"{VARIABLE}={plane!r}" if given is None else f"plane={plane!r}"
            raise ValueError(f"{where}: expected one of {', '.join(CHOICES)}.")
    for task in found if isinstance(found, Mapping) else ():
        if DeviceName.parse(task).job is None:
            raise ValueError(
                f"plane={{{task!r}: ...}}: {task!r} names no task and no job. Write '/job:ps', or '/job:ps/task:1'."
            )
    return found


def ways(wanted: str | Mapping[str, str], task: str, is_encrypted: bool = False) -> tuple[Plane, ...]:
    """Return the planes to try for a task, in order.

    Args:
        wanted: see `asked`.
        task: the name of the other one.
        is_encrypted: whether nothing may travel between hosts as it is.

    >>> [str(plane) for plane in ways({"/job:ps": "sockets"}, "/job:ps/task:1")]
    ['unix', 'tcp']
    """
    found = _WAYS.get(_for_task(wanted, task))
    if found is None:
        here = (Plane.SHARED_MEMORY,) if IS_AVAILABLE else ()
        found = (*here, Plane.UNIX, Plane.TCP)
    if is_encrypted:
        found = tuple(Plane.GRPC if way == Plane.TCP else way for way in found)
    return found if IS_AVAILABLE else tuple(way for way in found if way not in NEEDS_ONE_HOST)


def streams_where_sockets_fail(wanted: str | Mapping[str, str], task: str) -> bool:
    """Test whether gRPC may be used for a task whose sockets can't be reached: a proxy may forward gRPC alone."""
    return _for_task(wanted, task) == AUTO


def _for_task(wanted: str | Mapping[str, str], task: str) -> str:
    if isinstance(wanted, str):
        return wanted
    name = DeviceName.parse(task)
    return next((plane for asked, plane in wanted.items() if DeviceName.parse(asked).accepts(name)), AUTO)


def local_name(incarnation: int) -> Any:
    """Return the name, in Linux's abstract space, of the socket at which a start of a task listens on its own host."""
    return f"\0anabranch/{incarnation:016x}"


__all__ = [
    "AUTO",
    "CHOICES",
    "NEEDS_ONE_HOST",
    "VARIABLE",
    "Limits",
    "Plane",
    "asked",
    "local_name",
    "streams_where_sockets_fail",
    "ways",
]
