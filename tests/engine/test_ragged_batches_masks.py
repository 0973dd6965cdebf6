"""Spellings of masks in users' loops over sequences of various lengths: which loops compute only rows that are live.

Each is compared with the loop over all rows (the reference interpreter, in float64) and with NumPy, gradients too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.ragged_batches_checks import ROWS, STEPS, check, draw, lengths_of, loops, why_not

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
FEATURES, UNITS = 3, 5


@pytest.fixture(autouse=True)
def small_loops_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assume(monkeypatch, ragged_work=0, ragged_steps=0)
    with ab.Graph().as_default():
        yield


class Problem:
    """A loop whose mask is `spelled`, and what it means: (steps, rows) `live`.

    Attributes:
        fed: what is fed for each placeholder.
        names: what a spelling may take.
        final, outputs: the results.
    """

    def __init__(self, spelled: Callable[..., Any], kind: str = "various", steps: int = STEPS, dtype: str = "float32"):
        lengths = lengths_of(kind, steps)
        self.live = np.arange(steps)[:, None] < lengths
        values = {
            "x": draw(steps, ROWS, FEATURES), "kernel": draw(FEATURES, UNITS), "recurrent": draw(UNITS, UNITS, seed=1),
            "h0": draw(ROWS, UNITS, seed=2), "L": lengths, "column": lengths[:, None], "columns": lengths[:, None] > 3,
            "longer": lengths.astype("int64"), "floats": lengths.astype("float32") - 0.5,
            "small": np.minimum(lengths, 127).astype("int8"),
            "P": np.where(self.live[..., None], draw(steps, ROWS, FEATURES) + 1, np.float32(0)),
            "M": self.live, "MT": self.live.T.copy(),
        }  # fmt: skip
        made = {name: ab.placeholder(value.shape, value.dtype, name) for name, value in values.items()}
        self.fed = {made[name]: value for name, value in values.items()}
        self.sources = [made[name] for name in ("x", "kernel", "recurrent", "h0")]
        x, kernel, recurrent, h0 = self.sources
        arrays = {"X": x, "Ma": made["M"], "Mb": ops.expand_dims(made["M"], -1)}
        unstacked = {name: ab.TensorArray(value.dtype, steps).unstack(value) for name, value in arrays.items()}
        self.names = names = Names(**made, **unstacked)
        outputs = ab.TensorArray("float32", size=steps, element_shape=(ROWS, UNITS))

        def body(t: Any, h: Any, outputs: Any) -> Any:
            new = ops.tanh(ops.matmul(names.X.read(t), kernel) + ops.matmul(h, recurrent))
            kept = spelled(names, t, new, h)
            return t + 1, kept, outputs.write(t, kept)

        _, self.final, array = ab.while_loop(lambda t, *_: t < steps, body, (0, h0, outputs))
        self.outputs = array.stack()
        self.loss = ops.sum(ops.sin(self.final)) + (ops.sum(self.outputs**2) if steps else 0.0)

    def gradients(self) -> list[Any]:
        return [ops.convert_to_tensor(gradient) for gradient in ab.gradients(self.loss, self.sources)]

    def expected(self) -> tuple[Any, Any]:
        """Final state and outputs, by NumPy in float64."""
        x, kernel, recurrent, h = [self.fed[source].astype("float64") for source in self.sources]
        made = []
        for t in range(len(x)):
            h = np.where(self.live[t][:, None], np.tanh(x[t] @ kernel + h @ recurrent), h)
            made.append(h)
        return h, np.array(made).reshape(len(x), ROWS, UNITS)


class Names:
    """The values that a spelling may take, by name."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


