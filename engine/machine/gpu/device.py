"""The GPU of a machine: it runs printed kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...devices.gpu import GpuDevice
from ...graph.op import is_array
from ...place.devices import Device
from .kernels import GpuKernels, travels


class MachineGpu(GpuDevice):
    """A GPU whose kernels are functions that were printed over NumPy's names (see `GpuKernels`).

    Args:
        device: which one.

    Raises:
        GpuUnavailableError: cupy or the GPU can't be used.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._printed = GpuKernels(self.dispatcher)

    def adapted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.is_idle:
            self._printed.forget_variables()
        return self._printed.of(function)

    def to_device(self, value: Any, done: Callable[[Any], None], label: str = "copy from host") -> None:
        if is_array(value) and travels(value):
            done(value)  # it goes with the kernels that take it
        else:
            super().to_device(value, done, label)
