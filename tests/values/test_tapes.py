"""Gradients of what ran at once. Each holds for Keras, too, where it has the names."""

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.values import plain, refused, same

import anabranch as k
from anabranch.engine.ops.immediate import watch

_AROUND = ("broadcast_reduced", "broadcast_to_shape", "put_item")


def test_tape_of_one_value() -> None:
    x = k.ops.array(3.0)
    with k.GradientTape() as tape:
        tape.watch(x)
        y = x * x + k.ops.sin(x)
    same(tape.gradient(y, x), np.float32(6 + np.cos(3.0)))


def test_tape_watches_variables() -> None:
    v, w, fixed = k.Variable([1.0, 2.0]), k.Variable(3.0), k.Variable(2.0, trainable=False)
    with k.GradientTape() as tape:
        y = k.ops.sum(v * v) * w * fixed
    dv, dw, none = tape.gradient(y, [v, w, k.Variable(1.0)])
    same(dv, [12.0, 24.0])
    same(dw, 10.0)
    assert none is None
    assert len(tape.watched_variables()) == 2


def test_tape_of_a_variable_itself() -> None:
    v, w = k.Variable([2.0, 3.0]), k.Variable([4.0, 5.0])
    constant = k.Variable(1.0, trainable=False)
    with k.GradientTape(persistent=True) as tape:
        largest = max(v, w, key=lambda variable: float(variable[0]))
        inside = tape.gradient(v, [v, w])
        double = v * 2.0
    for found in (tape.gradient(largest, [v, w]), inside[::-1]):
        assert found[0] is None
        np.testing.assert_array_equal(found[1], [1.0, 1.0])
    np.testing.assert_array_equal(tape.gradient([v, double, w], v), [3.0, 3.0])
    np.testing.assert_array_equal(tape.jacobian(v, v), np.eye(2))
    assert tape.gradient(constant, constant) is None
    with k.GradientTape() as tape:
        tape.watch(constant)
    assert tape.gradient(constant, constant).numpy() == 1.0


def test_tape_sees_assignments_as_they_come() -> None:
    v = k.Variable(2.0)
    with k.GradientTape() as tape:
        y = v * v
        v.assign(5.0)
        z = v * 3
    assert float(y) == 4.0
    assert float(z) == 15.0
    same(tape.gradient([y, z], v), 7.0)


def test_tape_persistent_or_not() -> None:
    x = k.ops.array(2.0)
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * y
    same(tape.gradient(z, x), 32.0)
    same(tape.gradient(y, x), 4.0)
    same(tape.gradient(z, y), 8.0)
    with k.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    tape.gradient(y, x)
    refused(lambda: tape.gradient(y, x), RuntimeError)


_IMAGE = np.arange(9.0, dtype="float32").reshape(1, 3, 3, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: k.ops.full((3,), a) * b,
        lambda a, b: k.ops.full_like(_IMAGE, a) * b,
        lambda a, b: k.ops.pad(_IMAGE, 1, constant_values=a) * b,
        lambda a, b: k.ops.arange(a, 3.0, b),
        lambda a, b: k.ops.image.scale_and_translate(
            _IMAGE, (1, 4, 4, 1), k.ops.stack([a, b]), [a, a], (1, 2), "cubic"
        ),
        lambda a, b: k.ops.power(_IMAGE + b, a),
    ],
    ids=["full", "full_like", "pad", "arange", "scale_and_translate", "power"],
)
def test_parameters_of_functions_have_gradients_as_values_constants_and_symbols(function: Callable[..., Any]) -> None:
    def derived(xs: Any) -> list[Any]:
        slopes = k.gradients(k.ops.sum(k.ops.sin(function(*xs))), xs)
        return [*slopes, *k.gradients(k.ops.sum(k.ops.sin(k.ops.stack(slopes))), xs)]

    at = [np.float32(0.7), np.float32(0.8)]
    with k.Graph().as_default():
        symbols = [k.placeholder((), "float32") for _ in at]
        expected = k.Session().run(derived(symbols), dict(zip(symbols, at, strict=True)))
        of_constants = k.Session().run(derived([k.constant(number) for number in at]))
    with k.GradientTape(persistent=True) as tape:
        values = [k.ops.array(number) for number in at]
        tape.watch(values)
        of_values = derived(values)
    for found in (of_constants, of_values):
        for one, other in zip(found, expected, strict=True):
            same(one, other)