Spelled = Callable[..., Any]
_COLUMN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "expand_dims(t < L, 1)": lambda v, t, h: ops.expand_dims(t < v.L, 1),
    "expand_dims(L > t, -1)": lambda v, t, h: ops.expand_dims(ops.greater(v.L, t), -1),
    "(t < L)[:, None]": lambda v, t, h: (t < v.L)[:, None],
    "(t < L)[..., None]": lambda v, t, h: (t < v.L)[..., None],
    "t < L[:, None]": lambda v, t, h: t < v.L[:, None],
    "t < column": lambda v, t, h: t < v.column,
    "reshape(t < L, (ROWS, 1))": lambda v, t, h: ops.reshape(t < v.L, (ROWS, 1)),
    "reshape(t < L, (-1, 1))": lambda v, t, h: ops.reshape(t < v.L, (-1, 1)),
    "t <= L - 1": lambda v, t, h: ops.expand_dims(t <= v.L - 1, -1),
    "t + 1 <= L": lambda v, t, h: ops.expand_dims(t + 1 <= v.L, -1),
    "L - t > 0": lambda v, t, h: (v.L - t > 0)[:, None],
    "L - 1 >= t": lambda v, t, h: ops.greater_equal(v.L - 1, t)[:, None],
    "not t >= L": lambda v, t, h: ops.expand_dims(ops.logical_not(t >= v.L), -1),
    "not expanded L <= t": lambda v, t, h: ops.logical_not(ops.expand_dims(ops.less_equal(v.L, t), -1)),
    "broadcast_to(t < L)": lambda v, t, h: ops.broadcast_to((t < v.L)[:, None], h.shape),
    "broadcast_to(t < L), shape of h": lambda v, t, h: ops.broadcast_to((t < v.L)[:, None], ops.shape(h)),
    "t < L and other": lambda v, t, h: ops.logical_and(t < v.L, ops.equal(v.L, v.L))[:, None],
    "t < L or M[t]": lambda v, t, h: ops.logical_or(t < v.L, v.M[t])[:, None],
    "t < int64 lengths": lambda v, t, h: (t < v.longer)[:, None],
    "t < float lengths": lambda v, t, h: (ops.cast(t, "float32") < v.floats)[:, None],
    "M[t][:, None]": lambda v, t, h: v.M[t][:, None],
    "M[t, :, None]": lambda v, t, h: v.M[t, :, None],
    "expand_dims(M[t], 1)": lambda v, t, h: ops.expand_dims(v.M[t], 1),
    "MT[:, t][:, None]": lambda v, t, h: v.MT[:, t][:, None],
    "take(MT, [t], 1)": lambda v, t, h: ops.take(v.MT, ops.reshape(t, (1,)), axis=1),
    "take(M, t)": lambda v, t, h: ops.take(v.M, t, axis=0)[:, None],
    "mask of an array": lambda v, t, h: v.Ma.read(t)[:, None],
    "mask of an array of columns": lambda v, t, h: v.Mb.read(t),
    "not not": lambda v, t, h: ops.logical_not(ops.logical_not(v.Mb.read(t))),
    "numbers of a mask": lambda v, t, h: ops.cast(v.Ma.read(t), "float32")[:, None] > 0.5,
    "numbers are not 0": lambda v, t, h: ops.not_equal(ops.cast(v.M[t], "int32"), 0)[:, None],
    "some feature is not 0": lambda v, t, h: ops.any(ops.not_equal(v.P[t], 0), axis=-1, keepdims=True),
    "t < int8 lengths": lambda v, t, h: (ops.cast(t, "int8") < v.small)[:, None],
    "sequence_mask in the body": lambda v, t, h: ops.sequence_mask(v.L, STEPS)[:, t][:, None],
}
SPELLINGS: dict[str, Spelled] = {
    **{
        name: lambda v, t, new, h, column=column: ops.where(column(v, t, h), new, h) for name, column in _COLUMN.items()
    },
    "where(t >= L, old, new)": lambda v, t, new, h: ops.where((t >= v.L)[:, None], h, new),
    "where(not M, old, new)": lambda v, t, new, h: ops.where(ops.logical_not(v.Mb.read(t)), h, new),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_is_several_loops_and_has_its_values(name: str) -> None:
    problem = Problem(SPELLINGS[name])
    fetches = [problem.loss, problem.final, problem.outputs, *problem.gradients()]
    assert len(loops(fetches, problem.fed)) == 4  # two forward, two backward
    check(fetches, problem.fed)
    found = Program(ab.get_default_graph(), fetches[1:3], list(problem.fed))(*problem.fed.values())
    for result, reference in zip(found, problem.expected(), strict=True):
        np.testing.assert_allclose(result, reference, 1e-4, 1e-5)


# Those that are known as lengths, computed for all steps, and read.
KINDS = ["(t < L)[:, None]", "t <= L - 1", "M[t][:, None]", "mask of an array", "where(t >= L, old, new)"]


@pytest.mark.parametrize("kind", ["none", "all", "one"])
@pytest.mark.parametrize("name", KINDS)
def test_rows_without_steps_and_rows_that_never_end(name: str, kind: str) -> None:
    problem = Problem(SPELLINGS[name], kind)
    fetches = [problem.final, problem.outputs, *problem.gradients()]
    assert len(loops(fetches, problem.fed)) == 4
    check(fetches, problem.fed)
    found = Interpreter(True).run(ab.get_default_graph(), fetches[:2], problem.fed)
    for result, reference in zip(found, problem.expected(), strict=True):
        np.testing.assert_allclose(result, reference, 1e-9, 1e-9)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_few_steps_and_none(name: str, steps: int) -> None:
    problem = Problem(SPELLINGS[name], steps=steps)
    with without("unroll"):
        check([problem.final, problem.outputs, *problem.gradients()], problem.fed)
    found = Program(ab.get_default_graph(), [problem.final], list(problem.fed))(*problem.fed.values())
    np.testing.assert_allclose(found[0], problem.expected()[0], 1e-4, 1e-5)


@pytest.mark.parametrize("longest", [0, 1, STEPS])
@pytest.mark.parametrize("name", ["(t < L)[:, None]", "t <= L - 1", "M[t][:, None]", "MT[:, t][:, None]"])
def test_number_of_steps_known_at_run_time(name: str, longest: int) -> None:
    x, h0 = ab.placeholder((STEPS, ROWS, UNITS), "float32"), ab.placeholder((ROWS, UNITS), "float32")
    lengths, weight = ab.placeholder((ROWS,), "int32"), ab.placeholder((UNITS, UNITS), "float32")
    mask = ops.sequence_mask(lengths, STEPS)
    array = ab.TensorArray("float32", STEPS).unstack(x)
    names, steps = Names(L=lengths, M=ops.transpose(mask), MT=mask), ops.max(lengths)

    def body(t: Any, h: Any) -> Any:
        return t + 1, SPELLINGS[name](names, t, ops.tanh(ops.matmul(h, weight) + array.read(t)), h)

    final = ab.while_loop(lambda t, h: t < steps, body, (0, h0))[1]
    fetches = [final, *[ops.convert_to_tensor(g) for g in ab.gradients(ops.sum(final**2), [x, h0, weight])]]
    feeds = {
        x: draw(STEPS, ROWS, UNITS), h0: draw(ROWS, UNITS), weight: draw(UNITS, UNITS),
        lengths: np.minimum(lengths_of("various"), longest),
    }  # fmt: skip
    assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)


