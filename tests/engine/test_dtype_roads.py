"""Every dtype on every road: fed, constant, held by variables, cast; and the tables of ``docs/dtypes.md``."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.common.dtypes import is_floating, is_integer, is_string, name_of
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Variable, as_dtype, result_type
from anabranch.engine.ops.base import as_array
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.session import Session, placeholder

DOCUMENT = Path(__file__).parents[2] / "docs" / "dtypes.md"
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
ALL = (*NUMBERS, "string")


def values_of(name: str) -> Any:
    """Four values of a dtype, its limits among them."""
    dtype = as_dtype(name)
    if is_string(dtype):
        return np.array(["", "a", "Zoë", "x" * 100], dtype)
    if is_integer(dtype):
        return np.array([0, 1, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    if dtype.kind == "b":
        return np.array([False, True, True, False])
    if dtype.kind == "c":
        return np.array([0, 1 + 2j, -1.5, 3j], dtype)
    return np.array([0.0, 1.5, -2.5, 100.0]).astype(dtype)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(graph: Graph, fetch: Any, feeds: Any = None) -> Any:
    """The value of a tensor, which both roads agree on."""
    value = Session(graph).run(fetch, feeds)
    (reference,) = Interpreter().run(graph, [fetch], feeds)
    np.testing.assert_array_equal(value, reference)
    return value


# --- roads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_dtype_is_fed_and_fetched(graph: Graph, name: str):
    values = values_of(name)
    x = placeholder((None,), name, "x")

    fetched = run(graph, x[::-1], {x: values})

    assert fetched.dtype == as_dtype(name) == x.dtype
    np.testing.assert_array_equal(fetched, values[::-1])
    assert str(x.spec) == f"{name}[?]"


@pytest.mark.parametrize("name", ALL)
def test_every_dtype_is_a_constant_of_rank_one_and_zero(graph: Graph, name: str):
    values = values_of(name)

    np.testing.assert_array_equal(run(graph, ops.constant(values)), values)
    assert run(graph, ops.constant(values[1:2].reshape(()))) == values[1]
    assert ops.constant(values.tolist(), name).dtype == as_dtype(name)


@pytest.mark.parametrize("name", ALL)
def test_every_dtype_is_held_by_variables(graph: Graph, name: str):
    values = values_of(name)
    variable = Variable(values, name="v")
    scalar = Variable(values[1:2].reshape(()), name="s")

    Session(graph).run([variable.assign(variable[::-1]), scalar.assign(ops.take(variable, 0))])

    np.testing.assert_array_equal(variable.numpy(), values[::-1])
    assert scalar.numpy() == values[-1]  # in program order, so after the assignment
    assert (variable.dtype, scalar.dtype) == (as_dtype(name), as_dtype(name))


@pytest.mark.parametrize("name", ALL)
def test_every_dtype_passes_through_loops_and_branches(graph: Graph, name: str):
    values = values_of(name)
    x = placeholder((4,), name, "x")

    _, turned = while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t[::-1]), (0, x))
    chosen = cond(ops.equal(ops.size(x), 4), lambda: x[2], lambda: x[0])

    np.testing.assert_array_equal(run(graph, turned, {x: values}), values[::-1])
    assert run(graph, chosen, {x: values}) == values[2]


# --- casts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "wanted"), list(itertools.product(NUMBERS, repeat=2)))
def test_numbers_are_cast_into_each_other(graph: Graph, source: str, wanted: str):
    small = np.array([0, 1, 2, 1]).astype(as_dtype(source))  # values that every dtype but bool holds
    x = placeholder((4,), source, "x")

    found = run(graph, ops.cast(x, wanted), {x: small})

    assert found.dtype == as_dtype(wanted)
    expected = [0, 1, 1, 1] if "bool" in (source, wanted) else [0, 1, 2, 1]
    assert found.astype("complex128").tolist() == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_strings_and_numbers_are_not_cast_into_each_other(name: str):
    message = f"Strings can't be cast to {name}; parse them with ops.strings.to_number.*np.unique"
    with pytest.raises(TypeError, match=message):
        ops.cast(["1"], name)
    with pytest.raises(TypeError, match=f"{name} can't be cast to strings; print the numbers with"):
        ops.cast(np.zeros(1, as_dtype(name)), "string")


def test_casts_drop_fractions_and_imaginary_parts(graph: Graph):
    numbers = ops.constant([1.7, -1.7, 0.2])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(graph, ops.cast(numbers, "int32")).tolist() == [1, -1, 0]
        assert run(graph, ops.cast(ops.constant([1 + 2j, 3j]), "bool")).tolist() == [True, True]
        assert run(graph, ops.cast(ops.constant([1 + 2j, 3j]), "float32")).tolist() == [1, 0]


# --- promotion ------------------------------------------------------------------------------------------------------

# The documented rules of keras.backend.result_type: each type and those right above it.
KERAS = {
    "bool": "int", "int": "uint8 int8 complex64", "float": "bfloat16 float16",
    "uint8": "int16 uint16", "uint16": "int32 uint32", "uint32": "int64 uint64", "uint64": "float",
    "int8": "int16", "int16": "int32", "int32": "int64", "int64": "float",
    "bfloat16": "float32", "float16": "float32", "float32": "float64 complex64", "float64": "complex128",
    "complex64": "complex128", "complex128": "",
}  # fmt: skip


def above(name: str) -> set[str]:
    return {name}.union(*[above(parent) for parent in KERAS[name].split()])


def keras_join(first: str, second: str) -> str:
    common = above(first) & above(second)
    (least,) = [name for name in common if common <= above(name)]
    return {"int": "int32", "float": "float32"}.get(least, least)


@pytest.mark.parametrize("first", NUMBERS)
def test_pairs_join_as_in_keras(first: str):
    for second in NUMBERS:
        assert result_type(as_dtype(first), as_dtype(second)) == as_dtype(keras_join(first, second)), second
    assert result_type(as_dtype(first), int) == as_dtype(keras_join(first, "int"))
    assert result_type(as_dtype(first), float) == as_dtype(keras_join(first, "float"))


@pytest.mark.parametrize("name", NUMBERS)
def test_strings_do_not_mix_with_numbers(name: str):
    with pytest.raises(TypeError, match=f"Strings and numbers do not mix; got string and {name}"):
        result_type(as_dtype("string"), as_dtype(name))
    with pytest.raises(TypeError, match="Strings and numbers do not mix"):
        ops.add(["a"], np.zeros(1, as_dtype(name)))


def test_strings_join_with_strings_alone():
    assert result_type(as_dtype("string"), as_dtype("string")) == as_dtype("string")
    with pytest.raises(TypeError, match="Strings and numbers do not mix; got string and int"):
        result_type(as_dtype("string"), int)


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_sums_have_the_joined_dtype(graph: Graph, first: str, second: str):
    x, y = placeholder((2,), first, "x"), placeholder((2,), second, "y")
    feeds = {x: np.ones(2, as_dtype(first)), y: np.ones(2, as_dtype(second))}

    total = run(graph, x + y, feeds)

    joined = result_type(as_dtype(first), as_dtype(second))
    assert total.dtype == (x + y).dtype
    assert total.dtype == joined
    assert (x / y).dtype == (joined if is_floating(joined) or joined.kind == "c" else as_dtype("float32"))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_around(graph: Graph, name: str):
    limits = np.iinfo(name)
    x = placeholder((2,), name, "x")

    assert run(graph, x + 1, {x: np.array([limits.max, 0], name)}).tolist() == [limits.min, 1]


# --- the document ---------------------------------------------------------------------------------------------------


def joins_table() -> str:
    """The joins of all pairs, as the document prints them."""
    columns: dict[str, Any] = {name: as_dtype(name) for name in NUMBERS} | {"int": int, "float": float}
    short = {name: name.replace("complex", "c").replace("bfloat", "bf").replace("float", "f") for name in columns}
    short = {name: text.replace("uint", "u").replace("int", "i") for name, text in short.items()}
    short |= {"bool": "bool", "int": "int", "float": "float"}
    lines = ["|   | " + " | ".join(short[name] for name in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for first in NUMBERS:
        cells = [short[name_of(result_type(columns[first], second))] for second in columns.values()]
        lines.append(f"| **{short[first]}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_document_has_the_table_of_joins():
    assert joins_table() in DOCUMENT.read_text(encoding="utf-8"), f"docs/dtypes.md should hold:\n{joins_table()}"


def test_the_document_names_every_dtype():
    text = DOCUMENT.read_text(encoding="utf-8")

    assert [name for name in ALL if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ALL)
def test_names_lead_back_to_their_dtype(name: str):
    assert name_of(as_dtype(name)) == name
    assert as_dtype(as_dtype(name).name) == as_dtype(name)
    assert as_array(values_of(name)).dtype == as_dtype(name)
