"""Scheduled functions: what they compute on all roads, where they run on the machine, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.machines import Assigned, assert_nothing_left, idle_step, of_kind, run

import anabranch as ab
from anabranch import ops
from anabranch.engine.control_flow.scheduling import Scheduled
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.scheduling import SchedulingStatistics
from anabranch.engine.machine.shares import Job, spread
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.session.lowered import lowered

SIMS = {"count": 4, "flops": 1e7, "bandwidth": 1e9, "latency": 1e-7, "kernel_latency": 1e-7}


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph
    ab.config.set_devices()


def weights(*shape: int, seed: int = 0) -> ab.Variable:
    return ab.Variable(np.random.default_rng(seed).normal(size=shape).astype("float32"), name=f"w{seed}")


def rows(count: int, units: int = 3) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, units)).astype("float32")


def on_host(operation: Any) -> str:
    return "cpu:0"


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    options.setdefault("assign", Assigned(on_host))
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, **options)


def told(program: MachineProgram) -> SchedulingStatistics:
    return idle_step(program).scheduler.statistics


def assert_only_state_left(program: MachineProgram) -> None:
    """Nothing waits, and nothing is on devices but the values of variables, which stay for the next step."""
    idle_step(program).scheduler.abort()
    assert_nothing_left(idle_step(program))


def memory(program: MachineProgram) -> dict[str, int]:
    """The most bytes that were in use on each simulated device."""
    engines = {name: engine for name, engine in idle_step(program).engines.items() if name != "cpu:0"}
    return {name: engine.device.memory.peak for name, engine in engines.items()}  # type: ignore[attr-defined]


def seconds(program: MachineProgram, *values: Any) -> float:
    """Simulated time of a run."""
    program(*values)
    engine = next(engine for name, engine in idle_step(program).engines.items() if name != "cpu:0")
    before = engine.now()
    program(*values)
    return engine.now() - before


# --- what it computes -----------------------------------------------------------------------------------------------


def slopes(y: Tensor, sources: Sequence[Any]) -> list[Any]:
    """The value with first and second derivatives."""
    first = ab.gradients(ops.sum(y * y * y), list(sources), unconnected_gradients="zero")
    second = ab.gradients(sum([ops.sum(d * d) for d in first], ab.constant(0.0)), list(sources))
    return [y, *map(ab.convert_to_tensor, first), *map(ab.convert_to_tensor, second)]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("devices", [{"sim": SIMS}, {"cpu": 3}, {"cpu": 1}])
def test_all_roads_give_the_values_and_derivatives_of_the_function(split: bool, devices: dict[str, Any]):
    w, b, x = weights(3, 4), weights(4, seed=1), ab.placeholder((None, 3), "float32", "x")
    scale = ops.sum(x)  # from outside, and of all rows

    def function(given: Tensor, other: Tensor) -> Tensor:
        return ops.tanh(given @ w + b) * scale + other[:, :1]

    y = ab.dynamic_schedule(function, [x, x * 0.5], split=split)
    fetches, wanted = slopes(y, [w, b, x]), slopes(function(x, x * 0.5), [w, b, x])
    ab.config.set_devices(**devices)
    program = machine(fetches, [x])
    for count in (0, 1, 2, 7, 50):
        expected = Interpreter().run(ab.get_default_graph(), wanted, {x: rows(count)})
        for found in (
            Interpreter().run(ab.get_default_graph(), fetches, {x: rows(count)}),
            run(program, [rows(count)]),
        ):
            for value, right in zip(found, expected, strict=True):
                np.testing.assert_allclose(value, right, rtol=1e-3, atol=1e-4)
                assert value.dtype == right.dtype
        assert_only_state_left(program)


def test_it_agrees_with_finite_differences():
    w, x = ab.Variable(np.array([[0.5], [-1.5]]), dtype="float64"), ab.placeholder((None, 2), "float64", "x")
    y = ops.sum(ab.dynamic_schedule(lambda r: ops.sin(r @ w) * r, x))
    (slope,) = ab.gradients(y, [x])
    ab.config.set_devices(sim=SIMS)
    program = machine([y, slope], [x])
    value = np.random.default_rng(0).normal(size=(40, 2))
    found = run(program, [value])[1]
    assert told(program).split
    for at in [(0, 0), (17, 1), (39, 1)]:
        step = np.zeros_like(value)
        step[at] = 1e-6
        difference = (run(program, [value + step])[0] - run(program, [value - step])[0]) / 2e-6
        np.testing.assert_allclose(found[at], difference, rtol=1e-6, atol=1e-8)


def test_structures_and_results_that_are_inputs():
    x, y = ab.placeholder((None, 3), "float32", "x"), ab.placeholder((None,), "int32", "y")
    found = ab.dynamic_schedule(lambda a, b: {"same": a, "rest": (b, b + 1, a)}, [x, y])
    assert list(found) == ["same", "rest"]
    ab.config.set_devices(sim=SIMS)
    program = machine([found["same"], *found["rest"]], [x, y])
    given = [rows(9), np.arange(9, dtype="int32")]
    for value, wanted in zip(run(program, given), [given[0], given[1], given[1] + 1, given[0]], strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_a_function_with_a_loop_and_a_branch_and_its_gradient():
    w, x = weights(3, 3), ab.placeholder((None, 3), "float32", "x")

    def function(given: Tensor) -> Tensor:
        _, y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.tanh(y @ w)), (0, given))
        return ab.cond(ops.sum(w) > 0, lambda: y, lambda: -y)

    y = ab.dynamic_schedule(function, x)
    fetches, wanted = slopes(y, [w, x]), slopes(function(x), [w, x])
    ab.config.set_devices(sim=SIMS)
    program, alone = machine(fetches, [x]), machine([y], [x])
    for found in (run(program, [rows(20)]), Interpreter().run(ab.get_default_graph(), fetches, {x: rows(20)})):
        for value, right in zip(found, Interpreter().run(ab.get_default_graph(), wanted, {x: rows(20)}), strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-3, atol=1e-4)
    run(alone, [rows(20)])
    assert told(alone).parts > 1


def test_inside_loops_and_branches_with_variables_that_change_between_runs():
    w, x, n = weights(3, 3), ab.placeholder((None, 3), "float32", "x"), ab.placeholder((), "int32", "n")

    def body(i: Tensor, y: Tensor) -> Any:
        def once() -> Tensor:
            return ab.dynamic_schedule(lambda r: ops.tanh(r @ w), y)

        return i + 1, ab.cond(i % 2 < 1, once, lambda: y + 1.0)

    _, y = ab.while_loop(lambda i, _: i < n, body, (0, x))
    (slope,) = ab.gradients(ops.sum(y), [w])
    update = w.assign_sub(slope * 0.1)
    ab.config.set_devices(sim=SIMS)
    program = machine([y, update], [x, n])
    start = w.numpy()
    seen: list[list[np.ndarray]] = []
    for runs in (
        lambda: run(program, [rows(30), np.int32(5)]),
        lambda: ab.Session().run([y, update], {x: rows(30), n: 5}),
    ):
        w.write_value(start.copy())
        seen.append([np.asarray(value) for _ in range(3) for value in runs()])
        ab.config.set_devices()
    for value, right in zip(*seen, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-3, atol=1e-4)


def test_sessions_and_saved_graphs_schedule(tmp_path: Any):
    x = ab.placeholder((None, 3), "float32", "x")
    w = weights(3, 2)
    y = ab.dynamic_schedule(lambda r: r @ w, x, devices=["sim:1", "sim:2"], least_rows=5, name="there")
    ab.get_default_graph().save(tmp_path / "graph.npz")
    loaded = ab.load_graph(tmp_path / "graph.npz")
    op = next(operation.op for operation in loaded.operations if isinstance(operation.op, Scheduled))
    assert (op.devices, op.split, op.least_rows) == (("sim:1", "sim:2"), True, 5)
    ab.config.set_devices(sim=SIMS)
    np.testing.assert_allclose(ab.Session().run(y, {x: rows(8)}), rows(8) @ w.numpy(), rtol=1e-5)
    text = str(lowered(y))
    for line in (
        "there/schedule",
        "there/demultiplex",
        "there/on sim:1",
        "there/on sim:2",
        "there: float32[?,2] = join",
    ):
        assert line in text or line.split(":")[0] in text
    assert "on sim:0" not in text


# --- what is refused ------------------------------------------------------------------------------------------------


def _matrix() -> Tensor:
    return ab.placeholder((None, 3), "float32")


def _writes(given: Tensor) -> Tensor:
    return given + ab.Variable(1.0).assign_add(1.0)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: ab.dynamic_schedule(lambda r: r, ab.constant(1.0)),
            ValueError,
            "input 0 is a scalar, which has no rows",
        ),
        (lambda: ab.dynamic_schedule(lambda: 1.0, []), ValueError, "no inputs to split by rows"),
        (lambda: ab.dynamic_schedule(ops.sum, _matrix()), ValueError, "result 0 is a scalar; expected"),
        (
            lambda: ab.dynamic_schedule(lambda a, b: a, [ops.zeros((2, 3)), ops.zeros((4, 3))]),
            ValueError,
            "the inputs have 2 and 4 rows; expected the same number",
        ),
        (lambda: ab.dynamic_schedule(_writes, _matrix()), ValueError, "changes something, or takes random numbers"),
        (
            lambda: ab.dynamic_schedule(lambda r: ab.TensorStore("float32").write(1, r), _matrix()),
            TypeError,
            "expected tensors. Stack a TensorArray",
        ),
        (
            lambda: ab.dynamic_schedule(lambda r: r, ab.TensorStore("float32").flow),
            TypeError,
            "input 0 is .*; expected a tensor",
        ),
        (lambda: ab.dynamic_schedule(lambda r: r, _matrix(), devices=["gpu:x"]), ValueError, "gpu:x"),
    ],
)
def test_refused_when_it_is_built(build: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        build()


def test_refused_when_it_is_prepared_or_run():
    ab.config.set_devices(sim=2)
    x, y = ab.placeholder((None, 3), "float32", "x"), ab.placeholder((None, 3), "float32", "y")
    with pytest.raises(ValueError, match=r"asks for 'sim:7', but the devices are cpu:0, sim:0, sim:1. Declare more"):
        machine([ab.dynamic_schedule(lambda r: r, x, devices=["sim:7"])], [x])
    program = machine([ab.dynamic_schedule(lambda a, b: a + b, [x, y], name="both")], [x, y])
    with pytest.raises(ValueError, match="'both': the inputs have 2 and 3 rows; expected the same number of each"):
        run(program, [rows(2), rows(3)])
    fewer = machine([ab.dynamic_schedule(lambda a: a[:1], x, name="fewer")], [x])
    with pytest.raises(ValueError, match=r"'fewer': the function gave 1 rows for [0-9]+; expected a row for each"):
        run(fewer, [rows(9)])
    run(fewer, [rows(1)])  # nothing is left of the step that failed
    assert_only_state_left(fewer)


def test_an_error_inside_names_operation_and_line():
    ab.config.set_devices(sim=2)
    x, y = ab.placeholder((None, 3), "float32", "x"), ab.placeholder((None,), "int32", "y")
    program = machine([ab.dynamic_schedule(lambda a, b: ops.reshape(a, (-1, 2)), [x, y])], [x, y])
    with pytest.raises(ValueError, match="reshape") as caught:
        run(program, [rows(1), np.zeros(1, "int32")])
    notes = "".join(caught.value.__notes__)
    assert "(reshape) on sim:" in notes
    assert "test_scheduling.py" in notes


# --- where it runs --------------------------------------------------------------------------------------------------


def experts(count: int, devices: Callable[[int], Sequence[str]] = lambda k: ()) -> tuple[list[Symbol], Symbol, Any]:
    """Inputs, the result of a mixture of experts, and the experts' weights."""
    x, chosen = ab.placeholder((None, 16), "float32", "x"), ab.placeholder((None,), "int32", "chosen")
    made = [weights(16, 16, seed=k) for k in range(count)]
    groups = ops.dynamic_partition(x, chosen, count)
    places = ops.dynamic_partition(ops.arange(ops.shape(x)[0]), chosen, count)
    done = [
        ab.dynamic_schedule(lambda r, w=w: ops.tanh(r @ w), group, devices=devices(k))
        for k, (group, w) in enumerate(zip(groups, made, strict=True))
    ]
    return [x, chosen], symbol_of(ops.dynamic_stitch(places, done)), made


