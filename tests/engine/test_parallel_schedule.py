"""Operations that run side by side: which do, in which order the step is printed, values, errors, effects, threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion.parallel_schedule import Piece, parallel_schedule
from anabranch.engine.queues import FIFOQueue
from anabranch.engine.runtime import parallel_schedule as running
from anabranch.engine.runtime.parallel_schedule import ParallelSchedule, always, run_together
from anabranch.engine.runtime.program import Program

ops = ab.ops
STEPS, BATCH, UNITS = 100, 8, 32
SIZE = 8192
needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


@pytest.fixture(autouse=True)
def several_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ANABRANCH_NUM_THREADS", "3")
    with always(True):
        yield


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def rnn(x: Any, weight: Any, backward: bool = False) -> Any:
    """The states of a recurrent net over x (steps, batch, units)."""
    rows = ab.TensorArray("float32", size=STEPS, element_shape=(BATCH, UNITS)).unstack(x)

    def body(t: Any, h: Any, states: Any) -> Any:
        k = STEPS - 1 - t if backward else t
        h = ops.tanh(rows.read(k) + h @ weight)
        return t + 1, h, states.write(k, h)

    states = ab.TensorArray("float32", size=STEPS, element_shape=(BATCH, UNITS))
    return ab.while_loop(lambda t, *_: t < STEPS, body, (0, ops.zeros((BATCH, UNITS)), states))[2].stack()


def step(build: Callable[..., Any], *values: Any) -> tuple[Program, Callable[[], Any]]:
    """The program of what `build` gives for these values, and a function that runs it."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        targets = list(build(*feeds))
    program = Program(graph, targets, feeds)
    return program, lambda: program(*values)


def groups(program: Program) -> list[int]:
    """Return the number of pieces of each group."""
    lines = [line for line in program.source.splitlines() if "= parallel_schedule" in line]
    return [line.partition(" = ")[0].count(",") + 1 for line in lines]


def check(build: Callable[..., Any], *values: Any, expected: list[int]) -> Program:
    """Side by side, one after the other and without the pass: the very same bits."""
    program, run = step(build, *values)
    assert groups(program) == expected, program.source
    given = [run() for _ in range(3)]
    with always(False):
        given.append(run())
    with without("parallel"):
        assert groups(step(build, *values)[0]) == []
        given.append(run())
    for results in given[1:]:
        for value, wanted in zip(results, given[0], strict=True):
            np.testing.assert_array_equal(value, wanted, strict=True)
    return program


# --- which, and in which order --------------------------------------------------------------------------------------


