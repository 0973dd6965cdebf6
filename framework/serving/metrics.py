"""What a server counts, in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ...distribute.inference import RequestError

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Requests for predictions, by model: how many, which failed, how long they took, and which are under way."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
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

    @contextmanager
    def request(self, model: str, rows: int) -> Generator[None]:
        """Count a request of so many rows, which the block computes."""
        began, status = time.perf_counter(), "200"
        with self._under_way.labels(model).track_inprogress():
            try:
                yield
                self._rows.labels(model).inc(rows)
            except RequestError as error:
                status = str(error.status)
                raise
            finally:
                self._requests.labels(model, status).inc()
                self._seconds.labels(model).observe(time.perf_counter() - began)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)
