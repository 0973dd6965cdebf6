"""Plain graph code: a loop in a loop, its gradient, and the gradient of that.

The outer loop runs over numbers. The inner one improves a square root by Newton's method until it is good enough, which
takes more steps for some numbers than for others; how many, is found only when it runs. The gradient goes back through
all of it, and is a graph with loops itself, so that it has a gradient too.

    python examples/nested_loops.py
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops


def square_root(number: Any) -> tuple[Any, Any]:
    """The square root of a positive scalar, and how many steps it took.

    >>> root, steps = ab.Session().run(square_root(ab.constant(2.0)))
    >>> round(float(root), 6), int(steps)
    (1.414214, 5)
    """

    def inaccurate(root: Any, change: Any, steps: Any) -> Any:
        return change > 1e-6 * root

    def improve(root: Any, change: Any, steps: Any) -> Any:
        better = (root + number / root) / 2.0
        return better, ops.abs(better - root), steps + 1

    root, _, steps = ab.while_loop(inaccurate, improve, (number, number, 0))
    return root, steps


def square_roots(numbers: Any) -> tuple[Any, Any]:
    """The square roots of a vector, one after another, and the steps that each took."""
    count = ops.shape(numbers)[0]
    given = ab.TensorArray(numbers.dtype, count).unstack(numbers)

    def body(i: Any, roots: Any, steps: Any) -> Any:
        root, taken = square_root(given.read(i))
        return i + 1, roots.write(i, root), steps.write(i, taken)

    roots = ab.TensorArray(numbers.dtype, count, element_shape=())
    steps = ab.TensorArray("int32", count, element_shape=())
    _, roots, steps = ab.while_loop(lambda i, *_: i < count, body, (0, roots, steps))
    return roots.stack(), steps.stack()


def main() -> None:
    """Compute, check against the formulas, and show the compiled program."""
    began = time.perf_counter()
    with ab.Graph().as_default():
        numbers = ab.placeholder((None,), "float64", name="numbers")
        roots, steps = square_roots(numbers)
        (first,) = ab.gradients(ops.sum(roots), [numbers])
        (second,) = ab.gradients(ops.sum(first), [numbers])

        values = np.array([0.25, 2.0, 10.0, 1e4, 1e8])
        with ab.Session() as session:
            *found, taken = session.run([roots, first, second, steps], feed_dict={numbers: values})

        # sqrt(x), and its derivatives x**-0.5 / 2 and -x**-1.5 / 4
        expected = [values**0.5, values**-0.5 / 2, -(values**-1.5) / 4]
        print(f"{'x':>12} {'steps':>6} {'root':>14} {'first':>14} {'second':>14}")
        for x, count, root, slope, bend in zip(values, taken, *found, strict=True):
            print(f"{x:12g} {count:6d} {root:14.7g} {slope:14.7g} {bend:14.7g}")
        for name, got, want in zip(("root", "first derivative", "second derivative"), found, expected, strict=True):
            error = float(np.max(np.abs(got / want - 1)))
            print(f"{name}: within {error:.1e} of the formula")
            assert error < 1e-9, f"The {name} differs from its formula by {error}."

        forward = ab.explain(roots).source.splitlines()
        print(f"\nThe program behind the roots ({len(forward)} lines; the second derivative's has", end=" ")
        print(f"{len(ab.explain(second).source.splitlines())}):\n")
        print("\n".join(forward[:30]))
    print(f"\nAll of it took {time.perf_counter() - began:.1f} s.")


if __name__ == "__main__":
    main()
