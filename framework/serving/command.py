"""The command ``python -m anabranch serve``: exported models behind HTTP and gRPC, until SIGTERM or an interrupt."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import queue
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from .examples import example_line
from .exporting.command import add_import_option
from .logs import FORMATS, logging_to_stderr

if TYPE_CHECKING:
    from .server import Server
    from .web.connections import Tls
    from .workers.member import Member

_NEEDED = ("uvicorn", "httptools", "orjson", "prometheus_client", *(() if sys.platform == "win32" else ("uvloop",)))
_log = logging.getLogger("anabranch.serving")
_LAST_PORT = 65535
_PATIENCE = 5.0  # seconds beyond those for requests under way
_LOOK_SECONDS = 1.0  # between looks for a signal
_RELOAD: int = getattr(signal, "SIGHUP", 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME=PATH",
        help="serve what model.export() wrote to PATH, or the .keras file there, as NAME; may be given several times",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a JSON or TOML file with models, versions, labels, batching and limits, in place of --model and the "
        "options of batching; it is read again on SIGHUP",
    )
    add_import_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--rest-port", type=_port, default=8501, metavar="PORT", help="of HTTP (default: 8501; 0: any)")
    parser.add_argument("--grpc-port", type=_port, default=8500, metavar="PORT", help="of gRPC (default: 8500; 0: any)")
    parser.add_argument(
        "--poll-seconds",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="how often folders are looked at for new versions (default: 2; 0: never)",
    )
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="the server's certificate, as PEM: encrypts both ports"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, as PEM")
    parser.add_argument(
        "--tls-client-authorities",
        metavar="FILE",
        help="certificates of authorities, as PEM: clients must have a certificate that one of them has signed",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="how many processes serve the ports, with one copy of the weights (default: 1)",
    )
    parser.add_argument("--worker", metavar="SOCKETS", help=argparse.SUPPRESS)  # of the supervisor's processes
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="of standard error (default: text)")
    parser.add_argument("--manage", action="store_true", help="let clients load and unload models (Triton's calls)")
    _add_batching(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to {_LAST_PORT}, got {text!r}")
    return int(text)


def _add_batching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-batch-size",
        type=int,
        default=64,
        metavar="ROWS",
        help="how many rows of requests that wait are computed together (default: 64)",
    )
    parser.add_argument(
        "--max-queue-delay-ms",
        type=float,
        default=1.0,
        metavar="MS",
        help="how long requests that wait go on waiting for more rows (default: 1)",
    )
    parser.add_argument(
        "--max-queue-size", type=int, default=1024, metavar="N", help="how many requests may wait (default: 1024)"
    )
    parser.add_argument(
        "--bitwise",
        action="store_true",
        help="fill all batches up to --max-batch-size, so that the bits of an answer never change",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until the process is terminated or interrupted; requests under way end. A second signal ends at once."""
    if options.log_format == "json":
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core reads it when it loads; its lines are no JSON
    with logging_to_stderr(options.log_format):
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            return _fail(f"{', '.join(missing)} must be installed for this: pip install 'anabranch[serve]'")
        return _serve(options) if options.workers == 1 or options.worker is not None else _supervise(options)


def _serve(options: argparse.Namespace) -> int:
    """Serve by this process."""
    from ...engine.runtime.collector import leave_out_modules
    from .storage import ServableError

    signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # whose put() may be called by a signal's handler

    def note(number: int, frame: object) -> None:
        if number != _RELOAD:  # the next one ends this process; that of a container has to do so itself
            signal.signal(number, signal.SIG_DFL if os.getpid() != 1 else _exit_at_once)
        signals.put(number)

    for number in (signal.SIGTERM, signal.SIGINT, *([_RELOAD] if _RELOAD and options.config else [])):
        signal.signal(number, note)
    try:
        server = _server(options)
        leave_out_modules()
        server.when_alone = lambda: signals.put(signal.SIGTERM)
        with server:
            if options.worker is None:
                print(*facts(server), sep="\n", flush=True)
            else:
                server.announce(facts(server))
            while _next_of(signals) == _RELOAD:
                _reconfigure(server, options.config)
            _end_after(server.drain_seconds + _PATIENCE, server)
    except (ServableError, ValueError, OSError) as error:
        return _fail(str(error))
    return 0


