"""Kernels' own transcendental functions: their errors against mpmath, and what is special, in float32 and float64."""

from __future__ import annotations

import ctypes
import itertools
import math
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from shared.cuda_compiler import compile_cuda

import anabranch as ab
from anabranch.engine.codegen.cuda.elementwise import OPTIONS, print_cuda
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.expression.builder import FUNCTIONS, ExpressionBuilder
from anabranch.engine.codegen.expression.expression import Expression, UnsupportedError
from anabranch.engine.codegen.expression.llvm import KernelSpec
from anabranch.engine.codegen.llvm.entry import Operand
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.math.special import erf_values, erfc_values, erfinv_values

DOCUMENT = Path(__file__).parents[2] / "docs" / "kernels.md"
LLVM_TYPES = {"float32": "float", "float64": "double"}

# The errors that are allowed, in units in the last place: (float32, float64). The document has this table.
BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (1.1, 1.1),
    "exp2": (1.1, 1.1),
    "expm1": (1.6, 1.6),
    "log": (1.0, 1.0),
    "log2": (1.0, 1.0),
    "log10": (1.0, 1.0),
    "log1p": (3.0, 1.5),
    "sin": (0.7, 2.2),
    "cos": (0.7, 2.2),
    "tan": (0.7, 3.5),
    "sinh": (2.0, 2.2),
    "cosh": (1.6, 1.6),
    "tanh": (2.6, 2.5),
    "arcsin": (0.7, 0.8),
    "arccos": (0.7, 0.9),
    "arctan": (0.7, 1.7),
    "arcsinh": (0.7, 2.0),
    "arccosh": (0.7, 2.4),
    "arctanh": (0.7, 2.2),
    "cbrt": (0.7, 0.9),
    "erf": (1.6, 3.5),
    "erfc": (0.7, 5.2),
    "erfinv": (0.7, 3.4),
    "sigmoid": (3.0, 3.0),
    "softplus": (3.0, 3.0),
}
# Compositions of several functions, as the ops write them.
COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "softplus": lambda e, x: e.maximum(x, 0) + e.log1p(e.exp(-e.absolute(x))),
}


def spec_of(name: str, dtype: str, arity: int = 1) -> KernelSpec:
    """The kernel of a function alone."""
    e = ExpressionBuilder()
    inputs = [e.input(position, np.dtype(dtype)) for position in range(arity)]
    result: Expression = COMPOSED[name](e, *inputs) if name in COMPOSED else getattr(e, name)(*inputs)
    operand, output = (Operand(LLVM_TYPES[dtype], 1, (True,), is_written) for is_written in (False, True))
    return KernelSpec(tuple(e.nodes), (operand,) * arity, ((output, result.index),), 1)


def compute(name: str, *values: Any) -> Any:
    """A function of arrays, by a kernel."""
    assert library.usable
    size, dtype = values[0].size, values[0].dtype
    spec = spec_of(name, dtype.name, len(values))
    specs = [TensorSpec((size,), dtype) for _ in values]
    kernel = BoundKernel(spec, specs, specs[:1], [size, 1, size])
    kernel.compiled()
    out = np.empty(size, dtype)
    assert not kernel.call(*values, out)
    return out


# --- errors ---------------------------------------------------------------------------------------------------------


def points(name: str, dtype: str, count: int) -> Any:
    """Random numbers: of all exponents, of usual sizes, near 1, near multiples of pi / 2, and near what overflows."""
    rng = np.random.default_rng(list(BOUNDS).index(name))
    bits = np.dtype(dtype).itemsize * 8
    widest = {"float32": 106.0, "float64": 750.0}[dtype]
    drawn = [
        rng.integers(0, 2**bits, count, dtype=f"uint{bits}").view(dtype),
        rng.normal(size=count) * np.exp2(rng.integers(-14, 12, count)),
        rng.uniform(-1.5, 1.5, count),
        1 + rng.normal(size=count) * np.exp2(-rng.uniform(0, 30, count)),
        rng.integers(1, 2000, count) * (np.pi / 2),
        rng.uniform(-widest, widest, count),
        np.copysign(1 - np.exp2(-rng.uniform(0, bits * 0.8, count)), rng.normal(size=count)),
    ]
    with np.errstate(all="ignore"):
        found = np.concatenate([values.astype(dtype) for values in drawn])
    return found[np.isfinite(found)]


