"""`inference.GRPCInferenceService`: the Open Inference Protocol, and what Triton adds to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Container, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np

from . import Answer, InferenceBackend, InferRequest, RequestError, WireTensor
from .messages import message_class
from .time_limit import time_limit

# By datatype, the field of typed contents; others have to come as bytes.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(["INT8", "INT16", "INT32"], "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(["UINT8", "UINT16", "UINT32"], "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_DTYPES = {
    "bool_contents": "bool",
    "int_contents": "int32",
    "int64_contents": "int64",
    "uint_contents": "uint32",
    "uint64_contents": "uint64",
    "fp32_contents": "float32",
    "fp64_contents": "float64",
}
_log = logging.getLogger("anabranch.serving")
_MOST_AHEAD = 64  # answers of a stream that wait for their client


class OpenInference:
    """The methods of the service, each from its request to its response.

    Args:
        backend: answers.
        request_seconds: how long the answers to one request of a stream may take; None for any time.
    """

    def __init__(self, backend: InferenceBackend, request_seconds: float | None = None) -> None:
        self._backend, self._request_seconds = backend, request_seconds

    async def server_live(self, request: Any) -> Any:
        return message_class("ServerLiveResponse")(live=True)

    async def server_ready(self, request: Any) -> Any:
        return message_class("ServerReadyResponse")(ready=self._backend.is_ready())

    async def model_ready(self, request: Any) -> Any:
        ready = self._backend.is_model_ready(request.name, request.version)
        return message_class("ModelReadyResponse")(ready=ready)

    async def server_metadata(self, request: Any) -> Any:
        return message_class("ServerMetadataResponse")(**self._backend.server_metadata())

    async def model_metadata(self, request: Any) -> Any:
        return message_class("ModelMetadataResponse")(**self._backend.model_metadata(request.name, request.version))

    async def model_config(self, request: Any) -> Any:
        return message_class("ModelConfigResponse")(config=self._backend.model_config(request.name, request.version))

    async def model_statistics(self, request: Any) -> Any:
        found = await self._backend.statistics(request.name, request.version)
        return message_class("ModelStatisticsResponse")(model_stats=found)

    async def repository_index(self, request: Any) -> Any:
        return message_class("RepositoryIndexResponse")(models=self._backend.index(request.ready))

    async def repository_model_load(self, request: Any) -> Any:
        _check_no_parameters(request)
        await self._backend.load(request.model_name)
        return message_class("RepositoryModelLoadResponse")()

    async def repository_model_unload(self, request: Any) -> Any:
        await self._backend.unload(request.model_name)
        return message_class("RepositoryModelUnloadResponse")()

    async def model_infer(self, request: Any) -> Any:
        return _response(request, await self._backend.infer(_asked(request)))

    async def model_stream_infer(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        """Answer requests as they come, all at once: each answer has the id of its request."""
        answers: asyncio.Queue[Any] = asyncio.Queue(_MOST_AHEAD)
        reading = asyncio.create_task(self._read_all(requests, answers))
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:  # no group of tasks around it: one does not end where a generator is closed
            reading.cancel()
            await asyncio.wait({reading})

    async def _read_all(self, requests: AsyncIterator[Any], answers: asyncio.Queue[Any]) -> None:
        """Answer all requests, and put at last None, or why they can't be read further."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            try:
                async for request in requests:
                    tasks.create_task(self._answer(request, answers))
            except Exception as error:
                failure = error
        await answers.put(failure)

    async def _answer(self, request: Any, answers: asyncio.Queue[Any]) -> None:
        made = message_class("ModelStreamInferResponse")
        try:
            async with (
                time_limit(self._request_seconds),
                aclosing(self._backend.stream(_asked(request))) as found,
            ):
                async for answer in found:
                    await answers.put(made(infer_response=_response(request, answer)))
        except Exception as error:
            if not isinstance(error, RequestError):
                _log.error("a request of a stream failed", exc_info=error)
            failed = {"model_name": request.model_name, "id": request.id}
            await answers.put(made(error_message=str(error) or type(error).__name__, infer_response=failed))


def check_parameters(name: str, parameters: Container[str], is_output: bool) -> None:
    """Check that a tensor asks for nothing by its parameters that is not offered.

    Raises:
        RequestError: it asks for shared memory, or for the classes that an output stands for.
    """
    if "shared_memory_region" in parameters:
        what = f"Output {name!r} is wanted" if is_output else f"Input {name!r} is"
        raise RequestError(400, f"{what} in shared memory, which this server does not read or write.")
    if is_output and "classification" in parameters:
        raise RequestError(400, f"Output {name!r}: classes are not offered; leave 'classification' out.")


def _check_no_parameters(request: Any) -> None:
    if request.parameters:
        raise RequestError(
            400, "Models are loaded as the server's configuration says; parameters of a load are not taken."
        )


def _asked(request: Any) -> InferRequest:
    for output in request.outputs:
        if output.parameters:
            check_parameters(output.name, output.parameters, is_output=True)
    return InferRequest(
        request.model_name,
        request.model_version,
        _tensors(request),
        [output.name for output in request.outputs],
        _parameters(request.parameters),
        0 if request.raw_input_contents else request.ByteSize(),
    )


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not given:
        return found
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


def _response(request: Any, answer: Answer) -> Any:
    response = message_class("ModelInferResponse")(
        model_name=request.model_name, model_version=answer.version, id=request.id
    )
    for name, value in answer.parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "string_param" if isinstance(value, str) else "int64_param"
        setattr(response.parameters[name], kind, value)
    for tensor in answer.outputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(tensor.data)
    return response


def _tensors(request: Any) -> list[WireTensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            400, f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs. Send one for each."
        )
    for each in request.inputs:
        if each.parameters:
            check_parameters(each.name, each.parameters, is_output=False)
        if raw and each.HasField("contents") and each.contents.ListFields():
            raise RequestError(
                400, f"Input {each.name!r} has typed contents beside raw_input_contents. Send one of them."
            )
    return [
        WireTensor(each.name, each.datatype, each.shape, raw[place] if raw else _typed(each))
        for place, each in enumerate(request.inputs)
    ]


def _typed(tensor: Any) -> Any:
    """Return typed contents: numbers as a vector, bytes as the field that holds them, of which many take time."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise RequestError(
            400, f"Input {tensor.name!r}: {tensor.datatype!r} has no typed contents. Send raw_input_contents."
        )
    values = getattr(tensor.contents, field)
    others = [] if len(values) else [found.name for found, _ in tensor.contents.ListFields()]
    if others:
        raise RequestError(
            400,
            f"Input {tensor.name!r}: {tensor.datatype} has its values in {field}, which is empty; {others[0]} is not.",
        )
    return values if field not in _DTYPES else np.array(values, _DTYPES[field])
