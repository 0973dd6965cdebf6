"""Readers, TFRecord files, and what turns records into tensors."""

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.waiting import PATIENCE, Waiting, wait_until

from anabranch import io
from anabranch.engine.common.deadlines import deadline
from anabranch.engine.graph import Graph
from anabranch.engine.queues import Coordinator, DeadlineExceededError, FIFOQueue, OutOfRangeError, start_queue_runners
from anabranch.engine.queues.errors import DataLossError
from anabranch.engine.readers.crc32c import crc32c, masked_crc32c
from anabranch.engine.readers.decoding import DecodeCsv, DecodeRaw
from anabranch.engine.saving import SavedGraphError, graph_from_dict, graph_to_dict
from anabranch.engine.session import Session, placeholder
from anabranch.engine.testing import check_op


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    with deadline(PATIENCE):
        yield


def names(*paths: Any) -> FIFOQueue:
    """A closed queue of file names."""
    queue = FIFOQueue(-1, "string", (), name="names")
    with Graph().as_default():
        Session().run([*[queue.enqueue(str(path)) for path in paths], queue.close()])
    return queue


def read_all(reader: io.Reader, *paths: Any) -> list[tuple[str, Any]]:
    """All records, read in a step of a session."""
    queue, found = names(*paths), []
    with Graph().as_default():
        key, value = reader.read(queue)
        session = Session()
        try:
            while True:
                found.append(session.run((key, value)))
        except OutOfRangeError:
            return found


# --- checksums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_checksums(data: bytes, expected: int):
    assert crc32c(data) == expected  # RFC 3720, B.4


def bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@given(st.binary(max_size=300), st.sampled_from([0, 64, 1000]))
def test_checksums_of_any_data(data: bytes, zeros: int):
    whole = data + bytes(zeros) + data

    assert crc32c(whole) == bit_by_bit(whole)


# --- TFRecord files -------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from([None, "GZIP"]))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[bytes], packing: str | None):
    path = tmp_path_factory.mktemp("records") / "r"
    with io.TFRecordWriter(path, packing) as writer:
        for record in records:
            writer.write(record)

    assert list(io.tf_record_iterator(path, packing)) == records


def test_a_file_is_what_the_format_says(tmp_path: Path):
    # b"x" as another implementation of the format writes it.
    with io.TFRecordWriter(tmp_path / "r") as writer:
        writer.write(np.array([120], "uint8"))

    length = struct.pack("<Q", 1)
    crc = bit_by_bit(b"x")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    header = struct.pack("<I", masked_crc32c(length))
    assert (tmp_path / "r").read_bytes() == length + header + b"x" + struct.pack("<I", masked)


@pytest.mark.parametrize("record", ["text", np.zeros((2, 2), "uint8"), np.zeros(2), None])
def test_a_record_is_bytes(record: Any, tmp_path: Path):
    with (
        io.TFRecordWriter(tmp_path / "r") as writer,
        pytest.raises(TypeError, match="A record is bytes or a vector of"),
    ):
        writer.write(record)


def test_damage_anywhere_is_found(tmp_path: Path):
    path = tmp_path / "r"
    with io.TFRecordWriter(path) as writer:
        writer.write(b"first")
        writer.write(b"second record")
    whole = path.read_bytes()

    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(
            DataLossError, match=rf"'.*r' is damaged at the record that begins at byte {21 * (place > 20)}"
        ):
            list(io.tf_record_iterator(path))
        path.write_bytes(whole[:place])
        if place in (0, 21):
            assert len(list(io.tf_record_iterator(path))) == place // 21
            continue
        with pytest.raises(DataLossError, match="the file ends within it, after"):
            list(io.tf_record_iterator(path))


