"""``serve --workers N``: processes that share ports and weights, and answer as one server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from shared.examples import examples
from shared.serving_clients import Reply, ask, call
from shared.waiting import until

import anabranch as ab
from anabranch.framework.serving.workers.member import Member, write_message
from anabranch.framework.serving.workers.merging import merged_metrics, merged_statistics
from anabranch.framework.serving.workers.supervisor import Supervisor

for _name in ("uvicorn", "httptools", "orjson", "uvloop"):
    pytest.importorskip(_name)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ROW = {"instances": [[1.0, 2.0]]}


@settings(max_examples=examples(5, 20), deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b", 'c{"} 1']), st.lists(st.floats(0, 9)), max_size=3), min_size=1)
)
def test_counts_add_up(processes: list[dict[str, list[float]]]) -> None:
    def text(seen: dict[str, list[float]]) -> str:
        registry = CollectorRegistry()
        count = Counter("seen", "All.", ["model"], registry=registry)
        level = Gauge("seen_now", "Those of now.", ["model"], registry=registry)
        sizes = Histogram("size", "How large.", ["model"], buckets=(1, 4), registry=registry)
        for model, values in seen.items():
            level.labels(model).set(len(values))
            for value in values:
                count.labels(model).inc()
                sizes.labels(model).observe(value)
        return generate_latest(registry).decode()

    def samples(text: str) -> dict[Any, float]:
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            (each.name, *sorted(each.labels.items())): each.value
            for each in found
            if not each.name.endswith("_created") and each.value
        }

    together: dict[str, list[float]] = {}
    for seen in processes:
        for model, values in seen.items():
            together.setdefault(model, []).extend(values)
    assert samples(merged_metrics(map(text, processes))) == pytest.approx(samples(text(together)))


def test_what_processes_share_does_not_add_up() -> None:
    text = '# TYPE anabranch_loaded_bytes gauge\nanabranch_loaded_bytes{model="m",version="1"} 7.0\n'
    assert merged_metrics([text, text]) == text


def test_statistics_add_up() -> None:
    def entry(count: int, sizes: tuple[int, ...]) -> dict[str, Any]:
        batches = [{"batch_size": size, "compute_infer": {"count": count, "ns": 10}} for size in sizes]
        times = {"success": {"count": count, "ns": 5}}
        return {"name": "m", "version": "1", "last_inference": count, "inference_stats": times, "batch_stats": batches}

    (found,) = merged_statistics([[entry(1, (1, 4))], [], [entry(3, (4, 8))]])
    assert found["inference_stats"] == {"success": {"count": 4, "ns": 10}}
    assert (found["last_inference"], found["version"]) == (3, "1")
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]] == [
        (1, 1),
        (4, 4),
        (8, 3),
    ]


class Running(NamedTuple):
    process: Any
    url: str
    address: str

    def workers(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(each) for each in found.split()]


def serve(*options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "anabranch",
        "serve",
        "--rest-port",
        "0",
        "--grpc-port",
        "0",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models")
    x = ab.Input((2,), name="x")
    ab.Model(x, x * 2.0).export(folder, verbose=False)
    process = serve("--model", f"m={folder}", "--workers", "2", "--manage")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"ready rest=(http://127\.0\.0\.1:\d+) grpc=(127\.0\.0\.1:\d+)\n", line)
    if not found:
        process.kill()
        raise AssertionError(f"{line!r}\n{process.communicate()}")
    yield Running(process, found[1], found[2])
    process.kill()
    process.communicate()


def is_ready(running: Running) -> bool:
    return ask(running.url, "/v2/health/ready").status == 200


def predict(running: Running) -> Reply:
    return ask(running.url, "/v1/models/m:predict", ROW)


def metric(running: Running, name: str) -> float:
    text = ask(running.url, "/metrics").body.decode()
    found = re.search(rf"^{re.escape(name)} (.*)$", text, re.M)
    return float(found[1]) if found else 0.0


def counted(running: Running) -> float:
    return metric(running, 'anabranch_requests_total{model="m",status="200"}')


@linux
def test_they_answer_as_one(running: Running) -> None:
    assert len(running.workers()) == 2
    until(lambda: is_ready(running))
    before = counted(running)
    for _ in range(20):  # each on a connection of its own
        assert predict(running).json == {"predictions": [[2.0, 4.0]]}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1.0, 2.0]}}
    for _ in range(4):
        reply = call(running.address, "ModelInfer", model_name="m", inputs=[tensor])
        assert np.frombuffer(reply.raw_output_contents[0], "float32").tolist() == [2.0, 4.0]
    assert {counted(running) for _ in range(6)} == {before + 24}
    stats = ask(running.url, "/v2/models/m/stats").json["model_stats"]
    assert [each["inference_stats"]["success"]["count"] for each in stats] == [before + 24]
    assert call(running.address, "ModelStatistics", name="m").model_stats[0].inference_count == before + 24


def test_a_port_whose_connections_have_just_been_closed_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        port = before.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = before.accept()
            connection.close()  # first, so that this side waits
            assert client.recv(1) == b""
    supervisor = Supervisor([], 1, "127.0.0.1", 0, port, False)
    supervisor.close()


def test_a_question_waits_until_the_process_has_joined() -> None:
    """Requests come as soon as a process listens, and others may listen for it."""

    async def run() -> list[object]:
        ours, theirs = socket.socketpair()
        with socket.socket() as rest:
            member = Member(rest, theirs, 0)
            asking = asyncio.create_task(member.ask("metrics"))
            await asyncio.sleep(0)  # it has begun
            await member.join({}, lambda: (True, []), lambda: None)
            reader, writer = await asyncio.open_connection(sock=ours)
            while "ask" not in (message := json.loads(await reader.readline())):
                pass
            write_message(writer, {"answer": message["ask"], "results": [{"value": "text"}]})
            found = await asking
            member.leave()
            writer.close()
            return found

    assert asyncio.run(asyncio.wait_for(run(), 20)) == ["text"]


@linux
@pytest.mark.slow
def test_what_is_managed_is_so_in_all_and_in_those_that_replace_dead_ones(running: Running) -> None:
    until(lambda: is_ready(running))
    assert ask(running.url, "/v2/repository/models/m/unload", {}).status == 200
    assert {predict(running).status for _ in range(12)} == {404}
    first, second = running.workers()
    os.kill(first, signal.SIGKILL)
    until(lambda: set(running.workers()) - {first, second} and metric(running, "anabranch_processes") == 2.0)
    assert {predict(running).status for _ in range(12)} == {404}
    assert ask(running.url, "/v2/repository/models/m/load", {}).status == 200
    assert ask(running.url, "/v2/repository/models/none/load", {}).status == 404
    until(lambda: is_ready(running))
    assert {predict(running).status for _ in range(12)} == {200}
    assert len(running.workers()) == 2


@linux
def test_they_end_together(running: Running) -> None:
    workers = running.workers()
    running.process.send_signal(signal.SIGTERM)
    out, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 0, (out, errors)
    assert not [each for each in workers if Path(f"/proc/{each}").exists()]


@linux
@pytest.mark.slow
def test_a_batch_whose_process_is_killed_fails_alone(tmp_path: Path) -> None:
    x = ab.Input((), dtype="int64", name="x")
    count = ab.layers.Lambda(lambda x: x + ab.while_loop(lambda i: i < x[0], lambda i: i + 1, 0 * x[0]))
    ab.Model(x, count(x)).export(tmp_path, verbose=False)
    process = serve("--model", f"m={tmp_path}", "--workers", "2")
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"ready rest=(\S+) grpc=(\S+)\n", process.stdout.readline())
        assert found is not None
        running = Running(process, found[1], found[2])
        until(lambda: is_ready(running))
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(ask, running.url, "/v1/models/m:predict", {"instances": [10**15]})
            until(lambda: metric(running, 'anabranch_requests_under_way{model="m"}') == 1.0)
            for worker in running.workers():
                os.kill(worker, signal.SIGKILL)
            with pytest.raises((http.client.HTTPException, OSError)):
                asked.result()
        until(lambda: answers(running), 180)
        assert ask(running.url, "/v1/models/m:predict", {"instances": [3]}).json == {"predictions": [6]}
    finally:
        process.kill()
        process.communicate()


def answers(running: Running) -> bool:
    """Say whether new processes have taken the place of killed ones."""
    try:
        return is_ready(running) and metric(running, "anabranch_processes") == 2.0
    except (http.client.HTTPException, OSError):
        return False


@linux
@pytest.mark.slow
def test_one_that_is_stopped_holds_nothing_up(tmp_path: Path) -> None:
    x = ab.Input((2,), name="x")
    ab.Model(x, x * 2.0).export(tmp_path / "m", verbose=False)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"models": {"m": {"path": str(tmp_path / "m")}}, "limits": {"drain_seconds": 1}}))
    process = serve("--config", str(config), "--workers", "2", "--manage")
    stopped: list[int] = []
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"ready rest=(\S+) grpc=(\S+)\n", process.stdout.readline())
        assert found is not None
        running = Running(process, found[1], found[2])
        until(lambda: is_ready(running))
        first, second = running.workers()
        os.kill(first, signal.SIGSTOP)
        stopped.append(first)
        assert ask(running.url, "/v2/repository/models/m/unload", {}).status == 200  # by the other, for both
        until(lambda: answers(running), 180)
        assert first not in running.workers()
        assert second in running.workers()
        assert {predict(running).status for _ in range(12)} == {404}
        stopped.extend(running.workers())
        for worker in running.workers():
            os.kill(worker, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert f"process {first} has not answered for 10 s" in errors
    finally:
        for worker in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        process.kill()
        process.communicate()


@linux
@pytest.mark.slow
def test_they_end_with_their_supervisor(tmp_path: Path) -> None:
    x = ab.Input((2,), name="x")
    ab.Model(x, x * 2.0).export(tmp_path, verbose=False)
    process = serve("--model", f"m={tmp_path}", "--workers", "2")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    workers = Running(process, "", "").workers()
    try:
        process.kill()
        process.communicate(timeout=60)  # until nobody holds its standard output any more
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_decoders_and_sequences_are_refused(tmp_path: Path) -> None:
    x = ab.Input((2, 3), batch_size=2, name="x")
    ab.Model(x, ab.layers.GRU(2, stateful=True)(x)).export(tmp_path, verbose=False)
    process = serve("--model", f"m={tmp_path}", "--workers", "2")
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "It has stateful layers, whose sequences are in one process: serve it without --workers." in errors
    assert errors.count("ERROR ") == 1
    process = serve("--model", f"m={tmp_path}", "--workers", "0")
    assert "expected a number from 1 on" in process.communicate(timeout=60)[1]
