"""Damaged frames and manifests: whatever comes is taken or refused, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, TOKEN

import anabranch as ab
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.connections import Handshake, Identity, RefusedError
from anabranch.distribute.transport.values import decode_token, decode_value, encode_token, encode_value, step_of
from anabranch.distribute.transport.wire import Decoder, Frame, FrameError, Kind, encode, encode_document
from anabranch.engine.checkpoint import files
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.ops.containers.store_value import StoreValue

FEW, MANY = 3000, 100_000
SIZES = [pytest.param(FEW), pytest.param(MANY, marks=pytest.mark.slow)]
ODD: list[Any] = [
    None,
    -1,
    0,
    1,
    2**31,
    2**64,
    -(2**70),
    0.5,
    float("inf"),
    "",
    "x",
    "\0",
    [],
    [[]],
    {},
    True,
    [1, [2, {}]],
]


def joined(buffers: list[Any]) -> bytes:
    return b"".join(map(bytes, buffers))


def damaged(data: bytes, chosen: random.Random) -> bytes:
    """Bytes with some changed, cut out, doubled, or cut off."""
    found = bytearray(data)
    for _ in range(chosen.randint(1, 4)):
        if not found:
            break
        place = chosen.randrange(len(found))
        match chosen.randrange(6):
            case 0:
                found[place] = chosen.randrange(256)
            case 1:
                found[place] ^= 1 << chosen.randrange(8)
            case 2:
                del found[place : place + chosen.randrange(1, 9)]
            case 3:
                found[place:place] = found[place : place + chosen.randrange(1, 9)]
            case 4:
                del found[place:]
            case 5:
                found[place : place + 4] = chosen.choice(
                    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80", b"\x01\0\0\0"]
                )
    return bytes(found)


def altered(document: Any, chosen: random.Random) -> Any:
    """A document in which something is left out, or is something else."""
    if isinstance(document, dict) and document and chosen.random() < 0.8:
        key = chosen.choice(list(document))
        if chosen.random() < 0.2:
            return {name: value for name, value in document.items() if name != key}
        return {**document, key: altered(document[key], chosen)}
    if isinstance(document, list) and document and chosen.random() < 0.8:
        place = chosen.randrange(len(document))
        return [*document[:place], altered(document[place], chosen), *document[place + 1 :]]
    return chosen.choice(ODD)


def read(data: bytes, chosen: random.Random) -> list[Frame]:
    """Frames of bytes that come in pieces."""
    decoder, found, position = Decoder(4096, 50), [], 0
    while position < len(data):
        place = decoder.buffer()
        count = min(len(place), chosen.choice([1, 7, 100, 10**6]), len(data) - position)
        place[:count] = data[position : position + count]
        position += count
        found.extend(decoder.advance(count))
    return found


VALUES = [
    np.float32(3),
    np.arange(20, dtype="int16").reshape(4, 5),
    np.array(["a", "ä"], dtype=np.dtypes.StringDType()),
    ArrayValue.from_written(3, {0: np.float32(1), 2: np.arange(3)}),
    StoreValue.empty().write((1, "a"), np.arange(3)).write((2, "b"), np.float32(1)),
    (np.arange(3), np.float32(1), None),
    None,
]


def taken(frame: Frame) -> None:
    """Read all that can be read of a frame."""
    with contextlib.suppress(FrameError):
        frame.document()
    with contextlib.suppress(FrameError):
        step_of(frame.head)
    with contextlib.suppress(FrameError):
        decode_token(frame.head, frame.arrays)
    with contextlib.suppress(FrameError):
        decode_value(frame.document(), frame.arrays)


@pytest.mark.parametrize("count", SIZES)
def test_damaged_frames_are_taken_or_refused(count: int):
    chosen = random.Random(count)
    whole: list[bytes] = []
    for value in VALUES:
        head, arrays = encode_token((5, 7), 3, (1, 2), value, False)
        whole.append(joined(encode(Kind.VALUE, head, arrays)))
        arrays = []
        described = {"values": encode_value(value, arrays)}
        whole.append(joined(encode_document(Kind.RESULT, described, arrays)) + whole[0])
    for _ in range(count):
        with contextlib.suppress(FrameError):
            for frame in read(damaged(chosen.choice(whole), chosen), chosen):
                taken(frame)


@pytest.mark.parametrize("count", SIZES)
def test_damaged_heads_and_descriptions_are_taken_or_refused(count: int):
    chosen = random.Random(count)
    heads = [encode_token((5, 7), 3, (1, 2), value, False)[0] for value in VALUES]
    arrays: list[Any] = []
    descriptions = [encode_value(value, arrays) for value in VALUES]
    for _ in range(count // 2):
        with contextlib.suppress(FrameError):
            decode_token(damaged(chosen.choice(heads), chosen), arrays)
        with contextlib.suppress(FrameError):
            decode_value(altered(chosen.choice(descriptions), chosen), arrays)


@pytest.mark.parametrize("count", SIZES)
def test_damaged_handshakes_let_nobody_in(count: int):
    chosen, token = random.Random(count), TOKEN.encode()
    task, client = Identity("/job:ps/task:0", 1), Identity("a client", 2)
    for _ in range(count // 10):
        one, other = Handshake(task, token, accepts=True), Handshake(client, b"another token, as long", accepts=False)
        said = [json.loads(read(joined(one.begin()), chosen)[0].head)]
        with contextlib.suppress(FrameError, RefusedError):
            answer = other.take(Frame(Kind.HELLO, json.dumps(altered(said[0], chosen)).encode(), []))
            document = json.loads(read(joined(answer), chosen)[0].head)
            one.take(Frame(Kind.PROOF, json.dumps(altered(document, chosen)).encode(), []))
        assert one.other is None
        with contextlib.suppress(FrameError, RefusedError):
            other.take(Frame(Kind.WELCOME, json.dumps(altered({"proof": "0" * 64}, chosen)).encode(), []))
        assert other.other is None


# --- a task ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Generator[ab.distribute.Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        with ab.distribute.Server({"worker": ["localhost:0"]}) as made:
            yield made


class Recorder:
    """Frames as a session sends them, taken down on the way."""

    def __init__(self, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[tuple[int, Any, list[Any]]] = []
        send = Channel.send

        def taking_down(channel: Channel, kind: int, document: Any, arrays: Any = ()) -> bool:
            self.frames.append((kind, document, list(arrays)))
            return send(channel, kind, document, arrays)

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "send", taking_down)
            x = ab.placeholder((3,), "float32", "x")
            w = ab.Variable([1.0, 2.0, 3.0], name=f"w {secrets.token_hex(4)}")
            last = ab.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, ab.ops.tanh(h) * w), (0, x))[1]
            session.run([last, w.assign(last)], {x: [1.0, 2.0, 3.0]})


def of_tasks(incarnation: int) -> list[tuple[int, Any, list[Any]]]:
    """Frames as a master and a sender of values send them."""
    return [
        (Kind.PROGRAM, {"program": 1, "session": 1, "targets": [], "feeds": [], "shapes": None, "budget": None}, []),
        (Kind.STEP, {"program": 1, "step": 1, "feeds": [[0, 0]], "trace": True, "timeout": 9.0}, [np.zeros(3)]),
        (Kind.STEP, {"program": 1, "step": 1, "feeds": [], "straight": {"run": 1, "way": 2, "feeds": [0]}}, []),
        (Kind.ABORT, {"step": 1, "report": True}, []),
        (Kind.FORGET, {"programs": [1], "session": 1}, []),
        (Kind.TEXT, {"program": 1}, []),
        (Kind.CLOCK, {"number": 1, "sent": 0.5}, []),
        (Kind.SLAB, {"slab": 1}, []),
        (Kind.DROPPED, {"slabs": [1]}, []),
        (Kind.TAKEN, {"slabs": [1]}, []),
        (Kind.VALUE, {"incarnation": incarnation}, [np.zeros(3)]),
    ]


def answers(server: Any, name: str, sends: list[tuple[int, Any, list[Any]]]) -> list[Frame]:
    """Return a task's answers to these frames, until it has answered what is asked in the end, or refuses."""
    info = server.task.information()
    where = (info.host, info.port)
    identity = Identity(name, secrets.randbits(60))
    channel = Channel(lambda: socket.create_connection(where, PATIENCE), identity, TOKEN.encode(), None, PATIENCE)
    found: list[Frame] = []
    try:
        for kind, document, arrays in sends:
            channel.send(kind, document, arrays)
        channel.send(Kind.STATUS, {})
        while not found or found[-1].kind not in (Kind.STATUS, Kind.REFUSED):
            found.append(channel.receive())
    except ConnectionError:
        pass
    finally:
        channel.close()
    return found


