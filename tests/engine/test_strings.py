"""The dtype "string": what becomes one, feeding and fetching, and where strings go."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import TensorArray, cond, while_loop
from anabranch.engine.control_flow.scan import map_fn, scan
from anabranch.engine.graph import Graph, Tensor, Variable, as_dtype, eagerly
from anabranch.engine.graph.op import as_scalar_or_array
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import as_array
from anabranch.engine.ops.text import strings
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.saving import load_graph
from anabranch.engine.session import Session, explain, function, placeholder

STRING = as_dtype("string")
WORDS = ["c", "", "Zoë", "a much longer string than NumPy keeps in place"]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(tensor: Tensor) -> Any:
    """A tensor's value as Python data."""
    value = Session(symbol_of(tensor).graph).run(tensor)
    return value.tolist() if isinstance(value, np.ndarray) else value


# --- what becomes a string ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        ["a", "Zoë"],
        ("a", "Zoë"),
        np.array(["a", "Zoë"]),
        np.array(["a", "Zoë"], object),
        np.array(["a", "Zoë"], STRING),
        np.array(["a", "Zoë"], np.dtypes.StringDType(na_object=None)),
        ["a", "Zoë".encode()],
        np.array(["a", "Zoë".encode()], object),
        [np.array("a", STRING), np.str_("Zoë")],
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_of_every_kind_becomes_strings(value: Any):
    array = as_array(value)

    assert array.dtype == STRING
    assert array.tolist() == ["a", "Zoë"]


@pytest.mark.parametrize("value", ["Zoë", "Zoë".encode(), np.str_("Zoë"), np.array("Zoë"), np.array("Zoë", STRING)])
def test_a_single_string_is_an_array_of_rank_zero(value: Any):
    array = as_array(value)

    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.shape, array[()]) == (STRING, (), "Zoë")


@pytest.mark.parametrize("name", ["string", "str", str, "<U7", "S3", np.dtype("U"), "StringDType128", np.str_])
def test_every_name_of_text_means_string(name: Any):
    assert as_dtype(name) == STRING


def test_trailing_nulls_stay():
    assert as_array(["a\0", b"b\0\0"]).tolist() == ["a\0", "b\0\0"]


@pytest.mark.parametrize("value", [["a", 1], ["a", None], np.array(["a", 1.5], object), [["a"], [2]]])
def test_strings_are_not_mixed_with_other_values(value: Any):
    with pytest.raises(TypeError, match=r"Strings and other values are mixed: .* is no string. Use str\(\)"):
        as_array(value)


def test_a_missing_string_is_refused():
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))

    with pytest.raises(TypeError, match="None of type NoneType is no string"):
        as_array(missing)


def test_bytes_that_are_no_utf8_are_refused():
    with pytest.raises(ValueError, match=r"b'\\xff' is no UTF-8 \(invalid start byte at byte 0\). Decode them first"):
        ops.constant([b"a", b"\xff"])


def test_an_empty_list_becomes_empty_strings_if_asked_for():
    assert ops.constant([], "string").dtype == STRING
    assert run(ops.constant([], "string")) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.constant(["1"], "float32"), "Strings can't be cast to float32; parse them with"),
        (lambda: ops.constant([1, 2], "string"), "can't be cast to strings; print the numbers with"),
        (lambda: ops.constant(1, "string"), "can't be cast to strings"),
        (lambda: ops.convert_to_tensor(1.5, "string"), "can't be cast to strings"),
        (lambda: Variable(["a"], dtype="int32"), "Strings can't be cast to int32"),
        (lambda: ops.constant(["a"]) * 2, "Strings and numbers do not mix"),
        (lambda: ops.constant(["a"]) * ["b"], r"multiply takes numbers; got string\[1\] and string\[1\]"),
        (lambda: -ops.constant(["a"]), "negative takes numbers"),
        (lambda: ops.sum(["a"]), r"sum takes numbers; got string\[1\]"),
        (lambda: ops.prod(["a"]), "prod takes numbers"),
        (lambda: ops.max(["a"]), "max takes numbers"),
        (lambda: ops.cumsum(["a"]), "cumsum|cum_sum takes numbers"),
        (lambda: ops.matmul([["a"]], [["b"]]), "matmul takes numbers"),
        (lambda: ops.einsum("ij,jk->ik", [["a"]], [["b"]]), "takes numbers"),
        (lambda: ops.mean(["a"]), "Numbers were expected; got strings"),
        (lambda: ops.exp(["a"]), "Numbers were expected; got strings"),
        (lambda: ops.equal(["a"], 1), "Strings and numbers do not mix"),
        (lambda: ops.where([True], ["a"], 0), "Strings and numbers do not mix"),
        (lambda: ops.concatenate([["a"], [1]]), "Strings and numbers do not mix"),
        (lambda: ops.logical_not(["a"]), "Strings can't be cast to bool"),
        (lambda: strings.lower([1]), r"strings.lower takes strings; got int32\[1\]"),
        (lambda: gradients(ops.constant(1.0), [ops.constant("a")]), "nothing has a derivative"),
    ],
)
def test_numbers_and_strings_are_kept_apart(build: Any, message: str):
    with pytest.raises(TypeError, match=message):
        build()


