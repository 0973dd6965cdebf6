"""Native regions of scalars: loops, branches and nested loops, bit for bit what exact programs give."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.regions import elementwise, forms, rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
DTYPES = ("float32", "float64", "int32", "int64")


def both(build: Callable[..., Any], *values: Any) -> tuple[Program, list[Any], list[Any]]:
    """The program with native regions; what it gives, and what the exact one gives."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        built = build(*feeds)
        targets = list(built) if isinstance(built, (tuple, list)) else [built]
    program = Program(graph, targets, feeds)
    exact = Program(graph, targets, feeds, exact=True)
    return program, list(program(*values)), list(exact(*values))


def assert_same(build: Callable[..., Any], *values: Any, is_native: bool = True) -> Program:
    program, found, expected = both(build, *values)
    assert ("# native: " in program.source) is is_native
    for value, wanted in zip(found, expected, strict=True):
        assert value.dtype == wanted.dtype
        assert value.tobytes() == wanted.tobytes(), (value, wanted)
    return program


def test_loop_is_one_call():
    def build(x: Any) -> Any:
        return ab.while_loop(lambda i, x: i < 1000, lambda i, x: (i + 1, x * 0.999 + 1.0), (0, x))

    program = assert_same(build, np.float32(0))
    step = program.source[program.source.index("def step") :]
    assert "while" not in step.replace("v_while", "").replace("while_", "")
    assert "# native: 8 operations" in step


def test_switch():
    def build(x: Any) -> Any:
        return ab.while_loop(lambda x: x < 10, lambda x: x + 1, (x,))

    with without("native"):
        assert_same(build, np.float32(0), is_native=False)
    assert_same(build, np.float32(0))


