"""Versions of models come and go while the server answers; configurations are read, checked and read again."""

from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from shared.serving_clients import ask, call
from shared.waiting import until

import anabranch as ab
from anabranch.framework.serving import storage
from anabranch.framework.serving.servable import Servable

pytest.importorskip("uvicorn")
PATIENCE = 60
BODY = {"inputs": [[1.0, 2.0]]}


def export(folder: Path, factor: float) -> None:
    """Another version, which multiplies."""
    x = ab.Input((2,), name="x")
    ab.Model(x, layers_of(factor)(x)).export(folder, verbose=False)


def layers_of(factor: float) -> Any:
    return ab.layers.Rescaling(factor)


def answer(server: ab.serving.Server, path: str = "m") -> Any:
    reply = ask(server.rest_url, f"/v1/models/{path}:predict", BODY)
    return reply.json["outputs"][0][0] if reply.status == 200 else reply.status


def states(server: ab.serving.Server, path: str = "m") -> list[tuple[str, str]]:
    reply = ask(server.rest_url, f"/v1/models/{path}").json
    return [(each["version"], each["state"]) for each in reply["model_version_status"]]


def test_a_new_version_takes_over_and_the_old_one_leaves(tmp_path: Path) -> None:
    export(tmp_path, 1.0)
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        assert (answer(server), states(server)) == (1.0, [("1", "AVAILABLE")])
        export(tmp_path, 2.0)
        assert answer(server) == 1.0
        server.refresh()
        assert (answer(server), states(server)) == (2.0, [("2", "AVAILABLE")])
        assert answer(server, "m/versions/1") == 404
        assert call(server.grpc_address, "ModelMetadata", name="m").versions == ["2"]
        shutil.rmtree(tmp_path / "2")
        server.refresh()
        assert (answer(server), states(server)) == (1.0, [("1", "AVAILABLE")])


def test_folders_are_looked_at_by_themselves(tmp_path: Path) -> None:
    export(tmp_path, 1.0)
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0.01) as server:
        export(tmp_path, 2.0)
        until(lambda: answer(server) == 2.0)


def test_versions_and_labels_are_chosen(tmp_path: Path) -> None:
    for factor in (1.0, 2.0, 3.0):
        export(tmp_path, factor)
    model: dict[str, Any] = {"path": str(tmp_path), "versions": {"latest": 2}, "labels": {"stable": 2, "gone": 1}}
    with ab.serving.Server(config={"models": {"m": model}}, poll_seconds=0) as server:
        assert states(server) == [("3", "AVAILABLE"), ("2", "AVAILABLE")]
        assert [answer(server, path) for path in ("m", "m/versions/2", "m/labels/stable")] == [3.0, 2.0, 2.0]
        assert [answer(server, path) for path in ("m/versions/1", "m/labels/gone", "m/labels/none")] == [404, 404, 404]
        server.configure({"models": {"m": {**model, "versions": {"all": True}}}})
        assert answer(server, "m/labels/gone") == 1.0
        server.configure({"models": {"m": {**model, "versions": {"specific": [1]}}}})
        assert states(server) == [("1", "AVAILABLE")]
        export(tmp_path / "other", 7.0)
        server.configure({"models": {"m": {"path": str(tmp_path / "other")}}})
        assert answer(server) == 7.0
        server.configure({"models": {"n": model}})
        assert (answer(server), answer(server, "n")) == (404, 3.0)


def test_a_damaged_version_is_reported_and_the_old_one_stays(tmp_path: Path) -> None:
    export(tmp_path, 1.0)
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        export(tmp_path, 2.0)
        manifest = tmp_path / "2" / "manifest.json"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[:-9])
        server.refresh()
        assert (answer(server), states(server)) == (1.0, [("2", "END"), ("1", "AVAILABLE")])
        (state,) = ask(server.rest_url, "/v1/models/m/versions/2").json["model_version_status"]
        assert state["status"]["error_code"] == "UNKNOWN"
        assert "manifest.json" in state["status"]["error_message"]
        server.refresh()  # it is not read again as it is
        manifest.write_bytes(whole)
        os.utime(manifest, ns=(1, 1))
        server.refresh()
        assert (answer(server), states(server)) == (2.0, [("2", "AVAILABLE")])


