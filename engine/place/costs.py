"""`CostModel`: what operations and transfers take, estimated first and measured later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.tensor import Symbol
from ..passes.framework.estimates import bytes_of, flops_of, made_bytes, traffic_of
from .devices import Device, devices_version, typical_device

ASSUMED_ITERATIONS = 16


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean over the runs of one operation: seconds of a run, bytes of its results."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Link:
    """A way from one device to another: bytes a second, and seconds that a transfer takes at least."""

    bandwidth: float
    latency: float


@dataclass
class _Sums:
    runs: int = 0
    seconds: float = 0.0
    bytes: int = 0
    kinds: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])


class CostModel:
    """Times and sizes by which operations are placed.

    Args:
        links: transfers between pairs of devices, by name, where they differ from what follows from the devices.

    Estimates come from types of operations and static shapes. Once steps have run, and called `record`, measured times
    and sizes take their place.

    Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section 3.2.1.

    >>> costs = CostModel()
    >>> costs.record("dense/matmul", "cpu", seconds=0.004, bytes=4000)
    >>> costs.measured("dense/matmul")
    Measurement(seconds=0.004, bytes=4000)
    """

    def __init__(self, links: Mapping[tuple[str, str], Link] | None = None) -> None:
        self._links = dict(links or {})
        self._sums: dict[str, _Sums] = {}
        self._iterations: dict[str, tuple[int, int]] = {}

    # --- what was measured ------------------------------------------------------------------------------------------

    def record(self, name: str, kind: str, seconds: float, bytes: int) -> None:
        """Note a run of an operation.

        Args:
            name: the operation's, as it is in the whole graph (``loop/body/name`` inside a loop).
            kind: of the device that ran it: "cpu", "gpu" or "sim".
            seconds: how long it took.
            bytes: of its results.
        """
        sums = self._sums.setdefault(name, _Sums())
        sums.runs += 1
        sums.seconds += seconds
        sums.bytes += bytes
        runs, total = sums.kinds.get(kind, (0, 0.0))
        sums.kinds[kind] = (runs + 1, total + seconds)

    def record_iterations(self, name: str, iterations: int) -> None:
        """Note how many iterations a run of a loop made."""
        runs, total = self._iterations.get(name, (0, 0))
        self._iterations[name] = (runs + 1, total + iterations)

    def measured(self, name: str) -> Measurement | None:
        """Return the mean over all recorded runs of an operation; None if there were none."""
        sums = self._sums.get(name)
        return None if sums is None else Measurement(sums.seconds / sums.runs, sums.bytes // sums.runs)

    # --- what is expected -------------------------------------------------------------------------------------------

    def seconds(self, operation: Operation, device: Device, name: str = "") -> float:
        """Return the seconds that a run of an operation takes on a device.

        Measured on another kind of device only, it takes as much longer as the estimates differ.
        """
        sums = self._sums.get(name or operation.name)
        if sums is None:
            return self.estimate(operation, device)
        if device.kind in sums.kinds:
            runs, total = sums.kinds[device.kind]
            return total / runs
        kind, (runs, total) = next(iter(sums.kinds.items()))
        there = self.estimate(operation, typical_device(kind))
        return total / runs * (self.estimate(operation, device) / there if there else 1.0)

    def estimate(self, operation: Operation, device: Device) -> float:
        """Return the seconds of a run by the operation's type and shapes, and the device's speed."""
        flops, traffic = flops_of(operation), traffic_of(operation)
        if not flops and not traffic:
            return 0.0
        return device.kernel_latency + max(flops / device.flops, traffic / device.memory_bandwidth)

    def bytes(self, operation: Operation, name: str = "") -> int:
        """Return the bytes of memory that the results of an operation take."""
        sums = self._sums.get(name or operation.name)
        return made_bytes(operation) if sums is None else sums.bytes // sums.runs

    def size(self, tensor: Symbol, name: str = "") -> int:
        """Return the bytes that a transfer of a value moves."""
        sums = self._sums.get(name or tensor.operation.name)
        if sums is None or len(tensor.operation.outputs) > 1:
            return bytes_of(tensor.spec)
        return sums.bytes // sums.runs

    def iterations(self, name: str) -> float:
        """Return the number of iterations that a loop makes."""
        runs, total = self._iterations.get(name, (0, 0))
        return total / runs if runs else float(ASSUMED_ITERATIONS)

    def transfer(self, size: int, source: Device, destination: Device) -> float:
        """Return the seconds that a value of `size` bytes takes from one device to another."""
        if source == destination:
            return 0.0
        link = self._links.get((source.name, destination.name))
        if link is not None:
            return link.latency + size / link.bandwidth
        slower = min(source.bandwidth, destination.bandwidth)
        return source.latency + destination.latency + size / slower


class _OfProcess:
    version = -1
    costs = CostModel()


def costs_of_process() -> CostModel:
    """Return the measurements of this process since the devices were declared with ``set_devices(..., measure=True)``.

    Without that it stays empty, so that the same step is placed in the same way each time.
    """
    if _OfProcess.version != devices_version():
        _OfProcess.costs = CostModel()
        _OfProcess.version = devices_version()
    return _OfProcess.costs
