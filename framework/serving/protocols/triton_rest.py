"""Parts of Triton's REST interface besides the Open Inference Protocol: statistics, configurations, the repository."""

from __future__ import annotations

import re

from ....distribute.inference import InferenceBackend, RequestError
from ..json_text import read_object, write_json
from ..web.application import Request, Response, Route
from .open_inference_rest import MODEL


class TritonRest:
    """Its handlers."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        one = r"/v2/repository/models/(?P<model>[^/]+)"
        return [
            Route("GET", re.compile(f"{MODEL}/config"), self._config),
            Route("GET", re.compile(f"{MODEL}/stats"), self._statistics),
            Route("GET", re.compile("/v2/models/stats"), self._all_statistics),
            Route("POST", re.compile("/v2/repository/index"), self._index),
            Route("POST", re.compile(f"{one}/load"), self._load),
            Route("POST", re.compile(f"{one}/unload"), self._unload),
        ]

    async def _config(self, request: Request) -> Response:
        return Response(write_json(self._backend.model_config(request.parts["model"], request.parts["version"])))

    async def _statistics(self, request: Request) -> Response:
        found = await self._backend.statistics(request.parts["model"], request.parts["version"])
        return Response(write_json({"model_stats": found}))

    async def _all_statistics(self, request: Request) -> Response:
        return Response(write_json({"model_stats": await self._backend.statistics("", "")}))

    async def _index(self, request: Request) -> Response:
        asked = read_object(request.body) if request.body.strip() else {}
        return Response(write_json(self._backend.index(bool(asked.get("ready", False)))))

    async def _load(self, request: Request) -> Response:
        asked = read_object(request.body) if request.body.strip() else {}
        if asked.get("parameters"):
            raise RequestError(
                400, "Models are loaded as the server's configuration says; parameters of a load are not taken."
            )
        await self._backend.load(request.parts["model"])
        return Response(b"{}")

    async def _unload(self, request: Request) -> Response:
        await self._backend.unload(request.parts["model"])
        return Response(b"{}")
