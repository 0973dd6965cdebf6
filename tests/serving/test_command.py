"""``python -m anabranch serve`` as a process of its own: what it prints, how it ends, what it refuses."""

import argparse
import html
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from shared.served_models import LETTERS, letters
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.__main__ import main
from anabranch.framework.serving import command
from anabranch.framework.serving.examples import example_line
from anabranch.framework.serving.signature import Signature, TensorInfo

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Servables "letters", and "slow", which counts to its input."""
    folder = tmp_path_factory.mktemp("models")
    letters().export(folder / "letters", verbose=False, input_signature=LETTERS)
    x = ab.Input((), dtype="int64", name="x")
    count = ab.layers.Lambda(lambda x: x + ab.while_loop(lambda i: i < x[0], lambda i: i + 1, 0 * x[0]))
    ab.Model(x, count(x)).export(folder / "slow", verbose=False)
    return folder


@pytest.fixture
def start(models: Path) -> Iterator[Callable[..., Any]]:
    """Starts a server of a model at ports of its own: the process, its URL, its address for gRPC, the line for curl."""
    started: list[subprocess.Popen[str]] = []

    def make(
        name: str, *options: str, prefix: Sequence[str] = (), **variables: str
    ) -> tuple[subprocess.Popen[str], str, str, str]:
        command = [
            *prefix,
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
        ]
        command += options or ["--model", f"{name}={models / name}"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"ready rest=(http://127\.0\.0\.1:\d+) grpc=(127\.0\.0\.1:\d+)\n", line)
        if not found:
            process.kill()
            raise AssertionError(f"{line!r}\n{process.communicate()}")
        curl = process.stdout.readline()
        assert process.stdout.readline().startswith(f"requests for {name!r} that wait are computed ")
        return process, found[1], found[2], curl

    yield make
    for process in started:
        process.kill()
        process.communicate()


def test_it_serves_by_each_protocol_and_ends(start: Callable[..., Any]) -> None:
    process, url, address, line = start("letters")

    found = re.fullmatch(r"curl -d '(.*)' (http://.*?)(/v1/models/letters:predict)\n", line)
    assert found is not None
    assert found[2] == url
    assert json.loads(found[1]) == {"instances": [[0, 1, 2, 3]]}
    assert len(ask(url, found[3], json.loads(found[1])).json["predictions"][0]) == 4
    assert call(address, "ModelReady", name="letters").ready

    process.send_signal(signal.SIGTERM)
    logged = "INFO model 'letters': version 1 is served\nINFO model 'letters': version 1 has gone\n"
    assert process.communicate(timeout=60) == ("", logged)
    assert process.returncode == 0
    parts = urlsplit(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP on this system")
def test_a_configuration_is_read_again_on_sighup(start: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text(json.dumps({"models": {"letters": {"path": str(models / "letters")}}}))
    process, url, _, _ = start("letters", "--config", str(path))
    assert ask(url, "/v1/models/letters").status == 200
    path.write_text(json.dumps({"models": {"again": {"path": str(models / "letters"), "labels": {"stable": 1}}}}))
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "configured again: again\n"
    assert [ask(url, f"/v1/models/{name}").status for name in ("letters", "again/labels/stable")] == [404, 200]
    path.write_text("{")
    process.send_signal(signal.SIGHUP)
    said = next(line for line in process.stderr if not line.startswith("INFO"))
    assert re.fullmatch(r"ERROR The configuration .*: .* Nothing was changed\.\n", said)
    assert ask(url, "/v1/models/again").status == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_all_that_is_said_is_json_where_that_is_asked_for(start: Callable[..., Any], models: Path) -> None:
    process, url, _, _ = start("letters", "--model", f"letters={models / 'letters'}", "--log-format", "json")
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    lines = [json.loads(line) for line in process.stderr]
    assert "uvicorn.error" in [line["logger"] for line in lines]  # it warns of that


def test_why_it_can_not_start_is_json_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "m=/nowhere", "--log-format", "json"]) == 2
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert line["level"] == "error"
    assert "/nowhere" in line["message"]


def test_what_others_say_is_json_where_that_is_asked_for(models: Path, tmp_path: Path) -> None:
    """gRPC's core has lines of its own for a port that is taken, and Python for a warning."""
    (tmp_path / "warning.py").write_text("import warnings\nwarnings.warn('of a module')\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-W", "default", "-m", "anabranch", "serve", "--log-format", "json"]
        command += ["--model", f"letters={models / 'letters'}", "--rest-port", "0", "--grpc-port", port]
        command += ["--import", "warning"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment.pop("GRPC_VERBOSITY", None)  # other tests' modules set it
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 2
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "py.warnings" in [line["logger"] for line in lines]
    assert lines[-1]["message"].startswith(f"Can't listen on 127.0.0.1:{port} for gRPC. Is the port taken")


@pytest.mark.parametrize("option", ["--rest-port", "--grpc-port"])
@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_what_is_no_port_is_refused(option: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--model", "m=m", f"{option}={port}"])
    assert f"{option}: expected a port from 0 to 65535, got '{port}'" in capsys.readouterr().err
    if port != "x":
        name = option[2:].replace("-", "_")
        given: Any = {name: int(port)}
        with pytest.raises(ValueError, match=f"{name} must be from 0 to 65535; got {port}"):
            ab.serving.Server({"m": "m"}, **given)


def test_what_is_no_number_of_seconds_or_no_model_is_refused() -> None:
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"poll_seconds must be a number of seconds from 0 .* got {seconds}"):
            ab.serving.Server({"m": "m"}, poll_seconds=seconds)
    with pytest.raises(ValueError, match=r"at least one model, as \{name: path\}; got none"):
        ab.serving.Server({})


def test_requests_under_way_end(start: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"  # they take a second, or a minute where other work has the processor
    limits = {"drain_seconds": 600}
    path.write_text(json.dumps({"models": {"slow": {"path": str(models / "slow")}}, "limits": limits}))
    process, url, address, _ = start("slow", "--config", str(path))

    def by_rest(steps: int) -> int:
        tensor = {"name": "x", "shape": [1], "datatype": "INT64", "data": [steps]}
        return ask(url, "/v2/models/slow/infer", {"inputs": [tensor]}).json["outputs"][0]["data"][0]

    def by_grpc(steps: int) -> int:
        tensor = {"name": "x", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [steps]}}
        answer = call(address, "ModelInfer", model_name="slow", inputs=[tensor])
        return int.from_bytes(answer.raw_output_contents[0], "little")

    assert by_rest(1) == by_grpc(1) == 2
    steps, seconds = 1_000_000, 0.0
    while seconds < 0.25:  # as kernels are compiled with more or less effort, or not
        steps, began = 2 * steps, time.perf_counter()
        assert by_rest(steps) == 2 * steps
        seconds = time.perf_counter() - began
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(request, steps) for request in (by_rest, by_grpc)]
        while b'anabranch_requests_under_way{model="slow"} 2.0' not in ask(url, "/metrics").body:
            assert not all(each.done() for each in waiting)
        process.send_signal(signal.SIGTERM)
        assert [each.result(600) for each in waiting] == [2 * steps] * 2
    assert process.wait(60) == 0


