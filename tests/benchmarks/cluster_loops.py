"""Loops over tasks: run by real processes, and simulated for more tasks with the costs that those have shown.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 6, figures 11, 12, 15.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from cluster_functions import waited
from shared.tasks import TaskProcess, tasks

import anabranch as ab

KERNEL = 0.005  # seconds that a layer of the chain waits, in place of a kernel
LAYERS = 8
WINDOWS = (1, 2, 4, 8, 32)
GROUP = 8  # tasks whose values one of them joins, at a barrier
LSTM_STEP, LSTM_LENGTH = 5.75e-3, 200  # seconds of a layer's kernels for a time step, forward and backward
_TICKS = os.sysconf("SC_CLK_TCK")
_SIDE = 8


class Costs(NamedTuple):
    """The seconds that parts of an iteration take.

    Attributes:
        turn: of a task's processor for its own iteration.
        message: of a task's processor for each value that it sends or receives.
        latency: from a message's send to its receipt.
        condition: of a task's processor for the condition that it sends to another one, ahead, with those of others.
    """

    turn: float
    message: float
    latency: float
    condition: float


class Measured(NamedTuple):
    """Hold what a real loop has shown: iterations a second, and seconds of each task's processor for an iteration."""

    rate: float
    processor: list[float]


def of_worker(number: int) -> Any:
    return ab.device(f"/job:worker/task:{number}")


# --- real -----------------------------------------------------------------------------------------------------------


def trivial(count: int, barrier: bool, window: int, group: int = GROUP) -> tuple[ab.Graph, Any, list[Any]]:
    """x + 1 on each task; with a barrier what is added comes from task 0, which has had all x for it (figure 11).

    More tasks than `group` are a tree of two levels: the first task of each group joins the values of the group, and
    hands on what comes from task 0.
    """
    one = np.ones((2, 2), "float32")
    graph = ab.Graph()
    with graph.as_default():
        n = ab.placeholder((), "int32", "n")

        def free(i: Any, *xs: Any) -> tuple[Any, ...]:
            return (i + 1, *[on(k, lambda x=x: x + 1.0) for k, x in enumerate(xs)])

        def with_barrier(i: Any, agreed: Any, *xs: Any) -> tuple[Any, ...]:
            firsts = dict.fromkeys(range(0, count, group), agreed)
            for first in list(firsts)[1:]:
                firsts[first] = on(first, lambda: ab.ops.minimum(agreed, 1.0))  # which it is: so its task has it
            made = [on(k, lambda k=k, x=x: x + firsts[k - k % group]) for k, x in enumerate(xs)]
            sums = [on(first, lambda f=first: ab.ops.sum(ab.ops.stack(made[f : f + group]), 0)) for first in firsts]
            return (i + 1, on(0, lambda: ab.ops.sum(ab.ops.stack(sums), 0) * 0.0 + 1.0), *made)

        with of_worker(0):
            start = (0, *[ab.constant(one)] * (count + barrier))
            body = with_barrier if barrier else free
            found = ab.while_loop(lambda i, *_: i < n, body, start, parallel_iterations=window)
        return graph, n, [found[0], *found[-count:]]


def on(number: int, build: Callable[[], Any]) -> Any:
    with of_worker(number):
        return build()


def rate_of(running: dict[str, TaskProcess], count: int, barrier: bool, window: int = 32, rounds: int = 5) -> Measured:
    """Measure the trivial loop on the first tasks of a cluster; its results are checked in each run."""
    graph, n, fetched = trivial(count, barrier, window)
    processes = [running[f"/job:worker/task:{number}"] for number in range(count)]
    iterations = (2_000 if barrier else 20_000) // count
    with ab.Session(graph, target=processes[0].target) as session:

        def step() -> None:
            done, *found = session.run(fetched, {n: iterations})
            assert done == iterations
            assert all((x == iterations + 1).all() for x in found), "a task has added something else"

        return measured(step, processes, iterations, rounds)


