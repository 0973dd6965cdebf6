"""Subnormal numbers: products, convolutions and updates of variables take and make zeros in their place on x86."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library

pytestmark = [
    pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 processors are slow with them"),
]
TINY = np.finfo("float32").tiny


def run(fetches: list[Any], feeds: dict[Any, Any], graph: ab.Graph) -> list[Any]:
    """Results of a step; what NumPy computes afterwards has subnormal numbers, as before."""
    with ab.Session(graph) as session:
        results = session.run(fetches, feeds)
    assert np.float32(1e-30) * np.float32(1e-10) > 0
    return results


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("size", [70, 400])  # one part, and several
def test_products_flush(size: int, transpose_a: bool) -> None:
    with ab.Graph().as_default() as graph:
        a, b = (ab.placeholder((size, size), "float32", name) for name in "ab")
        y = (ab.ops.transpose(a) if transpose_a else a) @ b
    few, many = np.full((size, size), 1e-23, "float32"), np.full((size, size), 1.0, "float32")
    (small,) = run([y], {a: few, b: few}, graph)  # each term is 1e-46
    np.testing.assert_array_equal(small, 0)
    (small,) = run([y], {a: few * 1e-18, b: many}, graph)  # of subnormal numbers
    np.testing.assert_array_equal(small, 0)
    (kept,) = run([y], {a: few, b: few * 1e-14}, graph)
    np.testing.assert_array_equal(kept, 0)
    (kept,) = run([y], {a: few, b: few * 1e9}, graph)
    np.testing.assert_allclose(kept, size * 1e-37, rtol=1e-5)


def test_convolutions_flush() -> None:
    with ab.Graph().as_default() as graph:
        x, kernel = ab.placeholder((4, 16, 16, 32), "float32", "x"), ab.placeholder((3, 3, 32, 32), "float32", "w")
        y = ab.ops.conv(x, kernel, padding="same")
        dy = ab.placeholder(y.shape, "float32", "dy")
        fetches = [y, *ab.gradients(y, [x, kernel], dy)]
    places: list[Any] = [x, kernel, dy]
    values = {place: np.full(place.shape, 1e-21, "float32") for place in places}  # each term is 1e-42
    for result in run(fetches, values, graph):
        np.testing.assert_array_equal(result, 0)


@pytest.mark.parametrize("optimizer", [ab.optimizers.Adam, lambda rate: ab.optimizers.SGD(rate, momentum=0.9)])
@pytest.mark.parametrize("count", [1, 3])
def test_running_means_do_not_become_subnormal(optimizer: Any, count: int) -> None:
    """0.9 of the least numbers is rounded back to them: without a gradient a mean stayed subnormal for ever."""
    with ab.Graph().as_default() as graph:
        variables = [ab.Variable(np.ones((160, 160), "float32")) for _ in range(count)]
        places = [ab.placeholder((160, 160), "float32", f"x_{k}") for k in range(count)]
        loss = sum(ab.ops.sum(v * x) for v, x in zip(variables, places, strict=True))
        made = optimizer(0.01)
        update = made.minimize(loss, variables)
    slots = [slot for slot in made.variables if "momentum" in slot.name]
    assert len(slots) == count
    with ab.Session(graph) as session:
        step = session.make_callable([update], places)
        step(*[np.ones((160, 160), "float32")] * count)
        assert all(slot.numpy().all() for slot in slots)
        for _ in range(1000):
            step(*[np.zeros((160, 160), "float32")] * count)
        for slot in slots:
            found = np.abs(slot.numpy())
            assert np.all((found == 0) | (found >= TINY))
            assert np.all(found < 1e-36)
    assert np.float32(1e-30) * np.float32(1e-10) > 0


def test_elementwise_operations_keep_them() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((300, 300), "float32", "x")
        y = x * 0.5 + x * 0.25
    (found,) = run([y], {x: np.full((300, 300), TINY, "float32")}, graph)
    np.testing.assert_allclose(found, 0.75 * TINY, rtol=1e-6)
