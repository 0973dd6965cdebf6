"""`ParameterServer`: replicas of a model on the workers of a cluster, with the parameters on its ps tasks.

What `fit` does under a strategy is in framework/replicas. Nothing here imports gRPC before there is a cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Generator
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from ...engine.common.partitioners import partitioning, set_default_partitioner
from ...engine.objects.arguments import refused
from ..cluster import ClusterSpec
from ..environment import (
    WORKER_JOBS,
    Place,
    chief_of_launcher,
    cluster_from_environment,
    restarts_allowed,
)
from .own_task import OwnTask

if TYPE_CHECKING:
    from ..tasks.client import Client


_logger = logging.getLogger(__name__)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Strategy] = []


_scopes = _Scopes()


class _Default:
    strategy: Strategy | None = None


class _Unused:
    """The latest strategy over several processes, as long as nothing is made in its scope."""

    found: weakref.ref[Strategy] | None = None


def current_strategy() -> Strategy | None:
    """Return the strategy whose `scope` is around, else that of the process; None where there is none."""
    return strategy_around() or _Default.strategy


def strategy_around() -> Strategy | None:
    """Return the strategy whose `scope` is around; None outside of scopes."""
    return _scopes.stack[-1] if _scopes.stack else None


def set_default_strategy(strategy: Strategy | None) -> None:
    """Set the strategy of this process, which holds where no `scope` is around."""
    _Default.strategy, _Unused.found = strategy, None
    set_default_partitioner(None if strategy is None else strategy.variable_partitioner)


def note_made(strategy: Strategy) -> None:
    """Note that a strategy over several processes was made, whose scope a script may forget."""
    _Unused.found = weakref.ref(strategy)


def warn_of_forgotten_scope(model: str) -> None:
    """Log, once, that a model is trained without the strategy over several processes that the script has made.

    Args:
        model: its name.
    """
    strategy = None if _Unused.found is None else _Unused.found()
    _Unused.found = None
    if strategy is None:
        return
    kind = type(strategy).__name__
    _logger.warning(
        "fit trains model %r in this process alone: %s was made over several processes, but its scope was not entered. "
        "Make or compile the model in `with strategy.scope():`, or give the strategy to all models by "
        "ab.distribution.set_distribution(strategy).",
        model,
        kind,
    )


class Strategy:
    """The base of all strategies: how `fit` trains a model that was compiled in its `scope`.

    Attributes:
        cluster: all tasks; None where there is this process alone.
        task_index: the number of this worker.
        num_workers: how many there are.
        variable_partitioner: cuts the weights of layers that are made in the scope; None for none.

    >>> import anabranch as ab
    >>> strategy = ab.distribute.DataParallel()  # no cluster: this process alone
    >>> isinstance(strategy, ab.distribute.Strategy), strategy.num_workers, strategy.is_chief
    (True, 1, True)
    """

    cluster: ClusterSpec | None
    task_index: int
    num_workers: int
    variable_partitioner: Any = None
    running: Any = None
    chief_index: int | None = 0  # None where it is known that another worker leads, and not which

    @property
    def is_chief(self) -> bool:
        """Test whether this process is the chief, whose callbacks are called: worker 0, or who took over from it."""
        return self.task_index == self.chief_index

    @property
    def is_distributed(self) -> bool:
        """Test whether there is a cluster."""
        return self.cluster is not None

    @property
    def shares(self) -> int:
        """The number of workers whose gradients make a step."""
        return self.num_workers

    @property
    def may_repeat(self) -> bool:
        """Test whether rows may be handed out again, so that they have to be found by number."""
        return False

    def note_steps(self, count: int) -> None:
        """Count training steps that were made in this process alone, where `statistics` has their number."""

    @contextlib.contextmanager
    def scope(self) -> Generator[Self]:
        """Make a block: models that are made or compiled inside are trained under this strategy.

        A model that is made in the scope of one strategy and compiled in that of another is trained under the latter.
        """
        _scopes.stack.append(self)
        _Unused.found = None
        try:
            with partitioning(self.variable_partitioner):
                yield self
        finally:
            _scopes.stack.pop()


class ParameterServer(Strategy):
    """Trains replicas of a model on the workers of a cluster, with parameters and optimizers on its ps tasks.

    Every worker runs the same script. It finds its place in the environment (``TF_CONFIG``, which
    ``python -m anabranch launch`` sets). Worker 0 is the chief: its callbacks are called, it shows the progress, and
    the model begins with its initial values. Without a cluster the model is trained in this process as ever.

    Args:
        sync: whether the workers make each step together, with the mean of their gradients. Otherwise each worker's
            gradient is an update of its own.
        backup_workers: how many workers more there are than a step waits for. The first gradients count; the rows of
            those that come later are handed out again. Each epoch counts the workers that take part when it begins.
        on_drop: "requeue" hands the rows of dropped gradients out again, so that each row of an epoch counts once;
            "skip" does not, as in the paper.
        max_staleness: without `sync`, how many steps the parameters of a gradient may be behind; None for any number.
        variable_partitioner: cuts the weights of layers that are made in the scope into shards, which the ps tasks
            share, such as ``MinSizePartitioner(256 << 10, max_shards=4)``. A weight with a constraint, or with a
            regularizer that is not a sum over rows, stays whole.
        max_restarts: how often within an hour training may go on from its last backup after a ps task was lost, if it
            has the callback `BackupAndRestore`. By default what ``launch --max-restarts`` was given, elsewhere 3.
        deterministic: whether gradients are added in the order of workers, so that the same ones give the same bits. If
            not, a ps task adds each as soon as it counts, and holds one sum instead of the gradients of all workers.
        min_workers: while fewer workers take part no step begins: training waits, and ps task 0 says for whom.
        cluster: the tasks, in place of those in the environment: a `ClusterSpec`, or what makes one.
        job_name, task_index: which task this process is; with `cluster`.

    Source: Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016); Abadi et al.,
    "TensorFlow: A System for Large-Scale Machine Learning" (OSDI 2016), section 4.4.

    Raises:
        ValueError: the cluster lacks workers or ps tasks, or an argument does not fit.

    >>> import anabranch as ab
    >>> strategy = ab.distribute.ParameterServer()
    >>> with strategy.scope():
    ...     model = ab.Sequential([ab.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> strategy.is_chief, strategy.num_workers
    (True, 1)
    """

    def __init__(
        self,
        sync: bool = True,
        backup_workers: int = 0,
        *,
        on_drop: str = "requeue",
        max_staleness: int | None = None,
        variable_partitioner: Any = None,
        max_restarts: int | None = None,
        min_workers: int = 1,
        deterministic: bool = True,
        cluster: ClusterSpec | dict[str, Any] | None = None,
        job_name: str | None = None,
        task_index: int | None = None,
    ) -> None:
        self.sync = sync
        self.backup_workers = backup_workers
        self.on_drop = on_drop
        self.max_staleness = max_staleness
        self.variable_partitioner = variable_partitioner
        self.max_restarts = restarts_allowed() if max_restarts is None else max_restarts
        self.min_workers = min_workers
        self.deterministic = deterministic
        place = place_of("ParameterServer", cluster, job_name, task_index)
        _refuse_numbered(place)
        self.cluster = None if place is None else place.cluster
        self.workers = [] if place is None else _tasks(place.cluster, WORKER_JOBS)
        self.ps = [] if place is None else _tasks(place.cluster, ("ps",))
        self.num_workers = max(len(self.workers), 1)
        self._check()
        self.task_index = 0
        self._own: OwnTask | None = None
        self.count: Callable[[], dict[str, Any]] = dict  # what `statistics` gives: set by `fit`
        self.work: Any = None  # by which workers share passes over data, once there was one
        self.present = self.num_workers  # how many workers have come to the latest single step
        self.ends: list[Callable[[], None]] = []  # what else ends with this process's task, before it
        if place is not None:
            self._start(place)
            note_made(self)

    def _check(self) -> None:
        for name in ("sync", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise refused("ParameterServer", name, getattr(self, name), "True or False")
        for name in ("backup_workers", "max_restarts", "min_workers"):
            if not isinstance(getattr(self, name), Integral):
                raise refused("ParameterServer", name, getattr(self, name), "a whole number")
        if self.max_staleness is not None and not isinstance(self.max_staleness, Integral):
            raise refused("ParameterServer", "max_staleness", self.max_staleness, "a whole number, or None")
        if self.on_drop not in ("requeue", "skip"):
            raise ValueError(f"ParameterServer: on_drop must be 'requeue' or 'skip'; got {self.on_drop!r}.")
        if self.max_staleness is not None and (self.sync or self.max_staleness < 0):
            raise ValueError(
                f"ParameterServer: max_staleness={self.max_staleness} is a number of steps, at least 0, for sync=False."
            )
        if self.max_restarts < 0:
            raise ValueError(f"ParameterServer: max_restarts={self.max_restarts} must be at least 0.")
        if self.backup_workers < 0 or (self.backup_workers and not self.sync):
            raise ValueError(
                f"ParameterServer: backup_workers={self.backup_workers} must be at least 0, and 0 where sync=False: "
                "there no step waits for others."
            )
        if self.min_workers < 1 or (self.cluster is not None and self.min_workers > self.num_workers):
            raise ValueError(
                f"ParameterServer: min_workers={self.min_workers} must be at least 1, and at most the number of "
                f"workers, {self.num_workers}: with more, no step would ever begin."
            )
        if self.cluster is None:
            return
        if self.backup_workers >= self.num_workers:
            raise ValueError(
                f"ParameterServer: {self.backup_workers} of {self.num_workers} workers are backups, which leaves none "
                "for a step to wait for. Start more workers, or give a smaller backup_workers."
            )
        if not self.ps or not self.workers:
            raise ValueError(
                f"ParameterServer needs a cluster with jobs 'worker' and 'ps'; this one has {self.cluster}. Start ps "
                "tasks too: python -m anabranch launch -n 2 --ps 1 script.py."
            )

    def _start(self, place: Place) -> None:
        name = place.cluster.task_name(place.job_name, place.task_index)
        if name not in self.ps and name not in self.workers:
            raise ValueError(f"{name} is neither a worker nor a ps task; jobs are 'worker', 'ps' and 'chief'.")
        self._own = OwnTask.joined(place.cluster, place.job_name, place.task_index)
        if name in self.ps:
            self._own.serve({worker: place.cluster.address(worker) for worker in self.workers})
            raise SystemExit(0)
        self.task_index = self.workers.index(name)
        self.chief_index = chief_of_launcher() or 0
        atexit.register(self._end)

    @property
    def shares(self) -> int:
        """The number of workers whose gradients make a step."""
        return self.num_workers - self.backup_workers if self.sync else 1

    def shares_of(self, members: int) -> int:
        """Return how many gradients make a step of an epoch that so many workers begin: all but the backups."""
        return max(members - self.backup_workers, 1) if self.sync else 1

    @property
    def may_repeat(self) -> bool:
        return self.backup_workers > 0 or not self.sync

    @property
    def incarnation(self) -> int:
        """The number that distinguishes this process from one that was started as the same task before or after it."""
        return 0 if self._own is None or self._own.server is None else self._own.server.incarnation

    def begin_fit(self) -> int:
        """Count the models that this process has trained on the cluster: a number for the state of each."""
        assert self._own is not None
        self._own.fits += 1
        return self._own.fits

    def first_fit(self, model: object, number: int, options: object) -> int:
        """Return the number of the first training of a model that had the same options: a number for its state.

        Args:
            model: the model.
            number: that of this training; see `begin_fit`.
            options: what ps tasks can't change from training to training.
        """
        assert self._own is not None
        known = self._own.first_fits.get(model)
        if known is None or known[1] != options:
            known = self._own.first_fits[model] = number, options
        return known[0]

    def statistics(self) -> dict[str, Any]:
        """Count what the `fit` that runs, or ran last, has done.

        Returns:
            ``step``: how many steps were applied; ``members``: the workers that take part; ``receipts``: for each
            worker, how many of its gradients were taken, late, duplicate or refused; ``staleness``: how many gradients
            were behind by so many steps; ``backups``: how many of the workers steps should not wait for
            (``favoured``), by the times after which gradients have arrived. Empty before the first `fit`.
        """
        return self.count()

    def connect(self, task: str | None = None) -> Client:
        """Connect to a task, which is the master of the client's steps.

        Args:
            task: its name; None for this process's own.
        """
        from ..tasks.client import connect

        own = self._server.target
        return connect(own if task is None or self.cluster is None else f"grpc://{self.cluster.address(task)}")

    @property
    def _server(self) -> Any:
        """The server of this process's task.

        Raises:
            RuntimeError: there is none.
        """
        if self._own is not None and self._own.server is not None:
            return self._own.server
        if self.cluster is None:
            raise RuntimeError("There is no cluster to connect to: this process was started by itself.")
        raise RuntimeError("This ParameterServer was closed. Make another one: strategy = ParameterServer().")

    def hold(self, container: str, path: str, resource: Any) -> None:
        """Have steps that use this task's `path` in a container share an object of this process."""
        if self._own is not None:
            self._server.task.hold(container, path, resource)

    def _end(self) -> None:
        """Close it at the end of the process."""
        if self._own is not None:
            self._own.end_with_process()
        self.ends.clear()  # no step can be prepared any more: ps tasks see that this task is gone
        self.close()

    def close(self) -> None:
        """End this process's task, if no other strategy of the process has it. It ends with the process, too."""
        while self.ends:
            self.ends.pop()()
        if self.work is not None:
            self.work.close()
            self.work = None
        if self._own is not None:
            own, self._own = self._own, None
            own.leave()


def _refuse_numbered(place: Place | None) -> None:
    """Refuse processes that a launcher has only numbered: each would train alone."""
    if place is not None and place.is_numbered:
        raise ValueError(
            f"ParameterServer needs ps tasks, but this is process {place.task_index} of {len(place.cluster.tasks)} "
            "that are all alike. Use DataParallel, or describe the tasks in TF_CONFIG."
        )


def place_of(strategy: str, cluster: Any, job_name: str | None, task_index: int | None) -> Place | None:
    """Return the place that a strategy was given, or that of the environment.

    Raises:
        ValueError: a cluster was given, and not which of its tasks this process is.
    """
    if cluster is None:
        return cluster_from_environment()
    if job_name is None or task_index is None:
        raise ValueError(f"{strategy}: with cluster=, give job_name= and task_index= of this process.")
    return Place(cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster), job_name, task_index)


def _tasks(cluster: ClusterSpec, jobs: tuple[str, ...]) -> list[str]:
    return [task for job in jobs for task in cluster.tasks if task.startswith(f"/job:{job}/")]
