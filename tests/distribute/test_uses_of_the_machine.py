"""Protocol code takes clock, transport, chance and storage as arguments, so that simulators can give others.

Every module of these folders is checked. Those that use the machine themselves are named here, with what they use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("distribute", "engine/queues", "engine/checkpoint")

# What a module may import or call, by kind.
KINDS = {
    "clock": {"time", "datetime", "sched"},
    "threads": {"threading", "_thread", "queue", "concurrent", "asyncio", "multiprocessing"},
    "network": {"socket", "selectors", "select", "socketserver", "ssl", "grpc", "http", "urllib"},
    "chance": {"random", "secrets", "uuid"},
    "storage": {"io", "pathlib", "tempfile", "shutil", "mmap", "h5py", "fsspec"},
    "processes": {"signal", "subprocess"},
    "system": {"os"},
}
KIND_OF = {module: kind for kind, modules in KINDS.items() for module in modules}
CALLS = {
    **dict.fromkeys(["create_connection", "create_server", "socketpair", "fromfd"], "network"),
    **dict.fromkeys(["open", "memmap", "fromfile", "tofile"], "storage"),
    "random": "chance",
}
OF_CHANNELS = {"self.open", "known.open", "self._channels.open"}  # these open no files
SEEDED = {"Generator", "Philox"}  # of NumPy: they draw from what they are given alone

# By module: the kinds that it uses, and why it does. What uses the machine is a driver, around code that does not.
DRIVERS = {
    # Commands, launchers and what a process finds around it.
    "distribute/commands/ends": ("clock threads network processes system", "waits for processes that it has started"),
    "distribute/commands/hosts": ("clock threads network chance", "connects launchers; Rounds has the protocol"),
    "distribute/commands/launch": ("system", "looks for the script"),
    "distribute/commands/processes": ("clock threads storage chance processes system", "starts processes"),
    "distribute/commands/rounds": ("clock", "the default of an argument"),
    "distribute/commands/status": ("clock threads", "asks tasks, again and again"),
    "distribute/commands/worker": ("processes", "ends at SIGTERM"),
    "distribute/cluster": ("network", "looks whether a port answers, for launchers"),
    "distribute/encryption": ("network storage system", "reads certificates"),
    "distribute/ending": ("clock threads", "waits in a thread of the user"),
    "distribute/environment": ("clock storage system", "reads the environment, which is written by launchers"),
    "distribute/on_ray": ("threads chance system", "starts actors of Ray"),
    "distribute/ports": ("network system", "finds ports that are free"),
    "distribute/restarts": ("clock", "the default of an argument"),
    "distribute/tied": ("threads processes system", "starts a process that ends with this one"),
    "distribute/token": ("storage chance system", "makes the user's token and keeps it in a file"),
    # Checkpoints.
    "distribute/checkpoints": ("clock threads system", "saves every so many seconds, in a thread; takes paths"),
    "engine/checkpoint/folders": ("storage system", "files of folders, which files.py takes as an argument"),
    "engine/checkpoint/ops": ("system", "takes paths (os.PathLike)"),
    # Tasks and their clients.
    "distribute/tasks/channels": ("clock threads", "a client's threads wait for answers"),
    "distribute/tasks/client": ("clock threads chance system", "a client names itself, and runs in the user's threads"),
    "distribute/tasks/doing": ("clock threads", "looks from another thread at a loop that is busy"),
    "distribute/tasks/front": ("clock threads network system", "gRPC's services, and who asks them"),
    "distribute/tasks/homes": ("threads", "plain Python uses state from any thread"),
    "distribute/tasks/server": ("clock threads network chance", "starts a task: sockets, threads, its incarnation"),
    "distribute/tasks/straight": ("clock threads", "a client's threads send and wait"),
    "distribute/tasks/system": ("threads", "what tasks take as an argument; the simulator has another"),
    # Transport.
    "distribute/transport/channel": ("clock network", "a socket that blocks, for threads of clients"),
    "distribute/transport/connections": ("network chance system", "sockets and challenges; the simulator has pipes"),
    "distribute/transport/dialing": ("network", "makes sockets"),
    "distribute/transport/long_turns": ("threads", "a thread beside a loop that is busy"),
    "distribute/transport/loop": ("clock threads network", "waits on sockets; the simulator has another loop"),
    "distribute/transport/planes": ("system", "reads the environment"),
    "distribute/transport/processes": ("network system", "looks whether the process of a peer ends"),
    "distribute/transport/slabs": ("threads storage system", "shared memory"),
    "distribute/transport/stream_ends": ("threads network", "waits for gRPC's threads; a pair of sockets wakes loops"),
    "distribute/transport/streams": ("threads network", "gRPC, behind what is used as a socket"),
    # Collectives of processes, which use sockets that block, in the thread that calls.
    "distribute/collectives/begun": ("threads", "a thread that makes calls one after the other"),
    "distribute/collectives/communicator": (
        "clock threads",
        "a thread waits in NCCL for all members, which nothing can end",
    ),
    "distribute/collectives/flow": ("clock", "pieces of a stream over sockets; says how far it is, every so often"),
    "distribute/collectives/gpus": ("clock", "waits for GPUs, with a look at the other members every so often"),
    "distribute/collectives/group": ("clock threads", "waits for others; gives up after a time"),
    "distribute/collectives/hosts": ("storage chance system", "looks which processes share memory"),
    "distribute/collectives/links": ("clock network", "sockets between members"),
    "distribute/collectives/membership_service": ("clock threads network chance system", "Membership has the protocol"),
    "distribute/collectives/public": ("chance system", "gives a group its number, and reads whether a worker joins"),
    "distribute/collectives/segments": ("storage system", "shared memory"),
    # Strategies.
    "distribute/strategies/distribution": ("system", "reads Keras's variables of the environment"),
    "distribute/strategies/own_task": ("clock threads", "one server for all strategies of a process"),
    "distribute/strategies/strategy": ("threads", "one server for all strategies of a process"),
    # Serving, which answers requests and keeps no state of others.
    "distribute/inference/front": ("network", "gRPC's server"),
    "distribute/inference/large": ("threads", "reads large requests beside the loop of asyncio"),
    "distribute/inference/open_inference": ("threads", "streams of asyncio"),
    "distribute/inference/standard": ("threads", "streams of asyncio"),
    "distribute/inference/time_limit": ("clock threads", "limits the time of a request"),
    # Queues: state machines without threads, and those who wait for them.
    "engine/queues/attempts": ("clock threads", "waits in a thread for what a state machine answers"),
    "engine/queues/coordinator": ("clock threads", "threads of the user"),
    "engine/queues/replica_accounts": ("clock", "the default of an argument"),
    "engine/queues/runner": ("threads", "threads of the user"),
    "engine/queues/shared_work": ("threads", "operations run in threads; the lock is around a state without them"),
    "engine/queues/stops": ("threads", "ends steps from other threads"),
    "engine/queues/writing": ("threads processes system", "holds signals back while variables are written"),
}


def uses_of_the_machine(text: str) -> set[str]:
    """Find the kinds of what a module imports for clock, transport, chance, threads and storage, or calls in others.

    `import socket` alone is allowed, for the types of arguments.
    """
    tree = ast.parse(text)
    seeded = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in SEEDED}
    found: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            found |= {KIND_OF.get(name) for name in names - {"socket"}}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(KIND_OF.get((node.module or "").partition(".")[0]))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("socket.socket", "__import__"):
            found.add("network" if node.args == [] or ast.unparse(node.func) == "socket.socket" else "any module")
        elif isinstance(node, ast.Name) and node.id == "open":
            found.add("storage")
        elif isinstance(node, ast.Attribute) and id(node) not in seeded and ast.unparse(node) not in OF_CHANNELS:
            found.add(CALLS.get(node.attr))
    return {kind for kind in found if kind is not None}


def modules() -> Iterator[str]:
    """The modules that are checked, by path."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT).with_suffix(""))


