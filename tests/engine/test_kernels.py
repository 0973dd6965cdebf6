"""Kernels of fused elementwise ops: equality with NumPy, operands of all kinds, refusals, object cache."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import itertools
import os
import pkgutil
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch.engine import ops
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.elementwise.kernel_specs import can_fuse, kernel_spec, loop_numbers
from anabranch.engine.codegen.expression.builder import ExpressionBuilder
from anabranch.engine.codegen.llvm.library import Library, library
from anabranch.engine.codegen.rule import bind_kernels
from anabranch.engine.graph import Operation
from anabranch.engine.graph.op import Op, as_scalar_or_array, registered_ops
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.base import Cast
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.math.comparison import Greater, Where
from anabranch.engine.ops.math.elementwise import Add, Multiply, Negative, Subtract
from anabranch.engine.ops.math.floats import Ldexp
from anabranch.engine.ops.math.mathematics import Exp, Log
from anabranch.engine.ops.math.sigmoids import Sigmoid
from anabranch.engine.ops.math.trigonometry import Tanh

for _module in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"{ops.__name__}.{_module.name}")

DTYPES = ("float32", "float64", "int32", "int64", "bool")
SPECIAL = {
    "f": [0.0, -0.0, 1, -1, 0.5, -2.5, 1.5, 3, -7.25, 1e-40, -1e-40, 1e-38, 1e10, 3e38, -3e38, np.inf, -np.inf, np.nan],
    "i": [0, 1, -1, 2, -7, 100, 65536, 2**24 + 1, 2**31 - 1, -(2**31)],
    "b": [False, True],
}


def chain(op: Op, arity: int) -> Fused:
    """One op as a fused op."""
    return Fused(arity, ((op, tuple(range(arity))),), (arity,))


def specs_of(values: Sequence[Any]) -> list[TensorSpec]:
    return [TensorSpec(value.shape, value.dtype) for value in values]


def bind(op: Fused, values: Sequence[Any], of: Library = library) -> tuple[BoundKernel, list[TensorSpec]]:
    """The kernel of `op` for operands like `values`, and the specs of its results."""
    assert of.usable
    inputs = specs_of(values)
    outputs = [spec for spec in op.infer(*inputs) if isinstance(spec, TensorSpec)]
    spec = kernel_spec(op, inputs, outputs)
    kernel = BoundKernel(spec, inputs, outputs, loop_numbers(spec, inputs, outputs))
    kernel.link(*of.get([kernel.spec]))
    return kernel, outputs


def buffers(specs: Sequence[TensorSpec]) -> list[Any]:
    """Arrays full of a pattern that no result has."""
    made = [np.empty(spec.shape, spec.dtype) for spec in specs]  # pyright: ignore[reportArgumentType, reportCallIssue]
    for array in made:
        array.view("uint8").reshape(-1)[:] = 0xA5
    return made


def call(kernel: BoundKernel, values: Sequence[Any], outputs: Sequence[Any]) -> int:
    """Call a kernel as the printed code does, but for the refit: 0 if the kernel ran."""
    return kernel.call(*values, *outputs)


def compute(op: Fused, *values: Any) -> list[Any]:
    """The results of a kernel that takes its operands as they are."""
    kernel, specs = bind(op, values)
    outputs = buffers(specs)
    assert call(kernel, values, outputs) == 0
    return outputs


def assert_same(actual: Any, expected: Any, zeros_alike: bool = False) -> None:
    """One dtype and shape, and the same bits, but that all NaNs are one (and zeros of both signs, if asked)."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        actual, expected = np.nan_to_num(actual, posinf=np.inf), np.nan_to_num(expected, posinf=np.inf)
        if zeros_alike:
            actual, expected = actual + 0.0, expected + 0.0
    np.testing.assert_array_equal(actual, expected)
    assert actual.tobytes() == expected.tobytes()


# --- equality with NumPy --------------------------------------------------------------------------------------------


