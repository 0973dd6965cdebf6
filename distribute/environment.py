"""`cluster_from_environment`: which cluster there is, and which of its tasks this process is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from .cluster import ClusterSpec
from .launchers import numbered

WORKER_JOBS = ("chief", "worker")  # in the order in which their tasks are numbered
MEMBERSHIP = "ANABRANCH_MEMBERSHIP"  # the address of the launcher's membership service
JOINS = "ANABRANCH_JOINS"  # set for a worker that was started again, alone: it joins those that go on


class Place(NamedTuple):
    """The place of a process.

    Attributes:
        cluster: all tasks.
        job_name, task_index: which of them this is.
        is_numbered: whether a launcher has only numbered its processes, which are all alike, so that they find each
            other by way of the first one.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    is_numbered: bool = False


def restarts_allowed(environment: Mapping[str, str] | None = None) -> int:
    """Read from ``ANABRANCH_MAX_RESTARTS`` how often within an hour a launcher starts tasks again; 3 without it.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: it is not a number.

    >>> restarts_allowed({"ANABRANCH_MAX_RESTARTS": "1"}), restarts_allowed({})
    (1, 3)
    """
    text = (os.environ if environment is None else environment).get("ANABRANCH_MAX_RESTARTS", "3")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"ANABRANCH_MAX_RESTARTS={text!r} has to be a number.") from None


def notify_launcher(chief: int) -> None:
    """Notify the launcher, by the file ``ANABRANCH_CHIEF_FILE`` that it names, which worker is the chief now."""
    path = os.environ.get("ANABRANCH_CHIEF_FILE", "")
    if path:
        note_chief(path, chief)


def note_chief(path: str, chief: int) -> None:
    """Leave a note, for `chief_of_launcher`.

    Args:
        path: the launcher's file.
        chief: the number of the worker.
    """
    with open(f"{path}.{chief}", "w", encoding="ascii") as stream:
        stream.write(str(chief))
    os.replace(f"{path}.{chief}", path)


def note_end() -> None:
    """Leave a note for the launcher, beside ``ANABRANCH_CHIEF_FILE``, that this process begins to end, and when.

    Others that fail because this one does may end before it: by the notes the launcher finds out who was first.
    """
    path = os.environ.get("ANABRANCH_CHIEF_FILE", "")
    note = f"{path}.{os.getpid()}"
    if path and not os.path.exists(note):
        with contextlib.suppress(OSError):  # the launcher is gone
            with open(f"{note}.new", "w", encoding="ascii") as stream:
                stream.write(str(time.monotonic()))
            os.replace(f"{note}.new", note)


def time_of_end(pid: int, path: str) -> float | None:
    """Return when a process began to end, as it has noted; None where it has not.

    Args:
        pid: its number.
        path: the launcher's file.
    """
    try:
        with open(f"{path}.{pid}", encoding="ascii") as stream:
            return float(stream.read())
    except FileNotFoundError:
        return None


def chief_of_launcher(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the number of the worker that took over last, as the launcher's file has it; None where it has none.

    A worker that is started again may find ps tasks that were started again, too, and that have no chief noted.

    Args:
        environment: in place of ``os.environ``.

    >>> chief_of_launcher({}) is None
    True
    """
    path = (os.environ if environment is None else environment).get("ANABRANCH_CHIEF_FILE", "")
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read())
    except FileNotFoundError:
        return None


def ended_workers(environment: Mapping[str, str] | None = None) -> frozenset[int]:
    """Return the numbers of workers that have ended, and that the launcher does not start again; as far as it says so.

    Args:
        environment: in place of ``os.environ``.

    >>> ended_workers({})
    frozenset()
    """
    path = (os.environ if environment is None else environment).get("ANABRANCH_CHIEF_FILE", "")
    try:
        with open(f"{path}.ended", encoding="ascii") as stream:
            return frozenset(map(int, stream.read().split()))
    except FileNotFoundError:
        return frozenset()


def note_ended_workers(path: str, numbers: Iterable[int]) -> None:
    """Leave a note, for `ended_workers`.

    Args:
        path: the launcher's file, beside which the note is.
        numbers: of the workers.
    """
    with open(f"{path}.ended.new", "w", encoding="ascii") as stream:
        stream.write(" ".join(map(str, numbers)))
    os.replace(f"{path}.ended.new", f"{path}.ended")


def cluster_from_environment(environment: Mapping[str, str] | None = None) -> Place | None:
    """Read the cluster that a launcher describes; None for a process that is alone.

    That is ``TF_CONFIG``, or what torchrun, ``mpirun``, ``srun`` or an indexed Job of Kubernetes set: of these all
    processes are tasks of the job "worker". Process 0 listens at ``MASTER_ADDR`` and the port behind ``MASTER_PORT``,
    by default 29501; each other one has the next port. Where the variables do not say on which host another process
    runs, as with torchrun on several, its address is ``localhost:0``.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: a variable can't be read; of ``TF_CONFIG`` the message shows how it is written.

    >>> config = '{"cluster": {"worker": ["localhost:2203"]}, "task": {"type": "worker", "index": 0}}'
    >>> cluster_from_environment({"TF_CONFIG": config}).job_name
    'worker'
    >>> place = cluster_from_environment({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"})
    >>> place.task_index, place.cluster.address("/job:worker/task:0")
    (1, 'a:29501')
    """
    given = os.environ if environment is None else environment
    text = given.get("TF_CONFIG", "").strip()
    if not text:
        found = numbered(given)
        if found is None or len(found.addresses) == 1:
            return None
        return Place(ClusterSpec({"worker": found.addresses}), "worker", found.rank, is_numbered=True)
    import json

    try:
        config = _members(json.loads(text), "it", ("cluster", "task"))
        task = _members(config["task"], "'task'", ("type", "index"))
        place = Place(ClusterSpec(config["cluster"]), str(task["type"]), int(task["index"]))
        place.cluster.task_name(place.job_name, place.task_index)
    except (TypeError, ValueError) as error:
        what = str(error).rstrip(".")
        raise ValueError(f"TF_CONFIG is {text!r}, which can't be read: {what}. Write {_EXAMPLE}.") from None
    return place


def _members(found: object, what: str, names: tuple[str, str]) -> dict[str, Any]:
    """Return an object of JSON that has these members.

    Raises:
        ValueError: it is something else, or one is missing.
    """
    expected = f"expected an object with {names[0]!r} and {names[1]!r}"
    if not isinstance(found, dict):
        import json  # only this variable is of JSON

        raise ValueError(f"{what} is {'a list' if isinstance(found, list) else json.dumps(found)}, {expected}")
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    return cast("dict[str, Any]", found)


_EXAMPLE = '{"cluster": {"worker": ["host:2203"], "ps": ["host:2201"]}, "task": {"type": "worker", "index": 0}}'
