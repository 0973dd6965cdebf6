"""A language model of Python's own source code, word by word, with a vocabulary of 12,000 words.

An LSTM whose words are embedded by a table in two shards. It is trained by a softmax over a sample of the words, and
tested by the exact one over all of them; both use the embedding's table. Its perplexity is compared with that of the
words' frequencies, and of pairs of words.

    python examples/language_model.py --figure language_model.svg
"""

from __future__ import annotations

import argparse
import random
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, optim

UNKNOWN = 0
GOAL = 0.25  # the perplexity, as a share of that of the words' frequencies


# --- words ----------------------------------------------------------------------------------------------------------


def split_words(text: str) -> list[str]:
    """Names, numbers, single other characters, and ends of lines.

    >>> split_words("x = f(10)\\n")
    ['x', '=', 'f', '(', '10', ')', '\\n']
    """
    return re.findall(r"\w+|[^\w ]", text)


def read_library(words: int, test_words: int) -> tuple[list[str], list[str]]:
    """Words to learn from, and words of other files to be tested on: the standard library, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    folders = (".", "asyncio", "concurrent", "email", "encodings", "http", "json", "lib2to3", "logging", "unittest")
    files = [path for folder in folders for path in sorted((library / folder).glob("*.py"))]
    random.Random(0).shuffle(files)
    found: list[list[str]] = []
    for size in (test_words, words):
        part: list[str] = []
        while files and len(part) < size:
            part += split_words(files.pop().read_text("utf-8", "replace"))
        found.append(part[:size])
    test, training = found
    return training, test


def number_words(training: Sequence[str], size: int) -> list[str]:
    """The vocabulary: what the samplers count on is that frequent words have small numbers.

    >>> number_words(["a", "b", "b"], 3)
    ['?', 'b', 'a']
    """
    return ["?", *[word for word, _ in Counter(training).most_common(size - 1)]]


def encode(words: Sequence[str], vocabulary: Sequence[str]) -> np.ndarray:
    """The numbers of words."""
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return np.array([numbers.get(word, UNKNOWN) for word in words], "int32")


def windows(numbers: np.ndarray, length: int) -> list[np.ndarray]:
    """Inputs and the words that come next, ``(windows, length)`` each.

    >>> windows(np.arange(8), 3)
    [array([[0, 1, 2],
           [3, 4, 5]]), array([[1, 2, 3],
           [4, 5, 6]])]
    """
    count = (len(numbers) - 1) // length
    return [part[: count * length].reshape(count, length) for part in (numbers[:-1], numbers[1:])]


# --- what to beat ---------------------------------------------------------------------------------------------------


def unigram_perplexity(training: np.ndarray, test: np.ndarray, size: int) -> float:
    """By the frequencies of words, each counted once more than it occurs."""
    counts = np.bincount(training, minlength=size) + 1.0
    return float(np.exp(-np.log(counts[test] / counts.sum()).mean()))


def bigram_perplexity(training: np.ndarray, test: np.ndarray, size: int, discount: float = 0.75) -> float:
    """By pairs of words, with absolute discounting, backing off to how many words a word comes behind."""
    pairs, counts = np.unique(training[:-1].astype("int64") * size + training[1:], return_counts=True)
    totals = np.bincount(pairs // size, counts, minlength=size)
    kinds = np.bincount(pairs // size, minlength=size)
    behind = np.bincount(pairs % size, minlength=size) + 0.1
    wanted = test[:-1].astype("int64") * size + test[1:]
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    count = np.where(pairs[place] == wanted, counts[place] - discount, 0.0)
    context, shorter = test[:-1], behind[test[1:]] / behind.sum()
    known = (count + discount * kinds[context] * shorter) / np.maximum(totals[context], 1)
    return float(np.exp(-np.log(np.where(totals[context] > 0, known, shorter)).mean()))


# --- the model ------------------------------------------------------------------------------------------------------


def build_model(size: int, units: int, sampled: int) -> ab.Model:
    """Words and the words behind them; the loss is the layer's own: sampled in training, exact otherwise."""
    words, following = ab.Input((None,), dtype="int32"), ab.Input((None,), dtype="int32")
    embedding = layers.ShardedEmbedding(size, units, num_shards=2, name="words")
    hidden = layers.LSTM(units, return_sequences=True)(embedding(words))
    hidden = layers.Dense(units, name="towards_words")(hidden)
    output = layers.SampledSoftmax(size, sampled, top_k=3, embedding=embedding, seed=1)
    return ab.Model([words, following], output(hidden, following))


