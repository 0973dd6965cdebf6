"""Counts of requests and batches, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from anabranch.distribute.inference import RequestError
from anabranch.framework.serving.metrics import Metrics
from anabranch.framework.serving.statistics import Statistics


def samples(metrics: Metrics) -> dict[Any, float]:
    """All samples, by name and labels."""
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for each in family.samples
    }


def test_histograms_are_those_of_prometheus() -> None:
    metrics, registry = Metrics(), CollectorRegistry()
    bounds = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
    expected = Histogram("anabranch_batch_rows", "", ["model"], buckets=bounds, registry=registry)
    rows = [0, 1, 2, 3, 4096, 4097, 10**6, *np.random.default_rng(0).integers(0, 6000, 200).tolist()]
    for count in rows:
        metrics.of_model("m").batch(count, [0.1, 0.2], 0.3)
        expected.labels("m").observe(count)
    found = samples(metrics)
    wanted = {
        (each.name, *sorted(each.labels.items())): each.value
        for family in registry.collect()
        for each in family.samples
        if not each.name.endswith("_created")
    }
    assert len(wanted) == len(bounds) + 3
    assert {name: found.get(name) for name in wanted} == wanted
    assert found[("anabranch_queue_seconds_count", ("model", "m"))] == 2 * len(rows)
    assert found[("anabranch_compute_seconds_sum", ("model", "m"))] == pytest.approx(0.3 * len(rows))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "200"),
        (RequestError(429, "full"), "429"),
        (asyncio.CancelledError(), "504"),
        (ValueError("unforeseen"), "500"),
        (GeneratorExit(), "200"),  # a client that leaves a stream
    ],
)
def test_requests_count_by_their_status(error: BaseException | None, status: str) -> None:
    metrics, statistics = Metrics(), Statistics()
    under_way = ("anabranch_requests_under_way", ("model", "m"))
    raises = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with raises, metrics.request("m", 3, statistics):
        assert samples(metrics)[under_way] == 1
        if error is not None:
            raise error
    found = samples(metrics)
    assert found[under_way] == 0
    assert found[("anabranch_rows_total", ("model", "m"))] == (3 if error is None else 0)
    assert found[("anabranch_request_seconds_count", ("model", "m"))] == 1
    statuses = {name[2][1]: value for name, value in found.items() if name[0] == "anabranch_requests_total"}
    assert statuses == {status: 1}
    times = statistics.to_json("m", "1")["inference_stats"]
    assert (times["success"]["count"], times["fail"]["count"]) == ((1, 0) if error is None else (0, 1))