def exact(name: str, x: float) -> Any:
    """The function as an mpmath number; None where it has no finite value, or one so small that it is 0 in float64."""
    if (name in ("log", "log2", "log10") and x <= 0) or (name == "log1p" and x <= -1):
        return None
    least, most = _DOMAINS.get(name, (-math.inf, math.inf))
    if not least <= x <= most:
        return None
    if abs(x) > 1000 and name not in _OF_ANY_SIZE:
        return None  # a limit, infinity or 0
    number = mpmath.mpf(x)
    with mpmath.workprec(1300 if name in ("sin", "cos", "tan") and abs(x) > 1 else 140):
        if abs(x) < 1e-100 and name in _STEEP_AT_ZERO:
            return number * _STEEP_AT_ZERO[name]
        return _EXACT[name](number)


_OF_ANY_SIZE = (
    *("log", "log2", "log10", "log1p", "sin", "cos", "tan", "arctan", "arcsinh", "arccosh", "cbrt", "softplus"),
)
_BEFORE_ONE = 1 - 2.0**-53
_DOMAINS = {
    "arcsin": (-1, 1),
    "arccos": (-1, 1),
    "arccosh": (1, math.inf),
    "arctanh": (-_BEFORE_ONE, _BEFORE_ONE),
    "erfinv": (-_BEFORE_ONE, _BEFORE_ONE),
}
_STEEP_AT_ZERO: dict[str, Any] = {
    **dict.fromkeys(("expm1", "log1p", "sin", "tan", "sinh", "tanh", "arcsin", "arctan", "arcsinh", "arctanh"), 1),
    "erf": 2 / mpmath.sqrt(mpmath.pi),
    "erfinv": mpmath.sqrt(mpmath.pi) / 2,
}


_EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.power(2, x),
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "log10": lambda x: mpmath.log(x) / mpmath.log(10),
    "log1p": mpmath.log1p,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "erfinv": mpmath.erfinv,
    "erf": mpmath.erf,
    "erfc": lambda x: mpmath.erfc(x) if x < 40 else mpmath.mpf(0),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
}


def worst_error(name: str, x: Any) -> tuple[float, str]:
    """The largest error in ulps of the rounded value, and where it is."""
    worst, place = 0.0, ""
    limits = np.finfo(x.dtype)
    for at, found in zip(x.tolist(), compute(name, x).tolist(), strict=True):
        value = exact(name, at)
        if value is None or abs(value) > float(limits.max):
            continue
        if name == "sigmoid" and value < float(limits.tiny):
            continue  # once exp(-x) overflows it is 0, as in NumPy
        with np.errstate(under="ignore"):
            rounded = x.dtype.type(float(value))
        error = float(abs(mpmath.mpf(found) - value) / float(np.spacing(np.abs(rounded))))
        if not error <= worst:
            worst, place = error, f"{name}({at!r}) is {found!r}, not {float(value)!r}"
    return worst, place


@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", BOUNDS)
def test_errors(name: str, dtype: str):
    error, place = worst_error(name, points(name, dtype, 250))
    assert error <= BOUNDS[name][dtype == "float64"], f"{error} ulps: {place}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", BOUNDS)
def test_errors_of_many(name: str, dtype: str):
    error, place = worst_error(name, points(name, dtype, 4000))
    assert error <= BOUNDS[name][dtype == "float64"], f"{error} ulps: {place}"


