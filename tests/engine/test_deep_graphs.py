"""Graphs ten thousand operations deep: nothing recurses, from building to reloading, within Python's own limit.

`make test` takes a quarter of the depth and of the limit, `make test-all` also the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of

import anabranch as ab
from anabranch.engine.graph import Graph, Symbol, Tensor, eagerly
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter

Build = Callable[[Tensor, int], Tensor]


@pytest.fixture(params=[1, pytest.param(4, marks=pytest.mark.slow)], ids=["quarter", "whole"])
def scale(request: pytest.FixtureRequest) -> int:
    """Return how many quarters of the whole depth a test takes."""
    return request.param


@pytest.fixture
def on_numpy(scale: int) -> Generator[None]:
    """Bodies of loops are no machine code at a quarter of the depth, as none is at the whole: compiling takes long."""
    with without("native") if scale == 1 else nullcontext():
        yield


@pytest.fixture
def depth(scale: int) -> int:
    """The depth of chains that every part of the engine can afford."""
    return 2_500 * scale


@pytest.fixture(autouse=True)
def graph(scale: int) -> Generator[Graph]:
    before = sys.getrecursionlimit()
    limit = 250 * scale  # the whole is Python's default, whatever the test runner wants
    sys.setrecursionlimit(limit)
    try:
        with Graph().as_default() as graph:
            yield graph
        assert sys.getrecursionlimit() == limit
    finally:
        sys.setrecursionlimit(before)


def depth_of(target: Tensor) -> int:
    """The number of operations on the longest way to `target`, in its own graph."""
    depths: dict[Any, int] = {}
    for operation in symbol_of(target).graph.operations:
        depths[operation] = 1 + max((depths[tensor.operation] for tensor in operation.inputs), default=0)
    return depths[symbol_of(target).operation]


def scalars(x: Tensor, depth: int) -> Tensor:
    for _ in range(depth // 2):
        x = x * 0.9999 + 1e-4
    return x


def vectors(x: Tensor, depth: int) -> Tensor:
    for _ in range(depth):
        x = ab.ops.sin(x)
    return x


def products(x: Tensor, depth: int) -> Tensor:
    weights = ab.constant(np.array([[0.6, -0.8], [0.8, 0.6]], "float32"))
    for _ in range(depth // 2):
        x = ab.ops.tanh(x @ weights)
    return x


def views(x: Tensor, depth: int) -> Tensor:
    for _ in range(depth // 4):
        x = ab.ops.reshape(ab.ops.transpose(ab.ops.reshape(ab.ops.transpose(x), (1, 4))), (2, 2))
    return x


def joined(x: Tensor, depth: int) -> Tensor:
    y = x
    for _ in range(depth // 3):
        y = ab.ops.concatenate([y[1:], y[:1] * x[:1]], axis=0)
    return y


def branches(x: Tensor, depth: int) -> Tensor:
    for _ in range(depth // 20):
        x = ab.cond(x[0, 0] > 0, lambda y=x: ab.ops.sin(y), lambda y=x: ab.ops.cos(y))
    return x


def loops(x: Tensor, depth: int) -> Tensor:
    for _ in range(depth // 50):
        x = ab.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, ab.ops.sin(y)), (0, x))[1]
    return x


def in_loop(x: Tensor, depth: int) -> Tensor:
    return ab.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, products(y, depth)), (0, x))[1]


def in_branch(x: Tensor, depth: int) -> Tensor:
    return ab.cond(x[0, 0] > 0, lambda: vectors(x, depth), lambda: -x)


CHAINS: dict[Build, tuple[int, ...]] = {
    scalars: (),
    vectors: (3,),
    products: (2, 2),
    views: (2, 2),
    joined: (2, 2),
    branches: (2, 2),
    loops: (2, 2),
    in_loop: (2, 2),
    in_branch: (2, 2),
}


def start_of(build: Build) -> Any:
    shape = CHAINS[build]
    return np.linspace(0.5, 0.9, int(np.prod(shape)), dtype="float32").reshape(shape)


def chain(build: Build, depth: int) -> tuple[Symbol, Symbol]:
    x = ab.placeholder(CHAINS[build], "float32", "x")
    return x, symbol_of(build(x, depth))


@pytest.mark.parametrize("build", [scalars, vectors, products, views])
def test_depth(build: Build, depth: int):
    assert depth_of(chain(build, depth)[1]) >= depth


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("build", CHAINS)
def test_values(build: Build, graph: Graph, depth: int, scale: int):
    x, y = chain(build, depth if build in (scalars, views) else 750 * scale)
    value = start_of(build)
    expected = Interpreter().run(graph, [y], {x: value})[0]
    np.testing.assert_allclose(ab.Session().run(y, {x: value}), expected, rtol=2e-5, atol=1e-6)


def test_values_are_those_of_numpy(depth: int):
    value = start_of(vectors)
    x, y = chain(vectors, depth)
    for _ in range(depth):
        value = np.sin(value)
    np.testing.assert_allclose(ab.Session().run(y, {x: start_of(vectors)}), value, rtol=1e-5)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("build", CHAINS)
def test_gradients(build: Build, graph: Graph, scale: int):
    x, y = chain(build, 375 * scale)
    (dx,) = ab.gradients(y, [x])
    value = start_of(build)
    expected = Interpreter(float64=True).run(graph, [dx], {x: value})[0]
    np.testing.assert_allclose(ab.Session().run(dx, {x: value}), expected, rtol=1e-3, atol=1e-6)


def test_gradient_of_ten_thousand_operations(depth: int):
    x, y = chain(scalars, depth)
    (dx,) = ab.gradients(y, [x])
    assert depth_of(dx) >= depth // 2
    np.testing.assert_allclose(ab.Session().run(dx, {x: 1.0}), 0.9999 ** (depth // 2), rtol=1e-3)


def test_second_order(depth: int):
    x, y = chain(vectors, depth // 4)
    (dx,) = ab.gradients(y, [x])
    (ddx,) = ab.gradients(dx, [x])
    assert depth_of(ddx) >= depth // 2
    value, first, second = start_of(vectors).astype("float64"), 1.0, 0.0
    for _ in range(depth // 4):  # of sin(u): u' cos u, and u'' cos u - u' u' sin u
        second = second * np.cos(value) - first * first * np.sin(value)
        first = first * np.cos(value)
        value = np.sin(value)
    np.testing.assert_allclose(ab.Session().run(ddx, {x: start_of(vectors)}), second, rtol=1e-3)


@pytest.mark.usefixtures("on_numpy")
def test_second_order_through_a_loop(graph: Graph, scale: int):
    x, y = chain(in_loop, 300 * scale)
    (dx,) = ab.gradients(y, [x])
    (ddx,) = ab.gradients(ab.ops.sum(dx * dx), [x])
    value = start_of(in_loop) * 1e-2
    assert np.isfinite(ab.Session().run(ddx, {x: value})).all()


@pytest.mark.parametrize("build", CHAINS)
def test_dump(build: Build, graph: Graph, scale: int):
    _, y = chain(build, 500 * scale)
    text = graph.dump(y)
    assert text == graph.dump()
    assert len(text.splitlines()) > 10 * scale


@pytest.mark.parametrize("build", first_of(reversed(CHAINS), 4))
def test_saved_and_loaded(build: Build, graph: Graph, tmp_path: Path, scale: int):
    x, y = chain(build, 300 * scale)
    (dx,) = ab.gradients(y, [x])
    value = start_of(build)
    expected = ab.Session().run([y, dx], {x: value})
    graph.save(tmp_path / "deep.graph")
    loaded = ab.load_graph(tmp_path / "deep.graph")
    assert loaded.dump() == graph.dump()
    for found, wanted in zip(
        ab.Session(loaded).run([symbol_of(y).name, dx.name], {"x:0": value}), expected, strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_ten_thousand_operations_saved_and_loaded(graph: Graph, tmp_path: Path, depth: int):
    x, y = chain(vectors, depth)
    graph.save(tmp_path / "deep.graph")
    loaded = ab.load_graph(tmp_path / "deep.graph")
    assert depth_of(loaded.get_tensor_by_name(symbol_of(y).name)) >= depth
    found = ab.Session(loaded).run(symbol_of(y).name, {"x:0": start_of(vectors)})
    np.testing.assert_array_equal(found, ab.Session().run(y, {x: start_of(vectors)}))


def test_control_dependencies(graph: Graph, depth: int):
    x = ab.placeholder((), "float32", "x")
    y = ab.ops.sin(x)
    for _ in range(depth):
        with ab.control_dependencies([y]):
            y = ab.ops.sin(x)
    np.testing.assert_allclose(ab.Session().run(y, {x: 1.0}), np.sin(np.float32(1)))
    assert len(graph.dump(y).splitlines()) == depth + 2


def test_assignments(depth: int):
    variable = ab.Variable(0.0)
    value = variable.value
    for _ in range(depth // 2):
        value = variable.assign(value + 1.0)
    assert ab.Session().run(value) == depth // 2
    assert float(variable) == depth // 2


def test_tables_in_loops(scale: int):
    """Test whether a captured value is a table is found by following what it is passed on to."""
    table = ab.placeholder((3, 2), "float32", "table")

    def body(i: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        copy = table
        for _ in range(375 * scale):
            copy = ab.ops.cast(ab.ops.cast(copy, "float64"), "float32")
        return i + 1, total + ab.ops.sum(ab.ops.take(copy, [1], axis=0))

    total = ab.while_loop(lambda i, _: i < 2, body, (0, 0.0))[1]
    (found,) = ab.gradients(total, [table])
    rows = ab.Session().run(found, {table: np.ones((3, 2), "float32")})
    np.testing.assert_array_equal(rows, [[0, 0], [2, 2], [0, 0]])


def test_other_roads(scale: int):
    """Functions, forward derivatives, partial runs and what is inside loops."""
    value = start_of(vectors)
    for _ in range(500 * scale):
        value = np.sin(value)
    traced = ab.function(lambda x: vectors(x, 500 * scale))
    with eagerly():
        np.testing.assert_allclose(traced(start_of(vectors)), value, rtol=1e-5)
    x, y = chain(vectors, 500 * scale)
    z = vectors(y, 500 * scale)
    session = ab.Session()
    step = session.partial_run_setup([y, z], [x])
    np.testing.assert_allclose(session.partial_run(step, y, {x: start_of(vectors)}), value, rtol=1e-5)
    assert np.isfinite(session.partial_run(step, z)).all()
    pushed = ab.jvp(lambda x: scalars(x, 500 * scale), (ab.constant(1.0),), (ab.constant(1.0),))[1]
    np.testing.assert_allclose(session.run(pushed), 0.9999 ** (250 * scale), rtol=1e-4)
