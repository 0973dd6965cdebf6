"""Runs independent pieces of a step at the same time: this thread takes one, and helpers take others.

Pieces are native loops and long NumPy operations, which use one core each and release the interpreter's lock while
they compute. They have no effects, and a piece that fails gives None: the step then runs it again by itself, in its
turn, so that errors are those of a step that runs one thing after the other. Products of matrices, which use all
threads already, are pieces of another kind: several of them are one call of native code (`parallel_products`).

Whether it pays is measured, not guessed (but for products): a group notes how long it takes one after the other and
side by side, keeps to what is faster, and tries the other way now and then. So it loses at most what those trials cost.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..codegen.host.threads import wanted_threads
from ..common.machine_profile import machine_profile
from ..graph.graph import Operation
from ..graph.op import Cost
from ..graph.spec import TensorSpec
from ..passes.framework.estimates import elements, flops_of
from ..passes.fusion.parallel_schedule import Piece, parallel_schedule

if TYPE_CHECKING:
    from ..codegen.regions.region import NativeRegion
    from .printer import Block

Result = tuple[Any, ...] | None
_MOST_ELEMENTS = 96 * 96  # of a matrix: with more, LAPACK's products use several cores
_PRODUCTS = ("matmul", "packed_mat_mul", "product_then")
_FEWEST_PRODUCTS = 4  # of fewer, threads may as well share each
_COLD = 3  # runs
_EARLY_TRIAL, _TRIAL = 8, 100  # runs after which a group tries what was slower, at first and later
_REMEMBERED = 3  # times of each way: the least of them is what it takes when nothing disturbs it


def piece_of(operation: Operation, natives: Mapping[Operation, NativeRegion], kernels: Collection[Operation]) -> Any:
    """Return the piece for a product, or for an operation that uses one core while others run; None for others."""
    native = natives.get(operation)
    if native is not None:
        return None if native.plan.run or native.plan.variables else Piece(native.seconds)
    kind = operation.op.type_name
    if kind in _PRODUCTS and operation in kernels:
        return Piece(_seconds_of_product(operation), "product", _FEWEST_PRODUCTS)
    if operation in kernels or operation.effects or operation.op.regions:
        return None
    specs = [tensor.spec for tensor in operation.inputs]
    per_element = operation.op.serial_nanoseconds
    if per_element is not None and all(isinstance(spec, TensorSpec) and spec.dtype.kind != "T" for spec in specs):
        return Piece(max(elements(spec.shape) for spec in specs if isinstance(spec, TensorSpec)) * per_element / 1e9)
    if operation.op.cost is Cost.FACTORISATION and all(_is_small(spec) for spec in specs):
        return Piece(flops_of(operation) * machine_profile().lapack_flop_seconds)
    return None


def _seconds_of_product(operation: Operation) -> float:
    """Estimate the time of a product; infinity where sizes are known when it runs only."""
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    if not all(isinstance(spec, TensorSpec) and spec.is_static for spec in specs):
        return math.inf
    return flops_of(operation) * machine_profile().product_flop_seconds


def _is_small(spec: Any) -> bool:
    shape = spec.shape if isinstance(spec, TensorSpec) else None
    return shape is not None and len(shape) > 1 and elements(shape[-2:]) <= _MOST_ELEMENTS


def arranged(
    operations: Sequence[Operation], natives: Mapping[Operation, NativeRegion], kernels: Collection[Operation]
) -> tuple[Sequence[Operation], list[list[Operation]]]:
    """Return the operations of a step in the order to print them, and which of them run side by side."""
    if wanted_threads() == 1:
        return operations, []
    in_runs = {inside for native in natives.values() for inside in native.plan.run}
    found = parallel_schedule(operations, lambda o: piece_of(o, natives, kernels), in_runs.__contains__)
    return found if found[1] else (operations, [])


# --- printing -------------------------------------------------------------------------------------------------------


def print_group(block: Block, group: Sequence[Operation]) -> None:
    """Print the call that runs a group; `printer.ran` then has an expression for the tuple that each operation gave."""
    printer = block.printer
    if group[0].op.type_name in _PRODUCTS:
        called = [_print_product(block, operation) for operation in group]
        run = printer.bind("products", _parallel_products().run_products)
    else:
        called = [_print_piece(block, operation) for operation in group]
        run = printer.bind("parallel_schedule", ParallelSchedule())
    results = [printer.fresh("ran") for _ in group]
    block.line(f"{', '.join(results)} = {run}({', '.join(piece for piece, _ in called)})")
    for operation, result, (_, again) in zip(group, results, called, strict=True):
        printer.ran[operation] = result, again


def _parallel_products() -> Any:
    from ..codegen.matmul import parallel_products  # llvmlite loads here

    return parallel_products


def _print_product(block: Block, operation: Operation) -> tuple[str, str]:
    """Print a product as a tuple of what computes it and its operands, and the call that runs it by itself."""
    printer = block.printer
    outputs = [tensor.spec for tensor in operation.outputs]
    member = _parallel_products().Member(printer.kernels[operation], outputs)
    arguments = [printer.bind(f"run_{operation.op.type_name}", member), *[block.names[t] for t in operation.inputs]]
    return f"({', '.join(arguments)})", f"{arguments[0]}({', '.join(arguments[1:])})"


def _print_piece(block: Block, operation: Operation) -> tuple[str, str]:
    """Print a piece as a tuple of function and arguments, and the call that runs it again ("" for a native loop)."""
    printer, native = block.printer, block.printer.natives.get(operation)
    if native is not None:
        names = [block.names[tensor] for tensor in native.plan.inputs]
        return f"({', '.join([printer.bind('native', native), 'stats', *names])})", ""
    inputs = dict.fromkeys(operation.inputs)
    passed = [n for n in dict.fromkeys(block.names[tensor] for tensor in inputs) if n not in printer.bindings]
    inside = block.detached(printer.fresh(f"piece_{operation.op.type_name}"), passed)
    inside.names.update((tensor, block.names[tensor]) for tensor in inputs)
    inside.print_operation(operation)
    inside.line(f"return ({', '.join(inside.names[tensor] for tensor in operation.outputs)},)")
    printer.add_function(inside.function)
    name = inside.function.name
    return f"({', '.join([name, *passed])}{'' if passed else ','})", f"{name}({', '.join(passed)})"


# --- running --------------------------------------------------------------------------------------------------------


class _Way:
    always: bool | None = None  # None: what is faster


@contextmanager
def always(is_parallel: bool) -> Generator[None]:
    """Run groups in the whole process side by side, or one after the other, inside of the block, whatever is faster."""
    before, _Way.always = _Way.always, is_parallel
    try:
        yield
    finally:
        _Way.always = before


class ParallelSchedule:
    """A group of pieces, called with them: each a function and its arguments. Gives what each gave, None if it failed.

    Attributes:
        times: what the latest runs one after the other took (False), and side by side (True).
    """

    def __init__(self) -> None:
        self.times: dict[bool, deque[float]] = {way: deque(maxlen=_REMEMBERED) for way in (False, True)}
        self._runs = 0

    def __call__(self, *pieces: tuple[Any, ...]) -> list[Result]:
        is_parallel = self._is_parallel() if _Way.always is None else _Way.always
        began = time.perf_counter()
        results = run_together(pieces) if is_parallel else [_result(piece) for piece in pieces]
        self._note(is_parallel, time.perf_counter() - began)
        return results

    def _is_parallel(self) -> bool:
        """Test whether to run in parallel: first not, then yes; from then on what was faster, but for trials."""
        self._runs += 1
        alone, together = self.times[False], self.times[True]
        if self._runs <= _COLD or not alone or min(alone) < 2 * machine_profile().thread_seconds:
            return False
        if not together:
            return True
        is_trial = self._runs % (_TRIAL if self._runs > _TRIAL else _EARLY_TRIAL) == 0
        return (min(together) < min(alone)) is not is_trial

    def _note(self, is_parallel: bool, seconds: float) -> None:
        if self._runs == 1 or (is_parallel and self._runs == _COLD + 1):
            return
        self.times[is_parallel].append(seconds)


def _result(piece: tuple[Any, ...]) -> Result:
    function, *arguments = piece
    try:
        return function(*arguments)
    except Exception:
        return None  # it is run again in its turn


def run_together(pieces: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Run all pieces, by this thread and helpers."""
    job = _Job(pieces)
    _helpers.ask(job, len(pieces) - 1)
    try:
        job.work()
        job.wait()
        return job.results
    finally:
        job.drop()