@pytest.mark.parametrize("name", ["array", "cast", "reshape", "squeeze", "real", "broadcast_to", "transpose", "flip"])
@pytest.mark.parametrize("is_in_graph", [False, True])
def test_a_tensor_of_a_number_is_not_the_factor_with_that_number(name: str, is_in_graph: bool) -> None:
    more = {"cast": ["float32"], "reshape": [()], "broadcast_to": [()]}

    def slope() -> Any:
        x = getattr(k.ops, name)(2.0, *more.get(name, []))
        with k.GradientTape() as tape:
            tape.watch(x)
            y = x * 2.0 + x * 1.0 + k.ops.full((3,), 2.0) + 2.0**1.5
        return tape.gradient(y, x)

    if not is_in_graph:
        same(slope(), 9.0)
        return
    with k.Graph().as_default():
        same(k.Session().run(slope()), 9.0)


def test_values_that_are_no_numbers_of_python_are_given_back_as_they_are() -> None:
    for number in range(200):
        k.ops.array(0.0)  # numbers that are not shared may have had the identity of a value that comes later
        x = k.ops.array(np.float32(number))
        with k.GradientTape() as tape:
            tape.watch(x)
            y = k.ops.reshape(x, ())
        same(tape.gradient(y, x), 1.0)


@pytest.mark.parametrize("exponent", [-1.5, 0.0, 1.0, 3.0])
def test_mixed_second_derivatives_of_a_power_by_a_scalar_exponent(exponent: float) -> None:
    x, y = k.ops.array(1.7), k.ops.array(exponent)
    with k.GradientTape() as outer:
        outer.watch(y)
        with k.GradientTape() as inner:
            inner.watch([x, y])
            z = k.ops.power(x, y)
        slope = inner.gradient(z, x)
    same(outer.gradient(slope, y), 1.7 ** (exponent - 1) * (1 + exponent * np.log(1.7)), 1e-5)


def test_tape_in_tape() -> None:
    x = k.ops.array(2.0)
    with k.GradientTape() as outer:
        outer.watch(x)
        with k.GradientTape() as middle:
            middle.watch(x)
            with k.GradientTape() as inner:
                inner.watch(x)
                y = x**4
            first = inner.gradient(y, x)
        second = middle.gradient(first, x)
    third = outer.gradient(second, x)
    same(first, 32.0)
    same(second, 48.0)
    same(third, 48.0)


def test_tape_of_what_came_before() -> None:
    v, x = k.Variable(2.0), k.ops.array(3.0)
    before = v * v
    with k.GradientTape(persistent=True) as tape:
        y = before * v
        z = x * v
    same(tape.gradient(y, v), 4.0)
    assert tape.gradient(y, before) is None
    assert tape.gradient(z, x) is None
    same(tape.gradient(z, x, unconnected_gradients="zero"), 0.0)


def test_tape_pauses() -> None:
    x, v = k.ops.array(3.0), k.Variable(2.0)
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        with tape.stop_recording():
            hidden = y * 2
        z = y + hidden + k.ops.stop_gradient(y)
        tape.reset()
        w = v * v * y
    assert tape.gradient(z, x) is None
    same(tape.gradient(w, v), 36.0)
    with k.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        with tape.stop_recording():
            hidden = y * 2
        z = y * hidden
    same(tape.gradient(z, x), 108.0)


def test_tape_watches_only_what_it_is_told() -> None:
    v, w = k.Variable(2.0), k.Variable(3.0)
    with k.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(v)
        y = v * w
    dv, dw = tape.gradient(y, [v, w])
    same(dv, 3.0)
    assert dw is None


def test_tape_of_structures() -> None:
    a, b = k.Variable([1.0, 2.0]), k.Variable([3.0, 4.0])
    with k.GradientTape() as tape:
        y = a * b
    found = tape.gradient(y, {"a": a, "b": b}, output_gradients=k.ops.array([1.0, 10.0]))
    same(found["a"], [3.0, 40.0])
    same(found["b"], [1.0, 20.0])


