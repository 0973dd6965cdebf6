"""Devices of streams: when kernels and copies run, what their buffers hold, and what memory they take."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anabranch.engine.devices import Buffer, Clock, DeviceMemoryError, RealClock, SimDevice, VirtualClock
from anabranch.engine.devices.memory import copy_value, poison, value_bytes
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.place import make_devices


def sim(clock: Clock | None = None, seed: int | None = None, number: int = 0, **options: Any) -> SimDevice:
    """A device whose copies take a byte a second, and no time besides."""
    spec = make_devices(sim={"count": number + 1, "bandwidth": 1.0, "latency": 0.0, **options})[1 + number]
    return SimDevice(spec, clock or VirtualClock(), seed)


def make(size: int, value: float = 1.0) -> Callable[..., Any]:
    """A kernel that makes `size` bytes, whatever it is given."""
    return lambda *_: np.full(size // 8, value)


def run_all(device: SimDevice, function: Callable[..., Any], outputs: int, seconds: float) -> None:
    device.launch(function, [], outputs, seconds, "split")
    device.synchronize()


# Clocks


def test_virtual_time_jumps_to_what_is_waited_for_and_never_back() -> None:
    clock = VirtualClock(3.0)
    clock.wait_until(5.5)
    clock.wait_until(4.0)
    assert clock.now() == 5.5


def test_real_time_is_waited_for_to_the_microsecond_and_never_too_short() -> None:
    clock = RealClock()
    late: list[float] = []
    for seconds in (0.0, 2e-5, 3e-4, 1e-3, 1e-3, 1e-3):
        time = clock.now() + seconds
        clock.wait_until(time)
        late.append(clock.now() - time)
    assert min(late) >= 0
    assert min(late) < 1e-4


# Time


def test_a_kernel_starts_after_the_one_before_and_what_it_reads() -> None:
    clock = VirtualClock()
    device = sim(clock)
    ended: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[Any], None]:
        return lambda _: ended.append((name, clock.now()))

    (a,) = device.launch(make(16), [], 1, 1.0, "a")  # 0 to 1
    device.to_host(a, note("a"))  # 1 to 17
    (b,) = device.launch(make(8), [a], 1, 2.0, "b")  # 1 to 3
    device.to_host(b, note("b"))  # 17 to 25, as the stream is busy
    device.to_device(np.zeros(4), note("c"))  # 0 to 32
    (d,) = device.launch(make(8), [b], 1, 4.0, "d")  # 3 to 7
    device.synchronize()
    assert ended == [("a", 17.0), ("b", 25.0), ("c", 32.0)]
    assert a.is_ready
    assert b.is_ready
    assert d.is_ready
    assert clock.now() == 32.0
    assert device.statistics().busy_seconds == {"compute": 7.0, "host-to-device": 32.0, "device-to-host": 24.0}


def test_poll_tells_when_something_is_due_and_the_host_sees_no_end_before_its_time() -> None:
    clock = VirtualClock()
    device = sim(clock)
    (a,) = device.launch(make(8), [], 1, 1.5, "a")
    (b,) = device.launch(make(8), [a], 1, 2.0, "b")
    assert device.poll() == 1.5
    assert not a.is_ready
    assert a.nbytes == 8  # computed at its start
    assert b.nbytes is None
    clock.wait_until(1.0)
    assert device.poll() == 1.5
    clock.wait_until(1.5)
    assert device.poll() == 3.5
    assert a.is_ready
    assert not b.is_ready
    clock.wait_until(3.5)
    assert device.poll() is None
    assert b.is_ready
    assert device.is_idle


def test_a_host_that_looks_too_late_delays_nothing_that_was_enqueued() -> None:
    clock = VirtualClock()
    device = sim(clock)
    for _ in range(10):
        device.launch(make(8), [], 1, 1.0, "kernel")
    clock.wait_until(7.25)
    assert device.poll() == 8.0
    clock.wait_until(100.0)
    device.synchronize()
    (late,) = device.launch(make(8), [], 1, 1.0, "late")  # but what is enqueued late starts then
    assert device.poll() == 101.0
    assert not late.is_ready


def test_a_copy_takes_the_latency_and_its_bytes_through_the_bandwidth() -> None:
    clock = VirtualClock()
    device = sim(clock, latency=0.5, bandwidth=64.0)
    done: list[Buffer] = []
    device.to_device(np.zeros(4), done.append)
    assert device.poll() == 0.5 + 32 / 64
    device.synchronize()
    device.to_host(done[0], lambda _: None)
    device.synchronize()
    assert clock.now() == 2.0
    statistics = device.statistics()
    assert (statistics.bytes_to_host, statistics.bytes_to_device) == (32, 32)
    assert (statistics.kernels, statistics.kernel_seconds) == (0, 0.0)


def test_real_time_runs_kernels_one_after_the_other() -> None:
    clock = RealClock()
    device = sim(clock)
    start = clock.now()
    (x,) = device.launch(lambda: np.float64(1), [], 1, 2e-4, "one")
    for _ in range(4):
        (x,) = device.launch(lambda value: value * 2, [x], 1, 2e-4, "double")
    assert not x.is_ready
    device.synchronize()
    assert clock.now() - start >= 1e-3
    assert x.value == 16


# Values


def test_a_kernel_of_no_duration_runs_at_once_when_nothing_is_before_it() -> None:
    device = sim()
    (x,) = device.launch(make(16, 3.0), [], 1, 0, "x")
    assert x.is_ready
    (y,) = device.launch(np.add, [x, np.float64(2)], 1, 0, "y")
    np.testing.assert_array_equal(y.value, [5.0, 5.0])
    device.launch(make(8), [], 1, 1.0, "slow")
    (z,) = device.launch(np.add, [x, y], 1, 0, "z")
    assert not z.is_ready
    device.synchronize()
    np.testing.assert_array_equal(z.value, [8.0, 8.0])


def test_nothing_is_on_tensors_with_a_seed() -> None:
    device = sim(seed=0)
    ran: list[int] = []
    device.launch(lambda: ran.append(1), [], 0, 0, "effect")
    assert ran == []
    device.synchronize()
    assert ran == [1]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_kernel_may_have_any_number_of_outputs(seconds: float) -> None:
    device = sim()
    assert device.launch(lambda: None, [], 0, seconds, "none") == ()
    assert device.launch(lambda: (), [], 0, seconds, "none") == ()
    low, high = device.launch(lambda: (np.float32(1), np.zeros(0)), [], 2, seconds, "two")
    (pair,) = device.launch(lambda: (1, None), [], 1, seconds, "a tuple")
    device.synchronize()
    assert low.value == 1
    assert high.value.shape == (0,)
    assert high.nbytes == 0
    assert pair.value == (1, None)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_kernel_that_gives_another_number_of_values_is_told(seconds: float) -> None:
    device = sim()
    with pytest.raises(
        ValueError, match=r"Kernel 'split' gave 2 values; expected 3, as it was launched with outputs=3"
    ):
        run_all(device, lambda: (1, 2), 3, seconds)


def test_values_of_all_kinds_are_copied_to_the_host_and_back() -> None:
    device = sim()
    ragged = ArrayValue.from_list([np.ones(2), np.zeros(3)])
    dense = ArrayValue.empty(3).write(1, np.ones(2))  # its other elements were never written
    for value in (np.arange(6.0).reshape(2, 3).T, np.float32(2), 3, None, (np.ones(1), np.int32(4)), ragged, dense):
        there: list[Buffer] = []
        back: list[Any] = []
        device.to_device(value, there.append)
        device.synchronize()
        device.to_host(there[0], back.append)
        device.synchronize()
        assert_same(back[0], value)


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, ArrayValue):
        assert got is not expected
        got, expected = ([v.read_or_none(i) for i in range(v.size)] for v in (got, expected))
    if not isinstance(expected, (tuple, list)):
        np.testing.assert_equal(got, expected)
        assert not isinstance(got, np.ndarray) or not np.shares_memory(got, expected)
        return
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)


def test_a_copy_shares_no_memory_with_the_device() -> None:
    device = sim()
    (x,) = device.launch(make(16), [], 1, 0, "x")
    got: list[Any] = []
    device.to_host(x, got.append)
    device.synchronize()
    assert not np.shares_memory(got[0], x.value)


def test_an_uploaded_value_may_change_on_the_host_at_once_and_kernels_wait_for_it() -> None:
    device = sim()
    value = np.ones(2)
    x = device.upload(value)
    value[:] = 7
    (y,) = device.launch(np.negative, [x], 1, 1.0, "negative")
    device.synchronize()
    np.testing.assert_array_equal(y.value, [-1.0, -1.0])
    assert device.clock.now() == 17.0  # 16 bytes, and then the kernel


def test_the_host_may_not_read_what_has_not_ended() -> None:
    device = sim()
    (x,) = device.launch(make(8), [], 1, 1.0, "product")
    device.poll()
    with pytest.raises(RuntimeError, match=r"The host reads what 'product' on the compute stream of sim:0 writes"):
        _ = x.value


def test_values_of_other_devices_are_refused() -> None:
    clock = VirtualClock()
    first, second = sim(clock), sim(clock, number=1)
    (x,) = first.launch(make(8), [], 1, 0, "x")
    expected = r"'add' on the compute stream of sim:1 is given 'x', which is on sim:0; expected a value on sim:1"
    with pytest.raises(ValueError, match=expected):
        second.launch(np.add, [x, x], 1, 0, "add")
    with pytest.raises(ValueError, match="waits for an event of sim:0; expected one of its own device"):
        second.compute_stream.wait(first.compute_stream.record())


def test_repr_tells_the_state() -> None:
    device = sim()
    (x,) = device.launch(make(8), [], 1, 1.0, "x")
    assert repr(x) == "<Buffer of 'x' on sim:0: not computed>"
    assert repr(device) == "<SimDevice sim:0: 0 bytes in use, 1 enqueued>"
    device.synchronize()
    assert repr(x) == "<Buffer of 'x' on sim:0: 8 bytes>"


# Errors


def fail(*_: Any) -> None:
    raise FloatingPointError("overflow")


def test_an_error_at_once_names_the_kernel_and_leaves_the_device_usable() -> None:
    device = sim()
    with pytest.raises(FloatingPointError, match="overflow") as caught:
        device.launch(fail, [], 1, 0, "square")
    assert caught.value.__notes__ == ["In kernel 'square' on sim:0."]
    (x,) = device.launch(make(8), [], 1, 0, "x")
    assert x.is_ready


@pytest.mark.parametrize("seed", [None, 1])
def test_an_error_later_comes_out_of_poll_until_the_rest_is_dropped(seed: int | None) -> None:
    device = sim(seed=seed)
    ran: list[str] = []

    def fail_once(_: Any) -> None:
        ran.append("wrong")
        fail()

    (before,) = device.launch(make(8), [], 1, 1.0, "before")
    (wrong,) = device.launch(fail_once, [before], 1, 1.0, "wrong")
    device.launch(lambda _: ran.append("after"), [wrong], 0, 1.0, "after")
    device.launch(make(8), [], 1, 1.0, "more")
    for _ in range(2):
        with pytest.raises(FloatingPointError) as caught:
            device.synchronize()
        assert caught.value.__notes__ == ["In kernel 'wrong' on sim:0."]
    device.abort()
    assert device.is_idle
    assert device.poll() is None
    assert ran == ["wrong"]
    np.testing.assert_array_equal(before.value, [1.0])
    with pytest.raises(RuntimeError, match=r"The value of 'wrong' on sim:0 is gone: the step was aborted"):
        _ = wrong.value
    with pytest.raises(
        RuntimeError, match=r"'use' on the compute stream of sim:0 is given 'wrong', whose value is gone"
    ):
        device.launch(np.negative, [wrong], 1, 0, "use")
    (again,) = device.launch(np.negative, [before], 1, 1.0, "again")
    device.synchronize()
    np.testing.assert_array_equal(again.value, [-1.0])


def test_abort_drops_what_runs_and_releases_its_memory_though_handles_are_held() -> None:
    device = sim()
    done: list[Any] = []
    (x,) = device.launch(make(8), [], 1, 0, "x")
    (y,) = device.launch(make(80), [x], 1, 5.0, "y")
    device.to_host(y, done.append)
    device.to_device(np.zeros(3), done.append)
    event = device.compute_stream.record()
    device.poll()
    assert device.memory.in_use == 8 + 80 + 24
    device.abort()
    assert device.memory.in_use == 8
    assert event.is_done
    assert not y.is_ready
    device.synchronize()
    assert done == []


def test_what_a_callback_raises_comes_out_of_poll_once() -> None:
    device = sim()
    device.to_device(np.zeros(1), fail)
    with pytest.raises(FloatingPointError):
        device.synchronize()
    device.synchronize()


# Memory


def test_memory_is_held_until_the_last_reference_is_gone() -> None:
    device = sim()
    (x,) = device.launch(make(800), [], 1, 1.0, "x")
    (y,) = device.launch(lambda a: a[:1].copy(), [x], 1, 1.0, "y")
    del x  # the kernel that is enqueued still reads it
    assert device.poll() == 1.0
    assert device.memory.in_use == 800
    device.clock.wait_until(1.0)
    device.poll()
    assert device.memory.in_use == 808
    device.synchronize()
    assert device.memory.in_use == 8
    del y
    assert device.memory.in_use == 0
    assert device.statistics().peak_bytes == 808


def test_views_and_arrays_of_elements_count_their_memory_once() -> None:
    device = sim()
    (x,) = device.launch(make(800), [], 1, 0, "x")
    (view,) = device.launch(lambda a: a.reshape(10, 10)[2:4], [x], 1, 0, "view")
    assert device.memory.in_use == 800
    del x
    assert device.memory.in_use == 800
    (row,) = device.launch(lambda a: a[0, :1].copy(), [view], 1, 0, "row")
    del view
    assert device.memory.in_use == 8
    (array,) = device.launch(lambda: ArrayValue.empty(100), [], 1, 0, "array")
    versions = [array]
    for index in range(100):
        versions += device.launch(lambda a, r, i=index: a.write(i, r), [versions[-1], row], 1, 0, "write")
    assert device.memory.in_use == 8 + 800
    del versions, array
    assert device.memory.in_use == 8


def test_elements_of_many_shapes_are_counted_as_they_grow() -> None:
    device = sim()
    (array,) = device.launch(lambda: ArrayValue.empty(64), [], 1, 0, "array")
    for index in range(64):
        (array,) = device.launch(lambda a, i=index: a.write(i, np.zeros(1 + i % 2)), [array], 1, 0, "write")
    whole = 8 * (32 * 1 + 32 * 2)
    assert 0.8 * whole <= device.memory.in_use <= whole
    del array
    assert device.memory.in_use == 0


def test_a_kernel_waits_for_memory_that_will_be_released() -> None:
    device = sim(memory_limit=100)
    (x,) = device.launch(make(64), [], 1, 1.0, "x")  # 0 to 1
    got: list[Any] = []
    device.to_host(x, got.append)  # 1 to 65
    (y,) = device.launch(make(64), [], 1, 1.0, "y")  # from 65 on
    del x
    while (time := device.poll()) is not None and time < 66.0:
        device.clock.wait_until(time)
    assert time == 66.0
    assert len(got) == 1
    assert not y.is_ready
    device.synchronize()
    assert y.is_ready
    assert device.statistics().peak_bytes == 64


def test_a_host_that_lets_go_in_a_callback_makes_room() -> None:
    device = sim(memory_limit=100)
    held = list(device.launch(make(64), [], 1, 0, "x"))
    device.to_host(held[0], lambda _: held.clear())
    (y,) = device.launch(make(64), [], 1, 0, "y")  # computed at once, but there is no room for it
    assert not y.is_ready
    device.synchronize()
    np.testing.assert_array_equal(y.value, np.ones(8))


def test_a_kernel_runs_once_however_long_it_waits_for_memory() -> None:
    for seconds in (0.0, 1.0):
        device = sim(memory_limit=100)
        runs: list[int] = []

        def count(runs: list[int] = runs) -> Any:
            runs.append(1)
            return np.ones(8)

        (x,) = device.launch(make(64), [], 1, 0, "x")
        device.to_host(x, lambda _: None)
        (y,) = device.launch(count, [], 1, seconds, "y")
        del x
        device.synchronize()
        assert y.is_ready
        assert runs == [1]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("seed", [None, 3])
def test_out_of_memory_names_the_kernel_the_holders_and_what_to_do(seconds: float, seed: int | None) -> None:
    device = sim(memory_limit=2000, seed=seed)
    kept = [device.launch(make(480), [], 1, seconds, "hidden") for _ in range(2)]
    kept.append(device.launch(make(800), [], 1, seconds, "weights"))
    device.launch(make(400), [], 1, seconds, "product")
    with pytest.raises(DeviceMemoryError) as caught:
        device.synchronize()
    assert str(caught.value) == (
        "sim:0 is out of memory. Kernel 'product' needs 400 bytes, but 1,760 of 2,000 are in use, and nothing that is "
        "enqueued will release any. The largest holders: 'hidden' holds 960 in 2 values, 'weights' holds 800 in 1 "
        "value. Use smaller batches, run fewer iterations in parallel, let records of loops move to the host earlier, "
        "or declare the device with a larger memory_limit."
    )
    error = caught.value
    assert isinstance(error, MemoryError)
    assert (error.device, error.limit, error.in_use, error.wanted) == ("sim:0", 2000, 1760, 400)
    assert error.holders == [("hidden", 960, 2), ("weights", 800, 1)]
    device.abort()
    kept.clear()
    (x,) = device.launch(make(1600), [], 1, seconds, "x")
    device.synchronize()
    assert x.is_ready


def test_copies_from_the_host_wait_for_memory_and_run_out_of_it() -> None:
    device = sim(memory_limit=100)
    (x,) = device.launch(make(64), [], 1, 5.0, "x")
    device.poll()  # it has started, so that it has its memory
    there: list[Buffer] = []
    device.to_device(np.zeros(8), there.append, "batch")
    device.clock.wait_until(5.0)
    device.poll()
    del x
    device.synchronize()
    assert there[0].is_ready
    assert device.clock.now() == 5.0 + 64
    device.to_device(np.zeros(8), there.append, "batch")
    with pytest.raises(DeviceMemoryError, match=r"Kernel 'batch' needs 64 bytes, but 64 of 100 are in use"):
        device.synchronize()


class Listener:
    """Notes what is waited for."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.aborts = 0

    def pressure(self, wanted: int) -> None:
        self.wanted.append(wanted)

    def aborted(self) -> None:
        self.aborts += 1


