"""The device `gpu` over a module like cupy: who calls it, in which order, and what happens when something is short."""

import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.device_arrays import DeviceArray
from shared.examples import examples
from shared.fake_cupy import CUDARuntimeError, FakeCupy
from shared.waiting import until

from anabranch.engine.devices import Buffer, DeviceMemoryError, SwapPolicy
from anabranch.engine.devices.cuda import GpuUnavailableError, check_gpu
from anabranch.engine.devices.dispatcher import Dispatcher
from anabranch.engine.devices.gpu import GpuDevice
from anabranch.engine.devices.pinned import Piece, PinnedSlabs
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.place import make_devices


class Machine:
    """A GPU that is none, and its dispatcher."""

    def __init__(self, seed: int = 0, limit: int | None = None) -> None:
        self.cupy = FakeCupy(seed)
        self.dispatcher = Dispatcher(self.cupy, 0, limit)
        self.device = self.open()

    def open(self) -> GpuDevice:
        return GpuDevice(make_devices(gpu=1)[-1], self.dispatcher)

    @property
    def pool(self) -> Any:
        return self.cupy.pools[0]


@pytest.fixture
def machines() -> Iterator[Any]:
    """Makes GPUs; their threads end with the test."""
    made: list[Machine] = []

    def make(seed: int = 0, limit: int | None = None) -> Machine:
        made.append(Machine(seed, limit))
        return made[-1]

    first = FakeCupy()
    with first.installed():
        DeviceArray.allocate = staticmethod(lambda held: made[-1].cupy._data(held) if made else None)
        yield make
        for machine in made:
            machine.device.abort()
            machine.dispatcher.close()


def fetched(device: GpuDevice, buffer: Buffer) -> Any:
    found: list[Any] = []
    device.to_host(buffer, found.append)
    device.synchronize()
    return found[0]


def array(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, "float32")


# --- values there and back ------------------------------------------------------------------------------------------


def dense(*rows: Any) -> ArrayValue:
    value = ArrayValue.empty(len(rows))
    for index, row in enumerate(rows):
        value = value.write(index, row)
    return value


