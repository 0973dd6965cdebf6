"""Flame graphs as files for https://www.speedscope.app, which shows them without uploading anything.

The format is documented at https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class Stack(NamedTuple):
    """A part of what a step takes.

    Attributes:
        frames: what it belongs to, from the outermost to the innermost.
        seconds: its time.
        bytes: of the values that it takes and gives.
    """

    frames: tuple[str, ...]
    seconds: float
    bytes: float


def write_speedscope(path: str | os.PathLike[str], name: str, stacks: Sequence[Stack]) -> None:
    """Write a file with two flame graphs, of time and of bytes.

    Args:
        path: of the file; the name usually ends with ``.speedscope.json``.
        name: of the whole.
        stacks: its parts.
    """
    numbers: dict[str, int] = {}
    samples = [[numbers.setdefault(frame, len(numbers)) for frame in stack.frames] for stack in stacks]
    profiles = [
        _profile(f"{name}: time", "microseconds", samples, [stack.seconds * 1e6 for stack in stacks]),
        _profile(f"{name}: bytes", "bytes", samples, [stack.bytes for stack in stacks]),
    ]
    frames = [_frame(frame) for frame in numbers]
    found = {
        "$schema": _SCHEMA,
        "name": name,
        "exporter": "anabranch",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


def _profile(name: str, unit: str, samples: Sequence[Sequence[int]], weights: Sequence[float]) -> dict[str, Any]:
    kept = [(sample, weight) for sample, weight in zip(samples, weights, strict=True) if weight > 0]
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weight for _, weight in kept),
        "samples": [sample for sample, _ in kept],
        "weights": [weight for _, weight in kept],
    }


def _frame(name: str) -> dict[str, Any]:
    file, colon, line = name.rpartition(":")
    if colon and line.isdecimal() and file.endswith(".py"):
        return {"name": f"{os.path.basename(file)}:{line}", "file": file, "line": int(line)}
    return {"name": name}
