"""Requests that wait for a model are computed together, and each gets the answer that it gets alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.served_models import LETTERS, letters, some_text, two_in_two_out
from shared.serving_clients import ask, call
from shared.waiting import until

import anabranch as ab
from anabranch.framework.serving.batching import Batcher
from anabranch.framework.serving.servable import Servable

pytest.importorskip("uvicorn")
PATIENCE = 60


class Runs:
    """The shapes of the inputs of each run of a model, which may be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.began, self.free = threading.Semaphore(0), threading.Event()
        self.free.set()
        run = Servable.run

        def noted(servable: Servable, arrays: Any, *args: Any) -> list[Any]:
            self.shapes.append(arrays[0].shape)
            self.began.release()
            assert self.free.wait(PATIENCE)
            return run(servable, arrays, *args)

        monkeypatch.setattr(Servable, "run", noted)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def waiting(server: ab.serving.Server, count: int) -> None:
    """Come back when so many requests are under way."""
    line = f'anabranch_requests_under_way{{model="m"}} {float(count)}'
    until(lambda: line in ask(server.rest_url, "/metrics").body.decode().splitlines())


def pairs(rows: int, start: float = 0.0) -> dict[str, Any]:
    a = np.arange(2 * rows, dtype="float32").reshape(rows, 2) + start
    return {"inputs": {"a": a.tolist(), "b": np.ones((rows, 3), "float32").tolist()}}


def predict(server: ab.serving.Server, body: Any) -> Any:
    return ask(server.rest_url, "/v1/models/m:predict", body)


