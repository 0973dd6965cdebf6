"""Linear functions of what a loop adds up are applied once, to the sum: what leaves loops, and that values stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay")

ops = ab.ops
RNG = np.random.default_rng(3)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return RNG.uniform(-0.5, 0.5, shape).astype(dtype)


def products_in_loops(source: str) -> int:
    """Count the products in the loops of a program."""
    inside = [line for line in source.splitlines() if line.startswith("        ")]
    return sum(" @ " in line or " = run_contraction" in line for line in inside)


def check(fetches: Sequence[Any], feeds: dict[Any, Any], inside: int | None = None, rtol: float = 1e-4) -> Program:
    """The program gives what the exact one does; `inside` products are left in its loops."""
    graph = fetches[0].graph
    with without("pack", "native"):
        program = Program(graph, list(fetches), list(feeds))
    assert inside is None or products_in_loops(program.source) == inside, program.source
    expected = Program(graph, list(fetches), list(feeds), exact=True)(*feeds.values())
    for found in (program(*feeds.values()), Program(graph, list(fetches), list(feeds))(*feeds.values())):
        for value, wanted in zip(found, expected, strict=True):
            assert (np.shape(value), value.dtype) == (np.shape(wanted), wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol / 10)
    return program


def attention(memory: Any, weight: Any, query: Any, steps: int) -> Any:
    """Additive attention whose keys are made in the body, though they are the same in each iteration."""

    def body(t: Any, h: Any) -> Any:
        keys = ops.matmul(memory, weight)
        scores = ops.sum(ops.tanh(keys + ops.expand_dims(h @ query, 1)), axis=-1)
        return t + 1, ops.einsum("bs,bsd->bd", ops.softmax(scores), memory)

    first = ops.zeros((memory.shape[0], memory.shape[2]))
    return ab.while_loop(lambda t, _: t < steps, body, (0, first))[1]


def test_gradients_of_keys_are_products_of_a_sum():
    memory, weight, query = (ab.placeholder(shape, "float32") for shape in ((2, 5, 4), (4, 3), (4, 3)))
    loss = ops.sum(attention(memory, weight, query, 4) ** 2)
    fetches = [loss, *ab.gradients(loss, [memory, weight, query])]
    values = draw(2, 5, 4), draw(4, 3), draw(4, 3)
    # forward h @ query and the context; backward the cotangents of scores and h
    program = check(fetches, dict(zip([memory, weight, query], values, strict=True)), inside=4)
    assert "saved_reshape" not in program.source  # what is the same in each iteration is not gathered


def test_the_sum_is_shared():
    """Two gradients take one sum: that of the cotangents of the product."""
    x, w = ab.placeholder((3, 4), "float32"), ab.placeholder((4, 5), "float32")
    h = ab.while_loop(
        lambda t, _: t < 6, lambda t, h: (t + 1, ops.tanh(h + x @ w)), (0, ops.zeros((3, 5)))
    )[1]  # fmt: skip
    loss = ops.sum(h)
    gradients = ab.gradients(loss, [x, w])
    program = check([loss, *gradients], {x: draw(3, 4), w: draw(4, 5)}, inside=0)
    assert program.source.count(" @ ") == 3  # x @ w, and one product for each gradient


def test_weights_that_are_normalised_in_the_body():
    x, w, gain = (ab.placeholder(shape, "float32") for shape in ((7, 2, 4), (4, 4), (4,)))
    inputs = ab.TensorArray("float32", 7).unstack(x)

    def body(t: Any, h: Any) -> Any:
        unit = w * ops.rsqrt(ops.sum(w * w, axis=0) + 1e-3) * gain
        return t + 1, ops.tanh(inputs.read(t) + h @ unit)

    h = ab.while_loop(lambda t, _: t < 7, body, (0, ops.zeros((2, 4))))[1]
    loss = ops.sum(h * h)
    program = check([loss, *ab.gradients(loss, [w, gain, x])], {x: draw(7, 2, 4), w: draw(4, 4), gain: draw(4)})
    assert products_in_loops(program.source) == 2  # h @ unit, and its cotangent


CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda a, h: a @ h,
    "product by the transpose": lambda a, h: ops.transpose(a) @ h,
    "product from the right": lambda a, h: ops.transpose(h @ a),
    "contraction": lambda a, h: ops.einsum("ij,jk->ki", a, h),
    "factor": lambda a, h: a * h,
    "quotient and sign": lambda a, h: -(h / (a + 2.0)),
    "row": lambda a, h: h[:1] * a,
    "sum": lambda a, h: a + ops.sum(h, axis=0),
    "reshape": lambda a, h: ops.reshape(ops.reshape(a @ h, (-1,)), (4, 4)),
    "broadcast": lambda a, h: ops.broadcast_to(ops.reshape(h[0, 0], (1, 1)), (4, 4)) * a,
    "several": lambda a, h: a @ (a * h) + a * 0.5 - h @ a,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, dtype: str):
    """Sums of linear functions of a state, as users may write them, and their gradients of two orders."""
    a = ab.placeholder((4, 4), dtype)

    def body(t: Any, h: Any, total: Any) -> Any:
        return t + 1, ops.sin(h * 0.9 + 0.1), total + CHAINS[name](a, h)

    first = ops.reshape(ops.cast(ops.arange(16), dtype), (4, 4)) * 0.05
    total = ab.while_loop(lambda t, *_: t < 5, body, (0, first, a * 0.0 + 1.0))[2]
    loss = ops.sum(total * total)
    (slope,) = ab.gradients(loss, [a])
    (second,) = ab.gradients(ops.sum(slope * slope), [a])
    check([total, slope, second], {a: draw(4, 4, dtype=dtype)}, rtol=1e-3 if dtype == "float32" else 1e-10)


def test_what_is_not_linear_stays():
    a = ab.placeholder((4, 4), "float32")

    def body(t: Any, h: Any, total: Any) -> Any:
        return t + 1, ops.tanh(h + 0.1), total + ops.tanh(a @ h) + a @ h * 0.5

    total = ab.while_loop(lambda t, *_: t < 5, body, (0, ops.ones((4, 4)), ops.zeros((4, 4))))[2]
    check([total], {a: draw(4, 4)}, inside=1)


@pytest.mark.parametrize("looks", ["in the body", "in the condition", "at the record"])
def test_a_sum_that_is_looked_at_stays(looks: str):
    a = ab.placeholder((3, 3), "float32")
    seen: list[Any] = []

    def body(t: Any, h: Any, total: Any) -> Any:
        seen[:] = [total]
        more = h + total * 0.1 if looks == "in the body" else h
        return t + 1, ops.tanh(more), total + a @ h

    def goes_on(t: Any, h: Any, total: Any) -> Any:
        return ops.logical_and(t < 5, ops.sum(total) < 1e3) if looks == "in the condition" else t < 5

    total = ab.while_loop(goes_on, body, (0, ops.ones((3, 3)), ops.zeros((3, 3))))[2]
    fetches = [total, *ab.gradients(ops.sum(total * total), [a])]
    with total.graph.as_default():
        feeds = {a: draw(3, 3)}
        if looks != "at the record":
            check(fetches, feeds, inside=None)
            return
        values = ab.Session(total.graph).run([*fetches, seen[0]], feeds)
        record = np.stack(values[-1])
        assert record.shape == (5, 3, 3)
        np.testing.assert_allclose(record[-1], feeds[a] @ _states(4), rtol=1e-4)


def _states(count: int) -> Any:
    """The sum of the first states of the loop above."""
    h, total = np.ones((3, 3)), np.zeros((3, 3))
    for _ in range(count):
        total, h = total + h, np.tanh(h)
    return total


@pytest.mark.parametrize("trips", [0, 1, 6])
def test_number_of_iterations_known_when_it_runs(trips: int):
    """Without iterations the sum is what it starts as, even if the matrix is infinite."""
    a, count = ab.placeholder((3, 3), "float32"), ab.placeholder((), "int32")
    total = ab.while_loop(
        lambda t, *_: t < count,
        lambda t, h, total: (t + 1, ops.tanh(h), total + a @ h),
        (0, ops.ones((3, 3)), ops.ones((3, 3))),
    )[2]
    value = draw(3, 3) if trips else np.full((3, 3), np.inf, "float32")
    check([total], {a: value, count: np.int32(trips)}, inside=0)


def test_nested_loops():
    """Terms that leave the inner loop leave the outer one, too."""
    a = ab.placeholder((3, 3), "float32")

    def inner(t: Any, h: Any, total: Any) -> Any:
        return t + 1, ops.tanh(h), total + a @ h

    def outer(k: Any, h: Any, total: Any) -> Any:
        _, h, total = ab.while_loop(lambda t, *_: t < 4, inner, (0, h, total))
        return k + 1, h * 0.5, total

    total = ab.while_loop(lambda k, *_: k < 3, outer, (0, ops.ones((3, 3)), ops.zeros((3, 3))))[2]
    check([total, *ab.gradients(ops.sum(total), [a])], {a: draw(3, 3)}, inside=0)


def test_a_variable_that_no_iteration_changes_is_no_variable():
    """The cotangent of a sum is the same in each iteration: so is what is computed of it."""
    a, b, first = (ab.placeholder((3, 3), "float32") for _ in range(3))
    out = ab.while_loop(
        lambda t, *_: t < 5,
        lambda t, kept, h, total: (t + 1, kept, ops.tanh(h), total + (h @ b) * (kept @ a)),
        (0, first, ops.ones((3, 3)), ops.zeros((3, 3))),
    )
    kept, total = out[1], out[3]
    program = check([kept, total], {a: draw(3, 3), b: draw(3, 3), first: draw(3, 3)})
    assert products_in_loops(program.source) == 0
    slopes = ab.gradients(ops.sum(total * kept), [a, b, first])
    check([kept, *slopes], {a: draw(3, 3), b: draw(3, 3), first: draw(3, 3)}, rtol=1e-3)


def test_a_variable_that_may_keep_a_loop_from_ending_stays():
    a, first = ab.placeholder((3, 3), "float32"), ab.placeholder((), "float32")
    out = ab.while_loop(
        lambda t, kept, h: ops.logical_and(t < 5, kept < 2.0),
        lambda t, kept, h: (t + 1, kept, ops.tanh(h @ a * kept)),
        (0, first, ops.ones((3, 3))),
    )
    for value in (1, 9):
        program = check([out[1], out[2]], {a: draw(3, 3), first: np.float32(value)})
        assert "while" in program.source


def test_half_types_are_left_alone():
    """Their sums would be rounded elsewhere."""
    a = ab.placeholder((3, 3), "float16")
    total = ab.while_loop(
        lambda t, *_: t < 4,
        lambda t, h, total: (t + 1, ops.tanh(h), total + a @ h),
        (0, ops.ones((3, 3), "float16"), ops.zeros((3, 3), "float16")),
    )[2]
    check([total], {a: draw(3, 3, dtype="float16")}, inside=1, rtol=1e-2)


def test_products_that_were_batched_are_one_product_when_summed():
    """The gradient of a projection of what the loop makes: one product of all rows, not one for each step."""
    x, w, v = (ab.placeholder(shape, "float32") for shape in ((6, 3, 4), (4, 4), (4, 5)))
    inputs = ab.TensorArray("float32", 6).unstack(x)
    written = ab.TensorArray("float32", 6)

    def body(t: Any, h: Any, out: Any) -> Any:
        h = ops.tanh(inputs.read(t) + h @ w)
        return t + 1, h, out.write(t, h @ v)

    out = ab.while_loop(lambda t, *_: t < 6, body, (0, ops.zeros((3, 4)), written))[2].stack()
    loss = ops.sum(out * out)
    program = check([loss, *ab.gradients(loss, [w, v])], {x: draw(6, 3, 4), w: draw(4, 4), v: draw(4, 5)}, inside=2)
    assert "batch_matmul" not in program.source


def test_is_told():
    a = ab.placeholder((4, 4), "float32")
    total = ab.while_loop(
        lambda t, *_: t < 5,
        lambda t, h, total: (t + 1, ops.tanh(h), total + a @ h),
        (0, ops.ones((4, 4)), ops.zeros((4, 4))),
    )[2]
    with total.graph.as_default():
        assert "is linear: it is applied to a sum, after the loop" in ab.explain(total, passes=True)
        with without("fission"):
            assert products_in_loops(ab.explain(total, lines=False)) == 1
