"""Random loops over the rows of what an outer loop computes, as machine code: values, gradients, jacobians, maps.

The inner loop goes forward, backward or in another order, for as many iterations as the data say, and gathers elements
that the outer loop stacks or reads. The interpreter decides what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")
QUICK = 6  # in `make test`: each mode once
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(120)]
_FIELDS: dict[str, tuple[Any, ...]] = {
    "order": ("forward", "reversed", "double", "shifted"),
    "length": ("all", "all", "of the iteration", "fed", "of the data", "zero"),
    "rows": ("computed", "state", "joined", "fed", "product", "flipped"),
    "result": ("stacked", "stacked", "read", "stacked backward", "none"),
    "added": ("none", "none", "element", "row", "part"),
    "is_written_backward": (False, True),
    "has_inner_cond": (False, True),
    "has_outer_cond": (False, True),
    "has_count": (False, True),
    "has_flag": (False, True),
    "reads_what_it_writes": (False, False, True),
    "has_second": (False, True),
}


class Nest:
    """A loop with one or two loops over rows in it, of which a seed draws the form.

    Attributes:
        dtype: of the floats.
        data: x [steps, rows, width], w [width, width], q [rows, width], and a number of iterations.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.form = {name: choices[rng.integers(len(choices))] for name, choices in _FIELDS.items()}
        self.dtype = "float32" if seed % 5 == 4 else "float64"
        self._rows, width, steps = (int(rng.integers(1, most)) for most in (5, 4, 5))
        self._element = (width,)
        shapes = (steps, self._rows, width), (width, width), (self._rows, width)
        self.data: list[Any] = [np.asarray(rng.normal(size=shape) * 0.7, self.dtype) for shape in shapes]
        self.data.append(np.int32(rng.integers(0, self._rows + 2)))

    def __call__(self, x: Any, w: Any, q: Any, limit: Any) -> tuple[Any, Any]:
        """Return the last state, and a sum over all iterations."""

        def body(i: Any, h: Any, flag: Any, total: Any) -> tuple[Any, ...]:
            c, out, count, flag = self._inner(self._rows_of(h, x[i], w), h, w, (i, limit, flag))
            new = self._result(out, h, c, x[i])
            if self.form["has_second"]:
                more, out, again, flag = self._inner(new * 1.2, h, w, (i, limit, flag))
                new, c, count = (new + out.stack()) * 0.5, c + more, count + again
            if self.form["has_outer_cond"]:
                new = ab.cond(ops.sum(new) > 0.3, lambda: ops.sin(new), lambda: new * 0.8 + x[i])
            total = total + ops.sum(c) + ops.cast(count, self.dtype) * 0.1
            return i + 1, ops.tanh(self._added(new)), flag, total

        start = (0, ops.tanh(q), ab.constant(True), ops.zeros((), self.dtype))
        _, h, flag, total = ab.while_loop(lambda i, *_: i < x.shape[0], body, start)
        return h, total + ops.cast(flag, self.dtype)

    def _inner(self, rows: Any, h: Any, w: Any, known: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        form, size, dtype = self.form, self._rows, self.dtype
        i, limit, flag = known
        array = ab.TensorArray(dtype, size, element_shape=self._element, clear_after_read=False).unstack(rows)
        out = ab.TensorArray(dtype, size, element_shape=self._element)
        if form["length"] != "all" or form["reads_what_it_writes"]:
            for number in range(size):
                out = out.write(number, ops.zeros(self._element, dtype) + 0.1 * number)
        positive = ops.cast(ops.count_nonzero(rows > 0.05), "int32")
        counts = {"all": size, "of the iteration": i, "fed": limit, "of the data": positive, "zero": limit * 0}
        last = ops.minimum(counts[form["length"]], size)

        def body(k: Any, c: Any, out: Any, count: Any, flag: Any) -> tuple[Any, ...]:
            places = {"forward": k, "reversed": size - 1 - k, "double": k * 2 % size, "shifted": (k + 1) % size}
            row = array.read(places[form["order"]])
            if form["has_inner_cond"]:
                row = ab.cond(ops.sum(row) > ops.sum(c) * 0.5, lambda: ops.sin(row) + c, lambda: row * 0.5)
            c = ops.tanh(c * 0.7 + row @ w + (ops.cast(count, dtype) * 0.1 if form["has_count"] else 0))
            if form["reads_what_it_writes"]:
                c = c + out.read(k) * 0.1
            element = c * row + (ops.where(flag, c, row) if form["has_flag"] else 0.3)
            out = out.write(size - 1 - k if form["is_written_backward"] else k, element)
            count = count + ops.cast(ops.sum(c) > 0, "int32")
            return k + 1, c, out, count, ops.logical_xor(flag, ops.sum(row) > 0)

        return ab.while_loop(lambda k, *_: k < last, body, (0, h[0] * 0.5, out, 0, flag))[1:]

    def _rows_of(self, h: Any, given: Any, w: Any) -> Any:
        made: dict[str, Callable[[], Any]] = {
            "computed": lambda: ops.tanh(h + given),
            "state": lambda: h,
            "joined": lambda: ops.concatenate([h, given], 0)[: self._rows] * 1.1,
            "fed": lambda: given,
            "product": lambda: h @ w + given,
            "flipped": lambda: ops.flip(h, 0) * 0.9,
        }
        return made[self.form["rows"]]()

    def _result(self, out: Any, h: Any, c: Any, given: Any) -> Any:
        made: dict[str, Callable[[], Any]] = {
            "stacked": lambda: out.stack(),
            "stacked backward": lambda: ops.flip(out.stack(), 0) + given,
            "read": lambda: out.read(self._rows - 1) + h * 0.3,
            "none": lambda: h * 0.5 + c,
        }
        return made[self.form["result"]]()

    def _added(self, new: Any) -> Any:
        """Return what a gradient adds to an element, a row or a part."""
        if self.form["added"] == "none":
            return new
        key = {"element": (0, -1), "row": (self._rows - 1,), "part": (slice(None, None, 2), 0)}[self.form["added"]]
        with ab.GradientTape() as tape:
            tape.watch(new)
            value = ops.sum(ops.tanh(new[key])) + ops.sum(new * new) * 0.1
        return new * 0.7 + tape.gradient(value, new)


def gradients(y: Any, xs: list[Any]) -> list[Any]:
    return [ops.convert_to_tensor(each) for each in ab.gradients(y, xs, unconnected_gradients="zero")]


def first(nest: Nest, *given: Any) -> list[Any]:
    h, total = nest(*given)
    return [h, total, *gradients(ops.sum(ops.sin(h)) + total * 0.3, list(given[:3]))]


def second(nest: Nest, *given: Any) -> list[Any]:
    _, _, *slopes = first(nest, *given)
    return gradients(sum(ops.sum(slope * slope) for slope in slopes), list(given[:3]))


def jacobian(nest: Nest, x: Any, w: Any, q: Any, limit: Any) -> list[Any]:
    with ab.GradientTape(persistent=True) as tape:
        tape.watch(q)
        h, _ = nest(x, w, q, limit)
    return [h, tape.jacobian(h, q, unconnected_gradients="zero")]


def mapped(nest: Nest, x: Any, w: Any, q: Any, limit: Any) -> list[Any]:
    h = ab.map_fn(lambda own: nest(x, w, own, limit)[0], ops.stack([q, q * 0.5, -q]))
    return [h, *gradients(ops.sum(ops.sin(h)), [x, w, q])]


MODES = (first, second, first, jacobian, mapped, first)


@pytest.mark.parametrize("seed", SEEDS)
def test_nested_scans(seed: int) -> None:
    nest = Nest(seed)
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(value.shape, value.dtype.name) for value in nest.data]
        targets = MODES[seed % len(MODES)](nest, *feeds)
        programs = [Program(graph, targets, feeds)]
        if seed >= QUICK:
            with without("native"):
                programs.append(Program(graph, targets, feeds))
    other = [*[value * np.asarray(0.7, value.dtype) for value in nest.data[:3]], np.int32(nest.data[3] // 2)]
    tolerance = 1e-8 if nest.dtype == "float64" else 1e-3
    for values in (nest.data, other, nest.data):
        expected = Interpreter().run(graph, targets, dict(zip(feeds, values, strict=True)))
        for program in programs:
            for found, wanted in zip(program(*values), expected, strict=True):
                assert np.shape(found) == np.shape(wanted)
                scale = max(1.0, float(np.abs(wanted).max(initial=0)))
                np.testing.assert_allclose(found, wanted, tolerance, tolerance * scale, err_msg=str(nest.form))
