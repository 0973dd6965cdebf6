"""Random programs over arrays of any shape: operations between loops, branches and functions in each other.

The programs of `generator` have values of a few shapes, and a meaning in NumPy. These have any shapes, with sizes of 1
and without rows, and many more operations; their ways to run are compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.common.dtypes import is_floating

ops = ab.ops
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17)
_MOST = 1500  # elements of a value
_LONGEST = 8  # rows over which a loop goes
_Shape = tuple[int, ...]
_Values = list[Any]


class _UnfitError(Exception):
    """Nothing that is there fits what was drawn."""


@dataclass
class Step:
    """A statement of a program.

    Attributes:
        name: what a failure prints.
        apply: makes the value, from all values that are in scope and from its arguments.
        arguments: the numbers of the values that it takes.
        bodies: of a loop, branch or function.
    """

    name: str
    apply: Callable[..., Any]
    arguments: Sequence[int]
    bodies: Sequence[Body] = ()

    def __str__(self) -> str:
        inner = "".join(f" {{{body}}}" for body in self.bodies)
        return f"{self.name}({', '.join(map(str, self.arguments))}){inner}"


@dataclass
class Plan:
    """Statements one after the other, and the numbers of their results; all values if there are none."""

    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def run(self, values: Sequence[Any]) -> _Values:
        known = list(values)
        for step in self.steps:
            known.append(step.apply(known, *[known[number] for number in step.arguments]))
        return [known[number] for number in self.results] if self.results else known


class Body:
    """The body of a loop, branch or function: it is drawn where it is traced first, and repeated after that.

    Args:
        flow: what draws it.
        shapes: those of its results.
        depth: how deep loops and branches may be in it.
        count: how many statements it has.
        is_closed: whether it sees its parameters alone.
    """

    def __init__(self, flow: Flow, shapes: Sequence[_Shape], depth: int, count: int, is_closed: bool = False) -> None:
        self._flow, self._shapes, self._depth, self._count = flow, shapes, depth, count
        self._is_closed = is_closed
        self._plan: Plan | None = None

    def __call__(self, values: Sequence[Any], *parameters: Any) -> _Values:
        known = [*(() if self._is_closed else values), *parameters]
        if self._plan is None:
            self._plan = self._flow.plan(known, len(known) - len(parameters), self._shapes, self._depth, self._count)
        return self._plan.run(known)

    def __str__(self) -> str:
        return "; ".join(map(str, self._plan.steps)) if self._plan else ""


class _Fitted:
    """Bring a value to a shape: as it is, broadcast, or its mean. The first choice holds, where sizes are open too."""

    def __init__(self, shape: _Shape, dtype: str) -> None:
        self._shape, self._dtype = shape, dtype
        self._how = ""

    def __call__(self, _: Any, x: Any) -> Any:
        x = ops.cast(x, self._dtype)
        if not self._how:
            self._how = self._way(tuple(x.shape))
        if self._how == "same":
            return ops.tanh(x)
        if self._how != "broadcast":
            x = ops.mean(x) if self._how == "mean" else ops.sum(x)
        return ops.broadcast_to(ops.tanh(x), self._shape)

    def _way(self, shape: _Shape) -> str:
        if _broadcasts(shape, self._shape):
            return "same" if shape == self._shape else "broadcast"
        return "sum" if 0 in shape else "mean"


def _broadcasts(shape: _Shape, target: _Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


# --- operations -----------------------------------------------------------------------------------------------------


@ab.custom_gradient
def _with_a_gradient_of_its_own(x: Any) -> Any:
    return ops.sin(x), lambda upstream: upstream * ops.cos(x)


def _inverse(x: Any) -> Any:
    return ops.inv(_definite(x))


def _definite(x: Any) -> Any:
    y: Any = ops.tanh(x)
    return y @ ops.swapaxes(y, -1, -2) / y.shape[-1] + ops.eye(y.shape[-2], dtype=y.dtype)


# Of a value and a number between -1 and 1.
_ELEMENTWISE: dict[str, Callable[[Any, float], Any]] = {
    "tanh": lambda x, c: ops.tanh(x),
    "sigmoid": lambda x, c: ops.sigmoid(x + c),
    "exp": lambda x, c: ops.exp(ops.minimum(x, 1.5)),
    "relu": lambda x, c: ops.relu(x + c),
    "abs": lambda x, c: ops.abs(x),
    "square": lambda x, c: ops.square(ops.tanh(x)),
    "sqrt": lambda x, c: ops.sqrt(ops.abs(x) + 0.5),
    "log": lambda x, c: ops.log(ops.abs(x) + 1),
    "gelu": lambda x, c: ops.gelu(x),
    "silu": lambda x, c: ops.silu(x),
    "elu": lambda x, c: ops.elu(x),
    "erf": lambda x, c: ops.erf(x),
    "rsqrt": lambda x, c: ops.rsqrt(x * x + 0.5),
    "reciprocal": lambda x, c: ops.reciprocal(1.5 + x * x),
    "cos": lambda x, c: ops.cos(x),
    "clip": lambda x, c: ops.clip(x, -1, c + 1.2),
    "cube": lambda x, c: ops.tanh(x) ** 3,
    "stop_gradient": lambda x, c: ops.stop_gradient(ops.sign(x + c)) * x,
    "scaled": lambda x, c: c - x * c,
    "where": lambda x, c: ops.where(x > c, ops.sin(x), x * 0.5),
    "power": lambda x, c: ops.power(ops.abs(x) + 0.3, c),
    "gradient": lambda x, c: _with_a_gradient_of_its_own(x),
    "remat": lambda x, c: ab.remat(lambda y: ops.sin(y) * ops.tanh(y + c))(x),
    "mod": lambda x, c: ops.mod(x, 1.3),
    "maximum": lambda x, c: ops.maximum(x, c),
    "compared": lambda x, c: ops.cast(x > c, x.dtype) * x,
    "size": lambda x, c: x / (1 + ops.cast(ops.size(x), x.dtype)),
}
_OF_TWO: dict[str, Callable[[Any, Any, float], Any]] = {
    "add": lambda x, y, c: x + y,
    "subtract": lambda x, y, c: x - y,
    "multiply": lambda x, y, c: x * y,
    "divide": lambda x, y, c: x / (1 + y * y),
    "maximum": lambda x, y, c: ops.maximum(x, y),
    "where": lambda x, y, c: ops.where(x > y + c, x, y),
    "atan2": lambda x, y, c: ops.arctan2(x, y * y + 1),
    "logaddexp": lambda x, y, c: ops.logaddexp(x, y),
    "power": lambda x, y, c: ops.power(ops.abs(x) + 0.5, ops.clip(y, -2, 2)),
    "gate": lambda x, y, c: x * ops.sigmoid(y),
    "both": lambda x, y, c: ops.where(ops.logical_and(x > 0, y < c), x, y),
}
# Of a value and an axis, or all of them; and whether that axis stays.
_REDUCED: dict[str, Callable[[Any, Any, bool], Any]] = {
    "sum": lambda x, axis, keep: ops.sum(x, axis, keepdims=keep) * 0.5,
    "mean": lambda x, axis, keep: ops.mean(x, axis, keepdims=keep),
    "max": lambda x, axis, keep: ops.max(x, axis, keepdims=keep),
    "prod": lambda x, axis, keep: ops.prod(ops.tanh(x) + 0.5, axis, keepdims=keep),
    "logsumexp": lambda x, axis, keep: ops.logsumexp(x, axis, keepdims=keep),
    "var": lambda x, axis, keep: ops.var(x, axis, keepdims=keep),
    "norm": lambda x, axis, keep: ops.sqrt(ops.sum(x * x, axis, keepdims=keep) + 0.1),
    "any": lambda x, axis, keep: ops.cast(ops.any(x > 0.5, axis, keepdims=keep), x.dtype),
    "centred": lambda x, axis, keep: x - ops.mean(x, axis, keepdims=True),
    "normalized": lambda x, axis, keep: x * ops.rsqrt(ops.sum(x * x, axis, keepdims=True) + 0.1),
    "softmax": lambda x, axis, keep: ops.exp(x - ops.logsumexp(x, axis, keepdims=True)),
}
_ALONG: dict[str, Callable[[Any, int], Any]] = {
    "cumsum": lambda x, axis: ops.cumsum(x, axis) * 0.3,
    "cumprod": lambda x, axis: ops.cumprod(ops.tanh(x) + 0.4, axis),
    "sort": lambda x, axis: ops.sort(x, axis),
    "argsort": lambda x, axis: ops.take_along_axis(x, ops.argsort(x * 0.7, axis), axis),
    "argmax": lambda x, axis: ops.cast(ops.argmax(x, axis), x.dtype) * 0.1,
    "log_softmax": lambda x, axis: ops.log_softmax(x, axis),
    "associative_scan": lambda x, axis: ab.associative_scan(
        lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (ops.tanh(x), x), axis=axis
    )[1],
    "reversed": lambda x, axis: ops.flip(ops.cumsum(ops.flip(x, axis), axis), axis) * 0.3,
    "flip": lambda x, axis: ops.flip(x, axis),
    "roll": lambda x, axis: ops.roll(x, 2, axis),
    "every_other": lambda x, axis: ops.moveaxis(ops.moveaxis(x, axis, 0)[::-2], 0, axis),
    "repeat": lambda x, axis: ops.repeat(x, 2, axis=axis),
    "layer_normalization": lambda x, axis: ops.layer_normalization(x, axis=axis, epsilon=0.1),
    "last": lambda x, axis: ops.take(x, -1, axis=axis),
}
_OF_MATRICES: dict[str, Callable[[Any], Any]] = {
    "gram": lambda x: x @ ops.swapaxes(x, -1, -2) / x.shape[-1],
    "inverse": _inverse,
    "cholesky": lambda x: ops.cholesky(_definite(x)),
    "logdet": lambda x: ops.logdet(_definite(x)),
    "tril": lambda x: ops.tril(x, -1),
    "diagonal": lambda x: ops.diagonal(x, 0, -2, -1),
    "solve": lambda x: ops.solve(_definite(x), x),
}
_BY_INDICES: dict[str, Callable[..., Any]] = {
    "take": lambda x, at, rows: ops.take(x, at, axis=0),
    "gather_nd": lambda x, at, rows: ops.gather_nd(x, ops.expand_dims(at, -1)),
    "row": lambda x, at, rows: x[at[0]],
    "tensor_scatter_nd_add": lambda x, at, rows: ops.tensor_scatter_nd_add(x, ops.expand_dims(at, -1), rows),
    "scatter_nd": lambda x, at, rows: ops.scatter_nd(ops.expand_dims(at, -1), rows, x.shape) + x * 0.1,
    "slice_update": lambda x, at, rows: ops.slice_update(x, [at[0]] + [0] * (x.ndim - 1), rows[:1]),
    "segment_sum": lambda x, at, rows: ops.segment_sum(rows, at, num_segments=x.shape[0]),
    "embedded": lambda x, at, rows: ops.one_hot(at, x.shape[0], dtype=x.dtype) @ ops.reshape(x, (x.shape[0], -1)),
}


class Flow:
    """A program that a seed draws.

    Args:
        seed: of the draws.
        dtype: of its floats.
        depth: how deep loops and branches may be in each other.

    Attributes:
        data: the inputs; floats first, then integers and a bool.
        floats: how many of them are floats.
        graph, inputs, outputs: the program with all sizes known, as it was drawn.
    """

    def __init__(self, seed: int, dtype: str = "float64", depth: int = 2) -> None:
        self._rng = np.random.default_rng(seed)
        self._dtype = dtype
        shapes = self._shapes()
        self.floats = len(shapes)
        self.data: list[Any] = [np.asarray(self._rng.normal(size=shape), dtype) for shape in shapes]
        self.data += [np.asarray(self._number(0, 5), "int32"), self._rng.integers(0, 6, 3).astype("int32")]
        self.data += [np.asarray(self._happens(0.5))]
        self.graph = ab.Graph()
        self._plan = Plan()
        with self.graph.as_default():
            self.inputs = self.placeholders()
            values = list(self.inputs)
            self._fill(self._plan, values, self._number(3, 8), depth)
            self._last = self._results(values)
            self.outputs = [values[number] for number in self._last]
        self._weights = [self._rng.normal(size=tuple(output.shape)) for output in self.outputs]
        self.directions = [self._rng.normal(size=shape) for shape in shapes]

    def __str__(self) -> str:
        steps = [f"{len(self.data) + number}: {step}" for number, step in enumerate(self._plan.steps)]
        return "\n".join([f"inputs {[array.shape for array in self.data]}", *steps, f"results {self._last}"])

    def placeholders(self, are_open: bool = False) -> _Values:
        """Return new inputs, of unknown sizes if they are open."""
        return [ab.placeholder([None] * x.ndim if are_open else x.shape, x.dtype.name) for x in self.data]

    def forward(self, inputs: Sequence[Any]) -> tuple[_Values, Any]:
        """Return the outputs, and a number that depends on all of them."""
        values = self._plan.run(inputs)
        outputs = [values[number] for number in self._last]
        return outputs, self.loss(outputs)

    def loss(self, outputs: Sequence[Any]) -> Any:
        pairs = zip(outputs, self._weights, strict=True)
        total = sum(ops.sum(ops.tanh(output) * ops.cast(weights, output.dtype)) for output, weights in pairs)
        return total + 0.3 * total * total

    def slope(self, gradients: Sequence[Any]) -> Any:
        """Return the derivative along the program's direction."""
        pairs = zip(gradients, self.directions, strict=True)
        return sum(ops.sum(gradient * ops.cast(direction, gradient.dtype)) for gradient, direction in pairs)

    # --- draws ----------------------------------------------------------------------------------------------

    def _number(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def _happens(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def _one_of(self, choices: Any) -> Any:
        choices = list(choices)
        if not choices:
            raise _UnfitError
        return choices[self._number(0, len(choices) - 1)]

    def _shape(self, rank: int) -> _Shape:
        shape = tuple(self._one_of(SIZES) for _ in range(rank))
        return shape if np.prod(shape) <= 400 else self._shape(rank)

    def _shapes(self) -> list[_Shape]:
        first = self._shape(self._number(0, 4))
        broadcast = tuple(1 if self._happens(0.3) else size for size in first)
        rows = self._shape(self._number(1, 3))
        empty = (0, *rows[1:]) if self._happens(0.2) else rows
        return [first, broadcast, first[::-1], empty, self._shape(2), ()]

    def _results(self, values: _Values) -> list[int]:
        found = [number for number in self._having(values) if number >= len(self.data)]
        return sorted({found[-1], *[self._one_of(found) for _ in range(2)]}) if found else [self.floats - 1]

    def _having(self, values: _Values, fits: Callable[[_Shape], bool] = lambda shape: True) -> list[int]:
        """Return the numbers of the floats whose shape fits."""
        return [n for n, x in enumerate(values) if is_floating(x.dtype) and fits(tuple(x.shape))]

    def _any(self, values: _Values, fits: Callable[[_Shape], bool] = lambda shape: True) -> int:
        found = self._having(values, fits)
        return self._one_of(found[-3:] if self._happens(0.5) else found)

    def plan(self, values: _Values, own: int, shapes: Sequence[_Shape], depth: int, count: int) -> Plan:
        """Draw statements after `values`, of which those from number `own` on are parameters, and results of shapes."""
        plan, known = Plan(), list(values)
        self._fill(plan, known, count, depth)
        found = [number for number in self._having(known) if number >= own] or self._having(known)
        for number, shape in enumerate(shapes):
            plan.steps.append(Step("fit", _Fitted(shape, self._dtype), [self._one_of(found)]))
            plan.results.append(len(known) + number)
        return plan

    def _fill(self, plan: Plan, values: _Values, count: int, depth: int) -> None:
        kinds = ["elementwise"] * 6 + ["of_two"] * 5 + ["reduced"] * 4 + ["moved"] * 4 + ["along"] * 4
        kinds += ["of_matrices", "multiplied", "multiplied", "by_indices", "by_indices", "integers"]
        kinds += ["control_flow"] * (12 if depth > 0 else 0)
        tries = 0
        while len(plan.steps) < count and tries < 20 * count:
            tries += 1
            try:
                step = getattr(self, f"_{self._one_of(kinds)}")(values, depth)
            except _UnfitError:
                continue
            value = step.apply(values, *[values[number] for number in step.arguments])
            if value.ndim <= 5 and None not in value.shape and np.prod(value.shape) <= _MOST:
                plan.steps.append(step)
                values.append(value)

    # --- statements -----------------------------------------------------------------------------------------

    def _elementwise(self, values: _Values, _: int) -> Step:
        name, c = self._one_of(_ELEMENTWISE), round(self._rng.uniform(-1, 1), 2)
        return Step(name, lambda _, x: _ELEMENTWISE[name](x, c), [self._any(values)])

    def _of_two(self, values: _Values, _: int) -> Step:
        name, c = self._one_of(_OF_TWO), round(self._rng.uniform(-1, 1), 2)
        first = self._any(values)
        shape = tuple(values[first].shape)
        second = self._any(values, lambda other: _broadcasts(shape, other) or _broadcasts(other, shape))
        return Step(name, lambda _, x, y: _OF_TWO[name](x, y, c), [first, second])

    def _reduced(self, values: _Values, _: int) -> Step:
        name, keep = self._one_of(_REDUCED), self._happens(0.4)
        x = self._any(values, lambda shape: bool(shape) and 0 not in shape)
        rank = values[x].ndim
        axes = tuple(int(axis) for axis in self._rng.permutation(rank)[: self._number(1, rank)])
        axis = self._one_of((None, axes, axes, axes[0], axes[0] - rank))
        return Step(f"{name} {axis} {keep}", lambda _, x: _REDUCED[name](x, axis, keep), [x])

    def _along(self, values: _Values, _: int) -> Step:
        name, x = self._one_of(_ALONG), self._any(values, lambda shape: bool(shape) and 0 not in shape)
        axis = self._number(0, values[x].ndim - 1)
        return Step(f"{name} {axis}", lambda _, x: _ALONG[name](x, axis), [x])

    def _moved(self, values: _Values, _: int) -> Step:
        x = self._any(values, lambda shape: 0 not in shape)
        shape = tuple(values[x].shape)
        order = [int(axis) for axis in self._rng.permutation(len(shape))]
        target = [int(size) for size in self._rng.permutation([*shape, 1])]
        two = self._any(values, lambda other: other == shape)
        return self._one_of(
            (
                Step(f"transpose {order}", lambda _, x: ops.transpose(x, order), [x]),
                Step(f"reshape {target}", lambda _, x: ops.reshape(x, target), [x]),
                Step("ravel", lambda _, x: ops.reshape(x, (-1,)), [x]),
                Step("squeeze", lambda _, x: ops.squeeze(x, [n for n, size in enumerate(shape) if size == 1]), [x]),
                Step("pad", lambda _, x: ops.pad(x, [(1, 0)] * len(shape)), [x]),
                Step("stack", lambda _, x, y: ops.stack([x, y], axis=-1), [x, two]),
                Step("tile", lambda _, x: ops.tile(x, (2,) * len(shape)), [x]),
            )
        )

    def _of_matrices(self, values: _Values, _: int) -> Step:
        name = self._one_of(_OF_MATRICES)
        x = self._any(values, lambda shape: len(shape) > 1 and 0 not in shape and max(shape[-2:]) < 9)
        shape = tuple(values[x].shape)
        return Step(name, lambda _, x: _OF_MATRICES[name](ops.reshape(x, shape)), [x])

    def _multiplied(self, values: _Values, _: int) -> Step:
        x = self._any(values, lambda shape: bool(shape) and 0 not in shape)
        shape = tuple(values[x].shape)
        y = self._any(values, lambda other: 0 < len(other) < 4 and 0 not in other and bool({*other} & {*shape}))
        letters, others = "abcde"[: len(shape)], ""
        for number, size in enumerate(values[y].shape):
            equal = [a for a, own in zip(letters, shape, strict=True) if own == size and a not in others]
            others += self._one_of(equal) if equal and self._happens(0.8) else "fgh"[number]
        kept = [letter for letter in sorted({*letters, *others}) if self._happens(0.5)]
        sizes = dict(zip(letters + others, [*shape, *values[y].shape], strict=True))
        if np.prod([sizes[letter] for letter in kept]) > _MOST or np.prod(list(sizes.values())) > 20 * _MOST:
            raise _UnfitError
        scale = float(np.prod([sizes[letter] for letter in sizes if letter not in kept]) ** -0.5)
        text = f"{letters},{others}->{''.join(kept)}"
        return Step(text, lambda _, x, y: ops.einsum(text, x, y) * scale, [x, y])

    def _by_indices(self, values: _Values, _: int) -> Step:
        name = self._one_of(_BY_INDICES)
        x = self._any(values, lambda shape: 0 < len(shape) < 5 and 0 not in shape)
        shape = tuple(values[x].shape)
        at = self._integers_below(shape[0], values)
        fitted = _Fitted((3, *shape[1:]), self._dtype)

        def apply(known: _Values, x: Any, y: Any) -> Any:
            return _BY_INDICES[name](ops.reshape(x, shape), at(known), fitted(known, y))

        return Step(name, apply, [x, self._any(values)])

    def _integers_below(self, size: int, values: _Values) -> Callable[[_Values], Any]:
        """Return what gives three integers, of the program or of its data."""
        own = self._rng.integers(0, size, 3).astype("int32")
        number = self._one_of([n for n, x in enumerate(values) if x.dtype.kind == "i"] or [-1])
        if number < 0 or self._happens(0.4):
            return lambda _: ops.convert_to_tensor(own)
        return lambda known: ops.mod(ops.sum(known[number]) + own, size)

    def _integers(self, values: _Values, _: int) -> Step:
        def count(_: _Values, x: Any) -> Any:
            return ops.mod(ops.cast(ops.count_nonzero(x > 0.3), "int32"), 5)

        x = self._any(values)
        return self._one_of((Step("count", count, [x]), Step("compare", lambda _, x: ops.any(x > 0.8), [x])))

    # --- control flow ---------------------------------------------------------------------------------------

    def _control_flow(self, values: _Values, depth: int) -> Step:
        kinds = (self._loop, self._loop, self._scan, self._over_rows, self._branches, self._arrays, self._function)
        return self._one_of((*kinds, self._jacobian, self._by_row))(values, depth - 1)

    def _body(self, shapes: Sequence[_Shape], depth: int, is_closed: bool = False) -> Body:
        return Body(self, shapes, depth, self._number(1, 4), is_closed)

    def _limit(self, values: _Values) -> Callable[[_Values], Any]:
        """Return what gives a number of iterations."""
        known = self._number(0, 4)
        data = self._integers_below(5, values)
        return (lambda _: known) if self._happens(0.5) else (lambda values: data(values)[0])

    def _carried(self, values: _Values) -> tuple[list[int], list[_Shape]]:
        numbers = [self._any(values) for _ in range(self._number(1, 3))]
        return numbers, [tuple(values[number].shape) for number in numbers]

    def _loop(self, values: _Values, depth: int) -> Step:
        numbers, shapes = self._carried(values)
        body, limit, seen = self._body(shapes, depth), self._limit(values), len(values)
        is_added, ends_early = self._happens(0.5), self._happens(0.2)

        def apply(known: _Values, *start: Any) -> Any:
            known = known[:seen]
            last = limit(known)

            def goes_on(i: Any, *carried: Any) -> Any:
                return ops.logical_and(i < last, ops.sum(ops.abs(carried[0])) < 6) if ends_early else i < last

            def step(i: Any, *carried: Any) -> Any:
                new = body(known, *carried)
                if is_added:
                    new = [x * 0.5 + y for x, y in zip(carried, new, strict=True)]
                return i + 1, *new

            return ab.while_loop(goes_on, step, (0, *[ops.tanh(x) for x in start]))[-1]

        return Step("while_loop", apply, numbers, [body])

    def _rows(self, values: _Values) -> int:
        return self._any(values, lambda shape: len(shape) > 0 and shape[0] <= _LONGEST)

    def _scan(self, values: _Values, depth: int) -> Step:
        carry, rows, seen = self._any(values), self._rows(values), len(values)
        shapes = [tuple(values[carry].shape), tuple(values[rows].shape)[1:]]
        body, is_reversed, is_stacked = self._body(shapes, depth), self._happens(0.4), self._happens(0.6)

        def apply(known: _Values, carry: Any, rows: Any) -> Any:
            def step(carry: Any, row: Any) -> Any:
                return tuple(body(known[:seen], carry, row))

            last, stacked = ab.scan(step, ops.tanh(carry), rows, reverse=is_reversed)
            return stacked if is_stacked else last

        return Step("scan", apply, [carry, rows], [body])

    def _over_rows(self, values: _Values, depth: int) -> Step:
        name = self._one_of(("map_fn", "vectorized_map", "vectorized_map", "foldl", "foldr"))
        rows, carry, seen = self._rows(values), self._any(values), len(values)
        maps = name.endswith("p") or name == "map_fn"
        shape = tuple(values[rows].shape)[1:] if maps else tuple(values[carry].shape)
        body = self._body([shape], depth)

        def apply(known: _Values, rows: Any, carry: Any) -> Any:
            if maps:
                return getattr(ab, name)(lambda row: body(known[:seen], row)[0], rows)
            return getattr(ab, name)(lambda before, row: body(known[:seen], before, row)[0], rows, ops.tanh(carry))

        return Step(name, apply, [rows, carry], [body])

    def _branches(self, values: _Values, depth: int) -> Step:
        numbers, shapes = self._carried(values)
        bodies, seen = [self._body(shapes, depth) for _ in range(3)], len(values)
        tested, index, is_switch = self._any(values), self._integers_below(3, values), self._happens(0.4)

        def apply(known: _Values, *given: Any) -> Any:
            known = known[:seen]
            if is_switch:
                branches = [lambda *own, body=body: tuple(body(known, *own)) for body in bodies]
                return ab.switch(index(known)[0], branches, *given)[-1]
            test = ops.sum(known[tested]) > 0.1
            return ab.cond(test, lambda: tuple(bodies[0](known)), lambda: tuple(bodies[1](known)))[-1]

        return Step("switch" if is_switch else "cond", apply, numbers, bodies)

    def _by_row(self, values: _Values, _: int) -> Step:
        x, scale = self._any(values, lambda shape: 0 < len(shape) < 5), self._any(values)

        def apply(known: _Values, x: Any, scale: Any) -> Any:
            by = ops.tanh(ops.sum(scale))
            tested = ops.sum(x, tuple(range(1, x.ndim)))
            return ab.batched_cond(tested > 0.1, lambda row: ops.sin(row) * by, lambda row: row * by + 0.5, x)

        return Step("batched_cond", apply, [x, scale])

    def _arrays(self, values: _Values, depth: int) -> Step:
        carry, size, seen = self._any(values), self._number(1, 4), len(values)
        shape = tuple(values[carry].shape)
        body, limit = self._body([shape, shape], depth), self._limit(values)
        is_backward, is_stacked, reads = self._happens(0.4), self._happens(0.6), self._happens(0.5)

        def apply(known: _Values, carry: Any) -> Any:
            last = limit(known)
            array = ab.TensorArray(self._dtype, size)
            for number in range(size):
                array = array.write(number, ops.zeros(shape, self._dtype) + 0.1 * number)

            def step(i: Any, array: Any, carried: Any) -> Any:
                before = array.read(ops.mod(i + 1, size)) if reads else carried
                element, carried = body(known[:seen], before, carried)
                return i + 1, array.write(ops.mod(size - 1 - i if is_backward else i, size), element), carried

            _, array, carried = ab.while_loop(lambda i, *_: i < last, step, (0, array, ops.tanh(carry)))
            return array.stack() if is_stacked else array.read(size - 1) * ops.mean(carried)

        if 0 in shape:
            raise _UnfitError
        return Step("TensorArray", apply, [carry], [body])

    def _function(self, values: _Values, depth: int) -> Step:
        numbers, shapes = self._carried(values)
        body, is_twice = self._body(shapes, depth, is_closed=True), self._happens(0.5)
        function: Any = ab.function(lambda *given: body((), *given)[0])
        if self._happens(0.4):
            function = ab.remat(function)

        def apply(_: _Values, *given: Any) -> Any:
            found = function(*given)
            return found + function(*[x * 0.5 for x in given]) if is_twice else found

        return Step("function", apply, numbers, [body])

    def _jacobian(self, values: _Values, depth: int) -> Step:
        x, seen = (
            self._any(values, lambda shape: len(shape) < 3 and 0 not in shape and max(shape, default=1) < 6),
            len(values),
        )
        body, parallel, seen = self._body([self._one_of(((), (2,), (3,)))], depth), self._happens(0.5), len(values)

        def apply(known: _Values, x: Any) -> Any:
            with ab.GradientTape(persistent=True) as tape:
                own = x * 1.0
                tape.watch(own)
                y = body(known[:seen], own)[0]
            return ops.tanh(tape.jacobian(y, own, unconnected_gradients="zero", experimental_use_pfor=parallel))

        return Step("jacobian", apply, [x], [body])


__all__ = ["Flow"]
