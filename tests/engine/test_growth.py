"""Growth of the work of preparing a step with its program: twice the program, about twice the calls of functions.

Calls are counted, not time: they are the same in each run. What would be quadratic makes four times as many.
The counts leave out what happens now and then, such as collections of garbage, or making room among kept kernels.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shared.examples import examples
from shared.growing_programs import PROGRAMS, Built
from shared.sample import first_of

import anabranch as ab
from anabranch.engine.graph.tensor import Symbol
from anabranch.engine.passes.framework import pipeline
from anabranch.engine.passes.framework.driver import Rule, apply_rules
from anabranch.engine.passes.framework.observe import VERIFY
from anabranch.engine.passes.framework.rewriter import Rewriter
from anabranch.engine.passes.fusion import fuse
from anabranch.engine.runtime import analyses
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.releases import last_reads

MOST = 2.45  # times the calls for twice the program

SIZES = {
    "scalar loop": examples(50, 100),
    "nested conds": examples(4, 5),
    "chains": examples(120, 250),
    "loops in a row": examples(8, 15),
    "scalar chain": examples(100, 200),
    "layer stack": examples(5, 10),
    "variables": examples(6, 12),
    "nested loops": examples(2, 3),
}


def calls_of(run: Callable[[], Any]) -> int:
    """Count the calls of functions, of Python and of C, that a call of `run` makes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


def calls_of_preparing(build: Callable[[int], Built], size: int) -> int:
    """Count the calls from a graph to the program of its step, once all that is kept for later ones is at hand."""
    counts: list[int] = []
    for _ in range(2):
        with ab.Graph().as_default() as graph:
            fetches, x = build(size)
            session = ab.Session(graph)
            counts.append(calls_of(lambda: session.program(fetches, [x])))  # noqa: B023 (called at once)
    return min(counts)


def twice(name: str) -> int:
    """The size of a program twice as large: each level of conditions doubles them."""
    return SIZES[name] + 1 if name == "nested conds" else 2 * SIZES[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_the_program_takes_twice_the_calls(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VERIFY, "0")  # calls of the verifier, which users do not have, would hide others
    build, size = PROGRAMS[name], SIZES[name]
    assert calls_of_preparing(build, twice(name)) < MOST * calls_of_preparing(build, size)


def test_groups_look_up_what_is_used_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many such tensors as groups: no group may copy them all, or walk over them."""

    class Lookups:
        def __init__(self, found: set[Symbol]) -> None:
            self._found = found

        def __contains__(self, tensor: Symbol) -> bool:
            return tensor in self._found

    made = fuse._rewrite_of
    monkeypatch.setattr(fuse, "_rewrite_of", lambda block, group, used: made(block, group, Lookups(used)))
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4, 6), "float32", "x")
        y = ab.ops.tanh(x) + 1.0
        fetches = [ab.ops.reshape(y, (24,)) * 2.0, y]
        found = ab.Session(graph).program(fetches, [x])(np.ones((4, 6), "float32"))
    np.testing.assert_allclose(found[0], np.full(24, 2 * np.tanh(1.0) + 2), rtol=1e-6)


def test_last_reads_of_many_histories_are_found_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of a backward loop reads as many histories as it has operations."""
    counts: list[int] = []

    def counted(*arguments: Any) -> Any:
        counts[-1] += calls_of(lambda: last_reads(*arguments))
        return last_reads(*arguments)

    monkeypatch.setattr(analyses, "last_reads", counted)
    for size in (100, 200):
        counts.append(0)
        with ab.Graph().as_default() as graph:
            fetches, x = PROGRAMS["scalar loop"](size)
            ab.Session(graph).program(fetches, [x])
    small, large = counts
    assert 0 < large < MOST * small


def test_epilogues_look_up_where_variables_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer has a product, and two variables that its step writes."""
    counts: list[int] = []

    def counted(step: Rewriter, rules: Sequence[Rule], name: str) -> int:
        if name != "epilogues":
            return apply_rules(step, rules, name)
        found: list[int] = []
        counts.append(calls_of(lambda: found.append(apply_rules(step, rules, name))))
        return found[0]

    monkeypatch.setattr(pipeline, "apply_rules", counted)
    for size in (100, 200):
        with ab.Graph().as_default() as graph:
            fetches, x = PROGRAMS["layer stack"](size)
            ab.Session(graph).program(fetches, [x])
    small, large = counts
    assert 0 < large < MOST * small


def _compiled(graph: ab.Graph, fetches: list[Any], feeds: dict[Any, Any]) -> Any:
    return ab.Session(graph).run(fetches, feeds)


@pytest.mark.parametrize("name", first_of(PROGRAMS, 4))
def test_large_programs_mean_what_the_interpreter_says(name: str):
    build, size = PROGRAMS[name], twice(name)
    results: list[list[Any]] = []
    for run in (_compiled, Interpreter().run):
        with ab.Graph().as_default() as graph:  # each with variables of its own
            fetches, x = build(size)
            value = np.linspace(0.1, 0.5, int(np.prod(x.shape)), dtype="float32").reshape(x.shape)
            results.append(list(run(graph, fetches, {x: value})))
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)  # the results of operations
        if one is not None and other is not None:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
