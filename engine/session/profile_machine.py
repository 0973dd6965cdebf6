"""The command ``python -m anabranch profile-machine``: measure this machine, for what passes and kernels decide by.

It takes some seconds, and wants the machine for itself; docs/kernels.md says what the figures are for. Costs are
measured; what is worth another thread is scaled with what a thread costs to wake; other thresholds keep their defaults.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..common.machine_profile import VARIABLE, MachineProfile
from ..control_flow.while_loop import while_loop
from ..graph.graph import Graph
from .placeholder import placeholder
from .session import Session

_SECONDS = 0.2  # for each figure, at least
_ROUNDS = 7  # of which the median counts
_PART = 1.0  # times what waking a thread of kernels takes is a part worth: it is awake for the kernels that follow
_PAUSES, _PAUSE = 60, 2e-3  # seconds
_THREAD = 2.5  # times what waking a thread of Python and meeting it again takes is a piece of work worth
_ITERATIONS = 20_000
_SCALED = (  # by what waking a thread of kernels takes
    *("product_work", "product_part_work", "batch_part_work", "convolution_work", "quantized_work"),
    *(
        "narrow_part_elements",
        "parallel_elements",
        "parallel_row_elements",
        "row_change_elements",
        "single_elements",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("--output", metavar="FILE", help=f"write the profile there, for {VARIABLE}=FILE")


def run(options: argparse.Namespace) -> int:
    """Measure, print the figures beside the defaults, and write the profile if a file is named."""
    if options.output is not None and not os.access(os.path.dirname(options.output) or ".", os.W_OK):
        print(f"The profile can't be written to {options.output!r}: there is no folder that takes it.", file=sys.stderr)
        return 1
    profile = measured_profile()
    print(f"{profile.name}\n")
    print(f"{'figure':<24}{'default':>14}{'here':>14}")
    default = MachineProfile()
    for name in default.__dataclass_fields__:
        was, now = getattr(default, name), getattr(profile, name)
        if now != was and name not in ("name", "is_measured"):
            print(f"{name:<24}{_shown(was):>14}{_shown(now):>14}")
    print("\nFigures that are not listed keep their defaults.")
    if options.output is None:
        print("Nothing was written: --output FILE does so.")
        return 0
    try:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(profile.to_json())
    except OSError as error:
        print(f"The profile can't be written to {options.output!r}: {error.strerror}.", file=sys.stderr)
        return 1
    print(f"Written. Processes go by it where {VARIABLE}={options.output} is set; kernels are compiled once more.")
    return 0


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def measured_profile() -> MachineProfile:
    """Return a profile of this machine. Takes some seconds; what else runs on the machine disturbs it."""
    default = MachineProfile()
    waking, meeting = _seconds_to_wake_kernel_threads(), _seconds_to_meet_a_thread()
    part = _PART * waking * 1e9 if waking else default.part_nanoseconds
    scaled = {name: max(1, round(getattr(default, name) * part / default.part_nanoseconds)) for name in _SCALED}
    product = _seconds_a_flop_of_products()
    return replace(
        default,
        name=f"{platform.machine()} {platform.system()}, {os.cpu_count()} processors",
        is_measured=True,
        call_seconds=_seconds_to_call(),
        flop_seconds=_seconds_a_flop(),
        product_flop_seconds=product,
        lapack_flop_seconds=_seconds_a_flop_of_factorisations(),
        byte_seconds=_seconds_a_byte(),
        scalar_seconds=_seconds_an_iteration(np.float64(1.0)) / 2,
        array_seconds=_seconds_an_iteration(np.ones(8, np.float32)) / 2,
        thread_seconds=_THREAD * meeting,
        lock_seconds=_THREAD * meeting,
        first_cache_bytes=_first_cache() or default.first_cache_bytes,
        part_nanoseconds=part,
        **scaled,
    )


def _seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that a call of `work` takes: the median of some rounds of many calls."""
    work()
    start, calls = time.perf_counter(), 1
    work()
    while time.perf_counter() - start < _SECONDS / _ROUNDS:
        work()
        calls += 1
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        rounds.append((time.perf_counter() - start) / calls)
    return statistics.median(rounds)


def _seconds_to_call() -> float:
    x = np.ones(8, np.float32)
    return _seconds(lambda: np.add(x, x))


def _seconds_a_byte() -> float:
    source = np.ones(1 << 24, np.float32)  # more than caches hold
    target = np.empty_like(source)
    return _seconds(lambda: np.copyto(target, source)) / (2 * source.nbytes)


def _seconds_a_flop_of_factorisations(size: int = 64) -> float:
    matrix = np.eye(size) * size + 1.0
    return _seconds(lambda: np.linalg.cholesky(matrix)) / (size**3 / 3)


def _seconds_a_flop(size: int = 48) -> float:
    """Return a product that is too small for threads."""
    return _seconds_of_product(size) / (2 * size**3)


def _seconds_a_flop_of_products(size: int = 768) -> float:
    return _seconds_of_product(size) / (2 * size**3)


def _seconds_of_product(size: int) -> float:
    x = np.ones((size, size), np.float32)
    return _seconds(lambda: x @ x)


def _goes_on(t: Any, y: Any) -> Any:
    return t < _ITERATIONS


def _iterate(t: Any, y: Any) -> Any:
    return t + 1, y * 0.999 + 1.0


def _seconds_an_iteration(value: Any) -> float:
    """Return seconds of one iteration of a compiled loop with a product and a sum."""
    graph = Graph()
    with graph.as_default():
        x = placeholder(value.shape, value.dtype)
        step, result = while_loop(_goes_on, _iterate, (0, x))
    session = Session(graph)
    return _seconds(lambda: session.run([step, result], {x: value})) / _ITERATIONS


def _seconds_to_meet_a_thread() -> float:
    """Return seconds to wake a thread of Python and to hear from it."""
    ask, answer, is_over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def serve() -> None:
        while True:
            ask.acquire()
            if is_over.is_set():
                return
            answer.release()

    def call() -> None:
        ask.release()
        answer.acquire()

    helper = threading.Thread(target=serve, name="profile-machine", daemon=True)
    helper.start()
    seconds = _seconds(call)
    is_over.set()
    ask.release()
    helper.join()
    return seconds


def _seconds_to_wake_kernel_threads() -> float:
    """Return seconds that dealing out parts without work takes; 0 where there are no kernels, or one thread."""
    from ..codegen.host.threads import thread_count
    from ..codegen.llvm.builder import FunctionBuilder  # llvmlite loads here
    from ..codegen.llvm.library import library

    if not library.usable or thread_count() < 2:
        return 0.0
    task = FunctionBuilder("idle_part", ["ptr %context", "i64 %part"])
    start = FunctionBuilder("idle_parts", ["i64 %parts"], linkage="")
    start.call("anabranch_parallel", [("ptr", "@idle_part"), ("ptr", "null"), ("i64", "%parts")])
    engine = library.load("parts without work", lambda: task.text() + start.text())
    call = ctypes.PYFUNCTYPE(None, ctypes.c_int64)(engine.get_function_address("idle_parts"))
    rounds: list[float] = []
    for _ in range(_PAUSES):
        time.sleep(_PAUSE)  # until the threads sleep, as they do between steps
        begun = time.perf_counter()
        call(thread_count())
        rounds.append(time.perf_counter() - begun)
    return statistics.median(rounds)


def _first_cache() -> int:
    """Return the bytes of a core's first data cache; 0 where the system does not say."""
    try:
        return max(0, os.sysconf("SC_LEVEL1_DCACHE_SIZE"))
    except (AttributeError, OSError, ValueError):  # other systems than Linux
        return 0
