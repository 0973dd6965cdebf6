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
from anabranch.engine.machine.part_program import PartProgram
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


def tags(logs: Path) -> list[str]:
    return [value.tag for event in events(logs) for value in event.summary.value]


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


def test_plain_python_flushes_writes_and_closes_in_the_task(running: Running, graph: ab.Graph, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with ab.device(PS):
        writer = summary.create_file_writer(logs)
    with writer.as_default(step=1):
        written = summary.scalar("in a step", ops.constant(2.0))
    with ab.Session(graph, target=running[WORKER].target) as session:
        session.run(written)
        writer.flush()
        assert tags(logs) == ["in a step"]
        with ab.Graph().as_default(), writer.as_default(step=1):
            summary.scalar("in another graph", 0.0)  # which nobody runs
        writer.close()
        with pytest.raises(RuntimeError, match="is closed: make another one"):
            session.run(written)
    assert len(list(logs.iterdir())) == 1, "this process has written nothing"


def test_summaries_outside_of_graphs_go_to_the_task_of_the_writer(running: Running, tmp_path: Path) -> None:
    logs, graph = tmp_path / "logs", ab.Graph()
    with graph.as_default(), ab.device(PS):
        writer = summary.create_file_writer(logs)
        flushed = summary.flush(writer)
    with ab.Session(graph, target=running[WORKER].target) as session:
        assert flushed is not None
        session.run(flushed)
    with writer.as_default():
        for step in range(2):
            summary.scalar("scalar", 0.5 + step, step)
            summary.histogram("histogram", np.ones(5), step)
            summary.text("text", ["a", "b"], step)
    summary.flush(writer)
    assert tags(logs) == ["scalar", "histogram", "text"] * 2
    (file,) = logs.iterdir()
    assert f".{running[PS].pid}." in file.name


def test_tensors_stay_where_they_are(graph: ab.Graph, tmp_path: Path) -> None:
    found, _ = built(tmp_path / "logs", 1_000_000)
    devices = [Device(DeviceName.parse(f"{task}/device:CPU:0"), bandwidth=2e9, latency=2e-5) for task in (PS, WORKER)]
    assign = assigning(WORKER, None, lambda placed: None)
    program = PartProgram(graph, [found.operation], [], [], task=WORKER, devices=devices, exact=False, assign=assign)
    received = [line for line in program.text().splitlines() if "= recv() @ /job:worker" in line]
    assert len(received) >= 4, "numbers, limits and counts of the buckets, and the mean"
    assert not any("1000000" in line for line in received)