# --- feeding and fetching -------------------------------------------------------------------------------------------


def test_feeds_and_fetches(graph: Graph):
    x, s = placeholder((None,), "string", "x"), placeholder((), "string", "s")
    session = Session(graph)

    fetched, single, both = session.run([x, s, x + s], {x: ["a", "b"], s: "!"})

    assert (fetched.dtype, fetched.tolist()) == (STRING, ["a", "b"])
    assert (type(single), single) == (str, "!")
    assert both.tolist() == ["a!", "b!"]
    assert session.run(x, {x: np.array(["c"])}).tolist() == ["c"]
    assert session.run(x, {x: np.array([b"c"])}).tolist() == ["c"]
    assert session.run(x, {x: []}).tolist() == []
    assert session.make_callable(s + x, [s, x])("<", ["a"]).tolist() == ["<a"]


@pytest.mark.parametrize("value", [1, [1.5], np.zeros(2), True])
def test_numbers_are_not_fed_as_strings(graph: Graph, value: Any):
    x = placeholder(None, "string", "x")

    with pytest.raises(TypeError, match=r"was fed to 'x:0', which is string\. Strings and numbers are not converted"):
        Session(graph).run(x, {x: value})


def test_strings_are_not_fed_as_numbers(graph: Graph):
    x = placeholder(None, "float32", "x")

    with pytest.raises(TypeError, match="A value of dtype string was fed to 'x:0', which is float32"):
        Session(graph).run(x, {x: ["1.0"]})


def test_a_feed_of_another_shape_names_both_shapes(graph: Graph):
    x = placeholder((2,), "string", "x")

    with pytest.raises(ValueError, match=r"A value of shape \[1\] was fed to 'x:0', which has shape \[2\]"):
        Session(graph).run(x, {x: ["a"]})


def test_what_is_fetched_is_no_state(graph: Graph):
    v = Variable(["a", "b"])
    fetched = Session(graph).run(v)

    fetched[0] = "changed"

    assert v.numpy().tolist() == ["a", "b"]


def test_variables_of_strings(graph: Graph):
    v, scalar = Variable(["a", "b"], name="v"), Variable("first", name="scalar")

    Session(graph).run([v.assign(v + "!"), scalar.assign(scalar + scalar)])

    assert (str(v.spec), v.numpy().tolist()) == ("string[2]", ["a!", "b!"])
    assert (scalar.shape, scalar.numpy().dtype, str(scalar.numpy())) == ((), STRING, "firstfirst")


@eagerly()
def test_functions_take_arrays_of_strings():
    @function
    def shouted(x: Any) -> Any:
        return strings.upper(x) + "!"

    assert shouted(np.array(["a", "b"])).tolist() == ["A!", "B!"]
    assert shouted.trace_count() == 1


def test_dumps_and_messages_say_string(graph: Graph):
    x = placeholder((2,), "string", "x")

    assert "string[2]" in repr(x)
    assert "string[?]" in repr(placeholder((None,), "string"))
    assert "run_add" in explain(x + x, [x])  # not the emitted source, which would give a str for a single string


# --- passing through ------------------------------------------------------------------------------------------------