@pytest.mark.parametrize("name", KINDS)
def test_gradients_against_finite_differences(name: str) -> None:
    problem = Problem(SPELLINGS[name])
    found = Program(ab.get_default_graph(), problem.gradients(), list(problem.fed))(*problem.fed.values())
    generator, graph = np.random.default_rng(5), ab.get_default_graph()
    for source, gradient in zip(problem.sources, found, strict=True):
        direction = generator.normal(size=problem.fed[source].shape)
        moved = [
            float(Interpreter(True).run(graph, [symbol_of(problem.loss)], {**problem.fed, source: value})[0])
            for value in (problem.fed[source] + sign * 1e-5 * direction for sign in (1, -1))
        ]
        np.testing.assert_allclose(np.vdot(gradient, direction), (moved[0] - moved[1]) / 2e-5, 2e-3, 2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_second_order_gradients(name: str) -> None:
    problem = Problem(SPELLINGS[name], steps=6)
    first = problem.gradients()
    second = ab.gradients(sum(ops.sum(ops.sin(gradient)) for gradient in first), problem.sources)
    check([*first, *[ops.convert_to_tensor(gradient) for gradient in second]], problem.fed)


def test_steps_that_wrap_around() -> None:
    """As int8, steps 128 to 130 are below zero: rows go on there."""
    steps, lengths = 131, ab.placeholder((ROWS,), "int8")
    weight = ops.convert_to_tensor(draw(UNITS, UNITS))

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.where((ops.cast(t, "int8") < lengths)[:, None], ops.sin(ops.matmul(h, weight)) + 1.0, h)

    final = ab.while_loop(lambda t, h: t < steps, body, (0, ops.ones((ROWS, UNITS))))[1]
    feeds = {lengths: lengths_of("various").astype("int8")}
    assert len(loops([final], feeds)) == 2
    check([final], feeds)


@pytest.mark.parametrize("first", [0, 2])
def test_lengths_that_are_a_loop_variable(first: int) -> None:
    values = {"x": draw(STEPS + first, ROWS, UNITS), "w": draw(UNITS, UNITS), "L": lengths_of("various")}
    x, w, lengths = (ab.placeholder(value.shape, value.dtype, name) for name, value in values.items())
    array = ab.TensorArray("float32", STEPS + first).unstack(x)

    def body(t: Any, h: Any, ends: Any, scale: Any) -> Any:
        new = ops.tanh(ops.matmul(h, w) + array.read(t) * scale)
        return t + 1, ops.where((t < ends)[:, None], new, h), ends, scale

    initial = (first, ops.ones((ROWS, UNITS)), lengths, ops.abs(x[0]) + 0.5)
    _, final, ends, scale = ab.while_loop(lambda t, *_: t < STEPS + first, body, initial)
    gradients = [ops.convert_to_tensor(g) for g in ab.gradients(ops.sum(final**2) + ops.sum(scale), [x, w])]
    fetches = [final, ends, *(gradients if not first else [])]
    feeds = dict(zip((x, w, lengths), values.values(), strict=True))
    assert len(loops(fetches, feeds)) == (2 if first else 4)
    check(fetches, feeds)


# --- directions -----------------------------------------------------------------------------------------------------

_BACKWARD: dict[str, Callable[[Any, Any], Any]] = {
    "t < L": lambda v, t: (t < v.L)[:, None],
    "L - 1 >= t": lambda v, t: ops.greater_equal(v.L - 1, t)[:, None],
    "not t >= L": lambda v, t: ops.logical_not(t >= v.L)[:, None],
    "M[t]": lambda v, t: v.M[t][:, None],
    "numbers of an array": lambda v, t: ops.cast(v.A.read(t), "int32")[:, None] > 0,
    "floats": lambda v, t: (ops.cast(t, "float32") + 0.5 < ops.cast(v.L, "float32"))[:, None],
}


@pytest.mark.parametrize("name", _BACKWARD)
def test_loops_that_go_backward_have_more_and_more_rows(name: str) -> None:
    x, lengths = ab.placeholder((STEPS, ROWS, UNITS), "float32"), ab.placeholder((ROWS,), "int32")
    mask = ab.placeholder((STEPS, ROWS), "bool")
    array, weight = ab.TensorArray("float32", STEPS).unstack(x), ab.placeholder((UNITS, UNITS), "float32")
    names = Names(L=lengths, M=mask, A=ab.TensorArray("bool", STEPS).unstack(mask))

    def body(t: Any, h: Any) -> Any:
        new = ops.tanh(ops.matmul(h, weight) + array.read(t))
        return t - 1, ops.where(_BACKWARD[name](names, t), new, h)

    final = ab.while_loop(lambda t, h: t >= 0, body, (STEPS - 1, ops.ones((ROWS, UNITS))))[1]
    fetches = [final, *[ops.convert_to_tensor(g) for g in ab.gradients(ops.sum(final**2), [x, weight])]]
    ends = lengths_of("various")
    feeds = {
        x: draw(STEPS, ROWS, UNITS), weight: draw(UNITS, UNITS), lengths: ends, mask: np.arange(STEPS)[:, None] < ends,
    }  # fmt: skip
    found = loops(fetches, feeds)
    assert [loop.outputs[-2].shape for loop in found[:2]] == [(8, UNITS), (20, UNITS)]
    check(fetches, feeds)


# --- more than one mask, and more than one shape ---------------------------------------------------------------------


def _two_states(change: Callable[..., Any]) -> tuple[list[Any], dict[Any, Any]]:
    """A loop of two states that become `change(names, t, (new, other), (h, g))`."""
    values = {"x": draw(STEPS, ROWS, UNITS), "w": draw(UNITS, UNITS), "L": lengths_of("various")}
    values["K"] = values["L"][::-1].copy()
    made = {name: ab.placeholder(value.shape, value.dtype, name) for name, value in values.items()}
    array = ab.TensorArray("float32", STEPS).unstack(made["x"])
    outputs = ab.TensorArray("float32", size=STEPS, element_shape=(ROWS, UNITS))

    def body(t: Any, h: Any, g: Any, outputs: Any) -> Any:
        new = ops.tanh(ops.matmul(h, made["w"]) + array.read(t) + 0.1 * g)
        h, g, output = change(Names(**made), t, (new, new * g), (h, g))
        return t + 1, h, g, outputs.write(t, output)

    ones = ops.ones((ROWS, UNITS))
    _, h, g, array_of_outputs = ab.while_loop(lambda t, *_: t < STEPS, body, (0, ones, ones * 0.5, outputs))
    loss = ops.sum(h**2) + ops.sum(g) + ops.sum(ops.sin(array_of_outputs.stack()))
    gradients = [ops.convert_to_tensor(g) for g in ab.gradients(loss, [made["x"], made["w"]])]
    return [loss, h, g, *gradients], {made[name]: value for name, value in values.items()}


def _spelled_twice(v: Any, t: Any, new: Any, old: Any) -> Any:
    h = ops.where((t < v.L)[:, None], new[0], old[0])
    return (
        h,
        ops.where(ops.expand_dims(ops.less_equal(v.L, t), 1), old[1], new[1]),
        ops.where(ops.greater(v.L[:, None], t), h, 0.0),
    )


def _other_lengths(v: Any, t: Any, new: Any, old: Any) -> Any:
    h = ops.where((t < v.L)[:, None], new[0], old[0])
    return h, ops.where((t < v.K)[:, None], new[1], old[1]), ops.where((t < v.K)[:, None], h, old[0])


def _some_steps(v: Any, t: Any, new: Any, old: Any) -> Any:
    odd = ops.logical_and(t < v.L, ops.equal(t % 2, 1))
    return ops.where((t < v.L)[:, None], new[0], old[0]), ops.where(odd[:, None], new[1], old[1]), old[1]


@pytest.mark.parametrize("change", [_spelled_twice, _other_lengths, _some_steps])
def test_states_that_are_kept_by_masks_of_their_own(change: Any) -> None:
    fetches, feeds = _two_states(change)
    assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: ops.reshape(ops.reshape(h, (ROWS, UNITS, 1)) * 2.0, (ROWS, UNITS)),
        lambda h: ops.reshape(ops.max(ops.reshape(h, (-1, 1, UNITS)), axis=1), ops.shape(h)),
        lambda h: h * ops.broadcast_to(ops.sum(h, axis=1, keepdims=True), (ROWS, UNITS)),
    ],
)
def test_reshapes_and_broadcasts_that_name_how_many_rows_there_are(change: Any) -> None:
    problem = Problem(lambda v, t, new, h: ops.where((t < v.L)[:, None], change(new), h))
    fetches = [problem.final, *problem.gradients()]
    assert len(loops(fetches, problem.fed)) == 4
    check(fetches, problem.fed)