@pytest.mark.parametrize("start", [1, 6, 27, 97])
def test_collatz(start: int):
    def body(n: Any, steps: Any) -> Any:
        return ab.cond(ops.equal(n % 2, 0), lambda: n // 2, lambda: n * 3 + 1), steps + 1

    assert_same(lambda n: ab.while_loop(lambda n, steps: n > 1, body, (n, 0)), np.int32(start))


def test_newton():
    def body(x: Any, before: Any) -> Any:
        return x - (x * x - 2.0) / (2.0 * x), x

    def test(x: Any, before: Any) -> Any:
        return ops.absolute(x - before) > 1e-6

    program, found, _ = both(lambda x: ab.while_loop(test, body, (x, x + 1.0)), np.float64(1))
    assert "# native: " in program.source
    assert found[0] == pytest.approx(np.sqrt(2.0), abs=1e-12)


def test_nested_loops():
    def outer(i: Any, total: Any) -> Any:
        _, product = ab.while_loop(lambda j, p: j < i, lambda j, p: (j + 1, p * 1.5), (0, ab.constant(1.0)))
        return i + 1, total + product

    program, found, expected = both(lambda x: ab.while_loop(lambda i, t: i < 10, outer, (0, x)), np.float32(0))
    assert found == expected
    assert program.source.count("# native: ") == 1


@pytest.mark.parametrize("choice", [-3, 0, 1, 2, 9])
def test_switch_in_loop(choice: int):
    def body(i: Any, x: Any, choice: Any) -> Any:
        return i + 1, ab.switch(choice, [lambda: x + 1, lambda: x * 2, lambda: x - 3]), choice

    assert_same(lambda x, c: ab.while_loop(lambda i, *_: i < 3, body, (0, x, c)), np.float32(5), np.int32(choice))


def test_no_iterations():
    assert_same(lambda x: ab.while_loop(lambda x: x > 0, lambda x: x - 1, (x,)), np.int32(-1))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_division_rounds_down(dtype: str):
    limits = np.iinfo(dtype)
    values = [limits.min, -7, -1, 0, 1, 2, 7, limits.max]
    for x in values:
        for y in values:
            with ab.Graph().as_default() as graph:
                a, b = ab.placeholder((), dtype), ab.placeholder((), dtype)
                results = ab.while_loop(
                    lambda i, *_: i < 1, lambda i, q, r, a, b: (i + 1, a // b, a % b, a, b), (0, a, a, a, b)
                )
            if (x, y) == (values[0], values[0]):
                program = Program(graph, list(results), [a, b])
                assert "# native: " in program.source
            found = program(np.dtype(dtype).type(x), np.dtype(dtype).type(y))
            with np.errstate(all="ignore"):
                wanted = (
                    np.floor_divide(np.array(x, dtype), np.array(y, dtype)),
                    np.mod(np.array(x, dtype), np.array(y, dtype)),
                )
            assert (found[1], found[2]) == wanted


def test_special_values():
    values = [np.float32(v) for v in (np.nan, np.inf, -np.inf, -0.0, 1e-45)]
    for value in values:
        assert_same(
            lambda x: ab.while_loop(
                lambda i, *_: i < 2,
                lambda i, x, y: (i + 1, ops.maximum(x, y), ops.minimum(x * 1.0, y)),
                (0, x, ab.constant(1.0)),
            ),
            value,
        )


def test_bools():
    def body(i: Any, p: Any, q: Any) -> Any:
        return i + 1, ops.logical_xor(p, q), ops.logical_not(ops.logical_and(p, q))

    assert_same(lambda p: ab.while_loop(lambda i, *_: i < 5, body, (0, p, ab.constant(True))), np.bool_(False))


def test_wrong_feeds_are_refused_not_misread():
    """A feed of another dtype is converted; the region never reads memory as what it is not."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        y = ab.while_loop(lambda y: y < 100, lambda y: y * 2, (x,))[0]
    assert ab.Session(graph).run(y, {x: 3}) == 192
    assert ab.Session(graph).run(y, {x: np.float64(3)}) == 192


def test_interrupt():
    """A signal ends a loop that would never end."""
    import signal
    import threading

    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        y = ab.while_loop(lambda y: y < 100, lambda y: y * 1.0, (x,))[0]
    program = Program(graph, [y], [x])
    assert "# native: " in program.source
    assert program(np.float32(200))[0] == 200  # compiled before the signal comes
    # A shell that runs tests in the background has them ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            program(np.float32(1))
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_gradient_of_loop():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        _, y = ab.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, ops.sqrt(y) * x), (0, x))
        (slope,) = ab.gradients(y, [x])
        (second,) = ab.gradients(slope, [x])
    program = Program(graph, [y, slope, second], [x])
    exact = Program(graph, [y, slope, second], [x], exact=True)
    assert program.source.count("# native: ") >= 2
    value = np.float64(1.3)
    np.testing.assert_allclose(program(value), exact(value), rtol=1e-12)
    with without("native"):
        printed = Program(graph, [y, slope, second], [x])
        printed(value)
    assert program.statistics.saved_bytes == printed.statistics.saved_bytes > 0


def test_history_grows():
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        _, y = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.sqrt(y) + x), (0, x))
        (slope,) = ab.gradients(y, [x])
    program = Program(graph, [y, slope], [x, n])
    exact = Program(graph, [y, slope], [x, n], exact=True)
    assert "# native: " in program.source
    for count in (3, 1000, 0, 17, 16):
        given = np.float64(2), np.int32(count)
        assert program(*given) == exact(*given)


# --- generated programs ---------------------------------------------------------------------------------------------

BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
INTEGER = ("floor_divide", "mod")
FLOAT = ("divide",)
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


@st.composite
def expressions(draw: st.DrawFn, dtype: str, depth: int = 3) -> Callable[[Sequence[Any]], Any]:
    """A function of a list of scalars of one dtype."""
    kind = draw(
        st.sampled_from(("variable", "constant", "binary", "where", "negative", "cond") if depth else ("variable",))
    )
    if kind == "variable":
        position = draw(st.integers(0, 2))
        return lambda values: values[position]
    if kind == "constant":
        number = draw(st.integers(-4, 4)) if dtype.startswith("i") else draw(st.floats(-3, 3, width=32))
        return lambda values: ab.constant(number, dtype)
    x, y = draw(expressions(dtype, depth - 1)), draw(expressions(dtype, depth - 1))
    if kind == "negative":
        return lambda values: -x(values)
    if kind == "binary":
        name = draw(st.sampled_from(BINARY + (INTEGER if dtype.startswith("i") else FLOAT)))
        return lambda values: getattr(ops, name)(x(values), y(values))
    a, b = draw(expressions(dtype, depth - 1)), draw(expressions(dtype, depth - 1))
    name = draw(st.sampled_from(COMPARISONS))
    if kind == "where":
        return lambda values: ops.where(getattr(ops, name)(a(values), b(values)), x(values), y(values))
    return lambda values: ab.cond(getattr(ops, name)(a(values), b(values)), lambda: x(values), lambda: y(values))


@st.composite
def loops(draw: st.DrawFn) -> tuple[str, Callable[..., Any]]:
    dtype = draw(st.sampled_from(DTYPES))
    updates = [draw(expressions(dtype)) for _ in range(3)]
    inner = draw(st.none() | expressions(dtype, 2))
    count = draw(st.integers(0, 4))

    def body(i: Any, *values: Any) -> Any:
        following = [update(values) for update in updates]
        step = inner
        if step is not None:
            _, *following = ab.while_loop(
                lambda j, *_: j < i, lambda j, *v: (j + 1, step(v), v[0], v[1]), (0, *following)
            )
        return i + 1, *following

    return dtype, lambda *starts: ab.while_loop(lambda i, *_: i < count, body, (0, *starts))


@settings(max_examples=examples(5, 15), deadline=None, derandomize=True, database=None)
@given(loops(), st.lists(st.integers(-5, 5), min_size=3, max_size=3))
def test_generated_loops(loop: tuple[str, Callable[..., Any]], starts: list[int]):
    dtype, build = loop
    program, found, expected = both(build, *[np.dtype(dtype).type(start) for start in starts])
    assert "# native: " in program.source
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
        assert value.dtype == wanted.dtype


def _loop_of(functions: Sequence[Callable[[Any, Any], Any]], dtype: str) -> tuple[ab.Graph, list[Any], list[Any]]:
    """A loop that runs as often as is asked and gives what functions make of two scalars."""
    with ab.Graph().as_default() as graph:
        n, x, y = ab.placeholder((), "int32"), ab.placeholder((), dtype), ab.placeholder((), dtype)
        first = [function(x, y) for function in functions]

        def body(i: Any, *_: Any) -> Any:
            return i + 1, *[function(x, y) for function in functions]

        results = ab.while_loop(lambda i, *_: i < n, body, (0, *[ops.zeros((), value.dtype) for value in first]))
    return graph, list(results[1:]), [n, x, y]


_DIVISIONS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x // y,
    lambda x, y: x % y,
    ops.fmod,
    lambda x, y: ops.sign(x),
    lambda x, y: ops.cast(x, "int32"),
    lambda x, y: ops.cast(y, "int64"),
    lambda x, y: ops.cast(x, "bool"),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divisions_signs_and_casts_of_floats(dtype: str):
    graph, results, feeds = _loop_of(_DIVISIONS, dtype)
    program = Program(graph, results, feeds)
    assert "# native: " in program.source
    limits = np.finfo(dtype)
    ends = np.array([0, 0.5, 1, 2.5, 7, 2.0**31, 3e9, 2.0**63, limits.max, limits.tiny, np.inf, np.nan], dtype)

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(*[st.sampled_from([*ends, *-ends]) | st.floats(width=32, allow_subnormal=False)] * 2)
    def check(x: float, y: float) -> None:
        a, b = np.dtype(dtype).type(x), np.dtype(dtype).type(y)
        with np.errstate(all="ignore"):
            arrays = np.array(a), np.array(b)
            expected = [np.floor_divide(a, b), np.mod(a, b), np.fmod(a, b), np.sign(a)]
            expected += [arrays[0].astype("int32"), arrays[1].astype("int64"), arrays[0].astype("bool")]
        for found, wanted in zip(program(np.int32(1), a, b), expected, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
            if found.dtype == dtype and not np.isnan(wanted):
                assert np.signbit(found) == np.signbit(wanted)

    check()


def test_bits_and_shifts_of_integers():
    functions: list[Callable[[Any, Any], Any]] = [
        ops.left_shift,
        ops.right_shift,
        lambda x, y: ops.bitwise_not(x),
        lambda x, y: ops.sign(x),
        lambda x, y: ops.isfinite(x),
        lambda x, y: ops.absolute(x),
    ]
    for dtype in ("int32", "int64"):
        graph, results, feeds = _loop_of(functions, dtype)
        program = Program(graph, results, feeds)
        assert "# native: " in program.source
        for x in (0, 1, -1, 5, -77, np.iinfo(dtype).max, np.iinfo(dtype).min):
            for y in (0, 1, 31, 32, 63, 64, -1):
                a, b = np.dtype(dtype).type(x), np.dtype(dtype).type(y)
                with np.errstate(all="ignore"):
                    expected = [a << b, a >> b, ~a, np.sign(a), True, np.abs(a)]
                assert [value.item() for value in program(np.int32(1), a, b)] == [
                    np.asarray(v).item() for v in expected
                ]


def test_long_runs_that_machine_code_refuses_go_one_by_one():
    x, data = ab.placeholder((), "int32", "x"), ab.placeholder((3,), "float32", "data")
    place = x
    for k in range(500):
        place = place + (k % 2 * 2 - 1)
    chosen = data[place] * 2
    session = ab.Session()
    assert session.run(chosen, {x: 1, data: [1, 2, 3]}) == 4
    source = ab.explain(chosen, [x, data], lines=False)
    assert "one_by_one" in source
    assert len(source.splitlines()) < 10
    with pytest.raises(IndexError) as info:
        session.run(chosen, {x: 3, data: [1, 2, 3]})
    assert re.match(r"In operation 'get_item\w*' \(get_item\)", info.value.__notes__[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_chains_of_scalars_are_printed_as_other_elementwise_operations_are(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way for long chains, and the one for arrays and fused operations, give the same text."""

    def general(function: Any, op: Any, inputs: Any, kind: str) -> Any:
        steps = [(op, tuple(range(len(inputs))))]
        return elementwise.print_elementwise(function, steps, [len(inputs)], inputs, [()], [kind], [None])[0]

    def text() -> str:
        with ab.Graph().as_default() as graph:
            x, y = ab.placeholder((), dtype), ab.placeholder((), dtype)
            value = x
            for _ in range(30):
                value = ops.maximum(value * y, x - value) + ops.where(value > y, value, y)
                value = value // (y * y + 1) if dtype == "int32" else ops.tanh(value / 3) - ops.exp(-value)
        printed.clear()
        Program(graph, [symbol_of(value)], [x, y])
        return "".join(printed)

    printed: list[str] = []
    module_text = rule.module_text
    monkeypatch.setattr(rule, "module_text", lambda parts: printed.extend(t for _, t in parts) or module_text(parts))
    short = text()
    monkeypatch.setattr(forms, "print_scalars", general)
    assert short == text() != ""
