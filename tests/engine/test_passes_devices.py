"""Passes of a placed step: every operation keeps its device, and what is on several devices is not made one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from shared.placed_steps import (
    A,
    Assigned,
    B,
    C,
    Case,
    D,
    Placed,
    at_random,
    everything,
    everywhere,
    inside,
    outside,
    text,
)

import anabranch as ab
from anabranch.engine.control_flow.cond import Branch
from anabranch.engine.control_flow.frames import History, Saved
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Operation, Tensor
from anabranch.engine.graph.graph import Parameter
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.containers.tensor_arrays import ArrayAddAt, ArrayRead, ArrayUnstack
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.math.elementwise import Add
from anabranch.engine.ops.math.reduced import Sum
from anabranch.engine.ops.run_time_shapes import SumToShape
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without

ops = ab.ops
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _four_devices() -> Generator[None]:
    ab.config.set_devices(cpu=4)
    with ab.Graph().as_default():
        yield
    ab.config.set_devices()


def draw(*shape: int) -> Any:
    return RNG.uniform(-0.5, 0.5, shape).astype("float32")


# --- assigning ------------------------------------------------------------------------------------------------------


def test_a_step_that_is_not_placed_has_no_devices():
    x = ab.placeholder((3,), "float32")
    with ab.device("cpu:1"):
        y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.tanh(y)), (0, x))[1]
    step = Case([y], {x: draw(3)}).prepared()
    assert not step.is_placed
    assert step.devices == []
    assert {operation.device for operation in everything(step)} == {""}
    assert y.device == "/device:CPU:1"  # of the user's graph


def test_assign_gets_what_is_fed_and_what_runs_in_order():
    x, unused = ab.placeholder((3,), "float32", "x"), ab.placeholder((), "float32", "unused")
    y = ops.tanh(x) + 1.0
    z = ops.exp(y)
    seen: list[Any] = []

    def assign(operations: Sequence[Operation], fed: Sequence[Tensor]) -> Mapping[Operation, str]:
        seen.append(([operation.type for operation in operations], [symbol_of(tensor).name for tensor in fed]))
        return dict.fromkeys(operations, A)

    prepare(symbol_of(z).graph, [symbol_of(z)], [x, unused], assign=assign)
    assert seen == [(["placeholder", "placeholder", "tanh", "constant", "add", "exp"], ["x:0", "unused:0"])]
    seen.clear()
    prepare(symbol_of(z).graph, [symbol_of(z)], [symbol_of(y)], assign=assign)  # what is fed is not computed
    assert [types for types, _ in seen] == [["placeholder", "exp"]]


def test_requests_are_there_to_be_read_and_then_what_is_assigned():
    with ab.device("cpu:2"):
        x = ab.constant(draw(3))
        y = ops.tanh(x)
    assigned = Assigned(lambda operation: D if operation.device == "/device:CPU:2" else A)
    assert Case([y]).prepared(assigned).devices == [D]


def test_an_operation_without_a_device_is_named():
    x = ab.placeholder((3,), "float32", "x")
    y = ops.tanh(x)
    with pytest.raises(ValueError, match=r"assign gave no device for <Operation tanh \(tanh\) defined at .*"
                       r"expected one for each of the 2 operations that it was handed"):  # fmt: skip
        prepare(
            symbol_of(y).graph, [symbol_of(y)], [x], assign=lambda operations, fed: dict.fromkeys(operations[:1], A)
        )


def test_what_is_not_mentioned_inside_lies_where_what_holds_it_does():
    x = ab.placeholder((3,), "float32")
    y = ab.cond(ops.sum(x) > 0, lambda: ops.tanh(x), lambda: x)

    def assign(operations: Sequence[Operation], fed: Sequence[Tensor]) -> Mapping[Operation, str]:
        return {operation: B if operation.op.regions else A for operation in operations}

    step = prepare(y.graph, [y], [x], assign=assign)
    (node,) = outside(step, Branch)
    assert {operation.device for operation in all_operations([node])} == {B}
    assert {operation.device for operation in step.operations if operation is not node} == {A}


def test_a_variable_that_the_body_does_not_read_lies_where_its_next_value_is_made():
    y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.cast(i, "float32")), (0, 0.0))[1]

    def assign(operations: Sequence[Operation], fed: Sequence[Tensor]) -> Mapping[Operation, str]:
        """As a placer does, that is handed what runs inside, and no more."""
        loop = next(operation for operation in operations if isinstance(operation.op, While))
        inner = [operation for region in loop.op.regions for operation in region.operations]
        unread = loop.op.regions[1].parameters[1].operation
        places = dict.fromkeys([*operations, *inner], A)
        places.update((operation, C) for operation in inner if operation.type == "cast")
        del places[unread], places[loop.op.regions[0].parameters[1].operation]
        return places

    (loop,) = outside(prepare(y.graph, [y], [], assign=assign), While)
    assert [parameter.operation.device for parameter in loop.op.regions[1].parameters] == [A, C]
    assert [parameter.operation.device for parameter in loop.op.regions[0].parameters] == [A, C]


def test_histories_and_saved_values_lie_where_they_are_recorded():
    x = ab.placeholder((3,), "float32")
    y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.tanh(y)), (0, x))[1]
    z = ab.cond(ops.sum(x) > 0, lambda: ops.exp(y), lambda: y)

    def assign(operations: Sequence[Operation], fed: Sequence[Tensor]) -> Mapping[Operation, str]:
        return {o: B if o.type in ("tanh", "exp") else A for o in all_operations(operations)}

    step = prepare(z.graph, [z, *ab.gradients(z, [x])], [x], assign=assign)
    taken = [operation for operation in everything(step) if isinstance(operation.op, (History, Saved))]
    assert {(type(operation.op), operation.device) for operation in taken} == {(History, B), (Saved, B)}


# --- sharing --------------------------------------------------------------------------------------------------------


def kinds_left(*fetches: Tensor) -> list[str]:
    """The types of what is computed, in order."""
    step = prepare(symbol_of(fetches[0]).graph, [symbol_of(fetch) for fetch in fetches], [])
    return [o.type for o in step.operations if o.inputs]


def test_equal_operations_that_ask_for_different_devices_stay_apart():
    x = ab.constant(draw(3))
    with ab.device("cpu:1"):
        y, same = ops.tanh(x), ops.tanh(x)
    with ab.device("cpu:2"):
        other = ops.tanh(x)
    asks_for_nothing = ops.tanh(x)
    assert kinds_left(y, same) == ["tanh"]
    assert kinds_left(y, other) == ["tanh"] * 2
    assert kinds_left(y, same, other, asks_for_nothing) == ["tanh"] * 3


@pytest.mark.usefixtures("loops_stay")
def test_equal_operations_inside_a_loop_that_ask_for_different_devices_stay_apart():
    def body(i: Any, y: Any) -> Any:
        with ab.device("cpu:1"):
            one = ops.tanh(y)
        with ab.device("cpu:2"):
            return i + 1, one * ops.tanh(y)

    y = ab.while_loop(lambda i, _: i < 3, body, (0, ab.constant(draw(3))))[1]
    (loop,) = outside(prepare(y.graph, [y], []), While)
    assert [o.type for o in loop.op.regions[1].operations].count("tanh") == 2


def test_equal_operations_that_are_to_be_with_different_ones_stay_apart():
    x, a, b = ab.constant(draw(3)), ab.constant(draw(4)), ab.constant(draw(5))
    found: list[Tensor] = []
    for near in (a, b, b):
        with ab.colocate_with(near):
            found.append(ops.tanh(x))
    assert kinds_left(*found[1:]) == ["tanh"]
    assert kinds_left(*found) == ["tanh"] * 2


def test_equal_operations_with_different_variables_stay_apart_where_devices_are_asked_for():
    variables = [ab.Variable(draw(3)) for _ in range(2)]
    x = ab.constant(draw(3))
    found: list[Tensor] = []
    for v in variables:
        with ab.colocate_with(v):
            found.append(ops.tanh(x))
    with without("fold"):
        assert kinds_left(*found) == ["tanh"]  # an optimizer's updates are with their variables, in every model
    with ab.device("cpu:1"):
        asking = ops.exp(x)
    assert kinds_left(*found, asking) == ["tanh", "tanh", "exp"]


def test_equal_gradients_near_different_operations_are_shared():
    x = ab.constant(draw(3))
    with ab.device("cpu:1"):
        asking = ops.exp(x)
    found: list[Tensor] = []
    for forward in (ops.sin(x), ops.cos(x)):
        with symbol_of(x).graph.near(symbol_of(forward).operation):
            found.append(ops.tanh(x))
    assert kinds_left(*found, asking) == ["exp", "tanh"]


# --- sinking --------------------------------------------------------------------------------------------------------


def by_type(**types: str) -> Assigned:
    """Devices by the type of an operation; by default the first."""
    return Assigned(lambda operation: types.get(operation.type, A))


def test_what_sinks_keeps_its_device_and_takes_values_from_where_they_are():
    x, choice = ab.placeholder((3,), "float32"), ab.placeholder((), "bool")
    y = ops.exp(ops.tanh(x))
    z = ab.cond(choice, lambda: ops.sin(y), lambda: x)
    case = Case([z], {x: draw(3), choice: np.True_})
    step = case.prepared(by_type(placeholder=D, tanh=B, exp=C, parameter=A), exact=True)
    (node,) = outside(step, Branch)
    taken = node.op.regions[0].operations
    assert {o.type: o.device for o in taken if not isinstance(o.op, Parameter)} == {"tanh": B, "exp": C, "sin": A}
    (parameter,) = [o for o in taken if isinstance(o.op, Parameter)]
    assert parameter.device == D  # made by the pass: the value enters where it was
    case.check(lambda: by_type(placeholder=D, tanh=B, exp=C, parameter=A))


def test_what_sank_is_saved_where_it_runs():
    x, choice = ab.placeholder((3,), "float32"), ab.placeholder((), "bool")
    y = ops.tanh(x)
    first = ab.cond(choice, lambda: ops.sin(y), lambda: x)
    second = ab.cond(choice, lambda: ops.cos(y), lambda: x)
    case = Case([first, second], {x: draw(3), choice: np.True_})
    step = case.prepared(by_type(tanh=C, cond=D), exact=True)
    (saved,) = outside(step, Saved)
    assert isinstance(saved.op, Saved)
    assert saved.op.inner.operation.type == "tanh"
    assert saved.device == C
    (entering,) = [o for o in outside(step, Branch)[1].op.regions[0].operations if isinstance(o.op, Parameter)]
    assert entering.device == A  # it was there before


def test_results_of_a_decided_branch_are_saved_where_they_are():
    """A branch inside the same branch of its own choice is decided: its result is what was computed inside."""
    x, choice = ab.placeholder((3,), "float32"), ab.placeholder((), "bool")
    y = ab.cond(choice, lambda: ops.tanh(x), lambda: ops.exp(x))
    first = ab.cond(choice, lambda: ops.sin(y), lambda: x)
    second = ab.cond(choice, lambda: ops.cos(y), lambda: x)
    case = Case([first, second], {x: draw(3), choice: np.True_})
    step = case.prepared(by_type(tanh=B, cond=D), exact=True)
    (saved,) = outside(step, Saved)
    assert isinstance(saved.op, Saved)
    assert saved.op.inner.operation.type == "tanh"
    assert saved.device == B


@pytest.mark.parametrize("inner", [True, False])
def test_what_sank_and_is_saved_sinks_no_further(inner: bool):
    """It is needed in one branch of a branch, and once more where nothing says that this one was taken."""
    x, choice, other = ab.placeholder((3,), "float32"), ab.placeholder((), "bool"), ab.placeholder((), "bool")
    y = ops.tanh(x)
    first = ab.cond(choice, lambda: ab.cond(other, lambda: ops.sin(y), lambda: x), lambda: x)
    second = ab.cond(choice, lambda: ops.cos(y), lambda: x)
    case = Case([first, second], {x: draw(3), choice: np.True_, other: np.bool_(inner)})
    step = case.prepared(by_type(tanh=C), exact=True)
    (saved,) = outside(step, Saved)
    assert isinstance(saved.op, Saved)
    assert saved.op.inner.graph is outside(step, Branch)[0].op.regions[0]
    assert text(step).count("np.tanh(") == 1
    case.check(lambda: by_type(tanh=C))


# --- fission --------------------------------------------------------------------------------------------------------


def sums_of_rows(products: Sequence[Operation]) -> list[Operation]:
    """Those of `products` that add up over the rows of their operands."""
    return [product for product in products if isinstance(product.op, MatMul) and product.op.transpose_a]


def sums_of_products() -> Case:
    """w += a.T @ g and b += sum(g) in every iteration."""
    a, g = ab.placeholder((3, 2), "float32", "a"), ab.placeholder((3, 4), "float32", "g")

    def body(i: Any, w: Any, b: Any) -> Any:
        near, far = ops.sin(a * ops.cast(i, "float32")), ops.cos(g * ops.cast(i, "float32"))
        return i + 1, w + ops.matmul(ops.transpose(near), far), b + ops.sum(far, axis=0)

    _, w, b = ab.while_loop(lambda i, *_: i < 4, body, (0, ops.zeros((2, 4)), ops.zeros(4)))
    return Case([w, b], {a: draw(3, 2), g: draw(3, 4)})


def weight_gradients() -> Case:
    """A recurrence over h @ u, and the gradient of u, which is summed up in a loop."""
    u, x = ab.placeholder((4, 4), "float32", "u"), ab.placeholder((3, 4), "float32", "x")
    h = ab.while_loop(lambda i, _: i < 4, lambda i, h: (i + 1, ops.tanh(h @ u)), (0, x))[1]
    return Case(ab.gradients(ops.sum(h), [u]), {u: draw(4, 4), x: draw(3, 4)})


def sum_in_loop(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The parts of the sum of products of the backward loop: parameter, add, product, and its two operands."""
    for loop in operations:
        if not isinstance(loop.op, While):
            continue
        body = loop.op.body
        for parameter, result in zip(body.parameters, body.results, strict=True):
            add = result.operation
            if not isinstance(add.op, Add) or parameter not in add.inputs:
                continue
            product = next(tensor for tensor in add.inputs if tensor is not parameter).operation
            if isinstance(product.op, MatMul) and product.op.transpose_a:
                a, g = (tensor.operation for tensor in product.inputs)
                return {"parameter": parameter.operation, "add": add, "product": product, "a": a, "g": g}
    raise AssertionError("no loop sums products")