def elementwise_ops() -> list[Op]:
    plain = [cls() for cls in registered_ops().values() if cls.elementwise and cls is not Cast and _is_plain(cls)]
    return [*plain, *[Cast(np.dtype(name)) for name in DTYPES]]


def _is_plain(cls: type[Op]) -> bool:
    """Test whether it is one of the package, without attributes."""
    return cls.__module__.startswith("anabranch.") and dataclasses.is_dataclass(cls) and not dataclasses.fields(cls)


def operand_dtypes(op: Op, dtype: str) -> list[str]:
    arity = len(next(iter(op.samples())).inputs)
    if isinstance(op, Ldexp):
        return [dtype, "int32"]
    return ["bool", *[dtype] * (arity - 1)] if isinstance(op, Where) else [dtype] * arity


def supported() -> list[Any]:
    """Every op and dtype that kernels have."""
    found: list[Any] = []
    for op, dtype in itertools.product(elementwise_ops(), DTYPES):
        names = operand_dtypes(op, dtype)
        try:
            result = op.infer(*[TensorSpec((2,), np.dtype(name)) for name in names])
        except TypeError:
            continue
        assert isinstance(result, TensorSpec)
        if can_fuse(op, [np.dtype(name) for name in names], result.dtype):
            label = f"{op.type_name}-{dtype}" + (f"-{result.dtype}" if isinstance(op, Cast) else "")
            found.append(pytest.param(op, names, id=label))
    return found


def _kind(names: Sequence[str]) -> str:
    """The dtype for which an op was asked about: a condition or an exponent is none."""
    return names[-1] if names[0] == "bool" else names[0]


SUPPORTED = supported()
APPROXIMATE = [  # test_kernel_functions.py says how far
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "softplus"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc", "erfinv"),
    *("arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"),
    *("cbrt", "hypot", "logaddexp", "logaddexp2", "power"),
]
_ANY = [
    *("equal", "not_equal", "isnan", "isinf", "isfinite", "identity", "stop_gradient", "where", "logical_not"),
    *("floor", "ceil", "trunc"),
]
_NUMBERS = [
    *_ANY,
    *("add", "subtract", "multiply", "negative", "relu", "relu_grad", "maximum", "minimum"),
    *("less", "less_equal", "greater", "greater_equal", "absolute", "sign", "signbit"),
]
_FLOATS = [
    *_NUMBERS,
    *("divide", "sqrt", "rsqrt", "round", "next_after", "ldexp"),
]
_BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
_INTEGERS = [*_NUMBERS, *_BITS, "bitwise_not", "left_shift", "right_shift"]
EXPECTED = {
    "float32": [*_FLOATS, *APPROXIMATE],
    "float64": [*_FLOATS, *APPROXIMATE],
    "int32": [*_INTEGERS, "floor_divide", "mod"],
    "int64": _INTEGERS,
    "bool": [*_ANY, *_BITS, "add", "multiply", "maximum", "minimum", "less", "less_equal", "greater", "greater_equal"],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_supported(dtype: str):
    found = {parameter.values[0].type_name for parameter in SUPPORTED if _kind(parameter.values[1]) == dtype}
    assert set(EXPECTED[dtype]) <= found


def operands(names: Sequence[str]) -> list[Any]:
    """All combinations of special values, and random ones."""
    rng = np.random.default_rng(0)
    columns = list(zip(*itertools.product(*[SPECIAL[np.dtype(name).kind] for name in names]), strict=True))
    with np.errstate(all="ignore"):
        found = [np.array(column, name) for column, name in zip(columns, names, strict=True)]
    for position, name in enumerate(names):
        random = rng.normal(size=5000) * 10.0 ** rng.integers(-4, 5, 5000)
        random = random > 0 if name == "bool" else random
        found[position] = np.concatenate([found[position], random.astype(name)])
    return found


@pytest.mark.parametrize(("op", "names"), SUPPORTED)
def test_equals_numpy(op: Op, names: list[str]):
    values = operands(names)
    with np.errstate(all="ignore"):
        expected = op.run(np, *values)
    (result,) = compute(chain(op, len(names)), *values)
    if op.type_name in APPROXIMATE:
        rtol = 1e-6 if names[0] == "float32" else 2e-15
        least = 1e-37 if names[0] == "float32" else 1e-307
        cancels = op.type_name.startswith("logaddexp")  # to 0, and the sum of two terms has the errors of both
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol if cancels else least)
    else:
        # Which zero is the greater of 0.0 and -0.0 differs among NumPy's own loops.
        assert_same(result, expected, zeros_alike=op.type_name in ("maximum", "minimum", "relu"))


