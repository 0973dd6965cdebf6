"""`beam_search`: the most probable sequences, found in one loop of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..engine import ops
from ..engine.control_flow import cond, while_loop
from ..engine.graph import Tensor
from ..engine.graph.nest import map_structure
from .decoding_steps import CheckedStep, Step, check_at_least, first_values

_MOST_PASSES = 16  # for more than so many of the largest, sorting is quicker


class _Beams(NamedTuple):
    """What the search carries from step to step."""

    tokens: Tensor  # (batch, width, max_length): live beams
    logs: Tensor  # (batch, width): their log-probabilities, in descending order; -inf for beams that do not exist
    latest: Tensor  # (batch, width): their last tokens
    found: Tensor  # (batch, paths, max_length): the best finished sequences
    scores: Tensor  # (batch, paths), in descending order; -inf for sequences that do not exist
    lengths: Tensor  # (batch, paths)


def beam_search(
    step: Step,
    states: Any,
    *,
    start_token: Any,
    end_token: int,
    max_length: int,
    beam_width: int = 4,
    top_paths: int | None = None,
    length_penalty: float = 0.0,
    early_stop: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable sequences that a step function gives, as far as a beam of hypotheses finds them.

    Every step extends each live beam by each token, and takes the `beam_width` best candidates. Those that end are
    finished: they are kept apart, at no further cost, if they are among the best `top_paths`; the beam is filled up
    with the next best candidates that go on. At `max_length` the best candidates are finished as they are. Among
    equals, the earlier beam and the smaller token come first, and what was finished before.

    A row of the batch is done when no live beam can beat its finished sequences, whatever follows. The loop ends when
    all rows are done.

    Args:
        step: a function of the latest token of each beam, int32 ``(batch * beam_width,)``, the beams of a row side by
            side, and the states. It returns logits, ``(batch * beam_width, vocabulary)``, and the new states. What it
            returns just as it was given, such as what a decoder attends to, is not moved from beam to beam.
        states: the states before the first step: nested lists, tuples and dicts of tensors ``(batch, ...)``.
        start_token: the token before the first, a number or ``(batch,)``.
        end_token: the token that ends a sequence, and fills up the results.
        max_length: the most tokens in a sequence, its `end_token` included.
        beam_width: how many live beams a row has.
        top_paths: how many sequences a row gets, at most `beam_width`, which is the default. Fewer are found sooner.
        length_penalty: ``a`` in the score, the sum of log-probabilities over ``((5 + length) / 6) ** a`` (Wu et al.,
            2016). 0 compares probabilities; more favours long sequences.
        early_stop: False goes on to `max_length` in any case, which gives the same results.

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
    array([[[2, 0, 0, 0],
            [1, 0, 0, 0]]], dtype=int32)
    >>> np.exp(scores).round(2), lengths
    (array([[0.27, 0.24]]), array([[2, 2]], dtype=int32))
    """
    paths = beam_width if top_paths is None else top_paths
    check_at_least("beam_search", 1, beam_width=beam_width, max_length=max_length, top_paths=paths)
    check_at_least("beam_search", 0, end_token=end_token)
    if paths > beam_width:
        raise ValueError(f"beam_search: top_paths={paths} sequences can't be found by beam_width={beam_width} beams.")
    starts, states = first_values("beam_search", start_token, states)
    states = map_structure(lambda leaf: ops.repeat(leaf, beam_width, axis=0), states)
    checked = CheckedStep("beam_search", step, ops.repeat(starts, beam_width), states)
    if end_token >= checked.vocabulary:
        raise ValueError(f"beam_search: end_token={end_token} is outside the vocabulary of {checked.vocabulary}.")
    search = _Search(checked, end_token, max_length, beam_width, paths, length_penalty, early_stop)
    return search.run(starts, states)


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
        self.early_stop = early_stop
        self.dtype = step.dtype
        self.lowest = ops.constant(-np.inf, self.dtype)
        # By the length of a sequence. No log-probability is positive, so that the largest divisor gives the best score.
        divisors = ((5 + np.arange(max_length + 1)) / 6) ** length_penalty
        best_from = np.maximum.accumulate(divisors[::-1])[::-1]
        self.divisors = ops.constant(divisors, self.dtype)
        self.best_divisors = ops.constant(np.append(best_from[1:], best_from[-1]), self.dtype)  # of what is longer

    def run(self, starts: Tensor, states: Any) -> tuple[Tensor, Tensor, Tensor]:
        batch = ops.shape(starts)[0]
        logs = np.full(self.width, -np.inf)
        logs[0] = 0.0  # beams that are all alike would stay alike
        beams = _Beams(
            ops.full((batch, self.width, self.max_length), self.end_token, "int32"),
            ops.broadcast_to(ops.constant(logs, self.dtype), (batch, self.width)),
            ops.broadcast_to(ops.expand_dims(starts, 1), (batch, self.width)),
            ops.full((batch, self.paths, self.max_length), self.end_token, "int32"),
            ops.full((batch, self.paths), -np.inf, self.dtype),
            ops.zeros((batch, self.paths), "int32"),
        )
        self.first_beams = ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * self.width
        _, beams, _ = while_loop(
            lambda length, beams, states: ops.any(beams.logs > self.lowest),
            self._body,
            (0, beams, states),
            name="beam_search",
        )
        return beams.found, beams.scores, beams.lengths

    def _body(self, length: Any, beams: _Beams, states: Any) -> tuple[Any, _Beams, Any]:
        logits, new_states = self.step(ops.reshape(beams.latest, (-1,)), states)
        logs = ops.reshape(ops.log_softmax(logits), (-1, self.width, self.step.vocabulary))
        logs = ops.reshape(logs + ops.expand_dims(beams.logs, 2), (-1, self.width * self.step.vocabulary))
        best, places = _largest(logs, self.width)
        is_last = ops.equal(length + 1, self.max_length)
        ends = ops.logical_or(ops.equal(places % self.step.vocabulary, self.end_token), is_last)

        live, places, found, scores, lengths = cond(
            ops.any(ends),
            lambda: (*self._best_open(logs), *self._finish(length, best, places, ends, beams)),
            lambda: (best, places, beams.found, beams.scores, beams.lengths),
            name="finish",
        )
        done: Tensor = is_last
        if self.early_stop:
            done = ops.logical_or(done, scores[:, -1:] >= live[:, :1] / self.best_divisors[length + 1])
        live = ops.where(done, self.lowest, live)  # so nothing that follows counts in this row

        sources, tokens = self._split(places)
        extended = self._extended(beams.tokens, sources, tokens, length)
        states = self._moved(states, new_states, ops.reshape(sources, (-1,)))
        return length + 1, _Beams(extended, live, tokens, found, scores, lengths), states

    def _split(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The beams that candidates continue, as places among those of the batch, and their tokens."""
        return self.first_beams + places // self.step.vocabulary, places % self.step.vocabulary

    def _best_open(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidates that do not end."""
        tokens = ops.arange(self.width * self.step.vocabulary, dtype="int32") % self.step.vocabulary
        return _largest(ops.where(ops.equal(tokens, self.end_token), self.lowest, logs), self.width)

    def _finish(self, length: Any, logs: Tensor, places: Tensor, ends: Tensor, beams: _Beams) -> tuple[Any, Any, Any]:
        """The best finished sequences, their scores and lengths, with the candidates that end."""
        sources, tokens = self._split(places)
        scores = ops.where(ends, logs / self.divisors[length + 1], self.lowest)
        best, order = ops.top_k(ops.concatenate([beams.scores, scores], axis=1), self.paths)
        extended = ops.concatenate([beams.found, self._extended(beams.tokens, sources, tokens, length)], axis=1)
        found = ops.take_along_axis(extended, ops.expand_dims(order, 2), axis=1)
        ended = ops.where(scores > self.lowest, length + 1, 0)
        lengths = ops.take_along_axis(ops.concatenate([beams.lengths, ended], axis=1), order, axis=1)
        return found, best, lengths

    def _extended(self, tokens: Tensor, sources: Tensor, new: Tensor, length: Any) -> Tensor:
        """``(batch, width, max_length)``: the sequences of the beams `sources`, continued by new tokens."""
        beams = ops.take(ops.reshape(tokens, (-1, self.max_length)), sources, axis=0)
        here = ops.equal(ops.arange(self.max_length, dtype="int32"), length)
        return ops.where(here, ops.expand_dims(new, 2), beams)

    def _moved(self, states: Any, new_states: Any, sources: Tensor) -> Any:
        """The states of the beams `sources`; what the step left alone is the same for all beams of a row."""

        def moved(old: Tensor, new: Tensor) -> Tensor:
            return old if new is old else ops.take(new, sources, axis=0)

        return map_structure(moved, states, new_states)


def _largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row, in descending order, and where they are; of equal ones the first.

    Where only -inf is left, so are the values, but places repeat themselves.
    """
    if count > _MOST_PASSES:
        return ops.top_k(x, count)
    places = ops.arange(ops.shape(x)[1], dtype="int32")
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(count):
        place = ops.expand_dims(ops.argmax(x, axis=1), 1)
        found.append((ops.max(x, axis=1, keepdims=True), place))
        x = ops.where(ops.equal(places, place), ops.constant(-np.inf, x.dtype), x)
    values, indices = zip(*found, strict=True)
    return ops.concatenate(list(values), axis=1), ops.concatenate(list(indices), axis=1)
