"""Keras 3's `distribution` module: meshes, layouts, and which strategy models are compiled under."""

from __future__ import annotations

import os
from typing import Any

from ...engine.ops import collectives
from ...engine.ops.base import convert_to_tensor
from ..cluster import ClusterSpec
from ..collectives.public import join_at, joined
from ..environment import Place
from .data_parallel import DataParallel
from .mesh import DeviceMesh, LayoutMap, TensorLayout, get_device_count, list_devices
from .model_parallel import ModelParallel
from .strategy import Strategy, current_strategy, set_default_strategy


def initialize(
    job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Join the other processes of this job. Call it in each before anything is trained.

    Where a launcher has started the processes (`python -m anabranch launch`, torchrun, ``mpirun``, ``srun``) they find
    each other without it.

    Args:
        job_addresses: ``"host:port"`` of each process, with commas between; or only that of process 0, where the
            others find each other. By default the environment's ``KERAS_DISTRIBUTION_JOB_ADDRESSES``.
        num_processes: how many there are; by default ``KERAS_DISTRIBUTION_NUM_PROCESSES``, or as many as addresses.
        process_id: the number of this one, from 0; by default ``KERAS_DISTRIBUTION_PROCESS_ID``.

    Raises:
        ValueError: the numbers do not fit together.
        TimeoutError: other processes are absent.

    >>> initialize("localhost:2203", num_processes=1, process_id=0)
    """
    text = os.environ.get("KERAS_DISTRIBUTION_JOB_ADDRESSES", "") if job_addresses is None else job_addresses
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    count = _number("num_processes", "KERAS_DISTRIBUTION_NUM_PROCESSES", num_processes)
    number = _number("process_id", "KERAS_DISTRIBUTION_PROCESS_ID", process_id)
    if not addresses:
        if count is not None and count > 1:
            raise ValueError(
                f"initialize: {count} processes need job_addresses, such as 'host:2203', to find each other."
            )
        collectives.current_group()  # joins what a launcher has started
        return
    count = len(addresses) if count is None else count
    if number is None or not 0 <= number < count:
        raise ValueError(f"initialize: process_id={number} must be a number from 0 to {count - 1}.")
    if len(addresses) not in (1, count):
        raise ValueError(
            f"initialize: {len(addresses)} addresses for num_processes={count}. Give one for each process, or that of "
            "process 0 alone."
        )
    if count == 1:
        return
    if len(addresses) == 1:
        collectives.set_group(join_at(addresses[0], number, count))
    else:
        collectives.set_group(joined(Place(ClusterSpec({"worker": addresses}), "worker", number)))


def _number(name: str, variable: str, given: Any) -> int | None:
    text = os.environ.get(variable, "") if given is None else given
    if text == "":
        return None
    try:
        return int(text)
    except (TypeError, ValueError):
        raise ValueError(f"initialize: {name} must be a whole number, got {text!r}.") from None


def distribution() -> Strategy | None:
    """Return the strategy under which models are compiled here: of the scope around, else of `set_distribution`.

    >>> distribution() is None
    True
    """
    return current_strategy()


def set_distribution(value: Strategy | None) -> None:
    """Compile models under a strategy from now on, where no `scope` is around; None for none.

    Raises:
        ValueError: it is something else.

    >>> import anabranch as ab
    >>> ab.distribution.set_distribution(ab.distribution.DataParallel(devices=["cpu:0"]))
    >>> ab.distribution.set_distribution(None)
    """
    if value is not None and not isinstance(value, Strategy):
        raise ValueError(
            f"set_distribution: expected a strategy such as ab.distribution.DataParallel(), or None; got {value!r}."
        )
    set_default_strategy(value)


def distribute_tensor(tensor: Any, layout: TensorLayout) -> Any:
    """Check that a tensor can be spread over a mesh as a layout says, and give it.

    Values are the same under any layout. Which device computes what follows from the layouts of variables and batches.

    Args:
        tensor: a tensor, or what makes one.
        layout: a layout.

    Raises:
        TypeError: `layout` is not a `TensorLayout`.
        ValueError: it is for another rank, or the mesh does not divide a size.

    >>> import anabranch as ab
    >>> mesh = ab.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])
    >>> layout = ab.distribution.TensorLayout(["batch", None], mesh)
    >>> ab.distribution.distribute_tensor(ab.ops.ones((2, 3)), layout).shape
    (2, 3)
    """
    if not isinstance(layout, TensorLayout):
        raise TypeError(f"distribute_tensor: layout must be a TensorLayout, got {layout!r} of {type(layout).__name__}.")
    found = convert_to_tensor(tensor)
    layout.check_tensor(found.shape, "distribute_tensor: the tensor")
    return found


__all__ = [
    "DataParallel",
    "DeviceMesh",
    "LayoutMap",
    "ModelParallel",
    "TensorLayout",
    "distribute_tensor",
    "distribution",
    "get_device_count",
    "initialize",
    "list_devices",
    "set_distribution",
]