# --- loops in loops, and cells as they come -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["M[t][:, None]", "t <= L - 1", "where(t >= L, old, new)", "take(M, t)"])
@pytest.mark.parametrize("more", [0, 2])
def test_loops_in_loops(name: str, more: int) -> None:
    parts, steps = 3, 5
    ends = np.stack([np.minimum(np.roll(lengths_of("various"), k), steps) for k in range(parts)])
    live = np.arange(steps)[None, :, None] < ends[:, None]
    values = [draw(parts, steps + more, ROWS, UNITS), draw(UNITS, UNITS), ends, live]
    x, w, lengths, masks = (ab.placeholder(value.shape, value.dtype) for value in values)

    def outer(k: Any, h: Any) -> Any:
        names, elements = Names(L=lengths[k], M=masks[k]), x[k] * (1.0 + ops.mean(h))

        def inner(t: Any, h: Any) -> Any:
            return t + 1, SPELLINGS[name](names, t, ops.tanh(ops.matmul(h, w) + elements[t]), h)

        return k + 1, ops.sin(ab.while_loop(lambda t, h: t < steps, inner, (0, h))[1])

    final = ab.while_loop(lambda k, h: k < parts, outer, (0, ops.ones((ROWS, UNITS))))[1]
    fetches = [final, *[ops.convert_to_tensor(g) for g in ab.gradients(ops.sum(final**2), [x, w])]]
    feeds = dict(zip((x, w, lengths, masks), values, strict=True))
    with recording() as log, without("unroll"):
        prepare(ab.get_default_graph(), fetches, list(feeds))
    assert [note.text[:10] for note in log.of("ragged_batches")[0]] == ["is 2 loops"]
    check(fetches, feeds)


