"""Multi30k: German sentences on photographs into English, by an encoder, a decoder that attends to it, and beam search.

The model is that of `translation.py`, with real sentences: those of 29,000 photographs, which people have described in
English, and translated into German. The files are fetched once into ``~/.keras/datasets``; ``--sample`` translates the
made-up language of `translation.py` instead, and needs no network.

    python examples/multi30k.py

Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", 2015; Luong, Pham,
Manning, "Effective Approaches to Attention-based Neural Machine Translation", 2015.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from beside import draw_losses, fit, make_parser, read_other
from translation import END, MARKS, START, Translator, bleu, build_model, encode, make_pairs

import anabranch as ab
from anabranch import optim

GOAL = 2.0  # BLEU of the test sentences after three epochs
WIDTHS = (8, 12, 16, 20, 28, 44)  # words, with the end, to which sentences are filled up: a batch has one of these
BATCH = 64
RATE = 4e-3
Words = list[str]


class Pairs(NamedTuple):
    """Sentences as word numbers, filled up with END, and their translations."""

    x: np.ndarray  # [n, the largest width]
    y: np.ndarray
    widths: np.ndarray  # [n]: to which of WIDTHS a pair can be cut


# --- data -----------------------------------------------------------------------------------------------------------


def load_sentences(sample: bool) -> list[tuple[list[Words], list[Words]]]:
    """Sentences and translations, as words: to train with, to choose by, to test with."""
    if sample:
        pairs = make_pairs(700, seed=0)
        parts = pairs[:600], pairs[600:650], pairs[650:]
        return [([source for source, _ in part], [target for _, target in part]) for part in parts]
    found = ab.datasets.multi30k.load_data("de", "en")
    return [([split_words(text) for text in x], [split_words(text) for text in y]) for x, y in found]


def split_words(text: str) -> Words:
    """Words in small letters, and single other characters.

    >>> split_words("Zwei Männer, im Freien.")
    ['zwei', 'männer', ',', 'im', 'freien', '.']
    """
    return re.findall(r"\w+|[^\w\s]", text.lower())


def frequent_words(sentences: Sequence[Words], least: int) -> Words:
    """The vocabulary: the marks, and the words that occur at least so many times, the most frequent first.

    >>> frequent_words([["b", "a"], ["b"]], 2)
    ['<end>', '<start>', '<unknown>', 'b']
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    return [
        *MARKS,
        *(word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least),
    ]


def as_numbers(part: tuple[list[Words], list[Words]], vocabularies: Sequence[Words]) -> Pairs:
    """The word numbers of those pairs of which both sentences fit into the largest width."""
    fitting = [(x, y) for x, y in zip(*part, strict=True) if max(len(x), len(y)) < WIDTHS[-1]]
    x, y = (
        encode(side, words, WIDTHS[-1]) for side, words in zip(zip(*fitting, strict=True), vocabularies, strict=True)
    )
    longest = np.array([max(map(len, pair)) + 1 for pair in fitting])
    return Pairs(x, y, np.array(WIDTHS)[np.searchsorted(WIDTHS, longest)])


class Batches(ab.utils.PyDataset):
    """Batches of pairs of one width, in a new order in each epoch."""

    def __init__(self, pairs: Pairs, seed: int) -> None:
        super().__init__()
        self.pairs, self.random = pairs, np.random.default_rng(seed)
        self.rows: list[np.ndarray] = []
        self.on_epoch_end()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        rows = self.rows[index]
        width = self.pairs.widths[rows[0]]
        x, y = self.pairs.x[rows, :width], self.pairs.y[rows, :width]
        shifted = np.concatenate([np.full_like(y[:, :1], START), y[:, :-1]], axis=1)
        counts = np.cumsum(y == END, axis=1) <= 1  # every word, and the first end
        return [x, shifted], y, counts.astype("float32")

    def on_epoch_end(self) -> None:
        order = self.random.permutation(len(self.pairs.x))
        by_width = [order[self.pairs.widths[order] == width] for width in WIDTHS]
        rows = [group[place : place + BATCH] for group in by_width for place in range(0, len(group), BATCH)]
        self.rows = [rows[place] for place in self.random.permutation(len(rows))]


