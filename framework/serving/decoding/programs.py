"""`Programs`: the compiled entries of a decoder's graph, and the programs that draw tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....engine import ops
from ....engine.common.dtypes import as_dtype
from ....engine.graph import Graph, Symbol, Tensor
from ....engine.session.placeholder import placeholder
from ....engine.session.programs import make_variants
from ....layers.decoding.steps import pointed_at
from .plan import Entry, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....engine.session.programs import Variants
    from ...structures import Array

    _Program = Callable[..., tuple[Array, ...]]


class Programs:
    """Runs a decoder's graph. One thread at a time may call it, and another one for texts.

    Args:
        graph: what `trace` built.
        plan: its parts.

    Attributes:
        has_text_by_token: whether the detokenizer gives a string for each token.
    """

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._entries = {name: _variants(graph, entry) for name, entry in plan.entries.items()}
        self._fixed: dict[str, _Program] = {}  # programs of entries that take the same shapes each time
        found = plan.entries.get("detokenize")
        self.has_text_by_token = found is not None and graph.get_tensor_by_name(found.fetches[0]).ndim == 2
        self._drawing = _Drawing(plan.slots, plan.vocabulary)

    def begin(self, slot: int, inputs: Sequence[Array]) -> None:
        """Set the states of a slot to those of a row that begins."""
        self._run("begin", np.array([slot], "int32"), *inputs, fixed=False)

    def clear(self, slot: int) -> None:
        """Set the states of a slot to zeros."""
        self._run("clear", np.array([slot], "int32"))

    def first(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the states of a row that begins, apart from the slots."""
        return list(self._run("first", *inputs, fixed=False))

    def prefill(self, chunk: Array, length: int, states: Sequence[Array]) -> list[Array]:
        """Return the states of a row after a chunk of its prompt, of which `length` tokens count."""
        return list(self._run("prefill", chunk, np.array([length], "int32"), *states))

    def place(self, slot: int, states: Sequence[Array]) -> None:
        """Set the states of a slot."""
        self._run("place", np.array([slot], "int32"), *states)

    def step(self, tokens: Array) -> tuple[Array, Array]:
        """Take one step in all slots; give the most probable token of each, and the logits."""
        best, logits = self._run("step", tokens)
        return best, logits

    def draw(self, logits: Array, units: Array, temperatures: Array) -> Array:
        """Draw a token for each slot from all tokens. A row's unit, from 0 to 1, decides."""
        return self._drawing.plain(logits, units, temperatures)

    def draw_of_few(self, logits: Array, units: Array, temperatures: Array, top_k: Array, top_p: Array) -> Array:
        """Draw a token for each slot from its `top_k` most probable ones that have `top_p` together."""
        return self._drawing.of_few(logits, units, temperatures, top_k, top_p)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        (tokens,) = self._run("tokenize", np.array([text], as_dtype("string")))
        return [int(token) for token in np.asarray(tokens).reshape(-1)]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        if not tokens:
            return ""
        count = len(tokens)
        if not self.has_text_by_token:
            (whole,) = self._run("detokenize", np.array([tokens], "int32"), fixed=False)
            return str(np.asarray(whole).reshape(-1)[0])
        padded = np.zeros((1, 1 << (count - 1).bit_length()), "int32")  # so that few programs are compiled
        padded[0, :count] = tokens
        (pieces,) = self._run("detokenize", padded, fixed=False)
        return "".join(map(str, np.asarray(pieces).reshape(-1)[:count]))

    def _run(self, name: str, *arrays: Array, fixed: bool = True) -> tuple[Array, ...]:
        variants, fetches = self._entries[name]
        program = self._fixed.get(name) if fixed else None
        if program is None:
            program = variants.get(arrays)
            if fixed:
                self._fixed[name] = program
        return program(*arrays)[:fetches]


def _variants(graph: Graph, entry: Entry) -> tuple[Variants, int]:
    feeds = [graph.get_tensor_by_name(name) for name in entry.feeds]
    fetches = [graph.get_tensor_by_name(name) for name in entry.fetches]
    effects = [graph.get_tensor_by_name(name).operation for name in entry.effects]
    return make_variants(graph, [*fetches, *effects], feeds), len(fetches)


class _Drawing:
    """Draws tokens. Each row is computed for itself, and always among as many: the same numbers give the same token."""

    def __init__(self, slots: int, vocabulary: int) -> None:
        self._slots, self._vocabulary = slots, vocabulary
        self._programs: dict[str, _Program] = {}

    def plain(self, *arrays: Array) -> Array:
        return self._run("plain", arrays)

    def of_few(self, *arrays: Array) -> Array:
        return self._run("of_few", arrays)

    def _run(self, kind: str, arrays: Sequence[Array]) -> Array:
        program = self._programs.get(kind)
        if program is None:
            program = self._programs[kind] = self._made(kind, arrays)
        return program(*arrays)[0]

    def _made(self, kind: str, arrays: Sequence[Array]) -> _Program:
        graph = Graph()
        with graph.as_default():
            feeds = [placeholder(array.shape, array.dtype, f"feed_{number}") for number, array in enumerate(arrays)]
            drawn = ops.cast(_plain(*feeds) if kind == "plain" else _of_few(*feeds), "int32")
        assert isinstance(drawn, Symbol)
        return make_variants(graph, [drawn], feeds).get(list(arrays))


def _plain(logits: Tensor, units: Tensor, temperatures: Tensor) -> Tensor:
    return pointed_at(logits / ops.cast(ops.expand_dims(temperatures, 1), logits.dtype), units)


def _of_few(logits: Tensor, units: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Draw as `sample` does (Fan et al., 2018; Holtzman et al., 2020), with numbers for each row."""
    _, vocabulary = logits.shape or (None, None)
    assert vocabulary is not None  # `trace` has made sure of it
    logits, tokens = ops.top_k(logits / ops.cast(ops.expand_dims(temperatures, 1), logits.dtype), vocabulary)
    least = ops.constant(-np.inf, logits.dtype)
    logits = ops.where(ops.arange(vocabulary, dtype="int32") < ops.expand_dims(top_k, 1), logits, least)
    probabilities = ops.softmax(logits)
    before = ops.cumsum(probabilities, axis=1) - probabilities  # of what is more probable
    logits = ops.where(before < ops.cast(ops.expand_dims(top_p, 1), logits.dtype), logits, least)
    return ops.take_along_axis(tokens, ops.expand_dims(pointed_at(logits, units), 1), axis=1)[:, 0]
