"""Measure the runtime over tasks beside TensorFlow's v1 Session over gRPC and PyTorch's distributed checkpoints.

    python tests/benchmarks/runtime.py                  prints the tables
    python tests/benchmarks/runtime.py --write          also puts them into docs/distribute.md
    python tests/benchmarks/runtime.py --quick          a few steps of each, of small tables and checkpoints

Both sides are processes on loopback, a worker with the client in it and two ps tasks, and measure in turn, so that
what else the machine does falls on both. The peers live in the environments that `peers/make_env.sh` builds, or that
PEERS_PY and PEERS_PY_TORCH name; without them ours is measured alone. Scripts: `peers/runtime_tensorflow.py`,
`peers/runtime_torch.py`; `peers/runtime_grpc.py` is the limit of the gRPC plane.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness  # noqa: E402
import numpy as np  # noqa: E402
from shared.tasks import PS, TOKEN, WORKER, TaskProcess, tasks  # noqa: E402
from table import markdown  # noqa: E402

import anabranch as ab  # noqa: E402
from anabranch.distribute.transport.planes import Plane  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "distribute.md"
PLACE = re.compile(r"(?<=<!-- runtime.py -->\n).*?(?=<!-- runtime.py ends -->)", re.DOTALL)
PS_TASKS = (PS, "/job:ps/task:1")
OTHER_WORKER = "/job:worker/task:1"
ROWS = 32
LOOP = 1000  # iterations of ours
Times = dict[str, list[float]]  # seconds, by case
Call = Callable[[], Any]


@dataclass(frozen=True)
class Settings:
    """The size of each piece of work, and how often it is measured.

    Attributes:
        turns: of each side.
        table: rows of 64 bytes on each of two tasks.
        dense: elements of each of two variables that a step reads and writes.
        save: bytes of a checkpoint.
        peer_loop: iterations of the peer's loops.
        failures: how often a task is killed and stopped.
    """

    turns: int = 15
    table: int = 8_000_000
    dense: int = 25_000_000 // 4
    save: int = 400_000_000
    peer_loop: int = 300
    failures: tuple[int, int] = (5, 2)


QUICK = Settings(turns=3, table=400_000, save=40_000_000, peer_loop=100, failures=(1, 1))
STEPS = {"null": 20, "rows": 20, "fewer rows": 20}  # in one turn; of others one

# --- steps ------------------------------------------------------------------------------------------------------------


def changed(size: int) -> list[Any]:
    """Read a variable of each ps task on the worker, and write it."""
    done: list[Any] = []
    for task in PS_TASKS:
        with ab.device(task):
            variable = ab.Variable(np.zeros(size or (), "float32"), name=f"v{size}")
        with ab.device(WORKER):
            made = variable.value + 1.0
        done.append(variable.assign(made).operation)
    return done


def rows(size: int) -> list[Any]:
    """Gather rows of a table on each ps task, and change them there."""
    done: list[Any] = []
    ids = np.arange(ROWS, dtype="int32") * (size // ROWS)
    for task in PS_TASKS:
        with ab.device(task):
            zeros = ab.initializers.Zeros()
            table = ab.Variable(zeros, shape=(size, 16), dtype="float32", name=f"t{size}")
        with ab.device(WORKER):
            made = ab.ops.take(table, ids, axis=0) * 0.5 - 1.0
        done.append(table.scatter_sub(ab.IndexedSlices(made, ids, np.array((size, 16)))).operation)
    return done


def loop() -> Any:
    """Send a carried number to a ps task and back in each iteration."""

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            half = h * 0.5
        with ab.device(WORKER):
            return i + 1, half + 1.0

    with ab.device(WORKER):
        return ab.while_loop(lambda i, h: i < LOOP, body, (0, ab.constant(0.0)), parallel_iterations=1)[1]


def flight() -> Any:
    """Send a number to a ps task and back in each iteration; what is carried stays on the worker."""

    def body(i: Any, total: Any) -> Any:
        with ab.device(WORKER):
            given = ab.ops.cast(i, "float32") * 0.5
        with ab.device(PS):
            half = given * 0.5
        with ab.device(WORKER):
            return i + 1, total + half

    with ab.device(WORKER):
        start = (0, ab.constant(0.0))
        return ab.while_loop(lambda i, t: i < LOOP, body, start, parallel_iterations=32)[1]


class Ours:
    """A cluster for each plane, with the worker in this process."""

    def __init__(self, settings: Settings) -> None:
        self._stack = contextlib.ExitStack()
        self.calls: dict[str, Call] = {}
        for plane in Plane:
            ps = [TaskProcess({"ps": ["localhost:0"] * 2}, "ps", index, "--plane", plane) for index in range(2)]
            for each in ps:
                self._stack.callback(each.end)
            spec = {"ps": [each.address for each in ps], "worker": ["localhost:0"]}
            config = ab.distribute.ServerConfig(plane=plane)
            server = ab.distribute.Server(spec, "worker", 0, config=config, token=TOKEN)
            self._stack.enter_context(server)
            with ab.Graph().as_default() as graph:
                cases = {"null": changed(0), "dense": changed(settings.dense), "loop": loop()}
                if plane is Plane.SHARED_MEMORY:
                    cases |= {"rows": rows(settings.table), "fewer rows": rows(settings.table // 8), "flight": flight()}
            session = self._stack.enter_context(ab.Session(graph, target=server.target))
            for case, fetches in cases.items():
                name = case if plane is Plane.SHARED_MEMORY else f"{case}, {plane}"
                self.calls[name] = session.make_callable(fetches, [])
        for case, expected in (("loop", 2.0), ("flight", LOOP * (LOOP - 1) / 8)):
            assert abs(self.calls[case]() / expected - 1) < 1e-3, "the loop has computed something else"

    def measured(self, case: str, times: int) -> list[float]:
        return timed(self.calls[case], times)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def timed(call: Call, times: int) -> list[float]:
    """Return the seconds of each call."""
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


class Peer:
    """A script of `peers/` that measures what it is sent the name of.

    Args:
        python: that runs it.
        script: its name.
        settings: its argument.
    """

    def __init__(self, python: Path, script: str, settings: Mapping[str, Any]) -> None:
        self._stack = contextlib.ExitStack()
        self._errors = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-"))) / "errors"
        self._script = script
        command = [str(python), str(harness.PEERS / script), json.dumps(settings)]
        pipe = subprocess.PIPE
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@@ "):
                return line[3:]
        raise SystemExit(f"{self._script} has ended:\n{self._errors.read_text()[-2000:]}")

    def measured(self, case: str, times: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{case} {times}\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._stack.close()


def steps(settings: Settings, python: Path | None) -> tuple[Times, Times]:
    """Measure all steps of ours and of TensorFlow, in turn; an iteration of loops."""
    ours: Times = {}
    theirs: Times = {}
    sizes = {"table": settings.table, "dense": settings.dense, "loop": settings.peer_loop}
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Peer(Path(sys.executable), "runtime_grpc.py", {"dense": settings.dense}))
        peer = stack.enter_context(Peer(python, "runtime_tensorflow.py", sizes)) if python else None
        side = stack.enter_context(Ours(settings))
        peer_cases = [case for case in side.calls if "," not in case]
        for turn in range(settings.turns + 1):  # the first one prepares
            found = alone.measured("dense", 1)
            ours.setdefault("dense, grpcio alone", []).extend(found if turn else [])
            for case in side.calls:
                name = case.partition(",")[0]
                times, iterations = STEPS.get(name, 1), LOOP if name in ("loop", "flight") else 1
                found = [seconds / iterations for seconds in side.measured(case, times)]
                ours.setdefault(case, []).extend(found if turn else [])
                if peer is not None and case in peer_cases:
                    iterations = settings.peer_loop if iterations > 1 else 1
                    found = [seconds / iterations for seconds in peer.measured(case, times)]
                    theirs.setdefault(case, []).extend(found if turn else [])
    return ours, theirs


# --- checkpoints ------------------------------------------------------------------------------------------------------


def saves(settings: Settings, python: Path | None) -> tuple[Times, Times]:
    """Measure checkpoints of two ps tasks: how long steps are held beside a plain copy, and until all is written."""
    ours: Times = {"held": [], "written": []}
    theirs: Times = {"held": [], "written": []}
    kept, source = np.zeros(settings.save // 4, "float32"), np.ones(settings.save // 4, "float32")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-")))
        given = {"save": settings.save, "folder": str(folder)}
        peer = stack.enter_context(Peer(python, "runtime_torch.py", given)) if python else None
        running = stack.enter_context(tasks(ps=2))
        variables: list[Any] = []
        with ab.Graph().as_default() as graph:
            for number, task in enumerate(PS_TASKS):
                with ab.device(task):
                    ones = ab.initializers.Ones()
                    shape = (settings.save // 8,)
                    variables.append(ab.Variable(ones, shape=shape, dtype="float32", name=f"w{number}"))
            read = [variable.value[0] for variable in variables]
        session = stack.enter_context(ab.Session(graph, target=running[WORKER].target))
        session.run(read)
        manager = ab.distribute.CheckpointManager(folder / "ours", variables, max_to_keep=None, session=session)
        stack.enter_context(manager)
        for turn in range(max(settings.turns // 2, 2) + 1):
            began = time.perf_counter()
            manager.save(turn)
            held = time.perf_counter()
            manager.wait_until_finished()
            found = {"held": held - began, "written": time.perf_counter() - began}
            shutil.rmtree(folder / "ours" / f"step-{turn}")
            other = {"held": min(timed(lambda: np.copyto(kept, source), 3))}
            if peer is not None:
                other["written"] = peer.measured("save", 1)[0]
            for name in found if turn else ():
                ours[name].append(found[name])
                theirs[name] += [other[name]] if name in other else []
    return ours, theirs


# --- failures ---------------------------------------------------------------------------------------------------------


def failures(settings: Settings) -> Times:
    """Measure the seconds from the end, or the stop, of a worker in a step to the error at the client."""
    kinds = {"killed": TaskProcess.kill, "stopped": TaskProcess.stop}
    counts = dict(zip(kinds, settings.failures, strict=True))
    return {kind: [failed(act) for _ in range(counts[kind])] for kind, act in kinds.items()}


def failed(act: Callable[[TaskProcess], None]) -> float:
    """Return the seconds from what happens to a worker in the middle of a step to the error."""
    with tasks(ps=1, workers=2) as running:
        with ab.Graph().as_default() as graph:
            with ab.device(OTHER_WORKER):
                queue = ab.queues.FIFOQueue(1, ["float32"], shapes=[()], name="queue")
            put, taken = queue.enqueue([1.0]), queue.dequeue()
            with ab.device(PS):
                found = taken + 1.0
        with ab.Session(graph, target=running[WORKER].target) as session:
            session.run(put)
            session.run(found)  # so that the next one is prepared
            happened: list[float] = []

            def happen() -> None:
                happened.append(time.perf_counter())
                act(running[OTHER_WORKER])

            timer = threading.Timer(0.5, happen)
            timer.start()
            try:
                session.run(found)  # waits for an element that never comes
            except ab.errors.TaskFailedError as error:
                seconds = time.perf_counter() - happened[0]
                if error.task != OTHER_WORKER:
                    raise
                return seconds
            finally:
                timer.join()
        raise AssertionError("the step did not fail")


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of the table.

    Attributes:
        what: the work.
        ours, other: seconds of ours, and of what it is compared with; this may be empty.
        goal: the largest ratio of medians; in place of that the largest median of ours if nothing is compared.
        unit: "s", "ms" or "us".
        least_rate: of ours a second, too.
    """

    what: str
    ours: list[float]
    other: list[float]
    goal: float
    unit: str = "ms"
    least_rate: float = 0.0
    is_absolute: bool = False

    def cells(self) -> list[str]:
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[self.unit]
        shown = [f"{scale * middle:.3g} ({scale * least:.3g})" for middle, least in map(_figures, self._sides())]
        ratio = ""
        if self.other:
            (ours, least), (other, other_least) = _figures(self.ours), _figures(self.other)
            ratio = f"{ours / other:.2f} ({least / other_least:.2f})"
        return [f"{self.what}, {self.unit}", *shown, *[""] * (2 - len(shown)), ratio, self._goal()]

    def _sides(self) -> list[list[float]]:
        return [each for each in (self.ours, self.other) if each]

    def _goal(self) -> str:
        median, texts, is_missed = statistics.median(self.ours), list[str](), False
        if self.is_absolute:
            texts.append(f"{self.goal:g} {self.unit}")
            is_missed = median > self.goal
        elif self.goal:
            texts.append(f"{self.goal:.3g}")
            is_missed = bool(self.other) and median / statistics.median(self.other) > self.goal
        if self.least_rate:
            texts.append(f"{self.least_rate:,.0f} a second (here {1 / median:,.0f})")
            is_missed = is_missed or 1 / median < self.least_rate
        return " and ".join(texts) + (": missed" if is_missed else "")