def compare_losses(size: int, units: int, sampled: int, positions: int) -> tuple[float, float]:
    """Seconds that the last layer alone takes for a batch, forward and backward: sampled, and over all words."""
    layer = layers.SampledSoftmax(size, sampled, num_shards=2)
    hidden = np.random.default_rng(0).normal(size=(positions, units)).astype("float32")
    following = np.random.default_rng(0).integers(0, size, positions).astype("int32")
    found: list[float] = []
    for training in (True, False):
        with ab.Graph().as_default():
            x, y = ab.placeholder(hidden.shape, "float32"), ab.placeholder(following.shape, "int32")
            layer(x, y, training=training)
            (loss,) = layer.losses
            step = ab.Session().make_callable(optim.Adagrad(0.1).minimize(loss, layer.trainable_weights), [x, y])
            step(hidden, following)
            begin = time.perf_counter()
            step(hidden, following)
            found.append(time.perf_counter() - begin)
    return found[0], found[1]


def draw_learning(path: str, perplexities: dict[int, float], baselines: dict[str, float]) -> None:
    """The perplexities after so many words, and those of what to beat."""
    from drawing import line_chart

    millions = [words / 1e6 for words in perplexities]
    lines = {"LSTM": (millions, list(perplexities.values()))}
    lines |= {name: ([millions[0], millions[-1]], [value, value]) for name, value in baselines.items()}
    drawn = line_chart("A language model", "millions of words read", "perplexity on other files", lines, (), True)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the perplexity on words that were not learnt from."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--words", type=int, default=600_000, help="how many words to learn from")
    parser.add_argument("--vocabulary", type=int, default=12_000, help="how many different ones")
    parser.add_argument("--units", type=int, default=96)
    parser.add_argument("--sampled", type=int, default=512, help="words in the softmax of a training step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="windows in a batch, of 32 words each")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--most", type=float, default=GOAL, help="fail above this share of the frequencies' perplexity")
    parser.add_argument("--figure", help="where to draw the perplexity while it learns, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(1)

    read, kept = read_library(options.words, options.words // 15)
    vocabulary = number_words(read, options.vocabulary)
    size = len(vocabulary)
    training, test = encode(read, vocabulary), encode(kept, vocabulary)
    print(f"{len(training):,} words to learn from, {size:,} different ones; {len(test):,} of other files to test on.")
    unigrams, bigrams = unigram_perplexity(training, test, size), bigram_perplexity(training, test, size)
    print(f"Perplexity of the words' frequencies {unigrams:.1f}, of pairs of words {bigrams:.1f}.\n")

    model = build_model(size, options.units, options.sampled)
    model.compile(optim.Adagrad(options.learning_rate, global_clipnorm=5.0))
    training_windows, test_windows = windows(training, 32), windows(test, 32)
    often = max(1, len(training_windows[0]) // options.batch // 6)
    watching = ab.callbacks.Every(often, validation_data=(test_windows, None)) if options.figure else None
    history = model.fit(
        training_windows, batch_size=options.batch, epochs=options.epochs, verbose=2, callbacks=watching
    )
    few, every = compare_losses(size, options.units, min(options.sampled, size), 32 * options.batch)
    print(f"The last layer takes {1e3 * few:.0f} ms for a batch; over all words it would take {1e3 * every:.0f} ms.\n")

    perplexity = float(np.exp(model.evaluate(test_windows, batch_size=options.batch, verbose=0)))
    show_guesses(model, vocabulary, test_windows)
    print(f"\nPerplexity over all {size:,} words: {perplexity:.1f}, against {unigrams:.1f} and {bigrams:.1f}.")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        seen = {row["step"] * options.batch * 32: float(np.exp(row["val_loss"])) for row in history.by_step}
        baselines = {"words' frequencies": unigrams, "pairs of words": bigrams, "the goal": options.most * unigrams}
        draw_learning(options.figure, seen, baselines)
    if perplexity > options.most * unigrams:
        raise SystemExit(f"That is more than {options.most:.0%} of {unigrams:.1f}.")
    return perplexity


def show_guesses(model: Any, vocabulary: Sequence[str], test: list[np.ndarray]) -> None:
    """The three words that the model expects most, in a few places."""
    _, guesses = model.predict([part[:4] for part in test], verbose=0)
    for row in range(4):
        context = " ".join(repr(vocabulary[word])[1:-1] for word in test[0][row, 20:32])
        print(f"{context} ... {' or '.join(repr(vocabulary[word]) for word in guesses[row, 31])}")


if __name__ == "__main__":
    main()
