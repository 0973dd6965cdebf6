"""The GPU of a machine: it runs printed kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...common.nest import is_tuple
from ...devices.gpu import GpuDevice
from ...graph.op import is_array
from ...place.devices import Device
from .kernels import GpuKernels, travels
from .variables import DeviceVariables


class MachineGpu(GpuDevice):
    """A GPU whose kernels are functions that were printed over NumPy's names (see `GpuKernels`).

    Args:
        device: which one.

    Raises:
        GpuUnavailableError: cupy or the GPU can't be used.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._variables = DeviceVariables(self.dispatcher)
        self._printed = GpuKernels(self.dispatcher, self._variables)

    def adapted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.is_idle:  # a step begins: the host may have written variables since the last one
            self._variables.step += 1
        return functools.partial(self._run, function, self._variables.step)

    def _run(self, function: Callable[..., Any], step: int, *values: Any) -> Any:
        self._variables.begin(step)
        results = self._printed.function_of(function)(*values)
        if is_tuple(results):
            return tuple([self._printed.on_device(value) for value in results])
        return self._printed.on_device(results)

    def to_device(self, value: Any, done: Callable[[Any], None], label: str = "copy from host") -> None:
        if is_array(value) and travels(value):
            done(value)  # it goes with the kernels that take it
        else:
            super().to_device(value, done, label)