def test_tape_jacobian() -> None:
    x = k.ops.array([1.0, 2.0])
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = k.ops.stack([x[0] * x[1], x[0] ** 2, x[1] ** 3])
    same(tape.jacobian(y, x), [[2.0, 1.0], [2.0, 0.0], [0.0, 12.0]])
    rows = k.ops.array([[1.0, 2.0], [3.0, 4.0]])
    with k.GradientTape() as tape:
        tape.watch(rows)
        y = rows**2
    same(tape.batch_jacobian(y, rows), [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]])


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 2)])
def test_tape_jacobian_of_targets_of_any_rank(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    x, factors = k.ops.array(np.linspace(1, 2, 4)), np.arange(size * 4.0).reshape(*shape, 4)
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = k.ops.sum(factors * x**2, axis=-1)
    same(tape.jacobian(y, x), factors * 2 * np.linspace(1, 2, 4))
    weight = k.Variable(np.ones((2, 3), "float32"))
    with k.GradientTape() as tape:
        y = k.ops.array([[1.0, 2.0]]) @ weight
    same(tape.jacobian(y, weight), np.einsum("i,jk->jik", [1.0, 2.0], np.eye(3))[None])


def test_tape_jacobian_of_many_elements_takes_no_memory_of_their_square() -> None:
    x = k.ops.array(2.0)
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * np.ones((40, 40), "float32")
    tape.jacobian(y, x)  # what is kept of the first one, such as programs, depends on what the process ran before
    tracemalloc.start()
    try:
        same(tape.jacobian(y, x), np.ones((40, 40)))
        assert tracemalloc.get_traced_memory()[1] < 5e6  # all units at once are 10.24e6 bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_tape_batch_jacobian_of_rows_of_any_rank(shape: tuple[int, ...]) -> None:
    factors, rows = np.arange(int(np.prod(shape)) * 8.0).reshape(2, *shape, 4), np.linspace(1, 2, 8).reshape(2, 4)
    x = k.ops.array(rows)
    with k.GradientTape() as tape:
        tape.watch(x)
        y = k.ops.sum(factors * k.ops.reshape(x, (2, *(1 for _ in shape), 4)) ** 2, axis=-1)
    same(tape.batch_jacobian(y, x), factors * 2 * rows.reshape(2, *(1 for _ in shape), 4))


def test_tape_of_hessian() -> None:
    x = k.ops.array([1.0, 2.0])
    with k.GradientTape() as outer:
        outer.watch(x)
        with k.GradientTape() as inner:
            inner.watch(x)
            y = x[0] ** 2 * x[1] ** 3
        slope = inner.gradient(y, x)
    same(outer.jacobian(slope, x), [[16.0, 24.0], [24.0, 12.0]])


def test_tape_through_python_loops() -> None:
    x = k.Variable(1.5)
    with k.GradientTape() as tape:
        y, turns = x * 1.0, 0
        while y < 100:
            y = y * y
            turns += 1
    assert turns == 4
    same(tape.gradient(y, x), np.float32(16 * 1.5**15))


def test_tape_through_loops_and_branches() -> None:
    x = k.ops.array(2.0)
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        _, power = k.ops.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), (k.ops.array(0), x))
        chosen = k.ops.cond(x > 1, lambda: power * 2, lambda: power)
        total, _ = k.ops.scan(lambda c, i: (c + i * x, c), k.ops.array(0.0), k.ops.array([1.0, 2.0]))
    same(power, 16.0)
    same(tape.gradient(power, x), 32.0)
    same(tape.gradient(chosen, x), 64.0)
    same(tape.gradient(total, x), 3.0)


def test_tape_through_layers() -> None:
    layer = k.layers.Dense(1, kernel_initializer="ones", activation="relu")
    x = k.ops.array([[1.0, 2.0], [-3.0, 1.0]])
    with k.GradientTape() as tape:
        tape.watch(x)
        y = k.ops.sum(layer(x) ** 2)
    dx, dw, db = tape.gradient(y, [x, *layer.trainable_variables])
    same(dx, [[6.0, 6.0], [0.0, 0.0]])
    same(dw, [[6.0], [12.0]])
    same(db, [6.0])


