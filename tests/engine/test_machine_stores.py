"""TensorStores on the machine: reads wait for their keys alone, and find what they would find in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from shared.machines import as_asked, assert_nothing_left, at_random, graph_on, idle_step, of_kind, run
from shared.placed_steps import CPUS

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.report import waiting_report
from anabranch.engine.machine.stores import WAITING, Table
from anabranch.engine.ops.containers.store_value import StoreValue
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import as_fetched

graph = graph_on(cpu=4)


def on(device: str, function: Callable[[], Any]) -> Any:
    with ab.device(device):
        return function()


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol], **options: Any) -> MachineProgram:
    options.setdefault("assign", as_asked())
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, **options)


def given(feeds: dict[Symbol, Any]) -> dict[Symbol, Any]:
    return {tensor: np.asarray(value, tensor.dtype)[()] for tensor, value in feeds.items()}


def check(fetches: Sequence[Any], runs: Sequence[dict[Symbol, Any]], ways: int = 8) -> None:
    """The interpreter's bits, wherever things run and in whatever order."""
    flows = [getattr(fetch, "flow", fetch) for fetch in fetches]
    for way in range(ways):
        program = machine(
            flows,
            list(runs[0]),
            assign=at_random(way, CPUS[: 2 + way % 3]) if way else as_asked(),
            seed=way if way % 3 else None,
            clusters=bool(way % 2),
            parallel_iterations=(32, 1, 2, 10)[way % 4],
        )
        if not way:
            assert of_kind(program.machine, "store_pass")
        for feeds in map(given, runs):
            expected = Interpreter().run(ab.get_default_graph(), flows, feeds)
            found = run(program, list(feeds.values()))
            np.testing.assert_equal([as_fetched(v) for v in found], [as_fetched(v) for v in expected])
            assert_nothing_left(idle_step(program))
            assert not idle_step(program).stores.waiting()


# --- the meaning ----------------------------------------------------------------------------------------------------


def tree(left: Tensor, right: Tensor, leaves: Tensor) -> Any:
    """The product of the leaves of a tree, whose nodes come in an order in which children are before their parents."""

    def body(node: Tensor, store: Any) -> Any:
        def inner() -> Tensor:
            return on("cpu:1", lambda: store.read(left[node]) * store.read(right[node]))

        return node + 1, store.write(node, ab.cond(left[node] < 0, lambda: leaves[node], inner))

    count = ops.shape(left)[0]
    return ab.while_loop(lambda node, _: node < count, body, (0, ab.TensorStore("float32", ())))[1]


def tree_feeds() -> list[Symbol]:
    return [
        ab.placeholder((None,), dtype, name)
        for dtype, name in (("int32", "left"), ("int32", "right"), ("float32", "leaves"))
    ]


TREES = [
    ([-1, -1, 0, -1, 2], [-1, -1, 1, -1, 3], [2, 3, 0, 5, 0]),
    ([-1], [-1], [7]),
    ([-1, -1, 0, 2, 3, 4, 5], [-1, -1, 1, 2, 2, 4, 5], [2, 1.5, 0, 0, 0, 0, 0]),
]


def test_trees_of_all_shapes_with_first_and_second_derivatives():
    feeds = tree_feeds()
    values = tree(*feeds)
    root = values.read(ops.shape(feeds[0])[0] - 1)
    (slope,) = ab.gradients(root, feeds[2:])
    (curve,) = ab.gradients(ops.sum(slope * slope), feeds[2:])
    runs = [dict(zip(feeds, case, strict=True)) for case in TREES]
    check([root, values, values.size(), slope, curve], runs)