PASSING: dict[str, Any] = {
    "concatenate": (lambda x: ops.concatenate([x, x], 0), lambda a: np.concatenate([a, a])),
    "stack": (lambda x: ops.stack([x, x], 1), lambda a: np.stack([a, a], 1)),
    "stack of scalars": (lambda x: ops.stack([x[0], x[1]]), lambda a: a[:2]),
    "split": (lambda x: ops.split(x, 2)[1], lambda a: a[2:]),
    "unstack": (lambda x: ops.unstack(x, 4)[2], lambda a: a[2]),
    "reshape": (lambda x: ops.reshape(x, (2, -1)), lambda a: a.reshape(2, 2)),
    "reshape to rank 0": (lambda x: ops.reshape(x[:1], ()), lambda a: a[0]),
    "expand_dims": (lambda x: ops.expand_dims(x, 0), lambda a: a[None]),
    "squeeze": (lambda x: ops.squeeze(x[1:2]), lambda a: a[1]),
    "transpose": (lambda x: ops.transpose(ops.reshape(x, (2, 2))), lambda a: a.reshape(2, 2).T),
    "item": (lambda x: x[2], lambda a: a[2]),
    "slice": (lambda x: x[::-2], lambda a: a[::-2]),
    "take": (lambda x: ops.take(x, [3, 0, -1]), lambda a: a[[3, 0, -1]]),
    "take one": (lambda x: ops.take(x, 3), lambda a: a[3]),
    "take_along_axis": (lambda x: ops.take_along_axis(x, [1, 0]), lambda a: a[[1, 0]]),
    "broadcast_to": (lambda x: ops.broadcast_to(x, (2, 4)), lambda a: np.broadcast_to(a, (2, 4))),
    "tile": (lambda x: ops.tile(x, 2), lambda a: np.tile(a, 2)),
    "repeat": (lambda x: ops.repeat(x, 2), lambda a: np.repeat(a, 2)),
    "stop_gradient": (ops.stop_gradient, lambda a: a),
    "pad": (
        lambda x: ops.pad(x, ((1, 0),), constant_values="p"),
        lambda a: np.concatenate([np.array(["p"], STRING), a]),
    ),
    "gather_nd": (lambda x: ops.gather_nd(x, [[2], [0]]), lambda a: a[[2, 0]]),
    "flip": (ops.flip, lambda a: a[::-1]),
    "roll": (lambda x: ops.roll(x, 1), lambda a: np.roll(a, 1)),
    "where": (lambda x: ops.where(ops.equal(x, "c"), x, "else"), lambda a: np.where(a == "c", a, "else")),
    "where of scalars": (lambda x: ops.where(ops.less(x[1], x[0]), x[0], x[2]), lambda a: a[0]),
    "equal": (lambda x: ops.equal(x, "c"), lambda a: a == "c"),
    "not_equal": (lambda x: ops.not_equal(x, x[0]), lambda a: a != a[0]),
    "less": (lambda x: ops.less(x, "b"), lambda a: a < "b"),
    "greater_equal": (lambda x: ops.greater_equal(x, "b"), lambda a: a >= "b"),
    "sort": (ops.sort, np.sort),
    "argsort": (ops.argsort, np.argsort),
    "add": (lambda x: "<" + x + ">", lambda a: "<" + a + ">"),
    "full": (lambda x: ops.full((2, 2), x[2]), lambda a: np.full((2, 2), a[2], STRING)),
    "zeros_like": (ops.zeros_like, lambda a: np.zeros(4, STRING)),
    "size": (lambda x: ops.convert_to_tensor(ops.size(x)), lambda a: np.int32(4)),
    "slice_update": (lambda x: ops.slice_update(x, [1], ["new"]), lambda a: np.array([a[0], "new", *a[2:]], STRING)),
}


