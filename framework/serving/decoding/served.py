"""`ServedDecoder`: a loaded decoder, the thread that takes its steps, and the sequences that are under way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import WeakSet

from ....distribute.inference import RequestError
from ....distribute.inference.large import PIECE
from ....distribute.inference.time_limit import due
from ..batching import Batching
from ..metrics import Metrics
from ..statistics import Statistics
from ..times.step_watch import StepWatch
from .decoder import Decoder
from .generation import Generation
from .slots import Slots

_log = logging.getLogger("anabranch.serving")
_SOON = 0.01  # seconds


class ServedDecoder:
    """A loaded decoder. All but `_work` is on the event loop.

    Args:
        name: under which it is served.
        decoder: the decoder.
        metrics: of the server.
        settings: of which `max_queue_size` counts.
        patience: after how many seconds a step counts as one that does not end; None for never.

    Attributes:
        watch: keeps the time of steps, and of what precedes the first of a sequence.
    """

    def __init__(
        self, name: str, decoder: Decoder, metrics: Metrics, settings: Batching, patience: float | None = None
    ) -> None:
        self.name, self.decoder = name, decoder
        self.version = str(decoder.version)
        self._metrics, self._settings = metrics, settings
        self.watch = StepWatch(patience)
        self._counts = metrics.of_decoder(name, decoder.slots)
        self.statistics = Statistics()
        self._thread = ThreadPoolExecutor(1, f"serving-{name}")
        self._reading = ThreadPoolExecutor(1, f"serving-reading-{name}")  # a tokenizer is called by one at a time
        self._lock = threading.Lock()  # of the next three
        self._open: set[Generation] = set()  # that have been asked for, and are not over
        self._waiting: deque[Generation] = deque()
        self._is_running = False
        self._made = WeakSet[Generation]()  # by requests that begin to wait for tokens, or fail, in a moment
        self._under_way = 0
        self._drained: asyncio.Future[None] | None = None

    async def make_generation(
        self, prompt: Any, inputs: Mapping[str, object], settings: Mapping[str, object]
    ) -> Generation:
        """Make a generation of what a request says. Texts and long prompts are read in another thread.

        Raises:
            RequestError: it has no meaning.
        """
        make = partial(self.decoder.make_generation, prompt, inputs, **settings)
        if isinstance(prompt, str) or len(prompt) >= PIECE:
            made = await asyncio.get_running_loop().run_in_executor(self._reading, make)
        else:
            made = make()
        self._made.add(made)
        return made

    async def tokens(self, generation: Generation) -> AsyncGenerator[int]:
        """Generate a sequence: the tokens, each as soon as it is there. Who closes this gives the slot free.

        Raises:
            RequestError: too many sequences wait, or the decoder fails.
        """
        self._made.discard(generation)  # even if it is refused: its error may keep it alive
        with self._metrics.request(self.name, 1, self.statistics):
            self._check_queue()
            loop, news = asyncio.get_running_loop(), asyncio.Event()

            def note(changed: Generation) -> None:
                loop.call_soon_threadsafe(news.set)

            generation.on_tokens = note
            self._under_way += 1
            self._begin(generation)
            given = 0
            try:
                while True:
                    await news.wait()
                    news.clear()
                    is_done = generation.is_done
                    for token in generation.generated[given:]:
                        given += 1
                        self._counts.tokens.inc()
                        yield token
                    if is_done:
                        break
                if generation.error is not None:
                    raise self._failure(generation.error)
            except asyncio.CancelledError:
                self.watch.note_unanswered(due.get())
                raise
            finally:
                generation.is_cancelled = True
                with self._lock:
                    self._open.discard(generation)
                    if generation in self._waiting:
                        self._waiting.remove(generation)  # its place is another's
                self._under_way -= 1
                if self._drained is not None and not self._under_way and not self._drained.done():
                    self._drained.set_result(None)

    def _check_queue(self) -> None:
        with self._lock:
            count = len(self._waiting)
        if count >= self._settings.max_queue_size:
            raise RequestError(
                429,
                f"Decoder {self.name!r} is busy: {count} sequences wait for it, and its limit (max_queue_size) is "
                f"{self._settings.max_queue_size}. Ask again later.",
            )

    def _begin(self, generation: Generation) -> None:
        with self._lock:
            self._open.add(generation)
            self._waiting.append(generation)
            if self._is_running:
                return
            self._is_running = True
        self._thread.submit(self._work)

    def _failure(self, error: BaseException) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, (ValueError, TypeError, IndexError, ArithmeticError)):
            return RequestError(400, f"The decoder can't compute this: {error}")
        _log.error("decoder %r failed", self.name, exc_info=error)
        return RequestError(500, f"Decoder {self.name!r} failed: {type(error).__name__}: {error}")

    def configure(self, settings: Batching) -> None:
        """Let another number of sequences wait from now on."""
        self._settings = settings

    async def end(self, is_replaced: bool = False) -> None:
        """Wait for the sequences under way, and end the thread."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._reading.shutdown)
        while self._under_way or self._made:
            self._drained = loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained, None if self._under_way else _SOON)
        self._thread.shutdown()

    # --- in the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take steps until no sequence is left. What goes wrong outside of a step ends all sequences with its error."""
        try:
            self._take_steps()
        except Exception as error:
            with self._lock:
                self._is_running = False
                self.watch.end()
                self._waiting.clear()
                under_way = list(self._open)
            self._counts.busy.set(0)
            for generation in under_way:
                if not generation.is_done:
                    generation.error = error
                assert generation.on_tokens is not None
                generation.on_tokens(generation)

    def _take_steps(self) -> None:
        slots = Slots(self.decoder.programs, self.decoder.plan)
        while True:
            failed = self._admit(slots)
            if failed is None:
                self._counts.busy.set(0)
                return
            self._counts.busy.set(slots.busy)
            self.watch.begin()
            for generation in (*failed, *slots.iterate()):
                assert generation.on_tokens is not None
                generation.on_tokens(generation)

    def _admit(self, slots: Slots) -> Sequence[Generation] | None:
        """Give slots to those that wait; those for which that failed, or None if nothing is left to do."""
        failed: list[Generation] = []
        while slots.free:
            with self._lock:
                generation = self._waiting.popleft() if self._waiting else None
                if generation is None and not slots.busy and not failed:
                    self._is_running = False
                    self.watch.end()
                    return None
            if generation is None:
                break
            if generation.is_cancelled:
                continue
            self.watch.begin()
            slots.admit(generation)
            if generation.error is not None:
                failed.append(generation)
        return failed
