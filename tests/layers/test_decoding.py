"""Decoding in the graph, against the same searches in plain Python."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import decoding, ops
from anabranch.engine.ops.random.samplers import draw_uniform

END = 0
Logs = Callable[[list[int]], np.ndarray]  # tokens so far, the start token first, to log-probabilities


def log_softmax(x: Any) -> np.ndarray:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def make_step(table: np.ndarray, mix: np.ndarray) -> Callable[[Any, Any], Any]:
    """A step whose logits depend on all tokens before, by way of a nested state."""

    def step(tokens: Any, states: Any) -> Any:
        memory = states["memory"] * 0.5 + ops.take(mix, tokens, axis=0)
        logits = ops.take(table, tokens, axis=0) + memory @ mix.T + states["rows"][0]
        return logits, {"memory": memory, "rows": states["rows"]}

    return step


def reference_logs(table: np.ndarray, mix: np.ndarray, row: np.ndarray) -> Logs:
    def logs(tokens: list[int]) -> np.ndarray:
        memory = np.zeros(mix.shape[1])
        for token in tokens:
            memory = memory * 0.5 + mix[token]
        return log_softmax(table[tokens[-1]] + memory @ mix.T + row)

    return logs


def problem(
    seed: int, batch: int, vocabulary: int, rounded: bool = False, ends: Any = 0.0
) -> tuple[Any, Any, list[Logs]]:
    """A step function, its states, and for each row the log-probabilities by NumPy; `ends` favours the end."""
    rng = np.random.default_rng(seed)
    table, mix = rng.standard_normal((vocabulary, vocabulary)) * 2, rng.standard_normal((vocabulary, 3))
    rows = rng.standard_normal((batch, vocabulary))
    rows[:, END] += ends
    if rounded:  # few different values, so that there are ties
        table, mix, rows = np.round(table / 2), mix * 0, rows * 0
    states = {"memory": np.zeros((batch, 3)), "rows": (rows,)}
    return make_step(table, mix), states, [reference_logs(table, mix, row) for row in rows]


def beam_reference(
    logs: Logs, width: int, paths: int, start: int, max_length: int, penalty: float
) -> list[tuple[list[int], float]]:
    """Beam search over lists, as docs and docstring define it, without an early stop."""
    live: list[tuple[list[int], float]] = [([], 0.0)]
    found: list[tuple[list[int], float]] = []
    for length in range(1, max_length + 1):
        candidates = [
            ([*tokens, token], total + log)
            for tokens, total in live
            for token, log in enumerate(logs([start, *tokens]))
            if log > -np.inf
        ]
        candidates.sort(key=lambda item: -round(item[1], 9))  # stable: the first of equals stays first
        divisor = ((5 + length) / 6) ** penalty
        for tokens, total in candidates[:width]:
            if tokens[-1] == END or length == max_length:
                found.append((tokens, total / divisor))
        found = sorted(found, key=lambda item: -round(item[1], 9))[:paths]
        live = [item for item in candidates if item[0][-1] != END][:width]
    return found


def run_beam(step: Any, states: Any, **options: Any) -> list[np.ndarray]:
    return ab.function(lambda values: decoding.beam_search(step, values, end_token=END, **options))(states)


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize(
    ("width", "paths", "vocabulary", "penalty", "max_length"),
    [(1, 1, 5, 0.0, 6), (3, 3, 5, 0.0, 6), (4, 2, 6, 0.8, 7), (3, 1, 4, 2.0, 5), (5, 5, 2, 0.6, 4), (2, 2, 3, -1.0, 5)],
)
def test_beam_search_is_that_of_plain_python(
    width: int, paths: int, vocabulary: int, penalty: float, max_length: int, early_stop: bool
) -> None:
    step, states, references = problem(width * 7 + vocabulary, 6, vocabulary)
    sequences, scores, lengths = run_beam(
        step, states, start_token=1, max_length=max_length, beam_width=width, top_paths=paths, length_penalty=penalty,
        early_stop=early_stop,
    )  # fmt: skip
    assert sequences.shape == (6, paths, max_length)
    for row, logs in enumerate(references):
        check_row(sequences[row], scores[row], lengths[row], beam_reference(logs, width, paths, 1, max_length, penalty))


def check_row(sequences: Any, scores: Any, lengths: Any, expected: list[tuple[list[int], float]]) -> None:
    for place in range(len(scores)):
        tokens, score = expected[place] if place < len(expected) else ([], -np.inf)
        assert lengths[place] == len(tokens)
        assert sequences[place].tolist() == tokens + [END] * (sequences.shape[1] - len(tokens))
        np.testing.assert_allclose(scores[place], score, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("width", [2, 3])
def test_of_equals_the_earlier_beam_and_the_smaller_token_come_first(width: int) -> None:
    for seed in range(8):
        step, states, references = problem(seed, 2, 4, rounded=True)
        results = run_beam(step, states, start_token=1, max_length=3, beam_width=width, length_penalty=0.0)
        expected = beam_reference(references[0], width, width, 1, 3, 0.0)
        check_row(results[0][0], results[1][0], results[2][0], expected)
    sequences, _, lengths = run_beam(
        lambda tokens, states: (states, states), np.zeros((1, 3)), start_token=1, max_length=2, beam_width=3
    )
    assert sequences.tolist() == [[[0, 0], [1, 0], [1, 1]]]
    assert lengths.tolist() == [[1, 2, 2]]


def test_a_vocabulary_smaller_than_the_beam_gives_fewer_sequences() -> None:
    sequences, scores, lengths = run_beam(
        lambda tokens, states: (states, states), np.zeros((2, 1)), start_token=0, max_length=3, beam_width=3
    )  # there is nothing but to end
    np.testing.assert_array_equal(scores, [[0, -np.inf, -np.inf]] * 2)
    np.testing.assert_array_equal(lengths, [[1, 0, 0]] * 2)
    assert not sequences.any()


def test_forbidden_tokens_are_never_taken() -> None:
    logits = np.array([[-np.inf, 1.0, -np.inf, 2.0]])
    sequences, scores, lengths = run_beam(
        lambda tokens, states: (states, states), logits, start_token=1, max_length=2, beam_width=6
    )
    assert sequences[0, :4].tolist() == [[3, 3], [3, 1], [1, 3], [1, 1]]
    np.testing.assert_array_equal(np.isinf(scores[0]), [False] * 4 + [True] * 2)
    np.testing.assert_array_equal(lengths[0], [2, 2, 2, 2, 0, 0])


@pytest.mark.parametrize("early_stop", [True, False])
def test_rows_of_which_all_beams_end_early(early_stop: bool) -> None:
    """Nothing is left that could go on: each row has fewer sequences than the beam is wide, and is done."""
    table = np.full((4, 4), -np.inf)
    table[1, [END, 2]], table[2, [END, 3]], table[3, END] = 0.0, 0.0, 0.0
    starts = np.array([1, 3, 2], "int32")
    sequences, scores, lengths = ab.function(
        lambda x: decoding.beam_search(
            lambda tokens, states: (ops.take(table, tokens, axis=0), states), (),
            start_token=x, end_token=END, max_length=9, beam_width=4, early_stop=early_stop,
        )
    )(starts)  # fmt: skip
    assert lengths.tolist() == [[1, 2, 3, 0], [1, 0, 0, 0], [1, 2, 0, 0]]
    assert sequences[0, :3, :3].tolist() == [[0, 0, 0], [2, 0, 0], [2, 3, 0]]
    np.testing.assert_allclose(np.exp(scores[:, :3]), [[1 / 2, 1 / 4, 1 / 4], [1, 0, 0], [1 / 2, 1 / 2, 0]])


@pytest.mark.parametrize(("width", "vocabulary"), [(1, 4), (4, 4), (6, 4), (1, 1)])
def test_one_row_and_beams_of_one_and_of_the_whole_vocabulary(width: int, vocabulary: int) -> None:
    step, states, references = problem(3, 1, vocabulary)
    start = min(1, vocabulary - 1)
    found = run_beam(step, states, start_token=start, max_length=4, beam_width=width)
    sequences, scores, lengths = (x[0] for x in found)
    check_row(sequences, scores, lengths, beam_reference(references[0], width, width, start, 4, 0.0))


def equal_choices(seed: int, batch: int, vocabulary: int) -> tuple[Any, Any, list[Logs]]:
    """As `problem`: each token may be followed by some, which are equally probable; the end is rare."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((vocabulary, vocabulary)) < 0.6
    allowed[:, END] = rng.random(vocabulary) < 0.4
    allowed[~allowed.any(axis=1), -1] = True
    table = np.where(allowed, 0.0, -np.inf)

    def step(tokens: Any, states: Any) -> Any:
        return ops.take(table, tokens, axis=0), states

    return step, np.zeros((batch, 1)), [lambda tokens: log_softmax(table[tokens[-1]])] * batch


