"""`ServedModel`: a loaded version of a model, and the thread that computes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ...distribute.inference import RequestError
from ...distribute.inference.large import LARGE
from ...distribute.inference.time_limit import due
from .batching import Batcher, Batching
from .configuration import MAX_ROWS
from .metrics import Metrics
from .sequences import Sequences, Step
from .servable import Servable
from .signature import DEFAULT
from .statistics import Statistics
from .times.step_watch import StepWatch

if TYPE_CHECKING:
    from ..structures import Array

T = TypeVar("T")

_log = logging.getLogger("anabranch.serving")


class ServedModel:
    """A loaded model and the thread that computes it, requests that wait together where `settings` and model allow.

    Args:
        name: under which it is served.
        servable: the model.
        metrics: of the server.
        settings: how requests are joined.
        max_rows: how many rows a request may have.
        patience: after how many seconds a batch counts as one that does not end; None for never.

    Attributes:
        watch: keeps the time of what the thread computes.
    """

    def __init__(
        self,
        name: str,
        servable: Servable,
        metrics: Metrics,
        settings: Batching,
        max_rows: int = MAX_ROWS,
        patience: float | None = None,
    ) -> None:
        self._max_rows = max_rows
        self.watch = StepWatch(patience)
        self._metrics = metrics
        self._settings = settings
        self.name = name
        self.servable = servable
        self.version = str(servable.version)
        self._thread = ThreadPoolExecutor(1, f"serving-{name}")
        self._reading = ThreadPoolExecutor(1, f"serving-reading-{name}")  # one at a time: they take memory
        self._takes_images = any(each.takes_images for each in servable.signatures.values())
        self.statistics = Statistics(metrics.of_model(name))
        first = servable.first_states(1) if DEFAULT in servable.signatures else []
        limits = settings.max_sequences, settings.sequence_idle_seconds
        self.sequences = Sequences(name, first, *limits) if first else None
        self._batcher = Batcher(servable, settings, self._thread, self.statistics, self.watch)

    async def prepare(self, read: Callable[[], T], size: int) -> T:
        """Return what `read` gives, of a request of `size` bytes to be read.

        Large ones, and those of models that take images, are read in another thread, beside other requests. The model
        stays until they have been computed.
        """
        if size < LARGE and not self._takes_images:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._reading, read)

    def run(
        self, arrays: Sequence[Array], signature: str = "", step: Step | None = None
    ) -> Coroutine[object, None, list[Array]]:
        """Return what gives the outputs, in order, for arrays that fit the inputs.

        Args:
            arrays: the inputs.
            signature: the name of a signature.
            step: the place of the request in its sequence, which a model with stateful layers needs.

        Raises:
            RequestError: the model can't compute them, or too many requests wait for it.
        """
        if self.sequences is None:
            return self._run(arrays, signature)
        if step is None:
            raise RequestError(
                400,
                f"Model {self.name!r} has stateful layers: send the parameters 'sequence_id' (not 0), and "
                "'sequence_start': true with the first request of a sequence, by the Open Inference Protocol.",
            )
        if arrays and len(arrays[0]) != 1:
            raise RequestError(400, f"A request of a sequence has one row; got {len(arrays[0])}.")
        return self.sequences.run(step, lambda states: self._run([*arrays, *states], signature))

    async def _run(self, arrays: Sequence[Array], signature: str) -> list[Array]:
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 1
        with self._metrics.request(self.name, rows, self.statistics):
            self.servable.check_rows(arrays, signature)
            self.check_size(rows)
            self._check_queue()
            try:
                return await self._batcher.submit(arrays, signature)
            except RequestError:
                raise
            except asyncio.CancelledError:
                self.watch.note_unanswered(due.get())
                raise
            except Exception as error:
                _log.error("model %r failed", self.name, exc_info=error)
                raise RequestError(500, f"Model {self.name!r} failed: {type(error).__name__}: {error}") from error

    def check_size(self, rows: int) -> None:
        """Raise a `RequestError` where a request has more rows than are taken."""
        if rows > self._max_rows:
            raise RequestError(
                413, f"The request has {rows:,} rows; at most {self._max_rows:,} are taken (max_rows). Send several."
            )

    def _check_queue(self) -> None:
        if self._batcher.is_busy and self._batcher.is_full(self._settings.max_queue_size):
            raise RequestError(
                429,
                f"Model {self.name!r} is busy: {self._settings.max_queue_size} requests wait for it, which is its "
                "limit (max_queue_size). Ask again later.",
            )

    def configure(self, settings: Batching) -> None:
        """Join requests in another way from now on."""
        self._settings = settings
        if self.sequences is not None:
            self.sequences.most, self.sequences.idle_seconds = settings.max_sequences, settings.sequence_idle_seconds
        self._batcher.configure(settings)

    async def end(self, is_replaced: bool = False) -> None:
        """Wait for the requests under way, and end the thread; where another version takes over, for sequences, too."""
        if self.sequences is not None:
            if is_replaced:
                await self.sequences.ended()
            self.sequences.forget()
        # Requests that are being read come to the batcher then, before this goes on.
        await asyncio.get_running_loop().run_in_executor(None, self._reading.shutdown)
        await self._batcher.drained()
        self._thread.shutdown()