_PIECES: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, h, w: ops.tanh(x + h),
    lambda x, h, w: ops.matmul(h, w) * 0.3,
    lambda x, h, w: ops.where(x > 0, h, x * 0.5),
    lambda x, h, w: ops.reshape(ops.reshape(x, (-1, 1, UNITS)), (ROWS, UNITS)) * h,
    lambda x, h, w: h - ops.broadcast_to(ops.max(x, axis=1, keepdims=True), h.shape),
    lambda x, h, w: ops.concatenate([x[:, 2:], h[:, :2]], axis=1),
    lambda x, h, w: ops.softmax(x + 0.1 * h)[:, None][:, 0],
]


@pytest.mark.parametrize("seed", range(6))
def test_random_cells_of_two_states(seed: int) -> None:
    """States by masks that are spelled at random, and read as elements of arrays or tensors, forward and backward."""
    generator = np.random.default_rng(seed)
    names = list(SPELLINGS)
    picks = [SPELLINGS[names[k]] for k in generator.integers(0, len(names), 2)]
    pieces = [_PIECES[k] for k in generator.integers(0, len(_PIECES), 4)]
    backward, by_array, zero = generator.random(3) < 0.5
    start, step = (STEPS - 1, -1) if backward else (0, 1)
    problem = Problem(SPELLINGS["t < column"], ["various", "one", "none"][seed % 3])
    names_, x, w = problem.names, problem.sources[0], problem.sources[2]

    def body(t: Any, h: Any, g: Any, k: Any, outputs: Any) -> Any:
        values = [ops.matmul(names_.X.read(t) if by_array else x[t], problem.sources[1]), h, g]
        for piece in pieces:
            values.append(piece(values[-1], values[-2], w))
        kept = picks[0](names_, t, ops.tanh(values[-1] + 0.1 * values[0] + ops.matmul(h, w)), h)
        other = picks[1](names_, t, ops.sin(values[-2]), g)
        shown = ops.where(t < names_.column, kept, 0.0) if zero else kept
        return t + step, kept, other, k + 1, outputs.write(k, shown)

    outputs = ab.TensorArray("float32", size=STEPS, element_shape=(ROWS, UNITS))
    initial = (start, problem.sources[3], ops.ones((ROWS, UNITS)) * 0.2, 0, outputs)
    _, h, g, _, outputs = ab.while_loop(lambda *values: values[3] < STEPS, body, initial)
    loss = ops.sum(ops.sin(h)) + ops.sum(g**2) + ops.sum(outputs.stack() ** 2)
    gradients = [ops.convert_to_tensor(gradient) for gradient in ab.gradients(loss, problem.sources)]
    fetches = [h, g, *gradients]
    check(fetches, problem.fed)
    if not zero:
        assert len(loops(fetches, problem.fed)) == 4
    found = Program(ab.get_default_graph(), fetches, list(problem.fed))(*problem.fed.values())
    expected = Interpreter(True).run(ab.get_default_graph(), fetches, problem.fed)
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, 1e-3, 1e-3)


