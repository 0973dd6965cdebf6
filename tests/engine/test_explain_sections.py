"""Words of `explain(passes=True)` about native code, memory, invariants, live rows and gradients."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.memory import cheap

ops = ab.ops
FILE = __file__.rpartition("/")[2]
compiles = pytest.mark.skipif(not library.usable, reason="llvmlite can't compile on this machine")


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def line() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def section(fetches: Any, name: str) -> list[str]:
    """Return the lines about one pass, without how often it applied and how long it took."""
    told = ab.explain(fetches, passes=True).split(f"\n{name}: ")[1].split("\n")[1:]
    lines = [each.strip() for each in told[: next(k for k, each in enumerate([*told, ""]) if each[:1] != " ")]]
    return [each for each in lines if not re.fullmatch(r"\d+ changes?(, [\d.]+ ms)?", each)]


def loop(body: Any, start: Any, trips: Any = None) -> ab.Tensor:
    n = ab.placeholder((), "int32", "n") if trips is None else trips
    return ab.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, body(v)), (0, start))[1]


# --- native ---------------------------------------------------------------------------------------------------------


@compiles
def test_a_loop_that_is_one_native_function():
    y = loop(lambda v: v * 0.5 + 1.0, 0.0)
    (told,) = section(y, "native")
    assert told.startswith(f"while/while ({FILE}:")
    assert told.endswith("): is one native function of 7 operations")


@compiles
def test_the_operation_that_has_no_native_form():
    x, where = ab.placeholder((8,), "float32", "x"), line() + 1
    y = loop(lambda v: ops.correlate(v, v, "full")[:8] * 0.1, x)
    first, told = section(y, "native")
    assert first == "not moved:"
    assert told.endswith(f"): runs in Python: 'correlate_full' ({FILE}:{where}) has no native form")


@compiles
def test_the_dtype_that_has_no_native_form():
    x = ab.placeholder((8,), "float32", "x")
    y = loop(lambda v: ops.cast(ops.cast(v, "float16") + 2, "float32"), x)
    assert section(y, "native")[1].endswith("has no native form: dtype float16")


@compiles
def test_the_cost_rule():
    x = ab.placeholder((8,), "float32", "x")
    y = loop(lambda v: v * 0.5, x, trips=40)
    assert section(y, "native")[1].endswith(
        "runs in Python: the loops of the step run 120 operations, and from 500 they are compiled at once"
    )


@compiles
def test_what_is_too_large_for_native_code():
    x = ab.placeholder((2000, 2000), "float32", "x")
    y = loop(lambda v: v * 0.5 + 1, x)
    assert section(y, "native")[1].endswith(("runs in Python: its large arrays are worth several cores",
                                             "runs in Python: its arrays are large"))  # fmt: skip


# --- memory ---------------------------------------------------------------------------------------------------------


@compiles
def test_what_is_written_in_place():
    x, w = ab.placeholder((64, 64), "float32", "x"), ab.placeholder((64, 64), "float32", "w")
    y, where = ops.tanh(x @ w) * 2.0, line()
    assert section([y], "memory") == [f"multiply ({FILE}:{where}): is written over 'matmul': 16,384 bytes"]
    with without("memory"):
        assert section([y], "memory") == ["turned off"]


@compiles
def test_what_is_written_into_variables():
    variable = ab.Variable(np.ones((64, 64), "float32"), name="weights")
    step = variable.assign(variable * 0.5 + 1.0)
    (told,) = section([step], "memory")
    assert "into variable 'weights'" in told
    assert told.endswith("16,384 bytes")


@compiles
def test_what_is_computed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cheap, "_LARGE", 0)
    x = ab.placeholder((32, 64), "float64", "x")
    y = loop(lambda v: ops.exp(ops.negative(ops.sin(v)) * 2.0) * v, x, trips=40)
    fetches = [*ab.gradients(ops.sum(y), [x])]
    told = section(fetches, "recompute")
    assert [each for each in told if each.endswith("is computed again in the backward loop, not kept: "
                                                   "16,384 bytes an iteration")]  # fmt: skip
    with without("recompute"):
        assert section(fetches, "recompute") == ["turned off"]
        kept = ab.Session().run(fetches, {x: np.full((32, 64), 0.1)})
    np.testing.assert_allclose(ab.Session().run(fetches, {x: np.full((32, 64), 0.1)})[0], kept[0], rtol=1e-10)


# --- loops ----------------------------------------------------------------------------------------------------------


def test_what_leaves_a_loop_and_what_stays():
    w = ab.placeholder((5, 5), "float32", "w")
    where = line() + 1
    y = loop(lambda v: ops.tanh(v @ ops.inv(ops.sort(w, axis=0))), ops.ones((2, 5)))
    assert section(y, "invariants") == [
        f"sort ({FILE}:{where}): is the same in each iteration: it is computed before the loop",
        "not moved:",
        f"inverse ({FILE}:{where}): is the same in each iteration, but may fail, and the loop may not run",
    ]


def _masked(steps: int) -> tuple[ab.Tensor, int]:
    x = ab.placeholder((steps, 4, 8), "float32", "x")
    lengths, w = ab.placeholder((4,), "int32", "lengths"), ab.placeholder((8, 8), "float32", "w")

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.where((t < lengths)[:, None], ops.tanh(x[t] + h @ w), h)

    return ab.while_loop(lambda t, h: t < steps, body, (0, ops.zeros((4, 8))))[1], line()


def test_ragged_batches(monkeypatch: pytest.MonkeyPatch):
    assume(monkeypatch, ragged_work=0)
    h, where = _masked(20)
    told = " ".join(section(h, "ragged_batches"))
    assert told.startswith(("while/while", "not moved: while/while"))
    assert f"({FILE}:{where})" in told
    assert "loops over the rows that are live" in told or "computes all rows in each step: " in told


def test_an_operation_of_a_gradient_stands_with_the_line_that_it_is_the_gradient_of():
    x, w = ab.placeholder((20, 3, 4), "float32", "x"), ab.placeholder((4, 4), "float32", "w")

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.tanh(x[t] + h @ w)

    h = ab.while_loop(lambda t, h: t < 20, body, (0, ops.zeros((3, 4))))[1]
    product = body.__code__.co_firstlineno + 1
    gradients, where = ab.gradients(ops.sum(h * h), [w]), line()
    told = section(gradients, "fission")
    backward = f"({FILE}:{where}, gradient of {FILE}:{product})"
    assert any(backward in each and "is summed over all iterations after the loop" in each for each in told)
    assert any(
        backward in each and "it takes 'gradient_of_h', which the iteration before makes" in each for each in told
    )


@compiles
def test_nothing_is_said_of_a_kernel_that_holds_one_operation():
    x = ab.placeholder((64, 64), "float32", "x")
    told = ab.explain(ops.softmax(x), passes=True)
    assert "1 operations" not in told
    assert "is one kernel, not several passes over memory" in told
    assert "with 'softmax'" not in told


# --- errors at run time ---------------------------------------------------------------------------------------------


def test_a_product_that_does_not_fit_when_it_runs():
    from anabranch.engine.runtime.program import Program

    a, b = ab.placeholder((None, None), "float32", "a"), ab.placeholder((None, None), "float32", "b")
    match = r"matmul: shapes \[2,3\] and \[4,5\] do not fit: each row of the first has 3 elements, each column of the"
    with pytest.raises(ValueError, match=match):
        Program(a.graph, [symbol_of(a @ b)], [a, b])(np.ones((2, 3), "float32"), np.ones((4, 5), "float32"))


def test_an_index_out_of_range_when_it_runs():
    x, i = ab.placeholder((5, 3), "float32", "x"), ab.placeholder((), "int32", "i")
    with pytest.raises(IndexError, match=r"index 7 .* size 5, in x\[i, 1\], where x is float32\[5,3\], i is 7\."):
        ab.Session().run(x[i, 1], {x: np.ones((5, 3)), i: 7})
    rows = ab.placeholder((2,), "int32", "rows")
    with pytest.raises(IndexError, match=r"size 5, in take\(x, rows, axis=0\), where .* rows is \[1, 9\]\."):
        ab.Session().run(ops.take(x, rows, axis=0), {x: np.ones((5, 3)), rows: [1, 9]})