def swept(step: int) -> Any:
    """float32 values over the whole range: every sign, exponent and kind of NaN; and the edges of functions' cases."""
    all_over = np.arange(0, 2**32, step, dtype="uint64").astype("uint32").view("float32")
    edges = np.array(
        [0, 1, 0.34, 0.625, 0.92, 4, 88.72284, -87.33655, -103.97208, 0.5**0.5, np.inf, 1e-45, 3.4e38], "float32"
    )
    around = edges.view("int32")[:, None] + np.arange(-40, 41, dtype="int32")
    around = np.concatenate([edges, around.view("float32").reshape(-1)])
    return np.concatenate([all_over, around, -around, np.linspace(-20, 20, 20_001, dtype="float32")])


_IN_FLOAT64: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "erf": lambda x: erf_values(np, x),
    "erfc": lambda x: erfc_values(np, x),
    "erfinv": lambda x: erfinv_values(np, x),
}


def check_sweep(name: str, x: Any) -> None:
    """Compare with NumPy's float64: errors, infinities, NaN and signs."""
    found = compute(name, x)
    with np.errstate(all="ignore"):
        expected = _IN_FLOAT64.get(name, getattr(np, name, None))(x.astype("float64"))  # pyright: ignore[reportOptionalCall]
        rounded = expected.astype("float32")
        errors = np.abs(found.astype("float64") - expected) / np.spacing(np.abs(rounded)).astype("float64")
    counted = np.isfinite(rounded)
    if name == "sigmoid":
        counted &= rounded >= np.finfo("float32").tiny
        assert np.all(found[~counted & ~np.isnan(x)] <= np.finfo("float32").tiny)
    else:
        np.testing.assert_array_equal(found[~counted], rounded[~counted])  # NaN and infinities
    worst = np.argmax(np.where(counted, errors, 0))
    assert errors[worst] <= BOUNDS[name][0], f"{errors[worst]} ulps at {x[worst]!r}: {found[worst]!r}"
    number = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))


@pytest.mark.parametrize("name", BOUNDS)
def test_float32_over_the_whole_range(name: str):
    check_sweep(name, swept(65521))


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_float32_densely(name: str):
    check_sweep(name, swept(509))


# --- what is special ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", BOUNDS)
def test_special_values(name: str, dtype: str):
    """Infinities, NaN, zeros of both signs, subnormals and the ends of the range, as NumPy has them."""
    limits = np.finfo(dtype)
    sizes = [0, limits.smallest_subnormal, limits.tiny / 2, limits.tiny, 1, 710, 711, 88.8, 89.5, limits.max, np.inf]
    x = np.array([*sizes, *[-size for size in sizes], np.nan], dtype)
    with np.errstate(all="ignore"):
        expected = _IN_FLOAT64.get(name, getattr(np, name, None))(x.astype("float64")).astype(dtype)  # pyright: ignore[reportOptionalCall]

    found = compute(name, x)

    is_tiny = np.abs(expected) <= limits.tiny  # numbers below which NumPy's sigmoid is 0
    kind = [np.isnan, np.isposinf, np.isneginf]
    for same in kind:
        np.testing.assert_array_equal(same(found), same(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(expected[number]))
    usual = np.isfinite(expected) & ~is_tiny
    np.testing.assert_allclose(found[usual], expected[usual], rtol=8 * float(limits.eps))
    assert np.all(np.abs(found[is_tiny]) <= limits.tiny * 1.01)


@pytest.mark.parametrize("dtype", LLVM_TYPES)
def test_subnormals_are_kept(dtype: str):
    tiny = np.finfo(dtype).smallest_subnormal * np.array([1, 2, 3, 1000, -1, -7], dtype)
    for name in ("expm1", "log1p", "sin", "tan", "sinh", "tanh"):
        np.testing.assert_array_equal(compute(name, tiny), tiny, err_msg=name)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="reads flags of one processor")
