"""`ops.strings`, against Python's own string methods."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.graph import Graph, Tensor, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.text import strings
from anabranch.engine.session import Session, placeholder

NO_INTEGER: Any = 2.0
STRING = as_dtype("string")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)  # but surrogates, which UTF-8 lacks
LISTS = st.lists(TEXT, max_size=5)
QUICK = settings(max_examples=40, deadline=None)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(tensor: Tensor) -> Any:
    """A tensor's value as Python data."""
    value = Session(symbol_of(tensor).graph).run(tensor)
    return value.tolist() if isinstance(value, np.ndarray) else value


def evaluated(build: Any) -> Any:
    """The value of a tensor built in a graph of its own."""
    with Graph().as_default():
        return run(build())


@QUICK
@given(LISTS)
def test_methods_of_single_strings(words: list[str]):
    x = np.array(words, STRING)

    assert evaluated(lambda: strings.lower(x)) == [word.lower() for word in words]
    assert evaluated(lambda: strings.upper(x)) == [word.upper() for word in words]
    assert evaluated(lambda: strings.strip(x)) == [word.strip() for word in words]
    assert evaluated(lambda: strings.length(x)) == [len(word) for word in words]
    assert evaluated(lambda: strings.length(x, "BYTE")) == [len(word.encode()) for word in words]


@QUICK
@given(LISTS, TEXT)
def test_starts_and_ends(words: list[str], part: str):
    x = np.array([*words, part, part + "x", "x" + part], STRING)

    assert evaluated(lambda: strings.starts_with(x, part)) == [word.startswith(part) for word in x.tolist()]
    assert evaluated(lambda: strings.ends_with(x, part)) == [word.endswith(part) for word in x.tolist()]


@QUICK
@given(LISTS, st.sampled_from([None, " ", "a", "ab"]), st.integers(-1, 3))
def test_split(words: list[str], separator: str | None, most: int):
    with Graph().as_default() as graph:
        parts = strings.split(np.array(words, STRING), separator, most)
        values, lengths = Session(graph).run(parts)

    rows = [word.split(separator, most) for word in words]
    assert lengths.tolist() == [len(row) for row in rows]
    assert values.shape == (len(words), max(lengths, default=0))
    assert [row[:length].tolist() for row, length in zip(values, lengths, strict=True)] == rows
    assert all((row[length:] == "").all() for row, length in zip(values, lengths, strict=True))


def test_split_of_a_matrix(graph: Graph):
    values, lengths = Session(graph).run(strings.split([["a b", ""], ["c", "d e f"]]))

    assert values.tolist() == [[["a", "b", ""], ["", "", ""]], [["c", "", ""], ["d", "e", "f"]]]
    assert lengths.tolist() == [[2, 0], [1, 3]]
    assert evaluated(lambda: strings.split("a b", sep="").values) == ["a", "b"]


@QUICK
@given(LISTS, TEXT)
def test_join_undoes_split(words: list[str], separator: str):
    x = np.array(words, STRING)

    assert evaluated(lambda: strings.reduce_join(x, separator=separator)) == separator.join(words)
    assert evaluated(lambda: strings.join([x, "k", x], separator)) == [separator.join([w, "k", w]) for w in words]


@pytest.mark.parametrize(
    ("axis", "keepdims", "expected"),
    [
        (None, False, "a-b-c-d-e-f"),
        (None, True, [["a-b-c-d-e-f"]]),
        (0, False, ["a-c-e", "b-d-f"]),
        (-1, False, ["a-b", "c-d", "e-f"]),
        ([0, 1], False, "a-c-e-b-d-f"),
        ((1, 0), True, [["a-b-c-d-e-f"]]),
        ([], False, [["a", "b"], ["c", "d"], ["e", "f"]]),
    ],
)
def test_reduce_join(axis: Any, keepdims: bool, expected: Any):
    x = [["a", "b"], ["c", "d"], ["e", "f"]]

    assert evaluated(lambda: strings.reduce_join(x, axis, keepdims, separator="-")) == expected


def test_reduce_join_needs_its_axes():
    with pytest.raises(ValueError, match="out of range"):
        strings.reduce_join(["a"], axis=1)
    assert strings.reduce_join(placeholder(None, "string"), axis=0).shape is None
    assert strings.reduce_join(placeholder((2, None), "string"), axis=0, keepdims=True).shape == (1, None)