VALUES = [
    array(1, 2, 3),
    np.zeros((0, 3), "float64"),
    np.array(5, "int32"),
    np.arange(12).reshape(3, 4).T,
    np.array([True, False]),
    (array(1), (None, array(2, 3))),
    np.float32(2.5),
    None,
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_survive_the_way_there_and_back(machines: Any, value: Any, seed: int) -> None:
    device = machines(seed).device
    arrived: list[Buffer] = []
    device.to_device(value, arrived.append)
    device.synchronize()
    for found in (fetched(device, arrived[0]), fetched(device, device.upload(value))):
        np.testing.assert_equal(found, value)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype
            assert (type(found) is np.ndarray) == bool(value.ndim)


def test_what_is_on_the_device_is_an_array_of_cupy(machines: Any) -> None:
    device = machines().device
    buffer = device.upload((array(1), np.float32(2)))
    device.synchronize()
    inside, scalar = buffer.value
    assert isinstance(inside, DeviceArray)
    assert type(scalar) is np.float32


def test_elements_are_put_together_before_they_have_come(machines: Any) -> None:
    """Copies to the device are not touched by kernels that do not wait for them."""
    machine = machines()
    machine.cupy.goes_on = False
    value = ArrayValue.empty(3).write(0, array(1)).write(2, array(2))
    arrived: list[Buffer] = []
    machine.device.to_device(value, arrived.append)
    machine.dispatcher.call(lambda: setattr(machine.cupy, "goes_on", True))
    machine.device.synchronize()
    found = fetched(machine.device, arrived[0])
    assert [found.has(index) for index in range(3)] == [True, False, True]
    assert (found.read(0), found.read(2)) == (1, 2)


@pytest.mark.parametrize("rows", [dense(array(1), array(2)), dense(array(1), array(2, 3)), ArrayValue.empty(0)])
def test_arrays_of_arrays_survive(machines: Any, rows: ArrayValue) -> None:
    device = machines().device
    found = fetched(device, device.upload(rows))
    assert found.size == rows.size
    for index in range(rows.size):
        np.testing.assert_array_equal(found.read(index), rows.read(index))


def test_an_array_of_arrays_is_written_stacked_and_copied_on_the_device(machines: Any) -> None:
    device = machines().device

    def fill(x: Any) -> Any:
        value = ArrayValue.empty(3).write(0, x).write(2, x + 1)
        assert isinstance(value.stack_like((3, 2), np.dtype("float32")), DeviceArray)
        grown = value.write(4, x * 2, dynamic_size=True)
        return value, grown.write(1, x).write(3, x).stack((2,), np.dtype("float32"))

    value, stacked = device.launch(fill, [device.upload(array(1, 2))], 2, 0.0, "fill")
    found = fetched(device, value)
    assert [found.has(index) for index in range(3)] == [True, False, True]
    np.testing.assert_array_equal(found.read(2), array(2, 3))
    np.testing.assert_array_equal(fetched(device, stacked), [[1, 2], [1, 2], [2, 3], [1, 2], [2, 4]])


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_copies_see_what_was_computed_before_them_in_every_order_of_streams(machines: Any, seed: int) -> None:
    device = machines(seed).device
    found: dict[int, Any] = {}
    x = device.upload(array(1, 2, 3))
    for number in range(20):
        (x,) = device.launch(lambda value: value + 1, [x], 1, 0.0, f"add {number}")
        device.to_host(x, lambda value, number=number: found.update({number: value}))
        (x,) = device.launch(lambda value, other: value + other, [x, device.upload(array(1, 1, 1))], 1, 0.0, "again")
    del x  # what is on its way to the host is kept, though nobody else holds it
    device.synchronize()
    for number in range(20):
        np.testing.assert_array_equal(found[number], array(2, 3, 4) + 2 * number)
    assert device.memory.in_use == 0
    assert device.is_idle


def test_one_thread_makes_all_calls(machines: Any) -> None:
    machine = machines()
    fetched(machine.device, machine.device.upload(array(1)))
    assert machine.cupy.threads == {machine.dispatcher._thread.ident}
    assert threading.get_ident() not in machine.cupy.threads


def test_events_order_the_streams(machines: Any) -> None:
    """An upload waits until the memory it writes is free, kernels wait for it, and a download waits for kernels."""
    machine = machines()
    fetched(machine.device, machine.device.upload(array(1)))
    machine.dispatcher.settle()
    calls = [call for call in machine.cupy.calls if not call.startswith("synchronize")]
    assert calls == [
        "malloc",
        "record event1 on stream0",
        "stream1 waits for event1",
        "record event2 on stream1",
        "copy from host on stream1",
        "record event3 on stream1",
        "stream0 waits for event3",
        "record event4 on stream0",
        "stream2 waits for event4",
        "record event5 on stream2",
        "copy to host on stream2",
        "record event6 on stream2",
    ]


def test_a_kernel_that_overwrites_waits_for_copies_to_the_host(machines: Any) -> None:
    machine = machines()
    machine.cupy.goes_on = False
    device = machine.device
    x = device.upload(array(1))
    found: list[Any] = []
    device.to_host(x, found.append)

    def overwrite(value: Any) -> None:
        value[...] = 7

    device.launch(overwrite, [x], 0, 0.0, "overwrite", updates=[x])
    machine.dispatcher.call(lambda: setattr(machine.cupy, "goes_on", True))
    device.synchronize()
    assert found == [1]
    assert fetched(device, x) == 7


def test_the_host_goes_on_and_hears_of_the_end_when_it_asks(machines: Any) -> None:
    machine = machines()
    machine.cupy.goes_on = False
    device = machine.device
    heard: list[int] = []
    (y,) = device.launch(lambda x: x + 1, [device.upload(array(1))], 1, 0.0, "add")
    device.to_host(y, lambda value: heard.append(threading.get_ident()))
    machine.dispatcher.call(lambda: None)  # all is launched
    assert device.poll() is not None
    assert not heard
    assert not y.is_ready
    assert not device.is_idle
    machine.cupy.goes_on = True
    device.synchronize()
    assert heard == [threading.get_ident()]
    assert y.is_ready
    assert device.poll() is None


def test_several_steps_share_a_gpu(machines: Any) -> None:
    machine = machines()
    devices = [machine.device, machine.open()]
    buffers = [device.upload(array(k)) for k, device in enumerate(devices)]
    assert [fetched(device, buffer) for device, buffer in zip(devices, buffers, strict=True)] == [0, 1]
    with pytest.raises(ValueError, match=r"is given 'constant', which is on gpu:0; expected a value on gpu:0"):
        devices[0].launch(np.negative, [buffers[1]], 1, 0.0, "negative")


def test_statistics(machines: Any) -> None:
    device = machines().device
    x = device.upload(array(1, 2))
    (y,) = device.launch(lambda value: value + 1, [x], 1, 0.0, "add")
    fetched(device, y)
    found = device.statistics()
    assert (found.kernels, found.bytes_to_device, found.bytes_to_host) == (1, 8, 8)
    assert found.bytes_in_use == found.peak_bytes == 1024  # two blocks of the pool
    assert y.nbytes == 8
    assert all(seconds > 0 for seconds in found.busy_seconds.values())
    assert set(found.busy_seconds) == {"compute", "host-to-device", "device-to-host"}


# --- pinned memory --------------------------------------------------------------------------------------------------


def test_pinned_memory_is_used_again(machines: Any) -> None:
    machine = machines()
    for number in range(5):
        fetched(machine.device, machine.device.upload(np.full(1000, number)))
    slabs = machine.dispatcher.slabs
    assert slabs.nbytes == 1 << 26
    assert slabs.in_use == 0


@settings(max_examples=examples(15, 60), deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9000), st.integers(-20, -1)), max_size=40))
def test_pieces_of_slabs_never_overlap_and_join_when_they_are_given_back(wishes: list[int]) -> None:
    slabs = PinnedSlabs(bytearray, slab=8192)
    taken: list[tuple[Piece, int]] = []
    for number, wish in enumerate(wishes):
        if wish < 0 and taken:
            slabs.give(taken.pop(wish % len(taken))[0])
        elif wish >= 0:
            piece = slabs.take(wish)
            piece.memory[...] = number
            taken.append((piece, number))
            assert len(piece.memory) == wish
    for piece, number in taken:
        assert (piece.memory == number % 256).all()
        slabs.give(piece)
    assert slabs.in_use == 0
    assert all(len(slab.free) == 1 for slab in slabs._slabs)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_fit_says_who_holds_memory(machines: Any) -> None:
    machine = machines(limit=4096)
    device = machine.device
    kept = device.upload(np.zeros(300), "kept")
    device.launch(lambda x: x + 1, [kept], 1, 0.0, "large")
    with pytest.raises(
        DeviceMemoryError,
        match=r"gpu:0 is out of memory. Kernel 'large' needs 2,400 bytes, but 2,560 of 4,096 .* "
        r"'kept' holds 2,560 in 1 value",
    ) as caught:
        device.synchronize()
    assert caught.value.__notes__ == ["In kernel 'large' on gpu:0."]
    device.abort()
    del kept, caught
    assert fetched(device, device.upload(np.ones(300)))[0] == 1


