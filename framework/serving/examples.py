"""Requests that people can try: one row for each input of a model, or a short sequence of a decoder."""

from __future__ import annotations

import math
from typing import Any

from .signature import TensorInfo

_MOST_SHOWN = 32  # values in an example request


def example_instances(inputs: tuple[TensorInfo, ...]) -> dict[str, Any] | None:
    """The body of a request for one row; None where a row would be too long to be read."""
    if sum(math.prod(4 if size is None else size for size in info.shape[1:]) for info in inputs) > _MOST_SHOWN:
        return None
    rows = {info.name: example(info) for info in inputs}
    return {"instances": [rows[inputs[0].name] if len(inputs) == 1 else rows]}


def example_generation(inputs: tuple[TensorInfo, ...]) -> dict[str, Any]:
    """The body of a request for a sequence."""
    body: dict[str, Any] = {"tokens": [1], "parameters": {"max_tokens": 8}}
    if len(inputs) > 1:
        body["inputs"] = {info.name: example(info) for info in inputs[1:]}
    return body


def example(info: TensorInfo) -> Any:
    """One row for an input: 0, 1, 2, ..., as many as four along axes that are open."""
    values: list[Any] = [0, 1, 2, 3]
    if info.dtype == "string":
        values = ["a", "b", "c", "d"]
    if info.dtype == "bool":
        values = [False, True, False, True]

    def fill(sizes: list[int], place: int) -> Any:
        if not sizes:
            return values[place % 4]
        return [fill(sizes[1:], index if len(sizes) == 1 else place) for index in range(sizes[0])]

    return fill([4 if size is None else size for size in info.shape[1:]], 0)
