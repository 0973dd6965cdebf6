"""`Supervisor`: starts the processes of a server, joins what they report, and replaces those that die or go silent."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..configuration import DRAIN_SECONDS
from .member import MOST_BYTES, SIGN_SECONDS, start_among, write_message

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("anabranch.serving")
_MOST_PAUSE = 10.0  # seconds before a process that can't start is started again; they double up to that
_MOST_MISSED = 10  # signs of a process, after which it counts as lost
_PATIENCE = 10.0  # seconds beyond those for requests under way, after which a process that should end is killed


class _Worker:
    """A process, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.process, self.writer = process, writer
        self.started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ready, self.stuck = False, list[str]()
        self.replies: dict[int, asyncio.Future[Mapping[str, object] | None]] = {}
        self.missed: int | None = None  # signs, since the last; None before the first, and when it ends
        self.is_given_up = False  # it was killed since it did not answer, or did not end

    @property
    def has_started(self) -> bool:
        return self.started.done() and not self.started.cancelled() and self.started.result() is not None

    def send(self, message: object) -> None:
        write_message(self.writer, message)


class Supervisor:
    """Runs a server as several processes that share its ports.

    Args:
        command: what starts one process; ``--worker REST,CONTROL,PORT`` is added to it.
        count: how many processes there are.
        host: the address to listen on.
        rest_port, grpc_port: ports; 0 for any.
        can_reload: whether SIGHUP is for the processes.

    Raises:
        OSError: a port is taken.
    """

    def __init__(
        self, command: Sequence[str], count: int, host: str, rest_port: int, grpc_port: int, can_reload: bool
    ) -> None:
        self._command, self._count, self._can_reload = list(command), count, can_reload
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._rest = socket.create_server((host, rest_port), family=family, backlog=2048)
        except OSError as error:
            raise OSError(error.errno, f"Can't listen on {host}:{rest_port} for HTTP: {error}") from error
        self._grpc = socket.socket(family, socket.SOCK_STREAM)  # keeps the port; the processes listen on it
        for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR):  # the second for connections that are being closed
            self._grpc.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            self._grpc.bind((host, grpc_port))
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"Can't listen on {host}:{grpc_port} for gRPC: {error}") from error
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()
        self._unloaded: set[str] = set()
        self._is_ending = self._all_started = False
        self._drain_seconds = DRAIN_SECONDS  # until a process has sent its own
        self._said: object = None

    def run(self) -> int:
        """Serve until SIGTERM or an interrupt; return the exit status."""
        try:
            return asyncio.run(self._run())
        finally:
            self.close()

    def close(self) -> None:
        """Let the ports go."""
        self._rest.close()
        self._grpc.close()

    async def _run(self) -> int:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[object]] = set()

        def end() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):  # a second one ends at once
                loop.remove_signal_handler(number)
                loop.add_signal_handler(number, self._kill)
            ending.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        if self._can_reload:
            loop.add_signal_handler(signal.SIGHUP, lambda: self._signal(signal.SIGHUP))
        ends = asyncio.create_task(ending.wait())
        watching = asyncio.create_task(self._watch())
        try:
            return await self._serve(ending, ends)
        finally:
            watching.cancel()

    async def _serve(self, ending: asyncio.Event, ends: asyncio.Task[Literal[True]]) -> int:
        """Start the processes, wait for the end, and end them."""
        first = await self._start()
        await asyncio.wait([first.started, ends], return_when=asyncio.FIRST_COMPLETED)
        if not ending.is_set() and first.started.result() is None:  # which says why on standard error
            await first.process.wait()
            return 2
        others = [await self._start() for _ in range(self._count - 1)] if not ending.is_set() else []
        await asyncio.wait([asyncio.gather(*[each.started for each in others]), ends], return_when="FIRST_COMPLETED")
        if not ending.is_set() and any(each.started.result() is None for each in others):
            self._signal(signal.SIGTERM)
            await asyncio.gather(*self._tasks)
            return 2
        self._all_started = True
        self._share()
        if not ending.is_set():
            print(*first.started.result()["lines"], sep="\n", flush=True)
        await ending.wait()
        self._is_ending = True
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._drain_seconds + _PATIENCE, self._kill_late)
        serving = [each for each in self._workers if each.has_started]
        await asyncio.gather(*[each.process.wait() for each in serving])
        while self._tasks:
            await asyncio.wait(self._tasks)
        return 1 if any(each.process.returncode and not each.is_given_up for each in serving) else 0

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.process.returncode is None:
                worker.process.send_signal(number)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _kill_late(self) -> None:
        for worker in self._workers:
            self._give_up(worker, "does not end")

    @staticmethod
    def _give_up(worker: _Worker, why: str) -> None:
        if worker.process.returncode is None:
            _log.error("process %d %s; it is killed", worker.process.pid, why)
            worker.is_given_up = True
            worker.process.kill()

    async def _watch(self) -> None:
        """End processes that have given no sign for long, such as stopped ones; `_follow` replaces them.

        Signs that were missed are counted, rather than seconds: after a time in which this process did not run, either,
        the others are heard before they are judged.
        """
        while True:
            await asyncio.sleep(SIGN_SECONDS)
            for worker in self._workers:
                if worker.missed is None:
                    continue
                worker.missed += 1
                if worker.missed == _MOST_MISSED:
                    self._give_up(worker, f"has not answered for {_MOST_MISSED * SIGN_SECONDS:g} s")

    async def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        sockets = self._rest.fileno(), theirs.fileno()
        place = f"{sockets[0]},{sockets[1]},{self._grpc.getsockname()[1]}"
        threads = str(max(1, len(os.sched_getaffinity(0)) // self._count))
        environment = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **os.environ}
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command, "--worker", place, pass_fds=sockets, env=environment, start_new_session=True
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_BYTES)
        worker = _Worker(process, writer)
        self._workers.append(worker)
        start_among(self._tasks, self._follow(worker, reader))
        return worker

    async def _follow(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        """Listen to a process until it ends; then start another in its place."""
        try:
            while line := await reader.readline():
                self._hear(worker, json.loads(line))
        except ConnectionError:
            pass
        worker.missed = None
        status = await worker.process.wait()
        worker.writer.close()
        self._workers.remove(worker)
        for future in (worker.started, *list(worker.replies.values())):
            if not future.done():
                future.set_result(None)
        self._share()
        if self._is_ending or not self._all_started:
            return
        _log.error("process %d has ended with status %d; another takes its place", worker.process.pid, status)
        pause = 0.0
        while not self._is_ending:
            await asyncio.sleep(pause)
            if self._is_ending:
                return
            replacement = await self._start()
            if self._is_ending:  # while it was started
                replacement.process.send_signal(signal.SIGTERM)
            if await replacement.started is not None:
                return
            pause = min(_MOST_PAUSE, 2 * pause or 0.5)

    def _hear(self, worker: _Worker, message: Any) -> None:
        worker.missed = 0
        if "started" in message:
            start_among(self._tasks, self._admit(worker, message["started"]))
        elif "state" in message:
            worker.ready, worker.stuck = message["state"]["ready"], message["state"]["stuck"]
            self._share()
        elif "ask" in message:
            start_among(self._tasks, self._ask_all(worker, message))
        elif message["reply"] in worker.replies:
            worker.replies[message["reply"]].set_result(message["answer"])

    def _share(self) -> None:
        """Notify all processes whether all are ready."""
        started = [each for each in self._workers if each.has_started]
        ready = self._all_started and bool(started) and all(each.ready for each in started)
        said = {"ready": ready, "stuck": sorted({name for each in started for name in each.stuck})}
        if said != self._said:
            self._said = said
            for each in started:
                each.send({"all": said})

    async def _admit(self, worker: _Worker, facts: Any) -> None:
        """Count a process as started, once it has let go what clients have let go in the others."""
        for name in sorted(self._unloaded):
            await self._ask(worker, "unload", name)
        if not worker.started.done():
            worker.started.set_result(facts)
            self._drain_seconds = facts["drain_seconds"]
        self._said = None
        self._share()

    async def _ask(self, worker: _Worker, kind: str, value: object) -> Mapping[str, object] | None:
        """Return a process's answer; None if it dies, as one that is silent for long does."""
        if worker not in self._workers:
            return None
        number = next(self._numbers)
        worker.replies[number] = asyncio.get_running_loop().create_future()
        worker.send({"do": number, "kind": kind, "value": value})
        try:
            return await worker.replies[number]
        finally:
            worker.replies.pop(number, None)

    async def _ask_all(self, asker: _Worker, message: Any) -> None:
        asked = [each for each in self._workers if each.has_started or each is asker]
        found = await asyncio.gather(*[self._ask(each, message["kind"], message["value"]) for each in asked])
        answers = [answer for answer in found if answer is not None]
        if message["kind"] == "unload" and not any("error" in answer for answer in answers):
            self._unloaded.add(message["value"])
        if message["kind"] == "load":
            self._unloaded.discard(message["value"])
        asker.send({"answer": message["ask"], "results": answers})


def command_of(arguments: Sequence[str], package: str) -> list[str]:
    """Return what starts a process like this one, with the same arguments of the command ``serve``."""
    flags = [f"-W{each}" for each in sys.warnoptions]
    return [sys.executable, *flags, "-m", package, "serve", *arguments]
