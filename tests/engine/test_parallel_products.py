"""Independent products in one call: which are joined, the values bit by bit, errors, refused operands, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import parallel_products
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion.parallel_schedule import Piece, parallel_schedule
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
SIZES = (256, 128)  # terms and columns


@pytest.fixture(autouse=True)
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_NUM_THREADS", "3")


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(dtype)


def program_of(
    build: Callable[..., Any], values: list[Array], is_open: bool = False
) -> tuple[Program, Any, list[Any], list[Any]]:
    """The program, its graph, feeds and targets; with open shapes the rows of what is fed are not known."""
    with ab.Graph().as_default() as graph:
        feeds = [
            ab.placeholder((None, *value.shape[1:]) if is_open else value.shape, value.dtype.name) for value in values
        ]
        targets = list(build(*feeds))
    return Program(graph, targets, feeds), graph, feeds, targets


def sizes_of_groups(program: Program) -> list[int]:
    lines = [line for line in program.source.splitlines() if "= products(" in line]
    return [line.partition(" = ")[0].count(",") + 1 for line in lines]


def check(build: Callable[..., Any], values: list[Array], expected: list[int], is_open: bool = False) -> None:
    """Together and one after the other the very same bits; the interpreter's values but for rounding."""
    program, graph, feeds, targets = program_of(build, values, is_open)
    assert sizes_of_groups(program) == expected, program.source
    together = [program(*values) for _ in range(2)]
    with without("parallel"):
        apart, *_ = program_of(build, values, is_open)
        assert sizes_of_groups(apart) == []
        together.append(apart(*values))
    for results in together[1:]:
        for value, wanted in zip(results, together[0], strict=True):
            np.testing.assert_array_equal(value, wanted, strict=True)
    for value, wanted in zip(
        together[0], Interpreter().run(graph, targets, dict(zip(feeds, values, strict=True))), strict=True
    ):
        # Sums of thousands nearly cancel in places: rounding is of the size of what was added up.
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6 * max(100, np.abs(wanted).max(initial=0)))


def experts(count: int, gradients: bool = False) -> Callable[..., list[Any]]:
    """Each feed times weights of its own, twice; or the gradients of all that."""
    terms, columns = SIZES

    def build(*feeds: Any) -> list[Any]:
        first = [ab.constant(draw(terms, columns, seed=k)) for k in range(count)]
        second = [ab.constant(draw(columns, terms, seed=k)) for k in range(count)]
        hidden = [ops.relu(x @ w) for x, w in zip(feeds, first, strict=True)]
        results = [h @ w for h, w in zip(hidden, second, strict=True)]
        if not gradients:
            return results
        return ab.gradients([ops.sum(result * result) for result in results], [*first, *second])

    return build


def rows_of(*counts: int, dtype: str = "float32") -> list[Array]:
    return [draw(count, SIZES[0], seed=k, dtype=dtype) for k, count in enumerate(counts)]


@pytest.mark.parametrize("is_open", [False, True])
def test_products_of_known_and_of_unknown_sizes(is_open: bool):
    check(experts(5), rows_of(160, 130, 177, 140, 129), [5, 5], is_open)


def test_gradients_of_experts():
    """Forward twice five; backward those of both operands of the second ones, then those of the first weights."""
    check(experts(5, gradients=True), rows_of(160, 130, 177, 140, 129), [5, 5, 10, 5], is_open=True)


def test_large_products_lay_out_operands_beside_each_other():
    values = [draw(1100, 256, seed=k) for k in range(4)]
    weights = [draw(256, 300, seed=k) for k in range(4)]
    check(lambda *xs: [x @ ab.constant(w) for x, w in zip(xs, weights, strict=True)], values, [4])


def test_float64():
    values = rows_of(150, 160, 170, 180, dtype="float64")
    check(lambda *xs: [ops.tanh(x @ ops.transpose(x)) for x in xs], values, [4])


def test_more_than_sixteen_are_several_groups():
    values = rows_of(*[130] * 19)
    check(lambda *xs: [x @ ab.constant(draw(256, 300, seed=k)) for k, x in enumerate(xs)], values, [16])


@settings(max_examples=examples(7, 30), deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 7, 64, 129, 200]), min_size=4, max_size=6))
def test_any_numbers_of_rows(counts: list[int]):
    """None, few (which NumPy multiplies) and many."""
    check(experts(len(counts)), rows_of(*counts), [len(counts)] * 2, is_open=True)


def test_few_and_small_ones_run_by_themselves():
    check(experts(3), rows_of(160, 130, 177), [])
    small = [draw(8, 8, seed=k) for k in range(6)]
    check(lambda *xs: [x @ x for x in xs], small, [])


def test_what_needs_another_is_in_no_group_with_it():
    def chain(x: Any) -> list[Any]:
        for seed in range(6):
            x = x @ ab.constant(draw(256, 256, seed=seed)) * 0.1
        return [x]

    check(chain, rows_of(200), [])


