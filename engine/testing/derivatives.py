"""Derivatives against central differences in double precision: of ops, and of any function of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..autodiff import gradients
from ..common.nest import flatten
from ..graph import Graph, Placeholder, Tensor
from ..graph.op import Sample
from ..graph.spec import TensorSpec, shape_accepts
from ..graph.tensor import Symbol, symbol_of
from ..ops.base import as_array, build_multi
from ..runtime.interpreter import Interpreter
from .checks import in_double, in_float64
from .comparing import as_tuple, fail_unless, spec_of, weak_spec

STEP = 1e-5  # of the differences
TOLERANCE = 1e-6


def differentiable_positions(sample: Sample) -> list[int]:
    """Return the inputs whose derivatives are checked: those that the sample names, or all floating ones."""
    specs = [spec_of(x) for x in sample.inputs]
    if not any(spec.differentiable for spec in as_tuple(sample.op.infer(*specs))):
        return []
    chosen = range(len(specs)) if sample.differentiable is None else sample.differentiable
    return [position for position in chosen if specs[position].differentiable]


def _add(terms: Sequence[Tensor]) -> Symbol:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return symbol_of(total)


def _parts(x: Tensor) -> list[Tensor]:
    """Return the real and imaginary parts of a complex tensor; of any other, itself."""
    return [ops.real(x), ops.imag(x)] if x.dtype.kind == "c" else [x]


def _pulled(derivatives: Sequence[Tensor], pulls: Sequence[Any]) -> Symbol:
    """Return a weighted sum of derivatives."""
    return _add(
        [
            ops.sum(part * ops.convert_to_tensor(number * pull))
            for derivative, pull in zip(derivatives, pulls, strict=True)
            for number, part in enumerate(_parts(derivative), 1)
        ]
    )


def squared(outputs: Sequence[Tensor], weights: Sequence[Any]) -> Symbol:
    """Return a weighted sum of squares: its derivatives of both orders depend on those of what it is taken of."""
    return _add(
        [
            ops.sum(part * part * ops.convert_to_tensor(number * weight))
            for y, weight in zip(outputs, weights, strict=True)
            for number, part in enumerate(_parts(y), 1)
            if y.spec.differentiable
        ]
    )


class Probe:
    """A sample in double precision in a graph of its own, with a number that depends on every element of its results.

    Attributes:
        inputs, feeds: placeholders for the op's inputs, and their values.
        wanted: those inputs for which derivatives are asked; empty where nothing is differentiable.
    """

    def __init__(self, sample: Sample, known: str = "static") -> None:
        self.op, values = in_float64(sample)
        wide = dataclasses.replace(sample, op=self.op, inputs=values)
        self.graph = Graph()
        self.inputs = [
            self.graph.add(Placeholder(weak_spec(wide, position, known)), (), f"x{position}").outputs[0]
            for position in range(len(values))
        ]
        self.feeds: dict[Symbol, Any] = dict(zip(self.inputs, values, strict=True))
        self.results = as_tuple(self.op.run(np, *values))
        self.rng = np.random.default_rng(len(values))
        self.wanted = [self.inputs[position] for position in differentiable_positions(sample)]
        self._weights: list[Any] = [self.rng.uniform(0.5, 1.5, y.shape) for y in self.results]
        self._pulls: list[Any] = [self.rng.uniform(0.5, 1.5, self.feeds[x].shape) for x in self.wanted]

    def outputs(self, inputs: Sequence[Tensor]) -> list[Symbol]:
        """Return the op over `inputs`."""
        return list(build_multi(self.op, *inputs))

    def loss(self, outputs: Sequence[Tensor]) -> Symbol:
        """Return a number whose derivatives of both orders depend on the op's own."""
        return squared(outputs, self._weights)

    def slope(self, first: Sequence[Tensor]) -> Symbol:
        """Return a weighted sum of first derivatives."""
        return _pulled(first, self._pulls)

    def derivatives(self, loss: Tensor) -> list[Symbol]:
        """Return first derivatives for the wanted inputs, then those of `slope`."""
        first: list[Any] = gradients(loss, self.wanted)
        missing = [x.name for x, derivative in zip(self.wanted, first, strict=True) if derivative is None]
        fail_unless(not missing, f"no gradient comes back to {', '.join(missing)}")
        return [*first, *gradients(self.slope(first), self.wanted, unconnected_gradients="zero")]

    def run(self, targets: Sequence[Symbol], feeds: dict[Symbol, Any] | None = None) -> list[Any]:
        """Return the values of `targets` by the interpreter."""
        return Interpreter().run(self.graph, targets, self.feeds if feeds is None else feeds)


