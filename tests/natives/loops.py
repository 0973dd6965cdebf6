"""Loops that become native regions, compared with the exact program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.runtime.program import Program

RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return RNG.uniform(-1, 1, shape).astype(dtype)


def check(build: Callable[..., Any], *values: Any, rtol: float = 1e-5, native: int = 1) -> Program:
    """The program with native regions gives what the exact one does."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        built = build(*feeds)
        targets = list(built) if isinstance(built, (tuple, list)) else [built]
    program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") >= native, program.source
    expected = Program(graph, targets, feeds, exact=True)(*values)
    for _ in range(2):
        for value, wanted in zip(program(*values), expected, strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol)
    return program


def repeated(body: Callable[[Any], Any], count: int = 3) -> Callable[[Any], Any]:
    return lambda x: ab.while_loop(lambda i, x: i < count, lambda i, x: (i + 1, body(x)), (0, x))
