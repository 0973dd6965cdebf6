"""Sequences out of a step function, in one loop of the graph: `anabranch.decoding`.

All functions take a step function, ``step(tokens, states)``, which gets the latest token of each row and the states.
It returns logits, ``(rows, vocabulary)``, and the new states, in the structure of the old ones. What layers
in it add to the loss, and count, is summed over the steps, as in an `RNN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...engine import ops
from ...engine.common.nest import map_structure
from ...engine.control_flow import TensorArray, cond, while_loop
from ...engine.graph import Tensor, Variable
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers as random
from ...engine.session.staged import compiled_on_values
from .beam_search import beam_search
from .steps import CheckedStep, Step, check_at_least, first_values, pointed_at

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.random.keys import SeedGenerator


__all__ = ["beam_search", "greedy_search", "sample", "scheduled_sampling"]


@compiled_on_values
def greedy_search(
    step: Step, states: Nest[TensorLike | None], *, start_token: TensorLike, end_token: int, max_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the most probable token at each step, the first of equals, until all rows have ended.

    Args:
        step: a function of the latest tokens, int32 ``(batch,)``, and the states, which returns logits
            ``(batch, vocabulary)`` and the new states.
        states: the states before the first step: nested lists, tuples and dicts of tensors ``(batch, ...)``.
        start_token: the token before the first, a number or ``(batch,)``.
        end_token: the token that ends a row, and fills up the results.
        max_length: the largest number of tokens of a row, its `end_token` included.

    Returns:
        ``(sequences, scores, lengths)``: int32 ``(batch, max_length)``, without the start token; the sums of
        log-probabilities, ``(batch,)``; int32 ``(batch,)``, which count the end token.

    Raises:
        TypeError, ValueError: an argument is out of range, or the step does not return what it should.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> table = np.log([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]])  # from token (row) to token
    >>> @ab.function
    ... def search(start):
    ...     return ab.decoding.greedy_search(
    ...         lambda tokens, states: (ab.ops.take(table, tokens, axis=0), states), (),
    ...         start_token=start, end_token=0, max_length=5,
    ...     )
    >>> sequences, scores, lengths = search(np.array([0, 2], "int32"))
    >>> sequences, np.exp(scores).round(2), lengths
    (Tensor([[1, 2, 0, 0, 0],
            [0, 0, 0, 0, 0]], dtype=int32), array([0.27, 0.9 ]), Tensor([3, 1], dtype=int32))
    """
    return _decode(
        "greedy_search", lambda logits, _: ops.argmax(logits, axis=1), step, states, start_token, end_token, max_length
    )


