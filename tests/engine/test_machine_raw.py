"""Primitives built by hand (`ab.raw`), run by the dataflow machine on random devices and in random orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from shared.machines import assert_crosses_once, assert_local, assert_nothing_left, fed, graph_on, step_of
from shared.placed_steps import CPUS
from shared.symbols import symbols_of

from anabranch import ops, raw
from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.lower.cluster import cluster
from anabranch.engine.lower.cut import cut
from anabranch.engine.lower.raw import lower_raw
from anabranch.engine.machine.step import Step
from anabranch.engine.passes.framework.prune import needed_operations

graph = graph_on(cpu=4)
n = fed("int32", "n")
p = fed("bool", "p")


def steps(fetches: Sequence[Tensor], feeds: Sequence[Symbol], parallel: int | None = None) -> Iterator[Step]:
    """A step by hand on one device, and several on more."""
    targets = symbols_of(fetches)
    operations = needed_operations(targets[0].graph, targets, feeds)
    for seed in range(8):
        machine = lower_raw(operations, feeds, targets, _places(seed))
        for frame in machine.frames:
            frame.parallel_iterations = parallel or frame.parallel_iterations
        cut(machine)
        if seed % 2:
            cluster(machine)
        assert_crosses_once(machine)
        assert_local(machine)
        yield step_of(machine, seed or None)


def _places(seed: int) -> Callable[[Operation], str]:
    generator, known = random.Random(seed), dict[Operation, str]()
    return lambda operation: known.setdefault(operation, generator.choice(CPUS[: 1 + seed % 4]))


def check(
    fetches: Sequence[Tensor], feeds: Sequence[Symbol], runs: Sequence[tuple[Any, Any]], parallel: int | None = None
) -> None:
    """`runs`: what is fed, and what is expected."""
    for step in steps(fetches, feeds, parallel):
        for values, expected in runs:
            given = [np.asarray(value, tensor.dtype)[()] for tensor, value in zip(feeds, values, strict=True)]
            assert step.run(given) == expected
            assert_nothing_left(step)


def test_a_branch_tells_which_side_it_was(p: Symbol, n: Symbol):
    no, yes = raw.switch(n, p)
    value, index = raw.merge([no * 2, yes + 1])
    check([value, index], [p, n], [((True, 5), [6, 1]), ((False, 5), [10, 0])])


@pytest.mark.parametrize("window", [1, 2, 32])
def test_a_loop(n: Symbol, window: int):
    limit = raw.enter(n, "f", is_constant=True)
    i = raw.merge([raw.enter(0, "f")]).output
    total = raw.merge([raw.enter(n * 10, "f")]).output
    going = raw.loop_cond(i < limit)
    i_out, i_on = raw.switch(i, going)
    total_out, total_on = raw.switch(total, going)
    raw.next_iteration(i_on + 1, into=i)
    raw.next_iteration(total_on + i_on, into=total)
    runs = [((count,), [count, 10 * count + sum(range(count))]) for count in (0, 1, 7)]
    check([raw.exit(i_out), raw.exit(total_out)], [n], runs, window)


@pytest.mark.parametrize("window", [1, 2, 32])
def test_constants_of_which_one_is_dead(n: Symbol, p: Symbol, window: int):
    """A loop takes both sides of a choice that was made before it, and merges them in each iteration."""
    no, yes = (raw.enter(side, "f", is_constant=True) for side in raw.switch(n, p))
    i = raw.merge([raw.enter(n * 0, "f")]).output
    total = raw.merge([raw.enter(n, "f")]).output
    going = raw.loop_cond(i < 4)
    i_on = raw.switch(i, going).output_true
    total_out, total_on = raw.switch(total, going)
    chosen = raw.merge([no * 2, yes * 3]).output
    raw.next_iteration(i_on + 1, into=i)
    raw.next_iteration(total_on + chosen, into=total)
    check([raw.exit(total_out)], [n, p], [((5, True), [65]), ((5, False), [45])], window)


@pytest.mark.parametrize("window", [1, 32])
def test_a_loop_that_is_dead(n: Symbol, p: Symbol, window: int):
    no, yes = raw.switch(n, p)
    i = raw.merge([raw.enter(yes, "f")]).output
    out, on = raw.switch(i, raw.loop_cond(i < 100))
    raw.next_iteration(on * 2, into=i)
    result, index = raw.merge([no, raw.exit(out)])
    check([result, index], [n, p], [((3, True), [192, 1]), ((3, False), [3, 0]), ((100, True), [100, 1])], window)


def test_a_loop_in_a_loop(n: Symbol):
    """``for i in range(4): for j in range(i): x += n``"""
    i, x = raw.merge([raw.enter(0, "outer")]).output, raw.merge([raw.enter(0, "outer")]).output
    step = raw.enter(n, "outer", is_constant=True)
    going = raw.loop_cond(i < 4)
    i_on = raw.switch(i, going).output_true
    x_out, x_on = raw.switch(x, going)
    j, y = raw.merge([raw.enter(0, "inner")]).output, raw.merge([raw.enter(x_on, "inner")]).output
    limit, inner_step = (raw.enter(value, "inner", is_constant=True) for value in (i_on, step))
    again = raw.loop_cond(j < limit)
    j_on = raw.switch(j, again).output_true
    y_out, y_on = raw.switch(y, again)
    raw.next_iteration(j_on + 1, into=j)
    raw.next_iteration(y_on + inner_step, into=y)
    raw.next_iteration(i_on + 1, into=i)
    raw.next_iteration(raw.exit(y_out), into=x)
    check([raw.exit(x_out)], [n], [((count,), [6 * count]) for count in (0, 1, 5)])


def test_vectors_in_a_branch_in_a_loop(n: Symbol):
    i = raw.merge([raw.enter(0, "f")]).output
    x = raw.merge([raw.enter(ops.cast(n, "float32") * ops.ones(3), "f")]).output
    going = raw.loop_cond(i < 5)
    i_on = raw.switch(i, going).output_true
    x_out, x_on = raw.switch(x, going)
    odd, even = raw.switch(x_on, ops.equal(i_on % 2, 0))
    raw.next_iteration(i_on + 1, into=i)
    raw.next_iteration(raw.merge([odd * 2, even + 1]).output, into=x)
    for step in steps([raw.exit(x_out)], [n]):
        np.testing.assert_array_equal(step.run([np.int32(1)])[0], [11, 11, 11])  # 2, 4, 5, 10, 11