def test_listeners_are_told_when_memory_is_taken_and_waited_for() -> None:
    device = sim(memory_limit=100)
    listener = Listener()
    device.listen(listener)
    (x,) = device.launch(make(64), [], 1, 0, "x")
    assert listener.wanted == [0]
    (y,) = device.launch(np.negative, [x], 1, 1.0, "y")
    device.to_host(x, lambda _: None)
    device.poll()
    assert listener.wanted == [0, 64]
    del x
    with pytest.raises(DeviceMemoryError):  # for y reads x
        device.synchronize()
    device.abort()
    assert listener.aborts == 1
    assert not y.is_ready


def test_what_ends_releases_its_memory_to_what_starts_then() -> None:
    device = sim(memory_limit=100)
    listener = Listener()
    (x,) = device.launch(make(64), [], 1, 0, "x")
    device.listen(listener)
    device.to_host(x, lambda _: None)  # 0 to 64
    device.launch(lambda: None, [], 0, 64.0, "nothing")
    (y,) = device.launch(make(64), [], 1, 1.0, "y")
    del x
    device.synchronize()
    assert y.is_ready
    assert device.clock.now() == 65.0
    assert listener.wanted == [0]  # it took memory, and waited for none


# Poison


def stale(device: SimDevice, function: Callable[..., Any], seconds: float = 0.0) -> Any:
    """The array of a fresh result, kept wrongly when its buffer is gone."""
    (x,) = device.launch(function, [], 1, seconds, "x", fresh=[True])
    device.synchronize()
    return x.contents


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_memory_that_is_released_is_poisoned(seconds: float) -> None:
    assert np.isnan(stale(sim(), lambda: np.ones((2, 3), np.float32), seconds)).all()
    assert np.isnan(stale(sim(), lambda: np.ones(3, complex), seconds)).all()
    np.testing.assert_array_equal(stale(sim(), lambda: np.ones((2, 2), np.int16, order="F"), seconds), -23131)
    np.testing.assert_array_equal(stale(sim(), lambda: np.zeros(2, np.uint8), seconds), 0xA5)
    assert stale(sim(), lambda: np.zeros(2, bool), seconds).all()
    text = np.array(["a", "b"], np.dtypes.StringDType())
    assert list(stale(sim(), lambda: text, seconds)) == ["a", "b"]


