"""`cluster_from_environment`: which cluster there is, and which of its tasks this process is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .cluster import ClusterSpec, joined_address

WORKER_JOBS = ("chief", "worker")  # in the order in which their tasks are numbered


class Place(NamedTuple):
    """The place of a process.

    Attributes:
        cluster: all tasks.
        job_name, task_index: which of them this is.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int


class Rendezvous(NamedTuple):
    """The place where processes that have only their number find each other.

    Attributes:
        rank, size: the number of this process, and how many there are.
        address: where process 0 waits for the others.
    """

    rank: int
    size: int
    address: str


_RANKS = (  # the number of the process and how many there are: torchrun, Open MPI, SLURM, indexed Jobs of Kubernetes
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # which srun sets, and a batch script alone does not have
    ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),  # Kubernetes gives the first, the Job's file has to give the other
)


def rendezvous_from_environment(environment: Mapping[str, str] | None = None) -> Rendezvous | None:
    """Read what torchrun, ``mpirun``, ``srun`` or an indexed Job set for a process; None if they have not started it.

    Process 0 waits at ``MASTER_ADDR`` and at the port behind ``MASTER_PORT``, which torchrun's agent holds. Where there
    is no such variable: at port 29501 of this machine.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: a variable is no number, or out of range.

    >>> rendezvous_from_environment({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29400"})
    Rendezvous(rank=1, size=4, address='a:29401')
    """
    given = os.environ if environment is None else environment
    names = next((pair for pair in _RANKS if all(given.get(name) for name in pair)), None)
    if names is None:
        return None
    texts = {name: given[name] for name in names}
    port = given.get("MASTER_PORT") or "29500"
    try:
        rank, size = (int(text) for text in texts.values())
        address = joined_address(given.get("MASTER_ADDR") or "localhost", int(port) + 1)
    except ValueError:
        raise ValueError(f"{texts} and MASTER_PORT={port!r} have to be numbers.") from None
    if not 0 <= rank < size:
        raise ValueError(f"{texts}: the number of a process is at least 0 and below the number of processes.")
    return Rendezvous(rank, size, address)


def restarts_allowed(environment: Mapping[str, str] | None = None) -> int:
    """Read from ``ANABRANCH_MAX_RESTARTS`` how often within an hour a launcher starts tasks again; 3 without it.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: it is no number.

    >>> restarts_allowed({"ANABRANCH_MAX_RESTARTS": "1"}), restarts_allowed({})
    (1, 3)
    """
    text = (os.environ if environment is None else environment).get("ANABRANCH_MAX_RESTARTS", "3")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"ANABRANCH_MAX_RESTARTS={text!r} has to be a number.") from None


def tell_launcher(chief: int) -> None:
    """Notify the launcher, by the file ``ANABRANCH_CHIEF_FILE`` that it names, which worker is the chief now."""
    path = os.environ.get("ANABRANCH_CHIEF_FILE", "")
    if path:
        with open(f"{path}.{chief}", "w", encoding="ascii") as stream:
            stream.write(str(chief))
        os.replace(f"{path}.{chief}", path)


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


def cluster_from_environment(environment: Mapping[str, str] | None = None) -> Place | None:
    """Read the cluster that a launcher describes in ``TF_CONFIG``; None if there is none.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: the variable can't be read; the message shows how it is written.

    >>> config = '{"cluster": {"worker": ["localhost:2203"]}, "task": {"type": "worker", "index": 0}}'
    >>> cluster_from_environment({"TF_CONFIG": config}).job_name
    'worker'
    """
    text = (os.environ if environment is None else environment).get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config: Any = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        place = Place(ClusterSpec(cluster), str(task["type"]), int(task["index"]))
        place.cluster.task_name(place.job_name, place.task_index)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"TF_CONFIG is {text!r}, which can't be read: {what}. Write {_EXAMPLE}.") from None
    return place


_EXAMPLE = '{"cluster": {"worker": ["host:2203"], "ps": ["host:2201"]}, "task": {"type": "worker", "index": 0}}'
