"""The choice of regions of a program that become native, compiled together."""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager

from ...common.machine_profile import machine_profile
from ...control_flow.call import Recursion
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Placeholder
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...passes.framework.log import note_change, note_kept
from ...passes.framework.prune import frame_users
from ...passes.loops.costs import loop_seconds, native_seconds, work_of_all
from ...passes.memory.storage import inner_blocks
from ...queues.stops import stopped_address
from ..expression.expression import UnsupportedError
from ..llvm.compiler import Effort
from ..llvm.library import library
from .alike import form_of
from .compiling import FREE, Plan, module_text, plan_alike, plan_block, plan_loop
from .function import TooLargeError
from .region import NativeRegion, entries, free_text
from .scalars import has_form

LEAST_RUN = 200  # operations: what is shorter is soon done on NumPy, too
LEAST_WORK = 500  # operations that loops run in a step, about half a millisecond: less is not worth compiling for
LEAST_OF_STEP = 50  # of these: a step whose loops run fewer gains nothing by being run again and again
WORK_OF_STEPS = 20_000  # of these, all steps together: what they cost more in Python, 3 us each, compiling costs, too
LEAST_STEP = 100  # operations of a step that assigns under conditions, from which it is compiled as a whole
_MANY_IN_PIECES = 3000  # operations
_PIECE = 1000  # operations: LLVM takes more than twice the time for twice as many

