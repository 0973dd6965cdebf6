"""`Slots`: continuous batching. Sequences take free slots between two steps, and leave them when they end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from .generation import Generation
from .plan import CHUNK, Plan
from .programs import Programs

if TYPE_CHECKING:
    from ...structures import Array


class Slots:
    """The sequences that a decoder computes together. One thread at a time may call it.

    A step always computes all slots, so that what a sequence gets does not depend on the others, to the bit.

    Args:
        programs: of the decoder.
        plan: of the decoder.
    """

    def __init__(self, programs: Programs, plan: Plan) -> None:
        self._programs, self._plan = programs, plan
        self._tokens = np.zeros(plan.slots, "int32")
        self._stepping: dict[int, Generation] = {}  # by slot
        self._filling: deque[tuple[int, Generation]] = deque()  # whose prompts are taken by chunks
        self._free = list(range(plan.slots - 1, -1, -1))
        # The tokens that a slot's states have taken; what others have left there may have as many as a sequence.
        self._age = [plan.max_length] * plan.slots
        self._units = np.zeros(plan.slots)
        self._temperatures = np.ones(plan.slots)
        self._top_k = np.full(plan.slots, plan.vocabulary, "int32")
        self._top_p = np.ones(plan.slots)
        self._takes_chunks = "prefill" in plan.entries

    @property
    def free(self) -> int:
        """The number of further sequences that can be admitted."""
        return len(self._free)

    @property
    def busy(self) -> int:
        """The number of sequences that are under way."""
        return self._plan.slots - len(self._free)

    def admit(self, generation: Generation) -> None:
        """Give a sequence a free slot. If `begin` raises for it, that is its error, and it gets none."""
        slot = self._free.pop()
        try:
            if self._takes_chunks and len(generation.prompt) > 1:
                generation.states = self._programs.first(generation.inputs)
                self._filling.append((slot, generation))
                return
            if self._takes_chunks:
                self._programs.place(slot, self._programs.first(generation.inputs))
            else:
                self._programs.begin(slot, generation.inputs)
        except Exception as error:
            generation.error = error
            self._free.append(slot)
            return
        self._start(slot, generation)

    def _start(self, slot: int, generation: Generation) -> None:
        self._age[slot] = generation.place
        self._tokens[slot] = generation.prompt[generation.place]
        self._stepping[slot] = generation
        self._temperatures[slot] = generation.temperature or 1.0
        self._top_k[slot] = generation.top_k or self._plan.vocabulary
        self._top_p[slot] = generation.top_p

    def iterate(self) -> list[Generation]:
        """Take a step in all slots, and a chunk of one prompt.

        Returns:
            The sequences that got a token or an error.
        """
        changed = self._fill()
        self._leave([slot for slot, generation in self._stepping.items() if generation.is_cancelled])
        if not self._stepping:
            return changed
        self._refresh_idle()
        try:
            best, logits = self._programs.step(self._tokens)
            chosen = self._chosen(best, logits)
        except Exception as error:
            failed = list(self._stepping.values())
            for generation in failed:
                generation.error = error
            self._leave(list(self._stepping))
            return [*changed, *failed]
        ended: list[int] = []
        for slot, generation in self._stepping.items():
            generation.place += 1
            if generation.place < len(generation.prompt):
                self._tokens[slot] = generation.prompt[generation.place]
                continue
            token = chosen[slot]
            self._tokens[slot] = token
            generation.append(token, self._plan.end_token)
            changed.append(generation)
            if generation.finish_reason is not None:
                ended.append(slot)
        self._leave(ended)
        return changed

    def _fill(self) -> list[Generation]:
        """Take a chunk of the prompt that has waited for the longest. All but its last token are taken so."""
        if not self._filling:
            return []
        slot, generation = self._filling.popleft()
        if generation.is_cancelled:
            self._free.append(slot)
            return []
        end = min(generation.place + CHUNK, len(generation.prompt) - 1)
        chunk = np.zeros((1, CHUNK), "int32")
        chunk[0, : end - generation.place] = generation.prompt[generation.place : end]
        assert generation.states is not None
        try:
            generation.states = self._programs.prefill(chunk, end - generation.place, generation.states)
            generation.place = end
            if end < len(generation.prompt) - 1:
                self._filling.append((slot, generation))
                return []
            self._programs.place(slot, generation.states)
        except Exception as error:
            generation.error, generation.states = error, None
            self._free.append(slot)
            return [generation]
        generation.states = None
        self._start(slot, generation)
        return []

    def _refresh_idle(self) -> None:
        """Set the states of idle slots to zeros before they have taken more steps than a sequence may take."""
        for slot in range(self._plan.slots):
            if slot not in self._stepping and self._age[slot] >= self._plan.max_length - 1:
                self._programs.clear(slot)
                self._age[slot] = 0
                self._tokens[slot] = 0
            self._age[slot] += 1

    def _leave(self, slots: list[int]) -> None:
        for slot in slots:
            del self._stepping[slot]
            self._free.append(slot)

    def _chosen(self, best: Array, logits: Array) -> list[int]:
        """Return the next token of each slot."""
        chosen: list[int] = np.asarray(best).tolist()
        drawn = {
            slot: generation
            for slot, generation in self._stepping.items()
            if generation.units is not None and generation.place >= len(generation.prompt) - 1
        }
        if not drawn:
            return chosen
        for slot, generation in drawn.items():
            self._units[slot] = generation.units[len(generation.generated)]
        few = {slot for slot, generation in drawn.items() if generation.top_k or generation.top_p < 1}
        if len(few) < len(drawn):
            found = self._programs.draw(logits, self._units, self._temperatures).tolist()
            for slot in drawn.keys() - few:
                chosen[slot] = found[slot]
        if few:
            found = self._programs.draw_of_few(
                logits, self._units, self._temperatures, self._top_k, self._top_p
            ).tolist()
            for slot in few:
                chosen[slot] = found[slot]
        return chosen
