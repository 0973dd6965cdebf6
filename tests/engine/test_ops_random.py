"""Random numbers: what keys mean bit by bit, determinism, program order, moments, ranges, errors."""

import math
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


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """One block of Philox4x64-10, written from the paper."""
    mask = 2**64 - 1
    words = [counter, 0, 0, 0]
    first, second = key[0] & mask, key[1] & mask
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(high >> 64) ^ words[1] ^ first, high & mask, (low >> 64) ^ words[3] ^ second, low & mask]
        first, second = (first + 0x9E3779B97F4A7C15) & mask, (second + 0xBB67AE8584CAA73B) & mask
    return words


@pytest.mark.parametrize("key", [(0, 0), (42, 3), (-1, 7), (2**63 - 1, -(2**63))])
def test_numbers_follow_from_the_key_as_documented(key: tuple[int, int]):
    words = [word for counter in (1, 2) for word in philox(key, counter)]
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    array = np.array(key, "int64")
    assert random.draw_uniform(array, (7,), "float64").tolist() == [(word >> 11) * 2.0**-53 for word in words[:7]]
    assert random.draw_uniform(array, (3, 5)).ravel().tolist() == [(half >> 8) * 2.0**-24 for half in halves[:15]]
    assert random.draw_integers(array, (8,), -3, 10).tolist() == [word % 13 - 3 for word in words]
    unit = [(half >> 8) * 2.0**-24 for half in halves]
    radii, angles = unit[:3], unit[3:6]
    pairs = [(math.sqrt(-2 * math.log1p(-u)), 2 * math.pi * v) for u, v in zip(radii, angles, strict=True)]
    expected = [r * math.cos(a) for r, a in pairs] + [r * math.sin(a) for r, a in pairs]
    np.testing.assert_allclose(random.draw_normal(array, (5,)), expected[:5], rtol=1e-5, atol=1e-6)


def test_ops_and_draws_agree():
    key = np.array([5, 9], "int64")
    assert (
        run(random.uniform((3, 4), -1, 2, seed=key)).tolist()
        == random.draw_uniform(key, (3, 4), low=-1, high=2).tolist()
    )
    assert run(random.normal((3,), 1, 2, seed=key)).tolist() == random.draw_normal(key, (3,), mean=1, stddev=2).tolist()
    assert run(random.truncated_normal((3,), seed=key)).tolist() == random.draw_truncated_normal(key, (3,)).tolist()
    assert run(random.randint((3,), 0, 9, seed=key)).tolist() == random.draw_integers(key, (3,), 0, 9).tolist()


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_int_seed_repeats_and_generator_goes_on():
    generator = random.SeedGenerator(3)
    fixed, moving = random.uniform((4,), seed=3), random.uniform((4,), seed=generator)
    with Session() as session:
        first, second = session.run([fixed, moving]), session.run([fixed, moving])
    assert first[0].tolist() == second[0].tolist() == first[1].tolist()
    assert second[1].tolist() != first[1].tolist()
    assert generator.state.tolist() == [3, 2]


def test_keys_are_taken_in_program_order():
    generator = random.SeedGenerator(3)
    a, b = random.uniform((2,), seed=generator), random.uniform((2,), seed=generator)
    second, first = run([b, a])
    assert first.tolist() == random.draw_uniform([3, 0], (2,)).tolist()
    assert second.tolist() == random.draw_uniform([3, 1], (2,)).tolist()


def test_unused_draws_take_no_key():
    generator = random.SeedGenerator(3)
    random.uniform((2,), seed=generator)
    used = random.uniform((2,), seed=generator)
    assert run(used).tolist() == random.draw_uniform([3, 0], (2,)).tolist()


def test_state_restores_a_generator():
    generator = random.SeedGenerator(11)
    generator.next()
    state = generator.state
    following = [generator.next().tolist() for _ in range(3)]
    generator.state = state
    assert [generator.next().tolist() for _ in range(3)] == following == [[11, 1], [11, 2], [11, 3]]
    other = random.SeedGenerator(**random.SeedGenerator(11, name="dropout").get_config())
    assert other.next().tolist() == [11, 0]
    assert other.name == "dropout"


