"""`numpy_function`: values, declared dtypes and shapes, errors, effects, and gradients of any order."""

from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Symbol, Tensor, Variable, as_dtype, eagerly
from anabranch.engine.ops.text.escape import numpy_function
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.saving import SavedGraphError, graph_to_dict
from anabranch.engine.session import Session, function, placeholder


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def every_road(graph: Graph, fetches: list[Any], feeds: dict[Symbol, Any]) -> list[Any]:
    """The fetched values, after all ways to run the graph gave the same."""
    expected = Interpreter().run(graph, fetches, feeds)
    for exact in (True, False):
        program = Program(graph, fetches, list(feeds), exact=exact)
        for value, wanted in zip(program(*feeds.values()), expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)
    return expected


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "bfloat16", "float32", "complex128", "string"])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_dtype_goes_in_and_out(graph: Graph, name: str, rank: int):
    dtype = as_dtype(name)
    value = np.array(["a", "b"], dtype) if name == "string" else np.array([0, 1]).astype(dtype)
    given = value if rank else value[1:].reshape(())
    x = placeholder(given.shape, name, "x")
    y = numpy_function(lambda a: a, [x], name, shape=given.shape)

    found = Session(graph).run(y, {x: given})

    assert (y.dtype, y.shape) == (dtype, given.shape)
    np.testing.assert_array_equal(found, given)


def test_several_inputs_and_outputs(graph: Graph):
    x, n = placeholder((None,), "float32", "x"), placeholder((), "int32", "n")

    def split(a: Any, k: Any) -> Any:
        return a[:k], a[k:], k + 1

    first, second, following = numpy_function(split, [x, n], ["float32", "float32", "int32"], shape=[(None,), None, ()])

    assert [str(t.spec) for t in (first, second, following)] == ["float32[?]", "float32[...]", "int32[]"]
    feeds = {x: np.array([1, 2, 3], "float32"), n: np.int32(1)}
    values = every_road(graph, [first, second * 2, following], feeds)
    assert [value.tolist() for value in values] == [[1], [4, 6], 2]


@pytest.mark.parametrize(
    ("returned", "dtype", "expected"),
    [
        (3, "float32", 3.0),
        ([1, 2], "float64", [1, 2]),
        (2.5, "bfloat16", 2.5),
        (True, "bool", True),
        ("text", "string", "text"),
        (["a", b"b"], "string", ["a", "b"]),
        (np.array(["a", "b"]), "string", ["a", "b"]),
        ([], "int32", []),
        ([np.array([1, 2], "int32")], "int32", [1, 2]),
    ],
)
def test_python_values_take_the_declared_dtype(graph: Graph, returned: Any, dtype: str, expected: Any):
    y = numpy_function(lambda: returned, [], dtype)

    found = Session(graph).run(y)

    assert np.asarray(found).tolist() == expected
    assert y.dtype == as_dtype(dtype)


def test_single_values_come_as_scalars(graph: Graph):
    kinds: list[type] = []
    numpy_op = numpy_function(
        lambda *args: kinds.extend(map(type, args)), [1.5, "text", ops.constant([1])], [], name="kinds"
    )

    Session(graph).run(numpy_op)

    assert kinds == [np.float32, str, np.ndarray]
    assert numpy_op.name == "kinds"


def test_the_function_can_write_into_nothing_of_ours(graph: Graph):
    def writes(a: Any) -> Any:
        a += 1
        return a

    v = Variable([1.0, 2.0])
    y = numpy_function(writes, v, "float32")

    with pytest.raises(ValueError, match="read-only"):
        Session(graph).run(y)
    assert v.numpy().tolist() == [1, 2]


def test_results_are_copied(graph: Graph):
    buffer = np.zeros(1, "float32")

    def next_value() -> Any:
        buffer[0] += 1
        return buffer

    _, first, last = while_loop(
        lambda i, *_: i < 3,
        lambda i, first, _: (i + 1, *(lambda y: (ops.where(ops.equal(i, 0), y, first), y))(
            numpy_function(next_value, [], "float32", shape=(1,))
        )),
        (0, ops.zeros((1,)), ops.zeros((1,))),
    )  # fmt: skip

    assert [value.tolist() for value in Session(graph).run([first, last])] == [[1], [3]]


# --- what does not fit ----------------------------------------------------------------------------------------------