@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "softplus"])
def test_powers_far_below_the_least_number_do_not_underflow(name: str, dtype: str):
    """Masked scores are such, and processors take a hundred cycles for each vector of products that underflow."""
    libm, underflow = ctypes.CDLL("libm.so.6"), 0x10
    x = -np.array([3e3, 1e4, 1e9, 1e30, np.inf], dtype)
    compute(name, x)
    libm.feclearexcept(underflow)
    found = compute(name, x)
    assert not libm.fetestexcept(underflow)
    np.testing.assert_array_equal(found, 0)
    compute("exp", np.array([-100.0 if dtype == "float32" else -740.0], dtype))
    assert libm.fetestexcept(underflow), "the flag is of another unit"


def test_what_a_sigmoid_is_at_its_ends():
    x = np.array([-np.inf, -1e30, -90.2, -90, -89.7, -88.8, -88, 17.4, 86, 90, 1e30, np.inf, np.nan], "float32")
    exact = [0, 0, 0, 0, *(1 / (1 + np.exp(-x[4:7].astype("float64")))), 1, 1, 1, 1, 1, np.nan]
    # Below the least normal number as well, as long as the quarter of the exponential that it takes does not overflow.
    np.testing.assert_allclose(compute("sigmoid", x), np.array(exact, "float32"), rtol=0, atol=1.5e-45)


def test_a_tanh_is_1_for_large_numbers_alone():
    x = np.array([8, 9.1, 10, 10.1, 1e30, np.inf], "float32")
    np.testing.assert_array_equal(compute("tanh", x)[1:], 1)
    np.testing.assert_array_equal(compute("tanh", -x)[1:], -1)
    assert compute("tanh", x)[0] < 1


@pytest.mark.parametrize(("name", "most"), [("sigmoid", 20), ("tanh", 26), ("exp", 25), ("erf", 44)])
def test_functions_of_cells_take_few_instructions(name: str, most: int):
    nodes = [node for node in spec_of(name, "float32").nodes if node.kind not in ("input", "constant")]
    assert len(nodes) <= most
    assert sum(node.kind == "div" for node in nodes) == (name in ("sigmoid", "tanh"))


def test_powers_of_two_have_exact_logarithms_and_powers():
    for dtype, least, most in (("float32", -149, 127), ("float64", -1074, 1023)):
        exponents = np.arange(least, most + 1)
        powers = np.ldexp(np.ones(1, dtype), exponents)
        np.testing.assert_array_equal(compute("log2", powers), exponents.astype(dtype))
        np.testing.assert_array_equal(compute("exp2", exponents.astype(dtype)), powers)


def test_powers_of_ten_have_exact_logarithms():
    np.testing.assert_array_equal(compute("log10", 10.0 ** np.arange(16)), np.arange(16.0))
    np.testing.assert_array_equal(
        compute("log10", 10.0 ** np.arange(11, dtype="float32")), np.arange(11, dtype="float32")
    )


def test_angles_next_to_multiples_of_a_right_angle():
    """The float64 next to a multiple of pi / 2 (J.-M. Muller, "Elementary Functions", table 11.1), and huge ones."""
    x = np.array([6381956970095103 * 2.0**797, 1e22, 2.0**1023, np.finfo("float64").max, 2.0**70 + 2.0**20])
    with mpmath.workprec(1300):
        for name in ("sin", "cos", "tan"):
            expected = [float(_EXACT[name](mpmath.mpf(value))) for value in x.tolist()]
            np.testing.assert_allclose(compute(name, x), expected, rtol=1e-15)
            np.testing.assert_allclose(compute(name, -x), [-y if name != "cos" else y for y in expected], rtol=1e-15)
    assert compute("cos", x)[0] == -4.6871659242546277e-19


# --- powers ---------------------------------------------------------------------------------------------------------


def c_power(x: float, y: float) -> float:
    """C's pow, which Python's is but for what it raises."""
    is_odd = math.isfinite(y) and y % 2 == 1
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and is_odd else math.inf
    except ValueError:
        return math.nan if x != 0 else math.copysign(math.inf, x) if is_odd else math.inf


