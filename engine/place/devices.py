"""The devices of this process: declared once, before programs are compiled; by default one CPU."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..common.quick_dataclass import dataclass
from ..graph.device import DeviceName

LOCAL = DeviceName("localhost", 0)  # the job and task of a process that belongs to no cluster


@dataclass(frozen=True, slots=True)
class Device:
    """A device, and what is known of its speed.

    Attributes:
        spec: its whole name.
        memory_limit: bytes that programs may use on it; None for no limit.
        bandwidth: bytes a second that it sends and receives.
        latency: seconds that a transfer to or from it takes at least.
        flops: floating-point operations a second.
        memory_bandwidth: bytes a second that kernels read and write.
        kernel_latency: seconds that a kernel takes at least.
        seed: of a simulated device, the random but legal order in which it runs what is enqueued; None for the order
            in which that is due.
        virtual_time: of a simulated device, whether its time only counts; otherwise it passes.
        swap_threshold: bytes in use above which histories of loops move to the host, where a loop says so
            (``swap_memory``); None for three quarters of the memory limit.
        swap_smallest: values of fewer bytes stay.
    """

    spec: DeviceName
    memory_limit: int | None = None
    bandwidth: float = 1e10
    latency: float = 1e-6
    flops: float = 5e10
    memory_bandwidth: float = 1e10
    kernel_latency: float = 2e-6
    seed: int | None = None
    virtual_time: bool = True
    swap_threshold: int | None = None
    swap_smallest: int = 4096

    @property
    def kind(self) -> str:
        """ "cpu", "gpu" or "sim"."""
        return (self.spec.kind or "").lower()

    @property
    def has_own_memory(self) -> bool:
        """Test whether values are where the host can't read them."""
        return self.kind != "cpu"

    @property
    def number(self) -> int:
        return self.spec.number or 0

    @property
    def name(self) -> str:
        """ "gpu:0" for a device of this process, the whole name for those of other tasks."""
        short = f"{self.kind}:{self.number}"
        return short if self.spec.of_task() == LOCAL else str(self.spec)

    def __str__(self) -> str:
        limit = "" if self.memory_limit is None else f", at most {self.memory_limit:,} bytes"
        return f"{self.name}{limit}"


# Orders of magnitude, for placing before anything was measured.
_SPEEDS: dict[str, dict[str, float]] = {
    "cpu": {},
    "gpu": {"latency": 2e-5, "flops": 1e13, "memory_bandwidth": 1e12, "kernel_latency": 2e-5},
    "sim": {"latency": 1e-5, "flops": 1e12, "memory_bandwidth": 1e11, "kernel_latency": 5e-6},
}
KINDS = tuple(_SPEEDS)
_OPTIONS = ("memory_limit", "bandwidth", "latency", "flops", "memory_bandwidth", "kernel_latency")
_OWN_MEMORY_OPTIONS = ("swap_threshold", "swap_smallest")
_SIM_OPTIONS = ("seed", "virtual_time")
_MAY_BE_NONE = ("memory_limit", "swap_threshold", "seed")
_MAY_BE_ZERO = ("latency", "kernel_latency", "seed", "memory_limit", *_OWN_MEMORY_OPTIONS)


def make_devices(task: DeviceName = LOCAL, **kinds: Any) -> list[Device]:
    """Return devices of one task, by kind: how many, or a dict of options with a "count" (by default 1).

    Args:
        task: the job and task to which they belong.
        kinds: "cpu", "gpu" and "sim". There is always a CPU, the host of the others. Options are those of `Device`:
            "memory_limit", "bandwidth", "latency", "flops", "memory_bandwidth", "kernel_latency", of others than CPUs
            also "swap_threshold" and "swap_smallest", and of "sim" also "seed" and "virtual_time".

    Raises:
        ValueError: a kind or an option is not known, or a number is out of range.
        TypeError: a kind is given something else than a count or a dict.

    >>> [device.name for device in make_devices(cpu=1, sim={"count": 2, "memory_limit": 10**6})]
    ['cpu:0', 'sim:0', 'sim:1']
    """
    unknown = [kind for kind in kinds if kind not in _SPEEDS]
    if unknown:
        raise ValueError(f"set_devices: {unknown[0]!r} is no kind of device; expected some of {', '.join(KINDS)}.")
    return [device for kind in KINDS for device in _of_kind(kind, kinds.get(kind, int(kind == "cpu")), task)]


