"""Timelines: what is recorded is written as Perfetto reads it; summaries; traces that overlap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.timelines import read_text, read_timeline
from shared.waiting import Waiting

import anabranch as ab
from anabranch.engine.tracing import Recorder, current, write_timeline
from anabranch.engine.tracing.summary import summarise
from anabranch.engine.tracing.timeline import (
    _microseconds,  # pyright: ignore[reportPrivateUsage]
    timeline,
)

MS = 1e-3


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


# --- the writer -----------------------------------------------------------------------------------------------------


def test_slices_counters_and_instants(recorder: Recorder, path: Path):
    recorder.kernel("cpu:0", "compute", "matmul", 10.0, 10.25, {"operation": "dense/matmul", "size": 3})
    recorder.span(("cpu:0", "compute"), "iteration 0", 9.5, 10.5)
    recorder.counter("cpu:0", "bytes", 9.75, 128)
    recorder.instant(("cpu:0", "scheduler"), "abort", 10.125, {"why": ValueError("x")})
    write_timeline(recorder.events, path)
    found = read_timeline(path)
    outer, inner = found.slices
    assert (outer.name, outer.start, outer.end, outer.is_kernel) == ("iteration 0", 0, 1_000_000_000, False)
    assert (inner.name, inner.start, inner.end, inner.is_kernel) == ("matmul", 500_000_000, 750_000_000, True)
    assert inner.parent is outer
    assert inner.args == {"operation": "dense/matmul", "size": 3}
    assert found.counters == [("cpu:0", "bytes", 128)]
    assert found.instants == [
        {"name": "abort", "time": 625_000_000, "device": "cpu:0", "stream": "scheduler", "why": "x"}
    ]


def test_details_may_be_a_function_that_is_called_when_they_are_written(recorder: Recorder, path: Path):
    called: list[int] = []

    def details() -> dict[str, int]:
        called.append(1)
        return {"n": 7}

    recorder.kernel("cpu:0", "compute", "add", 0.0, 1.0, details)
    assert not called
    write_timeline(recorder.events, path)
    assert read_timeline(path).slices[0].args == {"n": 7}


def test_lanes_come_in_order(recorder: Recorder, path: Path):
    for device in ("sim:10", "cpu:0", "sim:2"):
        for stream in ("zeta", "d2h", "h2d", "compute", "scheduler", "compute (worker 10)", "compute (worker 9)"):
            recorder.kernel(device, stream, "k", 0.0, 1.0)
    write_timeline(recorder.events, path)
    streams = ["scheduler", "compute", "compute (worker 9)", "compute (worker 10)", "h2d", "d2h", "zeta"]
    assert read_timeline(path).streams == [(d, s) for d in ("cpu:0", "sim:2", "sim:10") for s in streams]


def test_slices_that_cross_get_rows_of_their_own(recorder: Recorder, path: Path):
    for number in range(3):  # three iterations in flight, as parallel_iterations=3 has them
        recorder.span(("cpu:0", "iterations"), f"iteration {number}", float(number), number + 2.5)
    recorder.span(("cpu:0", "iterations"), "iteration 3", 3.0, 5.5)
    write_timeline(recorder.events, path)
    rows = {each.name: each.stream for each in read_timeline(path).slices}
    assert rows == {
        "iteration 0": "iterations",
        "iteration 1": "iterations [2]",
        "iteration 2": "iterations [3]",
        "iteration 3": "iterations",
    }


def test_what_has_the_same_times_nests_by_when_it_was_recorded(recorder: Recorder, path: Path):
    recorder.kernel("cpu:0", "compute", "inner", 1.0, 2.0)
    recorder.span(("cpu:0", "compute"), "outer", 1.0, 2.0)
    write_timeline(recorder.events, path)
    inner = read_timeline(path).named("inner")[0]
    assert inner.parent is not None
    assert inner.parent.name == "outer"


def test_an_arrow_leads_from_send_to_recv(recorder: Recorder, path: Path):
    recorder.kernel("cpu:0", "send", "send", 0.0, 1.0)
    recorder.kernel("cpu:0", "send", "send again", 1.0, 2.0)  # begins when the other ends
    recorder.kernel("cpu:1", "recv", "recv", 1.5, 2.0)
    recorder.kernel("cpu:1", "recv", "recv again", 2.0, 3.0)
    recorder.flow("edge 1", ("cpu:0", "send", 0.0), ("cpu:1", "recv", 1.5))
    recorder.flow("edge 1", ("cpu:0", "send", 1.0), ("cpu:1", "recv", 2.0))  # the same edge, the next iteration
    write_timeline(recorder.events, path)
    found = read_timeline(path)
    arrows = [(source.name, target.name) for source, target in found.arrows]
    assert arrows == [("send", "recv"), ("send again", "recv again")]
    assert found.arrows_left_out == 0


def test_an_arrow_in_a_slice_after_its_parts_is_bound_to_the_slice(recorder: Recorder, path: Path):
    recorder.span(("cpu:0", "compute"), "step", 0.0, 10.0)
    recorder.kernel("cpu:0", "compute", "part", 1.0, 2.0)
    recorder.kernel("cpu:1", "recv", "recv", 6.0, 7.0)
    recorder.flow(1, ("cpu:0", "compute", 5.0), ("cpu:1", "recv", 6.5))
    write_timeline(recorder.events, path)
    [(source, target)] = read_timeline(path).arrows
    assert (source.name, target.name) == ("step", "recv")


def test_an_arrow_to_a_slice_that_began_before(recorder: Recorder, path: Path):
    recorder.kernel("cpu:0", "send", "send", 5.0, 6.0)
    recorder.kernel("cpu:1", "recv", "recv and wait", 0.0, 7.0)
    recorder.flow(1, ("cpu:0", "send", 5.0), ("cpu:1", "recv", 6.5))
    write_timeline(recorder.events, path)
    assert [(s.name, t.name) for s, t in read_timeline(path).arrows] == [("send", "recv and wait")]


def test_arrows_from_or_to_nothing_or_backward_are_left_out_and_counted(recorder: Recorder, path: Path):
    recorder.kernel("cpu:0", "send", "send", 5.0, 6.0)
    recorder.kernel("cpu:1", "recv", "recv", 7.0, 8.0)
    recorder.flow(1, ("cpu:0", "send", 6.5), ("cpu:1", "recv", 7.5))
    recorder.flow(2, ("cpu:0", "send", 5.5), ("cpu:1", "elsewhere", 7.5))
    recorder.flow(3, ("cpu:1", "recv", 7.0), ("cpu:0", "send", 5.0))
    write_timeline(recorder.events, path)
    found = read_timeline(path)
    assert found.arrows == []
    assert found.arrows_left_out == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.integers(0, 12)),
        max_size=25,
    ),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5),
    st.sampled_from([1.0, 1e-3, 1e-9, 0.1234567e-6]),
)
def test_whatever_is_recorded_the_rules_hold(
    slices: list[tuple[str, int, int]], flows: list[tuple[int, int]], unit: float
):
    recorder = Recorder()
    for number, (stream, start, length) in enumerate(slices):
        recorder.kernel("cpu:0", stream, str(number), start * unit, (start + length) * unit)
    for number, (sent, received) in enumerate(flows):
        recorder.flow(number, ("cpu:0", "a", sent * unit), ("cpu:0", "b", received * unit))
    found = read_text(timeline(recorder.events))
    assert sorted(int(each.name) for each in found.slices) == list(range(len(slices)))
    assert len(found.arrows) + found.arrows_left_out == len(flows)


@given(st.integers(0, 10**16))
def test_no_nanosecond_is_lost(nanoseconds: int):
    text = _microseconds(nanoseconds)
    assert int(float(text) * 1000.0) == nanoseconds or nanoseconds > 2**52
    digits = text.partition(".")
    assert int(digits[0] + digits[2][:3]) == nanoseconds  # for a reader that goes by the digits
    assert "e" not in text


def test_nothing_recorded(path: Path):
    write_timeline([], path)
    assert read_timeline(path).slices == []
    assert summarise([]) == "Nothing was recorded."


def test_what_json_lacks(recorder: Recorder, path: Path):
    details = {"nan": np.nan, "array": np.arange(2), "text": '"\u2028\ud800', "none": None}
    recorder.kernel("cpu:0", "compute", 'a "name"\n', 0.0, 1.0, details)
    recorder.counter("cpu:0", "bytes", 0.5, np.inf)
    write_timeline(recorder.events, path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = read_timeline(path)
    assert found.slices[0].args == {"nan": "nan", "array": "[0 1]", "text": '"\u2028\ud800', "none": "None"}
    assert found.counters == []


def test_compressed_when_the_name_says_so(recorder: Recorder, tmp_path: Path):
    for number in range(100):
        recorder.kernel("cpu:0", "compute", "add", number, number + 0.5)
    write_timeline(recorder.events, tmp_path / "a.json")
    write_timeline(recorder.events, tmp_path / "a.json.gz")
    assert read_timeline(tmp_path / "a.json") == read_timeline(tmp_path / "a.json.gz")
    assert (tmp_path / "a.json.gz").stat().st_size < (tmp_path / "a.json").stat().st_size / 5


def test_the_old_file_stays_if_writing_fails(recorder: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch):
    path.write_text("old")

    def details() -> dict[str, int]:
        raise OSError("no space left")

    recorder.kernel("cpu:0", "compute", "add", 0.0, 1.0, details)
    with pytest.raises(OSError, match="no space left"):
        write_timeline(recorder.events, path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("busy")))
    with pytest.raises(OSError, match="busy"):
        write_timeline([], path)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


# --- summaries ------------------------------------------------------------------------------------------------------


def test_summary_counts_overlapping_kernels_of_a_device_once(recorder: Recorder):
    recorder.kernel("cpu:0", "compute", "a", 0.0, 6 * MS)
    recorder.kernel("cpu:0", "compute (2)", "b", 2 * MS, 8 * MS)
    recorder.span(("cpu:0", "compute"), "step", 0.0, 10 * MS)
    lines = summarise(recorder.events).splitlines()
    assert lines[0] == "10 ms from the first event to the last, 2 kernels"
    assert lines[2].split() == ["cpu:0", "8", "ms", "80.0%", "2"]


def test_summary_is_by_kernel_and_operation_longest_first(recorder: Recorder):
    for number in range(30):
        recorder.kernel("cpu:0", "compute", "add", number, number + 1e-3 * number, {"operation": f"add_{number}"})
    recorder.kernel("cpu:0", "compute", "a name of a kernel that is much too long to show", 50.0, 50.0)
    text = summarise(recorder.events, top=3)
    rows = text.splitlines()[4:]
    assert [row.split()[-1] for row in rows[1:4]] == ["add_29", "add_28", "add_27"]
    assert rows[4].strip().endswith("in 28 others")
    assert "a name of a kernel that is much too l..." in summarise(recorder.events, top=40)


# --- traces ---------------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_outside():
    assert current() is None
    with ab.trace():
        assert current() is not None
    assert current() is None


def test_nested_traces_get_each_what_is_theirs(tmp_path: Path):
    def note(name: str) -> None:
        recorder = current()
        assert recorder is not None
        recorder.kernel("cpu:0", "compute", name, 0.0, 1.0)

    with ab.trace(tmp_path / "outer.json") as outer:
        note("before")
        with ab.trace() as inner:
            note("inside")
        note("after")
    assert [event.name for event in inner.events] == ["inside"]  # type: ignore[union-attr]
    assert [event.name for event in outer.events] == ["before", "inside", "after"]  # type: ignore[union-attr]
    assert len(read_timeline(tmp_path / "outer.json").slices) == 3


def test_other_threads_record_into_the_trace_under_way():
    def work() -> None:
        recorder = current()
        assert recorder is not None
        for number in range(500):
            recorder.kernel("cpu:0", "compute", "add", number, number + 1)

    with ab.trace() as recorded:
        threads = [Waiting(work) for _ in range(4)]
        for thread in threads:
            thread.result()
    assert len(recorded.events) == 2000


def test_a_folder_that_does_not_exist_is_told_before_anything_runs(tmp_path: Path):
    ran: list[int] = []
    with (
        pytest.raises(FileNotFoundError, match=r"Can't write the trace .*there is no folder .*Make it first"),
        ab.trace(tmp_path / "nowhere" / "a.json"),
    ):
        ran.append(1)
    with pytest.raises(IsADirectoryError, match="it is a folder"), ab.trace(tmp_path):
        ran.append(1)
    assert not ran
    assert current() is None


def test_a_failure_is_marked_and_raised(path: Path):
    with pytest.raises(KeyError), ab.trace(path):
        raise KeyError("what")
    [failed] = read_timeline(path).instants
    assert (failed["name"], failed["error"]) == ("the traced block failed", "KeyError: 'what'")
    assert current() is None


def test_the_failure_of_the_block_comes_before_that_of_the_file(tmp_path: Path):
    folder = tmp_path / "gone"
    folder.mkdir()

    def fail() -> None:
        folder.rmdir()
        raise KeyError("what")

    with pytest.raises(KeyError) as info, ab.trace(folder / "a.json"):
        fail()
    assert "The trace could not be written either" in info.value.__notes__[0]


# --- training -------------------------------------------------------------------------------------------------------


def test_fit_under_trace(path: Path):
    def train() -> list[np.ndarray]:
        ab.utils.set_random_seed(1)
        model = ab.Sequential([ab.layers.Dense(3, activation="tanh"), ab.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        data = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)
        model.fit(data, data[:, :1], epochs=2, batch_size=4, verbose=0)
        return model.get_weights()

    expected = train()
    with ab.trace(path) as recorded:
        found = train()
    for one, other in zip(expected, found, strict=True):
        assert one.tobytes() == other.tobytes()
    read = read_timeline(path)
    assert len(read.named("step")) >= 4
    assert "matmul" in read.kernels()
    assert read.named("compile")
    assert "matmul" in recorded.summary()
