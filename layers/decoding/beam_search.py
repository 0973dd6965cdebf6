"""`beam_search`: the most probable sequences, found in one loop of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...engine import ops
from ...engine.common.nest import map_structure
from ...engine.control_flow import TensorArray, cond, while_loop
from ...engine.graph import Tensor, flatten
from ...engine.ops.base import TensorLike
from ...engine.session.staged import compiled_on_values
from .steps import CheckedStep, Step, check_at_least, first_values

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.ops.arrays.shaping import DimLike


class _Best(NamedTuple):
    """The best finished sequences of each row."""

    scores: Tensor  # (rows, paths), in descending order; -inf for sequences that do not exist
    last: Tensor  # (rows, paths): their last tokens, as places in the history


class _Beams(NamedTuple):
    """The state that the search carries from step to step, of the rows that are not done."""

    rows: Tensor  # (rows,): which rows of the batch these are
    logs: Tensor  # (rows, width): log-probabilities, in descending order; -inf for beams that do not exist
    latest: Tensor  # (rows, width): their last tokens
    last: Tensor  # (rows, width): the same, as places in the history
    best: _Best


class _History(NamedTuple):
    """The candidates of all steps, one after the other, from which sequences are read at the end.

    All beams have as many, and only beams record what was before. The first belong to no beam: sequences start there.
    """

    count: Tensor  # how many candidates there are
    tokens: TensorArray
    before: TensorArray  # for each beam, its last token, as a place here


@compiled_on_values
def beam_search(
    step: Step,
    states: Nest[TensorLike | None],
    *,
    start_token: TensorLike,
    end_token: int,
    max_length: int,
    beam_width: int = 4,
    top_paths: int | None = None,
    length_penalty: float = 0.0,
    early_stop: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the most probable sequences that a step function gives, by a beam of hypotheses.

    Every step extends each live beam by each token, and takes the `beam_width` best candidates. Those that end are
    finished: they are kept apart, at no further cost, if they are among the best `top_paths`; the beam is filled up
    with the next best candidates that go on. At `max_length` the best candidates are finished as they are. Among
    equals, the earlier beam and the smaller token come first, and what was finished before.

    A row of the batch is done when no live beam can beat its finished sequences, whatever follows. Steps are of the
    rows that are not done, and the loop ends when there are none.

    Args:
        step: a function of the latest token of each beam, int32 ``(rows * beam_width,)``, the beams of a row side by
            side, and the states. It returns logits, ``(rows * beam_width, vocabulary)``, and the new states. What it
            returns just as it was given, such as what a decoder attends to, is not moved from beam to beam. The number
            of rows falls: what belongs to one must be among the states.
        states: the states before the first step: nested lists, tuples and dicts of tensors ``(batch, ...)``.
        start_token: the token before the first, a number or ``(batch,)``.
        end_token: the token that ends a sequence, and fills up the results.
        max_length: the largest number of tokens in a sequence, its `end_token` included.
        beam_width: how many live beams a row has.
        top_paths: how many sequences a row gets, at most `beam_width`, which is the default. Fewer are found sooner.
        length_penalty: ``a`` in the score, the sum of log-probabilities over ``((5 + length) / 6) ** a`` (Wu et al.,
            2016). 0 compares probabilities; more favours long sequences.
        early_stop: False goes on to `max_length` with all rows that have live beams, which gives the same results.

    Returns:
        ``(sequences, scores, lengths)``, best first: int32 ``(batch, top_paths, max_length)``, without the start token;
        ``(batch, top_paths)``; int32 ``(batch, top_paths)``, which count the end token. Where there are fewer
        sequences, the score is -inf and the length 0.

    Raises:
        TypeError, ValueError: an argument is out of range, or the step does not return what it should.

    Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; Wu et al., "Google's Neural Machine
    Translation System", 2016, section 7.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> table = np.log([[0.1, 0.6, 0.3], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05]])  # from token (row) to token
    >>> @ab.function
    ... def search(start):
    ...     return ab.decoding.beam_search(
    ...         lambda tokens, states: (ab.ops.take(table, tokens, axis=0), states), (),
    ...         start_token=start, end_token=0, max_length=4, beam_width=2,
    ...     )
    >>> sequences, scores, lengths = search(np.array([0], "int32"))
    >>> sequences
    Tensor([[[2, 0, 0, 0],
             [1, 0, 0, 0]]], dtype=int32)
    >>> np.exp(scores).round(2), lengths
    (array([[0.27, 0.24]]), Tensor([[2, 2]], dtype=int32))
    """
    paths = beam_width if top_paths is None else top_paths
    check_at_least("beam_search", 1, beam_width=beam_width, max_length=max_length, top_paths=paths)
    check_at_least("beam_search", 0, end_token=end_token)
    if paths > beam_width:
        raise ValueError(f"beam_search: top_paths={paths} sequences can't be found by beam_width={beam_width} beams.")
    starts, first = first_values("beam_search", start_token, states)
    beams = map_structure(lambda leaf: ops.repeat(leaf, beam_width, axis=0), first)
    checked = CheckedStep("beam_search", step, ops.repeat(starts, beam_width), beams)
    if end_token >= checked.vocabulary:
        raise ValueError(f"beam_search: end_token={end_token} is outside the vocabulary of {checked.vocabulary}.")
    search = _Search(checked, end_token, max_length, beam_width, paths, length_penalty, early_stop)
    return search.run(starts, beams)


