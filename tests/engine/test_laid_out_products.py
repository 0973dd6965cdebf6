"""int8 matrices of variables that are laid out once: which products take them, the bits, what the variable keeps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.emulated_instructions import INSTRUCTIONS, emulate, use
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul.quantized import panels_of
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.ops.internal.laid_out_matmul import LaidOut, LaidOutMatMul, Panels
from anabranch.engine.ops.neural.quantized import QuantizedMatMul, quantized_matmul
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")
SIZES = st.sampled_from([1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 130])
TERMS, COLUMNS = 40, 30


def draw(terms: int, columns: int, transpose: bool = False, seed: int = 0) -> tuple[Any, Any]:
    """A matrix and its scales."""
    rng = np.random.default_rng(seed)
    kernel = rng.choice(np.array([-128, -127, -1, 0, 1, 3, 127], "int8"), (terms, columns))
    return np.ascontiguousarray(kernel.T) if transpose else kernel, rng.uniform(0.5, 300, columns).astype("float32")


def rows_of(count: int, terms: int, seed: int = 0) -> Any:
    """Rows of which some elements are NaN and infinite."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, terms)).astype("float32")
    x[rng.random(x.shape) < 0.01] = np.nan
    x[rng.random(x.shape) < 0.01] = np.inf
    return x


def by_numpy(x: Any, kernel: Any, scale: Any, transpose: bool = False) -> Any:
    return QuantizedMatMul(transpose=transpose).run(np, x, kernel, scale)


def laid_out(targets: list[Any], feeds: list[Any]) -> int:
    """Count the products of a step that take a matrix that is laid out."""
    step = prepare(ab.get_default_graph(), targets, feeds, rule=fusion_rule())
    return sum(isinstance(operation.op, LaidOutMatMul) for operation in all_operations(step.operations))


class Case:
    """A product by a variable in the default graph, and a session."""

    def __init__(self, terms: int = TERMS, columns: int = COLUMNS, transpose: bool = False, seed: int = 0) -> None:
        self.kernel, self.scale = draw(terms, columns, transpose, seed)
        self.transpose = transpose
        self.variable: Any = ab.Variable(self.kernel, trainable=False)
        self.x: Any = ab.placeholder((None, terms), "float32")
        self.product = self.by(self.x)
        self.session = ab.Session()

    def by(self, x: Any) -> Any:
        return quantized_matmul(x, self.variable, ab.constant(self.scale), transpose=self.transpose)

    def check(self, count: int = 3, seed: int = 0) -> None:
        """Compare the product with NumPy's."""
        x = rows_of(count, self.kernel.shape[self.transpose], seed)
        found = self.session.run(self.product, {self.x: x})
        np.testing.assert_array_equal(found, by_numpy(x, self.kernel, self.scale, self.transpose))

    def keeps_layout_alone(self) -> bool:
        return isinstance(self.variable.first_value, LaidOut)


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


def eagerly_assigned(variable: Any, value: Any) -> None:
    """Set a variable from outside of all graphs."""
    from anabranch.engine.graph import eagerly

    with eagerly():
        variable.assign(value)


# --- the layout -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(20, 200))
@given(SIZES, SIZES, st.booleans(), st.sampled_from(list(INSTRUCTIONS)))
def test_the_layout_gives_the_matrix_back(terms: int, columns: int, transpose: bool, name: str):
    dot = INSTRUCTIONS[name]
    panels = Panels(terms, columns, transpose, dot.terms, dot.granule, dot.subs, dot.is_unsigned)
    kernel, _ = draw(terms, columns, transpose)
    flat = panels.laid_out(np, kernel)
    assert flat.shape == (panels.size,)
    assert flat.dtype == np.int8
    np.testing.assert_array_equal(panels.plain(np, flat), kernel)


def test_neighbouring_bytes_are_the_terms_of_a_column():
    kernel = np.arange(64, dtype="int8").reshape(4, 16)
    panels = Panels(4, 16, False, 2, 2, 1, False)
    assert panels.laid_out(np, kernel)[:6].tolist() == [0, 16, 1, 17, 2, 18]
    assert panels.laid_out(np, kernel)[32:36].tolist() == [32, 48, 33, 49]