# --- what is left alone ---------------------------------------------------------------------------------------------

_KEPT: dict[str, tuple[Spelled, str]] = {
    "made by steps": (
        lambda v, t, new, h: ops.where(ops.sum(h, axis=1, keepdims=True) > 0, new, h),
        "which rows are live ('greater') depends on loop variable 'h', which each step makes",
    ),
    "product": (
        lambda v, t, new, h: ops.where(ops.matmul(v.X.read(t), v.kernel)[:, :1] > 0, new, h),
        "which rows are live ('greater') depends on the product 'matmul",
    ),
    "random": (
        lambda v, t, new, h: ops.where(ab.random.uniform((ROWS, 1), seed=ab.random.SeedGenerator(1)) > 0.5, new, h),
        "which does more than compute",
    ),
    "elements": (lambda v, t, new, h: ops.where(new > 0, new, h), "'greater' chooses more than rows"),
    "same": (
        lambda v, t, new, h: ops.where(v.column > 3, new, h),
        "'greater', by which rows are kept, is the same in each step",
    ),
    "captured": (
        lambda v, t, new, h: ops.where(v.columns, new, h),
        "'columns', by which rows are kept, is the same in each step",
    ),
    "order": (
        lambda v, t, new, h: ops.where(v.Mb.read(STEPS - 1 - t * t % 2), new, h),
        "reads the mask in no order that is known",
    ),
}
_ARITHMETIC: dict[str, Callable[[Any, Any, Any], Any]] = {
    "m*new + (1-m)*old": lambda m, new, h: m * new + (1 - m) * h,
    "(1-m)*old + new*m": lambda m, new, h: (1.0 - m) * h + new * m,
    "old + m*(new-old)": lambda m, new, h: h + m * (new - h),
    "new*m + old - old*m": lambda m, new, h: new * m + h - h * m,
}


