"""Translation between two made-up languages: an encoder, a decoder that attends to it, and beam search in the graph.

A grammar makes sentences of something like English, and their translations. Those have another word order (the verb
comes last, relative clauses first), agreement (of adjectives and articles in gender and number, of participles with
nouns that come later), and words that English does not distinguish: "mouse" is one word if someone feeds it and another
if someone repairs it, "old", "runs" and "with" depend on the noun, and "cut" is past or present with "yesterday" or
"today". The model sees pairs of sentences and nothing else, and is tested on sentences that it has not seen.

    python examples/translation.py --figure translation.svg

Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", 2015.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch import decoding, layers, ops, optim

END, START, UNKNOWN = 0, 1, 2
MARKS = ("<end>", "<start>", "<unknown>")
LENGTHS = 19, 20  # the most words in a sentence, and in a translation with its end
GOAL = 0.95


# --- the languages --------------------------------------------------------------------------------------------------


class Noun(NamedTuple):
    """A noun: what one and many are called, its kind, its translation, and whether that is "o" or "a" (its gender)."""

    one: str
    many: str
    kind: str
    stem: str
    gender: str


class Verb(NamedTuple):
    """A verb: its forms, the kinds of its subjects and objects ("-" without an object), and its translation."""

    base: str
    third: str
    past: str
    subjects: str
    objects: str
    stem: str


NOUNS = [
    Noun(*line.split())
    for line in """
    teacher teachers person instru o
    farmer farmers person kampar a
    child children person infan a
    doctor doctors person medik o
    friend friends person amik a
    dog dogs animal hund o
    horse horses animal caval o
    cow cows animal bov a
    sheep sheep animal shaf a
    mouse mice animal musk a
    crane cranes animal gru o
    bat bats animal nokt a
    mouse mice tool klik o
    crane cranes tool levil a
    bat bats tool bastun o
    hammer hammers tool martel o
    clock clocks tool horlog a
    machine machines tool mashin a
    radio radios tool radik o
    house houses place dom o
    garden gardens place jarden a
    market markets place foir a
    river rivers place fluv o
    """.strip().split("\n")
]
VERBS = [
    Verb(*line.split())
    for line in """
    see sees saw person,animal person,animal,tool,place vid
    feed feeds fed person animal nutr
    hunt hunts hunted animal,person animal chas
    repair repairs repaired person tool ripar
    sell sells sold person tool vend
    cut cuts cut person tool tranch
    hit hits hit person tool frap
    hear hears heard animal,person person aud
    visit visits visited person place,person vizit
    sleep sleeps slept animal,person - dorm
    run runs ran animal,person - kur
    run runs ran tool - funkc
    fall falls fell tool - fal
    """.strip().split("\n")
]
ADJECTIVES = {  # by what they are said of
    "old": {"person": "sen", "animal": "sen", "tool": "vet", "place": "vet"},
    "sharp": {"person": "sagac", "animal": "sagac", "tool": "akut"},
    "small": dict.fromkeys(("person", "animal", "tool", "place"), "pet"),
    "white": dict.fromkeys(("person", "animal", "tool", "place"), "blank"),
}
ARTICLES = {
    "the": ("the", "the", "l"),  # one, many, the translation
    "a": ("a", "some", "un"),
    "this": ("this", "these", "ti"),
    "my": ("my", "my", "mi"),
}
TIMES = {"yesterday": ("herai", "past"), "today": ("hoi", "present"), "tomorrow": ("demai", "future")}
TENSES = {"past": ("is", "in"), "present": ("as", "an"), "future": ("os", "on")}
AMBIGUOUS = {"old", "sharp", "run", "runs", "ran", "with", "cut", "hit"}
AMBIGUOUS |= {"mouse", "mice", "crane", "cranes", "bat", "bats"}
_SENSES = Counter(noun.one for noun in NOUNS)
Words = list[str]


class Grammar:
    """Makes sentences, each with its translation.

    Args:
        seed: of what is drawn.

    >>> sentence, translation = Grammar(1).sentence()
    >>> len(sentence) > 2, translation[-1][-2:] in sum(TENSES.values(), ())
    (True, True)
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def sentence(self) -> tuple[Words, Words]:
        """A sentence and its translation."""
        verb = self._choose(VERBS)
        when = self._choose(list(TIMES)) if verb.base == verb.past or self._maybe(0.4) else ""
        tense = TIMES[when][1] if when else self._choose(list(TENSES))
        subject, many, translation = self._subject(verb)
        words = [*subject, *self._verb(verb, tense, many, negated := self._maybe(0.25))]
        if verb.objects != "-":
            others, _, translated = self._noun_phrase(verb.objects)
            words += others
            translation += [*translated, "ko"]
        if self._maybe(0.3):
            others, translated = self._circumstance()
            words += others
            translation = translation + translated if others[0] == "with" else translated + translation
        ending = [*(["nen"] if negated else []), verb.stem + TENSES[tense][many]]
        if not when:
            return words, translation + ending
        words = [when, *words] if self._maybe(0.5) else [*words, when]
        return words, [TIMES[when][0], *translation, *ending]

    def _choose(self, what: Sequence[Any]) -> Any:
        return what[int(self.random.integers(len(what)))]

    def _maybe(self, chance: float) -> bool:
        return bool(self.random.uniform() < chance)

    def _subject(self, verb: Verb) -> tuple[Words, bool, Words]:
        """The subject, whether it is many, and its translation, before which a relative clause comes."""
        kind = self._choose(verb.subjects.split(","))
        words, many, translation = self._noun_phrase(kind, clear=verb.base == "run")
        inner = self._choose([each for each in VERBS if kind in each.subjects and each.base != each.past])
        if inner.base == "run" or not self._maybe(0.25):
            return words, many, translation
        words = [*words, "that", *self._verb(inner, "present", many, False)]
        participle = [inner.stem + ("antai" if many else "anta")]
        if inner.objects == "-":
            return words, many, participle + translation
        others, _, translated = self._noun_phrase(inner.objects)
        return words + others, many, [*translated, "ko", *participle, *translation]

    def _noun_phrase(self, kinds: str, clear: bool = False) -> tuple[Words, bool, Words]:
        """An article, perhaps an adjective, and a noun; the translation has them the other way round."""
        allowed = kinds.split(",")
        nouns = [noun for noun in NOUNS if noun.kind in allowed]
        if clear or len(allowed) > 1:  # nothing would say which of its senses a word has
            nouns = [noun for noun in nouns if _SENSES[noun.one] == 1]
        noun, many = self._choose(nouns), self._maybe(0.4)
        ending = noun.gender + ("i" if many else "")
        article = ARTICLES[self._choose(list(ARTICLES))]
        words, translation = [noun.many if many else noun.one], [noun.stem + ending]
        adjective = self._choose(list(ADJECTIVES))
        if noun.kind in ADJECTIVES[adjective] and self._maybe(0.4):
            words = [adjective, *words]
            translation.append(ADJECTIVES[adjective][noun.kind] + ending)
        # What "sheep" and "the" leave open has to be said by something.
        if noun.one == noun.many and article[0] == article[1]:
            article = ARTICLES["this"]
        return [article[many], *words], many, [*translation, article[2] + ending]

    def _verb(self, verb: Verb, tense: str, many: bool, negated: bool) -> Words:
        if tense == "future":
            return ["will", *(["not"] if negated else []), verb.base]
        if negated:
            return ["did" if tense == "past" else "do" if many else "does", "not", verb.base]
        return [verb.past if tense == "past" else verb.base if many else verb.third]

    def _circumstance(self) -> tuple[Words, Words]:
        """Where, with whom or with what: one word for "with" is another if it is a tool."""
        kind = self._choose(["place", "place", "person", "tool"])
        words, _, translation = self._noun_phrase(kind, clear=True)
        if kind == "place":
            word, after = self._choose([("in", "mo"), ("near", "apo")])
            return [word, *words], [*translation, after]
        return ["with", *words], [*translation, "kun" if kind == "person" else "per"]