@settings(max_examples=examples(6, 25), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(0, 5),
    vocabulary=st.integers(2, 7),
    width=st.integers(1, 4),
    max_length=st.integers(1, 7),
    penalty=st.sampled_from([0.0, 0.8, -0.5]),
    ties=st.booleans(),
    early_stop=st.booleans(),
    data=st.data(),
)
def test_generated_searches_are_those_of_plain_python(
    seed: int,
    batch: int,
    vocabulary: int,
    width: int,
    max_length: int,
    penalty: float,
    ties: bool,
    early_stop: bool,
    data: Any,
) -> None:
    paths = data.draw(st.integers(1, width))
    if ties:
        step, states, references = equal_choices(seed, batch, vocabulary)
    else:  # rows end early and late
        step, states, references = problem(seed, batch, vocabulary, ends=np.linspace(-6, 6, batch))
    sequences, scores, lengths = run_beam(
        step, states, start_token=1, max_length=max_length, beam_width=width, top_paths=paths, length_penalty=penalty,
        early_stop=early_stop,
    )  # fmt: skip
    assert sequences.shape == (batch, paths, max_length)
    assert scores.shape == lengths.shape == (batch, paths)
    for row, logs in enumerate(references):
        expected = beam_reference(logs, width, paths, 1, max_length, penalty)
        check_row(sequences[row], scores[row], lengths[row], expected)


