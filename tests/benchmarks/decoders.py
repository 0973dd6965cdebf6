"""Tokens a second of a `Decoder`, of `greedy_search` over batches, and of batches padded to their longest sequence.

A GRU of 256 units and 1,000 tokens generates 512 sequences of geometric lengths (mean 64). States count the tokens that
are left, so that all three ways generate the same sequences. Rounds take turns; printed are medians.

    python tests/benchmarks/decoders.py
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "2")

import numpy as np  # noqa: E402

import anabranch as ab  # noqa: E402
from anabranch.framework.serving.decoding.slots import Slots  # noqa: E402

VOCABULARY, UNITS, LONGEST, REQUESTS, ROUNDS = 1000, 256, 400, 512, 7
END = 0
LENGTHS = np.minimum(np.random.default_rng(0).geometric(1 / 64, REQUESTS), LONGEST).astype("int32")


def make_step() -> Callable[[Any, Any], Any]:
    """Give a step whose states are those of the GRU and the number of tokens that are left."""
    ab.utils.set_random_seed(0)
    embedding, cell, out = ab.layers.Embedding(VOCABULARY, UNITS), ab.layers.GRUCell(UNITS), ab.layers.Dense(VOCABULARY)
    of_end = np.eye(1, VOCABULARY, END, dtype="float32") * 1e5

    def step(tokens: Any, states: Any) -> Any:
        hidden, left = states
        output, (hidden,) = cell(embedding(tokens), [hidden])
        is_last = ab.ops.cast(ab.ops.expand_dims(left <= 1, 1), "float32")
        return out(output) + of_end * (2 * is_last - 1), (hidden, left - 1)

    return step


def continuous(decoder: ab.serving.Decoder) -> float:
    """Generate all sequences with a decoder."""
    made = [decoder.make_generation([1], {"left": length}) for length in LENGTHS]
    waiting, slots = deque(made), Slots(decoder.programs, decoder.plan)
    began = time.perf_counter()
    while waiting or slots.busy:
        while waiting and slots.free:
            slots.admit(waiting.popleft())
        slots.iterate()
    seconds = time.perf_counter() - began
    assert [len(each.generated) for each in made] == LENGTHS.tolist()
    return LENGTHS.sum() / seconds


def searched(search: Any, rows: int) -> float:
    """Generate all sequences with `greedy_search`, which drops rows that have ended."""
    began = time.perf_counter()
    found = [search(LENGTHS[start : start + rows])[2] for start in range(0, REQUESTS, rows)]
    seconds = time.perf_counter() - began
    assert np.concatenate([np.asarray(each) for each in found]).tolist() == LENGTHS.tolist()
    return LENGTHS.sum() / seconds


def padded(decoder: ab.serving.Decoder) -> float:
    """Take the steps of batches that end with their longest sequence."""
    tokens = np.ones(decoder.slots, "int32")
    began = time.perf_counter()
    for start in range(0, REQUESTS, decoder.slots):
        for _ in range(LENGTHS[start : start + decoder.slots].max()):
            decoder.programs.step(tokens)
    return LENGTHS.sum() / (time.perf_counter() - began)


def make_decoder(step: Callable[[Any, Any], Any], rows: int) -> ab.serving.Decoder:
    """Give a decoder with so many slots."""
    return ab.serving.Decoder(
        step,
        lambda rows, left: (ab.ops.zeros((rows, UNITS)), left),
        end_token=END,
        max_length=LONGEST + 2,
        slots=rows,
        inputs={"left": ab.InputSpec(shape=(None,), dtype="int32")},
    )


def rates(rows: int, rounds: int = ROUNDS) -> list[tuple[float, float, float]]:
    """Give the tokens a second of a decoder, of `greedy_search` and of padded batches, in rounds of all three."""
    step = make_step()
    decoder = make_decoder(step, rows)

    @ab.function
    def search(left: Any) -> Any:
        states = (ab.ops.zeros((rows, UNITS)), left)
        return ab.decoding.greedy_search(step, states, start_token=1, end_token=END, max_length=LONGEST)

    found = [(continuous(decoder), searched(search, rows), padded(decoder)) for _ in range(rounds + 1)]
    return found[1:]  # the first one compiles


def outside(rows: int, iterations: int = 2000) -> float:
    """Give the microseconds of an iteration with all slots busy, without its step."""
    decoder = make_decoder(make_step(), rows)
    slots = Slots(decoder.programs, decoder.plan)
    taken = 0.0
    step = decoder.programs.step

    def timed(tokens: Any) -> Any:
        nonlocal taken
        began = time.perf_counter()
        found = step(tokens)
        taken += time.perf_counter() - began
        return found

    decoder.programs.step = timed
    waiting = deque(decoder.make_generation([1], {"left": length}) for length in np.tile(LENGTHS, 64))
    times: list[float] = []
    for _ in range(iterations):
        while slots.free:
            slots.admit(waiting.popleft())
        taken, began = 0.0, time.perf_counter()
        slots.iterate()
        times.append(time.perf_counter() - began - taken)
    return float(np.median(times)) * 1e6


def measure(rows: int) -> None:
    """Print the rates with so many slots, or rows of a batch."""
    found = np.array(rates(rows))
    decoded, greedy, static = np.median(found, axis=0)
    of_greedy, of_static = np.median(found[:, :1] / found[:, 1:], axis=0)
    print(
        f"{rows:>2} slots: {decoded:,.0f} tokens/s; greedy_search {greedy:,.0f} ({of_greedy:.2f} times); "
        f"padded batches {static:,.0f} ({of_static:.2f} times); {outside(rows):.0f} us outside of an iteration's step"
    )


if __name__ == "__main__":
    for count in (8, 32):
        measure(count)