def test_a_second_signal_ends_at_once(start: Callable[..., Any]) -> None:
    process, url, _, _ = start("letters")
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as stream:
        stream.sendall(b"POST /v1/models/letters:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert ask(url, "/v2/health/live").status == 200
        process.send_signal(signal.SIGTERM)
        while ask_or_refused(url) is not None:  # until it has the first
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


def can_be_process_one() -> bool:
    """Test whether this user may start a process as the first of a namespace, as a container does."""
    return (
        bool(shutil.which("unshare")) and not subprocess.run(["unshare", "-pf", "true"], capture_output=True).returncode
    )


@pytest.mark.skipif(not can_be_process_one(), reason="needs unshare of Linux, and the right to use it")
def test_a_second_signal_ends_process_one_of_a_container_at_once(start: Callable[..., Any], models: Path) -> None:
    outer, url, _, _ = start("letters", prefix=("unshare", "-pf", "--kill-child"))
    inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as stream:
        stream.sendall(b"POST /v1/models/letters:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert ask(url, "/v2/health/live").status == 200
        os.kill(inner, signal.SIGTERM)
        while ask_or_refused(url) is not None:  # until it has the first
            pass
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(20) == 128 + signal.SIGTERM


@pytest.mark.slow  # it takes the 5 s that a step has to end
def test_a_step_that_does_not_end_is_left(start: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    path, kept = tmp_path / "serve.json", tmp_path / "temporary"
    kept.mkdir()
    dense = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)])
    dense.save(tmp_path / "dense.keras")  # is exported to a temporary folder
    served = {"slow": {"path": str(models / "slow")}, "dense": {"path": str(tmp_path / "dense.keras")}}
    path.write_text(json.dumps({"models": served, "limits": {"drain_seconds": 0.1}}))
    process, url, _, _ = start("slow", "--config", str(path), TMPDIR=str(kept))
    assert list(kept.glob("anabranch-serve-*"))
    tensor = {"name": "x", "shape": [1], "datatype": "INT64", "data": [10**15]}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, url, "/v2/models/slow/infer", {"inputs": [tensor]})
        while b'anabranch_requests_under_way{model="slow"} 1.0' not in ask(url, "/metrics").body:
            assert not waiting.done()
        process.send_signal(signal.SIGTERM)
        assert waiting.result(60).status == 503
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(r"waits no longer for a step of model 'slow', version 1, that has taken \d+ s", errors)
    assert not list(kept.iterdir())


