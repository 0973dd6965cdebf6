"""`Server`: this process as one task of a cluster."""

from __future__ import annotations

import contextlib
import errno
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from ...engine.graph.device import DeviceName
from ...engine.place.devices import make_devices
from ...engine.queues.errors import DeadlineExceededError
from ...engine.queues.stops import Stop
from ..cluster import ClusterSpec, is_loopback, joined_address, resolved, split_address
from ..config import ServerConfig
from ..encryption import TLS, tls_from_environment
from ..ending import Ending
from ..token import job_token
from ..transport.connections import Identity
from ..transport.dialing import listen_here
from ..transport.long_turns import LongTurns
from ..transport.planes import Plane
from ..transport.slabs import IS_AVAILABLE
from .channels import CONNECT_SECONDS, unanswered
from .front import Front, TaskInfo
from .system import System
from .task import Task
from .task_status import TaskStatus, described

_BACKLOG = 128
_LONGEST_WAIT = 0.5  # seconds between looks at whether the loop still runs


class Server:
    """Runs this process's task of a cluster, on threads of its own.

    Args:
        cluster: all tasks: a `ClusterSpec`, or what makes one. Port 0 takes one that is free, see `target`.
        job_name, task_index: which of them this is; not needed if there is only one.
        devices: of this task: how many of a kind, by default ``{"cpu": 1}``.
        config: how it behaves.
        start: begin at once; otherwise `start` does.
        token: the secret that all tasks and clients of the job share; by default the one in ``ANABRANCH_TOKEN``, or
            for tasks that nobody but this machine can reach the one in the user's file (mode 0600).
        tls: certificates by which tasks and clients authenticate each other (mTLS); by default those of the
            environment. Then nothing leaves this host but by gRPC, encrypted.
        bind: the address of this machine at which to listen, where others are to reach it ("0.0.0.0": all). Without
            it nobody but this machine can.

    Raises:
        ValueError: the cluster has no such task, its address is not of this machine alone and there is no `bind`, or
            there is no token.
        OSError: the port is in use.

    >>> server = Server({"worker": ["localhost:0"]}, token="an example's token, not a secret")
    >>> server.name, server.target.startswith("grpc://localhost:")
    ('/job:worker/task:0', True)
    >>> server.stop()
    """

    def __init__(
        self,
        cluster: ClusterSpec | dict[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        devices: dict[str, Any] | None = None,
        config: ServerConfig | None = None,
        start: bool = True,
        *,
        token: str | None = None,
        bind: str | None = None,
        tls: TLS | None = None,
    ) -> None:
        self.cluster = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
        self.name = _chosen(self.cluster, job_name, task_index)
        self._host, port = split_address(self.cluster.address(self.name))
        listens_at = _checked_bind(bind) or self._host
        if bind is None and not is_loopback(self._host):
            raise ValueError(
                f"{self.name} has the address {self.cluster.address(self.name)}, which others can reach. Give bind= "
                "the address of this machine at which to listen ('0.0.0.0' for all), and a token; without it a task "
                "listens on loopback alone."
            )
        self._token = job_token(token, is_loopback(listens_at))
        self._devices = make_devices(DeviceName.parse(self.name), **_checked_devices(devices))
        self.incarnation = secrets.randbits(63)
        if config is not None and not isinstance(config, ServerConfig):
            raise TypeError(
                f"Server: config must be a ServerConfig, got {config!r}. Make one of its fields: "
                "ab.distribute.ServerConfig(plane='tcp')."
            )
        self._config = config or ServerConfig()
        tls = tls or tls_from_environment()
        self._listener = _listening(listens_at, bind) if tls is None else None
        try:
            self._front = Front(listens_at, port, self._information, self._accept_stream, tls)
        except BaseException:
            if self._listener is not None:
                self._listener.close()
            raise
        self.task = Task(
            Identity(self.name, self.incarnation),
            self.cluster,
            self._devices,
            self._token,
            self._config,
            0 if self._listener is None else self._listener.getsockname()[1],
            joined_address(self._host, self._front.port),
            System(tls),
        )
        self._thread = threading.Thread(target=self._run, name=f"anabranch {self.name}", daemon=True)
        self._long_turns = LongTurns(self.task.loop, self.task.hear, f"anabranch {self.name} hears")
        self.task.turning.begins = self._long_turns.begin
        self._ended = Ending()
        self._stop = Stop()  # of loops in machine code, in the middle of which the task's loop may be
        self._is_stopped = False
        self._lock = threading.Lock()
        if start:
            self.start()

    @property
    def target(self) -> str:
        """The address that clients give to `Session`: "grpc://host:port"."""
        return f"grpc://{joined_address(self._host, self._front.port)}"

    def start(self) -> None:
        """Begin to serve; once.

        Raises:
            RuntimeError: it has been stopped.
        """
        if self._is_stopped:
            raise RuntimeError(f"{self.name} has been stopped. Make another Server.")
        if self._thread.ident is None:
            if self._listener is not None:
                self.task.listen(self._listener, Plane.TCP)
            if IS_AVAILABLE:
                self.task.listen(listen_here(self.incarnation, _BACKLOG), Plane.UNIX)
            self._front.start()
            self._long_turns.start()
            self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `stop` is called, by another thread or a signal's handler; return whether it was.

        Args:
            timeout: how many seconds to wait at most; None for any time.
        """
        # Not by joining the thread: an interrupt of that has Python 3.11 take the thread for ended.
        return self._thread.ident is None or self._ended.wait(timeout)

    def stop(self) -> None:
        """End the task: connections are closed, steps fail elsewhere, state is given up, the ports are free."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        self._front.stop()
        if self._thread.ident is not None:
            self.task.loop.stop()
            self._stop.ask()
            self._ended.wait()
            self._thread.join()
            self._long_turns.close()
        elif self._listener is not None:
            self._listener.close()
        self.task.close()

    def status(self, timeout: float = CONNECT_SECONDS) -> TaskStatus:
        """Describe this task: what it does and holds, and how it is connected, as `ab.distribute.status`.

        Args:
            timeout: how many seconds to wait for the task's loop, which may be in the middle of a long operation.

        Raises:
            DeadlineExceededError: it is, and the error names the operation.
            RuntimeError: it does not run.
        """
        asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._is_stopped or self._thread.ident is None or self._ended.is_set():
                raise RuntimeError(f"{self.name} does not run: it has been stopped, or not been started.")
            info = self.task.information()
            self.task.loop.call(lambda: asked.put(self.task.statistics()))
        until = time.monotonic() + timeout
        while not self._ended.is_set():
            left = until - time.monotonic()
            with contextlib.suppress(queue.Empty):
                return described(info, asked.get(timeout=min(max(left, 0.0), _LONGEST_WAIT)))
            if left <= 0:
                raise DeadlineExceededError(f"The timeout was over. {unanswered(self.task.information())}")
        raise RuntimeError(f"{self.name} does not run: its loop has ended.")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self.name} at {self.target}>"

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"), self._stop, self.task.turning.stop:
                self.task.loop.run()
        except BaseException:
            self.task.disconnect("the task's loop has failed, see what it has printed")
            raise
        finally:
            self._ended.set()

    def _accept_stream(self, sock: socket.socket) -> None:
        self.task.loop.call(lambda: self.task.accept(sock, Plane.GRPC))

    def _information(self) -> TaskInfo:
        """Return the description of this task; called by gRPC's threads."""
        # Without its host: others reach the sockets where they have reached gRPC.
        return replace(self.task.information(), host="")