def test_products_are_rounded_before_sums():
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(3, 10_000)).astype("float32")
    (result,) = compute(Fused(3, ((Multiply(), (0, 1)), (Add(), (3, 2))), (4,)), x, y, z)
    assert_same(result, x * y + z)


def test_equal_expressions_are_one_kernel():
    x = np.ones(3, "float32")
    first, second = (bind(chain(Log(), 1), [x])[0] for _ in range(2))
    assert first.spec == second.spec  # although it holds a NaN
    assert first.address == second.address


def test_equal_operations_share_a_kernel():
    with ab.Graph().as_default():
        x = ab.placeholder((3,), "float32")
        y = ab.placeholder((5,), "float32")
        fused = [
            Operation(x.graph, chain(Tanh(), 1), (value,), (value.spec,), "fused", "", (), None) for value in (x, x, y)
        ]
    bound = bind_kernels(fused)
    assert bound[fused[0]] is bound[fused[1]]
    assert bound[fused[2]] is not bound[fused[0]]  # sizes of its own, the same machine code
    assert bound[fused[2]].address == bound[fused[0]].address


def test_zero_constants_differ_by_sign():
    e = ExpressionBuilder()
    assert e.constant(0.0, "float").index != e.constant(-0.0, "float").index
    assert e.constant(float("nan"), "float").index == e.constant(float("nan"), "float").index


# --- shapes ---------------------------------------------------------------------------------------------------------


