"""Records of loops that move to the host when the memory of a device is short, and come back before they are read."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.devices import (
    Buffer,
    DeviceMemoryError,
    SimDevice,
    SwappedRecord,
    SwapPolicy,
    SwapStatistics,
    VirtualClock,
)
from anabranch.engine.place import make_devices

KERNEL = 5.75e-3  # seconds an iteration, as in the paper
SIZE = 24_000  # bytes an iteration; a thousandth of what the paper's loop may have saved, as is the bandwidth


def sim(limit: int | None = None, seed: int | None = None, bandwidth: float = 6e6) -> SimDevice:
    spec = make_devices(sim={"memory_limit": limit, "bandwidth": bandwidth, "latency": 1e-5})[-1]
    return SimDevice(spec, VirtualClock(), seed)


def run_until(device: SimDevice, is_so: Callable[[], Any]) -> None:
    while not is_so():
        time = device.poll()
        if time is None:
            assert is_so()
            return
        if not is_so():
            device.clock.wait_until(time)


def get(device: SimDevice, record: SwappedRecord, iteration: int, last: bool = False) -> Buffer:
    got: list[Any] = []
    record.get(iteration, got.append, last)
    run_until(device, lambda: got)
    return got.pop()


def read(device: SimDevice, record: SwappedRecord, iteration: int, last: bool = False) -> float:
    buffer = get(device, record, iteration, last)
    run_until(device, lambda: buffer.is_ready)
    return float(buffer.value[0])


def fill(device: SimDevice, record: SwappedRecord, count: int, size: int = SIZE) -> None:
    for i in range(count):
        record.append(i, device.launch(lambda i=i: np.full(size // 8, float(i)), [], 1, KERNEL, "state", [True])[0])
        device.synchronize()


class Loop:
    """A loop that saves a value an iteration, and its backward loop, as executors run them: some iterations ahead."""

    def __init__(self, device: SimDevice, records: Sequence[SwappedRecord], ahead: int = 32) -> None:
        self.device = device
        self.records = records
        self.ahead = ahead
        self.running: list[Buffer] = []

    def follow(self, buffer: Buffer) -> None:
        """Go on unless as many iterations are under way as may be."""
        self.running.append(buffer)
        run_until(self.device, lambda: sum(not one.is_ready for one in self.running) < self.ahead)
        self.running = [one for one in self.running if not one.is_ready]

    def forward(self, count: int, size: int = SIZE) -> None:
        state = self.device.upload(np.zeros(size // 4, np.float32))
        for i in range(count):
            for record in self.records:
                (state,) = self.device.launch(lambda h: h + 1, [state], 1, KERNEL, "forward", [True])
                record.append(i, state)
            self.follow(state)

    def backward(self, count: int, last: bool) -> float:
        total = self.device.upload(np.zeros(1, np.float32))
        for i in reversed(range(count)):
            for record in self.records:
                saved = get(self.device, record, i, last)
                (total,) = self.device.launch(lambda a, h: a + h[:1], [total, saved], 1, KERNEL, "backward", [True])
                del saved
            self.follow(total)
        self.device.synchronize()
        return float(total.value[0])


LIMIT = 505 * SIZE  # a little over 500 iterations


def milliseconds_an_iteration(
    count: int, limit: int | None, last: bool = True, ahead: int = 32
) -> tuple[float, SimDevice, SwapPolicy]:
    device = sim(limit)
    policy = SwapPolicy(device)
    loop = Loop(device, [policy.record()], ahead)
    loop.forward(count)
    assert loop.backward(count, last) == count * (count + 1) / 2
    return 1e3 * device.clock.now() / (2 * count), device, policy


@pytest.mark.parametrize(("last", "ahead"), [(True, 32), (True, 1), (False, 32), (False, 2)])
def test_a_thousand_iterations_in_memory_for_five_hundred_take_no_longer(last: bool, ahead: int) -> None:
    """Table 1 of the paper: 5.75 ms an iteration without swapping, and 5.74 with it."""
    unlimited, _, _ = milliseconds_an_iteration(1000, None, last, ahead)
    swapped, device, policy = milliseconds_an_iteration(1000, LIMIT, last, ahead)
    assert unlimited == pytest.approx(5.75, rel=0.01)
    assert swapped <= 1.03 * unlimited
    assert device.statistics().peak_bytes <= LIMIT
    moved = policy.statistics()
    assert moved.bytes_in >= 490 * SIZE
    assert moved.bytes_out <= 1000 * SIZE  # none twice
    assert not last or moved.bytes_out < 700 * SIZE
    assert moved.bytes_in < 700 * SIZE  # hardly any came back in vain
    assert moved.waits < 10


def test_without_swapping_five_hundred_iterations_fit_and_six_hundred_do_not() -> None:
    device = sim(LIMIT)
    loop = Loop(device, [SwapPolicy(device, threshold=LIMIT).record()])
    loop.forward(500)
    assert loop.backward(500, last=True) == 500 * 501 / 2
    device = sim(LIMIT)
    held: list[Buffer] = []
    with pytest.raises(DeviceMemoryError, match="Kernel 'forward' needs 24,000 bytes"):
        Loop(device, [HoldingRecord(held)]).forward(600)


class HoldingRecord(SwappedRecord):
    """Keeps what it is given on the device."""

    def __init__(self, held: list[Buffer]) -> None:
        super().__init__(SwapPolicy(sim()))
        self._held = held

    def append(self, iteration: int, value: Any) -> None:
        self._held.append(value)


def test_copies_that_take_longer_than_kernels_slow_the_loop_by_no_more_than_they_must() -> None:
    device = sim(LIMIT, bandwidth=3e6)  # 8 ms an iteration
    policy = SwapPolicy(device)
    loop = Loop(device, [policy.record()])
    loop.forward(1000)
    loop.backward(1000, last=True)
    busy = device.statistics().busy_seconds
    assert device.clock.now() < 1.25 * max(busy["compute"], busy["device-to-host"] + busy["host-to-device"])


def test_several_records_share_the_memory_fairly() -> None:
    device = sim(LIMIT)
    policy = SwapPolicy(device)
    loop = Loop(device, [policy.record() for _ in range(4)], ahead=4)
    loop.forward(250)
    assert loop.backward(250, last=True) == 1000 * 1001 / 2
    assert 1e3 * device.clock.now() / 2000 <= 1.03 * 5.75
    assert policy.statistics().waits < 10


# Which values move


def test_nothing_moves_below_the_threshold() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record = policy.record()
    fill(device, record, 10)
    assert policy.statistics() == SwapStatistics(0, 0, 0, 0)
    fill_one = device.launch(lambda: np.zeros(1), [], 1, KERNEL, "more")
    device.synchronize()
    assert fill_one[0].is_ready
    assert policy.statistics() == SwapStatistics(SIZE, 0, 0, 0)  # the oldest
    assert device.memory.in_use == 9 * SIZE + 8


def test_the_oldest_values_move_first_and_the_others_are_there_at_once() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=4 * SIZE)
    record = policy.record()
    fill(device, record, 10)
    there: list[int] = []
    for i in reversed(range(10)):
        got: list[Buffer] = []
        record.get(i, got.append)
        if got:
            there.append(i)
    assert there == [9, 8, 7, 6]


def test_small_values_stay() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=0)
    small, large = policy.record(), policy.record()
    fill(device, small, 5, 4088)
    fill(device, large, 5, 4096)
    assert policy.statistics().bytes_out == 5 * 4096
    assert device.memory.in_use == 5 * 4088


def test_without_a_limit_or_threshold_nothing_moves() -> None:
    device = sim()
    policy = SwapPolicy(device)
    fill(device, policy.record(), 50)
    assert policy.statistics().bytes_out == 0


def test_a_value_that_came_back_is_dropped_without_a_second_copy() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=4 * SIZE)
    record = policy.record()
    fill(device, record, 10)
    out = policy.statistics().bytes_out
    assert out == 6 * SIZE
    for _ in range(3):
        assert read(device, record, 0) == 0.0
        device.synchronize()
        fill(device, policy.record(), 4)  # whose record is gone at once
    moved = policy.statistics()
    assert moved.bytes_in >= 3 * SIZE
    assert moved.bytes_dropped >= 2 * SIZE
    assert moved.bytes_out <= 10 * SIZE + 12 * SIZE


def test_a_value_in_several_places_is_copied_once() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=0)
    first, second = policy.record(), policy.record()
    (x,) = device.launch(lambda: np.ones(SIZE // 8), [], 1, KERNEL, "invariant", [True])
    for i in range(5):
        first.append(i, x)
        second.append(i, x)
    del x
    device.synchronize()
    assert policy.statistics().bytes_out == SIZE
    assert device.memory.in_use == 0
    assert read(device, first, 3) == read(device, second, 1) == 1.0


@pytest.mark.parametrize("seconds", [0.0, KERNEL])
def test_a_kernel_that_needs_much_memory_pushes_values_out(seconds: float) -> None:
    device = sim(10 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record = policy.record()
    fill(device, record, 9)
    (large,) = device.launch(lambda: np.zeros(8 * SIZE // 8), [], 1, seconds, "large")
    device.synchronize()
    assert large.is_ready
    assert policy.statistics().bytes_out == 7 * SIZE


def test_values_are_pushed_out_while_other_copies_go_on() -> None:
    device = sim(10 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record = policy.record()
    fill(device, record, 8)
    there: list[Buffer] = []
    device.to_device(np.zeros(SIZE // 8), there.append)
    device.poll()
    before = device.clock.now()
    device.launch(lambda: np.zeros(8 * SIZE // 8), [], 1, KERNEL, "large")
    device.synchronize()
    assert policy.statistics().bytes_out == 7 * SIZE
    assert device.clock.now() - before == pytest.approx(7 * (SIZE / 6e6 + 1e-5) + KERNEL)


def test_reading_brings_back_what_is_read_next_as_far_as_there_is_room() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record = policy.record()
    fill(device, record, 20)
    for i in range(19, 14, -1):  # 10 to 19 are on the device
        assert read(device, record, i, last=True) == i
    device.synchronize()
    assert policy.statistics().bytes_in == 4 * SIZE  # to nine tenths of the threshold
    before = device.clock.now()
    assert [read(device, record, i, last=True) for i in range(14, 5, -1)] == list(range(14, 5, -1))
    assert device.clock.now() == before
    assert policy.statistics().waits == 0


def test_reading_upward_brings_back_upward() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record, younger = policy.record(), policy.record()
    fill(device, record, 20)
    fill(device, younger, 10)
    younger.clear()
    for i in range(20):
        assert read(device, record, i) == i
        device.clock.wait_until(device.clock.now() + KERNEL)
    assert policy.statistics().waits == 2  # before it was known where the reads go
    assert policy.statistics().bytes_in == 20 * SIZE
    assert policy.statistics().bytes_out == 20 * SIZE


# What records hold


@given(
    seed=st.one_of(st.none(), st.integers(0, 2**16)),
    threshold=st.integers(0, 12),
    last=st.booleans(),
    order=st.permutations(range(12)),
    appended=st.permutations(range(12)),
)
def test_records_give_what_they_were_given_in_any_order(
    seed: int | None, threshold: int, last: bool, order: list[int], appended: list[int]
) -> None:
    device = sim(16 * SIZE, seed)
    policy = SwapPolicy(device, threshold=threshold * SIZE)
    record = policy.record()
    for i in appended:
        (x,) = device.launch(lambda i=i: np.full(SIZE // 8, float(i)), [], 1, KERNEL, "state", [True])
        record.append(i, x)
        del x
    assert record.size == 12
    for _ in range(1 if last else 2):
        for i in order:
            assert read(device, record, i, last) == i
    device.synchronize()
    assert record.size == (0 if last else 12)
    if not last:
        hosts: list[Any] = []
        record.as_host_list(hosts.extend)
        device.synchronize()
        assert [array[0] for array in hosts] == list(range(12))
    del record
    assert device.memory.in_use == 0


def test_a_value_is_as_young_as_its_youngest_place() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=4 * SIZE)
    record = policy.record()
    fill(device, record, 4)
    record.append(4, get(device, record, 0))
    (more,) = device.launch(lambda: np.zeros(1), [], 1, 0, "more")
    device.synchronize()
    assert policy.statistics().bytes_out == SIZE
    del more
    before = device.clock.now()
    assert [read(device, record, i) for i in (4, 3, 2)] == [0, 3, 2]
    assert device.clock.now() == before
    assert read(device, record, 1) == 1
    assert policy.statistics().bytes_in == SIZE


def test_a_value_that_came_back_may_be_kept_in_another_place() -> None:
    device = sim(1_000_000)
    policy = SwapPolicy(device, threshold=0)
    record, other = policy.record(), policy.record()
    fill(device, record, 1)
    other.append(0, get(device, record, 0))
    (more,) = device.launch(lambda: np.zeros(1), [], 1, 0, "more")
    device.synchronize()
    assert more.is_ready
    assert policy.statistics() == SwapStatistics(SIZE, SIZE, SIZE, 1)
    assert read(device, other, 0) == 0


def test_of_what_came_back_the_latest_goes_first() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record, younger = policy.record(), policy.record()
    fill(device, record, 20)
    fill(device, younger, 10)
    younger.clear()
    assert read(device, record, 19) == 19
    device.synchronize()
    came = policy.statistics().bytes_in // SIZE
    assert came == 10  # 19 to 10, as what was read makes room
    kept = device.launch(lambda: np.zeros(6 * SIZE // 8), [], 1, 0, "large")
    device.synchronize()
    before = device.clock.now()
    assert [read(device, record, i) for i in (18, 17, 16, 15)] == [18, 17, 16, 15]
    assert device.clock.now() == before
    assert policy.statistics().waits == 1
    assert kept[0].is_ready


def test_reads_that_jump_ahead_bring_back_what_follows_there() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=10 * SIZE)
    record, younger = policy.record(), policy.record()
    fill(device, record, 30)
    fill(device, younger, 10)
    younger.clear()
    assert read(device, record, 29) == 29
    assert read(device, record, 5, last=True) == 5
    found = record.next_far()
    assert found is not None
    assert found[0] == 1  # 4, and not what is between


def test_a_value_whose_step_was_aborted_is_told_and_moves_nowhere() -> None:
    device = sim(10 * SIZE)
    policy = SwapPolicy(device, threshold=0)
    record = policy.record()
    record.append(0, device.launch(lambda: np.zeros(SIZE // 8), [], 1, KERNEL, "state", [True])[0])
    device.abort()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is given 'state', whose value is gone"):
            record.as_host_list(print)
    fill(device, policy.record(), 2)
    assert policy.statistics().bytes_out == 2 * SIZE


def test_copies_that_wait_for_a_kernel_that_waits_for_them_are_out_of_memory() -> None:
    device = sim(10 * SIZE)
    policy = SwapPolicy(device)
    record = policy.record()
    large = device.launch(lambda: np.zeros(8 * SIZE // 8), [], 1, KERNEL, "large", [True])
    record.append(0, device.launch(lambda: np.zeros(SIZE // 8), [], 1, KERNEL, "first", [True])[0])
    record.append(1, device.launch(lambda: np.zeros(4 * SIZE // 8), [], 1, KERNEL, "second", [True])[0])
    (third,) = device.launch(lambda: np.zeros(1), [], 1, KERNEL, "third")
    device.to_host(third, lambda _: None)  # before the copy that would make room
    with pytest.raises(DeviceMemoryError, match="Kernel 'second'"):
        device.synchronize()
    assert large[0].is_ready
    assert not third.is_ready


def test_lists_of_all_iterations() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=2 * SIZE)
    record = policy.record()
    fill(device, record, 5)
    got: list[list[Any]] = []
    record.as_list(got.append)
    record.as_host_list(got.append)
    record.as_host_list(got.append)
    assert got == []
    device.synchronize()
    kinds = sorted(type(values[0]).__name__ for values in got)
    assert kinds == ["Buffer", "ndarray", "ndarray"]
    for values in got:
        arrays = [value.value if isinstance(value, Buffer) else value for value in values]
        np.testing.assert_array_equal([array[0] for array in arrays], np.arange(5))
    assert policy.statistics().bytes_out <= 5 * SIZE


def test_values_that_are_no_buffers_are_kept_as_they_are() -> None:
    device = sim()
    record = SwapPolicy(device).record()
    record.append(1, np.float32(2))
    record.append(0, None)
    got: list[Any] = []
    record.get(1, got.append)
    record.as_list(got.extend)
    record.as_host_list(got.extend)
    assert got == [2, None, 2, None, 2]
    SwapPolicy(device).record().as_list(got.append)
    assert got[-1] == []


def test_a_record_that_is_let_go_releases_its_memory_on_both_sides() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=2 * SIZE)
    record = policy.record()
    fill(device, record, 5)
    assert device.memory.in_use == 2 * SIZE
    assert repr(record) == "<SwappedRecord of 5 iterations on sim:0>"
    record.clear()
    assert device.memory.in_use == 0
    assert record.size == 0


def test_a_record_that_is_let_go_while_copies_are_under_way() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=2 * SIZE)
    record = policy.record()
    fill(device, record, 4)
    (x,) = device.launch(lambda: np.zeros(SIZE), [], 1, 0, "x", [True])  # one goes out
    record.get(0, lambda _: None)  # one comes back
    del record
    device.synchronize()
    del x
    assert device.memory.in_use == 0


def test_an_aborted_step_leaves_the_policy_usable() -> None:
    device = sim(100 * SIZE)
    policy = SwapPolicy(device, threshold=3 * SIZE)
    record = policy.record()
    fill(device, record, 6)
    never: list[Any] = []
    record.get(0, never.append)
    record.append(6, device.launch(lambda: np.full(SIZE // 8, 6.0), [], 1, KERNEL, "state", [True])[0])
    device.poll()  # it has its memory, so that another is on its way out
    device.abort()
    device.synchronize()
    assert policy.statistics().bytes_out == 3 * SIZE
    (more,) = device.launch(lambda: np.zeros(2 * SIZE // 8), [], 1, KERNEL, "more")
    device.synchronize()
    assert device.memory.in_use == 3 * SIZE
    del more
    assert [read(device, record, i) for i in reversed(range(6))] == [5, 4, 3, 2, 1, 0]
    device.synchronize()
    del record
    fresh = policy.record()
    fill(device, fresh, 6)
    assert device.memory.in_use == 3 * SIZE
    assert never == []
    assert [read(device, fresh, i) for i in reversed(range(6))] == [5, 4, 3, 2, 1, 0]


# Errors


def test_misuse_is_told() -> None:
    device = sim(1000)
    with pytest.raises(ValueError, match=r"threshold=2,000 bytes; expected at most the 1,000 bytes that sim:0 has"):
        SwapPolicy(device, threshold=2000)
    record = SwapPolicy(device).record()
    record.append(1, 5)
    with pytest.raises(ValueError, match="is given iteration 1 twice"):
        record.append(1, 6)
    with pytest.raises(IndexError, match=r"Iteration 0 of a loop's record is read, but it holds none .*1 in all"):
        record.get(0, print)
    with pytest.raises(IndexError, match="holds 1 iterations, but not iteration 0"):
        record.as_list(print)