def test_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "r"
    path.write_bytes(b"just some text that is no TFRecord file")
    with pytest.raises(DataLossError, match="the checksum of its length does not fit; it may be no TFRecord file"):
        list(io.tf_record_iterator(path))
    with pytest.raises(DataLossError, match="it can't be read"):
        list(io.tf_record_iterator(path, "GZIP"))
    path.write_bytes(gzip.compress(b"0123456789")[:-9])
    with pytest.raises(DataLossError, match="it can't be read"):
        list(io.tf_record_iterator(path, "GZIP"))
    with pytest.raises(FileNotFoundError, match="missing"):
        list(io.tf_record_iterator(tmp_path / "missing"))
    with pytest.raises(ValueError, match="compression_type must be None or 'GZIP'; got 'LZ4'"):
        io.TFRecordWriter(path, "LZ4")


def test_a_length_beyond_memory_is_damage(tmp_path: Path):
    length = struct.pack("<Q", 2**63)
    (tmp_path / "r").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x")

    with pytest.raises(DataLossError, match="is damaged at the record that begins at byte 0"):
        list(io.tf_record_iterator(tmp_path / "r"))


# --- readers --------------------------------------------------------------------------------------------------------


def test_lines_of_text(tmp_path: Path):
    (tmp_path / "a").write_bytes("head\r\nöne\r\n\ntwo".encode())
    (tmp_path / "empty").touch()
    (tmp_path / "b").write_text("head\nlast\n")
    reader = io.TextLineReader(skip_header_lines=1)

    found = read_all(reader, tmp_path / "a", tmp_path / "empty", tmp_path / "b")

    a, b = tmp_path / "a", tmp_path / "b"
    assert found == [(f"{a}:2", "öne"), (f"{a}:3", ""), (f"{a}:4", "two"), (f"{b}:2", "last")]
    assert reader.statistics() == (4, 3, None)


def test_records_of_fixed_length(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"H" + bytes(range(6)) + b"FF")
    whole = io.FixedLengthRecordReader(2, header_bytes=1, footer_bytes=2)
    hopping = io.FixedLengthRecordReader(2, 1, 2, hop_bytes=4)

    assert [value.tolist() for _, value in read_all(whole, tmp_path / "a")] == [[0, 1], [2, 3], [4, 5]]
    assert [key[-2:] for key, _ in read_all(whole, tmp_path / "a")] == [":0", ":1", ":2"]
    assert [value.tolist() for _, value in read_all(hopping, tmp_path / "a")] == [[0, 1], [4, 5]]


def test_tf_records(tmp_path: Path):
    with io.TFRecordWriter(tmp_path / "a") as writer:
        for record in (b"", b"abc"):
            writer.write(record)

    found = read_all(io.TFRecordReader(), tmp_path / "a")

    assert [(key.rpartition(":")[2], value.tobytes(), value.dtype) for key, value in found] == [
        ("0", b"", np.uint8),
        ("16", b"abc", np.uint8),
    ]


def test_rows_of_hdf5(tmp_path: Path):
    path, x = tmp_path / "a.h5", np.arange(600, dtype="float32").reshape(300, 2)
    with h5py.File(path, "w") as file:
        file["in/x"], file["y"] = x, np.arange(300, dtype="int64")
    reader = io.HDF5Reader(["in/x", "y"], ["float32", "int64"], [(2,), ()])

    found = read_all(reader, path)

    np.testing.assert_array_equal([value[0] for _, value in found], x)
    assert [value[1] for _, value in found] == list(range(300))
    assert found[299][0] == f"{path}:299"
    with Graph().as_default():
        key, (first, second) = reader.read(names(path))
    assert [str(t.spec) for t in (key, first, second)] == ["string[]", "float32[2]", "int64[]"]


HDF5: list[tuple[Any, type[Exception], str]] = [
    (
        io.HDF5Reader("z", "float32"),
        KeyError,
        r"has no data set 'z'; at its top it has \['group', 'scalar', 'x', 'y'\]",
    ),
    (io.HDF5Reader("group", "float32"), KeyError, "has no data set 'group'"),
    (io.HDF5Reader("scalar", "float64"), ValueError, "data set '/scalar' is a single value and has no rows"),
    (
        io.HDF5Reader("x", "int32"),
        ValueError,
        r"data set '/x' are float32\[2\]; 'hdf5_reader' was made for int32\[\.\.",
    ),
    (io.HDF5Reader("x", "float32", (3,)), ValueError, r"are float32\[2\]; 'hdf5_reader' was made for float32\[3\]"),
    (io.HDF5Reader(["x", "y"], ["float32", "int64"]), ValueError, r"differ in their numbers of rows: \[3, 4\]"),
]