@settings(max_examples=examples(12, 60))
@given(st.integers(0, 9), SIZES, SIZES, st.booleans(), st.integers(0, 10**6))
def test_the_bits_of_numpy(count: int, terms: int, columns: int, transpose: bool, seed: int):
    with ab.Graph().as_default():
        case = Case(terms, columns, transpose, seed)
        case.check(count, seed)
        assert case.keeps_layout_alone() or not count  # of no rows nothing is multiplied


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_all_instructions_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    for terms, columns, counts in ((1, 1, (1, 2)), (259, 130, (1, 6, 35)), (1100, 65, (7, 33)), (320, 192, (64, 97))):
        case = Case(terms, columns)
        for count in counts:
            case.check(count)
        assert case.keeps_layout_alone()


# --- the variable ---------------------------------------------------------------------------------------------------


def test_the_layout_takes_the_place_of_the_matrix():
    case = Case()
    assert not case.keeps_layout_alone()
    case.check()
    assert case.keeps_layout_alone()
    assert case.variable.nbytes == case.kernel.nbytes
    np.testing.assert_array_equal(case.variable.numpy(), case.kernel)
    assert not case.keeps_layout_alone()  # the matrix is there, too
    case.check()
    assert case.keeps_layout_alone()


def test_a_matrix_that_is_needed_again_and_again_stays():
    case = Case()
    for _ in range(3):
        case.check()
        np.testing.assert_array_equal(case.variable.numpy(), case.kernel)
    assert not case.keeps_layout_alone()
    array = case.variable.stored_value()
    case.check()
    assert case.variable.stored_value() is array


def test_it_is_laid_out_once_for_each_value(monkeypatch: pytest.MonkeyPatch):
    counted: list[int] = []
    lay_out = Panels.laid_out
    monkeypatch.setattr(Panels, "laid_out", lambda *given: counted.append(1) or lay_out(*given))
    case = Case()
    others = [case.by(case.x * float(k)) for k in range(2)]
    for seed in range(3):
        case.check(1 + seed, seed)
    case.session.run(others, {case.x: rows_of(2, TERMS)})
    assert len(counted) == 1
    case.kernel = draw(TERMS, COLUMNS, seed=3)[0]
    eagerly_assigned(case.variable, case.kernel)
    case.check()
    case.check()
    assert len(counted) == 2


def test_values_are_taken_that_were_assigned_in_any_way():
    case = Case()
    case.check()
    case.kernel = np.ascontiguousarray(case.kernel[::-1])
    eagerly_assigned(case.variable, case.kernel)
    case.check()
    given: Any = ab.placeholder((TERMS, COLUMNS), "int8")
    case.kernel = draw(TERMS, COLUMNS, seed=8)[0]
    case.session.run(case.variable.assign(given), {given: case.kernel})
    case.check()
    case.kernel = case.kernel.copy()
    case.kernel[3] = 7
    case.session.run(case.variable.scatter_update(ab.IndexedSlices(case.kernel[3:4], [3], case.kernel.shape)))
    case.check()


def test_rows_written_in_place_while_the_matrix_is_there_are_seen():
    case = Case()
    write = case.variable.scatter_update(ab.IndexedSlices(np.full((1, COLUMNS), 5, "int8"), [2], case.kernel.shape))
    for _ in range(3):  # from the third time on the matrix stays beside the layout
        case.check()
        case.variable.numpy()
    case.check()
    case.session.run(write)
    case.kernel = case.kernel.copy()
    case.kernel[2] = 5
    np.testing.assert_array_equal(case.variable.numpy(), case.kernel)
    case.check()


def test_values_that_were_read_before_stay_as_they_were():
    case = Case()
    before = case.variable.stored_value()
    case.check()
    kept = case.kernel
    case.kernel = draw(TERMS, COLUMNS, seed=5)[0]
    eagerly_assigned(case.variable, case.kernel)
    case.check()
    np.testing.assert_array_equal(before, kept)


def test_copies_of_a_variable_have_values_of_their_own():
    case = Case()
    case.check()
    copied = copy.deepcopy(case.variable)
    kept, case.kernel = case.kernel, draw(TERMS, COLUMNS, seed=6)[0]
    eagerly_assigned(case.variable, case.kernel)
    case.check()
    np.testing.assert_array_equal(copied.numpy(), kept)


def test_variables_that_another_thread_writes_are_read_as_they_are():
    case = Case()
    case.check()
    case.variable.numpy()
    import threading

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with case.variable.lock:
            held.set()
            assert done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        case.check()
    finally:
        done.set()
        thread.join()


