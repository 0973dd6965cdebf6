"""The gRPC plane: what a socket would carry, as a stream of raw bytes, where TLS or a proxy is between.

Both ends are used as sockets: the loop of a task, and the thread of a client, see no difference. Threads of gRPC move
the bytes, in pieces of nearly 4 MiB at most, and stop when the other end does not take them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ..encryption import TLS, open_channel
from .messages import TASK_SERVICE
from .stream_ends import StreamEnd

METHOD = "Stream"


def _pour(pieces: Any, end: StreamEnd) -> None:
    """Put what comes in a stream into an end; when either is over, so is the other."""
    with contextlib.suppress(grpc.RpcError):
        for piece in pieces:
            if not end.put(piece):
                break
    end.end()


def stream_handler(accept: Callable[[Any], None]) -> Any:
    """Yield the service of a task that takes streams.

    Args:
        accept: takes the end by which a stream's bytes come and go; it closes it.
    """

    def serve(requests: Any, context: Any) -> Iterator[bytes]:
        end = StreamEnd()
        accept(end)
        context.add_callback(end.end)
        pouring = threading.Thread(target=_pour, args=(requests, end), name="anabranch stream", daemon=True)
        pouring.start()
        try:
            yield from end.pieces()
        finally:
            end.end()
            context.cancel()
            pouring.join()

    return grpc.method_handlers_generic_handler(
        TASK_SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(serve, None, None)}
    )


def open_stream(address: str, tls: TLS | None) -> Any:
    """Begin a stream to the task at an address; return the end by which its bytes come and go, as by a socket.

    Args:
        address: where the task answers gRPC, "host:port".
        tls: with which this process proves who it is.
    """
    end = StreamEnd()
    channel = open_channel(address, tls)
    answers = channel.stream_stream(f"/{TASK_SERVICE}/{METHOD}")(end.pieces())

    def pour() -> None:
        _pour(answers, end)
        channel.close()

    threading.Thread(target=pour, name="anabranch stream", daemon=True).start()
    return end


__all__ = ["open_stream", "stream_handler"]
