"""Ops on values run at once: the op is checked and its call is found once for each combination of shapes and dtypes.

What is found is a plan: the expression that compiled programs print for the op (`Op.emit`) as a function, else its
`run`. Divisions by zero, overflows and NaN come without NumPy's warnings, as in programs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..common.forks import fork_safe_lock
from ..common.operator_table import operator_functions
from ..common.quiet import quiet, quiet_context
from ..graph.context import devices_at_once, graph_context
from ..graph.op import Op, as_scalar_or_array, without_bare_strings
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from ..graph.value import FlowValue, Value

_MOST_PLANS = 4096
Plan = Callable[..., Any]  # of arrays; gives an array, or a tuple of them

_plans: dict[Any, Plan] = {}
_changing = fork_safe_lock()  # of `_plans`; looking up needs none


class _Quiet(threading.local):
    """The context of each thread in which NumPy does not warn; to enter it costs a tenth of `np.errstate`."""

    def __init__(self) -> None:
        self.run = quiet_context().run


_quiet = _Quiet()


class _Watch:
    """A holder of the function that checks each op that has run; None for no check.

    The function takes the op, the arrays that it took and those that it gave.
    """

    check: Callable[[Op, Sequence[Any], Sequence[Any]], None] | None = None


watch = _Watch()


def asked_device(asking: str) -> str:
    """Return the device that the scopes around ask for where something runs at once; "" for none.

    Args:
        asking: for errors: what runs.

    Raises:
        PlacementError: it is not declared.
        GpuUnavailableError: it is a GPU that is declared and can't be used.
    """
    name = graph_context.device if devices_at_once.open else ""
    return name if name and operator_functions["check_device"](asking, name) else ""


def run_now(op: Op, inputs: Sequence[Value], arrays: list[Any]) -> tuple[Value, ...]:
    """Return the outputs of `op` on values, noted by the tapes that record.

    Args:
        op: the op.
        inputs: values.
        arrays: theirs.

    Raises:
        ValueError, TypeError: the inputs do not fit the op (from `Op.infer`).
        PlacementError: a device is asked for that is not declared.
        GpuUnavailableError: a GPU is asked for that is declared and can't be used.
    """
    if devices_at_once.open:
        asked_device(f"Op {op.type_name!r}, which runs at once,")
    try:
        outputs = _outputs(op, inputs, arrays)
    except MemoryError as error:
        given = ", ".join(str(tensor.spec) for tensor in inputs) or "none"
        error.add_note(f"In op {op.type_name!r}; inputs: {given}. Give it smaller ones, or fewer rows at a time.")
        raise
    if watch.check is not None:
        watch.check(op, arrays, [output.array for output in outputs])
    for tensor in inputs:
        if tensor.of_weights:
            if op.type_name != "stop_gradient":
                for output in outputs:
                    output.of_weights = True
            break
    for tape in graph_context.tapes:
        tape.record(op, inputs, outputs)
    return outputs


def _outputs(op: Op, inputs: Sequence[Value], arrays: list[Any]) -> tuple[Value, ...]:
    try:
        key: Any
        if len(arrays) == 2:
            a, b = arrays
            key = op, a.shape, b.shape, a.dtype, b.dtype
        elif len(arrays) == 1:
            a = arrays[0]
            key = op, a.shape, a.dtype
        else:
            key = (op, *[(array.shape, array.dtype) for array in arrays])
        plan = _plans.get(key)
    except (AttributeError, TypeError):  # a TensorArray, or an op with fields that have no hash
        key = plan = None
    if plan is None:
        plan = None if key is None else _plan(op, inputs, arrays)
        if plan is None:
            return _run_once(op, inputs, arrays)
        _keep(key, plan)
    try:
        result = _quiet.run(plan, *arrays)
    except RuntimeError as error:
        if "cannot enter context" not in str(error):  # a finaliser that computes, in the middle of an op
            raise
        with quiet():
            result = plan(*arrays)
    # pyrefly: ignore[unknown-argument-type, unknown-variable-type] - items of a tuple that is known by its class alone
    return tuple([Value(array) for array in result]) if result.__class__ is tuple else (Value(result),)


def _run_once(op: Op, inputs: Sequence[Value], arrays: list[Any]) -> tuple[Value, ...]:
    """Return the outputs of an op that has no plan: it calls Python, holds state, or is of TensorArrays."""
    specs = op.infer(*[tensor.spec for tensor in inputs])
    with quiet():
        result = without_bare_strings(op.run(np, *arrays))
    if any(effect.writes for effect in op.effects()):
        graph_context.effects += 1
    given = specs if isinstance(specs, tuple) else (specs,)
    results = result if issubclass(result.__class__, tuple) else (result,)
    made = tuple([value_of(item, spec) for item, spec in zip(results, given, strict=True)])
    if len(made) == 1 and isinstance(made[0], FlowValue) and not any(isinstance(t, FlowValue) for t in inputs):
        made[0].origin = op, tuple(inputs)
    return made


def value_of(item: Any, spec: Any) -> Value:
    """Return the value of a computed `item`, which `spec` describes."""
    return Value(as_scalar_or_array(item)) if isinstance(spec, TensorSpec) else FlowValue(item, spec)


def _plan(op: Op, inputs: Sequence[Tensor], arrays: Sequence[Any]) -> Plan | None:
    """Return how an op is called on arrays of these shapes; None if that has to be found each time.

    Raises:
        ValueError, TypeError: the inputs do not fit the op.
    """
    if type(op).__hash__ is object.__hash__ or op.host_only or any(op.effects()):
        return None
    specs = op.infer(*[tensor.spec for tensor in inputs])
    if not all(isinstance(spec, TensorSpec) for spec in (specs if isinstance(specs, tuple) else (specs,))):
        return None
    names = [f"a{position}" for position in range(len(arrays))]
    if any(array.dtype.kind == "T" for array in arrays):
        return _stringly(op)
    source = op.emit(names)
    if source is None:
        return functools.partial(op.run, np)
    return eval(f"lambda {', '.join(names)}: {source}", {"np": np})


def _stringly(op: Op) -> Plan:
    return lambda *arrays: without_bare_strings(op.run(np, *arrays))


def _keep(key: Any, plan: Plan) -> None:
    with _changing:
        if len(_plans) >= _MOST_PLANS:  # the oldest quarter goes
            for old in list(islice(_plans, _MOST_PLANS // 4)):
                del _plans[old]
        _plans[key] = plan


__all__ = ["run_now", "value_of", "watch"]