def test_powers():
    rng = np.random.default_rng(0)
    ends = [0, 1, 2, 3, 0.5, 1e-45, 2.0**24 + 2, 3e38, 127, 149, np.inf]
    ends = [*ends, *[-end for end in ends], np.nan]
    pairs = list(itertools.product(ends, ends))
    pairs += list(zip(np.exp(rng.normal(size=3000) * 3), rng.normal(size=3000) * 8, strict=True))
    pairs += list(zip(1 + rng.normal(size=3000) * 1e-4, rng.normal(size=3000) * 1e5, strict=True))
    pairs += list(zip(-np.exp(rng.normal(size=1000)), rng.integers(-30, 30, 1000), strict=True))
    x, y = (np.array(column, "float32") for column in zip(*pairs, strict=True))
    expected = np.array([c_power(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True)])
    with np.errstate(all="ignore"):
        rounded = expected.astype("float32")

    found = compute("power", x, y)

    counted = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~counted], rounded[~counted])
    number = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))
    errors = np.abs(found[counted] - expected[counted]) / np.spacing(np.abs(rounded[counted]))
    assert errors.max() <= 1


_TWO: dict[str, tuple[float, Callable[[Any, Any], Any]]] = {
    "arctan2": (1.5, mpmath.atan2),
    "hypot": (1.5, mpmath.hypot),
    "power": (1.0, mpmath.power),
}


@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", _TWO)
def test_errors_of_functions_of_two(name: str, dtype: str):
    rng = np.random.default_rng(list(_TWO).index(name))
    count, bits = 400, np.dtype(dtype).itemsize * 8
    drawn = rng.integers(0, 2**bits, count, dtype=f"uint{bits}").view(dtype)
    x = np.concatenate([np.where(np.isfinite(drawn), drawn, 1), rng.normal(size=count)])
    y = np.concatenate([rng.permutation(x[:count]), rng.normal(size=count) * np.exp2(rng.integers(-20, 20, count))])
    if name == "power":
        near = 1 + rng.normal(size=count) * 1e-4
        x = np.abs(np.concatenate([x[:count], rng.lognormal(0, 3, count), near]))
        y = np.concatenate([rng.normal(size=count), rng.normal(size=count) * 60, rng.normal(size=count) * 1e6])
    with np.errstate(all="ignore"):
        x, y = x.astype(dtype), y.astype(dtype)
    usual = np.isfinite(x) & np.isfinite(y) & (x != 0)
    x, y = x[usual], y[usual]
    bound, reference = _TWO[name]
    for a, b, found in zip(x.tolist(), y.tolist(), compute(name, x, y).tolist(), strict=True):
        if name == "power" and abs(b * math.log2(a)) > 1100:
            assert found in (0, math.inf)
            continue
        with mpmath.workprec(200):
            value = reference(mpmath.mpf(a), mpmath.mpf(b))
            if abs(value) > float(np.finfo(dtype).max):
                continue
            with np.errstate(under="ignore"):
                unit = float(np.spacing(np.abs(np.dtype(dtype).type(float(value)))))
            assert abs(mpmath.mpf(found) - value) <= bound * unit, (name, a, b, found)


@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("name", [*_TWO, "logaddexp", "logaddexp2"])
def test_special_values_of_functions_of_two(name: str, dtype: str):
    """All pairs of zeros, infinities, NaN, integers odd and even, subnormal and huge numbers, as NumPy has them."""
    limits = np.finfo(dtype)
    sizes = [0, limits.smallest_subnormal, 0.5, 1, 2, 3, np.pi, 2.0**53 + 2, limits.max, np.inf]
    ends = np.array([*sizes, *[-size for size in sizes], np.nan])
    x, y = (values.ravel().astype(dtype) for values in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)

    found = compute(name, x, y)

    cancels = float(limits.eps) if name == "logaddexp2" else 0
    np.testing.assert_allclose(found, expected, rtol=4 * float(limits.eps), atol=cancels)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(expected[number]))


