"""The gRPC side of a task: who it is, and whether it is well. Answered by gRPC's threads; it changes nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from ...engine.common.quick_dataclass import dataclass

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it prints a line for each task that ends; read when it loads
import grpc

from ..cluster import joined_address, resolved, split_address
from ..encryption import TLS, fault_of_handshake, open_channel, tls_from_environment
from ..grpc_options import CALLS_WAIT
from ..ports import can_listen
from ..transport.messages import (
    HEALTH_SERVICE,
    NOT_SERVING,
    SERVING,
    TASK_SERVICE,
    HealthCheckRequest,
    HealthCheckResponse,
    HelloReply,
    HelloRequest,
)
from ..transport.streams import stream_handler
from ..transport.wire import PROTOCOL

_CALLS = 256  # at once; each stream is one
_PATIENCE = 0.2  # seconds between tries to reach a task
_CALL_SECONDS = 5.0
_HANDSHAKE_SECONDS = 1.0


@dataclass(frozen=True)
class TaskInfo:
    """Describe a task, in its reply to a greeting.

    Attributes:
        name: "/job:ps/task:0".
        incarnation: drawn when it started.
        host, port: of its sockets.
        devices: the names of its devices, in full.
        state: what its loop does: "idle", "waiting" for other tasks, "turning", "in an operation" or "compiling".
        turns: how often that has turned since it started.
        doing: the operation, and the step that it belongs to.
        since: for how many seconds it has been in that operation.
        front: where it answers gRPC, "host:port"; empty if that is not known.
        heartbeat_timeout: seconds without an answer after which others are to take it for dead.
    """

    name: str
    incarnation: int
    host: str
    port: int
    devices: tuple[str, ...]
    state: str = "idle"
    turns: int = 0
    doing: str = ""
    since: float = 0.0
    front: str = ""
    heartbeat_timeout: float = 8.0


class TaskUnavailableError(ConnectionError):
    """A task does not answer; the message names it, its address, and for how long it was tried."""


class _DaemonThreads(Executor):
    """Run each call in a thread of its own, for as long as the process exists.

    A `ThreadPoolExecutor` takes no calls once the interpreter begins to end, before the handlers of `atexit` run. A
    call that arrives then would end gRPC's own thread by an exception, and `grpc.Server.stop` would wait for ever.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # it belongs to who waits for the future
                future.set_exception(error)
            finally:
                self._running.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._running.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter makes no more threads
            self._running.discard(thread)
            future.cancel()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for thread in list(self._running) if wait else ():
            thread.join()


class Front:
    """Listens for gRPC at the address of a task.

    Args:
        host, port: where; port 0 takes one that is free.
        information: what the task says of itself at this moment, called by any thread.
        accept: takes the socket by which a stream's bytes come and go, in any thread.
        tls: with which who connects has to prove who it is; None if what travels is not encrypted.

    Raises:
        OSError: the port is in use.
    """

    def __init__(
        self,
        host: str,
        port: int,
        information: Callable[[], TaskInfo],
        accept: Callable[[socket.socket], None],
        tls: TLS | None = None,
    ) -> None:
        self._information = information
        self._is_serving = True
        self._threads: Any = _DaemonThreads("anabranch-front")
        options = [("grpc.so_reuseport", 0), CALLS_WAIT]
        # pyrefly: ignore[bad-argument-type] - gRPC calls `submit` alone
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=_CALLS)
        self._server.add_generic_rpc_handlers(
            (
                _service(TASK_SERVICE, "Hello", self._hello, HelloRequest, HelloReply),
                stream_handler(accept),
                _service(HEALTH_SERVICE, "Check", self._check, HealthCheckRequest, HealthCheckResponse),
            )
        )
        try:
            address = joined_address(host, port)
            if not can_listen(host, port):
                self.port = 0
            elif tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, tls.of_server())
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._server.stop(None)
            raise OSError(
                f"Can't listen at {joined_address(host, port)}: another process uses the port, or this machine has no "
                "such address. End that process, or give the task another address in the cluster."
            )

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self) -> None:
        """End; the port is free when this returns."""
        self._is_serving = False
        self._server.stop(None).wait()
        self._threads.shutdown()

    def _hello(self, request: Any, context: Any) -> Any:
        info = self._information()
        return HelloReply(
            protocol=PROTOCOL,
            task=info.name,
            incarnation=info.incarnation,
            host=info.host,
            port=info.port,
            devices=info.devices,
            state=info.state,
            turns=info.turns,
            doing=info.doing,
            since=info.since,
            heartbeat_timeout=info.heartbeat_timeout,
        )

    def _check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", TASK_SERVICE):
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service!r} here.")
        return HealthCheckResponse(status=SERVING if self._is_serving else NOT_SERVING)


def _service(service: str, method: str, answer: Callable[[Any, Any], Any], request: Any, reply: Any) -> Any:
    handler = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
    )
    return grpc.method_handlers_generic_handler(service, {method: handler})


# --- calls ----------------------------------------------------------------------------------------------------------


