"""Random structured programs with their gradients over two to four processes: the bits of the interpreter in one."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs.generator import programs
from programs.syntax import Program
from shared.machines import MachineCase, Observed, assert_same_bits, assert_same_but_for_order
from shared.tasks import PS, WORKER, Running, tasks

import anabranch as ab
from anabranch.distribute.transport.wire import Kind
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Operation
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.place.constraints import PlacementError
from anabranch.engine.place.kernels import is_split

# By which plane each task sends. Shared memory takes all that is an array, however small.
PLANES = {WORKER: "shared_memory", PS: "unix", "/job:ps/task:1": "tcp", "/job:ps/task:2": "grpc"}
OTHERS = [task for task in PLANES if task != WORKER]
PHASES = [Phase.explicit, Phase.generate]  # what fails is large, and takes minutes to become small
SMALL = programs(depths=(1,), more=(0,))
SMALL_DEEP = programs(depths=(2,), more=(0,))
LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_numbers = itertools.count()

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture(scope="module")
def cluster() -> Generator[Running]:
    """Four processes, kept for all programs; none is taken for dead on a machine that is busy with other things.

    All lower a step alike, or their digests differ: so it is enough that the worker verifies what passes do.
    """
    common = ("--inline-bytes", "0", "--heartbeat-interval", "60", "--heartbeat-timeout", "600")
    planes = {task: ("--plane", plane) for task, plane in PLANES.items()}
    with tasks(ps=3, all_with=common, by_task=planes, environment_of_ps={"ANABRANCH_VERIFY": "0"}) as made:
        yield made


def spread(case: MachineCase, places: int, parallel_iterations: int, devices: Sequence[str]) -> None:
    """Ask for a task for each operation, by chance; state has names of its own, as tasks keep it.

    Recursive functions, which are not spread, are on one task, with all variables. Only a part of what they hold asks
    for it.
    """
    chosen = random.Random(places)
    number = next(_numbers)
    operations = list(all_operations(list(case.built.graph.operations)))
    whole = {id(region) for operation in operations if _is_whole(operation) for region in operation.op.regions}
    home = [chosen.choice(devices)] if whole else devices
    where: dict[int, str] = {}
    effects = [effect for operation in operations for effect in operation.effects]
    held = dict.fromkeys(effect.resource for effect in effects if isinstance(effect.resource, ab.Variable))
    # A function that is traced twice has made its variable twice, of which the program lists one.
    for position, variable in enumerate(dict.fromkeys([*case.built.variables.values(), *held])):
        variable.name = variable.path = f"{variable.name} of program {number}, {position}"
        variable.device = where[id(variable)] = chosen.choice(home)
    for operation in operations:
        if id(operation.graph) in whole:
            whole.update(map(id, operation.op.regions))
        if isinstance(operation.op, While):
            operation.op.parallel_iterations = parallel_iterations
        if id(operation.graph) in whole or _is_whole(operation):
            operation.device = _device_of(operation, where) or (home[0] if chosen.random() < 0.3 else "")
        elif not _follows(operation):
            operation.device = _device_of(operation, where) or chosen.choice(devices)


def _follows(operation: Operation) -> bool:
    """Test whether the place of an operation follows from that of what it holds, or whose record it takes."""
    taken = (*operation.inputs, *operation.outputs)
    is_taker = operation.type in ("history", "saved", "parameter") or any("record" in str(each.spec) for each in taken)
    return is_split(operation.op) or is_taker


def _is_whole(operation: Operation) -> bool:
    return bool(operation.op.regions) and not is_split(operation.op)


def _device_of(operation: Operation, where: dict[int, str]) -> str | None:
    return next((where[id(each.resource)] for each in operation.effects if id(each.resource) in where), None)


def check(case: MachineCase, program: Program, target: str) -> tuple[int, bool]:
    """Run a program on the tasks; gives how many of them took part, and whether the bits are those of one process.

    Where they are not, sums have to be the only reason: what crosses to another task is a copy in one piece, and NumPy
    adds in an order that depends on how an array is laid out in memory.
    """
    expected = case.interpreted()
    case.built.reset(program)
    session: Any = ab.Session(case.built.graph, target=target)
    remote = session._schedule.remote
    remote.exact = True
    try:
        values, _, state = session.run([case.fetches, case.built.effects, case.built.variables], case.feeds)
        is_same = _has_same_bits(case, (values, state), expected)
        left = remote.ask(Kind.STATUS, {}).document()["worker"]
        assert (left["running"], left["early"]) == (0, 0)
        return remote.tasks_of_latest, is_same
    finally:
        session.close()


def _has_same_bits(case: MachineCase, found: Observed, expected: Observed) -> bool:
    names = [str(tensor) for tensor in case.fetches]
    pairs = list(zip(names, found[0], expected[0], strict=True))
    pairs += [(name, found[1][name], wanted) for name, wanted in expected[1].items()]
    is_same = True
    for name, value, wanted in ((name, np.asarray(value), np.asarray(wanted)) for name, value, wanted in pairs):
        try:
            assert_same_bits(value, wanted, name)
        except AssertionError:
            assert_same_but_for_order(value, wanted, name)
            is_same = False
    return is_same


def check_chunk(
    chunk: int,
    count: int,
    cluster: Running,
    drawn: st.SearchStrategy[Program],
    orders: Sequence[int] = (1, 1, 2),
    sizes: Sequence[int] = (1, 2, 3),
) -> Counter[str]:
    """Check some programs, and count what they were.

    Args:
        chunk: the seed.
        count: how many.
        cluster: the tasks.
        drawn: draws programs.
        orders: of the derivatives, to choose from.
        sizes: how many tasks a program is spread over besides the worker, to choose from.
    """
    found: Counter[str] = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, phases=PHASES, suppress_health_check=LARGE)
    @given(
        drawn,
        st.integers(0, 10**6),
        st.sampled_from(sizes).flatmap(lambda size: st.permutations(OTHERS).map(lambda order: order[:size])),
        st.sampled_from([1, 2, 10, 32]),
        st.sampled_from(orders),
    )
    def run(program: Program, places: int, others: list[str], parallel_iterations: int, order: int) -> None:
        case = MachineCase(program, order)
        spread(case, places, parallel_iterations, [WORKER, *others])
        try:
            took_part, is_same = check(case, program, cluster[WORKER].target)
        except PlacementError as error:
            found["refused" if "must be on the same device" in str(error) else f"refused: {error}"] += 1
            return
        found["programs"] += 1
        found[f"over {took_part} tasks"] += 1
        found["with the same bits"] += is_same

    run()
    return found


def values_crossed(cluster: Running) -> None:
    """Check that values took the planes that were asked for, and that nothing of them is left."""
    sent: Counter[str] = Counter()
    for task in cluster.values():
        for connection in ab.distribute.status(task.target).connections:
            if connection.task.startswith("/job:") and connection.connected_by == "this task":
                assert connection.plane == PLANES[task.name]
                assert connection.queued == 0
                assert connection.plane == "shared_memory" or not connection.bytes_shared
                sent[connection.plane] += connection.bytes_shared or connection.frames_sent
    assert all(sent[plane] for plane in PLANES.values())


@pytest.mark.parametrize("chunk", range(4))
def test_random_programs_over_processes(chunk: int, cluster: Running):
    """Small ones, with their first derivatives, most over two tasks; one of four chunks has loops within loops."""
    count = 10
    found = check_chunk(300 + chunk, count, cluster, SMALL_DEEP if chunk == 3 else SMALL, [1], (1, 1, 1, 2, 3))
    assert found["programs"] >= 0.9 * count
    assert found["with the same bits"] >= found["programs"] - 1
    assert sum(found[f"over {number} tasks"] for number in (2, 3, 4)) >= 0.7 * count
    assert not [name for name in found if name.startswith("refused: ")]
    values_crossed(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_many_random_programs_over_processes(chunk: int, cluster: Running):
    found = check_chunk(chunk, 100, cluster, programs())
    assert found["programs"] >= 95
    assert found["with the same bits"] >= 0.9 * found["programs"]
    assert sum(found[f"over {count} tasks"] for count in (2, 3, 4)) >= 25
    assert found[f"over {len(cluster)} tasks"] >= 3
    values_crossed(cluster)