def _of_kind(kind: str, wanted: Any, task: DeviceName) -> Iterator[Device]:
    given = wanted
    options: dict[str, Any] = dict(given) if isinstance(wanted, Mapping) else {"count": wanted}
    count = options.pop("count", 1)
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"set_devices: {kind}={wanted!r}; expected how many there are, or a dict of options.")
    least = int(kind == "cpu")
    if count < least:
        raise ValueError(f"set_devices: {kind}={count}; expected at least {least}.")
    for option, value in options.items():
        _check_option(kind, option, value)
    threshold, limit = options.get("swap_threshold"), options.get("memory_limit")
    if threshold is not None and limit is not None and threshold > limit:
        raise ValueError(
            f"set_devices: {kind}: swap_threshold={threshold:,} bytes; expected at most the memory_limit, {limit:,}."
        )
    for number in range(count):
        speeds: Any = {**_SPEEDS[kind], **options}
        yield Device(replace(task, kind=kind.upper(), number=number), **speeds)


def _check_option(kind: str, option: str, value: Any) -> None:
    allowed = [*_OPTIONS, *(_OWN_MEMORY_OPTIONS if kind != "cpu" else ()), *(_SIM_OPTIONS if kind == "sim" else ())]
    if option not in allowed:
        known = ", ".join(("count", *allowed))
        raise ValueError(f"set_devices: {kind} has no option {option!r}; expected some of {known}.")
    if (value is None and option in _MAY_BE_NONE) or (isinstance(value, bool) and option == "virtual_time"):
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise ValueError(f"set_devices: {kind}: {option}={value!r}; expected a number that is not negative.")
    if not value and option not in _MAY_BE_ZERO:
        raise ValueError(f"set_devices: {kind}: {option}=0; expected more than 0.")


def typical_device(kind: str) -> Device:
    """Return a device of that kind as it is without options."""
    speeds: Any = _SPEEDS[kind]
    return Device(replace(LOCAL, kind=kind.upper(), number=0), **speeds)


_declared: list[Device] = make_devices()


class _OfCluster(threading.local):
    def __init__(self) -> None:
        self.devices: list[Device] | None = None


_of_cluster = _OfCluster()


@contextmanager
def devices_of_cluster(devices: Sequence[Device]) -> Generator[None]:
    """Have what this thread prepares inside the block run on these devices, in place of those that were declared.

    Args:
        devices: of one task or of several; what is fed arrives at the first CPU.
    """
    before = _of_cluster.devices
    _of_cluster.devices = list(devices)
    try:
        yield
    finally:
        _of_cluster.devices = before


class Declaration:
    """The declaration of devices that holds.

    Attributes:
        version: how many there were before; programs are good for one.
        measures: whether steps are timed under it.
        lossy: pairs of devices, from and to, between which 32-bit floats travel as 16 bits.
    """

    def __init__(self) -> None:
        self.version = 0
        self.measures = False
        self.lossy: tuple[tuple[str, str], ...] = ()


declaration = Declaration()


