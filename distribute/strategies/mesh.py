"""`DeviceMesh`, `TensorLayout` and `LayoutMap`: which axes of tensors are spread over which devices, as in Keras."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from ...engine.objects.arguments import listed
from ...engine.ops.collectives import current_group
from ...engine.place.devices import list_devices as local_devices


def device_names(owner: str, devices: Any) -> list[str]:
    """Return the names of devices that an argument lists.

    Raises:
        ValueError: it is no list, or something in it is no name.

    >>> device_names("Pipeline", ["cpu:0", 1])
    Traceback (most recent call last):
    ...
    ValueError: Pipeline: devices must be a list of names, such as 'cpu:0'; got [1] in it.
    """
    expected = "a list of names, such as 'cpu:0'"
    found = listed(owner, "devices", devices, expected)
    strange = [name for name in found if not isinstance(name, str)]
    if strange:
        raise ValueError(f"{owner}: devices must be {expected}; got {strange} in it.")
    return found


def list_devices(device_type: str | None = None) -> list[str]:
    """Return the names of the devices, of all workers where there are several.

    Args:
        device_type: "cpu", "gpu" or "tpu" (of which there are none), or "sim" for simulated ones; by default GPUs if
            there are any, then simulated devices, then CPUs.

    Raises:
        ValueError: it is something else.

    >>> list_devices()
    ['cpu:0']
    """
    if device_type is None:
        found = next(kind for kind in ("gpu", "sim", "cpu") if kind == "cpu" or local_devices(kind))
        return list_devices(found)
    kind = str(device_type).lower()
    if kind not in ("cpu", "gpu", "tpu", "sim"):
        raise ValueError(f"list_devices: device_type must be 'cpu', 'gpu', 'tpu' or 'sim'; got {device_type!r}.")
    names = [device.name for device in local_devices(kind)]
    group = current_group()
    if group.size == 1:
        return names
    parts = [name.upper() for name in names]
    return [f"/job:worker/task:{rank}/device:{part}" for rank in range(group.size) for part in parts]


def get_device_count(device_type: str | None = None) -> int:
    """Return how many devices there are; see `list_devices`.

    >>> get_device_count("cpu"), get_device_count("tpu")
    (1, 0)
    """
    return len(list_devices(device_type))


class DeviceMesh:
    """Devices in an array whose axes have names.

    Args:
        shape: of the array.
        axis_names: a name for each of its axes, such as "batch" and "model".
        devices: their names, as many as the array has elements; by default all of `list_devices`.

    Raises:
        ValueError: shape, names and devices do not fit together.
        TypeError: the shape is a number, or the names are one text.

    >>> DeviceMesh((2, 2), ("batch", "model"), ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]).devices[1, 0]
    np.str_('cpu:2')
    """

    def __init__(self, shape: Sequence[int], axis_names: Sequence[str], devices: Any = None) -> None:
        if isinstance(shape, int | np.integer) or isinstance(axis_names, str):
            raise TypeError(
                f"DeviceMesh: shape={shape!r} and axis_names={axis_names!r} must be a tuple of sizes and a list of "
                "names, also for one axis: DeviceMesh((4,), ['model'])."
            )
        if not shape or not axis_names or len(shape) != len(axis_names):
            raise ValueError(
                f"DeviceMesh: shape={shape} and axis_names={axis_names} must be of the same length, and not empty."
            )
        if len(set(axis_names)) != len(axis_names):
            raise ValueError(f"DeviceMesh: axis_names={list(axis_names)} has a name twice.")
        if any(size < 1 for size in shape):
            raise ValueError(f"DeviceMesh: shape={tuple(shape)} must have sizes of at least 1.")
        given = np.array(list_devices() if devices is None else devices)
        if given.dtype.kind != "U":
            device_names("DeviceMesh", given.reshape(-1).tolist())
        if int(np.prod(shape)) != given.size:
            raise ValueError(
                f"DeviceMesh: shape={tuple(shape)} takes {int(np.prod(shape))} devices, but there are {given.size}: "
                f"{given.reshape(-1).tolist()}. Choose another shape, or declare more with ab.config.set_devices."
            )
        self._shape = tuple(int(size) for size in shape)
        self._axis_names = list(axis_names)
        self._devices = given.reshape(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `devices`."""
        return self._shape

    @property
    def axis_names(self) -> list[str]:
        """The names of its axes."""
        return self._axis_names

    @property
    def devices(self) -> Any:
        """The names of the devices, an array of strings."""
        return self._devices

    def size_of(self, axis_name: str) -> int:
        """Return how many devices there are along an axis."""
        return self._shape[self._axis_names.index(axis_name)]

    def __repr__(self) -> str:
        return f"<DeviceMesh shape={self.shape}, axis_names={self.axis_names}>"