class PartOnB(Assigned):
    """Everything on one device, but for one part of what `find` finds."""

    def __init__(self, find: Callable[[Sequence[Operation]], dict[str, Operation]], *parts: str) -> None:
        super().__init__(lambda operation: A)
        self.find = find
        self.parts = parts

    def chosen(self, operations: Sequence[Operation]) -> dict[str, str] | Any:
        found = self.find(operations)
        away = {found[part] for part in self.parts}
        self.choose = lambda operation: B if operation in away else A
        return super().chosen(operations)


def test_a_sum_on_one_device_leaves_the_loop_for_that_device():
    case = weight_gradients()
    parts = ("parameter", "add", "product", "a", "g")
    step = case.prepared(PartOnB(sum_in_loop, *parts), fuses=False)
    assert not sums_of_rows(inside(step, MatMul))
    (product,) = sums_of_rows(outside(step, MatMul))
    assert product.device == B
    assert {tensor.operation.device for tensor in product.inputs} == {B}
    assert product.outputs[0] in step.fetches  # the sum starts at zero, so that nothing is added to it
    case.check(lambda: PartOnB(sum_in_loop, *parts))


@pytest.mark.parametrize("part", ["parameter", "add", "product", "a", "g"])
def test_a_sum_that_crosses_devices_stays_in_the_loop(part: str):
    case = weight_gradients()
    step = case.prepared(PartOnB(sum_in_loop, part), fuses=False)
    assert len(sums_of_rows(inside(step, MatMul))) == 1
    assert not outside(step, MatMul)
    case.check(lambda: PartOnB(sum_in_loop, part))