def test_tape_through_recurrent_layers() -> None:
    k.utils.set_random_seed(9)
    layer = k.layers.LSTM(3)
    x = np.linspace(-1, 1, 2 * 5 * 2, dtype="float32").reshape(2, 5, 2)
    layer(x)
    with k.GradientTape() as tape:
        y = k.ops.sum(layer(k.ops.array(x)) ** 2)
    gradient = plain(tape.gradient(y, layer.trainable_variables)[0])
    kernel = layer.trainable_variables[0]
    start, step = plain(kernel).copy(), np.zeros(plain(kernel).shape, "float32")
    step[1, 2] = 1e-2
    kernel.assign(start + step)
    above = float(k.ops.sum(layer(x) ** 2))
    kernel.assign(start - step)
    below = float(k.ops.sum(layer(x) ** 2))
    same(np.float32(gradient[1, 2]), np.float32((above - below) / 2e-2), 1e-3)


def test_tape_of_looked_up_rows() -> None:
    embedding = k.layers.Embedding(4, 2, embeddings_initializer="ones")
    with k.GradientTape() as tape:
        y = k.ops.sum(embedding(k.ops.array([1, 1, 3])) * 2)
    gradients = tape.gradient(y, embedding.trainable_variables)
    k.optimizers.SGD(0.5).apply(gradients, embedding.trainable_variables)
    same(embedding.embeddings, [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])


def test_tape_around_batch_normalization() -> None:
    layer = k.layers.BatchNormalization(momentum=0.5, epsilon=0.0)
    x = k.ops.array([[1.0], [3.0]])
    with k.GradientTape() as tape:
        y = k.ops.sum(layer(x, training=True) * k.ops.array([[1.0], [2.0]]))
    gamma, beta = tape.gradient(y, layer.trainable_variables)
    same(gamma, [1.0])
    same(beta, [3.0])
    same(layer.moving_mean, [1.0])


def test_custom_gradients_of_values() -> None:
    @k.ops.custom_gradient
    def clipped(x):
        return x * 2, lambda *args, upstream=None: (args[0] if upstream is None else upstream) * 10

    same(clipped(k.ops.array([1.0, 2.0])), [2.0, 4.0])


def test_tape_of_custom_gradients() -> None:
    @k.ops.custom_gradient
    def tenfold(x):
        return x * 2, lambda upstream: upstream * 10

    x = k.ops.array(1.0)
    with k.GradientTape() as tape:
        tape.watch(x)
        y = tenfold(x) * 3
    same(tape.gradient(y, x), 30.0)


def test_tapes_in_threads() -> None:
    found = {}

    def work(number):
        v = k.Variable(float(number))
        with k.GradientTape() as tape:
            y = v
            for _ in range(20):
                y = y + v * v
        found[number] = float(tape.gradient(y, v))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == {number: 1.0 + 40.0 * number for number in range(4)}, found


def test_gradients_inside_a_tape() -> None:
    v, x = k.Variable(2.0), k.ops.array([1.0, 2.0])
    with k.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = k.ops.sum(x * x) * v
        dx, dv = k.gradients(y, [x, v])
    same(dx, [4.0, 8.0])
    same(dv, 5.0)
    same(k.Session().run(tape.gradient(y, v)), 5.0)


def _reads_around_a_write(v: Any, w: Any) -> Any:
    before = v * 2.0
    v.assign_add(k.ops.ones(2))
    return before * v


def _returns_what_it_wrote(v: Any, w: Any) -> Any:
    v.assign_add(k.ops.ones(2))
    return v * 1.0


def _writes_a_product(v: Any, w: Any) -> Any:
    v.assign(v * w)
    return v * v


def _writes_twice(v: Any, w: Any) -> Any:
    v.assign(v * 3.0)
    first = v * w
    v.assign(first)
    w.assign(w + 1.0)
    return first + v * w


def _reads_twice(v: Any, w: Any) -> Any:
    with k.control_dependencies([k.ops.assert_greater(w, 0.0)]):
        return v * v * w + k.ops.sum(v)


WRITING = [_reads_around_a_write, _returns_what_it_wrote, _writes_a_product, _writes_twice, _reads_twice]


