"""Packed weights: which products of loops use them, where they are packed, what is added on the way, and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.graph import Graph, Operation
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.packed import Layout, Pack, PackedMatMul
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion.fuse import FusionRule
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay")

ops = ab.ops
RNG = np.random.default_rng(0)
needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


class PackAll(FusionRule):
    """Packs every weight, in small blocks and panels; fuses nothing."""

    def can_fuse(self, op: Any, inputs: Any, output: Any) -> bool:
        return False

    def layout(self, rows: int | None, weight: Any, transpose: bool) -> Layout | None:
        terms, columns = weight.shape[::-1] if transpose else weight.shape
        return Layout(terms, columns, 2, 3)


def draw(*shape: int) -> Any:
    return RNG.uniform(-0.5, 0.5, shape).astype("float32")


def feed(*shape: int) -> tuple[Any, Any]:
    return ab.placeholder(shape, "float32"), draw(*shape)


def prepared(fetches: Sequence[Any], feeds: Sequence[Any], rule: FusionRule | None = None, **options: Any) -> Step:
    return prepare(ab.get_default_graph(), fetches, feeds, None, rule or PackAll(), **options)


def of_type(operations: Sequence[Operation], kind: type[Any]) -> list[Operation]:
    return [operation for operation in operations if isinstance(operation.op, kind)]


def inside(step: Step) -> list[Operation]:
    return [o for o in all_operations(step.operations) if o not in set(step.operations)]


def run(step: Step, values: Sequence[Any]) -> Sequence[Any]:
    """By the interpreter: what the operations mean, without kernels."""
    return Interpreter().run(step.operations[0].graph, step.fetches, dict(zip(step.feeds, values, strict=True)))


def check(fetches: Sequence[Any], feeds: dict[Any, Any], **options: Any) -> Step:
    """The step with packed weights means what it meant."""
    step = prepared(fetches, list(feeds), **options)
    values = list(feeds.values())
    wanted = Program(ab.get_default_graph(), fetches, list(feeds), exact=True)(*values)
    for got, right in zip(run(step, values), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
    return step


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


def loop(step: Callable[[Any], Any], start: Any, steps: Any = 4) -> Any:
    return ab.while_loop(lambda i, _: i < steps, lambda i, h: (i + 1, step(h)), (0, start))[1]


def test_weight_is_packed_before_the_loop():
    (w, w_value), (h, h_value) = feed(5, 5), feed(2, 5)
    step = check([loop(lambda x: ops.tanh(x @ w), h)], {w: w_value, h: h_value})

    (pack,) = of_type(step.operations, Pack)
    (product,) = of_type(inside(step), PackedMatMul)
    assert pack.op == Pack(Layout(5, 5, 2, 3))
    assert product.op == PackedMatMul(Layout(5, 5, 2, 3))
    assert not of_type(inside(step), Pack)
    assert len(product.inputs) == 2
    (holder,) = [operation for operation in step.operations if operation.type == "while"]
    assert w.operation.name not in [
        tensor.operation.name for tensor in holder.inputs
    ]  # only its packed form is taken in
    assert step.operations.index(pack) < step.operations.index(holder)


def test_gradient_loop_has_the_transpose_packed():
    (w, w_value), (h, h_value) = feed(5, 6), feed(2, 5)
    (v, v_value) = feed(6, 5)
    y = ops.sum(loop(lambda x: ops.tanh(ops.tanh(x @ w) @ v), h) ** 2)
    step = check([y, *ab.gradients(y, [w, v, h])], {w: w_value, v: v_value, h: h_value})

    forms = {(o.op.layout.rows, o.op.layout.columns, o.op.transpose) for o in of_type(step.operations, Pack)}  # type: ignore[attr-defined]
    assert forms == {(5, 6, False), (6, 5, False), (6, 5, True), (5, 6, True)}
    assert len(of_type(inside(step), PackedMatMul)) == 4


def test_second_order_gradients():
    (w, w_value), (h, h_value) = feed(3, 3), feed(2, 3)
    y = ops.sum(loop(lambda x: ops.tanh(x @ w), h, 3) ** 2)
    (dw,) = ab.gradients(y, [w])
    step = check(ab.gradients(ops.sum(dw * dw), [w, h]), {w: w_value, h: h_value})
    assert of_type(inside(step), PackedMatMul)


def test_one_packed_form_serves_all_products_of_a_weight():
    (w, w_value), (h, h_value) = feed(4, 4), feed(2, 4)
    first = loop(lambda x: ops.tanh(x @ w) @ w, h)
    second = loop(lambda x: ops.sigmoid(x @ w), h)
    step = check([first, second], {w: w_value, h: h_value})
    assert len(of_type(step.operations, Pack)) == 1
    assert len(of_type(inside(step), PackedMatMul)) == 3


def test_nested_loops_pack_in_front_of_the_outermost():
    (w, w_value), (h, h_value) = feed(4, 4), feed(2, 4)
    step = check([loop(lambda x: loop(lambda y: ops.tanh(y @ w), x + 1.0, 2), h)], {w: w_value, h: h_value})
    assert len(of_type(step.operations, Pack)) == 1
    assert not of_type(inside(step), Pack)


def test_what_an_outer_loop_changes_is_packed_inside_it():
    (h, h_value), (w, w_value) = feed(2, 4), feed(4, 4)

    def body(i: Any, w: Any, x: Any) -> Any:
        return i + 1, ops.tanh(w), loop(lambda y: ops.tanh(y @ w), x, 2)

    result = ab.while_loop(lambda i, *_: i < 3, body, (0, w, h))[2]
    step = check([result], {w: w_value, h: h_value})
    assert not of_type(step.operations, Pack)
    assert len(of_type(inside(step), Pack)) == 1


def test_products_in_branches_inside_a_loop():
    (w, w_value), (h, h_value) = feed(4, 4), feed(2, 4)
    step = check(
        [loop(lambda x: ab.cond(ops.sum(x) > 0.0, lambda: ops.tanh(x @ w), lambda: x + 1.0), h)],
        {w: w_value, h: h_value},
    )
    assert len(of_type(step.operations, Pack)) == 1
    assert len(of_type(inside(step), PackedMatMul)) == 1


def test_products_outside_of_loops_stay():
    (w, w_value), (h, h_value) = feed(4, 4), feed(2, 4)
    step = check([ab.cond(ops.sum(h) > 0.0, lambda: h @ w, lambda: h)], {w: w_value, h: h_value})
    assert not of_type(list(all_operations(step.operations)), Pack)


@pytest.mark.parametrize("device", ["cpu:0", "/job:ps/task:0"])
def test_only_weights_that_stay_on_a_task_are_packed_for_scheduled_functions(device: str):
    x, w = ab.placeholder((4, 8), "float32"), ab.Variable(np.eye(8, dtype="float32"))

    def body(i: Any, h: Any) -> Any:
        return i + 1, ab.dynamic_schedule(lambda rows: rows @ w, h, devices=[device])

    step = prepared([ab.while_loop(lambda i, h: i < 3, body, (0, x))[1]], [x])
    assert bool(of_type(step.operations, Pack)) == (device == "cpu:0")  # another task keeps the value of the variable


def test_weight_that_the_loop_assigns_is_not_packed():
    w = ab.Variable(draw(4, 4))
    (h, h_value) = feed(2, 4)

    def step(x: Any) -> Any:
        y = ops.tanh(x @ w)
        w.assign(w * 0.9)
        return y

    result = loop(step, h)
    prepared_step = prepared([result], [h])
    assert not of_type(list(all_operations(prepared_step.operations)), Pack)
    before = w.numpy().copy()
    wanted = h_value
    for k in range(4):
        wanted = np.tanh(wanted @ (before * np.float32(0.9) ** k))
    np.testing.assert_allclose(ab.Session().run(result, {h: h_value}), wanted, rtol=1e-4)


def test_weight_that_is_assigned_after_the_loop_is_packed_as_it_was():
    w = ab.Variable(draw(90, 90))
    (h, h_value) = feed(40, 90)
    result = loop(lambda x: ops.tanh(x @ w), h)
    before = w.numpy().copy()
    changed = w.assign(w + ops.sum(result))
    wanted = h_value
    for _ in range(4):
        wanted = np.tanh(wanted @ before)
    found, new = ab.Session().run([result, changed], {h: h_value})
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(new, before + wanted.sum(), rtol=1e-3)


@pytest.mark.parametrize("is_first", [False, True])
def test_addition_is_done_by_the_product(is_first: bool):
    (w, w_value), (h, h_value), (c, c_value) = feed(4, 4), feed(2, 4), feed(2, 4)
    result = loop(lambda x: ops.tanh((x @ w + c) if is_first else (c + x @ w)), h)
    step = check([result], {w: w_value, h: h_value, c: c_value})
    (product,) = of_type(inside(step), PackedMatMul)
    assert len(product.inputs) == 3
    (body,) = [
        region for o in step.operations for region in o.op.regions if any(p.type == "tanh" for p in region.operations)
    ]
    assert [operation.type for operation in body.operations].count("add") == 1  # of the counter


def test_two_additions_are_done_by_the_product():
    (w, w_value), (h, h_value), (c, c_value), (b, b_value) = feed(4, 4), feed(2, 4), feed(2, 4), feed(4)
    step = check([loop(lambda x: (x @ w + c) + b, h)], {w: w_value, h: h_value, c: c_value, b: b_value})
    (product,) = of_type(inside(step), PackedMatMul)
    assert len(product.inputs) == 4


def test_sum_of_two_products_is_one_chain():
    (w, w_value), (u, u_value), (h, h_value) = feed(4, 4), feed(4, 4), feed(2, 4)
    step = check([loop(lambda x: ops.tanh(ops.sin(x) @ w + x @ u), h)], {w: w_value, u: u_value, h: h_value})
    assert sorted(len(o.inputs) for o in of_type(inside(step), PackedMatMul)) == [2, 3]


@pytest.mark.parametrize("form", ["squared", "column", "twice", "recorded"])
def test_additions_that_kernels_can_not_do_stay(form: str):
    (w, w_value), (h, h_value), (c, c_value) = feed(4, 4), feed(2, 4), feed(2, 1)
    seen: list[Any] = []

    def step(x: Any) -> Any:
        product = x @ w
        seen.append(product)
        if form == "squared":
            return ops.tanh(product + product)
        if form == "column":
            return ops.tanh(product + c)
        return ops.tanh(product + x) * (product if form == "twice" else x)

    result = loop(step, h)
    fetches = [result, seen[0]] if form == "recorded" else [result]
    if form == "recorded":
        found = ab.Session().run(fetches, {w: w_value, h: h_value})
        np.testing.assert_allclose(found[1][0], h_value @ w_value, rtol=1e-4, atol=1e-5)
        return
    feeds = {w: w_value, h: h_value} | ({c: c_value} if form == "column" else {})
    packed_step = check(fetches, feeds)
    assert [len(o.inputs) for o in of_type(inside(packed_step), PackedMatMul)] == [2]


def test_off_for_exact_steps_and_by_its_switch():
    (w, _), (h, _) = feed(4, 4), feed(2, 4)
    result = loop(lambda x: ops.tanh(x @ w), h)
    assert not of_type(prepared([result], [w, h], reassociate=False).operations, Pack)
    with without("pack"):
        assert not of_type(prepared([result], [w, h]).operations, Pack)
    assert of_type(prepared([result], [w, h]).operations, Pack)


def test_only_on_processors():
    (w, _), (h, _) = feed(4, 4), feed(2, 4)
    result = loop(lambda x: ops.tanh(x @ w), h)
    for device, count in (("/device:GPU:0", 0), ("/device:CPU:0", 1)):
        step = prepared([result], [w, h], assign=lambda operations, _, d=device: dict.fromkeys(operations, d))
        assert len(of_type(step.operations, Pack)) == count, device


# --- programs --------------------------------------------------------------------------------------------------------


def recurrence(rows: int, inputs: int, units: int, steps: int) -> tuple[list[Any], dict[Any, Any]]:
    """Loss and gradients of a cell of gates over fed values."""
    feeds = dict(
        feed(*shape) for shape in ((steps, rows, inputs), (inputs, 2 * units), (units, 2 * units), (2 * units,))
    )
    x, w, u, b = feeds
    elements = ab.TensorArray("float32", steps).unstack(x)

    def body(t: Any, h: Any) -> Any:
        z = elements.read(t) @ w + h @ u + b
        return t + 1, ops.sigmoid(z[:, :units]) * ops.tanh(z[:, units:]) + 0.5 * h

    loss = ops.sum(ab.while_loop(lambda t, _: t < steps, body, (0, ops.zeros((rows, units))))[1] ** 2)
    return [loss, *ab.gradients(loss, list(feeds))], feeds


@needs_kernels
@pytest.mark.parametrize(("rows", "units"), [(32, 96), (7, 200), (200, 64)])
def test_programs_compute_the_same(rows: int, units: int):
    fetches, feeds = recurrence(rows, 20, units, 6)
    graph: Graph = ab.get_default_graph()
    program = Program(graph, fetches, list(feeds))
    assert "packed_mat_mul" in program.source
    values = list(feeds.values())
    for _ in range(2):
        for got, wanted in zip(
            program(*values), Program(graph, fetches, list(feeds), exact=True)(*values), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-4)


@needs_kernels
def test_many_rows_and_small_weights_are_not_packed():
    for rows, units in [(1100, 64), (1, 300), (4, 16)]:
        (w, _), (h, _) = feed(units, units), feed(rows, units)
        result = loop(lambda x, w=w: ops.tanh(x @ w), h)
        assert "packed_mat_mul" not in Program(ab.get_default_graph(), [result], [w, h]).source


@needs_kernels
def test_weights_that_would_be_transposed_are_packed_for_few_rows_only():
    for rows, sides in [(200, 2), (300, 1)]:
        (w, _), (h, _) = feed(64, 64), feed(rows, 64)
        loss = ops.sum(loop(lambda x, w=w: ops.tanh(x @ w), h, 20))
        source = Program(ab.get_default_graph(), [symbol_of(loss), *ab.gradients(loss, [h])], [w, h]).source
        assert source.count("# packed_mat_mul") == sides


def shrinking(units: int, act: Callable[[Any], Any]) -> tuple[list[Any], list[Any]]:
    """A loop over rows that get fewer, with its gradients; and what it is fed."""
    x, w, b = (ab.placeholder(shape, "float32") for shape in [(None, units), (units, units), (units,)])
    h = ab.while_loop(lambda i, _: i < 6, lambda i, h: (i + 1, act(h[i:] @ w + b)), (0, x))[1]
    loss = ops.sum(ops.sin(h))
    return [h, loss, *ab.gradients(loss, [x, w, b])], [x, w, b]


def test_rows_need_not_be_known():
    fetches, feeds = shrinking(5, ops.tanh)
    values = [np.ones((17, 5), "float32"), np.eye(5, dtype="float32"), np.ones(5, "float32")]
    step = check(fetches, dict(zip(feeds, values, strict=True)))
    assert len(of_type(inside(step), PackedMatMul)) == 2


@needs_kernels
@pytest.mark.parametrize("act", [ops.tanh, lambda z: z * 0.5, lambda z: z], ids=["tanh", "half", "none"])
def test_rows_that_only_the_run_tells(act: Callable[[Any], Any]):
    fetches, feeds = shrinking(96, act)
    graph, rng = ab.get_default_graph(), np.random.default_rng(0)
    program, exact = Program(graph, fetches, feeds), Program(graph, fetches, feeds, exact=True)
    assert "run_packed_mat_mul" in program.source  # in the gradient; forward, what follows is part of it
    for rows in (300, 40, 16, 15, 300, 0):
        values = [(rng.standard_normal(shape) / 5).astype("float32") for shape in [(rows, 96), (96, 96), (96,)]]
        for got, wanted in zip(program(*values), exact(*values), strict=True):
            # Six products in a row: where their sums nearly cancel, rounding is of the size of what was added up.
            np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-5 * max(20, np.abs(wanted).max(initial=0)))


@pytest.mark.usefixtures("no_compiler")
def test_without_kernels():
    w, h = (ab.placeholder(shape, "float32") for shape in ((90, 90), (40, 90)))
    y = ab.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, ops.tanh(x @ w)), (0, h))[1]
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-0.2, 0.2, shape).astype("float32") for shape in ((90, 90), (40, 90)))
    found = ab.Session().run(y, {w: a, h: b})
    for _ in range(3):
        b = np.tanh(b @ a)
    np.testing.assert_allclose(found, b, rtol=1e-4, atol=1e-5)