def damage(version: Path) -> None:
    manifest = version / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])


def test_a_server_starts_with_the_highest_version_that_is_sound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for factor in (1.0, 2.0, 3.0, 4.0):
        export(tmp_path, factor)
    damage(tmp_path / "4")
    damage(tmp_path / "3")
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        assert (answer(server), states(server)) == (2.0, [("4", "END"), ("3", "END"), ("2", "AVAILABLE")])
        assert "version 4 can't be loaded" in caplog.text
        server.refresh()
        assert states(server) == [("4", "END"), ("3", "END"), ("2", "AVAILABLE")]
        shutil.rmtree(tmp_path / "3")
        server.refresh()
        assert states(server) == [("4", "END"), ("2", "AVAILABLE")]
        export(tmp_path, 5.0)
        server.refresh()
        assert (answer(server), states(server)) == (5.0, [("5", "AVAILABLE")])
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        assert states(server) == [("5", "AVAILABLE")]
    damage(tmp_path / "5")
    for number in (1, 2):
        damage(tmp_path / str(number))
    with pytest.raises(ab.serving.ServableError, match=r"version 5: .*version 1: "):
        ab.serving.Server({"m": tmp_path}).start()


def test_so_many_versions_are_served_as_are_wanted_and_sound(tmp_path: Path) -> None:
    for factor in (1.0, 2.0, 3.0, 4.0):
        export(tmp_path, factor)
    damage(tmp_path / "3")
    model: dict[str, Any] = {"path": str(tmp_path), "versions": {"latest": 2}}
    with ab.serving.Server(config={"models": {"m": model}}, poll_seconds=0) as server:
        assert states(server) == [("4", "AVAILABLE"), ("3", "END"), ("2", "AVAILABLE")]
        export(tmp_path, 5.0)
        damage(tmp_path / "5")
        server.refresh()
        assert states(server) == [("5", "END"), ("4", "AVAILABLE"), ("3", "END"), ("2", "AVAILABLE")]
        export(tmp_path, 6.0)
        server.refresh()
        assert states(server) == [("6", "AVAILABLE"), ("5", "END"), ("4", "AVAILABLE")]
        server.configure({"models": {"m": {**model, "versions": {"specific": [3]}}}})
        assert [each for each in states(server) if each[1] == "AVAILABLE"] == [("6", "AVAILABLE"), ("4", "AVAILABLE")]


def test_a_version_that_is_damaged_is_no_reason_to_unload_the_one_before(tmp_path: Path) -> None:
    export(tmp_path, 1.0)
    model = {"path": str(tmp_path), "replace": True}
    with ab.serving.Server(config={"models": {"m": model}}, poll_seconds=0) as server:
        export(tmp_path, 2.0)
        damage(tmp_path / "2")
        for _ in range(2):
            server.refresh()
            assert (answer(server), states(server)) == (1.0, [("2", "END"), ("1", "AVAILABLE")])


def test_models_whose_folder_is_gone_stay(tmp_path: Path) -> None:
    export(tmp_path / "model", 1.0)
    with ab.serving.Server({"m": tmp_path / "model"}, poll_seconds=0) as server:
        shutil.rmtree(tmp_path / "model")
        server.refresh()
        assert (answer(server), states(server)) == (1.0, [("1", "AVAILABLE")])


def test_requests_under_way_are_answered_by_the_version_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(tmp_path, 1.0)
    began, free, run = threading.Event(), threading.Event(), Servable.run

    def run_when_free(servable: Servable, *args: Any) -> list[Any]:
        if servable.version == 1:
            began.set()
            assert free.wait(PATIENCE)
        return run(servable, *args)

    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server, ThreadPoolExecutor(2) as clients:
        monkeypatch.setattr(Servable, "run", run_when_free)
        slow = clients.submit(answer, server)
        assert began.wait(PATIENCE)
        export(tmp_path, 2.0)
        server.refresh()
        assert answer(server) == 2.0
        free.set()
        assert slow.result() == 1.0


