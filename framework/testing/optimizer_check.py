"""`check_optimizer`: what every optimizer has to satisfy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...engine import ops
from ...engine.graph import IndexedSlices, Tensor, Variable
from ...engine.session.function import function
from ...engine.testing.comparing import fail_unless
from ...optim import Optimizer, deserialize, serialize
from ..structures import Array
from ..training.gradient_tape import GradientTape
from .findings import Findings, assert_close

ROWS, WIDTH = 5, 3


def check_optimizer(
    make: Callable[..., Optimizer],
    *,
    learning_rate: float = 0.05,
    steps: int = 200,
    tolerance: float = 1e-5,
    verbose: bool = True,
) -> dict[str, int]:
    """Run the checks that every optimizer has to pass.

    Its config makes the same optimizer again. It brings a quadratic function below a tenth of its start. A run that is
    saved and continued keeps its bits. A compiled step does what a step at once does. A gradient of some rows of a
    table does what the dense gradient does. It works with weight decay, clipping, averaging and accumulation.

    Args:
        make: the class, or a function that makes one. It takes ``learning_rate`` and the options of `Optimizer` by
            keyword.
        learning_rate: one at which it learns.
        steps: in how many steps it has to.
        tolerance: how much values may differ between these ways, relative to 1.
        verbose: print the counts.

    Returns:
        How many cases each check compared.

    Raises:
        AssertionError: something is wrong. All that is, is listed.
        TypeError: `make` makes no optimizer.

    >>> import anabranch as ab
    >>> ab.testing.check_optimizer(ab.optim.SGD, verbose=False)["learns"]
    1
    """
    made = make(learning_rate=learning_rate)
    if not isinstance(made, Optimizer):
        raise TypeError(f"check_optimizer takes a class of optimizers or a function that makes one; it made {made!r}.")
    check = _OptimizerCheck(make, learning_rate, steps, tolerance)
    findings = Findings(type(made).__name__)
    custom = {type(made).__name__: type(made)}
    findings.run("config", lambda: check.config(custom))
    findings.run("learns", check.learns)
    findings.run("state", lambda: check.state(custom))
    findings.run("compiled", check.compiled)
    findings.run("rows", check.rows)
    findings.run("options", check.options)
    return findings.finish(verbose)


class _OptimizerCheck:
    """The checks; each returns how many cases it compared."""

    def __init__(self, make: Callable[..., Optimizer], learning_rate: float, steps: int, tolerance: float) -> None:
        self._make, self.learning_rate, self.steps, self.tolerance = make, learning_rate, steps, tolerance

    def make(self, **options: object) -> Optimizer:
        return self._make(learning_rate=self.learning_rate, **options)

    def config(self, custom: dict[str, Any]) -> int:
        """Make the optimizer from its config."""
        first = self.make()
        config = first.get_config()
        again = deserialize(serialize(first), custom_objects=custom).get_config()
        fail_unless(
            again == config,
            f"get_config() of the optimizer made from {config} gives {again}; "
            "get_config has to return all arguments of the constructor",
        )
        return 1

    def learns(self) -> int:
        """Minimise the squared distance to a point."""
        optimizer, (kernel, bias) = self.make(), _weights()
        targets = [kernel.numpy() + 1.0, bias.numpy() - 1.0]

        def step() -> Tensor:
            with GradientTape() as tape:
                gaps = [weight - target for weight, target in zip((kernel, bias), targets, strict=True)]
                loss = ops.sum(ops.square(gaps[0])) + ops.sum(ops.square(gaps[1]))
            optimizer.apply(tape.gradient(loss, [kernel, bias]), [kernel, bias])
            return loss

        compiled = function(step)
        losses = [float(compiled()) for _ in range(self.steps)]
        fail_unless(
            losses[-1] < 0.1 * losses[0],
            f"the loss goes from {losses[0]:.4g} to {losses[-1]:.4g} in {self.steps} steps "
            f"at learning_rate={self.learning_rate}, expected less than a tenth",
        )
        return 1

    def state(self, custom: dict[str, Any]) -> int:
        """Save after two steps, load into another optimizer, and continue with both."""
        first, weights, gradients = self.make(), _weights(), _gradients(4)
        for step in gradients[:2]:
            first.apply(step, weights)
        stored: dict[str, object] = {}
        first.save_own_variables(stored)
        second = deserialize(serialize(first), custom_objects=custom)
        others = [Variable(weight.numpy(), name=weight.name) for weight in weights]
        second.build(others)
        second.load_own_variables(stored)
        for step in gradients[2:]:
            first.apply(step, weights)
            second.apply(step, others)
        for one, other in zip(weights, others, strict=True):
            fail_unless(
                np.array_equal(one.numpy(), other.numpy()),
                f"a run that was saved and continued gives other values of {one.name!r}; "
                "what a step remembers has to be in variables that `build` makes",
            )
        return len(weights)

    def compiled(self) -> int:
        """Compare steps under `function` with steps at once."""
        now, graph = self.make(), self.make()
        weights, others = _weights(), _weights()
        step = function(lambda kernel, bias: graph.apply([kernel, bias], others))
        for each in _gradients(3):
            now.apply(each, weights)
            step(*each)
        return self._compare(others, weights, "compiled steps")

    def rows(self) -> int:
        """Compare gradients of some rows of a table, one of them twice, with the dense ones."""
        sparse, dense = self.make(), self.make()
        weights, others = _weights(), _weights()
        for _, bias in _gradients(3):
            slices = IndexedSlices(
                ops.convert_to_tensor(np.stack([bias, 2 * bias, -bias])), np.array([1, 3, 1]), (ROWS, WIDTH)
            )
            whole = np.zeros((ROWS, WIDTH), "float32")
            whole[3] = 2 * bias
            sparse.apply([slices, bias], weights)
            dense.apply([whole, bias], others)
        return self._compare(weights, others, "gradients of rows")

    def options(self) -> int:
        """Take steps with the options of `Optimizer`, and look for values that are not finite."""
        chosen: list[dict[str, object]] = [
            {"weight_decay": 0.1},
            {"clipnorm": 0.5},
            {"clipvalue": 0.5},
            {"global_clipnorm": 0.5},
            {"use_ema": True},
            {"gradient_accumulation_steps": 2},
        ]
        for options in chosen:
            optimizer, weights = self.make(**options), _weights()
            before = [weight.numpy() for weight in weights]
            for step in _gradients(4):
                optimizer.apply(step, weights)
            optimizer.finalize_variable_values(weights)
            after = [weight.numpy() for weight in weights]
            fail_unless(all(np.isfinite(value).all() for value in after), f"with {options} weights are not finite")
            fail_unless(
                any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)),
                f"with {options} four steps change nothing",
            )
        return len(chosen)

    def _compare(self, found: Sequence[Variable], wanted: Sequence[Variable], what: str) -> int:
        for one, other in zip(found, wanted, strict=True):
            assert_close(one.numpy(), other.numpy(), f"{what}, {one.name}", self.tolerance)
        return len(found)


def _weights() -> list[Variable]:
    draw = np.random.default_rng(0)
    shapes = {"kernel": (ROWS, WIDTH), "bias": (WIDTH,)}
    return [Variable(draw.normal(size=shape).astype("float32"), name=name) for name, shape in shapes.items()]


def _gradients(steps: int) -> list[list[Array]]:
    draw = np.random.default_rng(1)
    return [[draw.normal(size=shape).astype("float32") for shape in ((ROWS, WIDTH), (WIDTH,))] for _ in range(steps)]