class _Search:
    def __init__(
        self,
        step: CheckedStep,
        end_token: int,
        max_length: int,
        beam_width: int,
        paths: int,
        length_penalty: float,
        early_stop: bool,
    ) -> None:
        self.step = step
        self.end_token = end_token
        self.max_length = max_length
        self.width = beam_width
        self.paths = paths
        self.choices = min(beam_width + 1, step.vocabulary)
        self.early_stop = early_stop
        self.dtype = step.dtype
        self.lowest = ops.constant(-np.inf, self.dtype)
        self.is_penalised = length_penalty != 0
        # By the length of a sequence. No log-probability is positive, so that the largest divisor gives the best score.
        divisors = ((5 + np.arange(max_length + 1)) / 6) ** length_penalty
        best_from = np.maximum.accumulate(divisors[::-1])[::-1]
        self.divisors = ops.constant(divisors, self.dtype)
        self.best_divisors = ops.constant(np.append(best_from[1:], best_from[-1]), self.dtype)  # of what is longer

    def run(self, starts: Tensor, states: Nest[Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
        batch = ops.shape(starts)[0]
        logs = np.full(self.width, -np.inf)
        logs[0] = 0.0  # beams that are all alike would stay alike
        best = _Best(ops.full((batch, self.paths), -np.inf, self.dtype), ops.zeros((batch, self.paths), "int32"))
        beams = _Beams(
            ops.arange(batch, dtype="int32"),
            ops.broadcast_to(ops.constant(logs, self.dtype), (batch, self.width)),
            ops.broadcast_to(ops.expand_dims(starts, 1), (batch, self.width)),
            ops.zeros((batch, self.width), "int32"),
            best,
        )
        arrays = [TensorArray("int32", dynamic_size=True, element_shape=(None,), infer_shape=False) for _ in range(2)]
        history = _History(
            ops.constant(self.choices, "int32"),
            arrays[0].write(0, ops.full((self.choices,), self.end_token, "int32")),
            arrays[1].write(0, ops.zeros((1,), "int32")),
        )
        self.firsts = ops.expand_dims(ops.arange(batch, dtype="int32") * (self.width * self.choices), 1)
        steps, beams, _, found, history, totals = while_loop(
            lambda length, beams, *_: ops.logical_and(length < self.max_length, ops.shape(beams.rows)[0] > 0),
            self._body,
            (0, beams, states, best, history, self.step.sums.zeros(batch * self.width)),
            name="beam_search",
        )
        self.step.sums.finish(totals)
        return self._sequences(_put(found, beams.best, beams.rows), history, steps)

    def _body(
        self,
        length: int,
        beams: _Beams,
        states: Nest[Tensor | None],
        found: _Best,
        history: _History,
        totals: Sequence[Tensor],
    ) -> tuple[object, ...]:
        logits, new_states, totals = self.step.of_some_rows(
            ops.reshape(beams.latest, (-1,)), states, totals, self._places(beams.rows)
        )
        logs, tokens = self._candidates(logits, beams.logs)
        first = self.firsts[: ops.shape(tokens)[0]]  # where the candidates of each row begin, among those of all rows
        live, places, best = self._parted(length, logs, tokens, first + history.count, beams.best)
        chosen = first + places
        can_win = live[:, 0] > self.lowest
        if self.early_stop:
            can_win = self._scores(live[:, 0], self.best_divisors, length) > best.scores[:, -1]

        def left() -> tuple[Tensor, ...]:
            """Remove the rows that are done, and put their results where they belong."""
            (gone,), (kept,) = ops.nonzero(ops.logical_not(can_win)), ops.nonzero(can_win)
            results = _put(found, _Best(*[ops.take(x, gone, axis=0) for x in best]), ops.take(beams.rows, gone, axis=0))
            carried = [ops.take(x, kept, axis=0) for x in (beams.rows, live, chosen, *best)]
            return *carried, *results, *self._of_rows(states, new_states, kept)

        rows, live, chosen, *rest = cond(
            ops.all(can_win),
            lambda: (beams.rows, live, chosen, *best, *found, *self._untouched(states, new_states)),
            left,
            name="leave",
        )
        tokens = ops.reshape(tokens, (-1,))
        states = self._moved(states, new_states, rest[4:], ops.reshape(chosen // self.choices, (-1,)))
        latest, last = ops.take(tokens, chosen, axis=0), chosen + history.count
        history = _History(
            history.count + ops.shape(tokens)[0],
            history.tokens.write(length + 1, tokens),
            history.before.write(length + 1, ops.reshape(beams.last, (-1,))),
        )
        beams = _Beams(rows, live, latest, last, _Best(*rest[:2]))
        return length + 1, beams, states, _Best(*rest[2:4]), history, totals

    def _candidates(self, logits: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens, ``(rows, width * choices)``, of the candidates that can matter.

        Of a beam these are as many of the best as there are beams, and one more, since one of them may end.
        """
        best, tokens = ops.top_k(logits, self.choices)
        # Where a beam can't go on, since all tokens are forbidden, this keeps -inf what is.
        norm = ops.maximum(ops.logsumexp(logits, axis=1, keepdims=True), np.finfo(self.dtype).min)
        best = ops.minimum(best - norm, 0) + ops.reshape(logs, (-1, 1))  # by rounding it could be a little more than 0
        return ops.reshape(best, (-1, self.width * self.choices)), ops.reshape(tokens, (-1, self.width * self.choices))

    def _parted(
        self, length: int, logs: Tensor, tokens: Tensor, first: Tensor, best: _Best
    ) -> tuple[Tensor, Tensor, _Best]:
        """Return the best candidates that go on and their places, and the best sequences, with the candidates that end.

        `first` is where the candidates of each row begin in the history.
        """
        is_last = ops.equal(length + 1, self.max_length)
        top, places = ops.top_k(logs, self.width)
        is_end = ops.equal(ops.take_along_axis(tokens, places, axis=1), self.end_token)

        def finished() -> tuple[Tensor, Tensor, _Best]:
            ends = ops.logical_or(is_end, is_last)
            scores = ops.where(ends, self._scores(top, self.divisors, length), self.lowest)
            # What does not end, or does not exist, has a score of -inf, and comes after all that was there.
            scores, order = ops.top_k(ops.concatenate([best.scores, scores], axis=1), self.paths)
            last = ops.concatenate([best.last, first + places], axis=1)
            going_on = ops.top_k(ops.where(ops.equal(tokens, self.end_token), self.lowest, logs), self.width)
            return *going_on, _Best(scores, ops.take_along_axis(last, order, axis=1))

        any_ends = ops.logical_or(ops.any(is_end), is_last)
        return cond(any_ends, finished, lambda: (top, places, best), name="finish")

    def _scores(self, logs: Tensor, divisors: Tensor, length: int) -> Tensor:
        """Return the scores of sequences that are longer than `length` by one token."""
        return logs / divisors[length + 1] if self.is_penalised else logs

    def _sequences(self, best: _Best, history: _History, steps: DimLike) -> tuple[Tensor, Tensor, Tensor]:
        """Return sequences, scores and lengths, read from the last tokens to the first."""
        tokens, before = history.tokens.concat(), history.before.concat()
        _, _, places = while_loop(
            lambda step, *_: step < steps,
            lambda step, last, places: (
                step + 1,
                ops.take(before, last // self.choices, axis=0),
                places.write(step, last),
            ),
            (0, best.last, TensorArray("int32", dynamic_size=True, element_shape=best.last.shape)),
            name="read_back",
        )
        batch = ops.shape(best.last)[0]
        places = ops.reshape(places.stack(), (steps, batch * self.paths))  # without rows there is no step
        lengths = ops.sum(ops.cast(places > 0, "int32"), axis=0)
        columns = ops.arange(self.max_length, dtype="int32")
        reversed = ops.expand_dims(lengths, 1) - 1 - columns
        chosen = ops.take_along_axis(ops.transpose(places), ops.maximum(reversed, 0), axis=1)
        sequences = ops.where(reversed >= 0, ops.take(tokens, chosen, axis=0), self.end_token)
        shape = (batch, self.paths)
        return ops.reshape(sequences, (*shape, self.max_length)), best.scores, ops.reshape(lengths, shape)

    def _untouched(self, states: Nest[Tensor | None], new_states: Nest[Tensor | None]) -> list[Tensor]:
        """Return the states that the step returned just as they were given. Each is the same for all beams of a row."""
        pairs = zip(flatten(states), flatten(new_states), strict=True)
        return [old for old, new in pairs if new is old]

    def _of_rows(self, states: Nest[Tensor | None], new_states: Nest[Tensor | None], rows: Tensor) -> list[Tensor]:
        """Return what is untouched, of some of the rows."""
        places = self._places(rows)
        return [ops.take(x, places, axis=0) for x in self._untouched(states, new_states)]

    def _places(self, rows: Tensor) -> Tensor:
        """Return the positions of the beams of some rows among those of all."""
        places = ops.expand_dims(rows * self.width, 1) + ops.arange(self.width, dtype="int32")
        return ops.reshape(places, (-1,))

    def _moved(
        self, states: Nest[Tensor | None], new_states: Nest[Tensor | None], untouched: list[Tensor], sources: Tensor
    ) -> Nest[Tensor | None]:
        """Return the states of the beams `sources`; what is untouched is there already."""
        remaining = iter(untouched)

        def moved(old: Tensor, new: Tensor) -> Tensor:
            return next(remaining) if new is old else ops.take(new, sources, axis=0)

        return map_structure(moved, states, new_states)


def _put(all: _Best, some: _Best, rows: Tensor) -> _Best:
    """Return the results of all rows, with those of some in their places."""
    lines = ops.expand_dims(rows, 1)
    return _Best(*[ops.scatter_update(whole, lines, part) for whole, part in zip(all, some, strict=True)])
