"""Models with stateful layers: each sequence of requests has states of its own, whoever else is served."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.distribute.inference import RequestError
from anabranch.framework.serving.sequences import Sequences, Step

pytest.importorskip("uvicorn")


def recurrent(stateful: bool = True, rows: int = 4) -> ab.Model:
    x = ab.Input((None, 3), batch_size=rows if stateful else None, name="x")
    steps = ab.layers.GRU(5, return_sequences=True, stateful=stateful)(x)
    both = ab.layers.LSTM(4, stateful=stateful, return_sequences=True)(steps)
    return ab.Model(x, {"steps": both, "last": ab.layers.Dense(2)(both[:, -1])})


class Served(NamedTuple):
    server: Any
    whole: ab.Model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    ab.utils.set_random_seed(0)
    model, whole = recurrent(), recurrent(stateful=False)
    whole.set_weights([w.numpy() for w in model.weights if "rnn_state" not in w.path])
    model.predict(np.ones((4, 2, 3), "float32"), batch_size=4, verbose=0)  # its own states are not those of sequences
    model.export(folder / "m", verbose=False, warmup=np.ones((2, 3, 3), "float32"))
    x = ab.Input((3,), name="x")
    ab.Model(x, x).export(folder / "plain", verbose=False)
    batching = ab.serving.Batching(max_sequences=6)
    with ab.serving.Server({name: folder / name for name in ("m", "plain")}, batching=batching) as server:
        yield Served(server, whole)


def rest(server: Any, x: Any, model: Any = "m", **parameters: Any) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    body = {"inputs": [tensor], "outputs": [{"name": "last"}], "parameters": parameters}
    if model != "m":
        del body["outputs"]
    reply = ask(server.rest_url, f"/v2/models/{model}/infer", body)
    return np.array(reply.json["outputs"][0]["data"]) if reply.status == 200 else (reply.status, reply.json["error"])


def by_grpc(server: Any, x: Any, sequence: Any, start: bool, end: bool) -> Any:
    kind = "int64_param" if isinstance(sequence, int) else "string_param"
    parameters = {
        "sequence_id": {kind: sequence},
        "sequence_start": {"bool_param": start},
        "sequence_end": {"bool_param": end},
    }
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "contents": {"fp32_contents": x.ravel()}}
    reply = call(
        server.grpc_address,
        "ModelInfer",
        model_name="m",
        inputs=[tensor],
        outputs=[{"name": "last"}],
        parameters=parameters,
    )
    return np.frombuffer(reply.raw_output_contents[0], "float32")


def test_pieces_give_what_the_whole_gives_however_sequences_alternate(served: Served) -> None:
    random = np.random.default_rng(0)
    texts = {name: random.normal(size=(1, 12, 3)).astype("float32") for name in (7, "seven", 8, "eight")}
    wanted = {name: served.whole.predict_on_batch(text)["last"][0] for name, text in texts.items()}
    cuts = {name: [0, *sorted(random.choice(np.arange(1, 12), 3, replace=False)), 12] for name in texts}
    turns = [name for name in texts for _ in range(4)]
    random.shuffle(turns)
    pieces = {name: list(itertools.pairwise(cuts[name])) for name in texts}
    found: dict[Any, Any] = {}
    for turn in turns:
        name = {str(each): each for each in texts}[str(turn)]
        start, end = pieces[name].pop(0)
        piece, first, last = texts[name][:, start:end], bool(start == 0), bool(end == 12)
        if name in (7, "seven"):
            found[name] = by_grpc(served.server, piece, name, first, last)
        else:
            found[name] = rest(
                served.server, piece, sequence_id=name, sequence_start=first, **({"sequence_end": True} if last else {})
            )
    for name in texts:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_what_does_not_belong_to_a_sequence_is_refused(served: Served) -> None:
    server, x = served.server, np.zeros((1, 2, 3), "float32")
    for wrong, message in (
        ({}, "send the parameters 'sequence_id'"),
        ({"sequence_id": 0, "sequence_start": True}, "send the parameters 'sequence_id'"),
        ({"sequence_id": 99}, "has no sequence 99"),
        ({"sequence_id": 1.5}, "expected a whole number or a text"),
        ({"sequence_id": 1, "sequence_start": 1}, "'sequence_start': expected true or false, got 1"),
    ):
        status, error = rest(server, x, **wrong)
        assert (status, message in error) == (400, True), error
    status, error = rest(server, np.zeros((2, 2, 3), "float32"), sequence_id=1, sequence_start=True)
    assert (status, error) == (400, "A request of a sequence has one row; got 2.")
    with pytest.raises(grpc.RpcError, match="has no sequence 98"):
        by_grpc(server, x, 98, False, False)
    reply = ask(server.rest_url, "/v1/models/m:predict", {"inputs": x.tolist()})
    assert (reply.status, "sequence_id" in reply.json["error"]) == (400, True)
    assert rest(server, np.ones((1, 3), "float32"), model="plain", sequence_id=5).tolist() == [1.0, 1.0, 1.0]


def test_an_ended_sequence_is_gone_and_one_that_begins_again_is_new(served: Served) -> None:
    server, x = served.server, np.ones((1, 2, 3), "float32")
    first = rest(server, x, sequence_id=3, sequence_start=True)
    second = rest(server, x, sequence_id=3)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(rest(server, x, sequence_id=3, sequence_start=True), first)
    np.testing.assert_array_equal(rest(server, x, sequence_id=3, sequence_end=True), second)
    assert rest(server, x, sequence_id=3)[0] == 400
    assert rest(server, x[:, :, :2], sequence_id=4, sequence_start=True)[0] == 400
    assert rest(server, x, sequence_id=4)[0] == 400


def test_there_are_only_so_many(served: Served) -> None:
    server, x = served.server, np.ones((1, 2, 3), "float32")
    for name in range(10, 16):
        rest(server, x, sequence_id=name, sequence_start=True)
    assert rest(server, x, sequence_id=16, sequence_start=True)[0] == 429
    for name in range(10, 16):
        rest(server, x, sequence_id=name, sequence_end=True)
    assert rest(server, x, sequence_id=16, sequence_start=True, sequence_end=True).shape == (2,)


def test_tritons_configuration_says_so(served: Served) -> None:
    config = ask(served.server.rest_url, "/v2/models/m/config").json
    assert config["sequence_batching"] == {"max_sequence_idle_microseconds": 60_000_000}
    reply = call(served.server.grpc_address, "ModelConfig", name="m")
    assert reply.config.sequence_batching.max_sequence_idle_microseconds == 60_000_000


def test_a_sequence_stays_with_its_version(tmp_path: Path) -> None:
    recurrent().export(tmp_path, verbose=False)
    x = np.ones((1, 2, 3), "float32")
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        rest(server, x, sequence_id=1, sequence_start=True)
        before = rest(server, x, sequence_id=1)
        rest(server, x, sequence_id=2, sequence_start=True)
        recurrent().export(tmp_path, verbose=False)
        server.refresh()
        np.testing.assert_array_equal(rest(server, x, sequence_id=2, sequence_end=True), before)
        rest(server, x, sequence_id=3, sequence_start=True)
        assert not np.array_equal(rest(server, x, sequence_id=3), before)
        assert rest(server, x, sequence_id=2)[0] == 400


def test_in_process_each_row_begins_a_sequence(tmp_path: Path) -> None:
    model = recurrent()
    model.export(tmp_path, verbose=False)
    x = np.random.default_rng(1).normal(size=(4, 5, 3)).astype("float32")
    expected = model.predict_on_batch(x)
    servable = ab.serving.load(tmp_path)
    assert [info.shape for info in servable.signature().inputs] == [(None, None, 3)]
    for name, values in servable(x[:3]).items():
        np.testing.assert_allclose(values, expected[name][:3], rtol=1e-5, atol=1e-6)


def test_rows_that_depend_on_each_other_are_refused(tmp_path: Path) -> None:
    x = ab.Input((2, 3), batch_size=4, name="x")
    y = ab.layers.GRU(3, stateful=True)(x)
    with pytest.raises(ValueError, match=r"each row is a sequence of its own, and .*\(mean\)"):
        ab.Model(x, y - ab.ops.mean(y, axis=0, keepdims=True)).export(tmp_path, verbose=False)


class Counter(ab.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.count = self.add_weight(shape=(4, 1), initializer="zeros", trainable=False, name="count")

    def call(self, x: Any) -> Any:
        return x + self.count.assign_add(ab.ops.ones((4, 1)))


def test_other_variables_are_refused(tmp_path: Path) -> None:
    x = ab.Input((3,), batch_size=4, name="x")
    with pytest.raises(ValueError, match="its inference writes variable"):
        ab.Model(x, Counter()(x)).export(tmp_path, verbose=False)


def test_idle_sequences_are_forgotten_and_requests_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("anabranch.framework.serving.sequences.time.monotonic", lambda: now[0])
    sequences = Sequences("m", [np.zeros((1, 1))], 2, 10.0)
    order: list[float] = []

    async def count(states: Any) -> list[Any]:
        order.append(float(states[0][0, 0]))
        await asyncio.sleep(0)
        return [states[0], states[0] + 1.0]

    async def use() -> None:
        await sequences.run(Step(1, True, False), count)
        now[0] = 9.0
        await asyncio.gather(*[sequences.run(Step(1, False, False), count) for _ in range(3)])
        await sequences.run(Step(2, True, False), count)
        with pytest.raises(RequestError, match="has 2 sequences"):
            await sequences.run(Step(3, True, False), count)
        now[0] = 19.5
        for step in (Step(1, False, False), Step(2, False, True)):
            with pytest.raises(RequestError, match="had no request for 10 s"):
                await sequences.run(step, count)
        await sequences.run(Step(3, True, True), count)
        await sequences.ended()

    asyncio.run(use())
    assert order == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]
