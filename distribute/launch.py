"""The command ``python -m anabranch launch``: a script in several processes of this machine, and ps tasks for it.

Each worker runs the same script; worker 0 is the chief, whose output is shown as it is. Lines of the others begin with
their task. The exit status is the chief's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO, Any

_END_SECONDS = 10.0  # how long a process has to end when it is asked to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("-n", "--workers", type=int, default=1, metavar="N", help="how many workers run the script")
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="how many ps tasks keep the parameters")
    parser.add_argument("script", help="the Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def run(options: argparse.Namespace) -> int:
    """Run the script; gives the chief's exit status."""
    if options.workers < 1 or options.ps < 1:
        print("anabranch launch: -n and --ps must be at least 1.", file=sys.stderr)
        return 2
    if not os.path.exists(options.script):
        print(f"anabranch launch: there is no script {options.script!r}.", file=sys.stderr)
        return 2
    with Launch(options.workers, options.ps, [options.script, *options.arguments]) as launch:
        return launch.wait()


class Launch:
    """The processes of one run: ps tasks and workers.

    Args:
        workers, ps: how many there are.
        script: the script and its arguments.

    Attributes:
        workers, ps: their processes.
    """

    def __init__(self, workers: int, ps: int, script: Sequence[str]) -> None:
        ports = iter(_free_ports(workers + ps))
        self.cluster = {
            "ps": [f"localhost:{next(ports)}" for _ in range(ps)],
            "worker": [f"localhost:{next(ports)}" for _ in range(workers)],
        }
        self._script = [sys.executable, *script]
        self._environment = {**os.environ, "ANABRANCH_TOKEN": secrets.token_hex(16), "PYTHONUNBUFFERED": "1"}
        threads = str(max((os.cpu_count() or 1) // workers, 1))
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            self._environment.setdefault(name, threads)
        self.ps: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Launch:
        self._handler = signal.signal(signal.SIGTERM, _interrupt)
        try:
            for index in range(len(self.cluster["ps"])):
                self.ps.append(self._started_ps(index))
            for index in range(len(self.cluster["worker"])):
                self.workers.append(self._started_worker(index))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _started_ps(self, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"{__package__}".partition(".")[0], "worker"]
        command += ["--cluster", json.dumps(self.cluster), "--job-name", "ps", "--task-index", str(index)]
        environment = {name: value for name, value in self._environment.items() if name != "TF_CONFIG"}
        return self._started(command, environment, f"ps {index}", is_quiet=True)

    def _started_worker(self, index: int) -> subprocess.Popen[str]:
        config = {"cluster": self.cluster, "task": {"type": "worker", "index": index}}
        environment = {**self._environment, "TF_CONFIG": json.dumps(config)}
        if index == 0:  # its progress bar is to know whether it is in a terminal
            return subprocess.Popen(self._script, env=environment, text=True)
        return self._started(self._script, environment, f"worker {index}", is_quiet=False)

    def _started(self, command: Sequence[str], environment: Any, name: str, is_quiet: bool) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        )
        assert process.stdout is not None
        reader = threading.Thread(target=_show, args=(process.stdout, name, is_quiet), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def wait(self) -> int:
        """Wait for the chief's script, then for the other workers'; gives the exit status.

        It is that of the chief. Where it is not 0, the first worker that failed is named.
        """
        chief = self.workers[0]
        first = None
        try:
            while chief.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    chief.wait(0.2)
                first = first or next(self._failed(), None)
            for worker in self.workers[1:] if chief.returncode == 0 else ():
                worker.wait()
        except KeyboardInterrupt:
            print("anabranch launch: interrupted.", file=sys.stderr)
            return 130
        first = first or next(self._failed(), None)
        if first is not None:
            print(f"anabranch launch: {first[0]} ended with exit status {first[1]}.", file=sys.stderr)
        return _status(chief.returncode if chief.returncode else 0)

    def _failed(self) -> Iterator[tuple[str, int]]:
        named = [(f"ps {n}", each) for n, each in enumerate(self.ps)]
        named += [(f"worker {n}", each) for n, each in enumerate(self.workers)]
        for name, process in named:
            if process.poll():
                yield name, process.returncode

    def __exit__(self, *exception: object) -> None:
        """End all processes that are still there, and wait for them."""
        processes = [*self.workers, *self.ps]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join()
        signal.signal(signal.SIGTERM, self._handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _status(code: int) -> int:
    """An exit status as shells give it: of a process that a signal has ended, 128 and the signal's number."""
    return code if code >= 0 else 128 - code


def _show(lines: IO[str], name: str, is_quiet: bool) -> None:
    """Show the lines of a process; of a ps task all but the one that says that it serves."""
    with lines:
        for line in lines:
            if not (is_quiet and " serves at grpc://" in line):
                print(f"[{name}] {line.rstrip()}", flush=True)


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in found]
