"""`ClusterSpec`: which tasks there are, and where they listen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_JOB = re.compile(r"[A-Za-z][\w.-]*")


class ClusterSpec(Mapping[str, "list[str] | dict[int, str]"]):
    """The tasks of a cluster: for each job the addresses of its tasks, in order.

    Args:
        jobs: a mapping from a job's name to addresses ``"host:port"``; in place of a list there may be a mapping from
            task numbers to addresses. Numbers may be missing there: then the job's addresses are such a mapping here,
            too, as in TensorFlow. Another `ClusterSpec` is copied.

    Raises:
        ValueError: a name or an address can't be read, or an address occurs twice.
        TypeError: it is not such a mapping.

    >>> cluster = ClusterSpec({"ps": ["localhost:2201", "localhost:2202"], "worker": ["localhost:2203"]})
    >>> cluster.tasks
    ['/job:ps/task:0', '/job:ps/task:1', '/job:worker/task:0']
    >>> cluster.address("/job:ps/task:1")
    'localhost:2202'
    """

    def __init__(self, jobs: Mapping[str, Any]) -> None:
        if not isinstance(jobs, Mapping):
            raise TypeError(f"ClusterSpec({jobs!r}): expected a dict such as {{'worker': ['localhost:2203']}}.")
        self._jobs = {job: _addresses(job, tasks) for job, tasks in jobs.items()}
        if not any(self._jobs.values()):
            raise ValueError("ClusterSpec: there is no task. Give {'worker': ['localhost:2203']}, for instance.")
        self._by_name = {
            _task_name(job, number): address for job, tasks in self._jobs.items() for number, address in tasks.items()
        }
        counts = Counter(self._by_name.values())
        for address, count in counts.items():
            if count > 1 and split_address(address)[1]:
                twice = [name for name, known in self._by_name.items() if known == address]
                raise ValueError(f"ClusterSpec: {' and '.join(twice)} have one address, {address}. Each needs its own.")

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        """Read what `as_json` wrote.

        Raises:
            ValueError: the text is not a cluster.
        """
        import json

        try:
            jobs = json.loads(text)
        except ValueError as error:
            raise ValueError(f"The cluster {text!r} is not JSON: {error}. Write {_EXAMPLE}.") from None
        return cls(jobs)

    def as_json(self) -> str:
        """Write the cluster as JSON."""
        import json

        return json.dumps({job: {str(number): at for number, at in tasks.items()} for job, tasks in self._jobs.items()})

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks, job by job."""
        return list(self._by_name)

    def task_name(self, job_name: str, task_index: int) -> str:
        """Name a task.

        Raises:
            ValueError: the cluster has no such task.

        >>> ClusterSpec({"ps": ["localhost:2201"]}).task_name("ps", 0)
        '/job:ps/task:0'
        """
        name = _task_name(job_name, task_index)
        if name not in self._by_name:
            raise ValueError(f"The cluster has no task {name}; it has {', '.join(self.tasks)}.")
        return name

    def address(self, task: str) -> str:
        """Return the address of a task, by its name.

        Raises:
            ValueError: the cluster has no such task.
        """
        if task not in self._by_name:
            raise ValueError(f"The cluster has no task {task}; it has {', '.join(self.tasks)}.")
        return self._by_name[task]

    def __getitem__(self, job: str) -> list[str] | dict[int, str]:
        tasks = self._jobs[job]
        return list(tasks.values()) if [*tasks] == list(range(len(tasks))) else dict(tasks)

    def __iter__(self) -> Any:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(self)})"


_EXAMPLE = """{"ps": ["localhost:2201"], "worker": ["localhost:2203"]}"""


def _task_name(job: str, number: int) -> str:
    from ..engine.graph.device import DeviceName  # with NumPy, which commands that only start processes do without

    return str(DeviceName(job, number))


def _addresses(job: Any, tasks: Any) -> dict[int, str]:
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise ValueError(f"ClusterSpec: {job!r} is no name of a job. Use letters, digits, '_', '-' and '.'.")
    if isinstance(tasks, Mapping):
        numbered = {_number(job, number): address for number, address in tasks.items()}
    elif isinstance(tasks, Sequence) and not isinstance(tasks, str):
        numbered = dict(enumerate(tasks))
    else:
        raise TypeError(
            f"ClusterSpec: job {job!r} is {tasks!r}; expected a list of addresses such as 'localhost:2203'."
        )
    for address in numbered.values():
        split_address(address)
    return dict(sorted(numbered.items()))


def _number(job: str, number: Any) -> int:
    text = str(number)
    if not text.isdigit():
        raise ValueError(f"ClusterSpec: job {job!r} has a task {number!r}; expected a number that counts from 0.")
    return int(text)


def split_address(address: Any) -> tuple[str, int]:
    """Take an address apart: its host and its port.

    Raises:
        ValueError: it is not an address.

    >>> split_address("localhost:2203"), split_address("[::1]:2203")
    (('localhost', 2203), ('::1', 2203))
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address. Write 'host:port', such as 'localhost:2203'.")
    return host.strip("[]"), int(port)


def listens(address: str, timeout: float = 1.0) -> bool:
    """Test whether a process listens at an address, within so many seconds."""
    import socket  # a process without a cluster does not need it

    try:
        socket.create_connection(split_address(address), timeout).close()
    except OSError:
        return False
    return True


def joined_address(host: str, port: int) -> str:
    """Put an address together."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolved(host: str) -> str:
    """Look up a host: its address, of IPv4 if it has one.

    Raises:
        OSError: the host has no address.

    >>> resolved("127.0.0.1")
    '127.0.0.1'
    """
    import socket  # a process without a cluster does not need it

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"The host {host!r} can't be found: {error.strerror}. Correct the address.") from None
    addresses = [str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0] != socket.AF_INET)]
    return addresses[0]


def is_loopback(host: str) -> bool:
    """Test whether a host is an address of this machine that no other machine can reach.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    import ipaddress  # a process without a cluster does not need it

    return ipaddress.ip_address(resolved(host)).is_loopback


def host_to_bind(address: str) -> str | None:
    """Return at which host a task listens that a launcher has placed: the one by which other tasks reach it.

    Args:
        address: that of the task in the cluster.

    Returns:
        The host; None where it is one of loopback, on which tasks listen without being asked to.

    >>> host_to_bind("localhost:2203") is None, host_to_bind("192.0.2.7:2203")
    (True, '192.0.2.7')
    """
    host, _ = split_address(address)
    return None if is_loopback(host) else host
