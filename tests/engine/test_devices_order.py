"""Order on devices of streams: random programs in random legal orders, and accesses that nothing orders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.devices import Buffer, Event, SimDevice, UnorderedAccessError, VirtualClock
from anabranch.engine.devices.order import STREAMS
from anabranch.engine.place import make_devices

_SEEDS = st.one_of(st.none(), st.integers(0, 2**16))
_SECONDS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])


def sim(seed: int | None = None, **options: Any) -> SimDevice:
    spec = make_devices(sim={"bandwidth": 16.0, "latency": 0.25, **options})[-1]
    return SimDevice(spec, VirtualClock(), seed)


# Random programs, by the calls that order themselves


def add_in_place(x: Any, y: Any) -> None:
    x += y


KERNELS: list[tuple[Callable[..., Any], bool]] = [
    (lambda x, y: x + y, True),
    (lambda x, y: x * 0.5 - y, True),
    (lambda x, y: np.maximum(x, y)[::-1], False),  # a view
    (lambda x, y: x, False),  # the same memory again
]


class Run:
    """The same steps on a device and, at once, on arrays."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self.pairs: list[tuple[Buffer, Any]] = []  # buffers, and what they are to be
        self.owned: list[tuple[Buffer, Any]] = []  # of memory of their own, so that they may be updated
        self.copies = 0
        self.expected_copies = 0

    def take(self, draw: st.DataObject) -> tuple[Buffer, Any]:
        return self.pairs[draw.draw(st.integers(0, len(self.pairs) - 1))]

    def upload(self, draw: st.DataObject) -> None:
        value = np.arange(4.0) + len(self.pairs)
        self.pairs.append((self.device.upload(value), value.copy()))
        self.owned.append(self.pairs[-1])
        value[:] = np.inf

    def copy_in(self, draw: st.DataObject) -> None:
        value = np.ones(4) * len(self.pairs)
        self.expected_copies += 1

        def arrived(buffer: Buffer) -> None:
            self.copies += 1
            np.testing.assert_array_equal(buffer.value, value)

        self.device.to_device(value, arrived)

    def kernel(self, draw: st.DataObject) -> None:
        function, is_fresh = draw.draw(st.sampled_from(KERNELS))
        (x, x_value), (y, y_value) = self.take(draw), self.take(draw)
        (result,) = self.device.launch(function, [x, y], 1, draw.draw(_SECONDS), "kernel", [is_fresh])
        self.pairs.append((result, np.array(function(x_value, y_value))))

    def update(self, draw: st.DataObject) -> None:
        x, x_value = self.owned.pop()
        self.pairs = [(buffer, value) for buffer, value in self.pairs if buffer is not x]
        y, y_value = self.take(draw) if self.pairs else (np.ones(4), np.ones(4))
        self.device.launch(add_in_place, [x, y], 0, draw.draw(_SECONDS), "update", updates=[x])
        (result,) = self.device.launch(np.array, [x], 1, draw.draw(_SECONDS), "copy", [True])
        self.pairs.append((result, x_value + y_value))

    def copy_out(self, draw: st.DataObject) -> None:
        buffer, value = self.take(draw)
        self.expected_copies += 1
        expected = np.array(value)

        def arrived(array: Any) -> None:
            self.copies += 1
            np.testing.assert_array_equal(array, expected)

        self.device.to_host(buffer, arrived)

    def let_go(self, draw: st.DataObject) -> None:
        index = draw.draw(st.integers(0, len(self.pairs) - 1))
        buffer, _ = self.pairs.pop(index)
        self.owned = [(other, value) for other, value in self.owned if other is not buffer]

    def poll(self, draw: st.DataObject) -> None:
        time = self.device.poll()
        if time is not None and draw.draw(st.booleans()):
            self.device.clock.wait_until(time)

    def finish(self) -> None:
        self.device.synchronize()
        assert self.copies == self.expected_copies
        for index in range(len(self.pairs)):
            np.testing.assert_array_equal(self.pairs[index][0].value, self.pairs[index][1])
        self.pairs, self.owned = [], []
        assert self.device.memory.in_use == 0


def steps_of(run: Run) -> list[Callable[[st.DataObject], None]]:
    steps = [run.upload, run.copy_in, run.poll]
    if run.pairs:
        steps += [run.kernel, run.kernel, run.kernel, run.copy_out, run.let_go]
    if run.owned and len(run.pairs) == len(run.owned):  # nothing else may be a view of what is updated
        steps += [run.update]
    return steps