def test_without_a_limit_most_of_what_is_free_may_be_used(machines: Any) -> None:
    machine = machines()
    assert machine.device.memory.limit == machine.pool.limit == int(0.9 * (1 << 30))
    machine.dispatcher.set_limit(1 << 20)
    assert machine.pool.limit == machine.open().memory.limit == 1 << 20


@pytest.mark.parametrize("split", [0, 14 * 1024])
@pytest.mark.parametrize("seed", range(4))
def test_histories_move_to_the_host_when_memory_is_short(machines: Any, seed: int, split: int) -> None:
    """Also while a kernel waits for memory: the copies out overtake what was launched after it.

    Blocks of the pool that are too small count as taken.
    """
    machine = machines(seed, limit=64 * 1024)
    machine.pool.split = split
    device = machine.device
    record = SwapPolicy(device).record()
    x = device.upload(np.zeros(1024, "float32"))
    for number in range(60):  # 240 KiB
        (x,) = device.launch(lambda value: value + 1, [x], 1, 0.0, f"add {number}")
        record.append(number, x)
    device.synchronize()
    assert machine.pool.peak <= 64 * 1024
    for number in reversed(range(60)):
        found: list[Any] = []

        def read(buffer: Buffer, found: list[Any] = found) -> None:
            device.to_host(buffer, found.append)

        record.get(number, read, last=True)
        device.synchronize()
        assert found[0][0] == number + 1
    del x, record
    assert device.memory.in_use == 0
    until(lambda: machine.pool.used == 0)  # the dispatcher's thread lets go of what it has done last a little later


