"""Steps specialised to what is fed: the same values and errors, equal work done once, needless work not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph, Operation, Symbol, Tensor, TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.runtime.variants import Variants

pytestmark = pytest.mark.usefixtures("loops_stay")

ops = ab.ops


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


# --- helpers --------------------------------------------------------------------------------------------------------


def values(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype("float32")


def specialised(targets: Sequence[Tensor | Operation], feeds: dict[Symbol, tuple[int, ...]]) -> list[Operation]:
    """The operations of a step, regions included, for feeds of the given shapes."""
    specs = [TensorSpec(shape, tensor.dtype) for tensor, shape in feeds.items()]
    wanted = [target if isinstance(target, Operation) else symbol_of(target) for target in targets]
    return list(all_operations(prepare(wanted[0].graph, wanted, list(feeds), specs).operations))


def count(targets: Sequence[Tensor | Operation], feeds: dict[Symbol, tuple[int, ...]] | None = None) -> Counter[str]:
    """Count the operations of each type in a step."""
    return Counter(operation.type for operation in specialised(targets, feeds or {}))


def check(targets: Sequence[Tensor], feeds: dict[Symbol, Any], tolerance: float = 1e-5) -> None:
    """Specialised and general programs, with and without kernels, compute what the interpreter does."""
    graph = symbol_of(targets[0]).graph
    wanted = [symbol_of(target) for target in targets]
    fed = [np.asarray(value, tensor.dtype)[()] for tensor, value in feeds.items()]
    expected = Interpreter().run(graph, wanted, dict(zip(feeds, fed, strict=True)))
    known = [TensorSpec(np.shape(value), tensor.dtype) for tensor, value in feeds.items()]
    for specs in (None, known):
        for exact in (False, True):
            found = Program(graph, wanted, list(feeds), specs, exact=exact)(*fed)
            for value, other in zip(found, expected, strict=True):
                assert value.dtype == other.dtype
                assert value.shape == other.shape
                np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance)


def check_refused(target: Tensor, feeds: dict[Symbol, Any], error: type[Exception], match: str | None) -> list[str]:
    """The same error on every road; the notes of the specialised one."""
    with pytest.raises(error):
        Interpreter().run(symbol_of(target).graph, [symbol_of(target)], feeds)
    with pytest.raises(error):
        Program(symbol_of(target).graph, [symbol_of(target)], list(feeds))(*feeds.values())
    with pytest.raises(error, match=match) as caught:
        ab.Session(symbol_of(target).graph).run(target, feeds)
    return caught.value.__notes__


# --- values for many shapes -----------------------------------------------------------------------------------------

SHAPES = [(1, 1), (1, 3), (3, 1), (2, 3), (0, 3), (3, 0), (0, 0), (7, 5)]


def attention(x: Tensor) -> Tensor:
    scores = ops.softmax(ops.matmul(x, ops.transpose(x)) * 0.5)
    return ops.matmul(scores, x) + x


def normalised(x: Tensor) -> Tensor:
    centred = x - ops.mean(x, axis=0, keepdims=True)
    return centred / ops.sqrt(ops.sum(centred * centred, axis=-1, keepdims=True) + 1)


def reshaped(x: Tensor) -> Tensor:
    rows, columns = ops.shape(x)
    return ops.reshape(ops.tile(x, (2, 1)), (rows, columns * 2)) * 2 + ops.cast(rows, "float32")


def looped(x: Tensor) -> Tensor:
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ops.tanh(a * x + 0.5)), (0, x))
    return y


def branched(x: Tensor) -> Tensor:
    return ab.cond(ops.sum(x) > 0, lambda: ops.sigmoid(x) * x, lambda: ops.concatenate([x, x], axis=0))


def scanned(x: Tensor) -> Tensor:
    total, ys = ab.scan(lambda a, row: (ops.tanh(a + row), a * row), ops.sum(x, axis=0), x)
    return ops.sum(ys) * total


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", [normalised, reshaped, looped, branched, scanned])
def test_values_and_gradients(model: Callable[[Tensor], Tensor], shape: tuple[int, ...]):
    x = ab.placeholder((None, None), "float32", "x")
    y = model(x)
    (gradient,) = ab.gradients(ops.sum(y * y), [x])
    check([y, gradient], {x: values(*shape)}, tolerance=2e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (2, 3), (7, 5)], ids=str)
def test_attention(shape: tuple[int, ...]):
    x = ab.placeholder(None, "float32", "x")
    y = attention(x)
    (gradient,) = ab.gradients(ops.sum(y * y), [x])
    check([y, gradient], {x: values(*shape)}, tolerance=2e-4)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((1, 3), (2, 1)), ((2, 3), ()), ((0, 3), (1, 3))])
def test_broadcasting_that_the_graph_does_not_know(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    x, y = ab.placeholder(None, "float32", "x"), ab.placeholder(None, "float32", "y")
    z = ops.tanh(x * y) - y
    check([z, *ab.gradients(ops.sum(z * z), [x, y])], {x: values(*shapes[0]), y: values(*shapes[1])})


def test_second_order():
    x = ab.placeholder((None, 3), "float32", "x")
    y = looped(x) * ops.sum(x, axis=1, keepdims=True)
    (first,) = ab.gradients(ops.sum(y), [x])
    (second,) = ab.gradients(ops.sum(first * first), [x])
    for rows in (1, 4):
        check([first, second], {x: values(rows, 3)}, tolerance=1e-3)


def test_shapes_that_are_known_fold_away():
    """The gradient of broadcasting asks for shapes at run time; with fed shapes none of that is left."""
    x = ab.placeholder((None, 3), "float32", "x")
    bias = ab.placeholder((None, 3), "float32", "bias")
    y = ops.tanh(x + bias)
    gradients = ab.gradients(ops.sum(y), [x, bias])
    general = count(gradients, {x: (None, 3), bias: (None, 3)})  # pyright: ignore[reportArgumentType]
    assert general["shape_of"] >= 2
    equal = count(gradients, {x: (4, 3), bias: (4, 3)})
    assert equal["shape_of"] == equal["sum_to_shape"] == 0
    broadcast = count(gradients, {x: (4, 3), bias: (1, 3)})
    assert broadcast["shape_of"] == 0
    assert broadcast["sum_to_shape"] == 1


# --- variants -------------------------------------------------------------------------------------------------------


def test_a_program_for_each_shape():
    x = ab.placeholder((None, 3), "float32", "x")
    variants = Variants(x.graph, [symbol_of(x * 2 + 1)], [x])
    first, second = variants.get([values(2, 3)]), variants.get([values(5, 3)])
    assert first is not second
    assert variants.get([values(2, 3)]) is first
    assert "empty_float32_2_3()" in first.source
    assert "empty_float32_5_3()" in second.source
    assert "empty_" not in variants.general().source


def test_many_shapes_share_the_general_program():
    x = ab.placeholder((None, None), "float32", "x")
    y = normalised(x)
    session = ab.Session()
    variants = Variants(x.graph, [symbol_of(y)], [x])
    programs = [variants.get([values(rows, 3)]) for rows in range(1, 13)]
    assert len({id(program) for program in programs}) == 9
    assert {id(program) for program in programs[8:]} == {id(variants.general())}
    assert variants.get([values(8, 3)]) is programs[7]
    for rows in range(1, 13):
        fed = values(rows, 3)
        expected = Interpreter().run(x.graph, [symbol_of(y)], {x: fed})[0]
        np.testing.assert_allclose(session.run(y, {x: fed}), expected, rtol=1e-6)
        np.testing.assert_allclose(programs[rows - 1](fed)[0], expected, rtol=1e-6)


def test_static_feeds_have_one_program():
    x = ab.placeholder((2, 3), "float32", "x")
    variants = Variants(x.graph, [symbol_of(x * 2 + 1)], [x])
    assert variants.get([values(2, 3)]) is variants.general()


def test_values_inside_may_be_fed():
    x = ab.placeholder((None, 3), "float32", "x")
    middle = symbol_of(ops.tanh(x))
    y = ops.sum(middle * 2, axis=0)
    for rows in (1, 4):
        check([y], {middle: values(rows, 3)})
    assert count([y], {middle: (4, 3)})["tanh"] == 0


# --- errors ---------------------------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit():
    x, y = ab.placeholder((None,), "float32", "x"), ab.placeholder((None,), "float32", "y")
    notes = check_refused(x + y, {x: values(2), y: values(3)}, ValueError, "broadcast")
    assert len(notes) == 1
    assert f"In operation 'add' (add); inputs: float32[2], float32[3]; defined at {__file__}:" in notes[0]


def test_a_product_that_does_not_fit():
    x, y = ab.placeholder((None, None), "float32", "x"), ab.placeholder((None, None), "float32", "y")
    notes = check_refused(ops.matmul(x, y), {x: values(2, 3), y: values(2, 3)}, ValueError, None)
    assert "(matmul); inputs: float32[2,3], float32[2,3]" in notes[0]


def test_a_program_that_failed_is_not_kept():
    x, y = ab.placeholder((None,), "float32", "x"), ab.placeholder((None,), "float32", "y")
    total, session = x + y, ab.Session()
    for _ in range(2):
        with pytest.raises(ValueError, match="broadcast"):
            session.run(total, {x: values(2), y: values(3)})
        assert session.run(total, {x: values(2), y: values(2)}).shape == (2,)


IMPOSSIBLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "matmul": lambda x, y: ops.matmul(ops.expand_dims(x, 0), ops.expand_dims(y, 1))[0],
    "large matmul": lambda x, y: ops.matmul(ops.outer(np.ones(600, "f4"), x), ops.outer(y, np.ones(600, "f4")))[0, :2],
    "reshape": lambda x, y: ops.reshape(x, (5,)),
    "element": lambda x, y: ops.expand_dims(x[5], 0),
    "concatenate": lambda x, y: ops.concatenate([ops.expand_dims(x, 0), ops.expand_dims(y, 0)])[0],
    "stack": lambda x, y: ops.stack([x, y])[0],
    "broadcast": lambda x, y: ops.broadcast_to(x, (7, 9))[0],
    "where": lambda x, y: ops.where(x > 0, x, y),
    "split": lambda x, y: ops.split(x, 5)[0],
    "dot": lambda x, y: ops.expand_dims(ops.dot(x, y), 0),
    "chain": lambda x, y: ops.tanh((x + y) * 2 + 1),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_branch_that_is_not_taken_may_be_impossible(name: str):
    """For the shapes that are fed one branch can't work: that matters only if it is taken."""
    x, y = ab.placeholder((None,), "float32", "x"), ab.placeholder((None,), "float32", "y")
    taken = ab.placeholder((), "bool", "taken")
    z = ab.cond(taken, lambda: IMPOSSIBLE[name](x, y), lambda: ops.tanh(x * 2 + 1))
    (gradient,) = ab.gradients(ops.sum(z), [x])
    feeds = {x: values(2), y: values(3)}
    check([z], {**feeds, taken: False})
    np.testing.assert_allclose(
        ab.Session().run(gradient, {**feeds, taken: False}), 2 / np.cosh(feeds[x] * 2 + 1) ** 2, rtol=1e-5
    )
    check_refused(z, {**feeds, taken: np.bool_(True)}, Exception, None)