@pytest.mark.parametrize("count", [pytest.param(40), pytest.param(3000, marks=pytest.mark.slow)])
def test_a_task_survives_what_damaged_clients_send(
    server: Any, count: int, graph: ab.Graph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    chosen = random.Random(count)
    with ab.Session(graph, target=server.target) as session, ab.Session(ab.Graph(), target=server.target) as other:
        with graph.as_default():
            recorded = Recorder(session, monkeypatch).frames
        with other.graph.as_default():
            y = ab.constant(1.0) + 1.0
        assert {kind for kind, _, _ in recorded} == {Kind.GRAPH, Kind.PREPARE, Kind.RUN}
        kind, document, arrays = recorded[-1]
        recorded.append(
            (kind, {**document, "straight": {"run": 1, "ways": {"/job:ps/task:0": 3}, "feeds": [0]}}, arrays)
        )
        recorded.append((Kind.FED, {"run": 1, "values": [[0, 0]]}, [np.zeros(3, "float32")]))
        tasks = of_tasks(server.incarnation)
        for _ in range(count):
            kind, document, arrays = chosen.choice(recorded)
            before = [frame for frame in recorded[:2] if kind != Kind.GRAPH][: chosen.randint(0, 2)]
            sends = [*before, (chosen.choice([kind, kind, chosen.randrange(256)]), altered(document, chosen), arrays)]
            for frame in answers(server, "a damaged client", sends):
                assert b"error inside anabranch" not in frame.head, (sends[-1], frame)
            kind, document, arrays = chosen.choice(tasks)
            sends = [(kind, altered(document, chosen), arrays)]
            for frame in answers(server, f"/job:other/task:{chosen.randrange(9)}", sends):
                assert b"error inside anabranch" not in frame.head, (sends[-1], frame)
        assert other.run(y) == 2
    assert server.status().held["running"] == 0
    assert "Traceback" not in capsys.readouterr().err


# --- manifests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [pytest.param(300), pytest.param(MANY, marks=pytest.mark.slow)])
def test_damaged_manifests_are_read_or_refused(tmp_path: Path, count: int):
    v = ab.Variable(np.arange(6.0).reshape(2, 3), name="v")
    with ab.distribute.CheckpointManager(tmp_path, [v], save_async=False) as manager:
        manager.save(1)
        file = tmp_path / "step-1" / "manifest.json"
        whole = file.read_bytes()
        chosen = random.Random(count)
        for _ in range(count):
            data = damaged(whole, chosen)
            if chosen.random() < 0.5:
                document = altered(json.loads(whole), chosen)
                if isinstance(document, dict) and chosen.random() < 0.8:  # the checksum of what is there
                    document.pop("crc32", None)
                    document["crc32"] = files._crc32_of_json(document)
                data = json.dumps(document).encode()
            file.write_bytes(data)
            with contextlib.suppress(ab.errors.DataLossError, FileNotFoundError):
                dict(ab.io.checkpoint_reader(tmp_path / "step-1"))