@pytest.mark.parametrize("name", _KEPT)
def test_why_a_loop_computes_all_rows(name: str) -> None:
    spelled, reason = _KEPT[name]
    problem = Problem(spelled)
    fetches = [problem.final, *problem.gradients()]
    assert reason in why_not(fetches, problem.fed)
    if name != "random":
        check(fetches, problem.fed)


@pytest.mark.parametrize("name", _ARITHMETIC)
@pytest.mark.parametrize("mask", ["(t < L)[:, None]", "not t >= L", "M[t][:, None]"])
def test_arithmetic_is_no_choice(name: str, mask: str) -> None:
    """Values that are not finite spread into rows that have ended: these are computed, and the reason is logged."""

    def spelled(v: Any, t: Any, new: Any, h: Any) -> Any:
        return _ARITHMETIC[name](ops.cast(_COLUMN[mask](v, t, h), "float32"), new, h)

    problem = Problem(spelled)
    told = why_not([problem.final, *problem.gradients()], problem.fed)
    assert "loop variable 'h' is kept by multiplying with" in told
    assert "Write where(" in told
    x = problem.sources[0]
    feeds = {**problem.fed, x: np.where(problem.live[:, :, None], problem.fed[x], np.float32(np.nan))}
    found = Program(ab.get_default_graph(), [problem.final], list(feeds))(*feeds.values())
    expected = Interpreter(True).run(ab.get_default_graph(), [problem.final], feeds)
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(expected[0]))


def test_other_arithmetic_with_masks_is_not_told_of() -> None:
    def spelled(v: Any, t: Any, new: Any, h: Any) -> Any:
        m = ops.cast((t < v.L)[:, None], "float32")
        return m * new + 0.5 * h

    problem = Problem(spelled)
    assert why_not([problem.final], problem.fed) == ""


def test_rows_of_an_unknown_number() -> None:
    lengths, x = ab.placeholder((None,), "int32"), ab.placeholder((None, UNITS), "float32")
    weight = ops.convert_to_tensor(draw(UNITS, UNITS))

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.where((t < lengths)[:, None], ops.matmul(h, weight), h)

    final = ab.while_loop(lambda t, h: t < STEPS, body, (0, x))[1]
    assert "the shape of 'get_item', by which rows are kept, is not known" in why_not([final], [lengths, x])