@st.composite
def broadcast_operands(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Shapes of three operands that broadcast to a shape of rank 1 to 4."""
    space = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17]), min_size=1, max_size=4))
    found: list[tuple[int, ...]] = []
    for _ in range(3):
        kept = draw(st.lists(st.booleans(), min_size=len(space), max_size=len(space)))
        dims = [dim if keep else 1 for dim, keep in zip(space, kept, strict=True)]
        found.append(tuple(dims[draw(st.integers(0, len(dims))) :]))
    return found


@given(broadcast_operands(), st.sampled_from(["float32", "float64", "int32"]))
def test_broadcasting(shapes: list[tuple[int, ...]], dtype: str):
    if not np.broadcast_shapes(*shapes):
        shapes[0] = (1,)
    rng = np.random.default_rng(1)
    x, y, z = (as_scalar_or_array(np.asarray(rng.integers(-9, 9, shape)).astype(dtype)) for shape in shapes)
    op = Fused(3, ((Multiply(), (0, 1)), (Subtract(), (3, 2)), (Greater(), (4, 1))), (4, 5))
    difference, greater = compute(op, x, y, z)
    assert_same(difference, np.asarray(x * y - z))
    assert_same(greater, np.asarray(np.broadcast_to(difference > y, difference.shape)))


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 5), (5,)],
        [(4, 5), (4, 1)],
        [(4, 1), (1, 5)],
        [(4, 5), ()],
        [(), (3,)],
        [(2, 3, 4, 5), (3, 1, 5)],
        [(2, 3, 4, 5), (2, 1, 1, 5)],
        [(1, 1, 1), (1,)],
        [(0, 3), (3,)],
        [(3, 0), (3, 1)],
        [(1,), (0,)],
    ],
    ids=str,
)
def test_broadcast_patterns(shapes: list[tuple[int, ...]]):
    rng = np.random.default_rng(2)
    x, y = (as_scalar_or_array(np.asarray(rng.normal(size=shape)).astype("float32")) for shape in shapes)
    (result,) = compute(Fused(2, ((Subtract(), (0, 1)), (Negative(), (2,))), (3,)), x, y)
    assert_same(result, np.asarray(-(x - y)))


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 1000])
def test_sizes_around_vectors(size: int):
    x = np.linspace(-3, 3, size, dtype="float32")
    guarded = np.full(size + 8, 7, "float32")
    kernel, _ = bind(chain(Tanh(), 1), [x])
    assert call(kernel, [x], [guarded[4:-4]]) == 0
    np.testing.assert_allclose(guarded[4:-4], np.tanh(x), rtol=1e-6)
    assert np.all(guarded[:4] == 7)
    assert np.all(guarded[-4:] == 7)


def test_a_function_holds_the_table_of_its_kernel():
    x = np.linspace(-2, 2, 999).astype("float32")
    kernel, outputs = bind(chain(Tanh(), 1), [x])
    function, (out,) = kernel.call, buffers(outputs)
    table = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert table() is None
    assert function(x, out) is False
    np.testing.assert_allclose(out, np.tanh(x), rtol=1e-6)
    assert function(x.astype("float64"), out) is True


def test_one_kernel_for_all_batch_sizes():
    entries = [bind(chain(Tanh(), 1), [np.zeros((size, 6), "float32")])[0].address for size in (2, 3, 100)]
    assert entries[0] == entries[1] == entries[2]


# --- operands that are not laid out as expected ---------------------------------------------------------------------

X = np.arange(1, 13, dtype="float32").reshape(3, 4)


def unaligned(array: Any) -> Any:
    content = b"\0" + array.tobytes()
    return np.frombuffer(content, "uint8")[1:].view(array.dtype).reshape(array.shape)


class _Subclass(np.ndarray[Any, Any]):
    pass


UNFIT = {
    "every second column": np.repeat(X, 2, axis=1)[:, ::2],
    "Fortran order": np.asfortranarray(X),
    "reversed": X[::-1].copy()[::-1],
    "transposed": X.T.copy().T,
    "broadcast": np.broadcast_to(X[:1], (3, 4)),
    "byte-swapped": X.astype(">f4"),
    "float64": X.astype("float64"),
    "int32": X.astype("int32"),
    "unaligned": unaligned(X),
    "subclass": X.view(_Subclass),
    "with metadata": X.astype(np.dtype("float32", metadata={"unit": "m"})),
}
DOUBLE_PLUS = Fused(2, ((Add(), (0, 0)), (Multiply(), (2, 1))), (3,))


@pytest.mark.parametrize("name", UNFIT)
def test_refit(name: str):
    x, y = UNFIT[name], np.full((3, 4), 3, "float32")
    kernel, specs = bind(DOUBLE_PLUS, [X, y])
    (out,) = buffers(specs)
    assert call(kernel, [x, y], [out]) != 0
    kernel.refit((x, y), (out,))
    assert_same(out, (x.astype("float32") * 2 * y).view(np.ndarray))


def test_read_only_operands_are_taken_as_they_are():
    x = X.copy()
    x.setflags(write=False)
    kernel, specs = bind(DOUBLE_PLUS, [x, x])
    assert call(kernel, [x, x], buffers(specs)) == 0


@pytest.mark.parametrize("value", [np.array(2.0, "float32"), np.float64(2), 2.0, np.int32(2)], ids=repr)
def test_refit_of_scalars(value: Any):
    kernel, specs = bind(DOUBLE_PLUS, [X, np.float32(2)])
    (out,) = buffers(specs)
    assert call(kernel, [X, value], [out]) != 0
    kernel.refit((X, value), (out,))
    assert_same(out, X * 4)


@pytest.mark.parametrize("name", ["every second column", "Fortran order", "reversed", "float64", "unaligned"])
def test_refit_of_results(name: str):
    """A buffer that NumPy laid out in its own way gets the results all the same."""
    template = UNFIT[name]
    out = np.copy(template, order="K") if name != "unaligned" else template.copy()
    if name in ("every second column", "reversed"):
        out = np.repeat(template, 2, axis=1)[:, ::2]
    kernel, _ = bind(DOUBLE_PLUS, [X, X])
    kernel.refit((X, X), (out,))
    np.testing.assert_array_equal(out, X * 2 * X)


# --- refusals -------------------------------------------------------------------------------------------------------

WRONG = {
    "more rows": np.ones((4, 4), "float32"),
    "fewer rows": np.ones((2, 4), "float32"),
    "one row": np.ones((1, 4), "float32"),
    "fewer columns": np.ones((3, 3), "float32"),
    "transposed": np.ones((4, 3), "float32"),
    "one axis": np.ones((12,), "float32"),
    "three axes": np.ones((1, 3, 4), "float32"),
    "empty": np.ones((0, 4), "float32"),
    "no axes": np.array(1, "float32"),
    "scalar": np.float32(1),
    "number": 1.0,
    "list": [[1.0]],
    "None": None,
}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_operands_are_refused(name: str, position: int):
    values: list[Any] = [X, X]
    kernel, specs = bind(DOUBLE_PLUS, values)
    values[position] = WRONG[name]
    (out,) = buffers(specs)
    before = out.tobytes()
    assert call(kernel, values, [out]) != 0
    with pytest.raises(
        RuntimeError, match=r"an op's inferred shape or dtype differs from its result \(.*ANABRANCH_KERNELS"
    ):
        kernel.refit((values[0], values[1]), (out,))
    assert out.tobytes() == before


@pytest.mark.parametrize("name", ["more rows", "fewer rows", "fewer columns", "one axis", "three axes", "empty"])
def test_wrong_results_are_refused(name: str):
    guarded = np.full(100, 7, "float32")
    shape = WRONG[name].shape
    out = guarded[40 : 40 + int(np.prod(shape))].reshape(shape)
    kernel, _ = bind(DOUBLE_PLUS, [X, X])
    assert call(kernel, [X, X], [out]) != 0
    with pytest.raises(RuntimeError, match="This is a bug in anabranch"):
        kernel.refit((X, X), (out,))
    assert np.all(guarded == 7)


def test_read_only_results_are_refused():
    out = np.zeros((3, 4), "float32")
    out.setflags(write=False)
    kernel, _ = bind(DOUBLE_PLUS, [X, X])
    assert call(kernel, [X, X], [out]) != 0
    with pytest.raises(ValueError, match="read-only"):
        kernel.refit((X, X), (out,))
    assert not out.any()


# --- results in the memory of operands ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 16, 33, 1000])
@pytest.mark.parametrize("reused", [(0, None), (None, 0), (0, 1), (1, 0), (2, 0), (1, 2), (None, 2)], ids=str)
def test_results_may_replace_operands(reused: tuple[int | None, int | None], size: int):
    """A result that does not even depend on the operand whose buffer it gets, and others."""
    rng = np.random.default_rng(3)
    values = [rng.normal(size=size).astype("float32") for _ in range(3)]
    a, b, c = (value.copy() for value in values)
    op = Fused(3, ((Add(), (1, 1)), (Multiply(), (0, 2)), (Subtract(), (4, 3))), (3, 5))
    kernel, specs = bind(op, values)
    outputs = [
        buffer if position is None else values[position]
        for position, buffer in zip(reused, buffers(specs), strict=True)
    ]
    assert call(kernel, values, outputs) == 0
    assert_same(outputs[0], b + b)
    assert_same(outputs[1], a * c - (b + b))


def test_broadcast_beside_a_replaced_operand():
    x, row, column = X.copy(), X[0].copy(), X[:, :1].copy()
    op = Fused(3, ((Multiply(), (0, 1)), (Add(), (3, 2))), (4,))
    kernel, _ = bind(op, [x, row, column])
    assert call(kernel, [x, row, column], [x]) == 0
    assert_same(x, X * row + column)


# --- the object cache -----------------------------------------------------------------------------------------------


def floats() -> Any:
    """float32 values over the whole range (every sign, exponent and NaN), and the edges of the functions' cases."""
    swept = np.arange(0, 2**32, 8191, dtype="uint64").astype("uint32").view("float32")
    edges = np.array(
        [0, 1, 0.34, 0.625, 88.72284, -87.33655, -103.97208, np.sqrt(0.5), np.inf, 1e-45, 3.4e38], "float32"
    )
    around = edges.view("int32")[:, None] + np.arange(-40, 41, dtype="int32")
    around = np.concatenate([edges, around.view("float32").reshape(-1)])
    return np.concatenate([swept, around, -around, np.linspace(-20, 20, 100_001, dtype="float32")])


DEEP = Fused(1, ((Tanh(), (0,)), (Exp(), (1,)), (Log(), (2,)), (Sigmoid(), (3,))), (4,))


def run_with(cache: Library, x: Any) -> Any:
    kernel, specs = bind(DEEP, [x], cache)
    (out,) = buffers(specs)
    assert call(kernel, [x], [out]) == 0
    return out


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.o")
    return path


def test_cold_and_warm(tmp_path: Path):
    x = floats()
    cold = run_with(Library(tmp_path), x)
    before = only_file(tmp_path).stat()
    warm = run_with(Library(tmp_path), x)
    after = only_file(tmp_path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)  # read, not written again
    assert cold.tobytes() == warm.tobytes()


@pytest.mark.parametrize("damage", ["empty", "truncated", "one bit", "other content"])
def test_damaged_files_are_compiled_again(damage: str, tmp_path: Path):
    x = np.linspace(-4, 4, 100, dtype="float32")
    expected = run_with(Library(tmp_path), x)
    path = only_file(tmp_path)
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "one bit": content[:-1] + bytes([content[-1] ^ 1]),
        "other content": b"x" * 500,
    }
    path.write_bytes(damaged[damage])
    assert run_with(Library(tmp_path), x).tobytes() == expected.tobytes()
    assert only_file(tmp_path).read_bytes() == content