class Step:
    """Operations for the pass alone: each takes some before it, may be long, and may have an effect."""

    def __init__(self, random: Random, count: int) -> None:
        with ab.Graph().as_default() as graph:
            made = [ab.constant(1.0)]
            for number in range(count):
                inputs = random.sample(made, min(len(made), random.randint(1, 2)))
                made.append(ops.add(inputs[0], inputs[-1]))
                if random.random() < 0.1:
                    ops.print(made[-1], output_stream=sys.stderr)
                assert number < count
        self.operations = list(graph.operations)
        adds = [operation for operation in self.operations if operation.type == "add"]
        self.long = set(random.sample(adds, random.randint(0, len(adds) // 2)))
        self.fixed = {operation for operation in adds if random.random() < 0.05} - self.long


def depends(operation: Any, other: Any) -> bool:
    return any(t.operation is other or depends(t.operation, other) for t in operation.inputs)


@pytest.mark.parametrize("seed", range(60))
def test_any_order_is_one_in_which_everything_has_what_it_needs(seed: int):
    random = Random(seed)
    made = Step(random, random.randint(2, 14))
    ordered, found = parallel_schedule(
        made.operations, lambda o: Piece(1.0) if o in made.long else None, made.fixed.__contains__
    )
    place = {operation: position for position, operation in enumerate(ordered)}
    assert sorted(ordered, key=lambda o: o.index) == made.operations
    assert all(place[t.operation] < place[o] for o in ordered for t in o.inputs)
    barriers = [o for o in made.operations if o.writes or o in made.fixed]
    assert all(
        (place[o] < place[barrier]) == (o.index < barrier.index) for barrier in barriers for o in made.operations
    )
    grouped = [operation for group in found for operation in group]
    assert len(grouped) == len(set(grouped))
    assert made.long.issuperset(grouped)
    for group in found:
        assert len(group) > 1
        assert [place[o] for o in group] == list(range(place[group[0]], place[group[0]] + len(group)))
        assert not any(depends(o, other) for o in group for other in group)


def test_something_is_found_where_there_is_something():
    sizes = [
        len(group)
        for seed in range(60)
        for made in [Step(Random(seed), 12)]
        for group in parallel_schedule(
            made.operations, lambda o, made=made: Piece(1.0) if o in made.long else None, bool
        )[1]
    ]
    assert sizes == []  # `bool` fixes all operations where they are
    made = Step(Random(3), 12)
    made.long = {o for o in made.operations if o.type == "add"}
    assert parallel_schedule(made.operations, lambda o: Piece(1.0) if o in made.long else None, lambda _: False)[1]


def test_what_is_told():
    with ab.Graph().as_default() as graph:
        x = ab.constant(1.0)
        for _ in range(3):
            ops.exp(x)
    exps = [operation for operation in graph.operations if operation.type == "exp"]
    seconds = dict(zip(exps, (1.0, float("inf"), 1e-6), strict=True))
    with recording() as log:
        parallel_schedule(graph.operations, lambda o: Piece(seconds[o]) if o in seconds else None, lambda _: False)
        parallel_schedule(graph.operations[:2], lambda o: Piece(seconds[o]) if o in seconds else None, lambda _: False)
    changed, kept = log.of("parallel")
    assert [(note.operation, note.text) for note in changed] == [
        (exps[0].name, f"runs side by side with {exps[1].name!r}")
    ]
    assert [(note.operation, note.text) for note in kept] == [
        (exps[2].name, "it takes about 1 us, too little to share with a thread"),
        (exps[0].name, "nothing that takes as long is independent of it"),
    ]


# --- programs -------------------------------------------------------------------------------------------------------


@needs_kernels
def test_both_directions_of_a_recurrent_net_and_of_its_gradient():
    def build(x: Any, u: Any, v: Any) -> Any:
        states = ops.concatenate([rnn(x, u), rnn(x, v, backward=True)], axis=-1)
        loss = ops.mean(states * states)
        return [states, loss, *ab.gradients(loss, [u, v])]

    weights = 0.2 * draw(UNITS, UNITS, seed=1), 0.2 * draw(UNITS, UNITS, seed=2)
    program = check(build, draw(STEPS, BATCH, UNITS), *weights, expected=[2, 2])
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(shape, "float32") for shape in ((STEPS, BATCH, UNITS), (UNITS, UNITS), (UNITS, UNITS))]
        exact = Program(graph, build(*feeds), feeds, exact=True)
    assert "parallel_schedule" not in exact.source
    values = draw(STEPS, BATCH, UNITS), *weights
    for value, wanted in zip(program(*values), exact(*values), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    assert program.statistics.saved_bytes == 2 * 2 * STEPS * BATCH * UNITS * 4


@needs_kernels
def test_an_ensemble_of_stacked_nets_goes_layer_by_layer():
    def build(x: Any, *weights: Any) -> Any:
        return [rnn(rnn(x, weight), weight * 0.5) for weight in weights]

    weights = [draw(UNITS, UNITS, seed=seed) for seed in range(3)]
    check(build, draw(STEPS, BATCH, UNITS), *weights, expected=[3, 3])


@needs_kernels
def test_loops_of_lengths_that_the_data_decides():
    def search(x: Any) -> Any:
        return ab.while_loop(
            lambda n, c: ops.not_equal(n, 1),
            lambda n, c: (ops.where(ops.equal(n % 2, 0), n // 2, 3 * n + 1), c + 1),
            (x, 0),
        )[1]

    program = check(lambda x, y: [search(x), search(y)], np.int32(97), np.int32(871), expected=[2])
    assert [int(value) for value in program(np.int32(97), np.int32(871))] == [118, 178]


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: [ops.sort(x), ops.sort(y)],
        lambda x, y: [ops.argsort(x), ops.sort(y), ops.top_k(x, 3)[1]],
        lambda x, y: ops.fft((x, y)) + ops.fft((y, x)),
        lambda x, y: [*ops.qr(ops.reshape(x, (-1, 8, 8))), ops.cholesky(_positive(y)), ops.inv(_positive(x))],
        lambda x, y: [ops.sort(x), ops.argsort(x)],
    ],
    ids=["sorts", "three", "transforms", "factorisations", "of one value"],
)
def test_long_numpy_operations(build: Callable[..., Any]):
    program = step(build, draw(SIZE), draw(SIZE, seed=1))[0]
    (count,) = groups(program)
    check(build, draw(SIZE), draw(SIZE, seed=1), expected=[count])
    assert count >= 2


def _positive(x: Any) -> Any:
    a = ops.reshape(x, (-1, 32, 32))  # smaller and larger matrices have kernels
    return a @ ops.transpose(a, (0, 2, 1)) + 32 * ops.eye(32)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: [ops.sort(x[:100]), ops.sort(y[:100])],
        lambda x, y: [ops.sort(ops.sort(x) + 1)],
        lambda x, y: [ops.sort(x), ops.sort(y + ops.sort(x)[0])],
        lambda x, y: [ops.exp(x), ops.exp(y)],
        lambda x, y: [ops.inv(ops.reshape(x[:4096], (64, 64)) @ ops.reshape(y[:4096], (64, 64)))],
    ],
    ids=["short", "a chain", "one needs the other", "elementwise", "one"],
)
def test_what_runs_one_after_the_other(build: Callable[..., Any]):
    check(build, draw(SIZE), draw(SIZE, seed=1), expected=[])


def test_one_thread_turns_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_NUM_THREADS", "1")
    assert groups(step(lambda x: [ops.sort(x), ops.argsort(x)], draw(SIZE))[0]) == []


def test_explain_tells_it():
    with ab.Graph().as_default():
        x = ab.placeholder((SIZE,), "float32", "x")
        told = ab.explain([ops.sort(x), ops.argsort(x)], [x], passes=True)
    assert "sort" in told.partition("\nparallel: ")[2]
    assert "runs side by side with 'arg_sort'" in told


# --- errors ---------------------------------------------------------------------------------------------------------


def failing(x: Any, y: Any) -> Any:
    matrices = ops.reshape(x, (-1, 32, 32))
    return [ops.solve(matrices, matrices), ops.inv(ops.reshape(y, (-1, 32, 32)))]


GOOD = np.tile(np.eye(32, dtype="float32"), (SIZE // 1024, 1, 1)).reshape(-1)
SINGULAR = 0 * GOOD


@pytest.mark.parametrize("x", [GOOD, SINGULAR])
@pytest.mark.parametrize("y", [GOOD, SINGULAR])
def test_errors_are_those_of_one_after_the_other(x: Any, y: Any):
    program, run = step(failing, x, y)
    assert groups(program) == [2]
    with without("parallel"):
        plain = step(failing, x, y)[1]
        wanted = error_of(plain)
    for _ in range(3):
        assert error_of(run) == wanted
    assert (wanted is None) == (x is GOOD and y is GOOD)
    with always(False):
        assert error_of(run) == wanted


def error_of(run: Callable[[], Any]) -> Any:
    try:
        run()
    except np.linalg.LinAlgError as error:
        return type(error), str(error), list(error.__notes__)
    return None


@needs_kernels
def test_an_error_in_a_loop_names_the_operation_and_the_iteration():
    def build(x: Any, last: Any) -> Any:
        rows = ab.TensorArray("float32", size=STEPS, element_shape=(UNITS,)).unstack(x)

        def total(count: Any) -> Any:
            body = lambda t, s: (t + 1, ops.tanh(s + rows.read(t)))  # noqa: E731
            return ab.while_loop(lambda t, s: t < count, body, (0, ops.zeros((UNITS,))))[1]

        return [total(last), total(last - 1)]

    x = draw(STEPS, UNITS)
    program, run = step(build, x, np.int32(STEPS + 1))
    assert groups(program) == [2]
    with pytest.raises(IndexError, match=f"{STEPS} is outside|element {STEPS}|index {STEPS}") as found:
        run()
    assert any("iteration" in note for note in found.value.__notes__)
    assert len(step(build, x, np.int32(STEPS))[1]()) == 2


def test_nothing_is_written_when_a_piece_fails():
    with ab.Graph().as_default() as graph:
        held = ab.Variable(np.zeros(32, "float32"))
        x, y = ab.placeholder((SIZE,), "float32"), ab.placeholder((SIZE,), "float32")
        a, b = failing(x, y)
        write = held.assign(ops.sum(a, (0, 1)) + ops.sum(b, (0, 1)))
        program = Program(graph, [write.operation], [x, y])
    assert groups(program) == [2]
    with pytest.raises(np.linalg.LinAlgError):
        program(GOOD, SINGULAR)
    np.testing.assert_array_equal(held.numpy(), np.zeros(32))
    program(GOOD, GOOD)
    np.testing.assert_array_equal(held.numpy(), np.full(32, 2 * SIZE // 1024))


# --- effects --------------------------------------------------------------------------------------------------------


def test_effects_keep_their_places(capsys: pytest.CaptureFixture[str]):
    def build(x: Any, y: Any) -> Any:
        a = ops.inv(ops.reshape(x, (-1, 32, 32)))
        ops.print("between", output_stream=sys.stdout)
        b = ops.inv(ops.reshape(y, (-1, 32, 32)))
        c, d = ops.inv(b + 1 - 1), ops.inv(a)
        ops.print("after", output_stream=sys.stdout)
        return [c, d]

    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((SIZE,), "float32") for _ in range(2)]
        targets = build(*feeds)
        prints = [operation for operation in graph.operations if operation.type == "print"]
        program = Program(graph, [*targets, *prints], feeds)
    assert groups(program) == [2]
    program(GOOD, GOOD)
    assert capsys.readouterr().out.split() == ["between", "after"]
    with pytest.raises(np.linalg.LinAlgError):
        program(SINGULAR, GOOD)
    assert capsys.readouterr().out == ""
    with pytest.raises(np.linalg.LinAlgError):
        program(GOOD, SINGULAR)
    assert capsys.readouterr().out.split() == ["between"]


def test_assignments_and_queues_stay_between_what_they_stood_between():
    with ab.Graph().as_default():
        held, queue = ab.Variable(draw(SIZE)), FIFOQueue(10, "float32", (SIZE,))
        first = ops.sort(held.value)
        put = queue.enqueue(held)
        with ab.control_dependencies([first, put]):
            write = held.assign(-held)
            second = ops.argsort(held.value)
            third = ops.sort(held.value)
        got = queue.dequeue()
        session = ab.Session()
        values = session.run([first, second, third, got, write])
        program = session.program([first, second, third, got, write], [])
    assert isinstance(program, Program)
    assert groups(program) == [2]
    np.testing.assert_array_equal(values[0], np.sort(draw(SIZE)))
    np.testing.assert_array_equal(values[1], np.argsort(-draw(SIZE), kind="stable"))
    np.testing.assert_array_equal(values[2], np.sort(-draw(SIZE)))
    np.testing.assert_array_equal(values[3], draw(SIZE))


def test_functions_recursion_and_branches_around():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((SIZE,), "float32")

        @ab.function
        def halved(n: Any, value: Any) -> Any:
            return ab.cond(n <= 0, lambda: value * 1.0, lambda: halved(n - 1, value * 0.5))

        both: Any = ab.function(lambda v: (ops.sort(v), ops.sort(-v)))
        up, down = both(x)
        chosen = ab.cond(up[0] < 0, lambda: halved(ab.constant(3), down), lambda: up)
        program = Program(graph, [up, down, chosen], [x])
    assert groups(program) == [2]
    values = program(draw(SIZE))
    np.testing.assert_array_equal(values[1], np.sort(-draw(SIZE)))
    np.testing.assert_array_equal(values[2], np.sort(-draw(SIZE)) / 8)


# --- running --------------------------------------------------------------------------------------------------------


def test_a_group_keeps_to_what_is_faster(monkeypatch: pytest.MonkeyPatch):
    took, ways = {False: 1e-3, True: 6e-4}, list[bool]()
    clock = [0.0]

    def together(pieces: Any) -> list[Any]:
        ways.append(True)
        clock[0] += took[True]
        return [(1,), (2,)]

    def alone() -> tuple[int]:
        clock[0] += took[False] / 2
        return (1,)

    monkeypatch.setattr(running, "run_together", together)
    monkeypatch.setattr(running.time, "perf_counter", lambda: clock[0])
    group = ParallelSchedule()
    with always(None):  # pyright: ignore[reportArgumentType]
        for count, seconds, most in ((1000, 6e-4, 1000), (1000, 3e-3, 80)):
            took[True] = seconds
            ways.clear()
            for _ in range(count):
                assert len(group((alone,), (alone,))) == 2
            assert len(ways) <= most
            assert (len(ways) > count * 0.9) == (seconds < took[False])


def test_a_short_group_never_wakes_a_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "run_together", None)
    group = ParallelSchedule()
    with always(None):  # pyright: ignore[reportArgumentType]
        assert all(group((tuple,), (tuple,)) == [(), ()] for _ in range(300))
    assert not group.times[True]


def test_helpers_take_part():
    meeting = threading.Barrier(3)
    names = {result[0] for result in run_together([(meet, meeting)] * 3) if result}
    assert len(names) == 3
    assert threading.current_thread().name in names


def meet(meeting: threading.Barrier) -> tuple[str]:
    meeting.wait(60)
    return (threading.current_thread().name,)


def test_helpers_see_the_settings_of_the_thread_that_asks():
    meeting = threading.Barrier(2)

    def log(value: Any) -> Any:
        meeting.wait(60)
        return (np.log(value),)

    with np.errstate(all="ignore"):
        assert [str(result[0]) for result in run_together([(log, np.float32(-1))] * 2) if result] == ["nan", "nan"]
    with np.errstate(all="raise"):
        assert run_together([(log, np.float32(-1))] * 2) == [None, None]


def test_an_interrupt_ends_the_step():
    def interrupted() -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return ()

    here = threading.Barrier(2)

    def waits() -> Any:
        here.wait(60)
        return interrupted()

    with pytest.raises(KeyboardInterrupt):
        run_together([(waits,), (waits,)])
    assert run_together([(tuple,), (tuple,)]) == [(), ()]


@needs_kernels
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that signal")
def test_a_loop_without_the_lock_sees_signals_and_lets_others_run():
    def build(x: Any) -> Any:
        return ab.while_loop(lambda n, s: ops.not_equal(n, 0), lambda n, s: (n, s * 0.5 + 1), (x, 0.0))

    program, run = step(build, np.int32(1))
    assert "# native: " in program.source
    assert [float(value) for value in program(np.int32(0))] == [0, 0]
    others: list[int] = []
    beside = threading.Thread(target=others.extend, args=(range(3),))

    def stop(*_: Any) -> None:
        beside.start()
        beside.join(60)
        raise TimeoutError("stopped")

    def run_until_then() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        run()

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(TimeoutError, match="stopped"):
            run_until_then()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert others == [0, 1, 2]


@pytest.mark.parametrize("use_kernels", [True, False])
def test_sessions_of_several_threads(use_kernels: bool):
    if use_kernels and not library.usable:
        pytest.skip("kernels can't be compiled here")
    build = _two_nets if use_kernels else (lambda x, u: [ops.sort(x), ops.argsort(ops.abs(x)), ops.inv(_positive(u))])
    values = [(draw(STEPS, BATCH, UNITS, seed=k), draw(UNITS, UNITS, seed=k + 50)) for k in range(6)]
    program = step(build, *values[0])[0]
    assert len(groups(program)) == 1
    with always(False):
        wanted = [program(*pair) for pair in values]
    wrong: list[int] = []

    def work(number: int) -> None:
        random = Random(number)
        for _ in range(12):
            k = random.randrange(len(values))
            given = program(*values[k])
            if not all(np.array_equal(a, b) for a, b in zip(given, wanted[k], strict=True)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def _two_nets(x: Any, u: Any) -> Any:
    states = [rnn(x, u), rnn(x, u * 0.5, backward=True)]
    return [*states, *ab.gradients(ops.mean(states[0] * states[1]), [x, u])][:2]


SCRIPT = """
import os
import numpy as np
import anabranch as ab
from anabranch.engine.runtime.parallel_schedule import always

with ab.Graph().as_default():
    x = ab.placeholder((8192,), "float32")
    session = ab.Session()
    fetches = [ab.ops.sort(x), ab.ops.argsort(x)]
    value = np.random.default_rng(0).normal(size=8192).astype("float32")
    with always(True):
        session.run(fetches, {x: value})
        child = os.fork() if hasattr(os, "fork") else None
        a, b = session.run(fetches, {x: value})
        assert np.array_equal(a, np.sort(value)) and np.array_equal(b, np.argsort(value, kind="stable"))
        assert "parallel_schedule(" in session.program(fetches, [x]).source
    if child == 0:
        os._exit(0)
    if child:
        assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_without_kernels_and_in_a_child_process(kernels: str):
    environment = {**os.environ, "ANABRANCH_KERNELS": kernels, "ANABRANCH_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
