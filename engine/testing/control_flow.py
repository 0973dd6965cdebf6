"""Checks of an op in programs: inside branches and loops on both roads, and through a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..autodiff import gradients
from ..control_flow import cond, while_loop
from ..graph import Graph, Placeholder, Symbol, Tensor, TensorSpec, as_dtype
from ..graph.op import Sample, as_scalar_or_array, is_array
from ..graph.tensor import symbol_of
from ..ops.run_time_shapes import zeros_of
from ..runtime.program import Program
from ..session import Session
from .checks import LAYOUTS
from .comparing import assert_close, assert_identical, assert_same_form
from .derivatives import Probe

TIMES = 3  # iterations of the loops


def check_control_flow(sample: Sample, known: str = "static", kernels: bool = False, derivatives: bool = True) -> int:
    """Check that an op has the same values and derivatives in a branch, a loop that captures and one that carries.

    Both roads are compared: to the bit, or with `kernels` within rounding. Derivatives take most of the time; they
    can be left out.
    """
    probe = Probe(sample, known)
    targets, controls = build_programs(probe, derivatives)
    flat = [tensor for group in targets for tensor in group]
    program = Program(probe.graph, flat, [*probe.inputs, *controls], exact=not kernels)
    for taken in (True, False):
        feeds = {**probe.feeds, **controls.fed(taken)}
        found = probe.run(flat, feeds)
        for value, wanted in zip(program(*feeds.values()), found, strict=True):
            _assert_same_road(value, wanted, kernels)
        results = iter(found)
        groups = [[next(results) for _ in group] for group in targets]
        _compare_places(groups, taken)
    return 2 * len(targets)


def build_programs(probe: Probe, derivatives: bool = True) -> tuple[list[list[Symbol]], Controls]:
    """Build in the probe's graph results outside, in a branch and two loops; then the derivatives in those places."""
    controls = add_controls(probe.graph)
    with probe.graph.as_default():
        plain = probe.outputs(probe.inputs)
        targets = [plain, *values_inside(probe, plain, controls)]
        if probe.wanted and derivatives:
            targets += [probe.derivatives(loss) for loss in _losses(probe, plain, controls)]
    return targets, controls


def _compare_places(groups: list[list[Any]], taken: bool) -> None:
    """Compare the results in all places: equal, or zero if the branch is not taken and the loops do not run."""
    (plain, *values), (outside, *inside) = groups[:4], groups[4:] or [[]]
    for group in values:
        for value, wanted in zip(group, plain, strict=True):
            assert_identical(value, wanted if taken else as_scalar_or_array(np.zeros_like(wanted)))
    for group, factor in zip(inside, (1, TIMES, TIMES), strict=bool(inside)):
        for value, wanted in zip(group, outside, strict=True):
            assert_close(value, wanted * factor if taken else np.zeros_like(wanted), 1e-9)


class Controls(NamedTuple):
    """Scalars that are fed: which branch is taken, how often loops run, and the number one."""

    flag: Symbol
    times: Symbol
    one: Symbol

    def fed(self, taken: bool) -> dict[Symbol, Any]:
        """Return values with which the branch is taken and the loops run, or not."""
        return {self.flag: np.bool_(taken), self.times: np.int32(TIMES if taken else 0), self.one: np.float64(1)}


def add_controls(graph: Graph) -> Controls:
    """Return placeholders for the scalars."""
    scalars = [
        graph.add(Placeholder(TensorSpec((), as_dtype(dtype))), (), name).outputs[0]
        for name, dtype in (("flag", "bool"), ("count", "int32"), ("one", "float64"))
    ]
    return Controls(*scalars)


def _inside(probe: Probe, controls: Controls, step: Callable[[Any, Sequence[Tensor]], Any], start: Any) -> list[Any]:
    """Build `step` of `start` and the inputs in a branch, in a loop that captures them, and one that carries them.

    The loops repeat it.
    """

    def goes_on(number: Tensor, *_: Any) -> Tensor:
        return number < controls.times

    def captures(number: Tensor, state: Any) -> Any:
        return number + 1, step(state, probe.inputs)

    def carries(number: Tensor, xs: list[Tensor], state: Any) -> Any:
        return number + 1, _handed_on(xs, controls.one), step(state, xs)

    branch = cond(controls.flag, lambda: step(start, probe.inputs), lambda: start)
    _, captured = while_loop(goes_on, captures, (0, start), name="captures")
    _, _, carried = while_loop(goes_on, carries, (0, probe.inputs, start), name="carries")
    return [branch, captured, carried]


def values_inside(probe: Probe, plain: list[Symbol], controls: Controls) -> list[list[Symbol]]:
    """Return the results in a branch, in a loop that captures the inputs, and in one that carries them."""
    return _inside(probe, controls, lambda _, xs: probe.outputs(xs), [zeros_of(y) for y in plain])


def _losses(probe: Probe, plain: list[Symbol], controls: Controls) -> list[Tensor]:
    """Return the loss outside, in a branch, and added up by loops."""
    zero = ops.convert_to_tensor(0.0, "float64")
    inside = _inside(probe, controls, lambda total, xs: total + probe.loss(probe.outputs(xs)), zero)
    return [probe.loss(plain), *inside]


def _handed_on(xs: Sequence[Tensor], one: Tensor) -> list[Tensor]:
    """Return the loop variables of the next iteration: equal in value, but computed."""
    return [_computed(x, one) if x.spec.differentiable else x for x in xs]


def _computed(x: Tensor, one: Tensor) -> Tensor:
    """Return `x` to the bit: a complex product would change the signs of zeros."""
    return ops.where(one > 0, x, zeros_of(x)) if x.dtype.kind == "c" else x * one


def _assert_same_road(value: Any, wanted: Any, kernels: bool) -> None:
    if kernels:
        assert_close(value, wanted, 1e-9)
    else:
        assert_identical(value, wanted)


def check_session(sample: Sample, known: str = "static") -> int:
    """Check that a session, which fuses and specialises, gives the interpreter's results, for any layout of feeds.

    What follows the op in the graph is elementwise, so that its results become the operands of kernels.
    """
    probe = Probe(sample, known)
    with probe.graph.as_default():
        outputs = probe.outputs(probe.inputs)
        doubled = [symbol_of(y + y) if y.dtype.kind in "iuf" else y for y in outputs]
        targets = [*outputs, *doubled]
        if probe.wanted:
            loss = probe.loss(outputs)
            targets += [loss, *gradients(loss, probe.wanted)]
    expected = probe.run(targets)
    session = Session(probe.graph)
    for layout in (_as_it_is, *LAYOUTS.values()):
        feeds = {x: layout(v) if is_array(v) else v for x, v in probe.feeds.items()}
        found = map(as_scalar_or_array, session.run(targets, feeds))  # a single string is fetched as a str
        for value, wanted in zip(found, expected, strict=True):
            assert_same_form(value, wanted)
            assert_close(value, wanted, 1e-9)
    return 1 + len(LAYOUTS)


def _as_it_is(x: Any) -> Any:
    return x
