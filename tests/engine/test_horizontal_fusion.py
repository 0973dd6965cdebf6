"""Updates of variables by the same expression in one call: when they are joined, and their values with and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused, HorizontallyFused
from anabranch.engine.ops.math.elementwise import Multiply
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion import horizontal_fusion
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
_SHAPES = [(3, 4), (4,), (4, 2), (2,), (0, 3), (1,), (2, 1, 3)]
_OPTIMIZERS = [
    "SGD",
    "Momentum",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adam",
    "Amsgrad",
    "AdamW",
    "Adamax",
    "Nadam",
    "Ftrl",
]
_OPTIMIZERS += ["Lamb", "Lion", "Clipped", "Averaged"]


def _optimizer(name: str) -> Any:
    made = {
        "Momentum": lambda: ab.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "Amsgrad": lambda: ab.optimizers.Adam(0.1, amsgrad=True),
        "Clipped": lambda: ab.optimizers.Adam(0.1, global_clipnorm=0.5),
        "Averaged": lambda: ab.optimizers.Adam(0.1, use_ema=True, weight_decay=0.01),
    }
    return made[name]() if name in made else getattr(ab.optimizers, name)(0.1)


def _values(shapes: Sequence[Any], seed: int = 0, dtype: Any = "float32") -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def _joined(graph: ab.Graph, targets: Sequence[Any], feeds: Sequence[Any] = ()) -> list[int]:
    """Return the number of members of each operation that updates several variables."""
    step = prepare(graph, targets, feeds, rule=fusion_rule())
    found = [operation.op for operation in all_operations(step.operations)]
    return [op.count for op in found if isinstance(op, HorizontallyFused)]


def _changed(graph: ab.Graph, targets: Sequence[Any], variables: Sequence[Any], runs: int = 2) -> list[Any]:
    """The variables after some runs; then they have their first values again."""
    before = [variable.numpy() for variable in variables]
    program = Program(graph, targets, [])
    for _ in range(runs):
        program()
    after = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return after


def _check_same(graph: ab.Graph, targets: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Every bit is the same as without the pass."""
    found = _changed(graph, targets, variables)
    with without("horizontal_fusion"):
        expected = _changed(graph, targets, variables)
    for value, wanted in zip(found, expected, strict=True):
        assert value.tobytes() == wanted.tobytes()
    return found


def _step(variables: Sequence[Any], optimizer: Any) -> tuple[ab.Graph, Any]:
    """A step whose gradients are the variables' first values."""
    gradients = [ab.Variable(variable.numpy()) for variable in variables]
    with ab.Graph().as_default() as graph:
        return graph, optimizer.apply([ab.ops.convert_to_tensor(gradient) for gradient in gradients], variables)


# --- optimizers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_optimizer_gives_the_same_bits(name: str) -> None:
    variables = [ab.Variable(value) for value in _values(_SHAPES)]
    optimizer = _optimizer(name)
    graph, step = _step(variables, optimizer)
    _check_same(graph, [step], [*variables, *optimizer.variables])


@needs_kernels
@pytest.mark.parametrize("name", ["SGD", "Momentum", "RMSprop", "Adagrad", "Adam", "Amsgrad", "Adamax", "Nadam"])
def test_one_call_updates_all(name: str) -> None:
    variables = [ab.Variable(value) for value in _values([(3, 4), (4,), (4, 2), (2,), (2, 1, 3)])]
    graph, step = _step(variables, _optimizer(name))
    assert _joined(graph, [step]) == [5]
    assert Program(graph, [step], []).source.count("5 times: ") == 1


@needs_kernels
def test_known_values() -> None:
    start = _values([(5, 7), (7,), (40, 50)])
    variables = [ab.Variable(value) for value in start]
    graph, step = _step(variables, ab.optimizers.SGD(0.25))
    assert _joined(graph, [step]) == [3]
    Program(graph, [step], [])()
    for variable, value in zip(variables, start, strict=True):
        np.testing.assert_allclose(variable.numpy(), value * np.float32(0.75), rtol=1e-6)