def test_global_seed_determines_everything_after_it():
    def numbers() -> Any:
        random.set_global_seed(7)
        made = random.SeedGenerator()
        return [made.seed, *run([random.uniform((2,)), random.normal((2,), seed=made)])]

    first, second = numbers(), numbers()
    assert first[0] == second[0]
    assert [x.tolist() for x in first[1:]] == [x.tolist() for x in second[1:]]
    assert random.SeedGenerator().seed != random.SeedGenerator().seed


def test_large_and_negative_seeds():
    assert run(random.uniform((), seed=2**64 + 5)) == run(random.uniform((), seed=5))
    assert random.SeedGenerator(-1).next().tolist() == [-1, 0]
    assert random.SeedGenerator(2**63).next().tolist() == [-(2**63), 0]


@pytest.mark.parametrize("seed", ["a", 1.5])
def test_seed_errors(seed: Any):
    with pytest.raises(TypeError, match="seed"):
        random.uniform((2,), seed=seed)
    with pytest.raises(TypeError, match="integer seed"):
        random.SeedGenerator(seed)


def test_key_of_wrong_shape():
    with pytest.raises(TypeError, match=r"shape \[2\]; got \[3\]"):
        random.uniform((2,), seed=[1, 2, 3])


# --- distributions --------------------------------------------------------------------------------------------------


def check_moments(x: Any, mean: float, deviation: float):
    assert abs(float(x.mean()) - mean) < 5 * deviation / math.sqrt(x.size)
    assert abs(float(x.std()) - deviation) < 5 * deviation / math.sqrt(x.size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments(dtype: str):
    check_moments(run(random.uniform((COUNT,), -1, 3, dtype, seed=1)), 1, 4 / math.sqrt(12))
    check_moments(run(random.normal((COUNT,), 2, 3, dtype, seed=1)), 2, 3)
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    deviation = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2)))
    truncated = run(random.truncated_normal((COUNT,), 2, 3, dtype, seed=1))
    check_moments(truncated, 2, 3 * deviation)
    assert truncated.min() >= -4
    assert truncated.max() <= 8
    check_moments(run(random.randint((COUNT,), -5, 6, seed=1)), 0, math.sqrt(10))
    check_moments(run(random.bernoulli((COUNT,), 0.2, seed=1)), 0.2, 0.4)


def test_normal_is_normal():
    x = np.sort(run(random.normal((COUNT,), seed=2)))
    cdf = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    distance = np.abs(cdf - (np.arange(COUNT) + 0.5) / COUNT).max()
    assert distance < 1.95 / math.sqrt(COUNT)  # Kolmogorov and Smirnov, at a significance of 0.001


def test_numbers_are_uncorrelated():
    x = random.draw_normal([1, 0], (COUNT,))
    half = COUNT // 2
    for a, b in ((x[:half], x[half:]), (x[:-1], x[1:]), (x, random.draw_normal([1, 1], (COUNT,)))):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_uniform_stays_below_its_upper_bound(dtype: str):
    for low, high in ((0, 1), (-1, 1), (1000, 1001), (0.1, 0.3)):
        x = run(random.uniform((COUNT,), low, high, dtype, seed=4))
        assert x.dtype == as_dtype(dtype)
        assert float(x.min()) >= float(np.asarray(low).astype(as_dtype(dtype)))
        assert float(x.max()) < high


def test_integers_reach_both_ends():
    assert sorted(set(run(random.randint((200,), -2, 3, seed=1)).tolist())) == [-2, -1, 0, 1, 2]
    x = run(random.randint((100,), 0, 2**64, "uint64", seed=1))
    assert x.dtype == "uint64"
    assert x.max() > 2**63
    y = run(random.randint((100,), -(2**63), 2**63, "int64", seed=1))
    assert y.min() < 0 < y.max()


def test_shapes():
    for function in (random.uniform, random.normal, random.truncated_normal):
        assert run(function((), seed=1)).shape == ()
        assert run(function((0, 2), seed=1)).shape == (0, 2)
    x = symbol((None, 3))
    y = random.normal((ops.shape(x)[0], 4), seed=1)
    assert y.shape == (None, 4)
    assert run(y, {x: np.zeros((5, 3), "float32")}).shape == (5, 4)