# --- the program ----------------------------------------------------------------------------------------------------


def train(pairs: Pairs, sizes: Sequence[int], units: int, epochs: int) -> tuple[ab.Model, dict[str, Any]]:
    """Train a model; it, and its losses and seconds of processor time."""
    model = build_model(sizes[0], sizes[1], units, embedding=units, dropout=0.2)
    batches = Batches(pairs, seed=0)
    rate = optim.schedules.CosineDecay(RATE, epochs * len(batches), alpha=0.02)
    model.compile(
        optim.Adam(rate, epsilon=1e-9, global_clipnorm=1.0),  # gradients of the attention begin at 1e-9
        ab.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
    )
    return model, fit(model, batches, steps=len(batches), epochs=epochs)


def translate(translator: Translator, x: np.ndarray, vocabulary: Words) -> list[Words]:
    """Translations of sentences, as words."""
    found: list[Words] = []
    for place in range(0, len(x), 100):
        sequences, _, lengths = translator.translate(x[place : place + 100])
        rows = zip(sequences[:, 0], lengths[:, 0], strict=True)
        found += [[vocabulary[n] for n in row[:length] if n != END] for row, length in rows]
    return found


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; BLEU of the translations that beam search finds for the test sentences."""
    parser = make_parser(__doc__, "translate a made-up language with a small model", 3, "how often to read all of it")
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--least", type=float, help=f"fail below this BLEU; by default {GOAL}, with --sample never")
    options = parser.parse_args(arguments)
    goal = options.least if options.least is not None else 0.0 if options.sample else GOAL
    ab.utils.set_random_seed(1)

    training, _, test = load_sentences(options.sample)
    training = training[0][: options.first], training[1][: options.first]
    vocabularies = [frequent_words(side, 1 if options.sample else 3) for side in training]
    units = 32 if options.sample else 128
    pairs = as_numbers(training, vocabularies)
    x_test = encode(test[0], vocabularies[0], max(map(len, test[0])) + 1)
    if options.arrays:
        wanted = encode(test[1], vocabularies[1], max(map(len, test[1])) + 1)
        settings = np.array([*map(len, vocabularies), units, options.beam_width])
        np.savez(options.arrays, settings=settings, x_test=x_test, y_test=wanted, **pairs._asdict())
        return 0.0
    sizes = [len(vocabulary) for vocabulary in vocabularies]
    print(f"{len(pairs.x):,} pairs of sentences, vocabularies of {sizes[0]:,} and {sizes[1]:,} words.")
    model, found = train(pairs, sizes, units, options.epochs)
    translations = [
        translate(Translator(model, k, WIDTHS[-1]), x_test, vocabularies[1]) for k in (1, options.beam_width)
    ]
    for source, translation in zip(test[0][:3], translations[1], strict=False):
        print(" ".join(source), "\n    ", " ".join(translation))
    one, several = (100 * bleu(each, test[1]) for each in translations)
    print(f"BLEU of {len(x_test):,} test sentences: {several:.1f}, with one hypothesis {one:.1f}.")
    other = read_other(options.beside)
    if other:
        words = [[[vocabularies[1][n] for n in row] for row in each] for each in other["translations"]]
        theirs = [100 * bleu(each, test[1]) for each in words]
        print(f"{other['name']}: {theirs[1]:.1f}, with one hypothesis {theirs[0]:.1f}; {other['seconds']:.0f} s.")
    draw_losses(options.figure, "Losses of German to English, Multi30k", found, other)
    if not several >= goal:
        raise SystemExit(f"The goal, a BLEU of {goal:.1f}, was missed.")
    return several


if __name__ == "__main__":
    main()