def test_no_request_fails_while_versions_change(tmp_path: Path) -> None:
    export(tmp_path, 1.0)
    done = threading.Event()

    def ask_on(server: ab.serving.Server) -> list[Any]:
        found: list[Any] = []
        while not done.is_set():
            found.append(answer(server))
        return found

    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server, ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(ask_on, server) for _ in range(4)]
        for factor in range(2, 8):
            export(tmp_path, float(factor))
            server.refresh()
        done.set()
        answers = [each.result() for each in asked]
    for found in answers:
        assert found == sorted(found)
        assert set(found) <= set(range(1, 8))


def test_a_new_version_is_compiled_for_the_shapes_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path, 1.0)
    shapes: list[Any] = []
    run = Servable.run

    def noted(servable: Servable, arrays: Any, *args: Any) -> list[Any]:
        shapes.append((servable.version, arrays[0].shape))
        return run(servable, arrays, *args)

    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        ask(server.rest_url, "/v1/models/m:predict", {"inputs": np.ones((3, 2)).tolist()})
        answer(server)
        monkeypatch.setattr(Servable, "run", noted)
        export(tmp_path, 2.0)
        server.refresh()
    assert shapes == [(2, (4, 2)), (2, (1, 2))]


# --- warm-up --------------------------------------------------------------------------------------------------------


def test_a_server_computes_the_warm_up_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ab.Input((2,), name="x")
    model = ab.Model(x, layers_of(2.0)(x))
    model.export(tmp_path, verbose=False, warmup=np.ones((3, 2), "float32"))
    shapes: list[Any] = []
    run = Servable.run

    def noted(servable: Servable, arrays: Any, *args: Any) -> list[Any]:
        shapes.append(arrays[0].shape)
        return run(servable, arrays, *args)

    monkeypatch.setattr(Servable, "run", noted)
    batching = ab.serving.Batching(max_batch_size=8)
    with ab.serving.Server({"m": tmp_path}, batching=batching, poll_seconds=0) as server:
        assert shapes == [(3, 2), (1, 2), (2, 2), (4, 2), (8, 2)]
        assert answer(server) == 2.0


def test_a_warm_up_that_fails_keeps_the_old_version(tmp_path: Path) -> None:
    tokens = ab.Input((None,), dtype="int32", name="x")
    model = ab.Model(tokens, ab.layers.Embedding(4, 2, embeddings_initializer="ones")(tokens))
    model.export(tmp_path, verbose=False, warmup={"x": [[0, 1, 3]]})
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        model.export(tmp_path, verbose=False, warmup=[[0, 1, 4]])
        server.refresh()
        assert states(server) == [("2", "END"), ("1", "AVAILABLE")]
        (state,) = ask(server.rest_url, "/v1/models/m/versions/2").json["model_version_status"]
        assert "can't compute this" in state["status"]["error_message"]


@pytest.mark.parametrize(
    ("warmup", "message"),
    [
        (np.ones((1, 3), "float32"), "Input 'x': expected the shape"),
        (["a", "b"], "Input 'x': expected values of float32"),
        ({"y": [[1.0, 2.0]]}, "Expected the inputs 'x', got 'y' (missing: 'x'; unknown: 'y')"),
    ],
)
def test_a_warm_up_that_does_not_fit_is_refused(tmp_path: Path, warmup: Any, message: str) -> None:
    x = ab.Input((2,), name="x")
    with pytest.raises(ValueError, match="warmup") as caught:
        ab.Model(x, layers_of(2.0)(x)).export(tmp_path, verbose=False, warmup=warmup)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", ["b a", "a b"])
def test_a_warm_up_is_by_name_or_in_the_order_of_the_inputs(tmp_path: Path, names: str) -> None:
    inputs = [ab.Input((1,), name=name) for name in names.split()]
    model = ab.Model(inputs, inputs[0] - inputs[1])
    a, b = np.full((1, 1), 1.0, "float32"), np.full((1, 1), 2.0, "float32")
    for warmup in ({"a": a, "b": b}, {"b": b, "a": a}, [{"a": a, "b": b}[name] for name in names.split()]):
        version = model.export(tmp_path, verbose=False, warmup=warmup)
        ((_, found),) = storage.read_warmup(tmp_path / str(version))
        assert found == {"a": [[1.0]], "b": [[2.0]]}
    with pytest.raises(ValueError, match=r"got 'a', 'c' \(missing: 'b'; unknown: 'c'\)"):
        model.export(tmp_path, verbose=False, warmup={"a": a, "c": b})


