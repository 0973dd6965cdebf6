"""Operators at the ends of dtypes and at special numbers: values, compiled functions and NumPy give the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab

FLOATS = [
    *(0.0, -0.0, 1, -1, 0.5, -2.5, 3, 7.25, -100, 88.7, -104, 709.5, 1e-7, 1e10, -1e22, 3e38, 1e-38, 1e-45, -1e-40),
    *(np.pi, -np.pi / 2, 2**24 + 1, 2**31, -(2.0**63), 65520, 6e-8, np.inf, -np.inf, np.nan),
]
NUMBERS = [0, 1, 2, 3, 7, 8, 31, 64, 100, 127, 128, 255, 2**31 - 1, -1, -2, -7, -128, -(2**31)]
OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "eq", "ne", "and_", "or_", "xor")
}
OF_TWO |= {name: getattr(operator, name) for name in ("lshift", "rshift")}
UFUNCS_OF_TWO = "maximum minimum fmax fmin arctan2 hypot fmod logaddexp power heaviside"
UFUNCS_OF_ONE = (
    "abs negative sign square sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh "
    "arcsinh arccosh arctanh floor ceil trunc reciprocal isnan isinf isfinite signbit cbrt"
)


def numbers_of(dtype: str) -> Any:
    """Special numbers of a dtype."""
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            return np.array(FLOATS).astype(dtype)
    info = np.iinfo(dtype)
    return np.array(sorted({*(n for n in NUMBERS if info.min <= n <= info.max), info.min, info.max}), dtype)


def assert_alike(found: Any, expected: Any, label: str) -> None:
    """Fail unless both are NaN, infinite and zero of one sign in the same places, and elsewhere nearly the same."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, label
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, label)
        return
    info = np.finfo(found.dtype)
    near, least = 8 * float(info.eps), 4 * float(info.smallest_subnormal)
    np.testing.assert_allclose(found.astype("float64"), expected.astype("float64"), near, least, err_msg=label)
    zero = (found == 0) & (expected == 0)
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]), label)


def results_of(functions: dict[str, Callable[..., Any]], *given: Any) -> dict[str, Any]:
    """The results, by name, of those that take numbers of this dtype: as values, and compiled."""
    at_once: dict[str, Any] = {}
    for name, function in functions.items():
        try:
            at_once[name] = function(*map(ab.ops.array, given))
        except TypeError:
            continue
    compiled = ab.function(lambda *xs: {name: functions[name](*xs) for name in at_once})(*map(ab.ops.array, given))
    for name, value in at_once.items():
        assert compiled[name].dtype == value.dtype
        assert_alike(compiled[name], value, f"{name} compiled")
    return at_once


def check_against_numpy(found: dict[str, Any], reference: dict[str, Callable[..., Any]], *given: Any) -> None:
    for name, value in found.items():
        dtype = np.asarray(value).dtype
        wide = dtype.kind == "f" and given[0].dtype.kind != "f"  # integers become float32, of NumPy float64
        with np.errstate(all="ignore"):
            expected = reference[name](*[each.astype(dtype) if wide else each for each in given])
        assert_alike(value, expected.astype(dtype), name)


DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_of_two(dtype: str) -> None:
    x = numbers_of(dtype)
    pairs = [np.repeat(x, len(x)), np.tile(x, len(x))]
    ours: dict[str, Callable[..., Any]] = dict(OF_TWO)
    if dtype.startswith("float"):
        zeros_alike = ("maximum", "minimum", "fmax", "fmin")  # of zeros of both signs either one is right
        ours |= {name: getattr(ab.ops, name) for name in UFUNCS_OF_TWO.split() if name not in zeros_alike}
    else:
        ours |= {name: getattr(ab.ops, name) for name in ("maximum", "minimum", "fmod")}
    with np.errstate(all="ignore"):
        found = results_of(ours, *pairs)
    numpys = {name: getattr(np, name, ours[name]) if name not in OF_TWO else ours[name] for name in ours}
    check_against_numpy(found, numpys, *pairs)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one(dtype: str) -> None:
    x = numbers_of(dtype)
    with np.errstate(all="ignore"):
        found = results_of({name: getattr(ab.ops, name) for name in UFUNCS_OF_ONE.split()}, x)
    if not dtype.startswith("float"):
        found.pop("reciprocal")  # ours is a float
    check_against_numpy(found, {name: getattr(np, name) for name in found}, x)


CONSTANTS = [0, 1, -1, 2, 3, 8, 0.5, -0.0, float("inf"), float("nan")]


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float32", "float64"])
def test_python_numbers_beside(dtype: str) -> None:
    """Passes rewrite operators with constants; zeros, NaNs and the least integer have to stay what they are."""
    x = numbers_of(dtype)
    wanted = [c for c in CONSTANTS if isinstance(c, int) or dtype.startswith("float")]
    wanted = [c for c in wanted if not (dtype.startswith("u") and c < 0)]
    functions: dict[str, Callable[..., Any]] = {}
    for name, function in OF_TWO.items():
        for constant in wanted:
            functions[f"{name}(x, {constant})"] = lambda x, f=function, c=constant: f(x, c)
            functions[f"{name}({constant}, x)"] = lambda x, f=function, c=constant: f(c, x)
    with np.errstate(all="ignore"):
        found = results_of(functions, x)
    check_against_numpy(found, functions, x)
