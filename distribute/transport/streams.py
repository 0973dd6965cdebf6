"""The gRPC plane: what a socket would carry, as a stream of raw bytes, where TLS or a proxy is between.

Both ends are sockets within a process: the loop of a task, and the thread of a client, see no difference. Threads
of gRPC move the bytes, in pieces of at most 1 MiB, and stop when the other end does not take them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ..encryption import TLS, open_channel
from .messages import TASK_SERVICE

METHOD = "Stream"
_PIECE = 1 << 20


def _ends() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a pipe, each of which can hold a piece."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
    return ends


def _pieces(end: socket.socket) -> Iterator[bytes]:
    """Yield what comes out of an end, until it is closed."""
    with contextlib.suppress(OSError):
        while piece := end.recv(_PIECE):
            yield piece


def _pour(pieces: Any, end: socket.socket) -> None:
    """Put what comes in a stream into an end; when either is over, so is the other."""
    with contextlib.suppress(grpc.RpcError, OSError):
        for piece in pieces:
            end.sendall(piece)
    _shut(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def stream_handler(accept: Callable[[socket.socket], None]) -> Any:
    """Yield the service of a task that takes streams.

    Args:
        accept: takes the socket by which a stream's bytes come and go; it closes it.
    """

    def serve(requests: Any, context: Any) -> Iterator[bytes]:
        given, kept = _ends()
        accept(given)
        context.add_callback(lambda: _shut(kept))
        pouring = threading.Thread(target=_pour, args=(requests, kept), name="anabranch stream", daemon=True)
        pouring.start()
        try:
            yield from _pieces(kept)
        finally:
            _shut(kept)
            context.cancel()
            pouring.join()
            kept.close()

    return grpc.method_handlers_generic_handler(
        TASK_SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(serve, None, None)}
    )


def open_stream(address: str, tls: TLS | None) -> socket.socket:
    """Begin a stream to the task at an address; return the end by which its bytes come and go.

    Args:
        address: where the task answers gRPC, "host:port".
        tls: with which this process proves who it is.
    """
    given, kept = _ends()
    channel = open_channel(address, tls)
    answers = channel.stream_stream(f"/{TASK_SERVICE}/{METHOD}")(_pieces(kept))

    def pour() -> None:
        _pour(answers, kept)
        channel.close()
        kept.close()

    threading.Thread(target=pour, name="anabranch stream", daemon=True).start()
    return given


__all__ = ["open_stream", "stream_handler"]
