"""Samplers of candidates: a few of many classes, with how often each was to be expected among them.

Names, arguments and laws are those of TensorFlow's ``tf.random``. A sampler gives the classes, the same ones for the
whole batch, and what sampled losses correct their logits by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ...engine import ops
from ...engine.control_flow import while_loop
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers as random

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.random.keys import SeedGenerator


Draw: TypeAlias = "Callable[[DimLike], Tensor]"  # so many classes, drawn independently
Law = Callable[[Tensor], Tensor]  # the probability of each class, float64


class Candidates(NamedTuple):
    """The result of a sampler; TensorFlow's tuple of three.

    Args:
        sampled_candidates: int64 ``(num_sampled,)``, the classes.
        true_expected_count: float32 ``(batch, num_true)``, how often each true class is expected among them.
        sampled_expected_count: float32 ``(num_sampled,)``, the same of the sampled classes.

    >>> import anabranch as ab
    >>> drawn = ab.nn.uniform_candidate_sampler([[0], [7]], 1, num_sampled=5, unique=False, range_max=10)
    >>> [part.shape for part in drawn]
    [(5,), (2, 1), (5,)]
    """

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | SeedGenerator | None = None,
) -> Candidates:
    """Sample classes that are numbered by falling frequency, of which about Zipf's law holds.

    The probability of class k is ``log((k + 2) / (k + 1)) / log(range_max + 1)``.

    Args:
        true_classes: integers ``(batch, num_true)``.
        num_true: how many true classes each example has.
        num_sampled: how many classes to sample.
        unique: sample without replacement: classes are drawn until so many different ones have come.
        range_max: the number of classes.
        seed: an integer or an `ab.random.SeedGenerator`; None for the global one.

    Returns:
        `Candidates`. With ``unique`` a class of probability p is expected ``1 - (1 - p) ** tries`` times, `tries`
        being the number of draws that it took.

    Raises:
        TypeError: the classes are not integers.
        ValueError: a number is not positive, the shape does not fit, or there are fewer classes than are sampled.

    Jean, Cho, Memisevic and Bengio, "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015.

    >>> import anabranch as ab
    >>> drawn = ab.nn.log_uniform_candidate_sampler([[0], [7]], 1, num_sampled=8, unique=True, range_max=8, seed=1)
    >>> sorted(ab.Session().run(drawn.sampled_candidates).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    name = "log_uniform_candidate_sampler"
    true = _checked(name, true_classes, num_true, num_sampled, unique, range_max)
    generator, width = _generator(seed), float(np.log1p(range_max))

    def draw(count: DimLike) -> Tensor:
        powers = ops.exp(random.uniform((count,), dtype="float64", seed=generator) * width)
        return ops.clip(ops.cast(powers, "int64") - 1, 0, range_max - 1)  # rounding may reach the very end

    def law(classes: Tensor) -> Tensor:
        return ops.log1p(1.0 / (ops.cast(classes, "float64") + 1.0)) / width

    return _sampled(draw, law, true, num_sampled, unique)


def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | SeedGenerator | None = None,
) -> Candidates:
    """Sample classes that are all as probable; see `log_uniform_candidate_sampler`.

    >>> import anabranch as ab
    >>> drawn = ab.nn.uniform_candidate_sampler([[0], [7]], 1, num_sampled=5, unique=False, range_max=10)
    >>> drawn.sampled_expected_count
    Tensor([0.5, 0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    true = _checked("uniform_candidate_sampler", true_classes, num_true, num_sampled, unique, range_max)
    generator = _generator(seed)

    def draw(count: DimLike) -> Tensor:
        return random.randint((count,), 0, range_max, dtype="int64", seed=generator)

    def law(classes: Tensor) -> Tensor:
        return ops.full_like(ops.cast(classes, "float64"), 1.0 / range_max)

    return _sampled(draw, law, true, num_sampled, unique)


def fixed_unigram_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | SeedGenerator | None = None,
) -> Candidates:
    """Sample classes by counts that are given; see `log_uniform_candidate_sampler`.

    Args:
        true_classes, num_true, num_sampled, unique, range_max, seed: see there.
        distortion: the power to which counts are raised: 1 for the counts themselves, 0 for all classes alike; 0.75 in
            word2vec.
        num_reserved_ids: the number of classes before those that are counted; they are never sampled.
        unigrams: the counts of the other classes.

    Raises:
        ValueError: counts are negative or too few, or fewer classes have one than are sampled.

    >>> import anabranch as ab
    >>> drawn = ab.nn.fixed_unigram_candidate_sampler(
    ...     [[1]], 1, num_sampled=2, unique=True, range_max=4, unigrams=[5, 0, 2, 0])
    >>> sorted(ab.Session().run(drawn.sampled_candidates).tolist())
    [0, 2]
    """
    name = "fixed_unigram_candidate_sampler"
    true = _checked(name, true_classes, num_true, num_sampled, unique, range_max)
    counts = np.asarray([*unigrams], "float64")
    if len(counts) + num_reserved_ids != range_max:
        raise ValueError(
            f"{name}: unigrams must have a count for each of range_max - num_reserved_ids = "
            f"{range_max - num_reserved_ids} classes, got {len(counts)}."
        )
    if not (counts >= 0).all() or not counts.any():
        raise ValueError(f"{name}: unigrams must not be negative, and not all be 0.")
    weights = np.concatenate([np.zeros(num_reserved_ids), counts**distortion])
    possible = np.flatnonzero(weights)
    if unique and num_sampled > len(possible):
        raise ValueError(
            f"{name}: only {len(possible)} classes have a count, from which num_sampled={num_sampled} different ones "
            "can't be sampled. Lower num_sampled, or pass unique=False."
        )
    generator, shares = _generator(seed), weights / weights.sum()
    edges = np.cumsum(shares[possible])
    edges[-1] = 1.0

    def draw(count: DimLike) -> Tensor:
        units = random.uniform((count,), dtype="float64", seed=generator)
        return ops.take(ops.constant(possible, "int64"), ops.searchsorted(edges, units, side="right"), axis=0)

    def law(classes: Tensor) -> Tensor:
        return ops.gather(ops.constant(shares), classes)

    return _sampled(draw, law, true, num_sampled, unique)


# --- what all of them do --------------------------------------------------------------------------------------------


def _checked(
    name: str, true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool, range_max: int
) -> Tensor:
    """Return the true classes as int64 ``(batch, num_true)``."""
    for argument, value in (("num_true", num_true), ("num_sampled", num_sampled), ("range_max", range_max)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: {argument} must be a positive integer, got {value!r}.")
    if unique and num_sampled > range_max:
        raise ValueError(
            f"{name}: num_sampled={num_sampled} different classes can't be sampled from range_max={range_max}. Lower "
            "num_sampled, or pass unique=False."
        )
    true = ops.convert_to_tensor(true_classes)
    if true.dtype.kind not in "iu":
        raise TypeError(f"{name}: true_classes must be integers, got {true!r}.")
    if true.shape is not None and (len(true.shape) != 2 or true.shape[1] not in (None, num_true)):
        raise ValueError(
            f"{name}: true_classes must have shape (batch, num_true={num_true}), got {true.shape}. Use "
            "ops.reshape(labels, (-1, num_true))."
        )
    return ops.cast(true, "int64")


def _generator(seed: int | random.SeedGenerator | None) -> random.SeedGenerator:
    return seed if isinstance(seed, random.SeedGenerator) else random.SeedGenerator(seed)


def _sampled(draw: Draw, law: Law, true: Tensor, num_sampled: int, unique: bool) -> Candidates:
    if unique:
        classes, tries = _different(draw, num_sampled)
    else:
        classes, tries = draw(num_sampled), ops.convert_to_tensor(num_sampled, "int32")
    return Candidates(classes, *[_expected(law(each), num_sampled, tries) for each in (true, classes)])


def _different(draw: Draw, count: int) -> tuple[Tensor, Tensor]:
    """Return the first `count` different classes of a sequence of draws, and how many draws that took."""

    def lacks(found: Tensor, tries: Tensor) -> Tensor:
        return ops.shape(found)[0] < count

    def go_on(found: Tensor, tries: Tensor) -> tuple[Tensor, Tensor]:
        before = ops.shape(found)[0]
        classes, first = ops.unique(ops.concatenate([found, draw(2 * count)]), sorted=False, return_index=True)
        complete = ops.shape(classes)[0] >= count
        last = first[ops.minimum(ops.shape(first)[0], count) - 1]  # where the last class that is kept came up
        used = ops.where(complete, last + 1 - before, 2 * count)
        return classes[:count], tries + used

    nothing = ops.zeros((0,), "int64")
    found, tries = while_loop(lacks, go_on, (nothing, 0))
    return ops.reshape(found, (count,)), tries


def _expected(probability: Tensor, num_sampled: int, tries: Tensor) -> Tensor:
    """Return expected counts of classes among the sampled ones, as TensorFlow does, without rounding for small ones."""
    once = -ops.expm1(ops.cast(tries, "float64") * ops.log1p(-probability))
    return ops.cast(ops.where(ops.equal(tries, num_sampled), probability * num_sampled, once), "float32")


__all__ = [
    "Candidates",
    "fixed_unigram_candidate_sampler",
    "log_uniform_candidate_sampler",
    "uniform_candidate_sampler",
]
