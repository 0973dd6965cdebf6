"""int4 matrices of variables that are laid out once: which products take them, the bits, what the variable keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.emulated_instructions import INSTRUCTIONS, emulate, use
from shared.examples import examples
from shared.int4_cases import by_integers, case
from shared.machine_code import loop_of, machine_code, on_the_stack

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import int4, nibbles
from anabranch.engine.ops.internal.laid_out_int4 import Int4Panels
from anabranch.engine.ops.internal.laid_out_matmul import LaidOut
from anabranch.engine.ops.neural.int4 import DequantizeInt4, dequantize_int4
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")
SIZES = st.sampled_from([1, 2, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130])
HAS_LAYOUT = pytest.mark.skipif(
    not nibbles.keeps_nibbles(int4.dot_product_of(library.host)), reason="no layout without AVX2 or VNNI"
)


class Product:
    """A product by variables in a graph of its own, for any number of rows."""

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays, self.columns = arrays, arrays[2].shape[1]
        with ab.Graph().as_default() as graph:
            self.x: Any = ab.placeholder((None, arrays[0].shape[1]), "float32")
            self.variables: list[Any] = [ab.Variable(each, trainable=False) for each in arrays[1:]]
            self.matrix: Any = dequantize_int4(*self.variables, columns=self.columns)
            self.result: Any = self.x @ self.matrix
            self.program = Program(graph, [self.result], [self.x])

    def __call__(self, x: Any) -> Any:
        return self.program(x)[0]

    def check(self) -> None:
        """Compare with the definition, which is that of the kernel."""
        np.testing.assert_array_equal(self(self.arrays[0]), by_integers(*self.arrays))

    @property
    def keeps_layout_alone(self) -> bool:
        return isinstance(self.variables[0].first_value, LaidOut)

    def by_floats(self, x: Any) -> Any:
        return x.astype("float64") @ DequantizeInt4(self.columns).run(np, *self.arrays[1:]).astype("float64")


@settings(max_examples=examples(20, 200))
@given(SIZES, SIZES, st.sampled_from([32, 64]))
def test_the_layout_gives_the_matrix_back(terms: int, width: int, line: int):
    panels = Int4Panels(terms, width, line)
    packed = np.random.default_rng(terms).integers(-128, 128, (terms, width), "int8")
    flat = panels.laid_out(np, packed)
    assert flat.shape == (panels.size,)
    assert flat.dtype == np.int8
    np.testing.assert_array_equal(panels.plain(np, flat), packed)


def test_bytes_of_four_terms_are_interleaved_as_unsigned_numbers():
    packed = np.arange(256, dtype="uint8").reshape(4, 64).view("int8")
    flat = Int4Panels(4, 64, 64).laid_out(np, packed).view("uint8") ^ 0x88
    assert flat[:8].tolist() == [0, 64, 128, 192, 1, 65, 129, 193]
    assert flat[16:20].tolist() == [16, 80, 144, 208]  # the next 16 bytes of each term
    assert flat[64:68].tolist() == [4, 68, 132, 196]  # the next quarter of 16


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_all_instructions_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    for rows, terms, columns, block in [
        (1, 4, 1, 4),
        (1, 300, 130, 128),
        (2, 77, 65, 77),
        (3, 9, 64, 4),
        (1, 35, 515, 35),
        (6, 96, 259, 32),  # rows for tiles of 4, of 2 and for single ones
    ]:
        product = Product(case(rows, terms, columns, block))
        product.check()
        assert product.keeps_layout_alone == nibbles.keeps_nibbles(INSTRUCTIONS[name])


@HAS_LAYOUT
def test_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    product = Product(case(3, 136, 450, 68))
    for parts in (1, 2, 3, 8):
        monkeypatch.setattr(int4, "parts_of", lambda *_, parts=parts: parts)
        product.arrays[0] = np.concatenate([product.arrays[0], product.arrays[0][:1]])  # another kernel
        product.check()


@HAS_LAYOUT
def test_the_layout_takes_the_place_of_the_bytes():
    product = Product(case(2, 64, 24, 16))
    assert not product.keeps_layout_alone
    product.check()
    assert product.keeps_layout_alone
    np.testing.assert_array_equal(product.variables[0].numpy(), product.arrays[1])
    product.check()
    assert product.keeps_layout_alone
    product.arrays[1] = np.ascontiguousarray(product.arrays[1][::-1])
    product.variables[0].assign(product.arrays[1])
    product.check()


@HAS_LAYOUT
@pytest.mark.parametrize(("rows", "block"), [(127, 128), (128, 128), (129, 128), (300, 152), (33, 32), (9, 4)])
def test_more_rows_than_a_kernel_takes_at_once(rows: int, block: int):
    product = Product(case(rows, 300, 70, block))
    found, expected = product(product.arrays[0]), product.by_floats(product.arrays[0])
    largest = np.abs(product.arrays[0]).max(1, keepdims=True) * np.abs(product.by_floats(np.eye(300))).sum(0)
    np.testing.assert_array_less(np.abs(found - expected), 1e-6 * largest + 1e-30)
    if block >= 128:
        np.testing.assert_array_equal(found[-1:], product(product.arrays[0][-1:]))  # no row changes another


@HAS_LAYOUT
def test_rows_in_another_order_of_memory_and_groups_in_any_order_are_taken():
    product = Product(case(4, 64, 24, 16))
    np.testing.assert_array_equal(product(np.asfortranarray(product.arrays[0])), by_integers(*product.arrays))
    assert product(product.arrays[0][:0]).shape == (0, 24)
    product.arrays[4] = product.arrays[4][::-1].copy()
    product.variables[3].assign(product.arrays[4])
    x = np.random.default_rng(0).normal(size=(4, 64)).astype("float32")
    np.testing.assert_allclose(product(x), product.by_floats(x), rtol=1e-4, atol=1e-4)


def test_a_step_that_needs_the_matrix_besides_takes_it_as_it_is():
    product = Product(case(2, 64, 24, 16))
    x = np.random.default_rng(0).normal(size=(2, 64)).astype("float32")
    with product.result.graph.as_default() as graph:
        (dx,) = ab.gradients(ab.ops.sum(product.result), [product.x])
    found, gradient = Program(graph, [product.result, dx], [product.x])(x)
    np.testing.assert_allclose(found, product.by_floats(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient[0], product.by_floats(np.eye(64)).sum(1), rtol=1e-4, atol=1e-4)
    assert not product.keeps_layout_alone


def test_the_switch_turns_it_off():
    with without("lay_out"):
        product = Product(case(2, 64, 24, 16))
        product.check()
    assert not product.keeps_layout_alone


@pytest.mark.parametrize(
    ("name", "processor", "instruction", "counts"),
    [
        ("vpmaddwd", "haswell", "vpmaddubsw", {1: 6}),
        ("vpdpbusd zmm", "znver4", "vpdpbusd", {1: 12, 4: 24}),
        ("vpdpbusd ymm", "alderlake", "vpdpbusd", {1: 6, 2: 12}),
    ],
)
def test_the_layout_is_multiplied_where_it_is(name: str, processor: str, instruction: str, counts: dict[int, int]):
    kernel = int4.Int4Kernel(INSTRUCTIONS[name], is_laid_out=True)
    text = machine_code(kernel, "x86_64-unknown-linux-gnu", processor, "")
    assert "_pair" not in text  # nothing copies panels
    for rows, count in counts.items():
        loop = loop_of(text, f"nibbles{rows}", instruction)
        assert sum(instruction in line for line in loop) == count, "\n".join(loop)
        assert not on_the_stack(loop), "\n".join(loop)


def test_a_quantised_model_is_saved_and_read_after_it_was_laid_out(tmp_path: Any):
    model = ab.Sequential([ab.Input((96,)), ab.layers.Dense(70)])
    model.quantize("int4")
    x = np.random.default_rng(0).normal(size=(3, 96)).astype("float32")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.saving.load_model(tmp_path / "model.keras").predict(x, verbose=0), expected)