class _Job:
    """Pieces of which whoever is free takes the next. The asking thread waits for nobody who has not begun."""

    def __init__(self, pieces: Sequence[tuple[Any, ...]]) -> None:
        self.results: list[Result] = [None] * len(pieces)
        self._pieces = deque(enumerate(pieces))
        self._lock = threading.Lock()
        self._are_done = threading.Lock()
        self._are_done.acquire()
        self._helping = 0
        self._is_waited_for = False

    def work(self) -> None:
        """Run pieces until none is left."""
        results = self.results
        while True:
            try:
                number, piece = self._pieces.popleft()
            except IndexError:
                return
            results[number] = _result(piece)

    def help(self) -> None:
        """Help from another thread."""
        with self._lock:
            if not self._pieces:
                return
            self._helping += 1
        with suppress(BaseException):  # that piece runs again, in its turn, on the thread that asks
            self.work()
        with self._lock:
            self._helping -= 1
            is_last = self._is_waited_for and not self._helping
        if is_last:
            self._are_done.release()

    def wait(self) -> None:
        """Wait for the helpers that have begun; no piece is left for others."""
        with self._lock:
            if not self._helping:
                return
            self._is_waited_for = True
        self._are_done.acquire()

    def drop(self) -> None:
        """Hold nothing any more, though a helper that comes late may still hold the job."""
        self._pieces.clear()
        self.results = []


class _Helpers:
    """The threads of this process that take pieces; they are started when they are first asked."""

    def __init__(self) -> None:
        self.restart()

    def ask(self, job: _Job, wanted: int) -> None:
        """Let up to `wanted` helpers take part in `job`, in the context of this thread: its allocator, its errstate."""
        wanted = min(wanted, wanted_threads() - 1)
        if self._count < wanted:
            self._start(wanted)
        for _ in range(wanted):
            self._requests.put((copy_context(), job.help))

    def _start(self, count: int) -> None:
        with self._lock:
            for number in range(self._count, count):
                name = f"anabranch pieces {number + 1}"
                threading.Thread(target=_serve, args=(self._requests,), name=name, daemon=True).start()
            self._count = max(self._count, count)

    def restart(self) -> None:
        """Begin without threads, as a child process does, which has none of its parent's."""
        self._requests: SimpleQueue[tuple[Context, Callable[[], None]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0


def _serve(requests: SimpleQueue[tuple[Context, Callable[[], None]]]) -> None:
    while True:
        context, work = requests.get()
        context.run(work)
        del context, work


_helpers = _Helpers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.restart)
