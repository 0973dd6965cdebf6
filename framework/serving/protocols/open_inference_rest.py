"""The REST interface of the Open Inference Protocol, with its extension for binary tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ....distribute.inference import InferenceBackend, InferRequest, RequestError, WireTensor
from ....distribute.inference.large import beside_others
from ....distribute.inference.open_inference import check_parameters
from ..json_text import as_json_array, read_object, write_json
from ..web.application import Request, Response, Route
from .open_inference import RAW_ONLY, as_bytes

MODEL = r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?"
_LENGTH = "Inference-Header-Content-Length"


class OpenInferenceRest:
    """Its handlers."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        return [
            Route("POST", re.compile(f"{MODEL}/infer"), self._infer, begins_at_once=True),
            Route("GET", re.compile(MODEL), self._metadata),
            Route("GET", re.compile(f"{MODEL}/ready"), self._model_ready),
            Route("GET", re.compile("/v2/?"), self._server),
            Route("GET", re.compile("/v2/health/live"), self._live),
            Route("GET", re.compile("/v2/health/ready"), self._ready),
        ]

    async def _server(self, request: Request) -> Response:
        return Response(write_json(self._backend.server_metadata()))

    async def _live(self, request: Request) -> Response:
        return Response(write_json({"live": True}))

    async def _ready(self, request: Request) -> Response:
        ready = self._backend.is_ready()
        return Response(write_json({"ready": ready}), status=200 if ready else 503)

    async def _metadata(self, request: Request) -> Response:
        return Response(write_json(self._backend.model_metadata(request.parts["model"], request.parts["version"])))

    async def _model_ready(self, request: Request) -> Response:
        model = request.parts["model"]
        self._backend.model_metadata(model, request.parts["version"])  # raises where there is none
        ready = self._backend.is_model_ready(model, request.parts["version"])
        return Response(write_json({"name": model, "ready": ready}), status=200 if ready else 503)

    async def _infer(self, request: Request) -> Response:
        content, rest = _parted(request)
        document = await beside_others(len(content), read_object, content)
        inputs = _inputs(document, rest)
        parameters = _parameters(document, "The request")
        binary = parameters.get("binary_data_output", False)
        requested = _requested(document, bool(binary))
        name = request.parts["model"]
        asked = InferRequest(name, request.parts["version"], inputs, list(requested), parameters, len(content))
        answer = await self._backend.infer(asked, raw=False)
        head = {"model_name": name, "model_version": answer.version}
        if document.get("id"):
            head["id"] = document["id"]
        in_bytes = [bool(requested.get(tensor.name, binary)) for tensor in answer.outputs]
        size = sum([tensor.data.nbytes for tensor in answer.outputs])
        return await beside_others(size, _response, head, answer.outputs, in_bytes)


def _response(head: Mapping[str, object], outputs: Sequence[WireTensor], in_bytes: Sequence[bool]) -> Response:
    """Return the answer with these outputs, some as bytes behind the JSON."""
    described, raw, arrays = [], [], []
    for tensor, is_raw in zip(outputs, in_bytes, strict=True):
        entry = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if is_raw:
            raw.append(as_bytes(tensor.data))
            described.append({**entry, "parameters": {"binary_data_size": len(raw[-1])}})
        else:
            arrays.append(_in_json(tensor))
            described.append({**entry, "data": as_json_array(tensor.data.reshape(-1))})
    text = write_json({**head, "outputs": described}, tuple(arrays))
    if not raw:
        return Response(text)
    return Response(b"".join([text, *raw]), "application/octet-stream", {_LENGTH: str(len(text))})


def _parted(request: Request) -> tuple[memoryview, memoryview]:
    """Return the JSON of a request, and the raw tensors behind it."""
    body = memoryview(request.body)
    said = request.headers.get(_LENGTH.lower())
    if said is None:
        return body, body[len(body) :]
    if not re.fullmatch("[0-9]{1,18}", said) or int(said) > len(body):
        raise RequestError(400, f"{_LENGTH} is {said!r}; expected the bytes of JSON, of {len(body)} in the body.")
    return body[: int(said)], body[int(said) :]


def _inputs(document: Mapping[str, object], rest: memoryview) -> list[WireTensor]:
    given = document.get("inputs")
    if not isinstance(given, list):
        raise RequestError(400, "Expected 'inputs', a list of tensors.")
    found: list[WireTensor] = []
    place = 0
    for entry in given:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise RequestError(400, "Each of 'inputs' has to be an object with 'name', 'datatype', 'shape' and 'data'.")
        size = None
        if "parameters" in entry:
            parameters = _parameters(entry, f"Input {entry['name']!r}")
            check_parameters(entry["name"], parameters, is_output=False)
            size = parameters.get("binary_data_size")
        if size is None:
            if "data" not in entry:
                raise RequestError(400, f"Input {entry['name']!r} has neither 'data' nor 'binary_data_size'.")
            data = entry["data"]
        elif type(size) is not int or not 0 <= size <= len(rest) - place:
            raise RequestError(
                400, f"Input {entry['name']!r}: binary_data_size is {size!r}; {len(rest) - place} bytes are left."
            )
        else:
            data = rest[place : place + size]
            place += size
        # pyrefly: ignore[bad-argument-type] - whoever reads the tensor checks the shape
        found.append(WireTensor(entry["name"], str(entry.get("datatype")), entry.get("shape"), data))
    if place != len(rest):
        raise RequestError(400, f"{len(rest) - place} bytes behind the last tensor belong to none.")
    return found


def _requested(document: Mapping[str, object], binary: bool) -> dict[str, bool]:
    """Return the outputs that are asked for, and whether as bytes."""
    found: dict[str, bool] = {}
    outputs = document.get("outputs") or []
    if not isinstance(outputs, list):
        raise RequestError(400, "'outputs' has to be a list.")
    for entry in outputs:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise RequestError(400, "Each of 'outputs' has to be an object with a 'name'.")
        parameters = _parameters(entry, f"Output {entry['name']!r}")
        check_parameters(entry["name"], parameters, is_output=True)
        found[entry["name"]] = bool(parameters.get("binary_data", binary))
    return found


def _parameters(holder: Mapping[str, object], what: str) -> Mapping[str, object]:
    found = holder.get("parameters") or {}
    if not isinstance(found, dict):
        raise RequestError(400, f"{what}: 'parameters' has to be an object.")
    return found


def _in_json(tensor: WireTensor) -> object:
    if tensor.datatype in RAW_ONLY:
        raise RequestError(
            400, f"Output {tensor.name!r}: {tensor.datatype} has no JSON form. Ask for it with binary_data: true."
        )
    return tensor.data
