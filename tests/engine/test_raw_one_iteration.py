"""Frames into which nothing hands a next iteration have one, as TensorFlow's: what enters leaves again."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import raw
from anabranch.engine.graph import Graph, Tensor

X = np.array([1, 2], "float32")


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph
    ab.config.set_devices()


def computed(x: Tensor) -> Any:
    return raw.exit(raw.enter(x, "f") * 2 + 1)


def handed_through(x: Tensor) -> Any:
    return raw.exit(raw.enter(x, "f"))


def two_variables(x: Tensor) -> Any:
    return raw.exit(raw.enter(x, "f") + raw.enter(x * 2, "f", is_constant=True))


def constants_alone(x: Tensor) -> Any:
    return raw.exit(raw.enter(x, "f", is_constant=True) * 2)


def constant_inside(x: Tensor) -> Any:
    return raw.exit(raw.enter(x, "f") + ab.constant([1.0, 2.0]))


def nested(x: Tensor) -> Any:
    return raw.exit(raw.exit(raw.enter(raw.enter(x, "f") + 1, "g") * 3))


def two_results(x: Tensor) -> Any:
    inside = raw.enter(x, "f")
    return [raw.exit(inside * 2), raw.exit(inside * 3), x + 1]


def on_two_devices(x: Tensor) -> Any:
    with ab.device("sim:0"):
        inside = raw.enter(x, "f") * 2
    with ab.device("sim:1"):
        return raw.exit(inside + 1)


CASES: dict[Callable[[Tensor], Any], Any] = {
    computed: [3, 5],
    handed_through: [1, 2],
    two_variables: [3, 6],
    constants_alone: [2, 4],
    constant_inside: [2, 4],
    nested: [6, 9],
    two_results: [[2, 4], [3, 6], [2, 3]],
    on_two_devices: [3, 5],
}


@pytest.mark.parametrize("build", CASES)
@pytest.mark.parametrize("cpus", [1, 2])
def test_what_enters_leaves(build: Callable[[Tensor], Any], cpus: int):
    ab.config.set_devices(cpu=cpus, sim=2)
    x = ab.placeholder((2,), "float32", "x")
    session, fetches = ab.Session(), build(x)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(fetches, {x: X}), CASES[build])


def test_a_branch_inside():
    x, flag = ab.placeholder((2,), "float32", "x"), ab.placeholder((), "bool", "flag")
    off, on = raw.switch(raw.enter(x, "f"), raw.enter(flag, "f"))
    y = raw.exit(raw.merge([off * 2, on * 3]).output)
    assert [ab.Session().run(y, {x: X, flag: taken}).tolist() for taken in (False, True)] == [[2, 4], [3, 6]]


def test_what_is_dead_inside_is_dead_outside():
    flag = ab.placeholder((), "bool", "flag")
    y = raw.exit(raw.switch(raw.enter(7, "f"), raw.enter(flag, "f")).output_false)
    assert ab.Session().run(y, {flag: False}) == 7
    with pytest.raises(ValueError, match="'exit' was fetched, but it is dead"):
        ab.Session().run(y, {flag: True})


def test_a_frame_of_one_iteration_inside_a_loop():
    n = ab.placeholder((), "int32", "n")
    i = raw.merge([raw.enter(0, "loop")]).output
    out, on = raw.switch(i, raw.loop_cond(i < raw.enter(n, "loop", is_constant=True)))
    raw.next_iteration(raw.exit(raw.enter(on, "inner") + 2), into=i)
    assert ab.Session().run(raw.exit(out), {n: 5}) == 6


def test_what_lies_inside_is_not_fetched():
    x = ab.placeholder((2,), "float32", "x")
    with pytest.raises(ValueError, match=r"is fetched, but is in .*Fetch raw.exit"):
        ab.Session().run(raw.enter(x, "f") * 2, {x: X})
