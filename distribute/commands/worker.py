"""The command ``python -m anabranch worker``: one task in a process of its own."""

from __future__ import annotations

import argparse
import gc
import importlib
import signal
import sys
import traceback
from typing import Any

from ..cluster import ClusterSpec
from ..config import ServerConfig
from ..tasks.server import Server
from ..transport.planes import CHOICES

_COLLECTED_AFTER = 20_000  # new objects, in place of 700 to 2000: those of graphs and programs are many, and stay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--cluster", required=True, metavar="JSON", help='{"ps": ["host:port"], "worker": ["host:port"]}'
    )
    parser.add_argument("--job-name", help="the job of this task; not needed if the cluster has one task")
    parser.add_argument("--task-index", type=int, help="its number in the job")
    parser.add_argument("--cpus", type=int, default=1, help="how many CPU devices the task has (default: 1)")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import it first: it registers functions that steps call (register_function); may be repeated",
    )
    parser.add_argument("--bind", metavar="ADDRESS", help="listen where other machines can reach this one")
    parser.add_argument(
        "--connect-timeout", type=float, default=30.0, metavar="SECONDS", help="to wait for other tasks"
    )
    parser.add_argument(
        "--heartbeat-interval",
        type=float,
        default=ServerConfig.heartbeat_interval,
        metavar="SECONDS",
        help="between questions to other tasks whether they are there (default: %(default)s)",
    )
    parser.add_argument(
        "--heartbeat-timeout",
        type=float,
        default=ServerConfig.heartbeat_timeout,
        metavar="SECONDS",
        help="without an answer after which another task is taken for dead (default: %(default)s)",
    )
    parser.add_argument(
        "--kernel-timeout", type=float, metavar="SECONDS", help="that one operation of another task may take"
    )
    parser.add_argument(
        "--plane", choices=CHOICES, help="how values travel to other tasks (default: $ANABRANCH_PLANE, auto)"
    )
    parser.add_argument(
        "--inline-bytes",
        type=int,
        default=ServerConfig.inline_bytes,
        metavar="BYTES",
        help="values of at most so many go by the socket where there is shared memory (default: %(default)s)",
    )


def import_module(module: str) -> None:
    """Import a module that registers functions.

    Raises:
        ImportError: it can't be imported.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        remedy = (
            "Modules are looked for in the folder where the command is started, and on PYTHONPATH"
            if is_absent
            else f"It is raised by {frames[-1].filename}, line {frames[-1].lineno}"
        )
        raise ImportError(f"--import {module}: {error}. {remedy}.") from error


def run(options: argparse.Namespace) -> int:
    """Serve until the process is interrupted or terminated.

    The first line that it prints says who serves where.
    """
    if options.modules:
        sys.path.insert(0, "")  # where it was started, as for python -m
    try:
        for module in options.modules:
            import_module(module)
        server = Server(
            ClusterSpec.from_json(options.cluster),
            options.job_name,
            options.task_index,
            {"cpu": options.cpus},
            ServerConfig(
                options.connect_timeout,
                heartbeat_interval=options.heartbeat_interval,
                heartbeat_timeout=options.heartbeat_timeout,
                kernel_timeout=options.kernel_timeout,
                plane=options.plane,
                inline_bytes=options.inline_bytes,
            ),
            bind=options.bind,
        )
    except (ImportError, ValueError, TypeError, OSError) as error:
        print(f"anabranch worker: {error}", file=sys.stderr)
        return 2

    def end(number: int, frame: Any) -> None:
        # It is ending: a launcher may send a SIGTERM behind the terminal's signal. It is not SIG_IGN, as Python reports
        # a signal that has come before it is.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # but Ctrl-C once more ends it at once
        raise KeyboardInterrupt

    gc.set_threshold(_COLLECTED_AFTER)
    try:
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        print(f"{server.name} serves at {server.target}", flush=True)
        server.join()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
    return 0
