"""Generation by the Open Inference Protocol: a prompt as tensors, and an answer for each token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from ....distribute.inference import Answer, InferRequest, RequestError, WireTensor
from ..protocols.open_inference import array_from_wire, as_bytes, by_name
from ..signature import OPEN_INFERENCE, TensorInfo, check_known
from .generation import SETTINGS, Generation
from .plan import TOKENS
from .served import ServedDecoder
from .texts import pieces

TEXT = "text_input"
_OWN = ("triton_enable_empty_final_response", "priority", "timeout")  # parameters of Triton's clients


async def answers(decoder: ServedDecoder, request: InferRequest) -> AsyncGenerator[Answer]:
    """Yield an answer for each token: ``tokens`` (the new one) and, with a detokenizer, ``text_output``.

    Raises:
        RequestError: the request has no meaning.
    """
    generation = await _generation(decoder, request)
    async with aclosing(pieces(decoder, generation)) as found:
        async for piece in found:
            parameters: dict[str, object] = {"triton_final_response": piece.finish_reason is not None}
            if piece.finish_reason is not None:
                parameters["finish_reason"] = piece.finish_reason
            outputs = [WireTensor(TOKENS, "INT32", [1], as_bytes(np.array([piece.token], "int32")))]
            if piece.text is not None:
                written = np.array([piece.text], np.dtypes.StringDType())
                outputs.append(WireTensor("text_output", "BYTES", [1], as_bytes(written)))
            yield Answer(decoder.version, outputs, parameters)


async def _generation(decoder: ServedDecoder, request: InferRequest) -> Generation:
    given = by_name(request.inputs)
    if (TOKENS in given) == (TEXT in given):
        raise RequestError(400, f"Expected the input {TOKENS!r} or the input {TEXT!r}, one of them.")
    infos = {info.name: info for info in decoder.decoder.signature.inputs if info.name != TOKENS}
    check_known("input", given, (TOKENS, TEXT, *infos))
    rows: dict[str, object] = {}
    for name, tensor in given.items():
        if name in infos:
            rows[name] = array_from_wire(infos[name], tensor)[0]
    settings = {name: value for name, value in request.parameters.items() if name not in _OWN}
    check_known("parameter", settings, SETTINGS)
    if isinstance(settings.get("stop"), str):  # a parameter can't be a list
        settings["stop"] = [settings["stop"]]
    return await decoder.make_generation(_prompt(given), rows, settings)


def _prompt(given: dict[str, WireTensor]) -> object:
    if TEXT in given:
        text = array_from_wire(TensorInfo(TEXT, "string", (1,), ""), given[TEXT]._replace(shape=[1]))
        return str(text[0])
    tensor = given[TOKENS]
    dtype = "int64" if tensor.datatype == OPEN_INFERENCE["int64"] else "int32"
    shape: tuple[int | None, ...] = (1, None) if len(tensor.shape) == 2 else (None,)
    return array_from_wire(TensorInfo(TOKENS, dtype, shape, ""), tensor).reshape(-1)