class TensorLayout:
    """The axes of a mesh along which the axes of a tensor are spread.

    Args:
        axes: for each axis of the tensor the name of an axis of the mesh, or None where it is whole on each device.
        device_mesh: the mesh; it may be set later, once.

    Raises:
        ValueError: the mesh has no such axis, or an axis is named twice.
        TypeError: the axes are no list or tuple.

    >>> TensorLayout((None, "model"))
    <TensorLayout axes=(None, 'model'), device_mesh=None>
    """

    def __init__(self, axes: Sequence[str | None], device_mesh: DeviceMesh | None = None) -> None:
        if not isinstance(axes, (list, tuple)):
            raise TypeError(
                f"TensorLayout: axes must be a tuple with a name or None for each axis of the tensor; got {axes!r}. "
                "That of one axis has a comma: ('model',)."
            )
        self._axes = tuple(axes)
        named = [name for name in axes if name is not None]
        if len(set(named)) < len(named):
            raise ValueError(
                f"TensorLayout: axes={self._axes} names an axis of the mesh twice. A device has one place."
            )
        self._device_mesh = device_mesh
        self._check()

    @property
    def axes(self) -> tuple[str | None, ...]:
        """The names of the mesh's axes, by the tensor's axes."""
        return self._axes

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh."""
        return self._device_mesh

    @device_mesh.setter
    def device_mesh(self, device_mesh: DeviceMesh) -> None:
        if self._device_mesh is not None:
            raise ValueError(f"{self!r} has a mesh already, which can't be changed. Make another TensorLayout.")
        self._device_mesh = device_mesh
        self._check()

    def check_tensor(self, shape: Any, what: str) -> None:
        """Check that a tensor can be spread so.

        Raises:
            ValueError: its rank or a size does not fit; the message names it as `what`.
        """
        if shape is not None and len(shape) != len(self._axes):
            raise ValueError(
                f"{what} has shape {tuple(shape)}, but its layout {self._axes} is for {len(self._axes)} axes."
            )
        if shape is None or self._device_mesh is None:
            return
        for size, name in zip(shape, self._axes, strict=True):
            if name is not None and size is not None and size % self._device_mesh.size_of(name):
                raise ValueError(
                    f"{what} has shape {tuple(shape)}: axis {name!r} of the mesh has {self._device_mesh.size_of(name)} "
                    f"devices, which do not divide {size}. Choose another layout, or another size."
                )

    def _check(self) -> None:
        if self._device_mesh is None:
            return
        unknown = sorted({name for name in self._axes if name is not None} - set(self._device_mesh.axis_names))
        if unknown:
            raise ValueError(
                f"TensorLayout: axes={self._axes} names {unknown}; the mesh has {self._device_mesh.axis_names}."
            )

    def __repr__(self) -> str:
        return f"<TensorLayout axes={self.axes}, device_mesh={self.device_mesh}>"


class LayoutMap(MutableMapping[str, Any]):
    """Layouts by regular expressions that the paths of variables match somewhere.

    Args:
        device_mesh: the mesh of layouts that have none.

    `layout_map[path]` is the layout under exactly this key, or the only one whose key matches, or None.

    >>> layouts = LayoutMap(DeviceMesh((1,), ("model",)))
    >>> layouts["dense.*kernel"] = (None, "model")
    >>> layouts["model/dense_1/kernel"].axes, layouts["model/conv2d/kernel"]
    ((None, 'model'), None)
    """

    def __init__(self, device_mesh: DeviceMesh | None) -> None:
        self._layouts: dict[str, TensorLayout] = {}
        self._device_mesh = device_mesh

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh of layouts that have none."""
        return self._device_mesh

    def __getitem__(self, key: str) -> TensorLayout | None:
        if key in self._layouts:
            return self._layouts[key]
        matching = [pattern for pattern in self._layouts if re.search(pattern, key)]
        if len(matching) > 1:
            raise ValueError(
                f"LayoutMap: {key!r} matches several keys: {matching}. Write them so that a path matches one at most."
            )
        return self._layouts[matching[0]] if matching else None

    def __setitem__(self, key: str, layout: Any) -> None:
        if key in self._layouts:
            raise ValueError(f"LayoutMap: {key!r} has the layout {self._layouts[key]} already. Delete it first.")
        if isinstance(layout, (tuple, list)):
            layout = TensorLayout(layout)
        if not isinstance(layout, TensorLayout):
            raise ValueError(f"LayoutMap: expected a TensorLayout or a tuple of names, got {layout!r} for {key!r}.")
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(f"LayoutMap: {key!r} is no regular expression: {error}.") from None
        if layout.device_mesh is None and self._device_mesh is not None:
            layout.device_mesh = self._device_mesh
        self._layouts[key] = layout

    def __delitem__(self, key: str) -> None:
        del self._layouts[key]

    def __len__(self) -> int:
        return len(self._layouts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)


__all__ = ["DeviceMesh", "LayoutMap", "TensorLayout", "get_device_count", "list_devices"]