def test_what_waits_is_computed_together_and_filled_up(runs: Runs, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(8) as clients:
        runs.free.clear()
        first = clients.submit(predict, server, pairs(1))
        assert runs.began.acquire(timeout=PATIENCE)
        others = [clients.submit(predict, server, pairs(rows, 10.0 * rows)) for rows in (1, 2, 2)]
        waiting(server, 4)
        runs.free.set()
        assert first.result().json["outputs"]["sum"] == [4.0]
        for rows, reply in zip((1, 2, 2), others, strict=True):
            expected = [sum(row) + 3.0 for row in pairs(rows, 10.0 * rows)["inputs"]["a"]]
            assert reply.result().json["outputs"]["sum"] == expected
        text = ask(server.rest_url, "/metrics").body.decode()
    assert runs.shapes == [(1, 2), (8, 2)]
    assert 'anabranch_batch_rows_sum{model="m"} 6.0' in text
    assert 'anabranch_batch_rows_count{model="m"} 2.0' in text
    assert 'anabranch_queue_seconds_count{model="m"} 4.0' in text


def test_batches_are_no_larger_than_allowed_and_larger_requests_run_alone(runs: Runs, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    batching = ab.serving.Batching(max_batch_size=4, max_queue_delay_ms=0)
    with ab.serving.Server({"m": tmp_path}, batching=batching) as server, ThreadPoolExecutor(8) as clients:
        runs.free.clear()
        asked = [clients.submit(predict, server, pairs(1))]
        assert runs.began.acquire(timeout=PATIENCE)
        asked += [clients.submit(predict, server, pairs(rows)) for rows in (3, 3, 5, 1)]
        waiting(server, 5)
        runs.free.set()
        counts = [len(each.result().json["outputs"]["sum"]) for each in asked]
    assert counts == [1, 3, 3, 5, 1]
    assert sorted(runs.shapes) == [(1, 2), (4, 2), (4, 2), (8, 2)]


def test_requests_of_other_shapes_are_computed_apart(runs: Runs, tmp_path: Path) -> None:
    model = letters()
    model.export(tmp_path, verbose=False, input_signature=LETTERS)
    short, long = some_text(1, 4), some_text(1, 6)
    expected = [model.predict(text, verbose=0) for text in (short, short, long)]
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(8) as clients:
        runs.free.clear()
        asked = [clients.submit(predict, server, {"inputs": short.tolist()})]
        assert runs.began.acquire(timeout=PATIENCE)
        asked += [clients.submit(predict, server, {"inputs": text.tolist()}) for text in (short, long)]
        waiting(server, 3)
        runs.free.set()
        for each, numbers in zip(asked, expected, strict=True):
            np.testing.assert_allclose(each.result().json["outputs"], numbers, rtol=1e-5, atol=1e-6)
    assert sorted(runs.shapes) == [(1, 4), (1, 4), (1, 6)]


def test_one_request_fails_where_an_op_refuses_its_rows(runs: Runs, tmp_path: Path) -> None:
    letters().export(tmp_path, verbose=False, input_signature=LETTERS)
    good, bad = [[0, 1]], [[0, 99]]
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(8) as clients:
        expected = predict(server, {"inputs": good}).json["outputs"]
        assert runs.began.acquire(timeout=PATIENCE)
        runs.shapes.clear()
        runs.free.clear()
        asked = [clients.submit(predict, server, {"inputs": good})]
        assert runs.began.acquire(timeout=PATIENCE)
        asked += [clients.submit(predict, server, {"inputs": rows}) for rows in (good, bad, good)]
        waiting(server, 4)
        runs.free.set()
        replies = [each.result() for each in asked]
    assert [reply.status for reply in replies] == [200, 200, 400, 200]
    assert "can't compute this" in replies[2].json["error"]
    for reply in (replies[0], replies[1], replies[3]):
        np.testing.assert_allclose(reply.json["outputs"], expected, rtol=1e-5)
    assert runs.shapes == [(1, 2), (4, 2), (1, 2), (1, 2), (1, 2)]


def test_a_model_that_mixes_rows_computes_requests_one_by_one(runs: Runs, tmp_path: Path) -> None:
    x = ab.Input((2,), name="x")
    ab.Model(x, x - ab.ops.mean(x, axis=0, keepdims=True)).export(tmp_path, verbose=False)
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(8) as clients:
        assert "(mean) is not known to compute each row for itself" in str(server.why_alone("m"))
        runs.free.clear()
        asked = [clients.submit(predict, server, {"inputs": [[1.0, 1.0], [3.0, 5.0]]}) for _ in range(3)]
        waiting(server, 3)
        runs.free.set()
        for each in asked:
            assert each.result().json["outputs"] == [[-1.0, -2.0], [1.0, 2.0]]
    assert runs.shapes == [(2, 2)] * 3


def test_bits_do_not_depend_on_other_requests(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((16,), name="x"), ab.layers.Dense(32, "tanh"), ab.layers.Dense(8, "softmax")])
    model.export(tmp_path, verbose=False)
    rows = np.random.default_rng(0).normal(size=(40, 16)).astype("float32")
    batching = ab.serving.Batching(max_batch_size=8, bitwise=True)
    with ab.serving.Server({"m": tmp_path}, batching=batching) as server, ThreadPoolExecutor(8) as clients:
        alone = [predict(server, {"inputs": row[None].tolist()}).json["outputs"][0] for row in rows]
        cuts = [0, 1, 4, 5, 16, 17, 29, 40]
        parts = [rows[start:end].tolist() for start, end in itertools.pairwise(cuts)]
        together = [each.json["outputs"] for each in clients.map(lambda part: predict(server, {"inputs": part}), parts)]
    assert [row for part in together for row in part] == alone


def test_what_is_too_late_is_not_computed(runs: Runs, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(8) as clients:
        runs.free.clear()
        first = clients.submit(predict, server, pairs(1))
        assert runs.began.acquire(timeout=PATIENCE)
        late = ask(server.rest_url, "/v1/models/m:predict", pairs(3), headers={"X-Request-Timeout-Ms": "20"})
        assert (late.status, late.json["error"][:30]) == (504, "There was no answer within 0.0")
        fields = {"name": "a", "datatype": "FP32", "shape": [3, 2], "contents": {"fp32_contents": [1.0] * 6}}
        more = {"name": "b", "datatype": "FP32", "shape": [3, 3], "contents": {"fp32_contents": [1.0] * 9}}
        with pytest.raises(grpc.RpcError) as caught:
            call(server.grpc_address, "ModelInfer", 1.0, model_name="m", inputs=[fields, more])
        assert code_of(caught.value) == grpc.StatusCode.DEADLINE_EXCEEDED
        waiting(server, 1)
        runs.free.set()
        assert first.result().status == 200
        in_time = ask(server.rest_url, "/v1/models/m:predict", pairs(1), headers={"X-Request-Timeout-Ms": "60000"})
        assert in_time.status == 200
        for wrong in ("0", "-1", "soon", "1e9"):
            reply = ask(server.rest_url, "/v1/models/m:predict", pairs(1), headers={"X-Request-Timeout-Ms": wrong})
            assert (reply.status, "expected milliseconds" in reply.json["error"]) == (400, True)
        text = ask(server.rest_url, "/metrics").body.decode()
    assert runs.shapes == [(1, 2), (1, 2)]
    assert 'anabranch_requests_total{model="m",status="504"} 2.0' in text


def test_a_limit_of_time_holds_for_all_requests(runs: Runs, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    config = {"models": {"m": {"path": str(tmp_path)}}, "limits": {"request_seconds": 0.02}}
    with ab.serving.Server(config=config) as server:
        runs.free.clear()
        assert predict(server, pairs(1)).status == 504
        runs.free.set()


def code_of(error: Any) -> Any:
    return error.code()


def test_random_requests_get_the_answers_that_they_get_alone(tmp_path: Path) -> None:
    model = letters()
    model.export(tmp_path, verbose=False, input_signature=LETTERS)
    rng = np.random.default_rng(1)
    texts = [some_text(int(rng.integers(1, 4)), int(rng.integers(1, 6))) for _ in range(60)]
    expected = [model.predict(text, verbose=0) for text in texts]
    with ab.serving.Server({"m": tmp_path}) as server, ThreadPoolExecutor(12) as clients:
        for reply, numbers in zip(
            clients.map(lambda text: predict(server, {"inputs": text.tolist()}), texts), expected, strict=True
        ):
            np.testing.assert_allclose(reply.json["outputs"], numbers, rtol=1e-4, atol=1e-6)


class Doubled:
    """Stands for a servable that doubles its input, and notes the rows of each run."""

    def __init__(self, has_bounded_time: bool = False) -> None:
        self.ran: list[list[float]] = []
        self.threads: list[str] = []
        self.free = threading.Event()
        self.had_bounded_time = has_bounded_time

    def why_alone(self, signature: str) -> None:
        return None

    def lengths(self, signature: str) -> None:
        return None

    def run(self, arrays: Any, signature: str) -> list[Any]:
        assert self.free.wait(PATIENCE)
        self.ran.append(arrays[0].tolist())
        self.threads.append(threading.current_thread().name)
        return [arrays[0] * 2.0]


class Unobserved:
    def batch(self, rows: int, queue_seconds: Any, compute_seconds: float) -> None:
        """Note nothing."""


def batcher_of(model: Any, thread: ThreadPoolExecutor, **options: Any) -> Batcher:
    return Batcher(model, ab.serving.Batching(**options), thread, Unobserved())


def test_a_request_whose_client_has_gone_is_not_computed() -> None:
    model = Doubled()

    async def ask_three() -> list[Any]:
        batcher = batcher_of(model, thread)
        asked = [batcher.submit([np.array([number])]) for number in (1.0, 2.0, 3.0)]
        asked[1].cancel()
        model.free.set()
        return [await asked[0], await asked[2]]

    with ThreadPoolExecutor(1) as thread:
        found = asyncio.run(ask_three())
    assert [each[0].tolist() for each in found] == [[2.0], [6.0]]
    assert model.ran == [[1.0, 3.0]]


def test_what_had_to_wait_goes_on_waiting_until_the_batch_is_full_or_time_is_up() -> None:
    model = Doubled()

    async def ask_in_turn() -> None:
        batcher = batcher_of(model, thread, max_batch_size=2, max_queue_delay_ms=1000 * PATIENCE)
        first = batcher.submit([np.array([1.0])])
        await asyncio.sleep(0)
        second = batcher.submit([np.array([2.0])])
        model.free.set()
        await first
        assert batcher.is_full(1)  # the second one waits
        assert not batcher.is_busy  # idle, and waiting for another row
        third = batcher.submit([np.array([3.0])])
        assert (await second)[0].tolist() == [4.0]
        assert (await third)[0].tolist() == [6.0]
        hasty = batcher_of(model, thread, max_batch_size=2, max_queue_delay_ms=1)
        model.free.clear()
        last = [hasty.submit([np.array([4.0])])]
        await asyncio.sleep(0)
        last.append(hasty.submit([np.array([5.0])]))
        model.free.set()
        assert [(await each)[0].tolist() for each in last] == [[8.0], [10.0]]

    with ThreadPoolExecutor(1) as thread:
        asyncio.run(ask_in_turn())
    assert model.ran == [[1.0], [2.0, 3.0], [4.0], [5.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be at least 1; got 0"),
        ({"max_queue_delay_ms": -1.0}, "must be 0 or more; got -1.0"),
        ({"max_queue_size": -1}, "must be 0 or more; got 1.0 and -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ab.serving.Batching(**options)


def test_a_model_that_is_not_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batching names n, which is no model; they are m"):
        ab.serving.Server({"m": tmp_path}, batching={"n": ab.serving.Batching()})
