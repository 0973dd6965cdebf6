"""Sums of numbers that are written as text: an encoder, a decoder that attends to it, and beam search in the graph.

The model reads "57+8" character by character and writes "65". It is trained on some of the sums and tested on others.

    python examples/seq2seq.py --figure seq2seq.svg
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import decoding, layers, ops, optim

SYMBOLS = "$^0123456789+"  # the end of a text (and what fills it up), the start, and what texts are made of
END, START = 0, 1
GOAL = 0.95  # of the sums exactly right


def encode(texts: Sequence[str], length: int) -> np.ndarray:
    """Numbers of characters, [texts, length], filled up with END.

    >>> encode(["12+3", "4"], 5)
    array([[ 3,  4, 12,  5,  0],
           [ 6,  0,  0,  0,  0]], dtype=int32)
    """
    return np.array([[SYMBOLS.index(c) for c in text.ljust(length, SYMBOLS[END])] for text in texts], "int32")


def decode(numbers: Iterable[int]) -> str:
    """The text of character numbers, up to its end."""
    return "".join(SYMBOLS[number] for number in numbers).partition(SYMBOLS[END])[0]


def make_sums(digits: int, count: int, seed: int) -> tuple[list[str], list[str]]:
    """`count` different questions, and their answers. The last digit comes first: that is how one adds."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(100**digits)[:count]
    pairs = [divmod(int(number), 10**digits) for number in chosen]
    return [f"{a}+{b}"[::-1] for a, b in pairs], [str(a + b)[::-1] for a, b in pairs]


def build_model(units: int) -> ab.Model:
    """Questions and the answers' characters so far to logits of the next ones: [batch, time] each."""
    question = ab.Input((None,), dtype="int32", name="question")
    answer = ab.Input((None,), dtype="int32", name="answer")
    embedded = layers.Embedding(len(SYMBOLS), 16, mask_zero=True, name="read")(question)
    encoder = layers.LSTM(units, return_sequences=True, return_state=True, name="encoder")
    memory, *last = encoder(embedded)
    given = layers.Embedding(len(SYMBOLS), 16, name="reread")(answer)
    cell = layers.AttentionCell(layers.LSTMCell(units), units)
    attended = layers.AttentionRNN(cell, return_sequences=True, name="decoder")(given, memory, initial_state=last)
    return ab.Model([question, answer], layers.Dense(len(SYMBOLS), name="write")(attended))


def make_solver(model: ab.Model, max_length: int, beam_width: int) -> Callable[[np.ndarray], Any]:
    """A compiled function of questions that writes answers: sequences, scores and lengths, best first."""
    parts: Any = map(model.get_layer, ("read", "encoder", "reread", "decoder", "write"))
    read, encoder, reread, decoder, write = parts

    @ab.function
    def solve(questions: Any) -> Any:
        memory, *last = encoder(read(questions))
        first = [*last, decoder.cell.get_initial_state(ops.shape(questions)[0])[-1]]

        def step(tokens: Any, states: Any) -> Any:
            own, attended = states
            output, own = decoder.cell(reread(tokens), own, memory=attended)
            return write(output), (own, attended)

        return decoding.beam_search(
            step,
            (first, decoder.cell.prepare(memory)),
            start_token=START,
            end_token=END,
            max_length=max_length,
            beam_width=beam_width,
            top_paths=1,
        )

    return solve


def share_right(solve: Callable[[np.ndarray], Any], questions: np.ndarray, answers: Sequence[str]) -> float:
    """The share of questions, [texts, length], to which the best answer is exactly right."""
    found = [decode(row[0]) for row in solve(questions)[0]]
    return float(np.mean([one == other for one, other in zip(found, answers, strict=True)]))


def draw_learning(path: str, shares: Sequence[float], goal: float) -> None:
    """The shares of sums that are right after each epoch, and the goal."""
    from drawing import line_chart

    epochs = list(range(1, len(shares) + 1))
    lines = {"sums not learnt from": (epochs, [100 * share for share in shares])}
    lines["the goal"] = ([epochs[0], epochs[-1]], [100 * goal] * 2)
    Path(path).write_text(line_chart("Learning to add", "epochs", "exactly right, %", lines), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the share of sums, not seen in training, that are exactly right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--digits", type=int, default=2, help="the most digits of a number")
    parser.add_argument("--examples", type=int, default=8000, help="sums to learn from")
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--beam-width", type=int, default=3)
    parser.add_argument("--least", type=float, default=GOAL, help="fail if the accuracy is lower")
    parser.add_argument("--figure", help="where to draw the accuracy after each epoch, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(1)

    tests = min(1000, options.examples // 4)
    questions, answers = make_sums(options.digits, options.examples + tests, seed=0)
    length = options.digits + 2  # the sum may be a digit longer, and there is its end
    x, y = encode(questions, 2 * options.digits + 1), encode(answers, length)
    shifted = np.concatenate([np.full((len(y), 1), START, "int32"), y[:, :-1]], axis=1)

    model = build_model(options.units)
    steps = options.epochs * -(-options.examples // 64)
    model.compile(
        optimizer=optim.Adam(optim.schedules.CosineDecay(8e-3, steps, alpha=0.02), global_clipnorm=1.0),
        loss=ab.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    solve = make_solver(model, length, options.beam_width)
    shares: list[float] = []
    after_each = ab.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: shares.append(share_right(solve, x[:tests], answers[:tests]))
    )
    model.fit(
        [x[tests:], shifted[tests:]],
        y[tests:],
        batch_size=64,
        epochs=options.epochs,
        verbose=2,
        callbacks=[after_each] if options.figure else [],
    )

    sequences, scores, _ = solve(x[:5])
    for question, row, score in zip(questions, sequences, scores[:, 0], strict=False):
        print(f"{question[::-1]} = {decode(row[0])[::-1]} (probability {np.exp(score):.3f})")
    accuracy = share_right(solve, x[:tests], answers[:tests])
    print(f"\nExactly right: {accuracy:.1%} of {tests} sums that were not learnt from.")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_learning(options.figure, shares, options.least)
    if accuracy < options.least:
        raise SystemExit(f"That is less than {options.least:.1%}.")
    return accuracy


if __name__ == "__main__":
    main()
