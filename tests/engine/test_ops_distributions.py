"""Gamma, beta and binomial numbers: what keys mean bit by bit, moments and frequencies, parameters, errors."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.random import samplers as random
from anabranch.engine.session import Session

COUNT = 20_000
KEY = np.array([11, 5], "int64")


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


# --- bits -----------------------------------------------------------------------------------------------------------


def philox(key: Any, counter: tuple[int, int]) -> list[float]:
    """The uniforms of one block of Philox4x64-10, written from the paper."""
    mask = 2**64 - 1
    words = [*counter, 0, 0]
    first, second = (int(word) & mask for word in key)
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(high >> 64) ^ words[1] ^ first, high & mask, (low >> 64) ^ words[3] ^ second, low & mask]
        first, second = (first + 0x9E3779B97F4A7C15) & mask, (second + 0xBB67AE8584CAA73B) & mask
    return [(word >> 11) * 2.0**-53 for word in words]


def blocks(key: Any, element: int, count: int, stream: int = 0) -> Iterator[list[float]]:
    """The blocks of one element of `count`, round by round."""
    for turn in range(100):
        yield philox(key, (1 + turn * count + element, stream))


def gamma_number(key: Any, element: int, count: int, alpha: float, stream: int = 0) -> float:
    """One number by the method of Marsaglia and Tsang, as documented."""
    d = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
    for u in blocks(key, element, count, stream):
        x = math.sqrt(-2 * math.log1p(-u[0])) * math.cos(2 * math.pi * u[1])
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(1 - u[2]) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v * ((1 - u[3]) ** (1 / alpha) if alpha < 1 else 1)
    raise AssertionError("a hundred rounds were not enough")


def binomial_number(key: Any, element: int, count: int, n: int, p: float) -> int:
    """One number by summing up probabilities, as documented for small means."""
    u, k, total = next(blocks(key, element, count))[0], 0, (1 - p) ** n
    while u >= total:
        k += 1
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k)
    return k


def test_numbers_follow_from_the_key_as_documented():
    count = 40
    for alpha in (0.4, 1.0, 7.5):
        expected = [gamma_number(KEY, i, count, alpha) for i in range(count)]
        np.testing.assert_allclose(random.draw_gamma(KEY, (count,), alpha, "float64"), expected, rtol=1e-9)
    pairs = [(gamma_number(KEY, i, count, 0.7), gamma_number(KEY, i, count, 2.0, stream=1)) for i in range(count)]
    expected = [x / (x + y) for x, y in pairs]
    np.testing.assert_allclose(random.draw_beta(KEY, (count,), 0.7, 2.0, "float64"), expected, rtol=1e-9)
    expected = [binomial_number(KEY, i, count, 12, 0.3) for i in range(count)]
    assert random.draw_binomial(KEY, (count,), 12, 0.3).tolist() == expected
    assert random.draw_binomial(KEY, (count,), 12, 0.7).tolist() == [
        12 - binomial_number(KEY, i, count, 12, 1 - 0.7) for i in range(count)
    ]


def test_an_element_does_not_depend_on_the_parameters_of_others():
    alone = random.draw_gamma(KEY, (50,), np.full(50, 0.8))
    mixed = random.draw_gamma(KEY, (50,), np.where(np.arange(50) % 2, 0.8, 3.0))
    assert mixed[1::2].tolist() == alone[1::2].tolist()


def test_ops_and_draws_agree():
    results = run(
        [
            random.gamma((2, 3), [0.5, 1.0, 2.0], seed=KEY),
            random.beta((3,), 0.5, [1.0, 2.0, 3.0], dtype="float64", seed=KEY),
            random.binomial((2, 2), [[3], [100]], 0.4, seed=KEY),
        ]
    )
    expected = [
        random.draw_gamma(KEY, (2, 3), [0.5, 1.0, 2.0]),
        random.draw_beta(KEY, (3,), 0.5, [1.0, 2.0, 3.0], "float64"),
        random.draw_binomial(KEY, (2, 2), [[3], [100]], 0.4),
    ]
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.tolist() == wanted.tolist()


def test_generators_go_on_and_seeds_repeat():
    generator = random.SeedGenerator(4)
    moving, fixed = random.gamma((3,), 2.0, seed=generator), random.gamma((3,), 2.0, seed=4)
    first, second = (run([moving, fixed]) for _ in range(2))
    assert first[0].tolist() == first[1].tolist() == second[1].tolist()
    assert second[0].tolist() != first[0].tolist()


# --- distributions --------------------------------------------------------------------------------------------------


def assert_moments(values: Any, mean: float, variance: float, fourth: float) -> None:
    """Mean and variance within 4 standard errors; `fourth` is the kurtosis."""
    assert abs(values.mean() - mean) < 4 * math.sqrt(variance / len(values))
    assert abs(values.var() - variance) < 4 * variance * math.sqrt((fourth - 1) / len(values))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 3.0, 500.0])
def test_gamma_moments(alpha: float):
    assert_moments(random.draw_gamma(KEY, (COUNT,), alpha, "float64"), alpha, alpha, 3 + 6 / alpha)


def test_gamma_of_one_is_exponential():
    values = np.sort(random.draw_gamma(KEY, (COUNT,), 1.0, "float64"))
    distance = np.abs(1 - np.exp(-values) - (np.arange(COUNT) + 0.5) / COUNT).max()
    assert distance < 1.95 / math.sqrt(COUNT)  # Kolmogorov and Smirnov, one in a thousand


@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 0.02), (0.5, 0.5), (2.0, 5.0), (60.0, 3.0)])
def test_beta_moments(alpha: float, beta: float):
    values = random.draw_beta(KEY, (COUNT,), alpha, beta, "float64")
    total = alpha + beta
    excess = 6 * ((alpha - beta) ** 2 * (total + 1) - alpha * beta * (total + 2))
    excess /= alpha * beta * (total + 2) * (total + 3)
    assert_moments(values, alpha / total, alpha * beta / total**2 / (total + 1), 3 + excess)
    assert 0 <= values.min() <= values.max() <= 1


def test_beta_of_ones_is_uniform():
    values = np.sort(random.draw_beta(KEY, (COUNT,), 1.0, 1.0, "float64"))
    assert np.abs(values - (np.arange(COUNT) + 0.5) / COUNT).max() < 1.95 / math.sqrt(COUNT)


@pytest.mark.parametrize(("n", "p"), [(7, 0.3), (7, 0.9), (60, 0.2), (30, 0.5), (200, 0.93), (1000, 0.004)])
def test_binomial_frequencies(n: int, p: float):
    values = random.draw_binomial(KEY, (COUNT,), n, p, "float64").astype("int64")
    found = np.bincount(values, minlength=n + 1)
    expected = np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]) * COUNT
    likely = expected > 5
    freedom = int(likely.sum())
    chi_squared = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)
    assert found[~likely].sum() < 5 * (~likely).sum() + 5


@pytest.mark.parametrize("p", [0.3, 1e-9, 0.999])
def test_binomial_of_many_trials(p: float):
    n = 10**9
    values = random.draw_binomial(KEY, (COUNT,), n, p, "float64")
    variance = n * p * (1 - p)
    assert_moments(values, n * p, variance, 3 + (1 - 6 * p * (1 - p)) / variance)


def test_certain_results():
    counts, chances = [0, 4, 4, 10**6, 10**6, 3.9], [0.5, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert random.draw_binomial(KEY, (6,), counts, chances).tolist() == [0, 0, 4, 0, 10**6, 3]


# --- parameters, shapes, gradients ----------------------------------------------------------------------------------


def test_parameters_that_make_no_sense_at_run_time_give_nan():
    x, n, shape = symbol((2,)), symbol((2,)), (3, 2)
    feeds = {x: np.array([-1, 0.5], "float32"), n: np.array([np.nan, 4], "float32")}
    drawn = [
        random.gamma(shape, x, seed=1),
        random.beta(shape, 1.0, x, seed=1),
        random.binomial(shape, n, 0.5, seed=1),
        random.binomial(shape, 5, x, seed=1),
    ]
    for values in run(drawn, feeds):
        assert np.isnan(values[:, 0]).all()
        assert np.isfinite(values[:, 1]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_and_unknown_sizes(dtype: str):
    size = symbol((), "int32")
    for drawn in (
        random.gamma((size, 2), 0.5, dtype, seed=1),
        random.beta((size, 2), 0.5, 0.5, dtype, seed=1),
        random.binomial((size, 2), 5, 0.5, dtype, seed=1),
    ):
        assert drawn.shape == (None, 2)
        values = run(drawn, {size: 3})
        assert (values.shape, values.dtype) == ((3, 2), as_dtype(dtype))


def test_no_gradient_flows():
    alpha = symbol(())
    assert gradients(ops.sum(random.gamma((2,), alpha, seed=1)), [alpha]) == [None]


def test_parameters_that_do_not_broadcast():
    x = symbol((None,))
    with pytest.raises(ValueError, match=r"gamma: alpha of shape \(3,\) does not broadcast to the shape \(2,\)"):
        run(random.gamma((2,), x, seed=1), {x: np.ones(3, "float32")})