def skewed(count: int, tokens: int) -> np.ndarray:
    shares = 1.0 / np.arange(1, count + 1) ** 1.2
    return np.repeat(np.arange(count), np.diff(np.round(np.cumsum([0.0, *shares / shares.sum()]) * tokens).astype(int)))


def test_skewed_load_is_spread_and_even_load_costs_nothing():
    ab.config.set_devices(sim=SIMS)
    feeds, fixed, _ = experts(8, lambda k: [f"sim:{k % 4}"])
    others, free, _ = experts(8)
    static, dynamic = machine([fixed], feeds), machine([free], others)
    value = rows(400, 16)
    for chosen, least, most in ((skewed(8, 400), 1.5, 4.0), (np.repeat(np.arange(8), 50), 0.95, 1.05)):
        given = (value, chosen.astype("int32"))
        assert least <= seconds(static, *given) / seconds(dynamic, *given) <= most
        for one, other in zip(run(static, given), run(dynamic, given), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert told(static).split == 0
    assert told(dynamic).split > 0


def test_experts_without_tokens_take_no_time_and_no_memory():
    ab.config.set_devices(sim=SIMS)
    feeds, y, made = experts(32)
    (slope,) = ab.gradients(ops.sum(y), made[:1])
    program = machine([y, slope], feeds)
    found = run(program, [rows(4, 16), np.full(4, 5, "int32")])
    statistics, one = told(program), made[0].nbytes
    np.testing.assert_array_equal(found[1], np.zeros((16, 16), "float32"))
    assert statistics.empty == 31 + 1
    assert sum(statistics.rows.values()) == 4
    assert statistics.state_bytes == one * statistics.parts
    assert sum(memory(program).values()) < 3 * one * statistics.parts


def test_state_stays_where_it_was_until_it_changes_or_moves_away():
    ab.config.set_devices(sim={**SIMS, "count": 1})
    w, x = weights(3, 4), ab.placeholder((None, 3), "float32", "x")
    program = machine([ab.dynamic_schedule(lambda r: r @ w, x)], [x])

    def bytes_moved(count: int) -> int:
        before = told(program).state_bytes
        (found,) = run(program, [rows(count)])
        np.testing.assert_allclose(found, rows(count) @ w.numpy(), rtol=1e-5)
        return told(program).state_bytes - before

    assert [bytes_moved(5), bytes_moved(5)] == [w.nbytes, 0]
    w.write_value(w.numpy() * 2.0)
    assert [bytes_moved(5), bytes_moved(7)] == [w.nbytes, 0]
    w.stored_value()[:] += 1.0  # as programs do that update in place
    assert [bytes_moved(5), bytes_moved(5)] == [w.nbytes, 0]
    assert bytes_moved(0) == 0
    in_use = idle_step(program).engines["sim:0"].device.memory  # type: ignore[attr-defined]
    assert bytes_moved(0) == 0
    assert in_use.in_use == 0  # a step without it: it has left
    assert bytes_moved(5) == w.nbytes


def test_state_that_changes_the_sign_of_zeros_has_changed():
    ab.config.set_devices(sim={**SIMS, "count": 1})
    w, x = ab.Variable(np.zeros(4, "float32")), ab.placeholder((), "float32", "x")
    program = machine([ab.dynamic_schedule(lambda one: one / w, x, split=False)], [x])
    for zero in (0.0, -0.0):
        w.write_value(np.full(4, zero, "float32"))
        (found,) = run(program, [np.float32(1.0)])
        np.testing.assert_array_equal(found, np.full(4, math.copysign(math.inf, zero)))


def test_state_makes_room_where_memory_runs_short():
    one = 64 * 64 * 4
    ab.config.set_devices(sim={**SIMS, "count": 1, "memory_limit": 3 * one})
    x, made = ab.placeholder((None, 64), "float32", "x"), [weights(64, 64, seed=k) for k in range(6)]
    done = [ab.dynamic_schedule(lambda r, w=w: r @ w, x) for w in made]
    program = machine(done, [x])
    for _ in range(2):
        for value, w in zip(run(program, [rows(4, 64)]), made, strict=True):
            np.testing.assert_allclose(value, rows(4, 64) @ w.numpy(), rtol=1e-3, atol=1e-4)
    assert memory(program)["sim:0"] <= 3 * one
    assert told(program).state_bytes > 6 * one


def test_what_is_asked_for_is_kept():
    ab.config.set_devices(sim=SIMS)
    feeds, y, _ = experts(4, lambda k: ["sim:1", "sim:3"])
    program = machine([y], feeds)
    run(program, [rows(100, 16), np.repeat(np.arange(4), 25).astype("int32")])
    assert set(told(program).rows) == {"sim:1", "sim:3"}
    few = machine([ab.dynamic_schedule(lambda r: r * 2.0, feeds[0], least_rows=60)], feeds[:1])
    run(few, [rows(100, 16)])
    assert told(few).parts == 1


@pytest.mark.parametrize("seed", range(4))
def test_any_order_gives_the_same(seed: int):
    ab.config.set_devices(cpu=2, sim={**SIMS, "seed": seed})
    feeds, y, made = experts(6)
    slope = ab.gradients(ops.sum(y * y), made)
    fetches = [y, *[symbol_of(ab.convert_to_tensor(part)) for part in slope]]
    given = [rows(60, 16), skewed(6, 60).astype("int32")]
    expected = Interpreter().run(ab.get_default_graph(), fetches, dict(zip(feeds, given, strict=True)))
    program = machine(fetches, feeds, seed=seed)
    for value, right in zip(run(program, given), expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-4)


def test_where_there_is_one_cpu_nothing_is_scheduled():
    x = ab.placeholder((None, 3), "float32", "x")
    y = ab.dynamic_schedule(lambda r: r * 2.0, x)
    assert not of_kind(machine([y], [x]).machine, "schedule")
    np.testing.assert_array_equal(ab.Session().run(y, {x: rows(2)}), rows(2) * 2.0)


# --- how it is decided ----------------------------------------------------------------------------------------------


class Anything:
    """The request of these tests: any of some devices."""

    def __init__(self, targets: Sequence[str]) -> None:
        self.site = self
        self.targets = list(targets)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.booleans(), st.integers(1, 20)), min_size=1, max_size=8),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.floats(0, 20),
)
def test_rows_are_all_given_out_once_and_nothing_ends_later_than_all_in_one_place(
    wanted: list[tuple[int, bool, int]], loads: list[float], before: float
):
    names = [f"d{number}" for number in range(len(loads))]
    jobs = [Job(Anything(names), *job) for job in wanted]
    ends = dict(zip(names, loads, strict=True))
    spread(jobs, ends, lambda request, name: 0.5, lambda request, name: before)
    taken = dict(zip(names, loads, strict=True))
    for job in jobs:
        starts = [share.start for share in job.shares]
        counts = [share.rows for share in job.shares]
        assert starts == [sum(counts[:k]) for k in range(len(counts))]
        assert sum(counts) == job.rows
        assert len(counts) == 1 or (job.is_split and min(counts) >= job.least_rows)
        for share in job.shares:
            taken[share.device] += before + share.rows * 0.5
    assert taken == pytest.approx(ends)
    alone = min(loads) + sum([before + rows * 0.5 for rows, _, _ in wanted])
    assert max(ends.values()) <= max(alone, *loads) + 1e-6
