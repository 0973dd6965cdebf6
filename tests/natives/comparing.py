"""Shared by tests of kernels for single operations: programs with and without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.graph import Symbol
from anabranch.engine.runtime.analyses import kernels_of
from anabranch.engine.runtime.program import Program


def kernel_types(graph: ab.Graph) -> set[str]:
    """The types of the operations that have kernels."""
    return {operation.type for operation in kernels_of(graph.operations, exact=False)}


def check_against_numpy(
    graph: ab.Graph, fetches: Sequence[ab.Tensor], feeds: Sequence[Symbol], values: Sequence[Any], tolerance: float
) -> list[Any]:
    """Run a step with kernels, and compare what it gives with NumPy's; returns that."""
    targets = symbols_of(fetches)
    found = Program(graph, targets, feeds)(*values)
    expected = Program(graph, targets, feeds, exact=True)(*values)
    for result, wanted in zip(found, expected, strict=True):
        assert np.asarray(result).dtype == np.asarray(wanted).dtype
        scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0)))
        np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * scale)
    return list(found)
