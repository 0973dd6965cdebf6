"""TensorFlow Serving's REST interface: predictions in row and column form, the state of a model, its metadata."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....distribute.inference import ModelSpec, RequestError, VersionState
from ....distribute.inference.large import beside_others
from ..catalogue import Catalogue, ServedModel
from ..decoding.completions import model_entry
from ..json_text import as_json_array, read_object, write_json
from ..signature import TENSORFLOW, Signature, TensorInfo, check_given
from ..values import as_input
from ..web.application import Request, Response, Route
from .tensorflow_backend import version_states

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...structures import Array

_MODEL = r"/v1/models/(?P<model>[^/:]+)(/versions/(?P<version>[^/:]+)|/labels/(?P<label>[^/:]+))?"


class TensorFlowRest:
    """Its handlers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def routes(self) -> list[Route]:
        """Return the paths that it answers."""
        return [
            Route("POST", re.compile(rf"{_MODEL}:predict"), self._predict, begins_at_once=True),
            Route("POST", re.compile(rf"{_MODEL}:(?P<call>[a-zA-Z]+)"), self._not_offered),
            Route("GET", re.compile(rf"{_MODEL}/metadata"), self._metadata),
            Route("GET", re.compile(_MODEL), self._status),
        ]

    def _model(self, request: Request) -> ServedModel:
        return self._catalogue.find(request.parts["model"], request.parts["version"], request.parts["label"])

    async def _predict(self, request: Request) -> Response:
        model = self._model(request)
        asked = await model.prepare(lambda: _read(model, request.body), len(request.body))
        outputs = await model.run(asked.arrays, asked.signature_name)
        size = sum([array.nbytes for array in outputs])
        return Response(await beside_others(size, _written, asked, outputs))

    async def _not_offered(self, request: Request) -> Response:
        raise RequestError(404, f"{request.parts['call']!r} is not offered; there is ':predict'.")

    async def _status(self, request: Request) -> Response:
        spec = ModelSpec(*(request.parts[part] for part in ("model", "version", "label")))
        states = [_state(each) for each in version_states(self._catalogue, spec)]
        is_versioned = bool(request.parts["version"] or request.parts["label"])
        entry = {} if is_versioned else model_entry(spec.name)  # `models.retrieve` of OpenAI's clients asks here
        return Response(write_json({"model_version_status": states, **entry}))

    async def _metadata(self, request: Request) -> Response:
        model = self._model(request)
        signatures = {name: _signature_def(each) for name, each in model.servable.signatures.items()}
        spec = {"name": model.name, "signature_name": "", "version": model.version}
        metadata = {"signature_def": {"signature_def": signatures}}
        return Response(write_json({"model_spec": spec, "metadata": metadata}))


class _Asked(NamedTuple):
    signature_name: str
    signature: Signature
    arrays: list[Array]
    rows: int | None  # of the row form


# --- requests -------------------------------------------------------------------------------------------------------


def _read(model: ServedModel, content: bytes) -> _Asked:
    """Read the body of a request for predictions."""
    body = read_object(content)
    name = body.get("signature_name", "")
    if not isinstance(name, str):
        raise RequestError(400, f"'signature_name' is no text, but {type(name).__name__}.")
    signature = model.servable.signature(name)
    if ("instances" in body) == ("inputs" in body):
        count = "both" if "inputs" in body else "neither"
        raise RequestError(400, f"Expected 'instances' (rows) or 'inputs' (columns), one of them; got {count}.")
    by_rows = "instances" in body
    if by_rows and isinstance(body["instances"], list):
        model.check_size(len(body["instances"]))
    columns = _columns(signature, body["instances"]) if by_rows else _named(signature, body["inputs"])
    model.servable.check_names(signature, columns)
    arrays = [as_input(info, columns[info.name]) for info in signature.inputs]
    return _Asked(name, signature, arrays, len(body["instances"]) if by_rows else None)


def _columns(signature: Signature, instances: object) -> Mapping[str, object]:
    """Return rows as a list for each input. With one input a row may be its value; else it is an object of all."""
    if not isinstance(instances, list) or not instances:
        raise RequestError(400, "'instances' has to be a list of at least one row.")
    names = [info.name for info in signature.inputs]
    if len(names) == 1 and not _is_object(instances[0]):
        return {names[0]: instances}
    columns: dict[str, list[object]] = {name: [] for name in names}
    for number, row in enumerate(instances):
        if not isinstance(row, dict):
            raise RequestError(
                400, f"Row {number}: expected an object of the inputs {names}, got {type(row).__name__}."
            )
        if row.keys() != columns.keys():
            check_given(names, row, f"Row {number}: expected an object of")
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _named(signature: Signature, inputs: Any) -> dict[str, object]:
    """Return columns by name; with one input they may be its value."""
    if _is_object(inputs):
        return inputs
    if len(signature.inputs) != 1:
        names = sorted(info.name for info in signature.inputs)
        raise RequestError(400, f"'inputs' has to be an object of the inputs {names}.")
    return {signature.inputs[0].name: inputs}


def _is_object(value: object) -> bool:
    """Test whether a value is an object of inputs; ``{"b64": ...}`` is a value."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _state(found: VersionState) -> dict[str, object]:
    status = {"error_code": "UNKNOWN" if found.failure else "OK", "error_message": found.failure}
    return {"version": str(found.version), "state": found.state, "status": status}


# --- answers --------------------------------------------------------------------------------------------------------


def _written(asked: _Asked, outputs: Sequence[Array]) -> bytes:
    """Return the body of an answer, in the form of its request."""
    signature = asked.signature
    shown = [_shown(info, array) for info, array in zip(signature.outputs, outputs, strict=True)]
    if asked.rows is not None:
        return write_json({"predictions": _rows(signature, outputs, shown, asked.rows)}, tuple(outputs))
    named = {info.name: each for info, each in zip(signature.outputs, shown, strict=True)}
    return write_json({"outputs": shown[0] if len(shown) == 1 else named}, tuple(outputs))


def _shown(info: TensorInfo, array: Array) -> object:
    found = as_json_array(array)
    return _in_base64(found) if info.dtype == "string" and info.name.endswith("_bytes") else found


def _in_base64(value: Any) -> object:
    if isinstance(value, list):
        return [_in_base64(item) for item in value]
    return {"b64": base64.b64encode(value.encode("utf-8")).decode("ascii")}


def _rows(signature: Signature, outputs: Sequence[Array], shown: Sequence[object], count: int) -> object:
    for info, array in zip(signature.outputs, outputs, strict=True):
        if not array.ndim or len(array) != count:
            raise RequestError(
                400,
                f"Output {info.name!r} of shape {array.shape} has no row for each of {count} instances. Send 'inputs'.",
            )
    if len(shown) == 1:
        return shown[0]
    names = [info.name for info in signature.outputs]
    return [dict(zip(names, row, strict=True)) for row in zip(*shown, strict=True)]


def _signature_def(signature: Signature) -> dict[str, object]:
    return {
        "inputs": {info.name: _tensor_info(info) for info in signature.inputs},
        "outputs": {info.name: _tensor_info(info) for info in signature.outputs},
        "method_name": "tensorflow/serving/predict",
    }


def _tensor_info(info: TensorInfo) -> dict[str, object]:
    sizes = [{"size": str(size), "name": ""} for size in info.open_shape]
    return {"dtype": TENSORFLOW[info.dtype], "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": info.tensor}