def test_what_is_asked_of_a_store_besides_reads():
    n = ab.placeholder((), "int32", "n")

    def body(i: Tensor, store: Any, found: Tensor) -> Any:
        store = store.write(i * 2, on("cpu:1", lambda: ops.cast(i, "float32") * 0.5))
        some = store.gather(ops.stack([i * 2, i * 0]))
        has = ops.cast(store.contains(i), "float32") + ops.cast(store.contains(i * 2), "float32")
        return i + 1, store, found + ops.sum(some) + has + ops.cast(store.size(), "float32")

    _, store, found = ab.while_loop(lambda i, *_: i < n, body, (0, ab.TensorStore("float32", ()), 0.0))
    check([found, store, store.size()], [{n: count} for count in (0, 1, 7)])


def test_a_store_that_is_written_twice_from_the_same_value():
    n = ab.placeholder((), "int32", "n")

    def body(i: Tensor, store: Any, total: Tensor) -> Any:
        value = on("cpu:1", lambda: ops.cast(i, "float32") + 0.25)
        aside, store = store.write(-1, value * 2.0), store.write(i, value)
        seen = ops.cast(store.contains(-1), "float32") + ops.cast(aside.contains(i), "float32")
        return i + 1, store, total + aside.read(-1) + store.read(i // 2) + seen

    _, store, total = ab.while_loop(lambda i, *_: i < n, body, (0, ab.TensorStore("float32", ()), 0.0))
    check([total, store], [{n: count} for count in (0, 1, 6)])


def test_stores_through_loops_in_loops_branches_and_elements_of_other_shapes():
    n = ab.placeholder((), "int32", "n")

    def inner(j: Tensor, i: Tensor, store: Any) -> Any:
        value = on("cpu:2", lambda: ops.zeros((j,)) + ops.cast(i, "float32"))
        return j + 1, i, store.write((i, j), value)

    def outer(i: Tensor, store: Any, total: Tensor) -> Any:
        _, _, full = ab.while_loop(lambda j, *_: j < i, inner, (0, i, store))
        store = ab.cond(i % 3 < 2, lambda: full, lambda: store.write((i, 0), [1.0]))
        last = ab.cond(store.contains((i, 1)), lambda: ops.sum(store.read((i, 1))), lambda: total * 0.5)
        return i + 1, store, on("cpu:1", lambda: total + last)

    start = ab.TensorStore("float32", (None,), key_shape=2)
    _, store, total = ab.while_loop(lambda i, *_: i < n, outer, (0, start, 0.0))
    check([total, store], [{n: count} for count in (0, 1, 2, 6)])


def test_keys_that_are_strings():
    n, names = ab.placeholder((), "int32", "n"), ab.placeholder((None,), "string", "names")

    def body(i: Tensor, store: Any) -> Any:
        earlier = ab.cond(i > 0, lambda: store.read(names[i - 1]), lambda: ab.constant(1.0))
        return i + 1, store.write(names[i], on("cpu:1", lambda: earlier * 2.0))

    _, store = ab.while_loop(lambda i, _: i < n, body, (0, ab.TensorStore("float32", (), key_dtype="string")))
    program = machine([store.flow], [n, names])
    (found,) = run(program, [np.int32(3), ops.convert_to_tensor(["a", "b", "c"]).eval()])
    assert as_fetched(found) == {"a": 2.0, "b": 4.0, "c": 8.0}


@pytest.mark.parametrize("seed", range(4))
def test_on_devices_with_memory_of_their_own(seed: int):
    ab.config.set_devices(cpu=2, sim={"count": 2, "seed": seed})
    feeds = tree_feeds()
    values = tree(*feeds)
    count = ops.shape(feeds[0])[0]
    some = values.gather(ops.stack([count - 1, count * 0]))
    root = values.read(count - 1)
    (slope,) = ab.gradients(root, feeds[2:])
    fetches = [root, values.flow, some, values.size(), values.contains(2), slope]
    places = ("cpu:0", "sim:0", "cpu:1", "sim:1")
    program = machine(fetches, feeds, assign=at_random(seed, places), seed=seed)
    for case in TREES:
        given_now = given(dict(zip(feeds, case, strict=True)))
        expected = Interpreter().run(ab.get_default_graph(), fetches, given_now)
        found = run(program, list(given_now.values()))
        np.testing.assert_equal([as_fetched(v) for v in found], [as_fetched(v) for v in expected])
        assert_nothing_left(idle_step(program))


# --- what is not legal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("window", [1, 32])
def test_a_key_that_only_a_later_iteration_writes_is_missing(seed: int | None, window: int):
    feeds = tree_feeds()
    values = tree(*feeds)
    program = machine([values.flow], feeds, seed=seed, parallel_iterations=window)
    case = ([-1, -1, 3, -1], [-1, -1, 1, -1], [2, 3, 0, 5])  # node 2 reads node 3
    with pytest.raises(
        LookupError, match=r"TensorStore key 3 is read, but no operation before wrote it \(it holds 2 keys\)"
    ) as caught:
        run(program, list(given(dict(zip(feeds, case, strict=True))).values()))
    assert "iteration 2 of 'while/while'" in "".join(caught.value.__notes__)
    good = dict(zip(feeds, TREES[0], strict=True))
    (found,) = run(program, list(given(good).values()))  # nothing is left of the step that failed
    assert as_fetched(found)[4] == 30.0


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_key_that_is_written_twice(seed: int | None):
    n = ab.placeholder((), "int32", "n")

    def body(i: Tensor, store: Any) -> Any:
        return i + 1, store.write(i % 3, on("cpu:1", lambda: ops.cast(i, "float32")))

    _, store = ab.while_loop(lambda i, _: i < n, body, (0, ab.TensorStore("float32", ()).write(9, 1.0)))
    program = machine([store.flow], [n], seed=seed)
    assert sorted(as_fetched(run(program, [np.int32(3)])[0])) == [0, 1, 2, 9]
    with pytest.raises(ValueError, match="TensorStore key 0 is written a second time; each key is written once"):
        run(program, [np.int32(4)])


def test_a_step_that_stalls_names_the_keys_that_it_waits_for():
    n = ab.placeholder((), "int32", "n")

    def body(i: Tensor, store: Any) -> Any:
        return i + 1, store.write(i, on("cpu:1", lambda: ops.cast(i, "float32")))

    _, store = ab.while_loop(lambda i, _: i < n, body, (0, ab.TensorStore("float32", ())))
    step = idle_step(machine([store.flow], [n]))
    node = of_kind(step.machine, "store_put")[0]
    passed = step.stores.passed_on(StoreValue.empty())
    item = (None, step.frames.begin(next(iter(step.plans.values()))))
    assert step.stores.read(node, passed, 5, item, 0) is WAITING
    step.started = 0.0
    assert f"cpu:0: store_put {node.name!r}: key 5" in waiting_report(step)


@pytest.mark.parametrize("seed", range(4))
def test_random_tables_give_the_same_values_and_errors(seed: int):
    """Each iteration reads two keys that the data give, and writes one; one may be missing, or written twice."""
    reads, keys, x = (ab.placeholder((None, *shape), "int32") for shape in ((2,), (), ()))

    def body(i: Tensor, store: Any) -> Any:
        def found(key: Tensor) -> Tensor:
            return ab.cond(key < 0, lambda: x[i], lambda: store.read(key))

        first, second = found(reads[i, 0]), on("cpu:1", lambda: found(reads[i, 1]))
        return i + 1, store.write(keys[i], first * 3 + second + x[i])

    _, store = ab.while_loop(lambda i, _: i < ops.shape(keys)[0], body, (0, ab.TensorStore("int32", ())))
    program = machine([store.flow], [reads, keys, x], assign=at_random(seed, CPUS), seed=seed, parallel_iterations=8)
    random = np.random.default_rng(seed)
    outcomes: set[str] = set()
    for _ in range(40):
        count = int(random.integers(2, 9))
        chosen, fault = random.permutation(count), random.choice(["none", "missing", "twice"])
        at = int(random.integers(1, count))
        if fault == "twice":
            chosen[at] = chosen[random.integers(at)]
        wanted = np.array([random.choice([-1, *chosen[:i]], 2) for i in range(count)])
        if fault == "missing":
            wanted[at, random.integers(2)] = random.choice([99, chosen[at]])
        values = [wanted.astype("int32"), chosen.astype("int32"), random.integers(0, 9, count, "int32")]
        feeds = dict(zip((reads, keys, x), values, strict=True))
        outcome = _outcome(partial(_interpreted, store, feeds))
        assert _outcome(partial(_first, program, values)) == outcome
        outcomes.add(outcome[0])
    assert outcomes == {"found", "LookupError", "ValueError"}


def _interpreted(store: Any, feeds: dict[Symbol, Any]) -> Any:
    return Interpreter().run(ab.get_default_graph(), [store.flow], feeds)[0]


def _first(program: MachineProgram, values: Sequence[Any]) -> Any:
    return run(program, values)[0]


def _outcome(compute: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "found", as_fetched(compute())
    except (LookupError, ValueError) as error:
        return type(error).__name__, str(error)


# --- what is narrowed -----------------------------------------------------------------------------------------------


def test_a_loop_of_one_device_stays_one_node():
    feeds = tree_feeds()
    values = tree(*feeds)
    program = machine([values.flow], feeds, assign=at_random(0, CPUS[:1]))
    assert not of_kind(program.machine, "store_pass", "store_read")


def test_iterations_overlap_on_simulated_devices_as_far_as_keys_allow():
    """Products of those before the last, on two devices in turn, take half as long as products of the last ones."""
    ab.config.set_devices(sim={"count": 2, "kernel_latency": 1e-3, "latency": 0.0, "bandwidth": 1e15})
    n = ab.placeholder((), "int32", "n")
    x = ab.placeholder((64, 64), "float32", "x")

    def seconds(together: bool) -> float:
        back = 1 if together else 2

        def body(i: Tensor, store: Any) -> Any:
            earlier = i - back

            def step_on(device: str) -> Any:
                return on(device, lambda: store.write(i, store.read(earlier) @ x))

            return i + 1, ab.cond(ops.equal(i % 2, 0), lambda: step_on("sim:0"), lambda: step_on("sim:1"))

        start = ab.TensorStore("float32", (64, 64)).write(-1, x).write(-2, x)
        _, store = ab.while_loop(lambda i, _: i < n, body, (0, start))
        last = store.read(n - 1)

        def assign(operations: Sequence[Any], fed: Sequence[Tensor]) -> dict[Any, str]:
            everything = all_operations([*[symbol_of(tensor).operation for tensor in fed], *operations])
            return {
                operation: f"sim:{operation.device[-1]}" if operation.device else "cpu:0" for operation in everything
            }

        program = machine([last], [n, x], assign=assign)
        value = np.eye(64, dtype="float32") * 0.5
        (found,) = run(program, [np.int32(10), value])
        np.testing.assert_allclose(np.diag(found), 0.5 ** (11 if together else 6))
        return idle_step(program).engines["sim:0"].now()  # type: ignore[return-value]

    assert seconds(together=False) == pytest.approx(5e-3, rel=0.01)
    assert seconds(together=True) == pytest.approx(10e-3, rel=0.01)


def test_a_table_tells_what_is_known_so_far():
    table = Table(StoreValue.empty())
    table.latest = 3
    table.park(None, 2, 7, ("early", None))  # type: ignore[arg-type]
    table.park(None, 3, None, ("all", None))  # type: ignore[arg-type]
    assert table.put(3, 7, "third") == [("early", None)]  # type: ignore[arg-type]
    assert [parked.key for parked in table.parked()] == [None]
    assert table.put(1, 8, "first") == []  # type: ignore[arg-type]
    assert table.settled == 1
    assert table.put(2, 9, "second") == [("all", None)]  # type: ignore[arg-type]
    assert table.settled == 3