def recurrence(x: Any, w: Any, u: Any, b: Any, h: Any, steps: int) -> Any:
    """The outputs of a plain recurrent cell over x (steps, batch, inputs)."""
    inputs = ab.TensorArray("float32", steps).unstack(x)
    outputs = ab.TensorArray("float32", steps, element_shape=h.shape)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = ops.tanh(inputs.read(t) @ w + h @ u + b)
        return t + 1, h, outputs.write(t, h)

    return ab.while_loop(lambda t, *_: t < steps, body, (0, h, outputs))[2].stack()


def recurrent(wanted: Sequence[str] = ("x", "w", "u", "b"), forward: bool = True) -> Case:
    """A recurrent cell with the gradients that are wanted."""
    shapes = {"x": (5, 2, 3), "w": (3, 4), "u": (4, 4), "b": (4,), "h": (2, 4)}
    feeds = {ab.placeholder(shape, "float32", name): draw(*shape) for name, shape in shapes.items()}
    loss = ops.sum(recurrence(*feeds, steps=5) ** 2)
    sources = [tensor for tensor in feeds if tensor.operation.name in wanted]
    return Case([loss] * forward + (ab.gradients(loss, sources) if sources else []), feeds)


def hoisted_product(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The parts of x[t] @ w: the array, what stands for it in the loop, the read, the product, the weight inside."""
    loop = next(operation for operation in operations if isinstance(operation.op, While))
    for product in loop.op.regions[1].operations:
        if isinstance(product.op, MatMul) and isinstance(product.inputs[0].operation.op, ArrayRead):
            read, weight = (tensor.operation for tensor in product.inputs)
            array = read.inputs[0].operation
            source = next(outer for outer, p in loop.op.regions[1].captures if p.operation is array)
            return {"source": source.operation, "array": array, "read": read, "product": product, "weight": weight}
    raise AssertionError("no loop multiplies elements")


HOISTED = ("source", "array", "read", "product")


@pytest.mark.parametrize("parts", [HOISTED, (*HOISTED, "weight"), ("weight",), ()])
def test_a_product_of_inputs_on_one_device_is_computed_before_the_loop(parts: Sequence[str]):
    case = recurrent(wanted=())
    step = case.prepared(PartOnB(hoisted_product, *parts), fuses=False)
    assert len(inside(step, MatMul)) == 1
    (product,) = outside(step, MatMul)
    device = B if "product" in parts else A
    assert product.device == product.inputs[0].operation.device == device
    (unstacked,) = outside(step, ArrayUnstack)
    assert unstacked.device == unstacked.inputs[0].operation.device == device
    reads = inside(step, ArrayRead)
    assert {(read.device, read.inputs[0].operation.device) for read in reads} == {(device, device)}
    case.check(lambda: PartOnB(hoisted_product, *parts))


@pytest.mark.parametrize("part", HOISTED)
def test_a_product_of_elements_from_elsewhere_stays_in_the_loop(part: str):
    case = recurrent(wanted=())
    step = case.prepared(PartOnB(hoisted_product, part), fuses=False)
    assert len(inside(step, MatMul)) == 2
    assert not outside(step, MatMul)
    case.check(lambda: PartOnB(hoisted_product, part))


def product_of_outputs(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The parts of d[t] += g @ w.T: the array of the loop, the update, the product, what it takes, and the weight."""
    for loop in operations:
        for region in loop.op.regions:
            for update in region.operations:
                if isinstance(update.op, ArrayAddAt) and isinstance(update.inputs[2].operation.op, MatMul):
                    product = update.inputs[2].operation
                    factor, weight = (tensor.operation for tensor in product.inputs)
                    array = update.inputs[0].operation
                    parts = (array, update, product, factor, weight)
                    return dict(zip(("array", "update", "product", "factor", "weight"), parts, strict=True))
    raise AssertionError("no loop adds products to an array")


def products_of_outputs(step: Step) -> list[Operation]:
    return [o for o in outside(step, MatMul) if isinstance(o.op, MatMul) and o.op.transpose_b]


OUTPUT = ("array", "update", "product", "factor")


@pytest.mark.parametrize("parts", [OUTPUT, (*OUTPUT, "weight"), ("weight",), ()])
def test_a_product_of_outputs_on_one_device_is_computed_after_the_loop(parts: Sequence[str]):
    case = recurrent(wanted=("x",), forward=False)
    step = case.prepared(PartOnB(product_of_outputs, *parts), fuses=False)
    (product,) = products_of_outputs(step)
    assert product.device == (B if "product" in parts else A)
    case.check(lambda: PartOnB(product_of_outputs, *parts))


@pytest.mark.parametrize("part", OUTPUT)
def test_a_product_of_outputs_that_crosses_devices_stays_in_the_loop(part: str):
    case = recurrent(wanted=("x",), forward=False)
    step = case.prepared(PartOnB(product_of_outputs, part), fuses=False)
    assert not products_of_outputs(step)
    case.check(lambda: PartOnB(product_of_outputs, part))


def bias_in_loop(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The parts of the sum of rows of a backward loop: parameter, add, the sum, its rows, and the shape it has."""
    for loop in operations:
        for region in loop.op.regions:
            for add in region.operations:
                rows = [tensor.operation for tensor in add.inputs if isinstance(tensor.operation.op, SumToShape)]
                if isinstance(add.op, Add) and rows:
                    parameter = next(t.operation for t in add.inputs if t.operation is not rows[0])
                    taken, shape = (tensor.operation for tensor in rows[0].inputs)
                    parts = (parameter, add, rows[0], taken, shape)
                    return dict(zip(("parameter", "add", "sum", "rows", "shape"), parts, strict=True))
    raise AssertionError("no loop sums rows")


@pytest.mark.parametrize("part", ["parameter", "add", "sum"])
def test_a_sum_of_rows_that_crosses_devices_stays_in_the_loop(part: str):
    case = recurrent(wanted=("u", "b"), forward=False)
    step = case.prepared(PartOnB(bias_in_loop, part), fuses=False)
    assert len(inside(step, SumToShape)) == 1
    assert sums_of_rows(outside(step, MatMul))  # the gradient of u leaves all the same
    case.check(lambda: PartOnB(bias_in_loop, part))


@pytest.mark.parametrize("parts", [(), ("shape",)])
def test_a_sum_of_rows_leaves_the_loop_wherever_its_shape_is(parts: Sequence[str]):
    step = recurrent(wanted=("u", "b"), forward=False).prepared(PartOnB(bias_in_loop, *parts), fuses=False)
    assert not inside(step, SumToShape)
    assert {operation.device for operation in outside(step, Sum)} == {A}  # over axes that are known by then


# --- fusion ---------------------------------------------------------------------------------------------------------


def fused(step: Step) -> dict[str, str]:
    """The fused operations as the names of their ops, each with its device."""
    found: dict[str, str] = {}
    for operation in all_operations(step.operations):
        if isinstance(operation.op, Fused):
            found[" ".join(op.type_name for op, _ in operation.op.steps)] = operation.device
    return found


def test_a_chain_is_fused_as_far_as_it_is_on_one_device():
    x = ab.placeholder((3, 4), "float32")
    y = ops.sigmoid(ops.softplus(ops.exp(ops.tanh(x))))
    case = Case([y], {x: draw(3, 4)})
    assert fused(case.prepared(everywhere(B))) == {"tanh exp softplus sigmoid": B}
    apart = {"tanh": B, "exp": B, "softplus": C, "sigmoid": C}
    assert fused(case.prepared(by_type(**apart))) == {"tanh exp": B, "softplus sigmoid": C}
    case.check(lambda: by_type(**apart))


def test_sources_on_other_devices_are_not_fused_with_what_takes_them():
    x = ab.placeholder((3, 4), "float32")
    y = ops.exp(ops.tanh(x)) + ops.sigmoid(ops.softplus(x))
    case = Case([y], {x: draw(3, 4)})
    assert fused(case.prepared(everywhere(B))) == {"tanh exp softplus sigmoid add": B}
    assert fused(case.prepared(by_type(softplus=C, sigmoid=C))) == {"tanh exp add": A, "softplus sigmoid": C}


def test_what_leads_over_another_device_does_not_become_a_cycle():
    x = ab.placeholder((3, 4), "float32")
    a = ops.exp(ops.tanh(x))
    y = -(a * ops.softplus(a))
    case = Case([y], {x: draw(3, 4)})
    assert fused(case.prepared(everywhere(A))) == {"tanh exp softplus multiply negative": A}
    assert fused(case.prepared(by_type(softplus=B))) == {"tanh exp": A, "softplus": B, "multiply negative": A}
    case.check(lambda: by_type(softplus=B))


def test_chains_in_loops_and_branches_are_fused_by_device():
    x = ab.placeholder((3, 4), "float32")

    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.cond(i > 1, lambda: ops.exp(ops.tanh(y)), lambda: ops.sigmoid(ops.softplus(y)))

    y = ab.while_loop(lambda i, _: i < 4, body, (0, x))[1]
    case = Case([y], {x: draw(3, 4)})
    apart = {"tanh": B, "exp": B, "softplus": B, "sigmoid": C}
    assert fused(case.prepared(by_type(**apart))) == {"tanh exp": B, "softplus": B, "sigmoid": C}
    case.check(lambda: by_type(**apart))


# --- whole models ---------------------------------------------------------------------------------------------------


def lstm(devices: Sequence[str], steps: int = 4, units: int = 3) -> Case:
    """Layers of LSTM cells in one loop, a layer a device, and the gradients of their weights."""
    x = ab.placeholder((steps, 2, units), "float32", "x")
    weights: list[tuple[ab.Variable, ab.Variable]] = []
    for device in devices:
        with ab.device(device):
            weights.append((ab.Variable(draw(2 * units, 4 * units)), ab.Variable(draw(4 * units))))
    inputs = ab.TensorArray("float32", steps).unstack(x)
    outputs = ab.TensorArray("float32", steps, element_shape=(2, units))

    def body(t: Any, outputs: Any, *states: Any) -> Any:
        value, new = inputs.read(t), []
        for layer, device in enumerate(devices):
            with ab.device(device):
                h, c = states[2 * layer : 2 * layer + 2]
                kernel, bias = weights[layer]
                i, f, g, o = ops.split(ops.concatenate([value, h], 1) @ kernel + bias, 4, axis=1)
                c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
                value = ops.sigmoid(o) * ops.tanh(c)
                new += [value, c]
        return t + 1, outputs.write(t, value), *new

    zeros = [ops.zeros((2, units)) for _ in devices for _ in range(2)]
    result = ab.while_loop(lambda t, *_: t < steps, body, (0, outputs, *zeros))
    loss = ops.sum(result[1].stack() ** 2)
    variables = [variable for pair in weights for variable in pair]
    return Case([loss, *map(ab.convert_to_tensor, ab.gradients(loss, [*variables, x]))], {x: draw(steps, 2, units)})


@pytest.mark.parametrize("devices", [(A, B), (B, A), (A, B, C, D), ("cpu:*", "cpu:*", "cpu:*")])
def test_a_layered_lstm_as_it_is_placed(devices: Sequence[str]):
    """The gradient of each layer's weight leaves its loop, unless the placer had its sum gathered elsewhere."""
    case = lstm(devices)
    case.check(Placed)
    step = case.prepared(Placed())
    assert {device for device in devices if "*" not in device} <= set(step.devices)
    left = sums_of_rows(outside(step, MatMul))
    stayed = sums_of_rows(inside(step, MatMul))
    assert len(left) + len(stayed) == len(devices)
    assert all({tensor.operation.device for tensor in product.inputs} == {product.device} for product in left)
    for product in stayed:
        (add,) = [user for user in product.graph.operations if any(each is product.outputs[0] for each in user.inputs)]
        around = [product, add, *[tensor.operation for user in (product, add) for tensor in user.inputs]]
        assert len({operation.device for operation in around}) > 1


@pytest.mark.parametrize("seed", range(4))
def test_a_layered_lstm_anyhow(seed: int):
    lstm((A, B)).check(lambda: at_random(seed))
    recurrent().check(lambda: at_random(seed))
    sums_of_products().check(lambda: at_random(seed))


@pytest.mark.usefixtures("loops_stay")
@pytest.mark.parametrize("make", [lambda: lstm((A, B)), recurrent, sums_of_products, weight_gradients])
def test_a_step_on_one_device_is_the_step_that_is_not_placed(make: Callable[[], Case]):
    case = make()
    for exact in (False, True):
        assert text(case.prepared(everywhere(C), exact)) == text(case.prepared(None, exact))
