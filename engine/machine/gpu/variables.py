"""Values of variables on a GPU.

A step that stays on a GPU leaves what it writes there, and steps that follow find it there. The host gets a copy when
something needs the value (`OnGpu`). Steps of several devices copy what they write to the host as they go
(`DeviceVariables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ...common.dtypes import as_dtype
from ...devices.dispatcher import Dispatcher
from ...graph.op import as_scalar_or_array, is_array
from ...graph.state.initial_values import Given, Later
from ...graph.state.variable import Variable


class OnGpu(Later):
    """The value of a variable in the memory of a GPU.

    Args:
        dispatcher: drives the GPU.
        array: its array.
        host: the same in the memory of the host, if it is there.

    Attributes:
        array: on the GPU.
    """

    keeps_array: ClassVar[bool] = True

    def __init__(self, dispatcher: Dispatcher, array: Any, host: Any = None) -> None:
        self.dispatcher = dispatcher
        self.array = array
        self.host = host
        self.dtype = as_dtype(array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def compute(self) -> Any:
        if self.host is None:
            self.host = as_scalar_or_array(self.dispatcher.call(self.array.get))
        return self.host

    def __reduce__(self) -> tuple[Any, ...]:
        """Describe copies and pickles, which have the value in the memory of the host."""
        return Given, (self.dispatcher.call(self.array.get),)


def on_gpu(variable: Variable, dispatcher: Dispatcher) -> OnGpu | None:
    """Return the value of a variable on a GPU; None if it is not there, or has been written elsewhere since."""
    fields = vars(variable)
    form = fields.get("_first")
    if not isinstance(form, OnGpu) or form.dispatcher is not dispatcher:
        return None
    host = fields.get("_value", form)
    return form if host is form or host is form.host else None


class StepVariables:
    """The values of variables during one run of a step that stays on a GPU. What it writes takes effect at its end.

    Attributes:
        values: by variable, arrays on the GPU, or NumPy scalars.
        written: the variables that were written.
    """

    def __init__(self) -> None:
        self.values: dict[Variable, Any] = {}
        self.written: dict[Variable, None] = {}

    def begin(self, values: Mapping[Variable, Any]) -> None:
        """Begin a run with these values."""
        self.values = dict(values)
        self.written = {}

    def read(self, variable: Variable) -> Any:
        """Return the value as of now."""
        return self.values[variable]

    def write(self, variable: Variable, value: Any) -> None:
        """Replace the value."""
        self.values[variable] = value
        self.written[variable] = None


def found_values(variables: Iterable[Variable], dispatcher: Dispatcher) -> dict[Variable, Any]:
    """Return for each variable what holds its value: `OnGpu`, or the array or scalar of the host."""
    return {variable: on_gpu(variable, dispatcher) or variable.stored_value() for variable in variables}


def keep_uploaded(variable: Variable, dispatcher: Dispatcher, host: Any, array: Any) -> None:
    """Let a variable whose value was uploaded hold that array, too. A value that was assigned meanwhile stays."""
    variable.store_as(lambda found, before: (OnGpu(dispatcher, array, host), False))


class _Copy:
    """The value of a variable on a device, and on the host as soon as it is there."""

    def __init__(self, device: Any, host: Any, is_coming: bool) -> None:
        self.device = device
        self.host = host
        self.is_coming = is_coming


class DeviceVariables:
    """The values of variables on one GPU during a step. They are uploaded when they are first read.

    What is written is copied to the host beside the kernels that follow, and put into the variable then; the step ends
    after that. Others may change the host's memory between steps, so that copies are kept no longer.

    Args:
        dispatcher: makes the copies.

    Attributes:
        step: counts the steps.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.step = 0
        self._of_step = 0
        self._copies: dict[Variable, _Copy] = {}

    def begin(self, step: int) -> None:
        """Begin a kernel of a step; called with each kernel."""
        if step != self._of_step:
            self._of_step = step
            self._copies.clear()

    def read(self, variable: Variable) -> Any:
        """Return the value on the device; a NumPy scalar where it is one."""
        copy = self._copies.get(variable)
        if copy is not None and copy.is_coming:
            return copy.device
        held = on_gpu(variable, self._dispatcher)
        if held is not None:
            return held.array
        host = variable.stored_value()
        if copy is not None and copy.host is host:
            return copy.device
        if not is_array(host):
            return host
        device = self._dispatcher.cupy.asarray(host)
        self._copies[variable] = _Copy(device, host, is_coming=False)
        return device

    def write(self, variable: Variable, value: Any) -> None:
        """Replace the value; kernels see that from now on, and the host when it is there."""
        copy = self._copies[variable] = _Copy(value, None, is_coming=True)

        def arrived(host: Any) -> None:
            copy.host, copy.is_coming = host, False
            if self._copies.get(variable) is copy:
                variable.write_value(host)

        self._dispatcher.fetch(value, arrived)


class DeviceVariable:
    """Stands for a variable in what runs on a device.

    Args:
        variable: the variable.
        values: where its values are.
    """

    def __init__(self, variable: Variable, values: DeviceVariables | StepVariables) -> None:
        self._variable = variable
        self._values = values
        self.name = variable.name
        self.dtype = variable.dtype
        self.shape = variable.shape
        self._check_shape = variable._check_shape  # pyrefly: ignore[protected-access]

    @property
    def _value(self) -> Any:
        return self._values.read(self._variable)

    @_value.setter
    def _value(self, value: Any) -> None:
        self._values.write(self._variable, value)

    def write_value(self, value: Any) -> None:
        """Write a value as `Variable.write_value` does."""
        self._values.write(self._variable, value)