def stepped_rows(states: Any, vocabulary: int, **options: Any) -> tuple[int, list[np.ndarray]]:
    """Return how many rows the steps of a search have in all, and what it finds."""
    counter = ab.Variable(0, trainable=False)
    bias = np.random.default_rng(0).standard_normal((vocabulary, vocabulary))

    def step(tokens: Any, states: Any) -> Any:
        counter.assign_add(ops.shape(tokens)[0])
        memory = states["memory"] * 0.5 + ops.take(bias, tokens, axis=0)
        return memory + states["row"], {"memory": memory, "row": states["row"]}

    found = run_beam(step, states, start_token=1, max_length=30, **options)
    return int(counter.numpy()), found


def test_rows_that_are_done_are_not_computed() -> None:
    rows = np.random.default_rng(1).standard_normal((6, 5))
    rows[:, END] = [0, 1, 2, 2.5, 3, 9]
    states = {"memory": np.zeros((6, 5)), "row": rows}
    count, found = stepped_rows(states, 5, beam_width=3)
    alone = [stepped_rows({name: x[k : k + 1] for name, x in states.items()}, 5, beam_width=3) for k in range(6)]
    assert count == sum(one for one, _ in alone)
    assert len({one for one, _ in alone}) > 3
    for k, (_, expected) in enumerate(alone):
        for all_rows, one in zip(found, expected, strict=True):
            np.testing.assert_allclose(all_rows[k], one[0], rtol=1e-12)