def test_a_loop_that_makes_no_iteration_may_be_impossible():
    x, y = ab.placeholder((None,), "float32", "x"), ab.placeholder((None,), "float32", "y")
    trips = ab.placeholder((), "int32", "trips")
    _, z = ab.while_loop(lambda i, a: i < trips, lambda i, a: (i + 1, ops.tanh(a * y + 1)), (0, x))
    feeds = {x: values(2), y: values(3)}
    check([z], {**feeds, trips: 0})
    notes = check_refused(z, {**feeds, trips: np.int32(1)}, ValueError, "broadcast")
    assert "'multiply' (multiply), iteration 0 of 'while/while'; inputs: float32[2], float32[3]" in notes[0]


# --- common subexpressions ------------------------------------------------------------------------------------------


def test_equal_operations_are_shared():
    x = ab.placeholder((None, 3), "float32", "x")
    y = ops.tanh(x * 2) + ops.exp(ops.tanh(x * 2))
    assert count([y], {x: (4, 3)}) == {"multiply": 1, "tanh": 1, "exp": 1, "add": 1, "constant": 1}
    check([y], {x: values(4, 3)})


def test_operations_that_differ_are_not_shared():
    x = ab.placeholder((4, 3), "float32", "x")
    y = [ops.sum(x, axis=0), ops.sum(x, axis=1), ops.sum(x, axis=0, keepdims=True), ops.sum(x * 3.0, axis=0)]
    assert count(y, {x: (4, 3)})["sum"] == 4
    check(y, {x: values(4, 3)})
    swapped = [x[0] - x[1], x[1] - x[0]]
    assert count(swapped, {x: (4, 3)})["subtract"] == 2
    check(swapped, {x: values(4, 3)})