def test_what_is_not_fresh_is_never_poisoned() -> None:
    device = sim()
    constant = np.ones(3)
    for fresh in (None, [False]):
        device.launch(lambda: constant, [], 1, 0, "constant", fresh)
    constant.flags.writeable = False
    device.launch(lambda: constant, [], 1, 0, "constant", [True])
    unpoisoned = SimDevice(device.device, device.clock, poison=False)
    stale_value = stale(unpoisoned, lambda: np.ones(3))
    np.testing.assert_array_equal(constant, 1.0)
    np.testing.assert_array_equal(stale_value, 1.0)


def views() -> list[Callable[..., Any]]:
    return [
        lambda a: a.reshape(2, 2),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 2),
        lambda a: np.broadcast_to(a, (3, 4)),
        lambda a: ArrayValue.from_stacked(a),
        lambda a: ArrayValue.from_list([a, a[:1]]),
        lambda a: ArrayValue.from_stacked(a.reshape(2, 2)).write(0, np.zeros(3)),
        lambda a: (a, None),
        lambda a: a,
    ]


@pytest.mark.parametrize("number", range(len(views())))
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_memory_is_not_poisoned_as_long_as_something_views_it(number: int, seconds: float) -> None:
    device = sim()
    view = views()[number]
    (x,) = device.launch(lambda: np.arange(4.0), [], 1, seconds, "x", [True])
    (y,) = device.launch(view, [x], 1, seconds, "view")
    del x
    device.synchronize()
    device.launch(make(8), [], 1, seconds, "other")
    device.synchronize()
    assert_same(copy_value(y.value), copy_value(view(np.arange(4.0))))


def test_bytes_of_values() -> None:
    assert value_bytes(np.zeros((2, 3), np.float32)) == 24
    assert value_bytes([1.5, None, np.int8(1)]) == 9
    assert value_bytes(ArrayValue.empty(2).write(0, np.zeros(3))) == 24
    empty = np.zeros(0)
    poison(empty)
    assert value_bytes(empty) == 0