def make_pairs(count: int, seed: int) -> list[tuple[Words, Words]]:
    """So many different sentences with their translations."""
    grammar, found = Grammar(seed), dict[tuple[str, ...], Words]()
    while len(found) < count:
        words, translation = grammar.sentence()
        found[tuple(words)] = translation
    return [(list(words), translation) for words, translation in found.items()]


def list_words(sentences: Sequence[Words]) -> list[str]:
    """The vocabulary: the marks, then all words, in their order.

    >>> list_words([["b", "a"], ["b"]])
    ['<end>', '<start>', '<unknown>', 'a', 'b']
    """
    return [*MARKS, *sorted({word for sentence in sentences for word in sentence})]


def encode(sentences: Sequence[Words], vocabulary: Sequence[str], length: int) -> np.ndarray:
    """Numbers of words, [sentences, length], filled up with END, of which there is at least one.

    >>> encode([["b", "?"]], ["<end>", "<start>", "<unknown>", "a", "b"], 4)
    array([[4, 2, 0, 0]], dtype=int32)
    """
    number = {word: place for place, word in enumerate(vocabulary)}
    result = np.full((len(sentences), length), END, "int32")
    for row, sentence in enumerate(sentences):
        result[row, : len(sentence)] = [number.get(word, UNKNOWN) for word in sentence]
    return result