def test_scores_have_gradients() -> None:
    def scores(table: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            states = ops.tanh(states @ table + ops.take(table, tokens, axis=0))
            return states * 3, states

        start = np.ones((2, 4)) * [[1], [-1]]
        return decoding.beam_search(step, start, start_token=1, end_token=END, max_length=4, beam_width=2)[1]

    assert ab.testing.check_gradients(scores, [np.random.default_rng(1).standard_normal((4, 4))], order=1) > 0


def test_steps_over_all_rows_of_the_batch_are_told() -> None:
    rows = np.zeros((6, 5))
    message = r"step returned logits of 6 rows, however many tokens it is given.*Put it into the states"
    with pytest.raises(ValueError, match=message):
        run_beam(lambda t, s: (s + rows, s), np.zeros((3, 5)), start_token=1, max_length=3, beam_width=2)
    with pytest.raises(ValueError, match=r"step returned states of 6 rows"):
        run_beam(lambda t, s: (s, s + rows), np.zeros((3, 5)), start_token=1, max_length=3, beam_width=2)
    with pytest.raises(ValueError, match="greedy_search: " + message):
        decoding.greedy_search(lambda t, s: (s + rows, s), rows, start_token=1, end_token=END, max_length=3)


def count_steps(early_stop: bool, logits: np.ndarray, **options: Any) -> int:
    """The steps that a search takes, which are counted in a Variable."""
    counter = ab.Variable(0, trainable=False)

    def step(tokens: Any, states: Any) -> Any:
        counter.assign_add(1)
        return states, states

    run_beam(step, logits, start_token=1, max_length=50, beam_width=2, early_stop=early_stop, **options)
    return int(counter.numpy())


def test_the_loop_ends_when_no_live_beam_can_win() -> None:
    likely_end = np.array([[10.0, 0.0, -1.0], [9.0, 1.0, 0.0]])
    assert count_steps(False, likely_end) == 50
    assert count_steps(True, likely_end, top_paths=1) == 1
    assert 1 < count_steps(True, likely_end) < 5
    assert count_steps(True, np.array([[10.0, 0.0, -1.0], [-9.0, 1.0, 0.0]]), top_paths=1) == 50  # row 2 never ends


def greedy_reference(logs: Logs, start: int, max_length: int) -> tuple[list[int], float]:
    tokens, total = [start], 0.0
    while len(tokens) <= max_length and (len(tokens) == 1 or tokens[-1] != END):
        log = logs(tokens)
        tokens.append(int(np.argmax(log)))
        total += log[tokens[-1]]
    return tokens[1:], total


@pytest.mark.parametrize("max_length", [1, 8])
def test_greedy_search_is_that_of_plain_python_and_a_beam_of_one(max_length: int) -> None:
    step, states, references = problem(39, 12, 8)
    options = {"start_token": 1, "end_token": END, "max_length": max_length}
    sequences, scores, lengths = ab.function(lambda values: decoding.greedy_search(step, values, **options))(states)
    for row, logs in enumerate(references):
        expected = [greedy_reference(logs, 1, max_length)]
        check_row(sequences[row : row + 1], scores[row : row + 1], lengths[row : row + 1], expected)
    if max_length > 1:
        assert len(set(lengths.tolist())) > 2
    beam = run_beam(step, states, start_token=1, max_length=max_length, beam_width=1)
    for one, all_paths in zip((sequences, scores, lengths), beam, strict=True):
        np.testing.assert_allclose(all_paths[:, 0], one, rtol=1e-12)


def test_a_batch_of_any_size_and_of_none() -> None:
    step = make_step(np.eye(3), np.ones((3, 3)))
    x = ab.placeholder((None, 3), "float64")
    states = {"memory": x, "rows": (x,)}
    options: Any = {"start_token": 1, "end_token": END, "max_length": 4}
    ways = (decoding.greedy_search, decoding.sample, decoding.beam_search)
    fetches = [value for way in ways for value in way(step, states, **options)]
    for batch in (0, 1, 2):
        found = ab.Session().run(fetches, {x: np.zeros((batch, 3))})
        one = [(batch, 4), (batch,), (batch,)]
        assert [value.shape for value in found] == [*one, *one, (batch, 4, 4), (batch, 4), (batch, 4)]


def draws(**options: Any) -> np.ndarray:
    """The shares of the tokens that are drawn first, of logits for the probabilities 0.1, 0.4, 0.3, 0.2."""
    logits = np.tile(np.log([0.1, 0.4, 0.3, 0.2]), (20_000, 1))
    sequences, scores, _ = ab.function(
        lambda x: decoding.sample(lambda t, s: (s, s), x, start_token=0, end_token=3, max_length=1, seed=1, **options)
    )(logits)
    np.testing.assert_allclose(scores, logits[0][sequences[:, 0]], rtol=1e-6)
    return np.bincount(sequences[:, 0], minlength=4) / len(sequences)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0.5}, np.array([1, 16, 9, 4]) / 30),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.75}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 0.35}, [0, 1, 0, 0]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 3, "top_p": 0.7}, [0, 4 / 7, 3 / 7, 0]),
    ],
)
def test_tokens_are_drawn_from_what_is_left(options: Any, expected: Any) -> None:
    np.testing.assert_allclose(draws(**options), expected, atol=0.015)


