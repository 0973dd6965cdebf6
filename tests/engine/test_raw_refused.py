"""Hand-built primitives that do not fit together, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shared.raw_steps import loop, lowered

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as made:
        yield made


def different_frames() -> Any:
    x = ab.placeholder((), "int32")
    return loop("f", 0, lambda i: i < x, lambda i: i + 1)


def two_loops_mixed() -> Any:
    other = raw.merge([raw.enter(0, "g")]).output
    raw.next_iteration(raw.switch(other, other < 3)[1], into=other)
    return loop("f", 0, lambda i: i < other, lambda i: i + 1)


def handed_elsewhere() -> Any:
    i, j = raw.merge([raw.enter(0, "f")]).output, raw.merge([raw.enter(0, "g")]).output
    out, on = raw.switch(i, i < 3)
    raw.next_iteration(on, into=i)
    raw.next_iteration(on, into=j)
    return raw.exit(out) + raw.exit(raw.switch(j, j < 3)[0])


def exit_outside() -> Any:
    return raw.exit(ops.ones(2))


def exit_twice() -> Any:
    return raw.exit(loop("f", 0, lambda i: i < 3, lambda i: i + 1)) + 1


def handed_on_outside() -> Any:
    return raw.merge([raw.next_iteration(ab.placeholder((), "int32"))]).output


def no_next_iteration() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    return raw.exit(raw.switch(i, i < 3)[0])


def no_enter() -> Any:
    x = raw.enter(0, "f", is_constant=True)
    i = raw.merge([x]).output
    raw.next_iteration(raw.switch(i, i < 3)[1], into=i)
    return raw.exit(raw.switch(i, i < 3)[0])


def first_iteration_only() -> Any:
    x = raw.enter(ab.placeholder((), "int32"), "f")
    return loop("f", 0, lambda i: i < x, lambda i: i + 1)


def next_iteration_taken() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    out, on = raw.switch(i, i < 3)
    handed = raw.next_iteration(on + 1, into=i)
    return raw.exit(out + handed)


def waits_for_what_enters() -> Any:
    entered = raw.enter(0, "f")
    i = raw.merge([entered]).output
    with ab.control_dependencies([symbol_of(entered).operation]):
        out, on = raw.switch(i, i < 3)
    raw.next_iteration(on + 1, into=i)
    return raw.exit(out)


def never_ends() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    raw.next_iteration(i + 1, into=i)
    return raw.exit(raw.switch(i, i < 3)[0])


def never_ends_with_a_branch() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    no, yes = raw.switch(i, i < 3)
    raw.next_iteration(raw.merge([no + 1, yes + 2]).output, into=i)
    return raw.exit(no)


def always_leaves() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    raw.next_iteration(raw.switch(i, i < 3)[1], into=i)
    return raw.exit(i + 1)


def two_conditions() -> Any:
    return loop("f", 0, lambda i: ops.logical_and(raw.loop_cond(i < 3), i < 4), lambda i: i + 1)


def two_numbers() -> Any:
    limit = raw.enter(3, "f", is_constant=True, parallel_iterations=4)
    return loop("f", 0, lambda i: i < limit, lambda i: i + 1)


def constant_merged() -> Any:
    return raw.merge([raw.switch(1, True)[0], ops.constant(2)]).output


def fetched_inside() -> Any:
    i = raw.merge([raw.enter(0, "f")]).output
    on = raw.switch(i, i < 3)[1] + 1
    raw.next_iteration(on, into=i)
    return on


def which_frame() -> Any:
    x = ab.placeholder((), "int32")
    outer = raw.merge([raw.enter(x, "f")]).output
    out, on = raw.switch(outer, outer < 5)
    inner = loop("f", on, lambda i: i < 4, lambda i: i + 1)
    raw.next_iteration(inner + 1, into=outer)
    raw.enter(1, "f", is_constant=True)
    two = raw.merge([raw.enter(2, "f")]).output
    raw.next_iteration(raw.switch(two, two < 3)[1], into=two)
    return raw.exit(out) + raw.exit(raw.switch(two, two < 3)[0])


def built_too_late() -> Any:
    pred = ab.placeholder((), "bool")
    limit = raw.enter(5, "f", is_constant=True)
    start = raw.switch(ops.convert_to_tensor(0), pred)[1]
    return loop("f", start, lambda i: i < limit, lambda i: i + 1)


WHERE = r"\(defined at \S*/tests/\w+/\w*raw_\w+\.py:\d+\)"
REFUSED: dict[Callable[[], Any], str] = {
    different_frames: rf"op 'less' {WHERE} takes values of different frames: raw.merge 'merge' {WHERE} in frame 'f' "
    rf"and op 'placeholder' {WHERE} in the step itself. Bring outer tensors into a loop with raw.enter",
    two_loops_mixed: "different frames: .* in frame 'f' and .* in frame 'g'",
    handed_elsewhere: rf"raw.next_iteration 'next_iteration_1' {WHERE}, of frame 'f', hands its value to raw.merge "
    rf"'merge_1' {WHERE}, of frame 'g'. Both have to be in one frame",
    exit_outside: rf"raw.exit 'exit' {WHERE} is in no loop: none of its inputs comes from a raw.enter",
    exit_twice: rf"raw.exit 'exit_1' {WHERE} is in no loop",
    handed_on_outside: "raw.next_iteration 'next_iteration' .* is in no loop",
    no_next_iteration: rf"raw.merge 'merge' {WHERE} takes what raw.enter 'enter' {WHERE} brings into a loop, but no "
    r"raw.next_iteration hands it anything. Write raw.next_iteration\(value, into=merge\)",
    no_enter: "takes one raw.enter that is no constant and one raw.next_iteration. It got 1 of the first, 1 of the",
    first_iteration_only: "brings into the first iteration, and would find nothing in the second one. Pass is_constant",
    next_iteration_taken: "hands to the next iteration. Only raw.merge can take that",
    waits_for_what_enters: "op 'constant_1' .* takes what raw.enter 'enter' .* brings into the first iteration",
    never_ends: rf"raw.next_iteration 'next_iteration' {WHERE} hands on a value in every iteration, so that the loop",
    never_ends_with_a_branch: "hands on a value in every iteration, so that the loop never ends",
    always_leaves: "raw.exit 'exit' .* takes a value that is alive in every iteration",
    two_numbers: rf"'enter_1' {WHERE} has parallel_iterations=10 for frame 'f', and raw.enter 'enter' {WHERE} says 4",
    constant_merged: "takes the constant 'constant_2', which is alive whichever side is taken. Pass it through raw.sw",
    fetched_inside: "op 'add' .* is fetched, but is in frame 'f', where it has a value in every iteration. Fetch",
    which_frame: "takes a constant into frame 'f', and there are 2 of this name: in the step itself and in frame 'f'",
    built_too_late: "and is built before what raw.enter 'enter_1' .* takes there",
}


@pytest.mark.parametrize(("build", "match"), REFUSED.items(), ids=[f.__name__ for f in REFUSED])
def test_what_does_not_fit(build: Callable[[], Any], match: str):
    fetch = build()
    feeds = [o.outputs[0] for o in fetch.graph.operations if o.type == "placeholder"]
    with pytest.raises(ValueError, match=match):
        lowered([fetch], feeds)


def test_two_conditions():
    i = raw.merge([raw.enter(0, "f")]).output
    out, on = raw.switch(i, raw.loop_cond(i < 3))
    raw.next_iteration(raw.switch(on + 1, raw.loop_cond(i < 2))[1], into=i)
    with pytest.raises(ValueError, match=r"'loop_cond_1' .* is the second condition of frame 'f', after raw.loop_cond"):
        lowered([raw.exit(out)])
