"""Fresh processes, pinned threads, interleaved rounds: how the lines of `plan.py` become figures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from line import Line

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
Record = dict[str, Any]


@dataclass(frozen=True)
class Interpreters:
    """The Pythons: ours (this one), the peers' and PyTorch's. None where the environment is not there."""

    peers: Path | None
    torch: Path | None

    @classmethod
    def find(cls) -> Interpreters:
        """`PEERS_PY` and `PEERS_PY_TORCH` if set, else what `peers/make_env.sh` built."""

        def one(variable: str, folder: str) -> Path | None:
            path = Path(os.environ.get(variable) or PEERS / folder / "bin" / "python")
            return path if path.exists() else None

        return cls(one("PEERS_PY", ".env"), one("PEERS_PY_TORCH", ".env-torch"))

    def of(self, row: str) -> Path | None:
        """The Python that runs a peer's or a floor's row. NumPy's rows run in ours: same NumPy, same BLAS."""
        if row.startswith("numpy_"):
            return Path(sys.executable)
        return self.torch if "torch" in row else self.peers


@dataclass(frozen=True)
class Settings:
    """Settings of a run: rounds, seconds' scale, threads, and whether real-time priority is to be had."""

    rounds: int = 3
    budget: float = 1.0
    threads: int = 2
    timeout: float = 300.0
    realtime: bool = False
    quick: bool = False