# --- the model ------------------------------------------------------------------------------------------------------


def build_model(
    source_words: int, target_words: int, units: int, embedding: int = 32, dropout: float = 0.0
) -> ab.Model:
    """Sentences and the translations' words so far to logits of the next ones: [batch, words] each."""
    source = ab.Input((None,), dtype="int32", name="source")
    target = ab.Input((None,), dtype="int32", name="target")
    embedded = layers.Embedding(source_words, embedding, mask_zero=True, name="read")(source)
    encoder = layers.LSTM(units // 2, return_sequences=True, return_state=True)
    memory, *last = layers.Bidirectional(encoder, name="encoder")(embedded)
    first = [layers.Concatenate(name=f"first_{n}")([last[n], last[n + 2]]) for n in range(2)]
    given = layers.Embedding(target_words, embedding, name="reread")(target)
    cell = layers.AttentionCell(layers.LSTMCell(units), units)
    attended = layers.AttentionRNN(cell, return_sequences=True, name="decoder")(given, memory, initial_state=first)
    attended = layers.Dropout(dropout)(attended) if dropout else attended
    return ab.Model([source, target], layers.Dense(target_words, name="write")(attended))


class Translator:
    """Programs over a trained model.

    Args:
        model: that of `build_model`.
        beam_width: how many hypotheses of a sentence are followed.
        max_length: the most words in a translation, with its end.

    Attributes:
        translate: from sentences, [batch, words], to translations, scores and lengths, best first.
        attention: from sentences and their translations to where the decoder looked, [batch, target, source].
    """

    def __init__(self, model: ab.Model, beam_width: int, max_length: int = LENGTHS[1]) -> None:
        parts: Any = map(model.get_layer, ("read", "encoder", "reread", "decoder", "write"))
        self.read, self.encoder, self.reread, self.decoder, self.write = parts
        self.beam_width, self.max_length = beam_width, max_length
        self.translate: Callable[[np.ndarray], Any] = ab.function(self._translate)
        self.attention: Callable[[np.ndarray, np.ndarray], Any] = ab.function(self._attention)

    def _begin(self, sentences: Any) -> tuple[Any, Any]:
        """The decoder's first states, and what it attends to."""
        memory, forward_h, forward_c, backward_h, backward_c = self.encoder(self.read(sentences))
        first = [ops.concatenate(pair, axis=-1) for pair in ((forward_h, backward_h), (forward_c, backward_c))]
        none = self.decoder.cell.get_initial_state(ops.shape(sentences)[0])[-1]
        return [*first, none], self.decoder.cell.prepare(memory)

    def _translate(self, sentences: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            own, attended = states
            output, own = self.decoder.cell(self.reread(tokens), own, memory=attended)
            return self.write(output), (own, attended)

        return decoding.beam_search(
            step,
            self._begin(sentences),
            start_token=START,
            end_token=END,
            max_length=self.max_length,
            beam_width=self.beam_width,
            top_paths=1,
        )

    def _attention(self, sentences: Any, translations: Any) -> Any:
        """The softmax inside the cell once more: its query is what the LSTM puts out, which is its first state."""
        own, attended = self._begin(sentences)

        def step(states: Any, token: Any) -> Any:
            _, states = self.decoder.cell(self.reread(token), states, memory=attended)
            scores = ops.einsum("bd,bsd->bs", states[0], attended.keys)
            return states, ops.softmax(ops.where(attended.mask, scores, -1e9))

        tokens = ops.concatenate([ops.full_like(translations[:, :1], START), translations[:, :-1]], axis=1)
        return ops.transpose(ops.scan(step, own, ops.transpose(tokens))[1], (1, 0, 2))


# --- how good it is -------------------------------------------------------------------------------------------------


def bleu(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]], most: int = 4) -> float:
    """The geometric mean of the precisions of 1 to `most` words in a row, less if texts are too short.

    Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", 2002, with one reference each.

    >>> bleu([["a", "b", "c", "d", "e"]], [["a", "b", "c", "d", "e"]])
    1.0
    >>> round(bleu([["a", "b", "c", "d"]], [["a", "b", "x", "d"]], most=2), 4)  # 3 of 4 words, 1 of 3 pairs
    0.5
    """
    logs = 0.0
    for size in range(1, most + 1):
        right = total = 0
        for one, other in zip(found, wanted, strict=True):
            counts = [Counter(tuple(each[n : n + size]) for n in range(len(each) - size + 1)) for each in (one, other)]
            right += (counts[0] & counts[1]).total()
            total += counts[0].total()
        if right == 0:
            return 0.0
        logs += log(right / total) / most
    lengths = [sum(map(len, each)) for each in (found, wanted)]
    return exp(logs + min(0.0, 1 - lengths[1] / lengths[0]))


