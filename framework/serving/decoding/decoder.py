"""`Decoder`: sequences from a step function, many at once, none waiting for another."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....distribute.inference import RequestError
from ....engine.graph import Graph
from ....layers.core.input_spec import InputSpec
from ....layers.decoding.steps import Step, check_at_least
from ..servable import Servable
from ..signature import DEFAULT, Signature
from ..storage import ServableError, pick_version, read_servable, write_servable
from .generation import Generation, make_generation
from .plan import Parts, Plan, trace
from .programs import Programs
from .slots import Slots

if TYPE_CHECKING:
    from ...structures import Array
    from .plan import PlanDocument


class Decoder:
    """Generates sequences by continuous batching (Yu et al., 2022, "Orca").

    A sequence takes a free slot between two steps, and leaves it when it ends; so short sequences do not wait for long
    ones. The tokens of a sequence are those that it gets alone, to the bit, whatever the other slots compute.

    Args:
        step: ``step(tokens, states)`` as in `ab.decoding`: the latest tokens, int32 ``(rows,)``, and the states, to
            logits ``(rows, vocabulary)`` and the new states. Each row is computed for itself.
        begin: ``begin(rows, **inputs)``, which gives the states before the first token: nested lists, tuples and dicts
            of tensors ``(rows, ...)`` with known sizes.
        end_token: the token that ends a sequence.
        max_length: the largest number of tokens of a sequence, those of its prompt included. A step is called
            ``max_length - 1`` times at most after `begin`.
        inputs: what requests give to `begin`: `InputSpec`s by name, with the batch axis.
        prefill: ``prefill(tokens, lengths, states)``, which takes a chunk of prompts at once: tokens ``(rows, n)``,
            of which the first ``lengths`` of a row count, to logits and states. Without it `step` takes prompts token
            by token.
        slots: how many sequences are computed at once. Memory for their states is reserved in advance.
        tokenizer: a layer from strings ``(rows,)`` to tokens ``(rows, n)``, for prompts that are texts.
        detokenizer: a layer from tokens ``(rows, n)`` to strings ``(rows,)``, or ``(rows, n)`` that are joined.
        row_wise: True says that `step` computes each row for itself, where the graph does not show that.

    Attributes:
        slots, max_length, end_token: as above.
        vocabulary: how many tokens there are.
        row_bytes: the bytes of one sequence's states.

    Raises:
        TypeError, ValueError: an argument is out of range, a function does not return what it should, or a step
            mixes rows.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> table = np.log([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]])  # from token (row) to token
    >>> decoder = ab.serving.Decoder(
    ...     lambda tokens, states: (ab.ops.take(table, tokens, axis=0), states), lambda rows: (),
    ...     end_token=0, max_length=8, slots=2,
    ... )
    >>> [tokens.tolist() for tokens in decoder.generate([[0], [2], [1, 1]])]
    [[1, 2, 0], [0], [2, 0]]
    """

    def __init__(
        self,
        step: Step,
        begin: Callable[..., object],
        *,
        end_token: int,
        max_length: int,
        inputs: Mapping[str, InputSpec] | None = None,
        prefill: Callable[..., object] | None = None,
        slots: int = 32,
        tokenizer: Callable[..., object] | None = None,
        detokenizer: Callable[..., object] | None = None,
        row_wise: bool = False,
    ) -> None:
        check_at_least("Decoder", 0, end_token=end_token)
        check_at_least("Decoder", 2, max_length=max_length)
        check_at_least("Decoder", 1, slots=slots)
        parts = Parts(step, begin, prefill, tokenizer, detokenizer, inputs or {})
        graph, plan, signature = trace(
            parts, slots=slots, max_length=max_length, end_token=end_token, row_wise=row_wise
        )
        self._set(graph, plan, signature)

    def _set(self, graph: Graph, plan: Plan, signature: Signature) -> None:
        self._graph, self.plan, self.signature = graph, plan, signature
        self._lock = threading.Lock()
        self._programs: Programs | None = None
        self.path: Path | None = None
        self.version = 0

    @property
    def slots(self) -> int:
        """The number of sequences that are computed at once."""
        return self.plan.slots

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence, those of its prompt included."""
        return self.plan.max_length

    @property
    def end_token(self) -> int:
        """The token that ends a sequence."""
        return self.plan.end_token

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return self.plan.vocabulary

    @property
    def row_bytes(self) -> int:
        """The bytes of one sequence's states."""
        return self.plan.row_bytes

    @property
    def programs(self) -> Programs:
        """The compiled entries, made when they are first asked for."""
        if self._programs is None:
            self._programs = Programs(self._graph, self.plan)
        return self._programs

    def generate(
        self,
        prompts: Sequence[str | Sequence[int] | Array],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | Sequence[int] | None = None,
        inputs: Mapping[str, Sequence[object] | Array] | None = None,
    ) -> list[Array]:
        """Generate a sequence for each prompt.

        Args:
            prompts: for each sequence its tokens, one at least; or a text, where there is a tokenizer.
            max_tokens: the largest number of tokens to generate; by default, and at most, what `max_length` leaves.
            temperature: 0 takes the most probable token; above, tokens are drawn from logits divided by it.
            top_k: draw only from this many of the most probable tokens (Fan et al., 2018).
            top_p: draw from the fewest of the most probable tokens that have this probability together (Holtzman et
                al., 2020); of what `top_k` leaves, if both are given.
            seed: decides, with a token's position in its sequence, what is drawn: an integer from 0 on for all
                sequences, or one for each. None draws seeds from Python's `random`.
            inputs: of `begin`: for each name an array with a row for each prompt.

        Returns:
            A list of int32 arrays: what was generated, the end token included.

        Raises:
            ValueError: an argument has no meaning, or the step refuses the values.
        """
        seeds = list(seed) if isinstance(seed, (list, tuple, np.ndarray)) else [seed] * len(prompts)
        given = inputs or {}
        wrong = next((name for name, rows in given.items() if len(rows) != len(prompts)), None)
        if len(seeds) != len(prompts) or wrong is not None:
            what = "seed" if wrong is None else f"inputs[{wrong!r}]"
            raise ValueError(f"generate: {what} has to have an entry for each of {len(prompts)} prompts.")
        settings: dict[str, object] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        made: list[Generation] = []
        for number, prompt in enumerate(prompts):
            row = {name: rows[number] for name, rows in given.items()}
            try:
                made.append(self.make_generation(prompt, row, **settings, seed=seeds[number]))
            except RequestError as error:
                raise ValueError(f"generate: prompt {number}: {error}") from None
        with self._lock:
            slots, waiting = Slots(self.programs, self.plan), deque(made)
            while waiting or slots.busy:
                while waiting and slots.free:
                    slots.admit(waiting.popleft())
                slots.iterate()
        failed = next((each.error for each in made if each.error is not None), None)
        if failed is not None:
            raise failed
        return [np.array(each.generated, "int32") for each in made]

    def make_generation(
        self, prompt: object, inputs: Mapping[str, object] | None = None, **settings: Any
    ) -> Generation:
        """Make a generation of a prompt, tokens or a text.

        Raises:
            RequestError: an argument has no meaning.
        """
        if isinstance(prompt, str):
            if "tokenize" not in self.plan.entries:
                raise RequestError(400, "This decoder has no tokenizer: give the prompt's tokens, a list of integers.")
            prompt = self.programs.tokenize(prompt)
        return make_generation(self.plan, self.signature, prompt, inputs, **settings)

    @property
    def gives_text(self) -> bool:
        """Test whether there is a detokenizer."""
        return "detokenize" in self.plan.entries

    def text(self, tokens: Sequence[int]) -> str | None:
        """Return the text of generated tokens without the end token; None if there is no detokenizer."""
        if not self.gives_text:
            return None
        return self.programs.detokenize([token for token in tokens if token != self.end_token])

    def added_text(self, tokens: Sequence[int], before: str) -> str | None:
        """Return what the last of generated tokens adds to the text `before` it; None if there is no detokenizer."""
        if self.gives_text and self.programs.has_text_by_token:
            return self.text(tokens[-1:])
        text = self.text(tokens)
        return None if text is None else text[len(before) :]

    def export(self, filepath: str | os.PathLike[str], version: int | None = None) -> int:
        """Write the decoder as a version of a servable, which `load_decoder` and a server read without its code.

        Args:
            filepath: the folder of all versions.
            version: its number; by default one more than the highest.

        Returns:
            The version.

        Raises:
            SavedGraphError: an operation holds something that can't be written, such as a Python function.
            FileExistsError: there is this version already.
        """
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise ValueError(f"export(version={version!r}): expected an int of at least 0, or None for the next.")
        return write_servable(filepath, self._graph, {DEFAULT: self.signature}, version, decoder=self.plan.to_json())

    def warm_up(self) -> None:
        """Compile what a step takes."""
        with self._lock:
            self.programs.clear(0)
            self.programs.step(np.zeros(self.slots, "int32"))
            for slot in range(self.slots):
                self.programs.clear(slot)