def check_derivatives(sample: Sample, known: str = "static", directions: int = 2) -> int:
    """Check that derivatives of both orders along random directions equal central differences.

    Args:
        sample: the case.
        known: how much is known of the shapes of the inputs: "static", "dims" (their number of axes) or "nothing".
        directions: how many directions are tried.
    """
    probe = Probe(sample, known)
    if not probe.wanted:
        return 0
    with probe.graph.as_default():
        loss = probe.loss(probe.outputs(probe.inputs))
        derivatives = probe.derivatives(loss)
        count = len(probe.wanted)
        slope = probe.slope(derivatives[:count])
    for x, derivative in zip(probe.wanted * 2, derivatives, strict=True):
        fail_unless(derivative.dtype == x.dtype, f"the derivative for {x!r} is {derivative.spec}")
        fits = shape_accepts(derivative.shape, probe.feeds[x].shape)
        fail_unless(fits, f"the derivative for {x!r} is {derivative.spec}")
    stages = [(loss, derivatives[:count]), (slope, derivatives[count:])]
    _compare(probe.run, stages, probe.wanted, probe.feeds, probe.rng, directions)
    return 2 * directions


def _compare(
    run: Callable[[Sequence[Symbol], dict[Symbol, Any]], list[Any]],
    stages: Sequence[tuple[Symbol, Sequence[Symbol]]],
    wanted: Sequence[Symbol],
    feeds: dict[Symbol, Any],
    rng: np.random.Generator,
    directions: int,
) -> None:
    """Check that each stage's number changes along random directions as its derivatives say."""
    found = [run([number, *derivatives], feeds) for number, derivatives in stages]
    for x, value in zip(list(wanted) * len(stages), [v for group in found for v in group[1:]], strict=True):
        shape = feeds[x].shape
        fail_unless(value.shape == shape, f"the derivative for {x!r} has shape {value.shape}, the input {shape}")
    for _ in range(directions):
        ways: list[Any] = [_direction(rng, feeds[x]) for x in wanted]
        ends: list[Any] = []
        for sign in (1, -1):
            moved = {x: (feeds[x] + sign * STEP * way)[()] for x, way in zip(wanted, ways, strict=True)}
            ends.append(run([number for number, _ in stages], {**feeds, **moved}))
        for order, (value, *slopes) in enumerate(found):
            numeric = (ends[0][order] - ends[1][order]) / (2 * STEP)
            # A complex gradient is dL/dx + i dL/dy, so that the conjugate of it makes the sum of both products.
            parts = [np.real(np.conj(slope) * way) for slope, way in zip(slopes, ways, strict=True)]
            scale = sum(np.abs(part).sum() for part in parts) + max(1.0, abs(value))
            exact = sum(part.sum() for part in parts)
            fail_unless(
                abs(exact - numeric) <= TOLERANCE * scale,
                f"derivative of order {order + 1}: the gradient says {exact}, differences say {numeric}",
            )


def check_gradients(
    function: Callable[..., Any], arguments: Sequence[Any], order: int = 2, directions: int = 3, seed: int = 0
) -> int:
    """Compare the derivatives of a Python function of tensors with central differences in double precision.

    Args:
        function: takes tensors and returns a tensor or a structure of tensors.
        arguments: arrays or numbers, one for each parameter; floating ones are taken in float64 and differentiated
            with respect to, others are handed over as they are. Choose values away from kinks.
        order: the highest order of derivatives compared.
        directions: along how many random directions.
        seed: of those directions.

    Returns:
        How many derivatives were compared.

    Raises:
        AssertionError: a derivative differs, or no gradient comes back to an argument.
        ValueError: nothing can be differentiated.

    >>> import anabranch as ab
    >>> ab.testing.check_gradients(lambda x: ab.ops.sin(x) * x, [[0.5, 2.0]], order=2)
    6
    """
    rng = np.random.default_rng(seed)
    graph = Graph()
    with graph.as_default():
        values = [in_double(as_array(argument)) for argument in arguments]
        inputs = [
            graph.add(Placeholder(TensorSpec(value.shape, value.dtype)), (), f"argument_{position}").outputs[0]
            for position, value in enumerate(values)
        ]
        feeds: dict[Symbol, Any] = dict(zip(inputs, values, strict=True))
        wanted = [x for x in inputs if x.spec.differentiable]
        outputs = [graph.capture(ops.convert_to_tensor(y)) for y in flatten(function(*inputs))]
        if not wanted or not any(y.spec.differentiable for y in outputs):
            raise ValueError("check_gradients: neither arguments nor results may all be integers.")
        shapes = [y.shape for y in Interpreter().run(graph, outputs, feeds)]
        number = squared(outputs, [rng.uniform(0.5, 1.5, shape) for shape in shapes])
        stages: list[tuple[Symbol, Sequence[Symbol]]] = []
        for _ in range(order):
            derivatives: list[Any] = gradients(number, wanted, unconnected_gradients="zero" if stages else "none")
            missing = [x.name for x, derivative in zip(wanted, derivatives, strict=True) if derivative is None]
            fail_unless(not missing, f"no gradient comes back to {', '.join(missing)}")
            stages.append((number, derivatives))
            number = _pulled(derivatives, [rng.uniform(0.5, 1.5, feeds[x].shape) for x in wanted])
    _compare(lambda targets, fed: Interpreter().run(graph, targets, fed), stages, wanted, feeds, rng, directions)
    return order * directions


def _direction(rng: np.random.Generator, like: Any) -> Any:
    parts: Any = rng.normal(size=(2, *like.shape))
    return parts[0] + 1j * parts[1] if like.dtype.kind == "c" else parts[0]
