"""float16 and bfloat16 in kernels: loaded, rounded after each op, stored; the bits are those of NumPy and ml_dtypes."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from shared.cuda_compiler import compile_cuda
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine import ops
from anabranch.engine.codegen import rule
from anabranch.engine.codegen.cuda.elementwise import OPTIONS, print_cuda
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.elementwise.kernel_specs import can_fuse, kernel_spec, loop_numbers
from anabranch.engine.codegen.llvm.library import Library, library
from anabranch.engine.common.identity import is_among
from anabranch.engine.graph import as_dtype
from anabranch.engine.graph.op import Op, as_scalar_or_array, registered_ops
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import Cast
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.math.comparison import Where
from anabranch.engine.ops.math.elementwise import Add, Multiply, Negative, Subtract
from anabranch.engine.ops.math.mathematics import Exp
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

for _module in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"{ops.__name__}.{_module.name}")

HALVES = ("float16", "bfloat16")
APPROXIMATE = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "softplus", "power", "rsqrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc", "erfinv", "cbrt", "hypot", "logaddexp", "logaddexp2"),
    *("arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"),
)


def bits_of(x: Any) -> Any:
    return np.asarray(x).view("uint16")


def every_number(name: str) -> Any:
    """All 65,536 values of a half type."""
    return np.arange(2**16, dtype="uint16").view(as_dtype(name))


def compute(op: Fused, *values: Any) -> list[Any]:
    """The results of a kernel."""
    assert library.usable
    inputs = [TensorSpec(value.shape, value.dtype) for value in values]
    outputs: list[Any] = list(op.infer(*inputs))
    spec = kernel_spec(op, inputs, outputs)
    kernel = BoundKernel(spec, inputs, outputs, loop_numbers(spec, inputs, outputs))
    kernel.compiled()
    found = [np.empty(spec.shape, spec.dtype) for spec in outputs]
    assert not kernel.call(*values, *found)
    return found


def chain(op: Op, arity: int = 1) -> Fused:
    return Fused(arity, ((op, tuple(range(arity))),), (arity,))


def assert_same(found: Any, expected: Any) -> None:
    """The same bits, but that all NaNs are one."""
    assert found.dtype == expected.dtype
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of subnormal numbers that it looks at
        nan = np.isnan(expected) if expected.dtype.kind != "b" else np.zeros(expected.shape, bool)
        np.testing.assert_array_equal(np.isnan(found) if expected.dtype.kind != "b" else nan, nan)
    assert found[~nan].tobytes() == expected[~nan].tobytes()


# --- rounding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HALVES)
def test_every_number_is_loaded_and_stored(name: str):
    x = every_number(name)
    (wide,) = compute(chain(Cast(np.dtype("float32"))), x)
    assert_same(wide, x.astype("float32"))
    (back,) = compute(Fused(1, ((Cast(np.dtype("float32")), (0,)), (Cast(as_dtype(name)), (1,))), (2,)), x)
    assert_same(back, x)
    assert_same(compute(chain(Negative()), x)[0], -x)


@pytest.mark.parametrize("name", HALVES)
def test_float32_is_rounded_to_nearest_and_halves_to_even(name: str):
    swept = np.arange(0, 2**32, 9973, dtype="uint64").astype("uint32").view("float32")
    finite = every_number(name).astype("float32")
    finite = np.sort(finite[np.isfinite(finite)])
    halfway = ((finite[:-1].astype("float64") + finite[1:]) / 2).astype("float32")
    beside = [np.nextafter(halfway, np.float32(end)) for end in (np.inf, -np.inf)]
    largest = np.array([65504, 65519.996, 65520, 3.4e38, np.inf, -np.inf, np.nan, -np.nan], "float32")
    x = np.concatenate([swept, finite, halfway, *beside, largest])
    with np.errstate(all="ignore"):
        expected = x.astype(as_dtype(name))
    (found,) = compute(chain(Cast(as_dtype(name))), x)
    assert_same(found, expected)


@pytest.mark.parametrize("name", HALVES)
def test_a_nan_with_low_bits_alone_stays_nan(name: str):
    x = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], "uint32").view("float32")
    (found,) = compute(chain(Cast(as_dtype(name))), x)
    assert np.all(np.isnan(found))
    np.testing.assert_array_equal(bits_of(found) >> 15, [0, 1, 0, 1])


@pytest.mark.parametrize("name", HALVES)
def test_float64_is_not_rounded_twice(name: str):
    assert not can_fuse(Cast(as_dtype(name)), [np.dtype("float64")], as_dtype(name))
    assert can_fuse(Cast(np.dtype("float64")), [as_dtype(name)], np.dtype("float64"))


# --- ops ------------------------------------------------------------------------------------------------------------


def supported() -> list[Any]:
    """Every plain elementwise op that kernels have for half types."""
    found: list[Any] = []
    for cls, name in itertools.product(registered_ops().values(), HALVES):
        if not cls.elementwise or cls is Cast or not cls.__module__.startswith("anabranch."):
            continue
        try:
            op = cls()
            arity = len(next(iter(op.samples())).inputs)
            dtypes = [as_dtype("bool"), *[as_dtype(name)] * (arity - 1)] if cls is Where else [as_dtype(name)] * arity
            result: Any = op.infer(*[TensorSpec((2,), dtype) for dtype in dtypes])
        except (TypeError, StopIteration):
            continue
        if can_fuse(op, dtypes, result.dtype):
            found.append(pytest.param(op, dtypes, id=f"{op.type_name}-{name}"))
    return found


SUPPORTED = supported()


def test_arithmetic_and_functions_are_supported():
    for name in HALVES:
        found = {parameter.values[0].type_name for parameter in SUPPORTED if parameter.values[1][-1] == as_dtype(name)}
        assert {"add", "subtract", "multiply", "divide", "maximum", "where", "relu", *APPROXIMATE} <= found


def operands(dtypes: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, 1, -1, 0.5, 6e-8, -6e-8, 6.1e-5, 65504, -65504, 300, 0.333, np.inf, -np.inf, np.nan]
    columns = zip(*itertools.product(ends, repeat=len(dtypes)), strict=True)
    random = [rng.normal(size=3000) * 10.0 ** rng.integers(-4, 4, 3000) for _ in dtypes]
    found: list[Any] = []
    for column, more, dtype in zip(columns, random, dtypes, strict=True):
        values = np.concatenate([np.array(column, "float64"), more])
        with np.errstate(all="ignore"):
            found.append(values > 0 if dtype.kind == "b" else values.astype("float32").astype(dtype))
    return found


@pytest.mark.parametrize(("op", "dtypes"), SUPPORTED)
def test_equals_numpy(op: Op, dtypes: list[Any]):
    values = operands(dtypes)
    with np.errstate(all="ignore"):
        expected = op.run(np, *values)
    (found,) = compute(chain(op, len(values)), *values)
    if op.type_name not in APPROXIMATE:
        if op.type_name in ("maximum", "minimum", "relu"):  # which of the zeros is the greater differs
            found, expected = found + found.dtype.type(0), expected + expected.dtype.type(0)
        assert_same(found, expected)
        return
    with np.errstate(all="ignore"):
        precise = op.run(np, *[value.astype("float64") for value in values])
        expected = precise.astype("float32").astype(found.dtype)
    usual = np.isfinite(expected.astype("float32")) & np.isfinite(found.astype("float32"))
    assert np.mean(usual == np.isfinite(expected.astype("float32"))) > 0.999
    apart = np.abs(bits_of(found)[usual].astype("int32") - bits_of(expected)[usual])
    apart = apart[(found[usual] != 0) | (expected[usual] != 0)]
    assert np.all(np.minimum(apart, 2**15) <= 1) if op.type_name != "sigmoid" else np.mean(apart <= 1) > 0.99


@pytest.mark.parametrize("name", HALVES)
def test_every_exponential_is_rounded_once(name: str):
    x = every_number(name)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype("float64")).astype("float32").astype(x.dtype)
    (found,) = compute(chain(Exp()), x)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    apart = np.abs(bits_of(found)[~nan].astype("int32") - bits_of(expected)[~nan])
    assert apart.max() <= 1
    assert np.mean(apart) < 1e-3


@pytest.mark.parametrize("name", HALVES)
def test_chains_round_after_every_op(name: str):
    rng = np.random.default_rng(1)
    x, y, z = (rng.normal(size=5000).astype(as_dtype(name)) for _ in range(3))
    op = Fused(3, ((Multiply(), (0, 1)), (Add(), (3, 2)), (Subtract(), (4, 0)), (Multiply(), (5, 5))), (4, 6))
    first, second = compute(op, x, y, z)
    expected = x * y + z
    assert_same(first, expected)
    assert_same(second, (expected - x) * (expected - x))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize(
    "shapes", [[(4, 5), (5,)], [(4, 1), (1, 5)], [(3, 7), ()], [(0, 3), (3,)], [(33,), (33,)]], ids=str
)
def test_broadcasting(shapes: list[tuple[int, ...]], name: str):
    rng = np.random.default_rng(2)
    x, y = (as_scalar_or_array(np.asarray(rng.normal(size=shape)).astype(as_dtype(name))) for shape in shapes)
    (found,) = compute(chain(Subtract(), 2), x, y)
    assert_same(found, np.asarray(x - y))


# --- programs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HALVES)
def test_programs_fuse_half_types_and_agree_with_the_interpreter(name: str):
    with ab.Graph().as_default() as graph:
        x, y = ab.placeholder((3, 40), name, "x"), ab.placeholder((40,), name, "y")
        quotient = (x * y + x - y) / (x * x + 1)
        scaled = ab.ops.cast(ab.ops.cast(quotient, "float32") * 3, name)
        chosen = ab.ops.where(ab.ops.isfinite(x * x * x * x), ab.ops.relu(-quotient), x)
        session = ab.Session(graph)
        rng = np.random.default_rng(0)
        feeds = {x: (rng.normal(size=(3, 40)) * 20).astype(x.dtype), y: rng.normal(size=40).astype(y.dtype)}
        fetches = symbols_of([quotient, scaled, chosen])

        assert "kernel(" in session.program(fetches, [x, y]).source
        for found, expected in zip(session.run(fetches, feeds), Interpreter().run(graph, fetches, feeds), strict=True):
            assert_same(found, np.asarray(expected))


def test_what_overflows_float16_is_infinite_inside_a_kernel_too():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((2,), "float16", "x")
        finite = ab.ops.isfinite(x * x + 1)
        value = ab.Session(graph).run(finite, {x: np.array([255, 256], "float16")})
    assert value.tolist() == [True, False]


def test_without_conversions_float16_is_left_to_numpy(monkeypatch: pytest.MonkeyPatch):
    spec = TensorSpec((4,), np.dtype("float16"))
    add = Add()
    assert rule.KernelRule().can_fuse(add, [spec, spec], spec)
    old = Library()
    old.host = "x86_64-unknown-linux-gnu core2 +sse3,-f16c"
    monkeypatch.setattr(rule, "library", old)
    rule._can_fuse.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert not rule.KernelRule().can_fuse(add, [spec, spec], spec)
    rule._can_fuse.cache_clear()  # pyright: ignore[reportPrivateUsage]


# --- reductions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("shape", [(37, 129), (3, 1), (1, 2049), (5, 4, 3)], ids=str)
def test_reductions_accumulate_in_float32(name: str, shape: tuple[int, ...]):
    """One kernel with what comes before; sums are rounded once, others are exact."""
    o = ab.ops
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(shape, name, "x")
        y = x * 2 + 1
        centred = x - o.mean(x, axis=-1, keepdims=True)
        exact = [o.max(y, axis=-1), o.min(y, axis=0), o.stack([y, x * x], axis=1)]
        summed = [o.sum(y, axis=-1), o.sum(y, axis=0), o.sum(y), o.mean(y, axis=-1), o.mean(y), o.logsumexp(y, axis=-1)]
        along = [o.softmax(y), o.log_softmax(y), centred * centred]
        value = np.random.default_rng(3).normal(size=shape).astype(x.dtype)
        eps = float(np.finfo("float16").eps) if name == "float16" else 2.0**-7
        for fetch in symbols_of([*exact, *summed, *along]):
            program = Program(graph, [fetch], [x])
            (found,) = program(value)
            (expected,) = Interpreter().run(graph, [fetch], {x: value})
            assert "kernel(" in program.source
            assert found.dtype == x.dtype
            if is_among(fetch, exact):
                assert_same(np.asarray(found), np.asarray(expected))
            wide = np.asarray(expected).astype("float64")
            np.testing.assert_allclose(np.asarray(found).astype("float64"), wide, rtol=eps, atol=4 * eps)


def test_a_sum_that_overflows_float16_on_the_way_only_is_finite():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4, 64), "float16", "x")
        total = ab.ops.sum(x * 1, axis=1)
        value = np.tile(np.array([60000, -60000], "float16"), (4, 32))
        value[:, :2] = 60000
        value[:, -2:] = -60000
        (found,) = Program(graph, [symbol_of(total)], [x])(value)
    np.testing.assert_array_equal(found, value.astype("float32").sum(axis=1).astype("float16"))


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_no_float64_is_rounded_to_float16_at_once(name: str):
    """Processors have no instruction for that, and LLVM called a function in its place that is not there."""
    o = ab.ops

    def compute(x: Any) -> Any:
        turned, narrow = o.tanh(o.sin(x)), o.cast(x, "float32")
        later = [turned, o.cast(turned, "float32"), o.abs(o.cast(o.log1p(x), "float32")), -o.expm1(o.arctan(narrow))]
        return [o.cast(each, "float16") for each in (*later, o.tanh(o.arcsinh(x)), o.tanh(narrow))]

    x = o.array(np.linspace(-0.9, 0.9, 37).astype(name))
    for found, expected in zip(ab.function(compute)(x), compute(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=4e-3, atol=1e-6)


# --- GPUs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("float16", "half"), ("bfloat16", "bfloat16")])
def test_gpus_widen_and_round_half_types(name: str, kind: str):
    spec = TensorSpec((4,), as_dtype(name))
    source = print_cuda(kernel_spec(chain(Add(), 2), [spec, spec], [spec]), "fused")
    assert source.startswith("#include <cuda_")
    assert source.count(f"{kind}2float(p" if kind == "half" else "__bfloat162float(p") == 2
    assert f"__float2{kind}_rn(" in source
    single = [TensorSpec((4,), np.dtype("f4"))]
    assert "#include" not in print_cuda(kernel_spec(chain(Negative()), single, single), "f")


@pytest.mark.parametrize("name", HALVES)
def test_half_types_compile_for_gpus(name: str):
    spec = TensorSpec((4,), as_dtype(name))
    number = TensorSpec((), as_dtype(name))
    sources = [
        print_cuda(kernel_spec(chain(Add(), 2), [spec, spec], [spec]), "arrays"),
        print_cuda(kernel_spec(chain(Add(), 2), [spec, number], [spec]), "by_value", [1]),
    ]
    assert compile_cuda("\n".join(sources), OPTIONS).count(".entry") == 2
