"""`Server`: models behind HTTP and gRPC, on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Self, TypeVar

from ...distribute.inference import Backends
from ...distribute.inference.front import server_credentials, start_front
from .batching import Batching
from .catalogue import Catalogue
from .configuration import ModelConfig, ServerConfig, parse_config, read_config
from .decoding.completions import Completions
from .decoding.rest import GenerateRest
from .decoding.served import ServedDecoder
from .metrics import CONTENT_TYPE
from .protocols.open_inference_backend import OpenInferenceBackend
from .protocols.open_inference_rest import OpenInferenceRest
from .protocols.tensorflow_backend import TensorFlowBackend
from .protocols.tensorflow_rest import TensorFlowRest
from .protocols.triton_rest import TritonRest
from .served_model import ServedModel
from .signature import Signature
from .versions import Limits
from .web.application import Application, Request, Response, Route
from .web.connections import HttpServer, Tls
from .web.pages import Pages
from .workers.member import Handler, Member
from .workers.merging import merged_metrics

POLL_SECONDS = 2.0
_LAST_PORT = 65535
T = TypeVar("T")
_log = logging.getLogger("anabranch.serving")


class Server:
    """Serves models while its block is entered, or from `start` to `stop`.

    Args:
        models: paths of servables, that `model.export` wrote, by the names under which they are served. The highest
            version of each is served, and a new one once it is there.
        config: what is served, instead of `models`: the path of a JSON or TOML file, or a dict like it
            (docs/serving.md, "Configuration").
        host: the address to listen on; by default only this machine gets there.
        rest_port, grpc_port: ports; 0 for any that are free.
        batching: with `models`, how requests are computed together, for all models or by the names of some.
        poll_seconds: how often folders are looked at for new versions; 0 for never.
        max_body_bytes: the largest body, and the largest gRPC message, that is taken. By default that of `config`.
        drain_seconds: how long requests under way may take when the server stops. By default that of `config`.

        may_manage: whether clients may load and unload models.
        tls: the files for encryption; None for none.
        member: the place of this process, where the command ``serve --workers`` has several.

    Raises:
        ValueError: both or neither of `models` and `config` are given, or something in them has no meaning.

    >>> import tempfile
    >>> from urllib.request import urlopen
    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     version = model.export(folder, verbose=False)
    ...     with ab.serving.Server({"small": folder}) as server:
    ...         urlopen(f"{server.rest_url}/v2/models/small/ready").read()
    b'{"name":"small","ready":true}'
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str]] | None = None,
        config: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        rest_port: int = 0,
        grpc_port: int = 0,
        batching: Batching | Mapping[str, Batching] | None = None,
        poll_seconds: float = POLL_SECONDS,
        max_body_bytes: int | None = None,
        drain_seconds: float | None = None,
        may_manage: bool = False,
        tls: Tls | None = None,
        member: Member | None = None,
    ) -> None:
        self._member = member
        self._config = _config(models, config, batching)
        self._host = host
        for name, port in (("rest_port", rest_port), ("grpc_port", grpc_port)):
            if not 0 <= port <= _LAST_PORT:
                raise ValueError(f"Server: {name} must be from 0 to {_LAST_PORT}; got {port}.")
        if not 0 <= poll_seconds < math.inf:
            raise ValueError(f"Server: poll_seconds must be a number of seconds from 0 (never) on; got {poll_seconds}.")
        self._ports = rest_port, grpc_port
        self._poll_seconds = poll_seconds
        self._may_manage = may_manage
        self._tls = tls
        self._credentials = None if tls is None else server_credentials(*tls.read())
        self._max_body_bytes = max_body_bytes or self._config.max_body_bytes
        self.drain_seconds = self._config.drain_seconds if drain_seconds is None else drain_seconds
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._catalogue: Catalogue | None = None
        self._stop: Callable[[], object] = lambda: None
        self.application: object = None  # of ASGI
        # Called where the supervisor of several processes has gone.
        self.when_alone: Callable[[], object] = lambda: None
        self.rest_url = ""
        self.grpc_address = ""

    def start(self) -> Self:
        """Load the models, listen, and return when requests are answered.

        Raises:
            ServableError: a model can't be loaded.
            OSError: a port is taken.
        """
        if self._thread is not None:
            raise RuntimeError("This server runs already.")
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            address = self._host, self._ports[0]
            listening = (
                socket.create_server(address, family=family, backlog=2048)
                if self._member is None
                else self._member.rest
            )
        except OSError as error:
            raise OSError(error.errno, f"Can't listen on {self._host}:{self._ports[0]} for HTTP: {error}") from error
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening, started), name="serving")
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Take no more requests, wait for those under way, and end."""
        self._stop()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._stop, self._loop, self._catalogue = None, lambda: None, None, None

    def configure(self, config: str | os.PathLike[str] | Mapping[str, object]) -> None:
        """Serve what another configuration says; models, versions, labels and batching change, the limits do not.

        Limits that differ from those of the running server are reported in the log.

        Raises:
            ValueError: it can't be read, or has no meaning. Nothing changes then.
            ServableError: a new model has no version that can be loaded. Nothing changes then.
        """
        found = _config(None, config, None)
        self.on_loop(lambda: self._running().configure(found.models))
        for limit in [field.name for field in fields(ServerConfig) if field.name != "models"]:
            old, new = getattr(self._config, limit), getattr(found, limit)
            if old != new:
                _log.warning("limits.%s stays %s, not %s: limits change when the server starts again", limit, old, new)

    def refresh(self) -> None:
        """Look for new versions now, and come back when they are loaded."""
        self.on_loop(lambda: self._running().refresh())

    def _running(self) -> Catalogue:
        if self._catalogue is None:
            raise RuntimeError("This server does not run.")
        return self._catalogue

    def steps(self) -> list[str]:
        """Return descriptions of the steps of models that are computed now; empty if the server does not run."""
        catalogue = self._catalogue
        return [] if catalogue is None else catalogue.steps()

    def remove_files(self) -> None:
        """Remove temporary files, before a process ends that does not wait for this server."""
        if self._catalogue is not None:
            self._catalogue.remove_files()

    def announce(self, lines: Sequence[str]) -> None:
        """Notify the supervisor of several processes that this one answers, with what it has to print."""

        async def send() -> None:
            if self._member is not None:
                self._member.announce(lines=list(lines), drain_seconds=self.drain_seconds)

        self.on_loop(send)

    def on_loop(self, work: Callable[[], Coroutine[object, None, T]]) -> T:
        """Run a coroutine on the server's event loop, from another thread, and give its result."""
        if self._loop is None:
            raise RuntimeError("This server does not run.")
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def _served(self, name: str) -> ServedModel | ServedDecoder:
        entry = None if self._catalogue is None else self._catalogue.models.get(name)
        found = None if entry is None else entry.find("", "")
        if found is None:
            raise RuntimeError(f"This server does not run, or serves no model {name!r}.")
        return found

    @property
    def models(self) -> list[str]:
        """The names of the models that are served."""
        return [] if self._catalogue is None else list(self._catalogue.models)

    def signature_of(self, name: str) -> Signature:
        """Return the signature of a model that is served, of several the default one."""
        found = self._served(name)
        return found.decoder.signature if isinstance(found, ServedDecoder) else found.servable.signature()

    def is_decoder(self, name: str) -> bool:
        """Test whether what is served under a name is a decoder."""
        return isinstance(self._served(name), ServedDecoder)

    def needs_token(self, name: str) -> bool:
        """Test whether requests for a model have to bear a token."""
        return self._running().needs_token(name)

    def why_alone(self, name: str) -> str | None:
        """Say why requests for a model are computed one at a time; None if rows of several are computed together."""
        found = self._served(name)
        return None if isinstance(found, ServedDecoder) else found.servable.why_alone()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *details: object) -> None:
        self.stop()

    def _run(self, listening: socket.socket, started: Future[None]) -> None:
        with listening, asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(self._serve(listening, started))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _serve(self, listening: socket.socket, started: Future[None]) -> None:
        config = self._config
        catalogue = Catalogue(
            Limits(config.max_rows, config.request_seconds, self._member is not None), config.max_loaded_bytes
        )
        try:
            await catalogue.configure(self._config.models)
            await self._answer(catalogue, listening, started)
        finally:
            await catalogue.close()

    async def _answer(self, catalogue: Catalogue, listening: socket.socket, started: Future[None]) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        member = self._member
        inference = OpenInferenceBackend(catalogue, self._may_manage, member)
        backends = Backends(inference, TensorFlowBackend(catalogue))
        front, grpc_port = await start_front(
            backends,
            self._host,
            self._ports[1] if member is None else member.grpc_port,
            self._max_body_bytes,
            self._credentials,
            shares_port=member is not None,
            request_seconds=self._config.request_seconds,
        )
        fronts = (
            TensorFlowRest(catalogue),
            TritonRest(inference),
            OpenInferenceRest(inference),
            GenerateRest(catalogue),
            Completions(catalogue),
            Pages(catalogue),
        )
        routes = [*[route for front in fronts for route in front.routes()], metrics_route(catalogue, member)]
        config = self._config
        application = Application(routes, self._max_body_bytes, config.request_seconds)
        http = HttpServer(application, self.drain_seconds, config.read_seconds, self._tls)
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        await http.listens.wait()
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.rest_url = f"http{'s' if self._tls else ''}://{host}:{listening.getsockname()[1]}"
        self.grpc_address = f"{host}:{grpc_port}"
        self._stop = lambda: loop.call_soon_threadsafe(ending.set)
        self._loop, self._catalogue = loop, catalogue
        self.application = application
        catalogue.is_open = True
        if member is not None:
            await member.join(handlers_of(catalogue, inference), lambda: _look(catalogue), lambda: self.when_alone())
        polling = asyncio.create_task(self._poll(catalogue))
        started.set_result(None)
        await ending.wait()
        catalogue.is_open = False
        http.should_exit = True
        polling.cancel()
        if member is not None:
            member.leave()
        await asyncio.gather(serving, front.stop(self.drain_seconds))
        with contextlib.suppress(asyncio.CancelledError):
            await polling

    async def _poll(self, catalogue: Catalogue) -> None:
        while self._poll_seconds > 0:
            await asyncio.sleep(self._poll_seconds)
            try:
                await catalogue.refresh()
            except Exception:
                _log.exception("looking for new versions failed")


