"""A store of files that is a process, for tests: it is stopped, slow, killed and started again as other processes are.

``store://PORT/folder`` is a folder of this machine. The process is asked before each access and after it, as a server
of files is. Tasks find the store by ``--import shared.store_process``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

PATIENCE = 60.0  # seconds


def serve(port: int) -> None:
    """Answer each byte with a byte, for several connections at once; the first line of output has the port."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        sockets = [listener]
        while True:
            for ready in select.select(sockets, [], [])[0]:
                if ready is listener:
                    sockets.append(listener.accept()[0])
                elif byte := ready.recv(1):
                    ready.sendall(byte)
                else:
                    sockets.remove(ready)
                    ready.close()


class StoreProcess:
    """The process.

    Attributes:
        port: where it answers; the same after `restart`.
    """

    def __init__(self) -> None:
        self.port = 0
        self.restart()

    def restart(self) -> None:
        """Start it, at the port that it had."""
        command = [sys.executable, "-m", "shared.store_process", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Stop it: whoever asks waits."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a warning."""
        self._process.kill()
        self._process.wait(PATIENCE)
        if self._process.stdout is not None:
            self._process.stdout.close()


class ProcessFileSystem(LocalFileSystem):
    """The files of a folder, each access to which is a question to the process."""

    protocol = "store"

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(**options)
        self._port = port

    @classmethod
    def _strip_protocol(cls, path: str) -> str:  # type: ignore[override]
        text = str(path)
        return "/" + text.partition("://")[2].partition("/")[2] if "://" in text else text

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"port": int(path.partition("://")[2].partition("/")[0])}

    @contextlib.contextmanager
    def _asked(self) -> Generator[None]:
        """Ask the process before the block and after it."""
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            _ask(connection)
            yield
            _ask(connection)

    def put_file(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().put_file(*arguments, **options)

    def info(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().info(*arguments, **options)

    def ls(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().ls(*arguments, **options)

    def makedirs(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().makedirs(*arguments, **options)

    def rm_file(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().rm_file(*arguments, **options)

    def open(self, *arguments: Any, **options: Any) -> Any:
        with self._asked():
            return super().open(*arguments, **options)


def _ask(connection: socket.socket) -> None:
    connection.sendall(b".")
    if not connection.recv(1):
        raise ConnectionResetError("the store has closed the connection")


fsspec.register_implementation("store", ProcessFileSystem, clobber=True)

if __name__ == "__main__":
    serve(int(sys.argv[1]))
