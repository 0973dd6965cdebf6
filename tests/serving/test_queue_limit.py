"""A model takes so many requests, and refuses those beyond."""

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import pytest
from shared.served_models import two_in_two_out
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.framework.serving.servable import Servable

BODY = {"inputs": {"a": [[1, 2]], "b": [[1, 2, 3]]}}
PATH = "/v1/models/pairs:predict"


class Held:
    """Models that compute only when `free` is set; `begun` is, when one is about to."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), threading.Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Have models compute only when they are let."""
    pytest.importorskip("uvicorn")
    held, run = Held(), Servable.run

    def run_when_free(self: Servable, *args: Any) -> list[Any]:
        held.begun.set()
        assert held.free.wait(60)
        return run(self, *args)

    monkeypatch.setattr(Servable, "run", run_when_free)
    return held


def test_one_runs_one_waits_and_the_third_is_refused(held: Held, tmp_path: Path) -> None:
    two_in_two_out().export(tmp_path, verbose=False)
    with (
        ab.serving.Server({"pairs": tmp_path}, batching=ab.serving.Batching(max_queue_size=1)) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        try:
            asked = [clients.submit(ask, server.rest_url, PATH, BODY)]
            assert held.begun.wait(60)  # those that come together are computed together
            asked += [clients.submit(ask, server.rest_url, PATH, BODY) for _ in range(2)]
            (refused,), others = wait(asked, timeout=60, return_when=FIRST_COMPLETED)
            assert (refused.result().status, refused.result().headers["retry-after"]) == (429, "1")
            assert "max_queue_size" in refused.result().json["error"]
            fields = {"name": "a", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}
            more = {"name": "b", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": [1, 2, 3]}}
            with pytest.raises(grpc.RpcError) as caught:
                call(server.grpc_address, "ModelInfer", model_name="pairs", inputs=[fields, more])
            error: Any = caught.value
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            held.free.set()
        assert [each.result().json["outputs"]["sum"] for each in others] == [[9.0], [9.0]]
        assert ask(server.rest_url, PATH, BODY).status == 200
