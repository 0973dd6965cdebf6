"""Devices that compute the end of everything when it is enqueued: with the same times as those that find out later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

from anabranch.engine.devices import Agenda, Buffer, SimDevice, StreamDevice, TimedDevice, VirtualClock
from anabranch.engine.place import make_devices

_WORK = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        st.tuples(st.just("to_host"), st.integers(0, 9), st.just(0), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.just(0), st.sampled_from([0.25, 2.0, 8.0])),
    ),
    max_size=12,
)


def run(make: Callable[[Any, VirtualClock], StreamDevice], work: Any) -> list[tuple[float, float]]:
    """When each copy to the host ended, and what it was."""
    clock = VirtualClock()
    device = make(make_devices(sim={"count": 1, "latency": 0.5, "bandwidth": 8.0})[-1], clock)
    buffers: list[Buffer] = list(device.launch(lambda: np.ones(1), [], 1, 1.0, "start"))
    found: list[tuple[float, float]] = []
    for kind, first, second, seconds in work:
        if kind == "launch":
            inputs = [buffers[first % len(buffers)], buffers[second % len(buffers)]]
            buffers.extend(device.launch(np.add, inputs, 1, seconds, "add"))
        elif kind == "to_host":
            chosen = buffers[first % len(buffers)]
            device.to_host(chosen, lambda value: found.append((clock.now(), float(value[0]))))
        else:
            until = clock.now() + seconds
            while (due := device.poll()) is not None and due <= until:
                clock.wait_until(due)
            clock.wait_until(until)
    device.synchronize()
    assert device.is_idle
    return [*found, (clock.now(), device.statistics().kernel_seconds)]


@settings(max_examples=examples(37, 150), deadline=None)
@given(_WORK)
def test_everything_ends_when_it_does_on_a_device_that_finds_out(work: Any) -> None:
    timed = run(lambda device, clock: TimedDevice(device, Agenda(clock)), work)
    assert timed == run(SimDevice, work)


def test_a_value_is_there_when_its_kernel_has_ended() -> None:
    clock = VirtualClock()
    device = TimedDevice(make_devices(sim=1)[-1], Agenda(clock))
    (x,) = device.launch(lambda: np.ones(2), [], 1, 2.0, "ones")
    assert not x.is_ready
    clock.wait_until(2.0)
    assert x.is_ready
    np.testing.assert_array_equal(x.value, np.ones(2))


def test_memory_is_counted_until_the_last_reference_is_gone() -> None:
    device = TimedDevice(make_devices(sim=1)[-1], Agenda(VirtualClock()))
    low, high = device.launch(lambda: (np.zeros(4), np.zeros(8)), [], 2, 0.0, "two")
    assert device.statistics().bytes_in_use == 96
    del low
    assert device.statistics().bytes_in_use == 64
    del high
    assert (device.statistics().bytes_in_use, device.statistics().peak_bytes) == (0, 96)


def test_a_value_that_is_sent_twice_is_copied_to_the_host_once() -> None:
    clock = VirtualClock()
    agenda = Agenda(clock)
    first, second, third = [TimedDevice(device, agenda) for device in make_devices(sim=3)[-3:]]
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, 1.0, "range")
    came: list[Buffer] = []
    first.pass_on(x, second, came.append)
    first.pass_on(x, third, came.append)
    first.synchronize()
    assert first.statistics().bytes_to_host == 32
    assert [buffer.device for buffer in came] == [second, third]
    for buffer in came:
        np.testing.assert_array_equal(buffer.value, np.arange(4.0))


def pair(**options: Any) -> tuple[VirtualClock, TimedDevice, TimedDevice]:
    clock = VirtualClock()
    agenda = Agenda(clock)
    first, second = [
        TimedDevice(device, agenda) for device in make_devices(sim={"count": 2, "latency": 1e-6, **options})[-2:]
    ]
    return clock, first, second


@pytest.mark.parametrize("seconds", [0.0, 2e-6, 5e-6])
def test_a_copy_that_ends_soon_is_given_at_once_and_ends_when_it_would_have(seconds: float) -> None:
    clock, first, second = pair()
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, seconds, "range")
    came: list[Buffer] = []
    first.pass_on(x, second, came.append)
    first.synchronize()
    expected = clock.now()
    clock, first, second = pair()
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, seconds, "range")
    copied = first.pass_soon(second, x)
    assert copied is not None
    assert not copied.is_ready
    assert copied.device is second
    assert not np.shares_memory(copied.contents, x.contents)
    (y,) = second.launch(np.square, [copied], 1, 1e-6, "square")  # behind the copy, on its stream
    assert copied.ready_at == pytest.approx(expected)
    assert y.ready_at == pytest.approx(expected + 1e-6)
    assert not first.is_idle
    first.synchronize()
    np.testing.assert_array_equal(copied.value, came[0].value)
    np.testing.assert_array_equal(y.value, [0, 1, 4, 9])
    statistics = first.statistics(), second.statistics()
    assert [each.bytes_to_host for each in statistics] == [32, 0]
    assert [each.bytes_to_device for each in statistics] == [0, 32]


def test_a_step_is_not_over_before_a_copy_that_nothing_takes() -> None:
    clock, first, second = pair()
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, 0.0, "range")
    copied = first.pass_soon(second, x)
    assert copied is not None
    first.synchronize()
    assert clock.now() == copied.ready_at > 0


def late_kernel(first: TimedDevice, second: TimedDevice) -> None:
    first.launch(lambda: np.ones(1), [], 1, 1e-3, "late")


def busy_link(first: TimedDevice, second: TimedDevice) -> None:
    second.to_device(np.zeros(1_000_000), lambda _: None)


@pytest.mark.parametrize(
    ("value", "before"),
    [
        (np.zeros(4), late_kernel),
        (np.zeros(4), busy_link),
        (np.zeros(1_000_000), None),  # at ten gigabytes a second
        (np.float64(1), None),
        (np.array(1.0), None),
        ((np.zeros(2), np.zeros(2)), None),
    ],
    ids=["late kernel", "busy link", "large", "number", "rank 0", "no array"],
)
def test_what_does_not_come_soon_or_is_no_array_is_left_to_pass_on(value: Any, before: Any) -> None:
    _, first, second = pair()
    if before is not None:
        before(first, second)
    (x,) = first.launch(lambda: (value,), [], 1, 0.0, "value")
    sent = second.statistics().bytes_to_device
    assert first.pass_soon(second, x) is None
    assert first.statistics().bytes_to_host == 0
    assert second.statistics().bytes_to_device == sent
    came: list[Buffer] = []
    first.pass_on(x, second, came.append)
    first.synchronize()
    assert len(came) == 1


def test_what_is_no_buffer_is_left_to_pass_on() -> None:
    _, first, second = pair()
    assert first.pass_soon(second, np.zeros(4)) is None


def test_a_value_that_is_given_soon_to_several_is_copied_to_the_host_once() -> None:
    agenda = Agenda(VirtualClock())
    devices = make_devices(sim={"count": 3, "latency": 1e-6})[-3:]
    first, second, third = [TimedDevice(device, agenda) for device in devices]
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, 0.0, "range")
    copies = [first.pass_soon(second, x), first.pass_soon(third, x)]
    assert [copy.device for copy in copies if copy is not None] == [second, third]
    assert first.statistics().bytes_to_host == 32
    later: list[Buffer] = []
    first.pass_on(x, second, later.append)  # the same copy, by the other way
    first.synchronize()
    assert first.statistics().bytes_to_host == 32
    np.testing.assert_array_equal(later[0].value, np.arange(4.0))


def test_copies_that_come_soon_stand_in_line() -> None:
    agenda = Agenda(VirtualClock())
    devices = make_devices(sim={"count": 4, "latency": 1e-6, "bandwidth": 1e12})[-4:]
    target, *sources = [TimedDevice(device, agenda) for device in devices]
    came: list[float] = []
    for source in sources:
        (x,) = source.launch(lambda: np.ones(1), [], 1, 0.0, "ones")
        copied = source.pass_soon(target, x)
        assert copied is not None
        came.append(copied.ready_at)
    np.testing.assert_allclose(came, [2e-6, 3e-6, 4e-6], rtol=1e-3)


def test_an_observer_is_told_of_every_copy() -> None:
    """Copies go through `submit`: what is given at once notifies nobody."""
    _, first, second = pair()
    (x,) = first.launch(lambda: np.arange(4.0), [], 1, 0.0, "range")

    class Told:
        def ran(self, stream: str, label: str, start: float, end: float) -> None: ...
        def ended(self, time: float) -> None: ...

    second.observer = Told()
    assert first.pass_soon(second, x) is None
    first.observer, second.observer = second.observer, None
    assert first.pass_soon(second, x) is None


def test_what_is_aborted_is_never_told_of() -> None:
    device = TimedDevice(make_devices(sim=1)[-1], Agenda(VirtualClock()))
    (x,) = device.launch(lambda: np.ones(1), [], 1, 1.0, "ones")
    told: list[Any] = []
    device.to_host(x, told.append)
    device.abort()
    assert device.is_idle
    assert device.poll() is None
    assert not told


def test_a_buffer_of_another_device_is_refused() -> None:
    agenda = Agenda(VirtualClock())
    first, second = [TimedDevice(device, agenda) for device in make_devices(sim=2)[-2:]]
    (x,) = first.launch(lambda: np.ones(1), [], 1, 0.0, "ones")
    message = r"Kernel 'twice' is given 'ones', which is on sim:0; expected a value on sim:1\. Copy it with to_host"
    with pytest.raises(ValueError, match=message):
        second.launch(np.add, [x, x], 1, 0.0, "twice")


def test_an_error_of_a_kernel_names_it() -> None:
    device = TimedDevice(make_devices(sim=1)[-1], Agenda(VirtualClock()))
    with pytest.raises(ZeroDivisionError) as caught:
        device.launch(lambda: 1 // 0, [], 1, 1.0, "quotient")
    assert caught.value.__notes__ == ["In kernel 'quotient' on sim:0."]