@compiled_on_values
def sample(
    step: Step,
    states: Nest[TensorLike | None],
    *,
    start_token: TensorLike,
    end_token: int,
    max_length: int,
    temperature: TensorLike = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | SeedGenerator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token at each step, until all rows have ended.

    Args:
        step, states, start_token, end_token, max_length: see `greedy_search`.
        temperature: logits are divided by it, a positive number or scalar tensor: below 1 is careful, above 1 is wild.
        top_k: draw only from this many of the most probable tokens (Fan et al., 2018).
        top_p: draw from the fewest of the most probable tokens that have this probability together, within (0, 1]
            (Holtzman et al., 2020); of what `top_k` leaves, if both are given.
        seed: an integer or an `ab.random.SeedGenerator`.

    Returns:
        ``(sequences, scores, lengths)``, see `greedy_search`. Scores are of the logits as they are, before temperature
        and choice.

    Raises:
        TypeError, ValueError: an argument is out of range, or the step does not return what it should.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> @ab.function
    ... def draw(logits):
    ...     return ab.decoding.sample(
    ...         lambda tokens, states: (states, states), logits,
    ...         start_token=0, end_token=0, max_length=3, top_k=1,
    ...     )
    >>> draw(np.array([[0.0, 2.0, 1.0]], "float32"))[0]
    Tensor([[1, 1, 1]], dtype=int32)
    """
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise ValueError(
            f"sample: temperature must be positive, got {temperature!r}. For the most probable tokens use "
            "greedy_search."
        )
    if top_k is not None:
        check_at_least("sample", 1, top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"sample: top_p must be within (0, 1], got {top_p!r}.")
    generator = seed if isinstance(seed, random.SeedGenerator) else random.SeedGenerator(seed)

    batch = ops.shape(first_values("sample", start_token, states)[0])[0]

    def draw(logits: Tensor, rows: Tensor) -> Tensor:
        # Each row has its numbers, whichever others have ended.
        unit = ops.take(_units(batch, generator), rows, axis=0)
        return _draw(logits / ops.cast(temperature, logits.dtype), unit, top_k, top_p)

    return _decode("sample", draw, step, states, start_token, end_token, max_length)


def _units(batch: DimLike, generator: random.SeedGenerator) -> Tensor:
    """Return a number from 0 to 1 for each row."""
    return random.uniform((batch,), dtype="float64", seed=generator)


def _draw(logits: Tensor, unit: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Return a token a row, of those that are left; each row has a number of its own, from 0 to 1, that decides."""
    if top_k is None and top_p is None:
        return pointed_at(logits, unit)
    _, vocabulary = logits.shape or (None, None)
    assert vocabulary is not None  # `CheckedStep` has made sure of it
    logits, tokens = ops.top_k(logits, min(top_k or vocabulary, vocabulary))
    if top_p is not None:
        probabilities = ops.softmax(logits)
        before = ops.cumsum(probabilities, axis=1) - probabilities  # of what is more probable
        logits = ops.where(before < top_p, logits, ops.constant(-np.inf, logits.dtype))
    return ops.take_along_axis(tokens, ops.expand_dims(pointed_at(logits, unit), 1), axis=1)[:, 0]


class _Live(NamedTuple):
    """The state that the loop carries from step to step, of the rows that have not ended."""

    rows: Tensor  # (rows,): which rows of the batch these are
    tokens: Tensor  # (rows,): their latest tokens
    scores: Tensor  # (rows,)


class _Found(NamedTuple):
    """The results of all rows, once they have ended."""

    scores: Tensor  # (batch,)
    lengths: Tensor  # (batch,)


def _decode(
    caller: str,
    choose: Callable[[Tensor, Tensor], Tensor],
    step: Step,
    states: Nest[TensorLike | None],
    start_token: TensorLike,
    end_token: int,
    max_length: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the loop of `greedy_search` and `sample`; they differ in the choice of tokens by logits and row numbers."""
    check_at_least(caller, 1, max_length=max_length)
    check_at_least(caller, 0, end_token=end_token)
    tokens, states = first_values(caller, start_token, states)
    checked = CheckedStep(caller, step, tokens, states)
    batch = ops.shape(tokens)[0]

    def body(
        position: Tensor,
        live: _Live,
        states: Nest[Tensor | None],
        found: _Found,
        written: tuple[TensorArray, TensorArray],
        totals: Sequence[Tensor],
    ) -> tuple[object, ...]:
        logits, states, totals = checked.of_some_rows(live.tokens, states, totals, live.rows)
        tokens = ops.cast(choose(logits, live.rows), "int32")
        gained = ops.take_along_axis(logits, ops.expand_dims(tokens, 1), axis=1)[:, 0] - ops.logsumexp(logits, axis=1)
        places, tokens_written = written
        written = places.write(position, live.rows * max_length + position), tokens_written.write(position, tokens)
        done = ops.logical_or(ops.equal(tokens, end_token), ops.equal(position + 1, max_length))
        live = _Live(live.rows, tokens, live.scores + gained)
        live, states, found = cond(
            ops.any(done),
            lambda: _without_ended(done, position + 1, live, states, found),
            lambda: (live, states, found),
            name="leave",
        )
        return position + 1, live, states, found, written, totals

    zeros = ops.zeros((batch,), checked.dtype)
    arrays = [TensorArray("int32", dynamic_size=True, element_shape=(None,), infer_shape=False) for _ in range(2)]
    start = (
        0,
        _Live(ops.arange(batch, dtype="int32"), tokens, zeros),
        states,
        _Found(zeros, ops.zeros((batch,), "int32")),
        tuple(arrays),
        checked.sums.zeros(batch),
    )
    *_, found, (places, tokens_written), totals = while_loop(
        # That the last step leaves no rows is said once more: so the compiler has a bound on the number of steps.
        lambda position, live, *_: ops.logical_and(position < max_length, ops.shape(live.rows)[0] > 0),
        body,
        start,
        name=caller,
    )
    checked.sums.finish(totals)
    sequences = ops.full((batch * max_length,), end_token, "int32")
    sequences = ops.scatter_update(sequences, ops.expand_dims(places.concat(), 1), tokens_written.concat())
    return ops.reshape(sequences, (batch, max_length)), found.scores, found.lengths


def _without_ended(
    done: Tensor, length: Tensor, live: _Live, states: Nest[Tensor | None], found: _Found
) -> tuple[_Live, Nest[Tensor | None], _Found]:
    """Return the rows that are not done, their states, and the results with those of the rows that are."""
    (gone,), (kept,) = ops.nonzero(done), ops.nonzero(ops.logical_not(done))
    lines = ops.expand_dims(ops.take(live.rows, gone, axis=0), 1)
    scores = ops.scatter_update(found.scores, lines, ops.take(live.scores, gone, axis=0))
    lengths = ops.scatter_update(found.lengths, lines, ops.broadcast_to(length, ops.shape(gone)))
    live, states = map_structure(lambda x: ops.take(x, kept, axis=0), (live, states))
    return live, states, _Found(scores, lengths)


@compiled_on_values
def scheduled_sampling(
    step: Step,
    states: Nest[TensorLike | None],
    tokens: TensorLike,
    probability: TensorLike,
    *,
    greedy: bool = False,
    seed: int | SeedGenerator | None = None,
) -> tuple[Tensor, Any]:
    """Run a decoder over sequences that are known, now and then on tokens of its own instead (Bengio et al., 2015).

    A decoder that was trained on true tokens alone sees its own mistakes for the first time when it is used. Here
    each row at each step after the first takes, with some probability, a token drawn by the logits of the step before.
    Training starts with a probability near 0, which then grows.

    Args:
        step: a function of the latest tokens, int32 ``(batch,)``, and the states, which returns logits
            ``(batch, vocabulary)`` and the new states.
        states: the states before the first step: nested lists, tuples and dicts of tensors ``(batch, ...)``.
        tokens: the true inputs, integers ``(batch, steps)``, beginning with the start token.
        probability: of taking the decoder's own token: a number, a Variable or a scalar tensor.
        greedy: take the most probable token instead of drawing one.
        seed: an integer or an `ab.random.SeedGenerator`.

    Returns:
        The logits, ``(batch, steps, vocabulary)``, and the final states. Gradients flow through both, but not through
        the choice of tokens.

    Raises:
        TypeError, ValueError: the tokens have not two axes, the probability is none, or the step does not return what
            it should.

    Bengio, Vinyals, Jaitly and Shazeer, "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks".

    >>> import numpy as np
    >>> import anabranch as ab
    >>> @ab.function
    ... def run(tokens, probability):  # the step counts: the token that it was given, and one more
    ...     def step(tokens, states):
    ...         return ab.ops.one_hot(tokens + 1, 9), states
    ...     logits, _ = ab.decoding.scheduled_sampling(step, (), tokens, probability, greedy=True)
    ...     return ab.ops.argmax(logits, axis=-1)
    >>> tokens = np.array([[1, 5, 2]], "int32")
    >>> run(tokens, 0.0), run(tokens, 1.0)
    (Tensor([[2, 6, 3]], dtype=int32), Tensor([[2, 3, 4]], dtype=int32))
    """
    inputs = ops.cast(ops.convert_to_tensor(tokens), "int32")
    if inputs.shape is None or len(inputs.shape) != 2:
        raise ValueError(f"scheduled_sampling: tokens must be of shape (batch, steps), got shape {inputs.shape}.")
    _check_probability(probability)
    generator = seed if isinstance(seed, random.SeedGenerator) else random.SeedGenerator(seed)
    batch, steps = ops.shape(inputs)
    given = TensorArray("int32", steps).unstack(ops.transpose(inputs))
    own, states = first_values("scheduled_sampling", ops.zeros((batch,), "int32"), states)
    checked = CheckedStep("scheduled_sampling", step, own, states)

    def body(
        position: Tensor, own: Tensor, outputs: TensorArray, states: Nest[Tensor | None], totals: Sequence[Tensor]
    ) -> tuple[object, ...]:
        takes_own = ops.logical_and(random.uniform((batch,), seed=generator) < probability, position > 0)
        logits, states, totals = checked(ops.where(takes_own, own, given.read(position)), states, totals)
        apart = ops.stop_gradient(logits)
        chosen = ops.argmax(apart, axis=1) if greedy else _draw(apart, _units(batch, generator))
        return position + 1, ops.cast(chosen, "int32"), outputs.write(position, logits), states, totals

    outputs = TensorArray(checked.dtype, steps, element_shape=(inputs.shape[0], checked.vocabulary))
    start = (0, own, outputs, states, checked.sums.zeros(batch))
    _, _, outputs, states, totals = while_loop(
        lambda position, *_: position < steps, body, start, name="scheduled_sampling"
    )
    checked.sums.finish(totals)
    logits = ops.reshape(outputs.stack(), (steps, batch, checked.vocabulary))
    return ops.transpose(logits, (1, 0, 2)), states


def _check_probability(given: Any) -> None:
    """Check that what `scheduled_sampling` was given is a probability; of tensors, that they are scalars.

    Raises:
        ValueError: it is none.
    """
    is_tensor = isinstance(given, (Tensor, Variable))
    if not is_tensor and np.asarray(given).dtype.kind not in "iuf":
        raise ValueError(
            f"scheduled_sampling: probability must be a number, a Variable or a scalar tensor, got {given!r}."
        )
    shape = given.shape if is_tensor else np.shape(given)
    if shape:
        raise ValueError(f"scheduled_sampling: probability must be one number for all rows, got shape {shape}.")
    if not is_tensor and not 0 <= given <= 1:
        raise ValueError(f"scheduled_sampling: probability must be within [0, 1], got {given!r}.")