@needs_kernels
def test_variables_keep_their_memory() -> None:
    variables = [ab.Variable(value) for value in _values([(3, 4), (4,)])]
    graph, step = _step(variables, ab.optimizers.Adam())
    memory = [variable.stored_value() for variable in variables]
    Program(graph, [step], [])()
    assert all(variable.stored_value() is array for variable, array in zip(variables, memory, strict=True))


def test_updates_in_a_branch() -> None:
    variables = [ab.Variable(value) for value in _values([(3, 4), (4,), (2, 2)])]
    optimizer = ab.optimizers.Adam(0.1, gradient_accumulation_steps=2)
    graph, step = _step(variables, optimizer)
    _check_same(graph, [step], [*variables, *optimizer.variables])
    if library.usable:
        assert 3 in _joined(graph, [step])


# --- what may be joined ---------------------------------------------------------------------------------------------


def _assigned(changes: Callable[[list[Any]], list[tuple[int, Any]]], values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """A graph that assigns to some of the variables, in order; with the assignments and the variables."""
    variables = [ab.Variable(value) for value in values]
    with ab.Graph().as_default() as graph:
        written = [variables[k].assign(value) for k, value in changes(variables)]
    return graph, written, variables


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16", "float16"])
def test_dtypes(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values = [(10 * value).astype(kind) for value in _values([(9,), (33, 3)])]
    graph, written, variables = _assigned(lambda v: [(k, v[k] * v[k] - v[k]) for k in range(2)], values)
    found = _check_same(graph, written, variables)
    assert _joined(graph, written) == ([2] if dtype != "float16" or library.has_half else [])
    once = [value * value - value for value in values]
    assert [each.dtype for each in found] == [each.dtype for each in once]


@needs_kernels
def test_each_dtype_has_a_call_of_its_own() -> None:
    values = [*_values([(3,), (4,)]), *_values([(3,), (4,), (5,)], dtype="float64")]
    graph, written, variables = _assigned(lambda v: [(k, v[k] * v[k] + v[k]) for k in (0, 2, 1, 3, 4)], values)
    assert sorted(_joined(graph, written)) == [2, 3]
    _check_same(graph, written, variables)


@needs_kernels
def test_scalars_that_differ() -> None:
    rates = [ab.Variable(np.float32(0.1 * k)) for k in range(4)]
    graph, written, variables = _assigned(
        lambda v: [(k, v[k] - v[k] * v[k] * rates[k] * rates[3]) for k in range(3)], _values([(3,), (4, 2), (1, 2)])
    )
    step = prepare(graph, written, [], rule=fusion_rule())
    (op,) = [operation.op for operation in step.operations if isinstance(operation.op, HorizontallyFused)]
    assert (op.count, len(op.shared)) == (3, 1)
    _check_same(graph, written, variables)


@needs_kernels
def test_updates_that_need_one_another_stay_apart() -> None:
    def changes(v: list[Any]) -> list[tuple[int, Any]]:
        first = v[0] * v[0] - v[0]
        return [(0, first), (1, v[1] * v[1] - v[1]), (2, first * first - first)]

    graph, written, variables = _assigned(changes, _values([(3,)] * 3))
    found = _check_same(graph, written, variables)
    once = found[0]
    assert once.shape == (3,)
    assert all(count < 3 for count in _joined(graph, written))


@needs_kernels
def test_updates_behind_an_assignment_stay_apart() -> None:
    """The second update reads what the first has written, after it."""
    start = _values([(3,), (3,)])
    variables = [ab.Variable(value) for value in start]
    with ab.Graph().as_default() as graph:
        first = variables[0].assign(variables[0] * variables[0] - variables[0])
        with graph.control_dependencies([first.operation]):
            second = variables[1].assign(variables[0] * variables[0] - variables[0])
    assert _joined(graph, [first, second]) == []
    _check_same(graph, [first, second], variables)


@needs_kernels
def test_values_change_places() -> None:
    """Each variable gets what is computed of the other one: neither may be written over what is still to be read."""
    start = _values([(2000,), (2000,)])
    graph, written, variables = _assigned(lambda v: [(0, v[1] * v[1] - v[1]), (1, v[0] * v[0] - v[0])], start)
    found = _check_same(graph, written, variables)
    assert found[0].shape == (2000,)
    Program(graph, written, [])()
    for variable, other in zip(variables, start[::-1], strict=True):
        np.testing.assert_allclose(variable.numpy(), other * other - other, rtol=1e-5, atol=1e-6)


@needs_kernels
def test_an_array_that_several_members_take_is_not_overwritten() -> None:
    """Another member needs it behind the one whose result could take its place."""

    def changes(v: list[Any]) -> list[tuple[int, Any]]:
        both = ab.ops.matmul(v[2], v[3])
        return [(k, v[k] - (v[k] * v[k] + both)) for k in range(2)]

    start = _values([(3, 4), (3, 4), (3, 2), (2, 4)])
    graph, written, variables = _assigned(changes, start)
    with graph.as_default(), graph.control_dependencies([each.operation for each in written]):
        written += [variable.assign(variable * 2) for variable in variables[:2]]  # so that results have own memory
    assert _joined(graph, written) == [2]
    _check_same(graph, written, variables)
    Program(graph, written, [])()
    for variable, value in zip(variables[:2], start[:2], strict=True):
        expected = 2 * (value - value * value - start[2] @ start[3])
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_one_variable_twice() -> None:
    def changes(v: list[Any]) -> list[tuple[int, Any]]:
        return [(0, v[0] * v[0] - v[0]), (1, v[1] * v[1] - v[1]), (0, v[1] * v[1] - v[1])]

    graph, written, variables = _assigned(changes, _values([(3,), (3,)]))
    _check_same(graph, written, variables)


@needs_kernels
def test_results_that_are_fetched_and_used() -> None:
    start = _values([(3,), (4, 2)])
    graph, written, variables = _assigned(lambda v: [(k, v[k] * v[k] - v[k]) for k in range(2)], start)
    with graph.as_default():
        total = ab.ops.sum(written[0]) + ab.ops.sum(variables[1] * 2)
    assert _joined(graph, [*written, total]) == [2]
    values = [value * value - value for value in start]
    first, second, found = Program(graph, [*written, symbol_of(total)], [])()
    np.testing.assert_allclose(first, values[0], rtol=1e-5)
    np.testing.assert_allclose(second, values[1], rtol=1e-5)
    np.testing.assert_allclose(found, values[0].sum() + 2 * values[1].sum(), rtol=1e-4)
    Program(graph, [*written, symbol_of(total)], [])()
    np.testing.assert_allclose(first, values[0], rtol=1e-5)  # what was fetched is nobody's memory


@needs_kernels
def test_groups_never_wait_for_one_another() -> None:
    """Two kinds of updates, of which one each needs one of the other kind."""

    def changes(v: list[Any]) -> list[tuple[int, Any]]:
        a, b = v[0] * v[0] - v[0], v[1] * v[1] + v[1] * v[1] * v[1]
        of_a, of_b = ab.ops.sum(a) * v[2], ab.ops.sum(b) * v[3]
        return [(0, a), (2, of_a * of_a + of_a * of_a * of_a), (1, b), (3, of_b * of_b - of_b)]

    graph, written, variables = _assigned(changes, _values([(3,)] * 4))
    _check_same(graph, written, variables)


@needs_kernels
def test_what_is_large_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizontal_fusion, "_MOST_BYTES", 100)
    values = _values([(30,), (5,), (10,), (20,), (4,)])
    graph, written, variables = _assigned(lambda v: [(k, v[k] * v[k] - v[k]) for k in range(5)], values)
    with recording() as log:
        assert _joined(graph, written) == [2, 2]  # (5 + 10), (20 + 4)
    assert any("nothing to one of this size" in note.text for note in log.of("horizontal_fusion")[1])
    _check_same(graph, written, variables)


@needs_kernels
def test_what_is_told() -> None:
    values = _values([(3,), (4,), (5,)])
    changes = lambda v: [(0, v[0] * v[0] - v[0]), (1, v[1] * v[1] - v[1]), (2, v[2] * v[2] + v[2])]  # noqa: E731
    graph, written, _ = _assigned(changes, values)
    with recording() as log:
        prepare(graph, written, [], rule=fusion_rule())
    changed, kept = log.of("horizontal_fusion")
    assert [note.text for note in changed] == ["2 updates are one call: multiply, subtract"]
    assert [note.text for note in kept] == ["no other variable is updated by the same expression"]
    with without("horizontal_fusion"):
        assert _joined(graph, written) == []


# --- kernels --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(5, 15), deadline=None)
@given(st.data())
def test_any_sizes(data: Any) -> None:
    shapes = data.draw(
        st.lists(st.lists(st.sampled_from([0, 1, 2, 17, 300]), min_size=1, max_size=2), min_size=2, max_size=6)
    )
    seed = data.draw(st.integers(0, 9))
    values = [value[..., ::-1].copy() for value in _values(shapes, seed)]
    graph, written, variables = _assigned(
        lambda v: [(k, ab.ops.exp(-v[k] * v[k]) - v[k]) for k in range(len(v))], values
    )
    for found, value in zip(_check_same(graph, written, variables), values, strict=True):
        once = np.exp(-value * value) - value
        np.testing.assert_allclose(found, np.exp(-once * once) - once, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_operands_that_lie_otherwise() -> None:
    """Gradients that are not contiguous, and variables laid out by columns, are put right and written back."""
    start = _values([(6, 5), (5, 6), (3,)])
    variables = [ab.Variable(value) for value in start]
    for variable in variables[:2]:
        variable.write_value(np.asfortranarray(variable.stored_value()))
    with ab.Graph().as_default() as graph:
        fed = [ab.placeholder(value.shape, "float32") for value in start]
        written = [variable.assign(variable - given * given) for variable, given in zip(variables, fed, strict=True)]
    assert _joined(graph, written, fed) == [3]
    given = [np.asfortranarray(value) for value in _values([(6, 5), (5, 6), (3,)], 1)]
    Program(graph, written, fed)(*given)
    for variable, value, each in zip(variables, start, given, strict=True):
        np.testing.assert_allclose(variable.numpy(), value - each * each, rtol=1e-5, atol=1e-6)


@needs_kernels
def test_a_wrong_shape_is_an_error() -> None:
    variables = [ab.Variable(value) for value in _values([(3,), (4,)])]
    with ab.Graph().as_default() as graph:
        fed = [ab.placeholder((3,), "float32"), ab.placeholder((4,), "float32")]
        written = [variable.assign(variable - given * given) for variable, given in zip(variables, fed, strict=True)]
    program = Program(graph, written, fed)
    with pytest.raises(RuntimeError, match=r"inferred shape or dtype differs.*float32\[5\]|inferred shape"):
        program(np.ones(3, "float32"), np.ones(5, "float32"))


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_usable", False)
    graph, written, variables = _assigned(lambda v: [(k, v[k] * v[k] - v[k]) for k in range(2)], _values([(3,), (4,)]))
    assert _joined(graph, written) == []
    _check_same(graph, written, variables)


def test_the_meaning() -> None:
    """The definition, which runs where no kernel can be compiled: the members, one after the other."""
    op = Fused(2, ((Multiply(), (0, 1)),), (2,))
    joined = HorizontallyFused(op, 2, (1,))
    first, second = np.array([1.0, 2.0]), np.array([[3.0], [4.0]])
    found = joined.run(np, np.float64(10), first, second)
    np.testing.assert_array_equal(found[0], [10, 20])
    np.testing.assert_array_equal(found[1], [[30], [40]])
    assert joined.own == (0,)
    assert joined.may_replace(1, 2)
    assert not joined.may_replace(1, 1)
    assert not joined.may_replace(0, 0)