_LOOK = """
declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @anabranch_stopped()
define internal i32 @anabranch_look(ptr %needed) noinline cold {
  %place = getelementptr i64, ptr %needed, i64 1
  %address = load i64, ptr %place
  %requests = inttoptr i64 %address to ptr
  %count = load volatile i64, ptr %requests
  %is_asked = icmp ne i64 %count, 0
  br i1 %is_asked, label %ask, label %look
ask:
  %is_stopped = call i32 @anabranch_stopped()
  %ends = icmp ne i32 %is_stopped, 0
  br i1 %ends, label %stop, label %look
stop:
  ret i32 1
look:
  %code = load i64, ptr %needed
  %is_free = icmp eq i64 %code, FREE
  br i1 %is_free, label %free, label %held
held:
  %thread = call ptr @PyEval_SaveThread()
  call void @PyEval_RestoreThread(ptr %thread)
  %signal = call i32 @PyErr_CheckSignals()
  ret i32 %signal
free:
  %state = call i32 @PyGILState_Ensure()
  %found = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %state)
  ret i32 %found
}
""".replace("FREE", str(FREE))
_PYTHON = (
    *("PyErr_CheckSignals", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("PyGILState_Ensure", "PyGILState_Release"),
)


def native_regions(
    operations: Sequence[Operation],
    fetches: Iterable[Symbol],
    compiles_whole: bool = False,
    runs_often: bool = False,
) -> dict[Operation, NativeRegion]:
    """Return the native regions of a step: by the loop that each is, or by the first operation of a run.

    Args:
        operations: of the step.
        fetches: what is wanted of them.
        compiles_whole: all of it is to be one, if that can be.
        runs_often: it has run as often as `steps_until_worth` says, so that its loops are worth it.
    """
    if not library.usable:
        note_kept("native", None, "llvmlite can't compile on this machine")
        return {}
    plans: dict[Operation, Plan] = {}
    fetches = list(fetches)
    whole = _planned_step(operations, fetches) if compiles_whole or _is_worth_all(operations) else None
    if whole is not None:
        plans[whole.run[0]] = whole
    elif runs_often or _is_worth_it(operations):
        _find(operations, set(fetches), plans, {})
    outermost = set(operations)
    regions: dict[Operation, NativeRegion] = {}
    each: dict[Hashable, float] = {}
    for operation, plan in plans.items():
        if plan.is_whole:
            seconds = sum(map(native_seconds, operations))
        else:
            seconds = 0.0 if plan.run else loop_seconds(operation, each, plan.text)
        is_alone = not plan.variables or (plan.is_whole and not any(other.writes for other in operations))
        is_free = operation in outermost and seconds >= machine_profile().lock_seconds and is_alone
        regions[operation] = NativeRegion(plan, seconds, is_free)
    _compile(list(regions.values()))
    _note_regions(regions)
    return regions


@contextmanager
def least_work(operations: int) -> Generator[None]:
    """Set, inside of the block, how many operations loops must run so that steps have native ones."""
    before, _least.work = _least.work, operations
    try:
        yield
    finally:
        _least.work = before


class _Least:
    work = LEAST_WORK


_least = _Least()


def steps_until_worth(operations: Sequence[Operation]) -> int:
    """Return how often a step has to run until its loops are worth compiling, where a single step is not worth it.

    Returns:
        0 if they never are: there are none, they do too little, or are compiled at once.
    """
    work = work_of_all([operation for operation in operations if operation.op.regions], _least.work)
    if not library.usable or work is None or not LEAST_OF_STEP <= work < _least.work or _has_run(operations):
        return 0
    return -(-WORK_OF_STEPS // work)


def _is_worth_it(operations: Sequence[Operation]) -> bool:
    """Test whether a step has long runs, or loops that do enough or might do."""
    if _has_run(operations):
        return True
    loops = [operation for operation in operations if operation.op.regions]
    work = work_of_all(loops, _least.work)
    if work is None or work >= _least.work:
        return True
    for loop in loops:
        if isinstance(loop.op, While):
            few = f"the loops of the step run {work} operations, and from {_least.work} they are compiled at once"
            note_kept("native", loop, f"runs in Python: {few}")
    return False


def _find(
    operations: Sequence[Operation], kept: set[Symbol], plans: dict[Operation, Plan], by_form: dict[Hashable, Plan]
) -> None:
    """Plan the outermost loops that can be native, and long runs of scalars, here and in regions inside.

    Args:
        operations: of the step, or of a region.
        kept: what is wanted of them.
        plans: gets the plans.
        by_form: those of loops by their form (see `alike`).
    """
    users = frame_users(operations)
    runs = _runs(operations)
    used = _used_elsewhere(runs, operations, kept) if runs else set[Symbol]()
    for run in runs:
        made = [tensor for o in run if not isinstance(o.op, Constant) for tensor in o.outputs if tensor in used]
        plan = _planned_run(run, made)
        if plan is not None:
            plans[run[0]] = plan
    for operation in operations:
        if isinstance(operation.op, While) and _shows_what_is_missing(operation, users, kept):
            note_kept("native", operation, "runs in Python: what a branch in it saves is wanted outside")
        elif isinstance(operation.op, While):
            plan = _planned(operation, users.get(operation.outputs[-1], ()), by_form)
            if plan is not None:
                plans[operation] = plan
                continue
        if isinstance(operation.op, Recursion):
            continue  # frames of calls record what loops inside gather
        for inner, outliving in inner_blocks(operation):
            _find(inner, outliving, plans, by_form)


def _shows_what_is_missing(
    operation: Operation, users: Mapping[Symbol, Sequence[Operation]], kept: set[Symbol]
) -> bool:
    """Test whether the record is wanted of values that a branch in the loop saves.

    It has None where another branch was taken.
    """
    histories = [user for user in users.get(operation.outputs[-1], ()) if isinstance(user.op, History)]
    return any(_may_be_missing(user.outputs[0]) for user in histories if user.outputs[0] in kept)


def _may_be_missing(tensor: Symbol) -> bool:
    op = tensor.operation.op
    return isinstance(op, Saved) or (isinstance(op, History) and _may_be_missing(op.inner))


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Cut long runs of operations on scalars into pieces."""
    runs: list[list[Operation]] = []
    run: list[Operation] = []
    for operation in [*operations, None] if len(operations) >= LEAST_RUN else ():
        if operation is not None and (_is_scalar(operation) or (run and isinstance(operation.op, Constant))):
            run.append(operation)
            continue
        if len(run) >= LEAST_RUN:
            runs += [run[start : start + _PIECE] for start in range(0, len(run), _PIECE)]
        run = []
    return runs


def _has_run(operations: Sequence[Operation]) -> bool:
    """Test whether there is any run of scalars that is long enough."""
    length = 0
    for operation in operations if len(operations) >= LEAST_RUN else ():
        length = length + 1 if _is_scalar(operation) or (length and isinstance(operation.op, Constant)) else 0
        if length == LEAST_RUN:
            return True
    return False


def _is_scalar(operation: Operation) -> bool:
    """Test whether an operation takes and gives scalars, by one expression."""
    op = operation.op
    if not op.elementwise or operation.effects:
        return False
    if [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.shape != ()]:
        return False
    dtypes = tuple([tensor.dtype for tensor in operation.inputs])
    try:
        return has_form(op, dtypes, operation.outputs[0].dtype)
    except TypeError:  # an op that can't be hashed
        return False


def _used_elsewhere(
    runs: Sequence[Sequence[Operation]], operations: Sequence[Operation], kept: set[Symbol]
) -> set[Symbol]:
    """Return the tensors that are needed outside the run that makes them."""
    run_of = {operation: number for number, run in enumerate(runs) for operation in run}
    taken = {t for o in operations for t in o.inputs if run_of.get(o, -1) != run_of.get(t.operation, -2)}
    return taken | kept


def _is_worth_all(operations: Sequence[Operation]) -> bool:
    """Test whether all of a step should be one region.

    It assigns under conditions, and Python would take most of its time.

    Such a step is called again and again: by an agent, for each interaction.
    """
    if not any(isinstance(operation.op, Branch) and operation.writes for operation in operations):
        return False
    work = work_of_all(operations)
    if work is None or work < min(LEAST_STEP, _least.work):
        return False
    return sum(map(native_seconds, operations)) < work * machine_profile().call_seconds


def _planned_step(operations: Sequence[Operation], fetches: Sequence[Symbol]) -> Plan | None:
    """Return all of a step as one region."""
    run = [operation for operation in operations if not isinstance(operation.op, (Constant, Placeholder))]
    made = {tensor for operation in run for tensor in operation.outputs}
    outputs = [tensor for tensor in dict.fromkeys(fetches) if tensor in made]
    if not run:
        return None
    try:
        plan = plan_block(run, outputs, library.host, is_whole=True)
    except (UnsupportedError, TooLargeError) as error:
        note_kept("native", run[0], f"the step is not machine code as a whole: {_reason(error)}")
        return None
    plan.run, plan.is_whole = run, True
    return plan


def _planned_run(run: Sequence[Operation], outputs: Sequence[Symbol]) -> Plan | None:
    try:
        plan = plan_block(run, outputs, library.host) if outputs else None
    except (UnsupportedError, TooLargeError) as error:
        note_kept("native", run[0], f"{len(run)} scalars in a row are computed in Python: {_reason(error)}")
        return None
    if plan is not None:
        plan.run = list(run)
    return plan


def _planned(operation: Operation, users: Sequence[Operation], by_form: dict[Hashable, Plan]) -> Plan | None:
    form = form_of(operation, users)
    alike = by_form.get(form)
    if alike is not None:
        return plan_alike(alike, operation)
    try:
        plan = plan_loop(operation, users, library.host)
    except (UnsupportedError, TooLargeError) as error:
        note_kept("native", operation, f"runs in Python: {_reason(error)}")
        return None
    if form is not None:
        by_form[form] = plan
    return plan


def _reason(error: UnsupportedError | TooLargeError) -> str:
    """Return the reason that kept a region from being native, with its operation and the user's line that built it."""
    if isinstance(error, TooLargeError):
        return str(error)
    operation, text = error.operation, str(error)
    if operation is None:
        return f"there is no native form of {text}"
    name, location = operation.name, operation.location
    place = "" if location is None else f" ({os.path.basename(location.filename)}:{location.line})"
    what = "" if text in (operation.op.type_name, f"the value of {name!r}") else f": {text}"
    return f"{name!r}{place} has no native form{what}"


def _note_regions(regions: Mapping[Operation, NativeRegion]) -> None:
    """Say what is machine code as a whole."""
    for operation, region in regions.items():
        plan = region.plan
        what = "the step is" if plan.is_whole else f"{len(plan.run)} scalars in a row are" if plan.run else "is"
        note_change("native", operation, f"{what} one native function of {plan.summary}")


def _compile(regions: Sequence[NativeRegion]) -> None:
    """Compile one module for all of a program, and one for code so long that LLVM takes more time than it saves."""
    long = [region for region in regions if region.plan.in_pieces > _MANY_IN_PIECES]
    _compile_together([region for region in regions if region not in long], Effort.LARGE)
    _compile_together(long, Effort.PRINTED)


def _compile_together(regions: Sequence[NativeRegion], effort: Effort) -> None:
    """Compile one module; regions of the same text are one function."""
    if not regions:
        return
    texts = list(dict.fromkeys(region.plan.text for region in regions))
    names = {text: f"native_{number}" for number, text in enumerate(texts)}
    library.offer_python(_PYTHON)
    library.offer("anabranch_stopped", stopped_address())
    module = module_text([(name, text) for text, name in names.items()]) + _LOOK
    free = dict.fromkeys(names[region.plan.text] for region in regions if region.is_free)
    module += "".join(map(free_text, free))
    compiled = library.load(f"native {module}", lambda: module, effort)
    entries(regions, compiled, [names[region.plan.text] for region in regions])
