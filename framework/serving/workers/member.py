"""`Member`: the place of a process among those of a server. Messages are lines of JSON on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ....distribute.inference import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES = 1 << 26  # of a message
_LOOK_SECONDS = 0.2  # how often a process looks whether it is still ready
SIGN_SECONDS = 1.0  # after how long it sends that again, as a sign that it runs
Handler = Callable[[Any], Awaitable[object]]


def start_among(tasks: set[asyncio.Task[object]], work: Coroutine[object, None, object]) -> None:
    """Start work in the running event loop; its task is among `tasks`, which keep it, until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def write_message(writer: asyncio.StreamWriter, message: object) -> None:
    """Write a message as a line of JSON, unless the other side has gone."""
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


class Member:
    """One process of several. After `join` it belongs to the server's event loop.

    Args:
        rest: the socket on which all processes listen for HTTP.
        control: the socket to the supervisor.
        grpc_port: the port that all processes share for gRPC.

    Attributes:
        all_ready: whether all processes are.
        stuck: the models that do not answer in one of them.
    """

    def __init__(self, rest: socket.socket, control: socket.socket, grpc_port: int) -> None:
        self.rest, self.grpc_port = rest, grpc_port
        self._control = control
        self.all_ready = False
        self.stuck: frozenset[str] = frozenset()
        self._asked: dict[int, asyncio.Future[list[Any]]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[object]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._has_joined = asyncio.Event()

    async def join(
        self, handlers: dict[str, Handler], look: Callable[[], tuple[bool, list[str]]], alone: Callable[[], object]
    ) -> None:
        """Take part.

        Args:
            handlers: what answers questions that go to all processes, by their kinds.
            look: whether this process is ready, and the models that do not answer.
            alone: called when the supervisor has gone.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._control, limit=MOST_BYTES)
        self._has_joined.set()
        start_among(self._tasks, self._listen(reader, handlers, alone))
        start_among(self._tasks, self._watch(look))

    def announce(self, **facts: object) -> None:
        """Notify the supervisor that this process answers requests."""
        self._send({"started": facts})

    async def ask(self, kind: str, value: object = None) -> list[Any]:
        """Ask all processes, this one included, once this one has joined: it listens for clients before.

        Returns:
            Their answers.

        Raises:
            RequestError: one has raised it.
        """
        await self._has_joined.wait()
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({"ask": number, "kind": kind, "value": value})
        try:
            answers = await self._asked[number]
        finally:
            del self._asked[number]
        for answer in answers:
            if "error" in answer:
                raise RequestError(answer["status"], answer["error"])
        return [answer["value"] for answer in answers]

    def leave(self) -> None:
        """End all that was started."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: object) -> None:
        if self._writer is not None:
            write_message(self._writer, message)

    async def _listen(
        self, reader: asyncio.StreamReader, handlers: dict[str, Handler], alone: Callable[[], object]
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                message = json.loads(line)
                if "all" in message:
                    self.all_ready = message["all"]["ready"]
                    self.stuck = frozenset(message["all"]["stuck"])
                elif "do" in message:
                    start_among(self._tasks, self._do(message, handlers))
                elif message["answer"] in self._asked:
                    self._asked[message["answer"]].set_result(message["results"])
        alone()

    async def _do(self, message: Mapping[str, Any], handlers: dict[str, Handler]) -> None:
        try:
            answer: dict[str, object] = {"value": await handlers[message["kind"]](message["value"])}
        except RequestError as error:
            answer = {"error": str(error), "status": error.status}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "status": 500}
        self._send({"reply": message["do"], "answer": answer})

    async def _watch(self, look: Callable[[], tuple[bool, list[str]]]) -> None:
        said, since = None, 0.0
        while True:
            state, now = look(), asyncio.get_running_loop().time()
            if state != said or now - since >= SIGN_SECONDS:
                said, since = state, now
                self._send({"state": {"ready": state[0], "stuck": state[1]}})
            await asyncio.sleep(_LOOK_SECONDS)
