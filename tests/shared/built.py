"""Graphs of a function of placeholders, for `Program`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab


def built(build: Callable[..., Any], *values: Any) -> tuple[ab.Graph, list[Any], list[Any]]:
    """Build a graph for values; return it, the targets and the placeholders for the values."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        targets = list(build(*feeds))
    return graph, targets, feeds
