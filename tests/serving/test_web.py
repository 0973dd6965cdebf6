"""The HTTP side of the server: compression, slow and large requests, encryption, pages, and logs."""

import asyncio
import gzip
import http.client
import json
import logging
import re
import shutil
import socket
import ssl
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
from shared.serving_clients import ask, call

import anabranch as ab
from anabranch.framework.serving.web.compression import plain

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)

PREDICT = "/v1/models/wide:predict"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    x = ab.Input((None,), name="x")
    ab.Model(x, {"y": x * 2}).export(path / "wide", verbose=False)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Any]:
    limits = {"max_body_bytes": 1 << 18, "max_rows": 100, "read_seconds": 20}
    with ab.serving.Server(config={"models": {"wide": {"path": str(folder / "wide")}}, "limits": limits}) as found:
        yield found


def packed(data: bytes, encoding: str) -> bytes:
    return gzip.compress(data) if encoding == "gzip" else zlib.compress(data)


def unpacked(data: bytes, encoding: str) -> bytes:
    return gzip.decompress(data) if encoding == "gzip" else zlib.decompress(data)


# --- compression ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 3000, 30_000])  # too small to be compressed; on the loop; in a thread
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_are_compressed_in_both_directions(server: Any, encoding: str, count: int) -> None:
    body = json.dumps({"instances": [[1.5] * count]}).encode()
    headers = {"Content-Encoding": encoding, "Accept-Encoding": f"br, {encoding};q=0.5"}
    reply = ask(server.rest_url, PREDICT, packed(body, encoding), headers=headers)
    assert reply.status == 200
    assert (reply.headers.get("content-encoding") == encoding) == (count > 100)
    text = unpacked(reply.body, encoding) if count > 100 else reply.body
    assert json.loads(text) == {"predictions": [[3.0] * count]}


def test_members_of_gzip_are_joined(server: Any) -> None:
    body = gzip.compress(b'{"instances": ') + gzip.compress(b"[[1]]}")
    assert ask(server.rest_url, PREDICT, body, headers={"Content-Encoding": "gzip"}).json == {"predictions": [[2]]}