def draw_attention(path: str, translator: Translator, pair: tuple[Words, Words], x: np.ndarray, y: np.ndarray) -> None:
    """Draw where the decoder looked while it wrote a translation, as a table."""
    from drawing import table

    source, target = pair
    looked = translator.attention(x, y)[0]
    title = "Where the decoder looks (columns) at each word (rows)"
    drawn = table(title, target, source, looked[: len(target), : len(source)])
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the share of sentences, not seen in training, that are translated without a mistake."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=10000, help="sentences to learn from")
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--least", type=float, default=GOAL, help="fail if fewer sentences are right")
    parser.add_argument("--figure", help="where to draw the attention, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(1)

    tests = min(1000, options.examples // 4)
    pairs = make_pairs(options.examples + tests, seed=0)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    vocabularies = list_words(sources[tests:]), list_words(targets[tests:])
    x, y = (encode(*each) for each in zip((sources, targets), vocabularies, LENGTHS, strict=True))
    shifted = np.concatenate([np.full((len(y), 1), START, "int32"), y[:, :-1]], axis=1)
    counts = np.cumsum(y == END, axis=1) <= 1  # every word, and the first end
    sizes = len(vocabularies[0]), len(vocabularies[1])
    print(f"{len(x) - tests} sentences, {sizes[0]} words, {sizes[1]} words in the other language.")

    model = build_model(*sizes, options.units)
    steps = options.epochs * -(-options.examples // 64)
    model.compile(
        optimizer=optim.Adam(optim.schedules.CosineDecay(6e-3, steps, alpha=0.02), global_clipnorm=1.0),
        loss=ab.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        [x[tests:], shifted[tests:]],
        y[tests:],
        sample_weight=counts[tests:].astype("float32"),
        batch_size=64,
        epochs=options.epochs,
        verbose=2,
    )
    translator = Translator(model, options.beam_width)
    sequences, _, lengths = translator.translate(x[:tests])
    rows = zip(sequences[:, 0], lengths[:, 0], strict=True)
    found = [[vocabularies[1][n] for n in row[:length] if n != END] for row, length in rows]
    for source, translation in zip(sources[:5], found, strict=False):
        print(" ".join(source), "\n    ", " ".join(translation))
    right = np.array([one == other for one, other in zip(found, targets, strict=False)])
    unclear = np.array([not AMBIGUOUS.isdisjoint(source) for source in sources[:tests]])
    print(f"\nWithout a mistake: {right.mean():.1%} of {tests} sentences that were not learnt from,")
    print(f"{right[unclear].mean():.1%} of those {unclear.sum()} with words of several senses.")
    print(f"BLEU: {bleu(found, targets[:tests]):.4f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        row = max(range(tests), key=lambda n: bool(right[n]) * len({*sources[n]}))
        draw_attention(options.figure, translator, pairs[row], x[row : row + 1], y[row : row + 1])
    if right.mean() < options.least:
        raise SystemExit(f"The goal, {options.least:.1%} of sentences without a mistake, was missed.")
    return float(right.mean())


if __name__ == "__main__":
    main()