def set_devices(
    devices: Sequence[str] | None = None,
    *,
    measure: bool = False,
    lossy: Iterable[tuple[str, str]] = (),
    **kinds: Any,
) -> None:
    """Declare the devices of this process, in place of those that were declared before.

    Args:
        devices: names, one for each device: ``["cpu:0", "sim:0", "sim:1"]``, as `list_devices` gives them.
        measure: time the operations of steps that span devices, and place new steps by these times and not by
            estimates. Then which device an operation runs on, and with it rounding, may differ from run to run.
        lossy: pairs of devices, from and to, between which 32-bit floats travel as bfloat16: the lower half of their
            bits is cut off.
        kinds: instead, how many of a kind there are, or a dict with a "count" and options: "memory_limit" in bytes;
            "bandwidth" (bytes a second) and "latency" (seconds) of transfers; "flops", "memory_bandwidth" and
            "kernel_latency" of its kernels, by which operations are placed until they have been measured. Of devices
            with memory of their own "swap_threshold", the bytes in use above which histories of loops move to the host
            (by default three quarters of the memory limit), and "swap_smallest", below which a value stays. Of "sim"
            "seed", for random legal orders, and "virtual_time": whether simulated time only counts, or passes.

    There is always at least one CPU. A GPU that is declared and can't be used is an error of the first step, also of
    one that needs no GPU. Steps that were compiled before are compiled again when they are next run.

    Raises:
        ValueError: a kind or an option is not known, or a number is out of range. TypeError: neither count nor dict.

    >>> set_devices(cpu=2, sim={"count": 2, "memory_limit": 2**30})
    >>> [device.name for device in list_devices()]
    ['cpu:0', 'cpu:1', 'sim:0', 'sim:1']
    >>> set_devices()
    """
    if devices is not None:
        kinds = {**_counted(devices), **kinds}
    made = make_devices(**kinds)
    declaration.lossy = tuple([(_name_among(made, source), _name_among(made, target)) for source, target in lossy])
    _declared[:] = made
    declaration.version += 1
    declaration.measures = measure


def _name_among(devices: Sequence[Device], name: str) -> str:
    """Return the short name of the device that `name` means.

    Raises:
        ValueError: there is none, or there are several.
    """
    asked = DeviceName.parse(name)
    found = [device.name for device in devices if asked.accepts(device.spec)]
    if len(found) != 1:
        raise ValueError(
            f"set_devices: lossy names {name!r}, which is {len(found) or 'none'} of the devices; expected one of "
            f"{named(devices)}."
        )
    return found[0]


def devices_version() -> int:
    """Return how often devices were declared; programs are good for one declaration."""
    return declaration.version


def has_one_device() -> bool:
    """Test whether there is nothing but one CPU."""
    return _of_cluster.devices is None and len(_declared) == 1


def steps_are_measured() -> bool:
    """Test whether steps report their times to `costs_of_process`."""
    return declaration.measures


def _counted(names: Sequence[str]) -> dict[str, int]:
    """Return how many of each kind are named; they must be the first ones."""
    asked = [DeviceName.parse(name) for name in names]
    counts: dict[str, int] = {}
    for kind in dict.fromkeys(name.kind for name in asked):
        numbers = sorted(name.number for name in asked if name.kind == kind and name.number is not None)
        if kind is None or numbers != list(range(len(numbers))) or not numbers:
            raise ValueError(
                f"set_devices({list(names)}): expected names such as 'cpu:0', counted from 0 in each kind."
            )
        counts[kind.lower()] = len(numbers)
    return counts


def list_devices(kind: str | None = None) -> list[Device]:
    """Return the devices of this process, each with its `kind`, `name` and `memory_limit`.

    Args:
        kind: "cpu", "gpu" or "sim", to list only these.

    >>> [(device.kind, device.name, device.memory_limit) for device in list_devices("cpu")]
    [('cpu', 'cpu:0', None)]
    """
    devices = _declared if _of_cluster.devices is None else _of_cluster.devices
    return [device for device in devices if kind is None or device.kind == kind.lower()]


def host_of(device: Device, devices: Sequence[Device]) -> Device:
    """Return the CPU that sees to a device: itself if it is one, otherwise the first of its task.

    Raises:
        ValueError: its task has none.
    """
    if device.kind == "cpu":
        return device
    task = device.spec.of_task()
    found = next((other for other in devices if other.kind == "cpu" and other.spec.of_task() == task), None)
    if found is None:
        raise ValueError(f"Device {device.name} has no host: expected a CPU of {task} among the devices.")
    return found


def named(devices: Sequence[Device]) -> str:
    """Return devices as text for messages."""
    return ", ".join(device.name for device in devices)
