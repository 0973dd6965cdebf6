"""Find the step in a direction: a line search as a `while_loop`, one evaluation of loss and gradient an iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..engine import ops
from ..engine.control_flow import while_loop
from ..engine.graph import Tensor

GROWTH = 2.0  # of the step, as long as no end of an interval is known
MARGIN = 0.1  # a new step is within the interval by this share of it


class Point(NamedTuple):
    """A step, the loss there, the loss's slope along the direction, and the whole gradient."""

    step: Tensor
    value: Tensor
    slope: Tensor
    gradient: Tensor


class End(NamedTuple):
    """The other end of the interval in which a good step is."""

    step: Tensor
    value: Tensor
    slope: Tensor


class LineSearch(NamedTuple):
    """A search for a step that lowers the loss enough.

    Args:
        decrease: enough is this share of what the slope at the start promises (Armijo).
        curvature: the slope has to shrink to this share of the first one (strong Wolfe); None asks for no more than
            the decrease, and halves steps until it is reached.
        most_steps: evaluations at most.

    Source: Nocedal and Wright, "Numerical Optimization", 2006, algorithms 3.5 and 3.6 as one loop: as long as no upper
    end is known steps grow, then the interval shrinks by cubic interpolation.
    """

    decrease: float = 1e-4
    curvature: float | None = 0.9
    most_steps: int = 25

    def run(
        self, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], start: Point, direction: Tensor, first: Tensor
    ) -> Point:
        """Search from `start`, whose step is 0.

        Args:
            evaluate: loss and gradient, ``(size,)``, at a step; called once, in the loop's body.
            start: loss, slope and gradient where the direction begins.
            direction: ``(size,)``, downhill.
            first: the step that is tried first.

        Returns:
            The point that was found. Where no condition held in time it is the best one so far, maybe `start`.
        """

        def unfinished(count: Any, step: Any, low: Any, high: Any, is_bracketed: Any, is_found: Any) -> Any:
            return ops.logical_and(count < self.most_steps, ops.logical_not(is_found))

        def body(count: Any, step: Any, low: Any, high: Any, is_bracketed: Any, is_found: Any) -> tuple[Any, ...]:
            value, gradient = evaluate(step)
            here = Point(step, value, ops.sum(gradient * direction), gradient)
            low, high, is_bracketed, is_found = self._narrowed(start, here, Point(*low), End(*high), is_bracketed)
            following = self._following(low, high, is_bracketed)
            return count + 1, following, list(low), list(high), is_bracketed, is_found

        no = ops.convert_to_tensor(False)
        state = (0, first, list(start), list(start[:3]), no, no)
        return Point(*while_loop(unfinished, body, state)[2])

    def _narrowed(
        self, start: Point, here: Point, low: Point, high: End, is_bracketed: Tensor
    ) -> tuple[Point, End, Tensor, Tensor]:
        """Return the interval after one more point, whether it has an upper end, and whether the point is accepted."""
        promised = start.value + self.decrease * here.step * start.slope
        lower = ops.logical_and(here.value <= promised, ops.isfinite(here.value))  # False where the loss is NaN
        if self.curvature is None:
            kept, found = lower, lower
            turned: Tensor = ops.zeros_like(lower)
        else:
            kept = ops.logical_and(lower, ops.logical_or(here.value < low.value, ops.equal(low.step, 0.0)))
            found = ops.logical_and(kept, ops.abs(here.slope) <= -self.curvature * start.slope)
            ahead = ops.where(is_bracketed, high.step - low.step, ops.ones_like(low.step))
            turned = ops.logical_and(kept, here.slope * ahead >= 0)
        as_end, of_low = End(*here[:3]), End(*low[:3])
        new_high = [
            ops.where(kept, ops.where(turned, before, end), this)
            for this, before, end in zip(as_end, of_low, high, strict=True)
        ]
        new_low = [ops.where(kept, this, before) for this, before in zip(here, low, strict=True)]
        bracketed = ops.logical_or(is_bracketed, ops.logical_or(ops.logical_not(kept), turned))
        return Point(*new_low), End(*new_high), bracketed, found

    def _following(self, low: Point, high: End, is_bracketed: Tensor) -> Tensor:
        """Return the step to try next."""
        width = high.step - low.step
        middle = low.step + 0.5 * width
        if self.curvature is None:
            return middle
        share = ops.clip((_cubic_minimum(low, high) - low.step) / width, MARGIN, 1 - MARGIN)
        inner = low.step + share * width
        inner = ops.where(ops.isfinite(inner), inner, middle)
        return ops.where(is_bracketed, inner, low.step * GROWTH)


def _cubic_minimum(low: Point, high: End) -> Tensor:
    """Return the minimum of the cubic through two values and slopes; NaN where it has no minimum."""
    width = high.step - low.step
    first = low.slope + high.slope - 3.0 * (low.value - high.value) / (low.step - high.step)
    inside = ops.square(first) - low.slope * high.slope
    root = ops.sign(width) * ops.sqrt(inside)
    return high.step - width * ((high.slope + root - first) / (high.slope - low.slope + 2.0 * root))
