"""`ModelParallel`: weights of a model in parts, with which several devices compute, of this process or of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.common.partitioners import GridPartitioner
from .mesh import DeviceMesh, LayoutMap, TensorLayout
from .spread import tasks_of
from .strategy import Strategy, note_made


class ModelParallel(Strategy):
    """Computes with weights in parts: the products of each part are on the device of its place in a mesh.

    A `LayoutMap` says by the paths of weights along which axes they are cut, and over which axis of the mesh. Of a
    kernel ``(features, units)`` the layout ``(None, "model")`` makes columns: each device computes some of the outputs,
    with its part of the bias, and they are concatenated. ``("model", None)`` makes rows: each device multiplies some
    of the features, and the products are summed. A table of an `Embedding` may be cut by rows or columns, too. Both
    axes may be cut, over two axes of the mesh. Weights that no key matches are whole. A warning names the keys that
    match no weight, and those whose layouts have the axis of the rows.

    Layers that compute in parts are `Dense`, `EinsumDense`, whatever is made of them (such as `MultiHeadAttention`),
    `Embedding` and `ReversibleEmbedding`. Losses, metrics, gradients and weights are those of one device, up to
    rounding. `get_weights`, files and checkpoints have whole weights, so that a model opens under any strategy.

    Weights of layers that are made in the scope (or while it is the strategy of the process) are kept in parts, too:
    each device holds its part, and what the optimizer keeps for it, and no device holds the whole. Weights with a
    constraint, or with a regularizer that is not a sum over numbers, and those of models that were made before, are
    whole on the first device.

    The devices may be those of several processes (`ab.distribution.list_devices`), which are started alike. The first
    one goes on with the script; the others end in this constructor, with status 0, when it has ended. Until then they
    hold their parts, and compute with them.

    Where the mesh has another axis besides, rows of batches are spread over it: replicas, of which each has the mesh's
    other axes to itself. They see their rows only, as under `DataParallel`. Along this axis weights are not cut.

    Args:
        layout_map: layouts by regular expressions that paths of weights match; its mesh has the devices.
        batch_dim_name: the axis of the mesh over which rows are spread; by default the first one. In a mesh of one
            axis that a layout names all devices see all rows.
        auto_shard_dataset: share the rows of batches between replicas; there is no other way.
        device_mesh: the mesh of the layout map, which older scripts give once more.
        expert_axis: the axis of the mesh over which the experts of each `MixtureOfExperts` are spread, each whole on
            one device; by default they are on the first device with all else. It may be that of the rows: then each
            device has rows and experts, and sends tokens to the experts that they have chosen.

    Raises:
        ValueError: there is no layout map, it has no mesh, or another one than `device_mesh`, the mesh has no such
            axis, or its devices are of this process where there are several.

    Shazeer et al., "Mesh-TensorFlow: Deep Learning for Supercomputers" (NeurIPS 2018); Shoeybi et al., "Megatron-LM:
    Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019).

    >>> import anabranch as ab
    >>> ab.config.set_devices(cpu=2)
    >>> layouts = ab.distribution.LayoutMap(ab.distribution.DeviceMesh((2,), ("model",)))
    >>> layouts["up/kernel"] = (None, "model")
    >>> layouts["down/kernel"] = ("model", None)
    >>> strategy = ab.distribute.ModelParallel(layout_map=layouts)
    >>> with strategy.scope():
    ...     model = ab.Sequential([ab.layers.Dense(8, "relu", name="up"), ab.layers.Dense(1, name="down")])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit([[1.0, 2.0, 3.0]] * 8, [[1.0]] * 8, verbose=0)
    >>> for path, devices in strategy.statistics()["parts"].items():
    ...     print(path, devices)
    sequential/up/kernel ['cpu:0', 'cpu:1']
    sequential/down/kernel ['cpu:0', 'cpu:1']
    >>> ab.config.set_devices()
    """

    cluster = None
    task_index = 0
    num_workers = 1

    def __init__(
        self,
        *,
        layout_map: LayoutMap | None = None,
        batch_dim_name: str | None = None,
        auto_shard_dataset: bool = True,
        device_mesh: DeviceMesh | None = None,
        expert_axis: str | None = None,
    ) -> None:
        if not isinstance(layout_map, LayoutMap):
            raise ValueError(
                f"ModelParallel: layout_map must be an ab.distribution.LayoutMap; got {layout_map!r} of type "
                f"{type(layout_map).__name__}."
            )
        mesh = layout_map.device_mesh
        if mesh is None:
            raise ValueError("ModelParallel: layout_map has no mesh. Make it by LayoutMap(DeviceMesh(...)).")
        if device_mesh is not None and device_mesh is not mesh:
            raise ValueError(
                f"ModelParallel: device_mesh={device_mesh} is not the mesh of layout_map, {mesh}, whose axes the "
                "layouts name. Leave device_mesh out."
            )
        if batch_dim_name is not None and batch_dim_name not in mesh.axis_names:
            raise ValueError(
                f"ModelParallel: batch_dim_name={batch_dim_name!r} is no axis of the mesh, which has {mesh.axis_names}."
            )
        if expert_axis is not None and expert_axis not in mesh.axis_names:
            raise ValueError(
                f"ModelParallel: expert_axis={expert_axis!r} is no axis of the mesh, which has {mesh.axis_names}."
            )
        self.tasks = tasks_of(mesh.devices.reshape(-1), "ModelParallel")
        if self.tasks is not None:
            note_made(self)
        self.expert_axis = expert_axis
        self._layout_map = layout_map
        self._mesh = mesh
        self.batch_dim_name = mesh.axis_names[0] if batch_dim_name is None else batch_dim_name
        self.auto_shard_dataset = auto_shard_dataset
        self.variable_partitioner = _ByLayouts(self)
        self.parts: dict[str, list[str]] = {}  # by the paths of weights, once a step was built
        self.held: dict[str, int] = {}  # bytes by the names of devices
        self.seen_keys: set[str] = set()  # of layouts that were checked, so that a warning comes once

    @property
    def device_mesh(self) -> DeviceMesh:
        """The devices."""
        return self._mesh

    @property
    def layout_map(self) -> LayoutMap:
        """The layouts of weights. They are read when a step is built."""
        return self._layout_map

    @property
    def spreads_rows(self) -> bool:
        """Test whether rows of batches are spread over the batch axis of the mesh; else weights may be cut over it."""
        named = {axis for layout in self._layout_map.values() for axis in layout.axes}
        return len(self._mesh.shape) > 1 or self.batch_dim_name not in named

    @property
    def replicas(self) -> int:
        """The number of parts that a batch is cut into."""
        return self._mesh.size_of(self.batch_dim_name) if self.spreads_rows else 1

    def devices_of(self, replica: int) -> Any:
        """Return the names of the devices of a replica: the mesh without its batch axis, if rows are spread over it."""
        if not self.spreads_rows:
            return self._mesh.devices
        return self._mesh.devices.take(replica, axis=self._mesh.axis_names.index(self.batch_dim_name))

    def get_data_layout(self, data_shape: Sequence[int | None]) -> TensorLayout:
        """Return the layout of a batch: its rows are spread if the mesh has an axis for them."""
        rows = self.batch_dim_name if self.spreads_rows else None
        return TensorLayout([rows, *[None] * (len(data_shape) - 1)], self._mesh)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout of a variable: the one whose key its path matches, else it is whole on each device.

        Raises:
            ValueError: several keys match.
        """
        found = self._layout_map[variable.path]
        return TensorLayout([None] * len(variable.shape), self._mesh) if found is None else found

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return the layout that the map has for a path; that of what a layer computes has no effect here."""
        return self._layout_map[path]

    def places_of_experts(self, count: int, replica: int = 0) -> list[str] | None:
        """Return the devices of the experts of a layer; None if they are where all else is.

        Args:
            count: how many there are.
            replica: whose devices, unless all replicas have the same experts.
        """
        if self.expert_axis is None:
            return None
        along = self._mesh.axis_names.index(self.expert_axis)
        index: list[Any] = [0] * len(self._mesh.shape)
        if self.spreads_rows and self.expert_axis != self.batch_dim_name:
            index[self._mesh.axis_names.index(self.batch_dim_name)] = replica
        index[along] = slice(None)
        devices = self._mesh.devices[tuple(index)]
        most = min(count, len(devices))
        return [str(devices[number * most // count]) for number in range(count)]

    def parts_of(self, variable: Any, replica: int = 0) -> tuple[tuple[int, ...], Any] | None:
        """Return into which parts a weight is cut: the axes that are, and devices in an array of as many axes.

        Args:
            variable: a weight.
            replica: whose devices.

        Returns:
            None if it is whole.

        Raises:
            ValueError: its layout does not fit; the message says why.
        """
        layout = self.get_variable_layout(variable)
        what = f"ModelParallel: weight {variable.path!r}"
        found = self._axes_of(layout, variable.shape, what)
        if not found:
            return None
        names = self._names_of_parts
        order = [names.index(str(layout.axes[axis])) for axis in found]
        rest = [number for number in range(len(names)) if number not in order]
        devices = np.transpose(self.devices_of(replica), [*order, *rest])
        return tuple(found), devices.reshape(*devices.shape[: len(order)], -1)[..., 0]

    @property
    def _names_of_parts(self) -> list[str]:
        """The axes of the mesh over which weights may be cut."""
        return [name for name in self._mesh.axis_names if not (self.spreads_rows and name == self.batch_dim_name)]

    def _axes_of(self, layout: TensorLayout, shape: Any, what: str) -> list[int]:
        """Find the axes along which a weight is cut.

        Raises:
            ValueError: the layout does not fit; the message says why.
        """
        if layout.device_mesh is not self._mesh:
            raise ValueError(f"{what} has a layout with a mesh of its own. Let it be that of the layout map.")
        named = [name for name in layout.axes if name is not None]
        if len(set(named)) != len(named):
            raise ValueError(f"{what} has layout {layout.axes}, which names an axis of the mesh twice.")
        layout.check_tensor(shape, what)
        names = self._names_of_parts
        return [axis for axis, name in enumerate(layout.axes) if name in names and self._mesh.size_of(str(name)) > 1]

    def statistics(self) -> dict[str, Any]:
        """Return how the model that was trained or run last was cut.

        Returns:
            ``parts``: for each weight that is cut, by path, the device of each part, of the first replica;
            ``replicas``: how many parts batches are cut into; ``bytes``: how many bytes of weights and of the
            optimizer's variables each device holds.
        """
        parts = {path: list(devices) for path, devices in self.parts.items()}
        return {"parts": parts, "replicas": self.replicas, "bytes": dict(self.held)}


class _ByLayouts(GridPartitioner):
    """Cuts the weights of layers that are made in the strategy's scope.

    Args:
        strategy: whose layouts hold.
    """

    def __init__(self, strategy: ModelParallel) -> None:
        self._strategy = strategy

    def __deepcopy__(self, memo: Any) -> _ByLayouts:
        return self  # a layer's copy is made under the same strategy

    def counts(self, path: str, shape: Sequence[int], dtype: Any) -> list[int] | None:
        layout = self._strategy.layout_map[path]
        if layout is None:
            return None
        axes = self._strategy._axes_of(layout, shape, f"ModelParallel: weight {path!r}")
        if not axes:
            return None
        mesh = self._strategy.device_mesh
        return [mesh.size_of(str(name)) if axis in axes else 1 for axis, name in enumerate(layout.axes)]


__all__ = ["ModelParallel"]
