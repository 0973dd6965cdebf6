"""`python -m anabranch status`: what tasks do, as text, JSON and Prometheus metrics."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, TOKEN, WORKER, Running

import anabranch as ab
from anabranch.__main__ import main
from anabranch.distribute.commands.status import as_prometheus, as_text, read
from anabranch.distribute.ports import ReservedPorts
from anabranch.engine.queues.replica_steps import ReplicaSteps

pytestmark = pytest.mark.xdist_group("tasks")
AT_REST = ("idle", "turning")  # the latter for a moment after each message, such as that by which it is asked


@pytest.fixture(scope="module")
def trained(running: Running) -> Any:
    """A worker has put a gradient that counts and one that does not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ANABRANCH_TOKEN", TOKEN)
        with ab.Graph().as_default() as graph, ab.device(PS):
            steps = ReplicaSteps(1, False, name="steps")
            epoch, number = ab.placeholder((), "int64"), ab.placeholder((), "int64")
            joined, begun = steps.join(3, 1, WORKER), steps.begin_epoch(0, 2, 1, np.zeros(0, "int64"))
            taken, committed = steps.take(3, 1, epoch), steps.commit(3, 1, number, 4)
        with ab.Session(graph, target=running[WORKER].target) as session:
            session.run(joined)
            ticket = session.run(taken, {epoch: session.run(begun)})
            assert int(session.run(committed, {number: ticket[0]})) == 0
            assert int(session.run(committed, {number: ticket[0]})) != 0, "it was put before"
            session.close()
    return [running[name].target for name in (PS, WORKER)]


def test_what_tasks_do(trained: list[str], capsys: Any) -> None:
    assert main(["status", *trained, "--format", "json", "--interval", "0"]) == 0
    ps, worker = json.loads(capsys.readouterr().out)
    assert (ps["task"], ps["role"]) == (PS, "ps")
    assert ps["state"] in AT_REST
    assert (worker["task"], worker["role"]) == (WORKER, "chief")
    assert worker["held"]["steps"] >= 3
    (training,) = ps["training"]
    assert (training["name"], training["dropped"]) == ("steps", {"3": 1})
    assert training["receipts"]["3"]["taken"] == 1
    assert worker["training"] == []


def test_as_a_table(trained: list[str], capsys: Any) -> None:
    cluster = json.dumps({"ps": [trained[0].removeprefix("grpc://")], "worker": [trained[1].removeprefix("grpc://")]})
    assert main(["status", "--cluster", cluster, "--interval", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "role", "state", "steps/s", "steps", "sessions", "doing"]
    assert lines[1].split()[:2] == [PS, "ps"]
    assert lines[1].split()[2] in AT_REST
    assert lines[2].split()[:2] == [WORKER, "chief"]
    assert any("dropped gradients: worker 3: 1" in line for line in lines[3:])


def test_prometheus_gets_every_digit_of_a_count() -> None:
    """Six were written: the rate of a large count was that of its rounding."""
    held = {"steps": 12_345_678_901, "running": 0}
    reading = {"target": "grpc://localhost:1", "held": held, "sessions": 0, "connections": [], "training": []}
    line = 'anabranch_task_steps_total{task="grpc://localhost:1"} 12345678901'
    assert line in as_prometheus([reading]).splitlines()


def test_as_prometheus_metrics(trained: list[str]) -> None:
    text = as_prometheus(read(trained, 0.0))
    assert f'anabranch_task_up{{task="{PS}"}} 1' in text
    assert 'receipt="taken"} 1' in text
    sample = re.compile(r'[a-z_]+\{([a-z]+="(\\.|[^"\\])*",?)*\} [0-9.e+-]+')
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line.split()[2] not in typed, "each metric has one block"
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            assert sample.fullmatch(line), line
            assert line.partition("{")[0] in typed


def test_tasks_that_do_not_answer(capsys: Any) -> None:
    readings = [{"target": "grpc://localhost:1", "error": "nobody is there"}]
    assert as_text(readings) == "grpc://localhost:1 does not answer: nobody is there"
    assert as_prometheus(readings).splitlines()[-1] == 'anabranch_task_up{task="grpc://localhost:1"} 0'
    assert main(["status"]) == 2
    assert "name a task, such as grpc://localhost:2203" in capsys.readouterr().err


def test_tasks_that_do_not_answer_are_waited_for_once_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was waited for twice, 30 s each time, one after the other."""
    together = threading.Barrier(3)
    looks: list[tuple[str, float | None]] = []

    def look(target: str, timeout: float | None = None) -> Any:
        looks.append((target, timeout))
        together.wait(PATIENCE)
        raise ConnectionError(f"{target} is gone")

    monkeypatch.setattr("anabranch.distribute.commands.status.status", look)
    targets = [f"grpc://localhost:{number}" for number in range(3)]
    readings = read(targets, 1.0, lambda seconds: pytest.fail("there is nothing to compare with"), timeout=0.5)
    assert [each["error"] for each in readings] == [f"{target} is gone" for target in targets]
    assert sorted(looks) == [(target, 0.5) for target in targets]


def test_the_time_to_wait_is_an_option(capsys: Any) -> None:
    with ReservedPorts("localhost", 1) as ports:
        target = f"grpc://localhost:{ports.numbers[0]}"
        assert main(["status", target, "--timeout", "0"]) == 1
        assert f"{target} does not answer" in (shown := capsys.readouterr().out)
        assert "within 0 s" in shown
        with pytest.raises(ab.errors.TaskFailedError, match="within 0 s"):
            ab.distribute.status(target, timeout=0.0)


def test_the_ways_between_tasks_are_measured_once(running: Running):
    with ab.Graph().as_default() as graph, ab.Session(graph, target=running[WORKER].target) as session:
        x = ab.placeholder((3,), "float32", "x")
        with ab.device(PS):
            y = x * 2.0
        assert session.run(y, {x: [1.0, 2.0, 3.0]}).tolist() == [2, 4, 6]
        before = [ways_of(running, name) for name in (WORKER, PS)]
        assert [[task for task, _, _ in found] for found in before] == [[PS], [WORKER]]
        assert all(1e-7 < latency < 1 and 1e5 < speed < 1e12 for found in before for _, latency, speed in found)
        session.run(y + 1.0, {x: [1.0, 2.0, 3.0]})
        assert [ways_of(running, name) for name in (WORKER, PS)] == before


def ways_of(running: Running, name: str) -> list[tuple[str, Any, Any]]:
    """The tasks to which one sends, with what was measured of the ways there."""
    connections = ab.distribute.status(running[name].target).connections
    return [(each.task, each.latency, each.bandwidth) for each in connections if each.connected_by == "this task"]