def test_cubes_have_exact_roots():
    numbers = np.arange(-200.0, 200.0)
    np.testing.assert_array_equal(compute("cbrt", numbers**3), numbers)
    powers = np.ldexp(1.0, [-1074, -1071, -300, 300, 1023])
    np.testing.assert_array_equal(compute("cbrt", powers), np.ldexp(1.0, [-358, -357, -100, 100, 341]))


@pytest.mark.parametrize(("name", "dtype"), [("fmod", "float64"), ("exp", "int32"), ("sin", "bool")])
def test_what_is_left_to_numpy(name: str, dtype: str):
    e = ExpressionBuilder()
    with pytest.raises(UnsupportedError, match=name):
        getattr(e, name)(e.input(0, np.dtype(dtype)))


# --- programs, prints and the document ------------------------------------------------------------------------------


def test_float64_chains_fuse():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((1000,), "float64", "x")
        y = ab.ops.tanh(x * 2) * ab.ops.exp(-x) + ab.ops.log(x * x + 1) + ab.ops.erf(x) * ab.ops.sin(x)
        session = ab.Session(graph)
        value = np.linspace(-3, 3, 1000)
        source = session.program(y, [x]).source

        found = session.run(y, {x: value})

    assert source.count("kernel") == 1
    assert "np.tanh" not in source
    wave = erf_values(np, value) * np.sin(value)
    np.testing.assert_allclose(
        found, np.tanh(value * 2) * np.exp(-value) + np.log(value * value + 1) + wave, rtol=1e-14, atol=1e-15
    )


@pytest.mark.parametrize("dtype", LLVM_TYPES)
def test_functions_in_kernels_with_reductions(dtype: str):
    """Both passes along a row need the angle, of which the integers are kept too."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((7, 100), dtype, "x")
        y = ab.ops.cos(x) * ab.ops.sum(ab.ops.sin(x), axis=1, keepdims=True) + ab.ops.softmax(ab.ops.erf(x))
        value = np.random.default_rng(0).normal(size=(7, 100)).astype(dtype)
        session = ab.Session(graph)
        assert "np.sin" not in session.program(y, [x]).source
        found = session.run(y, {x: value})
    weights = np.exp(erf_values(np, value.astype("float64")))
    expected = np.cos(value) * np.sin(value).sum(1, keepdims=True) + weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)


def test_equal_functions_of_a_value_are_computed_once():
    e = ExpressionBuilder()
    x = e.input(0, np.dtype("float64"))
    assert e.exp(x).index == e.exp(x).index
    before = len(e.nodes)
    e.sin(x)
    between = len(e.nodes)
    e.cos(x)
    assert len(e.nodes) - between < (between - before) / 4  # they share the angle


def printed_for_gpus() -> list[str]:
    """Every function in CUDA."""
    kinds = itertools.product([name for name in FUNCTIONS if name != "ldexp"], LLVM_TYPES)
    two = (*_TWO, "logaddexp", "logaddexp2")
    return [print_cuda(spec_of(name, dtype, 2 if name in two else 1), f"{name}_{dtype}") for name, dtype in kinds]


def test_functions_are_printed_for_gpus():
    for source in printed_for_gpus():
        assert source.count("{") == source.count("}") == 2
        assert "i64" not in source
        assert "(unsigned long long)" in source or "float32" in source or "hypot" in source


def test_functions_compile_for_gpus():
    sources = printed_for_gpus()
    assert compile_cuda("".join(sources), OPTIONS).count(".entry") == len(sources)


def table(rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def test_the_document_has_the_table_of_errors():
    rows = [("function", "float32", "float64"), ("---", "---", "---")]
    rows += [(f"`{name}`", str(single), str(double)) for name, (single, double) in BOUNDS.items()]
    assert table(rows) in DOCUMENT.read_text(encoding="utf-8"), f"docs/kernels.md should hold:\n{table(rows)}"
    assert {name for name, bounds in BOUNDS.items() for bound in bounds if bound > 4} == {"erfc"}
