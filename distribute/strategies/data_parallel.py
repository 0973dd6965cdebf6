"""`DataParallel`: replicas of a model in several processes, which reduce their gradients among themselves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ...engine.objects.arguments import refused
from ...engine.ops import collectives
from ...engine.place.devices import list_devices as devices_here
from ..cluster import ClusterSpec
from ..collectives.group import ProcessGroup
from ..collectives.joiner import Joiner
from ..collectives.public import joined
from ..environment import Place
from .mesh import DeviceMesh, TensorLayout, device_names, list_devices
from .pipeline import Pipeline
from .strategy import Strategy, note_made, place_of

BATCH = "batch"  # the axis of a mesh over which rows are spread


class DataParallel(Strategy):
    """Trains replicas of a model in all workers of a cluster, which sum their gradients by all-reduce.

    Every worker runs the same script, and holds all parameters and the optimizer's state. Each batch is shared between
    the workers. They reduce their gradients, then each makes the same update, so that no ps task is needed and no
    worker waits for another's parameters. Without a cluster the model is trained in this process as ever.

    A worker finds its place in the environment: ``TF_CONFIG``, which ``python -m anabranch launch --ps 0`` sets, or the
    variables of torchrun, ``mpirun`` and ``srun``.
    Worker 0 is the chief: its callbacks are called, it shows the progress, and the model begins with its values. When
    a worker is lost, or leaves after SIGTERM, `fit` goes on in those that are left. If it was the chief, the lowest of
    them takes over, where ``python -m anabranch launch`` has started all. With ``--max-restarts`` who was lost is
    started again there, and joins `fit`. Elsewhere the loss of the chief, and with `shard` any loss, ends `fit` in all
    with an error that names who was lost.

    On several devices of one process `shard` and `gradient_dtype` are refused in `compile`: one copy of the variables,
    and of what the optimizer keeps, is for all replicas.

    Args:
        device_mesh: devices of this process, a replica on each; of several axes the first counts. By default, if no
            cluster is found, all of `ab.distribution.list_devices()`. In a cluster each worker is one replica.
        devices: their names, in place of a mesh.
        auto_shard_dataset: share the rows of batches between the replicas; there is no other way here.
        shard: "optimizer" spreads the optimizer's variables over the workers (ZeRO, stage 1): each keeps those for its
            part of the parameters, updates that part, and gets the others' parts. None keeps all in each.
        of: a `Pipeline`, by which each worker trains its rows on its own devices: a replica in stages. A process alone
            trains under the pipeline.
        bucket_bytes: workers sum gradients in buckets of about this many bytes, in the order in which the backward pass
            makes them, while it goes on. None for one sum behind it. Results have the same bits, but where NCCL adds.
        gradient_dtype: "bfloat16" (or "float16") to send gradients between workers in half the bytes, rounded; each
            sum is taken in float32, and rounded once. None sends them as they are.
        cluster: the tasks, in place of those in the environment: a `ClusterSpec`, or what makes one.
        job_name, task_index: which task this process is; with `cluster`.

    Raises:
        TimeoutError: workers are absent; the message names them.
        ValueError: the cluster has no such task.

    >>> import anabranch as ab
    >>> strategy = ab.distribute.DataParallel()
    >>> with strategy.scope():
    ...     model = ab.Sequential([ab.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> strategy.is_chief, strategy.num_workers
    (True, 1)
    """

    def __init__(
        self,
        device_mesh: DeviceMesh | None = None,
        devices: Any = None,
        auto_shard_dataset: bool = True,
        *,
        shard: str | None = None,
        of: Pipeline | None = None,
        bucket_bytes: int | None = 1 << 20,
        gradient_dtype: str | None = None,
        cluster: ClusterSpec | dict[str, Any] | None = None,
        job_name: str | None = None,
        task_index: int | None = None,
    ) -> None:
        if shard not in (None, "optimizer"):
            raise ValueError(f"DataParallel: shard must be 'optimizer', or None for nothing; got {shard!r}.")
        if of is not None and not isinstance(of, Pipeline):
            raise TypeError(f"DataParallel: of must be a Pipeline; got {of!r} of type {type(of).__name__}.")
        if of is not None and (device_mesh is not None or devices is not None):
            raise ValueError("DataParallel: with of= the devices are those of the pipeline. Leave the others out.")
        if of is not None and shard is not None:
            raise ValueError(
                "DataParallel: with of= each pipeline has the whole optimizer; its variables are not spread over "
                f"workers. Drop shard={shard!r}, or of=."
            )
        if bucket_bytes is not None and not isinstance(bucket_bytes, Integral):
            raise refused("DataParallel", "bucket_bytes", bucket_bytes, "a whole number, or None")
        if bucket_bytes is not None and bucket_bytes < 1:
            raise ValueError(f"DataParallel: bucket_bytes must be at least 1, or None; got {bucket_bytes}.")
        if gradient_dtype not in (None, "bfloat16", "float16"):
            raise ValueError(
                f"DataParallel: gradient_dtype must be 'bfloat16' or 'float16', or None for the gradients' own; got "
                f"{gradient_dtype!r}."
            )
        if gradient_dtype is not None and shard is not None:
            raise ValueError(
                "DataParallel: with shard='optimizer' gradients are sent as they are. Drop gradient_dtype."
            )
        self.bucket_bytes = bucket_bytes
        self.gradient_dtype = gradient_dtype
        self.shard = shard
        self.of = of
        self.optimizer_bytes = 0  # of the optimizer's variables that are spread, those of this worker
        self._join(cluster, place_of("DataParallel", cluster, job_name, task_index))
        self.steps = 0
        self._mesh = self._checked_mesh(device_mesh, devices)
        self.auto_shard_dataset = auto_shard_dataset
        if not auto_shard_dataset and self.num_workers > 1:
            raise ValueError(
                "DataParallel: auto_shard_dataset=False is not supported on clusters: all workers read the same data, "
                "each its rows of a batch. Give each the whole data, and leave auto_shard_dataset out."
            )
        if self.is_distributed:
            note_made(self)

    def _join(self, cluster: ClusterSpec | dict[str, Any] | None, place: Place | None) -> None:
        """Find this worker's group: that of a collective before, or the one of a cluster, which it joins."""
        if cluster is None:
            found = collectives.current_group()  # what a collective before this has joined
            if found.refuses:
                raise ValueError(
                    f"DataParallel: {found.refuses} Train all models of this script under strategies of that kind, or "
                    "this one in a script of its own."
                )
        else:
            found = joined(place)
            collectives.set_group(found)
        self.group: ProcessGroup | None = None
        self.joiner: Joiner | None = None  # this worker was started again, and the others have not taken it in
        self.task_index, self.num_workers = (0, 1) if found is None else (found.rank, found.size)
        if isinstance(found, Joiner):
            self.joiner, self.chief_index = found, None
        elif isinstance(found, ProcessGroup):
            self.group, self.task_index, self.chief_index = found, found.left[found.rank], found.left[0]
        self.cluster = None if place is None or place.is_numbered else place.cluster

    def _checked_mesh(self, device_mesh: Any, devices: Any) -> DeviceMesh | None:
        """Return the given mesh, or that of the given devices; None for the one that is declared when a step is built.

        Raises:
            TypeError: it is not a mesh.
            ValueError: the devices are a string.
            ValueError: in a cluster there are others than one device for each worker.
        """
        if device_mesh is None and devices is None:
            return None
        if device_mesh is None:
            names = device_names("DataParallel", devices)
            given = DeviceMesh([len(names)], [BATCH], names)
        else:
            given = device_mesh
        if not isinstance(given, DeviceMesh):
            raise TypeError(f"DataParallel: device_mesh must be a DeviceMesh; got {given!r} of {type(given).__name__}.")
        if len(given.shape) > 1:
            warnings.warn(
                f"DataParallel: the mesh has the axes {given.axis_names}; rows are spread over the first alone.",
                stacklevel=3,
            )
        if self.num_workers > 1 and len(given.devices) != self.num_workers:
            raise ValueError(
                f"DataParallel: the mesh has {len(given.devices)} devices for {self.num_workers} workers, each of "
                "which is one replica. Leave device_mesh and devices out."
            )
        return given

    @property
    def device_mesh(self) -> DeviceMesh:
        """The devices of the replicas."""
        if self._mesh is not None:
            return self._mesh
        names = [f"/job:worker/task:{number}" for number in self._members]
        return DeviceMesh([len(names)], [BATCH], names) if len(names) > 1 else _mesh_of_all()

    @property
    def batch_dim_name(self) -> str:
        """The axis of the mesh over which rows are spread."""
        return self.device_mesh.axis_names[0]

    @property
    def devices(self) -> list[str]:
        """The names of the devices that have a replica each."""
        found = self.device_mesh.devices
        return [str(name) for name in found.reshape(found.shape[0], -1)[:, 0]]

    @property
    def has_local_replicas(self) -> bool:
        """Test whether several devices of this process train together."""
        return self.of is None and not self.is_distributed and len(self.devices) > 1

    def get_data_layout(self, data_shape: Sequence[int | None]) -> TensorLayout:
        """Return the layout of a batch: its rows are spread."""
        mesh = self.device_mesh
        return TensorLayout([self.batch_dim_name, *[None] * (len(data_shape) - 1)], mesh)

    def get_variable_layout(self, variable: Any) -> TensorLayout:
        """Return the layout of a variable: it is whole on each device."""
        return TensorLayout([None] * len(variable.shape), self.device_mesh)

    def get_tensor_layout(self, path: str) -> TensorLayout | None:
        """Return None for the layout of what a layer computes: it is used as it comes."""
        return None

    @property
    def is_distributed(self) -> bool:
        return self.group is not None or self.joiner is not None

    @property
    def _members(self) -> list[int]:
        return [0] if self.group is None else sorted(self.group.left)

    def use_group(self, group: ProcessGroup | Joiner) -> None:
        """Go on with the workers that are left, or have joined; `num_workers` is their number.

        Args:
            group: theirs, in which this worker keeps its number; or a `Joiner`, which is in none.
        """
        is_member = isinstance(group, ProcessGroup)
        self.group, self.joiner = (group, None) if is_member else (None, group)
        self.num_workers, self._mesh = group.size, None

    def note_steps(self, count: int) -> None:
        self.steps += count

    def statistics(self) -> dict[str, Any]:
        """Count what was done.

        Returns:
            ``step``: how many steps this worker has taken part in; ``members``: the workers; with ``shard="optimizer"``
            ``optimizer_bytes``: how much of the optimizer's variables this worker has had in the latest `fit`; among
            workers with GPUs ``gpus``: how many sums of values on GPUs NCCL has made (``nccl``), how many went by the
            memory of the hosts (``by_host``), and the reason if all do (``why_by_host``).
        """
        found: dict[str, Any] = {"step": self.steps, "members": [*self._members]}
        if self.shard:
            found["optimizer_bytes"] = self.optimizer_bytes
        if self.group is not None and any(device.kind == "gpu" for device in devices_here()):
            found["gpus"] = self.group.gpus.statistics()
        return found

    def close(self) -> None:
        """Leave the other workers. It happens at the end of the process, too."""
        found = self.group or self.joiner
        if found is not None:
            found.close()
            collectives.set_group(None)


def _mesh_of_all() -> DeviceMesh:
    names = list_devices()
    return DeviceMesh([len(names)], [BATCH], names)
