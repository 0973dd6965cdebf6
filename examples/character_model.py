"""A character model of Python's own source code, around a recurrent cell that is written right here.

It reads part of the standard library of the Python that runs it, measures how well n-grams predict files that they have
not seen, trains a layer-normalised LSTM to do better, saves it, and lets a fresh process load the file and write code.

    python examples/character_model.py                 # all of it: what `make demo` runs
    python examples/character_model.py --generate PATH # only write, with a model that was saved before
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, ops, optim

END, UNKNOWN = 0, 1  # the end of a file, and whatever is not in the alphabet
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
CHARACTERS = len(ALPHABET) + 2


# --- the cell -------------------------------------------------------------------------------------------------------


@ab.saving.register_keras_serializable(package="examples")
class LayerNormLSTMCell(layers.Layer):
    """An LSTM cell that brings each gate to mean 0 and variance 1, then scales and shifts it.

    Args:
        units: the length of the output and of both states.
        epsilon: added to the variance.

    Any layer with a `state_size` is a cell: `layers.RNN` puts it in a loop of the graph, and gradients, compilation
    and saving come with that. Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    def __init__(self, units: int, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.epsilon = epsilon
        self.state_size = [units, units]

    def build(self, input_shape: Any) -> None:
        gates = 4 * self.units
        self.kernel = self.add_weight(shape=(input_shape[-1], gates), name="kernel")
        self.recurrent_kernel = self.add_weight(
            shape=(self.units, gates), initializer="orthogonal", name="recurrent_kernel"
        )
        self.gain = self.add_weight(shape=(4, self.units), initializer="ones", name="gain")
        self.shift = self.add_weight(shape=(4, self.units), initializer="zeros", name="shift")

    def call(self, inputs: Any, states: Any) -> Any:
        output, memory = states
        gates = ops.reshape(inputs @ self.kernel + output @ self.recurrent_kernel, (-1, 4, self.units))
        centred = gates - ops.mean(gates, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        gates = centred * ops.rsqrt(variance + self.epsilon) * self.gain + self.shift
        write, keep, news, read = (gates[:, gate] for gate in range(4))
        memory = ops.sigmoid(keep + 1.0) * memory + ops.sigmoid(write) * ops.tanh(news)
        output = ops.sigmoid(read) * ops.tanh(memory)
        return output, [output, memory]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "epsilon": self.epsilon}


# --- the text -------------------------------------------------------------------------------------------------------


def encode(text: str) -> np.ndarray:
    """The numbers of the characters of `text`."""
    table = np.full(0x110000, UNKNOWN, "int32")
    table[[ord(character) for character in ALPHABET]] = np.arange(2, CHARACTERS)
    return table[np.frombuffer(text.encode("utf-32-le"), "uint32")]


def decode(numbers: Iterable[int]) -> str:
    """The text of character numbers, up to the end of the file."""
    symbols = ["", "\N{REPLACEMENT CHARACTER}", *ALPHABET]
    return "".join(symbols[number] for number in numbers)


def read_library(characters: int, validation_characters: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Text to learn from, text of other files to be tested on, and where they come from.

    The standard library's top-level modules of ordinary size, in an order that is the same in every run.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(library.glob("*.py")) if 2_000 <= path.stat().st_size <= 60_000]
    random.Random(0).shuffle(files)
    streams = []
    for size in (validation_characters, characters):
        parts = [np.array([END], "int32")]
        while files and sum(map(len, parts)) < size + 1:
            parts += [encode(files.pop().read_text("utf-8", "replace")), np.array([END], "int32")]
        streams.append(np.concatenate(parts)[: size + 1])
    validation, training = streams
    return training, validation, str(library)


def windows(text: np.ndarray, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (the characters that come next), for a model that carries its state from batch to batch.

    The text is cut into `batch` long rows. Batch k holds the k-th window of every row, so that each row of a batch
    goes on where the same row of the batch before ended.
    """
    steps = (len(text) - 1) // (batch * length)
    if steps == 0:
        raise ValueError(f"{len(text) - 1} characters are too few for one batch of {batch} windows of {length}.")
    used = steps * batch * length

    def arrange(row: np.ndarray) -> np.ndarray:
        return row.reshape(batch, steps, length).swapaxes(0, 1).reshape(steps * batch, length)

    return arrange(text[:used]), arrange(text[1 : used + 1])


# --- what to beat ---------------------------------------------------------------------------------------------------


class NGrams:
    """Predicts a character from the `order - 1` before it: counts, with interpolated Kneser-Ney smoothing.

    Args:
        text: the numbers of the characters to count, starting with an END.
        order: how many characters a gram has, at most 9.

    Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1999.
    """

    def __init__(self, text: np.ndarray, order: int) -> None:
        self.order = order
        grams, counts = np.unique(_grams(text, order), return_counts=True)
        self._levels = [_Level(grams, counts)]
        for size in range(order - 1, 0, -1):
            # Shorter grams are needed where longer ones are new: so what counts is after how many different
            # characters they occur, not how often.
            grams, counts = np.unique(grams % CHARACTERS**size, return_counts=True)
            self._levels.append(_Level(grams, counts))

    def probabilities(self, text: np.ndarray, discounts: Sequence[float]) -> np.ndarray:
        """The probability of each character after the first, [discounts, characters - 1]."""
        grams = _grams(text, self.order)
        found = np.full((len(discounts), len(grams)), 1 / CHARACTERS)
        for size, level in enumerate(reversed(self._levels), start=1):
            found = level.interpolate(grams % CHARACTERS**size, found, np.array(discounts)[:, None])
        return found


class _Level:
    """The counts of all grams of one size."""

    def __init__(self, grams: np.ndarray, counts: np.ndarray) -> None:
        self.grams, self.counts = grams, counts
        self.contexts, first = np.unique(grams // CHARACTERS, return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.kinds = np.diff(first, append=len(grams))  # how many different characters follow the context

    def interpolate(self, grams: np.ndarray, shorter: np.ndarray, discount: np.ndarray) -> np.ndarray:
        """Probabilities: a discount off every count, given to what grams one character `shorter` predict."""
        place, known = _find(self.contexts, grams // CHARACTERS)
        gram, occurs = _find(self.grams, grams)
        count = np.where(occurs, np.maximum(self.counts[gram] - discount, 0.0), 0.0)
        mixed = (count + discount * self.kinds[place] * shorter) / self.totals[place]
        return np.where(known, mixed, shorter)


def _grams(text: np.ndarray, size: int) -> np.ndarray:
    """Each character after the first with the `size - 1` before it, as one number; before the start come ENDs."""
    padded = np.concatenate([np.full(size, END), text[1:]]).astype("int64")
    found = np.zeros(len(text) - 1, "int64")
    for shift in range(1, size + 1):
        found = found * CHARACTERS + padded[shift : shift + len(found)]
    return found


def _find(table: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of `values` in the sorted `table`, and whether they are there."""
    place = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return place, table[place] == values


def measure_baseline(training: np.ndarray, validation: np.ndarray, orders: Sequence[int]) -> dict[int, float]:
    """The loss of n-grams for each order, in nats a character, with the discount that suits the test best."""
    losses = {}
    for order in orders:
        probabilities = NGrams(training, order).probabilities(validation, (0.7, 0.8, 0.9, 0.95))
        losses[order] = float(-np.log(probabilities).mean(axis=1).max())
    return losses


# --- the model ------------------------------------------------------------------------------------------------------


def build_model(units: int, batch: int) -> ab.Sequential:
    """Character numbers [batch, time] to the logits of the characters that come next."""
    return ab.Sequential(
        [
            ab.Input(batch_shape=(batch, None), dtype="int32"),
            layers.Embedding(CHARACTERS, 64, name="characters"),
            layers.RNN(LayerNormLSTMCell(units, name="cell"), return_sequences=True, stateful=True, name="recurrence"),
            layers.Dense(CHARACTERS, name="next_character"),
        ]
    )


class StartAfresh(callbacks.Callback):
    """Epochs and tests begin at the start of a text, so with an empty memory."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.get_layer("recurrence").reset_state()

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.get_layer("recurrence").reset_state()


def train(model: ab.Sequential, training: Any, validation: Any, options: argparse.Namespace) -> list[float]:
    """Fit the model; its validation losses, epoch by epoch."""
    steps = options.epochs * len(training[0]) // options.batch
    warmup = min(100, steps // 10)
    rate = optim.schedules.CosineDecay(
        0.0, steps - warmup, alpha=0.02, warmup_target=options.learning_rate, warmup_steps=warmup
    )
    model.compile(
        optimizer=optim.Adam(rate, beta_2=0.99, global_clipnorm=1.0),
        loss=ab.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(
        *training,
        batch_size=options.batch,
        epochs=options.epochs,
        shuffle=False,  # batches follow one another in the text
        validation_data=validation,
        validation_batch_size=options.batch,
        callbacks=[StartAfresh()],
    )
    return history.history["val_loss"]


# --- writing --------------------------------------------------------------------------------------------------------


def make_writer(model: Any, stop: int, temperature: float, seed: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """A compiled function of (prompt, limit) that writes on until it draws the character `stop`, or to the limit.

    The whole loop is in the graph: one call, however long the text gets.
    """
    characters, recurrence, next_character = model.layers
    dice = ab.random.SeedGenerator(seed)

    @ab.function
    def write(prompt: Any, limit: Any) -> Any:
        given = ops.shape(prompt)[0]
        typed = ab.TensorArray("int32", given).unstack(prompt)

        def goes_on(position: Any, character: Any, states: Any, text: Any) -> Any:
            unfinished = ops.logical_or(position <= given, ops.not_equal(character, stop))
            return ops.logical_and(position < limit, unfinished)

        def step(position: Any, character: Any, states: Any, text: Any) -> Any:
            output, states = recurrence.cell(characters(ops.reshape(character, (1,))), states)
            logits = next_character(output) / temperature
            character = ab.cond(
                position < given,
                lambda: typed.read(position),
                lambda: ab.random.categorical(logits, 1, seed=dice)[0, 0],
            )
            return position + 1, character, states, text.write(position, character)

        text = ab.TensorArray("int32", dynamic_size=True, element_shape=())
        start = (0, END, recurrence.get_initial_state(1), text)
        return ab.while_loop(goes_on, step, start)[-1].stack()

    return write


def generate(path: Path, length: int, temperature: float, seed: int) -> None:
    """Load a saved model and print what it writes: a page, and then single lines."""
    model = ab.load_model(path)
    page = make_writer(model, END, temperature, seed)
    print(f'--- up to {length} characters after "class ", in one call ---')
    print(decode(page(encode("class "), length)))
    line = make_writer(model, int(encode("\n")[0]), temperature, seed)
    print('--- lines after "    def ", each until its newline is drawn ---')
    for _ in range(5):
        print(decode(line(encode("    def "), 100)).rstrip("\n"))


# --- the program ----------------------------------------------------------------------------------------------------


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--characters", type=int, default=1_200_000, help="how much text to learn from")
    parser.add_argument("--validation-characters", type=int, default=300_000, help="how much text to test on")
    parser.add_argument("--units", type=int, default=192, help="size of the cell")
    parser.add_argument("--batch", type=int, default=32, help="rows of text read at the same time")
    parser.add_argument("--window", type=int, default=64, help="characters from one update to the next")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1.8e-2)
    parser.add_argument("--longest-gram", type=int, default=9, help="try n-grams up to this size, at most 9")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the model")
    parser.add_argument("--generate", type=Path, metavar="PATH", help="only write, with the model saved there")
    parser.add_argument("--length", type=int, default=600, help="the most characters to write")
    parser.add_argument("--temperature", type=float, default=0.7, help="below 1 is careful, above 1 is wild")
    parser.add_argument("--margin", type=float, default=0.0, help="fail unless the loss is so far below the n-grams'")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Run the program; the losses that it found, in nats a character."""
    options = parse_options(arguments)
    if options.generate:
        generate(options.generate, options.length, options.temperature, options.seed)
        return {}
    began = time.perf_counter()
    ab.utils.set_random_seed(options.seed)

    training, validation, library = read_library(options.characters, options.validation_characters)
    inputs, targets = windows(validation, options.batch, options.window)
    validation = validation[: inputs.size + 1]  # the n-grams are tested on just what the network is tested on
    print(f"Learning from {len(training) - 1:,} characters of the modules in {library},")
    print(f"testing on {len(validation) - 1:,} characters of other modules. Losses are nats a character.\n")

    baseline = measure_baseline(training, validation, range(1, options.longest_gram + 1))
    for order, loss in baseline.items():
        print(f"  {order}-grams {loss:.3f}")
    best = min(baseline, key=lambda order: baseline[order])
    print(f"To beat: {best}-grams with {baseline[best]:.3f} (Kneser-Ney, counted on the same text).\n")

    model = build_model(options.units, options.batch)
    model.summary()
    begin = time.perf_counter()
    losses = train(model, windows(training, options.batch, options.window), (inputs, targets), options)
    seconds = time.perf_counter() - begin
    verdict = "below" if losses[-1] < baseline[best] else "NOT below"
    print(f"\nThe network's {losses[-1]:.3f} is {verdict} the {best}-grams' {baseline[best]:.3f}. ({seconds:.0f} s)")

    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "character_model.keras"
    model.save(path)
    print(f"Saved {path}. A new process loads it and writes:\n", flush=True)
    settings = {"--length": options.length, "--temperature": options.temperature, "--seed": options.seed}
    command = [sys.executable, __file__, "--generate", str(path), *(str(x) for pair in settings.items() for x in pair)]
    subprocess.run(command, check=True)
    print(f"\nAll of it took {time.perf_counter() - began:.0f} s.")
    if losses[-1] > baseline[best] - options.margin:
        raise SystemExit(f"The goal, a loss {options.margin:g} or more below the {best}-grams', was missed.")
    return {"baseline": baseline[best], "first": losses[0], "last": losses[-1]}


if __name__ == "__main__":
    main()