def _config(
    models: Mapping[str, str | os.PathLike[str]] | None,
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    batching: Batching | Mapping[str, Batching] | None,
) -> ServerConfig:
    if (models is None) == (config is None) or (config is not None and batching is not None):
        raise ValueError("A server takes models, with batching, or config; give one of them.")
    if config is not None:
        return parse_config(config) if isinstance(config, Mapping) else read_config(config)
    assert models is not None
    if not models:
        raise ValueError("A server takes at least one model, as {name: path}; got none.")
    by_model = _by_model(batching, models)
    return ServerConfig({name: ModelConfig(os.fspath(path), batching=by_model[name]) for name, path in models.items()})


def _by_model(batching: Batching | Mapping[str, Batching] | None, models: Mapping[str, object]) -> dict[str, Batching]:
    if batching is None or isinstance(batching, Batching):
        return dict.fromkeys(models, batching or Batching())
    unknown = sorted(batching.keys() - models.keys())
    if unknown:
        raise ValueError(f"batching names {', '.join(unknown)}, which is no model; they are {', '.join(models)}.")
    return {name: batching.get(name, Batching()) for name in models}


def handlers_of(catalogue: Catalogue, inference: OpenInferenceBackend) -> dict[str, Handler]:
    """Return the handlers of one process for requests that go to all of several."""

    async def metrics(value: object) -> str:
        return catalogue.metrics.text().decode()

    async def statistics(value: Sequence[str]) -> list[dict[str, object]]:
        return inference.own_statistics(*value, is_checked=True)

    return {"metrics": metrics, "statistics": statistics, "load": catalogue.load, "unload": catalogue.unload}


def _look(catalogue: Catalogue) -> tuple[bool, list[str]]:
    """Test whether all models are ready, and those of which a version does not answer."""
    return catalogue.is_ready, [name for name, entry in catalogue.models.items() if entry.is_stuck]


def metrics_route(catalogue: Catalogue, member: Member | None = None) -> Route:
    """Return the route of metrics for Prometheus, at the path that it looks at first and at TensorFlow Serving's."""

    async def answer(request: Request) -> Response:
        if member is None:
            return Response(catalogue.metrics.text(), CONTENT_TYPE)
        return Response(merged_metrics(await member.ask("metrics")).encode(), CONTENT_TYPE)

    return Route("GET", re.compile("/metrics|/monitoring/prometheus/metrics"), answer)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop of a server."""
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
