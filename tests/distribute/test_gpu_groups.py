"""Collectives of arrays on GPUs, beside those of arrays on hosts. Members are threads, whose GPUs are stand-ins."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from shared.device_arrays import DeviceArray
from shared.fake_cupy import Device, FakeCupy
from shared.fake_nccl import FakeNccl, NcclError
from shared.members import Members, each, made
from shared.tasks import PATIENCE

from anabranch.distribute.collectives import communicator as communicator_module
from anabranch.distribute.collectives import gpus as gpus_module
from anabranch.distribute.collectives.communicator import Communicator
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.engine.queues.errors import TaskFailedError

REDUCTIONS = ["sum", "mean", "max", "min"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
Run = Callable[[Members, Callable[[ProcessGroup, Any], Any]], list[Any]]


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeCupy]:
    found = FakeCupy(count=3)
    FakeNccl(found, tmp_path)
    monkeypatch.setitem(sys.modules, "cupy", found)
    with found.installed(), found.cuda.using_allocator(found.cuda.MemoryPool().malloc):
        yield found


@contextmanager
def members_of(count: int, shares_memory: bool = True) -> Generator[Members]:
    found = made(count, shares_memory)
    yield found
    for member in found:
        member.close()


@pytest.fixture
def on_gpus(cupy: FakeCupy) -> Run:
    """Runs a function as each member, which has a GPU of its own."""

    def run(members: Members, call: Callable[[ProcessGroup, Any], Any]) -> list[Any]:
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in members]

        def as_member(member: ProcessGroup) -> Any:
            with cupy.cuda.Device(member.links.rank), streams[members.index(member)]:
                return call(member, member.of_arrays(cupy))

        return each(members, as_member)

    return run


def drawn(dtype: Any, shape: Sequence[int], rank: int) -> Any:
    kind, rng = np.dtype(dtype), np.random.default_rng([rank, *shape])
    if kind.kind in "iu":
        return rng.integers(0, 50, size=shape).astype(kind)
    values = rng.normal(size=shape) + (1j * rng.normal(size=shape) if kind.kind == "c" else 0)
    return np.asarray(values).astype(kind)


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def same(found: Any, want: Any) -> None:
    assert isinstance(found, DeviceArray), "it is on the GPU"
    found = found.get()
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    assert found.tobytes() == want.tobytes(), (found, want)


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "complex64", "complex128"])
def test_reductions_are_those_of_hosts(dtype: str, cupy: FakeCupy, on_gpus: Run) -> None:
    """NCCL reduces all but maxima and minima of floats, of which it does not say what becomes of NaN."""
    kind = dtype_of(dtype)
    with members_of(3) as members:
        for reduce_op in REDUCTIONS:
            is_float = dtype not in INTEGERS
            if (reduce_op == "mean" and not is_float) or (kind.kind == "c" and reduce_op in ("max", "min")):
                continue
            for shape in ((), (5,), (3, 4), (6, 0)):

                def run(member: ProcessGroup, gpus: Any, reduce_op: str = reduce_op, shape: Any = shape) -> None:
                    given = drawn(kind, shape, member.rank)
                    want = member.all_reduce(given, reduce_op)
                    same(gpus.all_reduce(cupy.asarray(given), reduce_op), np.asarray(want))
                    if shape and shape[0] % 3 == 0:
                        want = member.reduce_scatter(given, reduce_op)
                        same(gpus.reduce_scatter(cupy.asarray(given), reduce_op), want)

                cupy.cuda.nccl.calls.clear()
                on_gpus(members, run)
                by_nccl = not (is_float and reduce_op in ("max", "min")) and 0 not in shape
                want = 3 * (["allReduce", "reduceScatter"] if shape == (3, 4) else ["allReduce"]) if by_nccl else []
                assert sorted(cupy.cuda.nccl.calls) == sorted(want)


@pytest.mark.parametrize("dtype", ["bool", "float32", "bfloat16", "int16", "complex128"])
def test_gathered_and_broadcast_arrays(dtype: str, cupy: FakeCupy, on_gpus: Run) -> None:
    """Along any axis, of different lengths and none, and parts of arrays that are not in a row."""
    kind = dtype_of(dtype)

    def run(member: ProcessGroup, gpus: Any) -> None:
        for axis, lengths in ((0, (2, 2, 2)), (0, (1, 0, 3)), (1, (2, 2, 2)), (1, (0, 4, 1)), (0, (0, 0, 0))):
            shape = [3, 3]
            shape[axis] = lengths[member.rank]
            given = drawn(kind, shape, member.rank)
            same(gpus.all_gather(cupy.asarray(given), axis), member.all_gather(given, axis))
        given = drawn(kind, (4, 6), member.rank)
        part = cupy.asarray(given)[::2, 1:5].T
        same(gpus.all_gather(part, 0), member.all_gather(given[::2, 1:5].T, 0))
        for root in range(3):
            same(gpus.broadcast(cupy.asarray(given), root), member.broadcast(given, root))
            same(gpus.broadcast(cupy.asarray(given[0, 0]), root), np.asarray(member.broadcast(given[0, 0], root)))
        same(gpus.broadcast(cupy.asarray(given[:0]), 0), given[:0])

    with members_of(3) as members:
        on_gpus(members, run)
        assert [member.gpus.collectives for member in members] == [13, 13, 13]


def test_groups_have_communicators_of_their_own(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> None:
        given = drawn("float32", (5,), member.rank)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        if member.rank != 1:
            pair = member.subgroup((0, 2))
            found = pair.of_arrays(cupy)
            same(found.all_reduce(cupy.asarray(given), "sum"), pair.all_reduce(given, "sum"))
            same(found.broadcast(cupy.asarray(given), 2), drawn("float32", (5,), 2))
        same(gpus.all_reduce(cupy.asarray(given), "mean"), member.all_reduce(given, "mean"))

    with members_of(3) as members:
        on_gpus(members, run)
    assert sorted(cupy.cuda.nccl.calls) == 8 * ["allReduce"] + 2 * ["broadcast"]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_is_begun_and_ended_separately(dtype: str, cupy: FakeCupy, on_gpus: Run) -> None:
    """In the order in which it was begun, on a stream of its own, and all before what is not."""

    def run(member: ProcessGroup, gpus: Any) -> None:
        given = [drawn(dtype, (4, k + 1), member.rank) for k in range(4)]
        arrays = [cupy.asarray(each) for each in given]
        begun = [gpus.begin_all_reduce(array, "sum") for array in arrays]
        last = gpus.all_reduce(arrays[0], "sum")
        found = [gpus.end_all_reduce(number, array) for number, array in zip(begun, arrays, strict=True)]
        for one, array in zip([last, *found], [given[0], *given], strict=True):
            same(one, member.all_reduce(array, "sum"))

    with members_of(2) as members:
        on_gpus(members, run)
        assert [member.gpus.collectives for member in members] == [5, 5]


# --- not all by NCCL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("rows", [3, 6000])
def test_where_one_has_its_array_on_the_host_all_take_theirs_there(
    rows: int, shares_memory: bool, cupy: FakeCupy, on_gpus: Run
) -> None:
    def run(member: ProcessGroup, gpus: Any) -> None:
        given = drawn("float64", (rows, 2), member.rank)
        wanted = [drawn("float64", (rows, 2), rank) for rank in range(3)]
        total = (wanted[0] + wanted[1]) + wanted[2]
        for turn in range(3):  # whoever has it on the host
            on_host = turn == member.rank
            group, array = (member, given) if on_host else (gpus, cupy.asarray(given))
            found = [
                group.all_reduce(array, "sum"),
                group.reduce_scatter(array, "sum"),
                group.all_gather(array, 0),
                group.broadcast(array, 1),
                group.end_all_reduce(group.begin_all_reduce(array, "sum"), array),
            ]
            share = total[rows // 3 * member.rank :][: rows // 3]
            for one, want in zip(found, [total, share, np.concatenate(wanted), wanted[1], total], strict=True):
                np.testing.assert_array_equal(one if on_host else one.get(), want)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), total)

    with members_of(3, shares_memory) as members:
        on_gpus(members, run)
        assert [member.gpus.collectives for member in members] == [1, 1, 1]


def test_members_that_share_a_gpu_go_by_the_host(cupy: FakeCupy, on_gpus: Run) -> None:
    cupy.buses[2] = cupy.buses[0]

    def run(member: ProcessGroup, gpus: Any) -> str | None:
        given = drawn("float32", (5,), member.rank)
        assert member.why_by_host() is None
        for _ in range(2):
            same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        number = gpus.begin_all_reduce(cupy.asarray(given), "sum")
        same(gpus.end_all_reduce(number, given), member.all_reduce(given, "sum"))
        return member.why_by_host()

    with members_of(3) as members:
        found = on_gpus(members, run)
    assert found == 3 * ["/job:worker/task:0 and /job:worker/task:2 use the same GPU (0000:01:00.0)"]
    assert not cupy.cuda.nccl.calls


def test_another_gpu_of_a_process_goes_by_the_host(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> None:
        given = drawn("float32", (5,), member.rank)
        want = member.all_reduce(given, "sum")
        same(gpus.all_reduce(cupy.asarray(given), "sum"), want)
        with cupy.cuda.Device(2 if member.rank else 0):
            same(gpus.all_reduce(cupy.asarray(given), "sum"), want)
            number = gpus.begin_all_reduce(cupy.asarray(given), "sum")
            same(gpus.end_all_reduce(number, given), want)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), want)

    with members_of(2) as members:
        on_gpus(members, run)
        assert [(member.gpus.collectives, member.gpus.by_host) for member in members] == [(2, 2), (2, 2)]


def test_a_communicator_that_cannot_be_made(cupy: FakeCupy, on_gpus: Run) -> None:
    cupy.cuda.nccl.failing |= {0, 1}

    def run(member: ProcessGroup, gpus: Any) -> str | None:
        given = drawn("float32", (5,), member.rank)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        return member.why_by_host()

    with members_of(2) as members:
        found = on_gpus(members, run)
    assert found == 2 * ["/job:worker/task:0 can't make a communicator of NCCL: NCCL_ERROR 2"]


def abandoned_end() -> None:
    """Wait until the threads that make communicators have ended."""
    for thread in threading.enumerate():
        if thread.name == "anabranch nccl":
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_communicator_that_one_member_cannot_make(
    cupy: FakeCupy, on_gpus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL has the others wait for ever. What it makes later is aborted."""
    monkeypatch.setattr(communicator_module, "_GRACE_SECONDS", 0.0)
    nccl = cupy.cuda.nccl
    nccl.patience = float("inf")
    nccl.failing |= {1}

    def run(member: ProcessGroup, gpus: Any) -> str | None:
        given = drawn("float32", (5,), member.rank)
        for _ in range(2):
            same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        return member.why_by_host()

    try:
        with members_of(3) as members:
            found = on_gpus(members, run)
        assert found == 3 * ["/job:worker/task:1 can't make a communicator of NCCL: NCCL_ERROR 2"]
        assert not nccl.made
        nccl.failing.clear()
        with cupy.cuda.Device(1):
            nccl.NcclCommunicator(3, nccl.ids[0], 1)
        abandoned_end()
        assert [each.is_aborted for each in sorted(nccl.made, key=lambda each: each.rank)] == [True, False, True]
    finally:
        nccl.patience = 0.0


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("pci_bus_id", 1, "can't find out which GPU it has: no bus"),
        ("get_unique_id", 0, "can't begin with NCCL: no id"),
    ],
)
def test_another_error_of_one_member(
    name: str, rank: int, words: str, cupy: FakeCupy, on_gpus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All learn of it, whatever it is, for they wait for each other."""

    def bus(device: Any) -> str:
        if device.id == rank:
            raise OSError("no bus")
        return cupy.buses[device.id]

    def no_id() -> None:
        raise OSError("no id")

    if name == "pci_bus_id":
        monkeypatch.setattr(Device, name, property(bus))
    else:
        monkeypatch.setattr(cupy.cuda.nccl, name, no_id)

    def run(member: ProcessGroup, gpus: Any) -> str | None:
        given = drawn("float32", (5,), member.rank)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        return member.why_by_host()

    with members_of(2) as members:
        assert on_gpus(members, run) == 2 * [f"/job:worker/task:{rank} {words}"]


def test_a_cupy_without_nccl(cupy: FakeCupy, on_gpus: Run) -> None:
    cupy.cuda.nccl.available = False

    def run(member: ProcessGroup, gpus: Any) -> str | None:
        given = drawn("float32", (5,), member.rank)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), member.all_reduce(given, "sum"))
        return member.why_by_host()

    with members_of(2) as members:
        assert on_gpus(members, run) == 2 * ["cupy has no NCCL (cupy.cuda.nccl.available is False)"]


@pytest.mark.parametrize("absent", [0, 1])
@pytest.mark.parametrize("call", ["all_reduce", "all_gather", "begin_all_reduce"])
def test_a_member_without_nccl(
    call: str, absent: int, cupy: FakeCupy, on_gpus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All say the same of it, and only their first collective has a void round."""
    available = property(lambda nccl: nccl.cupy.cuda.Device().id != absent)
    monkeypatch.setattr(FakeNccl, "available", available)

    def run(member: ProcessGroup, gpus: Any) -> tuple[Any, Any, int]:
        given = [drawn("float32", (rows, 2), member.rank) for rows in (3, 6000)]
        asked: list[str] = []
        agree, share = member.agreed_on_gpus, member.gpus.share_reasons

        def agreed(kind: str, *rest: Any) -> Any:
            asked.append(kind)
            return agree(kind, *rest)

        def shared() -> None:
            with cupy.cuda.Device(member.rank):  # the thread of what was begun has none in members with host arrays
                share()

        monkeypatch.setattr(member, "agreed_on_gpus", agreed)
        monkeypatch.setattr(member.gpus, "share_reasons", shared)
        for array in given * 2:
            on_host = member.rank == absent  # where the collective is placed, as there is a reason
            group, value = (member, array) if on_host else (gpus, cupy.asarray(array))
            if call == "begin_all_reduce":
                found = group.end_all_reduce(group.begin_all_reduce(value, "sum"), value)
            else:
                found = getattr(group, call)(value, "sum" if call == "all_reduce" else 0)
            wanted = [drawn("float32", array.shape, rank) for rank in range(3)]
            want = np.concatenate(wanted) if call == "all_gather" else (wanted[0] + wanted[1]) + wanted[2]
            np.testing.assert_array_equal(found if on_host else found.get(), want)
        return member.why_by_host(), gpus.statistics()["why_by_host"], len(asked)

    with members_of(3) as members:
        found = on_gpus(members, run)
    why = f"/job:worker/task:{absent}: cupy has no NCCL (cupy.cuda.nccl.available is False)"
    assert found == [(why, why, int(rank != absent)) for rank in range(3)]
    assert not cupy.cuda.nccl.calls


def test_an_offer_that_is_not_taken(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> bool | None:
        given = drawn("float32", (5,), member.rank)
        found = None if member.rank else member.offer(b"1" * 16)
        same(gpus.all_reduce(cupy.asarray(given), "sum"), sum(drawn("float32", (5,), rank) for rank in range(2)))
        return found

    with members_of(2) as members:
        assert on_gpus(members, run) == [False, None]


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "call", "words"),
    [
        ((5,), "float32", "all_reduce", r"task:. runs all_reduce, sum, of float32\[.\] .* runs .*, of float32\[.\] "),
        ((4,), "float64", "all_reduce", r"task:. runs all_reduce, sum, of float..\[4\] .* runs .*, of float..\[4\] "),
        ((4,), "float32", "broadcast", r"task:. runs .*, of float32\[4\] .*task:. runs .*, of float32\[4\] "),
    ],
)
def test_members_that_disagree(shape: Any, dtype: str, call: str, words: str, cupy: FakeCupy, on_gpus: Run) -> None:
    """It is an error that names both, before anything is given to a GPU."""

    def run(member: ProcessGroup, gpus: Any) -> str:
        array = cupy.asarray(drawn(dtype, shape, 0) if member.rank else drawn("float32", (4,), 0))
        name = call if member.rank else "all_reduce"
        with pytest.raises((ValueError, TaskFailedError)) as raised:
            getattr(gpus, name)(array, 0 if name == "broadcast" else "sum")
        return str(raised.value)

    with members_of(2) as members:
        found = on_gpus(members, run)
    assert any(re.search(words, text) for text in found), found
    assert all("/job:worker/task:0" in text or "/job:worker/task:1" in text for text in found)
    assert not cupy.cuda.nccl.calls


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_member_that_is_lost_meanwhile(is_begun: bool, cupy: FakeCupy, on_gpus: Run) -> None:
    """Its GPU never comes to the collective: NCCL would wait for ever."""
    aborted: list[int] = []

    def run(member: ProcessGroup, gpus: Any) -> None:
        array = cupy.asarray(drawn("float32", (4,), member.rank))
        gpus.all_reduce(array, "sum")
        if member.rank == 1:
            assert member.agreed_on_gpus("all_reduce", 0, array)
            member.close()
            return
        communicator = gpus._communicator._made
        number = gpus.begin_all_reduce(array, "sum") if is_begun else -1
        with pytest.raises(TaskFailedError, match="/job:worker/task:1"):
            gpus.end_all_reduce(number, array) if is_begun else gpus.all_reduce(array, "sum")
        if communicator.is_aborted:
            aborted.append(member.rank)
        with pytest.raises(TaskFailedError, match="/job:worker/task:1"):
            gpus.all_reduce(array, "sum")

    with members_of(3) as members:
        on_gpus(members, run)
    assert sorted(aborted) == [0, 2]


