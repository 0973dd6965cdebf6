"""Loads cupy on first use, and says what is wrong where there is no GPU to use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..place.devices import Device

_NOT_READY = 600  # cudaErrorNotReady


class GpuUnavailableError(RuntimeError):
    """A step is to run on a GPU, and this process can't use it: cupy, a driver or the GPU itself is missing."""


def load_cupy(device: str = "gpu:0") -> Any:
    """Return the module cupy.

    Args:
        device: what it is needed for, for the message.

    Raises:
        GpuUnavailableError: it is not installed, or does not load.
    """
    try:
        import cupy
    except ImportError as error:
        raise GpuUnavailableError(
            f"Device {device} needs cupy, which can't be imported ({error}). Install it with pip install "
            "'anabranch[gpu]', or declare devices without GPUs: ab.config.set_devices(cpu=1)."
        ) from error
    return cupy


def check_gpu(number: int) -> Any:
    """Return the module cupy, if it can use GPU `number`.

    Raises:
        GpuUnavailableError: it can't.
    """
    device = f"gpu:{number}"
    cupy = load_cupy(device)
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise GpuUnavailableError(
            f"Device {device} can't be used: {error}. Expected an NVIDIA GPU with a driver for the CUDA version of the "
            "installed cupy. Look at what nvidia-smi says, or declare devices without GPUs: "
            "ab.config.set_devices(cpu=1)."
        ) from error
    if number >= count:
        found = "no GPU" if not count else "one GPU" if count == 1 else f"{count} GPUs"
        raise GpuUnavailableError(
            f"Device {device} was declared, but this machine has {found} (see CUDA_VISIBLE_DEVICES). "
            f"Declare those that there are: ab.config.set_devices(gpu={count})."
        )
    return cupy


def check_gpus(devices: Iterable[Device]) -> None:
    """Check that the GPUs among `devices` can be used.

    Raises:
        GpuUnavailableError: one can't.
    """
    for device in devices:
        if device.kind == "gpu":
            check_gpu(device.number)


def is_reached(cupy: Any, event: Any) -> bool:
    """Test whether what is before an event has ended.

    Raises:
        CUDARuntimeError: it failed. (`Event.done` would be False for ever.)
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status in (0, _NOT_READY):
        return status == 0
    raise cupy.cuda.runtime.CUDARuntimeError(status)
