"""Requests where operations run: device names, whole or in part, and the scopes that ask for them.

A name is ``/job:J/task:N/device:KIND:I``; parts that are left out are open. Short forms are understood: "cpu:1",
"gpu:0", "gpu" (any of them), "/task:3" (any device of that task).

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section
4.3 (device constraints).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

from ..common.quick_dataclass import dataclass
from .provenance import Location
from .tensor import Operators, Tensor

if TYPE_CHECKING:
    import numpy as np

    from ..common.dtypes import DType, DTypeLike
    from .graph import Operation
    from .op import Op
    from .spec import TensorSpec

_NAME = re.compile(
    r"^(?:/job:(?P<job>[\w.-]+))?(?:/task:(?P<task>\d+))?/?(?:device:)?(?:(?P<kind>[A-Za-z]+)(?::(?P<number>\d+|\*))?)?$"
)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The parts of a device's name; None where a part is open.

    Attributes:
        job: the name of a job of the cluster.
        task: the number of a task of that job.
        kind: "CPU", "GPU" or another kind, in capitals.
        number: which device of that kind.
    """

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Return the parts of a name, in full or short form.

        Raises:
            ValueError: the name can't be read.

        >>> DeviceName.parse("/task:3/gpu")
        DeviceName(job=None, task=3, kind='GPU', number=None)
        """
        return _parsed(text)

    def merged(self, inner: DeviceName) -> DeviceName:
        """Merge the request of a scope `inner` into this one around it: what `inner` leaves open is taken from here.

        A device's number counts those of its kind: an inner scope that asks for another kind leaves it open.

        >>> str(DeviceName.parse("/job:worker/gpu:1").merged(DeviceName.parse("/task:2")))
        '/job:worker/task:2/device:GPU:1'
        >>> str(DeviceName.parse("gpu:1").merged(DeviceName.parse("cpu")))
        '/device:CPU:*'
        """
        number = inner.number
        if number is None and inner.kind in (None, self.kind):
            number = self.number
        return DeviceName(
            self.job if inner.job is None else inner.job,
            self.task if inner.task is None else inner.task,
            inner.kind or self.kind,
            number,
        )

    def accepts(self, device: DeviceName) -> bool:
        """Test whether `device` has all the parts that this name asks for.

        >>> DeviceName.parse("gpu").accepts(DeviceName.parse("/task:0/gpu:3"))
        True
        """
        return (
            self.job in (None, device.job)
            and self.task in (None, device.task)
            and self.kind in (None, device.kind)
            and self.number in (None, device.number)
        )

    def of_task(self) -> DeviceName:
        """Return the job and task alone."""
        return DeviceName(self.job, self.task)

    def __str__(self) -> str:
        text = "" if self.job is None else f"/job:{self.job}"
        if self.task is not None:
            text += f"/task:{self.task}"
        if self.kind is not None:
            text += f"/device:{self.kind}:{'*' if self.number is None else self.number}"
        return text


@lru_cache(maxsize=1024)
def _parsed(text: str) -> DeviceName:
    match = _NAME.match(text.strip())
    if match is None or not text.strip():
        raise ValueError(f"Device {text!r} can't be read. Write 'cpu:0', 'gpu:1' or '/job:worker/task:0/device:CPU:0'.")
    task, kind, number = match["task"], match["kind"], match["number"]
    return DeviceName(
        match["job"],
        None if task is None else int(task),
        None if kind is None else kind.upper(),
        None if number in (None, "*") else int(number),
    )


def canonical_device(name: str) -> str:
    """Return the full form of a device name; parts that are not given stay open.

    Raises:
        ValueError: the name can't be read.

    >>> canonical_device("cpu:1"), canonical_device("/job:ps/task:3"), canonical_device("gpu")
    ('/device:CPU:1', '/job:ps/task:3', '/device:GPU:*')
    """
    return str(DeviceName.parse(name))


def task_of(device: str) -> str:
    """Return the task of a device, by their names.

    >>> task_of("/job:ps/task:1/device:CPU:0")
    '/job:ps/task:1'
    """
    return str(DeviceName.parse(device).of_task())


ANYWHERE = DeviceName()
DeviceFunction = Callable[[Any], "str | None"]  # of an operation, or of a variable, that is being made


class State:
    """State that is kept on a device and outlives a step. What touches it runs there, whatever scopes are around.

    Attributes:
        device: the device asked for where it was made; "" if none was.
        location: the line that made it.
        colocations: what it is to be with.
        on_host: whether it is in the host's memory, whatever devices there are.
    """

    on_host: bool = False
    device: str = ""
    colocations: tuple[Any, ...] = ()
    location: Location | None = None


class VariableState(Operators, State):
    """The base of `Variable` alone: what graphs use of variables, and by which modules below it recognise them.

    Attributes:
        name: what messages call it.
        spec: the type of its value.
        trainable: whether optimizers are to update it.
    """

    name: str
    spec: TensorSpec
    trainable: bool

    @property
    def shape(self) -> Any:
        raise NotImplementedError

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def value(self) -> Tensor:
        """The value at this point of the program."""
        raise NotImplementedError

    def read_op(self) -> Op:
        """Return the op that reads it."""
        raise NotImplementedError

    def assign(self, value: Any) -> Any:
        """Give it another value."""
        raise NotImplementedError

    def numpy(self) -> Any:
        """Return the value of now as an array."""
        raise NotImplementedError

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise NotImplementedError


def is_variable(value: object) -> TypeGuard[VariableState]:
    """Test whether an object is a `Variable`; for modules below it."""
    return isinstance(value, VariableState)


class Colocation:
    """A wish of operations to be on one device: those that hold the same object.

    Attributes:
        name: the operation with which the others are to be.
        location: the line that asked for it.
        binding: whether it was asked for; otherwise it is preferred (gradients are near what they are gradients of).
    """

    __slots__ = ("binding", "location", "name")

    def __init__(self, name: str, location: Location | None, binding: bool) -> None:
        self.name = name
        self.location = location
        self.binding = binding


def colocation_of(operation: Operation, location: Location | None, binding: bool) -> Colocation:
    """Return what `operation` and those that are to be with it hold."""
    for known in operation.colocations:
        if isinstance(known, Colocation) and known.name == operation.name and known.binding == binding:
            return known
    made = Colocation(operation.name, location, binding)
    operation.colocations = (*operation.colocations, made)
    return made


@dataclass(frozen=True, slots=True)
class DeviceScope:
    """Requests of the device scopes around a place of the program.

    Attributes:
        parts: names and functions, the outermost first.
        plain: the merged name, as far as there are no functions.
        colocations: what operations are to be with: `Colocation` objects and state.
    """

    parts: tuple[DeviceName | DeviceFunction, ...] = ()
    plain: str = ""
    colocations: tuple[Any, ...] = ()

    def inside(self, part: DeviceName | DeviceFunction) -> DeviceScope:
        """Return the scope inside, which asks for `part`, too."""
        parts = (*self.parts, part)
        names = [known for known in parts if isinstance(known, DeviceName)]
        if len(names) < len(parts):
            return DeviceScope(parts, "", self.colocations)
        merged = ANYWHERE
        for name in names:
            merged = merged.merged(name)
        return DeviceScope((merged,), str(merged), self.colocations)

    @property
    def asks(self) -> bool:
        """Test whether functions have to be asked for each operation."""
        return bool(self.parts) and not self.plain

    def settle(self, made: Any) -> None:
        """Ask the functions among the scopes for the device of an operation or variable, the innermost first.

        What a function returns is merged as any other scope; it sees in ``made.device`` what scopes inside ask for.

        Raises:
            ValueError: a function returns no device's name.
        """
        asked = ANYWHERE
        for part in reversed(self.parts):
            made.device = str(asked)
            asked = (part if isinstance(part, DeviceName) else _answer(part, made)).merged(asked)
        made.device = str(asked)


def _answer(function: DeviceFunction, made: Any) -> DeviceName:
    answer: Any = function(made)
    if answer is None or answer == "":
        return ANYWHERE
    if not isinstance(answer, str):
        raise ValueError(
            f"A device function returned {answer!r} for {made.name!r}; expected a device's name such as 'cpu:0', or "
            "None for no request."
        )
    return DeviceName.parse(answer)


def settle_operation(operation: Operation, scope: DeviceScope) -> None:
    """Give a new operation its device: that of the state which it touches, or what the scopes ask for."""
    if not operation.op.regions:
        touched = [effect.resource for effect in operation.effects if not isinstance(effect.resource, str)]
        if touched:
            operation.device = _device_of_state(touched)
            operation.colocations = ()
            return
    if scope.asks:
        scope.settle(operation)


def place_state(state: State, scope: DeviceScope) -> None:
    """Give a new variable the device that the scopes around ask for, or that of the variable it is to be with."""
    state.device = scope.plain
    if scope.asks:
        scope.settle(state)
    state.colocations = scope.colocations


def _device_of_state(resources: Sequence[Any]) -> str:
    found = [resource.device for resource in resources if isinstance(resource, State)]
    return next((device for device in found if device), "")
