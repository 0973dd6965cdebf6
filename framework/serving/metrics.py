"""Metrics of a server, in the text form that Prometheus reads."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ...distribute.inference import RequestError
from .statistics import Statistics

if TYPE_CHECKING:
    from typing import TypedDict

    class _Shown(TypedDict):
        """A histogram: counts up to each bound, and the sum."""

        buckets: Sequence[tuple[str, int]]
        sum_value: float


CONTENT_TYPE = CONTENT_TYPE_LATEST
LOADED_BYTES = "anabranch_loaded_bytes"
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class _Tally:
    """Counts numbers by ranges, and adds them up.

    Metrics of the event loop are numbers of Python's that `_Collector` shows: prometheus_client's take locks, which
    takes longer than a small model.

    Args:
        bounds: the upper ends of the ranges but for the last, which has none.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a number."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def shown(self) -> _Shown:
        """Return the counts and the sum as a histogram has them."""
        names = [*map(floatToGoString, self.bounds), "+Inf"]
        return {"buckets": list(zip(names, accumulate(self.counts), strict=True)), "sum_value": self.total}


class ModelMetrics:
    """Counts the requests and the batches of a model."""

    def __init__(self) -> None:
        self.under_way = 0
        self.rows = 0
        self.answered: dict[str, int] = defaultdict(int)  # by status
        self.seconds = _Tally(_SECONDS)
        self.batch_rows, self.queue, self.compute = _Tally(_ROWS), _Tally(_SECONDS), _Tally(_SECONDS)

    def batch(self, rows: int, queue_seconds: Sequence[float], compute_seconds: float) -> None:
        """Count a batch."""
        self.batch_rows.add(rows)
        for seconds in queue_seconds:
            self.queue.add(seconds)
        self.compute.add(compute_seconds)


class _Request:
    """Counts a request, which the block computes."""

    __slots__ = ("_began", "_counts", "_rows", "_statistics")

    def __init__(self, counts: ModelMetrics, rows: int, statistics: Statistics) -> None:
        self._counts, self._rows, self._statistics = counts, rows, statistics

    def __enter__(self) -> None:
        self._counts.under_way += 1
        self._began = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        counts = self._counts
        counts.under_way -= 1
        seconds = time.perf_counter() - self._began
        counts.seconds.add(seconds)
        self._statistics.answered(error is not None, seconds)
        if error is None:
            counts.rows += self._rows
        counts.answered["200" if error is None else _status_of(error)] += 1


def _status_of(error: BaseException) -> str:
    if isinstance(error, RequestError):
        return str(error.status)
    if isinstance(error, asyncio.CancelledError):  # its time is up, or its client has gone
        return "504"
    return "500" if isinstance(error, Exception) else "200"  # whose client has left a stream


class _Collector(Collector):
    """Shows Prometheus the metrics of models.

    Args:
        models: by name.
    """

    def __init__(self, models: Mapping[str, ModelMetrics]) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        """Return all metrics as they are now."""
        models = list(self._models.items())
        requests = CounterMetricFamily("anabranch_requests", "Requests for predictions.", labels=["model", "status"])
        under_way = GaugeMetricFamily(
            "anabranch_requests_under_way", "Requests that wait or compute.", labels=["model"]
        )
        rows = CounterMetricFamily("anabranch_rows", "Rows that were computed.", labels=["model"])
        for name, counts in models:
            for status, count in counts.answered.items():
                requests.add_metric([name, status], count)
            under_way.add_metric([name], counts.under_way)
            rows.add_metric([name], counts.rows)
        yield from (requests, under_way, rows)
        for name, text, tally_of in _TALLIES:
            family = HistogramMetricFamily(name, text, labels=["model"])
            for model, counts in models:
                family.add_metric([model], **tally_of(counts).shown())
            yield family


_TALLIES: tuple[tuple[str, str, Callable[[ModelMetrics], _Tally]], ...] = (
    ("anabranch_request_seconds", "Time from a request's arrays to its outputs, with waiting.", attrgetter("seconds")),
    ("anabranch_batch_rows", "Rows of requests that were computed together.", attrgetter("batch_rows")),
    ("anabranch_queue_seconds", "Time for which requests waited for the model.", attrgetter("queue")),
    ("anabranch_compute_seconds", "Time in which batches were computed.", attrgetter("compute")),
)


class DecoderMetrics(NamedTuple):
    """Counts the tokens of a decoder, and the slots that are in use."""

    tokens: Counter
    busy: Gauge


class Metrics:
    """Requests for predictions, by model: how many, which failed, how long they took, and which are under way."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._models: dict[str, ModelMetrics] = {}
        self._registry.register(_Collector(self._models))

        processes = Gauge("anabranch_processes", "Processes of the server that answer.", registry=self._registry)
        processes.set(1)
        self._loaded = Gauge(
            LOADED_BYTES, "Bytes of the files of what is loaded.", ["model", "version"], registry=self._registry
        )
        self._tokens = Counter("anabranch_tokens", "Tokens generated.", ["model"], registry=self._registry)
        self._slots = Gauge("anabranch_slots", "Most sequences at once.", ["model"], registry=self._registry)
        self._busy = Gauge("anabranch_slots_busy", "Sequences under way.", ["model"], registry=self._registry)

    def note_loaded(self, model: str, version: int, count: int | None) -> None:
        """Note how many bytes a version takes that is loaded now; None where it has gone."""
        if count is None:
            self._loaded.remove(model, str(version))
        else:
            self._loaded.labels(model, str(version)).set(count)

    def of_decoder(self, model: str, slots: int) -> DecoderMetrics:
        """Return what counts the tokens of one decoder."""
        self._slots.labels(model).set(slots)
        return DecoderMetrics(self._tokens.labels(model), self._busy.labels(model))

    def of_model(self, model: str) -> ModelMetrics:
        """Return the metrics of one model's requests and batches."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics()
        return found

    def request(self, model: str, rows: int, statistics: Statistics) -> AbstractContextManager[None]:
        """Count a request of so many rows, which the block computes, here and in the statistics of its version."""
        return _Request(self.of_model(model), rows, statistics)

    def text(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