def test_equal_constants_are_shared():
    x = ab.placeholder((3,), "float32", "x")
    small = [ops.sin(x + ab.constant([1.0, 2.0, 3.0])) for _ in range(2)]
    assert count(small, {x: (3,)})["sin"] == 1
    large = [ops.sum(ops.sin(x[0] + ab.constant(np.ones(1000, "float32")))) for _ in range(2)]
    assert count(large, {x: (3,)})["sin"] == 2  # comparing them would cost more than it saves


def test_constants_that_only_look_alike():
    x = ab.placeholder((), "float32", "x")
    found = [1 / (x * ab.constant(0.0)), 1 / (x * ab.constant(-0.0))]
    assert ab.Session().run(found, {x: 1}) == [np.inf, -np.inf]
    zeros = [ab.constant([0, 0], dtype) for dtype in ("int32", "float32", "uint32")]
    assert [value.dtype for value in ab.Session().run(zeros)] == ["int32", "float32", "uint32"]


def test_sharing_inside_loops():
    x = ab.placeholder((None,), "float32", "x")

    def body(i: Tensor, a: Tensor) -> Any:
        return i + 1, ops.sin(a * x) + ops.cos(a * x) + ops.sin(a * x)

    _, y = ab.while_loop(lambda i, a: i < 3, body, (0, x))
    found = count([y], {x: (4,)})
    assert (found["multiply"], found["sin"], found["cos"]) == (1, 1, 1)
    check([y], {x: values(4)})