def test_a_kernel_waits_for_memory_that_another_releases(machines: Any) -> None:
    machine = machines(limit=8192)
    device = machine.device
    large = device.upload(np.zeros(600))
    (other,) = device.launch(lambda: machine.cupy.zeros(600), [], 1, 0.0, "other")
    while device._shortage is None:
        device.poll()
    del large
    device.synchronize()
    assert fetched(device, other).shape == (600,)


def test_a_step_is_aborted_while_a_kernel_waits_for_memory(machines: Any) -> None:
    machine = machines(limit=8192)
    device = machine.device
    ran: list[int] = []
    large = device.upload(np.zeros(600))
    device.launch(lambda: machine.cupy.zeros(600), [], 1, 0.0, "other")
    device.launch(lambda: ran.append(1), [], 0, 0.0, "after it")
    while device._shortage is None:
        device.poll()
    device.abort()
    assert device.is_idle
    assert not ran
    np.testing.assert_array_equal(fetched(device, large), np.zeros(600))


# --- failures -------------------------------------------------------------------------------------------------------


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("a kernel failed")


def test_what_a_kernel_raises_comes_from_poll_until_the_step_is_aborted(machines: Any) -> None:
    device = machines().device
    ran: list[int] = []
    (x,) = device.launch(fail, [], 1, 0.0, "bad")
    device.launch(lambda value: ran.append(1), [x], 0, 0.0, "after it")
    device.to_host(x, ran.append)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a kernel failed") as caught:
            device.synchronize()
        assert caught.value.__notes__ == ["In kernel 'bad' on gpu:0."]
    device.abort()
    assert not ran
    assert device.is_idle
    assert device.poll() is None
    with pytest.raises(RuntimeError, match=r"'use' .* is given 'bad', whose value is gone: the step was aborted"):
        device.launch(np.negative, [x], 1, 0.0, "use")
    assert fetched(device, device.upload(array(3))) == 3


def test_what_the_gpu_finds_later_is_raised_with_the_label(machines: Any) -> None:
    machine = machines()
    machine.cupy.failing = 700
    machine.device.launch(lambda: None, [], 0, 0.0, "illegal access")
    with pytest.raises(CUDARuntimeError, match="700") as caught:
        machine.device.synchronize()
    assert caught.value.__notes__ == ["In kernel 'illegal access' on gpu:0."]
    machine.cupy.failing = 0


def test_a_kernel_that_gives_another_number_of_values(machines: Any) -> None:
    device = machines().device
    device.launch(lambda: (1, 2), [], 3, 0.0, "pair")
    with pytest.raises(ValueError, match="Kernel 'pair' gave 2 values; expected 3, as it was launched with outputs=3"):
        device.synchronize()


def test_abort_drops_what_was_not_dispatched_and_waits_for_what_was(
    machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machines()
    device, begun, gate, ran = machine.device, threading.Event(), threading.Event(), []

    def first() -> Any:
        begun.set()
        gate.wait(10)
        ran.append("first")
        return machine.cupy.zeros(3)

    (x,) = device.launch(first, [], 1, 0.0, "first")
    device.launch(lambda: ran.append("second"), [], 0, 0.0, "second")
    settle = machine.dispatcher.settle

    def open_and_settle() -> None:
        gate.set()
        settle()

    assert begun.wait(10)
    monkeypatch.setattr(machine.dispatcher, "settle", open_and_settle)
    device.abort()
    assert ran == ["first"]
    assert not x.is_ready
    assert device.memory.in_use == 0
    until(lambda: machine.pool.used == 0)
    assert not any(stream.queue for stream in machine.cupy.streams)


# --- without a GPU --------------------------------------------------------------------------------------------------


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(GpuUnavailableError, match=r"Device gpu:0 needs cupy, .* pip install 'anabranch\[gpu\]'"):
        check_gpu(0)


@pytest.mark.parametrize(("count", "found"), [(0, "no GPU"), (1, "one GPU"), (2, "2 GPUs")])
def test_without_enough_gpus(monkeypatch: pytest.MonkeyPatch, count: int, found: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(count=count))
    message = rf"Device gpu:{count} was declared, but this machine has {found} .*set_devices\(gpu={count}\)"
    with pytest.raises(GpuUnavailableError, match=message):
        check_gpu(count)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")

    def count() -> int:
        raise CUDARuntimeError(35)

    runtime = types.SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError)
    vars(cupy)["cuda"] = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(GpuUnavailableError, match=r"gpu:0 can't be used: cudaError 35\. Expected an NVIDIA GPU"):
        check_gpu(0)