def measured(step: Callable[[], None], processes: Sequence[TaskProcess], iterations: int, rounds: int) -> Measured:
    step()
    before, times = [processor_seconds(each.pid) for each in processes], []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    spent = [processor_seconds(each.pid) - b for each, b in zip(processes, before, strict=True)]
    return Measured(iterations / statistics.median(times), [each / rounds / iterations for each in spent])


def processor_seconds(pid: int) -> float:
    """Return the seconds of processors that a process has had."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def chain(running: dict[str, TaskProcess], window: int, iterations: int = 60) -> float:
    """Iterations a second of layers on tasks, each of which multiplies its state by what the one before it made.

    A layer waits for the time of its kernel, as for an accelerator: eight real ones would share this machine's
    processors, whatever the loop does.
    """
    graph = ab.Graph()
    with graph.as_default():
        n = ab.placeholder((), "int32", "n")

        def layer(own: Any, given: Any) -> Any:
            product = own @ given
            return ab.ops.numpy_function(waited, [product, KERNEL], "float32", stateful=False, shape=(_SIDE, _SIDE))

        def body(i: Any, total: Any, *states: Any) -> tuple[Any, ...]:
            made: list[Any] = []
            for number, own in enumerate(states):
                given = made[-1] if made else own
                made.append(on(number, lambda own=own, given=given: layer(own, given)))
            return (i + 1, on(0, lambda: total + made[-1]), *made)

        with of_worker(0):
            start = [ab.constant(permutation(number)) for number in range(LAYERS)]
            total = ab.constant(np.zeros((_SIDE, _SIDE), "float32"))
            loop = ab.while_loop(lambda i, *_: i < n, body, (0, total, *start), parallel_iterations=window)
    expected = chain_by_numpy(iterations)
    with ab.Session(graph, target=running["/job:worker/task:0"].target) as session:

        def step() -> None:
            found = session.run(list(loop[1:]), {n: iterations})
            assert all(map(np.array_equal, found, expected)), "the chain has computed something else"

        return measured(step, [], iterations, 3).rate


def permutation(number: int) -> np.ndarray[Any, Any]:
    """A permutation, so that products of any number of them are exact."""
    return np.eye(_SIDE, dtype="float32")[np.random.default_rng(number).permutation(_SIDE)]


def chain_by_numpy(iterations: int) -> list[Any]:
    states = [permutation(number) for number in range(LAYERS)]
    total = np.zeros((_SIDE, _SIDE), "float32")
    for _ in range(iterations):
        given = states[0]
        for number, own in enumerate(states):
            given = states[number] = own @ given
        total = total + given
    return [total, *states]


def real() -> dict[tuple[str, int], Any]:
    """Measure figure 11 on 1, 2, 4 and 8 tasks, and figure 12 on 8, twice; gives the better of each two."""
    one, other = once(), once()
    return {key: _better(value, other[key]) for key, value in one.items()}


def _better(one: Any, other: Any) -> Any:
    if not isinstance(one, Measured):
        return max(one, other)
    return Measured(max(one.rate, other.rate), list(map(min, one.processor, other.processor)))


def once() -> dict[tuple[str, int], Any]:
    """Measure each once; see `real`."""
    found: dict[tuple[str, int], Any] = {}
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    with tasks(workers=LAYERS, all_with=("--import", "cluster_functions")) as running:
        for count in (1, 2, 4, 8):
            found["free", count] = rate_of(running, count, False)
            found["barrier", count] = rate_of(running, count, True)
        for window in WINDOWS:
            found["chain", window] = chain(running, window)
    return found


def costs_of(found: dict[tuple[str, int], Any], kind: str, latency: float) -> Costs:
    """The costs of an iteration, by the processor time of the task that has the condition, of 2 tasks and of 8.

    Args:
        found: what `real` gave.
        kind: "free": that task has the condition for each other one. "barrier": it has two more messages.
        latency: seconds of a message.
    """
    few, many = (found[kind, count].processor[0] for count in (2, 8))
    for_another = max((many - few) / 6, 0.0)
    turn = max(few - for_another, 0.0)
    if kind == "free":
        return Costs(turn, for_another, latency, for_another)
    condition = min(costs_of(found, "free", latency).condition, for_another / 3)
    return Costs(turn, (for_another - condition) / 2, latency, condition)


# --- simulated ------------------------------------------------------------------------------------------------------


def simulated_rate(
    count: int, barrier: bool, costs: Costs, window: int = 32, iterations: int = 400, group: int = GROUP
) -> float:
    """Iterations a second of the trivial loop on many tasks.

    Task 0 computes the condition, and sends it to each other one. With a barrier it takes all values, and sends a sum;
    by way of the first task of each group, where there are several.
    """
    free = [0.0] * count  # when each task's processor is
    over = [[0.0] * count]  # when each task has ended an iteration
    agreed = [0.0] * count  # when each has what is added
    for number in range(iterations):
        ended = over[max(number + 1 - window, 0)]
        free[0] = max(free[0], ended[0])
        arrivals = _sent(free, costs.condition, costs.latency, range(count))
        made: list[float] = []
        for task in range(count):
            ready = max(arrivals[task], over[-1][task], ended[task], agreed[task] if barrier else 0.0)
            free[task] = max(free[task], ready) + costs.turn + (costs.message if task else 0.0)
            made.append(free[task])
        if barrier:
            agreed = _agreed(free, costs, group)
        over.append(made)
    return iterations / max(over[-1])


def _agreed(free: list[float], costs: Costs, group: int) -> list[float]:
    """When each task has what task 0 sends once it has had the values of all."""
    firsts = range(0, len(free), group)
    groups = [range(first, min(first + group, len(free))) for first in firsts]
    for first, *others in [*groups, firsts]:
        for task in others:
            free[task] += costs.message
            free[first] = max(free[first], free[task] + costs.latency) + costs.message
    for first, arrival in zip(firsts, _sent(free, costs.message, costs.latency, firsts), strict=True):
        free[first] = max(free[first], arrival) + (costs.message if first else 0.0)
    return [arrival for each in groups for arrival in _sent(free, costs.message, costs.latency, each)]


def _sent(free: list[float], cost: float, latency: float, tasks: Sequence[int]) -> list[float]:
    """When what the first of some tasks sends to each arrives; it sends to one after the other."""
    first, *others = tasks
    arrivals = [free[first]]
    for _ in others:
        free[first] += cost
        arrivals.append(free[first] + latency)
    return arrivals


def simulated_chain(count: int, kernel: float, costs: Costs, window: int = 32, iterations: int = 200) -> float:
    """Seconds of a loop over tasks in a chain, of which each has some layers.

    Args:
        count: how many tasks.
        kernel: seconds of the kernels of a task's layers on its accelerator, in one iteration.
        costs: of the tasks.
        window: how many iterations are in flight.
        iterations: of the loop.
    """
    free, device = [0.0] * count, [0.0] * count  # when each task's processor, and its accelerator, is
    over: list[float] = [0.0]  # when task 0 has had what the last layer made
    for number in range(iterations):
        free[0] = max(free[0], over[max(number + 1 - window, 0)]) + costs.turn
        arrivals = _sent(free, costs.condition, costs.latency, range(count))
        given = 0.0
        for task in range(count):
            received = costs.message * (2 if task else 0)  # the condition, and what the layer before has made
            ready = max(free[task], arrivals[task], given) + received + costs.turn
            device[task] = max(device[task], ready) + kernel
            free[task] = ready + costs.message
            given = device[task] + costs.message + costs.latency
        over.append(given if count > 1 else device[0])
    return max(over)


def simulated_lstm(count: int, costs: Costs) -> float:
    """Seconds of a training step of 8 layers of LSTM on so many tasks: a loop forward, and one of twice that back."""
    kernel = LSTM_STEP * LAYERS / count
    return sum(simulated_chain(count, part * kernel, costs, 32, LSTM_LENGTH) for part in (1 / 3, 2 / 3))


__all__ = ["Costs", "Measured", "costs_of", "real", "simulated_chain", "simulated_lstm", "simulated_rate"]