def test_many_members_of_gzip_are_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader of a member is given a few bytes more than it takes, and not all that are left."""
    given, make = [0], zlib.decompressobj

    class Counting:
        def __init__(self, window: int) -> None:
            self._reader = make(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            given[0] += len(data)
            return self._reader.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    members = [gzip.compress(b"", mtime=0)] * 2000 + [gzip.compress(bytes(10_000), mtime=0)]
    assert asyncio.run(plain(b"".join(members), "gzip", 1 << 20)) == bytes(10_000)
    content = np.random.default_rng(0).bytes(100_000)  # which takes more than one piece to be read
    assert asyncio.run(plain(gzip.compress(content, 0), "gzip", 1 << 20)) == content
    assert given[0] < len(members) * 5000 + 200_000


def test_answers_stay_plain_for_those_who_ask_for_it(server: Any) -> None:
    body = {"instances": [[1.0] * 2000]}
    for accept in ("", "identity", "gzip;q=0, deflate;q=0.0"):
        reply = ask(server.rest_url, PREDICT, body, headers={"Accept-Encoding": accept})
        assert "content-encoding" not in reply.headers
        assert reply.json["predictions"] == [[2.0] * 2000]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "message"),
    [
        ("br", b"x", 415, "send gzip, deflate"),
        ("gzip", b"x" * 100, 400, "no gzip"),
        ("deflate", b"x" * 100, 400, "no deflate"),
        ("gzip", gzip.compress(b"{}" * 1000, mtime=0)[:-9], 400, "its end is missing"),
        ("gzip", gzip.compress(b"0" * (1 << 24), mtime=0), 413, "without its compression"),
        ("gzip", gzip.compress(b"0" * 1000, mtime=0) * 500, 413, "without its compression"),
    ],
)
def test_damaged_and_large_compressed_bodies(
    server: Any, encoding: str, body: bytes, status: int, message: str
) -> None:
    reply = ask(server.rest_url, PREDICT, body, headers={"Content-Encoding": encoding})
    assert (reply.status, message in reply.json["error"]) == (status, True)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_rows_are_limited(server: Any) -> None:
    assert ask(server.rest_url, PREDICT, {"instances": [[1]] * 100}).status == 200
    reply = ask(server.rest_url, PREDICT, {"instances": [[1]] * 101})
    assert (reply.status, "101 rows" in reply.json["error"]) == (413, True)
    # Their number is looked at before their values, which may take long.
    texts = [["text"]] * 101
    tensor = {"name": "x", "datatype": "FP32", "shape": [101, 1]}
    for path, body in (
        (PREDICT, {"instances": texts}),
        ("/v2/models/wide/infer", {"inputs": [{**tensor, "data": texts}]}),
    ):
        assert ask(server.rest_url, path, body).status == 413
    contents = {"fp32_contents": [1.0] * 102}  # one too many
    with pytest.raises(grpc.RpcError, match="101 rows"):
        call(server.grpc_address, "ModelInfer", model_name="wide", inputs=[{**tensor, "contents": contents}])


def connected(server: Any) -> socket.socket:
    parts = urlsplit(server.rest_url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/mod", f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode()],
    ids=["nothing", "half a head", "half a body"],
)
def test_requests_that_do_not_come_are_ended(folder: Path, sent: bytes) -> None:
    config = {"models": {"wide": {"path": str(folder / "wide")}}, "limits": {"read_seconds": 0.2}}
    with ab.serving.Server(config=config) as server, connected(server) as stream:
        stream.sendall(sent)
        assert stream.recv(100).startswith(b"HTTP/1.1 408")
        while stream.recv(1000):
            pass  # until the server ends the connection


@pytest.mark.parametrize(
    ("whole", "status"),
    [
        ("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        (f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}", "400"),
    ],
)
def test_half_a_head_behind_a_whole_request_is_ended(folder: Path, whole: str, status: str) -> None:
    config = {"models": {"wide": {"path": str(folder / "wide")}}, "limits": {"read_seconds": 0.2}}
    with ab.serving.Server(config=config) as server, connected(server) as stream:
        stream.settimeout(10)  # an idle connection is kept for longer
        stream.sendall(f"{whole}GET /v2/hea".encode())
        answer = b""
        while piece := stream.recv(1000):
            answer += piece
    assert re.findall(r"HTTP/1.1 (\d+)", answer.decode()) == [status, "408"]


def test_a_body_that_nobody_waits_for_any_more_is_not_answered_again(folder: Path) -> None:
    config = {"models": {"wide": {"path": str(folder / "wide")}}, "limits": {"read_seconds": 0.2}}
    with ab.serving.Server(config=config) as server, connected(server) as stream:
        stream.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"x" * 100_000)
        answer = b""
        while piece := stream.recv(1000):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.count(b"HTTP/1.1") == 1


def test_heads_are_limited(server: Any) -> None:
    with connected(server) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        answer = b""
        try:
            for _ in range(100):
                stream.sendall(b"a: " + b"b" * 5000 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = stream.recv(100)
        except ConnectionResetError:
            answer = b"HTTP/1.1 431"
        assert answer.startswith(b"HTTP/1.1 431")
    assert ask(server.rest_url, "/v2/health/live").status == 200


def test_a_connection_may_be_used_for_long(folder: Path) -> None:
    config = {"models": {"wide": {"path": str(folder / "wide")}}, "limits": {"read_seconds": 0.2}}
    with ab.serving.Server(config=config) as server:
        parts = urlsplit(server.rest_url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        for _ in range(200):
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read() == b'{"live":true}'
        connection.close()


# --- pages ----------------------------------------------------------------------------------------------------------


TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def several(folder: Path) -> Iterator[Any]:
    decoder = ab.serving.Decoder(
        lambda tokens, states: (ab.ops.one_hot((tokens + 1) % 8, 8), states),
        lambda rows: (),
        end_token=0,
        max_length=9,
        slots=1,
    )
    decoder.export(folder / "count")
    token = folder / "token"
    token.write_text("secret")
    models = {
        "wide": {"path": str(folder / "wide"), "token_file": str(token)},
        "count": {"path": str(folder / "count")},
    }
    with ab.serving.Server(config={"models": models}) as found:
        yield found


def test_the_page_describes_models_without_other_files(several: Any) -> None:
    reply = ask(several.rest_url, "/", headers=TOKEN)
    text = reply.body.decode()
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for part in ("<h2>wide</h2>", "<h2>count</h2>", f"{several.rest_url}/v1/models/wide:predict", "/generate", "Token"):
        assert part in text
    assert "src=" not in text
    assert "http" not in text.replace(several.rest_url, "")
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_what_the_page_proposes_works(several: Any) -> None:
    text = ask(several.rest_url, "/", headers=TOKEN).body.decode()
    for form in text.split("<form data-path=")[1:]:
        path = form.split('"')[1]
        body = form.split("spellcheck=false>")[1].split("</textarea>")[0].replace("&quot;", '"').encode()
        assert ask(several.rest_url, path, body, headers=TOKEN).status == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}])
def test_without_its_token_nothing_but_the_name_of_a_model_is_shown(several: Any, headers: dict[str, str]) -> None:
    page = ask(several.rest_url, "/", headers=headers)
    assert page.headers["cache-control"] == "no-store"  # with the token it is another
    text = page.body.decode()
    asks, count = (part.split("</section>")[0] for part in reversed(text.split("<section ")[1:]))
    assert "<h2>wide</h2>" in asks
    assert "asks for its token" in asks
    assert "<table>" in count
    for part in ("<table>", "Version", "float32", "predict"):
        assert part not in asks
    found = ask(several.rest_url, "/openapi.json", headers=headers).json
    assert set(found["paths"]) == {
        "/v2/models/count/generate",
        "/v2/models/count/generate_stream",
        "/v2/health/ready",
    }


def test_openapi(several: Any) -> None:
    found = ask(several.rest_url, "/openapi.json", headers=TOKEN).json
    assert found["openapi"].startswith("3.")
    operation = found["paths"]["/v1/models/wide:predict"]["post"]
    assert operation["security"] == [{"token": []}]
    rows, columns = operation["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    assert rows["properties"]["instances"]["items"] == {"type": "array", "items": {"type": "number"}}
    assert columns["properties"]["inputs"]["required"] == ["x"]
    assert "security" not in found["paths"]["/v2/models/count/generate"]["post"]
    assert set(found["paths"]) == {
        "/v1/models/wide:predict",
        "/v2/models/wide/infer",
        "/v2/models/count/generate",
        "/v2/models/count/generate_stream",
        "/v2/health/ready",
    }


# --- encryption -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and what it has signed for a server and a client."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=path, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    use = ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 asks for it
    run("req", "-x509", *key, *use, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    (path / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return path


def infer_by_grpc(address: str, credentials: Any) -> Any:
    from anabranch.distribute.inference.messages import SERVICE, message_class

    with grpc.secure_channel(address, credentials) as channel:
        stub = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=message_class("ModelInferRequest").SerializeToString,
            response_deserializer=message_class("ModelInferResponse").FromString,
        )
        x = {"name": "x", "datatype": "FP32", "shape": [1, 1], "contents": {"fp32_contents": [4]}}
        answer = stub(message_class("ModelInferRequest")(model_name="wide", inputs=[x]), timeout=60)
        return np.frombuffer(answer.raw_output_contents[0], "<f4").tolist()


@pytest.mark.parametrize("mutual", [False, True])
def test_connections_are_encrypted(folder: Path, certificates: Path, mutual: bool) -> None:
    at = certificates
    tls = ab.serving.Tls(at / "server.pem", at / "server.key", at / "ca.pem" if mutual else None)
    with ab.serving.Server({"wide": folder / "wide"}, tls=tls) as server:
        assert server.rest_url.startswith("https://")
        trusting = ssl.create_default_context(cafile=at / "ca.pem")
        authority = (at / "ca.pem").read_bytes()
        if mutual:
            with pytest.raises(OSError, match=r"certificate|alert|reset|closed|EOF|pipe"):
                urlopen(f"{server.rest_url}/v2/health/live", context=trusting, timeout=60).read()
            with pytest.raises(grpc.RpcError):
                infer_by_grpc(server.grpc_address, grpc.ssl_channel_credentials(authority))
            trusting.load_cert_chain(at / "client.pem", at / "client.key")
            pair = ((at / "client.key").read_bytes(), (at / "client.pem").read_bytes())
            credentials = grpc.ssl_channel_credentials(authority, *pair)
        else:
            credentials = grpc.ssl_channel_credentials(authority)
        with urlopen(f"{server.rest_url}/v2/health/live", context=trusting, timeout=60) as reply:
            assert reply.read() == b'{"live":true}'
        assert infer_by_grpc(server.grpc_address, credentials) == [8]


def test_wrong_certificates_are_said_so(folder: Path, certificates: Path) -> None:
    for tls in (
        ab.serving.Tls(certificates / "server.pem", certificates / "client.key"),
        ab.serving.Tls(certificates / "none.pem", certificates / "server.key"),
    ):
        with pytest.raises(ValueError, match="TLS with the certificate"):
            ab.serving.Server({"wide": folder / "wide"}, tls=tls)


# --- logs -----------------------------------------------------------------------------------------------------------


def test_logs_are_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    from anabranch.framework.serving.logs import logging_to_stderr

    logger, level = logging.getLogger("anabranch.serving"), logging.getLogger("anabranch.serving").level
    held = logging.getLogger().handlers[:]
    with logging_to_stderr("json"):
        try:
            raise ValueError("it broke\nin two lines")
        except ValueError:
            logger.exception("model %r failed", "m")
        logger.info("ready")
        for other in ("uvicorn.error", "asyncio"):  # which have a part in the server
            logging.getLogger(other).warning("said by another")
        logging.getLogger("uvicorn.error").info("not of use to anyone")
    assert logging.getLogger().handlers == held
    assert logger.level == level
    first, second, *others = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["logger"], each["level"]) for each in others] == [
        ("uvicorn.error", "warning"),
        ("asyncio", "warning"),
    ]
    assert (first["level"], first["message"]) == ("error", "model 'm' failed")
    assert first["traceback"].endswith("it broke\nin two lines")
    assert second["message"] == "ready"
    assert second["time"].endswith("Z")