def test_a_member_that_is_lost_before_there_is_a_communicator(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> None:
        array = cupy.asarray(drawn("float32", (4,), member.rank))
        if member.rank == 1:
            assert member.agreed_on_gpus("all_reduce", 0, array)
            member.swap(b" " * 1020 + b"null")
            member.swap(b" " * 1020 + b"null")
            member.close()
            return
        with pytest.raises(TaskFailedError, match="/job:worker/task:1"):
            gpus.all_reduce(array, "sum")

    cupy.cuda.nccl.patience = 0.5  # of the thread that makes it, which nobody can end
    with members_of(3) as members:
        on_gpus(members, run)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_error_of_nccl(is_lost: bool, cupy: FakeCupy, on_gpus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is lost is the reason."""
    monkeypatch.setattr(gpus_module, "_PATIENCE_SECONDS", 5.0 if is_lost else 0.0)

    def fail() -> None:
        raise cupy.cuda.nccl.NcclError(6)

    def run(member: ProcessGroup, gpus: Any) -> None:
        array = cupy.asarray(drawn("float32", (4,), member.rank))
        gpus.all_reduce(array, "sum")
        if member.rank:
            assert member.agreed_on_gpus("all_reduce", 0, array)
            if is_lost:
                member.close()
            return
        gpus._communicator._made.check_async_error = fail
        with pytest.raises(TaskFailedError if is_lost else NcclError, match="task:1" if is_lost else "NCCL_ERROR 6"):
            gpus.all_reduce(array, "sum")

    with members_of(2) as members:
        on_gpus(members, run)


def test_an_error_of_one_member_ends_the_collective_in_all(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> str:
        array = cupy.asarray(drawn("float32", (4,), member.rank))
        gpus.all_reduce(array, "sum")
        if member.rank:
            gpus._communicator._made.allReduce = lambda *given: 1 / 0
        with pytest.raises((ZeroDivisionError, TaskFailedError)) as raised:
            gpus.all_reduce(array, "sum")
        return str(raised.value)

    with members_of(2) as members:
        found = on_gpus(members, run)
    assert "/job:worker/task:1" in found[0]
    assert found[1] == "division by zero"


def test_no_check_runs_beside_an_abort_or_behind_it(cupy: FakeCupy) -> None:
    """`abort` frees what `check` reads."""
    calls: list[str] = []
    is_checked, is_aborted = threading.Event(), threading.Event()

    class Made:
        def check_async_error(self) -> None:
            calls.append("check begins")
            is_checked.set()
            is_aborted.wait(0.1)  # which does not come: it waits for this
            calls.append("check ends")

        def abort(self) -> None:
            calls.append("abort")
            is_aborted.set()

    communicator = Communicator(cupy, Made(), 0)
    thread = threading.Thread(target=communicator.check)
    thread.start()
    assert is_checked.wait(PATIENCE)
    communicator.abort()
    thread.join(PATIENCE)
    communicator.check()
    communicator.abort()
    assert calls == ["check begins", "check ends", "abort"]


def test_a_new_group_makes_a_new_communicator(cupy: FakeCupy, on_gpus: Run) -> None:
    def run(member: ProcessGroup, gpus: Any) -> Any:
        array = cupy.asarray(drawn("float32", (4,), member.rank))
        same(gpus.all_reduce(array, "mean"), member.all_reduce(array.get(), "mean"))
        return gpus._communicator._made

    for count in (3, 2):
        with members_of(count) as members:
            communicators = on_gpus(members, run)
            assert not any(each.is_aborted for each in communicators)
        assert all(each.is_aborted for each in communicators)
