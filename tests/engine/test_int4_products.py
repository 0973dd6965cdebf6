"""Products of few rows and a matrix of four-bit integers: the same bits by each instruction, and beside floats."""

from typing import Any

import numpy as np
import pytest
from shared.emulated_instructions import INSTRUCTIONS, emulate, use
from shared.int4_cases import by_integers, case
from shared.machine_code import loop_of, machine_code, on_the_stack

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import dot_products, int4
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.internal.int4_matmul import Int4MatMul
from anabranch.engine.ops.neural.int4 import DequantizeInt4, dequantize_int4
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")


def compiled(arrays: list[Any], columns: int, rows: int | None = None, exact: bool = False) -> Any:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((rows, arrays[0].shape[1]), "float32")
        others: Any = [ab.placeholder(each.shape, each.dtype) for each in arrays[1:]]
        result: Any = x @ dequantize_int4(*others, columns=columns)
        return Program(graph, [result], [x, *others], exact=exact)(*arrays)[0]


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_all_instructions_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    for rows, terms, columns, block in [
        (1, 4, 1, 4),
        (1, 300, 130, 128),
        (2, 77, 65, 77),
        (8, 264, 31, 8),
        (3, 9, 64, 4),
        (2, 136, 450, 68),
        (1, 35, 515, 35),
        (6, 96, 259, 32),  # rows for tiles of 4, of 2 and for single ones
        (7, 64, 128, 64),
    ]:
        arrays = case(rows, terms, columns, block)
        np.testing.assert_array_equal(compiled(arrays, columns), by_integers(*arrays), f"{rows, terms, columns, block}")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_sums_of_the_largest_digits_are_exact(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    x, packed, scale, zero, group = case(2, 256, 70, 256)
    x[:] = -32896 / 2**22  # whose two lower digits are -128 where the largest element is 1
    x[:, 0] = 1
    packed[:, ::2], packed[:, 1::2] = 0x77, -0x78  # 7 and -8 throughout
    zero[:] = [[-8, 7] * 35]
    arrays = [x, packed, scale, zero, group]
    np.testing.assert_array_equal(compiled(arrays, 70), by_integers(*arrays))


@pytest.mark.parametrize(
    ("rows", "block"), [(1, 128), (8, 32), (9, 32), (33, 32), (127, 150), (129, 150), (2, 7), (2, 512)]
)
def test_results_are_those_of_floats(rows: int, block: int):
    arrays = case(rows, 600, 200, block)
    matrix = DequantizeInt4(200).run(np, *arrays[1:]).astype("float64")
    expected = arrays[0].astype("float64") @ matrix
    largest = np.abs(arrays[0]).max(1, keepdims=True) * np.abs(matrix).sum(0)
    for is_exact in (False, True):
        found = compiled(arrays, 200, None, is_exact)
        np.testing.assert_array_less(np.abs(found - expected), 1e-6 * largest + 1e-30)


def test_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    arrays = case(3, 136, 450, 68)
    expected = by_integers(*arrays)
    for parts in (1, 2, 3, 8):
        monkeypatch.setattr(int4, "parts_of", lambda *_, parts=parts: parts)
        np.testing.assert_array_equal(compiled(arrays, 450), expected)


@pytest.mark.parametrize(
    ("name", "processor", "instruction", "counts"),
    [
        ("vpmaddwd", "haswell", "vpmaddubsw", {1: 6}),
        ("vpdpbusd zmm", "znver4", "vpdpbusd", {1: 12, 4: 24}),
        ("vpdpbusd ymm", "alderlake", "vpdpbusd", {1: 6, 2: 12}),
    ],
)
def test_the_innermost_loop_multiplies_bytes_in_registers(
    name: str, processor: str, instruction: str, counts: dict[int, int]
):
    text = machine_code(int4.Int4Kernel(INSTRUCTIONS[name]), "x86_64-unknown-linux-gnu", processor, "")
    for rows, count in counts.items():
        loop = loop_of(text, f"nibbles{rows}", instruction)
        assert sum(instruction in line for line in loop) == count, "\n".join(loop)
        assert not [*on_the_stack(loop), *[line for line in loop if "imul" in line]], "\n".join(loop)


def test_the_number_of_rows_for_kernels_follows_from_instruction_and_groups():
    def specs(terms: int, groups: int) -> list[Any]:
        shapes = [((None, terms), "float32"), ((terms, 8), "int8"), ((groups, 16), "float32"), ((groups, 16), "int8")]
        return [TensorSpec(shape, as_dtype(dtype)) for shape, dtype in [*shapes, ((terms,), "float32")]]

    for dot in (dot_products.PAIRS, dot_products.VNNI, dot_products.VNNI_256, dot_products.AMX):
        assert [int4.most_rows(dot, specs(512, groups)) for groups in (128, 16, 4, 1)] == [8, 32, 128, 128]
    for dot, expected in ((dot_products.SDOT, [8] * 4), (dot_products.NONE, [8] * 4)):
        assert [int4.most_rows(dot, specs(512, groups)) for groups in (128, 16, 4, 1)] == expected


def test_groups_in_any_order_are_taken():
    arrays = case(2, 64, 24, 16)
    arrays[4] = arrays[4][::-1].copy()
    expected = arrays[0] @ DequantizeInt4(24).run(np, *arrays[1:])
    np.testing.assert_allclose(compiled(arrays, 24), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_call_while_another_looks_at_its_groups_gives_its_own_product(monkeypatch: pytest.MonkeyPatch):
    first, second = case(2, 64, 24, 16), case(2, 64, 24, 32)
    second[2], second[3] = (np.concatenate([each, each]) for each in second[2:4])  # of which two groups are not used
    specs = [TensorSpec(each.shape, as_dtype(each.dtype)) for each in first]
    product = int4.OpenInt4Product(Int4MatMul(DequantizeInt4(24)), specs)
    np.testing.assert_array_equal(product(*first), by_integers(*first))
    count, nested = np.count_nonzero, list[Any]()

    def counted(array: Any) -> Any:
        if not nested:
            nested.append(None)  # as another thread would come in between
            nested.append(product(*second))
        return count(array)

    monkeypatch.setattr(np, "count_nonzero", counted)
    found = product(*second)
    x, packed, scale, zero, group = second
    expected = by_integers(x, packed, scale[:2], zero[:2], group)
    np.testing.assert_array_equal(nested[1], expected)
    np.testing.assert_array_equal(found, expected)


def test_rows_of_zeros_nan_and_none():
    arrays = case(4, 128, 40, 64)
    arrays[0][0], arrays[0][1, 5], arrays[0][2, 7] = 0, np.nan, -np.inf
    found = compiled(arrays, 40)
    assert (found[0] == 0).all()
    assert np.isnan(found[1:3]).all()
    alone = compiled([arrays[0][3:], *arrays[1:]], 40)
    np.testing.assert_array_equal(found[3:], alone)  # no row changes another
    assert compiled([arrays[0][:0], *arrays[1:]], 40).shape == (0, 40)


def test_other_dtypes_and_trained_inputs_are_multiplied_as_floats():
    arrays = case(2, 64, 24, 16)
    arrays[0], arrays[2] = arrays[0].astype("float64"), arrays[2].astype("float64")
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((2, 64), "float64")
        others: Any = [ab.placeholder(each.shape, each.dtype) for each in arrays[1:]]
        result: Any = x @ dequantize_int4(*others, columns=24)
        (dx,) = ab.gradients(ab.ops.sum(result), [x])
        found, gradient = Program(graph, [result, dx], [x, *others])(*arrays)
    matrix = DequantizeInt4(24).run(np, *arrays[1:])
    np.testing.assert_allclose(found, arrays[0] @ matrix)
    np.testing.assert_allclose(gradient, np.broadcast_to(matrix.sum(1), (2, 64)))