@pytest.mark.parametrize("name", list(modules()))
def test_the_protocol_takes_clock_transport_chance_and_storage_as_arguments(name: str):
    used = uses_of_the_machine((ROOT / f"{name}.py").read_text())
    kinds, why = DRIVERS.get(name, ("", "it is no driver: give it what it uses as an argument"))
    assert used == set(kinds.split()), why


def test_drivers_exist():
    assert set(DRIVERS) <= set(modules())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import os", "system"),
        ("import os.path", "system"),
        ("from os import path", "system"),
        ("from concurrent import futures", "threads"),
        ("import datetime as d", "clock"),
        ("from time import monotonic", "clock"),
        ("import socket\nsocket.socket()", "network"),
        ("from socket import socket", "network"),
        ("import socket\nsocket.create_connection(x)", "network"),
        ("open(file)", "storage"),
        ("file.open()", "storage"),
        ("numpy.random.default_rng()", "chance"),
        ("np.memmap(file)", "storage"),
        ("__import__('time')", "any module"),
    ],
)
def test_a_use_of_the_machine_is_found(text: str, kind: str):
    assert uses_of_the_machine(text) == {kind}


def test_what_is_given_its_state_is_no_use_of_the_machine():
    assert uses_of_the_machine("import socket\ndef f(s: socket.socket, g: np.random.Generator): ...") == set()