@given(seed=_SEEDS, draw=st.data(), count=st.integers(1, 25))
def test_random_programs_give_what_arrays_give(seed: int | None, draw: st.DataObject, count: int) -> None:
    run = Run(sim(seed))
    for _ in range(count):
        draw.draw(st.sampled_from(steps_of(run)))(draw)
    run.finish()


@given(seed=_SEEDS, seconds=st.lists(_SECONDS, min_size=1, max_size=12), limit=st.integers(3, 6))
def test_a_random_order_takes_no_more_memory_than_there_is_and_no_other_time(
    seed: int | None, seconds: list[float], limit: int
) -> None:
    """A chain of kernels, each of whose results is copied out: at most three of them are needed at a time."""
    times: list[float] = []
    for used in (None, seed):
        device = sim(used, memory_limit=32 * limit, bandwidth=1e9, latency=0.0)
        got: list[float] = []
        (x,) = device.launch(lambda: np.zeros(4), [], 1, 1.0, "start", [True])
        for one in seconds:
            (x,) = device.launch(lambda a: a + 1, [x], 1, one, "kernel", [True])
            device.to_host(x, lambda array, got=got: got.append(array[0]))
        device.synchronize()
        assert got == [float(i + 1) for i in range(len(seconds))]
        assert device.memory.peak <= 32 * limit
        times.append(device.clock.now())
    assert times[0] == pytest.approx(times[1], abs=1e-6)
    assert times[0] == pytest.approx(1 + sum(seconds), abs=1e-5)


def test_seeds_give_different_orders_and_each_gives_one() -> None:
    def order(seed: int) -> str:
        device = sim(seed, bandwidth=1e9, latency=0.0)
        ran: list[str] = []
        for stream, name in zip(device.streams, "abc", strict=True):
            for _ in range(5):
                device.enqueue(stream, lambda name=name: ran.append(name), [], 0)
        device.synchronize()
        return "".join(ran)

    orders = {seed: order(seed) for seed in range(8)}
    assert all(order(seed) == found for seed, found in orders.items())
    assert len(set(orders.values())) > 4
    assert all(sorted(found) == sorted("abc" * 5) for found in orders.values())


# Streams and events by hand


@given(seed=_SEEDS, draw=st.data(), count=st.integers(1, 10))
def test_an_access_is_refused_exactly_if_nothing_orders_it(seed: int | None, draw: st.DataObject, count: int) -> None:
    """Random kernels on random streams with random events; that a path orders two of them is found by search."""
    device = sim(seed)
    made: list[tuple[Buffer, float, int]] = []  # results, what they are to be, and the node
    before: list[set[int]] = []  # for each node, all that ends before it starts
    streams: list[set[int]] = [set() for _ in STREAMS]  # for each stream, all that ends before what comes next
    events: list[tuple[Event, set[int]]] = []
    for node in range(count):
        number = draw.draw(st.integers(0, len(STREAMS) - 1))
        ordered = set(streams[number])
        waits: list[Event] = []
        for event, reached in draw.draw(st.lists(st.sampled_from(events), max_size=2)) if events else []:
            waits.append(event)
            ordered |= reached
        inputs = draw.draw(st.lists(st.sampled_from(made), max_size=2)) if made else []
        call = (device.streams[number], lambda *x: np.float64(1 + sum(x)), [x for x, _, _ in inputs])
        label = f"kernel {node}"
        if not all(writer in ordered for _, _, writer in inputs):
            with pytest.raises(UnorderedAccessError, match=f"'{label}' on the {STREAMS[number]} stream"):
                device.enqueue(*call, label=label, waits=waits)
            streams[number] = ordered  # the stream has waited all the same
            before.append(ordered)
            continue
        (result,) = device.enqueue(*call, label=label, waits=waits, seconds=draw.draw(_SECONDS))
        before.append(ordered)
        streams[number] = ordered | {node}
        made.append((result, 1 + sum(value for _, value, _ in inputs), node))
        if draw.draw(st.booleans()):
            other = draw.draw(st.integers(0, len(STREAMS) - 1))
            events.append((device.streams[other].record(), set(streams[other])))
    device.synchronize()
    for buffer, value, _ in made:
        assert buffer.value == value


@pytest.mark.parametrize("seed", [None, 0])
def test_a_missing_wait_is_told_with_both_kernels_streams_and_the_remedy(seed: int | None) -> None:
    device = sim(seed)
    (x,) = device.enqueue(device.compute_stream, lambda: np.ones(3), [], label="product", seconds=1.0)
    with pytest.raises(UnorderedAccessError) as caught:
        device.enqueue(device.to_host_stream, np.copy, [x], label="copy out")
    assert str(caught.value) == (
        "'copy out' on the device-to-host stream of sim:0 reads 'product', which 'product' on the compute stream of "
        "sim:0 writes, and nothing orders the two. Record an event on the compute stream behind 'product', and let the "
        "device-to-host stream wait for it before 'copy out' is enqueued."
    )
    device.to_host_stream.wait(device.compute_stream.record())
    (copied,) = device.enqueue(device.to_host_stream, np.copy, [x], label="copy out")
    device.synchronize()
    np.testing.assert_array_equal(copied.value, 1.0)


