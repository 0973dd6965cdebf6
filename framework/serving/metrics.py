"""Metrics of a server, in the text form that Prometheus reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ...distribute.inference import RequestError

CONTENT_TYPE = CONTENT_TYPE_LATEST
LOADED_BYTES = "anabranch_loaded_bytes"
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ModelMetrics:
    """Counts the batches of a model."""

    def __init__(self, rows: Histogram, queue_seconds: Histogram, compute_seconds: Histogram) -> None:
        self._rows, self._queue_seconds, self._compute_seconds = rows, queue_seconds, compute_seconds

    def batch(self, rows: int, queue_seconds: Sequence[float], compute_seconds: float) -> None:
        """Count a batch."""
        self._rows.observe(rows)
        for seconds in queue_seconds:
            self._queue_seconds.observe(seconds)
        self._compute_seconds.observe(compute_seconds)


class DecoderMetrics(NamedTuple):
    """Counts the tokens of a decoder, and the slots that are in use."""

    tokens: Counter
    busy: Gauge


class _Counts(NamedTuple):
    """Holds the counters of one model's requests, since finding them by labels takes as long as counting."""

    under_way: Gauge
    rows: Counter
    seconds: Histogram
    answered: Counter


class Metrics:
    """Requests for predictions, by model: how many, which failed, how long they took, and which are under way."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counts: dict[str, _Counts] = {}
        self._requests = Counter(
            "anabranch_requests", "Requests for predictions.", ["model", "status"], registry=self._registry
        )
        self._under_way = Gauge(
            "anabranch_requests_under_way", "Requests that wait or compute.", ["model"], registry=self._registry
        )
        self._rows = Counter("anabranch_rows", "Rows that were computed.", ["model"], registry=self._registry)
        self._seconds = Histogram(
            "anabranch_request_seconds",
            "Time from a request's arrays to its outputs, with waiting.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_rows = Histogram(
            "anabranch_batch_rows",
            "Rows of requests that were computed together.",
            ["model"],
            buckets=_ROWS,
            registry=self._registry,
        )
        self._queue_seconds = Histogram(
            "anabranch_queue_seconds",
            "Time for which requests waited for the model.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._compute_seconds = Histogram(
            "anabranch_compute_seconds",
            "Time in which batches were computed.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )

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
        """Give what counts the tokens of one decoder."""
        self._slots.labels(model).set(slots)
        return DecoderMetrics(self._tokens.labels(model), self._busy.labels(model))

    def of_model(self, model: str) -> ModelMetrics:
        """Return the metrics of one model's batches."""
        return ModelMetrics(*[each.labels(model) for each in self._of_batches()])

    def _of_batches(self) -> tuple[Histogram, Histogram, Histogram]:
        return self._batch_rows, self._queue_seconds, self._compute_seconds

    @contextmanager
    def request(self, model: str, rows: int) -> Generator[None]:
        """Count a request of so many rows, which the block computes."""
        counts = self._counts.get(model)
        if counts is None:
            counts = self._counts[model] = _Counts(
                self._under_way.labels(model),
                self._rows.labels(model),
                self._seconds.labels(model),
                self._requests.labels(model, "200"),
            )
        began, status = time.perf_counter(), ""
        counts.under_way.inc()
        try:
            yield
            counts.rows.inc(rows)
        except RequestError as error:
            status = str(error.status)
            raise
        except asyncio.CancelledError:  # its time is up, or its client has gone
            status = "504"
            raise
        finally:
            counts.under_way.dec()
            (self._requests.labels(model, status) if status else counts.answered).inc()
            counts.seconds.observe(time.perf_counter() - began)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)
