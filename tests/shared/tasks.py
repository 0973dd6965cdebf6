"""Tasks as real processes, for tests: started at ports that are free, ended with the test, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from typing import Any

PATIENCE = 60.0  # seconds
_LAST_LINES = 20
TOKEN = "a token for tests, which is no secret"
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


class TaskProcess:
    """One task in a process of its own.

    Attributes:
        name: "/job:ps/task:0".
        address: where it listens.
        errors: what it has printed to its error output, once it has ended.
    """

    def __init__(
        self,
        cluster: dict[str, list[str]],
        job: str,
        index: int = 0,
        *options: str,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        command = [sys.executable, "-W", "error", "-m", "anabranch", "worker", "--cluster", json.dumps(cluster)]
        command += ["--job-name", job, "--task-index", str(index), *options]
        variables = {**os.environ, "ANABRANCH_TOKEN": TOKEN, **(environment or {})}
        self.errors = ""
        self.name = f"/job:{job}/task:{index}"
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        line = self._process.stdout.readline() if ready else ""
        name, separator, target = line.strip().partition(" serves at grpc://")
        if not separator:
            raise AssertionError(self._why_not_started(line, patience, is_silent=not ready))
        self.name, self.address = name, target

    def _why_not_started(self, line: str, patience: float, is_silent: bool) -> str:
        """End it, and return what became of it."""
        if is_silent:
            found = f"it had printed nothing after {patience:g} s, and was ended"
        elif line:
            found = f"it printed {line!r}, and was ended"
        else:
            found = "it ended by itself"
            self._process.wait(PATIENCE)
        status = self.end()
        last = "\n".join(self.errors.splitlines()[-_LAST_LINES:]) or "nothing"
        return f"{self.name} did not start: {found} (exit status {status}). Last lines of its error output:\n{last}"

    @property
    def target(self) -> str:
        return f"grpc://{self.address}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it without a warning."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        """Stop it: it does nothing, and its connections stay."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # its threads stop a little later than the signal is sent

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """End it as a supervisor does; gives its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self.go_on()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
            raise AssertionError(f"{self.name} did not end when it was terminated") from None
        finally:
            if self._process.stdout is not None and not self._process.stdout.closed:
                self._process.stdout.close()
                self._errors.seek(0)
                self.errors = self._errors.read()
                self._errors.close()
                sys.stderr.write(self.errors)  # for the report of a test that fails


Running = dict[str, TaskProcess]


@contextlib.contextmanager
def tasks(
    *options: str,
    ps: int = 1,
    workers: int = 1,
    all_with: tuple[str, ...] = (),
    by_task: Mapping[str, tuple[str, ...]] | None = None,
    environment_of_ps: Mapping[str, str] | None = None,
) -> Generator[Running]:
    """Workers and ps tasks, by name; clients address the first worker, which has the addresses of the others.

    Args:
        options: of the first worker.
        ps, workers: how many of these there are.
        all_with: options of all tasks.
        by_task: further options of some tasks, by their names.
        environment_of_ps: further variables of the environment of ps tasks.
    """
    with contextlib.ExitStack() as stack:
        found: dict[str, TaskProcess] = {}

        def start(cluster: dict[str, list[str]], job: str, index: int, *options: str) -> str:
            own = (by_task or {}).get(f"/job:{job}/task:{index}", ())
            variables = environment_of_ps if job == "ps" else None
            made = TaskProcess(cluster, job, index, *all_with, *own, *options, environment=variables)
            stack.callback(made.end)
            found[made.name] = made
            return made.address

        unknown = {"ps": ["localhost:0"] * ps, "worker": ["localhost:0"] * workers}
        addresses = [start(unknown, "ps", index) for index in range(ps)]
        others = [start(unknown, "worker", index) for index in range(1, workers)]
        start({"ps": addresses, "worker": ["localhost:0", *others]}, "worker", 0, *options)
        yield found


def restarted(task: TaskProcess, **cluster: Any) -> TaskProcess:
    """The same task started again, at the address that it had."""
    job = task.name.split(":")[1].partition("/")[0]
    return TaskProcess({job: [task.address], **cluster}, job)