@QUICK
@given(LISTS, st.integers(0, 6), st.integers(0, 6))
def test_substr(words: list[str], start: int, size: int):
    x = np.array([word + "......" for word in words], STRING)
    expected = [word[start : start + size] for word in x.tolist()]

    assert evaluated(lambda: strings.substr(x, start, size)) == expected
    from_end = [word[-6:][:size] for word in x.tolist()]
    assert evaluated(lambda: strings.substr(x, -6, size)) == from_end


def test_substr_broadcasts():
    assert evaluated(lambda: strings.substr("abcdef", [[0], [2]], [1, 3])) == [["a", "abc"], ["c", "cde"]]


def test_substr_of_bytes():
    assert evaluated(lambda: strings.substr("dög", 1, 2, unit="BYTE")) == "ö"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: strings.substr("abc", 4, 1), "substr: position 4 is outside 'abc', which has 3 units"),
        (lambda: strings.substr("abc", -4, 1), "position -4 is outside"),
        (lambda: strings.substr("dög", 0, 2, unit="BYTE"), "cut a character in two. Use unit='UTF8_CHAR'"),
        (lambda: strings.to_number(["1", "x"]), r"to_number: 'x' at position \[1\] is no number of dtype float32"),
        (lambda: strings.to_number("", "int32"), r"to_number: '' at position \[\] is no number of dtype int32"),
        (lambda: strings.to_number("256", "uint8"), "'256' at position .* uint8"),
    ],
)
def test_errors_of_values_come_when_the_program_runs(graph: Graph, build: Any, message: str):
    tensor = build()

    with pytest.raises(ValueError, match=message) as caught:
        Session(graph).run(tensor)

    assert "test_ops_strings.py" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: strings.length("a", "CHAR"), ValueError, "unit must be 'BYTE' or 'UTF8_CHAR'; got 'CHAR'"),
        (lambda: strings.substr("a", 0.0, 1), TypeError, "pos must be integers"),
        (lambda: strings.lower("a", "latin-1"), ValueError, "encoding must be 'utf-8', or ''"),
        (lambda: strings.split("a", width=-1), ValueError, "width must be an integer from 0 up, or None .*; got -1"),
        (lambda: strings.split("a", width=NO_INTEGER), ValueError, "width must be an integer from 0 up.*; got 2.0"),
        (lambda: strings.join([]), ValueError, "at least one tensor"),
        (lambda: strings.join([["a", "b"], ["a", "b", "c"]]), ValueError, "do not broadcast"),
        (lambda: strings.regex_full_match("a", "["), ValueError, "regex_full_match: pattern '\\[' is no regular"),
        (lambda: strings.regex_replace("a", "a", r"\1"), ValueError, "neither a group of the pattern, which has 0"),
        (lambda: strings.to_number("1", "bool"), TypeError, "not bool"),
        (lambda: strings.to_number("1", "complex64"), TypeError, "not complex64"),
        (lambda: strings.as_string(1.0, scientific=True, shortest=True), ValueError, "exclude each other"),
        (lambda: strings.as_string(1, precision=2), ValueError, r"are for floating-point numbers; got int32\[\]"),
        (lambda: strings.as_string(1, fill="x"), ValueError, "fill must be one of"),
        (lambda: strings.format("{}", (1, 2)), ValueError, "has 1 placeholders '{}', but there are 2 inputs"),
        (lambda: strings.to_hash_bucket_fast("a", 0), ValueError, "num_buckets must be positive"),
    ],
)
def test_errors_of_arguments_come_at_once(build: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        build()


# --- regular expressions --------------------------------------------------------------------------------------------


@QUICK
@given(LISTS)
def test_regex_replace_and_match(words: list[str]):
    x = np.array([*words, "ab12", "12"], STRING)

    swapped = evaluated(lambda: strings.regex_replace(x, r"(\w)(\d)", r"\2[\0]\1"))
    assert swapped == [re.sub(r"(\w)(\d)", r"\2[\g<0>]\1", word) for word in x.tolist()]
    first = evaluated(lambda: strings.regex_replace(x, r"\d", "", replace_global=False))
    assert first == [re.sub(r"\d", "", word, count=1) for word in x.tolist()]
    matches = evaluated(lambda: strings.regex_full_match(x, r"\w*\d+"))
    assert matches == [re.fullmatch(r"\w*\d+", word) is not None for word in x.tolist()]


def test_a_rewrite_is_no_python_template():
    assert evaluated(lambda: strings.regex_replace("a.b", r"\.", r"\\n")) == "a\\nb"
    with pytest.raises(ValueError, match="nor a backslash"):
        strings.regex_replace("a", "a", r"\n")


# --- numbers --------------------------------------------------------------------------------------------------------


@QUICK
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=5))
def test_floats_there_and_back(numbers: list[float]):
    x = np.array(numbers, "float32")

    texts = evaluated(lambda: strings.as_string(x, precision=9, scientific=True))

    assert texts == [f"{number:.9e}" for number in numbers]
    assert evaluated(lambda: strings.to_number(np.array(texts, STRING))) == x.tolist()