@pytest.mark.parametrize("known", [(4,), (None,)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PASSING)
def test_strings_pass_through(graph: Graph, name: str, known: Any):
    build, reference = PASSING[name]
    words = np.array(WORDS, STRING)
    x = placeholder(known, "string", "x")
    y = build(x)
    expected = as_scalar_or_array(reference(words))

    (interpreted,) = Interpreter().run(graph, [y], {x: words})
    (compiled,) = Program(graph, [y], [x])(words)
    fetched = Session(graph).run(y, {x: words})

    for value in (interpreted, compiled, as_scalar_or_array(fetched)):
        assert type(value) is type(expected)
        assert value.dtype == (expected.dtype if expected.dtype.kind != "i" else y.dtype) == y.dtype
        np.testing.assert_array_equal(value, expected)


def test_unique(graph: Graph):
    values, inverse = Session(graph).run(ops.unique(["b", "a", "b"], return_inverse=True)[:2])

    assert (values.tolist(), inverse.tolist()) == (["a", "b"], [1, 0, 1])


@pytest.mark.parametrize("times", [0, 1, 4])
def test_loops_carry_strings(graph: Graph, times: int):
    x, count = placeholder((None,), "string", "x"), placeholder((), "int32", "count")

    def body(i: Tensor, line: Tensor, rows: Tensor) -> Any:
        longer = line + x[i]
        return i + 1, longer, ops.concatenate([rows, ops.expand_dims(longer, 0)], 0)

    _, line, rows = while_loop(lambda i, *_: i < count, body, (0, ">", ops.constant([], "string")))
    feeds: Any = {x: np.array(WORDS, STRING), count: np.int32(times)}
    lines = [">" + "".join(WORDS[: k + 1]) for k in range(times)]

    for values in (Session(graph).run([line, rows], feeds), Interpreter().run(graph, [line, rows], feeds)):
        assert str(values[0]) == (lines[-1] if lines else ">")
        assert values[1].tolist() == lines


def test_branches_give_strings(graph: Graph):
    x, flag = placeholder((2,), "string", "x"), placeholder((), "bool", "flag")
    one = cond(flag, lambda: x[0], lambda: "none")
    all_of_it = cond(flag, lambda: x, lambda: x + x)
    session = Session(graph)

    assert session.run(one, {x: ["a", "b"], flag: True}) == "a"
    assert session.run(one, {x: ["a", "b"], flag: False}) == "none"
    assert session.run(all_of_it, {x: ["a", "b"], flag: False}).tolist() == ["aa", "bb"]


def test_tensor_arrays_of_strings(graph: Graph):
    x = placeholder((None,), "string", "x")
    array = TensorArray("string", 3).write(0, x[1]).write(1, "k").write(2, x[0])
    rows = TensorArray("string", 2).write(0, x).write(1, x + "2")
    session, feeds = Session(graph), {x: ["a", "b"]}

    assert session.run(array, feeds) == ["b", "k", "a"]
    assert session.run(array.stack(), feeds).tolist() == ["b", "k", "a"]
    assert session.run(array.read(1), feeds) == "k"
    assert session.run(TensorArray("string", 2).unstack(x).read(1) + "!", feeds) == "b!"
    assert session.run(rows.stack(), feeds).tolist() == [["a", "b"], ["a2", "b2"]]


def test_scan_and_map(graph: Graph):
    x = placeholder((None,), "string", "x")
    last, before = scan(lambda line, word: (line + word, line), "", x)
    session, feeds = Session(graph), {x: ["a", "b", "c"]}

    assert session.run(last, feeds) == "abc"
    assert session.run(before, feeds).tolist() == ["", "a", "ab"]
    assert session.run(map_fn(lambda word: strings.upper(word) + word, x), feeds).tolist() == ["Aa", "Bb", "Cc"]


def test_equal_texts_stay_different_constants(graph: Graph):
    # Long strings are outside of their array, so that its bytes alone do not distinguish them.
    first, second = ["a" * 50, "b" * 50], ["c" * 50, "d" * 50]

    values = Session(graph).run([ops.constant(first) + "", ops.constant(second) + ""])

    assert [value.tolist() for value in values] == [first, second]


def test_gradients_beside_strings(graph: Graph):
    x = placeholder((3,), "float32", "x")
    labels = ops.constant(["cat", "dog", "cat"])
    loss = ops.sum(ops.where(ops.equal(labels, "cat"), x * x, 0.0))

    assert Session(graph).run(gradients(loss, [x])[0], {x: [1, 2, 3]}).tolist() == [2, 0, 6]


def test_gradients_through_loops_that_carry_strings(graph: Graph):
    x, words = placeholder((), "float32", "x"), placeholder((None,), "string", "words")

    def body(i: Tensor, line: Tensor, y: Tensor) -> Any:
        line = line + words[i]
        return i + 1, line, cond(strings.ends_with(line, "b"), lambda: y * x, lambda: y + x)

    _, line, y = while_loop(lambda i, *_: i < 3, body, (0, "", x))
    (dx,) = gradients(y, [x])
    feeds: Any = {x: np.float32(3), words: np.array(["b", "a", "b"], STRING)}

    for found in (Session(graph).run([line, y, dx], feeds), Interpreter().run(graph, [line, y, dx], feeds)):
        assert (str(found[0]), *found[1:]) == ("bab", 36, 33)  # (x * x + x) * x


def test_saved_graphs_hold_strings(graph: Graph, tmp_path: Path):
    x = placeholder((), "string", "x")
    labels, v = ops.constant(WORDS), Variable([*WORDS, "end"], name="v")
    y = strings.join([x, strings.regex_replace(labels, "^Z", "z"), v[:-1]], separator="/")
    graph.save(tmp_path / "graph.npz")

    again = load_graph(tmp_path / "graph.npz")

    found = Session(again).run(symbol_of(y).name, {"x:0": "data"})
    assert found.tolist() == [f"data/{word.replace('Z', 'z')}/{word}" for word in WORDS]
