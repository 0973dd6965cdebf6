"""Summaries of graphs that span tasks: the task of the writer writes, and gets buckets, not tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.event_files import events
from shared.tasks import PS, WORKER, Running

import anabranch as ab
from anabranch import ops, summary
from anabranch.distribute.tasks.preparing import assigning
from anabranch.engine.machine.part import PartProgram
from anabranch.engine.place.devices import Device, DeviceName

pytestmark = pytest.mark.xdist_group("tasks")


def built(logs: Path, size: int) -> tuple[Any, Any]:
    """A loop on the ps task whose body writes to a file of the worker."""
    with ab.device(WORKER):
        writer = summary.create_file_writer(logs)

    def body(i: Any, h: Any) -> Any:
        h = ops.tanh(h) + 1.0
        summary.histogram("h", h, i)
        summary.scalar("mean", ops.mean(h), i)
        return i + 1, h

    with writer.as_default(), ab.device(PS):
        x = ops.ones((size,))
        _, found = ab.while_loop(lambda i, h: i < 3, body, (0, x))
        flushed = summary.flush()
    return found, flushed


def test_the_task_of_the_writer_writes(running: Running, graph: ab.Graph, tmp_path: Path) -> None:
    found, flushed = built(tmp_path / "logs", 1000)
    with ab.Session(graph, target=running[WORKER].target) as session:
        value = session.run(found)
        assert flushed is not None
        session.run(flushed)
        written = [
            (event.step, value.tag, value) for event in events(tmp_path / "logs") for value in event.summary.value
        ]
        session.close()
    assert [(step, tag) for step, tag, _ in written] == [(i, tag) for i in range(3) for tag in ("h", "mean")]
    np.testing.assert_allclose(written[-1][2].simple_value, value.mean(), 3e-5)  # a float32 sum, one by one
    assert written[-2][2].histo.num == 1000
    (file,) = (tmp_path / "logs").iterdir()
    assert f".{running[WORKER].pid}." in file.name, "the worker's process has made the file"


def test_tensors_stay_where_they_are(graph: ab.Graph, tmp_path: Path) -> None:
    found, _ = built(tmp_path / "logs", 1_000_000)
    devices = [Device(DeviceName.parse(f"{task}/device:CPU:0"), bandwidth=2e9, latency=2e-5) for task in (PS, WORKER)]
    assign = assigning(WORKER, None, lambda placed: None)
    program = PartProgram(graph, [found.operation], [], [], task=WORKER, devices=devices, exact=False, assign=assign)
    received = [line for line in program.text().splitlines() if "= recv() @ /job:worker" in line]
    assert len(received) >= 4, "numbers, limits and counts of the buckets, and the mean"
    assert not any("1000000" in line for line in received)
