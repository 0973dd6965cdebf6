"""mTLS: who has a certificate of the authority is let in, and what leaves a host is encrypted."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, WORKER, Running, tasks

import anabranch as ab
from anabranch.distribute import TLS
from anabranch.distribute.encryption import fault_of_handshake, tls_from_environment
from anabranch.distribute.tasks.front import TaskUnavailableError, ask_task, is_healthy
from anabranch.distribute.transport.planes import Plane

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
NAMES = ("ANABRANCH_TLS_CERTIFICATE", "ANABRANCH_TLS_KEY", "ANABRANCH_TLS_AUTHORITY")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def authority(folder: Path) -> None:
    """Make an authority, and a certificate of it for this host."""
    folder.mkdir()
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    use = ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 asks for it
    root = ["-x509", *curve, *use, "-days", "2", "-subj", "/CN=tests"]
    openssl(folder, "req", *root, "-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, "req", *curve, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=localhost")
    signed(folder, "own", "DNS:localhost,IP:127.0.0.1")


def signed(folder: Path, name: str, addresses: str) -> None:
    """Have the authority sign a certificate for addresses."""
    (folder / "names").write_text(f"subjectAltName={addresses}\n")
    by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", "own.csr", "-out", f"{name}.pem", *by)


def files(folder: Path) -> tuple[str, str, str]:
    return str(folder / "own.pem"), str(folder / "own.key"), str(folder / "ca.pem")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder / "ours")
    authority(folder / "theirs")
    return folder


@pytest.fixture
def encrypted(made: Path, monkeypatch: pytest.MonkeyPatch) -> TLS:
    for name, file in zip(NAMES, files(made / "ours"), strict=True):
        monkeypatch.setenv(name, file)
    return TLS(*files(made / "ours"))


@pytest.fixture
def running(encrypted: TLS) -> Generator[Running]:
    with tasks(all_with=("--plane", "grpc")) as found:
        yield found


@pytest.mark.xdist_group("tasks")
def test_steps_run_over_encrypted_streams(running: Running, graph: ab.Graph):
    x = ab.placeholder((None,), "float64", "x")
    with ab.device(PS):
        w = ab.Variable(2.0, dtype="float64", name="w")
        y = x * w
    with ab.device(WORKER):
        z = y + 1.0
    with ab.Session(graph, target=running[WORKER].target) as session:
        for size in (1, 300_000):
            np.testing.assert_array_equal(session.run(z, {x: np.arange(size)}), np.arange(size) * 2.0 + 1)
        found = ab.distribute.status(running[WORKER].target).connections
        assert {each.plane for each in found if each.task == PS} == {Plane.GRPC}
        running[PS].kill()
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            session.run(z, {x: [1.0]})
        assert caught.value.task == PS


def test_who_has_no_certificate_of_the_authority_is_not_let_in(encrypted: TLS, made: Path):
    stranger = TLS(*files(made / "theirs"))
    mixed = TLS(stranger.certificate, stranger.key, encrypted.authority)
    unlike = TLS(encrypted.certificate, stranger.key, encrypted.authority)
    with ab.distribute.Server({"ps": ["localhost:0"]}) as server:
        address = server.target.removeprefix("grpc://")
        info = ask_task(address, server.name, 30.0, encrypted)
        assert info.port == 0  # there is no socket that other hosts can reach
        assert is_healthy(address, 30.0, encrypted)
        for tls, message in (
            (None, "it encrypts what it sends, and this process has no certificate"),
            (stranger, "its certificate is refused .*unable to get local issuer"),
            (mixed, f"it does not take the certificate {mixed.certificate}"),
            (unlike, r"TLS with the certificate .* fails \(KEY_VALUES_MISMATCH\)"),
        ):
            assert not is_healthy(address, 1.0, tls)
            with pytest.raises(TaskUnavailableError, match=message):
                ask_task(address, server.name, PATIENCE, tls)


def test_a_certificate_for_another_address_is_named(encrypted: TLS, made: Path):
    signed(made / "ours", "elsewhere", "DNS:elsewhere")
    elsewhere = TLS(str(made / "ours" / "elsewhere.pem"), encrypted.key, encrypted.authority)
    with ab.distribute.Server({"ps": ["localhost:0"]}, tls=elsewhere) as server:
        address = server.target.removeprefix("grpc://")
        with pytest.raises(TaskUnavailableError, match=r"not valid for 'localhost'.*certificates of one authority"):
            ask_task(address, server.name, PATIENCE, encrypted)


def test_a_task_that_does_not_encrypt_is_named(made: Path):
    with ab.distribute.Server({"ps": ["localhost:0"]}) as server:
        address = server.target.removeprefix("grpc://")
        with pytest.raises(TaskUnavailableError, match="it does not encrypt, and this process has a certificate"):
            ask_task(address, server.name, PATIENCE, TLS(*files(made / "ours")))
        assert fault_of_handshake(address, None, PATIENCE) == ""


def test_no_certificate_is_suspected_where_nobody_listens_or_what_listens_is_silent(encrypted: TLS):
    """A proxy takes connections before the task behind it is there: who waits for the task goes on waiting."""
    with socket.create_server(("localhost", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
        for tls in (encrypted, None):
            assert fault_of_handshake(address, tls, 0.01) == ""
            listener.accept()[0].close()  # the connection of before
            closing = threading.Thread(target=lambda: listener.accept()[0].close())
            closing.start()
            assert fault_of_handshake(address, tls, PATIENCE) == ""
            closing.join()
    assert fault_of_handshake(address, encrypted, PATIENCE) == ""


def test_tasks_of_one_host_use_shared_memory_all_the_same(encrypted: TLS, graph: ab.Graph):
    with (
        ab.distribute.Server({"ps": ["localhost:0"]}, tls=encrypted) as ps,
        ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0) as worker,
        ab.Session(graph, target=worker.target) as session,
        ab.device(PS),
    ):
        assert session.run(ab.constant(1.0) + 1.0) == 2
        mine = [each for each in worker.status().connections if each.connected_by == "this task"]
        assert [each.plane for each in mine] == [Plane.SHARED_MEMORY]


def test_a_client_without_certificates_is_told_that_it_needs_one(made: Path, graph: ab.Graph):
    with (
        ab.distribute.Server({"ps": ["localhost:0"]}, tls=TLS(*files(made / "ours"))) as server,
        pytest.raises(ab.errors.TaskFailedError, match="this process has no certificate") as caught,
    ):
        ab.Session(graph, target=server.target)
    assert "restart" not in str(caught.value)


def test_files_that_are_missing_are_named(made: Path, monkeypatch: pytest.MonkeyPatch):
    assert tls_from_environment() is None
    monkeypatch.setenv(NAMES[0], files(made / "ours")[0])
    with pytest.raises(ValueError, match="ANABRANCH_TLS_KEY and ANABRANCH_TLS_AUTHORITY are not set"):
        tls_from_environment()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TLS("nowhere.pem", "nowhere.key", "nowhere.pem")