def test_reads_of_a_variable_are_not_shared_over_a_write():
    v = ab.Variable(np.ones(3, "float32"), name="v")
    before = ops.sin(v.value)
    write = v.assign(ops.cos(before))
    after = ops.sin(v.value)
    assert count([before, write, after])["sin"] == 2
    first, _, last = ab.Session().run([before, write, after])
    np.testing.assert_allclose(first, np.sin(np.ones(3)), rtol=1e-6)
    np.testing.assert_allclose(last, np.sin(np.cos(np.sin(np.ones(3)))), rtol=1e-6)


def test_random_numbers_are_not_shared():
    seed = ab.random.SeedGenerator(1)
    draws = [ab.random.uniform((3,), seed=seed) for _ in range(2)]
    first, second = ab.Session().run(draws)
    assert not np.array_equal(first, second)


def test_backward_loops_share_what_the_forward_loop_computed():
    """A history is asked for once, though two gradients use it."""
    x = ab.placeholder((None, 3), "float32", "x")
    y = looped(x)
    gradients = [*ab.gradients(ops.sum(y), [x]), *ab.gradients(ops.sum(y * 2), [x])]
    separate = [count([gradient], {x: (4, 3)})["history"] for gradient in gradients]
    assert count(gradients, {x: (4, 3)})["history"] == separate[0] == separate[1]
    check(gradients, {x: values(4, 3)})


# --- what is not needed ---------------------------------------------------------------------------------------------


def test_results_of_branches_that_nothing_needs():
    x = ab.placeholder((None,), "float32", "x")
    y, _ = ab.cond(ops.sum(x) > 0, lambda: (x * 2, ops.sin(x)), lambda: (x * 3, ops.cos(x)))
    found = count([y], {x: (3,)})
    assert (found["multiply"], found["sin"], found["cos"]) == (2, 0, 0)
    check([y], {x: values(3)})


def test_a_gradient_alone_needs_no_results():
    """The forward branch keeps only what the backward one takes."""
    x = ab.placeholder((3,), "float32", "x")
    z = ab.cond(ops.sum(x) > 0, lambda: ops.exp(ops.sin(x)) * ops.tan(x), lambda: x)
    (gradient,) = ab.gradients(ops.sum(z), [x])
    assert count([z, gradient], {x: (3,)})["multiply"] == count([gradient], {x: (3,)})["multiply"] + 1
    check([gradient], {x: values(3)})
    check([gradient], {x: np.abs(values(3))})