def test_unwritable_folder(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    x = np.linspace(-4, 4, 100, dtype="float32")
    with pytest.warns(RuntimeWarning, match="can't be kept"):
        unwritten = run_with(Library(file / "kernels"), x)
    assert unwritten.tobytes() == run_with(Library(tmp_path / "good"), x).tobytes()


PROGRAM = """
import sys
import weakref
import numpy as np
import anabranch as ab
x = ab.placeholder((3, 4), "float32", "x")
y = ab.ops.tanh(x * 2 - 1) + ab.ops.exp(-x)
session = ab.Session()
value = session.run(y, {x: np.linspace(-2, 2, 12).reshape(3, 4)})
print("kernel" in session.program(y, [x]).source, "llvmlite" in sys.modules, value.tobytes().hex())
"""


def run_process(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_environment(tmp_path: Path):
    """ANABRANCH_CACHE_DIR holds the object code; ANABRANCH_KERNELS=0 leaves all to NumPy."""
    compiled, imported, value = run_process(ANABRANCH_CACHE_DIR=str(tmp_path))
    assert (compiled, imported) == ("True", "True")
    assert {path.suffix for path in (tmp_path / "kernels").iterdir()} <= {".o", ".host"}
    plain_compiled, plain_imported, plain = run_process(ANABRANCH_CACHE_DIR=str(tmp_path), ANABRANCH_KERNELS="0")
    assert (plain_compiled, plain_imported) == ("False", "False")
    kernels, numpy = (np.frombuffer(bytes.fromhex(text), "float32") for text in (value, plain))
    np.testing.assert_allclose(kernels, numpy, rtol=1e-6)
