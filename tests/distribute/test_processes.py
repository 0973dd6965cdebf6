"""The end of a process on this host is seen at once, also where its child still holds its sockets."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from shared.tasks import PATIENCE
from shared.waiting import until

import anabranch as ab
from anabranch.distribute.transport.processes import process_at
from anabranch.distribute.transport.slabs import IS_AVAILABLE

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="descriptors of processes are Linux's")
CLIENT = """
import subprocess, sys
import anabranch as ab
with ab.Graph().as_default() as graph:
    element = ab.queues.FIFOQueue(1, "int32", shapes=(), name="waited for").dequeue()
session = ab.Session(graph, target=sys.argv[1])
session.program(element)
sockets = [channel._sock.fileno() for channel in session._schedule.remote._channels._idle]
assert sockets
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=0, pass_fds=sockets)
print(child.pid, flush=True)
session.run(element)
"""


def test_an_end_is_seen_although_a_child_holds_the_socket():
    config = ab.distribute.ServerConfig(heartbeat_timeout=1000.0)
    with ab.distribute.Server({"worker": ["localhost:0"]}, config=config) as server:
        command = [sys.executable, "-c", CLIENT, server.target]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdin is not None
        assert client.stdout is not None
        child = int(client.stdout.readline())
        until(lambda: server.status().held["running"])
        client.kill()
        client.wait(PATIENCE)
        until(lambda: not server.status().held["running"])
        until(lambda: server.status().sessions == 0)
        subprocess.run(["kill", "-0", str(child)], check=True)  # it is there, and so is its end of the socket
        client.stdin.close()
        client.stdout.read()  # until the child has ended, too
        client.stdout.close()


def test_other_sockets_and_this_process_are_not_watched():
    with socket.socket() as tcp:
        assert process_at(tcp) is None
    one, other = socket.socketpair()
    with one, other:
        assert process_at(one) is None
