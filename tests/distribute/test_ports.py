"""Ports that a launcher reserves for its tasks."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from anabranch.distribute import ports
from anabranch.distribute.commands.processes import Launch
from anabranch.distribute.ports import ReservedPorts, can_listen


def listening_at(port: int) -> socket.socket:
    """As tasks listen: see `collectives/links.py`; gRPC sets the same option."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_the_ports_differ_and_servers_may_listen_there() -> None:
    with ReservedPorts("127.0.0.1", 20) as reserved:
        assert len(set(reserved.numbers)) == 20
        for port in reserved.numbers:
            assert can_listen("127.0.0.1", port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            with listening_at(port), socket.create_connection(("127.0.0.1", port)):
                assert not can_listen("127.0.0.1", port)


@pytest.mark.skipif(sys.platform != "linux", reason="reserves ports on Linux only")
def test_the_system_gives_reserved_ports_to_nobody_else() -> None:
    with (
        ReservedPorts("127.0.0.1", 1) as reserved,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", reserved.numbers[0]))
    with listening_at(reserved.numbers[0]):
        pass


def test_where_only_one_socket_may_be_bound_the_ports_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_listens", lambda *address: False)
    with ReservedPorts("127.0.0.1", 2) as reserved, socket.socket() as other:
        other.bind(("127.0.0.1", reserved.numbers[0]))


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match="assign"):
        ReservedPorts("192.0.2.1", 2)


def test_a_launcher_reserves_the_ports_of_its_tasks_until_they_end() -> None:
    with Launch(2, 1, ["-c", "import sys; sys.stdin.read()"]) as started:
        addresses = [address for job in started.cluster.values() for address in job]
        assert len(set(addresses)) == 3
        reserved = started._ports
        assert reserved is not None
        assert addresses == [f"localhost:{port}" for port in reserved.numbers]
        if sys.platform == "linux":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", reserved.numbers[1]))
    with socket.socket() as other:
        if os.name == "posix":
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", reserved.numbers[1]))