def _figures(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds), min(seconds)


def lines(settings: Settings, found: tuple[Times, Times], saved: tuple[Times, Times], gone: Times) -> Iterator[Line]:
    ours, tensorflow = found
    theirs = lambda case: tensorflow.get(case, [])  # noqa: E731 - a short name of what is looked up in each line
    yield Line("a scalar is read and written on each of two ps tasks", ours["null"], theirs("null"), 0.35)
    dense = f"{settings.dense * 8 / 1e6:.0f} MB are read and written"
    for plane, name, goal in (
        ("shared memory", "dense", 0.35),
        ("sockets", "dense, unix", 0.7),
        ("gRPC", "dense, grpc", 1.2),
    ):
        yield Line(f"{dense}, {plane}", ours[name], theirs("dense"), goal)
    yield Line(f"{dense}, grpcio without anabranch", ours["dense, grpcio alone"], theirs("dense"), 0.0)
    size = settings.table * 128 / 1e6
    yield Line(f"{ROWS} rows on each task, table of {size:,.0f} MB", ours["rows"], theirs("rows"), 0.6)
    yield Line(f"{ROWS} rows on each task, table of {size / 8:,.0f} MB", ours["fewer rows"], theirs("fewer rows"), 0.6)
    yield Line(
        "the larger table, compared with the smaller one (both anabranch)", ours["rows"], ours["fewer rows"], 1.1
    )
    yield Line("an iteration over two tasks, a scalar each way", ours["loop"], theirs("loop"), 0.1, "us", 10_000)
    what = "the same with 32 iterations in flight and no carried value that crosses"
    yield Line(what, ours["flight"], theirs("flight"), 0.0, "us", 30_000)
    written, other = saved
    size = settings.save / 1e6
    what = f"delay of steps by a checkpoint of {size:.0f} MB of two tasks, compared with a copy"
    yield Line(what, written["held"], other["held"], 1.5)
    what = "time until the checkpoint is on the disk, compared with PyTorch's"
    yield Line(what, written["written"], other["written"], 1 / 0.9, "s")
    yield Line("from killing a worker to the error at the client", gone["killed"], [], 2.0, "s", is_absolute=True)
    yield Line("from stopping a worker to the error at the client", gone["stopped"], [], 10.0, "s", is_absolute=True)