def _next_of(signals: queue.SimpleQueue[int]) -> int:
    """Wait for a signal. A handler runs in between only: of one that arrives just before a wait, when this ends."""
    while True:
        with contextlib.suppress(queue.Empty):
            return signals.get(timeout=_LOOK_SECONDS)


def _exit_at_once(number: int, frame: object) -> None:
    os._exit(128 + number)  # as a shell reports a process that a signal ended


def _supervise(options: argparse.Namespace) -> int:
    """Serve by several processes."""
    from .workers.supervisor import Supervisor, command_of

    if options.workers < 1:
        return _fail(f"--workers {options.workers}: expected a number from 1 on.")
    if sys.platform == "win32":
        return _fail(f"--workers {options.workers}: this system can't share a port among processes.")
    package = str(__package__).partition(".")[0]
    try:
        supervisor = Supervisor(
            command_of(options.command_line, package),
            options.workers,
            options.host,
            options.rest_port,
            options.grpc_port,
            bool(options.config),
        )
    except OSError as error:
        return _fail(str(error))
    return supervisor.run()


def facts(server: Server) -> list[str]:
    """Return the lines that say where a server is, how to use it, and how it computes."""
    first = server.models[0]
    lines = [
        f"ready rest={server.rest_url} grpc={server.grpc_address}",
        example_line(
            server.rest_url, first, server.signature_of(first), server.is_decoder(first), server.needs_token(first)
        ),
    ]
    for name in server.models:
        why = server.why_alone(name)
        how = f"one at a time: {why}" if why else "together"
        lines.append(f"requests for {name!r} that wait are computed {how}")
    return lines


def _member(place: str | None) -> Member | None:
    """Return the place of a process that `Supervisor` has started; None for one of its own."""
    if place is None:
        return None
    from .workers.member import Member

    rest, control, port = (int(part) for part in place.split(","))
    return Member(socket.socket(fileno=rest), socket.socket(fileno=control), port)


def _end_after(seconds: float, server: Server) -> None:
    """End the process after a time, should a step of a model not end: its thread can't be ended otherwise.

    The requests have been answered by then, so that this is an orderly end.
    """

    def end() -> None:
        _log.error("the process ends, and waits no longer for %s", " and ".join(server.steps()) or "a thread")
        with contextlib.suppress(OSError):  # such as that of files in use, on Windows
            server.remove_files()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _server(options: argparse.Namespace) -> Server:
    from .batching import Batching
    from .exporting.keras_files import import_modules
    from .server import Server

    import_modules(options.modules)
    where = {"host": options.host, "rest_port": options.rest_port, "grpc_port": options.grpc_port}
    where |= {"may_manage": options.manage, "tls": _tls(options), "member": _member(options.worker)}
    if bool(options.model) == bool(options.config):
        raise ValueError("give --model NAME=PATH, once or several times, or --config FILE.")
    if options.config:
        return Server(config=options.config, poll_seconds=options.poll_seconds, **where)
    batching = Batching(options.max_batch_size, options.max_queue_delay_ms, options.max_queue_size, options.bitwise)
    return Server(_models(options.model), batching=batching, poll_seconds=options.poll_seconds, **where)


def _tls(options: argparse.Namespace) -> Tls | None:
    from .web.connections import Tls

    if bool(options.tls_certificate) != bool(options.tls_key) or (
        options.tls_client_authorities and not options.tls_key
    ):
        raise ValueError("TLS needs --tls-certificate FILE and --tls-key FILE.")
    if not options.tls_key:
        return None
    return Tls(options.tls_certificate, options.tls_key, options.tls_client_authorities)


def _reconfigure(server: Server, path: str) -> None:
    """Read the configuration again; a wrong one is reported, and changes nothing."""
    from .storage import ServableError

    try:
        server.configure(path)
    except (ServableError, ValueError) as error:
        _log.error("%s Nothing was changed.", error)
    else:
        print(f"configured again: {', '.join(server.models)}", flush=True)


def _fail(message: str) -> int:
    _log.error("%s", message)
    return 2


def _models(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (name and equals and path) or "/" in name or ":" in name:
            raise ValueError(f"--model {each!r}: expected NAME=PATH, with no slash and no colon in the name.")
        if name in found:
            raise ValueError(f"--model {each!r}: there is a model {name!r} already.")
        found[name] = path
    return found