def test_samples_repeat_with_their_seed_and_stop_at_their_end() -> None:
    step, states, _ = problem(3, 50, 4)

    def drawn(seed: int) -> Any:
        options: Any = {"start_token": 1, "end_token": END, "max_length": 9, "seed": seed}
        return ab.function(lambda values: decoding.sample(step, values, **options))(states)

    sequences, _, lengths = drawn(1)
    np.testing.assert_array_equal(sequences, drawn(1)[0])
    assert (sequences != drawn(2)[0]).any()
    for row, length in zip(sequences, lengths, strict=True):
        assert END not in row[: length - 1]
        assert not row[length:].any()


def sample_reference(
    logs: Logs, row: int, batch: int, seed: int, start: int, max_length: int, top_k: int | None
) -> tuple[list[int], float]:
    """Row `row` of a batch, drawn over lists: at step n by its number among those of the key (seed, n)."""
    tokens, total = [start], 0.0
    while len(tokens) <= max_length and (len(tokens) == 1 or tokens[-1] != END):
        log = logs(tokens)
        unit = draw_uniform(np.array([seed, len(tokens) - 1]), (batch,), "float64")[row]
        best = np.argsort(-log, kind="stable")[:top_k] if top_k else np.arange(len(log))
        edges = np.cumsum(np.exp(log[best]))
        tokens.append(int(best[np.sum(edges <= unit * edges[-1])]))
        total += log[tokens[-1]]
    return tokens[1:], total


@settings(max_examples=examples(5, 20), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(0, 5),
    vocabulary=st.integers(1, 7),
    max_length=st.integers(1, 7),
    top_k=st.integers(0, 7),
)
def test_generated_draws_and_greedy_searches_are_those_of_plain_python(
    seed: int, batch: int, vocabulary: int, max_length: int, top_k: int
) -> None:
    step, states, references = problem(seed, batch, vocabulary, ends=np.linspace(-6, 6, batch))  # rows end early, late
    options: Any = {"start_token": min(1, vocabulary - 1), "end_token": END, "max_length": max_length}
    drawn = ab.function(lambda x: decoding.sample(step, x, seed=seed, top_k=top_k or None, **options))(states)
    taken = ab.function(lambda x: decoding.greedy_search(step, x, **options))(states)
    assert [x.shape for x in drawn] == [x.shape for x in taken] == [(batch, max_length), (batch,), (batch,)]
    for row, logs in enumerate(references):
        expected = [sample_reference(logs, row, batch, seed, options["start_token"], max_length, top_k or None)]
        likeliest = [greedy_reference(logs, options["start_token"], max_length)]
        for results, wanted in ((drawn, expected), (taken, likeliest)):
            sequences, scores, lengths = (x[row : row + 1] for x in results)
            check_row(sequences, scores, lengths, wanted)


ONE_A_ROW = [decoding.greedy_search, functools.partial(decoding.sample, seed=3)]


