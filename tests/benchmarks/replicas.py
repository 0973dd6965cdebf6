"""Two replicas beside PyTorch: all-reduce against gloo, and steps against two independent processes and DDP.

    python tests/benchmarks/replicas.py all_reduce --torch .env-torch/bin/python
    python tests/benchmarks/replicas.py two_workers
    python tests/benchmarks/replicas.py ddp --torch .env-torch/bin/python
    python tests/benchmarks/replicas.py zero
    python tests/benchmarks/replicas.py restart

`zero` has four workers: `DataParallel(shard="optimizer")` beside `DataParallel()`. `restart` has no other side: it
kills the ps of a model of 100 MB of parameters, which is started again, and takes the time until the next step of
`fit`. For small models tests/distribute/test_faults_on_fit.py prints that, by kinds of faults (``-m slow``).

Runs of both sides alternate, each with fresh processes of one thread; what counts is the median of the ratios of pairs.
Beside times there is processor time of a member, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"1 KB": 1 << 10, "4 MB": 4 << 20, "100 MB": 100 << 20}
ROUNDS = {"1 KB": 400, "4 MB": 60, "100 MB": 6}
GOALS = {"1 KB": 0.3, "4 MB": 0.25, "100 MB": 0.6}
BATCH, LENGTH, INPUTS, UNITS, CLASSES, STEPS = 64, 100, 200, 400, 10, 6  # of one worker; 3.9 MB of parameters
ZERO_STEPS = 30
LARGE_UNITS = 5000  # 100 MB of parameters in the weights between two layers
WORKERS = {"steps with parts": 4, "steps with the whole": 4}  # of others two
LIMITS = {"two_workers": round(1 / 0.95, 3), "ddp": 0.95, "zero": 1.1}  # for a step
Record = dict[str, list[float]]


# --- what a process does --------------------------------------------------------------------------------------------


def timed(run: Callable[[], Any], rounds: int) -> list[float]:
    """Return the medians of seconds and of seconds of the processor."""
    for _ in range(8 if rounds > 8 else 2):  # a group tries each way before it stays with one
        run()
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        began, before = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - began, time.process_time() - before))
    # The processor's clock is coarse beside a small sum: of it the mean.
    return [statistics.median(seconds for seconds, _ in found), statistics.fmean(spent for _, spent in found)]


def sums_of_ours() -> Record:
    import anabranch as ab
    from anabranch.engine.ops.collectives import current_group

    assert ab.distribute.world_size() == 2
    group: Any = current_group()
    found: Record = {}
    for name, size in SIZES.items():
        array = np.ones(size // 4, "float32")
        total = group.all_reduce(array, "sum")
        assert (total == 2).all(), "the sum is another one"
        array[...] = 0  # so that sums stay finite
        found[name] = timed(lambda array=array: group.all_reduce_over(array, "sum"), ROUNDS[name])
    return found


def sums_of_torch() -> Record:
    import torch  # type: ignore[import-not-found]
    import torch.distributed as dist  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: Record = {}
    for name, size in SIZES.items():
        array = torch.ones(size // 4)
        dist.all_reduce(array)
        assert bool((array == 2).all()), "the sum is another one"
        array.zero_()  # so that sums stay finite
        found[name] = timed(lambda array=array: dist.all_reduce(array), ROUNDS[name])
    dist.destroy_process_group()
    return found


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, LENGTH, INPUTS)).astype("float32")
    return x, rng.integers(0, CLASSES, size=BATCH).astype("int32")


def steps_of_ours(is_joined: bool) -> Record:
    import anabranch as ab

    strategy = ab.distribute.DataParallel() if is_joined else None
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = ab.Sequential([ab.Input((LENGTH, INPUTS)), ab.layers.LSTM(UNITS), ab.layers.Dense(CLASSES)])
        loss = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(ab.optimizers.SGD(0.01), loss)
    workers = 1 if strategy is None else strategy.num_workers
    x, y = (np.concatenate([each] * workers) for each in _data())
    assert sum(weight.size for weight in model.get_weights()) * 4 > 3.5e6
    return {"step": timed(lambda: model.train_on_batch(x, y), STEPS)}


def steps_with_adam(shard: Any) -> Record:
    """Time the steps of `fit` of four workers, of 4 MB of parameters; from the end of one to the end of the next."""
    import anabranch as ab

    strategy = ab.distribute.DataParallel(shard=shard)
    with strategy.scope():
        hidden = [ab.layers.Dense(700, "tanh") for _ in range(2)]
        model = ab.Sequential([ab.Input((INPUTS,)), *hidden, ab.layers.Dense(CLASSES)])
        model.compile(ab.optimizers.Adam(0.001), ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ZERO_STEPS * 4 * BATCH, INPUTS)).astype("float32")
    y = rng.integers(0, CLASSES, size=len(x)).astype("int32")
    ends: list[tuple[float, float]] = []

    class Ends(ab.callbacks.Callback):
        reads_batch_logs = False
        on_all_workers = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append((time.perf_counter(), time.process_time()))

    model.fit(x, y, batch_size=4 * BATCH, epochs=4, verbose=0, callbacks=[Ends()])
    pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)]
    whole = 2 * sum(weight.nbytes for weight in model.get_weights())  # the moments
    held = float(strategy.statistics().get("optimizer_bytes", whole))
    return {"step": [statistics.median(each) / ZERO_STEPS for each in zip(*pairs, strict=True)], "bytes": [held] * 2}


def train_on_a_ps(folder: Path) -> None:
    """Train a model of 100 MB of parameters on a ps, with backups, and note after each step how many there were."""
    import anabranch as ab

    strategy = ab.distribute.ParameterServer()
    with strategy.scope():
        hidden = [ab.layers.Dense(LARGE_UNITS, "tanh") for _ in range(2)]
        model = ab.Sequential([ab.Input((16,)), *hidden, ab.layers.Dense(1)])
        model.compile(ab.optimizers.SGD(0.001), "mse")

    class Noted(ab.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1
            _note(folder / "progress", f"{self.seen} {time.monotonic()}")
            if (folder / "enough").exists():
                self.model.stop_training = True

    x, y = np.ones((64, 16), "float32"), np.ones((64, 1), "float32")
    backup = ab.callbacks.BackupAndRestore(folder / "backup", save_freq=5)
    model.fit(x, y, batch_size=8, epochs=10**6, verbose=0, callbacks=[Noted(), backup])


def _note(path: Path, text: str) -> None:
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(text)
    own.replace(path)


def restart_a_ps(times: int) -> Iterator[str]:
    """Kill the ps of a training, again and again; gives a row for each time."""
    from anabranch.distribute.commands.processes import Launch

    yield "| a step, s | from killing the ps to the next step, s | goal |"
    yield "|---|---|---|"
    script = [str(Path(__file__).resolve()), "--trains"]
    with tempfile.TemporaryDirectory() as name, Launch(2, 1, [*script, name], max_restarts=10**6) as launch:
        folder = Path(name)
        waiting = threading.Thread(target=launch.wait)
        waiting.start()
        for _ in range(times):
            before = [_next_step(folder) for _ in range(12)]
            seconds = statistics.median(b - a for a, b in itertools.pairwise(before))
            killed = time.monotonic()
            launch.ps[0].kill()
            after = _next_step(folder)
            while after < killed + 0.5 * seconds:  # one that the ps had applied
                after = _next_step(folder)
            yield f"| {seconds:.2f} | {after - killed:.1f} | at most 10 |"
        (folder / "enough").touch()
        waiting.join()


def _next_step(folder: Path) -> float:
    """Wait for a step; return when it was made."""
    path, known = folder / "progress", ""
    with contextlib.suppress(FileNotFoundError):
        known = path.read_text()
    until = time.monotonic() + 300
    while time.monotonic() < until:
        time.sleep(0.005)
        with contextlib.suppress(FileNotFoundError):
            if path.read_text() != known:
                return float(path.read_text().split()[1])
    raise SystemExit("No step was made for five minutes.")


def steps_of_torch() -> Record:
    import torch  # type: ignore[import-not-found]
    import torch.distributed as dist  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.dense = torch.nn.LSTM(INPUTS, UNITS, batch_first=True), torch.nn.Linear(UNITS, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.dense(self.lstm(x)[0][:, -1])

    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = (torch.tensor(each) for each in _data())

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y.long())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    found = {"step": timed(step, STEPS)}
    dist.destroy_process_group()
    return found


TASKS: dict[str, Callable[[], Record]] = {
    "sums of ours": sums_of_ours,
    "sums of torch": sums_of_torch,
    "steps together": lambda: steps_of_ours(True),
    "steps alone": lambda: steps_of_ours(False),
    "steps of torch": steps_of_torch,
    "steps with parts": lambda: steps_with_adam("optimizer"),
    "steps with the whole": lambda: steps_with_adam(None),
}


# --- pairs ----------------------------------------------------------------------------------------------------------


def run(task: str, python: str, joins: bool = True) -> list[Record]:
    """Run a task's processes, each with one thread, as torchrun would number them; gives what each has measured."""
    count = WORKERS.get(task, 2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    common |= {"ANABRANCH_TOKEN": "a token for benchmarks, no secret"}
    if joins:
        common |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [python, str(Path(__file__).resolve()), "--process", task]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)} if joins else common, stdout=subprocess.PIPE)
        for rank in range(count)
    ]
    outputs = [process.communicate()[0].decode() for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{task!r} failed; its messages are above.")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def slower(records: Sequence[Record], key: str) -> list[float]:
    """Return seconds and seconds of the processor, of the slower process: both need each other."""
    return [max(record[key][number] for record in records) for number in range(2)]


def rows(
    ours: tuple[str, bool], other: tuple[str, bool], pythons: Sequence[str], pairs: int, limit: float
) -> Iterator[str]:
    """Measure pairs; gives a row of a table for each figure."""
    found = [(run(ours[0], pythons[0], ours[1]), run(other[0], pythons[1], other[1])) for _ in range(pairs)]
    yield "| | ours, ms | other, ms | ratios of the pairs | median | of processor time | goal |"
    yield "|---|---|---|---|---|---|---|"
    for key in [key for key in found[0][0][0] if key != "bytes"]:
        both = [(slower(one, key), slower(two, key)) for one, two in found]
        ratios = sorted(one[0] / two[0] for one, two in both)
        spent = statistics.median(one[1] / max(two[1], 1e-9) for one, two in both)
        first, second = (1000 * statistics.median(pair[side][0] for pair in both) for side in range(2))
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        goal = f"at most {GOALS.get(key, limit)}"
        yield (
            f"| {key} | {first:.3f} | {second:.3f} | {shown} | {statistics.median(ratios):.2f} | {spent:.2f} | {goal} |"
        )
    if "bytes" in found[0][0][0]:
        held = [max(record["bytes"][0] for record in side) for side in found[0]]
        parts, whole = (f"{count:,.0f} bytes" for count in held)
        yield f"| optimizer's state of a worker | {parts} | {whole} | | {held[0] / held[1]:.3f} | | at most 0.27 |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all_reduce", "two_workers", "ddp", "zero", "restart"])
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--pairs", type=int, default=5, help="how often (default: 5)")
    parser.add_argument("--process", choices=[*TASKS], help=argparse.SUPPRESS)
    parser.add_argument("--trains", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        print(json.dumps(TASKS[options.process]()), flush=True)
        return
    if options.trains is not None:
        train_on_a_ps(options.trains)
        return
    if options.what is None:
        parser.error("say what to measure: all_reduce, two_workers, ddp, zero or restart")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    if options.what == "restart":
        for row in restart_a_ps(options.pairs):
            print(row, flush=True)
        return
    pythons = [sys.executable, options.torch]
    sides = {
        "all_reduce": (("sums of ours", True), ("sums of torch", True)),
        "two_workers": (("steps together", True), ("steps alone", False)),
        "ddp": (("steps together", True), ("steps of torch", True)),
        "zero": (("steps with parts", True), ("steps with the whole", True)),
    }[options.what]
    if options.what in ("two_workers", "zero"):
        pythons[1] = sys.executable
    for row in rows(*sides, pythons, options.pairs, LIMITS.get(options.what, 1.0)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
