"""Loops of the default graph after the pass `ragged_batches`: which there are, why one was left, and their values."""

from __future__ import annotations

from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph.graph import Operation
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.runtime.interpreter import Interpreter

ROWS, STEPS = 20, 17


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).uniform(-0.9, 0.9, shape).astype("float32")


def lengths_of(kind: str, steps: int = STEPS) -> Any:
    found = {
        "various": np.random.default_rng(3).integers(0, steps + 1, ROWS),
        "none": np.zeros(ROWS),
        "all": np.full(ROWS, steps),
        "one": np.where(np.arange(ROWS) == 5, steps, 0),
    }
    return found[kind].astype("int32")


def loops(fetches: list[Any], feeds: Any) -> list[Operation]:
    """The loops of a prepared step."""
    step = prepare(ab.get_default_graph(), fetches, list(feeds))
    return [operation for operation in step.operations if isinstance(operation.op, While)]


def why_not(fetches: list[Any], feeds: Any) -> str:
    """Return why a loop was left as it is."""
    with recording() as log:
        prepare(ab.get_default_graph(), fetches, list(feeds))
    changes, kept = log.of("ragged_batches")
    assert not changes
    return "\n".join(note.text for note in kept)


def check(fetches: list[Any], feeds: dict[Any, Any]) -> None:
    """The rewritten step means what the graph does, in float64."""
    expected = Interpreter(True).run(ab.get_default_graph(), fetches, feeds)
    step = prepare(ab.get_default_graph(), fetches, list(feeds))
    fed = dict(zip(step.feeds, feeds.values(), strict=True))
    found = Interpreter(True).run(step.fetches[0].operation.graph, step.fetches, fed)
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, 1e-9, 1e-9)
