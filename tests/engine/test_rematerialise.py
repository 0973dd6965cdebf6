"""Values that the kernel of a gradient computes again: results, and which programs keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

ops = ab.ops
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": ops.gelu,
    "exact gelu": lambda x: ops.gelu(x, approximate=False),
    "silu": lambda x: ops.silu(x),
    "silu of a product": lambda x: ops.silu(x * 0.7) * x,
    "mish": lambda x: x * ops.tanh(ops.softplus(x)),
    "a square": lambda x: ops.tanh(x) * ops.square(x) * x,
}


def _step(activation: Callable[[Any], Any], dtype: str, rows: int = 256) -> tuple[Any, ...]:
    """A layer with a bias between two products, and its gradients: graph, fetches, feeds and values."""
    rng = np.random.default_rng(3)
    shapes = [(rows, 40), (40, 640), (640,), (640, 30)]
    values = [rng.normal(size=shape).astype(dtype) * 0.3 for shape in shapes]
    with ab.Graph().as_default() as graph:
        x, up, bias, down = [ab.placeholder(shape, dtype) for shape in shapes]
        y = activation(x @ up + bias) @ down
        fetches = [symbol_of(each) for each in (y, *ab.gradients(ops.sum(y * y), [x, up, bias, down]))]
    return graph, fetches, [x, up, bias, down], values


def _notes(step: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
    """Return the results of a step, and the notes of the pass."""
    graph, fetches, feeds, values = step
    with recording() as log:
        program = Program(graph, fetches, feeds)
    return list(program(*values)), [note.text for note in log.changes if note.pass_name == "rematerialise"]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_between_products(name: str, dtype: str) -> None:
    """Against the interpreter in float64, and bit by bit against kernels that read what was kept."""
    step = _step(ACTIVATIONS[name], dtype)
    found, notes = _notes(step)
    assert len(notes) == 1
    graph, fetches, feeds, _ = _step(ACTIVATIONS[name], "float64")
    precise = Program(graph, fetches, feeds, exact=True)(*[value.astype("float64") for value in step[-1]])
    for result, wanted in zip(found, precise, strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(result, wanted, rtol=0, atol=(2e-5 if dtype == "float32" else 1e-12) * scale)
    with without("recompute"):
        kept, none = _notes(_step(ACTIVATIONS[name], dtype))
    assert not none
    for result, wanted in zip(found, kept, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_few_elements_are_kept() -> None:
    assert not _notes(_step(ops.gelu, "float32", rows=16))[1]


@pytest.mark.parametrize(("groups", "is_kept"), [(8, True), (2, False)])
def test_a_kernel_that_goes_along_few_elements_reads_what_is_kept(groups: int, is_kept: bool) -> None:
    """Vectors of the channels of a small group are mostly empty: functions of them take several times as long."""
    shapes = [(4, 32, 32, groups, 32 // groups), (32,), (32, 8)]
    values = [np.random.default_rng(k).normal(size=shape).astype("float32") for k, shape in enumerate(shapes)]
    with ab.Graph().as_default() as graph:
        x, gains, w = [ab.placeholder(shape, "float32") for shape in shapes]
        centred = x - ops.mean(x, axis=(1, 2, 4), keepdims=True)
        y = ops.silu(ops.reshape(centred, (4, 32, 32, 32)) * gains) @ w
        fetches = [symbol_of(each) for each in ab.gradients(ops.sum(y * y), [x, gains])]
    _, notes = _notes((graph, fetches, [x, gains, w], values))
    assert is_kept == (not notes)


def test_a_loop_that_reads_a_value_keeps_it() -> None:
    """One more reader, which is no kernel that reads the argument."""
    x = np.random.default_rng(0).normal(size=(256, 640)).astype("float32")
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "float32")
        gate = ops.sigmoid(fed)
        y = ops.cumsum(fed * gate, axis=0)
        (slope,) = ab.gradients(ops.sum(y * y), fed)
        summed = ab.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, s * 0.5 + gate[i]), (0, gate[0]))[1]
        fetches = [symbol_of(slope), symbol_of(summed)]
    found, _ = _notes((graph, fetches, [fed], [x]))
    for result, wanted in zip(found, Program(graph, fetches, [fed], exact=True)(x), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-3)


def test_a_second_gradient() -> None:
    rng = np.random.default_rng(1)
    values = [rng.normal(size=shape).astype("float64") * 0.2 for shape in ((256, 30), (30, 640))]
    with ab.Graph().as_default() as graph:
        x, w = [ab.placeholder(value.shape, "float64") for value in values]
        y = ops.gelu(x @ w)
        (first,) = ab.gradients(ops.sum(y * y), x)
        fetches = [symbol_of(each) for each in ab.gradients(ops.sum(first * first), [x, w])]
    found, _ = _notes((graph, fetches, [x, w], values))
    for result, wanted in zip(found, Program(graph, fetches, [x, w], exact=True)(*values), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())
