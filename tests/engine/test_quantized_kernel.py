"""Kernels of products of rounded rows and int8 matrices: the bits of the NumPy road, for any sizes."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.emulated_instructions import INSTRUCTIONS, emulate, use
from shared.examples import examples
from shared.machine_code import loop_of, machine_code

import anabranch as ab
from anabranch.engine.codegen.llvm.entry import Operand
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import dot_products, quantized
from anabranch.engine.ops.neural.quantized import QuantizedMatMul, quantized_matmul

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")
SIZES = st.sampled_from([1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 130])


def case(rows: int, terms: int, columns: int, transpose: bool, seed: int) -> tuple[Any, Any, Any]:
    """Rows of all kinds: ordinary ones, zeros, tiny and huge ones, and such that hold NaN and infinities."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(rows, terms)) * rng.choice([1e-30, 1e-3, 1, 1e20], (rows, 1))).astype("float32")
    x[rng.random(rows) < 0.2] = 0
    x[rng.random(x.shape) < 0.02] = np.nan
    x[rng.random(x.shape) < 0.02] = np.inf
    kernel = rng.choice(np.array([-128, -127, -1, 0, 1, 3, 127], "int8"), (terms, columns))
    scale = rng.uniform(0.5, 300, columns).astype("float32")
    return x, np.ascontiguousarray(kernel.T) if transpose else kernel, scale


def compiled(x: Any, kernel: Any, scale: Any, transpose: bool, fixed: Any, is_open: bool) -> Any:
    rows = ab.placeholder((None, x.shape[1]) if is_open else x.shape, "float32")
    matrix, scales = ab.placeholder(kernel.shape, "int8"), ab.placeholder(scale.shape, "float32")
    constant = None if fixed is None else ab.constant(fixed)
    result = quantized_matmul(rows, matrix, scales, constant, transpose=transpose)
    return ab.Session().run(result, {rows: x, matrix: kernel, scales: scale})


def by_numpy(x: Any, kernel: Any, scale: Any, transpose: bool, fixed: Any) -> Any:
    op = QuantizedMatMul(transpose=transpose, is_fixed=fixed is not None)
    return op.run(np, x, kernel, scale, *([] if fixed is None else [fixed]))


@settings(max_examples=examples(15, 60))
@given(st.integers(1, 9), SIZES, SIZES, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_bits_of_numpy(
    rows: int, terms: int, columns: int, transpose: bool, has_fixed: bool, is_open: bool, seed: int
):
    arrays, fixed = case(rows, terms, columns, transpose, seed), np.float32(20) if has_fixed else None
    found = compiled(*arrays, transpose, fixed, is_open)
    np.testing.assert_array_equal(found, by_numpy(*arrays, transpose, fixed))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 37])
@pytest.mark.parametrize("transpose", [False, True])
def test_several_blocks_and_parts(rows: int, transpose: bool):
    arrays = case(rows, 800, 700, transpose, 5)
    found = compiled(*arrays, transpose, None, False)
    np.testing.assert_array_equal(found, by_numpy(*arrays, transpose, None))


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_all_instructions_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    sizes = [(0, 8, 8), (1, 1, 1), (1, 259, 130), (2, 35, 64), (5, 65, 70), (6, 64, 16), (31, 4, 65)]
    of_tiles = [(32, 64, 32), (40, 66, 17), (33, 258, 129), (77, 300, 64), (32, 9, 64), (70, 130, 150), (96, 256, 192)]
    for rows, terms, columns in [*sizes, *of_tiles]:
        for transpose in (False, True):
            arrays = case(rows, terms, columns, transpose, rows + terms)
            found = compiled(*arrays, transpose, None, True)
            np.testing.assert_array_equal(found, by_numpy(*arrays, transpose, None), f"{rows, terms, columns}")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_extremes_of_int8_saturate_nowhere(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    op = QuantizedMatMul(-128, 127, is_fixed=True)
    for rows in (1, 34):
        x = np.full((rows, 600), -200, "float32")
        x[:, 1::2] = np.random.default_rng(rows).choice([-128.0, 127.0, 128.0], (rows, 300))
        kernel = np.full((600, 80), -128, "int8")
        kernel[::3, ::2] = 127
        scale, fixed = np.ones(80, "float32"), np.float32(1)
        symbols = [ab.constant(each) for each in (kernel, scale, fixed)]
        given: Any = ab.placeholder(x.shape, "float32")
        result = quantized_matmul(given, *symbols, value_range=(-128, 127))
        found = ab.Session().run(result, {given: x})
        integers = np.clip(x, -128, 127).astype("int32") @ kernel.astype("int32")
        np.testing.assert_array_equal(found, integers.astype("float32"))
        np.testing.assert_array_equal(found, op.run(np, x, kernel, scale, fixed))


X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("host", "may_use_tiles", "expected"),
    [
        (f"{X86} sapphirerapids +avx2,+avx512bw,+avx512vnni,+amx-int8,+avxvnni (22, 1, 0)", True, dot_products.AMX),
        (f"{X86} sapphirerapids +avx2,+avx512bw,+avx512vnni,+amx-int8,+avxvnni (22, 1, 0)", False, dot_products.VNNI),
        (f"{X86} znver4 +avx2,+avx512bw,+avx512vnni,-amx-int8 (22, 1, 0)", True, dot_products.VNNI),
        (f"{X86} alderlake +avx2,-avx512vnni,-amx-int8,+avxvnni (22, 1, 0)", True, dot_products.VNNI_256),
        (f"{X86} haswell +avx2,-avxvnni,+avxvnniint16 (22, 1, 0)", True, dot_products.PAIRS),
        (f"{X86} nehalem -avx2,+sse4.2 (22, 1, 0)", True, dot_products.NONE),
        (f"{ARM} neoverse-n1 +neon,+dotprod (22, 1, 0)", True, dot_products.SDOT),
        (f"{ARM} cortex-a72 +neon,-dotprod (22, 1, 0)", True, dot_products.NONE),
    ],
)
def test_the_instruction_follows_from_the_host(
    host: str, may_use_tiles: bool, expected: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dot_products, "may_use_tiles", lambda: may_use_tiles)
    assert dot_products.dot_product_of(host) == expected