def test_a_warm_up_may_be_a_list_of_one_array(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1)])
    model.export(tmp_path, verbose=False, warmup=[np.ones((3, 2), "float32")])
    ((_, found),) = storage.read_warmup(tmp_path / "1")
    assert found == {"x": [[1.0, 1.0]] * 3}


# --- configurations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, 'expected {"models"'),
        ({"models": {"m": {}}}, "models.m: expected a 'path'"),
        ({"models": {"m/n": {"path": "p"}}}, "no slash"),
        ({"models": {"m": {"path": "p", "version": 1}}}, "models.m: 'version' is unknown. Expected 'path', 'versions'"),
        ({"models": {"m": {"path": 3}}}, "models.m.path: expected str, got 3"),
        ({"models": {"m": {"path": "p", "versions": {"latest": 0}}}}, "versions must be"),
        ({"models": {"m": {"path": "p", "versions": {"specific": []}}}}, "versions must be"),
        ({"models": {"m": {"path": "p", "versions": {"latest": True}}}}, "versions must be"),
        ({"models": {"m": {"path": "p", "labels": {"a/b": 1}}}}, "labels must be names"),
        ({"models": {"m": {"path": "p", "batching": {"max_batch_size": 0}}}}, "models.m: Batching: max_batch_size"),
        ({"models": {"m": {"path": "p", "batching": {"bitwise": 1}}}}, "batching.bitwise: expected bool, got 1"),
        ({"models": {"m": {"path": "p"}}, "limits": {"max_body_bytes": True}}, "expected int, got True"),
        ({"models": {"m": {"path": "p"}}, "limits": {"drain_seconds": -1}}, "limits must be positive"),
        ([], "the whole: expected a table of models, limits; got list"),
    ],
)
def test_a_wrong_configuration_is_refused_where_it_is_wrong(document: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"serve\.json") as caught:
        ab.serving.Server(config=path)
    assert message in str(caught.value)


def test_a_configuration_is_json_or_toml_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    export(tmp_path / "model", 2.0)
    path = tmp_path / "serve.toml"
    path.write_text(
        f'[models.m]\npath = "{(tmp_path / "model").as_posix()}"\nlabels = {{ stable = 1 }}\n'
        "[models.m.batching]\nmax_batch_size = 8\nmax_queue_delay_ms = 0.5\n[limits]\ndrain_seconds = 3\n"
    )
    with ab.serving.Server(config=path, poll_seconds=0) as server:
        assert answer(server, "m/labels/stable") == 2.0
        path.write_text("[models.m]\npath = 3\n")
        with pytest.raises(ValueError, match=r"models\.m\.path: expected str, got 3"):
            server.configure(path)
        with pytest.raises(ab.serving.ServableError, match="Model 'n': There is no folder"):
            server.configure({"models": {"n": {"path": str(tmp_path / "none")}}})
        assert (server.models, answer(server)) == (["m"], 2.0)


def test_limits_that_a_configuration_would_change_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export(tmp_path, 2.0)
    config = {"models": {"m": {"path": str(tmp_path)}}, "limits": {"max_rows": 100, "drain_seconds": 3}}
    with ab.serving.Server(config=config, poll_seconds=0) as server:
        server.configure(config)
        assert "limits." not in caplog.text
        server.configure({**config, "limits": {"max_rows": 1, "drain_seconds": 3}})
        assert "limits.max_rows stays 100, not 1: limits change when the server starts again" in caplog.text
        assert "drain_seconds" not in caplog.text