def test_variables_of_loops_that_nothing_needs():
    """The second variable is needed by the first, the third by none but itself, the fourth by an effect."""
    x = ab.placeholder((None,), "float32", "x")
    v = ab.Variable(0.0, name="v")

    def body(i: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        v.assign_add(ops.sum(d))
        return i + 1, ops.sin(a) + b, ops.cos(b), ops.tan(c) + a, ops.sinh(d)

    _, a, _, c, _ = ab.while_loop(lambda i, *_: i < 3, body, (0, x, x, x, x))
    found = count([a], {x: (3,)})
    assert (found["sin"], found["cos"], found["tan"], found["sinh"]) == (1, 1, 0, 1)
    assert count([c], {x: (3,)})["tan"] == 1
    fed = values(3)
    expected = Interpreter().run(a.graph, [a], {x: fed})[0]
    sum_of_effects = v.numpy()
    np.testing.assert_allclose(ab.Session().run(a, {x: fed}), expected, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), sum_of_effects * 2, rtol=1e-5)


@pytest.mark.parametrize("trips", [0, 3])
def test_arrays_of_unknown_elements_learn_them_from_loops(trips: int):
    """The elements that a loop writes give the spec of a new array; two loops that share one each give their own."""
    x = ab.placeholder((trips, 2), "float32")
    fresh, rows = ab.TensorArray("float32", trips), ab.TensorArray("float32", trips).unstack(x)

    def written(width: int) -> Tensor:
        return ab.while_loop(
            lambda t, _: t < trips,
            lambda t, out: (t + 1, out.write(t, ops.tile(rows.read(t), (width,)))),
            (0, fresh),
        )[1].stack()

    targets = [symbol_of(written(1)), symbol_of(written(2))]
    new = [operation for operation in specialised(targets, {x: (trips, 2)}) if operation.type == "array_new"]
    assert sorted(str(operation.outputs[0].spec) for operation in new) == [
        f"array<{trips} x float32[2]>",
        f"array<{trips} x float32[4]>",
    ]
    feed = values(trips, 2)
    found = Program(x.graph, targets, [x])(feed)
    np.testing.assert_array_equal(found[0], feed)
    np.testing.assert_array_equal(found[1], np.tile(feed, (1, 2)))


def test_variables_that_only_the_condition_needs():
    x = ab.placeholder((), "float32", "x")
    _, y, z = ab.while_loop(lambda a, *_: a < 10, lambda a, y, z: (a * 2, y + 1, z * 3), (x, x, x))
    assert count([y], {x: ()})["multiply"] == 1
    check([y], {x: 1.5})
    check([z], {x: 1.5})


def test_variables_whose_history_is_needed():
    """The product is needed for the gradient alone, and not for its final value."""
    x = ab.placeholder((None, 3), "float32", "x")
    _, total, _ = ab.while_loop(
        lambda i, *_: i < 3, lambda i, a, b: (i + 1, a + ops.tanh(b), b * x), (0, ops.zeros_like(x), x)
    )
    check([total, *ab.gradients(ops.sum(total), [x])], {x: values(2, 3)})


def test_a_loop_for_its_effects_alone():
    v = ab.Variable(1.0, name="v")
    x = ab.placeholder((None,), "float32", "x")

    def body(a: Tensor) -> Tensor:
        v.assign(v * 2)
        return ops.sin(a)

    y = ab.while_loop(lambda a: v < 10, body, x)
    assert count([y.operation], {x: (3,)})["sin"] == 0
    ab.Session().run(y.operation, {x: values(3)})
    assert v.numpy() == 16


def test_arrays_that_nothing_reads():
    x = ab.placeholder((None, 3), "float32", "x")
    total, outputs = ab.scan(lambda a, row: (ops.tanh(a + row), ops.exp(row)), ops.sum(x, axis=0), x)
    found = count([total], {x: (4, 3)})
    assert (found["exp"], found["array_write"]) == (0, 0)
    assert count([outputs], {x: (4, 3)})["tanh"] == 0
    check([total], {x: values(4, 3)})
    check([outputs], {x: values(4, 3)})


def test_loops_inside_a_branch_that_nothing_needs():
    x = ab.placeholder((None,), "float32", "x")

    def branch() -> Any:
        _, a, b = ab.while_loop(lambda i, *_: i < 3, lambda i, a, b: (i + 1, ops.sin(a), ops.cos(b)), (0, x, x))
        return a, b

    a, b = ab.cond(ops.sum(x) > 0, branch, lambda: (x, -x))
    found = count([a], {x: (3,)})
    assert (found["sin"], found["cos"]) == (1, 0)
    check([a], {x: np.abs(values(3))})
    check([b, *ab.gradients(ops.sum(b), [x])], {x: np.abs(values(3))})