@QUICK
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_integers_there_and_back(numbers: list[int]):
    x = np.array(numbers, "int64")

    texts = evaluated(lambda: strings.as_string(x))

    assert texts == [str(number) for number in numbers]
    assert evaluated(lambda: strings.to_number(np.array(texts, STRING), "int64")) == numbers


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "3.141590"),
        ({"precision": 2}, "3.14"),
        ({"precision": 2, "width": 7}, "   3.14"),
        ({"precision": 2, "width": 7, "fill": "0"}, "0003.14"),
        ({"precision": 2, "width": 7, "fill": "-"}, "3.14   "),
        ({"precision": 1, "fill": "+"}, "+3.1"),
        ({"scientific": True}, "3.141590e+00"),
        ({"shortest": True}, "3.14159"),
    ],
)
def test_as_string_formats(arguments: Any, expected: str):
    assert evaluated(lambda: strings.as_string(np.float64(3.14159), **arguments)) == expected


def test_as_string_of_other_dtypes():
    assert evaluated(lambda: strings.as_string([True, False])) == ["true", "false"]
    assert evaluated(lambda: strings.as_string(np.array([1 - 2j]), precision=1)) == ["(1.0,-2.0)"]
    assert evaluated(lambda: strings.as_string(np.array([1.5, np.inf], as_dtype("bfloat16")), precision=1)) == [
        "1.5",
        "inf",
    ]
    assert evaluated(lambda: strings.as_string(["a"])) == ["a"]
    assert evaluated(lambda: strings.as_string(np.uint64(2**64 - 1))) == str(2**64 - 1)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "uint8", "int64"])
def test_to_number_gives_the_dtype(name: str):
    tensor = strings.to_number([" 1", "2 "], name)

    assert tensor.dtype == as_dtype(name)
    assert [float(value) for value in run(tensor)] == [1, 2]


# --- format, hash ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "inputs", "expected"),
    [
        ("loss {}", 0.5, "loss 0.5"),
        ("{} of {}", (1, [2, 3]), "1 of [2 3]"),
        ("{}", [["a", "b"]], '["a" "b"]'),
        ("{}", "a", "a"),
        ("{}!", np.arange(10), "[0 1 2 ... 7 8 9]!"),
        ("{}", np.eye(2), "[[1.0 0.0]\n [0.0 1.0]]"),
        ("none", (), "none"),
        ("{}", np.zeros((0, 2)), "[]"),
        ("{}", np.zeros((1, 1, 2), bool), "[[[False False]]]"),
    ],
)
def test_format(template: str, inputs: Any, expected: str):
    assert evaluated(lambda: strings.format(template, inputs)) == expected


def test_format_shows_as_much_as_is_asked_for():
    x = np.arange(7)

    assert evaluated(lambda: strings.format("{}", x, summarize=-1)) == "[0 1 2 3 4 5 6]"
    assert evaluated(lambda: strings.format("%", x, placeholder="%", summarize=1)) == "[0 ... 6]"


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


@QUICK
@given(st.lists(TEXT, max_size=8), st.integers(1, 2**63 - 1))
def test_hashes_are_fnv1a(words: list[str], buckets: int):
    x = np.array([*words, "a" * 300], STRING)

    found = evaluated(lambda: strings.to_hash_bucket_fast(x, buckets))

    assert found == [fnv1a(word) % buckets for word in x.tolist()]


def test_hashes_spread():
    names = [f"label_{number}" for number in range(2000)]

    counts = np.bincount(evaluated(lambda: strings.to_hash_bucket_fast(names, 16)), minlength=16)

    assert counts.min() > 80  # 125 on average
    assert counts.max() < 180


def test_shapes_are_inferred():
    x = placeholder((2, None), "string")

    assert strings.upper(x).shape == strings.length(x).shape == strings.to_number(x).shape == (2, None)
    assert strings.join([x, placeholder((3,), "string")]).shape == (2, 3)
    assert strings.split(x).values.shape == (2, None, None)
    assert strings.upper(placeholder(None, "string")).shape is None