@pytest.mark.parametrize("compute", WRITING)
def test_tape_of_functions_that_write_variables(compute: Callable[..., Any]) -> None:
    """Reads before and after a write count as they do outside of functions, also when one is called again."""
    found = []
    for function in (compute, k.function(compute)):
        v, w = k.Variable([2.0, 3.0]), k.Variable(5.0)
        for _ in range(2):
            with k.GradientTape() as tape:
                y = k.ops.convert_to_tensor(function(v, w))
            v_after = v.numpy().copy()
            v.assign(v + 100.0)  # the gradient is that of the values which the function has read
            found.append([y, *tape.gradient(y, [v, w]), v_after])
            v.assign(v_after)
    for eager, traced in zip(found[:2], found[2:], strict=True):
        for one, other in zip(eager, traced, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                same(other, one)


def test_tape_of_a_function_that_updates_moving_statistics() -> None:
    x = k.ops.convert_to_tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 9.0]])
    found = []
    for traces in (False, True):
        layer = k.layers.BatchNormalization()
        layer.build((None, 2))
        call = k.function(lambda x, layer=layer: layer(x, training=True) ** 3) if traces else None
        with k.GradientTape() as tape:
            y = call(x) if call else layer(x, training=True) ** 3
        found.append([*tape.gradient(y, layer.trainable_variables), *[v.numpy() for v in layer.variables]])
    for eager, traced in zip(*found, strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-5, atol=1e-5)


def _matrices() -> list[Any]:
    a, b = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3, 3))
    return [a, b]


OF_ONE_INPUT: dict[str, tuple[Callable[[Any, Any], Any], list[str], list[str]]] = {
    "matmul": (k.ops.matmul, ["matmul"], ["matmul"]),
    "stacks": (lambda a, b: k.ops.matmul(a[None], b[None]), ["batch_matmul"], ["batch_matmul"]),
    "multiply": (k.ops.multiply, ["multiply"], ["multiply"]),
    "subtract": (k.ops.subtract, [], ["negative"]),
    "divide": (k.ops.divide, ["divide"], ["divide", "multiply", "negative"]),
    "add to a row": (lambda a, b: a + k.ops.sum(b, 0), [], ["sum_to_shape"]),
    "power": (
        k.ops.power,
        ["multiply", "multiply", "power", "subtract"],
        ["greater", "log", "multiply", "multiply", "where", "where"],
    ),
    "einsum": (lambda a, b: k.ops.einsum("ijk,ilk->ijl", a[None], b[None]), ["contraction"], ["contraction"]),
    "where": (lambda a, b: k.ops.where(a > 1, a, b), ["where"], ["where"]),
    "maximum": (
        k.ops.maximum,
        ["equal", "greater", "multiply", "where", "where"],
        ["equal", "greater", "multiply", "where", "where"],
    ),
    "conv": (
        lambda a, b: k.ops.conv(a[None], b[None], padding="same"),
        ["conv_input_grad"],
        ["conv_filter_grad"],
    ),
}


@pytest.mark.parametrize(("call", "first", "second"), OF_ONE_INPUT.values(), ids=OF_ONE_INPUT)
def test_gradient_of_one_input_computes_no_other(
    call: Callable[[Any, Any], Any], first: list[str], second: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [k.ops.array(matrix) for matrix in _matrices()]
    with k.GradientTape() as tape:
        tape.watch(both)
        z = call(*both)
    whole = tape.gradient(z, both)
    for position, expected in enumerate((first, second)):
        with k.GradientTape() as tape:
            tape.watch(both[position])
            z = call(*both)
        ran: list[str] = []
        monkeypatch.setattr(watch, "check", lambda op, given, results, ran=ran: ran.append(op.type_name))
        found = tape.gradient(z, both[position])
        monkeypatch.undo()
        same(found, whole[position].numpy())
        ran = sorted(name for name in ran if name not in _AROUND)
        assert ran == expected


def test_threads_sweep_one_tape_for_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = k.ops.array(2.0), k.ops.array(3.0)
    with k.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        z = x * w
    others: list[Any] = []

    def in_the_middle(op: Any, given: Any, results: Any) -> None:
        if op.type_name == "multiply":  # of the rule's two products one has run
            monkeypatch.undo()
            thread = threading.Thread(target=lambda: others.append(tape.gradient(z, x)))
            thread.start()
            thread.join()

    monkeypatch.setattr(watch, "check", in_the_middle)
    dx, dw = tape.gradient(z, [x, w])
    same(dx, 3.0)
    same(dw, 2.0)
    same(others[0], 3.0)