def badly(a: Any) -> Any:
    return badly.result(a)  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (
            lambda a: a.astype("float64"),
            TypeError,
            r"badly returned float64, but Tout says float32. Return value.astype",
        ),
        (lambda a: a > 0, TypeError, "badly returned bool, but Tout says float32"),
        (lambda a: "text", TypeError, "badly returned string, but Tout says float32"),
        (lambda a: [1j], TypeError, "badly returned complex"),
        (lambda a: None, TypeError, "badly returned NoneType, which can't become a tensor"),
        (lambda a: [[1], [1, 2]], TypeError, "badly returned list, which can't become a tensor"),
        (lambda a: a[:1], ValueError, r"badly returned shape \[1\], but shape=\[2\] was declared"),
        (lambda a: (a, a), ValueError, r"badly returned shape \[2,2\], but shape=\[2\] was declared"),
    ],
)
def test_results_that_are_not_as_declared(graph: Graph, result: Any, error: type[Exception], message: str):
    badly.result = result  # pyright: ignore[reportFunctionMemberAccess]
    x = placeholder((2,), "float32", "x")
    y = numpy_function(badly, x, "float32", shape=(2,))

    with pytest.raises(error, match=f"numpy_function: {message}") as caught:
        Session(graph).run(y, {x: [1, 2]})

    assert "test_numpy_function.py" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda a: a, "returned 1 values, but Tout names 2"),
        (lambda a: (a, a, a), "returned 3 values, but Tout names 2"),
        (lambda a: None, "returned 0 values, but Tout names 2"),
        (lambda a: (a, a), "returned float32 as output 1, but Tout says int32"),
        (lambda a: (a, None), "returned NoneType as output 1, which can't become a tensor"),
    ],
)
def test_several_results_that_are_not_as_declared(graph: Graph, result: Any, message: str):
    x = placeholder((2,), "float32", "x")
    ys = numpy_function(result, x, ["float32", "int32"])

    with pytest.raises(TypeError, match=message):
        Session(graph).run(ys, {x: [1, 2]})


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: numpy_function(3, [], "int32"), TypeError, "numpy_function takes a function; got int"),  # pyright: ignore[reportArgumentType]
        (
            lambda: numpy_function(abs, [1], ["int32"], shape=3),
            ValueError,
            "a list of 1 shapes, as Tout is a list; got 3",
        ),
        (lambda: numpy_function(abs, [1], ["int32"] * 2, shape=[()]), ValueError, "a list of 2 shapes"),
        (lambda: numpy_function(abs, [1], "nothing"), ValueError, "Unknown dtype 'nothing'"),
    ],
)
def test_wrong_arguments(build: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        build()


def test_exceptions_keep_their_type_and_gain_the_line(graph: Graph):
    class OwnError(Exception):
        pass

    def raising(a: Any) -> Any:
        raise OwnError("mine")

    x = placeholder((2,), "float32", "x")
    _, y = while_loop(
        lambda i, _: i < 2, lambda i, t: (i + 1, numpy_function(raising, t, "float32", shape=(2,))), (0, x)
    )

    with pytest.raises(OwnError) as caught:
        Session(graph).run(y, {x: [1, 2]})

    assert str(caught.value) == "mine"
    note = caught.value.__notes__[0]
    assert note.startswith("In operation 'raising' (numpy_function)")
    assert "inputs: float32[2]; defined at" in note


# --- effects --------------------------------------------------------------------------------------------------------


class Counter:
    """A function with a state."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def __call__(self, a: Any) -> Any:
        self.calls.append(float(a))
        return np.float32(len(self.calls))


def test_stateful_calls_are_never_one(graph: Graph):
    counter = Counter()
    calls = [numpy_function(counter, 1.0, "float32") for _ in range(3)]

    assert Session(graph).run(calls) == [1, 2, 3]


def test_pure_calls_are_one_and_only_if_needed(graph: Graph):
    counter = Counter()
    x = placeholder((), "float32", "x")
    calls = [numpy_function(counter, x, "float32", stateful=False) for _ in range(3)]
    session = Session(graph)

    assert session.run(calls, {x: 1.0}) == [1, 1, 1]
    session.run(x + 1, {x: 1.0})
    assert len(counter.calls) == 1


@eagerly()
def test_stateful_calls_run_in_functions_although_nothing_uses_them():
    stateful, pure = Counter(), Counter()

    @function
    def f(x: Any) -> Any:
        numpy_function(stateful, x, "float32")
        numpy_function(pure, x, "float32", stateful=False)
        return x + 1

    f(np.float32(1))
    f(np.float32(2))

    assert (stateful.calls, pure.calls) == ([1, 2], [])


def test_calls_in_loops_and_branches_keep_program_order(graph: Graph):
    counter = Counter()
    x = placeholder((), "float32", "x")

    def body(i: Tensor, t: Tensor) -> Any:
        numpy_function(counter, t, "float32")
        cond(i > 0, lambda: numpy_function(counter, -t, "float32"), lambda: 0.0)
        return i + 1, t + 1

    before = numpy_function(counter, x * 10, "float32")
    _, t = while_loop(lambda i, _: i < 3, body, (0, x))
    after = numpy_function(counter, x * 100, "float32")

    Session(graph).run([after, t, before], {x: 1.0})

    assert counter.calls == [10, 1, 2, -2, 3, -3, 100]


def test_a_session_runs_what_is_fetched_alone(graph: Graph):
    counter = Counter()
    y = numpy_function(counter, 1.0, "float32")
    z = ops.constant(2.0) + 1

    Session(graph).run(z)
    assert counter.calls == []
    Session(graph).run([y, z])
    assert counter.calls == [1]


def test_a_call_of_python_can_not_be_saved(graph: Graph):
    numpy_function(Counter(), 1.0, "float32", name="call")

    with pytest.raises(SavedGraphError, match="'call'"):
        graph_to_dict(graph)


# --- gradients ------------------------------------------------------------------------------------------------------


def power(n: int, x: Tensor) -> Tensor:
    """``x ** n`` by NumPy, whose gradient is made of the next lower power."""

    def slope(inputs: list[Tensor], outputs: list[Tensor], cotangents: list[Any]) -> Any:
        return cotangents[0] * n * power(n - 1, inputs[0])

    return numpy_function(lambda a: a**n, x, x.dtype, stateful=False, shape=x.shape, grad=slope)


def derivatives(y: Tensor, x: Tensor, order: int) -> list[Tensor]:
    found = [y]
    for _ in range(order):
        found.append(gradients(ops.sum(found[-1]), [x])[0])
    return found


def test_gradients_of_any_order(graph: Graph):
    x = placeholder((None,), "float64", "x")
    values = np.array([0.5, -2.0])

    found = every_road(graph, derivatives(power(4, x), x, 4), {x: values})

    for value, wanted in zip(found, [values**4, 4 * values**3, 12 * values**2, 24 * values, [24, 24]], strict=True):
        np.testing.assert_allclose(value, wanted)


def test_gradients_through_loops(graph: Graph):
    x = placeholder((None,), "float64", "x")
    _, y = while_loop(lambda i, _: i < 2, lambda i, t: (i + 1, power(3, t)), (0, x))
    values = np.array([0.9, 1.1])

    found = every_road(graph, derivatives(y, x, 2), {x: values})

    for value, wanted in zip(found, [values**9, 9 * values**8, 72 * values**7], strict=True):
        np.testing.assert_allclose(value, wanted)


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_through_branches(graph: Graph, taken: bool):
    x, flag = placeholder((2,), "float64", "x"), placeholder((), "bool", "flag")
    y = cond(flag, lambda: power(3, x), lambda: x)
    values = np.array([0.5, 2.0])

    found = every_road(graph, derivatives(y, x, 2)[:2], {x: values, flag: np.bool_(taken)})

    np.testing.assert_allclose(found[1], 3 * values**2 if taken else [1, 1])


def test_grad_functions_are_given_all_they_may_need(graph: Graph):
    x, k = placeholder((2,), "float32", "x"), placeholder((), "int32", "k")
    seen: list[Any] = []

    def slope(inputs: list[Tensor], outputs: list[Tensor], cotangents: list[Any]) -> Any:
        seen.append((inputs, outputs, cotangents))
        return [outputs[1] * cotangents[0] + inputs[0] * cotangents[1], None]

    a, b, count = numpy_function(
        lambda v, n: (v * v, 2 * v, n), [x, k], ["float32", "float32", "int32"], shape=[(2,), (2,), ()], grad=slope
    )
    (dx,) = gradients(a, [x])

    ((inputs, outputs, cotangents),) = seen
    assert (inputs, outputs, cotangents[2]) == ([x, k], [a, b, count], None)
    assert every_road(graph, [dx], {x: np.array([1, 3], "float32"), k: np.int32(0)})[0].tolist() == [2, 6]


def test_a_function_without_gradient_says_so():
    x = placeholder((2,), "float32", "x")

    def opaque(a: Any) -> Any:
        return a

    y = numpy_function(opaque, x, "float32")

    with pytest.raises(LookupError, match=r"numpy_function: opaque has no gradient\. Pass grad=f, where f"):
        gradients(y, [x])
    assert gradients(ops.stop_gradient(y) * ops.sum(x), [x])[0] is not None


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda x: [x, x], TypeError, "returned 2 cotangents, but there are 1 inputs"),
        (lambda x: ops.zeros((3,)), ValueError, r"returned shape \[3\] for .*; a cotangent has the shape of its input"),
    ],
)
def test_wrong_cotangents(returned: Any, error: type[Exception], message: str):
    x = placeholder((2,), "float32", "x")
    y = numpy_function(abs, x, "float32", shape=(2,), grad=lambda xs, ys, dys: returned(xs[0]))

    with pytest.raises(error, match=message):
        gradients(y, [x])
