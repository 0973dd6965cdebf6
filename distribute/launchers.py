"""Readers of what torchrun, MPI, SLURM and indexed Jobs of Kubernetes set for the processes that they start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .cluster import joined_address

_FIRST_PORT, _LAST_PORT = 29500, 65535
_HERE = "localhost"
UNKNOWN = "localhost:0"  # the address of a process of which the environment has neither host nor port


class _Launcher(NamedTuple):
    """The variables of a launcher.

    Attributes:
        rank, size: the number of the process, and how many there are.
        here: how many of them run on the host of the process; "" if there is none.
        needs_here: whether processes that it starts have the last one, too, by which they are known.
    """

    rank: str
    size: str
    here: str = ""
    needs_here: bool = False

    def has_started(self, given: Mapping[str, str]) -> bool:
        """Test whether the environment is that of a process that this launcher has started."""
        names = self[:3] if self.needs_here else self[:2]
        return all(given.get(name) for name in names)


_SLURM = _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")  # srun sets these, and a batch script alone has them not
_JOB = _Launcher("JOB_COMPLETION_INDEX", "WORLD_SIZE")  # Kubernetes gives the first, the Job's file the other
_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),  # torchrun
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH and Intel MPI. Their launcher itself may be started by srun, which then numbers the nodes. srun sets the
    # first two variables, too, if it is to do without that launcher.
    _Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", needs_here=True),
    _SLURM,
    _JOB,
)


class Numbered(NamedTuple):
    """A process that a launcher has numbered.

    Attributes:
        rank: its number.
        addresses: of all processes, in order. That of process 0 is always there; `UNKNOWN` where the variables do not
            say on which host another one runs.
    """

    rank: int
    addresses: list[str]


def numbered(given: Mapping[str, str]) -> Numbered | None:
    """Read what a launcher has set for a process; None if none has started it.

    Process 0 listens at ``MASTER_ADDR`` and the port behind ``MASTER_PORT``, which torchrun's agent holds; where there
    is not such a variable, on SLURM's first host or this one, at port 29501. Each other one has the next port.

    Args:
        given: the environment.

    Raises:
        ValueError: a variable is not a number, or out of range.

    >>> numbered({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29400"})
    Numbered(rank=1, addresses=['localhost:29401', 'localhost:29402'])
    """
    launcher = next((each for each in _LAUNCHERS if each.has_started(given)), None)
    if launcher is None:
        return None
    texts = {name: given[name] for name in launcher[:2]}
    text = given.get("MASTER_PORT") or str(_FIRST_PORT)
    try:
        rank, size = (int(each) for each in texts.values())
        port = int(text) + 1
    except ValueError:
        raise ValueError(f"{texts} and MASTER_PORT={text!r} have to be numbers.") from None
    if not 0 <= rank < size:
        raise ValueError(f"{texts}: the number of a process is at least 0 and below the number of processes.")
    if port > _LAST_PORT:
        raise ValueError(f"MASTER_PORT={text!r}: process 0 listens at the port behind it, so at most {_LAST_PORT - 1}.")
    addresses = [
        joined_address(host, port + number) if host and port + number <= _LAST_PORT else UNKNOWN
        for number, host in enumerate(_hosts(launcher, size, given))
    ]
    return Numbered(rank, addresses)


def _hosts(launcher: _Launcher, size: int, given: Mapping[str, str]) -> list[str]:
    """Return the host of each process, "" where it is not known."""
    first = given.get("MASTER_ADDR", "")
    found = [first or _HERE, *[""] * (size - 1)]
    if launcher is _SLURM:
        nodes = _nodes_of_tasks(given.get("SLURM_STEP_NODELIST", ""), given.get("SLURM_STEP_TASKS_PER_NODE", ""))
        if len(set(nodes)) == 1:
            return [found[0]] * size
        form = given.get("SLURM_DISTRIBUTION", "block")
        if len(nodes) == size and not form.startswith("arbitrary"):
            rest = nodes[1:] if form.startswith("block") else [""] * (size - 1)  # others do not fill node after node
            return [first or nodes[0], *rest]
    elif launcher is _JOB:
        name, _, domain = first.partition(".")
        if name.endswith("-0"):  # pods of an indexed Job have their names from their numbers
            return [f"{name[:-1]}{number}" + (f".{domain}" if domain else "") for number in range(size)]
    elif given.get(launcher.here, "") == str(size):
        return [found[0]] * size
    return found


def _nodes_of_tasks(nodes: str, tasks: str) -> list[str]:
    """Return the node of each task of SLURM, which fill one node after the other; [] if that is not known.

    >>> _nodes_of_tasks("a[1,08-09],b", "2(x2),1,1")
    ['a1', 'a1', 'a08', 'a08', 'a09', 'b']
    """
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        counts += [int(count)] * int(times or 1)
    names = [name for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodes) for name in _expanded(part)]
    if len(names) != len(counts):
        return []
    return [name for name, count in zip(names, counts, strict=True) for _ in range(count)]


def _expanded(name: str) -> list[str]:
    """Return the names that SLURM has joined, such as ``a[1-3,7]``."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    inside, _, behind = rest.partition("]")
    found: list[str] = []
    for part in inside.split(","):
        low, _, high = part.partition("-")
        numbers = [f"{number:0{len(low)}}" for number in range(int(low), int(high or low) + 1)]
        found += [f"{before}{number}{end}" for number in numbers for end in _expanded(behind)]
    return found


__all__ = ["UNKNOWN", "Numbered", "numbered"]
