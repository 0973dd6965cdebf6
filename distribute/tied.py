"""Runs a Python script in a process that ends when the one that has started it does, however that ends.

python -c "from anabranch.distribute.tied import main; main()" DESCRIPTOR SCRIPT [ARGUMENT ...]

DESCRIPTOR is the end for reading of a pipe, whose other end the starting process has.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence


@contextlib.contextmanager
def tied(script: Sequence[str], folder: str, environment: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    """Make a block with a process that runs a script, and ends with this one, or with the block.

    Args:
        script: its path and arguments.
        folder: where it is started.
        environment: that of the process, whose output is one text.
    """
    package = f"{__package__}".partition(".")[0]
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb"):
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {package}.distribute.tied import main; main()", str(ours), *script],
                cwd=folder,
                env=dict(environment),
                text=True,
                errors="replace",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[ours],
            )
        finally:
            os.close(ours)
        with process:
            try:
                yield process
            finally:
                process.kill()


def main() -> None:
    """Run the script that the command line names."""
    _, descriptor, script, *_ = sys.argv
    os.set_inheritable(int(descriptor), False)
    threading.Thread(target=_end_with, args=(int(descriptor),), daemon=True).start()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


def _end_with(descriptor: int) -> None:
    """End this process when the other end of a pipe is closed."""
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGKILL)


__all__ = ["main", "tied"]
