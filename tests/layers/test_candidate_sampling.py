"""Samplers against their laws, sampled losses against TensorFlow, full losses over shards against one table."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

CLASSES, DIM, BATCH, SAMPLED = 11, 3, 4, 5
# What TensorFlow 2.21 gives for `problem`: by the number of true classes and whether accidental hits are removed.
SOFTMAX = {
    (1, True): [0.3995209336280823, 10.776358604431152, 0.6753756999969482, 0.4910114109516144],
    (1, False): [0.7199652791023254, 10.776388168334961, 1.0396727323532104, 0.4910114109516144],
    (2, True): [2.456784248352051, 3.6776387691497803, 2.0360941886901855, 1.5626063346862793],
    (2, False): [2.8821120262145996, 3.6782634258270264, 2.2694878578186035, 1.6299707889556885],
}
NCE = {
    (1, True): [4.141002178192139, 12.208338737487793, 4.793997287750244, 6.525708198547363],
    (1, False): [6.506921768188477, 12.210147857666016, 7.161463737487793, 6.525708198547363],
    (2, True): [4.473447799682617, 5.604955673217773, 5.221985340118408, 5.626914978027344],
    (2, False): [6.532264709472656, 5.763835906982422, 6.912639141082764, 6.510323524475098],
}


class Problem:
    """Weights, examples and samples; the same numbers as TensorFlow was given."""

    def __init__(self, num_true: int) -> None:
        rng = np.random.default_rng(0)
        self.weights = rng.standard_normal((CLASSES, DIM)).astype("float32")
        self.biases = rng.standard_normal(CLASSES).astype("float32")
        self.inputs = rng.standard_normal((BATCH, DIM)).astype("float32")
        for count in range(1, num_true + 1):
            self.labels = rng.integers(0, CLASSES, (BATCH, count))
            self.samples = (
                rng.permutation(CLASSES)[:SAMPLED],
                rng.uniform(0.1, 1, (BATCH, count)).astype("float32"),
                rng.uniform(0.1, 1, SAMPLED).astype("float32"),
            )

    def shards(self, count: int, strategy: str) -> Any:
        tables: list[Any] = [self.weights, self.biases]
        if strategy == "mod":
            return tuple([table[k::count] for k in range(count)] for table in tables)
        return tuple(np.array_split(table, count) for table in tables)


def run(*fetched: Any) -> Any:
    found = ab.Session().run(list(fetched))
    return found[0] if len(fetched) == 1 else found


# --- samplers -------------------------------------------------------------------------------------------------------


def zipf(count: int) -> Any:
    return np.log1p(1 / np.arange(1, count + 1)) / np.log(count + 1)


COUNTS = [5.0, 0.0, 2.0, 1.0, 7.0, 3.0]
SAMPLERS = {
    "log_uniform": (ab.nn.log_uniform_candidate_sampler, {"range_max": 50}, zipf(50)),
    "uniform": (ab.nn.uniform_candidate_sampler, {"range_max": 20}, np.full(20, 1 / 20)),
    "unigram": (
        ab.nn.fixed_unigram_candidate_sampler,
        {"range_max": 8, "unigrams": COUNTS, "distortion": 0.75, "num_reserved_ids": 2},
        np.concatenate([[0, 0], np.array(COUNTS) ** 0.75]) / np.sum(np.array(COUNTS) ** 0.75),
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_independent_draws_have_their_law(name: str) -> None:
    sampler, options, law = SAMPLERS[name]
    drawn = run(*sampler([[3, 5]], 2, 20_000, False, seed=1, **options))
    classes, true_count, count = drawn
    assert (classes.dtype, true_count.dtype, true_count.shape) == (np.dtype("int64"), np.dtype("float32"), (1, 2))
    expected = 20_000 * law
    found = np.bincount(classes, minlength=len(law))
    assert not found[law == 0].any()
    possible = law > 0
    chi = np.sum((found - expected)[possible] ** 2 / expected[possible])
    freedom = possible.sum() - 1
    assert abs(chi - freedom) < 4 * np.sqrt(2 * freedom)  # mean and deviation of the chi-square distribution
    np.testing.assert_allclose(count, expected[classes], rtol=1e-5)
    np.testing.assert_allclose(true_count[0], expected[[3, 5]], rtol=1e-5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_unique_draws_are_those_of_drawing_one_by_one(name: str) -> None:
    """Over many draws: how often a class is among them, and in the mean the number of tries behind the counts."""
    sampler, options, law = SAMPLERS[name]
    size, rounds = 4, 1500
    with ab.Graph().as_default():
        step = ab.Session().make_callable(sampler([[3, 5]], 2, size, True, seed=7, **options), [])
        drawn = [step() for _ in range(rounds)]
    assert all(len(set(each.sampled_candidates.tolist())) == size for each in drawn)
    rng, expected, tries = np.random.default_rng(0), np.zeros(len(law)), list[int]()
    for _ in range(rounds):
        found: list[int] = []
        for count, each in enumerate(rng.choice(len(law), 1000, p=law), start=1):
            if each not in found:
                found.append(each)
            if len(found) == size:
                expected[found] += 1
                tries.append(count)
                break
    frequencies = np.bincount(np.concatenate([each.sampled_candidates for each in drawn]), minlength=len(law))
    np.testing.assert_allclose(frequencies / rounds, expected / rounds, atol=0.06)
    # From an expected count follows the number of tries, unless no draw was in vain.
    found_tries = []
    for each in drawn:
        exact = float(each.true_expected_count[0, 1])
        plain = np.isclose(exact, size * law[5], rtol=1e-5)
        found_tries.append(size if plain else np.log1p(-exact) / np.log1p(-law[5]))
        np.testing.assert_allclose(found_tries[-1], np.round(found_tries[-1]), atol=1e-2)
    np.testing.assert_allclose(np.mean(found_tries), np.mean(tries), rtol=0.03)


def test_expected_counts_are_tensorflows() -> None:
    """8 of 10 classes in 13 tries: its own figures."""
    law = zipf(10)
    from anabranch.layers.vocabulary.candidate_sampling import _expected  # pyright: ignore[reportPrivateUsage]

    found = run(_expected(ops.convert_to_tensor(law), 8, ops.convert_to_tensor(13)))
    golden = {0: 0.98814803, 1: 0.91001135, 2: 0.810133, 3: 0.71911204, 4: 0.6422926, 5: 0.5784378, 9: 0.40978372}
    np.testing.assert_allclose([found[k] for k in golden], list(golden.values()), rtol=1e-6)
    once = run(_expected(ops.convert_to_tensor(zipf(20)), 4, ops.convert_to_tensor(4)))
    np.testing.assert_allclose(once[[0, 2, 3, 7, 15]], [0.910681, 0.37796676, 0.2931738, 0.15474747, 0.07965074], 1e-6)


def test_all_classes_and_many_rounds() -> None:
    for seed in range(5):
        drawn = run(ab.nn.log_uniform_candidate_sampler([[0]], 1, 30, True, 30, seed=seed))
        assert sorted(drawn.sampled_candidates.tolist()) == list(range(30))
        assert (drawn.sampled_expected_count <= 1).all()


def test_the_same_seed_gives_the_same_classes() -> None:
    def draws(seed: int) -> list[list[int]]:
        with ab.Graph().as_default():
            classes = ab.nn.log_uniform_candidate_sampler([[0]], 1, 6, True, 1000, seed=seed).sampled_candidates
            session = ab.Session()
            return [session.run(classes).tolist() for _ in range(3)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert len({tuple(each) for each in draws(3)}) == 3  # each run draws again


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("uniform", {"num_sampled": 0}, ValueError, "num_sampled must be a positive integer, got 0"),
        ("uniform", {"num_true": True}, ValueError, "num_true must be a positive integer, got True"),
        ("log_uniform", {"num_sampled": 60}, ValueError, "60 different classes can't be sampled from range_max=50"),
        ("log_uniform", {"true_classes": [[0.5]]}, TypeError, "log_uniform_.*: true_classes must be integers"),
        ("uniform", {"true_classes": [0]}, ValueError, r"must have shape \(batch, num_true=1\), got \(1,\)"),
        ("unigram", {"unigrams": [1.0]}, ValueError, "a count for each of range_max - num_reserved_ids = 6 .* got 1"),
        ("unigram", {"unigrams": [-1.0] * 6}, ValueError, "unigrams must not be negative, and not all be 0"),
        ("unigram", {"num_sampled": 6}, ValueError, "only 5 classes have a count, from which num_sampled=6"),
    ],
)
def test_wrong_arguments_of_samplers(name: str, arguments: Any, error: Any, message: str) -> None:
    sampler, options, _ = SAMPLERS[name]
    given = {"true_classes": [[0]], "num_true": 1, "num_sampled": 2, "unique": True, **options, **arguments}
    with pytest.raises(error, match=message):
        sampler(**given)


# --- sampled losses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("num_true", [1, 2])
def test_losses_are_tensorflows(num_true: int, remove: bool, count: int, strategy: str) -> None:
    problem = Problem(num_true)
    weights, biases = problem.shards(count, strategy)
    for loss, golden in ((ab.nn.sampled_softmax_loss, SOFTMAX), (ab.nn.nce_loss, NCE)):
        found = loss(
            weights,
            biases,
            problem.labels,
            problem.inputs,
            SAMPLED,
            CLASSES,
            num_true,
            problem.samples,
            remove_accidental_hits=remove,
            partition_strategy=strategy,
        )
        np.testing.assert_allclose(run(found), golden[num_true, remove], rtol=2e-5)


def test_tensorflows_names() -> None:
    problem = Problem(1)
    weights, biases = problem.shards(3, "div")  # which is what its second version takes for granted
    arguments = (weights, biases, problem.labels, problem.inputs, SAMPLED, CLASSES, 1, problem.samples)
    np.testing.assert_allclose(run(ab.tf.nn.sampled_softmax_loss(*arguments)), SOFTMAX[1, True], rtol=2e-5)
    np.testing.assert_allclose(run(ab.tf.nn.nce_loss(*arguments)), NCE[1, False], rtol=2e-5)
    np.testing.assert_array_equal(run(ab.tf.nn.embedding_lookup(weights, [[7, 2]])), problem.weights[[[7, 2]]])


@pytest.mark.parametrize("loss", [ab.nn.sampled_softmax_loss, ab.nn.nce_loss])
@pytest.mark.parametrize("num_true", [1, 2])
def test_gradients_against_finite_differences(loss: Any, num_true: int) -> None:
    problem = Problem(num_true)

    def total(first: Any, second: Any, biases: Any, inputs: Any) -> Any:
        parts = [biases[0::2], biases[1::2]]
        options = {"num_true": num_true, "sampled_values": problem.samples, "remove_accidental_hits": True}
        return ops.sum(loss([first, second], parts, problem.labels, inputs, SAMPLED, CLASSES, **options))

    arguments = [*problem.shards(2, "mod")[0], problem.biases, problem.inputs]
    assert ab.testing.check_gradients(total, [each.astype("float64") for each in arguments], order=1) > 0


def test_gradients_are_rows() -> None:
    problem = Problem(2)
    with ab.Graph().as_default():
        weights, biases = [[ab.Variable(each) for each in parts] for parts in problem.shards(2, "mod")]
        loss = ab.nn.sampled_softmax_loss(weights, biases, problem.labels, problem.inputs, 3, CLASSES, 2, seed=0)
        gradients = ab.gradients(ops.sum(loss), [*weights, *biases])
        assert all(isinstance(each, ab.IndexedSlices) for each in gradients)
        found = ab.Session().run(gradients)
    assert sum(len(each.indices) for each in found[:2]) == 2 * BATCH + 3


def test_a_sampled_gradient_is_about_the_full_one() -> None:
    """In the mean over samples, with all classes in reach."""
    problem = Problem(1)
    labels = problem.labels
    with ab.Graph().as_default():
        inputs = ab.constant(problem.inputs)
        weights, biases = ab.constant(problem.weights * 0.3), ab.constant(problem.biases * 0.3)
        full = ab.nn.sharded_softmax_loss(weights, biases, labels[:, 0], inputs)
        sampled = ab.nn.sampled_softmax_loss(weights, biases, labels, inputs, 8, CLASSES, seed=1)
        (exact,) = ab.gradients(ops.sum(full), [inputs])
        step = ab.Session().make_callable([*ab.gradients(ops.sum(sampled), [inputs])], [])
        found = np.mean([step()[0] for _ in range(400)], axis=0)
        wanted = ab.Session().run(exact)
    assert np.abs(found - wanted).max() < 0.12 * np.abs(wanted).max()


def test_16_bit_floats_stay_finite() -> None:
    for dtype in ("float16", "bfloat16"):
        problem = Problem(1)
        loss = ab.nn.sampled_softmax_loss(
            problem.weights, problem.biases, problem.labels, ops.cast(problem.inputs, dtype), 8, CLASSES, seed=0
        )
        assert loss.dtype.name == dtype
        assert np.isfinite(run(loss).astype("float32")).all()


@pytest.mark.parametrize("loss", [ab.nn.sampled_softmax_loss, ab.nn.nce_loss])
def test_wrong_arguments_of_losses(loss: Any) -> None:
    problem = Problem(1)
    name = loss.__name__
    with pytest.raises(TypeError, match=f"{name}: labels must be integers"):
        loss(problem.weights, problem.biases, problem.labels * 1.0, problem.inputs, 2, CLASSES)
    with pytest.raises(ValueError, match=rf"{name}: labels must have shape \(batch, num_true=2\), got \(4, 1\)"):
        loss(problem.weights, problem.biases, problem.labels, problem.inputs, 2, CLASSES, 2)
    with pytest.raises(ValueError, match=rf"{name}: inputs must have shape \(batch, dim\), got \(1, 4, 3\)"):
        loss(problem.weights, problem.biases, problem.labels, problem.inputs[None], 2, CLASSES)
    with pytest.raises(IndexError, match="out of bounds"):
        run(loss(problem.weights, problem.biases, problem.labels + CLASSES, problem.inputs, 2, CLASSES))


# --- over all classes -----------------------------------------------------------------------------------------------


def full_logits(problem: Problem) -> Any:
    return problem.inputs.astype("float64") @ problem.weights.T + problem.biases


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_full_softmax_is_exact(count: int, strategy: str) -> None:
    problem = Problem(1)
    labels = problem.labels[:, 0]
    weights, biases = problem.shards(count, strategy)
    logits = full_logits(problem)
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(BATCH), labels]
    loss = ab.nn.sharded_softmax_loss(weights, biases, labels, problem.inputs, strategy)
    found = ab.nn.sharded_logits(weights, biases, problem.inputs, strategy)
    best, classes = ab.nn.sharded_top_k(weights, biases, problem.inputs, 4, strategy)
    loss, found, best, classes = run(loss, found, best, classes)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(classes, np.argsort(-logits, axis=1)[:, :4])
    np.testing.assert_array_equal(best, np.take_along_axis(found, classes, 1))
    assert classes.dtype == "int32"


def test_large_logits_do_not_overflow() -> None:
    weights = [np.array([[1000.0], [0.0]], "float32"), np.array([[-1000.0], [999.0]], "float32")]
    loss = ab.nn.sharded_softmax_loss(weights, [np.zeros(2, "float32")] * 2, [0, 3], np.ones((2, 1), "float32"))
    np.testing.assert_allclose(run(loss), np.log1p(np.exp(-1.0)) + np.array([0, 1]), atol=1e-4)


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_gradients_of_the_full_softmax(strategy: str) -> None:
    problem = Problem(1)

    def total(first: Any, second: Any, one: Any, other: Any, inputs: Any) -> Any:
        return ops.sum(
            ab.nn.sharded_softmax_loss([first, second], [one, other], problem.labels[:, 0], inputs, strategy)
        )

    weights, biases = problem.shards(2, strategy)
    arguments = [each.astype("float64") for each in (*weights, *biases, problem.inputs)]
    assert ab.testing.check_gradients(total, arguments, order=1) > 0


def test_wrong_arguments_of_full_softmaxes() -> None:
    problem = Problem(1)
    weights, biases, inputs, labels = problem.weights, problem.biases, problem.inputs, problem.labels[:, 0]
    with pytest.raises(ValueError, match="as many shards, at least one, got 1 and 2"):
        ab.nn.sharded_logits(weights, [biases, biases], inputs)
    with pytest.raises(ValueError, match=r"got \(11, 3\) and \(10,\)"):
        ab.nn.sharded_logits(weights, biases[1:], inputs)
    with pytest.raises(ValueError, match=r"sharded_softmax_loss: inputs must have shape \(batch, dim\), got \(3,\)"):
        ab.nn.sharded_softmax_loss(weights, biases, labels, inputs[0])
    with pytest.raises(ValueError, match="k must be from 1 to the number of classes, 11, got 12"):
        ab.nn.sharded_top_k(weights, biases, inputs, 12)
    with pytest.raises(ValueError, match="partition_strategy must be 'mod' or 'div', got 'x'"):
        ab.nn.sharded_top_k(weights, biases, inputs, 2, "x")
    with pytest.raises(ValueError, match="partition_strategy must be 'mod' or 'div', got 'x'"):
        ab.nn.sharded_softmax_loss(weights, biases, labels, inputs, "x")
    with pytest.raises(IndexError, match="out of bounds"):
        run(ab.nn.sharded_softmax_loss(weights, biases, [11, 0, 0, 0], inputs))