def test_rows_that_lie_apart_are_multiplied_all_the_same():
    values = [draw(512, 130, seed=k).T[:, ::2] for k in range(5)]
    assert not any(value.flags.c_contiguous for value in values)
    check(experts(5), [value.astype("float32") for value in values], [5, 5])
    program, *_ = program_of(experts(5), values)
    wanted = program(*[np.ascontiguousarray(value) for value in values])
    for value, copy in zip(program(*values), wanted, strict=True):
        np.testing.assert_array_equal(value, copy, strict=True)


def test_a_product_that_does_not_fit_is_named():
    def build(*feeds: Any) -> list[Any]:
        return [x @ ops.transpose(ops.tanh(y)) for x, y in zip(feeds, feeds[1:] + feeds[:1], strict=True)]

    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, None), "float32") for _ in range(4)]
        targets = build(*feeds)
    program = Program(graph, targets, feeds)
    assert sizes_of_groups(program) == [4]
    values = [draw(140, 200), draw(140, 200), draw(140, 199), draw(140, 200)]
    with pytest.raises(ValueError, match="matmul_1") as together:
        program(*values)
    with without("parallel"), pytest.raises(ValueError, match="matmul_1") as apart:
        Program(graph, targets, feeds)(*values)
    assert str(together.value) == str(apart.value)
    fitting = [draw(140, 200, seed=k) for k in range(4)]
    np.testing.assert_allclose(program(*fitting)[0], fitting[0] @ np.tanh(fitting[1]).T, rtol=1e-4, atol=1e-4)


def test_a_product_with_many_operands_runs_by_itself():
    class Runner:
        def __init__(self, results: int) -> None:
            self.results = results

        def begin(self, *values: Any) -> Any:
            return parallel_products.Begun(None, (0,) * self.results)  # pyright: ignore[reportArgumentType]

    most = parallel_products._MOST_OPERANDS
    assert parallel_products._begun((Runner(2), *range(most - 2))) is not None
    assert parallel_products._begun((Runner(2), *range(most - 1))) is None
    assert parallel_products.run_products((Runner(3), *range(most))) == [None]


def test_what_a_kernel_refuses_is_computed_alone(monkeypatch: pytest.MonkeyPatch):
    """Byte orders that are not the machine's own."""
    values = rows_of(160, 130, 177, 140)
    program, *_ = program_of(experts(4), values)
    swapped = [values[0].astype(values[0].dtype.newbyteorder()), *values[1:]]
    for value, wanted in zip(program(*swapped), program(*values), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


def test_steps_of_several_threads_at_a_time():
    values = rows_of(160, 130, 177, 140, 129)
    program, *_ = program_of(experts(5), values)
    wanted, found = program(*values), list[Any]()

    def run() -> None:
        for _ in range(20):
            found.append(program(*values))

    callers = [threading.Thread(target=run) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 80
    assert all(np.array_equal(a, b) for results in found for a, b in zip(results, wanted, strict=True))


@pytest.mark.usefixtures("no_compiler")
def test_without_kernels():
    rng = np.random.default_rng(0)
    rows = [rng.uniform(-1, 1, (count, 256)).astype("float32") for count in (1030, 300, 5, 140, 777)]
    matrices = [rng.uniform(-1, 1, (256, 320)).astype("float32") for _ in rows]
    results = [ops.relu(ab.constant(x) @ ab.Variable(w)) for x, w in zip(rows, matrices, strict=True)]
    with ab.Session() as session:
        for found, x, w in zip(session.run(results), rows, matrices, strict=True):
            np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


# --- the pass -------------------------------------------------------------------------------------------------------


def test_a_group_is_of_one_kind_and_of_as_many_as_pay():
    with ab.Graph().as_default() as graph:
        x = ab.constant(1.0)
        made = [symbol_of(ops.exp(x)).operation for _ in range(7)]
    kinds = ["a", "b", "a", "b", "a", "b", "b"]
    pieces = {o: Piece(1.0, kind, {"a": 3, "b": 5}[kind]) for o, kind in zip(made, kinds, strict=True)}
    with recording() as log:
        ordered, groups = parallel_schedule(graph.operations, pieces.get, lambda _: False)
    assert groups == [[made[0], made[2], made[4]]]
    assert sorted(ordered, key=lambda o: o.index) == graph.operations
    _, kept = log.of("parallel")
    assert [note.operation for note in kept] == [made[k].name for k in (1, 3, 5, 6)]
    assert {note.text for note in kept} == {"fewer than 4 others that take as long are independent of it"}


def test_others_are_looked_for_within_reach(monkeypatch: pytest.MonkeyPatch):
    from anabranch.engine.passes.fusion import parallel_schedule as module

    monkeypatch.setattr(module, "_REACH", 3)
    with ab.Graph().as_default() as graph:
        x = ab.constant(1.0)
        made = [symbol_of(ops.exp(x)).operation for _ in range(5)]
    _, groups = parallel_schedule(graph.operations, {o: Piece(1.0) for o in made}.get, lambda _: False)
    assert groups == [made[:3], made[3:]]


def test_explain_tells_it():
    with ab.Graph().as_default():
        xs = [ab.Variable(value) for value in rows_of(160, 130, 177, 140)]
        results = experts(4)(*xs)
        assert "runs side by side with" in str(ab.explain(results, passes=True))
        assert "= products((run_" in str(ab.explain(results))