@pytest.mark.parametrize("decode", ONE_A_ROW)
def test_rows_that_have_ended_cost_nothing(decode: Any) -> None:
    counter, shapes = ab.Variable(0, trainable=False), list[Any]()
    step, states, _ = problem(39, 12, 8)

    def counted(tokens: Any, states: Any) -> Any:
        counter.assign_add(ops.shape(tokens)[0])
        logits, states = step(tokens, states)
        shapes.append((logits.shape, states["memory"].shape, states["rows"][0].shape))
        return logits, states

    options: Any = {"start_token": 1, "end_token": END, "max_length": 12}
    found = ab.function(lambda x: decode(counted, x, **options))(states)
    lengths = found[2]
    assert len(set(lengths.tolist())) > 2
    assert counter.numpy() == lengths.sum()
    assert shapes[-1] == ((None, 8), (None, 3), (None, 8))  # of the loop's body: its products have as many rows


def test_what_a_row_draws_does_not_depend_on_when_others_end() -> None:
    def drawn(ends: Any) -> list[np.ndarray]:
        step, states, _ = problem(5, 4, 6, ends=np.array(ends))
        options: Any = {"start_token": 1, "end_token": END, "max_length": 12, "seed": 2}
        return ab.function(lambda x: decoding.sample(step, x, **options))(states)

    late, early = drawn([-4, -4, -4, -4]), drawn([9, -4, 9, -4])
    assert early[2][[0, 2]].max() < min(late[2])
    for one, other in zip(late, early, strict=True):
        np.testing.assert_array_equal(one[[1, 3]], other[[1, 3]])


@pytest.mark.parametrize("decode", ONE_A_ROW)
def test_rows_that_end_at_once_or_never(decode: Any) -> None:
    sure = np.full((3, 4), -30.0)
    sure[:, END] = [30, 0, 30]
    sure[:, 2] = [0, 30, 0]
    options: Any = {"start_token": 1, "end_token": END}
    for batch in (3, 1):
        sequences, _, lengths = ab.function(lambda x: decode(lambda t, s: (s, s), x, max_length=4, **options))(
            sure[:batch]
        )
        assert lengths.tolist() == [1, 4, 1][:batch]
        assert sequences.tolist() == [[0, 0, 0, 0], [2, 2, 2, 2], [0, 0, 0, 0]][:batch]


def test_of_equals_greedy_search_takes_the_first() -> None:
    run = ab.function(
        lambda x: decoding.greedy_search(lambda t, s: (s, s), x, start_token=0, end_token=0, max_length=2)
    )
    assert run(np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]))[0].tolist() == [[1, 1], [0, 0]]


