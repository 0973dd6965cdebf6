"""`print`, the assertions and `check_numerics`: what they say, when they run, and in which order."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Symbol, Tensor, Variable, as_dtype, eagerly
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.scopes import control_dependencies
from anabranch.engine.ops.checks import InvalidArgumentError
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.saving import load_graph
from anabranch.engine.session import Session, function, placeholder


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


ROADS = ["interpreter", "exact program", "session"]


def run(road: str, graph: Graph, fetches: list[Any], feeds: dict[Symbol, Any] | None = None) -> list[Any]:
    """The fetches, by one of the ways to run a graph."""
    feeds = feeds or {}
    if road == "interpreter":
        return Interpreter().run(graph, fetches, feeds)
    if road == "exact program":
        tensors = iter(Program(graph, fetches, list(feeds), exact=True)(*feeds.values()))
        return [next(tensors) if isinstance(fetch, Tensor) else None for fetch in fetches]
    return Session(graph).run(fetches, feeds)


def printed(*args: Any, **options: Any) -> str:
    """Return what `print` writes of values."""
    out = io.StringIO()
    with Graph().as_default() as graph:
        Session(graph).run(ops.print(*args, output_stream=out, **options))
    return out.getvalue()


# --- print: the text ------------------------------------------------------------------------------------------------


def test_arguments_are_separated_and_ended():
    assert printed("x", ops.constant, sep="")[:2] == "x<"
    assert printed() == "\n"
    assert printed("a", 1, None, 2.5) == "a 1 None 2.5\n"
    assert printed("a", "b", sep="--", end="!") == "a--b!"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), "0.1"),
        (np.int8(-3), "-3"),
        (True, "True"),
        (np.array([1.5, np.nan]), "[1.5 nan]"),
        (np.arange(8), "[0 1 2 ... 5 6 7]"),
        (np.arange(6), "[0 1 2 3 4 5]"),
        (np.array(["a", "b"]), '["a" "b"]'),
        (np.array([1 + 2j]), "[(1+2j)]"),
        (np.zeros((0, 3)), "[]"),
        (np.zeros((2, 0)), "[[]\n []]"),
        (np.arange(8).reshape(2, 2, 2), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]"),
        (np.ones(1, as_dtype("bfloat16")), "[1]"),
    ],
)
def test_values_are_shown(value: Any, expected: str):
    with Graph().as_default() as graph:
        out = io.StringIO()
        Session(graph).run(ops.print(ops.convert_to_tensor(value), value, output_stream=out, sep="|"))

    assert out.getvalue() == f"{expected}|{expected}\n"


def test_summarize():
    matrix = np.arange(25).reshape(5, 5)

    assert printed(matrix, summarize=1) == "[[0 ... 4]\n ...\n [20 ... 24]]\n"
    assert printed(np.arange(9), summarize=-1) == "[0 1 2 3 4 5 6 7 8]\n"
    assert printed(np.arange(9), summarize=0) == "[...]\n"


def test_structures_hold_tensors(graph: Graph):
    out = io.StringIO()
    x, v = placeholder((), "int32", "x"), Variable([1.0])
    operation = ops.print({"x": x, "more": [v, ("a", x), (x,)], 3: None}, [], output_stream=out)

    Session(graph).run(operation, {x: 7})

    assert out.getvalue() == "{'x': 7, 'more': [[1.0], ('a', 7), (7,)], 3: None} []\n"


def test_a_string_tensor_is_printed_bare():
    assert printed(ops.strings.join) != ""
    out = io.StringIO()
    with Graph().as_default() as graph:
        Session(graph).run(ops.print(ops.constant("a b"), ops.constant(["c"]), output_stream=out))
    assert out.getvalue() == 'a b ["c"]\n'


# --- print: where ---------------------------------------------------------------------------------------------------


def test_standard_error_is_the_default(graph: Graph, capsys: pytest.CaptureFixture[str]):
    first = ops.print("to stderr")
    second = ops.print("to stdout", output_stream=sys.stdout)

    Session(graph).run([first, second])

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("to stdout\n", "to stderr\n")


def test_standard_streams_are_looked_up_when_the_program_runs(graph: Graph, monkeypatch: pytest.MonkeyPatch):
    operation = ops.print("later", output_stream=sys.stdout)
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stdout", replaced)

    Session(graph).run(operation)

    assert replaced.getvalue() == "later\n"


def test_files_are_appended_to(graph: Graph, tmp_path: Path):
    path = tmp_path / "log.txt"
    x = placeholder((), "int32", "x")
    operation = ops.print("Zoë", x, output_stream=f"file://{path}")
    session = Session(graph)

    for value in (1, 2):
        session.run(operation, {x: value})

    assert path.read_text(encoding="utf-8") == "Zoë 1\nZoë 2\n"


def test_one_write_a_call(graph: Graph):
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    out = Counting()
    Session(graph).run(ops.print("a", np.arange(20), "b", output_stream=out))

    assert out.writes == 1  # so that lines of several threads do not mix


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        ("log.txt", ValueError, "output_stream='log.txt' is no stream; a file is named as 'file://path'"),
        ("file://", ValueError, "is no stream"),
        (3, TypeError, "output_stream of type int has no method 'write'"),
    ],
)
def test_other_streams_are_refused(stream: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ops.print("a", output_stream=stream)


# --- print: when ----------------------------------------------------------------------------------------------------


def test_nothing_is_printed_unless_it_is_asked_for(graph: Graph, capsys: pytest.CaptureFixture[str]):
    x = ops.constant(1.0)
    ops.print("not fetched", x)

    Session(graph).run(x + 1)

    assert capsys.readouterr().err == ""


def test_control_dependencies_ask_for_it(graph: Graph, capsys: pytest.CaptureFixture[str]):
    x = placeholder((), "float32", "x")
    with control_dependencies([ops.print("x is", x)]):
        y = x + 1

    Session(graph).run(y, {x: 2.0})

    assert capsys.readouterr().err == "x is 2.0\n"


@eagerly()
def test_functions_print_in_program_order(capsys: pytest.CaptureFixture[str]):
    v = Variable(0.0, name="v")

    @function
    def step(x: Any) -> Any:
        ops.print("before", v)
        v.assign_add(x)
        ops.print("after", v)
        return x

    step(1.5)
    step(1.5)

    assert capsys.readouterr().err == "before 0.0\nafter 1.5\nbefore 1.5\nafter 3.0\n"


@pytest.mark.parametrize("road", ROADS)
def test_loops_and_branches_print_when_they_run(graph: Graph, road: str):
    out = io.StringIO()
    x, w = placeholder((4, 3), "float32", "x"), placeholder((3, 3), "float32", "w")

    def body(i: Tensor, state: Tensor) -> Any:
        new = ops.tanh(ops.matmul(state, w) + x[i])
        ops.print("step", i, ops.sum(new) > 0, output_stream=out)
        cond(i > 1, lambda: ops.print("late", i, output_stream=out), lambda: None)
        return i + 1, new

    ops.print("never", output_stream=out)
    first = ops.print("first", output_stream=out)
    _, last = while_loop(lambda i, _: i < 4, body, (0, ops.zeros((1, 3))))
    final = ops.print("last", ops.shape(last), output_stream=out)
    slopes = gradients(ops.sum(last), [w])

    rng = np.random.default_rng(0)
    feeds = {x: rng.uniform(1, 2, (4, 3)).astype("float32"), w: np.ones((3, 3), "float32")}
    run(road, graph, [first, last, final, *slopes], feeds)

    steps = "step 0 True\nstep 1 True\nstep 2 True\nlate 2\nstep 3 True\nlate 3\n"
    assert out.getvalue() == f"first\n{steps}last (1, 3)\n"


def test_prints_stay_between_what_is_checked_and_called(graph: Graph):
    # They share one resource, so that no pass may change their order.
    out = io.StringIO()
    x = placeholder((3,), "float32", "x")
    operations = [
        ops.print("one", output_stream=out),
        ops.numpy_function(lambda a: out.write(f"two {a.sum()}\n") and None, [x * 2], []),
        ops.print("three", x + 1, output_stream=out),
        ops.assert_positive(x),
        ops.print("four", output_stream=out),
    ]
    session = Session(graph)

    session.run(operations[::-1], {x: [1, 2, 3]})
    with pytest.raises(InvalidArgumentError):
        session.run(operations, {x: [1, 2, -3]})

    assert out.getvalue() == "one\ntwo 12.0\nthree [2.0 3.0 4.0]\nfour\none\ntwo 0.0\nthree [2.0 3.0 -2.0]\n"


def test_saved_graphs_print_and_assert(graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    x = placeholder((None,), "float32", "x")
    ops.print("x", x, output_stream=sys.stdout)
    ops.print("x", x, output_stream=f"file://{tmp_path / 'log'}")
    ops.assert_positive(x, message="Mine.")
    ops.assert_rank(x, 1)
    ops.assert_true(x < 9, [x])
    ops.check_numerics(x, "x")
    graph.save(tmp_path / "graph.npz")

    again = load_graph(tmp_path / "graph.npz")
    operations = [operation for operation in again.operations if operation.writes]
    fed: Any = {again.get_tensor_by_name("x:0"): [2.0]}

    assert len(operations) == 6
    Session(again).run(operations, fed)
    assert (capsys.readouterr().out, (tmp_path / "log").read_text()) == ("x [2.0]\n", "x [2.0]\n")
    with pytest.raises(InvalidArgumentError, match="Mine"):
        Session(again).run(operations, {fed_tensor: [-1.0] for fed_tensor in fed})


# --- assertions: what they say --------------------------------------------------------------------------------------

RELATIONS: dict[str, tuple[Any, Any]] = {
    "assert_equal": (ops.assert_equal, np.equal),
    "assert_less": (ops.assert_less, np.less),
    "assert_less_equal": (ops.assert_less_equal, np.less_equal),
    "assert_greater": (ops.assert_greater, np.greater),
    "assert_greater_equal": (ops.assert_greater_equal, np.greater_equal),
}
VALUES = [
    np.float32(1),
    np.float32(2),
    np.float32(np.nan),
    np.array([1, 2], "float32"),
    np.array([[2], [3]], "float32"),
]


@pytest.mark.parametrize("name", RELATIONS)
def test_relations_hold_for_all_elements_or_fail(graph: Graph, name: str):
    check, reference = RELATIONS[name]
    x, y = placeholder(None, "float32", "x"), placeholder(None, "float32", "y")
    operation = check(x, y, message="Mine.")
    session = Session(graph)
    for a in VALUES:
        for b in VALUES:
            holds = reference(a, b)
            if holds.all():
                session.run(operation, {x: a, y: b})
                continue
            with pytest.raises(InvalidArgumentError) as caught:
                session.run(operation, {x: a, y: b})
            text = str(caught.value)
            assert text.startswith(f"{name}: x ")
            assert text.endswith(" Mine.")
            if holds.ndim:
                first = [int(k) for k in np.argwhere(~holds)[0]]
                assert f"for {(~holds).sum()} of {holds.size} elements, first at {first}," in text
                left = float(np.broadcast_to(a, holds.shape)[tuple(first)])
                right = float(np.broadcast_to(b, holds.shape)[tuple(first)])
                assert f"where x is {left!r} and y is {right!r}." in text


def test_the_whole_message(graph: Graph):
    x = placeholder((None,), "int32", "x")
    operation = ops.assert_less(x, [5], message="Too many.", summarize=1)

    with pytest.raises(ValueError, match="assert_less") as caught:
        Session(graph).run(operation, {x: [1, 7, 3, 9]})

    assert str(caught.value) == (
        "assert_less: x < y does not hold for 2 of 4 elements, first at [1], where x is 7 and y is 5. "
        "x: [1 ... 9], y: [5]. Too many."
    )
    assert re.match(r"In operation 'assert_less' .*test_ops_checks.py:\d+", caught.value.__notes__[0])


def test_single_values(graph: Graph):
    x = placeholder((), "float64", "x")

    with pytest.raises(InvalidArgumentError) as caught:
        Session(graph).run(ops.assert_positive(x), {x: -2.5})

    assert str(caught.value) == "assert_positive: x > y does not hold; x is -2.5 and y is 0.0."


def test_signs(graph: Graph):
    x = placeholder((None,), "int8", "x")
    positive, non_negative = ops.assert_positive(x), ops.assert_non_negative(x)
    session = Session(graph)

    session.run([positive, non_negative], {x: [1, 2]})
    session.run([positive, non_negative], {x: []})
    session.run(non_negative, {x: [0]})
    with pytest.raises(InvalidArgumentError, match=r"assert_positive: x > y .* at \[0\], where x is 0 and y is 0"):
        session.run(positive, {x: [0]})
    with pytest.raises(InvalidArgumentError, match=r"assert_non_negative: x >= y .* at \[1\], where x is -1"):
        session.run(non_negative, {x: [0, -1]})


def test_strings_are_compared(graph: Graph):
    x = placeholder((2,), "string", "x")
    operation = ops.assert_equal(x, ["cat", "dog"])

    Session(graph).run(operation, {x: ["cat", "dog"]})
    with pytest.raises(InvalidArgumentError, match=r"at \[1\], where x is 'cow' and y is 'dog'"):
        Session(graph).run(operation, {x: ["cat", "cow"]})


def test_assert_true(graph: Graph):
    x = placeholder((None,), "float32", "x")
    operation = ops.assert_true(x > 0, [x, "of the batch"], message="Must be positive.")
    session = Session(graph)

    session.run(operation, {x: [1]})
    with pytest.raises(InvalidArgumentError) as caught:
        session.run(operation, {x: [1, -1]})

    assert str(caught.value) == (
        "assert_true: the condition is false at [1]. Data: [1.0 -1.0]; of the batch. Must be positive."
    )


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ops.assert_less(1j, 2j), TypeError, "assert_less takes real numbers; got complex64"),
        (lambda: ops.assert_equal("a", 1), TypeError, "Strings and numbers do not mix"),
        (lambda: ops.assert_true([1]), TypeError, r"takes a condition of dtype bool; got int32\[1\]"),
        (lambda: ops.assert_rank(1, -1), ValueError, "a rank is a non-negative integer, or several; got -1"),
        (lambda: ops.assert_rank(1, []), ValueError, "a rank is a non-negative integer"),
        (lambda: ops.check_numerics([1, 2]), TypeError, "takes floating-point or complex numbers; got int32"),
    ],
)
def test_wrong_arguments(build: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        build()


# --- assertions: shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.assert_rank(ops.zeros((2, 3)), 3, "Mine."), r"rank 3, got rank 2 \(shape \[2,3\]\). Mine."),
        (lambda: ops.assert_rank(placeholder((None,)), [0, 2]), r"expected rank 0 or 2, got rank 1 \(shape \[\?\]\)"),
        (lambda: ops.assert_shape(placeholder((None, 2)), (4, 3)), r"expected shape \[4,3\], got \[\?,2\]."),
        (lambda: ops.assert_shape(1.0, (None,), "Mine."), r"expected shape \[\?\], got \[\]. Mine."),
        (lambda: ops.assert_equal(placeholder((2,)), placeholder((3,)), "Mine."), r"\[2\] and \[3\] .* Mine."),
    ],
)
def test_known_shapes_fail_when_the_graph_is_built(build: Any, message: str):
    with pytest.raises(InvalidArgumentError, match=message):
        build()


def test_unknown_shapes_fail_when_the_program_runs(graph: Graph):
    x = placeholder(None, "float32", "x")
    checks = [ops.assert_rank(x, (1, 2)), ops.assert_shape(x, (None, 2), "Pairs.")]
    session = Session(graph)

    session.run(checks, {x: np.zeros((3, 2))})
    session.run(checks[0], {x: [1.0]})
    with pytest.raises(InvalidArgumentError, match=r"assert_rank: expected rank 1 or 2, got rank 0 \(shape \[\]\)"):
        session.run(checks[0], {x: 1.0})
    with pytest.raises(InvalidArgumentError, match=r"assert_shape: expected shape \[\?,2\], got \[2,3\]. Pairs."):
        session.run(checks[1], {x: np.zeros((2, 3))})


@pytest.mark.parametrize("road", ROADS)
def test_shapes_are_checked_on_every_road(graph: Graph, road: str):
    x = placeholder(None, "float32", "x")
    check = ops.assert_shape(x, (None, 2))

    assert run(road, graph, [check], {x: np.zeros((3, 2), "float32")}) == [None]
    with pytest.raises(InvalidArgumentError, match="assert_shape"):
        run(road, graph, [check], {x: np.zeros((2, 3), "float32")})


# --- assertions: when -----------------------------------------------------------------------------------------------


def test_constants_fail_when_the_graph_is_built():
    with pytest.raises(InvalidArgumentError, match="where x is 2 and y is 3"):
        ops.assert_equal([1, 2], [1, 3])
    with pytest.raises(InvalidArgumentError, match="the condition is false"):
        ops.assert_true(False)
    assert isinstance(ops.assert_equal(1, 1), Operation)


def test_constants_in_a_branch_fail_only_if_it_is_taken(graph: Graph):
    flag = placeholder((), "bool", "flag")

    def impossible() -> Any:
        ops.assert_true(False, message="Not here.")
        return 1

    chosen = cond(flag, impossible, lambda: 2)

    assert Session(graph).run(chosen, {flag: False}) == 2
    with pytest.raises(InvalidArgumentError, match="Not here"):
        Session(graph).run(chosen, {flag: True})


def test_assertions_run_where_they_are_asked_for(graph: Graph):
    x = placeholder((), "float32", "x")
    check = ops.assert_positive(x)
    with control_dependencies([check]):
        checked = x * 2
    session = Session(graph)

    assert session.run(x * 2, {x: -1.0}) == -2
    assert session.run([check, checked], {x: 1.0}) == [None, 2]
    for fetch in (check, checked):
        with pytest.raises(InvalidArgumentError):
            session.run(fetch, {x: -1.0})


@eagerly()
def test_a_function_asserts_before_it_assigns():
    v = Variable(0.0)

    @function
    def add(x: Any) -> None:
        ops.assert_positive(x)
        v.assign_add(x)

    add(1.0)
    with pytest.raises(InvalidArgumentError):
        add(-1.0)

    assert v.numpy() == 1


@pytest.mark.parametrize("road", ROADS)
def test_a_loop_asserts_at_each_iteration(graph: Graph, road: str):
    x = placeholder((None,), "float32", "x")
    seen: list[int] = []

    def body(i: Tensor, total: Tensor) -> Any:
        ops.numpy_function(lambda k: seen.append(int(k)), i, [])
        ops.assert_positive(x[i], message="In the loop.")
        return i + 1, total + x[i]

    _, total = while_loop(lambda i, _: i < ops.size(x), body, (0, 0.0))

    assert run(road, graph, [total], {x: np.array([1, 2], "float32")}) == [3]
    with pytest.raises(InvalidArgumentError, match=r"x is -1\.0 and y is 0\.0\. In the loop"):
        run(road, graph, [total], {x: np.array([1, 2, -1, 4], "float32")})
    assert seen == [0, 1, 0, 1, 2]


# --- check_numerics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ROADS)
def test_finite_values_pass(graph: Graph, road: str):
    x = placeholder((None,), "float32", "x")
    y = ops.check_numerics(x * x, "squares")
    values = np.array([1, -3], "float32")

    (result, slope) = run(road, graph, [y, *gradients(y, [x])], {x: values})

    assert (result.tolist(), slope.tolist()) == ([1, 9], [2, -6])


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "complex64"])
def test_what_is_not_finite_is_counted(graph: Graph, name: str):
    x = placeholder(None, name, "x")
    y = ops.check_numerics(x, "The activations")
    values = np.array([[1, 2, np.inf], [np.nan, np.nan, -np.inf]]).astype(as_dtype(name))
    session = Session(graph)

    with pytest.raises(ArithmeticError) as caught:
        session.run(y, {x: values})
    assert str(caught.value) == "The activations: 2 NaN and 2 infinite of 6 elements, first at [0, 2]."
    assert "test_ops_checks.py" in caught.value.__notes__[0]
    with pytest.raises(ArithmeticError, match=r"^The activations: the value is \(?nan"):
        session.run(y, {x: values[1, 0]})


def test_gradients_are_checked_too(graph: Graph):
    x = placeholder((2,), "float32", "x")
    y = ops.sqrt(ops.check_numerics(x, "x"))
    (dx,) = gradients(y, [x])

    assert Session(graph).run(y, {x: [0, 4]}).tolist() == [0, 2]
    with pytest.raises(ArithmeticError, match=r"^x \(in the gradient\): 1 infinite of 2 elements, first at \[0\]"):
        Session(graph).run(dx, {x: [0, 4]})


@eagerly()
def test_it_runs_in_functions_although_nothing_uses_it():
    @function
    def f(x: Any) -> Any:
        ops.check_numerics(ops.log(x), "log")
        return x

    assert float(f(1.0)) == 1
    with pytest.raises(ArithmeticError, match="log: the value is -inf"):
        f(0.0)


def test_it_names_the_iteration_by_failing_there(graph: Graph):
    x = placeholder((), "float32", "x")
    out = io.StringIO()

    def body(i: Tensor, y: Tensor) -> Any:
        ops.print(i, output_stream=out, end=" ")
        return i + 1, ops.check_numerics(y * y, "y")

    _, y = while_loop(lambda i, _: i < 10, body, (0, x))

    with pytest.raises(ArithmeticError, match="y: the value is inf"):
        Session(graph).run(y, {x: 1e10})
    assert out.getvalue() == "0 1 "