def test_gradients_flow_to_parameters_only():
    mean, deviation = ops.convert_to_tensor(1.0), ops.convert_to_tensor(2.0)
    x = random.normal((50,), mean, deviation, seed=1)
    dmean, ddeviation = gradients(x, [mean, deviation])
    value, first, second = run([x, dmean, ddeviation])
    assert first == 50
    np.testing.assert_allclose(second, ((value - 1) / 2).sum(), rtol=1e-4)
    low = ops.convert_to_tensor(0.0)
    assert gradients(random.uniform((4,), low, 1.0, seed=1), [low])[0] is not None


def test_categorical():
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities).astype("float32") + 5
    x = run(random.categorical(logits, COUNT, seed=1))
    assert x.shape == (2, COUNT)
    assert x.dtype == "int32"
    for row, expected in zip(x, probabilities, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / COUNT, expected, atol=0.02)
    assert 2 not in x[1]
    with pytest.raises(ValueError, match=r"\[batch, classes\]; got \[3\]"):
        random.categorical([0.0, 0.0, 0.0], 2)


def test_shuffle():
    x = np.arange(20, dtype="float32").reshape(10, 2)
    tensor = ops.convert_to_tensor(x)
    y = random.shuffle(tensor, seed=1)
    weights = np.arange(20, dtype="float32").reshape(10, 2)
    value, dx = run([y, *gradients(y * weights, [tensor])])
    assert value.tolist() != x.tolist()
    assert sorted(value.tolist()) == x.tolist()
    order = (value[:, 0] / 2).astype(int)
    np.testing.assert_array_equal(dx[order], weights)
    columns = run(random.shuffle(x, axis=1, seed=3))
    assert np.sort(columns, axis=1).tolist() == x.tolist()
    unknown = symbol((None,))
    assert sorted(run(random.shuffle(unknown, seed=1), {unknown: x[:, 0]}).tolist()) == x[:, 0].tolist()


# --- dropout --------------------------------------------------------------------------------------------------------


def test_dropout():
    x = ops.convert_to_tensor(np.ones((100, 200), "float32"))
    y = random.dropout(x, 0.25, seed=1)
    value, dx = run([y, *gradients(y, [x])])
    assert set(np.unique(value).tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert abs((value == 0).mean() - 0.25) < 0.02
    np.testing.assert_array_equal(dx, value)  # the same mask


@pytest.mark.parametrize("is_known", [True, False])
def test_dropout_of_float64_scales_by_a_number_of_float64(is_known: bool):
    rate = 0.1 if is_known else ops.convert_to_tensor(0.1, "float64")
    kept = run(random.dropout(np.ones(64, "float64"), rate, seed=1))
    assert set(np.unique(kept).tolist()) == {0.0, 1 / 0.9}


def test_dropout_noise_shape():
    x = np.ones((50, 6, 4), "float32")
    y = run(random.dropout(x, 0.5, noise_shape=(None, 1, 4), seed=1))
    assert (y == y[:, :1]).all()
    assert len(np.unique(y[:, 0], axis=0)) > 2


def test_dropout_edges():
    x = np.array([1.0, np.inf], "float32")
    assert run(random.dropout(x, 0.0)).tolist() == [1, np.inf]
    assert run(random.dropout(x, 1.0)).tolist() == [0, 0]
    unknown = symbol((None, 3))
    assert random.dropout(unknown, 0.5, seed=1).shape == (None, 3)
    assert run(random.dropout(np.ones(8, "float16"), 0.5, seed=1)).dtype == "float16"
    with pytest.raises(ValueError, match=r"within \[0, 1\], got rate=1.5"):
        random.dropout(x, 1.5)
    with pytest.raises(ValueError, match="known rank"):
        random.dropout(symbol(None), 0.5)


def test_fresh_numbers_in_each_iteration_of_a_loop():
    from anabranch.engine.control_flow import while_loop

    generator = random.SeedGenerator(3)

    def body(i: Any, total: Any) -> Any:
        return i + 1, total + random.uniform((), seed=generator)

    _, total = while_loop(lambda i, _: i < 4, body, (0, 0.0))
    expected = sum(np.float64(random.draw_uniform([3, i], ())) for i in range(4))
    np.testing.assert_allclose(run(total), expected, rtol=1e-6)
    assert generator.state.tolist() == [3, 4]