def test_scores_of_rows_that_end_early_have_gradients() -> None:
    def scores(table: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            memory = ops.tanh(states["memory"] @ table + ops.take(table, tokens, axis=0))
            return memory * 3 + states["ends"], {"memory": memory, "ends": states["ends"]}

        ends = np.zeros((3, 4))
        ends[:, END] = [9, 0, -9]
        states = {"memory": np.ones((3, 4)) * [[1], [-1], [2]], "ends": ends}
        return decoding.greedy_search(step, states, start_token=1, end_token=END, max_length=4)[1]

    assert ab.testing.check_gradients(scores, [np.random.default_rng(1).standard_normal((4, 4))], order=1) > 0


def scheduled(probability: float, seed: int = 0, batch: int = 2) -> np.ndarray:
    """The inputs that the step is given."""
    tokens = np.tile(np.array([[1, 5, 2, 9]], "int32"), (batch, 1))
    run = ab.function(
        lambda x, p: decoding.scheduled_sampling(
            lambda t, s: (ops.one_hot(t + 1, 12) * 50.0, s + 1), ops.zeros((batch,)), x, p, seed=seed
        )
    )
    logits, count = run(tokens, np.float32(probability))
    np.testing.assert_array_equal(count, np.full(batch, 4))
    return np.argmax(logits, axis=-1) - 1


def test_scheduled_sampling_mixes_true_tokens_with_its_own() -> None:
    assert scheduled(0.0).tolist() == [[1, 5, 2, 9]] * 2
    assert scheduled(1.0).tolist() == [[1, 2, 3, 4]] * 2
    given = scheduled(0.25, batch=4000)
    assert (given[:, 0] == 1).all()
    assert np.isin(given[:, 1], (5, 2)).all()
    np.testing.assert_allclose(np.mean(given[:, 1:] == given[:, :-1] + 1, axis=0), 0.25, atol=0.03)


def test_gradients_of_scheduled_sampling_are_those_of_the_true_tokens_where_these_are_taken() -> None:
    tokens = np.array([[1, 0, 2], [2, 2, 1]], "int32")

    def logits(table: Any) -> Any:
        def step(t: Any, s: Any) -> Any:
            s = ops.tanh(s + ops.take(table, t, axis=0))
            return s, s

        return decoding.scheduled_sampling(step, ops.zeros((2, 3), "float64"), tokens, 0.0, seed=0)[0]

    assert ab.testing.check_gradients(logits, [np.random.default_rng(0).standard_normal((3, 3))], order=1) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, r"beam_width must be an int of at least 1, got 0"),
        ({"max_length": 0}, r"max_length must be an int of at least 1, got 0"),
        ({"max_length": 2.5}, r"max_length must be an int of at least 1, got 2.5"),
        ({"beam_width": 2, "top_paths": 3}, r"top_paths=3 sequences can't be found by beam_width=2"),
        ({"end_token": 3}, r"end_token=3 is outside the vocabulary of 3"),
        ({"start_token": [[1]]}, r"start_token must be a number or of shape \(batch,\), got shape \(1, 1\)"),
    ],
)
def test_arguments_out_of_range(options: Any, message: str) -> None:
    arguments: Any = {"start_token": 1, "end_token": 0, "max_length": 3, **options}
    with pytest.raises(ValueError, match=message):
        decoding.beam_search(lambda t, s: (s, s), np.zeros((2, 3)), **arguments)


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [
        (lambda t, s: s, TypeError, r"step must return a pair \(logits, states\), got Symbol"),
        (lambda t, s: (s, (s, s)), ValueError, r"step was given 1 states, but returned 2"),
        (lambda t, s: (s[:, 0], s), ValueError, r"logits of shape \(rows, vocabulary\)"),
    ],
)
def test_steps_that_return_something_else(step: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        decoding.greedy_search(step, np.zeros((2, 3)), start_token=1, end_token=0, max_length=3)


def test_other_wrong_arguments() -> None:
    arguments: Any = {"start_token": 1, "end_token": 0, "max_length": 3}
    step: Any = lambda t, s: (s, s)  # noqa: E731
    with pytest.raises(ValueError, match=r"temperature must be positive, got 0.*use greedy_search"):
        decoding.sample(step, np.zeros((2, 3)), temperature=0, **arguments)
    with pytest.raises(ValueError, match=r"top_p must be within \(0, 1\], got 0"):
        decoding.sample(step, np.zeros((2, 3)), top_p=0, **arguments)
    with pytest.raises(ValueError, match=r"top_k must be an int of at least 1, got 0"):
        decoding.sample(step, np.zeros((2, 3)), top_k=0, **arguments)
    for decode in ONE_A_ROW:
        with pytest.raises(ValueError, match=r"max_length must be an int of at least 1, got 0"):
            decode(step, np.zeros((2, 3)), **{**arguments, "max_length": 0})
    with pytest.raises(ValueError, match="without states the size of the batch is not known"):
        decoding.greedy_search(step, (), **arguments)
    with pytest.raises(ValueError, match=r"tokens must be of shape \(batch, steps\), got shape \(3,\)"):
        decoding.scheduled_sampling(step, np.zeros((2, 3)), [1, 2, 3], 0.5)
    for wrong in (2.0, -1, np.float32(1.5), float("nan")):
        with pytest.raises(ValueError, match=r"probability must be within \[0, 1\], got"):
            decoding.scheduled_sampling(step, np.zeros((1, 3)), [[1, 2, 0]], wrong)
    with pytest.raises(ValueError, match=r"probability must be a number, a Variable or a scalar tensor, got 'half'"):
        decoding.scheduled_sampling(step, np.zeros((1, 3)), [[1, 2, 0]], "half")
    with pytest.raises(ValueError, match=r"probability must be one number for all rows, got shape \(2,\)"):
        decoding.scheduled_sampling(step, np.zeros((2, 3)), [[1, 2], [2, 1]], np.array([0.5, 0.5]))