def ask_task(
    address: str,
    expected: str | None,
    timeout: float,
    tls: TLS | None = None,
    ending: threading.Event | None = None,
) -> TaskInfo:
    """Ask the task at an address who it is, and wait for it to start.

    Args:
        address: "host:port".
        expected: the name of the task that is to be there; None for any.
        timeout: how many seconds to wait.
        tls: with which this process proves who it is.
        ending: is set when the answer is not wanted any more.

    Raises:
        TaskUnavailableError: nothing answers there in time; at once, no task answers, or another one, or certificates
            do not match; or `ending` is set.
    """
    until = time.monotonic() + timeout
    host = split_address(address)[0]
    with open_channel(address, tls) as channel:
        reply = _answer(_greeting(channel), address, expected, until, timeout, tls, ending or threading.Event())
    if reply.protocol != PROTOCOL:
        raise TaskUnavailableError(
            f"The task at {address} speaks version {reply.protocol} of the protocol, and this process version "
            f"{PROTOCOL}. Run the same version of anabranch everywhere."
        )
    if expected is not None and reply.task != expected:
        raise TaskUnavailableError(
            f"{expected} was expected at {address}, and {reply.task} answers. Start all tasks with the same cluster."
        )
    return _read(reply, address, resolved(host))


def start_of(address: str, task: str, timeout: float = 1.0) -> int | None:
    """Return the incarnation of the task that runs at an address now; None if it does not answer in so many seconds."""
    try:
        return ask_task(address, task, timeout, tls_from_environment()).incarnation
    except (TaskUnavailableError, OSError, ValueError):
        return None


def _greeting(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        f"/{TASK_SERVICE}/Hello",
        request_serializer=HelloRequest.SerializeToString,
        response_deserializer=HelloReply.FromString,
    )


def _read(reply: Any, address: str, host: str) -> TaskInfo:
    return TaskInfo(
        reply.task,
        reply.incarnation,
        reply.host or host,
        reply.port,
        tuple(reply.devices),
        reply.state,
        reply.turns,
        reply.doing,
        reply.since,
        address,
        reply.heartbeat_timeout or TaskInfo.heartbeat_timeout,
    )


def _answer(
    call: Any,
    address: str,
    expected: str | None,
    until: float,
    timeout: float,
    tls: TLS | None,
    ending: threading.Event,
) -> Any:
    name = expected or "a task"
    while True:
        left = until - time.monotonic()
        try:
            return call(HelloRequest(protocol=PROTOCOL), timeout=max(min(left, _CALL_SECONDS), _PATIENCE))
        except grpc.RpcError as error:
            code = error.code()
            if code == grpc.StatusCode.UNIMPLEMENTED:
                raise TaskUnavailableError(
                    f"What answers at {address} is no task of anabranch; {name} was expected there."
                ) from None
            seconds = max(min(until - time.monotonic(), _HANDSHAKE_SECONDS), _PATIENCE)
            fault = fault_of_handshake(address, tls, seconds) if _is_closed(error) else ""
            if fault:
                raise TaskUnavailableError(
                    f"{name} can't be used at {address}: {fault}. Give all tasks and clients certificates of one "
                    "authority for their addresses, by tls= or ANABRANCH_TLS_CERTIFICATE, _KEY and _AUTHORITY, or none."
                ) from None
            if until - time.monotonic() <= _PATIENCE:
                raise TaskUnavailableError(
                    f"{name} did not answer at {address} within {timeout:g} s ({code.name}). Start it, or mend its "
                    "address in the cluster."
                ) from None
        if ending.wait(_PATIENCE):
            raise TaskUnavailableError(f"{name} had not answered at {address} when this task ended.")


def _is_closed(error: Any) -> bool:
    """Test whether a connection was made and ended; a name that is looked up in vain would take time once more."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and "resolving" not in (error.details() or "")


class Greeter:
    """Asks tasks who they are and what they do, again and again, by channels that are kept."""

    def __init__(self, tls: TLS | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.Channel] = {}

    def ask(self, address: str, timeout: float, answered: Callable[[TaskInfo], None]) -> None:
        """Ask once; `answered` is called by another thread if there is an answer in time."""
        channel = self._channel(address)

        def done(future: Any) -> None:
            with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                answered(_read(future.result(), address, ""))

        _greeting(channel).future(HelloRequest(protocol=PROTOCOL), timeout=timeout).add_done_callback(done)

    def ask_now(self, address: str, timeout: float) -> TaskInfo | None:
        """Ask once, and wait for the answer; None if there is none."""
        try:
            reply = _greeting(self._channel(address))(HelloRequest(protocol=PROTOCOL), timeout=timeout)
        except grpc.RpcError:
            return None
        return _read(reply, address, "")

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._tls)
        return channel

    def forget(self, address: str) -> None:
        """Close the channel to a task."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close all channels."""
        for address in list(self._channels):
            self.forget(address)


def is_healthy(address: str, timeout: float = _CALL_SECONDS, tls: TLS | None = None) -> bool:
    """Ask the task at an address, by gRPC's health service, whether it is serving."""
    with open_channel(address, tls) as channel:
        call = channel.unary_unary(
            f"/{HEALTH_SERVICE}/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            return call(HealthCheckRequest(), timeout=timeout).status == SERVING
        except grpc.RpcError:
            return False


__all__ = ["Front", "Greeter", "TaskInfo", "TaskUnavailableError", "ask_task", "is_healthy"]
