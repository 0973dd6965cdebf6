"""The parts of its process and machine that a task uses: a loop with a clock, sockets, threads, questions by gRPC.

The code of the protocol uses these alone, so that the simulator of the tests can put others in their place.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..encryption import TLS
from ..transport.dialing import dial
from ..transport.loop import Loop
from ..transport.planes import Plane
from ..transport.processes import PeerProcess, process_at
from ..transport.streams import open_stream
from .front import Greeter, TaskInfo, TaskUnavailableError, ask_task
from .peers import Address


class System:
    """This process and machine.

    Args:
        tls: with which it proves who it is; None if what travels is not encrypted.

    Attributes:
        loop: in whose thread all of a task happens.
        greeter: asks tasks how they are.
        is_encrypted: whether nothing may travel between hosts as it is.
    """

    def __init__(self, tls: TLS | None = None) -> None:
        self.loop = Loop()
        self.greeter = Greeter(tls)
        self.is_encrypted = tls is not None
        self._tls = tls
        self._ending = threading.Event()
        self._compiler = ThreadPoolExecutor(1, "anabranch-compile")
        self._askers = ThreadPoolExecutor(8, "anabranch-ask")

    def compile(self, work: Callable[[], None]) -> None:
        """Have something done beside the loop, in the order in which it is asked for.

        Raises:
            RuntimeError: the task is ending.
        """
        self._compiler.submit(work)

    def ask(self, address: str, name: str, timeout: float, answered: Callable[[TaskInfo | str], None]) -> None:
        """Ask who a task is, and wait for it to start; `answered` takes that or why not, in another thread.

        A process that ends takes no work for threads any more: then `answered` is called at once.

        Args:
            address: "host:port", where it answers gRPC.
            name: of the task that is to be there.
            timeout: how many seconds to wait.
        """

        def ask() -> None:
            try:
                found: TaskInfo | str = ask_task(address, name, timeout, self._tls, self._ending)
            except (TaskUnavailableError, OSError, ValueError) as error:
                found = str(error)
            answered(found)

        try:
            self._askers.submit(ask)
        except RuntimeError:
            answered(f"{name} at {address} was not asked, since this process ends")

    def dial(self, planes: tuple[Plane, ...], address: Address) -> tuple[Any, Plane]:
        """Return a socket that leads to a task, or is about to, by the first plane that works.

        Raises:
            OSError: none does.
        """
        begin: Callable[[], socket.socket] = partial(open_stream, address.front, self._tls)
        return dial(planes, address.host, address.port, address.incarnation, begin)

    def process_at(self, sock: Any) -> PeerProcess | None:
        """Return the process that a socket leads to, where that can be watched."""
        return process_at(sock)

    def close(self) -> None:
        """End; what is being compiled is waited for."""
        self._ending.set()  # else the process would last until the time of the last question is over
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._compiler.shutdown(cancel_futures=True)
        self.greeter.close()


__all__ = ["System"]
