"""Gradients where functions have kinks, ties, zeros or infinities: finite, and between the one-sided derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

STEP = 1e-6
POINTS = np.array([0, -0.0, 0.3, 0.5, 1, 2, 2.5, 3, 6, 20, -0.3, -0.5, -1, -2, -2.5, -3, -20])


def _beside(*others: float) -> Callable[[Any], Any]:
    """Return a function that makes vectors of each element and `others`."""
    return lambda x: ops.stack([x, *[0.0 * x + other for other in others]], -1)


def _loss(name: str, **settings: float) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return getattr(ab.losses, name)(np.full((len(POINTS), 1), 0.5), ops.expand_dims(x, -1), **settings)

    return function


UNARY = [
    "absolute",
    "ceil",
    "elu",
    "celu",
    "erf",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "negative",
    "reciprocal",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sinc",
    "soft_shrink",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "square",
    "squareplus",
    "tanh",
    "tanh_shrink",
    "trunc",
]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(ops, name) for name in UNARY},
    "mish": ab.activations.mish,
    "elu of alpha 0.3": lambda x: ops.elu(x, 0.3),
    "elu of alpha 2": lambda x: ops.elu(x, 2.0),
    "celu of alpha 2": lambda x: ops.celu(x, 2.0),
    "clip": lambda x: ops.clip(x, -0.5, 2.0),
    "maximum": lambda x: ops.maximum(x, 0.5),
    "logaddexp": lambda x: ops.logaddexp(x, 0.5),
    "hypot": lambda x: ops.hypot(x, 0.0),
    "power": lambda x: ops.power(x, 3.0),
    "arctan2": lambda x: ops.arctan2(x, 0.5),
    "huber": _loss("huber", delta=2.5),
    "log_cosh": _loss("log_cosh"),
    "hinge": _loss("hinge"),
    "squared_hinge": _loss("squared_hinge"),
    "mean_absolute_error": _loss("mean_absolute_error"),
    "norm of order 1": lambda x: ops.norm(_beside(0, 0)(x), 1, -1),
    "norm of order 1.5": lambda x: ops.norm(_beside(0, 0)(x), 1.5, -1),
    "norm of order 2": lambda x: ops.norm(_beside(0, 0)(x), 2, -1),
    "norm of order inf": lambda x: ops.norm(_beside(0.5)(x), np.inf, -1),
    "std": lambda x: ops.std(_beside(0)(x), -1),
    "nanstd": lambda x: ops.nanstd(_beside(0.5)(x), -1),
    "max": lambda x: ops.max(_beside(0.5, 2)(x), -1),
    "ptp": lambda x: ops.ptp(_beside(0.5, 2)(x), -1),
    "median": lambda x: ops.median(_beside(0.5, 1, 2)(x), -1),
    "nanmedian": lambda x: ops.nanmedian(_beside(0.5, 1, 2)(x), -1),
    "quantile": lambda x: ops.quantile(_beside(0.5, 1)(x), 0.3, -1),
    "midpoint": lambda x: ops.quantile(_beside(0.5, 1)(x), 0.3, -1, method="midpoint"),
    "prod": lambda x: ops.prod(ops.stack([x, x - 1, x + 1], -1), -1),
    "logsumexp": lambda x: ops.logsumexp(ops.stack([x, x, 0 * x], -1), -1),
    "cdist": lambda x: ops.cdist(ops.expand_dims(x, -1), [[0.5]])[:, 0],
    "sparsemax": lambda x: ops.sparsemax(_beside(0.5, 1)(x))[:, 0],
}


def test_gradients_are_between_the_one_sided_derivatives() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder(POINTS.shape, "float64")
        values = [function(x) for function in FUNCTIONS.values()]
        slopes = [ab.gradients(value, x, unconnected_gradients="zero")[0] for value in values]
        session = ab.Session()
        before, at, after = (session.run(values, {x: POINTS + step}) for step in (-STEP, 0, STEP))
        found = session.run(slopes, {x: POINTS})
    wrong = []
    with np.errstate(all="ignore"):
        for name, *rows in zip(FUNCTIONS, before, at, after, found, strict=True):
            for point, low, middle, high, slope in zip(POINTS, *rows, strict=True):
                sides = sorted([(middle - low) / STEP, (high - middle) / STEP])
                slack = 1e-4 * max(1.0, *np.abs(sides))
                exists = np.abs(sides).max() < 1e4  # the function is continuous
                if exists and not sides[0] - slack <= slope <= sides[1] + slack:
                    wrong.append(f"{name} at {point}: {slope}, not within {sides}")
    assert not wrong


def _derivatives(function: Callable[..., Any], *inputs: Any) -> tuple[list[Any], list[Any]]:
    """Return first derivatives, and those of the sum of their squares."""
    tensors = [ops.convert_to_tensor(np.asarray(each, "float64")) for each in inputs]
    with ab.GradientTape() as outer:
        outer.watch(tensors)
        with ab.GradientTape() as inner:
            inner.watch(tensors)
            total = ops.sum(function(*tensors))
        first = inner.gradient(total, tensors)
        squares = sum(ops.sum(each * each) for each in first)
    second = outer.gradient(squares, tensors, unconnected_gradients="zero")
    return [np.asarray(each) for each in first], [np.asarray(each) for each in second]


@pytest.mark.parametrize("order", [None, 1, 1.5, 2, 3, np.inf])
def test_the_norm_of_zeros_has_gradient_zero(order: float | None) -> None:
    first, second = _derivatives(lambda x: ops.norm(x, order, -1), np.zeros((2, 3)))
    assert not np.any(first)
    assert order == 1.5 or not np.any(second)  # the second derivative of abs(x) ** 1.5 is infinite at 0


def test_where_all_is_alike_or_at_the_origin_gradients_are_zero() -> None:
    for function, inputs in [
        (ops.std, [[3.0]]),
        (lambda x: ops.std(x, 0), [[[2.0, 1.0], [2.0, 1.0]]]),
        (lambda x: ops.nanstd(x, 0), [[2.0, np.nan, 2.0]]),
        (lambda x: ops.norm(x, "fro", (0, 1)), [np.zeros((2, 2))]),
        (ops.arctan2, [[0.0], [0.0]]),
        (lambda x: ops.angle(ops.complex(x, x)), [[0.0]]),
    ]:
        for derivatives in _derivatives(function, *inputs):
            assert not np.any(derivatives)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_logarithm_of_no_probability_has_gradient_zero(dtype: str) -> None:
    x = ops.convert_to_tensor(np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [2.0, 2.0]], dtype))
    expected = [[0, 0], [0, 1], [0.5, 0.5]]
    with ab.GradientTape() as tape:
        tape.watch(x)
        total = ops.logsumexp(x, axis=-1)
    np.testing.assert_allclose(np.asarray(tape.gradient(total, x)), expected, atol=1e-3)
    compiled = ab.function(lambda x: ab.gradients(ops.logsumexp(x, axis=-1), x)[0])
    np.testing.assert_allclose(np.asarray(compiled(x)), expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize("lost", [0, 1, 2, 4])
def test_determinants_of_singular_matrices_have_exact_gradients(lost: int, kind: str) -> None:
    rng = np.random.default_rng(lost)
    x = rng.normal(size=(2, 4, 4)).astype(kind)
    if kind == "complex128":
        x = x + 1j * rng.normal(size=x.shape)
    x[:, :, 4 - lost :] = x[:, :, :lost] * (lost < 4)
    direction = rng.normal(size=x.shape)
    tensor = ops.convert_to_tensor(x)
    with ab.GradientTape() as tape:
        tape.watch(tensor)
        total = ops.sum(ops.real(ops.det(tensor)))
    slope = np.sum(direction * np.real(np.asarray(tape.gradient(total, tensor))))
    difference = np.sum(np.linalg.det(x + STEP * direction) - np.linalg.det(x - STEP * direction)).real
    np.testing.assert_allclose(slope, difference / (2 * STEP), atol=1e-6)


@pytest.mark.parametrize("stack", [(), (40,)], ids=["a matrix", "a stack"])
def test_gradients_of_determinants_in_a_compiled_loop(stack: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(*stack, 3, 3))
    singular = np.array(x)
    singular[..., 2, :] = singular[..., 0, :]
    with ab.Graph().as_default(), ab.Session() as session:
        tensor = ab.placeholder(x.shape, "float64")
        start = (0, ops.zeros(stack, "float64"))
        _, total = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + ops.det(tensor)), start)
        (slope,) = ab.gradients(ops.sum(total), [tensor])
        for each in (x, singular):
            cross = [np.cross(each[..., i - 2, :], each[..., i - 1, :]) for i in range(3)]
            np.testing.assert_allclose(session.run(slope, {tensor: each}), 3 * np.stack(cross, -2), atol=1e-12)
