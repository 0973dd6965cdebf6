"""Ops with short docstrings do what the reference says of their arguments, results and errors."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from anabranch import ops

FOLDER = Path(__file__).parents[2] / ".ci" / "site"
DTYPES = ["bool", "int8", "int32", "int64", "float16", "float32", "float64", "complex64"]
FLOATING = "The shape of `x`, and its dtype if that is floating."
BROADCAST = "The shape to which both broadcast."


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_arguments", FOLDER / "arguments.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ARGUMENTS = loaded()
KINDS = ARGUMENTS.kinds()


def required(name: str) -> list[str]:
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


def of(parameters: list[str], *results: str) -> list[str]:
    """The ops with these parameters whose result is one of those described so."""
    return [name for name, kind in KINDS.items() if required(name) == parameters and kind.returns.startswith(results)]


def raises(name: str, *arguments: Any, **named: Any) -> str:
    try:
        getattr(ops, name)(*arguments, **named)
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return ""


def test_short_docstrings_get_sections():
    short = set[str]()
    for name in ops.__all__:
        text, function = inspect.getdoc(getattr(ops, name)) or "", getattr(ops, name)
        if inspect.isfunction(function) and "Args:" not in text and len(text.split(">>>")[0].strip().splitlines()) <= 2:
            short.add(name)

    assert short - KINDS.keys() == {"apply", "apply_multi", "registered_ops"}
    assert KINDS.keys() - short == set()


def test_sections_describe_each_argument_once():
    for names, kind in ARGUMENTS.KINDS:
        taken = {each for name in names.split() for each in inspect.signature(getattr(ops, name)).parameters}
        assert kind.arguments.keys() <= taken, names
    assert sum(len(names.split()) for names, _ in ARGUMENTS.KINDS) == len(KINDS)
    described = ARGUMENTS.sections("leaky_relu").split("\n\n")
    assert [each.partition(":")[0] for each in described] == ["Args", "Returns", "Raises"]
    assert described[0].splitlines()[1:] == [
        "    x: numbers of any shape; integers and bools count as float32.",
        "    negative_slope: the slope for negative values.",
    ]


@pytest.mark.parametrize("name", of(["x"], FLOATING))
def test_functions_of_an_element(name: str):
    kind, function = KINDS[name], getattr(ops, name)
    for dtype in DTYPES:
        if dtype == "complex64" and "complex" in kind.raises["TypeError"]:
            assert raises(name, np.ones((2, 1), dtype)) == "TypeError"
            continue
        result = function(np.ones((2, 1), dtype))
        wide = "float64" if dtype == "int64" and "int64" in kind.arguments["x"] else "float32"
        assert (result.shape, result.dtype) == ((2, 1), dtype if np.dtype(dtype).kind in "fc" else wide), dtype
    assert raises(name, ["text"]) == "TypeError"


@pytest.mark.parametrize("name", of(["x"], "Bools, in the shape"))
def test_tests_of_an_element(name: str):
    for dtype in DTYPES:
        if dtype == "complex64" and "complex" in KINDS[name].raises.get("TypeError", ""):
            assert raises(name, np.ones((2, 1), dtype)) == "TypeError"
        else:
            result = getattr(ops, name)(np.ones((2, 1), dtype))
            assert (result.shape, result.dtype) == ((2, 1), "bool"), dtype


@pytest.mark.parametrize("name", [*of(["x1", "x2"], BROADCAST), *of(["x1", "x2"], f"Bools. {BROADCAST}")])
def test_functions_of_two(name: str):
    kind, function = KINDS[name], getattr(ops, name)
    result = function(np.ones((2, 1), "float16"), np.ones((1, 3), "float32"))
    of_integers = function(np.ones(2, "int32"), np.ones(2, "int32"))

    assert (result.shape, result.dtype) == ((2, 3), "bool" if "Bools" in kind.returns else "float32")
    assert (of_integers.dtype == "float32") == ("Floating" in kind.returns)
    assert raises(name, np.ones(2), np.ones(3)) == "ValueError"
    refused = kind.raises.get("TypeError", "")
    for word, x in {"strings": ["a"], "complex": np.ones(1, "complex64"), "bools": np.ones(1, "bool")}.items():
        assert raises(name, x, x) == ("TypeError" if word in refused else ""), word


@pytest.mark.parametrize("name", [name for name in of(["x"], "") if "    axis:" in ARGUMENTS.sections(name)])
def test_functions_over_axes(name: str):
    kind = KINDS[name]
    result = getattr(ops, name)(np.ones((2, 3), "float32"), axis=0)

    assert result.shape == ((3,) if "without the ax" in kind.returns else (2, 3))
    assert raises(name, np.ones((2, 3)), axis=2) == "ValueError"
    for word, x in {"strings": ["a"], "complex": np.ones(1, "complex64"), "bools": np.ones(1, "bool")}.items():
        assert raises(name, x) == ("TypeError" if word in kind.raises.get("TypeError", "") else ""), word
    empty = raises(name, np.ones((0, 2), "float32"), axis=0)
    assert empty == ("ValueError" if "no elements" in kind.raises["ValueError"] else "")