@dataclass
class FirstSteps:
    """Seconds that first steps took, compilation included: with an empty kernel cache, and with what that left."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


@dataclass
class Measured:
    """All of one line, by row: a record for each process that succeeded, why the others failed, ours' first steps."""

    line: Line
    records: dict[str, list[Record]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    first_steps: dict[str, FirstSteps] = field(default_factory=dict)


def can_run_realtime() -> bool:
    """Test whether `chrt -r 1` is there and allowed."""
    if shutil.which("chrt") is None:
        return False
    return subprocess.run(["chrt", "-r", "1", "true"], capture_output=True, check=False).returncode == 0


def pin_to_processors(count: int) -> None:
    """Keep this process and its children on `count` processors: TensorFlow and XLA heed nothing else."""
    if sys.platform != "linux":
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def environment_of(row: str, settings: Settings, cache: str) -> dict[str, str]:
    environment = dict(
        os.environ,
        TF_CPP_MIN_LOG_LEVEL="3",
        PYTHONWARNINGS="ignore",
        JAX_PLATFORMS="cpu",
        CUDA_VISIBLE_DEVICES="",
        PEERS_BUDGET=str(settings.budget),
        ANABRANCH_CACHE_DIR=f"{cache}/anabranch",
        TORCHINDUCTOR_CACHE_DIR=f"{cache}/torch",  # empty at the start of a run: first steps include compilation
        PYTENSOR_FLAGS=f"base_compiledir={cache}/pytensor",
    )
    environment.update(dict.fromkeys(THREAD_VARIABLES, str(settings.threads)))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # imports are measured with byte code, as users have it
    if row.startswith("keras_"):
        backend = row.split("_")[1]
        environment["KERAS_BACKEND"] = {"tf": "tensorflow"}.get(backend, backend)
    return environment


def measure_row(
    line: Line, row: str, python: Path, settings: Settings, cache: str, *, first_only: bool = False
) -> tuple[Record | None, str]:
    """Run one row, or its first step, in a fresh process: (its record, "") or (None, why not)."""
    ours = row in line.goals
    side, module = ("ours", line.our_module) if ours else ("peers", line.peer_module)
    command = [str(python), str(HERE / "worker.py"), side, module, row, json.dumps(dict(line.params))]
    if settings.realtime:
        command = ["chrt", "-r", "1", *command]
    environment = environment_of(row, settings, cache)
    if first_only:
        environment["PEERS_FIRST_ONLY"] = "1"
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=settings.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no result within {settings.timeout:g} s"
    records = [text for text in done.stdout.splitlines() if text.startswith("@@")]
    if not records:
        return None, _last_error(done.stderr) or f"exit status {done.returncode}"
    elapsed = round(time.perf_counter() - started, 2)
    return dict(json.loads(records[-1][2:]), process_s=elapsed), ""


def _last_error(text: str) -> str:
    """The line of a traceback that names the error, or the last line."""
    lines = text.strip().splitlines()
    named = [line for line in lines if "Error" in line[:60]]
    return (named or lines or [""])[-1][:300]


def rows_of(line: Line, interpreters: Interpreters, settings: Settings, number: int) -> Iterator[tuple[str, Path]]:
    """The rows to run in round `number`, ours first, each with its Python; rows without one are left out."""
    for row in line.goals:
        yield row, Path(sys.executable)
    for row in (*line.peers, *line.floors):
        python = interpreters.of(row)
        if python is None or (row in line.slow and (settings.quick or number > 0)):
            continue
        yield row, python


def measure(
    lines: tuple[Line, ...],
    interpreters: Interpreters,
    settings: Settings,
    report: Callable[[Line, str, int, Record | None, str], None],
    finished: Path | None = None,
) -> list[Measured]:
    """Measure `lines`: within a line, rows take turns (A B C, A B C), so that a slow spell of the machine hits all.

    Args:
        lines: What to measure.
        interpreters: Where the peers live.
        settings: Rounds (a line may want fewer) and limits.
        report: called after each process with (line, row, round, record or None, failure).
        finished: a file that keeps each line as soon as it is measured; lines that it has are not measured again.

    Returns:
        One `Measured` a line. A row that failed once is not run again.
    """
    done = read_finished(finished, lines, settings)
    results = [done.get(_name(line)) or Measured(line) for line in lines]
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as cache:
        for index, result in enumerate(results):
            if _name(result.line) in done:
                continue
            rounds = min(settings.rounds, result.line.most_rounds)
            for number in range(rounds):
                _run_round(result, interpreters, settings, number, cache, report)
            for number in range(rounds if result.line.trains else 0):
                _run_first_steps(result, settings, f"{cache}/first-{index}-{number}")
            if finished:
                append_finished(finished, result, settings)
    return results


def append_finished(file: Path, result: Measured, settings: Settings) -> None:
    """Append what was measured of one line to `file`, as one line of JSON."""
    first_steps = {row: asdict(steps) for row, steps in result.first_steps.items()}
    kept = {"records": result.records, "failures": result.failures, "first_steps": first_steps}
    with file.open("a", encoding="utf-8") as text:
        text.write(json.dumps({"line": _name(result.line), "as": _conditions(result.line, settings), **kept}) + "\n")


def read_finished(file: Path | None, lines: tuple[Line, ...], settings: Settings) -> dict[str, Measured]:
    """Return what `append_finished` wrote of `lines`, by their names; a last entry that was cut off is removed.

    Raises:
        SystemExit: a line was measured in another way, such as with fewer rows or rounds.
    """
    if file is None or not file.exists():
        return {}
    whole, _, rest = file.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        file.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
    entries = {entry["line"]: entry for entry in map(json.loads, whole.splitlines())}
    found: dict[str, Measured] = {}
    for line in lines:
        entry = entries.get(_name(line))
        if entry is None:
            continue
        if entry["as"] != _conditions(line, settings):
            raise SystemExit(
                f"{file} has {_name(line)!r} as measured with {entry['as']}, and this run measures it with "
                f"{_conditions(line, settings)}. Give the options of that run, or another file."
            )
        found[_name(line)] = _measured(line, entry)
    return found


def _conditions(line: Line, settings: Settings) -> dict[str, Any]:
    """Return what figures depend on beside the code that is measured."""
    return {
        "rows": [*line.goals, *line.peers, *line.floors],
        "rounds": settings.rounds,
        "budget": settings.budget,
        "threads": settings.threads,
        "quick": settings.quick,
        "realtime": settings.realtime,
    }


def _name(line: Line) -> str:
    return f"{line.title}: {line.what}"


def _measured(line: Line, entry: Record) -> Measured:
    first_steps = {row: FirstSteps(**steps) for row, steps in entry["first_steps"].items()}
    return Measured(line, entry["records"], entry["failures"], first_steps)


def _run_first_steps(result: Measured, settings: Settings, cache: str) -> None:
    """Two processes for each row of ours, of which the second finds the kernels that the first compiled."""
    for row in result.line.goals:
        if row in result.failures:
            continue
        cold, failure = _first_step(result.line, row, settings, f"{cache}-{row}")
        warm, failure = _first_step(result.line, row, settings, f"{cache}-{row}") if cold else (None, failure)
        if cold is None or warm is None:
            result.failures[row] = failure
            continue
        found = result.first_steps.setdefault(row, FirstSteps())
        found.cold.append(cold)
        found.warm.append(warm)


def _first_step(line: Line, row: str, settings: Settings, cache: str) -> tuple[float | None, str]:
    """The seconds of a first step in a fresh process, or None and why not."""
    record, failure = measure_row(line, row, Path(sys.executable), settings, cache, first_only=True)
    return (record["compile_or_first_step_s"] if record else None), failure


def _run_round(
    result: Measured,
    interpreters: Interpreters,
    settings: Settings,
    number: int,
    cache: str,
    report: Callable[[Line, str, int, Record | None, str], None],
) -> None:
    for row, python in rows_of(result.line, interpreters, settings, number):
        if row in result.failures:
            continue
        record, failure = measure_row(result.line, row, python, settings, cache)
        if record is None:
            result.failures[row] = failure
        else:
            result.records.setdefault(row, []).append(record)
        report(result.line, row, number, record, failure)