def by_plane(ours: Times, dense: int) -> str:
    """The table of planes."""
    heads = [
        "ms",
        f"{dense * 8 / 1e6:.0f} MB from and to two ps tasks",
        "a scalar from and to each",
        f"{LOOP:,} iterations",
    ]
    found: list[list[str]] = []
    for plane in Plane:
        cells = [f"`{plane}`"]
        for case, scale in (("dense", 1e3), ("null", 1e3), ("loop", 1e3 * LOOP)):
            times = ours[case if plane is Plane.SHARED_MEMORY else f"{case}, {plane}"]
            cells.append("{:.3g} ({:.3g})".format(*(scale * each for each in _figures(times))))
        found.append(cells)
    return markdown(heads, found)


def report(settings: Settings) -> str:
    pythons = harness.Interpreters.find()
    load = os.getloadavg()[0]
    found = steps(settings, pythons.peers)
    saved = saves(settings, pythons.torch)
    gone = failures(settings)
    heads = ["", "anabranch", "TensorFlow, or the named peer", "ratio", "at most"]
    shown = [line.cells() for line in lines(settings, found, saved, gone)]
    said = (
        f"Medians of {settings.turns} turns of both sides in one run, in brackets the minimum "
        f"(`python tests/benchmarks/runtime.py`, {date.today():%d %b %Y},\n{os.cpu_count()} processors, a load of "
        f"{load:.0f} before the run). The client is in the process of the worker. Loops have {LOOP:,} iterations,\n"
        f"those of TensorFlow {settings.peer_loop:,}. The peer is TensorFlow's v1 session over gRPC, unless a row "
        "names another one:"
    )
    return (
        f"{said}\n\n{markdown(heads, shown)}\n\nThe same steps by each plane:\n\n{by_plane(found[0], settings.dense)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of each, of small tables and checkpoints")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.name}")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write takes all at full length: leave out --quick.")
    os.environ["ANABRANCH_TOKEN"] = TOKEN
    text = report(QUICK if options.quick else Settings())
    print(text)
    if options.write:
        document = DOCUMENT.read_text()
        assert PLACE.search(document), f"{DOCUMENT.name} lacks the marks of the tables"
        DOCUMENT.write_text(PLACE.sub(lambda _: f"\n{text}\n", document))


if __name__ == "__main__":
    main()
