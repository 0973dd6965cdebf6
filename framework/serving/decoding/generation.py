"""`Generation`: one sequence that is asked for, its settings, and what has been generated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....distribute.inference import RequestError
from ..signature import Signature, check_given
from ..values import as_input
from .plan import TOKENS, Plan

if TYPE_CHECKING:
    from ...structures import Array

SETTINGS = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop")


class Generation:
    """One sequence.

    Attributes:
        prompt: its tokens, one at least.
        inputs: of `begin`, in order.
        generated: the tokens so far.
        finish_reason: "stop" after the end token or a stop; "length" after the last token that is allowed; None before.
        error: what the decoder raised, instead.
        is_cancelled: set to True by whoever does not want it any more.
        on_tokens: called with the generation by the thread that computes, after each token and at the end.
    """

    __slots__ = (
        "__weakref__",
        "error",
        "finish_reason",
        "generated",
        "inputs",
        "is_cancelled",
        "limit",
        "on_tokens",
        "place",
        "prompt",
        "states",
        "stop",
        "stop_texts",
        "temperature",
        "top_k",
        "top_p",
        "units",
    )

    def __init__(self, prompt: list[int], inputs: Sequence[Array], limit: int) -> None:
        self.prompt, self.inputs, self.limit = prompt, inputs, limit
        self.temperature, self.top_k, self.top_p = 0.0, 0, 1.0
        self.units: Any = None
        self.stop: frozenset[int] = frozenset()
        self.stop_texts: list[str] = []
        self.generated: list[int] = []
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.on_tokens: Callable[[Generation], None] | None = None
        self.place = 0  # how many tokens of the prompt the decoder has taken
        self.states: list[Array] | None = None  # while the prompt is taken by chunks

    @property
    def is_done(self) -> bool:
        """Test whether nothing more will come."""
        return self.finish_reason is not None or self.error is not None

    def append(self, token: int, end_token: int) -> None:
        """Add a token, which may be the last."""
        self.generated.append(token)
        if token == end_token or token in self.stop:
            self.finish_reason = "stop"
        elif len(self.generated) >= self.limit:
            self.finish_reason = "length"


def make_generation(
    plan: Plan,
    signature: Signature,
    prompt: object,
    inputs: Mapping[str, object] | None = None,
    *,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Sequence[int | str] = (),
) -> Generation:
    """Make a generation of arguments that are not checked yet.

    Args:
        plan: of the decoder.
        signature: of the decoder.
        prompt: integers.
        inputs: one row for each of the decoder's inputs, by name.
        max_tokens, temperature, top_k, top_p, seed: see `Decoder.generate`.
        stop: tokens that end the sequence besides the end token; and, with a detokenizer, texts before which it ends.

    Raises:
        RequestError: an argument has no meaning.
    """
    tokens = _prompt(prompt, plan)
    room = plan.max_length - len(tokens)
    _check_int("max_tokens", max_tokens, 1, None)
    made = Generation(tokens, _rows(signature, inputs or {}), room if max_tokens is None else min(room, max_tokens))
    _check_number("temperature", temperature, lambda number: 0 <= number < np.inf, "a number, 0 or more")
    _check_int("top_k", top_k, 1, None)
    if top_p is not None:
        _check_number("top_p", top_p, lambda number: 0 < number <= 1, "a number within (0, 1]")
    _check_int("seed", seed, 0, 1 << 64)
    _set_stops(made, stop, "detokenize" in plan.entries)
    if temperature > 0:
        made.temperature = max(float(temperature), 1e-6)
        made.top_k = 0 if top_k is None or top_k >= plan.vocabulary else int(top_k)
        made.top_p = 1.0 if top_p is None else float(top_p)
        key = random.getrandbits(64) if seed is None else int(seed)
        # The number that decides about a token follows from the seed and the token's position alone.
        made.units = np.random.Generator(np.random.Philox(key=key)).random(made.limit)
    return made


def _set_stops(made: Generation, stop: Sequence[int | str], has_texts: bool) -> None:
    if not isinstance(stop, (list, tuple)) or any(not _is_int(each) and not isinstance(each, str) for each in stop):
        raise RequestError(400, f"stop must be a list of tokens and texts; got {stop!r}.")
    made.stop = frozenset(int(each) for each in stop if not isinstance(each, str))
    made.stop_texts = [each for each in stop if isinstance(each, str)]
    if made.stop_texts and not has_texts:
        raise RequestError(400, "stop has texts, but this decoder has no detokenizer: give tokens.")
    if "" in made.stop_texts:
        raise RequestError(400, "stop has an empty text, with which every text begins.")


def _prompt(prompt: object, plan: Plan) -> list[int]:
    try:
        array = np.asarray(prompt)
    except (ValueError, TypeError, OverflowError):
        array = np.zeros((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RequestError(400, "A prompt must be a list of integers, its tokens.")
    if not array.size:
        raise RequestError(400, "A prompt needs a token at least, such as the one that begins sequences.")
    if array.size >= plan.max_length:
        raise RequestError(
            400, f"The prompt has {array.size} tokens; at most {plan.max_length - 1} leave room for one to generate."
        )
    tokens = [int(token) for token in array]
    wrong = next((token for token in tokens if not 0 <= token < plan.vocabulary), None)
    if wrong is not None:
        raise RequestError(400, f"The prompt has the token {wrong}; tokens are from 0 to {plan.vocabulary - 1}.")
    return tokens


def _rows(signature: Signature, inputs: Mapping[str, object]) -> list[Array]:
    infos = [info for info in signature.inputs if info.name != TOKENS]
    check_given([info.name for info in infos], inputs)
    return [as_input(info, [inputs[info.name]]) for info in infos]


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_int(name: str, value: int | None, least: int, end: int | None) -> None:
    if value is None:
        return
    if not _is_int(value) or value < least or (end is not None and value >= end):
        expected = f"of at least {least}" if end is None else f"from {least} to {end - 1}"
        raise RequestError(400, f"{name} must be an integer {expected}; got {value!r}.")


def _check_number(name: str, value: object, accepts: Callable[[Any], bool], expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not accepts(value):
        raise RequestError(400, f"{name} must be {expected}; got {value!r}.")