def ask_or_refused(url: str) -> Any:
    try:
        return ask(url, "/v2/health/live").status
    except OSError:
        return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "letters"], "expected NAME=PATH"),
        (["--model", "a/b=x"], "no slash and no colon"),
        (["--model", "a=x", "--model", "a=y"], "there is a model 'a' already"),
        (["--model", "a=/nowhere/at/all"], "There is no folder '/nowhere/at/all'"),
    ],
)
def test_mistakes_are_named(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["serve", "--model"], ["export"]])
def test_a_file_with_classes_of_ones_own_asks_for_their_module(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_layers.py").write_text(
        "import anabranch as ab\n"
        "@ab.saving.register_keras_serializable(package='own')\n"
        "class Doubled(ab.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return 2 * x\n"
    )
    make = "import anabranch as ab, own_layers as o; ab.Sequential([ab.Input((3,)), o.Doubled()]).save('model.keras')"
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True, timeout=120)
    path = str(tmp_path / "model.keras")
    given = [*arguments, f"a={path}"] if arguments[0] == "serve" else [*arguments, path, str(tmp_path / "out")]
    assert main(given) == 2
    assert "'own>Doubled', which is not known in this process" in (told := capsys.readouterr().err)
    assert "--import own_layers" in told


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_port_that_is_taken_is_named(models: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        others = {"rest": ["--grpc-port", "0"], "grpc": ["--rest-port", "0"]}[kind]
        assert run("--model", f"a={models / 'letters'}", f"--{kind}-port", str(port), *others) == 2
    assert re.search(rf"Can't listen on 127\.0\.0\.1:{port} for", capsys.readouterr().err)


def test_what_must_be_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("uvicorn", "orjson") else find(name))
    assert run("--model", "a=x") == 2
    assert "uvicorn, orjson must be installed for this: pip install 'anabranch[serve]'" in capsys.readouterr().err


def run(*options: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return command.run(parser.parse_args(options))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_the_line_for_curl_works_as_it_is_printed(tmp_path: Path) -> None:
    """Also where a name has to be quoted, and where the model has a token."""
    x, y = ab.Input((), name="it's"), ab.Input((), name="y")
    ab.Model([x, y], {"sum": x + y}).export(tmp_path / "m", verbose=False)
    (tmp_path / "token").write_text("TOKEN")
    model = {"path": str(tmp_path / "m"), "token_file": str(tmp_path / "token")}
    with ab.serving.Server(config={"models": {"m (2)": model}}) as server:
        line = command.facts(server)[1]
        program, *arguments, url = shlex.split(line)
        assert (program, arguments[::2]) == ("curl", ["-H", "-d"])
        header, body = arguments[1::2]
        found = ask(server.rest_url, urlsplit(url).path, body.encode(), headers=dict([header.split(": ")]))
        assert (found.status, url.startswith(server.rest_url)) == (200, True)
        shown = ask(server.rest_url, "/", headers=dict([header.split(": ")])).body.decode()
        assert line in html.unescape(shown)


def signature(*inputs: TensorInfo) -> Signature:
    return Signature(inputs, (), "one")


def test_the_example_is_a_row_of_any_input() -> None:
    a, b = TensorInfo("a", "float32", (None, 2, 2), "a:0"), TensorInfo("b", "string", (None,), "b:0")
    line = example_line("http://h:1", "m", signature(a, b))
    assert line == """curl -d '{"instances": [{"a": [[0, 1], [0, 1]], "b": "a"}]}' http://h:1/v1/models/m:predict"""
    large = TensorInfo("x", "float32", (None, 28, 28), "x:0")
    assert example_line("http://h:1", "m", signature(large)) == "curl http://h:1/v1/models/m"
    assert example_line("http://h:1", "m", signature(large), has_token=True).startswith(
        "curl -H 'Authorization: Bearer TOKEN' "
    )
    tokens = signature(TensorInfo("tokens", "int32", (None, None), ""))
    sequence = example_line("http://[::1]:1", "m", tokens, is_decoder=True)
    assert sequence == (
        """curl -d '{"tokens": [1], "parameters": {"max_tokens": 8}}' 'http://[::1]:1/v2/models/m/generate'"""
    )


def test_the_example_of_a_model_with_states_is_a_sequence(tmp_path: Path) -> None:
    x = ab.Input((None, 2), batch_size=1, name="x")
    ab.Model(x, ab.layers.LSTM(3, stateful=True)(x)).export(tmp_path / "s", verbose=False)
    with ab.serving.Server({"s": tmp_path / "s"}) as server:
        line = example_line(server.rest_url, "s", server.signature_of("s"))
        _, _, body, url = shlex.split(line)
        assert url.endswith("/v2/models/s/infer")
        found = ask(server.rest_url, urlsplit(url).path, body.encode())
        assert (found.status, found.json["outputs"][0]["shape"]) == (200, [1, 3])
        assert line in html.unescape(ask(server.rest_url, "/").body.decode())
        assert "/v1/models/s:predict" not in ask(server.rest_url, "/openapi.json").json["paths"]