@pytest.mark.parametrize(("reader", "error", "match"), HDF5)
def test_data_sets_that_do_not_fit(reader: Any, error: type[Exception], match: str, tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["scalar"] = np.zeros((3, 2), "float32"), np.zeros(4, "int64"), 1.5
        file.create_group("group")

    with pytest.raises(error, match=match):
        reader.read(names(tmp_path / "a.h5"))


def test_what_is_no_hdf5_file(tmp_path: Path):
    (tmp_path / "a.h5").write_bytes(b"x" * 100)
    with pytest.raises(DataLossError, match=r"a\.h5' can't be read as an HDF5 file"):
        io.HDF5Reader("x", "float32").read(names(tmp_path / "a.h5"))
    with pytest.raises(ValueError, match="2 data sets, 1 dtypes and 1 shapes were given"):
        io.HDF5Reader(["x", "y"], ["float32"])


def test_records_are_stacked(tmp_path: Path):
    (tmp_path / "a").write_bytes(bytes(range(6)))
    (tmp_path / "b").write_bytes(bytes(range(10, 14)))
    reader, queue = io.FixedLengthRecordReader(2), names(tmp_path / "a", tmp_path / "b")
    with Graph().as_default():
        keys, values = reader.read_up_to(queue, 4)
        session = Session()
        found = [session.run(values).tolist() for _ in range(2)]
        with pytest.raises(OutOfRangeError):
            session.run(keys)

    assert found == [[[0, 1], [2, 3], [4, 5], [10, 11]], [[12, 13]]]
    assert [str(t.spec) for t in (keys, values)] == ["string[?]", "uint8[?,2]"]
    with pytest.raises(ValueError, match="TFRecordReader 'tf_record_reader': its records differ in shape and can't be"):
        io.TFRecordReader().read_up_to(queue, 2)
    with pytest.raises(ValueError, match="num_records must be at least 1; got 0"):
        reader.read_up_to(queue, 0)


def test_reading_at_once(tmp_path: Path):
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    reader, queue = io.TextLineReader(), names(tmp_path / "a")

    assert reader.read(queue) == (f"{tmp_path / 'a'}:1", "one")
    assert reader.read_up_to(queue, 5)[1].tolist() == ["two", "three"]


def test_a_damaged_file_is_left_for_the_next(tmp_path: Path):
    (tmp_path / "bad").write_bytes(b"good\n\xff\xfe\nnever read\n")
    (tmp_path / "cut").write_bytes(bytes(3))
    (tmp_path / "good").write_text("fine")
    lines, queue = io.TextLineReader(), names(tmp_path / "bad", tmp_path / "missing", tmp_path / "good")

    assert lines.read(queue)[1] == "good"
    with pytest.raises(
        DataLossError, match=r"Line 2 of '.*bad' is no UTF-8 text .* FixedLengthRecordReader reads plain"
    ):
        lines.read(queue)
    with pytest.raises(FileNotFoundError, match="missing"):
        lines.read(queue)
    assert lines.read(queue)[1] == "fine"
    fixed, queue = io.FixedLengthRecordReader(2), names(tmp_path / "cut")
    assert fixed.read(queue)[1].tolist() == [0, 0]
    with pytest.raises(DataLossError, match=r"ends within record 1: 1 of 2 bytes are left\. Check record_bytes"):
        fixed.read(queue)


def test_reset_goes_on_with_the_next_file(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    reader, queue = io.TextLineReader(), names(tmp_path / "a", tmp_path / "b")
    assert reader.read(queue)[1] == "a1"
    assert reader.statistics() == (1, 0, str(tmp_path / "a"))
    reader.reset()

    assert reader.read(queue)[1] == "b1"


def test_readers_that_cannot_be():
    with pytest.raises(
        ValueError, match="record_bytes must be at least 1 and the others not negative; got record_bytes=0"
    ):
        io.FixedLengthRecordReader(0)
    with pytest.raises(
        TypeError, match=r"TextLineReader 'text_line_reader'\.read takes a queue of file names.*got 'a'"
    ):
        io.TextLineReader().read("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a queue of file names.*got <FIFOQueue 'fifo_queue'>"):
        io.TextLineReader().read(FIFOQueue(1, "int32"))


def test_a_reader_waits_for_names_and_serves_one_thread_at_a_time(tmp_path: Path):
    (tmp_path / "a").write_text("one\n")
    queue, reader = FIFOQueue(3, "string", ()), io.TextLineReader()
    with Graph().as_default() as graph:
        _, line = reader.read(queue)
    session = Session(graph)
    waiting = Waiting(lambda: session.run(line))
    wait_until(queue, pending_dequeues=1)

    with pytest.raises(DeadlineExceededError, match="TextLineReader 'text_line_reader' is in use by another thread"):
        session.run(line, timeout=0)
    queue.enqueue(str(tmp_path / "a"))
    assert waiting.result() == "one"
    with pytest.raises(DeadlineExceededError, match="dequeue of 1 element from queue 'fifo_queue'"):
        session.run(line, timeout=0)


# --- names of files -------------------------------------------------------------------------------------------------


def produced(**options: Any) -> list[str]:
    with Graph().as_default() as graph:
        queue = io.string_input_producer(["a", "b", "c"], capacity=2, **options)
        name, coordinator, found = queue.dequeue(), Coordinator(), []
    session = Session(graph)
    threads = start_queue_runners(session, coordinator)
    try:
        while True:
            found.append(session.run(name, timeout=PATIENCE))
    except OutOfRangeError:
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=PATIENCE)
    return found


def test_names_come_once_an_epoch():
    assert produced(num_epochs=2, shuffle=False) == ["a", "b", "c"] * 2
    shuffled = produced(num_epochs=8, seed=3)
    epochs = [shuffled[start : start + 3] for start in range(0, 24, 3)]
    assert all(sorted(epoch) == ["a", "b", "c"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 2
    assert produced(num_epochs=8, seed=3) == shuffled != produced(num_epochs=8, seed=4)


@pytest.mark.parametrize("given", [[], "a", [1, 2]])
def test_names_are_strings(given: Any):
    with pytest.raises(ValueError, match="string_input_producer takes a list of strings, at least one"):
        io.string_input_producer(given)
    with pytest.raises(ValueError, match="num_epochs must be at least 1, or None; got 0"):
        io.string_input_producer(["a"], num_epochs=0)


# --- decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [DecodeRaw, DecodeCsv])
def test_decoding_by_its_samples(op: Any):
    assert sum(check_op(op, verbose=False).values()) > 20


@given(st.sampled_from(["uint8", "int16", "uint32", "int64", "float16", "float64", "bool"]), st.booleans())
def test_numbers_come_back_from_bytes(dtype: str, little: bool):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    stored = np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<" if little else ">"))).view("uint8")

    with Graph().as_default():
        x = placeholder((2, None), "uint8")
        found = Session().run(io.decode_raw(x, dtype, little), {x: stored})

    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, values)


def test_bytes_that_do_not_divide():
    with Graph().as_default():
        x = placeholder((None,), "uint8")
        number = io.decode_raw(x, "int32")
        with pytest.raises(ValueError, match=r"bytes of shape \[3\] do not divide into int32 of 4 bytes"):
            Session().run(number, {x: np.zeros(3, "uint8")})
        with pytest.raises(ValueError, match=r"bytes of shape \[2,6\] do not divide into float32"):
            io.decode_raw(placeholder((2, 6), "uint8"), "float32")
        with pytest.raises(TypeError, match=r"decode_raw takes bytes \(uint8\), as readers give them; got string\[\]"):
            io.decode_raw("text", "int32")
        with pytest.raises(TypeError, match="gives numbers or bools; out_type=string is neither"):
            io.decode_raw(x, "string")
        with pytest.raises(ValueError, match="takes vectors of bytes, or rows of them; got a single byte"):
            io.decode_raw(placeholder((), "uint8"), "int32")


def fields(lines: Any, *arguments: Any, **options: Any) -> Any:
    with Graph().as_default():
        return Session().run(io.decode_csv(lines, *arguments, **options))


def test_fields_of_lines():
    whole, real, text = fields([["1,2.5,x"], [",NA,"]], [[7], np.float64(0.1), "none"], na_value="NA")

    assert (whole.tolist(), whole.dtype) == ([[1], [7]], np.int32)
    assert (real.tolist(), real.dtype) == ([[2.5], [0.1]], np.float64)
    assert text.tolist() == [["x"], ["none"]]
    assert fields('"a; ""b""";2', ["", 0], ";") == ['a; "b"', 2]
    assert fields('"a";2', ["", 0], ";", use_quote_delim=False) == ['"a"', 2]
    assert fields(["1", ""], [4])[0].tolist() == [1, 4]
    assert fields("1,2,3,4", [0, 0], select_cols=[1, 3]) == [2, 4]
    assert fields("9999999999", [np.int64])[0] == 9999999999


@pytest.mark.parametrize(
    ("line", "defaults", "match"),
    [
        ("1,2,3", [0, 0], "line 0 has 3 fields, but 2 were expected: '1,2,3'"),
        ("1,", [0, np.dtype("int32")], "field 1 of line 0 is empty and has no default: '1,'"),
        ("1,", [0, np.zeros(0, "float32")], "field 1 of line 0 is empty and has no default"),
        ("1.5", [0], "field 0 of line 0 is no int32: '1.5'"),
        ("99999999999", [0], "field 0 of line 0 is no int32: '99999999999'"),
        ('"a', [""], "line 0 is no CSV"),
        ("", [1, 2], "line 0 has 1 fields, but 2 were expected"),
    ],
)
def test_lines_that_do_not_fit(line: str, defaults: list[Any], match: str):
    with pytest.raises(ValueError, match=f"decode_csv: {match}"):
        fields([line], defaults)


def test_columns_that_cannot_be():
    with pytest.raises(ValueError, match="record_defaults is empty"):
        fields("1", [])
    with pytest.raises(TypeError, match="columns are int32, int64, float32, float64 or string; got bool by True"):
        fields("1", [True])
    with pytest.raises(ValueError, match=r"select_cols must be ascending, with one column for each of the 1 defaults"):
        fields("1,2", [1], select_cols=[0, 1])
    with pytest.raises(ValueError, match=r"line 0 has no column 3: '1,2'"):
        fields("1,2", [1], select_cols=[3])
    with pytest.raises(ValueError, match="field_delim must be a single character; got ', '"):
        fields("1,2", [1, 2], ", ")
    with pytest.raises(TypeError, match=r"decode_csv takes strings; got int32\[\]"):
        fields(1, [1])


# --- saved graphs ---------------------------------------------------------------------------------------------------


def test_readers_in_saved_graphs_begin_anew(tmp_path: Path):
    path = tmp_path / "lines.txt"
    path.write_text("skipped\na\nb\n")
    readers = [
        (lambda: io.TextLineReader(1), "a"),
        (lambda: io.FixedLengthRecordReader(2, 1, 3, 4), list(b"ki")),
    ]
    for make, first in readers:
        with Graph().as_default() as graph:
            queue = io.string_input_producer([str(path)], num_epochs=2, shuffle=False)
            value = make().read(queue)[1]
            fill = graph.queue_runners[0].enqueue_ops[0]
        for _ in range(2):
            again = graph_from_dict(graph_to_dict(graph))
            session = Session(again)
            session.run(again.operations[fill.index])
            assert np.asarray(session.run(f"{value.name}")).tolist() == first


def test_a_reader_of_a_users_own_class_is_not_taken_for_another(tmp_path: Path):
    class Shouting(io.TextLineReader):
        pass

    with Graph().as_default() as graph:
        Shouting().read(FIFOQueue(3, "string", ()))
    with pytest.raises(SavedGraphError, match="'reader' holds a value of type Shouting"):
        graph_to_dict(graph)