def decoder_of(
    path: Path, version: int, graph: Graph, signatures: Mapping[str, Signature], document: PlanDocument
) -> Decoder:
    """Return the decoder that a folder's files describe.

    Raises:
        ServableError: they are damaged.
    """
    found = Decoder.__new__(Decoder)
    try:
        found._set(graph, Plan.from_json(document, graph), signatures[DEFAULT])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ServableError(f"{str(path)!r} is damaged: {type(error).__name__}: {error}. Export it again.") from error
    found.path, found.version = path, version
    return found


def load_decoder(filepath: str | os.PathLike[str], version: int | None = None) -> Decoder:
    """Load a version of a decoder that `Decoder.export` wrote. No code is run.

    Args:
        filepath: what was given to `export`.
        version: the version; by default the highest.

    Raises:
        ServableError: there is no such version, it is damaged, or no decoder.

    >>> import anabranch as ab
    >>> decoder = ab.serving.Decoder(
    ...     lambda tokens, states: (ab.ops.one_hot((tokens + 1) % 4, 4), states), lambda rows: (),
    ...     end_token=0, max_length=8, slots=2)
    >>> version = decoder.export("counting")
    >>> [tokens.tolist() for tokens in ab.serving.load_decoder("counting").generate([[1], [3]])]
    [[2, 3, 0], [0]]
    """
    found = load_any(filepath, version)
    if not isinstance(found, Decoder):
        raise ServableError(f"{str(found.path)!r} holds a model, no decoder. ab.serving.load reads it.")
    return found


def load_any(filepath: str | os.PathLike[str], version: int | None = None) -> Servable | Decoder:
    """Load a version of a model or of a decoder; as `load_decoder`."""
    number = pick_version(filepath, version)
    path = Path(filepath) / str(number)
    contents = read_servable(path)
    if contents.decoder is None:
        return Servable(path, number, contents.graph, contents.signatures)
    return decoder_of(path, number, contents.graph, contents.signatures, contents.decoder)