def test_amx_is_used_only_where_linux_permits_it():
    allowed = dot_products.may_use_tiles()
    assert allowed is dot_products.may_use_tiles()
    assert not allowed or "+amx-tile" in library.host


def assembly(dot: dot_products.DotProduct, triple: str, processor: str, features: str) -> str:
    """The machine code, as text, of a kernel for another processor."""
    operands = [Operand("float", 2), Operand("i8", 2), Operand("float", 1), Operand("float", 2, (), True)]
    kernel = quantized.QuantizedKernel(tuple(operands), -127, 127, 1e-7, False, False, dot)
    return machine_code(kernel, triple, processor, features)


@pytest.mark.parametrize(
    ("name", "target", "counts"),
    [
        ("amx", (X86, "sapphirerapids", "-prefer-256-bit"), {"tile6": 24, "tile1": 8, "direct": 4, "tile32": 4}),
        ("vpdpbusd ymm", (X86, "alderlake", ""), {"tile6": 12, "tile1": 4, "direct": 8}),
        ("sdot", (ARM, "neoverse-n1", "+dotprod"), {"tile6": 24, "tile1": 8, "direct": 16}),
        ("vpmaddwd", (X86, "haswell", ""), {"tile6": 12, "tile2": 4, "tile1": 4, "direct": 8}),
    ],
)
def test_other_processors_get_their_instruction_in_the_innermost_loop(name: str, target: Any, counts: dict[str, int]):
    text = assembly(INSTRUCTIONS[name], *target)
    for function, count in counts.items():
        instruction = "tdpbsud" if function == "tile32" else name.split()[0].replace("amx", "vpdpbusd")
        loop = loop_of(text, function, instruction)
        found = [line for line in loop if instruction in line]
        assert len(found) == count, "\n".join(loop)
        scalar = [
            line for line in loop if re.search(r"vpinsr|vpextr|imul|vpmul|umov|\bmul\b|smull|call|rsp|\[sp", line)
        ]
        has_many_addresses = function in ("direct", "tile32")  # more than registers
        assert not scalar or has_many_addresses, "\n".join(loop)


def test_the_kernel_is_used_where_it_can_be():
    symbols = [ab.placeholder((4, 32), "float32"), ab.placeholder((32, 8), "int8"), ab.placeholder((8,), "float32")]
    result: Any = quantized_matmul(*symbols)
    assert isinstance(quantized.bind_quantized(result.operation), quantized.BoundKernel)
    wide = quantized_matmul(ab.placeholder((4, 32), "float64"), symbols[1], ab.placeholder((8,), "float64"))
    assert quantized.bind_quantized(wide.operation) is None  # pyright: ignore[reportAttributeAccessIssue]


def test_views_and_unaligned_arrays_are_taken():
    x, kernel, scale = case(3, 40, 24, False, 2)
    wide = np.zeros((40, 48), "int8")
    wide[:, ::2] = kernel
    view = np.frombuffer(b"x" + x.tobytes(), "uint8")[1:].view("float32").reshape(x.shape)
    found = compiled(view, wide[:, ::2], scale, False, None, True)
    np.testing.assert_array_equal(found, by_numpy(x, kernel, scale, False, None))