def _chosen(cluster: ClusterSpec, job: str | None, index: int | None) -> str:
    if job is None and index is None and len(cluster.tasks) == 1:
        return cluster.tasks[0]
    if job is None or index is None:
        raise ValueError(f"Server: give job_name= and task_index=; the cluster has {', '.join(cluster.tasks)}.")
    return cluster.task_name(job, index)


def _checked_devices(devices: dict[str, Any] | None) -> dict[str, Any]:
    if devices is not None and not isinstance(devices, Mapping):
        raise TypeError(f"Server: devices={devices!r}: expected a dict such as {{'cpu': 2}}.")
    found = {"cpu": 1} if devices is None else dict(devices)
    others = [kind for kind in found if kind != "cpu"]
    if others:
        raise ValueError(
            f"Server: devices={devices!r}: tasks have CPUs only by now; {others[0]!r} devices run in one process "
            "(ab.config.set_devices)."
        )
    count = found.get("cpu", 1)
    if not isinstance(count, (int, Mapping)) or isinstance(count, bool):
        raise TypeError(f"Server: devices={devices!r}: expected how many CPUs the task has.")
    if isinstance(count, int) and count < 1:
        raise ValueError(f"Server: devices={devices!r}: expected at least 1 CPU.")
    return found


def _checked_bind(bind: str | None) -> str | None:
    """Return the address that is given, if it is one of a host that can be found.

    Raises:
        OSError: it is not.
    """
    try:
        if bind is not None:
            resolved(bind)
    except OSError as error:
        raise OSError(f"Can't listen at bind={bind!r}: {error}") from None
    return bind


def _listening(host: str, bind: str | None) -> socket.socket:
    address = resolved(host)
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    with contextlib.ExitStack() as unless_it_works:
        unless_it_works.callback(listener.close)
        try:
            listener.bind((address, 0))
        except OSError as error:
            where = host if bind is None else f"bind={bind!r}"
            advice = ". This machine has no such address; give one that it has, or '0.0.0.0' for all"
            remedy = advice if error.errno == errno.EADDRNOTAVAIL else ""
            raise OSError(f"Can't listen at {where}: {error.strerror}{remedy}.") from None
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        unless_it_works.pop_all()
    return listener
