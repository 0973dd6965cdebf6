"""`Pipeline`: a model in stages on several devices, through which the microbatches of a batch go in a row."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ...engine.graph.device import DeviceName
from ..environment import cluster_from_environment
from .mesh import device_names
from .spread import tasks_of
from .strategy import Strategy, note_made


class Pipeline(Strategy):
    """Trains a model in stages on several devices, with the microbatches of a batch in flight.

    A training step is one loop in the graph. Its body is forward *and* backward of one microbatch; gradients are
    carried as sums, and the optimizers make their updates behind it. Each device works on another microbatch:
    where `parallel_iterations` of them have begun, the next one begins when the backward pass of one has ended. So no
    more activations are kept than those of `parallel_iterations` microbatches, whatever the batch size.

    Losses, metrics and weights are those of the whole batch on one device, up to rounding. Of layers that look at
    several rows, `BatchNormalization` uses the statistics of each microbatch; its moving averages are the means of
    these, one update a step.

    Args:
        stages: lists of layers, or how many stages to cut the model's layers into so that each costs about the same;
            for that the model has to be a `Sequential` or functional one.
        microbatches: into how many parts a batch is cut; if it has fewer rows, each row is one. Parts of uneven size
            count by their rows.
        parallel_iterations: how many microbatches may be in flight at once; by default two more than there are stages.
            1 makes one after the other.
        devices: names of the devices, a stage on each; several stages may be on the same. By default those that are
            declared when a step is built: GPUs or simulated ones if there are any, else CPUs. Where there are fewer
            of them than stages, neighbours share one. Those of other processes, such as
            ``["/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"]``, are of processes that are
            started alike: the first one goes on with the script, and the others serve their stages, and end in this
            constructor when it has ended.

    Raises:
        ValueError: an argument does not fit.
        TypeError: `stages` is something else.

    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (NeurIPS
    2019); Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019).

    >>> import anabranch as ab
    >>> ab.config.set_devices(cpu=2)
    >>> strategy = ab.distribute.Pipeline(2, microbatches=4)
    >>> with strategy.scope():
    ...     model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(8, name="a"), ab.layers.Dense(1, name="b")])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit([[1.0, 2.0, 3.0]] * 8, [[1.0]] * 8, batch_size=8, verbose=0)
    >>> strategy.statistics()["stages"]
    [['a'], ['b']]
    >>> ab.config.set_devices()
    """

    cluster = None
    task_index = 0
    num_workers = 1

    def __init__(
        self,
        stages: int | Sequence[Sequence[Any]],
        microbatches: int,
        *,
        parallel_iterations: int | None = None,
        devices: Sequence[str] | None = None,
    ) -> None:
        self.stages: int | list[list[Any]] = _checked_stages(stages)
        self.microbatches = _count("microbatches", microbatches)
        given = None if devices is None else device_names("Pipeline", devices)
        self.devices = None if given is None else [str(DeviceName.parse(name)) for name in given]
        if self.devices is not None and len(self.devices) != self.num_stages:
            raise ValueError(
                f"Pipeline: devices names {len(self.devices)} devices for {self.num_stages} stages. Give one for each "
                "stage; the same one may be given again."
            )
        spreads = any(DeviceName.parse(name).job is not None for name in self.devices or ())
        self.tasks = tasks_of(self.devices or (), "Pipeline") if spreads else None
        if parallel_iterations is not None:
            parallel_iterations = _count("parallel_iterations", parallel_iterations)
        self.parallel_iterations = parallel_iterations or self.num_stages + 2
        if spreads:
            note_made(self)
        self.names: list[list[str]] = []  # of the layers of each stage, once a step was built
        self.places: list[str] = []  # the device of each stage

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    def check_alone(self) -> None:
        """Check that no other worker of a cluster would train the same model by itself.

        Raises:
            ValueError: one would: several were started, and the stages are on devices of this process.
        """
        place = cluster_from_environment() if self.tasks is None else None
        workers = [] if place is None else [task for task in place.cluster.tasks if not task.startswith("/job:ps/")]
        if len(workers) > 1:
            raise ValueError(
                f"Pipeline: the stages are on devices of this process, which is one of {len(workers)} workers, so each "
                "worker would train the whole model by itself. Give devices=ab.distribution.list_devices() for stages "
                "on all of them, or use DataParallel(of=Pipeline(...)) for replicas in stages, or start one process."
            )

    def statistics(self) -> dict[str, Any]:
        """Return how the model that was trained last was cut.

        Returns:
            ``stages``: the names of the layers of each stage; ``devices``: where each stage is, empty if all are on
            one CPU. Both are empty before the first step.
        """
        return {"stages": [list(each) for each in self.names], "devices": list(self.places)}


def _checked_stages(stages: Any) -> int | list[list[Any]]:
    if isinstance(stages, (list, tuple)):
        found: list[list[Any]] = [list(stage) if isinstance(stage, (list, tuple)) else [stage] for stage in stages]
        if not found or not all(found):
            raise ValueError("Pipeline: each stage needs a layer; got an empty list. Leave empty stages out.")
        layers = [layer for stage in found for layer in stage]
        if len({id(layer) for layer in layers}) != len(layers):
            names = [getattr(layer, "name", layer) for layer in layers]
            twice = sorted({str(name) for name in names if names.count(name) > 1})
            raise ValueError(f"Pipeline: the layers {twice} are in several stages. Give each in one of them.")
        return found
    return _count("stages", stages)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        more = ", or lists of layers" if name == "stages" else ""
        raise TypeError(f"Pipeline: {name} must be a whole number{more}; got {value!r} of type {type(value).__name__}.")
    if value < 1:
        raise ValueError(f"Pipeline: {name} must be at least 1; got {value}.")
    return int(value)


__all__ = ["Pipeline"]
