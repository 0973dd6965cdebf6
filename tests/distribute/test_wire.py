"""Frames: what is written is read, in pieces of any size, and what is no frame is refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.distribute.transport.values import (
    Received,
    Sent,
    SmallFrames,
    SmallValues,
    decode_token,
    decode_value,
    encode_token,
    encode_value,
    step_of,
)
from anabranch.distribute.transport.wire import PREFIX, Decoder, Frame, FrameError, Kind, encode, encode_document
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.ops.containers.store_value import StoreValue

ARRAYS = [
    np.float32(3),
    np.bool_(True),
    np.arange(10),
    np.zeros((0, 3), "float32"),
    np.arange(120_000, dtype="float64").reshape(300, 400),
    np.arange(12, dtype="int16").reshape(3, 4).T,
    np.ones(3, as_dtype("bfloat16")),
    np.array([1 + 2j], "complex64"),
]


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def read(data: bytes, piece: int, decoder: Decoder | None = None) -> list[Frame]:
    decoder = decoder or Decoder()
    found: list[Frame] = []
    position = 0
    while position < len(data):
        place = decoder.buffer()
        count = min(len(place), piece, len(data) - position)
        place[:count] = data[position : position + count]
        position += count
        found.extend(decoder.advance(count))
    return found


def assert_same(value: Any, expected: Any) -> None:
    assert np.ndim(value) or isinstance(value, np.generic)  # numbers are scalars while a step runs
    assert np.asarray(value).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(np.asarray(value), np.asarray(expected))


@pytest.mark.parametrize("piece", [1, 7, 4096, 10**7])
def test_frames_come_out_as_they_went_in(piece: int):
    some = ARRAYS if piece > 1 else [array for array in ARRAYS if array.nbytes < 1000]
    data = joined(encode(5, b"head", some)) + joined(encode(6, b"")) + joined(encode_document(7, {"a": [1]}, some[:1]))
    first, second, third = read(data, piece)
    assert (first.kind, first.head, len(first.arrays)) == (5, b"head", len(some))
    for value, expected in zip(first.arrays, some, strict=True):
        assert_same(value, expected)
    assert second == Frame(6, b"", [])
    assert third.document() == {"a": [1]}


def test_large_arrays_are_read_into_their_own_memory():
    data = joined(encode(1, b"", [np.zeros(1 << 20, "uint8")]))
    decoder = Decoder()
    sizes: list[int] = []
    position = 0
    while position < len(data):
        place = decoder.buffer()
        sizes.append(len(place))
        count = min(len(place), len(data) - position)
        place[:count] = data[position : position + count]
        position += count
        list(decoder.advance(count))
    assert max(sizes[1:]) > 1 << 19  # what the first piece did not bring comes in one
    assert len(sizes) == 2


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_arrays_of_equal_frames_have_memory_of_their_own(piece: int):
    decoder = Decoder()
    written = [joined(encode(Kind.VALUE, b"", [np.full((2, 2), number, "float32")])) for number in range(3)]
    first, second, third = (frame.arrays[0] for frame in read(b"".join(written), piece, decoder))
    second += 5
    assert [array.tolist() for array in (first, second, third)] == [[[n, n], [n, n]] for n in (0, 6, 2)]
    for _ in range(2):
        with pytest.raises(FrameError, match="float31"):
            read(written[0].replace(b"float32", b"float31"), piece)


def test_arrays_are_not_copied_when_they_are_written():
    array = np.zeros(1000)
    payload = encode(1, b"", [array])[-1]
    assert np.shares_memory(np.frombuffer(payload, "uint8"), array)


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(1, 1 << 31, 0, 0),
        PREFIX.pack(1, 0, 0, 1 << 31),
        PREFIX.pack(1, 0, 1, 1) + b"\x07",
        PREFIX.pack(1, 0, 10, 1) + struct.pack("<BBQ", 7, 200, 1),
        PREFIX.pack(1, 0, 18, 1) + struct.pack("<BBQ", 8, 1, 1 << 60) + b"float32\0",
        PREFIX.pack(1, 0, 17, 1) + struct.pack("<BBQ", 7, 1, 1 << 50) + b"float32",
        PREFIX.pack(1, 0, 16, 1) + struct.pack("<BBQ", 6, 1, 1) + b"string",
        PREFIX.pack(1, 0, 16, 1) + struct.pack("<BBQ", 6, 1, 1) + b"object",
        PREFIX.pack(1, 0, 15, 1) + struct.pack("<BBQ", 4, 1, 1) + b"int8x",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes):
    with pytest.raises(FrameError):
        read(data, 10**6)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_frames_or_refused(data: bytes, piece: int):
    decoder = Decoder(4096, 100)
    with contextlib.suppress(FrameError):
        read(data, piece, decoder)


@given(st.data())
def test_a_damaged_frame_is_a_frame_or_refused(data: st.DataObject):
    whole = bytearray(joined(encode_document(5, {"a": 1}, [np.arange(4), np.float32(2), np.zeros((2, 3))])))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        for frame in read(bytes(whole), 64, Decoder(4096, 100)):
            frame.document()
    except FrameError:
        pass


# --- values ---------------------------------------------------------------------------------------------------------


def through(value: Any) -> Any:
    """A value as it is on the other side."""
    head, arrays = encode_token((2**63 - 1, 7), 3, (4, 0), value, False)
    (frame,) = read(joined(encode(1, head, arrays)), 10**6)
    assert step_of(frame.head) == (2**63 - 1, 7)
    edge, tag, found, is_dead = decode_token(frame.head, frame.arrays)
    assert (edge, tag, is_dead) == (3, (4, 0), False)
    return found


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_values_cross(number: int):
    assert_same(through(ARRAYS[number]), ARRAYS[number])


@pytest.mark.parametrize("name", ["bool", "int8", "int64", "uint16", "uint64", "float16", "float32", "float64"])
def test_numbers_travel_in_the_head(name: str):
    for number in (0, 1, 100):
        head, arrays = encode_token((1, 2), 3, (4,), np.dtype(name).type(number), False)
        assert not arrays
        assert_same(decode_token(head, arrays)[2], np.dtype(name).type(number))


def test_strings_controls_and_dead_values_cross():
    text = np.array([["a", "ä\0"], ["", "日本"]], as_dtype("string"))
    found = through(text)
    assert found.dtype == text.dtype
    assert found.tolist() == text.tolist()
    assert through(None) is None
    head, arrays = encode_token((1, 2), 3, (), None, True)
    assert decode_token(head, arrays) == (3, (), None, True)


def test_arrays_of_elements_cross():
    dense = through(ArrayValue.from_stacked(np.arange(6.0).reshape(3, 2)))
    np.testing.assert_array_equal(dense.stack(None, None), np.arange(6.0).reshape(3, 2))
    ragged = through(ArrayValue.from_written(4, {0: np.float32(1), 2: np.arange(3)}))
    assert [ragged.has(index) for index in range(4)] == [True, False, True, False]
    assert_same(ragged.read(0), np.float32(1))
    assert_same(ragged.read(2), np.arange(3))
    nested = through(ArrayValue.from_list([ArrayValue.from_list([np.int32(1)]), None]))
    assert_same(nested.read(0).read(0), np.int32(1))
    assert nested.has(1)
    assert nested.read_or_none(1) is None
    assert through(ArrayValue.empty(2)).size == 2


def test_what_does_not_leave_its_task_is_named():
    with pytest.raises(TypeError, match="a value of type object does not leave its task"):
        encode_value(object(), [])


@pytest.mark.parametrize("description", [5, -1, {}, {"stacked": 9}, {"elements": [[1]], "size": 1}, {"text": 3}, "x"])
def test_damaged_descriptions_are_refused(description: Any):
    with pytest.raises(FrameError):
        decode_value(description, [np.zeros(2)])


@given(st.binary(max_size=80))
def test_any_head_is_a_value_or_refused(head: bytes):
    with contextlib.suppress(FrameError):
        decode_token(head, [])
    frame = joined(encode(Kind.VALUE, head))
    if in_place(frame)[0]:
        decode_token(head, [])


def in_place(data: bytes | bytearray, count: int | None = None) -> tuple[list[Any], int]:
    """The values that are taken in place, each with its step, and the bytes that are done with."""
    found: list[Any] = []

    def of_step(step: tuple[int, int]) -> Any:
        return lambda *value: found.append((step, *value)), None

    done, taken = SmallValues(of_step).take(memoryview(data), len(data) if count is None else count)
    assert taken == len(found)
    return found, done


NUMBERS = st.one_of(
    st.none(),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.booleans().map(np.bool_),
    st.sampled_from(
        [np.arange(3.0), np.zeros((0, 4), "int32"), np.arange(12, dtype="uint8").reshape(3, 4).T, np.arange(1000)]
    ),
)
TAGS = st.lists(st.integers(0, 2**63), max_size=9).map(tuple)


@given(st.lists(st.tuples(st.integers(0, 99), TAGS, NUMBERS, st.booleans()), max_size=12), st.integers(1, 400))
def test_small_values_come_out_in_place_as_by_frames(tokens: list[Any], piece: int):
    data, expected = b"", []
    for edge, tag, value, is_dead in tokens:
        whole = joined(encode(Kind.VALUE, *encode_token((5, 7), edge, tag, value, is_dead)))
        assert SmallFrames((5, 7)).frame(edge, tag, value, is_dead) in (None, whole)
        data += whole
        expected.append((edge, tag, None if is_dead or value is None else np.asarray(value).tobytes(), is_dead))
    found: list[Any] = []

    def of_step(step: tuple[int, int]) -> Any:
        assert step == (5, 7)
        return lambda *value: found.append(value), None

    small = SmallValues(of_step)
    decoder, position, in_heads = Decoder(), 0, 0
    while position < len(data):
        place = decoder.buffer()
        count = min(len(place), piece, len(data) - position)
        place[:count] = data[position : position + count]
        position += count
        before = len(found)
        first, taken = decoder.small_values(count, small.take)
        assert taken == len(found) - before
        in_heads += taken
        found += [decode_token(frame.head, frame.arrays) for frame in decoder.advance(count, first)]
    assert [
        (*each[:2], None if each[2] is None else np.asarray(each[2]).tobytes(), each[3]) for each in found
    ] == expected
    if piece == 400 and tokens and np.size(tokens[0][2]) < 13 and len(tokens[0][1]) < 8:
        assert in_heads


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_table_is_that_of_an_array_or_refused(table: bytes, rest: bytes):
    head, _ = encode_token((5, 7), 3, (1,), np.zeros(2), False)
    frame = PREFIX.pack(Kind.VALUE, len(head), len(table), 1) + head + table + rest
    with contextlib.suppress(FrameError):
        assert in_place(frame)[1] <= len(frame)


def test_small_arrays_have_memory_of_their_own():
    given_array = np.arange(6, dtype="float32").reshape(2, 3)
    frame = SmallFrames((5, 7)).frame(3, (1,), given_array, False)
    assert frame is not None
    buffer = bytearray(frame)
    ((_, edge, tag, found, is_dead),), end = in_place(buffer)
    buffer[:] = bytes(len(buffer))
    assert_same(found, given_array)
    assert found.flags.owndata
    assert found.flags.writeable
    assert (edge, tag, is_dead, end) == (3, (1,), False, len(frame))


def test_values_that_have_not_come_whole_are_left_where_they_are():
    """Behind what has come there are bytes of earlier frames."""
    frames = SmallFrames((5, 7))
    written = [frames.frame(3, (number,), np.float32(number), False) or b"" for number in range(3)]
    size = len(written[0])
    for count in range(2 * size, 3 * size):
        found, done = in_place(b"".join(written), count)
        assert [value[2:4] for value in found] == [((0,), 0.0), ((1,), 1.0)]
        assert done == 2 * size


def test_values_are_taken_as_long_as_their_step_runs():
    running = {(5, 7), (5, 8)}
    found: list[Any] = []
    failures: list[Any] = []

    def take(edge: int, tag: tuple[int, ...], value: Any, is_dead: bool) -> None:
        if edge == 9:
            raise ValueError("not here")
        found.append(int(value))

    def failed(edge: int, error: Exception) -> None:
        failures.append((edge, str(error)))
        running.discard((5, 8))
        small.forget()

    small = SmallValues(lambda step: (take, failed) if step in running else None)
    data = b"".join(
        SmallFrames((5, step)).frame(edge, (), np.int64(number), False) or b""
        for number, (step, edge) in enumerate([(7, 3), (8, 3), (8, 9), (7, 3), (8, 3), (7, 3)])
    )
    done, taken = small.take(memoryview(data), len(data))
    assert (found, failures) == ([0, 1, 3], [(9, "not here")])
    assert (done, taken) == (4 * len(data) // 6, 4)


def test_large_arrays_and_those_of_lossy_edges_are_no_small_frames():
    frames = SmallFrames((5, 7), lossy={4})
    value = np.zeros(100, "float32")
    assert frames.frame(3, (), value, False, most=400) is not None
    assert frames.frame(3, (), value, False, most=399) is None
    assert frames.frame(4, (), value, False) is None


# --- arrays that grow -----------------------------------------------------------------------------------------------


def changed_by(value: Any, action: str, at: int, number: int) -> Any:
    if isinstance(value, StoreValue):
        match action:
            case "write":
                return value.add_at(at, np.float32(number))
            case "clear":
                return value.clear(("pair", at)).write(("pair", at), np.arange(number % 3))
            case _:
                return value.clear(at)
    match action:
        case "write":
            return value.write(at, np.float32(number), dynamic_size=True)
        case "clear":
            return value.clear(min(at, value.size - 1)) if value.size else value
        case _:
            return value.grown(value.size + 1)


def held_by(value: Any) -> Any:
    if isinstance(value, StoreValue):
        return {key: np.asarray(element).tolist() for key, element in value.items()}
    return [np.asarray(value.read(k)).tolist() if value.has(k) else None for k in range(value.size)]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "clear", "grow", "send", "send", "back"]), st.integers(0, 7)),
    max_size=40,
)


@given(ACTIONS, st.booleans(), st.booleans())
def test_arrays_arrive_whole_whatever_was_sent_before(actions: list[Any], is_store: bool, is_dense: bool):
    value: Any = StoreValue.empty() if is_store else ArrayValue.empty(3)
    if is_dense and not is_store:
        value = ArrayValue.from_stacked(np.arange(6, dtype="float32"))
    kept, sent, received = [value], Sent(), Received()
    for number, (action, at) in enumerate([*actions, ("send", 0)]):
        if action == "back":  # an earlier value, of which another chain begins
            value = kept[at % len(kept)]
        elif action != "send":
            value = changed_by(value, action, at, number)
            kept.append(value)
        else:
            head, arrays = encode_token((5, 7), 3, (number,), value, False, sent=sent)
            _, tag, found, _ = decode_token(head, [array[()] for array in arrays], received)
            assert tag == (number,)
            assert held_by(found) == held_by(value)
            if at % 2:  # who has received it writes to it, which changes nothing of what comes later
                changed_by(found, "write", at, -1)


@pytest.mark.parametrize("start", [ArrayValue.empty(0), StoreValue.empty()])
def test_what_grows_sends_each_element_once(start: Any):
    value, sent, received, counts = start, Sent(), Received(), []
    for number in range(50):
        value = changed_by(value, "write", number, number)
        head, arrays = encode_token((5, 7), 3, (number,), value, False, sent=sent)
        counts.append(len(arrays))
        found = decode_token(head, [array[()] for array in arrays], received)[2]
    assert held_by(found) == held_by(value)
    assert set(counts[2:]) == {1}


def test_parts_of_scheduled_functions_send_what_stays_the_same_once():
    state, sent, received, counts = np.arange(6.0), Sent(), Received(), []
    for number in range(4):
        if number == 2:
            state = state + 1
        part = (np.full((number, 2), number), state, np.float32(number))
        head, arrays = encode_token((5, 7), 3, (number,), part, False, sent=sent)
        counts.append(len(arrays))
        found = decode_token(head, [array if array.ndim else array[()] for array in arrays], received)[2]
        assert isinstance(found, tuple)
        for value, right in zip(found, part, strict=True):
            np.testing.assert_array_equal(value, right)
    assert counts == [3, 2, 3, 2]


def test_parts_that_continue_no_part_are_refused():
    described = {"since": [1], "same": [1], "tuple": [0, None]}
    received = Received()
    for before in (ArrayValue.empty(3), (np.float32(1),)):
        arrays: list[Any] = []
        received.value(4, (1,), encode_value(before, arrays), arrays)
        with pytest.raises(FrameError):
            received.value(4, (2,), described, [np.arange(3)])


@pytest.mark.parametrize(
    "described",
    [
        {"since": [3], "size": 4, "cleared": [], "elements": []},
        {"since": [1], "size": 2, "cleared": [], "elements": []},
        {"since": [1], "size": 1 << 40, "cleared": [], "elements": []},
        {"since": [1], "size": 4, "cleared": [], "elements": [[9, None]]},
        {"since": [1], "size": 4, "cleared": ["x"], "elements": []},
        {"since": 1, "size": 4, "cleared": [], "elements": []},
        {"since": [1]},
    ],
)
def test_what_does_not_continue_is_refused(described: Any):
    received = Received()
    with pytest.raises(FrameError):
        received.value(4, (1,), described, [])
    received.value(4, (1,), encode_value(ArrayValue.empty(3), []), [])
    with pytest.raises(FrameError):
        received.value(4, (2,), described, [])