def test_operations_inside_a_loop_that_nothing_needs():
    x = ab.placeholder((None,), "float32", "x")

    def body(i: Tensor, a: Tensor) -> Any:
        ops.sin(a)
        return i + 1, ops.cos(a)

    _, y = ab.while_loop(lambda i, a: i < 3, body, (0, x))
    found = count([y], {x: (3,)})
    assert (found["sin"], found["cos"]) == (0, 1)
    check([y], {x: values(3)})


def test_histories_that_nothing_needs_are_not_kept():
    x = ab.placeholder((None, 3), "float32", "x")
    y = looped(x)
    (gradient,) = ab.gradients(ops.sum(y), [x])
    session = ab.Session()
    session.run(y, {x: values(4, 3)})
    assert session.statistics().saved_bytes == 0
    session.run(gradient, {x: values(4, 3)})
    assert session.statistics().saved_bytes > 0
    assert count([y], {x: (4, 3)})["history"] == 0


def test_effects_inside_regions_stay():
    v = ab.Variable(0.0, name="v")
    x = ab.placeholder((None,), "float32", "x")

    def body(i: Tensor, a: Tensor) -> Any:
        v.assign_add(ops.sum(a))
        return i + 1, a + 1

    _, y = ab.while_loop(lambda i, a: i < 3, body, (0, x))
    ab.Session().run(y, {x: [1.0, 2.0]})
    assert v.numpy() == 3 + 5 + 7


# --- loops whose shapes change --------------------------------------------------------------------------------------


def test_a_carry_that_grows():
    x = ab.placeholder((None,), "float32", "x")
    trips = ab.placeholder((), "int32", "trips")

    def body(i: Tensor, a: Tensor) -> Any:
        return i + 1, ops.concatenate([a, ops.tanh(a[-1:] * 2 + 1)])

    _, y = ab.while_loop(
        lambda i, a: i < trips, body, (0, x), shape_invariants=(ab.constant(0).spec, TensorSpec((None,), x.dtype))
    )
    (gradient,) = ab.gradients(ops.sum(y * y), [x])
    for size, count in ((1, 0), (1, 3), (4, 2)):
        check([y, gradient], {x: values(size), trips: count})


def test_a_carry_that_becomes_known():
    """A loop variable that starts open and is of the fed shape from then on."""
    x = ab.placeholder((None, 3), "float32", "x")
    y = ab.placeholder((None, 3), "float32", "y")
    _, z = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ops.tanh(a * y + 1)), (0, x))
    check([z], {x: values(4, 3), y: values(4, 3)})
    check([z, *ab.gradients(ops.sum(z), [x, y])], {x: values(1, 3), y: values(4, 3)})


def test_nested_loops_that_grow():
    x = ab.placeholder((None,), "float32", "x")
    spec = TensorSpec((None,), x.dtype)
    counter = ab.constant(0).spec

    def outer(i: Tensor, a: Tensor) -> Any:
        def inner(j: Tensor, b: Tensor) -> Any:
            return j + 1, ops.concatenate([b, b[:1] + a[-1:]])

        _, grown = ab.while_loop(lambda j, b: j <= i, inner, (0, a), shape_invariants=(counter, spec))
        return i + 1, grown * 0.5

    _, y = ab.while_loop(lambda i, a: i < 3, outer, (0, x), shape_invariants=(counter, spec))
    check([y, *ab.gradients(ops.sum(y * y), [x])], {x: values(2)})


def test_branches_of_different_shapes_in_a_loop():
    x = ab.placeholder((None,), "float32", "x")

    def body(i: Tensor, a: Tensor) -> Any:
        return i + 1, ab.cond(i < 1, lambda: ops.concatenate([a, a]), lambda: a * 2 - 1)

    invariants = (ab.constant(0).spec, TensorSpec((None,), x.dtype))
    _, y = ab.while_loop(lambda i, a: i < 3, body, (0, x), shape_invariants=invariants)
    check([y, *ab.gradients(ops.sum(y * y), [x])], {x: values(3)})


def test_growing_arrays():
    x = ab.placeholder((None, 3), "float32", "x")

    def body(i: Tensor, array: Any) -> Any:
        return i + 1, array.write(i, ops.tanh(x * 2 + ops.cast(i, "float32")))

    array = ab.TensorArray("float32", 0, dynamic_size=True)
    _, filled = ab.while_loop(lambda i, array: i < 4, body, (0, array))
    y = filled.stack()
    check([y, *ab.gradients(ops.sum(y * y), [x])], {x: values(2, 3)})