def test_labels_move_only_to_versions_that_are_loaded(tmp_path: Path) -> None:
    export(tmp_path, 1.0)

    def config(version: int) -> dict[str, Any]:
        return {"models": {"m": {"path": str(tmp_path), "versions": {"all": True}, "labels": {"stable": version}}}}

    with ab.serving.Server(config=config(1), poll_seconds=0) as server:
        server.configure(config(2))
        assert answer(server, "m/labels/stable") == 1.0
        export(tmp_path, 2.0)
        assert answer(server, "m/labels/stable") == 1.0
        server.refresh()
        assert answer(server, "m/labels/stable") == 2.0
        server.configure({"models": {"m": {"path": str(tmp_path), "versions": {"all": True}}}})
        assert answer(server, "m/labels/stable") == 404


def test_requests_bear_the_token_of_a_model(tmp_path: Path) -> None:
    export(tmp_path / "model", 2.0)
    token = tmp_path / "token"
    token.write_text("secret\n")
    model = {"path": str(tmp_path / "model")}
    config = {"models": {"m": {**model, "token_file": str(token)}, "open": {**model, "token_file": None}}}
    with ab.serving.Server(config=config, poll_seconds=0) as server:
        for given, status in (
            ({}, 401),
            ({"Authorization": "Bearer other"}, 401),
            ({"Authorization": "Basic secret"}, 401),
            ({"Authorization": "Bearer secret"}, 200),
            ({"Authorization": "bearer  secret"}, 200),
        ):
            reply = ask(server.rest_url, "/v1/models/m:predict", BODY, headers=given)
            assert reply.status == status
            assert ask(server.rest_url, "/v2/models/m", headers=given).status == status
            assert reply.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
            metadata = [(name.lower(), value) for name, value in given.items()]
            code = code_of(lambda: call(server.grpc_address, "ModelMetadata", metadata=metadata, name="m"))  # noqa: B023
            assert code == (grpc.StatusCode.UNAUTHENTICATED if status == 401 else None)
        assert answer(server, "open") == 2.0
        assert ask(server.rest_url, "/v2/health/ready").status == 200
        token.write_text(" \n")
        with pytest.raises(ValueError, match="is empty"):
            server.configure(config)
        token.unlink()
        with pytest.raises(ValueError, match="can't be read"):
            server.configure(config)
        assert (
            ask(server.rest_url, "/v1/models/m:predict", BODY, headers={"Authorization": "Bearer secret"}).status == 200
        )


def test_without_its_token_no_error_and_no_index_names_a_model(tmp_path: Path) -> None:
    export(tmp_path / "model", 2.0)
    (tmp_path / "token").write_text("secret\n")
    model = {"path": str(tmp_path / "model")}
    config = {"models": {"hidden": {**model, "token_file": str(tmp_path / "token")}, "open": model}}
    with ab.serving.Server(config=config, poll_seconds=0, may_manage=True) as server:
        for given, is_shown in (({}, False), ({"Authorization": "Bearer secret"}, True)):
            replies = [
                ask(server.rest_url, "/v1/models/none:predict", BODY, headers=given),
                ask(server.rest_url, "/v2/models/none", headers=given),
                ask(server.rest_url, "/v2/repository/models/none/load", b"{}", headers=given),
                ask(server.rest_url, "/v2/repository/index", b"{}", headers=given),
            ]
            assert [reply.status for reply in replies] == [404, 404, 404, 200]
            assert all(b"open" in reply.body for reply in replies)
            assert [b"hidden" in reply.body for reply in replies] == [is_shown] * 4
            metadata = [(name.lower(), value) for name, value in given.items()]
            index = call(server.grpc_address, "RepositoryIndex", metadata=metadata).models
            assert [entry.name for entry in index] == (["hidden", "open"] if is_shown else ["open"])


def code_of(work: Any) -> Any:
    """The status with which a call fails; None if it does not."""
    try:
        work()
    except grpc.RpcError as error:
        return error.code()  # pyright: ignore[reportAttributeAccessIssue]
    return None


def test_models_or_a_configuration_are_given(tmp_path: Path) -> None:
    for options in ({}, {"models": {"m": tmp_path}, "config": {"models": {}}}):
        with pytest.raises(ValueError, match="models, with batching, or config"):
            ab.serving.Server(**options)
    with pytest.raises(RuntimeError, match="does not run"):
        ab.serving.Server({"m": tmp_path}).refresh()
