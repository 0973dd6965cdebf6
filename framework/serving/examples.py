"""Requests that people can try: one row for each input of a model, or a short sequence of a decoder."""

from __future__ import annotations

import json
import math
import shlex
from urllib.parse import quote

from .signature import OPEN_INFERENCE, Signature, TensorInfo

_MOST_SHOWN = 32  # values in an example request


def example_call(name: str, signature: Signature, is_decoder: bool) -> tuple[str, str | None]:
    """Return the path of a model for POST, and a body in JSON; None where it would be too long to be read."""
    place = quote(name, safe="")
    if is_decoder:
        return f"/v2/models/{place}/generate", json.dumps(example_generation(signature.inputs))
    if signature.states:
        body = example_sequence(signature.inputs)
        return f"/v2/models/{place}/infer", None if body is None else json.dumps(body)
    body = example_instances(signature.inputs)
    return f"/v1/models/{place}:predict", None if body is None else json.dumps(body)


def example_line(url: str, name: str, signature: Signature, is_decoder: bool = False, has_token: bool = False) -> str:
    """Return a line for the shell that uses a model: for an answer, or for its state where a row would be too long.

    Args:
        url: of the server.
        name: of the model.
        signature: of the model.
        is_decoder: whether the answer is a sequence.
        has_token: whether requests have to bear a token; the line has `TOKEN` in its place.
    """
    path, body = example_call(name, signature, is_decoder)
    words = ["curl", *(["-H", "Authorization: Bearer TOKEN"] if has_token else [])]
    if body is None:
        return shlex.join([*words, f"{url}/v1/models/{quote(name, safe='')}"])
    return shlex.join([*words, "-d", body, f"{url}{path}"])


def example_instances(inputs: tuple[TensorInfo, ...]) -> dict[str, object] | None:
    """Return the body of a request for one row; None where a row would be too long to be read."""
    if _is_too_long(inputs):
        return None
    rows = {info.name: example(info) for info in inputs}
    return {"instances": [rows[inputs[0].name] if len(inputs) == 1 else rows]}


def example_sequence(inputs: tuple[TensorInfo, ...]) -> dict[str, object] | None:
    """Return the body of the only request of a sequence; None where it would be too long to be read."""
    if _is_too_long(inputs):
        return None
    rows = [(info, [1, *_sizes(info)], [example(info)]) for info in inputs]
    tensors = [
        {"name": info.name, "datatype": OPEN_INFERENCE[info.dtype], "shape": shape, "data": data}
        for info, shape, data in rows
    ]
    return {"inputs": tensors, "parameters": {"sequence_id": 1, "sequence_start": True, "sequence_end": True}}


def _sizes(info: TensorInfo) -> list[int]:
    return [4 if size is None else size for size in info.shape[1:]]


def _is_too_long(inputs: tuple[TensorInfo, ...]) -> bool:
    return sum(math.prod(_sizes(info)) for info in inputs) > _MOST_SHOWN


def example_generation(inputs: tuple[TensorInfo, ...]) -> dict[str, object]:
    """Return the body of a request for a sequence."""
    body: dict[str, object] = {"tokens": [1], "parameters": {"max_tokens": 8}}
    if len(inputs) > 1:
        body["inputs"] = {info.name: example(info) for info in inputs[1:]}
    return body


def example(info: TensorInfo) -> object:
    """Return one row for an input: 0, 1, 2, ..., as many as four along axes that are open."""
    values = [0, 1, 2, 3]
    if info.dtype == "string":
        values = ["a", "b", "c", "d"]
    if info.dtype == "bool":
        values = [False, True, False, True]

    def fill(sizes: list[int], place: int) -> object:
        if not sizes:
            return values[place % 4]
        return [fill(sizes[1:], index if len(sizes) == 1 else place) for index in range(sizes[0])]

    return fill(_sizes(info), 0)