def test_an_event_recorded_too_early_orders_nothing() -> None:
    device = sim()
    early = device.compute_stream.record()
    assert early.is_done
    (x,) = device.enqueue(device.compute_stream, lambda: np.ones(3), [], label="product", seconds=1.0)
    with pytest.raises(UnorderedAccessError, match="reads 'product'"):
        device.enqueue(device.to_host_stream, np.copy, [x], waits=[early])


def test_what_the_host_has_seen_end_needs_no_event() -> None:
    device = sim()
    (x,) = device.enqueue(device.compute_stream, lambda: np.ones(3), [], seconds=1.0)
    device.synchronize()
    (y,) = device.enqueue(device.to_host_stream, np.negative, [x])
    device.synchronize()
    np.testing.assert_array_equal(y.value, -1.0)


def test_events_order_across_a_third_stream() -> None:
    device = sim(1)
    compute, to_device, to_host = device.streams
    (x,) = device.enqueue(compute, lambda: np.ones(3), [], seconds=1.0)
    to_device.wait(compute.record())
    to_host.wait(to_device.record())  # nothing is enqueued between, but it has waited
    (y,) = device.enqueue(to_host, np.negative, [x], seconds=1.0)
    assert not to_host.record().is_done
    device.synchronize()
    assert to_host.record().is_done
    np.testing.assert_array_equal(y.value, -1.0)
    assert device.clock.now() == 2.0


def test_writing_what_a_copy_still_reads_is_refused_and_launch_waits_for_it() -> None:
    device = sim()
    x = device.upload(np.zeros(16))
    device.synchronize()
    got: list[Any] = []
    device.to_host(x, lambda array: got.append(array.copy()))
    (one,) = device.launch(lambda: np.ones(16), [], 1, 0, "one")
    expected = (
        r"'add' on the compute stream of sim:0 writes 'constant', which 'copy of constant to host' on the device-to-h"
    )
    with pytest.raises(UnorderedAccessError, match=expected):
        device.enqueue(device.compute_stream, add_in_place, [x, one], 0, label="add", updates=[x])
    device.launch(add_in_place, [x, one], 0, 1.0, "add", updates=[x])
    device.to_host(x, lambda array: got.append(array.copy()))
    assert not x.is_ready
    device.synchronize()
    np.testing.assert_array_equal(got, [np.zeros(16), np.ones(16)])
    np.testing.assert_array_equal(x.value, np.ones(16))
    device.enqueue(device.compute_stream, add_in_place, [x, one], 0, label="add", updates=[x])  # the copies have ended
    device.synchronize()
    np.testing.assert_array_equal(x.value, np.full(16, 2.0))


def test_an_update_of_no_duration_runs_at_once_if_nothing_else_uses_the_value() -> None:
    device = sim()
    (x,) = device.launch(lambda: np.zeros(2), [], 1, 0, "x")
    device.launch(add_in_place, [x, np.ones(2)], 0, 0, "add", updates=[x])
    np.testing.assert_array_equal(x.value, 1.0)
    device.to_host(x, lambda _: None)
    device.launch(add_in_place, [x, np.ones(2)], 0, 0, "add", updates=[x])
    assert not x.is_ready
    device.synchronize()
    device.launch(add_in_place, [x, np.ones(2)], 0, 0, "add", updates=[x])
    np.testing.assert_array_equal(x.value, 3.0)


def test_what_waits_for_dropped_work_runs() -> None:
    device = sim()
    device.launch(lambda: None, [], 0, 5.0, "dropped")
    event = device.compute_stream.record()
    device.abort()
    (x,) = device.enqueue(device.to_host_stream, lambda: np.ones(2), [], waits=[event], seconds=1.0)
    device.synchronize()
    assert x.is_ready
    assert device.clock.now() == 1.0


def test_updates_that_are_dropped_leave_the_value_readable() -> None:
    device = sim()
    (x,) = device.launch(lambda: np.zeros(2), [], 1, 0, "x")
    device.launch(add_in_place, [x, np.ones(2)], 0, 1.0, "add", updates=[x])
    device.abort()
    np.testing.assert_array_equal(x.value, 0.0)
