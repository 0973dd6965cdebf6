"""The collectives as users call them, and the group that a process finds in its environment."""

from __future__ import annotations

import atexit
import os
import secrets

from ...engine.ops import collectives
from ...engine.ops.collectives import Group, all_gather, all_reduce, barrier, broadcast, reduce_scatter
from ..cluster import is_loopback, split_address
from ..environment import JOINS, WORKER_JOBS, Place, cluster_from_environment
from ..token import job_token
from ..transport.planes import AUTO, Plane, asked
from .group import ProcessGroup
from .joiner import Joiner
from .links import Links
from .membership_service import address_of_service

CONNECT_SECONDS = 30.0
AGAIN_SECONDS = 5.0  # how long members wait for each other that have just been counted


def rank() -> int:
    """Return the number of this process among those that run collectives together; 0 alone.

    >>> import anabranch as ab
    >>> ab.distribute.rank()  # this process is alone
    0
    """
    return collectives.current_group().rank


def world_size() -> int:
    """Return how many processes run collectives together; 1 alone.

    >>> import anabranch as ab
    >>> ab.distribute.world_size()  # this process is alone
    1
    """
    return collectives.current_group().size


def joined(place: Place | None, timeout: float = CONNECT_SECONDS) -> Group | None:
    """Join the group of all workers of a cluster, or of all that one launcher has started; None for a process alone.

    A worker that the launcher has started again is a `Joiner` until the others take it in.

    Raises:
        TimeoutError: workers are absent.
        OSError: something else listens at this worker's address.
    """
    if place is None:
        return None
    cluster = place.cluster
    names = [task for job in WORKER_JOBS for task in cluster.tasks if task.startswith(f"/job:{job}/")]
    own = cluster.task_name(place.job_name, place.task_index)
    if own not in names or len(names) == 1:
        return None
    addresses = [cluster.address(name) for name in names]
    return _linked(names, addresses[:1] if place.is_numbered else addresses, names.index(own), timeout)


def join_at(address: str, rank: int, size: int, timeout: float = CONNECT_SECONDS) -> Group:
    """Join a group of processes, each of which is given its number and the address at which process 0 waits.

    Raises:
        TimeoutError: some are absent.
        OSError: something else listens there.
    """
    return _linked([f"/job:worker/task:{number}" for number in range(size)], [address], rank, timeout)


def _linked(names: list[str], addresses: list[str], rank: int, timeout: float) -> Group:
    is_local = all(is_loopback(split_address(address)[0]) for address in addresses)
    incarnation, token = secrets.randbits(63), job_token(None, is_local)
    shares_memory = asked() in (AUTO, Plane.SHARED_MEMORY)
    if os.environ.get(JOINS) and address_of_service():
        return Joiner(names, addresses, rank, incarnation, token, shares_memory)
    links = Links(names, addresses, rank, incarnation, token, timeout)
    group = ProcessGroup(links, shares_memory)
    atexit.register(_leave, group)
    return group


def regrouped(group: ProcessGroup) -> ProcessGroup:
    """Make the group of the members that are left, which is that of this process from now on.

    Raises:
        TaskFailedError: the first member is lost.
    """
    return _used(group.without_lost(AGAIN_SECONDS))


def taken_in(joiner: Joiner) -> ProcessGroup:
    """Wait until others take in a worker that was started again; return the group, which is that of this process.

    Raises:
        OverError: the training is over.
        CancelledError: no worker has the state, or the launcher is gone, or a worker has ended the training.
    """
    return _used(joiner.joined(AGAIN_SECONDS))


def _used(group: ProcessGroup) -> ProcessGroup:
    atexit.register(_leave, group)
    collectives.set_group(group)
    return group


def _leave(group: ProcessGroup) -> None:
    """Leave a group at the end of the process."""
    group.note_end()
    group.close()


collectives.set_finder(lambda: joined(cluster_from_environment()))

__all__ = [
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "join_at",
    "joined",
    "rank",
    "reduce_scatter",
    "regrouped",
    "taken_in",
    "world_size",
]