# --- the pass -------------------------------------------------------------------------------------------------------


def test_products_in_loops_and_branches_take_the_layout():
    case = Case()
    step: Any = ab.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, h + case.by(case.x)), [0, case.by(case.x)])
    chosen: Any = ab.cond(ab.ops.sum(case.x) > 0, lambda: case.by(case.x), lambda: case.by(-case.x))
    assert laid_out([step[1]], [case.x]) >= 1
    assert laid_out([chosen], [case.x]) == 2
    x = np.random.default_rng(0).normal(size=(2, TERMS)).astype("float32")
    found = case.session.run(step[1], {case.x: x})
    own = by_numpy(x, case.kernel, case.scale)
    np.testing.assert_array_equal(found, own + own + own + own)
    found = case.session.run(chosen, {case.x: x})
    np.testing.assert_array_equal(found, by_numpy(x if x.sum() > 0 else -x, case.kernel, case.scale))
    assert case.keeps_layout_alone()


def test_a_step_that_needs_the_matrix_besides_takes_it_as_it_is():
    case = Case()
    read = case.variable.value
    as_floats = ab.ops.cast(case.variable, "float32")
    (gradient,) = ab.gradients(ab.ops.sum(case.product), [case.x])
    for other in (read, as_floats, gradient):
        assert laid_out([case.product, other], [case.x]) == 0
    turned = quantized_matmul(
        case.x[:, :COLUMNS], case.variable, ab.constant(case.scale[:1].repeat(TERMS)), transpose=True
    )
    assert laid_out([case.product, turned], [case.x]) == 0
    inside: Any = ab.cond(ab.ops.sum(case.x) > 0, lambda: as_floats, lambda: -as_floats)
    assert laid_out([case.product, inside], [case.x]) == 0
    carried: Any = ab.while_loop(lambda i, _: i < 2, lambda i, k: (i + 1, k), [0, case.variable.value])
    assert laid_out([case.product, carried[1]], [case.x]) == 0
    assert laid_out([case.product], [case.x]) == 1


def test_a_step_that_writes_the_variable_takes_it_as_it_is():
    case = Case()
    with ab.control_dependencies([case.product]):
        written = case.variable.assign(ab.ops.zeros((TERMS, COLUMNS), "int8"))
    assert laid_out([case.product, written], [case.x]) == 0
    case.check()


def test_the_switch_turns_it_off():
    case = Case()
    with without("lay_out"):
        assert laid_out([case.product], [case.x]) == 0
        case.check()
    assert not case.keeps_layout_alone()


def test_matrices_that_are_computed_have_no_layout_that_is_kept():
    x: Any = ab.placeholder((2, TERMS), "float32")
    kernel: Any = ab.placeholder((TERMS, COLUMNS), "int8")
    assert laid_out([quantized_matmul(x, kernel, ab.constant(draw(TERMS, COLUMNS)[1]))], [x, kernel]) == 0


def test_what_runs_without_kernels_gives_the_same_bits():
    panels = panels_of(QuantizedMatMul(), TERMS, COLUMNS)
    kernel, scale = draw(TERMS, COLUMNS)
    x = rows_of(4, TERMS)
    found = LaidOutMatMul(panels=panels).run(np, x, panels.laid_out(np, kernel), scale)
    np.testing.assert_array_equal(found, by_numpy(x, kernel, scale))


def test_a_quantised_model_is_saved_and_read_after_it_was_laid_out(tmp_path: Any):
    from anabranch.engine.graph import eagerly

    with eagerly():
        model = ab.Sequential([ab.Input((TERMS,)), ab.layers.Dense(COLUMNS)])
        model.quantize("int8")
        x = np.random.default_rng(0).normal(size=(5, TERMS)).astype("float32")
        kernel = model.layers[0]._kernel
        before = kernel.numpy()
        expected = model.predict(x, verbose=0)
        assert isinstance(kernel.first_value, LaidOut)
        model.save(tmp_path / "model.keras")
        again = ab.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
        np.testing.assert_array_equal(kernel.numpy(), before)


def test_layout_begins_at_a_cache_line():
    """Vectors that kernels load are in one line each; the product of a row takes twice as long otherwise."""
    wide = 256
    for seed in range(3):
        case = Case(wide, wide, seed=seed)
        case.check(1)
        first = case.variable.first_value
        assert isinstance(first, LaidOut)
        assert first.content.ctypes.data % 64 == 0
